//! The cores of one device, which share the work of a call: a leader, which runs the calendar, and helpers.
//!
//! A kernel cuts its work into parts that write to different places, and the same bits come out whoever does which
//! part and whether there are helpers at all. The leader never waits for a helper that sleeps: who has not come when
//! the last part is taken has no part in it. Each member has a share of the parts, one after the other, which it takes from the
//! front, and then takes from the back of what others have left. So the same rows stay with the same core from one
//! call to the next, and what one call wrote lies in the cache of the core that reads it in the next. Helpers spin for a while for the next call and then sleep. Nothing here
//! allocates once a team is made.
#![expect(
    unsafe_code,
    reason = "lends a call's work to other threads for as long as the call lasts"
)]

use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle, Thread};

/// Parts that work is cut into for each core: what one core does slowly, another takes over.
const PARTS: usize = 4;
/// Multiplications in vectors that are worth being shared: some microseconds.
const WORTHWHILE: usize = 1 << 18;
/// Looks of a helper before it sleeps: some tens of microseconds.
const LOOKS: u32 = 1 << if cfg!(miri) { 4 } else { 14 };

/// Of [`Gate::state`]: helpers may come in.
const OPEN: u64 = 1 << 31;
/// How many have come in.
const COUNT: u64 = OPEN - 1;
/// One call more.
const CALL: u64 = 1 << 32;
/// What is not the number of the call.
const COUNT_AND_OPEN: u64 = COUNT | OPEN;

/// Parts of a call at most, as [`Share`] counts them.
const MAX_PARTS: usize = u16::MAX as usize;

/// Work for each of so many parts; valid while the gate is open or somebody is in.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize) + Sync),
    parts: usize,
}

/// What leader and helpers share. Padding keeps what helpers look at all the time from what they change.
#[repr(align(128))]
struct Padded<T>(T);

/// What is left of a member's share of the parts of a call: the call's number in the upper half, and two ends of 16 bits. Whoever finds
/// the number of an earlier call puts in the share of this one, so that nobody has to do it for all before a call.
struct Share(AtomicU64);

impl Share {
    /// Takes a part of the share of a member, which is `whole` at the beginning of the call; `None` when nothing is left.
    fn take(&self, call: u64, whole: &Range<usize>, from_front: bool) -> Option<usize> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let is_of_call = seen & !COUNT_AND_OPEN == call;
            let (begin, end) = match is_of_call {
                true => ((seen >> 16 & 0xffff) as usize, (seen & 0xffff) as usize),
                false => (whole.start, whole.end),
            };
            let (part, left) = match from_front {
                _ if is_of_call && begin >= end => return None,
                // The number is written all the same: after 2^32 calls it comes again.
                _ if begin >= end => (None, (0, 0)),
                true => (Some(begin), (begin + 1, end)),
                false => (Some(end - 1), (begin, end - 1)),
            };
            let after = call | (left.0 as u64) << 16 | left.1 as u64;
            // Only who does which part is decided here: what parts read and write is ordered by the gate.
            let taken =
                self.0
                    .compare_exchange_weak(seen, after, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => return part,
                Err(now) => seen = now,
            }
        }
    }

    /// Nothing is left of it in this call.
    fn clear(&self, call: u64) {
        self.0.store(call, Ordering::Relaxed);
    }
}

/// Where helpers come in, and what they find there: in one line of the cache, which goes from core to core once.
struct Gate {
    /// Number of the call, whether it is open, and how many helpers have come in.
    state: AtomicU64,
    job: UnsafeCell<Job>,
}

struct Shared {
    gate: Padded<Gate>,
    /// What is left for each member, the leader first.
    shares: Box<[Padded<Share>]>,
    /// How often helpers have gone out again, in all calls.
    left: Padded<AtomicU64>,
    sleeping: AtomicUsize,
    /// To wake them.
    helpers: OnceLock<Box<[Thread]>>,
    stop: AtomicBool,
    panicked: AtomicBool,
}

// SAFETY: `job` is written by the leader alone, while the gate is shut and nobody is in; helpers read it between
// coming in (acquire) and going out (release). The work it leads to may be called by many threads.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

