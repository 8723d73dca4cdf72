//! What a recording is of: the file that names the run, its bundle and its sources.

use std::fmt;

use serde::{Deserialize, Serialize};
use zbmd_ir::Program;
use zbmd_ir::file_header::{FileHeader, HeaderError};
use zbmd_ir::limits::MAX_MODES;
use zbmd_ir::state;
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::verify::graph::repetition;

/// First bytes of the file.
const HEADER: FileHeader = FileHeader {
    magic: *b"ZBFR",
    version: 2,
    field_count: 0,
};
/// No description of a run is longer.
pub(super) const MAX_HEAD_BYTES: u64 = 16 << 20;
/// No recording has more sources.
pub(super) const MAX_SOURCES: usize = 1 << 12;

/// What a recording is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The run: a number that no other run has.
    pub run_id: u64,
    /// Hash of the bundle's file, a copy of which is in the recording.
    pub bundle_hash: u64,
    /// Its modes, in its order; one without a name where it has none. A run begins in the first.
    pub modes: Vec<RecordedMode>,
    /// In the order of the graph.
    pub sources: Vec<RecordedSource>,
}

/// A mode of a run that is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedMode {
    /// Its name.
    pub name: String,
    /// Fingerprint of its graph: a state is of runs of such graphs.
    pub graph_fingerprint: u64,
    /// Tokens that an iteration takes of each source.
    pub tokens_per_iteration: Vec<u64>,
}

/// A source whose tokens are recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedSource {
    /// Its name.
    pub name: String,
    /// Type of its tokens, as people write it.
    pub token: String,
    /// Bytes of a token.
    pub token_bytes: u64,
    /// Tokens a second, if that is known.
    pub rate: Option<f64>,
}

impl fmt::Display for RecordedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            token,
            token_bytes,
            ..
        } = self;
        write!(f, "`{name}`: tokens of {token}, {token_bytes} bytes each")
    }
}

/// Why a file does not say what a recording is of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum HeadError {
    #[error("starts with {found:02x?}, a recording with {:02x?} (`ZBFR`)", HEADER.magic)]
    Magic { found: [u8; 4] },
    #[error("format version {found}, this program reads {}", HEADER.version)]
    Version { found: u32 },
    #[error("should have {expected} bytes, has {found}")]
    Length { expected: u64, found: u64 },
    #[error("checksum {found:016x}, it says {expected:016x}: it is damaged")]
    Checksum { found: u64, expected: u64 },
    #[error("{0}")]
    Content(String),
}

impl From<HeaderError> for HeadError {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::Magic { found } => Self::Magic { found },
            HeaderError::Version { found } => Self::Version { found },
            HeaderError::Length { expected, found } => Self::Length { expected, found },
            HeaderError::Checksum { found, expected } => Self::Checksum { found, expected },
        }
    }
}

/// The sources of a program as a recording has them. `rate` is asked for those that the model says no rate of.
pub(crate) fn sources_of(
    program: &Program,
    rate: impl Fn(&str) -> Option<f64>,
) -> Vec<RecordedSource> {
    let sources = program.graph.sources();
    let recorded = sources.map(|(_, actor)| RecordedSource {
        name: actor.name.clone(),
        token: actor.outputs[0].token.to_string(),
        token_bytes: actor.outputs[0].token.bytes(),
        rate: rate(&actor.name).or(actor.sample_rate()),
    });
    recorded.collect()
}

/// The modes of a bundle as a recording has them.
pub(crate) fn recorded_modes(modes: &VerifiedModes) -> Vec<RecordedMode> {
    let programs = modes.names().iter().zip(modes.programs());
    let recorded = programs.map(|(name, program)| {
        let graph = &program.graph;
        let repetition = repetition(graph).expect("a verified graph is consistent");
        let sources = graph.sources();
        RecordedMode {
            name: name.clone(),
            graph_fingerprint: state::fingerprint(graph),
            tokens_per_iteration: sources
                .map(|(id, actor)| repetition[id] * actor.outputs[0].rate)
                .collect(),
        }
    });
    recorded.collect()
}

impl Head {
    /// As the bytes of a file.
    pub fn encode(&self) -> Vec<u8> {
        let body = postcard::to_stdvec(self).expect("every sequence has a length");
        HEADER.seal(&[], &body)
    }

