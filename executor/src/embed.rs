//! What the borders to other languages need alike: what streams a program has, how to run it in words, and what class
//! of error something is. Must not know any of these languages.

use std::path::PathBuf;

use zbmd_ir::bundle::OpenError;
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{Graph, Role, TokenType};

use crate::error::{EngineError, ModeError, RunError, SetError};
use crate::exit;
use crate::options::Isolation;
use crate::options::Supervised;
use crate::program::Engine;
use crate::supervise::declare::{DeclareError, Supervision};

/// What a program wants to know of a source or a sink.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamInfo {
    /// Its name.
    pub name: String,
    /// Whether tokens go in; they come out otherwise.
    pub is_source: bool,
    /// Dtype and shape of a token.
    pub token: TokenType,
    /// Tokens of one iteration of the graph.
    pub tokens_per_iteration: u64,
    /// Tokens of one second, if the model says so.
    pub sample_rate: Option<f64>,
}

/// The sources of a verified graph and then its sinks, each in the graph's order.
///
/// # Panics
/// If the graph is inconsistent, which a verified one is not.
pub fn streams(graph: &Graph) -> Vec<StreamInfo> {
    let repetition = repetition(graph).expect("a verified graph is consistent");
    let all = graph.sources().chain(graph.sinks());
    let info = |(id, actor): (zbmd_ir::ActorId, &zbmd_ir::Actor)| {
        let is_source = actor.role == Role::Source;
        let (token, rate) = match is_source {
            true => (&actor.outputs[0].token, actor.outputs[0].rate),
            false => (&actor.inputs[0].token, actor.inputs[0].rate),
        };
        StreamInfo {
            name: actor.name.clone(),
            is_source,
            token: token.clone(),
            tokens_per_iteration: repetition[id] * rate,
            sample_rate: actor.sample_rate(),
        }
    };
    all.map(info).collect()
}

impl Isolation {
    /// `threads`, `processes` or `gpus`; the worker's program matters to the last two.
    pub fn named(name: &str, program: Option<PathBuf>) -> Option<Self> {
        match name {
            "threads" => Some(Self::Threads),
            "processes" => Some(Self::Processes { program }),
            "gpus" => Some(Self::GpuProcesses { program }),
            _ => None,
        }
    }
}

impl Supervised {
    /// [`Self::declared`] for a declaration in RON: an empty text says nothing.
    ///
    /// # Errors
    /// What is wrong with the declaration, or does not fit the program's machine.
    pub fn from_text(text: &str, engine: &Engine) -> Result<Self, DeclareError> {
        match text.trim() {
            "" => Self::declared(&Supervision::default(), engine),
            text => Self::declared(&Supervision::parse(text)?, engine),
        }
    }
}

impl EngineError {
    /// Its class: one of [`exit`].
    pub fn class(&self) -> u8 {
        match self {
            Self::Trace { .. } | Self::Weights { .. } => exit::FILE,
            #[cfg(target_os = "linux")]
            Self::Realtime(_) => exit::FAULT,
            Self::Memory(_) | Self::Thread(_) => exit::FAULT,
            _ => exit::REFUSED,
        }
    }
}

impl RunError {
    /// Its class: one of [`exit`].
    pub fn class(&self) -> u8 {
        match self {
            Self::Start(EngineError::Device { .. }) => exit::REFUSED,
            Self::GaveUp { .. } => exit::GAVE_UP,
            Self::SupervisorStuck { .. } => exit::BUG,
            _ => exit::FAULT,
        }
    }
}

/// The class of what keeps a bundle from being opened: one of [`exit`].
pub fn open_error_class(error: &OpenError) -> u8 {
    if matches!(error, OpenError::Io(_)) {
        exit::FILE
    } else {
        exit::REFUSED
    }
}

impl ModeError {
    /// Its class, one of [`exit`].
    pub fn class(&self) -> u8 {
        match self {
            Self::Unknown { .. } => exit::USAGE,
            Self::NotAllowed { .. } | Self::Busy { .. } | Self::NoPlan { .. } => exit::REFUSED,
            Self::Ended => exit::NO_RUN,
        }
    }
}

impl SetError {
    /// Its class, one of [`exit`]. It is no error of the caller's that changes come too fast or too late.
    pub fn class(&self) -> u8 {
        match self {
            Self::Unknown { .. } | Self::Twice { .. } | Self::Source { .. } => exit::USAGE,
            Self::Value(_)
            | Self::Op { .. }
            | Self::Scratch { .. }
            | Self::TooLate { .. }
            | Self::Pending { .. }
            | Self::Full
            | Self::Council { .. } => exit::REFUSED,
            Self::Ended => exit::NO_RUN,
        }
    }
}
