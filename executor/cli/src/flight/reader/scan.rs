//! What the records of all segments come to, one after another: each is held against those before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use zbmd_ir::limits::MAX_STREAM_BYTES;
use zbmd_live::Gap;

use super::segment::{PayloadPlace, SegmentFile, Stop, read_at};
use super::tokens::{Piece, ranges_of};
use super::{ChangeHole, Recording, StoredChange, StoredState, TimedToken};
use crate::flight::folder::RecordingError;
use crate::flight::head::Head;
use crate::flight::record::{
    self, HEADER_BYTES, Kind, MAX_RECORDS, MAX_SMALL_BYTES, Mark, NumberedChange, NumberedInput,
    NumberedMode, RecordHeader, RunEnd, SegmentStart, SourceGap, StatePlace, TOKENS_HEAD_BYTES,
    TokensHead,
};

/// What is read of segments, one after another.
pub(super) struct Scan {
    head: Head,
    notes: Vec<String>,
    pieces: Vec<Vec<Piece>>,
    /// For each source, the token after the last one.
    next_tokens: Vec<u64>,
    gaps: Vec<Vec<Gap>>,
    times: Vec<Vec<TimedToken>>,
    states: Vec<StoredState>,
    changes: BTreeMap<u64, StoredChange>,
    change_holes: Vec<ChangeHole>,
    /// The number of the next change, if there has been a segment.
    next_change: Option<u64>,
    /// The iteration of the last change of mode.
    last_entry: u64,
    decided_iterations: u64,
    end: Option<RunEnd>,
    records: u64,
}

impl Scan {
    pub(super) fn new(head: Head) -> Self {
        let sources = head.sources.len();
        Self {
            head,
            notes: Vec::new(),
            pieces: vec![Vec::new(); sources],
            next_tokens: vec![0; sources],
            gaps: vec![Vec::new(); sources],
            times: vec![Vec::new(); sources],
            states: Vec::new(),
            changes: BTreeMap::new(),
            change_holes: Vec::new(),
            next_change: None,
            last_entry: 0,
            decided_iterations: 0,
            end: None,
            records: 0,
        }
    }

    pub(super) fn finish(self, files: Vec<SegmentFile>) -> Recording {
        Recording {
            head: self.head,
            notes: self.notes,
            gaps: self.gaps,
            times: self.times,
            end: self.end,
            files: Arc::new(files),
            ranges: self.pieces.iter().map(|pieces| ranges_of(pieces)).collect(),
            pieces: self.pieces.into_iter().map(Arc::new).collect(),
            states: self.states,
            changes: self.changes,
            change_holes: self.change_holes,
            decided_iterations: self.decided_iterations,
        }
    }

