//! Connections between voters: one from each to each, of frames of 4 bytes of length and a message. Strangers get no further
//! than the handshake.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::net::sockopt::set_tcp_user_timeout;
use xxhash_rust::xxh3::xxh3_128;
use zbmd_wire::connection::{Credentials, SharedConnection};
use zbmd_wire::error::Refusal;
use zbmd_wire::handshake::{Accepted, Hello, Purpose, accept, dial};
use zbmd_wire::{Deadline, connect_by};

use crate::VoterId;
use crate::member::{MemberInput, spawn};
use crate::message::{MAX_MESSAGE_BYTES, Message};
use crate::node::{ELECTION_TICKS, Settings};

/// A handshake that takes longer is given up.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(1);
/// Handshakes at a time; whoever comes while there are so many is let go at once.
const MAX_HANDSHAKES: usize = 32;
/// A voter that takes nothing for so long is connected to anew.
const SEND_LIMIT: Duration = Duration::from_secs(1);
/// A connection over which nothing gets for [`ELECTION_TICKS`], and at least so long, is given up and made anew. TCP itself would try
/// less and less often: after a cut the voters would not hear each other for as long again as it lasted.
const MIN_STALL_LIMIT: Duration = Duration::from_millis(100);
/// From one try to connect to the next.
const DIAL_PAUSE: Duration = Duration::from_millis(5);
/// Messages that wait for a connection; more are lost.
const MAX_WAITING: usize = 256;

/// The same for all voters of a council, and for no others.
fn council_of(settings: &Settings) -> u128 {
    let voters = settings.voters.iter();
    let bytes: Vec<u8> = voters.flat_map(|voter| voter.0.to_le_bytes()).collect();
    xxh3_128(&bytes)
}

fn hello(settings: &Settings, from: VoterId, to: VoterId) -> Hello {
    Hello {
        purpose: Purpose::Council,
        run: council_of(settings),
        epoch: 0,
        // Leases of voters with another one would overlap.
        plan: settings.tick_ns,
        sender: from.0 as u32,
        receiver: to.0 as u32,
    }
}

// To the others.

/// Where messages go.
pub(crate) struct Links {
    senders: BTreeMap<VoterId, SyncSender<Message>>,
}

impl Links {
    /// Connects to all others, again and again if need be, until this is dropped.
    pub(crate) fn start(
        settings: &Settings,
        addresses: &BTreeMap<VoterId, SocketAddr>,
        credentials: &Credentials,
    ) -> io::Result<Self> {
        let mut senders = BTreeMap::new();
        for (voter, address) in addresses {
            if *voter == settings.own || !settings.voters.contains(voter) {
                continue;
            }
            let (sender, messages) = mpsc::sync_channel(MAX_WAITING);
            let link = Link {
                hello: hello(settings, settings.own, *voter),
                address: *address,
                stall_limit: stall_limit(settings),
                credentials: credentials.clone(),
                connection: None,
            };
            spawn(&format!("zbmd to {voter}"), move || link.run(&messages))?;
            senders.insert(*voter, sender);
        }
        Ok(Self { senders })
    }

    /// Sends messages. Those that there is no room for are lost: waiting would be worse.
    pub(crate) fn send(&self, messages: Vec<Message>) {
        for message in messages {
            if let Some(sender) = self.senders.get(&message.to) {
                let _ = sender.try_send(message);
            }
        }
    }
}

struct Link {
    hello: Hello,
    address: SocketAddr,
    /// It is given up when nothing has got through for so long.
    stall_limit: Duration,
    credentials: Credentials,
    connection: Option<SharedConnection>,
}

fn stall_limit(settings: &Settings) -> Duration {
    let election = Duration::from_nanos(settings.tick_ns.saturating_mul(ELECTION_TICKS));
    election.max(MIN_STALL_LIMIT)
}

impl Link {
    fn run(mut self, messages: &Receiver<Message>) {
        while let Ok(message) = messages.recv() {
            if self.connection.is_none() {
                self.connection = self.dial().ok();
                if self.connection.is_none() {
                    // What has waited meanwhile is out of date.
                    std::thread::sleep(DIAL_PAUSE);
                    messages.try_iter().for_each(drop);
                    continue;
                }
            }
            if let Some(connection) = &self.connection
                && send(connection, &message).is_err()
            {
                self.connection = None;
            }
        }
    }

    fn dial(&self) -> Result<SharedConnection, String> {
        let text = |error: io::Error| error.to_string();
        let socket = connect_by(self.address, Deadline::after(self.stall_limit)).map_err(text)?;
        let limit_ms = u32::try_from(self.stall_limit.as_millis()).unwrap_or(u32::MAX);
        set_tcp_user_timeout(&socket, limit_ms).map_err(|error| text(error.into()))?;
        let deadline = Deadline::after(HANDSHAKE_LIMIT);
        let connection = dial(socket, &self.hello, &self.credentials, deadline);
        let connection = connection.map_err(|error| error.to_string())?;
        SharedConnection::new(connection, SEND_LIMIT).map_err(text)
    }
}

