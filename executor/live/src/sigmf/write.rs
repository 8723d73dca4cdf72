//! The description of a recording that we write.

use serde_json::{Value, json};
use zbmd_ir::TokenType;

use super::{Datatype, GAP_KEY, datetime};
use crate::gap::Gap;

/// What is known of a recording beside its gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordingSettings {
    datatype: Datatype,
    /// Samples in a token.
    token_samples: u64,
    token_rate: Option<f64>,
}

impl RecordingSettings {
    /// A recording of these tokens, so many a second if that is known. `None` for tokens that no SigMF type has.
    pub fn new(token: &TokenType, token_rate: Option<f64>) -> Option<Self> {
        let datatype = Datatype::of_token(token)?;
        Some(Self {
            datatype,
            token_samples: token.bytes() / datatype.sample_bytes() as u64,
            token_rate,
        })
    }
}

/// Tokens of a stream that follow on each other in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Index of the first one in the stream.
    pub first: u64,
    /// How many.
    pub tokens: u64,
    /// When the first one was taken, in nanoseconds since 1970, if that is known.
    pub unix_ns: Option<u64>,
}

/// The description of so many tokens, of which those in `gaps` were filled. What lies beyond the tokens is left out.
pub fn describe(settings: &RecordingSettings, tokens: u64, gaps: &[Gap]) -> Vec<u8> {
    let whole = Capture {
        first: 0,
        tokens,
        unix_ns: None,
    };
    describe_captures(settings, &[whole], gaps)
}

/// The description of pieces of a stream, in order, which are one after another in the data. Gaps are counted as the
/// stream's tokens are; parts of them that are in no piece are left out.
pub fn describe_captures(
    settings: &RecordingSettings,
    pieces: &[Capture],
    gaps: &[Gap],
) -> Vec<u8> {
    let mut global = json!({
        "core:datatype": settings.datatype.to_string(),
        "core:version": "1.2.0",
        "core:recorder": concat!("zbmd ", env!("CARGO_PKG_VERSION")),
        "core:extensions": [{"name": "zbmd", "version": "1.0.0", "optional": true}],
    });
    if let Some(rate) = settings.token_rate {
        global["core:sample_rate"] = json!(rate * settings.token_samples as f64);
    }

    let mut segments = Segments {
        settings,
        captures: Vec::new(),
        annotations: Vec::new(),
    };
    let gaps = disjoint(gaps);
    let mut begin = 0;
    for piece in pieces {
        let before = gaps.partition_point(|gap| gap.end() <= piece.first);
        segments.add_piece(begin, piece, &gaps[before..]);
        begin += piece.tokens;
    }

    let Segments {
        captures,
        annotations,
        ..
    } = segments;
    let meta = json!({"global": global, "captures": captures, "annotations": annotations});
    let mut text = format!("{meta:#}").into_bytes();
    text.push(b'\n');
    text
}

/// Gaps in order, none of which has tokens of another one: those that were filled and then dropped from a full queue are in
/// two.
fn disjoint(gaps: &[Gap]) -> Vec<Gap> {
    let mut ordered = gaps.to_vec();
    ordered.sort_by_key(|gap| gap.first);
    let mut described_to = 0;
    ordered.retain_mut(|gap| {
        let (first, end) = (gap.first.max(described_to), gap.end());
        described_to = described_to.max(end);
        gap.first = first;
        gap.length = end.saturating_sub(first);
        gap.length > 0
    });
    ordered
}

/// Captures and annotations that are being put together.
struct Segments<'s> {
    settings: &'s RecordingSettings,
    captures: Vec<Value>,
    annotations: Vec<Value>,
}

