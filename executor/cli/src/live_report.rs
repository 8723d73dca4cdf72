//! What live streams did, as people and programs read it beside the report of the run.

use std::fmt;

use serde::Serialize;
use zbmd_executor::Report;
use zbmd_live::{BridgeReport, LiveReport, TimeSummary};

use super::deadlines::DeadlineReport;

/// Gaps that the text shows for each source; JSON has the first 4096.
const GAPS_SHOWN: usize = 8;

/// What is known of a run beside the executor's report.
#[derive(Default, Serialize)]
pub(super) struct EdgeReports {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) live: Vec<LiveReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) deadlines: Vec<DeadlineReport>,
}

/// The report of a run with live streams.
#[derive(Serialize)]
pub(super) struct FullReport<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(flatten)]
    edges: &'a EdgeReports,
}

impl<'a> FullReport<'a> {
    pub(super) fn new(report: &'a Report, edges: &'a EdgeReports) -> Self {
        Self { report, edges }
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
        for live in &self.edges.live {
            text.push_str(&LiveText(live).to_string());
        }
        for deadline in &self.edges.deadlines {
            text.push_str(&deadline_text(deadline));
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
            writeln!(f, "{} sent{}", live.sent, self.counts())?;
            if let Some(bridge) = &live.bridge {
                writeln!(f, "    {}", bridge_text(bridge))?;
            }
            return match &live.failure {
                Some(failure) => writeln!(f, "    it failed: {failure}"),
                None => Ok(()),
            };
        }
        write!(f, "{} received", live.received)?;
        if live.filled_tokens() > 0 {
            let causes = live.filled.iter();
            let causes: Vec<String> = causes.map(|(cause, n)| format!("{cause} {n}")).collect();
            let filled = live.filled_tokens();
            write!(f, ", {filled} filled ({})", causes.join(", "))?;
        }
        writeln!(f, "{}", self.counts())?;
        if let Some(lateness) = &live.release_lateness {
            writeln!(f, "    released late by {}", times_text(lateness))?;
        }
        if let Some((rate, stated)) = live.contradicting_rates() {
            writeln!(
                f,
                "    the sender states {stated} samples a second; its tokens were counted by a rate of {rate}"
            )?;
        }

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

fn bridge_text(bridge: &BridgeReport) -> String {
    let card_underruns = match bridge.card_underruns {
        0 => String::new(),
        count => format!(", the card itself ran dry {count} times"),
    };
    format!(
        "clock bridge: {} underruns, {} overruns{card_underruns}; queue {:.1} ms; source {:+.1} ppm against the card",
        bridge.underruns, bridge.overruns, bridge.queue_ms, bridge.source_faster_ppm
    )
}

fn deadline_text(deadline: &DeadlineReport) -> String {
    let unanswered = match deadline.unanswered {
        0 => String::new(),
        count => format!(", {count} of them never came out"),
    };
    let counts = [
        (deadline.dropped, "dropped"),
        (deadline.held, "replaced by the last one in time"),
    ];
    let replaced: String = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!(", {count} {what}"))
        .collect();
    format!(
        "  deadline {}: {} of {} blocks later than {}{unanswered}{replaced}; response {}\n",
        deadline.sink,
        deadline.missed,
        deadline.response.count + deadline.unanswered,
        time_text(deadline.limit_ns),
        times_text(&deadline.response)
    )
}

fn times_text(times: &TimeSummary) -> String {
    format!(
        "{} in the median, p99 {}, p99.9 {}, at most {}",
        time_text(times.p50_ns),
        time_text(times.p99_ns),
        time_text(times.p99_9_ns),
        time_text(times.max_ns)
    )
}

/// A time with three digits.
fn time_text(ns: u64) -> String {
    match ns {
        0..=9_999_999 => format!("{:.3} ms", ns as f64 / 1e6),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use zbmd_ir::response::LatePolicy;
    use zbmd_live::{Cause, Gap};

    use super::*;

    #[test]
    fn the_text_says_what_came_and_what_is_missing() {
        let gap = |first| Gap {
            first,
            length: 7,
            cause: Cause::Lost,
        };
        let source = LiveReport {
            stream: "iq".to_owned(),
            url: "udp://h:1".to_owned(),
            received: 900,
            filled: [(Cause::Lost, 70), (Cause::Silence, 30)].into(),
            gap_count: 11,
            gaps: (0..10).map(|n| gap(n * 20)).collect(),
            repeats: 5,
            rate: Some(48e3),
            stated_rate: Some(96e3),
            connections: 3,
            ..LiveReport::default()
        };
        let sink = LiveReport {
            stream: "out".to_owned(),
            url: "tcp://h:2".to_owned(),
            is_sink: true,
            sent: 800,
            dropped: 50,
            bridge: Some(BridgeReport {
                underruns: 3,
                card_underruns: 1,
                queue_ms: 19.96,
                source_faster_ppm: -31.25,
                ..BridgeReport::default()
            }),
            failure: Some("disk full".to_owned()),
            ..LiveReport::default()
        };
        let report = Report {
            model: "m".to_owned(),
            ..Report::default()
        };
        let edges = EdgeReports {
            live: vec![source, sink],
            deadlines: vec![DeadlineReport {
                sink: "out".to_owned(),
                limit_ns: 10_000_000,
                on_miss: LatePolicy::Drop,
                missed: 3,
                unanswered: 1,
                dropped: 2,
                held: 0,
                response: TimeSummary {
                    count: 99,
                    max_ns: 12_345_678,
                    ..TimeSummary::default()
                },
            }],
        };
        let full = FullReport::new(&report, &edges);
        let text = full.to_string();
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            lines[0],
            "  live iq udp://h:1: 900 received, 100 filled (lost 70, silence 30), 5 repeated, 2 reconnects"
        );
        assert_eq!(
            lines[1],
            "    the sender states 96000 samples a second; its tokens were counted by a rate of 48000"
        );
        assert_eq!(lines[2], "    gap at            0: 7 tokens, lost");
        assert_eq!(lines[10], "    … and 3 gaps more (see --report json)");
        assert_eq!(lines[11], "  live out tcp://h:2: 800 sent, 50 dropped");
        assert_eq!(
            lines[12],
            "    clock bridge: 3 underruns, 0 overruns, the card itself ran dry 1 times; queue 20.0 ms; source -31.2 ppm against the card"
        );
        assert_eq!(lines[13], "    it failed: disk full");
        assert_eq!(
            lines[14],
            "  deadline out: 3 of 100 blocks later than 10.0 ms, 1 of them never came out, 2 dropped; response 0.000 ms in the median, p99 0.000 ms, p99.9 0.000 ms, at most 12.3 ms"
        );
        assert_eq!(full.summary(), text);

        // Programs that read reports of files see no difference.
        let nothing = EdgeReports::default();
        let plain = FullReport::new(&report, &nothing);
        assert_eq!(plain.to_json(), report.to_json());
        assert!(full.to_json().contains("\"live\": ["));
    }
}
