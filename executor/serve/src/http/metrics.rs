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

    /// One value for each model.
    fn per_model<V: std::fmt::Display>(
        &mut self,
        server: &Server,
        (name, kind, help): (&str, &str, &str),
        value: impl Fn(&RunningModel) -> V,
    ) {
        self.begin(name, kind, help);
        for running in server.models() {
            self.model_value(name, running, value(running));
        }
    }

    fn connections(&mut self, server: &Server) {
        let counts = server.counts();
        self.begin("zbmd_connections", "gauge", "Connections now.");
        self.value("zbmd_connections", server.connections());
        let name = "zbmd_connections_accepted_total";
        self.begin(name, "counter", "Connections accepted so far.");
        self.value(name, counts.accepted.load(Ordering::Relaxed));
        let name = "zbmd_connections_refused_total";
        self.begin(
            name,
            "counter",
            "Connections closed at once, as there were too many.",
        );
        self.value(name, counts.refused.load(Ordering::Relaxed));
        let name = "zbmd_http_requests_total";
        self.begin(name, "counter", "HTTP requests answered, with any status.");
        self.value(name, counts.requests.load(Ordering::Relaxed));
    }

    fn readiness(&mut self, server: &Server) {
        let help = "Whether a plan of the model runs, as its supervisor says.";
        self.per_model(server, ("zbmd_ready", "gauge", help), |running| {
            u8::from(running.is_ready())
        });
    }

    fn queues(&mut self, server: &Server) {
        let help = "Requests that were admitted and are not answered.";
        self.per_model(
            server,
            ("zbmd_pending_requests", "gauge", help),
            |running| running.admission().pending(),
        );
        let help = "Requests that may wait.";
        self.per_model(
            server,
            ("zbmd_queue_limit_requests", "gauge", help),
            |running| running.admission().limit(),
        );
        let help = "What the plan says of the response of a request that finds an empty queue.";
        let metric = ("zbmd_planned_response_seconds", "gauge", help);
        self.per_model(server, metric, |running| {
            seconds(running.model.planned.response_ns(0))
        });
        let help = "The same for one that takes the queue's last place.";
        let metric = ("zbmd_planned_response_full_queue_seconds", "gauge", help);
        self.per_model(server, metric, |running| seconds(running.full_queue_ns()));
    }

    fn requests(&mut self, server: &Server) {
        let help = "Requests computed, each of which is an iteration.";
        self.per_model(
            server,
            ("zbmd_iterations_total", "counter", help),
            |running| running.stats.success.count(),
        );
        let name = "zbmd_refused_requests_total";
        self.begin(name, "counter", "Requests that were not computed, by why.");
        for running in server.models() {
            for why in RefusedFor::ALL {
                let count = running.stats.refused_for(why);
                self.labelled(name, running, ("why", why.name()), count);
            }
        }
        let help = "Requests answered later than their timeout.";
        self.per_model(
            server,
            ("zbmd_late_responses_total", "counter", help),
            |running| running.stats.late(),
        );
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
        let help = "Epochs that the supervisor began.";
        self.per_model(server, ("zbmd_epochs_total", "counter", help), |running| {
            running.readiness().counts().epochs
        });
        let name = "zbmd_worker_losses_total";
        self.begin(name, "counter", "Workers lost, by the kind of cause.");
        for running in server.models() {
            for (cause, count) in running.readiness().counts().losses {
                self.labelled(name, running, ("cause", cause), count);
            }
        }
        let help = "Losses after which tokens came again.";
        self.per_model(
            server,
            ("zbmd_recoveries_total", "counter", help),
            |running| running.readiness().counts().recoveries,
        );
        let help = "From losses to the first new token, in all.";
        let metric = ("zbmd_recovery_seconds_total", "counter", help);
        self.per_model(server, metric, |running| {
            seconds(running.readiness().counts().recovery_ns)
        });
        let help = "Runs that were begun anew.";
        self.per_model(
            server,
            ("zbmd_run_restarts_total", "counter", help),
            |running| running.readiness().counts().restarts,
        );
    }

    fn triton_names(&mut self, server: &Server) {
        type Value = fn(&ModelStats) -> u64;
        const fn micros(ns: u64) -> u64 {
            ns / 1000
        }
        let metrics: [(&str, &str, Value); 9] = [
            ("request_success", "Requests answered.", |s| {
                s.success.count()
            }),
            ("request_failure", "Requests refused.", |s| s.fail.count()),
            ("count", "Inferences.", |s| s.success.count()),
            ("exec_count", "Executions.", |s| s.success.count()),
            ("request_duration_us", "Responses together.", |s| {
                micros(s.success.total_ns())
            }),
            ("queue_duration_us", "Waiting together.", |s| {
                micros(s.queue.total_ns())
            }),
            (
                "compute_input_duration_us",
                "Reading bodies together.",
                |s| micros(s.input.total_ns()),
            ),
            ("compute_infer_duration_us", "Computing together.", |s| {
                micros(s.infer.total_ns())
            }),
            (
                "compute_output_duration_us",
                "Making answers together.",
                |s| micros(s.output.total_ns()),
            ),
        ];
        for (name, help, value) in metrics {
            let name = format!("nv_inference_{name}");
            self.begin(&name, "untyped", help);
            for running in server.models() {
                let count = value(&running.stats);
                self.labelled(&name, running, ("version", VERSION), count);
            }
        }
        let name = "nv_inference_pending_request_count";
        self.begin(
            name,
            "gauge",
            "Requests that were admitted and are not answered.",
        );
        for running in server.models() {
            let pending = running.admission().pending();
            self.labelled(name, running, ("version", VERSION), pending);
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
