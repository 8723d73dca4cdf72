//! Kernels in several variants: chosen by what was measured, seen in plans and bundles, the same bits in all.

use bytes::Bytes;
use zbmd_compiler::calibrate::{CalibrateOptions, CostSource};
use zbmd_compiler::costs::{CostKey, MeasuredCost, MeasuredCosts, ports_text};
use zbmd_compiler::{
    CompileOptions, Compiled, MachineChoice, calibrate_str, compile_file, compile_str,
    graph_of_file, machine,
};
use zbmd_executor::{Engine, EngineError};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{
    ActorId, BlobId, DType, Graph, Machine, PlanId, Program, Role, TiSlice, TiVec, bundle,
};
use zbmd_scheduler::Losses;
use zbmd_tests::data;
use zbmd_tests::run::{Streams, interpret_program, replay_program};

/// Numbers as a model writes them, in as many brackets as there are dimensions.
fn tensor(dims: &[usize], seed: usize) -> String {
    let Some((&first, rest)) = dims.split_first() else {
        return format!("{:.2}", (seed * 37 % 101) as f64 / 50.0 - 1.0);
    };
    let each: usize = rest.iter().product();
    let items: Vec<String> = (0..first).map(|i| tensor(rest, seed + i * each)).collect();
    format!("[{}]", items.join(", "))
}

/// One actor of each kind that has variants, each with a sink of its own.
fn model() -> String {
    let [product, dense, deep, taps] =
        [&[40, 70][..], &[20, 16, 3, 3], &[16, 1, 3, 3], &[9]].map(|dims| tensor(dims, dims.len()));
    format!(
        r#"Model(
    name: "variants",
    sources: {{
        "a": Stream(dtype: f32, shape: [13, 40]),
        "b": Stream(dtype: f32, shape: [1, 9, 10, 16]),
        "c": Stream(dtype: f32),
    }},
    actors: {{
        "product": NnMatMul(y: {product}),
        "dense": NnConvChannelsLast(w: {dense}, pads: [1, 1, 1, 1]),
        "deep": NnConvChannelsLast(w: {deep}, group: 16),
        "filter": Fir({taps}),
    }},
    channels: [
        (from: "a", to: ["product"]), (from: "product", to: ["p"]),
        (from: "b", to: ["dense", "deep"]), (from: "dense", to: ["q"]), (from: "deep", to: ["r"]),
        (from: "c", to: ["filter"]), (from: "filter", to: ["s"]),
    ],
    sinks: {{ "p": Stream(), "q": Stream(), "r": Stream(), "s": Stream() }},
)"#
    )
}

/// The graph of [`model`], and its tensors.
fn graph() -> (Graph, TiVec<BlobId, Bytes>) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.ron");
    std::fs::write(&path, model()).expect("a file");
    graph_of_file(&path, &CompileOptions::default()).unwrap_or_else(|d| panic!("{d}"))
}

fn options(machine: MachineChoice) -> CompileOptions {
    CompileOptions {
        machine,
        contingencies: Losses::Single,
        ..CompileOptions::default()
    }
}

/// Costs of all actors that say that the variant of number `index` is the best; how many have variants.
fn costs(
    graph: &Graph,
    blobs: &TiSlice<BlobId, Bytes>,
    machine: &Machine,
    index: usize,
) -> (MeasuredCosts, usize) {
    let registry = zbmd_backends::standard_registry();
    let (mut costs, mut several) = (MeasuredCosts::default(), 0);
    for actor in graph.actors.iter().filter(|a| a.role == Role::Compute) {
        let names = registry.variants(actor, blobs);
        several += usize::from(!names.is_empty());
        let name = names.get(index).map(|name| (*name).to_owned());
        let cost = MeasuredCost {
            op: actor.op.clone(),
            ports: ports_text(actor),
            call_ps: 1_000_000,
            firing_ps: 500,
            spread_percent: 1.0,
            samples: 9,
            variant: name.filter(|_| index > 0),
        };
        for device in &machine.devices {
            costs.insert(&device.name, CostKey::of(actor, blobs), cost.clone());
        }
    }
    (costs, several)
}