impl Segments<'_> {
    fn samples(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.settings.token_samples)
    }

    /// `place` is the token in the data, `index` that of the stream.
    fn add_capture(&mut self, place: u64, index: u64, unix_ns: Option<u64>) {
        let (start, global_index) = (self.samples(place), self.samples(index));
        let mut capture = json!({"core:sample_start": start, "core:global_index": global_index});
        if let Some(unix_ns) = unix_ns {
            capture["core:datetime"] = json!(datetime::text(unix_ns));
        }
        self.captures.push(capture);
    }

    /// Adds a piece that begins at `begin` in the data. After each gap in it there is a new capture.
    fn add_piece(&mut self, begin: u64, piece: &Capture, gaps: &[Gap]) {
        let piece_end = piece.first.saturating_add(piece.tokens);
        self.add_capture(begin, piece.first, piece.unix_ns);
        for gap in gaps.iter().take_while(|gap| gap.first < piece_end) {
            let first = gap.first.max(piece.first);
            let end = gap.end().min(piece_end);
            let place = begin + (first - piece.first);
            self.annotations.push(json!({
                "core:sample_start": self.samples(place),
                "core:sample_count": self.samples(end - first),
                "core:label": "gap",
                "core:comment": format!("filled: {}", gap.cause),
                GAP_KEY: gap.cause,
            }));
            if end < piece_end {
                self.add_capture(begin + (end - piece.first), end, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Recording, Segment};
    use super::*;
    use crate::gap::Cause;
    use zbmd_ir::DType;

    #[test]
    fn what_is_written_is_read_again() {
        let token = TokenType::new(DType::F32, [4]);
        let settings = RecordingSettings::new(&token, Some(250.0)).expect("a type");
        let gap = |first, length, cause| Gap {
            first,
            length,
            cause,
        };
        let gaps = [
            gap(0, 3, Cause::Disconnected),
            gap(3, 2, Cause::Lost),
            gap(4, 2, Cause::QueueFull),
            gap(9, 5, Cause::Silence),
            gap(20, 5, Cause::Lost),
        ];
        let text = describe(&settings, 12, &gaps);
        let recording = Recording::parse(&text, 12 * 16, &token).expect("right");
        assert_eq!(recording.token_rate, Some(250.0));
        let filled = |first: u64, tokens, cause| Segment::Filled {
            at_byte: first * 16,
            tokens,
            cause,
        };
        let expect = [
            filled(0, 3, Cause::Disconnected),
            filled(3, 2, Cause::Lost),
            filled(5, 1, Cause::QueueFull),
            Segment::Data {
                at_byte: 96,
                tokens: 3,
            },
            filled(9, 3, Cause::Silence),
        ];
        assert_eq!(recording.segments, expect);
    }

    #[test]
    fn pieces_of_a_stream_are_read_with_what_is_missing_between_them() {
        let token = TokenType::scalar(DType::F32);
        let settings = RecordingSettings::new(&token, Some(10.0)).expect("a type");
        let piece = |first, tokens, unix_ns| Capture {
            first,
            tokens,
            unix_ns,
        };
        let gap = |first, length| Gap {
            first,
            length,
            cause: Cause::Silence,
        };
        let pieces = [piece(100, 10, Some(1_000_000_000)), piece(115, 5, None)];
        // The last is in neither, the second in part.
        let gaps = [gap(104, 2), gap(108, 9), gap(130, 5)];
        let text = describe_captures(&settings, &pieces, &gaps);
        let meta: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(
            meta["captures"][0],
            json!({"core:sample_start": 0, "core:global_index": 100,
                   "core:datetime": "1970-01-01T00:00:01.000000Z"})
        );
        let recording = Recording::parse(&text, 15 * 4, &token).expect("right");
        let data = |at_byte, tokens| Segment::Data { at_byte, tokens };
        let filled = |at_byte, tokens| Segment::Filled {
            at_byte,
            tokens,
            cause: Cause::Silence,
        };
        let expect = [
            data(0, 4),
            filled(16, 2),
            data(24, 2),
            filled(32, 2),
            Segment::Missing { tokens: 5 },
            filled(40, 2),
            data(48, 3),
        ];
        assert_eq!(recording.segments, expect);
    }
}
