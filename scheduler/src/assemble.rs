//! From a placement to a plan: stages, buffers and rings, lanes in order, times.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use zbmd_ir::{
    Action, ActorId, Buffer, BufferId, Calendar, ChannelId, DeviceId, Entry, Lane, LaneKind, Plan,
    Region, Ring, RingId, Role, Slot, TiVec, limits, walk,
};

use crate::chunks;
use crate::cluster::ClusterCall;
use crate::cost::{PS_PER_NS, RECV_PS, RELEASE_NS, SEND_PS};
use crate::error::ScheduleError;
use crate::layout;
use crate::problem::BlockProblem;

/// What the readers of a channel on one device need of it.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceReaders {
    /// Largest delay of the readers on the device.
    head_tokens: u64,
    min_stage: u32,
    max_stage: u32,
}

/// A lane under construction.
#[derive(Default)]
struct LaneDraft {
    entries: Vec<Entry>,
    /// End of the last entry.
    now_ns: u64,
    busy_ns: u64,
    /// Rings that have their receive already.
    received: BTreeSet<RingId>,
}

struct Assembly<'p, 'a> {
    problem: &'p BlockProblem<'a>,
    /// Device of each cluster.
    placement: &'p [DeviceId],
    /// Stage of each cluster.
    stage_of: Vec<u32>,
    buffers: TiVec<BufferId, Buffer>,
    rings: TiVec<RingId, Ring>,
    rings_of: TiVec<ChannelId, Vec<RingId>>,
    ring_into: BTreeMap<(ChannelId, DeviceId), RingId>,
    readers: BTreeMap<(ChannelId, DeviceId), DeviceReaders>,
    /// End of the last send of each ring within the period, for receivers in the same stage.
    sent_ns: TiVec<RingId, u64>,
    drafts: BTreeMap<DeviceId, LaneDraft>,
}

/// Makes the plan of a placement: `placement` and `stage_of` name the device and the stage of each cluster.
///
/// Where a cluster depends on another device in the same stage, it waits for it within the period.
///
/// # Errors
/// [`ScheduleError`] where sizes overflow or a link is missing.
pub(crate) fn assemble(
    problem: &BlockProblem<'_>,
    placement: &[DeviceId],
    stage_of: Vec<u32>,
    name: &str,
) -> Result<Plan, ScheduleError> {
    let mut plan = assemble_times(problem, placement, stage_of, name)?;
    match layout::lay_out(problem, &mut plan) {
        // What does not fit as a whole may fit a chunk at a time.
        Err(refusal @ ScheduleError::Memory { .. }) => {
            chunks::first_that_fits(problem, &plan, |_| true).ok_or(refusal)
        }
        outcome => outcome.map(|()| plan),
    }
}

/// As [`assemble`], but the buffers have no offsets yet: for searches, which look at the times only.
///
/// # Errors
/// As [`assemble`].
pub(crate) fn assemble_times(
    problem: &BlockProblem<'_>,
    placement: &[DeviceId],
    stage_of: Vec<u32>,
    name: &str,
) -> Result<Plan, ScheduleError> {
    let mut assembly = Assembly {
        problem,
        placement,
        stage_of,
        buffers: TiVec::new(),
        rings: TiVec::new(),
        rings_of: problem.graph.channels.iter().map(|_| Vec::new()).collect(),
        ring_into: BTreeMap::new(),
        readers: BTreeMap::new(),
        sent_ns: TiVec::new(),
        drafts: BTreeMap::new(),
    };
    assembly.find_readers();
    assembly.make_buffers()?;

    // Later stages first: they work on older blocks, whose inputs a period before has brought, and end the sooner.
    let mut order = problem.order.clone();
    order.sort_by_key(|&cluster| Reverse(assembly.stage_of[cluster]));
    if placement.iter().all(|device| *device == placement[0]) {
        order = with_early_sinks(problem, &depth_first(problem, &order));
    }
    for cluster in order {
        assembly.receive_for(cluster);
        assembly.fire(cluster);
        assembly.send_from(cluster);
    }
    assembly.close_periods();

    Ok(assembly.finish(name))
}

