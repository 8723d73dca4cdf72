//! What goes wrong in a run, and how it goes on.
//!
//! A node that misses a frame tells its neighbours, they tell theirs, and in a tick that all know of by then, all begin
//! the plan for what is left, with the first iteration that was not complete. Until then they send idle frames. What
//! iterations leave to later ones is kept outside of the machine as it is written, like the outputs of sinks, and so
//! survives any loss; that takes no ticks here, and neither does bringing it back.

use std::collections::{BTreeMap, VecDeque};

use zbmd_ir::TiVec;
use zbmd_ticks::{LinkEnds, LinkId, Network, NodeId, TickLoss, VerifiedPlan};

use super::calendar::{Entry, Work, calendars};
use super::error::{FaultKind, FrameHarm, Injection, Recovery, Resumption, RunFault};
use super::frames::TickedRun;
use super::{RunError, RunInput};

/// A plan, and from when on it runs.
#[derive(Clone, Debug)]
pub(super) struct PlanSpan<'a> {
    pub(super) plan: &'a VerifiedPlan,
    /// The tick of all nodes that is the plan's first.
    pub(super) first_tick: u64,
    /// The iteration that is the plan's first.
    pub(super) first_iteration: u64,
    /// The tick after the last.
    pub(super) end_tick: u64,
    /// Firings and frames of an iteration.
    steps: u64,
    /// Those that are not done yet of each iteration, from the first that is not complete.
    open: VecDeque<u64>,
    /// Iterations that are complete.
    pub(super) committed: u64,
}

impl<'a> PlanSpan<'a> {
    /// A plan that runs from the first tick and the first iteration on.
    pub(super) fn new(
        input: &RunInput<'_>,
        plan: &'a VerifiedPlan,
        entries: &TiVec<NodeId, Vec<Entry>>,
        iterations: u64,
    ) -> Self {
        let all = entries.iter().flatten();
        let last = all.clone().map(|entry| entry.start).max().unwrap_or(0);
        let is_step =
            |entry: &&Entry| matches!(entry.work, Work::Complete { .. } | Work::Scatter { .. });
        let whole_run = match iterations {
            0 => 0,
            iterations => last + 1 + (iterations - 1) * plan.period,
        };
        Self {
            plan,
            first_tick: 0,
            first_iteration: 0,
            end_tick: input.max_ticks.map_or(whole_run, |max| max.min(whole_run)),
            steps: all.filter(is_step).count() as u64,
            open: VecDeque::new(),
            committed: 0,
        }
    }

    /// A firing or a frame of an iteration is done. How many iterations are complete.
    fn finish(&mut self, iteration: u64) -> u64 {
        let index = (iteration - self.committed) as usize;
        while self.open.len() <= index {
            self.open.push_back(self.steps);
        }
        self.open[index] -= 1;
        while self.open.front() == Some(&0) {
            self.open.pop_front();
            self.committed += 1;
        }
        self.committed
    }
}

/// What goes wrong, and what of it is known.
#[derive(Clone, Debug)]
pub(super) struct Harm {
    frames: BTreeMap<(LinkId, u64), FrameHarm>,
    cut_from: BTreeMap<LinkId, u64>,
    stop_from: BTreeMap<NodeId, u64>,
    /// Losses that have been noticed.
    pub(super) lost: Vec<TickLoss>,
    /// Links that are not used any more because of these.
    pub(super) is_down: TiVec<LinkId, bool>,
}

impl Harm {
    pub(super) fn new(network: &Network, injections: &[Injection]) -> Self {
        let mut harm = Self {
            frames: BTreeMap::new(),
            cut_from: BTreeMap::new(),
            stop_from: BTreeMap::new(),
            lost: Vec::new(),
            is_down: vec![false; network.links().len()].into(),
        };
        for injection in injections {
            match *injection {
                Injection::Frame {
                    link,
                    tick,
                    harm: kind,
                } => {
                    harm.frames.insert((link, tick), kind);
                }
                Injection::Cut { link, tick } => {
                    let from = harm.cut_from.entry(link).or_insert(tick);
                    *from = tick.min(*from);
                }
                Injection::Stop { node, tick } => {
                    let from = harm.stop_from.entry(node).or_insert(tick);
                    *from = tick.min(*from);
                }
            }
        }
        harm
    }

    /// Whether a frame that is sent in a tick is lost because the link is.
    pub(super) fn cuts(&self, link: LinkId, tick: u64) -> bool {
        self.cut_from.get(&link).is_some_and(|&from| tick >= from)
    }

    pub(super) fn begins_to_cut(&self, link: LinkId, tick: u64) -> bool {
        self.cut_from.get(&link) == Some(&tick)
    }

    pub(super) fn stops(&self, node: NodeId, tick: u64) -> bool {
        self.stop_from.get(&node).is_some_and(|&from| tick >= from)
    }

    pub(super) fn of_frame(&self, link: LinkId, tick: u64) -> Option<FrameHarm> {
        self.frames.get(&(link, tick)).copied()
    }
}

impl<'a> TickedRun<'a> {
    pub(super) fn stop(&mut self, node: NodeId, time: f64) -> Result<(), RunError> {
        self.nodes[node].is_stopped = true;
        self.clock.stop_node_at(node, time)?;
        Ok(())
    }

