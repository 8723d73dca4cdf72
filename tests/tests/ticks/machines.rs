//! Random graphs on random machines that keep time: scheduled to the tick, verified, run tick by tick with clocks that
//! drift, and equal to the interpreter.

use zbmd_tests::mix;
use zbmd_tests::ticks::{Case, mutate};
use zbmd_tick_sim::machine::{FaultKind, FrameHarm, Injection, RunError, RunFault, Stepping};
use zbmd_ticks::{ControlLaw, LinkId, Network, NodeId, TickContingencies, TickLoss, verify};

/// As many as a variable says, or else a number for every day.
fn count(variable: &str, daily: u64) -> u64 {
    let given = std::env::var(variable).ok();
    given.map_or(daily, |text| text.parse().expect("a number"))
}

#[test]
fn random_graphs_run_like_the_interpreter_whatever_the_drift() {
    let registry = mix::registry();
    let (mut at_bound, mut sent, mut forwarded, mut gaps) = (0, 0, 0, 0.0);
    let seeds = count("ZBMD_TICK_GRAPHS", 300);
    for seed in 0..seeds {
        let case = Case::new(seed, &registry);
        for stepping in [Stepping::Events, Stepping::EveryFrame] {
            let outcome = case.run(&case.plan, &registry, stepping, &[]);
            assert_eq!(outcome.fault, None, "seed {seed}");
            assert_eq!(outcome.outputs, case.expected, "seed {seed}, {stepping:?}");
        }
        at_bound += u64::from(case.plan.period == case.bound);
        sent += u64::from(!case.plan.messages.is_empty());
        forwarded += u64::from(case.plan.messages.iter().any(|m| m.hops.len() > 1));
        gaps += case.plan.period as f64 / case.bound as f64 - 1.0;
    }
    eprintln!(
        "{seeds} graphs: {at_bound} at the bound, {sent} send, {forwarded} over several hops, mean gap {:.1} %",
        100.0 * gaps / seeds as f64
    );
    assert!(sent > seeds / 3 && forwarded > seeds / 20);
}

#[test]
fn changed_plans_are_refused_or_do_the_same() {
    let registry = mix::registry();
    let mutants = count("ZBMD_TICK_MUTANTS", 3_000);
    let cases: Vec<Case> = (0..60).map(|seed| Case::new(seed, &registry)).collect();
    let mut rng = fastrand::Rng::with_seed(25);
    let (mut refused, mut equivalent) = (0, 0);
    for index in 0..mutants {
        let case = &cases[rng.usize(0..cases.len())];
        let mut plan = case.plan.clone().into_inner();
        let mut what = "nothing";
        while plan == *case.plan {
            what = mutate(&mut plan, &mut rng);
        }
        let Ok(plan) = verify(&case.graph, &case.machine, plan) else {
            refused += 1;
            continue;
        };
        let outcome = case.run(&plan, &registry, Stepping::Events, &[]);
        assert_eq!(outcome.outputs, case.expected, "mutant {index}: {what}");
        equivalent += 1;
    }
    eprintln!("{refused} refused, {equivalent} equivalent");
    assert!(refused > mutants / 2 && equivalent > mutants / 100);
}

/// Plans that keep borders on two nodes, changed: what passes the verifier survives losses as it did before.
#[test]
fn changed_plans_with_copies_are_refused_or_survive_losses() {
    let registry = mix::registry();
    let mutants = count("ZBMD_TICK_MUTANTS", 3_000) / 3;
    let mut rng = fastrand::Rng::with_seed(26);
    let cases = (0..40).filter_map(|seed| {
        let case = Case::new(seed, &registry);
        let table = case.contingencies();
        let whole_run = case.run_through_losses(&table, &registry, &[]);
        let has_copies = !table.main().copies.is_empty();
        let is_long = whole_run.ticks > case.machine.latency_ticks + 1;
        (has_copies && is_long).then_some((case, table, whole_run.ticks))
    });
    let cases: Vec<(Case, TickContingencies, u64)> = cases.collect();
    let (mut refused, mut survived) = (0, 0);
    for index in 0..mutants {
        let (case, table, ticks) = &cases[rng.usize(0..cases.len())];
        let mut plan = table.main().clone().into_inner();
        let mut what = "nothing";
        // Buffers of these machines are not made for runs of millions of ticks.
        while plan == **table.main() || plan.period > 4 * table.main().period {
            plan = table.main().clone().into_inner();
            what = mutate(&mut plan, &mut rng);
        }
        let others = table.list().iter();
        let others = others.map(|entry| (entry.lost, entry.plan.clone().into_inner()));
        let verified = verify(&case.graph, &case.machine, plan)
            .ok()
            .and_then(|main| {
                TickContingencies::verify(&case.graph, &case.machine, main, others.collect()).ok()
            });
        let Some(changed) = verified else {
            refused += 1;
            continue;
        };
        let (injections, _) = random_loss(case, *ticks, &mut rng);
        let outcome = case.run_through_losses(&changed, &registry, &injections);
        assert_eq!(outcome.fault, None, "mutant {index}: {what}");
        assert_eq!(outcome.outputs, case.expected, "mutant {index}: {what}");
        survived += 1;
    }
    eprintln!("{refused} refused, {survived} survived");
    assert!(refused > mutants / 2 && survived > mutants / 100);
}

