//! The tokens at a border of blocks: heads of buffers, from and to the device.

use zbmd_ir::{BufferId, ChannelId, State};

use super::Replay;
use super::queue::{Queue, Range};

/// The head of a buffer: history of a channel.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) buffer: BufferId,
    pub(super) channel: ChannelId,
    /// Of the slots after which it is the history of the next block.
    pub(super) stage: u32,
    /// The head of each place.
    pub(super) places: Vec<Range>,
}

impl<Q: Queue> Replay<Q> {
    /// Fills the heads of the device's buffers from a state, for a run that starts at block 0. Nothing is in flight.
    ///
    /// # Errors
    /// The driver's faults.
    ///
    /// # Panics
    /// If the state has fewer tokens than the graph's channels: it belongs to another graph.
    pub fn load_state(&mut self, state: &State) -> Result<(), Q::Fault> {
        assert!(self.in_flight.is_empty(), "a state is loaded between runs");
        let mut uploads: Vec<(Range, &[u8])> = Vec::new();
        for head in &self.heads {
            let Some(to) = head.places.first().copied() else {
                continue;
            };
            let tokens = &state.channels[head.channel];
            uploads.push((to, &tokens[tokens.len() - to.len() as usize..]));
        }
        self.queue.upload(&uploads, self.patience_ns)
    }

    /// Takes the last tokens of the device's channels after `blocks` blocks into a state of the same graph. Channels
    /// that do not lie on the device are left alone. Nothing is in flight.
    ///
    /// # Errors
    /// The driver's faults.
    ///
    /// # Panics
    /// If the state belongs to another graph.
    pub fn save_state(&mut self, blocks: u64, state: &mut State) -> Result<(), Q::Fault> {
        assert!(self.in_flight.is_empty(), "a state is taken between runs");
        let place = |h: &Head| {
            h.places
                .get((blocks % h.places.len().max(1) as u64) as usize)
                .copied()
        };
        let filled = self
            .heads
            .iter()
            .filter_map(|h| Some((h.channel, place(h)?)));
        let mut downloads: Vec<(Range, &mut [u8])> = Vec::new();
        let mut heads: Vec<(ChannelId, Range)> = filled.collect();
        heads.sort_unstable();
        let mut heads = heads.into_iter().peekable();
        for (channel, tokens) in state.channels.iter_mut_enumerated() {
            let Some((_, from)) = heads.next_if(|h| h.0 == channel) else {
                continue;
            };
            let start = tokens.len() - from.len() as usize;
            downloads.push((from, &mut tokens[start..]));
        }
        self.queue.download(&mut downloads, self.patience_ns)
    }
}
