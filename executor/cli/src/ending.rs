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
        origin: &Origin,
        sinks: &Opened<SharedFile>,
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
                let iterations_in_files = iterations.saturating_sub(origin.iterations);
                let notes = cut_back(
                    engine,
                    iterations_in_files,
                    sinks,
                    dropping_sinks,
                    left.as_mut(),
                );
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

/// Cuts regular files back to so many iterations; what the report says of each sink, whose counts in it are those of
/// the files.
fn cut_back(
    engine: &Engine,
    iterations: u64,
    sinks: &Opened<SharedFile>,
    dropping_sinks: &[&str],
    left: Option<&mut Outcome>,
) -> Vec<String> {
    let mut notes = Vec::new();
    let mut beyond = Vec::new();
    let sink_ids = engine.program().graph.sinks().map(|(id, _)| id);
    // In several modes iterations have several numbers of tokens: what the run has counted is all that is known.
    let has_modes = engine.mode_names().len() > 1;
    let counted_tokens = left.as_ref().filter(|_| has_modes).map(|left| {
        let sinks = left.report.sinks.iter();
        sinks.map(|sink| sink.tokens).collect::<Vec<u64>>()
    });
    for (index, ((name, path, file), id)) in sinks.iter().zip(sink_ids).enumerate() {
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

        let committed_tokens = match &counted_tokens {
            Some(counted) => counted[index],
            None => iterations * engine.tokens_per_iteration(id),
        };
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
