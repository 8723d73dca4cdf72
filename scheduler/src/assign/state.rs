//! A placement with its loads, kept up to date under moves.

use super::merged::MergedProblem;

/// Loads and bytes of a placement of units.
#[derive(Clone, Debug)]
pub(crate) struct PlacementState<'a> {
    merged: &'a MergedProblem,
    pub(crate) placement: Vec<u32>,
    /// Ticks of each device.
    pub(crate) load: Vec<u64>,
    /// Bytes on each device.
    pub(crate) bytes: Vec<u64>,
    /// Readers of each net on each device.
    readers: Vec<u32>,
}

impl<'a> PlacementState<'a> {
    pub(crate) fn new(merged: &'a MergedProblem, placement: Vec<u32>) -> Self {
        let devices = merged.devices;
        let mut state = PlacementState {
            merged,
            load: vec![0; devices],
            bytes: vec![0; devices],
            readers: vec![0; merged.nets.len() * devices],
            placement,
        };

        for unit in 0..merged.units() {
            let device = state.placement[unit] as usize;
            state.load[device] += merged.ticks[unit][device].unwrap_or(0);
            state.bytes[device] += merged.bytes[unit];
        }
        for net in 0..merged.nets.len() {
            for &to in &merged.nets[net].to {
                state.readers[net * devices + state.placement[to] as usize] += 1;
            }
            state.charge::<true>(net);
        }
        state
    }

    /// Adds or takes away what a net costs.
    fn charge<const ADD: bool>(&mut self, index: usize) {
        let net = &self.merged.nets[index];
        let devices = self.merged.devices;
        let from = self.placement[net.from] as usize;
        let mut sum_ticks = 0;
        let mut max_ticks = 0;

        for to in (0..devices).filter(|&to| to != from) {
            if self.readers[index * devices + to] > 0 {
                let send_ticks = net.send[from * devices + to];
                sum_ticks += send_ticks;
                max_ticks = send_ticks.max(max_ticks);
                change::<ADD>(&mut self.load[to], net.receive[from * devices + to]);
                change::<ADD>(&mut self.bytes[to], net.bytes);
            }
        }
        let send_ticks = match self.merged.sends_once {
            true => max_ticks,
            false => sum_ticks,
        };
        change::<ADD>(&mut self.load[from], send_ticks);
    }

    /// Moves a unit to a device that can run it.
    pub(crate) fn relocate(&mut self, unit: usize, device: u32) {
        let merged = self.merged;
        let old = self.placement[unit] as usize;
        let new = device as usize;
        if old == new {
            return;
        }

        for &net in &merged.nets_of[unit] {
            self.charge::<false>(net);
        }
        self.load[old] -= merged.ticks[unit][old].unwrap_or(0);
        self.load[new] += merged.ticks[unit][new].unwrap_or(0);
        self.bytes[old] -= merged.bytes[unit];
        self.bytes[new] += merged.bytes[unit];
        self.placement[unit] = device;

        for &net in &merged.nets_of[unit] {
            if merged.nets[net].from != unit {
                self.readers[net * merged.devices + old] -= 1;
                self.readers[net * merged.devices + new] += 1;
            }
            self.charge::<true>(net);
        }
    }

    pub(crate) fn period(&self) -> u64 {
        self.load.iter().copied().max().unwrap_or(0)
    }

    /// Bytes beyond the memories.
    pub(crate) fn excess_bytes(&self) -> u64 {
        let devices = self.bytes.iter().zip(&self.merged.capacity);
        devices
            .map(|(needed, limit)| needed.saturating_sub(*limit))
            .sum()
    }

    /// Bytes of the device that needs the most.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.bytes.iter().copied().max().unwrap_or(0)
    }
}

fn change<const ADD: bool>(sum: &mut u64, amount: u64) {
    match ADD {
        true => *sum += amount,
        false => *sum -= amount,
    }
}
