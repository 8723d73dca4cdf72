//! Contiguous placements: dynamic programming over linear orders of the units.

use std::collections::BTreeMap;

use super::merged::{MergedProblem, UnitNet};

/// Units beyond which no split is computed: the loads of all stretches take V^2 words for each kind of device.
const MAX_UNITS: usize = 1500;

/// Devices beyond which a split is made that sees all of them where the best one cannot be computed.
const MANY_DEVICES: usize = 16;

/// Combinations of used devices at most; beyond that devices are used in index order.
const MAX_USES: usize = 600;

/// What a stretch of the order costs on each kind of device.
struct StretchLoads {
    units: usize,
    kinds: usize,
    load: Vec<u64>,
    /// For each kind what is known of stretches without their transfers.
    work: Vec<StretchWork>,
}

/// The work of stretches on one kind of device.
struct StretchWork {
    /// Ticks of all units before each place of the order.
    ticks_before: Vec<u64>,
    /// Where the longest stretch that the kind can run begins, by its end.
    first_from: Vec<usize>,
}

impl StretchWork {
    fn of(merged: &MergedProblem, order: &[usize], device: usize) -> Self {
        let mut work = StretchWork {
            ticks_before: vec![0],
            first_from: vec![0],
        };
        let mut sum = 0;
        let mut first = 0;
        for (place, &unit) in order.iter().enumerate() {
            match merged.ticks[unit][device] {
                Some(ticks) => sum += ticks,
                None => first = place + 1,
            }
            work.ticks_before.push(sum);
            work.first_from.push(first);
        }
        work
    }
}

impl StretchLoads {
    fn index(&self, from: usize, to: usize, kind: usize) -> usize {
        (from * (self.units + 1) + to) * self.kinds + kind
    }

    /// Load of the units `from..to` of the order; `u64::MAX` where they do not fit.
    fn load(&self, from: usize, to: usize, kind: usize) -> u64 {
        self.load[self.index(from, to, kind)]
    }
}

/// Combinations of how many devices of each lane are used, as the digits of a number.
struct LaneUses {
    radix: Vec<usize>,
    /// Place value of each digit.
    step: Vec<usize>,
    count: usize,
}

impl LaneUses {
    /// `None` where there are more than all counts, as for 64 unlike devices.
    fn of(lanes: &[Vec<usize>]) -> Option<Self> {
        let mut uses = LaneUses {
            radix: Vec::with_capacity(lanes.len()),
            step: Vec::with_capacity(lanes.len()),
            count: 1,
        };
        for devices in lanes {
            let radix = devices.len() + 1;
            uses.radix.push(radix);
            uses.step.push(uses.count);
            uses.count = uses.count.checked_mul(radix)?;
        }
        Some(uses)
    }

    /// Devices of a lane in a combination.
    fn devices(&self, used: usize, lane: usize) -> usize {
        used / self.step[lane] % self.radix[lane]
    }
}

/// The last stretch of the best split so far: where it begins, and its lane.
#[derive(Clone, Copy, Default)]
struct LastStretch {
    from: u32,
    lane: u32,
}

