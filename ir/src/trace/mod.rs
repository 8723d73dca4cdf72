//! What a run really did, slot by slot: the file that `zbmd-run --trace` writes and `zbmdc inspect --measured` reads.
//!
//! # What is recorded
//!
//! Each worker writes 64-bit *words* in the order of its calendar. A slot takes one word: which slot it was, and the
//! ticks from the word before to its end. So a slot begins where the one before ended, and nothing can overlap. A
//! period begins with a mark, whose word is followed by the absolute tick count; a period is recorded as a whole or,
//! where its worker had no room for it, not begun: then it is counted as dropped.
//!
//! | bits 44..64 | bits 0..44 | |
//! |---|---|---|
//! | [`PERIOD`] | number of the period | the next word is the absolute tick count at its start |
//! | [`WHOLE`] | ticks | the whole period: of a GPU, or of a calendar too fine to record slot by slot |
//! | [`OTHER`] | ticks | work that is no slot, such as saving tokens at a border |
//! | n | ticks | slot n of the calendar: lanes in order, a slot in a loop counted once |
//!
//! Slots that are skipped (prologue and epilogue) write nothing. Ticks are turned into nanoseconds of the run's
//! monotonic clock by the first and the last pair of both that the file holds.
//!
//! # The file
//!
//! Little-endian: `ZBTR`, version (u32), then chunks: kind (u32), length (u32), that many bytes. Whoever reads it
//! takes a file that is cut off (the run was killed) up to its last whole chunk. See [`Chunk`] for the kinds.
//!
//! [`Trace::read`] believes nothing; whether the slots are those of a bundle's calendars is asked of
//! [`Trace::of_program`].

mod read;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

pub use self::read::{Lane, Period, Record, Trace, TraceEpoch, TraceError};
pub use crate::walk::executions;
use crate::{DeviceId, PlanId, Program};

/// First bytes of every trace.
pub const MAGIC: [u8; 4] = *b"ZBTR";
/// The format version that this crate writes, and the only one it reads.
pub const VERSION: u32 = 1;

/// Bits of a word that count ticks.
pub const TICK_BITS: u32 = 44;
/// The most ticks that one word counts; more count as these. More than an hour.
pub const MAX_TICKS: u64 = (1 << TICK_BITS) - 1;
/// Marks the beginning of a period.
pub const PERIOD: u32 = (1 << 20) - 1;
/// A whole period.
pub const WHOLE: u32 = PERIOD - 1;
/// Work that is no slot.
pub const OTHER: u32 = PERIOD - 2;
/// Words of one period beyond which a calendar is recorded by whole periods.
pub const MAX_WORDS: u64 = 1 << 19;

/// A word.
#[inline]
pub const fn word(what: u32, ticks: u64) -> u64 {
    let ticks = if ticks > MAX_TICKS { MAX_TICKS } else { ticks };
    (what as u64) << TICK_BITS | ticks
}

/// The parts of a word.
pub const fn parts(word: u64) -> (u32, u64) {
    ((word >> TICK_BITS) as u32, word & MAX_TICKS)
}

/// One part of the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Chunk {
    /// Comes first: what was run.
    Begin(Begin),
    /// An epoch begins; comes before its words.
    Epoch(EpochBegin),
    /// Words of one calendar of an epoch, after those that came before.
    Words {
        /// The epoch.
        epoch: u64,
        /// The calendar of its plan.
        calendar: u32,
        /// The words.
        words: Vec<u64>,
    },
    /// Something that the supervisor decided or saw.
    Event(TraceEvent),
    /// Both clocks at once.
    Clocks(Clocks),
    /// An epoch has ended.
    EpochEnd(EpochEnd),
    /// The run has ended, and the trace is whole.
    End,
}

/// What was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// Name of the model.
    pub model: String,
    /// Names of the machine's devices.
    pub devices: Vec<String>,
    /// [`fingerprint`] of the program that the run began with.
    pub fingerprint: u64,
}

