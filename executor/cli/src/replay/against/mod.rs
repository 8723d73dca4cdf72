//! `zbmd-run replay --against`: a recording on the model that was recorded and on another one, and where they differ first.

mod channels;
mod two_runs;

use std::fmt;
use std::path::{Path, PathBuf};

use zbmd_backends::op::Registry;
use zbmd_executor::Engine;
use zbmd_ir::{Graph, State, TokenType};

use self::channels::{Comparison, PortDifference, Start, UnlikePort, unlike_initial_tokens};
use self::two_runs::{ComparedSink, SinkDifference, compare_sinks};
use super::carry::{carried, tokens_per_iteration};
use crate::CliError;
use crate::flight::{Recording, Stretch};
use crate::io::bursts::element_text;
use crate::say;

/// Exit code where the two models differ, as `zbmdc diff` has it.
pub(super) const DIFFERENT: u8 = 1;
/// Elements of a token that are shown.
const SHOWN_ELEMENTS: usize = 4;

/// One of two models that are compared.
pub(super) struct Side {
    pub(super) engine: Engine,
    pub(super) path: PathBuf,
    /// Where it begins.
    pub(super) state: State,
    /// How far it goes.
    pub(super) iterations: u64,
}

/// What is compared.
pub(super) struct Against<'a> {
    pub(super) recording: &'a Recording,
    /// The recorded model.
    pub(super) recorded: Side,
    /// The bundle of the other one.
    pub(super) other: Engine,
    pub(super) other_path: &'a Path,
    pub(super) registry: &'a Registry,
    pub(super) is_quiet: bool,
}

