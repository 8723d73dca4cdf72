//! Bursts: tokens of a fixed size of which only a part is used.
//!
//! A static calendar has tokens of fixed sizes and fixed rates. What varies within them, such as the frames that a
//! receiver finds, is a *burst*: a token with room for `max` items, that says how many it has, from none to `max`, and
//! at which sample of the stream they begin. Plans account for the maximum; kernels and sinks see the items there are.
//!
//! # In memory
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | index of the first item's sample, i64 |
//! | 8..12 | number of items, u32 |
//! | 12..16 | zero |
//! | 16.. | the items, then zeros up to the maximum, and to a multiple of 8 bytes |
//!
//! Numbers are in the machine's byte order, as all tokens are. Zeros behind the items make equal bursts equal bytes,
//! whoever wrote them, so that outputs can be compared and a replay is exact to the bit. A token of zeros is an empty
//! burst, which is also what a channel's initial tokens are.

use std::borrow::Cow;
use std::ops::Range;

use crate::{DType, TokenType};

/// Bytes before the first item.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the header that are zero.
const RESERVED: Range<usize> = 12..HEADER_BYTES;
/// What the bytes of a burst are a multiple of, so that headers and items of any dtype are aligned in a row of them.
const ALIGN_BYTES: u64 = 8;

/// A burst has more items than its type allows. Bytes that a stranger gave may say so, those of a kernel never do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a burst of {length} items, more than the maximum of {max}")]
pub struct TooLong {
    /// Items that its header says.
    pub length: u32,
    /// Items that its type allows.
    pub max: u32,
}

/// What the header of a burst says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BurstHeader {
    /// Index of the first item's sample. Relative to the writer's firing until an actor such as `BurstIndex` adds where
    /// that was: kernels do not know which firing they are called for.
    pub first: i64,
    /// Number of items.
    pub length: u32,
}

/// Where the items of a burst's token lie. Made once for a port, from its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstLayout {
    /// Element type of the items.
    pub dtype: DType,
    /// Largest number of items.
    pub max: u32,
    /// Elements of an item.
    pub item_elements: usize,
    /// Bytes of a whole token.
    pub token_bytes: usize,
}

/// A burst that is read: its first sample's index, and the bytes of the items there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst<'a> {
    /// See [`BurstHeader::first`].
    pub first: i64,
    /// Number of items.
    pub length: u32,
    /// Their bytes.
    pub items: &'a [u8],
}

/// Bytes of a token whose items have so many bytes at most. Saturates.
pub(crate) fn token_bytes(item_bytes: u64) -> u64 {
    item_bytes
        .saturating_add(HEADER_BYTES as u64)
        .checked_next_multiple_of(ALIGN_BYTES)
        .unwrap_or(u64::MAX)
}

impl BurstHeader {
    /// The header of a token.
    ///
    /// # Panics
    /// On fewer than [`HEADER_BYTES`] bytes.
    pub fn read(token: &[u8]) -> Self {
        let header = &token[..HEADER_BYTES];
        let (first, rest) = header.split_first_chunk().expect("16 bytes");
        let (length, _) = rest.split_first_chunk().expect("8 bytes");
        Self {
            first: i64::from_ne_bytes(*first),
            length: u32::from_ne_bytes(*length),
        }
    }

    /// The bytes of the header.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.first.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_ne_bytes());
        bytes
    }
}

impl BurstLayout {
    /// The layout of a type's tokens; `None` if they are not bursts.
    pub fn of(token: &TokenType) -> Option<Self> {
        let max = *token.shape.first().filter(|_| token.burst)?;
        Some(Self {
            dtype: token.dtype,
            max,
            item_elements: token.shape[1..].iter().map(|&d| d as usize).product(),
            token_bytes: token.bytes() as usize,
        })
    }

    /// Bytes of one item.
    pub fn item_bytes(&self) -> usize {
        self.item_elements * self.dtype.size_bytes() as usize
    }

