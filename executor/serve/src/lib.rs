//! The command `zbmd-serve` as a function, so that a program with actors of its own is a server in a few lines:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     let mut registry = zbmd_backends::standard_registry();
//!     // registry.register("my_actor", |params| MyActor::new(params));
//!     zbmd_serve::main_with(registry)
//! }
//! ```
//!
//! | module | what it holds | may import |
//! |---|---|---|
//! | `tensor` | tensors, as the protocol and the model have them | nothing of these |
//! | `sequence` | names of sequences | nothing of these |
//! | `shared_memory` | regions that tensors are in | nothing of these |
//! | `protocol` | bodies of requests and answers | `sequence`, `shared_memory`, `tensor` |
//! | `otlp` | traces, and sending them to a collector | `stats` |
//! | `engine` | a model's queue, sequences, run, bound and readiness | `otlp`, `sequence`, `stats`, `tensor` |
//! | `inference` | a request on its way through a model | `protocol`, `engine`, `otlp`, `stats` |
//! | `tls`, `tokens` | encryption, and who is let in | nothing of these |
//! | `control` | opening models of the folder | `engine`, `repository` |
//! | `description` | names, bounds and states, as all protocols say them | `engine`, `server` |
//! | `server` | the models, and connections up to a limit | `control`, `engine`, `protocol`, `shared_memory`, `tokens` |
//! | `http` | HTTP/1.1: paths, bodies, documents, metrics | all of these |
//! | `grpc` | gRPC: calls and messages | all of these but `http` |
//!
//! Everything said goes to standard error. Exit codes are [`zbmd_executor::exit`]'s.

mod args;
mod control;
mod description;
mod descriptors;
mod engine;
#[cfg(feature = "grpc")]
mod grpc;
mod http;
mod inference;
mod otlp;
mod overrides;
mod protocol;
mod repository;
mod sequence;
mod server;
mod shared_memory;
mod stats;
mod tensor;
#[doc(hidden)]
pub mod testing;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod write_limit;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use zbmd_backends::op::Registry;
use zbmd_executor::exit;
#[cfg(target_os = "linux")]
use zbmd_executor::realtime::{self, RealtimeError, ThreadRole};

use crate::args::Args;
use crate::control::ModelControl;
use crate::engine::RunChoices;
use crate::engine::readiness::Phase;
use crate::engine::sequences::SequenceLimits;
use crate::http::Http;
use crate::otlp::{Endpoint, EndpointError, Exporter, Tracer};
use crate::repository::{LoadChoices, RepositoryError};
use crate::server::{Limits, Parts, Protocol, Security, Server};
use crate::shared_memory::Regions;
use crate::tokens::{Tokens, TokensError};

/// How often it is looked whether any model is left.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Answers that were made are written within this time at the end, or not at all.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Why the command ends.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(
        "{0} is not a loopback address: encrypt with --tls-certificate and --tls-key, and say who may ask with --tokens or --tls-client-ca; or \
         listen at 127.0.0.1, or add --allow-remote if everybody who reaches it may use it"
    )]
    Remote(SocketAddr),
    #[error(transparent)]
    Tokens(#[from] TokensError),
    #[cfg(feature = "tls")]
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    #[error(
        "{0} is not a loopback address, and --shared-memory is for clients on this computer: leave one of them out"
    )]
    SharedMemory(SocketAddr),
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    #[error(
        "cannot listen at {address}: {source}; choose another address with `--listen`, or another port for gRPC with `--grpc-port`"
    )]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("no thread for {what}: {source}")]
    Thread {
        what: &'static str,
        source: io::Error,
    },
    #[cfg(target_os = "linux")]
    #[error("no real time: {0}")]
    Realtime(#[from] RealtimeError),
    #[error("every model has failed")]
    AllFailed,
}

