//! `AllReduce`, `Broadcast` and `Gather` over replicas: the same bits wherever they run, in one piece or in parts, and no
//! more bytes over links than a ring needs.

use std::fmt::Write as _;

use zbmd_compiler::machine::{CORE_BYTES_PER_S, CORE_FLOPS, uniform};
use zbmd_compiler::{CompileOptions, Compiled, Losses, MachineChoice, compile_str, divide};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{Action, DeviceId, Entry, Machine, Plan, PlanId, Program};
use zbmd_scheduler::{Block, ScheduleOptions, schedule};
use zbmd_tests::run::{self, Streams, interpret_program, replay_program};
use zbmd_tests::{random, stepper};

/// Replicas that each scale a token of their own, the collective over what they give, and what each makes of it.
#[derive(Clone, Copy)]
struct Case {
    replicas: usize,
    elements: usize,
    devices: usize,
    /// Whether replicas are pinned to the devices in turn.
    is_pinned: bool,
    /// Whether the compiler may divide collectives.
    may_divide: bool,
}

impl Case {
    fn all_reduce(self) -> String {
        let (mut sources, mut actors, mut channels) = (String::new(), String::new(), String::new());
        let (mut sinks, mut pins, mut readers) = (String::new(), String::new(), String::new());
        let elements = self.elements;
        for i in 0..self.replicas {
            write!(
                sources,
                "\"s{i}\": Stream(dtype: f32, shape: [{elements}]), "
            )
            .unwrap();
            write!(
                actors,
                "\"w{i}\": Gain({}), \"u{i}\": Expr(\"x * y\"), ",
                i + 1
            )
            .unwrap();
            write!(channels, "(from: \"s{i}\", to: [\"w{i}\", \"u{i}.x\"]), ").unwrap();
            write!(channels, "(from: \"w{i}\", to: [\"sum.x{i}\"]), ").unwrap();
            write!(channels, "(from: \"u{i}\", to: [\"y{i}\"]), ").unwrap();
            write!(readers, "\"u{i}.y\", ").unwrap();
            write!(sinks, "\"y{i}\": Stream(), ").unwrap();
            if self.is_pinned {
                let device = i % self.devices;
                for actor in ["s", "w", "u", "y"] {
                    write!(pins, "\"{actor}{i}\": \"cpu:{device}\", ").unwrap();
                }
            }
        }
        format!(
            "Model(name: \"reduce\", sources: {{ {sources} }}, actors: {{ {actors} \"sum\": AllReduce() }},
            channels: [{channels} (from: \"sum\", to: [{readers}])], sinks: {{ {sinks} }}, pins: {{ {pins} }})"
        )
    }

    fn broadcast(self) -> String {
        let (mut actors, mut channels) = (String::new(), String::new());
        let (mut sinks, mut pins, mut readers) = (String::new(), String::new(), String::new());
        let elements = self.elements;
        for i in 0..self.replicas {
            write!(actors, "\"u{i}\": Gain({}), ", i + 1).unwrap();
            write!(channels, "(from: \"u{i}\", to: [\"y{i}\"]), ").unwrap();
            write!(readers, "\"u{i}\", ").unwrap();
            write!(sinks, "\"y{i}\": Stream(), ").unwrap();
            if self.is_pinned {
                for actor in ["u", "y"] {
                    write!(pins, "\"{actor}{i}\": \"cpu:{i}\", ").unwrap();
                }
            }
        }
        if self.is_pinned {
            pins.push_str("\"x\": \"cpu:0\", ");
        }
        format!(
            "Model(name: \"broadcast\", sources: {{ \"x\": Stream(dtype: f32, shape: [{elements}]) }},
            actors: {{ {actors} \"all\": Broadcast() }},
            channels: [{channels} (from: \"x\", to: [\"all\"]), (from: \"all\", to: [{readers}])],
            sinks: {{ {sinks} }}, pins: {{ {pins} }})"
        )
    }

    fn compile(self, model: &str, contingencies: Losses) -> Compiled {
        let skipped = (!self.may_divide).then(|| "collectives".to_owned());
        let options = CompileOptions {
            machine: MachineChoice::Given(machine(self.devices)),
            contingencies,
            skipped_passes: skipped.into_iter().collect(),
            ..CompileOptions::default()
        };
        let compiled = compile_str("collective.ron", model, "", &options);
        compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
    }
}

/// Devices that are as quick on every computer: whether dividing pays depends on how quick they are beside their links.
fn machine(devices: usize) -> Machine {
    let mut machine = uniform(devices);
    for device in &mut machine.devices {
        (device.flops_per_s, device.bytes_per_s) = (CORE_FLOPS, CORE_BYTES_PER_S);
    }
    machine
}

/// How many parts the collective of this name has in the program; 1 for one piece.
fn parts(program: &Program, name: &str) -> usize {
    let prefix = format!("{name}#part");
    let actors = program.graph.actors.iter();
    let parts = actors.filter(|actor| actor.name.starts_with(&prefix));
    parts.count().max(1)
}

/// Tokens of very different magnitudes for every source, so that sums depend on their order.
fn inputs(program: &Program, tokens: usize) -> Streams {
    let mut rng = fastrand::Rng::with_seed(7);
    let sources = program.graph.sources().map(|(_, source)| {
        let elements = source.outputs[0].token.elements() as usize;
        let numbers = (0..tokens * elements).map(|_| {
            let magnitude = rng.i32(-12..12);
            (rng.f32() - 0.5) * (magnitude as f32).exp2()
        });
        let bytes = numbers.flat_map(f32::to_ne_bytes).collect();
        (source.name.clone(), bytes)
    });
    sources.collect()
}

/// Adds the replicas' tokens up from the first to the last, or the other way round, in plain loops; what replica 0 gives.
fn summed_in_order(inputs: &Streams, replicas: usize, is_reversed: bool) -> Vec<u8> {
    let mut order: Vec<usize> = (0..replicas).collect();
    if is_reversed {
        order.reverse();
    }
    let token = |replica: usize| {
        let bytes = inputs[&format!("s{replica}")].chunks_exact(4);
        bytes.map(|bytes| f32::from_ne_bytes(bytes.try_into().expect("four bytes")))
    };

    let mut sum: Option<Vec<f32>> = None;
    for replica in order {
        let scaled = token(replica).map(|x| x * (replica + 1) as f32);
        sum = Some(match sum {
            None => scaled.collect(),
            Some(sum) => sum.into_iter().zip(scaled).map(|(a, b)| a + b).collect(),
        });
    }
    let sum = sum.expect("replicas");
    let products = token(0).zip(sum).map(|(x, y)| x * y);
    products.flat_map(f32::to_ne_bytes).collect()
}

/// The graph with its sum in so many parts, placed on a random machine by random costs.
fn placed_at_random(program: &Program, parts: u64, devices: usize, seed: u64) -> Verified<Program> {
    let registry = zbmd_backends::standard_registry();
    let mut graph = program.graph.clone();
    if parts > 1 {
        let sum = graph.find("sum").expect("a sum");
        // Every other reader shares a copy of the sum with those before it.
        let mut channels = graph.channels.iter();
        let output = channels.find(|channel| channel.from.actor == sum);
        let readers = output.expect("an output").readers.iter();
        let pins = readers
            .step_by(2)
            .map(|reader| (reader.to.actor, DeviceId(0)))
            .collect();
        let divided = divide(&graph, &[sum], parts, &pins, &registry, &program.blobs);
        graph = divided.expect("a sum that can be divided");
    }

    let machine = random::machine(devices);
    let costs = random::costs(&graph, &machine, seed);
    let options = ScheduleOptions {
        block: Block::Fixed(1 + seed % 3),
        ..ScheduleOptions::default()
    };
    let plans = schedule(&graph, &machine, &costs, &options).expect("a schedule");
    verify(Program {
        graph,
        machine,
        plans: plans.into(),
        ..Program::default()
    })
    .unwrap_or_else(|errors| panic!("seed {seed}: {}", errors[0]))
}

#[test]
fn sums_have_the_same_bits_for_any_placement_and_any_number_of_devices() {
    let registry = zbmd_backends::standard_registry();
    let mut devices_used = [0; 5];
    let cases: [(usize, usize, &[u64]); 6] = [
        (2, 4096, &[1, 2]),
        (3, 1000, &[1, 3]),
        (4, 8191, &[2, 4]),
        (5, 3, &[3]),
        (6, 1, &[1]),
        (7, 720, &[5]),
    ];
    for (replicas, elements, parts_tried) in cases {
        let case = Case {
            replicas,
            elements,
            devices: 1,
            is_pinned: false,
            may_divide: false,
        };
        let program = case.compile(&case.all_reduce(), Losses::None).program;
        let inputs = inputs(&program, 13);
        let (expected, _) = interpret_program(&program, &registry, &inputs, None);
        assert!(expected["y0"] == summed_in_order(&inputs, replicas, false));
        if replicas > 2 && elements > 1 {
            let reversed = summed_in_order(&inputs, replicas, true);
            assert!(
                expected["y0"] != reversed,
                "the order of these sums cannot be told"
            );
        }

        for &parts in parts_tried {
            for devices in [1, 2, 4] {
                let seed = parts * 100 + devices as u64;
                let placed = placed_at_random(&program, parts, devices, seed);
                devices_used[placed.plans[PlanId(0)].calendars.len()] += 1;
                let (outputs, _) = replay_program(placed, &registry, &inputs, None, None);
                assert!(
                    outputs == expected,
                    "{replicas} replicas, {parts} parts, {devices} devices"
                );
            }
        }
    }
    assert!(
        devices_used.iter().filter(|&&plans| plans > 3).count() > 2,
        "{devices_used:?}: a weak sample"
    );
}

#[test]
fn sums_have_the_same_bits_after_any_loss() {
    let registry = zbmd_backends::standard_registry();
    let case = Case {
        replicas: 4,
        elements: 1 << 16,
        devices: 4,
        is_pinned: false,
        may_divide: true,
    };
    let program = case.compile(&case.all_reduce(), Losses::Pairs).program;
    let inputs = inputs(&program, 5);
    let expected = summed_in_order(&inputs, case.replicas, false);
    let entries = &program.contingencies.list;
    assert!(
        entries.len() > 1,
        "{} contingencies: a weak sample",
        entries.len()
    );
    for (index, entry) in entries.iter().enumerate() {
        let left = run::without_lost(&program, entry);
        let (outputs, _) = replay_program(left, &registry, &inputs, None, None);
        assert!(outputs["y0"] == expected, "loss {index}");
    }
}

/// Bytes that each device sends in an iteration.
fn sent_bytes(program: &Program, plan: &Plan) -> Vec<u64> {
    let mut sent = vec![0; program.machine.devices.len()];
    for calendar in &plan.calendars {
        for entry in calendar.lanes.iter().flat_map(|lane| &lane.entries) {
            let Entry::Slot(slot) = entry else {
                panic!("a model without loops");
            };
            if let Action::Send { ring, count, .. } = slot.action {
                let ring = &plan.rings[ring];
                let token = &program.graph.channels[ring.channel].token;
                sent[ring.from.index()] += count * token.bytes();
            }
        }
    }
    sent.iter().map(|bytes| bytes / plan.block).collect()
}

#[test]
fn sums_send_no_more_over_links_than_a_ring() {
    for replicas in [2, 3, 4, 6] {
        let case = Case {
            replicas,
            elements: 1 << 18,
            devices: replicas,
            is_pinned: true,
            may_divide: true,
        };
        let program = case.compile(&case.all_reduce(), Losses::None).program;
        let plan = &program.plans[PlanId(0)];
        for device in 0..replicas {
            let is_placed = |name: &str| {
                let actor = program.graph.find(&format!("{name}{device}")).unwrap();
                plan.placement[actor] == DeviceId(device as u32)
            };
            assert!(is_placed("w") && is_placed("u"), "one replica a device");
        }

        // A ring has every device send 2(n - 1)/n of a token.
        let token_bytes = (case.elements * 4) as f64;
        let ring_bytes = 2.0 * (replicas - 1) as f64 / replicas as f64 * token_bytes;
        let sent = sent_bytes(&program, plan);
        let all_sent = sent.iter().sum::<u64>() as f64 / (ring_bytes * replicas as f64);
        assert!(
            all_sent <= 1.1,
            "{replicas} devices send {all_sent:.3} of a ring's bytes"
        );

        // Few replicas may be quicker in one piece.
        if replicas < 4 {
            continue;
        }
        assert_eq!(parts(&program, "sum"), replicas);
        for (device, bytes) in sent.into_iter().enumerate() {
            let ratio = bytes as f64 / ring_bytes;
            assert!(
                ratio <= 1.1,
                "device {device} of {replicas} sends {ratio:.3} of its part of a ring"
            );
        }
    }
}

#[test]
fn many_replicas_compile_and_the_slow_checker_accepts_their_plan() {
    let case = Case {
        replicas: 32,
        elements: 1 << 16,
        devices: 2,
        is_pinned: true,
        may_divide: true,
    };
    let program = case.compile(&case.all_reduce(), Losses::None).program;
    let plan = &program.plans[PlanId(0)];
    assert_eq!(plan.calendars.len(), 2);
    let blocks = u64::from(plan.stages) * 2 + 1;
    let stepped = stepper::step(&program.graph, plan, blocks, 3);
    stepped.unwrap_or_else(|violation| panic!("{}", violation.0));
}

/// A mode finds its tokens on the channels of the other's actors: both have all of them.
#[test]
fn modes_have_their_sums_in_one_piece() {
    let case = Case {
        replicas: 4,
        elements: 1 << 18,
        devices: 4,
        is_pinned: true,
        may_divide: true,
    };
    let model = case.all_reduce();
    let of_one_mode = case.compile(&model, Losses::None).program;
    assert_eq!(parts(&of_one_mode, "sum"), 4);

    let modes = r#"modes: { "near": Mode(), "far": Mode() }, pins:"#;
    let compiled = case.compile(&model.replace("pins:", modes), Losses::None);
    assert!(compiled.modes.is_some());
    assert_eq!(parts(&compiled.program, "sum"), 1);
}

#[test]
fn tokens_for_many_readers_have_the_same_bits_in_parts() {
    let registry = zbmd_backends::standard_registry();
    let whole = Case {
        replicas: 4,
        elements: 1 << 18,
        devices: 4,
        is_pinned: true,
        may_divide: false,
    };
    let model = whole.broadcast();
    let one_piece = whole.compile(&model, Losses::None).program;
    let divided = Case {
        may_divide: true,
        ..whole
    };
    let divided = divided.compile(&model, Losses::None).program;
    assert_eq!(parts(&divided, "all"), 4);

    // The source's device sends each part once, and then its own part on: half as much as all to all others.
    let most = |program: &Program| {
        let sent = sent_bytes(program, &program.plans[PlanId(0)]);
        sent.into_iter().max().unwrap()
    };
    assert!(most(&divided) * 3 <= most(&one_piece) * 2);

    let inputs = inputs(&one_piece, 5);
    let (expected, _) = interpret_program(&one_piece, &registry, &inputs, None);
    for program in [one_piece, divided] {
        let (outputs, _) = replay_program(program, &registry, &inputs, None, None);
        assert!(outputs == expected);
    }
}

#[test]
fn gathered_tokens_are_in_the_order_of_the_inputs() {
    const MODEL: &str = r#"Model(
        sources: { "a": Stream(dtype: i32, shape: [2]), "b": Stream(dtype: i32, shape: [2]) },
        actors: { "both": Gather() },
        channels: [(from: "a", to: ["both.x0"]), (from: "b", to: ["both.x1"]), (from: "both", to: ["y"])],
        sinks: { "y": Stream(dtype: i32, shape: [2, 2]) },
    )"#;
    let registry = zbmd_backends::standard_registry();
    let ints = |numbers: [i32; 4]| numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let inputs = run::streams([("a", ints([1, 2, 5, 6])), ("b", ints([3, 4, 7, 8]))]);
    for devices in [1, 2] {
        let options = CompileOptions {
            machine: MachineChoice::Uniform(devices),
            ..CompileOptions::default()
        };
        let compiled = compile_str("gather.ron", MODEL, "", &options).expect("it compiles");
        let (outputs, _) = replay_program(compiled.program, &registry, &inputs, None, None);
        let expected: Vec<u8> = (1..=8i32).flat_map(i32::to_ne_bytes).collect();
        assert!(outputs["y"] == expected, "{devices} devices");
    }
}

#[test]
fn descent_on_replicas_finds_the_weights_and_the_same_bits_on_any_devices() {
    const ITERATIONS: usize = 200;
    const WEIGHTS: usize = 4096;
    let registry = zbmd_backends::standard_registry();
    let mut rng = fastrand::Rng::with_seed(4);
    let random_vector =
        |rng: &mut fastrand::Rng| -> Vec<f32> { (0..WEIGHTS).map(|_| rng.f32() - 0.5).collect() };
    let wanted = random_vector(&mut rng);
    // Samples from a few dimensions, so that few samples are enough.
    let basis: Vec<Vec<f32>> = (0..8).map(|_| random_vector(&mut rng)).collect();
    let mut inputs = Streams::new();
    for replica in 0..4 {
        let (mut samples, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..ITERATIONS {
            let mut sample = vec![0.0; WEIGHTS];
            for direction in &basis {
                let factor = rng.f32() - 0.5;
                sample
                    .iter_mut()
                    .zip(direction)
                    .for_each(|(x, b)| *x += factor * b);
            }
            let target: f32 = sample.iter().zip(&wanted).map(|(x, w)| x * w).sum();
            samples.extend(sample.into_iter().flat_map(f32::to_ne_bytes));
            targets.extend(target.to_ne_bytes());
        }
        inputs.insert(format!("x{replica}"), samples);
        inputs.insert(format!("d{replica}"), targets);
    }

    let expected = run::interpret("sgd/model.ron", &registry, &inputs, None);
    for devices in [2, 4] {
        let outputs = run::run("sgd/model.ron", devices, &registry, &inputs, None);
        assert!(outputs == expected, "{devices} devices");
    }

    // In parts every replica keeps the delayed gradients on a channel of its own.
    let program = run::compile("sgd/model.ron", 1, &registry).program;
    let divided = placed_at_random(&program, 4, 3, 1);
    assert_eq!(parts(&divided, "sum"), 4);
    let (outputs, _) = replay_program(divided, &registry, &inputs, None, None);
    assert!(outputs == expected, "in parts");

    let errors: Vec<f32> = expected["error"]
        .chunks_exact(4)
        .map(|bytes| f32::from_ne_bytes(bytes.try_into().expect("four bytes")))
        .collect();
    let squared = |errors: &[f32]| errors.iter().map(|error| error * error).sum::<f32>();
    let (first, last) = (
        squared(&errors[..80]),
        squared(&errors[errors.len() - 80..]),
    );
    assert!(last < first / 4.0, "{first} at first, {last} at last");
}

#[test]
fn readers_of_parts_keep_their_delays_and_initial_tokens() {
    const MODEL: &str = r#"Model(
        sources: { "a": Stream(dtype: i32, shape: [3]), "b": Stream(dtype: i32, shape: [3]) },
        actors: { "sum": AllReduce() },
        channels: [
            (from: "a", to: ["sum.x0"]), (from: "b", to: ["sum.x1"], initial: [[100, 200, 300]]),
            (from: "sum", to: ["now"]), (from: "sum", to: ["later"], initial: [[1, 2, 3]]),
            (from: "sum", to: ["last"], initial: [[4, 5, 6], [1, 2, 3]]),
        ],
        sinks: { "now": Stream(), "later": Stream(), "last": Stream() },
    )"#;
    let registry = zbmd_backends::standard_registry();
    let options = CompileOptions {
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    let compiled = compile_str("delays.ron", MODEL, "", &options).expect("it compiles");
    let ints = |numbers: &[i32]| numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let inputs = run::streams([
        ("a", ints(&[1, 1, 1, 2, 2, 2, 3, 3, 3])),
        ("b", ints(&[10, 20, 30, 40, 50, 60, 70, 80, 90])),
    ]);
    for parts in [1, 2, 3] {
        let placed = placed_at_random(&compiled.program, parts, 3, 2);
        let (outputs, _) = replay_program(placed, &registry, &inputs, None, None);
        let sums = [101, 201, 301, 12, 22, 32, 43, 53, 63];
        let later = [1, 2, 3, 101, 201, 301, 12, 22, 32];
        let last = [4, 5, 6, 1, 2, 3, 101, 201, 301];
        let expected = run::streams([
            ("now", ints(&sums)),
            ("later", ints(&later)),
            ("last", ints(&last)),
        ]);
        assert!(outputs == expected, "{parts} parts");
    }
}
