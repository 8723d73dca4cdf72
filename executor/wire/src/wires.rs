//! All wires of one worker: sends tokens and credits, takes in what comes, and waits. See the crate for the protocol.
//! Allocates nothing once it has its wires.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::error::{FrameError, WireError};
use crate::frame::{FrameHeader, FrameKind, HEADER_BYTES, sum_of};
use crate::socket::{Deadline, monotonic_ns, prepare, timespec};

/// Wires of a worker, at most: one in each direction to each other device of the largest machine, and one more.
pub const MAX_WIRES: usize = 2047;
/// As many as most workers have at most: what is made for each look at them is small.
const FEW_WIRES: usize = 63;
/// A read that has got nothing is tried so often altogether before the worker sleeps.
const TRIES: usize = 2;
/// A worker with a core of its own tries for so long: about what a sleep and a wake-up cost, in a virtual machine at least.
const SPIN_NS: u64 = 100_000;
/// Behind a wait that took longer, its wake-up included, the next one is likely to be in vain, and the worker sleeps at once.
const WORTH_SPINNING_NS: u64 = 2 * SPIN_NS;
/// Frames that are taken in from one wire at a time, so that none keeps the worker from the others.
const FRAMES_AT_A_TIME: usize = 4096;
/// A sender is told that places are free when half of them are, or so many bytes: to send that much takes longer than to say it, and
/// the sender may sleep until it hears of it.
const CREDIT_BYTES: u64 = 64 << 10;
/// Where the payload of a frame goes that is dropped.
const SCRATCH_BYTES: usize = 4096;

/// Where tokens that come have their places.
pub trait RingMemory {
    /// The place of `bytes` bytes of tokens from token `first` of the epoch on. Called only where the block has been
    /// released, and never for more than what is left of it.
    fn place(&mut self, ring: usize, first: u64, bytes: usize) -> &mut [u8];
}

/// What both ends of a ring know of it.
#[derive(Clone, Debug)]
pub struct RingSpec {
    /// Its number in the plan.
    pub ring: u32,
    /// Bytes of a token.
    pub token_bytes: u64,
    /// Tokens of a block.
    pub block_tokens: u64,
    /// Blocks that the receiver has places for.
    pub blocks: u64,
    /// Tokens of each frame of a block, in order, if that is known: then nothing else is taken.
    pub sends: Box<[u64]>,
}

/// Which way tokens go on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This worker sends tokens, and is sent credits.
    Sends,
    /// This worker is sent tokens, and sends credits.
    Receives,
}

/// Why a wait ended without what was waited for.
#[derive(Debug)]
pub enum WireStop {
    /// The epoch was stopped.
    Stopped,
    /// The deadline came first.
    TimedOut,
    /// A wire carries nothing any more.
    Failed(WireError),
}

struct Ring {
    spec: RingSpec,
    wire: usize,
    /// Tokens that were sent, or have come.
    published: u64,
    /// Blocks that were released: as the receiver has done, or as the sender knows.
    released: u64,
    /// Blocks that the sender has been told of.
    credited: u64,
    /// Which of `spec.sends` comes next.
    next_send: usize,
}

/// A frame that is on its way in.
#[derive(Clone, Copy)]
struct Incoming {
    header: FrameHeader,
    /// The sum that its payload must have.
    sum: u32,
    /// Which ring it is for; none for a frame of another epoch, which is dropped.
    ring: Option<usize>,
    /// Bytes of the payload that are there.
    done: usize,
}

struct Wire {
    connection: Connection,
    peer: String,
    side: Side,
    /// Its rings, among those of all wires.
    rings: std::ops::Range<usize>,
    is_open: bool,
    /// The sender has said that nothing follows.
    is_closed: bool,
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    incoming: Option<Incoming>,
    /// A credit of which the socket has taken a part.
    credit: [u8; HEADER_BYTES],
    credit_sent: usize,
}

impl Wire {
    /// Whether a credit is on its way to the socket.
    fn is_partly_sent(&self) -> bool {
        self.credit_sent < HEADER_BYTES || self.connection.has_unsent()
    }
}

/// All wires of one worker in one epoch.
pub struct Wires {
    epoch: u64,
    checks_payloads: bool,
    /// Readable once the epoch is stopped.
    stop: OwnedFd,
    /// Nobody else needs this worker's core.
    has_own_core: bool,
    /// What the last wait that came to sleeping took.
    last_wait_ns: u64,
    wires: Vec<Wire>,
    rings: Vec<Ring>,
    scratch: Box<[u8]>,
    /// Wires on which something has come, with room for all of them.
    ready: Vec<usize>,
    foreign_frames: u64,
    sleeps: u64,
}

