//! `zbmdc inspect`, `diff`, `admit`, `why`, `watch`, `new` and `man` as processes, and the examples of every help text.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::{text, zbmdc};
use zbmd_ir::trace::{self, Begin, Chunk};

const MODEL: &str = r#"Model(
    name: "chain",
    sources: { "in": Stream(dtype: f32) },
    actors: {
        "narrow": Fir(taps: [0.5, 0.25, 0.25]),
        "wide": Fir(interpolate: 3, decimate: 2, taps: [0.1, 0.2, 0.4, 0.2, 0.1, 0.05]),
        "half": Gain(0.5),
    },
    sinks: { "out": Stream() },
    channels: [
        (from: "in", to: ["narrow"]),
        (from: "narrow", to: ["wide"]),
        (from: "wide", to: ["half"]),
        (from: "half", to: ["out"]),
    ],
)
"#;
/// The same on every computer.
const MACHINE: &str = r#"Machine(devices: [
    Device(name: "cpu:0", backend: cpu, memory: 16777216, flops: 1000000000, bandwidth: 1000000000),
    Device(name: "cpu:1", backend: cpu, memory: 16777216, flops: 1000000000, bandwidth: 1000000000),
])
"#;

/// A folder with the model compiled three ways: `a.zbmd`, `b.zbmd` with another gain, `c.zbmd` on one device.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect(name);
    write("a.ron", MODEL);
    write("b.ron", &MODEL.replace("Gain(0.5)", "Gain(0.25)"));
    write("m.ron", MACHINE);
    let one = MACHINE
        .lines()
        .filter(|l| !l.contains("cpu:1"))
        .collect::<Vec<_>>()
        .join("\n");
    write("one.ron", &one);
    for (model, machine, bundle) in [
        ("a.ron", "m.ron", "a.zbmd"),
        ("b.ron", "m.ron", "b.zbmd"),
        ("a.ron", "one.ron", "c.zbmd"),
    ] {
        let losses = if machine == "m.ron" { "single" } else { "none" };
        let args = [
            "compile",
            model,
            "--machine",
            machine,
            "--contingencies",
            losses,
            "-o",
            bundle,
        ];
        let output = zbmdc(dir.path(), &args);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    dir
}