    /// From the bytes of a file.
    ///
    /// # Errors
    /// See [`HeadError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HeadError> {
        let body = HEADER.open(bytes)?.body;
        let head: Self = super::record::decode(body).map_err(HeadError::Content)?;
        if head.sources.len() > MAX_SOURCES {
            let count = head.sources.len();
            return Err(HeadError::Content(format!(
                "has {count} sources, at most {MAX_SOURCES} are recorded"
            )));
        }
        if head.modes.is_empty() || head.modes.len() > MAX_MODES {
            let count = head.modes.len();
            return Err(HeadError::Content(format!(
                "has {count} modes, it must have 1 to {MAX_MODES}"
            )));
        }
        for mode in &head.modes {
            let counts = &mode.tokens_per_iteration;
            if counts.len() != head.sources.len() || counts.contains(&0) {
                return Err(HeadError::Content(format!(
                    "an iteration of mode `{}` takes {counts:?} tokens of {} sources",
                    mode.name,
                    head.sources.len()
                )));
            }
        }
        match head.sources.iter().find(|source| source.token_bytes == 0) {
            None => Ok(head),
            Some(source) => Err(HeadError::Content(format!(
                "source `{}` has tokens of no bytes",
                source.name
            ))),
        }
    }

    /// What keeps the recording from being replayed on a bundle, if anything does.
    pub fn difference(&self, modes: &VerifiedModes) -> Option<String> {
        let here = recorded_modes(modes);
        let names = |modes: &[RecordedMode]| -> String {
            let names = modes.iter().map(|mode| format!("`{}`", mode.name));
            names.collect::<Vec<_>>().join(", ")
        };
        if names(&here) != names(&self.modes) {
            return Some(format!(
                "its modes are {}, in the recording {}: they must be the same, in the same order",
                names(&here),
                names(&self.modes)
            ));
        }
        for (mode, own) in here.iter().zip(&self.modes) {
            if mode.graph_fingerprint != own.graph_fingerprint {
                let of_mode = match mode.name.as_str() {
                    "" => String::new(),
                    name => format!(" of mode `{name}`"),
                };
                return Some(format!(
                    "its graph{of_mode} is {:016x}, the recording is of graph {:016x}: names, rates, types and channels must be the same",
                    mode.graph_fingerprint, own.graph_fingerprint
                ));
            }
        }
        // A recording that was tampered with may say anything of them.
        self.source_difference(&modes.programs()[0])
            .or_else(|| self.rate_difference(&here))
    }

    /// The first mode of a bundle whose iterations take other tokens, if one does.
    fn rate_difference(&self, here: &[RecordedMode]) -> Option<String> {
        let mut pairs = here.iter().zip(&self.modes);
        let (mode, own) =
            pairs.find(|(mode, own)| mode.tokens_per_iteration != own.tokens_per_iteration)?;
        Some(format!(
            "an iteration takes {:?} tokens of its sources, in the recording {:?}",
            mode.tokens_per_iteration, own.tokens_per_iteration
        ))
    }

    /// The first source of a program that is another, if one is: by name, type, tokens of an iteration, or order.
    fn source_difference(&self, program: &Program) -> Option<String> {
        let here = sources_of(program, |_| None);
        let text = |sources: &[RecordedSource], place: usize| match sources.get(place) {
            Some(source) => source.to_string(),
            None => "none".to_owned(),
        };
        let count = here.len().max(self.sources.len());
        let unlike = (0..count).find(|&place| text(&here, place) != text(&self.sources, place))?;
        Some(format!(
            "its source {} is {}, in the recording {}",
            unlike + 1,
            text(&here, unlike),
            text(&self.sources, unlike)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::testing::programs;

    #[test]
    fn heads_are_read_as_they_were_written_and_no_other_way() {
        for program in programs::all() {
            let verified = zbmd_ir::verify::verify(program.clone()).expect("valid");
            let modes = VerifiedModes::from(verified);
            let head = Head {
                run_id: 5,
                bundle_hash: 6,
                modes: recorded_modes(&modes),
                sources: sources_of(&program, |_| Some(48e3)),
            };
            let bytes = head.encode();
            assert_eq!(Head::decode(&bytes).as_ref(), Ok(&head));
            assert_eq!(head.difference(&modes), None);
            if let Some(first) = head.sources.first() {
                let mut other = head.clone();
                other.sources[0].token_bytes += 1;
                let said = other.difference(&modes).expect("another token");
                assert!(
                    said.contains(&format!("source 1 is {first}, in the rec")),
                    "{said}"
                );
                other.sources.remove(0);
                other.difference(&modes).expect("a source less");
            }
            let mut other = head.clone();
            other.modes[0].name = "scan".to_owned();
            let said = other.difference(&modes).expect("another mode");
            assert!(
                said.contains("its modes are ``, in the recording `scan`"),
                "{said}"
            );
            for length in 0..bytes.len() {
                Head::decode(&bytes[..length]).expect_err("cut off");
            }
            for bit in 0..8 * bytes.len() {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                Head::decode(&changed).expect_err("a bit changed");
            }
        }
    }
}
