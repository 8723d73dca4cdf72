//! Clients that mean harm or do not know better: each is told an error or loses its connection, and the server goes on for the
//! others with the memory that it had.

#![cfg(target_os = "linux")]

mod common;

use std::time::{Duration, Instant};

use common::{Connection, Models, Server, simple_request};

const INFER: &str = "/v2/models/simple/infer";

/// A server that is impatient, as slow clients are waited for.
fn impatient() -> Server {
    Models::simple().serve(&[
        "--isolation",
        "threads",
        "--header-timeout",
        "400ms",
        "--body-timeout",
        "400ms",
        "--write-timeout",
        "400ms",
        "--connections",
        "32",
    ])
}

/// Others are served as before.
fn check_service(server: &Server) {
    let request = simple_request(&[3; 16], &[1; 16]).to_string();
    let reply = server.post(INFER, request.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(
        reply.json()["outputs"][1]["data"],
        serde_json::json!(vec![2; 16])
    );
}

/// Memory of the server that it keeps to itself and does not share, in KiB.
fn memory_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid()));
    let status = status.expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.expect("a size").parse().expect("a number")
}

fn head(length: &str, more: &str) -> String {
    format!("POST {INFER} HTTP/1.1\r\nHost: zbmd\r\n{length}{more}\r\n")
}

#[test]
fn bodies_that_are_wrong_cost_an_error_each() {
    let server = impatient();
    let good = simple_request(&[3; 16], &[1; 16]);
    let with_bytes = |size: u64, bytes: usize| {
        let mut request = good.clone();
        let input = request["inputs"][1].as_object_mut().expect("an object");
        input.remove("data");
        input.insert(
            "parameters".into(),
            serde_json::json!({"binary_data_size": size}),
        );
        let json = request.to_string();
        let header = ("Inference-Header-Content-Length", json.len().to_string());
        ([json.into_bytes(), vec![0; bytes]].concat(), vec![header])
    };
    let changed = |from: &str, to: &str| {
        let text = good.to_string().replacen(from, to, 1);
        (text.into_bytes(), Vec::new())
    };
    let raw = |bytes: &[u8]| (bytes.to_vec(), Vec::new());
    let deep = [b"{\"inputs\":".as_slice(), &b"[".repeat(50_000)].concat();
    let header = |value: &str| {
        let header = ("Inference-Header-Content-Length", value.to_owned());
        (good.to_string().into_bytes(), vec![header])
    };

    let mut connection = server.connect();
    for ((body, headers), status, expected) in [
        (with_bytes(64, 63), 400, "ends at byte"),
        (with_bytes(64, 0), 400, "ends at byte"),
        (
            with_bytes(64, 65),
            400,
            "the body has 1 bytes after the binary data",
        ),
        (with_bytes(u64::MAX, 64), 400, "has 64 bytes"),
        (with_bytes(0, 0), 400, "has 64 bytes"),
        (changed("INT32", "FP32"), 400, "the model takes INT32"),
        (changed("INT32", "BYTES"), 400, "zbmd has no strings"),
        (changed("[1,16]", "[16]"), 400, "the model takes [1, 16]"),
        (
            changed("[1,16]", "[1,1e9]"),
            400,
            "it must be a list of sizes",
        ),
        (changed("[3,3", "[3,3,3"), 400, "more than 16 elements"),
        (changed("[3,3", "[3"), 400, "there are 15 elements"),
        (changed("[3,3", "[3e99,3"), 400, "which INT32 does not hold"),
        (raw(&deep), 400, "nested more than"),
        (raw(&b"[1,".repeat(10_000)), 400, "nested more than"),
        (
            raw(&[b"[", b"1,".repeat(10_000).as_slice()].concat()),
            400,
            "more than 4160 values",
        ),
        (
            raw(b"{\"inputs\": \"\xff\xfe\"}"),
            400,
            "not UTF-8 from byte 12 on",
        ),
        (raw(b""), 400, "a value is expected"),
        (raw(&[0; 1000]), 400, "a value is expected"),
        (header("-1"), 400, "must be one number of bytes"),
        (
            header("99999999999999999999999"),
            400,
            "must be one number of bytes",
        ),
        (header("9999999"), 400, "says 9999999 bytes of JSON"),
        (header("5"), 400, "of the JSON"),
        (
            raw(&vec![b' '; 100_000]),
            413,
            "are more than this request ever needs",
        ),
    ] {
        let reply = connection.request("POST", INFER, &headers, &body);
        let error = reply.error();
        assert_eq!(reply.status, status, "{error}");
        assert!(error.contains(expected), "`{error}` and not `{expected}`");
        if reply.header("connection") == Some("close") {
            connection = server.connect();
        }
    }
    check_service(&server);
}

