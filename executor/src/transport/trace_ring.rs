//! A worker's end of its trace: words into a ring, a clock read for each. Must not know what is done with them.
//!
//! # The ring
//!
//! `head` counts the words written and is stored by the worker alone (release) after each; `tail` counts those taken
//! and is stored by the writer alone (release). The worker looks at `tail` (acquire) once a period, when what it saw
//! last leaves no room for a whole period, and then either has room for all of it or records nothing of it. So no
//! word is ever written over before it is taken, and nobody waits.
#![expect(
    unsafe_code,
    reason = "reads the time-stamp counter, and finds rings in shared memory"
)]

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use serde::{Deserialize, Serialize};
use zbmd_ir::Plan;
#[cfg(hosts)]
use zbmd_ir::trace::parts;
use zbmd_ir::trace::{MAX_WORDS, OTHER, PERIOD, WHOLE, executions, word};

use super::arena::{Arena, In};
use super::clock::Clock;
use super::primitive::{AtomicU64, Ordering};

/// Words of a ring at least: a megabyte, which a worker with slots of a microsecond fills in an eighth of a second.
const MIN_WORDS: u64 = 1 << 17;
/// Periods that a ring has room for at least.
const MIN_PERIODS: u64 = 4;
/// Words of a period that is recorded as a whole: its mark, its time and its duration.
const WHOLE_PERIOD_WORDS: u64 = 3;

/// Words that a period of each calendar takes at most; `None` where it is recorded as a whole.
pub(crate) fn words_of(plan: &Plan, calendar: usize) -> Option<u64> {
    let lanes = plan.calendars[calendar].lanes.iter();
    let slots = lanes.fold(0, |sum: u64, lane| {
        sum.saturating_add(executions(&lane.entries))
    });
    // The mark and its time; and besides its slots a worker saves channels at borders, and rearms its watchdog.
    let words = slots.saturating_mul(2).saturating_add(64);
    (words <= MAX_WORDS).then_some(words)
}

/// Words in the ring of a calendar: a power of two.
pub(crate) fn ring_words(plan: &Plan, calendar: usize) -> u64 {
    let period_words = words_of(plan, calendar).unwrap_or(WHOLE_PERIOD_WORDS);
    (MIN_PERIODS * period_words)
        .next_power_of_two()
        .max(MIN_WORDS)
}

/// What counts ticks: the same in all processes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ticks {
    /// The processor's counter, which takes less than half the time of the system's clock.
    Counter,
    /// The run's clock; a tick is a nanosecond.
    Clock,
}

impl Ticks {
    /// The counter, where the system itself keeps its time by it: then it is the same on all cores and never stops.
    pub(crate) fn of_this_machine() -> Self {
        #[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
        {
            let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            if std::fs::read_to_string(path).is_ok_and(|source| source.trim() == "tsc") {
                return Self::Counter;
            }
        }
        Self::Clock
    }

    #[inline]
    pub(crate) fn now(self) -> u64 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if self == Self::Counter {
            // SAFETY: every x86-64 processor has the instruction; Linux lets programs use it where it is its own clock.
            return unsafe { core::arch::x86_64::_rdtsc() };
        }
        Clock.now_ns()
    }
}

/// The counters of a ring, each on a cache line of whoever writes it.
pub(crate) struct TraceRingEnds {
    head: CachePadded<(AtomicU64, AtomicU64)>,
    tail: CachePadded<AtomicU64>,
}

impl TraceRingEnds {
    fn new() -> Self {
        let new_counter = || AtomicU64::new(0);
        Self {
            head: CachePadded::new((new_counter(), new_counter())),
            tail: CachePadded::new(new_counter()),
        }
    }
}

/// The ring between one worker and the writer, in memory that both map.
#[derive(Clone)]
pub(crate) struct TraceRing {
    ends: In<TraceRingEnds>,
    words: In<[AtomicU64]>,
}

impl TraceRing {
    pub(crate) const ENDS_BYTES: u64 = size_of::<TraceRingEnds>() as u64;

    /// In fresh memory: the offsets of its ends and of its words, a power of two of them.
    pub(crate) fn create(arena: &Arc<Arena>, place: (u64, u64), words: u64) -> Self {
        Self {
            ends: In::create(arena, place.0, 1, TraceRingEnds::new).one(0),
            words: In::create(arena, place.1, words as usize, || AtomicU64::new(0)),
        }
    }

