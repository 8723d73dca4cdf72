//! What goes wrong in a run, and how it goes on.
//!
//! All that a node knows of a loss is which frames did not come to it, and what its neighbours know: that is in the head of
//! each frame (`reports.rs`). A node that misses a frame with tokens, or is told that one was missed, does nothing but
//! send idle frames from then on. In a tick that follows from the reports alone, and by which they have gone through the
//! network, all nodes draw the same conclusions from them:
//!
//! - a link is lost if [`WATCHED_FRAMES`] in a row did not come, and with it the one in the other direction;
//!   nodes to which no way is left are lost too;
//! - iterations are complete if the calendar has no tick of theirs from the tick on in which the first of the missing
//!   frames was sent;
//! - the nodes of the plan for what is left get the border of the first iteration that is not complete, and the plan
//!   begins with that iteration.
//!
//! Where a loss divides the network, each part that has all borders and a plan for what it can reach could go on, with the
//! same output; the largest of them is simulated.
//!
//! What the first of these iterations needs of earlier ones is in the memory of two nodes, or was put aside when the run
//! went back to it before; frames bring it to other nodes before the plan begins (`border.rs`). Only the inputs of sources
//! and the outputs of sinks are outside of the machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use zbmd_ir::TiVec;
use zbmd_ticks::{LinkEnds, LinkId, Network, NodeId, TickLoss, VerifiedPlan, WATCHED_FRAMES};

use super::border::{KeptBorder, RestorationPlanner};
use super::calendar::{Entry, Work, calendars};
use super::error::{FaultKind, FrameHarm, Injection, Recovery, Resumption, RunFault};
use super::frames::TickedRun;
use super::reports::{Gap, GapStart, Reports};
use super::{RunError, RunInput};
use crate::clock::{ClockEvent, TimedEvent};

/// A plan, and from when on it runs.
#[derive(Clone, Debug)]
pub(super) struct PlanSpan<'a> {
    pub(super) plan: &'a VerifiedPlan,
    /// The tick of all nodes in which they turn to the plan: the first in which borders are brought to its nodes.
    pub(super) begun_tick: u64,
    /// The tick of all nodes that is the plan's first.
    pub(super) first_tick: u64,
    /// The iteration that is the plan's first.
    pub(super) first_iteration: u64,
    /// The tick after the last.
    pub(super) end_tick: u64,
    /// The last tick of the plan's first iteration, counted from the plan's first tick.
    last_entry: u64,
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
            begun_tick: 0,
            first_tick: 0,
            first_iteration: 0,
            end_tick: input.max_ticks.map_or(whole_run, |max| max.min(whole_run)),
            last_entry: last,
            steps: all.filter(is_step).count() as u64,
            open: VecDeque::new(),
            committed: 0,
        }
    }

    /// Iterations that are complete if everything was done in ticks before this one.
    fn complete_before(&self, tick: u64) -> u64 {
        let last_of_first = self.first_tick + self.last_entry;
        let complete = match tick.checked_sub(last_of_first + 1) {
            Some(ticks) => ticks / self.plan.period + 1,
            None => 0,
        };
        self.first_iteration + complete
    }

    /// A firing or a frame of an iteration is done.
    pub(super) fn finish(&mut self, iteration: u64) {
        let index = (iteration - self.committed) as usize;
        while self.open.len() <= index {
            self.open.push_back(self.steps);
        }
        self.open[index] -= 1;
        while self.open.front() == Some(&0) {
            self.open.pop_front();
            self.committed += 1;
        }
    }
}

/// Frames that do not come on a link, for as long as they do not.
#[derive(Clone, Copy, Debug)]
struct OpenGap {
    start: GapStart,
    gap: Gap,
    /// The first of them.
    fault: RunFault,
}

/// What nodes know of what goes wrong.
#[derive(Clone, Debug)]
pub(super) struct Knowledge {
    /// All that each node knows.
    pub(super) reports: TiVec<NodeId, Arc<Reports>>,
    /// What has been dealt with.
    settled: Arc<Reports>,
    /// At the receiving ends of links.
    gaps: BTreeMap<LinkId, OpenGap>,
    /// The first fault that has been reported and not been dealt with.
    pending: Option<RunFault>,
    /// Ticks until all nodes know that a link is silent.
    telling: BTreeMap<LinkId, u64>,
    /// Nodes that know that tokens were lost, and wait for a plan.
    halted: TiVec<NodeId, bool>,
    /// Nodes that do not take part any more, because another part of the network goes on.
    left_out: BTreeSet<NodeId>,
}

