//! What a sink can still send: a file, which has everything, or the last bytes of a pipe. Offsets are those of the run's stream.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a stream that can be read again.
#[derive(Debug)]
pub(crate) enum Store {
    /// A regular file, from the stream's byte `first` on.
    File { file: File, first: u64 },
    /// The last bytes, from the stream's byte `first` on.
    Memory { bytes: VecDeque<u8>, first: u64 },
}

impl Store {
    /// The first byte that is kept.
    pub(crate) fn first(&self) -> u64 {
        match self {
            Self::File { first, .. } | Self::Memory { first, .. } => *first,
        }
    }

    /// Bytes in memory.
    pub(crate) fn kept_bytes(&self) -> usize {
        match self {
            Self::File { .. } => 0,
            Self::Memory { bytes, .. } => bytes.len(),
        }
    }

    /// Bytes from `offset` on, as far as there are `max_bytes`. None for what is not kept.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn read(&self, offset: u64, max_bytes: usize) -> io::Result<Vec<u8>> {
        let Some(place) = offset.checked_sub(self.first()) else {
            return Ok(Vec::new());
        };
        match self {
            Self::File { file, .. } => read_file(file, place, max_bytes),
            Self::Memory { bytes, .. } => {
                let begin = usize::try_from(place)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                let end = begin.saturating_add(max_bytes).min(bytes.len());
                Ok(bytes.range(begin..end).copied().collect())
            }
        }
    }

    /// Keeps what came after all there was. A file has it already.
    pub(crate) fn append(&mut self, new_bytes: &[u8]) {
        if let Self::Memory { bytes, .. } = self {
            bytes.extend(new_bytes);
        }
    }

    /// Drops bytes before `offset`, until at most `max_bytes` are kept.
    pub(crate) fn trim(&mut self, max_bytes: usize, offset: u64) {
        if let Self::Memory { bytes, first } = self {
            let allowed = usize::try_from(offset.saturating_sub(*first)).unwrap_or(usize::MAX);
            let dropped = bytes.len().saturating_sub(max_bytes).min(allowed);
            bytes.drain(..dropped);
            *first += dropped as u64;
        }
    }
}

/// Fewer bytes than asked for if the file ends before.
fn read_file(file: &File, place: u64, max_bytes: usize) -> io::Result<Vec<u8>> {
    // A file may be shorter than it was, while its run goes back to a checkpoint.
    let left_bytes = file.metadata()?.len().saturating_sub(place);
    let length = usize::try_from(left_bytes)
        .unwrap_or(usize::MAX)
        .min(max_bytes);
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match file.read_at(&mut bytes[filled..], place + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn memory_keeps_the_last_bytes_that_are_not_needed() {
        let mut store = Store::Memory {
            bytes: VecDeque::new(),
            first: 100,
        };
        store.append(&[0, 1, 2, 3, 4, 5, 6, 7]);
        // Where to, how many at most, and what is kept then.
        for (offset, max_bytes, first) in
            [(99, 4, 100), (102, 4, 102), (200, 6, 102), (200, 4, 104)]
        {
            store.trim(max_bytes, offset);
            assert_eq!(store.first(), first, "to {offset}, {max_bytes} bytes");
        }
        for (offset, max_bytes, expect) in [
            (103, 9, &[][..]),
            (104, 9, &[4, 5, 6, 7]),
            (105, 2, &[5, 6]),
            (107, 2, &[7]),
            (108, 2, &[]),
            (u64::MAX, usize::MAX, &[]),
        ] {
            let found = store.read(offset, max_bytes).expect("memory");
            assert_eq!(found, expect, "at {offset}");
        }
    }

    #[test]
    fn a_file_is_read_from_anywhere_also_after_it_was_cut() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"abcdef").expect("written");
        let store = Store::File { file, first: 10 };
        let read = |store: &Store, offset| store.read(offset, 3).expect("read");
        assert_eq!(read(&store, 9), b"");
        assert_eq!(read(&store, 10), b"abc");
        assert_eq!(read(&store, 15), b"f");
        assert_eq!(read(&store, 16), b"");
        let Store::File { file, .. } = &store else {
            unreachable!("a file");
        };
        file.set_len(2).expect("cut");
        assert_eq!(read(&store, 10), b"ab");
        assert_eq!(read(&store, 13), b"");
    }
}
