//! The thread that records a run. It takes what the run's threads have left for it, writes that to disk, and marks how
//! far the recording is complete. No thread of the run waits for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zbmd_executor::{BorderState, Engine, InputListener, ParameterHandle, StateSubscription};
use zbmd_ir::{State, state};
use zbmd_live::{Gap, now_ns};

use super::folder::{LockedFolder, RecordingError};
use super::head::{Head, MAX_SOURCES, RecordedSource, recorded_modes};
use super::intake::{Intake, WaitingTokens};
use super::keep::Keep;
use super::record::{
    self, Kind, MAX_RECORDS, Mark, NumberedInput, RunEnd, SourceGap, StatePlace, TokensHead,
};
use super::ring::Ring;

/// How long what entered the run waits for the disk if little comes, and where days are kept.
const WRITE_EVERY: Duration = Duration::from_millis(10);
const MAX_WRITE_EVERY: Duration = Duration::from_secs(1);
/// How often the run looks whether a state is wanted.
const STATE_LOOK_NS: u64 = 10_000_000;
/// A state is written after so long,
const MAX_STATE_DISTANCE_NS: u64 = 1_000_000_000;
/// but not before so many times its bytes have come.
const STATE_SHARE: u64 = 16;
/// Bytes of a record of tokens, or one token.
const PIECE_BYTES: u64 = 1 << 20;
/// Records of tokens that a segment holds at least, where tokens are that small.
const SEGMENT_PIECES: u64 = 8;
/// A disk that took nothing is left alone for so long.
const RETRY_NS: u64 = 500_000_000;
/// Unless that is such a share of what is kept: there are always states in it.
const KEPT_SHARE: u64 = 8;
/// What is kept holds so many states, and the tokens between them.
const MIN_KEPT_STATES: u64 = 32;
const MIN_KEPT_BYTES: u64 = 1 << 20;

/// What is to be recorded, and where.
pub(crate) struct RecorderSettings<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) replaces: bool,
    pub(crate) keep: Keep,
    pub(crate) bundle: &'a Path,
    pub(crate) bundle_hash: u64,
    pub(crate) run_id: u64,
    pub(crate) sources: Vec<RecordedSource>,
    pub(crate) pads: bool,
}

/// A recorder whose run has not started: what enters it is taken in from the beginning.
pub(crate) struct ReadyRecorder {
    intake: Arc<Intake>,
    writer: Writer,
}

/// A recorder at work.
pub(crate) struct Recorder {
    intake: Arc<Intake>,
    thread: JoinHandle<Writer>,
}

/// What became of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecorderReport {
    /// Bytes that were written, those that are gone again included.
    pub(crate) written_bytes: u64,
    /// For each source, tokens that are not in the recording, and in how many holes.
    pub(crate) lost: Vec<LostTokens>,
    /// Gaps whose tokens are in the recording, but not that they were filled.
    pub(crate) gaps_lost: u64,
    /// What the system said last when something could not be written.
    pub(crate) last_error: Option<String>,
}

/// Tokens of a source that are not in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LostTokens {
    pub(crate) tokens: u64,
    pub(crate) holes: u64,
}

impl RecorderReport {
    /// What the user is told.
    pub(crate) fn notes(&self, folder: &Path, sources: &[RecordedSource]) -> Vec<String> {
        let folder = folder.display();
        let mut notes = vec![format!("recorded {} bytes to {folder}", self.written_bytes)];
        for (source, lost) in sources.iter().zip(&self.lost) {
            if lost.tokens > 0 {
                notes.push(format!(
                    "{folder}: {} tokens of `{}` in {} holes are not in the recording: the disk was too slow or full",
                    lost.tokens, source.name, lost.holes
                ));
            }
        }
        if self.gaps_lost > 0 {
            let count = self.gaps_lost;
            notes.push(format!("{folder}: {count} gaps are not in the recording"));
        }
        if let Some(error) = &self.last_error {
            notes.push(format!("{folder}: could not be written to: {error}"));
        }
        notes
    }
}