impl ServeError {
    fn class(&self) -> u8 {
        match self {
            Self::Remote(_) | Self::SharedMemory(_) | Self::Endpoint(_) => exit::USAGE,
            Self::Repository(error) => error.class(),
            Self::Listen { .. } | Self::Tokens(_) => exit::FILE,
            #[cfg(feature = "tls")]
            Self::Tls(_) => exit::FILE,
            Self::Thread { .. } => exit::FAULT,
            #[cfg(target_os = "linux")]
            Self::Realtime(_) => exit::FAULT,
            Self::AllFailed => exit::GAVE_UP,
        }
    }
}

/// Runs the command line with the ops of `registry`; the process's exit code.
pub fn main_with(registry: Registry) -> ExitCode {
    #[cfg(target_os = "linux")]
    zbmd_executor::serve_if_worker(&registry);
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help goes to standard output, mistakes to standard error; whether it is closed does not matter.
            drop(error.print());
            let is_mistake = error.use_stderr();
            return ExitCode::from(if is_mistake { exit::USAGE } else { exit::OK });
        }
    };

    ExitCode::from(exit_code_of(|| serve(&args, &registry)))
}

/// The exit code of what the server does, whose error is said; also of a panic, which is our bug.
fn exit_code_of(serve: impl FnOnce() -> Result<u8, ServeError>) -> u8 {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(serve)) {
        Ok(Ok(exit_code)) => exit_code,
        Ok(Err(error)) => {
            say(format_args!("zbmd-serve: error: {error}"));
            error.class()
        }
        Err(_) => {
            say(format_args!(
                "zbmd-serve: this is a bug of zbmd; please report it with the lines above"
            ));
            exit::BUG
        }
    }
}

/// A line on standard error. Whether it is closed does not matter.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A signal has come that ends the server.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn serve(args: &Args, registry: &Registry) -> Result<u8, ServeError> {
    if !args.listen.ip().is_loopback() && !args.allow_remote && !args.is_secured() {
        return Err(ServeError::Remote(args.listen));
    }
    if args.shared_memory && !args.listen.ip().is_loopback() {
        return Err(ServeError::SharedMemory(args.listen));
    }
    let tokens = args.tokens.as_deref().map(Tokens::read).transpose()?;
    let encryption = Encryption::of(args)?;
    let limits = limits_of(args);
    let exporter = start_exporter(args)?;
    // Before models are compiled, which may take long.
    #[cfg(target_os = "linux")]
    if args.is_realtime() {
        realtime::begin([])?;
    }
    let control = ModelControl {
        folder: args.folder.clone(),
        load: load_choices(args, registry),
        run: run_choices(args, exporter.as_ref().map(Exporter::tracer)),
        is_allowed: args.model_control,
    };
    let models = control.load_all()?;
    let http = bind(args.listen)?;
    #[cfg(feature = "grpc")]
    let grpc = args.grpc_address().map(bind).transpose()?;
    let signals = signals();
    // Before models run: what they need meanwhile would be missing.
    check_threads(args.http_threads).map_err(thread_error("connections"))?;
    let started = models.into_iter().map(|model| control.start(model));
    let started: io::Result<Vec<_>> = started.collect();
    let models = started.map_err(thread_error("a model"))?;

    let runtime = start_runtime(args).map_err(thread_error("connections"))?;
    let server = Server::new(Parts {
        models,
        control,
        limits,
        regions: Regions::new(args.shared_memory),
        tokens: tokens.unwrap_or_default(),
        name: args.server_name.clone(),
    });
    let listening = Listening {
        runtime: &runtime,
        server: &server,
        is_quiet: args.quiet,
    };
    listening.begin::<Http>(http, encryption.http)?;
    #[cfg(feature = "grpc")]
    if let Some(grpc) = grpc {
        listening.begin::<grpc::Grpc>(grpc, encryption.grpc)?;
    }

    let has_failed = wait_for_end(&signals, &server);
    let exit_code = shut_down(args, &runtime, &server);
    if let Some(exporter) = exporter {
        exporter.finish(CLOSE_LIMIT);
    }
    match has_failed {
        true => Err(ServeError::AllFailed),
        false => Ok(exit_code),
    }
}

