//! A whole compiled program, and the state of a run at an iteration border.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    ActorId, BlobId, ChannelId, Contingencies, Graph, Machine, ParameterChange, Plan, PlanId, TiVec,
};

/// Everything the executor needs. Trust it only as [`crate::verify::Verified`]. By default nothing,
/// which no verifier accepts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// What is computed.
    pub graph: Graph,
    /// What it was compiled for.
    pub machine: Machine,
    /// The ways to run it. Plan 0 is `main`; a plan called `tail` with block 1 runs what is left of the input.
    pub plans: TiVec<PlanId, Plan>,
    /// Which of the plans run on what is left of the machine when devices are lost.
    pub contingencies: Contingencies,
    /// Constant tensors referred to by parameters, and code.
    pub blobs: TiVec<BlobId, Bytes>,
    /// Kernels of GPUs that need not be printed again when the program is loaded, in the order of format and key.
    pub kernels: Vec<KernelCode>,
}

/// The code of a kernel, as a kind of driver takes it. A device that looks for another key prints its kernels itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelCode {
    /// What language it is, such as `spirv`.
    pub format: String,
    /// Of what was printed and how.
    pub key: u128,
    /// The code.
    pub blob: BlobId,
}

impl Program {
    /// The plan of that name.
    pub fn plan(&self, name: &str) -> Option<(PlanId, &Plan)> {
        self.plans.iter_enumerated().find(|(_, p)| p.name == name)
    }
}

/// All state of a run at an iteration border: the tokens lying on the channels. The same for every plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Graph iterations completed since the beginning.
    pub iterations: u64,
    /// The last `history()` tokens of each channel, oldest first.
    pub channels: TiVec<ChannelId, Vec<u8>>,
    /// Tokens taken by each source since the beginning; `(actor, tokens)` in actor order.
    pub consumed: Vec<(ActorId, u64)>,
    /// Changes of live parameters that are not in effect at all firings yet, and before them one with the values of those
    /// that are; in the order of [`crate::insert_change`].
    pub changes: Vec<ParameterChange>,
}

impl State {
    /// The state before the first iteration.
    pub fn initial(graph: &Graph) -> State {
        State {
            iterations: 0,
            channels: graph.channels.iter().map(|c| c.initial.clone()).collect(),
            consumed: graph.sources().map(|(id, _)| (id, 0)).collect(),
            changes: Vec::new(),
        }
    }
}