    /// Takes in the records of a segment, as far as it is whole.
    pub(super) fn segment(
        &mut self,
        index: usize,
        number: u64,
        file: &SegmentFile,
    ) -> Result<(), RecordingError> {
        let mut offset = 0;
        while offset < file.bytes {
            match self.record(index, number, file, offset) {
                Ok(record_bytes) => offset += record_bytes,
                Err(Stop::Io(source)) => {
                    return Err(RecordingError::Io {
                        path: file.path.clone(),
                        source,
                    });
                }
                Err(stop) => {
                    let what = match stop {
                        Stop::Torn => "it ends within a record".to_owned(),
                        Stop::Damaged(why) => why,
                        Stop::Io(_) => String::new(),
                    };
                    self.notes.push(format!(
                        "{}: at byte {offset}: {what}; the rest of it is not used",
                        file.path.display()
                    ));
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes in the record at a place; its length.
    fn record(
        &mut self,
        index: usize,
        number: u64,
        file: &SegmentFile,
        offset: u64,
    ) -> Result<u64, Stop> {
        let mut header_bytes = [0; HEADER_BYTES];
        read_at(file, &mut header_bytes, offset)?;
        let damaged = |why: &str| Stop::Damaged(why.to_owned());
        let header = RecordHeader::decode(&header_bytes);
        let header = header.ok_or_else(|| damaged("is not a record"))?;
        let payload_offset = offset + HEADER_BYTES as u64;
        if u64::from(header.length) > file.bytes - payload_offset.min(file.bytes) {
            return Err(Stop::Torn);
        }
        self.records += 1;
        if self.records > MAX_RECORDS {
            return Err(damaged("more records than a recording may have"));
        }
        if (offset == 0) != (header.kind == Kind::Start) {
            return Err(damaged(
                "a segment has one start, which is its first record",
            ));
        }

        let place = PayloadPlace {
            segment: index,
            offset: payload_offset,
            header,
        };
        match header.kind {
            Kind::Tokens => self.tokens(file, place)?,
            Kind::State => self.state(file, place)?,
            Kind::Start | Kind::Change | Kind::Mode | Kind::Mark | Kind::Gap | Kind::End => {
                if header.length > MAX_SMALL_BYTES {
                    return Err(damaged("is longer than any record of its kind"));
                }
                let payload = place.read(file)?;
                self.small(number, header.kind, &payload)
                    .map_err(Stop::Damaged)?;
            }
        }
        Ok(HEADER_BYTES as u64 + u64::from(header.length))
    }

    fn tokens(&mut self, file: &SegmentFile, place: PayloadPlace) -> Result<(), Stop> {
        let damaged = |why: &str| Stop::Damaged(why.to_owned());
        let mut head_bytes = [0; TOKENS_HEAD_BYTES];
        let length = place.header.length as usize;
        if length < TOKENS_HEAD_BYTES {
            return Err(damaged("tokens without their head"));
        }
        read_at(file, &mut head_bytes, place.offset)?;
        let head = TokensHead::decode(&head_bytes);
        let source_index = head.source as usize;
        let source = self.head.sources.get(source_index);
        let source = source.ok_or_else(|| damaged("tokens of no source"))?;
        let token_bytes = (length - TOKENS_HEAD_BYTES) as u64;
        if !token_bytes.is_multiple_of(source.token_bytes) {
            return Err(damaged("not a whole number of tokens"));
        }
        let tokens = token_bytes / source.token_bytes;
        if head.first < self.next_tokens[source_index]
            || head.first > MAX_STREAM_BYTES
            || tokens > MAX_STREAM_BYTES
        {
            return Err(damaged("tokens with indexes that came before"));
        }
        self.next_tokens[source_index] = head.first + tokens;
        if tokens > 0 {
            self.pieces[source_index].push(Piece {
                first: head.first,
                tokens,
                place,
            });
        }
        Ok(())
    }

    fn state(&mut self, file: &SegmentFile, place: PayloadPlace) -> Result<(), Stop> {
        /// Of a length and the place: a varint for each source, and some more.
        const MAX_VARINT_BYTES: usize = 10;
        let max_head = 4 + (5 + self.head.sources.len()) * MAX_VARINT_BYTES;
        let mut head_bytes = vec![0; max_head.min(place.header.length as usize)];
        read_at(file, &mut head_bytes, place.offset)?;
        let split = record::split_part::<StatePlace>(&head_bytes);
        let (state_place, _) = split.map_err(Stop::Damaged)?;
        let counts = state_place.consumed.iter();
        let is_possible = state_place.consumed.len() == self.head.sources.len()
            && (state_place.mode as usize) < self.head.modes.len()
            && state_place.iterations <= MAX_STREAM_BYTES
            && counts.max().is_none_or(|count| *count <= MAX_STREAM_BYTES);
        if !is_possible {
            return Err(Stop::Damaged("a state that no run reaches".to_owned()));
        }
        self.states.push(StoredState {
            place: state_place,
            payload: place,
        });
        Ok(())
    }

    fn small(&mut self, segment: u64, kind: Kind, payload: &[u8]) -> Result<(), String> {
        match kind {
            Kind::Start => self.start(segment, &record::decode(payload)?),
            Kind::Change => {
                let change: NumberedChange = record::decode(payload)?;
                self.input(NumberedInput::Parameters(change))
            }
            Kind::Mode => {
                let change: NumberedMode = record::decode(payload)?;
                let is_possible = (change.mode as usize) < self.head.modes.len()
                    && (self.last_entry..=MAX_STREAM_BYTES).contains(&change.iteration);
                if !is_possible {
                    return Err("a change of mode that no run makes".to_owned());
                }
                self.last_entry = change.iteration;
                self.input(NumberedInput::Mode(change))
            }
            Kind::Mark => {
                let mark: Mark = record::decode(payload)?;
                self.decided_iterations = mark.decided_iterations.max(self.decided_iterations);
                for (times, next) in self.times.iter_mut().zip(&self.next_tokens) {
                    let is_new = times.last().is_none_or(|last| last.index < *next);
                    if is_new {
                        times.push(TimedToken {
                            index: *next,
                            unix_ns: mark.unix_ns,
                        });
                    }
                }
                Ok(())
            }
            Kind::Gap => {
                let SourceGap { source, gap } = record::decode(payload)?;
                let gaps = self.gaps.get_mut(source as usize);
                gaps.ok_or("a gap of no source")?.push(gap);
                Ok(())
            }
            Kind::End => {
                let end: RunEnd = record::decode(payload)?;
                if end.iterations > MAX_STREAM_BYTES {
                    return Err("an end that no run reaches".to_owned());
                }
                self.end = Some(end);
                Ok(())
            }
            Kind::Tokens | Kind::State => Ok(()),
        }
    }

    /// Takes in a change.
    fn input(&mut self, input: NumberedInput) -> Result<(), String> {
        let number = input.number();
        if self.next_change.is_none_or(|next| number < next) || number == u64::MAX {
            return Err("a change with a number that came before".to_owned());
        }
        self.go_on_at_change(number);
        self.next_change = Some(number + 1);
        let stored = StoredChange {
            input,
            decided_iterations: self.decided_iterations,
        };
        self.changes.insert(number, stored);
        Ok(())
    }

    fn start(&mut self, number: u64, start: &SegmentStart) -> Result<(), String> {
        if start.run_id != self.head.run_id {
            return Err(format!(
                "is of run {:016x}, the recording is of run {:016x}",
                start.run_id, self.head.run_id
            ));
        }
        if start.segment != number {
            return Err(format!(
                "is segment {}, by its name {number}",
                start.segment
            ));
        }
        if start.tokens.len() != self.next_tokens.len() {
            return Err("counts other sources than the recording has".to_owned());
        }
        if start.changes > MAX_STREAM_BYTES {
            return Err("counts changes that no run makes".to_owned());
        }
        if self.next_change.is_some_and(|next| start.changes < next) {
            return Err("counts fewer changes than the segment before it".to_owned());
        }
        self.go_on_at_change(start.changes);
        self.next_change = Some(start.changes);
        Ok(())
    }

    /// The next change is this one: those before it that were not recorded, or are gone, are a hole.
    fn go_on_at_change(&mut self, number: u64) {
        if number > self.next_change.unwrap_or(0) {
            self.change_holes.push(ChangeHole {
                end_number: number,
                decided_iterations: self.decided_iterations,
            });
        }
    }
}
