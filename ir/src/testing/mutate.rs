//! Seeded mutants of a program: one small change each, as a bug in a scheduler or a damaged file would make.

use super::programs;
use crate::limits::ALIGN_BYTES;
use crate::{
    Action, BufferId, Calendar, ChannelId, Contingencies, DeviceId, Entry, HostId, InPlace, Plan,
    PlanId, Program, Region, RingId, Slot,
};

/// A changed program.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// What was changed.
    pub what: String,
    /// Whether no verifier may accept it. Where false, the change may be harmless; then the program must still
    /// compute the same.
    pub must_fail: bool,
    /// The program.
    pub program: Program,
}

/// SplitMix64 (Steele, Lea & Flood 2014): small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A sequence that depends on the seed alone.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is at least 1. The bias is below n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    fn index(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| self.below(len))
    }

    /// 1 up or down, around zero too.
    fn step(&mut self, value: u64) -> u64 {
        if self.bits().is_multiple_of(2) {
            value.wrapping_add(1)
        } else {
            value.wrapping_sub(1)
        }
    }
}

/// `count` mutants of a program, the same for the same seed; none equals the program. Fewer if almost no change of
/// it makes sense.
pub fn mutants(program: &Program, seed: u64, count: usize) -> Vec<Mutant> {
    let mut random = Random::new(seed);
    let mut mutants = Vec::new();
    for _ in 0..20 * count {
        if mutants.len() == count {
            break;
        }
        let mut changed = program.clone();
        if let Some((what, must_fail)) = change(&mut changed, &mut random)
            && changed != *program
        {
            mutants.push(Mutant {
                what,
                must_fail,
                program: changed,
            });
        }
    }
    mutants
}

type Change = Option<(String, bool)>;

fn change(program: &mut Program, random: &mut Random) -> Change {
    let table = !program.contingencies.list.is_empty();
    let kind = random.below(if table { 16 } else { 12 });
    if kind >= 12 {
        return change_contingencies(program, random);
    }
    if kind == 0 {
        return change_graph(program, random);
    }
    let devices = program.machine.devices.len();
    let plan = random.index(program.plans.len())?;
    let plan = &mut program.plans.raw[plan];
    match kind {
        1 => change_plan(plan, devices, random),
        2..=4 => change_buffer(plan, random),
        5 => change_ring(plan, random),
        6 => {
            let calendar = random.index(plan.calendars.len())?;
            change_calendar(plan, calendar, random)
        }
        7 => {
            let calendar = random.index(plan.calendars.len())?;
            let lane = random.index(plan.calendars[calendar].lanes.len())?;
            let entries = &mut plan.calendars[calendar].lanes[lane].entries;
            let change = move_entry(entries, random);
            // With new times, only the order is wrong, if anything.
            programs::time(entries, 0);
            change
        }
        _ => {
            let calendar = random.index(plan.calendars.len())?;
            let lane = random.index(plan.calendars[calendar].lanes.len())?;
            change_entries(&mut plan.calendars[calendar].lanes[lane].entries, random)
        }
    }
}

fn change_graph(program: &mut Program, random: &mut Random) -> Change {
    let graph = &mut program.graph;
    let id = ChannelId::from(random.index(graph.channels.len())?);
    let channel = &mut graph.channels[id];
    match random.below(5) {
        4 => {
            let writer = &mut graph.actors[channel.from.actor];
            let at_bytes = ALIGN_BYTES * random.below(3) as u64;
            if random.bits().is_multiple_of(2) {
                let pair = random.index(writer.in_place.len())?;
                if random.bits().is_multiple_of(2) {
                    writer.in_place.remove(pair);
                } else {
                    writer.in_place[pair].at_bytes = at_bytes;
                }
                return Some((format!("what {} may write in place", writer.name), false));
            }
            let (input, output) = (random.index(writer.inputs.len())? as u32, channel.from.port);
            writer
                .in_place
                .retain(|pair| (pair.input, pair.output) != (input, output));
            writer.in_place.push(InPlace {
                input,
                output,
                at_bytes,
            });
            Some((
                format!("more that {} may write in place", writer.name),
                false,
            ))
        }
        0 => {
            let reader = random.index(channel.readers.len())?;
            let before = channel.history();
            channel.readers[reader].delay = random.step(channel.readers[reader].delay);
            let must_fail = channel.history() != before;
            Some((format!("delay of reader {reader} of {id}"), must_fail))
        }
        1 => {
            channel.initial.push(0);
            Some((format!("one more byte of initial tokens on {id}"), true))
        }
        2 => {
            let port = &mut graph.actors[channel.from.actor].outputs[channel.from.port as usize];
            port.rate = random.step(port.rate);
            Some((format!("rate of the writer of {id}"), true))
        }
        _ => {
            let reader = random.index(channel.readers.len())?;
            channel.readers.remove(reader);
            Some((format!("reader {reader} of {id} dropped"), true))
        }
    }
}

