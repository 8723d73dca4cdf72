//! Connections whose clients must read what they asked for: an answer that they do not take keeps memory and a place.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream that fails once what is written to it has not been taken for too long.
///
/// The time runs from the first write that has to wait until everything is flushed. So a client that takes a byte now and
/// then gains nothing by that, and one that is never waited for costs no timer.
pub(crate) struct WriteLimited<S> {
    stream: S,
    limit: Duration,
    /// Since something waits to be taken.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteLimited<S> {
    pub(crate) const fn new(stream: S, limit: Duration) -> Self {
        Self {
            stream,
            limit,
            deadline: None,
        }
    }

    /// A write has to wait: until the deadline at most.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let limit = self.limit;
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        deadline.as_mut().poll(context).map(|()| {
            let what = format!("the client has not taken its answer for {limit:?}");
            io::Error::new(io::ErrorKind::TimedOut, what)
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteLimited<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteLimited<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Pending => self.wait(context).map(Err),
            ready => ready,
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(context, parts) {
            Poll::Pending => self.wait(context).map(Err),
            ready => ready,
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Pending => self.wait(context).map(Err),
            ready => {
                self.deadline = None;
                ready
            }
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Pending => self.wait(context).map(Err),
            ready => ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::duplex;
    use tokio::runtime::{Builder, Runtime};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    fn runtime() -> Runtime {
        let built = Builder::new_current_thread().enable_time().build();
        built.expect("a runtime")
    }

    /// Writes all and flushes, as hyper does.
    async fn write(stream: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count =
                poll_fn(|context| Pin::new(&mut *stream).poll_write(context, bytes)).await?;
            bytes = &bytes[count..];
        }
        poll_fn(|context| Pin::new(&mut *stream).poll_flush(context)).await
    }

    /// Reads a byte.
    async fn read(stream: &mut (impl AsyncRead + Unpin)) {
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        let read = poll_fn(|context| Pin::new(&mut *stream).poll_read(context, &mut buffer));
        read.await.expect("open");
    }

    #[test]
    fn a_client_that_takes_nothing_is_given_up() {
        runtime().block_on(async {
            let (server, _client) = duplex(8);
            let mut server = WriteLimited::new(server, LIMIT);
            write(&mut server, &[0; 8]).await.expect("there is room");
            let error = write(&mut server, &[0; 8]).await.expect_err("none is left");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        });
    }

    #[test]
    fn a_client_that_takes_a_byte_now_and_then_is_given_up_too() {
        runtime().block_on(async {
            let (server, mut client) = duplex(8);
            let mut server = WriteLimited::new(server, LIMIT);
            let slow = tokio::spawn(async move {
                loop {
                    tokio::time::sleep(LIMIT / 10).await;
                    read(&mut client).await;
                }
            });
            let error = write(&mut server, &[0; 1000]).await.expect_err("too slow");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
            slow.abort();
        });
    }

    #[test]
    fn every_answer_has_the_whole_time() {
        runtime().block_on(async {
            let (server, mut client) = duplex(1);
            let mut server = WriteLimited::new(server, LIMIT);
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(LIMIT / 10).await;
                    read(&mut client).await;
                }
            });
            // Each waits for the one before to be taken; all together take longer than the limit.
            for _ in 0..30 {
                write(&mut server, &[0]).await.expect("in time");
            }
        });
    }
}
