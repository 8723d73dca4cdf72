//! Runs that are held to their shares: one for which others leave no room does not begin.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, MachineChoice, compile_str};
use zbmd_tests::child_run;
use zbmd_tests::harness::Test;
use zbmd_tests::step_actor::{StepPorts, register};

pub(super) const TESTS: &[Test] = &[(
    "a_run_that_others_leave_no_room_for_does_not_begin",
    a_run_that_others_leave_no_room_for_does_not_begin,
)];

/// By the plan it takes 85 % of a core, and in truth next to nothing.
const MODEL: &str = r#"Model(
        name: "busy",
        sources: { "in": Stream(dtype: u8, shape: [1], sample_rate: 1000) },
        actors: { "pass": Custom("pass", cost_ns: 850000) },
        channels: [(from: "in", to: ["pass"]), (from: "pass", to: ["out"])],
        sinks: { "out": Stream() },
    )"#;
const NO_ROOM: i32 = 9;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn add_actor(registry: &mut Registry) {
    let port = |name: &str| vec![(name.to_owned(), 1)];
    let ports = StepPorts {
        inputs: port("x"),
        outputs: port("y"),
        state: Vec::new(),
    };
    register(registry, "pass", ports, |mut step| {
        step.outputs[0].copy_from_slice(step.inputs[0]);
    });
}

fn compile(folder: &Path) {
    let options = CompileOptions {
        registry: super::registry(),
        machine: MachineChoice::Uniform(1),
        ..CompileOptions::default()
    };
    let compiled = compile_str("model.ron", MODEL, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    compiled.write(folder.join("busy.zbmd")).expect("written");
    std::fs::write(folder.join("in.bin"), vec![0; 1000 * 600]).expect("written");
}

fn command(folder: &Path, share: &str) -> Command {
    let mut command = child_run::command();
    command
        .args(["busy.zbmd", "-i", "in=paced:in.bin"])
        .args(["-o", &format!("out={share}.bin"), "--share", share])
        .args(["--duration", "60s", "--isolation", "threads"])
        .env("XDG_RUNTIME_DIR", folder)
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

/// A run that goes with the test.
struct Run(Child);

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A run that has begun, and the cores of its entry.
fn start(folder: &Path, share: &str) -> (Run, f64) {
    let child = command(folder, share).stderr(Stdio::null()).spawn();
    let mut run = Run(child.expect("started"));
    let entry = folder.join(format!("zbmd-{}.share", run.0.id()));
    let begun = Instant::now();
    loop {
        let text = std::fs::read_to_string(&entry).unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        if let Some(cores) = value["cores"].as_f64() {
            return (run, cores);
        }
        let status = run.0.try_wait().expect("a child");
        assert!(status.is_none(), "{share} has ended: {status:?}");
        assert!(begun.elapsed() < LIMIT, "{share} is not entered");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn assert_refused(folder: &Path) {
    let output = command(folder, "last").output().expect("run");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(NO_ROOM), "{text}");
    for part in [
        "--share last",
        "processor time",
        "run-0 has 0.8",
        "are needed",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

fn a_run_that_others_leave_no_room_for_does_not_begin() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    compile(folder);
    let (first, cores) = start(folder, "run-0");
    assert!((0.85..0.95).contains(&cores), "{cores} cores");

    // Of each core a tenth is not given out.
    let all = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let fitting = (0.9 * all / cores) as usize;
    let mut running = vec![first];
    for number in 1..fitting {
        running.push(start(folder, &format!("run-{number}")).0);
    }
    assert_refused(folder);

    // What was killed gives its share back, though nobody takes its entry out.
    let killed = running.pop().expect("a run");
    drop(killed);
    if fitting > 1 {
        running.push(start(folder, "next").0);
        assert_refused(folder);
    }
}
