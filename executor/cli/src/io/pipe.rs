//! Pipes as files of streams. Opening a pipe with a name waits for its other end, and writing to one waits for its
//! reader: both are left to the thread that moves the tokens, which may be left behind, and every byte that the reader's
//! side has taken is counted.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// A pipe with a name that is opened when it is first read.
pub(super) struct PipeReader {
    path: PathBuf,
    file: Option<File>,
}

impl PipeReader {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
        }
    }
}

impl Read for PipeReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(File::open(&self.path)?),
        };
        file.read(to)
    }
}

/// Standard output, as a file that takes what there is room for if it is a pipe.
pub(super) fn open_standard_output() -> io::Result<File> {
    match own_standard_output() {
        Some(file) => Ok(file),
        None => Ok(File::from(io::stdout().as_fd().try_clone_to_owned()?)),
    }
}

/// A pipe with a name, as a file that can be looked at and not be written yet: [`open_for_writing`] waits for its reader.
#[cfg(target_os = "linux")]
pub(super) fn open_without_reader(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags, open};
    let open_flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(File::from(open(path, open_flags, Mode::empty())?))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn open_without_reader(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// Opens what [`open_without_reader`] looked at: waits for its reader. Its writes take what there is room for.
pub(super) fn open_for_writing(file: &File) -> io::Result<File> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::os::fd::AsRawFd;
    let descriptor_path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let writable_file = File::options().write(true).open(descriptor_path)?;
    fcntl_setfl(
        &writable_file,
        fcntl_getfl(&writable_file)? | OFlags::NONBLOCK,
    )?;
    Ok(writable_file)
}

/// Lets a reader of what [`open_without_reader`] looked at see its end, if one waits. Nobody is waited for.
pub(super) fn release_reader(file: &File) {
    use rustix::fs::{Mode, OFlags, open};
    use std::os::fd::AsRawFd;
    let descriptor_path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let open_flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // Without a reader it cannot be opened, and nobody waits.
    drop(open(descriptor_path, open_flags, Mode::empty()));
}

/// Waits until a file takes something: its write said that it would have to wait.
pub(super) fn wait_for_room(file: &File) {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut poll_fds = [PollFd::new(file, PollFlags::OUT)];
    // An error or an interruption shows at the next write.
    let _ = poll(&mut poll_fds, None);
}

/// Standard output opened anew if it is a pipe. The mode of the one that was inherited is shared with other processes,
/// and must stay as it is. `None` where that cannot be done: for files, sockets, and pipes of another user.
#[cfg(target_os = "linux")]
fn own_standard_output() -> Option<File> {
    use rustix::fs::{FileType, Mode, OFlags, fstat, open};
    let is_pipe = |file: &rustix::fs::Stat| FileType::from_raw_mode(file.st_mode).is_fifo();
    let inherited_stat = fstat(io::stdout()).ok().filter(is_pipe)?;
    let open_flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let own_output = open("/proc/self/fd/1", open_flags, Mode::empty()).ok()?;
    let own_stat = fstat(&own_output).ok()?;
    let is_same =
        (own_stat.st_dev, own_stat.st_ino) == (inherited_stat.st_dev, inherited_stat.st_ino);
    is_same.then(|| File::from(own_output))
}

#[cfg(not(target_os = "linux"))]
fn own_standard_output() -> Option<File> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::{Duration, Instant};

    use zbmd_ir::{DType, Params, TokenType};

    use super::*;
    use crate::io::{FileKind, Port, PreparedSink};

    /// A folder with a pipe with a name.
    fn named_pipe() -> (tempfile::TempDir, PathBuf) {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let pipe_folder = tempfile::tempdir().expect("a folder");
        let pipe_path = pipe_folder.path().join("pipe");
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, &pipe_path, FileType::Fifo, mode, 0).expect("a pipe");
        (pipe_folder, pipe_path)
    }

    #[test]
    fn every_byte_that_the_pipe_takes_is_counted_while_nobody_reads() {
        let (_folder, path) = named_pipe();
        assert!(zbmd_executor::is_named_pipe(&path));
        let token = TokenType::scalar(DType::U8);
        let params = Params::new();
        let port = Port {
            stream: "out",
            token: &token,
            params: &params,
        };
        let prepared = PreparedSink::open(&path, port).expect("nobody is waited for");
        assert_eq!(prepared.kind(), FileKind::Stream);
        let position = prepared.position().clone();
        let writer_thread = std::thread::spawn(move || {
            let mut sink_file = prepared.begin().expect("its reader comes");
            sink_file.write_tokens(&[7; 1 << 20])
        });
        let mut reader = PipeReader::new(&path);
        let mut first_bytes = [0; 1000];
        reader
            .read_exact(&mut first_bytes)
            .expect("the writer is there");

        // It takes what it has room for, and then no more.
        let begin_time = Instant::now();
        while position.tokens() == 0 && begin_time.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        let counted_tokens = position.tokens();
        assert!((1..1 << 20).contains(&counted_tokens), "{counted_tokens}");
        assert!(!writer_thread.is_finished());

        let mut rest_bytes = Vec::new();
        let rest_length = (1 << 20) - first_bytes.len() as u64;
        let read_result = reader.take(rest_length).read_to_end(&mut rest_bytes);
        assert_eq!(read_result.expect("all of it") as u64, rest_length);
        writer_thread
            .join()
            .expect("no panic")
            .expect("all is taken");
        assert_eq!(position.tokens(), 1 << 20);
    }
}
