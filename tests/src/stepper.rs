//! A second, slow checker of plans: steps the machine slot by slot, token by token, in a random interleaving.
//!
//! Written from the meaning of a plan in `zbmd_ir`'s documentation alone; shares nothing with the verifier or the
//! scheduler. Every byte of every region carries the name of the token it belongs to. A slot that reads a byte which
//! does not hold the token it expects, a lane that can never go on, or a token missing at the end is a violation.
//! Hand-overs take arbitrarily long, because the devices are stepped in random order.

use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::*;

/// What went wrong, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

/// Name of a byte: channel, token counted from the oldest initial one, byte of the token.
type Tag = (u32, u64, u32);

struct Step {
    stage: u32,
    action: Action,
}

struct Machine<'a> {
    graph: &'a Graph,
    plan: &'a Plan,
    q: TiVec<ActorId, u64>,
    blocks: u64,
    memory: BTreeMap<(DeviceId, Region), Vec<Option<Tag>>>,
    touched: Touched,
    published: Vec<u64>,
    released: Vec<u64>,
    /// Tokens of each ring that its receiver has waited for: it may touch no others.
    received: Vec<u64>,
    buffer_at: BTreeMap<(ChannelId, DeviceId), BufferId>,
    /// The chunk that each buffer of chunks holds, counted from the start of the run.
    chunks: TiVec<BufferId, u64>,
    fired: TiVec<ActorId, u64>,
    /// Devices whose hosts read gates, from what others have sent.
    gpus: BTreeSet<DeviceId>,
}

/// Who reads a byte in a call: the input, the firing, and which byte of its window it is.
type Reader = (u32, u64, u64);

/// What a call of an actor reads and writes, byte by byte. A byte's mark counts only if it was made in this call.
#[derive(Default)]
struct Touched {
    marks: BTreeMap<(DeviceId, Region), Vec<u32>>,
    /// The mark of bytes with several readers; then comes that of bytes written, then those of `reads`, in order.
    shared: u32,
    /// Input, firing, and place of the byte in the window, less its place in the region.
    reads: Vec<(u32, u64, u64)>,
}

impl Touched {
    fn begin(&mut self) {
        let next = self.shared.checked_add(2 + self.reads.len() as u32);
        // Every number was used: what is left of the calls before is taken away.
        let next = next.filter(|next| *next < u32::MAX / 2).unwrap_or_else(|| {
            self.marks.values_mut().for_each(|marks| marks.fill(0));
            1
        });
        self.shared = next;
        self.reads.clear();
    }

    /// Notes that a token is read, from byte `own` of the input's window on.
    fn read(&mut self, at: (DeviceId, Region), bytes: std::ops::Range<usize>, who: Reader) {
        let (input, firing, own) = who;
        self.reads
            .push((input, firing, own.wrapping_sub(bytes.start as u64)));
        let number = self.shared + 1 + self.reads.len() as u32;
        let marks = self.marks.get_mut(&at).expect("every region has marks");
        for mark in &mut marks[bytes] {
            *mark = if *mark < self.shared {
                number
            } else {
                self.shared
            };
        }
    }

    /// Notes that a byte is written; who reads it, and whether it was written before. No reader means several.
    fn write(&mut self, at: (DeviceId, Region), byte: usize) -> (Option<Option<Reader>>, bool) {
        let mark = &mut self.marks.get_mut(&at).expect("every region has marks")[byte];
        let before = std::mem::replace(mark, self.shared + 1);
        let Some(before) = before.checked_sub(self.shared) else {
            return (None, false);
        };
        match before {
            0 => (Some(None), false),
            1 => (None, true),
            read => {
                let (input, firing, own) = self.reads[read as usize - 2];
                (
                    Some(Some((input, firing, own.wrapping_add(byte as u64)))),
                    false,
                )
            }
        }
    }
}

