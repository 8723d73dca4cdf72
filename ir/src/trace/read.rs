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

        let chunks = split_chunks(bytes)?;
        let clock = Clock::of(&chunks);

        // Chunks of several epochs may be mixed: words name the epoch that they belong to.
        let mut begin = None;
        let mut raw_epochs = Vec::<RawEpoch>::new();
        let mut events = Vec::new();
        let mut is_complete = false;
        for (at, chunk) in chunks {
            match chunk {
                Chunk::Begin(run_begin) => begin = Some(run_begin),
                Chunk::Epoch(epoch_begin) => raw_epochs.push(RawEpoch::new(epoch_begin)),
                Chunk::Words {
                    epoch,
                    calendar,
                    words,
                } => {
                    let raw_epoch = last_epoch(&mut raw_epochs, epoch);
                    let lane = raw_epoch.and_then(|raw| raw.words.get_mut(calendar as usize));
                    let unknown = || wrong_chunk(at, "words of an unknown calendar");
                    lane.ok_or_else(unknown)?.extend(words);
                }
                Chunk::EpochEnd(end) => {
                    let raw_epoch = last_epoch(&mut raw_epochs, end.epoch);
                    let unknown = || wrong_chunk(at, "the end of an unknown epoch");
                    raw_epoch.ok_or_else(unknown)?.end = Some(end);
                }
                Chunk::Event(event) => events.push(event),
                Chunk::Clocks(_) => {}
                Chunk::End => is_complete = true,
            }
        }

        let epochs = raw_epochs.into_iter();
        Ok(Trace {
            begin: begin.ok_or(TraceError::Empty)?,
            epochs: epochs.map(|raw| raw.into_epoch(&clock)).collect(),
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
        let all_epochs = trace.epochs.len();
        trace
            .epochs
            .retain(|epoch| epoch.begin.fingerprint == expected);

        // A run that ended before its first epoch names its program at the beginning.
        if trace.epochs.is_empty() && (all_epochs > 0 || trace.begin.fingerprint != expected) {
            let Begin {
                model, fingerprint, ..
            } = trace.begin;
            return Err(TraceError::Bundle {
                model,
                found: fingerprint,
                expected,
            });
        }

        let other_epochs = all_epochs - trace.epochs.len();
        for epoch in &trace.epochs {
            check_epoch(epoch, program)?;
        }
        Ok((trace, other_epochs))
    }
}

fn wrong_chunk(at: usize, message: &str) -> TraceError {
    TraceError::Chunk {
        at,
        message: message.to_owned(),
    }
}

/// The last epoch of a number: after a loss the same number begins again.
fn last_epoch(raw_epochs: &mut [RawEpoch], epoch: u64) -> Option<&mut RawEpoch> {
    raw_epochs.iter_mut().rfind(|raw| raw.begin.epoch == epoch)
}

/// Each chunk with its place. A last one that is cut off is left out.
fn split_chunks(bytes: &[u8]) -> Result<Vec<(usize, Chunk)>, TraceError> {
    /// Magic and version in front of the first chunk; kind and length in front of each.
    const HEAD_BYTES: usize = 8;

    let mut chunks = Vec::new();
    let mut at = HEAD_BYTES;
    while let (Some(kind), Some(length)) = (number_at(bytes, at), number_at(bytes, at + 4)) {
        // A run that was killed leaves a chunk that is cut off: what is before it is still true.
        let rest = bytes.get(at + HEAD_BYTES..);
        let Some(body) = rest.and_then(|rest| rest.get(..length as usize)) else {
            break;
        };
        chunks.push((at, read_chunk(at, kind, body)?));
        at += HEAD_BYTES + length as usize;
    }

    Ok(chunks)
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let number_bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*number_bytes))
}