impl Knowledge {
    pub(super) fn new(network: &Network) -> Self {
        let settled = Arc::new(Reports::default());
        Self {
            reports: vec![settled.clone(); network.node_count()].into(),
            settled,
            gaps: BTreeMap::new(),
            pending: None,
            telling: BTreeMap::new(),
            halted: vec![false; network.node_count()].into(),
            left_out: BTreeSet::new(),
        }
    }

    /// A node takes a frame with all that its neighbour knows.
    pub(super) fn hear(&mut self, node: NodeId, told: &Arc<Reports>) {
        let known = &mut self.reports[node];
        if Arc::ptr_eq(known, told) || known.include(told) {
            return;
        }
        if told.include(known) {
            *known = told.clone();
        } else {
            Arc::make_mut(known).merge(told);
        }
    }

    /// Whether a node sends nothing but idle frames, because tokens were lost.
    pub(super) fn is_halted(&self, node: NodeId) -> bool {
        self.halted[node]
    }

    /// A node is told by a neighbour that tokens were lost.
    pub(super) fn halt(&mut self, node: NodeId) {
        self.halted[node] = true;
    }

    /// Whether a node knows of something that has not been dealt with.
    fn has_open(&self, node: NodeId) -> bool {
        let known = &self.reports[node];
        !Arc::ptr_eq(known, &self.settled) && known.open(&self.settled).next().is_some()
    }

    /// Whether a node has heard of all that has been dealt with.
    pub(super) fn is_told(&self, node: NodeId) -> bool {
        let known = &self.reports[node];
        Arc::ptr_eq(known, &self.settled) || known.include(&self.settled)
    }

    /// All that a node knows has been dealt with.
    fn settle(&mut self, node: NodeId) {
        self.settled = self.reports[node].clone();
        for known in &mut self.reports {
            if **known == *self.settled {
                *known = self.settled.clone();
            }
        }
        for (known, is_halted) in self.reports.iter().zip(&mut self.halted) {
            *is_halted = known.open(&self.settled).any(|(_, gap)| gap.has_tokens);
        }
        self.telling.clear();
        self.gaps.retain(|_, open| open.gap.frames < WATCHED_FRAMES);
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
        self.stop_clock(ClockEvent::StopNode(node), time)
    }

    /// A node or a link stops in the simulation of the clocks.
    pub(super) fn stop_clock(&mut self, event: ClockEvent, time: f64) -> Result<(), RunError> {
        let stop = TimedEvent { time, event };
        self.clock.apply(stop)?;
        self.stops.push(stop);
        Ok(())
    }

    /// A node misses a frame, or finds one that is wrong. What ends the run, if it cannot go on.
    pub(super) fn miss(&mut self, fault: RunFault, has_tokens: bool) -> Option<RunFault> {
        let is_survivable = [FaultKind::Missing, FaultKind::Corrupt].contains(&fault.kind);
        if self.input.contingencies.is_none() || !is_survivable {
            // After an over- or underflow the latency is not what it was: clock control has failed.
            return Some(fault);
        }

        let RunFault {
            node, tick, link, ..
        } = fault;
        self.knowledge.halted[node] |= has_tokens;
        let start = GapStart { tick, link };
        let gap = Gap::default();
        let open = self
            .knowledge
            .gaps
            .entry(link)
            .or_insert(OpenGap { start, gap, fault });
        if open.gap.frames == WATCHED_FRAMES {
            // The link is known to be silent, and a plan that has tokens on it will end: reports need not change any more.
            return None;
        }
        open.gap.frames += 1;
        open.gap.has_tokens |= has_tokens;
        let OpenGap { start, gap, fault } = *open;
        // One frame without tokens harms nobody.
        if gap.has_tokens || gap.frames == WATCHED_FRAMES {
            let reports = Arc::make_mut(&mut self.knowledge.reports[node]);
            if reports.add(start, gap) {
                self.knowledge.pending.get_or_insert(fault);
            }
        }
        self.extend_to(tick + WATCHED_FRAMES + 1);
        None
    }

