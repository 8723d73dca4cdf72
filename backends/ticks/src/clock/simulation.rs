//! The events of a run, in order of time.

mod checks;
mod queries;

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use zbmd_ir::TiVec;
use zbmd_ticks::{Clocks, LinkId, Network, NodeId};

use self::checks::{check_events, check_propagation, late_starters};
use super::control::Controller;
use super::event::{ClockEvent, TimedEvent};
use super::fault::{ClockError, Notice, NoticeKind};
use super::link::LinkState;
use super::oscillator::Oscillator;
use super::phase::{Phase, Piece};
use crate::sequence::Sequence;

/// Least and largest frequency of a clock under control.
const FREQUENCIES: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// Notices that are kept; later ones are only counted.
const MAX_NOTICES: usize = 10_000;

/// A node has measured, and goes on with another frequency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlStep {
    /// The node.
    pub node: NodeId,
    /// From when on, in nominal ticks.
    pub time: f64,
    /// The new frequency, where 1 is nominal.
    pub frequency: f64,
    /// The part of it that is control.
    pub correction: f64,
    /// Sum of the fills above the initial ones, in frames, as measured.
    pub error_frames: i64,
}

/// Smallest and largest fill of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillRange {
    /// Fewest frames.
    pub min: i64,
    /// Most frames.
    pub max: i64,
}

#[derive(Clone, Debug)]
struct NodeClock {
    is_running: bool,
    /// Counts starts and stops, so that an update of an earlier life is known as such.
    generation: u64,
    started: f64,
    oscillator: Oscillator,
    controller: Controller,
    phase: Phase,
    /// Fraction of a tick at the start.
    initial_phase: f64,
    /// Measurements so far.
    measured: u64,
}

#[derive(Clone, Copy, Debug)]
enum Work {
    /// A node's new frequency takes effect.
    Update { node: NodeId, generation: u64 },
    /// The first frame may have arrived.
    Arrival { link: LinkId },
    /// The last frame has arrived.
    Silence {
        link: LinkId,
        generation: u64,
        due_tick: i64,
    },
    /// One of the events from outside.
    Outside { index: usize },
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    time: f64,
    order: u64,
    work: Work,
}

impl Ord for Queued {
    /// The earliest is the greatest; what was queued first goes first.
    fn cmp(&self, other: &Self) -> Ordering {
        let by_time = other.time.total_cmp(&self.time);
        by_time.then(other.order.cmp(&self.order))
    }
}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Queued {}

/// Clocks of a network under control. See the module's documentation for the model.
#[derive(Clone, Debug)]
pub struct ClockSimulation<'a> {
    network: &'a Network,
    clocks: Clocks,
    nodes: TiVec<NodeId, NodeClock>,
    links: TiVec<LinkId, LinkState>,
    events: Vec<TimedEvent>,
    queue: BinaryHeap<Queued>,
    queued: u64,
    now: f64,
    /// How far back a phase may be asked for.
    memory_ticks: f64,
    /// The logical latency that links come up with, where it is not what follows from the initial fill.
    fixed_latency: Option<u64>,
    steps: u64,
    notices: Vec<Notice>,
    notice_count: u64,
}

impl<'a> ClockSimulation<'a> {
    /// Clocks at time 0. All nodes that no event starts have run freely for ever, and all links between them come up.
    /// The same propagation holds for all links.
    ///
    /// # Errors
    /// See [`ClockError`].
    pub fn new(
        network: &'a Network,
        clocks: &Clocks,
        events: &[TimedEvent],
    ) -> Result<Self, ClockError> {
        let propagation = vec![clocks.propagation_ticks; network.links().len()];
        Self::with_propagation(network, clocks, &propagation, events)
    }

