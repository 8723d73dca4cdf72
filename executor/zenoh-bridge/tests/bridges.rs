//! Two bridges, a router between them where it matters, and processes that are killed.

mod common;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Bridge, endpoint, free_port, listen, random_bytes, wait_until};
use zenoh::Wait;

fn text(path: &Path) -> &str {
    path.to_str().expect("a name of ours")
}

#[test]
fn a_stream_arrives_as_it_was_and_ends() {
    let at = endpoint(free_port());
    // Messages of 400 bytes, and a last one that is shorter.
    let sent = random_bytes(1, 4 * 250_123);
    let words = [
        "source",
        "test/round",
        "--token-bytes",
        "4",
        "--listen",
        &at,
    ];
    let mut source = Bridge::start(&words, Stdio::null(), Stdio::piped());
    let received = source.read_output();
    let words = [
        "sink",
        "test/round",
        "--token-bytes",
        "4",
        "--message-tokens",
        "100",
        "--readers",
        "1",
        "--connect",
        &at,
    ];
    let mut sink = Bridge::start(&words, Stdio::piped(), Stdio::null());
    sink.feed(sent.clone());
    sink.wait().expect(0, "250123 tokens of run");
    source.wait().expect(0, "250123 tokens in ");
    assert!(received.join().expect("read") == sent, "other bytes");
}

#[test]
fn a_pipe_loses_nothing_while_its_reader_stalls() {
    let at = endpoint(free_port());
    let sent = random_bytes(2, 24 << 20);
    let words = [
        "source",
        "test/stall",
        "--token-bytes",
        "1024",
        "--listen",
        &at,
    ];
    let mut source = Bridge::start(&words, Stdio::null(), Stdio::piped());
    let mut output = source.output();
    let words = [
        "sink",
        "test/stall",
        "--token-bytes",
        "1024",
        "--message-tokens",
        "16",
        "--readers",
        "1",
        "--keep",
        "2",
        "--connect",
        &at,
    ];
    let mut sink = Bridge::start(&words, Stdio::piped(), Stdio::null());
    sink.feed(sent.clone());

    let mut received = vec![0; 1 << 20];
    output.read_exact(&mut received).expect("the first MiB");
    // Longer than Zenoh waits for room (5 s) and for a sign of life (10 s): it gives the connection up.
    std::thread::sleep(Duration::from_secs(13));
    output.read_to_end(&mut received).expect("the rest");
    source.wait().expect(0, ", 0 lost");
    sink.wait().expect(0, "24576 tokens of run");
    assert!(received == sent, "other bytes");
}

#[test]
fn a_reader_that_comes_late_is_sent_what_a_file_has() {
    let at = endpoint(free_port());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.bin");
    let sent = random_bytes(3, 3_000_000);
    fs::write(&path, &sent).expect("written");
    let words = [
        "sink",
        "test/late",
        text(&path),
        "--token-bytes",
        "8",
        "--message-tokens",
        "1000",
        "--follow",
        "--run",
        "r",
        "--listen",
        &at,
    ];
    let sink = Bridge::start(&words, Stdio::null(), Stdio::null());
    // Everything was published before anybody is there.
    std::thread::sleep(Duration::from_millis(1500));

    let words = [
        "source",
        "test/late",
        "--token-bytes",
        "8",
        "--from",
        "100",
        "--connect",
        &at,
    ];
    let mut source = Bridge::start(&words, Stdio::null(), Stdio::piped());
    let mut received = vec![0; sent.len() - 800];
    source
        .output()
        .read_exact(&mut received)
        .expect("all of it");
    assert!(received == sent[800..], "other bytes");
    sink.signal("TERM");
    sink.wait().expect(130, "interrupted");
}

