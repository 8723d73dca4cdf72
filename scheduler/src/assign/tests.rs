//! Small problems against plain enumeration, limits, and errors.

mod colocated;
mod covered;
mod many_devices;

use super::anneal::Moves;
use super::*;
use crate::search::rng::Rng;
use crate::search::{LinkTime, unattended};

const ROOM: u64 = 1 << 40;

fn plain(ticks: u64) -> LinkTime {
    LinkTime {
        latency: 0,
        numerator: ticks,
        denominator: 1,
    }
}

fn problem(
    nodes: Vec<PlacementNode>,
    channels: Vec<PlacementChannel>,
    devices: usize,
) -> PlacementProblem {
    PlacementProblem {
        nodes,
        channels,
        devices: vec![PlacementDevice { bytes: ROOM }; devices],
        links: vec![
            Some(PlacementLink {
                send: plain(1),
                receive: plain(1)
            });
            devices * devices
        ],
        fanout: Fanout::Once,
        pipelined: false,
        max_latency: None,
        max_stages: None,
        objective: Objective::PERIOD,
    }
}

fn node(ticks: &[u64]) -> PlacementNode {
    PlacementNode {
        ticks: ticks.iter().copied().map(Some).collect(),
        bytes: 1,
        group: None,
    }
}

fn channel(from: u32, to: &[u32], amount: u64) -> PlacementChannel {
    PlacementChannel {
        from,
        to: to.to_vec(),
        amount,
        bytes: 0,
        delayed: false,
    }
}

/// Least cost by trying every placement.
fn enumerate(problem: &PlacementProblem) -> Option<u64> {
    let devices = problem.devices.len() as u32;
    let mut best = None;
    let mut placement = vec![0u32; problem.nodes.len()];
    loop {
        let cost = problem.evaluate(&placement).ok().map(|e| e.cost);
        best = best.into_iter().chain(cost).min();
        let Some(at) = placement.iter().position(|&d| d + 1 < devices) else {
            return best;
        };
        placement[..at].fill(0);
        placement[at] += 1;
    }
}

fn random(rng: &mut Rng, nodes: usize, devices: usize) -> PlacementProblem {
    let kinds = rng.below(devices) + 1;
    let row = |rng: &mut Rng| {
        let speeds: Vec<u64> = (0..kinds).map(|_| 1 + rng.below(30) as u64).collect();
        let mut ticks: Vec<Option<u64>> = (0..devices).map(|d| Some(speeds[d % kinds])).collect();
        if rng.below(6) == 0 {
            ticks[rng.below(devices)] = None;
        }
        let group = (rng.below(5) == 0).then_some(1);
        let bytes = 1 + rng.below(20) as u64;
        // Members of a group run anywhere, or they might run nowhere together.
        let ticks = if group.is_some() {
            vec![Some(speeds[0]); devices]
        } else {
            ticks
        };
        PlacementNode {
            ticks,
            bytes,
            group,
        }
    };
    let all = (0..nodes).map(|_| row(rng)).collect();
    let mut channels = Vec::new();
    for from in 0..nodes as u32 - 1 {
        let to: Vec<u32> = (from + 1..nodes as u32)
            .filter(|_| rng.below(3) == 0)
            .collect();
        if !to.is_empty() {
            let delayed = rng.below(5) == 0;
            let (amount, bytes) = (rng.below(6) as u64, rng.below(4) as u64);
            channels.push(PlacementChannel {
                from,
                to,
                amount,
                bytes,
                delayed,
            });
        }
    }
    let mut problem = problem(all, channels, devices);
    if rng.below(2) == 0 {
        problem.fanout = Fanout::EachDevice;
    }
    if rng.below(3) == 0 {
        for link in &mut problem.links {
            *link = Some(PlacementLink {
                send: plain(rng.below(3) as u64),
                receive: plain(1),
            });
        }
    }
    problem
}

