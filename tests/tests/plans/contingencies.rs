//! Plans for lost devices: they give the same bits as the whole machine, a run can go over to them at a border of
//! blocks, and they take few bytes.

use zbmd_compiler::{CompileOptions, Compiled, Losses, MachineChoice, compile_file};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{Contingencies, Costs, DeviceId, Graph, Machine, PlanId, Program, bundle};
use zbmd_scheduler::{Block, Inputs, ScheduleOptions, schedule, schedule_contingencies};
use zbmd_tests::random::{self, Shape};
use zbmd_tests::run::{graph_file, interpret_program, random_inputs, replay_program, without_lost};
use zbmd_tests::sample::cases;
use zbmd_tests::{mix, stepper};

/// The graph with plans for the loss of any two devices.
fn contingent(graph: Graph, machine: Machine, costs: &Costs, block: Block) -> Program {
    let device_count = machine.devices.len();
    let (program, impossible) = contingent_for(graph, machine, costs, block, Losses::Pairs);
    // What leaves no device is all that cannot be borne.
    assert_eq!(impossible, usize::from(device_count <= 2));
    program
}

/// The graph with plans for these losses, and how many of them have none.
fn contingent_for(
    graph: Graph,
    machine: Machine,
    costs: &Costs,
    block: Block,
    which: Losses,
) -> (Program, usize) {
    let options = ScheduleOptions {
        block,
        ..ScheduleOptions::default()
    };
    let inputs = Inputs {
        graph: &graph,
        machine: &machine,
        costs,
        options: &options,
    };
    let plans = schedule(&graph, &machine, costs, &options).expect("random graphs have schedules");
    let made = schedule_contingencies(inputs, plans, which).expect("few losses");
    let impossible = made.impossible.len();
    let (plans, contingencies) = (made.plans.into(), made.contingencies);
    let program = Program {
        graph,
        machine,
        plans,
        contingencies,
        ..Program::default()
    };
    (program, impossible)
}

/// A random graph on 2 to 4 hosts of 1 to 3 devices each, with plans for the loss of any device and any host. The last
/// host is unlike the others in every third case.
fn program_on_hosts(seed: u64) -> Verified<Program> {
    let shape = Shape {
        actors: 16,
        ..Shape::default()
    };
    let graph = random::graph(seed, shape);
    let mut machine = random::cluster(2 + (seed % 3) as usize, 1 + (seed / 3 % 3) as usize);
    if seed.is_multiple_of(3)
        && let Some(device) = machine.devices.iter_mut().next_back()
    {
        device.memory_bytes /= 2;
    }
    let costs = random::costs(&graph, &machine, seed);
    let block = Block::Fixed(1 + seed % 3);
    let (program, impossible) = contingent_for(graph, machine, &costs, block, Losses::Hosts);
    assert_eq!(impossible, 0, "seed {seed}: another host is left");
    verify(program).unwrap_or_else(|errors| panic!("seed {seed}: {}", errors[0]))
}

/// A random graph with plans for the loss of any two of 2 to 6 devices, of which every other one is smaller in half of
/// the cases.
fn program(seed: u64) -> Verified<Program> {
    let graph = random::graph(
        seed,
        Shape {
            actors: 16,
            ..Shape::default()
        },
    );
    let mut machine = random::machine(2 + (seed % 5) as usize);
    if seed % 2 == 1 {
        for device in machine.devices.iter_mut().skip(1).step_by(2) {
            device.memory_bytes /= 2;
        }
    }
    let costs = random::costs(&graph, &machine, seed);
    let program = contingent(graph, machine, &costs, Block::Fixed(1 + seed % 3));
    verify(program).unwrap_or_else(|errors| panic!("seed {seed}: {}", errors[0]))
}

/// What each entry's plans give is what the interpreter gives; how many entries there were, and how many with a plan of
/// their own.
fn check_entries(program: &Program, seed: u64) -> (u32, u32) {
    let registry = mix::registry();
    let mut own = 0;
    for (i, entry) in program.contingencies.list.iter().enumerate() {
        let left = without_lost(program, entry);
        let what = format!(
            "seed {seed}, contingency {i}: {}",
            program.plans[entry.main].name
        );
        for plan in &left.plans {
            let blocks = u64::from(plan.stages) + 3;
            stepper::step(&left.graph, plan, blocks, seed)
                .unwrap_or_else(|violation| panic!("{what}: {}", violation.0));
        }
        let main = &left.plans[PlanId(0)];
        let inputs = random_inputs(&left, main.block * (u64::from(main.stages) + 2) + 1, seed);
        let (expected, state) = interpret_program(&left, &registry, &inputs, None);
        let (outputs, outcome) = replay_program(left, &registry, &inputs, None, None);
        assert_eq!(outcome.state, state, "{what}: another state");
        assert!(outputs == expected, "{what}: other outputs");
        own += u32::from(entry.main != PlanId(0));
    }
    (program.contingencies.list.len() as u32, own)
}

