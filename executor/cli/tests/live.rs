//! Live streams of the command as a process: sockets on this host, peers that lose, repeat and swap packets, go away and
//! come back.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::case::Case;
use common::{inputs, interpreter, text, with_tail};
use live_peers::{
    LIMIT, LiveRun, ReceiverServer, connect, copies, free_port, gaps, is_udp_bound, is_udp_drained,
    live, lossy_order, sample_offsets, scale, send_datagrams, send_slowly, udp_drops, wait_until,
    with_zeros,
};
use zbmd_ir::testing::programs;
use zbmd_ir::{DType, TokenType};

fn f32s() -> TokenType {
    TokenType::scalar(DType::F32)
}

fn iq_bytes() -> TokenType {
    TokenType::new(DType::U8, [2])
}

#[test]
fn urls_that_make_no_sense_are_refused_with_the_place() {
    let case = Case::new(copies(&[("a", f32s()), ("b", f32s())], 4));
    let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let taken_port = taken.local_addr().expect("bound").port();
    let taken_url = format!("a=udp://127.0.0.1:{taken_port}?rate=1000");
    case.write("b.f32", "");
    let rest = ["-i", "b=b.f32", "-o", "a_out=a.bin", "-o", "b_out=b.bin"];
    let udp = "a=udp://127.0.0.1:9?rate=1e3";
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["-i", "a=udp://127.0.0.1:9?rat=1"],
            2,
            "--input a=udp://127.0.0.1:9?rat=1: `udp` has no key `rat` for sources; allowed: rate, silence",
        ),
        (
            &["-i", "a=upd://127.0.0.1:9"],
            2,
            "unknown scheme `upd`; allowed for sources: udp, tcp",
        ),
        (
            &["-i", "a=udp://127.0.0.1:9?silence=fill"],
            2,
            "the key `rate` is missing: only with it is known how many tokens silence has",
        ),
        (
            &["-i", "a=paced:b.f32"],
            2,
            "the model says no `sample_rate`: add ?rate=48000",
        ),
        (
            &["-i", "a=paced:none.f32?rate=1"],
            4,
            "none.f32: No such file",
        ),
        (
            &["-i", "a=rtl_tcp://127.0.0.1:9"],
            2,
            "the tokens are f32: use u8 or u8[2]",
        ),
        (&["-i", &taken_url], 4, "Address already in use"),
        (
            &["-i", udp, "--checkpoint", "points"],
            2,
            "source `a` is live, and its tokens are not read again",
        ),
    ];
    for (args, expected_code, part) in cases {
        let said = case.expect(*expected_code, &[args, &rest[..]].concat());
        assert!(said.contains(part), "{args:?}: {said}");
    }
    for (flags, part) in [
        ("b=flags:a", "source `b` carries f32; flags are u8"),
        ("b=flags:b", "`b` is not a source that has a URL"),
    ] {
        let args = [
            "-i",
            udp,
            "-i",
            flags,
            "-o",
            "a_out=a.bin",
            "-o",
            "b_out=b.bin",
        ];
        let said = case.expect(2, &args);
        assert!(said.contains(part), "{flags}: {said}");
    }
}

/// What a run is given by a sender that loses packets, and what it should make of them.
struct LossyStream {
    datagrams: Vec<Vec<u8>>,
    /// The tokens, with zeros for those that were not sent.
    expect: Vec<u8>,
    log: live_peers::SenderLog,
    tokens: u64,
}

/// Datagrams of GNU Radio's `udp_sink` with tokens of `given`.
fn numbered(seed: u64, given: &[u8], token_bytes: u64, packet_tokens: u64) -> LossyStream {
    let packet_bytes = (packet_tokens * token_bytes) as usize;
    let packets = (given.len() / packet_bytes) as u64;
    let (order, log) = lossy_order(seed, packets, packet_tokens);
    let datagram = |number: &u64| {
        let begin = *number as usize * packet_bytes;
        let mut datagram = (number + 1).to_le_bytes().to_vec();
        datagram.extend_from_slice(&given[begin..begin + packet_bytes]);
        datagram
    };
    LossyStream {
        datagrams: order.iter().map(datagram).collect(),
        expect: with_zeros(given.to_vec(), &log.dropped, token_bytes),
        tokens: packets * packet_tokens,
        log,
    }
}