impl ReadyRecorder {
    /// Makes the folder this recording's: with the bundle and the state that the run begins with.
    ///
    /// # Errors
    /// See [`RecordingError`].
    pub(crate) fn new(
        settings: RecorderSettings<'_>,
        engine: &Engine,
        first: BorderState,
    ) -> Result<Self, RecordingError> {
        let states = engine.verified_modes().graphs().map(|graph| {
            let initial = State::initial(graph);
            state::encode(&initial, graph, None).len() as u64
        });
        check_keep(settings.folder, settings.keep, states.max().unwrap_or(0))?;

        let source_count = settings.sources.len();
        if source_count > MAX_SOURCES {
            return Err(RecordingError::Unusable {
                path: settings.folder.to_owned(),
                why: format!(
                    "the model has {source_count} sources, at most {MAX_SOURCES} are recorded"
                ),
            });
        }

        let folder = LockedFolder::open(settings.folder, settings.replaces)?;
        let failed = |source| RecordingError::Io {
            path: settings.folder.to_owned(),
            source,
        };
        let head = Head {
            run_id: settings.run_id,
            bundle_hash: settings.bundle_hash,
            modes: recorded_modes(engine.verified_modes()),
            sources: settings.sources,
        };
        folder
            .begin(settings.bundle, &head.encode())
            .map_err(failed)?;

        let consumed: Vec<u64> = first.state.consumed.iter().map(|(_, n)| *n).collect();
        let sources = head.sources.iter().zip(&consumed);
        let intake = Intake::new(sources.map(|(source, consumed)| (source.token_bytes, *consumed)));
        let intake = Arc::new(intake);
        let ring = Ring::new(
            folder.path.clone(),
            settings.run_id,
            settings.keep,
            consumed,
        );
        let mut writer = Writer {
            _folder: folder,
            ring,
            intake: Arc::clone(&intake),
            engine: engine.clone(),
            parameters: None,
            report: RecorderReport {
                lost: vec![LostTokens::default(); head.sources.len()],
                ..RecorderReport::default()
            },
            free: vec![Vec::new(); head.sources.len()],
            sources: head.sources,
            changes: Vec::new(),
            decided_iterations: first.state.iterations,
            changes_lost_before: None,
            hole_ends: vec![None; first.state.consumed.len()],
            state_bytes: 0,
            bytes_at_state: 0,
            state_at_ns: now_ns(),
            retry_at_ns: 0,
            pads: settings.pads,
        };
        writer.add_state(&first, now_ns()).map_err(failed)?;
        Ok(Self { intake, writer })
    }

    /// Is told of what enters the run.
    pub(crate) fn listener(&self) -> Arc<dyn InputListener> {
        Arc::clone(&self.intake) as Arc<dyn InputListener>
    }

    /// When states are to be taken, and who is given them.
    pub(crate) fn states(&self) -> StateSubscription {
        let asked = Arc::clone(&self.intake);
        let given = Arc::clone(&self.intake);
        StateSubscription {
            every_ns: STATE_LOOK_NS,
            is_wanted: Arc::new(move || asked.is_state_wanted()),
            listener: Arc::new(move |border| given.state(border)),
        }
    }

    /// Is told of the gaps of a source.
    pub(crate) fn gap_listener(&self, name: &str) -> impl Fn(Gap) + Send + use<> {
        let intake = Arc::clone(&self.intake);
        let mut sources = self.writer.sources.iter();
        let source = sources.position(|source| source.name == name).unwrap_or(0);
        let next_tokens = &self.writer.ring.next_tokens;
        let consumed = next_tokens.get(source).copied().unwrap_or(0);
        move |gap: Gap| {
            // A live source counts from the start of this session.
            let first = gap.first.saturating_add(consumed);
            intake.gap(SourceGap {
                source: source as u32,
                gap: Gap { first, ..gap },
            });
        }
    }

    /// Starts to write.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(self, parameters: ParameterHandle) -> io::Result<Recorder> {
        let Self { intake, mut writer } = self;
        writer.parameters = Some(parameters);
        let thread = std::thread::Builder::new().name("zbmd recorder".to_owned());
        let thread = thread.spawn(move || writer.run())?;
        Ok(Recorder { intake, thread })
    }
}