fn outputs(program: Verified<Program>, inputs: &Streams) -> Streams {
    replay_program(
        program,
        &zbmd_backends::standard_registry(),
        inputs,
        None,
        None,
    )
    .0
}

#[test]
fn bundles_with_variants_give_the_same_bits() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = model();
    let machine = machine::uniform(2);
    let plain = compile_str(
        "m.ron",
        &text,
        "",
        &options(MachineChoice::Given(machine.clone())),
    );
    let plain = plain.unwrap_or_else(|d| panic!("{d}"));
    assert!(
        plain.program.plans.iter().all(|p| p.variants.is_empty()),
        "without calibration"
    );
    let inputs = inputs(&plain.program, 3 * plain.program.plans[PlanId(0)].block + 1);
    let (expected, _) = interpret_program(
        &plain.program,
        &zbmd_backends::standard_registry(),
        &inputs,
        None,
    );
    assert!(expected.values().all(|bytes| !bytes.is_empty()));
    let (graph, blobs) = graph();
    for index in 0..2 {
        let (costs, several) = costs(&graph, &blobs, &machine, index);
        assert_eq!(several, 3, "actors with variants");
        let choice = MachineChoice::Measured(machine.clone(), costs);
        let compiled = compile_str("m.ron", &text, "", &options(choice)).expect("a fine model");
        assert!(compiled.warnings.to_string().is_empty());
        let path = dir.path().join("m.zbmd");
        compiled.write(&path).expect("it is written");
        let program = bundle::open(&path).expect("a bundle");
        assert!(program.plans.len() > 2, "plans for losses too");
        let chosen = if index > 0 { several } else { 0 };
        assert!(
            program.plans.iter().all(|p| p.variants.len() == chosen),
            "variant {index}"
        );
        let calendar = zbmd_ir::text::program(&program, None, Default::default());
        assert_eq!(
            calendar.contains(" by 6x64 "),
            index > 0,
            "variant {index} is not named"
        );
        assert!(outputs(program, &inputs) == expected, "variant {index}");
    }
}

