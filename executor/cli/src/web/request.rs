//! Requests of HTTP/1 as far as a run answers them: one a connection, with a small body. Must not know what is answered.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A request's header, at most.
const MAX_HEADER_BYTES: usize = 8 << 10;
/// Fields of it, at most.
const MAX_FIELDS: usize = 64;
/// Its body, at most: what sets parameters.
const MAX_BODY_BYTES: usize = 1 << 16;

/// What a client wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    /// Without the query.
    pub(super) path: String,
    /// What follows `?`, as it was sent.
    pub(super) query: String,
    /// The token of `Authorization: Bearer`.
    pub(super) bearer: Option<String>,
    pub(super) body: Vec<u8>,
}

/// Why there is no request.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The client went away, or was too slow: nobody waits for an answer.
    Gone,
    /// It was no request, or a longer one than is taken.
    Bad(&'static str),
}

impl From<io::Error> for RequestError {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

impl Request {
    /// Reads a request, for at most so long.
    pub(super) fn read(stream: &mut TcpStream, limit: Duration) -> Result<Self, RequestError> {
        let end = Instant::now() + limit;
        let mut read = Vec::new();
        loop {
            if let Some((mut request, header_bytes, body_bytes)) = parse_header(&read)? {
                let all_bytes = header_bytes + body_bytes;
                while read.len() < all_bytes {
                    read_more(stream, &mut read, end)?;
                }
                request.body = read[header_bytes..all_bytes].to_vec();
                return Ok(request);
            }
            if read.len() >= MAX_HEADER_BYTES {
                return Err(RequestError::Bad("the header is too long"));
            }
            read_more(stream, &mut read, end)?;
        }
    }

    /// The value of a name in the query.
    pub(super) fn argument(&self, name: &str) -> Option<String> {
        let pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        let mut values = pairs.filter(|(found, _)| *found == name);
        values.next().map(|(_, value)| percent_decoded(value))
    }
}

fn read_more(stream: &mut TcpStream, to: &mut Vec<u8>, end: Instant) -> Result<(), RequestError> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(RequestError::Gone);
    }
    stream.set_read_timeout(Some(left))?;
    let mut piece = [0; 2048];
    match stream.read(&mut piece)? {
        0 if to.is_empty() => Err(RequestError::Gone),
        0 => Err(RequestError::Bad("the request is cut short")),
        count => {
            to.extend_from_slice(&piece[..count]);
            Ok(())
        }
    }
}

/// The request without its body, the bytes of its header and of its body; `None` if the header has not come to its end.
fn parse_header(bytes: &[u8]) -> Result<Option<(Request, usize, usize)>, RequestError> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut fields);
    let status = parsed
        .parse(bytes)
        .map_err(|_| RequestError::Bad("this is no request of HTTP/1"))?;
    let httparse::Status::Complete(header_bytes) = status else {
        return Ok(None);
    };

    let target = parsed.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        ..Request::default()
    };
    let mut body_bytes = None;
    for field in parsed.headers.iter() {
        let value = std::str::from_utf8(field.value).unwrap_or_default().trim();
        if field.name.eq_ignore_ascii_case("authorization") {
            request.bearer = value.strip_prefix("Bearer ").map(str::to_owned);
        } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(RequestError::Bad("bodies are taken with a Content-Length"));
        } else if field.name.eq_ignore_ascii_case("content-length") {
            let length = value.parse::<usize>().ok();
            let length = length.filter(|length| *length <= MAX_BODY_BYTES);
            if body_bytes.is_some() || length.is_none() {
                return Err(RequestError::Bad("the body's length is not taken"));
            }
            body_bytes = length;
        }
    }
    Ok(Some((request, header_bytes, body_bytes.unwrap_or(0))))
}

/// What `%xx` and `+` of a query stand for; as it is where they stand for nothing.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *byte == b'%');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        rest = match code {
            Some(_) => &after[2..],
            None => after,
        };
        bytes.push(match (code, byte) {
            (Some(code), _) => code,
            (None, b'+') => b' ',
            (None, other) => *other,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: &'static str,
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn new(content_type: &'static str, body: String) -> Self {
        Self {
            status: "200 OK",
            content_type,
            body,
        }
    }

    pub(super) fn json(body: &impl serde::Serialize) -> Self {
        // Plain data with string keys: serialising cannot fail.
        let body = serde_json::to_string(body).unwrap_or_default();
        Self::new("application/json", body)
    }

    /// A refusal for people.
    pub(super) fn error(status: &'static str, what: &str) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: format!("{what}\n"),
        }
    }

    /// A refusal for programs.
    pub(super) fn json_error(status: &'static str, what: &str) -> Self {
        let error = serde_json::json!({ "error": what });
        Self {
            status,
            ..Self::json(&error)
        }
    }

    /// Sends it; the connection is of no use afterwards.
    pub(super) fn send(&self, stream: &mut TcpStream) -> io::Result<()> {
        let Self {
            status,
            content_type,
            body,
        } = self;
        let length = body.len();
        // The page asks nobody but this run, and no other page may show it.
        let text = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
             Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
             connect-src 'self'; frame-ancestors 'none'\r\n\r\n{body}"
        );
        stream.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Option<Request>, &'static str> {
        match parse_header(text.as_bytes()) {
            Ok(found) => Ok(found.map(|(request, ..)| request)),
            Err(RequestError::Bad(why)) => Err(why),
            Err(RequestError::Gone) => unreachable!("nothing is read"),
        }
    }

    #[test]
    fn headers_are_read() {
        let text = "GET /block.json?channel=a%2Fb+c&x=1 HTTP/1.1\r\nHost: x\r\nauthorization: Bearer k\r\n\r\n";
        let request = parsed(text).expect("read").expect("whole");
        assert_eq!((&*request.method, &*request.path), ("GET", "/block.json"));
        assert_eq!(request.argument("channel").as_deref(), Some("a/b c"));
        assert_eq!(request.argument("key"), None);
        assert_eq!(request.bearer.as_deref(), Some("k"));
        assert_eq!(parsed("GET / HTTP/1.1\r\nHost:"), Ok(None));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for (text, part) in [
            ("GET /\r\n\r\n", "no request"),
            ("GET / HTTP/2.0\r\n\r\n", "no request"),
            ("\u{16}\u{3}\u{1}\r\n", "no request"),
            (
                "POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
                "length",
            ),
            ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "length"),
            (
                "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                "length",
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "Content-Length",
            ),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn queries_are_decoded_or_left() {
        for (text, expected) in [
            ("a%20b", "a b"),
            ("%zz", "%zz"),
            ("%", "%"),
            ("%4", "%4"),
            ("%c3%a9", "é"),
        ] {
            assert_eq!(percent_decoded(text), expected);
        }
    }
}
