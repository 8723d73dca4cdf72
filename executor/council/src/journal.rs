//! A voter's term, vote and log on disk: an append-only file `council.journal` in a folder of the voter's own.
//!
//! | bytes | what |
//! |---|---|
//! | 0-7 | `ZBMDJ\0\0\2` |
//! | 8-15 | the voter |
//! | 16-23 | the council: a checksum over its voters |
//! | 24-31 | checksum of bytes 0-23 |
//!
//! After that, records:
//!
//! | bytes | what |
//! |---|---|
//! | 0-3 | length of the record |
//! | 4-7 | its complement |
//! | 8-15 | checksum (XXH3, 64 bits) of the record's place in the file and its bytes |
//! | 16- | the record, as postcard has it |
//!
//! All numbers are little-endian. Records are synced before the messages that promise them are sent, so what a crash cuts off at
//! the end of the file was promised to nobody: it is dropped. The same holds for zeros up to the end of the file, which some
//! file systems leave there. A record that is there as a whole with other bytes than were written is refused: it may have been
//! promised, and a voter that forgets can let two conductors be elected.
//!
//! A snapshot begins a new file, which takes the place of the old one once it is synced.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::VoterId;
use crate::decision::decode_all;
use crate::error::{DecodeError, JournalError};
use crate::node::{Record, Recovered, Settings};

const MAGIC: [u8; 8] = *b"ZBMDJ\0\0\x02";
const HEADER_BYTES: usize = 32;
const RECORD_HEADER_BYTES: usize = 16;
const FILE_NAME: &str = "council.journal";
const NEW_FILE_NAME: &str = "council.journal.new";
const LOCK_FILE_NAME: &str = "council.lock";

/// The file, open for what is to come.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    file: File,
    /// Where the next record goes.
    end: u64,
    header: [u8; HEADER_BYTES],
    /// Of the folder, as long as the journal is open.
    _lock: File,
}

impl Journal {
    /// Opens a voter's journal, or begins one, and reads what is in it. Bytes of a record that was never written whole are
    /// cut off.
    ///
    /// # Errors
    /// It cannot be read or written, is used by another process, is another voter's, or has been damaged.
    pub fn open(folder: &Path, settings: &Settings) -> Result<(Self, Recovered), JournalError> {
        std::fs::create_dir_all(folder).map_err(io_error(folder))?;
        let lock = lock(folder)?;
        let header = header_of(settings);
        let path = folder.join(FILE_NAME);
        // One that was not finished is of no use.
        let _ = std::fs::remove_file(folder.join(NEW_FILE_NAME));

        let is_new = !path.try_exists().map_err(io_error(&path))?;
        if is_new {
            write_new(folder, &header, &[])?;
        }
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let mut file = opened.map_err(io_error(&path))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io_error(&path))?;
        check_header(&path, &bytes, settings)?;

        let (recovered, end) = read_records(&path, &bytes)?;
        if end < bytes.len() as u64 {
            let cut = file.set_len(end).and_then(|()| file.sync_all());
            cut.map_err(io_error(&path))?;
        }
        let journal = Self {
            folder: folder.to_owned(),
            file,
            end,
            header,
            _lock: lock,
        };
        Ok((journal, recovered))
    }

    /// Writes records, and waits until they are on disk.
    ///
    /// # Errors
    /// What the system says. The voter must stop then: what is on disk is not known.
    pub fn write(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        // What comes before a whole is in it.
        let whole = |record: &Record| matches!(record, Record::Whole(_));
        let last_whole = records.iter().rposition(whole);
        if let Some(first) = last_whole {
            (self.file, self.end) = write_new(&self.folder, &self.header, &records[first..])?;
            return Ok(());
        }

        let path = self.folder.join(FILE_NAME);
        let mut bytes = Vec::new();
        for record in records {
            append_record(&mut bytes, self.end, record).map_err(io_error(&path))?;
        }
        let written = self.file.write_all_at(&bytes, self.end);
        let synced = written.and_then(|()| self.file.sync_data());
        synced.map_err(io_error(&path))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.end
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io {
        path: path.clone(),
        source,
    }
}

/// Keeps other processes from the folder.
fn lock(folder: &Path) -> Result<File, JournalError> {
    let path = folder.join(LOCK_FILE_NAME);
    let file = File::create(&path).map_err(io_error(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::InUse { path }),
        Err(TryLockError::Error(source)) => Err(JournalError::Io { path, source }),
    }
}

fn header_of(settings: &Settings) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&settings.own.0.to_le_bytes());
    let voters = settings
        .voters
        .iter()
        .flat_map(|voter| voter.0.to_le_bytes());
    let voters: Vec<u8> = voters.collect();
    header[16..24].copy_from_slice(&xxh3_64(&voters).to_le_bytes());
    let check = xxh3_64(&header[..24]);
    header[24..].copy_from_slice(&check.to_le_bytes());
    header
}

