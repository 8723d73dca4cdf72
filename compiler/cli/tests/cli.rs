//! `zbmdc` as a process: exit codes, streams, and that every page's example fails with exactly its code.

mod common;

use std::process::{Command, Output, Stdio};

use common::{text, zbmdc};
use zbmd_compiler::{Code, Example, page};

const FINE: &str = r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "half": Gain(0.5) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
)
"#;

/// Codes in JSON messages, errors and warnings.
fn codes(output: &Output) -> Vec<String> {
    let lines = text(&output.stderr);
    let objects = lines
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).expect(l));
    objects
        .map(|o| o["code"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn every_page_fails_with_exactly_its_code() {
    for &code in Code::ALL {
        let Example::Command { files, command } = page(code).example else {
            continue;
        };
        let dir = tempfile::tempdir().expect("a folder");
        for (name, bytes) in files {
            std::fs::write(dir.path().join(name), bytes).expect("a file");
        }
        let mut args: Vec<&str> = command.split(' ').collect();
        args.extend(["--message-format", "json"]);
        let output = zbmdc(dir.path(), &args);
        assert_eq!(
            codes(&output),
            [code.name()],
            "{code}: {}",
            text(&output.stderr)
        );
        let exit = match code.name() {
            "E0601" => 5,
            name if name.starts_with('W') => 0,
            _ if code.is_file() => 4,
            _ => 3,
        };
        assert_eq!(output.status.code(), Some(exit), "{code}");
    }
}

#[test]
fn explain_prints_every_page() {
    let dir = tempfile::tempdir().expect("a folder");
    for &code in Code::ALL {
        let output = zbmdc(dir.path(), &["explain", &code.name().to_lowercase()]);
        let out = text(&output.stdout);
        assert!(
            out.starts_with(code.name()) && out.contains("Fix: "),
            "{out}"
        );
    }
    let list = zbmdc(dir.path(), &["explain"]);
    assert_eq!(text(&list.stdout).lines().count(), Code::ALL.len());
}

#[test]
fn exit_codes() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("fine.ron"), FINE).expect("a file");
    std::fs::write(dir.path().join("wrong.ron"), FINE.replace("Gain", "Gian")).expect("a file");
    let cases: &[(&[&str], i32)] = &[
        (&["check", "fine.ron"], 0),
        (&["compile", "fine.ron"], 0),
        (&["inspect", "fine.zbmd"], 0),
        (
            &[
                "calibrate",
                "fine.ron",
                "--budget",
                "1ms",
                "--cache",
                "cache",
            ],
            0,
        ),
        (
            &[
                "calibrate",
                "fine.ron",
                "--budget",
                "0.001",
                "--cache",
                "cache",
            ],
            0,
        ),
        (&["calibrate", "fine.ron", "--budget", "soon"], 2),
        (&["calibrate", "wrong.ron"], 3),
        (&["calibrate", "missing.ron"], 4),
        (
            &[
                "calibrate",
                "fine.ron",
                "--cache",
                "cache",
                "-o",
                "no/such/m.ron",
            ],
            4,
        ),
        (&["devices"], 0),
        (&["devices", "--ron"], 0),
        (&["ops"], 0),
        (&["ops", "fir"], 0),
        (&["completions", "bash"], 0),
        (&["--help"], 0),
        (&[], 2),
        (&["compile"], 2),
        (&["compile", "fine.ron", "--max-latency", "5"], 2),
        (&["compile", "fine.ron", "--max-memory", "1 parsec"], 2),
        (&["compile", "fine.ron", "--block", "0"], 2),
        (
            &[
                "compile",
                "fine.ron",
                "--devices",
                "2",
                "--machine",
                "m.ron",
            ],
            2,
        ),
        (&["ops", "Nonsense"], 2),
        (&["explain", "E9999"], 2),
        (&["check", "wrong.ron"], 3),
        (&["compile", "fine.ron", "--max-latency", "1ns"], 3),
        (&["check", "missing.ron"], 4),
        (&["check", "."], 4),
        (&["compile", "fine.ron", "--machine", "missing.ron"], 4),
        (&["compile", "fine.ron", "-o", "no/such/x.zbmd"], 4),
        (&["inspect", "missing.zbmd"], 4),
        (&["simulate", "fine.ron"], 2),
        (&["simulate", "fine.ron", "--machine", "fine.ron"], 3),
        (&["simulate", "fine.ron", "--machine", "missing.ron"], 4),
        (&["inspect", "fine.ron"], 5),
    ];
    for (args, exit) in cases {
        let output = zbmdc(dir.path(), args);
        let said = text(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(*exit),
            "zbmdc {}: {said}",
            args.join(" ")
        );
        assert_eq!(
            *exit >= 3,
            said.contains("error["),
            "zbmdc {}: {said}",
            args.join(" ")
        );
    }
}

