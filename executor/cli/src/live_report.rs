//! What live streams did, as people and programs read it beside the report of the run.

use std::fmt;

use serde::Serialize;
use zbmd_executor::Report;
use zbmd_live::LiveReport;

/// Gaps that the text shows for each source; JSON has the first 4096.
const GAPS_SHOWN: usize = 8;

/// The report of a run with live streams.
#[derive(Serialize)]
pub(super) struct FullReport<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "<[LiveReport]>::is_empty")]
    live: &'a [LiveReport],
}

impl<'a> FullReport<'a> {
    pub(super) fn new(report: &'a Report, live: &'a [LiveReport]) -> Self {
        Self { report, live }
    }

    /// As [`Report::to_json`].
    pub(super) fn to_json(&self) -> String {
        // Plain data with string keys: serialising cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The text without the measurements.
    pub(super) fn summary(&self) -> String {
        self.with_live(self.report.summary())
    }

    fn with_live(&self, mut text: String) -> String {
        for live in self.live {
            text.push_str(&LiveText(live).to_string());
        }
        text
    }
}

impl fmt::Display for FullReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_live(self.report.to_string()))
    }
}

/// A live stream for people.
struct LiveText<'a>(&'a LiveReport);

impl LiveText<'_> {
    /// Counts that are not 0, each with what was counted.
    fn counts(&self) -> String {
        let live = self.0;
        let all = [
            (live.repeats, "repeated"),
            (live.late, "late"),
            (live.stray, "stray"),
            (live.reordered_packets, "packets reordered"),
            (live.refused, "refused"),
            (live.kernel_drops, "datagrams dropped by the system"),
            (live.restarts, "restarts of the sender"),
            (live.dropped, "dropped"),
            (live.commands, "commands"),
            (live.reconnects(), "reconnects"),
        ];
        let counts = all.iter().filter(|(count, _)| *count > 0);
        counts
            .map(|(count, what)| format!(", {count} {what}"))
            .collect()
    }
}

impl fmt::Display for LiveText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.0;
        write!(f, "  live {} {}: ", live.stream, live.url)?;
        if live.is_sink {
            return writeln!(f, "{} sent{}", live.sent, self.counts());
        }
        write!(f, "{} received", live.received)?;
        if live.filled_tokens() > 0 {
            let causes = live.filled.iter();
            let causes: Vec<String> = causes.map(|(cause, n)| format!("{cause} {n}")).collect();
            let filled = live.filled_tokens();
            write!(f, ", {filled} filled ({})", causes.join(", "))?;
        }
        writeln!(f, "{}", self.counts())?;

        for gap in live.gaps.iter().take(GAPS_SHOWN) {
            writeln!(
                f,
                "    gap at {:>12}: {} tokens, {}",
                gap.first, gap.length, gap.cause
            )?;
        }
        let shown = live.gaps.len().min(GAPS_SHOWN) as u64;
        if live.gap_count > shown {
            let more = live.gap_count - shown;
            writeln!(f, "    … and {more} gaps more (see --report json)")?;
        }
        Ok(())
    }
}
