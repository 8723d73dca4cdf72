//! Live streams of a session, for programs that have one: a stream is connected to a URL with one call, and its threads,
//! sockets and counts are kept here until the run is over. `zbmd-run` has threads of its own, because it also has files,
//! deadlines and events.
//!
//! ```text
//! URL -> LiveSource -> Feeder -> source's handle     (a thread)
//! sink's handle -> socket pair -> LiveSink -> URL    (two threads: a slow peer never stops the run)
//! ```

mod error;
mod pump;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use zbmd_executor::{Engine, PumpRole, Session};
use zbmd_ir::{Actor, Role, TokenType};

pub use self::error::ConnectError;
pub use self::pump::HandleConsumer;
use crate::feeder::{Feeder, FeederParts, timeline_settings, token_rate};
use crate::report::{LiveReport, SharedReport};
use crate::sink::{SinkContext, open_sink};
use crate::source::open_source;
use crate::url::{Endpoint, SinkUrl, SourceUrl};

/// A source or a sink of the program, as far as URLs need it.
#[derive(Clone, Debug)]
struct StreamSpec {
    name: String,
    is_source: bool,
    token: TokenType,
    /// Tokens a second by the model.
    rate: Option<f64>,
    /// The URL that the model names.
    url: Option<String>,
    /// The URL that it is connected to, or was until the streams were closed.
    connected_url: Option<String>,
}

impl StreamSpec {
    fn of(actor: &Actor) -> Self {
        let is_source = actor.role == Role::Source;
        let token = match is_source {
            true => &actor.outputs[0].token,
            false => &actor.inputs[0].token,
        };
        let file = actor.params.get("file").and_then(|v| v.as_str());
        Self {
            name: actor.name.clone(),
            is_source,
            token: token.clone(),
            rate: actor.sample_rate(),
            url: file
                .filter(|file| crate::is_url(file))
                .map(ToOwned::to_owned),
            connected_url: None,
        }
    }

    fn kind(&self) -> &'static str {
        kind_of(self.is_source)
    }
}

fn kind_of(is_source: bool) -> &'static str {
    match is_source {
        true => "source",
        false => "sink",
    }
}

