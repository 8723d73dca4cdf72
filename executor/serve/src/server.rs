//! The models, and connections to them: accepted up to a limit, whatever they speak.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::control::{ControlError, LoadParameter, ModelControl};
use crate::engine::RunningModel;
use crate::otlp::Tracer;
use crate::shared_memory::Regions;
use crate::tokens::Tokens;

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
    /// Closed after a handshake that failed: no encryption, or no certificate that is known.
    pub(crate) handshakes: AtomicU64,
    /// Requests answered, with any status.
    pub(crate) requests: AtomicU64,
}

/// What is spoken on connections.
pub(crate) trait Protocol: 'static {
    /// Its name in addresses, and its name with encryption.
    const SCHEME: &'static str;
    const ENCRYPTED_SCHEME: &'static str;

    /// What one connection too many is told before it is closed.
    const TOO_MANY: &'static [u8];

    /// Serves a connection to its end.
    fn serve(
        server: Arc<Server>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> impl Future<Output = ()> + Send;
}

/// How connections are encrypted.
#[derive(Clone)]
pub(crate) enum Security {
    Plain,
    #[cfg(feature = "tls")]
    Tls(tokio_rustls::TlsAcceptor),
}

impl Security {
    #[cfg(feature = "tls")]
    pub(crate) fn of(config: Arc<rustls::ServerConfig>) -> Self {
        Self::Tls(config.into())
    }

    pub(crate) const fn is_encrypted(&self) -> bool {
        !matches!(self, Self::Plain)
    }

