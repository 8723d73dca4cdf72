//! Placement: which device each cluster runs on.
//!
//! Up to some thousand clusters [`crate::assign`] decides; beyond, two greedy heuristics do. Ties go to fewer devices.

use zbmd_ir::{ActorId, DeviceId, Machine, TiVec};

use crate::assign::{self, Assignment, Channel, Device, Fanout, Link, Node, Objective};
use crate::cluster::is_tight;
use crate::problem::Problem;
use crate::search::{Control, Level, LinkTime};
use crate::{Estimate, ScheduleError};

/// Predicted gain that a further device must bring, in percent of the period: hand-over and jitter eat less.
pub(crate) const MIN_GAIN_PERCENT: u64 = 8;

/// Picoseconds of work per block of each cluster on each device; `None` where a member has no kernel or is pinned
/// elsewhere.
pub(crate) type Load = Vec<TiVec<DeviceId, Option<u64>>>;

/// Work of every cluster on every device.
///
/// # Errors
/// [`ScheduleError::NoDevice`] for an actor that no device can run, [`ScheduleError::PinnedApart`] where the members
/// of one cluster are pinned to different devices.
pub(crate) fn loads(problem: &Problem<'_>, allowed: &[DeviceId]) -> Result<Load, ScheduleError> {
    let mut loads = Vec::with_capacity(problem.clusters.all.len());
    for cluster in &problem.clusters.all {
        let mut load: TiVec<DeviceId, Option<u64>> =
            vec![None; problem.machine.devices.len()].into();
        for &device in allowed {
            load[device] = cluster.members.iter().try_fold(0u64, |sum, &actor| {
                if problem
                    .options
                    .pins
                    .get(&actor)
                    .is_some_and(|&pin| pin != device)
                {
                    return None;
                }
                let cost = problem.costs.table[actor][device]?;
                let firings = problem.q[actor].saturating_mul(problem.block);
                let calls = if cluster.members.len() > 1 {
                    cluster.executions / cluster.members.len() as u64
                } else {
                    cluster.executions
                };
                Some(
                    sum.saturating_add(cost.call_ps.saturating_mul(calls))
                        .saturating_add(cost.firing_ps.saturating_mul(firings)),
                )
            });
        }
        if load.iter().all(Option::is_none) {
            return Err(nowhere(problem, &cluster.members, allowed));
        }
        loads.push(load);
    }
    Ok(loads)
}

fn nowhere(problem: &Problem<'_>, members: &[ActorId], allowed: &[DeviceId]) -> ScheduleError {
    for &actor in members {
        let runs = |device: &DeviceId| problem.costs.table[actor][*device].is_some();
        if let Some(&pin) = problem.options.pins.get(&actor) {
            if !allowed.contains(&pin) || !runs(&pin) {
                return ScheduleError::PinImpossible { actor, device: pin };
            }
        } else if !allowed.iter().any(runs) {
            return ScheduleError::NoDevice { actor };
        }
    }
    let mut pins = members
        .iter()
        .filter_map(|a| problem.options.pins.get(a).map(|&d| (*a, d)));
    match pins
        .next()
        .and_then(|first| pins.find(|p| p.1 != first.1).map(|second| (first, second)))
    {
        Some((a, b)) => ScheduleError::PinnedApart {
            first: a.0,
            first_device: a.1,
            second: b.0,
            second_device: b.1,
        },
        None => ScheduleError::NoDevice { actor: members[0] },
    }
}

/// Predicted period in picoseconds of a placement: the largest sum of work and sends of any device.
pub(crate) fn period_ps(problem: &Problem<'_>, load: &Load, placement: &[DeviceId]) -> u64 {
    let mut busy: TiVec<DeviceId, u64> = vec![0; problem.machine.devices.len()].into();
    for (cluster, &device) in placement.iter().enumerate() {
        busy[device] = busy[device].saturating_add(load[cluster][device].unwrap_or(u64::MAX / 4));
    }
    let mut receivers: Vec<DeviceId> = Vec::new();
    for (channel, ch) in problem.graph.channels.iter_enumerated() {
        let from = placement[problem.cluster_of(ch.from.actor)];
        receivers.clear();
        for reader in &ch.readers {
            let to = placement[problem.cluster_of(reader.to.actor)];
            if to != from && !receivers.contains(&to) {
                receivers.push(to);
                busy[from] = busy[from].saturating_add(problem.send_ps(channel, from, to));
                busy[to] = busy[to].saturating_add(RECV_PS);
            }
        }
    }
    busy.into_iter().max().unwrap_or(0)
}

/// Cost of the synchronisation of one receive and one send.
pub(crate) const RECV_PS: u64 = 100_000;
pub(crate) const SEND_PS: u64 = 100_000;

/// Clusters beyond which placements are not searched for: splitting a line of them takes quadratic time.
const MAX_SOLVED: usize = 2_000;

