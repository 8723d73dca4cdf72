//! Reading bodies of strangers: so many bytes and so long at most.

use std::time::{Duration, Instant};

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
    body: Incoming,
    limits: BodyLimits,
) -> Result<Vec<u8>, Reply> {
    let body = ComingBody::open(headers, body, limits).await?;
    body.read_all().await
}

/// A body on its way.
pub(super) struct ComingBody {
    body: Incoming,
    /// What has come of it.
    bytes: Vec<u8>,
    limits: BodyLimits,
    deadline: Instant,
}

impl ComingBody {
    /// Waits for nothing, unless the body is refused.
    ///
    /// # Errors
    /// The answer to a body that is encoded, or as long as it says.
    pub(super) async fn open(
        headers: &HeaderMap,
        body: Incoming,
        limits: BodyLimits,
    ) -> Result<Self, Reply> {
        let deadline = Instant::now() + limits.time;
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
        let bytes = Vec::with_capacity((declared as usize).min(FIRST_BYTES));
        Ok(Self {
            body,
            bytes,
            limits,
            deadline,
        })
    }

    /// More of it is to come than is read at once.
    pub(super) fn is_long(&self) -> bool {
        self.body.size_hint().lower() > FIRST_BYTES as u64
    }

    /// Its first bytes, when there are so many of them or all that it has.
    ///
    /// # Errors
    /// The answer to a body that is too long, too slow, or cut off.
    pub(super) async fn first(&mut self, length: usize) -> Result<&[u8], Reply> {
        self.read_to(length).await?;
        Ok(&self.bytes[..length.min(self.bytes.len())])
    }

    /// All of it.
    ///
    /// # Errors
    /// As [`Self::first`].
    pub(super) async fn read_all(mut self) -> Result<Vec<u8>, Reply> {
        self.read_to(usize::MAX).await?;
        Ok(self.bytes)
    }

    /// Reads the rest, which nobody wants.
    pub(super) async fn discard(self) {
        let left = self.deadline.saturating_duration_since(Instant::now());
        discard(self.body, left).await;
    }

    /// Reads until so many bytes are there, or to the end.
    async fn read_to(&mut self, length: usize) -> Result<(), Reply> {
        let limits = self.limits;
        let is_read = tokio::time::timeout_at(self.deadline.into(), self.read_frames(length));
        match is_read.await {
            Ok(Ok(())) if self.bytes.len() <= limits.max_bytes => Ok(()),
            Ok(Ok(())) => Err(too_long(self.bytes.len() as u64, limits)),
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

    /// Stops at more bytes than are allowed, too. Between two frames other connections have their turn: a request that is to be refused
    /// does not wait until long bodies before it are there.
    async fn read_frames(&mut self, length: usize) -> Result<(), hyper::Error> {
        let enough = length.min(self.limits.max_bytes.saturating_add(1));
        while self.bytes.len() < enough
            && let Some(frame) = self.body.frame().await
        {
            if let Some(data) = frame?.data_ref() {
                self.bytes.extend_from_slice(data);
            }
            if self.bytes.len() < enough && !self.body.is_end_stream() {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }
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
