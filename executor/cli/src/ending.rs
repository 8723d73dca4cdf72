//! How a run ended, and files that agree with what is said of it: those of the sinks, the state, the report.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::args::{Args, ReportFormat};
use super::files::Opened;
use super::live_report::{EdgeReports, FullReport};
use super::saved_state::{self, LoadedState};
use super::watch::Watched;
use super::{CONSOLE_LIMIT, CliError, INTERRUPTED, exit, say};
use crate::checkpoint::Origin;
use crate::io::pump::SharedFile;
use crate::io::{FileError, FileKind, is_standard};
use zbmd_executor::report::{Outcome, Report, TraceReport};
use zbmd_executor::{Engine, RunError};
use zbmd_ir::merged_models;

/// A run that has ended.
pub(super) struct Ending {
    /// Report and state, unless the run was given up at no border.
    pub(super) left: Option<Outcome>,
    /// Why it ended before its time.
    pub(super) error: Option<RunError>,
    /// What the report says of the files.
    pub(super) notes: Vec<String>,
}

impl Ending {
    /// Takes a finished run in. The files of one that was given up are cut back to the border that it was given up at:
    /// its workers may have given out tokens beyond it, which no state and no report counts.
    pub(super) fn of(
        outcome: Result<Outcome, RunError>,
        engine: &Engine,
        written: &WrittenFiles<'_>,
        dropping_sinks: &[&str],
    ) -> Self {
        match outcome {
            Ok(outcome) => Self {
                left: Some(outcome),
                error: None,
                notes: Vec::new(),
            },
            Err(RunError::GaveUp {
                verdict,
                iterations,
                left,
            }) => {
                let mut left = left.map(|left| *left);
                let committed = written.committed_tokens(engine, iterations, left.as_ref());
                let notes = match committed {
                    Some(committed) => {
                        cut_back(written.sinks, &committed, dropping_sinks, left.as_mut())
                    }
                    None => vec![
                        "the files of the sinks are not cut back to the last committed border: the run left no count of their tokens"
                            .to_owned(),
                    ],
                };
                Self {
                    left,
                    error: Some(RunError::GaveUp {
                        verdict,
                        iterations,
                        left: None,
                    }),
                    notes,
                }
            }
            Err(error) => Self {
                left: None,
                error: Some(error),
                notes: Vec::new(),
            },
        }
    }

    /// What is left to do when nothing runs any more: saves the state, gives the report, and says by which code or error the
    /// command ends.
    pub(super) fn conclude(
        self,
        args: &Args,
        bundle: &Path,
        engine: &Engine,
        watched: Watched,
        edges: &EdgeReports,
    ) -> Result<u8, CliError> {
        let Some(Outcome {
            mut report,
            state,
            present_mode,
            emitted: _,
        }) = self.left
        else {
            let left_nothing = || CliError::Usage("the run left nothing".to_owned());
            return Err(self.error.map_or_else(left_nothing, CliError::Run));
        };
        match (watched.failure, &self.error) {
            (Some(failure), None) => return Err(failure.into()),
            (Some(failure), Some(_)) => report.notes.push(failure.to_string()),
            (None, _) => {}
        }
        report.cut_off(&watched.cut_off);

        // The state is saved only where all tokens before it have reached their readers.
        if let Some(path) = &args.save_state {
            if let Some((stream, _)) = watched.cut_off.first() {
                print_report(args, &report, edges)?;
                return Err(state_not_saved(path, stream).into());
            }
            let left = LoadedState {
                state,
                present_mode,
            };
            saved_state::save(path, bundle, &left, engine.verified_modes())?;
        }

        report.notes.extend(watched.notes);
        report.notes.extend(self.notes);
        print_report(args, &report, edges)?;

        match (self.error, trace_failure(report)) {
            (Some(error), _) => Err(error.into()),
            (None, Some(failure)) => Err(failure.into()),
            (None, None) if INTERRUPTED.load(Ordering::Relaxed) => Ok(exit::INTERRUPTED),
            (None, None) => Ok(exit::OK),
        }
    }
}

/// Why there is no state of a run whose reader did not take all tokens of a stream.
fn state_not_saved(path: &Path, stream: &str) -> FileError {
    let refusal_text = format!(
        "the state is not saved: it is that after tokens of `{stream}` that its reader did not take"
    );
    FileError::Io {
        path: path.to_owned(),
        source: std::io::Error::other(refusal_text),
    }
}

/// What went wrong when the trace was written.
fn trace_failure(report: Report) -> Option<FileError> {
    let TraceReport { file, error, .. } = report.trace?;
    let source = std::io::Error::other(error?);
    let path = PathBuf::from(file);
    Some(FileError::Io { path, source })
}

/// The files that a run wrote to.
pub(super) struct WrittenFiles<'a> {
    pub(super) sinks: &'a Opened<SharedFile>,
    /// For each, the tokens that it had when the session began.
    pub(super) held_tokens: &'a [u64],
    /// Where they began.
    pub(super) origin: &'a Origin,
}

