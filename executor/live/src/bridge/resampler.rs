//! Frames at one rate to frames at another, as told. Must not know clocks.

use super::filter::{FilterTable, MAX_RATE_RATIO, dot_product};
use super::{BridgeAction, Increment};

/// Frames that are used up are removed from memory when there are so many of them.
const MAX_USED_FRAMES: usize = 4096;

/// Interpolates between frames.
pub struct Resampler {
    table: FilterTable,
    /// The samples of each channel. Those at `position` on are the taps of the next output frame.
    channels: Vec<Vec<f32>>,
    position: usize,
    /// The next output frame's place between two input frames, in 32 binary places.
    fraction: u32,
    coefficients: Vec<f32>,
}

impl Resampler {
    /// Whether rates are close enough to each other for one filter.
    pub fn supports(source_rate: f64, sink_rate: f64) -> bool {
        let ratio = source_rate / sink_rate;
        (1.0 / MAX_RATE_RATIO..=MAX_RATE_RATIO).contains(&ratio)
    }

    /// A resampler for frames of so many channels: complex samples are two.
    pub fn new(source_rate: f64, sink_rate: f64, channels: usize) -> Self {
        let table = FilterTable::new(source_rate, sink_rate);
        let taps = table.taps();
        // The first output frame is at the first input frame: what came before is silence.
        let past = vec![0.0; taps / 2 - 1];
        Self {
            table,
            channels: vec![past; channels],
            position: 0,
            fraction: 0,
            coefficients: vec![0.0; taps],
        }
    }

    /// Samples of a frame.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Input frames before and after an output frame that it is made of.
    pub fn half_taps(&self) -> u64 {
        self.table.taps() as u64 / 2
    }

    /// Takes interleaved frames; how many.
    pub fn write(&mut self, samples: &[f32]) -> u64 {
        let used = self.position.min(self.channels[0].len());
        if used >= MAX_USED_FRAMES {
            for channel in &mut self.channels {
                channel.drain(..used);
            }
            self.position -= used;
        }

        let count = self.channels.len();
        for (index, channel) in self.channels.iter_mut().enumerate() {
            channel.extend(samples.iter().skip(index).step_by(count));
        }
        (samples.len() / count) as u64
    }

    /// Takes the silence that the last frames need after them.
    pub fn write_tail(&mut self) {
        let half_taps = self.table.taps() / 2;
        for channel in &mut self.channels {
            channel.resize(channel.len() + half_taps, 0.0);
        }
    }

    /// Input frames that wait; the silence at the end counts.
    pub fn queued(&self) -> u64 {
        let past = self.table.taps() / 2 - 1;
        self.channels[0].len().saturating_sub(self.position + past) as u64
    }

    /// Output frames that can be made of what was written.
    pub fn available(&self, increment: Increment) -> u64 {
        let written = self.channels[0].len();
        let frames = (written + 1).saturating_sub(self.position + self.table.taps());
        let room = ((frames as u64) << 32).saturating_sub(u64::from(self.fraction));
        room.div_ceil(increment.max(1))
    }

    /// Does what an action says; `samples` are the frames that it fills.
    pub fn apply(&mut self, action: BridgeAction, samples: &mut [f32]) {
        match action {
            BridgeAction::Silence { .. } => samples.fill(0.0),
            BridgeAction::Skip { frames } => self.position += frames as usize,
            BridgeAction::Play { increment, .. } => self.play(increment, samples),
        }
    }

    /// Fills interleaved frames; they have to be available.
    fn play(&mut self, increment: Increment, samples: &mut [f32]) {
        let taps = self.table.taps();
        for frame in samples.chunks_exact_mut(self.channels.len()) {
            self.table
                .interpolate(self.fraction, &mut self.coefficients);
            for (sample, channel) in frame.iter_mut().zip(&self.channels) {
                let input = &channel[self.position..self.position + taps];
                *sample = dot_product(&self.coefficients, input);
            }

            let place = u64::from(self.fraction) + increment;
            self.position += (place >> 32) as usize;
            self.fraction = place as u32;
        }
    }
}
