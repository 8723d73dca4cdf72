//! Order on each device, over all blocks in flight: reads after the writes and carries that they need, and before
//! whatever overwrites them.
//!
//! A slot of stage s works in period p on block p − s. So what a slot of stage s reads of block b was written by
//! slots of stage w in the same period if s = w, d periods ago if s = w + d, and is overwritten by block b + K
//! (K places) from period b + K + w on, which is the same period if s = w + K. Larger differences decide by
//! themselves; equal ones are decided by what has been done so far in the period, which one walk over the lane
//! counts. Carries work alike: the head that a read of block b sees is written by the carry of block b − 1, and
//! overwritten by the carry of block b − 1 + K.
//!
//! What an actor writes over its input destroys that for everybody else: no one may read it once the actor has begun.
//! The actor itself reads just the bytes that it writes next, so that of each firing only the order counts.

use std::collections::BTreeMap;

use super::buffers::BufferOf;
use super::cursor::{Node, Visitor};
use super::{Cx, Lanes, Stages};
use crate::verify::error::{Access, Errors, VerifyError};
use crate::{Action, ActorId, Buffer, BufferId, Over, RingId, Slot, TiVec};

/// Executions `[first, last]` of a lane in which a buffer is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Live {
    pub(super) first: u64,
    pub(super) last: u64,
}

/// What fills a buffer.
#[derive(Clone, Copy)]
enum Feed {
    /// The writer on the same device; tokens of one firing.
    Writer(ActorId, u64),
    /// A ring.
    Ring(RingId),
}

/// A buffer as its accesses see it.
#[derive(Clone, Copy)]
struct Fed {
    feed: Feed,
    /// Stage of the slots that write or receive.
    stage: u32,
    /// Stage of the carry, if there is one.
    carry: Option<u32>,
    /// Stage of the release, for a ring.
    release: u32,
    /// Whether all slots that use the buffer have the same stage so far.
    one_stage: bool,
    live: Option<Live>,
}

/// An input port of an actor; state ports are left out.
struct Input {
    port: u32,
    buffer: BufferId,
    rate: u64,
    window: u64,
    delay: u64,
}

impl Input {
    /// The first token that a firing reads, counted from the first new one of the block.
    fn first_token(&self, firing: u64) -> i64 {
        // Token positions are below 2^46 + 2^32: the plan's blocks have been bounded.
        (firing * self.rate) as i64 - self.delay as i64
    }
}

/// Ports of all actors, by the buffers they use.
struct Ports {
    inputs: TiVec<ActorId, Vec<Input>>,
    outputs: TiVec<ActorId, Vec<BufferId>>,
    /// The sender's buffer of each ring.
    senders: TiVec<RingId, BufferId>,
}

/// Checks the order on every device. Returns when each buffer is live in the period, `None` for always.
pub(super) fn check(
    cx: &Cx<'_>,
    lanes: &Lanes<'_>,
    stages: &Stages,
    (buffer_of, over): (&BufferOf, &[Over]),
    errors: &mut Errors,
) -> TiVec<BufferId, Option<Live>> {
    let buffer_ports = find_ports(cx, buffer_of);
    let fed_buffers = find_feeds(cx, stages);
    let (Some(ports), Some(fed)) = (buffer_ports, fed_buffers) else {
        // Tables and counts have been checked: every lookup succeeds.
        return vec![None; cx.plan.buffers.len()].into();
    };

    let ring_count = cx.plan.rings.len();
    let buffer_count = cx.plan.buffers.len();
    let mut walk = Walk {
        cx,
        ports: &ports,
        fed,
        fired: vec![0; cx.graph.actors.len()].into(),
        sent: vec![0; ring_count].into(),
        received: vec![0; ring_count].into(),
        released: vec![false; ring_count].into(),
        carried: vec![false; buffer_count].into(),
        over,
        begun: vec![None; buffer_count].into(),
        entered: None,
        errors,
    };

    for (_, flat) in &lanes.list {
        flat.visit(&mut walk);
        if walk.errors.full() {
            break;
        }
    }

    let fed_buffers = walk.fed.iter().zip(&cx.plan.buffers);
    fed_buffers
        .map(|(fed, buffer)| live_range(fed, buffer))
        .collect()
}

