//! A voter at work: a thread with the [`Node`] and its [`Journal`], and authenticated connections to the other voters. The
//! connections are the wire's, with its tokens and TLS.
//!
//! Each voter listens at an address of its own, and connects to all others: from each voter to each there is one connection, in
//! one direction. What cannot be sent is lost, which the protocol makes up for; the voter's thread waits for nobody but its disk.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use zbmd_wire::connection::Credentials;
use zbmd_wire::handshake::Accepted;

use crate::VoterId;
use crate::decision::{Decided, Decision, Effect};
use crate::error::{JournalError, MemberError, MessageError, ProposeError};
use crate::journal::Journal;
use crate::links::{Links, listen};
use crate::message::Message;
use crate::node::{Applied, Node, Output, Settings};

/// Inputs that wait for the voter's thread are taken so many at a time before it writes.
const INPUTS_AT_A_TIME: usize = 64;

/// Nanoseconds of the clock that leases are measured by. It goes on while the computer sleeps: a lease must not.
pub fn lease_clock_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What a voter is started with.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// Which voter of which council.
    pub settings: Settings,
    /// Where each voter is reached, this one too.
    pub addresses: BTreeMap<VoterId, SocketAddr>,
    /// The voter's own folder.
    pub folder: PathBuf,
    /// What it shows to others, and asks of them.
    pub credentials: Credentials,
    /// Where connections of other voters go that are for borders of a run; they are refused if there is none.
    pub borders: Option<Sender<Accepted>>,
}

/// What a voter tells whoever started it. It is told on the voter's thread, which must not be kept waiting.
#[derive(Debug)]
pub enum MemberEvent {
    /// It may act as the conductor from now on, as long as [`Member::acts_until_ns`] says so.
    Leads {
        /// In this term.
        term: u64,
    },
    /// Another one leads, or nobody does.
    Follows {
        /// In this term.
        term: u64,
        /// Who leads.
        leader: Option<VoterId>,
    },
    /// Something has been decided.
    Applied(Applied),
    /// A message was refused.
    Refused(MessageError),
    /// It votes no more.
    Ended(JournalError),
}

/// An input of the voter's thread.
pub(crate) enum MemberInput {
    Message(Message),
    Propose(Decision, Sender<Result<u64, ProposeError>>),
    CanConduct(bool),
    Stop,
}

/// What others may know of the voter at any time.
#[derive(Default)]
struct Shared {
    /// End of the lease by [`lease_clock_ns`]; 0 for none.
    acts_until_ns: AtomicU64,
    /// When the leader was heard last by [`lease_clock_ns`]; 0 for never.
    leader_heard_ns: AtomicU64,
    /// The last entry that is in `decided`.
    decided_index: AtomicU64,
    decided: Mutex<Decided>,
}

impl Shared {
    fn decided(&self) -> MutexGuard<'_, Decided> {
        self.decided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, decided: &Decided) {
        *self.decided() = decided.clone();
        self.decided_index.store(decided.index, Ordering::Release);
    }
}

