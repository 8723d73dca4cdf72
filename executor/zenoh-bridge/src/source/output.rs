//! Where tokens go: a file, whose length is the position, or a pipe.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::BridgeError;

/// Tokens are written when they are so many, or when no more wait to be taken.
const WRITE_BYTES: usize = 64 << 10;

/// A file or a pipe that is written.
pub(super) struct Output {
    name: String,
    file: File,
    is_stream: bool,
    token_bytes: u64,
    found_bytes: u64,
    written_bytes: u64,
    /// Whole tokens that are written together with those that follow.
    waiting: Vec<u8>,
}

impl Output {
    /// Opens a file to be gone on with, or a pipe. Nothing of a file is changed yet.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn open(path: &Path, token_bytes: u64) -> Result<Self, BridgeError> {
        let is_standard = path.as_os_str() == "-";
        let name = match is_standard {
            true => "standard output".to_owned(),
            false => path.display().to_string(),
        };
        let of_file = BridgeError::of_file(&name);
        let opened = match is_standard {
            true => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            false => File::options().append(true).create(true).open(path),
        };
        let file = opened.map_err(&of_file)?;
        let metadata = file.metadata().map_err(&of_file)?;
        let is_stream = is_standard || !metadata.is_file();
        let found_bytes = match is_stream {
            true => 0,
            false => metadata.len(),
        };
        Ok(Self {
            name,
            file,
            is_stream,
            token_bytes,
            found_bytes,
            written_bytes: 0,
            waiting: Vec::new(),
        })
    }

    /// What messages call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that a file had before.
    pub(super) fn found_bytes(&self) -> u64 {
        self.found_bytes
    }

    /// Of those, the bytes of whole tokens.
    pub(super) fn whole_bytes(&self) -> u64 {
        self.found_bytes - self.found_bytes % self.token_bytes
    }

    /// Cuts off a part of a token, which a process that was killed may have left.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn cut_partial_token(&self) -> Result<(), BridgeError> {
        match self.whole_bytes() < self.found_bytes {
            true => self
                .file
                .set_len(self.whole_bytes())
                .map_err(BridgeError::of_file(&self.name)),
            false => Ok(()),
        }
    }

    /// Bytes that this process has written.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Takes whole tokens, which are written by [`Self::flush`], or once there are many.
    ///
    /// # Errors
    /// What the system says, or that nobody reads any more.
    pub(super) fn write(&mut self, tokens: &[u8]) -> Result<(), BridgeError> {
        self.waiting.extend_from_slice(tokens);
        match self.waiting.len() < WRITE_BYTES {
            true => Ok(()),
            false => self.flush(),
        }
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// What the system says, or that nobody reads any more.
    pub(super) fn flush(&mut self) -> Result<(), BridgeError> {
        let result = self.file.write_all(&self.waiting);
        let length = self.waiting.len() as u64;
        self.waiting.clear();
        match result {
            Ok(()) => {
                self.written_bytes += length;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(self.reader_gone()),
            Err(error) => Err(BridgeError::of_file(&self.name)(error)),
        }
    }

    fn reader_gone(&self) -> BridgeError {
        BridgeError::ReaderGone {
            name: self.name.clone(),
            tokens: self.written_bytes / self.token_bytes,
        }
    }

    /// Looks whether a pipe still has a reader, which a silent stream would not notice.
    ///
    /// # Errors
    /// That it has none.
    pub(super) fn check_reader(&self) -> Result<(), BridgeError> {
        if !self.is_stream {
            return Ok(());
        }
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut poll_fds = [PollFd::new(&self.file, PollFlags::empty())];
        // An interruption shows nothing, and it is looked again soon.
        let is_looked_at = poll(&mut poll_fds, Some(&now)).is_ok();
        let is_gone = poll_fds[0].revents().contains(PollFlags::ERR);
        match is_looked_at && is_gone {
            true => Err(self.reader_gone()),
            false => Ok(()),
        }
    }

    /// Writes what waits, and hands a file's bytes to the disk.
    ///
    /// # Errors
    /// What the system says, or that nobody reads any more.
    pub(super) fn finish(&mut self) -> Result<(), BridgeError> {
        self.flush()?;
        match self.is_stream {
            true => Ok(()),
            false => self
                .file
                .sync_all()
                .map_err(BridgeError::of_file(&self.name)),
        }
    }
}
