//! Changes of live parameters on their way to the workers of an epoch.
//!
//! A change is published first, and only then decided upon: it takes effect with the first block that nobody had been
//! granted when somebody looked after that. Whoever is granted a block looks here afterwards. So of a worker that starts
//! a block and of whoever decides, one sees the other (both have a sequentially consistent fence between): a worker never
//! starts a block whose changes it has not taken. All agree, as the decision is one word that is written once.
//!
//! Must not know kernels or what the numbers mean.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zbmd_ir::{ActorId, Graph, live_parameters};

use super::admission::AdmissionGrants;
use super::arena::{Arena, In};
use super::primitive::{AtomicU64, Ordering, fence};

/// Changes that some worker has not taken yet, at most.
pub(crate) const CAPACITY: u64 = 64;

/// Words of the queue before its places, and of a place before its numbers.
const HEAD_WORDS: usize = 1;
const PLACE_WORDS: usize = 5;
/// Words of a place.
const DECISION: usize = 0;
const KIND: usize = 1;
const SOURCE: usize = 2;
const TOKEN: usize = 3;
const FIRST_BLOCK: usize = 4;

const AT_BORDER: u64 = 0;
const AT_TOKEN: u64 = 1;
/// Decisions; anything above the last is the number of blocks granted, plus it.
const UNDECIDED: u64 = 0;
const REFUSED: u64 = 1;
const GRANTED: u64 = 2;

/// Where somebody wants a change to take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WantedPosition {
    /// With the next block, or with this block of the epoch where that is later.
    Border { first_block: u64 },
    /// At a token of a source, which lies in this block of the epoch.
    Token {
        source: ActorId,
        index: u64,
        block: u64,
    },
}

/// New values, by the index of the parameter.
pub(crate) type Values = Vec<(u32, Vec<f64>)>;

/// Where a change takes effect, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Decision {
    /// With this block of the epoch.
    Block(u64),
    /// At a token of a source.
    Token { source: ActorId, index: u64 },
    /// Never: the token's block had been granted.
    TooLate,
}

/// The changes of one epoch, in shared memory.
pub(crate) struct ChangeQueue {
    words: In<[AtomicU64]>,
    /// Numbers of each parameter.
    lengths: Vec<usize>,
}

impl ChangeQueue {
    /// Words that the queue takes for a graph; none without live parameters.
    pub(crate) fn words(graph: &Graph) -> usize {
        match lengths(graph).as_slice() {
            [] => 0,
            lengths => HEAD_WORDS + CAPACITY as usize * place_words(lengths),
        }
    }

    pub(crate) fn create(arena: &Arc<Arena>, offset: u64, graph: &Graph) -> Option<Self> {
        let count = Self::words(graph);
        (count > 0).then(|| Self {
            words: In::create(arena, offset, count, || AtomicU64::new(0)),
            lengths: lengths(graph),
        })
    }

    /// The queue that another process has created.
    ///
    /// # Safety
    /// [`Self::create`] has made it there for the same graph.
    #[expect(unsafe_code, reason = "believes what another process says")]
    pub(crate) unsafe fn find(arena: &Arc<Arena>, offset: u64, graph: &Graph) -> Option<Self> {
        let count = Self::words(graph);
        (count > 0).then(|| Self {
            // SAFETY: the caller's promise.
            words: unsafe { In::find(arena, offset, count) },
            lengths: lengths(graph),
        })
    }

    /// Changes published so far.
    pub(crate) fn published(&self) -> u64 {
        self.words[0].load(Ordering::Acquire)
    }

    /// Publishes a change and decides upon it. One thread at a time; all workers have taken all but [`CAPACITY`] - 1 of
    /// the changes before.
    pub(crate) fn publish(
        &self,
        position: WantedPosition,
        values: &Values,
        grants: &AdmissionGrants,
    ) -> Decision {
        let number = self.words[0].load(Ordering::Relaxed);
        let place = self.place(number);
        let (kind, source, token, block) = match position {
            WantedPosition::Border { first_block } => (AT_BORDER, 0, 0, first_block),
            WantedPosition::Token {
                source,
                index,
                block,
            } => (AT_TOKEN, u64::from(source.0), index, block),
        };
        for (word, value) in [
            (DECISION, UNDECIDED),
            (KIND, kind),
            (SOURCE, source),
            (TOKEN, token),
            (FIRST_BLOCK, block),
        ] {
            place[word].store(value, Ordering::Relaxed);
        }
        let mut at = PLACE_WORDS;
        for (parameter, &length) in (0..).zip(&self.lengths) {
            let numbers = values.iter().find(|(index, _)| *index == parameter);
            place[at].store(u64::from(numbers.is_some()), Ordering::Relaxed);
            for (word, number) in place[at + 1..]
                .iter()
                .zip(numbers.iter().flat_map(|(_, n)| n))
            {
                word.store(number.to_bits(), Ordering::Relaxed);
            }
            at += 1 + length;
        }
        self.words[0].store(number + 1, Ordering::Release);
        // Partner: the fence in `take`.
        fence(Ordering::SeqCst);
        self.decide(number, grants)
    }

    /// The changes from `taken` on, for a worker that has just been granted a block or more.
    pub(crate) fn take(
        &self,
        taken: &mut u64,
        grants: &AdmissionGrants,
        mut each: impl FnMut(Decision, Values),
    ) {
        // Partner: the fence in `publish`. What was granted after the decision is seen here with the change.
        fence(Ordering::SeqCst);
        while *taken < self.published() {
            // Whoever published it may have lost its core before it decided: nobody waits for that.
            let decision = self.decide(*taken, grants);
            each(decision, self.values(*taken));
            *taken += 1;
        }
    }