/// When a buffer is live in the period; `None` for always.
fn live_range(fed: &Fed, buffer: &Buffer) -> Option<Live> {
    // Another device may write a ring's place at any time: such buffers are always live.
    let is_local = matches!(fed.feed, Feed::Writer(..));
    let is_within_period = fed.one_stage && buffer.blocks == 1 && buffer.head_tokens == 0;
    fed.live.filter(|_| is_local && is_within_period)
}

fn find_ports(cx: &Cx<'_>, buffer_of: &BufferOf) -> Option<Ports> {
    let mut inputs = TiVec::with_capacity(cx.graph.actors.len());
    let mut outputs = TiVec::with_capacity(cx.graph.actors.len());
    for (id, actor) in cx.graph.actors.iter_enumerated() {
        let device = cx.plan.placement[id];

        // State ports are left out: a state is read and written in place.
        let mut actor_inputs = Vec::new();
        let joined_ports = actor.inputs.iter().zip(&cx.ports.inputs[id]);
        for (index, (port, joined)) in (0..).zip(joined_ports) {
            let (channel, reader) = (*joined)?;
            if !cx.is_state[channel] {
                let delay = cx.graph.channels[channel].readers[reader as usize].delay;
                actor_inputs.push(Input {
                    port: index,
                    buffer: *buffer_of.get(&(channel, device))?,
                    rate: port.rate,
                    window: port.window,
                    delay,
                });
            }
        }

        inputs.push(actor_inputs);

        let channels = cx.ports.outputs[id].iter();
        let output_buffers = channels.map(|&channel| buffer_of.get(&(channel?, device)).copied());
        outputs.push(output_buffers.collect::<Option<Vec<_>>>()?);
    }

    let rings = cx.plan.rings.iter();
    let senders = rings.map(|ring| buffer_of.get(&(ring.channel, ring.from)).copied());
    Some(Ports {
        inputs,
        outputs,
        senders: senders.collect::<Option<_>>()?,
    })
}

fn find_feeds(cx: &Cx<'_>, stages: &Stages) -> Option<TiVec<BufferId, Fed>> {
    // A buffer that a ring fills is written by receipts, any other by the writer itself.
    let mut ring_of: TiVec<BufferId, Option<RingId>> = vec![None; cx.plan.buffers.len()].into();
    for (id, ring) in cx.plan.rings.iter_enumerated() {
        ring_of[ring.buffer] = Some(id);
    }

    let mut fed_buffers = TiVec::with_capacity(cx.plan.buffers.len());
    for (id, buffer) in cx.plan.buffers.iter_enumerated() {
        let writer = cx.graph.channels[buffer.channel].from;
        let write_rate = cx.graph.actors[writer.actor].outputs[writer.port as usize].rate;
        fed_buffers.push(match ring_of[id] {
            Some(ring) => Fed {
                feed: Feed::Ring(ring),
                stage: stages.recv[ring]?,
                carry: stages.carry[id],
                release: stages.release[ring]?,
                one_stage: true,
                live: None,
            },
            None => Fed {
                feed: Feed::Writer(writer.actor, write_rate),
                stage: stages.fire[writer.actor]?,
                carry: stages.carry[id],
                release: 0,
                one_stage: true,
                live: None,
            },
        });
    }

    Some(fed_buffers)
}

struct Walk<'w> {
    cx: &'w Cx<'w>,
    ports: &'w Ports,
    fed: TiVec<BufferId, Fed>,
    // What has been done so far in this period. Every entry belongs to one device.
    fired: TiVec<ActorId, u64>,
    sent: TiVec<RingId, u64>,
    received: TiVec<RingId, u64>,
    released: TiVec<RingId, bool>,
    carried: TiVec<BufferId, bool>,
    /// In the order of actors.
    over: &'w [Over],
    /// Who has begun to write over a buffer, and the input by which it alone may read it.
    begun: TiVec<BufferId, Option<(ActorId, u32)>>,
    /// What had been fired and sent before the loop at work, of which only the first and the last repetitions are seen.
    entered: Option<Entered>,
    errors: &'w mut Errors,
}

