//! What all steps of the pipeline start from: what is given, and what follows from it whatever the block size.

use std::cell::OnceCell;

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

/// What follows from the graph alone, and the links of the machine as they are asked for.
pub(crate) struct Analysis {
    pub(crate) ports: PortChannels,
    pub(crate) edges: EdgeList,
    pub(crate) repetition: RepetitionVector,
    pub(crate) links: LinkTable,
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
            links: LinkTable::new(),
        })
    }
}

/// The link of each ordered pair of devices in constant time.
///
/// A machine of n devices has up to n² links, and a placement uses few of them: where they are in order they are looked
/// up in the machine itself, and only otherwise is a table of all of them made, once.
pub(crate) struct LinkTable {
    /// Id of the link by `from * devices + to`.
    id_of: OnceCell<Vec<Option<LinkId>>>,
}

impl LinkTable {
    pub(crate) fn new() -> Self {
        LinkTable {
            id_of: OnceCell::new(),
        }
    }

    /// The link from one device to another of the machine that this is the table of.
    pub(crate) fn link<'m>(
        &self,
        machine: &'m Machine,
        from: DeviceId,
        to: DeviceId,
    ) -> Option<&'m Link> {
        if let Some(link) = machine.link_in_order(from, to) {
            return Some(link);
        }
        let devices = machine.devices.len();
        let id_of = self.id_of.get_or_init(|| tabulate_links(machine));
        let id = id_of[from.index() * devices + to.index()]?;
        Some(&machine.links[id])
    }
}

fn tabulate_links(machine: &Machine) -> Vec<Option<LinkId>> {
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
    id_of
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
