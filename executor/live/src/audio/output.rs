//! A sound card as a sink. The card's thread takes what it asks for out of a clock bridge; the sink's thread fills it.

use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use alsa::Direction;
use zbmd_ir::TokenType;

use super::card::{Card, CardFault, CardThread};
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

/// What the card's thread shares with the sink's.
struct Playback {
    bridge: Mutex<ClockBridge>,
    card_underruns: AtomicU64,
    card_is_lost: AtomicBool,
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
    /// Frames that the card keeps.
    card_frames: u64,
    following: ClockFollowing,
    /// Until it plays.
    open_card: Option<Card>,
    card_thread: Option<CardThread>,
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
        });

        let open_card = open_card(card, sink_rate, channels)?;
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
            card_frames: open_card.buffer_frames() as u64,
            following,
            open_card: Some(open_card),
            card_thread: None,
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
        self.card_thread = None;
        let Ok(card) = open_card(&self.card, self.sink_rate, self.channels) else {
            return;
        };
        self.playback.card_is_lost.store(false, Ordering::Release);
        self.playback.bridge().sink_restarted();
        self.start(card);
    }

    /// Lets a card play what the bridge has.
    fn start(&mut self, card: Card) {
        let playback = Arc::clone(&self.playback);
        let started = CardThread::start("zbmd card out", move |is_over| {
            play_blocks(card, &playback, is_over);
        });
        match started {
            Ok(thread) => self.card_thread = Some(thread),
            Err(_) => self.playback.card_is_lost.store(true, Ordering::Release),
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
        if let Some(card) = self.open_card.take() {
            self.start(card);
        }
        self.play(tokens, is_over, report);
        self.drain(report);

        // No block after this: the record is complete.
        self.card_thread = None;
        self.write_record(report);
        self.update_report(report);
        if let Some(Err(error)) = self.record.take().map(RecordWriter::finish) {
            report.locked().failure = Some(format!("the record: {error}"));
        }
        let mut report = report.locked();
        report.dropped = report.received - report.sent;
    }
}

fn open_card(card: &AudioCard, rate: f64, channels: usize) -> io::Result<Card> {
    // What the card keeps takes as long as what waits for it, and a machine may be busy for most of that.
    let block = card.latency / 4;
    Card::open(&card.device, Direction::Playback, rate, channels, block)
}

/// Gives a card what it asks for, until the flag is set or the card goes.
fn play_blocks(mut card: Card, playback: &Playback, is_over: &AtomicBool) {
    let mut samples = vec![0.0; card.block_samples()];
    while !is_over.load(Ordering::Relaxed) {
        let played = match card.wait() {
            Ok(true) => {
                playback.bridge().read(now_ns(), &mut samples);
                card.write(&samples)
            }
            other => other.map(|_| ()),
        };
        let gone_on = match played {
            Err(CardFault::Interrupted) => {
                playback.card_underruns.fetch_add(1, Ordering::Relaxed);
                playback.bridge().sink_restarted();
                card.restart()
            }
            other => other,
        };
        if gone_on.is_err() {
            playback.card_is_lost.store(true, Ordering::Release);
            return;
        }
    }
}
