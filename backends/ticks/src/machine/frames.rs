//! Runs that visit every node in each of its ticks, in the order of simulated time, with clocks that drift.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use zbmd_ir::TiVec;
use zbmd_ticks::{LinkEnds, LinkId, Network, NodeId};

use super::application::Application;
use super::calendar::{Carried, Entry, Work};
use super::error::{FaultKind, FrameHarm, Recovery, RunFault};
use super::events::take_payload;
use super::recovery::{Harm, Knowledge, PlanSpan};
use super::reports::Reports;
use super::{RunError, RunInput, RunOutcome, WaitingFrame};
use crate::clock::{ClockEvent, ClockSimulation, FillRange, NoticeKind, TimedEvent};

/// What is on a link. An idle frame has no payload, but a head all the same: a check sum, what the sender knows of losses,
/// and whether it waits for another plan because of them.
#[derive(Clone, Debug, Default)]
struct Frame {
    payload: Option<Vec<u8>>,
    check_sum: u32,
    reports: Arc<Reports>,
    is_halted: bool,
}

impl Frame {
    fn new(payload: Option<Vec<u8>>, tick: u64, reports: Arc<Reports>, is_halted: bool) -> Self {
        let check_sum = check_sum(payload.as_deref(), tick);
        Self {
            payload,
            check_sum,
            reports,
            is_halted,
        }
    }

    fn is_whole(&self, tick: u64) -> bool {
        check_sum(self.payload.as_deref(), tick) == self.check_sum
    }

    fn flip(&mut self, bit: u32) {
        match &mut self.payload {
            Some(bytes) if !bytes.is_empty() => {
                let bit = bit as usize % (8 * bytes.len());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            _ => self.check_sum ^= 1 << (bit % 32),
        }
    }
}

/// A check sum over payload and tick (FNV-1a), so that a frame of another tick is as wrong as a changed one.
fn check_sum(payload: Option<&[u8]>, tick: u64) -> u32 {
    let head = tick.to_le_bytes();
    let kind = [u8::from(payload.is_some())];
    let bytes = head.iter().chain(&kind).chain(payload.unwrap_or_default());
    bytes.fold(0x811c_9dc5_u32, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// A frame on its way: when it was sent, and what is left of it.
#[derive(Clone, Debug)]
struct Sent {
    at: f64,
    frame: Option<Frame>,
}

/// When a node's next tick begins.
#[derive(Clone, Copy, Debug, PartialEq)]
struct NextTick {
    time: f64,
    node: NodeId,
    /// Of how many forecasts for the node this is: only the last counts.
    forecast: u64,
}

impl Eq for NextTick {}

impl Ord for NextTick {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let by_time = self.time.total_cmp(&other.time);
        by_time.then((self.node, self.forecast).cmp(&(other.node, other.forecast)))
    }
}

impl PartialOrd for NextTick {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Debug)]
pub(super) struct NodeState {
    pub(super) tick: u64,
    forecast: u64,
    pub(super) entries: Vec<Entry>,
    /// Index of the first entry of the next tick.
    pub(super) cursor: usize,
    pub(super) is_stopped: bool,
}

/// A run in which every node has reached some tick.
pub(super) struct TickedRun<'a> {
    pub(super) input: &'a RunInput<'a>,
    pub(super) network: &'a Network,
    pub(super) clock: ClockSimulation<'a>,
    pub(super) application: Application<'a>,
    pub(super) nodes: TiVec<NodeId, NodeState>,
    links: TiVec<LinkId, VecDeque<Sent>>,
    pub(super) harm: Harm,
    pub(super) knowledge: Knowledge,
    pub(super) waiting: BTreeMap<WaitingFrame, Vec<u8>>,
    /// The plan that runs now.
    pub(super) span: PlanSpan<'a>,
    pub(super) recoveries: Vec<Recovery>,
    pub(super) stops: Vec<TimedEvent>,
    /// The last tick up to which nodes wait for frames that do not come, after the end of the plan.
    pub(super) waited_until: u64,
    /// Whether nodes that had reached their last tick have more to do.
    pub(super) is_extended: bool,
    propagation: f64,
    frames: u64,
}

