//! Why a stream of a session cannot be connected, with the classes that all of zbmd's borders have.

use std::io;

use zbmd_executor::{StreamError, exit};

use super::StreamSpec;
use crate::feeder::FeederError;

/// Why a stream cannot be connected to a URL.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No stream of that name.
    #[error("no {kind} `{name}`; there are: {known}")]
    Unknown {
        /// `source` or `sink`.
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// It is one of the other kind.
    #[error("`{name}` is a {kind}, not a {wanted}: connect it as a {kind}")]
    Direction {
        /// The stream.
        name: String,
        /// What it is.
        kind: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// It has a URL.
    #[error("{kind} `{name}` is connected to {url} already: one URL each")]
    Connected {
        /// `source` or `sink`.
        kind: &'static str,
        /// The stream.
        name: String,
        /// Its URL.
        url: String,
    },
    /// Neither the call nor the model has a URL.
    #[error(
        "{kind} `{name}` has no URL: give one, or name it in the model: Stream(file: \"udp://…\")"
    )]
    NoUrl {
        /// `source` or `sink`.
        kind: &'static str,
        /// The stream.
        name: String,
    },
    /// The URL is wrong, or does not fit the stream.
    #[error("{kind} `{name}`: {url}: {error}")]
    Url {
        /// `source` or `sink`.
        kind: &'static str,
        /// The stream.
        name: String,
        /// The URL.
        url: String,
        /// What is wrong with it.
        error: Box<FeederError>,
    },
    /// A file that is not raw tokens.
    #[error(
        "source `{name}`: {url}: only files of raw tokens are played here; `zbmd-run` plays WAV and NPY files"
    )]
    Format {
        /// The source.
        name: String,
        /// The URL.
        url: String,
    },
    /// What the system says.
    #[error("{kind} `{name}`: {url}: {error}")]
    Open {
        /// `source` or `sink`.
        kind: &'static str,
        /// The stream.
        name: String,
        /// The URL.
        url: String,
        /// Why it cannot be opened.
        error: io::Error,
    },
    /// Its handle cannot be had.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A thread cannot be started.
    #[error("a thread of a live stream cannot be started: {0}")]
    Thread(io::Error),
}

impl ConnectError {
    pub(super) fn url(spec: &StreamSpec, url: &str, error: FeederError) -> Self {
        Self::Url {
            kind: spec.kind(),
            name: spec.name.clone(),
            url: url.to_owned(),
            error: Box::new(error),
        }
    }

    pub(super) fn open(spec: &StreamSpec, url: &str, error: io::Error) -> Self {
        Self::Open {
            kind: spec.kind(),
            name: spec.name.clone(),
            url: url.to_owned(),
            error,
        }
    }

    /// Its class: one of [`exit`], as `zbmd-run` has for the same mistake.
    pub fn class(&self) -> u8 {
        match self {
            Self::Open { .. } => exit::FILE,
            Self::Thread(_) | Self::Stream(StreamError::Stopped { .. }) => exit::FAULT,
            Self::Unknown { .. }
            | Self::Direction { .. }
            | Self::Connected { .. }
            | Self::NoUrl { .. }
            | Self::Url { .. }
            | Self::Format { .. }
            | Self::Stream(_) => exit::USAGE,
        }
    }
}
