//! Sequences: requests that follow each other, each of which begins with the state that the one before left.

/// The longest name of a sequence.
pub(crate) const MAX_ID_BYTES: usize = 128;

/// Which sequence a request belongs to. A number is never a text, even if it reads the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SequenceId {
    /// Not 0.
    Number(u64),
    /// Not empty, and at most [`MAX_ID_BYTES`] long.
    Text(String),
}

impl std::fmt::Display for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "`{text}`"),
        }
    }
}

/// The place of a request in its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SequenceStep {
    pub(crate) id: SequenceId,
    /// It begins the sequence anew, whatever came before.
    pub(crate) is_start: bool,
    /// Nothing is kept after it.
    pub(crate) is_end: bool,
}
