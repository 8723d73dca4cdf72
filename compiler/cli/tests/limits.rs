//! Every number of the command line, of models and of machines at its extremes, under a bound on memory; files that are
//! not files; and models at the limits. Each ends in a result or in an error with a documented exit code.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Address space that a compilation may have here; a bound on memory that needs no rights.
const MEMORY_KIB: u64 = 6 << 20;

/// Numbers at the borders of the types that hold them, and some that are none.
const EXTREMES: [&str; 13] = [
    "0",
    "1",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "-1",
    "nan",
    "inf",
];

/// Runs `zbmdc` in that folder with bounded memory.
fn zbmdc(folder: &Path, args: &[&str]) -> Output {
    Command::new("bash")
        .args(["-c", "ulimit -v \"$1\"; shift; exec \"$@\"", "bash"])
        .arg(MEMORY_KIB.to_string())
        .arg(env!("CARGO_BIN_EXE_zbmdc"))
        .args(args)
        .current_dir(folder)
        .output()
        .expect("bash starts")
}

/// The exit code, which must be a documented one other than that of a bug, and what was said.
#[track_caller]
fn outcome(folder: &Path, args: &[&str]) -> (i32, String) {
    let output = zbmdc(folder, args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code();
    assert!(
        matches!(code, Some(0 | 2..=5)),
        "zbmdc {args:?}: {}: {said}",
        output.status
    );
    (code.unwrap_or_default(), said)
}

const FINE: &str = r#"Model(
    sources: { "in": Stream(dtype: f32) },
    actors: { "half": Gain(0.5) },
    sinks: { "out": Stream() },
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
)
"#;

#[test]
fn numbers_of_the_command_line() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("m.ron"), FINE).expect("a file");
    let compiled = zbmdc(folder.path(), &["compile", "m.ron", "--devices", "1"]);
    assert!(compiled.status.success());

    // A command, an option, and what stands behind the number.
    let options: &[(&[&str], &str, &str)] = &[
        (&["compile", "m.ron"], "--cores", ""),
        (&["compile", "m.ron", "--devices", "1"], "--block", ""),
        (
            &["compile", "m.ron", "--devices", "2"],
            "--max-latency",
            "ns",
        ),
        (
            &["compile", "m.ron", "--devices", "2"],
            "--max-latency",
            "min",
        ),
        (
            &["compile", "m.ron", "--devices", "2"],
            "--time-limit",
            "ns",
        ),
        (
            &["compile", "m.ron", "--devices", "2"],
            "--time-limit",
            "min",
        ),
        (&["compile", "m.ron", "--devices", "2"], "--max-memory", ""),
        (
            &["compile", "m.ron", "--devices", "2"],
            "--max-memory",
            "TiB",
        ),
        (&["compile", "m.ron", "--devices", "2"], "--buffers", ""),
        (&["compile", "m.ron", "--devices", "2"], "--buffers", "GiB"),
        (
            &["compile", "m.ron", "--devices", "2"],
            "--objective",
            ",1,1",
        ),
        (&["compile", "m.ron", "--devices", "2"], "--replicate", ""),
        (&["analyse", "m.ron"], "--buffers", ""),
        (&["devices"], "--cores", ""),
        (&["inspect", "m.zbmd"], "--width", ""),
        (&["inspect", "m.zbmd"], "--plan", ""),
        (
            &["calibrate", "m.ron", "--cache", "cache"],
            "--budget",
            "parsecs",
        ),
    ];
    for (command, option, unit) in options {
        for extreme in EXTREMES {
            let number = format!("{option}={extreme}{unit}");
            let args: Vec<&str> = command.iter().copied().chain([number.as_str()]).collect();
            outcome(folder.path(), &args);
        }
    }
}

#[test]
fn devices_beyond_the_limit_are_refused_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("m.ron"), FINE).expect("a file");
    for extreme in EXTREMES {
        // What is within the limit is a large machine, which takes its time.
        if extreme == "1" {
            continue;
        }
        let number = format!("--devices={extreme}");
        let (code, said) = outcome(folder.path(), &["compile", "m.ron", &number]);
        assert_eq!(code, 2, "{said}");
    }
}

