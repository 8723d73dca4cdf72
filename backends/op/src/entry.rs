//! How ops of the standard catalogue are written: one function from arguments to a [`ResolvedOp`] with ports, work and
//! kernels, so that the compiler, the loader and the cost model cannot disagree.

use std::collections::BTreeMap;

use zbmd_ir::{Actor, InPort, OutPort, TokenType, limits};

use crate::args::{Args, input_error};
use crate::kernel::Io;
use crate::types::{Bindings, TypeSchema, no_elements};
use crate::{Op, OpDoc, OpError, ResolveCx, ResolvedOp, Signature};

/// An input port.
pub fn in_port(name: &str, token: TokenType, rate: u64, window: u64) -> InPort {
    InPort {
        name: name.to_owned(),
        token,
        rate,
        window,
    }
}

/// An output port.
pub fn out_port(name: &str, token: TokenType, rate: u64) -> OutPort {
    OutPort {
        name: name.to_owned(),
        token,
        rate,
    }
}

/// An op of the standard catalogue. Its parameters are those that its description names.
pub struct Entry {
    /// Its name in the catalogue.
    pub name: &'static str,
    /// Element types of its ports: a [`TypeSchema`].
    pub types: &'static str,
    /// Names of parameters that may be given without them, in order.
    pub positional: &'static [&'static str],
    /// What it does, for people.
    pub doc: OpDoc,
    /// Parses its parameters.
    pub make: fn(&Args<'_>) -> Result<ResolvedOp, OpError>,
}

/// An [`Entry`] in the catalogue.
pub struct EntryOp {
    entry: Entry,
    types: TypeSchema,
}

impl EntryOp {
    /// The op of an entry.
    pub fn new(entry: Entry) -> Self {
        let types = TypeSchema::new(entry.types);
        Self { entry, types }
    }
}

impl Op for EntryOp {
    fn name(&self) -> &str {
        self.entry.name
    }

    fn doc(&self) -> OpDoc {
        self.entry.doc.clone()
    }

    fn types(&self) -> Option<&TypeSchema> {
        Some(&self.types)
    }

    fn positional(&self) -> &'static [&'static str] {
        self.entry.positional
    }

    fn resolve(&self, cx: &ResolveCx<'_>) -> Result<ResolvedOp, OpError> {
        let known: Vec<&str> = self.entry.doc.params.iter().map(|p| p.0).collect();
        let args = Args::new(cx, &known)?;
        let mut bindings = Bindings::default();
        for (name, token) in cx.types {
            let Some(port) = self.types.input(name) else {
                continue;
            };
            let shown = if name.is_empty() { port.name } else { name };
            self.types.check_input(port, shown, token, &mut bindings)?;
            if token.elements() == 0 {
                return Err(no_elements(shown, token));
            }
        }

        let resolved = (self.entry.make)(&args)?;
        check_limits(resolved.signature())?;
        check_connected(resolved.signature(), cx.connected)?;
        for output in &resolved.signature().outputs {
            if let Some(port) = self.types.output(&output.name) {
                let token = &output.token;
                self.types
                    .check_output(port, &output.name, token, &bindings)?;
            }
        }
        Ok(resolved)
    }
}

/// Names and types of an actor's inputs that are in no state pair.
pub fn stateless_inputs(actor: &Actor) -> (Vec<String>, BTreeMap<String, TokenType>) {
    let ports = actor.inputs.iter().enumerate();
    let ports = ports.filter(|(i, _)| actor.state_of_input(*i as u32).is_none());
    let types: BTreeMap<_, _> = ports
        .clone()
        .map(|(_, p)| (p.name.clone(), p.token.clone()))
        .collect();
    (ports.map(|(_, p)| p.name.clone()).collect(), types)
}

/// Refuses ports beyond the limits that the verifier sets.
pub fn check_limits(signature: &Signature) -> Result<(), OpError> {
    let ports = signature
        .inputs
        .iter()
        .map(|p| (&p.name, &p.token, p.window))
        .chain(
            signature
                .outputs
                .iter()
                .map(|p| (&p.name, &p.token, p.rate)),
        )
        .chain(signature.states.iter().map(|s| (&s.name, &s.token, 1)));
    for (name, token, tokens) in ports {
        let over = |what: &str, is: u64, limit: u64| {
            (is > limit).then(|| OpError::Other {
                message: format!("port `{name}` has {what} {is}, the limit is {limit}"),
                help: "make the tokens or rates smaller".to_owned(),
            })
        };
        let too_much = over("rank", token.shape.len() as u64, limits::MAX_RANK as u64)
            .or_else(|| over("token bytes", token.bytes(), limits::MAX_TOKEN_BYTES))
            .or_else(|| over("a rate or window of", tokens, limits::MAX_RATE));
        if let Some(error) = too_much {
            return Err(error);
        }
    }

    // A state counts on both sides, because it is read and written.
    let inputs = signature.inputs.len();
    let outputs = signature.outputs.len();
    let states = signature.states.len();
    if inputs + states > limits::MAX_PORTS || outputs.max(states) > Io::MAX_MUT_PORTS {
        return Err(OpError::Other {
            message: format!(
                "{inputs} inputs, {outputs} outputs and {states} states: at most {} inputs, {} outputs",
                limits::MAX_PORTS,
                Io::MAX_MUT_PORTS
            ),
            help: "use several actors one after the other".to_owned(),
        });
    }
    Ok(())
}

/// Refuses channels to ports that do not exist.
pub fn check_connected(signature: &Signature, connected: &[String]) -> Result<(), OpError> {
    let known = |name: &String| name.is_empty() || signature.inputs.iter().any(|p| p.name == *name);
    match connected.iter().find(|name| !known(name)) {
        None => Ok(()),
        Some(name) if signature.inputs.is_empty() => {
            Err(input_error(name, "does not exist", "the op has no inputs"))
        }
        Some(name) => {
            let names: Vec<&str> = signature.inputs.iter().map(|p| p.name.as_str()).collect();
            let help = match crate::args::nearest(name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the inputs are {}", names.join(", ")),
            };
            Err(input_error(name, "does not exist", help))
        }
    }
}
