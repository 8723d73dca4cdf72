//! Heartbeats: datagrams that say that a host is there. TCP would not do: after a loss it is silent for 200 ms and more.
//!
//! | bytes | what |
//! |---|---|
//! | 0-7 | `ZBMDB\0\0\1` |
//! | 8-23 | session: a random number of the connection between conductor and agent |
//! | 24 | from: 1 conductor, 2 agent |
//! | 25-31 | 0 |
//! | 32-39 | sequence number: each is higher than the last |
//! | 40-71 | code: HMAC-SHA-256 over bytes 0-39 with the token |
//!
//! All numbers are little-endian. Nobody without the token can make one; one that was recorded has a sequence number that has
//! been heard already, or belongs to another session. So strangers can neither keep a host that is gone alive nor, short of
//! cutting the network, make one look gone.

use crate::token::{CODE_BYTES, Token};

const MAGIC: [u8; 8] = *b"ZBMDB\0\0\x01";
/// Bytes that the code is over.
const SIGNED_BYTES: usize = 40;
/// Bytes of a datagram.
pub const BEAT_BYTES: usize = SIGNED_BYTES + CODE_BYTES;
/// What codes of heartbeats begin with, so that none is taken for that of a handshake.
const BEAT_LABEL: &[u8] = b"zbmd heartbeat";

/// Who sends a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BeatSender {
    /// The conductor, to an agent.
    Conductor = 1,
    /// An agent, to the conductor.
    Agent = 2,
}

impl BeatSender {
    /// Who is at the other end.
    pub fn other(self) -> Self {
        match self {
            Self::Conductor => Self::Agent,
            Self::Agent => Self::Conductor,
        }
    }
}

/// A heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Of which connection.
    pub session: u128,
    /// From whom.
    pub sender: BeatSender,
    /// Higher than that of the one before.
    pub sequence: u64,
}

impl Beat {
    /// The datagram.
    pub fn encode(&self, token: &Token) -> [u8; BEAT_BYTES] {
        let mut bytes = [0; BEAT_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.session.to_le_bytes());
        bytes[24] = self.sender as u8;
        bytes[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        let code = token.code(&[BEAT_LABEL, &bytes[..SIGNED_BYTES]]);
        bytes[SIGNED_BYTES..].copy_from_slice(&code);
        bytes
    }

    /// What a datagram says; `None` if it is no heartbeat, or its sender does not know the token.
    pub fn decode(datagram: &[u8], token: &Token) -> Option<Self> {
        if datagram.len() != BEAT_BYTES || datagram[..8] != MAGIC || datagram[25..32] != [0; 7] {
            return None;
        }
        let (signed, code) = datagram.split_at(SIGNED_BYTES);
        if !token.is_code(&[BEAT_LABEL, signed], code) {
            return None;
        }
        let sender = match signed[24] {
            1 => BeatSender::Conductor,
            2 => BeatSender::Agent,
            _ => return None,
        };
        Some(Self {
            session: u128::from_le_bytes(std::array::from_fn(|i| signed[8 + i])),
            sender,
            sequence: u64::from_le_bytes(std::array::from_fn(|i| signed[32 + i])),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_heartbeats_of_our_token_are_taken() {
        let token = Token::of(b"one secret of ours");
        let beat = Beat {
            session: 1 << 90,
            sender: BeatSender::Agent,
            sequence: 7,
        };
        let datagram = beat.encode(&token);
        assert_eq!(Beat::decode(&datagram, &token), Some(beat));
        assert_eq!(
            Beat::decode(&datagram, &Token::of(b"another secret....")),
            None
        );
        for length in [0, 8, SIGNED_BYTES, BEAT_BYTES - 1] {
            assert_eq!(Beat::decode(&datagram[..length], &token), None);
        }
        for changed in 0..BEAT_BYTES {
            let mut changed_datagram = datagram;
            changed_datagram[changed] ^= 1;
            assert_eq!(Beat::decode(&changed_datagram, &token), None, "{changed}");
        }
    }
}