/// Refuses to keep less than what a few states take.
fn check_keep(folder: &Path, keep: Keep, state_bytes: u64) -> Result<(), RecordingError> {
    let Some(bytes) = keep.bytes else {
        return Ok(());
    };
    let least = MIN_KEPT_BYTES.max(MIN_KEPT_STATES.saturating_mul(state_bytes));
    if bytes >= least {
        return Ok(());
    }
    Err(RecordingError::Unusable {
        path: folder.to_owned(),
        why: format!(
            "--keep {bytes} bytes is too little: a state of this model takes {state_bytes} bytes, keep {least} bytes at least"
        ),
    })
}

/// How long what entered a run waits for the disk: longer where so much time is kept that there would be too many records.
fn write_every(keep: Keep, sources: usize) -> Duration {
    // Tokens of each source, a mark, and now and then a state or a change. The ring has a segment or two more than is kept.
    let batch_records = sources as u128 + 2;
    let kept_ns = keep.time.unwrap_or_default().as_nanos() * 5 / 4;
    let batch_ns = kept_ns * batch_records / u128::from(MAX_RECORDS);
    let batch_ns = u64::try_from(batch_ns).unwrap_or(u64::MAX);
    Duration::from_nanos(batch_ns).clamp(WRITE_EVERY, MAX_WRITE_EVERY)
}

impl Recorder {
    /// Writes what is left, and how the run ended if it came to an end in good order.
    pub(crate) fn finish(
        self,
        end_iterations: Option<u64>,
    ) -> (RecorderReport, Vec<RecordedSource>) {
        self.intake.end();
        let mut writer = match self.thread.join() {
            Ok(writer) => writer,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        if let Some(iterations) = end_iterations {
            writer.write_end(iterations);
        }
        writer.report.written_bytes = writer.ring.written_bytes;
        (writer.report, writer.sources)
    }
}

/// Writes a recording.
struct Writer {
    /// Locked as long as the recording is made.
    _folder: LockedFolder,
    ring: Ring,
    intake: Arc<Intake>,
    engine: Engine,
    parameters: Option<ParameterHandle>,
    sources: Vec<RecordedSource>,
    report: RecorderReport,
    /// A buffer for each source, to be given to the run's threads.
    free: Vec<Vec<u8>>,
    /// Changes that could not be written yet.
    changes: Vec<NumberedInput>,
    /// Up to where the last mark says that all changes are known.
    decided_iterations: u64,
    /// Changes before this number were lost: marks stand still until a state has them.
    changes_lost_before: Option<u64>,
    /// For each source, the token after the last hole, until a state is past it.
    hole_ends: Vec<Option<u64>>,
    /// Of the last state, and those that were written when it was.
    state_bytes: u64,
    bytes_at_state: u64,
    state_at_ns: u64,
    /// Nothing is written before that.
    retry_at_ns: u64,
    pads: bool,
}

impl Writer {
    fn run(mut self) -> Self {
        let write_every = write_every(self.ring.keep, self.sources.len());
        loop {
            let is_over = self.intake.wait(write_every);
            self.write_batch();
            if is_over {
                return self;
            }
        }
    }

    /// Writes what waits. What cannot be written is lost, but for changes, which are kept for the next time.
    fn write_batch(&mut self) {
        let now_ns = now_ns();
        // Before the changes are taken: all that take effect before it are among them.
        let decided = self
            .parameters
            .as_ref()
            .map(ParameterHandle::decided_iterations);
        let decided_iterations = decided.flatten().unwrap_or(u64::MAX);
        let items = self.intake.take_items();
        self.changes.extend(items.changes);
        self.report.gaps_lost += items.gaps_lost;
        if items.changes_lost_before.is_some() {
            self.changes_lost_before = items.changes_lost_before;
        }

        if let Err(error) = self.write_items(&items.gaps, now_ns) {
            self.note_failure(&error, now_ns);
        }
        let mut has_tokens = false;
        for source in 0..self.sources.len() {
            let free = std::mem::take(&mut self.free[source]);
            let waiting = self.intake.take_tokens(source, free);
            has_tokens |= !waiting.bytes.is_empty();
            self.write_tokens(source, &waiting, now_ns);
            let mut buffer = waiting.bytes;
            buffer.clear();
            self.free[source] = buffer;
        }

        let may_move = self.changes_lost_before.is_none() && self.changes.is_empty();
        let is_further = decided_iterations > self.decided_iterations;
        if may_move && (has_tokens || is_further) && self.may_write(now_ns) {
            self.decided_iterations = self.decided_iterations.max(decided_iterations);
            if let Err(error) = self.write_mark(now_ns) {
                self.note_failure(&error, now_ns);
            }
        }
        self.intake.want_state(self.wants_state(now_ns));
    }

