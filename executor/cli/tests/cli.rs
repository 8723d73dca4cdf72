//! The command `zbmd-run` as a process: files in, files out, exit codes, messages. Its runner with test ops is an
//! example of the crate, built by cargo for this test.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use common::case::{Case, code};
use common::{on_a_gpu, text, three_to_two, with_tail};
use zbmd_ir::Value;
use zbmd_ir::testing::programs;

#[test]
fn files_go_in_and_out() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 1003);
    let output = case.run(&["--input", "in=in.f32", "--output", "out=out.bin"]);
    let said = text(&output.stderr);
    assert_eq!(
        (code(&output), text(&output.stdout).as_str()),
        (0, ""),
        "{said}"
    );
    assert!(std::fs::read(case.path("out.bin")).expect("written") == expect);
    assert!(said.contains("two_devices: 1003 iterations in"), "{said}");
    let output = case.run(&["-i", "in=in.f32", "-o", "out=out.npy", "--quiet"]);
    assert_eq!((code(&output), text(&output.stderr).as_str()), (0, ""));
    assert!(
        std::fs::read(case.path("out.npy"))
            .expect("written")
            .ends_with(&expect)
    );
}

#[test]
fn parameters_give_the_files_without_options() {
    let mut program = programs::chain();
    for (actor, file) in [("in", "in.f32"), ("out", "out.f32")] {
        let id = program.graph.find(actor).expect("there");
        program.graph.actors[id]
            .params
            .insert("file".into(), Value::Str(file.into()));
    }
    let case = Case::new(with_tail(program));
    let expect = case.input("in.f32", 10);
    // Only where the user says so: a bundle decides nothing outside itself.
    let output = case.run(&[]);
    let said = text(&output.stderr);
    assert_eq!(code(&output), 2, "{said}");
    assert!(said.contains("--allow-files to take \"in.f32\""), "{said}");
    assert!(!case.path("out.f32").exists());
    assert_eq!(code(&case.run(&["--allow-files"])), 0);
    assert!(std::fs::read(case.path("out.f32")).expect("written") == expect);
}

#[test]
fn pipes_flow_while_the_source_is_open() {
    let case = Case::new(programs::chain());
    let expect = case.input("in.f32", 8);
    let given = std::fs::read(case.path("in.f32")).expect("written");
    let mut child = case.piped("json");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = child.stdout.take().expect("piped");
    // Each block of 4 tokens gives 8 before the next is written.
    for block in 0..2 {
        stdin
            .write_all(&given[block * 16..(block + 1) * 16])
            .expect("written");
        let mut out = [0; 32];
        stdout.read_exact(&mut out).expect("tokens");
        assert!(out == expect[block * 32..(block + 1) * 32]);
    }
    drop(stdin);
    let output = child.wait_with_output().expect("ends");
    assert_eq!(code(&output), 0);
    assert!(text(&output.stderr).contains("\"iterations\": 8"));
}