thread_local! {
    /// The team that this thread leads.
    static LED: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
    static SIZE: Cell<usize> = const { Cell::new(1) };
}

/// Threads that help whichever thread leads them: with what leads, they are a team.
pub struct Helpers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Helpers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helpers")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl Helpers {
    /// Helpers for a team of `cores`, one fewer than those; each calls `begin` with its number, from 1, before anything
    /// else, for example to tie itself to its core.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(
        cores: usize,
        begin: impl Fn(usize) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let nothing: &'static (dyn Fn(usize) + Sync) = &|_| {};
        let shared = Arc::new(Shared {
            gate: Padded(Gate {
                state: AtomicU64::new(0),
                job: UnsafeCell::new(Job {
                    work: nothing,
                    parts: 0,
                }),
            }),
            shares: (0..cores.max(1))
                .map(|_| Padded(Share(AtomicU64::new(0))))
                .collect(),
            left: Padded(AtomicU64::new(0)),
            sleeping: AtomicUsize::new(0),
            helpers: OnceLock::new(),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let begin = Arc::new(begin);

        // From here on dropping it ends the threads that were started.
        let mut helpers = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        for number in 1..cores {
            let shared = Arc::clone(&shared);
            let begin = Arc::clone(&begin);
            let name = thread::current()
                .name()
                .map_or_else(String::new, |n| format!("{n} +{number}"));
            let helper = thread::Builder::new().name(name).spawn(move || {
                begin(number);
                help(&shared, number);
            })?;
            helpers.threads.push(helper);
        }

        let threads = helpers.threads.iter().map(|h| h.thread().clone());
        // Set once, here.
        let _ = shared.helpers.set(threads.collect());
        Ok(helpers)
    }

    /// Calls `f`, whose kernels share their work with the helpers. A team that this thread leads already rests meanwhile.
    pub fn lead<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let _leading = Leading::begin(self);
        f()
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for helper in self.threads.drain(..) {
            helper.thread().unpark();
            // It has nothing to tell: panics were passed on when they came.
            let _ = helper.join();
        }
    }
}

/// While it is there, this thread leads helpers, or nobody. It stays on the thread that made it. When it is dropped, also by a panic,
/// the thread leads again whom it led before.
#[derive(Debug)]
struct Leading {
    /// The team and the number of cores that the thread had before.
    before: (*const Shared, usize),
}

impl Leading {
    /// The helpers must outlive what this gives, and so must the team that the thread leads now, if it leads one.
    fn begin(helpers: &Helpers) -> Self {
        let before = (LED.get(), SIZE.get());
        if !helpers.threads.is_empty() {
            LED.set(Arc::as_ptr(&helpers.shared));
            SIZE.set(helpers.threads.len() + 1);
        }
        Self { before }
    }

    /// Nobody.
    fn none() -> Self {
        Self {
            before: (LED.replace(std::ptr::null()), SIZE.replace(1)),
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        let (led, size) = self.before;
        LED.set(led);
        SIZE.set(size);
    }
}

/// Helpers of the thread that made them.
#[derive(Debug)]
pub struct Team {
    /// Before the helpers, which are dropped after it.
    _leading: Leading,
    _helpers: Helpers,
}

impl Team {
    /// Makes this thread the leader of a team of `cores`, itself among them; for `begin` see [`Helpers::start`]. Kernels
    /// called by this thread share their work until the team is dropped.
    ///
    /// # Errors
    /// If a thread cannot be started.
    ///
    /// # Panics
    /// If this thread leads a team already.
    pub fn lead(
        cores: usize,
        begin: impl Fn(usize) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        assert!(LED.get().is_null(), "this thread leads a team already");
        let helpers = Helpers::start(cores, begin)?;
        Ok(Self {
            _leading: Leading::begin(&helpers),
            _helpers: helpers,
        })
    }