#[test]
fn unknown_variants_fall_back_with_a_warning_and_are_refused_in_bundles() {
    let text = model();
    let machine = machine::uniform(1);
    let (graph, blobs) = graph();
    let mut costs = MeasuredCosts::default();
    for actor in graph.actors.iter().filter(|a| a.role == Role::Compute) {
        let cost = MeasuredCost {
            op: actor.op.clone(),
            ports: ports_text(actor),
            call_ps: 1,
            firing_ps: 1,
            spread_percent: 0.0,
            samples: 1,
            variant: Some("13x33".to_owned()),
        };
        costs.insert("cpu:0", CostKey::of(actor, &blobs), cost);
    }
    let choice = MachineChoice::Measured(machine, costs);
    let compiled = compile_str("m.ron", &text, "", &options(choice)).expect("a fine model");
    let codes: Vec<&str> = compiled
        .warnings
        .list
        .iter()
        .map(|d| d.code.name())
        .collect();
    // One for each op, however many actors there are.
    assert_eq!(codes, ["W0501"; 3], "{}", compiled.warnings);
    assert!(compiled.program.plans.iter().all(|p| p.variants.is_empty()));

    let mut program = compiled.program.into_inner();
    let product = program.graph.find("product").expect("the actor");
    program.plans[PlanId(0)]
        .variants
        .insert(product, "13x33".to_owned());
    let program = verify(program).expect("a name that a variant could have");
    match Engine::new(program, &zbmd_backends::standard_registry()) {
        Err(EngineError::Kernel { actor, source }) => {
            assert_eq!(actor, "product");
            let message = source.to_string();
            assert!(
                message.contains("`13x33`") && message.contains("12x32"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_calibration_finds_is_what_runs() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = model();
    let how = CalibrateOptions {
        cache: Some(dir.path().join("cache")),
        budget_ns: 0,
        ..CalibrateOptions::default()
    };
    let calibrate = || {
        let options = options(MachineChoice::Uniform(2));
        calibrate_str("m.ron", &text, "", &options, &how, &mut |_| {}).expect("a fine model")
    };
    let found = calibrate();
    assert_eq!(found.rows.len(), 4);
    // A convolution with one filter for each channel has one form.
    let (single, several): (Vec<_>, Vec<_>) =
        found.rows.iter().partition(|row| row.variants.is_empty());
    assert!(
        matches!(&single[..], [row] if row.actor == "deep"),
        "{single:?}"
    );
    for row in several {
        assert!(
            row.source == CostSource::Measured && row.variants.len() > 1,
            "{row:?}"
        );
        assert!(
            row.variants[0].variant.is_none(),
            "the default comes first: {row:?}"
        );
        assert!(row.variants.contains(&row.cost), "{row:?}");
        assert_eq!(row.gain().is_some(), row.cost.variant.is_some());
        assert!(row.gain().is_none_or(|gain| gain < 0.0), "{row:?}");
    }
    let again = calibrate();
    assert!(
        again.rows.iter().all(|row| row.source == CostSource::Cache),
        "{:?}",
        again.rows
    );
    assert_eq!(again.to_ron().expect("RON"), found.to_ron().expect("RON"));

    let path = dir.path().join("machine.ron");
    found.write(&path).expect("it is written");
    let compiled = compile_str("m.ron", &text, "", &options(MachineChoice::File(path)));
    let compiled: Compiled = compiled.unwrap_or_else(|d| panic!("{d}"));
    let names = |id: ActorId| compiled.program.graph.actors[id].name.as_str();
    let main = &compiled.program.plans[PlanId(0)];
    let chosen: Vec<_> = main
        .variants
        .iter()
        .map(|(&id, v)| (names(id), Some(v)))
        .collect();
    let measured = found.rows.iter().filter(|r| r.cost.variant.is_some());
    let mut measured: Vec<_> = measured
        .map(|r| (r.actor.as_str(), r.cost.variant.as_ref()))
        .collect();
    measured.sort_by_key(|(name, _)| compiled.program.graph.find(name));
    assert_eq!(chosen, measured);
    let inputs = inputs(&compiled.program, main.block + 2);
    let (expected, _) = interpret_program(
        &compiled.program,
        &zbmd_backends::standard_registry(),
        &inputs,
        None,
    );
    assert!(outputs(compiled.program, &inputs) == expected);
}

#[test]
fn models_have_the_same_bits_in_every_variant() {
    let Some(dir) = data::file("models") else {
        return;
    };
    for name in ["mnist", "light_squeezenet", "mobilenet_v2", "bert_tiny"] {
        let path = dir.join(format!("{name}.onnx"));
        if !path.exists() {
            println!("{name}: not here");
            continue;
        }
        let machine = machine::uniform(1);
        let fixed = |choice| CompileOptions {
            block: Some(1),
            ..options(choice)
        };
        let (graph, blobs) = graph_of_file(&path, &fixed(MachineChoice::Uniform(1)))
            .unwrap_or_else(|d| panic!("{name}: {d}"));
        let mut expected = None;
        for index in 0..2 {
            let (costs, several) = costs(&graph, &blobs, &machine, index);
            let choice = MachineChoice::Measured(machine.clone(), costs);
            let compiled = compile_file(&path, &fixed(choice));
            let compiled = compiled.unwrap_or_else(|d| panic!("{name}: {d}"));
            let chosen = compiled.program.plans[PlanId(0)].variants.len();
            assert_eq!(chosen, if index > 0 { several } else { 0 }, "{name}");
            assert!(several > 1, "{name}");
            let inputs = inputs(&compiled.program, 1);
            let found = outputs(compiled.program, &inputs);
            assert!(
                *expected.get_or_insert_with(|| found.clone()) == found,
                "{name} by {index}"
            );
        }
    }
}

/// So many tokens for each source: small numbers for floats, zeros for all else, which no model refuses as an index.
fn inputs(program: &Program, tokens: u64) -> Streams {
    let mut rng = fastrand::Rng::with_seed(5);
    let sources = program.graph.sources().map(|(_, source)| {
        let token = &source.outputs[0].token;
        let bytes = match token.dtype {
            DType::F32 => (0..tokens * token.elements())
                .flat_map(|_| rng.f32().to_le_bytes())
                .collect(),
            _ => vec![0; (tokens * token.bytes()) as usize],
        };
        (source.name.clone(), bytes)
    });
    sources.collect()
}