fn number_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[offset + i]))
}

/// Whether the file is this voter's.
fn check_header(path: &Path, bytes: &[u8], settings: &Settings) -> Result<(), JournalError> {
    let path = path.to_owned();
    if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
        let found = bytes[..bytes.len().min(8)].to_vec();
        return Err(JournalError::NotOurs { path, found });
    }
    let (written, found) = (number_at(bytes, 24), xxh3_64(&bytes[..24]));
    if written != found {
        return Err(JournalError::Damaged {
            path,
            offset: 0,
            written,
            found,
        });
    }
    let expected = header_of(settings);
    if bytes[..HEADER_BYTES] == expected {
        return Ok(());
    }
    let text = |bytes: &[u8]| {
        let voter = VoterId(number_at(bytes, 8));
        format!("{voter} of council {:016x}", number_at(bytes, 16))
    };
    Err(JournalError::Owner {
        path,
        found: text(bytes),
        expected: text(&expected),
    })
}

/// A file with these records, in the place of the one that is there; and where it ends.
fn write_new(
    folder: &Path,
    header: &[u8; HEADER_BYTES],
    records: &[Record],
) -> Result<(File, u64), JournalError> {
    let path = folder.join(NEW_FILE_NAME);
    let mut bytes = header.to_vec();
    for record in records {
        append_record(&mut bytes, 0, record).map_err(io_error(&path))?;
    }
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path);
    let mut file = opened.map_err(io_error(&path))?;
    let written = file.write_all(&bytes).and_then(|()| file.sync_all());
    written.map_err(io_error(&path))?;

    std::fs::rename(&path, folder.join(FILE_NAME)).map_err(io_error(&path))?;
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(io_error(folder))?;
    Ok((file, bytes.len() as u64))
}

/// Appends a record to bytes that begin at `start` in the file.
fn append_record(bytes: &mut Vec<u8>, start: u64, record: &Record) -> io::Result<()> {
    let body = postcard::to_stdvec(record).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let offset = start + bytes.len() as u64;
    bytes.extend(length.to_le_bytes());
    bytes.extend((!length).to_le_bytes());
    bytes.extend(xxh3_64_with_seed(&body, offset).to_le_bytes());
    bytes.extend(body);
    Ok(())
}

/// What the records come to, and where the last whole one ends.
fn read_records(path: &Path, bytes: &[u8]) -> Result<(Recovered, u64), JournalError> {
    let mut recovered = Recovered::default();
    let mut offset = HEADER_BYTES;
    while let Some((body, next)) = next_record(path, bytes, offset)? {
        let record_error = |source| JournalError::Record {
            path: path.to_owned(),
            offset: offset as u64,
            source,
        };
        let record = decode_all("a record", body).map_err(record_error)?;
        let taken = recovered.take(record);
        taken.map_err(|why| {
            record_error(DecodeError::Nonsense {
                what: "a record",
                why,
            })
        })?;
        offset = next;
    }
    Ok((recovered, offset as u64))
}

