//! A lock that a process holds for as long as it lives, in memory that it shares with whoever wants to know of its end.
//!
//! A process that is killed closes its sockets only after the system has freed its memory, which takes about 100 ms for each
//! GiB. A *robust futex* is released before that: the system looks at what a thread holds as the first thing when it ends the
//! thread, marks the word in shared memory, and wakes whoever waits for it. All ends of a process are alike in that: a signal,
//! `abort`, `exit`, too little memory in the machine, and another program that takes its place (`execve`).
//!
//! # Who holds it
//!
//! The system keeps one list of held locks for each *thread*. So a thread of its own holds the lock: it does nothing else, and
//! ends with its process only. Lists of other threads stay what the C library made them, which drivers may use. A process that has no
//! drivers need not have that thread: its main thread holds the lock.
//!
//! # The word
//!
//! | word | written by | meaning |
//! |---|---|---|
//! | 0 | whoever makes it | not taken yet |
//! | number of the thread, `WAITERS` | the process | held |
//! | `OWNER_DIED` besides | the system | the process is ending |
//! | `CLOSED` | whoever waits | nobody waits any more |
//!
//! The list of the holding thread is in memory of the process itself, and nothing but this word is shared. If something else is
//! written there, by the process or by another one whose lock is beside it, the process can at most be taken for dead, or
//! for one that never took the lock: its socket tells then. Whoever waits looks at the word, and follows nothing in it. Must not
//! know what follows from an end.
#![expect(
    unsafe_code,
    reason = "tells the system of a held lock, and believes that another process has laid out shared memory"
)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as FlagOrdering};

use crossbeam_utils::CachePadded;
use rustix::thread::futex;

use super::arena::{Arena, In, OutOfMemory};
use super::layout::check_size;
use super::primitive::{AtomicU32, Ordering};

/// Locks in a page.
const LOCKS_PER_PAGE: usize = 32;
/// Nobody waits any more: no thread has this number.
const CLOSED: u32 = futex::WAITERS;
/// Whoever waits looks at the word again after so long, whether anything has woken it or not: what is shared may have been
/// overwritten in the very moment in which the wait was to end.
const LOOK_AGAIN: futex::Timespec = futex::Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};
/// The thread that holds a lock calls little, and its stack may be locked in memory.
const HOLDER_STACK_BYTES: usize = 256 << 10;

/// One process's lock.
#[derive(Debug)]
pub(crate) struct LifeLock {
    word: AtomicU32,
}

/// What ended a wait for the end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeEnd {
    /// The process is ending, or says so.
    Died,
    /// Nobody wants to know any more.
    Closed,
    /// The word is none that a lock can have: nothing can be said of the process.
    Overwritten,
}

impl LifeLock {
    fn new() -> CachePadded<Self> {
        CachePadded::new(Self {
            word: AtomicU32::new(0),
        })
    }

    /// Waits until the process that holds the lock, or will, comes to its end, or until [`Self::close`] with the same flag.
    pub(crate) fn wait_for_end(&self, is_closed: &AtomicBool) -> LifeEnd {
        let mut holder = 0;
        loop {
            let word = self.word.load(Ordering::Acquire);
            if is_closed.load(FlagOrdering::Acquire) {
                return LifeEnd::Closed;
            }
            if word & futex::OWNER_DIED != 0 {
                return LifeEnd::Died;
            }
            // Taken once, and never given back.
            if holder != 0 && word != holder {
                return LifeEnd::Overwritten;
            }
            holder = word;
            // Any error (interrupted, changed meanwhile, time over) means the same as a wake-up: look again.
            let _ = futex::wait(&self.word, futex::Flags::empty(), word, Some(&LOOK_AGAIN));
        }
    }

    /// Ends the wait.
    pub(crate) fn close(&self, is_closed: &AtomicBool) {
        is_closed.store(true, FlagOrdering::Release);
        self.set(CLOSED);
    }

    fn set(&self, word: u32) {
        self.word.store(word, Ordering::Release);
        // Waking cannot fail for a valid address; there is nothing to do if it did.
        let _ = futex::wake(&self.word, futex::Flags::empty(), i32::MAX as u32);
    }

