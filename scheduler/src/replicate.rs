//! Which actors could run on several devices at once, each replica on every k-th run of firings, and how many replicas
//! would even out the work ("fission"). Rewrites no graph and makes no plan: that a plan is quicker with replicas is
//! for the caller to find out by making it.
//!
//! Source: Gordon, Thies & Amarasinghe 2006, "Exploiting coarse-grained task, data, and pipeline parallelism in stream
//! programs", ASPLOS.

use std::collections::BTreeMap;

use zbmd_ir::{Actor, ActorId, Costs, DeviceId, Graph, Plan, Role, TiVec};

use crate::analysis::{AnalysisError, EdgeList, repetition_over};
use crate::cluster::components;
use crate::cost::{self, MIN_GAIN_PERCENT, PS_PER_NS};
use crate::inputs::{Inputs, RepetitionVector, allowed_devices};

/// Why an actor cannot be replicated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Only kernels can.
    #[error("it is a source or a sink")]
    Stream,
    /// Each firing needs the one before.
    #[error("it keeps a state")]
    State,
    /// Tokens would have to go to several replicas.
    #[error("input `{port}` takes {rate} tokens a firing and looks at {window}")]
    Window {
        /// Name of the input.
        port: String,
        /// Tokens taken in a firing.
        rate: u64,
        /// Tokens looked at in a firing.
        window: u64,
    },
    /// Replicas fire a whole round of runs at once, and its tokens might not have come round by then.
    #[error("it lies on a cycle")]
    Cycle,
    /// Nothing tells the firings of replicas apart.
    #[error("it has no inputs or no outputs")]
    Ports,
}

/// What keeps each actor from being replicated; `None` where nothing does. O(actors + channels).
///
/// The graph must have passed `zbmd_ir::verify::check_graph`.
pub fn obstacles(graph: &Graph) -> TiVec<ActorId, Option<Obstacle>> {
    let edges = EdgeList::of(graph);
    let mut is_cyclic: TiVec<ActorId, bool> = graph.actors.iter().map(|_| false).collect();
    for members in components(&edges, graph.actors.len(), |_| true) {
        let first = members[0];
        // However many initial tokens the cycle has: replicas fire whole rounds at once.
        let on_cycle =
            members.len() > 1 || edges.edges_into(first).any(|edge| edge.writer == first);
        for actor in members {
            is_cyclic[actor] = on_cycle;
        }
    }

    let actors = graph.actors.iter_enumerated();
    actors
        .map(|(id, actor)| obstacle(actor, is_cyclic[id]))
        .collect()
}

fn obstacle(actor: &Actor, is_cyclic: bool) -> Option<Obstacle> {
    if actor.role != Role::Compute {
        return Some(Obstacle::Stream);
    }
    if !actor.state.is_empty() {
        return Some(Obstacle::State);
    }
    if actor.inputs.is_empty() || actor.outputs.is_empty() {
        return Some(Obstacle::Ports);
    }

    let mut inputs = actor.inputs.iter();
    if let Some(port) = inputs.find(|port| port.window != port.rate) {
        return Some(Obstacle::Window {
            port: port.name.clone(),
            rate: port.rate,
            window: port.window,
        });
    }
    is_cyclic.then_some(Obstacle::Cycle)
}

/// Replicas of each actor that has more than one.
pub type Factors = BTreeMap<ActorId, u32>;

/// What is asked of [`candidates`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Largest number of replicas of one actor.
    pub max_replicas: u32,
    /// Only replicas that divide the firings of an iteration evenly, so that the iteration stays what it is.
    pub same_iteration: bool,
}

/// What fraction of a device's even share of the work an actor is to be too small for replicas.
const SMALL: u64 = 4;

/// Largest number of candidates that [`candidates`] names.
pub const MAX_CANDIDATES: usize = 9;