    /// Like [`Self::new`], but all links come up with the same logical latency, whatever the fractions of ticks that
    /// clocks start with: fills are the initial one, or one frame more or less.
    ///
    /// # Errors
    /// See [`ClockError`].
    pub fn with_latency(
        network: &'a Network,
        clocks: &Clocks,
        latency_ticks: u64,
    ) -> Result<Self, ClockError> {
        let mut simulation = Self::new(network, clocks, &[])?;
        simulation.fixed_latency = Some(latency_ticks);
        for link in network.links().keys() {
            simulation.bring_up(link, 0.0);
        }
        Ok(simulation)
    }

    /// Like [`Self::new`], with a propagation time for each link, in nominal ticks.
    ///
    /// # Errors
    /// See [`ClockError`].
    pub fn with_propagation(
        network: &'a Network,
        clocks: &Clocks,
        propagation: &[f64],
        events: &[TimedEvent],
    ) -> Result<Self, ClockError> {
        clocks.check(network.node_count())?;
        check_propagation(network, propagation)?;
        check_events(network, events)?;

        let late = late_starters(events);
        let nodes = network.nodes().map(|node| {
            let mut fractions =
                Sequence::new(clocks.oscillators.seed, u64::from(node.0) + (1 << 40));
            let initial_phase = 0.5 + 0.499 * fractions.next_signed();
            let oscillator = Oscillator::new(&clocks.oscillators, node);
            let frequency = oscillator.frequency(0.0);
            NodeClock {
                is_running: !late.contains(&node),
                generation: 0,
                started: 0.0,
                oscillator,
                controller: Controller::new(clocks.control),
                phase: Phase::new(0.0, initial_phase, frequency),
                initial_phase,
                measured: 0,
            }
        });

        let longest = propagation.iter().copied().fold(0.0, f64::max);
        let period = (clocks.control.period_ticks + clocks.control.delay_ticks) as f64;
        let mut simulation = Self {
            network,
            nodes: nodes.collect(),
            links: propagation
                .iter()
                .map(|&ticks| LinkState::new(ticks))
                .collect(),
            events: events.to_vec(),
            queue: BinaryHeap::new(),
            queued: 0,
            now: 0.0,
            // A buffer was last looked at when its node was, which is a period of the slowest clock ago or less.
            memory_ticks: longest + 1.1 * period / FREQUENCIES.start(),
            clocks: clocks.clone(),
            fixed_latency: None,
            steps: 0,
            notices: Vec::new(),
            notice_count: 0,
        };
        simulation.begin();
        Ok(simulation)
    }

    fn begin(&mut self) {
        for node in self.network.nodes() {
            if self.nodes[node].is_running {
                self.queue_update(node);
            }
        }
        for (link, ends) in self.network.links().iter_enumerated() {
            if self.nodes[ends.from].is_running && self.nodes[ends.to].is_running {
                self.bring_up(link, 0.0);
            }
        }
        for index in 0..self.events.len() {
            self.queue_work(self.events[index].time, Work::Outside { index });
        }
    }

    fn queue_work(&mut self, time: f64, work: Work) {
        self.queued += 1;
        let order = self.queued;
        self.queue.push(Queued { time, order, work });
    }

    /// Queues the moment when a node's next measurement takes effect.
    fn queue_update(&mut self, node: NodeId) {
        let clock = &self.nodes[node];
        let generation = clock.generation;
        let time = clock
            .phase
            .time_of(self.measured_phase(node) + self.delay());
        self.queue_work(time, Work::Update { node, generation });
    }

    fn delay(&self) -> f64 {
        self.clocks.control.delay_ticks as f64
    }

    /// Phase of the next measurement of a node.
    fn measured_phase(&self, node: NodeId) -> f64 {
        let clock = &self.nodes[node];
        let ticks = (clock.measured + 1) * self.clocks.control.period_ticks;
        clock.initial_phase + ticks as f64
    }

    /// Runs up to a time, in nominal ticks.
    ///
    /// # Errors
    /// [`ClockError::Frequency`].
    pub fn run_until(&mut self, time: f64) -> Result<(), ClockError> {
        self.run_observed(time, &mut |_| ())
    }