    /// Takes the lock on this thread, which must end with its process only.
    fn take(&'static self) -> io::Result<()> {
        // Never freed: the system looks at it when the thread ends.
        let list = Box::leak(Box::new(RobustList::default()));
        let entry = &raw const list.entry;
        list.entry.next = (&raw const list.head).cast();
        list.head.next = entry;
        let word_address = (&raw const self.word).addr();
        list.head.word_offset = word_address.wrapping_sub(entry.addr()).cast_signed() as _;

        // SAFETY: the list and the word to which it leads are never freed, and nobody changes the list from here on.
        let result = unsafe {
            libc::syscall(
                libc::SYS_set_robust_list,
                &raw const list.head,
                size_of::<RobustHead>(),
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }

        let thread_number = rustix::thread::gettid().as_raw_nonzero().get();
        // As if somebody waited already: the system wakes nobody otherwise.
        self.set(thread_number.cast_unsigned() | futex::WAITERS);
        Ok(())
    }

    /// Writes something that is no lock, as a process that does wrong would.
    #[cfg(test)]
    pub(crate) fn overwrite(&self, word: u32) {
        self.set(word);
    }
}

/// What a thread tells the system of the locks that it holds (`struct robust_list_head`).
#[repr(C)]
struct RobustHead {
    next: *const RobustEntry,
    /// From an entry to the word of its lock.
    word_offset: libc::c_long,
    pending: *const RobustEntry,
}

#[repr(C)]
struct RobustEntry {
    /// The next entry, or the head behind the last one.
    next: *const RobustEntry,
}

/// A list of one lock.
struct RobustList {
    head: RobustHead,
    entry: RobustEntry,
}

impl Default for RobustList {
    fn default() -> Self {
        let nothing = std::ptr::null();
        Self {
            head: RobustHead {
                next: nothing,
                word_offset: 0,
                pending: nothing,
            },
            entry: RobustEntry { next: nothing },
        }
    }
}

/// A lock for a process that is to be started, in memory that it can map.
pub(crate) struct PlacedLock {
    page: Arc<Arena>,
    number: usize,
    pub(crate) lock: In<CachePadded<LifeLock>>,
}

impl PlacedLock {
    /// What the process needs to find it: its memory, and its number there.
    pub(crate) fn place(&self) -> Option<(BorrowedFd<'_>, u32)> {
        Some((self.page.fd()?, self.number as u32))
    }
}

/// Makes locks. None is used twice: the process that had it may not be gone yet.
#[derive(Default)]
pub(crate) struct LifeLocks {
    page: Option<LockPage>,
}

struct LockPage {
    arena: Arc<Arena>,
    locks: In<[CachePadded<LifeLock>]>,
    used: usize,
}

impl LifeLocks {
    /// A fresh one.
    ///
    /// # Errors
    /// Too little memory.
    pub(crate) fn next(&mut self) -> Result<PlacedLock, OutOfMemory> {
        let page = match self.page.take() {
            Some(page) if page.used < LOCKS_PER_PAGE => page,
            _ => LockPage::new()?,
        };
        let page = self.page.insert(page);
        let number = page.used;
        page.used += 1;
        Ok(PlacedLock {
            page: Arc::clone(&page.arena),
            number,
            lock: page.locks.one(number),
        })
    }
}

impl LockPage {
    fn new() -> Result<Self, OutOfMemory> {
        let bytes = size_of::<CachePadded<LifeLock>>() * LOCKS_PER_PAGE;
        let arena = Arc::new(Arena::shared(bytes as u64)?);
        Ok(Self {
            locks: In::create(&arena, 0, LOCKS_PER_PAGE, LifeLock::new),
            arena,
            used: 0,
        })
    }
}

/// The lock of this number in memory that another process has made.
///
/// # Errors
/// The memory cannot be mapped, or has no such lock.
pub(crate) fn find(memory: OwnedFd, number: u32) -> io::Result<In<CachePadded<LifeLock>>> {
    let arena = Arc::new(Arena::map(memory)?);
    let row_bytes = size_of::<CachePadded<LifeLock>>() * LOCKS_PER_PAGE;
    check_size(&arena, row_bytes as u64)?;
    let number = number as usize;
    if number >= LOCKS_PER_PAGE {
        return Err(io::Error::other(format!(
            "life lock {number} in memory that has {LOCKS_PER_PAGE}"
        )));
    }
    // SAFETY: the process that has sent it is this very program, and made it so; any word is a lock.
    let locks = unsafe { In::<[CachePadded<LifeLock>]>::find(&arena, 0, LOCKS_PER_PAGE) };
    Ok(locks.one(number))
}

/// Holds the lock from now on until this process ends, on the calling thread, which must be the one that the process ends with, and
/// must take no robust mutexes of the C library.
///
/// # Errors
/// The system knows no such locks.
pub(crate) fn hold(lock: In<CachePadded<LifeLock>>) -> io::Result<()> {
    // Never freed, as the system looks at it when the process ends.
    let lock: &'static In<CachePadded<LifeLock>> = Box::leak(Box::new(lock));
    lock.take()
}

/// Holds the lock from now on until this process ends, on a thread of its own, on which `begun` runs then: what it starts has a
/// parent that ends with this process only.
///
/// # Errors
/// There is no thread, or the system knows no such locks.
pub(crate) fn hold_on_thread(
    lock: In<CachePadded<LifeLock>>,
    begun: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("zbmd life".to_owned())
        .stack_size(HOLDER_STACK_BYTES)
        .spawn(move || {
            let taken = hold(lock);
            let is_taken = taken.is_ok();
            let _ = tell.send(taken);
            if !is_taken {
                return;
            }
            begun();
            loop {
                std::thread::park();
            }
        })?;
    told.recv().map_err(io::Error::other)?
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc;

    use super::*;

    fn fresh_lock() -> PlacedLock {
        LifeLocks::default().next().expect("small")
    }

    /// Waits on a thread of its own; the flag ends that, and the receiver tells how it ended.
    fn wait_on_a_thread(lock: &PlacedLock) -> (Arc<AtomicBool>, mpsc::Receiver<LifeEnd>) {
        let is_closed = Arc::<AtomicBool>::default();
        let (tell, told) = mpsc::channel();
        let (watched, flag) = (lock.lock.clone(), Arc::clone(&is_closed));
        std::thread::spawn(move || tell.send(watched.wait_for_end(&flag)));
        (is_closed, told)
    }

    /// The system releases it with the thread that holds it, whoever waited first.
    #[test]
    fn the_end_of_the_thread_that_holds_it_ends_the_wait() {
        for waits_first in [true, false] {
            let placed = fresh_lock();
            let wait = waits_first.then(|| wait_on_a_thread(&placed));
            let (memory, number) = placed.place().expect("it is shared");
            let memory = memory.try_clone_to_owned().expect("a descriptor");
            let holder = std::thread::spawn(move || {
                // As another process maps it.
                let lock = Box::leak(Box::new(find(memory, number).expect("a lock")));
                lock.take().expect("taken");
            });
            holder.join().expect("no panic");
            let (_, told) = wait.unwrap_or_else(|| wait_on_a_thread(&placed));
            assert_eq!(told.recv(), Ok(LifeEnd::Died), "waits first: {waits_first}");
        }
    }

    #[test]
    fn a_lock_that_is_held_ends_no_wait_until_it_is_closed() {
        let placed = fresh_lock();
        let (begun, has_begun) = mpsc::channel();
        hold_on_thread(placed.lock.clone(), move || {
            begun.send(()).expect("the test waits");
        })
        .expect("held");
        has_begun.recv().expect("it runs");
        let (is_closed, told) = wait_on_a_thread(&placed);
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
        placed.lock.close(&is_closed);
        assert_eq!(told.recv(), Ok(LifeEnd::Closed));
    }

    /// Nobody is kept waiting by what a process writes there, and nobody loops.
    #[test]
    fn whatever_is_written_the_wait_ends() {
        let placed = fresh_lock();
        let (_, told) = wait_on_a_thread(&placed);
        placed.lock.overwrite(7 | futex::WAITERS);
        placed.lock.overwrite(u32::MAX);
        // The waiting thread may have seen only the last of them.
        assert_eq!(told.recv(), Ok(LifeEnd::Died), "the bit is set");

        for words in [[1, 2], [futex::WAITERS, 0], [5, futex::WAITERS]] {
            let placed = fresh_lock();
            let (is_closed, told) = wait_on_a_thread(&placed);
            words.iter().for_each(|word| placed.lock.overwrite(*word));
            placed.lock.close(&is_closed);
            // Even if somebody writes over that.
            placed.lock.overwrite(words[0]);
            let end = told.recv().expect("it ends");
            assert!(matches!(end, LifeEnd::Closed | LifeEnd::Overwritten));
        }

        let placed = fresh_lock();
        placed.lock.overwrite(1);
        let wait = placed.lock.clone();
        let flag = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait.wait_for_end(&flag));
            // Until it is seen: what is written before that is a lock like any other.
            let mut word = 1;
            while !waiting.is_finished() {
                word = word % 1000 + 1;
                placed.lock.overwrite(word);
                std::thread::yield_now();
            }
            assert_eq!(waiting.join().expect("no panic"), LifeEnd::Overwritten);
        });
    }

    #[test]
    fn every_process_gets_a_lock_of_its_own_and_numbers_are_checked() {
        let mut locks = LifeLocks::default();
        let placed: Vec<PlacedLock> = (0..3 * LOCKS_PER_PAGE)
            .map(|_| locks.next().expect("small"))
            .collect();
        let addresses: BTreeSet<usize> = placed
            .iter()
            .map(|placed| (&raw const *placed.lock).addr())
            .collect();
        assert_eq!(addresses.len(), placed.len());

        let memory = || {
            let (memory, _) = placed[0].place().expect("it is shared");
            memory.try_clone_to_owned().expect("a descriptor")
        };
        find(memory(), LOCKS_PER_PAGE as u32 - 1).expect("the last one");
        for number in [LOCKS_PER_PAGE as u32, u32::MAX] {
            let error = find(memory(), number).expect_err("refused").to_string();
            assert!(error.contains(&number.to_string()), "{error}");
        }
        let unsealed = tempfile::tempfile().expect("a file");
        find(unsealed.into(), 0).expect_err("it could be made shorter");
    }
}
