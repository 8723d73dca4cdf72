//! Reads a recording, which may be a stranger's: every length and count is checked. Also one that is still being made, and
//! one whose process was killed at any byte.
//!
//! Opening reads the heads of all records; tokens and states are read, and their checksums compared, when they are wanted.
//! A segment that ends within a record, or that is damaged, ends there; what is missing then is found as any other hole
//! is, by the indexes of what follows.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use zbmd_executor::ScheduledMode;
use zbmd_ir::limits::{MAX_CHANGES, MAX_STREAM_BYTES};
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{ActorId, ParameterChange, PositionOrder, PresentMode, State, insert_change, state};
use zbmd_live::Gap;

use super::folder::{HEAD_FILE, RecordingError, segments};
use super::head::{Head, MAX_HEAD_BYTES};
use super::history::ModeHistory;
use super::record::{
    self, HEADER_BYTES, Kind, MAX_RECORDS, MAX_SMALL_BYTES, Mark, NumberedChange, NumberedInput,
    NumberedMode, RecordHeader, RunEnd, SegmentStart, SourceGap, StatePlace, TOKENS_HEAD_BYTES,
    TokensHead,
};
use crate::io::read_whole;

/// Changes that a replay begins with, at most, beside those that are in its state: the two together are no more than a state
/// may have.
const MAX_REPLAYED_CHANGES: u64 = MAX_CHANGES as u64 / 2;
/// Ranges of iterations that people are told.
const MAX_TOLD_RANGES: usize = 8;

/// A file of a recording.
#[derive(Debug)]
struct SegmentFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// Where a payload is.
#[derive(Clone, Copy, Debug)]
struct PayloadPlace {
    segment: usize,
    /// Of the payload's first byte.
    offset: u64,
    header: RecordHeader,
}

/// Tokens of a source that follow on each other.
#[derive(Clone, Copy, Debug)]
struct Piece {
    first: u64,
    tokens: u64,
    place: PayloadPlace,
}

/// Tokens of a source of which none is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// Index of the first one.
    pub first: u64,
    /// The index after the last one.
    pub end: u64,
}

/// A change of live parameters or of the mode.
#[derive(Clone, Debug)]
struct StoredChange {
    input: NumberedInput,
    /// By the mark before it: it takes effect at this iteration or later.
    decided_iterations: u64,
}

/// A state of the recording.
#[derive(Clone, Debug)]
struct StoredState {
    place: StatePlace,
    payload: PayloadPlace,
}

/// Changes that are not in the recording.
#[derive(Clone, Copy, Debug)]
struct ChangeHole {
    /// The number after the last one.
    end_number: u64,
    /// All changes that take effect before this iteration come before the hole.
    decided_iterations: u64,
}

/// A part of a recording that can be replayed: from a state to where something is missing, or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Which state.
    state: usize,
    /// Iterations of the run when it began.
    pub begin: u64,
    /// And when it ends.
    pub end: u64,
    /// It ends where the run ended, in good order.
    pub is_whole: bool,
}

/// What a replay begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayStart {
    /// Where it begins, with the changes of live parameters that were made before the first change of mode.
    pub state: State,
    /// In which mode.
    pub present_mode: PresentMode,
    /// The changes of mode that follow, each with the changes of live parameters before the next.
    pub scheduled_modes: Vec<ScheduledMode>,
}

impl From<State> for ReplayStart {
    /// In the first mode, and no other follows.
    fn from(state: State) -> Self {
        Self {
            state,
            present_mode: PresentMode::default(),
            scheduled_modes: Vec::new(),
        }
    }
}

/// The iterations of a stretch that are in one mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leg {
    mode: usize,
    begin: u64,
}

/// A time that the recording knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedToken {
    /// For each source, as many tokens had come.
    pub index: u64,
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
}

