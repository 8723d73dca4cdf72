//! Bursts of every length, in random order: none is lost or changed, and nothing waits for those that are empty.
//!
//! `ZBMD_BURSTS` says how many, a million without it.

use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{CustomActor, Registry, Signature};
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_str};
use zbmd_executor::{Engine, RunOptions, StreamError};
use zbmd_ir::burst::{BurstHeader, BurstLayout, HEADER_BYTES};
use zbmd_ir::testing::mutate::Random;
use zbmd_ir::{DType, InPort, OutPort, TokenType};
use zbmd_tests::run::{Streams, interpret_program, replay, streams};

/// Most items of a burst.
const MAX: u32 = 24;
/// Bursts of one firing of the actor.
const RATE: usize = 3;

/// Passes on the items that are odd, doubled: bursts become shorter, and some empty.
struct OddDoubled {
    layout: BurstLayout,
}

fn token() -> TokenType {
    TokenType::burst(DType::I32, [MAX])
}

fn layout() -> BurstLayout {
    BurstLayout::of(&token()).expect("the type is one of bursts")
}

fn odd_doubled(items: &[i32]) -> Vec<i32> {
    let odd = items.iter().filter(|item| *item % 2 != 0);
    odd.map(|item| item.wrapping_mul(2)).collect()
}

impl Kernel for OddDoubled {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let bursts = io.bursts::<i32>(0, &self.layout);
        let mut writer = io.burst_writer(0, &self.layout);
        for burst in bursts {
            let burst = burst?;
            writer.write(burst.first, &odd_doubled(burst.items));
        }
        Ok(())
    }
}

impl CustomActor for OddDoubled {
    fn ports(&self) -> Signature {
        let input = InPort {
            name: "x".to_owned(),
            token: token(),
            rate: RATE as u64,
            window: RATE as u64,
        };
        let output = OutPort {
            name: "y".to_owned(),
            token: token(),
            rate: RATE as u64,
        };
        Signature::stateless(vec![input], vec![output])
    }
}

fn registry() -> Registry {
    let mut registry = zbmd_backends::standard_registry();
    registry.register("odd_doubled", |_| Ok(OddDoubled { layout: layout() }));
    registry
}

/// Two paths from the source: one through the actor and `BurstIndex`, one with an initial token, which is empty.
const MODEL: &str = r#"Model(
    sources: { "in": Stream(dtype: i32, shape: Burst(max: 24)) },
    actors: {
        "odd": Custom("odd_doubled"),
        "index": BurstIndex(hop: 100, offset: -50),
    },
    channels: [
        (from: "in", to: ["odd"]),
        (from: "in", to: ["late"], initial: Zeros(1)),
        (from: "odd", to: ["index"]),
        (from: "index", to: ["out"]),
    ],
    sinks: { "out": Stream(), "late": Stream() },
)"#;

fn compile(devices: usize) -> Compiled {
    let options = CompileOptions {
        registry: registry(),
        machine: MachineChoice::Uniform(devices),
        ..CompileOptions::default()
    };
    compile_str("bursts.ron", MODEL, ".", &options).unwrap_or_else(|errors| panic!("{errors}"))
}

fn random_bursts(count: usize) -> Streams {
    let mut random = Random::new(11);
    let mut tokens = Vec::with_capacity(count * layout().token_bytes);
    for index in 0..count {
        // The first ones have every length there is, in order.
        let length = match index <= MAX as usize {
            true => index,
            false => random.below(MAX as usize + 1),
        };
        let items: Vec<i32> = (0..length).map(|_| random.bits() as i32).collect();
        let first = if length == 0 { 0 } else { index as i64 };
        layout().append(first, bytemuck::cast_slice(&items), &mut tokens);
    }
    streams([("in", tokens)])
}

/// What the model means, without any of its parts.
fn expected(inputs: &Streams) -> Vec<u8> {
    let mut expected = Vec::new();
    for (index, burst) in layout().read_all(&inputs["in"]).enumerate() {
        let burst = burst.expect("made above");
        let items = odd_doubled(bytemuck::cast_slice(burst.items));
        let start = 100 * index as i64 - 50;
        let first = match items.is_empty() {
            true => burst.first,
            false => burst.first + start,
        };
        layout().append(first, bytemuck::cast_slice(&items), &mut expected);
    }
    expected
}

#[test]
fn every_length_comes_through_as_by_the_interpreter() {
    let count = std::env::var("ZBMD_BURSTS").map_or(1_000_000, |text| {
        text.parse().expect("ZBMD_BURSTS is a number of bursts")
    });
    let inputs = random_bursts(count / RATE * RATE);
    let registry = registry();
    let (interpreted, _) = interpret_program(&compile(1).program, &registry, &inputs, None);
    assert!(interpreted["out"] == expected(&inputs), "the interpreter");

    let token_bytes = layout().token_bytes;
    assert!(interpreted["late"][..token_bytes].iter().all(|&b| b == 0));
    assert!(interpreted["late"][token_bytes..] == inputs["in"][..inputs["in"].len() - token_bytes]);
    for devices in [1, 2] {
        let (outputs, _) = replay(compile(devices), &registry, &inputs, None, None);
        assert!(outputs == interpreted, "other bits on {devices} devices");
    }
}

#[test]
fn a_burst_beyond_the_maximum_is_refused_where_it_is_pushed() {
    let engine = Engine::new(compile(1).program, &registry()).expect("an engine");
    let mut session = engine.start(RunOptions::default()).expect("a session");
    let mut source = session.source("in").expect("the source");
    let mut tokens = vec![0; 2 * layout().token_bytes];
    let header = BurstHeader {
        first: 0,
        length: MAX + 1,
    };
    tokens[layout().token_bytes..][..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    let error = source.push_bytes(&tokens).expect_err("too long");
    assert_eq!(
        error.to_string(),
        "token 1 pushed to `in` is a burst of 25 items, more than the maximum of 24"
    );
    let error = source.push::<i32>(&[1, 2]).expect_err("no headers");
    assert!(matches!(error, StreamError::Elements { .. }), "{error}");
    drop(source);
    drop(session.sink("out"));
    drop(session.sink("late"));
    session.join().expect("nothing was pushed");
}

#[test]
fn ops_that_know_samples_only_refuse_bursts() {
    let model = |channel: &str| {
        format!(
            r#"Model(
    sources: {{ "in": Stream(dtype: f32, shape: Burst(max: 4)) }},
    actors: {{ "gain": Gain(0.5), "index": BurstIndex(hop: 1) }},
    channels: [{channel}],
    sinks: {{ "out": Stream() }},
)"#
        )
    };
    let options = CompileOptions::default();
    let refusal = |channel: &str| {
        let errors = compile_str("bursts.ron", &model(channel), ".", &options);
        errors.expect_err("refused").to_string()
    };
    let text = refusal(r#"(from: "in", to: ["gain"]), (from: "gain", to: ["out"])"#);
    assert!(text.contains("is burst f32[4]"), "{text}");
    assert!(
        text.contains("bursts are read by `Custom` actors, `BurstIndex` and sinks"),
        "{text}"
    );
    let text =
        refusal(r#"(from: "in", to: ["index"], initial: [1.0]), (from: "index", to: ["out"])"#);
    assert!(
        text.contains("the channel carries burst f32[4], whose initial tokens are empty bursts"),
        "{text}"
    );
    let text = refusal(
        r#"(from: "in", to: ["index"], shape: Burst(max: 5)), (from: "index", to: ["out"])"#,
    );
    assert!(text.contains("shape Burst(max: 5) is stated"), "{text}");
}
