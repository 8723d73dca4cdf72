//! A bridge and a session of Zenoh that is none: ordinary publishers and subscribers, and such as send nonsense.

mod common;

use std::fs;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{Bridge, endpoint, free_port, listen, position, random_bytes, wait_until};
use zbmd_zenoh::{Kind, Position};
use zenoh::pubsub::Publisher;
use zenoh::{Config, Session, Wait};

const KEY: &str = "test/key";

/// A publisher that has a subscriber.
fn publisher(session: &Session, key: &'static str) -> Publisher<'static> {
    let publisher = session.declare_publisher(key).wait().expect("a key");
    wait_until("somebody subscribes", || {
        publisher.matching_status().wait().expect("open").matching()
    });
    publisher
}

fn put(publisher: &Publisher<'_>, payload: &[u8], attachment: Option<Vec<u8>>) {
    let put = publisher.put(payload.to_vec());
    let result = match attachment {
        Some(attachment) => put.attachment(attachment).wait(),
        None => put.wait(),
    };
    result.expect("published");
}

/// Starts a source that reads from a session of the test, with its standard output in a pipe.
fn source(at: &str, more: &[&str]) -> Bridge {
    let mut words = vec!["source", KEY, "--token-bytes", "4", "--connect", at];
    words.extend(more);
    Bridge::start(&words, Stdio::null(), Stdio::piped())
}

#[test]
fn samples_of_ordinary_publishers_are_passed_on_as_they_come() {
    let port = free_port();
    let session = listen("peer", port);
    let mut source = source(&endpoint(port), &[]);
    let received = source.read_output();
    let publisher = publisher(&session, KEY);
    let mut sent = Vec::new();
    for seed in 0..500 {
        let payload = random_bytes(seed, 4 * (seed as usize % 50));
        // An attachment of somebody else, or none.
        let attachment = seed.is_multiple_of(2).then(|| random_bytes(seed, 33));
        put(&publisher, &payload, attachment);
        sent.extend(payload);
    }
    session.delete(KEY).wait().expect("deleted");
    // What was published before is read before.
    std::thread::sleep(Duration::from_secs(1));
    source.signal("INT");
    let ended = source.wait();
    ended.expect(130, "interrupted");
    ended.expect(130, "12250 tokens in 500 messages");
    ended.expect(130, "1 deletions of the key ignored");
    assert!(received.join().expect("read") == sent, "other bytes");
}

#[test]
fn ordinary_subscribers_get_fixed_messages_with_positions() {
    let port = free_port();
    let session = listen("peer", port);
    let subscriber = session.declare_subscriber(KEY).wait().expect("a key");
    let words = [
        "sink",
        KEY,
        "--token-bytes",
        "6",
        "--message-tokens",
        "7",
        "--run",
        "flight-3",
        "--connect",
        &endpoint(port),
    ];
    let mut sink = Bridge::start(&words, Stdio::piped(), Stdio::null());
    let sent = random_bytes(1, 6 * 100);
    sink.feed(sent.clone());
    sink.wait()
        .expect(0, "100 tokens of run `flight-3` in 15 messages");

    let mut received: Vec<u8> = Vec::new();
    loop {
        let sample = subscriber.recv_timeout(Duration::from_secs(10));
        let sample = sample.expect("open").expect("the end comes before this");
        let attachment = sample.attachment().expect("a position").to_bytes();
        let position = Position::read(&attachment)
            .expect("whole")
            .expect("a bridge's");
        assert_eq!(position.offset, received.len() as u64);
        assert_eq!(position.run.expect("named").as_str(), "flight-3");
        let payload = sample.payload().to_bytes();
        match position.kind {
            Kind::Data => assert_eq!(payload.len(), 42.min(600 - received.len())),
            kind => {
                assert_eq!(kind, Kind::End);
                break;
            }
        }
        received.extend_from_slice(&payload);
    }
    assert!(received == sent, "other bytes");
}

#[test]
fn ranges_that_come_twice_are_dropped() {
    let port = free_port();
    let session = listen("peer", port);
    let mut source = source(&endpoint(port), &[]);
    let received = source.read_output();
    let publisher = publisher(&session, KEY);
    let sent = random_bytes(2, 4000);
    for (begin, end) in [
        (0, 800),
        (400, 1200),
        (0, 1200),
        (1200, 1204),
        (1000, 4000),
        (3996, 4000),
    ] {
        put(
            &publisher,
            &sent[begin..end],
            Some(position(Kind::Data, begin as u64, "r")),
        );
    }
    put(&publisher, b"", Some(position(Kind::End, 4000, "r")));
    let ended = source.wait();
    // 400, 1200, 204 and 4 bytes.
    ended.expect(
        0,
        "1000 tokens in 4 messages; 452 repeated tokens dropped, 0 lost",
    );
    assert!(received.join().expect("read") == sent, "other bytes");
}

#[test]
fn a_gap_is_an_error_or_is_counted() {
    for (is_lossy, code, expect) in [
        (
            false,
            6,
            "tokens 100 to 149 of run `r` are missing on `test/key`: nobody has sent them within --wait",
        ),
        (
            true,
            0,
            "150 tokens in 2 messages; 0 repeated tokens dropped, 70 lost",
        ),
    ] {
        let port = free_port();
        let session = listen("peer", port);
        let mut more = vec!["--wait", "300ms"];
        more.extend(is_lossy.then_some("--lossy"));
        let mut source = source(&endpoint(port), &more);
        let received = source.read_output();
        let publisher = publisher(&session, KEY);
        let sent = random_bytes(3, 4 * 220);
        put(&publisher, &sent[..400], Some(position(Kind::Data, 0, "r")));
        put(
            &publisher,
            &sent[600..640],
            Some(position(Kind::Data, 600, "r")),
        );
        if is_lossy {
            std::thread::sleep(Duration::from_secs(2));
            put(
                &publisher,
                &sent[680..],
                Some(position(Kind::Data, 680, "r")),
            );
            put(&publisher, b"", Some(position(Kind::End, 880, "r")));
        }
        source.wait().expect(code, expect);
        let expected = match is_lossy {
            true => [&sent[..400], &sent[680..]].concat(),
            false => sent[..400].to_vec(),
        };
        assert!(received.join().expect("read") == expected, "other bytes");
    }
}

#[test]
fn wrong_samples_are_refused_with_the_key_and_both_numbers() {
    let whole = position(Kind::Data, 0, "r");
    let mut other_version = whole.clone();
    other_version[4] = 9;
    let mut other_kind = whole.clone();
    other_kind[5] = 77;
    let mut no_name = whole.clone();
    no_name[15] = 0xff;
    let overlong = [&whole[..], &[0; 9000]].concat();
    for (payload_bytes, attachment, expect) in [
        (
            6,
            None,
            "has 6 bytes, which is no multiple of the 4 bytes of a token: give --token-bytes",
        ),
        (
            6,
            Some(whole.clone()),
            "has 6 bytes, which is no multiple of the 4",
        ),
        (
            8,
            Some(position(Kind::Data, 2, "r")),
            "begins at byte 2 of its run, which is no multiple of the 4",
        ),
        (
            8,
            Some(position(Kind::Data, u64::MAX - 3, "r")),
            "no stream is so long",
        ),
        (8, Some(position(Kind::Want, 0, "r")), "carries a question"),
        (
            8,
            Some(whole[..9].to_vec()),
            "cannot be read: it has 9 bytes, 15 are needed",
        ),
        (
            8,
            Some(whole[..15].to_vec()),
            "cannot be read: it has 15 bytes, 16 are needed",
        ),
        (
            8,
            Some(overlong),
            "cannot be read: it has 9016 bytes, 16 are needed",
        ),
        (8, Some(other_version), "has version 9"),
        (8, Some(other_kind), "has kind 77"),
        (8, Some(no_name), "a run's name is 1 to 64"),
    ] {
        let port = free_port();
        let session = listen("peer", port);
        let mut source = source(&endpoint(port), &[]);
        let received = source.read_output();
        let publisher = publisher(&session, KEY);
        put(&publisher, &random_bytes(4, payload_bytes), attachment);
        let ended = source.wait();
        ended.expect(6, "a sample on `test/key` ");
        ended.expect(6, expect);
        assert!(received.join().expect("read").is_empty(), "{expect}");
    }
}

#[test]
fn another_run_and_mixed_publishers_are_refused() {
    let data = |offset, run| Some(position(Kind::Data, offset, run));
    for (first, second, more, expect) in [
        (
            data(0, "a"),
            data(8, "b"),
            &[][..],
            "is of run `b`, and run `a` is read here",
        ),
        (
            data(0, "a"),
            None,
            &[],
            "has no position, and those of run `a` have one",
        ),
        (
            None,
            data(0, "a"),
            &[],
            "is of run `a`, and samples without a position are read here",
        ),
        (
            data(0, "a"),
            data(8, "a"),
            &["--run", "b"],
            "is of run `a`, and run `b` is read here",
        ),
        (
            data(0, "a"),
            Some(position(Kind::End, 4, "a")),
            &[],
            "ends at byte 4, and 8 bytes of it were read",
        ),
    ] {
        let port = free_port();
        let session = listen("peer", port);
        let source = source(&endpoint(port), more);
        let publisher = publisher(&session, KEY);
        put(&publisher, &[1; 8], first);
        put(&publisher, &[2; 8], second);
        source.wait().expect(6, expect);
    }
}

/// What rmw_zenoh sends, by its documentation and sources, over a network as its nodes make it: they are peers that know a router.
/// The key begins with the domain and the topic, the payload has four bytes before the data, and the attachment is a sequence
/// number, a time stamp and the publisher's number of 16 bytes. No ROS 2 was run.
#[test]
fn a_topic_of_ros_2_is_read_without_its_headers() {
    const TOPIC: &str =
        "0/imu/acceleration/geometry_msgs::msg::dds_::Vector3_/RIHS01_0123456789abcdef";
    let port = free_port();
    let router = listen("router", port);
    let mut config = Config::default();
    for (key, value) in [
        ("scouting/multicast/enabled", "false".to_owned()),
        ("connect/endpoints", format!("[{:?}]", endpoint(port))),
        ("listen/endpoints", "[\"tcp/localhost:0\"]".to_owned()),
    ] {
        config.insert_json5(key, &value).expect("a known setting");
    }
    let node = zenoh::open(config).wait().expect("a node");
    let words = [
        "source",
        "0/imu/acceleration/**",
        "--token-bytes",
        "24",
        "--cdr",
        "--connect",
        &endpoint(port),
    ];
    let mut source = Bridge::start(&words, Stdio::null(), Stdio::piped());
    let received = source.read_output();
    // What a bridge asks its sinks would be a call of a service.
    let service = node
        .declare_queryable("0/imu/acceleration/**")
        .wait()
        .expect("a key");
    let publisher = publisher(&node, TOPIC);
    std::thread::sleep(Duration::from_millis(1500));
    let mut sent = Vec::new();
    for number in 1..=100_i64 {
        let vector = [number as f64, -0.5, 9.81].map(f64::to_le_bytes).concat();
        let payload = [&[0, 1, 0, 0][..], &vector].concat();
        let mut attachment = number.to_le_bytes().to_vec();
        attachment.extend((1_700_000_000_000_000_000 + number).to_le_bytes());
        attachment.push(16);
        attachment.extend([0xa5; 16]);
        put(&publisher, &payload, Some(attachment));
        sent.extend(vector);
    }
    put(&publisher, &[0, 0, 0, 0, 1], None);
    let expect = "begins with [00, 00, 00, 00], and --cdr expects [00, 01]";
    source.wait().expect(6, expect);
    assert!(received.join().expect("read") == sent, "other bytes");
    assert!(
        service.try_recv().expect("open").is_none(),
        "a service was called"
    );
    drop(router);
}

#[test]
fn questions_that_are_nonsense_change_nothing() {
    let port = free_port();
    let session = listen("peer", port);
    let subscriber = session.declare_subscriber(KEY).wait().expect("a key");
    let words = [
        "sink",
        KEY,
        "--token-bytes",
        "4",
        "--run",
        "r",
        "--connect",
        &endpoint(port),
    ];
    let mut sink = Bridge::start(&words, Stdio::piped(), Stdio::null());
    let mut input = sink.input();
    std::io::Write::write_all(&mut input, &[7; 40]).expect("taken");
    for _ in 0..10 {
        subscriber
            .recv_timeout(Duration::from_secs(10))
            .expect("open")
            .expect("a message");
    }

    // How many replies a question has, and whether it is told why it has none.
    let want = |offset| position(Kind::Want, offset, "r");
    let cut = want(0)[..14].to_vec();
    for (payload, attachment, replies) in [
        (&b"reader"[..], want(0), 10),
        (b"reader", want(36), 1),
        (b"reader", want(40), 0),
        (b"reader", want(u64::MAX), 0),
        (b"reader", position(Kind::Want, 0, "other"), 0),
        (b"reader", position(Kind::Have, 0, "r"), 0),
        (b"reader", position(Kind::Data, 0, "r"), 0),
        (b"reader", cut, 0),
        (b"reader", vec![0; 70_000], 0),
        (b"", want(0), 0),
        (&[b'x'; 65], want(0), 0),
        (&[0xff; 64], want(0), 10),
    ] {
        let (sender, answers) = channel();
        session
            .get(KEY)
            .consolidation(zenoh::query::ConsolidationMode::None)
            .payload(payload.to_vec())
            .attachment(attachment.clone())
            .callback(move |reply| {
                let _ = sender.send(reply.into_result().is_ok());
            })
            .wait()
            .expect("asked");
        let found = answers.iter().filter(|is_reply| *is_reply).count();
        assert_eq!(found, replies, "{payload:?} {attachment:?}");
    }

    std::io::Write::write_all(&mut input, &[8; 4]).expect("it goes on");
    drop(input);
    let ended = sink.wait();
    ended.expect(0, "11 tokens of run `r`");
    ended.expect(
        0,
        "is not answered: its attachment has 14 bytes, 15 are needed",
    );
    ended.expect(0, "is not answered: its reader's name has 65 bytes");
}

/// The positions of the replies to a question.
fn replies_to(session: &Session, kind: Kind, offset: u64) -> Vec<Position> {
    let (sender, replies) = channel();
    session
        .get(KEY)
        .consolidation(zenoh::query::ConsolidationMode::None)
        .payload("reader")
        .attachment(position(kind, offset, "r"))
        .callback(move |reply| {
            let sample = reply.into_result().expect("an answer");
            let bytes = sample.attachment().expect("a position").to_bytes();
            let position = Position::read(&bytes).expect("whole");
            let _ = sender.send(position.expect("of a bridge"));
        })
        .wait()
        .expect("asked");
    replies.iter().collect()
}

#[test]
fn a_reader_is_told_the_end_when_it_has_all_or_more() {
    for (asked, expect) in [(40, 40), (80, 40), (u64::MAX, 40)] {
        let port = free_port();
        let session = listen("peer", port);
        let subscriber = session.declare_subscriber(KEY).wait().expect("a key");
        let words = [
            "sink",
            KEY,
            "--token-bytes",
            "4",
            "--run",
            "r",
            "--readers",
            "1",
            "--connect",
            &endpoint(port),
        ];
        let mut sink = Bridge::start(&words, Stdio::piped(), Stdio::null());
        sink.feed(vec![7; 40]);
        // It begins when somebody reads, publishes ten messages and the end, and waits.
        wait_until("it begins", || {
            replies_to(&session, Kind::Have, 0);
            subscriber.try_recv().expect("open").is_some()
        });
        for _ in 0..10 {
            let sample = subscriber.recv_timeout(Duration::from_secs(10));
            sample.expect("open").expect("the rest and the end");
        }
        let replies = replies_to(&session, Kind::Want, 0);
        assert!(replies.iter().all(|reply| reply.kind == Kind::Data));
        assert_eq!(replies.len(), 10, "no end yet: it may not have them");
        assert!(sink.is_running());

        let replies = replies_to(&session, Kind::Want, asked);
        let found: Vec<_> = replies
            .iter()
            .map(|reply| (reply.kind, reply.offset))
            .collect();
        assert_eq!(found, [(Kind::End, expect)]);
        sink.wait().expect(0, "10 tokens of run `r`");
    }
}

#[test]
fn a_source_whose_reader_is_gone_ends_also_without_a_sample() {
    let port = free_port();
    let session = listen("peer", port);
    let mut source = source(&endpoint(port), &[]);
    drop(publisher(&session, KEY));
    assert!(source.is_running());
    drop(source.output());
    source
        .wait()
        .expect(4, "standard output: its reader went away after 0 tokens");
}

#[test]
fn signals_end_what_waits() {
    let port = free_port();
    let at = endpoint(port);
    let session = listen("peer", port);
    // A source whose output takes nothing any more.
    let mut stalled = source(&at, &[]);
    let output = stalled.output();
    let publisher = publisher(&session, KEY);
    for _ in 0..20 {
        put(&publisher, &[0; 1 << 16], None);
    }
    let sink_words = ["sink", KEY, "--token-bytes", "4", "--connect", &at];
    let mut silent = Bridge::start(&sink_words, Stdio::piped(), Stdio::null());
    let input = silent.input();
    let waiting_words = [&sink_words[..], &["--readers", "3"]].concat();
    let waiting = Bridge::start(&waiting_words, Stdio::null(), Stdio::null());
    // The signal is to find them at work.
    std::thread::sleep(Duration::from_secs(2));
    for bridge in [stalled, silent, waiting] {
        let begun = Instant::now();
        bridge.signal("TERM");
        bridge.wait().expect(130, "interrupted");
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
    }
    drop((output, input));
}

#[test]
fn an_input_that_ends_within_a_token_is_no_end_of_the_run() {
    let port = free_port();
    let session = listen("peer", port);
    let subscriber = session.declare_subscriber(KEY).wait().expect("a key");
    let words = [
        "sink",
        KEY,
        "--token-bytes",
        "4",
        "--message-tokens",
        "2",
        "--connect",
        &endpoint(port),
    ];
    let mut sink = Bridge::start(&words, Stdio::piped(), Stdio::null());
    sink.feed(vec![1; 14]);
    sink.wait().expect(
        4,
        "ends 2 bytes into a token of 4 bytes, after 3 whole tokens",
    );
    let lengths: Vec<usize> = std::iter::from_fn(|| {
        let sample = subscriber.recv_timeout(Duration::from_secs(1));
        sample.expect("open").map(|sample| sample.payload().len())
    })
    .collect();
    assert_eq!(lengths, [8, 4]);
}

#[test]
fn command_lines_that_cannot_work_say_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        path.to_str().expect("ours").to_owned()
    };
    let [bytes, config] = [
        file("in.bin", &[0; 10]),
        file("zenoh.json5", b"{ mode: 7 }"),
    ];
    let missing = format!("{bytes}.missing");
    let [used, free] = [free_port(), free_port()].map(endpoint);
    let taken = std::net::TcpListener::bind(used.trim_start_matches("tcp/")).expect("free");
    for (words, code, expect) in [
        (&["source", "a//b"][..], 2, "`a//b` is no key expression"),
        (&["source", ""], 2, "is no key expression"),
        (
            &["sink", "a/**", "--token-bytes", "4"],
            2,
            "`a/**` is a pattern",
        ),
        (&["sink", "a"], 2, "--token-bytes"),
        (
            &["sink", "a", "--token-bytes", "4", "--run", "a b"],
            2,
            "a run's name is 1 to 64",
        ),
        (
            &[
                "sink",
                "a",
                "--token-bytes",
                "4",
                "--first-token",
                "18446744073709551615",
            ],
            2,
            "beyond what an offset can say",
        ),
        (
            &[
                "source",
                "a",
                "--token-bytes",
                "4",
                "--from",
                "18446744073709551615",
            ],
            2,
            "beyond what an offset can say",
        ),
        (
            &["sink", "a", &missing, "--token-bytes", "4"],
            4,
            "No such file",
        ),
        (&["source", "a", "/proc/none/x"], 4, "No such file"),
        (
            &["source", "a", &bytes, "--token-bytes", "4"],
            2,
            "has 10 bytes already: say with --run",
        ),
        (&["source", "a", "--config", &config], 2, "--config"),
        (&["source", "a", "--config", &missing], 2, "--config"),
        (
            &["source", "a", "--connect", "nonsense"],
            2,
            "connect/endpoints",
        ),
        (&["source", "a", "--listen", &used], 4, "no Zenoh session"),
        (
            &["source", "a", "--connect", &free],
            4,
            "is a router or peer there",
        ),
        (
            &[
                "sink",
                "a",
                &bytes,
                "--token-bytes",
                "4",
                "--connect",
                "tcp/no.such.host.invalid:7447",
            ],
            4,
            "no Zenoh session",
        ),
    ] {
        let bridge = Bridge::start(words, Stdio::null(), Stdio::null());
        bridge.wait().expect(code, expect);
    }
    drop(taken);
    assert_eq!(
        fs::read(&bytes).expect("there"),
        [0; 10],
        "refused, and changed"
    );
}