/// The placement of least period among those that give each device one stretch of the order, if any fits.
///
/// `lanes` lists interchangeable devices together: a lane is a kind and how many there are. Exact where all links of
/// a kind are equal; otherwise each transfer counts with the most expensive link. O(V^2 * uses * lanes).
fn split(
    merged: &MergedProblem,
    order: &[usize],
    lanes: &[Vec<usize>],
    uses: &LaneUses,
) -> Option<Vec<u32>> {
    let units = order.len();
    let stretch_loads = stretch_loads(merged, order, lanes);

    // best[end][used]: least largest load of the units before `end` with so many devices of each lane.
    let mut best_load = vec![u64::MAX; (units + 1) * uses.count];
    let mut last_stretch = vec![LastStretch::default(); (units + 1) * uses.count];
    best_load[0] = 0;
    for stretch_end in 1..=units {
        for used_devices in 1..uses.count {
            let table_cell = stretch_end * uses.count + used_devices;
            for lane_index in 0..lanes.len() {
                if uses.devices(used_devices, lane_index) == 0 {
                    continue;
                }
                let used_before = used_devices - uses.step[lane_index];
                let work = &stretch_loads.work[lane_index];
                let ticks_at_end = work.ticks_before[stretch_end];
                for from in (work.first_from[stretch_end]..stretch_end).rev() {
                    // Longer stretches have more work yet.
                    if ticks_at_end - work.ticks_before[from] >= best_load[table_cell] {
                        break;
                    }
                    let stretch_load = stretch_loads.load(from, stretch_end, lane_index);
                    let max_load = best_load[from * uses.count + used_before].max(stretch_load);
                    if max_load < best_load[table_cell] {
                        best_load[table_cell] = max_load;
                        last_stretch[table_cell] = LastStretch {
                            from: from as u32,
                            lane: lane_index as u32,
                        };
                    }
                }
            }
        }
    }

    let mut stretch_end = units;
    let mut used_devices =
        (0..uses.count).min_by_key(|&used_devices| best_load[units * uses.count + used_devices])?;
    if best_load[units * uses.count + used_devices] == u64::MAX {
        return None;
    }
    let mut placement = vec![0; units];
    while stretch_end > 0 {
        let final_stretch = last_stretch[stretch_end * uses.count + used_devices];
        let lane_index = final_stretch.lane as usize;
        let lane_device = lanes[lane_index][uses.devices(used_devices, lane_index) - 1];
        for &unit in &order[final_stretch.from as usize..stretch_end] {
            placement[unit] = lane_device as u32;
        }
        stretch_end = final_stretch.from as usize;
        used_devices -= uses.step[lane_index];
    }
    Some(placement)
}

/// What a net costs the device of a stretch at most.
#[derive(Clone, Copy)]
struct NetPrice {
    send: u64,
    receive: u64,
}

/// What a net adds to a stretch.
#[derive(Clone, Copy)]
struct NetCharge {
    ticks: u64,
    bytes: u64,
}

/// Which ends of a net a stretch has.
#[derive(Clone, Copy, Default)]
struct NetEnds {
    has_writer: bool,
    readers: usize,
}

impl NetEnds {
    fn charge(self, net: &UnitNet, price: NetPrice) -> NetCharge {
        match self.has_writer {
            true if self.readers < net.to.len() => NetCharge {
                ticks: price.send,
                bytes: 0,
            },
            false if self.readers > 0 => NetCharge {
                ticks: price.receive,
                bytes: net.bytes,
            },
            _ => NetCharge { ticks: 0, bytes: 0 },
        }
    }
}

/// A stretch of the order on one device as it grows.
struct Stretch<'a> {
    merged: &'a MergedProblem,
    net_prices: &'a [NetPrice],
    device: usize,
    /// Which ends of each net are in it.
    net_ends: Vec<NetEnds>,
    /// Nets with an end in it; some more than once.
    nets: Vec<usize>,
    work_ticks: u64,
    transfer_ticks: u64,
    bytes: u64,
}

impl<'a> Stretch<'a> {
    fn new(merged: &'a MergedProblem, net_prices: &'a [NetPrice], device: usize) -> Self {
        Stretch {
            merged,
            net_prices,
            device,
            net_ends: vec![NetEnds::default(); merged.nets.len()],
            nets: Vec::new(),
            work_ticks: 0,
            transfer_ticks: 0,
            bytes: 0,
        }
    }

    /// Takes all units out, and goes on with a device.
    fn restart(&mut self, device: usize) {
        for net in self.nets.drain(..) {
            self.net_ends[net] = NetEnds::default();
        }
        self.device = device;
        self.work_ticks = 0;
        self.transfer_ticks = 0;
        self.bytes = 0;
    }

