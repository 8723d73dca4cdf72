//! Sinks that are SigMF recordings: their samples are written as raw tokens are, and this keeps the description beside
//! them. It is written before the first token, brought up to date while gaps come, and once more at the end, so that a
//! run that is killed leaves one that is right for the data, but for gaps of its last second or so.
//!
//! A token of a sink is one of a source only where a channel without delay joins the two: then the source's gaps are
//! the recording's, otherwise it has none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zbmd_ir::{Actor, ActorId, Program};
use zbmd_live::SharedReport;
use zbmd_live::sigmf::{self, RecordingSettings};

use super::files::Opened;
use super::live::{LiveBindings, LiveStreams};
use super::{CliError, say};
use crate::io::FileError;
use crate::io::pump::SharedFile;

/// How often a description is brought up to date.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);
/// A long description takes its time: this many times as long is waited until the next.
const UPDATE_SHARE: u32 = 20;

/// The recordings among the sinks: the names of their descriptions, by sink.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordingNames {
    pub(super) descriptions: BTreeMap<String, PathBuf>,
}

impl RecordingNames {
    /// Finds recordings, and has the files of samples in their place.
    pub(super) fn take(outputs: &mut BTreeMap<String, PathBuf>) -> Self {
        let mut descriptions = BTreeMap::new();
        for (stream, path) in outputs {
            if sigmf::is_recording(path) {
                descriptions.insert(stream.clone(), sigmf::meta_path(path));
                *path = sigmf::data_path(path);
            }
        }
        Self { descriptions }
    }

    /// Refuses recordings without the blocks that are late: where a sample is in a recording says when it was taken.
    pub(super) fn check_dropping_sinks(&self, dropping_sinks: &[&str]) -> Result<(), CliError> {
        let mut recorded = dropping_sinks
            .iter()
            .filter(|sink| self.descriptions.contains_key(**sink));
        match recorded.next() {
            None => Ok(()),
            Some(sink) => Err(CliError::Usage(format!(
                "sink `{sink}` is a recording, whose samples keep their places, and drops late blocks: say `--on-miss {sink}=hold` or `{sink}=wait`"
            ))),
        }
    }

    /// The description of a sink that has no tokens yet, if it is a recording.
    pub(super) fn first_description(
        &self,
        actor: &Actor,
        program: &Program,
        live: &LiveBindings,
    ) -> Result<Option<(PathBuf, Vec<u8>)>, FileError> {
        let Some(path) = self.descriptions.get(&actor.name) else {
            return Ok(None);
        };
        let settings = settings(path, actor, program, live)?;
        let description = sigmf::describe(&settings, 0, &[]);
        Ok(Some((path.clone(), description)))
    }

    /// The live sources whose gaps recordings have.
    pub(super) fn recorded_sources(
        &self,
        program: &Program,
        live: &LiveBindings,
    ) -> BTreeSet<String> {
        let sinks = program.graph.sinks();
        sinks
            .filter(|(_, actor)| self.descriptions.contains_key(&actor.name))
            .filter_map(|(id, _)| live_source_of(id, program, live))
            .map(|source| source.name.clone())
            .collect()
    }

    /// Keeps the descriptions of all recordings from now on.
    pub(super) fn start(
        &self,
        program: &Program,
        bindings: &LiveBindings,
        live: &LiveStreams,
        sinks: &Opened<SharedFile>,
    ) -> Result<Recordings, CliError> {
        let mut recordings = Recordings::default();
        for (id, actor) in program.graph.sinks() {
            let Some(path) = self.descriptions.get(&actor.name) else {
                continue;
            };
            let Some((_, _, file)) = sinks.iter().find(|(name, _, _)| *name == actor.name) else {
                continue;
            };
            let source = live_source_of(id, program, bindings);
            let description = Description {
                path: path.clone(),
                settings: settings(path, actor, program, bindings)?,
                file: file.clone(),
                gaps: source.and_then(|source| live.report_of(&source.name)),
            };
            recordings.keep(description)?;
        }
        Ok(recordings)
    }
}