/// Each cluster right before the first one that needs it, and of those that one needs the deepest first: tokens are read while the
/// cache still has them, and few have to be kept at a time. On one device every order takes as long otherwise.
///
/// Source: Sethi & Ullman 1970, The generation of optimal code for arithmetic expressions, J. ACM 17(4), for trees.
fn depth_first(problem: &BlockProblem<'_>, order: &[usize]) -> Vec<usize> {
    let inputs_of = |cluster: usize| {
        let inputs = problem.tight_inputs_of[cluster].iter();
        inputs.map(|input| input.writer)
    };
    let mut depth_of = vec![0; order.len()];
    let mut is_needed = vec![false; order.len()];
    for &cluster in order {
        for input in inputs_of(cluster) {
            depth_of[cluster] = depth_of[cluster].max(depth_of[input] + 1);
            is_needed[input] = true;
        }
    }

    let mut depth_first = Vec::with_capacity(order.len());
    let mut is_visited = vec![false; order.len()];
    // Clusters to be visited, and those to be given out, which come back when all that they need is.
    let mut stack: Vec<(usize, bool)> = Vec::new();
    for &root in order.iter().filter(|&&root| !is_needed[root]) {
        stack.push((root, false));
        while let Some((cluster, is_ready)) = stack.pop() {
            if is_ready {
                depth_first.push(cluster);
            } else if !std::mem::replace(&mut is_visited[cluster], true) {
                stack.push((cluster, true));
                let mut inputs: Vec<usize> = inputs_of(cluster).collect();
                inputs.sort_by_key(|&input| depth_of[input]);
                stack.extend(inputs.into_iter().map(|input| (input, false)));
            }
        }
    }
    depth_first
}

/// The order with each sink right behind what it reads, where the tokens still are in the cache, and after which their memory is free
/// sooner. Where several devices wait for each other, what is on the longest path had better come first.
fn with_early_sinks(problem: &BlockProblem<'_>, order: &[usize]) -> Vec<usize> {
    let mut position_of = vec![0; order.len()];
    for (position, &cluster) in order.iter().enumerate() {
        position_of[cluster] = position;
    }

    let is_sink = |cluster: usize| {
        let members = &problem.clusters.all[cluster].members;
        let mut roles = members
            .iter()
            .map(|&actor| problem.graph.actors[actor].role);
        roles.all(|role| role == Role::Sink)
    };
    let mut early = order.to_vec();
    early.sort_by_key(|&cluster| {
        let inputs = problem.tight_inputs_of[cluster].iter();
        let last_input = inputs.map(|input| position_of[input.writer]).max();
        match last_input {
            Some(last_input) if is_sink(cluster) => (last_input, true),
            _ => (position_of[cluster], false),
        }
    });
    early
}

impl Assembly<'_, '_> {
    fn stage(&self, actor: ActorId) -> u32 {
        self.stage_of[self.problem.cluster_of(actor)]
    }

    fn device(&self, actor: ActorId) -> DeviceId {
        self.placement[self.problem.cluster_of(actor)]
    }

    fn draft(&mut self, device: DeviceId) -> &mut LaneDraft {
        self.drafts.entry(device).or_default()
    }

    fn find_readers(&mut self) {
        for (id, channel) in self.problem.graph.channels.iter_enumerated() {
            for reader in &channel.readers {
                let stage = self.stage(reader.to.actor);
                let device = self.device(reader.to.actor);
                let readers = self.readers.entry((id, device)).or_insert(DeviceReaders {
                    head_tokens: 0,
                    min_stage: stage,
                    max_stage: stage,
                });
                readers.head_tokens = readers.head_tokens.max(reader.delay);
                readers.min_stage = readers.min_stage.min(stage);
                readers.max_stage = readers.max_stage.max(stage);
            }
        }
    }

