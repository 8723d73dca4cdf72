//! Files that tokens are written to. What is counted is what the system has taken: a position moves when a write
//! returns, and a header is brought up to date after the data that it counts, so that it never says more than there is,
//! whenever the process ends.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zbmd_ir::TokenType;
use zbmd_ir::burst::BurstLayout;

use super::bursts::{BurstEncoding, BurstFormat, Progress};
use super::{FileError, Format, Port, format, io_error, is_standard, is_url, npy, pipe, wav};

/// What the system says a file is, as far as it matters to whoever writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// A file on a disk: it has a length, and can be cut back to a shorter one.
    Regular,
    /// A character device, such as `/dev/null`: it has no length, and keeps nothing that could disagree.
    Device,
    /// A pipe, a socket or a standard stream: what was written is gone.
    Stream,
}

impl FileKind {
    /// What the file of that name is; `Regular` if there is none yet.
    pub(crate) fn of_path(path: &Path) -> Self {
        if is_standard(path) || is_url(path) {
            return Self::Stream;
        }
        fs::metadata(path).map_or(Self::Regular, |metadata| Self::of(&metadata))
    }

    fn of(metadata: &fs::Metadata) -> Self {
        if metadata.is_file() {
            Self::Regular
        } else if metadata.file_type().is_char_device() {
            Self::Device
        } else {
            Self::Stream
        }
    }
}

/// How many tokens a file holds: shared with whoever reports, and read without waiting for a write that is under way.
#[derive(Clone, Debug)]
pub(crate) struct Position {
    data_bytes: Arc<AtomicU64>,
    /// Bytes of a token in the file; `None` where that varies, and tokens are counted.
    token_bytes: Option<u64>,
    counted_tokens: Arc<AtomicU64>,
}

impl Position {
    fn new(token_bytes: Option<u64>) -> Self {
        Self {
            data_bytes: Arc::default(),
            token_bytes,
            counted_tokens: Arc::default(),
        }
    }

    /// Whole tokens that the system has taken.
    pub(crate) fn tokens(&self) -> u64 {
        match self.token_bytes {
            Some(token_bytes) => self.data_bytes() / token_bytes,
            None => self.counted_tokens.load(Ordering::Acquire),
        }
    }

    fn set_counted_tokens(&self, tokens: u64) {
        self.counted_tokens.store(tokens, Ordering::Release);
    }

    fn data_bytes(&self) -> u64 {
        self.data_bytes.load(Ordering::Acquire)
    }

    fn set_data_bytes(&self, bytes: u64) {
        self.data_bytes.store(bytes, Ordering::Release);
    }
}

/// How tokens stand in a file.
#[derive(Clone, Debug)]
enum Encoding {
    Raw { token_bytes: u64 },
    Npy(TokenType),
    Wav(wav::WavLayout),
    Bursts(BurstEncoding),
}

impl Encoding {
    fn of(path: &Path, port: Port<'_>) -> Result<Self, FileError> {
        if zbmd_live::sigmf::is_recording(path) {
            return Ok(Self::Raw {
                token_bytes: port.token.bytes(),
            });
        }
        // A terminal and the next program of a pipe are shown bursts as text: whole tokens are mostly zeros.
        let format = match format(path, port)? {
            Format::Raw if is_standard(path) => match BurstLayout::of(port.token) {
                Some(layout) => Format::Bursts(BurstEncoding {
                    layout,
                    format: BurstFormat::JsonLines,
                }),
                None => Format::Raw,
            },
            other => other,
        };
        Ok(match format {
            Format::Raw => Self::Raw {
                token_bytes: port.token.bytes(),
            },
            Format::Npy => Self::Npy(port.token.clone()),
            Format::Wav => Self::Wav(wav::WavLayout::of(path, port)?),
            Format::Bursts(encoding) => Self::Bursts(encoding),
        })
    }

    /// Bytes of a token in the file; `None` where that varies.
    fn token_bytes(&self) -> Option<u64> {
        match self {
            Self::Raw { token_bytes } => Some(*token_bytes),
            Self::Npy(token) => Some(token.bytes()),
            Self::Wav(layout) => Some(layout.token_bytes()),
            Self::Bursts(_) => None,
        }
    }

