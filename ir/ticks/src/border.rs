//! What iterations leave to later ones, and where it is kept so that it outlives a loss.
//!
//! A channel's *border* is what an iteration finds on it of earlier ones: as many tokens as the longest delay of its
//! readers ([`history`](zbmd_ir::Channel::history)).

use serde::{Deserialize, Serialize};
use zbmd_ir::ChannelId;

use crate::{Network, NodeId, TickMachine};

/// Frames in a row that must be missing until a link counts as lost, and not only a frame of it.
pub const WATCHED_FRAMES: u64 = 2;

/// A second node that keeps a channel's border, beside the node of its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BorderCopy {
    /// The channel, which has a border.
    pub channel: ChannelId,
    /// The node, which is not that of the channel's writer.
    pub node: NodeId,
}

/// Whether a firing of a channel's writer writes tokens of a border of `border` tokens, if it writes `rate` of the
/// `tokens` tokens of an iteration: only such firings are sent to a copy.
pub fn writes_border(border: u64, firing: u64, rate: u64, tokens: u64) -> bool {
    let written = firing.saturating_add(1).saturating_mul(rate);
    border > 0 && written.saturating_add(border) > tokens
}

impl TickMachine {
    /// Ticks from the one in which a frame was sent that did not come, to the one in which all nodes have stopped and go
    /// back to a border because of it, at most: the frame's latency, the frames that are watched, and a report that goes
    /// from one node to the next through all of them.
    pub fn notice_ticks(&self, network: &Network) -> u64 {
        let hop = self.latency_ticks.saturating_add(1);
        let way = hop.saturating_mul(network.node_count() as u64 + 1);
        way.saturating_add(WATCHED_FRAMES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_firings_write_a_border() {
        let written = |border| -> Vec<u64> {
            let firings = 0..4;
            firings
                .filter(|&firing| writes_border(border, firing, 3, 12))
                .collect()
        };
        assert_eq!(written(0), []);
        assert_eq!(written(1), [3]);
        assert_eq!(written(3), [3]);
        assert_eq!(written(4), [2, 3]);
        assert_eq!(written(100), [0, 1, 2, 3]);
    }
}