    /// Makes the buffers of each channel: one on the writer's device, and with its ring one on each other device that
    /// has a reader.
    fn make_buffers(&mut self) -> Result<(), ScheduleError> {
        let graph = self.problem.graph;

        for (id, channel) in graph.channels.iter_enumerated() {
            let home_device = self.device(channel.from.actor);
            let writer_stage = self.stage(channel.from.actor);
            let block_tokens = self.problem.block_tokens(id)?;
            let mut buffer = Buffer {
                channel: id,
                device: home_device,
                region: Region::Arena,
                offset_bytes: 0,
                stride_bytes: 0,
                blocks: 1,
                head_tokens: 1,
                block_tokens: 0,
                chunk_tokens: 0,
            };
            // A state has one place of one token, which each firing replaces.
            if graph.is_state(id) {
                self.add_buffer(buffer)?;
                continue;
            }

            buffer.head_tokens = 0;
            buffer.block_tokens = block_tokens;
            buffer.chunk_tokens = block_tokens;
            // Readers of later stages still need the blocks before: a place more for each stage.
            if let Some(local) = self.readers.get(&(id, home_device)) {
                buffer.head_tokens = local.head_tokens;
                buffer.blocks = local.max_stage - writer_stage + 1;
            }
            self.add_buffer(buffer.clone())?;

            // One ring for each other device, however many readers it has there.
            let all_devices = (id, DeviceId(0))..=(id, DeviceId(u32::MAX));
            let remote_readers: Vec<(DeviceId, DeviceReaders)> = self
                .readers
                .range(all_devices)
                .map(|(&(_, device), &readers)| (device, readers))
                .filter(|&(device, _)| device != home_device)
                .collect();
            for (device, readers) in remote_readers {
                buffer.device = device;
                buffer.region = Region::Exchange;
                buffer.head_tokens = readers.head_tokens;
                // One place more than the lag, so that the sender runs ahead of a receiver that is a little late.
                buffer.blocks = readers.max_stage - writer_stage + 2;
                self.add_ring(buffer.clone(), home_device)?;
            }
        }
        Ok(())
    }

    fn add_ring(&mut self, buffer: Buffer, from: DeviceId) -> Result<(), ScheduleError> {
        let channel = buffer.channel;
        let to = buffer.device;
        if self.problem.link(from, to).is_none() {
            return Err(ScheduleError::NoLink { channel, from, to });
        }

        // The ring's data is the receiver's buffer.
        let buffer = self.add_buffer(buffer)?;
        let ring = self.rings.push_and_get_key(Ring {
            channel,
            from,
            to,
            buffer,
        });
        self.sent_ns.push(0);
        self.rings_of[channel].push(ring);
        self.ring_into.insert((channel, to), ring);
        Ok(())
    }

    /// Adds a buffer, whose stride follows from its tokens.
    fn add_buffer(&mut self, mut buffer: Buffer) -> Result<BufferId, ScheduleError> {
        let too_big = ScheduleError::TooBig {
            channel: buffer.channel,
            block: self.problem.block,
        };
        if buffer.blocks > limits::MAX_BLOCKS {
            return Err(too_big);
        }

        // Every place begins aligned, and has its history before its block. A buffer without tokens still has an address.
        let token_bytes = self.problem.graph.channels[buffer.channel].token.bytes();
        buffer.stride_bytes = buffer
            .head_tokens
            .checked_add(buffer.block_tokens)
            .and_then(|tokens| tokens.checked_mul(token_bytes))
            .and_then(|bytes| bytes.checked_next_multiple_of(limits::ALIGN_BYTES))
            .map(|bytes| bytes.max(limits::ALIGN_BYTES))
            .filter(|&bytes| bytes <= limits::MAX_ARENA_BYTES)
            .ok_or(too_big)?;
        Ok(self.buffers.push_and_get_key(buffer))
    }

