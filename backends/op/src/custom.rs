//! `Custom`: actors whose kernel is Rust code of the embedding program.
//!
//! An op sees no registry, so what depends on what is registered is in [`Registry::resolve`] and
//! [`Registry::kernel`]: without an actor of the name, a declaration alone gives the ports, so that a model can be
//! compiled by a program that does not have its actors.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use zbmd_ir::{Actor, BlobId, Params, TiSlice, TokenType, Value, limits};

use crate::args::Args;
use crate::entry::{check_connected, check_limits, in_port, out_port, stateless_inputs};
use crate::kernel::Kernel;
use crate::registry::initial_params;
use crate::types::{TypeSchema, check_sizes};
use crate::{
    CustomActor, Op, OpDoc, OpError, PortPhases, Registry, ResolveCx, ResolvedOp, Signature, Work,
    check_ports, default_work, port_text, token_type,
};

/// Name of the op.
pub const NAME: &str = "Custom";

const KNOWN: [&str; 5] = ["name", "inputs", "outputs", "params", "cost_ns"];

/// The op `Custom` as far as a declaration goes.
#[derive(Debug)]
pub struct Custom;

/// A declaration, or the registered actor, says the types.
static TYPES: LazyLock<TypeSchema> = LazyLock::new(|| TypeSchema::new("_:any -> _:any"));

impl Op for Custom {
    fn types(&self) -> Option<&TypeSchema> {
        Some(&TYPES)
    }

    fn name(&self) -> &str {
        NAME
    }

    fn doc(&self) -> OpDoc {
        OpDoc {
            summary: "an actor written in Rust and registered by the embedding program",
            params: &[
                ("name", "the name it is registered by"),
                (
                    "inputs",
                    "ports by name: a type such as f32 or \"u8[112]\", or {\"dtype\": u8, \"shape\": [112], \
                     \"rate\": 1, \"window\": 1}. Sorted by name. A rate may be a list such as [1, 0, 2], of \
                     the phases of a firing: see `zbmdc analyse`. Without inputs and outputs, the ports are the \
                     registered actor's, which may also have state",
                ),
                ("outputs", "ports by name, as above without window"),
                ("params", "a map handed to the actor"),
                (
                    "cost_ns",
                    "nanoseconds of one firing, for the schedule (default: from its bytes)",
                ),
            ],
            ports: "as declared or as the actor says; both must agree",
            example: "Custom(\"crc\", inputs: {\"x\": \"u8[112]\"}, outputs: {\"ok\": bool})",
        }
    }

    fn positional(&self) -> &'static [&'static str] {
        &["name"]
    }

    fn resolve(&self, cx: &ResolveCx<'_>) -> Result<ResolvedOp, OpError> {
        let args = Args::new(cx, &KNOWN)?;
        let name = args.word("name")?.to_owned();
        let declared = declaration(&args)?.ok_or_else(|| unregistered(&name))?;
        check(&declared.signature, cx)?;
        let no_kernel = move || Err(unregistered(&name));
        Ok(ResolvedOp::with_signature(declared.signature, no_kernel))
    }
}

fn unregistered(name: &str) -> OpError {
    OpError::Other {
        message: format!("the program did not register custom actor `{name}`"),
        help:
            "register it with `Registry::register`, or declare `inputs` and `outputs` to compile \
               without it"
                .to_owned(),
    }
}

fn check(signature: &Signature, cx: &ResolveCx<'_>) -> Result<(), OpError> {
    check_limits(signature)?;
    check_connected(signature, cx.connected)
}

/// What a model declares of an actor's ports.
struct Declaration {
    signature: Signature,
    phases: Option<PortPhases>,
}

/// A port as a model declares it.
struct DeclaredPort {
    token: TokenType,
    rate: u64,
    window: u64,
    /// The tokens of each phase, where the rate is a list.
    phases: Option<Vec<u64>>,
}

/// The ports that the model declares, if it does.
fn declaration(args: &Args<'_>) -> Result<Option<Declaration>, OpError> {
    let (inputs, outputs) = (args.map_opt("inputs")?, args.map_opt("outputs")?);
    if inputs.is_none() && outputs.is_none() {
        return Ok(None);
    }
    let declared = |side, ports: Option<&BTreeMap<String, Value>>| {
        let ports = ports.into_iter().flatten();
        let ports = ports.map(|(name, value)| Ok((name.clone(), port(args, side, name, value)?)));
        ports.collect::<Result<Vec<(String, DeclaredPort)>, OpError>>()
    };
    let inputs = declared("inputs", inputs)?;
    let outputs = declared("outputs", outputs)?;
    let phases = declared_phases(args, &inputs, &outputs)?;
    let inputs = inputs
        .into_iter()
        .map(|(name, port)| in_port(&name, port.token, port.rate, port.window));
    let outputs = outputs
        .into_iter()
        .map(|(name, port)| out_port(&name, port.token, port.rate));
    Ok(Some(Declaration {
        signature: Signature::stateless(inputs.collect(), outputs.collect()),
        phases,
    }))
}

