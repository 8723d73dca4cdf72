//! From a description to what is to be read where. A description is a stranger's: every number is checked.

use serde::Deserialize;
use zbmd_ir::TokenType;

use super::Datatype;
use crate::gap::Cause;

/// Longer descriptions are refused.
pub const MAX_META_BYTES: u64 = 64 << 20;

/// Why a recording cannot be a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SigmfError {
    /// It is not a description.
    #[error("is not a SigMF description: {0}")]
    Json(String),
    /// A `core:datatype` that does not exist.
    #[error(
        "core:datatype `{0}` is unknown; known are c or r, then f32, f64, i32, i16, u32, u16 with _le or _be, i8 or u8"
    )]
    Datatype(String),
    /// Samples of another type than the tokens.
    #[error(
        "holds {found}, the tokens are {token}: convert the recording, or use tokens of its type and convert in the model"
    )]
    Token {
        /// Type of the samples.
        found: Datatype,
        /// Type of the tokens.
        token: TokenType,
    },
    /// Something that is not supported.
    #[error(
        "has {0}, which is not read: convert the recording to samples in a .sigmf-data file of its own"
    )]
    Unsupported(&'static str),
    /// Places that contradict each other.
    #[error("{what} {index}: {why}")]
    Place {
        /// `capture` or `annotation`.
        what: &'static str,
        /// Its index in the list.
        index: usize,
        /// What is wrong.
        why: String,
    },
}

#[derive(Deserialize)]
struct Meta {
    global: Global,
    #[serde(default)]
    captures: Vec<Capture>,
    #[serde(default)]
    annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Global {
    #[serde(rename = "core:datatype")]
    datatype: String,
    #[serde(rename = "core:sample_rate")]
    sample_rate: Option<f64>,
    #[serde(rename = "core:num_channels")]
    num_channels: Option<u64>,
    #[serde(rename = "core:trailing_bytes", default)]
    trailing_bytes: u64,
    #[serde(rename = "core:dataset")]
    dataset: Option<String>,
    #[serde(rename = "core:metadata_only", default)]
    metadata_only: bool,
}

#[derive(Deserialize)]
struct Capture {
    #[serde(rename = "core:sample_start")]
    sample_start: u64,
    #[serde(rename = "core:global_index")]
    global_index: Option<u64>,
    #[serde(rename = "core:header_bytes", default)]
    header_bytes: u64,
}

#[derive(Deserialize)]
struct Annotation {
    #[serde(rename = "core:sample_start")]
    sample_start: u64,
    #[serde(rename = "core:sample_count")]
    sample_count: Option<u64>,
    #[serde(rename = "zbmd:gap")]
    gap: Option<Cause>,
}

/// A part of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Tokens.
    Data {
        /// Where they begin in the data.
        at_byte: u64,
        /// How many.
        tokens: u64,
    },
    /// Tokens that were filled when they were recorded; all of them are alike.
    Filled {
        /// Where they begin in the data.
        at_byte: u64,
        /// How many.
        tokens: u64,
        /// Why.
        cause: Cause,
    },
    /// Tokens that are not in the data.
    Missing {
        /// How many.
        tokens: u64,
    },
}

/// A recording as its description has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// How samples stand in the data.
    pub datatype: Datatype,
    /// Tokens a second, if it says so.
    pub token_rate: Option<f64>,
    /// What there is, in order.
    pub segments: Vec<Segment>,
}

/// A place in the data where something begins or ends.
struct Layout {
    frame_bytes: u64,
    token_bytes: u64,
    segments: Vec<Segment>,
    /// The next sample to be placed.
    sample: u64,
    /// Bytes of headers before it.
    header_bytes: u64,
}

fn place(what: &'static str, index: usize, why: impl Into<String>) -> SigmfError {
    SigmfError::Place {
        what,
        index,
        why: why.into(),
    }
}

