//! URLs that the model names: they are taken with an option, and reach no file outside the working folder; sessions of a
//! library are connected to them.
#![cfg(target_os = "linux")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod live_peers;

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};

use common::case::Case;
use common::verified;
use live_peers::{LIMIT, LiveRun, copies, free_port, gaps, is_udp_bound, live, wait_until};
use zbmd_executor::{Engine, RunOptions, Session, exit};
use zbmd_ir::{DType, Program, TokenType, Value, bundle};
use zbmd_live::LiveReport;
use zbmd_live::session::LiveStreams;

const PACKET_TOKENS: u64 = 8;
const PACKETS: u64 = 50;
const TOKENS: u64 = PACKETS * PACKET_TOKENS;
/// This datagram is not sent.
const LOST_PACKET: u64 = 20;
const GAP: (u64, u64) = (LOST_PACKET * PACKET_TOKENS, PACKET_TOKENS);

/// A program that passes `a` on to `a_out`, whose model names these for them.
fn model(source: &str, sink: &str) -> Program {
    let token = TokenType::scalar(DType::F32);
    let mut program = copies(&[("a", token)], 100);
    for (stream, file) in [("a", source), ("a_out", sink)] {
        let actor = program.graph.find(stream).expect("there");
        let params = &mut program.graph.actors[actor].params;
        params.insert("file".into(), Value::Str(file.into()));
    }
    program
}

/// What waits for no packet longer than the next one takes to arrive.
fn source_url(port: u16) -> String {
    format!("udp://127.0.0.1:{port}?header=seq&window=0")
}

/// Numbered datagrams of tokens that count, all but one.
fn send_all_but_one(port: u16) {
    let numbers = (0..PACKETS).filter(|number| *number != LOST_PACKET);
    let datagram = |number: u64| {
        let first = number * PACKET_TOKENS;
        let tokens = (first..first + PACKET_TOKENS).flat_map(|i| (i as f32).to_ne_bytes());
        let header = (number + 1).to_le_bytes();
        header.into_iter().chain(tokens).collect()
    };
    live_peers::send_datagrams(port, numbers.map(datagram));
}

/// What comes out of a run of these datagrams.
fn expected() -> Vec<u8> {
    let lost = GAP.0..GAP.0 + GAP.1;
    let token = |index| match lost.contains(&index) {
        true => 0.0,
        false => index as f32,
    };
    (0..TOKENS)
        .flat_map(|index| token(index).to_ne_bytes())
        .collect()
}

/// All that one client of a server sends.
fn read_client(listener: &TcpListener) -> Vec<u8> {
    let (mut client, _) = listener.accept().expect("a client");
    client.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut all = Vec::new();
    client.read_to_end(&mut all).expect("it ends");
    all
}

fn server() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")
}

fn url_of(listener: &TcpListener) -> String {
    format!("tcp://{}", listener.local_addr().expect("bound"))
}

#[test]
fn a_bundle_with_urls_runs_with_one_option() {
    let port = free_port();
    let listener = server();
    let source = source_url(port);
    let case = Case::new(model(&source, &url_of(&listener)));
    let run = LiveRun::start(&case, &["--allow-urls", "-n", "400"]);
    wait_until("it listens", || is_udp_bound(port));
    let reader = std::thread::spawn(move || read_client(&listener));
    send_all_but_one(port);

    let report = run.end(&case, 0);
    assert!(reader.join().expect("read") == expected());
    let source_report = live(&report, "a");
    assert_eq!(source_report["url"], source.as_str());
    assert_eq!(gaps(source_report), [GAP], "{source_report}");
    assert_eq!(live(&report, "a_out")["sent"], TOKENS);
}

#[test]
fn the_command_line_comes_before_the_models_urls() {
    let port = free_port();
    let case = Case::new(model(&source_url(port), "tcp://127.0.0.1:9"));
    case.write("a.f32", expected());
    case.expect(0, &["-i", "a=a.f32", "-o", "a_out=out.f32"]);
    assert!(case.read("out.f32") == expected());
}