/// A placement, and how good it is.
pub(crate) struct Placed {
    /// Device of each cluster, by index of the cluster.
    pub(crate) devices: Vec<DeviceId>,
    /// Unknown where no search was made.
    pub(crate) estimate: Option<Estimate>,
}

/// What a placement is to be good for.
#[derive(Clone, Copy)]
pub(crate) struct Aim {
    pub(crate) objective: Objective,
    /// Only where all buffers of a device fit at the same time.
    pub(crate) memory: bool,
    /// Clusters that depend on each other across blocks stay on one device: apart they share a stage and wait for each
    /// other within the period, which the loads of the devices do not tell.
    pub(crate) together: bool,
}

/// Places the clusters.
///
/// Of placements that are about as good, the one on fewer devices is taken.
pub(crate) fn place(
    problem: &Problem<'_>,
    load: &Load,
    allowed: &[DeviceId],
    aim: Aim,
    control: &mut Control<'_>,
) -> Placed {
    let level = problem.options.level;
    let solve = |devices: &[DeviceId], level: Level, control: &mut Control<'_>| {
        if load.len() > MAX_SOLVED {
            return None;
        }
        assign::solve(
            &placement_problem(problem, load, devices, aim),
            level,
            control,
        )
        .ok()
    };
    let placed = |found: &Assignment, bound: u64| Placed {
        devices: found
            .placement
            .iter()
            .map(|&d| allowed[d as usize])
            .collect(),
        estimate: Some(Estimate {
            cost: found.evaluation.cost,
            bound,
        }),
    };
    let Some(best) = solve(allowed, level, control) else {
        return Placed {
            devices: greedy(problem, load, allowed),
            estimate: None,
        };
    };
    let cost = best.evaluation.cost;
    let good_enough = cost.saturating_add(cost / 100 * MIN_GAIN_PERCENT);
    let alone = allowed.iter().filter_map(|&device| {
        let one = solve(&[device], Level::Fast, control)?;
        (one.evaluation.cost <= good_enough).then_some((one.evaluation.cost, device))
    });
    if let Some((cost, device)) = alone.min() {
        let estimate = Some(Estimate {
            cost,
            bound: best.bound,
        });
        return Placed {
            devices: vec![device; load.len()],
            estimate,
        };
    }
    for devices in 2..allowed.len() {
        let few = solve(&allowed[..devices], Level::Fast, control);
        if few.is_some_and(|f| f.evaluation.cost <= good_enough)
            && let Some(few) = solve(&allowed[..devices], level, control)
        {
            return placed(&few, best.bound);
        }
    }
    placed(&best, best.bound)
}

/// The problem of placing the clusters on some devices, in picoseconds and bytes.
fn placement_problem(
    problem: &Problem<'_>,
    load: &Load,
    devices: &[DeviceId],
    aim: Aim,
) -> assign::Problem {
    let nodes = load
        .iter()
        .zip(&problem.component_of)
        .map(|(row, &component)| Node {
            ticks: devices.iter().map(|&d| row[d]).collect(),
            bytes: 0,
            group: aim.together.then_some(component as u32),
        });
    let link = |from: DeviceId, to: DeviceId| {
        problem.machine.link(from, to).map(|link| Link {
            send: LinkTime {
                latency: SEND_PS,
                numerator: 1_000_000_000_000,
                denominator: link.bytes_per_s.max(1),
            },
            receive: LinkTime {
                latency: RECV_PS,
                ..LinkTime::FREE
            },
        })
    };
    let bound = problem.options.max_memory_bytes.unwrap_or(u64::MAX);
    let room = |device: DeviceId| match aim.memory {
        true => problem.machine.devices[device].memory_bytes.min(bound),
        false => u64::MAX,
    };
    assign::Problem {
        nodes: nodes.collect(),
        channels: placement_channels(problem),
        devices: devices.iter().map(|&d| Device { bytes: room(d) }).collect(),
        links: devices
            .iter()
            .flat_map(|&from| devices.iter().map(move |&to| (from, to)))
            .map(|(from, to)| if from == to { None } else { link(from, to) })
            .collect(),
        fanout: Fanout::EachDevice,
        max_latency: None,
        objective: aim.objective,
    }
}

/// What clusters hand over to one another in a block.
fn placement_channels(problem: &Problem<'_>) -> Vec<Channel> {
    let mut loose = vec![false; problem.graph.channels.len()];
    for edge in problem
        .edges
        .all
        .iter()
        .filter(|e| !is_tight(e, problem.q, problem.block))
    {
        loose[edge.channel.index()] = true;
    }
    let mut channels = Vec::new();
    for (id, ch) in problem.graph.channels.iter_enumerated() {
        let from = problem.cluster_of(ch.from.actor) as u32;
        let mut to: Vec<u32> = ch
            .readers
            .iter()
            .map(|r| problem.cluster_of(r.to.actor) as u32)
            .collect();
        to.sort_unstable();
        to.dedup();
        if to == [from] {
            continue;
        }
        let tokens = problem.block_tokens(id).unwrap_or(u64::MAX);
        let head = ch.readers.iter().map(|r| r.delay).max().unwrap_or(0);
        let size = ch.token.bytes();
        channels.push(Channel {
            from,
            to,
            amount: tokens.saturating_mul(size),
            bytes: tokens.saturating_add(head).saturating_mul(size),
            // Tight edges alone are sure to have no cycle.
            delayed: loose[id.index()],
        });
    }
    channels
}

