//! What a live stream did: counted while it runs, and shared with whoever reports. Must not know how reports look.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::gap::{Cause, Gap};
use crate::release::TimeSummary;

/// Gaps that a report lists; all of them are counted.
const MAX_LISTED: usize = 4096;

/// Gaps that are kept for whoever records them: 24 MiB.
const MAX_RECORDED: usize = 1 << 20;

/// A live source or sink, counted in tokens where nothing else is said. What does not apply is 0 or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveReport {
    /// The source or sink.
    pub stream: String,
    /// Its URL.
    pub url: String,
    /// It is a sink.
    pub is_sink: bool,
    /// Packets, or pieces of a byte stream.
    pub packets: u64,
    /// A source: tokens in packets that were understood. A sink: tokens that the run gave.
    pub received: u64,
    /// Tokens that were given to the run, filled ones included.
    pub given: u64,
    /// Filled tokens by cause.
    pub filled: BTreeMap<Cause, u64>,
    /// Gaps, those that follow on each other for the same reason counted once.
    pub gap_count: u64,
    /// The first gaps, by index.
    pub gaps: Vec<Gap>,
    /// All gaps, as far as somebody records them.
    #[serde(skip)]
    pub recorded_gaps: Option<Vec<Gap>>,
    /// Received twice, and dropped.
    pub repeats: u64,
    /// Received after they had been filled, and dropped.
    pub late: u64,
    /// In packets far from their turn, and dropped.
    pub stray: u64,
    /// Packets that came after a later one, and were put in order.
    pub reordered_packets: u64,
    /// Packets, connections and hellos that were not understood or not wanted.
    pub refused: u64,
    /// Datagrams that the system dropped because they were not read fast enough.
    pub kernel_drops: u64,
    /// Times that the sender began anew.
    pub restarts: u64,
    /// Connections that were made.
    pub connections: u64,
    /// Tokens that were sent to the peer.
    pub sent: u64,
    /// Tokens that were not sent: there was no peer, or it was too slow.
    pub dropped: u64,
    /// Commands that a client sent.
    pub commands: u64,
    /// How late the tokens of a source that is played were handed over, counted from when they were due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_lateness: Option<TimeSummary>,
    /// Why a sink writes no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The clock bridge of a sound card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<BridgeReport>,
    /// Tokens a second of a source, by its URL or the model.
    pub rate: Option<f64>,
    /// Samples a second that the sender stated.
    pub stated_rate: Option<f64>,
}

/// What the clock bridge of a sound card did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BridgeReport {
    /// Times that the card was given silence because nothing was there.
    pub underruns: u64,
    /// Times that far too much was there, and some of it was left out.
    pub overruns: u64,
    /// Frames of silence that the card was given, those before the beginning included.
    pub silent: u64,
    /// Times that the card ran dry because it was given nothing in time.
    pub card_underruns: u64,
    /// How long frames waited, when it was last looked at.
    pub queue_ms: f64,
    /// By how much the source's clock is faster than the card's.
    pub source_faster_ppm: f64,
}

impl LiveReport {
    /// Connections after the first.
    pub fn reconnects(&self) -> u64 {
        self.connections.saturating_sub(1)
    }

    /// Both rates, if the sender stated another than that which indexes are counted by.
    pub fn contradicting_rates(&self) -> Option<(f64, f64)> {
        let rates = self.rate.zip(self.stated_rate);
        rates.filter(|(rate, stated)| (rate - stated).abs() > 1e-6 * rate)
    }

    /// All filled tokens.
    pub fn filled_tokens(&self) -> u64 {
        self.filled.values().sum()
    }
}

/// Something that happened to a live stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum LiveEvent {
    /// Tokens were filled.
    Gap {
        /// The source.
        stream: String,
        /// Which tokens, and why.
        #[serde(flatten)]
        gap: Gap,
    },
    /// A connection was made.
    Connected {
        /// The stream.
        stream: String,
    },
    /// A connection is gone.
    Disconnected {
        /// The stream.
        stream: String,
    },
}

/// Who is told of events.
pub(crate) type EventListener = Box<dyn FnMut(LiveEvent) + Send>;

