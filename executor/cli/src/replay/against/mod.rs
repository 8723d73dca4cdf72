//! `zbmd-run replay --against`: a recording on the model that was recorded and on another one, and where they differ first.

mod channels;
mod side;
mod two_runs;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use zbmd_backends::op::Registry;
use zbmd_executor::Engine;
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{Graph, TokenType};

use self::channels::{Comparison, PortDifference, Start, UnlikePort};
pub(super) use self::side::Side;
use self::two_runs::{ComparedSink, SinkDifference, compare_sinks};
use super::carry::{CarriedStart, carried_start, tokens_per_iteration};
use super::start_at;
use crate::CliError;
use crate::flight::{Recording, ReplayStart, Stretch};
use crate::io::bursts::element_text;
use crate::say;

/// Exit code where the two models differ, as `zbmdc diff` has it.
pub(super) const DIFFERENT: u8 = 1;
/// Elements of a token that are shown.
const SHOWN_ELEMENTS: usize = 4;

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
        let other = self.other_side()?;
        let sinks = compare_sinks(self.recording, &self.recorded, &other)?;
        let name = self.other_path.display().to_string();
        let mut differs = false;
        for sink in &sinks {
            differs |= sink.difference.is_some();
            let iteration = self.iteration_of(sink);
            print(&SinkLine {
                sink,
                // The tokens of a sink are counted from the start of the run, as those of sources are.
                first: self.tokens_before(self.recorded.start.state.iterations, |mode| {
                    self.recorded.sink_tokens(mode, &sink.name)
                }),
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

    fn refused(&self, text: String) -> CliError {
        CliError::Refused {
            path: self.other_path.to_owned(),
            text,
        }
    }

    /// The other model where the recorded one begins, as far as both have the same tokens.
    fn other_side(&self) -> Result<Side, CliError> {
        check_sources(self.recorded.first_graph(), &self.other.program().graph)
            .map_err(|text| self.refused(text))?;
        let CarriedStart {
            start,
            declared,
            lost_parameters,
        } = self.carried_start(&self.recorded.start)?;
        let other_modes = self.other.verified_modes();
        let first_graph = &other_modes.programs()[start.present_mode.mode as usize].graph;
        zbmd_ir::state::check(&start.state, first_graph)
            .map_err(|error| self.refused(error.to_string()))?;
        if !declared.is_empty() {
            let names = quoted(declared.iter());
            self.note(format_args!(
                "what lies on the channels of {names} in {} is, in part at least, as declared: the recorded state does not have it",
                self.other_path.display()
            ));
        }
        if !lost_parameters.is_empty() {
            let names = quoted(lost_parameters.iter());
            self.note(format_args!(
                "{} does not take all changes of {names}",
                self.other_path.display()
            ));
        }

        let end = self.recorded.start.state.iterations + self.recorded.iterations;
        let scheduled = self.recorded.start.scheduled_modes.iter();
        let change_count = scheduled
            .take_while(|change| change.iteration < end)
            .count();
        let (last_begin, last_mode) = mode_after(&self.recorded.start, change_count);
        let (other_begin, other_mode) = mode_after(&start, change_count);
        let last_iterations = same_tokens(
            self.recorded.graph(last_mode),
            &other_modes.programs()[other_mode].graph,
            end - last_begin,
        );
        Ok(Side {
            engine: self.other.clone(),
            path: self.other_path.to_owned(),
            iterations: other_begin + last_iterations - start.state.iterations,
            start,
        })
    }

    /// Where the other model begins for a beginning of the recorded one.
    fn carried_start(&self, start: &ReplayStart) -> Result<CarriedStart, CliError> {
        let recorded = self.recorded.engine.verified_modes();
        let other = self.other.verified_modes();
        carried_start(start, recorded, other).map_err(|text| self.refused(text))
    }

    /// Tokens before an iteration of the recorded run, of something that has so many in an iteration of each mode.
    fn tokens_before(&self, iteration: u64, per_iteration: impl Fn(usize) -> u64) -> u64 {
        let counts = self.recording.mode_history().iterations_by_mode(iteration);
        let tokens = counts.iter().enumerate();
        tokens
            .map(|(mode, iterations)| iterations * per_iteration(mode))
            .sum()
    }

    /// The iteration of the run with a sink's first difference.
    fn iteration_of(&self, sink: &ComparedSink) -> Option<u64> {
        let index = match sink.difference.as_ref()? {
            SinkDifference::Token { index, .. } => *index,
            SinkDifference::Length { recorded, other } => *recorded.min(other),
            SinkDifference::Type { .. } => 0,
            SinkDifference::Missing | SinkDifference::New => return None,
        };
        let iterations = self.recorded.iteration_of(&sink.name, index);
        Some(self.recorded.start.state.iterations + iterations)
    }

    /// The first port that differs up to an iteration. It is looked for from the last state that the recording has before
    /// that, then from earlier ones: most often what makes the difference does so at once.
    fn unlike_port(&self, iteration: u64) -> Result<Option<UnlikePort>, CliError> {
        for stretch in self.earlier_stretches(iteration) {
            let modes = self.recorded.engine.verified_modes();
            let start = self.recording.start(stretch, modes)?;
            let is_carried = self
                .carried_start(&start)
                .is_ok_and(|carried| carried.declared.is_empty());
            if !is_carried {
                continue;
            }
            match self.unlike_port_from(&start, iteration)? {
                None => {}
                // So it was from the first iteration on.
                Some(found) if matches!(found.difference, PortDifference::Count { .. }) => break,
                Some(found) => return Ok(Some(found)),
            }
        }
        self.unlike_port_from(&self.recorded.start, iteration)
    }

    /// States between the first one and an iteration: the last, the one before, then twice as far back each time, so that
    /// all of them together are little more work than the whole.
    fn earlier_stretches(&self, iteration: u64) -> Vec<Stretch> {
        let begin = self.recorded.start.state.iterations;
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

    /// The first port that differs from a beginning up to an iteration, mode by mode: from one change of mode to the next, both
    /// models are run.
    fn unlike_port_from(
        &self,
        start: &ReplayStart,
        iteration: u64,
    ) -> Result<Option<UnlikePort>, CliError> {
        let end = iteration + 1;
        let carried = self.carried_start(start)?.start;
        // Both go over to a mode that follows at the very iteration where they begin.
        let (begin, other_begin) = (start.state.iterations, carried.state.iterations);
        let mut start = start_at(&self.recorded.engine, self.recording, start.clone(), begin)?;
        let mut other = start_at(&self.other, self.recording, carried, other_begin)?;

        loop {
            // Where tokens have decided otherwise, what decided has been compared.
            if !self.is_same_mode(&start, &other) {
                return Ok(None);
            }
            let next = start.scheduled_modes.first().map(|next| next.iteration);
            let next = next.filter(|next| *next < end);
            let found = self.unlike_port_in_mode(&start, &other, next.unwrap_or(end))?;
            let other_next = other.scheduled_modes.first().map(|next| next.iteration);
            let (None, Some(next), Some(other_next)) = (&found, next, other_next) else {
                return Ok(found);
            };
            start = start_at(&self.recorded.engine, self.recording, start, next)?;
            other = start_at(&self.other, self.recording, other, other_next)?;
        }
    }

    /// The first port that differs before an iteration, in the mode that both models are in.
    fn unlike_port_in_mode(
        &self,
        start: &ReplayStart,
        other: &ReplayStart,
        end: u64,
    ) -> Result<Option<UnlikePort>, CliError> {
        let recorded_modes = self.recorded.engine.verified_modes();
        let other_modes = self.other.verified_modes();
        let recorded = Start {
            program: &recorded_modes.programs()[start.present_mode.mode as usize],
            state: &start.state,
            path: &self.recorded.path,
        };
        let other = Start {
            program: &other_modes.programs()[other.present_mode.mode as usize],
            state: &other.state,
            path: self.other_path,
        };

        let mut comparison = Comparison::new(self.recording, recorded, other, self.registry)?;
        let unlike_start = comparison.unlike_start(recorded.state, other.state);
        let found = match unlike_start {
            Some(found) => Some(found),
            None => comparison.first_difference(end)?,
        };

        Ok(found.map(|mut found| {
            let per_iteration = |mode: usize| {
                let graph = &recorded_modes.programs()[mode].graph;
                port_tokens(graph, &found.actor, &found.port)
            };
            found.index += self.tokens_before(start.state.iterations, per_iteration);
            found
        }))
    }

    fn is_same_mode(&self, recorded: &ReplayStart, other: &ReplayStart) -> bool {
        let names = self.recorded.engine.verified_modes().names();
        let other_names = self.other.verified_modes().names();
        let is_only_one = names.len() == 1 && other_names.len() == 1;
        is_only_one
            || names[recorded.present_mode.mode as usize]
                == other_names[other.present_mode.mode as usize]
    }

    /// Says which actors only one of the models has.
    fn print_names(&self, other_name: &str) {
        let recorded = actor_names(&self.recorded.engine);
        let other = actor_names(&self.other);
        for (one, another, place) in [
            (&recorded, &other, "the recorded model"),
            (&other, &recorded, other_name),
        ] {
            let own = one.iter().filter(|name| !another.contains(name));
            let own: Vec<&String> = own.collect();
            if !own.is_empty() {
                print(&format_args!(
                    "only {place} has {}",
                    quoted(own.into_iter())
                ));
            }
        }
    }
}

/// Where the mode begins that follows so many changes, and which it is.
fn mode_after(start: &ReplayStart, change_count: usize) -> (u64, usize) {
    let last = start.scheduled_modes[..change_count].last();
    last.map_or(
        (start.state.iterations, start.present_mode.mode as usize),
        |change| (change.iteration, change.mode as usize),
    )
}

/// The names of the actors of all modes, each once, in order.
fn actor_names(engine: &Engine) -> Vec<String> {
    let programs = engine.verified_modes().programs().iter();
    let actors = programs.flat_map(|program| &program.graph.actors);
    let mut known = BTreeSet::new();
    let names = actors.map(|actor| actor.name.clone());
    names.filter(|name| known.insert(name.clone())).collect()
}

/// Tokens that an actor writes to a port in an iteration; none where there is no such port.
fn port_tokens(graph: &Graph, actor: &str, port: &str) -> u64 {
    let Some(id) = graph.find(actor) else {
        return 0;
    };
    let repetition = repetition(graph).expect("a verified graph is consistent");
    let mut ports = graph.actors[id].outputs.iter();
    let port = ports.find(|known| known.name == port);
    port.map_or(0, |port| repetition[id] * port.rate)
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