/// The phases of a declaration that has lists of rates. A port without one takes all its tokens in the first phase, or
/// gives all in the last.
fn declared_phases(
    args: &Args<'_>,
    inputs: &[(String, DeclaredPort)],
    outputs: &[(String, DeclaredPort)],
) -> Result<Option<PortPhases>, OpError> {
    let ports = inputs.iter().map(|port| ("inputs", port));
    let ports = ports.chain(outputs.iter().map(|port| ("outputs", port)));
    let mut first: Option<(String, usize)> = None;
    for (side, (name, port)) in ports {
        let Some(phases) = port.phases.as_ref().map(Vec::len) else {
            continue;
        };
        let path = format!("{side}.{name}.rate");
        match &first {
            Some((known, count)) if *count != phases => {
                let message = format!("has {phases} phases, `{known}` has {count}");
                return Err(args.error(&path, message, "all lists of an actor are equally long"));
            }
            Some(_) => {}
            None => first = Some((path, phases)),
        }
    }
    let Some((_, count)) = first else {
        return Ok(None);
    };

    let rates_of = |port: &DeclaredPort, phase_without_list: usize| {
        port.phases.clone().unwrap_or_else(|| {
            let mut rates = vec![0; count];
            rates[phase_without_list] = port.rate;
            rates
        })
    };
    let inputs = inputs.iter().map(|(_, port)| rates_of(port, 0));
    let outputs = outputs.iter().map(|(_, port)| rates_of(port, count - 1));
    Ok(Some(PortPhases {
        inputs: inputs.collect(),
        outputs: outputs.collect(),
    }))
}

fn port(args: &Args<'_>, side: &str, name: &str, value: &Value) -> Result<DeclaredPort, OpError> {
    let path = format!("{side}.{name}");
    let token = token_type(args, &path, value)?;
    let Value::Map(map) = value else {
        return Ok(DeclaredPort {
            token,
            rate: 1,
            window: 1,
            phases: None,
        });
    };
    let number = |key: &str, default: u64| match map.get(key) {
        None => Ok(default),
        Some(v) => v
            .as_int()
            .and_then(|i| u64::try_from(i).ok())
            .filter(|&n| n > 0)
            .ok_or_else(|| {
                args.error(
                    &format!("{path}.{key}"),
                    "is no positive integer",
                    "at least 1",
                )
            }),
    };
    let phases = match map.get("rate") {
        Some(Value::List(rates)) => Some(phase_rates(args, &path, rates)?),
        _ => None,
    };
    let rate = match &phases {
        Some(rates) => rates.iter().copied().fold(0, u64::saturating_add),
        None => number("rate", 1)?,
    };
    let window = number("window", rate)?;
    if side == "outputs" && map.contains_key("window") {
        return Err(args.error(&path, "has a window", "only inputs have windows"));
    }
    if window < rate {
        let message = format!("has window {window}, below rate {rate}");
        return Err(args.error(
            &path,
            message,
            "a window holds at least the tokens consumed",
        ));
    }
    Ok(DeclaredPort {
        token,
        rate,
        window,
        phases,
    })
}

/// The tokens of each phase: counts that are not all 0.
fn phase_rates(args: &Args<'_>, path: &str, rates: &[Value]) -> Result<Vec<u64>, OpError> {
    let counts = rates.iter().map(|rate| {
        let count = rate.as_int().and_then(|int| u64::try_from(int).ok());
        count.filter(|&count| count <= limits::MAX_RATE)
    });
    let counts: Option<Vec<u64>> = counts.collect();
    let counts = counts.filter(|counts| counts.iter().any(|count| *count > 0));
    counts.ok_or_else(|| {
        args.error(
            &format!("{path}.rate"),
            "is no list of counts with one above 0",
            "tokens of each phase, such as [1, 0, 2]",
        )
    })
}

impl Registry {
    /// The ports of an actor: [`Op::resolve`] of the op, except that for `Custom` a registered actor is asked and
    /// compared with the model's declaration.
    ///
    /// # Errors
    /// [`OpError::Other`] for an unknown op, for a custom actor that is neither registered nor declared, and for
    /// one whose ports differ from the declaration; for ports without elements; else what the op says.
    pub fn resolve(&self, op: &str, cx: &ResolveCx<'_>) -> Result<Signature, OpError> {
        let signature = self.resolve_any_size(op, cx)?;
        check_sizes(&signature)?;
        Ok(signature)
    }