    /// A frame came as it should.
    pub(super) fn end_gap(&mut self, link: LinkId) {
        let Some(OpenGap { gap, fault, .. }) = self.knowledge.gaps.remove(&link) else {
            return;
        };
        if !gap.has_tokens && gap.frames < WATCHED_FRAMES {
            self.recoveries.push(Recovery {
                fault,
                lost: Vec::new(),
                resumption: None,
            });
        }
    }

    /// Whether all nodes have reached their last tick, but not all iterations are complete, so that a loss has yet to be
    /// noticed.
    pub(super) fn waits_for_notice(&mut self) -> Result<bool, RunError> {
        let end_tick = self.span.end_tick;
        let is_cut_short = self.input.max_ticks.is_some_and(|max| end_tick >= max);
        let (complete, iterations) = (self.span.committed, self.application.iterations);
        if self.input.contingencies.is_none() || is_cut_short || complete == iterations {
            return Ok(false);
        }
        if end_tick == self.waited_until {
            return Err(RunError::Abandoned {
                complete,
                iterations,
            });
        }
        self.extend_to(end_tick + self.input.machine.latency_ticks + WATCHED_FRAMES + 1);
        self.waited_until = self.span.end_tick;
        self.is_extended = false;
        Ok(true)
    }

    /// Nodes go on up to a tick at least.
    fn extend_to(&mut self, tick: u64) {
        let end_tick = self.input.max_ticks.map_or(tick, |max| max.min(tick));
        if end_tick > self.span.end_tick {
            self.span.end_tick = end_tick;
            self.is_extended = true;
        }
    }

    /// Whether a node does not take part any more.
    pub(super) fn is_left_out(&self, node: NodeId) -> bool {
        self.knowledge.left_out.contains(&node) || self.harm.lost.contains(&TickLoss::Node(node))
    }

    /// The tick in which a node draws its conclusions, if it knows of anything: all that it knows is known to all by then.
    fn decision_tick(&mut self, node: NodeId) -> Option<u64> {
        if !self.knowledge.has_open(node) {
            return None;
        }
        let known = self.knowledge.reports[node].clone();
        let settled = self.knowledge.settled.clone();
        let ticks = known.open(&settled).map(|(start, _)| {
            let known_ticks = self.knowledge.telling.get(&start.link).copied();
            let telling = known_ticks.unwrap_or_else(|| self.ticks_to_tell(start.link));
            self.knowledge.telling.insert(start.link, telling);
            start.tick + WATCHED_FRAMES + telling
        });
        ticks.max()
    }

    /// A node draws its conclusions if it is time. What ends the run, if no part of the network has a plan.
    pub(super) fn decide(
        &mut self,
        node: NodeId,
        tick: u64,
        time: f64,
    ) -> Result<Option<RunFault>, RunError> {
        let Some(contingencies) = self.input.contingencies else {
            return Ok(None);
        };
        if self.is_left_out(node) {
            return Ok(None);
        }
        let Some(decision_tick) = self.decision_tick(node) else {
            return Ok(None);
        };
        self.extend_to(decision_tick + 1);
        if tick < decision_tick {
            return Ok(None);
        }

        let Some(leading) = self.leading_part() else {
            return Ok(self.knowledge.pending);
        };
        if !leading.contains(&node) {
            self.knowledge.left_out.insert(node);
            return Ok(None);
        }
        let known = self.knowledge.reports[node].clone();
        let silent = known.silent_links();
        let part = self.part_of(node, &silent);
        let lost = self.losses(&part, &silent);
        let settled = self.knowledge.settled.clone();
        let (mut first_tick, mut has_tokens) = (u64::MAX, false);
        for (start, gap) in known.open(&settled) {
            first_tick = first_tick.min(start.tick);
            has_tokens |= gap.has_tokens;
        }
        // From this tick on of its sender the first frame was missing.
        let missing_from = first_tick.saturating_sub(self.input.machine.latency_ticks);
        let iterations = self.application.iterations;
        let complete = self.span.complete_before(missing_from).min(iterations);
        assert!(
            complete <= self.span.committed,
            "the calendar is ahead of the nodes"
        );

        let plan = self.span.plan;
        let is_hit = lost.iter().any(|loss| loss.is_used_by(plan, self.network));
        let mut resumption = None;
        if (is_hit || has_tokens) && complete < iterations {
            let Some(plan) = contingencies.find(self.network, &lost) else {
                return Ok(self.knowledge.pending);
            };
            let plan = if is_hit { plan } else { self.span.plan };
            let notice = self.input.machine.notice_ticks(self.network);
            let is_in_memory =
                missing_from >= self.span.first_tick && tick - missing_from <= notice;
            let border = self.application.kept_border(complete, &part, is_in_memory);
            resumption = Some(self.resume(plan, tick, border, &lost)?);
        }
        self.settle(node, lost, resumption, time)?;
        Ok(None)
    }

