//! Plans for lost devices, several losses at a time. What comes out does not depend on how many threads there are.

use std::sync::atomic::{AtomicUsize, Ordering};

use zbmd_ir::text::loss;
use zbmd_ir::{ActorId, DeviceId, Graph, KindId, Loss, Machine, Plan, TiVec};
use zbmd_scheduler::{Contingent, Inputs, Losses, ScheduleError, kinds, losses, schedule_loss};

/// A loss of devices for which there are no plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImpossibleLoss {
    /// What is lost: `2 like cpu:0 and gpu:0`.
    pub lost: String,
    /// Why the rest cannot do the work.
    pub reason: String,
}

type Made = Result<Vec<Plan>, ScheduleError>;

/// All plans: those given, made for the whole machine, and those for every loss asked for.
pub(crate) fn plan(
    inputs: Inputs<'_>,
    plans: Vec<Plan>,
    which: Losses,
) -> Result<Contingent, ScheduleError> {
    let kinds = kinds(inputs.machine, inputs.costs, inputs.options);
    let losses = losses(&kinds, which)?;
    let made = side_by_side(&losses, |lost| schedule_loss(inputs, &plans, &kinds, lost));
    Ok(Contingent::collect(
        plans,
        kinds,
        losses.into_iter().zip(made),
    ))
}

/// `make` of each loss, in their order; threads take the next one that nobody has.
fn side_by_side(losses: &[Vec<Loss>], make: impl Fn(&[Loss]) -> Made + Sync) -> Vec<Made> {
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(losses.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        // The counter hands out numbers and nothing else: no ordering is needed.
        while let Some((i, lost)) = take(losses, next.fetch_add(1, Ordering::Relaxed)) {
            done.push((i, make(lost)));
        }
        done
    };
    let mut made: Vec<(usize, Made)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |worker: std::thread::ScopedJoinHandle<'_, _>| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().flat_map(join).collect()
    });
    made.sort_unstable_by_key(|&(i, _)| i);
    made.into_iter().map(|(_, made)| made).collect()
}

fn take(losses: &[Vec<Loss>], i: usize) -> Option<(usize, &[Loss])> {
    losses.get(i).map(|lost| (i, lost.as_slice()))
}

/// The losses that cannot be borne, in words.
pub(crate) fn impossible(
    graph: &Graph,
    machine: &Machine,
    kinds: &TiVec<KindId, Vec<DeviceId>>,
    list: &[(Vec<Loss>, ScheduleError)],
) -> Vec<ImpossibleLoss> {
    let words = |(lost, error): &(Vec<Loss>, ScheduleError)| ImpossibleLoss {
        lost: loss(machine, kinds, lost),
        reason: reason(error, graph, machine),
    };
    list.iter().map(words).collect()
}

fn reason(error: &ScheduleError, graph: &Graph, machine: &Machine) -> String {
    let name = |id: ActorId| graph.actors.get(id).map_or("?", |a| a.name.as_str());
    let device = |id: DeviceId| machine.devices.get(id).map_or("?", |d| d.name.as_str());
    match error {
        ScheduleError::NoDevices => "no device is left".into(),
        ScheduleError::NoDevice { actor } => {
            format!("no device that is left has a kernel for `{}`", name(*actor))
        }
        ScheduleError::PinImpossible { actor, device: d } => {
            format!("`{}` is pinned to `{}`", name(*actor), device(*d))
        }
        ScheduleError::NoLink { from, to, .. } => {
            format!(
                "there is no link from `{}` to `{}`",
                device(*from),
                device(*to)
            )
        }
        ScheduleError::Memory {
            device: d,
            needed_bytes,
            limit_bytes,
            block,
            ..
        } => format!(
            "`{}` needs {needed_bytes} bytes in blocks of {block}, {limit_bytes} are allowed",
            device(*d)
        ),
        other => other.to_string(),
    }
}
