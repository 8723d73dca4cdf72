//! Where a host's connections arrive: lets in who knows the token, hands wires to the workers that wait for them, and
//! orders to whoever serves a conductor. Connections of epochs that are over are refused and counted.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zbmd_wire::Deadline;
use zbmd_wire::connection::{Connection, Credentials};
use zbmd_wire::error::Refusal;
use zbmd_wire::handshake::{Accepted, Purpose, accept};

/// A handshake that takes longer is given up.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(2);
/// Handshakes at a time; whoever comes while there are so many is let go at once.
const MAX_HANDSHAKES: usize = 64;
/// Wires that nobody has taken yet, at most.
const MAX_WAITING: usize = 4096;
/// How often a worker that waits for a wire looks whether the epoch was stopped.
const LOOK: Duration = Duration::from_millis(5);

/// Which wire a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WireKey {
    pub epoch: u64,
    pub sender: u32,
    pub receiver: u32,
}

/// The run that a host takes part in now.
#[derive(Clone, Copy, Debug, Default)]
struct Present {
    /// None: then no wire is let in.
    run: Option<u128>,
    /// Earlier ones are over.
    epoch: u64,
    /// Of the epoch, once it is known.
    plan: Option<u64>,
}

/// Who is let in besides wires, and who answers them.
#[derive(Clone)]
pub(crate) struct Callers {
    /// Conductors, of which an agent serves one at a time, agents that join a run, agents that lack a bundle, or whoever measures
    /// the network, which would disturb a run.
    pub purpose: Purpose,
    /// Takes their connections.
    pub taker: Sender<Accepted>,
}

#[derive(Default)]
struct Board {
    present: Present,
    waiting: BTreeMap<WireKey, (u64, Connection)>,
    /// Who is let in besides wires.
    callers: Vec<Callers>,
    /// This host serves a conductor.
    is_busy: bool,
}

/// The place where a host's connections arrive.
pub(crate) struct Switchboard {
    board: Mutex<Board>,
    arrived: Condvar,
    address: SocketAddr,
    handshakes: AtomicUsize,
    /// Connections that were refused because their epoch or run is over.
    fenced: AtomicU64,
}

