//! Plans under a bound on their latency, beside all plans of a small graph.

use zbmd_ir::{Costs, DeviceId, Graph, Machine};

use crate::assemble::assemble;
use crate::block::best_plan;
use crate::inputs::{Analysis, Inputs};
use crate::options::{Block, ScheduleOptions};
use crate::problem::BlockProblem;
use crate::search::rng::Rng;
use crate::search::unattended;
use crate::stages::find_stages;
use crate::testing::{Link5, costs, graph, machine};

/// The two figures of a plan that trade for one another.
#[derive(Clone, Copy, Debug)]
struct Figures {
    period_ns: u64,
    latency_ns: u64,
}

struct RandomCase {
    graph: Graph,
    machine: Machine,
    costs: Costs,
}

/// A connected acyclic graph with firings of 1 to 20 us.
fn random_case(actors: u32, random: &mut Rng) -> RandomCase {
    let mut channels: Vec<Link5> = Vec::new();
    for reader in 1..actors {
        let inputs = 1 + random.below(2);
        for _ in 0..inputs {
            let writer = random.below(reader as usize) as u32;
            channels.push((writer, 1, reader, 1, 0));
        }
    }
    let graph = graph(actors as usize, &channels);
    let machine = machine(2);
    let mut costs = costs(&graph, &machine, 0);
    for row in costs.table.iter_mut() {
        let firing_ps = 1_000_000 * (1 + random.below(20) as u64);
        for cost in row.iter_mut().flatten() {
            cost.firing_ps = firing_ps;
        }
    }
    RandomCase {
        graph,
        machine,
        costs,
    }
}

/// Every placement on two alike devices, with every choice of the boundaries between its stages.
fn all_plans(inputs: Inputs<'_>, analysis: &Analysis) -> Vec<Figures> {
    let problem = BlockProblem::new(inputs, analysis, 1).expect("a valid graph");
    let clusters = problem.clusters.all.len();
    let mut figures = Vec::new();
    // The devices are alike, so the first cluster may stay on the first one.
    for bits in 0..1u32 << (clusters - 1) {
        let device_of = |cluster: usize| DeviceId((bits << 1) >> cluster & 1);
        let placement: Vec<DeviceId> = (0..clusters).map(device_of).collect();
        let stage_of = find_stages(&problem, &placement, true);
        let last_stage = stage_of.iter().max().copied().unwrap_or(0);
        for kept in 0..1u32 << last_stage {
            // Bit i keeps the boundary between stages i and i + 1.
            let joined = |&stage: &u32| (kept & ((1 << stage) - 1)).count_ones();
            let stages = stage_of.iter().map(joined).collect();
            if let Ok(plan) = assemble(&problem, &placement, stages, "main") {
                figures.push(Figures {
                    period_ns: plan.period_ns,
                    latency_ns: plan.latency_ns,
                });
            }
        }
    }
    figures
}

fn best_within(figures: &[Figures], max_latency_ns: u64) -> Option<Figures> {
    let in_time = figures.iter().filter(|f| f.latency_ns <= max_latency_ns);
    in_time.min_by_key(|f| (f.period_ns, f.latency_ns)).copied()
}

/// Ten bounds between the shortest latency and that of the quickest plan, each met by a plan about as quick as any.
#[test]
fn bounds_on_the_latency_leave_no_gap_in_the_front() {
    const BOUNDS: u64 = 10;
    let mut random = Rng::new(19);
    let mut ratios: Vec<f64> = Vec::new();
    for case in 0..200 {
        // All placements of 12 actors take long: few graphs have so many.
        let actors = match case % 20 {
            0 => 12,
            _ => 3 + random.below(7) as u32,
        };
        let random_case = random_case(actors, &mut random);
        let options = ScheduleOptions {
            block: Block::Fixed(1),
            ..ScheduleOptions::default()
        };
        let inputs = Inputs {
            graph: &random_case.graph,
            machine: &random_case.machine,
            costs: &random_case.costs,
            options: &options,
        };
        let analysis = Analysis::of(inputs.graph).expect("a valid graph");
        let all = all_plans(inputs, &analysis);
        let shortest_ns = all.iter().map(|plan| plan.latency_ns).min();
        let shortest_ns = shortest_ns.expect("a graph has a plan");
        let quickest = best_within(&all, u64::MAX).expect("a graph has a plan");

        for bound in 0..BOUNDS {
            let span_ns = quickest.latency_ns - shortest_ns;
            let max_latency_ns = shortest_ns + span_ns * bound / (BOUNDS - 1);
            let best = best_within(&all, max_latency_ns).expect("one is as short as this");
            let options = ScheduleOptions {
                max_latency_ns: Some(max_latency_ns),
                ..options.clone()
            };
            let inputs = Inputs {
                options: &options,
                ..inputs
            };

            let found = unattended(|control| best_plan(inputs, &analysis, control));
            let found =
                found.unwrap_or_else(|error| panic!("graph {case}, bound {bound}: {error}"));
            assert!(found.plan.latency_ns <= max_latency_ns);
            ratios.push(found.plan.period_ns as f64 / best.period_ns as f64);
        }
    }

    let longer = ratios.iter().filter(|&&ratio| ratio > 1.02).count();
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    println!(
        "{longer} of {} periods above 1.02 of the best, at most {worst}",
        ratios.len()
    );
    assert!(
        longer <= ratios.len() / 100,
        "{longer} plans are slower than they have to be"
    );
    assert!(worst < 1.5, "a period {worst} times the best");
}
