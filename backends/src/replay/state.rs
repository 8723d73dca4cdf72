//! The tokens at a border of blocks: heads of buffers, from and to the device.
#![expect(unsafe_code, reason = "writes and reads mapped memory")]

use zbmd_ir::{BufferId, ChannelId, State};

use super::super::commands::{Command, Draft, Range, once};
use super::super::error::Fault;
use super::super::memory::{Bank, Home};
use super::Replay;

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

impl Replay {
    /// Fills the heads of the device's buffers from a state, for a run that starts at block 0. Nothing is in flight.
    ///
    /// # Errors
    /// The driver's faults.
    ///
    /// # Panics
    /// If the state has fewer tokens than the graph's channels: it belongs to another graph.
    pub fn load_state(&mut self, state: &State) -> Result<(), Fault> {
        assert!(self.in_flight.is_empty(), "a state is loaded between runs");
        let total: u64 = self.heads.iter().filter_map(|h| h.places.first()).map(|r| r.len()).sum();
        if total == 0 {
            return Ok(());
        }
        let bank = Bank::new(&self.device, total, Home::Host)?;
        let (mut at, mut copies) = (0, Vec::new());
        let number = self.banks.len() as u32;
        for head in &self.heads {
            let Some(to) = head.places.first().copied() else { continue };
            let tokens = &state.channels[head.channel];
            let bytes = &tokens[tokens.len() - to.len() as usize..];
            // SAFETY: the device does not know the bank yet.
            unsafe { bank.write(at, bytes) };
            copies.push(Command::Copy { from: Range::new(number, at, to.len()), to });
            at += to.len();
        }
        self.transfer(bank, &copies).map(drop)
    }

    /// Takes the last tokens of the device's channels after `blocks` blocks into a state of the same graph. Channels that
    /// do not lie on the device are left alone. Nothing is in flight.
    ///
    /// # Errors
    /// The driver's faults.
    ///
    /// # Panics
    /// If the state belongs to another graph.
    pub fn save_state(&mut self, blocks: u64, state: &mut State) -> Result<(), Fault> {
        assert!(self.in_flight.is_empty(), "a state is taken between runs");
        let place =
            |h: &Head| h.places.get((blocks % h.places.len().max(1) as u64) as usize).copied();
        let total: u64 = self.heads.iter().filter_map(place).map(Range::len).sum();
        if total == 0 {
            return Ok(());
        }
        let bank = Bank::new(&self.device, total, Home::Host)?;
        let (mut at, mut copies) = (0, Vec::new());
        let number = self.banks.len() as u32;
        for from in self.heads.iter().filter_map(place) {
            copies.push(Command::Copy { from, to: Range::new(number, at, from.len()) });
            at += from.len();
        }
        let bank = self.transfer(bank, &copies)?;
        let mut at = 0;
        for head in &self.heads {
            let Some(from) = place(head) else { continue };
            let tokens = &mut state.channels[head.channel];
            let start = tokens.len() - from.len() as usize;
            // SAFETY: the copies have ended, with a barrier towards the host.
            unsafe { bank.read(at, &mut tokens[start..]) };
            at += from.len();
        }
        Ok(())
    }

    /// Runs copies with one more bank at the end of the table, which comes back.
    fn transfer(&mut self, bank: Bank, copies: &[Command]) -> Result<Bank, Fault> {
        let none = Draft::new(&self.device).finish(&self.banks)?;
        self.banks.push(bank);
        let done = once(&self.device, copies, &none, &self.banks, self.patience_ns);
        let bank = self.banks.pop().expect("pushed above");
        done.map(|()| bank)
    }
}
