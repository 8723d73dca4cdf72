//! Traces: a span for each request and for each epoch, sent to a collector as OpenTelemetry's protocol has them, over HTTP.
//!
//! Whoever answers a request puts a record into a bounded queue and never waits; where the queue is full the record is dropped and
//! counted. A thread of its own makes spans of the records and sends them. Must not know models or protocols of inference.
//!
//! | file | what it holds |
//! |---|---|
//! | `context` | the trace that a request belongs to, as its client says |
//! | `endpoint` | where spans are sent to |
//! | `exporter` | the thread that sends them |
//! | `messages` | the protocol's messages |
//! | `record` | what is known of a request or an epoch |
//! | `span` | records as spans |

mod context;
mod endpoint;
mod exporter;
pub(crate) mod messages;
mod record;
mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

pub(crate) use self::context::TraceParent;
pub(crate) use self::endpoint::{Endpoint, EndpointError};
pub(crate) use self::exporter::Exporter;
pub(crate) use self::record::{ComputedTimes, EpochRecord, LossRecord, RequestRecord};

use self::record::Record;

/// What became of records.
#[derive(Debug, Default)]
pub(crate) struct TraceCounts {
    /// Spans that the collector took.
    pub(crate) sent: AtomicU64,
    /// Records for which the queue had no room.
    pub(crate) queue_full: AtomicU64,
    /// Spans that the collector did not take.
    pub(crate) refused: AtomicU64,
}

/// Takes records, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct Tracer {
    queue: SyncSender<Record>,
    counts: Arc<TraceCounts>,
}

impl Tracer {
    /// Takes the records of one model.
    pub(crate) fn of_model(&self, name: &str) -> ModelTracer {
        ModelTracer {
            tracer: self.clone(),
            model: name.into(),
        }
    }

    /// Queues a record to be sent. Never waits.
    fn record(&self, record: Record) {
        if self.queue.try_send(record).is_err() {
            self.counts.queue_full.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn counts(&self) -> &TraceCounts {
        &self.counts
    }
}

/// Takes the records of one model, from any thread.
#[derive(Clone, Debug)]
pub(crate) struct ModelTracer {
    tracer: Tracer,
    model: Arc<str>,
}

impl ModelTracer {
    /// A request was answered or refused. It is left out if its client does not record its trace.
    pub(crate) fn request(&self, request: RequestRecord) {
        if request.parent.is_none_or(|parent| parent.is_sampled) {
            let model = Arc::clone(&self.model);
            self.tracer.record(Record::Request { model, request });
        }
    }

    /// An epoch has ended.
    pub(crate) fn epoch(&self, epoch: EpochRecord) {
        let model = Arc::clone(&self.model);
        self.tracer.record(Record::Epoch { model, epoch });
    }
}
