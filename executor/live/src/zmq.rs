//! ZeroMQ, looked for at run time: its C functions, and a socket that is opened by them. Must not know tokens.
//!
//! The functions are those of `zmq.h` of version 4.1 and later, whose binary interface the library's name has. A socket
//! has a context of its own, so that one that is closed waits for no other.
#![expect(
    unsafe_code,
    reason = "loads a library and calls its C functions, for which nobody keeps a binding that loads at run time"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_short, c_void};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use libloading::Library;

use crate::net::resolve;
use crate::url::ZmqEndpoint;

const NAMES: [&str; 2] = ["libzmq.so.5", "libzmq.5.dylib"];
const DONT_WAIT: c_int = 1;
const SEND_MORE: c_int = 2;
const POLL_IN: c_short = 1;
const POLL_OUT: c_short = 2;
/// A peer that went without a word is noticed after about so long.
const KEEP_ALIVE_S: c_int = 5;
/// The first attempt to connect again comes after so long, and none later than the other after the one before.
const RECONNECT_MS: c_int = 10;
const MAX_RECONNECT_MS: c_int = 50;

type Handle = *mut c_void;

/// What a socket does with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketKind {
    /// Receives what it subscribes to.
    Subscriber,
    /// Receives its share.
    Puller,
    /// Sends to all subscribers, and is told of subscriptions.
    Publisher,
    /// Sends each message to one peer.
    Pusher,
}

/// Options of a socket, by their numbers in `zmq.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberOption {
    /// How long a socket that is closed goes on sending, in milliseconds.
    Linger = 17,
    ReconnectInterval = 18,
    MaxReconnectInterval = 21,
    /// Messages for one peer that wait to be sent.
    SendHighWaterMark = 23,
    /// Messages of one peer that wait to be received.
    ReceiveHighWaterMark = 24,
    KeepAlive = 34,
    KeepAliveIdle = 36,
    KeepAliveInterval = 37,
    /// Messages are for peers that are connected, and not for those that may be some day. Of senders only: a receiver
    /// that connects would lose what waits for it when its peer goes.
    Immediate = 39,
    Ipv6 = 42,
    /// A publisher says when a subscriber's queue is full.
    PublisherNoDrop = 69,
}

const SUBSCRIBE: c_int = 6;
const MAX_MESSAGE_BYTES: c_int = 22;

/// `zmq_msg_t`: 64 bytes for the library's own use.
#[repr(C, align(8))]
struct RawMessage([u8; 64]);

/// `zmq_pollitem_t` where descriptors are numbers.
#[repr(C)]
struct PollItem {
    socket: Handle,
    fd: c_int,
    events: c_short,
    revents: c_short,
}

/// The library's functions.
struct Functions {
    ctx_new: unsafe extern "C" fn() -> Handle,
    ctx_term: unsafe extern "C" fn(Handle) -> c_int,
    errno: unsafe extern "C" fn() -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
    socket: unsafe extern "C" fn(Handle, c_int) -> Handle,
    close: unsafe extern "C" fn(Handle) -> c_int,
    set_option: unsafe extern "C" fn(Handle, c_int, *const c_void, usize) -> c_int,
    bind: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    connect: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    send: unsafe extern "C" fn(Handle, *const c_void, usize, c_int) -> c_int,
    poll: unsafe extern "C" fn(*mut PollItem, c_int, c_long) -> c_int,
    message_init: unsafe extern "C" fn(*mut RawMessage) -> c_int,
    message_receive: unsafe extern "C" fn(*mut RawMessage, Handle, c_int) -> c_int,
    message_data: unsafe extern "C" fn(*mut RawMessage) -> *mut c_void,
    message_size: unsafe extern "C" fn(*const RawMessage) -> usize,
    message_more: unsafe extern "C" fn(*const RawMessage) -> c_int,
    message_close: unsafe extern "C" fn(*mut RawMessage) -> c_int,
    /// Keeps the functions.
    _library: Library,
}

fn load() -> Result<Functions, libloading::Error> {
    let mut loaded = Err(libloading::Error::DlOpenUnknown);
    for name in NAMES {
        // SAFETY: what the library does when it is loaded is its own; it is the system's.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                loaded = Ok(library);
                break;
            }
            // The first name is that of most systems: what is said of it is of use.
            Err(error) if name == NAMES[0] => loaded = Err(error),
            Err(_) => {}
        }
    }
    let library = loaded?;

    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the type is that of the function of this name in zmq.h of version 4.
            *unsafe { library.get(concat!("zmq_", $name, "\0").as_bytes()) }?
        };
    }
    Ok(Functions {
        ctx_new: function!("ctx_new"),
        ctx_term: function!("ctx_term"),
        errno: function!("errno"),
        strerror: function!("strerror"),
        socket: function!("socket"),
        close: function!("close"),
        set_option: function!("setsockopt"),
        bind: function!("bind"),
        connect: function!("connect"),
        send: function!("send"),
        poll: function!("poll"),
        message_init: function!("msg_init"),
        message_receive: function!("msg_recv"),
        message_data: function!("msg_data"),
        message_size: function!("msg_size"),
        message_more: function!("msg_more"),
        message_close: function!("msg_close"),
        _library: library,
    })
}

