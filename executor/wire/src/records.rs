//! The records of TLS 1.3 (RFC 8446, section 5) behind the handshake: plaintext is sealed and opened where it lies, in memory that is
//! there from the beginning. rustls, which takes a buffer for each record, does the handshake and derives all keys; here only
//! `ring`'s ciphers are called, and records are put together and taken apart.

use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use rustls::client::ClientConnectionData;
use rustls::crypto::cipher::{self, make_tls13_aad};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, Error, ExtractedSecrets, SupportedCipherSuite,
};

/// Bytes of plaintext in a record, at most.
pub(crate) const RECORD_BYTES: usize = 16 << 10;
/// The longest record that is taken: RFC 8446 lets one grow by 256 bytes, its header has 5.
pub(crate) const MAX_RECORD_BYTES: usize = RECORD_BYTES + 261;
/// What comes before the plaintext of a record.
pub(crate) const HEADER_BYTES: usize = 5;
/// What comes behind it: the type of its content, and the tag.
const KIND_BYTES: usize = 1;
const TAG_BYTES: usize = 16;
/// What a record has besides plaintext.
const OVERHEAD_BYTES: usize = HEADER_BYTES + KIND_BYTES + TAG_BYTES;
/// Room that is kept for what the session itself has to say: an alert and a change of keys.
pub(crate) const RESERVE_BYTES: usize = 128;

/// Types of what is in a record.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
/// Types of messages that may come behind the handshake.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// A change of keys, of which none is asked for in return.
const KEY_UPDATE_MESSAGE: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];
const FATAL: u8 = 2;

/// The key of one direction, and the number of the next record.
struct RecordKey {
    key: LessSafeKey,
    iv: cipher::Iv,
    number: u64,
}

impl RecordKey {
    fn new((number, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(general("a cipher that is not known here")),
        };
        let key = UnboundKey::new(algorithm, key.as_ref());
        Ok(Self {
            key: LessSafeKey::new(key.map_err(|_| general("a key of another length"))?),
            iv,
            number,
        })
    }

    /// What makes the next record's encryption unlike all others.
    fn next_nonce(&mut self) -> Nonce {
        let nonce = cipher::Nonce::new(&self.iv, self.number);
        self.number += 1;
        Nonce::assume_unique_for_key(nonce.0)
    }

    /// Makes a record of this kind of `bytes` bytes of plaintext, which lie in `record` behind the room for a header; its length.
    fn seal(&mut self, kind: u8, record: &mut [u8], bytes: usize) -> Result<usize, Error> {
        let tag_start = HEADER_BYTES + bytes + KIND_BYTES;
        let whole = tag_start + TAG_BYTES;
        let header = make_tls13_aad(whole - HEADER_BYTES);
        record[..HEADER_BYTES].copy_from_slice(&header);
        record[tag_start - KIND_BYTES] = kind;

        let nonce = self.next_nonce();
        let content = &mut record[HEADER_BYTES..tag_start];
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(header), content);
        let tag = sealed.map_err(|_| Error::EncryptError)?;
        record[tag_start..whole].copy_from_slice(tag.as_ref());
        Ok(whole)
    }

    /// Opens a whole record where it lies: the kind of its content, which begins behind the header, and the content's bytes.
    fn open(&mut self, record: &mut [u8]) -> Result<(u8, usize), Error> {
        let nonce = self.next_nonce();
        let (header, sealed) = record.split_at_mut(HEADER_BYTES);
        let opened = self.key.open_in_place(nonce, Aad::from(header), sealed);
        let content = opened.map_err(|_| Error::DecryptError)?;

        // The kind is the last byte that is not one of the zeros which may follow.
        let last = content.iter().rposition(|byte| *byte != 0);
        let last = last.ok_or_else(|| general("a record without a type"))?;
        match last <= RECORD_BYTES {
            true => Ok((content[last], last)),
            false => Err(Error::PeerSentOversizedRecord),
        }
    }
}

/// Where new keys come from.
pub(crate) enum KeySource {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl KeySource {
    fn suite(&self) -> SupportedCipherSuite {
        match self {
            Self::Client(connection) => connection.negotiated_cipher_suite(),
            Self::Server(connection) => connection.negotiated_cipher_suite(),
        }
    }

    fn next_sealing_key(&mut self) -> Result<RecordKey, Error> {
        RecordKey::new(match self {
            Self::Client(connection) => connection.update_tx_secret()?,
            Self::Server(connection) => connection.update_tx_secret()?,
        })
    }

    fn next_opening_key(&mut self) -> Result<RecordKey, Error> {
        RecordKey::new(match self {
            Self::Client(connection) => connection.update_rx_secret()?,
            Self::Server(connection) => connection.update_rx_secret()?,
        })
    }
}

/// What the first of some bytes are.
pub(crate) enum Found {
    /// The beginning of a record; more bytes must come.
    Part,
    /// A record of so many bytes, now opened; its plaintext has so many behind the header.
    Plaintext { record: usize, bytes: usize },
    /// A record of so many bytes, for the session itself.
    Message { record: usize },
    /// The other side has said that it sends nothing more.
    Closed,
}

/// Seals and opens the records of one connection.
pub(crate) struct Records {
    sealing: RecordKey,
    opening: RecordKey,
    keys: KeySource,
    /// A key seals so many records at most.
    most_records: u64,
    /// The other side has asked for a change of keys, which comes before the next plaintext.
    owes_key_update: bool,
}

impl Records {
    /// Goes on where the handshake has ended.
    ///
    /// # Errors
    /// Another version than TLS 1.3, or a cipher that is not known here.
    pub(crate) fn new(secrets: ExtractedSecrets, keys: KeySource) -> Result<Self, Error> {
        let SupportedCipherSuite::Tls13(suite) = keys.suite() else {
            return Err(general("an earlier version than TLS 1.3"));
        };
        Ok(Self {
            sealing: RecordKey::new(secrets.tx)?,
            opening: RecordKey::new(secrets.rx)?,
            most_records: suite.common.confidentiality_limit,
            keys,
            owes_key_update: false,
        })
    }

