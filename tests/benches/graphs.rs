//! `cd2dat` and `fm` by calendar on one device, beside the same kernels called from a hand-written loop over the same
//! blocks: what the calendar, the queues and the threads cost a real model.
#![expect(unsafe_code, reason = "the rival lends its own buffers to the kernels")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use zbmd_backends::kernel::{CallShape, Io, Kernel, RawPort, Scratch};
use zbmd_backends::op::Registry;
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::{Action, ActorId, ChannelId, Entry, PlanId, Program, Role, TiVec};
use zbmd_tests::run::compile;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A channel's memory: head, then the tokens of a block.
struct Memory {
    lines: Vec<Line>,
    head: usize,
    block: usize,
}

impl Memory {
    fn at(&mut self, byte: usize, bytes: usize, dtype: zbmd_ir::DType) -> RawPort {
        assert!(byte + bytes <= self.lines.len() * 64);
        // SAFETY: the offset was just checked to lie inside the allocation.
        let ptr = unsafe { self.lines.as_mut_ptr().cast::<u8>().add(byte) };
        RawPort { ptr, bytes, dtype }
    }
}

struct Step {
    kernel: Arc<dyn Kernel>,
    ports: Ports,
}

/// What somebody would write by hand for a graph without feedback: buffers, a list of calls, carried history.
struct HandLoop {
    steps: Vec<Step>,
    source: RawPort,
    sinks: Vec<RawPort>,
    memory: TiVec<ChannelId, Memory>,
    scratch: Vec<Line>,
    output: Vec<u8>,
}

impl HandLoop {
    fn new(program: &Program, registry: &Registry) -> Self {
        let (graph, plan) = (&program.graph, &program.plans[PlanId(0)]);
        let q = zbmd_scheduler::repetition(graph).expect("consistent");
        let mut memory: TiVec<ChannelId, Memory> = TiVec::new();
        for (id, channel) in graph.channels.iter_enumerated() {
            let token = channel.token.bytes() as usize;
            let rate = graph.actors[channel.from.actor].outputs[channel.from.port as usize].rate;
            let tokens = (q[channel.from.actor] * plan.block * rate) as usize;
            let block = if graph.is_state(id) {
                0
            } else {
                tokens * token
            };
            let head = channel.history() as usize * token;
            let mut m = Memory {
                lines: vec![Line([0; 64]); (head + block).div_ceil(64)],
                head,
                block,
            };
            for (i, byte) in channel.initial.iter().enumerate() {
                m.lines[i / 64].0[i % 64] = *byte;
            }
            memory.push(m);
        }
        let joined = graph.port_channels();
        let (mut steps, mut source, mut sinks, mut scratch) = (vec![], None, vec![], 0);
        for entry in &plan.calendars[0].lanes[0].entries {
            let Entry::Slot(slot) = entry else {
                panic!("the rival knows no loops")
            };
            let Action::Fire { actor, count, .. } = slot.action else {
                continue;
            };
            let ports = ports(program, &joined, &mut memory, actor, count);
            match graph.actors[actor].role {
                Role::Source => source = ports.row.first().copied(),
                Role::Sink => sinks.extend(ports.row),
                Role::Compute => {
                    let kernel = registry
                        .kernel(&graph.actors[actor], &program.blobs)
                        .expect("known ops");
                    scratch = scratch.max(kernel.scratch_bytes());
                    steps.push(Step { kernel, ports });
                }
            }
        }
        let scratch = vec![Line([0; 64]); scratch.div_ceil(64)];
        HandLoop {
            steps,
            source: source.expect("one source"),
            sinks,
            memory,
            scratch,
            output: Vec::new(),
        }
    }

    fn run(&mut self, input: &[u8]) {
        self.output.clear();
        for block in input.chunks_exact(self.source.bytes) {
            // SAFETY: the ports lie in `memory`, which lives as long, and nothing else touches it now.
            unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), self.source.ptr, block.len()) };
            for step in &self.steps {
                let scratch = Scratch(
                    self.scratch.as_mut_ptr().cast::<u8>(),
                    self.scratch.len() * 64,
                );
                // SAFETY: every port is its own stretch of `memory`; outputs and states belong to this step alone.
                let mut io =
                    unsafe { Io::new(&step.ports.shape, step.ports.row.as_ptr(), &scratch) };
                step.kernel.fire(&mut io).expect("no fault");
            }
            for sink in &self.sinks {
                // SAFETY: as above.
                self.output
                    .extend_from_slice(unsafe { std::slice::from_raw_parts(sink.ptr, sink.bytes) });
            }
            for m in self.memory.iter_mut().filter(|m| m.head > 0 && m.block > 0) {
                let bytes = m.lines.as_mut_ptr().cast::<u8>();
                // SAFETY: head + block bytes were allocated; `copy` allows overlap.
                unsafe { std::ptr::copy(bytes.add(m.block), bytes, m.head) };
            }
        }
    }
}

