//! A program's share of a machine: each worker is given as much time of a core as its plan needs from one block to the next,
//! and no more (`SCHED_DEADLINE`). The system adds up what it has promised and refuses what there is no time for; a program
//! that takes more than it said, or loops for ever, keeps nobody else from what is theirs.
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

/// What a thread of a run is to be held to, and whether the system promises it.
#[derive(Debug)]
pub struct ThreadShare {
    /// The device that the thread is a worker of, or the source or sink whose tokens it moves.
    pub name: String,
    /// Whether it is a worker.
    pub is_worker: bool,
    /// What is asked for.
    pub reservation: CpuReservation,
    /// What the system says to all of them together.
    pub promised: io::Result<()>,
}

impl Engine {
    /// What the program's CPU devices take of a machine in its plan without losses, with a fiftieth more than planned, what
    /// the threads take that move its tokens, and whether the system promises all of it now. Nothing is taken yet: threads
    /// of a run with [`RunOptions::hold_share`](crate::RunOptions::hold_share) ask again. `None` where no stream has a sample
    /// rate.
    pub fn shares(&self) -> Option<Vec<ThreadShare>> {
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
            let asked = reservations
                .into_iter()
                .map(|(name, is_worker, reservation)| {
                    let promised = ask(reservation).and_then(|answered| {
                        let lost = |_| io::Error::other("the thread that asked has panicked");
                        answered.recv().map_err(lost).and_then(|answer| answer)
                    });
                    ThreadShare {
                        name,
                        is_worker,
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

/// For each worker of a CPU device and each stream: its name, whether it is a worker, and what it needs.
fn reservations(loaded: &LoadedProgram) -> Option<Vec<(String, bool, CpuReservation)>> {
    let program = &loaded.program;
    let plan = &program.plans[loaded.main];
    let mut reservations = Vec::new();
    for calendar in &plan.calendars {
        if !loaded.is_gpu(calendar.device) {
            let device = program.machine.devices[calendar.device].name.clone();
            let reservation = CpuReservation::of_calendar(&program.graph, plan, calendar)?;
            reservations.push((device, true, reservation));
        }
    }
    let of_stream = stream_reservation(loaded)?;
    let streams = program.graph.sources().chain(program.graph.sinks());
    reservations.extend(streams.map(|(_, actor)| (actor.name.clone(), false, of_stream)));
    Some(reservations)
}

/// What a thread needs that moves the tokens of one of the program's streams; `None` where none has a sample rate.
pub(crate) fn stream_reservation(loaded: &LoadedProgram) -> Option<CpuReservation> {
    let plan = &loaded.program.plans[loaded.main];
    let release_ns = block_release_ns(&loaded.program.graph, plan)?;
    Some(CpuReservation::of_stream(release_ns))
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
/// run began, or a run that was here before. For so many periods of its own a thread asks again, but no longer than this.
const PATIENT_PERIODS: u64 = 3;
const MAX_PATIENCE: Duration = Duration::from_millis(500);
const PATIENCE_PAUSE: Duration = Duration::from_millis(1);

/// [`enter`], for a thread that stays: where more is promised than there is, it waits for what is given back.
///
/// # Errors
/// As [`enter`].
pub(crate) fn enter_to_stay(reservation: CpuReservation) -> io::Result<()> {
    let patience = Duration::from_nanos(PATIENT_PERIODS * reservation.period_ns).min(MAX_PATIENCE);
    let mut waited = Duration::ZERO;
    loop {
        match enter(reservation) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && waited < patience => {
                std::thread::sleep(PATIENCE_PAUSE);
                waited += PATIENCE_PAUSE;
            }
            outcome => return outcome,
        }
    }
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
