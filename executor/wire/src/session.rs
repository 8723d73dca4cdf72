//! The TLS of one connection behind its handshake: plaintext in places on one side, bytes of a socket on the other. Sockets are read and
//! written in pieces of several records, from and into buffers that are there from the beginning; nothing is allocated.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::ops::Range;

use rustls::Error;

use crate::pending::Pending;
use crate::records::{Found, HEADER_BYTES, MAX_RECORD_BYTES, RECORD_BYTES, RESERVE_BYTES, Records};

/// Records that are read at a time, and that are written at a time: a receiver decrypts some while the next are encrypted.
const INCOMING_RECORDS: usize = 8;
const OUTGOING_RECORDS: usize = 2;

/// The TLS of a connection.
pub(crate) struct TlsSession {
    records: Records,
    /// Records that have come.
    incoming: Pending,
    /// Where plaintext is in the memory of `incoming` that had no place yet. Nothing is read from the socket before it has.
    opened: Range<usize>,
    /// Records that the socket has not taken yet.
    outgoing: Pending,
    /// The other side has said that it sends nothing more.
    is_closed: bool,
    /// The other side has sent what it must not: nothing follows.
    is_failed: bool,
    /// The last read has found nothing more, here or in the socket.
    is_drained: bool,
}

impl std::fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsSession(..)")
    }
}

impl TlsSession {
    /// Goes on behind a handshake, with which some plaintext may have come, and a part of a record.
    pub(crate) fn new(records: Records, opened: &[u8], part: &[u8]) -> Self {
        let buffer_bytes = INCOMING_RECORDS * MAX_RECORD_BYTES;
        let mut incoming = Pending::new(buffer_bytes.max(opened.len() + part.len()));
        incoming.bytes[..opened.len()].copy_from_slice(opened);
        incoming.start = opened.len();
        incoming.end = opened.len() + part.len();
        incoming.waiting().copy_from_slice(part);
        Self {
            records,
            incoming,
            opened: 0..opened.len(),
            outgoing: Pending::new(OUTGOING_RECORDS * MAX_RECORD_BYTES + RESERVE_BYTES),
            is_closed: false,
            is_failed: false,
            is_drained: false,
        }
    }