/// What can be gone on with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Readiness {
    /// The file has something, or has ended.
    pub(crate) file: bool,
    /// It was looked at, and has nothing now.
    pub(crate) file_is_empty: bool,
    /// A message can be received.
    pub(crate) receives: bool,
}

/// What became of a frame that was to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The library has it.
    Sent,
    /// It finds no room now.
    NoRoom,
    /// The socket sends no more.
    Failed,
}

/// A frame of a message that was received.
pub(crate) struct Frame<'a> {
    functions: &'a Functions,
    message: RawMessage,
}

impl Frame<'_> {
    /// Its bytes.
    pub(crate) fn bytes(&mut self) -> &[u8] {
        // SAFETY: the message was initialised and received into; its bytes are valid until it is closed, which its drop
        // does, and are not null unless there are none.
        unsafe {
            let size = (self.functions.message_size)(&self.message);
            if size == 0 {
                return &[];
            }
            let data = (self.functions.message_data)(&mut self.message).cast::<u8>();
            std::slice::from_raw_parts(data, size)
        }
    }

    /// Whether further frames belong to its message. They are there already.
    pub(crate) fn has_more(&self) -> bool {
        // SAFETY: the message was initialised.
        unsafe { (self.functions.message_more)(&self.message) != 0 }
    }
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        // SAFETY: the message was initialised, and nobody uses it after this.
        unsafe { (self.functions.message_close)(&mut self.message) };
    }
}

/// A socket that is open. One thread at a time uses it.
pub(crate) struct ZmqSocket {
    functions: Functions,
    /// Neither is null once the socket is open.
    context: Handle,
    socket: Handle,
}

// SAFETY: the library lets a socket move to another thread with a fence between its uses, which every way of moving a
// value to a thread has; nothing here is shared.
unsafe impl Send for ZmqSocket {}

impl ZmqSocket {
    /// A socket that has no peers yet.
    pub(crate) fn new(kind: SocketKind) -> io::Result<Self> {
        let functions = load().map_err(|error| {
            io::Error::other(format!(
                "ZeroMQ cannot be loaded: {error} (Debian: apt-get install libzmq5)"
            ))
        })?;
        // SAFETY: it takes nothing.
        let context = unsafe { (functions.ctx_new)() };
        // From here on all is closed when it is dropped.
        let mut socket = Self {
            functions,
            context,
            socket: std::ptr::null_mut(),
        };
        if context.is_null() {
            return Err(socket.failed("ZeroMQ does not start"));
        }

        let number = match kind {
            SocketKind::Subscriber => 2,
            SocketKind::Puller => 7,
            SocketKind::Pusher => 8,
            // XPUB: to its peers it is a PUB.
            SocketKind::Publisher => 9,
        };
        // SAFETY: the context is open.
        socket.socket = unsafe { (socket.functions.socket)(context, number) };
        if socket.socket.is_null() {
            return Err(socket.failed("ZeroMQ opens no socket"));
        }
        for (option, value) in [
            (NumberOption::Linger, 0),
            (NumberOption::ReconnectInterval, RECONNECT_MS),
            (NumberOption::MaxReconnectInterval, MAX_RECONNECT_MS),
            (NumberOption::KeepAlive, 1),
            (NumberOption::KeepAliveIdle, KEEP_ALIVE_S),
            (NumberOption::KeepAliveInterval, 1),
        ] {
            socket.set(option, value)?;
        }
        Ok(socket)
    }

    fn failed(&self, what: &str) -> io::Error {
        // SAFETY: the number is this thread's, and its text is valid for ever.
        let text = unsafe { CStr::from_ptr((self.functions.strerror)((self.functions.errno)())) };
        io::Error::other(format!("{what}: {}", text.to_string_lossy()))
    }

    fn set_bytes(&self, option: c_int, value: &[u8]) -> io::Result<()> {
        // SAFETY: the socket is open; the library reads so many bytes and keeps none of them.
        let code = unsafe {
            (self.functions.set_option)(self.socket, option, value.as_ptr().cast(), value.len())
        };
        match code {
            0 => Ok(()),
            _ => Err(self.failed(&format!("ZeroMQ refuses the option {option}"))),
        }
    }

    /// Sets an option, which has to be done before the socket has peers.
    pub(crate) fn set(&self, option: NumberOption, value: c_int) -> io::Result<()> {
        self.set_bytes(option as c_int, &value.to_ne_bytes())
    }

    /// Whoever sends a larger frame is disconnected.
    pub(crate) fn set_max_message_bytes(&self, bytes: usize) -> io::Result<()> {
        self.set_bytes(MAX_MESSAGE_BYTES, &(bytes as i64).to_ne_bytes())
    }

