//! Modes: `cargo bench -p zbmd-tests --bench modes [-- switches|kills|bundle]`.
//!
//! `switches`  random changes among four modes at 48 kS/s and at 2.4 MS/s, in blocks of 1 ms: tokens that differ from the
//!             interpreter's, and how much later blocks come that are the first in their mode
//! `kills`     the same while worker processes are killed; blocks between a kill and the first output after it are told
//!             apart, since a recovery delays them in any mode
//! `bundle`    four modes, each with a plan for every single loss: memory of arenas and time to compile, beside one mode
//!
//! `ZBMD_MODE_CHANGES` says how many changes, by default 1,000 at each rate.
//!
//! No harness: this program is its own worker process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use zbmd_compiler::{CompileOptions, Losses, MachineChoice, compile_str};
use zbmd_executor::supervise::{Event, What};
use zbmd_executor::{Engine, Isolation, ModeEntry, ModeHandle, RunOptions};
use zbmd_ir::verify::VerifiedModes;
use zbmd_ir::{PlanId, Program};
use zbmd_tests::figures::quantiles;
use zbmd_tests::{losses, modes};

const RATES: [u64; 2] = [48_000, 2_400_000];
const NAMES: [&str; 4] = ["direct", "sum", "smooth", "both"];
const KILLS: &str = "Inject(kinds: [kill], every: (\"100ms\", \"300ms\"), seed: 9)";

fn main() {
    zbmd_executor::serve_if_worker(&zbmd_backends::standard_registry());
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let changes = std::env::var("ZBMD_MODE_CHANGES").ok();
    let changes = changes.map_or(1_000, |text| text.parse().expect("a number of changes"));
    for rate in RATES {
        if is_wanted("switches") {
            switches(rate, changes, None);
        }
        if is_wanted("kills") {
            switches(rate, changes, Some(KILLS));
        }
    }
    if is_wanted("bundle") {
        bundle();
    }
}

/// Four modes behind a common filter; all give a token for each that they take, and sums go on from mode to mode.
fn model(rate: u64) -> String {
    let modes = [
        r#"actors: { "gain": Gain(0.5) },
        channels: [(from: "low", to: ["gain"]), (from: "gain", to: ["out"])]"#,
        r#"actors: { "sum": Expr("0.5 * x + 0.5 * s", inputs: { "x": f32, "s": f32 }) },
        channels: [(from: "low", to: ["sum.x"]), (from: "sum", to: ["sum.s", "out"], initial: [0.0])]"#,
        r#"actors: { "smooth": Fir([0.0625, 0.125, 0.1875, 0.25, 0.1875, 0.125, 0.0625]) },
        channels: [(from: "low", to: ["smooth"]), (from: "smooth", to: ["out"])]"#,
        r#"actors: {
            "sum": Expr("0.25 * x + 0.75 * s", inputs: { "x": f32, "s": f32 }),
            "smooth": Fir([0.25, 0.25, 0.25, 0.25]),
        },
        channels: [
            (from: "low", to: ["sum.x"]),
            (from: "sum", to: ["sum.s", "smooth"], initial: [0.0]),
            (from: "smooth", to: ["out"]),
        ]"#,
    ];
    let modes = NAMES.iter().zip(modes);
    let modes: Vec<String> = modes
        .map(|(name, text)| format!("{name:?}: Mode({text})"))
        .collect();
    format!(
        r#"Model(
    name: "receiver",
    sources: {{ "in": Stream(dtype: f32, sample_rate: {rate}) }},
    actors: {{ "low": Fir([0.125, 0.25, 0.25, 0.25, 0.125]) }},
    channels: [(from: "in", to: ["low"])],
    modes: {{ {} }},
    initial_mode: "direct",
    sinks: {{ "out": Stream() }},
)"#,
        modes.join(", ")
    )
}

