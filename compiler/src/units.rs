//! Numbers with units, as the command line and machine files write them: `5ms`, `1MiB`, `10GB/s`.

/// Why a quantity cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UnitError {
    /// No number in front.
    #[error("`{0}` does not start with a number")]
    Number(String),
    /// A unit that is not known here.
    #[error("`{unit}` is no unit here: write one of {known}")]
    Unit {
        /// What was written.
        unit: String,
        /// What could be.
        known: String,
    },
    /// Negative, not finite, or too large for 64 bits.
    #[error("`{0}` is out of range")]
    Range(String),
}

const TIMES: &[(&str, f64)] = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("min", 60e9),
];
const SIZES: &[(&str, f64)] = &[
    ("", 1.0),
    ("B", 1.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
];
const COUNTS: &[(&str, f64)] = &[
    ("", 1.0),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
];

/// Nanoseconds of a duration: `250us`, `5ms`, `1.5 s`.
///
/// # Errors
/// See [`UnitError`]; a duration without a unit is refused.
pub fn duration_ns(text: &str) -> Result<u64, UnitError> {
    quantity(text, TIMES)
}

/// Bytes of a size: `64KiB`, `1.5 GB`, `4096`.
///
/// # Errors
/// See [`UnitError`].
pub fn bytes(text: &str) -> Result<u64, UnitError> {
    quantity(text, SIZES)
}

/// Bytes per second: `10GB/s`.
///
/// # Errors
/// See [`UnitError`].
pub fn bytes_per_s(text: &str) -> Result<u64, UnitError> {
    bytes(text.trim().strip_suffix("/s").unwrap_or(text))
}

/// Operations per second: `50 GFLOP/s`, `50G`.
///
/// # Errors
/// See [`UnitError`].
pub fn per_s(text: &str) -> Result<u64, UnitError> {
    let text = text.trim();
    let text = text.strip_suffix("/s").unwrap_or(text);
    quantity(text.strip_suffix("FLOP").unwrap_or(text), COUNTS)
}

fn quantity(text: &str, units: &[(&str, f64)]) -> Result<u64, UnitError> {
    let text = text.trim();
    let number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '_');
    let end = text.find(|c| !number(c)).unwrap_or(text.len());
    // `1e6` and `1e-3`, but not the `E` of an unknown unit.
    let exponent = text[end..].strip_prefix(['e', 'E']).map(|rest| {
        let sign = usize::from(rest.starts_with(['+', '-']));
        let digits = rest[sign..]
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len() - sign);
        if digits == 0 { 0 } else { 1 + sign + digits }
    });
    let end = end + exponent.unwrap_or(0);
    let value: f64 = text[..end]
        .replace('_', "")
        .parse()
        .map_err(|_| UnitError::Number(text.to_owned()))?;
    let unit = text[end..].trim();
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        let known: Vec<&str> = units
            .iter()
            .map(|(n, _)| *n)
            .filter(|n| !n.is_empty())
            .collect();
        return Err(UnitError::Unit {
            unit: unit.to_owned(),
            known: known.join(", "),
        });
    };

    let scaled = value * factor;
    if !(0.0..1.8e19).contains(&scaled) {
        return Err(UnitError::Range(text.to_owned()));
    }
    Ok(scaled.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        let unit = |unit: &str, units: &[(&str, f64)]| {
            let known: Vec<&str> = units
                .iter()
                .map(|(n, _)| *n)
                .filter(|n| !n.is_empty())
                .collect();
            Err(UnitError::Unit {
                unit: unit.into(),
                known: known.join(", "),
            })
        };
        assert_eq!(duration_ns("5ms"), Ok(5_000_000));
        assert_eq!(duration_ns(" 1.5 s "), Ok(1_500_000_000));
        assert_eq!(duration_ns("1e3us"), Ok(1_000_000));
        assert_eq!(duration_ns("5"), unit("", TIMES));
        assert_eq!(duration_ns("5 parsecs"), unit("parsecs", TIMES));
        assert_eq!(duration_ns("ms"), Err(UnitError::Number("ms".into())));
        assert_eq!(duration_ns("-5ms"), Err(UnitError::Number("-5ms".into())));
        assert_eq!(duration_ns("1e30s"), Err(UnitError::Range("1e30s".into())));
        assert_eq!(bytes("1MiB"), Ok(1 << 20));
        assert_eq!(bytes("1_000"), Ok(1000));
        assert_eq!(bytes("1mib"), unit("mib", SIZES));
        assert_eq!(bytes_per_s("10GB/s"), Ok(10_000_000_000));
        assert_eq!(per_s("50 GFLOP/s"), Ok(50_000_000_000));
        assert_eq!(per_s("2e9"), Ok(2_000_000_000));
        assert!(bytes("1..2MiB").is_err());
    }
}