/// Numbers of replicas that may be worth a plan, given the plan without: those that would even the work of the devices
/// out, then more and fewer. Empty where the plan is within a few percent of what even work takes on as many devices as are
/// of use, or no actor that can be replicated stands out of the work. O(actors) for each.
///
/// # Errors
/// [`AnalysisError`] for a graph without a repetition vector.
pub fn candidates(
    inputs: Inputs<'_>,
    plan: &Plan,
    bounds: Bounds,
) -> Result<Vec<Factors>, AnalysisError> {
    let repetition = repetition_over(inputs.graph, &EdgeList::of(inputs.graph))?;
    let devices = allowed_devices(inputs.machine, inputs.options.devices.as_deref());
    let works = block_works(inputs, &devices, &repetition, plan.block);
    let splits: TiVec<ActorId, Vec<ReplicaSplit>> = works
        .iter_enumerated()
        .map(|(actor, work)| possible_splits(repetition[actor], work, bounds))
        .collect();

    let total_ps: u128 = works.iter().map(|work| u128::from(work.ps)).sum();
    let useful_devices = useful_devices(total_ps, largest_piece(&works, &splits), devices.len());
    let even_ps = u64::try_from(total_ps / u128::from(useful_devices)).unwrap_or(u64::MAX);
    let can_split = works.keys().filter(|&actor| !splits[actor].is_empty());
    let Some(heaviest_ps) = can_split.map(|actor| works[actor].ps).max() else {
        return Ok(Vec::new());
    };
    // Actors that are small beside a device's share can be evened out as they are: something else holds them up.
    if heaviest_ps < even_ps / SMALL {
        return Ok(Vec::new());
    }

    let balanced = heaviest_ps.div_ceil(even_ps.max(1));
    let any_unlike = works.iter().any(|work| work.devices > 1 && work.unlike);
    let balance = Balance {
        works: &works,
        splits: &splits,
        even_ps,
        heaviest_ps,
    };
    let period_ps = plan.period_ns.saturating_mul(PS_PER_NS);
    let mut found: Vec<Factors> = Vec::new();
    for parts in numbers_of_parts(balanced, useful_devices, any_unlike) {
        let (factors, max_share_ps) = balance.divide(parts);
        // A plan that cannot be much shorter is not worth making.
        let worth_ps = period_ps.saturating_mul(100 - MIN_GAIN_PERCENT);
        let may_gain = max_share_ps.saturating_mul(100) < worth_ps;
        if may_gain && !factors.is_empty() && !found.contains(&factors) {
            found.push(factors);
        }
    }
    Ok(found)
}

/// The largest piece of work that is left when every actor has as many replicas as it can: no period is shorter.
fn largest_piece(
    works: &TiVec<ActorId, BlockWork>,
    splits: &TiVec<ActorId, Vec<ReplicaSplit>>,
) -> u64 {
    let pieces = works.iter().zip(splits).map(|(work, splits)| {
        let shares = splits.iter().map(|split| split.share_ps(work.ps));
        shares.min().unwrap_or(work.ps)
    });
    pieces.max().unwrap_or(0)
}

/// Devices beyond which more of them cannot shorten the period, however many there are: those that the work fills when
/// each has as much as the largest piece. At least 1.
fn useful_devices(total_ps: u128, largest_piece_ps: u64, devices: usize) -> u64 {
    let filled = total_ps.div_ceil(u128::from(largest_piece_ps.max(1)));
    filled.min(devices as u128).max(1) as u64
}

/// Into how many parts the heaviest actor may be divided: about as many as even out the work first, then as many as
/// devices, then fewer.
fn numbers_of_parts(balanced: u64, devices: u64, any_unlike: bool) -> Vec<u64> {
    let balanced = balanced.clamp(2, devices.max(2));
    let mut numbers = vec![
        balanced,
        balanced + 1,
        balanced - 1,
        devices,
        balanced.div_ceil(2),
        2,
    ];
    if any_unlike {
        // A device that is quicker than another takes several of the smaller shares.
        numbers.extend([devices + 1, 2 * devices, 3 * devices]);
    }
    numbers.retain(|&parts| parts > 1);
    numbers
}

/// What the heaviest actor is divided by, and the others with it.
struct Balance<'a> {
    works: &'a TiVec<ActorId, BlockWork>,
    splits: &'a TiVec<ActorId, Vec<ReplicaSplit>>,
    /// Work of each device if all had the same.
    even_ps: u64,
    /// Work of the heaviest actor that can be divided.
    heaviest_ps: u64,
}

impl Balance<'_> {
    /// Replicas with which no actor's share is much more than one of so many parts of the heaviest one, and the
    /// largest work that one device then has at least.
    fn divide(&self, parts: u64) -> (Factors, u64) {
        let whole_ps = u128::from(self.heaviest_ps.max(1));
        let mut factors = Factors::new();
        let mut max_share_ps = self.even_ps;

        for (actor, work) in self.works.iter_enumerated() {
            // As many as make its share about that of the heaviest one; two percent more are no reason for another.
            let shares = u128::from(work.ps) * u128::from(parts);
            let wanted = shares.saturating_sub(whole_ps / 50).div_ceil(whole_ps) as u64;
            match choose_split(&self.splits[actor], wanted) {
                Some(split) => {
                    factors.insert(actor, split.replicas);
                    max_share_ps = max_share_ps.max(split.share_ps(work.ps));
                }
                None => max_share_ps = max_share_ps.max(work.ps),
            }
        }
        (factors, max_share_ps)
    }
}

