//! From a placement to a plan: stages, buffers and rings, lanes in order, times.

use std::collections::BTreeMap;

use zbmd_ir::{
    Action, ActorId, Buffer, BufferId, Calendar, ChannelId, DeviceId, Entry, Lane, LaneKind, Plan,
    Region, Ring, RingId, Slot, TiVec, limits,
};

use crate::ScheduleError;
use crate::cluster::Call;
use crate::layout;
use crate::place::{RECV_PS, SEND_PS};
use crate::problem::Problem;

/// Times at which a channel is touched on one device.
#[derive(Clone, Copy, Debug, Default)]
struct Readers {
    /// Largest delay of the readers on the device.
    head: u64,
    min_stage: u32,
    max_stage: u32,
}

/// A lane under construction.
#[derive(Default)]
struct Draft {
    entries: Vec<Entry>,
    /// End of the last entry.
    now_ns: u64,
    busy_ns: u64,
    /// Recv of each ring that has one already.
    received: BTreeMap<RingId, ()>,
}

pub(crate) struct Assembly<'p, 'a> {
    problem: &'p Problem<'a>,
    /// Device of each cluster.
    placement: &'p [DeviceId],
    stage_of: Vec<u32>,
    buffers: TiVec<BufferId, Buffer>,
    rings: TiVec<RingId, Ring>,
    buffer_at: BTreeMap<(ChannelId, DeviceId), BufferId>,
    rings_of: TiVec<ChannelId, Vec<RingId>>,
    ring_into: BTreeMap<(ChannelId, DeviceId), RingId>,
    readers: BTreeMap<(ChannelId, DeviceId), Readers>,
    /// End of the last send of each ring within the period, for receivers in the same stage.
    sent_ns: TiVec<RingId, u64>,
    drafts: BTreeMap<DeviceId, Draft>,
}

/// Makes the plan of a placement.
///
/// With `pipelined`, work that depends on another device runs one stage later, so that no device waits for another
/// within a period; without, all slots are of stage 0 and the latency is one makespan.
///
/// # Errors
/// [`ScheduleError`] where sizes overflow or a link is missing.
pub(crate) fn assemble(
    problem: &Problem<'_>,
    placement: &[DeviceId],
    pipelined: bool,
    name: &str,
) -> Result<Plan, ScheduleError> {
    let mut assembly = Assembly {
        problem,
        placement,
        stage_of: stages(problem, placement, pipelined),
        buffers: TiVec::new(),
        rings: TiVec::new(),
        buffer_at: BTreeMap::new(),
        rings_of: problem.graph.channels.iter().map(|_| Vec::new()).collect(),
        ring_into: BTreeMap::new(),
        readers: BTreeMap::new(),
        sent_ns: TiVec::new(),
        drafts: BTreeMap::new(),
    };
    assembly.find_readers();
    assembly.make_buffers()?;
    for &cluster in &problem.order {
        assembly.receive_for(cluster);
        assembly.fire(cluster);
        assembly.send_from(cluster);
    }
    assembly.close_periods();
    assembly.finish(name)
}

/// Stage of each cluster. Clusters of one strongly connected component share a stage, because each depends on the
/// others' last block; along every other edge stages do not fall.
fn stages(problem: &Problem<'_>, placement: &[DeviceId], pipelined: bool) -> Vec<u32> {
    let components = problem.component_of.iter().max().map_or(0, |m| m + 1);
    let mut incoming: Vec<Vec<(usize, u32)>> = vec![Vec::new(); components];
    let mut outgoing: Vec<Vec<usize>> = vec![Vec::new(); components];
    for edge in &problem.edges.all {
        let (from, to) = (
            problem.cluster_of(edge.writer),
            problem.cluster_of(edge.reader),
        );
        let (a, b) = (problem.component_of[from], problem.component_of[to]);
        if a != b {
            incoming[b].push((a, u32::from(pipelined && placement[from] != placement[to])));
            outgoing[a].push(b);
        }
    }
    let mut waiting: Vec<usize> = incoming.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..components).filter(|&c| waiting[c] == 0).collect();
    let mut stage = vec![0u32; components];
    while let Some(c) = ready.pop() {
        stage[c] = incoming[c]
            .iter()
            .map(|&(from, step)| stage[from] + step)
            .max()
            .unwrap_or(0);
        for &next in &outgoing[c] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.push(next);
            }
        }
    }
    problem.component_of.iter().map(|&c| stage[c]).collect()
}

