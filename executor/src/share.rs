//! A program's share of a machine: each worker is given as much time of a core as its plan needs from one block to the next,
//! and no more (`SCHED_DEADLINE`). The system adds up what it has promised and refuses what there is no time for; a program
//! that takes more than it said, or loops for ever, keeps nobody else from what is theirs.
//!
//! Threads that move tokens are promised nothing: they run before all ordinary ones ([`enter_without`]). A thread that is promised
//! a hundredth of a core, and is once charged with what an interrupt took, or the host of a virtual machine, waits a hundred times as long.
#![expect(
    unsafe_code,
    reason = "the system call that changes how a thread is scheduled, which no wrapper at hand has"
)]

use std::io;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use zbmd_ir::CpuReservation;
use zbmd_ir::response::block_release_ns;

use crate::program::{Engine, LoadedProgram};
use crate::transport::clock::Clock;

/// What a worker of a run is to be held to, and whether the system promises it.
#[derive(Debug)]
pub struct WorkerShare {
    /// Its device.
    pub device: String,
    /// What is asked for.
    pub reservation: CpuReservation,
    /// What the system says to all of them together.
    pub promised: io::Result<()>,
}

impl Engine {
    /// What the program's CPU devices take of a machine in its plan without losses, with a fiftieth more than planned, and
    /// whether the system promises all of it now. Nothing is taken yet: workers
    /// of a run with [`RunOptions::hold_share`](crate::RunOptions::hold_share) ask again. `None` where no stream has a sample
    /// rate.
    pub fn shares(&self) -> Option<Vec<WorkerShare>> {
        let reservations = reservations(&self.loaded)?;
        // What one was promised is kept until all have asked.
        let gate = Mutex::new(());
        let end_ns = patience_end_ns();
        let shares = std::thread::scope(|scope| {
            let all_asked = gate.lock();
            let ask = |reservation: CpuReservation| {
                let (answer, answered) = mpsc::channel();
                let gate = &gate;
                let thread = std::thread::Builder::new().spawn_scoped(scope, move || {
                    let _ = answer.send(enter_until(reservation, end_ns));
                    drop(gate.lock());
                });
                thread.map(|_| answered)
            };
            let asked = reservations.into_iter().map(|(device, reservation)| {
                let promised = ask(reservation).and_then(|answered| {
                    let lost = |_| io::Error::other("the thread that asked has panicked");
                    answered.recv().map_err(lost).and_then(|answer| answer)
                });
                WorkerShare {
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

/// What each worker of a CPU device needs.
fn reservations(loaded: &LoadedProgram) -> Option<Vec<(String, CpuReservation)>> {
    let program = &loaded.program;
    let plan = &program.plans[loaded.main];
    block_release_ns(&program.graph, plan)?;
    let calendars = plan.calendars.iter();
    let of_cpus = calendars.filter(|calendar| !loaded.is_gpu(calendar.device));
    let reservations = of_cpus.map(|calendar| {
        let device = program.machine.devices[calendar.device].name.clone();
        let reservation = CpuReservation::of_calendar(&program.graph, plan, calendar)?;
        Some((device, reservation))
    });
    reservations.collect()
}

/// Whether threads that move the tokens of a run may run before ordinary ones.
///
/// # Errors
/// What the system says, or that it gives no thread to ask with.
pub fn check_stream_priority() -> io::Result<()> {
    let asking = std::thread::Builder::new().spawn(enter_without)?;
    let lost = |_| io::Error::other("the thread that asked has panicked");
    asking.join().map_err(lost)?
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
/// A thread that takes longer than it said goes on in what is promised to others and not used at the time, and does not
/// wait for its next period where there is any.
const RECLAIM: u64 = 2;
const SCHED_DEADLINE: u32 = 6;

/// What a thread was promised is given back only when its period is over, also if it has ended: those that asked before the
/// run began, or a run that was here before. No period is longer than a second. Until then a thread asks again.
const PATIENCE_NS: u64 = 1_200_000_000;
const PATIENCE_PAUSE: Duration = Duration::from_millis(1);

/// [`enter`], for a thread that stays: where more is promised than there is, it waits for what is given back.
///
/// # Errors
/// As [`enter`].
pub(crate) fn enter_to_stay(reservation: CpuReservation) -> io::Result<()> {
    enter_until(reservation, patience_end_ns())
}

/// When whoever begins to ask now asks no more.
fn patience_end_ns() -> u64 {
    Clock.now_ns() + PATIENCE_NS
}

fn enter_until(reservation: CpuReservation, end_ns: u64) -> io::Result<()> {
    loop {
        match enter(reservation) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Clock.now_ns() < end_ns => {
                std::thread::sleep(PATIENCE_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Lets the calling thread run before all ordinary threads, and behind those with a share.
///
/// # Errors
/// What the system says: no right to it.
pub(crate) fn enter_without() -> io::Result<()> {
    crate::realtime::enter(crate::realtime::ThreadRole::Pump)
}

/// Holds the calling thread to a reservation, and promises it that.
///
/// # Errors
/// What the system says: no right to it, or more is promised than there is.
pub(crate) fn enter(reservation: CpuReservation) -> io::Result<()> {
    let attributes = SchedulingAttributes {
        size: size_of::<SchedulingAttributes>() as u32,
        policy: SCHED_DEADLINE,
        flags: RESET_ON_FORK | RECLAIM,
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
