//! Chains source -> n actors of one op -> sink, for benchmarks of what replay itself costs.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use zbmd_backends::call::Call;
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{Op, OpDoc, OpError, Registry, ResolveCx, ResolvedOp, Signature};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::*;
use zbmd_scheduler::{Block, ScheduleOptions, schedule};

use crate::random::machine;

/// A kernel that does nothing.
#[derive(Debug)]
pub struct Empty;

impl Kernel for Empty {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        std::hint::black_box(io.firings());
        Ok(())
    }
}

/// `y = x * 1.0001 + 0.5` on `f32`, the work of the pipeline benchmarks of software-radio frameworks.
#[derive(Debug)]
pub struct Saxpy;

impl Kernel for Saxpy {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let x = io.input::<f32>(0);
        for (y, x) in io.output::<f32>(0).iter_mut().zip(x) {
            *y = *x * 1.0001 + 0.5;
        }
        Ok(())
    }
}

/// `y = 1`: a source inside the graph, as those benchmarks have one.
#[derive(Debug)]
pub struct Ones;

impl Kernel for Ones {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        io.output::<f32>(0).fill(1.0);
        Ok(())
    }
}

struct Fixed<K>(&'static str, fn() -> K);

impl<K: Kernel + 'static> Op for Fixed<K> {
    fn name(&self) -> &str {
        self.0
    }

    fn doc(&self) -> OpDoc {
        OpDoc {
            summary: "for benchmarks",
            params: &[],
            ports: "one in, one out",
            example: "",
        }
    }

    fn resolve(&self, _: &ResolveCx<'_>) -> Result<ResolvedOp, OpError> {
        Err(OpError::Other {
            message: "for built graphs only".into(),
            help: String::new(),
        })
    }

    fn resolve_actor(
        &self,
        _: &Actor,
        _: &TiSlice<BlobId, Bytes>,
    ) -> Option<Result<ResolvedOp, OpError>> {
        let kernel = Arc::new(self.1());
        let signature = Signature::default();
        Some(Ok(ResolvedOp::of_shared_kernel(signature, kernel)))
    }
}

/// A registry with `Empty`, `Saxpy` and `Ones`.
pub fn registry() -> Registry {
    let mut registry = Registry::empty();
    registry.add(Fixed("Empty", || Empty));
    registry.add(Fixed("Saxpy", || Saxpy));
    registry.add(Fixed("Ones", || Ones));
    registry
}

/// The least that a call of `firings` firings took, out of some.
fn measured(actor: &Actor, kernel: &dyn Kernel, firings: u64) -> ActorCost {
    let mut call = Call::new(actor, kernel.scratch_bytes(), firings as usize);
    let times = (0..32).map(|_| {
        let start = Instant::now();
        call.run(kernel).expect("no fault");
        start.elapsed()
    });
    let least = times.min().unwrap_or_default();
    ActorCost {
        call_ps: least.as_nanos() as u64 * 1_000,
        firing_ps: 0,
        scratch_bytes: 0,
    }
}

/// Where the tokens of a chain come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The embedding program pushes them to source `n0`.
    Pushed,
    /// An actor of op `Ones` makes them.
    Made,
}

/// The chain of `actors` actors of `op` on `devices` devices, in blocks of `block` tokens.
///
/// # Panics
/// If it has no valid plan.
pub fn program(
    start: Start,
    op: &str,
    actors: u32,
    devices: usize,
    block: u64,
) -> Verified<Program> {
    let token = TokenType::scalar(DType::F32);
    let mut graph = Graph {
        name: format!("{actors} x {op}"),
        ..Graph::default()
    };
    for i in 0..actors + 2 {
        let role = match i {
            0 if start == Start::Pushed => Role::Source,
            n if n > actors => Role::Sink,
            _ => Role::Compute,
        };
        let input = InPort {
            name: "x".into(),
            token: token.clone(),
            rate: 1,
            window: 1,
        };
        let output = OutPort {
            name: "y".into(),
            token: token.clone(),
            rate: 1,
        };
        graph.actors.push(Actor {
            name: format!("n{i}"),
            role,
            op: if i == 0 { "Ones" } else { op }.into(),
            params: Params::new(),
            inputs: if i == 0 { vec![] } else { vec![input] },
            outputs: if role == Role::Sink {
                vec![]
            } else {
                vec![output]
            },
            state: vec![],
            in_place: vec![],
        });
    }
    for i in 0..=actors {
        let end = |actor| Endpoint {
            actor: ActorId(actor),
            port: 0,
        };
        let readers = vec![Reader {
            to: end(i + 1),
            delay: 0,
        }];
        graph.channels.push(Channel {
            from: end(i),
            readers,
            token: token.clone(),
            initial: vec![],
        });
    }
    let mut machine = machine(devices);
    for (at, device) in machine.devices.iter_mut().enumerate() {
        device.cores = vec![at as u32];
    }
    let registry = registry();
    let costs = graph.actors.iter().map(|actor| {
        let cost = match actor.role {
            Role::Compute => {
                let kernel = registry
                    .kernel(actor, TiSlice::from_ref(&[]))
                    .expect("known ops");
                measured(actor, kernel.as_ref(), block)
            }
            Role::Source | Role::Sink => ActorCost {
                call_ps: 2_000,
                firing_ps: 0,
                scratch_bytes: 0,
            },
        };
        vec![Some(cost); devices].into()
    });
    let costs = Costs {
        table: costs.collect(),
    };
    let options = ScheduleOptions {
        block: Block::Fixed(block),
        ..ScheduleOptions::default()
    };
    let plans = schedule(&graph, &machine, &costs, &options).expect("a chain has a schedule");
    let plans = plans.into();
    verify(Program {
        graph,
        machine,
        plans,
        ..Program::default()
    })
    .expect("it verifies")
}