#[test]
fn a_body_of_gigabytes_is_not_read() {
    let server = impatient();
    check_service(&server);
    let before_kib = memory_kib(&server);
    for length in ["4294967296", "9223372036854775807"] {
        let mut connection = server.connect();
        connection.write(head(&format!("Content-Length: {length}\r\n"), "").as_bytes());
        let reply = connection.reply().expect("an answer");
        assert_eq!(reply.status, 413, "{}", reply.text());
        assert!(connection.is_closed());
    }
    // A length that is no number, and chunks without end.
    let mut connection = server.connect();
    connection.write(head("Content-Length: 99999999999999999999999\r\n", "").as_bytes());
    assert_eq!(connection.reply().expect("an answer").status, 400);
    let mut connection = server.connect();
    connection.write(head("Transfer-Encoding: chunked\r\n", "").as_bytes());
    for _ in 0..64 {
        connection.write(b"10000\r\n");
        connection.write(&[b' '; 0x10000]);
        connection.write(b"\r\n");
    }
    let status = connection.reply().map(|reply| reply.status);
    // It may have been reset while it was writing.
    assert!(matches!(status, Some(413) | None), "{status:?}");
    let mut connection = server.connect();
    connection.write(head("Transfer-Encoding: chunked\r\n", "").as_bytes());
    connection.write(b"ffffffffffffffffff\r\n");
    assert_eq!(connection.reply().expect("an answer").status, 400);

    check_service(&server);
    let growth_kib = memory_kib(&server).saturating_sub(before_kib);
    assert!(growth_kib < 16 << 10, "{growth_kib} KiB more");
}

#[test]
fn slow_clients_lose_their_connections_and_keep_nobody_out() {
    let server = impatient();
    let begun = Instant::now();
    // A header that never ends, a body that never comes, a body byte by byte, and silence.
    let mut slow: Vec<Connection> = (0..4).map(|_| server.connect()).collect();
    slow[0].write(b"GET /v2 HTTP/1.1\r\nHost: z");
    slow[1].write(head("Content-Length: 100\r\n", "").as_bytes());
    slow[2].write(head("Content-Length: 60000\r\n", "").as_bytes());
    while begun.elapsed() < Duration::from_millis(300) {
        slow[0].write(b"z");
        slow[2].write(b" ");
        check_service(&server);
    }
    let [mut header, mut body, mut bytes, mut silent]: [Connection; 4] =
        slow.try_into().unwrap_or_else(|_| panic!("four"));
    for connection in [&mut body, &mut bytes] {
        let reply = connection.reply().expect("an answer");
        assert_eq!(reply.status, 408, "{}", reply.text());
        assert!(connection.is_closed());
    }
    // One that is told something is told so.
    let status = header.reply().map(|reply| reply.status);
    assert!(matches!(status, Some(408) | None), "{status:?}");
    assert!(silent.is_closed());
    check_service(&server);
}

#[test]
fn a_client_that_reads_no_answers_loses_its_connection() {
    let server = impatient();
    let mut connection = server.connect();
    // Until the server takes no more, as it cannot get rid of its answers.
    connection.fill(b"GET /metrics HTTP/1.1\r\nHost: zbmd\r\n\r\n");
    check_service(&server);

    common::wait_until("the connection's end", || {
        server.metric("zbmd_connections") <= 1.0
    });
    check_service(&server);
    // What was written before can be read, to a place within an answer.
    while connection.reply().is_some() {}
    assert!(connection.is_closed());
}