#[test]
fn what_is_left_gives_the_same_bits() {
    let (mut entries, mut own) = (0, 0);
    for seed in 0..cases(66) {
        let (found, with_own_plan) = check_entries(&program(seed), seed);
        entries += found;
        own += with_own_plan;
    }
    assert!(entries > 132 && own > 66, "{entries} {own}: a weak sample");
}

/// Whichever host is lost, a plan is there whose roles are all taken by devices of other hosts, and it gives the same
/// bits; so it is after a trip through a bundle.
#[test]
fn what_is_left_without_a_host_gives_the_same_bits() {
    let (mut entries, mut own, mut alike) = (0, 0, 0);
    for seed in 0..cases(40) {
        let program = program_on_hosts(seed);
        let (found, with_own_plan) = check_entries(&program, seed);
        entries += found;
        own += with_own_plan;
        alike += program
            .contingencies
            .alike_hosts
            .iter()
            .map(Vec::len)
            .sum::<usize>();

        let bytes = bundle::encode(&program);
        assert_eq!(
            bundle::decode(bytes.into()).as_ref(),
            Ok(&*program),
            "seed {seed}"
        );
        for host in &program.machine.hosts {
            let table = &program.contingencies;
            let entry = table.find(&host.devices);
            let entry = entry.unwrap_or_else(|| panic!("seed {seed}: without {}", host.name));
            let roles = table.roles(&host.devices);
            for id in [Some(entry.main), entry.tail].into_iter().flatten() {
                for calendar in &program.plans[id].calendars {
                    let device = roles.get(&calendar.device);
                    assert!(
                        device.is_some_and(|device| !host.devices.contains(device)),
                        "seed {seed}: {} without {}",
                        calendar.device,
                        host.name
                    );
                }
            }
        }
    }
    assert!(
        entries > 50 && own > 20 && alike > 50,
        "{entries} {own} {alike}: a weak sample"
    );
}

/// Work is not divided between hosts where the links between them cost more than it saves.
#[test]
fn plans_heed_the_links_between_hosts() {
    let shape = Shape {
        min_actors: 12,
        actors: 16,
        ..Shape::default()
    };
    let hosts_used = |latency_ns: u64, seed: u64| {
        let graph = random::graph(seed, shape);
        let mut machine = random::cluster(2, 2);
        machine.links.change(|link| {
            if link.from.0 / 2 != link.to.0 / 2 {
                link.bytes_per_s = 10_000_000_000 / (latency_ns / 200);
                link.latency_ns = latency_ns;
            }
        });
        let costs = random::costs(&graph, &machine, seed);
        let options = ScheduleOptions {
            block: Block::Fixed(1),
            ..ScheduleOptions::default()
        };
        let plans = schedule(&graph, &machine, &costs, &options).expect("a schedule");
        let hosts = plans[0]
            .calendars
            .iter()
            .map(|calendar| calendar.device.0 / 2);
        hosts.collect::<std::collections::BTreeSet<u32>>().len()
    };
    let (mut near, mut far) = (0, 0);
    for seed in 0..20 {
        near += hosts_used(200, seed);
        far += hosts_used(20_000_000, seed);
    }
    assert!(far < near, "{far} hosts far apart, {near} near each other");
    assert_eq!(far, 20, "one host for each graph");
}

#[test]
fn a_run_goes_over_at_a_border_of_blocks() {
    let registry = mix::registry();
    let mut handed_over = 0;
    for seed in 0..cases(20) {
        let program = program(seed);
        let block = program.plans[PlanId(0)].block;
        let inputs = random_inputs(&program, block * 5 + 1, seed);
        let (expected, end) = interpret_program(&program, &registry, &inputs, None);
        for entry in &program.contingencies.list {
            let bound = Some(2 * block);
            let (before, outcome) =
                replay_program(program.clone(), &registry, &inputs, bound, None);
            let mut rest = inputs.clone();
            for &(source, tokens) in &outcome.state.consumed {
                let actor = &program.graph.actors[source];
                let bytes = tokens * actor.outputs[0].token.bytes();
                rest.get_mut(&actor.name)
                    .expect("a source")
                    .drain(..bytes as usize);
            }
            let left = without_lost(&program, entry);
            let state = Some(outcome.state);
            let (after, outcome) = replay_program(left, &registry, &rest, None, state);
            assert_eq!(outcome.state, end, "seed {seed}: another state");
            for (sink, bytes) in &expected {
                let whole = [before[sink].as_slice(), &after[sink]].concat();
                assert!(whole == *bytes, "seed {seed}: other outputs at {sink}");
            }
            handed_over += 1;
        }
    }
    assert!(handed_over > 33, "{handed_over}: a weak sample");
}