/// Firings of actors and tokens of rings before a loop, where that is not 0.
#[derive(Default)]
struct Entered {
    fired: BTreeMap<ActorId, u64>,
    sent: BTreeMap<RingId, u64>,
}

/// What is read of a buffer's block.
#[derive(Clone, Copy)]
struct Span {
    /// First token, counted from the first new token of the block; negative in the head.
    start: i64,
    /// After the last token.
    end: i64,
    /// First token of the same reader's earliest execution in the loop at work.
    earliest: i64,
}

/// Steps that an execution of a slot takes at most, here and in the count of firings.
pub(super) fn steps(cx: &Cx<'_>, slot: &Slot) -> u64 {
    const SLOT_STEPS: u64 = 4;
    match slot.action {
        Action::Fire { actor, .. } => {
            let data = &cx.graph.actors[actor];
            SLOT_STEPS + (data.inputs.len() + data.outputs.len()) as u64
        }
        _ => SLOT_STEPS + 1,
    }
}

impl Visitor for Walk<'_> {
    fn execute(&mut self, slot: &Slot, position: u64, _is_first: bool) {
        self.errors.budget.take(1);
        self.run_action(&slot.action, slot.stage, position);
    }

    fn enter(&mut self, body: &[Node<'_>]) {
        self.errors.budget.take(body.len() as u64);

        // Only counts other than 0 are kept: most actors of a loop fire in it alone.
        let mut entered = Entered::default();
        for node in body {
            let Node::Slot { slot, .. } = node else {
                continue;
            };
            match slot.action {
                Action::Fire { actor, .. } if self.fired[actor] > 0 => {
                    entered.fired.insert(actor, self.fired[actor]);
                }
                Action::Send { ring, .. } if self.sent[ring] > 0 => {
                    entered.sent.insert(ring, self.sent[ring]);
                }
                _ => {}
            }
        }

        self.entered = Some(entered);
    }

    fn leave(&mut self) {
        self.entered = None;
    }

    fn skip(&mut self, slot: &Slot, executions: u64) {
        self.errors.budget.take(1);
        match slot.action {
            Action::Fire { actor, count, .. } => self.fired[actor] += count * executions,
            Action::Send { ring, count, .. } => self.sent[ring] += count * executions,
            Action::Recv { ring, count, .. } => self.received[ring] += count * executions,
            Action::Release { .. }
            | Action::Carry { .. }
            | Action::Fetch { .. }
            | Action::Await { .. } => {}
        }
    }

    fn is_done(&self) -> bool {
        self.errors.full()
    }
}

