//! Reading bodies of strangers: so many bytes and so long at most.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_ENCODING, HeaderMap};

use super::reply::{Reply, closing, error};

/// A body that is refused is read all the same up to here, so that its client reads the refusal and does not find its
/// connection reset while it writes.
const MAX_DISCARDED_BYTES: u64 = 8 << 20;

/// Memory that is taken before a body comes, at most.
const FIRST_BYTES: usize = 64 << 10;

/// How bodies are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    pub(super) max_bytes: usize,
    /// From the end of the header to that of the body.
    pub(super) time: Duration,
}

/// Reads a whole body.
///
/// # Errors
/// The answer to a body that is too long, too slow, encoded, or cut off.
pub(super) async fn read_body(
    headers: &HeaderMap,
    mut body: Incoming,
    limits: BodyLimits,
) -> Result<Vec<u8>, Reply> {
    let encoding = headers.get(CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| encoding.as_bytes() != b"identity") {
        discard(body, limits.time).await;
        let what = "compressed bodies are not supported: send it without Content-Encoding";
        return Err(closing(error(StatusCode::UNSUPPORTED_MEDIA_TYPE, what)));
    }
    let declared = body.size_hint().lower();
    if declared > limits.max_bytes as u64 {
        discard(body, limits.time).await;
        return Err(too_long(declared, limits));
    }

    // What is only declared takes no memory.
    let mut bytes = Vec::with_capacity((declared as usize).min(FIRST_BYTES));
    let is_complete = tokio::time::timeout(limits.time, read_frames(&mut body, &mut bytes, limits));
    match is_complete.await {
        Ok(Ok(())) if bytes.len() <= limits.max_bytes => Ok(bytes),
        Ok(Ok(())) => Err(too_long(bytes.len() as u64, limits)),
        Ok(Err(cause)) => {
            let what = format!("the body cannot be read: {cause}");
            Err(closing(error(StatusCode::BAD_REQUEST, &what)))
        }
        Err(_) => {
            let what = format!("the body was not there after {:?}", limits.time);
            Err(closing(error(StatusCode::REQUEST_TIMEOUT, &what)))
        }
    }
}

/// Reads to the end, or until there are more bytes than allowed.
async fn read_frames(
    body: &mut Incoming,
    bytes: &mut Vec<u8>,
    limits: BodyLimits,
) -> Result<(), hyper::Error> {
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame?.data_ref() {
            bytes.extend_from_slice(data);
        }
        if bytes.len() > limits.max_bytes {
            break;
        }
    }
    Ok(())
}

fn too_long(found: u64, limits: BodyLimits) -> Reply {
    let what = format!(
        "the body has {found} bytes or more; {} are more than this request ever needs",
        limits.max_bytes
    );
    closing(error(StatusCode::PAYLOAD_TOO_LARGE, &what))
}

/// Reads a body that nobody wants, unless it is long.
pub(super) async fn discard(mut body: Incoming, time: Duration) {
    if body.size_hint().lower() > MAX_DISCARDED_BYTES {
        return;
    }
    let read = async {
        let mut discarded = 0;
        while let Some(Ok(frame)) = body.frame().await {
            discarded += frame.data_ref().map_or(0, |data| data.len() as u64);
            if discarded > MAX_DISCARDED_BYTES {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(time, read).await;
}
