//! Plans of small graphs, checked by the verifier.

use std::collections::BTreeMap;

use zbmd_ir::{
    Actor, ActorId, Channel, DType, Endpoint, Graph, InPort, OutPort, Params, Reader, Role, TiVec,
    TokenType,
};
use zbmd_ticks::{
    BorderCopy, LinkId, NodeId, TickContingencies, TickError, TickLoss, TickMachine, TickPlan,
    Topology, VerifiedPlan, tick_calendar, tick_drawing, verify,
};

use crate::attempt::timetable;
use crate::bound::period_bound;
use crate::copies::CopyRule;
use crate::order::firing_order;
use crate::problem::Problem;
use crate::{TickSchedule, TickScheduleError, contingencies, schedule, schedule_with_copies};

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
        let nodes = network.nodes().collect();
        let problem = Problem::new(&graph, &machine, &network, nodes, CopyRule::None);
        let problem = problem.expect("a small graph");
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
    let error = TickContingencies::verify(&graph, &machine, table.main().clone(), wrong)
        .expect_err("a plan that uses n0");
    assert_eq!(error.lost, Some(TickLoss::Node(NodeId(0))));
    let error = error.to_string();
    assert!(
        error.contains("a0 is on n0, but the plan is for its loss"),
        "{error}"
    );
}

/// Three actors in a row, each of which takes a node, and states on two of them.
fn graph_with_borders() -> Graph {
    let edges = [
        edge(0, 0, (2, 2), 2),
        edge(0, 1, (2, 1), 0),
        edge(1, 1, (4, 4), 4),
        edge(1, 2, (1, 2), 3),
    ];
    graph(3, &edges)
}

/// A plan with copies, and those for losses, all of which are verified.
fn survivable(graph: &Graph, machine: &TickMachine) -> TickContingencies {
    let main = schedule_with_copies(graph, machine).expect("a plan").plan;
    let main = verify(graph, machine, main).expect("a plan that is right");
    let schedules = contingencies(graph, machine, &main).expect("a machine");
    let plans = schedules.into_iter().map(|schedule| {
        let scheduled = schedule.result.expect("a plan");
        (schedule.lost, scheduled.plan)
    });
    let table = TickContingencies::verify(graph, machine, main, plans.collect());
    table.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn borders_are_kept_on_the_nearest_node_where_no_loss_divides_the_network() {
    let graph = graph_with_borders();
    let mut machine = machine(Topology::Ring { nodes: 5 });
    machine.default_ticks = 40;
    let table = survivable(&graph, &machine);
    let network = machine.network().expect("a machine");
    for plan in std::iter::once(table.main()).chain(table.list().iter().map(|entry| &entry.plan)) {
        let channels: Vec<usize> = plan
            .copies
            .iter()
            .map(|copy| copy.channel.index())
            .collect();
        assert_eq!(channels, [0, 2, 3]);
    }
    for copy in &table.main().copies {
        let home = table.main().placement[graph.channels[copy.channel].from.actor];
        assert!(network.link_between(home, copy.node).is_some());
    }
}

/// Whatever is lost of a line, a star or a tree, one of the parts that are left has every border.
#[test]
fn borders_are_kept_together_where_a_loss_divides_the_network() {
    let graph = graph_with_borders();
    let topologies = [
        Topology::Line { nodes: 4 },
        Topology::Star { nodes: 5 },
        Topology::Tree {
            levels: 3,
            fan_out: 2,
        },
    ];
    for topology in topologies {
        let mut machine = machine(topology.clone());
        machine.default_ticks = 40;
        let table = survivable(&graph, &machine);
        let main = table.main();
        let network = machine.network().expect("a machine");
        let losses = TickLoss::singles(&network);
        let used = losses.iter().filter(|lost| lost.is_used_by(main, &network));
        assert_eq!(used.count(), table.list().len(), "{topology:?}");
        let homes = main.copies.iter().map(|copy| {
            let home = main.placement[graph.channels[copy.channel].from.actor];
            [home, copy.node]
        });
        let homes: Vec<[NodeId; 2]> = homes.collect();
        let keepers = network.nodes();
        let keeps_all = |node: &NodeId| homes.iter().all(|keepers| keepers.contains(node));
        assert!(
            keepers.filter(keeps_all).count() >= 1,
            "{topology:?}: {homes:?}"
        );
    }
}

#[test]
fn plans_that_do_not_keep_their_borders_are_refused() {
    let graph = graph_with_borders();
    let mut machine = machine(Topology::Ring { nodes: 5 });
    machine.default_ticks = 40;
    let table = survivable(&graph, &machine);
    let right = table.main().clone().into_inner();
    let errors_of = |change: &dyn Fn(&mut TickPlan)| {
        let mut plan = right.clone();
        change(&mut plan);
        verify(&graph, &machine, plan).expect_err("a wrong plan")
    };

    let one_less = errors_of(&|plan| plan.copies.truncate(2));
    assert!(
        matches!(
            one_less[0],
            TickError::Copies {
                found: 0,
                needed: 1,
                ..
            }
        ),
        "{one_less:?}"
    );
    let twice = errors_of(&|plan| plan.copies.push(plan.copies[0]));
    assert!(
        matches!(
            twice[0],
            TickError::Copies {
                found: 2,
                needed: 1,
                ..
            }
        ),
        "{twice:?}"
    );
    let at_home = errors_of(&|plan| {
        let BorderCopy { channel, node } = &mut plan.copies[0];
        *node = plan.placement[graph.channels[*channel].from.actor];
    });
    assert!(
        matches!(at_home[0], TickError::CopyAtHome { .. }),
        "{at_home:?}"
    );
    let nowhere = errors_of(&|plan| plan.copies[0].node = NodeId(5));
    assert!(
        matches!(nowhere[0], TickError::UnknownId { what: "a copy", .. }),
        "{nowhere:?}"
    );

    // Buffers are as small as they can be, on the writer's node and on the copy's.
    let BorderCopy { channel, node } = right.copies[0];
    let home = right.placement[graph.channels[channel].from.actor];
    for kept_on in [home, node] {
        let smaller = errors_of(&|plan| {
            let mut buffers = plan.buffers.iter_mut();
            let buffer = buffers.find(|b| b.channel == channel && b.node == kept_on);
            buffer.expect("a buffer").tokens -= 1;
        });
        assert!(
            matches!(smaller[0], TickError::Overwritten { .. }),
            "{smaller:?}"
        );
    }

    // A plan without copies is right, but no loss is survived with it.
    let (_, without) = verified(&graph, &machine);
    let error = TickContingencies::verify(&graph, &machine, without, Vec::new());
    let error = error.expect_err("borders on one node");
    assert_eq!(error.lost, None);
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
