//! The description of a recording that we write.

use serde_json::{Value, json};
use zbmd_ir::TokenType;

use super::{Datatype, GAP_KEY};
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

/// The description of so many tokens, of which those in `gaps` were filled. What lies beyond the tokens is left out.
pub fn describe(settings: &RecordingSettings, tokens: u64, gaps: &[Gap]) -> Vec<u8> {
    let samples = |tokens: u64| tokens.saturating_mul(settings.token_samples);
    let mut global = json!({
        "core:datatype": settings.datatype.to_string(),
        "core:version": "1.2.0",
        "core:recorder": concat!("zbmd ", env!("CARGO_PKG_VERSION")),
        "core:extensions": [{"name": "zbmd", "version": "1.0.0", "optional": true}],
    });
    if let Some(rate) = settings.token_rate {
        global["core:sample_rate"] = json!(rate * settings.token_samples as f64);
    }

    let capture = |first: u64| json!({"core:sample_start": samples(first), "core:global_index": samples(first)});
    let mut captures: Vec<Value> = vec![capture(0)];
    let mut annotations: Vec<Value> = Vec::new();
    let mut described_to = 0;
    for gap in gaps {
        // Tokens that were filled and then dropped from a full queue are in two gaps; one is enough here.
        let first = gap.first.max(described_to);
        let end = gap.end().min(tokens);
        if first >= end {
            continue;
        }
        described_to = end;
        annotations.push(json!({
            "core:sample_start": samples(first),
            "core:sample_count": samples(end - first),
            "core:label": "gap",
            "core:comment": format!("filled: {}", gap.cause),
            GAP_KEY: gap.cause,
        }));
        if end < tokens {
            captures.push(capture(end));
        }
    }

    let meta = json!({"global": global, "captures": captures, "annotations": annotations});
    let mut text = format!("{meta:#}").into_bytes();
    text.push(b'\n');
    text
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
}
