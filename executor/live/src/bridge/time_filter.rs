//! A clock as it is seen by the moments at which blocks of frames are there. A delay-locked loop of second order smooths
//! them: threads wake up late, clocks run evenly (F. Adriaensen, "Using a DLL to filter time", 2005).

/// Moments that are older than this have little weight.
const TIME_CONSTANT_NS: f64 = 1e9;
/// No single moment has more weight, once there are several.
const MAX_GAIN: f64 = 0.5;
/// A moment so far from where it should be says that the clock stood still.
const MAX_ERROR_NS: f64 = 100e6;

/// Threads wake up late and never early: what is early by more than this part of a block says that the moments before it
/// were late, as those are of a card that asks for its whole buffer at first, or of a source that catches up.
const MAX_EARLY_BLOCKS: f64 = 0.75;

/// Follows a clock.
#[derive(Clone, Debug)]
pub(super) struct TimeFilter {
    nominal_period_ns: f64,
    period_ns: f64,
    /// When the last frame was there, smoothed.
    time_ns: f64,
    /// Moments since the last reset.
    moments: u64,
    largest_block: u64,
}

impl TimeFilter {
    pub(super) fn new(rate: f64) -> Self {
        Self {
            nominal_period_ns: 1e9 / rate,
            period_ns: 1e9 / rate,
            time_ns: 0.0,
            moments: 0,
            largest_block: 0,
        }
    }

    /// Whether there was a moment since the last reset.
    pub(super) fn is_set(&self) -> bool {
        self.moments > 0
    }

    /// Whether the last moment followed on one before it in time. A card asks for its whole buffer at once at first.
    pub(super) fn is_steady(&self) -> bool {
        self.moments > 1
    }

    /// The clock stood still; its rate is as it was.
    pub(super) fn reset(&mut self) {
        self.moments = 0;
    }

    /// So many frames more are there at `now_ns`; that moment, smoothed.
    pub(super) fn update(&mut self, now_ns: u64, frames: u64) -> f64 {
        let now_ns = now_ns as f64;
        let expected_ns = self.time_ns + frames as f64 * self.period_ns;
        let error_ns = now_ns - expected_ns;
        self.largest_block = self.largest_block.max(frames);
        let block_ns = self.largest_block as f64 * self.nominal_period_ns;
        let is_early = error_ns < -MAX_EARLY_BLOCKS * block_ns;
        if self.moments == 0 || is_early || error_ns > MAX_ERROR_NS {
            self.time_ns = now_ns;
            self.moments = 1;
            return now_ns;
        }

        // At first the mean of all moments, so that the first one has no special weight; then a loop that is critically
        // damped.
        self.moments += 1;
        let settled_gain =
            (frames as f64 * self.nominal_period_ns / TIME_CONSTANT_NS).min(MAX_GAIN);
        let mean_gain = 1.0 / self.moments as f64;
        let gain = settled_gain.max(mean_gain);
        self.time_ns = expected_ns + gain * error_ns;
        if gain == settled_gain && frames > 0 {
            self.period_ns += gain * gain / 4.0 * error_ns / frames as f64;
        }
        self.time_ns
    }

    /// Frames that this clock has counted beyond the last one, at a moment.
    pub(super) fn frames_since(&self, now_ns: f64) -> f64 {
        (now_ns - self.time_ns) / self.period_ns
    }
}
