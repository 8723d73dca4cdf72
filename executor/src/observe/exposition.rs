//! Prometheus' text format, version 0.0.4: what `/metrics` of a server and of a run are made of. Must not know what is
//! counted, nor how it is sent.

use std::fmt::{Display, Write};

/// What a text of this format is declared as.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How a metric's values are to be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows, from 0 at the start.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Samples by upper ends, `_bucket`, with `_sum` and `_count`.
    Histogram,
    /// Quantiles of samples, with `_count`.
    Summary,
    /// Nothing is promised.
    Untyped,
}

impl MetricKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
            Self::Untyped => "untyped",
        }
    }
}

/// A metric: its name by Prometheus' rules, and what it counts, in one line.
#[derive(Clone, Copy, Debug)]
pub struct Metric<'a> {
    /// Letters, digits and `_`; counters end in `_total`, and units are those of the SI.
    pub name: &'a str,
    /// How its values are to be understood.
    pub kind: MetricKind,
    /// For people.
    pub help: &'a str,
}

impl<'a> Metric<'a> {
    /// One that only grows.
    pub const fn counter(name: &'a str, help: &'a str) -> Self {
        let kind = MetricKind::Counter;
        Self { name, kind, help }
    }

    /// One that goes up and down.
    pub const fn gauge(name: &'a str, help: &'a str) -> Self {
        let kind = MetricKind::Gauge;
        Self { name, kind, help }
    }
}

/// A text that grows metric by metric.
#[derive(Clone, Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Begins a metric; its samples follow, before the next metric begins.
    pub fn begin(&mut self, metric: Metric<'_>) {
        let Metric { name, kind, help } = metric;
        let kind = kind.name();
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample: a name that begins with that of its metric, labels with any values, and a number.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (place, (label, text)) in labels.iter().enumerate() {
            let before = if place == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{label}=\"");
            self.push_escaped(text);
            self.text.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    /// A metric of one sample.
    pub fn single(&mut self, metric: Metric<'_>, value: impl Display) {
        self.begin(metric);
        self.sample(metric.name, &[], value);
    }

    fn push_escaped(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                other => self.text.push(other),
            }
        }
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// Nanoseconds as the seconds that Prometheus wants.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stand_after_their_metric_and_labels_are_escaped() {
        let mut exposition = Exposition::default();
        exposition.single(Metric::counter("a_total", "How many."), 3);
        exposition.begin(Metric::gauge("b", "How much."));
        exposition.sample(
            "b",
            &[("x", "a\\b\"c\nd"), ("y", "é")],
            seconds(1_500_000_000),
        );
        let expected = "# HELP a_total How many.\n# TYPE a_total counter\na_total 3\n\
            # HELP b How much.\n# TYPE b gauge\nb{x=\"a\\\\b\\\"c\\nd\",y=\"é\"} 1.5\n";
        assert_eq!(exposition.into_text(), expected);
    }
}
