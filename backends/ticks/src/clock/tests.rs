//! Runs beside what papers publish and theory predicts.

use zbmd_ticks::{Clocks, Control, ControlLaw, ElasticBuffers, LinkId, Network, NodeId, Topology};

use super::theory::{SteadyInput, SteadyState, resistance, steady_state};
use super::*;

const PPM: f64 = 1e-6;

/// The gains, period, delay and propagation of Callisto.jl's defaults and tests.
fn published(offsets_ppm: &[f64]) -> Clocks {
    let mut clocks = Clocks::default();
    clocks.oscillators.offsets_ppm = offsets_ppm.to_vec();
    clocks
}

fn network(topology: Topology) -> Network {
    topology.network().expect("a legal shape")
}

fn simulation<'a>(
    network: &'a Network,
    clocks: &Clocks,
    events: &[TimedEvent],
) -> ClockSimulation<'a> {
    ClockSimulation::new(network, clocks, events).expect("clocks that make sense")
}

fn run(simulation: &mut ClockSimulation<'_>, time: f64) {
    simulation.run_until(time).expect("gains are low enough");
}

fn frequencies(simulation: &ClockSimulation<'_>) -> Vec<f64> {
    let nodes = simulation.network().nodes();
    nodes
        .filter_map(|node| simulation.frequency(node))
        .collect()
}

fn law(proportional: f64) -> ControlLaw {
    ControlLaw::Proportional { gain: proportional }
}

/// The state that theory predicts for a simulation as it stands.
fn predicted(
    simulation: &ClockSimulation<'_>,
    clocks: &Clocks,
    propagation: &[f64],
) -> SteadyState {
    let network = simulation.network();
    let free: Vec<f64> = network
        .nodes()
        .map(|node| simulation.free_frequency(node))
        .collect();
    let latencies: Vec<i64> = network
        .links()
        .keys()
        .map(|link| simulation.logical_latency(link).expect("all links are up"))
        .collect();
    let input = SteadyInput {
        network,
        law: clocks.control.law,
        free_frequencies: &free,
        propagation,
        latencies: &latencies,
        initial_fill: clocks.buffers.initial_fill,
    };
    steady_state(&input).expect("a law with a steady state")
}

/// The figure of the paper on resistance distances that Callisto.jl's own test uses, for three nodes and for eight.
#[test]
fn convergence_costs_what_the_paper_on_resistance_distances_says() {
    let gain = 2e-8;
    let cases = [
        (Topology::Complete { nodes: 3 }, 0, 1),
        (Topology::Complete { nodes: 8 }, 0, 1),
        (Topology::Hypercube { dimensions: 3 }, 0, 7),
        (Topology::Ring { nodes: 8 }, 0, 4),
    ];
    for (topology, fast, slow) in cases {
        let network = network(topology.clone());
        let mut offsets = vec![0.0; network.node_count()];
        offsets[fast] = 100.0;
        offsets[slow] = -100.0;
        let clocks = published(&offsets);
        let mut simulation = simulation(&network, &clocks, &[]);

        // Squared distances times how long they lasted.
        let mut since = vec![(0.0, 0.0); network.node_count()];
        for (index, offset) in offsets.iter().enumerate() {
            since[index] = (0.0, offset * PPM);
        }
        let mut norm = 0.0;
        let mut add = |step: ControlStep| {
            let (time, distance) = since[step.node.index()];
            norm += distance * distance * (step.time - time);
            since[step.node.index()] = (step.time, step.frequency - 1.0);
        };
        simulation
            .run_observed(1e9, &mut add)
            .expect("gains are low enough");

        let resistance = resistance(&network, NodeId(fast as u32), NodeId(slow as u32));
        let expected = (100.0 * PPM) * (100.0 * PPM) * resistance / (2.0 * gain);
        let ratio = norm / expected;
        // Callisto.jl allows a tenth either way.
        assert!((0.95..1.05).contains(&ratio), "{topology:?}: {ratio}");
    }
}