#[test]
fn data_and_talk_are_apart() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("fine.ron"), FINE).expect("a file");
    let output = zbmdc(
        dir.path(),
        &["compile", "fine.ron", "--devices", "1", "--emit", "graph"],
    );
    assert!(
        text(&output.stdout).starts_with("graph model"),
        "{}",
        text(&output.stdout)
    );
    assert_eq!(text(&output.stderr), "");
    assert!(
        !dir.path().join("fine.zbmd").exists(),
        "--emit alone writes no bundle"
    );
    let args = [
        "compile",
        "fine.ron",
        "--devices",
        "1",
        "--emit",
        "layout",
        "-o",
        "a.zbmd",
    ];
    let output = zbmdc(dir.path(), &args);
    assert!(text(&output.stderr).starts_with("wrote a.zbmd: 3 actors, 2 channels"));
}

#[test]
fn bundles_are_reproducible_and_inspected_as_they_were_emitted() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("fine.ron"), FINE).expect("a file");
    let read = |name: &str| std::fs::read(dir.path().join(name)).expect("a bundle");
    let args = |name: &'static str| {
        [
            "compile",
            "fine.ron",
            "--devices",
            "2",
            "--emit",
            "layout",
            "-o",
            name,
        ]
    };
    let first = zbmdc(dir.path(), &args("a.zbmd"));
    zbmdc(dir.path(), &args("b.zbmd"));
    assert_eq!(read("a.zbmd"), read("b.zbmd"));
    let inspected = zbmdc(dir.path(), &["inspect", "a.zbmd", "--emit", "layout"]);
    assert_eq!(text(&first.stdout), text(&inspected.stdout));
    let left: Vec<_> = std::fs::read_dir(dir.path())
        .expect("a folder")
        .flatten()
        .collect();
    assert_eq!(left.len(), 3, "no temporary files are left: {left:?}");
}

/// The last column of the table on stderr, by actor.
fn origins(output: &Output) -> Vec<(String, String)> {
    let said = text(&output.stderr);
    let rows = said
        .lines()
        .skip_while(|l| !l.starts_with("actor "))
        .skip(1);
    // What is left to the model follows the table, then a line for each kind of device.
    let rows = rows.take_while(|l| !l.contains(" is left to the model") && !l.starts_with("on "));
    let ends = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].to_owned(), words[words.len() - 1].to_owned())
    };
    rows.map(ends).collect()
}

#[test]
fn calibrated_machines_are_compiled_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs/agc/model.ron");
    let args = [
        "calibrate",
        model,
        "-o",
        "machine.ron",
        "--cache",
        "cache",
        "--budget",
        "1ms",
    ];
    let from = |source: &str| {
        ["scale", "level", "loop"].map(|actor| (actor.to_owned(), source.to_owned()))
    };
    let sorted = |output: &Output| {
        let mut rows = origins(output);
        rows.sort_by_key(|(actor, _)| ["scale", "level", "loop"].iter().position(|a| a == actor));
        rows
    };
    let first = zbmdc(dir.path(), &args);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    assert_eq!(text(&first.stdout), "");
    assert_eq!(sorted(&first), from("measured"), "{}", text(&first.stderr));
    assert!(
        text(&first.stderr).contains("wrote machine.ron: 3 measured, 0 from the cache, 0 left")
    );
    let read = |name: &str| std::fs::read(dir.path().join(name)).expect("a file");
    let machine = read("machine.ron");

    let second = zbmdc(dir.path(), &args);
    assert_eq!(sorted(&second), from("cache"), "{}", text(&second.stderr));
    assert!(
        !text(&second.stderr).contains("measuring"),
        "{}",
        text(&second.stderr)
    );
    assert_eq!(machine, read("machine.ron"));
    let mut files: Vec<_> = std::fs::read_dir(dir.path())
        .expect("a folder")
        .flatten()
        .collect();
    files.sort_by_key(std::fs::DirEntry::file_name);
    assert_eq!(files.len(), 2, "no temporary files are left: {files:?}");

    for bundle in ["a.zbmd", "b.zbmd"] {
        let compiled = zbmdc(
            dir.path(),
            &["compile", model, "--machine", "machine.ron", "-o", bundle],
        );
        assert_eq!(
            compiled.status.code(),
            Some(0),
            "{}",
            text(&compiled.stderr)
        );
    }
    assert_eq!(read("a.zbmd"), read("b.zbmd"));

    // Costs that were there stay, and without -o the machine is data.
    std::fs::write(dir.path().join("fine.ron"), FINE).expect("a file");
    let args = [
        "calibrate",
        "fine.ron",
        "--machine",
        "machine.ron",
        "--cache",
        "cache",
    ];
    let added = zbmdc(dir.path(), &args);
    assert_eq!(
        origins(&added),
        [("half".to_owned(), "measured".to_owned())]
    );
    let out = text(&added.stdout);
    assert!(
        out.contains("op: \"Magnitude\"") && out.contains("op: \"Gain\""),
        "{out}"
    );
}

