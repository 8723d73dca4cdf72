//! What is decided, and what decisions come to. Whoever applies the same entries has the same state.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::DecodeError;
use crate::{LogEntry, VoterId};

/// Longest encoded decision: a border of a model with some thousand sinks.
pub const MAX_DECISION_BYTES: usize = 1 << 16;
/// Bytes of all changes of live parameters that are kept, at most: a snapshot has them. See [`Decided::changes`].
pub const MAX_CHANGE_BYTES: usize = 1 << 16;

/// A border of a run: a point to which it can go back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunBorder {
    /// Iterations of the graph from the beginning of the run.
    pub iterations: u64,
    /// Iterations up to a border at or before this one, up to which all outputs have been taken from the run: whoever takes over
    /// goes on from there. Its state is held by all of [`Decided::holders`] too.
    pub given_out: u64,
    /// So many of the run's changes of live parameters are in the state of that border: nobody needs them besides.
    pub changes_in_state: u64,
    /// Of the state that the run has there.
    pub checksum: u64,
    /// Tokens that each sink has got by then.
    pub outputs: Vec<u64>,
}

/// What a conductor proposes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// A new epoch, on these hosts, from the last border on. Its number is the index of the entry.
    Epoch {
        /// Of which run. Another one than before has no border yet, and nobody holds a state of it.
        run: u128,
        /// Who conducts it.
        conductor: VoterId,
        /// The hosts that take part, by their number in the bundle's machine.
        hosts: BTreeSet<u32>,
        /// The number of the bundle that a run begins with; one that goes on has the one that was decided last.
        bundle: u64,
        /// Where another has conducted the run before: how many of its changes of live parameters are gone on with. What that one
        /// has proposed after them does not hold.
        taken_over: Option<u64>,
    },
    /// Live parameters change. Whoever takes over makes the same change.
    Change {
        /// In which epoch it is proposed.
        epoch: u64,
        /// How many changes of the run were made before it.
        number: u64,
        /// Which change, as the executor writes it.
        change: Vec<u8>,
    },
    /// A border of an epoch. Who does not hold its state is none of [`Decided::holders`] from then on.
    Border {
        /// Which epoch.
        epoch: u64,
        /// Which border.
        border: RunBorder,
        /// The voters that hold its state by now.
        held_by: BTreeSet<VoterId>,
    },
    /// A voter has the state of the last border, and gets that of each border before that is proposed: it can take over.
    Join {
        /// Which one.
        holder: VoterId,
        /// Iterations up to the last border whose state it has. It comes too late if a later border is there by then.
        holds: u64,
    },
    /// The run has come to its end, and all of its outputs are given out: nobody takes it over.
    End {
        /// Which run.
        run: u128,
    },
    /// A voter does not get borders any more: it is lost, or too slow.
    Leave {
        /// Which one.
        holder: VoterId,
    },
    /// From its last border on the run goes on with another program. Who does not hold the state of that one there is none of
    /// [`Decided::holders`] from then on.
    Swap {
        /// In which epoch it is proposed.
        epoch: u64,
        /// The number of the program's bundle.
        bundle: u64,
        /// As in [`RunBorder`], by now.
        given_out: u64,
        /// The voters that hold the state that the new program begins with.
        held_by: BTreeSet<VoterId>,
    },
}

impl Decision {
    /// The bytes of an entry.
    ///
    /// # Errors
    /// More bytes than an entry may have.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let bytes = postcard::to_stdvec(self).map_err(|error| DecodeError::Nonsense {
            what: "a decision",
            why: error.to_string(),
        })?;
        check_length(bytes.len())?;
        Ok(bytes)
    }

    /// What an entry says.
    ///
    /// # Errors
    /// It is no decision of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        check_length(bytes.len())?;
        decode_all("a decision", bytes)
    }
}

fn check_length(bytes: usize) -> Result<(), DecodeError> {
    match bytes <= MAX_DECISION_BYTES {
        true => Ok(()),
        false => Err(DecodeError::Long {
            what: "a decision",
            bytes: bytes as u64,
            max: MAX_DECISION_BYTES as u64,
        }),
    }
}

