//! The thread that sends spans. It has a runtime of its own, so that a slow collector takes no time from connections.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::messages::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use super::span::SpanMaker;
use super::{Endpoint, Record, TraceCounts, Tracer};
use crate::say;

/// Records that wait to be sent, at most.
const QUEUE_RECORDS: usize = 4096;
/// A batch is sent when it has so many records, or its first one has waited so long.
const BATCH_RECORDS: usize = 512;
const BATCH_TIME: Duration = Duration::from_millis(200);
/// A collector is given so long to take a batch.
const SEND_LIMIT: Duration = Duration::from_secs(5);
/// No collector has more to say than this.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Why a batch was not taken.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("it answered {0}")]
    Status(StatusCode),
    #[error("its answer cannot be read: {0}")]
    Answer(String),
    #[error("it did not answer within {SEND_LIMIT:?}")]
    Late,
}

/// The thread, and its end.
pub(crate) struct Exporter {
    tracer: Tracer,
    is_ending: Arc<AtomicBool>,
    done: Receiver<()>,
    thread: JoinHandle<()>,
}

impl Exporter {
    /// Begins to send what its [tracer](Self::tracer) is given.
    ///
    /// # Errors
    /// No thread.
    pub(crate) fn start(endpoint: Endpoint, service_name: &str) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let counts = Arc::<TraceCounts>::default();
        let is_ending = Arc::<AtomicBool>::default();
        let (queue, records) = sync_channel(QUEUE_RECORDS);
        let (done_sender, done) = channel();
        let mut sending = Sending {
            records,
            is_ending: Arc::clone(&is_ending),
            spans: SpanMaker::new(service_name),
            collector: Collector {
                endpoint,
                is_failing: false,
            },
            counts: Arc::clone(&counts),
        };
        let send_all = move || {
            sending.send_all(&runtime);
            // Nobody may wait for it.
            let _ = done_sender.send(());
        };
        let thread = std::thread::Builder::new()
            .name("zbmd otlp".to_owned())
            .spawn(send_all)?;
        Ok(Self {
            tracer: Tracer { queue, counts },
            is_ending,
            done,
            thread,
        })
    }

    /// What takes records.
    pub(crate) fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Sends what is queued and ends, within this time.
    pub(crate) fn finish(self, limit: Duration) {
        self.is_ending.store(true, Ordering::Relaxed);
        if self.done.recv_timeout(limit).is_ok() {
            let _ = self.thread.join();
        }
    }
}

struct Sending {
    records: Receiver<Record>,
    /// Nothing more is waited for: what is queued is sent.
    is_ending: Arc<AtomicBool>,
    spans: SpanMaker,
    collector: Collector,
    counts: Arc<TraceCounts>,
}

impl Sending {
    fn send_all(&mut self, runtime: &Runtime) {
        let mut batch = Vec::with_capacity(BATCH_RECORDS);
        loop {
            let is_over = self.fill(&mut batch);
            if !batch.is_empty() {
                runtime.block_on(self.send(&batch));
                batch.clear();
            } else if is_over {
                return;
            }
        }
    }

    /// Takes records until there are enough of them, or time is over; whether there will be no more.
    fn fill(&self, batch: &mut Vec<Record>) -> bool {
        let end = Instant::now() + BATCH_TIME;
        while batch.len() < BATCH_RECORDS {
            let is_ending = self.is_ending.load(Ordering::Relaxed);
            let left = match is_ending {
                true => Duration::ZERO,
                false => end.saturating_duration_since(Instant::now()),
            };
            match self.records.recv_timeout(left) {
                Ok(record) => batch.push(record),
                Err(RecvTimeoutError::Timeout) => return is_ending,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
        false
    }

    async fn send(&mut self, batch: &[Record]) {
        let (request, count) = self.spans.request(batch);
        let refused = match self.collector.send(&request).await {
            Ok(refused) => refused.min(count),
            Err(_) => count,
        };
        let counts = &self.counts;
        counts.refused.fetch_add(refused, Ordering::Relaxed);
        counts.sent.fetch_add(count - refused, Ordering::Relaxed);
    }
}

struct Collector {
    endpoint: Endpoint,
    /// It did not take the last batch.
    is_failing: bool,
}

impl Collector {
    /// Sends a batch once; how many of its spans are not taken. What fails is said when it begins to, and not again.
    async fn send(&mut self, request: &ExportTraceServiceRequest) -> Result<u64, SendError> {
        let sending = tokio::time::timeout(SEND_LIMIT, self.post(request));
        let sent = sending.await.unwrap_or(Err(SendError::Late));
        let authority = &self.endpoint.authority;
        match (&sent, self.is_failing) {
            (Err(error), false) => say(format_args!(
                "zbmd-serve: note: traces are lost: the collector at {authority} does not take them: {error}"
            )),
            (Ok(_), true) => say(format_args!(
                "zbmd-serve: note: the collector at {authority} takes traces again"
            )),
            _ => {}
        }
        self.is_failing = sent.is_err();
        sent
    }

    /// A connection for each batch: there are a few of them a second.
    async fn post(&self, message: &ExportTraceServiceRequest) -> Result<u64, SendError> {
        let Endpoint {
            address,
            authority,
            path,
        } = &self.endpoint;
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::post(path)
            .header(HOST, authority)
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(Full::new(Bytes::from(message.encode_to_vec())))
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        tokio::spawn(connection);

        let response = sender.send_request(request).await?;
        if !response.status().is_success() {
            return Err(SendError::Status(response.status()));
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect();
        let body = body.await.map_err(|e| SendError::Answer(e.to_string()))?;
        let answer = ExportTraceServiceResponse::decode(body.to_bytes())
            .map_err(|e| SendError::Answer(e.to_string()))?;
        let rejected = answer.partial_success.map_or(0, |part| part.rejected_spans);
        Ok(u64::try_from(rejected).unwrap_or(0))
    }
}