/// An epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochBegin {
    /// Its number.
    pub epoch: u64,
    /// [`fingerprint`] of its program.
    pub fingerprint: u64,
    /// Its plan.
    pub plan: PlanId,
    /// The device that runs each calendar of the plan.
    pub devices: Vec<DeviceId>,
    /// When its workers were told to begin.
    pub at_ns: u64,
}

/// How an epoch ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochEnd {
    /// Its number.
    pub epoch: u64,
    /// When.
    pub at_ns: u64,
    /// For each calendar, the periods that were run but not recorded, because the writer had not kept up.
    pub dropped: Vec<u64>,
}

/// What the supervisor decided or saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// When.
    pub at_ns: u64,
    /// Its name, such as `lost`.
    pub name: String,
    /// All of it, as a line of JSON.
    pub line: String,
}

/// Both clocks at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// The clock of words.
    pub ticks: u64,
    /// The run's monotonic clock.
    pub ns: u64,
}

/// The kinds of chunks, in the file.
mod kind {
    pub(super) const BEGIN: u32 = 1;
    pub(super) const EPOCH: u32 = 2;
    pub(super) const WORDS: u32 = 3;
    pub(super) const EVENT: u32 = 4;
    pub(super) const CLOCKS: u32 = 5;
    pub(super) const EPOCH_END: u32 = 6;
    pub(super) const END: u32 = 7;
}

/// Bytes before the words of a chunk: kind, length, epoch, calendar, 0.
pub const WORDS_HEAD_BYTES: usize = 24;

/// The head of a chunk with so many words, at most [`MAX_CHUNK_WORDS`].
pub fn words_head(epoch: u64, calendar: u32, words: usize) -> [u8; WORDS_HEAD_BYTES] {
    debug_assert!(words <= MAX_CHUNK_WORDS);
    let mut head = [0; WORDS_HEAD_BYTES];
    head[..4].copy_from_slice(&kind::WORDS.to_le_bytes());
    head[4..8].copy_from_slice(&((16 + 8 * words) as u32).to_le_bytes());
    head[8..16].copy_from_slice(&epoch.to_le_bytes());
    head[16..20].copy_from_slice(&calendar.to_le_bytes());
    head
}

/// Words of one chunk at most.
pub const MAX_CHUNK_WORDS: usize = 1 << 24;

/// The first bytes of a trace.
pub fn head() -> [u8; 8] {
    let mut head = [0; 8];
    head[..4].copy_from_slice(&MAGIC);
    head[4..].copy_from_slice(&VERSION.to_le_bytes());
    head
}

impl Chunk {
    /// The chunk as it stands in the file.
    pub fn bytes(&self) -> Vec<u8> {
        fn body<T: Serialize>(value: &T) -> Vec<u8> {
            // Postcard refuses only sequences of unknown length.
            postcard::to_stdvec(value).expect("every sequence has a length")
        }

        let (kind, body) = match self {
            Chunk::Begin(begin) => (kind::BEGIN, body(begin)),
            Chunk::Epoch(epoch) => (kind::EPOCH, body(epoch)),
            Chunk::Event(event) => (kind::EVENT, body(event)),
            Chunk::Clocks(clocks) => (kind::CLOCKS, body(clocks)),
            Chunk::EpochEnd(end) => (kind::EPOCH_END, body(end)),
            Chunk::End => (kind::END, Vec::new()),
            Chunk::Words {
                epoch,
                calendar,
                words,
            } => {
                let mut bytes = words_head(*epoch, *calendar, words.len()).to_vec();
                bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
                return bytes;
            }
        };

        let mut bytes = Vec::with_capacity(8 + body.len());
        bytes.extend(kind.to_le_bytes());
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        bytes
    }
}

/// A hash of a program's graph, machine and plans: a trace fits the bundle that it was made with. The weights do not
/// count.
pub fn fingerprint(program: &Program) -> u64 {
    let parts = (&program.graph, &program.machine, &program.plans);
    // Postcard refuses only sequences of unknown length.
    xxh3_64(&postcard::to_stdvec(&parts).expect("every sequence has a length"))
}
