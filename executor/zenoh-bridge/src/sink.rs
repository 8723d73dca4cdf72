//! From a file or a pipe to a key. One thread reads and publishes; another one answers the bridges that read.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zenoh::handlers::RingChannel;
use zenoh::key_expr::KeyExpr;
use zenoh::pubsub::Publisher;
use zenoh::qos::CongestionControl;
use zenoh::query::Query;
use zenoh::{Session, Wait};

use crate::args::SinkArgs;
use crate::interrupt::is_interrupted;
use crate::store::Store;
use crate::{BridgeError, Kind, Position, RunName, session};

/// How often a file that grows, a pipe that is silent, or a wait looks at what has changed.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A reader that says nothing for so long is gone; it speaks twice a second.
const READER_LEASE: Duration = Duration::from_secs(5);
/// Queries that wait to be answered; of more, the oldest are dropped, and readers ask again.
const QUERIES: usize = 64;
/// Sent in answer to one query, but at least a message; the reader asks again for the rest.
const REPLY_BYTES: usize = 1 << 20;
/// Read from a pipe at once.
const READ_BYTES: usize = 64 << 10;
/// Of more readers than that, those beyond are answered and not waited for.
const MAX_READERS: usize = 1024;
/// A reader's name is 16 digits.
const MAX_READER_BYTES: usize = 64;

/// A bridge that reads.
struct Reader {
    /// It has everything before this offset.
    offset: u64,
    heard: Instant,
    /// It has everything, and was told that this is all: it may go.
    knows_end: bool,
}

struct State {
    store: Store,
    /// What is before this offset was published.
    published: u64,
    /// Nothing will follow.
    is_ended: bool,
    readers: BTreeMap<String, Reader>,
    /// Bytes that were sent again.
    resent_bytes: u64,
}

impl State {
    /// Forgets readers that are gone, unless they have everything.
    fn forget_silent_readers(&mut self) {
        let end = Some(self.published).filter(|_| self.is_ended);
        let is_kept =
            |reader: &Reader| reader.heard.elapsed() < READER_LEASE || Some(reader.offset) == end;
        self.readers.retain(|_, reader| is_kept(reader));
    }

    /// Whether `count` readers are there, and how far all of them are.
    fn readers_at(&mut self, count: usize) -> Option<u64> {
        self.forget_silent_readers();
        let slowest = self.readers.values().map(|reader| reader.offset).min();
        slowest.filter(|_| self.readers.len() >= count)
    }
}

/// What the publishing thread and the answering one share.
struct Shared {
    key: KeyExpr<'static>,
    run: RunName,
    message_bytes: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn position(&self, kind: Kind, offset: u64) -> Vec<u8> {
        let run = Some(self.run.clone());
        Position { kind, offset, run }.encode()
    }

