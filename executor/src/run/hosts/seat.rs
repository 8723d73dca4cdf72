//! A process's seat in a council: the voter that it starts, and how long it waits for others.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;
use zbmd_council::VoterId;
use zbmd_council::member::{Member, MemberEvent, MemberOptions};
use zbmd_council::node::{LEASE_TICKS, Settings};
use zbmd_wire::connection::Credentials;

use crate::options::CouncilSeat;

/// Shortest and longest lease. While a conductor waits for a majority nobody supervises its workers, so the longest is short.
const LEASES: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(8)..=Duration::from_secs(1);
/// A snapshot takes the place of so many decided entries: some megabytes at most.
const COMPACT_AFTER: u64 = 1_000;
/// A voter that may act no more is given up after so many ticks: enough for a witness to be elected, to step aside, and for this
/// one to be elected again.
const GRACE_TICKS: u32 = 80;

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

/// Starts the voter.
///
/// # Errors
/// A seat that makes no sense, a journal that cannot be gone on from, or what the system says.
pub(super) fn start_member(
    seat: &CouncilSeat,
    credentials: &Credentials,
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
    };
    let member = Member::start(options, listener).map_err(|error| error.to_string())?;
    Ok((member, times))
}
