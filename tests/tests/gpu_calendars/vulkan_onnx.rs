//! ONNX operators and whole models on Vulkan: every actor that has a kernel there runs there, the rest is played by the
//! interpreter's tokens. The validation layers must have nothing to say.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_backends::vulkan::{Replay, VulkanDevice, VulkanOptions};
use zbmd_compiler::{CompileOptions, MachineChoice, compile_file, graph_of_file, read_npy};
use zbmd_ir::{BlobId, ChannelId, DType, DeviceId, Graph, PlanId, Role, State, TiVec};
use zbmd_scheduler::{Block, ScheduleOptions};
use zbmd_tests::actors;
use zbmd_tests::data;
use zbmd_tests::gpu::{Player, machine, open, place_on, tokens, turn};
use zbmd_tests::onnx::{
    Tensor, difference, graph_once, model_inputs, model_outputs, read_pb, relative_error, to_f64,
};
use zbmd_tests::run::{Streams, graph_file};

const GPU: DeviceId = DeviceId(1);

/// Actors that stay on the CPU, with the reason.
fn left(
    graph: &Graph,
    blobs: &TiVec<BlobId, Bytes>,
    registry: &Registry,
    device: &VulkanDevice,
) -> Vec<(String, String)> {
    let computes = graph.actors.iter().filter(|a| a.role == Role::Compute);
    computes
        .filter_map(|a| Some((a.op.clone(), registry.gpu_reason(a, blobs, device.caps())?)))
        .collect()
}

/// What the GPU sent on each channel in so many blocks of one iteration, and what the interpreter has there.
struct Sent {
    channel: ChannelId,
    dtype: DType,
    /// Names of the sinks that read it.
    sinks: Vec<String>,
    got: Vec<u8>,
    want: Vec<u8>,
}

fn on_gpu(
    device: &Arc<VulkanDevice>,
    (graph, blobs): (&Graph, &TiVec<BlobId, Bytes>),
    registry: &Registry,
    inputs: &Streams,
    blocks: u64,
) -> Vec<Sent> {
    // Only what this driver can run goes to it: the machine's costs are those of what all GPUs support.
    let actors: Vec<_> = graph.actors.iter().collect();
    let home = |index: usize| match registry.lower(actors[index], blobs, device.caps()) {
        Some(_) => GPU,
        None => DeviceId(0),
    };
    let options = ScheduleOptions {
        block: Block::Fixed(1),
        ..ScheduleOptions::default()
    };
    let program = place_on(machine(), graph, blobs, registry, options, &home);
    let plan = &program.plans[PlanId(0)];
    let Some(calendar) = plan.calendars.iter().find(|c| c.device == GPU) else {
        return vec![];
    };
    let (tokens, _) = tokens(&program, registry, inputs, blocks);
    let mut player = Player::new(&program, plan, GPU, &tokens, false);
    let exchange = player.exchange();
    let mut replay = Replay::new(device, registry, &program, plan, calendar, &exchange)
        .unwrap_or_else(|e| panic!("{e}"));
    replay
        .load_state(&State::initial(&program.graph))
        .expect("a state");
    player.run(&mut replay, blocks).expect("a run");
    let sent = std::mem::take(&mut player.sent);
    let sent = sent.into_iter().map(|(ring, got)| {
        let channel = plan.rings[ring].channel;
        let readers = &program.graph.channels[channel].readers;
        let sinks = readers.iter().map(|r| &program.graph.actors[r.to.actor]);
        let sinks = sinks
            .filter(|a| a.role == Role::Sink)
            .map(|a| a.name.clone())
            .collect();
        let dtype = program.graph.channels[channel].token.dtype;
        Sent {
            channel,
            dtype,
            sinks,
            got,
            want: tokens[channel].clone(),
        }
    });
    sent.collect()
}

/// The first validation message, if there is one.
fn complaint(device: &VulkanDevice) -> Option<String> {
    device
        .instance()
        .messages()
        .first()
        .map(ToString::to_string)
}

struct Case {
    name: String,
    operator: String,
    rtol: f64,
    atol: f64,
}

fn cases(dir: &Path) -> Vec<Case> {
    let table = std::fs::read_to_string(dir.join("cases.tsv")).expect("cases.tsv");
    let lines = table
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty());
    let case = |line: &str| {
        let parts: Vec<&str> = line.split('\t').collect();
        let number = |i: usize| parts[i].parse().expect("a tolerance");
        Case {
            name: parts[0].into(),
            operator: parts[1].into(),
            rtol: number(2),
            atol: number(3),
        }
    };
    lines.map(case).collect()
}

