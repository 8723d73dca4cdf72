//! A machine that keeps time, as a file describes it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use zbmd_ir::{Actor, ActorId, Graph, TiVec};

use crate::clocks::{Control, ControlLaw, ElasticBuffers};
use crate::{Clocks, ClocksError, Network, Topology, TopologyError};

/// A tick machine: nodes that are all alike, on a network whose links are all alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TickMachine {
    /// Nodes and links.
    pub topology: Topology,
    /// Bits of a frame, a multiple of 8. Every link carries one frame each way in every tick.
    pub frame_bits: u32,
    /// Logical latency of every link: a frame that is sent in tick t is taken in tick t + `latency_ticks`. At least 1.
    pub latency_ticks: u64,
    /// Memory of each node, in bytes.
    #[serde(default = "default_memory")]
    pub memory_bytes: u64,
    /// Ticks that a firing takes, by the name of the actor or else of its op.
    #[serde(default)]
    pub op_ticks: BTreeMap<String, u64>,
    /// Ticks that a firing takes of actors that `op_ticks` does not name. At least 1.
    #[serde(default = "default_ticks")]
    pub default_ticks: u64,
    /// The clocks. Without them, some whose propagation and buffers make up `latency_ticks`.
    #[serde(default)]
    pub clocks: Option<Clocks>,
}

const fn default_memory() -> u64 {
    1 << 20
}

const fn default_ticks() -> u64 {
    1
}

/// Longest time that anything in a machine file may take, in ticks: sums over all hops and firings stay far from the
/// largest number.
const MAX_TICKS: u64 = 1 << 32;

/// Why a description is no machine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MachineError {
    /// The shape makes no network.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The clocks make no sense.
    #[error("clocks: {0}")]
    Clocks(#[from] ClocksError),
    /// Frames of parts of bytes.
    #[error("`frame_bits` is {found}, but must be a multiple of 8, at least 8")]
    FrameBits {
        /// What was given.
        found: u32,
    },
    /// A time of no ticks, or of too many.
    #[error("`{field}` is {found} ticks, but must be between 1 and {max}", max = MAX_TICKS)]
    Ticks {
        /// The field, or the actor or op.
        field: String,
        /// What was given.
        found: u64,
    },
    /// Clocks whose links have another latency.
    #[error(
        "`latency_ticks` is {latency}, but propagation of {propagation} and an initial fill of {fill} make up {sum}: change one of them"
    )]
    Latency {
        /// `latency_ticks`.
        latency: u64,
        /// Ticks of propagation.
        propagation: f64,
        /// Frames in a buffer.
        fill: u64,
        /// The latency that follows from these.
        sum: u64,
    },
}

impl TickMachine {
    /// The network, if all of the description makes sense.
    ///
    /// # Errors
    /// See [`MachineError`].
    pub fn network(&self) -> Result<Network, MachineError> {
        if self.frame_bits == 0 || !self.frame_bits.is_multiple_of(8) {
            let found = self.frame_bits;
            return Err(MachineError::FrameBits { found });
        }
        let fields = [
            ("latency_ticks", self.latency_ticks),
            ("default_ticks", self.default_ticks),
        ];
        let ops = self
            .op_ticks
            .iter()
            .map(|(name, &ticks)| (name.as_str(), ticks));
        for (field, found) in fields.into_iter().chain(ops) {
            if !(1..=MAX_TICKS).contains(&found) {
                let field = field.to_owned();
                return Err(MachineError::Ticks { field, found });
            }
        }

        let network = self.topology.network()?;
        let clocks = self.clocks();
        clocks.check(network.node_count())?;
        let sum = clocks.propagation_ticks.ceil() as u64 + clocks.buffers.initial_fill;
        if sum != self.latency_ticks {
            return Err(MachineError::Latency {
                latency: self.latency_ticks,
                propagation: clocks.propagation_ticks,
                fill: clocks.buffers.initial_fill,
                sum,
            });
        }
        Ok(network)
    }

    /// The clocks: those of the file, or clocks within 100 ppm whose buffers hold half of a link's latency, with a gain
    /// that keeps them near that.
    pub fn clocks(&self) -> Clocks {
        self.clocks.clone().unwrap_or_else(|| {
            let initial_fill = self.latency_ticks.div_ceil(2);
            let control = Control {
                law: ControlLaw::Proportional {
                    gain: 4e-4 / initial_fill as f64,
                },
                period_ticks: 500,
                delay_ticks: 10,
                ..Control::default()
            };
            Clocks {
                control,
                buffers: ElasticBuffers {
                    frames: 2 * initial_fill,
                    initial_fill,
                },
                propagation_ticks: (self.latency_ticks - initial_fill) as f64,
                ..Clocks::default()
            }
        })
    }

    /// Bytes of a frame.
    pub fn frame_bytes(&self) -> u64 {
        u64::from(self.frame_bits / 8)
    }

    /// Frames that so many bytes take.
    pub fn frames_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.frame_bytes().max(1))
    }

    /// Ticks that a firing of an actor takes on any node.
    pub fn ticks_of(&self, actor: &Actor) -> u64 {
        let by_name = self.op_ticks.get(&actor.name);
        let ticks = by_name.or_else(|| self.op_ticks.get(&actor.op));
        ticks.copied().unwrap_or(self.default_ticks)
    }

    /// [`Self::ticks_of`] for each actor.
    pub fn durations(&self, graph: &Graph) -> TiVec<ActorId, u64> {
        graph
            .actors
            .iter()
            .map(|actor| self.ticks_of(actor))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(latency_ticks: u64) -> TickMachine {
        TickMachine {
            topology: Topology::Ring { nodes: 4 },
            frame_bits: 64,
            latency_ticks,
            memory_bytes: 1 << 16,
            op_ticks: BTreeMap::new(),
            default_ticks: 1,
            clocks: None,
        }
    }

    #[test]
    fn clocks_follow_from_the_latency() {
        for latency in 1..20 {
            assert!(machine(latency).network().is_ok(), "{latency}");
        }
    }

    #[test]
    fn what_makes_no_machine_is_refused() {
        let frames = TickMachine {
            frame_bits: 12,
            ..machine(3)
        };
        let slow = TickMachine {
            op_ticks: BTreeMap::from([("Fir".to_owned(), 0)]),
            ..machine(3)
        };
        let other_latency = TickMachine {
            clocks: Some(Clocks::default()),
            ..machine(3)
        };
        let cases = [
            (
                frames,
                "`frame_bits` is 12, but must be a multiple of 8, at least 8",
            ),
            (
                slow,
                "`Fir` is 0 ticks, but must be between 1 and 4294967296",
            ),
            (
                other_latency,
                "`latency_ticks` is 3, but propagation of 5000 and an initial fill of 16384 make up 21384: change one of them",
            ),
        ];
        for (machine, message) in cases {
            let error = machine.network().expect_err("no machine");
            assert_eq!(error.to_string(), message);
        }
    }
}