    /// Appends a slot that starts at `earliest_ns` or later; returns its end.
    fn push_slot(
        &mut self,
        device: DeviceId,
        stage: u32,
        earliest_ns: u64,
        duration_ns: u64,
        action: Action,
    ) -> u64 {
        let lane_draft = self.draft(device);
        let start_ns = lane_draft.now_ns.max(earliest_ns);
        lane_draft.now_ns = start_ns.saturating_add(duration_ns);
        lane_draft.busy_ns = lane_draft.busy_ns.saturating_add(duration_ns);
        lane_draft.entries.push(Entry::Slot(Slot {
            stage,
            start_ns,
            duration_ns,
            action,
        }));
        lane_draft.now_ns
    }

    /// Receives a ring's block, unless its device has done so already.
    fn receive(&mut self, ring: RingId) {
        let Ring {
            channel,
            from,
            to,
            buffer,
        } = self.rings[ring];
        if !self.draft(to).received.insert(ring) {
            return;
        }

        let reader_stage = self.readers[&(channel, to)].min_stage;
        let writer_actor = self.problem.graph.channels[channel].from.actor;
        // In a later stage the block was sent in an earlier period.
        let earliest_ns = match reader_stage == self.stage(writer_actor) {
            true => {
                let link = self.problem.link(from, to);
                let latency_ns = link.map_or(0, |link| link.latency_ns);
                self.sent_ns[ring].saturating_add(latency_ns)
            }
            false => 0,
        };
        // One receive for the whole block, whatever its readers take at a time.
        let action = Action::Recv {
            ring,
            first: 0,
            count: self.buffers[buffer].block_tokens,
        };
        self.push_slot(to, reader_stage, earliest_ns, RECV_PS / PS_PER_NS, action);
    }

    /// Receives what the cluster is the first on its device to need of this block. What only the next block needs
    /// is received at the end of the period: waiting for it here could deadlock a cycle over two devices.
    fn receive_for(&mut self, cluster: usize) {
        let problem = self.problem;
        let device = self.placement[cluster];

        for input in &problem.tight_inputs_of[cluster] {
            if self.placement[input.writer] == device {
                continue;
            }
            // A reader of a later stage works on a block that an earlier period has received.
            let first_stage = self.readers[&(input.channel, device)].min_stage;
            if self.stage_of[cluster] == first_stage {
                let ring = self.ring_into[&(input.channel, device)];
                self.receive(ring);
            }
        }
    }

    fn fire(&mut self, cluster: usize) {
        let device = self.placement[cluster];
        let start_ns = self.draft(device).now_ns;
        let stage = self.stage_of[cluster];
        let mut lowering = CallLowering::new(self.problem, device, stage, start_ns);
        let calls = self.problem.clusters.all[cluster].calls.iter();
        let entries: Vec<Entry> = calls.map(|call| lowering.lower(call)).collect();
        let end_ns = lowering.now_ns;

        // The calls of a cluster follow one another without waiting.
        let draft = self.draft(device);
        draft.entries.extend(entries);
        draft.busy_ns = draft.busy_ns.saturating_add(end_ns - start_ns);
        draft.now_ns = end_ns;
    }

    fn send_from(&mut self, cluster: usize) {
        let problem = self.problem;
        let stage = self.stage_of[cluster];

        for &actor in &problem.clusters.all[cluster].members {
            for &channel in problem.ports.outputs[actor].iter().flatten() {
                // One ring for each device that reads the channel.
                for ring in self.rings_of[channel].clone() {
                    let Ring {
                        from, to, buffer, ..
                    } = self.rings[ring];

                    // Even a small block takes the time that a send takes at least.
                    let send_ps = problem.send_ps(channel, from, to).max(SEND_PS);
                    let duration_ns = send_ps.div_ceil(PS_PER_NS);
                    let action = Action::Send {
                        ring,
                        first: 0,
                        count: self.buffers[buffer].block_tokens,
                    };
                    self.sent_ns[ring] = self.push_slot(from, stage, 0, duration_ns, action);
                }
            }
        }
    }