#[test]
fn one_connection_too_many_is_told_so() {
    let server = impatient();
    let mut kept: Vec<Connection> = Vec::new();
    common::wait_until("a refusal", || {
        // On a busy machine they may be closed for being idle before the next one is made: each look has its own.
        kept = (0..32).map(|_| server.connect()).collect();
        let mut connection = server.connect();
        let reply = connection.request("GET", "/v2", &[], &[]);
        reply.status == 503 && reply.error().contains("as many connections as it allows")
    });
    // They are idle for too long in the end, and there is room again. Some of them may have been too many themselves: others
    // were closed only just now.
    for connection in &mut kept {
        let status = connection.reply().map(|reply| reply.status);
        assert!(matches!(status, None | Some(503)), "{status:?}");
    }
    check_service(&server);
    assert!(server.metric("zbmd_connections_refused_total") >= 1.0);
}

#[test]
fn requests_within_requests_are_not_taken_for_others() {
    let server = impatient();
    let inner = "GET /v2/models/simple HTTP/1.1\r\nHost: zbmd\r\n\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n";
    let length = |bytes: usize| format!("Content-Length: {bytes}\r\n");
    let ended = format!("0\r\n\r\n{inner}");
    for (name, text) in [
        ("two lengths", head(&(length(5) + &length(50)), "") + inner),
        (
            "two lengths in one",
            head("Content-Length: 5, 50\r\n", "") + inner,
        ),
        (
            "a length with a sign",
            head("Content-Length: +5\r\n", "") + inner,
        ),
        (
            "a length in hexadecimal",
            head("Content-Length: 0x5\r\n", "") + inner,
        ),
        (
            "length and chunks",
            head(&length(ended.len()), chunked) + &ended,
        ),
        ("chunks and length", head(chunked, &length(4)) + &ended),
        (
            "chunks that are not last",
            head("Transfer-Encoding: chunked, identity\r\n", "") + &ended,
        ),
        (
            "chunks with a prefix",
            head("Transfer-Encoding: xchunked\r\n", &length(3)) + &ended,
        ),
        (
            "a space before the colon",
            head("Content-Length : 5\r\n", "") + inner,
        ),
        (
            "a folded header",
            head("X: a\r\n Content-Length: 5\r\n", "") + inner,
        ),
        (
            "a header with a NUL",
            head("X: a\0b\r\n", &length(5)) + inner,
        ),
        ("a bare CR", head("X: a\rContent-Length: 5\r\n", "") + inner),
        (
            "too many headers",
            head(&"X: a\r\n".repeat(200), "") + inner,
        ),
        (
            "a long header",
            head(&format!("X: {}\r\n", "a".repeat(200_000)), "") + inner,
        ),
        ("no version", format!("POST {INFER}\r\n\r\n{inner}")),
        (
            "another protocol",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        ),
        (
            "no HTTP",
            "\x16\x03\x01\x02\0\x01\0\x01\u{fc}\x03\x03".to_owned(),
        ),
    ] {
        let mut connection = server.connect();
        connection.write(text.as_bytes());
        connection.shut_down();
        let first = connection.reply();
        let status = first.as_ref().map(|reply| reply.status);
        assert!(
            status.is_none_or(|status| status >= 400),
            "{name}: {first:?}"
        );
        // What stands in the body is never answered.
        let second = connection.reply();
        let answered = second.filter(|reply| reply.status == 200);
        assert!(answered.is_none(), "{name}: {answered:?}");
        check_service(&server);
    }
}

#[test]
fn clients_that_go_away_in_the_middle_leave_nothing() {
    let server = Models::simple().serve(&["--isolation", "threads"]);
    let request = simple_request(&[3; 16], &[1; 16]).to_string();
    for round in 0..200 {
        let mut connection = server.connect();
        let whole = head(&format!("Content-Length: {}\r\n", request.len()), "") + &request;
        // At another place each time, the last ones after the whole request.
        connection.write(&whole.as_bytes()[..(round * 8).min(whole.len())]);
    }
    common::wait_until("all connections closed", || {
        server.metric("zbmd_connections") <= 1.0
    });
    common::wait_until("nothing pending", || {
        server.metric("zbmd_pending_requests{model=\"simple\"}") == 0.0
    });
    check_service(&server);
}
