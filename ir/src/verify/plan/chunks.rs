//! Buffers that hold less than a block: every write is to the chunk that they hold, and nothing is dropped that somebody
//! still reads. So what has been written, and is still to be read, is there; and that tokens are written before they are
//! read is `order.rs`'s to check.
//!
//! Of a loop the first and the last repetition are looked at. That is enough because a loop is refused unless it does one
//! of two things to a buffer. Either each execution of its body moves on the writer and all readers by the same number of
//! whole chunks: then everything lies, relative to the current chunk, where it lay the time before. Or the current chunk
//! stays the same from the first repetition to the last: then firings move on linearly, and so does each side of what is
//! compared here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::cursor::{Begin, Flat, Node};
use super::{Cx, Lanes, Stages};
use crate::limits::MAX_LOOP_DEPTH;
use crate::verify::error::{Access, Errors, VerifyError};
use crate::{Action, ActorId, Buffer, BufferId, DeviceId, Slot, TiVec};

/// A reader of a buffer.
struct Reader {
    actor: ActorId,
    port: u32,
    rate: u64,
    delay: u64,
}

/// A buffer of chunks, and who uses it.
struct Chunked {
    id: BufferId,
    head: u64,
    chunk: u64,
    writer: ActorId,
    write_rate: u64,
    readers: Vec<Reader>,
}

impl Chunked {
    fn new(cx: &Cx<'_>, id: BufferId, buffer: &Buffer) -> Self {
        let channel = &cx.graph.channels[buffer.channel];
        let writer = &cx.graph.actors[channel.from.actor];
        let readers = channel.readers.iter().map(|reader| {
            let input = &cx.graph.actors[reader.to.actor].inputs[reader.to.port as usize];
            Reader {
                actor: reader.to.actor,
                port: reader.to.port,
                rate: input.rate,
                delay: reader.delay,
            }
        });
        Self {
            id,
            head: buffer.head_tokens,
            chunk: buffer.chunk_tokens,
            writer: channel.from.actor,
            write_rate: writer.outputs[channel.from.port as usize].rate,
            readers: readers.collect(),
        }
    }

    /// Whether tokens `[start, end)` of the block are in one chunk, or none.
    fn is_one_chunk(&self, start: u64, end: u64) -> bool {
        start >= end || start / self.chunk == (end - 1) / self.chunk
    }
}

/// The buffers of chunks, and which of them an actor or a carry uses.
struct Tables {
    buffers: Vec<Chunked>,
    index_of: BTreeMap<BufferId, usize>,
    outputs: BTreeMap<ActorId, Vec<usize>>,
    inputs: BTreeMap<ActorId, Vec<usize>>,
}

impl Tables {
    fn new(cx: &Cx<'_>) -> Self {
        let mut tables = Self {
            buffers: Vec::new(),
            index_of: BTreeMap::new(),
            outputs: BTreeMap::new(),
            inputs: BTreeMap::new(),
        };
        let all_buffers = cx.plan.buffers.iter_enumerated();
        for (id, buffer) in all_buffers.filter(|(_, buffer)| buffer.is_chunked()) {
            let index = tables.buffers.len();
            let chunked = Chunked::new(cx, id, buffer);
            tables.index_of.insert(id, index);
            tables
                .outputs
                .entry(chunked.writer)
                .or_default()
                .push(index);
            for reader in &chunked.readers {
                let inputs = tables.inputs.entry(reader.actor).or_default();
                inputs.push(index);
            }
            tables.buffers.push(chunked);
        }
        tables
    }

    /// The buffers of chunks that a slot uses, with repetitions.
    fn used_by(&self, action: &Action) -> impl Iterator<Item = usize> + '_ {
        let (outputs, inputs, carried) = match *action {
            Action::Fire { actor, .. } => (self.outputs.get(&actor), self.inputs.get(&actor), None),
            Action::Carry { buffer } => (None, None, self.index_of.get(&buffer)),
            _ => (None, None, None),
        };
        let inputs = inputs.into_iter().flatten().copied();
        let outputs = outputs.into_iter().flatten().copied();
        outputs.chain(inputs).chain(carried.copied())
    }

    /// Steps that an execution of a slot takes at most, with its part in comparing what loops around it do.
    fn steps(&self, slot: &Slot) -> u64 {
        let used = self.used_by(&slot.action);
        let port_steps = used.map(|index| 2 + self.buffers[index].readers.len() as u64);
        let steps: u64 = 1 + port_steps.sum::<u64>();
        steps * (1 + 3 * MAX_LOOP_DEPTH as u64)
    }
}