/// A voter that is at work until this is dropped.
pub struct Member {
    inputs: Sender<MemberInput>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl Member {
    /// Starts a voter: reads its journal, listens, and connects to the others.
    ///
    /// # Errors
    /// Settings or addresses that are no council's, a journal that cannot be gone on from, or what the system says.
    pub fn start(
        options: MemberOptions,
        listener: impl FnMut(MemberEvent) + Send + 'static,
    ) -> Result<Self, MemberError> {
        let MemberOptions {
            settings,
            addresses,
            folder,
            credentials,
            borders,
        } = options;
        settings.check()?;
        let find = |voter: &VoterId| {
            let address = addresses.get(voter).copied();
            address.ok_or(MemberError::NoAddress { voter: *voter })
        };
        for voter in &settings.voters {
            let checked = credentials.protection.check(find(voter)?);
            checked.map_err(|error| MemberError::Unprotected(error.to_string()))?;
        }
        let own_address = find(&settings.own)?;
        let (journal, recovered) = Journal::open(&folder, &settings)?;

        let (inputs, received) = mpsc::channel();
        let failed = |source| MemberError::Io {
            address: own_address,
            source,
        };
        let acceptor = listen(
            own_address,
            &settings,
            &credentials,
            inputs.clone(),
            borders,
        );
        let acceptor = acceptor.map_err(failed)?;
        let address = acceptor.address();
        let links = Links::start(&settings, &addresses, &credentials).map_err(failed)?;
        let node = Node::new(settings, recovered, lease_clock_ns())?;
        let shared = Arc::new(Shared::default());
        shared.publish(node.decided());
        let mut voter = VoterLoop {
            node,
            journal,
            links,
            shared: Arc::clone(&shared),
            listener: Box::new(listener),
            told: None,
        };
        let thread = std::thread::Builder::new()
            .name("zbmd council".to_owned())
            .spawn(move || {
                let result = voter.run(&received);
                // Whatever happens, it acts no more, and hears nobody.
                voter.shared.acts_until_ns.store(0, Ordering::Release);
                voter.shared.leader_heard_ns.store(0, Ordering::Release);
                if let Err(error) = result {
                    (voter.listener)(MemberEvent::Ended(error));
                }
                drop(acceptor);
            });
        Ok(Self {
            inputs,
            shared,
            thread: Some(thread.map_err(failed)?),
            address,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Until when this voter may act as the conductor, by [`lease_clock_ns`]; `None` if it may not now. To be asked right before
    /// each action.
    pub fn acts_until_ns(&self) -> Option<u64> {
        let until_ns = self.shared.acts_until_ns.load(Ordering::Acquire);
        (lease_clock_ns() < until_ns).then_some(until_ns)
    }

    /// Says at any time whether this voter may act as the conductor, also once this is dropped: then until its lease ends.
    pub fn lease(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || lease_clock_ns() < shared.acts_until_ns.load(Ordering::Acquire)
    }

    /// Says whether this process could conduct: see [`Node::set_can_conduct`].
    pub fn set_can_conduct(&self, can_conduct: bool) {
        let _ = self.inputs.send(MemberInput::CanConduct(can_conduct));
    }

    /// What has been decided, as far as it knows.
    pub fn decided(&self) -> Decided {
        self.shared.decided().clone()
    }

    /// The last entry that is in [`Self::decided`]: whoever asks often need not look at all of it.
    pub fn decided_index(&self) -> u64 {
        self.shared.decided_index.load(Ordering::Acquire)
    }

    /// How long the leader has not been heard, in nanoseconds; 0 for a voter that leads itself. `None` if this one has heard
    /// none since it was started, or votes no more.
    pub fn leader_silent_ns(&self) -> Option<u64> {
        let heard_ns = self.shared.leader_heard_ns.load(Ordering::Acquire);
        (heard_ns != 0).then(|| lease_clock_ns().saturating_sub(heard_ns))
    }

    /// Proposes a decision; the index that its entry has if it is decided at all. What is decided comes as
    /// [`MemberEvent::Applied`].
    ///
    /// # Errors
    /// This voter does not lead, or has ended.
    pub fn propose(&self, decision: Decision) -> Result<u64, ProposeError> {
        let (answer, answered) = mpsc::channel();
        let _ = self.inputs.send(MemberInput::Propose(decision, answer));
        let no_voter = ProposeError::NotLeader { leader: None };
        answered.recv().unwrap_or(Err(no_voter))
    }

    /// Proposes a decision without waiting for the voter's thread, which may be busy with its disk. It comes to nothing where
    /// this voter does not lead: whoever proposes looks at [`Self::decided`], and proposes again.
    pub fn submit(&self, decision: Decision) {
        let (answer, _) = mpsc::channel();
        let _ = self.inputs.send(MemberInput::Propose(decision, answer));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.inputs.send(MemberInput::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct VoterLoop {
    node: Node,
    journal: Journal,
    links: Links,
    shared: Arc<Shared>,
    listener: Box<dyn FnMut(MemberEvent) + Send>,
    /// The term, who leads, and whether that is this voter with a lease, as the listener was told last.
    told: Option<(u64, Option<VoterId>, bool)>,
}

impl VoterLoop {
    /// Votes until it is stopped, or its disk fails.
    fn run(&mut self, inputs: &Receiver<MemberInput>) -> Result<(), JournalError> {
        loop {
            self.settle()?;
            let left_ns = self.node.deadline_ns().saturating_sub(lease_clock_ns());
            match inputs.recv_timeout(Duration::from_nanos(left_ns)) {
                Ok(input) => {
                    // What has come while this thread could not run is heard before anybody is missed.
                    let more = inputs.try_iter().take(INPUTS_AT_A_TIME);
                    for input in std::iter::once(input).chain(more) {
                        if matches!(input, MemberInput::Stop) {
                            return Ok(());
                        }
                        self.take(input);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            self.node.advance(lease_clock_ns());
        }
    }

    fn take(&mut self, input: MemberInput) {
        let now_ns = lease_clock_ns();
        match input {
            MemberInput::Message(message) => {
                if let Err(error) = self.node.receive(now_ns, message) {
                    (self.listener)(MemberEvent::Refused(error));
                }
            }
            MemberInput::Propose(decision, answer) => {
                // Whoever has asked may be gone.
                let _ = answer.send(self.node.propose(now_ns, &decision));
            }
            MemberInput::CanConduct(can_conduct) => self.node.set_can_conduct(can_conduct),
            MemberInput::Stop => {}
        }
    }

    /// Writes, sends and tells whatever follows from the inputs.
    fn settle(&mut self) -> Result<(), JournalError> {
        loop {
            let output = self.node.poll();
            if output == Output::default() {
                break;
            }
            self.links.send(output.messages);
            if !output.applied.is_empty() {
                self.shared.publish(self.node.decided());
            }
            // Before anybody hears of what was decided: what the lease is must be known then.
            self.publish_lease();
            for applied in output.applied {
                (self.listener)(MemberEvent::Applied(applied));
            }
            if let Some(write) = output.write {
                self.journal.write(&write.records)?;
                self.links.send(write.messages);
                self.node.written(write.number);
            }
        }
        self.publish_lease();
        self.tell_leader();
        Ok(())
    }

    /// Says how long it may act, and when it has heard a leader.
    fn publish_lease(&self) {
        let until_ns = self.node.acts_until_ns().unwrap_or(0);
        self.shared.acts_until_ns.store(until_ns, Ordering::Release);
        let heard_ns = self.node.leader_heard_ns().unwrap_or(0);
        self.shared
            .leader_heard_ns
            .store(heard_ns, Ordering::Release);
    }

    fn tell_leader(&mut self) {
        let term = self.node.term();
        let until_ns = self.node.acts_until_ns();
        let acts = until_ns.is_some_and(|until_ns| lease_clock_ns() < until_ns);
        let now = (term, self.node.leader(), acts);
        if self.told == Some(now) {
            return;
        }
        self.told = Some(now);
        (self.listener)(match acts {
            true => MemberEvent::Leads { term },
            false => MemberEvent::Follows {
                term,
                leader: self.node.leader(),
            },
        });
    }
}

/// Whether an entry that a voter has proposed holds, for who reads events.
pub fn effect_of(applied: &Applied, index: u64) -> Option<Effect> {
    match applied {
        Applied::Entry(entry, effect) if entry.index == index => Some(*effect),
        _ => None,
    }
}

/// What the system says of a thread that cannot be started.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(run).map(drop)
}
