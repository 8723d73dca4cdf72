//! `/metrics`, in Prometheus' text format. Made of counters that are kept anyway: nobody who computes is disturbed.
//!
//! `nv_inference_*` are the names that dashboards for Triton have. As they do not follow Prometheus' rules for names of
//! counters, they have no type here; `rate()` takes them all the same.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use zbmd_executor::exposition::{Exposition, Metric, MetricKind, seconds};

use crate::engine::RunningModel;
use crate::otlp::TraceCounts;
use crate::protocol::answer::VERSION;
use crate::server::Server;
use crate::stats::{RESPONSE_BOUNDS_US, RefusedFor};

/// Everything, as text.
pub(super) fn metrics_text(server: &Server) -> String {
    let mut text = MetricsText(Exposition::default());
    text.connections(server);
    text.readiness(server);
    text.queues(server);
    text.sequences(server);
    text.requests(server);
    text.responses(server);
    text.supervision(server);
    text.traces(server);
    text.triton_names(server);
    text.0.into_text()
}

/// A count that Triton has, without the first part of its name.
struct TritonCount {
    name: &'static str,
    help: &'static str,
    value: fn(&RunningModel) -> u64,
}

const fn micros(ns: u64) -> u64 {
    ns / 1000
}

const TRITON_COUNTS: [TritonCount; 9] = [
    TritonCount {
        name: "request_success",
        help: "Requests answered.",
        value: |running| running.stats.success.count(),
    },
    TritonCount {
        name: "request_failure",
        help: "Requests refused.",
        value: |running| running.stats.fail.count(),
    },
    TritonCount {
        name: "count",
        help: "Inferences.",
        value: |running| running.stats.rows(),
    },
    TritonCount {
        name: "exec_count",
        help: "Executions.",
        value: |running| running.admission().executions().sum(),
    },
    TritonCount {
        name: "request_duration_us",
        help: "Responses together.",
        value: |running| micros(running.stats.success.total_ns()),
    },
    TritonCount {
        name: "queue_duration_us",
        help: "Waiting together.",
        value: |running| micros(running.stats.queue.total_ns()),
    },
    TritonCount {
        name: "compute_input_duration_us",
        help: "Reading bodies together.",
        value: |running| micros(running.stats.input.total_ns()),
    },
    TritonCount {
        name: "compute_infer_duration_us",
        help: "Computing together.",
        value: |running| micros(running.stats.infer.total_ns()),
    },
    TritonCount {
        name: "compute_output_duration_us",
        help: "Making answers together.",
        value: |running| micros(running.stats.output.total_ns()),
    },
];

struct MetricsText(Exposition);

impl MetricsText {
    /// A value of a model.
    fn model_value(&mut self, name: &str, running: &RunningModel, value: impl Display) {
        self.0
            .sample(name, &[("model", &running.model.name)], value);
    }

    /// One of several values of a model.
    fn labelled(
        &mut self,
        name: &str,
        running: &RunningModel,
        label: (&str, &str),
        value: impl Display,
    ) {
        let labels = [("model", running.model.name.as_str()), label];
        self.0.sample(name, &labels, value);
    }

    /// One value for each model.
    fn per_model<V: Display>(
        &mut self,
        server: &Server,
        metric: Metric<'_>,
        value: impl Fn(&RunningModel) -> V,
    ) {
        self.0.begin(metric);
        for running in &server.models() {
            self.model_value(metric.name, running, value(running));
        }
    }

    fn connections(&mut self, server: &Server) {
        let counts = server.counts();
        let metric = Metric::gauge("zbmd_connections", "Connections now.");
        self.0.single(metric, server.connections());
        let help = "Connections accepted so far.";
        let metric = Metric::counter("zbmd_connections_accepted_total", help);
        self.0
            .single(metric, counts.accepted.load(Ordering::Relaxed));
        let help = "Connections closed at once, as there were too many.";
        let metric = Metric::counter("zbmd_connections_refused_total", help);
        self.0
            .single(metric, counts.refused.load(Ordering::Relaxed));
        let help = "Connections closed after a handshake that failed.";
        let metric = Metric::counter("zbmd_handshakes_failed_total", help);
        self.0
            .single(metric, counts.handshakes.load(Ordering::Relaxed));
        let help = "HTTP requests answered, with any status.";
        let metric = Metric::counter("zbmd_http_requests_total", help);
        self.0
            .single(metric, counts.requests.load(Ordering::Relaxed));
    }

    fn readiness(&mut self, server: &Server) {
        let help = "Whether a plan of the model runs, as its supervisor says.";
        let metric = Metric::gauge("zbmd_ready", help);
        self.per_model(server, metric, |running| u8::from(running.is_ready()));
    }