    /// Appends a unit; false, and nothing is changed, if it cannot run on the device.
    fn add(&mut self, unit: usize) -> bool {
        let merged = self.merged;
        let Some(ticks) = merged.ticks[unit][self.device] else {
            return false;
        };
        self.work_ticks += ticks;
        self.bytes += merged.bytes[unit];

        for &index in &merged.nets_of[unit] {
            let net = &merged.nets[index];
            let price = self.net_prices[index];
            let ends = &mut self.net_ends[index];
            let charge_before = ends.charge(net, price);
            match net.from == unit {
                true => ends.has_writer = true,
                false => ends.readers += 1,
            }
            let charge_after = ends.charge(net, price);
            self.transfer_ticks = self.transfer_ticks + charge_after.ticks - charge_before.ticks;
            self.bytes = self.bytes + charge_after.bytes - charge_before.bytes;
            self.nets.push(index);
        }
        true
    }

    fn load(&self) -> u64 {
        self.work_ticks + self.transfer_ticks
    }

    fn fits_memory(&self) -> bool {
        self.bytes <= self.merged.capacity[self.device]
    }
}

fn stretch_loads(merged: &MergedProblem, order: &[usize], lanes: &[Vec<usize>]) -> StretchLoads {
    let units = order.len();
    let kinds = lanes.len();
    let mut loads = StretchLoads {
        units,
        kinds,
        load: vec![u64::MAX; (units + 1) * (units + 1) * kinds],
        work: Vec::with_capacity(kinds),
    };

    for (lane, devices) in lanes.iter().enumerate() {
        let device = devices[0];
        loads.work.push(StretchWork::of(merged, order, device));
        let net_prices = net_prices(merged, device);
        let mut stretch = Stretch::new(merged, &net_prices, device);
        for from in 0..units {
            stretch.restart(device);
            for (to, &unit) in order.iter().enumerate().skip(from) {
                // What cannot run there ends all longer stretches too.
                if !stretch.add(unit) {
                    break;
                }
                if stretch.fits_memory() {
                    let load_index = loads.index(from, to + 1, lane);
                    loads.load[load_index] = stretch.load();
                }
            }
        }
    }
    loads
}

/// The most that each net costs a device, over all devices at the other end.
fn net_prices(merged: &MergedProblem, device: usize) -> Vec<NetPrice> {
    let devices = merged.devices;
    let mut prices = Vec::with_capacity(merged.nets.len());

    for net in &merged.nets {
        let mut price = NetPrice {
            send: 0,
            receive: 0,
        };
        for other in (0..devices).filter(|&other| other != device) {
            price.send = price.send.max(merged.send_ticks(net, device, other));
            price.receive = price.receive.max(merged.receive_ticks(net, other, device));
        }
        prices.push(price);
    }
    prices
}

/// The best contiguous placements over a few linear orders.
pub(crate) fn splits(merged: &MergedProblem) -> Vec<Vec<u32>> {
    if merged.units() == 0 || merged.units() > MAX_UNITS {
        return Vec::new();
    }
    let mut lanes = merged.devices_by_kind();
    let mut uses = LaneUses::of(&lanes).filter(|uses| uses.count <= MAX_USES);
    let mut placements = Vec::new();
    if uses.is_none() {
        // What follows sees few of many devices, this sees all.
        if merged.devices > MANY_DEVICES {
            placements.extend(fill_devices(merged));
        }
        // The first of each kind, and as few kinds as have fewer combinations.
        lanes.truncate(MAX_USES.ilog2() as usize);
        lanes.iter_mut().for_each(|devices| devices.truncate(1));
        uses = LaneUses::of(&lanes);
    }
    let Some(uses) = uses else {
        return placements;
    };

    let mut orders = vec![
        merged.order.clone(),
        depth_first_order(merged),
        breadth_first_order(merged),
    ];
    orders.dedup();
    let found = orders
        .iter()
        .filter_map(|order| split(merged, order, &lanes, &uses));
    placements.extend(found);
    placements
}

