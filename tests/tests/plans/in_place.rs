//! Outputs over inputs in whole models, and parts in wholes: less memory, fewer copies, the same bits.

use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_file, compile_str};
use zbmd_ir::{Actor, DType, Program};
use zbmd_tests::data;
use zbmd_tests::run::{Streams, replay};

fn options(devices: usize, without: &[&str]) -> CompileOptions {
    let machine = MachineChoice::Uniform(devices);
    let mut options = CompileOptions {
        machine,
        ..CompileOptions::default()
    };
    options.skipped_passes = without.iter().map(|w| (*w).to_owned()).collect();
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
            DType::F32 => (0..token.elements())
                .flat_map(|_| rng.f32().to_le_bytes())
                .collect(),
            _ => vec![0; token.bytes() as usize],
        };
        (source.name.clone(), bytes)
    });
    sources.collect()
}

fn run(compiled: Compiled, inputs: &Streams) -> Streams {
    replay(
        compiled,
        &zbmd_backends::standard_registry(),
        inputs,
        Some(1),
        None,
    )
    .0
}

#[test]
fn models_need_less_memory_and_give_the_same_bits() {
    let Some(dir) = data::file("models") else {
        return;
    };
    // Devices, and arena bytes with and without, in percent at most.
    for (name, devices, percent) in [
        ("bert_tiny", 1, 100),
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
        assert!(
            none == 0 && some > 0 && after * 100 <= before * percent,
            "{name}"
        );
        let inputs = inputs(&over.program);
        assert!(
            run(apart, &inputs) == run(over, &inputs),
            "{name}: other bits"
        );
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
    assert_eq!(
        (bytes - scratch, over),
        (2 * (block * 4800).next_multiple_of(64), 3)
    );
    let values: Vec<f32> = (0..1200).map(|i| i as f32).collect();
    let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let inputs = zbmd_tests::run::streams([("in", bytes)]);
    let expected: Vec<u8> = values
        .iter()
        .flat_map(|v| (v * 4.0 + 1.0).to_le_bytes())
        .collect();
    assert_eq!(run(compiled, &inputs)["out"], expected);
}

/// Inputs of the model's concatenations, and how many of them lie in the outputs and are not copied.
fn concatenated(program: &Program) -> (usize, usize) {
    let main = &program.plans.raw[0];
    let is_concat = |a: &&Actor| a.op == "NnConcat";
    let inputs = program
        .graph
        .actors
        .iter()
        .filter(is_concat)
        .map(|a| a.inputs.len())
        .sum();
    let over = main.over(&program.graph);
    let in_place = over
        .iter()
        .filter(|o| is_concat(&&program.graph.actors[o.actor]));
    (inputs, in_place.count())
}

#[test]
fn a_models_concatenations_copy_nothing() {
    let Some(file) = data::file("models/light_squeezenet.onnx") else {
        return;
    };
    // With channels last, the pixels of one image lie between those of the other.
    let compile = |without: &[&str]| {
        compile_file(&file, &options(1, without)).unwrap_or_else(|d| panic!("{d}"))
    };
    let (apart, parts) = (
        compile(&["channels-last", "in-place"]),
        compile(&["channels-last"]),
    );
    assert_eq!(
        (concatenated(&apart.program), concatenated(&parts.program)),
        ((16, 0), (16, 16))
    );
    let (before, after) = (arena(&apart.program).0, arena(&parts.program).0);
    println!("light_squeezenet: {before} bytes, {after} with parts");
    assert!(after <= before);
    let inputs = inputs(&parts.program);
    assert!(run(apart, &inputs) == run(parts, &inputs), "other bits");
}

#[test]
fn parts_of_parts_are_one_block() {
    let model = r#"Model(
        name: "parts",
        sources: { "in": Stream(dtype: f32, shape: [6, 16]), "more": Stream(dtype: f32, shape: [1, 16]) },
        actors: {
            "cut":  NnSplit(axis: 0, split: [2, 4], outputs: [0, 1]),
            "a":    Expr("x * 2.0"),
            "b":    NnReshape(shape: [2, 32]),
            "c":    Expr("x + 1.0"),
            "d":    NnReshape(shape: [4, 16]),
            "join": NnConcat(axis: 0),
            "e":    Expr("0.0 - x"),
            "all":  NnConcat(axis: 0),
        },
        channels: [
            (from: "in",     to: ["cut"]),
            (from: "cut.y0", to: ["a"]),
            (from: "cut.y1", to: ["b"]),
            (from: "b",      to: ["c"]),
            (from: "c",      to: ["d"]),
            (from: "a",      to: ["join.x0"]),
            (from: "d",      to: ["join.x1"]),
            (from: "more",   to: ["e"]),
            (from: "join",   to: ["all.x0"]),
            (from: "e",      to: ["all.x1"]),
            (from: "all",    to: ["out"]),
        ],
        sinks: { "out": Stream() },
    )"#;
    let options = CompileOptions {
        block: Some(1),
        ..options(1, &[])
    };
    let compiled = compile_str("parts.ron", model, ".", &options).unwrap_or_else(|d| panic!("{d}"));
    let (bytes, over) = arena(&compiled.program);
    let scratch = compiled.program.plans.raw[0].calendars[0].scratch_bytes;
    assert_eq!((bytes - scratch, over), (7 * 64, 11));
    let values: Vec<f32> = (0..112).map(|i| i as f32).collect();
    let bytes = |v: &[f32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let given = [("in", bytes(&values[..96])), ("more", bytes(&values[96..]))];
    let expected = values.iter().enumerate().map(|(i, v)| match i {
        0..32 => v * 2.0,
        32..96 => v + 1.0,
        _ => -v,
    });
    let expected: Vec<f32> = expected.collect();
    assert_eq!(
        run(compiled, &zbmd_tests::run::streams(given))["out"],
        bytes(&expected)
    );
}