    /// What a node knows has been dealt with.
    fn settle(
        &mut self,
        node: NodeId,
        lost: Vec<TickLoss>,
        resumption: Option<Resumption>,
        time: f64,
    ) -> Result<(), RunError> {
        let mut new = lost.clone();
        new.retain(|loss| !self.harm.lost.contains(loss));
        for &loss in &new {
            self.take_down(loss, time)?;
        }
        self.knowledge.settle(node);
        if let Some(fault) = self.knowledge.pending.take() {
            self.recoveries.push(Recovery {
                fault,
                lost: new,
                resumption,
            });
        }
        Ok(())
    }

    /// Nobody sends or expects anything on lost links any more.
    fn take_down(&mut self, lost: TickLoss, time: f64) -> Result<(), RunError> {
        self.harm.lost.push(lost);
        for link in self.network.links().keys() {
            if lost.takes_link(self.network, link) && !self.harm.is_down[link] {
                self.harm.is_down[link] = true;
                self.knowledge.gaps.remove(&link);
                self.stop_clock(ClockEvent::StopLink(link), time)?;
            }
        }
        Ok(())
    }

    /// Turns to a plan in a tick of all nodes: brings it the border of an iteration, and begins with that iteration.
    fn resume(
        &mut self,
        plan: &'a VerifiedPlan,
        tick: u64,
        border: KeptBorder,
        lost: &[TickLoss],
    ) -> Result<Resumption, RunError> {
        let iteration = border.iteration;
        let missing = self.application.restart(plan, border)?;
        let is_down = self.network.links().keys().map(|link| {
            let mut lost = lost.iter();
            self.harm.is_down[link] || lost.any(|loss| loss.takes_link(self.network, link))
        });
        let is_down = is_down.collect();
        let planner = RestorationPlanner::new(self.input.machine, self.network, &is_down);
        let restoration = planner.plan(self.application.aside(), missing);
        let restoration = restoration.map_err(|channel| self.application.lost_border(channel))?;
        let resumption = Resumption {
            iteration,
            tick: tick + restoration.ticks,
            restoring_ticks: restoration.ticks,
            restoring_frames: restoration.frames(),
            period: plan.period,
        };
        self.application.set_restoration(restoration);

        let durations = self.input.machine.durations(self.input.graph);
        let entries = calendars(plan, self.input.machine, self.network, &durations);
        let left = self.application.iterations - iteration;
        let mut span = PlanSpan::new(self.input, plan, &entries, left);
        span.begun_tick = tick;
        span.first_tick = resumption.tick;
        span.first_iteration = iteration;
        span.committed = iteration;
        span.end_tick += span.first_tick;
        if let Some(max) = self.input.max_ticks {
            span.end_tick = span.end_tick.min(max);
        }

        self.waiting.clear();
        for (state, entries) in self.nodes.iter_mut().zip(entries) {
            state.entries = entries;
            state.cursor = 0;
        }
        self.span = span;
        self.is_extended = true;
        Ok(resumption)
    }
}