    fn queues(&mut self, server: &Server) {
        let help = "Requests that were admitted and are not answered.";
        let metric = Metric::gauge("zbmd_pending_requests", help);
        self.per_model(server, metric, |running| running.admission().pending());
        let metric = Metric::gauge("zbmd_queue_limit_requests", "Requests that may wait.");
        self.per_model(server, metric, |running| running.admission().limit());
        let help = "What the plan says of the response of a request that finds an empty queue.";
        let metric = Metric::gauge("zbmd_planned_response_seconds", help);
        self.per_model(server, metric, |running| {
            seconds(running.model.batches.response_ns(0))
        });
        let help = "The same for one that takes the queue's last place.";
        let metric = Metric::gauge("zbmd_planned_response_full_queue_seconds", help);
        self.per_model(server, metric, |running| seconds(running.full_queue_ns()));
    }

    fn sequences(&mut self, server: &Server) {
        let help = "Sequences whose state is kept.";
        let metric = Metric::gauge("zbmd_sequences", help);
        self.per_model(server, metric, |running| running.admission().sequences());
        let metric = Metric::gauge("zbmd_sequence_limit", "Sequences that may be kept.");
        self.per_model(server, metric, |running| running.sequence_limits().count);
    }

    fn requests(&mut self, server: &Server) {
        let help = "Rows of requests that were answered; a request without rows counts as one.";
        let metric = Metric::counter("zbmd_rows_total", help);
        self.per_model(server, metric, |running| running.stats.rows());
        let help = "Iterations begun for requests, each for as many rows as are computed together.";
        let metric = Metric::counter("zbmd_iterations_total", help);
        self.per_model(server, metric, |running| {
            running.admission().executions().sum::<u64>()
        });
        let name = "zbmd_batches_total";
        let help = "The same of models that were compiled for batches, by their size.";
        self.0.begin(Metric::counter(name, help));
        for running in &server.models() {
            let batches = &running.model.batches;
            if batches.count() == 1 {
                continue;
            }
            let sizes = batches.rows();
            for (rows, count) in sizes.zip(running.admission().executions()) {
                self.labelled(name, running, ("size", &rows.to_string()), count);
            }
        }
        let name = "zbmd_refused_requests_total";
        let help = "Requests that were not computed, by why.";
        self.0.begin(Metric::counter(name, help));
        for running in &server.models() {
            for why in RefusedFor::ALL {
                let count = running.stats.refused_for(why);
                self.labelled(name, running, ("why", why.name()), count);
            }
        }
        let help = "Requests answered later than their timeout.";
        let metric = Metric::counter("zbmd_late_responses_total", help);
        self.per_model(server, metric, |running| running.stats.late());
    }

    fn responses(&mut self, server: &Server) {
        let name = "zbmd_response_seconds";
        let help = "From the end of a request's body until its answer is made.";
        let kind = MetricKind::Histogram;
        self.0.begin(Metric { name, kind, help });
        for running in &server.models() {
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
        let metric = Metric::counter("zbmd_epochs_total", "Epochs that the supervisor began.");
        self.per_model(server, metric, |running| counts(running).epochs);
        let name = "zbmd_worker_losses_total";
        let help = "Workers lost, by the kind of cause.";
        self.0.begin(Metric::counter(name, help));
        for running in &server.models() {
            for (cause, count) in counts(running).losses {
                self.labelled(name, running, ("cause", cause), count);
            }
        }
        let help = "Losses after which tokens came again.";
        let metric = Metric::counter("zbmd_recoveries_total", help);
        self.per_model(server, metric, |running| counts(running).recoveries);
        let help = "From losses to the first new token, in all.";
        let metric = Metric::counter("zbmd_recovery_seconds_total", help);
        self.per_model(server, metric, |running| {
            seconds(counts(running).recovery_ns)
        });
        let metric = Metric::counter("zbmd_run_restarts_total", "Runs that were begun anew.");
        self.per_model(server, metric, |running| counts(running).restarts);
    }

    fn traces(&mut self, server: &Server) {
        let Some(tracer) = server.tracer() else {
            return;
        };
        let TraceCounts {
            sent,
            queue_full,
            refused,
        } = tracer.counts();
        let help = "Spans that the collector took.";
        let metric = Metric::counter("zbmd_spans_sent_total", help);
        self.0.single(metric, sent.load(Ordering::Relaxed));
        let name = "zbmd_trace_records_dropped_total";
        let help = "Requests and epochs of which no span was made, as too many waited to be sent.";
        let metric = Metric::counter(name, help);
        self.0.single(metric, queue_full.load(Ordering::Relaxed));
        let help = "Spans that the collector did not take.";
        let metric = Metric::counter("zbmd_spans_failed_total", help);
        self.0.single(metric, refused.load(Ordering::Relaxed));
    }

    fn triton_names(&mut self, server: &Server) {
        for TritonCount { name, help, value } in TRITON_COUNTS {
            let name = &format!("nv_inference_{name}");
            let kind = MetricKind::Untyped;
            self.0.begin(Metric { name, kind, help });
            for running in &server.models() {
                let count = value(running);
                self.labelled(name, running, ("version", VERSION), count);
            }
        }
        let name = "nv_inference_pending_request_count";
        let help = "Requests that were admitted and are not answered.";
        self.0.begin(Metric::gauge(name, help));
        for running in &server.models() {
            let pending = running.admission().pending();
            self.labelled(name, running, ("version", VERSION), pending);
        }
    }
}