/// The report of a source says exactly what the sender did.
#[track_caller]
fn assert_accounted(report: &serde_json::Value, stream: &str, sent: &LossyStream) {
    let live = live(report, stream);
    assert_eq!(gaps(live), sent.log.dropped, "{live}");
    let dropped: u64 = sent.log.dropped.iter().map(|(_, count)| count).sum();
    assert_eq!(live["filled"]["lost"], dropped, "{live}");
    assert_eq!(live["received"], sent.log.sent_tokens, "{live}");
    assert_eq!(live["repeats"], sent.log.repeated_tokens, "{live}");
    assert_eq!(live["reordered_packets"], sent.log.swaps, "{live}");
    assert_eq!(
        (&live["late"], &live["stray"]),
        (&0.into(), &0.into()),
        "{live}"
    );
}

#[test]
fn what_a_numbered_stream_lost_is_filled_flagged_and_counted() {
    let packets = scale("ZBMD_LIVE_PACKETS", 3000);
    let flag_token = TokenType::scalar(DType::U8);
    let case = Case::new(copies(&[("a", f32s()), ("gaps", flag_token)], 50));
    let given: Vec<u8> = (0..packets * 50)
        .flat_map(|i| (i as f32 + 1.0).to_le_bytes())
        .collect();
    let sent = numbered(1, &given, 4, 50);
    let port = free_port();
    let url = format!("a=udp://127.0.0.1:{port}?header=seq&rate=1e6&silence=stall&limit=30s");
    let iterations = sent.tokens.to_string();
    let run = LiveRun::start(
        &case,
        &[
            "-i",
            &url,
            "-i",
            "gaps=flags:a",
            "-o",
            "a_out=a.bin",
            "-o",
            "gaps_out=gaps.bin",
            "-n",
            &iterations,
            "--events",
            "events.jsonl",
        ],
    );
    wait_until("it listens", || is_udp_bound(port));
    send_datagrams(port, sent.datagrams.iter().cloned());
    let report = run.end(&case, 0);

    assert!(!sent.log.dropped.is_empty() && sent.log.swaps > 0);
    assert!(case.read("a.bin") == sent.expect);
    let flags = case.read("gaps.bin");
    let is_filled = |index: u64| {
        sent.log
            .dropped
            .iter()
            .any(|(f, n)| (*f..f + n).contains(&index))
    };
    assert_eq!(flags.len() as u64, sent.tokens);
    assert!((0..sent.tokens).all(|i| flags[i as usize] == u8::from(is_filled(i))));
    assert_accounted(&report, "a", &sent);

    // Each gap is an event.
    let events = text(&case.read("events.jsonl"));
    let gap_events = events
        .lines()
        .filter(|line| line.contains("\"event\":\"gap\""));
    let of_a = gap_events.filter(|line| line.contains("\"stream\":\"a\""));
    assert_eq!(of_a.count(), sent.log.dropped.len(), "{events}");
    assert!(events.lines().all(|line| line.starts_with("{\"at_ns\":")));
}

/// A VITA 49 packet of i16 samples with a time stamp of whole and picoseconds.
fn vita49(number: u64, samples: &[i16], first_sample: u64, rate: u64) -> Vec<u8> {
    let words = 5 + samples.len() / 2;
    let picoseconds = first_sample % rate * (1_000_000_000_000 / rate);
    let header = 0x1060_0000 | (number as u32 % 16) << 16 | words as u32;
    let seconds = 1_700_000_000 + (first_sample / rate) as u32;
    let mut packet = Vec::new();
    packet.extend(header.to_be_bytes());
    packet.extend(7u32.to_be_bytes());
    packet.extend(seconds.to_be_bytes());
    packet.extend(picoseconds.to_be_bytes());
    packet.extend(samples.iter().flat_map(|sample| sample.to_be_bytes()));
    packet
}

/// A VITA 49 context packet that states a sample rate in Hz.
fn vita49_context(rate: u64) -> Vec<u8> {
    let header = 0x4000_0005u32.to_be_bytes();
    let stream_id = 7u32.to_be_bytes();
    let has_sample_rate = (1u32 << 21).to_be_bytes();
    let sample_rate = (rate << 20).to_be_bytes();
    [&header[..], &stream_id, &has_sample_rate, &sample_rate].concat()
}

