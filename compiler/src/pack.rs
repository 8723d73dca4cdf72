//! Weights in the order of the CPU's kernels, so that a run maps them and holds no second copy.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;
use zbmd_backends::op::{Packing, Registry};
use zbmd_ir::{Actor, ActorId, BlobId, Graph, Machine, Plan, Role, TiVec, TokenType, Value};

/// The pass, for [`crate::CompileOptions::skipped_passes`].
pub(crate) const NAME: &str = "pack-weights";
pub(crate) const SUMMARY: &str =
    "weights are stored in the bundle in the order of the CPU's kernels";

/// What is packed, and what decides whether it may be.
pub(crate) struct PackRequest<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) machine: &'a Machine,
    pub(crate) plans: &'a [Plan],
}

impl PackRequest<'_> {
    /// Packs the weights of all actors that no plan places on a GPU, and removes the blobs that no actor names any
    /// more; the number of actors packed.
    pub(crate) fn pack_weights(
        &self,
        graph: &mut Graph,
        blobs: &mut TiVec<BlobId, Bytes>,
    ) -> usize {
        let mut weight_blobs = WeightBlobs {
            reader_counts: count_readers(graph),
            packed: BTreeMap::new(),
            blobs,
        };

        let mut packed_actors = 0;
        for (id, actor) in graph.actors.iter_mut_enumerated() {
            if actor.role != Role::Compute || !self.runs_on_cpus(id) {
                continue;
            }
            // Actors with GPU kernels keep their weights: GPUs read them in the model's order.
            if let Some(packing) = self.registry.packing(actor, weight_blobs.blobs) {
                weight_blobs.replace(actor, &packing);
                packed_actors += 1;
            }
        }

        // Otherwise the numbers of blobs stay, and with them the bytes of the bundle.
        if packed_actors > 0 {
            drop_unnamed_blobs(graph, blobs);
        }
        packed_actors
    }

    fn runs_on_cpus(&self, actor: ActorId) -> bool {
        self.plans.iter().all(|plan| {
            let device = plan.placement[actor];
            self.machine.devices[device].backend.is_cpu()
        })
    }
}

/// The blobs of a graph while weights among them are replaced.
struct WeightBlobs<'a> {
    blobs: &'a mut TiVec<BlobId, Bytes>,
    /// How many parameters still name each blob.
    reader_counts: BTreeMap<BlobId, usize>,
    /// Blobs of packed weights by their contents: replicas have the same weights.
    packed: BTreeMap<u128, BlobId>,
}

impl WeightBlobs<'_> {
    /// Puts packed weights in the place of an actor's own.
    fn replace(&mut self, actor: &mut Actor, packing: &Packing) {
        if let Some(Value::Tensor(original, _)) = actor.params.get(&packing.operand) {
            self.release(*original);
        }

        let contents_hash = xxh3_128(&packing.weights);
        let blobs = &mut *self.blobs;

        // Equal weights are stored once, whichever actors they belong to.
        let packed_blob = self
            .packed
            .entry(contents_hash)
            .or_insert_with(|| blobs.push_and_get_key(packing.weights.clone()));
        packing.put(&mut actor.params, *packed_blob);
    }

    /// Counts one reader less. Large models are packed one tensor at a time, and never held twice: a blob is emptied as
    /// soon as nobody reads it.
    fn release(&mut self, blob: BlobId) {
        let reader_count = self.reader_counts.entry(blob).or_default();
        *reader_count = reader_count.saturating_sub(1);
        if *reader_count == 0 {
            self.blobs[blob] = Bytes::new();
        }
    }
}

fn count_readers(graph: &Graph) -> BTreeMap<BlobId, usize> {
    let mut reader_counts = BTreeMap::new();
    for value in graph.actors.iter().flat_map(|actor| actor.params.values()) {
        visit_blobs(value, &mut |blob| {
            *reader_counts.entry(blob).or_default() += 1
        });
    }
    reader_counts
}

/// Calls `visit` with every blob that a value names.
fn visit_blobs(value: &Value, visit: &mut impl FnMut(BlobId)) {
    visit_tensors(value, &mut |blob, _| visit(blob));
}

/// Calls `visit` with every tensor in a value.
pub(crate) fn visit_tensors(value: &Value, visit: &mut impl FnMut(BlobId, &TokenType)) {
    match value {
        Value::Tensor(blob, token) => visit(*blob, token),
        Value::List(items) => items.iter().for_each(|item| visit_tensors(item, visit)),
        Value::Map(items) => items.values().for_each(|item| visit_tensors(item, visit)),
        Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Str(_)
        | Value::Live(_)
        | Value::Gate(_) => {}
    }
}

/// Gives every blob that a value names its new number.
fn renumber_blobs(value: &mut Value, numbers: &BTreeMap<BlobId, BlobId>) {
    match value {
        Value::Tensor(blob, _) => *blob = numbers[blob],
        Value::List(items) => {
            for item in items {
                renumber_blobs(item, numbers);
            }
        }
        Value::Map(items) => {
            for item in items.values_mut() {
                renumber_blobs(item, numbers);
            }
        }
        Value::Bool(_)
        | Value::Int(_)
        | Value::Float(_)
        | Value::Str(_)
        | Value::Live(_)
        | Value::Gate(_) => {}
    }
}

/// Keeps the blobs that some parameter names, in their order.
fn drop_unnamed_blobs(graph: &mut Graph, blobs: &mut TiVec<BlobId, Bytes>) {
    let mut named_blobs = BTreeSet::new();
    for value in graph.actors.iter().flat_map(|actor| actor.params.values()) {
        visit_blobs(value, &mut |blob| _ = named_blobs.insert(blob));
    }

    // The set is sorted: old order, without gaps.
    let new_numbers: BTreeMap<BlobId, BlobId> = named_blobs
        .iter()
        .enumerate()
        .map(|(new, old)| (*old, BlobId::from(new)))
        .collect();
    for actor in &mut graph.actors {
        for value in actor.params.values_mut() {
            renumber_blobs(value, &new_numbers);
        }
    }

    *blobs = named_blobs
        .into_iter()
        .map(|old| std::mem::take(&mut blobs[old]))
        .collect();
}
