//! Pipes as files of streams. Opening a pipe with a name waits for its other end, and writing to one waits for its
//! reader: both are left to the thread that moves the tokens, which may be left behind, and every byte that the reader's
//! side has taken is counted.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether it is a pipe with a name.
pub(crate) fn is_named_pipe(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(path).is_ok_and(|data| data.file_type().is_fifo())
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// Whether whoever reads an output may keep its writer waiting for any time: it is anything but a file on a disk.
pub(crate) fn has_reader(path: &Path) -> bool {
    #[cfg(unix)]
    {
        let is_file = match super::is_standard(path) {
            true => rustix::fs::fstat(io::stdout())
                .is_ok_and(|s| rustix::fs::FileType::from_raw_mode(s.st_mode).is_file()),
            false => std::fs::metadata(path).is_ok_and(|data| data.is_file()),
        };
        !is_file
    }
    #[cfg(not(unix))]
    {
        super::is_standard(path)
    }
}

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

/// Bytes that an output's reader, or its pipe, has taken.
pub(crate) type Taken = Arc<AtomicU64>;

/// An output that is a pipe, or something else that is not a file on a disk.
pub(super) struct PipeWriter {
    target: Target,
    taken: Taken,
}

enum Target {
    /// Standard output, as it is.
    Standard,
    /// A pipe with a name, until it is first written.
    Named(PathBuf),
    /// A pipe whose writes take what there is room for, so that every byte can be counted.
    Open(File),
}

impl PipeWriter {
    pub(super) fn of_standard_output() -> Self {
        Self::new(own_standard_output().map_or(Target::Standard, Target::Open))
    }

    pub(super) fn named(path: &Path) -> Self {
        Self::new(Target::Named(path.to_owned()))
    }

    fn new(target: Target) -> Self {
        Self {
            target,
            taken: Taken::default(),
        }
    }

    pub(super) fn taken(&self) -> Taken {
        Arc::clone(&self.taken)
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Target::Named(path) = &self.target {
            let file = File::options().write(true).open(path)?;
            set_nonblocking(&file)?;
            self.target = Target::Open(file);
        }
        let written = match &mut self.target {
            Target::Open(file) => write_when_there_is_room(file, bytes)?,
            Target::Standard | Target::Named(_) => io::stdout().write(bytes)?,
        };
        self.taken.fetch_add(written as u64, Ordering::AcqRel);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::Open(file) => file.flush(),
            Target::Standard => io::stdout().flush(),
            Target::Named(_) => Ok(()),
        }
    }
}

#[cfg(unix)]
fn write_when_there_is_room(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(file, PollFlags::OUT)];
                // An error or an interruption shows at the next write.
                let _ = poll(&mut fds, None);
            }
            other => return other,
        }
    }
}

#[cfg(not(unix))]
fn write_when_there_is_room(file: &mut File, bytes: &[u8]) -> io::Result<usize> {
    file.write(bytes)
}

#[cfg(unix)]
fn set_nonblocking(file: &File) -> io::Result<()> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    Ok(fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?)
}

#[cfg(not(unix))]
fn set_nonblocking(_: &File) -> io::Result<()> {
    Ok(())
}

/// Standard output opened anew if it is a pipe. The mode of the one that was inherited is shared with other processes,
/// and must stay as it is. `None` where that cannot be done: for files, sockets, and pipes of another user.
#[cfg(target_os = "linux")]
fn own_standard_output() -> Option<File> {
    use rustix::fs::{FileType, Mode, OFlags, fstat, open};
    let is_pipe = |file: &rustix::fs::Stat| FileType::from_raw_mode(file.st_mode).is_fifo();
    let inherited = fstat(io::stdout()).ok().filter(is_pipe)?;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let own = open("/proc/self/fd/1", flags, Mode::empty()).ok()?;
    let found = fstat(&own).ok()?;
    let is_same = (found.st_dev, found.st_ino) == (inherited.st_dev, inherited.st_ino);
    is_same.then(|| File::from(own))
}

#[cfg(not(target_os = "linux"))]
fn own_standard_output() -> Option<File> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A folder with a pipe with a name.
    fn named_pipe() -> (tempfile::TempDir, PathBuf) {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        let mode = Mode::from_raw_mode(0o600);
        mknodat(CWD, &path, FileType::Fifo, mode, 0).expect("a pipe");
        (folder, path)
    }

    #[test]
    fn every_byte_that_the_pipe_takes_is_counted_while_nobody_reads() {
        let (_folder, path) = named_pipe();
        assert!(is_named_pipe(&path) && has_reader(&path));
        let mut writer = PipeWriter::named(&path);
        let taken = writer.taken();
        let written = std::thread::spawn(move || writer.write_all(&[7; 1 << 20]));
        let mut reader = PipeReader::new(&path);
        let mut first = [0; 1000];
        reader.read_exact(&mut first).expect("the writer is there");

        // It takes what it has room for, and then no more.
        let begun = Instant::now();
        while taken.load(Ordering::Acquire) == 0 && begun.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        let counted = taken.load(Ordering::Acquire);
        assert!((1..1 << 20).contains(&counted), "{counted}");
        assert!(!written.is_finished());

        let mut rest = Vec::new();
        let length = (1 << 20) - first.len() as u64;
        let found = reader.take(length).read_to_end(&mut rest);
        assert_eq!(found.expect("all of it") as u64, length);
        written.join().expect("no panic").expect("all is taken");
        assert_eq!(taken.load(Ordering::Acquire), 1 << 20);
    }
}
