//! Plans for lost devices, made in parallel. The result does not depend on the number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use zbmd_ir::text::loss;
use zbmd_ir::{ActorId, Contingencies, DeviceId, Graph, Loss, Machine, Plan};
use zbmd_scheduler::{Contingent, Inputs, Losses, ScheduleError, likeness, losses, schedule_loss};

/// A loss of devices for which there are no plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImpossibleLoss {
    /// What is lost: `2 like cpu:0 and gpu:0`.
    pub lost: String,
    /// Why the rest cannot do the work.
    pub reason: String,
}

type LossPlans = Result<Vec<Plan>, ScheduleError>;

/// All plans: those given, which are for the whole machine, and those for every loss asked for.
pub(crate) fn plan_losses(
    inputs: Inputs<'_>,
    plans: Vec<Plan>,
    asked_losses: Losses,
) -> Result<Contingent, ScheduleError> {
    // Every link of the machine is looked at to tell devices apart.
    if asked_losses == Losses::None {
        return Ok(Contingent::collect(plans, Contingencies::default(), []));
    }
    let likeness = likeness(inputs.machine, inputs.costs, inputs.options);
    let losses = losses(inputs.machine, &likeness, asked_losses)?;

    // Losses are planned from the same main plans, and independently of each other.
    let loss_plans = plan_in_parallel(&losses, |lost| {
        schedule_loss(inputs, &plans, &likeness, lost)
    });
    let outcomes = losses.into_iter().zip(loss_plans);
    Ok(Contingent::collect(plans, likeness, outcomes))
}

/// Calls `plan_loss` with each loss; the results are in the order of the losses.
fn plan_in_parallel(
    losses: &[Vec<Loss>],
    plan_loss: impl Fn(&[Loss]) -> LossPlans + Sync,
) -> Vec<LossPlans> {
    let core_count = std::thread::available_parallelism().map_or(1, usize::from);
    let next_loss = AtomicUsize::new(0);
    let work = || {
        let mut finished_plans = Vec::new();
        loop {
            // The counter hands out numbers and nothing else: no ordering is needed.
            let loss_index = next_loss.fetch_add(1, Ordering::Relaxed);
            let Some(lost) = losses.get(loss_index) else {
                return finished_plans;
            };
            finished_plans.push((loss_index, plan_loss(lost)));
        }
    };

    let mut indexed_plans: Vec<(usize, LossPlans)> = std::thread::scope(|scope| {
        let threads = core_count.min(losses.len());
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(join_worker).collect()
    });

    // Threads finish in any order; the bundle must not depend on it.
    indexed_plans.sort_unstable_by_key(|&(loss_index, _)| loss_index);
    indexed_plans.into_iter().map(|(_, plans)| plans).collect()
}

/// The result of a thread, whose panic becomes the caller's.
fn join_worker<T>(worker: ScopedJoinHandle<'_, T>) -> T {
    match worker.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The losses without plans, in words.
pub(crate) fn describe_losses(
    graph: &Graph,
    machine: &Machine,
    likeness: &Contingencies,
    impossible: &[(Vec<Loss>, ScheduleError)],
) -> Vec<ImpossibleLoss> {
    impossible
        .iter()
        .map(|(lost, error)| ImpossibleLoss {
            lost: loss(machine, likeness, lost),
            reason: describe_reason(error, graph, machine),
        })
        .collect()
}

fn describe_reason(error: &ScheduleError, graph: &Graph, machine: &Machine) -> String {
    match error {
        ScheduleError::NoDevices => "no device is left".into(),
        ScheduleError::NoDevice { actor } => {
            let actor = actor_name(graph, *actor);
            format!("no device that is left has a kernel for `{actor}`")
        }
        ScheduleError::PinImpossible { actor, device } => format!(
            "`{}` is pinned to `{}`",
            actor_name(graph, *actor),
            device_name(machine, *device)
        ),
        ScheduleError::NoLink { from, to, .. } => format!(
            "there is no link from `{}` to `{}`",
            device_name(machine, *from),
            device_name(machine, *to)
        ),
        ScheduleError::Memory {
            device,
            needed_bytes,
            limit_bytes,
            block,
            ..
        } => {
            let device = device_name(machine, *device);
            format!(
                "`{device}` needs {needed_bytes} bytes in blocks of {block}, {limit_bytes} are allowed"
            )
        }
        other => other.to_string(),
    }
}

fn actor_name(graph: &Graph, id: ActorId) -> &str {
    graph.actors.get(id).map_or("?", |actor| &actor.name)
}

fn device_name(machine: &Machine, id: DeviceId) -> &str {
    machine.devices.get(id).map_or("?", |device| &device.name)
}
