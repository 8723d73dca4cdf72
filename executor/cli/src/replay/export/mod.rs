//! `zbmd-run replay --export`: what a recording holds as files of other programs. Nothing is run.

#[cfg(feature = "mcap")]
mod mcap;
mod sigmf;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{Program, TokenType};

use crate::CliError;
use crate::flight::{RecordedTokens, Recording, RecordingError, TimedToken};
use crate::io::FileError;

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Export {
    /// A SigMF recording of each source: `PREFIX-SOURCE.sigmf-meta` and `.sigmf-data`.
    Sigmf(PathBuf),
    /// One MCAP file with a channel for each source, one for changes of parameters and one for gaps.
    #[cfg(feature = "mcap")]
    Mcap(PathBuf),
}

/// Reads `sigmf:PREFIX` or `mcap:FILE`.
pub(crate) fn export(text: &str) -> Result<Export, String> {
    match text.split_once(':') {
        Some(("sigmf", prefix)) if !prefix.is_empty() => Ok(Export::Sigmf(prefix.into())),
        #[cfg(feature = "mcap")]
        Some(("mcap", file)) if !file.is_empty() => Ok(Export::Mcap(file.into())),
        #[cfg(not(feature = "mcap"))]
        Some(("mcap", _)) => {
            Err("this zbmd-run is built without MCAP: build it with `--features mcap`".to_owned())
        }
        _ => Err("write it as sigmf:PREFIX or mcap:FILE".to_owned()),
    }
}

impl Export {
    /// Writes what a recording of these modes holds; what is to be said of it.
    ///
    /// # Errors
    /// A file that cannot be written, a damaged recording, or tokens that the format has no type for.
    pub(crate) fn write(
        &self,
        recording: &Recording,
        folder: &Path,
        modes: &VerifiedModes,
    ) -> Result<Vec<String>, CliError> {
        // Streams are the same in all modes.
        let sources = exported_sources(recording, folder, &modes.programs()[0]);
        match self {
            Self::Sigmf(prefix) => sigmf::write(prefix, recording, &sources),
            #[cfg(feature = "mcap")]
            Self::Mcap(path) => mcap::write(path, recording, modes, &sources),
        }
    }
}

/// A source of a recording.
struct ExportedSource<'a> {
    /// By its place among the sources.
    index: usize,
    name: &'a str,
    token: &'a TokenType,
    rate: Option<f64>,
    times: &'a [TimedToken],
    folder: &'a Path,
}

/// The sources of a recording; they are those of the program, in the same order.
fn exported_sources<'a>(
    recording: &'a Recording,
    folder: &'a Path,
    program: &'a Program,
) -> Vec<ExportedSource<'a>> {
    let known = recording.head.sources.iter().enumerate();
    let with_actors = known.zip(program.graph.sources());
    let sources = with_actors.map(|((index, source), (_, actor))| ExportedSource {
        index,
        name: &source.name,
        token: &actor.outputs[0].token,
        rate: source.rate.filter(|rate| rate.is_finite() && *rate > 0.0),
        times: &recording.times[index],
        folder,
    });
    sources.collect()
}

impl ExportedSource<'_> {
    /// When a token came, in nanoseconds since 1970, as well as that is known: by the first time that was noted after it,
    /// and by the rate.
    fn time_of(&self, index: u64) -> Option<u64> {
        let place = self.times.partition_point(|time| time.index <= index);
        let noted = self.times.get(place).or(self.times.last())?;
        let seconds = match self.rate {
            Some(rate) => (index as f64 - noted.index as f64) / rate,
            None => 0.0,
        };
        Some(noted.unix_ns.saturating_add_signed((1e9 * seconds) as i64))
    }

    /// Fills a buffer with tokens.
    fn read(&self, tokens: &mut RecordedTokens, bytes: &mut [u8]) -> Result<(), CliError> {
        tokens.read_exact(bytes).map_err(|error| {
            CliError::Recording(RecordingError::Unusable {
                path: self.folder.to_owned(),
                why: error.to_string(),
            })
        })
    }

    /// Refuses a file in the folder of the recording: it might be one of the recording's own.
    fn check_outside(&self, path: &Path) -> Result<(), CliError> {
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let parent = parent.canonicalize().map_err(file_error(parent))?;
        let folder = self.folder.canonicalize();
        let folder = folder.map_err(file_error(self.folder))?;
        match parent == folder {
            false => Ok(()),
            true => Err(CliError::Refused {
                path: path.to_owned(),
                text: "is in the folder of the recording: name another folder".to_owned(),
            }),
        }
    }
}

fn file_error(path: &Path) -> impl Fn(io::Error) -> CliError {
    move |source| {
        CliError::File(FileError::Io {
            path: path.to_owned(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart() {
        assert_eq!(export("sigmf:out/rec"), Ok(Export::Sigmf("out/rec".into())));
        for text in ["", "sigmf", "sigmf:", "mcap:", "wav:x"] {
            assert!(export(text).is_err(), "{text}");
        }
    }

    #[cfg(not(feature = "mcap"))]
    #[test]
    fn a_build_without_mcap_says_so() {
        let said = export("mcap:x.mcap").expect_err("not built");
        assert!(said.contains("--features mcap"), "{said}");
    }

    #[test]
    fn times_are_those_of_tokens() {
        let token = TokenType::scalar(zbmd_ir::DType::F32);
        let time = |index, unix_ns| TimedToken { index, unix_ns };
        let source = |rate, times| ExportedSource {
            index: 0,
            name: "in",
            token: &token,
            rate,
            times,
            folder: Path::new("box"),
        };
        let times = [time(1000, 5_000_000_000), time(2000, 6_000_000_000)];
        let found = source(Some(1000.0), &times);
        assert_eq!(found.time_of(0), Some(4_000_000_000));
        assert_eq!(found.time_of(1500), Some(5_500_000_000));
        assert_eq!(found.time_of(2500), Some(6_500_000_000));
        assert_eq!(source(None, &times).time_of(0), Some(5_000_000_000));
        assert_eq!(source(None, &[]).time_of(0), None);
        // Before 1970 is where that begins.
        assert_eq!(source(Some(1e-3), &times).time_of(0), Some(0));
    }
}
