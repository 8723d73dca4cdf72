//! Quantities with units for people.

/// Nanoseconds with three significant digits: `999 ns`, `1.31 ms`.
pub fn duration(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    match units.into_iter().find(|&(size, _)| ns >= size) {
        None => format!("{ns} ns"),
        Some((size, unit)) => {
            let scaled_value = ns as f64 / size as f64;
            // Rounding can give a digit more: 9.996 is 10.0 with three digits.
            let decimal_digits = if scaled_value < 9.995 {
                2
            } else if scaled_value < 99.95 {
                1
            } else {
                0
            };
            format!("{scaled_value:.decimal_digits$} {unit}")
        }
    }
}

/// Bytes in binary units, one decimal unless it is a whole number: `12.5 KiB`, `1 MiB`.
pub fn bytes(bytes: u64) -> String {
    let units = [
        (1u64 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    match units.into_iter().find(|&(size, _)| bytes >= size) {
        None => format!("{bytes} B"),
        Some((size, unit)) if bytes.is_multiple_of(size) => format!("{} {unit}", bytes / size),
        Some((size, unit)) => format!("{:.1} {unit}", bytes as f64 / size as f64),
    }
}

/// A number of things that are named by adding an s: `1 call`, `2 calls`.
pub fn count(n: impl Into<u128>, one: &str) -> String {
    let n = n.into();
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

/// The unit of a column of times, chosen by the largest: its nanoseconds.
pub(super) fn column_unit(largest_ns: u64) -> u64 {
    [1_000_000_000, 1_000_000, 1_000]
        .into_iter()
        .find(|&size| largest_ns >= size)
        .unwrap_or(1)
}

/// Nanoseconds in a unit of [`column_unit`]; thousandths, or whole nanoseconds.
pub(super) fn in_unit(ns: u64, unit: u64) -> String {
    if unit == 1 {
        return ns.to_string();
    }
    let thousandths = (u128::from(ns) * 1000 + u128::from(unit / 2)) / u128::from(unit);
    format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        let durations = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (9_996, "10.0 us"),
            (99_960, "100 us"),
            (1_310_000, "1.31 ms"),
            (61_000_000_000, "61.0 s"),
        ];
        for (ns, expected) in durations {
            assert_eq!(duration(ns), expected);
        }
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (12 << 10, "12 KiB"),
            (1500, "1.5 KiB"),
            (1 << 46, "64 TiB"),
        ];
        for (size, expected) in sizes {
            assert_eq!(bytes(size), expected);
        }
        assert_eq!(
            [0_u32, 1, 2].map(|n| count(n, "call")),
            ["0 calls", "1 call", "2 calls"]
        );
        assert_eq!(in_unit(412_499, column_unit(1_310_000)), "0.412");
        assert_eq!(in_unit(999, column_unit(999)), "999");
    }
}