    /// Asks for the messages that begin with these bytes.
    pub(crate) fn subscribe(&self, prefix: &[u8]) -> io::Result<()> {
        self.set_bytes(SUBSCRIBE, prefix)
    }

    /// Binds the first address that can be bound, or begins to connect to one: the library looks after connections.
    pub(crate) fn open(&self, endpoint: &ZmqEndpoint) -> io::Result<()> {
        let addresses = resolve(&endpoint.address)?;
        if !endpoint.listens {
            // As the library does with names: a connection to each would be a peer of its own.
            let ipv4 = addresses.iter().find(|address| address.is_ipv4());
            return self.open_address(*ipv4.unwrap_or(&addresses[0]), self.functions.connect);
        }
        let mut opened = Ok(());
        for address in addresses {
            opened = self.open_address(address, self.functions.bind);
            if opened.is_ok() {
                break;
            }
        }
        opened
    }

    fn open_address(
        &self,
        address: SocketAddr,
        function: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
    ) -> io::Result<()> {
        self.set(NumberOption::Ipv6, c_int::from(address.is_ipv6()))?;
        let name = CString::new(format!("tcp://{address}"))?;
        // SAFETY: the socket is open; a text that ends with zero, of which the library keeps a copy.
        match unsafe { function(self.socket, name.as_ptr()) } {
            0 => Ok(()),
            _ => Err(self.failed(&address.to_string())),
        }
    }

    /// Waits for a message, for something in the file, and for room to send, for so long and as far as each is asked for.
    pub(crate) fn wait(
        &self,
        file: Option<&File>,
        receives: bool,
        sends: bool,
        limit_ns: u64,
    ) -> Readiness {
        let events = if receives { POLL_IN } else { 0 } | if sends { POLL_OUT } else { 0 };
        let mut items = [
            PollItem {
                socket: self.socket,
                fd: 0,
                events,
                revents: 0,
            },
            PollItem {
                socket: std::ptr::null_mut(),
                fd: file.map_or(-1, AsRawFd::as_raw_fd),
                events: POLL_IN,
                revents: 0,
            },
        ];
        let count = if file.is_some() { 2 } else { 1 };
        let limit_ms = limit_ns.div_ceil(1_000_000) as c_long;
        // SAFETY: there are so many items, the socket is open, and the file stays so until this returns.
        let ready = unsafe { (self.functions.poll)(items.as_mut_ptr(), count, limit_ms) };
        if ready < 0 {
            return Readiness::default();
        }
        let file_is_ready = file.is_some() && items[1].revents != 0;
        Readiness {
            file: file_is_ready,
            file_is_empty: file.is_some() && !file_is_ready,
            receives: items[0].revents & POLL_IN != 0,
        }
    }

    /// Receives a frame, if one is there.
    pub(crate) fn receive(&mut self) -> Option<Frame<'_>> {
        let mut message = RawMessage([0; 64]);
        // SAFETY: the library initialises these bytes, which it may do anywhere: until it is received into, a message
        // does not depend on its address, and a message of any kind may be moved by its bytes, which `zmq_msg_move` does.
        unsafe { (self.functions.message_init)(&mut message) };
        let mut frame = Frame {
            functions: &self.functions,
            message,
        };
        // SAFETY: message and socket are open.
        let code =
            unsafe { (self.functions.message_receive)(&mut frame.message, self.socket, DONT_WAIT) };
        (code >= 0).then_some(frame)
    }

    /// Hands a frame to the library if it has room for it now.
    pub(crate) fn send(&mut self, bytes: &[u8], has_more: bool) -> SendOutcome {
        let flags = DONT_WAIT | if has_more { SEND_MORE } else { 0 };
        // SAFETY: the socket is open; the library copies so many bytes.
        let code = unsafe {
            (self.functions.send)(self.socket, bytes.as_ptr().cast(), bytes.len(), flags)
        };
        if code >= 0 {
            return SendOutcome::Sent;
        }
        // SAFETY: it takes nothing.
        let error = unsafe { (self.functions.errno)() };
        match error {
            libc::EAGAIN | libc::EINTR => SendOutcome::NoRoom,
            _ => SendOutcome::Failed,
        }
    }
}

impl Drop for ZmqSocket {
    fn drop(&mut self) {
        // SAFETY: what is not null is open, and nobody uses it after this. The context waits for what is to be sent yet,
        // as long as the socket lingers; an interruption does not end that, so it is called again.
        unsafe {
            if !self.socket.is_null() {
                (self.functions.close)(self.socket);
            }
            if self.context.is_null() {
                return;
            }
            while (self.functions.ctx_term)(self.context) != 0
                && (self.functions.errno)() == libc::EINTR
            {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<RawMessage>(), 64);
        assert_eq!(align_of::<RawMessage>(), align_of::<Handle>());
        assert_eq!(size_of::<PollItem>(), size_of::<Handle>() + 8);
    }
}
