//! The header that states and checkpoints begin with: what a file is, of which version, and that it is whole.
//!
//! Little-endian: four bytes of magic, version (u32), fields of the format (u64 each), length of the body (u64), checksum
//! (u64) of all bytes but itself, then the body.

use xxhash_rust::xxh3::Xxh3Default;

/// One format of files with such a header.
#[derive(Clone, Copy, Debug)]
pub struct FileHeader {
    /// First bytes of every file.
    pub magic: [u8; 4],
    /// The one version that is written and read.
    pub version: u32,
    /// 64-bit fields between the version and the length.
    pub field_count: usize,
}

/// Why a file does not begin with a header, or is not the file that its header says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub enum HeaderError {
    /// It is something else.
    Magic { found: [u8; 4] },
    /// Made by another version.
    Version { found: u32 },
    /// Too short or too long.
    Length { expected: u64, found: u64 },
    /// Bytes were changed.
    Checksum { found: u64, expected: u64 },
}

/// A file whose header is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedFile<'a> {
    /// The format's own fields.
    pub fields: Vec<u64>,
    /// What follows the header.
    pub body: &'a [u8],
}

impl FileHeader {
    /// Length of the header.
    pub const fn bytes(self) -> usize {
        self.checksum_offset() + 8
    }

    const fn length_offset(self) -> usize {
        8 + 8 * self.field_count
    }

    /// Where the checksum is, which covers what is before it and all that follows it.
    const fn checksum_offset(self) -> usize {
        self.length_offset() + 8
    }

    /// A file with this body.
    ///
    /// # Panics
    /// If there are not [`Self::field_count`] fields.
    pub fn seal(self, fields: &[u64], body: &[u8]) -> Vec<u8> {
        assert_eq!(fields.len(), self.field_count, "each field has its place");
        let mut bytes = Vec::with_capacity(self.bytes() + body.len());
        bytes.extend_from_slice(&self.magic);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());

        let checksum = checksum_of(&bytes, body);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    /// Checks the header of a file.
    ///
    /// # Errors
    /// See [`HeaderError`].
    pub fn open(self, bytes: &[u8]) -> Result<CheckedFile<'_>, HeaderError> {
        let file_bytes = bytes.len() as u64;
        let (head, body) = bytes
            .split_at_checked(self.bytes())
            .ok_or(HeaderError::Length {
                expected: self.bytes() as u64,
                found: file_bytes,
            })?;
        if !head.starts_with(&self.magic) {
            return Err(HeaderError::Magic {
                found: [head[0], head[1], head[2], head[3]],
            });
        }

        // Version before everything else: other versions may have other headers.
        let version = (word_at(head, 0) >> 32) as u32;
        if version != self.version {
            return Err(HeaderError::Version { found: version });
        }

        let body_bytes = word_at(head, self.length_offset());
        if body_bytes != body.len() as u64 {
            return Err(HeaderError::Length {
                expected: body_bytes.saturating_add(self.bytes() as u64),
                found: file_bytes,
            });
        }

        let checksum = checksum_of(&head[..self.checksum_offset()], body);
        let stored_checksum = word_at(head, self.checksum_offset());
        if checksum != stored_checksum {
            return Err(HeaderError::Checksum {
                found: checksum,
                expected: stored_checksum,
            });
        }

        let field_offsets = (0..self.field_count).map(|index| 8 + 8 * index);
        Ok(CheckedFile {
            fields: field_offsets.map(|offset| word_at(head, offset)).collect(),
            body,
        })
    }
}

fn checksum_of(head: &[u8], body: &[u8]) -> u64 {
    let mut hasher = Xxh3Default::new();
    hasher.update(head);
    hasher.update(body);
    hasher.digest()
}

/// The 64-bit number at a place of the header, least significant byte first.
fn word_at(head: &[u8], offset: usize) -> u64 {
    let bytes = head[offset..offset + 8].iter().rev();
    bytes.fold(0, |word, &byte| (word << 8) | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: FileHeader = FileHeader {
        magic: *b"TEST",
        version: 3,
        field_count: 2,
    };

    #[test]
    fn a_sealed_file_opens_and_any_other_is_refused_with_its_reason() {
        let file = HEADER.seal(&[7, u64::MAX], b"body");
        assert_eq!(
            HEADER.open(&file),
            Ok(CheckedFile {
                fields: vec![7, u64::MAX],
                body: b"body"
            })
        );
        assert_eq!(file.len(), HEADER.bytes() + 4);

        let version_4 = FileHeader {
            version: 4,
            ..HEADER
        };
        let found_version = version_4.open(&file);
        assert_eq!(found_version, Err(HeaderError::Version { found: 3 }));
        let other_magic = FileHeader {
            magic: *b"TEXT",
            ..HEADER
        };
        let found_magic = other_magic.open(&file);
        assert_eq!(found_magic, Err(HeaderError::Magic { found: *b"TEST" }));

        for length in 0..file.len() {
            let refusal = HEADER.open(&file[..length]).expect_err("cut off");
            assert!(matches!(refusal, HeaderError::Length { .. }), "{refusal:?}");
        }
        for bit in 0..8 * file.len() {
            let mut changed = file.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            HEADER.open(&changed).expect_err("a bit changed");
        }
    }
}
