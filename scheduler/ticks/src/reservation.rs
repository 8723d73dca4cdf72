//! Which ticks of a period are taken.

use std::collections::BTreeMap;

/// Ticks of something that can do one thing at a time, modulo the period.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reservation {
    /// Start and end of each stretch of taken ticks within the period; no two touch.
    taken: BTreeMap<u64, u64>,
    count: u64,
}

impl Reservation {
    /// Ticks that are taken in a period.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The end of the stretch of taken ticks that a tick of the period lies in.
    fn taken_until(&self, tick: u64) -> Option<u64> {
        let (_, &end) = self.taken.range(..=tick).next_back()?;
        (end > tick).then_some(end)
    }

    /// The first tick at or after `from` at which so many ticks in a row are free, at least 1.
    pub(crate) fn first_free(&self, from: u64, length: u64, period: u64) -> Option<u64> {
        if length > period || self.count + length > period {
            return None;
        }
        let mut start = from;
        while start < from + period {
            let tick = start % period;
            if let Some(end) = self.taken_until(tick) {
                start += end - tick;
                continue;
            }
            let next_taken = self.taken.range(tick..).next().map(|(&next, _)| next);
            // Behind the last stretch it goes on at the first one of the next period.
            let free_until = next_taken.or_else(|| {
                let (&first, _) = self.taken.first_key_value()?;
                Some(first + period)
            });
            let free = free_until.map_or(period, |until| until - tick);
            if free >= length {
                return Some(start);
            }
            start += free;
        }
        None
    }

    /// Takes ticks that are free.
    pub(crate) fn take(&mut self, start: u64, length: u64, period: u64) {
        let tick = start % period;
        let first = length.min(period - tick);
        self.take_within(tick, tick + first);
        if length > first {
            self.take_within(0, length - first);
        }
        self.count += length;
    }

    fn take_within(&mut self, mut start: u64, mut end: u64) {
        if let Some((&before, &before_end)) = self.taken.range(..start).next_back()
            && before_end == start
        {
            start = before;
        }
        if let Some(after_end) = self.taken.remove(&end) {
            end = after_end;
        }
        self.taken.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list of ticks.
    #[test]
    fn gaps_are_found_as_by_looking_at_every_tick() {
        let mut number = 12_345_u64;
        let mut below = |bound: u64| {
            number = number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (number >> 33) % bound
        };
        for _ in 0..300 {
            let period = 1 + below(40);
            let mut reservation = Reservation::default();
            let mut ticks = vec![false; period as usize];
            for _ in 0..20 {
                let (from, length) = (below(100), 1 + below(6));
                let is_free = |start: u64| {
                    let mut span = start..start + length;
                    length <= period && span.all(|tick| !ticks[(tick % period) as usize])
                };
                let expected = (from..from + period).find(|&start| is_free(start));
                let found = reservation.first_free(from, length, period);
                assert_eq!(
                    found, expected,
                    "{length} of {period} from {from}: {ticks:?}"
                );
                if let Some(start) = found {
                    reservation.take(start, length, period);
                    for tick in start..start + length {
                        ticks[(tick % period) as usize] = true;
                    }
                }
            }
            let taken = ticks.iter().filter(|&&taken| taken).count();
            assert_eq!(reservation.count(), taken as u64);
        }
    }
}
