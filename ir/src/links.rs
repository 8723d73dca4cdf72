//! The links of a machine, neighbours with one speed kept as one.
//!
//! A machine of a thousand devices has a million links and few speeds: what is kept, written and read of it is some three
//! thousand runs.

use serde::{Deserialize, Serialize};

use crate::{DeviceId, Link};

/// The links of a machine: at most one for each ordered pair of devices, ascending by sender, then by receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Links {
    runs: Vec<LinkRun>,
}

/// Links of one speed from one device to several, whose ids follow one another; the sender's own is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRun {
    /// Sender of all of them.
    pub from: DeviceId,
    /// Receiver of the first.
    pub to: DeviceId,
    /// How many, at least 1.
    pub count: u32,
    /// Bandwidth of each in bytes per second, at least 1.
    pub bytes_per_s: u64,
    /// Time from the end of a send to the tokens' being readable.
    pub latency_ns: u64,
}

impl LinkRun {
    fn of(link: Link) -> Self {
        Self {
            from: link.from,
            to: link.to,
            count: 1,
            bytes_per_s: link.bytes_per_s,
            latency_ns: link.latency_ns,
        }
    }

    /// Id of a receiver by its place in the run. Wider than ids are, because a run that is not verified may end anywhere.
    fn receiver(&self, index: u32) -> u64 {
        let first = u64::from(self.to.0);
        let sender = u64::from(self.from.0);
        let receiver = first + u64::from(index);
        match first < sender && sender <= receiver {
            true => receiver + 1,
            false => receiver,
        }
    }

    /// Id of the last receiver.
    pub(crate) fn last_receiver(&self) -> u64 {
        self.receiver(self.count.saturating_sub(1))
    }

    /// Whether a link, or a run from it on, is a part of this one that was cut off.
    pub(crate) fn is_continued_by(&self, next: &LinkRun) -> bool {
        self.from == next.from
            && (self.bytes_per_s, self.latency_ns) == (next.bytes_per_s, next.latency_ns)
            && self.receiver(self.count) == u64::from(next.to.0)
    }

    fn has(&self, to: DeviceId) -> bool {
        let receivers = u64::from(self.to.0)..=self.last_receiver();
        let is_between = self.count > 0 && receivers.contains(&u64::from(to.0));
        is_between && (to != self.from || to == self.to)
    }

    fn link_to(&self, to: DeviceId) -> Link {
        Link {
            from: self.from,
            to,
            bytes_per_s: self.bytes_per_s,
            latency_ns: self.latency_ns,
        }
    }
}

impl Links {
    /// Links as a file has them: neither their order nor anything else is checked before they are verified.
    pub fn of_runs(runs: Vec<LinkRun>) -> Self {
        Self { runs }
    }

    /// A link between every two of so many devices, in both directions. `speed` is asked for the bandwidth in bytes per second
    /// and the latency in nanoseconds from one device to another.
    pub fn between_all(devices: usize, speed: impl Fn(DeviceId, DeviceId) -> (u64, u64)) -> Self {
        let ids = || (0..devices).map(DeviceId::from);
        let mut links = Self::default();
        for from in ids() {
            for to in ids().filter(|to| *to != from) {
                let (bytes_per_s, latency_ns) = speed(from, to);
                links.push(Link {
                    from,
                    to,
                    bytes_per_s,
                    latency_ns,
                });
            }
        }
        links
    }

    /// The runs, in order.
    pub fn runs(&self) -> &[LinkRun] {
        &self.runs
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many links, not runs. O(runs).
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.count as usize).sum()
    }

    /// All of them, in order. Of links that are not verified those to devices whose ids do not exist are left out.
    pub fn iter(&self) -> impl Iterator<Item = Link> {
        self.runs.iter().flat_map(|run| {
            let receivers =
                (0..run.count).map_while(|index| u32::try_from(run.receiver(index)).ok());
            receivers.map(|to| run.link_to(DeviceId(to)))
        })
    }

    /// The link from one device to another, if there is one. O(log runs).
    pub fn get(&self, from: DeviceId, to: DeviceId) -> Option<Link> {
        let behind = self
            .runs
            .partition_point(|run| (run.from, run.to) <= (from, to));
        let run = self.runs.get(behind.checked_sub(1)?)?;
        (run.from == from && run.has(to)).then(|| run.link_to(to))
    }

    /// Removes all of them.
    pub fn clear(&mut self) {
        self.runs.clear();
    }

    /// Changes each link, then puts them in order again. Of two that join the same devices then, the first is kept.
    pub fn change(&mut self, change: impl FnMut(&mut Link)) {
        let mut links: Vec<Link> = self.iter().collect();
        links.iter_mut().for_each(change);
        *self = links.into_iter().collect();
    }

    /// Keeps those that are wanted.
    pub fn retain(&mut self, mut is_wanted: impl FnMut(&Link) -> bool) {
        *self = self.iter().filter(|link| is_wanted(link)).collect();
    }

    /// Adds a link behind all others, of which none joins the same devices.
    fn push(&mut self, link: Link) {
        let run = LinkRun::of(link);
        match self.runs.last_mut() {
            Some(last) if last.is_continued_by(&run) => last.count += 1,
            _ => self.runs.push(run),
        }
    }
}