fn pin(name: &str, text: &str) {
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn every_format_is_written() {
    let dir = folder();
    let starts: [(&str, &[u8]); 8] = [
        ("text", b"chain   main   blocks of "),
        ("json", b"{\"format\":\"zbmd-view\",\"version\":1,"),
        ("ron", b"("),
        ("dot", b"digraph \"chain\" {"),
        ("mermaid", b"graph LR\n"),
        ("svg", b"<svg xmlns="),
        ("html", b"<!doctype html>"),
        ("perfetto", &[0x0a]),
    ];
    for (format, start) in starts {
        let to_stdout = zbmdc(dir.path(), &["inspect", "a.zbmd", "--format", format]);
        assert_eq!(
            to_stdout.status.code(),
            Some(0),
            "{format}: {}",
            text(&to_stdout.stderr)
        );
        assert!(to_stdout.stdout.starts_with(start), "{format}");
        zbmdc(
            dir.path(),
            &["inspect", "a.zbmd", "--format", format, "-o", "out"],
        );
        let file = std::fs::read(dir.path().join("out")).expect("the file");
        assert_eq!(to_stdout.stdout, file, "{format}");
    }
    let narrow = text(&zbmdc(dir.path(), &["inspect", "a.zbmd", "--width", "72"]).stdout);
    assert!(narrow.lines().all(|l| l.chars().count() <= 72), "{narrow}");
    pin("inspect", &narrow);
    let all = text(&zbmdc(dir.path(), &["inspect", "a.zbmd", "--no-times"]).stdout);
    for part in [
        "graph chain",
        "contingencies ",
        "schedule main",
        "layout cpu:0",
        "calendar cpu:0",
    ] {
        assert!(all.contains(part), "no `{part}` in {all}");
    }
    let other = zbmdc(dir.path(), &["inspect", "a.zbmd", "--plan", "nonsense"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(
        text(&other.stderr).contains("0: main, 1: "),
        "{}",
        text(&other.stderr)
    );
}

#[test]
fn calendars_to_the_tick_are_shown() {
    let dir = folder();
    let torus = "TickMachine(topology: Torus(rows: 2, columns: 2), frame_bits: 64, \
        latency_ticks: 12, default_ticks: 5)";
    std::fs::write(dir.path().join("torus.ron"), torus).expect("written");
    let inspect = |more: &[&str]| {
        let args = [&["inspect", "a.ron", "--machine", "torus.ron"], more].concat();
        zbmdc(dir.path(), &args)
    };
    let shown = inspect(&["--width", "72"]);
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    pin("inspect_ticks", &text(&shown.stdout));

    let starts = [
        ("svg", "<svg xmlns="),
        ("html", "<!doctype html>"),
        ("json", "{\n  \"period\":"),
        ("ron", "("),
    ];
    for (format, start) in starts {
        let output = text(&inspect(&["--format", format]).stdout);
        assert!(output.starts_with(start), "{format}: {output}");
    }
    let with_losses = text(&inspect(&["--contingencies", "single"]).stdout);
    assert!(
        with_losses.contains("loss         without n0: period "),
        "{with_losses}"
    );
    let unknown = inspect(&["--param", "speed=3"]);
    assert_eq!(unknown.status.code(), Some(3));
    assert!(
        text(&unknown.stderr).contains("speed"),
        "{}",
        text(&unknown.stderr)
    );
    let of_a_bundle = zbmdc(dir.path(), &["inspect", "a.zbmd", "--param", "speed=3"]);
    assert_eq!(of_a_bundle.status.code(), Some(2));

    assert_eq!(inspect(&["--format", "dot"]).status.code(), Some(2));
    assert_eq!(inspect(&["--no-times"]).status.code(), Some(2));

    // A node that is lost has no clock from then on.
    let args = [
        "simulate",
        "a.ron",
        "--machine",
        "torus.ron",
        "--ticks",
        "5000",
        "--contingencies",
        "single",
        "--lose",
        "n1@2000",
        "--plots",
        "clocks",
    ];
    let lost = zbmdc(dir.path(), &args);
    assert_eq!(lost.status.code(), Some(0), "{}", text(&lost.stderr));
    let csv = std::fs::read_to_string(dir.path().join("clocks/clocks.csv")).expect("a file");
    let (heads, samples) = csv.split_once('\n').expect("heads");
    let column = heads
        .split(',')
        .position(|head| head == "ppm_n1")
        .expect("n1");
    let is_running = |line: &str| line.split(',').nth(column) != Some("");
    let tick = |line: &str| -> f64 {
        line.split(',')
            .next()
            .expect("a tick")
            .parse()
            .expect("one")
    };
    for line in samples.lines() {
        // Its tick 2000 is at most 100 ppm from the nominal one.
        if (tick(line) - 2000.0).abs() > 1.0 {
            assert_eq!(is_running(line), tick(line) < 2000.0, "{line}");
        }
    }
}

#[test]
fn differences_and_their_exit_codes() {
    let dir = folder();
    let diff = |a: &str, b: &str, more: &[&str]| {
        let args = [&["diff", a, b], more].concat();
        let output = zbmdc(dir.path(), &args);
        (
            output.status.code().expect("an exit code"),
            text(&output.stdout),
        )
    };
    assert_eq!(diff("a.zbmd", "a.zbmd", &[]), (0, String::new()));
    let (code, gain) = diff("a.zbmd", "b.zbmd", &[]);
    assert_eq!(code, 1);
    pin("diff_of_a_parameter", &gain);
    let (code, devices) = diff("a.zbmd", "c.zbmd", &[]);
    assert_eq!(code, 1);
    pin("diff_of_a_machine", &devices);
    let (code, json) = diff("a.zbmd", "b.zbmd", &["--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (code, &json["equal"], &json["version"]),
        (1, &false.into(), &1.into())
    );
    assert_eq!(json["changes"][0]["kind"], "actor");
    let (_, page) = diff("a.zbmd", "c.zbmd", &["--format", "html"]);
    assert!(page.contains("a.zbmd and c.zbmd: ") && page.matches("<svg ").count() == 2);
    assert_eq!(diff("a.zbmd", "missing.zbmd", &[]).0, 4);
    assert_eq!(diff("a.zbmd", "a.ron", &[]).0, 5);
}

#[test]
fn reasons() {
    let dir = folder();
    let why = |args: &[&str]| {
        let output = zbmdc(dir.path(), &[&["why"], args].concat());
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, told, _) = why(&["wide", "a.zbmd"]);
    assert_eq!(code, Some(0));
    pin("why", &told);
    let (_, told, _) = why(&["wide", "c.zbmd"]);
    assert!(told.contains("there is no other device"), "{told}");
    let (code, _, said) = why(&["wid", "a.zbmd"]);
    assert_eq!(
        (code, said.contains("do you mean `wide`?")),
        (Some(2), true),
        "{said}"
    );
    let (code, _, said) = why(&["wide", "a.zbmd", "--not", "gpu:7"]);
    assert_eq!(
        (code, said.contains("no device `gpu:7`")),
        (Some(2), true),
        "{said}"
    );
}

/// Two hosts of two devices each: every view says which host a device is on, and which is lost.
#[test]
fn hosts_are_named() {
    let dir = folder();
    let devices = ["a0", "a1", "b0", "b1"].map(|name| {
        format!("Device(name: \"{name}\", backend: cpu, memory: 16777216, flops: 1000000, bandwidth: 1000000)")
    });
    let machine =
        |hosts: &str| format!("Machine(devices: [{}], hosts: {hosts})", devices.join(", "));
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).expect(name);
    write(
        "hosts.ron",
        machine("{\"left\": [\"a0\", \"a1\"], \"right\": [\"b0\", \"b1\"]}"),
    );
    write(
        "moved.ron",
        machine("{\"left\": [\"a0\", \"b0\"], \"right\": [\"a1\", \"b1\"]}"),
    );
    let run = |args: &[&str]| {
        let output = zbmdc(dir.path(), args);
        let said = text(&output.stdout) + &text(&output.stderr);
        (output.status.code(), said)
    };
    for machine in ["hosts", "moved"] {
        let (file, bundle) = (format!("{machine}.ron"), format!("{machine}.zbmd"));
        let args = ["compile", "a.ron", "--machine", &file, "-o", &bundle];
        let (code, said) = run(&[&args[..], &["--contingencies", "hosts"]].concat());
        assert_eq!(code, Some(0), "{said}");
    }

    let (_, shown) = run(&["inspect", "hosts.zbmd"]);
    assert!(
        shown.contains("host left: a0, a1") && shown.contains("host right: b0, b1"),
        "{shown}"
    );
    let (_, shown) = run(&["inspect", "hosts.zbmd", "--emit", "contingencies"]);
    assert!(shown.contains("alike  left, right"), "{shown}");
    assert!(shown.contains("without 1 host like left"), "{shown}");
    let (_, told) = run(&["why", "wide", "hosts.zbmd"]);
    assert!(
        told.contains("on host left") && told.contains("on host right"),
        "{told}"
    );
    let (code, changed) = run(&["diff", "hosts.zbmd", "moved.zbmd"]);
    assert_eq!(code, Some(1));
    assert!(
        changed.contains("b0 host") && changed.contains("right -> left"),
        "{changed}"
    );
    let args = [
        "compile",
        "a.ron",
        "--machine",
        "m.ron",
        "--contingencies",
        "hosts",
    ];
    let (code, said) = run(&args);
    assert_eq!(code, Some(3));
    assert!(said.contains("the machine has no hosts"), "{said}");
}

/// What is saved is compiled, and what changed is said; a mistake is said, too, and ends nothing.
#[test]
fn watching() {
    let dir = folder();
    let model = dir.path().join("a.ron");
    let mut child = Command::new(env!("CARGO_BIN_EXE_zbmdc"))
        .args(["watch", "a.ron", "--machine", "m.ron"])
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("zbmdc starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut line = || out.next().expect("a line").expect("UTF-8");
    // The pipe of errors is read so that it never fills up.
    let mut until = |words: &str| {
        let found = said
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.contains(words));
        assert!(found, "stderr ends without `{words}`");
    };
    assert!(line().starts_with("5 actors, 4 channels"));
    until("wrote a.zbmd");
    std::fs::write(&model, MODEL.replace("Gain(0.5)", "Gian(0.5)")).expect("saved");
    until("Gian");
    std::fs::write(&model, MODEL.replace("Gain(0.5)", "Gain(0.125)")).expect("saved");
    until("wrote a.zbmd");
    let told = line();
    assert!(told.contains("half") && told.contains("0.125"), "{told}");
    child.kill().expect("it runs until it is stopped");
    child.wait().expect("it ends");
}

#[test]
fn manual_pages() {
    let dir = tempfile::tempdir().expect("a folder");
    let main = text(&zbmdc(dir.path(), &["man"]).stdout);
    assert!(
        main.contains(".TH zbmdc 1") && main.contains("Exit codes"),
        "{main}"
    );
    let output = zbmdc(dir.path(), &["man", "-o", "pages/man1"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for command in subcommands(dir.path()) {
        let path = dir.path().join(format!("pages/man1/zbmdc-{command}.1"));
        let page = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{command}: {e}"));
        assert!(page.contains("Example"), "{command} has no example");
    }
}

#[test]
fn a_new_project_is_a_valid_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.to_str().expect("UTF-8");
    let output = zbmdc(dir.path(), &["new", "my-meter", "--zbmd", root]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let project = dir.path().join("my-meter");
    let compiled = zbmdc(
        &project,
        &["compile", "model.ron", "--machine", "machine.ron"],
    );
    assert_eq!(
        compiled.status.code(),
        Some(0),
        "{}",
        text(&compiled.stderr)
    );
    let mut paths = vec![project];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(
                std::fs::read_dir(&path)
                    .expect("a folder")
                    .flatten()
                    .map(|e| e.path()),
            );
        } else if path.extension().is_none_or(|e| e != "zbmd") {
            let text = std::fs::read_to_string(&path).expect("text");
            assert!(
                !text.contains("{{name") && !text.contains("{{zbmd"),
                "{}",
                path.display()
            );
        }
    }
    let again = zbmdc(dir.path(), &["new", "my-meter"]);
    assert_eq!(again.status.code(), Some(4), "nothing is written over");
    for wrong in ["Meter", "../meter", "1st", "", "test"] {
        assert_eq!(
            zbmdc(dir.path(), &["new", wrong]).status.code(),
            Some(2),
            "{wrong}"
        );
    }
}

fn subcommands(dir: &Path) -> Vec<String> {
    let help = text(&zbmdc(dir, &["--help"]).stdout);
    let list = help
        .split("Commands:\n")
        .nth(1)
        .expect("a list of commands");
    let names = list.lines().take_while(|l| l.starts_with("  "));
    let names = names
        .filter(|l| !l.starts_with("   "))
        .filter_map(|l| l.split_whitespace().next());
    names.filter(|n| *n != "help").map(str::to_owned).collect()
}

/// Commands in the examples of a help text, without what is said of them.
fn examples(help: &str) -> Vec<String> {
    let commands = help.lines().filter_map(|l| l.strip_prefix("  zbmdc "));
    // Remarks stand two blanks behind.
    commands
        .map(|c| format!("zbmdc {}", c.split("  ").next().unwrap_or(c)))
        .collect()
}

/// The trace of a run of a bundle that ended before its first epoch.
fn empty_trace(bundle: &Path, to: &Path) {
    let program = zbmd_ir::bundle::open(bundle).expect("a bundle");
    let begin = Chunk::Begin(Begin {
        model: program.graph.name.clone(),
        devices: program
            .machine
            .devices
            .iter()
            .map(|d| d.name.clone())
            .collect(),
        fingerprint: trace::fingerprint(&program),
    });
    let bytes = [&trace::head()[..], &begin.bytes(), &Chunk::End.bytes()].concat();
    std::fs::write(to, bytes).expect("written");
}

/// What a bundle with this sample rate of its source takes of `cpu:0`, by the planned time of a block.
fn busy_share(bundle: &Path, sample_rate: f64) -> f64 {
    let program = zbmd_ir::bundle::open(bundle).expect("a bundle");
    let plan = &program.plans[zbmd_ir::PlanId(0)];
    let mut busy_ns = 0;
    zbmd_ir::walk::visit_slots(&plan.calendars[0].lanes[0].entries, |visit| {
        busy_ns += visit.slot.duration_ns * visit.executions;
    });
    // An iteration takes two tokens of the source.
    busy_ns as f64 * sample_rate / (2e9 * plan.block as f64)
}

#[test]
fn bundles_that_fit_on_a_machine_are_told_what_is_left_and_others_what_fails() {
    let dir = folder();
    let timed =
        |rate: u32| MODEL.replace("dtype: f32", &format!("dtype: f32, sample_rate: {rate}"));
    for (name, rate) in [("slow", 100_000), ("fast", 3_000_000)] {
        let model = format!("{name}.ron");
        std::fs::write(dir.path().join(&model), timed(rate)).expect("written");
        let args = ["compile", &model, "--machine", "one.ron"];
        let output = zbmdc(dir.path(), &args);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    let run = |args: &[&str]| {
        let args = [&["admit"], args].concat();
        let output = zbmdc(dir.path(), &args);
        let code = output.status.code().expect("an exit code");
        (code, text(&output.stdout), text(&output.stderr))
    };
    let machine = ["--machine", "one.ron"];

    let (code, table, said) = run(&[
        &["slow.zbmd", "c.zbmd"],
        &machine[..],
        &["--rate", "c=1000"],
    ]
    .concat());
    assert_eq!((code, said.as_str()), (0, ""), "{table}");
    let slow = 100.0 * busy_share(&dir.path().join("slow.zbmd"), 1e5);
    assert!(slow > 0.1, "{slow}");
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].starts_with("resource") && lines[0].ends_with("left"),
        "{table}"
    );
    let cells: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(cells[..3], ["cpu:0", &format!("{slow:.1}"), "%"], "{table}");
    assert!(
        lines[2].starts_with("cpu:0 memory") && lines[2].ends_with("MiB"),
        "{table}"
    );

    let (code, table, said) = run(&[&["fast.zbmd", "fast.zbmd"], &machine[..]].concat());
    assert_eq!(code, 1, "{table}{said}");
    let twice = 200.0 * busy_share(&dir.path().join("fast.zbmd"), 3e6);
    let missing = twice - 100.0;
    let expected = format!("zbmdc: cpu:0: {twice:.1} % are asked for, {missing:.1} % more");
    assert!(said.starts_with(&expected), "{said}");
    assert!(table.contains("none"), "{table}");

    for (args, expected, word) in [
        (&["c.zbmd"][..], 5, "it takes all that it can get"),
        (&["slow.zbmd", "--rate", "slow=5"], 5, "have sample rates"),
        (&["a.zbmd", "--rate", "a=5"], 5, "no such device"),
        (&["c.zbmd", "--rate", "c=1e9"], 5, "needs"),
        (&["c.zbmd", "--rate", "d=5"], 2, "no such bundle"),
        (&["c.zbmd", "--rate", "c=0"], 2, "BUNDLE=HZ"),
        (&["missing.zbmd"], 4, "cannot read"),
    ] {
        let (code, _, said) = run(&[args, &machine[..]].concat());
        assert_eq!(code, expected, "{args:?}: {said}");
        assert!(said.contains(word), "{args:?}: {said}");
    }
    let faster = std::fs::read_to_string(dir.path().join("one.ron")).expect("text");
    let faster = faster.replace("flops: 1000000000", "flops: 2000000000");
    std::fs::write(dir.path().join("faster.ron"), faster).expect("written");
    let (code, _, said) = run(&["slow.zbmd", "--machine", "faster.ron"]);
    assert!(code == 5 && said.contains("flops_per_s"), "{said}");
}

#[test]
fn traces_are_of_the_bundle_or_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (model, bundle) in [("agc", "a.zbmd"), ("cd2dat", "b.zbmd")] {
        let from = root.join(format!("../../graphs/{model}/model.ron"));
        let from = from.display().to_string();
        assert_eq!(
            zbmdc(dir.path(), &["compile", &from, "-o", bundle])
                .status
                .code(),
            Some(0)
        );
    }
    empty_trace(&dir.path().join("a.zbmd"), &dir.path().join("a.trace"));
    let run = |args: &[&str]| {
        let output = zbmdc(dir.path(), &[&["inspect"], args].concat());
        (
            output.status.code(),
            text(&output.stderr) + &text(&output.stdout),
        )
    };
    let (code, said) = run(&["a.zbmd", "--measured", "a.trace"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("this plan was not run"), "{said}");
    let (code, said) = run(&["b.zbmd", "--measured", "a.trace"]);
    assert!(
        code == Some(5) && said.contains("is of a run of `agc`"),
        "{said}"
    );
    let (code, said) = run(&["a.zbmd", "--measured", "a.zbmd"]);
    assert!(code == Some(5) && said.contains("a trace with"), "{said}");
    let (code, said) = run(&["a.zbmd", "--measured", "nothing"]);
    assert!(
        code == Some(4) && said.contains("cannot read `nothing`"),
        "{said}"
    );
    let (code, said) = run(&["a.zbmd", "--measured", "a.trace", "--format", "dot"]);
    assert!(code == Some(2) && said.contains("no times"), "{said}");
}

/// Runs every example of every subcommand, in the order in which the help shows them, in a folder with the files that
/// they name.
#[test]
#[cfg(unix)]
fn examples_of_help_texts_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (from, to) in [
        ("../../graphs/agc/model.ron", "agc.ron"),
        ("../../graphs/cd2dat/model.ron", "cd2dat.ron"),
        ("../../graphs/cd2dat/chain.ron", "chain.ron"),
        ("../../graphs/fm/model.ron", "fm.ron"),
        ("../../graphs/agc/model.ron", "detect.ron"),
    ] {
        std::fs::copy(root.join(from), dir.path().join(to)).expect(to);
    }
    let onnx = std::env::var_os("ZBMD_DATA").map_or(root.join("../../../shared/data"), Into::into);
    // Any model serves.
    let detector = || {
        let from = onnx.join("models/mnist.onnx");
        std::fs::copy(from, dir.path().join("detector.onnx")).is_ok()
    };
    // One whose first dimension may be any number of images.
    let classifier = || {
        let from = onnx.join("models/light_squeezenet.onnx");
        std::fs::copy(from, dir.path().join("classes.onnx")).is_ok()
    };
    let machine =
        "TickMachine(topology: Torus(rows: 2, columns: 2), frame_bits: 64, latency_ticks: 12)";
    std::fs::write(dir.path().join("torus.ron"), machine).expect("written");
    // A thousand samples of silence.
    std::fs::write(dir.path().join("noise.cf32"), [0; 8000]).expect("written");
    let bin = Path::new(env!("CARGO_BIN_EXE_zbmdc"))
        .parent()
        .expect("a folder");
    let path = format!(
        "{}:{}",
        bin.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let mut run = 0;
    for command in subcommands(dir.path()) {
        let help = text(&zbmdc(dir.path(), &[&command, "--help"]).stdout);
        let examples = examples(&help);
        assert!(!examples.is_empty(), "{command} has no example");
        for example in examples {
            // Runs for ever; has a test of its own. And one needs an agent, which a listing of the book has.
            if command == "watch" || example.contains("--cluster") {
                continue;
            }
            let has_models = (!example.contains("detector.onnx") || detector())
                && (!example.contains("classes.onnx") || classifier());
            if !has_models {
                eprintln!("SKIPPED: `{example}` needs the data in ZBMD_DATA");
                continue;
            }
            if example.contains("--measured agc.trace") {
                empty_trace(&dir.path().join("agc.zbmd"), &dir.path().join("agc.trace"));
            }
            // What goes into the reader of pages, or the user's folders, goes nowhere here.
            let here = example.replace("| man -l -", "> /dev/null").replace(
                "> ~/.local/share/bash-completion/completions/zbmdc",
                "> /dev/null",
            );
            let output = Command::new("sh")
                .args(["-c", &here])
                .current_dir(dir.path())
                .env("PATH", &path)
                .env("XDG_CACHE_HOME", dir.path().join("cache"))
                .output()
                .expect("a shell");
            let differs = example.starts_with("zbmdc diff agc.zbmd agc2.zbmd");
            let expected = i32::from(differs);
            let said = text(&output.stderr);
            // Without a GPU that can, it says so.
            let refused = example.contains("--math") && said.contains("error[E0507]");
            assert!(
                output.status.code() == Some(expected) || refused,
                "`{example}`: {said}"
            );
            run += 1;
        }
    }
    assert!(run > 30, "only {run} examples");
}
