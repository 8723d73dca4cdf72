//! `zbmd-run set`: live parameters of a run that is on.

use clap::Args;
use zbmd_ir::text::printable;

use super::ask::{Failure, ask, code_of, show};
use super::message::{ParameterState, Position, Reply, Request};
use crate::exit;
use crate::top::the_only_run;

/// Which parameters, of which run.
#[derive(Clone, Debug, Args)]
pub(crate) struct Set {
    /// The run's process, which may be left out where one run is on; then parameters and their values, all of which are
    /// set together or none. Without any, what can be set is listed.
    #[arg(value_name = "[PID] NAME=VALUE", allow_negative_numbers = true)]
    words: Vec<String>,
    /// Take effect exactly at this token of a source, counted from the start of the run, in place of the next block.
    #[arg(long, value_name = "SOURCE:TOKEN", value_parser = token_position)]
    at: Option<(String, u64)>,
}

fn token_position(text: &str) -> Result<(String, u64), String> {
    // Names may have colons.
    let parts = text.rsplit_once(':').filter(|(name, _)| !name.is_empty());
    let parsed = parts.and_then(|(name, token)| Some((name.to_owned(), token.parse().ok()?)));
    parsed.ok_or_else(|| "write it as SOURCE:TOKEN, such as iq:48000".to_owned())
}

/// Sets parameters, or lists them; the exit code.
pub(crate) fn set(args: &Set) -> u8 {
    let shown = read_words(&args.words).and_then(|(pid, values)| {
        let pid = pid.map_or_else(|| the_only_run().map_err(|(c, t)| Failure::new(c, t)), Ok)?;
        let request = match values.as_slice() {
            [] if args.at.is_none() => Request::Values,
            [] => return Err(Failure::new(exit::USAGE, "--at needs a NAME=VALUE")),
            _ => Request::Set {
                values: values.clone(),
                at: args.at.clone(),
            },
        };
        match ask(pid, &request)? {
            Reply::Values(parameters) => Ok(list_text(&parameters)),
            Reply::Set(position) => Ok(set_text(&values, &position)),
            Reply::Refused { kind, text } => Err(Failure::new(code_of(kind), text)),
            _ => Err(Failure::unasked()),
        }
    });
    show(shown)
}

type NamedValues = Vec<(String, Vec<f64>)>;

/// The process, if the first word is one, and the values.
fn read_words(words: &[String]) -> Result<(Option<u32>, NamedValues), Failure> {
    let pid = words.first().and_then(|word| word.parse().ok());
    let assignments = &words[usize::from(pid.is_some())..];
    let values: Result<NamedValues, Failure> = assignments.iter().map(|w| assignment(w)).collect();
    Ok((pid, values?))
}

fn assignment(word: &str) -> Result<(String, Vec<f64>), Failure> {
    let refuse = |why: String| Failure::new(exit::USAGE, why);
    let (name, list) = word
        .split_once('=')
        .filter(|(n, _)| !n.is_empty())
        .ok_or_else(|| {
            refuse(format!(
                "`{word}` is no assignment: write NAME=VALUE, such as gain=2, or taps=0.25,0.5,0.25"
            ))
        })?;
    let number = |text: &str| match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        Ok(number) => Err(refuse(format!(
            "`{name}` cannot be {number}: give a finite number"
        ))),
        Err(_) => Err(refuse(format!("`{name}`: `{text}` is not a number"))),
    };
    let numbers: Result<Vec<f64>, Failure> = list.split(',').map(number).collect();
    Ok((name.to_owned(), numbers?))
}

fn numbers_text(numbers: &[f64]) -> String {
    let texts: Vec<String> = numbers.iter().map(f64::to_string).collect();
    texts.join(",")
}

fn list_text(parameters: &[ParameterState]) -> String {
    let lines = parameters.iter().map(|parameter| {
        let ParameterState {
            name,
            numbers,
            min,
            max,
        } = parameter;
        let (name, value) = (printable(name), numbers_text(numbers));
        format!("{name}={value}   {min} to {max}\n")
    });
    lines.collect()
}

fn set_text(values: &NamedValues, position: &Position) -> String {
    let place = match position {
        Position::Iteration(iteration) => format!("iteration {iteration}"),
        Position::Token { source, index } => format!("token {index} of {}", printable(source)),
    };
    let lines = values.iter().map(|(name, numbers)| {
        format!(
            "{}={} from {place} on\n",
            printable(name),
            numbers_text(numbers)
        )
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Result<(Option<u32>, NamedValues), String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        read_words(&words).map_err(|failure| failure.text)
    }

    #[test]
    fn words_are_a_process_and_assignments() {
        let gain = ("gain".to_owned(), vec![-2.5]);
        let taps = ("a/taps".to_owned(), vec![0.25, 0.5]);
        assert_eq!(words(&[]), Ok((None, vec![])));
        assert_eq!(words(&["12"]), Ok((Some(12), vec![])));
        assert_eq!(words(&["gain=-2.5"]), Ok((None, vec![gain.clone()])));
        let both = words(&["12", "gain=-2.5", "a/taps=0.25, 0.5"]);
        assert_eq!(both, Ok((Some(12), vec![gain, taps])));
    }

    #[test]
    fn what_is_no_assignment_is_named() {
        for (word, reason) in [
            ("gain", "`gain` is no assignment"),
            ("=2", "`=2` is no assignment"),
            ("gain=", "`gain`: `` is not a number"),
            ("gain=loud", "`loud` is not a number"),
            ("gain=nan", "cannot be NaN"),
            ("gain=1,inf", "cannot be inf"),
        ] {
            let error = words(&[word]).expect_err(word);
            assert!(error.contains(reason), "{word}: {error}");
        }
    }

    #[test]
    fn positions_have_a_source_and_a_token() {
        assert_eq!(token_position("a:b:7"), Ok(("a:b".to_owned(), 7)));
        for text in ["iq", ":7", "iq:", "iq:-1", "iq:1.5"] {
            assert!(token_position(text).is_err(), "{text}");
        }
    }
}