#[test]
fn urls_of_bundles_reach_nothing_unless_allowed_and_no_file_outside() {
    let case = Case::new(model("a.f32", "out.f32"));
    case.write("a.f32", expected());
    let rewrite = |source: &str, sink: &str| {
        bundle::write(&case.path("model.zbmd"), &verified(model(source, sink))).expect("written");
    };

    // Sockets, devices and files alike, whatever else is allowed.
    let file = ["-i", "a=a.f32", "--allow-files"];
    for (source, sink, args, part) in [
        (
            "paced:a.f32?rate=1e6",
            "x.f32",
            &["--allow-files"][..],
            "say --input a=FILE, or --allow-urls to take \"paced:a.f32?rate=1e6\", the URL in the bundle",
        ),
        ("udp://127.0.0.1:9", "x.f32", &[], "or --allow-urls"),
        ("sigmf:a.sigmf-meta", "x.f32", &[], "or --allow-urls"),
        ("soapy:driver=none", "x.f32", &[], "or --allow-urls"),
        ("a", "tcp://127.0.0.1:9", &file, "or --allow-urls"),
        ("a", "audio:", &file, "or --allow-urls"),
        ("a", "bridge:b.f32?replay=r", &file, "or --allow-urls"),
    ] {
        rewrite(source, sink);
        let said = case.expect(2, args);
        assert!(said.contains(part), "{source} {sink}: {said}");
    }

    let allowed = ["-i", "a=a.f32", "--allow-files", "--allow-urls"];
    for (source, sink, args, part) in [
        (
            "a",
            "bridge:/tmp/b.f32?replay=r",
            &allowed[..],
            "its file \"/tmp/b.f32\": it must be relative",
        ),
        (
            "a",
            "bridge:b.f32?replay=../r",
            &allowed,
            "its file \"../r\": it must be relative",
        ),
        (
            "a",
            "audio:?record=../r",
            &allowed,
            "its file \"../r\": it must be relative",
        ),
        (
            "paced:/dev/zero?rate=1",
            "tcp://127.0.0.1:9",
            &allowed[2..],
            "its file \"/dev/zero\": it must be relative",
        ),
        (
            "sigmf:../a",
            "tcp://127.0.0.1:9",
            &allowed[2..],
            "its file \"../a\": it must be relative",
        ),
        (
            "upd://h:1",
            "tcp://127.0.0.1:9",
            &allowed[2..],
            "source `a`: the bundle names the URL \"upd://h:1\", which --allow-urls does not allow: unknown scheme `upd`; allowed for sources: udp",
        ),
        (
            "a",
            "udp://h:1?window=1",
            &allowed,
            "`udp` has no key `window`",
        ),
        (
            "flags:a",
            "tcp://127.0.0.1:9",
            &allowed[2..],
            "unknown scheme `flags`",
        ),
        // Not over an input of the same command.
        ("a", "bridge:a.f32?replay=r", &allowed, "are the same file"),
        ("a", "audio:?record=a.f32", &allowed, "are the same file"),
    ] {
        rewrite(source, sink);
        let said = case.expect(2, args);
        assert!(said.contains(part), "{source} {sink}: {said}");
    }

    rewrite("paced:a.f32?rate=1e6", "out.f32");
    case.expect(0, &allowed[2..]);
    assert!(case.read("out.f32") == expected());
}

fn start(engine: &Engine, iterations: Option<u64>) -> Session {
    let options = RunOptions {
        iterations,
        pin: false,
        lock_memory: false,
        ..RunOptions::default()
    };
    engine.start(options).expect("a session")
}

fn engine(program: Program) -> Engine {
    let registry = zbmd_backends::standard_registry();
    Engine::new(verified(program), &registry).expect("an engine")
}

#[test]
fn a_session_is_connected_with_one_call_a_stream() {
    let port = free_port();
    let listener = server();
    let engine = engine(model(&source_url(port), "out.f32"));
    let mut session = start(&engine, Some(TOKENS));
    let mut live = LiveStreams::new(&engine);
    live.connect_source(&mut session, "a", None)
        .expect("the model's URL");
    live.connect_sink(&mut session, "a_out", Some(&url_of(&listener)))
        .expect("the call's URL");
    let reader = std::thread::spawn(move || read_client(&listener));
    send_all_but_one(port);
    session.join().expect("the run ends well");
    live.close();

    assert!(reader.join().expect("read") == expected());
    let reports: Vec<LiveReport> = live.reports();
    let lengths: Vec<(u64, u64)> = reports[0]
        .gaps
        .iter()
        .map(|g| (g.first, g.length))
        .collect();
    assert_eq!(lengths, [GAP]);
    assert_eq!(reports[0].received, TOKENS - PACKET_TOKENS);
    assert_eq!((reports[1].sent, reports[1].dropped), (TOKENS, 0));
}

