//! The page: a small file in memory that a run writes a few times a second, and that others read.
//!
//! It lies in `$XDG_RUNTIME_DIR`, or else in the temporary folder, and is called `zbmd-PID.live`. 16-byte head: `ZBLV`,
//! version (u32), length of the body (u32), 0; then a checksum (u64) of the body, then the body, which is [`Live`] as
//! JSON. It is written with one call and read with one call; a reader that meets a writer in the middle finds a
//! checksum that does not fit, and reads again. Neither waits for the other.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::Progress;
use crate::measure::Clock;

const MAGIC: [u8; 4] = *b"ZBLV";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 24;
/// Longest body; lists are left out where it would be longer.
const MAX_BYTES: usize = 64 << 10;
/// Rates are means over about so long.
const WINDOW_NS: u64 = 1_000_000_000;
/// Reads that meet the writer before a page is called damaged.
const ATTEMPTS: u32 = 100;

/// What the page says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Live {
    /// Process of the run.
    pub pid: u32,
    /// When that process was started, in the system's count: tells it from a later one of the same number.
    pub started: u64,
    /// How long the run has been on.
    pub elapsed_ns: u64,
    /// When this was written, on the system's monotonic clock.
    pub at_ns: u64,
    /// Iterations per second, over the last second.
    pub iterations_per_s: f64,
    /// Mean time from period to period, over the last second; 0 if there was none.
    pub period_measured_ns: f64,
    /// How much longer a period took than planned: 0.1 for a tenth; negative if it was shorter.
    pub lateness: f64,
    /// The run itself.
    #[serde(flatten)]
    pub progress: Progress,
}

/// Why a page cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// No such run.
    #[error("there is no run with process {0}: `zbmd-run top` lists those that are on")]
    Absent(u32),
    /// Its process is gone and has not tidied up.
    #[error("the run of process {0} is dead: it was killed, {1} iterations after its beginning")]
    Dead(u32, u64),
    /// It is there, but not for us, or damaged.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The page.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Where pages lie.
fn folder() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime
        .filter(|path| path.is_absolute())
        .unwrap_or_else(std::env::temp_dir)
}

fn path_of(pid: u32) -> PathBuf {
    folder().join(format!("zbmd-{pid}.live"))
}

/// The page of this process. Removed when it is dropped.
#[derive(Debug)]
pub struct Page {
    file: File,
    path: PathBuf,
    live: Live,
    began_ns: u64,
    /// When how many iterations and periods of which epoch were done.
    past: VecDeque<(u64, u64, u64, u64)>,
    bytes: Vec<u8>,
}

impl Page {
    /// Makes the page of this process.
    ///
    /// # Errors
    /// What the system says.
    pub fn create() -> io::Result<Self> {
        let pid = std::process::id();
        let path = path_of(pid);
        // Left behind by a process of the same number that is gone. Nothing else is ever written through.
        let _ = std::fs::remove_file(&path);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path)?;
        let live = Live {
            pid,
            started: started(pid).unwrap_or(0),
            ..Live::default()
        };
        let began_ns = Clock.now_ns();
        Ok(Self {
            file,
            path,
            live,
            began_ns,
            past: VecDeque::new(),
            bytes: Vec::new(),
        })
    }

    /// Writes what the run is at.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&mut self, progress: Progress) -> io::Result<()> {
        let now_ns = Clock.now_ns();
        self.rates(now_ns, &progress);
        let live = &mut self.live;
        (live.at_ns, live.elapsed_ns) = (now_ns, now_ns.saturating_sub(self.began_ns));
        live.progress = progress;
        let mut body = serde_json::to_vec(live).map_err(io::Error::other)?;
        if body.len() > MAX_BYTES {
            for list in [&mut live.progress.rings, &mut live.progress.queues] {
                list.clear();
            }
            live.progress.devices.clear();
            body = serde_json::to_vec(live).map_err(io::Error::other)?;
        }
        let bytes = &mut self.bytes;
        bytes.clear();
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(xxh3_64(&body).to_le_bytes());
        bytes.extend(body);
        write_at(&self.file, bytes)
    }

    /// Means over the last second of this epoch.
    fn rates(&mut self, now_ns: u64, progress: &Progress) {
        let Progress {
            iterations,
            epoch,
            periods,
            ..
        } = *progress;
        if self
            .past
            .back()
            .is_some_and(|(_, _, _, before)| *before != epoch)
        {
            self.past.clear();
        }
        self.past.push_back((now_ns, iterations, periods, epoch));
        let is_old = |at: u64| now_ns.saturating_sub(at) >= WINDOW_NS;
        // The first that is old enough is kept: the mean is over no less than the window.
        while self.past.get(1).is_some_and(|past| is_old(past.0)) {
            self.past.pop_front();
        }
        let Some(&(at, then, before, _)) = self.past.front() else {
            return;
        };
        let took_ns = now_ns.saturating_sub(at) as f64;
        let done = periods.saturating_sub(before) as f64;
        let live = &mut self.live;
        let since = iterations.saturating_sub(then) as f64;
        live.iterations_per_s = if took_ns > 0.0 {
            since * 1e9 / took_ns
        } else {
            0.0
        };
        live.period_measured_ns = if done > 0.0 { took_ns / done } else { 0.0 };
        let planned = progress.period_planned_ns as f64;
        let is_known = planned > 0.0 && live.period_measured_ns > 0.0;
        live.lateness = if is_known {
            live.period_measured_ns / planned - 1.0
        } else {
            0.0
        };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // A page that is left behind is found to be of a dead process.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, 0)
}

