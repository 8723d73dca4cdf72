//! What is counted is what is in the files: messages, reports, checkpoints and headers, whenever and however a run ends.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::io::{Read, Write};
use std::process::{Output, Stdio};

use common::case::{Case, code};
use common::{text, with_tail};
use zbmd_ir::testing::programs;

fn case() -> Case {
    let case = Case::new(with_tail(programs::two_devices()));
    let _ = case.input("in.f32", 1003);
    case
}

/// Exit code, and what was said.
fn ending(output: &Output) -> (i32, String) {
    (code(output), text(&output.stderr))
}

/// Tokens that a file's header promises, and whole ones that it has.
fn promised_and_present(case: &Case, file: &str, token_bytes: u64) -> (u64, u64) {
    let bytes = case.read(file);
    let length = bytes.len() as u64;
    match file.rsplit('.').next() {
        Some("npy") if length >= 128 => {
            let header = text(&bytes[..128]);
            let count = header.split("'shape': (").nth(1).expect("a shape");
            let count = count.split(',').next().expect("a size");
            let promised = count.trim().parse().expect("a number");
            (promised, (length - 128) / token_bytes)
        }
        Some("wav") if length >= 44 => {
            let size: [u8; 4] = bytes[40..44].try_into().expect("four");
            // Two bytes a sample.
            (u64::from(u32::from_le_bytes(size)) / 2, (length - 44) / 2)
        }
        Some("npy" | "wav") => (0, 0),
        _ => (length / token_bytes, length / token_bytes),
    }
}

/// What a limit of the system cuts off, a message counts. `ulimit -f` stands for a disk that is full, which needs no
/// rights to bring about.
#[test]
fn what_does_not_fit_is_an_error_that_counts_what_is_there() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 3_000_003);
    for file in ["out.bin", "out.npy", "out.wav"] {
        let argument = format!("out={file}");
        for isolation in ["threads", "processes"] {
            // Blocks of 512 bytes: so many that the program's own shared memory fits, and the output does not.
            let args = ["-i", "in=in.f32", "-o", &argument, "--isolation", isolation];
            let output = case.shell("ulimit -f 11000; exec {}", &args);
            let (exit, said) = ending(&output);
            assert_eq!(exit, 4, "{file} {isolation}: {said}");
            assert!(said.contains("`ulimit -f`"), "{said}");
            let (promised, present) = promised_and_present(&case, file, 4);
            assert!(present > 0, "{file}");
            let counted = format!("it holds {present} whole tokens of `out`");
            assert!(said.contains(&counted), "{present}: {said}");
            assert_eq!(promised, present, "{file}");
        }
    }

    // With checkpoints, the run goes on from what is there when the limit is gone.
    let args = [
        "-i",
        "in=in.f32",
        "-o",
        "out=out.bin",
        "--checkpoint",
        "points",
    ];
    let every = ["--checkpoint-every", "1ms"];
    let output = case.shell("ulimit -f 11000; exec {}", &[&args[..], &every].concat());
    let (exit, said) = ending(&output);
    assert_eq!(exit, 4, "{said}");
    case.expect(0, &[&args[..], &["--resume"]].concat());
    assert!(case.read("out.bin") == expect);
    // Shared memory is a file too.
    let output = case.shell("ulimit -f 100; exec {}", &args[..4]);
    let (exit, said) = ending(&output);
    assert_eq!(exit, 6, "{said}");
    assert!(said.contains("`ulimit -f`"), "{said}");

    // A device that is always full, which is counted likewise.
    let said = case.expect(4, &["-i", "in=in.f32", "-o", "out=/dev/full"]);
    assert!(
        said.contains("/dev/full: No space left on device")
            && said.contains("it holds 0 whole tokens"),
        "{said}"
    );
    let output = case.shell("{} > /dev/full", &["-i", "in=in.f32", "-o", "out=-"]);
    let (exit, said) = ending(&output);
    assert_eq!(exit, 4, "{said}");
    for option in ["--report-file", "--save-state"] {
        let args = ["-i", "in=in.f32", "-o", "out=out.bin", option, "/dev/full"];
        let said = case.expect(4, &args);
        assert!(said.contains("No space left"), "{said}");
    }
}

