//! Looking into a run: every block that is copied of a channel is what the interpreter writes there, whatever lies over
//! its bytes later, and what the run gives out is the same.
//!
//! No test harness: this program is its own worker process.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_backends::vulkan::VulkanOptions;
use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_executor::{Engine, Isolation, Probe, ProbeError, ProbeHandle, RunOptions, Session};
use zbmd_ir::verify::Verified;
use zbmd_ir::{ChannelId, DType, DeviceId, PlanId, Program, TiVec};
use zbmd_scheduler::repetition;
use zbmd_tests::gpu::{machine as gpu_machine, open, to_and_fro};
use zbmd_tests::harness::{self, Test};
use zbmd_tests::losses;
use zbmd_tests::mix;
use zbmd_tests::random::{self, Shape};
use zbmd_tests::run::{Streams, compile, drive_with, graph_file, random_inputs};

/// Nothing takes as long.
const LIMIT: Duration = Duration::from_secs(60);

/// The seed's program.
fn program(seed: u64) -> Verified<Program> {
    let graph = random::graph(seed, Shape::default());
    random::program(seed, graph, &random::block_options(seed))
}

/// What the interpreter writes to each channel, by the name of the actor and the port; and what sinks get.
struct Expected {
    /// With the bytes of an iteration.
    channels: BTreeMap<(String, String), (u64, Vec<u8>)>,
    outputs: Streams,
}

impl Expected {
    fn of(program: &Program, registry: &Registry, inputs: &Streams) -> Self {
        let graph = &program.graph;
        let interpreter = Interpreter::new(graph, &program.blobs, registry);
        let mut written: TiVec<ChannelId, Vec<u8>> = vec![Vec::new(); graph.channels.len()].into();
        let outcome = interpreter
            .expect("an interpreter")
            .run_observed(inputs, None, &mut |new| {
                written[new.channel].extend_from_slice(new.bytes);
            })
            .expect("the interpretation ends well");

        let repetitions = repetition(graph).expect("a consistent graph");
        let channels = graph.channels.iter_enumerated();
        let channels = channels.filter(|(id, _)| !graph.is_state(*id));
        let channels = channels.map(|(id, channel)| {
            let actor = &graph.actors[channel.from.actor];
            let output = &actor.outputs[channel.from.port as usize];
            let tokens = repetitions[channel.from.actor] * output.rate;
            let name = (actor.name.clone(), output.name.clone());
            let bytes = std::mem::take(&mut written[id]);
            (name, (tokens * channel.token.bytes(), bytes))
        });
        Self {
            channels: channels.collect(),
            outputs: outcome.outputs,
        }
    }

    /// Takes what a probe has copied so far, or all of it to the end of the run; how many blocks.
    fn check(&self, name: &str, probe: &mut Probe, blocks: usize) -> usize {
        let with_port = name.rsplit_once('.').unwrap_or((name, ""));
        let mut channels = self.channels.iter();
        let found = channels.find(|((actor, port), _)| {
            actor == name || (actor == with_port.0 && port == with_port.1)
        });
        let (_, (iteration_bytes, expected)) = found.expect("a channel of the model");
        let begun = Instant::now();
        let mut count = 0;
        let mut next_iteration = 0;
        while count < blocks && begun.elapsed() < LIMIT {
            let block = match probe.next(Duration::from_millis(20)) {
                Ok(Some(block)) => block,
                Ok(None) => continue,
                Err(ProbeError::Ended) => break,
                Err(error) => panic!("{name}: {error}"),
            };
            assert!(block.iteration >= next_iteration, "{name}: again, or back");
            next_iteration = block.iteration + block.iterations;
            let first = (block.iteration * iteration_bytes) as usize;
            let wanted = &expected[first..first + (block.iterations * iteration_bytes) as usize];
            assert!(
                block.bytes == wanted,
                "`{name}` from iteration {}: {:02x?} in place of {wanted:02x?}",
                block.iteration,
                block.bytes
            );
            count += 1;
        }
        count
    }
}

fn start(engine: &Engine, options: RunOptions) -> (Session, ProbeHandle) {
    let session = engine.start(options).expect("a session");
    let probes = session.probes();
    (session, probes)
}

fn sink_names(program: &Program) -> Vec<String> {
    let sinks = program.graph.sinks();
    sinks.map(|(_, actor)| actor.name.clone()).collect()
}

/// Runs a program once for each of some of its channels, which is looked at from the start; the blocks that were compared.
fn check_channels(
    program: &Verified<Program>,
    registry: &Registry,
    inputs: &Streams,
    each: usize,
) -> usize {
    let expected = Expected::of(program, registry, inputs);
    let engine = Engine::new(program.clone(), registry).expect("an engine");
    let mut count = 0;
    let mut number = 0;
    loop {
        let (session, probes) = start(&engine, losses::options(Isolation::Threads));
        let channels = probes.channels();
        let Some(channel) = channels.get(number) else {
            return count;
        };
        number += each;
        let mut probe = probes.attach(&channel.name).expect("a channel");
        let (outputs, _) = drive_with(session, inputs, sink_names(program), 1, || {
            count += expected.check(&channel.name, &mut probe, usize::MAX);
        });
        assert!(
            outputs == expected.outputs,
            "{}: other outputs",
            channel.name
        );
    }
}

