//! A clock for plans: replays calendars as lanes do, each slot as soon as it can, on simulated time.
//!
//! Shares nothing with the scheduler: starts are not those that a plan predicts, but follow from what slots wait for.

use std::collections::BTreeMap;

use zbmd_ir::*;

/// When a slot with a planned duration ends after its start: the same, or less.
pub type Durations<'a> = &'a mut dyn FnMut(&Slot) -> u64;

/// A lane on its way through the periods.
struct LaneClock<'a> {
    device: DeviceId,
    /// The slots of a period, loops counted out.
    slots: Vec<&'a Slot>,
    period: u64,
    next: usize,
    now_ns: u64,
}

/// A block of a ring.
type RingBlock = (RingId, u64);

/// What has happened so far.
struct Replay<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    plan: &'a Plan,
    blocks: u64,
    release_ns: f64,
    /// Tokens of a ring's block that have been sent, and when they could be read, in order.
    sent: BTreeMap<RingBlock, Vec<(u64, u64)>>,
    /// Tokens of a ring's block that were waited for.
    received: BTreeMap<RingBlock, u64>,
    /// When a ring's block was given back.
    given_back: BTreeMap<RingBlock, u64>,
    /// When the last slot of a sink for a block ended.
    outputs: BTreeMap<(ActorId, u64), u64>,
    /// When the last slot of all ended.
    end_ns: u64,
}

/// A run from an empty pipeline to an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedLeg {
    /// Until all outputs of the first block were there.
    pub first_output_ns: u64,
    /// Until nothing was at work any more.
    pub end_ns: u64,
}

/// What a run of `blocks` blocks takes that are released every `release_ns`, the first one at once.
///
/// # Panics
/// If lanes wait for each other for ever.
pub fn leg(
    graph: &Graph,
    machine: &Machine,
    plan: &Plan,
    blocks: u64,
    release_ns: f64,
    durations: Durations<'_>,
) -> TimedLeg {
    let replay = replayed(graph, machine, plan, blocks, release_ns, durations);
    let outputs = replay.outputs.iter();
    let of_first = outputs.filter(|((_, block), _)| *block == 0);
    TimedLeg {
        first_output_ns: of_first.map(|(_, end_ns)| *end_ns).max().unwrap_or(0),
        end_ns: replay.end_ns,
    }
}

/// The longest time from the release of a block to its output, for each sink, over a run of `blocks` blocks that are
/// released every `release_ns`.
///
/// # Panics
/// If lanes wait for each other for ever.
pub fn longest_responses(
    graph: &Graph,
    machine: &Machine,
    plan: &Plan,
    blocks: u64,
    release_ns: f64,
    durations: Durations<'_>,
) -> BTreeMap<ActorId, u64> {
    let replay = replayed(graph, machine, plan, blocks, release_ns, durations);
    let mut longest: BTreeMap<ActorId, u64> = BTreeMap::new();
    for ((sink, block), end_ns) in &replay.outputs {
        let response_ns = end_ns.saturating_sub(replay.release_of(*block));
        let worst = longest.entry(*sink).or_insert(0);
        *worst = (*worst).max(response_ns);
    }
    longest
}

fn replayed<'a>(
    graph: &'a Graph,
    machine: &'a Machine,
    plan: &'a Plan,
    blocks: u64,
    release_ns: f64,
    durations: Durations<'_>,
) -> Replay<'a> {
    let lanes = plan.calendars.iter().flat_map(|calendar| {
        let lanes = calendar.lanes.iter();
        lanes.map(|lane| (calendar.device, &lane.entries))
    });
    let mut clocks: Vec<LaneClock<'_>> = lanes
        .map(|(device, entries)| {
            let mut slots = Vec::new();
            count_out(entries, &mut slots);
            LaneClock {
                device,
                slots,
                period: 0,
                next: 0,
                now_ns: 0,
            }
        })
        .collect();
    let mut replay = Replay {
        graph,
        machine,
        plan,
        blocks,
        release_ns,
        sent: BTreeMap::new(),
        received: BTreeMap::new(),
        given_back: BTreeMap::new(),
        outputs: BTreeMap::new(),
        end_ns: 0,
    };

    let periods = blocks + u64::from(plan.stages) - 1;
    while clocks.iter().any(|clock| clock.period < periods) {
        let mut has_moved = false;
        for clock in &mut clocks {
            while clock.period < periods && replay.step(clock, durations) {
                has_moved = true;
            }
        }
        assert!(has_moved, "lanes wait for each other");
    }
    replay
}