impl Assembly<'_, '_> {
    fn stage(&self, actor: ActorId) -> u32 {
        self.stage_of[self.problem.cluster_of(actor)]
    }

    fn device(&self, actor: ActorId) -> DeviceId {
        self.placement[self.problem.cluster_of(actor)]
    }

    fn draft(&mut self, device: DeviceId) -> &mut Draft {
        self.drafts.entry(device).or_default()
    }

    fn find_readers(&mut self) {
        for (channel, ch) in self.problem.graph.channels.iter_enumerated() {
            for reader in &ch.readers {
                let stage = self.stage(reader.to.actor);
                let entry = self
                    .readers
                    .entry((channel, self.device(reader.to.actor)))
                    .or_insert(Readers {
                        head: 0,
                        min_stage: stage,
                        max_stage: stage,
                    });
                entry.head = entry.head.max(reader.delay);
                entry.min_stage = entry.min_stage.min(stage);
                entry.max_stage = entry.max_stage.max(stage);
            }
        }
    }

    fn make_buffers(&mut self) -> Result<(), ScheduleError> {
        let graph = self.problem.graph;
        for (channel, ch) in graph.channels.iter_enumerated() {
            let home = self.device(ch.from.actor);
            let stage = self.stage(ch.from.actor);
            let tokens = self.problem.block_tokens(channel)?;
            let local = self.readers.get(&(channel, home)).copied();
            if graph.is_state(channel) {
                self.add_buffer(channel, home, Region::Arena, 1, 1, 0)?;
                continue;
            }
            let lag = local.map_or(0, |r| r.max_stage - stage);
            self.add_buffer(
                channel,
                home,
                Region::Arena,
                lag + 1,
                local.map_or(0, |r| r.head),
                tokens,
            )?;
            let remote: Vec<(DeviceId, Readers)> = self
                .readers
                .range((channel, DeviceId(0))..=(channel, DeviceId(u32::MAX)))
                .filter(|((_, device), _)| *device != home)
                .map(|((_, device), readers)| (*device, *readers))
                .collect();
            for (device, readers) in remote {
                if self.problem.machine.link(home, device).is_none() {
                    return Err(ScheduleError::NoLink {
                        channel,
                        from: home,
                        to: device,
                    });
                }
                // One place more than the lag, so that the sender runs ahead of a receiver that is a little late.
                let blocks = readers.max_stage - stage + 2;
                let buffer = self.add_buffer(
                    channel,
                    device,
                    Region::Exchange,
                    blocks,
                    readers.head,
                    tokens,
                )?;
                let ring = self.rings.push_and_get_key(Ring {
                    channel,
                    from: home,
                    to: device,
                    buffer,
                });
                self.sent_ns.push(0);
                self.rings_of[channel].push(ring);
                self.ring_into.insert((channel, device), ring);
            }
        }
        Ok(())
    }

    fn add_buffer(
        &mut self,
        channel: ChannelId,
        device: DeviceId,
        region: Region,
        blocks: u32,
        head_tokens: u64,
        block_tokens: u64,
    ) -> Result<BufferId, ScheduleError> {
        let too_big = ScheduleError::TooBig {
            channel,
            block: self.problem.block,
        };
        if blocks > limits::MAX_BLOCKS {
            return Err(too_big);
        }
        let token_bytes = self.problem.graph.channels[channel].token.bytes();
        let stride_bytes = head_tokens
            .checked_add(block_tokens)
            .and_then(|n| n.checked_mul(token_bytes))
            .and_then(|n| n.checked_next_multiple_of(limits::ALIGN_BYTES))
            .map(|n| n.max(limits::ALIGN_BYTES))
            .filter(|&n| n <= limits::MAX_ARENA_BYTES)
            .ok_or(too_big)?;
        let id = self.buffers.push_and_get_key(Buffer {
            channel,
            device,
            region,
            offset_bytes: 0,
            stride_bytes,
            blocks,
            head_tokens,
            block_tokens,
        });
        self.buffer_at.insert((channel, device), id);
        Ok(id)
    }

