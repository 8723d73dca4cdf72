//! Exact periods: non-negative rational numbers.

use std::cmp::Ordering;
use std::fmt;

use zbmd_ir::math::gcd;

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
        if den == 0 {
            return None;
        }
        let common = gcd(num, den);
        Some(Period {
            num: num / common,
            den: den / common,
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
        let mut left = *self;
        let mut right = *other;
        let mut is_flipped = false;

        loop {
            let left_rest = left.num % left.den;
            let right_rest = right.num % right.den;
            let order = (left.num / left.den).cmp(&(right.num / right.den));
            let order = match order {
                Ordering::Equal if left_rest == 0 || right_rest == 0 => left_rest.cmp(&right_rest),
                Ordering::Equal => {
                    // Equal whole parts: the larger remainder has the smaller reciprocal.
                    left = Period {
                        num: left.den,
                        den: left_rest,
                    };
                    right = Period {
                        num: right.den,
                        den: right_rest,
                    };
                    is_flipped = !is_flipped;
                    continue;
                }
                order => order,
            };
            return if is_flipped { order.reverse() } else { order };
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

#[cfg(test)]
mod tests;