fn count_out<'a>(entries: &'a [Entry], slots: &mut Vec<&'a Slot>) {
    for entry in entries {
        match entry {
            Entry::Slot(slot) => slots.push(slot),
            Entry::Loop { count, body } => (0..*count).for_each(|_| count_out(body, slots)),
        }
    }
}

impl Replay<'_> {
    fn release_of(&self, block: u64) -> u64 {
        (block as f64 * self.release_ns).floor() as u64
    }

    /// Executes a lane's next slot, if what it waits for has happened; whether it did.
    fn step(&mut self, clock: &mut LaneClock<'_>, durations: Durations<'_>) -> bool {
        let Some(&slot) = clock.slots.get(clock.next) else {
            clock.period += 1;
            clock.next = 0;
            return true;
        };
        let block = clock.period.checked_sub(u64::from(slot.stage));
        let Some(block) = block.filter(|block| *block < self.blocks) else {
            clock.next += 1;
            return true;
        };
        let Some(ready_ns) = self.ready_ns(slot, block) else {
            return false;
        };

        let end_ns = clock.now_ns.max(ready_ns) + durations(slot);
        self.note(slot, block, clock.device, end_ns);
        self.end_ns = self.end_ns.max(end_ns);
        clock.now_ns = end_ns;
        clock.next += 1;
        true
    }

    /// When what a slot waits for has happened; `None` where it has not.
    fn ready_ns(&self, slot: &Slot, block: u64) -> Option<u64> {
        match slot.action {
            Action::Fire { actor, .. } if self.graph.actors[actor].role == Role::Source => {
                Some(self.release_of(block))
            }
            Action::Recv { ring, count, .. } => {
                let needed = self.received.get(&(ring, block)).unwrap_or(&0) + count;
                let mut sent = self.sent.get(&(ring, block))?.iter();
                sent.find(|(tokens, _)| *tokens >= needed)
                    .map(|(_, time_ns)| *time_ns)
            }
            Action::Send { ring, .. } => {
                let buffer = self.plan.rings[ring].buffer;
                let places = u64::from(self.plan.buffers[buffer].blocks);
                match block.checked_sub(places) {
                    None => Some(0),
                    Some(earlier) => self.given_back.get(&(ring, earlier)).copied(),
                }
            }
            _ => Some(0),
        }
    }

    /// Notes what others wait for.
    fn note(&mut self, slot: &Slot, block: u64, device: DeviceId, end_ns: u64) {
        match slot.action {
            Action::Fire { actor, .. } if self.graph.actors[actor].role == Role::Sink => {
                self.outputs.insert((actor, block), end_ns);
            }
            Action::Send { ring, count, .. } => {
                let to = self.plan.rings[ring].to;
                let link = self.machine.link(device, to).expect("a link");
                let sent = self.sent.entry((ring, block)).or_default();
                let before = sent.last().map_or(0, |(tokens, _)| *tokens);
                sent.push((before + count, end_ns + link.latency_ns));
            }
            Action::Recv { ring, count, .. } => {
                *self.received.entry((ring, block)).or_insert(0) += count;
            }
            Action::Release { ring } => {
                self.given_back.insert((ring, block), end_ns);
            }
            _ => {}
        }
    }
}

/// Tokens that a sink takes in a block of the plan.
pub fn tokens_per_block(graph: &Graph, plan: &Plan, sink: ActorId) -> u64 {
    let fired = |slot: &&Slot| matches!(slot.action, Action::Fire { actor, .. } if actor == sink);
    let mut firings = 0;
    for lane in plan.calendars.iter().flat_map(|calendar| &calendar.lanes) {
        let mut slots = Vec::new();
        count_out(&lane.entries, &mut slots);
        for slot in slots.iter().filter(|slot| fired(slot)) {
            if let Action::Fire { count, .. } = slot.action {
                firings += count;
            }
        }
    }
    firings * graph.actors[sink].inputs[0].rate
}
