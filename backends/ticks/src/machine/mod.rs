//! Applications on a machine that keeps time, run by their plan.
//!
//! A run has two ways of going on, which give the same bits. [`Stepping::EveryFrame`] visits every node in every one of
//! its ticks, in the order of simulated time, while clocks drift and are controlled; frames lie in queues, and each is
//! looked at in the tick in which it is due. [`Stepping::Events`] visits only the ticks in which a calendar has an
//! entry: what happens in a tick does not depend on when the tick is, so that nothing else need be known.
//!
//! A run ends with the first frame that is lost or wrong, unless it has plans for losses: then it goes back to the last
//! iteration border before which all is complete, and on from there with the plan for what is left (`recovery.rs`). What
//! iterations leave to later ones is in the memory of two nodes, and frames bring it to those that need it (`border.rs`).
//!
//! In a tick a node first completes the firing that ends, then puts frames on its links, then starts a firing, then takes
//! frames from its links.

mod application;
mod border;
mod calendar;
mod call;
mod error;
mod events;
mod frames;
mod recovery;
mod reports;
mod ring;

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_ir::{BlobId, Graph, TiSlice};
use zbmd_op::Registry;
use zbmd_ticks::{NodeId, TickContingencies, TickMachine, VerifiedPlan};

use self::application::{Application, Parts};
use self::calendar::{Carried, calendars};
pub use self::error::{FaultKind, FrameHarm, Injection, Recovery, Resumption, RunError, RunFault};
use crate::clock::{FillRange, TimedEvent};

/// How a run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stepping {
    /// From tick to tick of every node, with clocks and frames.
    EveryFrame,
    /// From calendar entry to calendar entry.
    Events,
}

/// What is run.
#[derive(Clone, Copy)]
pub struct RunInput<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Its constants.
    pub blobs: &'a TiSlice<BlobId, Bytes>,
    /// Its ops.
    pub registry: &'a Registry,
    /// The machine.
    pub machine: &'a TickMachine,
    /// The plan, which has been verified for graph and machine.
    pub plan: &'a VerifiedPlan,
    /// Plans for losses of the same graph and machine. With them a run goes on after a fault; only with
    /// [`Stepping::EveryFrame`].
    pub contingencies: Option<&'a TickContingencies>,
    /// Tokens of each source, by name.
    pub inputs: &'a BTreeMap<String, Vec<u8>>,
    /// Most iterations; sources may limit them further.
    pub iterations: Option<u64>,
    /// Most ticks of a node; the run ends in the middle of an iteration there.
    pub max_ticks: Option<u64>,
    /// What goes wrong; only with [`Stepping::EveryFrame`].
    pub injections: &'a [Injection],
    /// How the run goes on.
    pub stepping: Stepping,
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    /// The tokens of each sink, by name, as bytes.
    pub outputs: BTreeMap<String, Vec<u8>>,
    /// Iterations of the run.
    pub iterations: u64,
    /// Ticks of each node.
    pub ticks: u64,
    /// Frames with tokens that were put on links.
    pub frames: u64,
    /// Smallest and largest fill of all elastic buffers; only with [`Stepping::EveryFrame`].
    pub fills: Option<FillRange>,
    /// Faults that the run went on after.
    pub recoveries: Vec<Recovery>,
    /// Nodes and links that stopped, in the order of time.
    pub stops: Vec<TimedEvent>,
    /// What ended the run early.
    pub fault: Option<RunFault>,
}

/// Runs an application from its first iteration to its last.
///
/// # Errors
/// See [`RunError`]. Frames that are lost are no error, but [`RunOutcome::fault`].
pub fn run(input: &RunInput<'_>) -> Result<RunOutcome, RunError> {
    let network = input.machine.network()?;
    let sizes = [
        (
            "actors",
            input.plan.placement.len(),
            input.graph.actors.len(),
        ),
        (
            "nodes",
            input.plan.waiting_frames.len(),
            network.node_count(),
        ),
    ];
    for (what, plan, found) in sizes {
        if plan != found {
            return Err(RunError::OtherPlan { what, plan, found });
        }
    }

    let parts = Parts {
        graph: input.graph,
        blobs: input.blobs,
        registry: input.registry,
        machine: input.machine,
        plan: input.plan,
    };
    let application = Application::new(&parts, input.inputs, input.iterations)?;
    let durations = input.machine.durations(input.graph);
    let entries = calendars(input.plan, input.machine, &network, &durations);
    match input.stepping {
        Stepping::EveryFrame => frames::run(input, &network, application, entries),
        Stepping::Events => events::run(input, &network, application, entries),
    }
}

/// Frames on their way through nodes: of what, which of them, on which hop, of which iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct WaitingFrame {
    node: NodeId,
    carried: Carried,
    hop: usize,
    frame: u64,
    iteration: u64,
}