#[test]
fn a_damaged_cache_is_said_and_replaced() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("fine.ron"), FINE).expect("a file");
    let args = [
        "calibrate",
        "fine.ron",
        "-o",
        "m.ron",
        "--cache",
        "cache",
        "--budget",
        "1ms",
    ];
    let json = [&args[..], &["--message-format", "json"]].concat();
    assert_eq!(
        codes(&zbmdc(dir.path(), &json)),
        [""; 0],
        "only messages are said as JSON"
    );
    for file in std::fs::read_dir(dir.path().join("cache"))
        .expect("a folder")
        .flatten()
    {
        std::fs::write(file.path(), "not RON at all").expect("a file");
    }
    let damaged = zbmdc(dir.path(), &json);
    assert_eq!(
        (damaged.status.code(), codes(&damaged)),
        (Some(0), vec!["W0701".to_owned()])
    );
    let repaired = zbmdc(dir.path(), &args);
    assert_eq!(
        origins(&repaired),
        [("half".to_owned(), "cache".to_owned())]
    );
}

#[test]
fn colours_heed_the_environment() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("wrong.ron"), FINE.replace("Gain", "Gian")).expect("a file");
    let escape = |output: &Output| text(&output.stderr).contains('\x1b');
    assert!(
        !escape(&zbmdc(dir.path(), &["check", "wrong.ron"])),
        "no terminal, no colours"
    );
    assert!(escape(&zbmdc(
        dir.path(),
        &["check", "wrong.ron", "--color", "always"]
    )));
    assert!(!escape(&zbmdc(
        dir.path(),
        &["check", "wrong.ron", "--color", "never"]
    )));
}

#[test]
fn json_names_the_place() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("wrong.ron"), FINE.replace("Gain", "Gian")).expect("a file");
    let output = zbmdc(
        dir.path(),
        &["check", "wrong.ron", "--message-format", "json"],
    );
    let object: serde_json::Value =
        serde_json::from_str(text(&output.stderr).trim()).expect("one object");
    assert_eq!(object["code"], "E0210");
    assert_eq!(
        (&object["file"], &object["line"], &object["column"]),
        (&"wrong.ron".into(), &3.into(), &23.into())
    );
    assert_eq!(object["labels"][0]["primary"], true);
    assert!(
        object["help"]
            .as_str()
            .is_some_and(|h| h.contains("`Gain`"))
    );
}

#[test]
fn models_come_from_stdin() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = |model: &str, args: &[&str]| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_zbmdc"))
            .args(args)
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("zbmdc starts");
        std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), model.as_bytes())
            .expect("it reads");
        child.wait_with_output().expect("it ends")
    };
    assert_eq!(run(FINE, &["check", "-"]).status.code(), Some(0));
    assert_eq!(
        run(FINE, &["compile", "-", "-o", "a.zbmd"]).status.code(),
        Some(0)
    );
    assert_eq!(
        run("", &["compile", "-"]).status.code(),
        Some(2),
        "nowhere to write to"
    );
    let wrong = run("Model(", &["check", "-"]);
    assert!(
        text(&wrong.stderr).contains("--> <stdin>:1:6"),
        "{}",
        text(&wrong.stderr)
    );
}

