//! Several programs on two cores: `cargo bench -p zbmd-tests --bench shares [-- seconds]`.
//!
//! Three programs that take 85 % of two cores together, each a block of 2.83 ms in each 5 ms, as processes of `zbmd-run` in
//! real time: the responses of the first one alone, with the two others, with one of them killed and started again twice a
//! second, and with a loop that ends never or a program that takes a GiB of memory again and again besides. With `--share` and without, by
//! turns, so many seconds each (6). Of a machine that is itself a guest, the time that its host gave to others is printed.
//!
//! The goal: with shares, p99.9 is at most 1.1 times that of the program alone plus the interference that `zbmdc admit` prints.
//!
//! Without `--share` all three are tied to the core that they were compiled for, as runs are, and share it: the comparison says what
//! holding does to runs as they are started, not what it does beyond leaving the cores to the system.
//!
//! No test harness: this program is its own `zbmd-run`.

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_ir::{CpuReservation, PlanId, Program, interference_ns};
use zbmd_tests::child_run;
use zbmd_tests::cpu_time::of_thread;
use zbmd_tests::figures::load;
use zbmd_tests::step_actor::{StepPorts, register};

/// Blocks a second, and what each takes: 0.567 of a core.
const BLOCKS_PER_S: u64 = 200;
const BUSY_NS: u64 = 2_833_000;

fn registry() -> Registry {
    let mut registry = zbmd_backends::standard_registry();
    let port = |name: &str| vec![(name.to_owned(), 1)];
    let ports = StepPorts {
        inputs: port("x"),
        outputs: port("y"),
        state: Vec::new(),
    };
    register(&mut registry, "burn", ports, |mut step| {
        let begun = of_thread();
        while of_thread() - begun < Duration::from_nanos(BUSY_NS) {
            std::hint::spin_loop();
        }
        step.outputs[0].copy_from_slice(step.inputs[0]);
    });
    registry
}

fn main() -> ExitCode {
    child_run::run_or_test(|| zbmd_run::main_with(registry()), bench)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Neighbours {
    None,
    Two,
    TwoOneKilled,
    TwoAndLoop,
    TwoAndMemory,
}

impl Neighbours {
    const ALL: [Self; 5] = [
        Self::None,
        Self::Two,
        Self::TwoOneKilled,
        Self::TwoAndLoop,
        Self::TwoAndMemory,
    ];

    /// What a shell runs besides.
    fn command(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Two | Self::TwoOneKilled => None,
            Self::TwoAndLoop => Some("while :; do :; done"),
            // The last lines of what has none are all of it: it is kept in memory.
            Self::TwoAndMemory => Some("while :; do head -c 1G /dev/zero | tail > /dev/null; done"),
        }
    }
}

