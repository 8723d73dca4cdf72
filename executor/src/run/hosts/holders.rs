//! The voters that could take over from this conductor: each is given the program, if it has another one, the state of every border
//! before that is proposed, and the tokens of sources that are mirrored as they come. A thread for each connects to it, again and
//! again if need be, gives it what it lacks, and hears what it holds. Nobody waits for one that does not answer for a lease.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zbmd_council::VoterId;
use zbmd_wire::connection::{Credentials, SharedConnection};
use zbmd_wire::handshake::{Hello, Purpose, dial};
use zbmd_wire::{Deadline, connect_by};

use super::border_copy::{BorderCopy, HolderMessage, ProgramAnswer};
use super::bundle_parts::RunBundle;
use super::input_log::{InputLog, MirroredTokens};
use super::message;
use super::seat::Waker;

/// From one try to connect to the next.
const DIAL_PAUSE: Duration = Duration::from_millis(20);
/// A voter that does not take up a connection for so long is not there.
const DIAL_LIMIT: Duration = Duration::from_secs(1);
/// TCP repeats a first packet that was lost after a second: it is sent anew sooner.
const CONNECT_LIMIT: Duration = Duration::from_millis(250);
/// One that takes nothing, or does not answer, for so long is connected to anew.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Tokens of mirrored sources are sent so often: as much is lost with the conductor's host at most. Then some of each, so that one
/// that always has more keeps nobody waiting.
const MIRROR_PAUSE: Duration = Duration::from_millis(2);
/// A voter that loads a program is asked so often whether it has.
const LOAD_PAUSE: Duration = Duration::from_millis(20);

/// What the voters are given, and what they hold.
pub(super) struct Holders {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<Copies>,
    changed: Condvar,
    /// Tokens of sources that are mirrored, if there are any.
    inputs: Option<Arc<InputLog>>,
    program: HolderProgram,
    hello: Hello,
    credentials: Credentials,
    waker: Waker,
}

/// The program of a run, and where who could take over gets it.
#[derive(Clone)]
pub(crate) struct HolderProgram {
    pub bundle: Arc<RunBundle>,
    /// Where this host listens for those that lack it.
    pub listening: SocketAddr,
}

#[derive(Default)]
struct Copies {
    /// In the order of their iterations.
    borders: VecDeque<Arc<BorderCopy>>,
    /// Those that are connected, and have the program.
    present: BTreeMap<VoterId, Present>,
    /// Another program, which the run is to go over to.
    next: Option<Arc<RunBundle>>,
    is_over: bool,
}

struct Present {
    connection: Arc<SharedConnection>,
    /// The iterations of the last border that it holds.
    held: Option<u64>,
    /// What has come of the program, by its number, that the run is to go over to.
    next: Option<(u64, Result<(), String>)>,
}

impl Copies {
    /// The program that a voter has yet to say of whether it can go on with it.
    fn next_for(&self, voter: VoterId) -> Option<&Arc<RunBundle>> {
        let next = self.next.as_ref()?;
        let answered = self.present.get(&voter)?.next.as_ref();
        let has_answered = answered.is_some_and(|(number, _)| *number == next.number());
        (!has_answered).then_some(next)
    }
}

/// What a voter is given next.
enum Gift {
    Program(Arc<RunBundle>),
    Border(Arc<BorderCopy>),
    Tokens(Vec<MirroredTokens>),
}

/// What a voter has been given over its connection.
struct Given {
    /// It has the program at work.
    has_program: bool,
    /// When it is asked again for a program that it loads.
    program_due: Instant,
    /// The iterations of the last border.
    border: Option<u64>,
    /// Of each source, the number of the token behind the last one.
    tokens: Vec<u64>,
    /// When the next ones are due.
    tokens_due: Instant,
}