fn compiled(rate: u64, devices: usize, losses: Losses) -> VerifiedModes {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(devices),
        block: Some(rate / 1_000),
        contingencies: losses,
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", &model(rate), "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    compiled.modes.expect("it has modes").verified
}

/// Goes to so many other modes, at random, 2 to 8 ms apart.
fn change_modes(handle: &ModeHandle, changes: usize) -> Vec<ModeEntry> {
    let mut rng = fastrand::Rng::with_seed(21);
    let mut entries = vec![handle.present()];
    while entries.len() <= changes {
        let name = NAMES[rng.usize(..NAMES.len())];
        if handle.present().mode != name {
            let change = handle.change(name).expect("all changes are allowed");
            entries.push(change.wait().expect("the run goes on"));
            std::thread::sleep(Duration::from_micros(rng.u64(2_000..8_000)));
        }
    }
    entries
}

/// When workers were killed and when their work went on, from a start.
#[derive(Default)]
struct Recoveries {
    killed: Vec<Duration>,
    recovered: Vec<Duration>,
}

impl Recoveries {
    /// Takes in what a supervisor tells.
    fn note(&mut self, event: &Event, start_ns: u64) {
        let at = Duration::from_nanos(event.at_ns.saturating_sub(start_ns));
        match event.what {
            What::Injected { .. } => self.killed.push(at),
            What::Recovered { .. } => self.recovered.push(at),
            _ => {}
        }
    }

    /// Whether some worker's work was at rest at a time between these.
    fn overlap(&self, from: Duration, until: Duration) -> bool {
        self.killed.iter().any(|killed| {
            let mut recovered = self.recovered.iter();
            let end = recovered.find(|recovered| *recovered >= killed);
            *killed <= until && end.is_none_or(|end| *end >= from)
        })
    }
}

/// Nanoseconds of the clock that events are told by.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Median, 99th percentile and maximum.
fn times_text(times: impl Iterator<Item = Duration>) -> String {
    let times_ms: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
    let [p50, p99, max] = quantiles(&times_ms, [0.5, 0.99, 1.0]);
    format!(
        "{:>5}: p50 {p50:.3}, p99 {p99:.3}, max {max:.3} ms",
        times_ms.len()
    )
}

