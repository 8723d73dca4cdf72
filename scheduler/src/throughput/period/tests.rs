//! Order and text of fractions.

use super::*;

#[test]
fn order_is_that_of_the_numbers() {
    let p = |num, den| Period::new(num, den).expect("not over zero");
    let ascending = [
        p(0, 5),
        p(1, u128::MAX),
        p(1, 3),
        p(2, 5),
        p(1, 2),
        p(u128::MAX - 1, u128::MAX),
        p(1, 1),
        p(7, 2),
        p(15, 4),
        p(u128::MAX, 2),
        p(u128::MAX, 1),
    ];
    for (i, a) in ascending.iter().enumerate() {
        for (j, b) in ascending.iter().enumerate() {
            assert_eq!(a.cmp(b), i.cmp(&j), "{a} against {b}");
        }
    }
}

#[test]
fn fractions_are_reduced_and_printed() {
    for (num, den, text) in [(6, 4, "3/2"), (8, 4, "2"), (0, 9, "0")] {
        assert_eq!(
            Period::new(num, den).map(|p| p.to_string()).as_deref(),
            Some(text)
        );
    }
    assert_eq!(Period::new(1, 0), None);
}
