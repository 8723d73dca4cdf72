//! Records of a recording: what is written one after another into its segments. Must not know files.
//!
//! Little-endian: length of the payload (u32), kind (u32), checksum of the payload (u64, XXH3 with length and kind as its
//! seed), then the payload. Tokens and states have a head of their own and then their bytes as they are; all else is in
//! postcard.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;
use zbmd_ir::ParameterChange;
use zbmd_live::Gap;

/// Bytes before a payload.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a payload of tokens before the tokens: the source and the index of the first.
pub const TOKENS_HEAD_BYTES: usize = 16;
/// A payload that is read into memory before it is known what it is: all but tokens and states.
pub const MAX_SMALL_BYTES: u32 = 16 << 20;

/// Records of a recording, at most: what a reader knows of each takes memory.
pub const MAX_RECORDS: u64 = 1 << 24;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first record of a segment: [`SegmentStart`].
    Start = 1,
    /// Tokens of a source: [`TokensHead`], then their bytes.
    Tokens = 2,
    /// [`NumberedChange`], of live parameters.
    Change = 3,
    /// A state at a border: [`StatePlace`] and the values that wait for other modes ([`zbmd_ir::PresentMode::waiting`]), each
    /// with its length before it (u32), and the state as [`zbmd_ir::state`] has it.
    State = 4,
    /// [`Mark`].
    Mark = 5,
    /// [`SourceGap`].
    Gap = 6,
    /// [`RunEnd`], the last record of a run that came to its end.
    End = 7,
    /// [`NumberedMode`].
    Mode = 8,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Start,
        Kind::Tokens,
        Kind::Change,
        Kind::State,
        Kind::Mark,
        Kind::Gap,
        Kind::End,
        Kind::Mode,
    ];

    fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == number)
    }
}

/// How far the recording was when a segment was begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentStart {
    /// The run that is recorded.
    pub run_id: u64,
    /// The number of the segment, which its name has too.
    pub segment: u64,
    /// For each source, the index of the next token: counted from the start of the run, as a state counts.
    pub tokens: Vec<u64>,
    /// The number of the next change, of parameters or of modes.
    pub changes: u64,
}

/// What stands before tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokensHead {
    /// The source, by its place among the sources.
    pub source: u32,
    /// Index of the first token.
    pub first: u64,
}

impl TokensHead {
    /// As bytes.
    pub fn encode(self) -> [u8; TOKENS_HEAD_BYTES] {
        let mut bytes = [0; TOKENS_HEAD_BYTES];
        bytes[..4].copy_from_slice(&self.source.to_le_bytes());
        bytes[8..].copy_from_slice(&self.first.to_le_bytes());
        bytes
    }

    /// From bytes.
    pub fn decode(bytes: &[u8; TOKENS_HEAD_BYTES]) -> Self {
        let words = bytes.as_chunks::<8>().0;
        Self {
            source: u64::from_le_bytes(words[0]) as u32,
            first: u64::from_le_bytes(words[1]),
        }
    }
}

/// A change of live parameters, and which one of the session it is: changes of modes are numbered with them. Parameters and
/// sources are those of the mode that the run was in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberedChange {
    /// From 0.
    pub number: u64,
    /// Values and the position from which they hold.
    pub change: ParameterChange,
}

/// The run went over to another mode, and which change of the session that is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumberedMode {
    /// From 0, together with changes of live parameters.
    pub number: u64,
    /// The first iteration in it.
    pub iteration: u64,
    /// Its place among the modes of the bundle.
    pub mode: u32,
}

/// A change that entered a run.
#[derive(Clone, Debug, PartialEq)]
pub enum NumberedInput {
    /// Of live parameters.
    Parameters(NumberedChange),
    /// Of the mode.
    Mode(NumberedMode),
}

impl NumberedInput {
    /// Which one of the session it is.
    pub fn number(&self) -> u64 {
        match self {
            Self::Parameters(change) => change.number,
            Self::Mode(change) => change.number,
        }
    }
}