    /// A team of a device's cores; `None` where it has one, or threads cannot be started: kernels take longer then, and
    /// that is all. With `tie` this thread is kept on the first of the cores and helpers on the others; says also
    /// whether this one is.
    ///
    /// # Panics
    /// If this thread leads a team already.
    pub fn of_cores(cores: &[u32], tie: bool) -> (Option<Self>, bool) {
        let tied = tie && pin(&cores[..cores.len().min(1)]);
        let own = cores.to_vec();
        let begin = move |number: usize| {
            if tie {
                pin(&own[number..=number]);
            }
        };
        let team = (cores.len() > 1)
            .then(|| Self::lead(cores.len(), begin).ok())
            .flatten();
        (team, tied)
    }
}

/// Ties this thread to cores. Not being allowed to, or not having them, costs speed only: it stays free then.
#[cfg(all(target_os = "linux", not(miri)))]
fn pin(cores: &[u32]) -> bool {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    for &core in cores.iter().filter(|&&c| (c as usize) < CpuSet::MAX_CPU) {
        set.set(core as usize);
    }
    set.count() > 0 && sched_setaffinity(None, &set).is_ok()
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn pin(_cores: &[u32]) -> bool {
    false
}

/// Cores that share the work of this thread's calls, itself among them.
pub fn cores() -> usize {
    SIZE.get()
}

/// Does the work of all parts, on all cores of this thread's team. Parts must write to different places, and the work
/// of one must not wait for that of another.
fn split(parts: usize, work: &(dyn Fn(usize) + Sync)) {
    // Work that is cut up again within a part is done by who does the part.
    let leading = Leading::none();
    let (led, _) = leading.before;
    if led.is_null() || !(2..=MAX_PARTS).contains(&parts) {
        (0..parts).for_each(work);
    } else {
        // SAFETY: the team lives until it is dropped, by this thread, which then leads none.
        call(unsafe { &*led }, parts, work);
    }
}

/// A length that cores share, such as the rows of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    length: usize,
    /// Parts are multiples of it, but for the last one of each core's share.
    tile: usize,
    /// Shares are multiples of it, but for the last one.
    step: usize,
}

impl Cut {
    /// A length that is cut into tiles.
    pub const fn new(length: usize, tile: usize) -> Self {
        Self {
            length,
            tile,
            step: tile,
        }
    }

    /// Where cores have a tile or more, shares may end at multiples of `step` too, so that they come out more even: where what a tile
    /// has less costs as much less.
    pub const fn with_step(mut self, step: usize) -> Self {
        self.step = step;
        self
    }

    /// How much there is to share.
    pub const fn length(self) -> usize {
        self.length
    }

    /// What one of so many cores has.
    fn share(self, member: usize, cores: usize) -> Range<usize> {
        let step = match self.length < cores * self.tile {
            true => self.tile,
            false => self.step,
        };
        let steps = self.length.div_ceil(step);
        let end_of = |members: usize| (steps * members / cores * step).min(self.length);
        end_of(member)..end_of(member + 1)
    }

