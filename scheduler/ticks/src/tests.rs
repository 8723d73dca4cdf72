//! Plans of small graphs, checked by the verifier.

use std::collections::BTreeMap;

use zbmd_ir::{
    Actor, ActorId, Channel, DType, Endpoint, Graph, InPort, OutPort, Params, Reader, Role, TiVec,
    TokenType,
};
use zbmd_ticks::{
    LinkId, NodeId, TickContingencies, TickLoss, TickMachine, Topology, VerifiedPlan,
    tick_calendar, tick_drawing, verify,
};

use crate::attempt::timetable;
use crate::bound::period_bound;
use crate::order::firing_order;
use crate::problem::Problem;
use crate::{TickSchedule, TickScheduleError, contingencies, schedule};

/// A channel of a test graph: tokens written and read per firing, and initial tokens.
#[derive(Clone, Copy, Debug)]
struct Edge {
    from: usize,
    to: usize,
    rates: (u64, u64),
    delay: u64,
}

const fn edge(from: usize, to: usize, rates: (u64, u64), delay: u64) -> Edge {
    Edge {
        from,
        to,
        rates,
        delay,
    }
}

fn graph(actors: usize, edges: &[Edge]) -> Graph {
    let mut graph = Graph::default();
    for index in 0..actors {
        graph.actors.push(Actor {
            name: format!("x{index}"),
            role: Role::Compute,
            op: "Mix".to_owned(),
            params: Params::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            state: Vec::new(),
            in_place: Vec::new(),
        });
    }
    let token = TokenType::scalar(DType::I32);
    for edge in edges {
        let (from, to) = (ActorId::from(edge.from), ActorId::from(edge.to));
        let outputs = &mut graph.actors[from].outputs;
        let from = Endpoint {
            actor: from,
            port: outputs.len() as u32,
        };
        outputs.push(OutPort {
            name: format!("y{}", outputs.len()),
            token: token.clone(),
            rate: edge.rates.0,
        });
        let inputs = &mut graph.actors[to].inputs;
        let to = Endpoint {
            actor: to,
            port: inputs.len() as u32,
        };
        inputs.push(InPort {
            name: format!("x{}", inputs.len()),
            token: token.clone(),
            rate: edge.rates.1,
            window: edge.rates.1,
        });
        graph.channels.push(Channel {
            from,
            readers: vec![Reader {
                to,
                delay: edge.delay,
            }],
            token: token.clone(),
            initial: vec![0; 4 * edge.delay as usize],
        });
    }
    graph
}

fn machine(topology: Topology) -> TickMachine {
    TickMachine {
        topology,
        frame_bits: 8,
        latency_ticks: 3,
        memory_bytes: 1 << 20,
        op_ticks: BTreeMap::new(),
        default_ticks: 1,
        clocks: None,
    }
}

fn verified(graph: &Graph, machine: &TickMachine) -> (TickSchedule, VerifiedPlan) {
    let schedule = schedule(graph, machine).expect("a plan");
    let plan = match verify(graph, machine, schedule.plan.clone()) {
        Ok(plan) => plan,
        Err(errors) => panic!("{errors:#?}\n{:#?}", schedule.plan),
    };
    (schedule, plan)
}

/// The shape of aegir's test of several applications: rings of three actors with messages of 32 bits both ways, on
/// links of 8 bits.
fn applications(count: usize) -> Graph {
    let mut edges = Vec::new();
    for first in (0..3 * count).step_by(3) {
        for (from, to) in [(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)] {
            edges.push(edge(first + from, first + to, (1, 1), 1));
        }
    }
    graph(3 * count, &edges)
}

#[test]
fn forty_applications_share_eight_nodes_at_the_bound() {
    let graph = applications(40);
    assert_eq!((graph.actors.len(), graph.channels.len()), (120, 240));
    let (schedule, _) = verified(&graph, &machine(Topology::Hypercube { dimensions: 3 }));
    assert_eq!(schedule.bound, 15);
    assert_eq!(schedule.plan.period, 15);
}