#[test]
fn frequencies_and_fills_end_where_theory_says() {
    let pi = ControlLaw::ProportionalIntegral {
        proportional: 2e-8,
        integral: 1e-15,
    };
    let topologies = [
        Topology::Complete { nodes: 3 },
        Topology::Complete { nodes: 8 },
        Topology::Hypercube { dimensions: 3 },
        Topology::Mesh {
            rows: 3,
            columns: 2,
        },
        Topology::Star { nodes: 8 },
    ];
    for topology in topologies {
        // What an integral of half a frame for each link does in the meantime.
        let links_of_a_node = 8.0;
        for (law, time, drift) in [
            (law(2e-8), 4e9, 0.0),
            (pi, 5e8, 1e-15 * 5e8 * 0.5 * links_of_a_node),
        ] {
            let network = network(topology.clone());
            let mut clocks = published(&[]);
            clocks.control.law = law;
            let propagation: Vec<f64> = (0..network.links().len())
                .map(|link| 1_000.0 + 700.0 * link as f64)
                .collect();
            let mut simulation =
                ClockSimulation::with_propagation(&network, &clocks, &propagation, &[])
                    .expect("clocks that make sense");
            run(&mut simulation, time);

            let predicted = predicted(&simulation, &clocks, &propagation);
            for frequency in frequencies(&simulation) {
                // Whole frames move a frequency by the gain for each link at most.
                let distance = (frequency - predicted.frequency).abs();
                let allowed = 2e-8 * links_of_a_node + drift;
                assert!(distance < allowed, "{topology:?} {law:?}: {distance:e}");
            }
            for (link, &expected) in predicted.fills.iter_enumerated() {
                let fill = simulation.fill(link).expect("the link is up") as f64;
                let distance = (fill - expected).abs();
                assert!(distance < 6.0, "{topology:?} {law:?} {link}: {distance}");
            }
        }
    }
}

/// The slowest part of the distance decays by the gain times the second smallest eigenvalue of the Laplacian.
#[test]
fn distances_decay_at_the_rate_of_the_linear_model() {
    for nodes in [3, 8] {
        let network = network(Topology::Complete { nodes });
        let mut offsets = vec![0.0; nodes as usize];
        offsets[0] = 100.0;
        let mut clocks = published(&offsets);
        clocks.control.law = law(2e-8);
        let mut simulation = simulation(&network, &clocks, &[]);

        // All eigenvalues but the first are the number of nodes.
        let time_constant = 1.0 / (2e-8 * f64::from(nodes));
        let spread = |simulation: &ClockSimulation<'_>| {
            let all = frequencies(simulation);
            let max = all.iter().copied().fold(f64::MIN, f64::max);
            max - all.iter().copied().fold(f64::MAX, f64::min)
        };
        run(&mut simulation, time_constant / 2.0);
        let before = spread(&simulation);
        run(&mut simulation, 2.5 * time_constant);
        let found = (before / spread(&simulation)).ln() / 2.0;
        assert!((0.97..1.03).contains(&found), "{nodes} nodes: {found}");
    }
}

#[test]
fn centred_buffers_need_few_frames() {
    let network = network(Topology::Complete { nodes: 8 });
    let mut clocks = published(&[]);
    clocks.control.law = law(2e-8);
    let centre = TimedEvent {
        time: 1e9,
        event: ClockEvent::CentreBuffers,
    };
    let mut simulation = simulation(&network, &clocks, &[centre]);

    run(&mut simulation, 1e9 - 1.0);
    let before: Vec<FillRange> = ranges(&simulation);
    assert!(before.iter().any(|range| range.max - range.min > 300));
    let frequency = frequencies(&simulation)[0];

    run(&mut simulation, 3e9);
    let initial_fill = clocks.buffers.initial_fill as i64;
    for range in ranges(&simulation) {
        assert!(
            range.min >= initial_fill - 8 && range.max <= initial_fill + 8,
            "{range:?}"
        );
    }
    assert!((frequencies(&simulation)[0] - frequency).abs() < 5e-7);
}

fn ranges(simulation: &ClockSimulation<'_>) -> Vec<FillRange> {
    let links = simulation.network().links().keys();
    links
        .filter_map(|link| simulation.fill_range(link))
        .collect()
}

