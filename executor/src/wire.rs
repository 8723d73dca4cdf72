//! Messages with open files between the supervising process and a worker's, over a socket pair without a name.
//!
//! A message is a header (length of the body, number of files; the files travel with it) and a body in postcard. Both
//! ends are this very program, so no version is needed; lengths are checked all the same.

use std::io::{self, Error, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most files that go with a message.
const MAX_FILES: usize = 2;
/// Longest body: a report of a calendar of some hundred thousand slots.
const MAX_BYTES: u32 = 256 << 20;
const HEADER_BYTES: usize = 8;

/// Sends one message. The other side gets files of its own.
///
/// # Errors
/// What the system says; the other side is gone, most often.
pub(crate) fn send<T: Serialize>(
    to: &mut UnixStream,
    message: &T,
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    assert!(
        files.len() <= MAX_FILES,
        "a message carries {MAX_FILES} files at most"
    );
    let body = postcard::to_stdvec(message).map_err(Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|n| *n <= MAX_BYTES);
    let length = length.ok_or_else(|| Error::other("a message of more than 256 MiB"))?;
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4] = files.len() as u8;

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Error::other("no room for the files of a message"));
    }
    let mut sent = 0;
    while sent < HEADER_BYTES {
        let part = IoSlice::new(&header[sent..]);
        match sendmsg(to.as_fd(), &[part], &mut control, SendFlags::NOSIGNAL) {
            Ok(bytes) => {
                sent += bytes;
                control.clear();
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    to.write_all(&body)
}

/// Receives one message and its files; `None` when the other side has gone between two messages.
///
/// # Errors
/// What the system says, or a message that cannot be one.
pub(crate) fn receive<T: DeserializeOwned>(
    from: &mut UnixStream,
) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut header = [0; HEADER_BYTES];
    let mut files = Vec::new();
    let mut there = 0;
    while there < HEADER_BYTES {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut part = [IoSliceMut::new(&mut header[there..])];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let bytes = match recvmsg(from.as_fd(), &mut part, &mut control, flags) {
            Ok(message) => message.bytes,
            Err(rustix::io::Errno::INTR) => continue,
            // The other side was killed: the same as if it had closed its end.
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                files.extend(fds);
            }
        }
        if bytes == 0 {
            return if there == 0 {
                Ok(None)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
        there += bytes;
    }
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    if length > MAX_BYTES || usize::from(header[4]) != files.len() {
        return Err(Error::other("a message that makes no sense"));
    }
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body)?;
    let message = postcard::from_bytes(&body).map_err(Error::other)?;
    Ok(Some((message, files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_files_arrive_in_order() {
        let (mut a, mut b) = UnixStream::pair().expect("a socket pair");
        let file = tempfile::tempfile().expect("a file");
        send(&mut a, &(1u32, "one"), &[]).expect("sent");
        send(&mut a, &(2u32, "two"), &[file.as_fd()]).expect("sent");
        drop(a);
        let first: (u32, String) = receive(&mut b).expect("well").expect("there").0;
        assert_eq!(first, (1, "one".into()));
        let ((second, text), files): ((u32, String), _) =
            receive(&mut b).expect("well").expect("there");
        assert_eq!((second, text.as_str(), files.len()), (2, "two", 1));
        assert!(receive::<u32>(&mut b).expect("a clean end").is_none());
    }

    #[test]
    fn nonsense_is_refused() {
        let (mut a, mut b) = UnixStream::pair().expect("a socket pair");
        a.write_all(&[255; 16]).expect("sent");
        receive::<u32>(&mut b).expect_err("a message of four gigabytes");
        let (mut a, mut b) = UnixStream::pair().expect("a socket pair");
        a.write_all(&[9, 0, 0, 0, 0, 0, 0, 0, 1]).expect("sent");
        drop(a);
        receive::<u32>(&mut b).expect_err("cut off");
    }
}