/// The live source that a channel without delay joins to a sink.
fn live_source_of<'p>(
    sink: ActorId,
    program: &'p Program,
    live: &LiveBindings,
) -> Option<&'p Actor> {
    let mut channels = program.graph.channels.iter();
    let channel = channels.find(|channel| {
        let mut readers = channel.readers.iter();
        readers.any(|reader| reader.to.actor == sink && reader.delay == 0)
    })?;
    let source = &program.graph.actors[channel.from.actor];
    live.url(&source.name).map(|_| source)
}

fn settings(
    path: &Path,
    actor: &Actor,
    program: &Program,
    live: &LiveBindings,
) -> Result<RecordingSettings, FileError> {
    let token = &actor.inputs[0].token;
    let mut sinks = program.graph.sinks();
    let id = sinks.find(|(_, sink)| sink.name == actor.name);
    let source = id.and_then(|(id, _)| live_source_of(id, program, live));
    let source_rate = source.and_then(|source| {
        let url = live.url(&source.name)?;
        zbmd_live::token_rate(url, token, source.sample_rate()).ok()?
    });
    let rate = source_rate.or(actor.sample_rate());
    RecordingSettings::new(token, rate).ok_or_else(|| FileError::Content {
        path: path.to_owned(),
        message: format!(
            "SigMF has no type for tokens of {token}: convert them in the model to f32, f64, i32, i16, i8, u8 or c32, or name the file .npy or .bin"
        ),
    })
}

/// What a description says, and of which file.
struct Description {
    path: PathBuf,
    settings: RecordingSettings,
    file: SharedFile,
    gaps: Option<SharedReport>,
}

impl Description {
    /// Replaces the file as a whole; how many gaps there are in it, and how many more there were.
    fn write(&self) -> Result<(usize, u64), FileError> {
        let (gaps, more) = match &self.gaps {
            Some(report) => report.recorded_gaps(),
            None => (Vec::new(), 0),
        };
        let text = sigmf::describe(&self.settings, self.file.tokens(), &gaps);
        replace(&self.path, &text).map_err(|source| FileError::Io {
            path: self.path.clone(),
            source,
        })?;
        Ok((gaps.len(), more))
    }
}

/// Writes a file that is never seen in part.
pub(crate) fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let mut part_name = path.as_os_str().to_owned();
    part_name.push(".part");
    fs::write(&part_name, text)?;
    fs::rename(&part_name, path)
}

/// Recordings that are being written.
#[derive(Default)]
pub(super) struct Recordings {
    keepers: Vec<(Sender<()>, JoinHandle<Description>)>,
}

impl Recordings {
    fn keep(&mut self, description: Description) -> Result<(), CliError> {
        let (sender, over) = mpsc::channel::<()>();
        let run = move || {
            let mut written_gaps = 0;
            let mut wait = UPDATE_INTERVAL;
            while over.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let gap_count = description
                    .gaps
                    .as_ref()
                    .map_or(0, |report| report.gap_count());
                if gap_count == written_gaps || description.file.tokens() == 0 {
                    continue;
                }
                let begun = Instant::now();
                // What cannot be written now is tried again, and its last failure is told at the end.
                if description.write().is_ok() {
                    written_gaps = gap_count;
                }
                wait = UPDATE_INTERVAL.max(begun.elapsed() * UPDATE_SHARE);
            }
            description
        };
        let thread = std::thread::Builder::new().name("zbmd recording".to_owned());
        let thread = thread.spawn(run);
        let thread =
            thread.map_err(|error| CliError::Engine(zbmd_executor::EngineError::Thread(error)))?;
        self.keepers.push((sender, thread));
        Ok(())
    }

    /// Writes the descriptions once more, when all tokens are in the files and all gaps are known.
    pub(super) fn finish(self) -> Result<(), FileError> {
        let mut result = Ok(());
        for (sender, thread) in self.keepers {
            drop(sender);
            // A thread that panicked has said so.
            let Ok(description) = thread.join() else {
                continue;
            };
            if !description.file.has_begun() {
                continue;
            }
            match description.write() {
                Ok((_, 0)) => {}
                Ok((kept, more)) => say(format_args!(
                    "zbmd-run: note: {} lists the first {kept} gaps; {more} more were filled",
                    description.path.display()
                )),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}