fn tensors(dir: &Path, kind: &str) -> Vec<Tensor> {
    let paths = (0..)
        .map(|i| dir.join(format!("{kind}_{i}.pb")))
        .take_while(|p| p.exists());
    paths.map(|p| read_pb(&p)).collect()
}

/// What became of a case.
enum Verdict {
    /// Not a case of the CPU's either.
    Refused,
    /// Nothing of it, or not all of it, runs on the GPU.
    Left(String),
    /// All actors ran there, as the case has it.
    Passed,
    Wrong(String),
}

fn judge(device: &Arc<VulkanDevice>, dir: &Path, case: &Case, registry: &Registry) -> Verdict {
    let model = std::fs::read(dir.join("model.onnx")).expect("model.onnx");
    let (inputs, outputs) = (tensors(dir, "input"), tensors(dir, "output"));
    let Ok((graph, blobs)) = graph_once(&model, &inputs, registry) else {
        return Verdict::Refused;
    };
    if Interpreter::new(&graph, &blobs, registry).is_err() {
        return Verdict::Refused;
    }
    let left = left(&graph, &blobs, registry, device);
    let streams: Streams = inputs
        .iter()
        .map(|t| (t.name.clone(), t.data.clone()))
        .collect();
    for sent in on_gpu(device, (&graph, &blobs), registry, &streams, 1) {
        let reference = outputs.iter().find(|o| sent.sinks.contains(&o.name));
        let apart = match reference {
            Some(want) => difference(&sent.got, want, case.rtol, case.atol),
            None => {
                let data = sent.want.clone();
                let elements = data.len() as u64 / sent.dtype.size_bytes();
                let ty = zbmd_ir::TokenType::new(sent.dtype, [elements as u32].as_slice());
                let want = Tensor {
                    name: String::new(),
                    ty,
                    data,
                };
                difference(&sent.got, &want, case.rtol.max(1e-5), case.atol.max(1e-6))
            }
        };
        if let Some(apart) = apart {
            return Verdict::Wrong(format!("{}: {apart}", sent.channel));
        }
    }
    match left.first() {
        None => Verdict::Passed,
        Some(_) => {
            let all: Vec<String> = left
                .iter()
                .map(|(op, why)| format!("{op}: {why}"))
                .collect();
            Verdict::Left(all.join("; "))
        }
    }
}

/// The operator cases that the CPU passes; those that stay there, in part or whole, are in the snapshot with the
/// reason.
#[test]
fn operator_cases_pass_or_stay_on_the_cpu_with_a_reason() {
    let _turn = turn();
    let Some(dir) = data::file("onnx-node") else {
        return;
    };
    let Some(device) = open(true, &VulkanOptions::default()) else {
        return;
    };
    let registry = zbmd_backends::standard_registry();
    let only = std::env::var("ZBMD_CASE").ok();
    let (mut passed, mut stay, mut wrong) = (0, String::new(), String::new());
    for case in cases(&dir) {
        if only
            .as_ref()
            .is_some_and(|o| !case.name.contains(o.as_str()))
        {
            continue;
        }
        let folder = dir.join(&case.name);
        let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            judge(&device, &folder, &case, &registry)
        }));
        let verdict = judged.unwrap_or_else(|_| Verdict::Wrong("it crashed".to_owned()));
        match verdict {
            Verdict::Passed => passed += 1,
            Verdict::Refused => {}
            Verdict::Left(why) => {
                let _ = writeln!(stay, "{} ({}): {why}", case.name, case.operator);
            }
            Verdict::Wrong(why) => {
                let _ = writeln!(wrong, "{} ({}): {why}", case.name, case.operator);
            }
        }
        if let Some(complaint) = complaint(&device) {
            panic!("{}: {complaint}", case.name);
        }
    }
    println!("{passed} passed; on the CPU:\n{stay}\nwrong:\n{wrong}");
    assert!(wrong.is_empty(), "wrong:\n{wrong}");
    if only.is_none() {
        insta::assert_snapshot!(stay);
    }
}