    /// The header for so many tokens, which take so many bytes behind it: of the same length for any numbers.
    fn header(&self, tokens: u64, data_bytes: u64) -> Vec<u8> {
        match self {
            Self::Raw { .. } => Vec::new(),
            Self::Npy(token) => npy::header(token, tokens),
            Self::Wav(layout) => layout.header(tokens),
            Self::Bursts(encoding) => encoding.header(tokens, data_bytes),
        }
    }

    /// Whether a file begins as one of ours does, whatever number its header has.
    fn owns_header(&self, found: &[u8]) -> bool {
        match self {
            Self::Raw { .. } => true,
            Self::Npy(token) => npy::owns_header(token, found),
            Self::Wav(layout) => layout.owns_header(found),
            Self::Bursts(encoding) => encoding.owns_header(found),
        }
    }

    /// Where the first `tokens` tokens end in a file that has at least those: bytes behind the header, and the state in
    /// which bursts go on.
    fn end_of(&self, file: &File, tokens: u64) -> io::Result<(u64, Progress)> {
        match self {
            Self::Bursts(encoding) => encoding.bytes_of(file, tokens),
            Self::Raw { .. } | Self::Npy(_) | Self::Wav(_) => {
                let token_bytes = self.token_bytes().unwrap_or(0);
                Ok((tokens * token_bytes, Progress::default()))
            }
        }
    }
}

/// A file that is open to be written, and has not been changed yet: it can still be refused.
#[derive(Debug)]
pub(crate) struct PreparedSink {
    path: PathBuf,
    file: File,
    kind: FileKind,
    encoding: Encoding,
    position: Position,
    /// A file that is written before the first token, and its content.
    companion: Option<(PathBuf, Vec<u8>)>,
}

impl PreparedSink {
    /// Opens a file, or makes an empty one if there is none. A symbolic link stays one: its target is written.
    ///
    /// # Errors
    /// See [`FileError`]; also a format whose header has to be rewritten, where that cannot be done.
    pub(crate) fn open(path: &Path, port: Port<'_>) -> Result<Self, FileError> {
        let encoding = Encoding::of(path, port)?;
        let opened_file = if is_standard(path) {
            pipe::open_standard_output().map_err(io_error(path))?
        } else if zbmd_executor::is_named_pipe(path) {
            pipe::open_without_reader(path).map_err(io_error(path))?
        } else {
            File::options()
                .write(true)
                // Where tokens differ in length, cutting the file back begins with reading it.
                .read(matches!(encoding, Encoding::Bursts(_)))
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(io_error(path))?
        };

        let file_kind = match is_standard(path) {
            true => FileKind::Stream,
            false => FileKind::of(&opened_file.metadata().map_err(io_error(path))?),
        };
        if file_kind != FileKind::Regular && !encoding.header(0, 0).is_empty() {
            pipe::release_reader(&opened_file);
            return Err(FileError::Content {
                path: path.to_owned(),
                message: "is not a regular file, and the header of this format is rewritten as the file grows: write raw tokens, to a name with the extension bin"
                    .to_owned(),
            });
        }
        let position = Position::new(encoding.token_bytes());
        Ok(Self {
            path: path.to_owned(),
            file: opened_file,
            kind: file_kind,
            encoding,
            position,
            companion: None,
        })
    }

    /// A pipe that somebody of ours reads, in the place of the file `path`.
    pub(crate) fn of_pipe(path: &Path, pipe: File, port: Port<'_>) -> Self {
        let encoding = Encoding::Raw {
            token_bytes: port.token.bytes(),
        };
        Self {
            path: path.to_owned(),
            file: pipe,
            kind: FileKind::Stream,
            position: Position::new(encoding.token_bytes()),
            encoding,
            companion: None,
        }
    }

    /// Has another file written when this one is emptied, which describes it.
    pub(crate) fn begin_with(&mut self, path: PathBuf, content: Vec<u8>) {
        self.companion = Some((path, content));
    }

    /// What the file is.
    pub(crate) fn kind(&self) -> FileKind {
        self.kind
    }