impl Walk<'_> {
    fn run_action(&mut self, action: &Action, stage: u32, position: u64) {
        match *action {
            Action::Fire { actor, count, .. } => self.fire(actor, count, stage, position),
            Action::Send { ring, count, .. } => self.send(ring, count, stage, position),
            Action::Recv { ring, count, .. } => self.receive(ring, count, stage),
            Action::Release { ring } => self.released[ring] = true,
            Action::Carry { buffer } => self.carry(buffer, stage, position),
            // Of no buffer's tokens: `weights.rs`.
            Action::Fetch { .. } | Action::Await { .. } => {}
        }
    }

    fn fire(&mut self, actor: ActorId, count: u64, stage: u32, position: u64) {
        let ports = self.ports;
        let first_firing = self.fired[actor];
        if first_firing == 0 {
            self.mark_overwritten(actor);
        }

        // In a loop only the first and last repetitions are seen: the earliest stands for those between.
        let earliest_firing = match &self.entered {
            Some(entered) => entered.fired.get(&actor).copied().unwrap_or(0),
            None => first_firing,
        };
        for input in &ports.inputs[actor] {
            self.errors.budget.take(1);
            let start = input.first_token(first_firing);
            let span = Span {
                start,
                end: start + ((count - 1) * input.rate + input.window) as i64,
                earliest: input.first_token(earliest_firing),
            };

            let access = Access::Input(actor, input.port);
            self.read(input.buffer, access, stage, span, position);
        }

        for &buffer in &ports.outputs[actor] {
            self.errors.budget.take(1);
            self.touch(buffer, stage, position);
        }

        self.fired[actor] += count;
    }

    fn send(&mut self, ring: RingId, count: u64, stage: u32, position: u64) {
        let first_token = self.sent[ring];
        let earliest_token = match &self.entered {
            Some(entered) => entered.sent.get(&ring).copied().unwrap_or(0),
            None => first_token,
        };
        let span = Span {
            start: first_token as i64,
            end: (first_token + count) as i64,
            earliest: earliest_token as i64,
        };

        self.sent[ring] += count;
        let buffer = self.ports.senders[ring];
        self.read(buffer, Access::Send(ring), stage, span, position);
    }

    fn receive(&mut self, ring: RingId, count: u64, stage: u32) {
        self.received[ring] += count;
        let release_stage = self.fed[self.cx.plan.rings[ring].buffer].release;
        if self.is_released(ring, release_stage, stage) {
            let plan = self.cx.id;
            let error = VerifyError::RecvAfterRelease {
                plan,
                ring,
                recv_stage: stage,
                release_stage,
            };
            self.errors.push_once((plan.0.into(), ring.0.into()), error);
        }
    }

    /// Whether a slot of a stage comes after the release of the block that it works on.
    fn is_released(&self, ring: RingId, release_stage: u32, stage: u32) -> bool {
        stage > release_stage || (stage == release_stage && self.released[ring])
    }

    fn carry(&mut self, buffer: BufferId, stage: u32, position: u64) {
        let data = &self.cx.plan.buffers[buffer];
        if data.is_chunked() {
            // Which tokens these are depends on the chunk: `chunks.rs` knows.
            self.touch(buffer, stage, position);
            return;
        }

        // The last tokens of the block become the head of the next one.
        let end = data.block_tokens as i64;
        let start = end - data.head_tokens as i64;
        let span = Span {
            start,
            end,
            earliest: start,
        };
        self.read(buffer, Access::Carry(buffer), stage, span, position);
        self.carried[buffer] = true;
    }

    /// Notes what an actor destroys with its first firing.
    fn mark_overwritten(&mut self, actor: ActorId) {
        let first_pair = self.over.partition_point(|over| over.actor < actor);
        let pairs = self.over[first_pair..].iter();
        for over in pairs.take_while(|over| over.actor == actor) {
            self.begun[over.below].get_or_insert((actor, over.ports.input));
        }
    }

    fn touch(&mut self, buffer: BufferId, stage: u32, position: u64) {
        let fed = &mut self.fed[buffer];
        fed.one_stage &= stage == fed.stage;
        let first = fed.live.map_or(position, |live| live.first);
        fed.live = Some(Live {
            first,
            last: position,
        });
    }

    fn read(&mut self, buffer: BufferId, access: Access, stage: u32, span: Span, position: u64) {
        self.touch(buffer, stage, position);

        // Three dangers: bytes written over in place, tokens not yet or no longer there, and a history not carried.
        self.read_below(buffer, access);
        let fed = self.fed[buffer];
        if span.end > 0 {
            self.read_block(buffer, &fed, access, stage, span);
        }
        if span.start < 0 && !self.cx.plan.buffers[buffer].is_chunked() {
            self.read_head(buffer, &fed, access, stage);
        }
        if let Feed::Ring(ring) = fed.feed
            && self.is_released(ring, fed.release, stage)
        {
            let error = VerifyError::ReadAfterRelease {
                plan: self.cx.id,
                access,
                ring,
                read_stage: stage,
                release_stage: fed.release,
            };

            self.report(buffer, access, error);
        }
    }

    /// Nobody but the actor itself may read what it has begun to write over, and it by one port only.
    fn read_below(&mut self, buffer: BufferId, access: Access) {
        let Some((actor, input)) = self.begun[buffer] else {
            return;
        };
        if access != Access::Input(actor, input) {
            let plan = self.cx.id;
            self.report(
                buffer,
                access,
                VerifyError::InPlaceRead {
                    plan,
                    access,
                    buffer,
                    actor,
                },
            );
        }
    }

    fn read_block(&mut self, buffer: BufferId, fed: &Fed, access: Access, stage: u32, span: Span) {
        let plan = self.cx.id;
        let Span {
            start,
            end,
            earliest,
        } = span;
        let written = match fed.feed {
            Feed::Writer(actor, rate) => self.fired[actor] * rate,
            Feed::Ring(ring) => self.received[ring],
        };
        let read_stage = stage;
        let write_stage = fed.stage;

        // In the same stage the walk has counted what was written before this read.
        if stage < fed.stage || (stage == fed.stage && (written as i64) < end) {
            let written = if stage < fed.stage { 0 } else { written };
            let error = VerifyError::ReadBeforeWrite {
                plan,
                access,
                buffer,
                needed: end,
                written,
                read_stage,
                write_stage,
            };

            self.report(buffer, access, error);
        }

        if matches!(fed.feed, Feed::Ring(_)) {
            // The sender waits for the release, and the release for the reads.
            return;
        }

        let blocks = self.cx.plan.buffers[buffer].blocks;
        let reuse_stage = u64::from(fed.stage) + u64::from(blocks);
        let stage = u64::from(stage);

        // In a loop all slots have one stage. So if the writer overwrites in the very stage of the reader, it is not in
        // the loop, and `written` is the same in all repetitions. The reader's executions follow each other by less than
        // a window: if the earliest ends before what is written and a later one reads of the block, one of them does both.
        if stage > reuse_stage || (stage == reuse_stage && written as i64 > earliest.max(0)) {
            let error = VerifyError::ReadOverwritten {
                plan,
                access,
                buffer,
                first: start,
                written,
                read_stage,
                write_stage,
                blocks,
            };

            self.report(buffer, access, error);
        }
    }

    fn read_head(&mut self, buffer: BufferId, fed: &Fed, access: Access, stage: u32) {
        // A head without a carry has been reported by the count of carries.
        let Some(carry_stage) = fed.carry else { return };
        let plan = self.cx.id;
        let carried = self.carried[buffer];
        let blocks = self.cx.plan.buffers[buffer].blocks;
        let read_stage = stage;

        // The head of block b is written by the carry of block b - 1, which is one stage further in the same period.
        let head_stage = u64::from(stage) + 1;
        let carry = u64::from(carry_stage);
        if carry > head_stage || (carry == head_stage && !carried) {
            let error = VerifyError::HeadNotCarried {
                plan,
                access,
                buffer,
                read_stage,
                carry_stage,
            };

            self.report(buffer, access, error);
        }

        let reuse_stage = carry + u64::from(blocks);
        if head_stage > reuse_stage || (head_stage == reuse_stage && carried) {
            let error = VerifyError::HeadOverwritten {
                plan,
                access,
                buffer,
                read_stage,
                carry_stage,
                blocks,
            };

            self.report(buffer, access, error);
        }
    }

    /// Once for each reader of a buffer.
    fn report(&mut self, buffer: BufferId, access: Access, error: VerifyError) {
        let reader = match access {
            Access::Input(actor, port) => (u64::from(actor.0) << 16) | u64::from(port),
            Access::Send(ring) => u64::from(ring.0) | (1 << 60),
            Access::Carry(buffer) => u64::from(buffer.0) | (1 << 61),
        };
        let plan = u64::from(self.cx.id.0);
        self.errors
            .push_once(((plan << 32) | u64::from(buffer.0), reader), error);
    }
}