    /// Like [`Self::run_until`], and tells of each control step.
    ///
    /// # Errors
    /// [`ClockError::Frequency`].
    pub fn run_observed(
        &mut self,
        time: f64,
        observer: &mut dyn FnMut(ControlStep),
    ) -> Result<(), ClockError> {
        while let Some(next) = self.queue.peek().copied().filter(|next| next.time <= time) {
            self.queue.pop();
            self.now = self.now.max(next.time);
            match next.work {
                Work::Update { node, generation } => {
                    if self.nodes[node].generation == generation {
                        observer(self.update(node)?);
                    }
                }
                Work::Arrival { link } => self.arrive(link),
                Work::Silence {
                    link,
                    generation,
                    due_tick,
                } => self.fall_silent(link, generation, due_tick),
                Work::Outside { index } => self.happen(self.events[index].event),
            }
        }
        self.now = self.now.max(time);
        Ok(())
    }

    /// Runs up to the time of an event that was not known before, and lets it happen.
    ///
    /// # Errors
    /// [`ClockError::Frequency`].
    ///
    /// # Panics
    /// If the event names a node or a link that the network does not have.
    pub fn apply(&mut self, timed: TimedEvent) -> Result<(), ClockError> {
        self.run_until(timed.time)?;
        self.happen(timed.event);
        Ok(())
    }

    /// A node goes on with the frequency that follows from its last measurement.
    fn update(&mut self, node: NodeId) -> Result<ControlStep, ClockError> {
        let time = self.now;
        let measured_at = self.nodes[node].phase.time_of(self.measured_phase(node));
        let error_frames = self.error_frames(node, measured_at);
        for &link in self.network.incoming(node) {
            self.check_link(link, time);
        }

        let phase = self.measured_phase(node) + self.delay();
        let clock = &mut self.nodes[node];
        clock.oscillator.wander();
        let correction = clock.controller.measure(error_frames as f64);
        let frequency = clock.oscillator.frequency(time) + correction;
        if !FREQUENCIES.contains(&frequency) {
            return Err(ClockError::Frequency {
                node,
                time,
                frequency,
            });
        }
        let piece = Piece {
            start: time,
            phase,
            frequency,
        };
        clock.phase.push(piece, time - self.memory_ticks);
        clock.measured += 1;
        self.steps += 1;
        self.queue_update(node);
        Ok(ControlStep {
            node,
            time,
            frequency,
            correction,
            error_frames,
        })
    }

    /// Sum of the fills above the initial ones, over the links that are up.
    fn error_frames(&self, node: NodeId, time: f64) -> i64 {
        let initial_fill = self.clocks.buffers.initial_fill as i64;
        let incoming = self.network.incoming(node).iter();
        let fills = incoming.filter_map(|&link| self.fill_at(link, time));
        fills.map(|fill| fill - initial_fill).sum()
    }

    fn fill_at(&self, link: LinkId, time: f64) -> Option<i64> {
        let ends = self.network.links()[link];
        let (from, to) = (&self.nodes[ends.from].phase, &self.nodes[ends.to].phase);
        self.links[link].fill(from, to, time)
    }

    /// Looks at a link's fill up to a time, and takes the link down where its buffer over- or underflows.
    fn check_link(&mut self, link: LinkId, time: f64) {
        let ends = self.network.links()[link];
        let (from, to) = (&self.nodes[ends.from].phase, &self.nodes[ends.to].phase);
        let crossing = self.links[link].check(from, to, time, &self.clocks.buffers);
        if let Some(crossing) = crossing {
            self.links[link].go_down();
            self.notice(link, crossing.time, crossing.kind);
        }
    }

    fn notice(&mut self, link: LinkId, time: f64, kind: NoticeKind) {
        self.notice_count += 1;
        if self.notices.len() < MAX_NOTICES {
            self.notices.push(Notice { link, time, kind });
        }
    }

