//! The segments of a recording: a ring of files of bounded size. Records are added to the newest; the oldest is removed
//! when its turn has come. Every segment says how far the recording was when it was begun, so that nothing in it needs an
//! older one.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use super::folder::segment_name;
use super::keep::Keep;
use super::record::{self, Kind, MAX_RECORDS, RecordHeader, SegmentStart, StatePlace};

/// A segment is closed at such a share of what is kept.
const SEGMENT_SHARE: u32 = 16;
/// And at so many bytes.
const MAX_SEGMENT_BYTES: u64 = 256 << 20;
const MIN_SEGMENT_BYTES: u64 = 32 << 10;
/// A segment is not closed for its age before it has so many bytes: a slow source does not make a file each second.
const MIN_AGED_BYTES: u64 = 64 << 10;
/// A payload that is shorter is written in one call with its header.
const SMALL_BYTES: usize = 16 << 10;

/// A state that a replay can begin at.
#[derive(Debug)]
struct StoredState {
    place: StatePlace,
    at_ns: u64,
}

/// A segment that is on disk.
#[derive(Debug)]
struct StoredSegment {
    path: PathBuf,
    bytes: u64,
    records: u64,
    begun_ns: u64,
    start: SegmentStart,
    states: Vec<StoredState>,
}

/// The segments of a recording that is being made.
#[derive(Debug)]
pub(super) struct Ring {
    folder: PathBuf,
    run_id: u64,
    pub(super) keep: Keep,
    segments: VecDeque<StoredSegment>,
    /// The newest segment's, unless it could not be written to.
    file: Option<File>,
    /// How far the recording is: the next token of each source, and the next change.
    pub(super) next_tokens: Vec<u64>,
    pub(super) next_change: u64,
    next_segment: u64,
    total_bytes: u64,
    total_records: u64,
    /// Records that are kept, at most.
    max_records: u64,
    /// Bytes written, those of segments that are gone included.
    pub(super) written_bytes: u64,
}

impl Ring {
    /// Of a run that has consumed so many tokens of each source.
    pub(super) fn new(folder: PathBuf, run_id: u64, keep: Keep, consumed: Vec<u64>) -> Self {
        Self {
            folder,
            run_id,
            keep,
            segments: VecDeque::new(),
            file: None,
            next_tokens: consumed,
            next_change: 0,
            next_segment: 0,
            total_bytes: 0,
            total_records: 0,
            max_records: MAX_RECORDS,
            written_bytes: 0,
        }
    }