    /// Waits until `is_so`, looking at signals meanwhile.
    fn wait_until(&self, mut is_so: impl FnMut(&mut State) -> bool) -> Result<(), BridgeError> {
        let mut state = self.state();
        while !is_so(&mut state) {
            if is_interrupted() {
                return Err(BridgeError::Interrupted);
            }
            let waited = self.changed.wait_timeout(state, LOOK_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Answers one query. Whatever is not a question of a bridge about this run gets no answer.
    fn answer(&self, query: &Query) -> Result<(), String> {
        let attachment = query.attachment().map(|bytes| bytes.to_bytes());
        let question = Position::read(attachment.as_deref().unwrap_or_default());
        let Some(question) = question.map_err(|error| format!("its attachment {error}"))? else {
            return Ok(());
        };
        if question.run.as_ref().is_some_and(|run| *run != self.run) {
            return Ok(());
        }
        let reader_name = self.note_reader(query, question.offset)?;
        if question.kind == Kind::Want && self.send_from(query, question.offset)? {
            if let Some(reader) = self.state().readers.get_mut(&reader_name) {
                reader.knows_end = true;
            }
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Notes how far a reader is; its name.
    fn note_reader(&self, query: &Query, offset: u64) -> Result<String, String> {
        let payload = query.payload().map(|bytes| bytes.to_bytes());
        let name_bytes = payload.as_deref().unwrap_or_default();
        if name_bytes.is_empty() || name_bytes.len() > MAX_READER_BYTES {
            let length = name_bytes.len();
            return Err(format!(
                "its reader's name has {length} bytes, 1 to {MAX_READER_BYTES} are right"
            ));
        }
        let name = String::from_utf8_lossy(name_bytes).into_owned();
        let mut state = self.state();
        state.forget_silent_readers();
        if state.readers.len() < MAX_READERS || state.readers.contains_key(&name) {
            let reader = Reader {
                offset,
                heard: Instant::now(),
                knows_end: false,
            };
            state.readers.insert(name.clone(), reader);
        }
        self.changed.notify_all();
        Ok(name)
    }

    /// Sends what follows `offset` to one reader: messages, the end, or where what is kept begins. Whether it was the end.
    fn send_from(&self, query: &Query, offset: u64) -> Result<bool, String> {
        let asked_offset = offset;
        let mut offset = offset;
        let max_offset = offset.saturating_add(REPLY_BYTES.max(self.message_bytes) as u64);
        loop {
            let (kind, attachment, bytes) = {
                let mut state = self.state();
                let left_bytes = state.published.saturating_sub(offset);
                let length = usize::try_from(left_bytes).unwrap_or(usize::MAX);
                let bytes = state.store.read(offset, length.min(self.message_bytes));
                let bytes = bytes.map_err(|error| error.to_string())?;
                state.resent_bytes += bytes.len() as u64;
                let kind = match () {
                    () if offset < state.store.first() => Kind::First,
                    // Only who has everything is told: it may go then, and has said so. Who has more has another stream.
                    () if state.is_ended && asked_offset >= state.published => Kind::End,
                    () => Kind::Data,
                };
                let offset_said = match kind {
                    Kind::First => state.store.first(),
                    Kind::End => state.published,
                    _ => offset,
                };
                if kind == Kind::Data && bytes.is_empty() {
                    return Ok(false);
                }
                let attachment = self.position(kind, offset_said);
                (kind, attachment, bytes)
            };
            let length = bytes.len() as u64;
            let reply = query.reply(&self.key, bytes).attachment(attachment);
            reply.wait().map_err(|error| error.to_string())?;
            offset = offset.saturating_add(length);
            if length == 0 || offset >= max_offset {
                return Ok(kind == Kind::End);
            }
        }
    }
}

/// Where tokens come from.
enum Input {
    /// A regular file: what is published is read from the store.
    File,
    /// A pipe, with bytes that were read and not published yet: those of `unread` from `begin` on.
    Pipe {
        pipe: File,
        unread: Vec<u8>,
        begin: usize,
    },
}

/// What an input gave.
enum Piece {
    /// The tokens of a message.
    Tokens(Vec<u8>),
    /// Nothing now.
    Nothing,
    /// The last tokens, fewer than a message has, and bytes of a token that has not come whole.
    End(Vec<u8>, usize),
}

struct Sink<'a> {
    args: &'a SinkArgs,
    name: String,
    shared: Arc<Shared>,
    publisher: Publisher<'static>,
    input: Input,
    messages: u64,
}

/// Publishes a file or a pipe until it ends.
///
/// # Errors
/// See [`BridgeError`].
pub fn write_to_zenoh(args: &SinkArgs) -> Result<(), BridgeError> {
    let message_bytes = args.message_bytes().map_err(BridgeError::Usage)?;
    let key = session::key_expression(&args.key)?;
    if key.is_wild() {
        let text = format!("`{key}` is a pattern: publish on one key, without * and $");
        return Err(BridgeError::Usage(text));
    }
    let first = args.first_token.checked_mul(u64::from(args.token_bytes));
    let first = first
        .filter(|first| first.checked_add(1 << 62).is_some())
        .ok_or_else(|| {
            let (token, token_bytes) = (args.first_token, args.token_bytes);
            BridgeError::Usage(format!(
                "--first-token {token} of {token_bytes} bytes lies beyond what an offset can say"
            ))
        })?;

    let name = match args.input.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => args.input.display().to_string(),
    };
    let (input, store) = open_input(&args.input, first).map_err(BridgeError::of_file(&name))?;
    let run = args.run.clone().map_or_else(new_run_name, Ok)?;
    let session = session::open(&args.network)?;
    let shared = Arc::new(Shared {
        key: key.clone(),
        run,
        message_bytes,
        state: Mutex::new(State {
            store,
            published: first,
            is_ended: false,
            readers: BTreeMap::new(),
            resent_bytes: 0,
        }),
        changed: Condvar::new(),
    });

    answer_in_background(&session, &shared)?;
    let publisher = session
        .declare_publisher(key)
        .congestion_control(CongestionControl::Block)
        .wait()
        .map_err(BridgeError::of_zenoh("the publisher"))?;
    let mut sink = Sink {
        args,
        name,
        shared,
        publisher,
        input,
        messages: 0,
    };
    let result = sink.publish_all();
    sink.summarise();
    // Sends what waits to be sent.
    let closed = session.close().wait();
    result.and(closed.map_err(BridgeError::of_zenoh("closing the session")))
}

fn open_input(path: &Path, first: u64) -> io::Result<(Input, Store)> {
    let file = match path.as_os_str() == "-" {
        true => File::from(io::stdin().as_fd().try_clone_to_owned()?),
        false => File::open(path)?,
    };
    if file.metadata()?.is_file() {
        return Ok((Input::File, Store::File { file, first }));
    }
    let store = Store::Memory {
        bytes: VecDeque::new(),
        first,
    };
    let input = Input::Pipe {
        pipe: file,
        unread: Vec::new(),
        begin: 0,
    };
    Ok((input, store))
}

/// A name that no other run has, unless two start in the same nanosecond with the same number.
fn new_run_name() -> Result<RunName, BridgeError> {
    let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let text = format!("{:x}-{:x}", since_epoch.as_nanos(), std::process::id());
    text.parse()
        .map_err(|error| BridgeError::Usage(format!("{text}: {error}")))
}

fn answer_in_background(session: &Session, shared: &Arc<Shared>) -> Result<(), BridgeError> {
    let queryable = session
        .declare_queryable(shared.key.clone())
        .with(RingChannel::new(QUERIES))
        .wait()
        .map_err(BridgeError::of_zenoh("the answers to readers"))?;
    let shared = Arc::clone(shared);
    let spawned = std::thread::Builder::new()
        .name("answers".to_owned())
        .spawn(move || {
            // An error says that the session is closed.
            while let Ok(query) = queryable.recv() {
                if let Err(text) = shared.answer(&query) {
                    eprintln!(
                        "zbmd-zenoh: a query on `{}` is not answered: {text}",
                        shared.key
                    );
                }
            }
        });
    spawned.map(drop).map_err(BridgeError::of_file("a thread"))
}

impl Sink<'_> {
    fn publish_all(&mut self) -> Result<(), BridgeError> {
        let readers = self.args.readers;
        if readers > 0 {
            self.say(&format!("waiting for {readers} reading bridges"));
            self.shared
                .wait_until(|state| state.readers_at(readers).is_some())?;
        }

        loop {
            if is_interrupted() {
                return Err(BridgeError::Interrupted);
            }
            self.wait_for_room()?;
            match self
                .next_piece()
                .map_err(BridgeError::of_file(&self.name))?
            {
                Piece::Tokens(tokens) => self.publish(tokens)?,
                Piece::Nothing => {}
                Piece::End(tokens, cut_bytes) => {
                    if !tokens.is_empty() {
                        self.publish(tokens)?;
                    }
                    return self.end(cut_bytes);
                }
            }
        }
    }

    /// Of a pipe, takes no more than can be sent again to readers that are waited for.
    fn wait_for_room(&self) -> Result<(), BridgeError> {
        let Input::Pipe { .. } = self.input else {
            return Ok(());
        };
        let message_bytes = self.shared.message_bytes;
        let keep_bytes = ((self.args.keep as usize) << 20).max(message_bytes);
        let readers = self.args.readers;
        self.shared.wait_until(|state| {
            let dropped_before = match readers {
                0 => u64::MAX,
                // Nothing is dropped while a reader is away.
                _ => state.readers_at(readers).unwrap_or(0),
            };
            state.store.trim(keep_bytes - message_bytes, dropped_before);
            state.store.kept_bytes() + message_bytes <= keep_bytes
        })
    }

    fn next_piece(&mut self) -> io::Result<Piece> {
        let message_bytes = self.shared.message_bytes;
        match &mut self.input {
            Input::Pipe {
                pipe,
                unread,
                begin,
            } => {
                if let Some(message) = unread.get(*begin..*begin + message_bytes) {
                    *begin += message_bytes;
                    return Ok(Piece::Tokens(message.to_vec()));
                }
                unread.drain(..*begin);
                *begin = 0;
                match read_some(pipe, unread, message_bytes)? {
                    Some(0) => Ok(self.last_piece(Vec::new())),
                    _ => Ok(Piece::Nothing),
                }
            }
            Input::File => {
                let bytes = {
                    let state = self.shared.state();
                    state.store.read(state.published, message_bytes)?
                };
                if bytes.len() == message_bytes {
                    return Ok(Piece::Tokens(bytes));
                }
                if self.args.follow {
                    std::thread::sleep(LOOK_EVERY);
                    return Ok(Piece::Nothing);
                }
                Ok(self.last_piece(bytes))
            }
        }
    }

    /// The input has ended with these bytes, or those that its pipe has left.
    fn last_piece(&mut self, file_bytes: Vec<u8>) -> Piece {
        let mut bytes = match &mut self.input {
            Input::Pipe { unread, .. } => std::mem::take(unread),
            Input::File => file_bytes,
        };
        let cut_bytes = bytes.len() % self.args.token_bytes as usize;
        bytes.truncate(bytes.len() - cut_bytes);
        Piece::End(bytes, cut_bytes)
    }

    fn publish(&mut self, tokens: Vec<u8>) -> Result<(), BridgeError> {
        let offset = {
            let mut state = self.shared.state();
            let offset = state.published;
            state.store.append(&tokens);
            state.published += tokens.len() as u64;
            offset
        };
        self.messages += 1;
        let attachment = self.shared.position(Kind::Data, offset);
        self.put(tokens, attachment)
    }

    fn put(&self, payload: Vec<u8>, attachment: Vec<u8>) -> Result<(), BridgeError> {
        let put = self.publisher.put(payload).attachment(attachment);
        put.wait().map_err(BridgeError::of_zenoh("publishing"))
    }

    fn end(&mut self, cut_bytes: usize) -> Result<(), BridgeError> {
        if cut_bytes > 0 {
            return Err(BridgeError::CutToken {
                name: self.name.clone(),
                bytes: cut_bytes as u64,
                token_bytes: u64::from(self.args.token_bytes),
                tokens: self.tokens(),
            });
        }

        let end = self.shared.state().published;
        if !self.args.follow {
            self.shared.state().is_ended = true;
            let attachment = self.shared.position(Kind::End, end);
            self.put(Vec::new(), attachment)?;
        }
        let readers = self.args.readers;
        if readers > 0 {
            let have_all = |state: &mut State| {
                let has_all = |reader: &&Reader| {
                    reader.knows_end || (!state.is_ended && reader.offset == end)
                };
                state.readers.values().filter(has_all).count() >= readers
            };
            self.shared.wait_until(have_all)?;
        }
        Ok(())
    }

    /// Tokens that were published, without those of `--first-token`.
    fn tokens(&self) -> u64 {
        self.shared.state().published / u64::from(self.args.token_bytes) - self.args.first_token
    }

    fn summarise(&self) {
        let resent_tokens = self.shared.state().resent_bytes / u64::from(self.args.token_bytes);
        self.say(&format!(
            "`{}`: {} tokens of run `{}` in {} messages; {resent_tokens} sent again",
            self.shared.key,
            self.tokens(),
            self.shared.run,
            self.messages,
        ));
    }

    fn say(&self, text: &str) {
        if !self.args.network.quiet {
            eprintln!("zbmd-zenoh: {text}");
        }
    }
}

/// Reads what a pipe has, at most a message and some more; how much that was, 0 at its end, `None` if there is nothing now.
fn read_some(pipe: &File, to: &mut Vec<u8>, message_bytes: usize) -> io::Result<Option<usize>> {
    if !wait_readable(pipe)? {
        return Ok(None);
    }
    let found_bytes = to.len();
    to.resize(found_bytes + message_bytes.max(READ_BYTES), 0);
    let mut readable = pipe;
    let result = readable.read(&mut to[found_bytes..]);
    to.truncate(found_bytes + result.as_ref().map_or(0, |length| *length));
    match result {
        Ok(length) => Ok(Some(length)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits a little until a pipe has something or has ended; whether that is so.
fn wait_readable(pipe: &File) -> io::Result<bool> {
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    let mut poll_fds = [PollFd::new(pipe, PollFlags::IN)];
    match poll(&mut poll_fds, Some(&limit)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
