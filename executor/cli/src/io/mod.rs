//! Streams that are files: formats by extension, `-` for the standard streams. Knows token types, not runs; `pump`
//! joins files to a session.
//!
//! | name | content |
//! |---|---|
//! | `x.npy` | NumPy array; its first axis counts tokens |
//! | `x.wav` | sound; s16 becomes f32 by 1/32768 where tokens are floats |
//! | `x.u8 .s8 .s16 .s32 .f32` | raw elements of that dtype |
//! | `x.cu8 .cs8 .cs16 .cf32` | raw pairs: u8, i8, i16 elements, or f32 elements or c32 |
//! | `x.sigmf-meta .sigmf-data` | a SigMF recording, see `recordings` |
//! | `x.bin`, no extension, `-` | raw bytes of the tokens, in the machine's byte order |
//! | `x.bursts`, `x.jsonl`, `-` to write | [bursts], only the items there are |

pub(crate) mod block_gate;
pub(crate) mod bursts;
mod npy;
pub(crate) mod pipe;
pub(crate) mod pump;
pub(crate) mod relay;
mod sink;
mod wav;

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use self::bursts::{BurstEncoding, BurstFormat};
use self::pipe::PipeReader;
pub(crate) use self::sink::{FileKind, Position, PreparedSink, SinkFile, tokens_in};
use zbmd_executor::is_named_pipe;
use zbmd_ir::burst::BurstLayout;
use zbmd_ir::{DType, Params, TokenType};

/// Why a file cannot be a stream. Every variant names the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The system refuses.
    #[error("{}: {source}{}", path.display(), remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A sink's file cannot be written on.
    #[error("{}: {source}{}; it holds {tokens} whole tokens of `{stream}`", path.display(), remedy(source))]
    Write {
        /// The file.
        path: PathBuf,
        /// The sink.
        stream: String,
        /// Whole tokens that are in the file.
        tokens: u64,
        /// What the system says.
        source: io::Error,
    },
    /// The file's content is not what its name says.
    #[error("{}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The file holds other elements than the tokens.
    #[error(transparent)]
    Type(Box<TypeMismatch>),
    /// No format has that extension.
    #[error("{}: unknown extension `{extension}`; known are npy, wav, u8, s8, s16, s32, f32, cu8, cs8, cs16, cf32, bursts and jsonl for bursts, and bin for raw tokens", path.display())]
    Extension {
        /// The file.
        path: PathBuf,
        /// Its extension.
        extension: String,
    },
}

/// What to do about errors of the system whose words do not say which limit was met.
fn remedy(error: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::FBIG) => {
            ": a file may be no longer, by the limit of this process (`ulimit -f`) or of the file system"
        }
        Some(Errno::MFILE) => ": too few descriptors; raise the limit (`ulimit -n`)",
        Some(Errno::NFILE) => ": the whole system has too few descriptors; close programs",
        _ => "",
    }
}

/// A file and a stream that do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: holds {found}, stream `{stream}` carries {token}: {help}", path.display())]
pub(crate) struct TypeMismatch {
    /// The file.
    pub(crate) path: PathBuf,
    /// The source or sink.
    pub(crate) stream: String,
    /// Type of its tokens.
    pub(crate) token: TokenType,
    /// What the file holds.
    pub(crate) found: String,
    /// How to fix it.
    pub(crate) help: String,
}

/// A source or a sink that is to be joined to a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port<'a> {
    /// The actor's name.
    pub(crate) stream: &'a str,
    /// Type of the tokens.
    pub(crate) token: &'a TokenType,
    /// The actor's parameters: `sample_rate`, `channels` and `format` matter to sound files.
    pub(crate) params: &'a Params,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Raw,
    Npy,
    Wav,
    Bursts(BurstEncoding),
}

/// Whether the name is the URL of a live stream.
pub(crate) fn is_url(path: &Path) -> bool {
    path.to_str().is_some_and(zbmd_live::is_url)
}