impl Against<'_> {
    /// Compares the models, and says on standard output what is found; the exit code.
    ///
    /// # Errors
    /// A model that the recording cannot be run on, or what a run ends with.
    pub(super) fn run(self) -> Result<u8, CliError> {
        let other = self.other_side(&self.recorded.state)?;
        let sinks = compare_sinks(self.recording, &self.recorded, &other)?;
        let name = self.other_path.display().to_string();
        let mut differs = false;
        for sink in &sinks {
            differs |= sink.difference.is_some();
            let iteration = self.iteration_of(sink);
            print(&SinkLine {
                sink,
                // The tokens of a sink are counted from the start of the run, as those of sources are.
                first: self.recorded.state.iterations * self.recorded.sink_tokens(&sink.name),
                iteration,
                other: &name,
            });
        }
        if !differs {
            return Ok(crate::exit::OK);
        }
        let iterations = sinks.iter().filter_map(|sink| self.iteration_of(sink));
        match iterations.min() {
            Some(iteration) => match self.unlike_port(iteration) {
                Ok(Some(port)) => print(&PortLine {
                    port: &port,
                    other: &name,
                }),
                Ok(None) => print(
                    &"before that no actor that both models have writes anything else: what they do not share makes the difference",
                ),
                Err(error) => self.note(format_args!("actors are not compared: {error}")),
            },
            None => self.note(format_args!("actors are not compared: no token differs")),
        }
        self.print_names(&name);
        Ok(DIFFERENT)
    }

    fn note(&self, text: fmt::Arguments<'_>) {
        if !self.is_quiet {
            say(format_args!("zbmd-run: note: {text}"));
        }
    }

    /// The other model where the recorded one begins, as far as both have the same tokens.
    fn other_side(&self, state: &State) -> Result<Side, CliError> {
        let refused = |text: String| CliError::Refused {
            path: self.other_path.to_owned(),
            text,
        };
        let graph = &self.recorded.engine.program().graph;
        let other_graph = &self.other.program().graph;
        check_sources(graph, other_graph).map_err(refused)?;
        let carried = carried(state, graph, other_graph).map_err(refused)?;
        zbmd_ir::state::check(&carried.state, other_graph)
            .map_err(|error| refused(error.to_string()))?;
        if !carried.declared.is_empty() {
            let names = quoted(carried.declared.iter());
            self.note(format_args!(
                "what lies on the channels of {names} in {} is, in part at least, as declared: the recorded state does not have it",
                self.other_path.display()
            ));
        }
        if !carried.lost_parameters.is_empty() {
            let names = quoted(carried.lost_parameters.iter());
            self.note(format_args!(
                "{} does not take all changes of {names}",
                self.other_path.display()
            ));
        }
        Ok(Side {
            engine: self.other.clone(),
            path: self.other_path.to_owned(),
            state: carried.state,
            iterations: same_tokens(graph, other_graph, self.recorded.iterations),
        })
    }

    /// The iteration of the run with a sink's first difference.
    fn iteration_of(&self, sink: &ComparedSink) -> Option<u64> {
        let index = match sink.difference.as_ref()? {
            SinkDifference::Token { index, .. } => *index,
            SinkDifference::Length { recorded, other } => *recorded.min(other),
            SinkDifference::Type { .. } => 0,
            SinkDifference::Missing | SinkDifference::New => return None,
        };
        let iterations = index / self.recorded.sink_tokens(&sink.name);
        Some(self.recorded.state.iterations + iterations)
    }

    /// The first port that differs up to an iteration. It is looked for from the last state that the recording has before
    /// that, then from earlier ones: most often what makes the difference does so at once.
    fn unlike_port(&self, iteration: u64) -> Result<Option<UnlikePort>, CliError> {
        let first = &self.recorded.state;
        for stretch in self.earlier_stretches(iteration) {
            let graph = &self.recorded.engine.program().graph;
            let modes = self.recorded.engine.verified_modes();
            let state = self.recording.start(stretch, modes)?.state;
            let is_carried = carried(&state, graph, &self.other.program().graph)
                .is_ok_and(|carried| carried.declared.is_empty());
            if !is_carried {
                continue;
            }
            match self.unlike_port_from(&state, iteration)? {
                None => {}
                // So it was from the first iteration on.
                Some(found) if matches!(found.difference, PortDifference::Count { .. }) => break,
                Some(found) => return Ok(Some(found)),
            }
        }
        if first.iterations == 0 {
            let graph = &self.recorded.engine.program().graph;
            let initial = unlike_initial_tokens(graph, &self.other.program().graph);
            if initial.is_some() {
                return Ok(initial);
            }
        }
        self.unlike_port_from(first, iteration)
    }

    /// States between the first one and an iteration: the last, the one before, then twice as far back each time, so that
    /// all of them together are little more work than the whole.
    fn earlier_stretches(&self, iteration: u64) -> Vec<Stretch> {
        let begin = self.recorded.state.iterations;
        let mut between = self.recording.stretches();
        between.retain(|stretch| {
            stretch.begin > begin && stretch.begin <= iteration && stretch.end > iteration
        });
        let mut chosen = Vec::new();
        let mut back = 1;
        while back <= between.len() {
            chosen.push(between[between.len() - back]);
            back *= 2;
        }
        chosen
    }

    fn unlike_port_from(
        &self,
        state: &State,
        iteration: u64,
    ) -> Result<Option<UnlikePort>, CliError> {
        let other = self.other_side_quietly(state)?;
        let recorded = Start {
            program: self.recorded.engine.program(),
            state,
            path: &self.recorded.path,
        };
        let other = Start {
            program: self.other.program(),
            state: &other,
            path: self.other_path,
        };
        let mut comparison = Comparison::new(self.recording, recorded, other, self.registry)?;
        comparison.first_difference(iteration + 1)
    }

    fn other_side_quietly(&self, state: &State) -> Result<State, CliError> {
        let graph = &self.recorded.engine.program().graph;
        let carried = carried(state, graph, &self.other.program().graph);
        let carried = carried.map_err(|text| CliError::Refused {
            path: self.other_path.to_owned(),
            text,
        })?;
        Ok(carried.state)
    }

    /// Says which actors only one of the models has.
    fn print_names(&self, other_name: &str) {
        let recorded = &self.recorded.engine.program().graph;
        let other = &self.other.program().graph;
        for (one, another, place) in [
            (recorded, other, "the recorded model"),
            (other, recorded, other_name),
        ] {
            let names = one.actors.iter().map(|actor| &actor.name);
            let own: Vec<&String> = names.filter(|name| another.find(name).is_none()).collect();
            if !own.is_empty() {
                print(&format_args!(
                    "only {place} has {}",
                    quoted(own.into_iter())
                ));
            }
        }
    }
}

/// Refuses a model whose sources the recording does not have.
fn check_sources(recorded: &Graph, other: &Graph) -> Result<(), String> {
    for (_, source) in other.sources() {
        let name = &source.name;
        let mut known = recorded.sources().filter(|(_, known)| known.name == *name);
        let Some((_, known)) = known.next() else {
            return Err(format!("its source `{name}` is not in the recording"));
        };
        let (here, there) = (&source.outputs[0].token, &known.outputs[0].token);
        if here != there {
            return Err(format!(
                "its source `{name}` is of {here}, what was recorded of {there}"
            ));
        }
    }
    Ok(())
}

