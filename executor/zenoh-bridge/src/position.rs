//! The attachment that bridges put on messages, queries and replies: which run, and where in its stream. It comes from the
//! network, so every byte is checked.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `zbmd` |
//! | 1 | version, 1 |
//! | 1 | [`Kind`] |
//! | 8 | offset in bytes from the beginning of the run's stream, little-endian |
//! | 1 | length of the run's name; 0 only in queries that take any run |
//! | at most 64 | the run's name |

use std::fmt;
use std::str::FromStr;

const MAGIC: &[u8; 4] = b"zbmd";
const VERSION: u8 = 1;
/// Everything before the run's name.
const HEAD_BYTES: usize = 15;
/// A run's name has no more bytes.
pub const MAX_RUN_BYTES: usize = 64;

/// What is said with a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The payload's first byte is at the offset.
    Data,
    /// The stream ends at the offset.
    End,
    /// A reply: whatever is before the offset is not kept any more.
    First,
    /// A query: the reader has everything before the offset, and wants what follows.
    Want,
    /// A query without a reply: the reader has everything before the offset.
    Have,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Data, Self::End, Self::First, Self::Want, Self::Have];

    fn code(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::End => 1,
            Self::First => 2,
            Self::Want => 3,
            Self::Have => 4,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    fn is_query(self) -> bool {
        matches!(self, Self::Want | Self::Have)
    }
}

/// The name of a run: letters, digits, `.`, `_` and `-`, at most [`MAX_RUN_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunName(String);

impl RunName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RunName {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_name = (1..=MAX_RUN_BYTES).contains(&text.len()) && text.bytes().all(is_allowed);
        match is_name {
            true => Ok(Self(text.to_owned())),
            false => Err(PositionError::Run),
        }
    }
}

/// Why bytes that begin as an attachment of a bridge are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum PositionError {
    #[error("has {found} bytes, {needed} are needed")]
    Length { found: usize, needed: usize },
    #[error("has version {found}, this bridge knows {VERSION}")]
    Version { found: u8 },
    #[error("has kind {found}, which is not known")]
    Kind { found: u8 },
    #[error("a run's name is 1 to {MAX_RUN_BYTES} letters, digits, dots, underscores and hyphens")]
    Run,
}

/// A place in the stream of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// What is said.
    pub kind: Kind,
    /// In bytes, from the beginning of the run's stream.
    pub offset: u64,
    /// The run; `None` only in queries, for any run.
    pub run: Option<RunName>,
}

