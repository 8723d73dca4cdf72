//! Recordings that no recorder has made: from any bytes, with checksums that fit, otherwise nothing behind them would ever be
//! reached.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use serde::Serialize;
use zbmd_ir::verify::{VerifiedModes, verify};
use zbmd_ir::{ActorId, ChangePosition, ParameterChange, Program, State, state};
use zbmd_live::{Cause, Gap};

use crate::flight::record::{
    self, Kind, Mark, NumberedChange, NumberedMode, RecordHeader, RunEnd, SegmentStart, SourceGap,
    StatePlace, TokensHead,
};
use crate::flight::{Head, Recording, recorded_modes, sources_of};
use crate::replay::export;

const RUN_ID: u64 = 7;
const HEAD_FILE: &str = "recording.zbfr";
/// Of a word, how many bits its lower part has: numbers are small, or near the largest.
const SMALL_BITS: u32 = 12;

/// How far a recording came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Its head is refused.
    Refused,
    /// No state of it is of the program.
    WithoutState,
    /// It has a state, and no tokens to go on from it.
    WithoutTokens,
    /// It can be replayed.
    Replayable,
}

/// A step of a recording.
struct Step {
    choice: u8,
    /// Two small numbers, and one that may be large.
    small: [u64; 2],
    number: u64,
}

impl Step {
    const BYTES: usize = 8;

    fn of(bytes: [u8; Self::BYTES]) -> Self {
        let [choice, first, second, _, word @ ..] = bytes;
        let word = u32::from_le_bytes(word);
        let number = u64::from(word & ((1 << SMALL_BITS) - 1));
        Self {
            choice,
            small: [first.into(), second.into()],
            number: match word >> SMALL_BITS {
                // One in sixteen.
                high if high % 16 == 15 => u64::MAX - number,
                high if high % 16 == 14 => number << 50,
                // Where states and tokens lie so close, some fit each other.
                high if high % 2 == 0 => number % 4,
                _ => number,
            },
        }
    }
}

/// Writes the recording that these bytes stand for to a folder, in the place of what is there: its head as it is, then steps
/// of 8 bytes. Of sources there are those of the program, and one more is named now and then.
///
/// # Errors
/// What the system says.
pub fn forge(bytes: &[u8], program: &Program, folder: &Path) -> io::Result<()> {
    clear(folder)?;
    let head = Head {
        run_id: RUN_ID,
        bundle_hash: 0,
        modes: recorded_modes(&modes_of(program)),
        sources: sources_of(program, |_| Some(48e3)),
    };
    fs::write(folder.join(HEAD_FILE), head.encode())?;
    let mut segments = vec![start(&head, 0, [0, 0])];
    for step in bytes.as_chunks::<{ Step::BYTES }>().0 {
        let step = Step::of(*step);
        let count = segments.len() as u64;
        match step.choice % 16 {
            0 => segments.push(start(&head, count, [step.number, step.small[0]])),
            _ => {
                let newest = segments.last_mut().expect("the first one");
                newest.extend(step_record(&step, &head, program));
            }
        }
    }
    for (number, segment) in segments.iter().enumerate() {
        write_segment(folder, number as u64, segment)?;
    }
    Ok(())
}

/// A program as the only mode.
fn modes_of(program: &Program) -> VerifiedModes {
    let verified = verify(program.clone());
    VerifiedModes::from(verified.expect("a valid program"))
}

/// Writes a recording whose head, or only segment, has these bytes.
///
/// # Errors
/// What the system says.
pub fn write_raw(bytes: &[u8], is_head: bool, program: &Program, folder: &Path) -> io::Result<()> {
    forge(&[], program, folder)?;
    match is_head {
        true => fs::write(folder.join(HEAD_FILE), bytes),
        false => write_segment(folder, 0, bytes),
    }
}

fn write_segment(folder: &Path, number: u64, bytes: &[u8]) -> io::Result<()> {
    fs::write(folder.join(format!("{number:012}.zbseg")), bytes)
}

fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(())
}

