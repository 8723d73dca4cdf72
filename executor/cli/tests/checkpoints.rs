//! A run has an identity: what `zbmd-run` takes for its own in a folder of checkpoints or in a state file, and what it
//! refuses, with the two values that differ.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::io::Write;
use std::process::Stdio;

use common::case::{Case, code};
use common::{replanned, text, verified, with_tail};
use zbmd_ir::testing::{EXTREME_COUNTS, programs};
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{Program, State, bundle, state};
use zbmd_run::checkpoint::{Checkpoint, Folder, Found};

const TOKENS: u64 = 20_003;

/// A case with an input, and what comes of it.
fn case() -> (Case, Vec<u8>) {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", TOKENS);
    (case, expect)
}

/// Reads `in`, writes `out`, and keeps checkpoints in `points`.
fn run_on<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["--checkpoint", "points", "--checkpoint-every", "1ms"];
    args.extend_from_slice(extra);
    args
}

const FILES: [&str; 4] = ["-i", "in=in.f32", "-o", "out=out.bin"];

/// The same graph but for its source's rate, which is twice as high.
fn with_twice_the_rate(mut program: Program) -> Program {
    let source = program.graph.find("in").expect("there");
    program.graph.actors[source].outputs[0].rate *= 2;
    replanned(program, 4)
}

#[test]
fn a_folder_is_one_runs_alone() {
    let (case, expect) = case();
    case.expect(0, &run_on(&FILES));

    // The repository's case `stale-checkpoint`: another run in the same folder.
    case.write("other.f32", vec![1; 4 * TOKENS as usize]);
    let others = ["-i", "in=other.f32", "-o", "out=other.bin"];
    let said = case.expect(5, &run_on(&others));
    assert!(
        said.contains("points: holds checkpoints of a run") && said.contains("out.bin"),
        "{said}"
    );
    assert!(!case.path("other.bin").exists(), "nothing was opened");
    let said = case.expect(5, &run_on(&[&others[..], &["--resume"]].concat()));
    assert!(
        said.contains("/out.bin, not to ") && said.contains("/other.bin"),
        "{said}"
    );

    let replaced = [&others[..], &["--checkpoint-replace"]].concat();
    case.expect(0, &run_on(&replaced));
    let said = case.expect(5, &run_on(&[&FILES[..], &["--resume"]].concat()));
    assert!(said.contains("--checkpoint-replace"), "{said}");
    assert!(case.read("out.bin") == expect);
    let both = [&FILES[..], &["--checkpoint-replace", "--resume"]].concat();
    case.expect(2, &run_on(&both));
}

#[test]
fn what_differs_from_the_run_is_refused_and_what_does_not_matter_is_not() {
    let (case, expect) = case();
    case.expect(0, &run_on(&FILES));
    let input = case.read("in.f32");
    let resumed = |input: &'static str, output: &'static str| {
        let args = ["-i", input, "-o", output, "--resume", "--quiet"];
        case.run(&run_on(&args))
    };
    let check = |input: &'static str, output: &'static str, refusal: Option<&str>| {
        let output = resumed(input, output);
        let said = text(&output.stderr);
        match refusal {
            None => assert_eq!((code(&output), said.as_str()), (0, ""), "{input}"),
            Some(part) => {
                assert_eq!(code(&output), 5, "{input}: {said}");
                assert!(said.contains(part), "{input}: {said}");
            }
        }
    };

    case.write("copied.f32", &input);
    check("in=copied.f32", "out=out.bin", None);
    case.write("grown.f32", [&input[..], &[0; 400]].concat());
    case.write("shorter.f32", &input[..input.len() - 4]);
    check(
        "in=shorter.f32",
        "out=out.bin",
        Some("which had 80012 bytes"),
    );
    let mut changed = input.clone();
    changed[1] ^= 1;
    case.write("changed.f32", &changed);
    check(
        "in=changed.f32",
        "out=out.bin",
        Some("begins with other bytes"),
    );
    let mut changed = input.clone();
    changed[input.len() - 1] ^= 1;
    case.write("changed.f32", &changed);
    check("in=changed.f32", "out=out.bin", Some("with other bytes"));
    check("in=in.f32", "out=moved.bin", Some("moved.bin"));
    check("in=in.f32", "out=./out.bin", None);
    assert!(case.read("out.bin") == expect);
    check("in=grown.f32", "out=out.bin", None);
    assert!(case.read("out.bin").starts_with(&expect));

    // From another folder, the same names are other files.
    fs::create_dir(case.path("elsewhere")).expect("a folder");
    let output = case.shell(
        "cp model.zbmd in.f32 elsewhere; cd elsewhere; {}",
        &[
            "-i",
            "in=in.f32",
            "-o",
            "out=out.bin",
            "--resume",
            "--checkpoint",
            "../points",
        ],
    );
    let said = text(&output.stderr);
    assert_eq!(code(&output), 5, "{said}");
    assert!(said.contains("elsewhere/out.bin"), "{said}");
}