    /// Like [`Self::resolve`], for an actor that is computed at once and never gets channels: its ports may have no
    /// elements.
    ///
    /// # Errors
    /// See [`Self::resolve`].
    pub fn resolve_any_size(&self, op: &str, cx: &ResolveCx<'_>) -> Result<Signature, OpError> {
        let params = initial_params(cx.params);
        let cx = &ResolveCx {
            params: &params,
            ..*cx
        };
        if op != NAME || !self.ops.contains_key(NAME) {
            let op = self.op(op).ok_or_else(|| self.unknown_op(op))?;
            return Ok(self.resolve_with(&**op, cx)?.signature().clone());
        }
        let args = Args::new(cx, &KNOWN)?;
        let name = args.word("name")?;
        let Some(actor) = self.custom_actor(cx.params, name)? else {
            return Ok(Custom.resolve(cx)?.signature().clone());
        };
        let ports = actor.ports();
        if let Some(declared) = declaration(&args)? {
            let declared = declared.signature;
            // The model's map has no order: compare sorted by name.
            let mut sorted = ports.clone();
            sorted.inputs.sort_by(|a, b| a.name.cmp(&b.name));
            sorted.outputs.sort_by(|a, b| a.name.cmp(&b.name));
            if declared.inputs != sorted.inputs || declared.outputs != sorted.outputs {
                return Err(disagree(name, &sorted, &declared));
            }
        }
        check(&ports, cx)?;
        Ok(ports)
    }

    fn custom_actor(
        &self,
        params: &Params,
        name: &str,
    ) -> Result<Option<Arc<dyn CustomActor>>, OpError> {
        let none = BTreeMap::new();
        let inner = match params.get("params") {
            Some(Value::Map(map)) => map,
            _ => &none,
        };
        self.custom(name, inner).transpose()
    }

    /// The op of an actor of `Custom`: the registered actor, made anew, whose ports were checked.
    pub(crate) fn resolve_custom_actor(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Result<ResolvedOp, OpError> {
        let custom_actor = self.custom_for(actor, blobs)?;
        let pairs = custom_actor.in_place();
        let work = custom_actor.work();

        let make_kernel = move || Ok(Arc::clone(&custom_actor) as Arc<dyn Kernel>);
        let resolved = ResolvedOp::with_signature(Signature::default(), make_kernel);
        let resolved = resolved.with_in_place_pairs(pairs);
        Ok(match work {
            Some(work) => resolved.with_work(work),
            None => resolved,
        })
    }

    fn custom_for(
        &self,
        actor: &Actor,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Result<Arc<dyn CustomActor>, OpError> {
        let (connected, types) = stateless_inputs(actor);
        let cx = ResolveCx {
            params: &actor.params,
            connected: &connected,
            types: &types,
            blobs,
        };
        let name = Args::new(&cx, &KNOWN)?.word("name")?;
        let made = self
            .custom_actor(&actor.params, name)?
            .ok_or_else(|| unregistered(name))?;
        check_limits(&made.ports())?;
        // A program compiled without the actor has the declaration's order, which only a program that sorts its
        // ports by name shares.
        check_ports(actor, &made.ports())?;
        Ok(made)
    }

    /// Work of one firing of a custom actor: what the model says, else the actor, else its bytes.
    pub(crate) fn custom_work(&self, actor: &Actor) -> Work {
        let name = actor
            .params
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let params = initial_params(&actor.params);
        let made = self.custom_actor(&params, name).ok().flatten();
        made.and_then(|a| a.work())
            .unwrap_or_else(|| default_work(actor))
    }
}

/// The phases that a model declares for a custom actor, in the order of the actor's ports. The actor need not be
/// registered.
pub(crate) fn custom_phases(actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Option<PortPhases> {
    let (connected, types) = stateless_inputs(actor);
    let cx = ResolveCx {
        params: &actor.params,
        connected: &connected,
        types: &types,
        blobs,
    };
    // A declaration that cannot be read has been refused before.
    let declared = declaration(&Args::new(&cx, &KNOWN).ok()?).ok()??;
    let phases = declared.phases?;
    let Signature {
        inputs, outputs, ..
    } = declared.signature;

    // A registered actor's ports may have another order than their names.
    let mut ordered = PortPhases::default();
    for port in &actor.inputs {
        let index = inputs.iter().position(|known| known.name == port.name);
        let rates = index.map(|index| phases.inputs[index].clone());
        ordered.inputs.extend(rates);
    }
    for port in &actor.outputs {
        let index = outputs.iter().position(|known| known.name == port.name);
        let rates = index.map(|index| phases.outputs[index].clone());
        ordered.outputs.extend(rates);
    }
    Some(ordered)
}

fn disagree(name: &str, actor: &Signature, declared: &Signature) -> OpError {
    let text = |s: &Signature, states| port_text(&s.inputs, &s.outputs, states);
    OpError::Other {
        message: format!(
            "custom actor `{name}` has ports {}, the model declares {}",
            text(actor, actor.states.len()),
            text(declared, actor.states.len())
        ),
        help: "change one of them, or leave `inputs` and `outputs` out".to_owned(),
    }
}
