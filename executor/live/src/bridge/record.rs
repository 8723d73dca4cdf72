//! What a bridge did, as a text that a run can be given again. One action a line:
//!
//! ```text
//! zbmd-bridge 1 source_rate=48000 sink_rate=44100 channels=2
//! silence 512
//! play 4800 4674690614
//! skip 96
//! ```
//!
//! `play` has output frames and the increment: input frames for each of them, times 2^32.

use std::io::{self, BufRead, Read, Write};

use super::{Increment, ONE_FRAME, Resampler};

/// Something that a bridge does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgeAction {
    /// Give so many output frames of silence.
    Silence {
        /// Output frames.
        frames: u64,
    },
    /// Leave out so many input frames.
    Skip {
        /// Input frames.
        frames: u64,
    },
    /// Make so many output frames.
    Play {
        /// Output frames.
        frames: u64,
        /// Input frames for each of them.
        increment: Increment,
    },
}

impl BridgeAction {
    /// Output frames that it fills.
    pub fn output_frames(&self) -> u64 {
        match self {
            Self::Silence { frames } | Self::Play { frames, .. } => *frames,
            Self::Skip { .. } => 0,
        }
    }

    /// Its first frames, as an action, and what is left, if anything is.
    pub fn split(self, first: u64) -> (Self, Option<Self>) {
        let with_frames = |frames| match self {
            Self::Silence { .. } => Self::Silence { frames },
            Self::Skip { .. } => Self::Skip { frames },
            Self::Play { increment, .. } => Self::Play { frames, increment },
        };
        let (Self::Silence { frames } | Self::Skip { frames } | Self::Play { frames, .. }) = self;
        let left = frames.saturating_sub(first);
        (
            with_frames(frames - left),
            (left > 0).then(|| with_frames(left)),
        )
    }

    /// Makes this and the next one one, if they are of the same kind and a record's line can hold both.
    pub fn merge(&mut self, next: Self) -> bool {
        let (Self::Silence { frames: more }
        | Self::Skip { frames: more }
        | Self::Play { frames: more, .. }) = next;
        let is_same_kind = match (*self, next) {
            (Self::Silence { .. }, Self::Silence { .. })
            | (Self::Skip { .. }, Self::Skip { .. }) => true,
            (
                Self::Play { increment, .. },
                Self::Play {
                    increment: next_increment,
                    ..
                },
            ) => increment == next_increment,
            _ => false,
        };
        let (Self::Silence { frames } | Self::Skip { frames } | Self::Play { frames, .. }) = self;
        let sum = frames.saturating_add(more);
        if !is_same_kind || sum > MAX_FRAMES {
            return false;
        }
        *frames = sum;
        true
    }
}

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BridgeRecord {
    /// Input frames a second.
    pub source_rate: f64,
    /// Output frames a second.
    pub sink_rate: f64,
    /// Samples of a frame.
    pub channels: usize,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line is not what it should be.
    #[error("line {line} is `{found}`; expected: {expected}")]
    Line {
        /// Its number, from 1 on.
        line: u64,
        /// Its text.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
}

/// A line is shorter, or it is not one of a record.
const MAX_LINE_BYTES: u64 = 200;
/// More frames than a run of years has; an action has no more.
const MAX_FRAMES: u64 = 1 << 48;
const HEADER: &str = "zbmd-bridge 1 source_rate=NUMBER sink_rate=NUMBER channels=NUMBER";
const ACTION: &str = "silence FRAMES, skip FRAMES, or play FRAMES INCREMENT";

/// Writes a record.
pub struct RecordWriter<W> {
    writer: W,
    /// May be joined with the next.
    last: Option<BridgeAction>,
}

impl<W: Write> RecordWriter<W> {
    /// Begins a record.
    ///
    /// # Errors
    /// What the writer says.
    pub fn new(mut writer: W, record: BridgeRecord) -> io::Result<Self> {
        writeln!(
            writer,
            "zbmd-bridge 1 source_rate={} sink_rate={} channels={}",
            record.source_rate, record.sink_rate, record.channels
        )?;
        Ok(Self { writer, last: None })
    }

    /// Adds an action.
    ///
    /// # Errors
    /// What the writer says.
    pub fn add(&mut self, action: BridgeAction) -> io::Result<()> {
        if self.last.as_mut().is_some_and(|last| last.merge(action)) {
            return Ok(());
        }
        match self.last.replace(action) {
            Some(complete) => self.write(complete),
            None => Ok(()),
        }
    }

    /// Writes what is left.
    ///
    /// # Errors
    /// What the writer says.
    pub fn finish(mut self) -> io::Result<()> {
        if let Some(last) = self.last.take() {
            self.write(last)?;
        }
        self.writer.flush()
    }

    fn write(&mut self, action: BridgeAction) -> io::Result<()> {
        match action {
            BridgeAction::Silence { frames } => writeln!(self.writer, "silence {frames}"),
            BridgeAction::Skip { frames } => writeln!(self.writer, "skip {frames}"),
            BridgeAction::Play { frames, increment } => {
                writeln!(self.writer, "play {frames} {increment}")
            }
        }
    }
}

/// Reads a record.
pub struct RecordReader<R> {
    reader: R,
    record: BridgeRecord,
    line: u64,
}

impl<R: BufRead> RecordReader<R> {
    /// Reads the first line.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn new(mut reader: R) -> Result<Self, RecordError> {
        let text = read_line(&mut reader)?.unwrap_or_default();
        let record = parse_header(&text).ok_or(RecordError::Line {
            line: 1,
            found: text,
            expected: HEADER,
        })?;
        Ok(Self {
            reader,
            record,
            line: 1,
        })
    }

    /// What it is of.
    pub fn record(&self) -> BridgeRecord {
        self.record
    }

    /// The next action; `None` at the end.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn next_action(&mut self) -> Result<Option<BridgeAction>, RecordError> {
        let Some(text) = read_line(&mut self.reader)? else {
            return Ok(None);
        };
        self.line += 1;
        match self.parse_action(&text) {
            Some(action) => Ok(Some(action)),
            None => Err(RecordError::Line {
                line: self.line,
                found: text,
                expected: ACTION,
            }),
        }
    }

    fn parse_action(&self, text: &str) -> Option<BridgeAction> {
        let mut words = text.split(' ');
        let kind = words.next()?;
        let frames: u64 = words.next()?.parse().ok()?;
        if frames == 0 || frames > MAX_FRAMES {
            return None;
        }
        let action = match kind {
            "silence" => BridgeAction::Silence { frames },
            "skip" => BridgeAction::Skip { frames },
            "play" => {
                let increment: Increment = words.next()?.parse().ok()?;
                // A record cannot ask for more than a bridge does.
                let nominal = self.record.source_rate / self.record.sink_rate;
                let ratio = increment as f64 / ONE_FRAME as f64;
                if !(nominal * 0.9..=nominal * 1.1).contains(&ratio) {
                    return None;
                }
                BridgeAction::Play { frames, increment }
            }
            _ => return None,
        };
        words.next().is_none().then_some(action)
    }
}