#[test]
fn another_bundle_is_refused_unless_it_has_the_same_graph_and_is_asked_for() {
    let (case, expect) = case();
    case.expect(0, &run_on(&FILES));
    let resume = run_on(&[&FILES[..], &["--resume"]].concat());
    let with_flag = [&resume[..], &["--other-bundle"]].concat();

    // The same graph, planned otherwise: its blocks are single iterations.
    let other_plan = replanned(case.program.clone(), 1);
    bundle::write(&case.path("model.zbmd"), &verified(other_plan)).expect("written");
    let said = case.expect(5, &resume);
    assert!(said.contains("--other-bundle takes it"), "{said}");
    case.expect(0, &with_flag);
    assert!(case.read("out.bin") == expect);

    // The repository's case `rates-not-in-fingerprint`.
    let faster = verified(with_twice_the_rate(programs::chain()));
    let chain = Case::new(with_tail(programs::chain()));
    let _ = chain.input("in.f32", TOKENS);
    chain.expect(0, &run_on(&FILES));
    let whole = chain.read("out.bin");
    bundle::write(&chain.path("model.zbmd"), &faster).expect("written");
    for args in [&resume, &with_flag] {
        let said = chain.expect(5, args);
        assert!(said.contains("with graph"), "{said}");
    }
    assert!(chain.read("out.bin") == whole, "nothing was cut off");

    let kept = Case::new(with_tail(programs::chain()));
    let _ = kept.input("in.f32", TOKENS);
    kept.expect(0, &[&FILES[..], &["--save-state", "border"]].concat());
    bundle::write(&kept.path("model.zbmd"), &faster).expect("written");
    let said = kept.expect(5, &[&FILES[..], &["--load-state", "border"]].concat());
    assert!(said.contains("border: made by graph"), "{said}");
}

#[test]
fn two_runs_do_not_share_a_folder_and_a_killed_one_frees_it() {
    // Borders are seldom where blocks are short: it takes many to come to the first.
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 2_000_003);
    let input = case.read("in.f32");
    let mut first = case
        .command(&run_on(&["-i", "in=-", "-o", "out=out.bin", "--quiet"]))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut stdin = first.stdin.take().expect("piped");
    stdin.write_all(&input[..4_000_000]).expect("written");
    // Its first checkpoint says that it holds the folder.
    let has_checkpoint = || {
        let entries = fs::read_dir(case.path("points")).into_iter().flatten();
        entries
            .flatten()
            .any(|e| e.path().extension().is_some_and(|e| e == "zbcp"))
    };
    let begun = std::time::Instant::now();
    while !has_checkpoint() {
        assert!(begun.elapsed().as_secs() < 60, "no checkpoint");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    for mode in ["--resume", "--checkpoint-replace"] {
        let said = case.expect(5, &run_on(&[&FILES[..], &[mode]].concat()));
        assert!(
            said.contains("points: another run is using this folder"),
            "{said}"
        );
    }
    first.kill().expect("killed");
    first.wait().expect("gone");
    drop(stdin);

    // A file that was being written when it was killed goes with the next run.
    let leftover = case.path("points/.zbmd-checkpoint-k1ll3d");
    fs::write(&leftover, "half a checkpoint").expect("written");
    // The input was a pipe, of which nothing can be known; now it is a file.
    let said = case.expect(0, &run_on(&[&FILES[..], &["--resume"]].concat()));
    assert!(said.contains("source `in` is or was a pipe"), "{said}");
    assert!(case.read("out.bin") == expect);
    assert!(!leftover.exists());
}

