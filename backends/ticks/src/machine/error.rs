//! Why a run cannot begin, and what ended it early.

use zbmd_ir::verify::VerifyError;
use zbmd_op::OpError;
use zbmd_op::kernel::KernelFault;
use zbmd_ticks::{LinkId, MachineError, NodeId, TickLoss};

use crate::clock::ClockError;

/// Why an application cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The machine makes no sense.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The clocks make no sense, or control drove them apart.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// The graph is not consistent.
    #[error(transparent)]
    Graph(#[from] VerifyError),
    /// The plan is one of another graph or machine.
    #[error("the plan was made for {plan} {what}, but there are {found}")]
    OtherPlan {
        /// Actors or nodes.
        what: &'static str,
        /// How many the plan has.
        plan: usize,
        /// How many there are.
        found: usize,
    },
    /// A port is not joined to any channel.
    #[error("actor `{actor}`: port {port} is not joined to a channel")]
    OpenPort {
        /// The actor.
        actor: String,
        /// Index of the port.
        port: usize,
    },
    /// No kernel could be made.
    #[error("actor `{actor}`: {source}")]
    Kernel {
        /// The actor.
        actor: String,
        /// Why.
        source: OpError,
    },
    /// A source got no bytes to read.
    #[error("source `{source_name}` has no input: give its bytes, or an empty vector")]
    NoInput {
        /// The source.
        source_name: String,
    },
    /// No source limits the run and no iterations were given.
    #[error("a graph without sources runs for ever: say how many iterations")]
    Endless,
    /// Reports of a loss took longer than they should.
    #[error(
        "{node} does not know in its tick {tick} of a loss that others go on after: several parts were lost at once, and its reports took a longer way round"
    )]
    Untold {
        /// The node.
        node: NodeId,
        /// Its tick.
        tick: u64,
    },
    /// What an iteration needs of earlier ones is on no node that goes on.
    #[error(
        "no node that goes on has what iteration {iteration} needs of earlier output of `{writer}`: both that kept it were lost before it was elsewhere"
    )]
    BorderLost {
        /// The actor that wrote it.
        writer: String,
        /// The first iteration that is not complete.
        iteration: u64,
    },
    /// Nobody is left who could notice a loss and go on.
    #[error(
        "no node goes on after {complete} of {iterations} iterations: all that knew what was lost before are lost too"
    )]
    Abandoned {
        /// Iterations that are complete.
        complete: u64,
        /// Those of the run.
        iterations: u64,
    },
    /// A kernel reported a fault.
    #[error("actor `{actor}`: {fault}")]
    Fault {
        /// The actor.
        actor: String,
        /// What it said.
        fault: KernelFault,
    },
}

/// What a node saw that should not have been.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunFault {
    /// The node.
    pub node: NodeId,
    /// Its tick, counted from the start of the application.
    pub tick: u64,
    /// The incoming link.
    pub link: LinkId,
    /// What.
    pub kind: FaultKind,
}

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// No frame in the tick in which one was due.
    Missing,
    /// A frame whose check sum is wrong.
    Corrupt,
    /// The frame that is due is still under way: the buffer is empty.
    Underflow,
    /// A frame came and the buffer was full.
    Overflow,
}

impl std::fmt::Display for RunFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.kind {
            FaultKind::Missing => "no frame came",
            FaultKind::Corrupt => "a frame came with a wrong check sum",
            FaultKind::Underflow => "the elastic buffer was empty",
            FaultKind::Overflow => "the elastic buffer was full",
        };
        write!(
            f,
            "{} in tick {}, on {}: {what}",
            self.node, self.tick, self.link
        )
    }
}

/// Something that goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// Something happens to one frame.
    Frame {
        /// The link.
        link: LinkId,
        /// The sender's tick, counted from the start of the application.
        tick: u64,
        /// What happens.
        harm: FrameHarm,
    },
    /// From a tick of its sender on, all frames of a link are lost. Those in the other direction are not.
    Cut {
        /// The link.
        link: LinkId,
        /// The sender's tick.
        tick: u64,
    },
    /// A node does nothing any more from one of its ticks on.
    Stop {
        /// The node.
        node: NodeId,
        /// Its first tick that is not.
        tick: u64,
    },
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameHarm {
    /// It is lost.
    Lose,
    /// One bit of it changes.
    Flip {
        /// The bit, modulo those of a frame.
        bit: u32,
    },
}

/// A fault that a run went on after.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// What was seen first.
    pub fault: RunFault,
    /// What is lost for good, as those that go on see it: links, and nodes to which there is no way left. Empty if only
    /// frames were lost.
    pub lost: Vec<TickLoss>,
    /// Where the run went on, if it could not stay where it was.
    pub resumption: Option<Resumption>,
}

/// Where a run goes on after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumption {
    /// The first iteration that runs again: all before it were complete.
    pub iteration: u64,
    /// The tick of all nodes that is the first of the plan then.
    pub tick: u64,
    /// Ticks before that one in which borders were brought to the nodes that need them.
    pub restoring_ticks: u64,
    /// Frames that these took, on all links.
    pub restoring_frames: u64,
    /// The period of that plan.
    pub period: u64,
}
