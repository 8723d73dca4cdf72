//! What the executor's tests share: ops that depend on every bit they may see, running a session to its end, and the
//! command with these ops.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod case;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use zbmd_backends::interpret::Interpreter;
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{Op, OpDoc, OpError, Registry, ResolveCx, ResolvedOp, Signature};
use zbmd_executor::{Engine, Outcome, RunError, RunOptions, Session};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{
    Actor, ActorCost, ActorId, BlobId, ChannelId, Contingencies, Costs, DeviceId, InPlace, Link,
    Plan, Program, TiSlice, TiVec,
};
use zbmd_scheduler::{Block, ScheduleOptions, schedule};

pub(crate) type Streams = BTreeMap<String, Vec<u8>>;

/// Mixes all windows and the state into every output, in order, so that any token that is lost, repeated, late or
/// changed changes all that follows.
pub(crate) struct Mix {
    /// Rate and window of each input, rate of each output, without states.
    inputs: Vec<(usize, usize)>,
    outputs: Vec<usize>,
    states: usize,
    /// What may lie over what; such actors have no states.
    in_place: Vec<InPlace>,
}

impl Mix {
    pub(crate) fn of(actor: &Actor) -> Self {
        let inputs = actor.inputs.iter().enumerate();
        let outputs = actor.outputs.iter().enumerate();
        Self {
            inputs: inputs
                .filter(|(i, _)| actor.state_of_input(*i as u32).is_none())
                .map(|(_, p)| (p.rate as usize, p.window as usize))
                .collect(),
            outputs: outputs
                .filter(|(o, _)| actor.state_of_output(*o as u32).is_none())
                .map(|(_, p)| p.rate as usize)
                .collect(),
            states: actor.state.len(),
            in_place: actor.in_place.clone(),
        }
    }

    /// An input's windows, from wherever they lie.
    fn window(&self, io: &Io<'_>, i: usize, outputs: &[&mut [f32]]) -> Vec<f32> {
        let (rate, window) = self.inputs[i];
        let size = (io.firings() - 1) * rate + window;
        let mut tokens = vec![None; size];
        let pairs = self.in_place.iter().filter(|p| p.input as usize == i);
        for pair in pairs.filter(|p| io.shares(i, p.output as usize)) {
            let (at, output) = (pair.at_bytes as usize / 4, &outputs[pair.output as usize]);
            match output.len() >= size {
                true => tokens = output[at..at + size].iter().copied().map(Some).collect(),
                false => (0..output.len()).for_each(|k| tokens[at + k] = Some(output[k])),
            }
        }
        let read = |k: usize| {
            let bytes = io.part_bytes(i, 4 * k..4 * (k + 1));
            f32::from_le_bytes(bytes.try_into().expect("four bytes"))
        };
        tokens
            .iter()
            .enumerate()
            .map(|(k, token)| token.unwrap_or_else(|| read(k)))
            .collect()
    }
}

impl Kernel for Mix {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let mut outputs: Vec<&mut [f32]> = (0..self.outputs.len()).map(|o| io.output(o)).collect();
        let windows: Vec<Vec<f32>> = (0..self.inputs.len())
            .map(|i| self.window(io, i, &outputs))
            .collect();
        let mut states: Vec<&mut [f32]> = (0..self.states).map(|s| io.state(s)).collect();
        for firing in 0..io.firings() {
            let mut sum = 0.125;
            for (window, &(rate, size)) in windows.iter().zip(&self.inputs) {
                for (w, x) in window[firing * rate..firing * rate + size]
                    .iter()
                    .enumerate()
                {
                    sum = sum * 0.75 + x * (1.0 + w as f32);
                }
            }
            for state in &mut states {
                sum = 0.5 * sum + 0.25 * state[0];
                state[0] = sum;
            }
            for (output, &rate) in outputs.iter_mut().zip(&self.outputs) {
                for (k, y) in output[firing * rate..(firing + 1) * rate]
                    .iter_mut()
                    .enumerate()
                {
                    *y = 0.5 * sum + k as f32;
                }
            }
        }
        Ok(())
    }
}