/// The record at a place, and where the next one begins; `None` where the file, or what was written whole of it, ends.
fn next_record<'a>(
    path: &Path,
    bytes: &'a [u8],
    offset: usize,
) -> Result<Option<(&'a [u8], usize)>, JournalError> {
    let rest = &bytes[offset..];
    if rest.len() < RECORD_HEADER_BYTES || rest.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let written = number_at(rest, 8);
    let damaged = |found| JournalError::Damaged {
        path: path.to_owned(),
        offset: offset as u64,
        written,
        found,
    };

    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| rest[at + i]));
    let length = word(0);
    if word(4) != !length {
        return Err(damaged(number_at(rest, 0)));
    }
    let body = &rest[RECORD_HEADER_BYTES..];
    let Some(body) = body.get(..length as usize) else {
        return Ok(None);
    };
    let found = xxh3_64_with_seed(body, offset as u64);
    if found != written {
        let tail = &rest[RECORD_HEADER_BYTES..];
        let is_never_written = tail.iter().all(|byte| *byte == 0);
        return match is_never_written {
            true => Ok(None),
            false => Err(damaged(found)),
        };
    }
    Ok(Some((body, offset + RECORD_HEADER_BYTES + body.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogEntry, Snapshot};

    fn settings(own: u64) -> Settings {
        Settings {
            own: VoterId(own),
            voters: vec![VoterId(1), VoterId(2), VoterId(3)],
            tick_ns: 1_000_000,
            compact_after: 100,
            witnesses: Vec::new(),
        }
    }

    fn entry(index: u64, term: u64) -> LogEntry {
        LogEntry {
            index,
            term,
            data: vec![index as u8; 5],
        }
    }

    fn records() -> Vec<Record> {
        vec![
            Record::Vote {
                term: 2,
                vote: Some(VoterId(3)),
            },
            Record::Entries(vec![entry(1, 1), entry(2, 1), entry(3, 1)]),
            Record::Entries(vec![entry(2, 2)]),
        ]
    }

    /// What the first so many records come to.
    fn state_after(records: &[Record]) -> Recovered {
        let mut recovered = Recovered::default();
        for record in records {
            recovered.take(record.clone()).expect("in order");
        }
        recovered
    }

    /// A journal with these records, a write each; where each of them ends.
    fn written(folder: &Path, records: &[Record]) -> Vec<u64> {
        let (mut journal, _) = Journal::open(folder, &settings(1)).expect("new");
        let ends = records.iter().map(|record| {
            journal
                .write(std::slice::from_ref(record))
                .expect("written");
            journal.bytes()
        });
        ends.collect()
    }

    fn recovered(folder: &Path) -> Result<Recovered, JournalError> {
        Journal::open(folder, &settings(1)).map(|(_, recovered)| recovered)
    }

    #[test]
    fn what_was_written_is_there_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = records();
        written(folder.path(), &records);
        let found = recovered(folder.path()).expect("read");
        assert_eq!(found, state_after(&records));
        assert_eq!(found.entries.len(), 2, "entry 2 took the place of 2 and 3");

        // A snapshot takes the place of all.
        let (mut journal, mut expected) = Journal::open(folder.path(), &settings(1)).expect("read");
        let before = journal.bytes();
        expected.entries.clear();
        expected.snapshot = Snapshot {
            index: 2,
            term: 2,
            state: vec![7; 3],
        };
        let whole = Record::Whole(expected.clone());
        journal
            .write(&[records[2].clone(), whole])
            .expect("written");
        assert!(journal.bytes() < before);
        let more = Record::Entries(vec![entry(3, 2)]);
        journal.write(std::slice::from_ref(&more)).expect("written");
        drop(journal);
        expected.take(more).expect("it follows");
        assert_eq!(recovered(folder.path()).expect("read"), expected);
    }

    /// Wherever a crash cuts the file off, the records before are there, and it is gone on from there.
    #[test]
    fn a_cut_tail_is_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = records();
        let ends = written(folder.path(), &records);
        let path = folder.path().join(FILE_NAME);
        let bytes = std::fs::read(&path).expect("read");
        for length in HEADER_BYTES..bytes.len() {
            for zeros in [0, 40] {
                let cut = [&bytes[..length], &vec![0; zeros][..]].concat();
                std::fs::write(&path, cut).expect("written");
                let whole = ends.iter().filter(|end| **end <= length as u64).count();
                match recovered(folder.path()) {
                    Ok(found) => {
                        assert_eq!(found, state_after(&records[..whole]), "{length} {zeros}");
                    }
                    // A record that ends in zeros looks damaged: it is refused, not guessed at.
                    Err(JournalError::Damaged { .. }) => assert!(zeros > 0, "{length}"),
                    Err(error) => panic!("{length} {zeros}: {error}"),
                }
            }
        }

        std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("written");
        let (mut journal, _) = Journal::open(folder.path(), &settings(1)).expect("read");
        journal.write(&records[2..]).expect("written again");
        drop(journal);
        assert_eq!(std::fs::read(&path).expect("read"), bytes);
    }

    #[test]
    fn a_changed_byte_is_refused_or_was_promised_to_nobody() {
        let folder = tempfile::tempdir().expect("a folder");
        let records = records();
        written(folder.path(), &records);
        let path = folder.path().join(FILE_NAME);
        let bytes = std::fs::read(&path).expect("read");
        for changed in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[changed] ^= 1;
            std::fs::write(&path, damaged).expect("written");
            let error = recovered(folder.path()).expect_err("refused");
            let is_expected = matches!(
                error,
                JournalError::Damaged { .. } | JournalError::NotOurs { .. }
            );
            assert!(is_expected, "{changed}: {error}");
        }
    }

    #[test]
    fn a_folder_is_one_voters_and_one_process_has_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (journal, _) = Journal::open(folder.path(), &settings(1)).expect("new");
        let error = Journal::open(folder.path(), &settings(1)).expect_err("in use");
        assert!(matches!(error, JournalError::InUse { .. }), "{error}");
        drop(journal);
        let error = Journal::open(folder.path(), &settings(2)).expect_err("another's");
        assert!(error.to_string().contains("voter 1 of council"), "{error}");
        std::fs::write(folder.path().join(FILE_NAME), "something").expect("written");
        let error = Journal::open(folder.path(), &settings(1)).expect_err("no journal");
        assert!(matches!(error, JournalError::NotOurs { .. }), "{error}");
    }
}
