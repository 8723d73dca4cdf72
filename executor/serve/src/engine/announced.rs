//! Long requests that will be admitted once their tensors are there: each keeps a place in the queue, or all of many that come at once
//! would be told to come and most of them refused then.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A client that sends no tensors takes no place from others for longer than this.
const KEPT_FOR: Duration = Duration::from_millis(10);

/// When each place was given, in this order.
#[derive(Debug, Default)]
pub(super) struct AnnouncedRequests {
    since: VecDeque<Instant>,
}

impl AnnouncedRequests {
    /// Places that are kept at present.
    pub(super) fn count(&mut self, now: Instant) -> usize {
        while let Some(first) = self.since.front()
            && now.saturating_duration_since(*first) >= KEPT_FOR
        {
            self.since.pop_front();
        }
        self.since.len()
    }

    /// Keeps a place.
    pub(super) fn keep(&mut self, now: Instant) {
        self.since.push_back(now);
    }

    /// Gives back the place that was kept at this time, if it is still kept.
    pub(super) fn give_back(&mut self, since: Instant) {
        let place = self.since.iter().position(|kept| *kept == since);
        if let Some(place) = place {
            self.since.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_kept_for_a_while_or_until_they_are_given_back() {
        let begin = Instant::now();
        let after = |millis| begin + Duration::from_millis(millis);
        let mut announced = AnnouncedRequests::default();
        for millis in [0, 4, 8] {
            announced.keep(after(millis));
        }
        assert_eq!(announced.count(after(9)), 3);
        announced.give_back(after(4));
        assert_eq!(announced.count(after(9)), 2);

        // The first one's time is over; what it gives back then is nobody else's.
        assert_eq!(announced.count(after(10)), 1);
        announced.give_back(after(0));
        assert_eq!(announced.count(after(17)), 1);
        assert_eq!(announced.count(after(18)), 0);
    }
}
