//! How a run ended, and files that agree with what is said of it.

use super::files::Opened;
use crate::checkpoint::Origin;
use crate::io::pump::SharedFile;
use crate::io::{FileKind, is_standard};
use zbmd_executor::Engine;
use zbmd_executor::RunError;
use zbmd_executor::report::Outcome;

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
    /// no count; iterations are one only without modes, in which they have several numbers of tokens.
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
        if engine.mode_names().len() > 1 {
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
