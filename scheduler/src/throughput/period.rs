//! Exact periods: non-negative rational numbers.

use std::cmp::Ordering;
use std::fmt;

/// Time of one iteration as a reduced fraction, in the unit of the actors' times.
///
/// A fraction, because an iteration may overlap the next: three firings at once of an actor that takes 10 and fires
/// once per iteration give the period 10/3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    num: u128,
    den: u128,
}

impl Period {
    /// No bound at all: actors without cycles or of no duration.
    pub const ZERO: Period = Period { num: 0, den: 1 };

    /// `num / den` in lowest terms; `None` for a denominator of 0.
    pub fn new(num: u128, den: u128) -> Option<Self> {
        let g = gcd(num, den);
        (den > 0).then(|| Period {
            num: num / g,
            den: den / g,
        })
    }

    /// Numerator in lowest terms.
    pub fn num(self) -> u128 {
        self.num
    }

    /// Denominator in lowest terms, at least 1.
    pub fn den(self) -> u128 {
        self.den
    }

    /// The nearest float, for reports.
    pub fn as_f64(self) -> f64 {
        self.num as f64 / self.den as f64
    }
}

impl From<u64> for Period {
    fn from(whole: u64) -> Self {
        Period {
            num: u128::from(whole),
            den: 1,
        }
    }
}

impl Ord for Period {
    /// Compares continued fractions, so that no product can overflow.
    fn cmp(&self, other: &Self) -> Ordering {
        let (mut a, mut b) = ((self.num, self.den), (other.num, other.den));
        let mut flipped = false;
        loop {
            let (whole_a, whole_b) = (a.0 / a.1, b.0 / b.1);
            let (rest_a, rest_b) = (a.0 % a.1, b.0 % b.1);
            let order = match whole_a.cmp(&whole_b) {
                Ordering::Equal if rest_a == 0 || rest_b == 0 => rest_a.cmp(&rest_b),
                Ordering::Equal => {
                    (a, b) = ((a.1, rest_a), (b.1, rest_b));
                    flipped = !flipped;
                    continue;
                }
                order => order,
            };
            return if flipped { order.reverse() } else { order };
        }
    }
}

impl PartialOrd for Period {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.den {
            1 => self.num.to_string(),
            den => format!("{}/{den}", self.num),
        };
        f.pad(&text)
    }
}

pub(crate) fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests {
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
}
