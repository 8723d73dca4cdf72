//! Weights that a CPU device fetches from its tier: a thread beside the worker reads them from the bundle's file into the
//! arena, in the order of the calendar. Must not know plans; `fetched_weights` makes its steps out of them.
//!
//! Worker and thread are the two ends of a [`RingSync`]: the worker publishes how many fetches it has begun, the thread
//! releases how many are read. Which fetch that is, both know: those for period 0, then those of a period again and again.
#![expect(
    unsafe_code,
    reason = "reads from a file to the addresses that a verified calendar gives"
)]

use std::fs::File;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use crate::fault::{StepStop, WorkerFault};
use crate::transport::arena::Arena;
use crate::transport::ring::{Peer, RingSync, Spin, Stop};

/// Bytes that are read at a time: a stop takes effect after so many.
const READ_BYTES: usize = 1 << 20;

/// One fetch of a period.
#[derive(Clone, Debug)]
pub(super) struct FetchStep {
    /// The actor, for messages.
    pub actor: String,
    /// Where the weights are in the file.
    pub file_offset: u64,
    pub bytes: usize,
    /// Where they go in the arena.
    pub arena_offset: usize,
}

/// The fetches of a device.
#[derive(Default)]
pub(super) struct FetchPlan {
    /// In the order of the calendar.
    pub steps: Vec<FetchStep>,
    /// Which of them begin before period 0, in order.
    pub before_first: Vec<u32>,
}

/// The worker's end.
pub(super) struct Fetcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Fetches begun.
    begun: u64,
    /// Of each fetch of a period, how many had been begun when it last was.
    last_begun: Box<[u64]>,
    peer: Peer,
}

struct Shared {
    sync: RingSync,
    stop: Stop,
    /// Why nothing is read any more.
    failure: OnceLock<String>,
}

impl Fetcher {
    /// Starts the thread, and the fetches that begin before period 0.
    ///
    /// # Errors
    /// No thread.
    pub(super) fn start(plan: FetchPlan, file: Arc<File>, arena: Arc<Arena>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            sync: RingSync::new(),
            stop: Stop::new(),
            failure: OnceLock::new(),
        });
        let mut fetcher = Self {
            shared: Arc::clone(&shared),
            thread: None,
            begun: 0,
            last_begun: vec![0; plan.steps.len()].into(),
            peer: Peer::default(),
        };
        let before_first = plan.before_first.clone();
        let reader = Reader {
            shared,
            plan,
            file,
            arena,
        };
        let builder = std::thread::Builder::new().name("zbmd fetch".to_owned());
        fetcher.thread = Some(builder.spawn(move || reader.run())?);
        for step in before_first {
            fetcher.begin(step);
        }
        Ok(fetcher)
    }

    /// Begins a fetch of the period. Does not wait.
    pub(super) fn begin(&mut self, step: u32) {
        self.begun += 1;
        self.last_begun[step as usize] = self.begun;
        self.shared.sync.publish(self.begun);
    }

    /// Waits until the weights of a fetch are there.
    ///
    /// # Errors
    /// A stop while waiting, or that the weights could not be read.
    pub(super) fn wait(&mut self, step: u32, spin: Spin, stop: &Stop) -> Result<(), StepStop> {
        let needed = self.last_begun[step as usize];
        let sync = &self.shared.sync;
        sync.wait_released(needed, &mut self.peer, spin, stop)?;
        match self.shared.failure.get() {
            None => Ok(()),
            Some(why) => Err(StepStop::Fault(WorkerFault::Weights(why.clone()))),
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.shared.stop.set();
        self.shared.sync.wake();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its hook, and nobody waits for it any more.
            let _ = thread.join();
        }
    }
}

/// The thread's end.
struct Reader {
    shared: Arc<Shared>,
    plan: FetchPlan,
    file: Arc<File>,
    arena: Arc<Arena>,
}