    fn decide(&self, number: u64, grants: &AdmissionGrants) -> Decision {
        let place = self.place(number);
        let is_at_token = place[KIND].load(Ordering::Relaxed) == AT_TOKEN;
        let granted = grants.granted();
        let first_block = place[FIRST_BLOCK].load(Ordering::Relaxed);
        let wanted = match is_at_token {
            true if first_block < granted => REFUSED,
            true => GRANTED + granted,
            false => GRANTED + granted.max(first_block),
        };
        let decided = place[DECISION].compare_exchange(
            UNDECIDED,
            wanted,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        match decided.map_or_else(|found| found, |_| wanted) {
            REFUSED => Decision::TooLate,
            _ if is_at_token => Decision::Token {
                source: ActorId(place[SOURCE].load(Ordering::Relaxed) as u32),
                index: place[TOKEN].load(Ordering::Relaxed),
            },
            granted => Decision::Block(granted - GRANTED),
        }
    }

    fn values(&self, number: u64) -> Values {
        let place = self.place(number);
        let mut values = Values::new();
        let mut at = PLACE_WORDS;
        for (parameter, &length) in (0..).zip(&self.lengths) {
            if place[at].load(Ordering::Relaxed) != 0 {
                let words = place[at + 1..][..length].iter();
                let numbers = words.map(|word| f64::from_bits(word.load(Ordering::Relaxed)));
                values.push((parameter, numbers.collect()));
            }
            at += 1 + length;
        }
        values
    }

    fn place(&self, number: u64) -> &[AtomicU64] {
        let words = place_words(&self.lengths);
        let first = HEAD_WORDS + (number % CAPACITY) as usize * words;
        &self.words[first..first + words]
    }
}

fn lengths(graph: &Graph) -> Vec<usize> {
    let parameters = live_parameters(graph);
    parameters
        .iter()
        .map(|parameter| parameter.initial.len())
        .collect()
}

/// Words of a place: of each parameter whether it changes, and its numbers.
fn place_words(lengths: &[usize]) -> usize {
    PLACE_WORDS + lengths.iter().map(|length| 1 + length).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_ir::testing::programs;
    use zbmd_ir::{LiveParameter, Value};

    /// A graph with the live parameters `a`, one number, and `b`, two.
    fn graph() -> Graph {
        let mut graph = programs::chain().graph;
        for (name, initial) in [("a", vec![1.0]), ("b", vec![2.0, 3.0])] {
            let parameter = LiveParameter {
                name: name.to_owned(),
                is_list: initial.len() > 1,
                initial,
                min: 0.0,
                max: 9.0,
            };
            let params = &mut graph.actors[ActorId(1)].params;
            params.insert(name.to_owned(), Value::Live(Box::new(parameter)));
        }
        graph
    }

    fn queue(graph: &Graph) -> ChangeQueue {
        let bytes = 8 * ChangeQueue::words(graph) as u64;
        let arena = Arc::new(Arena::new(bytes, false).expect("little memory"));
        ChangeQueue::create(&arena, 0, graph).expect("live parameters")
    }

    #[test]
    fn changes_come_out_as_they_went_in_however_often_places_are_used_again() {
        let queue = queue(&graph());
        let grants = AdmissionGrants::new();
        let mut taken = 0;
        for number in 0..3 * CAPACITY {
            let values = match number % 3 {
                0 => vec![(0, vec![number as f64])],
                1 => vec![(1, vec![number as f64, -0.5])],
                _ => vec![(0, vec![0.25]), (1, vec![-1.0, number as f64])],
            };
            let wanted = WantedPosition::Border { first_block: 0 };
            let decision = queue.publish(wanted, &values, &grants);
            assert_eq!(decision, Decision::Block(0));
            let mut found = Vec::new();
            queue.take(&mut taken, &grants, |decision, values| {
                found.push((decision, values))
            });
            assert_eq!(found, [(decision, values)]);
        }
    }

    #[test]
    fn a_change_waits_for_the_first_block_that_was_not_granted() {
        let queue = queue(&graph());
        let grants = AdmissionGrants::new();
        grants.grant(0, 5);
        let values = vec![(0, vec![2.0])];
        let at_border = |first_block| WantedPosition::Border { first_block };
        let found = queue.publish(at_border(0), &values, &grants);
        assert_eq!(found, Decision::Block(5));
        // An earlier epoch had been granted more: its blocks have given out tokens without the change.
        let found = queue.publish(at_border(9), &values, &grants);
        assert_eq!(found, Decision::Block(9));
        let at_token = |block| WantedPosition::Token {
            source: ActorId(0),
            index: 77,
            block,
        };
        assert_eq!(
            queue.publish(at_token(4), &values, &grants),
            Decision::TooLate
        );
        let in_time = Decision::Token {
            source: ActorId(0),
            index: 77,
        };
        assert_eq!(queue.publish(at_token(5), &values, &grants), in_time);

        // What was decided stays so, whatever is granted later.
        grants.grant(5, 5);
        let mut decisions = Vec::new();
        queue.take(&mut 0, &grants, |decision, _| decisions.push(decision));
        let expect = [
            Decision::Block(5),
            Decision::Block(9),
            Decision::TooLate,
            in_time,
        ];
        assert_eq!(decisions, expect);
    }
}