#[test]
fn a_closed_pipe_is_no_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut child = Command::new(env!("CARGO_BIN_EXE_zbmdc"))
        .args(["completions", "zsh"])
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("zbmdc starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(
        (output.status.code(), text(&output.stderr).as_str()),
        (Some(0), "")
    );
}

#[test]
fn every_subcommand_shows_an_example() {
    let dir = tempfile::tempdir().expect("a folder");
    for command in [
        "compile",
        "check",
        "analyse",
        "calibrate",
        "devices",
        "ops",
        "explain",
        "inspect",
        "simulate",
        "completions",
    ] {
        let output = zbmdc(dir.path(), &[command, "--help"]);
        assert!(text(&output.stdout).contains("Example"), "{command}");
    }
}

#[test]
fn losses_are_listed() {
    let dir = tempfile::tempdir().expect("a folder");
    // Two actors that are worth a device each, so that a loss needs a plan of its own.
    let heavy = r#"Expr("sin(cos(sin(cos(sin(cos(sin(cos(x))))))))")"#;
    let actors = format!(r#""half": {heavy}, "other": {heavy}"#);
    let model = FINE.replace(r#""half": Gain(0.5)"#, &actors).replace(
        r#"(from: "half", to: ["out"])"#,
        r#"(from: "half", to: ["other"]), (from: "other", to: ["out"])"#,
    );
    std::fs::write(dir.path().join("fine.ron"), model).expect("a file");
    let args = [
        "compile",
        "fine.ron",
        "--devices",
        "2",
        "--contingencies",
        "pairs",
    ];
    let said = text(&zbmdc(dir.path(), &args).stderr);
    let expected = "contingencies: 1 of 2 losses\n  not without 2 like cpu:0: no device is left\n";
    assert!(said.ends_with(expected), "{said}");
    let args = [
        "inspect",
        "fine.zbmd",
        "--no-times",
        "--emit",
        "contingencies",
    ];
    let expected =
        "contingencies   1 loss\n  kind0  cpu:0, cpu:1\n  without 1 like cpu:0  plan2 on 1 device";
    let printed = text(&zbmdc(dir.path(), &args).stdout);
    assert!(printed.starts_with(expected), "{printed}");
    let printed = text(&zbmdc(dir.path(), &["inspect", "fine.zbmd", "--emit", "all"]).stdout);
    assert!(
        printed.contains(expected) && printed.contains(" %\n"),
        "{printed}"
    );
    let printed = text(&zbmdc(dir.path(), &["inspect", "fine.zbmd"]).stdout);
    assert!(
        printed.contains("without 1 like cpu:0  plan 2  period "),
        "{printed}"
    );
}

#[test]
fn carried_states_are_told() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = include_str!("../../../graphs/simple_sequence/model.ron");
    std::fs::write(dir.path().join("model.ron"), model).expect("a file");
    let compile = |more: &[&str]| {
        let args = [&["compile", "model.ron", "--devices", "1"], more].concat();
        text(&zbmdc(dir.path(), &args).stderr)
    };
    let expected = "sequences: 1 state to be carried from iteration to iteration: `first.state` takes what `first.next` gives\n";
    let said = compile(&["--sequences"]);
    assert!(said.ends_with(expected), "{said}");
    assert!(!compile(&[]).contains("sequences"), "{said}");
}

#[test]
fn replicas_are_told_and_can_be_switched_off() {
    const HEAVY: &str = r#"Model(
    sources: { "in": Stream(dtype: f32, shape: [64], rate: 12) },
    actors: { "heavy": Expr("sin(cos(sin(cos(sin(cos(x))))))") },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["heavy"]), (from: "heavy", to: ["out"])],
)
"#;
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("heavy.ron"), HEAVY).expect("a file");
    let compile = |how: &str| {
        let args = ["compile", "heavy.ron", "--devices", "3", "--replicate", how];
        let output = zbmdc(dir.path(), &args);
        (output.status.code(), text(&output.stderr))
    };
    let inspect = || text(&zbmdc(dir.path(), &["inspect", "heavy.zbmd"]).stdout);
    let (code, said) = compile("auto");
    assert!(
        code == Some(0) && said.contains("replicated: heavy x3; an iteration in "),
        "{said}"
    );
    assert!(inspect().contains("\nreplicated: heavy x3\n"));
    let (code, said) = compile("off");
    assert!(code == Some(0) && !said.contains("replicated"), "{said}");
    assert!(!inspect().contains("replicated"));
    for wrong in ["0", "4.5", "some"] {
        let (code, said) = compile(wrong);
        assert!(
            code == Some(2) && said.contains("a number of replicas"),
            "{said}"
        );
    }
    let said = text(&zbmdc(dir.path(), &["analyse", "heavy.ron"]).stdout);
    assert!(
        said.contains("replicas     of `heavy` on several devices would shorten it"),
        "{said}"
    );
}

