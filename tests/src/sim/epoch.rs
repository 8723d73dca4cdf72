//! The memory of one epoch: control words, rings, sink queue, save areas. Must not know who uses it.

use std::collections::VecDeque;
use std::ops::Range;

use zbmd_executor::ledger::{Borders, given_out_before};
use zbmd_ir::DeviceId;

use super::bugs::Bug;
use super::model::{Model, State};
use super::watch::Watch;

/// A part of the pipeline on one device.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub device: DeviceId,
    pub actors: Range<usize>,
}

/// What one seat saved at one border.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    pub border: u64,
    pub actors: Vec<u64>,
    pub feedback: VecDeque<u64>,
    /// The value that it computed its last block with.
    pub value: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct EpochMem {
    pub number: u64,
    pub start: State,
    pub seats: Vec<Seat>,
    pub borders: Borders,
    /// Periods that each seat has published.
    pub counts: Vec<u64>,
    pub committed: u64,
    /// Seats that have not passed a border beyond the committed one.
    behind: usize,
    /// From seat i to seat i + 1.
    pub rings: Vec<VecDeque<u64>>,
    pub feedback: VecDeque<u64>,
    pub ring_blocks: usize,
    /// `areas[area][seat]`.
    pub areas: Vec<Vec<Option<Saved>>>,
    pub finals: Vec<Option<Saved>>,
    /// Blocks that were admitted, and the most that may be.
    pub granted: u64,
    pub limit: Option<u64>,
    pub stop: bool,
    pub sink_closed: bool,
    /// Tokens that were given out before and come again.
    pub drop: u64,
    pub watch: Watch,
}

impl EpochMem {
    pub(crate) fn new(
        number: u64,
        start: State,
        seats: Vec<Seat>,
        (every, areas): (u64, u64),
        released: u64,
        model: &Model,
    ) -> Self {
        let n = seats.len();
        let borders = Borders::new(every, n as u64, areas);
        Self {
            number,
            drop: given_out_before(released, start.blocks * model.tokens),
            feedback: start.feedback.clone(),
            start,
            borders,
            counts: vec![0; n],
            committed: 0,
            behind: n,
            rings: vec![VecDeque::new(); n],
            ring_blocks: 2,
            areas: vec![vec![None; n]; borders.areas() as usize],
            finals: vec![None; n],
            granted: 0,
            limit: None,
            stop: false,
            sink_closed: false,
            seats,
            watch: Watch::new(n),
        }
    }

    /// A seat has done so many periods; whether that committed a border. Those of the prologue do nothing, so they are
    /// over when the first block is.
    pub(crate) fn publish(&mut self, seat: usize, periods: u64, bug: Option<Bug>) -> bool {
        let before = self.borders.passed(self.counts[seat]);
        self.counts[seat] = periods;
        if self.borders.passed(periods) == before {
            return false;
        }
        let passed = self.counts.iter().map(|c| self.borders.passed(*c));
        if bug == Some(Bug::CommitTooEarly) {
            let committed = passed.max().unwrap_or(0);
            return std::mem::replace(&mut self.committed, committed) != committed;
        }

        // As long as another seat is behind, it decides: with n seats, not each of them asks all n.
        if before == self.committed {
            self.behind -= 1;
        }
        if self.behind > 0 {
            return false;
        }
        self.committed = self.borders.committed(self.counts.iter().copied());
        self.behind = passed.filter(|passed| *passed == self.committed).count();
        true
    }

    pub(crate) fn save(&mut self, seat: usize, saved: Saved) {
        let area = self.borders.area(saved.border) as usize;
        self.areas[area][seat] = Some(saved);
    }

    /// The state at a border, as it lies in its area.
    pub(crate) fn restore(&self, border: u64, bug: Option<Bug>) -> Option<State> {
        let mut area = self.borders.area(border);
        if border == 0 && bug != Some(Bug::WrongBorderRestored) {
            return Some(self.start.clone());
        }
        if bug == Some(Bug::WrongBorderRestored) {
            area = (area + 1) % self.borders.areas();
            if self.areas[area as usize].iter().any(Option::is_none) {
                area = self.borders.area(border);
            }
        }
        if border == 0 && self.areas[area as usize].iter().any(Option::is_none) {
            return Some(self.start.clone());
        }
        self.gather(border, &self.areas[area as usize])
    }

    /// The state after the last block.
    pub(crate) fn last(&self, blocks: u64) -> Option<State> {
        self.gather(blocks, &self.finals)
    }

    fn gather(&self, border: u64, parts: &[Option<Saved>]) -> Option<State> {
        let mut actors = Vec::new();
        for part in parts {
            actors.extend(part.as_ref()?.actors.iter().copied());
        }
        let last = parts.last()?.as_ref()?;
        Some(State {
            blocks: self.start.blocks + border,
            actors,
            feedback: last.feedback.clone(),
            bundle: self.start.bundle,
            mode: self.start.mode,
            value: last.value,
        })
    }
}
