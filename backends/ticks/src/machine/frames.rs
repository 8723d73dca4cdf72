//! Runs that visit every node in each of its ticks, in the order of simulated time, with clocks that drift.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use zbmd_ir::TiVec;
use zbmd_ticks::{LinkId, Network, NodeId};

use super::application::Application;
use super::calendar::{Entry, Work};
use super::error::{FaultKind, Injection, InjectionKind, RunFault};
use super::events::take_payload;
use super::{RunError, RunInput, RunOutcome, WaitingFrame};
use crate::clock::{ClockSimulation, FillRange, NoticeKind};

/// What is on a link. An idle frame has no payload, but a check sum all the same.
#[derive(Clone, Debug, Default)]
struct Frame {
    payload: Option<Vec<u8>>,
    check_sum: u32,
}

impl Frame {
    fn new(payload: Option<Vec<u8>>, tick: u64) -> Self {
        let check_sum = check_sum(payload.as_deref(), tick);
        Self { payload, check_sum }
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
struct NodeState {
    tick: u64,
    forecast: u64,
    entries: Vec<Entry>,
    /// Index of the first entry of the next tick.
    cursor: usize,
}

struct TickedRun<'a> {
    input: &'a RunInput<'a>,
    network: &'a Network,
    clock: ClockSimulation<'a>,
    application: Application<'a>,
    nodes: TiVec<NodeId, NodeState>,
    links: TiVec<LinkId, VecDeque<Sent>>,
    /// What happens to frames of each link, by the sender's tick.
    injections: BTreeMap<(LinkId, u64), InjectionKind>,
    cut_from: BTreeMap<LinkId, u64>,
    waiting: BTreeMap<WaitingFrame, Vec<u8>>,
    propagation: f64,
    frames: u64,
}

pub(super) fn run<'a>(
    input: &'a RunInput<'a>,
    network: &'a Network,
    application: Application<'a>,
    entries: TiVec<NodeId, Vec<Entry>>,
    ticks: u64,
) -> Result<RunOutcome, RunError> {
    let clocks = input.machine.clocks();
    let latency = input.machine.latency_ticks;
    let clock = ClockSimulation::with_latency(network, &clocks, latency)?;
    // Before the first tick all nodes have sent idle frames.
    let idle = (0..latency).map(|tick| Sent {
        at: f64::NEG_INFINITY,
        frame: Some(Frame::new(None, tick.wrapping_sub(latency))),
    });
    let idle: VecDeque<Sent> = idle.collect();
    let nodes = entries.into_iter().map(|entries| NodeState {
        tick: 0,
        forecast: 0,
        entries,
        cursor: 0,
    });
    let mut run = TickedRun {
        input,
        network,
        clock,
        application,
        nodes: nodes.collect(),
        links: vec![idle; network.links().len()].into(),
        injections: BTreeMap::new(),
        cut_from: BTreeMap::new(),
        waiting: BTreeMap::new(),
        propagation: clocks.propagation_ticks,
        frames: 0,
    };
    run.inject(input.injections);
    let fault = run.run(ticks)?;
    Ok(RunOutcome {
        fills: run.fills(),
        iterations: run.application.iterations,
        outputs: run.application.into_outputs(),
        ticks,
        frames: run.frames,
        fault,
    })
}

