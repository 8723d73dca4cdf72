//! A run's progress as metrics.

use zbmd_executor::exposition::{Exposition, Metric, MetricKind, seconds};
use zbmd_executor::live::{DeviceState, Fill, HostState, Progress, TimesProgress};

/// A number of a queue or a ring, and the metric that it is.
struct FillMetric {
    metric: Metric<'static>,
    value: fn(&Fill) -> u64,
}

/// All metrics of a run, each with the label `model`.
pub(super) fn metrics_text(progress: &Progress) -> String {
    let mut text = RunText {
        exposition: Exposition::default(),
        progress,
    };
    text.work();
    text.hosts();
    text.devices();
    text.fills();
    text.releases();
    text.deadlines();
    text.parameters();
    text.exposition.into_text()
}

struct RunText<'a> {
    exposition: Exposition,
    progress: &'a Progress,
}

impl<'a> RunText<'a> {
    /// One number of the run.
    fn single(&mut self, metric: Metric<'_>, value: impl std::fmt::Display) {
        self.exposition.begin(metric);
        self.sample(metric.name, &[], value);
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let model = [("model", self.progress.model.as_str())];
        let labels: Vec<(&str, &str)> = model.iter().chain(labels).copied().collect();
        self.exposition.sample(name, &labels, value);
    }

    fn work(&mut self) {
        let progress: &'a Progress = self.progress;
        let help = "Iterations finished.";
        let metric = Metric::counter("zbmd_iterations_total", help);
        self.single(metric, progress.iterations);
        let help =
            "Epochs begun: one more for each loss, return of a device, or other change of plan.";
        let metric = Metric::counter("zbmd_epochs_total", help);
        self.single(metric, progress.epoch + 1);
        let help = "Epochs that ended at once because something was lost, and were made good.";
        let metric = Metric::counter("zbmd_recoveries_total", help);
        self.single(metric, progress.recoveries);
        let help = "Periods that every worker has done in the present epoch.";
        let metric = Metric::gauge("zbmd_epoch_periods", help);
        self.single(metric, progress.periods);

        let plan = [("plan", progress.plan.as_str())];
        let help = "Planned period of the plan at work.";
        let metric = Metric::gauge("zbmd_planned_period_seconds", help);
        self.exposition.begin(metric);
        self.sample(metric.name, &plan, seconds(progress.period_planned_ns));
        let help = "Iterations in a block of the plan at work.";
        let metric = Metric::gauge("zbmd_block_iterations", help);
        self.exposition.begin(metric);
        self.sample(metric.name, &plan, progress.block);
        if let Some(mode) = &progress.mode {
            let help = "The first iteration of the mode that the run is in.";
            let metric = Metric::gauge("zbmd_mode_since_iteration", help);
            self.exposition.begin(metric);
            self.sample(metric.name, &[("mode", &mode.mode)], mode.since);
        }
    }

    fn hosts(&mut self) {
        let progress: &'a Progress = self.progress;
        if !progress.hosts.is_empty() {
            let help = "1 for the state that the host is in, 0 for the others.";
            let metric = Metric::gauge("zbmd_host_state", help);
            self.exposition.begin(metric);
            for host in &progress.hosts {
                self.state(
                    metric.name,
                    ("host", &host.host),
                    host.state,
                    &HostState::ALL,
                );
            }
        }

        if let Some(council) = &progress.council {
            let help = "Voters of the council that the run is conducted in the name of.";
            let metric = Metric::gauge("zbmd_council_voters", help);
            self.single(metric, council.voters);
            let help = "Those of them that stand by, and could go on with the run.";
            let metric = Metric::gauge("zbmd_council_standing_by", help);
            self.single(metric, council.standing_by.len());
        }
    }

    fn devices(&mut self) {
        let devices = &self.progress.devices;
        let help = "Periods that the device's worker has done in the present epoch.";
        let metric = Metric::gauge("zbmd_device_periods", help);
        self.exposition.begin(metric);
        for device in devices {
            let labels = [("device", device.device.as_str())];
            self.sample(metric.name, &labels, device.periods);
        }
        let help = "1 for the state that the device is in, 0 for the others.";
        let metric = Metric::gauge("zbmd_device_state", help);
        self.exposition.begin(metric);
        for device in devices {
            let label = ("device", device.device.as_str());
            self.state(metric.name, label, device.state, &DeviceState::ALL);
        }
    }

    /// 1 for the state that something is in, 0 for each other one.
    fn state<S: PartialEq + std::fmt::Display>(
        &mut self,
        name: &str,
        label: (&str, &str),
        present: S,
        all: &[S],
    ) {
        for state in all {
            let text = state.to_string();
            let labels = [label, ("state", text.as_str())];
            self.sample(name, &labels, u8::from(*state == present));
        }
    }

    fn fills(&mut self) {
        let of_queues = [
            FillMetric {
                metric: Metric::counter(
                    "zbmd_stream_tokens_total",
                    "Tokens that went into the queue of a source or a sink.",
                ),
                value: |fill| fill.tokens,
            },
            FillMetric {
                metric: Metric::gauge(
                    "zbmd_queue_filled_tokens",
                    "Tokens in the queue of a source or a sink.",
                ),
                value: |fill| fill.filled,
            },
            FillMetric {
                metric: Metric::gauge("zbmd_queue_capacity_tokens", "Tokens that fit it."),
                value: |fill| fill.capacity,
            },
        ];
        let of_rings = [
            FillMetric {
                metric: Metric::gauge(
                    "zbmd_ring_filled_tokens",
                    "Tokens in a ring between two devices.",
                ),
                value: |fill| fill.filled,
            },
            FillMetric {
                metric: Metric::gauge("zbmd_ring_capacity_tokens", "Tokens that fit it."),
                value: |fill| fill.capacity,
            },
        ];
        let progress: &'a Progress = self.progress;
        self.fill_metrics("stream", &of_queues, &progress.queues);
        self.fill_metrics("ring", &of_rings, &progress.rings);
    }

