//! A bundle on its way to an agent: in parts, each with a checksum, so that what has come once is not sent again after a cut, and
//! what is not right is known before the rest has come.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// Bytes of a part; the last one may be shorter.
const PART_BYTES: u64 = 1 << 20;
/// Longest bundle.
const MAX_BUNDLE_BYTES: u64 = 16 << 30;

/// The parts of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BundleParts {
    /// Of the whole.
    bytes: u64,
    /// The checksum of each part.
    sums: Vec<u128>,
}

impl BundleParts {
    /// The parts of a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let mut parts = Self {
            bytes: file.metadata()?.len(),
            sums: Vec::new(),
        };
        let mut part = Vec::new();
        for number in 0..parts.bytes.div_ceil(PART_BYTES) {
            part.resize(parts.part_bytes(number), 0);
            file.read_exact_at(&mut part, number * PART_BYTES)?;
            parts.sums.push(xxh3_128(&part));
        }
        Ok(parts)
    }

    pub(super) fn count(&self) -> u64 {
        self.sums.len() as u64
    }

    /// Bytes of a part.
    fn part_bytes(&self, number: u64) -> usize {
        (self.bytes - number * PART_BYTES).min(PART_BYTES) as usize
    }

    /// Whether there can be such a bundle.
    fn check(&self) -> Result<(), String> {
        if self.bytes > MAX_BUNDLE_BYTES {
            return Err(format!(
                "a bundle of {} bytes, {MAX_BUNDLE_BYTES} are the most",
                self.bytes
            ));
        }
        let expected = self.bytes.div_ceil(PART_BYTES);
        if self.count() != expected {
            return Err(format!(
                "a bundle of {} bytes in {} parts, it has {expected}: both hosts must run the same zbmd",
                self.bytes,
                self.count()
            ));
        }
        Ok(())
    }

    /// Sends the parts from one on.
    ///
    /// # Errors
    /// The file cannot be read, or the other side is gone.
    pub(super) fn send(&self, file: &File, first: u64, mut to: impl Write) -> io::Result<()> {
        let mut part = Vec::new();
        for number in first..self.count() {
            part.resize(self.part_bytes(number), 0);
            file.read_exact_at(&mut part, number * PART_BYTES)?;
            to.write_all(&part)?;
        }
        to.flush()
    }
}

/// As much of a bundle as has come, in memory.
pub(super) struct HeldBundle {
    parts: BundleParts,
    file: File,
    /// So many parts from the first one on are there, and are right.
    held: u64,
}

impl HeldBundle {
    /// Of a bundle with these parts, nothing; `before` if that is of the same bundle.
    ///
    /// # Errors
    /// There can be no such bundle, or there is no memory for it.
    pub(super) fn of(parts: BundleParts, before: Option<Self>) -> Result<Self, String> {
        parts.check()?;
        if let Some(before) = before.filter(|before| before.parts == parts) {
            return Ok(before);
        }
        let file = memfd_create("zbmd bundle", MemfdFlags::CLOEXEC);
        let file = file.map_err(|error| format!("no memory for the bundle: {error}"))?;
        Ok(Self {
            parts,
            file: File::from(file),
            held: 0,
        })
    }

    /// The first part that is not there.
    pub(super) fn first_missing(&self) -> u64 {
        self.held
    }

    /// Takes the parts that are missing, in order. What has come before an error is kept.
    ///
    /// # Errors
    /// They end early, one is not right, or there is no room.
    pub(super) fn receive(&mut self, mut from: impl Read) -> Result<(), String> {
        let (bytes, count) = (self.parts.bytes, self.parts.count());
        let mut part = Vec::new();
        while self.held < count {
            let number = self.held;
            part.resize(self.parts.part_bytes(number), 0);
            from.read_exact(&mut part).map_err(|error| {
                format!("the bundle ends after {number} of its {count} parts: {error}")
            })?;

            let (found, sent) = (xxh3_128(&part), self.parts.sums[number as usize]);
            if found != sent {
                return Err(format!(
                    "part {number} of the bundle's {count} has checksum {found:032x}, it was sent with {sent:032x}: the network or a memory changes bytes"
                ));
            }
            let written = self.file.write_all_at(&part, number * PART_BYTES);
            written.map_err(|error| format!("no room for the bundle's {bytes} bytes: {error}"))?;
            self.held += 1;
        }
        Ok(())
    }

    /// Where it can be opened, as long as this is there.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of some parts, and what is in it.
    fn bundle() -> (File, Vec<u8>) {
        // No two parts are alike.
        let byte = |i: u64| (i ^ (i >> 8) ^ (i >> 16)) as u8;
        let bytes: Vec<u8> = (0..5 * PART_BYTES / 2).map(byte).collect();
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("written");
        (file, bytes)
    }

    fn read(held: &HeldBundle) -> Vec<u8> {
        std::fs::read(held.path()).expect("it is there")
    }

    #[test]
    fn what_has_come_before_a_cut_is_not_sent_again() {
        let (file, bytes) = bundle();
        let parts = BundleParts::of(&file).expect("parts");
        assert_eq!(parts.count(), 3);
        let mut held = HeldBundle::of(parts.clone(), None).expect("memory");
        let cut = PART_BYTES as usize * 2 - 1;
        let error = held.receive(&bytes[..cut]).expect_err("cut");
        assert!(error.contains("ends after 1 of its 3 parts"), "{error}");

        let mut held = HeldBundle::of(parts.clone(), Some(held)).expect("the same");
        let mut rest = Vec::new();
        parts
            .send(&file, held.first_missing(), &mut rest)
            .expect("sent");
        assert_eq!(rest.len(), bytes.len() - PART_BYTES as usize);
        held.receive(&rest[..]).expect("the rest");
        assert!(read(&held) == bytes);

        // Nothing of it is of use for another one.
        let other = BundleParts {
            bytes: 9,
            sums: vec![1],
        };
        let other = HeldBundle::of(other, Some(held)).expect("memory");
        assert_eq!(other.first_missing(), 0);
    }

    #[test]
    fn a_part_that_is_not_right_is_named_and_not_kept() {
        let (file, mut bytes) = bundle();
        let parts = BundleParts::of(&file).expect("parts");
        bytes[PART_BYTES as usize + 7] ^= 1;
        let mut held = HeldBundle::of(parts, None).expect("memory");
        let error = held.receive(&bytes[..]).expect_err("changed");
        assert!(
            error.contains("part 1 of the bundle's 3 has checksum"),
            "{error}"
        );
        assert_eq!(held.first_missing(), 1);
    }

    #[test]
    fn bundles_of_absurd_sizes_are_refused() {
        for (bytes, sums, expected) in [
            (
                u64::MAX,
                0,
                "18446744073709551615 bytes, 17179869184 are the most",
            ),
            (PART_BYTES + 1, 1, "1048577 bytes in 1 parts, it has 2"),
            (0, 1, "0 bytes in 1 parts, it has 0"),
        ] {
            let parts = BundleParts {
                bytes,
                sums: vec![0; sums],
            };
            let error = HeldBundle::of(parts, None).err().expect("refused");
            assert!(error.contains(expected), "{error}");
        }
    }
}
