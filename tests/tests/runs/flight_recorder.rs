//! The flight recorder beside live parameters and modes: a run of a live source with gaps that is recorded, set from outside
//! again and again, goes over to other modes, and whose workers are killed meanwhile is replayed bit for bit, on one device
//! and on two; also where the run was killed itself.
//!
//! `ZBMD_RECORDED_SECONDS=600` makes the run of one mode and that of several as long, with as many changes and at least as
//! many kills over all of it; it prints how much faster than live they are replayed.

use std::net::UdpSocket;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;
use zbmd_compiler::{CompileOptions, Compiled, MachineChoice, compile_str};
use zbmd_run::flight::Recording;
use zbmd_tests::child_run::{self, ChildRun, command};
use zbmd_tests::free_port::free_port;
use zbmd_tests::harness::{self, Test};
use zbmd_tests::losses::HARDY;

pub(super) const TESTS: &[Test] = &[(
    "runs_are_replayed_bit_for_bit",
    runs_are_replayed_bit_for_bit,
)];

const PARAMS: &str = r#"{
        "level": Live(1.0, min: 0.0, max: 8.0),
        "taps": Live([0.5, 0.25, 0.125], min: -1.0, max: 1.0),
        "decay": Live(0.5, min: 0.0, max: 0.99),
        "offset": Live(0.0, min: -1.0, max: 1.0),
    }"#;
/// A filter with history, a state that remembers all that was, and parameters on both sides of the border between the
/// devices: a change that comes a token late is in everything that follows.
const MODEL: &str = r#"Model(
    name: "recorded",
    params: PARAMS,
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: {
        "level": Gain($level),
        "filter": Fir($taps),
        "memory": Expr("x + d * s", inputs: { "x": f32, "s": f32 }, params: { "d": $decay }),
        "offset": Expr("x + o", inputs: { "x": f32 }, params: { "o": $offset }),
    },
    channels: [
        (from: "in", to: ["level"]),
        (from: "level", to: ["filter"]),
        (from: "filter", to: ["memory.x", "filtered"]),
        (from: "memory", to: ["memory.s", "offset"], initial: [0.0]),
        (from: "offset", to: ["out"]),
    ],
    sinks: { "out": Stream(), "filtered": Stream() },
    pins: PINS,
)"#;
/// The same with modes: one that does not have a parameter, and one whose iterations take two tokens of the source. Both
/// sinks have a token an iteration in all of them.
const MODES: &str = r#"Model(
    name: "recorded",
    params: PARAMS,
    sources: { "in": Stream(dtype: f32, sample_rate: 48000) },
    actors: {
        "level": Gain($level),
        "filter": Fir($taps),
        "memory": Expr("x + d * s", inputs: { "x": f32, "s": f32 }, params: { "d": $decay }),
    },
    channels: [(from: "in", to: ["level"]), (from: "level", to: ["filter"])],
    modes: {
        "shifted": Mode(
            actors: { "offset": Expr("x + o", inputs: { "x": f32 }, params: { "o": $offset }) },
            channels: [
                (from: "filter", to: ["memory.x", "filtered"]),
                (from: "memory", to: ["memory.s", "offset"], initial: [0.0]),
                (from: "offset", to: ["out"]),
            ],
        ),
        "bare": Mode(channels: [
            (from: "filter", to: ["memory.x", "filtered"]),
            (from: "memory", to: ["memory.s", "out"], initial: [0.0]),
        ]),
        "pairs": Mode(
            actors: {
                "thin": Fir([1.0], decimate: 2),
                "half": Fir([0.5, 0.5], decimate: 2),
                "offset": Expr("x - o", inputs: { "x": f32 }, params: { "o": $offset }),
            },
            channels: [
                (from: "filter", to: ["memory.x", "thin"]),
                (from: "thin", to: ["filtered"]),
                (from: "memory", to: ["memory.s", "half"], initial: [0.0]),
                (from: "half", to: ["offset"]),
                (from: "offset", to: ["out"]),
            ],
        ),
    },
    sinks: { "out": Stream(), "filtered": Stream() },
    pins: PINS,
)"#;
const MODE_NAMES: [&str; 3] = ["shifted", "bare", "pairs"];
const MODES_ON_TWO: &str = r#"{ "level": "cpu:0", "filter": "cpu:0", "memory": "cpu:1" }"#;
const SINKS: [&str; 2] = ["out", "filtered"];
const TWO_DEVICES: &str =
    r#"{ "level": "cpu:0", "filter": "cpu:0", "memory": "cpu:1", "offset": "cpu:1" }"#;