    /// Where somebody else has created it.
    ///
    /// # Safety
    /// [`Self::create`] of this very program was called for the same memory, place and words.
    pub(crate) unsafe fn find(arena: &Arc<Arena>, place: (u64, u64), words: u64) -> Self {
        // SAFETY: the caller's promise.
        let ends = unsafe { In::<[TraceRingEnds]>::find(arena, place.0, 1) }.one(0);
        // SAFETY: the caller's promise, which covers the words as well.
        let words = unsafe { In::find(arena, place.1, words as usize) };
        Self { ends, words }
    }

    /// Hands the words that are there to `each`, in order, and makes their room free; how many they were.
    pub(crate) fn take(&self, mut each: impl FnMut(&[AtomicU64])) -> u64 {
        // Partner: the release in `TraceRecorder::push`: the words before `head` are there.
        let head = self.ends.head.0.load(Ordering::Acquire);
        let tail = self.ends.tail.load(Ordering::Relaxed);
        let ring_words = self.words.len() as u64;
        // A worker's process writes the counter: it is not believed.
        let word_count = head.saturating_sub(tail).min(ring_words);
        let first_index = (tail % ring_words) as usize;
        let end_index = (first_index as u64 + word_count).min(ring_words) as usize;

        // They may go on at the ring's beginning.
        each(&self.words[first_index..end_index]);
        each(&self.words[..word_count as usize - (end_index - first_index)]);

        // Partner: the acquire in `TraceRecorder::has_room`: the words are read before they are written over.
        self.ends.tail.store(tail + word_count, Ordering::Release);
        word_count
    }

    /// The words that are there, in order; their room is free then.
    #[cfg(any(hosts, test))]
    pub(crate) fn take_words(&self) -> Vec<u64> {
        let mut taken_words = Vec::new();
        self.take(|words| {
            taken_words.extend(words.iter().map(|word| word.load(Ordering::Relaxed)));
        });
        taken_words
    }

    /// Words that it holds.
    pub(crate) fn words(&self) -> usize {
        self.words.len()
    }

    /// The share of the ring that is full.
    pub(crate) fn fill(&self) -> f64 {
        let head = self.ends.head.0.load(Ordering::Relaxed);
        let tail = self.ends.tail.load(Ordering::Relaxed);
        head.saturating_sub(tail) as f64 / self.words.len() as f64
    }

    /// Periods that were not recorded.
    pub(crate) fn dropped(&self) -> u64 {
        self.ends.head.1.load(Ordering::Relaxed)
    }
}

/// What a worker records with. Nothing in it grows.
pub(crate) struct TraceRecorder {
    ring: TraceRing,
    ticks: Ticks,
    /// Words of a period at most.
    max_period_words: u64,
    /// Slots are recorded, and not only periods.
    pub slots: bool,
    head: u64,
    tail_seen: u64,
    last: u64,
}