    fn may_write(&self, now_ns: u64) -> bool {
        now_ns >= self.retry_at_ns
    }

    fn note_failure(&mut self, error: &io::Error, now_ns: u64) {
        self.report.last_error = Some(error.to_string());
        self.retry_at_ns = now_ns + RETRY_NS;
    }

    fn write_items(&mut self, gaps: &[SourceGap], now_ns: u64) -> io::Result<()> {
        let new_state = self.intake.take_state();
        if !self.may_write(now_ns) {
            self.report.gaps_lost += gaps.len() as u64;
            return Ok(());
        }
        let changes = std::mem::take(&mut self.changes);
        let mut unwritten = changes.into_iter();
        while let Some(change) = unwritten.next() {
            let number = change.number();
            let (kind, payload) = match &change {
                NumberedInput::Parameters(change) => (Kind::Change, record::encode(change)),
                NumberedInput::Mode(change) => (Kind::Mode, record::encode(change)),
            };
            let added = self.ring.add(kind, &[&payload], now_ns);
            if let Err(error) = added {
                self.changes = std::iter::once(change).chain(unwritten).collect();
                return Err(error);
            }
            self.ring.next_change = number + 1;
        }

        for gap in gaps {
            self.ring.add(Kind::Gap, &[&record::encode(gap)], now_ns)?;
        }
        match new_state.filter(|border| self.is_useful(border)) {
            Some(border) => self.add_state(&border, now_ns),
            None => Ok(()),
        }
    }

    /// Whether a replay can begin at a state, and get further than from an earlier one.
    fn is_useful(&self, border: &BorderState) -> bool {
        let lost_before = self.changes_lost_before;
        let has_changes = lost_before.is_none_or(|before| border.changes_made >= before);
        let mut consumed = border.state.consumed.iter().zip(&self.hole_ends);
        has_changes
            && consumed.all(|((_, tokens), hole_end)| hole_end.is_none_or(|end| end <= *tokens))
    }

    /// Whether a state is worth its bytes, if it has as many as the last one.
    fn wants_state(&self, now_ns: u64) -> bool {
        let is_after_hole = self.hole_ends.iter().any(|hole_end| hole_end.is_some());
        if is_after_hole || self.changes_lost_before.is_some() {
            return true;
        }
        let come_bytes = self.ring.written_bytes - self.bytes_at_state;
        let passed_ns = now_ns - self.state_at_ns;
        let is_worth = come_bytes >= STATE_SHARE.saturating_mul(self.state_bytes);
        let Keep { time, bytes } = self.ring.keep;
        let is_urgent = bytes.is_some_and(|bytes| come_bytes >= bytes / KEPT_SHARE)
            || time.is_some_and(|time| {
                u128::from(passed_ns) >= time.as_nanos() / u128::from(KEPT_SHARE)
            });
        let is_time =
            passed_ns >= MAX_STATE_DISTANCE_NS || come_bytes >= self.ring.segment_bytes() / 2;
        come_bytes > 0 && (is_urgent || (is_time && is_worth))
    }