/// Runs `blocks` blocks of the plan in an interleaving drawn from `seed`.
///
/// # Errors
/// The first [`Violation`]. Plans so broken that they cannot be stepped at all (ids out of range) are violations too.
pub fn step(graph: &Graph, plan: &Plan, blocks: u64, seed: u64) -> Result<(), Violation> {
    step_with(graph, plan, &BTreeSet::new(), blocks, seed)
}

/// [`step`], where some devices are GPUs.
///
/// # Errors
/// As [`step`].
pub fn step_with(
    graph: &Graph,
    plan: &Plan,
    gpus: &BTreeSet<DeviceId>,
    blocks: u64,
    seed: u64,
) -> Result<(), Violation> {
    let q = zbmd_scheduler::repetition(graph).map_err(|e| Violation(e.to_string()))?;
    let mut buffer_at = BTreeMap::new();
    for (id, buffer) in plan.buffers.iter_enumerated() {
        if buffer_at
            .insert((buffer.channel, buffer.device), id)
            .is_some()
        {
            return violation(format!(
                "two buffers for {} on {}",
                buffer.channel, buffer.device
            ));
        }
    }
    for ring in &plan.rings {
        if ring.buffer.index() >= plan.buffers.len() {
            return violation(format!(
                "a ring names {} of {}",
                ring.buffer,
                plan.buffers.len()
            ));
        }
    }
    check_chunks(graph, plan)?;
    let (mut memory, mut touched) = (BTreeMap::new(), Touched::default());
    let mut lanes = Vec::new();
    for calendar in &plan.calendars {
        for (region, bytes) in [
            (Region::Arena, calendar.arena_bytes),
            (Region::Exchange, calendar.exchange_bytes),
        ] {
            if bytes > 1 << 26 {
                return violation(format!("{bytes} bytes are too many for the slow checker"));
            }
            memory.insert((calendar.device, region), vec![None; bytes as usize]);
            touched
                .marks
                .insert((calendar.device, region), vec![0; bytes as usize]);
        }
        let mut steps = Vec::new();
        for lane in &calendar.lanes {
            flatten(&lane.entries, &mut BTreeMap::new(), &mut steps)?;
            if let Some(step) = steps.iter().find(|s| !is_known(graph, plan, s.action)) {
                return violation(format!("{:?} names what is not there", step.action));
            }
        }
        lanes.push((calendar.device, steps));
    }
    let mut machine = Machine {
        graph,
        plan,
        q,
        blocks,
        memory,
        touched,
        published: vec![0; plan.rings.len()],
        released: vec![0; plan.rings.len()],
        received: vec![0; plan.rings.len()],
        buffer_at,
        chunks: vec![0; plan.buffers.len()].into(),
        fired: graph.actors.iter().map(|_| 0).collect(),
        gpus: gpus.clone(),
    };
    machine.fill_heads()?;
    machine.run(&lanes, seed)?;
    machine.check_end()
}

fn violation<T>(text: String) -> Result<T, Violation> {
    Err(Violation(text))
}

/// Buffers that hold less than a block hold a part of it that fits in evenly, of one block at a time, for their device
/// alone.
fn check_chunks(graph: &Graph, plan: &Plan) -> Result<(), Violation> {
    for buffer in plan
        .buffers
        .iter()
        .filter(|b| b.chunk_tokens != b.block_tokens)
    {
        let name = buffer.channel;
        let (chunk, block) = (buffer.chunk_tokens, buffer.block_tokens);
        if chunk == 0 || chunk > block || !block.is_multiple_of(chunk) {
            return violation(format!("{name}: chunks of {chunk} of {block} tokens"));
        }
        let is_shared = plan.rings.iter().any(|ring| ring.channel == buffer.channel);
        if buffer.blocks != 1 || buffer.region != Region::Arena || is_shared {
            return violation(format!(
                "{name}: chunks that a device does not have for itself"
            ));
        }
        let channel = graph.channels.get(name);
        if channel.is_none_or(|channel| buffer.head_tokens < channel.history()) {
            return violation(format!("{name}: a history does not fit in front of chunks"));
        }
    }
    Ok(())
}

