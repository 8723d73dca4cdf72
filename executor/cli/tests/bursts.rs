//! Bursts and the command as a process: files of records and lines, datagrams, and runs that go on after a kill.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;

use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Stdio;

use common::case::Case;
use common::text;
use live_peers::{LIMIT, LiveRun, copies, live, wait_until};
use zbmd_ir::burst::{BurstLayout, HEADER_BYTES};
use zbmd_ir::{DType, TokenType};

fn token() -> TokenType {
    TokenType::burst(DType::U8, [6])
}

/// So many bursts, of which every fourth has items: as many as its number has digits, each of them a digit.
fn tokens(count: usize) -> Vec<u8> {
    let layout = BurstLayout::of(&token()).expect("a burst");
    let mut tokens = Vec::new();
    for number in 0..count {
        let digits = number.to_string().into_bytes();
        match number % 4 {
            3 => layout.append(number as i64 * 10, &digits, &mut tokens),
            _ => layout.append(0, &[], &mut tokens),
        }
    }
    tokens
}

fn case_with_file(count: usize) -> (Case, Vec<u8>) {
    let case = Case::new(copies(&[("a", token())], 100));
    let given = tokens(count);
    case.write("a.bin", &given);
    (case, given)
}

fn lines(count: usize) -> String {
    let with_items = (0..count).filter(|number| number % 4 == 3);
    let line = |number: usize| {
        let items: Vec<String> = number.to_string().bytes().map(|b| b.to_string()).collect();
        let (first, items) = (number * 10, items.join(","));
        format!("{{\"token\":{number},\"first\":{first},\"items\":[{items}]}}\n")
    };
    with_items.map(line).collect()
}

#[test]
fn files_have_the_items_there_are() {
    let (case, given) = case_with_file(1_000);
    case.expect(0, &["-i", "a=a.bin", "-o", "a_out=b.bursts"]);
    assert!(case.read("b.bursts").len() < given.len() / 4);

    // The records are the same stream again.
    case.expect(0, &["-i", "a=b.bursts", "-o", "a_out=c.bin"]);
    // Empty bursts behind the last one are in no file of records: here there are none.
    assert!(case.read("c.bin") == given);

    case.expect(0, &["-i", "a=a.bin", "-o", "a_out=lines.jsonl"]);
    assert_eq!(text(&case.read("lines.jsonl")), lines(1_000));
    let printed = case.run(&["-i", "a=a.bin", "-o", "a_out=-"]);
    assert_eq!(text(&printed.stdout), lines(1_000));
}

#[test]
fn what_bursts_cannot_be_is_refused() {
    let (case, _) = case_with_file(100);
    for (input, output, code, words) in [
        (
            "a.bin",
            "x.npy",
            4,
            "holds samples, stream `a_out` carries burst u8[6]",
        ),
        ("a.bin", "x.u8", 4, "name the file .bursts, .jsonl"),
        ("x.jsonl", "x.bin", 4, "JSON lines are written, not read"),
        (
            "a.bin",
            "tcp://127.0.0.1:9",
            4,
            "bursts go to files and to udp://",
        ),
        (
            "udp://127.0.0.1:0?rate=10",
            "x.bin",
            2,
            "bursts come from files",
        ),
    ] {
        case.write("x.jsonl", b"");
        let input = format!("a={input}");
        let output = format!("a_out={output}");
        let said = case.expect(code, &["-i", &input, "-o", &output]);
        assert!(said.contains(words), "{said}");
    }
    let said = case.expect(
        2,
        &[
            "-i",
            "a=a.bin",
            "-o",
            "a_out=x.jsonl",
            "--checkpoint",
            "points",
        ],
    );
    assert!(said.contains("name the file .bursts"), "{said}");
}

#[test]
fn each_burst_is_a_datagram() {
    let (case, given) = case_with_file(400);
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    receiver.set_read_timeout(Some(LIMIT)).expect("a limit");
    let port = receiver.local_addr().expect("bound").port();
    let url = format!("a_out=udp://127.0.0.1:{port}");
    let run = LiveRun::start(&case, &["-i", "a=a.bin", "-o", &url]);

    let layout = BurstLayout::of(&token()).expect("a burst");
    let bursts = layout.read_all(&given).map(|burst| burst.expect("short"));
    for burst in bursts.filter(|burst| burst.length > 0) {
        let mut datagram = [0; 100];
        let bytes = receiver.recv(&mut datagram).expect("a datagram");
        let mut token = datagram[..layout.token_bytes].to_vec();
        token[bytes..].fill(0);
        assert_eq!(bytes, HEADER_BYTES + burst.items.len());
        assert_eq!(layout.read(&token), Ok(burst));
    }
    let report = run.end(&case, 0);
    assert_eq!(live(&report, "a_out")["received"], 400);
    assert_eq!(live(&report, "a_out")["sent"], 100);
}

#[test]
fn a_killed_run_goes_on_in_its_file() {
    let count = 400_000;
    let (case, _) = case_with_file(count);
    case.expect(0, &["-i", "a=a.bin", "-o", "a_out=whole.bursts"]);
    let args = [
        "-i",
        "a=a.bin",
        "-o",
        "a_out=b.bursts",
        "--checkpoint",
        "points",
        "--checkpoint-every",
        "1ms",
    ];
    let mut killed = case
        .command(&args)
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let length = || fs::metadata(case.path("b.bursts")).map_or(0, |file| file.len());
    let mut ended = || matches!(killed.try_wait(), Ok(Some(_)));
    wait_until("it writes", || length() > 100_000 || ended());
    let _ = killed.kill();
    let _ = killed.wait();

    case.expect(0, &[&args[..], &["--resume"]].concat());
    assert!(case.read("b.bursts") == case.read("whole.bursts"));
}