    fn add_state(&mut self, border: &BorderState, now_ns: u64) -> io::Result<()> {
        let place = StatePlace {
            changes_made: border.changes_made,
            mode: border.present_mode.mode,
            iterations: border.state.iterations,
            consumed: border.state.consumed.iter().map(|(_, n)| *n).collect(),
        };
        let programs = self.engine.verified_modes().programs();
        let graph = &programs[border.present_mode.mode as usize].graph;
        let state_bytes = state::encode(&border.state, graph, None);
        let place_bytes = record::encode_part(&place);
        let waiting_bytes = record::encode_part(&border.present_mode.waiting);
        self.ring.add(
            Kind::State,
            &[&place_bytes, &waiting_bytes, &state_bytes],
            now_ns,
        )?;
        self.ring.note_state(place, now_ns);
        self.hole_ends.fill(None);
        self.state_bytes = state_bytes.len() as u64;
        self.bytes_at_state = self.ring.written_bytes;
        self.state_at_ns = now_ns;
        if self.changes_lost_before.take().is_some() {
            self.ring.next_change = self.ring.next_change.max(border.changes_made);
        }
        Ok(())
    }

    fn write_tokens(&mut self, source: usize, waiting: &WaitingTokens, now_ns: u64) {
        let token_bytes = self.sources[source].token_bytes;
        // In a small ring a piece is a part of a segment.
        let wanted_bytes = PIECE_BYTES.min(self.ring.segment_bytes() / SEGMENT_PIECES);
        let piece_bytes = token_bytes * (wanted_bytes / token_bytes).max(1);
        let mut first = waiting.first;
        for piece in waiting.bytes.chunks(piece_bytes as usize) {
            let tokens = piece.len() as u64 / token_bytes;
            let head = TokensHead {
                source: source as u32,
                first,
            };
            let is_written = self.may_write(now_ns) && {
                let added = self
                    .ring
                    .add(Kind::Tokens, &[&head.encode(), piece], now_ns);
                if let Err(error) = &added {
                    self.note_failure(error, now_ns);
                }
                added.is_ok()
            };
            first += tokens;
            match is_written {
                true => {
                    self.ring.next_tokens[source] = first;
                }
                false => self.note_lost(source, first, tokens),
            }
        }
        if waiting.lost > 0 {
            self.note_lost(source, first + waiting.lost, waiting.lost);
        }
    }

    /// Notes that so many tokens before `end` are not in the recording.
    fn note_lost(&mut self, source: usize, end: u64, tokens: u64) {
        let goes_on = self.hole_ends[source] == Some(end - tokens);
        let lost = &mut self.report.lost[source];
        lost.tokens += tokens;
        lost.holes += u64::from(!goes_on);
        self.hole_ends[source] = Some(end);
    }

    fn write_mark(&mut self, now_ns: u64) -> io::Result<()> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let mark = Mark {
            decided_iterations: self.decided_iterations,
            unix_ns: since_1970.map_or(0, |time| time.as_nanos() as u64),
        };
        self.ring.add(Kind::Mark, &[&record::encode(&mark)], now_ns)
    }

    fn write_end(&mut self, iterations: u64) {
        // A recording that lacks changes is over where the last mark is.
        if !self.changes.is_empty() || self.changes_lost_before.is_some() {
            return;
        }
        let end = RunEnd {
            iterations,
            pads: self.pads,
        };
        let added = self.ring.add(Kind::End, &[&record::encode(&end)], now_ns());
        if let Err(error) = added {
            self.report.last_error = Some(error.to_string());
        }
    }
}

/// Where a recording's copy of its bundle is.
pub(crate) fn bundle_of(folder: &Path) -> PathBuf {
    folder.join(super::folder::BUNDLE_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_fewer_where_days_are_kept() {
        let hours = |hours: u64| Keep {
            time: Some(Duration::from_secs(3600 * hours)),
            bytes: None,
        };
        assert_eq!(write_every(hours(1), 2), WRITE_EVERY);
        for sources in [1, 2, 8] {
            let every = write_every(hours(48), sources);
            let batches = Duration::from_secs(3600 * 48).as_nanos() / every.as_nanos();
            assert!(batches * (sources as u128 + 1) < u128::from(MAX_RECORDS));
        }
        assert_eq!(write_every(hours(1_000_000), 2), MAX_WRITE_EVERY);
        assert_eq!(write_every(Keep::default(), 2), WRITE_EVERY);
    }
}