/// One stretch of the order for each device in turn, each as long as a common bound on the loads allows, for the least
/// bound that bisection finds. Each transfer counts with the most expensive link. O((V + E) log ticks).
fn fill_devices(merged: &MergedProblem) -> Option<Vec<u32>> {
    let nets = merged.nets.iter();
    let net_prices: Vec<NetPrice> = nets.map(|net| max_price(merged, net)).collect();
    let mut too_low = 0;
    let mut max_load = 1u64 << 62;
    let mut best = fill_up_to(merged, &net_prices, max_load)?;

    while too_low + 1 < max_load {
        let tried_load = too_low.midpoint(max_load);
        match fill_up_to(merged, &net_prices, tried_load) {
            Some(placement) => {
                max_load = tried_load;
                best = placement;
            }
            None => too_low = tried_load,
        }
    }
    Some(best)
}

/// The most that a net costs a device over any link that there is.
fn max_price(merged: &MergedProblem, net: &UnitNet) -> NetPrice {
    let linked = |prices: &[u64]| {
        let all_prices = prices.iter().copied();
        all_prices
            .filter(|&price| price < merged.no_link_ticks)
            .max()
    };
    NetPrice {
        send: linked(&net.send).unwrap_or(0),
        receive: linked(&net.receive).unwrap_or(0),
    }
}

/// The placement that gives each device in turn as much of the order as keeps it within its bytes and so many ticks;
/// `None` if not all units find a place.
fn fill_up_to(merged: &MergedProblem, net_prices: &[NetPrice], max_load: u64) -> Option<Vec<u32>> {
    let mut placement = vec![0; merged.units()];
    let mut next_place = 0;

    let mut stretch = Stretch::new(merged, net_prices, 0);
    for device in 0..merged.devices {
        stretch.restart(device);
        while let Some(&unit) = merged.order.get(next_place) {
            let fits = stretch.add(unit) && stretch.load() <= max_load && stretch.fits_memory();
            if !fits {
                break;
            }
            placement[unit] = device as u32;
            next_place += 1;
        }
    }
    (next_place == merged.order.len()).then_some(placement)
}

/// A topological order that goes on from the unit placed last where it can: neighbours stay together.
fn depth_first_order(merged: &MergedProblem) -> Vec<usize> {
    topological_order(merged, |ready| ready.len() - 1)
}

fn breadth_first_order(merged: &MergedProblem) -> Vec<usize> {
    topological_order(merged, |_| 0)
}

/// An order along the nets that are not delayed; `pick` chooses among the units that are ready.
fn topological_order(merged: &MergedProblem, pick: impl Fn(&[usize]) -> usize) -> Vec<usize> {
    let mut waiting_for: BTreeMap<usize, usize> = BTreeMap::new();
    for net in merged.nets.iter().filter(|net| !net.delayed) {
        for &reader in &net.to {
            *waiting_for.entry(reader).or_default() += 1;
        }
    }
    let mut ready = merged.order.clone();
    ready.retain(|unit| !waiting_for.contains_key(unit));
    ready.reverse();

    let mut order = Vec::with_capacity(merged.units());
    let mut is_ordered = vec![false; merged.units()];
    loop {
        if ready.is_empty() {
            // Merging may close cycles: then the next unit of the given order breaks one.
            match merged.order.iter().find(|&&unit| !is_ordered[unit]) {
                Some(&unit) => ready.push(unit),
                None => return order,
            }
        }
        let unit = ready.remove(pick(&ready));
        if std::mem::replace(&mut is_ordered[unit], true) {
            continue;
        }

        order.push(unit);
        for &index in &merged.nets_of[unit] {
            let net = &merged.nets[index];
            if net.from != unit || net.delayed {
                continue;
            }
            for &reader in &net.to {
                let waiting = waiting_for.entry(reader).or_default();
                *waiting = waiting.saturating_sub(1);
                if *waiting == 0 && !is_ordered[reader] {
                    ready.push(reader);
                }
            }
        }
    }
}
