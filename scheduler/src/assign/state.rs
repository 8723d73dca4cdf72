//! A placement with its loads, kept up to date under moves.

use super::merged::{MergedProblem, UnitNet};

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
        let merged = self.merged;
        let net = &merged.nets[index];
        let devices = merged.devices;
        let from = self.placement[net.from] as usize;
        let mut send_ticks = 0;

        // Of many devices few have readers: then those of the readers are looked at, and each only once.
        if net.to.len() * net.to.len() < devices {
            for (position, &reader) in net.to.iter().enumerate() {
                let to = self.placement[reader];
                let mut readers_before = net.to[..position].iter();
                if !readers_before.any(|&before| self.placement[before] == to) {
                    self.charge_receiver::<ADD>(net, from, to as usize, &mut send_ticks);
                }
            }
        } else {
            for to in 0..devices {
                if self.readers[index * devices + to] > 0 {
                    self.charge_receiver::<ADD>(net, from, to, &mut send_ticks);
                }
            }
        }
        change::<ADD>(&mut self.load[from], send_ticks);
    }

    /// Adds or takes away what a net costs a device with readers, and enters it in the ticks of the sender.
    fn charge_receiver<const ADD: bool>(
        &mut self,
        net: &UnitNet,
        from: usize,
        to: usize,
        send_ticks: &mut u64,
    ) {
        if to == from {
            return;
        }
        let merged = self.merged;
        let own_ticks = merged.send_ticks(net, from, to);
        *send_ticks = match merged.sends_once {
            true => own_ticks.max(*send_ticks),
            false => own_ticks + *send_ticks,
        };
        change::<ADD>(&mut self.load[to], merged.receive_ticks(net, from, to));
        change::<ADD>(&mut self.bytes[to], net.bytes);
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
