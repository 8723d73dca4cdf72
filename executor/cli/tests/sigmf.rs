//! SigMF recordings of the command as a process: what is recorded of a stream with gaps replays to the same tokens, gaps
//! and flags, and other tools accept what is written.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;

use std::process::{Command, Stdio};

use common::case::Case;
use common::text;
use live_peers::{LiveRun, copies, free_port, gaps, is_udp_bound, live, send_slowly, wait_until};
use zbmd_ir::{DType, TokenType};

const PACKET_TOKENS: u64 = 100;
const PACKETS: u64 = 300;

fn iq() -> TokenType {
    TokenType::scalar(DType::C32)
}

fn with_flags() -> Case {
    Case::new(copies(
        &[("a", iq()), ("flags", TokenType::scalar(DType::U8))],
        100,
    ))
}

fn is_lost(number: u64) -> bool {
    number % 17 == 5
}

/// Packets of GNU Radio's `udp_sink`, without those that are lost.
fn datagrams() -> impl Iterator<Item = Vec<u8>> {
    (0..PACKETS)
        .filter(|number| !is_lost(*number))
        .map(|number| {
            let mut datagram = (number + 1).to_le_bytes().to_vec();
            let first = number * PACKET_TOKENS;
            let values = (first..first + PACKET_TOKENS).flat_map(|i| [i as f32 + 1.0, -1.0]);
            datagram.extend(values.flat_map(f32::to_le_bytes));
            datagram
        })
}

/// Records a stream that loses packets; the case, and the report.
fn record(keys: &str) -> (Case, serde_json::Value) {
    let case = with_flags();
    let port = free_port();
    let input = format!("a=udp://127.0.0.1:{port}?header=seq&silence=stall&rate=1e4{keys}");
    let iterations = (PACKETS * PACKET_TOKENS).to_string();
    let args = [
        "-i",
        &input,
        "-i",
        "flags=flags:a",
        "-o",
        "a_out=rec.sigmf-meta",
        "-o",
        "flags_out=flags.u8",
        "-n",
        &iterations,
    ];
    let run = LiveRun::start(&case, &args);
    wait_until("it listens", || is_udp_bound(port));
    send_slowly(port, datagrams());
    let report = run.end(&case, 0);
    (case, report)
}

fn meta(case: &Case, name: &str) -> serde_json::Value {
    serde_json::from_slice(&case.read(name)).expect("JSON")
}

#[test]
fn a_recording_replays_to_the_same_tokens_gaps_and_flags() {
    for keys in ["", "&fill=hold"] {
        let (case, recorded) = record(keys);
        let lost: Vec<(u64, u64)> = (0..PACKETS)
            .filter(|number| is_lost(*number))
            .map(|number| (number * PACKET_TOKENS, PACKET_TOKENS))
            .collect();
        assert_eq!(gaps(live(&recorded, "a")), lost);
        let description = meta(&case, "rec.sigmf-meta");
        let annotations = description["annotations"].as_array().expect("a list");
        assert_eq!(annotations.len(), lost.len());
        assert_eq!(
            description["captures"].as_array().expect("a list").len(),
            lost.len() + 1
        );
        assert_eq!(description["global"]["core:sample_rate"], 1e4);

        for input in [
            "a=rec.sigmf-meta",
            "a=rec.sigmf-data",
            "a=sigmf:rec.sigmf-meta",
        ] {
            let args = [
                "-i",
                input,
                "-i",
                "flags=flags:a",
                "-o",
                "a_out=again.sigmf-data",
                "-o",
                "flags_out=again.u8",
            ];
            let replayed = LiveRun::start(&case, &args).end(&case, 0);
            assert!(
                case.read("again.sigmf-data") == case.read("rec.sigmf-data"),
                "{input}{keys}"
            );
            assert!(
                case.read("again.u8") == case.read("flags.u8"),
                "{input}{keys}"
            );
            let again = live(&replayed, "a");
            let before = live(&recorded, "a");
            assert_eq!(again["gaps"], before["gaps"]);
            assert_eq!(again["filled"], before["filled"]);
            // A recording of the recording says the same, but for the rate, which the model does not know.
            let second = meta(&case, "again.sigmf-meta");
            assert_eq!(second["annotations"], description["annotations"]);
            assert_eq!(second["captures"], description["captures"]);
        }
    }
}

