//! The clock bridge: an asynchronous resampler between the clock of a source and that of a sink, such as a receiver and
//! a sound card. Both count 48000 samples a second, and neither agrees with the other on how long a second is: without a
//! bridge the queue between them runs dry, or over.
//!
//! ```text
//! tokens -> Resampler -> what the sink asks for
//!              ^ actions (play by this increment, silence, skip), which can be recorded
//!         BridgeControl <- when how much was written, and asked for
//! ```
//!
//! [`BridgeControl`] decides by times and counts only, so that a simulation of a day takes seconds. [`Resampler`] does
//! what the actions say; it has no clock. A record of the actions ([`BridgeRecord`]) is an input like the tokens: with
//! both, the same bits come out on every machine, because all arithmetic of samples is a fixed order of IEEE additions
//! and multiplications, tables included.
//!
//! # Literature
//!
//! - Filter: band-limited interpolation with a table of a windowed sinc and linear interpolation between its entries:
//!   J. O. Smith and P. Gossett, "A flexible sampling-rate conversion method", ICASSP 1984; R. E. Crochiere and
//!   L. R. Rabiner, *Multirate Digital Signal Processing*, 1983; window: J. F. Kaiser, "Nonrecursive digital filter
//!   design using the I0-sinh window function", ISCAS 1974. How table size and interpolation order trade:
//!   O. Niemitalo, "Polynomial interpolators for high-quality resampling of oversampled audio", 2001.
//! - Times: F. Adriaensen, "Using a DLL to filter time", 2005.
//! - Loop: F. Adriaensen, "Controlling adaptive resampling", Linux Audio Conference 2012 (zita-ajbridge).

mod control;
mod filter;
mod record;
mod resampler;
mod time_filter;

pub use control::{BridgeControl, BridgeCounts, BridgeSettings};
pub use record::{BridgeAction, BridgeRecord, RecordError, RecordReader, RecordWriter};
pub use resampler::Resampler;
pub use zbmd_stream_url::ClockFollowing;

/// Input frames that an output frame moves on by, as a number with 32 binary places.
pub type Increment = u64;

/// An increment of one input frame.
pub const ONE_FRAME: Increment = 1 << 32;

/// A bridge in operation: tokens in on one clock, tokens out on another.
pub struct ClockBridge {
    control: BridgeControl,
    resampler: Resampler,
    /// What was done, until [`Self::take_actions`].
    actions: Vec<BridgeAction>,
    is_recorded: bool,
}

impl ClockBridge {
    /// A bridge for frames of so many channels. With `is_recorded`, its actions are kept until they are taken.
    pub fn new(settings: BridgeSettings, channels: usize, is_recorded: bool) -> Self {
        let resampler = Resampler::new(settings.source_rate, settings.sink_rate, channels);
        Self {
            control: BridgeControl::new(settings, resampler.half_taps()),
            resampler,
            actions: Vec::with_capacity(4096),
            is_recorded,
        }
    }

    /// Takes interleaved frames, which are there at `now_ns`; none after [`Self::finish`].
    pub fn write(&mut self, now_ns: u64, samples: &[f32]) {
        let frames = self.resampler.write(samples);
        if let Some(action) = self.control.written(now_ns, frames) {
            self.apply(action, &mut []);
        }
    }

    /// There will be no more frames: what is queued is played to its end.
    pub fn finish(&mut self) {
        if !self.control.has_ended() {
            self.resampler.write_tail();
            self.control.end();
        }
    }

    /// Fills interleaved frames for a sink that asks for them at `now_ns`.
    pub fn read(&mut self, now_ns: u64, mut samples: &mut [f32]) {
        let channels = self.resampler.channels();
        let frames = (samples.len() / channels) as u64;
        let actions = self.control.read(now_ns, frames);
        for action in actions.into_iter().flatten() {
            let filled = action.output_frames() as usize * channels;
            let (now, later) = samples.split_at_mut(filled);
            self.apply(action, now);
            samples = later;
        }
    }

    /// The sink stood still and goes on: see [`BridgeControl::sink_restarted`].
    pub fn sink_restarted(&mut self) {
        self.control.sink_restarted();
    }

    /// Leaves out what is queued.
    pub fn discard(&mut self) {
        if let Some(action) = self.control.discard() {
            self.apply(action, &mut []);
        }
    }

    fn apply(&mut self, action: BridgeAction, samples: &mut [f32]) {
        self.resampler.apply(action, samples);
        if self.is_recorded {
            let last = self.actions.last_mut();
            let is_merged = last.is_some_and(|last| last.merge(action));
            if !is_merged {
                self.actions.push(action);
            }
        }
    }

    /// What was done since the last call, in order.
    pub fn take_actions(&mut self, into: &mut Vec<BridgeAction>) {
        into.append(&mut self.actions);
    }

    /// What decides.
    pub fn control(&self) -> &BridgeControl {
        &self.control
    }
}
