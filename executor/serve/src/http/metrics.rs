//! `/metrics`, in Prometheus' text format. Made of counters that are kept anyway: nobody who computes is disturbed.
//!
//! `nv_inference_*` are the names that dashboards for Triton have. As they do not follow Prometheus' rules for names of
//! counters, they have no type here; `rate()` takes them all the same.

use std::fmt::Write;
use std::sync::atomic::Ordering;

use super::server::Server;
use crate::engine::RunningModel;
use crate::protocol::answer::VERSION;
use crate::stats::{ModelStats, RESPONSE_BOUNDS_US, RefusedFor};

/// Everything, as text.
pub(super) fn metrics_text(server: &Server) -> String {
    let mut text = MetricsText(String::with_capacity(4096));
    text.connections(server);
    text.readiness(server);
    text.queues(server);
    text.requests(server);
    text.responses(server);
    text.supervision(server);
    text.triton_names(server);
    text.0
}

/// A metric's name, its type, and what it counts.
#[derive(Clone, Copy)]
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    let kind = "counter";
    Metric { name, kind, help }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    let kind = "gauge";
    Metric { name, kind, help }
}

/// A count that Triton has, without the first part of its name.
struct TritonCount {
    name: &'static str,
    help: &'static str,
    value: fn(&ModelStats) -> u64,
}

const fn micros(ns: u64) -> u64 {
    ns / 1000
}

const TRITON_COUNTS: [TritonCount; 9] = [
    TritonCount {
        name: "request_success",
        help: "Requests answered.",
        value: |stats| stats.success.count(),
    },
    TritonCount {
        name: "request_failure",
        help: "Requests refused.",
        value: |stats| stats.fail.count(),
    },
    TritonCount {
        name: "count",
        help: "Inferences.",
        value: |stats| stats.success.count(),
    },
    TritonCount {
        name: "exec_count",
        help: "Executions.",
        value: |stats| stats.success.count(),
    },
    TritonCount {
        name: "request_duration_us",
        help: "Responses together.",
        value: |stats| micros(stats.success.total_ns()),
    },
    TritonCount {
        name: "queue_duration_us",
        help: "Waiting together.",
        value: |stats| micros(stats.queue.total_ns()),
    },
    TritonCount {
        name: "compute_input_duration_us",
        help: "Reading bodies together.",
        value: |stats| micros(stats.input.total_ns()),
    },
    TritonCount {
        name: "compute_infer_duration_us",
        help: "Computing together.",
        value: |stats| micros(stats.infer.total_ns()),
    },
    TritonCount {
        name: "compute_output_duration_us",
        help: "Making answers together.",
        value: |stats| micros(stats.output.total_ns()),
    },
];

struct MetricsText(String);