#[test]
fn what_a_stream_with_time_stamps_lost_is_filled_and_counted() {
    const RATE: u64 = 48_000;
    let packets = scale("ZBMD_LIVE_PACKETS", 2000);
    let case = Case::new(copies(&[("a", TokenType::scalar(DType::I16))], 64));
    let sample = |index: u64| (index % 30_000 + 1) as i16;
    let (order, log) = lossy_order(2, packets, 64);
    let datagram = |number: &u64| {
        let first = number * 64;
        let samples: Vec<i16> = (first..first + 64).map(sample).collect();
        vita49(*number, &samples, first, RATE)
    };
    let all: Vec<u8> = (0..packets * 64)
        .flat_map(|i| sample(i).to_ne_bytes())
        .collect();
    let sent = LossyStream {
        datagrams: order.iter().map(datagram).collect(),
        expect: with_zeros(all, &log.dropped, 2),
        tokens: packets * 64,
        log,
    };

    let port = free_port();
    let url = format!("a=udp://127.0.0.1:{port}?header=vita49&rate={RATE}&silence=stall&limit=30s");
    let iterations = sent.tokens.to_string();
    let run = LiveRun::start(&case, &["-i", &url, "-o", "a_out=a.bin", "-n", &iterations]);
    wait_until("it listens", || is_udp_bound(port));
    let context = std::iter::once(vita49_context(96_000));
    send_datagrams(port, context.chain(sent.datagrams.iter().cloned()));
    let report = run.end(&case, 0);
    assert!(case.read("a.bin") == sent.expect);
    assert_accounted(&report, "a", &sent);
    assert_eq!(live(&report, "a")["stated_rate"], 96_000.0);
}

#[test]
fn what_the_system_drops_while_a_run_stalls_is_counted_to_the_datagram() {
    const PACKET_TOKENS: u64 = 350;
    let case = Case::new(copies(&[("a", f32s())], 350));
    case.make_pipe("pipe");
    let port = free_port();
    let url = format!("a=udp://127.0.0.1:{port}?header=seq&rate=10e6&silence=stall&full=wait");
    let run = LiveRun::start(&case, &["-i", &url, "-o", "a_out=pipe"]);
    wait_until("it listens", || is_udp_bound(port));

    // Nobody reads the output, so the run takes no more, and the system's buffer runs full.
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let mut packets = 0u64;
    let mut send_next = || {
        let first = packets * PACKET_TOKENS;
        packets += 1;
        let tokens = (first..first + PACKET_TOKENS).flat_map(|i| (i as f32).to_le_bytes());
        let datagram: Vec<u8> = packets.to_le_bytes().into_iter().chain(tokens).collect();
        let sent = socket.send_to(&datagram, (Ipv4Addr::LOCALHOST, port));
        assert_eq!(sent.expect("sent"), datagram.len());
        packets
    };
    wait_until("datagrams are dropped", || {
        for _ in 0..50 {
            send_next();
        }
        udp_drops(port) > Some(100)
    });
    let dropped = udp_drops(port).expect("it listens");

    // Once it is read, packets that arrive show what is missing before them.
    let mut output = std::fs::File::open(case.path("pipe")).expect("a pipe");
    let mut received = Vec::new();
    let mut piece = vec![0; 1 << 16];
    let mut last_packet = 0;
    let begun = Instant::now();
    while last_packet == 0 || (received.len() as u64) < last_packet * PACKET_TOKENS * 4 {
        assert!(begun.elapsed() < LIMIT, "{} bytes", received.len());
        if last_packet == 0 && udp_drops(port) == Some(dropped) && is_udp_drained(port) {
            last_packet = send_next();
            for _ in 0..20 {
                send_next();
            }
        }
        let length = output.read(&mut piece).expect("tokens");
        received.extend_from_slice(&piece[..length]);
    }
    run.interrupt();
    // Whoever stalls is not waited for: the rest is taken until the run has closed the pipe.
    while output.read(&mut piece).expect("tokens") > 0 {}
    let report = run.end(&case, 130);
    let a = live(&report, "a");
    assert_eq!(a["kernel_drops"], dropped, "{a}");
    assert_eq!(a["filled"]["kernel_drop"], dropped * PACKET_TOKENS, "{a}");
    assert_eq!(a["filled"].as_object().expect("causes").len(), 1, "{a}");
    for (index, token) in received.as_chunks::<4>().0.iter().enumerate() {
        let token = f32::from_le_bytes(*token);
        assert!(token == 0.0 || token == index as f32, "{token} at {index}");
    }
}

