//! Records as spans: identifiers, times since 1970, names and attributes.

use std::hash::{BuildHasher, RandomState};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::messages::{
    Event, ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans,
    ScopeSpans, Span, SpanKind, Status, StatusCode,
};
use super::record::{EpochRecord, Record, RequestRecord};
use crate::stats::ns_of;

/// Makes spans of records.
pub(super) struct SpanMaker {
    ids: SpanIds,
    clock: UnixClock,
    resource: Resource,
}

impl SpanMaker {
    pub(super) fn new(service_name: &str) -> Self {
        let attributes = vec![
            KeyValue::text("service.name", service_name),
            KeyValue::text("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::count("process.pid", std::process::id().into()),
        ];
        Self {
            ids: SpanIds::new(),
            clock: UnixClock::now(),
            resource: Resource { attributes },
        }
    }

    /// The message with the spans of some records, and how many these are.
    pub(super) fn request(&mut self, records: &[Record]) -> (ExportTraceServiceRequest, u64) {
        // The system's clock may have been set meanwhile.
        self.clock = UnixClock::now();
        let mut spans = Vec::new();
        for record in records {
            match record {
                Record::Request { model, request } => {
                    self.add_request(model, request, &mut spans);
                }
                Record::Epoch { model, epoch } => spans.push(self.epoch(model, epoch)),
            }
        }
        let count = spans.len() as u64;
        let scope = InstrumentationScope {
            name: "zbmd-serve".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let scope_spans = vec![ScopeSpans {
            scope: Some(scope),
            spans,
        }];
        let resource_spans = vec![ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans,
        }];
        (ExportTraceServiceRequest { resource_spans }, count)
    }

    /// The request's span, and below it, if it was computed, one of its time in the queue and one of its computation.
    fn add_request(&mut self, model: &str, record: &RequestRecord, spans: &mut Vec<Span>) {
        let (trace_id, parent_span_id) = match record.parent {
            Some(parent) => (parent.trace_id.to_vec(), parent.span_id.to_vec()),
            None => (self.ids.trace_id(), Vec::new()),
        };
        let mut attributes = vec![KeyValue::text("zbmd.model", model)];
        if let Some(id) = &record.id {
            attributes.push(KeyValue::text("zbmd.request.id", id));
        }
        let status = record.outcome.as_ref().err().map(|why| Status {
            message: why.clone(),
            code: StatusCode::Error.into(),
        });
        let span_id = self.ids.span_id();
        spans.push(Span {
            trace_id: trace_id.clone(),
            span_id: span_id.clone(),
            parent_span_id,
            name: "infer".to_owned(),
            kind: SpanKind::Server.into(),
            start_time_unix_nano: self.clock.unix_ns(record.begin),
            end_time_unix_nano: self.clock.unix_ns(record.end),
            attributes,
            events: Vec::new(),
            status,
        });

        let Ok(times) = &record.outcome else {
            return;
        };
        let mut begin_ns = self.clock.unix_ns(record.begin) + ns_of(times.input);
        for (name, time) in [("queue", times.queued), ("compute", times.computed)] {
            let end_ns = begin_ns + ns_of(time);
            spans.push(Span {
                trace_id: trace_id.clone(),
                span_id: self.ids.span_id(),
                parent_span_id: span_id.clone(),
                name: name.to_owned(),
                kind: SpanKind::Internal.into(),
                start_time_unix_nano: begin_ns,
                end_time_unix_nano: end_ns,
                attributes: Vec::new(),
                events: Vec::new(),
                status: None,
            });
            begin_ns = end_ns;
        }
    }

    fn epoch(&mut self, model: &str, record: &EpochRecord) -> Span {
        let mut attributes = vec![
            KeyValue::text("zbmd.model", model),
            KeyValue::count("zbmd.epoch", record.number),
        ];
        if !record.without.is_empty() {
            let without = record.without.join(",");
            attributes.push(KeyValue::text("zbmd.without_devices", without));
        }
        if let Some(blocks) = record.blocks {
            attributes.push(KeyValue::count("zbmd.blocks", blocks));
        }
        let events = record.losses.iter().map(|loss| Event {
            time_unix_nano: self.clock.unix_ns(loss.at),
            name: "loss".to_owned(),
            attributes: vec![
                KeyValue::text("zbmd.device", &loss.device),
                KeyValue::text("zbmd.cause", loss.cause),
            ],
        });
        let events = events.collect();
        let status = record.is_fenced.then(|| Status {
            message: "ended at once, as a worker was lost".to_owned(),
            code: StatusCode::Error.into(),
        });
        Span {
            trace_id: self.ids.trace_id(),
            span_id: self.ids.span_id(),
            parent_span_id: Vec::new(),
            name: "epoch".to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: self.clock.unix_ns(record.begin),
            end_time_unix_nano: self.clock.unix_ns(record.end),
            attributes,
            events,
            status,
        }
    }
}

/// Where the monotonic clock stands on that of the calendar.
struct UnixClock {
    at: Instant,
    at_unix_ns: u64,
}

impl UnixClock {
    fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            at: Instant::now(),
            at_unix_ns: since_epoch.map_or(0, ns_of),
        }
    }

    fn unix_ns(&self, instant: Instant) -> u64 {
        let before_ns = ns_of(self.at.saturating_duration_since(instant));
        let after_ns = ns_of(instant.saturating_duration_since(self.at));
        self.at_unix_ns.saturating_sub(before_ns) + after_ns
    }
}

/// Identifiers that no other process has but by an improbable chance. They need not be hard to guess.
struct SpanIds {
    random: RandomState,
    count: u64,
}

impl SpanIds {
    fn new() -> Self {
        Self {
            // Has keys from the system's source of random numbers, in part.
            random: RandomState::new(),
            count: 0,
        }
    }

    fn span_id(&mut self) -> Vec<u8> {
        self.next().to_be_bytes().to_vec()
    }

    fn trace_id(&mut self) -> Vec<u8> {
        [self.span_id(), self.span_id()].concat()
    }

    /// Never 0, which is none.
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.random.hash_one(self.count).max(1)
    }
}
