//! Why a bridge ends before its stream does.

use std::io;

use crate::exit;

/// What went wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum BridgeError {
    /// The command line.
    #[error("{0}")]
    Usage(String),
    /// A file or a standard stream.
    #[error("{name}: {source}")]
    File { name: String, source: io::Error },
    /// The input ended where no token ends: whoever wrote it was killed.
    #[error(
        "{name}: ends {bytes} bytes into a token of {token_bytes} bytes, after {tokens} whole tokens, which were published: \
         whoever wrote it was stopped, or --token-bytes is wrong; readers were not told that the stream has ended"
    )]
    CutToken {
        name: String,
        bytes: u64,
        token_bytes: u64,
        tokens: u64,
    },
    /// Nobody reads the output any more.
    #[error("{name}: its reader went away after {tokens} tokens, before the stream ended")]
    ReaderGone { name: String, tokens: u64 },
    /// There is no session with the network.
    #[error("no Zenoh session: {0}")]
    Session(String),
    /// An operation of a session.
    #[error("{what}: {text}")]
    Zenoh { what: &'static str, text: String },
    /// A sample that cannot be tokens of this stream.
    #[error("a sample on `{key}` {text}")]
    Sample { key: String, text: String },
    /// Tokens that nobody has.
    #[error(
        "tokens {first} to {last} of run `{run}` are missing on `{key}`: {why}; --lossy goes on without them and counts them"
    )]
    Gap {
        key: String,
        run: String,
        first: u64,
        last: u64,
        why: String,
    },
    /// A signal.
    #[error("interrupted")]
    Interrupted,
}

impl BridgeError {
    /// The exit code of the command.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => exit::USAGE,
            Self::File { .. }
            | Self::CutToken { .. }
            | Self::ReaderGone { .. }
            | Self::Session(_) => exit::FILE,
            Self::Zenoh { .. } | Self::Sample { .. } | Self::Gap { .. } => exit::FAULT,
            Self::Interrupted => exit::INTERRUPTED,
        }
    }

    /// What makes an error of a file out of the system's.
    pub(crate) fn of_file(name: &str) -> impl Fn(io::Error) -> Self + use<> {
        let name = name.to_owned();
        move |source| Self::File {
            name: name.clone(),
            source,
        }
    }

    /// What makes an error out of Zenoh's.
    pub(crate) fn of_zenoh(what: &'static str) -> impl Fn(zenoh::Error) -> Self {
        move |error| Self::Zenoh {
            what,
            text: error.to_string(),
        }
    }
}