#[test]
fn periods_are_enumerated_optima_and_bounds_hold() {
    let mut rng = Rng::new(1);
    let mut proved = 0;
    for case in 0..40 {
        let problem = random(&mut rng, 7, 3);
        let optimum = enumerate(&problem).expect("there is room");
        for level in [Level::Fast, Level::Balanced, Level::Exact] {
            let found = unattended(|c| solve(&problem, level, c)).expect("there is room");
            assert_eq!(
                problem.evaluate(&found.placement),
                Ok(found.evaluation.clone())
            );
            let (cost, bound) = (found.evaluation.cost, found.bound);
            assert!(
                bound <= optimum,
                "case {case} {level:?}: bound {bound} of {optimum}"
            );
            assert!(
                cost >= optimum,
                "case {case} {level:?}: {cost} of {optimum}"
            );
            if level > Level::Fast {
                assert_eq!(cost, optimum, "case {case} {level:?}");
                proved += u32::from(found.is_optimal());
            }
        }
    }
    assert!(proved > 70, "only {proved} of 80 were proved");
}

#[test]
fn the_linear_program_finds_and_proves_enumerated_optima() {
    let mut rng = Rng::new(5);
    for case in 0..12 {
        let problem = random(&mut rng, 6, 3);
        let merged = MergedProblem::of(&problem).expect("valid");
        let optimum = enumerate(&problem).expect("there is room");
        let first: Vec<u32> = (0..merged.units())
            .map(|u| merged.choices(u).last().expect("it runs somewhere"))
            .collect();
        let start = placement_cost(&problem, &merged, &first).expect("there is room");
        let found = unattended(|c| milp::improve(&merged, &first, 0, 10_000, c));
        let best = found
            .better
            .and_then(|p| placement_cost(&problem, &merged, &p))
            .unwrap_or(start);
        assert!(
            found.bound <= optimum,
            "case {case}: bound {} of {optimum}",
            found.bound
        );
        assert!(best >= optimum, "case {case}: {best} of {optimum}");
        // Elsewhere the program is a relaxation.
        if problem.fanout == Fanout::Once && problem.links.windows(2).all(|l| l[0] == l[1]) {
            assert_eq!((best, found.bound), (optimum, optimum), "case {case}");
        }
    }
}

const OBJECTIVES: [Objective; 4] = [
    Objective::LATENCY,
    Objective::MEMORY,
    Objective {
        period: 2,
        latency: 1,
        memory: 0,
    },
    Objective {
        period: 3,
        latency: 1,
        memory: 2,
    },
];

#[test]
fn annealing_is_close_to_enumerated_optima() {
    let mut rng = Rng::new(6);
    let (mut met, cases) = (0, 40);
    for case in 0..cases {
        let mut problem = random(&mut rng, 6, 3);
        problem.objective = match case % 5 {
            4 => Objective::PERIOD,
            other => OBJECTIVES[other],
        };
        let merged = MergedProblem::of(&problem).expect("valid");
        let energy = AnnealingEnergy {
            problem: &problem,
            merged: &merged,
            makespan_graph: MakespanGraph::new(&problem).ok(),
            stage_graph: None,
        };
        let optimum = enumerate(&problem).expect("there is room");
        let plan = AnnealingPlan {
            steps: 2_000,
            heat: 0.02,
            bound: 0,
        };
        let start = place_largest_first(&merged);
        let moves = Mover::new(&merged, start, SEED);
        let found = unattended(|control| anneal(&energy, moves, plan, control));
        assert_eq!(
            placement_cost(&problem, &merged, &found.placement),
            Some(found.cost),
            "case {case}"
        );
        assert!(
            found.cost <= optimum * 5 / 4,
            "case {case}: {} of {optimum}",
            found.cost
        );
        met += u32::from(found.cost == optimum);
    }
    assert!(
        met > cases as u32 * 3 / 4,
        "only {met} of {cases} optima were met"
    );
}

#[test]
fn every_objective_is_met() {
    let mut rng = Rng::new(2);
    for case in 0..24 {
        let mut problem = random(&mut rng, 6, 3);
        problem.objective = OBJECTIVES[case % 4];
        let optimum = enumerate(&problem).expect("there is room");
        let found = unattended(|c| solve(&problem, Level::Balanced, c)).expect("there is room");
        assert_eq!(found.evaluation.cost, optimum, "case {case}");
        assert_eq!(
            found.bound, optimum,
            "case {case}: so few placements are all tried"
        );
    }
}