/// Whether a period is so much shorter than another that it is worth replicas. Both are in any unit.
pub fn is_worth(period: u128, without: u128) -> bool {
    period.saturating_mul(100) < without.saturating_mul(u128::from(100 - MIN_GAIN_PERCENT))
}

/// Work of an actor in a block.
struct BlockWork {
    /// Picoseconds on the quickest device.
    ps: u64,
    /// Devices that it may be spread over; 1 if it cannot be replicated.
    devices: u32,
    /// Whether one of them takes longer than another.
    unlike: bool,
}

fn block_works(
    inputs: Inputs<'_>,
    devices: &[DeviceId],
    repetition: &RepetitionVector,
    block: u64,
) -> TiVec<ActorId, BlockWork> {
    let mut works = TiVec::new();

    for (actor, obstacle) in obstacles(inputs.graph).into_iter_enumerated() {
        let firings = repetition[actor].saturating_mul(block);
        let works_ps = work_on_devices(inputs.costs, actor, devices, firings);
        let min_ps = works_ps.iter().copied().min();
        let is_fixed = obstacle.is_some() || inputs.options.pins.contains_key(&actor);
        works.push(BlockWork {
            ps: min_ps.unwrap_or(0),
            devices: if is_fixed { 1 } else { works_ps.len() as u32 },
            unlike: min_ps != works_ps.iter().copied().max(),
        });
    }
    works
}

/// Picoseconds of so many firings of an actor on each of the devices that can run it.
fn work_on_devices(costs: &Costs, actor: ActorId, devices: &[DeviceId], firings: u64) -> Vec<u64> {
    devices
        .iter()
        .filter_map(|&device| costs.table[actor][device])
        .map(|cost| cost::work_ps(cost, 1, firings))
        .collect()
}

/// A number of replicas of an actor.
#[derive(Clone, Copy, Debug)]
struct ReplicaSplit {
    replicas: u32,
    /// Replicas that one device has.
    rounds: u32,
}

impl ReplicaSplit {
    /// What one device has of a work.
    fn share_ps(self, work_ps: u64) -> u64 {
        let rounds_ps = u128::from(work_ps) * u128::from(self.rounds);
        (rounds_ps / u128::from(self.replicas)) as u64
    }

    /// Whether the work is divided by so much.
    fn reaches(self, wanted: u64) -> bool {
        u64::from(self.replicas) >= wanted.saturating_mul(self.rounds.into())
    }

    /// Whether it divides the work by more than another does.
    fn divides_more(self, other: ReplicaSplit) -> bool {
        let own = u64::from(self.replicas) * u64::from(other.rounds);
        own > u64::from(other.replicas) * u64::from(self.rounds)
    }
}

/// Largest number of replicas for each device, where as many as devices do not divide the firings or the devices are
/// unlike.
const MAX_ROUNDS: u32 = 4;

/// Numbers of replicas, ascending, that are possible for so many firings in an iteration.
fn possible_splits(firings: u64, work: &BlockWork, bounds: Bounds) -> Vec<ReplicaSplit> {
    if work.devices < 2 {
        return Vec::new();
    }
    let max_rounds = match bounds.same_iteration || work.unlike {
        true => MAX_ROUNDS,
        false => 1,
    };
    let max_replicas = work
        .devices
        .saturating_mul(max_rounds)
        .min(bounds.max_replicas);

    (2..=max_replicas)
        .filter(|&replicas| !bounds.same_iteration || firings.is_multiple_of(replicas.into()))
        .map(|replicas| ReplicaSplit {
            replicas,
            rounds: match work.unlike {
                // The slower ones may have none: how many one device has is not known.
                true => 1,
                false => replicas.div_ceil(work.devices),
            },
        })
        .collect()
}

/// The fewest replicas that divide the work by so much, or else those that divide it the most.
fn choose_split(splits: &[ReplicaSplit], wanted: u64) -> Option<ReplicaSplit> {
    if wanted < 2 {
        return None;
    }
    let first_enough = splits.iter().copied().find(|split| split.reaches(wanted));
    first_enough.or_else(|| {
        splits.iter().copied().reduce(|best, split| {
            if split.divides_more(best) {
                split
            } else {
                best
            }
        })
    })
}

#[cfg(test)]
mod tests;
