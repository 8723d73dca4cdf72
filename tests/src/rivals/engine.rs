//! Simulated time of the rivals, event by event.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use zbmd_ir::{ActorId, ChannelId, Role, TiVec};
use zbmd_ticks::{LinkId, NodeId};

use super::model::{HopTurn, InputPort, Place, PlaceReader, RivalModel, Turn};

/// How nodes decide what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// Nodes and links do what a plan has, in its order, as soon as tokens and room are there. Frames are sent on as they
    /// come.
    SelfTimed,
    /// Nodes fire the actor that has been ready the longest, links send the message that has, and nodes send on messages
    /// that are there as a whole, on a shortest way.
    Dynamic,
}

/// What is asked of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Iterations that are simulated; the first quarter is not measured.
    pub iterations: u64,
    /// Ticks between the starts of iterations; sources do not wait if there are none.
    pub interval: Option<f64>,
    /// Largest part of a firing's ticks that it may be done sooner, drawn evenly for each firing.
    pub variation: f64,
    /// Largest offset of a node's clock, drawn evenly.
    pub tolerance_ppm: f64,
    /// Decides what is drawn.
    pub seed: u64,
}

/// What was measured, in nominal ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Mean time from the end of an iteration to that of the next.
    pub period: f64,
    /// Mean time from the start of an iteration to its end.
    pub mean_latency: f64,
    /// The longest such time.
    pub max_latency: f64,
    /// The longest less the shortest.
    pub jitter: f64,
}

/// Runs iterations and measures them.
///
/// # Panics
/// If nothing can go on before all iterations are done.
pub fn simulate(model: &RivalModel, discipline: Discipline, load: &Load) -> Measured {
    let mut engine = Engine::new(model, discipline, load);
    engine.run();
    engine.measure()
}

/// A message on one of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Job {
    channel: ChannelId,
    place: usize,
    /// Of all firings of the writer.
    firing: u64,
    hop: usize,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    FiringEnds(ActorId),
    /// A link has sent the last frame of a message.
    LinkFree {
        link: LinkId,
        job: Job,
    },
    /// A message can be sent on, or is there.
    Arrives(Job),
    /// The writer's node gets to know how many firings of a reader have ended.
    Acknowledged {
        channel: ChannelId,
        place: usize,
        reader: usize,
        firings: u64,
    },
    /// Sources may begin another iteration.
    Release,
}

struct TimedEvent {
    time: f64,
    order: u64,
    event: Event,
}

impl PartialEq for TimedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == std::cmp::Ordering::Equal
    }
}

impl Eq for TimedEvent {}

impl PartialOrd for TimedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for TimedEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let by_time = self.time.total_cmp(&other.time);
        by_time.then(self.order.cmp(&other.order))
    }
}

/// How far one node of a channel is, in firings of the writer.
#[derive(Clone, Debug, Default)]
struct PlaceState {
    /// Firings all of whose tokens are there.
    present: u64,
    /// Those that have come before others that have not.
    early: BTreeSet<u64>,
    /// Messages that wait for a link or are under way.
    queued: u64,
    /// Messages that have left the writer's node.
    sent: u64,
    /// Firings of each reader that the writer's node knows to have ended.
    acknowledged: Vec<u64>,
}

/// Where a node or link is in its order.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    index: usize,
    cycle: u64,
}

impl Cursor {
    /// What comes next of a cyclic order, and in which iteration.
    fn next<T: Copy>(&mut self, turns: &[Turn<T>]) -> Option<(T, u64)> {
        loop {
            let turn = turns.get(self.index)?;
            match self.cycle.checked_sub(turn.iterations_later) {
                Some(iteration) => return Some((turn.what, iteration)),
                None => self.advance(turns),
            }
        }
    }

    fn advance<T>(&mut self, turns: &[Turn<T>]) {
        self.index += 1;
        if self.index == turns.len() {
            self.index = 0;
            self.cycle += 1;
        }
    }
}