#[test]
fn losses_of_workers_change_nothing_of_a_live_stream() {
    let case = Case::new(with_tail(programs::two_devices()));
    let given = inputs(&case.program, 200_000);
    let sent = numbered(3, &given["in"], 4, 100);
    let as_expected = [("in".to_owned(), sent.expect.clone())].into();
    let mut expect = interpreter(&case.program)
        .run(&as_expected, None)
        .expect("runs");
    let expect = expect.outputs.remove("out").expect("a sink");
    let faults = "Inject(kinds: [kill], every: (\"150ms\", \"300ms\"))";
    case.write("faults.ron", faults);
    case.write(
        "patient.ron",
        "Supervision(intensity: 100, period: \"10s\")",
    );

    let iterations = sent.tokens.to_string();
    for extra in [
        &[][..],
        &[
            "--isolation",
            "processes",
            "--inject",
            "faults.ron",
            "--supervise=patient.ron",
        ],
    ] {
        let port = free_port();
        let url = format!(
            "in=udp://127.0.0.1:{port}?header=seq&rate=1e6&silence=stall&limit=30s&full=wait"
        );
        let args = ["-i", &url, "-o", "out=out.bin", "-n", &iterations];
        let run = LiveRun::start(&case, &[&args[..], extra].concat());
        wait_until("it listens", || is_udp_bound(port));
        // For about two seconds, in which some workers are lost.
        send_slowly(port, sent.datagrams.iter().cloned());
        let report = run.end(&case, 0);
        assert!(case.read("out.bin") == expect, "{extra:?}: {report}");
        assert_accounted(&report, "in", &sent);
        let recoveries = report["recoveries"].as_u64().expect("a number");
        assert_eq!(recoveries > 0, !extra.is_empty(), "{extra:?}");
    }
}

#[test]
fn a_source_that_is_silent_stops_nobody_else() {
    const TOKENS: u64 = 20_000;
    // At 333 tokens a second the silence takes a minute.
    let rate = scale("ZBMD_LIVE_SILENT_RATE", 40_000);
    let case = Case::new(copies(&[("a", f32s()), ("b", f32s())], 20));
    let given: Vec<u8> = (0..TOKENS).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let sent = numbered(4, &given, 4, 20);
    let port = free_port();
    let silent_port = free_port();
    let url = format!(
        "a=udp://127.0.0.1:{port}?header=seq&rate={rate}&silence=stall&limit=30s&full=wait"
    );
    let silent_url = format!("b=udp://127.0.0.1:{silent_port}?rate={rate}&limit=20ms&fill=hold");
    let iterations = TOKENS.to_string();
    let args = [
        "-i",
        &url,
        "-i",
        &silent_url,
        "-o",
        "a_out=a.bin",
        "-o",
        "b_out=b.bin",
    ];
    let run = LiveRun::start(&case, &[&args[..], &["-n", &iterations]].concat());
    wait_until("it listens", || {
        is_udp_bound(port) && is_udp_bound(silent_port)
    });
    send_datagrams(port, sent.datagrams.iter().cloned());
    let report = run.end(&case, 0);
    assert!(case.read("a.bin") == sent.expect);
    assert!(case.read("b.bin") == vec![0; given.len()]);
    let silent = live(&report, "b");
    assert_eq!(silent["gap_count"], 1, "{silent}");
    assert_eq!(
        silent["filled"].as_object().expect("causes").len(),
        1,
        "{silent}"
    );
    assert!(
        silent["filled"]["silence"].as_u64() >= Some(TOKENS),
        "{silent}"
    );
}

#[test]
fn a_receiver_that_is_killed_and_started_again_loses_no_time() {
    let rate = scale("ZBMD_LIVE_RATE", 100_000);
    let kills = scale("ZBMD_LIVE_KILLS", 6);
    // How long each server lives, in milliseconds of samples.
    let life_ms = scale("ZBMD_LIVE_LIFE_MS", 100);
    let case = Case::new(copies(&[("iq", iq_bytes())], 100));
    let port = free_port();
    let url = format!("iq=rtl_tcp://127.0.0.1:{port}?rate={rate}&freq=1090e6&gain=49.6&limit=5s");
    let mut run = LiveRun::start(&case, &["-i", &url, "-o", "iq_out=iq.bin"]);
    let epoch = Instant::now();
    let mut waits = Vec::new();
    for kill in 0..=kills {
        let listening = Instant::now();
        let mut server = ReceiverServer::start(port, rate as f64, epoch);
        wait_until("it connects", || server.sent.load(Ordering::Relaxed) > 0);
        waits.push(listening.elapsed());
        wait_until("samples flow", || {
            server.sent.load(Ordering::Relaxed) > rate * life_ms / 1000
        });
        // Rate, frequency, manual gain, gain.
        wait_until("it commands", || {
            server.commands.load(Ordering::Relaxed) == 20
        });
        run.assert_runs();
        if kill == kills {
            run.interrupt();
            let report = run.end(&case, 130);
            let iq = live(&report, "iq");
            assert_eq!(iq["connections"], kills + 1, "{iq}");
            assert_eq!(iq["gap_count"], kills, "{iq}");
            break;
        }
        server.kill();
        let down = Instant::now();
        wait_until("time passes", || {
            down.elapsed() > Duration::from_millis(120)
        });
    }
    eprintln!(
        "from listening to the first samples: at most {:?}",
        waits.iter().max()
    );

    // Every sample is where its time says, as far as a busy machine delivers in time.
    let offsets = sample_offsets(&case.read("iq.bin"));
    assert!(!offsets.is_empty());
    let relative = |offset: &i64| (offset - offsets[0] + 32_128).rem_euclid(64_256) - 32_128;
    let farthest = offsets.iter().map(relative).map(i64::abs).max();
    eprintln!("farthest from its place: {farthest:?} samples");
    assert!(
        farthest < Some((rate as i64 / 4).min(30_000)),
        "{offsets:?}"
    );
}