fn sealed(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let header = RecordHeader::of(kind, &[payload]).expect("short");
    [&header.encode()[..], payload].concat()
}

fn small<T: Serialize>(kind: Kind, value: &T) -> Vec<u8> {
    sealed(kind, &record::encode(value))
}

/// The first record of a segment; how far the recording is in tokens and in changes.
fn start(head: &Head, segment: u64, [tokens, changes]: [u64; 2]) -> Vec<u8> {
    let start = SegmentStart {
        run_id: head.run_id,
        segment,
        tokens: vec![tokens; head.sources.len()],
        changes,
    };
    small(Kind::Start, &start)
}

/// The record of a step.
fn step_record(step: &Step, head: &Head, program: &Program) -> Vec<u8> {
    let Step {
        choice,
        small: [first, second],
        number,
    } = *step;
    let source = (first % (head.sources.len() as u64 + 1)) as u32;
    match choice % 16 {
        1..=5 => {
            let token_bytes = head
                .sources
                .get(source as usize)
                .map_or(3, |s| s.token_bytes);
            // One in 16 has not whole tokens.
            let bytes = second * token_bytes + u64::from(choice >> 4 == 15);
            let head = TokensHead {
                source,
                first: number,
            };
            let payload = [&head.encode()[..], &vec![choice; bytes as usize]].concat();
            sealed(Kind::Tokens, &payload)
        }
        6 => {
            let position = match first % 2 {
                0 => ChangePosition::Iteration(number),
                _ => ChangePosition::Token {
                    source: ActorId(source),
                    index: number,
                },
            };
            let values = vec![(u32::from(choice >> 4), vec![second as f64 / 64.0])];
            let change = ParameterChange { position, values };
            let number = first;
            small(Kind::Change, &NumberedChange { number, change })
        }
        7 => small(
            Kind::Mode,
            &NumberedMode {
                number: first,
                iteration: number,
                mode: (second % 5 / 4) as u32,
            },
        ),
        8..=10 => state_record(step, head, program),
        11 | 12 => small(
            Kind::Mark,
            &Mark {
                decided_iterations: number,
                unix_ns: first << 56,
            },
        ),
        13 => {
            let gap = Gap {
                first: number,
                length: second,
                cause: Cause::ALL[usize::from(choice >> 4) % Cause::ALL.len()],
            };
            small(Kind::Gap, &SourceGap { source, gap })
        }
        14 => small(
            Kind::End,
            &RunEnd {
                iterations: number,
                pads: first % 2 == 1,
            },
        ),
        // A payload of any kind that is short.
        _ => {
            let kinds = [
                Kind::Tokens,
                Kind::State,
                Kind::Change,
                Kind::Gap,
                Kind::End,
                Kind::Mode,
            ];
            let payload = number.to_le_bytes();
            let length = (second % 9) as usize;
            sealed(kinds[first as usize % kinds.len()], &payload[..length])
        }
    }
}

/// A state of the program, which is where its place says, or is not.
fn state_record(step: &Step, head: &Head, program: &Program) -> Vec<u8> {
    let [changes_made, other] = step.small;
    let iterations = step.number;
    let rates = head.modes[0].tokens_per_iteration.iter();
    let consumed = rates.map(|rate| iterations.wrapping_mul(*rate));
    let mut place = StatePlace {
        changes_made,
        mode: u32::from(other % 16 == 12),
        iterations,
        consumed: consumed.collect(),
    };
    let mut state = State::initial(&program.graph);
    state.iterations = iterations;
    for ((_, tokens), consumed) in state.consumed.iter_mut().zip(&place.consumed) {
        *tokens = *consumed;
    }
    match other % 16 {
        13 => place.iterations += 1,
        14 => place.consumed.push(0),
        15 => state.channels = Vec::new().into(),
        _ => {}
    }
    let payload = [
        record::encode_part(&place),
        record::encode_part(&BTreeMap::<String, Vec<f64>>::new()),
        state::encode(&state, &program.graph, None),
    ];
    sealed(Kind::State, &payload.concat())
}

