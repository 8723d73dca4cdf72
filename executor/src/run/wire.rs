//! Messages with open files between the supervising process and a worker's, over a socket pair without a name.
//!
//! A message is a header (length of the body, number of files; the files travel with it) and a body in postcard. Both
//! ends are this very program, so no version is needed; lengths are checked all the same.

use std::collections::VecDeque;
use std::io::{self, Error, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Files that go with a message, at most.
const MAX_FILES: usize = 3;
/// Longest body: a report of a calendar of some hundred thousand slots.
const MAX_BYTES: u32 = 256 << 20;
const HEADER_BYTES: usize = 8;

/// The bytes of one message: its header and its body.
fn encode<T: Serialize>(message: &T, file_count: usize) -> io::Result<Vec<u8>> {
    assert!(
        file_count <= MAX_FILES,
        "a message carries {MAX_FILES} files at most"
    );
    let body_bytes = postcard::to_stdvec(message).map_err(Error::other)?;
    let body_length = u32::try_from(body_bytes.len())
        .ok()
        .filter(|length| *length <= MAX_BYTES)
        .ok_or_else(|| Error::other("a message of more than 256 MiB"))?;

    let mut message_bytes = Vec::with_capacity(HEADER_BYTES + body_bytes.len());
    message_bytes.extend(body_length.to_le_bytes());
    message_bytes.extend([file_count as u8, 0, 0, 0]);
    message_bytes.extend(body_bytes);
    Ok(message_bytes)
}

/// Sends a part of a message, with its files if it is the first part; how many bytes the system took.
fn send_part(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut control_space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut control_space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(rustix::io::Errno::NOBUFS);
    }

    let send_flags = flags | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, send_flags) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Sends one message, waiting as long as it takes: for a worker's process, whose supervising process always reads.
///
/// # Errors
/// What the system says; usually that the other side is gone.
pub(crate) fn send<T: Serialize>(
    to: &UnixStream,
    message: &T,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let message_bytes = encode(message, files.len())?;
    let mut sent_bytes = 0;
    while sent_bytes < message_bytes.len() {
        let files = if sent_bytes == 0 { files } else { &[] };
        let rest = &message_bytes[sent_bytes..];
        sent_bytes += send_part(to.as_fd(), rest, files, SendFlags::empty())?;
    }
    Ok(())
}

/// Messages on their way to a process that may have stopped reading: posting and flushing never wait.
pub(crate) struct Outbox {
    socket: UnixStream,
    pending: VecDeque<PendingMessage>,
    /// When the other side last took something, or when the first of the pending messages was posted.
    progress_ns: u64,
}

/// What the socket's buffer had no room for.
struct PendingMessage {
    bytes: Vec<u8>,
    sent: usize,
    /// Until the first byte is sent.
    files: Vec<OwnedFd>,
}

/// So many messages may be pending: a worker gets one for each epoch, and is lost long before there are so many.
const MAX_PENDING: usize = 64;