struct Engine<'a> {
    model: &'a RivalModel,
    discipline: Discipline,
    load: &'a Load,
    rng: fastrand::Rng,
    now: f64,
    events: BinaryHeap<Reverse<TimedEvent>>,
    order: u64,
    /// How much longer a tick of each node takes than a nominal one, as a factor.
    tick_lengths: TiVec<NodeId, f64>,
    started: TiVec<ActorId, u64>,
    ended: TiVec<ActorId, u64>,
    /// Since when each actor could start, for nodes that go by that.
    ready_since: TiVec<ActorId, Option<f64>>,
    is_busy: TiVec<NodeId, bool>,
    is_sending: TiVec<LinkId, bool>,
    node_cursors: TiVec<NodeId, Cursor>,
    link_cursors: TiVec<LinkId, Cursor>,
    places: TiVec<ChannelId, Vec<PlaceState>>,
    /// Messages that each link could send, and the order in which they came.
    waiting: TiVec<LinkId, BTreeMap<Job, u64>>,
    starts: Vec<Option<f64>>,
    ends: Vec<f64>,
}

impl<'a> Engine<'a> {
    fn new(model: &'a RivalModel, discipline: Discipline, load: &'a Load) -> Self {
        let mut rng = fastrand::Rng::with_seed(load.seed);
        let nodes = model.firing_turns.len();
        let links = model.hop_turns.len();
        let offsets = (0..nodes).map(|_| 1e-6 * load.tolerance_ppm * (2.0 * rng.f64() - 1.0));
        let tick_lengths = offsets.map(|offset| 1.0 + offset).collect();
        let place_state = |place: &Place| PlaceState {
            acknowledged: vec![0; place.readers.len()],
            ..PlaceState::default()
        };
        let channels = model.channels.iter();
        Self {
            model,
            discipline,
            load,
            rng,
            now: 0.0,
            events: BinaryHeap::new(),
            order: 0,
            tick_lengths,
            started: vec![0; model.actors.len()].into(),
            ended: vec![0; model.actors.len()].into(),
            ready_since: vec![None; model.actors.len()].into(),
            is_busy: vec![false; nodes].into(),
            is_sending: vec![false; links].into(),
            node_cursors: vec![Cursor::default(); nodes].into(),
            link_cursors: vec![Cursor::default(); links].into(),
            places: channels
                .map(|channel| channel.places.iter().map(place_state).collect())
                .collect(),
            waiting: vec![BTreeMap::new(); links].into(),
            starts: vec![None; load.iterations as usize],
            ends: Vec::new(),
        }
    }

    fn after(&mut self, ticks: f64, event: Event) {
        self.order += 1;
        self.events.push(Reverse(TimedEvent {
            time: self.now + ticks,
            order: self.order,
            event,
        }));
    }

    fn run(&mut self) {
        self.progress();
        while (self.ends.len() as u64) < self.load.iterations {
            let Some(Reverse(next)) = self.events.pop() else {
                panic!("nothing can go on at {}: {:?}", self.now, self.ended);
            };
            self.now = next.time;
            self.handle(next.event);
            // What happens at one time is known before anybody decides anything.
            while let Some(Reverse(next)) = self.events.peek()
                && next.time == self.now
            {
                if let Some(Reverse(next)) = self.events.pop() {
                    self.handle(next.event);
                }
            }
            self.progress();
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::FiringEnds(actor) => self.end_firing(actor),
            Event::LinkFree { link, job } => {
                self.is_sending[link] = false;
                if job.hop == 0 {
                    self.places[job.channel][job.place].sent += 1;
                }
            }
            Event::Arrives(job) => self.arrive(job),
            Event::Acknowledged {
                channel,
                place,
                reader,
                firings,
            } => {
                let known = &mut self.places[channel][place].acknowledged[reader];
                *known = firings.max(*known);
            }
            Event::Release => (),
        }
    }

    fn end_firing(&mut self, actor: ActorId) {
        let model = &self.model.actors[actor];
        self.is_busy[model.node] = false;
        self.ended[actor] += 1;
        let ended = self.ended[actor];
        for &channel in &model.outputs {
            self.places[channel][0].present = ended;
        }
        for input in &model.inputs {
            self.acknowledge(actor, input, ended);
        }

        let done = self.ends.len() as u64 + 1;
        let mut actors = self.model.actors.iter_enumerated();
        if actors.all(|(id, actor)| self.ended[id] >= done * actor.firings) {
            self.ends.push(self.now);
        }
    }