    /// Ends a file that is given no tokens at all: whoever waits for those of a pipe sees its end.
    pub(crate) fn release_reader(&self) {
        if self.kind == FileKind::Stream && zbmd_executor::is_named_pipe(&self.path) {
            pipe::release_reader(&self.file);
        }
    }

    /// The open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// What will count the tokens.
    pub(crate) fn position(&self) -> &Position {
        &self.position
    }

    /// Empties the file, and begins with its header.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn begin(mut self) -> Result<SinkFile, FileError> {
        let sink_path = self.path.clone();
        let is_named_pipe =
            self.kind == FileKind::Stream && zbmd_executor::is_named_pipe(&sink_path);
        let companion = self.companion.take();
        let mut sink_file = self.into_file();
        if is_named_pipe {
            sink_file.file =
                pipe::open_for_writing(&sink_file.file).map_err(io_error(&sink_path))?;
        }
        if sink_file.kind == FileKind::Regular {
            sink_file.file.set_len(0).map_err(io_error(&sink_path))?;
            sink_file.write_header().map_err(io_error(&sink_path))?;
            if let Some((path, content)) = companion {
                crate::recordings::replace(&path, &content).map_err(io_error(&path))?;
            }
        }
        Ok(sink_file)
    }

    /// Goes on after the first `tokens` tokens of a file that an earlier run wrote; what is beyond them is dropped.
    ///
    /// # Errors
    /// See [`FileError`]; a file that has fewer, or that begins otherwise than this run's would, and a stream.
    pub(crate) fn resume(self, tokens: u64) -> Result<SinkFile, FileError> {
        let sink_path = self.path.clone();
        if tokens == 0 {
            return self.begin();
        }
        match self.kind {
            FileKind::Device => {
                let mut sink = self.into_file();
                sink.set_position(0, Progress::of_tokens(tokens));
                if let Some(token_bytes) = sink.encoding.token_bytes() {
                    sink.position.set_data_bytes(tokens * token_bytes);
                }
                return Ok(sink);
            }
            FileKind::Stream => {
                return Err(FileError::Content {
                    path: sink_path,
                    message:
                        "is a stream, which cannot be taken back to a checkpoint: give it a file"
                            .to_owned(),
                });
            }
            FileKind::Regular => {}
        }

        let found_tokens = whole_tokens(&sink_path, &self.encoding)?;
        if found_tokens < tokens {
            return Err(FileError::Content {
                path: sink_path,
                message: format!(
                    "has {found_tokens} whole tokens, {tokens} were written before the checkpoint: it was changed since"
                ),
            });
        }

        let mut sink = self.into_file();
        sink.cut_to(tokens).map_err(io_error(&sink_path))?;
        Ok(sink)
    }

    fn into_file(self) -> SinkFile {
        let header_bytes = self.encoding.header(0, 0).len() as u64;
        SinkFile {
            file: self.file,
            kind: self.kind,
            encoding: self.encoding,
            header_bytes,
            position: self.position,
            encoded: Vec::new(),
            progress: Progress::default(),
        }
    }
}

/// Whole tokens in a file that a run wrote for this port, from the file's length; `None` where there is no regular file
/// of that name.
///
/// # Errors
/// See [`FileError`].
pub(crate) fn tokens_in(path: &Path, port: Port<'_>) -> Result<Option<u64>, FileError> {
    let encoding = Encoding::of(path, port)?;
    if is_standard(path) || !fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    whole_tokens(path, &encoding).map(Some)
}

fn whole_tokens(path: &Path, encoding: &Encoding) -> Result<u64, FileError> {
    let written_file = File::open(path).map_err(io_error(path))?;
    let file_bytes = written_file.metadata().map_err(io_error(path))?.len();
    let header_bytes = encoding.header(0, 0).len() as u64;
    let Some(data_bytes) = file_bytes.checked_sub(header_bytes) else {
        return Ok(0);
    };

    let mut found_header = vec![0; header_bytes as usize];
    written_file
        .read_exact_at(&mut found_header, 0)
        .map_err(io_error(path))?;
    if !encoding.owns_header(&found_header) {
        return Err(FileError::Content {
            path: path.to_owned(),
            message: "does not begin with the header that this run writes: it was changed since the checkpoint".to_owned(),
        });
    }
    Ok(match encoding {
        Encoding::Bursts(bursts) => bursts.tokens_by_header(&found_header),
        Encoding::Raw { .. } | Encoding::Npy(_) | Encoding::Wav(_) => {
            data_bytes / encoding.token_bytes().unwrap_or(1)
        }
    })
}