#[test]
fn steps_of_a_clock_multiplier_bring_clocks_together() {
    // The pulsed controller of Callisto.jl's demonstration: 200 MHz, steps of 5e-7.
    let network = network(Topology::Complete { nodes: 3 });
    let mut clocks = published(&[]);
    clocks.propagation_ticks = 40.0;
    clocks.control.period_ticks = 20_000;
    clocks.control.delay_ticks = 10;
    clocks.control.step_ppm = 0.5;
    let mut simulation = simulation(&network, &clocks, &[]);
    run(&mut simulation, 1e9);
    let all = frequencies(&simulation);
    let mean = all.iter().sum::<f64>() / 3.0;
    for frequency in all {
        let distance = (frequency - mean) / PPM;
        assert!(distance.abs() < 1.5, "{distance} ppm");
    }
    assert_eq!(simulation.buffer_faults().count(), 0);
}

/// 8 nodes and 10^9 ticks; `ZBMD_LONG_CLOCKS=1` adds networks of up to 256 nodes.
#[test]
fn a_random_walk_within_100_ppm_keeps_all_buffers_in_bounds() {
    let mut topologies = vec![
        Topology::Complete { nodes: 8 },
        Topology::Hypercube { dimensions: 3 },
    ];
    if std::env::var_os("ZBMD_LONG_CLOCKS").is_some() {
        let more = [
            Topology::Ring { nodes: 8 },
            Topology::Torus {
                rows: 16,
                columns: 16,
            },
            Topology::Tree {
                levels: 5,
                fan_out: 3,
            },
            Topology::Random {
                nodes: 100,
                extra_links: 100,
                seed: 3,
            },
        ];
        topologies.extend(more);
    }
    for topology in topologies {
        let network = network(topology.clone());
        let mut clocks = published(&[]);
        clocks.oscillators.wander_ppm = 1.0;
        let mut simulation = simulation(&network, &clocks, &[]);
        run(&mut simulation, 1e9);

        let faults: Vec<_> = simulation.buffer_faults().collect();
        assert!(faults.is_empty(), "{topology:?}: {faults:?}");
        let ranges = ranges(&simulation);
        let min = ranges.iter().map(|range| range.min).min();
        let max = ranges.iter().map(|range| range.max).max();
        eprintln!(
            "{topology:?}: fills from {min:?} to {max:?} of {}",
            clocks.buffers.frames
        );
    }
}

#[test]
fn without_control_a_buffer_overflows_when_it_must() {
    let network = network(Topology::Line { nodes: 2 });
    let mut clocks = published(&[50.0, -50.0]);
    clocks.control.law = ControlLaw::Free;
    clocks.buffers = ElasticBuffers {
        frames: 100,
        initial_fill: 50,
    };
    let mut simulation = simulation(&network, &clocks, &[]);
    run(&mut simulation, 2e6);

    let faults: Vec<_> = simulation.buffer_faults().copied().collect();
    assert_eq!(faults.len(), 2, "{faults:?}");
    for fault in faults {
        // 50 frames at 100 ppm, a fraction of a frame more or less.
        assert!((fault.time - 500_000.0).abs() < 10_000.0, "{fault:?}");
        let expected = [NoticeKind::Overflow, NoticeKind::Underflow][fault.link.index()];
        assert_eq!(fault.kind, expected);
        assert_eq!(simulation.fill(fault.link), None);
    }
}

