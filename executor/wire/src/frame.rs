//! Frames: a header of 32 bytes, and for tokens their bytes after it.
//!
//! | bytes | what |
//! |---|---|
//! | 0-7 | epoch |
//! | 8-11 | ring |
//! | 12 | kind: 1 tokens, 2 credit, 3 close |
//! | 13-15 | 0 |
//! | 16-23 | count: tokens published with this frame included, or blocks released |
//! | 24-27 | bytes of the payload |
//! | 28-31 | check: over bytes 0-27, and over the payload where the wire checks payloads |
//!
//! All numbers are little-endian. The check finds accidents, not attacks.

use xxhash_rust::xxh3::xxh3_64;

use crate::error::FrameError;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 32;
/// Bytes that a check is over.
const CHECKED_BYTES: usize = 28;
/// Longest payload.
pub const MAX_PAYLOAD_BYTES: u32 = 1 << 30;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Tokens of a block, from the sender.
    Tokens = 1,
    /// Blocks that were released, from the receiver.
    Credit = 2,
    /// The sender has sent all that it ever will.
    Close = 3,
}

impl FrameKind {
    /// As errors call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Credit => "credit",
            Self::Close => "close",
        }
    }
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Of the epoch that the frame belongs to.
    pub epoch: u64,
    /// Which ring of the plan.
    pub ring: u32,
    /// What it is.
    pub kind: FrameKind,
    /// Tokens published with this frame included, or blocks released, since the epoch began.
    pub count: u64,
    /// Of the payload.
    pub bytes: u32,
}

impl FrameHeader {
    /// The header's bytes; `payload_sum` is 0 where payloads are not checked.
    pub fn encode(&self, payload_sum: u32) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0..8].copy_from_slice(&self.epoch.to_le_bytes());
        header[8..12].copy_from_slice(&self.ring.to_le_bytes());
        header[12] = self.kind as u8;
        header[16..24].copy_from_slice(&self.count.to_le_bytes());
        header[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        let check = sum_of(&header[..CHECKED_BYTES]) ^ payload_sum;
        header[28..32].copy_from_slice(&check.to_le_bytes());
        header
    }

    /// What the bytes say, and the sum that their payload must have: 0 where payloads are not checked.
    ///
    /// # Errors
    /// A kind that there is not, or a payload that is too long.
    pub fn decode(header: &[u8; HEADER_BYTES]) -> Result<(Self, u32), FrameError> {
        let word = |from: usize| u32::from_le_bytes(std::array::from_fn(|i| header[from + i]));
        let long = |from: usize| u64::from_le_bytes(std::array::from_fn(|i| header[from + i]));
        let kind = match header[12] {
            1 => FrameKind::Tokens,
            2 => FrameKind::Credit,
            3 => FrameKind::Close,
            found => return Err(FrameError::Kind { found }),
        };
        let decoded = Self {
            epoch: long(0),
            ring: word(8),
            kind,
            count: long(16),
            bytes: word(24),
        };
        let most = match kind {
            FrameKind::Tokens => MAX_PAYLOAD_BYTES,
            FrameKind::Credit | FrameKind::Close => 0,
        };
        if decoded.bytes > most {
            return Err(FrameError::Length {
                bytes: decoded.bytes.into(),
                most: most.into(),
            });
        }
        Ok((decoded, word(28) ^ sum_of(&header[..CHECKED_BYTES])))
    }

    /// Compares the sum of a payload that came with the one that was sent.
    ///
    /// # Errors
    /// They differ.
    pub fn check(&self, sent: u32, found: u32) -> Result<(), FrameError> {
        if sent == found {
            return Ok(());
        }
        Err(FrameError::Check {
            ring: self.ring,
            sent,
            found,
        })
    }
}

/// The sum of some bytes.
pub fn sum_of(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: FrameHeader = FrameHeader {
        epoch: 7,
        ring: 3,
        kind: FrameKind::Tokens,
        count: 4096,
        bytes: 64,
    };

    #[test]
    fn headers_come_back_as_they_were() {
        for kind in [FrameKind::Tokens, FrameKind::Credit, FrameKind::Close] {
            let bytes = if kind == FrameKind::Tokens { 64 } else { 0 };
            let header = FrameHeader {
                kind,
                bytes,
                ..HEADER
            };
            assert_eq!(FrameHeader::decode(&header.encode(0)), Ok((header, 0)));
            let with_payload = header.encode(0xdead_beef);
            assert_eq!(
                FrameHeader::decode(&with_payload),
                Ok((header, 0xdead_beef))
            );
        }
    }

    #[test]
    fn a_changed_bit_is_found_or_refused() {
        let header = HEADER.encode(0);
        for bit in 0..8 * HEADER_BYTES {
            let mut changed = header;
            changed[bit / 8] ^= 1 << (bit % 8);
            let found = FrameHeader::decode(&changed);
            let is_refused = found
                .and_then(|(header, sum)| header.check(sum, 0))
                .is_err();
            assert!(is_refused, "bit {bit}");
        }
    }

    #[test]
    fn absurd_lengths_and_kinds_are_refused() {
        let with = |kind, bytes| FrameHeader {
            kind,
            bytes,
            ..HEADER
        };
        let absurd = with(FrameKind::Tokens, u32::MAX).encode(0);
        let length = FrameHeader::decode(&absurd).expect_err("4 GiB");
        assert_eq!(
            length,
            FrameError::Length {
                bytes: u32::MAX.into(),
                most: MAX_PAYLOAD_BYTES.into()
            }
        );
        let credit = with(FrameKind::Credit, 1).encode(0);
        FrameHeader::decode(&credit).expect_err("a credit has no payload");
        let mut unknown = HEADER.encode(0);
        unknown[12] = 9;
        assert_eq!(
            FrameHeader::decode(&unknown),
            Err(FrameError::Kind { found: 9 })
        );
    }
}
