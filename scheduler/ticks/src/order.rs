//! The order in which firings are given their ticks.

use std::collections::BinaryHeap;

use zbmd_ir::{ActorId, TiVec};

use crate::problem::Problem;

/// A firing of iteration 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Firing {
    pub(crate) actor: ActorId,
    pub(crate) index: u64,
}

/// All firings, each after those of the same iteration that it depends on; where there is a choice, the one with the
/// longest way to an end of the graph first.
pub(crate) fn firing_order(problem: &Problem<'_>) -> Vec<Firing> {
    let none: TiVec<ActorId, Vec<u64>> = vec![Vec::new(); problem.firings.len()].into();
    let any_order = token_order(problem, &none);
    let levels = bottom_levels(problem, &any_order);
    token_order(problem, &levels)
}

/// A firing that waits for its turn: the largest goes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ready {
    level: u64,
    firing: std::cmp::Reverse<Firing>,
}

fn token_order(problem: &Problem<'_>, levels: &TiVec<ActorId, Vec<u64>>) -> Vec<Firing> {
    let mut done: TiVec<ActorId, u64> = vec![0; problem.firings.len()].into();
    let mut queued: TiVec<ActorId, bool> = vec![false; problem.firings.len()].into();
    let mut ready = BinaryHeap::new();
    let mut order = Vec::new();

    let wake = |actor: ActorId,
                done: &TiVec<ActorId, u64>,
                queued: &mut TiVec<ActorId, bool>,
                ready: &mut BinaryHeap<Ready>| {
        let index = done[actor];
        if index < problem.firings[actor] && !queued[actor] && is_ready(problem, done, actor) {
            queued[actor] = true;
            let level = levels[actor].get(index as usize).copied().unwrap_or(0);
            let firing = std::cmp::Reverse(Firing { actor, index });
            ready.push(Ready { level, firing });
        }
    };
    for actor in problem.firings.keys() {
        wake(actor, &done, &mut queued, &mut ready);
    }
    while let Some(Ready { firing, .. }) = ready.pop() {
        let actor = firing.0.actor;
        order.push(firing.0);
        done[actor] += 1;
        queued[actor] = false;
        wake(actor, &done, &mut queued, &mut ready);
        for &channel in &problem.outputs[actor] {
            for &reader in &problem.streams[channel].readers {
                wake(reader, &done, &mut queued, &mut ready);
            }
        }
    }
    order
}

fn is_ready(problem: &Problem<'_>, done: &TiVec<ActorId, u64>, actor: ActorId) -> bool {
    problem.inputs[actor].iter().all(|input| {
        let mut dependencies = problem.dependencies(input, done[actor]);
        let writer = problem.streams[input.channel].writer;
        dependencies.all(|d| d.iterations > 0 || d.firing < done[writer])
    })
}

/// For each firing the ticks from its start to the end of what depends on it within the iteration, all on one node.
fn bottom_levels(problem: &Problem<'_>, order: &[Firing]) -> TiVec<ActorId, Vec<u64>> {
    let firings = problem.firings.iter();
    let levels = firings.map(|&firings| vec![0_u64; firings as usize]);
    let mut levels: TiVec<ActorId, Vec<u64>> = levels.collect();
    for &Firing { actor, index } in order.iter().rev() {
        let later = levels[actor].get(index as usize + 1).copied().unwrap_or(0);
        let level = levels[actor][index as usize].max(later) + problem.durations[actor];
        levels[actor][index as usize] = level;
        for input in &problem.inputs[actor] {
            let writer = problem.streams[input.channel].writer;
            for dependency in problem.dependencies(input, index) {
                if dependency.iterations == 0 {
                    let before = &mut levels[writer][dependency.firing as usize];
                    *before = (*before).max(level);
                }
            }
        }
    }
    levels
}
