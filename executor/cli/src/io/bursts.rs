//! Files of bursts: only the items there are.
//!
//! `x.bursts` is read and written. It begins with 24 bytes: [`MAGIC`], the number of tokens, u64, and the bytes of all
//! records, u64. Then follows a record for each burst that is not empty:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | index of the first item's sample, i64 |
//! | 8..12 | number of items, u32 |
//! | 12..16 | empty bursts between the record before and this one, u32 |
//! | 16.. | the items |
//!
//! Numbers are in the machine's byte order, as in files of raw tokens. Read back it gives the tokens that were written: those
//! behind the last record are empty. What a run left behind the bytes that the header counts is none of it.
//!
//! `x.jsonl`, and the standard output, is written: a line `{"token":7,"first":1234,"items":[1,2,3]}` for each burst that
//! is not empty. Complex items are pairs, items with a shape lists; what JSON has no numbers for are the strings `NaN`,
//! `Infinity` and `-Infinity`.

use std::fmt::{Display, Write as _};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Take};
use std::path::Path;

use bytemuck::{AnyBitPattern, pod_read_unaligned};
use half::{bf16, f16};
use zbmd_ir::DType;
use zbmd_ir::burst::{Burst, BurstHeader, BurstLayout, HEADER_BYTES, TooLong};

use super::{FileError, io_error};

/// First bytes of a file of records.
const MAGIC: [u8; 8] = *b"ZBMDBRS2";
/// Bytes before the first record.
const FILE_HEADER_BYTES: usize = 24;

/// How bursts stand in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BurstFormat {
    /// A header and records.
    Records,
    /// Lines of JSON.
    JsonLines,
}

/// How the bursts of a sink are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BurstEncoding {
    pub(super) layout: BurstLayout,
    pub(super) format: BurstFormat,
}

/// How far a file has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Tokens that were given, empty ones included.
    pub(super) tokens: u64,
    /// Empty ones since the last record.
    skipped: u32,
}

impl Progress {
    /// After so many tokens, where nothing is known of the last record.
    pub(super) fn of_tokens(tokens: u64) -> Self {
        Self { tokens, skipped: 0 }
    }
}

/// What a file of records says at its beginning.
#[derive(Clone, Copy, Debug)]
struct FileHeader {
    tokens: u64,
    record_bytes: u64,
}

impl FileHeader {
    /// `None` if the bytes are no such header.
    fn read(bytes: &[u8]) -> Option<Self> {
        let numbers = bytes.strip_prefix(&MAGIC)?;
        let (tokens, numbers) = numbers.split_first_chunk()?;
        let (record_bytes, _) = numbers.split_first_chunk()?;
        Some(Self {
            tokens: u64::from_ne_bytes(*tokens),
            record_bytes: u64::from_ne_bytes(*record_bytes),
        })
    }
}

impl BurstEncoding {
    /// The header for so many tokens, whose records take so many bytes.
    pub(super) fn header(&self, tokens: u64, record_bytes: u64) -> Vec<u8> {
        match self.format {
            BurstFormat::Records => {
                [MAGIC, tokens.to_ne_bytes(), record_bytes.to_ne_bytes()].concat()
            }
            BurstFormat::JsonLines => Vec::new(),
        }
    }

    /// Whether a file begins as one of ours does.
    pub(super) fn owns_header(&self, found: &[u8]) -> bool {
        match self.format {
            BurstFormat::Records => found.starts_with(&MAGIC),
            BurstFormat::JsonLines => true,
        }
    }

    /// Tokens that a file has by its header.
    pub(super) fn tokens_by_header(&self, header: &[u8]) -> u64 {
        FileHeader::read(header).map_or(0, |header| header.tokens)
    }

    /// What stands in the file for these tokens, after those that are in it.
    ///
    /// # Errors
    /// A burst that says that it is longer than its type allows. None is that an actor wrote; a channel's initial tokens
    /// and a checkpoint are bytes that a stranger may have given.
    pub(super) fn encode(
        &self,
        tokens: &[u8],
        progress: &mut Progress,
        to: &mut Vec<u8>,
    ) -> io::Result<()> {
        to.clear();
        for burst in self.layout.read_all(tokens) {
            let burst = burst.map_err(|error| {
                let text = format!(
                    "token {} is {error}: look at the initial tokens of the channel, or at the checkpoint",
                    progress.tokens
                );
                io::Error::new(ErrorKind::InvalidData, text)
            })?;
            match self.format {
                // Those that the number has no room for get a record of their own.
                BurstFormat::Records if burst.length == 0 && progress.skipped < u32::MAX => {
                    progress.skipped += 1;
                }
                BurstFormat::Records => {
                    append_record(burst, progress.skipped, to);
                    progress.skipped = 0;
                }
                BurstFormat::JsonLines if burst.length == 0 => {}
                BurstFormat::JsonLines => {
                    append_line(&self.layout, progress.tokens, burst, to);
                }
            }
            progress.tokens += 1;
        }
        Ok(())
    }