impl Recording {
    /// Reads a description of `data_bytes` bytes of samples that are to be these tokens.
    ///
    /// # Errors
    /// See [`SigmfError`].
    pub fn parse(meta: &[u8], data_bytes: u64, token: &TokenType) -> Result<Self, SigmfError> {
        let meta: Meta =
            serde_json::from_slice(meta).map_err(|error| SigmfError::Json(error.to_string()))?;
        let global = &meta.global;
        if global.dataset.is_some() {
            return Err(SigmfError::Unsupported("core:dataset"));
        }
        if global.metadata_only {
            return Err(SigmfError::Unsupported("core:metadata_only"));
        }
        let datatype: Datatype = global
            .datatype
            .parse()
            .map_err(|()| SigmfError::Datatype(global.datatype.clone()))?;
        if !datatype.fits(token) {
            let token = token.clone();
            return Err(SigmfError::Token {
                found: datatype,
                token,
            });
        }

        let channels = global.num_channels.unwrap_or(1);
        let frame_bytes = (datatype.sample_bytes() as u64).checked_mul(channels);
        let Some(frame_bytes @ 1..) = frame_bytes else {
            let why = format!("core:num_channels {channels}");
            return Err(SigmfError::Json(why));
        };
        let headers = meta.captures.iter().map(|capture| capture.header_bytes);
        let other_bytes = headers.fold(global.trailing_bytes, u64::saturating_add);
        let samples = data_bytes.saturating_sub(other_bytes) / frame_bytes;

        let mut layout = Layout {
            frame_bytes,
            token_bytes: token.bytes(),
            segments: Vec::new(),
            sample: 0,
            header_bytes: 0,
        };
        layout.all(&meta, samples)?;
        let rate = global.sample_rate.filter(|rate| *rate > 0.0);
        Ok(Self {
            datatype,
            token_rate: rate.map(|rate| rate * frame_bytes as f64 / token.bytes() as f64),
            segments: layout.segments,
        })
    }
}

impl Layout {
    /// Places captures, and the gaps in each of them.
    fn all(&mut self, meta: &Meta, samples: u64) -> Result<(), SigmfError> {
        let mut gaps = gaps_of(&meta.annotations, samples)?.into_iter().peekable();
        let mut previous_start = 0;
        let mut expected_global: Option<u64> = None;
        for (index, capture) in meta.captures.iter().enumerate() {
            let start = capture.sample_start;
            if start < previous_start {
                let why = format!(
                    "begins at sample {start}, before capture {}",
                    index.max(1) - 1
                );
                return Err(place("capture", index, why));
            }
            if start > samples {
                let why = format!("begins at sample {start}; the data has {samples}");
                return Err(place("capture", index, why));
            }

            let expected =
                expected_global.and_then(|global| global.checked_add(start - previous_start));
            previous_start = start;
            expected_global = capture.global_index.or(expected);
            let missing = match (capture.global_index, expected) {
                (Some(global), Some(expected)) => global.checked_sub(expected).ok_or_else(|| {
                    let why = format!("core:global_index {global} is before {expected}, where the capture before it ends");
                    place("capture", index, why)
                })?,
                _ => 0,
            };

            // Samples of captures that follow on each other may be in one token.
            if missing == 0 && capture.header_bytes == 0 {
                continue;
            }
            self.up_to(start, Some(index), &mut gaps)?;
            self.header_bytes = self.header_bytes.saturating_add(capture.header_bytes);
            let tokens = self.tokens("capture", index, missing)?;
            if tokens > 0 {
                self.segments.push(Segment::Missing { tokens });
            }
        }
        self.up_to(samples, None, &mut gaps)
    }

    /// So many samples as tokens.
    fn tokens(&self, what: &'static str, index: usize, samples: u64) -> Result<u64, SigmfError> {
        let bytes = samples
            .checked_mul(self.frame_bytes)
            .ok_or_else(|| place(what, index, format!("{samples} samples are too many")))?;
        if !bytes.is_multiple_of(self.token_bytes) {
            let why = format!(
                "{samples} samples of {} bytes are no whole tokens of {} bytes: use tokens of one sample",
                self.frame_bytes, self.token_bytes
            );
            return Err(place(what, index, why));
        }
        Ok(bytes / self.token_bytes)
    }