    /// Adds a record, whose payload is made of these parts. After an error the recording is as it was before.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn add(&mut self, kind: Kind, parts: &[&[u8]], now_ns: u64) -> io::Result<()> {
        let Some(header) = RecordHeader::of(kind, parts) else {
            let why = "a record of more than 4 GiB";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        };
        let record_bytes = record::HEADER_BYTES as u64 + u64::from(header.length);
        self.make_room(record_bytes, now_ns)?;
        self.write(header, parts)
    }

    /// Notes that the record that was just added is a state.
    pub(super) fn note_state(&mut self, place: StatePlace, at_ns: u64) {
        if let Some(segment) = self.segments.back_mut() {
            segment.states.push(StoredState { place, at_ns });
        }
    }

    /// Bytes that a segment has before it is closed.
    pub(super) fn segment_bytes(&self) -> u64 {
        let share = self.keep.bytes.unwrap_or(u64::MAX) / u64::from(SEGMENT_SHARE);
        share.clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
    }

    /// Begins a segment if the newest is full, and removes old ones.
    fn make_room(&mut self, record_bytes: u64, now_ns: u64) -> io::Result<()> {
        let is_full = match (&self.file, self.segments.back()) {
            (Some(_), Some(newest)) => {
                newest.bytes + record_bytes > self.segment_bytes()
                    || newest.records >= self.max_records / u64::from(SEGMENT_SHARE)
                    || self.is_old(newest, now_ns)
            }
            _ => true,
        };
        if is_full {
            self.begin_segment(now_ns)?;
        }
        while self.is_oldest_over(record_bytes, now_ns) {
            self.remove_oldest()?;
        }
        Ok(())
    }

    fn is_old(&self, segment: &StoredSegment, now_ns: u64) -> bool {
        let Some(time) = self.keep.time else {
            return false;
        };
        let age = Duration::from_nanos(now_ns.saturating_sub(segment.begun_ns));
        segment.bytes >= MIN_AGED_BYTES && age >= time / SEGMENT_SHARE
    }

    /// Whether the oldest segment is to go before so many bytes are written.
    fn is_oldest_over(&self, record_bytes: u64, now_ns: u64) -> bool {
        let Some(second) = self.segments.get(1) else {
            return false;
        };
        let has_room = self.total_records < self.max_records
            && self
                .keep
                .bytes
                .is_none_or(|bytes| self.total_bytes + record_bytes <= bytes);
        // All that is younger can be reached without the oldest segment.
        let is_unneeded = self.keep.time.is_some_and(|time| {
            let is_old = |state: &StoredState| {
                Duration::from_nanos(now_ns.saturating_sub(state.at_ns)) >= time
            };
            let mut states = self.segments.iter().skip(1).flat_map(|s| &s.states);
            states.any(|state| is_old(state) && second.start.is_before(&state.place))
        });
        !has_room || is_unneeded
    }

    fn remove_oldest(&mut self) -> io::Result<()> {
        let Some(oldest) = self.segments.front() else {
            return Ok(());
        };
        match fs::remove_file(&oldest.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.total_bytes -= oldest.bytes;
        self.total_records -= oldest.records;
        self.segments.pop_front();
        Ok(())
    }

    fn begin_segment(&mut self, now_ns: u64) -> io::Result<()> {
        let start = SegmentStart {
            run_id: self.run_id,
            segment: self.next_segment,
            tokens: self.next_tokens.clone(),
            changes: self.next_change,
        };
        let path = self.folder.join(segment_name(self.next_segment));
        let file = File::options().write(true).create_new(true).open(&path)?;
        self.next_segment += 1;
        self.segments.push_back(StoredSegment {
            path,
            bytes: 0,
            records: 0,
            begun_ns: now_ns,
            start: start.clone(),
            states: Vec::new(),
        });
        self.file = Some(file);
        let start_bytes = record::encode(&start);
        let header = RecordHeader::of(Kind::Start, &[&start_bytes]).expect("a short record");
        self.write(header, &[&start_bytes])
    }

    /// Writes to the newest segment. One that could not be written to ends where it was whole, and is not used again.
    fn write(&mut self, header: RecordHeader, parts: &[&[u8]]) -> io::Result<()> {
        let (Some(file), Some(newest)) = (&mut self.file, self.segments.back_mut()) else {
            return Err(io::Error::other("no segment is open"));
        };
        if let Err(error) = write_record(file, header, parts) {
            drop(file.set_len(newest.bytes));
            self.file = None;
            return Err(error);
        }
        let record_bytes = record::HEADER_BYTES as u64 + u64::from(header.length);
        newest.bytes += record_bytes;
        newest.records += 1;
        self.total_bytes += record_bytes;
        self.total_records += 1;
        self.written_bytes += record_bytes;
        Ok(())
    }
}

impl SegmentStart {
    /// Whether all that a replay from this state needs is at this place or later.
    pub(super) fn is_before(&self, state: &StatePlace) -> bool {
        let mut consumed = self.tokens.iter().zip(&state.consumed);
        self.changes <= state.changes_made && consumed.all(|(first, consumed)| first <= consumed)
    }
}

fn write_record(file: &mut File, header: RecordHeader, parts: &[&[u8]]) -> io::Result<()> {
    let header_bytes = header.encode();
    if header.length as usize <= SMALL_BYTES {
        let mut record = header_bytes.to_vec();
        parts.iter().for_each(|part| record.extend_from_slice(part));
        return file.write_all(&record);
    }
    file.write_all(&header_bytes)?;
    parts.iter().try_for_each(|part| file.write_all(part))
}

#[cfg(test)]
mod tests {
    use super::super::folder::segments;
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn place(token: u64) -> StatePlace {
        StatePlace {
            changes_made: 0,
            mode: 0,
            iterations: token,
            consumed: vec![token],
        }
    }

    fn bytes(bytes: u64) -> Keep {
        Keep {
            time: None,
            bytes: Some(bytes),
        }
    }

    /// Adds a second's records: a state at the next token, then so many tokens of a byte.
    fn add_second(ring: &mut Ring, second: u64, tokens: u64) {
        let now_ns = second * SECOND_NS;
        let state = place(ring.next_tokens[0]);
        let place_bytes = record::encode_part(&state);
        ring.add(Kind::State, &[&place_bytes, b"state"], now_ns)
            .expect("written");
        ring.note_state(state, now_ns);
        let piece = vec![0; tokens as usize];
        ring.add(Kind::Tokens, &[&piece], now_ns).expect("written");
        ring.next_tokens[0] += tokens;
    }

