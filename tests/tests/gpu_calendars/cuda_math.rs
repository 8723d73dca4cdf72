//! Models whose products round their factors, on a CUDA device in software, beside the interpreter, which rounds
//! nothing.

use std::sync::Arc;

use zbmd_backends::cuda::{CudaDevice, CudaOptions, Instance, Replay};
use zbmd_compiler::{
    CompileOptions, Compiled, Diagnostics, GraphBuilder, MachineChoice, Math, compile_file,
};
use zbmd_ir::{DType, DeviceId, PlanId, Program, State, TokenType, Value};
use zbmd_tests::data;
use zbmd_tests::gpu::{Player, distance, gpu_calendar, tame_inputs, tokens, with};

const GPU: DeviceId = DeviceId(1);

/// For a CPU so slow that everything with kernels for the GPU runs there.
fn options(math: Math) -> CompileOptions {
    let mut machine = with(&["cuda"]);
    let cpu = &mut machine.devices[DeviceId(0)];
    (cpu.flops_per_s, cpu.bytes_per_s) = (1_000_000, 1_000_000);
    let machine = MachineChoice::Given(machine);
    CompileOptions {
        machine,
        math,
        block: Some(1),
        ..CompileOptions::default()
    }
}

/// One period of the GPU's calendar; how far what it sends is from the interpreter's, as a share of the largest.
fn off(program: &Program) -> f64 {
    let registry = zbmd_backends::standard_registry();
    let instance = Instance::software();
    let listed = instance.find("cuda:0").expect("the only one");
    let device: Arc<CudaDevice> =
        CudaDevice::open(&instance, &listed, &CudaOptions::default()).expect("nothing is injected");
    let plan = &program.plans[PlanId(0)];
    let mut inputs = tame_inputs(program, plan.block);
    for (_, source) in program.graph.sources() {
        // Numbers of words and of sentences: 0 is one.
        if source.outputs[0].token.dtype == DType::I64 {
            inputs.get_mut(&source.name).expect("its bytes").fill(0);
        }
    }
    let (tokens, _) = tokens(program, &registry, &inputs, plan.block);
    let mut player = Player::new(program, plan, GPU, &tokens, false);
    let calendar = gpu_calendar(plan);
    let exchange = player.exchange();
    let replay = Replay::new(&device, &registry, program, plan, calendar, &exchange);
    let mut replay = replay.expect("a replay");
    replay
        .load_state(&State::initial(&program.graph))
        .expect("a state");
    for period in 0..u64::from(plan.stages) {
        replay
            .step(period, (period >= 1).then_some(1), &mut player)
            .expect("a period");
    }
    replay.drain(&mut player).expect("the end");
    assert!(!player.sent.is_empty());
    let each = player.sent.iter().map(|(ring, bytes)| {
        let channel = plan.rings[*ring].channel;
        distance(
            program.graph.channels[channel].token.dtype,
            bytes,
            &tokens[channel],
        )
    });
    each.fold(0.0, f64::max)
}

/// A product with rounded factors for so many of the actors at least, and an error above 0 and below what is allowed.
fn check(name: &str, made: Result<Compiled, Diagnostics>, math: Math, least: usize, most: f64) {
    let compiled = made.unwrap_or_else(|d| panic!("{name}: {d}"));
    let rounding = compiled.rounding.expect("it has products");
    assert!(rounding.rounded.len() >= least, "{name}: {rounding}");
    let said = |a: &zbmd_ir::Actor| a.params.contains_key(Math::PARAM);
    let kept = compiled
        .program
        .graph
        .actors
        .iter()
        .filter(|a| said(a))
        .count();
    assert_eq!(
        kept,
        rounding.rounded.len(),
        "{name}: the graph says so of just these"
    );
    let off = off(&compiled.program);
    println!("{name} in {math}: off by {off:.1e}; {rounding}");
    assert!(off > 1e-7 && off < most, "{name} in {math}: off by {off:e}");
}

/// A block of MobileNetV2 (Sandler et al. 2018): expanded, filtered by channel, projected, added.
fn inverted(math: Math) -> Result<Compiled, Diagnostics> {
    let mut graph = GraphBuilder::new("inverted");
    let mut random = fastrand::Rng::with_seed(2);
    let mut weights = |graph: &mut GraphBuilder, shape: &[u32]| {
        let token = TokenType::new(DType::F32, shape);
        let inputs: u32 = shape[1..].iter().product();
        let size = 2.0 / (f64::from(inputs.max(1)).sqrt() as f32);
        let bytes: Vec<u8> = (0..token.elements())
            .flat_map(|_| ((random.f32() - 0.5) * size).to_le_bytes())
            .collect();
        graph.tensor(token, bytes)
    };
    let ints = |v: &[i64]| Value::List(v.iter().map(|i| Value::Int(*i)).collect());
    let relu6 = |w: Value, b: Value| {
        let (act, low, high) = (
            Value::Str("clip".to_owned()),
            Value::Float(0.0),
            Value::Float(6.0),
        );
        vec![
            ("w", w),
            ("b", b),
            ("act", act),
            ("act_min", low),
            ("act_max", high),
        ]
    };
    let x = graph.source("x", TokenType::new(DType::F32, [1, 16, 14, 14]));
    let (w, b) = (
        weights(&mut graph, &[96, 16, 1, 1]),
        weights(&mut graph, &[96]),
    );
    let up = graph.actor("up", "NnConv", relu6(w, b));
    let (w, b) = (
        weights(&mut graph, &[96, 1, 3, 3]),
        weights(&mut graph, &[96]),
    );
    let mut params = relu6(w, b);
    params.extend([("group", Value::Int(96)), ("pads", ints(&[1, 1, 1, 1]))]);
    let each = graph.actor("each", "NnConv", params);
    let (w, b) = (
        weights(&mut graph, &[16, 96, 1, 1]),
        weights(&mut graph, &[16]),
    );
    let down = graph.actor("down", "NnConv", [("w", w), ("b", b)]);
    let y = graph.sink("y");
    graph
        .connect(x, up.port("x"))
        .connect(up, each.port("x"))
        .connect(each, down.port("x"));
    graph.connect(x, down.port("added")).connect(down, y);
    graph.compile(&options(math))
}

