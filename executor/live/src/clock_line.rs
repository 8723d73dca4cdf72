//! Which token is due when: a line of time and indexes, estimated from what arrives. Must not know packets.
//!
//! No token arrives before it was sampled, so among many the one with the shortest delay tells best where the line is.
//! Two things move it:
//!
//! - The sender's clock is not ours: while tokens follow on each other, the line follows the shortest delays of the last
//!   seconds, up and down.
//! - After an outage that hides how many tokens are missing, the first packet is put on the line as if it had no delay. It
//!   had one, so what follows on it *leads* the line by that much. The lead belongs to this part of the stream alone: were
//!   it taken into the line, the delays of a hundred reconnections would add up.

/// The shortest delay is looked for over so long.
const WINDOW_NS: u64 = 5_000_000_000;

/// Tokens before `index_at(t)` were sampled before `t`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockLine {
    rate_per_ns: f64,
    origin_ns: u64,
    /// Index at the origin.
    offset: f64,
    /// The origin is a time that is known, or the first part of the stream has told.
    is_anchored: bool,
    /// By how much the present part of the stream is ahead of the line.
    lead: f64,
    window_begin_ns: Option<u64>,
    /// The largest lead in this window, in the one before, and in the first one of this part.
    window_lead: f64,
    earlier_lead: f64,
    first_lead: Option<f64>,
}

impl ClockLine {
    /// The line on which token `index` is sampled at `origin_ns`; `is_anchored` if that is a fact and not an estimate.
    pub(crate) fn new(rate_per_s: f64, origin_ns: u64, index: u64, is_anchored: bool) -> Self {
        Self {
            rate_per_ns: rate_per_s / 1e9,
            origin_ns,
            offset: index as f64,
            is_anchored,
            lead: 0.0,
            window_begin_ns: None,
            window_lead: f64::NEG_INFINITY,
            earlier_lead: f64::NEG_INFINITY,
            first_lead: None,
        }
    }

    fn on_line(&self, time_ns: u64) -> f64 {
        let elapsed_ns = time_ns as f64 - self.origin_ns as f64;
        self.offset + elapsed_ns * self.rate_per_ns
    }

    /// The first token that was not sampled yet.
    pub(crate) fn index_at(&self, time_ns: u64) -> f64 {
        self.on_line(time_ns) + self.lead
    }

    /// Tokens in so many nanoseconds.
    pub(crate) fn tokens_in(&self, duration_ns: f64) -> f64 {
        duration_ns * self.rate_per_ns
    }

    /// All tokens before `index` had arrived at `time_ns`.
    pub(crate) fn observe(&mut self, index: u64, time_ns: u64) {
        let begin_ns = *self.window_begin_ns.get_or_insert(time_ns);
        if time_ns.saturating_sub(begin_ns) >= WINDOW_NS {
            self.end_window();
            self.window_begin_ns = Some(time_ns);
        }
        let lead = index as f64 - self.on_line(time_ns);
        self.window_lead = self.window_lead.max(lead);
        self.lead = self.earlier_lead.max(self.window_lead);
    }

    /// The line follows the difference between this window and the first one of this part.
    fn end_window(&mut self) {
        match self.first_lead {
            None => self.first_lead = Some(self.window_lead),
            Some(first_lead) => {
                self.offset += self.window_lead - first_lead;
                self.window_lead = first_lead;
            }
        }
        self.earlier_lead = self.window_lead;
        self.window_lead = f64::NEG_INFINITY;
    }

    /// What comes next does not follow on what came before: only the line tells where it is.
    pub(crate) fn begin_part(&mut self) {
        if !self.is_anchored && self.window_begin_ns.is_some() {
            self.offset += self.lead;
            self.is_anchored = true;
        }
        self.lead = 0.0;
        self.window_begin_ns = None;
        self.window_lead = f64::NEG_INFINITY;
        self.earlier_lead = f64::NEG_INFINITY;
        self.first_lead = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_line_follows_clocks_that_are_fast_or_slow() {
        for parts_per_million in [-500.0, 0.0, 500.0] {
            let true_rate = 1e6 * (1.0 + parts_per_million * 1e-6);
            let mut line = ClockLine::new(1e6, 0, 0, false);
            for step in 1..=60_000u64 {
                let time_ns = step * 10 * MS;
                // Delays of up to 4 ms, and now and then of none.
                let delay_ns = step * 7 % 5 * MS;
                let sampled = (time_ns - delay_ns) as f64 * 1e-9 * true_rate;
                line.observe(sampled as u64, time_ns);
            }
            let now_ns = 600_000 * MS;
            let sampled = now_ns as f64 * 1e-9 * true_rate;
            let error = line.index_at(now_ns) - sampled;
            // Two windows' drift.
            assert!(error.abs() <= 5_001.0, "{parts_per_million} ppm: {error}");
        }
    }

    #[test]
    fn the_delays_of_many_reconnections_do_not_add_up() {
        let mut line = ClockLine::new(1e6, 0, 0, false);
        line.observe(10_000, 10 * MS);
        for part in 1..=100u64 {
            line.begin_part();
            let time_ns = part * 1_000 * MS;
            // The first packet is put on the line though it is 3 ms late; the next ones are not late.
            let index = line.index_at(time_ns) as u64;
            line.observe(index, time_ns);
            line.observe(index + 13_000, time_ns + 10 * MS);
            let lead = line.index_at(time_ns) - time_ns as f64 * 1e-3;
            assert!((0.0..=3_001.0).contains(&lead), "after {part}: {lead}");
        }
    }
}