/// A sink over a growing file and a source into a file, with a router between them. Each is killed again and again while the
/// file grows, is cut back as by a run that goes on from a checkpoint, and grows again.
#[test]
fn killed_bridges_and_routers_lose_and_repeat_nothing() {
    let port = free_port();
    let at = endpoint(port);
    let folder = tempfile::tempdir().expect("a folder");
    let [from, to] = ["out.bin", "in.bin"].map(|name| folder.path().join(name));
    let sent = random_bytes(4, 12_000_000);
    fs::write(&from, b"").expect("written");
    let sink_words = |more: &[&'static str]| {
        let mut words = vec![
            "sink",
            "test/kills",
            text(&from),
            "--token-bytes",
            "12",
            "--message-tokens",
            "500",
            "--run",
            "r",
            "--connect",
            &at,
        ];
        words.extend(more);
        Bridge::start(&words, Stdio::null(), Stdio::null())
    };
    let start_source = || {
        let words = [
            "source",
            "test/kills",
            text(&to),
            "--token-bytes",
            "12",
            "--run",
            "r",
            "--connect",
            &at,
        ];
        Bridge::start(&words, Stdio::null(), Stdio::null())
    };

    let mut router = listen("router", port);
    let mut sink = sink_words(&["--follow"]);
    let mut source = start_source();
    let received = || fs::metadata(&to).map_or(0, |metadata| metadata.len());
    let mut killed_in_between = 0;
    for step in 0..12_u64 {
        let length = ((step + 1) * 1_000_000) as usize;
        if step == 7 {
            // A run that was killed is taken back to its checkpoint, and computes the same again.
            fs::write(&from, &sent[..length - 1_700_000]).expect("written");
        }
        fs::write(&from, &sent[..length]).expect("written");
        let moving = (step * 1_000_000).min(received() + 200_000);
        wait_until("tokens arrive", || received() >= moving);
        killed_in_between += u32::from(received() < length as u64 / 12 * 12);
        match step % 4 {
            0 => {
                source.kill();
                source = start_source();
            }
            1 => {
                sink.kill();
                sink = sink_words(&["--follow"]);
            }
            2 => {
                router.close().wait().expect("closed");
                drop(router);
                router = listen("router", port);
            }
            _ => {
                source.kill();
                sink.kill();
                source = start_source();
                sink = sink_words(&["--follow"]);
            }
        }
    }
    assert!(killed_in_between > 0, "nothing was under way at any kill");

    // The run is over: what the file has is all.
    sink.kill();
    sink_words(&["--readers", "1"])
        .wait()
        .expect(0, "1000000 tokens of run `r`");
    source.wait().expect(0, ", 0 lost");
    assert!(fs::read(&to).expect("there") == sent, "other bytes");
}

#[test]
fn a_pipe_that_is_fed_again_repeats_nothing() {
    let at = endpoint(free_port());
    let sent = random_bytes(5, 2_000_000);
    let words = [
        "source",
        "test/again",
        "--token-bytes",
        "4",
        "--run",
        "r",
        "--listen",
        &at,
    ];
    let mut source = Bridge::start(&words, Stdio::null(), Stdio::piped());
    let received = source.read_output();
    let words = |more: &'static [&str]| {
        let mut words = vec![
            "sink",
            "test/again",
            "--token-bytes",
            "4",
            "--message-tokens",
            "50",
            "--run",
            "r",
            "--readers",
            "1",
            "--connect",
            &at,
        ];
        words.extend(more);
        words
    };
    // The first sink's input ends early, without an end of the run.
    let mut first = Bridge::start(&words(&["--follow"]), Stdio::piped(), Stdio::null());
    first.feed(sent[..800_000].to_vec());
    first.wait().expect(0, "200000 tokens");
    let mut second = Bridge::start(&words(&[]), Stdio::piped(), Stdio::null());
    second.feed(sent.clone());
    second.wait().expect(0, "500000 tokens");
    let ended = source.wait();
    ended.expect(0, "500000 tokens in ");
    ended.expect(0, ", 0 lost");
    assert!(received.join().expect("read") == sent, "other bytes");
}