/// A multiplexer of two slots of one stream and one of another, and an actor that takes its frames token by token.
const TIME_DIVISION: &str = r#"Model(
    name: "time_division",
    sources: { "a": Stream(dtype: f32), "b": Stream(dtype: f32) },
    actors: {
        "multiplex": Merge(run: [2, 1]),
        "frame": Custom("frame",
            inputs: { "x": (dtype: f32, rate: [1, 1, 1]) },
            outputs: { "y": (dtype: f32, rate: [0, 0, 3]) },
        ),
    },
    channels: [
        (from: "a", to: ["multiplex.x0"]),
        (from: "b", to: ["multiplex.x1"]),
        (from: "multiplex", to: ["frame"]),
        (from: "frame", to: ["out"]),
    ],
    sinks: { "out": Stream() },
)
"#;

#[test]
fn phases_are_analysed_one_by_one() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("tdm.ron"), TIME_DIVISION).expect("a file");
    let said = text(&zbmdc(dir.path(), &["analyse", "tdm.ron"]).stdout);
    let lines = said.lines().map(|line| line.split(", ").next());
    let lines: Vec<&str> = lines.flatten().collect();
    // A whole frame between the two takes 3 tokens; phase by phase, the 2 that are written at once.
    for expect in [
        "buffers      least: 9 tokens",
        "phases       2 actors phase by phase: an iteration takes at least",
        "phases       least: 8 tokens",
    ] {
        assert!(
            lines.iter().any(|line| line.starts_with(expect)),
            "{expect}: {said}"
        );
    }
}

/// A CPU and a CUDA device.
const WITH_CUDA: &str = r#"Machine(
    devices: [
        (name: "cpu:0", backend: cpu, memory: "1GiB", flops: 1e9, bandwidth: 1e9),
        (name: "cuda:0", backend: cuda, memory: "1GiB", flops: 1e12, bandwidth: 1e12),
    ],
    links: [(from: "cpu:0", to: "cuda:0"), (from: "cuda:0", to: "cpu:0")],
)
"#;

#[test]
fn rounded_factors_are_told_and_need_a_device_that_can() {
    const PRODUCTS: &str = r#"Model(
    sources: { "in": Stream(dtype: f32, shape: [16, 16]) },
    actors: { "large": NnMatMul(), "last": NnMatMul() },
    sinks: { "out": Stream() },
    channels: [
        (from: "in", to: ["large.x", "large.y", "last.y"]), (from: "large", to: ["last.x"]), (from: "last", to: ["out"]),
    ],
    pins: { "large": "cuda:0", "last": "cpu:0" },
)
"#;
    let dir = tempfile::tempdir().expect("a folder");
    for (name, text) in [("net.ron", PRODUCTS), ("machine.ron", WITH_CUDA)] {
        std::fs::write(dir.path().join(name), text).expect("a file");
    }
    let compile = |more: &[&str]| {
        let args: Vec<&str> = ["compile", "net.ron"].iter().chain(more).copied().collect();
        let output = zbmdc(dir.path(), &args);
        (output.status.code(), text(&output.stderr))
    };
    let there = ["--machine", "machine.ron"];
    let inspect = || text(&zbmdc(dir.path(), &["inspect", "net.zbmd"]).stdout);
    let (code, said) = compile(&there);
    assert!(code == Some(0) && !said.contains("factors"), "{said}");
    assert!(!inspect().contains("rounded"));
    for math in ["tf32", "f16", "bf16"] {
        let (code, said) = compile(&[&there[..], &["--math", math]].concat());
        let told = format!(
            "1 of 2 products with factors in {math}; 1 of 2 in f32: last (it runs on cpu:0)\n"
        );
        assert!(code == Some(0) && said.contains(&told), "{said}");
        let shown = inspect();
        assert!(
            shown.contains(&format!("rounded: to {math} in 1 actor\n")),
            "{shown}"
        );
    }
    let (code, said) = compile(&["--devices", "1", "--math", "bf16"]);
    let expected =
        "error[E0507]: products in bf16 are asked for, and the machine has no CUDA device";
    assert!(code == Some(3) && said.contains(expected), "{said}");
    let (code, said) = compile(&[&there[..], &["--math", "f8"]].concat());
    let unknown = "`f8` is none of f32, tf32, f16, bf16";
    assert!(code == Some(2) && said.contains(unknown), "{said}");
    // Calibration knows the same words.
    for (math, exit, told) in [("bf16", 3, expected), ("f8", 2, unknown)] {
        let output = zbmdc(
            dir.path(),
            &["calibrate", "net.ron", "--cache", "c", "--math", math],
        );
        let said = text(&output.stderr);
        assert!(
            output.status.code() == Some(exit) && said.contains(told),
            "{said}"
        );
    }
}

