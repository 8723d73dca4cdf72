//! Outputs over inputs in whole models: less memory, the same bits.

use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_file, compile_str};
use zbmd_ir::{DType, Program};
use zbmd_tests::data;
use zbmd_tests::run::{Streams, replay};

fn options(devices: usize, without: &[&str]) -> CompileOptions {
    let machine = MachineChoice::Uniform(devices);
    let mut options = CompileOptions { machine, ..CompileOptions::default() };
    options.onnx.without = without.iter().map(|w| (*w).to_owned()).collect();
    options
}

/// Arena bytes of all devices in the main plan, and how many outputs lie over inputs there.
fn arena(program: &Program) -> (u64, usize) {
    let main = &program.plans.raw[0];
    let bytes = main.calendars.iter().map(|c| c.arena_bytes).sum();
    (bytes, main.over(&program.graph).len())
}

/// One iteration's tokens: small numbers for floats, zeros for all else, which no model refuses as an index.
fn inputs(program: &Program) -> Streams {
    let mut rng = fastrand::Rng::with_seed(5);
    let sources = program.graph.sources().map(|(_, source)| {
        let token = &source.outputs[0].token;
        let bytes = match token.dtype {
            DType::F32 => (0..token.elements()).flat_map(|_| rng.f32().to_le_bytes()).collect(),
            _ => vec![0; token.bytes() as usize],
        };
        (source.name.clone(), bytes)
    });
    sources.collect()
}

fn run(compiled: Compiled, inputs: &Streams) -> Streams {
    replay(compiled, &Registry::standard(), inputs, Some(1), None).0
}

#[test]
fn models_need_less_memory_and_give_the_same_bits() {
    let Some(dir) = data::file("models") else { return };
    // Devices, and arena bytes with and without, in percent at most.
    for (name, devices, percent) in [
        ("bert_tiny", 1, 75),
        ("bert_tiny", 2, 100),
        ("light_resnet50", 1, 80),
        ("light_squeezenet", 1, 100),
        ("mobilenet_v2", 2, 100),
    ] {
        let path = dir.join(format!("{name}.onnx"));
        let compile = |without: &[&str]| {
            compile_file(&path, &options(devices, without))
                .unwrap_or_else(|d| panic!("{name}: {d}"))
        };
        let (apart, over) = (compile(&["in-place"]), compile(&[]));
        let (before, none) = arena(&apart.program);
        let (after, some) = arena(&over.program);
        println!("{name} on {devices}: {before} bytes, {after} with {some} outputs over inputs");
        assert!(none == 0 && some > 0 && after * 100 <= before * percent, "{name}");
        let inputs = inputs(&over.program);
        assert!(run(apart, &inputs) == run(over, &inputs), "{name}: other bits");
    }
}

#[test]
fn chains_of_expressions_and_new_shapes_are_one_block() {
    let model = r#"Model(
        name: "chain",
        sources: { "in": Stream(dtype: f32, shape: [2, 600]) },
        actors: {
            "a": Expr("x * 2.0"),
            "b": NnReshape(shape: [3, 400]),
            "c": NnAdd(y: [1.0]),
            "d": Expr("x + y"),
        },
        channels: [
            (from: "in", to: ["a"]),
            (from: "a",  to: ["b"]),
            (from: "b",  to: ["c", "d.y"]),
            (from: "c",  to: ["d.x"]),
            (from: "d",  to: ["out"]),
        ],
        sinks: { "out": Stream() },
    )"#;
    let compiled =
        compile_str("chain.ron", model, ".", &options(1, &[])).unwrap_or_else(|d| panic!("{d}"));
    // `c` may not overwrite what `d` still needs; `d` takes the place of either.
    let (bytes, over) = arena(&compiled.program);
    let block = compiled.program.plans.raw[0].block;
    let scratch = compiled.program.plans.raw[0].calendars[0].scratch_bytes;
    assert_eq!((bytes - scratch, over), (2 * (block * 4800).next_multiple_of(64), 3));
    let values: Vec<f32> = (0..1200).map(|i| i as f32).collect();
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let inputs = zbmd_tests::run::streams([("in", bytes)]);
    let expected: Vec<u8> = values.iter().flat_map(|v| (v * 4.0 + 1.0).to_le_bytes()).collect();
    assert_eq!(run(compiled, &inputs)["out"], expected);
}