const RATE: usize = 48_000;
/// What is asked for of a run that ends in good order.
const CHANGES: usize = 200;
const KILLS: u64 = 20;
const SWITCHES: usize = 24;
/// Iterations of the run that changes its mode: in some of them an iteration takes two tokens.
const MODE_ITERATIONS: usize = 12 * RATE;
/// How long that run takes at least: kills are some 250 ms apart, and changes 45 ms. In a longer one they are further
/// apart.
const MIN_SECONDS: usize = 16;
const CHANGE_EVERY: Duration = Duration::from_millis(45);
const KILLED_SECONDS: usize = 60;
const FAULTS: &str = r#"Inject(kinds: [kill], every: ("MIN_MSms", "MAX_MSms"),
        wait_for_border_after: 3, seed: SEED)"#;
/// Tokens of a datagram: 5 ms.
const PACKET_TOKENS: usize = 240;

/// A model with its parameters, and its actors on these devices.
fn model(text: &str, pins: &str) -> String {
    text.replace("PARAMS", PARAMS).replace("PINS", pins)
}

fn whole_seconds() -> usize {
    let asked = std::env::var("ZBMD_RECORDED_SECONDS").ok();
    let asked = asked.map(|text| text.parse().expect("ZBMD_RECORDED_SECONDS is seconds"));
    asked.unwrap_or(MIN_SECONDS).max(MIN_SECONDS)
}

/// A run that is recorded.
#[derive(Clone, Copy)]
struct Recorded<'a> {
    bundle: &'a str,
    name: &'a str,
    input: &'a str,
    /// How many times further apart kills and changes are.
    stretch: usize,
    seed: u64,
    options: &'a [&'a str],
}

fn runs_are_replayed_bit_for_bit() {
    harness::take_any_time();
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut rng = fastrand::Rng::with_seed(21);
    let noise = (0..RATE * KILLED_SECONDS).map(|_| rng.f32() - 0.5);
    let bytes: Vec<u8> = noise.flat_map(f32::to_le_bytes).collect();
    std::fs::write(folder.join("long.f32"), &bytes).expect("written");
    std::fs::write(folder.join("hardy.ron"), HARDY).expect("written");
    for (name, pins, devices) in [("two", TWO_DEVICES, 2), ("one", "{}", 1)] {
        let text = model(MODEL, pins);
        let path = folder.join(format!("{name}.zbmd"));
        compiled(&text, devices).write(&path).expect("written");
    }
    for (name, pins, devices) in [("modes-two", MODES_ON_TWO, 2), ("modes-one", "{}", 1)] {
        let text = model(MODES, pins);
        let path = folder.join(format!("{name}.zbmd"));
        compiled(&text, devices).write(&path).expect("written");
    }

    a_whole_run_is_replayed_whole(folder, &mut rng);
    a_changed_model_differs_where_its_replay_does(folder);
    an_export_has_every_change(folder);
    for seed in 0..3 {
        a_killed_run_is_replayed_as_far_as_it_was_recorded(folder, seed, &mut rng);
    }
    a_run_of_several_modes_is_replayed_through_the_same_modes(folder, &mut rng);
    for seed in 0..2 {
        a_killed_run_of_several_modes_is_replayed(folder, seed, &mut rng);
    }
}