#[test]
fn a_closed_standard_output_ends_the_run_cleanly() {
    let case = Case::new(programs::chain());
    case.input("in.f32", 4_000_000);
    let mut child = case
        .command(&["-i", "in=in.f32", "-o", "out=-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("the reader of `out` went away"));
}

#[test]
fn a_state_cuts_a_run_in_two() {
    let case = Case::new(with_tail(programs::window()));
    let expect = case.input("all.f32", 21);
    let given = std::fs::read(case.path("all.f32")).expect("written");
    std::fs::write(case.path("a.f32"), &given[..4 * 6]).expect("written");
    std::fs::write(case.path("b.f32"), &given[4 * 6..]).expect("written");
    let first = case.run(&[
        "-i",
        "in=a.f32",
        "-o",
        "out=a.bin",
        "--save-state",
        "border",
    ]);
    assert_eq!(code(&first), 0, "{}", text(&first.stderr));
    let second = case.run(&[
        "-i",
        "in=b.f32",
        "-o",
        "out=b.bin",
        "--load-state",
        "border",
    ]);
    assert!(
        text(&second.stderr).contains("15 iterations in"),
        "{}",
        text(&second.stderr)
    );
    assert!(
        text(&second.stderr).contains("21 since the beginning"),
        "{}",
        text(&second.stderr)
    );
    let read = |name| std::fs::read(case.path(name)).expect("written");
    assert!([read("a.bin"), read("b.bin")].concat() == expect);
}

#[test]
fn what_is_left_is_counted_or_padded() {
    let case = Case::new(three_to_two());
    case.input("in.f32", 14);
    let output = case.run(&["-i", "in=in.f32", "-o", "out=out.f32"]);
    assert!(
        text(&output.stderr).contains("2 left over (an iteration takes 3)"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(
        std::fs::metadata(case.path("out.f32"))
            .expect("written")
            .len(),
        4 * 8
    );
    let output = case.run(&["-i", "in=in.f32", "-o", "out=out.f32", "--pad"]);
    assert!(
        text(&output.stderr).contains("+1 zeros"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(
        std::fs::metadata(case.path("out.f32"))
            .expect("written")
            .len(),
        4 * 10
    );
    std::fs::write(case.path("odd.bin"), [0; 14]).expect("written");
    let output = case.run(&["-i", "in=odd.bin", "-o", "out=out.f32"]);
    assert!(
        text(&output.stderr).contains("ends with 2 bytes that are not a whole token"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn iterations_and_reports() {
    let case = Case::new(with_tail(programs::two_devices()));
    case.input("in.f32", 1000);
    let args = ["-i", "in=in.f32", "-o", "out=out.f32", "-n", "6"];
    let output = case.run(&[&args[..], &["--report", "text"]].concat());
    let said = text(&output.stderr);
    for part in [
        "6 iterations in",
        "994 left over",
        "plan main   1 blocks of 4",
        "plan tail   2 blocks of 1",
        "latency in -> out",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let output = case.run(&[&args[..], &["--report-file", "report.json"]].concat());
    assert_eq!((code(&output), text(&output.stderr).as_str()), (0, ""));
    let report = std::fs::read(case.path("report.json")).expect("written");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    assert_eq!(report["sources"][0]["leftover"], 994);
}

#[test]
fn mistakes_have_a_code_and_a_mend() {
    let case = Case::new(programs::chain());
    case.input("in.f32", 8);
    std::fs::write(case.path("bad.npy"), b"nothing").expect("written");
    let files = ["-i", "in=in.f32", "-o", "out=out.f32"];
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["-o", "out=x.bin"],
            2,
            "source `in` has no file: say --input in=FILE, or --input in=- for a standard stream",
        ),
        (
            &["-i", "iq=x.bin"],
            2,
            "--input iq=…: the bundle has no source `iq`; it has: in",
        ),
        (&["-i", "in"], 2, "write it as NAME=FILE"),
        (&["--duration", "5"], 2, "write a number and a unit"),
        (
            &["-i", "in=none.f32", "-o", "out=out.f32"],
            4,
            "none.f32: No such file",
        ),
        (
            &["-i", "in=bad.npy", "-o", "out=out.f32"],
            4,
            "bad.npy: is shorter than a NumPy header",
        ),
        (
            &["-i", "in=in.f32", "-o", "out=no/folder.f32"],
            4,
            "no/folder.f32: No such file",
        ),
        (
            &["-i", "in=in.f32", "-o", "out=out.mp3"],
            4,
            "out.mp3: unknown extension `mp3`",
        ),
        (
            &["-i", "in=in.f32", "-o", "out=out.s16"],
            4,
            "holds i16, stream `out` carries f32",
        ),
        (
            &[
                "-i",
                "in=in.f32",
                "-o",
                "out=out.f32",
                "--load-state",
                "in.f32",
            ],
            5,
            "in.f32: ",
        ),
        (
            &["--duration", "4e15h"],
            2,
            "is longer than 1000000h, the longest time",
        ),
    ];
    for (args, expect, part) in cases {
        let output = case.run(args);
        let said = text(&output.stderr);
        assert_eq!(code(&output), *expect, "{args:?}: {said}");
        assert!(
            said.contains(part) && output.stdout.is_empty(),
            "{args:?}: {said}"
        );
    }
    let mut bytes = std::fs::read(case.path("model.zbmd")).expect("written");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(case.path("model.zbmd"), bytes).expect("written");
    let output = case.run(&files);
    assert_eq!(code(&output), 5, "{}", text(&output.stderr));
}

#[test]
fn a_device_that_is_not_here_is_named_with_a_mend() {
    let mut program = programs::chain();
    for device in &mut program.machine.devices {
        device.backend = "tpu".into();
    }
    let case = Case::new(program);
    case.input("in.f32", 8);
    let files = ["-i", "in=in.f32", "-o", "out=out.f32"];
    let output = case.run(&files);
    let said = text(&output.stderr);
    assert_eq!(code(&output), 5, "{said}");
    assert!(
        said.contains("uses cpu:0 of backend `tpu`; this executor runs `cpu`"),
        "{said}"
    );

    // Streams are the host's: where a bundle has one on a GPU, it is refused before any driver is asked.
    let mut program = programs::chain();
    for device in &mut program.machine.devices {
        device.backend = "vulkan".into();
    }
    let case = Case::new(program);
    case.input("in.f32", 8);
    let output = case.run(&files);
    let said = text(&output.stderr);
    assert_eq!(code(&output), 5, "{said}");
    assert!(said.contains("sources and sinks are the host's"), "{said}");

    for (name, api, mend) in [
        (
            "vulkan:0",
            "no Vulkan: ",
            "; install the Vulkan loader and a driver",
        ),
        ("cuda:0", "no CUDA: ", "; install NVIDIA's driver"),
    ] {
        let case = Case::new(on_a_gpu(name));
        case.input("in.f32", 8);
        for isolation in ["threads", "gpus", "processes"] {
            let mut command = case.command(&files);
            // Whatever is installed here: one loader finds no driver, and the other driver no device.
            command
                .env("VK_DRIVER_FILES", "/nowhere.json")
                .env("VK_ICD_FILENAMES", "/nowhere.json")
                .env("CUDA_VISIBLE_DEVICES", "");
            let output = command
                .args(["--isolation", isolation])
                .output()
                .expect("started");
            let said = text(&output.stderr);
            assert_eq!(code(&output), 5, "{isolation}: {said}");
            let expected = format!("error: device {name}: {api}");
            assert!(said.contains(&expected), "{isolation}: {said}");
            assert!(said.contains(mend), "{isolation}: {said}");
        }
    }
}

#[test]
fn a_fault_names_the_actor() {
    let mut program = programs::chain();
    let up = program.graph.find("up").expect("there");
    program.graph.actors[up].op = "Faulty".into();
    let case = Case::new(program);
    std::fs::write(case.path("in.f32"), [0; 32]).expect("written");
    let output = case.run(&["-i", "in=in.f32", "-o", "out=out.f32"]);
    assert_eq!(code(&output), 6);
    let said = text(&output.stderr);
    assert!(
        said.contains("error: actor `up` on cpu:0, block 0: never works"),
        "{said}"
    );
}

#[cfg(unix)]
#[test]
fn an_interrupt_finishes_the_block_and_says_so() {
    let case = Case::new(programs::chain());
    let expect = case.input("in.f32", 4);
    let given = std::fs::read(case.path("in.f32")).expect("written");
    let mut child = case.piped("text");
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = child.stdout.take().expect("piped");
    stdin.write_all(&given).expect("written");
    let mut out = [0; 32];
    stdout.read_exact(&mut out).expect("tokens");
    assert!(out == expect[..]);
    // The input is still open: only the signal ends the run.
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .expect("kill");
    assert!(kill.success());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("ends");
    let output = child.wait_with_output().expect("ends");
    assert_eq!((code(&output), rest.len()), (130, 0));
    assert!(
        text(&output.stderr).contains("chain: 4 iterations in"),
        "{}",
        text(&output.stderr)
    );
    drop(stdin);
}

/// Processes whose environment says that they work for a process of this number.
#[cfg(target_os = "linux")]
fn workers_of(parent: u32) -> Vec<u32> {
    let mark = format!("ZBMD_WORKER={parent}\0");
    let processes = std::fs::read_dir("/proc").expect("on Linux").flatten();
    let numbers = processes.filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    let is_ours = |p: &u32| {
        let environment = std::fs::read(format!("/proc/{p}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(&mark)
    };
    numbers.filter(is_ours).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_that_is_killed_goes_on_and_leaves_nothing_behind() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 3_000_003);
    let mut rng = 7u64;
    for (round, sink) in ["out.bin", "out.npy", "out.wav"]
        .into_iter()
        .cycle()
        .take(9)
        .enumerate()
    {
        let _ = std::fs::remove_dir_all(case.path("points"));
        let output = format!("out={sink}");
        let mut args = vec![
            "-i",
            "in=in.f32",
            "-o",
            &output,
            "--checkpoint",
            "points",
            "--checkpoint-every",
            "10ms",
            "--isolation",
            "processes",
            "--quiet",
        ];
        let mut kills = 0;
        loop {
            let mut child = case
                .command(&args)
                .stderr(Stdio::piped())
                .spawn()
                .expect("started");
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let wait = std::time::Duration::from_millis(20 + (rng >> 33) % 150);
            let begun = std::time::Instant::now();
            while begun.elapsed() < wait && child.try_wait().expect("a child").is_none() {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            if kills < 6 && child.try_wait().expect("a child").is_none() {
                let number = child.id();
                child.kill().expect("killed");
                child.wait().expect("gone");
                kills += 1;
                if kills == 1 {
                    args.push("--resume");
                }
                // The system has told its workers to go; give it the time that takes.
                let begun = std::time::Instant::now();
                while !workers_of(number).is_empty() {
                    let left = workers_of(number);
                    assert!(
                        begun.elapsed().as_secs() < 10,
                        "workers left behind: {left:?}"
                    );
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                continue;
            }
            let done = child.wait_with_output().expect("ended");
            assert_eq!(code(&done), 0, "round {round}: {}", text(&done.stderr));
            break;
        }
        let written = std::fs::read(case.path(sink)).expect("written");
        if sink == "out.wav" {
            let _ = case.run(&["-i", "in=in.f32", "-o", "out=whole.wav", "--quiet"]);
            let whole = std::fs::read(case.path("whole.wav")).expect("written");
            assert!(
                written == whole,
                "round {round}: another sound after {kills} kills"
            );
        } else {
            assert!(
                written.ends_with(&expect),
                "round {round}: other bits after {kills} kills"
            );
            let header = written.len() - expect.len();
            assert_eq!(
                header,
                if sink == "out.npy" { 128 } else { 0 },
                "nothing besides"
            );
        }
    }
}

#[test]
fn checkpoints_that_make_no_sense_are_refused() {
    let case = Case::new(with_tail(programs::two_devices()));
    case.input("in.f32", 1003);
    let output = case.run(&["-i", "in=in.f32", "-o", "out=-", "--checkpoint", "points"]);
    assert_eq!(code(&output), 2);
    assert!(
        text(&output.stderr).contains("cannot be taken back"),
        "{}",
        text(&output.stderr)
    );
    let output = case.run(&["-i", "in=in.f32", "-o", "out=a.bin", "--resume"]);
    assert_eq!(code(&output), 2, "{}", text(&output.stderr));
    // A file in the folder's place.
    std::fs::write(case.path("taken"), "").expect("written");
    let args = ["-i", "in=in.f32", "-o", "out=a.bin"];
    let output = case.run(&[&args[..], &["--checkpoint", "taken"]].concat());
    assert_eq!(code(&output), 4, "{}", text(&output.stderr));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_a_checkpoint_and_nothing_else() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 2_000_003);
    let faults = "Inject(kinds: [full_disk], every: (\"1ms\", \"5ms\"))";
    std::fs::write(case.path("faults.ron"), faults).expect("written");
    let output = case.run(&[
        "-i",
        "in=in.f32",
        "-o",
        "out=out.bin",
        "--checkpoint",
        "points",
        "--checkpoint-every",
        "5ms",
        "--inject",
        "faults.ron",
    ]);
    let said = text(&output.stderr);
    assert_eq!(code(&output), 0, "{said}");
    assert!(said.contains("the older ones stand"), "{said}");
    assert!(std::fs::read(case.path("out.bin")).expect("written") == expect);
}

#[test]
fn declarations_of_supervision_are_read_or_refused_with_the_place() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 100_003);
    std::fs::write(
        case.path("right.ron"),
        "Supervision(intensity: 3, period: \"5s\")",
    )
    .expect("written");
    std::fs::write(
        case.path("wrong.ron"),
        "Supervision(\n  intensity: 3,\n  groupes: {},\n)",
    )
    .expect("written");
    std::fs::write(case.path("faults.ron"), "Inject(kinds: [explode])").expect("written");
    let run = |extra: &[&str]| {
        let mut args = vec!["-i", "in=in.f32", "-o", "out=out.bin", "--quiet"];
        args.extend(extra);
        case.run(&args)
    };
    let output = run(&["--supervise=right.ron", "--events", "events.jsonl"]);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    assert!(std::fs::read(case.path("out.bin")).expect("written") == expect);
    let events = std::fs::read_to_string(case.path("events.jsonl")).expect("written");
    assert!(
        events.lines().all(|line| line.starts_with("{\"at_ns\":")),
        "{events}"
    );
    assert!(
        events.contains("\"event\":\"begin\"") && events.contains("\"last_word\":\"finished\"")
    );
    for (extra, code_, says) in [
        (&["--supervise=wrong.ron"][..], 4, "wrong.ron: line 3"),
        (&["--supervise=none.ron"], 4, "none.ron"),
        (&["--inject", "faults.ron"], 4, "faults.ron: line 1"),
        (&["--events", "no/such/folder"], 4, "no/such/folder"),
    ] {
        let output = run(extra);
        let said = text(&output.stderr);
        assert_eq!(code(&output), code_, "{extra:?}: {said}");
        assert!(said.contains(says), "{extra:?}: {said}");
    }
}