impl Position {
    /// As an attachment.
    pub fn encode(&self) -> Vec<u8> {
        let run = self.run.as_ref().map_or("", RunName::as_str);
        let mut bytes = Vec::with_capacity(HEAD_BYTES + run.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend([VERSION, self.kind.code()]);
        bytes.extend(self.offset.to_le_bytes());
        // A name has at most 64 bytes.
        bytes.push(run.len() as u8);
        bytes.extend_from_slice(run.as_bytes());
        bytes
    }

    /// Reads an attachment; `None` if it does not begin as one of a bridge, as that of another program does not.
    ///
    /// # Errors
    /// See [`PositionError`].
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, PositionError> {
        if !bytes.starts_with(MAGIC) {
            return Ok(None);
        }

        let found = bytes.len();
        let Some((head, run_bytes)) = bytes.split_first_chunk::<HEAD_BYTES>() else {
            let needed = HEAD_BYTES;
            return Err(PositionError::Length { found, needed });
        };
        let [_, _, _, _, version, kind_code, offset @ .., run_length] = *head;
        if version != VERSION {
            return Err(PositionError::Version { found: version });
        }
        let kind = Kind::of_code(kind_code).ok_or(PositionError::Kind { found: kind_code })?;
        let needed = HEAD_BYTES + usize::from(run_length);
        if found != needed {
            return Err(PositionError::Length { found, needed });
        }

        let run = match run_bytes {
            [] if kind.is_query() => None,
            name => {
                let text = std::str::from_utf8(name).map_err(|_| PositionError::Run)?;
                Some(text.parse()?)
            }
        };
        Ok(Some(Self {
            kind,
            offset: u64::from_le_bytes(offset),
            run,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(kind: Kind, offset: u64, run: &str) -> Position {
        Position {
            kind,
            offset,
            run: run.parse().ok(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for kind in Kind::ALL {
            for offset in [0, 1, 0x0102_0304_0506_0708, u64::MAX] {
                for run in ["a", "flight-7.b_2", &"x".repeat(MAX_RUN_BYTES)] {
                    let written = position(kind, offset, run);
                    assert_eq!(Position::read(&written.encode()), Ok(Some(written)));
                }
            }
        }
        let any_run = position(Kind::Want, 7, "");
        assert_eq!(any_run.run, None);
        assert_eq!(Position::read(&any_run.encode()), Ok(Some(any_run)));
    }

    #[test]
    fn attachments_of_others_are_no_positions() {
        for bytes in [
            &b""[..],
            b"zbm",
            b"ZBMD\x01",
            b"\x0fsequence_number",
            &[0; 33],
        ] {
            assert_eq!(Position::read(bytes), Ok(None), "{bytes:?}");
        }
    }

    #[test]
    fn truncated_and_overlong_ones_are_refused_at_every_length() {
        let whole = position(Kind::Data, 96, "run").encode();
        for length in MAGIC.len()..whole.len() {
            let result = Position::read(&whole[..length]);
            assert!(
                matches!(result, Err(PositionError::Length { found, needed }) if found == length && needed > length),
                "{length}: {result:?}"
            );
        }
        for more in [1, 100, 100_000] {
            let mut overlong = whole.clone();
            overlong.resize(whole.len() + more, b'n');
            let expect = PositionError::Length {
                found: whole.len() + more,
                needed: whole.len(),
            };
            assert_eq!(Position::read(&overlong), Err(expect));
        }
    }

    #[test]
    fn absurd_values_are_refused() {
        let whole = position(Kind::Data, 96, "run").encode();
        // The byte that is changed, and what it becomes.
        for (place, byte, expect) in [
            (4, 0, PositionError::Version { found: 0 }),
            (4, 255, PositionError::Version { found: 255 }),
            (5, 5, PositionError::Kind { found: 5 }),
            (5, 255, PositionError::Kind { found: 255 }),
            (
                14,
                0,
                PositionError::Length {
                    found: 18,
                    needed: 15,
                },
            ),
            (
                14,
                255,
                PositionError::Length {
                    found: 18,
                    needed: 270,
                },
            ),
            (15, b' ', PositionError::Run),
            (16, 0xff, PositionError::Run),
            (17, 0, PositionError::Run),
        ] {
            let mut bytes = whole.clone();
            bytes[place] = byte;
            assert_eq!(Position::read(&bytes), Err(expect), "byte {place}");
        }

        let nameless = position(Kind::Data, 96, "").encode();
        assert_eq!(Position::read(&nameless), Err(PositionError::Run));
        let mut long_name = position(Kind::Data, 96, &"x".repeat(MAX_RUN_BYTES)).encode();
        long_name[14] += 1;
        long_name.push(b'x');
        assert_eq!(Position::read(&long_name), Err(PositionError::Run));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        // A linear congruential generator: the same bytes in every run.
        let mut state = 1_u64;
        let mut next_byte = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        let mut accepted = 0;
        for _ in 0..200_000 {
            let length = usize::from(next_byte() % 40);
            let mut bytes: Vec<u8> = MAGIC.to_vec();
            bytes.extend([VERSION, next_byte() % 6]);
            bytes.extend((0..length).map(|_| next_byte() & 0x7f));
            if let Ok(Some(position)) = Position::read(&bytes) {
                assert_eq!(position.encode(), bytes);
                accepted += 1;
            }
        }
        assert!(
            accepted > 0,
            "no attachment was accepted: the test tests nothing"
        );
    }
}
