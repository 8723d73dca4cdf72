//! The verifier of modes: each is verified as a program, then whether a run can go over from one to another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Verified, VerifyError, verify};
use crate::bundle::Image;
use crate::limits::{MAX_MODES, MAX_NAME_BYTES};
use crate::text::is_hidden;
use crate::{DType, Graph, LiveParameter, ModeDecision, Modes, Program, live_parameters};

/// What the verifier refuses of modes. Modes are named by index.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum ModesError {
    /// None, or too many.
    #[error("there are {found} modes, must be 1 to {MAX_MODES}")]
    Count { found: usize },
    /// A name that is too long, empty or has characters that cannot be seen.
    #[error(
        "mode {mode}: its name is empty, longer than {MAX_NAME_BYTES} bytes, or cannot be seen"
    )]
    Name { mode: usize },
    /// Two of one name.
    #[error("modes {first} and {second} are both called `{name}`")]
    DuplicateName {
        first: usize,
        second: usize,
        name: String,
    },
    /// A program that breaks rules.
    #[error("mode `{name}`: {} ({} in all)", .errors.first().map(VerifyError::to_string).unwrap_or_default(), .errors.len())]
    Program {
        name: String,
        errors: Vec<VerifyError>,
    },
    /// Compiled for another machine.
    #[error("mode `{name}` is for another machine than the first")]
    Machine { name: String },
    /// Other sources or sinks.
    #[error(
        "mode `{name}` has {found}; the first has {expected}: they must be the same, in the same order"
    )]
    Streams {
        name: String,
        found: String,
        expected: String,
    },
    /// Live parameters of one name that are not one parameter.
    #[error("mode `{name}` has another live parameter `{parameter}` than a mode before it")]
    Parameter { name: String, parameter: String },
    /// A change from or to a mode that is not there.
    #[error("change {change} is from mode {from} to mode {to} of {modes}")]
    UnknownChange {
        change: usize,
        from: u32,
        to: u32,
        modes: usize,
    },
    /// Tokens that cannot decide about the mode.
    #[error("`{actor}` cannot decide about the mode: {why}")]
    Decision { actor: String, why: String },
    /// A change from a mode to itself, or twice the same.
    #[error("change {change}, from mode {from} to mode {to}, changes nothing")]
    VoidChange { change: usize, from: u32, to: u32 },
}

/// Modes that passed their verification. Only [`verify_modes`] makes them.
#[derive(Clone, Debug)]
pub struct VerifiedModes {
    names: Vec<String>,
    programs: Vec<Arc<Verified<Program>>>,
    changes: Vec<(u32, u32)>,
    decision: Option<ModeDecision>,
    image: Option<Image>,
}

impl VerifiedModes {
    /// Their names; a run begins with the first.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Their programs, in the order of the names.
    pub fn programs(&self) -> &[Arc<Verified<Program>>] {
        &self.programs
    }

    /// Whether the model has modes. A program without is one of them, with an empty name.
    pub fn has_modes(&self) -> bool {
        self.names.iter().any(|name| !name.is_empty())
    }

    /// Their graphs, in the order of the names.
    pub fn graphs(&self) -> impl Iterator<Item = &Graph> {
        self.programs.iter().map(|program| &program.graph)
    }

    /// From which mode to which other a run may go, by index.
    pub fn changes(&self) -> &[(u32, u32)] {
        &self.changes
    }

    /// How tokens decide about the mode, if they do.
    pub fn decision(&self) -> Option<&ModeDecision> {
        self.decision.as_ref()
    }

    pub(crate) fn image(&self) -> Option<&Image> {
        self.image.as_ref()
    }

    pub(crate) fn with_image(self, image: Option<Image>) -> Self {
        Self { image, ..self }
    }
}

impl From<Verified<Program>> for VerifiedModes {
    /// A program without modes is its only one, and has no name.
    fn from(program: Verified<Program>) -> Self {
        Self {
            names: vec![String::new()],
            image: program.image.clone(),
            programs: vec![Arc::new(program)],
            changes: Vec::new(),
            decision: None,
        }
    }
}