    /// Appends a slot; `at_ns` is the earliest start.
    fn push(
        &mut self,
        device: DeviceId,
        stage: u32,
        at_ns: u64,
        duration_ns: u64,
        action: Action,
    ) -> u64 {
        let draft = self.draft(device);
        let start_ns = draft.now_ns.max(at_ns);
        draft.now_ns = start_ns.saturating_add(duration_ns);
        draft.busy_ns = draft.busy_ns.saturating_add(duration_ns);
        draft.entries.push(Entry::Slot(Slot {
            stage,
            start_ns,
            duration_ns,
            action,
        }));
        draft.now_ns
    }

    fn receive(&mut self, ring: RingId) {
        let Ring {
            channel,
            to,
            buffer,
            ..
        } = self.rings[ring];
        if self.draft(to).received.insert(ring, ()).is_some() {
            return;
        }
        let stage = self.readers[&(channel, to)].min_stage;
        let count = self.buffers[buffer].block_tokens;
        let same_stage = stage == self.stage(self.problem.graph.channels[channel].from.actor);
        let latency = self
            .problem
            .machine
            .link(self.rings[ring].from, to)
            .map_or(0, |l| l.latency_ns);
        let ready = if same_stage {
            self.sent_ns[ring].saturating_add(latency)
        } else {
            0
        };
        self.push(
            to,
            stage,
            ready,
            RECV_PS / 1000,
            Action::Recv {
                ring,
                first: 0,
                count,
            },
        );
    }

    /// Receives what the cluster is the first on its device to need of this block. What only the next block needs
    /// is received at the end of the period: waiting for it here could deadlock a cycle over two devices.
    fn receive_for(&mut self, cluster: usize) {
        let problem = self.problem;
        let device = self.placement[cluster];
        for &(channel, writer) in &problem.tight_inputs_of[cluster] {
            if self.placement[writer] != device {
                let ring = self.ring_into[&(channel, device)];
                self.receive(ring);
            }
        }
    }

    fn fire(&mut self, cluster: usize) {
        let problem = self.problem;
        let device = self.placement[cluster];
        let stage = self.stage_of[cluster];
        let start = self.draft(device).now_ns;
        let mut fired: BTreeMap<ActorId, u64> = BTreeMap::new();
        let mut now = start;
        let mut entries = Vec::new();
        for call in &problem.clusters.all[cluster].calls {
            entries.push(lower(problem, device, stage, call, &mut fired, &mut now));
        }
        let draft = self.draft(device);
        draft.entries.extend(entries);
        draft.busy_ns = draft.busy_ns.saturating_add(now - start);
        draft.now_ns = now;
    }