fn change_contingencies(program: &mut Program, random: &mut Random) -> Change {
    if !program.machine.hosts.is_empty() && random.below(3) == 0 {
        return change_hosts(program, random);
    }
    let plans = program.plans.len();
    let Contingencies { kinds, list, .. } = &mut program.contingencies;
    if random.below(3) == 0 {
        let kind = random.index(kinds.len())?;
        let devices = &mut kinds.raw[kind];
        let i = random.index(devices.len())?;
        match random.below(4) {
            0 => devices[i].0 = random.step(devices[i].0.into()) as u32,
            1 => devices.swap(0, i),
            2 => {
                devices.remove(i);
            }
            _ => devices.insert(i, devices[i]),
        }
        return Some((format!("device {i} of kind {kind}"), true));
    }
    let entry = random.index(list.len())?;
    let (what, must_fail) = match random.below(8) {
        0 => {
            list.push(list[entry].clone());
            ("existence twice", true)
        }
        1 => {
            list.remove(entry);
            ("existence", false)
        }
        2 => {
            list[entry].lost.clear();
            ("emptiness", true)
        }
        3 => {
            let loss = random.index(list[entry].lost.len())?;
            let count = &mut list[entry].lost[loss].count;
            *count = random.step((*count).into()) as u32;
            ("count", false)
        }
        4 => {
            let loss = random.index(list[entry].lost.len())?;
            let kind = &mut list[entry].lost[loss].kind;
            kind.0 = random.step(kind.0.into()) as u32;
            ("kind", false)
        }
        5 => {
            let tail = &mut list[entry].tail;
            *tail = if tail.is_none() {
                Some(PlanId(0))
            } else {
                None
            };
            ("tail", true)
        }
        6 => {
            list[entry].main = PlanId::from(plans + random.below(2));
            ("unknown plan", true)
        }
        _ => {
            list[entry].main = PlanId::from(random.below(plans));
            ("plan", false)
        }
    };
    Some((format!("{what} of contingency {entry}"), must_fail))
}

/// Hosts of the machine, or which of them are alike.
fn change_hosts(program: &mut Program, random: &mut Random) -> Change {
    let hosts = &mut program.machine.hosts;
    let host = HostId::from(random.index(hosts.len())?);
    match random.below(5) {
        0 => {
            hosts.raw.remove(host.index());
            return Some((format!("{host} dropped"), program.machine.hosts.len() > 1));
        }
        1 => {
            let devices = &mut hosts[host].devices;
            let index = random.index(devices.len())?;
            devices[index].0 = random.step(devices[index].0.into()) as u32;
            return Some((format!("device {index} of {host}"), true));
        }
        2 => {
            hosts[host].devices.pop();
            return Some((format!("last device of {host}"), true));
        }
        _ => {}
    }

    let kinds = &mut program.contingencies.alike_hosts.raw;
    let kind = random.index(kinds.len())?;
    let listed = &mut kinds[kind];
    let place = random.index(listed.len())?;
    let (what, must_fail) = match random.below(5) {
        0 => {
            listed.swap(0, place);
            ("order", true)
        }
        1 => {
            listed.remove(place);
            ("absence", false)
        }
        2 => {
            listed.push(listed[place].clone());
            ("existence twice", true)
        }
        3 => {
            let device = random.index(listed[place].len())?;
            listed[place].swap(0, device);
            ("correspondence", false)
        }
        _ => {
            let device = random.index(listed[place].len())?;
            let id = &mut listed[place][device];
            id.0 = random.step(id.0.into()) as u32;
            ("device", true)
        }
    };
    Some((format!("{what} of alike host {place}"), must_fail))
}

