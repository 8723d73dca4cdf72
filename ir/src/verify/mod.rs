//! The verifier: from a [`Program`] that nobody trusts to a [`Verified`] one that the executor replays unchecked.
//!
//! Recomputes everything from the graph and the crate's semantics; shares no code with the scheduler. Reports all
//! errors, at most [`MAX_ERRORS`]. Never panics on any program whose loops and parameters nest as deep as the
//! bundle's decoder allows. Each part runs only if the parts that it indexes by passed.
//!
//! Time is O(n log n) and memory O(n) in the size of the program, whatever is in it. Of a loop the first and the last
//! repetition are looked at (`plan/cursor.rs` says why that is enough); only transfers in loops, and loops whose slots
//! have different stages, are counted out. All that work is reserved beforehand from one budget (`budget.rs`), which
//! grows with the program; and no error holds more than a few lines of what the program says.
//!
//! Checked (code, file):
//! - graph (`V01..`, `graph.rs`, `names.rs`, `repetition.rs`, `liveness.rs`): limits, unique names of characters that
//!   can be seen (those of devices and plans too), types, rates and windows,
//!   every port on exactly one channel, delays, initial bytes, roles, states, gates, carried states, models of merged graphs, tensors of parameters; consistency,
//!   and that one iteration can be completed;
//! - machine (`V02..`, `machine.rs`): unique names, links between different existing devices, cores (each once in a device; two devices may share one);
//! - plan (`V03..`, `plan/calendar.rs`, `plan/firings.rs`): placement, one calendar and one compute lane for each
//!   device with actors, loops, ids, stages, every firing exactly once and in order on its actor's device;
//!   variants of kernels (`plan/variants.rs`): for actors that run a kernel, with a name that may be one;
//! - buffers (`V04..`, `plan/buffers.rs`): exactly those needed, sizes, alignment, bounds, device memory;
//! - order on each device (`V05..`, `plan/order.rs`): reads after the writes and carries they need, and before what
//!   overwrites them, over all blocks in flight; of buffers smaller than a block (`plan/chunks.rs`), that each write is
//!   to the chunk that they hold, none is dropped before it was read, and loops do the same to every chunk;
//! - memory (`V06..`, `plan/memory.rs`): no two live things overlap, but for an output over an input (in whole or in
//!   part) where the actor may do so, both live within one period, and nobody else reads the input any more;
//! - rings (`V07..`, `plan/rings.rs`): exactly those needed, both ends carry every token once and in order, one
//!   release after the last use;
//! - deadlock (`V08..`, `plan/deadlock.rs`): no cycle of devices waiting for each other;
//! - times (`V09..`, `plan/times.rs`): no overlap on a lane, end within the period, no receipt before its sending;
//! - contingencies (`V10..`, `contingencies.rs`): kinds that partition the devices into alike ones, losses within them
//!   and none twice, plans that use only roles that are left, in blocks of plan 0; tails of single iterations;
//! - modes (`modes.rs`): names, changes, each program by all of the above, and that machine, streams and live parameters
//!   are the same in all;
//! - work (`V11..`, `budget.rs`): no more of it than a program of this size may take.
//!
//! Not yet: lanes other than one `Compute` a device (refused); `latency_ns`, `bound_by` and times of releases (only
//! for people); that devices of a kind cost the same (the machine does not say; only times depend on it); that
//! `scratch_bytes` suffices, ops exist and their kernels have the variants chosen (the executor asks the kernels);
//! `Bool` bytes.

mod budget;
mod contingencies;
mod error;
pub mod graph;
mod liveness;
#[cfg(test)]
mod loop_tests;
mod machine;
mod modes;
mod names;
mod plan;
mod repetition;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;

pub use self::budget::Work;
use self::budget::{Budget, graph_elements, machine_elements, plan_elements, program_elements};
use self::error::Errors;
pub use self::error::{Access, MAX_ERRORS, Memory, Port, VerifyError, Wait};
pub use self::modes::{ModesError, VerifiedModes, verify_modes};
use crate::bundle::Image;
use crate::limits::MAX_PLANS;
use crate::{ActorId, BlobId, Graph, KernelCode, Machine, Plan, PlanId, Program, TiSlice, TiVec};

/// A value that passed its verification. Only [`verify`] makes one.
#[derive(Clone, Debug)]
pub struct Verified<T> {
    value: T,
    image: Option<Image>,
}

impl<T> Verified<T> {
    /// The value, which is no longer known to be verified once it can be changed.
    pub fn into_inner(self) -> T {
        self.value
    }

    /// The copy of the bundle's file that the value was read from, if there is one.
    pub(crate) fn image(&self) -> Option<&Image> {
        self.image.as_ref()
    }

    /// The same value, which was read from `image`.
    pub(crate) fn with_image(self, image: Option<Image>) -> Self {
        Self { image, ..self }
    }
}

impl<T> std::ops::Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// Checks a whole program.
///
/// # Errors
/// Every property found not to hold, at most [`MAX_ERRORS`], never an empty list.
pub fn verify(program: Program) -> Result<Verified<Program>, Vec<VerifyError>> {
    check(&program)?;
    Ok(Verified {
        value: program,
        image: None,
    })
}

/// What [`verify`] checks, for a program that is kept.
///
/// # Errors
/// See [`verify`].
pub fn check(program: &Program) -> Result<(), Vec<VerifyError>> {
    check_counting(program).0
}