impl WrittenFiles<'_> {
    /// For each sink, the tokens up to the last committed border, after so many iterations. Where a run is stuck it leaves
    /// no count; iterations are one only without modes, in which they have several numbers of tokens, and of one model.
    fn committed_tokens(
        &self,
        engine: &Engine,
        iterations: u64,
        left: Option<&Outcome>,
    ) -> Option<Vec<u64>> {
        if let Some(left) = left {
            let given_by_session = self.held_tokens.iter().zip(&left.emitted);
            return Some(
                given_by_session
                    .map(|(held, tokens)| held + tokens)
                    .collect(),
            );
        }
        let is_merged = !merged_models(&engine.program().graph).is_empty();
        if engine.mode_names().len() > 1 || is_merged {
            return None;
        }
        let iterations_in_files = iterations.saturating_sub(self.origin.iterations);
        let sinks = engine.program().graph.sinks();
        let tokens = sinks.map(|(id, _)| iterations_in_files * engine.tokens_per_iteration(id));
        Some(tokens.collect())
    }
}

/// Cuts regular files back to so many tokens each; what the report says of each sink, whose counts in it are those of
/// the files.
fn cut_back(
    sinks: &Opened<SharedFile>,
    committed: &[u64],
    dropping_sinks: &[&str],
    left: Option<&mut Outcome>,
) -> Vec<String> {
    let mut notes = Vec::new();
    let mut beyond = Vec::new();
    for ((name, path, file), &committed_tokens) in sinks.iter().zip(committed) {
        let place = match is_standard(path) {
            true => "standard output".to_owned(),
            false => path.display().to_string(),
        };
        // A count of its tokens says nothing of the border.
        if dropping_sinks.contains(&name.as_str()) {
            let tokens = file.tokens();
            beyond.push(0);
            notes.push(format!(
                "{place} has {tokens} tokens of `{name}`: blocks that were late are not among them"
            ));
            continue;
        }

        if let Err(error) = file.cut_back(committed_tokens) {
            notes.push(format!(
                "the file of `{name}` cannot be cut back to {committed_tokens} tokens: {error}"
            ));
        }

        // Devices and pipes keep what they were given, so there may be more than was committed; a disk that was full has less.
        let tokens = file.tokens();
        beyond.push(tokens.saturating_sub(committed_tokens));

        let holds = match file.kind() {
            FileKind::Regular => "holds",
            FileKind::Device | FileKind::Stream => "was given",
        };

        notes.push(match tokens.cmp(&committed_tokens) {
            std::cmp::Ordering::Equal => format!("{place} {holds} {tokens} tokens of `{name}`"),
            std::cmp::Ordering::Greater => format!(
                "{place} {holds} {tokens} tokens of `{name}`, {} after the last committed border",
                tokens - committed_tokens
            ),
            std::cmp::Ordering::Less => format!(
                "{place} {holds} {tokens} tokens of `{name}`, {} fewer than were committed",
                committed_tokens - tokens
            ),
        });
    }

    if let Some(left) = left {
        for (sink, tokens) in left.report.sinks.iter_mut().zip(beyond) {
            sink.tokens += tokens;
        }
    }
    notes
}

/// Gives the report: to the file that it has, else to standard error, as long as the command line wants it.
fn print_report(args: &Args, report: &Report, edges: &EdgeReports) -> Result<(), CliError> {
    let report = FullReport::new(report, edges);
    if let Some(path) = &args.report_file {
        let report_text = match args.report {
            Some(ReportFormat::Text) => report.to_string(),
            Some(ReportFormat::Json) | None => report.to_json(),
        };
        let failed = |error| FileError::Io {
            path: path.clone(),
            source: error,
        };
        return Ok(write_file(path, report_text).map_err(failed)?);
    }
    match args.report {
        Some(ReportFormat::Text) => say(format_args!("{}", report.to_string().trim_end())),
        Some(ReportFormat::Json) => say(format_args!("{}", report.to_json())),
        None if !args.quiet => say(format_args!("{}", report.summary().trim_end())),
        None => {}
    }
    Ok(())
}

/// Writes a whole file. A pipe with a name that nobody reads is given up.
fn write_file(path: &Path, text: String) -> std::io::Result<()> {
    if !zbmd_executor::is_named_pipe(path) {
        return std::fs::write(path, text);
    }
    let pipe_path = path.to_owned();
    let (send_result, write_result) = std::sync::mpsc::channel();
    std::thread::spawn(move || drop(send_result.send(std::fs::write(pipe_path, text))));
    let is_late = |_| std::io::Error::new(std::io::ErrorKind::TimedOut, "nobody reads this pipe");
    write_result.recv_timeout(CONSOLE_LIMIT).map_err(is_late)?
}
