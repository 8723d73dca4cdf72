//! Changes of live parameters of a run under a council: from whoever sets them to the conductor's seat, which has them decided,
//! and back.
//!
//! Whoever takes the run over makes the same changes, so a change is given out to nobody before it is decided: the outputs that it
//! has changed wait, as no border behind it is proposed, and so does whoever has set it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use zbmd_council::decision::MAX_CHANGE_BYTES;
use zbmd_ir::{ActorId, ChangePosition, LiveParameter, ParameterChange};

use super::seat::Waker;
use crate::error::SetError;
use crate::transport::change_queue::Values;

/// Numbers of all live parameters of a program, at most: half of what a council keeps of changes.
const MAX_NUMBERS: usize = MAX_CHANGE_BYTES / 2 / size_of::<f64>();

/// See above.
pub(crate) struct ChangeJournal {
    waker: Waker,
    entries: Mutex<Entries>,
    has_news: Condvar,
}

#[derive(Default)]
struct Entries {
    /// How many of the changes that were made in this process are decided.
    decided: u64,
    /// Those that are not.
    undecided: VecDeque<Vec<u8>>,
    /// Bytes of decided ones that the council keeps.
    kept_bytes: usize,
    /// Nothing is decided any more.
    is_over: bool,
}

impl ChangeJournal {
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            waker,
            entries: Mutex::default(),
            has_news: Condvar::new(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the council has room for one more change, wherever that takes effect.
    ///
    /// # Errors
    /// [`SetError::Council`].
    pub(crate) fn check_room(&self, values: &Values) -> Result<(), SetError> {
        let longest = ParameterChange {
            position: ChangePosition::Token {
                source: ActorId(u32::MAX),
                index: u64::MAX,
            },
            values: values.clone(),
        };
        let bytes = encode(&longest).len();
        let entries = self.entries();
        let waiting_bytes: usize = entries.undecided.iter().map(Vec::len).sum();
        match entries.kept_bytes + waiting_bytes + bytes <= MAX_CHANGE_BYTES {
            true => Ok(()),
            false => Err(SetError::Council {
                limit: MAX_CHANGE_BYTES,
            }),
        }
    }

    /// Enters a change that was made, for which there is room; its number, to wait for it.
    pub(crate) fn enter(&self, change: &ParameterChange) -> u64 {
        let mut entries = self.entries();
        let number = entries.made();
        entries.undecided.push_back(encode(change));
        drop(entries);
        self.waker.wake();
        number
    }

    /// Waits until a change is decided; false if the run ends before.
    pub(crate) fn wait_for(&self, number: u64) -> bool {
        let is_open = |entries: &mut Entries| entries.decided <= number && !entries.is_over;
        let entries = self.has_news.wait_while(self.entries(), is_open);
        entries.unwrap_or_else(PoisonError::into_inner).decided > number
    }

    /// Ends all waits.
    pub(crate) fn end(&self) {
        self.entries().is_over = true;
        self.has_news.notify_all();
    }

    /// Whether all of the first so many changes are decided.
    pub(super) fn are_decided(&self, changes: u64) -> bool {
        self.entries().decided >= changes
    }

    /// So many of the changes are decided, and of all that the council has it keeps so many bytes.
    pub(super) fn note_decided(&self, decided: u64, kept_bytes: usize) {
        let mut entries = self.entries();
        entries.kept_bytes = kept_bytes;
        let more = decided.saturating_sub(entries.decided);
        let more = entries.undecided.len().min(more as usize);
        entries.undecided.drain(..more);
        entries.decided += more as u64;
        drop(entries);
        if more > 0 {
            self.has_news.notify_all();
        }
    }

    /// Calls `submit` with the changes that are not decided, from the first one whose number is at least `from`, and how many were
    /// made before each; the number of the next one after them.
    pub(super) fn submit_from(&self, from: u64, mut submit: impl FnMut(u64, &[u8])) -> u64 {
        let entries = self.entries();
        let numbered = (entries.decided..).zip(&entries.undecided);
        for (number, change) in numbered.filter(|(number, _)| *number >= from) {
            submit(number, change);
        }
        entries.made()
    }
}

impl Entries {
    /// How many changes were made in this process.
    fn made(&self) -> u64 {
        self.decided + self.undecided.len() as u64
    }
}

/// Whether a program's changes can be decided by a council, all parameters in one.
pub(crate) fn check_program(parameters: &[LiveParameter]) -> Result<(), String> {
    let numbers: usize = parameters
        .iter()
        .map(|parameter| parameter.initial.len())
        .sum();
    match numbers <= MAX_NUMBERS {
        true => Ok(()),
        false => Err(format!(
            "the live parameters have {numbers} numbers, at most {MAX_NUMBERS} can be set in its name: make some of them fixed, or leave --council out"
        )),
    }
}

/// A change as the council has it.
fn encode(change: &ParameterChange) -> Vec<u8> {
    postcard::to_stdvec(change).expect("every sequence has a length")
}

/// The changes that a council has, of whoever conducted before.
///
/// # Errors
/// They are none of the program's.
pub(super) fn decode_all(changes: &[Vec<u8>]) -> Result<Vec<ParameterChange>, String> {
    let decoded = changes.iter().map(|change| postcard::from_bytes(change));
    let decoded: Result<_, postcard::Error> = decoded.collect();
    decoded.map_err(|error| {
        format!("changes of live parameters that this version does not know: {error}")
    })
}