#[test]
fn a_frame_is_missed_in_the_tick_in_which_it_was_due() {
    let registry = mix::registry();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut checked = 0;
    for seed in 0..count("ZBMD_TICK_LOSSES", 200) {
        let case = Case::new(seed, &registry);
        let network = case.machine.network().expect("a machine");
        let whole_run = case.run(&case.plan, &registry, Stepping::EveryFrame, &[]);
        let latency = case.machine.latency_ticks;
        if network.links().is_empty() || whole_run.ticks <= latency + 1 {
            continue;
        }
        let link = LinkId(rng.u32(0..network.links().len() as u32));
        let tick = rng.u64(0..whole_run.ticks - latency);
        let frame = |harm: FrameHarm| Injection::Frame { link, tick, harm };
        let (injection, seen) = match rng.u8(0..3) {
            0 => (frame(FrameHarm::Lose), FaultKind::Missing),
            1 => (Injection::Cut { link, tick }, FaultKind::Missing),
            _ => {
                let harm = FrameHarm::Flip { bit: rng.u32(..) };
                (frame(harm), FaultKind::Corrupt)
            }
        };
        let outcome = case.run(&case.plan, &registry, Stepping::EveryFrame, &[injection]);
        let expected = RunFault {
            node: network.links()[link].to,
            tick: tick + latency,
            link,
            kind: seen,
        };
        assert_eq!(outcome.fault, Some(expected), "seed {seed}");
        for (sink, bytes) in &outcome.outputs {
            assert!(
                case.expected[sink].starts_with(bytes),
                "seed {seed}: {sink}"
            );
        }
        checked += 1;
    }
    assert!(checked > 50, "{checked}");
}

/// A node, a link in one or both directions, or a frame, lost or changed, at random; and what is lost for good.
fn random_loss(case: &Case, ticks: u64, rng: &mut fastrand::Rng) -> (Vec<Injection>, u64) {
    let network = case.machine.network().expect("a machine");
    let tick = rng.u64(0..ticks - case.machine.latency_ticks);
    let link = LinkId(rng.u32(0..network.links().len() as u32));
    let frame = |harm: FrameHarm| vec![Injection::Frame { link, tick, harm }];
    let injections = match rng.u8(0..6) {
        0 => frame(FrameHarm::Lose),
        1 => frame(FrameHarm::Flip { bit: rng.u32(..) }),
        2 => vec![Injection::Cut { link, tick }],
        3 => {
            let reverse = network.reverse(link).expect("links go both ways");
            let both = [link, reverse];
            both.map(|link| Injection::Cut { link, tick }).to_vec()
        }
        _ => {
            let node = NodeId(rng.u32(0..network.node_count() as u32));
            vec![Injection::Stop { node, tick }]
        }
    };
    (injections, tick)
}

/// What a loss looks like from each part of the network that it leaves: a link, or else all nodes that no way leads to.
fn views_of(network: &Network, lost: TickLoss) -> Vec<Vec<TickLoss>> {
    let rest = network.without(&[lost]);
    let mut views = Vec::new();
    for node in network.nodes().filter(|&node| lost != TickLoss::Node(node)) {
        let mut part = vec![node];
        let mut index = 0;
        while let Some(&reached) = part.get(index) {
            index += 1;
            for &link in rest.outgoing(reached) {
                let next = network.links()[link].to;
                if !part.contains(&next) {
                    part.push(next);
                }
            }
        }
        let others = network.nodes().filter(|node| !part.contains(node));
        let others: Vec<TickLoss> = others.map(TickLoss::Node).collect();
        views.push(if others.is_empty() {
            vec![lost]
        } else {
            others
        });
    }
    views
}