    /// The most that one of so many cores has.
    fn largest_share(self, cores: usize) -> usize {
        let shares = (0..cores).map(|member| self.share(member, cores).len());
        shares.max().unwrap_or(0)
    }
}

/// Calls `f` with parts of a length, on all cores of this thread's team, or with the whole where it takes no more than so many
/// multiplications. Each core has a share of its own, the same in each call with the same cut.
pub fn share(work: usize, cut: Cut, f: &(dyn Fn(Range<usize>) + Sync)) {
    let cores = cores();
    if cores == 1 || work < WORTHWHILE || cut.length <= cut.tile {
        return f(0..cut.length);
    }
    let largest_share = cut.largest_share(cores);
    let part_length = largest_share.div_ceil(cut.tile).div_ceil(PARTS) * cut.tile;
    let share_parts = largest_share.div_ceil(part_length);
    split(share_parts * cores, &|part| {
        let share = cut.share(part / share_parts, cores);
        let start = share.start + part % share_parts * part_length;
        if start < share.end {
            f(start..(start + part_length).min(share.end));
        }
    });
}

/// Whether [`share`] had better cut the first of two dimensions: unless the busiest core does so much less of the other that it pays
/// for what each core then reads of the first.
pub fn is_better_cut(first: Cut, other: Cut) -> bool {
    const WORTH: f64 = 0.03;
    let cores = cores();
    busiest_part(first, cores) <= busiest_part(other, cores) + WORTH
}

/// The part of the work that the busiest of equally quick cores does: 1 over the number of cores, or more where few tiles do not come
/// out even.
fn busiest_part(cut: Cut, cores: usize) -> f64 {
    match cut.length {
        0 => 1.0,
        length => cut.largest_share(cores) as f64 / length as f64,
    }
}

/// Calls `f` with stretches of `all` that lie side by side, and with the number of the first chunk of each: as [`share`]
/// does, with as much `work` in all. Each stretch is a number of chunks of `chunk` elements, but for the last, which may end
/// with a shorter one.
pub fn share_slice<T: Send>(
    work: usize,
    all: &mut [T],
    chunk: usize,
    f: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    struct Start<T>(*mut T);
    // SAFETY: stretches have no element in common, and elements may be sent.
    unsafe impl<T: Send> Sync for Start<T> {}

    let length = all.len();
    let start = &Start(all.as_mut_ptr());
    let chunk = chunk.max(1);
    share(work, Cut::new(length.div_ceil(chunk), 1), &|chunks| {
        let first = chunks.start * chunk;
        let end = (chunks.end * chunk).min(length);
        // SAFETY: within the slice, which this function has for itself; no two parts have a chunk in common.
        let stretch = unsafe { std::slice::from_raw_parts_mut(start.0.add(first), end - first) };
        f(chunks.start, stretch);
    });
}

/// Shuts the gate and waits for those who are in, also where the leader's own part panics.
struct Shut<'a> {
    shared: &'a Shared,
    /// How often helpers had gone out before the call.
    left_before: u64,
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        let Shared {
            gate, left, shares, ..
        } = self.shared;
        let state = &gate.0.state;
        if thread::panicking() {
            // The rest need not be done.
            let call = state.load(Ordering::Relaxed) & !COUNT_AND_OPEN;
            shares.iter().for_each(|share| share.0.clear(call));
        }
        let came = state.fetch_and(!OPEN, Ordering::AcqRel) & COUNT;
        while left.0.load(Ordering::Acquire) - self.left_before < came {
            std::hint::spin_loop();
        }
    }
}

fn call(shared: &Shared, parts: usize, work: &(dyn Fn(usize) + Sync)) {
    // SAFETY: only the lifetime changes: `Shut` keeps this frame until nobody is in.
    let work: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
    // SAFETY: the gate is shut and all who were in have left: `Shut` saw to it after the call before.
    unsafe { *shared.gate.0.job.get() = Job { work, parts } };
    // Nobody is in: it stays so until somebody comes.
    let left_before = shared.left.0.load(Ordering::Relaxed);
    let state = &shared.gate.0.state;
    let last_call = state.load(Ordering::Relaxed) & !COUNT_AND_OPEN;
    let call = last_call.wrapping_add(CALL);
    state.store(call | OPEN, Ordering::SeqCst);
    if shared.sleeping.load(Ordering::SeqCst) > 0 {
        shared
            .helpers
            .get()
            .into_iter()
            .flatten()
            .for_each(Thread::unpark);
    }
    {
        let _shut = Shut {
            shared,
            left_before,
        };
        take_parts(shared, 0, call, work, parts);
    }
    assert!(
        !shared.panicked.load(Ordering::Relaxed),
        "a part of a kernel panicked on another core"
    );
}

/// Does the parts of a member's own share, and then what is left of others', beginning with those next to it.
fn take_parts(
    shared: &Shared,
    member: usize,
    call: u64,
    work: &(dyn Fn(usize) + Sync),
    parts: usize,
) {
    let members = shared.shares.len();
    for step in 0..members {
        let owner = (member + step) % members;
        let whole = owner * parts / members..(owner + 1) * parts / members;
        let share = &shared.shares[owner].0;
        while let Some(part) = share.take(call, &whole, step == 0) {
            work(part);
        }
    }
}

