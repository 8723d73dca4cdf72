//! How much of a run a recording keeps.

use std::time::Duration;

use crate::args::duration;

/// How much is kept: what is older goes, as soon as nothing younger needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// All of the last so long.
    Time(Duration),
    /// As much as so many bytes hold.
    Bytes(u64),
}

/// Units of bytes, longer names before those that they end in.
const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Reads `10m` or `2GiB`.
pub(crate) fn keep(text: &str) -> Result<Keep, String> {
    let mut units = UNITS.iter();
    let found = units.find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let Some((number, unit_bytes)) = found else {
        return match duration(text) {
            Ok(time) if !time.is_zero() => Ok(Keep::Time(time)),
            Ok(_) => Err("is nothing: write a time or a size that is more".to_owned()),
            Err(why) if why.starts_with("is longer") => Err(why),
            Err(_) => Err("write a time or a size: 30s, 10m, 500MiB or 2GiB".to_owned()),
        };
    };
    let number: Option<f64> = number.trim().parse().ok();
    let bytes = number.map(|number| number * unit_bytes as f64);
    // 2^53: from there on a float does not count bytes.
    match bytes.filter(|bytes| (1.0..=9e15).contains(bytes)) {
        Some(bytes) => Ok(Keep::Bytes(bytes as u64)),
        None => Err("write a size such as 500MiB or 2GiB, at most 8000TiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_told_apart() {
        let time = |seconds| Some(Keep::Time(Duration::from_secs(seconds)));
        for (text, expect) in [
            ("10m", time(600)),
            ("30s", time(30)),
            ("2GiB", Some(Keep::Bytes(2 << 30))),
            ("1.5 MiB", Some(Keep::Bytes(3 << 19))),
            ("500MB", Some(Keep::Bytes(500_000_000))),
            ("64kB", Some(Keep::Bytes(64_000))),
            ("0s", None),
            ("0MiB", None),
            ("-1GiB", None),
            ("nanGiB", None),
            ("infGiB", None),
            ("9000TiB", None),
            ("GiB", None),
            ("10", None),
            ("", None),
        ] {
            assert_eq!(keep(text).ok(), expect, "{text}");
        }
    }
}
