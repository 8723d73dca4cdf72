//! Chains source -> n actors of one op -> sink, for benchmarks of what replay itself costs.

use std::sync::Arc;

use bytes::Bytes;
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::op::{Op, OpDoc, OpError, Registry, ResolveCx, Signature};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::*;
use zbmd_scheduler::{Block, Options, schedule};

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

struct Fixed<K>(&'static str, fn() -> K);

impl<K: Kernel + 'static> Op for Fixed<K> {
    fn name(&self) -> &str {
        self.0
    }

    fn doc(&self) -> OpDoc {
        OpDoc { summary: "for benchmarks", params: &[], ports: "one in, one out", example: "" }
    }

    fn resolve(&self, _: &ResolveCx<'_>) -> Result<Signature, OpError> {
        Err(OpError::Other { message: "for built graphs only".into(), help: String::new() })
    }

    fn kernel(&self, _: &Actor, _: &TiSlice<BlobId, Bytes>) -> Result<Arc<dyn Kernel>, OpError> {
        Ok(Arc::new(self.1()))
    }
}

/// A registry with `Empty` and `Saxpy`.
pub fn registry() -> Registry {
    let mut registry = Registry::empty();
    registry.add(Fixed("Empty", || Empty));
    registry.add(Fixed("Saxpy", || Saxpy));
    registry
}

/// The chain of `actors` actors of `op` on `devices` devices, in blocks of `block` tokens.
///
/// # Panics
/// If it has no valid plan.
pub fn program(op: &str, actors: u32, devices: usize, block: u64) -> Verified<Program> {
    let token = TokenType::scalar(DType::F32);
    let mut graph = Graph { name: format!("{actors} x {op}"), ..Graph::default() };
    for i in 0..actors + 2 {
        let role = match i {
            0 => Role::Source,
            n if n > actors => Role::Sink,
            _ => Role::Compute,
        };
        let input = InPort { name: "x".into(), token: token.clone(), rate: 1, window: 1 };
        let output = OutPort { name: "y".into(), token: token.clone(), rate: 1 };
        graph.actors.push(Actor {
            name: format!("n{i}"),
            role,
            op: op.into(),
            params: Params::new(),
            inputs: if role == Role::Source { vec![] } else { vec![input] },
            outputs: if role == Role::Sink { vec![] } else { vec![output] },
            state: vec![],
        });
    }
    for i in 0..=actors {
        let end = |actor| Endpoint { actor: ActorId(actor), port: 0 };
        let readers = vec![Reader { to: end(i + 1), delay: 0 }];
        graph.channels.push(Channel {
            from: end(i),
            readers,
            token: token.clone(),
            initial: vec![],
        });
    }
    let machine = machine(devices);
    let cost = ActorCost { call_ps: 2_000, firing_ps: 200, scratch_bytes: 0 };
    let costs =
        Costs { table: graph.actors.iter().map(|_| vec![Some(cost); devices].into()).collect() };
    let options = Options { block: Block::Fixed(block), ..Options::default() };
    let plans = schedule(&graph, &machine, &costs, &options).expect("a chain has a schedule");
    verify(Program { graph, machine, plans: plans.into(), blobs: TiVec::new() })
        .expect("it verifies")
}