/// What helpers do until the team is dropped.
fn help(shared: &Shared, member: usize) {
    // The number of the last call that this thread took part in, and looks at the gate since then.
    let mut last_call = 0;
    let mut looks = 0;

    while !shared.stop.load(Ordering::Relaxed) {
        let gate = shared.gate.0.state.load(Ordering::SeqCst);
        let call = gate & !COUNT_AND_OPEN;
        if gate & OPEN == 0 || call == last_call {
            looks += 1;
            if looks < LOOKS {
                std::hint::spin_loop();
            } else {
                sleep(shared, last_call);
                looks = 0;
            }
            continue;
        }

        // Entering counts this thread at the gate; it fails where the gate was closed or another thread came first.
        let state = &shared.gate.0.state;
        let entered = state.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed);
        if entered.is_err() {
            continue;
        }
        last_call = call;
        looks = 0;

        // SAFETY: this thread is in, so the leader neither writes the job nor gives up what it leads to.
        let (work, parts) = unsafe {
            let Job { work, parts } = *shared.gate.0.job.get();
            (&*work, parts)
        };
        let taken = AssertUnwindSafe(|| take_parts(shared, member, call, work, parts));
        if catch_unwind(taken).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.left.0.fetch_add(1, Ordering::Release);
    }
}