fn is_known(graph: &Graph, plan: &Plan, action: Action) -> bool {
    match action {
        Action::Fire { actor, .. } | Action::Fetch { actor, .. } | Action::Await { actor } => {
            actor.index() < graph.actors.len()
        }
        Action::Send { ring, .. } | Action::Recv { ring, .. } | Action::Release { ring } => {
            ring.index() < plan.rings.len()
        }
        Action::Carry { buffer } => buffer.index() < plan.buffers.len(),
    }
}

/// Counts loops out; `first` of each execution follows from how often the actor or ring was used before.
fn flatten(
    entries: &[Entry],
    used: &mut BTreeMap<(u8, u32), u64>,
    out: &mut Vec<Step>,
) -> Result<(), Violation> {
    for entry in entries {
        match entry {
            Entry::Slot(slot) => {
                let mut action = slot.action;
                let (key, first, count) = match &mut action {
                    Action::Fire {
                        actor,
                        first,
                        count,
                    } => ((0, actor.0), first, *count),
                    Action::Send { ring, first, count } => ((1, ring.0), first, *count),
                    Action::Recv { ring, first, count } => ((2, ring.0), first, *count),
                    // No token is in weights.
                    Action::Fetch { .. } | Action::Await { .. } => continue,
                    Action::Release { .. } | Action::Carry { .. } => {
                        out.push(Step {
                            stage: slot.stage,
                            action,
                        });
                        continue;
                    }
                };
                let before = used.entry(key).or_insert(0);
                let in_loop = *first != *before;
                // Only a repetition may find its `first` behind the counter.
                if in_loop && *first > *before {
                    return violation(format!("{action:?} leaves out what comes before it"));
                }
                match &mut action {
                    Action::Fire { first, .. }
                    | Action::Send { first, .. }
                    | Action::Recv { first, .. } => *first = *before,
                    _ => {}
                }
                let Some(after) = before.checked_add(count) else {
                    return violation(format!("{action:?} counts beyond all bounds"));
                };
                *before = after;
                out.push(Step {
                    stage: slot.stage,
                    action,
                });
            }
            Entry::Loop { count, body } => {
                for _ in 0..*count {
                    flatten(body, used, out)?;
                    if out.len() > 1 << 22 {
                        return violation("too many executions for the slow checker".into());
                    }
                }
            }
        }
    }
    Ok(())
}