#[test]
fn a_header_never_promises_more_than_there_is_whenever_the_run_is_killed() {
    let case = Case::new(with_tail(programs::two_devices()));
    let _ = case.input("in.f32", 3_000_003);
    for round in 0..12u64 {
        let file = ["out.npy", "out.wav"][(round % 2) as usize];
        let argument = format!("out={file}");
        let mut child = case
            .command(&["-i", "in=in.f32", "-o", &argument, "--quiet"])
            .spawn()
            .expect("started");
        // Killed when it has written so much.
        let wanted = 20_000 * (round + 1);
        let length = || fs::metadata(case.path(file)).map_or(0, |m| m.len());
        while length() < wanted && child.try_wait().expect("a child").is_none() {
            std::thread::yield_now();
        }
        child.kill().expect("killed");
        child.wait().expect("gone");
        let (promised, present) = promised_and_present(&case, file, 4);
        assert!(promised <= present, "{file}: {promised} of {present}");
        // What was written a while before is counted.
        assert!(
            promised + 40_000 > present,
            "{file}: {promised} of {present}"
        );
        fs::remove_file(case.path(file)).expect("there");
    }
}

/// A run of `case` with so few losses allowed that a storm of kills ends it, into `file`, a pipe or a regular file.
/// Exit code, what was said, and the bytes of the tokens that came out.
fn run_in_a_storm(case: &Case, seed: usize, file: &str) -> (i32, String, Vec<u8>) {
    let storm = format!("Inject(kinds: [kill], every: (\"3ms\", \"12ms\"), seed: {seed})");
    case.write("storm.ron", storm);
    let argument = format!("out={file}");
    let mut args = vec!["-i", "in=in.f32", "-o", &argument];
    args.extend(["--isolation", "processes", "--supervise=few.ron"]);
    args.extend(["--inject", "storm.ron"]);
    args.extend(["--report-file", "report.json", "--save-state", "border"]);
    if file != "pipe" {
        args.extend(["--checkpoint", "points", "--checkpoint-replace"]);
        args.extend(["--checkpoint-every", "10ms"]);
    }

    let pipe = (file == "pipe").then(|| case.path("pipe"));
    let reader = pipe.map(|path| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let mut pipe = fs::File::open(path).expect("a pipe");
            pipe.read_to_end(&mut bytes).expect("read");
            bytes
        })
    });
    let (exit, said) = ending(&case.run(&args));
    let written = match reader {
        Some(reader) => reader.join().expect("no panic"),
        None if file == "out.npy" => case.read(file)[128..].to_vec(),
        None => case.read(file),
    };
    (exit, said, written)
}

/// The report, the checkpoint, the last word and the file's length agree after a run was given up.
#[test]
fn a_run_that_gave_up_says_what_is_in_its_files() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 3_000_003);
    case.write(
        "few.ron",
        "Supervision(intensity: 2, period: \"60s\", backoff: (base: \"1ms\", longest: \"5ms\"))",
    );
    case.make_pipe("pipe");
    let mut gave_up = 0;
    let files = ["out.bin", "out.npy", "pipe"];
    for (seed, file) in files.into_iter().cycle().take(9).enumerate() {
        let (exit, said, written) = run_in_a_storm(&case, seed, file);
        assert!(expect.starts_with(&written), "seed {seed}: other bits");
        let tokens = written.len() as u64 / 4;
        let report = serde_json::from_slice(&case.read("report.json"));
        let report: serde_json::Value = report.expect("JSON");
        assert_eq!(report["sinks"][0]["tokens"], tokens, "seed {seed}: {said}");
        if exit == 0 {
            continue;
        }
        assert_eq!(exit, 7, "seed {seed}: {said}");
        gave_up += 1;
        let last_word = said.split("in good order after ").nth(1);
        let iterations = last_word.and_then(|rest| rest.split(' ').next()?.parse().ok());
        let iterations: u64 = iterations.unwrap_or_else(|| panic!("no last word: {said}"));
        let saved = zbmd_ir::state::decode(&case.read("border"), &case.program.graph);
        assert_eq!(saved.expect("ours").state.iterations, iterations);
        let notes = report["notes"].to_string();
        if file == "pipe" {
            let counted = format!("pipe was given {tokens} tokens of `out`");
            assert!(notes.contains(&counted), "{notes}");
            continue;
        }
        let counted = format!("holds {tokens} tokens of `out`");
        assert!(notes.contains(&counted), "{notes}");
        assert_eq!(tokens, iterations, "seed {seed}: {said}");
        assert_eq!(promised_and_present(&case, file, 4), (tokens, tokens));
        let newest = case.path(&format!("points/{iterations:020}.zbcp"));
        let is_there = newest.exists() || iterations == 0;
        assert!(is_there, "seed {seed}: no checkpoint at {iterations}");

        // And the run goes on from there.
        let argument = format!("out={file}");
        let resumed = ["-i", "in=in.f32", "-o", &argument, "--checkpoint", "points"];
        case.expect(0, &[&resumed[..], &["--resume"]].concat());
        assert!(case.read(file).ends_with(&expect), "seed {seed}");
    }
    assert!(gave_up >= 4, "only {gave_up} runs gave up");
}