#[cfg(not(unix))]
fn write_at(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    file.seek(SeekFrom::Start(0))?;
    file.write_all(bytes)
}

/// When a process was started; `None` if it is gone, or the system does not tell.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything. It is field 2; the state after it is field 3, this is field 22.
    let (state, rest) = stat.rsplit_once(')')?.1.trim_start().split_once(' ')?;
    // A zombie does nothing any more; its parent has not asked yet how it ended.
    if state == "Z" {
        return None;
    }
    rest.split_ascii_whitespace().nth(18)?.parse().ok()
}

/// What the page of a process says. A page that was left behind is removed.
///
/// # Errors
/// No such run, or a dead one; see [`PageError`].
pub(crate) fn read(pid: u32) -> Result<Live, PageError> {
    let path = path_of(pid);
    let live = match read_file(&path) {
        Ok(live) => live,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(PageError::Absent(pid));
        }
        Err(source) => return Err(PageError::Unreadable { path, source }),
    };
    if cfg!(target_os = "linux") && started(pid) != Some(live.started) {
        let _ = std::fs::remove_file(&path);
        return Err(PageError::Dead(pid, live.progress.iterations));
    }
    Ok(live)
}

fn read_file(path: &Path) -> io::Result<Live> {
    for _ in 0..ATTEMPTS {
        let bytes = std::fs::read(path)?;
        let Some(body) = body(&bytes) else {
            std::thread::sleep(std::time::Duration::from_millis(1));
            continue;
        };
        return serde_json::from_slice(body).map_err(io::Error::other);
    }
    Err(io::Error::other("it is no page of a run of this version"))
}

/// The body, if it is whole.
fn body(bytes: &[u8]) -> Option<&[u8]> {
    let head = bytes.first_chunk::<HEAD_BYTES>()?;
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let sum = u64::from(number(16)) | u64::from(number(20)) << 32;
    let body = bytes.get(HEAD_BYTES..HEAD_BYTES + number(8) as usize)?;
    (head[..4] == MAGIC && number(4) == VERSION && xxh3_64(body) == sum).then_some(body)
}

/// The runs that are on, by process.
pub fn running() -> Vec<Live> {
    let files = std::fs::read_dir(folder()).into_iter().flatten().flatten();
    let pid = |name: &str| {
        name.strip_prefix("zbmd-")?
            .strip_suffix(".live")?
            .parse()
            .ok()
    };
    let mut pids: Vec<u32> = files
        .filter_map(|file| pid(file.file_name().to_str()?))
        .collect();
    pids.sort_unstable();
    pids.into_iter().filter_map(|pid| read(pid).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_what_was_written_and_goes_with_its_writer() {
        let pid = std::process::id();
        let mut page = Page::create().expect("a file");
        let progress = Progress {
            model: "m".into(),
            iterations: 7,
            ..Progress::default()
        };
        page.write(progress.clone()).expect("written");
        let live = read(pid).expect("there");
        assert_eq!((live.pid, live.progress), (pid, progress.clone()));
        assert!(running().iter().any(|live| live.pid == pid));
        // A long one, then a short one, whose end is not that of the file.
        let fill = super::super::Fill {
            name: "x".repeat(1000),
            ..Default::default()
        };
        let many = Progress {
            rings: vec![fill; 500],
            ..progress.clone()
        };
        page.write(many).expect("written");
        assert_eq!(read(pid).expect("there").progress.rings, [], "too long");
        page.write(progress.clone()).expect("written");
        assert_eq!(read(pid).expect("there").progress, progress);
        drop(page);
        assert!(matches!(read(pid), Err(PageError::Absent(p)) if p == pid));
    }

    #[test]
    fn half_a_page_is_none() {
        let body = br#"{"pid":1}"#;
        let mut bytes = [
            &MAGIC[..],
            &VERSION.to_le_bytes(),
            &9u32.to_le_bytes(),
            &[0; 4],
        ]
        .concat();
        bytes.extend(xxh3_64(body).to_le_bytes());
        bytes.extend(body);
        assert_eq!(super::body(&bytes), Some(&body[..]));
        for cut in 0..bytes.len() {
            assert_eq!(super::body(&bytes[..cut]), None);
            let mut wrong = bytes.clone();
            wrong[cut] ^= 1;
            // The four bytes that mean nothing may be anything.
            assert_eq!(
                super::body(&wrong).is_some(),
                (12..16).contains(&cut),
                "byte {cut}"
            );
        }
    }

    #[test]
    fn rates_are_those_of_the_epoch_at_work() {
        let mut page = Page {
            file: tempfile::tempfile().expect("a file"),
            path: PathBuf::from("/nonexistent/zbmd"),
            live: Live::default(),
            began_ns: 0,
            past: VecDeque::new(),
            bytes: Vec::new(),
        };
        let at = |epoch, periods| Progress {
            epoch,
            periods,
            iterations: 3 * periods,
            period_planned_ns: 1_000_000,
            ..Progress::default()
        };
        for step in 0..50u64 {
            page.rates(step * 100_000_000, &at(0, 50 * step));
        }
        let Live {
            iterations_per_s,
            period_measured_ns,
            lateness,
            ..
        } = page.live;
        assert_eq!(
            (iterations_per_s, period_measured_ns, lateness),
            (1500.0, 2e6, 1.0)
        );
        page.rates(5_000_000_000, &at(1, 0));
        assert_eq!(
            page.live.period_measured_ns, 0.0,
            "nothing of this epoch yet"
        );
    }
}