#[test]
fn limits_hold() {
    let mut rng = Rng::new(3);
    let mut met = 0;
    for case in 0..30 {
        let mut problem = random(&mut rng, 6, 3);
        let total: u64 = problem.nodes.iter().map(|n| n.bytes).sum();
        for device in &mut problem.devices {
            device.bytes = total / 2;
        }
        if case % 2 == 0 {
            let free = unattended(|c| solve(&problem, Level::Fast, c));
            problem.max_latency = free.ok().map(|f| f.evaluation.latency * 3 / 4);
        }
        let found = unattended(|c| solve(&problem, Level::Balanced, c));
        match (enumerate(&problem), found) {
            (Some(optimum), Ok(found)) => {
                assert_eq!(found.evaluation.cost, optimum, "case {case}");
                met += 1;
            }
            (None, Err(AssignError::NotFound { .. })) => {}
            (optimum, found) => panic!("case {case}: {optimum:?}, but {found:?}"),
        }
    }
    assert!(met > 15, "only {met} cases could be met");
}

#[test]
fn the_evaluation_counts_each_transfer_as_said() {
    // 0 -> {1, 2, 3} with 1 and 2 on one other device and 3 on a third: 5 ticks a send, 2 a receive.
    let nodes = vec![
        node(&[10; 3]),
        node(&[20; 3]),
        node(&[30; 3]),
        node(&[40; 3]),
    ];
    let mut p = problem(nodes, vec![channel(0, &[1, 2, 3], 1)], 3);
    p.channels[0].bytes = 100;
    p.links = vec![
        Some(PlacementLink {
            send: plain(5),
            receive: plain(2)
        });
        9
    ];
    let once = p.evaluate(&[0, 1, 1, 2]).expect("valid");
    assert_eq!(
        (once.load, once.bytes),
        (vec![15, 52, 42], vec![101, 102, 101])
    );
    // 10, then the transfer of 7, then 20 and 30 one after the other.
    assert_eq!((once.period, once.latency, once.cost), (52, 67, 52));
    p.fanout = Fanout::EachDevice;
    assert_eq!(
        p.evaluate(&[0, 1, 1, 2]).expect("valid").load,
        vec![20, 52, 42]
    );
    assert_eq!(p.evaluate(&[1; 4]).expect("valid").load, vec![0, 100, 0]);
}

#[test]
fn the_checker_names_each_broken_rule() {
    let base = || {
        problem(
            vec![node(&[1, 1]), node(&[2, 2])],
            vec![channel(0, &[1], 1)],
            2,
        )
    };
    let mut forbidden = base();
    forbidden.nodes[1].ticks[0] = None;
    let mut apart = base();
    apart.nodes.iter_mut().for_each(|n| n.group = Some(4));
    let mut unlinked = base();
    unlinked.links[1] = None;
    let mut small = base();
    small.devices[1].bytes = 0;
    let mut late = base();
    late.max_latency = Some(4);
    let cases: [(PlacementProblem, &[u32], AssignError); 6] = [
        (base(), &[0], AssignError::Length { found: 1, nodes: 2 }),
        (
            forbidden,
            &[0, 0],
            AssignError::Forbidden { node: 1, device: 0 },
        ),
        (
            apart,
            &[0, 1],
            AssignError::Apart {
                first: 0,
                second: 1,
            },
        ),
        (
            unlinked,
            &[0, 1],
            AssignError::NoLink {
                channel: 0,
                from: 0,
                to: 1,
            },
        ),
        (
            small,
            &[0, 1],
            AssignError::Memory {
                device: 1,
                needed: 1,
                limit: 0,
            },
        ),
        (
            late,
            &[0, 1],
            AssignError::Latency {
                latency: 5,
                limit: 4,
            },
        ),
    ];
    for (problem, placement, expected) in cases {
        assert_eq!(problem.evaluate(placement), Err(expected));
    }
}

