//! How fast the network from one host to another is, measured over a connection like those of wires: with the same protection, and
//! with both sides asleep until something comes.
//!
//! A connection for [`Purpose::Measure`] carries requests of 64 bytes from the side that has dialed, and an answer of 64 bytes to
//! each:
//!
//! | byte 0 | request | what follows it | what follows the answer |
//! |---|---|---|---|
//! | 1 | echo | | |
//! | 2 | take as many bytes as bytes 8 to 16 say | these bytes | |
//! | 3 | give as many | | these bytes |
//! | 4 | describe yourself, with GPUs if bytes 8 to 16 say 1 | | as many bytes as bytes 8 to 16 of the answer say |
//! | 5 | measure the way to the address in bytes 8 to 26 | | |
//!
//! The answer repeats byte 0. That to a measurement has the latency and the rate in bytes 8 to 24; if it could not be done, byte 0
//! of the answer is 255, and the reason follows, as long as bytes 8 to 16 say.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::connection::{Connection, Credentials};
use crate::error::LinkError;
use crate::handshake::{Hello, Purpose, dial};
use crate::socket::{Deadline, connect_when_started, monotonic_ns};

/// Bytes of a request, and of an answer.
const MESSAGE_BYTES: usize = 64;
/// Bytes that are sent and read at a time.
const PIECE_BYTES: usize = 64 << 10;
/// Most bytes of one request.
const MAX_BYTES: u64 = 1 << 30;
/// Longest description, and longest reason.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// Round trips that are measured, behind some that are not.
const ROUND_TRIPS: usize = 200;
const FIRST_ROUND_TRIPS: usize = 20;
/// The first transfer; each is twice the one before, until one takes long enough to be measured.
const FIRST_BYTES: u64 = 1 << 20;
const LONG_ENOUGH_NS: u64 = 50_000_000;
/// Connecting, with its handshake.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// An agent that is about to start is waited for so long.
const START_LIMIT: Duration = Duration::from_secs(2);
/// One message, or one piece of a transfer.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// Another host measures the way to a third one.
const MEASURE_LIMIT: Duration = Duration::from_secs(60);
/// Whoever asks for nothing for so long is let go.
const IDLE_LIMIT: Duration = Duration::from_secs(300);

const ECHO: u8 = 1;
const TAKE: u8 = 2;
const GIVE: u8 = 3;
const DESCRIBE: u8 = 4;
const MEASURE: u8 = 5;
const FAILED: u8 = 255;

/// A way from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpeed {
    /// Half a round trip of 64 bytes, the median of many, in nanoseconds.
    pub latency_ns: u64,
    /// Bytes per second of a transfer that takes some 50 ms.
    pub bytes_per_s: u64,
}

/// A request, or an answer.
type Message = [u8; MESSAGE_BYTES];

fn message(kind: u8, number: u64) -> Message {
    let mut message = [0; MESSAGE_BYTES];
    message[0] = kind;
    message[8..16].copy_from_slice(&number.to_le_bytes());
    message
}

fn number_at(message: &Message, from: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| message[from + i]))
}

fn measure_request(address: SocketAddr) -> Message {
    let mut message = message(MEASURE, 0);
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    message[8..24].copy_from_slice(&ip.octets());
    message[24..26].copy_from_slice(&address.port().to_le_bytes());
    message
}

fn address_of(request: &Message) -> SocketAddr {
    let ip = Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| request[8 + i]));
    let port = u16::from_le_bytes([request[24], request[25]]);
    SocketAddr::new(ip.to_canonical(), port)
}

/// Whoever asks: a connection to an agent that serves no run.
#[derive(Debug)]
pub struct LinkSpeedClient {
    connection: Connection,
    address: SocketAddr,
}

