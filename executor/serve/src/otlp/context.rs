//! The header `traceparent` of the W3C's Trace Context, version 00: the trace that a request belongs to.

use hyper::HeaderMap;

/// The span of a client that a request is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent {
    pub(crate) trace_id: [u8; 16],
    pub(crate) span_id: [u8; 8],
    /// Whether the client records its trace.
    pub(crate) is_sampled: bool,
}

impl TraceParent {
    /// That of a request's headers; nothing if there is none, or it makes no sense: the request begins a trace then.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all("traceparent").iter();
        let value = values.next().filter(|_| values.next().is_none())?;
        Self::parse(value.to_str().ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let version = bytes_of::<1>(parts.next()?)?;
        let trace_id = bytes_of::<16>(parts.next()?)?;
        let span_id = bytes_of::<8>(parts.next()?)?;
        let flags = bytes_of::<1>(parts.next()?)?;
        // Later versions may have more parts.
        let is_known = match version {
            [0] => parts.next().is_none(),
            [version] => version != 0xff,
        };
        let is_valid = is_known && trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(Self {
            trace_id,
            span_id,
            is_sampled: flags[0] & 1 == 1,
        })
    }
}

/// Bytes from exactly two lower-case hexadecimal digits each.
fn bytes_of<const COUNT: usize>(digits: &str) -> Option<[u8; COUNT]> {
    let digits = digits.as_bytes();
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if digits.len() != 2 * COUNT {
        return None;
    }
    let mut bytes = [0; COUNT];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specifications_example_is_read() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = TraceParent::parse(text).expect("valid");
        assert_eq!(parent.trace_id[..2], [0x4b, 0xf9]);
        assert_eq!(parent.span_id[6..], [0x02, 0xb7]);
        assert!(parent.is_sampled);
        let unsampled = TraceParent::parse(&text.replace("-01", "-00")).expect("valid");
        assert!(!unsampled.is_sampled);
        assert!(TraceParent::parse(&text.replace("00-4b", "01-4b")).is_some());
        assert!(TraceParent::parse(&format!("{}-more", text.replace("00-4b", "01-4b"))).is_some());
    }

    #[test]
    fn what_makes_no_sense_is_no_parent() {
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }
}