#[test]
fn a_chain_is_spread_over_nodes_and_its_communication_overlaps_with_work() {
    let edges = [
        edge(0, 1, (1, 1), 0),
        edge(1, 2, (1, 1), 0),
        edge(2, 3, (1, 1), 0),
    ];
    let graph = graph(4, &edges);
    let mut machine = machine(Topology::Line { nodes: 4 });
    machine.default_ticks = 10;
    let (schedule, _) = verified(&graph, &machine);
    assert_eq!(schedule.bound, 10);
    assert_eq!(schedule.plan.period, 10);
    // Four firings, and three times four frames and their way.
    assert_eq!(schedule.latency, 4 * 10 + 3 * (4 + 3));
}

#[test]
fn a_loop_stays_on_one_node_where_links_would_be_too_slow() {
    let edges = [edge(0, 1, (1, 1), 0), edge(1, 0, (1, 1), 1)];
    let graph = graph(2, &edges);
    let (schedule, plan) = verified(&graph, &machine(Topology::Line { nodes: 2 }));
    assert_eq!((schedule.bound, schedule.plan.period), (2, 2));
    assert!(plan.messages.is_empty());
}

#[test]
fn rates_that_differ_are_scheduled_firing_by_firing() {
    let edges = [
        edge(0, 1, (2, 3), 0),
        edge(1, 2, (6, 3), 4),
        edge(2, 0, (3, 4), 12),
    ];
    let graph = graph(3, &edges);
    for topology in [Topology::Line { nodes: 1 }, Topology::Ring { nodes: 3 }] {
        let (schedule, plan) = verified(&graph, &machine(topology));
        assert!(schedule.plan.period >= schedule.bound);
        let firings: Vec<usize> = plan.starts.iter().map(Vec::len).collect();
        assert_eq!(firings, [3, 2, 4]);
    }
}

/// The shortest period of all placements of four actors on three nodes is not below the bound, and often at it.
#[test]
fn no_placement_goes_below_the_bound() {
    let mut number = 25_u64;
    let mut below = |limit: u64| {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (number >> 33) % limit
    };
    let (mut graphs, mut at_bound) = (0, 0);
    while graphs < 60 {
        // A circle through some of the actors, and channels forward.
        let last = 1 + below(3) as usize;
        let rate = 1 + below(4);
        let mut edges = vec![edge(0, 1, (rate, rate), 0), edge(1, 2, (1, 1), 0)];
        edges.push(edge(2, 3, (rate, rate), 0));
        edges.push(edge(last, 0, (1, 1), 1 + below(2)));
        let graph = graph(4, &edges);
        let mut machine = machine(Topology::Line { nodes: 3 });
        machine.frame_bits = 8 << below(3);
        machine.latency_ticks = 1 + below(4);
        for actor in 0..4 {
            machine.op_ticks.insert(format!("x{actor}"), 1 + below(12));
        }

        let network = machine.network().expect("a machine");
        let problem = Problem::new(&graph, &machine, &network, None).expect("a small graph");
        let bound = period_bound(&problem).expect("a bound");
        let order = firing_order(&problem);
        let placements = (0..81_u32).map(|code| -> TiVec<ActorId, NodeId> {
            let nodes = [code % 3, code / 3 % 3, code / 9 % 3, code / 27];
            nodes.into_iter().map(NodeId).collect()
        });
        let placements: Vec<_> = placements.collect();
        let is_met = |period: u64| {
            let mut placements = placements.iter();
            placements.any(|placement| timetable(&problem, placement, &order, period).is_some())
        };
        for period in 1..bound {
            assert!(
                !is_met(period),
                "{period} is below {bound}: {edges:?} {machine:?}"
            );
        }
        graphs += 1;
        at_bound += usize::from(is_met(bound));
    }
    assert!(at_bound > 40, "{at_bound} of {graphs}");
}

#[test]
fn too_little_memory_is_said() {
    let edges = [edge(0, 1, (50, 50), 0)];
    let graph = graph(2, &edges);
    let mut machine = machine(Topology::Line { nodes: 2 });
    machine.memory_bytes = 100;
    let error = schedule(&graph, &machine).expect_err("200 bytes at least");
    assert!(
        matches!(error, TickScheduleError::Memory { memory: 100, .. }),
        "{error}"
    );
}