impl TickedRun<'_> {
    fn inject(&mut self, injections: &[Injection]) {
        for injection in injections {
            if injection.kind == InjectionKind::Cut {
                let from = self.cut_from.entry(injection.link).or_insert(u64::MAX);
                *from = (*from).min(injection.tick);
            } else {
                let key = (injection.link, injection.tick);
                self.injections.insert(key, injection.kind);
            }
        }
    }

    fn run(&mut self, ticks: u64) -> Result<Option<RunFault>, RunError> {
        let mut queue = BinaryHeap::new();
        for node in self.network.nodes() {
            queue.push(Reverse(self.forecast(node)));
        }
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
            if next.forecast != self.nodes[next.node].forecast {
                continue;
            }
            if self.nodes[next.node].tick >= ticks {
                continue;
            }
            if let Some(fault) = self.tick(next.node, next.time)? {
                return Ok(Some(fault));
            }
            queue.push(Reverse(self.forecast(next.node)));
        }
        Ok(None)
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
        let mut sent: BTreeMap<LinkId, Vec<u8>> = BTreeMap::new();
        let mut expected: BTreeMap<LinkId, WaitingFrame> = BTreeMap::new();
        for (work, iteration) in self.work(node, tick) {
            match work {
                Work::Complete { actor, firing } => self.application.end(actor, firing, iteration),
                Work::Compute { actor, firing } => {
                    self.application.start(actor, firing, iteration)?;
                }
                Work::Gather {
                    message,
                    hop,
                    frame,
                } => {
                    let key = WaitingFrame {
                        node,
                        message,
                        hop,
                        frame,
                        iteration,
                    };
                    let payload = take_payload(&mut self.application, &mut self.waiting, key);
                    sent.insert(self.input.plan.messages[message].hops[hop].link, payload);
                }
                Work::Scatter {
                    message,
                    hop,
                    frame,
                } => {
                    let link = self.input.plan.messages[message].hops[hop].link;
                    let key = WaitingFrame {
                        node,
                        message,
                        hop: hop + 1,
                        frame,
                        iteration,
                    };
                    expected.insert(link, key);
                }
            }
        }
        self.send(node, tick, time, sent);
        let fault = self.take(node, tick, time, &expected);
        self.nodes[node].tick += 1;
        Ok(fault)
    }

    /// The work of a node in a tick, with its iterations; moves the cursor on.
    fn work(&mut self, node: NodeId, tick: u64) -> Vec<(Work, u64)> {
        let period = self.input.plan.period;
        let iterations = self.application.iterations;
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
            Some((entry.work, iteration))
        });
        let work = work.collect();
        state.cursor += count;
        work
    }

    /// Puts a frame on every outgoing link.
    fn send(&mut self, node: NodeId, tick: u64, time: f64, mut sent: BTreeMap<LinkId, Vec<u8>>) {
        for &link in self.network.outgoing(node) {
            let payload = sent.remove(&link);
            self.frames += u64::from(payload.is_some());
            let mut frame = Some(Frame::new(payload, tick));
            match self.injections.get(&(link, tick)) {
                Some(InjectionKind::Flip { bit }) => {
                    if let Some(frame) = &mut frame {
                        frame.flip(*bit);
                    }
                }
                Some(InjectionKind::Lose | InjectionKind::Cut) => frame = None,
                None => (),
            }
            if self.cut_from.get(&link).is_some_and(|&from| tick >= from) {
                frame = None;
            }
            self.links[link].push_back(Sent { at: time, frame });
        }
    }

    /// Takes a frame from every incoming link, and sees whether it is the one that is due.
    fn take(
        &mut self,
        node: NodeId,
        tick: u64,
        time: f64,
        expected: &BTreeMap<LinkId, WaitingFrame>,
    ) -> Option<RunFault> {
        let latency = self.input.machine.latency_ticks;
        for &link in self.network.incoming(node) {
            let fault = |kind: FaultKind| {
                Some(RunFault {
                    node,
                    tick,
                    link,
                    kind,
                })
            };
            let sent = self.links[link].pop_front();
            let arrived = sent.filter(|sent| sent.at + self.propagation <= time);
            let Some(Sent { frame, .. }) = arrived else {
                return fault(FaultKind::Underflow);
            };
            let Some(frame) = frame else {
                return fault(FaultKind::Missing);
            };
            if !frame.is_whole(tick.wrapping_sub(latency)) {
                return fault(FaultKind::Corrupt);
            }
            let Some(&key) = expected.get(&link) else {
                continue;
            };
            let Some(payload) = frame.payload else {
                return fault(FaultKind::Missing);
            };
            if key.hop == self.input.plan.messages[key.message].hops.len() {
                let WaitingFrame {
                    message,
                    frame,
                    iteration,
                    ..
                } = key;
                self.application
                    .write_frame(message, frame, iteration, &payload);
            } else {
                self.waiting.insert(key, payload);
            }
        }
        None
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
