//! When a bridge plays, and by which ratio: a state machine and a slow control loop, by times and counts alone.
//!
//! The queue's level is what the source's clock has counted less what the sink was given, at a moment of the sink's
//! clock; both clocks are smoothed, so that blocks, however they fall against each other, do not show in it. A
//! proportional-integral loop, critically damped, holds it at the target: the integral becomes the clocks' difference.

use std::time::Duration;

use super::ClockFollowing;
use super::record::BridgeAction;
use super::time_filter::TimeFilter;
use super::{Increment, ONE_FRAME};
use crate::clock::as_ns;

/// Bandwidth of the loop in radians a second. A clock that is off by 500 ppm from the start moves the queue by
/// 500e-6 / (0.3 e) s = 0.6 ms at most.
const LOOP_BANDWIDTH: f64 = 0.3;
/// The ratio changes so often.
const CONTROL_PERIOD_S: f64 = 0.1;
/// The largest correction of the ratio: no two crystals differ by more.
const MAX_CORRECTION: f64 = 2e-3;
/// The correction changes by so much in a second at most; a pitch that changes as slowly is not heard.
const MAX_SLEW_PER_S: f64 = 250e-6;
/// A queue longer than twice the target and this is not a matter of clocks.
const MAX_EXCESS_S: f64 = 0.1;
/// Play does not begin by a source that has written nothing for so many of its blocks.
const MAX_SILENT_BLOCKS: f64 = 1.5;

/// How a bridge works.
#[derive(Clone, Copy, Debug)]
pub struct BridgeSettings {
    /// Frames a second that are written, nominally.
    pub source_rate: f64,
    /// Frames a second that are asked for, nominally.
    pub sink_rate: f64,
    /// How long a frame waits. It has to be longer than a block of the source and one of the sink together.
    pub target: Duration,
    /// What the ratio follows.
    pub following: ClockFollowing,
}

/// What a bridge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeCounts {
    /// Times that the queue ran dry while it was played.
    pub underruns: u64,
    /// Times that the queue was much longer than its target, and was shortened.
    pub overruns: u64,
    /// Output frames of silence, those before the beginning included.
    pub silent: u64,
    /// Output frames made of input frames.
    pub played: u64,
    /// Input frames that were left out.
    pub skipped: u64,
}

/// Decides what a bridge does.
#[derive(Clone, Debug)]
pub struct BridgeControl {
    settings: BridgeSettings,
    half_taps: u64,
    target_s: f64,
    source_clock: TimeFilter,
    sink_clock: TimeFilter,
    /// Input frames so far; with silence for the filter at the end.
    written: u64,
    /// The largest block since play began.
    block: u64,
    /// The next output frame's place among input frames.
    whole: u64,
    fraction: u32,
    is_playing: bool,
    has_ended: bool,
    integral: f64,
    correction: f64,
    increment: Increment,
    /// Output frames since the ratio was set.
    since_control: u64,
    level_s: f64,
    counts: BridgeCounts,
}

/// The increment for a ratio of rates and a correction of it.
fn increment_of(settings: &BridgeSettings, correction: f64) -> Increment {
    let ratio = settings.source_rate / settings.sink_rate * (1.0 + correction);
    (ratio * ONE_FRAME as f64).round() as Increment
}

impl BridgeControl {
    /// A control of a resampler that needs so many frames after the one that it plays.
    pub fn new(settings: BridgeSettings, half_taps: u64) -> Self {
        Self {
            half_taps,
            target_s: as_ns(settings.target) as f64 / 1e9,
            source_clock: TimeFilter::new(settings.source_rate),
            sink_clock: TimeFilter::new(settings.sink_rate),
            written: 0,
            block: 0,
            whole: 0,
            fraction: 0,
            is_playing: false,
            has_ended: false,
            integral: 0.0,
            correction: 0.0,
            increment: increment_of(&settings, 0.0),
            since_control: 0,
            level_s: 0.0,
            counts: BridgeCounts::default(),
            settings,
        }
    }