/// Runs a model once with all that can on the GPU; every output within 1e-4 of the reference.
fn check_model(name: &str) {
    let _turn = turn();
    let Some(dir) = data::file("models") else {
        return;
    };
    let Some(device) = open(true, &VulkanOptions::default()) else {
        return;
    };
    let registry = zbmd_backends::standard_registry();
    // As a compilation for a machine with a GPU has it.
    let mut compile = CompileOptions::default();
    compile.skipped_passes.push("channels-last".to_owned());
    let (graph, blobs) = graph_of_file(dir.join(format!("{name}.onnx")), &compile)
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let left = left(&graph, &blobs, &registry, &device);
    assert!(left.is_empty(), "{name}: on the CPU: {left:?}");
    let (inputs, outputs) = (model_inputs(&dir, name, &graph), model_outputs(&dir, name));
    assert_eq!(
        outputs.len(),
        graph.sinks().count(),
        "{name}: outputs of the reference"
    );
    let sinks = graph.sinks().map(|(_, sink)| sink.name.as_str());
    let outputs: BTreeMap<&str, Vec<u8>> = sinks.zip(outputs.into_iter().map(|o| o.1)).collect();
    let mut seen = 0;
    for sent in on_gpu(&device, (&graph, &blobs), &registry, &inputs, 1) {
        for sink in &sent.sinks {
            let (got, want) = (
                to_f64(&sent.got, sent.dtype),
                to_f64(&outputs[sink.as_str()], sent.dtype),
            );
            let error = relative_error(&got, &want);
            println!("{name} {sink}: {error:.2e}, {} actors", graph.actors.len());
            assert!(
                error <= 1e-4,
                "{name}, output {sink}: relative error {error:.2e}"
            );
            seen += 1;
        }
    }
    assert_eq!(seen, outputs.len(), "{name}: outputs that the GPU made");
    assert_eq!(complaint(&device), None);
}

#[test]
fn mnist_runs_on_the_gpu() {
    check_model("mnist");
}

#[test]
fn bert_tiny_runs_on_the_gpu() {
    check_model("bert_tiny");
}

#[test]
fn llama_block_decode_runs_on_the_gpu() {
    check_model("llama_block_decode");
}

/// Speech probabilities of the first frames of the shared recording, the state of the detector on the GPU.
#[test]
fn silero_vad_runs_on_the_gpu() {
    let _turn = turn();
    const FRAMES: usize = 24;
    let (Some(detector), Some(wav)) = (
        data::file("models/silero_vad.onnx"),
        data::file("audio/speech16k.wav"),
    ) else {
        return;
    };
    let Some(device) = open(true, &VulkanOptions::default()) else {
        return;
    };
    let registry = actors::registry();
    let detector = std::path::absolute(detector)
        .expect("a path")
        .display()
        .to_string();
    let mut options = CompileOptions {
        registry: registry.clone(),
        machine: MachineChoice::Uniform(1),
        params: [("detector".to_owned(), format!("{detector:?}"))]
            .into_iter()
            .collect(),
        ..CompileOptions::default()
    };
    options.skipped_passes.push("pack-weights".to_owned());
    let compiled = compile_file(graph_file("vad/model.ron"), &options)
        .unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let program = &compiled.program;
    let left = left(&program.graph, &program.blobs, &registry, &device);
    let ops: Vec<&str> = left.iter().map(|(op, _)| op.as_str()).collect();
    assert_eq!(ops, ["Custom"], "{left:?}");
    let pcm = std::fs::read(wav).expect("readable")[44..][..1024 * FRAMES].to_vec();
    let want = std::fs::read(data::file("audio/speech16k.vad.npy").expect("beside the audio"));
    let want = read_npy(&want.expect("readable").into())
        .expect("an array")
        .data
        .to_vec();
    let inputs: Streams = [("pcm".to_owned(), pcm)].into_iter().collect();
    let graph = (&program.graph, &program.blobs);
    let sent = on_gpu(&device, graph, &registry, &inputs, FRAMES as u64);
    let prob = sent
        .iter()
        .find(|s| s.sinks.iter().any(|n| n == "prob"))
        .expect("probabilities");
    let (got, want) = (to_f64(&prob.got, DType::F32), to_f64(&want, DType::F32));
    assert_eq!(got.len(), FRAMES);
    let worst = got
        .iter()
        .zip(&want)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max);
    println!("silero_vad: largest distance {worst:.2e}");
    assert!(worst <= 1e-3, "{worst}");
    assert_eq!(complaint(&device), None);
}

/// Models that take minutes on a driver without a GPU. On a GPU, or with patience:
/// `cargo test --release -p zbmd-tests --test gpu_calendars vulkan_onnx -- --ignored --nocapture`.
#[test]
#[ignore = "minutes on lavapipe"]
fn larger_models_run_on_the_gpu() {
    let _turn = turn();
    let only = std::env::var("ZBMD_CASE").ok();
    for name in [
        "light_squeezenet",
        "light_shufflenet",
        "mobilenet_v2",
        "light_resnet50",
        "light_inception_v1",
        "light_zfnet512",
    ] {
        if only.as_ref().is_none_or(|o| name.contains(o.as_str())) {
            check_model(name);
        }
    }
}