    fn send_from(&mut self, cluster: usize) {
        let problem = self.problem;
        let stage = self.stage_of[cluster];
        for &actor in &problem.clusters.all[cluster].members {
            for channel in problem.ports.outputs[actor].iter().flatten() {
                for ring in self.rings_of[*channel].clone() {
                    let Ring {
                        from, to, buffer, ..
                    } = self.rings[ring];
                    let count = self.buffers[buffer].block_tokens;
                    let duration =
                        (problem.send_ps(*channel, from, to).max(SEND_PS)).div_ceil(1000);
                    self.sent_ns[ring] = self.push(
                        from,
                        stage,
                        0,
                        duration,
                        Action::Send {
                            ring,
                            first: 0,
                            count,
                        },
                    );
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
            let Buffer {
                channel,
                device,
                head_tokens,
                ..
            } = self.buffers[buffer];
            let token_bytes = self.problem.graph.channels[channel].token.bytes();
            if head_tokens > 0 && !self.problem.graph.is_state(channel) {
                let stage = self.readers[&(channel, device)].min_stage;
                let bytes_per_s = self.problem.machine.devices[device].bytes_per_s.max(1);
                let copied = u128::from(head_tokens) * u128::from(token_bytes) * 2_000_000_000
                    / u128::from(bytes_per_s);
                let duration = u64::try_from(copied).unwrap_or(u64::MAX / 4) + 10;
                self.push(device, stage, 0, duration, Action::Carry { buffer });
            }
        }
        for ring in self.rings.keys() {
            let Ring { channel, to, .. } = self.rings[ring];
            let stage = self.readers[&(channel, to)].max_stage;
            self.push(to, stage, 0, 20, Action::Release { ring });
        }
    }

    fn finish(mut self, name: &str) -> Result<Plan, ScheduleError> {
        let problem = self.problem;
        let drafts = std::mem::take(&mut self.drafts);
        let period_ns = drafts.values().map(|d| d.now_ns).max().unwrap_or(0).max(1);
        let busiest = drafts
            .iter()
            .max_by_key(|(device, d)| (d.busy_ns, std::cmp::Reverse(**device)));
        let bound_by = busiest.map_or_else(String::new, |(device, d)| {
            let name = &problem.machine.devices[*device].name;
            if d.busy_ns + d.busy_ns / 20 >= period_ns {
                name.clone()
            } else {
                format!("waits between devices ({name} busiest)")
            }
        });
        let mut stages = 1;
        let mut latency_ns = 0;
        let mut calendars = Vec::new();
        for (device, draft) in drafts {
            for (stage, end) in draft.entries.iter().map(stage_and_end) {
                stages = stages.max(stage + 1);
                latency_ns = latency_ns.max(
                    period_ns
                        .saturating_mul(u64::from(stage))
                        .saturating_add(end),
                );
            }
            let lane = Lane {
                kind: LaneKind::Compute,
                entries: draft.entries,
            };
            calendars.push(Calendar {
                device,
                arena_bytes: 0,
                exchange_bytes: 0,
                scratch_offset_bytes: 0,
                scratch_bytes: self.scratch_bytes(device),
                lanes: vec![lane],
            });
        }
        let mut plan = Plan {
            name: name.to_owned(),
            block: problem.block,
            period_ns,
            latency_ns,
            bound_by,
            stages,
            placement: problem
                .graph
                .actors
                .keys()
                .map(|a| self.device(a))
                .collect(),
            calendars,
            buffers: self.buffers,
            rings: self.rings,
            variants: BTreeMap::new(),
        };
        layout::lay_out(problem, &mut plan)?;
        Ok(plan)
    }

    fn scratch_bytes(&self, device: DeviceId) -> u64 {
        let costs = &self.problem.costs.table;
        let on_device = self
            .problem
            .graph
            .actors
            .keys()
            .filter(|&a| self.device(a) == device);
        on_device
            .filter_map(|a| costs[a][device])
            .map(|c| c.scratch_bytes)
            .max()
            .unwrap_or(0)
    }
}

/// The entry of a call, starting at `now`, which moves to its end.
fn lower(
    problem: &Problem<'_>,
    device: DeviceId,
    stage: u32,
    call: &Call,
    fired: &mut BTreeMap<ActorId, u64>,
    now: &mut u64,
) -> Entry {
    match call {
        Call::Fire { actor, count } => {
            let first = fired.entry(*actor).or_insert(0);
            let cost = problem.costs.table[*actor][device];
            let duration_ns = cost.map_or(1, |c| c.duration_ns(*count));
            let slot = Slot {
                stage,
                start_ns: *now,
                duration_ns,
                action: Action::Fire {
                    actor: *actor,
                    first: *first,
                    count: *count,
                },
            };
            *first += count;
            *now = now.saturating_add(duration_ns);
            Entry::Slot(slot)
        }
        Call::Repeat { count, body } => {
            let start = *now;
            let before = fired.clone();
            let entries = body
                .iter()
                .map(|c| lower(problem, device, stage, c, fired, now))
                .collect();
            // One run of the body advanced the counters once; the loop does so `count` times.
            for (actor, n) in fired.iter_mut() {
                let once = *n - before.get(actor).copied().unwrap_or(0);
                *n += once * (count - 1);
            }
            *now = start.saturating_add((*now - start).saturating_mul(*count));
            Entry::Loop {
                count: *count,
                body: entries,
            }
        }
    }
}

/// Stage and end time of an entry; a loop's body has one stage.
fn stage_and_end(entry: &Entry) -> (u32, u64) {
    match entry {
        Entry::Slot(slot) => (slot.stage, slot.start_ns.saturating_add(slot.duration_ns)),
        Entry::Loop { count, body } => {
            let start = body.first().map_or(0, start_of);
            let (stage, end) = body.last().map_or((0, 0), stage_and_end);
            (
                stage,
                start.saturating_add((end - start).saturating_mul(*count)),
            )
        }
    }
}

fn start_of(entry: &Entry) -> u64 {
    match entry {
        Entry::Slot(slot) => slot.start_ns,
        Entry::Loop { body, .. } => body.first().map_or(0, start_of),
    }
}