    fn fill_metrics(&mut self, label: &str, metrics: &[FillMetric], fills: &[Fill]) {
        if fills.is_empty() {
            return;
        }
        for FillMetric { metric, value } in metrics {
            self.exposition.begin(*metric);
            for fill in fills {
                self.sample(metric.name, &[(label, &fill.name)], value(fill));
            }
        }
    }

    fn releases(&mut self) {
        if self.progress.releases.is_empty() {
            return;
        }
        let name = "zbmd_release_lateness_seconds";
        let help = "How late tokens of a source were handed over, from when they were due.";
        let kind = MetricKind::Summary;
        self.exposition.begin(Metric { name, kind, help });
        for release in &self.progress.releases {
            self.times(name, ("source", &release.source), &release.lateness);
        }
    }

    fn deadlines(&mut self) {
        let deadlines = &self.progress.deadlines;
        if deadlines.is_empty() {
            return;
        }
        let name = "zbmd_sink_response_seconds";
        let help = "From the release of a block to its output.";
        let kind = MetricKind::Summary;
        self.exposition.begin(Metric { name, kind, help });
        for deadline in deadlines {
            self.times(name, ("sink", &deadline.sink), &deadline.response);
        }
        let help = "What a block's response may take.";
        let metric = Metric::gauge("zbmd_deadline_seconds", help);
        self.exposition.begin(metric);
        for deadline in deadlines {
            let labels = [("sink", deadline.sink.as_str())];
            self.sample(metric.name, &labels, seconds(deadline.limit_ns));
        }
        let help = "Blocks that were late.";
        let metric = Metric::counter("zbmd_missed_deadlines_total", help);
        self.exposition.begin(metric);
        for deadline in deadlines {
            let labels = [
                ("sink", deadline.sink.as_str()),
                ("on_miss", &deadline.on_miss),
            ];
            self.sample(metric.name, &labels, deadline.missed);
        }
    }

    /// Quantiles so far. Their sum is not kept.
    fn times(&mut self, name: &str, label: (&str, &str), times: &TimesProgress) {
        for (quantile, ns) in [
            ("0.5", times.p50_ns),
            ("0.99", times.p99_ns),
            ("1", times.max_ns),
        ] {
            self.sample(name, &[label, ("quantile", quantile)], seconds(ns));
        }
        self.sample(&format!("{name}_count"), &[label], times.count);
    }

    fn parameters(&mut self) {
        let parameters = &self.progress.parameters;
        if parameters.is_empty() {
            return;
        }
        let help = "The value of a live parameter that was set last, number by number.";
        let metric = Metric::gauge("zbmd_live_parameter", help);
        self.exposition.begin(metric);
        for parameter in parameters {
            for (index, number) in parameter.numbers.iter().enumerate() {
                let index = index.to_string();
                let labels = [
                    ("parameter", parameter.parameter.as_str()),
                    ("index", &index),
                ];
                self.sample(metric.name, &labels, number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use zbmd_executor::live::{
        CouncilProgress, DeviceProgress, HostProgress, ModeProgress, ParameterProgress,
    };

    use super::*;

    #[test]
    fn everything_that_a_run_shows_is_there() {
        let progress = Progress {
            model: "m".to_owned(),
            iterations: 7,
            epoch: 2,
            recoveries: 1,
            plan: "full".to_owned(),

            hosts: vec![HostProgress {
                host: "right".to_owned(),
                state: HostState::Present,
            }],
            council: Some(CouncilProgress {
                voters: 3,
                conductor: 1,
                standing_by: vec![2],
            }),
            devices: vec![DeviceProgress {
                device: "cpu:0".to_owned(),
                host: None,
                state: DeviceState::Lost,
                periods: 5,
            }],
            rings: vec![Fill {
                name: "ch0 cpu:0 -> cpu:1".to_owned(),
                tokens: 9,
                filled: 3,
                capacity: 4,
            }],
            parameters: vec![ParameterProgress {
                parameter: "gain".to_owned(),
                numbers: vec![0.5, -2.0],
            }],
            mode: Some(ModeProgress {
                mode: "wide".to_owned(),
                since: 6,
            }),
            ..Progress::default()
        };

        let text = metrics_text(&progress);
        for line in [
            "zbmd_iterations_total{model=\"m\"} 7",
            "zbmd_epochs_total{model=\"m\"} 3",
            "zbmd_recoveries_total{model=\"m\"} 1",
            "zbmd_host_state{model=\"m\",host=\"right\",state=\"present\"} 1",
            "zbmd_host_state{model=\"m\",host=\"right\",state=\"lost\"} 0",
            "zbmd_council_voters{model=\"m\"} 3",
            "zbmd_council_standing_by{model=\"m\"} 1",
            "zbmd_device_state{model=\"m\",device=\"cpu:0\",state=\"lost\"} 1",
            "zbmd_device_state{model=\"m\",device=\"cpu:0\",state=\"idle\"} 0",
            "zbmd_ring_filled_tokens{model=\"m\",ring=\"ch0 cpu:0 -> cpu:1\"} 3",
            "zbmd_live_parameter{model=\"m\",parameter=\"gain\",index=\"1\"} -2",
            "zbmd_mode_since_iteration{model=\"m\",mode=\"wide\"} 6",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
    }
}
