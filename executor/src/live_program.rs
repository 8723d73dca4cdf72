//! What a program with live parameters keeps for whoever sets them and for the workers that follow: kernels by the values
//! that they were made with, and which tokens decide where a change takes effect. Knows no run.
//!
//! Whoever sets parameters asks first, outside of any run's way; workers find what was made then. Only a worker in a process
//! of its own, whose memory is another, makes what it needs itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use zbmd_ir::{
    ActorId, Dependence, EffectPoints, Graph, LiveParameter, PositionOrder, live_parameters,
    visit_live,
};
use zbmd_op::OpError;
use zbmd_op::kernel::Kernel;

use crate::program::LoadedProgram;

/// Kernels that are kept for each actor with live parameters: more than changes wait for workers at any time.
const KEPT_PER_ACTOR: usize = 160;

/// Values of live parameters, by index; those that are not here are as declared.
pub(crate) type NumbersByParameter = BTreeMap<u32, Vec<f64>>;

/// A kernel, and what it was made with.
struct MadeKernel {
    variant: Option<String>,
    values: NumbersByParameter,
    kernel: Arc<dyn Kernel>,
}

/// Kernels and positions of one program.
#[derive(Default)]
pub(crate) struct LiveProgram {
    pub parameters: Vec<LiveParameter>,
    /// Of each actor that has any, the indices of its live parameters.
    pub read_by: BTreeMap<ActorId, Vec<u32>>,
    /// By actor, the oldest first.
    made: Mutex<BTreeMap<ActorId, VecDeque<MadeKernel>>>,
    /// By source.
    dependences: Mutex<BTreeMap<ActorId, Arc<Dependence>>>,
}

impl LiveProgram {
    pub(crate) fn of(graph: &Graph) -> Self {
        let parameters = live_parameters(graph);
        let mut read_by: BTreeMap<ActorId, Vec<u32>> = BTreeMap::new();
        for (id, actor) in graph.actors.iter_enumerated() {
            visit_live(&actor.params, &mut |read| {
                let index = parameters.iter().position(|known| known.name == read.name);
                read_by
                    .entry(id)
                    .or_default()
                    .extend(index.map(|i| i as u32));
            });
        }
        Self {
            parameters,
            read_by,
            ..Self::default()
        }
    }

    /// The index of a parameter.
    pub(crate) fn number_of(&self, name: &str) -> Option<u32> {
        let found = self.parameters.iter().position(|known| known.name == name);
        found.map(|index| index as u32)
    }

    /// Those of the values that an actor reads.
    fn values_of(&self, id: ActorId, values: &NumbersByParameter) -> NumbersByParameter {
        let read = self.read_by.get(&id).into_iter().flatten();
        let read = read.filter_map(|index| Some((*index, values.get(index)?.clone())));
        read.collect()
    }
}

impl LoadedProgram {
    /// The kernel of an actor with these values of the program's live parameters.
    ///
    /// # Errors
    /// What the op refuses.
    pub(crate) fn kernel_with(
        &self,
        id: ActorId,
        variant: Option<&str>,
        values: &NumbersByParameter,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        let values = self.live.values_of(id, values);
        let is_it = |made: &MadeKernel| made.variant.as_deref() == variant && made.values == values;
        // A worker waits for nobody: somebody else may hold this, for a moment.
        let made = match self.live.made.try_lock() {
            Ok(made) => Some(made),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let found = made.and_then(|made| {
            let mut newest_first = made.get(&id)?.iter().rev();
            Some(Arc::clone(&newest_first.find(|made| is_it(made))?.kernel))
        });
        match found {
            Some(kernel) => Ok(kernel),
            None => self.make_kernel(id, variant, &values),
        }
    }

    /// [`Self::kernel_with`], which finds the kernel from then on.
    ///
    /// # Errors
    /// What the op refuses.
    pub(crate) fn prepare_kernel(
        &self,
        id: ActorId,
        variant: Option<&str>,
        values: &NumbersByParameter,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        let kernel = self.kernel_with(id, variant, values)?;
        let made_now = MadeKernel {
            variant: variant.map(str::to_owned),
            values: self.live.values_of(id, values),
            kernel: Arc::clone(&kernel),
        };
        let mut made = lock(&self.live.made);
        let of_actor = made.entry(id).or_default();
        // The same once more is as good as new: it is not the next that is forgotten.
        of_actor.retain(|m| m.variant != made_now.variant || m.values != made_now.values);
        of_actor.push_back(made_now);
        let forgotten = match of_actor.len() > KEPT_PER_ACTOR {
            true => of_actor.pop_front(),
            false => None,
        };
        // Let go of without the lock: it may take a while.
        drop(made);
        drop(forgotten);
        Ok(kernel)
    }

    fn make_kernel(
        &self,
        id: ActorId,
        variant: Option<&str>,
        values: &NumbersByParameter,
    ) -> Result<Arc<dyn Kernel>, OpError> {
        let numbers = |parameter: &LiveParameter| {
            let mut known = self.live.parameters.iter();
            let index = known.position(|known| known.name == parameter.name)?;
            values.get(&(index as u32)).cloned()
        };
        let actor = &self.program.graph.actors[id];
        let blobs = &self.program.blobs;
        // Values come and go: what was resolved for them is not worth remembering.
        let registry = self.registry.resolving_anew();
        let changed = registry.with_values(actor, blobs, &numbers)?;
        registry.kernel_in(&changed, blobs, variant)
    }

    /// Which tokens of a source the firings of all actors need. Worked out when it is first asked for, which may take a
    /// while for long iterations: whoever names a token asks before workers do.
    pub(crate) fn dependence(&self, source: ActorId) -> Arc<Dependence> {
        let mut dependences = lock(&self.live.dependences);
        let dependence = dependences.entry(source).or_insert_with(|| {
            let dependence = Dependence::of_source(&self.program.graph, source);
            Arc::new(dependence)
        });
        Arc::clone(dependence)
    }

    /// Where changes take effect, counted from a border: after `iterations`, with the tokens that each source has given.
    pub(crate) fn effect_points<'a>(
        &'a self,
        iterations: u64,
        consumed: &'a [(ActorId, u64)],
    ) -> EffectPoints<'a, impl Fn(ActorId) -> Arc<Dependence>> {
        EffectPoints {
            repetition: &self.repetition,
            dependence: |source| self.dependence(source),
            iterations,
            consumed,
        }
    }

    /// How changes follow each other from the same border on.
    pub(crate) fn position_order<'a>(
        &'a self,
        iterations: u64,
        consumed: &'a [(ActorId, u64)],
    ) -> PositionOrder<'a, impl Fn(ActorId) -> u64> {
        PositionOrder {
            iterations,
            consumed,
            tokens_per_iteration: |source| self.tokens_per_iteration(source),
        }
    }
}

/// What panicked elsewhere is reported there.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