#[test]
fn folders_that_are_not_of_a_run_are_left_alone() {
    let (case, _) = case();
    fs::create_dir(case.path("points")).expect("a folder");
    case.write("points/letter.txt", "dear");
    for mode in [&[][..], &["--resume"], &["--checkpoint-replace"]] {
        let said = case.expect(5, &run_on(&[&FILES[..], mode].concat()));
        assert!(said.contains("points: holds `letter.txt`"), "{said}");
    }
    assert_eq!(fs::read_dir(case.path("points")).expect("there").count(), 1);
    fs::remove_file(case.path("points/letter.txt")).expect("there");

    // Checkpoints without the name of their run.
    case.write("points/00000000000000000009.zbcp", "ZBCP?");
    for mode in [&[][..], &["--resume"]] {
        let said = case.expect(5, &run_on(&[&FILES[..], mode].concat()));
        assert!(said.contains("beside 1 checkpoints"), "{said}");
    }
    case.expect(
        0,
        &run_on(&[&FILES[..], &["--checkpoint-replace"]].concat()),
    );

    // A damaged name; and what is not a folder.
    let mut name = case.read("points/run.zbrun");
    let last = name.len() - 20;
    name[last] ^= 1;
    case.write("points/run.zbrun", name);
    let said = case.expect(5, &run_on(&[&FILES[..], &["--resume"]].concat()));
    assert!(said.contains("run.zbrun: checksum"), "{said}");
    case.expect(2, &[&FILES[..], &["--checkpoint", "model.zbmd"]].concat());
    case.write("file", "");
    case.expect(4, &[&FILES[..], &["--checkpoint", "file"]].concat());
}

#[test]
fn a_run_that_began_at_a_state_does_not_begin_anew_without_it() {
    let (case, _) = case();
    case.expect(
        0,
        &[&FILES[..], &["-n", "100", "--save-state", "border"]].concat(),
    );
    let from_state = [&FILES[..], &["--load-state", "border"]].concat();
    case.expect(0, &run_on(&from_state));
    for file in Folder::open(&case.path("points"), 3)
        .expect("free")
        .files()
        .expect("there")
    {
        fs::write(file, "damaged").expect("written");
    }
    let said = case.expect(5, &run_on(&[&FILES[..], &["--resume"]].concat()));
    assert!(
        said.contains("began at a state from --load-state"),
        "{said}"
    );
}

/// A disk that was full may have kept a checkpoint and not the tokens before it.
#[test]
fn a_checkpoint_past_the_end_of_an_output_is_passed_over_for_an_older_one() {
    let case = Case::new(with_tail(programs::two_devices()));
    let expect = case.input("in.f32", 400_003);
    for output in ["out.bin", "out.npy", "out.wav"] {
        let _ = fs::remove_dir_all(case.path("points"));
        let argument = format!("out={output}");
        let args = ["-i", "in=in.f32", "-o", &argument, "--checkpoint-keep", "9"];
        case.expect(0, &run_on(&args));
        let whole = case.read(output);
        let names: Vec<u64> = Folder::open(&case.path("points"), 9)
            .expect("free")
            .files()
            .expect("there")
            .iter()
            .filter_map(|file| file.file_stem()?.to_str()?.parse().ok())
            .collect();
        let (newest, older) = (names[0], names[1]);
        let header = match output {
            "out.npy" => 128,
            "out.wav" => 44,
            _ => 0,
        };
        let token_bytes = (whole.len() as u64 - header) / newest;
        let file = fs::File::options()
            .write(true)
            .open(case.path(output))
            .expect("there");
        file.set_len(header + token_bytes * older + token_bytes / 2)
            .expect("shorter");
        let said = case.expect(0, &run_on(&[&args[..], &["--resume"]].concat()));
        let reason = format!("{output} has {older} whole tokens, {newest} were written");
        assert!(said.contains(&reason), "{said}");
        assert!(case.read(output) == whole, "{output}");
        assert!(output == "out.wav" || whole.ends_with(&expect));
    }
}

