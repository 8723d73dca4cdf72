//! A sound card as a sink. The card's callback takes what it asks for out of a clock bridge; the sink's thread fills it.

use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cpal::traits::{DeviceTrait, StreamTrait};
use cpal::{ErrorKind, FromSample, SampleFormat, SizedSample, Stream};
use zbmd_ir::TokenType;

use super::priority::CardPriority;
use super::{Direction, OpenCard, failed};
use crate::bridge::{
    BridgeAction, BridgeRecord, BridgeSettings, ClockBridge, ClockFollowing, RecordWriter,
    Resampler,
};
use crate::clock::{as_ns, now_ns, sleep_until};
use crate::report::{BridgeReport, SharedReport};
use crate::sink::{LOOK_NS, LiveSink, SinkContext, TokenReader, samples_of, sound_channels};
use crate::url::AudioCard;

/// Frames a second where neither the URL nor the model says.
const DEFAULT_RATE: f64 = 48e3;
/// How often room is looked for in the queue of a run that is read as the card plays.
const ROOM_NS: u64 = 1_000_000;
/// When the run is over, a card that plays nothing for so long is left.
const PATIENCE_NS: u64 = 500_000_000;
/// A card that went is looked for so often.
const RETRY_NS: u64 = 1_000_000_000;

/// What the card's callback shares with the sink's thread.
struct Playback {
    bridge: Mutex<ClockBridge>,
    card_underruns: AtomicU64,
    card_is_lost: AtomicBool,
    priority: CardPriority,
}

impl Playback {
    fn bridge(&self) -> MutexGuard<'_, ClockBridge> {
        self.bridge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Plays tokens.
pub(crate) struct AudioSink {
    card: AudioCard,
    sink_rate: f64,
    channels: usize,
    /// Frames that the card keeps, at most.
    card_frames: u64,
    following: ClockFollowing,
    stream: Option<Stream>,
    playback: Arc<Playback>,
    record: Option<RecordWriter<BufWriter<File>>>,
    actions: Vec<BridgeAction>,
    retry_ns: u64,
}

impl AudioSink {
    pub(crate) fn open(
        card: &AudioCard,
        token: &TokenType,
        context: SinkContext,
    ) -> io::Result<Self> {
        let channels = sound_channels(token)?;
        let sink_rate = card.rate.or(context.model_rate).unwrap_or(DEFAULT_RATE);
        let source_rate = context.model_rate.unwrap_or(sink_rate);
        if !Resampler::supports(source_rate, sink_rate) {
            return Err(io::Error::other(format!(
                "tokens come at {source_rate} a second, and the card is to play {sink_rate}: that is too far apart; set `rate`"
            )));
        }

        let following = match context.has_live_source {
            true => ClockFollowing::Source,
            false => ClockFollowing::Nominal,
        };
        let following = card.following.unwrap_or(following);
        let settings = BridgeSettings {
            source_rate,
            sink_rate,
            target: card.latency,
            following,
        };
        let bridge = ClockBridge::new(settings, channels, card.record.is_some());
        let playback = Arc::new(Playback {
            bridge: Mutex::new(bridge),
            card_underruns: AtomicU64::new(0),
            card_is_lost: AtomicBool::new(false),
            priority: CardPriority::default(),
        });

        let open_card = OpenCard::new(
            &card.device,
            Direction::Output,
            sink_rate,
            channels,
            card.latency / 4,
        )?;
        let stream = build(&open_card, &playback)?;
        let record = BridgeRecord {
            source_rate,
            sink_rate,
            channels,
        };
        let record = card.record.as_ref().map(|path| {
            let file = File::create(path);
            let writer = file.and_then(|file| RecordWriter::new(BufWriter::new(file), record));
            writer.map_err(|error| io::Error::other(format!("record {}: {error}", path.display())))
        });
        Ok(Self {
            card: card.clone(),
            sink_rate,
            channels,
            card_frames: 2 * open_card.block_frames(),
            following,
            stream: Some(stream),
            playback,
            record: record.transpose()?,
            actions: Vec::new(),
            retry_ns: 0,
        })
    }

    /// Opens the card again if it went.
    fn look_after_card(&mut self) {
        if !self.playback.card_is_lost.load(Ordering::Acquire) || now_ns() < self.retry_ns {
            return;
        }
        self.retry_ns = now_ns() + RETRY_NS;
        self.stream = None;
        let block = self.card.latency / 4;
        let name = &self.card.device;
        let card = OpenCard::new(
            name,
            Direction::Output,
            self.sink_rate,
            self.channels,
            block,
        );
        let stream = card.and_then(|card| build(&card, &self.playback));
        let Ok(stream) = stream else {
            return;
        };
        self.playback.card_is_lost.store(false, Ordering::Release);
        self.playback.bridge().sink_restarted();
        if stream.play().is_ok() {
            self.stream = Some(stream);
        }
    }

    /// Writes what the bridge did to the record.
    fn write_record(&mut self, report: &SharedReport) {
        let Some(record) = &mut self.record else {
            return;
        };
        self.playback.bridge().take_actions(&mut self.actions);
        let written = self
            .actions
            .drain(..)
            .try_for_each(|action| record.add(action));
        if let Err(error) = written {
            // Sound goes on; half a record is none.
            report.locked().failure = Some(format!("the record: {error}"));
            self.record = None;
        }
    }

