//! Live parameters: `cargo bench -p zbmd-tests --bench live_parameters [-- paired|latency|cost]`.
//!
//! `paired`   10,000 changes of two parameters together at 2.4 MS/s, with 12 actors between their readers, on one device and
//!            on two: samples that have one of the two new values without the other
//! `latency`  from `set` to the first changed sample, at 48 kS/s in blocks of 1 ms
//! `cost`     the FM receiver with eight live parameters that nobody changes, by turns with the one without: CPU time
//!
//! Measured elsewhere, as GNU Radio 3.10's: a changed parameter takes 114 ms to the first changed sample at 48 kS/s (p50), and
//! of paired changes at 2.4 MS/s 9 to 13 % leave 3 to 4 ms of wrong samples.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_executor::{Engine, RunOptions, SetError, When};
use zbmd_tests::cpu_time;
use zbmd_tests::figures::quantiles;
use zbmd_tests::run::graph_file;

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    if is_wanted("paired") {
        for devices in [1, 2] {
            paired(devices);
        }
    }
    if is_wanted("latency") {
        latency();
    }
    if is_wanted("cost") {
        cost();
    }
}

fn engine(text: &str, devices: usize, block: Option<u64>) -> Engine {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(devices),
        block,
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", text, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    Engine::new(compiled.program, &options.registry).expect("an engine")
}

/// A chain whose first and last actor have a live parameter each; powers of two lose nothing. The last one is on the last
/// device.
fn chain(between: usize, devices: usize) -> String {
    let inner: Vec<String> = (0..between)
        .map(|index| {
            let factor = if index % 2 == 0 { 2.0 } else { 0.5 };
            format!("\"m{index}\": Gain({factor:?})")
        })
        .collect();
    let mut names = vec!["in".to_owned(), "first".to_owned()];
    names.extend((0..between).map(|index| format!("m{index}")));
    names.extend(["last".to_owned(), "out".to_owned()]);
    let channels: Vec<String> = names
        .windows(2)
        .map(|pair| format!("(from: {:?}, to: [{:?}])", pair[0], pair[1]))
        .collect();
    format!(
        r#"Model(
    name: "chain",
    params: {{ "a": Live(1.0, min: 0.0, max: 1024.0), "b": Live(1.0, min: 0.0, max: 1024.0) }},
    sources: {{ "in": Stream(dtype: f32, sample_rate: 48000) }},
    actors: {{ "first": Gain($a), {}, "last": Gain($b) }},
    channels: [{}],
    pins: {{ "first": "cpu:0", "last": "cpu:{}" }},
    sinks: {{ "out": Stream() }},
)"#,
        inner.join(", "),
        channels.join(", "),
        devices - 1
    )
}