/// Random changes while a source is fed by the clock; counts and times.
fn switches(rate: u64, changes: usize, kills: Option<&str>) {
    let (devices, losses) = match kills {
        None => (1, Losses::None),
        Some(_) => (2, Losses::Single),
    };
    let compiled = compiled(rate, devices, losses);
    let registry = zbmd_backends::standard_registry();
    let engine = Engine::with_modes(compiled.clone(), &registry).expect("an engine");
    let recoveries = Arc::new(Mutex::new(Recoveries::default()));
    let start = Instant::now();
    let start_ns = monotonic_ns();
    let mut options = RunOptions::default();
    if kills.is_some() {
        options = losses::options(Isolation::Processes { program: None });
        let mut supervised = losses::supervised(&engine, losses::HARDY, kills);
        let noted = Arc::clone(&recoveries);
        supervised.listener = Some(Arc::new(move |event| {
            let mut noted = noted.lock().expect("no panic");
            noted.note(event, start_ns);
        }));
        options.supervised = Some(supervised);
    }
    let mut session = engine.start(options).expect("a session");
    let mut source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    let handle = session.modes();

    let block = (rate / 1_000) as usize;
    let mut rng = fastrand::Rng::with_seed(rate);
    let mut given: Vec<f32> = Vec::new();
    let fed_since = start.elapsed();
    let due = |blocks: usize| fed_since + Duration::from_millis(blocks as u64);
    let (entries, taken, late) = std::thread::scope(|scope| {
        let changer = scope.spawn(|| change_modes(&handle, changes));
        let puller = scope.spawn(move || {
            let mut taken: Vec<f32> = Vec::new();
            let mut late = Vec::new();
            let mut samples = vec![0f32; block];
            loop {
                let pulled = sink.pull(&mut samples).expect("samples") as usize;
                taken.extend(&samples[..pulled]);
                if pulled < block {
                    return (taken, late);
                }
                late.push(start.elapsed().saturating_sub(due(late.len())));
            }
        });
        let mut blocks = 0;
        while !changer.is_finished() {
            let piece: Vec<f32> = (0..block).map(|_| rng.f32() - 0.5).collect();
            source.push(&piece).expect("it is taken");
            given.extend(piece);
            blocks += 1;
            std::thread::sleep(due(blocks).saturating_sub(start.elapsed()));
        }
        drop(source);
        let entries = changer.join().expect("no panic");
        let (taken, late) = puller.join().expect("no panic");
        (entries, taken, late)
    });
    let outcome = session.join().expect("a good end");

    let bytes = |samples: &[f32]| samples.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let inputs = BTreeMap::from([("in".to_owned(), bytes(&given))]);
    let (expected, _) = modes::interpreted(&compiled, &registry, &inputs, &entries);
    let wanted = expected["out"].chunks_exact(4);
    let differ = wanted.zip(&taken).filter(|(w, t)| **w != t.to_ne_bytes());
    let differ = differ.count() + given.len().abs_diff(taken.len());

    let is_first = |block_index: usize| {
        let first = (block_index * block) as u64;
        let place = entries.binary_search_by_key(&first, |entry| entry.iteration);
        place.is_ok_and(|place| place > 0)
    };
    let recoveries = recoveries.lock().expect("no panic");
    let is_held_up = |block: usize| recoveries.overlap(due(block), due(block) + late[block]);
    let times_of = |wanted: &dyn Fn(usize) -> bool| {
        let blocks = (0..late.len()).filter(|block| wanted(*block));
        times_text(blocks.map(|block| late[block]))
    };
    println!(
        "{}  {rate} S/s, {devices} devices: {} changes, {} losses, {} samples, {differ} lost, doubled or other",
        if kills.is_some() {
            "kills   "
        } else {
            "switches"
        },
        entries.len() - 1,
        outcome.report.recoveries,
        taken.len()
    );
    println!("  blocks out after they were in:");
    let is_change = |block| is_first(block) && !is_held_up(block);
    println!("    first of a mode    {}", times_of(&is_change));
    println!(
        "    in a recovery      {}",
        times_of(&|block| is_held_up(block))
    );
    let is_other = |block| !is_first(block) && !is_held_up(block);
    println!("    others             {}", times_of(&is_other));
}

/// The most memory that a run has in the arenas of all devices together, which is in each of the modes for a while.
fn memory_of_run(modes: &VerifiedModes) -> u64 {
    const TOKENS: usize = 480;
    let registry = zbmd_backends::standard_registry();
    let engine = Engine::with_modes(modes.clone(), &registry).expect("an engine");
    // Small, since the queues of streams are counted too.
    let options = RunOptions {
        queue_bytes: 4_096,
        ..RunOptions::default()
    };
    let mut session = engine.start(options).expect("a session");
    let mut source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    let handle = session.modes();
    std::thread::scope(|scope| {
        // The last blocks of a mode stay in its stages until the run leaves it: what there is, is pulled meanwhile.
        let puller = scope.spawn(move || {
            let mut samples = [0f32; TOKENS];
            let mut taken = 0;
            while let Ok(pulled @ 1..) = sink.pull(&mut samples) {
                taken += pulled;
            }
            taken
        });
        for name in modes.names() {
            let change = handle.change(name).expect("all changes are allowed");
            change.wait().expect("the run goes on");
            source.push(&[0f32; TOKENS]).expect("they are taken");
        }
        drop(source);
        let taken = puller.join().expect("no panic");
        assert_eq!(taken, (modes.names().len() * TOKENS) as u64);
    });
    let report = session.join().expect("a good end").report;
    let plans = report.plans.iter();
    plans.map(|plan| plan.arena_bytes).max().unwrap_or(0)
}