/// Opens a recording and reads all that is in it, as a replay and an export do.
///
/// # Panics
/// If ranges of tokens are not in order, more or fewer tokens are read than there are, or a stretch ends before it begins.
pub fn examine(folder: &Path, program: &Program) -> Verdict {
    let Ok(recording) = Recording::open(folder) else {
        return Verdict::Refused;
    };
    let modes = modes_of(program);
    if recording.head.difference(&modes).is_some() {
        return Verdict::Refused;
    }
    for source in 0..recording.head.sources.len() {
        examine_tokens(&recording, source);
    }

    let mut verdict = Verdict::WithoutState;
    for stretch in recording.stretches() {
        assert!(stretch.begin <= stretch.end, "{stretch:?}");
        if recording.start(stretch, &modes).is_ok() {
            verdict = verdict.max(match stretch.begin < stretch.end {
                true => Verdict::Replayable,
                false => Verdict::WithoutTokens,
            });
        }
    }
    assert!(recording.ranges_text().len() < 1 << 10);
    for from in [None, Some(0), Some(5), Some(u64::MAX)] {
        if let Ok(stretch) = recording.stretch(from) {
            assert!(from.is_none_or(|from| stretch.begin <= from && from <= stretch.end));
        }
    }
    examine_exports(&recording, folder, &modes);
    verdict
}

fn examine_tokens(recording: &Recording, source: usize) {
    let token_bytes = recording.head.sources[source].token_bytes;
    let mut next = 0;
    for range in recording.token_ranges(source) {
        assert!(next <= range.first && range.first < range.end, "{range:?}");
        next = range.end + 1;
        let middle = range.first + (range.end - range.first) / 2;
        for first in [range.first, middle] {
            let mut tokens = Vec::new();
            let read = recording.tokens(source, first).read_to_end(&mut tokens);
            read.expect("checksums fit");
            assert_eq!(tokens.len() as u64, (range.end - first) * token_bytes);
        }
    }
}

/// What is exported lies beside the recording: it is small, as the recording is.
fn examine_exports(recording: &Recording, folder: &Path, modes: &VerifiedModes) {
    let exported = tempfile::tempdir().expect("a folder");
    let texts = [
        format!("sigmf:{}", exported.path().join("x").display()),
        format!("mcap:{}", exported.path().join("x.mcap").display()),
    ];
    for text in texts {
        // One of them may not be built in.
        let Ok(export) = export::export(&text) else {
            continue;
        };
        match export.write(recording, folder, modes) {
            Ok(_) | Err(crate::CliError::Refused { .. }) => {}
            Err(error) => panic!("{text}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::testing::programs;

    /// Marsaglia's xorshift (2003).
    fn random_bytes(state: &mut u64, length: usize) -> Vec<u8> {
        let bytes = (0..length).map(|_| {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            (*state >> 32) as u8
        });
        bytes.collect()
    }

    #[test]
    fn recordings_of_any_bytes_are_read_or_refused() {
        let program = programs::two_devices();
        let folder = tempfile::tempdir().expect("a folder");
        let mut state = 0x2545_f491_4f6c_dd1d;
        let mut verdicts = BTreeMap::new();
        for round in 0..2000 {
            let length = Step::BYTES * (1 + round % 40);
            let bytes = random_bytes(&mut state, length);
            forge(&bytes, &program, folder.path()).expect("written");
            *verdicts
                .entry(examine(folder.path(), &program))
                .or_insert(0) += 1;
            for is_head in [true, false] {
                write_raw(&bytes, is_head, &program, folder.path()).expect("written");
                let verdict = examine(folder.path(), &program);
                assert_eq!(verdict == Verdict::Refused, is_head, "round {round}");
            }
        }
        // All of them come about.
        for verdict in [
            Verdict::WithoutState,
            Verdict::WithoutTokens,
            Verdict::Replayable,
        ] {
            let count = verdicts.get(&verdict).copied().unwrap_or(0);
            assert!(count > 20, "{verdicts:?}");
        }
    }
}
