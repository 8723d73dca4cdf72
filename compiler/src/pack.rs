//! Weights in the order of the CPU's kernels, so that a run maps them and holds no second copy.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::thread;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;
use zbmd_backends::op::{Packing, Registry};
use zbmd_ir::{
    Actor, ActorId, BlobId, Graph, Machine, Plan, Role, TiSlice, TiVec, TokenType, Value,
};

/// The pass, for [`crate::CompileOptions::skipped_passes`].
pub(crate) const NAME: &str = "pack-weights";
pub(crate) const SUMMARY: &str =
    "weights are stored in the bundle in the order of the CPU's kernels";

/// Bytes of weights that take longer to be packed than a thread to be started.
const WORTH_A_THREAD: usize = 1 << 18;

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

        // Actors with GPU kernels keep their weights: GPUs read them in the model's order.
        let actors = graph.actors.iter_enumerated();
        let on_cpus: Vec<ActorId> = actors
            .filter(|(id, actor)| actor.role == Role::Compute && self.runs_on_cpus(*id))
            .map(|(id, _)| id)
            .collect();

        let mut packed_actors = 0;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        for ids in on_cpus.chunks(cores) {
            for (id, packing) in self.packings(ids, graph, weight_blobs.blobs) {
                weight_blobs.replace(&mut graph.actors[id], &packing);
                packed_actors += 1;
            }
        }

        // Otherwise the numbers of blobs stay, and with them the bytes of the bundle.
        if packed_actors > 0 {
            drop_unnamed_blobs(graph, blobs);
        }
        packed_actors
    }

    /// The packed weights of those of some actors that have any; on a core each where that is worth a thread.
    fn packings(
        &self,
        ids: &[ActorId],
        graph: &Graph,
        blobs: &TiSlice<BlobId, Bytes>,
    ) -> Vec<(ActorId, Packing)> {
        let pack = |id: ActorId| Some((id, self.registry.packing(&graph.actors[id], blobs)?));
        let weight_bytes = |id: ActorId| {
            let mut bytes = 0;
            for value in graph.actors[id].params.values() {
                visit_blobs(value, &mut |blob| bytes += blobs[blob].len());
            }
            bytes
        };
        let (large, small): (Vec<ActorId>, Vec<ActorId>) = ids
            .iter()
            .partition(|id| weight_bytes(**id) >= WORTH_A_THREAD);
        let Some((&own, others)) = large.split_first() else {
            return small.into_iter().filter_map(pack).collect();
        };

        let mut packings = thread::scope(|scope| {
            let threads: Vec<_> = others
                .iter()
                .map(|&id| scope.spawn(move || pack(id)))
                .collect();
            let mut packings: Vec<_> = small.into_iter().chain([own]).filter_map(pack).collect();
            for thread in threads {
                packings.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            packings
        });
        // In the order of actors, so that blobs have the same numbers on every computer.
        packings.sort_by_key(|(id, _)| *id);
        packings
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
