//! The page: a small file in memory that a run writes a few times a second, and that others read.
//!
//! It is in the user's runtime folder ([`super::folder`]), and is called `zbmd-PID.live`. 16-byte head: `ZBLV`, version
//! (u32), length of the body (u32), 0; then a checksum (u64) of the body, then the body, which is [`Live`] as JSON. It is
//! written with one call and read with one call; a reader that meets a writer in the middle finds a checksum that does
//! not fit, and reads again. Neither waits for the other.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;
use zbmd_ir::text::printable;

use super::{Progress, folder};
use crate::transport::clock::Clock;

const MAGIC: [u8; 4] = *b"ZBLV";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 24;
/// Longest body; lists are left out where it would be longer.
const MAX_BYTES: usize = 1 << 20;
/// Rates are means over about so long.
const WINDOW_NS: u64 = 1_000_000_000;
/// Reads that meet the writer before a page is called damaged.
const ATTEMPTS: u32 = 100;

/// What the page says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Live {
    /// Process of the run.
    pub pid: u32,
    /// When that process was started, in the system's count: distinguishes it from a later one of the same number.
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

/// The page of this process. Removed when it is dropped.
#[derive(Debug)]
pub struct Page {
    file: File,
    path: PathBuf,
    live: Live,
    began_ns: u64,
    /// How far the run was, oldest first.
    past: VecDeque<RateSample>,
    bytes: Vec<u8>,
}

/// How far the run was at one moment.
#[derive(Debug)]
struct RateSample {
    at_ns: u64,
    iterations: u64,
    periods: u64,
    epoch: u64,
}