    /// Tells the writer's node that a firing of a reader has ended.
    fn acknowledge(&mut self, actor: ActorId, input: &InputPort, firings: u64) {
        let place = &self.model.channels[input.channel].places[input.place];
        let hops = place.shortest_way.len() as f64;
        for (reader, found) in place.readers.iter().enumerate() {
            if found.actor == actor {
                let ticks = hops * self.model.latency as f64;
                self.after(
                    ticks,
                    Event::Acknowledged {
                        channel: input.channel,
                        place: input.place,
                        reader,
                        firings,
                    },
                );
            }
        }
    }

    fn way(&self, job: Job) -> &'a [LinkId] {
        let channel = &self.model.channels[job.channel];
        let place = &channel.places[job.place];
        match self.discipline {
            Discipline::SelfTimed => {
                let firings = self.model.actors[channel.writer].firings;
                &place.planned_ways[(job.firing % firings) as usize]
            }
            Discipline::Dynamic => &place.shortest_way,
        }
    }

    /// A message waits for its next link, or is where it is read.
    fn arrive(&mut self, job: Job) {
        if let Some(&link) = self.way(job).get(job.hop) {
            self.order += 1;
            self.waiting[link].insert(job, self.order);
            return;
        }
        let state = &mut self.places[job.channel][job.place];
        state.early.insert(job.firing);
        while state.early.remove(&state.present) {
            state.present += 1;
        }
    }

    /// Lets everything begin that can.
    fn progress(&mut self) {
        for channel in self.model.channels.keys() {
            for place in 1..self.model.channels[channel].places.len() {
                while self.can_send(channel, place) {
                    let firing = self.places[channel][place].queued;
                    self.places[channel][place].queued += 1;
                    self.arrive(Job {
                        channel,
                        place,
                        firing,
                        hop: 0,
                    });
                }
            }
        }
        for link in self.model.hop_turns.keys() {
            let is_idle = !self.is_sending[link] && !self.waiting[link].is_empty();
            if is_idle && let Some(job) = self.next_job(link) {
                self.send(link, job);
            }
        }
        for node in self.model.firing_turns.keys() {
            let is_idle = !self.is_busy[node] && !self.model.node_actors[node].is_empty();
            if is_idle && let Some(actor) = self.next_actor(node) {
                self.fire(actor);
            }
        }
    }

    /// Whether readers are so far that the last token of a firing of the writer has room, by what is known of them.
    fn has_room(
        &self,
        channel: ChannelId,
        place: &Place,
        firing: u64,
        known: impl Fn(usize, &PlaceReader) -> u64,
    ) -> bool {
        let rate = self.model.channels[channel].rate;
        let Some(overwritten) = ((firing + 1) * rate - 1).checked_sub(place.capacity) else {
            return true;
        };
        let mut readers = place.readers.iter().enumerate();
        readers.all(|(index, reader)| {
            known(index, reader) > (overwritten + reader.delay) / reader.rate
        })
    }

    fn can_send(&self, channel: ChannelId, place: usize) -> bool {
        let state = &self.places[channel][place];
        let firing = state.queued;
        let target = &self.model.channels[channel].places[place];
        firing < self.places[channel][0].present
            && self.has_room(channel, target, firing, |index, _| {
                state.acknowledged[index]
            })
    }

    fn can_start(&self, actor: ActorId) -> bool {
        let model = &self.model.actors[actor];
        let firing = self.started[actor];
        let is_released = match self.load.interval {
            Some(interval) if model.role == Role::Source => {
                (firing / model.firings) as f64 * interval <= self.now
            }
            _ => true,
        };
        is_released
            && model
                .inputs
                .iter()
                .all(|input| self.has_tokens(input, firing))
            && model
                .outputs
                .iter()
                .all(|&channel| self.has_home_room(channel, firing))
    }

    fn has_tokens(&self, input: &InputPort, firing: u64) -> bool {
        let end = firing * input.rate + input.window;
        let rate = self.model.channels[input.channel].rate;
        let present = self.places[input.channel][input.place].present;
        end.saturating_sub(input.delay) <= present * rate
    }

    fn has_home_room(&self, channel: ChannelId, firing: u64) -> bool {
        let model = &self.model.channels[channel];
        let home = &model.places[0];
        let is_read = self.has_room(channel, home, firing, |_, reader| self.ended[reader.actor]);
        let Some(overwritten) = ((firing + 1) * model.rate - 1).checked_sub(home.capacity) else {
            return is_read;
        };
        let mut others = self.places[channel].iter().skip(1);
        is_read && others.all(|place| place.sent > overwritten / model.rate)
    }

    fn next_actor(&mut self, node: NodeId) -> Option<ActorId> {
        let turns = &self.model.firing_turns[node];
        if self.discipline == Discipline::SelfTimed {
            let (actor, _) = self.node_cursors[node].next(turns)?;
            let can_start = self.can_start(actor);
            if can_start {
                self.node_cursors[node].advance(turns);
            }
            return can_start.then_some(actor);
        }

        let mut longest: Option<(f64, ActorId)> = None;
        for &actor in &self.model.node_actors[node] {
            if !self.can_start(actor) {
                self.ready_since[actor] = None;
                continue;
            }
            let since = *self.ready_since[actor].get_or_insert(self.now);
            if longest.is_none_or(|(earliest, _)| since < earliest) {
                longest = Some((since, actor));
            }
        }
        longest.map(|(_, actor)| actor)
    }

    fn fire(&mut self, actor: ActorId) {
        let model = &self.model.actors[actor];
        let iteration = (self.started[actor] / model.firings) as usize;
        if let Some(start) = self.starts.get_mut(iteration) {
            start.get_or_insert(self.now);
        }
        self.started[actor] += 1;
        self.ready_since[actor] = None;
        self.is_busy[model.node] = true;
        let part = 1.0 - self.load.variation * self.rng.f64();
        let ticks = model.ticks as f64 * part * self.tick_lengths[model.node];
        self.after(ticks, Event::FiringEnds(actor));
        if let (Some(interval), Role::Source) = (self.load.interval, model.role) {
            let next = (self.started[actor] / model.firings) as f64 * interval;
            self.after((next - self.now).max(0.0), Event::Release);
        }
    }

    fn next_job(&mut self, link: LinkId) -> Option<Job> {
        let job = match self.discipline {
            Discipline::SelfTimed => {
                let turns = &self.model.hop_turns[link];
                let (turn, iteration) = self.link_cursors[link].next(turns)?;
                let HopTurn {
                    channel,
                    place,
                    firing,
                    hop,
                } = turn;
                let writer = self.model.channels[channel].writer;
                let job = Job {
                    channel,
                    place,
                    firing: iteration * self.model.actors[writer].firings + firing,
                    hop,
                };
                if !self.waiting[link].contains_key(&job) {
                    return None;
                }
                self.link_cursors[link].advance(turns);
                job
            }
            Discipline::Dynamic => {
                let jobs = self.waiting[link].iter();
                jobs.min_by_key(|(_, order)| **order).map(|(&job, _)| job)?
            }
        };
        self.waiting[link].remove(&job);
        Some(job)
    }

    fn send(&mut self, link: LinkId, job: Job) {
        self.is_sending[link] = true;
        let frames = self.model.channels[job.channel].frames as f64;
        let latency = self.model.latency as f64;
        let is_last = job.hop + 1 == self.way(job).len();
        let is_sent_on_by_frames = self.discipline == Discipline::SelfTimed && !is_last;
        let ticks = if is_sent_on_by_frames { 1.0 } else { frames };
        let next = Job {
            hop: job.hop + 1,
            ..job
        };
        self.after(frames, Event::LinkFree { link, job });
        self.after(ticks + latency, Event::Arrives(next));
    }

    fn measure(&self) -> Measured {
        let first = self.ends.len() / 4;
        let ends = &self.ends[first..];
        let latencies = ends.iter().zip(first..).map(|(end, iteration)| {
            let released = self
                .load
                .interval
                .map(|interval| iteration as f64 * interval);
            end - released.or(self.starts[iteration]).unwrap_or(0.0)
        });
        let latencies: Vec<f64> = latencies.collect();
        let max_latency = latencies.iter().copied().fold(0.0, f64::max);
        let min_latency = latencies.iter().copied().fold(f64::INFINITY, f64::min);
        let gaps = (ends.len() - 1).max(1) as f64;
        Measured {
            period: (ends[ends.len() - 1] - ends[0]) / gaps,
            mean_latency: latencies.iter().sum::<f64>() / latencies.len() as f64,
            max_latency,
            jitter: max_latency - min_latency,
        }
    }
}