    /// What every lane does last: receives that only the next block needs, carries, releases.
    fn close_periods(&mut self) {
        for ring in self.rings.keys() {
            self.receive(ring);
        }

        for buffer in self.buffers.keys() {
            // After the last write of the block and before the first read of the next.
            self.carry(buffer);
        }

        // Places are given back to the sender in the last stage that reads them.
        for ring in self.rings.keys() {
            let Ring { channel, to, .. } = self.rings[ring];
            let stage = self.readers[&(channel, to)].max_stage;
            self.push_slot(to, stage, 0, RELEASE_NS, Action::Release { ring });
        }
    }

    /// Carries a buffer's history over to its next place, if it has any.
    fn carry(&mut self, buffer: BufferId) {
        let Buffer {
            channel,
            device,
            head_tokens,
            ..
        } = self.buffers[buffer];
        if head_tokens == 0 || self.problem.graph.is_state(channel) {
            return;
        }

        let stage = self.readers[&(channel, device)].min_stage;
        let token_bytes = self.problem.graph.channels[channel].token.bytes();
        let duration_ns = self.problem.carry_ns(device, head_tokens, token_bytes);
        self.push_slot(device, stage, 0, duration_ns, Action::Carry { buffer });
    }

    /// The plan without offsets.
    fn finish(mut self, name: &str) -> Plan {
        let problem = self.problem;
        let lane_drafts = std::mem::take(&mut self.drafts);
        let ends_ns = lane_drafts.values().map(|draft| draft.now_ns);
        let period_ns = ends_ns.max().unwrap_or(0).max(1);
        let bound_by = self.describe_bound(&lane_drafts, period_ns);

        let mut stages = 1;
        let mut calendars = Vec::new();
        for (device, draft) in lane_drafts {
            for end in draft.entries.iter().map(entry_end) {
                stages = stages.max(end.stage + 1);
            }
            calendars.push(Calendar {
                device,
                arena_bytes: 0,
                exchange_bytes: 0,
                scratch_offset_bytes: 0,
                scratch_bytes: self.scratch_bytes(device),
                lanes: vec![Lane {
                    kind: LaneKind::Compute,
                    entries: draft.entries,
                }],
            });
        }

        let actors = problem.graph.actors.keys();
        Plan {
            name: name.to_owned(),
            block: problem.block,
            period_ns,
            latency_ns: latency_ns(&calendars, period_ns),
            bound_by,
            stages,
            placement: actors.map(|actor| self.device(actor)).collect(),
            calendars,
            buffers: self.buffers,
            rings: self.rings,
            variants: BTreeMap::new(),
        }
    }

    /// What bounds the period, for people: a device that is busy for at least 20 of 21 parts of it, or waiting.
    fn describe_bound(&self, drafts: &BTreeMap<DeviceId, LaneDraft>, period_ns: u64) -> String {
        let busiest_lane = drafts
            .iter()
            .max_by_key(|&(&device, draft)| (draft.busy_ns, Reverse(device)));
        let Some((&device, draft)) = busiest_lane else {
            return String::new();
        };

        let device_name = &self.problem.machine.devices[device].name;
        match draft.busy_ns + draft.busy_ns / 20 >= period_ns {
            true => device_name.clone(),
            false => format!("waits between devices ({device_name} busiest)"),
        }
    }

    fn scratch_bytes(&self, device: DeviceId) -> u64 {
        let costs = self.problem.costs.table.iter_enumerated();
        // Actors run one at a time, so that they can share what the largest needs.
        costs
            .filter(|&(actor, _)| self.device(actor) == device)
            .filter_map(|(_, row)| row[device])
            .map(|cost| cost.scratch_bytes)
            .max()
            .unwrap_or(0)
    }
}

/// Turns calls into entries with times, one after the other.
pub(crate) struct CallLowering<'p, 'a> {
    problem: &'p BlockProblem<'a>,
    device: DeviceId,
    stage: u32,
    /// Firings of each actor so far.
    fired: BTreeMap<ActorId, u64>,
    now_ns: u64,
}

