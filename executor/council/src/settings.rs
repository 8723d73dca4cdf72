//! Who a voter is, and of which council.

use crate::VoterId;
use crate::error::CouncilError;
use crate::node::ELECTION_TICKS;

/// By so many ticks each voter waits longer than the one before it. So two seldom stand at once, and nothing is left to chance:
/// the same inputs always give the same outputs.
const RANK_TICKS: u64 = 3;
/// Shortest and longest tick.
const TICK_RANGE_NS: std::ops::RangeInclusive<u64> = 100_000..=10_000_000_000;

/// What a voter must know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which one it is.
    pub own: VoterId,
    /// All voters, in the same order everywhere.
    pub voters: Vec<VoterId>,
    /// The unit of [`ELECTION_TICKS`] and [`crate::node::LEASE_TICKS`]; the same everywhere.
    pub tick_ns: u64,
    /// A snapshot takes the place of so many decided entries.
    pub compact_after: u64,
    /// Voters that could not conduct. They vote and keep the log. One leads only to bring a conductor's log up to date that is
    /// behind its own, and never acts.
    pub witnesses: Vec<VoterId>,
}

impl Settings {
    /// Whether these can be a council.
    ///
    /// # Errors
    /// Another number of voters than 3 or 5, a number twice, or a voter that is not among them.
    pub fn check(&self) -> Result<(), CouncilError> {
        let found = self.voters.len();
        if !matches!(found, 3 | 5) {
            return Err(CouncilError::Size { found });
        }
        for (position, voter) in self.voters.iter().enumerate() {
            if voter.0 == 0 || self.voters[..position].contains(voter) {
                return Err(CouncilError::Number { voter: *voter });
            }
        }
        let mut named = self.witnesses.iter().chain([&self.own]);
        if let Some(stranger) = named.find(|voter| !self.voters.contains(voter)) {
            return Err(CouncilError::Stranger { voter: *stranger });
        }
        if self.voters.iter().all(|voter| self.is_witness(*voter)) {
            return Err(CouncilError::Witnesses { found });
        }
        match TICK_RANGE_NS.contains(&self.tick_ns) {
            true => Ok(()),
            false => Err(CouncilError::Tick {
                found_ns: self.tick_ns,
            }),
        }
    }

    /// It stands itself when it has heard of no leader for so long. One that could not conduct leaves that to the others for some time.
    pub(crate) fn patience_ticks(&self, can_conduct: bool) -> usize {
        let mut voters = self.voters.iter();
        let rank = voters.position(|voter| *voter == self.own).unwrap_or(0) as u64;
        let begin_ticks = match can_conduct {
            true => ELECTION_TICKS,
            // Later than all who could: else it would be elected, step aside and be elected again.
            false => 2 * ELECTION_TICKS + self.voters.len() as u64 * RANK_TICKS,
        };
        (begin_ticks + rank * RANK_TICKS) as usize
    }

    pub(crate) fn is_witness(&self, voter: VoterId) -> bool {
        self.witnesses.contains(&voter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else one would be elected again and again, and step aside each time.
    #[test]
    fn who_could_not_conduct_stands_later_than_all_who_could() {
        for count in [3, 5] {
            let voters: Vec<VoterId> = (1..=count).map(VoterId).collect();
            let patience = |own: VoterId, can_conduct: bool| {
                let settings = Settings {
                    own,
                    voters: voters.clone(),
                    tick_ns: 1_000_000,
                    compact_after: 100,
                    witnesses: Vec::new(),
                };
                settings.check().expect("a council");
                settings.patience_ticks(can_conduct)
            };
            let able = voters.iter().map(|own| patience(*own, true)).max();
            let unable = voters.iter().map(|own| patience(*own, false)).min();
            assert!(able < unable, "of {count}");
        }
    }
}
