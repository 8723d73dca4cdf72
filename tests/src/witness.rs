//! Processes that are large on purpose, and somebody who sees when their connections and they themselves come to their end: for
//! benches of how soon the death of a process is known.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use zbmd_wire::monotonic_ns;

use crate::figures::quantiles;

/// Set in the environment of a process that is to be large, as `MIB:PATH`: so much memory, and the socket where it says that it is
/// there.
pub const LARGE: &str = "ZBMD_BENCH_LARGE";

const PAGE_BYTES: usize = 4096;

/// Where large processes say that they are there.
pub struct Witness(UnixListener);

/// A large process.
pub struct LargeProcess {
    /// It never says anything here but its number.
    connection: UnixStream,
    pid: Pid,
}

/// When a process was killed, and when that was seen, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct DeathTimes {
    /// Just before the signal.
    pub killed_ns: u64,
    /// The other end of its socket was closed.
    pub eof_ns: u64,
    /// Its process descriptor said so.
    pub pidfd_ns: u64,
}

impl Witness {
    /// Listens in this folder.
    ///
    /// # Panics
    /// The system refuses it.
    pub fn listen(folder: &Path) -> Self {
        Self(UnixListener::bind(folder.join("witness")).expect("a socket"))
    }

    /// What large processes of such a witness have in their environment.
    pub fn environment(folder: &Path, mib: usize) -> String {
        format!("{mib}:{}", folder.join("witness").display())
    }

    /// The next large process that is there.
    ///
    /// # Panics
    /// It does not say which it is.
    pub fn next(&self) -> LargeProcess {
        let (mut connection, _) = self.0.accept().expect("it connects");
        let mut number = [0; 4];
        connection.read_exact(&mut number).expect("its number");
        let pid = Pid::from_raw(i32::from_le_bytes(number)).expect("a process");
        LargeProcess { connection, pid }
    }
}

impl LargeProcess {
    /// Its number.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Kills it, and waits until its socket and its process descriptor have said so.
    ///
    /// # Panics
    /// It is gone already.
    pub fn kill(self) -> DeathTimes {
        let pidfd = pidfd_open(self.pid, PidfdFlags::empty()).expect("it is there");
        let killed_ns = monotonic_ns();
        kill_process(self.pid, Signal::KILL).expect("it is there");

        let mut ends_ns = [None; 2];
        while ends_ns.contains(&None) {
            let files: [PollFd<'_>; 2] = [
                PollFd::new(&self.connection, PollFlags::IN),
                PollFd::new(&pidfd, PollFlags::IN),
            ];
            // One that has ended would end every wait at once.
            let open = files.into_iter().zip(&mut ends_ns);
            let (mut waited, ends): (Vec<_>, Vec<_>) =
                open.filter(|(_, end_ns)| end_ns.is_none()).unzip();
            poll(&mut waited, None).expect("they can be waited for");
            let now_ns = monotonic_ns();
            for (file, end_ns) in waited.iter().zip(ends) {
                if !file.revents().is_empty() {
                    *end_ns = Some(now_ns);
                }
            }
        }
        DeathTimes {
            killed_ns,
            eof_ns: ends_ns[0].expect("just seen"),
            pidfd_ns: ends_ns[1].expect("just seen"),
        }
    }
}

/// Makes this process a large one if it is told to be, and tells the witness; both for good.
///
/// # Panics
/// There is no witness.
pub fn be_large_if_told() {
    let Ok(told) = std::env::var(LARGE) else {
        return;
    };
    let (mib, path) = told.split_once(':').expect("MIB:PATH");
    let mut memory = vec![0u8; mib.parse::<usize>().expect("a number") << 20];
    memory
        .iter_mut()
        .step_by(PAGE_BYTES)
        .for_each(|byte| *byte = 1);
    std::hint::black_box(&mut memory);
    std::mem::forget(memory);

    let mut connection = UnixStream::connect(path).expect("a witness");
    let number = std::process::id().to_le_bytes();
    connection.write_all(&number).expect("it listens");
    std::mem::forget(connection);
}

/// Milliseconds of many deaths: median, 99th of a hundred, and longest.
pub fn times_text(times_ns: &[u64]) -> String {
    let times_ms: Vec<f64> = times_ns.iter().map(|ns| *ns as f64 / 1e6).collect();
    let [p50, p99, max] = quantiles(&times_ms, [0.5, 0.99, 1.0]);
    format!("{p50:9.2} {p99:9.2} {max:9.2}")
}