impl<'p, 'a> CallLowering<'p, 'a> {
    /// Calls of one stage on a device, from `start_ns` on.
    pub(crate) fn new(
        problem: &'p BlockProblem<'a>,
        device: DeviceId,
        stage: u32,
        start_ns: u64,
    ) -> Self {
        Self {
            problem,
            device,
            stage,
            fired: BTreeMap::new(),
            now_ns: start_ns,
        }
    }

    /// End of the calls so far.
    pub(crate) fn end_ns(&self) -> u64 {
        self.now_ns
    }

    pub(crate) fn lower(&mut self, call: &ClusterCall) -> Entry {
        match call {
            &ClusterCall::Fire { actor, count } => Entry::Slot(self.lower_firings(actor, count)),
            &ClusterCall::Carry {
                buffer,
                duration_ns,
            } => Entry::Slot(self.next_slot(duration_ns, Action::Carry { buffer })),
            ClusterCall::Repeat { count, body } => self.lower_loop(*count, body),
        }
    }

    fn next_slot(&mut self, duration_ns: u64, action: Action) -> Slot {
        let start_ns = self.now_ns;
        self.now_ns = start_ns.saturating_add(duration_ns);
        Slot {
            stage: self.stage,
            start_ns,
            duration_ns,
            action,
        }
    }

    fn lower_firings(&mut self, actor: ActorId, count: u64) -> Slot {
        let cost = self.problem.costs.table[actor][self.device];
        let duration_ns = cost.map_or(1, |cost| cost.duration_ns(count));
        let fired = self.fired.entry(actor).or_insert(0);
        let first = *fired;
        *fired += count;
        let action = Action::Fire {
            actor,
            first,
            count,
        };
        self.next_slot(duration_ns, action)
    }

    fn lower_loop(&mut self, count: u64, body: &[ClusterCall]) -> Entry {
        let start_ns = self.now_ns;
        let fired_before = self.fired.clone();
        let entries = body.iter().map(|call| self.lower(call)).collect();

        // One run of the body advanced the counters once; the loop does so `count` times.
        for (actor, fired) in &mut self.fired {
            let in_body = *fired - fired_before.get(actor).copied().unwrap_or(0);
            *fired += in_body * (count - 1);
        }
        let body_ns = self.now_ns - start_ns;
        self.now_ns = start_ns.saturating_add(body_ns.saturating_mul(count));
        Entry::Loop {
            count,
            body: entries,
        }
    }
}

/// Predicted time from a block's first slot to the end of the last that computes or moves its tokens.
pub(crate) fn latency_ns(calendars: &[Calendar], period_ns: u64) -> u64 {
    let lanes = calendars.iter().flat_map(|calendar| &calendar.lanes);
    let ends = lanes.flat_map(|lane| lane.entries.iter().map(entry_end));
    // What makes room for later blocks delays no token of this one.
    let ends = ends.filter(|end| !end.is_housekeeping);
    let latencies = ends.map(|end| {
        // A slot of stage s works on a block that began s periods earlier.
        let stage_ns = period_ns.saturating_mul(u64::from(end.stage));
        stage_ns.saturating_add(end.end_ns)
    });
    latencies.max().unwrap_or(0)
}

/// When an entry ends, and in which stage.
#[derive(Clone, Copy)]
struct EntryEnd {
    stage: u32,
    end_ns: u64,
    /// Whether it only carries history over or releases a place.
    is_housekeeping: bool,
}

/// The end of an entry; a loop's body has one stage.
fn entry_end(entry: &Entry) -> EntryEnd {
    let mut stage = 0;
    let mut is_housekeeping = true;
    walk::visit_slots(std::slice::from_ref(entry), |visit| {
        stage = visit.slot.stage;
        is_housekeeping &= matches!(
            visit.slot.action,
            Action::Carry { .. } | Action::Release { .. } | Action::Fetch { .. }
        );
    });
    EntryEnd {
        stage,
        is_housekeeping,
        end_ns: walk::end_ns(entry),
    }
}