fn bench() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let seconds = words.iter().find_map(|word| word.parse().ok()).unwrap_or(6);
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let model = format!(
        "Model(
    name: \"burner\",
    sources: {{ \"in\": Stream(dtype: u8, shape: [1], sample_rate: {BLOCKS_PER_S}) }},
    actors: {{ \"burn\": Custom(\"burn\", cost_ns: {BUSY_NS}) }},
    channels: [(from: \"in\", to: [\"burn\"]), (from: \"burn\", to: [\"out\"])],
    sinks: {{ \"out\": Stream() }},
)"
    );
    let options = CompileOptions {
        registry: registry(),
        machine: MachineChoice::Uniform(1),
        block: Some(1),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", &model, "", &options);
    let program = compiled
        .unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
        .program;
    zbmd_ir::bundle::write(folder.join("burner.zbmd").as_path(), &program).expect("written");
    std::fs::write(
        folder.join("in.bin"),
        vec![0; (BLOCKS_PER_S * 3600) as usize],
    )
    .expect("written");

    println!("load {}", load());
    let interference_ms = interference_ns(&vec![reservations(&program); 3], 2)
        .map_or(f64::INFINITY, |waits| waits[0] as f64 / 1e6);
    println!("interference of three programs on two cores: at most {interference_ms:.2} ms");
    let mut alone_ms = None;
    for neighbours in Neighbours::ALL {
        for is_held in [false, true] {
            let p99_9_ms = measure(folder, neighbours, is_held, seconds);
            if is_held {
                let alone_ms = *alone_ms.get_or_insert(p99_9_ms);
                let bound_ms = 1.1 * alone_ms + interference_ms;
                println!("  p99.9 {p99_9_ms:.2} ms of at most {bound_ms:.2} ms");
            }
        }
    }
    check_fourth(folder);
}

/// What the program's workers are promised.
fn reservations(program: &Program) -> Vec<CpuReservation> {
    let plan = &program.plans[PlanId(0)];
    let calendars = plan.calendars.iter();
    calendars
        .filter_map(|calendar| CpuReservation::of_calendar(&program.graph, plan, calendar))
        .collect()
}

fn start(folder: &Path, name: &str, is_held: bool, seconds: u64) -> Child {
    let mut command = child_run::command();
    command
        .args([
            "burner.zbmd",
            "-i",
            "in=paced:in.bin",
            "-o",
            "out=/dev/null",
        ])
        .args([
            "--deadline",
            "out=1h",
            "--quiet",
            "--report",
            "json",
            "--report-file",
        ])
        .arg(format!("{name}.json"))
        .args(["--duration", &format!("{seconds}s")])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    if is_held {
        command.args(["--share", name]);
    }
    command.spawn().expect("started")
}

/// Responses of the first program, in one line; their p99.9 in milliseconds.
fn measure(folder: &Path, neighbours: Neighbours, is_held: bool, seconds: u64) -> f64 {
    let mut others = Vec::new();
    if neighbours != Neighbours::None {
        others.push(start(folder, "second", is_held, seconds + 2));
        others.push(start(folder, "third", is_held, seconds + 2));
    }
    if let Some(command) = neighbours.command() {
        let shell = Command::new("sh").args(["-c", command]).spawn();
        others.push(shell.expect("a shell"));
    }
    std::thread::sleep(Duration::from_millis(500));

    let stolen_before = stolen_ms();
    let mut first = start(folder, "first", is_held, seconds);
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = first.try_wait().expect("a child") {
            break status;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(seconds + 20),
            "it does not end"
        );
        if neighbours == Neighbours::TwoOneKilled {
            others[1].kill().expect("a child");
            others[1].wait().expect("a child");
            others[1] = start(folder, "third", is_held, seconds);
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    assert!(status.success(), "{status}");
    for other in &mut others {
        let _ = other.kill();
        let _ = other.wait();
    }

    let report = std::fs::read(folder.join("first.json")).expect("a report");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    let response = &report["deadlines"][0]["response"];
    let millis = |name: &str| response[name].as_u64().unwrap_or(0) as f64 / 1e6;
    println!(
        "{neighbours:?}, {}: {} blocks, response p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, max {:.2} ms; stolen {:.0} ms; {}",
        if is_held { "held" } else { "not held" },
        response["count"],
        millis("p50_ns"),
        millis("p99_ns"),
        millis("p99_9_ns"),
        millis("max_ns"),
        stolen_ms() - stolen_before,
        report["plans"][0]["workers"][0]["notes"]
    );
    millis("p99_9_ns")
}

/// Time that the machine's host has given to others, on all cores together.
fn stolen_ms() -> f64 {
    const TICKS_PER_S: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let all_cores = stat.lines().next().unwrap_or_default();
    let stolen = all_cores.split_whitespace().nth(8);
    let ticks: f64 = stolen.and_then(|text| text.parse().ok()).unwrap_or(0.0);
    ticks * 1e3 / TICKS_PER_S
}

/// A fourth program finds nothing left.
fn check_fourth(folder: &Path) {
    let mut three: Vec<Child> = ["first", "second", "third"]
        .map(|name| start(folder, name, true, 4))
        .into();
    std::thread::sleep(Duration::from_secs(1));
    let status = start(folder, "fourth", true, 1).wait().expect("a child");
    println!("a fourth: {status} (9: there is no room for it)");
    for child in &mut three {
        let _ = child.wait();
    }
}
