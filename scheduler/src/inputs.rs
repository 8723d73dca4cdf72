//! What all steps of the pipeline start from: what is given, and what follows from it whatever the block size.

use zbmd_ir::{ActorId, Costs, DeviceId, Graph, Link, LinkId, Machine, PortChannels, TiVec};

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

/// What follows from the graph and the machine alone.
pub(crate) struct Analysis {
    pub(crate) ports: PortChannels,
    pub(crate) edges: EdgeList,
    pub(crate) repetition: RepetitionVector,
    pub(crate) links: LinkTable,
}

impl Analysis {
    /// # Errors
    /// [`AnalysisError`] for a graph that is inconsistent or deadlocks.
    pub(crate) fn of(graph: &Graph, machine: &Machine) -> Result<Self, AnalysisError> {
        let edges = EdgeList::of(graph);
        let repetition = repetition_over(graph, &edges)?;
        check_deadlock_over(&edges, &repetition)?;

        Ok(Analysis {
            ports: graph.port_channels(),
            edges,
            repetition,
            links: LinkTable::of(machine),
        })
    }
}

/// The link of each ordered pair of devices in constant time: a search of the machine's list would take time for each
/// link, and a machine of n devices has n² of them.
pub(crate) struct LinkTable {
    devices: usize,
    /// Id of the link by `from * devices + to`.
    id_of: Vec<Option<LinkId>>,
}

impl LinkTable {
    pub(crate) fn of(machine: &Machine) -> Self {
        let devices = machine.devices.len();
        let mut id_of = vec![None; devices * devices];

        for (id, link) in machine.links.iter_enumerated() {
            let from = link.from.index();
            let to = link.to.index();
            if from < devices && to < devices {
                // Of two links of one pair the first counts, as in `Machine::link`.
                id_of[from * devices + to].get_or_insert(id);
            }
        }
        LinkTable { devices, id_of }
    }

    /// The link from one device to another of the machine that this is the table of.
    pub(crate) fn link<'m>(
        &self,
        machine: &'m Machine,
        from: DeviceId,
        to: DeviceId,
    ) -> Option<&'m Link> {
        let id = self.id_of[from.index() * self.devices + to.index()]?;
        Some(&machine.links[id])
    }
}

/// Devices that may be used: all, or those the options name, in id order.
pub(crate) fn allowed_devices(machine: &Machine, only: Option<&[DeviceId]>) -> Vec<DeviceId> {
    machine
        .devices
        .keys()
        .filter(|device| only.is_none_or(|named| named.contains(device)))
        .collect()
}