/// Whether the name stands for a standard stream.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn format(path: &Path, port: Port<'_>) -> Result<Format, FileError> {
    let Some(extension) = path.extension().filter(|_| !is_standard(path)) else {
        return Ok(Format::Raw);
    };
    let extension = extension.to_string_lossy().to_ascii_lowercase();
    if let Some(layout) = BurstLayout::of(port.token) {
        return burst_format(path, &extension, port, layout);
    }
    match extension.as_str() {
        "npy" => return Ok(Format::Npy),
        "wav" => return Ok(Format::Wav),
        "bin" => return Ok(Format::Raw),
        _ => {}
    }
    let Some((_, elements)) = ELEMENTS.iter().find(|(known, _)| *known == extension) else {
        return Err(FileError::Extension {
            path: path.to_owned(),
            extension,
        });
    };
    if elements.contains(&port.token.dtype) {
        return Ok(Format::Raw);
    }
    let found = elements
        .iter()
        .map(|d| d.name())
        .collect::<Vec<_>>()
        .join(" or ");
    let fitting = ELEMENTS
        .iter()
        .filter(|(_, elements)| elements.contains(&port.token.dtype));
    let fitting: String = fitting
        .map(|(extension, _)| format!(".{extension}, "))
        .collect();
    let help =
        format!("name the file {fitting}.npy or .bin, as what it holds, or convert in the model");
    Err(mismatch(path, port, found, &help))
}

fn burst_format(
    path: &Path,
    extension: &str,
    port: Port<'_>,
    layout: BurstLayout,
) -> Result<Format, FileError> {
    let encoded = |format| Ok(Format::Bursts(BurstEncoding { layout, format }));
    match extension {
        "bin" => Ok(Format::Raw),
        "bursts" => encoded(BurstFormat::Records),
        "jsonl" => encoded(BurstFormat::JsonLines),
        _ => {
            let help = "name the file .bursts, .jsonl (to be written), or .bin for whole tokens";
            Err(mismatch(path, port, "samples".to_owned(), help))
        }
    }
}

/// What files of raw samples hold, by extension.
const ELEMENTS: [(&str, &[DType]); 9] = [
    ("u8", &[DType::U8, DType::Bool]),
    ("cu8", &[DType::U8]),
    ("s8", &[DType::I8]),
    ("cs8", &[DType::I8]),
    ("s16", &[DType::I16]),
    ("cs16", &[DType::I16]),
    ("s32", &[DType::I32]),
    ("f32", &[DType::F32]),
    ("cf32", &[DType::C32, DType::F32]),
];

fn mismatch(path: &Path, port: Port<'_>, found: String, help: &str) -> FileError {
    FileError::Type(Box::new(TypeMismatch {
        path: path.to_owned(),
        stream: port.stream.to_owned(),
        token: port.token.clone(),
        found,
        help: help.to_owned(),
    }))
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError::Io { path, source }
}

/// Opens a file to read tokens from: what is read are the bytes of tokens, whatever the format.
///
/// # Errors
/// See [`FileError`].
pub(crate) fn open_source(path: &Path, port: Port<'_>) -> Result<Box<dyn Read + Send>, FileError> {
    let format = format(path, port)?;
    if is_standard(path) {
        let standard = io::stdin().as_fd().try_clone_to_owned();
        return Ok(Box::new(File::from(standard.map_err(io_error(path))?)));
    }
    if format == Format::Raw && is_named_pipe(path) {
        return Ok(Box::new(PipeReader::new(path)));
    }
    let file = File::open(path).map_err(io_error(path))?;
    match format {
        Format::Raw => Ok(Box::new(file)),
        Format::Npy => npy::open(path, file, port),
        Format::Wav => wav::open(path, file, port),
        Format::Bursts(BurstEncoding { layout, format }) => match format {
            BurstFormat::Records => bursts::open(path, file, layout),
            BurstFormat::JsonLines => Err(FileError::Content {
                path: path.to_owned(),
                message: "JSON lines are written, not read: use a file with the extension bursts"
                    .to_owned(),
            }),
        },
    }
}