impl MetricsText {
    /// Begins a metric.
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "{name} {value}");
    }

    /// A value of a model. Names of models need no escape.
    fn model_value(&mut self, name: &str, running: &RunningModel, value: impl std::fmt::Display) {
        let model = &running.model.name;
        let _ = writeln!(self.0, "{name}{{model=\"{model}\"}} {value}");
    }

    fn labelled(
        &mut self,
        name: &str,
        running: &RunningModel,
        label: (&str, &str),
        value: impl std::fmt::Display,
    ) {
        let model = &running.model.name;
        let (key, text) = label;
        let _ = writeln!(
            self.0,
            "{name}{{model=\"{model}\",{key}=\"{text}\"}} {value}"
        );
    }

    /// One value of the server.
    fn of_server(&mut self, metric: Metric, value: impl std::fmt::Display) {
        self.begin(metric.name, metric.kind, metric.help);
        self.value(metric.name, value);
    }

    /// One value for each model.
    fn per_model<V: std::fmt::Display>(
        &mut self,
        server: &Server,
        metric: Metric,
        value: impl Fn(&RunningModel) -> V,
    ) {
        self.begin(metric.name, metric.kind, metric.help);
        for running in server.models() {
            self.model_value(metric.name, running, value(running));
        }
    }

    fn connections(&mut self, server: &Server) {
        let counts = server.counts();
        let metric = gauge("zbmd_connections", "Connections now.");
        self.of_server(metric, server.connections());
        let help = "Connections accepted so far.";
        let metric = counter("zbmd_connections_accepted_total", help);
        self.of_server(metric, counts.accepted.load(Ordering::Relaxed));
        let help = "Connections closed at once, as there were too many.";
        let metric = counter("zbmd_connections_refused_total", help);
        self.of_server(metric, counts.refused.load(Ordering::Relaxed));
        let help = "HTTP requests answered, with any status.";
        let metric = counter("zbmd_http_requests_total", help);
        self.of_server(metric, counts.requests.load(Ordering::Relaxed));
    }

    fn readiness(&mut self, server: &Server) {
        let help = "Whether a plan of the model runs, as its supervisor says.";
        let metric = gauge("zbmd_ready", help);
        self.per_model(server, metric, |running| u8::from(running.is_ready()));
    }

    fn queues(&mut self, server: &Server) {
        let help = "Requests that were admitted and are not answered.";
        let metric = gauge("zbmd_pending_requests", help);
        self.per_model(server, metric, |running| running.admission().pending());
        let metric = gauge("zbmd_queue_limit_requests", "Requests that may wait.");
        self.per_model(server, metric, |running| running.admission().limit());
        let help = "What the plan says of the response of a request that finds an empty queue.";
        let metric = gauge("zbmd_planned_response_seconds", help);
        self.per_model(server, metric, |running| {
            seconds(running.model.planned.response_ns(0))
        });
        let help = "The same for one that takes the queue's last place.";
        let metric = gauge("zbmd_planned_response_full_queue_seconds", help);
        self.per_model(server, metric, |running| seconds(running.full_queue_ns()));
    }

    fn requests(&mut self, server: &Server) {
        let help = "Requests computed, each of which is an iteration.";
        let metric = counter("zbmd_iterations_total", help);
        self.per_model(server, metric, |running| running.stats.success.count());
        let name = "zbmd_refused_requests_total";
        self.begin(name, "counter", "Requests that were not computed, by why.");
        for running in server.models() {
            for why in RefusedFor::ALL {
                let count = running.stats.refused_for(why);
                self.labelled(name, running, ("why", why.name()), count);
            }
        }
        let help = "Requests answered later than their timeout.";
        let metric = counter("zbmd_late_responses_total", help);
        self.per_model(server, metric, |running| running.stats.late());
    }

    fn responses(&mut self, server: &Server) {
        let name = "zbmd_response_seconds";
        let help = "From the end of a request's body until its answer is made.";
        self.begin(name, "histogram", help);
        for running in server.models() {
            let stats = &running.stats;
            let counts = stats.responses.cumulative();
            let bucket = format!("{name}_bucket");
            for (micros, count) in RESPONSE_BOUNDS_US.iter().zip(counts) {
                let bound = (*micros as f64 / 1e6).to_string();
                self.labelled(&bucket, running, ("le", &bound), count);
            }
            let all = counts[RESPONSE_BOUNDS_US.len()];
            self.labelled(&bucket, running, ("le", "+Inf"), all);
            let total_ns = stats.success.total_ns();
            self.model_value(&format!("{name}_sum"), running, seconds(total_ns));
            self.model_value(&format!("{name}_count"), running, all);
        }
    }

    fn supervision(&mut self, server: &Server) {
        let counts = |running: &RunningModel| running.readiness().counts();
        let metric = counter("zbmd_epochs_total", "Epochs that the supervisor began.");
        self.per_model(server, metric, |running| counts(running).epochs);
        let name = "zbmd_worker_losses_total";
        self.begin(name, "counter", "Workers lost, by the kind of cause.");
        for running in server.models() {
            for (cause, count) in counts(running).losses {
                self.labelled(name, running, ("cause", cause), count);
            }
        }
        let help = "Losses after which tokens came again.";
        let metric = counter("zbmd_recoveries_total", help);
        self.per_model(server, metric, |running| counts(running).recoveries);
        let help = "From losses to the first new token, in all.";
        let metric = counter("zbmd_recovery_seconds_total", help);
        self.per_model(server, metric, |running| {
            seconds(counts(running).recovery_ns)
        });
        let metric = counter("zbmd_run_restarts_total", "Runs that were begun anew.");
        self.per_model(server, metric, |running| counts(running).restarts);
    }

    fn triton_names(&mut self, server: &Server) {
        for TritonCount { name, help, value } in TRITON_COUNTS {
            let name = format!("nv_inference_{name}");
            self.begin(&name, "untyped", help);
            for running in server.models() {
                let count = value(&running.stats);
                self.labelled(&name, running, ("version", VERSION), count);
            }
        }
        let name = "nv_inference_pending_request_count";
        let help = "Requests that were admitted and are not answered.";
        self.begin(name, "gauge", help);
        for running in server.models() {
            let pending = running.admission().pending();
            self.labelled(name, running, ("version", VERSION), pending);
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