fn a_run_of_several_modes_is_replayed_through_the_same_modes(
    folder: &Path,
    rng: &mut fastrand::Rng,
) {
    let seconds = whole_seconds();
    let stretch = seconds / MIN_SECONDS;
    let iterations = MODE_ITERATIONS * stretch;
    let port = free_port();
    let sender = LossySender::start(port, rng.fork());
    let mut run = Recorded {
        bundle: "modes-two",
        name: "modes",
        input: &format!("in=udp://127.0.0.1:{port}?header=seq&rate={RATE}"),
        stretch,
        seed: 5,
        options: &["-n", &iterations.to_string()],
    }
    .start(folder);
    let begun = Instant::now();
    let amount = Amount {
        switches: SWITCHES,
        sets: CHANGES / SWITCHES,
        stretch,
    };
    let entries = change_modes_at_random(&mut run, amount, rng);
    let report = run.end_within(Duration::from_secs(180 + 2 * seconds as u64));
    let live_for = begun.elapsed();
    sender.stop();

    let recoveries = report["recoveries"].as_u64().expect("a number");
    assert!(recoveries >= KILLS, "{recoveries} kills only: {report}");
    let expect = written(folder, "modes");
    let lengths = expect.iter().map(Vec::len);
    assert!(lengths.eq([4 * iterations; SINKS.len()]));
    let recording = Recording::open(&folder.join("modes.box")).expect("a recording");
    let recorded: Vec<(String, u64)> = recording
        .mode_changes()
        .map(|change| {
            let mode = &recording.head.modes[change.mode as usize];
            (mode.name.clone(), change.iteration)
        })
        .collect();
    assert_eq!(recorded, entries, "what the commands said");
    for name in MODE_NAMES {
        let times = entries.iter().filter(|(mode, _)| mode == name).count();
        assert!(times >= 3, "{times} times {name} only");
    }
    let changes = recording.changes().count();
    assert!(changes >= CHANGES / 2, "{changes} changes only");
    let gaps = recording.gaps[0].len();
    assert!(gaps >= 10, "{gaps} gaps only");

    println!(
        "{} switches of modes, {changes} changes, {gaps} gaps, {recoveries} kills: {live_for:.2?} live",
        entries.len()
    );
    for bundle in ["modes-two", "modes-one"] {
        let begun = Instant::now();
        let again = replayed(folder, "modes", bundle, &[]);
        let replayed_for = begun.elapsed();
        let hashes = again.iter().map(|bytes| format!("{:016x}", xxh3_64(bytes)));
        println!(
            "{bundle}: {replayed_for:.2?} again, {:.1} times as fast; hashes of {SINKS:?}: {}",
            live_for.as_secs_f64() / replayed_for.as_secs_f64(),
            hashes.collect::<Vec<_>>().join(" "),
        );
        assert!(again == expect, "other bits on {bundle}");
    }
    // From the middle, from the very iteration of a change, and through other losses.
    let at_change = entries[entries.len() / 2].1 as usize;
    for from in [iterations / 3, at_change, at_change + 7] {
        let from_text = from.to_string();
        for extra in [&[][..], &["--inject", "7", "--supervise=hardy.ron"]] {
            let options = [&["--from", &from_text], extra].concat();
            let again = replayed(folder, "modes", "modes-two", &options);
            let rest = expect.iter().map(|bytes| &bytes[4 * from..]);
            assert!(rest.eq(again), "other bits from iteration {from} on");
        }
    }

    let output = child_run::output_in(
        folder,
        &["replay", "modes.box", "--against", "modes-one.zbmd"],
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let told = String::from_utf8_lossy(&output.stdout);
    let equal_sinks = told
        .lines()
        .filter(|line| line.contains("no difference in"));
    assert_eq!(equal_sinks.count(), SINKS.len(), "{told}");
    let output = child_run::output_in(folder, &["replay", "modes.box", "--bundle", "two.zbmd"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(
        said.contains("its modes are ``, in the recording `shifted`, `bare`, `pairs`"),
        "{said}"
    );
}

fn a_killed_run_of_several_modes_is_replayed(folder: &Path, seed: u64, rng: &mut fastrand::Rng) {
    let name = format!("modes{seed}");
    let mut run = Recorded {
        bundle: "modes-two",
        name: &name,
        input: &format!("in=paced:long.f32?rate={RATE}"),
        stretch: 1,
        seed: 11 + seed,
        options: &[],
    }
    .start(folder);
    let amount = Amount {
        switches: 8 + rng.usize(..8),
        sets: 3,
        stretch: 1,
    };
    let entries = change_modes_at_random(&mut run, amount, rng);
    run.kill();

    let expect = written(folder, &name);
    let recording = Recording::open(&folder.join(format!("{name}.box"))).expect("a recording");
    let switches = recording.mode_changes().count();
    assert!(switches + 1 >= entries.len(), "{switches} of {entries:?}");
    for bundle in ["modes-two", "modes-one"] {
        let again = replayed(folder, &name, bundle, &[]);
        for (again, expect) in again.iter().zip(&expect) {
            let both = again.len().min(expect.len());
            assert!(again[..both] == expect[..both], "other bits on {bundle}");
            assert!(
                both > 2 * RATE && both >= expect.len() / 2,
                "{both} bytes only"
            );
        }
    }
}

/// How much is changed in a run of several modes.
#[derive(Clone, Copy)]
struct Amount {
    switches: usize,
    /// Changes of live parameters before each of them.
    sets: usize,
    /// How many times further apart they are.
    stretch: usize,
}

/// Changes the mode and parameters. What the commands said of modes.
fn change_modes_at_random(
    run: &mut ChildRun,
    amount: Amount,
    rng: &mut fastrand::Rng,
) -> Vec<(String, u64)> {
    let pid = run.pid().to_string();
    let mut entries: Vec<(String, u64)> = Vec::new();
    for _ in 0..amount.switches {
        for _ in 0..amount.sets {
            let mut words = vec![pid.clone()];
            words.extend(random_values(rng));
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let output = set(&words);
            // One of the modes does not have all parameters.
            let is_known = matches!(output.status.code(), Some(0 | 2));
            assert!(
                is_known,
                "{words:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            let spacing = CHANGE_EVERY.mul_f64(amount.stretch as f64);
            std::thread::sleep(spacing.mul_f64(rng.f64()));
        }
        let present = entries
            .last()
            .map_or(MODE_NAMES[0], |(name, _)| name.as_str());
        let others: Vec<&str> = MODE_NAMES
            .into_iter()
            .filter(|name| *name != present)
            .collect();
        let next = others[rng.usize(..others.len())];
        let said = change_mode(&pid, next);
        let iteration = said.split_whitespace().nth(3).and_then(|n| n.parse().ok());
        entries.push((next.to_owned(), iteration.expect("an iteration")));
    }
    entries
}

/// What `zbmd-run mode` says. A worker may just be lost, without whose device the mode has no plan, and comes back.
fn change_mode(pid: &str, mode: &str) -> String {
    const LIMIT: Duration = Duration::from_secs(20);
    let begun = Instant::now();
    loop {
        let output = child_run::output(&["mode", pid, mode]);
        if output.status.success() {
            return String::from_utf8_lossy(&output.stdout).into_owned();
        }
        let problem = String::from_utf8_lossy(&output.stderr);
        let may_come = problem.contains("has no plan without") && begun.elapsed() < LIMIT;
        assert!(may_come, "{mode}: {problem}");
        std::thread::sleep(CHANGE_EVERY);
    }
}

fn a_whole_run_is_replayed_whole(folder: &Path, rng: &mut fastrand::Rng) {
    let seconds = whole_seconds();
    let stretch = seconds / MIN_SECONDS;
    let port = free_port();
    let sender = LossySender::start(port, rng.fork());
    let mut run = Recorded {
        bundle: "two",
        name: "whole",
        input: &format!("in=udp://127.0.0.1:{port}?header=seq&rate={RATE}"),
        stretch,
        seed: 1,
        options: &["-n", &(RATE * seconds).to_string()],
    }
    .start(folder);
    let begun = Instant::now();
    set_at_random(&mut run, CHANGES, stretch, rng);
    let set_for = begun.elapsed();
    let report = run.end_within(Duration::from_secs(120 + 2 * seconds as u64));
    let live_for = begun.elapsed();
    sender.stop();

    let recoveries = report["recoveries"].as_u64().expect("a number");
    assert!(recoveries >= KILLS, "{recoveries} kills only: {report}");
    let expect = written(folder, "whole");
    let lengths = expect.iter().map(Vec::len);
    assert!(lengths.eq([4 * RATE * seconds; SINKS.len()]));
    let recording = Recording::open(&folder.join("whole.box")).expect("a recording");
    let changes = recording.changes().count();
    assert!(changes >= CHANGES, "{changes} changes only");
    let gaps = recording.gaps[0].len();
    assert!(gaps >= seconds, "{gaps} gaps only");
    let whole = recording.stretch(None).expect("a state");
    assert!(whole.begin == 0 && whole.is_whole, "{whole:?}");

    println!(
        "{seconds} s of stream time, {gaps} gaps, {changes} changes (set within {set_for:.2?}), {recoveries} kills: \
             {live_for:.2?} live"
    );
    for devices in ["two", "one"] {
        let begun = Instant::now();
        let again = replayed(folder, "whole", devices, &[]);
        let replayed_for = begun.elapsed();
        let hashes = again.iter().map(|bytes| format!("{:016x}", xxh3_64(bytes)));
        println!(
            "{devices}: {replayed_for:.2?} again, {:.1} times as fast; hashes of {SINKS:?}: {}",
            live_for.as_secs_f64() / replayed_for.as_secs_f64(),
            hashes.collect::<Vec<_>>().join(" "),
        );
        assert!(again == expect, "other bits on {devices}");
    }
    // From the middle, and through other losses.
    let from = whole.end / 2;
    let from_byte = from as usize * expect[0].len() / whole.end as usize;
    for extra in [&[][..], &["--inject", "7", "--supervise=hardy.ron"]] {
        let from_text = from.to_string();
        let options = [&["--from", &from_text], extra].concat();
        let again = replayed(folder, "whole", "two", &options);
        let rest = expect.iter().map(|bytes| &bytes[from_byte..]);
        assert!(rest.eq(again), "other bits from iteration {from} on");
    }
}

/// Until the offset is first set, it does not matter whether it is added.
fn a_changed_model_differs_where_its_replay_does(folder: &Path) {
    let text = model(MODEL, "{}").replace("x + o", "x - o");
    let path = folder.join("changed.zbmd");
    compiled(&text, 1).write(&path).expect("written");
    let [expect, _] = written(folder, "whole");
    let [changed, _] = replayed(folder, "whole", "changed", &[]);
    let mut pairs = expect.chunks_exact(4).zip(changed.chunks_exact(4));
    let first = pairs.position(|(a, b)| a != b).expect("a difference");
    assert!(first > 0, "the offset is not zero at first");

    let output = child_run::output_in(
        folder,
        &["replay", "whole.box", "--against", "changed.zbmd"],
    );
    let told = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}{said}");
    // What the actor writes is what `out` is given, token for token.
    for part in [
        format!("sink `out`: first difference at token {first} ("),
        format!("actor `offset`, port `y`: first difference at token {first} ("),
    ] {
        assert!(told.contains(&part), "{part} is not in {told}{said}");
    }
}

fn an_export_has_every_change(folder: &Path) {
    let output = child_run::output_in(
        folder,
        &["replay", "whole.box", "--export", "mcap:whole.mcap"],
    );
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("is built without MCAP") {
        eprintln!("SKIPPED: MCAP files, for want of --features mcap");
        return;
    }
    assert!(output.status.success(), "{said}");
    // A file that is not compressed has its JSON as it is.
    let file = std::fs::read(folder.join("whole.mcap")).expect("written");
    let text = String::from_utf8_lossy(&file);
    let recording = Recording::open(&folder.join("whole.box")).expect("a recording");
    let mut changes = 0;
    for (number, change) in recording.changes() {
        assert!(text.contains(&format!("\"number\":{number},")), "{number}");
        changes += change.values.len();
    }
    let names = ["level", "taps", "decay", "offset"];
    let found = names.map(|name| text.matches(&format!("\"{name}\":[")).count());
    assert_eq!(found.iter().sum::<usize>(), changes, "{found:?}");
}

fn a_killed_run_is_replayed_as_far_as_it_was_recorded(
    folder: &Path,
    seed: u64,
    rng: &mut fastrand::Rng,
) {
    let name = format!("long{seed}");
    let begun = Instant::now();
    let mut run = Recorded {
        bundle: "two",
        name: &name,
        input: &format!("in=paced:long.f32?rate={RATE}"),
        stretch: 1,
        seed,
        options: &[],
    }
    .start(folder);
    set_at_random(&mut run, 40 + rng.usize(..20), 1, rng);
    run.kill();
    let live_for = begun.elapsed();

    let [expect, filtered] = written(folder, &name);
    let recording = Recording::open(&folder.join(format!("{name}.box"))).expect("a recording");
    let changes = recording.changes().count();
    // Each was confirmed before the next, and there were milliseconds between: few can be missing.
    assert!(changes >= 20, "{changes} changes are recorded only");
    for devices in ["two", "one"] {
        let begun = Instant::now();
        let [again, again_filtered] = replayed(folder, &name, devices, &[]);
        let replayed_for = begun.elapsed();
        let both = again_filtered.len().min(filtered.len());
        assert!(again_filtered[..both] == filtered[..both], "{devices}");
        let both = again.len().min(expect.len());
        let ahead =
            expect.len() as f64 / 4.0 / RATE as f64 - again.len() as f64 / 4.0 / RATE as f64;
        println!(
            "killed after {live_for:.2?} and {changes} changes: {replayed_for:.2?} again, {:.1} times as fast, \
                 {both} bytes are the same, the run was {:.1} ms ahead: {devices}",
            live_for.as_secs_f64() / replayed_for.as_secs_f64(),
            1e3 * ahead,
        );
        assert!(again[..both] == expect[..both], "other bits on {devices}");
        assert!(
            both > 4 * RATE && both >= expect.len() / 2,
            "{} of {} bytes are replayed on {devices}",
            again.len(),
            expect.len()
        );
    }
}

impl Recorded<'_> {
    /// Records `NAME.out.f32` and `NAME.filtered.f32` while workers are killed, to `NAME.box`.
    fn start(self, folder: &Path) -> ChildRun {
        let name = self.name;
        let faults = FAULTS
            .replace("MIN_MS", &(150 * self.stretch).to_string())
            .replace("MAX_MS", &(350 * self.stretch).to_string())
            .replace("SEED", &self.seed.to_string());
        std::fs::write(folder.join("faults.ron"), faults).expect("written");
        let output = format!("out={name}.out.f32");
        let filtered = format!("filtered={name}.filtered.f32");
        let recording = format!("{name}.box");
        let options = [
            "-o",
            &filtered,
            "--record",
            &recording,
            "--isolation",
            "processes",
            "--inject",
            "faults.ron",
            "--supervise=hardy.ron",
            "--quiet",
        ];
        let options = [&options[..], self.options].concat();
        let mut run = ChildRun::start(folder, self.bundle, self.input, &output, &options);
        let pid = run.pid().to_string();
        run.wait_until("it takes commands", || set(&[&pid]).status.success());
        // The first tokens have the first values.
        let written = folder.join(format!("{name}.out.f32"));
        run.wait_until("it writes", || {
            std::fs::metadata(&written).is_ok_and(|metadata| metadata.len() > 0)
        });
        run
    }
}

/// Sends noise in numbered datagrams at the stream's rate, of which some are left out.
struct LossySender {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl LossySender {
    fn start(port: u16, mut rng: fastrand::Rng) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
            let begun = Instant::now();
            let mut left_out = 0;
            for number in 1_u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let due_ns = number * 1_000_000_000 * PACKET_TOKENS as u64 / RATE as u64;
                let due = begun + Duration::from_nanos(due_ns);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                // Some twenty losses in ten seconds, of 1 to 8 datagrams each.
                if left_out == 0 && rng.u32(..100) == 0 {
                    left_out = 1 + rng.u32(..8);
                }
                if left_out > 0 {
                    left_out -= 1;
                    continue;
                }
                let mut datagram = number.to_le_bytes().to_vec();
                let noise = (0..PACKET_TOKENS).map(|_| rng.f32() - 0.5);
                datagram.extend(noise.flat_map(f32::to_le_bytes));
                // Nobody may listen yet, or any more.
                let _ = socket.send_to(&datagram, ("127.0.0.1", port));
            }
        });
        Self { is_over, thread }
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic");
    }
}