    /// How many bytes behind the header the first `tokens` tokens take in a file that has at least those.
    ///
    /// # Errors
    /// What the system says, or a file that is not as it was written.
    pub(super) fn bytes_of(&self, file: &File, tokens: u64) -> io::Result<(u64, Progress)> {
        let mut file = BufReader::new(file.try_clone()?);
        file.seek(SeekFrom::Start(self.header(0, 0).len() as u64))?;
        match self.format {
            BurstFormat::Records => self.record_bytes(file, tokens),
            BurstFormat::JsonLines => line_bytes(file, tokens),
        }
    }

    fn record_bytes(&self, mut file: BufReader<File>, tokens: u64) -> io::Result<(u64, Progress)> {
        let mut end = 0;
        let mut tokens_in_records = 0;
        while let Some((header, skipped)) = next_header(&mut file)? {
            let with_this = tokens_in_records + u64::from(skipped) + 1;
            if with_this > tokens {
                break;
            }
            let item_bytes = u64::from(header.length) * self.layout.item_bytes() as u64;
            file.seek_relative(item_bytes as i64)?;
            end += HEADER_BYTES as u64 + item_bytes;
            tokens_in_records = with_this;
        }
        let skipped = (tokens - tokens_in_records) as u32;
        Ok((end, Progress { tokens, skipped }))
    }
}

fn line_bytes(mut file: BufReader<File>, tokens: u64) -> io::Result<(u64, Progress)> {
    const BEGIN: &[u8] = br#"{"token":"#;
    let mut end = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        let line_bytes = file.read_until(b'\n', &mut line)?;
        let digits = line.strip_prefix(BEGIN).unwrap_or_default();
        let digits = digits.split(|byte| *byte == b',').next();
        let token = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
        if token.is_none_or(|token| token >= tokens) {
            return Ok((end, Progress { tokens, skipped: 0 }));
        }
        end += line_bytes as u64;
    }
}

fn append_record(burst: Burst<'_>, skipped: u32, to: &mut Vec<u8>) {
    let header = BurstHeader {
        first: burst.first,
        length: burst.length,
    };
    let mut header = header.to_bytes();
    header[12..].copy_from_slice(&skipped.to_ne_bytes());
    to.extend_from_slice(&header);
    to.extend_from_slice(burst.items);
}