impl Wires {
    /// No wire yet. `stop` becomes readable, and stays so, when the epoch is stopped. With `checks_payloads`, which both
    /// ends must agree on, payloads are checked too.
    pub fn new(epoch: u64, stop: OwnedFd, checks_payloads: bool) -> Self {
        Self {
            epoch,
            checks_payloads,
            stop,
            has_own_core: false,
            last_wait_ns: 0,
            wires: Vec::new(),
            rings: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            ready: Vec::new(),
            foreign_frames: 0,
            sleeps: 0,
        }
    }

    /// Says that nobody else needs this worker's core: it looks at a wire for a while before it sleeps.
    #[must_use]
    pub fn with_own_core(mut self) -> Self {
        self.has_own_core = true;
        self
    }

    /// Adds a wire with its rings, which are numbered on from those of the wires before it.
    ///
    /// # Errors
    /// Too many wires, or what the system says.
    pub fn add(
        &mut self,
        connection: impl Into<Connection>,
        peer: String,
        side: Side,
        rings: Vec<RingSpec>,
    ) -> Result<(), WireError> {
        if self.wires.len() == MAX_WIRES {
            return Err(WireError::TooMany {
                found: MAX_WIRES + 1,
                most: MAX_WIRES,
            });
        }

        let connection = connection.into();
        if let Err(source) = prepare(connection.socket()) {
            return Err(WireError::System { peer, source });
        }

        let wire = self.wires.len();
        let first_ring = self.rings.len();
        self.rings.extend(rings.into_iter().map(|spec| Ring {
            spec,
            wire,
            published: 0,
            released: 0,
            credited: 0,
            next_send: 0,
        }));
        self.wires.push(Wire {
            connection,
            peer,
            side,
            rings: first_ring..self.rings.len(),
            is_open: true,
            is_closed: false,
            header: [0; HEADER_BYTES],
            header_bytes: 0,
            incoming: None,
            credit: [0; HEADER_BYTES],
            credit_sent: HEADER_BYTES,
        });
        self.ready.reserve(self.wires.len());
        Ok(())
    }

    /// Whether there is no wire.
    pub fn is_empty(&self) -> bool {
        self.wires.is_empty()
    }

    /// Frames of other epochs that were dropped.
    pub fn foreign_frames(&self) -> u64 {
        self.foreign_frames
    }

    /// How often the worker slept for a wire.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    /// Tokens published and blocks released of a ring, as this end knows.
    pub fn counts(&self, ring: usize) -> (u64, u64) {
        (self.rings[ring].published, self.rings[ring].released)
    }

    /// Sender: waits until the first `blocks` blocks are released.
    ///
    /// # Errors
    /// Why that will not be known.
    #[inline]
    pub fn wait_released(
        &mut self,
        ring: usize,
        blocks: u64,
        deadline: Deadline,
        memory: &mut impl RingMemory,
    ) -> Result<(), WireStop> {
        if self.rings[ring].released >= blocks {
            return Ok(());
        }
        let is_released = |wires: &Self| wires.rings[ring].released >= blocks;
        self.wait_until(self.rings[ring].wire, is_released, deadline, memory)
    }

    /// Receiver: waits until `tokens` tokens have come.
    ///
    /// # Errors
    /// Why they will not come.
    #[inline]
    pub fn wait_published(
        &mut self,
        ring: usize,
        tokens: u64,
        deadline: Deadline,
        memory: &mut impl RingMemory,
    ) -> Result<(), WireStop> {
        if self.rings[ring].published >= tokens {
            return Ok(());
        }
        let has_come = |wires: &Self| wires.rings[ring].published >= tokens;
        self.wait_until(self.rings[ring].wire, has_come, deadline, memory)
    }

    /// Sender: sends the tokens up to `count`, for which there is credit.
    ///
    /// # Errors
    /// Why they cannot be sent.
    pub fn send(
        &mut self,
        ring: usize,
        count: u64,
        payload: &[u8],
        memory: &mut impl RingMemory,
    ) -> Result<(), WireStop> {
        let header = FrameHeader {
            epoch: self.epoch,
            ring: self.rings[ring].spec.ring,
            kind: FrameKind::Tokens,
            count,
            bytes: payload.len() as u32,
        };
        let sum = match self.checks_payloads {
            true => sum_of(payload),
            false => 0,
        };
        let wire = self.rings[ring].wire;
        self.write_frame(wire, &header.encode(sum), payload, memory)?;
        self.rings[ring].published = count;
        Ok(())
    }