/// Sets parameters so many times, about half of them at a token that is to come.
fn set_at_random(run: &mut ChildRun, changes: usize, stretch: usize, rng: &mut fastrand::Rng) {
    let pid = run.pid().to_string();
    let begun = Instant::now();
    let mut accepted = 0;
    while accepted < changes {
        let mut words = vec![pid.clone()];
        words.extend(random_values(rng));
        if rng.bool() {
            // Some are refused: that token is at work already.
            let token = (begun.elapsed().as_secs_f64() * RATE as f64) as usize;
            let ahead = rng.usize(..RATE / 2);
            words.extend(["--at".to_owned(), format!("in:{}", token + ahead)]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = set(&words);
        match output.status.code() {
            Some(0) => accepted += 1,
            Some(5) => {}
            _ => panic!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)),
        }
        let jitter = CHANGE_EVERY.mul_f64(rng.f64());
        let due = begun + (CHANGE_EVERY * accepted as u32 + jitter) * stretch as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

/// One to three of the parameters with new values.
fn random_values(rng: &mut fastrand::Rng) -> Vec<String> {
    let taps: Vec<String> = (0..3).map(|_| (rng.f64() - 0.5).to_string()).collect();
    let mut all = [
        format!("level={}", 8.0 * rng.f64()),
        format!("taps={}", taps.join(",")),
        format!("decay={}", 0.99 * rng.f64()),
        format!("offset={}", rng.f64()),
    ];
    rng.shuffle(&mut all);
    all[..1 + rng.usize(..3)].to_vec()
}

/// Small blocks, so that there are many borders.
fn compiled(text: &str, devices: usize) -> Compiled {
    let options = CompileOptions {
        machine: MachineChoice::Uniform(devices),
        block: Some(48),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", text, "", &options);
    compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
}

fn set(words: &[&str]) -> Output {
    command().arg("set").args(words).output().expect("started")
}

/// What a run has written of each sink.
fn written(folder: &Path, run: &str) -> [Vec<u8>; SINKS.len()] {
    SINKS.map(|sink| std::fs::read(folder.join(format!("{run}.{sink}.f32"))).expect("written"))
}

/// The outputs of a recording's replay on the bundle for so many devices.
fn replayed(folder: &Path, name: &str, devices: &str, options: &[&str]) -> [Vec<u8>; SINKS.len()] {
    let outputs = SINKS.map(|sink| format!("{sink}=again.{sink}.f32"));
    let output = command()
        .current_dir(folder)
        .args(["replay", &format!("{name}.box")])
        .args(outputs.iter().flat_map(|output| ["-o", output]))
        .args(["--bundle", &format!("{devices}.zbmd")])
        .args(options)
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} on {devices}: {said}");
    written(folder, "again")
}