#[test]
fn bad_problems_are_refused() {
    let base = || {
        problem(
            vec![node(&[1, 1]), node(&[2, 2])],
            vec![channel(0, &[1], 1)],
            2,
        )
    };
    let with = |change: Change<'_>| {
        let mut p = base();
        change(&mut p);
        unattended(|c| solve(&p, Level::Fast, c)).err()
    };
    type Change<'a> = &'a dyn Fn(&mut PlacementProblem);
    let cases: [(Change<'_>, AssignError); 7] = [
        (&|p| p.devices.clear(), AssignError::NoDevice),
        (
            &|p| p.links.truncate(3),
            AssignError::Links {
                found: 3,
                expected: 4,
            },
        ),
        (
            &|p| p.nodes[1].ticks.truncate(1),
            AssignError::Ticks {
                node: 1,
                found: 1,
                expected: 2,
            },
        ),
        (
            &|p| p.nodes[0].ticks.fill(None),
            AssignError::Nowhere { node: 0 },
        ),
        (
            &|p| p.channels[0].to[0] = 9,
            AssignError::Channel {
                channel: 0,
                node: 9,
                nodes: 2,
            },
        ),
        (
            &|p| p.channels.push(channel(1, &[0], 1)),
            AssignError::Cycle { node: 0 },
        ),
        (&|p| p.nodes[0].bytes = 1 << 62, AssignError::Overflow),
    ];
    for (change, expected) in cases {
        assert_eq!(with(change), Some(expected));
    }
}

#[test]
fn a_missing_link_is_never_crossed() {
    let mut p = problem(
        vec![node(&[5; 2]); 4],
        vec![channel(0, &[1], 1), channel(2, &[3], 1)],
        2,
    );
    p.links = vec![None; 4];
    let found = unattended(|c| solve(&p, Level::Fast, c)).expect("pairs stay together");
    assert_eq!(found.evaluation.period, 10);
    assert!(found.is_optimal());
}

#[test]
fn a_stopped_search_still_returns_a_placement() {
    let p = random(&mut Rng::new(8), 30, 4);
    let mut stages = std::collections::BTreeSet::new();
    let mut control = Control {
        stop: &|| true,
        progress: &mut |p| stages.extend([p.stage]),
    };
    let found = solve(&p, Level::Exact, &mut control).expect("there is room");
    assert!(found.bound <= found.evaluation.cost);
    assert!(stages.contains("placement"));
}

#[test]
fn same_input_same_result() {
    let p = random(&mut Rng::new(9), 20, 4);
    let run = || unattended(|c| solve(&p, Level::Balanced, c));
    assert_eq!(run(), run());
}

/// Stages by paths instead of components: the most hops on any path of a graph without cycles.
fn stages_by_paths(problem: &PlacementProblem, placement: &[u32]) -> u32 {
    let mut stage = vec![0; problem.nodes.len()];
    // Channels of these problems go from lower to higher indexes, and are listed by their writer.
    for channel in &problem.channels {
        for &to in &channel.to {
            let is_hop = placement[to as usize] != placement[channel.from as usize];
            let after_writer = stage[channel.from as usize] + u32::from(is_hop);
            stage[to as usize] = after_writer.max(stage[to as usize]);
        }
    }
    stage.into_iter().max().map_or(0, |last: u32| last + 1)
}

/// For each number of stages the shortest period, as by trying every placement: no gap in the front.
#[test]
fn fronts_of_stages_against_periods_are_enumerated_ones() {
    let mut rng = Rng::new(7);
    let mut lengths = Vec::new();
    for case in 0..200 {
        let nodes = 3 + rng.below(10);
        let mut problem = random(&mut rng, nodes, 2);
        problem.pipelined = true;
        let mut front = Vec::new();
        for max_stages in 1..=nodes as u32 {
            problem.max_stages = Some(max_stages);
            let optimum = enumerate(&problem);
            let found = unattended(|control| solve(&problem, Level::Balanced, control));
            assert_eq!(
                found.as_ref().ok().map(|found| found.evaluation.period),
                optimum,
                "case {case}, {max_stages} stages"
            );

            let Ok(found) = found else { continue };
            let stages = stages_by_paths(&problem, &found.placement);
            assert_eq!(problem.stages(&found.placement), stages, "case {case}");
            assert!(stages <= max_stages, "case {case}");
            assert_eq!(
                found.evaluation.latency,
                found.evaluation.period * u64::from(stages)
            );
            front.push(found.evaluation.period);
        }
        assert!(front.is_sorted_by(|fewer, more| fewer >= more), "{front:?}");
        front.dedup();
        lengths.push(front.len());
    }
    assert!(
        lengths.iter().filter(|&&length| length > 2).count() > 50,
        "{lengths:?}"
    );
}

