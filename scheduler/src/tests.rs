//! Schedules as a user asks for them: bounds, pins, blocks, and the refusals.

use std::collections::BTreeMap;

use zbmd_ir::{Action, ActorId, DeviceId, Entry, Graph, Plan, walk};

use crate::search::unattended;
use crate::testing::{costs, graph, machine};
use crate::{Block, Inputs, ScheduleError, ScheduleOptions, plan_front, schedule};

fn plans(
    graph: &Graph,
    devices: usize,
    options: &ScheduleOptions,
) -> Result<Vec<Plan>, ScheduleError> {
    let machine = machine(devices);
    // A microsecond a firing.
    schedule(graph, &machine, &costs(graph, &machine, 1_000_000), options)
}

fn chain() -> Graph {
    graph(4, &[(0, 1, 1, 1, 0), (1, 1, 2, 1, 0), (2, 1, 3, 1, 0)])
}

fn fires(plan: &Plan) -> usize {
    let mut fires = 0;
    for lane in plan.calendars.iter().flat_map(|calendar| &calendar.lanes) {
        walk::visit_slots(&lane.entries, |visit| {
            fires += usize::from(matches!(visit.slot.action, Action::Fire { .. }));
        });
    }
    fires
}

#[test]
fn a_row_of_firings_is_one_slot() {
    let options = ScheduleOptions {
        block: Block::Fixed(64),
        ..ScheduleOptions::default()
    };
    let plans = plans(&chain(), 1, &options).expect("a chain");
    assert_eq!(plans.len(), 2, "a main plan and a tail");
    assert_eq!((plans[0].block, fires(&plans[0])), (64, 4));
    assert_eq!((plans[1].block, fires(&plans[1])), (1, 4));
}

#[test]
fn feedback_becomes_a_loop() {
    let ring = graph(2, &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 1)]);
    let options = ScheduleOptions {
        block: Block::Fixed(100),
        ..ScheduleOptions::default()
    };
    let plans = plans(&ring, 1, &options).expect("one token is enough");
    let entries = &plans[0].calendars[0].lanes[0].entries;
    let Entry::Loop { count, body } = &entries[0] else {
        panic!("{entries:?}")
    };
    assert_eq!((*count, body.len()), (100, 2));
}

#[test]
fn long_delays_fire_in_rows() {
    // A hundred tokens on the way back: the whole block runs at once.
    let ring = graph(2, &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 100)]);
    let options = ScheduleOptions {
        block: Block::Fixed(100),
        ..ScheduleOptions::default()
    };
    assert_eq!(
        fires(&plans(&ring, 1, &options).expect("enough tokens")[0]),
        2
    );
}

#[test]
fn pipelining_reaches_the_busiest_device() {
    let options = ScheduleOptions {
        block: Block::Fixed(100),
        ..ScheduleOptions::default()
    };
    let plans = plans(&chain(), 2, &options).expect("two devices");
    // Four actors of 100 us: two a device, and hand-overs below 1 %.
    assert_eq!(plans[0].stages, 2);
    assert!(
        (200_000..203_000).contains(&plans[0].period_ns),
        "{} ns",
        plans[0].period_ns
    );
}

