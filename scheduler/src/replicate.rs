//! Which actors could run on several devices at once, each replica on every k-th run of firings, and how many replicas
//! would even out the work ("fission"). Rewrites no graph and makes no plan: that a plan is quicker with replicas is
//! for the caller to find out by making it.
//!
//! Source: Gordon, Thies & Amarasinghe 2006, "Exploiting coarse-grained task, data, and pipeline parallelism in stream
//! programs", ASPLOS.

use std::collections::BTreeMap;

use zbmd_ir::{ActorId, Costs, DeviceId, Graph, Machine, Plan, Role, TiVec};

use crate::Options;
use crate::analysis::{AnalysisError, Edges, repetition_over};
use crate::cluster::components;
use crate::place::{MIN_GAIN_PERCENT, allowed_devices};

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
    let edges = Edges::of(graph);
    let mut cyclic: TiVec<ActorId, bool> = graph.actors.iter().map(|_| false).collect();
    for members in components(&edges, graph.actors.len(), |_| true) {
        let looped = members.len() > 1
            || edges.into[members[0]]
                .iter()
                .any(|&e| edges.all[e as usize].writer == members[0]);
        for actor in members {
            cyclic[actor] = looped;
        }
    }
    let obstacle = |(id, actor): (ActorId, &zbmd_ir::Actor)| {
        let wide = actor.inputs.iter().find(|port| port.window != port.rate);
        match actor.role {
            Role::Source | Role::Sink => Some(Obstacle::Stream),
            Role::Compute if !actor.state.is_empty() => Some(Obstacle::State),
            Role::Compute if actor.inputs.is_empty() || actor.outputs.is_empty() => {
                Some(Obstacle::Ports)
            }
            Role::Compute => match wide {
                Some(port) => Some(Obstacle::Window {
                    port: port.name.clone(),
                    rate: port.rate,
                    window: port.window,
                }),
                None => cyclic[id].then_some(Obstacle::Cycle),
            },
        }
    };
    graph.actors.iter_enumerated().map(obstacle).collect()
}

/// Replicas of each actor that has more than one.
pub type Factors = BTreeMap<ActorId, u32>;

/// What is asked of [`candidates`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most replicas of one actor.
    pub most: u32,
    /// Only replicas that divide the firings of an iteration evenly, so that the iteration stays what it is.
    pub same_iteration: bool,
}

/// What fraction of a device's even share of the work an actor is to be too small for replicas.
const SMALL: u64 = 4;

/// Candidates that [`candidates`] names at most.
pub const MAX_CANDIDATES: usize = 9;

/// Numbers of replicas that may be worth a plan, given the plan without: those that would even the work of the devices
/// out, then more and fewer. Empty where the plan is within a few percent of what even work on all devices takes, or no
/// actor that can be replicated stands out of the work. O(actors) for each.
///
/// # Errors
/// [`AnalysisError`] for a graph without a repetition vector.
pub fn candidates(
    (graph, machine, costs, options): (&Graph, &Machine, &Costs, &Options),
    plan: &Plan,
    bounds: Bounds,
) -> Result<Vec<Factors>, AnalysisError> {
    let q = repetition_over(graph, &Edges::of(graph))?;
    let devices = allowed_devices(machine, options.devices.as_deref());
    let works = works(graph, costs, options, &devices, (&q, plan.block));
    let total = works.iter().map(|work| u128::from(work.ps)).sum::<u128>();
    let even = u64::try_from(total / devices.len().max(1) as u128).unwrap_or(u64::MAX);
    let period = plan.period_ns.saturating_mul(1_000);
    let splits: TiVec<ActorId, Vec<Split>> = works
        .iter_enumerated()
        .map(|(actor, work)| splits(q[actor], work, bounds))
        .collect();
    let can = |actor: ActorId| !splits[actor].is_empty();
    let Some(heaviest) = works.keys().filter(|&a| can(a)).map(|a| works[a].ps).max() else {
        return Ok(Vec::new());
    };
    // Actors that are small beside a device's share can be evened out as they are: something else holds them up.
    if heaviest < even / SMALL {
        return Ok(Vec::new());
    }
    let most = devices.len() as u64;
    let balanced = heaviest.div_ceil(even.max(1)).clamp(2, most.max(2));
    // A device that is quicker than another takes several of the smaller shares.
    let unlike = works.iter().any(|work| work.devices > 1 && work.unlike);
    let finer = if unlike {
        [most + 1, 2 * most, 3 * most]
    } else {
        [1; 3]
    };
    let parts = [
        balanced,
        balanced + 1,
        balanced - 1,
        most,
        balanced.div_ceil(2),
        2,
    ];
    let mut found: Vec<Factors> = Vec::new();
    for parts in parts.into_iter().chain(finer).filter(|&parts| parts > 1) {
        let mut factors = Factors::new();
        let mut least = even;
        for (actor, work) in works.iter_enumerated() {
            // As many as make its share about that of the heaviest one; two percent more are no reason for another.
            let whole = u128::from(heaviest.max(1));
            let shares = u128::from(work.ps) * u128::from(parts);
            let wanted = shares.saturating_sub(whole / 50).div_ceil(whole) as u64;
            match pick(&splits[actor], wanted) {
                Some(split) => {
                    factors.insert(actor, split.replicas);
                    least = least.max(split.share(work.ps));
                }
                None => least = least.max(work.ps),
            }
        }
        let gains = least.saturating_mul(100) < period.saturating_mul(100 - MIN_GAIN_PERCENT);
        if gains && !factors.is_empty() && !found.contains(&factors) {
            found.push(factors);
        }
    }
    Ok(found)
}