pub(super) fn run<'a>(
    input: &'a RunInput<'a>,
    network: &'a Network,
    application: Application<'a>,
    entries: TiVec<NodeId, Vec<Entry>>,
) -> Result<RunOutcome, RunError> {
    let clocks = input.machine.clocks();
    let latency = input.machine.latency_ticks;
    let clock = ClockSimulation::with_latency(network, &clocks, latency)?;
    // Before the first tick all nodes have sent idle frames.
    let nothing_lost = Arc::new(Reports::default());
    let idle = (0..latency).map(|tick| Sent {
        at: f64::NEG_INFINITY,
        frame: Some(Frame::new(
            None,
            tick.wrapping_sub(latency),
            nothing_lost.clone(),
            false,
        )),
    });
    let idle: VecDeque<Sent> = idle.collect();
    let span = PlanSpan::new(input, input.plan, &entries, application.iterations);
    let nodes = entries.into_iter().map(|entries| NodeState {
        tick: 0,
        forecast: 0,
        entries,
        cursor: 0,
        is_stopped: false,
    });
    let mut run = TickedRun {
        input,
        network,
        clock,
        application,
        nodes: nodes.collect(),
        links: vec![idle; network.links().len()].into(),
        harm: Harm::new(network, input.injections),
        knowledge: Knowledge::new(network),
        waiting: BTreeMap::new(),
        span,
        recoveries: Vec::new(),
        stops: Vec::new(),
        waited_until: 0,
        is_extended: false,
        propagation: clocks.propagation_ticks,
        frames: 0,
    };
    let fault = run.run()?;
    Ok(RunOutcome {
        fills: run.fills(),
        iterations: run.application.iterations,
        outputs: run.application.into_outputs(),
        ticks: run.span.end_tick,
        frames: run.frames,
        recoveries: run.recoveries,
        stops: run.stops,
        fault,
    })
}