#[test]
fn bounds_hold() {
    let latency = |ns| ScheduleOptions {
        max_latency_ns: Some(ns),
        ..ScheduleOptions::default()
    };
    let plan = &plans(&chain(), 2, &latency(50_000)).expect("50 us is enough")[0];
    assert!(
        plan.latency_ns <= 50_000 && plan.block > 1,
        "{} ns",
        plan.latency_ns
    );
    let refused = plans(&chain(), 1, &latency(100));
    assert!(
        matches!(refused, Err(ScheduleError::Latency { limit_ns: 100, .. })),
        "{refused:?}"
    );
    let memory = |bytes| ScheduleOptions {
        max_memory_bytes: Some(bytes),
        ..ScheduleOptions::default()
    };
    let plan = &plans(&chain(), 1, &memory(1_000)).expect("small blocks fit")[0];
    assert!(plan.calendars[0].arena_bytes <= 1_000);
    let refused = plans(&chain(), 1, &memory(10));
    // Of four actors in a row two channels live at a time: both fit no more, each alone would.
    let Err(ScheduleError::Memory {
        block: 1, conflict, ..
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(
        conflict.len(),
        1,
        "one line of 64 bytes is more than 10 bytes: {conflict:?}"
    );
    let refused = plans(&chain(), 1, &memory(100));
    let Err(ScheduleError::Memory {
        block: 1, conflict, ..
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(conflict.len(), 2, "{conflict:?}");
}

/// Of placements about as good, the one with the fewest stages is taken: a chain is cut into stretches.
#[test]
fn a_plan_has_few_stages() {
    let links: Vec<_> = (1..40).map(|actor| (actor - 1, 1, actor, 1, 0)).collect();
    let chain = graph(40, &links);
    for devices in 2..=4 {
        let options = ScheduleOptions {
            block: Block::Fixed(100),
            ..ScheduleOptions::default()
        };
        let plan = plans(&chain, devices, &options)
            .expect("a chain has a plan")
            .swap_remove(0);
        assert!(
            plan.stages as usize <= devices + 1,
            "{devices} devices: {} stages",
            plan.stages
        );
        assert!(plan.latency_ns <= (devices as u64 + 1) * plan.period_ns);
    }
}

/// A bound on the latency gives the best pipeline below it, and one without stages only where no other is in time.
#[test]
fn a_bound_on_the_latency_keeps_the_pipeline_where_it_can() {
    const UNIT_NS: u64 = 100_000;
    let chain = graph(3, &[(0, 1, 1, 1, 0), (1, 1, 2, 1, 0)]);
    let machine = machine(2);
    let mut costs = costs(&chain, &machine, 0);
    for (row, units) in costs.table.iter_mut().zip([2, 6, 4]) {
        for cost in row.iter_mut().flatten() {
            cost.firing_ps = units * UNIT_NS * 1_000;
        }
    }
    let units_within = |max_latency_units: Option<u64>| {
        let options = ScheduleOptions {
            block: Block::Fixed(1),
            max_latency_ns: max_latency_units.map(|units| units * UNIT_NS),
            ..ScheduleOptions::default()
        };
        let plans = schedule(&chain, &machine, &costs, &options).expect("a plan in time");
        let units = |ns: u64| (ns + UNIT_NS / 2) / UNIT_NS;
        (
            plans[0].stages,
            units(plans[0].period_ns),
            units(plans[0].latency_ns),
        )
    };

    let options = ScheduleOptions {
        block: Block::Fixed(1),
        ..ScheduleOptions::default()
    };
    let inputs = Inputs {
        graph: &chain,
        machine: &machine,
        costs: &costs,
        options: &options,
    };
    let front = unattended(|control| plan_front(inputs, control)).expect("plans");
    let in_speed: Vec<u32> = front.iter().map(|point| point.stages).collect();
    assert_eq!(in_speed[..2], [3, 2], "{front:?}");
    for pair in front.windows(2) {
        let gains_latency = pair[1].latency_ns < pair[0].latency_ns;
        assert!(gains_latency || pair[1].bytes < pair[0].bytes, "{front:?}");
        assert!(pair[1].period_ns >= pair[0].period_ns, "{front:?}");
    }

    // The first and the last on one device, a stage for each; two stretches; one after the other.
    assert_eq!(units_within(None), (3, 6, 16));
    assert_eq!(units_within(Some(15)), (2, 8, 12));
    assert_eq!(units_within(Some(13)), (2, 8, 12));
}

#[test]
fn pins_hold_or_are_refused() {
    let pinned = |pins: &[(u32, u32)]| ScheduleOptions {
        pins: pins
            .iter()
            .map(|&(a, d)| (ActorId(a), DeviceId(d)))
            .collect::<BTreeMap<_, _>>(),
        block: Block::Fixed(4),
        ..ScheduleOptions::default()
    };
    let plan = &plans(&chain(), 3, &pinned(&[(0, 2), (3, 1)])).expect("free to choose the rest")[0];
    assert_eq!(
        (plan.placement[ActorId(0)], plan.placement[ActorId(3)]),
        (DeviceId(2), DeviceId(1))
    );
    let ring = graph(2, &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 1)]);
    let apart = plans(&ring, 2, &pinned(&[(0, 0), (1, 1)]));
    assert!(
        matches!(apart, Err(ScheduleError::PinnedApart { .. })),
        "{apart:?}"
    );
    // With a block's worth of tokens on the way back the two may part.
    let long = graph(2, &[(0, 1, 1, 1, 0), (1, 1, 0, 1, 4)]);
    assert!(plans(&long, 2, &pinned(&[(0, 0), (1, 1)])).is_ok());
    let nowhere = plans(&chain(), 2, &pinned(&[(0, 7)]));
    assert!(
        matches!(nowhere, Err(ScheduleError::PinImpossible { .. })),
        "{nowhere:?}"
    );
}

#[test]
fn equal_input_gives_equal_plans() {
    let options = ScheduleOptions::default();
    assert_eq!(plans(&chain(), 3, &options), plans(&chain(), 3, &options));
}
