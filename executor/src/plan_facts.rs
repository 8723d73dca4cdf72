//! What every worker of a plan wants to know of the whole of it, worked out once: a thousand workers that each went through a
//! thousand calendars would take longer to begin than all else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use zbmd_ir::{ActorId, BufferId, ChannelId, DeviceId, Graph, Plan};

use crate::transport::checksum::{Sums, sums_of};
use crate::worker::border;

/// See above.
pub(crate) struct PlanFacts {
    pub buffers: BTreeMap<(ChannelId, DeviceId), BufferId>,
    /// Actors that write over what they read: their kernels are told that ports share bytes.
    pub over: BTreeSet<ActorId>,
    pub has_chunks: bool,
    /// See [`border::keepers`].
    pub keepers: Vec<BufferId>,
    sums: OnceLock<Sums>,
}

impl PlanFacts {
    /// Those of a verified plan. O(plan log plan).
    pub(crate) fn of(graph: &Graph, plan: &Plan) -> Self {
        let buffers = plan.buffers.iter_enumerated();
        let buffers = buffers.map(|(id, buffer)| ((buffer.channel, buffer.device), id));
        let in_place_pairs = plan.over(graph).into_iter();
        Self {
            buffers: buffers.collect(),
            over: in_place_pairs.map(|pair| pair.actor).collect(),
            has_chunks: plan.buffers.iter().any(|buffer| buffer.is_chunked()),
            keepers: border::keepers(graph, plan),
            sums: OnceLock::new(),
        }
    }

    /// What each `Send` of the plan copies, and where its checksum is. Not all runs want that.
    pub(crate) fn sums(&self, plan: &Plan) -> &Sums {
        self.sums.get_or_init(|| sums_of(plan))
    }
}