#[test]
fn every_loss_is_noticed_when_it_was_due_and_survived_with_the_same_output() {
    let registry = mix::registry();
    let mut rng = fastrand::Rng::with_seed(8);
    let (mut checked, mut resumed, mut restored, mut plans, mut divided) = (0, 0, 0, 0, 0);
    let seeds = count("ZBMD_TICK_LOSSES", 100);
    for seed in 0..seeds {
        let case = Case::new(seed, &registry);
        let network = case.machine.network().expect("a machine");
        let contingencies = case.contingencies();
        let whole_run = case.run_through_losses(&contingencies, &registry, &[]);
        assert_eq!(whole_run.outputs, case.expected, "seed {seed}");
        plans += contingencies.list().len();
        if network.links().is_empty() || whole_run.ticks <= case.machine.latency_ticks + 1 {
            continue;
        }

        let (injections, tick) = random_loss(&case, whole_run.ticks, &mut rng);
        let outcome = case.run_through_losses(&contingencies, &registry, &injections);
        assert_eq!(outcome.fault, None, "seed {seed}: {injections:?}");
        assert_eq!(
            outcome.outputs, case.expected,
            "seed {seed}: {injections:?}"
        );
        let first = &outcome.recoveries[0];
        let lost_frame = (
            first.fault.link,
            first.fault.tick - case.machine.latency_ticks,
        );
        let lost = match injections[0] {
            Injection::Frame { link, tick, .. } => {
                assert_eq!(lost_frame, (link, tick), "seed {seed}");
                None
            }
            Injection::Cut { link, .. } => Some(TickLoss::of_link(&network, link)),
            Injection::Stop { node, .. } => {
                assert_eq!(network.links()[lost_frame.0].from, node, "seed {seed}");
                Some(TickLoss::Node(node))
            }
        };
        assert_eq!(lost_frame.1, tick, "seed {seed}: {injections:?}");
        let views = lost.map_or_else(|| vec![Vec::new()], |lost| views_of(&network, lost));
        assert!(
            views.contains(&first.lost),
            "seed {seed}: {first:?}, not {views:?}"
        );
        divided += u64::from(first.lost.len() > 1);
        checked += 1;
        let resumption = outcome.recoveries.iter().find_map(|r| r.resumption);
        resumed += u64::from(resumption.is_some());
        restored += u64::from(resumption.is_some_and(|r| r.restoring_frames > 0));
    }
    eprintln!(
        "{checked} losses, {resumed} of which went back to a border, {restored} with frames that brought it, {divided} of which divided the network, {plans} plans for losses"
    );
    assert!(checked > seeds / 2 && resumed > checked / 4 && restored > resumed / 4);
}

/// Two losses, at once or one after the other: the output is that of the interpreter, or the run ends with a fault or an error
/// that says why.
#[test]
fn two_losses_are_survived_or_end_the_run() {
    let registry = mix::registry();
    let mut rng = fastrand::Rng::with_seed(9);
    let (mut survived, mut ended, mut untold) = (0, 0, 0);
    for seed in 0..count("ZBMD_TICK_LOSSES", 60) {
        let case = Case::new(seed, &registry);
        let network = case.machine.network().expect("a machine");
        let contingencies = case.contingencies();
        let whole_run = case.run_through_losses(&contingencies, &registry, &[]);
        if network.links().is_empty() || whole_run.ticks <= case.machine.latency_ticks + 1 {
            continue;
        }
        let (mut injections, _) = random_loss(&case, whole_run.ticks, &mut rng);
        injections.extend(random_loss(&case, whole_run.ticks, &mut rng).0);
        let outcome = match case.try_run_through_losses(&contingencies, &registry, &injections) {
            Ok(outcome) => outcome,
            Err(RunError::Untold { .. }) => {
                untold += 1;
                continue;
            }
            Err(RunError::Abandoned { .. } | RunError::BorderLost { .. }) => {
                ended += 1;
                continue;
            }
            Err(error) => panic!("seed {seed}: {injections:?}: {error}"),
        };
        match outcome.fault {
            None => {
                assert_eq!(
                    outcome.outputs, case.expected,
                    "seed {seed}: {injections:?}"
                );
                survived += 1;
            }
            Some(_) => ended += 1,
        }
    }
    eprintln!("{survived} survived, {ended} without a plan, {untold} in which reports were late");
    assert!(survived > ended + untold);
}

/// Without control the buffers of clocks that differ by eight in a hundred run over or dry, and the run says so.
#[test]
fn buffers_run_over_or_dry_without_control() {
    let registry = mix::registry();
    let mut checked = 0;
    for seed in 0..200 {
        let mut case = Case::new(seed, &registry);
        let network = case.machine.network().expect("a machine");
        let whole_run = case.run(&case.plan, &registry, Stepping::EveryFrame, &[]);
        // Half a buffer is at most four frames.
        if network.links().is_empty() || whole_run.ticks < 200 {
            continue;
        }
        let mut clocks = case.machine.clocks();
        clocks.control.law = ControlLaw::Free;
        clocks.oscillators.offsets_ppm = vec![4e4, -4e4];
        case.machine.clocks = Some(clocks);
        let outcome = case.run(&case.plan, &registry, Stepping::EveryFrame, &[]);
        let kind = outcome.fault.map(|fault| fault.kind);
        let expected = [Some(FaultKind::Underflow), Some(FaultKind::Overflow)];
        assert!(expected.contains(&kind), "seed {seed}: {kind:?}");
        checked += 1;
    }
    assert!(checked > 5, "{checked}");
}