#[test]
fn what_is_missing_in_other_recordings_is_filled_as_declared() {
    let case = with_flags();
    let samples: Vec<u8> = (0..150u16)
        .flat_map(|i| [f32::from(i).to_be_bytes(), 2f32.to_be_bytes()])
        .flatten()
        .collect();
    case.write("other.sigmf-data", samples);
    let meta = r#"{
        "global": {"core:datatype": "cf32_be", "core:version": "1.0.0", "core:sample_rate": 100},
        "captures": [{"core:sample_start": 0, "core:global_index": 1000}, {"core:sample_start": 90, "core:global_index": 1140}],
        "annotations": [{"core:sample_start": 3, "core:comment": "somebody else's"}]
    }"#;
    case.write("other.sigmf-meta", meta);
    for (input, filled) in [
        ("a=other.sigmf-meta", [0.0, 0.0]),
        ("a=sigmf:other.sigmf-meta?fill=hold", [89.0, 2.0]),
    ] {
        let args = [
            "-i",
            input,
            "-i",
            "flags=flags:a",
            "-o",
            "a_out=a.cf32",
            "-o",
            "flags_out=flags.u8",
        ];
        let report = LiveRun::start(&case, &args).end(&case, 0);
        assert_eq!(gaps(live(&report, "a")), [(90, 50)]);
        assert_eq!(live(&report, "a")["stated_rate"], 100.0);
        let values: Vec<f32> = case
            .read("a.cf32")
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_ne_bytes(*bytes))
            .collect();
        let expect = (0..90u16).map(|i| [f32::from(i), 2.0]);
        let expect = expect
            .chain([filled; 50])
            .chain((90..150u16).map(|i| [f32::from(i), 2.0]));
        let expect: Vec<f32> = expect.flatten().collect();
        assert!(values == expect, "{input}");
        let flags: Vec<u8> = (0..200).map(|i| u8::from((90..140).contains(&i))).collect();
        assert_eq!(case.read("flags.u8"), flags);
    }
}

#[test]
fn a_recording_that_makes_no_sense_is_refused_with_its_place() {
    let case = with_flags();
    case.write("rec.sigmf-data", [0; 80]);
    case.write("no.sigmf-data", "");
    let outputs = [
        "-i",
        "flags=flags:a",
        "-o",
        "a_out=a.bin",
        "-o",
        "flags_out=f.bin",
    ];
    let real = r#"{"global":{"core:datatype":"ci16_le"}}"#;
    let beyond =
        r#"{"global":{"core:datatype":"cf32_le"},"captures":[{"core:sample_start":4294967296}]}"#;
    for (meta, part) in [
        (real, "rec.sigmf-meta: holds ci16_le, the tokens are c32"),
        (
            beyond,
            "rec.sigmf-meta: capture 0: begins at sample 4294967296; the data has 10",
        ),
        ("{}", "rec.sigmf-meta: is not a SigMF description"),
    ] {
        case.write("rec.sigmf-meta", meta);
        let said = case.expect(4, &[&["-i", "a=rec.sigmf-data"][..], &outputs].concat());
        assert!(said.contains(part), "{said}");
    }
    let said = case.expect(4, &[&["-i", "a=no.sigmf-data"][..], &outputs].concat());
    assert!(said.contains("no.sigmf-meta: No such file"), "{said}");
    let said = case.expect(2, &[&["-i", "a=sigmf:"][..], &outputs].concat());
    assert!(said.contains("write sigmf:NAME.sigmf-meta"), "{said}");
    // Reading and writing one recording would destroy it.
    for (output, other) in [
        ("a_out=rec.sigmf-meta", "flags_out=x.bin"),
        ("a_out=rec.sigmf-data", "flags_out=x.bin"),
        ("flags_out=rec.sigmf-meta", "a_out=x.bin"),
    ] {
        let args = [
            "-i",
            "a=rec.sigmf-meta",
            "-i",
            "flags=flags:a",
            "-o",
            output,
            "-o",
            other,
        ];
        let said = case.expect(2, &args);
        assert!(said.contains("rec.sigmf-"), "{said}");
    }
    assert_eq!(case.read("rec.sigmf-data"), [0; 80]);

    let wide = Case::new(copies(&[("a", TokenType::scalar(DType::I64))], 1));
    wide.write("a.bin", [0; 16]);
    let said = wide.expect(4, &["-i", "a=a.bin", "-o", "a_out=rec.sigmf-meta"]);
    assert!(
        said.contains("SigMF has no type for tokens of i64"),
        "{said}"
    );
}

#[test]
fn a_run_that_is_killed_leaves_a_recording_that_can_be_read() {
    let case = Case::new(copies(&[("a", iq())], 10));
    case.write("a.cf32", vec![1; 8 * 100_000]);
    let args = [
        "-i",
        "a=paced:a.cf32?rate=1e4",
        "-o",
        "a_out=rec.sigmf-meta",
    ];
    let run = LiveRun::start(&case, &args);
    let data_path = case.path("rec.sigmf-data");
    wait_until("it records", || {
        std::fs::metadata(&data_path).is_ok_and(|metadata| metadata.len() > 8000)
    });
    drop(run);
    let replayed = LiveRun::start(&case, &["-i", "a=rec.sigmf-meta", "-o", "a_out=a.bin"]);
    replayed.end(&case, 0);
    let recorded = case.read("rec.sigmf-data");
    let whole = recorded.len() / 80 * 80;
    assert!(case.read("a.bin") == recorded[..whole]);
}

#[test]
fn the_validator_of_sigmf_accepts_what_is_written() {
    let program = std::env::var("SIGMF_VALIDATE").unwrap_or_else(|_| "sigmf_validate".to_owned());
    let is_there = Command::new(&program)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    if is_there.is_err() {
        eprintln!("SKIPPED: {program} is not there (pip install sigmf, or set SIGMF_VALIDATE)");
        return;
    }
    let (case, _) = record("");
    let output = Command::new(&program)
        .arg(case.path("rec.sigmf-meta"))
        .output()
        .expect("it is there");
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(!said.to_lowercase().contains("warn"), "{said}");
}