    /// Places samples up to one, with the gaps among them: up to a capture, or to the end, where what is no whole token
    /// is left out.
    fn up_to(
        &mut self,
        end: u64,
        capture: Option<usize>,
        gaps: &mut std::iter::Peekable<std::vec::IntoIter<MarkedGap>>,
    ) -> Result<(), SigmfError> {
        while self.sample < end {
            let Some(gap) = gaps.peek_mut().filter(|gap| gap.first < end) else {
                break;
            };
            let first = gap.first;
            let cause = gap.cause;
            let index = gap.index;
            // A capture may begin within a gap: the rest of it comes after the capture.
            let gap_end = gap.end.min(end);
            gap.first = gap_end;
            if gap_end == gap.end {
                gaps.next();
            }

            let received = self.tokens("annotation", index, first.saturating_sub(self.sample))?;
            self.data(received, first);
            let tokens = self.tokens("annotation", index, gap_end - first)?;
            self.segments.push(Segment::Filled {
                at_byte: self.at_byte(),
                tokens,
                cause,
            });
            self.sample = gap_end;
        }

        let rest = end.saturating_sub(self.sample);
        let tokens = match capture {
            Some(index) => self.tokens("capture", index, rest)?,
            None => rest * self.frame_bytes / self.token_bytes,
        };
        self.data(tokens, end);
        Ok(())
    }

    /// Places tokens that were received, up to a sample.
    fn data(&mut self, tokens: u64, end: u64) {
        if tokens > 0 {
            self.segments.push(Segment::Data {
                at_byte: self.at_byte(),
                tokens,
            });
        }
        self.sample = end.max(self.sample);
    }

    fn at_byte(&self) -> u64 {
        (self.sample * self.frame_bytes).saturating_add(self.header_bytes)
    }
}

/// Samples that an annotation says were filled.
struct MarkedGap {
    first: u64,
    end: u64,
    cause: Cause,
    index: usize,
}

