//! Heartbeats between the conductor and an agent: a thread sends this side's and hears the other's. A peer that has not been
//! heard for a lease is silent: gone, cut off or stopped, which from here is the same.
//!
//! A side that was not woken for a while has heard nobody meanwhile: that time does not count. Where a whole machine stood still, as virtual
//! ones do, or both hosts are on one, nobody has spoken either. A loss is noticed later then, by as much.
//!
//! Each side sends five in a lease. An agent answers where the conductor's come from, so only agents need an address that
//! others know.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use zbmd_wire::beat::{BEAT_BYTES, Beat, BeatSender};
use zbmd_wire::token::Token;

use crate::realtime::{self, ThreadRole};
use crate::transport::clock::Clock;

/// Heartbeats in a lease.
const BEATS_PER_LEASE: u64 = 5;
/// Between heartbeats to a peer that has yet to be heard, at most.
const FIRST_INTERVAL_NS: u64 = 20_000_000;
/// Datagrams that are looked at in a row: strangers that send more cannot keep this side from sending its own.
const DATAGRAMS_AT_A_TIME: usize = 256;

/// Whom to hear, and whom to be heard by.
pub(super) struct BeatPeer {
    /// Of the connection between the two.
    pub session: u128,
    /// Where it listens; `None` if that follows from the first heartbeat that comes.
    pub address: Option<SocketAddr>,
    /// It is not missed before it has been heard once, or this time is over.
    pub patience: Duration,
    /// Called once, when it has been silent for too long.
    pub on_silent: Box<dyn FnMut() + Send>,
}

/// Sends and hears heartbeats until it is dropped.
pub(super) struct Heartbeats {
    stop: Arc<OwnedFd>,
    first: Arc<FirstBeat>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the peer has been heard.
#[derive(Default)]
struct FirstBeat {
    is_heard: Mutex<bool>,
    changed: Condvar,
}

struct BeatLoop {
    socket: UdpSocket,
    token: Token,
    own: BeatSender,
    lease_ns: u64,
    peer: BeatPeer,
    /// Of the peer's heartbeats.
    last_sequence: u64,
    /// The peer is silent from then on.
    deadline_ns: u64,
    is_silent: bool,
    /// Of this side's heartbeats.
    sequence: u64,
    next_beat_ns: u64,
    first: Arc<FirstBeat>,
}

impl Heartbeats {
    /// Begins. `socket` is where heartbeats come and go; what has come before is looked at like all others.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(
        socket: UdpSocket,
        token: Token,
        own: BeatSender,
        lease: Duration,
        peer: BeatPeer,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let mut beats = BeatLoop::new(socket, token, own, lease, peer);
        let first = Arc::clone(&beats.first);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let thread_stop = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("zbmd heartbeats".to_owned())
            .spawn(move || {
                // Where the system allows it, it is heard in time on a busy host too.
                let _ = realtime::enter(ThreadRole::Supervisor);
                beats.run(&thread_stop);
            })?;
        Ok(Self {
            stop,
            first,
            thread: Some(thread),
        })
    }

