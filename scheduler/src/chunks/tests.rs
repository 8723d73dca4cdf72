use zbmd_ir::verify::verify;
use zbmd_ir::{Buffer, Contingencies, Graph, Plan, Program, TiVec, walk};

use crate::buffers::{Mode, Unit};
use crate::cost::CACHE_BYTES;
use crate::testing::{Link5, costs, graph, machine};
use crate::{Block, ScheduleOptions, schedule};

/// The CD-to-DAT chain of the literature: 147 times 160 of 44.1 kHz to 48 kHz.
const CD_TO_DAT: [Link5; 5] = [
    (0, 1, 1, 1, 0),
    (1, 2, 2, 3, 0),
    (2, 2, 3, 7, 0),
    (3, 8, 4, 7, 0),
    (4, 5, 5, 1, 0),
];

/// The main plan of a graph on one CPU device, in a program that the verifier accepted.
fn verified_plan(graph: &Graph, options: &ScheduleOptions) -> Plan {
    let machine = machine(1);
    let costs = costs(graph, &machine, 1_000_000);
    let plans = schedule(graph, &machine, &costs, options).expect("a plan");
    let plan = plans[0].clone();
    let program = Program {
        graph: graph.clone(),
        machine,
        plans: plans.into(),
        contingencies: Contingencies::default(),
        blobs: TiVec::new(),
        kernels: Vec::new(),
    };
    if let Err(errors) = verify(program) {
        panic!("the verifier refuses the plan: {errors:?}\n{plan:#?}");
    }
    plan
}

fn plan_tokens(plan: &Plan) -> u64 {
    let buffers = plan.buffers.iter();
    buffers
        .map(|buffer| (buffer.head_tokens + buffer.chunk_tokens) * u64::from(buffer.blocks))
        .sum()
}

fn slots(plan: &Plan) -> usize {
    walk::slot_count(&plan.calendars[0].lanes[0].entries)
}

#[test]
fn cd_to_dat_takes_what_the_literature_says() {
    let graph = graph(6, &CD_TO_DAT);
    let within = |buffers| ScheduleOptions {
        buffers,
        ..ScheduleOptions::default()
    };

    let least = verified_plan(&graph, &within(Mode::Min(Unit::Tokens)));
    assert_eq!(plan_tokens(&least), 32);

    let nested = verified_plan(&graph, &within(Mode::Within(264, Unit::Tokens)));
    assert_eq!(plan_tokens(&nested), 264);
    assert!(slots(&nested) < 12, "{} slots", slots(&nested));

    let flat = verified_plan(&graph, &within(Mode::Within(1021, Unit::Tokens)));
    assert_eq!(plan_tokens(&flat), 1021);
    assert_eq!(slots(&flat), 6, "each actor in one slot");
}

#[test]
fn blocks_beyond_a_core_s_cache_become_chunks_where_calls_cost_less_than_misses() {
    const CHAIN: [Link5; 3] = [(0, 1, 1, 1, 0), (1, 1, 2, 1, 0), (2, 1, 3, 1, 0)];
    let graph = graph(4, &CHAIN);
    let blocks_of = |block| ScheduleOptions {
        block: Block::Fixed(block),
        ..ScheduleOptions::default()
    };

    let small = verified_plan(&graph, &blocks_of(1 << 10));
    assert!(small.buffers.iter().all(|buffer| !buffer.is_chunked()));
    assert!(small.calendars[0].arena_bytes < CACHE_BYTES);

    let large = verified_plan(&graph, &blocks_of(1 << 20));
    assert!(large.buffers.iter().all(Buffer::is_chunked), "{large:#?}");
    assert!(large.calendars[0].arena_bytes <= CACHE_BYTES);

    // A call that takes as long as the misses of a whole block is not worth repeating.
    let machine = machine(1);
    let mut costs = costs(&graph, &machine, 1_000_000);
    for cost in costs.table.iter_mut().flatten().flatten() {
        cost.call_ps = 1_000_000_000_000;
    }
    let plans = schedule(&graph, &machine, &costs, &blocks_of(1 << 20)).expect("a plan");
    assert!(plans[0].buffers.iter().all(|buffer| !buffer.is_chunked()));
}