    /// The burst in a token's bytes.
    ///
    /// # Errors
    /// A length above the maximum.
    ///
    /// # Panics
    /// If `token` is shorter than a token.
    pub fn read<'a>(&self, token: &'a [u8]) -> Result<Burst<'a>, TooLong> {
        let BurstHeader { first, length } = BurstHeader::read(token);
        if length > self.max {
            let max = self.max;
            return Err(TooLong { length, max });
        }
        let items_end = HEADER_BYTES + length as usize * self.item_bytes();
        Ok(Burst {
            first,
            length,
            items: &token[HEADER_BYTES..items_end],
        })
    }

    /// The bursts in the bytes of whole tokens.
    pub fn read_all<'a>(
        &self,
        tokens: &'a [u8],
    ) -> impl Iterator<Item = Result<Burst<'a>, TooLong>> + use<'a> {
        let layout = *self;
        tokens
            .chunks_exact(layout.token_bytes)
            .map(move |token| layout.read(token))
    }

    /// The same bursts with zeros in every byte that is not used: what a stranger gave may have anything there.
    ///
    /// # Errors
    /// Which burst is too long, from 0.
    pub fn with_zeros<'a>(&self, tokens: &'a [u8]) -> Result<Cow<'a, [u8]>, (usize, TooLong)> {
        let mut with_zeros = Cow::Borrowed(tokens);
        for (index, token) in tokens.chunks_exact(self.token_bytes).enumerate() {
            let burst = self.read(token).map_err(|error| (index, error))?;
            let reserved = &token[RESERVED];
            let unused = &token[HEADER_BYTES + burst.items.len()..];
            if reserved.iter().chain(unused).any(|&byte| byte != 0) {
                let start = index * self.token_bytes;
                let own_token = &mut with_zeros.to_mut()[start..start + self.token_bytes];
                self.write(burst.first, burst.items, own_token);
            }
        }
        Ok(with_zeros)
    }

    /// Writes a burst into a token's bytes, all of them.
    ///
    /// # Panics
    /// If `items` are not whole items or more than the maximum, or `token` has another length than a token.
    pub fn write(&self, first: i64, items: &[u8], token: &mut [u8]) {
        assert_eq!(token.len(), self.token_bytes, "the bytes of one token");
        assert!(
            items.len().is_multiple_of(self.item_bytes()),
            "{} bytes are not whole items of {} bytes",
            items.len(),
            self.item_bytes()
        );
        let length = items.len() / self.item_bytes();
        assert!(
            length <= self.max as usize,
            "a burst of {length} items, more than the maximum of {}",
            self.max
        );

        let header = BurstHeader {
            first,
            length: length as u32,
        };
        let items_end = HEADER_BYTES + items.len();
        token[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        token[HEADER_BYTES..items_end].copy_from_slice(items);
        token[items_end..].fill(0);
    }

    /// Appends a burst to the bytes of tokens. Panics as [`Self::write`] does.
    pub fn append(&self, first: i64, items: &[u8], tokens: &mut Vec<u8>) {
        let start = tokens.len();
        tokens.resize(start + self.token_bytes, 0);
        self.write(first, items, &mut tokens[start..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_room_for_the_maximum_and_are_multiples_of_8_bytes() {
        for (token, bytes) in [
            (TokenType::burst(DType::U8, [14]), 32),
            (TokenType::burst(DType::U8, [16]), 32),
            (TokenType::burst(DType::U8, [17]), 40),
            (TokenType::burst(DType::F32, [3, 2]), 40),
            (TokenType::burst(DType::C32, [1]), 24),
        ] {
            assert_eq!(token.bytes(), bytes, "{token}");
        }
        assert_eq!(
            TokenType::burst(DType::F32, [3, 2]).to_string(),
            "burst f32[3,2]"
        );
        let absurd = TokenType::burst(DType::F64, [u32::MAX; 3]);
        assert_eq!(absurd.bytes(), u64::MAX);
    }

    #[test]
    fn what_is_written_is_read_and_the_rest_is_zero() {
        let layout = BurstLayout::of(&TokenType::burst(DType::I16, [3, 2])).expect("a burst");
        assert_eq!(layout.item_bytes(), 4);

        for length in 0..=3 {
            let items: Vec<u8> = (1..=length * 4).collect();
            let mut token = vec![0xff; layout.token_bytes];
            layout.write(-7, &items, &mut token);
            let burst = layout.read(&token).expect("within the maximum");
            assert_eq!(burst.first, -7);
            assert_eq!(burst.length, u32::from(length));
            assert_eq!(burst.items, items);
            assert!(token[HEADER_BYTES + items.len()..].iter().all(|&b| b == 0));
        }
        assert_eq!(BurstLayout::of(&TokenType::scalar(DType::F32)), None);
    }

    #[test]
    fn bytes_that_are_not_used_become_zero() {
        let layout = BurstLayout::of(&TokenType::burst(DType::U8, [4])).expect("a burst");
        let mut clean = Vec::new();
        layout.append(5, &[1, 2, 3, 4], &mut clean);
        layout.append(6, &[1], &mut clean);
        layout.append(7, &[], &mut clean);
        assert!(matches!(layout.with_zeros(&clean), Ok(Cow::Borrowed(_))));

        let token_bytes = layout.token_bytes;
        for place in [
            12,
            token_bytes - 1,
            token_bytes + HEADER_BYTES + 1,
            3 * token_bytes - 1,
        ] {
            let mut given = clean.clone();
            given[place] = 9;
            assert_eq!(layout.with_zeros(&given), Ok(Cow::Owned(clean.clone())));
        }

        let mut given = clean.clone();
        given[2 * token_bytes + 8] = 5;
        let too_long = TooLong { length: 5, max: 4 };
        assert_eq!(layout.with_zeros(&given), Err((2, too_long)));
    }

    #[test]
    fn a_length_above_the_maximum_is_refused() {
        let layout = BurstLayout::of(&TokenType::burst(DType::U8, [2])).expect("a burst");
        let header = BurstHeader {
            first: 0,
            length: 3,
        };
        let mut token = vec![0; layout.token_bytes];
        token[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        let too_long = TooLong { length: 3, max: 2 };
        assert_eq!(layout.read(&token), Err(too_long));
        assert_eq!(
            too_long.to_string(),
            "a burst of 3 items, more than the maximum of 2"
        );
    }
}