/// Whether a period is so much shorter than another that it is worth replicas. Both are in any unit.
pub fn is_worth(period: u128, without: u128) -> bool {
    period.saturating_mul(100) < without.saturating_mul(u128::from(100 - MIN_GAIN_PERCENT))
}

/// Work of an actor in a block.
struct Work {
    /// Picoseconds on the quickest device.
    ps: u64,
    /// Devices that it may be spread over; 1 if it cannot be replicated.
    devices: u32,
    /// Whether one of them takes longer than another.
    unlike: bool,
}

fn works(
    graph: &Graph,
    costs: &Costs,
    options: &Options,
    devices: &[DeviceId],
    (q, block): (&TiVec<ActorId, u64>, u64),
) -> TiVec<ActorId, Work> {
    let work = |(actor, obstacle): (ActorId, Option<Obstacle>)| {
        let firings = q[actor].saturating_mul(block);
        let known: Vec<u64> = devices
            .iter()
            .filter_map(|&device| costs.table[actor][device])
            .map(|c| {
                c.call_ps
                    .saturating_add(c.firing_ps.saturating_mul(firings))
            })
            .collect();
        let fixed = obstacle.is_some() || options.pins.contains_key(&actor);
        Work {
            ps: known.iter().copied().min().unwrap_or(0),
            devices: if fixed { 1 } else { known.len() as u32 },
            unlike: known.iter().min() != known.iter().max(),
        }
    };
    obstacles(graph).into_iter_enumerated().map(work).collect()
}

/// So many replicas, of which one device has so many.
#[derive(Clone, Copy, Debug)]
struct Split {
    replicas: u32,
    rounds: u32,
}

impl Split {
    /// What one device has of a work.
    fn share(self, ps: u64) -> u64 {
        (u128::from(ps) * u128::from(self.rounds) / u128::from(self.replicas)) as u64
    }

    /// Whether the work is divided by so much.
    fn reaches(self, wanted: u64) -> bool {
        u64::from(self.replicas) >= wanted.saturating_mul(self.rounds.into())
    }
}

/// Replicas for each device at most, where as many as devices do not divide the firings or the devices are unlike.
const MAX_ROUNDS: u32 = 4;

/// Numbers of replicas, ascending, that are possible for so many firings in an iteration.
fn splits(firings: u64, work: &Work, bounds: Bounds) -> Vec<Split> {
    if work.devices < 2 {
        return Vec::new();
    }
    let finer = bounds.same_iteration || work.unlike;
    let most = work
        .devices
        .saturating_mul(if finer { MAX_ROUNDS } else { 1 })
        .min(bounds.most);
    // On unlike devices the slower ones may have none: how many one device has is not known.
    let rounds = |k: u32| {
        if work.unlike {
            1
        } else {
            k.div_ceil(work.devices)
        }
    };
    (2..=most)
        .filter(|&k| !bounds.same_iteration || firings.is_multiple_of(u64::from(k)))
        .map(|replicas| Split {
            replicas,
            rounds: rounds(replicas),
        })
        .collect()
}

/// The fewest replicas that divide the work by so much, or else those that divide it the most.
fn pick(splits: &[Split], wanted: u64) -> Option<Split> {
    if wanted < 2 {
        return None;
    }
    let more = |a: Split, b: Split| {
        let divided = |x: Split, y: Split| u64::from(x.replicas) * u64::from(y.rounds);
        if divided(b, a) > divided(a, b) { b } else { a }
    };
    let enough = splits.iter().copied().find(|split| split.reaches(wanted));
    enough.or_else(|| splits.iter().copied().reduce(more))
}

