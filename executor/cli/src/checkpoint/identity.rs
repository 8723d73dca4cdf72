//! What makes a run the same run: its bundle, its graph with rates, and its streams. A text in the folder of
//! checkpoints, so that people can read which run it is of: a line with a checksum, then JSON.
//!
//! An input file is the same stream if it is at least as long as it was, and its first and last 64 KiB of then are the
//! same bytes: a copy is, at any path, and so is a file that has grown. What lies between is not compared. Of a pipe
//! nothing can be known. An output is known by its path.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use super::Origin;

const MAGIC: &str = "zbmd-run";
const VERSION: u32 = 1;
/// So much of both ends of an input is compared.
const COMPARED_BYTES: u64 = 64 << 10;

/// Why a text does not name a run.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum IdentityError {
    #[error("is missing, beside {checkpoints} checkpoints: nobody can say which run they are of")]
    Missing { checkpoints: usize },
    #[error(
        "does not begin with `{MAGIC} {VERSION}` and a checksum: it was written by another program or version"
    )]
    Version,
    #[error("checksum {found:016x}, its first line has {expected:016x}: it is damaged")]
    Checksum { found: u64, expected: u64 },
    #[error("{0}")]
    Content(String),
}

/// A run, from its beginning over all its resumptions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunIdentity {
    /// Different for each run.
    pub run_id: String,
    /// Hash of the bundle's file.
    pub bundle_hash: String,
    /// [`zbmd_ir::state::fingerprint`] of its graph.
    pub graph_hash: String,
    /// The border that the run began at: not the first where it went on from a saved state.
    pub began_at: Origin,
    /// Where tokens come from, in actor order.
    pub sources: Vec<SourceIdentity>,
    /// Where they go, in actor order.
    pub sinks: Vec<SinkIdentity>,
}

/// One source of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceIdentity {
    /// The source.
    pub name: String,
    /// Type of its tokens.
    pub token: String,
    /// What it reads.
    pub input: InputIdentity,
}

/// One sink of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinkIdentity {
    /// The sink.
    pub name: String,
    /// Type of its tokens.
    pub token: String,
    /// Its file, from the root.
    pub path: String,
}

/// What is known of an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InputIdentity {
    /// A regular file.
    File {
        /// Where it was.
        path: String,
        /// Its length then.
        bytes: u64,
        /// Hash of its beginning.
        head_hash: String,
        /// Hash of what was its end.
        tail_hash: String,
    },
    /// A pipe or a device: it cannot be compared.
    Stream {
        /// What it was called.
        path: String,
    },
}

/// Hash of so many bytes of a file.
fn hash_at(file: &File, offset: u64, bytes: u64) -> io::Result<String> {
    let mut piece = vec![0; bytes as usize];
    file.read_exact_at(&mut piece, offset)?;
    Ok(in_hex(xxh3_64(&piece)))
}