impl Outbox {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            pending: VecDeque::new(),
            progress_ns: 0,
        }
    }

    /// Sends a message, or as much of it as the other side takes now; [`Self::flush`] sends the rest.
    ///
    /// # Errors
    /// Too many messages are pending, or the system has no descriptors. If the other side is gone, that is no error:
    /// whoever listens to it will know.
    pub(crate) fn post<T: Serialize>(
        &mut self,
        now_ns: u64,
        message: &T,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        if self.pending.len() >= MAX_PENDING {
            return Err(Error::other("it takes no messages"));
        }
        if self.pending.is_empty() {
            self.progress_ns = now_ns;
        }
        let message_bytes = encode(message, files.len())?;
        let owned_files = files.iter().map(BorrowedFd::try_clone_to_owned);
        self.pending.push_back(PendingMessage {
            bytes: message_bytes,
            sent: 0,
            files: owned_files.collect::<io::Result<_>>()?,
        });
        self.flush(now_ns)
    }

    /// Sends what the other side takes now.
    ///
    /// # Errors
    /// What the system says, unless the other side is gone.
    pub(crate) fn flush(&mut self, now_ns: u64) -> io::Result<()> {
        while let Some(message) = self.pending.front_mut() {
            let message_files: Vec<_> = message.files.iter().map(AsFd::as_fd).collect();
            let unsent_bytes = &message.bytes[message.sent..];
            match send_part(
                self.socket.as_fd(),
                unsent_bytes,
                &message_files,
                SendFlags::DONTWAIT,
            ) {
                Ok(sent_bytes) => {
                    message.sent += sent_bytes;
                    message.files.clear();
                    self.progress_ns = now_ns;
                    if message.sent == message.bytes.len() {
                        self.pending.pop_front();
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => {
                    self.pending.clear();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// For how long the other side has taken nothing of what is pending; `None` if nothing is.
    pub(crate) fn stalled_ns(&self, now_ns: u64) -> Option<u64> {
        let is_pending = !self.pending.is_empty();
        is_pending.then(|| now_ns.saturating_sub(self.progress_ns))
    }
}

/// Receives one message and its files; `None` when the other side has gone between two messages.
///
/// # Errors
/// What the system says, or a message that cannot be one.
pub(crate) fn receive<T: DeserializeOwned>(
    from: &UnixStream,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut header = [0; HEADER_BYTES];
    let mut received_files = Vec::new();
    let mut header_bytes = 0;
    while header_bytes < HEADER_BYTES {
        let mut control_space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut control_space);
        let mut header_part = [IoSliceMut::new(&mut header[header_bytes..])];
        let receive_flags = RecvFlags::CMSG_CLOEXEC;
        let part_bytes = match recvmsg(from.as_fd(), &mut header_part, &mut control, receive_flags)
        {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            // The other side was killed: the same as if it had closed its end.
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };

        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                received_files.extend(fds);
            }
        }
        if part_bytes == 0 {
            return if header_bytes == 0 {
                Ok(None)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
        header_bytes += part_bytes;
    }

    let body_length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    if body_length > MAX_BYTES || usize::from(header[4]) != received_files.len() {
        return Err(Error::other("a message that makes no sense"));
    }

    let mut body_bytes = vec![0; body_length as usize];
    (&mut &*from).read_exact(&mut body_bytes)?;
    let message = postcard::from_bytes(&body_bytes).map_err(Error::other)?;
    Ok(Some((message, received_files)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Longer than any socket's buffer.
    const LONG_BYTES: usize = 8 << 20;

    #[test]
    fn messages_and_files_arrive_in_order() {
        let (a, b) = UnixStream::pair().expect("a socket pair");
        let file = tempfile::tempfile().expect("a file");
        let mut outbox = Outbox::new(a);
        outbox.post(0, &(1u32, "one"), &[]).expect("sent");
        outbox
            .post(0, &(2u32, "two"), &[file.as_fd()])
            .expect("sent");
        drop(outbox);
        let first: (u32, String) = receive(&b).expect("well").expect("there").0;
        assert_eq!(first, (1, "one".into()));
        let ((second, text), files): ((u32, String), _) =
            receive(&b).expect("well").expect("there");
        assert_eq!((second, text.as_str(), files.len()), (2, "two", 1));
        assert!(receive::<u32>(&b).expect("a clean end").is_none());
    }

    #[test]
    fn nonsense_is_refused() {
        let (mut a, b) = UnixStream::pair().expect("a socket pair");
        a.write_all(&[255; 16]).expect("sent");
        receive::<u32>(&b).expect_err("a message of four gigabytes");
        let (mut a, b) = UnixStream::pair().expect("a socket pair");
        a.write_all(&[9, 0, 0, 0, 0, 0, 0, 0, 1]).expect("sent");
        drop(a);
        receive::<u32>(&b).expect_err("cut off");
    }

    #[test]
    fn a_reader_that_stalls_keeps_nobody_waiting_and_gets_all_of_it_later() {
        let (a, b) = UnixStream::pair().expect("a socket pair");
        let file = tempfile::tempfile().expect("a file");
        let mut outbox = Outbox::new(a);
        let long = vec![7u8; LONG_BYTES];
        outbox.post(10, &long, &[file.as_fd()]).expect("posted");
        outbox.post(20, &"last", &[]).expect("posted");
        assert!(outbox.stalled_ns(1_010).is_some_and(|ns| ns >= 990));

        let reader = std::thread::spawn(move || {
            let (body, files) = receive::<Vec<u8>>(&b).expect("well").expect("there");
            let last = receive::<String>(&b).expect("well").expect("there").0;
            (body.len(), files.len(), last)
        });
        while outbox.stalled_ns(0).is_some() {
            outbox.flush(0).expect("the reader is there");
            std::thread::yield_now();
        }
        let received = reader.join().expect("no panic");
        assert_eq!(received, (LONG_BYTES, 1, "last".to_owned()));
    }

    #[test]
    fn what_nobody_takes_is_bounded_and_a_closed_end_takes_everything() {
        let (a, b) = UnixStream::pair().expect("a socket pair");
        let mut outbox = Outbox::new(a);
        let long = vec![7u8; LONG_BYTES / 16];
        let taken = (0..2 * MAX_PENDING).take_while(|_| outbox.post(0, &long, &[]).is_ok());
        assert!((MAX_PENDING..2 * MAX_PENDING).contains(&taken.count()));
        drop(b);
        outbox.flush(0).expect("the listener reports that");
        assert_eq!(outbox.stalled_ns(0), None);
    }
}