/// Checks all buffers of chunks; nothing is done where there is none.
pub(super) fn check(cx: &Cx<'_>, lanes: &Lanes<'_>, stages: &Stages, errors: &mut Errors) {
    let tables = Tables::new(cx);
    if tables.buffers.is_empty() {
        return;
    }
    check_stages(cx, &tables, stages, errors);

    for (device, flat) in &lanes.list {
        let flat = flat.filtered(|slot| tables.used_by(&slot.action).next().is_some());
        let steps = visit_steps(&flat, &tables);
        if !errors.reserve(|| format!("the chunks on {device} of {}", cx.id), steps) {
            return;
        }

        let mut walk = Walk {
            cx,
            tables: &tables,
            flat: &flat,
            device: *device,
            fired: vec![0; cx.graph.actors.len()].into(),
            carried: vec![0; tables.buffers.len()],
            errors,
        };
        walk.run(0..flat.nodes.len());
        if errors.full() {
            return;
        }
    }
}

/// The writer, the readers and the carries of a buffer work on one block.
fn check_stages(cx: &Cx<'_>, tables: &Tables, stages: &Stages, errors: &mut Errors) {
    for chunked in &tables.buffers {
        let stage = stages.fire[chunked.writer];
        let mut readers = chunked.readers.iter();
        let is_read_then = readers.all(|reader| stages.fire[reader.actor] == stage);
        let is_carried_then = chunked.head == 0 || stages.carry[chunked.id] == stage;
        if !is_read_then || !is_carried_then {
            errors.push(VerifyError::ChunkPlace {
                plan: cx.id,
                buffer: chunked.id,
                problem: "its slots have several stages",
            });
        }
    }
}

/// Steps of the walk through a lane.
fn visit_steps(flat: &Flat<'_>, tables: &Tables) -> u64 {
    let mut total_steps: u64 = 0;
    let mut nest_executions: Vec<u64> = vec![1];
    for (index, node) in flat.nodes.iter().enumerate() {
        let executions = nest_executions.last().copied().unwrap_or(1);
        let node_steps = match node {
            Node::Slot { slot, .. } => tables.steps(slot),
            Node::Begin(begin) => {
                nest_executions.push(executions.saturating_mul(begin.count.min(2)));
                (begin.end - index) as u64
            }
            Node::End { .. } => {
                nest_executions.pop();
                0
            }
        };
        total_steps = total_steps.saturating_add(executions.saturating_mul(node_steps));
    }
    total_steps
}

/// How far a buffer's writer and readers are.
struct Progress {
    written: u64,
    /// Tokens that each reader has consumed.
    consumed: Vec<u64>,
    carried: u64,
}

struct Walk<'w, 'a> {
    cx: &'w Cx<'w>,
    tables: &'w Tables,
    flat: &'w Flat<'a>,
    device: DeviceId,
    /// What has been done so far in this period.
    fired: TiVec<ActorId, u64>,
    carried: Vec<u64>,
    errors: &'w mut Errors,
}

impl Walk<'_, '_> {
    /// Recursion is as deep as loops nest.
    fn run(&mut self, nodes: Range<usize>) {
        let flat = self.flat;
        let mut index = nodes.start;
        while index < nodes.end && !self.errors.full() {
            match &flat.nodes[index] {
                Node::Slot { slot, .. } => {
                    self.errors.budget.take(1);
                    self.execute(slot);
                    index += 1;
                }
                Node::Begin(begin) => {
                    self.run_loop(begin, index + 1..begin.end);
                    index = begin.end + 1;
                }
                Node::End { .. } => index += 1,
            }
        }
    }

    fn run_loop(&mut self, begin: &Begin, body: Range<usize>) {
        let flat = self.flat;
        if begin.count == 1 {
            return self.run(body);
        }

        let nodes = &flat.nodes[body.clone()];
        self.errors.budget.take(nodes.len() as u64);
        let used: BTreeSet<usize> = nodes
            .iter()
            .filter_map(|node| match node {
                Node::Slot { slot, .. } => Some(self.tables.used_by(&slot.action)),
                Node::Begin(_) | Node::End { .. } => None,
            })
            .flatten()
            .collect();
        let before = self.progress_of(&used);
        self.run(body.clone());
        let after_first = self.progress_of(&used);

        self.skip(begin, nodes);
        self.run(body);
        let after_last = self.progress_of(&used);

        let stretches = before.iter().zip(&after_first).zip(&after_last);
        for (&index, ((before, first), last)) in used.iter().zip(stretches) {
            if self.errors.full() {
                return;
            }
            self.check_loop(index, before, first, last);
        }
    }

    fn progress_of(&mut self, used: &BTreeSet<usize>) -> Vec<Progress> {
        let mut progress = Vec::with_capacity(used.len());
        for &index in used {
            let chunked = &self.tables.buffers[index];
            self.errors.budget.take(1 + chunked.readers.len() as u64);
            let readers = chunked.readers.iter();
            progress.push(Progress {
                written: self.fired[chunked.writer] * chunked.write_rate,
                consumed: readers.map(|r| self.fired[r.actor] * r.rate).collect(),
                carried: self.carried[index],
            });
        }
        progress
    }

