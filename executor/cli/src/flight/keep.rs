//! How much of a run a recording keeps.

use std::time::Duration;

use crate::args::duration;

/// How much is kept: what is older goes, as soon as nothing younger needs it. With both limits, what either has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    /// The last so long.
    pub(crate) time: Option<Duration>,
    /// As much as so many bytes hold.
    pub(crate) bytes: Option<u64>,
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

/// Reads `10m`, `2GiB` or `10m,2GiB`.
pub(crate) fn keep(text: &str) -> Result<Keep, String> {
    let mut keep = Keep::default();
    for part in text.split(',') {
        let part = part.trim();
        let mut units = UNITS.iter();
        let sized = units.find_map(|(unit, bytes)| Some((part.strip_suffix(unit)?, *bytes)));
        let is_second = match sized {
            Some((number, unit_bytes)) => keep.bytes.replace(size(number, unit_bytes)?).is_some(),
            None => keep.time.replace(time(part)?).is_some(),
        };
        if is_second {
            return Err("has two times or two sizes: write one of each at most".to_owned());
        }
    }
    Ok(keep)
}

fn size(number: &str, unit_bytes: u64) -> Result<u64, String> {
    let number: Option<f64> = number.trim().parse().ok();
    let bytes = number.map(|number| number * unit_bytes as f64);
    // 2^53: from there on a float does not count bytes.
    match bytes.filter(|bytes| (1.0..=9e15).contains(bytes)) {
        Some(bytes) => Ok(bytes as u64),
        None => Err("write a size such as 500MiB or 2GiB, at most 8000TiB".to_owned()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        Ok(_) => Err("is nothing: write a time or a size that is more".to_owned()),
        Err(why) if why.starts_with("is longer") => Err(why),
        Err(_) => Err("write a time, a size or both: 30s, 10m, 500MiB or 10m,2GiB".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_told_apart() {
        let keeps = |seconds: Option<u64>, bytes| {
            let time = seconds.map(Duration::from_secs);
            Some(Keep { time, bytes })
        };
        for (text, expect) in [
            ("10m", keeps(Some(600), None)),
            ("30s", keeps(Some(30), None)),
            ("2GiB", keeps(None, Some(2 << 30))),
            ("1.5 MiB", keeps(None, Some(3 << 19))),
            ("500MB", keeps(None, Some(500_000_000))),
            ("64kB", keeps(None, Some(64_000))),
            ("10m,2GiB", keeps(Some(600), Some(2 << 30))),
            ("2GiB, 10m", keeps(Some(600), Some(2 << 30))),
            ("10m,20m", None),
            ("1GiB,2GiB", None),
            ("10m,", None),
            ("10m,2GiB,3s", None),
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