    /// So many frames were written at `now_ns`; whether some have to be left out.
    pub fn written(&mut self, now_ns: u64, frames: u64) -> Option<BridgeAction> {
        self.written += frames;
        self.block = self.block.max(frames);
        self.source_clock.update(now_ns, frames);
        if self.settings.following == ClockFollowing::Nominal {
            return None;
        }

        // A card that stands still must not fill memory, nor be heard a second late when it goes on.
        let block_s = frames as f64 / self.settings.source_rate;
        let max_s = 2.0 * self.target_s + MAX_EXCESS_S + block_s;
        let excess_s = self.queued() as f64 / self.settings.source_rate - max_s;
        if excess_s <= 0.0 {
            return None;
        }
        self.counts.overruns += 1;
        let wanted = ((self.target_s + block_s) * self.settings.source_rate) as u64;
        Some(self.skip(self.queued().saturating_sub(wanted)))
    }

    /// Leaves out what is queued.
    pub fn discard(&mut self) -> Option<BridgeAction> {
        let queued = self.queued();
        (queued > 0).then(|| self.skip(queued))
    }

    /// There will be no more frames; the filter's silence at the end was written.
    pub fn end(&mut self) {
        self.written += self.half_taps;
        self.has_ended = true;
    }

    /// Whether there will be no more frames.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether all frames that there will ever be have been played.
    pub fn is_drained(&self) -> bool {
        self.has_ended && self.available() == 0
    }

    /// Input frames that wait.
    pub fn queued(&self) -> u64 {
        self.written.saturating_sub(self.whole)
    }

    /// Input frames that wait, without the filter's silence at the end.
    pub fn unplayed(&self) -> u64 {
        let tail = if self.has_ended { self.half_taps } else { 0 };
        self.queued().saturating_sub(tail)
    }

    /// Whether a source that gives frames as they are asked for should give more.
    pub fn has_room(&self) -> bool {
        let queued_s = self.queued().saturating_sub(self.half_taps) as f64;
        queued_s < self.target_s * self.settings.source_rate
    }

    /// How long frames waited, when it was last looked at.
    pub fn level_s(&self) -> f64 {
        self.level_s
    }

    /// By how much the source's clock is faster than the sink's, as far as the loop knows.
    pub fn correction(&self) -> f64 {
        self.correction
    }

    /// Input frames that were used or left out, with the part of the next one.
    pub fn position(&self) -> f64 {
        self.whole as f64 + f64::from(self.fraction) / ONE_FRAME as f64
    }

    /// What was done so far.
    pub fn counts(&self) -> BridgeCounts {
        self.counts
    }

    /// Output frames that can be made of what was written.
    fn available(&self) -> u64 {
        let frames = self.queued().saturating_sub(self.half_taps);
        let room = (frames << 32).saturating_sub(u64::from(self.fraction));
        room.div_ceil(self.increment)
    }

    /// The sink stood still and goes on: it ran dry, or is another one now. What waited for it meanwhile is left out when
    /// play begins again, at the target; it is no difference of clocks.
    pub fn sink_restarted(&mut self) {
        self.sink_clock.reset();
        if self.settings.following == ClockFollowing::Source {
            self.is_playing = false;
        }
    }

    /// What to give a sink that asks for so many frames at `now_ns`: the actions fill exactly these.
    pub fn read(&mut self, now_ns: u64, frames: u64) -> [Option<BridgeAction>; 4] {
        let sink_time_ns = self.sink_clock.update(now_ns, frames);
        let mut actions = [None; 4];
        let mut left = frames;
        if !self.is_playing {
            let wait = self.frames_until_start(sink_time_ns).min(left);
            actions[0] = self.silence(wait);
            left -= wait;
            if left == 0 {
                return actions;
            }
            actions[1] = self.start(sink_time_ns, wait);
        }

        self.since_control += left;
        if self.settings.following == ClockFollowing::Source {
            self.control(sink_time_ns, frames - left);
        }
        let played = self.available().min(left);
        if played > 0 {
            actions[2] = Some(self.play(played));
        }
        left -= played;
        if left > 0 {
            self.counts.underruns += u64::from(!self.has_ended);
            self.is_playing = false;
            self.source_clock.reset();
            self.block = 0;
            actions[3] = self.silence(left);
        }
        actions
    }