fn read_chunk(at: usize, kind: u32, body: &[u8]) -> Result<Chunk, TraceError> {
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
        kind::WORDS => read_words(body).ok_or_else(|| {
            let message = format!("{} bytes are no words with a head of 16", body.len());
            TraceError::Chunk { at, message }
        })?,
        other => {
            let message = format!("is of kind {other}, must be 1 to 7");
            return Err(TraceError::Chunk { at, message });
        }
    })
}

fn read_words(body: &[u8]) -> Option<Chunk> {
    let (epoch, rest) = body.split_first_chunk()?;
    let (calendar, rest) = rest.split_first_chunk()?;
    let (words, odd_bytes) = rest.get(4..)?.as_chunks();
    odd_bytes.is_empty().then(|| Chunk::Words {
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
        let mut clock_pairs = chunks.iter().filter_map(|(_, chunk)| match chunk {
            Chunk::Clocks(clocks) => Some(*clocks),
            _ => None,
        });
        let from = clock_pairs.next().unwrap_or(Clocks { ticks: 0, ns: 0 });

        // Without a second pair, or with clocks that went back, a tick is taken for a nanosecond.
        let one_tick_later = Clocks {
            ticks: from.ticks.saturating_add(1),
            ns: from.ns.saturating_add(1),
        };
        let to = clock_pairs
            .next_back()
            .filter(|to| to.ticks > from.ticks && to.ns >= from.ns)
            .unwrap_or(one_tick_later);
        Self { from, to }
    }

    fn ns(&self, ticks: u64) -> u64 {
        let Self { from, to } = self;
        let run_ticks = i128::from(to.ticks - from.ticks);
        let rise_ns = i128::from(to.ns - from.ns);
        let ticks_since = i128::from(ticks) - i128::from(from.ticks);
        let ns = i128::from(from.ns) + ticks_since * rise_ns / run_ticks;
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

/// An epoch whose words are not times yet.
struct RawEpoch {
    begin: EpochBegin,
    words: Vec<Vec<u64>>,
    end: Option<EpochEnd>,
}

impl RawEpoch {
    fn new(begin: EpochBegin) -> Self {
        let words = vec![Vec::new(); begin.devices.len()];
        Self {
            begin,
            words,
            end: None,
        }
    }

    fn into_epoch(self, clock: &Clock) -> TraceEpoch {
        let Self { begin, words, end } = self;
        let mut lanes = Vec::with_capacity(words.len());
        for (calendar, words) in words.iter().enumerate() {
            // Without the end of the epoch nobody has counted what was dropped.
            let dropped = end.as_ref().and_then(|end| end.dropped.get(calendar));
            lanes.push(Lane {
                periods: read_periods(words, clock),
                dropped: dropped.copied().unwrap_or(0),
            });
        }

        TraceEpoch {
            lanes,
            end_ns: end.map(|end| end.at_ns),
            begin,
        }
    }
}

fn read_periods(words: &[u64], clock: &Clock) -> Vec<Period> {
    let mut periods: Vec<Period> = Vec::new();
    let mut now_ticks = 0u64;
    let mut now_ns = 0;
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        let (slot, ticks) = parts(word);
        if slot == PERIOD {
            // A mark is never alone; without its time the trace is cut off here.
            let Some(&start_ticks) = words.next() else {
                break;
            };
            now_ticks = start_ticks;
            now_ns = clock.ns(start_ticks);
            periods.push(Period {
                number: ticks,
                start_ns: now_ns,
                records: Vec::new(),
            });
            continue;
        }

        // Words hold how long a slot took: its end is the start of the next one.
        now_ticks = now_ticks.saturating_add(ticks);
        let end_ns = clock.ns(now_ticks);
        if let Some(period) = periods.last_mut() {
            period.records.push(Record {
                slot,
                start_ns: now_ns,
                end_ns,
            });
        }

        now_ns = end_ns;
    }

    periods
}

/// Compares an epoch's records with the calendars of its plan.
fn check_epoch(epoch: &TraceEpoch, program: &Program) -> Result<(), TraceError> {
    let Some(plan) = program.plans.get(epoch.begin.plan) else {
        let id = epoch.begin.plan;
        let count = program.plans.len();
        let message = format!("{id} is none of the {count} plans of the bundle");
        return Err(wrong_epoch(epoch, message));
    };

    let found = epoch.lanes.len();
    let expected = plan.calendars.len();
    if found != expected {
        let message = format!("{found} calendars, plan `{}` has {expected}", plan.name);
        return Err(wrong_epoch(epoch, message));
    }

    let device_count = program.machine.devices.len();
    let mut devices = epoch.begin.devices.iter();
    if let Some(device) = devices.find(|device| device.index() >= device_count) {
        return Err(wrong_epoch(epoch, format!("the machine has no {device}")));
    }

    // Lanes that were recorded by whole periods name no slots.
    for (calendar, lane) in epoch.lanes.iter().enumerate() {
        if !lane.is_whole() {
            check_lane(epoch, plan, calendar, lane)?;
        }
    }
    Ok(())
}

fn wrong_epoch(epoch: &TraceEpoch, message: String) -> TraceError {
    TraceError::Epoch {
        epoch: epoch.begin.epoch,
        message,
    }
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

    let expected_lane = ExpectedLane {
        stages,
        order,
        last_stage: u64::from(plan.stages - 1),
    };

    for (index, period) in lane.periods.iter().enumerate() {
        let is_last = index + 1 == lane.periods.len();
        if let Some(difference) = expected_lane.difference(period, is_last) {
            return Err(TraceError::Order {
                epoch: epoch.begin.epoch,
                calendar,
                period: period.number,
                at: difference.at,
                found: difference.found,
                expected: difference.expected,
            });
        }
    }
    Ok(())
}

/// What the calendar says of the records of a lane.
struct ExpectedLane {
    /// The stage of each slot.
    stages: Vec<u32>,
    /// The slots of a period, in the order of their executions.
    order: Vec<u32>,
    last_stage: u64,
}

impl ExpectedLane {
    /// Where a period's records differ from the calendar; the last period of a lane may be cut off.
    fn difference(&self, period: &Period, is_last: bool) -> Option<Difference> {
        // In the epilogue the first stages have no blocks any more. How many are skipped depends on the number of blocks,
        // which only the last period tells: any number that fits is right.
        let difference = self.difference_without(0, period, is_last)?;
        let fits_epilogue = (1..=self.last_stage)
            .any(|skipped| self.difference_without(skipped, period, is_last).is_none());
        (!fits_epilogue).then_some(difference)
    }

    /// The same where the first stages are skipped.
    fn difference_without(
        &self,
        skipped_stages: u64,
        period: &Period,
        is_last: bool,
    ) -> Option<Difference> {
        let records = period.records.iter();
        let found = records
            .map(|record| record.slot)
            .filter(|&slot| slot != OTHER);
        let expected = self.order.iter().copied().filter(|&slot| {
            let stage = u64::from(self.stages[slot as usize]);
            stage <= period.number && stage >= skipped_stages
        });
        first_difference(found, expected, is_last)
    }
}

/// A record that is not what the calendar says.
struct Difference {
    at: usize,
    found: String,
    expected: String,
}

/// Where two sequences differ, and how; the first may be cut off if `is_partial`.
fn first_difference(
    mut found: impl Iterator<Item = u32>,
    mut expected: impl Iterator<Item = u32>,
    is_partial: bool,
) -> Option<Difference> {
    let mut at = 0;
    loop {
        match (found.next(), expected.next()) {
            (None, None) => return None,

            // A run that was killed ends within a period.
            (None, Some(_)) if is_partial => return None,
            (found_slot, expected_slot) if found_slot == expected_slot => at += 1,
            (found_slot, expected_slot) => {
                return Some(Difference {
                    at,
                    found: slot_text(found_slot),
                    expected: slot_text(expected_slot),
                });
            }
        }
    }
}

fn slot_text(slot: Option<u32>) -> String {
    slot.map_or_else(|| "none".to_owned(), |slot| slot.to_string())
}
