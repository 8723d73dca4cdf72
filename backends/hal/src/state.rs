//! The tokens at a border of blocks: heads of buffers, from and to the device.

use zbmd_ir::{BufferId, ChannelId, State};

use super::Replay;
use super::queue::{BankRange, Queue};

/// The head of a buffer: history of a channel.
#[derive(Clone, Debug)]
pub(super) struct ChannelHead {
    pub(super) buffer: BufferId,
    pub(super) channel: ChannelId,
    /// Of the slots after which it is the history of the next block.
    pub(super) stage: u32,
    /// The head of each place.
    pub(super) places: Vec<BankRange>,
}

impl ChannelHead {
    /// The head that is the history after so many blocks.
    fn place_after(&self, blocks: u64) -> Option<BankRange> {
        let place_count = self.places.len().max(1) as u64;
        self.places.get((blocks % place_count) as usize).copied()
    }
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
        self.gates.load_state(state);

        let mut uploads: Vec<(BankRange, &[u8])> = Vec::new();
        for head in &self.heads {
            let Some(target) = head.places.first().copied() else {
                continue;
            };
            let tokens = &state.channels[head.channel];
            uploads.push((target, &tokens[tokens.len() - target.len() as usize..]));
        }
        self.queue.upload(&uploads, self.patience_ns)
    }

    /// Stores the last tokens of the device's channels after `blocks` blocks into a state of the same graph. Channels
    /// that the device does not hold are left alone. Nothing is in flight.
    ///
    /// # Errors
    /// The driver's faults.
    ///
    /// # Panics
    /// If the state belongs to another graph.
    pub fn save_state(&mut self, blocks: u64, state: &mut State) -> Result<(), Q::Fault> {
        assert!(self.in_flight.is_empty(), "a state is saved between runs");

        let mut sources: Vec<(ChannelId, BankRange)> = self
            .heads
            .iter()
            .filter_map(|head| Some((head.channel, head.place_after(blocks)?)))
            .collect();
        sources.sort_unstable();

        // Both in the order of channels, so that each channel's tokens are borrowed once.
        let mut next_sources = sources.into_iter().peekable();
        let mut downloads: Vec<(BankRange, &mut [u8])> = Vec::new();
        for (channel, tokens) in state.channels.iter_mut_enumerated() {
            let Some((_, source)) = next_sources.next_if(|source| source.0 == channel) else {
                continue;
            };
            let head_start = tokens.len() - source.len() as usize;
            downloads.push((source, &mut tokens[head_start..]));
        }
        self.queue.download(&mut downloads, self.patience_ns)
    }
}
