//! What a recording holds as files of other programs: a SigMF recording of each source is the source once more, and an MCAP
//! file (feature `mcap`) has its tokens, gaps and times. The Python packages of both formats read them too.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;
mod python_peers;

use std::fs;
use std::process::Command;

use common::case::{Case, code};
use common::text;
use live_peers::{LiveRun, copies, free_port, gaps, is_udp_bound, live, send_slowly, wait_until};
use python_peers::{PythonPeer, python_with};
use zbmd_ir::{DType, TokenType};
use zbmd_run::flight::{Recording, TokenRange};

const PACKET_TOKENS: u64 = 100;
const PACKETS: u64 = 300;
const TOKENS: u64 = PACKETS * PACKET_TOKENS;
const TOKEN_BYTES: u64 = 8;
const RATE: f64 = 1e4;
/// Run by both packages' tests, with what to look at as arguments.
const READER: &str = include_str!("python_peers/exports.py");

fn is_lost(number: u64) -> bool {
    number % 17 == 5
}

/// A packet of numbered samples of I/Q.
fn datagram(number: u64) -> Vec<u8> {
    let mut bytes = (number + 1).to_le_bytes().to_vec();
    let first = number * PACKET_TOKENS;
    let values = (first..first + PACKET_TOKENS).flat_map(|i| [i as f32 + 1.0, -1.0]);
    bytes.extend(values.flat_map(f32::to_le_bytes));
    bytes
}

/// Records a stream that loses packets, and the flags of what was filled, to `box`; the outputs are `a.bin` and `flags.bin`.
fn recorded() -> (Case, serde_json::Value) {
    let streams = [
        ("a", TokenType::scalar(DType::C32)),
        ("flags", TokenType::scalar(DType::U8)),
    ];
    let case = Case::new(copies(&streams, PACKET_TOKENS));
    let port = free_port();
    let input = format!("a=udp://127.0.0.1:{port}?header=seq&silence=stall&rate={RATE}");
    let iterations = TOKENS.to_string();
    let args = ["-n", &iterations, "--record", "box", "-i", &input];
    let run = LiveRun::start(&case, &[&args[..], &copied("a", "flags")].concat());
    wait_until("it listens", || is_udp_bound(port));
    let sent = (0..PACKETS).filter(|number| !is_lost(*number));
    send_slowly(port, sent.map(datagram));
    let report = run.end(&case, 0);
    (case, report)
}

/// The flags of `a`, and where both go.
fn copied<'a>(a: &str, flags: &str) -> Vec<&'a str> {
    let outputs = match (a, flags) {
        ("a", "flags") => ["a_out=a.bin", "flags_out=flags.bin"],
        _ => ["a_out=a2.bin", "flags_out=flags2.bin"],
    };
    vec!["-i", "flags=flags:a", "-o", outputs[0], "-o", outputs[1]]
}

/// Exports `box`; the exit code and what is said.
fn export(case: &Case, args: &[&str]) -> (i32, String) {
    let output = Command::new(common::runner())
        .current_dir(case.folder())
        .args(["replay", "box"])
        .args(args)
        .output()
        .expect("started");
    (code(&output), text(&output.stderr))
}

#[track_caller]
fn exported(case: &Case, args: &[&str]) -> String {
    let (exit_code, said) = export(case, args);
    assert_eq!(exit_code, 0, "{args:?}: {said}");
    said
}

#[test]
fn an_exported_source_is_the_source_once_more() {
    let (case, recorded) = recorded();
    let said = exported(&case, &["--export", "sigmf:out"]);
    let lost = (0..PACKETS).filter(|number| is_lost(*number)).count();
    let expect = format!("out-a.sigmf-meta: {TOKENS} tokens of `a` in 1 pieces, {lost} gaps");
    assert!(said.contains(&expect), "{said}");
    assert!(case.read("out-a.sigmf-data") == case.read("a.bin"));
    assert!(case.read("out-flags.sigmf-data") == case.read("flags.bin"));

    let input = ["-i", "a=out-a.sigmf-meta"];
    let args = [&input[..], &copied("again", "again")].concat();
    let again = LiveRun::start(&case, &args).end(&case, 0);
    assert!(case.read("a2.bin") == case.read("a.bin"));
    assert!(case.read("flags2.bin") == case.read("flags.bin"));
    assert_eq!(gaps(live(&again, "a")), gaps(live(&recorded, "a")));
    assert_eq!(live(&again, "a")["stated_rate"], RATE);
}

/// Removes a segment's tail, so that the recording of one source has two pieces.
fn make_hole(case: &Case) -> Vec<TokenRange> {
    let mut paths: Vec<_> = fs::read_dir(case.path("box"))
        .expect("a recording")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "zbseg"))
        .collect();
    paths.sort();
    let middle = &paths[paths.len() / 2];
    let bytes = fs::read(middle).expect("there");
    fs::write(middle, &bytes[..bytes.len() / 2]).expect("written");
    let recording = Recording::open(&case.path("box")).expect("a recording");
    recording.token_ranges(0).to_vec()
}

#[test]
fn what_is_not_in_a_recording_is_missing_in_its_exports() {
    let case = Case::new(copies(&[("a", TokenType::scalar(DType::C32))], 100));
    let given: Vec<u8> = (0..400_000_u64)
        .flat_map(|i| [i as f32, 1.0])
        .flat_map(f32::to_ne_bytes)
        .collect();
    case.write("a.cf32", &given);
    let args = ["-i", "a=a.cf32", "-o", "a_out=a.bin"];
    case.expect(
        0,
        &[&args[..], &["--record", "box", "--keep", "3MiB"]].concat(),
    );
    let ranges = make_hole(&case);
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    let kept: Vec<u8> = ranges
        .iter()
        .flat_map(|range| bytes_of(&given, *range))
        .collect();

    exported(&case, &["--export", "sigmf:out", "--quiet"]);
    assert!(case.read("out-a.sigmf-data") == kept);
    let meta: serde_json::Value =
        serde_json::from_slice(&case.read("out-a.sigmf-meta")).expect("JSON");
    let captures = meta["captures"].as_array().expect("a list");
    let found = captures.iter().map(|capture| &capture["core:global_index"]);
    let firsts: Vec<u64> = ranges.iter().map(|range| range.first).collect();
    assert!(found.eq(firsts.iter()), "{captures:?}");
}