/// A cycle, delayed or not, lies in one stage, whatever device its nodes are on.
#[test]
fn a_cycle_is_in_one_stage() {
    let nodes = vec![node(&[1, 1]), node(&[1, 1]), node(&[1, 1])];
    let mut back = channel(1, &[0], 1);
    back.delayed = true;
    let problem = problem(
        nodes,
        vec![channel(0, &[1], 1), channel(1, &[2], 1), back],
        2,
    );
    assert_eq!(problem.stages(&[0, 1, 1]), 1);
    assert_eq!(problem.stages(&[0, 1, 0]), 2);
    assert_eq!(problem.stages(&[0, 0, 0]), 1);
}

/// Weights mean what they say: of pipelines, latency is stages times periods.
#[test]
fn weights_trade_the_period_against_the_latency_of_the_pipeline() {
    let nodes = (0..6).map(|_| node(&[100, 100])).collect();
    let channels = (0..5).map(|from| channel(from, &[from + 1], 0)).collect();
    let mut problem = problem(nodes, channels, 2);
    problem.pipelined = true;
    let mut solve_for = |period, latency| {
        problem.objective = Objective {
            period,
            latency,
            memory: 0,
        };
        let found = unattended(|control| solve(&problem, Level::Balanced, control));
        let evaluation = found.expect("there is room").evaluation;
        (evaluation.period, evaluation.latency)
    };
    // Two halves: 300 a period, two of them until the end. On one device: 600 at once.
    assert_eq!(solve_for(10, 1), (300, 600));
    assert_eq!(solve_for(1, 10).1, 600);
}

/// A random problem of a pipeline, with room for all placements.
fn pipeline(rng: &mut Rng, nodes: usize, devices: usize) -> PlacementProblem {
    let mut problem = random(rng, nodes, devices);
    for node in &mut problem.nodes {
        node.group = None;
    }
    PlacementProblem {
        devices: vec![PlacementDevice { bytes: ROOM }; devices],
        pipelined: true,
        max_latency: None,
        objective: Objective::PERIOD,
        ..problem
    }
}

/// Random moves, each taken back half the time.
#[test]
fn staged_moves_keep_the_stages_and_the_loads() {
    let mut rng = Rng::new(23);
    for case in 0..20 {
        let problem = pipeline(&mut rng, 12, 3);
        let merged = MergedProblem::of(&problem).expect("valid");
        let stage_graph = StageGraph::of_units(&merged.unit_of_node, &problem.channels);
        let start = place_largest_first(&merged);
        let stage_of = stage_graph.first_stages(&start);
        let max_stages = stage_graph.count(&start);
        let graph = StagedGraph::of(&stage_graph, &merged, max_stages).expect("no groups");

        let mut moves = StagedMoves::new(&merged, &graph, start, stage_of, case);
        let mut moved = 0;
        for step in 0..2_000 {
            let before = moves.state().placement.clone();
            let Some(applied) = moves.apply_random_move() else {
                assert_eq!(moves.state().placement, before, "case {case}, step {step}");
                continue;
            };
            moved += 1;
            if rng.below(2) == 0 {
                moves.undo(applied);
                assert_eq!(moves.state().placement, before, "case {case}, step {step}");
            }
            let placement = &moves.state().placement;
            assert!(
                stage_graph.count(placement) <= max_stages,
                "case {case}, step {step}"
            );
        }
        let fresh = PlacementState::new(&merged, moves.state().placement.clone());
        assert_eq!(moves.state().load, fresh.load, "case {case}");
        assert!(moved > 100, "case {case}: only {moved} moves");
    }
}

#[test]
fn placements_in_few_stages_are_close_to_enumerated_optima() {
    let mut rng = Rng::new(24);
    let (mut met, mut cases) = (0, 0);
    for case in 0..40 {
        let problem = PlacementProblem {
            max_stages: Some(2 + case % 2),
            ..pipeline(&mut rng, 8, 3)
        };
        let Some(optimum) = enumerate(&problem) else {
            continue;
        };
        // Without the enumeration, which is the proof here.
        let limits = PlacementLimits {
            enumerated: 0,
            ..placement_limits(Level::Balanced)
        };
        let found = unattended(|control| search(&problem, &limits, false, control));
        let found = found.expect("there is a placement");
        assert!(found.evaluation.cost >= optimum, "case {case}");
        cases += 1;
        met += u32::from(found.evaluation.cost == optimum);
    }
    assert!(
        cases > 20 && met * 10 >= cases * 9,
        "only {met} of {cases} optima were met"
    );
}