    /// Waits until the peer has been heard; whether it has been, within the limit.
    pub(super) fn wait_for_first(&self, limit: Duration) -> bool {
        let is_heard = self.first.is_heard.lock();
        let is_heard = is_heard.unwrap_or_else(PoisonError::into_inner);
        let is_missing = |is_heard: &mut bool| !*is_heard;
        let waited = self
            .first
            .changed
            .wait_timeout_while(is_heard, limit, is_missing);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        // An eventfd takes a number until it has more than anybody has counted.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl BeatLoop {
    fn new(
        socket: UdpSocket,
        token: Token,
        own: BeatSender,
        lease: Duration,
        peer: BeatPeer,
    ) -> Self {
        let patience_ns = peer.patience.as_nanos() as u64;
        Self {
            socket,
            token,
            own,
            lease_ns: lease.as_nanos() as u64,
            peer,
            last_sequence: 0,
            deadline_ns: Clock.now_ns().saturating_add(patience_ns),
            is_silent: false,
            sequence: 0,
            next_beat_ns: 0,
            first: Arc::default(),
        }
    }

    fn run(&mut self, stop: &OwnedFd) {
        let mut waking_ns = Clock.now_ns();
        loop {
            self.excuse(Clock.now_ns().saturating_sub(waking_ns));
            // What has come while this thread could not run is heard before anybody is missed.
            self.hear();
            let now_ns = Clock.now_ns();
            if now_ns >= self.next_beat_ns {
                self.next_beat_ns = now_ns + self.interval_ns();
                self.send();
            }
            waking_ns = self.miss(now_ns).min(self.next_beat_ns);

            let left_ns = waking_ns.saturating_sub(now_ns);
            let left = Timespec {
                tv_sec: (left_ns / 1_000_000_000).cast_signed(),
                tv_nsec: (left_ns % 1_000_000_000) as _,
            };
            let mut polled = [
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
            ];
            let _ = poll(&mut polled, Some(&left));
            if !polled[0].revents().is_empty() {
                return;
            }
        }
    }

    /// The peer need not have been heard for as long as this side was woken late.
    fn excuse(&mut self, late_ns: u64) {
        self.deadline_ns = self.deadline_ns.saturating_add(late_ns);
    }

    /// From one heartbeat to the next; a short time as long as the peer is waited for.
    fn interval_ns(&self) -> u64 {
        let interval_ns = (self.lease_ns / BEATS_PER_LEASE).max(1);
        match self.last_sequence {
            0 => interval_ns.min(FIRST_INTERVAL_NS),
            _ => interval_ns,
        }
    }

    /// Sends a heartbeat, if the peer is there and its address is known.
    fn send(&mut self) {
        self.sequence += 1;
        let Some(address) = self.peer.address.filter(|_| !self.is_silent) else {
            return;
        };
        let beat = Beat {
            session: self.peer.session,
            sender: self.own,
            sequence: self.sequence,
        };
        // One that is lost is one that is lost: the next one follows.
        let _ = self.socket.send_to(&beat.encode(&self.token), address);
    }

    /// Takes the heartbeats that have come.
    fn hear(&mut self) {
        // One byte more: a longer datagram is not taken for one of this length.
        let mut datagram = [0; BEAT_BYTES + 1];
        for _ in 0..DATAGRAMS_AT_A_TIME {
            let (bytes, from) = match self.socket.recv_from(&mut datagram) {
                Ok(received) => received,
                // An earlier datagram has not reached anybody: no reason to hear no others.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            if let Some(beat) = Beat::decode(&datagram[..bytes], &self.token)
                && beat.sender == self.own.other()
            {
                self.take(&beat, from);
            }
        }
    }

    fn take(&mut self, beat: &Beat, from: SocketAddr) {
        // A repeated one says nothing about now.
        if beat.session != self.peer.session || beat.sequence <= self.last_sequence {
            return;
        }
        if self.last_sequence == 0 {
            // It hears of this side at once.
            self.next_beat_ns = 0;
            let is_heard = self.first.is_heard.lock();
            *is_heard.unwrap_or_else(PoisonError::into_inner) = true;
            self.first.changed.notify_all();
        }
        self.last_sequence = beat.sequence;
        self.deadline_ns = Clock.now_ns() + self.lease_ns;
        if self.own == BeatSender::Agent {
            self.peer.address = Some(from);
        }
    }

    /// Says that the peer is silent, if it is now; when it will be, if nothing more comes.
    fn miss(&mut self, now_ns: u64) -> u64 {
        if !self.is_silent && now_ns >= self.deadline_ns {
            self.is_silent = true;
            (self.peer.on_silent)();
        }
        match self.is_silent {
            true => u64::MAX,
            false => self.deadline_ns,
        }
    }
}

/// That a peer has become silent, for who wants to say so.
#[derive(Clone, Debug, Default)]
pub(super) struct Silence(Arc<AtomicBool>);

impl Silence {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;

    const LEASE: Duration = Duration::from_millis(200);
    const SESSION: u128 = 9;
    const LONG: Duration = Duration::from_secs(20);

    fn token() -> Token {
        Token::of(b"a token of the test")
    }

    fn socket() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let address = socket.local_addr().expect("an address");
        (socket, address)
    }

    /// One side, and when it finds its peer silent.
    fn side(
        socket: UdpSocket,
        own: BeatSender,
        address: Option<SocketAddr>,
    ) -> (Heartbeats, mpsc::Receiver<()>) {
        let (send, silent) = mpsc::channel();
        let peer = BeatPeer {
            session: SESSION,
            address,
            patience: LONG,
            on_silent: Box::new(move || send.send(()).expect("the test waits")),
        };
        let beats = Heartbeats::start(socket, token(), own, LEASE, peer);
        (beats.expect("started"), silent)
    }

    fn beat(sequence: u64, sender: BeatSender, session: u128) -> Beat {
        Beat {
            session,
            sender,
            sequence,
        }
    }

    #[test]
    fn two_sides_hear_each_other_until_one_is_gone() {
        let (agent_socket, agent_address) = socket();
        let (agent, agent_silent) = side(agent_socket, BeatSender::Agent, None);
        let (own_socket, _) = socket();
        let (conductor, silent) = side(own_socket, BeatSender::Conductor, Some(agent_address));
        assert!(conductor.wait_for_first(LONG), "the agent answers");
        assert!(agent.wait_for_first(LONG), "it has been heard");
        drop(agent);
        silent.recv_timeout(LONG).expect("it is missed");
        agent_silent
            .try_recv()
            .expect_err("the conductor was there");
    }

    /// A thread that was stopped for longer than a lease finds the other side there, which had as little time to speak.
    #[test]
    fn a_side_that_was_not_woken_misses_nobody() {
        let (agent_socket, agent_address) = socket();
        let (own_socket, _) = socket();
        let (send, silent) = mpsc::channel();
        let mut beats = BeatLoop::new(
            own_socket,
            token(),
            BeatSender::Conductor,
            LEASE,
            BeatPeer {
                session: SESSION,
                address: Some(agent_address),
                patience: LONG,
                on_silent: Box::new(move || send.send(()).expect("the test waits")),
            },
        );
        beats.take(&beat(1, BeatSender::Agent, SESSION), agent_address);
        drop(agent_socket);

        let lease_ns = LEASE.as_nanos() as u64;
        let stopped_ns = 10 * lease_ns;
        let planned_ns = beats.deadline_ns - lease_ns / 2;
        beats.excuse(stopped_ns);
        let left_ns = beats.miss(planned_ns + stopped_ns) - (planned_ns + stopped_ns);
        assert_eq!(left_ns, lease_ns / 2, "as much as when it fell asleep");
        silent.try_recv().expect_err("it is not missed");
        beats.miss(planned_ns + stopped_ns + lease_ns);
        silent.try_recv().expect("it is missed");
    }

    /// Recorded heartbeats, those of other sessions and directions, and those without the token keep nobody alive.
    #[test]
    fn strangers_do_not_keep_a_host_alive() {
        let (own_socket, own_address) = socket();
        let (peer, peer_address) = socket();
        let (conductor, silent) = side(own_socket, BeatSender::Conductor, Some(peer_address));
        let send = |beat: Beat, token: &Token| {
            let sent = peer.send_to(&beat.encode(token), own_address);
            sent.expect("sent");
        };
        send(beat(5, BeatSender::Agent, SESSION + 1), &token());
        send(beat(5, BeatSender::Conductor, SESSION), &token());
        send(
            beat(5, BeatSender::Agent, SESSION),
            &Token::of(b"another secret...."),
        );
        let is_heard = conductor.wait_for_first(Duration::from_millis(50));
        assert!(!is_heard, "none of these counts");
        send(beat(5, BeatSender::Agent, SESSION), &token());
        assert!(conductor.wait_for_first(LONG), "this one does");

        let began = Instant::now();
        while silent.try_recv().is_err() {
            assert!(began.elapsed() < LONG, "the repeated one keeps it alive");
            send(beat(5, BeatSender::Agent, SESSION), &token());
            send(beat(4, BeatSender::Agent, SESSION), &token());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(began.elapsed() >= LEASE / 2, "it was not missed too soon");
    }
}