/// What [`check`] finds, and the work that it took.
pub fn check_counting(program: &Program) -> (Result<(), Vec<VerifyError>>, Work) {
    check_keeping(program, MAX_ERRORS)
}

/// [`check_counting`] with a list of that many errors, at least one. What is refused does not depend on it.
pub(crate) fn check_keeping(
    program: &Program,
    capacity: usize,
) -> (Result<(), Vec<VerifyError>>, Work) {
    let budget = Budget::for_elements(program_elements(program));
    let mut errors = Errors::with_capacity(budget, capacity);
    machine::check(&program.machine, &mut errors);
    let q = graph::check(&program.graph, &program.blobs, &mut errors);
    check_kernels(program, &mut errors);
    check_plan_names(program, &mut errors);
    if let (Some(q), true) = (q, errors.found() == 0) {
        contingencies::check(program, &mut errors);
        let checked = plan::Checked {
            graph: &program.graph,
            repetition: &q,
            machine: &program.machine,
        };
        for (id, plan) in program.plans.iter_enumerated() {
            if errors.full() {
                break;
            }
            plan::check(&checked, id, plan, &mut errors);
        }
    }
    let work = errors.budget.work();
    (errors.into_result(), work)
}

/// Checks a graph alone, as a compiler does after each pass; its repetition vector if it is well formed.
///
/// # Errors
/// See [`verify`].
pub fn check_graph(
    graph: &Graph,
    blobs: &TiSlice<BlobId, Bytes>,
) -> Result<TiVec<ActorId, u64>, Vec<VerifyError>> {
    let mut errors = Errors::new(Budget::for_elements(graph_elements(graph)));
    let q = graph::check(graph, blobs, &mut errors);
    errors.into_result().map(|()| q.unwrap_or_default())
}

/// Checks the names in a graph alone: those that a model chooses for ports and parameters too.
///
/// # Errors
/// See [`verify`].
pub fn check_graph_names(graph: &Graph) -> Result<(), Vec<VerifyError>> {
    let mut errors = Errors::new(Budget::for_elements(graph_elements(graph)));
    names::check_graph(graph, &mut errors);
    errors.into_result()
}

/// Checks a machine alone, for one that was made in Rust.
///
/// # Errors
/// See [`verify`].
pub fn check_machine(machine: &Machine) -> Result<(), Vec<VerifyError>> {
    let mut errors = Errors::new(Budget::for_elements(machine_elements(machine)));
    machine::check(machine, &mut errors);
    errors.into_result()
}

/// Checks one plan against a graph and a machine that are checked too; `blobs` are the graph's.
///
/// # Errors
/// See [`verify`].
pub fn check_plan(
    graph: &Graph,
    machine: &Machine,
    blobs: &TiSlice<BlobId, Bytes>,
    id: PlanId,
    plan: &Plan,
) -> Result<(), Vec<VerifyError>> {
    let elements = graph_elements(graph) + machine_elements(machine) + plan_elements(plan);
    let mut errors = Errors::new(Budget::for_elements(elements));
    machine::check(machine, &mut errors);
    let q = graph::check(graph, blobs, &mut errors);
    if let (Some(q), true) = (q, errors.found() == 0) {
        let checked = plan::Checked {
            graph,
            repetition: &q,
            machine,
        };
        plan::check(&checked, id, plan, &mut errors);
    }
    errors.into_result()
}

/// What is inside the code is the driver's to refuse.
fn check_kernels(program: &Program, errors: &mut Errors) {
    let blobs = program.blobs.len();
    for (kernel, code) in program.kernels.iter().enumerate() {
        if errors.full() {
            return;
        }
        names::check_name(
            || format!("the format of kernel {kernel}"),
            &code.format,
            errors,
        );
        if program.blobs.get(code.blob).is_none() {
            errors.push(VerifyError::UnknownCode {
                kernel,
                blob: code.blob,
                blobs,
            });
        }
    }
    let name = |i: usize| (&program.kernels[i].format, program.kernels[i].key);
    for kernel in (1..program.kernels.len()).filter(|i| name(i - 1) >= name(*i)) {
        if errors.full() {
            return;
        }
        let KernelCode { format, key, .. } = program.kernels[kernel].clone();
        errors.push(VerifyError::CodeOrder {
            kernel,
            format,
            key,
        });
    }
}

fn check_plan_names(program: &Program, errors: &mut Errors) {
    if program.plans.is_empty() {
        errors.push(VerifyError::NoPlan {});
    }
    errors.limit(
        || "plans".to_owned(),
        program.plans.len() as u128,
        MAX_PLANS as u128,
    );
    let mut plan_names = BTreeMap::new();
    for (id, plan) in program.plans.iter_enumerated() {
        if errors.full() {
            return;
        }
        names::check_name(|| id.to_string(), &plan.name, errors);
        names::check_name(
            || format!("what limits the period of {id}"),
            &plan.bound_by,
            errors,
        );
        if let Some(&first) = plan_names.get(plan.name.as_str()) {
            errors.push(VerifyError::DuplicatePlan {
                name: plan.name.clone(),
                first,
                second: id,
            });
        }
        plan_names.entry(plan.name.as_str()).or_insert(id);
        if plan.name == "tail" && plan.block > 1 {
            errors.push(VerifyError::TailBlock {
                plan: id,
                block: plan.block,
            });
        }
    }
}