/// Checks modes.
///
/// # Errors
/// The first property found not to hold.
pub fn verify_modes(modes: Modes) -> Result<VerifiedModes, ModesError> {
    check_names(&modes)?;
    check_changes(&modes)?;

    let mut names = Vec::new();
    let mut programs: Vec<Arc<Verified<Program>>> = Vec::new();
    let mut parameters = BTreeMap::new();
    for mode in modes.list {
        let name = mode.name;
        let program = verify(mode.program).map_err(|errors| ModesError::Program {
            name: name.clone(),
            errors,
        })?;
        let program = Arc::new(program);
        let first = programs.first().unwrap_or(&program);
        check_agreement(&name, &program, first)?;
        check_parameters(&name, &program.graph, &mut parameters)?;
        names.push(name);
        programs.push(program);
    }
    if let Some(decision) = &modes.decision {
        check_decision(decision, &names, &programs).map_err(|why| ModesError::Decision {
            actor: decision.actor.clone(),
            why,
        })?;
    }
    Ok(VerifiedModes {
        names,
        programs,
        changes: modes.changes,
        decision: modes.decision,
        image: None,
    })
}

/// Whether what decides is a part of the state of each mode that has it, and a number.
fn check_decision(
    decision: &ModeDecision,
    names: &[String],
    programs: &[Arc<Verified<Program>>],
) -> Result<(), String> {
    if decision.every == 0 {
        return Err("it is to do so every 0 iterations".to_owned());
    }
    if let Some(mode) = decision
        .modes
        .iter()
        .find(|mode| **mode as usize >= names.len())
    {
        return Err(format!(
            "one of its numbers stands for mode {mode} of {}",
            names.len()
        ));
    }
    let mut decides = false;
    for (name, program) in names.iter().zip(programs) {
        let graph = &program.graph;
        let Some(id) = decision.channel_in(graph) else {
            continue;
        };
        let channel = &graph.channels[id];
        let token = &channel.token;
        if !token.shape.is_empty() || !matches!(token.dtype, DType::U8 | DType::I32 | DType::I64) {
            return Err(format!(
                "in mode `{name}` its tokens are {token}, must be u8, i32 or i64"
            ));
        }
        if channel.history() == 0 {
            return Err(format!(
                "in mode `{name}` no token of it lies on its channel between iterations: give the channel an initial token"
            ));
        }
        decides = true;
    }
    match decides {
        true => Ok(()),
        false => Err("no mode has an actor of that name with this output".to_owned()),
    }
}

fn check_names(modes: &Modes) -> Result<(), ModesError> {
    let found = modes.list.len();
    if found == 0 || found > MAX_MODES {
        return Err(ModesError::Count { found });
    }
    let mut known = BTreeMap::new();
    for (index, mode) in modes.list.iter().enumerate() {
        let name = mode.name.as_str();
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(is_hidden) {
            return Err(ModesError::Name { mode: index });
        }
        if let Some(first) = known.insert(name, index) {
            return Err(ModesError::DuplicateName {
                first,
                second: index,
                name: name.to_owned(),
            });
        }
    }
    Ok(())
}

fn check_changes(modes: &Modes) -> Result<(), ModesError> {
    let count = modes.list.len();
    let mut known = BTreeSet::new();
    for (change, &(from, to)) in modes.changes.iter().enumerate() {
        if from as usize >= count || to as usize >= count {
            return Err(ModesError::UnknownChange {
                change,
                from,
                to,
                modes: count,
            });
        }
        if from == to || !known.insert((from, to)) {
            return Err(ModesError::VoidChange { change, from, to });
        }
    }
    Ok(())
}

/// Whether a mode can take the place of the first.
fn check_agreement(name: &str, program: &Program, first: &Program) -> Result<(), ModesError> {
    let name = || name.to_owned();
    if program.machine != first.machine {
        return Err(ModesError::Machine { name: name() });
    }
    let found = streams(&program.graph);
    let expected = streams(&first.graph);
    if found != expected {
        return Err(ModesError::Streams {
            name: name(),
            found: found.join(", "),
            expected: expected.join(", "),
        });
    }
    Ok(())
}

/// What is set of a parameter in one mode means the same in every other.
fn check_parameters(
    name: &str,
    graph: &Graph,
    known: &mut BTreeMap<String, LiveParameter>,
) -> Result<(), ModesError> {
    for parameter in live_parameters(graph) {
        let first = known
            .entry(parameter.name.clone())
            .or_insert_with(|| parameter.clone());
        if *first != parameter {
            return Err(ModesError::Parameter {
                name: name.to_owned(),
                parameter: parameter.name,
            });
        }
    }
    Ok(())
}

/// What the streams of a graph are, for people.
fn streams(graph: &Graph) -> Vec<String> {
    let sources = graph.sources().map(|(_, actor)| {
        let token = &actor.outputs[0].token;
        format!("source `{}` of {token}", actor.name)
    });
    let sinks = graph.sinks().map(|(_, actor)| {
        let token = &actor.inputs[0].token;
        format!("sink `{}` of {token}", actor.name)
    });
    sources.chain(sinks).collect()
}