/// Which nodes can reach each other, and how far they are.
impl TickedRun<'_> {
    /// The nodes that a node can reach and hear of, if so many links are silent.
    fn part_of(&self, node: NodeId, silent: &BTreeSet<LinkId>) -> BTreeSet<NodeId> {
        self.nodes_around(node, |link| {
            let is_silent = |link: LinkId| silent.contains(&link) || self.harm.is_down[link];
            let reverse = self.network.reverse(link);
            !is_silent(link) && !reverse.is_some_and(is_silent)
        })
    }

    /// All nodes that can be reached over some of the links.
    fn nodes_around(&self, node: NodeId, is_usable: impl Fn(LinkId) -> bool) -> BTreeSet<NodeId> {
        let mut part = BTreeSet::from([node]);
        let mut reached = vec![node];
        while let Some(node) = reached.pop() {
            for &link in self.network.outgoing(node) {
                let next = self.network.links()[link].to;
                if is_usable(link) && part.insert(next) {
                    reached.push(next);
                }
            }
        }
        part
    }

    /// What is lost to a part of the network in which some links are silent: links within it, and all other nodes.
    fn losses(&self, part: &BTreeSet<NodeId>, silent: &BTreeSet<LinkId>) -> Vec<TickLoss> {
        let others = self.network.nodes().filter(|node| !part.contains(node));
        let links = silent.iter().filter(|&&link| {
            let LinkEnds { from, to } = self.network.links()[link];
            part.contains(&from) && part.contains(&to)
        });
        let links: BTreeSet<TickLoss> = links
            .map(|&link| TickLoss::of_link(self.network, link))
            .collect();
        others.map(TickLoss::Node).chain(links).collect()
    }

    /// The largest part of the network that has a plan for what it can reach, and all borders; of equally large ones that with the lowest
    /// node. Known to the simulation only: it decides which part is looked at, and what that does follows from its reports.
    fn leading_part(&self) -> Option<BTreeSet<NodeId>> {
        let contingencies = self.input.contingencies?;
        let links = self.network.links();
        let is_lost = |link: LinkId| {
            let LinkEnds { from, to } = links[link];
            let is_cut = self.harm.cuts(link, self.nodes[from].tick);
            is_cut || self.nodes[from].is_stopped || self.nodes[to].is_stopped
        };
        let lost: BTreeSet<LinkId> = links.keys().filter(|&link| is_lost(link)).collect();
        let mut parts: Vec<BTreeSet<NodeId>> = Vec::new();
        for (node, state) in self.nodes.iter_enumerated() {
            if !state.is_stopped && !parts.iter().any(|part| part.contains(&node)) {
                parts.push(self.part_of(node, &lost));
            }
        }
        parts.sort_by_key(|part| std::cmp::Reverse(part.len()));
        parts.into_iter().find(|part| {
            let losses = self.losses(part, &lost);
            self.application.has_borders(part)
                && contingencies.find(self.network, &losses).is_some()
        })
    }

    /// Ticks until all nodes know that a link is silent, whether it or its sender is lost: both ends, or all neighbours of
    /// the sender, notice that, and tell the nodes that they can reach.
    fn ticks_to_tell(&self, link: LinkId) -> u64 {
        let LinkEnds { from, to } = self.network.links()[link];
        let of_link = [from, to].map(|end| {
            let lost = TickLoss::of_link(self.network, link);
            self.farthest_hops(end, lost)
        });
        let of_node = self.network.outgoing(from).iter().map(|&link| {
            let neighbour = self.network.links()[link].to;
            self.farthest_hops(neighbour, TickLoss::Node(from))
        });
        let farthest = of_node.chain(of_link).max().unwrap_or(0);
        (farthest + 1) * (self.input.machine.latency_ticks + 1)
    }

    /// Hops to the farthest node that can still be reached if something more is lost.
    fn farthest_hops(&self, from: NodeId, lost: TickLoss) -> u64 {
        let mut hops: TiVec<NodeId, Option<u64>> = vec![None; self.network.node_count()].into();
        hops[from] = Some(0);
        let mut reached = VecDeque::from([(from, 0)]);
        let mut farthest = 0;
        while let Some((node, distance)) = reached.pop_front() {
            farthest = distance;
            for &link in self.network.outgoing(node) {
                let next = self.network.links()[link].to;
                let is_lost = lost.takes_link(self.network, link);
                if !is_lost && !self.harm.is_down[link] && hops[next].is_none() {
                    hops[next] = Some(distance + 1);
                    reached.push_back((next, distance + 1));
                }
            }
        }
        farthest
    }
}