/// Each `#` in turn stands for each extreme.
fn fill(template: &str) -> Vec<String> {
    EXTREMES
        .iter()
        .map(|number| template.replace('#', number))
        .collect()
}

#[test]
fn numbers_of_models() {
    let channel = |fields: &str| {
        FINE.replace(
            "(from: \"in\", to: [\"half\"])",
            &format!("(from: \"in\", to: [\"half\"], {fields})"),
        )
    };
    let stream = |fields: &str| FINE.replace("dtype: f32", &format!("dtype: f32, {fields}"));
    let templates = [
        stream("rate: #"),
        stream("sample_rate: #"),
        stream("shape: [#]"),
        stream("shape: [#, #]"),
        channel("rate: #"),
        channel("window: #"),
        channel("initial: Zeros(#)"),
        channel("initial: Fill(#, 1.0)"),
        channel("initial: [#]"),
        channel("history: Zeros(#)"),
        FINE.replace("Gain(0.5)", "Gain(#)"),
        FINE.replace("Gain(0.5)", "Fir([1.0, #])"),
        FINE.replace("Gain(0.5)", "Fir([1.0], decimate: #)"),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    for template in templates {
        for text in fill(&template) {
            std::fs::write(folder.path().join("m.ron"), &text).expect("a file");
            outcome(folder.path(), &["check", "m.ron"]);
        }
    }
}

#[test]
fn numbers_of_machines() {
    let device =
        |fields: &str| format!("Machine(devices: [Device(name: \"cpu:0\", backend: cpu{fields})])");
    let link = |fields: &str| {
        format!(
            "Machine(devices: [Device(name: \"cpu:0\", backend: cpu), Device(name: \"cpu:1\", backend: cpu)], \
             links: [Link(from: \"cpu:0\", to: \"cpu:1\", both: true{fields})])"
        )
    };
    let templates = [
        device(", cores: [#]"),
        device(", cores: [#, #]"),
        device(", memory: #"),
        device(", memory: \"#TiB\""),
        device(", flops: #"),
        device(", flops: \"#P\""),
        device(", bandwidth: #"),
        link(", bandwidth: #"),
        link(", latency: \"#ns\""),
        link(", latency: \"#min\""),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("m.ron"), FINE).expect("a file");
    for template in templates {
        for text in fill(&template) {
            std::fs::write(folder.path().join("machine.ron"), &text).expect("a file");
            outcome(
                folder.path(),
                &["compile", "m.ron", "--machine", "machine.ron"],
            );
        }
    }
}

#[test]
fn a_core_named_twice_is_refused_in_a_device_and_may_be_shared_by_two() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("m.ron"), FINE).expect("a file");
    let machine = |text: &str| {
        std::fs::write(folder.path().join("machine.ron"), text).expect("a file");
        outcome(
            folder.path(),
            &["compile", "m.ron", "--machine", "machine.ron"],
        )
    };
    let (code, said) =
        machine("Machine(devices: [Device(name: \"cpu:0\", backend: cpu, cores: [0, 1, 0])])");
    assert_eq!(code, 3, "{said}");
    assert!(
        said.contains("E0507") && said.contains("core 0 twice"),
        "{said}"
    );

    let (code, said) = machine(
        "Machine(devices: [Device(name: \"cpu:0\", backend: cpu, cores: [0]), \
         Device(name: \"cpu:1\", backend: cpu, cores: [0])])",
    );
    assert_eq!(code, 0, "{said}");
}

