//! A program's share of a machine: each worker is given as much time of a core as its plan needs from one block to the next,
//! and no more (`SCHED_DEADLINE`). The system adds up what it has promised and refuses what there is no time for; a program
//! that takes more than it said, or loops for ever, keeps nobody else from what is theirs.
#![expect(
    unsafe_code,
    reason = "the system call that changes how a thread is scheduled, which no wrapper at hand has"
)]

use std::io;
use std::sync::{Mutex, mpsc};

use zbmd_ir::response::block_release_ns;
use zbmd_ir::{Calendar, Graph, Plan};

use crate::program::{Engine, LoadedProgram, planned_calendar_ns};

/// What is asked for beyond the planned time, in parts of it: plans are predictions.
const HEADROOM: f64 = 0.05;
/// Periods that the system takes are between a tenth of a millisecond and four seconds; shorter ones cost switches.
const MIN_PERIOD_NS: f64 = 1e6;
const MAX_PERIOD_NS: f64 = 1e9;

/// What a worker is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuReservation {
    /// Time of a core…
    pub runtime_ns: u64,
    /// …in each period of this length.
    pub period_ns: u64,
}

impl CpuReservation {
    /// What a calendar needs in its plan; `None` where no stream says how fast the program is to be.
    pub(crate) fn of(graph: &Graph, plan: &Plan, calendar: &Calendar) -> Option<Self> {
        let release_ns = block_release_ns(graph, plan)?;
        let share = planned_calendar_ns(calendar) as f64 * (1.0 + HEADROOM) / release_ns;
        let period_ns = match release_ns {
            // As many blocks as fit, so that a reservation holds whole ones.
            short if short < MIN_PERIOD_NS => short * (MIN_PERIOD_NS / short).ceil(),
            long => long.min(MAX_PERIOD_NS),
        };
        Some(Self {
            runtime_ns: (share.min(1.0) * period_ns) as u64,
            period_ns: period_ns as u64,
        })
    }

    /// Part of a core.
    pub fn share(&self) -> f64 {
        self.runtime_ns as f64 / self.period_ns.max(1) as f64
    }
}

impl std::fmt::Display for CpuReservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let millis = |ns: u64| ns as f64 / 1e6;
        write!(
            f,
            "{:.3} ms of a core in each {:.3} ms ({:.1} %)",
            millis(self.runtime_ns),
            millis(self.period_ns),
            100.0 * self.share()
        )
    }
}

/// What a device's worker is to be held to, and whether the system promises it.
#[derive(Debug)]
pub struct DeviceShare {
    /// The device.
    pub device: String,
    /// What is asked for.
    pub reservation: CpuReservation,
    /// What the system says to all of them together.
    pub promised: io::Result<()>,
}

impl Engine {
    /// What the program's CPU devices take of a machine in its plan without losses, with a twentieth more than planned, and
    /// whether the system promises all of it now. Nothing is taken yet: workers of a run with
    /// [`RunOptions::hold_share`](crate::RunOptions::hold_share) ask again. `None` where no stream has a sample rate.
    pub fn shares(&self) -> Option<Vec<DeviceShare>> {
        let reservations = reservations(&self.loaded)?;
        // What one was promised is kept until all have asked.
        let gate = Mutex::new(());
        let shares = std::thread::scope(|scope| {
            let all_asked = gate.lock();
            let ask = |reservation: CpuReservation| {
                let (answer, answered) = mpsc::channel();
                let gate = &gate;
                let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
                    let _ = answer.send(enter(reservation));
                    drop(gate.lock());
                });
                thread.map(|_| answered)
            };
            let asked = reservations.into_iter().map(|(device, reservation)| {
                let promised = ask(reservation).and_then(|answered| {
                    let lost = |_| io::Error::other("the thread that asked has panicked");
                    answered.recv().map_err(lost).and_then(|answer| answer)
                });
                DeviceShare {
                    device,
                    reservation,
                    promised,
                }
            });
            let shares = asked.collect();
            drop(all_asked);
            shares
        });
        Some(shares)
    }
}

fn reservations(loaded: &LoadedProgram) -> Option<Vec<(String, CpuReservation)>> {
    let program = &loaded.program;
    let plan = &program.plans[loaded.main];
    let calendars = plan.calendars.iter();
    let on_cpus = calendars.filter(|calendar| !loaded.is_gpu(calendar.device));
    let reservations = on_cpus.map(|calendar| {
        let device = program.machine.devices[calendar.device].name.clone();
        Some((device, CpuReservation::of(&program.graph, plan, calendar)?))
    });
    reservations.collect()
}

/// `struct sched_attr` of sched_setattr(2), as long as its first version.
#[repr(C)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Threads that this one starts are ordinary ones: they have no share of their own.
const RESET_ON_FORK: u64 = 1;
const SCHED_DEADLINE: u32 = 6;

/// Holds the calling thread to a reservation, and promises it that.
///
/// # Errors
/// What the system says: no right to it, or more is promised than there is.
pub(crate) fn enter(reservation: CpuReservation) -> io::Result<()> {
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: SCHED_DEADLINE,
        flags: RESET_ON_FORK,
        nice: 0,
        priority: 0,
        runtime_ns: reservation.runtime_ns,
        deadline_ns: reservation.period_ns,
        period_ns: reservation.period_ns,
    };
    let no_flags: libc::c_uint = 0;
    // SAFETY: it reads the attributes, which live and say how long they are; 0 is the calling thread.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, no_flags) };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::testing::programs;
    use zbmd_ir::{PlanId, Value};

    fn reservation(sample_rate: Option<f64>, busy_ns: u64) -> Option<CpuReservation> {
        let mut program = programs::chain();
        if let Some(rate) = sample_rate {
            let source = program.graph.find("in").expect("there");
            let params = &mut program.graph.actors[source].params;
            params.insert("sample_rate".into(), Value::Float(rate));
        }
        let plan = &program.plans[PlanId(0)];
        let mut calendar = plan.calendars[0].clone();
        for lane in &mut calendar.lanes {
            for entry in &mut lane.entries {
                if let zbmd_ir::Entry::Slot(slot) = entry {
                    slot.duration_ns = 0;
                }
            }
        }
        if let Some(zbmd_ir::Entry::Slot(slot)) = calendar.lanes[0].entries.first_mut() {
            slot.duration_ns = busy_ns;
        }
        CpuReservation::of(&program.graph, plan, &calendar)
    }

    #[test]
    fn a_reservation_has_a_twentieth_more_than_the_plan_and_no_short_periods() {
        assert_eq!(reservation(None, 5), None);
        let of = |rate, busy_ns| reservation(Some(rate), busy_ns).expect("a rate");
        let slow = of(1.0, 100_000_000);
        let share = slow.share();
        assert!(
            slow.period_ns <= 1_000_000_000 && share > 0.0 && share <= 1.0,
            "{slow}"
        );
        let fast = of(1e6, 400);
        assert!(fast.period_ns >= 1_000_000, "{fast}");
        // More than all of a core cannot be had.
        let too_much = of(1e6, 1_000_000_000);
        assert_eq!(too_much.share(), 1.0);
    }
}