impl Machine<'_> {
    fn buffer(&self, channel: ChannelId, device: DeviceId) -> Result<&Buffer, Violation> {
        match self.buffer_at.get(&(channel, device)) {
            Some(&id) => Ok(&self.plan.buffers[id]),
            None => violation(format!("no buffer for {channel} on {device}")),
        }
    }

    /// Bytes of a token position in the place of a block.
    fn bytes_at(
        &self,
        buffer: &Buffer,
        block: u64,
        position: u64,
    ) -> Result<(DeviceId, Region, usize, usize), Violation> {
        let token = self.graph.channels[buffer.channel].token.bytes();
        let place = block % u64::from(buffer.blocks.max(1));
        let start = buffer.offset_bytes + place * buffer.stride_bytes + position * token;
        let size = self
            .memory
            .get(&(buffer.device, buffer.region))
            .map_or(0, Vec::len) as u64;
        if start + token > size || (position + 1) * token > buffer.stride_bytes {
            return violation(format!(
                "position {position} of {} lies outside its place or region",
                buffer.channel
            ));
        }
        Ok((
            buffer.device,
            buffer.region,
            start as usize,
            (start + token) as usize,
        ))
    }

    fn write(
        &mut self,
        buffer: &Buffer,
        block: u64,
        position: u64,
        token: u64,
    ) -> Result<(), Violation> {
        let (device, region, start, end) = self.bytes_at(buffer, block, position)?;
        let memory = self
            .memory
            .get_mut(&(device, region))
            .expect("bytes_at looked it up");
        for (byte, cell) in memory[start..end].iter_mut().enumerate() {
            *cell = Some((buffer.channel.0, token, byte as u32));
        }
        Ok(())
    }

    fn expect(
        &self,
        buffer: &Buffer,
        block: u64,
        position: u64,
        token: u64,
    ) -> Result<(), Violation> {
        let (device, region, start, end) = self.bytes_at(buffer, block, position)?;
        for (byte, cell) in self.memory[&(device, region)][start..end]
            .iter()
            .enumerate()
        {
            let wanted = (buffer.channel.0, token, byte as u32);
            if *cell != Some(wanted) {
                return violation(format!(
                    "block {block}: {} should hold {wanted:?}, holds {cell:?}",
                    buffer.channel
                ));
            }
        }
        Ok(())
    }

    /// A read by the device's own slot: like `expect`, and what came over a ring must have been waited for.
    fn read(
        &self,
        buffer: &Buffer,
        block: u64,
        position: u64,
        token: u64,
    ) -> Result<(), Violation> {
        if let (Region::Exchange, Some(new)) =
            (buffer.region, position.checked_sub(buffer.head_tokens))
        {
            let ring = self
                .plan
                .rings
                .iter()
                .position(|r| self.plan.buffers[r.buffer] == *buffer);
            if ring.is_none_or(|r| self.received[r] <= block * buffer.block_tokens + new) {
                return violation(format!("{} is read without a receive", buffer.channel));
            }
        }
        self.expect(buffer, block, position, token)
    }

    fn is_chunked(&self, id: BufferId) -> bool {
        self.plan.buffers[id].chunk_tokens != self.plan.buffers[id].block_tokens
    }

    /// Position in its place of a token, counted from the first new one of a block.
    fn position(&self, id: BufferId, block: u64, token: i64) -> Result<u64, Violation> {
        let buffer = &self.plan.buffers[id];
        let head = buffer.head_tokens as i64;
        let position = if buffer.chunk_tokens == buffer.block_tokens {
            head + token
        } else {
            let total = (block * buffer.block_tokens) as i64 + token;
            head + total - (self.chunks[id] * buffer.chunk_tokens) as i64
        };
        let is_held = buffer.chunk_tokens == buffer.block_tokens
            || position < head + buffer.chunk_tokens as i64;
        if position < 0 || !is_held {
            return violation(format!(
                "token {token} of block {block} of {} is not in the chunk {} that is held",
                buffer.channel, self.chunks[id]
            ));
        }
        Ok(position as u64)
    }

    /// A buffer without a head goes over to the next chunk when its first token is written.
    fn begin_chunk(&mut self, id: BufferId, block: u64, token: u64) {
        let buffer = &self.plan.buffers[id];
        if buffer.chunk_tokens == buffer.block_tokens || buffer.head_tokens > 0 {
            return;
        }
        let total = block * buffer.block_tokens + token;
        if total.is_multiple_of(buffer.chunk_tokens) {
            self.chunks[id] = total / buffer.chunk_tokens;
        }
    }

    /// Moves the end of a chunk to the head, with what is in it: the head may be longer than what a run starts with.
    fn carry_chunk(&mut self, id: BufferId) -> Result<(), Violation> {
        let buffer = self.plan.buffers[id].clone();
        let history = self.graph.channels[buffer.channel].history() as i64;
        let first = (self.chunks[id] + 1) * buffer.chunk_tokens;
        for i in 0..buffer.head_tokens {
            let number = history + first as i64 - buffer.head_tokens as i64 + i as i64;
            let from = buffer.chunk_tokens + i;
            if number >= 0 {
                self.read(&buffer, 0, from, number as u64)?;
            }

            // In this order, no token is overwritten before it is moved.
            let (device, region, start, end) = self.bytes_at(&buffer, 0, from)?;
            let (.., to, _) = self.bytes_at(&buffer, 0, i)?;
            let memory = self
                .memory
                .get_mut(&(device, region))
                .expect("bytes_at looked it up");
            memory.copy_within(start..end, to);
        }
        self.chunks[id] += 1;
        Ok(())
    }

    /// Where in a head the tokens of a border lie.
    fn border_positions(&self, buffer: &Buffer) -> std::ops::Range<u64> {
        let history = self.graph.channels[buffer.channel].history();
        if buffer.chunk_tokens == buffer.block_tokens {
            0..buffer.head_tokens
        } else {
            buffer.head_tokens - history..buffer.head_tokens
        }
    }

    /// Number, counted from the oldest initial token, of the token at a buffer's position in a block. States keep
    /// their one position, so their number is that of the firing.
    fn token_number(&self, buffer: &Buffer, block: u64, position: u64) -> u64 {
        let history = self.graph.channels[buffer.channel].history();
        history + block * buffer.block_tokens + position - buffer.head_tokens
    }

    fn fill_heads(&mut self) -> Result<(), Violation> {
        for buffer in self.plan.buffers.clone() {
            for position in self.border_positions(&buffer) {
                let token = self.token_number(&buffer, 0, position);
                self.write(&buffer, 0, position, token)?;
            }
        }
        Ok(())
    }

    fn run(&mut self, lanes: &[(DeviceId, Vec<Step>)], seed: u64) -> Result<(), Violation> {
        let periods = self.blocks + u64::from(self.plan.stages) - 1;
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut at = vec![(0u64, 0usize); lanes.len()];
        let mut live: Vec<usize> = (0..lanes.len())
            .filter(|&l| !lanes[l].1.is_empty())
            .collect();
        while !live.is_empty() {
            let mut blocked = live.clone();
            let mut moved = false;
            while !blocked.is_empty() {
                let lane = blocked.swap_remove(rng.usize(..blocked.len()));
                let (device, steps) = &lanes[lane];
                // A random stretch, so that devices run ahead of each other by more than a slot.
                for _ in 0..rng.usize(1..=steps.len() * 2) {
                    let (period, index) = at[lane];
                    if period == periods || !self.execute(*device, period, &steps[index])? {
                        break;
                    }
                    at[lane] = if index + 1 == steps.len() {
                        (period + 1, 0)
                    } else {
                        (period, index + 1)
                    };
                    moved = true;
                }
                if moved {
                    break;
                }
            }
            live.retain(|&lane| at[lane].0 < periods);
            if !moved && !live.is_empty() {
                return violation(format!("deadlock: lanes at (period, step) {at:?}"));
            }
        }
        Ok(())
    }

    /// Does one step if it can go on; `false` if it must wait.
    fn execute(&mut self, device: DeviceId, period: u64, step: &Step) -> Result<bool, Violation> {
        let Some(block) = period
            .checked_sub(u64::from(step.stage))
            .filter(|&b| b < self.blocks)
        else {
            return Ok(true);
        };
        match step.action {
            Action::Fire {
                actor,
                first,
                count,
            } => self.fire(device, block, actor, first, count)?,
            Action::Send { ring, first, count } => {
                let r = self.plan.rings[ring].clone();
                let to = self.plan.buffers[r.buffer].clone();
                if block >= self.released[ring.index()] + u64::from(to.blocks) {
                    return Ok(false);
                }
                let from = self.buffer(r.channel, device)?.clone();
                for token in first..first + count {
                    let number = self.token_number(&from, block, from.head_tokens + token);
                    self.expect(&from, block, from.head_tokens + token, number)?;
                    self.write(&to, block, to.head_tokens + token, number)?;
                }
                if self.published[ring.index()] != block * to.block_tokens + first {
                    return violation(format!("{ring} publishes out of order"));
                }
                self.published[ring.index()] += count;
            }
            Action::Recv { ring, first, count } => {
                let buffer = &self.plan.buffers[self.plan.rings[ring].buffer];
                let wanted = block * buffer.block_tokens + first + count;
                if self.published[ring.index()] < wanted {
                    return Ok(false);
                }
                self.received[ring.index()] = wanted;
            }
            Action::Release { ring } => {
                if self.released[ring.index()] != block {
                    return violation(format!("{ring} releases out of order"));
                }
                self.released[ring.index()] += 1;
            }
            Action::Fetch { .. } | Action::Await { .. } => {}
            Action::Carry { buffer } if self.is_chunked(buffer) => self.carry_chunk(buffer)?,
            Action::Carry { buffer } => {
                let buffer = self.plan.buffers[buffer].clone();
                let numbers: Vec<u64> = (0..buffer.head_tokens)
                    .map(|i| self.token_number(&buffer, block, buffer.block_tokens + i))
                    .collect();
                for (i, &number) in numbers.iter().enumerate() {
                    self.read(&buffer, block, buffer.block_tokens + i as u64, number)?;
                }
                for (i, &number) in numbers.iter().enumerate() {
                    self.write(&buffer, block + 1, i as u64, number)?;
                }
            }
        }
        Ok(true)
    }

    /// Who decides what a GPU launches sees its exchange region and nothing else.
    fn check_gate(
        &self,
        device: DeviceId,
        actor: ActorId,
        ports: &PortChannels,
    ) -> Result<(), Violation> {
        let Some(gate) = self.graph.actors[actor].gate() else {
            return Ok(());
        };
        let joined = ports.inputs[actor].get(gate.input as usize);
        let Some(&Some((channel, _))) = joined else {
            return violation(format!("{actor} has an open gate"));
        };
        let is_seen = self.buffer(channel, device)?.region == Region::Exchange;
        match is_seen || !self.gpus.contains(&device) {
            true => Ok(()),
            false => violation(format!("the gate of {actor} is not sent to {device}")),
        }
    }

    fn fire(
        &mut self,
        device: DeviceId,
        block: u64,
        actor: ActorId,
        first: u64,
        count: u64,
    ) -> Result<(), Violation> {
        let graph = self.graph;
        let per_block = self.q[actor] * self.plan.block;
        if self.fired[actor] != block * per_block + first {
            return violation(format!("{actor} fires out of order"));
        }
        if let Some(calendar) = self.plan.calendars.iter().find(|c| c.device == device) {
            let (start, end) = (
                calendar.scratch_offset_bytes,
                calendar.scratch_offset_bytes + calendar.scratch_bytes,
            );
            let arena = self
                .memory
                .get_mut(&(device, Region::Arena))
                .expect("every calendar has an arena");
            if end > arena.len() as u64 {
                return violation(format!(
                    "scratch ends at {end}, the arena at {}",
                    arena.len()
                ));
            }
            arena[start as usize..end as usize].fill(None);
        }
        let ports = graph.port_channels();
        self.touched.begin();
        self.check_gate(device, actor, &ports)?;
        for firing in first..first + count {
            let inputs = graph.actors[actor].inputs.iter().zip(&ports.inputs[actor]);
            for (i, (port, joined)) in (0..).zip(inputs) {
                let Some((channel, reader)) = *joined else {
                    return violation(format!("{actor} has an open input"));
                };
                let buffer = self.buffer(channel, device)?.clone();
                if graph.is_state(channel) {
                    // The kernel hands the state from firing to firing itself.
                    if firing == first {
                        self.expect(&buffer, 0, 0, block * per_block + firing)?;
                    }
                    continue;
                }
                let delay = graph.channels[channel].readers[reader as usize].delay;
                let history = graph.channels[channel].history();
                let id = self.buffer_at[&(channel, device)];
                for token in firing * port.rate..firing * port.rate + port.window {
                    let position = self.position(id, block, token as i64 - delay as i64)?;
                    let number = history + block * buffer.block_tokens + token - delay;
                    self.read(&buffer, block, position, number)?;
                    let (_, region, start, end) = self.bytes_at(&buffer, block, position)?;
                    let own = (token - firing * port.rate) * port.token.bytes();
                    self.touched
                        .read((device, region), start..end, (i, firing, own));
                }
            }
        }
        // A call reads all its windows before it writes. None of that may be among them, but for what a firing alone
        // reads, by one input, at the very byte at which the actor may write over it. Nothing is written twice.
        for firing in first..first + count {
            let outputs = graph.actors[actor]
                .outputs
                .iter()
                .zip(&ports.outputs[actor]);
            for (o, (port, joined)) in (0..).zip(outputs) {
                let Some(channel) = *joined else {
                    return violation(format!("{actor} has an open output"));
                };
                let buffer = self.buffer(channel, device)?.clone();
                if graph.is_state(channel) {
                    self.write(&buffer, 0, 0, block * per_block + firing + 1)?;
                    continue;
                }
                let may = |who: Option<Reader>, byte: u64| {
                    who.is_some_and(|(input, at, own)| {
                        let mut pairs = graph.actors[actor].in_place.iter();
                        let read = &graph.actors[actor].inputs[input as usize];
                        let is_part =
                            read.rate * read.token.bytes() < port.rate * port.token.bytes();
                        at == firing
                            && pairs.any(|p| {
                                let (part, whole) = if is_part { (own, byte) } else { (byte, own) };
                                (p.input, p.output) == (input, o) && p.at_bytes + part == whole
                            })
                    })
                };
                let history = graph.channels[channel].history();
                let id = self.buffer_at[&(channel, device)];
                for token in firing * port.rate..(firing + 1) * port.rate {
                    self.begin_chunk(id, block, token);
                    let position = self.position(id, block, token as i64)?;
                    if self.is_chunked(id) && position < buffer.head_tokens {
                        return violation(format!("{actor} writes to the head of {channel}"));
                    }
                    let number = history + block * buffer.block_tokens + token;
                    let (_, region, start, end) = self.bytes_at(&buffer, block, position)?;
                    let own = (token - firing * port.rate) * port.token.bytes()..;
                    for (own, byte) in own.zip(start..end) {
                        let (reader, again) = self.touched.write((device, region), byte);
                        if reader.is_some_and(|who| !may(who, own)) {
                            return violation(format!(
                                "{actor} overwrites byte {byte} of its input"
                            ));
                        }
                        if again {
                            return violation(format!("{actor} writes byte {byte} twice"));
                        }
                    }
                    self.write(&buffer, block, position, number)?;
                }
            }
        }
        self.fired[actor] += count;
        Ok(())
    }

    /// Everything fired, and the heads of the block after the last hold the border's tokens.
    fn check_end(&self) -> Result<(), Violation> {
        for (actor, &fired) in self.fired.iter_enumerated() {
            let wanted = self.q[actor] * self.plan.block * self.blocks;
            if fired != wanted {
                return violation(format!("{actor} fired {fired} times, not {wanted}"));
            }
        }
        for buffer in &self.plan.buffers {
            let state = self.graph.is_state(buffer.channel);
            let firings = self.fired[self.graph.channels[buffer.channel].from.actor];
            let chunks = self.blocks * buffer.block_tokens / buffer.chunk_tokens.max(1);
            let id = self.buffer_at[&(buffer.channel, buffer.device)];
            if self.is_chunked(id) && buffer.head_tokens > 0 && self.chunks[id] != chunks {
                return violation(format!("{} ends in another chunk", buffer.channel));
            }
            for position in self.border_positions(buffer) {
                let number = if state {
                    firings
                } else {
                    self.token_number(buffer, self.blocks, position)
                };
                self.expect(
                    buffer,
                    if state { 0 } else { self.blocks },
                    position,
                    number,
                )?;
            }
        }
        Ok(())
    }
}