impl LinkSpeedClient {
    /// Connects to the agent at an address. One that has yet to start is waited for a while.
    ///
    /// # Errors
    /// It is not there, does not know the token, or serves a run.
    pub fn dial(address: SocketAddr, credentials: &Credentials) -> Result<Self, LinkError> {
        let connected = connect_when_started(address, DIAL_LIMIT, Deadline::after(START_LIMIT));
        let (socket, deadline) =
            connected.map_err(|source| LinkError::NotThere { address, source })?;
        let hello = Hello {
            purpose: Purpose::Measure,
            run: 0,
            epoch: 0,
            plan: 0,
            sender: 0,
            receiver: 0,
        };
        let connection = dial(socket, &hello, credentials, deadline)?;
        Ok(Self {
            connection,
            address,
        })
    }

    /// What the agent says of its host, with its GPUs or without.
    ///
    /// # Errors
    /// The connection, or an answer of another version.
    pub fn description(&mut self, with_gpus: bool) -> Result<Vec<u8>, LinkError> {
        let answer = self.ask(&message(DESCRIBE, with_gpus.into()), STEP_LIMIT)?;
        self.read_text(number_at(&answer, 8))
    }

    /// The way from this host to the agent's.
    ///
    /// # Errors
    /// The connection, or an answer of another version.
    pub fn speed_there(&mut self) -> Result<LinkSpeed, LinkError> {
        self.speed(Self::send)
    }

    /// The way from the agent's host to this one.
    ///
    /// # Errors
    /// The connection, or an answer of another version.
    pub fn speed_back(&mut self) -> Result<LinkSpeed, LinkError> {
        self.speed(Self::receive)
    }

    /// The way from the agent's host to that of another agent.
    ///
    /// # Errors
    /// The connection, or the reason why the agent cannot measure it.
    pub fn speed_to(&mut self, other: SocketAddr) -> Result<LinkSpeed, LinkError> {
        let answer = self.ask(&measure_request(other), MEASURE_LIMIT)?;
        Ok(LinkSpeed {
            latency_ns: number_at(&answer, 8),
            bytes_per_s: number_at(&answer, 16),
        })
    }

    fn speed(
        &mut self,
        mut transfer: impl FnMut(&mut Self, u64) -> Result<(), LinkError>,
    ) -> Result<LinkSpeed, LinkError> {
        let mut round_trips_ns = Vec::with_capacity(ROUND_TRIPS);
        for index in 0..FIRST_ROUND_TRIPS + ROUND_TRIPS {
            let begun_ns = monotonic_ns();
            self.ask(&message(ECHO, 0), STEP_LIMIT)?;
            if index >= FIRST_ROUND_TRIPS {
                round_trips_ns.push(monotonic_ns() - begun_ns);
            }
        }
        round_trips_ns.sort_unstable();
        let round_trip_ns = round_trips_ns[ROUND_TRIPS / 2];

        let mut bytes = FIRST_BYTES;
        loop {
            let begun_ns = monotonic_ns();
            transfer(self, bytes)?;
            let elapsed_ns = (monotonic_ns() - begun_ns).max(1);
            if elapsed_ns < LONG_ENOUGH_NS && bytes < MAX_BYTES {
                bytes *= 2;
                continue;
            }
            let transfer_ns = elapsed_ns.saturating_sub(round_trip_ns).max(1);
            let rate = u128::from(bytes) * 1_000_000_000 / u128::from(transfer_ns);
            return Ok(LinkSpeed {
                latency_ns: (round_trip_ns / 2).max(1),
                bytes_per_s: u64::try_from(rate).unwrap_or(u64::MAX).max(1),
            });
        }
    }

    fn send(&mut self, bytes: u64) -> Result<(), LinkError> {
        let request = message(TAKE, bytes);
        write(&mut self.connection, &request).map_err(self.cut())?;
        write_zeros(&mut self.connection, bytes).map_err(self.cut())?;
        self.read_answer(&request, STEP_LIMIT).map(drop)
    }

    fn receive(&mut self, bytes: u64) -> Result<(), LinkError> {
        self.ask(&message(GIVE, bytes), STEP_LIMIT)?;
        read_away(&mut self.connection, bytes).map_err(self.cut())
    }

    fn ask(&mut self, request: &Message, limit: Duration) -> Result<Message, LinkError> {
        write(&mut self.connection, request).map_err(self.cut())?;
        self.read_answer(request, limit)
    }