/// The largest arena of any device in any plan.
fn arena_bytes(program: &Program) -> u64 {
    let plans = program.plans.iter();
    let calendars = plans.flat_map(|plan| &plan.calendars);
    calendars
        .map(|calendar| calendar.arena_bytes)
        .max()
        .unwrap_or(0)
}

/// Four modes of 12 to 24 filters in a row, of lengths of their own, behind a common one.
fn long_chains() -> String {
    let mode = |(index, name): (usize, &&str)| {
        let filters = 12 + 4 * index;
        let taps = |filter: usize| vec!["0.01"; 33 + 16 * ((filter + index) % 5)].join(", ");
        let actors: Vec<String> = (0..filters)
            .map(|filter| format!(r#""f{filter}": Fir([{}])"#, taps(filter)))
            .collect();
        let channels: Vec<String> = (1..filters)
            .map(|filter| format!(r#"(from: "f{}", to: ["f{filter}"])"#, filter - 1))
            .collect();
        format!(
            r#"{name:?}: Mode(actors: {{ {} }}, channels: [(from: "low", to: ["f0"]), {}, (from: "f{}", to: ["out"])])"#,
            actors.join(", "),
            channels.join(", "),
            filters - 1
        )
    };
    let modes: Vec<String> = NAMES.iter().enumerate().map(mode).collect();
    format!(
        r#"Model(
    name: "chains",
    sources: {{ "in": Stream(dtype: f32, sample_rate: 48000) }},
    actors: {{ "low": Fir([0.125, 0.25, 0.25, 0.25, 0.125]) }},
    channels: [(from: "in", to: ["low"])],
    modes: {{ {} }},
    initial_mode: "direct",
    sinks: {{ "out": Stream() }},
)"#,
        modes.join(", ")
    )
}

fn bundle() {
    const TURNS: usize = 9;
    let options = |mode: Option<&str>| CompileOptions {
        machine: MachineChoice::Uniform(4),
        block: Some(48),
        contingencies: Losses::Single,
        mode: mode.map(str::to_owned),
        ..CompileOptions::default()
    };
    let text = long_chains();
    let time = |mode: Option<&str>| {
        let start = Instant::now();
        let compiled = compile_str("model.ron", &text, "", &options(mode));
        drop(compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}")));
        start.elapsed()
    };
    // In turns, so that what else the machine does meets all alike.
    let choices = NAMES.map(Some).into_iter().chain([None]);
    let choices: Vec<Option<&str>> = choices.collect();
    let mut times = vec![Vec::new(); choices.len()];
    for _ in 0..TURNS {
        for (choice, times) in choices.iter().zip(&mut times) {
            times.push(time(*choice));
        }
    }
    let medians = times.iter_mut().map(|times| {
        times.sort_unstable();
        times[TURNS / 2]
    });
    let mut each: Vec<Duration> = medians.collect();
    let all = each.pop().expect("all modes");
    let longest = each.iter().max().expect("four");
    println!(
        "bundle    four modes x every loss of one of 4 devices: {all:?} to compile, {:.2} of the longest mode's {longest:?}",
        all.as_secs_f64() / longest.as_secs_f64()
    );
    let compiled = |mode| {
        let compiled = compile_str("model.ron", &text, "", &options(mode));
        compiled.expect("it compiles").into_modes()
    };
    let alone = NAMES.map(|name| memory_of_run(&compiled(Some(name))));
    let largest = alone.iter().max().expect("four");
    let modes = compiled(None);
    let together = memory_of_run(&modes);
    println!(
        "  a run of all modes takes {together} bytes of arenas, {:.3} of the {largest} of the mode that takes most alone",
        together as f64 / *largest as f64
    );
    for (name, program) in modes.names().iter().zip(modes.programs()) {
        println!(
            "  {name:<7} {} plans, period {} ns, largest arena {} bytes",
            program.plans.len(),
            program.plans[PlanId(0)].period_ns,
            arena_bytes(program)
        );
    }
}