fn compile(model: &str, devices: usize, contingencies: Losses) -> Compiled {
    let machine = MachineChoice::Uniform(devices);
    let options = CompileOptions {
        machine,
        contingencies,
        ..CompileOptions::default()
    };
    compile_file(graph_file(model), &options).unwrap_or_else(|errors| panic!("{model}: {errors}"))
}

#[test]
fn any_two_of_eight_alike_devices_need_three_entries_with_the_whole_machine() {
    let compiled = compile("fm/model.ron", 8, Losses::Pairs);
    let table = &compiled.program.contingencies;
    assert_eq!(table.kinds.raw, [(0..8).map(DeviceId).collect::<Vec<_>>()]);
    assert_eq!((1 + table.list.len(), compiled.impossible.len()), (3, 0));
    for (a, b) in (0..8).flat_map(|a| (0..8).map(move |b| (a, b))) {
        let lost: Vec<DeviceId> = [a, b]
            .into_iter()
            .take(1 + usize::from(a != b))
            .map(DeviceId)
            .collect();
        let entry = table.find(&lost).expect("every pair is foreseen");
        let roles = table.roles(&lost);
        for calendar in &compiled.program.plans[entry.main].calendars {
            let device = roles
                .get(&calendar.device)
                .expect("a role that somebody takes");
            assert!(!lost.contains(device), "{lost:?}");
        }
    }
    let without = compile("fm/model.ron", 8, Losses::None);
    assert_eq!(
        without.program.plans[PlanId(0)],
        compiled.program.plans[PlanId(0)]
    );
    assert_eq!(without.program.contingencies, Contingencies::default());
}

#[test]
fn one_device_cannot_be_lost() {
    let compiled = compile("agc/model.ron", 1, Losses::Single);
    assert_eq!(compiled.program.contingencies, Contingencies::default());
    let reasons: Vec<(&str, &str)> = compiled
        .impossible
        .iter()
        .map(|i| (i.lost.as_str(), i.reason.as_str()))
        .collect();
    assert_eq!(reasons, [("cpu:0", "no device is left")]);
}

/// Bytes of the bundle without contingencies, with their plans written out, and with them as differences.
fn sizes(program: &Program) -> [usize; 3] {
    let mut alone = program.clone();
    alone.plans.truncate(2);
    let mut plain = program.clone();
    for program in [&mut alone, &mut plain] {
        program.contingencies = Contingencies::default();
    }
    [&alone, &plain, program].map(|p| bundle::encode(p).len())
}

/// Prints the bytes, and checks that the plans for losses take at most so much of what they would written out.
fn check_sizes(what: &str, program: &Program, percent: usize) {
    let [alone, plain, stored] = sizes(program);
    let plans = program.plans.len() - 2;
    println!(
        "{what}: {plans} plans for losses take {} B, written out {} B",
        stored - alone,
        plain - alone
    );
    assert!(
        (stored - alone) * 100 <= (plain - alone) * percent,
        "{what}: {alone} {plain} {stored}"
    );
}

#[test]
fn plans_for_losses_are_stored_as_differences() {
    // Of 8 devices the model uses some, bound by its largest actor; of so many, every one is missed.
    let devices = compile("fm/model.ron", 8, Losses::None).program.plans[PlanId(0)]
        .calendars
        .len();
    let compile = || compile("fm/model.ron", devices, Losses::Pairs);
    let program = compile().program;
    assert!(program.plans.len() > 2, "all devices have work");
    let bytes = bundle::encode(&program);
    assert_eq!(
        bytes,
        bundle::encode(&compile().program),
        "threads leave no trace"
    );
    assert_eq!(bundle::decode(bytes.into()).as_ref(), Ok(&*program));
    // Plans of some hundred bytes have less to share than longer ones.
    check_sizes(&format!("fm on {devices} devices"), &program, 60);

    for actors in [100, 1000] {
        let shape = Shape {
            min_actors: actors,
            actors,
            max_rate: 2,
            ..Shape::default()
        };
        let (graph, machine) = (random::graph(7, shape), random::machine(4));
        let costs = random::costs(&graph, &machine, 7);
        let program = contingent(graph, machine, &costs, Block::Fixed(1));
        check_sizes(&format!("{actors} actors on 4 devices"), &program, 50);
    }
}
