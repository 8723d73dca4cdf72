//! Which workers of an epoch are looked at in a round. Leaves out those that wait, as long as looks would find nothing,
//! and says how many looks that were, so that what is found is the same as if all had been looked at in every round.

use std::collections::BTreeSet;

#[derive(Clone, Debug)]
pub(crate) struct Watch {
    round: u64,
    /// Seats that are looked at in the next round.
    awake: BTreeSet<usize>,
    /// The round of the last look at each seat, from which those that were left out are counted.
    last_look: Vec<Option<u64>>,
}

impl Watch {
    pub(crate) fn new(seats: usize) -> Self {
        Self {
            round: 0,
            awake: (0..seats).collect(),
            last_look: vec![None; seats],
        }
    }

    /// The seats to look at in this round, ascending.
    pub(crate) fn begin_round(&mut self) -> Vec<usize> {
        self.round += 1;
        self.awake.iter().copied().collect()
    }

    /// A look at a seat: how many were left out before it.
    pub(crate) fn look(&mut self, seat: usize) -> u32 {
        let before = self.last_look[seat].replace(self.round);
        before.map_or(0, |before| (self.round - before - 1) as u32)
    }

    /// Nothing happens at this seat until it is woken.
    pub(crate) fn sleep(&mut self, seat: usize) {
        self.awake.remove(&seat);
    }

    /// There is nobody at this seat, until it is woken.
    pub(crate) fn leave(&mut self, seat: usize) {
        self.awake.remove(&seat);
        self.last_look[seat] = None;
    }

    /// Something changes at this seat.
    pub(crate) fn wake(&mut self, seat: usize) {
        self.awake.insert(seat);
    }
}