impl FromIterator<Link> for Links {
    /// Links in any order. Of two that join the same devices, the first is kept.
    fn from_iter<I: IntoIterator<Item = Link>>(links: I) -> Self {
        let mut sorted: Vec<Link> = links.into_iter().collect();
        sorted.sort_by_key(|link| (link.from, link.to));
        sorted.dedup_by_key(|link| (link.from, link.to));

        let mut links = Self::default();
        sorted.into_iter().for_each(|link| links.push(link));
        links
    }
}

impl Extend<Link> for Links {
    /// Links in any order. Those that join devices which are linked already are left out.
    fn extend<I: IntoIterator<Item = Link>>(&mut self, links: I) {
        *self = self.iter().chain(links).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::mutate::Random;

    fn link(from: u32, to: u32, latency_ns: u64) -> Link {
        Link {
            from: DeviceId(from),
            to: DeviceId(to),
            bytes_per_s: 1,
            latency_ns,
        }
    }

    fn pairs(devices: u32) -> impl Iterator<Item = (u32, u32)> {
        (0..devices).flat_map(move |from| (0..devices).map(move |to| (from, to)))
    }

    #[test]
    fn links_are_found_whatever_order_they_came_in() {
        let mut random = Random::new(1);
        for _ in 0..200 {
            // Few speeds, so that there are runs of more than one.
            let mut expected = BTreeMap::new();
            for (from, to) in pairs(7) {
                if from != to && random.below(5) > 0 {
                    expected.insert((from, to), link(from, to, random.below(2) as u64));
                }
            }
            let mut shuffled: Vec<Link> = expected.values().copied().collect();
            shuffled.sort_by_cached_key(|_| random.bits());

            let links: Links = shuffled.into_iter().collect();
            assert_eq!(links.len(), expected.len());
            assert!(links.iter().eq(expected.values().copied()));
            for (from, to) in pairs(9) {
                let found = links.get(DeviceId(from), DeviceId(to));
                assert_eq!(found, expected.get(&(from, to)).copied());
            }
        }
    }

    #[test]
    fn equal_neighbours_are_one_run_that_leaves_the_sender_out() {
        let all = Links::between_all(5, |_, _| (1, 3));
        let counts: Vec<u32> = all.runs().iter().map(|run| run.count).collect();
        assert_eq!(counts, [4; 5]);
        assert_eq!(all.get(DeviceId(2), DeviceId(2)), None);

        let mut slower = all.clone();
        slower.change(|link| link.latency_ns += u64::from(link.to == DeviceId(3)));
        let counts: Vec<u32> = slower.runs().iter().map(|run| run.count).collect();
        assert_eq!(counts, [2, 1, 1, 2, 1, 1, 2, 1, 1, 4, 3, 1]);
        slower.change(|link| link.latency_ns = 3);
        assert_eq!(slower, all);
    }

    #[test]
    fn of_two_links_between_the_same_devices_the_first_is_kept() {
        let mut links: Links = [link(1, 0, 7), link(0, 1, 5), link(1, 0, 8)]
            .into_iter()
            .collect();
        links.extend([link(0, 1, 9), link(0, 2, 5)]);
        let kept: Vec<Link> = links.iter().collect();
        assert_eq!(kept, [link(0, 1, 5), link(0, 2, 5), link(1, 0, 7)]);
    }

    #[test]
    fn runs_of_a_hostile_file_end_nowhere_and_are_walked_all_the_same() {
        let links = Links::of_runs(vec![LinkRun {
            from: DeviceId(u32::MAX),
            to: DeviceId(u32::MAX - 2),
            count: u32::MAX,
            bytes_per_s: 0,
            latency_ns: 0,
        }]);
        assert_eq!(links.len(), u32::MAX as usize);
        let receivers: Vec<u32> = links.iter().map(|link| link.to.0).collect();
        assert_eq!(receivers, [u32::MAX - 2, u32::MAX - 1]);
        assert_eq!(links.runs()[0].last_receiver(), 2 * u64::from(u32::MAX) - 2);
    }
}
