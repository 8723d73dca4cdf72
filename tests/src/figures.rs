//! What benchmarks print their figures by; those of other crates take this file too, or a part of it.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each bench uses a part"
)]

/// The median; not a number, of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// For each part, the value that so large a part of all is not above, by nearest rank: 0.5 for the median, 1 for the largest, 0 for the
/// smallest. Not a number, of nothing.
pub fn quantiles<const N: usize>(values: &[f64], parts: [f64; N]) -> [f64; N] {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    parts.map(|part| {
        let rank = (sorted.len() as f64 * part).ceil() as usize;
        let value = sorted.get(rank.saturating_sub(1));
        value.copied().unwrap_or(f64::NAN)
    })
}

/// The median of the ratios of turns: one value of each list was measured in each turn.
pub fn median_ratio(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(a, b)| a / b).collect())
}

/// A figure with so many digits behind the point; a dash where it is not a number.
pub fn text(value: f64, digits: usize) -> String {
    match value.is_nan() {
        true => "-".to_owned(),
        false => format!("{value:.digits$}"),
    }
}

/// The computer's load in the last minute: the mean number of threads that ran or waited for a core.
pub fn load() -> String {
    let loads = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    loads.split(' ').next().unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let found = quantiles(&values, [0.0, 0.5, 0.99, 0.999, 1.0]);
        assert_eq!(found, [1.0, 100.0, 198.0, 200.0, 200.0]);
        assert_eq!(quantiles(&[7.0], [0.5]), [7.0]);
        assert!(quantiles(&[], [0.5])[0].is_nan());
    }
}