/// A file that tokens are written to.
#[derive(Debug)]
pub(crate) struct SinkFile {
    file: File,
    kind: FileKind,
    encoding: Encoding,
    header_bytes: u64,
    position: Position,
    /// Samples on their way to the file, where they stand otherwise in it than in tokens.
    encoded: Vec<u8>,
    /// Of a file of bursts.
    progress: Progress,
}

impl SinkFile {
    /// Writes whole tokens. After an error the file holds those that [`Position::tokens`] counts, and no part of one
    /// where that can be undone.
    ///
    /// # Errors
    /// What the system says, a file that would be longer than its format allows, and bursts that are longer than their type
    /// allows.
    pub(crate) fn write_tokens(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut encoded = std::mem::take(&mut self.encoded);
        let mut progress = self.progress;
        let data = match &self.encoding {
            Encoding::Wav(layout) => {
                layout.encode(bytes, &mut encoded);
                Ok(encoded.as_slice())
            }
            Encoding::Bursts(encoding) => encoding
                .encode(bytes, &mut progress, &mut encoded)
                .map(|()| encoded.as_slice()),
            Encoding::Raw { .. } | Encoding::Npy(_) => Ok(bytes),
        };
        let written = data.and_then(|data| self.write_data(data));
        self.encoded = encoded;
        if written.is_ok() {
            self.set_position(self.position.data_bytes(), progress);
        }

        if written.is_err() && self.kind == FileKind::Regular {
            // Of no use if it fails too: the first error is the one to report.
            let _ = self.cut_back(self.position.tokens());
        }
        written?;
        self.write_header()
    }

    fn write_data(&mut self, mut data: &[u8]) -> io::Result<()> {
        if let Encoding::Wav(layout) = &self.encoding {
            layout.check_room(self.position.data_bytes(), data.len() as u64)?;
        }
        while !data.is_empty() {
            let at = self.position.data_bytes();
            let written = match self.kind {
                FileKind::Regular => self.file.write_at(data, self.header_bytes + at),
                FileKind::Device | FileKind::Stream => self.file.write(data),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.position.set_data_bytes(at + bytes as u64);
                    data = &data[bytes..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    pipe::wait_for_room(&self.file);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings the header up to date with the data before it; nothing where there is none.
    fn write_header(&mut self) -> io::Result<()> {
        if self.header_bytes == 0 {
            return Ok(());
        }
        let header = self
            .encoding
            .header(self.position.tokens(), self.position.data_bytes());
        self.file.write_all_at(&header, 0)
    }

    /// Drops what is beyond the first `tokens` tokens of a regular file; others keep what they were given.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn cut_back(&mut self, tokens: u64) -> io::Result<()> {
        if self.kind != FileKind::Regular || tokens > self.position.tokens() {
            return Ok(());
        }
        self.cut_to(tokens)
    }

    /// Drops what is beyond the first `tokens` tokens of a regular file that has at least those.
    fn cut_to(&mut self, tokens: u64) -> io::Result<()> {
        let (data_bytes, progress) = self.encoding.end_of(&self.file, tokens)?;
        self.set_position(data_bytes, progress);
        // The header first: between the two it says less than there is, never more.
        self.write_header()?;
        self.file.set_len(self.header_bytes + data_bytes)
    }

    fn set_position(&mut self, data_bytes: u64, progress: Progress) {
        self.progress = progress;
        self.position.set_data_bytes(data_bytes);
        self.position.set_counted_tokens(progress.tokens);
    }

    /// Makes the file safe against the loss of power.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        match self.kind {
            FileKind::Regular => self.file.sync_data(),
            // A device or a pipe has nothing to sync.
            FileKind::Device | FileKind::Stream => Ok(()),
        }
    }
}
