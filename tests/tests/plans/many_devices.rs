//! Models compiled for 64 unlike and 1,024 alike devices: what comes out is verified, opens as a bundle, keeps the rules
//! that the slow checker knows, and gives the same bits.

use std::collections::BTreeSet;

use zbmd_compiler::{CompileOptions, Compiled, Losses, MachineChoice, compile_file, compile_str};
use zbmd_ir::{DeviceId, Machine, PlanId, bundle};
use zbmd_tests::run::{graph_file, interpret_program, replay_program, streams};
use zbmd_tests::{actors, machines, random, stepper};

/// The models that need nothing but themselves.
const MODELS: [&str; 6] = ["agc", "cd2dat", "fm", "pll", "quickstart", "adsb"];

fn options(machine: Machine, contingencies: Losses) -> CompileOptions {
    CompileOptions {
        registry: actors::registry(),
        machine: MachineChoice::Given(machine),
        contingencies,
        ..CompileOptions::default()
    }
}

fn compile_model(model: &str, machine: Machine) -> Compiled {
    let path = graph_file(&format!("{model}/model.ron"));
    let devices = machine.devices.len();
    compile_file(path, &options(machine, Losses::None))
        .unwrap_or_else(|errors| panic!("{model} for {devices} devices: {errors}"))
}

fn compile_chain(filters: usize, machine: Machine, contingencies: Losses) -> Compiled {
    let text = machines::chain(filters);
    let devices = machine.devices.len();
    compile_str("chain.ron", &text, "", &options(machine, contingencies))
        .unwrap_or_else(|errors| panic!("{filters} filters for {devices} devices: {errors}"))
}

/// The compiler has had the program verified: here it goes through a bundle and the slow checker.
fn check(what: &str, compiled: &Compiled) {
    let program = &compiled.program;
    let file = bundle::encode(program);
    let opened = bundle::decode(file.into());
    let opened = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(
        opened == **program,
        "{what}: the bundle holds another program"
    );

    for plan in &program.plans {
        let blocks = u64::from(plan.stages) + 3;
        stepper::step(&program.graph, plan, blocks, 1)
            .unwrap_or_else(|violation| panic!("{what}: {}", violation.0));
    }
}

fn used_devices(compiled: &Compiled) -> BTreeSet<DeviceId> {
    let main = &compiled.program.plans[PlanId(0)];
    main.placement.iter().copied().collect()
}

#[test]
fn models_compile_for_64_unlike_and_1024_alike_devices() {
    for model in MODELS {
        let unlike = compile_model(model, machines::unlike(64));
        check(model, &unlike);

        let few = compile_model(model, random::machine(16));
        let many = compile_model(model, random::machine(1024));
        check(model, &many);
        // Devices that no actor has a use for change nothing, and those that are used are the first.
        let few_plans = &few.program.plans;
        assert!(many.program.plans == *few_plans, "{model}: another plan");
    }
}

#[test]
fn a_chain_of_64_runs_on_64_unlike_devices() {
    let compiled = compile_chain(64, machines::unlike(64), Losses::None);
    check("chain", &compiled);
    let used = used_devices(&compiled).len();
    assert!(used > 48, "{used} devices share the work");

    let input = (0..20_000u16).flat_map(|i| f32::from(i % 77).to_le_bytes());
    let inputs = streams([("x", input.collect())]);
    let registry = zbmd_backends::standard_registry();
    let (expected, state) = interpret_program(&compiled.program, &registry, &inputs, None);
    let (outputs, outcome) = replay_program(compiled.program, &registry, &inputs, None, None);
    assert_eq!(outcome.state, state);
    assert!(outputs == expected, "other outputs");
}

#[test]
fn devices_that_are_linked_to_their_neighbours_alone_pass_work_on() {
    for devices in [64, 1024] {
        let compiled = compile_chain(16, machines::in_a_row(devices), Losses::None);
        check("chain", &compiled);
        let used = used_devices(&compiled).len();
        assert!(
            used > 1,
            "{devices} devices in a row: {used} share the work"
        );
    }
}

#[test]
fn losses_of_devices_without_work_share_the_main_plan() {
    let compiled = compile_chain(5, machines::unlike(64), Losses::Single);
    check("chain", &compiled);
    let list = &compiled.program.contingencies.list;
    assert_eq!(list.len(), 64);
    let used = used_devices(&compiled);
    for entry in list {
        let kind = &compiled.program.contingencies.kinds[entry.lost[0].kind];
        let is_used = used.contains(&kind[0]);
        assert_eq!(entry.main == PlanId(0), !is_used, "without {:?}", kind[0]);
    }

    // All are of one kind: the loss of one or two leaves those that have work.
    let compiled = compile_chain(5, random::machine(1024), Losses::Pairs);
    let contingencies = &compiled.program.contingencies;
    assert_eq!(contingencies.kinds.len(), 1);
    assert_eq!(contingencies.list.len(), 2);
    assert!(
        contingencies
            .list
            .iter()
            .all(|entry| entry.main == PlanId(0))
    );
}