/// Feeds ones at a rate, a piece each millisecond, until `is_over`; the tokens given.
fn feed(
    mut source: zbmd_executor::SourceHandle,
    piece: usize,
    given: &AtomicU64,
    is_over: &AtomicBool,
) {
    let ones = vec![1.0f32; piece];
    let start = Instant::now();
    for number in 1.. {
        if is_over.load(Ordering::Relaxed) || source.push(&ones).is_err() {
            return;
        }
        given.fetch_add(piece as u64, Ordering::Relaxed);
        let due = Duration::from_millis(number);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
}

fn paired(devices: usize) {
    const CHANGES: u32 = 10_000;
    const PIECE: usize = 2400;
    let engine = engine(&chain(12, devices), devices, Some(1200));
    let mut session = engine.start(RunOptions::default()).expect("a session");
    let source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    let parameters = session.parameters();
    let (given, is_over) = (AtomicU64::new(0), AtomicBool::new(false));

    let (refused, wrong, tokens) = std::thread::scope(|scope| {
        scope.spawn(|| feed(source, PIECE, &given, &is_over));
        let puller = scope.spawn(move || {
            let mut samples = vec![0.0f32; PIECE];
            let (mut wrong, mut tokens) = (0u64, 0u64);
            loop {
                let pulled = sink.pull(&mut samples).expect("samples") as usize;
                wrong += samples[..pulled].iter().filter(|y| **y != 1.0).count() as u64;
                tokens += pulled as u64;
                if pulled < samples.len() {
                    return (wrong, tokens);
                }
            }
        });
        let mut refused = 0u64;
        for number in 0..CHANGES {
            let power = f64::from(number % 9 + 1).exp2();
            let (a, b) = ([power], [1.0 / power]);
            while let Err(error) = parameters.set(&[("a", &a), ("b", &b)], When::NextBlock) {
                assert_eq!(error, SetError::Full, "only changes that come too fast");
                refused += 1;
                std::thread::sleep(Duration::from_micros(100));
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        is_over.store(true, Ordering::Relaxed);
        let (wrong, tokens) = puller.join().expect("no panic");
        (refused, wrong, tokens)
    });
    session.join().expect("a good end");
    println!(
        "paired   {devices} devices, 2.4 MS/s: {CHANGES} changes in {tokens} samples, {wrong} samples wrong; told to wait {refused} times"
    );
}

fn latency() {
    const CHANGES: usize = 2000;
    const PIECE: usize = 48;
    let engine = engine(&chain(2, 1), 1, Some(PIECE as u64));
    let mut session = engine.start(RunOptions::default()).expect("a session");
    let source = session.source("in").expect("a source");
    let mut sink = session.sink("out").expect("a sink");
    let parameters = session.parameters();
    let (given, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (changed, seen) = std::sync::mpsc::channel();

    let latencies_ms: Vec<f64> = std::thread::scope(|scope| {
        scope.spawn(|| feed(source, PIECE, &given, &is_over));
        scope.spawn(move || {
            let mut samples = [0.0f32; PIECE];
            let mut last = 1.0;
            while sink.pull(&mut samples).expect("samples") as usize == PIECE {
                let newest = samples[PIECE - 1];
                if newest != last {
                    // Nobody listens any more at the end.
                    let _ = changed.send((newest, Instant::now()));
                    last = newest;
                }
            }
        });
        let mut rng = fastrand::Rng::with_seed(1);
        let latencies = (0..CHANGES).map(|number| {
            std::thread::sleep(Duration::from_micros(rng.u64(1000..6000)));
            let value = (number % 2 + 2) as f64;
            let set_at = Instant::now();
            let set = parameters.set(&[("a", &[value])], When::NextBlock);
            set.expect("it waits for the one before");
            let (found, seen_at) = seen.recv().expect("it comes out");
            assert_eq!(f64::from(found), value);
            (seen_at - set_at).as_secs_f64() * 1e3
        });
        let latencies = latencies.collect();
        is_over.store(true, Ordering::Relaxed);
        latencies
    });
    session.join().expect("a good end");
    let [p50, p99, max] = quantiles(&latencies_ms, [0.5, 0.99, 1.0]);
    println!(
        "latency  48 kS/s, blocks of 1 ms: p50 {p50:.3}, p99 {p99:.3}, max {max:.3} ms from `set` to the first changed sample"
    );
}

/// The receiver with eight numbers of its parameters live.
fn live_receiver(model: &str) -> String {
    let replacements = [
        ("\"cutoff\": 120000", "\"cutoff\": $channel_cutoff"),
        ("\"kaiser\": 7.9", "\"kaiser\": $channel_kaiser"),
        ("gain: 0.5092958178940651", "gain: $deviation"),
        (
            "taps: [-0.041666667, 1.083333333, -0.041666667]",
            "taps: $flatten_taps",
        ),
        ("\"cutoff\": 19500", "\"cutoff\": $audio_cutoff"),
        ("\"kaiser\": 8.9", "\"kaiser\": $audio_kaiser"),
        ("tau: 50e-6", "tau: $tau"),
        ("\"taps\": 161,", "\"taps\": 161, \"gain\": $audio_gain,"),
        (
            "    sources:",
            r#"    params: {
        "channel_cutoff": Live(120000.0, min: 60000.0, max: 120000.0),
        "channel_kaiser": Live(7.9, min: 4.0, max: 12.0),
        "deviation": Live(0.5092958178940651, min: 0.1, max: 2.0),
        "flatten_taps": Live([-0.041666667, 1.083333333, -0.041666667], min: -2.0, max: 2.0),
        "audio_cutoff": Live(19500.0, min: 10000.0, max: 20000.0),
        "audio_kaiser": Live(8.9, min: 4.0, max: 12.0),
        "tau": Live(50e-6, min: 20e-6, max: 100e-6),
        "audio_gain": Live(1.0, min: 0.0, max: 4.0),
    },
    sources:"#,
        ),
    ];
    replacements
        .iter()
        .fold(model.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from} is in the model");
            text.replacen(from, to, 1)
        })
}

fn cost() {
    const TURNS: usize = 21;
    const TOKENS: usize = 24_000_000;
    let plain = std::fs::read_to_string(graph_file("fm/model.ron")).expect("the model");
    let live = live_receiver(&plain);
    let engines = [&plain, &live].map(|text| engine(text, 1, None));
    let input = vec![127u8; 2 * TOKENS];

    let mut ratios: Vec<f64> = (0..TURNS)
        .map(|_| {
            let [plain, live] = [0, 1].map(|index| {
                let before = cpu_time::of_process();
                let session = engines[index].start(RunOptions::default());
                let inputs = [("iq".to_owned(), input.clone())].into();
                let sinks = vec!["audio".to_owned()];
                zbmd_tests::run::drive(session.expect("a session"), &inputs, sinks);
                (cpu_time::of_process() - before).as_secs_f64()
            });
            live / plain
        })
        .collect();
    ratios.sort_unstable_by(f64::total_cmp);
    println!(
        "cost     the FM receiver with 8 live parameters: {:.3} of the CPU time without ({:.3} to {:.3} in {TURNS} turns)",
        ratios[TURNS / 2],
        ratios[0],
        ratios[TURNS - 1]
    );
}