    fn bring_up(&mut self, link: LinkId, time: f64) {
        let ends = self.network.links()[link];
        let (from, to) = (&self.nodes[ends.from].phase, &self.nodes[ends.to].phase);
        let fill = self.clocks.buffers.initial_fill;
        let fixed = self.fixed_latency;
        let latency = self.links[link].come_up(from, to, time, fill, fixed);
        self.notice(link, time, NoticeKind::Up { latency });
    }

    /// Brings a link up if both nodes run and what was sent has had the time to arrive.
    fn arrive(&mut self, link: LinkId) {
        let ends = self.network.links()[link];
        let state = &self.links[link];
        let (from, to) = (&self.nodes[ends.from], &self.nodes[ends.to]);
        let has_arrived = from.started.max(state.whole_since) + state.propagation <= self.now;
        let is_possible = state.is_whole && from.is_running && to.is_running;
        if is_possible && has_arrived && state.up.is_none() {
            self.bring_up(link, self.now);
        }
    }

    fn fall_silent(&mut self, link: LinkId, generation: u64, due_tick: i64) {
        if self.links[link].generation == generation && self.links[link].up.is_some() {
            self.check_link(link, self.now);
            if self.links[link].up.is_some() {
                self.links[link].go_down();
                self.notice(link, self.now, NoticeKind::Silent { due_tick });
            }
        }
    }

    /// From now on nothing is sent on a link.
    fn cease(&mut self, link: LinkId) {
        let Some(up) = self.links[link].up else {
            return;
        };
        let from = self.network.links()[link].from;
        let last_sent = self.nodes[from].phase.at(self.now).floor() as i64;
        let work = Work::Silence {
            link,
            generation: self.links[link].generation,
            due_tick: last_sent + 1 + up.latency,
        };
        self.queue_work(self.now + self.links[link].propagation, work);
    }

    fn happen(&mut self, event: ClockEvent) {
        match event {
            ClockEvent::StartNode(node) => self.start_node(node),
            ClockEvent::StopNode(node) => self.stop_node(node),
            ClockEvent::StartLink(link) => {
                if !std::mem::replace(&mut self.links[link].is_whole, true) {
                    self.links[link].whole_since = self.now;
                }
                let time = self.now + self.links[link].propagation;
                self.queue_work(time, Work::Arrival { link });
            }
            ClockEvent::StopLink(link) => {
                self.links[link].is_whole = false;
                self.cease(link);
            }
            ClockEvent::CentreBuffers => self.centre_buffers(),
        }
    }

    fn start_node(&mut self, node: NodeId) {
        let now = self.now;
        let clock = &mut self.nodes[node];
        if clock.is_running {
            return;
        }
        clock.is_running = true;
        clock.generation += 1;
        clock.started = now;
        clock.measured = 0;
        clock.controller = Controller::new(self.clocks.control);
        let frequency = clock.oscillator.frequency(now);
        clock.phase = Phase::new(now, clock.initial_phase, frequency);
        self.queue_update(node);

        for &link in self.network.outgoing(node) {
            self.queue_work(now + self.links[link].propagation, Work::Arrival { link });
        }
        for &link in self.network.incoming(node) {
            self.arrive(link);
        }
    }

    fn stop_node(&mut self, node: NodeId) {
        if !std::mem::replace(&mut self.nodes[node].is_running, false) {
            return;
        }
        self.nodes[node].generation += 1;
        for &link in self.network.outgoing(node) {
            self.cease(link);
        }
        for &link in self.network.incoming(node) {
            self.check_link(link, self.now);
            self.links[link].go_down();
        }
    }

    fn centre_buffers(&mut self) {
        for (link, _) in self.network.links().iter_enumerated() {
            self.check_link(link, self.now);
            if self.links[link].up.is_some() {
                self.bring_up(link, self.now);
                // What comes is what the buffer must hold.
                self.links[link].min_fill = i64::MAX;
                self.links[link].max_fill = i64::MIN;
            }
        }
        for clock in &mut self.nodes {
            clock.controller.hold();
        }
    }
}