impl TraceRecorder {
    /// Records periods of so many words at most; of three, if they are recorded as a whole.
    pub(crate) fn new(ring: TraceRing, ticks: Ticks, period_words: Option<u64>) -> Self {
        Self {
            ring,
            ticks,
            max_period_words: period_words.unwrap_or(WHOLE_PERIOD_WORDS),
            slots: period_words.is_some(),
            head: 0,
            tail_seen: 0,
            last: 0,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.ticks.now()
    }

    #[inline]
    fn push(&mut self, word: u64) {
        let words = &*self.ring.words;
        let word_index = self.head as usize & (words.len() - 1);
        words[word_index].store(word, Ordering::Relaxed);
        self.head += 1;
        // Partner: the acquire in `TraceRing::take`.
        self.ring.ends.head.0.store(self.head, Ordering::Release);
    }

    /// Words that are certainly free.
    fn free_words(&self) -> u64 {
        let used = self.head - self.tail_seen;
        (self.ring.words.len() as u64).saturating_sub(used)
    }

    /// Whether there is room for a whole period. Looks at what was taken only where what it saw last is not enough.
    fn has_room(&mut self) -> bool {
        if self.free_words() < self.max_period_words {
            // Partner: the release in `TraceRing::take`.
            self.tail_seen = self.ring.ends.tail.load(Ordering::Acquire).min(self.head);
        }
        self.free_words() >= self.max_period_words
    }

    /// A period begins. If this is false, it is not recorded, and nothing more may be said of it.
    pub(crate) fn begin(&mut self, period: u64) -> bool {
        let now_ticks = self.now();
        self.begin_at(period, now_ticks)
    }

    fn begin_at(&mut self, period: u64, now: u64) -> bool {
        if !self.has_room() {
            let dropped = &self.ring.ends.head.1;
            // Only the worker writes this counter, so a load and a store suffice.
            let dropped_periods = dropped.load(Ordering::Relaxed) + 1;
            dropped.store(dropped_periods, Ordering::Relaxed);
            return false;
        }
        // Both words of the mark are there, or neither.
        // The time is stored first: a reader finds the mark only after `head` has moved past both.
        let words = &*self.ring.words;
        let time_index = (self.head as usize + 1) & (words.len() - 1);
        words[time_index].store(now, Ordering::Relaxed);
        let mark_index = self.head as usize & (words.len() - 1);
        words[mark_index].store(word(PERIOD, period), Ordering::Relaxed);
        self.head += 2;
        // Partner: the acquire in `TraceRing::take`.
        self.ring.ends.head.0.store(self.head, Ordering::Release);
        self.last = now;
        true
    }

    /// A slot of the calendar, or [`OTHER`], has ended.
    #[inline]
    pub(crate) fn slot(&mut self, slot: u32) {
        let end_ticks = self.ticks.now();
        self.push(word(slot, end_ticks.saturating_sub(self.last)));
        self.last = end_ticks;
    }

    /// The period ends, which was recorded as a whole.
    pub(crate) fn whole(&mut self) {
        self.slot(WHOLE);
    }

    /// A period of a device that begins the next one before this one ends. It is taken to have begun when the one
    /// before ended, if that was later.
    pub(crate) fn overlapping(&mut self, period: u64, began: u64) {
        if self.begin_at(period, began.max(self.last)) {
            self.whole();
        }
    }
}

/// Records once more what a worker on another host has recorded, in a ring of this one.
#[cfg(hosts)]
pub(crate) struct TraceCopier {
    recorder: TraceRecorder,
    /// Words that the present period may still have; none if it is not recorded.
    words_left: u64,
    /// Periods that the worker had no room for.
    dropped_there: u64,
    /// When the last period began.
    last_began: u64,
}

#[cfg(hosts)]
impl TraceCopier {
    /// With the recorder that the worker would have here.
    pub(crate) fn new(recorder: TraceRecorder) -> Self {
        Self {
            recorder,
            words_left: 0,
            dropped_there: 0,
            last_began: 0,
        }
    }

    /// Takes words as the worker's ring has given them out, whole marks and all; its clock is behind this one's by so many ticks, as
    /// far as is known by now: no period begins before the one before it, also when that is known better.
    /// A period that there is no room for is left out and counted, as a worker does. `dropped` is how many the worker has left
    /// out up to now.
    pub(crate) fn copy(&mut self, words: &[u64], behind_ticks: i64, dropped: u64) {
        let dropped_now = dropped.saturating_sub(self.dropped_there);
        self.dropped_there += dropped_now;
        let dropped_here = &self.recorder.ring.ends.head.1;
        let dropped_before = dropped_here.load(Ordering::Relaxed);
        dropped_here.store(dropped_before + dropped_now, Ordering::Relaxed);

        let mut words = words.iter().copied();
        while let Some(next) = words.next() {
            let (kind, number) = parts(next);
            if kind == PERIOD {
                let Some(began) = words.next() else { return };
                let began = began.saturating_add_signed(behind_ticks);
                let began = began.max(self.last_began);
                self.last_began = began;
                self.words_left = match self.recorder.begin_at(number, began) {
                    true => self.recorder.max_period_words.saturating_sub(2),
                    false => 0,
                };
            } else if self.words_left > 0 {
                self.words_left -= 1;
                self.recorder.push(next);
            }
        }
    }
}

const _: () = assert!(OTHER < WHOLE && WHOLE < PERIOD);

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::trace::parts;

    fn ring(words: u64) -> TraceRing {
        let arena = Arc::new(Arena::new(TraceRing::ENDS_BYTES + 8 * words, false).expect("small"));
        TraceRing::create(&arena, (0, TraceRing::ENDS_BYTES), words)
    }

