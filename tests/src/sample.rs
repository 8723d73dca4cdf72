//! How many cases a test looks at that draws them at random.

/// So many cases, or `ZBMD_SAMPLE` times as many: a whole number, 1 without it. As a rule a test takes seconds; `ZBMD_SAMPLE=10` is a
/// longer search.
///
/// # Panics
/// If the variable is something else.
pub fn cases(usual: u64) -> u64 {
    let times = std::env::var("ZBMD_SAMPLE").map_or(1, |text| {
        let times = text.parse().ok().filter(|times| *times > 0);
        times.unwrap_or_else(|| panic!("ZBMD_SAMPLE is a whole number above 0, not `{text}`"))
    });
    usual * times
}