impl TickedRun<'_> {
    fn run(&mut self) -> Result<Option<RunFault>, RunError> {
        let mut queue = BinaryHeap::new();
        loop {
            self.forecast_all(&mut queue);
            let fault = self.run_to_end(&mut queue)?;
            if fault.is_some() || !self.waits_for_notice()? {
                return Ok(fault);
            }
        }
    }

    /// Up to the last tick of all nodes that run.
    fn run_to_end(
        &mut self,
        queue: &mut BinaryHeap<Reverse<NextTick>>,
    ) -> Result<Option<RunFault>, RunError> {
        while let Some(&Reverse(next)) = queue.peek() {
            // Up to the next change of a frequency all forecasts hold.
            if let Some(change) = self.clock.next_event().filter(|&time| time <= next.time) {
                let mut changed = Vec::new();
                self.clock
                    .run_observed(change, &mut |step| changed.push(step.node))?;
                if let Some(fault) = self.buffer_fault() {
                    return Ok(Some(fault));
                }
                for node in changed {
                    queue.push(Reverse(self.forecast(node)));
                }
                continue;
            }
            queue.pop();
            let state = &self.nodes[next.node];
            let is_current = next.forecast == state.forecast && !state.is_stopped;
            if !is_current || state.tick >= self.span.end_tick {
                continue;
            }
            if self.harm.stops(next.node, state.tick) {
                self.stop(next.node, next.time)?;
                continue;
            }
            if let Some(fault) = self.tick(next.node, next.time)? {
                return Ok(Some(fault));
            }
            if std::mem::take(&mut self.is_extended) {
                self.forecast_all(queue);
            } else {
                queue.push(Reverse(self.forecast(next.node)));
            }
        }
        Ok(None)
    }

    fn forecast_all(&mut self, queue: &mut BinaryHeap<Reverse<NextTick>>) {
        for node in self.network.nodes() {
            queue.push(Reverse(self.forecast(node)));
        }
    }

    /// When a node's next tick will be, if its frequency stays as it is.
    fn forecast(&mut self, node: NodeId) -> NextTick {
        let state = &mut self.nodes[node];
        state.forecast += 1;
        NextTick {
            time: self.clock.time_of_tick(node, state.tick),
            node,
            forecast: state.forecast,
        }
    }

    fn buffer_fault(&self) -> Option<RunFault> {
        let notice = self.clock.buffer_faults().next()?;
        let node = self.network.links()[notice.link].to;
        let kind = match notice.kind {
            NoticeKind::Overflow => FaultKind::Overflow,
            _ => FaultKind::Underflow,
        };
        Some(RunFault {
            node,
            tick: self.nodes[node].tick,
            link: notice.link,
            kind,
        })
    }

    /// One tick of a node.
    fn tick(&mut self, node: NodeId, time: f64) -> Result<Option<RunFault>, RunError> {
        let tick = self.nodes[node].tick;
        if let Some(fault) = self.decide(node, tick, time)? {
            return Ok(Some(fault));
        }
        let is_told = self.knowledge.is_told(node) || self.is_left_out(node);
        if tick == self.span.begun_tick && !is_told {
            return Err(RunError::Untold { node, tick });
        }

        let mut sent: BTreeMap<LinkId, Vec<u8>> = BTreeMap::new();
        let mut expected: BTreeMap<LinkId, WaitingFrame> = BTreeMap::new();
        for (work, iteration) in self.work(node, tick) {
            match work {
                Work::Complete { actor, firing } => {
                    self.application.end(actor, firing, iteration);
                    self.span.finish(iteration);
                }
                Work::Compute { actor, firing } => {
                    self.application.start(actor, firing, iteration)?;
                }
                Work::Gather {
                    carried,
                    hop,
                    frame,
                } => {
                    let key = WaitingFrame {
                        node,
                        carried,
                        hop,
                        frame,
                        iteration,
                    };
                    let payload = take_payload(&mut self.application, &mut self.waiting, key);
                    let link = self.application.hops(carried)[hop].link;
                    let other = sent.insert(link, payload);
                    assert!(other.is_none(), "two frames on {link} in tick {tick}");
                }
                Work::Scatter {
                    carried,
                    hop,
                    frame,
                } => {
                    let link = self.application.hops(carried)[hop].link;
                    let key = WaitingFrame {
                        node,
                        carried,
                        hop: hop + 1,
                        frame,
                        iteration,
                    };
                    expected.insert(link, key);
                }
            }
        }

        self.send(node, tick, time, sent)?;
        let fault = self.take(node, tick, time, expected)?;
        self.nodes[node].tick += 1;
        Ok(fault)
    }

    /// The work of a node in a tick, with its iterations; moves the cursor on.
    fn work(&mut self, node: NodeId, tick: u64) -> Vec<(Work, u64)> {
        let PlanSpan {
            plan,
            begun_tick,
            first_tick,
            first_iteration,
            ..
        } = self.span;
        if tick < begun_tick || self.knowledge.is_halted(node) {
            return Vec::new();
        }
        let Some(tick) = tick.checked_sub(first_tick) else {
            let work = self.application.restoration().work(node, tick - begun_tick);
            return work
                .into_iter()
                .map(|work| (work, first_iteration))
                .collect();
        };
        let period = plan.period;
        let iterations = self.application.iterations - first_iteration;
        let state = &mut self.nodes[node];
        let residue = tick % period;
        if residue == 0 {
            state.cursor = 0;
        }
        let rest = &state.entries[state.cursor..];
        let due = rest.iter().take_while(|entry| entry.residue == residue);
        let mut count = 0;
        let work = due.inspect(|_| count += 1).filter_map(|entry| {
            let iteration = entry.iteration(tick, period, iterations)?;
            Some((entry.work, first_iteration + iteration))
        });
        let work = work.collect();
        state.cursor += count;
        work
    }

    /// Puts a frame on every outgoing link.
    fn send(
        &mut self,
        node: NodeId,
        tick: u64,
        time: f64,
        mut sent: BTreeMap<LinkId, Vec<u8>>,
    ) -> Result<(), RunError> {
        let network = self.network;
        for &link in network.outgoing(node) {
            if self.harm.is_down[link] {
                continue;
            }
            let payload = sent.remove(&link);
            self.frames += u64::from(payload.is_some());
            let reports = self.knowledge.reports[node].clone();
            let is_halted = self.knowledge.is_halted(node);
            let mut frame = Frame::new(payload, tick, reports, is_halted);
            let is_cut = self.harm.cuts(link, tick);
            let frame = match self.harm.of_frame(link, tick) {
                _ if is_cut => None,
                Some(FrameHarm::Lose) => None,
                Some(FrameHarm::Flip { bit }) => {
                    frame.flip(bit);
                    Some(frame)
                }
                None => Some(frame),
            };
            self.links[link].push_back(Sent { at: time, frame });
            if self.harm.begins_to_cut(link, tick) {
                self.stop_clock(ClockEvent::StopLink(link), time)?;
            }
        }
        Ok(())
    }

    /// Takes a frame from every incoming link, and sees whether it is the one that is due. What ends the run, if
    /// anything does.
    fn take(
        &mut self,
        node: NodeId,
        tick: u64,
        time: f64,
        mut expected: BTreeMap<LinkId, WaitingFrame>,
    ) -> Result<Option<RunFault>, RunError> {
        let network = self.network;
        for &link in network.incoming(node) {
            if self.harm.is_down[link] {
                continue;
            }
            let due = expected.remove(&link);
            let Err(kind) = self.take_frame(link, tick, time, due) else {
                self.end_gap(link);
                continue;
            };
            let fault = RunFault {
                node,
                tick,
                link,
                kind,
            };
            if let Some(fault) = self.miss(fault, due.is_some()) {
                return Ok(Some(fault));
            }
        }
        Ok(None)
    }

    fn take_frame(
        &mut self,
        link: LinkId,
        tick: u64,
        time: f64,
        due: Option<WaitingFrame>,
    ) -> Result<(), FaultKind> {
        let latency = self.input.machine.latency_ticks;
        let LinkEnds { from, to: node } = self.network.links()[link];
        let sent = self.links[link].pop_front().ok_or({
            // A line with no signal on it looks other than one whose frames come too late.
            match self.nodes[from].is_stopped {
                true => FaultKind::Missing,
                false => FaultKind::Underflow,
            }
        })?;
        if sent.at + self.propagation > time {
            return Err(FaultKind::Underflow);
        }
        let frame = sent.frame.ok_or(FaultKind::Missing)?;
        if !frame.is_whole(tick.wrapping_sub(latency)) {
            return Err(FaultKind::Corrupt);
        }
        self.knowledge.hear(node, &frame.reports);
        if frame.is_halted && tick >= self.span.begun_tick + latency {
            self.knowledge.halt(node);
        }
        // A neighbour that knows of lost tokens sends no others.
        let Some(key) = due.filter(|_| !self.knowledge.is_halted(node)) else {
            return Ok(());
        };

        let payload = frame.payload.ok_or(FaultKind::Missing)?;
        if key.hop == self.application.hops(key.carried).len() {
            self.application.write_frame(key, &payload);
        } else {
            self.waiting.insert(key, payload);
        }
        if matches!(key.carried, Carried::Message(_)) {
            self.span.finish(key.iteration);
        }
        Ok(())
    }

    fn fills(&self) -> Option<FillRange> {
        let links = self.network.links().keys();
        let ranges = links.filter_map(|link| self.clock.fill_range(link));
        ranges.reduce(|a, b| FillRange {
            min: a.min.min(b.min),
            max: a.max.max(b.max),
        })
    }
}
