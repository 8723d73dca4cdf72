//! Tokens that a source did not deliver. Must not know how that was found out.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why tokens are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A packet did not arrive, by the numbers or time stamps of those that did.
    Lost,
    /// Nothing arrived for longer than the limit, though the peer was connected.
    Silence,
    /// There was no connection.
    Disconnected,
    /// The run did not take tokens fast enough.
    QueueFull,
    /// The system dropped datagrams because they were not read fast enough.
    KernelDrop,
}

impl Cause {
    /// Every cause, in the order of the enum.
    pub const ALL: [Cause; 5] = [
        Cause::Lost,
        Cause::Silence,
        Cause::Disconnected,
        Cause::QueueFull,
        Cause::KernelDrop,
    ];

    /// Its name in reports, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Lost => "lost",
            Cause::Silence => "silence",
            Cause::Disconnected => "disconnected",
            Cause::QueueFull => "queue full",
            Cause::KernelDrop => "kernel drop",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A run of tokens that were filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// Index of the first one.
    pub first: u64,
    /// How many.
    pub length: u64,
    /// Why.
    pub cause: Cause,
}

impl Gap {
    /// The index after the last one.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.length)
    }

    /// Takes in a gap that goes on where this one ends, for the same reason; whether it does.
    pub(crate) fn extend(&mut self, next: &Gap) -> bool {
        let goes_on = self.end() == next.first && self.cause == next.cause;
        if goes_on {
            self.length += next.length;
        }
        goes_on
    }
}
