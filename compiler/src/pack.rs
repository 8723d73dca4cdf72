//! Weights in the order of the CPU's kernels, so that a run maps them and holds no second copy.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;
use zbmd_backends::op::Registry;
use zbmd_ir::{ActorId, BlobId, Graph, Machine, Plan, Role, TiVec, Value};

/// The pass, for [`crate::onnx::ImportOptions::without`].
pub(crate) const NAME: &str = "pack-weights";
pub(crate) const SUMMARY: &str = "weights lie in the bundle in the order of the CPU's kernels";

/// Packs the weights of all actors that no plan places on a GPU, and takes away the blobs that nobody names any more;
/// how many actors that were.
pub(crate) fn pack(
    registry: &Registry,
    graph: &mut Graph,
    machine: &Machine,
    plans: &[Plan],
    blobs: &mut TiVec<BlobId, Bytes>,
) -> usize {
    let on_cpu = |id: ActorId| {
        plans
            .iter()
            .all(|p| machine.devices[p.placement[id]].backend == "cpu")
    };
    let mut readers: BTreeMap<BlobId, usize> = BTreeMap::new();
    for actor in &graph.actors {
        actor
            .params
            .values()
            .for_each(|v| named(v, &mut |blob| *readers.entry(blob).or_default() += 1));
    }
    // Replicas have the same weights.
    let mut known: BTreeMap<u128, BlobId> = BTreeMap::new();
    let mut packed = 0;
    for (id, actor) in graph.actors.iter_mut_enumerated() {
        if actor.role != Role::Compute || !on_cpu(id) {
            continue;
        }
        let Some(packing) = registry.op(&actor.op).and_then(|op| op.pack(actor, blobs)) else {
            continue;
        };
        if let Some(Value::Tensor(old, _)) = actor.params.get(&packing.operand) {
            let left = readers.entry(*old).or_default();
            *left = left.saturating_sub(1);
            if *left == 0 {
                // Large models are packed one tensor at a time: what is packed must not stay.
                blobs[*old] = Bytes::new();
            }
        }
        let key = xxh3_128(&packing.weights);
        let new = || blobs.push_and_get_key(packing.weights.clone());
        let blob = *known.entry(key).or_insert_with(new);
        packing.put(&mut actor.params, blob);
        packed += 1;
    }
    if packed > 0 {
        renumber(graph, blobs);
    }
    packed
}

/// Calls `f` with every blob that a value names.
fn named(value: &Value, f: &mut impl FnMut(BlobId)) {
    match value {
        Value::Tensor(blob, _) => f(*blob),
        Value::List(list) => list.iter().for_each(|v| named(v, f)),
        Value::Map(map) => map.values().for_each(|v| named(v, f)),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) => {}
    }
}

/// Gives every blob that a value names its new number.
fn rename(value: &mut Value, to: &BTreeMap<BlobId, BlobId>) {
    match value {
        Value::Tensor(blob, _) => *blob = to[blob],
        Value::List(list) => list.iter_mut().for_each(|v| rename(v, to)),
        Value::Map(map) => map.values_mut().for_each(|v| rename(v, to)),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) => {}
    }
}

/// Keeps the blobs that somebody names, in their order.
fn renumber(graph: &mut Graph, blobs: &mut TiVec<BlobId, Bytes>) {
    let mut used = BTreeSet::new();
    for actor in &graph.actors {
        actor
            .params
            .values()
            .for_each(|v| named(v, &mut |blob| _ = used.insert(blob)));
    }
    let numbers = used
        .iter()
        .enumerate()
        .map(|(new, old)| (*old, BlobId::from(new)))
        .collect();
    for actor in &mut graph.actors {
        actor.params.values_mut().for_each(|v| rename(v, &numbers));
    }
    *blobs = used
        .into_iter()
        .map(|old| std::mem::take(&mut blobs[old]))
        .collect();
}