#[test]
fn standard_streams_that_are_closed_are_errors() {
    let case = case();
    for (redirected, args, kind) in [
        ("{} >&-", ["-i", "in=in.f32", "-o", "out=-"], "sink `out`"),
        ("{} <&-", ["-i", "in=-", "-o", "out=out.bin"], "source `in`"),
    ] {
        let (exit, said) = ending(&case.shell(redirected, &args));
        assert_eq!(exit, 4, "{redirected}: {said}");
        assert!(
            said.contains(kind) && said.contains("it was closed when the program was started"),
            "{said}"
        );
    }
    assert!(!case.path("out.bin").exists());
    // Where they are not used they may be closed; and `/dev/null` is a stream like any other.
    for (redirected, args) in [
        ("{} >&- <&-", ["-i", "in=in.f32", "-o", "out=out.bin"]),
        ("{} > /dev/null", ["-i", "in=in.f32", "-o", "out=-"]),
        ("{} <> /dev/null >&0", ["-i", "in=in.f32", "-o", "out=-"]),
    ] {
        let (exit, said) = ending(&case.shell(redirected, &args));
        assert_eq!(exit, 0, "{redirected}: {said}");
    }
}

#[test]
fn too_few_descriptors_are_an_error_that_says_so() {
    let case = case();
    let mut refused = 0;
    for isolation in ["threads", "processes"] {
        let mut limit = 4;
        loop {
            let args = [
                "-i",
                "in=in.f32",
                "-o",
                "out=out.bin",
                "--isolation",
                isolation,
                "--checkpoint",
                "points",
                "--checkpoint-replace",
            ];
            let output = case.shell(&format!("ulimit -n {limit}; exec {{}}"), &args);
            let (exit, said) = ending(&output);
            if exit == 0 {
                break;
            }
            // Below that the loader cannot even start the program.
            let is_ours = said.contains("zbmd-run");
            assert!(
                !is_ours || [4, 6, 7].contains(&exit),
                "{limit}: {exit} {said}"
            );
            assert!(!said.contains("panicked"), "{limit}: {said}");
            assert!(
                !is_ours || said.contains("ulimit -n") || said.contains("Too many open files"),
                "{isolation}, {limit} descriptors: {said}"
            );
            refused += usize::from(is_ours);
            limit += 1;
            assert!(limit < 200, "{said}");
        }
    }
    assert!(refused > 6, "only {refused}");
}

#[test]
fn a_header_needs_a_file_that_can_be_rewritten() {
    let case = case();
    case.make_pipe("pipe.npy");
    let path = case.path("pipe.npy");
    let reader = std::thread::spawn(move || fs::read(path).expect("read"));
    let said = case.expect(4, &["-i", "in=in.f32", "-o", "out=pipe.npy"]);
    assert!(said.contains("pipe.npy: is not a regular file"), "{said}");
    // A reader that opened the pipe only after the run had gone waits for another writer.
    while !reader.is_finished() {
        let mut both_ends = fs::OpenOptions::new();
        drop(both_ends.read(true).write(true).open(case.path("pipe.npy")));
        std::thread::yield_now();
    }
    assert!(reader.join().expect("no panic").is_empty());
    case.make_pipe("pipe.bin");
    let args = [
        "-i",
        "in=in.f32",
        "-o",
        "out=pipe.bin",
        "--checkpoint",
        "points",
    ];
    let said = case.expect(2, &args);
    assert!(
        said.contains("cannot be taken back to a checkpoint"),
        "{said}"
    );
    let said = case.expect(
        2,
        &["-i", "in=in.f32", "-o", "out=-", "--checkpoint", "points"],
    );
    assert!(
        said.contains("standard output: it cannot be taken back"),
        "{said}"
    );
}

/// A run whose input is still open holds what it has counted: nobody has to wait for its end.
#[test]
fn tokens_are_in_the_file_when_they_are_given_out() {
    let case = Case::new(programs::chain());
    let expect = case.input("in.f32", 8);
    let given = case.read("in.f32");
    let mut child = case
        .command(&["-i", "in=-", "-o", "out=out.npy", "--quiet"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("started");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(&given[..16]).expect("written");
    let begun = std::time::Instant::now();
    let counts = || match case.path("out.npy").exists() {
        true => promised_and_present(&case, "out.npy", 4),
        false => (0, 0),
    };
    while counts() != (8, 8) {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", counts());
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    stdin.write_all(&given[16..]).expect("written");
    drop(stdin);
    assert!(child.wait().expect("ends").success());
    assert!(case.read("out.npy").ends_with(&expect));
}