impl Switchboard {
    /// Listens. Besides wires, `callers` are let in.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn listen(
        address: SocketAddr,
        credentials: &Credentials,
        callers: Vec<Callers>,
    ) -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind(address)?;
        let board = Board {
            callers,
            ..Board::default()
        };
        let switchboard = Arc::new(Self {
            board: Mutex::new(board),
            arrived: Condvar::new(),
            address: listener.local_addr()?,
            handshakes: AtomicUsize::new(0),
            fenced: AtomicU64::new(0),
        });
        let board = Arc::downgrade(&switchboard);
        let credentials = Arc::new(credentials.clone());
        std::thread::Builder::new()
            .name("zbmd switchboard".to_owned())
            .spawn(move || {
                for socket in listener.incoming() {
                    // It ends with the switchboard, whose end connects once more.
                    let Some(board) = board.upgrade() else { return };
                    if let Ok(socket) = socket {
                        board.answer(socket, &credentials);
                    }
                }
            })?;
        Ok(switchboard)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that were refused because their run or epoch is over.
    pub(crate) fn fenced(&self) -> u64 {
        self.fenced.load(Ordering::Relaxed)
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on only wires of this run and epoch are let in, and of epochs to come.
    pub(crate) fn begin(&self, run: u128, epoch: u64, plan: Option<u64>) {
        let mut board = self.board();
        board.present = Present {
            run: Some(run),
            epoch,
            plan,
        };
        board.waiting.retain(|key, _| key.epoch >= epoch);
    }

    /// No wire is let in any more, and another conductor is.
    pub(crate) fn end(&self) {
        let mut board = self.board();
        board.present = Present::default();
        board.is_busy = false;
        board.waiting.clear();
    }

    /// Takes the wire that a worker waits for.
    ///
    /// # Errors
    /// It does not come in time, the epoch was stopped, or its sender runs another plan.
    pub(crate) fn take(
        &self,
        key: WireKey,
        deadline: Deadline,
        is_stopped: impl Fn() -> bool,
    ) -> Result<Connection, String> {
        let mut board = self.board();
        loop {
            let plan = board.present.plan;
            if let Some((found, connection)) = board.waiting.remove(&key) {
                return match plan == Some(found) {
                    true => Ok(connection),
                    false => Err(format!(
                        "its plan is {found:016x}, this host's {:016x}: both must run the same bundle",
                        plan.unwrap_or(0)
                    )),
                };
            }
            if is_stopped() {
                return Err("the epoch was stopped".to_owned());
            }
            if deadline.left_ns() == Some(0) {
                return Err(format!(
                    "nobody has connected to {} for epoch {}: is the address that --host names reachable from there?",
                    self.address, key.epoch
                ));
            }
            let waited = self.arrived.wait_timeout(board, LOOK);
            board = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets a connection in, on a thread of its own: a dialer that says nothing keeps nobody waiting.
    fn answer(self: Arc<Self>, socket: TcpStream, credentials: &Arc<Credentials>) {
        if self.handshakes.fetch_add(1, Ordering::Relaxed) >= MAX_HANDSHAKES {
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let credentials = Arc::clone(credentials);
        let handshake = move || {
            // Whoever is refused was told why; the host itself goes on.
            if let Ok(accepted) = accept(socket, &credentials, Deadline::after(HANDSHAKE_LIMIT)) {
                self.admit(accepted);
            }
            self.handshakes.fetch_sub(1, Ordering::Relaxed);
        };
        // Without a thread the connection is closed.
        let _ = std::thread::Builder::new()
            .name("zbmd handshake".to_owned())
            .spawn(handshake);
    }

    fn admit(&self, accepted: Accepted) {
        let deadline = Deadline::after(HANDSHAKE_LIMIT);
        if accepted.hello.purpose != Purpose::Wire {
            return self.admit_caller(accepted, deadline);
        }
        if let Some(why) = self.refusal(&accepted) {
            if matches!(why, Refusal::Epoch | Refusal::Run) {
                self.fenced.fetch_add(1, Ordering::Relaxed);
            }
            return accepted.refuse(why, deadline);
        }

        let hello = accepted.hello;
        let key = WireKey {
            epoch: hello.epoch,
            sender: hello.sender,
            receiver: hello.receiver,
        };
        if let Ok(connection) = accepted.welcome(deadline) {
            let mut board = self.board();
            // It may be over by now.
            if board.present.run == Some(hello.run) && board.present.epoch <= hello.epoch {
                board.waiting.insert(key, (hello.plan, connection));
            }
            drop(board);
            self.arrived.notify_all();
        }
    }

    /// Lets in who is expected besides wires; voters have an address of their own.
    fn admit_caller(&self, accepted: Accepted, deadline: Deadline) {
        let purpose = accepted.hello.purpose;
        let mut board = self.board();
        let mut known_callers = board.callers.iter();
        let callers = known_callers.find(|callers| callers.purpose == purpose);
        let Some(callers) = callers.cloned() else {
            drop(board);
            return accepted.refuse(Refusal::Unknown, deadline);
        };
        let was_busy = match purpose {
            Purpose::Control => std::mem::replace(&mut board.is_busy, true),
            Purpose::Measure => board.is_busy,
            _ => false,
        };
        drop(board);
        if was_busy {
            return accepted.refuse(Refusal::Busy, deadline);
        }
        // Whoever takes it answers.
        let _ = callers.taker.send(accepted);
    }

    /// Nobody but wires is let in any more: whoever waits for callers is told so.
    pub(crate) fn refuse_callers(&self) {
        self.board().callers.clear();
    }

    /// Why a wire is not let in, if it is not.
    fn refusal(&self, accepted: &Accepted) -> Option<Refusal> {
        let hello = &accepted.hello;
        let board = self.board();
        let present = board.present;
        if present.run != Some(hello.run) {
            return Some(Refusal::Run);
        }
        if hello.epoch < present.epoch {
            return Some(Refusal::Epoch);
        }
        let is_present = hello.epoch == present.epoch;
        if is_present && present.plan.is_some_and(|plan| plan != hello.plan) {
            return Some(Refusal::Plan);
        }
        (board.waiting.len() >= MAX_WAITING).then_some(Refusal::Busy)
    }
}

impl Drop for Switchboard {
    fn drop(&mut self) {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        drop(TcpStream::connect_timeout(&address, LOOK));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use zbmd_wire::connect_by;
    use zbmd_wire::connection::Protection;
    use zbmd_wire::error::HandshakeError;
    use zbmd_wire::handshake::{Hello, dial};
    use zbmd_wire::token::Token;

    use super::*;

    const RUN: u128 = 77;
    const PLAN: u64 = 5;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(10))
    }

    fn hello(run: u128, epoch: u64, plan: u64) -> Hello {
        Hello {
            purpose: Purpose::Wire,
            run,
            epoch,
            plan,
            sender: 1,
            receiver: 2,
        }
    }

    #[test]
    fn wires_of_other_runs_epochs_and_plans_are_refused() {
        let token = Token::of(b"a token of the test");
        let credentials = Credentials {
            token,
            protection: Protection::Loopback,
        };
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let switchboard = Switchboard::listen(here, &credentials, Vec::new()).expect("it listens");
        switchboard.begin(RUN, 3, Some(PLAN));
        let call = |hello: &Hello| {
            let socket = connect_by(switchboard.address(), soon()).expect("connected");
            dial(socket, hello, &credentials, soon())
        };
        for (hello, expected) in [
            (hello(RUN + 1, 3, PLAN), Refusal::Run),
            (hello(RUN, 2, PLAN), Refusal::Epoch),
            (hello(RUN, 3, PLAN + 1), Refusal::Plan),
        ] {
            let error = call(&hello).expect_err("refused");
            let is_expected =
                matches!(error, HandshakeError::Refused { why, .. } if why == expected);
            assert!(is_expected, "{error}");
        }
        assert_eq!(switchboard.fenced(), 2);

        let key = WireKey {
            epoch: 3,
            sender: 1,
            receiver: 2,
        };
        let _kept = call(&hello(RUN, 3, PLAN)).expect("welcome");
        switchboard
            .take(key, soon(), || false)
            .expect("it is there");
        // One for the next epoch waits until that is there.
        let _kept = call(&hello(RUN, 4, PLAN)).expect("welcome");
        let later = WireKey { epoch: 4, ..key };
        switchboard.begin(RUN, 4, Some(PLAN));
        switchboard
            .take(later, soon(), || false)
            .expect("it is there");
        switchboard
            .take(later, soon(), || true)
            .expect_err("stopped");
    }
}