#[test]
fn a_run_that_was_taken_over_goes_on_under_its_offsets() {
    let at = endpoint(free_port());
    let sent = random_bytes(6, 400_000);
    let words = [
        "source",
        "test/takeover",
        "--token-bytes",
        "4",
        "--listen",
        &at,
    ];
    let mut source = Bridge::start(&words, Stdio::null(), Stdio::piped());
    let received = source.read_output();
    let words = |first: &'static str, more: &'static [&str]| {
        let mut words = vec![
            "sink",
            "test/takeover",
            "--token-bytes",
            "4",
            "--run",
            "r",
            "--first-token",
            first,
            "--message-tokens",
            "50",
            "--readers",
            "1",
            "--connect",
            &at,
        ];
        words.extend(more);
        words
    };
    let mut conductor = Bridge::start(&words("0", &["--follow"]), Stdio::piped(), Stdio::null());
    conductor.feed(sent[..300_000].to_vec());
    conductor.wait().expect(0, "75000 tokens");
    // What comes from token 60000 on comes twice up to 75000.
    let mut standby = Bridge::start(&words("60000", &[]), Stdio::piped(), Stdio::null());
    standby.feed(sent[240_000..].to_vec());
    standby.wait().expect(0, "40000 tokens");
    source.wait().expect(0, ", 0 lost");
    assert!(received.join().expect("read") == sent, "other bytes");
}

#[test]
fn what_a_pipe_has_not_kept_is_a_gap() {
    let at = endpoint(free_port());
    let words = [
        "sink",
        "test/old",
        "--token-bytes",
        "1024",
        "--message-tokens",
        "64",
        "--keep",
        "1",
        "--listen",
        &at,
    ];
    let mut sink = Bridge::start(&words, Stdio::piped(), Stdio::null());
    let mut input = sink.input();
    std::io::Write::write_all(&mut input, &random_bytes(7, 5 << 20)).expect("taken");
    // Not closed: the sink goes on.
    let words = [
        "source",
        "test/old",
        "--token-bytes",
        "1024",
        "--connect",
        &at,
    ];
    let begun = Instant::now();
    let source = Bridge::start(&words, Stdio::null(), Stdio::null());
    source.wait().expect(6, "tokens 0 to ");
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "--wait is for sinks that say nothing"
    );

    let mut lossy = words.to_vec();
    lossy.push("--lossy");
    let mut source = Bridge::start(&lossy, Stdio::null(), Stdio::piped());
    let received = source.read_output();
    std::thread::sleep(Duration::from_secs(2));
    drop(input);
    let ended = source.wait();
    ended.expect(0, "their sink has not kept them");
    let received = received.join().expect("read");
    assert!(
        (900 << 10..=1 << 20).contains(&received.len()),
        "{}",
        received.len()
    );
    ended.expect(0, &format!("{} lost", (5 << 10) - (received.len() >> 10)));
    assert!(received == random_bytes(7, 5 << 20)[(5 << 20) - received.len()..]);
}

#[test]
fn a_file_that_is_longer_than_its_run_is_of_another_one() {
    let at = endpoint(free_port());
    let folder = tempfile::tempdir().expect("a folder");
    let [from, to] = ["out.bin", "in.bin"].map(|name| folder.path().join(name));
    fs::write(&from, [1; 400]).expect("written");
    fs::write(&to, [2; 801]).expect("written");
    let words = [
        "sink",
        "test/longer",
        text(&from),
        "--token-bytes",
        "4",
        "--run",
        "r",
        "--readers",
        "1",
        "--listen",
        &at,
    ];
    let sink = Bridge::start(&words, Stdio::null(), Stdio::null());
    let words = [
        "source",
        "test/longer",
        text(&to),
        "--token-bytes",
        "4",
        "--run",
        "r",
        "--connect",
        &at,
    ];
    let source = Bridge::start(&words, Stdio::null(), Stdio::null());
    let expect = "says that the run ends at byte 400, and 800 bytes of it were read";
    source.wait().expect(6, expect);
    // A part of a token was cut off, and nothing else.
    assert_eq!(fs::read(&to).expect("there"), [2; 800]);
    // It waits for one that has this run's tokens.
    sink.signal("TERM");
    sink.wait().expect(130, "100 tokens of run `r`");
}