/// Begins to send traces, if anybody wants them.
fn start_exporter(args: &Args) -> Result<Option<Exporter>, ServeError> {
    let Some(url) = &args.otlp else {
        return Ok(None);
    };
    let endpoint = Endpoint::of(url, args.allow_remote)?;
    let started = Exporter::start(endpoint, &args.server_name);
    started.map(Some).map_err(thread_error("traces"))
}

fn load_choices(args: &Args, registry: &Registry) -> LoadChoices {
    LoadChoices {
        registry: registry.clone(),
        #[cfg(feature = "compile")]
        machine: args.compile.machine(),
        #[cfg(feature = "compile")]
        buckets: args.compile.buckets.clone(),
        is_quiet: args.quiet,
    }
}

/// What strangers may take, as far as the system allows it.
fn limits_of(args: &Args) -> Limits {
    let wanted = args.connections as usize;
    let connections = descriptors::connections_within_limit(wanted);
    if connections < wanted {
        say(format_args!(
            "zbmd-serve: note: {connections} connections at once and not {wanted}: the system allows no more open files (`ulimit -n`)"
        ));
    }
    Limits {
        connections,
        header_timeout: args.header_timeout,
        body_timeout: args.body_timeout,
        write_timeout: args.write_timeout,
    }
}

/// The threads of connections.
fn start_runtime(args: &Args) -> io::Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(args.http_threads as usize)
        .thread_name("zbmd http")
        .enable_all();
    #[cfg(target_os = "linux")]
    if args.is_realtime() {
        builder.on_thread_start(|| {
            // That the system gives the priority was seen when the server started.
            let _ = realtime::enter(ThreadRole::Pump);
        });
    }
    builder.build()
}

fn run_choices(args: &Args, tracer: Option<&Tracer>) -> RunChoices {
    RunChoices {
        isolation: args.isolation.isolation(),
        standby: !args.no_standby,
        pin: args.pin,
        realtime: args.is_realtime(),
        queue: args.queue as usize,
        sequences: SequenceLimits {
            count: args.sequences as usize,
            idle: args.sequence_idle,
        },
        tracer: tracer.cloned(),
    }
}

/// Address space of a thread, its stack above all, and what is to be left beside all of them.
const THREAD_BYTES: usize = (2 << 20) + (64 << 10);
const SPARE_BYTES: usize = 16 << 20;

/// Makes sure that so many threads are to be had at once: the runtime panics where it does not get its own, and waits for ever
/// for those that it got.
fn check_threads(count: u32) -> io::Result<()> {
    // A thread that has its stack and nothing more ends the process, so it is not tried whether that comes about.
    let needed_bytes = count as usize * THREAD_BYTES + SPARE_BYTES;
    let mut room = Vec::<u8>::new();
    let reserved = room.try_reserve_exact(needed_bytes);
    reserved.map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
    // An allocation that nobody uses may be left away.
    drop(std::hint::black_box(room));

    let gate = Mutex::new(());
    std::thread::scope(|scope| {
        let closed = gate.lock();
        for _ in 0..count {
            std::thread::Builder::new().spawn_scoped(scope, || drop(gate.lock()))?;
        }
        drop(closed);
        Ok(())
    })
}

fn thread_error(what: &'static str) -> impl Fn(io::Error) -> ServeError {
    move |source| ServeError::Thread { what, source }
}

/// An address that is taken.
struct Bound {
    listener: std::net::TcpListener,
    address: SocketAddr,
}

fn bind(address: SocketAddr) -> Result<Bound, ServeError> {
    let failed = |source| ServeError::Listen { address, source };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok(Bound { listener, address })
}

/// How connections are encrypted, for each protocol.
struct Encryption {
    http: Security,
    #[cfg(feature = "grpc")]
    grpc: Security,
}