/// The best of some quick placements, on as few devices as are about as good.
fn greedy(problem: &Problem<'_>, load: &Load, allowed: &[DeviceId]) -> Vec<DeviceId> {
    let order = &problem.order;
    let mut best: Option<(u64, Vec<DeviceId>)> = None;
    for devices in 1..=allowed.len() {
        let mut round: Vec<Vec<DeviceId>> = Vec::new();
        if devices == 1 {
            round.extend(allowed.iter().filter_map(|&d| on_one(load, d)));
        }
        round.push(contiguous(problem, load, order, &allowed[..devices]));
        round.push(list(problem, load, order, &allowed[..devices]));
        for candidate in round {
            let period = period_ps(problem, load, &candidate);
            let better = match &best {
                None => true,
                Some((known, _)) => {
                    period < known - known / 100 * MIN_GAIN_PERCENT
                        || (devices == 1 && period < *known)
                }
            };
            if better {
                best = Some((period, candidate));
            }
        }
    }
    best.map(|(_, p)| p).unwrap_or_default()
}

fn on_one(load: &Load, device: DeviceId) -> Option<Vec<DeviceId>> {
    load.iter()
        .all(|l| l[device].is_some())
        .then(|| vec![device; load.len()])
}

fn cheapest(load: &TiVec<DeviceId, Option<u64>>) -> DeviceId {
    load.iter_enumerated()
        .filter_map(|(device, cost)| cost.map(|c| (c, device)))
        .min()
        .map_or(DeviceId(0), |(_, device)| device)
}

/// Splits the topological order into as many stretches as devices, each about as heavy as the others.
fn contiguous(
    problem: &Problem<'_>,
    load: &Load,
    order: &[usize],
    devices: &[DeviceId],
) -> Vec<DeviceId> {
    let weight = |c: usize| load[c][cheapest(&load[c])].unwrap_or(0);
    let total: u128 = order.iter().map(|&c| u128::from(weight(c))).sum();
    let mut placement = vec![devices[0]; problem.clusters.all.len()];
    let mut before = 0u128;
    for &c in order {
        let middle = before + u128::from(weight(c)) / 2;
        let part = (middle * devices.len() as u128)
            .checked_div(total)
            .unwrap_or(0) as usize;
        let wish = devices[part.min(devices.len() - 1)];
        placement[c] = if load[c][wish].is_some() {
            wish
        } else {
            cheapest(&load[c])
        };
        before += u128::from(weight(c));
    }
    placement
}

/// Greedy in topological order: each cluster to where the largest load, transfers included, grows least.
fn list(
    problem: &Problem<'_>,
    load: &Load,
    order: &[usize],
    devices: &[DeviceId],
) -> Vec<DeviceId> {
    let mut busy: TiVec<DeviceId, u64> = vec![0; problem.machine.devices.len()].into();
    let mut placed: Vec<Option<DeviceId>> = vec![None; problem.clusters.all.len()];
    for &c in order {
        let choose = devices.iter().filter_map(|&device| {
            let mut here = busy[device].saturating_add(load[c][device]?);
            let mut there = 0;
            for &(channel, from) in &problem.inputs_of[c] {
                if let Some(from) = placed[from].filter(|&f| f != device) {
                    here = here.saturating_add(RECV_PS);
                    there = there
                        .max(busy[from].saturating_add(problem.send_ps(channel, from, device)));
                }
            }
            Some((here.max(there), device))
        });
        let device = choose
            .min()
            .map_or_else(|| cheapest(&load[c]), |(_, device)| device);
        busy[device] = busy[device].saturating_add(load[c][device].unwrap_or(0));
        for &(channel, from) in &problem.inputs_of[c] {
            if let Some(from) = placed[from].filter(|&f| f != device) {
                busy[from] = busy[from].saturating_add(problem.send_ps(channel, from, device));
            }
        }
        placed[c] = Some(device);
    }
    placed
        .into_iter()
        .map(|d| d.unwrap_or(DeviceId(0)))
        .collect()
}

/// Devices that may be used: all, or those the options name, in id order.
pub(crate) fn allowed_devices(machine: &Machine, only: Option<&[DeviceId]>) -> Vec<DeviceId> {
    machine
        .devices
        .keys()
        .filter(|d| only.is_none_or(|o| o.contains(d)))
        .collect()
}
