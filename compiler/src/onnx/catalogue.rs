//! What the catalogue makes of a node: its parameters, its signature, its value where it is constant.

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_backends::TensorOp;
use zbmd_backends::call::Call;
use zbmd_backends::op::{OpError, Registry, ResolveCx, Signature};
use zbmd_ir::{Actor, Params, Role, Value};

use super::graph::{Graph, Origin, ValueId};

/// Scratch memory for computing a constant.
const MAX_SCRATCH: usize = 1 << 28;

/// All parameters of a node: its own, and its constant operands.
pub(super) fn full_params(
    graph: &Graph,
    op: &'static TensorOp,
    params: &Params,
    inputs: &[Option<ValueId>],
) -> Params {
    let mut all = params.clone();
    for (position, id) in inputs.iter().enumerate() {
        let (Some(id), Some((_, name))) = (*id, op.input(position)) else {
            continue;
        };
        if let Origin::Constant(blob) = graph.values[graph.root(id)].origin {
            all.insert(name, Value::Tensor(blob, graph.values[id].ty.clone()));
        }
    }

    all
}

/// The signature of a tensor op with these operands.
pub(super) fn resolve(
    graph: &Graph,
    registry: &Registry,
    op: &'static TensorOp,
    params: &Params,
    inputs: &[Option<ValueId>],
) -> Result<Signature, OpError> {
    let all = full_params(graph, op, params, inputs);
    let mut connected = Vec::new();
    let mut types = BTreeMap::new();
    for (position, id) in inputs.iter().enumerate() {
        let (Some(id), Some((_, name))) = (*id, op.input(position)) else {
            continue;
        };
        if graph.data(id).is_none() {
            connected.push(name.clone());
            types.insert(name, graph.values[id].ty.clone());
        }
    }

    let cx = ResolveCx {
        params: &all,
        connected: &connected,
        types: &types,
        blobs: &graph.blobs,
    };
    // Values that are folded may be empty on their way; what becomes an actor is resolved again.
    registry.resolve_any_size(op.name, &cx)
}

/// A tensor op with its operands as an actor without a name.
pub(super) fn actor_of(
    graph: &Graph,
    op: &'static TensorOp,
    params: &Params,
    inputs: &[Option<ValueId>],
    signature: Signature,
) -> Actor {
    Actor {
        name: String::new(),
        role: Role::Compute,
        op: op.name.to_owned(),
        params: full_params(graph, op, params, inputs),
        inputs: signature.inputs,
        outputs: signature.outputs,
        state: Vec::new(),
        in_place: Vec::new(),
    }
}

/// The outputs of a tensor op without ports, computed by its kernel.
pub(super) fn compute(
    graph: &Graph,
    registry: &Registry,
    op: &'static TensorOp,
    params: &Params,
    inputs: &[Option<ValueId>],
    signature: Signature,
) -> Result<Vec<Bytes>, OpError> {
    let actor = actor_of(graph, op, params, inputs, signature);

    let kernel = registry.kernel(&actor, &graph.blobs)?;
    if kernel.scratch_bytes() > MAX_SCRATCH {
        let message = format!(
            "needs {} bytes of memory to be computed",
            kernel.scratch_bytes()
        );
        return Err(OpError::Other {
            message,
            help: "smaller windows or padding".to_owned(),
        });
    }

    let mut call = Call::new(&actor, kernel.scratch_bytes(), 1);
    let fault = |f: zbmd_backends::kernel::KernelFault| OpError::Other {
        message: f.to_string(),
        help: String::new(),
    };
    call.run(&*kernel).map_err(fault)?;
    Ok((0..actor.outputs.len())
        .map(|o| Bytes::copy_from_slice(call.output(o)))
        .collect())
}