    /// Seconds of frames in the queue, by the source's clock.
    fn level_at(&self, time_ns: f64, max_since: f64) -> f64 {
        let since = self.source_clock.frames_since(time_ns).min(max_since);
        (self.written as f64 + since - self.position()) / self.settings.source_rate
    }

    /// The level, if the source goes on; else what is there.
    fn level_before_start(&self, time_ns: f64) -> f64 {
        match self.settings.following {
            ClockFollowing::Source => self.level_at(time_ns, MAX_SILENT_BLOCKS * self.block as f64),
            ClockFollowing::Nominal => {
                self.queued().saturating_sub(self.half_taps) as f64 / self.settings.source_rate
            }
        }
    }

    /// Frames of silence before play begins.
    fn frames_until_start(&self, time_ns: f64) -> u64 {
        if self.has_ended {
            return if self.available() > 0 { 0 } else { u64::MAX };
        }
        // What a card asks for before it plays would count as a wait that it is not.
        if !self.source_clock.is_set() || !self.sink_clock.is_steady() {
            return u64::MAX;
        }
        let missing_s = self.target_s - self.level_before_start(time_ns);
        match missing_s > 0.0 {
            true => (missing_s * self.settings.sink_rate).ceil() as u64,
            false => 0,
        }
    }

    /// Begins to play after so many frames of silence; what came in a burst, beyond the target, is left out.
    fn start(&mut self, time_ns: f64, wait: u64) -> Option<BridgeAction> {
        self.is_playing = true;
        let follows = self.settings.following == ClockFollowing::Source;
        if !follows || self.has_ended {
            return None;
        }
        let waited_s = wait as f64 / self.settings.sink_rate;
        let excess_s = self.level_before_start(time_ns) + waited_s - self.target_s;
        let excess = (excess_s * self.settings.source_rate).floor();
        // Less than a frame is the rounding of the wait.
        (excess >= 2.0).then(|| self.skip((excess as u64).min(self.queued())))
    }

    /// Sets the ratio from the level, from time to time; `silent` frames of this block come before it is played.
    fn control(&mut self, time_ns: f64, silent: u64) {
        let elapsed_s = self.since_control as f64 / self.settings.sink_rate;
        if elapsed_s < CONTROL_PERIOD_S || self.has_ended {
            return;
        }
        self.since_control = 0;
        let silent_s = silent as f64 / self.settings.sink_rate;
        self.level_s = self.level_at(time_ns, f64::INFINITY) + silent_s;

        let error_s = self.level_s - self.target_s;
        let proportional = 2.0 * LOOP_BANDWIDTH * error_s;
        let change = LOOP_BANDWIDTH * LOOP_BANDWIDTH * error_s * elapsed_s;
        let wanted = (proportional + self.integral + change).clamp(-MAX_CORRECTION, MAX_CORRECTION);
        let max_change = MAX_SLEW_PER_S * elapsed_s;
        let slewed = wanted.clamp(self.correction - max_change, self.correction + max_change);
        // While the correction cannot follow, the integral does not run away.
        if slewed == wanted {
            self.integral = (self.integral + change).clamp(-MAX_CORRECTION, MAX_CORRECTION);
        }
        self.correction = slewed;
        self.increment = increment_of(&self.settings, self.correction);
    }

    fn play(&mut self, frames: u64) -> BridgeAction {
        self.counts.played += frames;
        // Blocks are short: this is far below 2^64.
        let place = u128::from(self.fraction) + u128::from(frames) * u128::from(self.increment);
        self.whole += (place >> 32) as u64;
        self.fraction = place as u32;
        BridgeAction::Play {
            frames,
            increment: self.increment,
        }
    }

    fn silence(&mut self, frames: u64) -> Option<BridgeAction> {
        self.counts.silent += frames;
        (frames > 0).then_some(BridgeAction::Silence { frames })
    }

    fn skip(&mut self, frames: u64) -> BridgeAction {
        self.counts.skipped += frames;
        self.whole += frames;
        BridgeAction::Skip { frames }
    }
}