/// Sleeps until somebody calls, unless a call has come since the one that was seen, or the end.
fn sleep(shared: &Shared, seen: u64) {
    shared.sleeping.fetch_add(1, Ordering::SeqCst);
    let gate = shared.gate.0.state.load(Ordering::SeqCst);
    let called = gate & OPEN != 0 && gate & !COUNT_AND_OPEN != seen;
    if !called && !shared.stop.load(Ordering::SeqCst) {
        thread::park();
    }
    shared.sleeping.fetch_sub(1, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Squares by parts.
    fn squares(parts: usize) -> Vec<usize> {
        let sums: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
        split(parts, &|i| {
            _ = sums[i].fetch_add(i * i + 1, Ordering::Relaxed)
        });
        sums.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_part_is_done_once() {
        let rounds = if cfg!(miri) { 5 } else { 2000 };
        for size in [1, 2, 4] {
            let team = Team::lead(size, |_| ()).expect("threads");
            assert_eq!(cores(), size);
            for parts in (0..rounds).map(|i| i % 9) {
                let want: Vec<usize> = (0..parts).map(|i| i * i + 1).collect();
                assert_eq!(squares(parts), want);
            }
            drop(team);
            assert_eq!((cores(), squares(3)), (1, vec![1, 2, 5]));
        }
    }

    #[test]
    fn a_share_is_taken_from_both_ends_once_in_each_call() {
        let share = Share(AtomicU64::new(0));
        let take = |call: u64, whole: Range<usize>, from_front| {
            share.take(call * CALL, &whole, from_front)
        };
        assert_eq!(take(1, 3..6, true), Some(3));
        assert_eq!(take(1, 3..6, false), Some(5));
        assert_eq!(take(1, 3..6, false), Some(4));
        assert_eq!((take(1, 3..6, true), take(1, 3..6, false)), (None, None));

        // Another call puts in its own share, also where it is empty.
        assert_eq!(take(2, 0..0, true), None);
        assert_eq!(take(1, 3..6, true), Some(3));
        assert_eq!(take(2, 0..2, true), Some(0));
        share.clear(2 * CALL);
        assert_eq!(take(2, 0..2, true), None);
        let most = MAX_PARTS - 1..MAX_PARTS;
        assert_eq!(take(u64::from(u32::MAX), most, true), Some(MAX_PARTS - 1));
    }

    #[test]
    fn the_busiest_core_of_a_cut_is_known() {
        let busiest = |length, tile, cores| busiest_part(Cut::new(length, tile), cores);
        assert_eq!(busiest(256, 32, 2), 0.5);
        // Six of eleven tiles, the last of which is shorter.
        assert_eq!(busiest(128, 12, 2), 68.0 / 128.0);
        assert_eq!(busiest(3, 12, 2), 1.0);
        assert_eq!(busiest(100, 7, 1), 1.0);
        assert_eq!(busiest(0, 7, 2), 1.0);
        // In finer steps, but not for less than a tile each.
        let stepped = |length| busiest_part(Cut::new(length, 12).with_step(4), 2);
        assert_eq!((stepped(128), stepped(49)), (0.5, 25.0 / 49.0));
        assert_eq!((stepped(20), stepped(10)), (12.0 / 20.0, 1.0));
    }

    #[test]
    fn helpers_are_led_from_any_thread_one_after_the_other() {
        let mut helpers = Helpers::start(2, |_| ()).expect("threads");
        for _ in 0..3 {
            thread::scope(|scope| {
                let led = scope.spawn(|| helpers.lead(|| (cores(), squares(5))));
                assert_eq!(led.join().expect("no panic"), (2, vec![1, 2, 5, 10, 17]));
            });
        }

        // A team within a team.
        let _team = Team::lead(3, |_| ()).expect("threads");
        assert_eq!(helpers.lead(cores), 2);
        assert_eq!((cores(), squares(3)), (3, vec![1, 2, 5]));
    }

    #[test]
    fn parts_cover_a_length_once() {
        for cores in [1, 2, 3, 5] {
            let _team = Team::lead(cores, |_| ()).expect("threads");
            for (length, tile, step) in [
                (0, 4, 4),
                (1, 4, 2),
                (49, 12, 4),
                (128, 12, 4),
                (100, 6, 6),
                (7, 1, 1),
            ] {
                let counts: Vec<AtomicUsize> = (0..length).map(|_| AtomicUsize::new(0)).collect();
                let cut = Cut::new(length, tile).with_step(step);
                share(WORTHWHILE, cut, &|part| {
                    for count in &counts[part] {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
                let counts: Vec<usize> = counts.into_iter().map(AtomicUsize::into_inner).collect();
                assert_eq!(counts, vec![1; length], "{cut:?} on {cores} cores");
            }
        }
    }

    #[test]
    fn slices_are_shared_by_chunks() {
        for cores in [1, 2, 3] {
            let _team = Team::lead(cores, |_| ()).expect("threads");
            for (length, chunk) in [(0, 4), (1, 4), (103, 5), (100, 1), (8, 100), (64, 0)] {
                let mut all = vec![0; length];
                share_slice(WORTHWHILE, &mut all, chunk, &|first, stretch| {
                    let chunks = stretch.chunks_mut(chunk.max(1));
                    for (number, elements) in chunks.enumerate() {
                        elements.fill(first + number + 1);
                    }
                });
                let want: Vec<usize> = (0..length).map(|i| i / chunk.max(1) + 1).collect();
                assert_eq!(all, want, "{length} in chunks of {chunk} on {cores} cores");
            }
        }
    }

    #[test]
    fn sleepers_wake_up_and_parts_may_be_split() {
        let begun = Arc::new(AtomicUsize::new(0));
        let numbers = Arc::clone(&begun);
        let team = Team::lead(3, move |n| _ = numbers.fetch_add(n, Ordering::SeqCst));
        let team = team.expect("threads");
        while team._helpers.shared.sleeping.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        assert_eq!(
            begun.load(Ordering::SeqCst),
            3,
            "helpers begin with their numbers"
        );
        // Parts that only another thread can end: helpers do come.
        let met = AtomicUsize::new(0);
        split(3, &|_| {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < 3 {
                thread::yield_now();
            }
            assert_eq!(squares(4), [1, 2, 5, 10]);
        });
    }

    #[test]
    fn panics_are_passed_on_and_the_team_goes_on() {
        for culprit in [0, 1] {
            let team = Team::lead(2, |_| ()).expect("threads");
            let met = AtomicUsize::new(0);
            let leader = thread::current().id();
            let ended = catch_unwind(AssertUnwindSafe(|| {
                split(2, &|_| {
                    met.fetch_add(1, Ordering::SeqCst);
                    while met.load(Ordering::SeqCst) < 2 {
                        thread::yield_now();
                    }
                    let helper = thread::current().id() != leader;
                    assert!(helper != (culprit == 1), "on purpose");
                });
            }));
            assert!(ended.is_err(), "culprit {culprit}");
            drop(team);
            assert_eq!(squares(2), [1, 2]);
        }
    }
}