#[cfg(test)]
mod tests {
    use zbmd_ir::StatePort;

    use super::*;
    use crate::testing::{Link5, costs, graph, machine};
    use crate::{Block, schedule};

    /// `0 -> 1 -> 2 -> 3`, the rates such that actor 1 and 2 fire `firings` times, and 0 and 3 once.
    fn chain(firings: u64) -> Graph {
        let links: [Link5; 3] = [
            (0, firings, 1, 1, 0),
            (1, 1, 2, 1, 0),
            (2, 1, 3, firings, 0),
        ];
        let mut graph = graph(4, &links);
        graph.actors[ActorId(0)].role = Role::Source;
        graph.actors[ActorId(3)].role = Role::Sink;
        graph
    }

    #[test]
    fn what_is_against_replicas_is_named() {
        type Case = (fn(&mut Graph), Option<&'static str>);
        let cases: [Case; 7] = [
            (|_| {}, None),
            (
                |g| g.actors[ActorId(1)].role = Role::Source,
                Some("it is a source or a sink"),
            ),
            (
                |g| {
                    g.actors[ActorId(1)].state.push(StatePort {
                        input: 0,
                        output: 0,
                    })
                },
                Some("it keeps a state"),
            ),
            (
                |g| g.actors[ActorId(1)].inputs[0].window = 5,
                Some("input `x0` takes 1 tokens a firing and looks at 5"),
            ),
            (
                |g| *g = graph(2, &[(0, 1, 1, 1, 0)]),
                Some("it has no inputs or no outputs"),
            ),
            (
                |g| *g = graph(2, &[(1, 1, 0, 1, 0)]),
                Some("it has no inputs or no outputs"),
            ),
            // Many initial tokens do not help.
            (
                |g| *g = graph(2, &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 99)]),
                Some("it lies on a cycle"),
            ),
        ];
        for (i, (change, expected)) in cases.iter().enumerate() {
            let mut graph = chain(4);
            change(&mut graph);
            let found = obstacles(&graph)[ActorId(1)]
                .as_ref()
                .map(ToString::to_string);
            assert_eq!(found.as_deref(), *expected, "case {i}");
        }
        let own = obstacles(&graph(1, &[(0, 1, 0, 1, 1)]));
        assert_eq!(own[ActorId(0)], Some(Obstacle::Cycle));
    }

    /// Candidates where actors take so many nanoseconds a firing, as numbers of replicas of actors 1 and 2.
    fn found(firings: u64, ns: [u64; 4], devices: usize, bounds: Bounds) -> Vec<[u32; 2]> {
        let (graph, machine) = (chain(firings), machine(devices));
        let mut costs = costs(&graph, &machine, 0);
        for (row, ns) in costs.table.iter_mut().zip(ns) {
            row.iter_mut()
                .flatten()
                .for_each(|cost| cost.firing_ps = ns * 1_000);
        }
        let options = Options {
            block: Block::Fixed(100),
            ..Options::default()
        };
        let plans = schedule(&graph, &machine, &costs, &options).expect("a chain has a schedule");
        let given = (&graph, &machine, &costs, &options);
        let candidates = candidates(given, &plans[0], bounds).expect("consistent");
        assert!(candidates.len() <= MAX_CANDIDATES);
        let numbers = |f: &Factors| [1, 2].map(|a| f.get(&ActorId(a)).copied().unwrap_or(1));
        candidates.iter().map(numbers).collect()
    }

    #[test]
    fn numbers_of_replicas_even_out_the_work() {
        let bounds = |most, same_iteration| Bounds {
            most,
            same_iteration,
        };
        let all = bounds(u32::MAX, true);
        type Case = (u64, [u64; 4], usize, Bounds, &'static [[u32; 2]]);
        let cases: &[Case] = &[
            // One device, or nothing to even out.
            (12, [10, 1_000, 10, 10], 1, all, &[]),
            (12, [10, 1_000, 1_000, 10], 2, all, &[]),
            // The balanced number first.
            (12, [10, 1_000, 10, 10], 2, all, &[[2, 1]]),
            (12, [10, 1_000, 10, 10], 4, all, &[[4, 1], [3, 1], [2, 1]]),
            // 5 does not divide 12, 6 does; there are not 6 devices.
            (12, [10, 1_000, 10, 10], 5, all, &[[4, 1], [3, 1], [2, 1]]),
            // An odd number of firings on two devices: seven replicas, four and three.
            (147, [10, 1_000, 10, 10], 2, all, &[[7, 1]]),
            (147, [10, 1_000, 10, 10], 3, all, &[[3, 1]]),
            // Two heavy actors need replicas at the same time.
            (
                12,
                [10, 1_000, 1_000, 10],
                4,
                all,
                &[[2, 2], [3, 3], [4, 4]],
            ),
            (
                12,
                [10, 2_000, 1_000, 10],
                6,
                all,
                &[[4, 2], [6, 3], [3, 2], [2, 1]],
            ),
            // Fewer where no more are allowed.
            (
                12,
                [10, 1_000, 10, 10],
                4,
                bounds(3, true),
                &[[3, 1], [2, 1]],
            ),
            // One firing cannot be shared, unless iterations may grow.
            (1, [10, 1_000, 10, 10], 4, all, &[]),
            (
                1,
                [10, 1_000, 10, 10],
                4,
                bounds(31, false),
                &[[4, 1], [3, 1], [2, 1]],
            ),
            // What is heavy cannot be replicated.
            (1, [1_000, 10, 10, 10], 4, bounds(31, false), &[]),
        ];
        for (i, &(firings, ns, devices, bounds, expected)) in cases.iter().enumerate() {
            assert_eq!(found(firings, ns, devices, bounds), expected, "case {i}");
        }
    }

    #[test]
    fn unlike_devices_get_finer_shares() {
        let (graph, machine) = (chain(12), machine(2));
        let mut costs = costs(&graph, &machine, 10_000);
        for (device, ps) in [(DeviceId(0), 1_000_000), (DeviceId(1), 2_000_000)] {
            costs.table[ActorId(1)][device]
                .as_mut()
                .expect("known")
                .firing_ps = ps;
        }
        let options = Options {
            block: Block::Fixed(100),
            ..Options::default()
        };
        let plans = schedule(&graph, &machine, &costs, &options).expect("a schedule");
        let given = (&graph, &machine, &costs, &options);
        let bounds = Bounds {
            most: 31,
            same_iteration: true,
        };
        let found = candidates(given, &plans[0], bounds).expect("consistent");
        let numbers: Vec<u32> = found.iter().map(|f| f[&ActorId(1)]).collect();
        // Three: two of them on the device that is twice as quick.
        assert_eq!(numbers, [2, 3, 4, 6]);
    }

    #[test]
    fn many_small_actors_need_no_replicas() {
        for (actors, expected) in [(5, true), (11, true), (41, false)] {
            let links: Vec<Link5> = (1..actors).map(|i| (i - 1, 1, i, 1, 0)).collect();
            let (graph, machine) = (graph(actors as usize, &links), machine(4));
            let costs = costs(&graph, &machine, 1_000_000);
            let options = Options {
                block: Block::Fixed(100),
                ..Options::default()
            };
            let mut plans = schedule(&graph, &machine, &costs, &options).expect("a schedule");
            // Whatever it is that holds them up.
            plans[0].period_ns *= 2;
            let given = (&graph, &machine, &costs, &options);
            let bounds = Bounds {
                most: 31,
                same_iteration: false,
            };
            let found = candidates(given, &plans[0], bounds).expect("consistent");
            assert_eq!(!found.is_empty(), expected, "{actors} actors");
        }
    }

    #[test]
    fn pinned_actors_stay_where_they_are() {
        let (graph, machine) = (chain(12), machine(2));
        let mut costs = costs(&graph, &machine, 1_000);
        costs.table[ActorId(1)]
            .iter_mut()
            .flatten()
            .for_each(|cost| cost.firing_ps = 1_000_000);
        let mut options = Options {
            block: Block::Fixed(100),
            ..Options::default()
        };
        let bounds = Bounds {
            most: 2,
            same_iteration: true,
        };
        for (pins, expected) in [(vec![], 1), (vec![(ActorId(1), DeviceId(1))], 0)] {
            options.pins = pins.into_iter().collect();
            let plans = schedule(&graph, &machine, &costs, &options).expect("a schedule");
            let given = (&graph, &machine, &costs, &options);
            let found = candidates(given, &plans[0], bounds).expect("consistent");
            assert_eq!(found.len(), expected);
        }
    }

    #[test]
    fn a_gain_is_worth_it_from_a_few_percent_on() {
        assert!(is_worth(91, 100) && !is_worth(92, 100) && !is_worth(100, 100));
        assert!(!is_worth(u128::MAX, u128::MAX));
    }
}