fn all_channels_of_random_graphs_carry_what_the_interpreter_writes() {
    let mut count = 0;
    for seed in 0..25u64 {
        let program = program(seed);
        let main = &program.plans[PlanId(0)];
        let iterations = (main.block * (u64::from(main.stages) + 2) + 1).min(40);
        let inputs = random_inputs(&program, iterations, seed);
        count += check_channels(&program, &mix::registry(), &inputs, 3);
    }
    println!("{count} blocks");
    assert!(count > 700, "a weak sample");
}

/// Samples between -1 and 1 for sources of them, and random bytes for others.
fn sample_inputs(program: &Program, iterations: u64, seed: u64) -> Streams {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut inputs = random_inputs(program, iterations, seed);
    for (_, source) in program.graph.sources() {
        if matches!(source.outputs[0].token.dtype, DType::F32 | DType::C32) {
            let bytes = inputs.get_mut(&source.name).expect("a source");
            for sample in bytes.chunks_exact_mut(4) {
                sample.copy_from_slice(&(2.0 * rng.f32() - 1.0).to_le_bytes());
            }
        }
    }
    inputs
}

/// Loops, chunks of blocks, outputs over inputs, and two devices.
fn channels_of_models_carry_what_the_interpreter_writes() {
    let registry = zbmd_backends::standard_registry();
    let mut count = 0;
    for (model, devices, iterations) in [
        ("cd2dat/model.ron", 1, 400),
        ("agc/model.ron", 1, 20000),
        ("fm/model.ron", 2, 32),
    ] {
        let program = compile(model, devices, &registry).program;
        let inputs = sample_inputs(&program, iterations, 1);
        count += check_channels(&program, &registry, &inputs, 1);
    }
    println!("{count} blocks");
    assert!(count > 50, "a weak sample");
}

/// A worker that is killed takes its memory along; what is copied goes on with the next one.
#[cfg(target_os = "linux")]
fn a_probe_goes_on_after_losses() {
    const FAULTS: &str = "Inject(kinds: [kill], every: (\"10ms\", \"30ms\"), \
        wait_for_border_after: 3, seed: 5)";
    let registry = mix::registry();
    let mut count = 0;
    for seed in 0..6 {
        let program = program(seed);
        let iterations = (2 * program.plans[PlanId(0)].block).max(300);
        let inputs = random_inputs(&program, iterations, seed);
        let expected = Expected::of(&program, &registry, &inputs);
        let engine = Engine::new(program.clone(), &registry).expect("an engine");
        let options = RunOptions {
            supervised: Some(losses::supervised(&engine, losses::HARDY, Some(FAULTS))),
            ..losses::options(Isolation::Processes { program: None })
        };
        let (session, probes) = start(&engine, options);
        let channels = probes.channels();
        let name = &channels[seed as usize % channels.len()].name;
        let mut probe = probes.attach(name).expect("a channel");
        let (outputs, outcome) = drive_with(session, &inputs, sink_names(&program), 300, || {
            count += expected.check(name, &mut probe, usize::MAX);
        });
        assert!(outputs == expected.outputs, "{name}: other outputs");
        println!("seed {seed}: {} losses", outcome.report.recoveries);
    }
    println!("{count} blocks");
    assert!(count > 300, "a weak sample");
}

/// The FM receiver in short blocks.
fn receiver(devices: usize) -> Verified<Program> {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(devices),
        block: Some(1),
        ..CompileOptions::default()
    };
    let compiled = compile_file(graph_file("fm/model.ron"), &options);
    compiled
        .unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
        .program
}

/// Somebody comes and goes a thousand times, on channels of both devices.
fn coming_and_going_changes_nothing() {
    let registry = zbmd_backends::standard_registry();
    let program = receiver(2);
    let inputs = sample_inputs(&program, 3000, 2);
    let expected = Expected::of(&program, &registry, &inputs);
    let engine = Engine::new(program.clone(), &registry).expect("an engine");
    let (session, probes) = start(&engine, losses::options(Isolation::Threads));
    let channels = probes.channels();
    let (mut attached, mut blocks) = (0, 0);
    let (outputs, _) = drive_with(session, &inputs, sink_names(&program), 3000, || {
        for channel in channels.iter().cycle() {
            match probes.attach(&channel.name) {
                Ok(mut probe) => blocks += expected.check(&channel.name, &mut probe, attached % 2),
                Err(ProbeError::Ended) => break,
                Err(error) => panic!("{error}"),
            }
            attached += 1;
        }
    });
    println!("attached {attached} times, {blocks} blocks");
    assert!(outputs == expected.outputs, "other outputs");
    assert!(attached >= 1000 && blocks > 20, "a weak sample");
}