#[test]
fn a_lost_node_is_noticed_when_its_first_frame_is_missing_and_can_come_back() {
    let network = network(Topology::Complete { nodes: 3 });
    let clocks = published(&[10.0, -20.0, 30.0]);
    let events = [
        (2e8, ClockEvent::StopNode(NodeId(2))),
        (5e8, ClockEvent::StartNode(NodeId(2))),
    ];
    let events = events.map(|(time, event)| TimedEvent { time, event });
    let mut simulation = simulation(&network, &clocks, &events);
    run(&mut simulation, 2e8);
    let lost = network.outgoing(NodeId(2)).to_vec();
    let latencies: Vec<_> = lost
        .iter()
        .map(|&l| simulation.logical_latency(l))
        .collect();
    run(&mut simulation, 3e8);

    let silent: Vec<Notice> = notices(&simulation, |kind| {
        matches!(kind, NoticeKind::Silent { .. })
    });
    assert_eq!(silent.len(), 2);
    for (notice, latency) in silent.iter().zip(latencies) {
        assert!(lost.contains(&notice.link));
        assert_eq!(notice.time, 2e8 + clocks.propagation_ticks);
        // Node 2 ran for 2e8 ticks at 30 ppm or nearer to the others.
        let NoticeKind::Silent { due_tick } = notice.kind else {
            panic!("filtered above");
        };
        let last_sent = due_tick - latency.expect("the link was up") - 1;
        assert!(
            (last_sent as f64 - 2e8).abs() < 2e8 * 40.0 * PPM,
            "{last_sent}"
        );
    }
    assert_eq!(simulation.frequency(NodeId(2)), None);
    assert_eq!(frequencies(&simulation).len(), 2);

    run(&mut simulation, 2e9);
    let all = frequencies(&simulation);
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|f| (f - all[0]).abs() < 2e-7), "{all:?}");
    let ups = notices(&simulation, |kind| matches!(kind, NoticeKind::Up { .. }));
    assert_eq!(ups.len(), 6 + 4);
    assert_eq!(simulation.buffer_faults().count(), 0);
}

fn notices(simulation: &ClockSimulation<'_>, wanted: fn(NoticeKind) -> bool) -> Vec<Notice> {
    let all = simulation.notices().iter().copied();
    all.filter(|notice| wanted(notice.kind)).collect()
}

#[test]
fn a_cut_link_leaves_the_rest_together() {
    let network = network(Topology::Ring { nodes: 4 });
    let clocks = published(&[]);
    let cut = network.link_between(NodeId(0), NodeId(1)).expect("linked");
    let events = [
        (3e8, ClockEvent::StopLink(cut)),
        (6e8, ClockEvent::StartLink(cut)),
    ];
    let events = events.map(|(time, event)| TimedEvent { time, event });
    let mut simulation = simulation(&network, &clocks, &events);
    let other_latencies = |simulation: &ClockSimulation<'_>| -> Vec<_> {
        let others = network.links().keys().filter(|&link| link != cut);
        others
            .map(|link| simulation.logical_latency(link))
            .collect()
    };
    let before = other_latencies(&simulation);

    run(&mut simulation, 5e8);
    assert_eq!(simulation.logical_latency(cut), None);
    run(&mut simulation, 3e9);
    assert!(simulation.logical_latency(cut).is_some());
    assert_eq!(other_latencies(&simulation), before);
    let all = frequencies(&simulation);
    assert!(all.iter().all(|f| (f - all[0]).abs() < 2e-7), "{all:?}");
}

#[test]
fn equal_seeds_give_equal_runs_and_memory_is_bounded() {
    let network = network(Topology::Torus {
        rows: 3,
        columns: 3,
    });
    let mut clocks = published(&[]);
    clocks.oscillators.wander_ppm = 2.0;
    let record = |clocks: &Clocks| {
        let mut simulation = simulation(&network, clocks, &[]);
        let mut recorder = Recorder::new(&simulation, 1e6, 100, 4);
        recorder
            .run_until(&mut simulation, 1e9)
            .expect("gains are low enough");
        recorder
    };
    let first = record(&clocks);
    assert_eq!(first.csv(), record(&clocks).csv());
    assert!((50..=100).contains(&first.samples().len()));
    assert!(
        first
            .csv()
            .starts_with("tick,ppm_n0,ppm_n1,ppm_n2,ppm_n3,phase_n0")
    );
    assert!(
        first
            .fill_plot()
            .svg()
            .contains("frames in elastic buffers")
    );

    clocks.oscillators.seed += 1;
    assert_ne!(first.csv(), record(&clocks).csv());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let network = network(Topology::Line { nodes: 2 });
    let clocks = Clocks::default();
    let event = TimedEvent {
        time: 1.0,
        event: ClockEvent::StopNode(NodeId(2)),
    };
    let error = ClockSimulation::new(&network, &clocks, &[event]).expect_err("no such node");
    assert_eq!(
        error.to_string(),
        "event 0 at 1 ticks is impossible: it names a node or a link that does not exist"
    );
    let error = ClockSimulation::with_propagation(&network, &clocks, &[1.0, -1.0], &[])
        .expect_err("a negative time");
    assert_eq!(
        error.to_string(),
        "the propagation time of l1 is -1 ticks, but must be between 0 and 1e12"
    );

    let mut wild = published(&[100.0, -100.0]);
    wild.control = Control {
        law: law(0.9),
        max_ppm: 500_000.0,
        ..Control::default()
    };
    let mut simulation = simulation(&network, &wild, &[]);
    let error = simulation.run_until(1e8).expect_err("gains are too high");
    assert!(error.to_string().contains("lower the gains"), "{error}");
}

