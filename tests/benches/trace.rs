//! What recording a run costs, and what watching it costs. Not criterion: pairs of short runs in turns.
//!
//! ```text
//! cargo bench -p zbmd-tests --bench trace                 20 rounds of each model
//! cargo bench -p zbmd-tests --bench trace -- 60 fm 1.0    60 rounds of one, in runs of a second
//! ```
//!
//! Each column is the time with it against the time without, the median over the rounds, then the fastest against the
//! fastest; a second line has the same of the processor's time of all threads, which neighbours disturb less. `again`
//! is the plain run once more: what the ratio of equal runs looks like on this machine, now. In `watched`, the run
//! keeps its page, and somebody reads it five times as often as `zbmd-run top` does.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zbmd_compiler::Losses;
use zbmd_executor::live::{Page, running};
use zbmd_executor::{Engine, Report, RunOptions, Stopper};
use zbmd_tests::actors::registry;
use zbmd_tests::losses::{Feed, engine_on, live, live_with};

/// The last one needs `ZBMD_DATA`.
const MODELS: [&str; 4] = [
    "cd2dat/model.ron",
    "fm/model.ron",
    "adsb/model.ron",
    "vad/model.ron",
];
const WAYS: [&str; 5] = ["again", "traced", "profiled", "both", "watched"];
/// Length of one run, unless told otherwise.
const SECONDS: f64 = 0.25;

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let rounds: u64 = args
        .first()
        .and_then(|text| text.parse().ok())
        .unwrap_or(20);
    let only = args.get(1).map_or("", String::as_str);
    let seconds: f64 = args
        .get(2)
        .and_then(|text| text.parse().ok())
        .unwrap_or(SECONDS);
    println!(
        "time against a run that nobody records or watches, {rounds} rounds: median (fastest)"
    );
    print!("{:<18} {:>10}", "", "slot");
    WAYS.iter().for_each(|way| print!(" {way:>15}"));
    println!("  dropped periods");
    for model in MODELS.into_iter().filter(|m| m.contains(only)) {
        if model.starts_with("vad") && zbmd_tests::data::file("models/silero_vad.onnx").is_none() {
            println!("{model:<17} SKIPPED: set ZBMD_DATA");
            continue;
        }
        for devices in [1, 2] {
            compare(model, devices, rounds, seconds);
        }
    }
}

fn compare(model: &str, devices: usize, rounds: u64, seconds: f64) {
    let engine = engine_on(devices, model, &registry(), Losses::None);
    let folder = tempfile::tempdir().expect("a folder");
    let iterations = (pace(&engine) * seconds) as u64 + 1;
    let mut dropped = 0;
    let mut plains = Vec::new();
    let mut times: [Vec<[f64; 2]>; 5] = Default::default();
    for round in 0..rounds as usize {
        // Each way is the first as often as the others.
        let ways = 0..=WAYS.len();
        for at in ways.map(|at| (at + round) % (WAYS.len() + 1)) {
            let way = WAYS.get(at).copied().unwrap_or("again");
            let before_ns = processor_ns();
            let report = run(&engine, iterations, way, folder.path());
            let cpu_ns = processor_ns() - before_ns;
            dropped += report.trace.as_ref().map_or(0, |t| t.dropped_periods);
            let both = [report.elapsed_ns as f64, cpu_ns];
            times.get_mut(at).unwrap_or(&mut plains).push(both);
        }
    }
    for (which, unit) in ["", "processor"].into_iter().enumerate() {
        match which {
            0 => print!("{model:<17}{devices} {:>7.2} us", slot_us(&engine)),
            _ => print!("{unit:>29}"),
        }
        let of = |all: &[[f64; 2]]| all.iter().map(|t| t[which]).collect::<Vec<f64>>();
        let fastest = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
        let plains = of(&plains);
        for times in times.iter().map(|all| of(all)) {
            let mut ratios: Vec<f64> = times.iter().zip(&plains).map(|(t, p)| t / p).collect();
            ratios.sort_by(f64::total_cmp);
            let median = ratios[ratios.len() / 2];
            print!(
                " {:>15}",
                format!("{median:.3} ({:.3})", fastest(&times) / fastest(&plains))
            );
        }
        println!(
            "  {}",
            if which == 0 {
                dropped.to_string()
            } else {
                String::new()
            }
        );
    }
}

/// What all threads of this process have used of the processor.
fn processor_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Planned duration of a slot of the first device, in the mean.
fn slot_us(engine: &Engine) -> f64 {
    let plan = &engine.program().plans[zbmd_ir::PlanId(0)];
    let entries = || plan.calendars[0].lanes.iter().map(|l| &l.entries);
    let slots: u64 = entries().map(|e| zbmd_ir::trace::executions(e)).sum();
    plan.period_ns as f64 / slots.max(1) as f64 / 1e3
}

/// Iterations a second.
fn pace(engine: &Engine) -> f64 {
    let mut iterations = 100;
    loop {
        let report = run(engine, iterations, "again", Path::new(""));
        let seconds = report.elapsed_ns as f64 / 1e9;
        if seconds > 0.05 {
            return report.iterations as f64 / seconds;
        }
        iterations *= 4;
    }
}

fn run(engine: &Engine, iterations: u64, way: &str, folder: &Path) -> Report {
    let options = RunOptions {
        sample_every: 0,
        trace: ["traced", "both"]
            .contains(&way)
            .then(|| folder.join("run.trace")),
        profile: ["profiled", "both"].contains(&way),
        ..RunOptions::default()
    };
    let feed = Feed {
        seed: 1,
        iterations,
        per_s: None,
    };
    let told = match way {
        "watched" => live_with(engine, feed, options, watch),
        _ => live(engine, feed, options),
    };
    told.outcome.expect("well").report
}

/// Keeps the page as `zbmd-run` does, and reads it.
fn watch(stopper: &Stopper, is_over: &AtomicBool) {
    let mut page = Page::create().expect("a page");
    for look in 0u64.. {
        if look.is_multiple_of(2) {
            page.write(stopper.progress()).expect("a page");
        }
        assert!(running().iter().any(|live| live.pid == std::process::id()));
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