    /// Receiver: the first `blocks` blocks are read for good. Tells the sender when that is much.
    ///
    /// # Errors
    /// What the system says.
    #[inline]
    pub fn release(&mut self, ring: usize, blocks: u64) -> Result<(), WireStop> {
        let ring = &mut self.rings[ring];
        ring.released = blocks;
        if ring.owes_much() {
            let wire = ring.wire;
            self.send_credits(wire)?;
        }
        Ok(())
    }

    /// Sends the credits that are owed, and takes in what has come, without waiting.
    ///
    /// # Errors
    /// A frame that does not fit, or what the system says. The end of a connection is an error only for who waits for it.
    pub fn pump(&mut self, memory: &mut impl RingMemory) -> Result<(), WireStop> {
        for wire in 0..self.wires.len() {
            self.send_credits(wire)?;
            self.take_in(wire, memory)?;
        }
        Ok(())
    }

    /// Says on all wires that nothing follows, and waits until all receivers have read everything, and all senders have
    /// said the same: a socket that is closed with something unread would take away what is under way.
    ///
    /// # Errors
    /// The epoch was stopped, or a peer is gone before that.
    pub fn finish(&mut self, memory: &mut impl RingMemory) -> Result<(), WireStop> {
        let close = FrameHeader {
            epoch: self.epoch,
            ring: 0,
            kind: FrameKind::Close,
            count: 0,
            bytes: 0,
        };
        for wire in 0..self.wires.len() {
            if self.wires[wire].side == Side::Sends {
                self.write_frame(wire, &close.encode(0), &[], memory)?;
            }
        }
        // First what others wait for: a receiver ends the connection when it has read the close.
        for wire in 0..self.wires.len() {
            if self.wires[wire].side == Side::Receives {
                let is_closed = |wires: &Self| wires.wires[wire].is_closed;
                self.wait_until(wire, is_closed, Deadline::NEVER, memory)?;
                self.end(wire);
            }
        }
        for wire in 0..self.wires.len() {
            if self.wires[wire].side == Side::Sends {
                let is_over = |wires: &Self| !wires.wires[wire].is_open;
                self.wait_until(wire, is_over, Deadline::NEVER, memory)?;
            }
        }
        Ok(())
    }

    /// Nothing more is sent or taken in on a wire.
    fn end(&mut self, wire: usize) {
        self.wires[wire].is_open = false;
        // Its peer sees the end at once; that it is gone already is no error.
        let socket = self.wires[wire].connection.socket();
        let _ = socket.shutdown(std::net::Shutdown::Both);
    }

    #[cold]
    fn gone(&self, wire: usize) -> WireStop {
        let peer = self.wires[wire].peer.clone();
        WireStop::Failed(WireError::Gone { peer })
    }

    /// Waits for something that comes on one wire, and takes in what comes on all.
    fn wait_until(
        &mut self,
        wire: usize,
        is_done: impl Fn(&Self) -> bool,
        deadline: Deadline,
        memory: &mut impl RingMemory,
    ) -> Result<(), WireStop> {
        for _ in 0..TRIES {
            self.take_in(wire, memory)?;
            if is_done(self) {
                return Ok(());
            }
        }
        if self.has_own_core
            && self.last_wait_ns <= WORTH_SPINNING_NS
            && self.spin_until(wire, &is_done, memory)?
        {
            return Ok(());
        }

        let begin_ns = monotonic_ns();
        loop {
            if !self.brings_more(wire) {
                return Err(self.gone(wire));
            }
            self.send_needed_credits()?;
            self.sleep(wire, PollFlags::IN, deadline, memory)?;
            if is_done(self) {
                self.last_wait_ns = monotonic_ns() - begin_ns;
                return Ok(());
            }
        }
    }