fn change_plan(plan: &mut Plan, devices: usize, random: &mut Random) -> Change {
    match random.below(5) {
        0 => plan.block = random.step(plan.block),
        1 => plan.stages = random.step(plan.stages.into()) as u32,
        2 => plan.period_ns = 0,
        3 => {
            let actor = random.index(plan.placement.len())?;
            plan.placement.raw[actor] = DeviceId(random.below(devices + 1) as u32);
        }
        _ => {
            let calendar = random.index(plan.calendars.len())?;
            plan.calendars.remove(calendar);
        }
    }
    Some((
        "block, stages, period, placement or calendars of a plan".to_owned(),
        true,
    ))
}

fn change_buffer(plan: &mut Plan, random: &mut Random) -> Change {
    let id = BufferId::from(random.index(plan.buffers.len())?);
    let other = plan.buffers[BufferId::from(random.index(plan.buffers.len())?)].offset_bytes;
    let buffer = &mut plan.buffers[id];
    let is_chunked = buffer.is_chunked();
    let (what, must_fail) = match random.below(14) {
        12 | 13 => {
            let chunk = &mut buffer.chunk_tokens;
            *chunk = match random.below(3) {
                0 => *chunk / 2,
                1 => chunk.saturating_mul(2),
                _ => random.step(*chunk),
            };
            ("chunk tokens", false)
        }
        10 | 11 => {
            buffer.offset_bytes = other + ALIGN_BYTES * random.below(3) as u64;
            ("offset, now in another,", false)
        }
        0 => {
            buffer.head_tokens = random.step(buffer.head_tokens);
            // In front of chunks there may be more than is read.
            ("head tokens", !is_chunked)
        }
        1 => {
            buffer.block_tokens = random.step(buffer.block_tokens);
            ("block tokens", true)
        }
        2 => {
            let arena = buffer.region == Region::Arena;
            buffer.region = if arena {
                Region::Exchange
            } else {
                Region::Arena
            };
            ("region", true)
        }
        3 => {
            buffer.offset_bytes += 1 + random.below(ALIGN_BYTES as usize - 1) as u64;
            ("alignment", true)
        }
        4 => {
            plan.buffers.remove(id);
            ("existence", true)
        }
        5 => {
            buffer.stride_bytes = buffer.stride_bytes.saturating_sub(ALIGN_BYTES);
            ("stride", false)
        }
        6 | 7 => {
            buffer.blocks = random.step(buffer.blocks.into()) as u32;
            ("places", false)
        }
        _ => {
            let step = ALIGN_BYTES * (1 + random.below(3) as u64);
            let up = random.bits().is_multiple_of(2);
            let offset = buffer.offset_bytes;
            buffer.offset_bytes = if up {
                offset + step
            } else {
                offset.saturating_sub(step)
            };
            ("offset", false)
        }
    };
    Some((format!("{what} of {id}"), must_fail))
}

fn change_ring(plan: &mut Plan, random: &mut Random) -> Change {
    let id = RingId::from(random.index(plan.rings.len())?);
    let ring = &mut plan.rings[id];
    match random.below(4) {
        0 => std::mem::swap(&mut ring.from, &mut ring.to),
        1 => ring.buffer = BufferId(random.step(ring.buffer.0.into()) as u32),
        2 => ring.channel = ChannelId(random.step(ring.channel.0.into()) as u32),
        _ => {
            plan.rings.remove(id);
        }
    }
    Some((format!("ends, buffer, channel or existence of {id}"), true))
}

fn change_calendar(plan: &mut Plan, index: usize, random: &mut Random) -> Change {
    let calendar: &mut Calendar = &mut plan.calendars[index];
    let (what, must_fail) = match random.below(4) {
        0 => {
            calendar.arena_bytes = calendar.arena_bytes.saturating_sub(ALIGN_BYTES);
            ("arena bytes", false)
        }
        1 => {
            calendar.scratch_offset_bytes =
                calendar.scratch_offset_bytes.saturating_sub(ALIGN_BYTES);
            ("scratch offset", false)
        }
        2 => {
            calendar.device = DeviceId(random.step(calendar.device.0.into()) as u32);
            ("device", true)
        }
        _ => {
            let lane = calendar.lanes.first()?.clone();
            calendar.lanes.push(lane);
            ("lanes", true)
        }
    };
    Some((format!("{what} of calendar {index}"), must_fail))
}

