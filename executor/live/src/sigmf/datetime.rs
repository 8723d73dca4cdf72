//! Times as SigMF has them: `2026-11-25T07:44:06.123456Z`. Must not know time zones or leap seconds.

/// A time in nanoseconds since 1970, to the microsecond.
pub(super) fn text(unix_ns: u64) -> String {
    let micros = unix_ns / 1000 % 1_000_000;
    let seconds = unix_ns / 1_000_000_000;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = date(seconds / 86_400);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Year, month and day of a day since 1970 (Richards 2013, in the Explanatory Supplement to the Astronomical Almanac: years
/// begin in March, so that the leap day is their last).
fn date(days: u64) -> (u64, u64, u64) {
    /// Days from 1 March of the year 0 to 1 January 1970, and in 400 years.
    const DAYS_BEFORE: u64 = 719_468;
    const ERA_DAYS: u64 = 146_097;
    let days = days + DAYS_BEFORE;
    let (era, day_of_era) = (days / ERA_DAYS, days % ERA_DAYS);
    let leap_days = day_of_era / 1460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, expect) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_709_164_799, "2024-02-28T23:59:59.000000Z"),
            (4_107_542_399, "2100-02-28T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(text(seconds * 1_000_000_000), expect);
        }
        assert_eq!(text(1_234_567_899), "1970-01-01T00:00:01.234567Z");
        assert!(text(u64::MAX).starts_with("2554-"));
    }

    #[test]
    fn days_follow_on_each_other() {
        let mut last = date(0);
        for day in 1..200_000 {
            let next = date(day);
            let (year, month, number) = last;
            let is_next = next == (year, month, number + 1)
                || next == (year, month + 1, 1)
                || next == (year + 1, 1, 1) && (month, number) == (12, 31);
            assert!(is_next, "{last:?} {next:?}");
            last = next;
        }
    }
}