    /// Plaintext that is there now, into places in a row, like [`read_now`](crate::socket::read_now): `None` if there is none, 0 bytes
    /// if there will never be any more.
    ///
    /// # Errors
    /// What the system says, or bytes that are not what the other side has sent.
    pub(crate) fn read_now(
        &mut self,
        socket: &TcpStream,
        places: &mut [IoSliceMut<'_>],
    ) -> io::Result<Option<usize>> {
        self.is_drained = false;
        let wanted: usize = places.iter().map(|place| place.len()).sum();
        let mut filled = 0;
        loop {
            let taken = fill(places, filled, &self.incoming.bytes[self.opened.clone()]);
            self.opened.start += taken;
            filled += taken;
            if filled == wanted || self.is_closed {
                return Ok(Some(filled));
            }
            if self.open_next(socket)? {
                continue;
            }

            if filled > 0 {
                return Ok(Some(filled));
            }
            match self.incoming.read(socket, MAX_RECORD_BYTES)? {
                Some(0) => return Ok(Some(0)),
                Some(_) => {}
                None => {
                    self.is_drained = true;
                    return Ok(None);
                }
            }
        }
    }

    /// Opens the next record, if it is there as a whole; whether it was. All plaintext before it has been taken.
    fn open_next(&mut self, socket: &TcpStream) -> io::Result<bool> {
        if self.is_failed {
            return Err(failed(Error::General("TLS has failed before".to_owned())));
        }
        let plaintext_start = self.incoming.start + HEADER_BYTES;
        match self.records.open_first(self.incoming.waiting()) {
            Ok(Found::Part) => Ok(false),
            Ok(Found::Plaintext { record, bytes }) => {
                self.opened = plaintext_start..plaintext_start + bytes;
                self.incoming.consume(record);
                Ok(true)
            }
            Ok(Found::Message { record }) => {
                self.incoming.consume(record);
                Ok(true)
            }
            Ok(Found::Closed) => {
                self.is_closed = true;
                Ok(true)
            }
            Err(error) => {
                self.is_failed = true;
                self.send_alert(socket, &error);
                Err(failed(error))
            }
        }
    }

    /// Takes as much as there is room for, like [`write_now`](crate::socket::write_now): `None` if that is nothing. What it has taken
    /// may still wait here: see [`Self::has_unsent`].
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn write_now(
        &mut self,
        socket: &TcpStream,
        parts: &[IoSlice<'_>],
    ) -> io::Result<Option<usize>> {
        if !self.outgoing.write(socket)? {
            return Ok(None);
        }
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        let mut taken = 0;
        while taken < whole {
            let change = self.records.change_keys_if_due(self.outgoing.room());
            self.outgoing.end += change.map_err(failed)?;

            // Whole records, but for the last: a short one costs as much time.
            let room = self.outgoing.room();
            let bytes = RECORD_BYTES.min(whole - taken);
            if Records::plaintext_room(room.len()) < bytes {
                break;
            }
            gather(parts, taken, &mut room[HEADER_BYTES..HEADER_BYTES + bytes]);
            self.outgoing.end += self.records.seal(room, bytes).map_err(failed)?;
            taken += bytes;
        }
        self.outgoing.write(socket)?;
        Ok(Some(taken))
    }

    /// Whether the socket has yet to take something.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether something may be here that the socket does not show any more.
    pub(crate) fn has_unread(&self) -> bool {
        !self.opened.is_empty() || !self.is_drained && !self.incoming.is_empty()
    }

    /// Tells the other side what it has done wrong, if the socket takes that now.
    #[cold]
    fn send_alert(&mut self, socket: &TcpStream, error: &Error) {
        let sealed = self.records.seal_alert(error, self.outgoing.room());
        self.outgoing.end += sealed.unwrap_or(0);
        let _ = self.outgoing.write(socket);
    }
}

/// Copies bytes out of parts in a row, from the one with number `first` on; there are as many as `to` takes.
fn gather(parts: &[IoSlice<'_>], mut first: usize, mut to: &mut [u8]) {
    for part in parts {
        if first >= part.len() {
            first -= part.len();
            continue;
        }
        let count = to.len().min(part.len() - first);
        let (here, rest) = to.split_at_mut(count);
        here.copy_from_slice(&part[first..first + count]);
        to = rest;
        first = 0;
    }
}

/// Puts bytes into places in a row, behind what is there; how many had room.
pub(crate) fn fill(places: &mut [IoSliceMut<'_>], mut filled: usize, mut bytes: &[u8]) -> usize {
    let mut placed = 0;
    for place in places {
        if filled >= place.len() {
            filled -= place.len();
            continue;
        }
        let count = bytes.len().min(place.len() - filled);
        place[filled..filled + count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        placed += count;
        filled = 0;
    }
    placed
}

/// An error of rustls among those of the system.
pub(crate) fn failed(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{IpAddr, Ipv4Addr, TcpListener};
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::event::PollFlags;
    use rustls::client::UnbufferedClientConnection;
    use rustls::server::UnbufferedServerConnection;
    use rustls::{AlertDescription, ClientConnection, Connection, ServerConnection};

    use super::*;
    use crate::socket::{Deadline, wait_ready};
    use crate::testing::{Authority, Flaw};
    use crate::tls::Tls;
    use crate::tls_handshake::TlsHandshake;

    /// Makes what must not come from a record that may.
    type MakeWrong = fn(&[u8]) -> Vec<u8>;
    /// A session with its socket.
    type End = (TlsSession, TcpStream);

    /// A peer whose records are rustls's own.
    struct StockPeer {
        conn: Connection,
        sock: TcpStream,
    }

    impl StockPeer {
        fn greeted(conn: Connection, sock: TcpStream) -> Self {
            let mut peer = Self { conn, sock };
            peer.conn.complete_io(&mut peer.sock).expect("known");
            peer
        }
    }

    impl Read for StockPeer {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            loop {
                match self.conn.reader().read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                }
                self.conn.read_tls(&mut self.sock)?;
                let processed = self.conn.process_new_packets();
                // Also what it says of an error.
                self.flush()?;
                processed.map_err(failed)?;
            }
        }
    }

    impl Write for StockPeer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let written = self.conn.writer().write(bytes)?;
            self.flush()?;
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            while self.conn.wants_write() {
                self.conn.write_tls(&mut self.sock)?;
            }
            Ok(())
        }
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(10))
    }

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let dialed = TcpStream::connect(listener.local_addr().expect("an address"));
        let accepted = listener.accept().expect("accepted").0;
        (dialed.expect("connected"), accepted)
    }

    fn run(handshake: TlsHandshake, socket: TcpStream) -> End {
        socket.set_nonblocking(true).expect("set");
        let session = handshake.run(&socket, soon()).expect("known");
        (session, socket)
    }

    fn client(tls: &Tls, socket: TcpStream) -> End {
        let name = Tls::name_of(IpAddr::from(Ipv4Addr::LOCALHOST));
        let connection = UnbufferedClientConnection::new(tls.client_config(), name);
        run(TlsHandshake::client(connection.expect("a client")), socket)
    }

    fn server(tls: &Tls, socket: TcpStream) -> End {
        let connection = UnbufferedServerConnection::new(tls.server_config());
        run(TlsHandshake::server(connection.expect("a server")), socket)
    }

    /// Both ends, after the handshake.
    fn pair() -> [End; 2] {
        let tls = Authority::new().tls(Flaw::None);
        let (dialed, accepted) = sockets();
        std::thread::scope(|scope| {
            let dialing = scope.spawn(|| client(&tls, dialed));
            let accepted = server(&tls, accepted);
            [dialing.join().expect("no panic"), accepted]
        })
    }

    /// A session on the given side, and a peer of rustls's own, which has tickets to give if it is the server.
    fn beside_stock_peer(is_client: bool) -> (End, StockPeer) {
        let tls = Authority::new().tls(Flaw::None);
        let (dialed, accepted) = sockets();
        std::thread::scope(|scope| {
            if is_client {
                let ours = scope.spawn(|| client(&tls, dialed));
                let mut config = (*tls.server_config()).clone();
                config.send_tls13_tickets = 3;
                let connection = ServerConnection::new(Arc::new(config)).expect("a server");
                let peer = StockPeer::greeted(Connection::from(connection), accepted);
                (ours.join().expect("no panic"), peer)
            } else {
                let ours = scope.spawn(|| server(&tls, accepted));
                let name = Tls::name_of(IpAddr::from(Ipv4Addr::LOCALHOST));
                let connection =
                    ClientConnection::new(tls.client_config(), name).expect("a client");
                let peer = StockPeer::greeted(Connection::from(connection), dialed);
                (ours.join().expect("no panic"), peer)
            }
        })
    }

    /// Writes all of it, in two parts.
    fn write_all(end: &mut End, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() || end.0.has_unsent() {
            let (first, second) = bytes[done..].split_at((bytes.len() - done) / 3);
            let parts = [IoSlice::new(first), IoSlice::new(second)];
            match end.0.write_now(&end.1, &parts).expect("taken") {
                Some(bytes) => done += bytes,
                None => wait_ready(end.1.as_fd(), PollFlags::OUT, soon()).expect("room"),
            }
        }
    }

    /// Reads so many bytes, into two places at a time.
    fn read_all(end: &mut End, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            let (first, second) = found[done..].split_at_mut((bytes - done) / 3);
            let mut places = [IoSliceMut::new(first), IoSliceMut::new(second)];
            match end.0.read_now(&end.1, &mut places).expect("ours") {
                Some(0) => panic!("it ends after {done} bytes"),
                Some(bytes) => done += bytes,
                None => wait_ready(end.1.as_fd(), PollFlags::IN, soon()).expect("it comes"),
            }
        }
        found
    }

    /// What the next read fails with.
    fn read_error(end: &mut End) -> Error {
        let mut byte = [0];
        loop {
            match end.0.read_now(&end.1, &mut [IoSliceMut::new(&mut byte)]) {
                Ok(None) => wait_ready(end.1.as_fd(), PollFlags::IN, soon()).expect("it comes"),
                Ok(found) => panic!("read {found:?}"),
                Err(error) => {
                    let inner = error.into_inner().expect("an error of TLS");
                    return *inner.downcast::<Error>().expect("an error of TLS");
                }
            }
        }
    }

    fn content(bytes: usize, seed: u8) -> Vec<u8> {
        let byte =
            |index: usize| (index as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed;
        (0..bytes).map(byte).collect()
    }

    /// Records of rustls's own are opened, and it opens ours, while both sides change keys, and tickets come.
    #[test]
    fn a_stock_peer_understands_and_is_understood() {
        const BYTES: usize = 300_000;
        for is_client in [true, false] {
            let (mut ours, mut peer) = beside_stock_peer(is_client);
            ours.0.records.wear_out_after(7);
            let there = std::thread::spawn(move || {
                for seed in 0..4 {
                    let mut found = vec![0; BYTES];
                    peer.read_exact(&mut found).expect("ours");
                    assert!(found == content(BYTES, seed));
                    peer.write_all(&found).expect("sent");
                    peer.conn.refresh_traffic_keys().expect("TLS 1.3");
                    peer.flush().expect("sent");
                }
                peer.conn.send_close_notify();
                peer.flush().expect("sent");
                peer
            });
            for seed in 0..4 {
                let sent = content(BYTES, seed);
                write_all(&mut ours, &sent);
                assert!(read_all(&mut ours, BYTES) == sent);
            }
            let _peer = there.join().expect("no panic");
            // The end may have come with what was read.
            let mut byte = [0];
            let end = loop {
                match ours.0.read_now(&ours.1, &mut [IoSliceMut::new(&mut byte)]) {
                    Ok(None) => {
                        wait_ready(ours.1.as_fd(), PollFlags::IN, soon()).expect("it comes")
                    }
                    end => break end.expect("a clean end"),
                }
            };
            assert_eq!(end, Some(0));
        }
    }

    #[test]
    fn keys_change_when_they_have_sealed_enough() {
        let [mut client, mut server] = pair();
        for end in [&mut client, &mut server] {
            end.0.records.wear_out_after(3);
        }
        for seed in 0..20 {
            let sent = content(20_000, seed);
            write_all(&mut client, &sent);
            assert!(read_all(&mut server, sent.len()) == sent);
            write_all(&mut server, &sent[..100]);
            assert!(read_all(&mut client, 100) == sent[..100]);
        }
    }

    /// Whoever sends what no side may send is told so, and nothing that follows is taken.
    #[test]
    fn what_must_not_come_ends_the_session() {
        let repeat = |record: &[u8]| record.to_vec();
        let change_last_bit = |record: &[u8]| {
            let mut changed = record.to_vec();
            *changed.last_mut().expect("a record") ^= 1;
            changed
        };
        let in_the_clear = |_: &[u8]| vec![22, 3, 3, 0, 5, 24, 0, 0, 1, 0];
        let too_long = |_: &[u8]| vec![23, 3, 3, 0xff, 0xff];
        let of_other_length = |record: &[u8]| {
            let mut changed = record.to_vec();
            changed[4] -= 1;
            changed
        };
        let too_short = |_: &[u8]| vec![23, 3, 3, 0, 3, 1, 2, 3];
        let cases: [(MakeWrong, AlertDescription); 6] = [
            (repeat, AlertDescription::BadRecordMac),
            (change_last_bit, AlertDescription::BadRecordMac),
            (in_the_clear, AlertDescription::UnexpectedMessage),
            (too_long, AlertDescription::RecordOverflow),
            (of_other_length, AlertDescription::BadRecordMac),
            (too_short, AlertDescription::BadRecordMac),
        ];
        for (make, alert) in cases {
            let (mut ours, mut peer) = beside_stock_peer(true);
            // What came with the handshake has been read, so that the next record is the one below.
            peer.write_all(&[1]).expect("sent");
            assert_eq!(read_all(&mut ours, 1), [1]);

            let mut record = Vec::new();
            peer.conn.writer().write_all(&[2]).expect("taken");
            peer.conn.write_tls(&mut record).expect("a record");
            let wrong = make(&record);
            if wrong == record {
                peer.sock.write_all(&record).expect("sent");
                assert_eq!(read_all(&mut ours, 1), [2]);
            }
            peer.sock.write_all(&wrong).expect("sent");
            let error = read_error(&mut ours);
            assert!(!matches!(error, Error::AlertReceived(_)), "{error}");
            assert!(matches!(read_error(&mut ours), Error::General(_)));

            let told = peer.read(&mut [0]).expect_err("an alert");
            let told = told.into_inner().expect("an error of TLS");
            let told = *told.downcast::<Error>().expect("an error of TLS");
            assert_eq!(told, Error::AlertReceived(alert), "{error}");
        }
    }

    /// Messages of the session that belong here are taken, and any others end it, whoever has sealed them.
    #[test]
    fn messages_that_do_not_belong_here_end_the_session() {
        const ALERT: u8 = 21;
        const HANDSHAKE: u8 = 22;
        const TICKET: [u8; 6] = [4, 0, 0, 2, 7, 7];
        let update = [24, 0, 0, 1, 0];
        let wrong: [(u8, &[u8]); 10] = [
            (HANDSHAKE, &[]),
            // Only servers give tickets.
            (HANDSHAKE, &TICKET),
            (HANDSHAKE, &[24, 0, 0, 1, 2]),
            (HANDSHAKE, &[24, 0, 0, 2, 0, 0]),
            (HANDSHAKE, &[24, 0, 0]),
            (HANDSHAKE, &[24, 0, 0, 1]),
            (HANDSHAKE, &[update, update].concat()),
            (HANDSHAKE, &[1, 0, 0, 0]),
            (ALERT, &[1]),
            (99, &[1, 2, 3]),
        ];
        for (kind, message) in wrong {
            let [mut client, mut server] = pair();
            send_message(&mut client, kind, message);
            let error = read_error(&mut server);
            assert!(matches!(error, Error::General(_)), "{message:?}: {error}");
        }

        let [mut client, mut server] = pair();
        send_message(&mut server, HANDSHAKE, &[TICKET, TICKET].concat());
        write_all(&mut server, b"behind tickets");
        assert_eq!(read_all(&mut client, 14), b"behind tickets");
    }

    fn send_message(end: &mut End, kind: u8, message: &[u8]) {
        let sealed = end
            .0
            .records
            .seal_message(kind, message, end.0.outgoing.room());
        end.0.outgoing.end += sealed.expect("sealed");
        assert!(end.0.outgoing.write(&end.1).expect("sent"), "there is room");
    }

    #[test]
    fn an_alert_is_an_error_and_its_name_is_known() {
        let (mut ours, mut peer) = beside_stock_peer(false);
        // Nothing that the peer expects: it says so.
        ours.1.set_nonblocking(false).expect("set");
        (&ours.1).write_all(&[23, 3, 3, 0, 20]).expect("sent");
        (&ours.1).write_all(&[7; 20]).expect("sent");
        ours.1.set_nonblocking(true).expect("set");
        peer.read(&mut [0]).expect_err("no record of ours");
        let error = read_error(&mut ours);
        assert_eq!(error, Error::AlertReceived(AlertDescription::BadRecordMac));
    }
}