/// The gaps among the annotations, which lie within the data and do not overlap.
fn gaps_of(annotations: &[Annotation], samples: u64) -> Result<Vec<MarkedGap>, SigmfError> {
    let mut gaps: Vec<MarkedGap> = Vec::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let Some(cause) = annotation.gap else {
            continue;
        };
        let first = annotation.sample_start;
        let Some(count) = annotation.sample_count else {
            return Err(place(
                "annotation",
                index,
                "a gap without core:sample_count",
            ));
        };
        let end = first.checked_add(count).filter(|end| *end <= samples);
        let Some(end) = end else {
            let why = format!("{count} samples from {first} on; the data has {samples}");
            return Err(place("annotation", index, why));
        };
        if let Some(last) = gaps.last().filter(|last| first < last.end) {
            let why = format!(
                "a gap from sample {first} on, before the end of the last one at {}",
                last.end
            );
            return Err(place("annotation", index, why));
        }
        if count > 0 {
            gaps.push(MarkedGap {
                first,
                end,
                cause,
                index,
            });
        }
    }
    Ok(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::DType;

    fn parse(meta: &str, data_bytes: u64, token: &TokenType) -> Result<Recording, String> {
        Recording::parse(meta.as_bytes(), data_bytes, token).map_err(|error| error.to_string())
    }

    fn with(captures: &str, annotations: &str) -> String {
        format!(
            r#"{{"global":{{"core:datatype":"ri16_le","core:sample_rate":100}},"captures":[{captures}],"annotations":[{annotations}]}}"#
        )
    }

    fn i16s() -> TokenType {
        TokenType::scalar(DType::I16)
    }

    #[test]
    fn captures_and_annotations_become_gaps() {
        let meta = with(
            r#"{"core:sample_start":0,"core:global_index":7},{"core:sample_start":10,"core:global_index":20},{"core:sample_start":12,"core:header_bytes":4}"#,
            r#"{"core:sample_start":3,"core:sample_count":2,"zbmd:gap":"silence"},{"core:sample_start":4,"core:label":"x"}"#,
        );
        let recording = parse(&meta, 35, &i16s()).expect("right");
        assert_eq!(recording.token_rate, Some(100.0));
        let data = |at_byte, tokens| Segment::Data { at_byte, tokens };
        let expect = [
            data(0, 3),
            Segment::Filled {
                at_byte: 6,
                tokens: 2,
                cause: Cause::Silence,
            },
            data(10, 5),
            Segment::Missing { tokens: 3 },
            data(20, 2),
            data(28, 3),
        ];
        assert_eq!(recording.segments, expect);
    }

    #[test]
    fn a_token_may_be_a_part_of_a_sample_or_several() {
        let meta = r#"{"global":{"core:datatype":"cu8","core:sample_rate":100}}"#;
        for (token, rate, tokens) in [
            (TokenType::scalar(DType::U8), 200.0, 16),
            (TokenType::new(DType::U8, [2]), 100.0, 8),
            (TokenType::new(DType::U8, [6]), 100.0 / 3.0, 2),
        ] {
            let recording = parse(meta, 17, &token).expect("right");
            assert_eq!(recording.token_rate, Some(rate));
            assert_eq!(recording.segments, [Segment::Data { at_byte: 0, tokens }]);
        }
    }

    #[test]
    fn a_token_spans_captures_only_where_nothing_is_between_them() {
        let token = TokenType::new(DType::I16, [3]);
        let captures = |keys: &str| {
            let second = format!(r#"{{"core:sample_start":4{keys}}}"#);
            with(
                &format!(r#"{{"core:sample_start":0,"core:global_index":0}},{second}"#),
                "",
            )
        };
        let recording = parse(&captures(r#","core:global_index":4"#), 20, &token).expect("right");
        let tokens = 3;
        assert_eq!(recording.segments, [Segment::Data { at_byte: 0, tokens }]);
        for keys in [r#","core:header_bytes":2"#, r#","core:global_index":7"#] {
            let error = parse(&captures(keys), 22, &token).expect_err("within a token");
            assert!(
                error.contains("capture 1: 4 samples of 2 bytes are no whole tokens"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        // An unknown key with a value as deep as it likes.
        let deep = r#"{"global":{"core:datatype":"ri16_le","x":"#.to_owned() + &"[".repeat(100_000);
        for (meta, expect) in [
            ("", "is not a SigMF description"),
            (deep.as_str(), "EOF while parsing"),
            (r#"{"global":{}}"#, "missing field `core:datatype`"),
            (
                r#"{"global":{"core:datatype":"cf32_le"}}"#,
                "holds cf32_le, the tokens are i16",
            ),
            (
                r#"{"global":{"core:datatype":"zz"}}"#,
                "core:datatype `zz` is unknown",
            ),
            (
                r#"{"global":{"core:datatype":"ri16_le","core:num_channels":0}}"#,
                "core:num_channels 0",
            ),
            (
                r#"{"global":{"core:datatype":"ri16_le","core:num_channels":18446744073709551615}}"#,
                "core:num_channels",
            ),
            (
                r#"{"global":{"core:datatype":"ri16_le","core:dataset":"x"}}"#,
                "has core:dataset",
            ),
            (&with(r#"{"core:sample_start":-1}"#, ""), "invalid value"),
            (
                &with(r#"{"core:sample_start":11}"#, ""),
                "capture 0: begins at sample 11; the data has 10",
            ),
            (
                &with(r#"{"core:sample_start":5},{"core:sample_start":4}"#, ""),
                "capture 1: begins at sample 4, before capture 0",
            ),
            (
                &with(
                    r#"{"core:sample_start":0,"core:global_index":5},{"core:sample_start":4,"core:global_index":8}"#,
                    "",
                ),
                "capture 1: core:global_index 8 is before 9",
            ),
            (
                &with(
                    r#"{"core:sample_start":0,"core:global_index":0},{"core:sample_start":4,"core:global_index":18446744073709551615}"#,
                    "",
                ),
                "capture 1: 18446744073709551611 samples are too many",
            ),
            (
                &with(
                    "",
                    r#"{"core:sample_start":9,"core:sample_count":2,"zbmd:gap":"lost"}"#,
                ),
                "annotation 0: 2 samples from 9 on; the data has 10",
            ),
            (
                &with("", r#"{"core:sample_start":9,"zbmd:gap":"lost"}"#),
                "annotation 0: a gap without core:sample_count",
            ),
            (
                &with(
                    "",
                    r#"{"core:sample_start":1,"core:sample_count":2,"zbmd:gap":"lost"},{"core:sample_start":2,"core:sample_count":1,"zbmd:gap":"lost"}"#,
                ),
                "annotation 1: a gap from sample 2 on, before the end of the last one at 3",
            ),
        ] {
            let error = parse(meta, 20, &i16s()).expect_err(expect);
            assert!(error.contains(expect), "{error}\n{expect}");
        }
    }
}