/// Each way to name a file, with files that never end, wait for a writer, or are larger than memory.
#[test]
fn only_regular_files_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("m.ron"), FINE).expect("a file");
    let made = Command::new("mkfifo")
        .arg(at("fifo"))
        .arg(at("fifo.onnx"))
        .status();
    assert!(made.expect("mkfifo starts").success());
    std::os::unix::fs::symlink("/dev/zero", at("zero.onnx")).expect("a link");
    let sparse = std::fs::File::create(at("sparse")).expect("a file");
    sparse.set_len(1 << 42).expect("a sparse file");
    std::os::unix::fs::symlink("sparse", at("sparse.onnx")).expect("a link");

    for (file, expect) in [
        ("fifo", "a FIFO"),
        ("/dev/zero", "a device"),
        (".", "a directory"),
        ("sparse", "bytes"),
    ] {
        let texts = [
            FINE.replace("Gain(0.5)", &format!("Fir(taps: Npy(\"{file}\"))")),
            FINE.replace(
                "Gain(0.5)",
                &format!("Fir(taps: Safetensors(\"{file}\", \"t\"))"),
            ),
            FINE.replace(
                "sinks:",
                &format!("models: {{ \"s\": File(\"{file}\") }}, sinks:"),
            ),
        ];
        for text in texts {
            std::fs::write(at("files.ron"), &text).expect("a file");
            let (code, said) = outcome(folder.path(), &["check", "files.ron"]);
            assert!(matches!(code, 3 | 4), "{text}: {code} {said}");
            assert!(said.contains(expect), "{text}: {said}");
        }

        let commands: [&[&str]; 4] = [
            &["check", file],
            &["compile", "m.ron", "--machine", file],
            &["analyse", "m.ron", "--machine", file],
            &["calibrate", "m.ron", "--machine", file, "--cache", "cache"],
        ];
        for args in commands {
            let (code, said) = outcome(folder.path(), args);
            assert!(matches!(code, 3 | 4), "{args:?}: {code} {said}");
            assert!(said.contains(expect), "{args:?}: {said}");
        }
    }
    for (file, expect) in [
        ("fifo.onnx", "a FIFO"),
        ("zero.onnx", "a device"),
        ("sparse.onnx", "bytes"),
    ] {
        let (code, said) = outcome(folder.path(), &["import", file, "-o", "x.ron"]);
        assert_eq!(code, 4, "{said}");
        assert!(said.contains(expect), "{file}: {said}");
    }
}

/// What a check took; a bound that only quadratic work passes, on any machine.
#[track_caller]
fn within(limit: Duration, folder: &Path, args: &[&str]) -> (i32, String) {
    let start = Instant::now();
    let found = outcome(folder, args);
    let taken = start.elapsed();
    assert!(taken < limit, "zbmdc {args:?} took {taken:?}");
    found
}

const LINEAR: Duration = Duration::from_secs(60);

#[test]
fn large_models_are_checked_in_linear_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);

    // A chain of 10,000 actors, each of them pinned.
    let numbers = || 0..10_000;
    let actors: String = numbers()
        .map(|i| format!("\"a{i}\": Gain(1.0), "))
        .collect();
    let links: String = numbers()
        .skip(1)
        .map(|i| format!("(from: \"a{}\", to: [\"a{i}\"]), ", i - 1))
        .collect();
    let pins: String = numbers()
        .map(|i| format!("\"a{i}\": \"cpu:0\", "))
        .collect();
    let chain = format!(
        "Model(sources: {{\"in\": Stream(dtype: f32)}}, actors: {{{actors}}}, sinks: {{\"out\": Stream()}}, \
         channels: [(from: \"in\", to: [\"a0\"]), {links} (from: \"a9999\", to: [\"out\"])], pins: {{{pins}}})"
    );
    std::fs::write(at("chain.ron"), &chain).expect("a file");
    assert_eq!(within(LINEAR, folder.path(), &["check", "chain.ron"]).0, 0);

    // A channel with 10,000 readers.
    let readers: String = numbers().map(|i| format!("\"a{i}\", ")).collect();
    let dropped: String = numbers()
        .map(|i| format!("(from: \"a{i}\", to: []), "))
        .collect();
    let star = format!(
        "Model(sources: {{\"in\": Stream(dtype: f32)}}, actors: {{{actors}}}, \
         channels: [(from: \"in\", to: [{readers}]), {dropped}])"
    );
    std::fs::write(at("star.ron"), &star).expect("a file");
    assert_eq!(within(LINEAR, folder.path(), &["check", "star.ron"]).0, 0);

    // 10,000 mistakes, each of which is compared with all names, on lines of their own and on one.
    for separator in ["\n", " "] {
        let wrong: Vec<String> = numbers()
            .map(|i| format!("(from: \"b{i}\", to: [\"c{i}\"]),"))
            .collect();
        let wrong = wrong.join(separator);
        let text = format!(
            "Model(sources: {{\"in\": Stream(dtype: f32)}}, actors: {{{actors}}}, channels: [{wrong}])"
        );
        std::fs::write(at("wrong.ron"), &text).expect("a file");
        let (code, said) = within(LINEAR, folder.path(), &["check", "wrong.ron"]);
        assert_eq!(code, 3);
        assert!(
            said.contains("500 errors, more are not shown"),
            "{}",
            &said[said.len() - 200..]
        );
    }
}