/// A report that its stream updates.
#[derive(Clone, Debug, Default)]
pub struct SharedReport {
    report: Arc<Mutex<LiveReport>>,
}

impl SharedReport {
    /// The report of a stream that has done nothing yet.
    pub fn new(stream: &str, url: &str, is_sink: bool) -> Self {
        let report = LiveReport {
            stream: stream.to_owned(),
            url: url.to_owned(),
            is_sink,
            ..LiveReport::default()
        };
        Self {
            report: Arc::new(Mutex::new(report)),
        }
    }

    /// The report as it is now.
    pub fn get(&self) -> LiveReport {
        let mut report = self.without_recorded_gaps();
        report.gaps.sort_by_key(|gap| gap.first);
        report
    }

    /// Whether it is that of the source of this name.
    pub fn is_of_source(&self, source: &str) -> bool {
        let report = self.locked();
        !report.is_sink && report.stream == source
    }

    /// Keeps all gaps from now on, for [`Self::recorded_gaps`].
    pub fn record_gaps(&self) {
        self.locked().recorded_gaps = Some(Vec::new());
    }

    /// How many gaps are complete.
    pub fn gap_count(&self) -> u64 {
        self.locked().gap_count
    }

    /// The gaps that are complete, by index; and how many more there were than are kept.
    pub fn recorded_gaps(&self) -> (Vec<Gap>, u64) {
        let report = self.locked();
        let mut gaps = report.recorded_gaps.clone().unwrap_or_default();
        let more = report.gap_count - (gaps.len() as u64).min(report.gap_count);
        drop(report);
        gaps.sort_by_key(|gap| gap.first);
        (gaps, more)
    }

    fn without_recorded_gaps(&self) -> LiveReport {
        let mut report = self.locked();
        let recorded = report.recorded_gaps.take();
        let copy = report.clone();
        report.recorded_gaps = recorded;
        copy
    }

    pub(crate) fn locked(&self) -> MutexGuard<'_, LiveReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Joins gaps that follow on each other for the same reason, and passes them on when they are complete.
pub(crate) struct GapLog {
    open: [Option<Gap>; Cause::ALL.len()],
    report: SharedReport,
    stream: String,
    listener: Option<EventListener>,
}

impl GapLog {
    pub(crate) fn new(stream: &str, report: SharedReport, listener: Option<EventListener>) -> Self {
        Self {
            open: [None; Cause::ALL.len()],
            report,
            stream: stream.to_owned(),
            listener,
        }
    }

    /// Tells whoever listens.
    pub(crate) fn tell(&mut self, make_event: impl FnOnce(String) -> LiveEvent) {
        if let Some(listener) = &mut self.listener {
            listener(make_event(self.stream.clone()));
        }
    }

    pub(crate) fn add(&mut self, gap: Gap) {
        let mut report = self.report.locked();
        *report.filled.entry(gap.cause).or_default() += gap.length;
        drop(report);

        let open = &mut self.open[gap.cause as usize];
        if open.as_mut().is_some_and(|open| open.extend(&gap)) {
            return;
        }
        let complete = open.replace(gap);
        if let Some(gap) = complete {
            self.close(gap);
        }
    }

    /// Passes on the gaps that end before `next`, the index of a token that comes after them.
    pub(crate) fn close_before(&mut self, next: u64) {
        for cause in Cause::ALL {
            let open = &mut self.open[cause as usize];
            if let Some(gap) = open.take_if(|gap| gap.end() < next) {
                self.close(gap);
            }
        }
    }

    fn close(&mut self, gap: Gap) {
        let mut report = self.report.locked();
        report.gap_count += 1;
        if report.gaps.len() < MAX_LISTED {
            report.gaps.push(gap);
        }
        if let Some(recorded) = &mut report.recorded_gaps
            && recorded.len() < MAX_RECORDED
        {
            recorded.push(gap);
        }
        drop(report);
        self.tell(|stream| LiveEvent::Gap { stream, gap });
    }
}

impl Drop for GapLog {
    fn drop(&mut self) {
        self.close_before(u64::MAX);
    }
}