    fn read_answer(&mut self, request: &Message, limit: Duration) -> Result<Message, LinkError> {
        let answer = read(&mut self.connection, limit).map_err(self.cut())?;
        let address = self.address;
        match answer[0] {
            kind if kind == request[0] => Ok(answer),
            FAILED => {
                let text = self.read_text(number_at(&answer, 8))?;
                let why = String::from_utf8_lossy(&text).into_owned();
                Err(LinkError::Refused { address, why })
            }
            found => Err(LinkError::Answer {
                address,
                found,
                expected: request[0],
            }),
        }
    }

    fn read_text(&mut self, bytes: u64) -> Result<Vec<u8>, LinkError> {
        if bytes > MAX_TEXT_BYTES {
            return Err(LinkError::Long {
                address: self.address,
                bytes,
                most: MAX_TEXT_BYTES,
            });
        }
        let mut text = vec![0; bytes as usize];
        let deadline = Deadline::after(STEP_LIMIT);
        let read = self.connection.read_exact_by(&mut text, deadline);
        read.map_err(|(_, source)| self.cut()(source))?;
        Ok(text)
    }

    fn cut(&self) -> impl FnOnce(io::Error) -> LinkError + use<> {
        let address = self.address;
        move |source| LinkError::Cut { address, source }
    }
}

