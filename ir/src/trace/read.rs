//! Traces read back: words to times, cut-off files up to where they go.

use serde::de::DeserializeOwned;

use super::{
    Begin, Chunk, Clocks, EpochBegin, EpochEnd, MAGIC, OTHER, PERIOD, TraceEvent, VERSION, WHOLE,
    fingerprint, kind, parts,
};
use crate::{Plan, Program, walk};

/// Why bytes are no trace, or not one of this bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum TraceError {
    /// It is something else.
    #[error("starts with {found:02x?}, a trace with {MAGIC:02x?} (`ZBTR`)")]
    Magic { found: Vec<u8> },
    /// Made by another version.
    #[error("format version {found}, this program reads {VERSION}")]
    Version { found: u32 },
    /// A chunk that makes no sense.
    #[error("the chunk at byte {at}: {message}")]
    Chunk { at: usize, message: String },
    /// Nothing says what was run.
    #[error("it ends before it says what was run")]
    Empty,
    /// Of a run of something else.
    #[error(
        "it is of a run of `{model}` with fingerprint {found:016x}; the bundle's is {expected:016x}"
    )]
    Bundle {
        model: String,
        found: u64,
        expected: u64,
    },
    /// An epoch of a plan or a calendar that the bundle does not have.
    #[error("epoch {epoch}: {message}")]
    Epoch { epoch: u64, message: String },
    /// Slots that the calendar does not have in this order.
    #[error(
        "epoch {epoch}, calendar {calendar}, period {period}: record {at} is of slot {found}, must be {expected}"
    )]
    Order {
        epoch: u64,
        calendar: usize,
        period: u64,
        at: usize,
        found: String,
        expected: String,
    },
}

/// One slot that was run, or a whole period where [`Lane::is_whole`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the slot in its calendar; [`WHOLE`] or [`OTHER`].
    pub slot: u32,
    /// When it began, waits included.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// One period of one calendar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// Its number in the epoch.
    pub number: u64,
    /// When it began.
    pub start_ns: u64,
    /// What was done, in order.
    pub records: Vec<Record>,
}

/// What one calendar did in an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// Periods in order; numbers are missing where periods were dropped.
    pub periods: Vec<Period>,
    /// Periods that were run but not recorded.
    pub dropped: u64,
}

impl Lane {
    /// Whether it was recorded by whole periods.
    pub fn is_whole(&self) -> bool {
        self.periods
            .iter()
            .flat_map(|p| &p.records)
            .any(|r| r.slot == WHOLE)
    }
}

/// One epoch of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEpoch {
    /// What it is.
    pub begin: EpochBegin,
    /// What each calendar of its plan did.
    pub lanes: Vec<Lane>,
    /// When it ended; `None` if the trace is cut off.
    pub end_ns: Option<u64>,
}

/// A run, as it really was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What was run.
    pub begin: Begin,
    /// The epochs, in order.
    pub epochs: Vec<TraceEpoch>,
    /// What the supervisor decided and saw, in order.
    pub events: Vec<TraceEvent>,
    /// Whether it goes to the end of the run.
    pub is_complete: bool,
}

impl Trace {
    /// Reads the bytes of a file. O(bytes).
    ///
    /// # Errors
    /// It is no trace of this version, or damaged before its last chunk.
    pub fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
        let Some((magic, rest)) = bytes.split_first_chunk::<4>().filter(|(m, _)| **m == MAGIC)
        else {
            return Err(TraceError::Magic {
                found: bytes.iter().take(4).copied().collect(),
            });
        };
        debug_assert_eq!(*magic, MAGIC);
        let found = rest.first_chunk().map_or(0, |v| u32::from_le_bytes(*v));
        if found != VERSION {
            return Err(TraceError::Version { found });
        }
        let chunks = chunks(bytes)?;
        let clock = Clock::of(&chunks);
        let mut begin = None;
        let mut trace = Vec::<Raw>::new();
        let (mut events, mut is_complete) = (Vec::new(), false);
        for (at, chunk) in chunks {
            let wrong = |message: &str| TraceError::Chunk {
                at,
                message: message.to_owned(),
            };
            let of =
                |trace: &mut Vec<Raw>, epoch| trace.iter().rposition(|e| e.begin.epoch == epoch);
            match chunk {
                Chunk::Begin(b) => begin = Some(b),
                Chunk::Epoch(e) => trace.push(Raw::new(e)),
                Chunk::Words {
                    epoch,
                    calendar,
                    words,
                } => {
                    let found = of(&mut trace, epoch).map(|i| &mut trace[i]);
                    let lane = found.and_then(|e| e.words.get_mut(calendar as usize));
                    lane.ok_or_else(|| wrong("words of an unknown calendar"))?
                        .extend(words);
                }
                Chunk::EpochEnd(end) => {
                    let found = of(&mut trace, end.epoch);
                    let found = found.ok_or_else(|| wrong("the end of an unknown epoch"))?;
                    trace[found].end = Some(end);
                }
                Chunk::Event(event) => events.push(event),
                Chunk::Clocks(_) => {}
                Chunk::End => is_complete = true,
            }
        }
        Ok(Trace {
            begin: begin.ok_or(TraceError::Empty)?,
            epochs: trace.into_iter().map(|raw| raw.epoch(&clock)).collect(),
            events,
            is_complete,
        })
    }

    /// Reads a trace of a run of `program`: every record is of the slot that the calendar has there, in the periods
    /// in which it is at work. Epochs of other programs, that the run went over to, are left out; the number of them.
    ///
    /// # Errors
    /// As [`Self::read`], or the trace is of another program, or has other slots.
    pub fn of_program(bytes: &[u8], program: &Program) -> Result<(Trace, usize), TraceError> {
        let mut trace = Trace::read(bytes)?;
        let expected = fingerprint(program);
        let all = trace.epochs.len();
        trace.epochs.retain(|e| e.begin.fingerprint == expected);
        if trace.epochs.is_empty() && (all > 0 || trace.begin.fingerprint != expected) {
            let Begin {
                model, fingerprint, ..
            } = trace.begin;
            return Err(TraceError::Bundle {
                model,
                found: fingerprint,
                expected,
            });
        }
        let others = all - trace.epochs.len();
        for epoch in &trace.epochs {
            check(epoch, program)?;
        }
        Ok((trace, others))
    }
}