impl Page {
    /// Makes the page of this process.
    ///
    /// # Errors
    /// What the system says.
    pub fn create() -> io::Result<Self> {
        let pid = std::process::id();
        let (file, path) = folder::create(pid)?;
        let live = Live {
            pid,
            started: process_start(pid).unwrap_or(0),
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
        self.update_rates(now_ns, &progress);
        let live = &mut self.live;
        live.at_ns = now_ns;
        live.elapsed_ns = now_ns.saturating_sub(self.began_ns);
        live.progress = progress;

        let mut body_bytes = serde_json::to_vec(live).map_err(io::Error::other)?;
        if body_bytes.len() > MAX_BYTES {
            // Of many devices there are many more rings.
            live.progress.rings.clear();
            body_bytes = serde_json::to_vec(live).map_err(io::Error::other)?;
        }
        if body_bytes.len() > MAX_BYTES {
            live.progress.queues.clear();
            live.progress.hosts.clear();
            live.progress.devices.clear();
            live.progress.releases.clear();
            live.progress.deadlines.clear();
            live.progress.parameters.clear();
            body_bytes = serde_json::to_vec(live).map_err(io::Error::other)?;
        }

        let page_bytes = &mut self.bytes;
        page_bytes.clear();
        page_bytes.extend(MAGIC);
        page_bytes.extend(VERSION.to_le_bytes());
        page_bytes.extend((body_bytes.len() as u32).to_le_bytes());
        page_bytes.extend([0; 4]);
        page_bytes.extend(xxh3_64(&body_bytes).to_le_bytes());
        page_bytes.extend(body_bytes);

        write_at(&self.file, page_bytes)
    }

    /// Means over the last second of this epoch.
    fn update_rates(&mut self, now_ns: u64, progress: &Progress) {
        let is_new_epoch = |last: &RateSample| last.epoch != progress.epoch;
        if self.past.back().is_some_and(is_new_epoch) {
            self.past.clear();
        }
        self.past.push_back(RateSample {
            at_ns: now_ns,
            iterations: progress.iterations,
            periods: progress.periods,
            epoch: progress.epoch,
        });

        // The first that is old enough is kept: the mean is over no less than the window.
        while let Some(second) = self.past.get(1)
            && now_ns.saturating_sub(second.at_ns) >= WINDOW_NS
        {
            self.past.pop_front();
        }
        let Some(oldest) = self.past.front() else {
            return;
        };
        let elapsed_ns = now_ns.saturating_sub(oldest.at_ns) as f64;
        let periods_done = progress.periods.saturating_sub(oldest.periods) as f64;
        let iterations_done = progress.iterations.saturating_sub(oldest.iterations) as f64;
        let live = &mut self.live;

        live.iterations_per_s = if elapsed_ns > 0.0 {
            iterations_done * 1e9 / elapsed_ns
        } else {
            0.0
        };
        live.period_measured_ns = if periods_done > 0.0 {
            elapsed_ns / periods_done
        } else {
            0.0
        };

        let planned_ns = progress.period_planned_ns as f64;
        let is_known = planned_ns > 0.0 && live.period_measured_ns > 0.0;
        live.lateness = if is_known {
            live.period_measured_ns / planned_ns - 1.0
        } else {
            0.0
        };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // A page that is left behind is removed by whoever finds it.
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
fn process_start(pid: u32) -> Option<u64> {
    let stat_line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything. It is field 2; the state after it is field 3, this is field 22.
    let (state, rest) = stat_line.rsplit_once(')')?.1.trim_start().split_once(' ')?;
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
pub fn read(pid: u32) -> Result<Live, PageError> {
    let unreadable = |path: PathBuf| move |source| PageError::Unreadable { path, source };
    let path =
        folder::path_of(pid).map_err(unreadable(PathBuf::from("the folder of live pages")))?;
    let file = match folder::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(PageError::Absent(pid));
        }
        Err(error) => return Err(unreadable(path)(error)),
    };

    let page_result = read_file(&file).map(Live::printable);
    if folder::is_left_behind(&file) {
        folder::remove(&path);
        let iterations = page_result.map_or(0, |live| live.progress.iterations);
        return Err(PageError::Dead(pid, iterations));
    }
    page_result.map_err(unreadable(path))
}

fn read_file(file: &File) -> io::Result<Live> {
    for _ in 0..ATTEMPTS {
        let page_bytes = read_at_start(file)?;
        let Some(body) = body(&page_bytes) else {
            std::thread::sleep(std::time::Duration::from_millis(1));
            continue;
        };
        return serde_json::from_slice(body).map_err(io::Error::other);
    }
    Err(io::Error::other("is not a page of a run of this version"))
}

/// The whole page, or the beginning of what is too long for one.
fn read_at_start(mut file: &File) -> io::Result<Vec<u8>> {
    use std::io::{Read, Seek, SeekFrom};
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    let max_bytes = (HEAD_BYTES + MAX_BYTES) as u64;
    file.take(max_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Live {
    /// The same with names that can be shown on a terminal, whatever a model calls its parts.
    fn printable(mut self) -> Self {
        let progress = &mut self.progress;
        let fills = progress.rings.iter_mut().chain(&mut progress.queues);
        let names = fills.map(|fill| &mut fill.name);
        let hosts = progress.hosts.iter_mut().map(|host| &mut host.host);
        let devices = progress.devices.iter_mut();
        let devices = devices.flat_map(|device| device.host.iter_mut().chain([&mut device.device]));
        let releases = progress.releases.iter_mut();
        let releases = releases.map(|release| &mut release.source);
        let deadlines = progress.deadlines.iter_mut();
        let deadlines = deadlines.flat_map(|d| [&mut d.sink, &mut d.on_miss]);
        let parameters = progress.parameters.iter_mut();
        let parameters = parameters.map(|value| &mut value.parameter);
        let mode = progress.mode.iter_mut().map(|mode| &mut mode.mode);
        for name in names
            .chain(hosts)
            .chain(devices)
            .chain(releases)
            .chain(deadlines)
            .chain(parameters)
            .chain(mode)
            .chain([&mut progress.model, &mut progress.plan])
        {
            *name = printable(name).into_owned();
        }
        self
    }
}

/// The body, if it is whole.
fn body(bytes: &[u8]) -> Option<&[u8]> {
    let head = bytes.first_chunk::<HEAD_BYTES>()?;
    let version = word_at(head, 4);
    let body_length = word_at(head, 8) as usize;
    let checksum = u64::from(word_at(head, 16)) | u64::from(word_at(head, 20)) << 32;
    let body = bytes.get(HEAD_BYTES..HEAD_BYTES + body_length)?;
    (head[..4] == MAGIC && version == VERSION && xxh3_64(body) == checksum).then_some(body)
}

/// The little-endian word at a byte offset of the head.
fn word_at(head: &[u8; HEAD_BYTES], offset: usize) -> u32 {
    let word = [0, 1, 2, 3].map(|index| head[offset + index]);
    u32::from_le_bytes(word)
}

/// The runs of this user that are on, by process. Pages that were left behind are removed.
pub fn running() -> Vec<Live> {
    folder::remove_left_behind();
    let live_pids = folder::folder().map(|folder| folder::pids_in(&folder));
    live_pids
        .unwrap_or_default()
        .into_iter()
        .filter_map(|pid| read(pid).ok())
        .collect()
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
        let long_fill = super::super::Fill {
            name: "x".repeat(1000),
            ..Default::default()
        };
        let long_progress = Progress {
            rings: vec![long_fill; MAX_BYTES / 1000 + 1],
            ..progress.clone()
        };
        page.write(long_progress).expect("written");
        let too_long = read(pid).expect("there");
        assert!(too_long.progress.rings.is_empty());
        page.write(progress.clone()).expect("written");
        assert_eq!(read(pid).expect("there").progress, progress);
        drop(page);
        assert!(matches!(read(pid), Err(PageError::Absent(p)) if p == pid));
    }

    #[test]
    fn names_cannot_write_to_the_terminal() {
        let fill = |name: &str| super::super::Fill {
            name: name.into(),
            ..Default::default()
        };
        let live = Live {
            progress: Progress {
                model: "a\x1b[2Jb".into(),
                plan: "\r\u{9b}1m".into(),
                rings: vec![fill("\x07")],
                queues: vec![fill("fine \u{e4}\n")],
                hosts: vec![super::super::HostProgress {
                    host: "\x1b".into(),
                    ..Default::default()
                }],
                devices: vec![super::super::DeviceProgress {
                    device: "cpu\x7f".into(),
                    host: Some("\x1b".into()),
                    ..Default::default()
                }],
                ..Progress::default()
            },
            ..Live::default()
        };
        let shown_text = serde_json::to_string(&live.printable()).expect("plain data");
        assert!(!shown_text.chars().any(char::is_control), "{shown_text}");
        assert!(shown_text.contains("fine \u{e4}"), "{shown_text}");
    }

    #[test]
    fn half_a_page_is_none() {
        let body = br#"{"pid":1}"#;
        let mut page_bytes = [
            &MAGIC[..],
            &VERSION.to_le_bytes(),
            &9u32.to_le_bytes(),
            &[0; 4],
        ]
        .concat();
        page_bytes.extend(xxh3_64(body).to_le_bytes());
        page_bytes.extend(body);
        assert_eq!(super::body(&page_bytes), Some(&body[..]));
        for cut in 0..page_bytes.len() {
            assert_eq!(super::body(&page_bytes[..cut]), None);
            let mut wrong_bytes = page_bytes.clone();
            wrong_bytes[cut] ^= 1;
            // The four bytes that mean nothing may be anything.
            assert_eq!(
                super::body(&wrong_bytes).is_some(),
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
            page.update_rates(step * 100_000_000, &at(0, 50 * step));
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
        page.update_rates(5_000_000_000, &at(1, 0));
        assert_eq!(
            page.live.period_measured_ns, 0.0,
            "nothing of this epoch yet"
        );
    }
}