/// Decodes a value that takes all of the bytes.
pub(crate) fn decode_all<'a, T: Deserialize<'a>>(
    what: &'static str,
    bytes: &'a [u8],
) -> Result<T, DecodeError> {
    let nonsense = |why: String| DecodeError::Nonsense { what, why };
    let (value, rest) =
        postcard::take_from_bytes(bytes).map_err(|error| nonsense(error.to_string()))?;
    match rest.len() {
        0 => Ok(value),
        left => Err(nonsense(format!("{left} bytes follow it"))),
    }
}

/// Whether a decision changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It holds.
    Taken,
    /// It came too late: another epoch has begun since it was proposed, or a later border is there.
    Void,
}

/// What the decisions up to an entry come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// The last entry that is in it.
    pub index: u64,
    /// The run that the epoch is of.
    pub run: u128,
    /// The epoch; 0 before the first.
    pub epoch: u64,
    /// The term in which it was opened.
    pub term: u64,
    /// Who conducts it.
    pub conductor: Option<VoterId>,
    /// The hosts that take part in it.
    pub hosts: BTreeSet<u32>,
    /// The run has come to its end.
    pub is_over: bool,
    /// The number of the bundle at work; 0 before the first epoch.
    pub bundle: u64,
    /// The border from which on it has been at work: states of earlier ones are of another program.
    pub bundle_since: u64,
    /// The voters that get the state of each border.
    pub holders: BTreeSet<VoterId>,
    /// The last border. It outlives its epoch.
    pub border: RunBorder,
    /// The epoch that it is of.
    pub border_epoch: u64,
    /// How many changes of live parameters the run has made.
    pub changes_made: u64,
    /// The last of them: all that are not in the state that whoever takes over begins with.
    pub changes: Vec<Vec<u8>>,
}

impl Decided {
    /// Takes in the next entry, and says whether it changed anything. An entry that is no decision is void on all voters alike.
    pub fn apply(&mut self, entry: &LogEntry) -> Effect {
        self.index = entry.index;
        match Decision::decode(&entry.data) {
            Ok(Decision::Epoch {
                run,
                conductor,
                hosts,
                bundle,
                taken_over,
            }) => {
                if run != self.run {
                    self.run = run;
                    self.holders.clear();
                    (self.bundle, self.bundle_since) = (bundle, 0);
                    (self.border, self.border_epoch) = (RunBorder::default(), 0);
                    (self.changes_made, self.changes) = (0, Vec::new());
                }
                if let Some(changes) = taken_over {
                    self.forget_changes_from(changes);
                }

                self.is_over = false;
                self.epoch = entry.index;
                self.term = entry.term;
                self.conductor = Some(conductor);
                self.hosts = hosts;
                Effect::Taken
            }
            Ok(Decision::Border {
                epoch,
                border,
                held_by,
            }) => self.advance_border(epoch, border, &held_by),
            Ok(Decision::Change {
                epoch,
                number,
                change,
            }) => self.add_change(epoch, number, change),
            Ok(Decision::End { run }) if run == self.run => {
                effect(!std::mem::replace(&mut self.is_over, true))
            }
            Ok(Decision::End { .. }) => Effect::Void,
            Ok(Decision::Join { holder, holds }) => {
                let is_in_time = holds >= self.border.iterations;
                effect(is_in_time && self.holders.insert(holder))
            }
            Ok(Decision::Leave { holder }) => effect(self.holders.remove(&holder)),
            Ok(Decision::Swap {
                epoch,
                bundle,
                given_out,
                held_by,
            }) => {
                let is_new = epoch == self.epoch && bundle != self.bundle;
                if is_new {
                    self.swap_program(bundle, given_out, &held_by);
                }
                effect(is_new)
            }
            Err(_) => Effect::Void,
        }
    }

