//! One link and the elastic buffer at its end.

use zbmd_ticks::ElasticBuffers;

use super::fault::NoticeKind;
use super::phase::Phase;

/// A one-way link.
#[derive(Clone, Debug)]
pub(crate) struct LinkState {
    pub(crate) propagation: f64,
    /// Not cut, whatever the nodes at its ends do.
    pub(crate) is_whole: bool,
    /// Since when it has been so.
    pub(crate) whole_since: f64,
    /// Counts how often the link came up or went down, so that events of an earlier time are known as such.
    pub(crate) generation: u64,
    pub(crate) up: Option<UpLink>,
    /// Smallest and largest fill while it was up.
    pub(crate) min_fill: i64,
    pub(crate) max_fill: i64,
}

/// A link on which frames arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpLink {
    pub(crate) since: f64,
    /// The logical latency.
    pub(crate) latency: i64,
    /// Up to when the fill was looked at, and what it was, with its fraction.
    checked_until: f64,
    checked_fill: f64,
}

/// A buffer that over- or underflows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossing {
    pub(crate) time: f64,
    pub(crate) kind: NoticeKind,
}

impl LinkState {
    pub(crate) fn new(propagation: f64) -> Self {
        Self {
            propagation,
            is_whole: true,
            whole_since: f64::NEG_INFINITY,
            generation: 0,
            up: None,
            min_fill: i64::MAX,
            max_fill: i64::MIN,
        }
    }

    /// Frames in the buffer at a time, if the link is up then.
    pub(crate) fn fill(&self, from: &Phase, to: &Phase, time: f64) -> Option<i64> {
        let up = self.up.filter(|up| up.since <= time)?;
        let sent = from.at(time - self.propagation).floor() as i64;
        let taken = to.at(time).floor() as i64;
        Some(up.latency + sent - taken)
    }

    /// Brings the link up, with a buffer of this fill, or with a given latency; the latency.
    pub(crate) fn come_up(
        &mut self,
        from: &Phase,
        to: &Phase,
        time: f64,
        fill: u64,
        fixed_latency: Option<u64>,
    ) -> i64 {
        let sent = from.at(time - self.propagation);
        let taken = to.at(time);
        let by_fill = fill as i64 - sent.floor() as i64 + taken.floor() as i64;
        let latency = fixed_latency.map_or(by_fill, |latency| latency as i64);
        self.generation += 1;
        self.up = Some(UpLink {
            since: time,
            latency,
            checked_until: time,
            checked_fill: latency as f64 + sent - taken,
        });
        latency
    }

    pub(crate) fn go_down(&mut self) {
        self.generation += 1;
        self.up = None;
    }

    /// Looks at the fill from where it was last looked at up to a time, before which the receiver's frequency does not
    /// change again: at each change of the sender's frequency, as it arrives, and at the end. Between these the fill is
    /// a linear function of time, and so extreme at its ends.
    pub(crate) fn check(
        &mut self,
        from: &Phase,
        to: &Phase,
        time: f64,
        buffers: &ElasticBuffers,
    ) -> Option<Crossing> {
        let mut up = self.up?;
        let first = up.checked_until - self.propagation;
        let changes = from.changes(first, time - self.propagation);
        let arrivals = changes.map(|change| change + self.propagation);

        let mut crossing = None;
        for end in arrivals.chain([time]) {
            let end = end.max(up.checked_until);
            let fill = up.latency as f64 + from.at(end - self.propagation) - to.at(end);
            crossing = crossing.or_else(|| find_crossing(&up, end, fill, buffers));
            up.checked_until = end;
            up.checked_fill = fill;
            // Frames arrive and leave at different times, so that both whole numbers around the fill occur.
            self.min_fill = self.min_fill.min(fill.floor() as i64);
            self.max_fill = self.max_fill.max(fill.ceil() as i64);
        }
        self.up = Some(up);
        crossing
    }
}

/// Where the fill leaves the buffer's bounds on its way from what it was to `fill`.
fn find_crossing(up: &UpLink, end: f64, fill: f64, buffers: &ElasticBuffers) -> Option<Crossing> {
    let (bound, kind) = if fill < 0.0 {
        (0.0, NoticeKind::Underflow)
    } else if fill > buffers.frames as f64 {
        (buffers.frames as f64, NoticeKind::Overflow)
    } else {
        return None;
    };
    let part = (bound - up.checked_fill) / (fill - up.checked_fill);
    let part = if part.is_finite() {
        part.clamp(0.0, 1.0)
    } else {
        0.0
    };
    let time = up.checked_until + part * (end - up.checked_until);
    Some(Crossing { time, kind })
}
