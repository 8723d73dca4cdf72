//! What benchmarks print their figures by.

/// The median; not a number, of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
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
