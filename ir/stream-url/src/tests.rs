//! URLs in, descriptions or mistakes out.

use std::path::PathBuf;
use std::time::Duration;

use super::{Endpoint, Fill, Header, QueueFull, SinkUrl, SourceUrl, StreamAddress, is_url};

fn source_error(text: &str) -> String {
    let error = SourceUrl::parse(text).expect_err(text);
    error.to_string()
}

#[test]
fn urls_of_sources_are_read() {
    let url = SourceUrl::parse(
        "udp://[::1]:5000?header=vita49&rate=2.4e6&silence=stall&limit=2s&fill=hold&queue=9&full=wait&window=0",
    )
    .expect("right");
    let address = StreamAddress {
        host: "::1".to_owned(),
        port: 5000,
    };
    assert_eq!(address.to_string(), "[::1]:5000");
    let header = Header::Vita49;
    assert_eq!(url.endpoint, Endpoint::Udp { address, header });
    assert_eq!(url.rate, Some(2.4e6));
    assert_eq!(url.fills_silence, Some(false));
    assert_eq!(url.limit, Duration::from_secs(2));
    assert_eq!(url.fill, Some(Fill::Hold));
    assert_eq!(url.queue, Some(9));
    assert_eq!(url.full, QueueFull::Wait);
    assert_eq!(url.window, 0);

    let url = SourceUrl::parse("rtl_tcp://radio:1234?rate=2.4e6&freq=1090e6&gain=49.6&ppm=-3");
    let Endpoint::RtlTcp(address, tuning) = url.expect("right").endpoint else {
        panic!("a receiver");
    };
    assert_eq!(address.to_string(), "radio:1234");
    assert_eq!(tuning.frequency_hz, Some(1_090_000_000));
    assert_eq!(tuning.gain_tenths, Some(Some(496)));
    assert_eq!(tuning.ppm, Some(-3));

    let url = SourceUrl::parse("paced:a b/c=d.cf32?rate=48000").expect("right");
    assert_eq!(url.path(), Some(&PathBuf::from("a b/c=d.cf32")));
}

#[test]
fn mistakes_name_the_key_the_value_and_what_is_allowed() {
    for (text, expect) in [
        (
            "upd://h:1",
            "unknown scheme `upd`; allowed for sources: udp, tcp, tcp-listen, rtl_tcp, paced, sigmf, audio, soapy, zmq-sub, zmq-sub-listen, zmq-pull, zmq-pull-listen",
        ),
        (
            "rtl_tcp-listen://h:1",
            "unknown scheme `rtl_tcp-listen`; allowed for sources: udp, tcp, tcp-listen, rtl_tcp, paced, sigmf, audio, soapy, zmq-sub, zmq-sub-listen, zmq-pull, zmq-pull-listen",
        ),
        (
            "udp://h",
            "`h` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000",
        ),
        (
            "udp:h:1",
            "`h:1` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000",
        ),
        (
            "udp://h:99999",
            "`h:99999` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000",
        ),
        (
            "udp://h:1/path",
            "`h:1/path` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000",
        ),
        (
            "udp://::1:5000",
            "`::1:5000` is not an address: write HOST:PORT, such as 127.0.0.1:5000 or [::1]:5000",
        ),
        (
            "paced:?rate=1",
            "`paced:` needs a file: write paced:PATH?rate=48000",
        ),
        (
            "tcp://h:1?header=seq",
            "`tcp` has no key `header` for sources; allowed: rate, silence, limit, fill, queue, full",
        ),
        (
            "udp://h:1?header=vita",
            "`header=vita` is wrong; allowed: none, seq, vita49",
        ),
        (
            "udp://h:1?rate=0",
            "`rate=0` is wrong; allowed: tokens a second above 0, up to 1e12",
        ),
        (
            "udp://h:1?rate=nan",
            "`rate=nan` is wrong; allowed: tokens a second above 0, up to 1e12",
        ),
        (
            "udp://h:1?limit=5",
            "`limit=5` is wrong; allowed: a time from 1ms to 1h: 50ms, 2s",
        ),
        (
            "udp://h:1?full=drop",
            "`full=drop` is wrong; allowed: drop-oldest, drop-newest, wait",
        ),
        (
            "udp://h:1?queue=0",
            "`queue=0` is wrong; allowed: a number of tokens from 1 on",
        ),
        (
            "udp://h:1?window=99999",
            "`window=99999` is wrong; allowed: packets from 0 to 4096",
        ),
        (
            "udp://h:1?fill=ones",
            "`fill=ones` is wrong; allowed: zeros, hold",
        ),
        (
            "udp://h:1?silence=go",
            "`silence=go` is wrong; allowed: stall, fill",
        ),
        (
            "udp://h:1?rate=1&rate=2",
            "the key `rate` is given twice; give it once",
        ),
        (
            "rtl_tcp://h:1?gain=high",
            "`gain=high` is wrong; allowed: auto, or dB from -1000 to 1000",
        ),
        (
            "rtl_tcp://h:1?freq=5e9",
            "`freq=5e9` is wrong; allowed: Hz from 0 to 4294967295",
        ),
        (
            "rtl_tcp://h:1?ppm=1.5",
            "`ppm=1.5` is wrong; allowed: a whole number from -10000 to 10000",
        ),
    ] {
        assert_eq!(source_error(text), expect, "{text}");
    }
    let error = SinkUrl::parse("udp://h:1?packet=9").expect_err("too small");
    let expect = "`packet=9` is wrong; allowed: bytes from 16 to 65507";
    assert_eq!(error.to_string(), expect);
    let error = SinkUrl::parse("udp://h:1?window=1").expect_err("of sources");
    let expect = "`udp` has no key `window` for sinks; allowed: header, packet";
    assert_eq!(error.to_string(), expect);
}

#[test]
fn files_are_not_urls() {
    for text in [
        "-",
        "a.cf32",
        "./udp://x",
        "/a:b",
        "a:b",
        "C:x",
        "dir/udp://x",
    ] {
        assert!(!is_url(text), "{text}");
    }
    for text in [
        "udp://h:1",
        "http://h",
        "paced:x",
        "rtl_tcp-listen://h:1",
        "tcp://",
    ] {
        assert!(is_url(text), "{text}");
    }
}