fn send(mut connection: &SharedConnection, message: &Message) -> io::Result<()> {
    let body = message.encode().map_err(io::Error::other)?;
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend(body);
    connection.write_all(&bytes)?;
    connection.flush()
}

// From the others.

/// Takes connections until it is dropped.
pub(crate) struct Acceptor {
    address: SocketAddr,
    shared: Arc<AcceptorShared>,
}

struct AcceptorShared {
    settings: Settings,
    credentials: Credentials,
    inputs: Mutex<Sender<MemberInput>>,
    /// Where connections go that are for borders.
    borders: Option<Mutex<Sender<Accepted>>>,
    handshakes: AtomicUsize,
    is_over: AtomicBool,
    /// The last connection of each voter.
    readers: Mutex<BTreeMap<VoterId, Weak<SharedConnection>>>,
}

/// Listens for the other voters, whose messages go to `inputs`.
///
/// # Errors
/// What the system says.
pub(crate) fn listen(
    address: SocketAddr,
    settings: &Settings,
    credentials: &Credentials,
    inputs: Sender<MemberInput>,
    borders: Option<Sender<Accepted>>,
) -> io::Result<Acceptor> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let shared = Arc::new(AcceptorShared {
        settings: settings.clone(),
        credentials: credentials.clone(),
        inputs: Mutex::new(inputs),
        borders: borders.map(Mutex::new),
        handshakes: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        readers: Mutex::default(),
    });
    let acceptor = Arc::clone(&shared);
    spawn("zbmd council listener", move || {
        for socket in listener.incoming() {
            if acceptor.is_over.load(Ordering::Acquire) {
                return;
            }
            if let Ok(socket) = socket {
                acceptor.answer(socket);
            }
        }
    })?;
    Ok(Acceptor { address, shared })
}

impl Acceptor {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        for reader in self.shared.readers().values().filter_map(Weak::upgrade) {
            reader.shutdown();
        }
        // The listener looks whether it is over when somebody comes.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        drop(TcpStream::connect_timeout(&address, DIAL_PAUSE));
    }
}

impl AcceptorShared {
    fn readers(&self) -> std::sync::MutexGuard<'_, BTreeMap<VoterId, Weak<SharedConnection>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears a connection, on a thread of its own.
    fn answer(self: &Arc<Self>, socket: TcpStream) {
        if self.handshakes.fetch_add(1, Ordering::Relaxed) >= MAX_HANDSHAKES {
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let shared = Arc::clone(self);
        let spawned = spawn("zbmd from a voter", move || {
            let admitted = shared.admit(socket);
            shared.handshakes.fetch_sub(1, Ordering::Relaxed);
            if let Some((voter, connection)) = admitted {
                // Whatever ends it, the voter connects again.
                let _ = shared.hear(voter, &connection);
            }
        });
        if spawned.is_err() {
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whom a connection is from, if that is another voter of this council.
    fn admit(&self, socket: TcpStream) -> Option<(VoterId, Arc<SharedConnection>)> {
        let deadline = Deadline::after(HANDSHAKE_LIMIT);
        let accepted = accept(socket, &self.credentials, deadline).ok()?;
        if let (Purpose::Border, Some(borders)) = (accepted.hello.purpose, &self.borders) {
            let borders = borders.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = borders.send(accepted);
            return None;
        }
        let from = VoterId(accepted.hello.sender.into());
        let own = self.settings.own;
        let is_expected = accepted.hello == hello(&self.settings, from, own);
        let is_other = from != own && self.settings.voters.contains(&from);
        if !is_expected || !is_other || self.is_over.load(Ordering::Acquire) {
            accepted.refuse(Refusal::Unknown, deadline);
            return None;
        }

        let connection = accepted.welcome(deadline).ok()?;
        let connection = Arc::new(SharedConnection::new(connection, Duration::MAX).ok()?);
        let before = self.readers().insert(from, Arc::downgrade(&connection));
        // A voter has one connection: the last one.
        if let Some(before) = before.and_then(|before| before.upgrade()) {
            before.shutdown();
        }
        Some((from, connection))
    }

    /// Takes the messages of a voter until its connection ends, or something else comes.
    fn hear(&self, voter: VoterId, mut connection: &SharedConnection) -> io::Result<()> {
        let inputs = self.inputs.lock();
        let inputs = inputs.unwrap_or_else(PoisonError::into_inner).clone();
        loop {
            let mut length = [0; 4];
            connection.read_exact(&mut length)?;
            let length = u32::from_le_bytes(length) as usize;
            if length > MAX_MESSAGE_BYTES {
                return Err(io::Error::other("a message that is too long"));
            }
            let mut bytes = vec![0; length];
            connection.read_exact(&mut bytes)?;
            let message = Message::decode(&bytes).map_err(io::Error::other)?;
            // Nobody speaks for another.
            if message.from != voter || inputs.send(MemberInput::Message(message)).is_err() {
                return Err(io::Error::other("a message of another voter"));
            }
        }
    }
}