/// A recording that was opened.
#[derive(Debug)]
pub struct Recording {
    /// What it is of.
    pub head: Head,
    /// What is to be said of it.
    pub notes: Vec<String>,
    /// For each source, the gaps that were filled.
    pub gaps: Vec<Vec<Gap>>,
    /// For each source, when tokens had come, in order.
    pub times: Vec<Vec<TimedToken>>,
    /// How the run ended.
    pub end: Option<RunEnd>,
    files: Arc<Vec<SegmentFile>>,
    pieces: Vec<Arc<Vec<Piece>>>,
    /// For each source, its tokens.
    ranges: Vec<Vec<TokenRange>>,
    states: Vec<StoredState>,
    changes: BTreeMap<u64, StoredChange>,
    change_holes: Vec<ChangeHole>,
    /// By the last mark.
    decided_iterations: u64,
}

/// What is read of segments, one after another.
struct Scan {
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

/// Why a segment is read no further.
enum Stop {
    /// It ends within a record.
    Torn,
    /// It is not what it should be.
    Damaged(String),
    /// The system does not let us.
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Recording {
    /// Opens the recording in a folder.
    ///
    /// # Errors
    /// See [`RecordingError`]. A damaged segment is none: [`Self::notes`] has it.
    pub fn open(folder: &Path) -> Result<Self, RecordingError> {
        let head_path = folder.join(HEAD_FILE);
        let head_bytes = match read_whole(&head_path, MAX_HEAD_BYTES) {
            Ok(bytes) => bytes,
            Err(crate::io::FileError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                return Err(RecordingError::Missing {
                    path: folder.to_owned(),
                });
            }
            Err(error) => {
                return Err(RecordingError::Unusable {
                    path: head_path,
                    why: error.to_string(),
                });
            }
        };
        let head = Head::decode(&head_bytes).map_err(|source| RecordingError::Head {
            path: head_path.clone(),
            source,
        })?;

        let mut scan = Scan::new(head);
        let mut files = Vec::new();
        for (number, path) in open_segments(folder)? {
            let Some(file) = open_segment(path)? else {
                continue;
            };
            scan.segment(files.len(), number, &file)?;
            files.push(file);
        }
        Ok(scan.finish(files))
    }

    /// The parts that can be replayed: for each state, how far.
    pub fn stretches(&self) -> Vec<Stretch> {
        let states = 0..self.states.len();
        states.map(|state| self.stretch_of(state)).collect()
    }

    /// The stretch to replay from an iteration on: the one that gets furthest, from its latest state. Without an iteration,
    /// the first that has anything.
    ///
    /// # Errors
    /// Why there is none.
    pub fn stretch(&self, from: Option<u64>) -> Result<Stretch, String> {
        let stretches = self.stretches();
        let Some(from) = from else {
            let mut with_tokens = stretches
                .iter()
                .filter(|stretch| stretch.begin < stretch.end);
            let first = with_tokens.next().or(stretches.first());
            return first
                .copied()
                .ok_or_else(|| "holds no state that a replay can begin at".to_owned());
        };
        let holding = stretches
            .iter()
            .filter(|stretch| (stretch.begin..=stretch.end).contains(&from));
        let best = holding.max_by_key(|stretch| (stretch.end, stretch.begin));
        best.copied().ok_or_else(|| {
            let ranges = self.ranges_text();
            format!("iteration {from} cannot be replayed: the recording has {ranges}")
        })
    }

    /// The ranges of iterations that can be replayed, as people read them.
    pub fn ranges_text(&self) -> String {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for stretch in self.stretches() {
            match ranges.last_mut() {
                Some((_, end)) if stretch.begin <= *end => *end = stretch.end.max(*end),
                _ => ranges.push((stretch.begin, stretch.end)),
            }
        }
        let told = ranges.iter().take(MAX_TOLD_RANGES);
        let mut texts: Vec<String> = told
            .map(|(begin, end)| format!("iterations {begin} to {end}"))
            .collect();
        if ranges.len() > MAX_TOLD_RANGES {
            texts.push(format!(
                "and {} ranges more",
                ranges.len() - MAX_TOLD_RANGES
            ));
        }
        match texts.is_empty() {
            true => "no state".to_owned(),
            false => texts.join(", "),
        }
    }

    fn stretch_of(&self, index: usize) -> Stretch {
        let place = &self.states[index].place;
        let by_tokens = self.end_of_tokens(place);

        let undecided = self.first_undecided(place.changes_made);
        let decided = undecided.unwrap_or(self.decided_iterations);
        let by_end = self.end.filter(|_| undecided.is_none());
        // A padded iteration has fewer tokens than it takes.
        let missing = by_end.map_or(0, |end| end.iterations.saturating_sub(by_tokens));
        let reaches_end = by_end.is_some_and(|end| missing <= u64::from(end.pads));
        let end = match by_end {
            Some(end) if reaches_end => end.iterations,
            Some(end) => by_tokens.min(end.iterations),
            None => by_tokens.min(decided),
        };
        Stretch {
            state: index,
            begin: place.iterations,
            end: end.max(place.iterations),
            is_whole: reaches_end,
        }
    }

    /// The iteration before which a run from a state has all tokens.
    fn end_of_tokens(&self, place: &StatePlace) -> u64 {
        let with_ranges = self.ranges.iter().zip(&place.consumed);
        let mut left: Vec<u64> = with_ranges
            .map(|(ranges, consumed)| contiguous_from(ranges, *consumed))
            .collect();
        let legs = self.legs(place);
        for (index, leg) in legs.iter().enumerate() {
            let per_iteration = &self.head.modes[leg.mode].tokens_per_iteration;
            let by_source = left.iter().zip(per_iteration);
            let by_source = by_source.map(|(tokens, per_iteration)| tokens / per_iteration);
            let iterations = by_source.min().unwrap_or(u64::MAX);
            let next = legs.get(index + 1).map(|next| next.begin - leg.begin);
            match next.filter(|next| *next <= iterations) {
                None => return leg.begin.saturating_add(iterations),
                Some(next) => {
                    for (tokens, per_iteration) in left.iter_mut().zip(per_iteration) {
                        *tokens -= next * per_iteration;
                    }
                }
            }
        }
        place.iterations
    }

    /// The modes of a run from a state on, up to the first change that is missing. The first begins at the state.
    fn legs(&self, place: &StatePlace) -> Vec<Leg> {
        let mut legs = vec![Leg {
            mode: place.mode as usize,
            begin: place.iterations,
        }];
        for (_, input) in self.inputs_after(place) {
            if let NumberedInput::Mode(change) = input {
                legs.push(Leg {
                    mode: change.mode as usize,
                    begin: change.iteration.max(place.iterations),
                });
            }
        }
        legs
    }

    /// The changes that were made after a state, up to the first that is missing or too many.
    fn inputs_after(&self, place: &StatePlace) -> impl Iterator<Item = (u64, &NumberedInput)> {
        let first_number = place.changes_made;
        let end_number = first_number.saturating_add(MAX_REPLAYED_CHANGES);
        let later = self.changes.range(first_number..end_number);
        later
            .zip(first_number..)
            .take_while(|((number, _), next)| *number == next)
            .map(|((number, stored), _)| (*number, &stored.input))
    }

    /// The iteration from which on a replay from a state with so many changes does not have those that take effect, if there
    /// is one: some are missing, or there are too many.
    fn first_undecided(&self, changes_made: u64) -> Option<u64> {
        let holes_before = self
            .change_holes
            .partition_point(|hole| hole.end_number <= changes_made);
        let next_hole = self.change_holes.get(holes_before);
        let by_hole = next_hole.map(|hole| hole.decided_iterations);
        let first_left_out = changes_made.saturating_add(MAX_REPLAYED_CHANGES);
        let by_count = self.changes.range(first_left_out..).next();
        let by_count = by_count.map(|(_, change)| change.decided_iterations);
        by_hole.into_iter().chain(by_count).min()
    }

    /// What a stretch begins with, with all changes that were made later.
    ///
    /// # Errors
    /// A damaged state or one of another graph; changes that the graphs do not allow.
    pub fn start(
        &self,
        stretch: Stretch,
        modes: &VerifiedModes,
    ) -> Result<ReplayStart, RecordingError> {
        let stored = &self.states[stretch.state];
        let file = &self.files[stored.payload.segment];
        let refused = |why: String| RecordingError::Content {
            path: file.path.clone(),
            offset: stored.payload.offset,
            why,
        };
        let payload = stored
            .payload
            .read(file)
            .map_err(|stop| stop.error(file, stored.payload.offset))?;
        let place_and_rest = record::split_part::<StatePlace>(&payload);
        let (_, rest) = place_and_rest.map_err(&refused)?;
        let (waiting, state_bytes) = record::split_part(rest).map_err(&refused)?;
        let mode = stored.place.mode;
        let Some(program) = modes.programs().get(mode as usize) else {
            return Err(refused(format!("a state of mode {mode}, counted from 0")));
        };
        let graph = &program.graph;
        let saved =
            state::decode(state_bytes, graph).map_err(|error| refused(error.to_string()))?;
        let mut state = saved.state;
        let consumed = state.consumed.iter().map(|(_, tokens)| *tokens);
        let is_same = state.iterations == stored.place.iterations
            && consumed.eq(stored.place.consumed.iter().copied());
        if !is_same {
            return Err(refused("is not the state that its place says".to_owned()));
        }

        let per_iteration = &self.head.modes[mode as usize].tokens_per_iteration;
        let sources = graph.sources().zip(per_iteration);
        let tokens_per_iteration: BTreeMap<ActorId, u64> =
            sources.map(|((id, _), tokens)| (id, *tokens)).collect();
        let order = PositionOrder {
            iterations: state.iterations,
            consumed: &state.consumed,
            tokens_per_iteration: |source| tokens_per_iteration.get(&source).copied().unwrap_or(1),
        };
        let mut scheduled_modes: Vec<ScheduledMode> = Vec::new();
        for (_, input) in self.inputs_after(&stored.place) {
            match (input, scheduled_modes.last_mut()) {
                (NumberedInput::Mode(entered), _) => scheduled_modes.push(ScheduledMode {
                    iteration: entered.iteration,
                    mode: entered.mode,
                    changes: Vec::new(),
                }),
                (NumberedInput::Parameters(made), Some(last)) => {
                    last.changes.push(made.change.clone());
                }
                (NumberedInput::Parameters(made), None) => {
                    insert_change(&mut state.changes, made.change.clone(), &order);
                }
            }
        }
        state::check(&state, graph).map_err(|error| refused(error.to_string()))?;
        Ok(ReplayStart {
            state,
            present_mode: PresentMode {
                mode,
                waiting,
                // What tokens decided at this border is among the changes that follow.
                is_decided: true,
            },
            scheduled_modes,
        })
    }

    /// Changes of live parameters that were recorded, by number.
    pub fn changes(&self) -> impl Iterator<Item = (u64, &ParameterChange)> {
        let inputs = self.changes.iter();
        inputs.filter_map(|(number, stored)| match &stored.input {
            NumberedInput::Parameters(made) => Some((*number, &made.change)),
            NumberedInput::Mode(_) => None,
        })
    }

    /// Changes of the mode that were recorded, in order.
    pub fn mode_changes(&self) -> impl Iterator<Item = &NumberedMode> {
        let inputs = self.changes.values();
        inputs.filter_map(|stored| match &stored.input {
            NumberedInput::Mode(entered) => Some(entered),
            NumberedInput::Parameters(_) => None,
        })
    }

    /// The modes that the run was in, as far as the recording tells.
    pub fn mode_history(&self) -> ModeHistory {
        let modes = self.head.modes.iter();
        let states = self.states.iter().map(|stored| &stored.place);
        let rates = modes.map(|mode| mode.tokens_per_iteration.clone());
        ModeHistory::new(self.mode_changes(), states, rates.collect())
    }

    /// The tokens that are there of a source, in order.
    pub fn token_ranges(&self, source: usize) -> &[TokenRange] {
        &self.ranges[source]
    }

    /// The tokens of a source from an index on, up to the first that is missing.
    pub fn tokens(&self, source: usize, from: u64) -> RecordedTokens {
        let pieces = Arc::clone(&self.pieces[source]);
        RecordedTokens {
            files: Arc::clone(&self.files),
            piece: pieces.partition_point(|piece| piece.first + piece.tokens <= from),
            pieces,
            token_bytes: self.head.sources[source].token_bytes,
            next: from,
            buffer: Vec::new(),
            taken: 0,
        }
    }
}

/// The ranges that pieces make, which are in order.
fn ranges_of(pieces: &[Piece]) -> Vec<TokenRange> {
    let mut ranges: Vec<TokenRange> = Vec::new();
    for piece in pieces {
        let (first, end) = (piece.first, piece.first + piece.tokens);
        match ranges.last_mut() {
            Some(last) if last.end == first => last.end = end,
            _ => ranges.push(TokenRange { first, end }),
        }
    }
    ranges
}

/// How many tokens there are from an index on, before the first that is missing.
fn contiguous_from(ranges: &[TokenRange], from: u64) -> u64 {
    let place = ranges.partition_point(|range| range.end <= from);
    let range = ranges.get(place).filter(|range| range.first <= from);
    range.map_or(0, |range| range.end - from)
}

/// The segments in a folder.
fn open_segments(folder: &Path) -> Result<Vec<(u64, PathBuf)>, RecordingError> {
    segments(folder).map_err(|source| RecordingError::Io {
        path: folder.to_owned(),
        source,
    })
}

/// Opens a segment, unless it has just been removed.
fn open_segment(path: PathBuf) -> Result<Option<SegmentFile>, RecordingError> {
    let opened = File::open(&path).and_then(|file| Ok((file.metadata()?, file)));
    match opened {
        Ok((metadata, _)) if !metadata.is_file() => Err(RecordingError::Unusable {
            path,
            why: "is not a regular file".to_owned(),
        }),
        Ok((metadata, file)) => Ok(Some(SegmentFile {
            path,
            file,
            bytes: metadata.len(),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RecordingError::Io { path, source }),
    }
}

impl Stop {
    fn error(self, file: &SegmentFile, offset: u64) -> RecordingError {
        let path = file.path.clone();
        match self {
            Stop::Io(source) => RecordingError::Io { path, source },
            Stop::Torn => RecordingError::Content {
                path,
                offset,
                why: "ends within a record".to_owned(),
            },
            Stop::Damaged(why) => RecordingError::Content { path, offset, why },
        }
    }
}

impl PayloadPlace {
    /// Reads a payload and compares its checksum.
    fn read(self, file: &SegmentFile) -> Result<Vec<u8>, Stop> {
        let mut payload = Vec::new();
        self.read_into(file, &mut payload)?;
        Ok(payload)
    }

    fn read_into(self, file: &SegmentFile, payload: &mut Vec<u8>) -> Result<(), Stop> {
        // Its length was compared with that of the file.
        payload.resize(self.header.length as usize, 0);
        read_at(file, payload, self.offset)?;
        match self.header.is_of(&[payload]) {
            true => Ok(()),
            false => Err(Stop::Damaged(
                "the record's checksum is another: it is damaged".to_owned(),
            )),
        }
    }
}

/// Fills a buffer from a place of a file.
fn read_at(file: &SegmentFile, buffer: &mut [u8], offset: u64) -> Result<(), Stop> {
    match file.file.read_exact_at(buffer, offset) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(Stop::Torn),
        Err(error) => Err(Stop::Io(error)),
    }
}

impl Scan {
    fn new(head: Head) -> Self {
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

    fn finish(self, files: Vec<SegmentFile>) -> Recording {
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
    fn segment(
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

/// Tokens of a recording, as bytes.
#[derive(Debug)]
pub struct RecordedTokens {
    files: Arc<Vec<SegmentFile>>,
    pieces: Arc<Vec<Piece>>,
    /// The next piece.
    piece: usize,
    token_bytes: u64,
    /// Index of the token after those in the buffer.
    next: u64,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were given.
    taken: usize,
}

impl RecordedTokens {
    /// Reads the next piece, if it goes on where the last one ended.
    fn refill(&mut self) -> io::Result<bool> {
        let Some(piece) = self.pieces.get(self.piece) else {
            return Ok(false);
        };
        if piece.first > self.next {
            return Ok(false);
        }
        let file = &self.files[piece.place.segment];
        let read = piece.place.read_into(file, &mut self.buffer);
        read.map_err(|stop| match stop {
            Stop::Io(error) => error,
            other => io::Error::other(other.error(file, piece.place.offset).to_string()),
        })?;
        let skipped = (self.next - piece.first) * self.token_bytes;
        self.taken = TOKENS_HEAD_BYTES + skipped as usize;
        self.next = piece.first + piece.tokens;
        self.piece += 1;
        Ok(true)
    }
}

impl Read for RecordedTokens {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.taken >= self.buffer.len() {
            if !self.refill()? {
                return Ok(0);
            }
        }
        let from = &self.buffer[self.taken..];
        let length = from.len().min(to.len());
        to[..length].copy_from_slice(&from[..length]);
        self.taken += length;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use zbmd_ir::ChangePosition;

    use super::super::folder::segment_name;
    use super::super::head::{RecordedMode, RecordedSource};
    use super::*;

    const RUN_ID: u64 = 7;

    /// A recording of one source of bytes, with these records in its segments.
    fn recording(segments: &[Vec<Vec<u8>>]) -> Recording {
        let folder = tempfile::tempdir().expect("a folder");
        let head = Head {
            run_id: RUN_ID,
            bundle_hash: 0,
            modes: [("", 10), ("double", 20)]
                .map(|(name, tokens)| RecordedMode {
                    name: name.to_owned(),
                    graph_fingerprint: 0,
                    tokens_per_iteration: vec![tokens],
                })
                .into(),
            sources: vec![RecordedSource {
                name: "in".to_owned(),
                token: "u8".to_owned(),
                token_bytes: 1,
                rate: None,
            }],
        };
        fs::write(folder.path().join(HEAD_FILE), head.encode()).expect("written");
        for (number, records) in segments.iter().enumerate() {
            let path = folder.path().join(segment_name(number as u64));
            fs::write(path, records.concat()).expect("written");
        }
        Recording::open(folder.path()).expect("a recording")
    }

    fn sealed(kind: Kind, payload: &[u8]) -> Vec<u8> {
        let header = RecordHeader::of(kind, &[payload]).expect("short");
        [&header.encode()[..], payload].concat()
    }

    fn start(segment: u64, tokens: u64, changes: u64) -> Vec<u8> {
        let start = SegmentStart {
            run_id: RUN_ID,
            segment,
            tokens: vec![tokens],
            changes,
        };
        sealed(Kind::Start, &record::encode(&start))
    }

    fn state(iterations: u64, changes_made: u64) -> Vec<u8> {
        let place = StatePlace {
            changes_made,
            mode: 0,
            iterations,
            consumed: vec![10 * iterations],
        };
        sealed(Kind::State, &record::encode_part(&place))
    }

    fn tokens(first: u64, count: usize) -> Vec<u8> {
        let head = TokensHead { source: 0, first };
        sealed(
            Kind::Tokens,
            &[&head.encode()[..], &vec![0; count]].concat(),
        )
    }

    fn change(number: u64, iteration: u64) -> Vec<u8> {
        let change = NumberedChange {
            number,
            change: ParameterChange {
                position: ChangePosition::Iteration(iteration),
                values: Vec::new(),
            },
        };
        sealed(Kind::Change, &record::encode(&change))
    }

    fn mode(number: u64, iteration: u64, mode: u32) -> Vec<u8> {
        let change = NumberedMode {
            number,
            iteration,
            mode,
        };
        sealed(Kind::Mode, &record::encode(&change))
    }

    fn mark(decided_iterations: u64) -> Vec<u8> {
        let mark = Mark {
            decided_iterations,
            unix_ns: 0,
        };
        sealed(Kind::Mark, &record::encode(&mark))
    }

    #[track_caller]
    fn check(recording: &Recording, expect: &[(u64, u64)]) {
        assert_eq!(recording.notes, Vec::<String>::new());
        let stretches = recording.stretches();
        let found: Vec<(u64, u64)> = stretches.iter().map(|s| (s.begin, s.end)).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn a_stretch_goes_to_where_tokens_or_decisions_end() {
        let all = [start(0, 0, 0), state(0, 0), tokens(0, 100)];
        check(&recording(&[all.to_vec()]), &[(0, 0)]);
        for (decided, end) in [(4, 4), (11, 10)] {
            let with_mark = [&all[..], &[mark(decided)]].concat();
            check(&recording(&[with_mark]), &[(0, end)]);
        }
        let with_hole = [&all[..], &[tokens(105, 100), state(11, 0), mark(30)]].concat();
        check(&recording(&[with_hole]), &[(0, 10), (11, 20)]);
    }

    #[test]
    fn a_state_without_changes_that_it_needs_gets_nowhere() {
        // The segment with changes 0 and 1 is gone: the first state does not have the second of them.
        let rest = vec![
            start(0, 50, 2),
            state(5, 1),
            tokens(50, 100),
            state(6, 2),
            mark(30),
        ];
        check(&recording(&[rest]), &[(5, 5), (6, 15)]);

        // The same in the middle, as where the end of a segment is damaged.
        let before = vec![
            start(0, 0, 0),
            state(0, 0),
            tokens(0, 50),
            change(0, 3),
            mark(4),
        ];
        let after = vec![
            start(1, 50, 3),
            state(5, 2),
            state(6, 3),
            tokens(50, 100),
            mark(30),
        ];
        check(&recording(&[before, after]), &[(0, 4), (5, 5), (6, 15)]);
    }

    #[test]
    fn iterations_take_the_tokens_of_their_mode() {
        let records = vec![
            start(0, 0, 0),
            state(0, 0),
            change(0, 1),
            mode(1, 2, 1),
            change(2, 3),
            mode(3, 4, 0),
            mode(4, 4, 1),
            tokens(0, 99),
            mark(30),
        ];
        // Two of 10, then all of 20: 79 tokens are 3 of them.
        let recording = recording(&[records]);
        check(&recording, &[(0, 5)]);
        assert_eq!(recording.mode_changes().count(), 3);
        assert_eq!(recording.changes().count(), 2);
        let history = recording.mode_history();
        for (number, expect) in [(0, 0), (2, 1), (5, 1)] {
            assert_eq!(history.mode_of_change(number), expect, "change {number}");
        }
        for (iteration, tokens) in [(0, 0), (2, 20), (3, 40), (4, 60), (5, 80)] {
            assert_eq!(history.tokens_before(iteration, 0), tokens);
        }
    }

    #[test]
    fn a_change_of_mode_that_is_missing_ends_a_stretch() {
        let before = vec![start(0, 0, 0), state(0, 0), tokens(0, 50), mark(4)];
        let after = vec![start(1, 50, 1), tokens(50, 100), mode(1, 9, 1), mark(30)];
        check(&recording(&[before, after]), &[(0, 4)]);
        for impossible in [mode(1, 1, 1), mode(1, 5, 2)] {
            let records = vec![start(0, 0, 0), state(0, 0), mode(0, 3, 1), impossible];
            let notes = recording(&[records]).notes;
            assert!(
                notes[0].contains("a change of mode that no run makes"),
                "{notes:?}"
            );
        }
    }

    #[test]
    fn a_stretch_has_no_more_changes_than_a_state_takes() {
        let mut records = vec![start(0, 0, 0), state(0, 0), tokens(0, 1000)];
        let count = 2 * MAX_REPLAYED_CHANGES + 5;
        for number in 0..count {
            if number % 1000 == 0 {
                records.push(mark(number / 1000));
            }
            records.push(change(number, 1 + number / 1000));
            if number == MAX_REPLAYED_CHANGES / 2 {
                records.push(state(number / 1000, number + 1));
            }
        }
        let left_out = |first: u64| (first + MAX_REPLAYED_CHANGES) / 1000;
        let middle = MAX_REPLAYED_CHANGES / 2;
        check(
            &recording(&[records]),
            &[(0, left_out(0)), (middle / 1000, left_out(middle + 1))],
        );
    }

    #[test]
    fn ranges_are_told_up_to_a_number() {
        let mut records = vec![start(0, 0, 0)];
        for place in 0..20 {
            records.push(state(3 * place, 0));
            records.push(tokens(30 * place, 10));
        }
        records.push(mark(1000));
        let recording = recording(&[records]);
        let said = recording.stretch(Some(2)).expect_err("a hole");
        assert!(
            said.contains("iterations 0 to 1, iterations 3 to 4,")
                && said.ends_with("and 12 ranges more"),
            "{said}"
        );
    }
}
