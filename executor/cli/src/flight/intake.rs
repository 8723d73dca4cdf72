//! Between a run and the thread that records it: what enters the run is copied into memory of bounded size, and nobody
//! waits for the disk. What finds no room is not recorded; the tokens that follow have their indexes all the same.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zbmd_executor::{BorderState, InputListener};
use zbmd_ir::ParameterChange;

use super::record::{NumberedChange, NumberedInput, NumberedMode, SourceGap};

/// Memory for tokens that wait for the disk, of all sources together. A second such amount may be with the writer.
const MAX_WAITING_BYTES: usize = 64 << 20;
/// So many bytes of one source wake the writer before its time.
const WAKE_BYTES: usize = 1 << 20;
/// Changes and gaps that wait for the disk.
const MAX_WAITING_ITEMS: usize = 1 << 16;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tokens of one source that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingTokens {
    /// Index of the first one.
    pub(super) first: u64,
    /// The tokens.
    pub(super) bytes: Vec<u8>,
    /// Tokens after them that found no room.
    pub(super) lost: u64,
}

#[derive(Debug)]
struct SourceIntake {
    token_bytes: u64,
    waiting: Mutex<WaitingTokens>,
}

/// Changes and gaps that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingItems {
    pub(super) changes: Vec<NumberedInput>,
    /// The number after the last change that found no room.
    pub(super) changes_lost_before: Option<u64>,
    pub(super) gaps: Vec<SourceGap>,
    pub(super) gaps_lost: u64,
}

#[derive(Debug, Default)]
struct Wake {
    is_wanted: bool,
    is_over: bool,
}

/// What entered the run and is not recorded yet.
#[derive(Debug)]
pub(super) struct Intake {
    sources: Vec<SourceIntake>,
    max_source_bytes: usize,
    items: Mutex<WaitingItems>,
    state: Mutex<Option<BorderState>>,
    /// The writer wants a state.
    is_state_wanted: AtomicBool,
    wake: Mutex<Wake>,
    woken: Condvar,
}

impl Intake {
    /// For sources with tokens of so many bytes, of which so many tokens were consumed before.
    pub(super) fn new(sources: impl Iterator<Item = (u64, u64)>) -> Self {
        let sources: Vec<SourceIntake> = sources
            .map(|(token_bytes, consumed)| SourceIntake {
                token_bytes,
                waiting: Mutex::new(WaitingTokens {
                    first: consumed,
                    ..WaitingTokens::default()
                }),
            })
            .collect();
        Self {
            max_source_bytes: MAX_WAITING_BYTES / sources.len().max(1),
            sources,
            items: Mutex::default(),
            state: Mutex::default(),
            is_state_wanted: AtomicBool::new(false),
            wake: Mutex::default(),
            woken: Condvar::new(),
        }
    }

    /// Takes in a state, in place of one that still waits.
    pub(super) fn state(&self, state: BorderState) {
        *locked(&self.state) = Some(state);
    }

    /// Whether the writer wants a state.
    pub(super) fn is_state_wanted(&self) -> bool {
        self.is_state_wanted.load(Ordering::Relaxed)
    }

    pub(super) fn want_state(&self, is_wanted: bool) {
        self.is_state_wanted.store(is_wanted, Ordering::Relaxed);
    }

    /// Takes in a change.
    fn input(&self, input: NumberedInput) {
        let mut items = locked(&self.items);
        // None is left out between others: what follows a lost one cannot be used before the next state.
        if items.changes.len() >= MAX_WAITING_ITEMS || items.changes_lost_before.is_some() {
            items.changes_lost_before = Some(input.number() + 1);
            return;
        }
        items.changes.push(input);
    }

    /// Takes in a gap.
    pub(super) fn gap(&self, gap: SourceGap) {
        let mut items = locked(&self.items);
        match items.gaps.len() < MAX_WAITING_ITEMS {
            true => items.gaps.push(gap),
            false => items.gaps_lost += 1,
        }
    }

    /// Nothing more comes.
    pub(super) fn end(&self) {
        locked(&self.wake).is_over = true;
        self.woken.notify_all();
    }

    /// Waits until there is much to write, or for so long; whether nothing more comes.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let is_idle = |wake: &mut Wake| !wake.is_wanted && !wake.is_over;
        let waited = self
            .woken
            .wait_timeout_while(locked(&self.wake), limit, is_idle);
        let (mut wake, _) = waited.unwrap_or_else(PoisonError::into_inner);
        wake.is_wanted = false;
        wake.is_over
    }

    pub(super) fn take_items(&self) -> WaitingItems {
        std::mem::take(&mut *locked(&self.items))
    }

    pub(super) fn take_state(&self) -> Option<BorderState> {
        locked(&self.state).take()
    }

    /// The tokens of a source; `free` is the buffer for those that follow.
    pub(super) fn take_tokens(&self, source: usize, free: Vec<u8>) -> WaitingTokens {
        let intake = &self.sources[source];
        let mut waiting = locked(&intake.waiting);
        let tokens = waiting.bytes.len() as u64 / intake.token_bytes;
        let first = waiting.first + tokens + waiting.lost;
        let next = WaitingTokens {
            first,
            bytes: free,
            lost: 0,
        };
        std::mem::replace(&mut waiting, next)
    }
}

impl InputListener for Intake {
    fn tokens(&self, source: usize, bytes: &[u8]) {
        let Some(intake) = self.sources.get(source) else {
            return;
        };
        let mut waiting = locked(&intake.waiting);
        // After a loss all is lost until the writer comes: one hole, not many.
        if waiting.lost > 0 || waiting.bytes.len() + bytes.len() > self.max_source_bytes {
            waiting.lost += bytes.len() as u64 / intake.token_bytes;
            return;
        }
        let bytes_before = waiting.bytes.len();
        waiting.bytes.extend_from_slice(bytes);
        let crosses = bytes_before < WAKE_BYTES && waiting.bytes.len() >= WAKE_BYTES;
        drop(waiting);
        if crosses {
            locked(&self.wake).is_wanted = true;
            self.woken.notify_one();
        }
    }

    fn change(&self, number: u64, change: &ParameterChange) {
        self.input(NumberedInput::Parameters(NumberedChange {
            number,
            change: change.clone(),
        }));
    }

    fn mode(&self, number: u64, iteration: u64, mode: u32) {
        self.input(NumberedInput::Mode(NumberedMode {
            number,
            iteration,
            mode,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_find_no_room_leave_a_hole_and_those_that_follow_have_their_indexes() {
        let intake = Intake::new([(4, 100), (1, 0)].into_iter());
        let piece = vec![7; 1 << 20];
        // 32 MiB for each of two sources.
        for _ in 0..40 {
            intake.tokens(0, &piece);
        }
        intake.tokens(0, &[1, 2, 3, 4]);
        let piece_tokens = 1 << 18;
        let waiting = intake.take_tokens(0, Vec::new());
        assert_eq!(waiting.first, 100);
        assert_eq!(waiting.bytes.len(), 32 << 20);
        assert_eq!(waiting.lost, 8 * piece_tokens + 1);

        intake.tokens(0, &[5, 6, 7, 8]);
        let waiting = intake.take_tokens(0, waiting.bytes);
        assert_eq!(waiting.first, 100 + 40 * piece_tokens + 1);
        assert_eq!((waiting.bytes, waiting.lost), (vec![5, 6, 7, 8], 0));
    }
}
