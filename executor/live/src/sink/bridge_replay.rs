//! A file of what a sound card was given: tokens through a clock bridge, by the record of its actions. The same tokens
//! and the same record make the same bits.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::sync::atomic::AtomicBool;

use zbmd_ir::TokenType;

use super::{LiveSink, TokenReader, samples_of, sound_channels};
use crate::bridge::{BridgeAction, RecordReader, Resampler};
use crate::report::SharedReport;
use crate::url::BridgeReplay;

/// Frames that are made at once, however many an action has.
const PIECE_FRAMES: u64 = 4096;

/// Does what a record says.
pub(super) struct ReplaySink {
    output: BufWriter<File>,
    record: RecordReader<BufReader<File>>,
    resampler: Resampler,
    /// Of the current action, what is not done yet.
    action: Option<BridgeAction>,
    has_failed: bool,
}

impl ReplaySink {
    pub(super) fn open(replay: &BridgeReplay, token: &TokenType) -> io::Result<Self> {
        let channels = sound_channels(token)?;
        let in_record = |error: &dyn std::fmt::Display| {
            io::Error::other(format!("record {}: {error}", replay.record.display()))
        };
        let file = File::open(&replay.record).map_err(|error| in_record(&error))?;
        let reader = RecordReader::new(BufReader::new(file)).map_err(|error| in_record(&error))?;
        let record = reader.record();
        if record.channels != channels {
            return Err(io::Error::other(format!(
                "record {}: it is of frames with {} channels; the tokens are {token}, which have {channels}",
                replay.record.display(),
                record.channels
            )));
        }

        // Emptied when the run begins, as files of other sinks are.
        let output = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&replay.path)?;
        Ok(Self {
            output: BufWriter::new(output),
            record: reader,
            resampler: Resampler::new(record.source_rate, record.sink_rate, channels),
            action: None,
            has_failed: false,
        })
    }

    /// Does as much as there are tokens for.
    fn advance(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        let mut samples = Vec::new();
        let mut bytes = Vec::new();
        loop {
            if self.action.is_none() {
                self.action = self.record.next_action()?;
            }
            let Some(action) = self.action else {
                return Ok(());
            };

            let Some((now, later)) = self.split(action) else {
                return Ok(());
            };
            samples.clear();
            samples.resize(
                now.output_frames() as usize * self.resampler.channels(),
                0.0,
            );
            self.resampler.apply(now, &mut samples);
            bytes.clear();
            bytes.extend(samples.iter().flat_map(|sample| sample.to_ne_bytes()));
            self.output.write_all(&bytes)?;
            self.action = later;
        }
    }

    /// What can be done now of an action, and what is left of it then.
    fn split(&self, action: BridgeAction) -> Option<(BridgeAction, Option<BridgeAction>)> {
        let now = match action {
            BridgeAction::Silence { frames } => frames.min(PIECE_FRAMES),
            BridgeAction::Skip { frames } => frames.min(self.resampler.queued()),
            BridgeAction::Play { frames, increment } => {
                let available = self.resampler.available(increment);
                frames.min(available).min(PIECE_FRAMES)
            }
        };
        (now > 0).then(|| action.split(now))
    }

    fn replay(&mut self, report: &SharedReport) {
        if self.has_failed {
            return;
        }
        if let Err(error) = self.advance() {
            // Nothing is lost that could not be made again: the run goes on, and its report says what is missing.
            report.locked().failure = Some(error.to_string());
            self.has_failed = true;
        }
    }
}

impl LiveSink for ReplaySink {
    fn run(mut self: Box<Self>, tokens: File, is_over: &AtomicBool, report: &SharedReport) {
        if let Err(error) = self.output.get_ref().set_len(0) {
            report.locked().failure = Some(error.to_string());
            self.has_failed = true;
        }
        let mut reader = TokenReader::new(tokens, self.resampler.channels() * 4);
        let mut samples = Vec::new();
        while let Some(bytes) = reader.next(usize::MAX, is_over) {
            if bytes.is_empty() {
                continue;
            }
            samples.clear();
            samples_of(bytes, &mut samples);
            report.locked().received += self.resampler.write(&samples);
            self.replay(report);
        }

        self.resampler.write_tail();
        self.replay(report);
        if let Err(error) = self.output.flush() {
            report.locked().failure = Some(error.to_string());
        }
        let unused = self
            .resampler
            .queued()
            .saturating_sub(self.resampler.half_taps());
        let mut report = report.locked();
        report.dropped = unused.min(report.received);
        report.sent = report.received - report.dropped;
    }
}
