//! A placement with its loads, kept up to date under moves.

use super::merged::Merged;

/// Loads and bytes of a placement of units.
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
    merged: &'a Merged,
    pub(crate) placement: Vec<u32>,
    pub(crate) load: Vec<u64>,
    pub(crate) bytes: Vec<u64>,
    /// Readers of each net on each device.
    readers: Vec<u32>,
}

impl<'a> State<'a> {
    pub(crate) fn new(merged: &'a Merged, placement: Vec<u32>) -> Self {
        let devices = merged.devices;
        let mut state = State {
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
    fn charge<const ADD: bool>(&mut self, net: usize) {
        let (devices, n) = (self.merged.devices, &self.merged.nets[net]);
        let from = self.placement[n.from] as usize;
        let put = |at: &mut u64, amount: u64| {
            *at = if ADD { *at + amount } else { *at - amount };
        };
        let (mut sum, mut most) = (0, 0);
        for to in (0..devices).filter(|&to| to != from) {
            if self.readers[net * devices + to] > 0 {
                let send = n.send[from * devices + to];
                (sum, most) = (sum + send, most.max(send));
                put(&mut self.load[to], n.receive[from * devices + to]);
                put(&mut self.bytes[to], n.bytes);
            }
        }
        put(
            &mut self.load[from],
            if self.merged.once { most } else { sum },
        );
    }

    /// Moves a unit to a device that can run it.
    pub(crate) fn relocate(&mut self, unit: usize, device: u32) {
        let merged = self.merged;
        let (old, new) = (self.placement[unit] as usize, device as usize);
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
    pub(crate) fn excess(&self) -> u64 {
        let over = |(needed, limit): (&u64, &u64)| needed.saturating_sub(*limit);
        self.bytes.iter().zip(&self.merged.capacity).map(over).sum()
    }

    pub(crate) fn most_bytes(&self) -> u64 {
        self.bytes.iter().copied().max().unwrap_or(0)
    }
}