#[test]
fn a_block_of_convolutions_stays_near() {
    for (math, most) in [(Math::Tf32, 2e-3), (Math::F16, 2e-3), (Math::Bf16, 2e-2)] {
        check("inverted", inverted(math), math, 2, most);
    }
}

/// The first half of a layer of an encoder (Vaswani et al. 2017), with a norm before: products, attention, a product.
fn encoder(math: Math) -> Result<Compiled, Diagnostics> {
    const WIDTH: u32 = 32;
    let mut graph = GraphBuilder::new("encoder");
    let mut random = fastrand::Rng::with_seed(3);
    let mut weights = |graph: &mut GraphBuilder, shape: &[u32], around: f32| {
        let token = TokenType::new(DType::F32, shape);
        let mut one = || around + (random.f32() - 0.5) * 0.5;
        let bytes: Vec<u8> = (0..token.elements())
            .flat_map(|_| one().to_le_bytes())
            .collect();
        graph.tensor(token, bytes)
    };
    let x = graph.source("x", TokenType::new(DType::F32, [1, 19, WIDTH]));
    let scale = weights(&mut graph, &[WIDTH], 1.0);
    let normed = graph.actor("norm", "NnLayerNormalization", [("scale", scale)]);
    graph.connect(x, normed.port("x"));
    let heads = ["q_num_heads", "kv_num_heads"].map(|name| (name, Value::Int(2)));
    let attention = graph.actor("attention", "NnAttention", heads);
    for name in ["q", "k", "v"] {
        let y = weights(&mut graph, &[WIDTH, WIDTH], 0.0);
        let product = graph.actor(name, "NnMatMul", [("y", y)]);
        graph
            .connect(normed, product.port("x"))
            .connect(product, attention.port(name));
    }
    let y = weights(&mut graph, &[WIDTH, WIDTH], 0.0);
    let last = graph.actor("last", "NnMatMul", [("y", y)]);
    let (sum, sink) = (graph.actor::<String>("sum", "NnAdd", []), graph.sink("y"));
    graph.connect(attention, last.port("x"));
    graph
        .connect(x, sum.port("x"))
        .connect(last, sum.port("y"))
        .connect(sum, sink);
    graph.compile(&options(math))
}

#[test]
fn a_block_of_an_encoder_stays_near_with_its_attention_rounded() {
    for (math, most) in [(Math::Tf32, 2e-3), (Math::F16, 2e-3), (Math::Bf16, 2e-2)] {
        let compiled = encoder(math).unwrap_or_else(|d| panic!("{d}"));
        let rounding = compiled.rounding.expect("it has products");
        assert!(rounding.exact.is_empty(), "{rounding}");
        assert!(
            rounding.rounded.contains(&("attention".to_owned(), math)),
            "{rounding}"
        );
        check("encoder", encoder(math), math, 5, most);
    }
}

#[test]
fn models_stay_near() {
    let Some(models) = data::file("models") else {
        return;
    };
    for (name, math, least, most) in [
        ("mnist.onnx", Math::Tf32, 1, 5e-3),
        ("mnist.onnx", Math::F16, 1, 5e-3),
        ("mnist.onnx", Math::Bf16, 1, 5e-2),
        ("bert_tiny.onnx", Math::Bf16, 8, 2e-2),
    ] {
        check(
            name,
            compile_file(models.join(name), &options(math)),
            math,
            least,
            most,
        );
    }
}

#[test]
fn a_device_that_is_too_old_refuses_the_calendar_with_both_numbers() {
    let compiled = inverted(Math::Tf32).unwrap_or_else(|d| panic!("{d}"));
    let program = &compiled.program;
    let plan = &program.plans[PlanId(0)];
    let instance = Instance::software();
    let mut listed = instance.find("cuda:0").expect("the only one");
    listed.arch = (7, 5);
    listed.caps.capability = Some(listed.arch);
    let device =
        CudaDevice::open(&instance, &listed, &CudaOptions::default()).expect("not that old");
    let none = program.graph.channels.iter().map(|_| vec![]).collect();
    let mut player = Player::new(program, plan, GPU, &none, false);
    let calendar = gpu_calendar(plan);
    let exchange = player.exchange();
    let refused = Replay::new(
        &device,
        &zbmd_backends::standard_registry(),
        program,
        plan,
        calendar,
        &exchange,
    )
    .map(drop);
    let said = refused.expect_err("the device is too old").to_string();
    let expected =
        "cuda:0: products in tf32 need compute capability 8.0, the device has 7.5; compile for";
    assert!(said.contains(expected), "{said}");
}
