//! Whole-number arithmetic that several crates need.

/// Greatest common divisor by Euclid's algorithm; `gcd(0, n)` is `n`. O(log min(a, b)) divisions.
pub fn gcd(a: u128, b: u128) -> u128 {
    let mut dividend = a;
    let mut divisor = b;

    while divisor != 0 {
        // Most operands are small, and a division of 128 bits takes many times as long as one of 64.
        if let (Ok(small_dividend), Ok(small_divisor)) =
            (u64::try_from(dividend), u64::try_from(divisor))
        {
            return gcd_u64(small_dividend, small_divisor).into();
        }
        let remainder = dividend % divisor;
        dividend = divisor;
        divisor = remainder;
    }

    dividend
}

/// [`gcd`] of 64-bit numbers.
pub fn gcd_u64(a: u64, b: u64) -> u64 {
    let mut dividend = a;
    let mut divisor = b;

    while divisor != 0 {
        let remainder = dividend % divisor;
        dividend = divisor;
        divisor = remainder;
    }
    dividend
}

/// Least common multiple; `None` where it exceeds 128 bits. `lcm(0, n)` is 0.
pub fn lcm(a: u128, b: u128) -> Option<u128> {
    match gcd(a, b) {
        0 => Some(0),
        common => (a / common).checked_mul(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisors_and_multiples_at_their_ends() {
        for (a, b, divisor, multiple) in [
            (0, 0, 0, Some(0)),
            (0, 7, 7, Some(0)),
            (7, 0, 7, Some(0)),
            (12, 18, 6, Some(36)),
            (17, 5, 1, Some(85)),
            (u128::MAX, u128::MAX, u128::MAX, Some(u128::MAX)),
            (u128::MAX, u128::MAX - 1, 1, None),
            (u128::MAX, 1 << 64, 1, None),
            (6 << 64, 4 << 64, 2 << 64, Some(12 << 64)),
        ] {
            assert_eq!(gcd(a, b), divisor, "gcd({a}, {b})");
            assert_eq!(lcm(a, b), multiple, "lcm({a}, {b})");
        }
    }
}