/// Makes a kernel for an actor.
type Make = Box<dyn Fn(&Actor) -> Arc<dyn Kernel> + Send + Sync>;

/// An op whose kernels come from a closure. It resolves nothing: tests build graphs by hand.
pub(crate) struct TestOp(pub(crate) &'static str, pub(crate) Make);

impl Op for TestOp {
    fn name(&self) -> &str {
        self.0
    }

    fn doc(&self) -> OpDoc {
        OpDoc {
            summary: "for tests",
            params: &[],
            ports: "any",
            example: "",
        }
    }

    fn resolve(&self, _: &ResolveCx<'_>) -> Result<ResolvedOp, OpError> {
        let message = "tests resolve no models".to_owned();
        Err(OpError::Other {
            message,
            help: String::new(),
        })
    }

    fn resolve_actor(
        &self,
        actor: &Actor,
        _: &TiSlice<BlobId, Bytes>,
    ) -> Option<Result<ResolvedOp, OpError>> {
        let kernel = (self.1)(actor);
        let resolved = ResolvedOp::of_shared_kernel(Signature::default(), kernel);
        Some(Ok(resolved.with_in_place_pairs(actor.in_place.clone())))
    }
}

/// All ops of the hand-built programs are [`Mix`].
pub(crate) fn registry() -> Registry {
    let mut registry = Registry::empty();
    for name in ["Up", "Fir", "Add", "Mul", "Gain", "Acc", "Split", "Join"] {
        registry.add(TestOp(name, Box::new(|actor| Arc::new(Mix::of(actor)))));
    }
    registry
}

pub(crate) fn verified(program: Program) -> Verified<Program> {
    verify(program).unwrap_or_else(|errors| panic!("refused: {errors:#?}"))
}

/// The scheduler's plan for blocks of that size, every firing costing the same everywhere.
fn planned(program: &Program, block: u64, name: &str) -> Plan {
    planned_with(program, block, name, BTreeMap::new())
}

fn planned_with(
    program: &Program,
    block: u64,
    name: &str,
    pins: BTreeMap<ActorId, DeviceId>,
) -> Plan {
    let devices = program.machine.devices.len();
    let cost = ActorCost {
        call_ps: 1000,
        firing_ps: 1000,
        scratch_bytes: 0,
    };
    let row: TiVec<DeviceId, _> = vec![Some(cost); devices].into();
    let costs = Costs {
        table: program.graph.actors.iter().map(|_| row.clone()).collect(),
    };
    let options = ScheduleOptions {
        block: Block::Fixed(block),
        pins,
        ..ScheduleOptions::default()
    };
    let plans = schedule(&program.graph, &program.machine, &costs, &options).expect("schedulable");
    let mut plan = plans.into_iter().next().expect("one plan");
    plan.name = name.to_owned();
    plan
}

/// Adds a plan `tail` with blocks of one iteration, made by the scheduler, for the whole machine: contingencies, which
/// would need tails of their own, are left out.
pub(crate) fn with_tail(mut program: Program) -> Program {
    program.contingencies = Contingencies::default();
    program.plans.push(planned(&program, 1, "tail"));
    program
}

/// The program with a plan of its own for blocks of so many iterations, and nothing else.
pub(crate) fn replanned(mut program: Program, block: u64) -> Program {
    program.contingencies = Contingencies::default();
    program.plans = vec![planned(&program, block, "main")].into();
    program
}

/// `in` -> an actor that takes 3 tokens and gives 2 -> `out`, in blocks of 4 iterations, with a tail.
pub(crate) fn three_to_two() -> Program {
    let mut program = zbmd_ir::testing::programs::window();
    let fir = program.graph.find("fir").expect("its filter");
    let actor = &mut program.graph.actors[fir];
    (actor.inputs[0].rate, actor.outputs[0].rate) = (3, 2);
    program.graph.channels[ChannelId(0)].readers[0].delay = 0;
    program.graph.channels[ChannelId(0)].initial.clear();
    let main = planned(&program, 4, "main");
    program.plans = vec![main].into();
    with_tail(program)
}

/// The same actor on a GPU of that name, its source and sink on a CPU device.
pub(crate) fn on_a_gpu(name: &str) -> Program {
    let mut program = three_to_two();
    let mut gpu = program.machine.devices[DeviceId(0)].clone();
    let backend = name.split(':').next().unwrap_or(name);
    (gpu.name, gpu.backend) = (name.to_owned(), backend.into());
    program.machine.devices = vec![program.machine.devices[DeviceId(0)].clone(), gpu].into();
    let link = |from, to| Link {
        from,
        to,
        bytes_per_s: 1_000_000_000,
        latency_ns: 5,
    };
    let (here, there) = (DeviceId(0), DeviceId(1));
    program.machine.links = [link(here, there), link(there, here)].into_iter().collect();
    let on = |(id, actor): (ActorId, &Actor)| {
        (
            id,
            if actor.role == zbmd_ir::Role::Compute {
                there
            } else {
                here
            },
        )
    };
    let pins = program.graph.actors.iter_enumerated().map(on).collect();
    program.plans = vec![planned_with(&program, 4, "main", pins)].into();
    program
}

/// Bytes of f32 tokens for `firings` firings of each source, different for each.
pub(crate) fn inputs(program: &Program, firings: u64) -> Streams {
    let source = |(id, actor): (zbmd_ir::ActorId, &Actor)| {
        let value = |i: u64| ((i * 7 + id.0 as u64 * 13) % 31) as f32 - 15.0;
        let tokens = 0..firings * actor.outputs[0].rate;
        (
            actor.name.clone(),
            tokens.flat_map(|i| value(i).to_le_bytes()).collect(),
        )
    };
    program.graph.sources().map(source).collect()
}

/// Firings of a program's first source in an iteration.
pub(crate) fn source_firings(program: &Program) -> u64 {
    let firings = zbmd_ir::verify::check_graph(&program.graph, &program.blobs);
    let (source, _) = program.graph.sources().next().expect("a source");
    firings.expect("a graph of a verified program")[source]
}

/// Pushes all input in odd pieces, pulls all output, and waits for the end.
pub(crate) fn drive(
    mut session: Session,
    inputs: &Streams,
    sinks: &[String],
) -> (Streams, Result<Outcome, RunError>) {
    std::thread::scope(|scope| {
        for (name, bytes) in inputs {
            let mut source = session.source(name).expect("a source");
            scope.spawn(move || {
                for piece in bytes.chunks(4 * 5) {
                    // Refused after the last iteration, or after a fault: `join` tells.
                    if source.push_bytes(piece).is_err() {
                        break;
                    }
                }
            });
        }
        let mut pulls = Vec::new();
        for name in sinks {
            let mut sink = session.sink(name).expect("a sink");
            let pull = move || {
                let mut all = Vec::new();
                let mut piece = [0; 4 * 7];
                while let Ok(tokens @ 1..) = sink.pull_some_bytes(&mut piece) {
                    all.extend_from_slice(&piece[..tokens as usize * 4]);
                }
                all
            };
            pulls.push((name.clone(), scope.spawn(pull)));
        }
        let outcome = session.join();
        let outputs = pulls
            .into_iter()
            .map(|(n, p)| (n, p.join().expect("no panic")))
            .collect();
        (outputs, outcome)
    })
}

pub(crate) fn sinks(program: &Program) -> Vec<String> {
    program.graph.sinks().map(|(_, a)| a.name.clone()).collect()
}

pub(crate) fn run(
    engine: &Engine,
    options: RunOptions,
    inputs: &Streams,
) -> (Streams, Result<Outcome, RunError>) {
    let session = engine.start(options).expect("starts");
    drive(session, inputs, &sinks(engine.program()))
}

pub(crate) fn interpreter(program: &Program) -> Interpreter {
    Interpreter::new(&program.graph, &program.blobs, &registry()).expect("a valid graph")
}

/// The example `mix_run`, which cargo builds next to the tests.
pub(crate) fn runner() -> PathBuf {
    let here = std::env::current_exe().expect("a path");
    let target = here
        .parent()
        .and_then(Path::parent)
        .expect("target/profile/deps/test");
    target
        .join("examples")
        .join(format!("mix_run{}", std::env::consts::EXE_SUFFIX))
}

/// What a command wrote.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