    /// Looks at one wire for a while; whether what was waited for has come.
    fn spin_until(
        &mut self,
        wire: usize,
        is_done: &impl Fn(&Self) -> bool,
        memory: &mut impl RingMemory,
    ) -> Result<bool, WireStop> {
        self.send_needed_credits()?;
        let end_ns = monotonic_ns() + SPIN_NS;
        while self.brings_more(wire) && monotonic_ns() < end_ns {
            std::hint::spin_loop();
            self.take_in(wire, memory)?;
            if is_done(self) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether something may come on a wire: after a close nothing does that anybody could wait for.
    fn brings_more(&self, wire: usize) -> bool {
        self.wires[wire].is_open && !self.wires[wire].is_closed
    }

    /// Sleeps until one wire is ready, tokens come on another, the deadline has come, or the epoch is stopped; and takes in
    /// what has come.
    fn sleep(
        &mut self,
        wanted: usize,
        flags: PollFlags,
        deadline: Deadline,
        memory: &mut impl RingMemory,
    ) -> Result<(), WireStop> {
        self.sleeps += 1;
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let polled = match self.wires.len() <= FEW_WIRES {
            true => self.poll_wires::<{ FEW_WIRES + 1 }>(wanted, flags, deadline, &mut ready),
            false => self.poll_wires::<{ MAX_WIRES + 1 }>(wanted, flags, deadline, &mut ready),
        };
        let mut ready_wires = ready.iter();
        let taken =
            polled.and_then(|()| ready_wires.try_for_each(|wire| self.take_in(*wire, memory)));
        self.ready = ready;
        taken
    }

    /// Adds the wires of which `poll` would not show that there is something to do.
    fn add_ready(&mut self, ready: &mut Vec<usize>) {
        for (index, wire) in self.wires.iter_mut().enumerate() {
            if wire.is_open && wire.connection.is_ready() {
                ready.push(index);
            }
        }
    }

    /// Adds the wires on which something has come; `PLACES` is more than there are. Of the wires that are not wanted, only those
    /// that bring tokens are looked at: credits that nobody waits for would wake the worker for nothing, and always have room in
    /// the socket.
    fn poll_wires<const PLACES: usize>(
        &mut self,
        wanted: usize,
        wanted_flags: PollFlags,
        deadline: Deadline,
        ready: &mut Vec<usize>,
    ) -> Result<(), WireStop> {
        let left_ns = deadline.left_ns();
        if left_ns == Some(0) {
            return Err(WireStop::TimedOut);
        }
        // Of what has been taken from its socket already, `poll` knows nothing.
        self.add_ready(ready);
        if !ready.is_empty() {
            return Ok(());
        }
        let stop = self.stop.as_fd();
        let mut polled: [PollFd<'_>; PLACES] =
            std::array::from_fn(|_| PollFd::from_borrowed_fd(stop, PollFlags::IN));
        let mut wire_at = [0usize; PLACES];
        let mut count = 1;
        for (index, wire) in self.wires.iter().enumerate() {
            let is_wanted = index == wanted;
            if !wire.is_open || !(is_wanted || wire.side == Side::Receives) {
                continue;
            }
            let mut flags = if is_wanted {
                wanted_flags
            } else {
                PollFlags::IN
            };
            if wire.is_partly_sent() {
                flags |= PollFlags::OUT;
            }
            polled[count] = PollFd::from_borrowed_fd(wire.connection.as_fd(), flags);
            wire_at[count] = index;
            count += 1;
        }

        let left = left_ns.map(timespec);
        match poll(&mut polled[..count], left.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => {
                return Err(WireStop::Failed(WireError::System {
                    peer: "all hosts".to_owned(),
                    source: error.into(),
                }));
            }
        }
        if !polled[0].revents().is_empty() {
            return Err(WireStop::Stopped);
        }
        for (entry, &index) in polled[..count].iter().zip(&wire_at).skip(1) {
            if entry.revents().intersects(!PollFlags::OUT) {
                ready.push(index);
            }
        }
        Ok(())
    }

    /// Writes a frame, however long the socket takes; meanwhile it takes in what comes.
    fn write_frame(
        &mut self,
        wire: usize,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        memory: &mut impl RingMemory,
    ) -> Result<(), WireStop> {
        let mut sent = 0;
        while sent < HEADER_BYTES + payload.len() || self.wires[wire].connection.has_unsent() {
            if !self.wires[wire].is_open {
                return Err(self.gone(wire));
            }
            let parts = if sent < HEADER_BYTES {
                [IoSlice::new(&header[sent..]), IoSlice::new(payload)]
            } else {
                let rest = &payload[sent - HEADER_BYTES..];
                [IoSlice::new(rest), IoSlice::new(&[])]
            };
            match self.wires[wire].connection.write_now(&parts) {
                Ok(Some(bytes)) => sent += bytes,
                Ok(None) => {
                    self.send_needed_credits()?;
                    let flags = PollFlags::IN | PollFlags::OUT;
                    self.sleep(wire, flags, Deadline::NEVER, memory)?;
                }
                Err(error) => return Err(self.broken(wire, error)),
            }
        }
        Ok(())
    }

    /// What an error of a socket means: mostly that the peer is gone.
    #[cold]
    fn broken(&mut self, wire: usize, error: io::Error) -> WireStop {
        self.wires[wire].is_open = false;
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.gone(wire),
            _ => WireStop::Failed(WireError::System {
                peer: self.wires[wire].peer.clone(),
                source: error,
            }),
        }
    }

    /// Sends the credits without which a sender might wait: where it has filled all places that it knows to be free. What
    /// is still under way to here wakes this worker, which then comes here again.
    fn send_needed_credits(&mut self) -> Result<(), WireStop> {
        for wire in 0..self.wires.len() {
            let mut rings = self.rings[self.wires[wire].rings.clone()].iter();
            if self.wires[wire].is_partly_sent() || rings.any(Ring::needs_credit) {
                self.send_credits(wire)?;
            }
        }
        Ok(())
    }

    /// Sends the credits that are owed on a wire, or as much as its socket takes now.
    fn send_credits(&mut self, wire: usize) -> Result<(), WireStop> {
        if self.wires[wire].side == Side::Sends || !self.wires[wire].is_open {
            return Ok(());
        }
        self.send_credit_rest(wire)?;
        for ring in self.wires[wire].rings.clone() {
            let Ring {
                released, credited, ..
            } = self.rings[ring];
            if released == credited || self.wires[wire].is_partly_sent() {
                continue;
            }
            let header = FrameHeader {
                epoch: self.epoch,
                ring: self.rings[ring].spec.ring,
                kind: FrameKind::Credit,
                count: released,
                bytes: 0,
            };
            self.rings[ring].credited = released;
            self.wires[wire].credit = header.encode(0);
            self.wires[wire].credit_sent = 0;
            self.send_credit_rest(wire)?;
        }
        Ok(())
    }

    fn send_credit_rest(&mut self, index: usize) -> Result<(), WireStop> {
        let wire = &mut self.wires[index];
        while wire.is_partly_sent() {
            let rest = [IoSlice::new(&wire.credit[wire.credit_sent..])];
            match wire.connection.write_now(&rest) {
                Ok(Some(bytes)) => wire.credit_sent += bytes,
                Ok(None) => return Ok(()),
                Err(error) => match self.broken(index, error) {
                    // A sender that has sent everything may be gone.
                    WireStop::Failed(WireError::Gone { .. }) => return Ok(()),
                    stop => return Err(stop),
                },
            }
        }
        Ok(())
    }

    /// Takes in all that has come on a wire.
    fn take_in(&mut self, wire: usize, memory: &mut impl RingMemory) -> Result<(), WireStop> {
        for _ in 0..FRAMES_AT_A_TIME {
            if !self.wires[wire].is_open {
                return Ok(());
            }
            let step = self.take_in_part(wire, memory);
            match step {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(source) => {
                    self.wires[wire].is_open = false;
                    let peer = self.wires[wire].peer.clone();
                    return Err(WireStop::Failed(WireError::Frame { peer, source }));
                }
            }
        }
        Ok(())
    }

    /// One step of taking in; whether there may be another.
    fn take_in_part(
        &mut self,
        wire: usize,
        memory: &mut impl RingMemory,
    ) -> Result<bool, FrameError> {
        if let Some(incoming) = self.wires[wire].incoming {
            if incoming.done == incoming.header.bytes as usize {
                self.complete(wire, incoming, memory)?;
                return Ok(true);
            }
            return self.read_payload(wire, incoming, memory);
        }
        if self.wires[wire].header_bytes == HEADER_BYTES {
            self.begin_frame(wire, 0)?;
            return Ok(true);
        }
        self.read_header(wire, memory)
    }

    /// What follows on a wire if anything does: the ring and the bytes. Known where there is one ring, and its frames are.
    fn expected_frame(&self, wire: usize) -> Option<(usize, usize)> {
        let Wire {
            side,
            rings,
            header_bytes: 0,
            ..
        } = &self.wires[wire]
        else {
            return None;
        };
        if *side == Side::Sends || rings.len() != 1 {
            return None;
        }
        let ring = &self.rings[rings.start];
        let tokens = ring.spec.sends.get(ring.next_send)?;
        let has_place = ring.published / ring.spec.block_tokens < ring.released + ring.spec.blocks;
        has_place.then_some((rings.start, (tokens * ring.spec.token_bytes) as usize))
    }

    /// Reads a header, and the payload with it where it is known what comes.
    fn read_header(
        &mut self,
        index: usize,
        memory: &mut impl RingMemory,
    ) -> Result<bool, FrameError> {
        let expected = self.expected_frame(index);
        let wire = &mut self.wires[index];
        let have = wire.header_bytes;
        let header_rest = &mut wire.header[have..];
        let read = match expected {
            Some((ring, bytes)) => {
                let place = memory.place(ring, self.rings[ring].published, bytes);
                let mut places = [IoSliceMut::new(header_rest), IoSliceMut::new(place)];
                wire.connection.read_now(&mut places)
            }
            None => {
                let mut place = [IoSliceMut::new(header_rest)];
                wire.connection.read_now(&mut place)
            }
        };
        let Some(bytes) = read_bytes(wire, read, have as u64, HEADER_BYTES as u64)? else {
            return Ok(false);
        };

        wire.header_bytes = (have + bytes).min(HEADER_BYTES);
        let payload_bytes = (have + bytes) - wire.header_bytes;
        if wire.header_bytes == HEADER_BYTES {
            self.begin_frame(index, payload_bytes)?;
        }
        Ok(true)
    }

    /// A header is complete; so many bytes of its payload have come with it.
    fn begin_frame(&mut self, wire: usize, payload_bytes: usize) -> Result<(), FrameError> {
        let (header, sum) = FrameHeader::decode(&self.wires[wire].header)?;
        self.wires[wire].header_bytes = 0;
        if header.kind != FrameKind::Tokens || !self.checks_payloads {
            header.check(sum, 0)?;
        }
        // What came with it was read as the payload of a longer frame: the next header is among it, and lost.
        if payload_bytes > header.bytes as usize {
            return Err(FrameError::Length {
                bytes: payload_bytes as u64,
                most: header.bytes.into(),
            });
        }
        let ring = match header.epoch == self.epoch {
            true => self.accept(wire, &header)?,
            false => {
                self.foreign_frames += 1;
                None
            }
        };
        if header.kind == FrameKind::Tokens {
            self.wires[wire].incoming = Some(Incoming {
                header,
                sum,
                ring,
                done: payload_bytes,
            });
        }
        Ok(())
    }

    /// Takes a frame of this epoch, if it is what its ring allows now: a credit or a close as a whole, and of tokens the
    /// ring that they are for.
    fn accept(&mut self, wire: usize, header: &FrameHeader) -> Result<Option<usize>, FrameError> {
        let Wire { side, rings, .. } = &self.wires[wire];
        let is_from_sender = header.kind != FrameKind::Credit;
        if is_from_sender != (*side == Side::Receives) {
            return Err(FrameError::Direction {
                ring: header.ring,
                kind: header.kind.name(),
                expected: match side {
                    Side::Receives => "sends tokens",
                    Side::Sends => "sends credits",
                },
            });
        }
        if header.kind == FrameKind::Close {
            self.wires[wire].is_closed = true;
            return Ok(None);
        }
        let mut numbers = rings.clone();
        let found = numbers.find(|ring| self.rings[*ring].spec.ring == header.ring);
        let ring = found.ok_or(FrameError::Ring {
            ring: header.ring,
            rings: rings.len(),
        })?;
        match header.kind {
            FrameKind::Credit => self.rings[ring].take_credit(header)?,
            _ => self.rings[ring].check_tokens(header)?,
        }
        Ok(Some(ring))
    }

    /// Reads what is missing of a payload, and the next header with it.
    fn read_payload(
        &mut self,
        index: usize,
        mut incoming: Incoming,
        memory: &mut impl RingMemory,
    ) -> Result<bool, FrameError> {
        let whole = incoming.header.bytes as usize;
        let missing = whole - incoming.done;
        let wire = &mut self.wires[index];
        let read = match incoming.ring {
            Some(ring) => {
                let place = memory.place(ring, self.rings[ring].published, whole);
                let mut places = [
                    IoSliceMut::new(&mut place[incoming.done..]),
                    IoSliceMut::new(&mut wire.header),
                ];
                wire.connection.read_now(&mut places)
            }
            None => {
                let part = missing.min(SCRATCH_BYTES);
                let mut place = [IoSliceMut::new(&mut self.scratch[..part])];
                wire.connection.read_now(&mut place)
            }
        };
        let have = (HEADER_BYTES + incoming.done) as u64;
        let Some(bytes) = read_bytes(wire, read, have, (HEADER_BYTES + whole) as u64)? else {
            return Ok(false);
        };
        incoming.done += bytes.min(missing);
        wire.header_bytes = bytes.saturating_sub(missing);
        wire.incoming = Some(incoming);
        Ok(true)
    }

    /// All of a frame's payload is there.
    fn complete(
        &mut self,
        wire: usize,
        incoming: Incoming,
        memory: &mut impl RingMemory,
    ) -> Result<(), FrameError> {
        self.wires[wire].incoming = None;
        let Some(ring) = incoming.ring else {
            return Ok(());
        };
        let header = incoming.header;
        if self.checks_payloads {
            let published = self.rings[ring].published;
            let payload = memory.place(ring, published, header.bytes as usize);
            header.check(incoming.sum, sum_of(payload))?;
        }
        let ring = &mut self.rings[ring];
        ring.published = header.count;
        if !ring.spec.sends.is_empty() {
            ring.next_send = (ring.next_send + 1) % ring.spec.sends.len();
        }
        Ok(())
    }
}

/// What a read has got: `None` if nothing, or if the other side has ended the connection between two frames.
fn read_bytes(
    wire: &mut Wire,
    read: io::Result<Option<usize>>,
    have: u64,
    whole: u64,
) -> Result<Option<usize>, FrameError> {
    match read {
        Err(error)
            if error
                .get_ref()
                .is_some_and(|inner| inner.is::<rustls::Error>()) =>
        {
            wire.is_open = false;
            let why = error.to_string();
            Err(FrameError::Tls { why })
        }
        Ok(Some(0)) | Err(_) => {
            wire.is_open = false;
            match have {
                0 => Ok(None),
                found => Err(FrameError::Cut {
                    found,
                    expected: whole,
                }),
            }
        }
        Ok(read) => Ok(read),
    }
}

impl Ring {
    /// Whether the sender may have no place left that it knows of, and a credit is owed to it.
    fn needs_credit(&self) -> bool {
        let blocks_come = self.published.div_ceil(self.spec.block_tokens);
        self.released > self.credited && blocks_come - self.credited >= self.spec.blocks
    }

    /// Whether the sender has not been told of many places that are free.
    fn owes_much(&self) -> bool {
        let blocks = self.released - self.credited;
        let block_bytes = self.spec.block_tokens * self.spec.token_bytes;
        2 * blocks >= self.spec.blocks || blocks * block_bytes >= CREDIT_BYTES
    }

    /// Whether tokens are what may come next: the rest of a block at most, in a place that was released.
    fn check_tokens(&self, header: &FrameHeader) -> Result<(), FrameError> {
        let spec = &self.spec;
        let block = self.published / spec.block_tokens;
        let block_end = (block + 1) * spec.block_tokens;
        let (least, most) = match spec.sends.get(self.next_send) {
            Some(tokens) => (self.published + tokens, self.published + tokens),
            None => (self.published + 1, block_end),
        };
        let has_place = block < self.released + spec.blocks;
        let most = if has_place { most } else { self.published };
        if !(least..=most).contains(&header.count) {
            return Err(FrameError::Count {
                ring: header.ring,
                before: self.published,
                count: header.count,
                most,
            });
        }
        let tokens = header.count - self.published;
        let expected = tokens * spec.token_bytes;
        if u64::from(header.bytes) != expected {
            return Err(FrameError::Bytes {
                ring: header.ring,
                tokens,
                found: header.bytes.into(),
                expected,
            });
        }
        Ok(())
    }

    fn take_credit(&mut self, header: &FrameHeader) -> Result<(), FrameError> {
        let most = self.published / self.spec.block_tokens;
        if header.count <= self.released || header.count > most {
            return Err(FrameError::Count {
                ring: header.ring,
                before: self.released,
                count: header.count,
                most,
            });
        }
        self.released = header.count;
        Ok(())
    }
}