/// Each chunk with its place. A last one that is cut off is left out.
fn chunks(bytes: &[u8]) -> Result<Vec<(usize, Chunk)>, TraceError> {
    let mut out = Vec::new();
    let mut at = 8;
    let number = |at: usize| {
        let bytes = bytes.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    while let (Some(kind), Some(length)) = (number(at), number(at + 4)) {
        let Some(body) = bytes.get(at + 8..).and_then(|b| b.get(..length as usize)) else {
            break;
        };
        out.push((at, chunk(at, kind, body)?));
        at += 8 + length as usize;
    }
    Ok(out)
}

fn chunk(at: usize, kind: u32, body: &[u8]) -> Result<Chunk, TraceError> {
    fn data<T: DeserializeOwned>(at: usize, body: &[u8]) -> Result<T, TraceError> {
        postcard::from_bytes(body).map_err(|e| TraceError::Chunk {
            at,
            message: format!("{} bytes: {e}", body.len()),
        })
    }
    Ok(match kind {
        kind::BEGIN => Chunk::Begin(data(at, body)?),
        kind::EPOCH => Chunk::Epoch(data(at, body)?),
        kind::EVENT => Chunk::Event(data(at, body)?),
        kind::CLOCKS => Chunk::Clocks(data(at, body)?),
        kind::EPOCH_END => Chunk::EpochEnd(data(at, body)?),
        kind::END => Chunk::End,
        kind::WORDS => words(body).ok_or_else(|| {
            let message = format!("{} bytes are no words with a head of 16", body.len());
            TraceError::Chunk { at, message }
        })?,
        other => {
            let message = format!("is of kind {other}, must be 1 to 7");
            return Err(TraceError::Chunk { at, message });
        }
    })
}

fn words(body: &[u8]) -> Option<Chunk> {
    let (epoch, rest) = body.split_first_chunk()?;
    let (calendar, rest) = rest.split_first_chunk()?;
    let (words, odd) = rest.get(4..)?.as_chunks();
    odd.is_empty().then(|| Chunk::Words {
        epoch: u64::from_le_bytes(*epoch),
        calendar: u32::from_le_bytes(*calendar),
        words: words.iter().map(|w| u64::from_le_bytes(*w)).collect(),
    })
}

/// Ticks to nanoseconds, by the line through the first and the last pair of both.
struct Clock {
    from: Clocks,
    to: Clocks,
}

impl Clock {
    fn of(chunks: &[(usize, Chunk)]) -> Self {
        let mut all = chunks.iter().filter_map(|(_, chunk)| match chunk {
            Chunk::Clocks(clocks) => Some(*clocks),
            _ => None,
        });
        let from = all.next().unwrap_or(Clocks { ticks: 0, ns: 0 });
        let one = Clocks {
            ticks: from.ticks.saturating_add(1),
            ns: from.ns.saturating_add(1),
        };
        let to = all
            .next_back()
            .filter(|to| to.ticks > from.ticks && to.ns >= from.ns)
            .unwrap_or(one);
        Self { from, to }
    }

    fn ns(&self, ticks: u64) -> u64 {
        let Self { from, to } = self;
        let (run, rise) = (
            i128::from(to.ticks - from.ticks),
            i128::from(to.ns - from.ns),
        );
        let ns = i128::from(from.ns) + (i128::from(ticks) - i128::from(from.ticks)) * rise / run;
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

/// An epoch whose words are not times yet.
struct Raw {
    begin: EpochBegin,
    words: Vec<Vec<u64>>,
    end: Option<EpochEnd>,
}

impl Raw {
    fn new(begin: EpochBegin) -> Self {
        let words = vec![Vec::new(); begin.devices.len()];
        Self {
            begin,
            words,
            end: None,
        }
    }

    fn epoch(self, clock: &Clock) -> TraceEpoch {
        let Self { begin, words, end } = self;
        let dropped = |i: usize| end.as_ref().and_then(|e| e.dropped.get(i)).copied();
        let lanes = words.iter().enumerate().map(|(i, words)| Lane {
            periods: periods(words, clock),
            dropped: dropped(i).unwrap_or(0),
        });
        TraceEpoch {
            lanes: lanes.collect(),
            end_ns: end.map(|e| e.at_ns),
            begin,
        }
    }
}

fn periods(words: &[u64], clock: &Clock) -> Vec<Period> {
    let mut out: Vec<Period> = Vec::new();
    let (mut now, mut now_ns) = (0u64, 0);
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        let (what, ticks) = parts(word);
        if what == PERIOD {
            // A mark is never alone; without its time the trace is cut off here.
            let Some(&at) = words.next() else { break };
            (now, now_ns) = (at, clock.ns(at));
            out.push(Period {
                number: ticks,
                start_ns: now_ns,
                records: Vec::new(),
            });
            continue;
        }
        now = now.saturating_add(ticks);
        let end_ns = clock.ns(now);
        if let Some(period) = out.last_mut() {
            period.records.push(Record {
                slot: what,
                start_ns: now_ns,
                end_ns,
            });
        }
        now_ns = end_ns;
    }
    out
}

/// Compares an epoch's records with the calendars of its plan.
fn check(epoch: &TraceEpoch, program: &Program) -> Result<(), TraceError> {
    let wrong = |message: String| TraceError::Epoch {
        epoch: epoch.begin.epoch,
        message,
    };
    let Some(plan) = program.plans.get(epoch.begin.plan) else {
        let (id, count) = (epoch.begin.plan, program.plans.len());
        return Err(wrong(format!(
            "{id} is none of the {count} plans of the bundle"
        )));
    };
    let (found, expected) = (epoch.lanes.len(), plan.calendars.len());
    if found != expected {
        return Err(wrong(format!(
            "{found} calendars, plan `{}` has {expected}",
            plan.name
        )));
    }
    if let Some(device) = epoch
        .begin
        .devices
        .iter()
        .find(|d| d.index() >= program.machine.devices.len())
    {
        return Err(wrong(format!("the machine has no {device}")));
    }
    for (calendar, lane) in epoch.lanes.iter().enumerate() {
        if !lane.is_whole() {
            check_lane(epoch, plan, calendar, lane)?;
        }
    }
    Ok(())
}

fn check_lane(
    epoch: &TraceEpoch,
    plan: &Plan,
    calendar: usize,
    lane: &Lane,
) -> Result<(), TraceError> {
    let mut stages = Vec::new();
    let mut order = Vec::new();
    for lane in &plan.calendars[calendar].lanes {
        // Slots are numbered through all lanes.
        let first_number = stages.len() as u32;
        let lane_order = walk::execution_order(&lane.entries).into_iter();
        order.extend(lane_order.map(|number| first_number + number));
        walk::visit_slots(&lane.entries, |visit| stages.push(visit.slot.stage));
    }
    // What is skipped at the end depends on the number of blocks, which the last period tells.
    for (index, period) in lane.periods.iter().enumerate() {
        let found = || {
            period
                .records
                .iter()
                .filter(|r| r.slot != OTHER)
                .map(|r| r.slot)
        };
        let last = u64::from(plan.stages - 1);
        let fits = |skipped: u64| {
            let at_work = |slot: &&u32| {
                let stage = u64::from(stages[**slot as usize]);
                stage <= period.number && stage >= skipped
            };
            let expected = order.iter().filter(at_work).copied();
            first_difference(found(), expected, index + 1 == lane.periods.len())
        };
        // In the epilogue the first stages have no blocks any more.
        let Some((at, found, expected)) = fits(0) else {
            continue;
        };
        if (1..=last).all(|skipped| fits(skipped).is_some()) {
            return Err(TraceError::Order {
                epoch: epoch.begin.epoch,
                calendar,
                period: period.number,
                at,
                found,
                expected,
            });
        }
    }
    Ok(())
}

/// Where two sequences differ, and how; the first may be cut off if `partial`.
fn first_difference(
    mut found: impl Iterator<Item = u32>,
    mut expected: impl Iterator<Item = u32>,
    partial: bool,
) -> Option<(usize, String, String)> {
    let name = |slot: Option<u32>| slot.map_or_else(|| "none".to_owned(), |s| s.to_string());
    let mut at = 0;
    loop {
        match (found.next(), expected.next()) {
            (None, None) => return None,
            (None, Some(_)) if partial => return None,
            (a, b) if a == b => at += 1,
            (a, b) => return Some((at, name(a), name(b))),
        }
    }
}