/// Threads of this process that belong to live streams of `stream`.
fn live_threads(stream: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("on Linux");
    let names = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    // The system keeps 15 bytes of a name.
    let wanted = format!("zbmd live {stream}");
    let prefix = &wanted[..wanted.len().min(15)];
    names.filter(|name| name.trim_end() == prefix).count()
}

#[test]
fn nothing_is_left_running_when_streams_are_dropped() {
    let port = free_port();
    let mut program = model(&source_url(port), "tcp://127.0.0.1:9");
    for (from, to) in [("a", "q"), ("a_out", "q2")] {
        let actor = program.graph.find(from).expect("there");
        program.graph.actors[actor].name = to.to_owned();
    }
    let engine = engine(program);
    // The session first, and the streams first, which ends the run's source.
    for streams_go_first in [false, true] {
        let mut session = start(&engine, None);
        let mut live = LiveStreams::new(&engine);
        live.connect_source(&mut session, "q", None).expect("free");
        live.connect_sink(&mut session, "q2", None).expect("free");
        assert!(is_udp_bound(port));
        // Threads give themselves their names.
        wait_until("they run", || {
            live_threads("q") == 1 && live_threads("q2") == 2
        });

        if streams_go_first {
            drop(live);
            assert_eq!(live_threads("q") + live_threads("q2"), 0);
            session.join().expect("its source has ended");
        } else {
            drop(session);
            drop(live);
        }
        assert_eq!(live_threads("q") + live_threads("q2"), 0);
        assert!(!is_udp_bound(port));
    }
}

#[test]
fn streams_that_cannot_be_connected_leave_the_session_as_it_was() {
    let taken = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let taken_url = format!("udp://{}", taken.local_addr().expect("bound"));
    let engine = engine(model("a.f32", "out.f32"));
    let mut session = start(&engine, None);
    let mut live = LiveStreams::new(&engine);
    let free_url = source_url(free_port());
    let source_cases = [
        ("b", Some("udp://h:1"), "no source `b`; there are: a", 2),
        (
            "a_out",
            Some("udp://h:1"),
            "`a_out` is a sink, not a source: connect it as a sink",
            2,
        ),
        ("a", None, "source `a` has no URL: give one", 2),
        (
            "a",
            Some("upd://h:1"),
            "source `a`: upd://h:1: unknown scheme `upd`; allowed for sources: udp",
            2,
        ),
        (
            "a",
            Some("udp://127.0.0.1:9?silence=fill"),
            "the key `rate` is missing",
            2,
        ),
        (
            "a",
            Some("paced:x.wav?rate=1"),
            "only files of raw tokens are played here",
            2,
        ),
        ("a", Some(&taken_url), "Address already in use", 4),
        ("a", Some("paced:none.f32?rate=1"), "No such file", 4),
    ];
    for (name, url, part, class) in source_cases {
        let error = live
            .connect_source(&mut session, name, url)
            .expect_err(part);
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(error.class(), class, "{error}");
    }
    let error = live.connect_sink(&mut session, "a", Some(&free_url));
    let error = error.expect_err("a source");
    assert!(error.to_string().contains("`a` is a source, not a sink"));

    live.connect_source(&mut session, "a", Some(&free_url))
        .expect("it is still free");
    let error = live.connect_source(&mut session, "a", Some("udp://127.0.0.1:9"));
    let error = error.expect_err("twice").to_string();
    assert_eq!(
        error,
        format!("source `a` is connected to {free_url} already: one URL each")
    );

    // A handle that the program has taken is its own.
    let handle = session.sink("a_out").expect("free");
    let error = live.connect_sink(&mut session, "a_out", Some("tcp://127.0.0.1:9"));
    let error = error.expect_err("taken");
    assert!(error.to_string().contains("has been taken before"));
    assert_eq!(error.class(), exit::USAGE);
    drop(handle);
}
