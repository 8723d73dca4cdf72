//! Where fetched weights go, and when their places are free.

use super::*;

/// Uses of weights, one entry each: `(first, last, bytes)`.
fn uses(list: &[(usize, usize, u64)]) -> Vec<WeightUse> {
    let numbered = (0..).zip(list);
    let uses = numbered.map(|(actor, &(first, last, bytes))| WeightUse {
        actor: ActorId(actor),
        stage: 0,
        first,
        last,
        bytes,
    });
    uses.collect()
}

/// Offset, the entry after which it begins, and whether it is for the next period, of each fetch.
fn placed(list: &[(usize, usize, u64)], region_bytes: u64) -> Option<Vec<(u64, usize, bool)>> {
    let placed = place_in_turn(&uses(list), region_bytes)?;
    let described = placed
        .iter()
        .map(|fetch| (fetch.offset_bytes, fetch.after, fetch.is_for_next));
    Some(described.collect())
}

#[test]
fn places_are_taken_in_turn() {
    let four = [(0, 0, 64), (1, 1, 64), (2, 2, 64), (3, 3, 64)];
    // Two places: each fetch waits for the one but one before it.
    let two = vec![(0, 2, true), (64, 3, true), (0, 0, false), (64, 1, false)];
    assert_eq!(placed(&four, 128), Some(two));
    // One place: for the one before it.
    let one = vec![(0, 3, true), (0, 0, false), (0, 1, false), (0, 2, false)];
    assert_eq!(placed(&four, 127), Some(one));
    assert_eq!(placed(&four, 63), None);

    // What does not fit behind the one before begins the region again, and waits for all that it covers.
    let unlike = [(0, 0, 64), (1, 1, 64), (2, 4, 100)];
    let covering = vec![(0, 4, true), (64, 4, true), (0, 1, false)];
    assert_eq!(placed(&unlike, 160), Some(covering));

    // Two that are used at the same time cannot share a place.
    assert_eq!(placed(&[(0, 3, 64), (2, 4, 64)], 64), None);
}

#[test]
fn each_beginning_is_spread() {
    assert_eq!(spread_order(0), [0; 0]);
    assert_eq!(spread_order(1), [0]);
    assert_eq!(spread_order(5), [0, 4, 2, 1, 3]);
    assert_eq!(spread_order(8), [0, 4, 2, 6, 1, 5, 3, 7]);
}