/// Hash of all bytes of a file.
///
/// # Errors
/// What the system says.
pub fn hash_of_file(path: &Path) -> io::Result<u64> {
    let mut hashed_file = File::open(path)?;
    let mut file_hasher = Xxh3Default::new();
    let mut piece = vec![0; 1 << 20];
    loop {
        match hashed_file.read(&mut piece) {
            Ok(0) => return Ok(file_hasher.digest()),
            Ok(bytes) => file_hasher.update(&piece[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// As hashes stand in texts.
fn in_hex(hash: u64) -> String {
    format!("{hash:016x}")
}

impl InputIdentity {
    /// What can be known of an open input; of a regular file as it was when it had `bytes` bytes, or as it is now.
    ///
    /// # Errors
    /// What the system says.
    pub fn of(path: &str, file: &File, bytes: Option<u64>) -> io::Result<Self> {
        let stream_path = path.to_owned();
        let file_metadata = file.metadata()?;
        if !file_metadata.is_file() {
            return Ok(Self::Stream { path: stream_path });
        }
        let file_bytes = bytes.unwrap_or(file_metadata.len());
        let compared_bytes = file_bytes.min(COMPARED_BYTES);
        Ok(Self::File {
            path: stream_path,
            bytes: file_bytes,
            head_hash: hash_at(file, 0, compared_bytes)?,
            tail_hash: hash_at(file, file_bytes - compared_bytes, compared_bytes)?,
        })
    }

    /// What contradicts that `file`, called `path` now, is the same stream, if anything does.
    ///
    /// # Errors
    /// What the system says.
    pub fn contradiction(&self, path: &str, file: &File) -> io::Result<Option<String>> {
        let Self::File {
            path: then,
            bytes,
            head_hash,
            tail_hash,
        } = self
        else {
            return Ok(None);
        };
        let file_metadata = file.metadata()?;
        if !file_metadata.is_file() {
            return Ok(None);
        }
        if file_metadata.len() < *bytes {
            return Ok(Some(format!(
                "the run reads {then}, which had {bytes} bytes; {path} has {}",
                file_metadata.len()
            )));
        }

        let Self::File {
            head_hash: head_now,
            tail_hash: tail_now,
            ..
        } = Self::of(path, file, Some(*bytes))?
        else {
            return Ok(None);
        };
        for (part, expected, found) in [
            ("begins", head_hash, &head_now),
            ("goes on up to that length", tail_hash, &tail_now),
        ] {
            if expected != found {
                return Ok(Some(format!(
                    "the run reads {then} of {bytes} bytes; {path} {part} with other bytes (hash {expected}, now {found})"
                )));
            }
        }
        Ok(None)
    }

    /// Whether nothing can be known of it.
    pub fn is_stream(&self) -> bool {
        matches!(self, Self::Stream { .. })
    }
}

impl RunIdentity {
    /// A name that no other run has.
    pub fn new_id() -> String {
        // Seeded by the system, as every map's is; the rest tells apart what one seed would not.
        let random_state = RandomState::new();
        let first_half = random_state.hash_one(std::process::id());
        let second_half = RandomState::new().hash_one(std::time::SystemTime::now());
        format!("{first_half:016x}{second_half:016x}")
    }

    /// As the text of a file.
    ///
    /// # Panics
    /// Never: strings and numbers can be written as JSON.
    pub fn encode(&self) -> Vec<u8> {
        let json = serde_json::to_string_pretty(self).expect("strings and numbers");
        let json_checksum = xxh3_64(json.as_bytes());
        format!("{MAGIC} {VERSION} {json_checksum:016x}\n{json}").into_bytes()
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, IdentityError> {
        let text = std::str::from_utf8(bytes).map_err(|_| IdentityError::Version)?;
        let (expected, json) = text
            .split_once('\n')
            .and_then(|(line, json)| {
                let checksum = line.strip_prefix(&format!("{MAGIC} {VERSION} "))?;
                Some((u64::from_str_radix(checksum, 16).ok()?, json))
            })
            .ok_or(IdentityError::Version)?;

        // The checksum covers the text after its line.
        let found = xxh3_64(json.as_bytes());
        if found != expected {
            return Err(IdentityError::Checksum { found, expected });
        }
        serde_json::from_str(json).map_err(|error| IdentityError::Content(error.to_string()))
    }

    /// How another run differs from this one in its bundle, its graph or the names of its streams, with both values;
    /// inputs are compared by [`InputIdentity::contradiction`]. Another bundle of the same graph is let pass if asked
    /// for.
    pub fn difference(&self, other: &Self, takes_other_bundle: bool) -> Option<String> {
        if self.graph_hash == other.graph_hash && !takes_other_bundle {
            if self.bundle_hash != other.bundle_hash {
                return Some(format!(
                    "the run is of bundle {}, this one is {}: they have the same graph, so --other-bundle takes it",
                    self.bundle_hash, other.bundle_hash
                ));
            }
        } else if self.graph_hash != other.graph_hash {
            return Some(format!(
                "the run is of bundle {} with graph {} ({}); this bundle is {} with graph {} ({})",
                self.bundle_hash,
                self.graph_hash,
                self.streams(),
                other.bundle_hash,
                other.graph_hash,
                other.streams()
            ));
        }
        for (then, now) in self.sinks.iter().zip(&other.sinks) {
            if then.path != now.path {
                return Some(format!(
                    "the run writes sink `{}` to {}, not to {}",
                    then.name, then.path, now.path
                ));
            }
        }
        None
    }

    fn streams(&self) -> String {
        let source_texts = self
            .sources
            .iter()
            .map(|source| format!("source `{}` of {}", source.name, source.token));
        let sink_texts = self
            .sinks
            .iter()
            .map(|sink| format!("sink `{}` of {}", sink.name, sink.token));
        source_texts
            .chain(sink_texts)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn identity() -> RunIdentity {
        RunIdentity {
            run_id: RunIdentity::new_id(),
            bundle_hash: in_hex(1),
            graph_hash: in_hex(2),
            began_at: Origin::default(),
            sources: vec![SourceIdentity {
                name: "in".to_owned(),
                token: "f32".to_owned(),
                input: InputIdentity::Stream {
                    path: "-".to_owned(),
                },
            }],
            sinks: vec![SinkIdentity {
                name: "out".to_owned(),
                token: "f32".to_owned(),
                path: "/tmp/o\n\"ut".to_owned(),
            }],
        }
    }

    #[test]
    fn every_damage_is_noticed() {
        let identity = identity();
        let encoded = identity.encode();
        assert_eq!(RunIdentity::parse(&encoded).expect("whole"), identity);
        for length in 0..encoded.len() {
            RunIdentity::parse(&encoded[..length]).expect_err("cut off");
        }
        for bit in 0..8 * encoded.len() {
            let mut changed_bytes = encoded.clone();
            changed_bytes[bit / 8] ^= 1 << (bit % 8);
            // The case of a hexadecimal digit is all that may differ.
            if let Ok(read) = RunIdentity::parse(&changed_bytes) {
                assert_eq!(read, identity, "bit {bit}");
            }
        }
        assert_ne!(RunIdentity::new_id(), RunIdentity::new_id());
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let first = identity();
        assert_eq!(first.difference(&identity(), false), None);
        let mut other_run = identity();
        other_run.bundle_hash = in_hex(3);
        let difference = first.difference(&other_run, false).expect("another bundle");
        assert!(
            difference.contains(&in_hex(1)) && difference.contains(&in_hex(3)),
            "{difference}"
        );
        assert_eq!(first.difference(&other_run, true), None);
        other_run.graph_hash = in_hex(4);
        let difference = first.difference(&other_run, true).expect("another graph");
        assert!(
            difference.contains(&in_hex(2)) && difference.contains(&in_hex(4)),
            "{difference}"
        );
        let mut moved_run = identity();
        moved_run.sinks[0].path = "/tmp/other".to_owned();
        let difference = first.difference(&moved_run, false).expect("another file");
        assert!(difference.contains("/tmp/other"), "{difference}");
    }

    #[test]
    fn an_input_is_the_same_if_its_ends_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("in.bin");
        let content: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
        fs::write(&path, &content).expect("written");
        let open = || File::open(&path).expect("there");
        let identity = InputIdentity::of("in.bin", &open(), None).expect("read");
        let check = |changed: &[u8], expect: Option<&str>| {
            fs::write(&path, changed).expect("written");
            let found = identity.contradiction("now.bin", &open()).expect("read");
            match (found, expect) {
                (None, None) => {}
                (Some(found), Some(part)) => assert!(found.contains(part), "{found}"),
                (found, expect) => panic!("{found:?}, expected {expect:?}"),
            }
        };
        check(&content, None);
        check(&[&content[..], b"more"].concat(), None);
        check(&content[..299_999], Some("now.bin has 299999"));
        let mut changed = content.clone();
        changed[0] ^= 1;
        check(&changed, Some("begins with other bytes"));
        let mut changed = content.clone();
        changed[299_999] ^= 1;
        check(&changed, Some("goes on up to that length with other bytes"));
        check(&[], Some("now.bin has 0"));
    }
}