fn change_entries(entries: &mut Vec<Entry>, random: &mut Random) -> Change {
    let i = random.index(entries.len())?;
    if let Entry::Loop { count, body } = &mut entries[i] {
        if !random.bits().is_multiple_of(4) {
            return change_entries(body, random);
        }
        if random.bits().is_multiple_of(2) {
            *count = random.step(*count);
            return Some(("repetitions of a loop".to_owned(), true));
        }
    }
    match random.below(6) {
        0 => {
            entries.remove(i);
            Some((format!("entry {i} dropped"), true))
        }
        1 => {
            let copy = entries[i].clone();
            entries.insert(i, copy);
            Some((format!("entry {i} doubled"), true))
        }
        2 | 3 => {
            let j = random.below(entries.len());
            let starts = (start(&mut entries[i]), start(&mut entries[j]));
            entries.swap(i, j);
            // With the times exchanged too, only the order is wrong, if anything.
            set_start(&mut entries[i], starts.0);
            set_start(&mut entries[j], starts.1);
            Some((format!("entries {i} and {j} exchanged"), false))
        }
        _ => match &mut entries[i] {
            Entry::Slot(slot) => change_slot(slot, i, random),
            Entry::Loop { .. } => None,
        },
    }
}

/// Takes a slot or a loop to another place among its neighbours, into a loop or out of one.
fn move_entry(entries: &mut Vec<Entry>, random: &mut Random) -> Change {
    let i = random.index(entries.len())?;
    if let Entry::Loop { body, .. } = &mut entries[i]
        && !random.bits().is_multiple_of(3)
    {
        if random.bits().is_multiple_of(4) && body.len() > 1 {
            let j = random.below(body.len());
            let entry = body.remove(j);
            entries.insert(i + random.below(2), entry);
            return Some((format!("entry {j} of loop {i} taken out of it"), false));
        }
        return move_entry(body, random);
    }

    let entry = entries.remove(i);
    let j = random.below(entries.len() + 1);
    match entries.get_mut(j) {
        Some(Entry::Loop { body, .. }) if random.bits().is_multiple_of(2) => {
            body.insert(random.below(body.len() + 1), entry);
            Some((format!("entry {i} moved into loop {j}"), false))
        }
        _ => {
            entries.insert(j, entry);
            Some((format!("entry {i} moved to {j}"), false))
        }
    }
}

fn start(entry: &mut Entry) -> Option<u64> {
    match entry {
        Entry::Slot(slot) => Some(slot.start_ns),
        Entry::Loop { .. } => None,
    }
}

fn set_start(entry: &mut Entry, start_ns: Option<u64>) {
    if let (Entry::Slot(slot), Some(start_ns)) = (entry, start_ns) {
        slot.start_ns = start_ns;
    }
}

fn change_slot(slot: &mut Slot, index: usize, random: &mut Random) -> Change {
    let (what, must_fail) = match random.below(5) {
        0 => {
            slot.stage = random.step(slot.stage.into()) as u32;
            ("stage", false)
        }
        1 => {
            slot.start_ns = slot.start_ns.wrapping_sub(1);
            ("start", false)
        }
        kind => match &mut slot.action {
            Action::Fire { first, count, .. }
            | Action::Send { first, count, .. }
            | Action::Recv { first, count, .. } => {
                let number = if kind == 2 { first } else { count };
                *number = random.step(*number);
                ("range", true)
            }
            Action::Release { ring } => {
                ring.0 = random.step(ring.0.into()) as u32;
                ("ring", true)
            }
            Action::Carry { buffer } => {
                buffer.0 = random.step(buffer.0.into()) as u32;
                ("buffer", true)
            }
            Action::Fetch { actor, .. } | Action::Await { actor } => {
                actor.0 = random.step(actor.0.into()) as u32;
                ("actor", true)
            }
        },
    };
    Some((format!("{what} of entry {index}"), must_fail))
}
