//! What all steps of the pipeline start from: what is given, and what follows from it whatever the block size.

use zbmd_ir::{ActorId, Costs, DeviceId, Graph, Machine, PortChannels, TiVec};

use crate::analysis::{AnalysisError, EdgeList, check_deadlock_over, repetition_over};
use crate::options::ScheduleOptions;

/// What a schedule is made of.
///
/// The graph must have passed `zbmd_ir::verify::check_graph` (ids in range, every port connected once).
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// What is to run.
    pub graph: &'a Graph,
    /// Where it can run.
    pub machine: &'a Machine,
    /// What each actor costs on each device.
    pub costs: &'a Costs,
    /// What is asked of the schedule.
    pub options: &'a ScheduleOptions,
}

/// Firings of each actor in one iteration.
pub(crate) type RepetitionVector = TiVec<ActorId, u64>;

/// What follows from the graph alone.
pub(crate) struct Analysis {
    pub(crate) ports: PortChannels,
    pub(crate) edges: EdgeList,
    pub(crate) repetition: RepetitionVector,
}

impl Analysis {
    /// # Errors
    /// [`AnalysisError`] for a graph that is inconsistent or deadlocks.
    pub(crate) fn of(graph: &Graph) -> Result<Self, AnalysisError> {
        let edges = EdgeList::of(graph);
        let repetition = repetition_over(graph, &edges)?;
        check_deadlock_over(&edges, &repetition)?;

        Ok(Analysis {
            ports: graph.port_channels(),
            edges,
            repetition,
        })
    }
}

/// Devices that may be used: all, or those the options name, in id order.
pub(crate) fn allowed_devices(machine: &Machine, only: Option<&[DeviceId]>) -> Vec<DeviceId> {
    let Some(named) = only else {
        return machine.devices.keys().collect();
    };
    let mut allowed = named.to_vec();
    allowed.retain(|&device| device.index() < machine.devices.len());
    allowed.sort_unstable();
    allowed.dedup();
    allowed
}
