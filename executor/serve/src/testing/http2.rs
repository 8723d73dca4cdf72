//! HTTP/2 as far as a client of gRPC needs it: one call, and a look at what comes back.

/// What every connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes before the payload of a frame: its length, type, flags and stream.
const HEAD_BYTES: usize = 9;

/// Types of frames (RFC 9113, 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// All that comes on a connection on which one method of the service is called with one message.
///
/// # Panics
/// The message does not fit a frame.
pub fn grpc_call(method: &str, message: &[u8]) -> Vec<u8> {
    let path = format!("/inference.GRPCInferenceService/{method}");
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path.as_str()),
        (":authority", "zbmd"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];
    let mut headers = Vec::new();
    for (name, value) in fields {
        // A literal with a name of its own, not to be remembered; lengths below 127 are a byte.
        headers.push(0);
        for text in [name, value] {
            headers.push(u8::try_from(text.len()).expect("short"));
            headers.extend_from_slice(text.as_bytes());
        }
    }

    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    let body = [&[0], length.as_slice(), message].concat();
    assert!(body.len() < 1 << 14, "{} bytes", body.len());
    [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &headers),
        frame(DATA, END_STREAM, 1, &body),
    ]
    .concat()
}

/// Sees to it that what a server wrote are frames, of which the last may be cut off; bytes of tensors and other answers in
/// them.
///
/// # Panics
/// They are not.
pub fn check_frames(mut bytes: &[u8]) -> usize {
    let mut is_first = true;
    let mut data_bytes = 0;
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() {
        let [
            length_high,
            length_middle,
            length_low,
            kind,
            _,
            stream_high,
            ..,
        ] = *head;
        assert!(kind <= CONTINUATION, "a frame of type {kind}");
        assert!(
            stream_high < 0x80,
            "the first bit of a stream's number is 0"
        );
        assert!(!is_first || kind == SETTINGS, "settings come first");
        is_first = false;

        let length = u32::from_be_bytes([0, length_high, length_middle, length_low]);
        let length = (length as usize).min(rest.len());
        data_bytes += if kind == DATA { length } else { 0 };
        bytes = &rest[length..];
    }
    data_bytes
}