/// A stream `x` whose actor has no parameters, for tests.
pub(crate) fn port_of(token: &TokenType) -> Port<'_> {
    static NONE: Params = Params::new();
    Port {
        stream: "x",
        token,
        params: &NONE,
    }
}

/// Creates a file to write tokens to.
#[cfg(test)]
fn create_sink(path: &Path, port: Port<'_>) -> Result<SinkFile, FileError> {
    PreparedSink::open(path, port)?.begin()
}

/// Reads a file whose content is not a stream: a declaration or a state. It may be a pipe, so its length is not known, and
/// a device may never end: what is longer than `max_bytes` is refused after so many.
///
/// # Errors
/// See [`FileError`].
pub(crate) fn read_whole(path: &Path, max_bytes: u64) -> Result<Vec<u8>, FileError> {
    let file = File::open(path).map_err(io_error(path))?;
    let mut bytes = Vec::new();
    file.take(max_bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(io_error(path))?;
    if bytes.len() as u64 > max_bytes {
        return Err(FileError::Content {
            path: path.to_owned(),
            message: format!("is longer than {max_bytes} bytes, the maximum here"),
        });
    }
    Ok(bytes)
}

/// Skips the first `tokens` tokens of a source, or as many as it has; how many.
///
/// # Errors
/// What the system says.
pub(crate) fn skip_up_to(from: &mut dyn Read, token: &TokenType, tokens: u64) -> io::Result<u64> {
    let bytes = tokens.saturating_mul(token.bytes());
    let skipped = io::copy(&mut from.take(bytes), &mut io::sink())?;
    Ok(skipped / token.bytes())
}

/// Skips the first `tokens` tokens of a source.
///
/// # Errors
/// What the system says, or a source that has fewer.
pub(crate) fn skip(from: &mut dyn Read, token: &TokenType, tokens: u64) -> io::Result<()> {
    let found = skip_up_to(from, token, tokens)?;
    if found < tokens {
        let text = format!("has {found} tokens, {tokens} were taken before the checkpoint");
        return Err(io::Error::other(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_decide_the_format_and_must_fit_the_tokens() {
        let params = Params::new();
        for (name, dtype, expect) in [
            ("a.bin", DType::F64, "raw"),
            ("-", DType::F64, "raw"),
            ("/dev/null", DType::I8, "raw"),
            ("a.npy", DType::F64, "npy"),
            ("a.WAV", DType::F32, "wav"),
            ("a.cu8", DType::U8, "raw"),
            ("a.cs8", DType::I8, "raw"),
            ("a.s32", DType::I32, "raw"),
            (
                "a.cu8",
                DType::C32,
                "a.cu8: holds u8, stream `iq` carries c32: name the file .cf32, .npy or .bin, as what it holds, or convert in the model",
            ),
            ("a.cf32", DType::C32, "raw"),
            (
                "a.s16",
                DType::F32,
                "a.s16: holds i16, stream `iq` carries f32: name the file .f32, .cf32, .npy or .bin, as what it holds, or convert in the model",
            ),
            (
                "a.mp3",
                DType::F32,
                "a.mp3: unknown extension `mp3`; known are npy, wav, u8, s8, s16, s32, f32, cu8, cs8, cs16, cf32, bursts and jsonl for bursts, and bin for raw tokens",
            ),
        ] {
            let token = TokenType::scalar(dtype);
            let port = Port {
                stream: "iq",
                token: &token,
                params: &params,
            };
            let found = match format(Path::new(name), port) {
                Ok(Format::Raw) => "raw".to_owned(),
                Ok(Format::Npy) => "npy".to_owned(),
                Ok(Format::Wav) => "wav".to_owned(),
                Ok(Format::Bursts(_)) => "bursts".to_owned(),
                Err(error) => error.to_string(),
            };
            assert_eq!(found, expect, "{name} as {dtype}");
        }
    }
}