    fn advance_border(
        &mut self,
        epoch: u64,
        border: RunBorder,
        held_by: &BTreeSet<VoterId>,
    ) -> Effect {
        let is_later = border.iterations > self.border.iterations;
        if epoch != self.epoch || !is_later {
            return Effect::Void;
        }
        let unneeded = self.kept_before(border.changes_in_state);
        self.changes.drain(..unneeded);

        (self.border, self.border_epoch) = (border, epoch);
        self.holders.retain(|holder| held_by.contains(holder));
        Effect::Taken
    }

    fn swap_program(&mut self, bundle: u64, given_out: u64, held_by: &BTreeSet<VoterId>) {
        (self.bundle, self.bundle_since) = (bundle, self.border.iterations);
        let is_possible = (self.border.given_out..=self.border.iterations).contains(&given_out);
        if is_possible {
            self.border.given_out = given_out;
        }
        self.holders.retain(|holder| held_by.contains(holder));
    }

    fn add_change(&mut self, epoch: u64, number: u64, change: Vec<u8>) -> Effect {
        let is_next = epoch == self.epoch && number == self.changes_made;
        if !is_next || self.change_bytes() + change.len() > MAX_CHANGE_BYTES {
            return Effect::Void;
        }
        self.changes.push(change);
        self.changes_made += 1;
        Effect::Taken
    }

    /// The change of this number and all after it do not hold.
    fn forget_changes_from(&mut self, number: u64) {
        self.changes.truncate(self.kept_before(number));
        self.changes_made = self.changes_made.min(number);
    }

    /// How many of the changes that are kept were made before the one of this number.
    fn kept_before(&self, number: u64) -> usize {
        let first_kept = self.changes_made - self.changes.len() as u64;
        let before = number.saturating_sub(first_kept);
        self.changes.len().min(before as usize)
    }

    /// Bytes of the changes that are kept, at most [`MAX_CHANGE_BYTES`].
    pub fn change_bytes(&self) -> usize {
        self.changes.iter().map(Vec::len).sum()
    }

    /// The bytes of a snapshot.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        postcard::to_stdvec(self).map_err(|error| DecodeError::Nonsense {
            what: "a snapshot",
            why: error.to_string(),
        })
    }

    /// From a snapshot.
    ///
    /// # Errors
    /// It is none of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_all("a snapshot", bytes)
    }
}