fn append_line(layout: &BurstLayout, token: u64, burst: Burst<'_>, to: &mut Vec<u8>) {
    let element_bytes = layout.dtype.size_bytes() as usize;
    let mut line = format!(r#"{{"token":{token},"first":{},"items":["#, burst.first);
    for (index, item) in burst.items.chunks_exact(layout.item_bytes()).enumerate() {
        if index > 0 {
            line.push(',');
        }
        let is_list = layout.item_elements > 1;
        if is_list {
            line.push('[');
        }
        for (index, element) in item.chunks_exact(element_bytes).enumerate() {
            if index > 0 {
                line.push(',');
            }
            append_element(layout.dtype, element, &mut line);
        }
        if is_list {
            line.push(']');
        }
    }
    line.push_str("]}\n");
    to.extend_from_slice(line.as_bytes());
}

/// An element as JSON has it: floats by the shortest digits that give the same number again.
pub(crate) fn element_text(dtype: DType, bytes: &[u8]) -> String {
    let mut text = String::new();
    append_element(dtype, bytes, &mut text);
    text
}

fn append_element(dtype: DType, bytes: &[u8], line: &mut String) {
    match dtype {
        DType::F32 => append_float(number::<f32>(bytes), line),
        DType::F64 => append_float(number::<f64>(bytes), line),
        DType::F16 => append_float(number::<f16>(bytes).to_f32(), line),
        DType::Bf16 => append_float(number::<bf16>(bytes).to_f32(), line),
        DType::I8 => append_display(number::<i8>(bytes), line),
        DType::U8 => append_display(bytes[0], line),
        DType::I16 => append_display(number::<i16>(bytes), line),
        DType::I32 => append_display(number::<i32>(bytes), line),
        DType::I64 => append_display(number::<i64>(bytes), line),
        DType::Bool => append_display(bytes[0] != 0, line),
        DType::C32 => {
            line.push('[');
            append_float(number::<f32>(&bytes[..4]), line);
            line.push(',');
            append_float(number::<f32>(&bytes[4..]), line);
            line.push(']');
        }
    }
}

fn number<T: AnyBitPattern>(bytes: &[u8]) -> T {
    pod_read_unaligned(bytes)
}

fn append_display(value: impl Display, line: &mut String) {
    // Writing to a string never fails.
    let _ = write!(line, "{value}");
}

/// The shortest digits that give the same number again.
fn append_float<T: Display + Into<f64> + Copy>(value: T, line: &mut String) {
    let wide: f64 = value.into();
    match wide {
        _ if wide.is_finite() => append_display(value, line),
        _ if wide.is_nan() => line.push_str(r#""NaN""#),
        _ if wide > 0.0 => line.push_str(r#""Infinity""#),
        _ => line.push_str(r#""-Infinity""#),
    }
}

/// The header of the next record, and the empty bursts before it; `None` at the end of the file.
fn next_header(from: &mut impl BufRead) -> io::Result<Option<(BurstHeader, u32)>> {
    if from.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut bytes = [0; HEADER_BYTES];
    from.read_exact(&mut bytes)?;
    let skipped = u32::from_ne_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    Ok(Some((BurstHeader::read(&bytes), skipped)))
}

/// Opens a file of records: what is read are the bytes of tokens.
///
/// # Errors
/// What the system says, or a file that is none of ours.
pub(super) fn open(
    path: &Path,
    mut file: File,
    layout: BurstLayout,
) -> Result<Box<dyn Read + Send>, FileError> {
    let mut header = Vec::new();
    (&mut file)
        .take(FILE_HEADER_BYTES as u64)
        .read_to_end(&mut header)
        .map_err(io_error(path))?;
    let Some(FileHeader {
        tokens,
        record_bytes,
    }) = FileHeader::read(&header)
    else {
        return Err(FileError::Content {
            path: path.to_owned(),
            message: "is not a file of bursts: it does not begin with ZBMDBRS2".to_owned(),
        });
    };
    Ok(Box::new(RecordReader {
        file: BufReader::new(file.take(record_bytes)),
        layout,
        tokens_left: tokens,
        record: 0,
        empty: 0,
        token: Vec::new(),
        place: 0,
    }))
}

/// Gives the bytes of the tokens that a file of records stands for.
struct RecordReader<R> {
    file: BufReader<Take<R>>,
    layout: BurstLayout,
    /// Tokens behind those of the records that were read.
    tokens_left: u64,
    /// Records that were read, for messages.
    record: u64,
    /// Empty bursts that are to be given before `token`.
    empty: u64,
    /// The burst that was read; empty where none follows the empty ones.
    token: Vec<u8>,
    /// Bytes of the burst under way that were given.
    place: usize,
}

impl<R: Read> RecordReader<R> {
    /// Reads the next record, or else finds the empty bursts behind the last one; whether there was anything.
    fn advance(&mut self) -> io::Result<bool> {
        self.place = 0;
        self.token.clear();
        let header = next_header(&mut self.file).map_err(|error| self.within_record(error))?;
        let Some((header, skipped)) = header else {
            let missing_bytes = self.file.get_ref().limit();
            if missing_bytes > 0 {
                return Err(damaged(format!(
                    "ends {missing_bytes} bytes before the end that its header says: it was cut off"
                )));
            }
            self.empty = std::mem::take(&mut self.tokens_left);
            return Ok(self.empty > 0);
        };

        let BurstHeader { first, length } = header;
        // An empty burst is nowhere, whatever a record says.
        let first = if length == 0 { 0 } else { first };
        if length > self.layout.max {
            let max = self.layout.max;
            return Err(damaged(format!(
                "record {} is {}",
                self.record,
                TooLong { length, max }
            )));
        }
        self.empty = u64::from(skipped);
        let tokens_left = self.tokens_left.checked_sub(self.empty + 1);
        self.tokens_left = tokens_left.ok_or_else(|| {
            damaged(format!(
                "record {} is beyond the last token that the header says",
                self.record
            ))
        })?;

        // The length was checked: what a stranger's file says reserves no more than a token.
        let mut items = vec![0; length as usize * self.layout.item_bytes()];
        let read = self.file.read_exact(&mut items);
        read.map_err(|error| self.within_record(error))?;
        self.layout.append(first, &items, &mut self.token);
        self.record += 1;
        Ok(true)
    }

    fn within_record(&self, error: io::Error) -> io::Error {
        match error.kind() {
            ErrorKind::UnexpectedEof => damaged(format!(
                "ends within record {}: it was cut off",
                self.record
            )),
            _ => error,
        }
    }
}

fn damaged(message: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}

impl<R: Read> Read for RecordReader<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let token_bytes = self.layout.token_bytes;
        let is_given = self.token.is_empty() || self.place == token_bytes;
        if self.empty == 0 && is_given && !self.advance()? {
            return Ok(0);
        }

        let wanted = to.len().min(token_bytes - self.place);
        let given = &mut to[..wanted];
        if self.empty > 0 {
            given.fill(0);
        } else {
            given.copy_from_slice(&self.token[self.place..self.place + wanted]);
        }
        self.place += wanted;
        if self.empty > 0 && self.place == token_bytes {
            self.empty -= 1;
            self.place = 0;
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use zbmd_ir::TokenType;

    use super::super::{create_sink, open_source, port_of, tokens_in};
    use super::*;

    /// Bursts of `lengths` items, from 0 on.
    fn tokens(token: &TokenType, lengths: &[u8]) -> Vec<u8> {
        let layout = BurstLayout::of(token).expect("a burst");
        let mut tokens = Vec::new();
        for (index, length) in lengths.iter().enumerate() {
            let items = vec![*length; usize::from(*length) * layout.item_bytes()];
            let first = if *length == 0 { 0 } else { index as i64 - 2 };
            layout.append(first, &items, &mut tokens);
        }
        tokens
    }

    #[test]
    fn records_come_back_as_tokens_whatever_pieces_are_written_and_read() {
        let token = TokenType::burst(DType::I16, [5, 2]);
        let port = port_of(&token);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.bursts");
        let written = tokens(&token, &[0, 3, 0, 0, 5, 1, 0, 2, 0, 0]);
        for piece in [1, 3, 10] {
            let mut sink = create_sink(&path, port).expect("created");
            for tokens in written.chunks(piece * token.bytes() as usize) {
                sink.write_tokens(tokens).expect("written");
            }
            // Four records, and nothing for the empty bursts.
            let length = fs::metadata(&path).expect("there").len();
            assert_eq!(length, 24 + 4 * 16 + (3 + 5 + 1 + 2) * 4);
            assert_eq!(tokens_in(&path, port).expect("ours"), Some(10));

            let mut read = Vec::new();
            let mut source = open_source(&path, port).expect("ours");
            let mut buffer = vec![0; 7 * piece];
            while let bytes @ 1.. = source.read(&mut buffer).expect("read") {
                read.extend_from_slice(&buffer[..bytes]);
            }
            assert_eq!(read, written, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_file_is_cut_back_to_any_number_of_tokens_and_goes_on() {
        let token = TokenType::burst(DType::U8, [9]);
        let port = port_of(&token);
        let folder = tempfile::tempdir().expect("a folder");
        let token_bytes = token.bytes() as usize;
        let all = tokens(&token, &[0, 9, 0, 0, 4, 0, 1, 0, 0]);
        for name in ["x.bursts", "x.jsonl"] {
            let path = folder.path().join(name);
            let mut sink = create_sink(&path, port).expect("created");
            sink.write_tokens(&all).expect("written");
            let whole = fs::read(&path).expect("there");
            for kept in 0..=9 {
                let mut sink = create_sink(&path, port).expect("created");
                sink.write_tokens(&all).expect("written");
                sink.cut_back(kept).expect("cut");
                sink.write_tokens(&all[kept as usize * token_bytes..])
                    .expect("written on");
                assert_eq!(fs::read(&path).expect("there"), whole, "{name} at {kept}");
            }
        }
    }

    #[test]
    fn lines_have_the_items_there_are() {
        let lines = |token: &TokenType, first: i64, items: &[u8]| {
            let layout = BurstLayout::of(token).expect("a burst");
            let encoding = BurstEncoding {
                layout,
                format: BurstFormat::JsonLines,
            };
            let mut bytes = vec![0; layout.token_bytes];
            layout.append(first, items, &mut bytes);
            let mut text = Vec::new();
            encoding
                .encode(&bytes, &mut Progress::default(), &mut text)
                .expect("within the maximum");
            String::from_utf8(text).expect("text")
        };
        let floats = |values: &[f32]| bytemuck::cast_slice::<f32, u8>(values).to_vec();
        assert_eq!(
            lines(&TokenType::burst(DType::U8, [3]), -4, &[7, 255]),
            "{\"token\":1,\"first\":-4,\"items\":[7,255]}\n"
        );
        assert_eq!(
            lines(
                &TokenType::burst(DType::F32, [2, 2]),
                9,
                &floats(&[0.1, f32::NAN, -2.0, f32::NEG_INFINITY])
            ),
            "{\"token\":1,\"first\":9,\"items\":[[0.1,\"NaN\"],[-2,\"-Infinity\"]]}\n"
        );
        assert_eq!(
            lines(
                &TokenType::burst(DType::C32, [2]),
                9,
                &floats(&[1.5, -0.25])
            ),
            "{\"token\":1,\"first\":9,\"items\":[[1.5,-0.25]]}\n"
        );
    }

    #[test]
    fn a_burst_beyond_the_maximum_is_refused_with_its_token() {
        let token = TokenType::burst(DType::U8, [2]);
        let folder = tempfile::tempdir().expect("a folder");
        let whole = tokens(&token, &[1, 2]);
        let mut broken = tokens(&token, &[2]);
        broken[8] = 3;
        for name in ["x.bursts", "x.jsonl"] {
            let path = folder.path().join(name);
            let mut sink = create_sink(&path, port_of(&token)).expect("created");
            sink.write_tokens(&whole).expect("written");
            let before = fs::read(&path).expect("there");
            let both = [&whole[..], &broken].concat();
            let error = sink.write_tokens(&both).expect_err("too long");
            assert_eq!(
                error.to_string(),
                "token 4 is a burst of 3 items, more than the maximum of 2: look at the initial tokens of the channel, or at the checkpoint"
            );
            assert_eq!(fs::read(&path).expect("there"), before, "{name}");
        }
    }

    #[test]
    fn an_empty_burst_of_a_record_is_nowhere() {
        let token = TokenType::burst(DType::U8, [2]);
        let layout = BurstLayout::of(&token).expect("a burst");
        let burst = Burst {
            first: 7,
            length: 0,
            items: &[],
        };
        let encoding = BurstEncoding {
            layout,
            format: BurstFormat::Records,
        };
        let mut bytes = encoding.header(1, HEADER_BYTES as u64);
        let mut record = Vec::new();
        append_record(burst, 0, &mut record);
        bytes.extend(record);

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.bursts");
        fs::write(&path, bytes).expect("written");
        let mut read = Vec::new();
        let mut source = open_source(&path, port_of(&token)).expect("ours");
        source.read_to_end(&mut read).expect("read");
        assert_eq!(read, vec![0; layout.token_bytes]);
    }

    #[test]
    fn damaged_files_are_refused_with_the_record() {
        let token = TokenType::burst(DType::U8, [2]);
        let port = port_of(&token);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.bursts");
        let encoding = BurstEncoding {
            layout: BurstLayout::of(&token).expect("a burst"),
            format: BurstFormat::Records,
        };
        let header = |tokens, record_bytes| encoding.header(tokens, record_bytes);
        let record = |length: u32, items: &[u8]| {
            let burst = Burst {
                first: 0,
                length,
                items,
            };
            let mut bytes = Vec::new();
            append_record(burst, 0, &mut bytes);
            bytes
        };
        let cases = [
            (b"ZBMDBRS".to_vec(), "does not begin with ZBMDBRS2"),
            (
                [header(1, 19), record(3, &[1, 2, 3])].concat(),
                "record 0 is a burst of 3 items, more than the maximum of 2",
            ),
            (
                [header(2, 35), record(1, &[1]), record(2, &[1])].concat(),
                "ends within record 1: it was cut off",
            ),
            (
                [header(1, 17), record(1, &[1])[..5].to_vec()].concat(),
                "ends within record 0: it was cut off",
            ),
            (
                [header(3, 34), record(1, &[1])].concat(),
                "ends 17 bytes before the end that its header says: it was cut off",
            ),
            (
                [header(1, 34), record(1, &[1]), record(1, &[1])].concat(),
                "record 1 is beyond the last token that the header says",
            ),
            (header(3, 34)[..20].to_vec(), "does not begin with ZBMDBRS2"),
        ];
        for (bytes, expected) in cases {
            fs::write(&path, bytes).expect("written");
            let error = match open_source(&path, port) {
                Ok(mut source) => source
                    .read_to_end(&mut Vec::new())
                    .expect_err("damaged")
                    .to_string(),
                Err(error) => error.to_string(),
            };
            assert!(error.contains(expected), "{error}");
        }
    }
}