impl Reader {
    /// Reads what is asked for until it is stopped, or something cannot be read.
    fn run(self) {
        let mut peer = Peer::default();
        for count in 1.. {
            let sync = &self.shared.sync;
            if sync
                .wait_published(count, &mut peer, Spin::SHORT, &self.shared.stop)
                .is_err()
            {
                return;
            }
            let step = self.step(count);
            if let Err(error) = self.read(step) {
                let text = format!(
                    "cannot read {} bytes of weights of `{}` at byte {} of the bundle: {error}",
                    step.bytes, step.actor, step.file_offset
                );
                // Only this thread sets it.
                let _ = self.shared.failure.set(text);
                // Whoever waits, now or later, finds the reason.
                sync.release(u64::MAX);
                return;
            }
            sync.release(count);
        }
    }

    /// The fetch that was begun as the `count`th, from 1.
    fn step(&self, count: u64) -> &FetchStep {
        let index = count as usize - 1;
        let before_first = &self.plan.before_first;
        let step = match index.checked_sub(before_first.len()) {
            None => before_first[index] as usize,
            Some(index) => index % self.plan.steps.len(),
        };
        &self.plan.steps[step]
    }

    fn read(&self, step: &FetchStep) -> io::Result<()> {
        debug_assert!(step.arena_offset + step.bytes <= self.arena.bytes());
        let mut done = 0;
        while done < step.bytes && !self.shared.stop.is_set() {
            let bytes = READ_BYTES.min(step.bytes - done);
            let to = self.arena.base().wrapping_add(step.arena_offset + done);
            // SAFETY: the bytes are in the arena, which is held, and initialised, as arenas are zeroed at first. By the
            // verified plan nothing else has them between the fetch, which has been published, and its wait, for which
            // `release` is the partner.
            let place = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
            read_at(&self.file, place, step.file_offset + done as u64)?;
            done += bytes;
        }
        Ok(())
    }
}

#[cfg(unix)]
fn read_at(file: &File, place: &mut [u8], offset: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.read_exact_at(place, offset)
}

#[cfg(not(unix))]
fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn step(actor: &str, file_offset: u64, bytes: usize, arena_offset: usize) -> FetchStep {
        FetchStep {
            actor: actor.to_owned(),
            file_offset,
            bytes,
            arena_offset,
        }
    }

    fn at(arena: &Arena, offset: usize) -> u8 {
        // SAFETY: within the arena, between the wait for these bytes and the next fetch of them.
        unsafe { *arena.base().add(offset) }
    }

    #[test]
    fn fetches_come_in_the_order_of_the_calendar() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[1, 2, 3, 4]).expect("writable");
        let arena = Arc::new(Arena::new(4096, false).expect("memory"));
        let plan = FetchPlan {
            steps: vec![step("a", 0, 1, 0), step("b", 1, 1, 0), step("c", 2, 2, 64)],
            before_first: vec![2],
        };
        let stop = Stop::new();
        let mut fetcher =
            Fetcher::start(plan, Arc::new(file), Arc::clone(&arena)).expect("a thread");
        for _ in 0..1000 {
            fetcher.wait(2, Spin::SHORT, &stop).expect("c");
            assert_eq!((at(&arena, 64), at(&arena, 65)), (3, 4));
            for (index, value) in [(0, 1), (1, 2)] {
                fetcher.begin(index);
                fetcher.wait(index, Spin::SHORT, &stop).expect("a or b");
                assert_eq!(at(&arena, 0), value);
            }
            fetcher.begin(2);
        }
    }

    #[test]
    fn a_file_that_was_cut_off_is_an_error_at_every_wait() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(100).expect("writable");
        let arena = Arc::new(Arena::new(4096, false).expect("memory"));
        let plan = FetchPlan {
            steps: vec![step("late", 64, 64, 0)],
            before_first: Vec::new(),
        };
        let stop = Stop::new();
        let mut fetcher = Fetcher::start(plan, Arc::new(file), arena).expect("a thread");
        for _ in 0..3 {
            fetcher.begin(0);
            let Err(StepStop::Fault(WorkerFault::Weights(why))) =
                fetcher.wait(0, Spin::SHORT, &stop)
            else {
                panic!("the weights are not there");
            };
            assert!(
                why.starts_with(
                    "cannot read 64 bytes of weights of `late` at byte 64 of the bundle: "
                ),
                "{why}"
            );
        }
    }
}
