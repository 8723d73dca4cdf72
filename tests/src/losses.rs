//! Runs that lose workers on purpose, beside runs that lose none: for the tests, the soak and the recovery benchmark,
//! whose programs are their own worker processes.
//!
//! Panics where something fails: callers are tests, and the message is all that is wanted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3Default;
use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_file};
use zbmd_executor::inject::Injector;
use zbmd_executor::supervise::{Event, Supervision};
use zbmd_executor::{Engine, Isolation, Outcome, RunError, RunOptions, Stopper, Supervised};
use zbmd_ir::{DType, TokenType};

use crate::run::graph_file;

/// Compiles `graphs/{model}` for three like CPU devices, with calendars for these losses.
///
/// # Panics
/// If it does not compile.
pub fn engine(model: &str, registry: &Registry, contingencies: Losses) -> Engine {
    engine_on(3, model, registry, contingencies)
}

/// [`engine`] for so many devices.
///
/// # Panics
/// If it does not compile.
pub fn engine_on(
    devices: usize,
    model: &str,
    registry: &Registry,
    contingencies: Losses,
) -> Engine {
    let detector = crate::data::file("models/silero_vad.onnx");
    let detector = detector.and_then(|path| std::path::absolute(path).ok());
    let params = match detector {
        Some(path) if model.starts_with("vad/") => [(
            "detector".to_owned(),
            format!("{:?}", path.display().to_string()),
        )]
        .into(),
        _ => BTreeMap::new(),
    };
    let options = CompileOptions {
        params,
        registry: registry.clone(),
        machine: MachineChoice::Uniform(devices),
        contingencies,
        ..CompileOptions::default()
    };
    let compiled = compile_file(graph_file(model), &options).unwrap_or_else(|d| panic!("{d}"));
    Engine::new(compiled.program, registry).expect("an engine")
}

/// Options of a test: it shares the computer with other tests, which pinning and locking would only disturb.
pub fn options(isolation: Isolation) -> RunOptions {
    RunOptions {
        isolation,
        pin: false,
        lock_memory: false,
        ..RunOptions::default()
    }
}

/// What the sources are given: tokens that depend on the seed and their position alone.
#[derive(Clone, Copy, Debug)]
pub struct Feed {
    /// For the tokens.
    pub seed: u64,
    /// Iterations.
    pub iterations: u64,
    /// In real time at so many iterations a second; as fast as they are taken if `None`.
    pub per_s: Option<f64>,
}

/// What became of a run.
#[derive(Debug)]
pub struct Told {
    /// For each sink, tokens and a hash of their bytes.
    pub sinks: BTreeMap<String, (u64, u64)>,
    /// How it ended.
    pub outcome: Result<Outcome, RunError>,
    /// What the supervisor said.
    pub events: Vec<Event>,
    /// From the start to the end.
    pub elapsed: Duration,
}

/// A declaration under which losses come as fast as tests bring them about.
pub const HARDY: &str = r#"Supervision(intensity: 1000000, period: "60s", backoff: (base: "1ms", longest: "5ms"),
    breaker: (failures: 1000000), futile: 1000)"#;

/// Supervision as declared, with faults as declared.
///
/// # Panics
/// If a declaration is wrong.
pub fn supervised(engine: &Engine, declaration: &str, inject: Option<&str>) -> Supervised {
    let names = engine
        .program()
        .machine
        .devices
        .iter()
        .map(|d| d.name.as_str());
    let declared = Supervision::parse(declaration).expect("a declaration");
    let resolved = declared.resolve(names).expect("it fits the machine");
    let inject = inject.map(|text| Injector::new(Injector::parse(text).expect("faults")));
    Supervised {
        settings: resolved.settings,
        tree: resolved.tree,
        listener: None,
        states: None,
        inject,
        save_every: None,
    }
}

/// Runs it, with a thread for each source and sink.
///
/// # Panics
/// If it cannot be started.
pub fn live(engine: &Engine, feed: Feed, options: RunOptions) -> Told {
    driven(engine, feed, options, &|_, _| {}, |_, _| {})
}

/// [`live`], with somebody who sees what each sink gets.
///
/// # Panics
/// As [`live`].
pub fn live_seen(
    engine: &Engine,
    feed: Feed,
    options: RunOptions,
    seen: &(dyn Fn(&str, &[u8]) + Sync),
) -> Told {
    driven(engine, feed, options, seen, |_, _| {})
}