/// The ports of a call, as [`Io`] takes them.
struct Ports {
    row: Vec<RawPort>,
    shape: CallShape,
}

fn ports(
    program: &Program,
    joined: &zbmd_ir::PortChannels,
    memory: &mut TiVec<ChannelId, Memory>,
    id: ActorId,
    firings: u64,
) -> Ports {
    let (graph, actor) = (&program.graph, &program.graph.actors[id]);
    let (mut inputs, mut outputs, mut states) = (vec![], vec![], vec![]);
    for (port, to) in actor.inputs.iter().zip(&joined.inputs[id]) {
        let (channel, reader) = to.expect("connected");
        let token = port.token.bytes();
        let delay = graph.channels[channel].readers[reader as usize].delay * token;
        let span = ((firings - 1) * port.rate + port.window) * token;
        let m = &mut memory[channel];
        if graph.is_state(channel) {
            states.push(m.at(0, token as usize, port.token.dtype));
        } else {
            inputs.push(m.at(m.head - delay as usize, span as usize, port.token.dtype));
        }
    }
    for (port, from) in actor.outputs.iter().zip(&joined.outputs[id]) {
        let channel = from.expect("connected");
        if !graph.is_state(channel) {
            let bytes = firings * port.rate * port.token.bytes();
            let m = &mut memory[channel];
            outputs.push(m.at(m.head, bytes as usize, port.token.dtype));
        }
    }
    let shape = CallShape {
        firings: firings as usize,
        inputs: inputs.len() as u16,
        outputs: outputs.len() as u16,
        states: states.len() as u16,
        over: false,
    };
    Ports {
        row: [inputs, outputs, states].concat(),
        shape,
    }
}

fn model(c: &mut Criterion, name: &str, seconds: f64) {
    let registry = zbmd_backends::standard_registry();
    let compiled = compile(&format!("{name}/model.ron"), 1, &registry);
    let program = compiled.program;
    let (_, source) = program.graph.sources().next().expect("a source");
    let (token, source) = (
        source.outputs[0].token.bytes() as usize,
        source.name.clone(),
    );
    let mut hand = HandLoop::new(&program, &registry);
    let blocks = (seconds * 1e9 / program.plans[PlanId(0)].period_ns as f64)
        .ceil()
        .max(20.0) as usize;
    let mut rng = fastrand::Rng::with_seed(1);
    let floats = (0..blocks * hand.source.bytes / 4).flat_map(|_| (rng.f32() - 0.5).to_le_bytes());
    let input: Vec<u8> = floats.collect();
    let mut group = c.benchmark_group(name);
    group
        .throughput(Throughput::Elements((input.len() / token) as u64))
        .sample_size(20);
    group.measurement_time(Duration::from_secs(8));
    group.bench_function("hand-written loop", |b| b.iter(|| hand.run(&input)));
    let engine = Engine::new(program.clone(), &registry).expect("known ops");
    let sink = program.graph.sinks().next().expect("a sink").1.name.clone();
    group.bench_function("calendar, one device", |b| {
        b.iter_custom(|n| {
            let options = RunOptions {
                sample_every: 0,
                ..RunOptions::default()
            };
            let mut session = engine.start(options).expect("memory and threads");
            let mut feed = session.source(&source).expect("the source");
            let mut drain = session.sink(&sink).expect("the sink");
            let start = Instant::now();
            std::thread::scope(|scope| {
                let input = &input;
                scope.spawn(move || {
                    (0..n).for_each(|_| feed.push_bytes(input).expect("the run takes all"))
                });
                scope.spawn(move || {
                    let mut chunk = vec![0; 1 << 20];
                    while drain.pull_bytes(&mut chunk).expect("the run goes on") > 0 {}
                });
                session.join().expect("the run ends well");
            });
            start.elapsed()
        });
    });
    group.finish();
}

fn models(c: &mut Criterion) {
    model(c, "cd2dat", 0.02);
    model(c, "fm", 0.02);
}

criterion_group!(benches, models);
criterion_main!(benches);
