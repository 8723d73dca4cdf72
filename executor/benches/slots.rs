//! What a slot costs besides its kernel: a chain of empty actors on one device, against a loop of virtual calls.
//!
//! `cargo bench -p zbmd-executor --bench slots`

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{Op, OpDoc, OpError, Registry, ResolveCx, Signature};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::verify::verify;
use zbmd_ir::{
    Actor, ActorCost, ActorId, BlobId, Channel, ChannelId, Costs, DType, Device, Endpoint, Graph,
    InPort, Machine, OutPort, Params, PlanId, Program, Reader, Role, TiSlice, TiVec, TokenType,
};
use zbmd_scheduler::{Block, Options, schedule};

const ACTORS: usize = 1000;
const PERIODS: u64 = 20_000;

struct Empty;

impl Kernel for Empty {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        std::hint::black_box(io.firings());
        Ok(())
    }
}

struct EmptyOp;

impl Op for EmptyOp {
    fn name(&self) -> &str {
        "Empty"
    }

    fn doc(&self) -> OpDoc {
        OpDoc { summary: "nothing", params: &[], ports: "any", example: "" }
    }

    fn resolve(&self, _: &ResolveCx<'_>) -> Result<Signature, OpError> {
        Ok(Signature::default())
    }

    fn kernel(&self, _: &Actor, _: &TiSlice<BlobId, Bytes>) -> Result<Arc<dyn Kernel>, OpError> {
        Ok(Arc::new(Empty))
    }
}

fn chain() -> Program {
    let token = TokenType::scalar(DType::F32);
    let mut graph = Graph { name: "chain".into(), ..Graph::default() };
    for i in 0..ACTORS + 2 {
        let (name, role) = match i {
            0 => ("in".into(), Role::Source),
            n if n > ACTORS => ("out".into(), Role::Sink),
            n => (format!("empty{n}"), Role::Compute),
        };
        let input = InPort { name: "x".into(), token: token.clone(), rate: 1, window: 1 };
        let output = OutPort { name: "y".into(), token: token.clone(), rate: 1 };
        graph.actors.push(Actor {
            name,
            role,
            op: "Empty".into(),
            params: Params::new(),
            inputs: if role == Role::Source { vec![] } else { vec![input] },
            outputs: if role == Role::Sink { vec![] } else { vec![output] },
            state: vec![],
        });
    }
    for i in 0..=ACTORS as u32 {
        let end = |actor| Endpoint { actor: ActorId(actor), port: 0 };
        let readers = vec![Reader { to: end(i + 1), delay: 0 }];
        graph.channels.push(Channel {
            from: end(i),
            readers,
            token: token.clone(),
            initial: vec![],
        });
    }
    let cpu = Device {
        name: "cpu:0".into(),
        backend: "cpu".into(),
        cores: vec![],
        memory_bytes: 1 << 30,
        flops_per_s: 1_000_000_000,
        bytes_per_s: 1_000_000_000,
    };
    let machine = Machine { devices: vec![cpu].into(), links: TiVec::<_, _>::new() };
    let cost = ActorCost { call_ps: 2000, firing_ps: 100, scratch_bytes: 0 };
    let costs = Costs { table: graph.actors.iter().map(|_| vec![Some(cost)].into()).collect() };
    let options = Options { block: Block::Fixed(1), ..Options::default() };
    let plans = schedule(&graph, &machine, &costs, &options).expect("a chain");
    let mut main = plans.into_iter().next().expect("one plan");
    main.name = "main".into();
    assert_eq!(graph.channels.len(), ChannelId(ACTORS as u32 + 1).index());
    Program { graph, machine, plans: vec![main].into(), blobs: TiVec::new() }
}

fn main() {
    let kernels: Vec<Arc<dyn Kernel>> =
        (0..ACTORS).map(|_| Arc::new(Empty) as Arc<dyn Kernel>).collect();
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..PERIODS / 5 {
            for kernel in std::hint::black_box(&kernels) {
                #[expect(unsafe_code, reason = "the floor: a call with nothing prepared")]
                // SAFETY: no ports, no scratch.
                let mut io = unsafe { Io::new(1, &[], &[], &[], (std::ptr::null_mut(), 0)) };
                kernel.fire(&mut io).expect("empty");
            }
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (PERIODS / 5 * ACTORS as u64) as f64);
    }
    println!("plain loop of virtual calls   {best:6.2} ns a call");

    let mut registry = Registry::empty();
    registry.add(EmptyOp);
    let program = verify(chain()).expect("a valid plan");
    let slots: usize = program.plans[PlanId(0)].calendars[0].lanes[0].entries.len();
    let engine = Engine::new(program, &registry).expect("known");
    for sample_every in [0, 64] {
        let runs = (0..5).map(|_| run(&engine, sample_every) / slots as f64);
        let best = runs.fold(f64::INFINITY, f64::min);
        println!(
            "calendar of {slots} slots, sampled every {sample_every:3}   {best:6.2} ns a slot"
        );
    }
}

/// Nanoseconds of a period.
fn run(engine: &Engine, sample_every: u64) -> f64 {
    let options = RunOptions { sample_every, ..RunOptions::default() };
    let mut session = engine.start(options).expect("starts");
    let mut source = session.source("in").expect("a source");
    let feeder = std::thread::spawn(move || {
        let tokens = vec![1.0f32; PERIODS as usize / 5];
        source.push(&tokens).expect("open");
    });
    let outcome = session.join().expect("runs");
    feeder.join().expect("no panic");
    outcome.report.elapsed_ns as f64 / (PERIODS / 5) as f64
}