fn bytes_of(given: &[u8], range: TokenRange) -> Vec<u8> {
    given[(TOKEN_BYTES * range.first) as usize..(TOKEN_BYTES * range.end) as usize].to_vec()
}

#[test]
fn what_cannot_be_exported_is_told() {
    let case = Case::new(copies(&[("a", TokenType::scalar(DType::I64))], 1));
    case.write("a.bin", [0; 80]);
    case.expect(
        0,
        &["-i", "a=a.bin", "-o", "a_out=out.bin", "--record", "box"],
    );
    for (exit_code, part, args) in [
        (2, "sigmf:PREFIX or mcap:FILE", &["--export", "wav:x"][..]),
        (
            2,
            "cannot be used with",
            &["--export", "sigmf:x", "-o", "a_out=x"],
        ),
        (
            5,
            "SigMF has no type for tokens of i64, which source `a` has",
            &["--export", "sigmf:x"],
        ),
    ] {
        let (found, said) = export(&case, args);
        assert_eq!(found, exit_code, "{args:?}: {said}");
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!case.path("x-a.sigmf-data").exists());

    let (case, _) = recorded();
    let (exit_code, said) = export(&case, &["--export", "sigmf:box/x"]);
    assert_eq!(exit_code, 5, "{said}");
    assert!(said.contains("is in the folder of the recording"), "{said}");
    let (exit_code, said) = export(&case, &["--export", "sigmf:nowhere/x"]);
    assert_eq!(exit_code, 4, "{said}");
    assert!(said.contains("nowhere: No such file"), "{said}");
}

#[test]
fn the_python_package_of_sigmf_opens_what_is_exported() {
    let Some(python) = python_with("import sigmf", "pip install sigmf, and ZBMD_PYTHON") else {
        return;
    };
    let (case, _) = recorded();
    exported(&case, &["--export", "sigmf:out"]);
    let args = ["sigmf", "out-a.sigmf-meta", "a.bin", "flags.bin"];
    PythonPeer::start(&python, READER, case.folder(), &args).end();
}

#[cfg(feature = "mcap")]
mod mcap_files {
    use super::*;

    /// The payloads of a channel, one after another; of tokens without their first index, which is checked.
    fn payloads(file: &[u8], topic: &str) -> Vec<Vec<u8>> {
        let messages = mcap::MessageStream::new(file).expect("a file");
        let messages = messages.map(|message| message.expect("whole"));
        let on_topic = messages.filter(|message| message.channel.topic == topic);
        on_topic.map(|message| message.data.into_owned()).collect()
    }

    fn tokens(file: &[u8], topic: &str, token_bytes: usize) -> Vec<u8> {
        let mut tokens = Vec::new();
        for payload in payloads(file, topic) {
            let (first, bytes) = payload.split_first_chunk().expect("an index");
            let next = (tokens.len() / token_bytes) as u64;
            assert_eq!(u64::from_ne_bytes(*first), next, "{topic}");
            tokens.extend_from_slice(bytes);
        }
        tokens
    }

    #[test]
    fn an_mcap_file_has_tokens_and_gaps() {
        let (case, recorded) = recorded();
        let said = exported(&case, &["--export", "mcap:out.mcap"]);
        assert!(said.contains("messages of 2 sources, 0 changes"), "{said}");
        let file = case.read("out.mcap");
        assert!(tokens(&file, "/sources/a", 8) == case.read("a.bin"));
        assert!(tokens(&file, "/sources/flags", 1) == case.read("flags.bin"));
        let found = payloads(&file, "/gaps").into_iter().map(|payload| {
            let gap: serde_json::Value = serde_json::from_slice(&payload).expect("JSON");
            assert_eq!(gap["source"], "a");
            assert_eq!(gap["cause"], "lost");
            let number = |key: &str| gap[key].as_u64().expect("a number");
            (number("first"), number("length"))
        });
        assert!(found.eq(gaps(live(&recorded, "a"))));

        let (exit_code, said) = export(&case, &["--export", "mcap:box/model.zbmd"]);
        assert_eq!(exit_code, 5, "{said}");
        assert!(said.contains("is in the folder of the recording"), "{said}");
    }

    #[test]
    fn the_python_package_of_mcap_opens_what_is_exported() {
        let Some(python) = python_with("import mcap.reader", "pip install mcap, and ZBMD_PYTHON")
        else {
            return;
        };
        let (case, _) = recorded();
        exported(&case, &["--export", "mcap:out.mcap"]);
        let args = ["mcap", "out.mcap", "a.bin", "flags.bin"];
        PythonPeer::start(&python, READER, case.folder(), &args).end();
    }
}

#[cfg(not(feature = "mcap"))]
#[test]
fn a_build_without_mcap_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(common::runner())
        .args(["replay", "box", "--export", "mcap:x.mcap"])
        .current_dir(folder.path())
        .output()
        .expect("started");
    let said = text(&output.stderr);
    assert_eq!(code(&output), 2, "{said}");
    assert!(said.contains("is built without MCAP"), "{said}");
    assert!(!folder.path().join("x.mcap").exists());
}