fn parse_header(text: &str) -> Option<BridgeRecord> {
    let rest = text.strip_prefix("zbmd-bridge 1 ")?;
    let mut words = rest.split(' ');
    let source_rate: f64 = words.next()?.strip_prefix("source_rate=")?.parse().ok()?;
    let sink_rate: f64 = words.next()?.strip_prefix("sink_rate=")?.parse().ok()?;
    let channels: usize = words.next()?.strip_prefix("channels=")?.parse().ok()?;
    let are_rates = source_rate > 0.0 && sink_rate > 0.0;
    let is_right = are_rates && Resampler::supports(source_rate, sink_rate);
    (is_right && channels > 0 && words.next().is_none()).then_some(BridgeRecord {
        source_rate,
        sink_rate,
        channels,
    })
}

/// A line without its end; `None` at the end of the text. A line that is too long is cut, and is not a record's then.
fn read_line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let mut limited = reader.by_ref().take(MAX_LINE_BYTES);
    let length = limited.read_until(b'\n', &mut bytes)?;
    if length == 0 {
        return Ok(None);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "zbmd-bridge 1 source_rate=48000 sink_rate=44100 channels=2\nsilence 512\nplay 4800 4674690614\nskip 96\nplay 3 4674690615\n";

    fn actions(text: &str) -> Result<Vec<BridgeAction>, RecordError> {
        let mut reader = RecordReader::new(text.as_bytes())?;
        let mut actions = Vec::new();
        while let Some(action) = reader.next_action()? {
            actions.push(action);
        }
        Ok(actions)
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let reader = RecordReader::new(TEXT.as_bytes()).expect("right");
        let mut text = Vec::new();
        let mut writer = RecordWriter::new(&mut text, reader.record()).expect("memory");
        for action in actions(TEXT).expect("right") {
            // Halves of an action become one line.
            match action {
                BridgeAction::Play { frames, increment } => {
                    let first = BridgeAction::Play {
                        frames: 1,
                        increment,
                    };
                    let rest = BridgeAction::Play {
                        frames: frames - 1,
                        increment,
                    };
                    writer.add(first).expect("memory");
                    writer.add(rest).expect("memory");
                }
                other => writer.add(other).expect("memory"),
            }
        }
        writer.finish().expect("memory");
        assert_eq!(String::from_utf8_lossy(&text), TEXT);
    }

    #[test]
    fn what_is_not_a_record_is_refused_with_its_line() {
        let header = TEXT.lines().next().expect("a line");
        let long = "9".repeat(10_000);
        for (text, line) in [
            (String::new(), "line 1 is ``"),
            (TEXT.replace(" 1 ", " 2 "), "line 1"),
            (TEXT.replace("48000", "0"), "line 1"),
            (TEXT.replace("48000", "inf"), "line 1"),
            (TEXT.replace("channels=2", "channels=0"), "line 1"),
            (TEXT.replace("silence", "noise"), "line 2 is `noise 512`"),
            (TEXT.replace("skip 96", "skip -96"), "line 4"),
            (TEXT.replace("skip 96", "skip 96 4"), "line 4"),
            (TEXT.replace("3 4674690615", "3 1"), "line 5"),
            (format!("{header}\nskip {long}\n"), "line 2"),
        ] {
            let error = actions(&text).expect_err(&text).to_string();
            assert!(error.contains(line), "{error}");
        }
    }
}