/// Every number of a checkpoint and of a state at every extreme, alone and together with the others, with checksums that
/// fit: refused, or the run goes on from there and its output is right. Nothing wraps.
#[test]
fn numbers_at_their_extremes_are_refused_or_work() {
    let (case, expect) = case();
    case.expect(0, &run_on(&FILES));
    let graph = case.program.graph.clone();
    let whole = {
        let folder = Folder::open(&case.path("points"), 3).expect("free");
        let Found::Run(identity) = folder.found().expect("named") else {
            panic!("the folder is a run's");
        };
        let (found, passed_over) = folder
            .newest(&[&graph], &identity.run_id, |_| Ok(()))
            .expect("there");
        found.unwrap_or_else(|| panic!("{passed_over:?}"))
    };
    let begin = Checkpoint {
        state: State::initial(&graph),
        ..whole
    };
    let (sink, sink_actor) = graph.sinks().next().expect("a sink");
    let firings = repetition(&graph).expect("consistent");
    let sink_rate = firings[sink] * sink_actor.inputs[0].rate;

    let mut accepted = 0;
    for extreme in EXTREME_COUNTS {
        for subset in [
            0b0001, 0b0010, 0b0100, 0b1000, 0b0101, 0b1010, 0b1100, 0b1111,
        ] {
            let mut changed = begin.clone();
            let places = [
                &mut changed.origin.iterations,
                &mut changed.origin.consumed[0],
                &mut changed.state.iterations,
                &mut changed.state.consumed[0].1,
            ];
            for (index, place) in places.into_iter().enumerate() {
                if subset & 1 << index != 0 {
                    *place = extreme;
                }
            }
            // As the other numbers have it, which may be more than a number can be.
            let iterations = changed.state.iterations;
            let since_origin = iterations.wrapping_sub(changed.origin.iterations);
            changed.sink_tokens[0] = since_origin.wrapping_mul(sink_rate);
            // A run reads and skips what was consumed: that is bounded by the input, so nothing is waited for.
            let bytes = changed.encode(&[&graph]);
            for old in Folder::open(&case.path("points"), 3)
                .expect("free")
                .files()
                .expect("there")
            {
                fs::remove_file(old).expect("there");
            }
            case.write(&format!("points/{:020}.zbcp", extreme), bytes);
            let output = case.run(&run_on(&[&FILES[..], &["--resume"]].concat()));
            let said = text(&output.stderr);
            assert_eq!(code(&output), 0, "{extreme} {subset:04b}: {said}");
            let written = case.read("out.bin");
            assert_eq!(written.len(), expect.len(), "{extreme} {subset:04b}");
            // The state is the one of the beginning: only there does the same output follow from it.
            if said.contains("passed over") || changed.sink_tokens[0] == 0 {
                assert!(written == expect, "{extreme} {subset:04b}");
            }
            case.write("out.bin", &expect);
            accepted += usize::from(!said.contains("passed over"));
        }
    }
    assert!(accepted > 20, "only {accepted} were gone on from");
}

/// The same of a state, which has no files before it.
#[test]
fn numbers_of_a_state_at_their_extremes_are_refused_or_work() {
    let (case, expect) = case();
    let graph = case.program.graph.clone();
    for extreme in EXTREME_COUNTS {
        for subset in [0b01, 0b10, 0b11] {
            let mut changed = State::initial(&graph);
            if subset & 1 != 0 {
                changed.iterations = extreme;
            }
            if subset & 2 != 0 {
                changed.consumed[0].1 = extreme;
            }
            case.write("border", state::encode(&changed, &graph, None));
            let output = case.run(
                &[
                    &FILES[..],
                    &["--load-state", "border", "--save-state", "border"],
                ]
                .concat(),
            );
            let said = text(&output.stderr);
            match code(&output) {
                0 => assert!(case.read("out.bin") == expect, "{extreme} {subset:02b}"),
                5 => assert!(said.contains("no run reaches"), "{said}"),
                other => panic!("{extreme} {subset:02b}: exit {other}: {said}"),
            }
        }
    }
}
