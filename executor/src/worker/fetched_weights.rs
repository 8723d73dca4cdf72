//! What a CPU calendar fetches from the device's tier: the steps of its fetches, and kernels that read their weights from
//! the arena. Must not run anything.
#![expect(
    unsafe_code,
    reason = "shows kernels bytes of the arena at the offsets of a verified plan"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::bundle::Image;
use zbmd_ir::{Actor, ActorId, BlobId, Calendar, DType, Plan, TiVec, TokenType};
use zbmd_op::kernel::Kernel;

use super::fetch::{FetchPlan, FetchStep, Fetcher};
use super::memory::WorkerMemory;
use crate::fault::WorkerFault;
use crate::program::LoadedProgram;
use crate::transport::arena::Arena;

/// Fetches and kernels of a calendar.
#[derive(Default)]
pub(super) struct FetchedWeights {
    /// Of each actor whose weights are fetched, which fetch of the period that is.
    pub numbers: BTreeMap<ActorId, u32>,
    /// Their kernels, which read the weights where they are fetched to.
    pub kernels: BTreeMap<ActorId, Arc<dyn Kernel>>,
    pub fetcher: Option<Fetcher>,
}

impl FetchedWeights {
    /// Makes the kernels, and begins to fetch what period 0 finds fetched.
    ///
    /// # Errors
    /// A kernel that cannot be made, or a file that cannot be read.
    pub(super) fn begin(
        loaded: &LoadedProgram,
        plan: &Plan,
        calendar: &Calendar,
        memory: &WorkerMemory,
    ) -> Result<Self, WorkerFault> {
        let mut weights = Self::numbered(calendar);
        if weights.numbers.is_empty() {
            return Ok(weights);
        }
        let image = loaded.image.as_ref().ok_or_else(|| {
            WorkerFault::Weights("the program was not read from a bundle".to_owned())
        })?;

        let mut fetches = FetchPlan::default();
        let mut blobs = loaded.program.blobs.clone();
        for fetch in calendar.weight_fetches() {
            if fetch.is_for_next {
                fetches.before_first.push(fetches.steps.len() as u32);
            }
            let step = fetch_step(loaded, image, fetch.actor, fetch.offset_bytes)?;
            let place = ArenaBytes::new(&memory.own, step.arena_offset, step.bytes);
            let kernel = kernel_over(loaded, plan, fetch.actor, place, &mut blobs)?;
            weights.kernels.insert(fetch.actor, kernel);
            fetches.steps.push(step);
        }

        let file = image.share_file();
        let fetcher = Fetcher::start(fetches, file, Arc::clone(&memory.own));
        let fetcher = fetcher.map_err(|error| WorkerFault::Weights(error.to_string()))?;
        weights.fetcher = Some(fetcher);
        Ok(weights)
    }

    /// The fetches of a calendar without their kernels: to see what it is lowered to, not to run it.
    pub(super) fn numbered(calendar: &Calendar) -> Self {
        let fetches = calendar.weight_fetches().into_iter().zip(0..);
        Self {
            numbers: fetches
                .map(|(fetch, number)| (fetch.actor, number))
                .collect(),
            ..Self::default()
        }
    }
}

/// The packed weights of an actor that fetches them.
fn packed_weights(actor: &Actor) -> (BlobId, &TokenType) {
    actor
        .packed_weights()
        .expect("the verifier lets only actors with packed weights fetch them")
}

/// Where an actor's weights are in the bundle, and where they go.
fn fetch_step(
    loaded: &LoadedProgram,
    image: &Image,
    actor: ActorId,
    offset_bytes: u64,
) -> Result<FetchStep, WorkerFault> {
    let data = &loaded.program.graph.actors[actor];
    let (blob, _) = packed_weights(data);
    let bytes = &loaded.program.blobs[blob];
    let file_offset = image.offset_of(bytes).ok_or_else(|| {
        let name = &data.name;
        WorkerFault::Weights(format!(
            "the weights of `{name}` are not in the bundle's file"
        ))
    })?;
    Ok(FetchStep {
        actor: data.name.clone(),
        file_offset,
        bytes: bytes.len(),
        arena_offset: offset_bytes as usize,
    })
}

/// An actor's kernel, which reads its weights from `place`. `blobs` are those of the program, also afterwards.
fn kernel_over(
    loaded: &LoadedProgram,
    plan: &Plan,
    actor: ActorId,
    place: ArenaBytes,
    blobs: &mut TiVec<BlobId, Bytes>,
) -> Result<Arc<dyn Kernel>, WorkerFault> {
    let data = &loaded.program.graph.actors[actor];
    let (blob, token) = packed_weights(data);
    if token.dtype != DType::F32 {
        // Kernels over integers add up their weights when they are made.
        place.fill(&blobs[blob]);
    }

    // An op that is remembered would be one over other bytes.
    let registry = loaded.registry.resolving_anew();
    let original = std::mem::replace(&mut blobs[blob], Bytes::from_owner(place));
    let kernel = registry.kernel_in(data, blobs, plan.variant(actor));
    blobs[blob] = original;
    kernel.map_err(|error| {
        let name = &data.name;
        WorkerFault::Weights(format!(
            "`{name}` has no kernel over fetched weights: {error}"
        ))
    })
}

/// Bytes of an arena, as a kernel sees constants.
struct ArenaBytes {
    arena: Arc<Arena>,
    offset: usize,
    bytes: usize,
}

impl ArenaBytes {
    /// # Panics
    /// If they are not in the arena.
    fn new(arena: &Arc<Arena>, offset: usize, bytes: usize) -> Self {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= arena.bytes()),
            "bytes beyond the arena"
        );
        Self {
            arena: Arc::clone(arena),
            offset,
            bytes,
        }
    }

    /// Copies bytes there, before anything runs.
    fn fill(&self, bytes: &[u8]) {
        let to = self.arena.base().wrapping_add(self.offset);
        // SAFETY: both are as long; the place is in the arena, and no slot runs and nothing is fetched yet.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), self.bytes.min(bytes.len())) };
    }
}

impl AsRef<[u8]> for ArenaBytes {
    fn as_ref(&self) -> &[u8] {
        let start = self.arena.base().wrapping_add(self.offset);
        // SAFETY: in the arena, which is held and initialised. `Bytes` keeps the address and the length, not the slice:
        // it makes a slice whenever a kernel asks for its weights, which it does while it fires. By the verified plan the
        // weights have been waited for then, and nobody writes to them before the actor's last firing is over.
        unsafe { std::slice::from_raw_parts(start, self.bytes) }
    }
}