fn effect(is_change: bool) -> Effect {
    match is_change {
        true => Effect::Taken,
        false => Effect::Void,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64, decision: &Decision) -> LogEntry {
        LogEntry {
            index,
            term,
            data: decision.encode().expect("short"),
        }
    }

    fn epoch() -> Decision {
        epoch_of(7)
    }

    fn epoch_of(run: u128) -> Decision {
        Decision::Epoch {
            run,
            conductor: VoterId(1),
            hosts: [0, 1].into(),
            bundle: 4,
            taken_over: None,
        }
    }

    fn border(epoch: u64, iterations: u64) -> Decision {
        let border = RunBorder {
            iterations,
            given_out: 0,
            changes_in_state: 0,
            checksum: iterations * 7,
            outputs: vec![iterations],
        };
        Decision::Border {
            epoch,
            border,
            held_by: [VoterId(2), VoterId(4)].into(),
        }
    }

    fn join(holder: u64, holds: u64) -> Decision {
        Decision::Join {
            holder: VoterId(holder),
            holds,
        }
    }

    #[test]
    fn a_swap_is_of_its_epoch_and_leaves_those_that_hold_its_state() {
        let mut decided = Decided::default();
        let mut index = 0;
        let mut apply = |decided: &mut Decided, decision: &Decision| {
            index += 1;
            decided.apply(&entry(index, 1, decision))
        };
        let swap = |epoch, bundle, given_out| Decision::Swap {
            epoch,
            bundle,
            given_out,
            held_by: [VoterId(2)].into(),
        };
        apply(&mut decided, &epoch());
        apply(&mut decided, &border(1, 8));
        apply(&mut decided, &join(2, 8));
        apply(&mut decided, &join(3, 8));
        assert_eq!((decided.bundle, decided.bundle_since), (4, 0));

        assert_eq!(apply(&mut decided, &swap(9, 5, 8)), Effect::Void);
        assert_eq!((decided.bundle, decided.holders.len()), (4, 2));
        assert_eq!(apply(&mut decided, &swap(1, 5, 8)), Effect::Taken);
        assert_eq!((decided.bundle, decided.bundle_since), (5, 8));
        assert_eq!(decided.border.given_out, 8);
        assert_eq!(decided.holders, [VoterId(2)].into());

        // Once more is once, and nothing is given out before it is there, or taken back.
        apply(&mut decided, &join(3, 8));
        assert_eq!(apply(&mut decided, &swap(1, 5, 8)), Effect::Void);
        assert_eq!(decided.holders.len(), 2);
        for given_out in [7, 9] {
            let bundle = 5 + given_out;
            assert_eq!(
                apply(&mut decided, &swap(1, bundle, given_out)),
                Effect::Taken
            );
            assert_eq!((decided.bundle, decided.border.given_out), (bundle, 8));
        }

        // The next epoch of the run goes on with it, another run does not.
        apply(&mut decided, &epoch());
        assert_eq!((decided.bundle, decided.bundle_since), (14, 8));
        apply(&mut decided, &epoch_of(8));
        assert_eq!((decided.bundle, decided.bundle_since), (4, 0));
    }

    #[test]
    fn borders_of_an_epoch_that_is_over_are_void() {
        let mut decided = Decided::default();
        assert_eq!(decided.apply(&entry(2, 1, &epoch())), Effect::Taken);
        assert_eq!(decided.apply(&entry(3, 1, &border(2, 8))), Effect::Taken);
        assert_eq!(decided.apply(&entry(4, 2, &epoch())), Effect::Taken);
        assert_eq!((decided.epoch, decided.term), (4, 2));

        // The first conductor has proposed this before it knew.
        assert_eq!(decided.apply(&entry(5, 2, &border(2, 16))), Effect::Void);
        assert_eq!(decided.border.iterations, 8);
        assert_eq!(decided.apply(&entry(6, 2, &border(4, 12))), Effect::Taken);
        // Borders do not go back.
        assert_eq!(decided.apply(&entry(7, 2, &border(4, 12))), Effect::Void);
        assert_eq!((decided.border.iterations, decided.index), (12, 7));
    }

    #[test]
    fn another_run_begins_without_a_border() {
        let mut decided = Decided::default();
        decided.apply(&entry(1, 1, &epoch_of(7)));
        decided.apply(&entry(2, 1, &join(2, 0)));
        decided.apply(&entry(3, 1, &border(1, 5)));
        // The same run goes on.
        decided.apply(&entry(4, 2, &epoch_of(7)));
        assert_eq!((decided.border.iterations, decided.holders.len()), (5, 1));

        decided.apply(&entry(5, 2, &epoch_of(8)));
        assert_eq!((decided.run, decided.epoch), (8, 5));
        assert_eq!((decided.border.iterations, decided.holders.len()), (0, 0));
        assert_eq!(decided.apply(&entry(6, 2, &border(5, 2))), Effect::Taken);

        // An end is that of one run, and of no later one.
        let end = |run| Decision::End { run };
        assert_eq!(decided.apply(&entry(7, 2, &end(7))), Effect::Void);
        assert_eq!(decided.apply(&entry(8, 2, &end(8))), Effect::Taken);
        assert!(decided.is_over);
        decided.apply(&entry(9, 2, &epoch_of(9)));
        assert!(!decided.is_over);
    }

    /// Whoever is said to hold the state of each border does, whatever else was on its way when a border was proposed.
    #[test]
    fn who_does_not_hold_a_border_cannot_take_over() {
        let mut decided = Decided::default();
        decided.apply(&entry(1, 1, &epoch_of(7)));
        assert_eq!(decided.apply(&entry(2, 1, &join(2, 0))), Effect::Taken);
        assert_eq!(decided.apply(&entry(3, 1, &join(3, 0))), Effect::Taken);
        // Voter 3 has not answered for a lease, and that has not been decided yet.
        decided.apply(&entry(4, 1, &border(1, 5)));
        assert_eq!(decided.holders, [VoterId(2)].into());

        // It has held the last border when this was proposed, and a later one has come between.
        decided.apply(&entry(5, 1, &border(1, 9)));
        assert_eq!(decided.apply(&entry(6, 1, &join(3, 5))), Effect::Void);
        assert_eq!(decided.apply(&entry(7, 1, &join(3, 9))), Effect::Taken);
        assert_eq!(decided.holders.len(), 2);
    }

    #[test]
    fn changes_are_kept_until_a_state_has_them_and_count_once() {
        let change = |epoch, number| Decision::Change {
            epoch,
            number,
            change: vec![number as u8; 3],
        };
        let mut decided = Decided::default();
        let mut index = 0;
        let mut apply = |decided: &mut Decided, decision: &Decision| {
            index += 1;
            decided.apply(&entry(index, 1, decision))
        };
        apply(&mut decided, &epoch());
        for number in 0..3 {
            assert_eq!(apply(&mut decided, &change(1, number)), Effect::Taken);
            // Proposed twice, too early, and in the name of another epoch.
            assert_eq!(apply(&mut decided, &change(1, number)), Effect::Void);
            assert_eq!(apply(&mut decided, &change(1, number + 2)), Effect::Void);
            assert_eq!(apply(&mut decided, &change(7, number + 1)), Effect::Void);
        }
        assert_eq!((decided.changes_made, decided.changes.len()), (3, 3));

        let Decision::Border { mut border, .. } = border(1, 5) else {
            panic!("it is one");
        };
        border.changes_in_state = 2;
        let held_by = BTreeSet::new();
        let proposal = Decision::Border {
            epoch: 1,
            border,
            held_by,
        };
        assert_eq!(apply(&mut decided, &proposal), Effect::Taken);
        assert_eq!(decided.changes, [vec![2; 3]]);

        // Whoever takes over has not seen the last one: its own takes that number.
        let taken_over = Decision::Epoch {
            run: 7,
            conductor: VoterId(2),
            hosts: [0].into(),
            bundle: 4,
            taken_over: Some(2),
        };
        apply(&mut decided, &taken_over);
        assert_eq!((decided.changes_made, decided.changes.len()), (2, 0));
        let own_epoch = decided.epoch;
        assert_eq!(apply(&mut decided, &change(own_epoch, 2)), Effect::Taken);

        // Another run has none.
        apply(&mut decided, &epoch_of(8));
        assert_eq!((decided.changes_made, decided.changes.len()), (0, 0));
    }

    #[test]
    fn no_more_changes_are_kept_than_a_snapshot_has_room_for() {
        let mut decided = Decided::default();
        decided.apply(&entry(1, 1, &epoch()));
        let taken = (0..100).take_while(|number| {
            let large = Decision::Change {
                epoch: 1,
                number: *number,
                change: vec![0; 1 << 12],
            };
            decided.apply(&entry(2 + number, 1, &large)) == Effect::Taken
        });
        assert_eq!(taken.count(), MAX_CHANGE_BYTES >> 12);
    }

    #[test]
    fn nonsense_in_the_log_is_void() {
        let mut decided = Decided::default();
        for data in [vec![], vec![200], vec![0; 1 << 20]] {
            let entry = LogEntry {
                index: 1,
                term: 1,
                data,
            };
            assert_eq!(decided.apply(&entry), Effect::Void);
        }
        assert_eq!(decided.epoch, 0);
    }

    #[test]
    fn a_snapshot_is_the_state() {
        let mut decided = Decided::default();
        decided.apply(&entry(1, 1, &epoch()));
        decided.apply(&entry(2, 1, &join(4, 0)));
        decided.apply(&entry(3, 1, &border(1, 5)));
        let bytes = decided.encode().expect("encoded");
        assert_eq!(Decided::decode(&bytes), Ok(decided));
        Decided::decode(&bytes[1..]).expect_err("cut");
        Decided::decode(&[&bytes[..], &[0]].concat()).expect_err("too long");
    }
}