#[test]
fn strangers_neither_stop_a_run_nor_get_in() {
    let case = Case::new(copies(&[("iq", iq_bytes())], 100));
    let port = free_port();
    let url = format!("iq=rtl_tcp://127.0.0.1:{port}?rate=100000");
    let mut run = LiveRun::start(&case, &["-i", &url, "-o", "iq_out=iq.bin"]);
    // Wrong magics, a hello that does not come to its end, and one that never does.
    let listener = live_peers::listen(port);
    let never = AtomicBool::new(false);
    for said in [
        &b"HTTP/1.1 400 Bad Request\r\n"[..],
        b"RTL",
        b"RTL1\0\0\0\0\0\0\0\0",
    ] {
        let mut client = live_peers::accept(&listener, &never).expect("it connects");
        client.write_all(said).expect("it reads");
        drop(client);
    }
    // One that says nothing is left after a while.
    let mut silent = live_peers::accept(&listener, &never).expect("it connects");
    silent.set_nonblocking(false).expect("a socket");
    silent.set_read_timeout(Some(LIMIT)).expect("a limit");
    // It sends its commands only after a hello.
    let mut said = Vec::new();
    silent.read_to_end(&mut said).expect("it goes");
    assert!(said.is_empty());
    let mut endless = live_peers::accept(&listener, &never).expect("it connects");
    let begun = Instant::now();
    while endless.write_all(b"R").is_ok() {
        assert!(begun.elapsed() < LIMIT, "it listens for ever");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(listener);
    let server = ReceiverServer::start(port, 100_000.0, Instant::now());
    wait_until("the right one is served", || {
        server.sent.load(Ordering::Relaxed) > 10_000
    });
    run.assert_runs();
    run.interrupt();
    let report = run.end(&case, 130);
    let iq = live(&report, "iq");
    assert_eq!(iq["connections"], 1, "{iq}");
    assert!(iq["refused"].as_u64() >= Some(5), "{iq}");
}

#[test]
fn a_server_has_one_client_and_closes_a_flood_of_others() {
    const TOKENS: u64 = 10_000;
    let case = Case::new(copies(&[("a", f32s())], 100));
    let port = free_port();
    let url = format!("a=tcp-listen://127.0.0.1:{port}?rate=1e6&silence=stall&full=wait");
    let iterations = TOKENS.to_string();
    let mut run = LiveRun::start(&case, &["-i", &url, "-o", "a_out=a.bin", "-n", &iterations]);
    let mut first = connect(port);
    let given: Vec<u8> = (0..TOKENS).flat_map(|i| (i as f32).to_le_bytes()).collect();
    first.write_all(&given[..10_001]).expect("taken");
    wait_until("the first is served", || {
        run.assert_runs();
        std::fs::metadata(case.path("a.bin")).is_ok_and(|file| file.len() > 0)
    });
    for _ in 0..200 {
        let address = (Ipv4Addr::LOCALHOST, port);
        let mut other = TcpStream::connect(address).expect("accepted by the system");
        let mut answer = [0];
        assert!(!matches!(other.read(&mut answer), Ok(1..)), "it is closed");
    }
    first.write_all(&given[10_001..]).expect("taken");
    let report = run.end(&case, 0);
    assert!(case.read("a.bin") == given);
    assert_eq!(live(&report, "a")["connections"], 1);
}