#[test]
fn sub_models_that_double_are_refused_with_the_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let level = |below: &str, name: &str| {
        format!(
            "\"{name}\": Model(inputs: {{\"x\": Port()}}, outputs: {{\"y\": Port()}}, \
             actors: {{\"a{name}\": {below}, \"b{name}\": {below}}}, channels: [(from: \"x\", to: [\"a{name}\"]), \
             (from: \"a{name}\", to: [\"b{name}\"]), (from: \"b{name}\", to: [\"y\"])])"
        )
    };
    for letters in [1, 30] {
        let name = |i: usize| format!("{}{i}", "m".repeat(letters));
        let mut models = vec![level("Gain(1.0)", &name(0))];
        for i in 1..50 {
            models.push(level(&format!("Sub(\"{}\")", name(i - 1)), &name(i)));
        }
        let text = format!(
            "Model(sources: {{\"in\": Stream(dtype: f32)}}, models: {{{}}}, actors: {{\"s\": Sub(\"{}\")}}, \
             sinks: {{\"out\": Stream()}}, channels: [(from: \"in\", to: [\"s\"]), (from: \"s\", to: [\"out\"])])",
            models.join(", "),
            name(49)
        );
        std::fs::write(folder.path().join("m.ron"), text).expect("a file");
        let (code, said) = within(LINEAR, folder.path(), &["check", "m.ron"]);
        assert_eq!(code, 3);
        assert!(
            said.contains("E0505") && said.contains("here the limit was reached"),
            "{said}"
        );
    }
}

#[test]
fn long_names_are_refused_wherever_a_model_chooses_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let long = "x".repeat(100_000);
    let models = [
        FINE.replace("sinks:", &format!("name: \"{long}\", sinks:")),
        FINE.replace("half", &long),
        FINE.replace("\"in\"", &format!("\"{long}\"")),
        FINE.replace(
            "Gain(0.5)",
            &format!("Expr(\"{long}\", inputs: {{ \"{long}\": f32 }})"),
        ),
        FINE.replace("Gain(0.5)", &format!("{long}()")),
        FINE.replace("Gain(0.5)", &format!("Gain({long}: 1)")),
        FINE.replace("Gain(0.5)", &format!("Custom(\"{long}\")")),
    ];
    for text in models {
        std::fs::write(folder.path().join("m.ron"), &text).expect("a file");
        let (code, said) = outcome(folder.path(), &["compile", "m.ron", "--devices", "1"]);
        assert_eq!(code, 3, "{}", &said[..said.len().min(500)]);
    }

    let machine = format!("Machine(devices: [Device(name: \"{long}\", backend: cpu)])");
    std::fs::write(folder.path().join("m.ron"), FINE).expect("a file");
    std::fs::write(folder.path().join("machine.ron"), machine).expect("a file");
    let args = ["compile", "m.ron", "--machine", "machine.ron"];
    assert_eq!(outcome(folder.path(), &args).0, 3);
}

#[test]
fn initial_tokens_are_bounded_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let actors: String = (0..100).map(|i| format!("\"a{i}\": Gain(1.0), ")).collect();
    let channels: String = (0..100)
        .map(|i| format!("(from: \"in\", to: [\"a{i}\"], initial: Zeros(25000000)), (from: \"a{i}\", to: []), "))
        .collect();
    let text = format!(
        "Model(sources: {{\"in\": Stream(dtype: f32)}}, actors: {{{actors}}}, channels: [{channels}])"
    );
    std::fs::write(folder.path().join("m.ron"), text).expect("a file");
    let (code, said) = within(LINEAR, folder.path(), &["check", "m.ron"]);
    assert_eq!(code, 3);
    assert!(said.contains("E0505"), "{said}");
}