    /// All repetitions of a loop but the first and the last.
    fn skip(&mut self, begin: &Begin, body: &[Node<'_>]) {
        for node in body {
            let Node::Slot {
                slot, executions, ..
            } = node
            else {
                continue;
            };
            let skipped = (executions / begin.runs) * (begin.count - 2);
            match slot.action {
                Action::Fire { actor, count, .. } => self.fired[actor] += count * skipped,
                Action::Carry { buffer } => {
                    if let Some(&index) = self.tables.index_of.get(&buffer) {
                        self.carried[index] += skipped;
                    }
                }
                _ => {}
            }
        }
    }

    /// Compares a buffer before a loop, after its first and after its last repetition.
    fn check_loop(&mut self, index: usize, before: &Progress, first: &Progress, last: &Progress) {
        let chunked = &self.tables.buffers[index];
        let body_tokens = first.written - before.written;
        let mut consumed = before.consumed.iter().zip(&first.consumed);
        let is_even = consumed.all(|(before, after)| after - before == body_tokens);
        let chunk_count = if chunked.head == 0 {
            body_tokens / chunked.chunk
        } else {
            first.carried - before.carried
        };
        let is_whole =
            is_even && chunk_count > 0 && body_tokens == chunk_count.saturating_mul(chunked.chunk);

        let stays = if chunked.head == 0 {
            let mut consumed = before.consumed.iter().zip(&last.consumed);
            chunked.is_one_chunk(before.written, last.written)
                && consumed.all(|(before, after)| chunked.is_one_chunk(*before, *after))
        } else {
            first.carried == before.carried
        };

        if !is_whole && !stays {
            let plan = self.cx.id;
            let error = VerifyError::ChunkLoop {
                plan,
                device: self.device,
                buffer: chunked.id,
            };
            let key = (plan.0.into(), chunked.id.0.into());
            self.errors.push_once(key, error);
        }
    }

    fn execute(&mut self, slot: &Slot) {
        let tables = self.tables;
        match slot.action {
            Action::Fire { actor, count, .. } => {
                for &index in tables.outputs.get(&actor).into_iter().flatten() {
                    self.errors.budget.take(1);
                    self.write(index, count);
                }
                self.fired[actor] += count;
            }
            Action::Carry { buffer } => {
                if let Some(&index) = tables.index_of.get(&buffer) {
                    self.carry(index, slot.stage);
                }
            }
            _ => {}
        }
    }

    fn write(&mut self, index: usize, count: u64) {
        let chunked = &self.tables.buffers[index];
        let first = self.fired[chunked.writer] * chunked.write_rate;
        let end = first + count * chunked.write_rate;
        if chunked.head == 0 && first > 0 && first.is_multiple_of(chunked.chunk) {
            // A new chunk in the place of the one before.
            self.drop_before(index, first);
        }

        let start = if chunked.head == 0 {
            first / chunked.chunk * chunked.chunk
        } else {
            self.carried[index].saturating_mul(chunked.chunk)
        };
        let limit = start.saturating_add(chunked.chunk);
        if first < start || end > limit {
            let plan = self.cx.id;
            let error = VerifyError::ChunkWrite {
                plan,
                buffer: chunked.id,
                actor: chunked.writer,
                first,
                end,
                start,
                limit,
            };
            self.report(index, usize::MAX, error);
        }
    }

    fn carry(&mut self, index: usize, stage: u32) {
        let chunked = &self.tables.buffers[index];
        let written = self.fired[chunked.writer] * chunked.write_rate;
        self.carried[index] += 1;
        let end = self.carried[index].saturating_mul(chunked.chunk);
        if written < end {
            let plan = self.cx.id;
            let error = VerifyError::ReadBeforeWrite {
                plan,
                access: Access::Carry(chunked.id),
                buffer: chunked.id,
                needed: end as i64,
                written,
                read_stage: stage,
                write_stage: stage,
            };
            self.report(index, usize::MAX, error);
        }
        self.drop_before(index, end);
    }

    /// The chunk before token `end` goes; what the head keeps of it stays.
    fn drop_before(&mut self, index: usize, end: u64) {
        let tables = self.tables;
        let chunked = &tables.buffers[index];
        let kept = end as i64 - chunked.head as i64;
        self.errors.budget.take(chunked.readers.len() as u64);
        for (number, reader) in chunked.readers.iter().enumerate() {
            let needed = (self.fired[reader.actor] * reader.rate) as i64 - reader.delay as i64;
            if needed < kept {
                let plan = self.cx.id;
                let error = VerifyError::ChunkDropped {
                    plan,
                    access: Access::Input(reader.actor, reader.port),
                    buffer: chunked.id,
                    needed,
                    kept,
                };
                self.report(index, number, error);
            }
        }
    }

    /// Once for each code and reader of a buffer.
    fn report(&mut self, index: usize, reader: usize, error: VerifyError) {
        let buffer = self.tables.buffers[index].id;
        let key = (u64::from(self.cx.id.0) << 32) | u64::from(buffer.0);
        self.errors.push_once((key, reader as u64), error);
    }
}