/// Answers the requests that come over a connection, until whoever asks has no more. `describe` makes what this host says of
/// itself, with its GPUs or without, and `credentials` are those that it shows to a host that it measures the way to.
///
/// # Errors
/// What the system says, or requests that are none of ours.
pub fn serve(
    mut connection: Connection,
    describe: impl Fn(bool) -> Vec<u8>,
    credentials: &Credentials,
) -> io::Result<()> {
    loop {
        let request = match read(&mut connection, IDLE_LIMIT) {
            Ok(request) => request,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        };
        let number = number_at(&request, 8);

        match request[0] {
            ECHO => write(&mut connection, &request)?,
            TAKE if number <= MAX_BYTES => {
                read_away(&mut connection, number)?;
                write(&mut connection, &request)?;
            }
            GIVE if number <= MAX_BYTES => {
                write(&mut connection, &request)?;
                write_zeros(&mut connection, number)?;
            }
            DESCRIBE if number <= 1 => {
                write_text(&mut connection, DESCRIBE, &describe(number == 1))?;
            }
            MEASURE => match measured(address_of(&request), credentials) {
                Ok(speed) => {
                    let mut answer = message(MEASURE, speed.latency_ns);
                    answer[16..24].copy_from_slice(&speed.bytes_per_s.to_le_bytes());
                    write(&mut connection, &answer)?;
                }
                Err(error) => {
                    write_text(&mut connection, FAILED, error.to_string().as_bytes())?;
                }
            },
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn measured(address: SocketAddr, credentials: &Credentials) -> Result<LinkSpeed, LinkError> {
    let checked = credentials.protection.check(address);
    checked.map_err(|error| LinkError::Refused {
        address,
        why: error.to_string(),
    })?;
    LinkSpeedClient::dial(address, credentials)?.speed_there()
}

fn read(connection: &mut Connection, limit: Duration) -> io::Result<Message> {
    let mut message = [0; MESSAGE_BYTES];
    let read = connection.read_exact_by(&mut message, Deadline::after(limit));
    read.map_err(|(_, error)| error)?;
    Ok(message)
}

fn write(connection: &mut Connection, message: &Message) -> io::Result<()> {
    connection.write_all_by(message, Deadline::after(STEP_LIMIT))
}

fn write_text(connection: &mut Connection, kind: u8, text: &[u8]) -> io::Result<()> {
    write(connection, &message(kind, text.len() as u64))?;
    connection.write_all_by(text, Deadline::after(STEP_LIMIT))
}

fn write_zeros(connection: &mut Connection, bytes: u64) -> io::Result<()> {
    let piece = [0; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(PIECE_BYTES as u64);
        connection.write_all_by(&piece[..now as usize], Deadline::after(STEP_LIMIT))?;
        left -= now;
    }
    Ok(())
}

fn read_away(connection: &mut Connection, bytes: u64) -> io::Result<()> {
    let mut piece = [0; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let now = left.min(PIECE_BYTES as u64);
        let read =
            connection.read_exact_by(&mut piece[..now as usize], Deadline::after(STEP_LIMIT));
        read.map_err(|(_, error)| error)?;
        left -= now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::mpsc;

    use super::*;
    use crate::connection::Protection;
    use crate::handshake::accept;
    use crate::token::Token;

    fn describe(with_gpus: bool) -> Vec<u8> {
        match with_gpus {
            true => b"two devices and a GPU".to_vec(),
            false => b"two devices".to_vec(),
        }
    }

    fn credentials() -> Credentials {
        Credentials {
            token: Token::of(b"one secret of ours"),
            protection: Protection::Loopback,
        }
    }

    /// An agent that does this with each connection that it has let in.
    fn agent(answer: impl Fn(Connection) + Clone + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let answer = answer.clone();
                std::thread::spawn(move || {
                    let deadline = Deadline::after(STEP_LIMIT);
                    let accepted = accept(socket.expect("a socket"), &credentials(), deadline);
                    answer(accepted.expect("ours").welcome(deadline).expect("welcomed"));
                });
            }
        });
        address
    }

    fn well() -> SocketAddr {
        agent(|connection| {
            serve(connection, describe, &credentials()).expect("served");
        })
    }

    #[test]
    fn a_host_is_described_and_the_ways_to_it_are_measured() {
        let mut client = LinkSpeedClient::dial(well(), &credentials()).expect("there");
        for with_gpus in [false, true] {
            let told = client.description(with_gpus).expect("told");
            assert_eq!(told, describe(with_gpus));
        }

        let other = well();
        for speed in [
            client.speed_there(),
            client.speed_back(),
            client.speed_to(other),
        ] {
            let speed = speed.expect("measured");
            // Whatever else this computer does, loopback is no slower than that.
            assert!(
                (1..50_000_000).contains(&speed.latency_ns) && speed.bytes_per_s > 1_000_000,
                "{speed:?}"
            );
        }

        let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let error = client.speed_to(nobody).expect_err("nobody is there");
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        let elsewhere = SocketAddr::from(([10, 0, 0, 1], 7));
        let error = client.speed_to(elsewhere).expect_err("without TLS");
        assert!(error.to_string().contains("--tls-certificate"), "{error}");
        client.description(false).expect("it goes on");
    }

    #[test]
    fn what_no_agent_of_ours_answers_is_an_error() {
        let answers = |kind: u8, number: u64| {
            let address = agent(move |mut connection| {
                let _ = read(&mut connection, STEP_LIMIT);
                let _ = write(&mut connection, &message(kind, number));
            });
            let mut client = LinkSpeedClient::dial(address, &credentials()).expect("there");
            client.description(false).expect_err("nonsense")
        };

        assert!(matches!(
            answers(9, 0),
            LinkError::Answer {
                found: 9,
                expected: DESCRIBE,
                ..
            }
        ));
        for kind in [DESCRIBE, FAILED] {
            let error = answers(kind, u64::MAX);
            assert!(
                matches!(
                    error,
                    LinkError::Long {
                        bytes: u64::MAX,
                        ..
                    }
                ),
                "{error}"
            );
        }
        assert!(matches!(answers(DESCRIBE, 5), LinkError::Cut { .. }));
    }

    #[test]
    fn what_nobody_of_ours_asks_for_ends_the_connection() {
        for request in [
            message(0, 0),
            message(TAKE, MAX_BYTES + 1),
            message(GIVE, u64::MAX),
            message(DESCRIBE, 2),
        ] {
            let (tell, served) = mpsc::channel();
            let address = agent(move |connection| {
                let _ = tell.send(serve(connection, describe, &credentials()));
            });
            let mut client = LinkSpeedClient::dial(address, &credentials()).expect("there");
            let error = client.ask(&request, STEP_LIMIT).expect_err("ended");
            assert!(matches!(error, LinkError::Cut { .. }), "{error}");
            let error = served.recv().expect("told").expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        }
    }
}