impl Holders {
    /// Begins to connect to these voters, for a run of this program.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(
        own: VoterId,
        voters: &BTreeMap<VoterId, SocketAddr>,
        (run, program): (u128, HolderProgram),
        credentials: &Credentials,
        waker: Waker,
        inputs: Option<Arc<InputLog>>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            inputs,
            hello: Hello {
                purpose: Purpose::Border,
                run,
                epoch: 0,
                plan: program.bundle.number(),
                sender: own.0 as u32,
                receiver: 0,
            },
            program,
            credentials: credentials.clone(),
            waker,
        });
        for (&voter, &address) in voters {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("zbmd borders to {voter}"))
                .spawn(move || shared.serve(voter, address))?;
        }
        Ok(Self { shared })
    }

    /// The program of what they are given.
    pub(super) fn program(&self) -> &HolderProgram {
        &self.shared.program
    }

    /// Gives a border to all of them.
    pub(super) fn give(&self, border: BorderCopy) {
        self.shared.locked().borders.push_back(Arc::new(border));
        self.shared.changed.notify_all();
    }

    /// Has those that are connected load another program. What has come of it, once all of them have said it.
    pub(super) fn load(&self, bundle: &Arc<RunBundle>) -> Option<Result<(), String>> {
        let number = bundle.number();
        let mut copies = self.shared.locked();
        if copies.next.as_ref().map(|next| next.number()) != Some(number) {
            copies.next = Some(Arc::clone(bundle));
            self.shared.changed.notify_all();
        }
        let mut outcome = Some(Ok(()));
        for (voter, present) in &mut copies.present {
            match &present.next {
                Some((answered, Ok(()))) if *answered == number => {}
                Some((answered, Err(why))) if *answered == number => {
                    let why = format!("{voter}, which stands by: {why}");
                    // It is asked again if the program is offered again.
                    present.next = None;
                    copies.next = None;
                    return Some(Err(why));
                }
                _ => outcome = None,
            }
        }
        outcome
    }

    /// Nobody goes on from a border before this one any more.
    pub(super) fn forget_before(&self, iterations: u64) {
        let mut copies = self.shared.locked();
        copies
            .borders
            .retain(|border| border.iterations >= iterations);
        if let (Some(inputs), Some(first)) = (&self.shared.inputs, copies.borders.front()) {
            inputs.forget_before(&first.consumed);
        }
    }

    /// Whether all that are connected hold this border.
    pub(super) fn hold(&self, iterations: u64) -> bool {
        let copies = self.shared.locked();
        let mut present = copies.present.values();
        present.all(|present| present.held >= Some(iterations))
    }

    /// Those that hold this border.
    pub(super) fn holding(&self, iterations: u64) -> BTreeSet<VoterId> {
        let copies = self.shared.locked();
        let present = copies.present.iter();
        let holding = present.filter(|(_, present)| present.held >= Some(iterations));
        holding.map(|(voter, _)| *voter).collect()
    }

    /// Goes on without those that do not hold this border, until they are connected to anew.
    pub(super) fn leave_behind(&self, iterations: u64) {
        let mut copies = self.shared.locked();
        copies.present.retain(|_, present| {
            let holds = present.held >= Some(iterations);
            if !holds {
                present.connection.shutdown();
            }
            holds
        });
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        let mut copies = self.shared.locked();
        copies.is_over = true;
        for present in copies.present.values() {
            present.connection.shutdown();
        }
        drop(copies);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, Copies> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives one voter what it lacks, until the run is over.
    fn serve(&self, voter: VoterId, address: SocketAddr) {
        while !self.locked().is_over {
            if let Ok(connection) = self.dial(voter, address) {
                // Whatever ends it, it is connected to again.
                let _ = self.give_all(voter, &Arc::new(connection));
                self.locked().present.remove(&voter);
                self.waker.wake();
            }
            let copies = self.locked();
            let waited = self
                .changed
                .wait_timeout_while(copies, DIAL_PAUSE, |copies| !copies.is_over);
            drop(waited);
        }
    }

    fn dial(&self, voter: VoterId, address: SocketAddr) -> Result<SharedConnection, String> {
        let text = |error: io::Error| error.to_string();
        let socket = connect_by(address, Deadline::after(CONNECT_LIMIT)).map_err(text)?;
        let deadline = Deadline::after(DIAL_LIMIT);
        let hello = Hello {
            receiver: voter.0 as u32,
            ..self.hello
        };
        let connection = dial(socket, &hello, &self.credentials, deadline);
        let connection = connection.map_err(|error| error.to_string())?;
        SharedConnection::new(connection, ANSWER_LIMIT).map_err(text)
    }

    fn give_all(&self, voter: VoterId, connection: &Arc<SharedConnection>) -> io::Result<()> {
        let now = Instant::now();
        let mut given = Given {
            has_program: false,
            program_due: now,
            border: None,
            tokens: Vec::new(),
            tokens_due: now,
        };
        while let Some(gift) = self.next_gift(voter, &mut given) {
            let border = match gift {
                Gift::Border(border) => border,
                Gift::Program(bundle) => {
                    self.give_program(voter, connection, &bundle, &mut given)?;
                    continue;
                }
                Gift::Tokens(tokens) => {
                    message::send(&**connection, &HolderMessage::<()>::Tokens(tokens))?;
                    continue;
                }
            };
            message::send(&**connection, &HolderMessage::Border(&*border))?;
            let mut answer = [0; 8];
            (&**connection).read_exact(&mut answer)?;
            if u64::from_le_bytes(answer) != border.iterations {
                return Err(io::Error::other("it holds another border"));
            }
            given.border = Some(border.iterations);
            match self.locked().present.get_mut(&voter) {
                Some(present) => present.held = given.border,
                // It was left behind.
                None => return Ok(()),
            }
            self.waker.wake();
        }
        Ok(())
    }

    /// Asks a voter whether it has a program, which it else begins to load.
    fn give_program(
        &self,
        voter: VoterId,
        connection: &Arc<SharedConnection>,
        bundle: &RunBundle,
        given: &mut Given,
    ) -> io::Result<()> {
        let here = connection.local_addr()?.ip();
        let program = HolderMessage::<()>::Program {
            bundle: bundle.parts().clone(),
            from: SocketAddr::new(here, self.program.listening.port()),
        };
        message::send(&**connection, &program)?;
        let outcome = match message::receive(&**connection)? {
            ProgramAnswer::Loading => {
                given.program_due = Instant::now() + LOAD_PAUSE;
                return Ok(());
            }
            ProgramAnswer::Loaded => Ok(()),
            ProgramAnswer::Failed(why) => Err(why),
        };

        let mut copies = self.locked();
        if given.has_program {
            if let Some(present) = copies.present.get_mut(&voter) {
                present.next = Some((bundle.number(), outcome));
            }
        } else {
            outcome.map_err(io::Error::other)?;
            given.has_program = true;
            let present = Present {
                connection: Arc::clone(connection),
                held: None,
                next: None,
            };
            copies.present.insert(voter, present);
        }
        drop(copies);
        self.waker.wake();
        Ok(())
    }

    /// Waits for something that the voter lacks and is due; `None` when the run is over.
    fn next_gift(&self, voter: VoterId, given: &mut Given) -> Option<Gift> {
        loop {
            let mut due = None;
            if let Some(inputs) = self.inputs.as_ref().filter(|_| given.has_program) {
                if given.tokens_due <= Instant::now() {
                    given.tokens_due = Instant::now() + MIRROR_PAUSE;
                    let tokens = inputs.next_to_send(&mut given.tokens);
                    if !tokens.is_empty() {
                        return Some(Gift::Tokens(tokens));
                    }
                }
                due = Some(given.tokens_due);
            }

            let copies = self.locked();
            if copies.is_over {
                return None;
            }
            let mut borders = copies.borders.iter().filter(|_| given.has_program);
            if let Some(next) = borders.find(|border| Some(border.iterations) > given.border) {
                return Some(Gift::Border(Arc::clone(next)));
            }
            let lacked = match given.has_program {
                true => copies.next_for(voter),
                false => Some(&self.program.bundle),
            };
            if let Some(lacked) = lacked {
                if given.program_due <= Instant::now() {
                    return Some(Gift::Program(Arc::clone(lacked)));
                }
                due = Some(due.unwrap_or(given.program_due).min(given.program_due));
            }
            match due {
                Some(due) => {
                    let pause = due.saturating_duration_since(Instant::now());
                    drop(self.changed.wait_timeout(copies, pause));
                }
                None => drop(self.changed.wait(copies)),
            }
        }
    }
}