#[test]
fn without_a_node_in_the_middle_the_larger_part_goes_on() {
    let edges = [edge(0, 1, (1, 1), 0), edge(1, 2, (1, 1), 0)];
    let graph = graph(3, &edges);
    let mut machine = machine(Topology::Line { nodes: 5 });
    machine.default_ticks = 10;
    let (main, plan) = verified(&graph, &machine);
    assert_eq!(main.plan.period, 10);

    let schedules = contingencies(&graph, &machine, &plan).expect("a machine");
    let losses: Vec<TickLoss> = schedules.iter().map(|schedule| schedule.lost).collect();
    let used = [0, 1, 2].map(|node| TickLoss::Node(NodeId(node)));
    let links = [0, 2].map(|link| TickLoss::Link(LinkId(link)));
    assert_eq!(losses, [used.as_slice(), &links].concat());

    let plans = schedules.into_iter().map(|schedule| {
        let scheduled = schedule.result.expect("a plan");
        (schedule.lost, scheduled.plan)
    });
    let table = TickContingencies::verify(&graph, &machine, plan, plans.collect());
    let table = table.expect("plans that are right");
    let network = machine.network().expect("a machine");
    let periods = losses.iter().map(|&lost| {
        let plan = table.find(&network, &[lost]).expect("a plan");
        assert!(!lost.is_used_by(plan, &network));
        plan.period
    });
    // Without n2, or the link from n1 to n2, two or three nodes are together.
    assert_eq!(periods.collect::<Vec<_>>(), [10, 10, 20, 10, 10]);

    // The main plan is of no use without n0, and no plan for n0 says that it is for n1.
    let wrong = vec![(TickLoss::Node(NodeId(0)), main.plan)];
    let (lost, errors) = TickContingencies::verify(&graph, &machine, table.main().clone(), wrong)
        .expect_err("a plan that uses n0");
    assert_eq!(lost, TickLoss::Node(NodeId(0)));
    assert!(
        errors[0]
            .to_string()
            .ends_with("but the plan is for its loss"),
        "{}",
        errors[0]
    );
}

#[test]
fn a_calendar_reads_like_this() {
    let edges = [edge(0, 1, (2, 1), 0), edge(1, 2, (1, 2), 0)];
    let graph = graph(3, &edges);
    let mut machine = machine(Topology::Line { nodes: 3 });
    machine.frame_bits = 32;
    machine.default_ticks = 4;
    let (_, plan) = verified(&graph, &machine);
    let expected = "\
tick calendar   period 8   latency 25   frames of 32 bits   links of 3 ticks
n0   busy 4 of 8 ticks   memory 12 of 1048576 bytes
  scatter      16  +1  ch1[0] frame 0 <- n1
               20  +1  ch1[1] frame 0 <- n1
  compute      21  +4  x2[0]
n1   busy 8 of 8 ticks   memory 20 of 1048576 bytes
  scatter       7  +2  ch0[0] frames 0..2 <- n2
  compute       9  +4  x1[0]
               13  +4  x1[1]
  gather       13  +1  ch1[0] frame 0 -> n0
               17  +1  ch1[1] frame 0 -> n0
n2   busy 4 of 8 ticks   memory 8 of 1048576 bytes
  compute       0  +4  x0[0]
  gather        4  +2  ch0[0] frames 0..2 -> n1
";
    assert_eq!(tick_calendar(&graph, &machine, &plan), expected);

    let drawing = tick_drawing(&graph, &machine, &plan);
    for label in [">n0<", ">n1<", ">n2<", ">l1 to n0<", ">l3 to n1<"] {
        assert!(drawing.contains(label), "{label} in {drawing}");
    }
    // The last firing of x1 ends in the next period: it is drawn at both ends.
    let last = "<title>x1[1]: ticks 13 to 17</title>";
    assert_eq!(drawing.matches(last).count(), 2, "{drawing}");
    let frames = "<title>ch0[0] of x0 to n1: 2 frames from tick 4</title>";
    assert_eq!(drawing.matches(frames).count(), 1, "{drawing}");
}