    #[test]
    fn a_ring_of_bytes_never_has_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let keep = bytes(1 << 20);
        let mut ring = Ring::new(folder.path().to_owned(), 1, keep, vec![0]);
        for second in 0..1000 {
            add_second(&mut ring, second, 20_000);
            let files = segments(folder.path()).expect("readable");
            let sizes = files.iter().map(|(_, path)| fs::metadata(path));
            let total: u64 = sizes.map(|size| size.expect("there").len()).sum();
            assert_eq!(total, ring.total_bytes);
            assert!(total <= 1 << 20, "{total} bytes in second {second}");
            assert!(second < 60 || total > 900_000, "{total} in second {second}");
        }
    }

    #[test]
    fn a_ring_of_time_keeps_a_state_that_is_as_old() {
        let folder = tempfile::tempdir().expect("a folder");
        let keep = Keep {
            time: Some(Duration::from_secs(160)),
            bytes: None,
        };
        let mut ring = Ring::new(folder.path().to_owned(), 1, keep, vec![0]);
        for second in 0..1000 {
            add_second(&mut ring, second, 20_000);
            let first = &ring.segments[0].start;
            let states = ring.segments.iter().flat_map(|segment| &segment.states);
            let reached: Vec<&StoredState> = states
                .filter(|state| first.is_before(&state.place))
                .collect();
            let oldest_ns = reached.first().expect("a state").at_ns;
            let kept_s = second - oldest_ns / SECOND_NS;
            assert!(kept_s >= second.min(160), "{kept_s} s in second {second}");
            // A segment is ten seconds, and the one that goes next is kept in whole.
            assert!(kept_s <= 160 + 22, "{kept_s} s in second {second}");
        }
    }

    #[test]
    fn a_ring_of_time_and_bytes_has_no_more_than_either() {
        let folder = tempfile::tempdir().expect("a folder");
        let keep = Keep {
            time: Some(Duration::from_secs(160)),
            bytes: Some(1 << 20),
        };
        let mut ring = Ring::new(folder.path().to_owned(), 1, keep, vec![0]);
        for second in 0..1000 {
            // 50 s fill it at first, 500 s then.
            let tokens = if second < 300 { 20_000 } else { 2000 };
            add_second(&mut ring, second, tokens);
            assert!(ring.total_bytes <= 1 << 20, "{}", ring.total_bytes);
        }
        let states = ring.segments.iter().flat_map(|segment| &segment.states);
        let kept_s = states.map(|state| 999 - state.at_ns / SECOND_NS).max();
        let kept_s = kept_s.expect("states");
        assert!((160..200).contains(&kept_s), "{kept_s} s");
    }

    #[test]
    fn a_ring_has_no_more_records_than_a_reader_takes() {
        let folder = tempfile::tempdir().expect("a folder");
        let keep = bytes(1 << 40);
        let mut ring = Ring::new(folder.path().to_owned(), 1, keep, vec![0]);
        ring.max_records = 1600;
        for second in 0..10_000 {
            add_second(&mut ring, second, 8);
            let records = ring.segments.iter().map(|segment| segment.records);
            assert_eq!(records.sum::<u64>(), ring.total_records);
            assert!(ring.total_records <= 1600, "{}", ring.total_records);
        }
        assert!(ring.total_records > 1400, "{}", ring.total_records);
    }

    #[test]
    fn a_segment_that_cannot_be_written_to_is_left_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let keep = bytes(1 << 20);
        let mut ring = Ring::new(folder.path().to_owned(), 1, keep, vec![0]);
        add_second(&mut ring, 0, 100);
        let whole_bytes = ring.total_bytes;
        // A file that is open for reading refuses what is written.
        let path = ring.segments[0].path.clone();
        ring.file = Some(File::open(&path).expect("there"));
        ring.add(Kind::Tokens, &[&[0; 100]], 0)
            .expect_err("read-only");
        assert_eq!(fs::metadata(&path).expect("there").len(), whole_bytes);

        add_second(&mut ring, 1, 100);
        let files = segments(folder.path()).expect("readable");
        assert_eq!(files.len(), 2, "the next record is in a new segment");
    }
}