impl Encryption {
    #[cfg(feature = "tls")]
    fn of(args: &Args) -> Result<Self, ServeError> {
        let files = args.tls.files();
        let security = |protocol: &[u8]| {
            let config = files.map(|files| files.config(protocol)).transpose()?;
            Ok::<_, ServeError>(config.map_or(Security::Plain, Security::of))
        };
        Ok(Self {
            http: security(b"http/1.1")?,
            #[cfg(feature = "grpc")]
            grpc: security(b"h2")?,
        })
    }

    #[cfg(not(feature = "tls"))]
    fn of(_: &Args) -> Result<Self, ServeError> {
        Ok(Self {
            http: Security::Plain,
            #[cfg(feature = "grpc")]
            grpc: Security::Plain,
        })
    }
}

/// What takes connections.
struct Listening<'s> {
    runtime: &'s Runtime,
    server: &'s Arc<Server>,
    is_quiet: bool,
}

impl Listening<'_> {
    /// Begins to take connections of a protocol.
    fn begin<P: Protocol>(&self, bound: Bound, security: Security) -> Result<(), ServeError> {
        let address = bound.address;
        let listener = {
            let _context = self.runtime.enter();
            TcpListener::from_std(bound.listener)
                .map_err(|source| ServeError::Listen { address, source })?
        };
        let server = Arc::clone(self.server);
        let scheme = match security.is_encrypted() {
            true => P::ENCRYPTED_SCHEME,
            false => P::SCHEME,
        };
        self.runtime
            .spawn(server.accept_all::<P>(listener, security));
        if !self.is_quiet {
            say(format_args!(
                "zbmd-serve: listening at {scheme}://{address}"
            ));
        }
        Ok(())
    }
}

/// Learns of interrupts and SIGTERM. The second one ends the process.
fn signals() -> Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    let on_signal = move || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(exit::INTERRUPTED));
        }
        let _ = sender.send(());
    };
    if let Err(error) = ctrlc::set_handler(on_signal) {
        say(format_args!(
            "zbmd-serve: note: a signal will not end the server in good order: {error}"
        ));
    }
    receiver
}

/// Waits for a signal, or until every model has failed; whether it is that.
fn wait_for_end(signals: &Receiver<()>, server: &Server) -> bool {
    loop {
        match signals.recv_timeout(LOOK_EVERY) {
            Ok(()) => return false,
            Err(RecvTimeoutError::Timeout) => {}
            // Without a handler nobody sends; the default action ends the process.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK_EVERY),
        }
        let models = server.models();
        let mut phases = models.iter().map(|running| running.readiness().phase());
        // Clients may have unloaded all of them, and may load some again.
        if !models.is_empty() && phases.all(|phase| matches!(phase, Phase::Failed { .. })) {
            return true;
        }
    }
}

/// Answers what was admitted, refuses what comes meanwhile, closes connections and ends the runs.
fn shut_down(args: &Args, runtime: &Runtime, server: &Server) -> u8 {
    let drain_end = Instant::now() + args.drain;
    let models = server.drain();
    let left = || drain_end.saturating_duration_since(Instant::now());
    let mut are_idle = models.iter().map(|r| r.admission().wait_until_idle(left()));
    let is_drained = are_idle.all(|is_idle| is_idle);
    runtime.block_on(server.close(CLOSE_LIMIT));

    if !is_drained {
        let pending: usize = models.iter().map(|r| r.admission().pending()).sum();
        let drain = args.drain;
        say(format_args!(
            "zbmd-serve: {pending} requests are not answered after {drain:?}, and are given up"
        ));
        return exit::INTERRUPTED;
    }
    models.iter().for_each(|running| running.join());
    exit::OK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_our_bug_and_an_error_has_its_code() {
        assert_eq!(exit_code_of(|| panic!("as if by a bug")), exit::BUG);
        assert_eq!(exit_code_of(|| Err(ServeError::AllFailed)), exit::GAVE_UP);
        assert_eq!(exit_code_of(|| Ok(exit::OK)), exit::OK);
    }
}