/// Where a state is, so that a state that is not wanted need not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePlace {
    /// Changes with lower numbers are in the state.
    pub changes_made: u64,
    /// The mode that it is of, by its place among those of the bundle.
    pub mode: u32,
    /// Iterations of the run.
    pub iterations: u64,
    /// Tokens that each source had consumed.
    pub consumed: Vec<u64>,
}

/// All that was before is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// All changes, of parameters and of modes, that take effect before this iteration of the run are recorded before the
    /// mark.
    pub decided_iterations: u64,
    /// When, in nanoseconds since 1970.
    pub unix_ns: u64,
}

/// Tokens of a source that were filled because they did not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceGap {
    /// The source, by its place among the sources.
    pub source: u32,
    /// Which tokens, counted from the start of the run, and why.
    pub gap: Gap,
}

/// How the run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// Iterations of the run.
    pub iterations: u64,
    /// The last of them may have been filled up with zeros.
    pub pads: bool,
}

/// What stands before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the payload.
    pub length: u32,
    /// What it is.
    pub kind: Kind,
    /// Of the payload.
    pub checksum: u64,
}

impl RecordHeader {
    /// The header of a payload that is made of these parts; `None` if it is too long.
    pub fn of(kind: Kind, parts: &[&[u8]]) -> Option<Self> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut header = Self {
            length: length.try_into().ok()?,
            kind,
            checksum: 0,
        };
        header.checksum = header.checksum_of(parts);
        Some(header)
    }

    /// As bytes.
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.kind as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// From bytes; `None` for a kind that does not exist.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let words = bytes.as_chunks::<4>().0;
        Some(Self {
            length: u32::from_le_bytes(words[0]),
            kind: Kind::from_number(u32::from_le_bytes(words[1]))?,
            checksum: u64::from_le_bytes(bytes.as_chunks::<8>().0[1]),
        })
    }

    /// Whether a payload is the one that the header was made for.
    pub fn is_of(self, parts: &[&[u8]]) -> bool {
        self.checksum_of(parts) == self.checksum
    }

    fn checksum_of(self, parts: &[&[u8]]) -> u64 {
        let seed = u64::from(self.length) << 32 | self.kind as u64;
        let mut hasher = Xxh3::with_seed(seed);
        for part in parts {
            hasher.update(part);
        }
        hasher.digest()
    }
}

/// A small payload as bytes.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("every sequence has a length")
}

/// A small payload from all of its bytes.
///
/// # Errors
/// What is wrong with it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("{} bytes after its data", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}

/// A part of a state's payload, with its length before it.
pub fn encode_part<T: Serialize>(part: &T) -> Vec<u8> {
    let part_bytes = encode(part);
    let length = part_bytes.len() as u32;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(part_bytes);
    bytes
}

/// The part at the beginning of a state's payload, and the rest.
///
/// # Errors
/// What is wrong with it.
pub fn split_part<T: DeserializeOwned>(payload: &[u8]) -> Result<(T, &[u8]), String> {
    let short = || "a state without its place".to_owned();
    let (length, rest) = payload.split_first_chunk::<4>().ok_or_else(short)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (part, rest) = rest.split_at_checked(length).ok_or_else(short)?;
    Ok((decode(part)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_bit_of_a_record_is_seen() {
        let payload = encode(&Mark {
            decided_iterations: 7,
            unix_ns: 1 << 40,
        });
        let header = RecordHeader::of(Kind::Mark, &[&payload]).expect("short");
        let mut record = header.encode().to_vec();
        record.extend(&payload);
        let is_whole = |record: &[u8]| {
            let (head, rest) = record.split_first_chunk().expect("a header");
            RecordHeader::decode(head)
                .is_some_and(|header| header.length as usize == rest.len() && header.is_of(&[rest]))
        };
        assert!(is_whole(&record));
        for bit in 0..8 * record.len() {
            let mut changed = record.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_whole(&changed), "bit {bit}");
        }
    }

    #[test]
    fn heads_are_read_as_they_were_written() {
        let head = TokensHead {
            source: 3,
            first: u64::MAX - 1,
        };
        assert_eq!(TokensHead::decode(&head.encode()), head);
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind as u32), Some(kind));
        }
        assert_eq!(Kind::from_number(0), None);
        assert_eq!(Kind::from_number(9), None);
    }
}