/// What a buffer holds if each frame is moved by itself: the oracle of the fills that the simulation computes from
/// phases, and of the claim that a frame of tick m is taken in tick m + latency.
#[test]
fn frames_moved_one_by_one_fill_buffers_alike() {
    let network = network(Topology::Line { nodes: 2 });
    let mut clocks = published(&[300.0, -300.0]);
    clocks.control = Control {
        law: law(1e-5),
        period_ticks: 500,
        delay_ticks: 20,
        ..Control::default()
    };
    clocks.propagation_ticks = 130.7;
    clocks.buffers = ElasticBuffers {
        frames: 40,
        initial_fill: 20,
    };
    let mut simulation = simulation(&network, &clocks, &[]);
    let link = LinkId(0);
    let latency = simulation.logical_latency(link).expect("up");

    // Steps much shorter than a tick: each frame goes in and comes out in a step of its own.
    let mut queue = std::collections::VecDeque::new();
    let sent_phase = |simulation: &ClockSimulation<'_>| simulation.phase(NodeId(0));
    let mut sent_before = Vec::new();
    let mut taken = simulation.phase(NodeId(1)).expect("runs").floor() as i64;
    let mut arrived = None::<i64>;
    let mut steps_seen = 0_usize;
    let step = 0.1;
    let lag = 1307;
    for index in 1..400_000 {
        run(&mut simulation, f64::from(index) * step);
        sent_before.push(sent_phase(&simulation).expect("runs").floor() as i64);
        if sent_before.len() <= lag {
            taken = simulation.phase(NodeId(1)).expect("runs").floor() as i64;
            continue;
        }
        let sent = sent_before[steps_seen];
        steps_seen += 1;
        let first = arrived.map_or_else(
            || {
                let fill = simulation.fill(link).expect("up");
                sent + 1 - fill
            },
            |last| last + 1,
        );
        queue.extend(first..=sent);
        arrived = Some(sent);

        let now = simulation.phase(NodeId(1)).expect("runs").floor() as i64;
        if steps_seen > 1 {
            for tick in taken + 1..=now {
                let frame: i64 = queue.pop_front().expect("no underflow");
                assert_eq!(tick - frame, latency);
            }
        }
        taken = now;
        assert_eq!(queue.len() as i64, simulation.fill(link).expect("up"));
    }
}

/// 10,000 nodes for 10^6 ticks: only with `ZBMD_LONG_CLOCKS=1`, a tenth as wide each way without.
#[test]
fn large_networks_take_work_for_control_periods_and_not_for_ticks() {
    let is_long = std::env::var_os("ZBMD_LONG_CLOCKS").is_some();
    let side = if is_long { 100 } else { 10 };
    let network = network(Topology::Torus {
        rows: side,
        columns: side,
    });
    let mut clocks = published(&[]);
    clocks.oscillators.wander_ppm = 1.0;
    clocks.control.period_ticks = 20_000;
    let mut simulation = simulation(&network, &clocks, &[]);
    run(&mut simulation, 1e6);

    // The first measurement is after one period, and the last within the run.
    let nodes = u64::from(side * side);
    let steps = simulation.steps();
    assert!((48 * nodes..=50 * nodes).contains(&steps), "{steps}");
    assert!(simulation.pieces_per_node() < 20);
    assert_eq!(simulation.buffer_faults().count(), 0);
}