    /// A firing or a frame of an iteration is done.
    pub(super) fn finish(&mut self, iteration: u64) {
        let before = self.span.committed;
        let committed = self.span.finish(iteration);
        if committed > before {
            self.application.commit(committed);
        }
    }

    /// Finds a way to go on after a fault, which may have taken tokens along. Whether there is one.
    pub(super) fn recover(
        &mut self,
        fault: RunFault,
        has_taken_tokens: bool,
        time: f64,
    ) -> Result<bool, RunError> {
        let Some(contingencies) = self.input.contingencies else {
            return Ok(false);
        };
        if ![FaultKind::Missing, FaultKind::Corrupt].contains(&fault.kind) {
            // The link's latency is not what it was: clock control has failed.
            return Ok(false);
        }

        let lost = self.diagnose(fault);
        if let Some(lost) = lost {
            self.take_down(lost, time)?;
        }
        let plan = self.span.plan;
        let is_hit = lost.is_some_and(|lost| lost.is_used_by(plan, self.network));
        let is_complete = self.span.committed == self.application.iterations;
        let mut resumption = None;
        if (is_hit || has_taken_tokens) && !is_complete {
            let usable = match is_hit {
                true => contingencies.find(self.network, &self.harm.lost),
                false => Some(plan),
            };
            let Some(plan) = usable else {
                return Ok(false);
            };
            resumption = Some(self.resume(plan, fault, lost)?);
        }
        self.recoveries.push(Recovery {
            fault,
            lost,
            resumption,
        });
        Ok(true)
    }

    /// What is lost for good: the node, if it sends nothing on any link; the link, if it is only that one. The next ticks
    /// show it, and nobody uses what they learn before these are over.
    fn diagnose(&self, fault: RunFault) -> Option<TickLoss> {
        let sender = self.network.links()[fault.link].from;
        if self.nodes[sender].is_stopped {
            return Some(TickLoss::Node(sender));
        }
        let sent = fault.tick.checked_sub(self.input.machine.latency_ticks)?;
        let is_cut = self.harm.cuts(fault.link, sent);
        is_cut.then(|| TickLoss::of_link(self.network, fault.link))
    }

    /// Nobody sends or expects anything on lost links any more.
    fn take_down(&mut self, lost: TickLoss, time: f64) -> Result<(), RunError> {
        self.harm.lost.push(lost);
        for link in self.network.links().keys() {
            if lost.takes_link(self.network, link) && !self.harm.is_down[link] {
                self.harm.is_down[link] = true;
                self.clock.stop_link(link, time)?;
            }
        }
        Ok(())
    }

    /// Begins a plan with the first iteration that is not complete, in a tick by which all nodes have been told.
    fn resume(
        &mut self,
        plan: &'a VerifiedPlan,
        fault: RunFault,
        lost: Option<TickLoss>,
    ) -> Result<Resumption, RunError> {
        let iteration = self.span.committed;
        let durations = self.input.machine.durations(self.input.graph);
        let entries = calendars(plan, self.input.machine, self.network, &durations);
        let left = self.application.iterations - iteration;
        let mut span = PlanSpan::new(self.input, plan, &entries, left);
        span.first_tick = fault.tick + 1 + self.ticks_to_tell(fault.node, lost);
        span.first_iteration = iteration;
        span.committed = iteration;
        span.end_tick += span.first_tick;
        if let Some(max) = self.input.max_ticks {
            span.end_tick = span.end_tick.min(max);
        }

        self.application.restart(plan, iteration);
        self.waiting.clear();
        for (state, entries) in self.nodes.iter_mut().zip(entries) {
            state.entries = entries;
            state.cursor = 0;
        }
        let resumption = Resumption {
            iteration,
            tick: span.first_tick,
            period: plan.period,
        };
        self.span = span;
        self.is_extended = true;
        Ok(resumption)
    }

    /// Ticks until all nodes know of a fault. The other end of a lost link notices it when nothing comes back, and tells
    /// the nodes that only it can reach.
    fn ticks_to_tell(&self, node: NodeId, lost: Option<TickLoss>) -> u64 {
        let tick_of_hop = self.input.machine.latency_ticks + 1;
        let others = match lost {
            None => vec![node],
            Some(TickLoss::Node(lost)) => {
                let links = self.network.outgoing(lost).iter();
                links.map(|&link| self.network.links()[link].to).collect()
            }
            Some(TickLoss::Link(link)) => {
                let LinkEnds { from, to } = self.network.links()[link];
                vec![from, to]
            }
        };
        let farthest = others.into_iter().map(|end| self.farthest_hops(end)).max();
        (farthest.unwrap_or(0) + 1) * tick_of_hop
    }

    /// Hops to the farthest node that can still be reached.
    fn farthest_hops(&self, from: NodeId) -> u64 {
        let mut hops: TiVec<NodeId, Option<u64>> = vec![None; self.network.node_count()].into();
        hops[from] = Some(0);
        let mut reached = VecDeque::from([(from, 0)]);
        let mut farthest = 0;
        while let Some((node, distance)) = reached.pop_front() {
            farthest = distance;
            for &link in self.network.outgoing(node) {
                let next = self.network.links()[link].to;
                if !self.harm.is_down[link] && hops[next].is_none() {
                    hops[next] = Some(distance + 1);
                    reached.push_back((next, distance + 1));
                }
            }
        }
        farthest
    }
}
