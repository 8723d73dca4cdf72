//! A process's seat in a council: the voter that it starts, and how long it waits for others.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;
use zbmd_council::VoterId;
use zbmd_council::member::{Member, MemberEvent, MemberOptions};
use zbmd_council::node::{LEASE_TICKS, Settings};
use zbmd_wire::connection::Credentials;
use zbmd_wire::handshake::Accepted;

use crate::options::CouncilSeat;
use crate::run::event::WorkerEvent;
use crate::run::inbox::EventSender;

/// Shortest and longest lease. While a conductor waits for a majority nobody supervises its workers, so the longest is short.
const LEASES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(8)..=Duration::from_secs(1);
/// A snapshot takes the place of so many decided entries: some megabytes at most.
const COMPACT_AFTER: u64 = 1_000;
/// A voter that may act no more is given up after so many ticks: enough for a witness to be elected, to step aside, and for this
/// one to be elected again.
const GRACE_TICKS: u32 = 80;

/// Where nobody else could go on with a run, the one that has its state and the one that was elected without it wait so long for
/// each other: if either gave up sooner, the run would be lost.
pub(super) const LAST_STATE_LIMIT: Duration = Duration::from_secs(10);

/// In whose name a conductor gives orders. Agents obey the latest that they have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Mandate {
    /// In which the epoch was opened.
    pub term: u64,
    /// The council's number for it.
    pub epoch: u64,
    /// The voter that conducts.
    pub conductor: VoterId,
}

/// Times of a council.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeatTimes {
    pub tick: Duration,
    pub lease: Duration,
    /// Whoever may not act for so long gives up.
    pub grace: Duration,
}

impl SeatTimes {
    fn of(seat: &CouncilSeat) -> Self {
        let tick = seat.lease / LEASE_TICKS as u32;
        Self {
            tick,
            lease: seat.lease,
            grace: tick * GRACE_TICKS,
        }
    }
}

/// Tells councils apart: a checksum over their voters.
pub(super) fn council_sum(seat: &CouncilSeat) -> u64 {
    let mut sum = Xxh3::new();
    for voter in &seat.voters {
        sum.update(voter.to_string().as_bytes());
        sum.update(b"\n");
    }
    sum.digest()
}

/// Starts the voter. Connections of a conductor that are for its borders go to `borders`.
///
/// # Errors
/// A seat that makes no sense, a journal that cannot be gone on from, or what the system says.
pub(super) fn start_member(
    seat: &CouncilSeat,
    credentials: &Credentials,
    borders: Option<Sender<Accepted>>,
    listener: impl FnMut(MemberEvent) + Send + 'static,
) -> Result<(Member, SeatTimes), String> {
    if !LEASES.contains(&seat.lease) {
        return Err(format!(
            "a lease of {} ms: take one from {} to {} ms",
            seat.lease.as_millis(),
            LEASES.start().as_millis(),
            LEASES.end().as_millis()
        ));
    }

    let times = SeatTimes::of(seat);
    let voters: Vec<VoterId> = (1..=seat.voters.len() as u64).map(VoterId).collect();
    let addresses: BTreeMap<VoterId, _> = voters
        .iter()
        .copied()
        .zip(seat.voters.iter().copied())
        .collect();
    let options = MemberOptions {
        settings: Settings {
            own: VoterId(seat.own),
            voters,
            tick_ns: times.tick.as_nanos() as u64,
            compact_after: COMPACT_AFTER,
            witnesses: seat.witnesses.iter().copied().map(VoterId).collect(),
        },
        addresses,
        folder: seat.folder.clone(),
        credentials: credentials.clone(),
        borders,
    };
    let member = Member::start(options, listener).map_err(|error| error.to_string())?;
    Ok((member, times))
}

/// The voter of a process that conducts, or could.
pub(crate) struct Candidate {
    pub(super) member: Member,
    pub(super) own: VoterId,
    pub(super) voter_count: usize,
    pub(super) times: SeatTimes,
    /// Told whenever something may have been decided, or the lease has begun.
    news: Receiver<()>,
    waker: Waker,
}

/// Tells a candidate that there may be news, and the supervising thread of its run once there is one.
#[derive(Clone)]
pub(super) struct Waker {
    news: SyncSender<()>,
    events: Arc<OnceLock<EventSender<WorkerEvent>>>,
}

impl Waker {
    pub(super) fn wake(&self) {
        // Whoever has not taken the last news yet will see these too.
        let _ = self.news.try_send(());
        if let Some(events) = self.events.get() {
            events.send(WorkerEvent::Council);
        }
    }
}

impl Candidate {
    /// Starts the voter.
    ///
    /// # Errors
    /// A seat of a witness, or as [`start_member`].
    pub(super) fn start(
        seat: &CouncilSeat,
        credentials: &Credentials,
        borders: Option<Sender<Accepted>>,
    ) -> Result<Self, String> {
        if seat.witnesses.contains(&seat.own) {
            return Err(format!(
                "voter {} is a witness, which never conducts: take one that is none, by --witnesses on all hosts",
                seat.own
            ));
        }

        let (send_news, news) = sync_channel(1);
        let waker = Waker {
            news: send_news,
            events: Arc::default(),
        };
        let told = waker.clone();
        let listener = move |event| {
            if matches!(event, MemberEvent::Leads { .. } | MemberEvent::Applied(_)) {
                told.wake();
            }
        };

        let (member, times) = start_member(seat, credentials, borders, listener)?;
        Ok(Self {
            member,
            own: VoterId(seat.own),
            voter_count: seat.voters.len(),
            times,
            news,
            waker,
        })
    }

    /// Whether it may act now, as the conductor within its lease.
    pub(super) fn may_act(&self) -> bool {
        self.member.acts_until_ns().is_some()
    }

    /// Waits until there may be news, a tick at most.
    pub(super) fn wait(&self) {
        let _ = self.news.recv_timeout(self.times.tick);
    }

    /// From here on the supervising thread is told of news too.
    pub(super) fn tell(&self, events: EventSender<WorkerEvent>) {
        let _ = self.waker.events.set(events);
    }

    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }
}