/// [`live`], and `watch` on a thread of its own, which is told when the run is over, and is to end then.
///
/// # Panics
/// As [`live`].
pub fn live_with(
    engine: &Engine,
    feed: Feed,
    options: RunOptions,
    watch: impl FnOnce(&Stopper, &AtomicBool) + Send,
) -> Told {
    driven(engine, feed, options, &|_, _| {}, watch)
}

fn driven(
    engine: &Engine,
    feed: Feed,
    mut options: RunOptions,
    seen: &(dyn Fn(&str, &[u8]) + Sync),
    watch: impl FnOnce(&Stopper, &AtomicBool) + Send,
) -> Told {
    let events = Arc::new(Mutex::new(Vec::new()));
    if let Some(supervised) = &mut options.supervised {
        let events = Arc::clone(&events);
        supervised.listener = Some(Arc::new(move |event: &Event| {
            events.lock().expect("no panic").push(event.clone());
        }));
    }
    let program = engine.program();
    let q = zbmd_scheduler::repetition(&program.graph).expect("verified graphs are consistent");
    let is_over = AtomicBool::new(false);
    let start = Instant::now();
    let mut session = engine.start(options).expect("a session");
    let (sinks, outcome) = std::thread::scope(|scope| {
        let (stopper, is_over) = (session.stopper(), &is_over);
        scope.spawn(move || watch(&stopper, is_over));
        for (at, (id, actor)) in program.graph.sources().enumerate() {
            let mut source = session.source(&actor.name).expect("a source");
            let port = &actor.outputs[0];
            let rate = q[id] * port.rate;
            scope.spawn(move || {
                let token = port.token.clone();
                let mut tokens = Tokens::new(&token, feed.seed.wrapping_add(at as u64));
                let piece = (1 << 13) / rate.max(1) + 1;
                let mut done = 0;
                while done < feed.iterations {
                    let now = piece.min(feed.iterations - done);
                    if source.push_bytes(tokens.next(now * rate)).is_err() {
                        return;
                    }
                    done += now;
                    if let Some(per_s) = feed.per_s {
                        let due = Duration::from_secs_f64(done as f64 / per_s);
                        std::thread::sleep(due.saturating_sub(start.elapsed()));
                    }
                }
            });
        }
        let sinks: Vec<_> = program
            .graph
            .sinks()
            .map(|(_, actor)| {
                let mut sink = session.sink(&actor.name).expect("a sink");
                let name = actor.name.clone();
                scope.spawn(move || {
                    let token_bytes = sink.token().bytes() as usize;
                    let mut part = vec![0; token_bytes * (1usize << 16).div_ceil(token_bytes)];
                    let (mut all, mut hash) = (0, Xxh3Default::new());
                    while let Ok(tokens @ 1..) = sink.pull_some_bytes(&mut part) {
                        let bytes = &part[..tokens as usize * token_bytes];
                        hash.update(bytes);
                        seen(&name, bytes);
                        all += tokens;
                    }
                    (name, (all, hash.digest()))
                })
            })
            .collect();
        let outcome = session.join();
        is_over.store(true, Ordering::Relaxed);
        let sinks = sinks
            .into_iter()
            .map(|s| s.join().expect("a sink's thread"))
            .collect();
        (sinks, outcome)
    });
    let events = std::mem::take(&mut *events.lock().expect("no panic"));
    Told {
        sinks,
        outcome,
        events,
        elapsed: start.elapsed(),
    }
}

/// A stream of random tokens; floats from -1 to 1.
struct Tokens {
    rng: fastrand::Rng,
    dtype: DType,
    token_bytes: u64,
    bytes: Vec<u8>,
}

impl Tokens {
    fn new(token: &TokenType, seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Self {
            rng,
            dtype: token.dtype,
            token_bytes: token.bytes(),
            bytes: Vec::new(),
        }
    }

    fn next(&mut self, tokens: u64) -> &[u8] {
        self.bytes.clear();
        let end = (tokens * self.token_bytes) as usize;
        while self.bytes.len() < end {
            match self.dtype {
                DType::F32 | DType::C32 => {
                    let x = 2.0 * self.rng.f32() - 1.0;
                    self.bytes.extend_from_slice(&x.to_ne_bytes());
                }
                _ => self.bytes.push(self.rng.u8(..)),
            }
        }
        &self.bytes
    }
}