/// Iterations of the other graph that take as many tokens, or less than one iteration fewer.
fn same_tokens(recorded: &Graph, other: &Graph, iterations: u64) -> u64 {
    let by_source = other.sources().filter_map(|(id, source)| {
        let known = recorded.find(&source.name)?;
        let tokens = u128::from(iterations) * u128::from(tokens_per_iteration(recorded, known));
        let other_iterations = tokens / u128::from(tokens_per_iteration(other, id));
        Some(u64::try_from(other_iterations).unwrap_or(u64::MAX))
    });
    by_source.min().unwrap_or(iterations)
}

fn quoted<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let quoted: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// A line on standard output; that it is closed does not matter.
fn print(line: &dyn fmt::Display) {
    use std::io::Write;
    let text = line.to_string();
    let printable = zbmd_ir::text::printable_lines(&text);
    drop(writeln!(std::io::stdout(), "{printable}"));
}

/// What is said of a sink.
struct SinkLine<'a> {
    sink: &'a ComparedSink,
    /// The first token that was compared.
    first: u64,
    /// That of the first difference.
    iteration: Option<u64>,
    other: &'a str,
}

impl fmt::Display for SinkLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ComparedSink {
            name,
            token,
            tokens,
            difference,
        } = self.sink;
        let other_name = self.other;
        write!(f, "sink `{name}`: ")?;
        match difference {
            None => write!(f, "no difference in {tokens} tokens"),
            Some(SinkDifference::Missing) => write!(f, "{other_name} has no such sink"),
            Some(SinkDifference::New) => write!(f, "only {other_name} has it"),
            Some(SinkDifference::Type { recorded, other }) => {
                write!(f, "of {recorded}, in {other_name} of {other}")
            }
            Some(SinkDifference::Length { recorded, other }) => write!(
                f,
                "no difference in {tokens} tokens, but it has {recorded}, in {other_name} {other}"
            ),
            Some(SinkDifference::Token {
                index,
                recorded,
                other,
            }) => {
                write!(f, "first difference at token {}", self.first + index)?;
                if let Some(iteration) = self.iteration {
                    write!(f, " (iteration {iteration})")?;
                }
                let (own, others) = (token_text(token, recorded), token_text(token, other));
                write!(f, ": {own}, in {other_name} {others}")
            }
        }
    }
}

/// What is said of an actor's port.
struct PortLine<'a> {
    port: &'a UnlikePort,
    other: &'a str,
}

impl fmt::Display for PortLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnlikePort {
            actor,
            port,
            token,
            index,
            iteration,
            difference,
            is_cause,
        } = self.port;
        let other_name = self.other;
        write!(f, "actor `{actor}`, port `{port}`: ")?;
        match difference {
            PortDifference::Initial => return write!(f, "begins with other initial tokens"),
            PortDifference::Token { recorded, other } => {
                let (own, others) = (token_text(token, recorded), token_text(token, other));
                write!(
                    f,
                    "first difference at token {index} (iteration {iteration}): {own}, in {other_name} {others}"
                )?;
            }
            PortDifference::Count { recorded, other } => write!(
                f,
                "first difference at token {index} (iteration {iteration}): {recorded} tokens, in {other_name} {other} from the same input"
            )?,
        }
        match is_cause {
            true => write!(f, "; what it reads is the same"),
            false => write!(f, "; it reads from actors that not both have"),
        }
    }
}

/// The first elements of a token.
fn token_text(token: &TokenType, bytes: &[u8]) -> String {
    let element_bytes = token.dtype.size_bytes() as usize;
    let elements = bytes.chunks_exact(element_bytes);
    let count = elements.len();
    let shown: Vec<String> = elements
        .take(SHOWN_ELEMENTS)
        .map(|element| element_text(token.dtype, element))
        .collect();
    match count {
        1 => shown.join(""),
        _ if count > SHOWN_ELEMENTS => format!("[{}, …]", shown.join(", ")),
        _ => format!("[{}]", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::DType;

    #[test]
    fn tokens_are_shown_by_their_first_elements() {
        let scalar = TokenType::scalar(DType::F32);
        assert_eq!(token_text(&scalar, &0.1f32.to_le_bytes()), "0.1");
        let list = TokenType::new(DType::I16, [6]);
        let bytes: Vec<u8> = (-1..5i16).flat_map(i16::to_le_bytes).collect();
        assert_eq!(token_text(&list, &bytes), "[-1, 0, 1, 2, …]");
    }
}