    /// Serves a connection to its end. Whoever does not complete a handshake in time is no client.
    async fn serve<P: Protocol>(self, server: Arc<Server>, stream: TcpStream) {
        match self {
            Self::Plain => P::serve(server, stream).await,
            #[cfg(feature = "tls")]
            Self::Tls(acceptor) => {
                let limit = server.limits.header_timeout;
                let handshake = tokio::time::timeout(limit, acceptor.accept(stream)).await;
                match handshake {
                    Ok(Ok(stream)) => P::serve(server, stream).await,
                    Ok(Err(_)) | Err(_) => {
                        server.counts.handshakes.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

/// The models by name.
#[derive(Default)]
struct Models {
    running: BTreeMap<String, Arc<RunningModel>>,
    /// Those that a client had unloaded.
    unloaded: BTreeSet<String>,
}

/// What a server is made of.
pub(crate) struct Parts {
    pub(crate) models: Vec<Arc<RunningModel>>,
    pub(crate) control: ModelControl,
    pub(crate) limits: Limits,
    pub(crate) regions: Regions,
    /// Who may ask.
    pub(crate) tokens: Tokens,
    /// What it calls itself.
    pub(crate) name: String,
}

/// The models, and what is shared by all connections.
pub(crate) struct Server {
    /// Read while a request is admitted, so that none is admitted by a model that another has taken the place of.
    models: RwLock<Models>,
    /// Models that another has taken the place of, and that have requests to answer.
    retired: Mutex<Vec<Arc<RunningModel>>>,
    control: ModelControl,
    /// One model is loaded at a time.
    loading: tokio::sync::Mutex<()>,
    is_draining: AtomicBool,
    regions: Regions,
    tokens: Tokens,
    name: String,
    limits: Limits,
    places: Arc<Semaphore>,
    counts: ConnectionCounts,
    /// Connections are closed after the request that is being answered.
    closing: watch::Sender<bool>,
}

impl Server {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let named = parts.models.into_iter();
        let running = named.map(|m| (m.model.name.clone(), m)).collect();
        Arc::new(Self {
            models: RwLock::new(Models {
                running,
                unloaded: BTreeSet::new(),
            }),
            retired: Mutex::new(Vec::new()),
            control: parts.control,
            loading: tokio::sync::Mutex::new(()),
            is_draining: AtomicBool::new(false),
            regions: parts.regions,
            tokens: parts.tokens,
            name: parts.name,
            places: Arc::new(Semaphore::new(parts.limits.connections)),
            limits: parts.limits,
            counts: ConnectionCounts::default(),
            closing: watch::channel(false).0,
        })
    }

    fn read_models(&self) -> RwLockReadGuard<'_, Models> {
        self.models.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_models(&self) -> RwLockWriteGuard<'_, Models> {
        self.models.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// All models, by name.
    pub(crate) fn models(&self) -> Vec<Arc<RunningModel>> {
        let models = self.read_models();
        models.running.values().map(Arc::clone).collect()
    }

    pub(crate) fn model(&self, name: &str) -> Option<Arc<RunningModel>> {
        self.read_models().running.get(name).map(Arc::clone)
    }

    /// Models that were unloaded.
    pub(crate) fn unloaded(&self) -> Vec<String> {
        self.read_models().unloaded.iter().cloned().collect()
    }

    /// Does something, quickly, with the model that has a name now: no other takes its place meanwhile.
    pub(crate) fn with_model<T>(
        &self,
        name: &str,
        use_model: impl FnOnce(&Arc<RunningModel>) -> T,
    ) -> Option<T> {
        let models = self.read_models();
        models.running.get(name).map(use_model)
    }

    /// What a client is told that asks for a model that is not here.
    pub(crate) fn unknown_model(&self, name: &str) -> String {
        let models = self.read_models();
        let known: Vec<&str> = models.running.keys().map(String::as_str).collect();
        let name: String = name.chars().take(100).collect();
        format!(
            "Request for unknown model: there is no `{name}`; there are: {}",
            known.join(", ")
        )
    }

    /// Opens a model of the folder anew, with what the parameters change of it. It takes the requests from then on; one of its name that was loaded answers those that it
    /// admitted.
    ///
    /// # Errors
    /// Why it is not loaded. One that was loaded before goes on then.
    pub(crate) async fn load(
        self: &Arc<Self>,
        name: &str,
        parameters: Vec<LoadParameter>,
    ) -> Result<(), ControlError> {
        let name = self.check_control(name)?;
        let overrides = self.control.overrides(&name, parameters)?;
        let _turn = self.loading.lock().await;
        let server = Arc::clone(self);
        let named = name.clone();
        let opened =
            tokio::task::spawn_blocking(move || server.control.open(&named, overrides)).await;
        let running = opened.map_err(|_| ControlError::Bug { name: name.clone() })??;
        let mut models = self.write_models();
        models.unloaded.remove(&name);
        let replaced = models.running.insert(name, running);
        drop(models);
        self.retire(replaced);
        Ok(())
    }

    /// Ends a model once it has answered what it admitted.
    ///
    /// # Errors
    /// There is none, or it may not be unloaded.
    pub(crate) async fn unload(&self, name: &str) -> Result<(), ControlError> {
        let name = self.check_control(name)?;
        let _turn = self.loading.lock().await;
        let mut models = self.write_models();
        let Some(removed) = models.running.remove(&name) else {
            return Err(ControlError::NotLoaded { name });
        };
        models.unloaded.insert(name);
        drop(models);
        self.retire(Some(removed));
        Ok(())
    }

    fn check_control(&self, name: &str) -> Result<String, ControlError> {
        let name: String = name.chars().take(200).collect();
        match self.control.is_allowed && !self.is_draining() {
            true => Ok(name),
            false => Err(ControlError::NotAllowed { name }),
        }
    }

    fn retire(&self, model: Option<Arc<RunningModel>>) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|model| !model.admission().is_drained());
        if let Some(model) = model {
            model.retire();
            retired.push(model);
        }
    }

    /// Admits no request any more; all models that have requests to answer.
    pub(crate) fn drain(&self) -> Vec<Arc<RunningModel>> {
        self.is_draining.store(true, Ordering::Relaxed);
        let mut models = self.models();
        models
            .iter()
            .for_each(|running| running.admission().drain());
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        models.extend(retired.iter().map(Arc::clone));
        models
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// What takes traces, if anybody wants them.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.control.run.tracer.as_ref()
    }

    /// What it calls itself.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a request with these headers is let in.
    pub(crate) fn lets_in(&self, headers: &hyper::HeaderMap) -> bool {
        self.tokens.admit(headers)
    }

    /// Shared memory that clients have registered.
    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The longest body of a sensible request to any model, or about one.
    #[cfg(feature = "grpc")]
    pub(crate) fn max_body_bytes(&self) -> usize {
        use crate::protocol::request::max_body_bytes;

        let models = self.models();
        let bodies = models.iter().map(|running| running.model.max_body_bytes());
        bodies.max().unwrap_or(0).max(max_body_bytes(&[], 1))
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
    pub(crate) async fn accept_all<P: Protocol>(
        self: Arc<Self>,
        listener: TcpListener,
        security: Security,
    ) {
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
                Some(Ok((stream, _))) => self.begin_connection::<P>(stream, security.clone()),
                Some(Err(_)) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn begin_connection<P: Protocol>(self: &Arc<Self>, stream: TcpStream, security: Security) {
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            // It fits the socket's buffer, or the client goes without. Who expects encryption would not understand it.
            if !security.is_encrypted() {
                let _ = stream.try_write(P::TOO_MANY);
            }
            return;
        };
        // An answer that waits for another packet would wait for nothing.
        let _ = stream.set_nodelay(true);
        let server = Arc::clone(self);
        tokio::spawn(async move {
            security.serve::<P>(server, stream).await;
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