fn what_cannot_be_looked_at_is_named() {
    let registry = zbmd_backends::standard_registry();
    let program = compile("agc/model.ron", 1, &registry).program;
    let engine = Engine::new(program.clone(), &registry).expect("an engine");
    let (session, probes) = start(&engine, losses::options(Isolation::Threads));
    let says = |name: &str| probes.attach(name).expect_err(name).to_string();
    assert_eq!(
        says("lop"),
        "the model has no channel `lop` to look at: it has iq, scale, level, loop"
    );
    assert!(says("out").contains("no channel `out`"), "sinks write none");
    let no_device = probes.slot_times("gpu:7", LIMIT).expect_err("none");
    assert!(
        no_device.to_string().contains("it has cpu:0"),
        "{no_device}"
    );

    let probe = probes.attach("loop").expect("a channel");
    assert_eq!(
        says("level"),
        "somebody looks at `loop` of this run: try again when that is over"
    );
    drop(probe);
    drop(probes.attach("level").expect("it is free"));

    let iq = probes.channels().into_iter().find(|c| c.name == "iq");
    assert_eq!(iq.expect("it is there").sample_rate, Some(48000.0));
    let inputs = random_inputs(&program, 10, 1);
    drive_with(session, &inputs, sink_names(&program), 1, || {});
    assert_eq!(says("loop"), "the run has ended");
}

/// Slots end one after the other, as often as a period has them.
fn times_of_slots_are_those_of_one_period() {
    let registry = zbmd_backends::standard_registry();
    let program = receiver(1);
    let inputs = sample_inputs(&program, 300, 2);
    let engine = Engine::new(program.clone(), &registry).expect("an engine");
    let (session, probes) = start(&engine, losses::options(Isolation::Threads));
    drive_with(session, &inputs, sink_names(&program), 300, || {
        let times = probes.slot_times("cpu:0", LIMIT);
        let times = times.expect("a device").expect("a period");
        assert!(times.len() > 3, "{times:?}");
        assert!(times.is_sorted_by_key(|time| time.end_ns), "{times:?}");
        let slots: Vec<u32> = times.iter().filter_map(|time| time.slot).collect();
        assert!(slots.contains(&0), "{slots:?}");
    });
}

/// What a GPU writes is seen where a CPU receives it; what stays on the GPU is refused.
fn a_gpus_tokens_are_seen_where_a_cpu_receives_them() {
    if open(false, &VulkanOptions::default()).is_none() {
        return;
    }
    let registry = zbmd_tests::actors::registry();
    let program = to_and_fro(5, &registry, gpu_machine());
    let inputs = sample_inputs(&program, 200, 4);
    let expected = Expected::of(&program, &registry, &inputs);
    let engine = Engine::new(program.clone(), &registry).expect("an engine");
    let is_on_gpu = |name: &str| {
        let actor = program.graph.find(name).expect("an actor");
        program.plans[PlanId(0)].placement[actor] == DeviceId(1)
    };
    let (mut seen, mut refused) = (0, 0);
    for (_, actor) in program.graph.actors.iter_enumerated() {
        if actor.outputs.is_empty() || !is_on_gpu(&actor.name) {
            continue;
        }
        let (session, probes) = start(&engine, losses::options(Isolation::Threads));
        let attached = probes.attach(&actor.name);
        let (outputs, _) = drive_with(
            session,
            &inputs,
            sink_names(&program),
            1,
            || match attached {
                Ok(mut probe) => seen += expected.check(&actor.name, &mut probe, usize::MAX),
                Err(ProbeError::OnGpu { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            },
        );
        assert!(outputs == expected.outputs, "{}: other outputs", actor.name);
    }
    println!("{seen} blocks seen, {refused} channels refused");
    assert!(seen > 5, "a weak sample");
}

fn main() {
    #[cfg(target_os = "linux")]
    zbmd_executor::serve_if_worker(&mix::registry());
    let tests: &[Test] = &[
        (
            "all_channels_of_random_graphs_carry_what_the_interpreter_writes",
            all_channels_of_random_graphs_carry_what_the_interpreter_writes,
        ),
        (
            "channels_of_models_carry_what_the_interpreter_writes",
            channels_of_models_carry_what_the_interpreter_writes,
        ),
        (
            "coming_and_going_changes_nothing",
            coming_and_going_changes_nothing,
        ),
        (
            "what_cannot_be_looked_at_is_named",
            what_cannot_be_looked_at_is_named,
        ),
        (
            "times_of_slots_are_those_of_one_period",
            times_of_slots_are_those_of_one_period,
        ),
        (
            "a_gpus_tokens_are_seen_where_a_cpu_receives_them",
            a_gpus_tokens_are_seen_where_a_cpu_receives_them,
        ),
        #[cfg(target_os = "linux")]
        ("a_probe_goes_on_after_losses", a_probe_goes_on_after_losses),
    ];
    harness::run_apart(tests, || true);
}