    fn update_report(&self, report: &SharedReport) {
        let bridge = self.playback.bridge();
        let control = bridge.control();
        let counts = control.counts();
        let queued = control.unplayed();
        let bridge_report = BridgeReport {
            underruns: counts.underruns,
            overruns: counts.overruns,
            silent: counts.silent,
            card_underruns: self.playback.card_underruns.load(Ordering::Relaxed),
            queue_ms: control.level_s() * 1e3,
            source_faster_ppm: control.correction() * 1e6,
        };
        drop(bridge);

        let mut report = report.locked();
        report.dropped = counts.skipped.min(report.received);
        report.sent = report.received.saturating_sub(report.dropped + queued);
        report.bridge = Some(bridge_report);
    }

    /// Takes tokens from the pipe into the bridge until it ends.
    fn play(&mut self, tokens: File, is_over: &AtomicBool, report: &SharedReport) {
        let frame_bytes = self.channels * 4;
        let mut reader = TokenReader::new(tokens, frame_bytes);
        let mut samples = Vec::new();
        let mut next_look_ns = 0;
        loop {
            if now_ns() >= next_look_ns {
                next_look_ns = now_ns() + LOOK_NS;
                self.look_after_card();
                self.write_record(report);
                self.update_report(report);
            }
            let is_full = self.following == ClockFollowing::Nominal
                && !self.playback.bridge().control().has_room();
            if is_full {
                // A card that is gone takes nothing: then the run does not wait for it either.
                let is_lost = self.playback.card_is_lost.load(Ordering::Acquire);
                if !is_lost {
                    sleep_until(now_ns() + ROOM_NS);
                    continue;
                }
                self.playback.bridge().discard();
            }

            // Of a run that is read as the card plays, no more than is needed soon.
            let max_bytes = match self.following {
                ClockFollowing::Source => usize::MAX,
                ClockFollowing::Nominal => self.room_bytes(),
            };
            let Some(bytes) = reader.next(max_bytes, is_over) else {
                return;
            };
            let arrival_ns = now_ns();
            if bytes.is_empty() {
                continue;
            }
            samples.clear();
            samples_of(bytes, &mut samples);
            report.locked().received += (bytes.len() / frame_bytes) as u64;
            self.playback.bridge().write(arrival_ns, &samples);
        }
    }

    /// Bytes of as many tokens as wait for a card that they are read for.
    fn room_bytes(&self) -> usize {
        let frames = self.card.latency.as_secs_f64() * self.sink_rate;
        (frames as usize).max(1) * self.channels * 4
    }

    /// Waits until the card has played what is queued, and then what it has.
    fn drain(&mut self, report: &SharedReport) {
        self.playback.bridge().finish();
        let card_ns = self.card_frames as f64 / self.sink_rate * 1e9;
        let mut moved = (0, now_ns());
        let mut silent_at_end = None;
        loop {
            sleep_until(now_ns() + ROOM_NS);
            self.write_record(report);
            let bridge = self.playback.bridge();
            let counts = bridge.control().counts();
            let is_drained = bridge.control().is_drained();
            drop(bridge);

            let now = now_ns();
            if counts.played + counts.silent != moved.0 {
                moved = (counts.played + counts.silent, now);
            }
            if is_drained {
                let silent = *silent_at_end.get_or_insert(counts.silent);
                // What it asks for after the end replaces what it has played.
                if counts.silent - silent >= self.card_frames {
                    return;
                }
            }
            let patience_ns = PATIENCE_NS + card_ns as u64 + as_ns(Duration::from_millis(1));
            if now - moved.1 > patience_ns || self.playback.card_is_lost.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

impl LiveSink for AudioSink {
    fn run(mut self: Box<Self>, tokens: File, is_over: &AtomicBool, report: &SharedReport) {
        self.playback.priority.take_from_caller();
        let started = self.stream.as_ref().map(StreamTrait::play);
        if !matches!(started, Some(Ok(()))) {
            self.playback.card_is_lost.store(true, Ordering::Release);
        }
        self.play(tokens, is_over, report);
        self.drain(report);

        // No callback after this: the record is complete.
        self.stream = None;
        self.write_record(report);
        self.update_report(report);
        if let Some(Err(error)) = self.record.take().map(RecordWriter::finish) {
            report.locked().failure = Some(format!("the record: {error}"));
        }
        let mut report = report.locked();
        report.dropped = report.received - report.sent;
    }
}

/// Opens a card for output in the format that it has.
fn build(card: &OpenCard, playback: &Arc<Playback>) -> io::Result<Stream> {
    let playback = Arc::clone(playback);
    match card.format {
        SampleFormat::F32 => build_as::<f32>(card, playback),
        SampleFormat::I32 => build_as::<i32>(card, playback),
        _ => build_as::<i16>(card, playback),
    }
}

fn build_as<T: SizedSample + FromSample<f32> + Send + 'static>(
    card: &OpenCard,
    playback: Arc<Playback>,
) -> io::Result<Stream> {
    let mut samples = Vec::new();
    let mut priority = 0;
    let errors = Arc::clone(&playback);
    let fill = move |data: &mut [T], _: &cpal::OutputCallbackInfo| {
        playback.priority.give_to_caller(&mut priority);
        // Blocks have one size: this allocates once.
        samples.resize(data.len(), 0.0f32);
        playback.bridge().read(now_ns(), &mut samples);
        for (output, sample) in data.iter_mut().zip(&samples) {
            *output = T::from_sample(*sample);
        }
    };
    let on_error = move |error: cpal::Error| match error.kind() {
        ErrorKind::Xrun => {
            errors.card_underruns.fetch_add(1, Ordering::Relaxed);
            errors.bridge().sink_restarted();
        }
        ErrorKind::DeviceNotAvailable | ErrorKind::StreamInvalidated => {
            errors.card_is_lost.store(true, Ordering::Release);
        }
        _ => {}
    };
    let stream = card
        .device
        .build_output_stream(card.config, fill, on_error, None);
    stream.map_err(|error| failed("the sound card cannot be opened", &error))
}
