//! Calendars of Vulkan devices beside the interpreter: whole graphs, with the other devices played by hand. The
//! validation layers, synchronization included, must have nothing to say.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbmd_backends::op::Registry;
use zbmd_backends::vulkan::{Device, Instance, OpenError, Options, Replay};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{Contingencies, Costs, DType, DeviceId, Plan, PlanId, Program, RingId, State};
use zbmd_scheduler::{Block, schedule};
use zbmd_tests::gpu::{Player, machine, tokens};
use zbmd_tests::run::{Streams, compile, random_inputs};

const GPU: DeviceId = DeviceId(1);

/// The first device, with the layers on; `None`, loudly, without one unless `ZBMD_REQUIRE` names `vulkan`.
fn device() -> Option<Arc<Device>> {
    let required = std::env::var("ZBMD_REQUIRE").is_ok_and(|r| r.split(',').any(|w| w == "vulkan"));
    let opened = Instance::load(true).map_err(OpenError::from).and_then(|instance| {
        let listed = instance.find("vulkan:0")?;
        Device::open(&instance, &listed, &Options::default())
    });
    match opened {
        Ok(device) => Some(device),
        Err(error) if required => panic!("ZBMD_REQUIRE names vulkan, but {error}"),
        Err(error) => {
            eprintln!("SKIPPED, no Vulkan device: {error}");
            None
        }
    }
}

/// A model for a CPU and a GPU: every actor that has a kernel there, and that `on_gpu` wants there, on the GPU.
fn program(
    model: &str,
    registry: &Registry,
    block: Block,
    on_gpu: fn(usize) -> bool,
) -> Verified<Program> {
    let compiled = compile(model, 1, registry);
    let (graph, blobs) = (compiled.program.graph.clone(), compiled.program.blobs.clone());
    let machine = machine();
    let cost = |a| machine.devices.iter().map(|d| registry.cost(a, d, &blobs)).collect();
    let costs = Costs { table: graph.actors.iter().map(cost).collect() };
    let pins = costs.table.iter_enumerated().map(|(id, row)| {
        let gpu = row[GPU].is_some() && on_gpu(id.index());
        (id, if gpu { GPU } else { DeviceId(0) })
    });
    let options = zbmd_scheduler::Options { block, pins: pins.collect(), ..Default::default() };
    let plans = schedule(&graph, &machine, &costs, &options).expect("a schedule");
    let contingencies = Contingencies::default();
    let program = Program { graph, machine, plans: plans.into(), contingencies, blobs };
    verify(program).unwrap_or_else(|e| panic!("{model}: {e:?}"))
}

/// Values of floats and complex numbers; other elements as their bytes.
fn values(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 | DType::C32 => bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into())
            .collect(),
        DType::F64 => bytes
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes(b.try_into().expect("eight")))
            .collect(),
        _ => bytes.iter().map(|b| f64::from(*b)).collect(),
    }
}

/// Largest difference as a share of the largest value.
fn distance(dtype: DType, got: &[u8], want: &[u8]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (got, want) = (values(dtype, got), values(dtype, want));
    let scale = want.iter().fold(1e-30, |m: f64, v| m.max(v.abs()));
    got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max) / scale
}

struct Case<'a> {
    program: &'a Program,
    plan: &'a Plan,
    registry: &'a Registry,
}

impl Case<'_> {
    fn replay(&self, device: &Arc<Device>, player: &mut Player<'_>) -> Replay {
        let calendar = self.plan.calendars.iter().find(|c| c.device == GPU).expect("a calendar");
        let regions = player.host_regions();
        Replay::new(device, self.registry, self.program, self.plan, calendar, &regions)
            .unwrap_or_else(|e| panic!("{e}"))
    }

    /// What every ring has carried, and the state that is left on the GPU, beside the interpreter's.
    fn check(
        &self,
        device: &Arc<Device>,
        inputs: &Streams,
        blocks: u64,
        lazy: bool,
        tolerance: f64,
    ) {
        let iterations = blocks * self.plan.block;
        let (tokens, want) = tokens(self.program, self.registry, inputs, iterations);
        let mut player = Player::new(self.program, self.plan, GPU, &tokens, lazy);
        let mut replay = self.replay(device, &mut player);
        let mut state = State::initial(&self.program.graph);
        replay.load_state(&state).expect("a state");
        player.run(&mut replay, blocks).expect("a run");
        let sent: &BTreeMap<RingId, Vec<u8>> = &player.sent;
        assert!(!sent.is_empty() || self.plan.rings.iter().all(|r| r.from != GPU));
        for (ring, bytes) in sent {
            let channel = self.plan.rings[*ring].channel;
            let dtype = self.program.graph.channels[channel].token.dtype;
            let off = distance(dtype, bytes, &tokens[channel]);
            assert!(off <= tolerance, "{ring} ({channel}): off by {off:e}");
        }
        replay.save_state(blocks, &mut state).expect("a state");
        for buffer in self.plan.buffers.iter().filter(|b| b.device == GPU && b.head_tokens > 0) {
            let dtype = self.program.graph.channels[buffer.channel].token.dtype;
            let len =
                buffer.head_tokens * self.program.graph.channels[buffer.channel].token.bytes();
            let last = |s: &State| {
                let tokens = &s.channels[buffer.channel];
                tokens[tokens.len() - len as usize..].to_vec()
            };
            let off = distance(dtype, &last(&state), &last(&want));
            assert!(off <= tolerance, "state of {}: off by {off:e}", buffer.channel);
        }
        let messages = device.instance().messages();
        assert!(messages.is_empty(), "{} messages, the first: {}", messages.len(), messages[0]);
    }
}

/// Tame noise for sources of floats; bytes for the rest.
fn inputs(program: &Program, iterations: u64) -> Streams {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut inputs = random_inputs(program, iterations, 5);
    for (_, source) in program.graph.sources() {
        if matches!(source.outputs[0].token.dtype, DType::F32 | DType::C32) {
            for word in inputs.get_mut(&source.name).expect("its bytes").chunks_exact_mut(4) {
                word.copy_from_slice(&(rng.f32() - 0.5).to_le_bytes());
            }
        }
    }
    inputs
}

#[test]
fn models_run_on_the_gpu_as_in_the_interpreter() {
    let Some(device) = device() else { return };
    let registry = Registry::standard();
    let every: fn(usize) -> bool = |_| true;
    let some: fn(usize) -> bool = |i| i % 2 == 0;
    for (model, block, on_gpu, blocks, tolerance) in [
        ("cd2dat/model.ron", Block::Fixed(2), every, 5, 1e-5),
        ("cd2dat/model.ron", Block::Fixed(1), some, 7, 1e-5),
        ("fm/model.ron", Block::Fixed(40), every, 5, 1e-5),
        ("fm/model.ron", Block::Fixed(7), some, 9, 1e-5),
        ("agc/model.ron", Block::Fixed(16), every, 4, 1e-5),
        ("pll/model.ron", Block::Fixed(8), every, 6, 1e-4),
    ] {
        let program = program(model, &registry, block, on_gpu);
        let plan = &program.plans[PlanId(0)];
        let case = Case { program: &program, plan, registry: &registry };
        let inputs = inputs(&program, blocks * plan.block);
        println!("{model}: {} stages, {} rings", plan.stages, plan.rings.len());
        for lazy in [false, true] {
            case.check(&device, &inputs, blocks, lazy, tolerance);
        }
    }
}
