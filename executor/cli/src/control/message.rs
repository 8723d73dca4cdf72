//! What clients and runs say to each other.

use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};
use zbmd_executor::{ParameterValue, ProbeChannel};
use zbmd_ir::TokenType;

/// Longest line in bytes: some 40,000 numbers.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Request {
    /// The live parameters and their values.
    Values,
    /// Set parameters, all or none.
    Set {
        /// Name and numbers of each.
        values: Vec<(String, Vec<f64>)>,
        /// A source and a token of it, at which they take effect; else it is the next block.
        at: Option<(String, u64)>,
    },
    /// The modes, and the one that the run is in.
    Modes,
    /// Go over to this mode.
    Mode(String),
    /// The channels that can be looked at.
    Channels,
    /// Look at this channel, as long as the connection is there.
    Probe(String),
    /// The next block of it, if there is one within a second.
    NextBlock,
}

/// What a run answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Reply {
    /// The live parameters, by name.
    Values(Vec<ParameterState>),
    /// The parameters are set, from here on.
    Set(Position),
    /// The modes, and the one that the run is in.
    Modes {
        /// All of them; the run began in the first.
        names: Vec<String>,
        /// The present one.
        present: String,
        /// The run's first iteration in it.
        since: u64,
    },
    /// The run is in this mode.
    Mode {
        /// Its name.
        name: String,
        /// The run's first iteration in it.
        since: u64,
    },
    /// The channels that can be looked at.
    Channels(Vec<ChannelState>),
    /// The channel is looked at from here on.
    Probing(ChannelState),
    /// So many bytes follow this line: the tokens of a block.
    Block {
        /// The run's first iteration of the block.
        iteration: u64,
        /// Iterations of the block.
        iterations: u64,
        /// Bytes that follow.
        bytes: u64,
    },
    /// No block yet: ask again.
    NoBlock,
    /// Nothing is changed.
    Refused {
        /// What kind of reason it is.
        kind: RefusalKind,
        /// The reason as a sentence.
        text: String,
    },
}

/// Where a change takes effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Position {
    /// With the firings of this iteration.
    Iteration(u64),
    /// With the first firing of each actor that needs this token of a source.
    Token {
        /// The source.
        source: String,
        /// The token, counted from the start of the run.
        index: u64,
    },
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RefusalKind {
    /// The request makes no sense, or names what is not there.
    Request,
    /// The value or the position cannot be had.
    Value,
    /// Too much at once: it may be tried again.
    Busy,
    /// The run has ended.
    Ended,
}

/// A live parameter and the value that was set last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParameterState {
    pub name: String,
    pub numbers: Vec<f64>,
    pub min: f64,
    pub max: f64,
}

impl From<ParameterValue> for ParameterState {
    fn from(value: ParameterValue) -> Self {
        Self {
            name: value.parameter.name,
            numbers: value.numbers,
            min: value.parameter.min,
            max: value.parameter.max,
        }
    }
}

/// A channel that can be looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChannelState {
    pub name: String,
    pub token: TokenType,
    pub block_tokens: u64,
    pub device: String,
    pub sample_rate: Option<f64>,
}

impl From<ProbeChannel> for ChannelState {
    fn from(channel: ProbeChannel) -> Self {
        Self {
            name: channel.name,
            token: channel.token,
            block_tokens: channel.block_tokens,
            device: channel.device,
            sample_rate: channel.sample_rate,
        }
    }
}

/// Why no message could be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum MessageError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the message is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    #[error("the message cannot be read: {0}")]
    Json(#[from] serde_json::Error),
}

/// The next message; `None` at the end of the stream.
///
/// # Errors
/// See [`MessageError`]; what follows a message that is too long cannot be read.
pub(super) fn read_message<M: for<'de> Deserialize<'de>>(
    reader: &mut impl BufRead,
) -> Result<Option<M>, MessageError> {
    let mut line = Vec::new();
    reader.take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) if line.len() as u64 == MAX_LINE_BYTES => Err(MessageError::TooLong),
        Some(_) => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
    }
}

/// A message as the line that is sent.
///
/// # Panics
/// Never: the messages are plain data with string keys.
pub(super) fn line_of(message: &impl Serialize) -> String {
    let json = serde_json::to_string(message).expect("messages are plain data");
    json + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Request>, MessageError> {
        read_message(&mut text.as_bytes())
    }

    #[test]
    fn requests_are_lines_of_json() {
        let set = Request::Set {
            values: vec![("gain".into(), vec![2.0]), ("taps".into(), vec![0.5, -1.0])],
            at: Some(("iq".into(), 7)),
        };
        let line = line_of(&set);
        assert_eq!(
            line,
            "{\"set\":{\"values\":[[\"gain\",[2.0]],[\"taps\",[0.5,-1.0]]],\"at\":[\"iq\",7]}}\n"
        );
        assert_eq!(read(&line).expect("a request"), Some(set));
        assert_eq!(read("\"values\"\n").expect("one"), Some(Request::Values));
        assert_eq!(read("").expect("the end"), None);
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        let too_deep = "[".repeat(100_000) + "\n";
        for text in [
            "{}\n",
            "[]\n",
            "\n",
            "{\"set\":{\"values\":[[\"a\",[null]]]}}\n",
            &too_deep,
        ] {
            assert!(
                matches!(read(text), Err(MessageError::Json(_))),
                "{text:.40}"
            );
        }
        let cut = read("\"val").expect_err("a cut line");
        assert!(matches!(cut, MessageError::Io(_)), "{cut}");
        let long = " ".repeat(2 << 20) + "\n";
        let too_long = read(&long).expect_err("a long line");
        assert!(matches!(too_long, MessageError::TooLong), "{too_long}");
    }
}