    #[test]
    fn periods_are_recorded_whole_or_counted() {
        let ring = ring(16);
        let mut recorder = TraceRecorder::new(ring.clone(), Ticks::Clock, Some(5));
        let mut recorded = Vec::new();
        let mut found_words = Vec::new();
        for period in 0..40u64 {
            if recorder.begin(period) {
                recorded.push(period);
                (0..3).for_each(|slot| recorder.slot(slot));
            }
            if period % 7 == 6 {
                found_words.extend(ring.take_words());
            }
        }
        found_words.extend(ring.take_words());
        assert_eq!(recorded.len() as u64 + ring.dropped(), 40);
        assert!(ring.dropped() > 0 && recorded.len() > 15, "some of both");
        assert_eq!(found_words.len(), 5 * recorded.len());
        for (words, period) in found_words.chunks(5).zip(recorded) {
            assert_eq!(parts(words[0]), (PERIOD, period));
            let slot_numbers: Vec<u32> = words[2..].iter().map(|word| parts(*word).0).collect();
            assert_eq!(slot_numbers, [0, 1, 2]);
        }
    }

    #[cfg(hosts)]
    #[test]
    fn what_another_host_has_recorded_is_copied_by_whole_periods() {
        let (there, here) = (ring(64), ring(16));
        let mut recorder = TraceRecorder::new(there.clone(), Ticks::Clock, Some(5));
        let mut copier = TraceCopier::new(TraceRecorder::new(here.clone(), Ticks::Clock, Some(5)));
        for period in 0..4u64 {
            assert!(recorder.begin(period));
            (0..3).for_each(|slot| recorder.slot(slot));
        }
        let words = there.take_words();
        // A mark goes with its time; a period may come in pieces.
        copier.copy(&words[..3], 1_000, 0);
        copier.copy(&words[3..], 1_000, 7);
        let copied = here.take_words();
        assert_eq!(here.dropped(), 7 + 1, "three of the four have room here");
        assert_eq!(copied.len(), 15);
        for (index, (copy, word)) in copied.iter().zip(&words).enumerate() {
            let is_time = index % 5 == 1;
            assert_eq!(*copy, word + if is_time { 1_000 } else { 0 }, "{index}");
        }

        // More than a period has is passed over, and so is what belongs to no period.
        let mark = word(PERIOD, 9);
        copier.copy(&[[mark, 5].as_slice(), &[word(1, 1); 40]].concat(), 0, 7);
        let copied_last = here.take_words();
        assert_eq!(copied_last.len(), 5);
        // It begins with the period before it, and not earlier, although its clock was thought to be further behind then.
        assert_eq!(copied_last[1], words[16] + 1_000);
        copier.copy(&[word(1, 1); 40], 0, 7);
        assert_eq!((here.take_words().len(), here.dropped()), (0, 8));
    }

    #[test]
    fn threads_lose_no_word() {
        let ring = ring(64);
        let period_count = if cfg!(miri) { 50 } else { 20_000u64 };
        let mut found_words = Vec::new();
        let worker = {
            let ring = ring.clone();
            std::thread::spawn(move || {
                let mut recorder = TraceRecorder::new(ring, Ticks::of_this_machine(), Some(3));
                (0..period_count)
                    .filter(|period| recorder.begin(*period).then(|| recorder.slot(0)).is_some())
                    .count()
            })
        };
        while !worker.is_finished() {
            found_words.extend(ring.take_words());
        }
        let recorded_count = worker.join().expect("no panic");
        found_words.extend(ring.take_words());
        let marks: Vec<u64> = found_words
            .chunks(3)
            .map(|words| (parts(words[0]).0 == PERIOD).then_some(parts(words[0]).1))
            .map(|mark| mark.expect("a mark"))
            .collect();
        assert_eq!(marks.len(), recorded_count);
        assert!(marks.is_sorted_by(|a, b| a < b));
        assert_eq!(recorded_count as u64 + ring.dropped(), period_count);
    }

    #[test]
    fn devices_that_overlap_periods_record_them_one_after_another() {
        let ring = ring(64);
        let mut recorder = TraceRecorder::new(ring.clone(), Ticks::Clock, None);
        let early_ticks = recorder.now();
        recorder.overlapping(0, early_ticks);
        let after_ticks = recorder.last;
        recorder.overlapping(1, early_ticks);
        let words = ring.take_words();
        assert_eq!((words[1], words[4]), (early_ticks, after_ticks));
        assert_eq!(parts(words[2]), (WHOLE, after_ticks - early_ticks));
    }
}