    /// How much plaintext there is room for where a record is put, beside what is kept for the session.
    pub(crate) fn plaintext_room(room: usize) -> usize {
        room.saturating_sub(OVERHEAD_BYTES + RESERVE_BYTES)
    }

    /// Makes a record of `bytes` bytes of plaintext, which lie in `room` behind the place of its header; its length. There must be
    /// [`Self::plaintext_room`] for them, and [`Self::change_keys_if_due`] comes before they are put there.
    ///
    /// # Errors
    /// The cipher fails, which none does at these lengths.
    pub(crate) fn seal(&mut self, room: &mut [u8], bytes: usize) -> Result<usize, Error> {
        self.sealing.seal(APPLICATION_DATA, room, bytes)
    }

    /// Says that the key changes and changes it, if the other side has asked for that or the key has sealed as much as it may; the
    /// bytes of the record that says so.
    ///
    /// # Errors
    /// The cipher fails, or no key follows.
    pub(crate) fn change_keys_if_due(&mut self, room: &mut [u8]) -> Result<usize, Error> {
        let is_worn = self.sealing.number + 1 >= self.most_records;
        if !is_worn && !self.owes_key_update {
            return Ok(0);
        }
        let bytes = self.seal_message(HANDSHAKE, &KEY_UPDATE_MESSAGE, room)?;
        self.sealing = self.keys.next_sealing_key()?;
        self.owes_key_update = false;
        Ok(bytes)
    }

    /// Tells the other side what it has done wrong; the bytes of the record that says so.
    ///
    /// # Errors
    /// The cipher fails.
    pub(crate) fn seal_alert(&mut self, error: &Error, room: &mut [u8]) -> Result<usize, Error> {
        let alert = match error {
            // It knows, or is gone.
            Error::AlertReceived(_) => return Ok(0),
            Error::DecryptError => AlertDescription::BadRecordMac,
            Error::PeerSentOversizedRecord => AlertDescription::RecordOverflow,
            _ => AlertDescription::UnexpectedMessage,
        };
        self.seal_message(ALERT, &[FATAL, alert.into()], room)
    }

    pub(crate) fn seal_message(
        &mut self,
        kind: u8,
        message: &[u8],
        room: &mut [u8],
    ) -> Result<usize, Error> {
        if room.len() < message.len() + OVERHEAD_BYTES {
            return Ok(0);
        }
        room[HEADER_BYTES..HEADER_BYTES + message.len()].copy_from_slice(message);
        self.sealing.seal(kind, room, message.len())
    }

    /// Opens the first record of what has come, if it is there as a whole.
    ///
    /// # Errors
    /// A record that the other side has not made so, or must not send now, or an alert.
    pub(crate) fn open_first(&mut self, bytes: &mut [u8]) -> Result<Found, Error> {
        let &mut [kind, _, _, high, low, ..] = bytes else {
            return Ok(Found::Part);
        };
        // Nothing comes in the clear any more.
        if kind != APPLICATION_DATA {
            return Err(general("a record that is not encrypted"));
        }
        let record = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
        if record > MAX_RECORD_BYTES {
            return Err(Error::PeerSentOversizedRecord);
        }
        let Some(whole) = bytes.get_mut(..record) else {
            return Ok(Found::Part);
        };

        let (kind, content_bytes) = self.opening.open(whole)?;
        let content = &whole[HEADER_BYTES..HEADER_BYTES + content_bytes];
        match kind {
            APPLICATION_DATA => Ok(Found::Plaintext {
                record,
                bytes: content_bytes,
            }),
            ALERT => match *content {
                [_, alert] if AlertDescription::from(alert) == AlertDescription::CloseNotify => {
                    Ok(Found::Closed)
                }
                [_, alert] => Err(Error::AlertReceived(alert.into())),
                _ => Err(general("an alert of another length")),
            },
            HANDSHAKE => self
                .take_messages(content)
                .map(|()| Found::Message { record }),
            _ => Err(general("a record of a type that is not known")),
        }
    }

    /// Takes in what the other side says of the session: that its key changes, or tickets for later sessions, of which there are none.
    fn take_messages(&mut self, mut messages: &[u8]) -> Result<(), Error> {
        loop {
            let is_cut = || general("a message in several records");
            let (&[kind, a, b, c], rest) = messages.split_first_chunk().ok_or_else(is_cut)?;
            let bytes = u32::from_be_bytes([0, a, b, c]) as usize;
            let (body, behind) = rest.split_at_checked(bytes).ok_or_else(is_cut)?;
            match (kind, body) {
                // The next record has the new key, so nothing follows in this one.
                (KEY_UPDATE, &[wanted @ (0 | 1)]) if behind.is_empty() => {
                    self.opening = self.keys.next_opening_key()?;
                    self.owes_key_update |= wanted == 1;
                }
                (NEW_SESSION_TICKET, _) if matches!(self.keys, KeySource::Client(_)) => {}
                _ => return Err(general("a message that does not belong here")),
            }
            if behind.is_empty() {
                return Ok(());
            }
            messages = behind;
        }
    }

    /// As if keys could seal so few records.
    #[cfg(test)]
    pub(crate) fn wear_out_after(&mut self, records: u64) {
        self.most_records = records;
    }
}

fn general(what: &str) -> Error {
    Error::General(format!("TLS: {what}"))
}
