//! The shortest period at which some placement has a timetable.

use std::collections::BTreeSet;

use zbmd_ir::{ActorId, TiVec};
use zbmd_ticks::{NodeId, TickPlan};

use crate::TickScheduleError;
use crate::attempt::{Timetable, timetable};
use crate::buffers;
use crate::order::{Firing, firing_order};
use crate::problem::Problem;

/// Periods that are tried between one that fails and one that does.
const MAX_STEPS: usize = 12;
/// Longest period that is looked at.
const MAX_PERIOD: u64 = 1 << 42;
/// Firings and frames that may be given a tick, over and over, to see whether moving an actor helps.
const MOVE_BUDGET: u64 = 400_000;

/// A placement with its shortest period.
#[derive(Clone, Debug)]
struct Found {
    placement: TiVec<ActorId, NodeId>,
    period: u64,
    timetable: Timetable,
}

/// The plan with the shortest period; of those with equal periods, that of the placement that comes first.
pub(crate) fn best_plan(
    problem: &Problem<'_>,
    bound: u64,
    placements: &[TiVec<ActorId, NodeId>],
) -> Result<TickPlan, TickScheduleError> {
    let search = Search {
        problem,
        bound,
        order: firing_order(problem),
    };
    let mut best: Option<(Found, TickPlan)> = None;
    let mut refusal = None;
    for placement in placements {
        let limit = best.as_ref().map(|(found, _)| found.period);
        if limit == Some(bound) {
            break;
        }
        let Some(found) = search.shortest(placement, limit) else {
            continue;
        };
        match search.complete(&found) {
            Ok(plan) => best = Some((found, plan)),
            Err(error) => refusal = Some(error),
        }
    }

    match best {
        Some((found, plan)) => Ok(search.improve(found, plan)),
        None => Err(refusal.unwrap_or(TickScheduleError::TooLarge {
            what: "ticks",
            found: u64::MAX,
            max: MAX_PERIOD,
        })),
    }
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    bound: u64,
    order: Vec<Firing>,
}

impl Search<'_> {
    fn attempt(&self, placement: &TiVec<ActorId, NodeId>, period: u64) -> Option<Found> {
        let timetable = timetable(self.problem, placement, &self.order, period)?;
        Some(Found {
            placement: placement.clone(),
            period,
            timetable,
        })
    }

    fn complete(&self, found: &Found) -> Result<TickPlan, TickScheduleError> {
        let timetable = found.timetable.clone();
        buffers::complete(self.problem, &found.placement, found.period, timetable)
    }

    /// The shortest period that a search by halves finds, below a limit.
    fn shortest(&self, placement: &TiVec<ActorId, NodeId>, limit: Option<u64>) -> Option<Found> {
        if let Some(found) = self.attempt(placement, self.bound) {
            return Some(found);
        }

        let mut best = match limit {
            // A placement that is not a little better is not worth a search.
            Some(limit) => {
                let period = limit - (limit / 50).max(1);
                (period > self.bound).then(|| self.attempt(placement, period))??
            }
            None => {
                // With a period in which nothing overlaps, everything has its place.
                let apart = self.attempt(placement, MAX_PERIOD)?;
                let period = apart.timetable.end.max(self.bound);
                self.attempt(placement, period).unwrap_or(apart)
            }
        };
        let mut failed = self.bound;
        for _ in 0..MAX_STEPS {
            if best.period - failed <= 1 {
                break;
            }
            let middle = failed + (best.period - failed) / 2;
            match self.attempt(placement, middle) {
                Some(found) => best = found,
                None => failed = middle,
            }
        }
        Some(best)
    }

    /// Moves one actor after the other to the nodes of those that it exchanges tokens with, and to the nodes next to its
    /// own, as long as that gives a shorter period and the budget lasts.
    fn improve(&self, mut best: Found, mut plan: TickPlan) -> TickPlan {
        let frames: u64 = plan.messages.iter().map(|m| m.hops.len() as u64).sum();
        let effort = self.order.len() as u64 + frames + 1;
        let mut attempts = MOVE_BUDGET / effort;
        let mut is_better = true;
        while std::mem::take(&mut is_better) {
            for actor in self.problem.graph.actors.keys() {
                for node in self.targets(&best.placement, actor) {
                    if best.period <= self.bound || attempts == 0 {
                        return plan;
                    }
                    attempts -= 1;
                    let mut placement = best.placement.clone();
                    placement[actor] = node;
                    let Some(found) = self.attempt(&placement, best.period - 1) else {
                        continue;
                    };
                    let found = self
                        .shortest(&placement, Some(found.period))
                        .unwrap_or(found);
                    if let Ok(better) = self.complete(&found) {
                        (best, plan) = (found, better);
                        is_better = true;
                    }
                }
            }
        }
        plan
    }

    fn targets(&self, placement: &TiVec<ActorId, NodeId>, actor: ActorId) -> BTreeSet<NodeId> {
        let problem = self.problem;
        let writers = problem.inputs[actor].iter();
        let writers = writers.map(|input| problem.streams[input.channel].writer);
        let outputs = problem.outputs[actor].iter();
        let readers = outputs.flat_map(|&channel| problem.streams[channel].readers.iter().copied());
        let mut targets: BTreeSet<NodeId> = writers.chain(readers).map(|a| placement[a]).collect();
        let links = problem.network.outgoing(placement[actor]).iter();
        targets.extend(links.map(|&link| problem.network.links()[link].to));
        targets.remove(&placement[actor]);
        targets
    }
}
