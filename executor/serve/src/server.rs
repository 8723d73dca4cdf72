//! The models, and connections to them: accepted up to a limit, whatever they speak.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::engine::RunningModel;

/// Pause after a connection that could not be accepted, for want of a descriptor or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What strangers may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at once, of all protocols.
    pub(crate) connections: usize,
    /// From when a request is waited for until its header is there.
    pub(crate) header_timeout: Duration,
    /// From there until its body is there.
    pub(crate) body_timeout: Duration,
    /// From when an answer has to wait for its client to read until all of it is taken.
    pub(crate) write_timeout: Duration,
}

/// What is counted about connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    /// Accepted so far.
    pub(crate) accepted: AtomicU64,
    /// Closed at once, as there were too many.
    pub(crate) refused: AtomicU64,
    /// Requests answered, with any status.
    pub(crate) requests: AtomicU64,
}

/// What is spoken on connections.
pub(crate) trait Protocol: 'static {
    /// What one connection too many is told before it is closed.
    const TOO_MANY: &'static [u8];

    /// Serves a connection to its end.
    fn serve(server: Arc<Server>, stream: TcpStream) -> impl Future<Output = ()> + Send;
}

/// The models, and what is shared by all connections.
pub(crate) struct Server {
    models: BTreeMap<String, Arc<RunningModel>>,
    limits: Limits,
    places: Arc<Semaphore>,
    counts: ConnectionCounts,
    /// Connections are closed after the request that is being answered.
    closing: watch::Sender<bool>,
}

impl Server {
    pub(crate) fn new(models: Vec<Arc<RunningModel>>, limits: Limits) -> Arc<Self> {
        let named = models.into_iter().map(|m| (m.model.name.clone(), m));
        Arc::new(Self {
            models: named.collect(),
            limits,
            places: Arc::new(Semaphore::new(limits.connections)),
            counts: ConnectionCounts::default(),
            closing: watch::channel(false).0,
        })
    }

    /// All models, by name.
    pub(crate) fn models(&self) -> Vec<Arc<RunningModel>> {
        self.models.values().map(Arc::clone).collect()
    }

    pub(crate) fn model(&self, name: &str) -> Option<Arc<RunningModel>> {
        self.models.get(name).map(Arc::clone)
    }

    /// What a client is told that asks for a model that is not here.
    pub(crate) fn unknown_model(&self, name: &str) -> String {
        let known: Vec<&str> = self.models.keys().map(String::as_str).collect();
        let name: String = name.chars().take(100).collect();
        format!(
            "Request for unknown model: there is no `{name}`; there are: {}",
            known.join(", ")
        )
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The longest body of a sensible request to any model.
    #[cfg(feature = "grpc")]
    pub(crate) fn max_body_bytes(&self) -> usize {
        use crate::protocol::request::max_body_bytes;

        let models = self.models();
        let bodies = models.iter().map(|m| max_body_bytes(&m.model.inputs));
        bodies.max().unwrap_or(0)
    }

    pub(crate) fn counts(&self) -> &ConnectionCounts {
        &self.counts
    }

    /// A request was answered, with whatever status.
    pub(crate) fn count_request(&self) {
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections now.
    pub(crate) fn connections(&self) -> usize {
        self.limits.connections - self.places.available_permits()
    }

    /// Every model is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.models().iter().all(|running| running.is_ready())
    }

    /// Returns when connections are to be closed: [`Self::close`].
    pub(crate) fn until_closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closing = self.closing.subscribe();
        async move {
            // A server that is gone closes them too.
            let _ = closing.wait_for(|closing| *closing).await;
        }
    }

    /// Takes connections until [`Self::close`].
    pub(crate) async fn accept_all<P: Protocol>(self: Arc<Self>, listener: TcpListener) {
        let mut is_closing = pin!(self.until_closing());
        loop {
            let mut accepting = pin!(listener.accept());
            let accepted = poll_fn(|context| {
                if is_closing.as_mut().poll(context).is_ready() {
                    return Poll::Ready(None);
                }
                accepting.as_mut().poll(context).map(Some)
            });
            match accepted.await {
                None => return,
                Some(Ok((stream, _))) => self.begin_connection::<P>(stream),
                Some(Err(_)) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn begin_connection<P: Protocol>(self: &Arc<Self>, stream: TcpStream) {
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            // It fits the socket's buffer, or the client goes without.
            let _ = stream.try_write(P::TOO_MANY);
            return;
        };
        // An answer that waits for another packet would wait for nothing.
        let _ = stream.set_nodelay(true);
        let server = Arc::clone(self);
        tokio::spawn(async move {
            P::serve(server, stream).await;
            drop(place);
        });
    }

    /// Takes no more connections, and closes those that there are once their requests are answered. Waits for them so
    /// long at most.
    pub(crate) async fn close(&self, limit: Duration) {
        self.closing.send_replace(true);
        let all_places = u32::try_from(self.limits.connections).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(limit, self.places.acquire_many(all_places)).await;
    }
}
