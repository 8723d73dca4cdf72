//! Products with rounded factors: which actors are asked for them, and which have them in the plans that were made.

use std::fmt;

use bytes::Bytes;
use zbmd_backends::kernels::Math;
use zbmd_backends::op::Registry;
use zbmd_ir::{Actor, ActorId, BlobId, Device, Graph, Machine, Plan, Role, TiSlice, Value};

use crate::codes::Code;
use crate::diag::Diagnostic;

/// Actors named at most in a report.
const MOST_NAMED: usize = 12;

/// What became of the products that were asked to round their factors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rounding {
    /// Actors that do, on the devices of their plans that can, and to what. The program's graph says so of just these.
    pub rounded: Vec<(String, Math)>,
    /// Actors that compute in f32 all the same, and why.
    pub exact: Vec<(String, String)>,
}

impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.rounded.len() + self.exact.len();
        for math in Math::ALL {
            let count = self.rounded.iter().filter(|(_, m)| *m == math).count();
            if count > 0 {
                write!(f, "{count} of {all} products with factors in {math}; ")?;
            }
        }
        write!(f, "{} of {all} in f32", self.exact.len())?;
        for (i, (name, why)) in self.exact.iter().take(MOST_NAMED).enumerate() {
            write!(f, "{} {name} ({why})", if i == 0 { ":" } else { "," })?;
        }
        match self.exact.len().saturating_sub(MOST_NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// What an actor is asked for.
fn asked(actor: &Actor) -> Option<Math> {
    actor
        .params
        .get(Math::PARAM)?
        .as_str()?
        .parse()
        .ok()
        .filter(|m| *m != Math::F32)
}

/// Whether an actor's op has products, and takes the parameter.
fn multiplies(registry: &Registry, actor: &Actor) -> bool {
    let op = registry
        .op(&actor.op)
        .filter(|_| actor.role == Role::Compute);
    op.is_some_and(|op| op.doc().params.iter().any(|(name, _)| *name == Math::PARAM))
}

/// Asks all products of a graph that the model leaves free.
///
/// # Errors
/// A machine without a device that could do it, or with one that is too old.
pub(crate) fn ask(
    registry: &Registry,
    graph: &mut Graph,
    machine: &Machine,
    math: Math,
) -> Result<(), Diagnostic> {
    if math == Math::F32 {
        return Ok(());
    }
    let mut gpus = machine
        .devices
        .iter()
        .filter(|d| d.backend == "cuda")
        .peekable();
    if gpus.peek().is_none() {
        let what = format!("products in {math} are asked for, and the machine has no CUDA device");
        return Err(Diagnostic::new(Code::E0507, what).help(
            "leave `--math` away, or name a CUDA device: `compile --gpus`, or a machine file that has one",
        ));
    }
    let capability = |d: &Device| registry.caps(d).capability.unwrap_or_default();
    if let Some(old) = gpus.find(|d| capability(d) < Math::CAPABILITY) {
        let (has, needs) = (capability(old), Math::CAPABILITY);
        let what = format!(
            "products in {math} need compute capability {}.{}, `{}` has {}.{}",
            needs.0, needs.1, old.name, has.0, has.1
        );
        return Err(Diagnostic::new(Code::E0507, what).help("leave `--math` away"));
    }
    for actor in &mut graph.actors {
        if multiplies(registry, actor) {
            let word = Value::Str(math.name().to_owned());
            actor.params.entry(Math::PARAM.to_owned()).or_insert(word);
        }
    }
    Ok(())
}

/// Takes the parameter from the actors that round nothing in any plan; what became of all that were asked.
pub(crate) fn settle(
    registry: &Registry,
    graph: &mut Graph,
    machine: &Machine,
    plans: &[Plan],
    blobs: &TiSlice<BlobId, Bytes>,
) -> Option<Rounding> {
    let mut found = Rounding::default();
    for (id, actor) in graph.actors.iter_mut_enumerated() {
        if !multiplies(registry, actor) {
            continue;
        }
        let Some(math) = asked(actor) else { continue };
        match rounds_nothing(registry, (id, actor), machine, plans, blobs) {
            None => found.rounded.push((actor.name.clone(), math)),
            Some(why) => {
                actor.params.remove(Math::PARAM);
                found.exact.push((actor.name.clone(), why));
            }
        }
    }
    (found != Rounding::default()).then_some(found)
}

/// Why an actor computes in f32, if it does so in every plan.
fn rounds_nothing(
    registry: &Registry,
    (id, actor): (ActorId, &Actor),
    machine: &Machine,
    plans: &[Plan],
    blobs: &TiSlice<BlobId, Bytes>,
) -> Option<String> {
    let homes = || plans.iter().map(|p| &machine.devices[p.placement[id]]);
    let Some(gpu) = homes().find(|d| d.backend == "cuda") else {
        return homes()
            .next()
            .map(|home| format!("it runs on {}", home.name));
    };
    let plan = registry.lower(actor, blobs, registry.caps(gpu));
    let rounds = plan.is_some_and(|p| p.math() != Math::F32);
    (!rounds).then(|| "no kernel on tensor cores for its shape".to_owned())
}