/// An assembler that puts what it was told into the object, and knows one architecture.
#[cfg(unix)]
#[test]
fn kernels_are_assembled_by_request() {
    use std::os::unix::fs::PermissionsExt;
    const MODEL: &str = r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "half": Gain(gain: 0.5) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
    pins: { "half": "cuda:0" },
)
"#;
    const PTXAS: &str = "#!/bin/sh
[ \"$2\" = sm_90 ] || { echo \"no such thing as $2\" >&2; exit 1; }
{ echo assembled for \"$2\"; cat \"$5\"; } > \"$4\"
";
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str| dir.path().join(name);
    let free = MODEL.replace("pins: { \"half\": \"cuda:0\" },", "");
    let (net, machine) = (("net.ron", MODEL), ("machine.ron", WITH_CUDA));
    for (name, text) in [net, machine, ("ptxas", PTXAS), ("free.ron", &free)] {
        std::fs::write(file(name), text).expect("a file");
    }
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(file("ptxas"), executable).expect("its owner may");
    let compile_model = |model: &str, ptxas: &str, more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_zbmdc"));
        command
            .args(["compile", model])
            .args(more)
            .current_dir(dir.path());
        let output = command
            .env("ZBMD_PTXAS", file(ptxas))
            .output()
            .expect("zbmdc runs");
        (output.status.code(), text(&output.stderr))
    };
    let compile = |ptxas: &str, more: &[&str]| compile_model("net.ron", ptxas, more);
    let there = ["--machine", "machine.ron"];
    let asked = |arch| [&there[..], &["--cubin", arch]].concat();
    let bundle = || std::fs::read(file("net.zbmd")).expect("a bundle");
    let holds = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|w| w == what);
    assert_eq!(compile("ptxas", &there).0, Some(0));
    let plain = bundle();
    let (code, said) = compile("ptxas", &asked("sm_90"));
    assert_eq!(code, Some(0), "{said}");
    let object = b"assembled for sm_90\n.version";
    assert!(holds(&bundle(), object) && !holds(&plain, object));
    let whole = bundle();
    assert_eq!(
        (compile("ptxas", &asked("sm_90")).0, bundle()),
        (Some(0), whole)
    );
    // Kernels that are launched early wait themselves.
    let waits = b"griddepcontrol.wait";
    assert!(!holds(&bundle(), waits));
    let early = WITH_CUDA.replace("backend: cuda", "backend: cuda, programmatic: true");
    std::fs::write(file("early.ron"), early).expect("a file");
    let asks_early = ["--machine", "early.ron", "--cubin", "sm_90"];
    assert_eq!(compile("ptxas", &asks_early).0, Some(0));
    assert!(holds(&bundle(), waits));
    for (ptxas, args, exit, expected) in [
        (
            "ptxas",
            asked("sm_90,sm_11"),
            3,
            "error[E0507]: `ptxas` refuses a kernel for sm_11: no such thing as sm_11",
        ),
        (
            "ptxas",
            asked("h100"),
            3,
            "error[E0507]: `h100` is not an architecture of a CUDA device",
        ),
        ("none", asked("sm_90"), 4, "none` cannot be run: "),
    ] {
        let (code, said) = compile(ptxas, &args);
        assert!(
            code == Some(exit) && said.contains(expected),
            "{code:?}: {said}"
        );
    }
    let (code, said) = compile_model("free.ron", "ptxas", &["--devices", "1", "--cubin", "sm_90"]);
    let expected =
        "error[E0507]: objects of CUDA kernels are asked for, and the machine has no CUDA device";
    assert!(
        code == Some(3) && said.contains(expected),
        "{code:?}: {said}"
    );
}
