//! Bodies of requests that must be there in time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::Sleep;
use tonic::Status;

/// A body that fails once it is not there after its time.
pub(super) struct TimedBody {
    body: Incoming,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl TimedBody {
    pub(super) fn new(body: Incoming, limit: Duration) -> Self {
        Self {
            body,
            limit,
            deadline: Box::pin(tokio::time::sleep(limit)),
        }
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let unreadable =
                |cause| Status::invalid_argument(format!("the body cannot be read: {cause}"));
            return Poll::Ready(frame.map(|frame| frame.map_err(unreadable)));
        }
        let limit = self.limit;
        self.deadline.as_mut().poll(context).map(|()| {
            let what = format!("the message was not there after {limit:?}");
            Some(Err(Status::deadline_exceeded(what)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