/// The streams of one session that have URLs. Dropping it ends them: sources end, sinks take no more.
///
/// Drop or join the session first, so that what it still gives is sent.
pub struct LiveStreams {
    streams: Vec<StreamSpec>,
    reports: Vec<SharedReport>,
    has_live_source: bool,
    sources_are_over: Arc<AtomicBool>,
    sinks_are_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl LiveStreams {
    /// For sessions of this program: none is connected yet.
    pub fn new(engine: &Engine) -> Self {
        let graph = &engine.program().graph;
        let actors = graph.sources().chain(graph.sinks());
        Self {
            streams: actors.map(|(_, actor)| StreamSpec::of(actor)).collect(),
            reports: Vec::new(),
            has_live_source: false,
            sources_are_over: Arc::default(),
            sinks_are_over: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// Feeds a source of the session from a URL; without one, from that which the model names. From here on the
    /// source's handle is taken. The stream ends with the run, or when the file that it plays does.
    ///
    /// # Errors
    /// See [`ConnectError`]. The session is as it was before.
    pub fn connect_source(
        &mut self,
        session: &mut Session,
        name: &str,
        url: Option<&str>,
    ) -> Result<(), ConnectError> {
        let spec = self.spec(name, true)?.clone();
        let text = chosen_url(&spec, url)?;
        let wrong_url = |error| ConnectError::url(&spec, text, error);
        let url = SourceUrl::parse(text).map_err(|error| wrong_url(error.into()))?;
        let rate = token_rate(&url, &spec.token, spec.rate).map_err(wrong_url)?;
        timeline_settings(&url, rate).map_err(wrong_url)?;
        check_format(&spec, &url)?;

        // The socket first: if it cannot be opened, the source's handle is still there.
        let source = open_source(&url, &spec.token, rate)
            .map_err(|error| ConnectError::open(&spec, text, error))?;
        let handle = session.source(name)?;
        let report = SharedReport::new(name, text, false);
        let parts = FeederParts {
            token: spec.token.clone(),
            model_rate: spec.rate,
            consumer: Box::new(HandleConsumer(handle)),
            flags: None,
            listener: None,
            report: report.clone(),
        };
        let feeder = Feeder::new(&url, source, parts).map_err(wrong_url)?;

        let is_over = Arc::clone(&self.sources_are_over);
        let stopper = session.stopper();
        let pump_role = session.pump_role();
        let run = move || {
            // The clock of a file that is played waits for nobody.
            if pump_role.is_held() {
                stopper.wait_for_workers();
            }
            feeder.run(&|| stopper.is_stopping() || is_over.load(Ordering::Acquire));
        };
        self.spawn(name, pump_role, run)?;
        self.mark_connected(name, text, report);
        self.has_live_source |= !matches!(url.endpoint, Endpoint::Recording(_));
        Ok(())
    }

    /// Sends the tokens of a sink of the session to a URL; without one, to that which the model names. From here on the
    /// sink's handle is taken. The clock bridge of a sound card follows live sources that were connected before.
    ///
    /// # Errors
    /// See [`ConnectError`]. The session is as it was before.
    pub fn connect_sink(
        &mut self,
        session: &mut Session,
        name: &str,
        url: Option<&str>,
    ) -> Result<(), ConnectError> {
        let spec = self.spec(name, false)?.clone();
        let text = chosen_url(&spec, url)?;
        let url =
            SinkUrl::parse(text).map_err(|error| ConnectError::url(&spec, text, error.into()))?;
        let context = SinkContext {
            model_rate: spec.rate,
            has_live_source: self.has_live_source,
        };
        let cannot_open = |error| ConnectError::open(&spec, text, error);
        let sink = open_sink(&url, &spec.token, context).map_err(cannot_open)?;
        // Not a pipe: writing to one whose reader has gone would end a program that does not ignore SIGPIPE.
        let ends = UnixStream::pair().map_err(cannot_open)?;
        let reader = std::fs::File::from(OwnedFd::from(ends.0));
        let writer = ends.1;
        writer
            .set_write_timeout(Some(pump::LOOK))
            .map_err(cannot_open)?;
        let handle = session.sink(name)?;

        let report = SharedReport::new(name, text, true);
        let sink_report = report.clone();
        let pump_role = session.pump_role();
        // The sink ends after its pump, which may have tokens of the run that the sink has not seen.
        let pump_has_ended = Arc::new(AtomicBool::new(false));
        let sink_is_over = Arc::clone(&pump_has_ended);
        self.spawn(name, pump_role, move || {
            sink.run(reader, &sink_is_over, &sink_report)
        })?;
        let pump_is_over = Arc::clone(&self.sinks_are_over);
        self.spawn(name, pump_role, move || {
            pump::drain(handle, &writer, &pump_is_over);
            pump_has_ended.store(true, Ordering::Release);
        })?;
        self.mark_connected(name, text, report);
        Ok(())
    }

    /// What the connected streams have done so far, in the order in which they were connected.
    pub fn reports(&self) -> Vec<LiveReport> {
        self.reports.iter().map(SharedReport::get).collect()
    }

    /// Ends all connected streams, and waits until their threads have ended: sinks have then sent what the run gave, as
    /// far as their peers took it. The reports stay.
    pub fn close(&mut self) {
        self.sources_are_over.store(true, Ordering::Release);
        self.sinks_are_over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // A panic was told on standard error; the run's own outcome does not hang on it.
            let _ = thread.join();
        }
        // Those that are connected later go on.
        self.sources_are_over = Arc::default();
        self.sinks_are_over = Arc::default();
    }

    /// A stream of the program that has no URL yet.
    fn spec(&self, name: &str, is_source: bool) -> Result<&StreamSpec, ConnectError> {
        let kind = kind_of(is_source);
        let of_kind = |spec: &&StreamSpec| spec.is_source == is_source;
        let mut candidates = self.streams.iter().filter(of_kind);
        let Some(spec) = candidates.find(|spec| spec.name == name) else {
            if self.streams.iter().any(|spec| spec.name == name) {
                return Err(ConnectError::Direction {
                    name: name.to_owned(),
                    kind: kind_of(!is_source),
                    wanted: kind,
                });
            }
            let names = self.streams.iter().filter(of_kind);
            let names: Vec<&str> = names.map(|spec| spec.name.as_str()).collect();
            return Err(ConnectError::Unknown {
                kind,
                name: name.to_owned(),
                known: names.join(", "),
            });
        };

        match &spec.connected_url {
            None => Ok(spec),
            Some(url) => Err(ConnectError::Connected {
                kind,
                name: name.to_owned(),
                url: url.clone(),
            }),
        }
    }

    /// Keeps what a stream reports that runs now; it cannot be connected again.
    fn mark_connected(&mut self, name: &str, url: &str, report: SharedReport) {
        // Actors have different names: a source's is never that of a sink.
        let spec = self.streams.iter_mut().find(|spec| spec.name == name);
        if let Some(spec) = spec {
            spec.connected_url = Some(url.to_owned());
        }
        self.reports.push(report);
    }

    fn spawn(
        &mut self,
        name: &str,
        pump_role: PumpRole,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), ConnectError> {
        let begin = move |entered: io::Result<()>| {
            // Without its role it does nothing: the run sees that its stream has ended.
            if entered.is_ok() {
                run();
            }
        };
        let thread = pump_role.spawn(format!("zbmd live {name}"), begin);
        self.threads.push(thread.map_err(ConnectError::Thread)?);
        Ok(())
    }
}

impl Drop for LiveStreams {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for LiveStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.reports()).finish()
    }
}

/// The URL of a call, or else the model's.
fn chosen_url<'a>(spec: &'a StreamSpec, url: Option<&'a str>) -> Result<&'a str, ConnectError> {
    url.or(spec.url.as_deref())
        .ok_or_else(|| ConnectError::NoUrl {
            kind: spec.kind(),
            name: spec.name.clone(),
        })
}

/// Files are played as raw tokens here: one with a header would be played with it.
fn check_format(spec: &StreamSpec, url: &SourceUrl) -> Result<(), ConnectError> {
    let Endpoint::Paced(path) = &url.endpoint else {
        return Ok(());
    };
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_format = |format: &str| extension.is_some_and(|e| e.eq_ignore_ascii_case(format));
    match is_format("wav") || is_format("npy") {
        true => Err(ConnectError::Format {
            name: spec.name.clone(),
            url: url.text.clone(),
        }),
        false => Ok(()),
    }
}
