//! Whom an agent obeys: the conductor of the latest epoch that it knows of and, if it votes in a council, only as long as it
//! hears a leader.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use zbmd_council::VoterId;
use zbmd_council::member::Member;
use zbmd_wire::connection::Credentials;

use super::seat::{Mandate, SeatTimes, council_sum, start_member};
use crate::options::CouncilSeat;

/// A leader that has just been elected is waited for so long before a run is refused.
const LEADER_LIMIT: Duration = Duration::from_secs(2);
const LEADER_PAUSE: Duration = Duration::from_millis(2);

/// Whom an agent obeys.
pub(super) struct Obedience {
    seat: Option<AgentSeat>,
    /// The latest mandate that it has seen, and of which council.
    latest: Mutex<Option<(u64, Mandate)>>,
}

struct AgentSeat {
    member: Member,
    times: SeatTimes,
    council: u64,
}

impl Obedience {
    /// Of an agent, with its seat in a council if it has one.
    ///
    /// # Errors
    /// See [`start_member`].
    pub(super) fn new(
        seat: Option<&CouncilSeat>,
        credentials: &Credentials,
    ) -> Result<Self, String> {
        let take = |seat: &CouncilSeat| {
            let (member, times) = start_member(seat, credentials, None, |_| ())?;
            Ok::<_, String>(AgentSeat {
                member,
                times,
                council: council_sum(seat),
            })
        };
        Ok(Self {
            seat: seat.map(take).transpose()?,
            latest: Mutex::default(),
        })
    }

    /// Whether a run may be served that is conducted in the name of this council, or of none.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn accept_run(&self, council: Option<u64>) -> Result<(), String> {
        let Some(seat) = &self.seat else {
            return Ok(());
        };
        match council {
            None => {
                return Err(
                    "this agent votes in a council: start the run with --council too".to_owned(),
                );
            }
            Some(council) if council != seat.council => {
                return Err(
                    "this agent votes in another council: give the run and all agents the same --council"
                        .to_owned(),
                );
            }
            Some(_) => {}
        }
        let begun = Instant::now();
        while let Some(why) = seat.silence_text() {
            if begun.elapsed() > LEADER_LIMIT {
                return Err(why);
            }
            std::thread::sleep(LEADER_PAUSE);
        }
        Ok(())
    }

    /// Whether an epoch may begin here.
    ///
    /// # Errors
    /// Why not: a later one is known, or no leader.
    pub(super) fn accept(
        &self,
        council: Option<u64>,
        mandate: Option<Mandate>,
    ) -> Result<(), String> {
        let (Some(council), Some(mandate)) = (council, mandate) else {
            return Ok(());
        };
        if let Some(why) = self.objection(Some(mandate)) {
            return Err(why);
        }
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let same = latest.filter(|(of, _)| *of == council);
        if let Some((_, known)) = same.filter(|(_, known)| *known > mandate) {
            return Err(format!(
                "epoch {} of term {} comes after epoch {} of term {}, by {}",
                mandate.epoch, mandate.term, known.epoch, known.term, known.conductor
            ));
        }
        *latest = Some((council, mandate));
        Ok(())
    }

    /// Why nothing may go on in the name of this epoch, or begin at all.
    pub(super) fn objection(&self, mandate: Option<Mandate>) -> Option<String> {
        let seat = self.seat.as_ref()?;
        if let Some(why) = seat.silence_text() {
            return Some(why);
        }
        let mandate = mandate?;
        // Its own epoch is the last entry that it has been told of, in the most cases.
        if seat.member.decided_index() <= mandate.epoch {
            return None;
        }
        let decided = seat.member.decided();
        let by: VoterId = decided.conductor?;
        let is_later = (decided.term, decided.epoch) > (mandate.term, mandate.epoch);
        (is_later && by != mandate.conductor).then(|| {
            format!(
                "{by} conducts since epoch {} of term {}",
                decided.epoch, decided.term
            )
        })
    }
}

impl AgentSeat {
    /// Why it obeys nobody now.
    fn silence_text(&self) -> Option<String> {
        let lease = self.times.lease;
        let is_heard = self
            .member
            .leader_silent_ns()
            .is_some_and(|silent_ns| silent_ns <= lease.as_nanos() as u64);
        (!is_heard).then(|| {
            format!(
                "no leader of the council has been heard for {} ms",
                lease.as_millis()
            )
        })
    }
}
