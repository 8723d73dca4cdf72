//! Constants that a device keeps from one calendar to the next: weights are uploaded once, as long as the process lives.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3Default;

use super::queue::{Backend, Queue, Range};

/// Alignment of constants.
const ALIGN: u64 = 256;
/// Constants of this size and more have a bank of their own, so that another calendar finds them whatever else it
/// needs; smaller ones share banks, because drivers have only so many.
const ALONE: u64 = 64 << 10;
/// Bytes that are uploaded together at most, where no single constant is larger: so much memory of the host's it takes.
const TOGETHER: u64 = 64 << 20;

/// Constants on a device, by their content; nothing at first.
pub struct Kept<Q: Backend>(BTreeMap<u128, Arc<Q::Bank>>);

impl<Q: Backend> Default for Kept<Q> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<Q: Backend> std::fmt::Debug for Kept<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({} banks)", self.0.len())
    }
}

/// Constants in the making: which lie together, and where.
pub(super) struct Constants {
    limit: u64,
    groups: Vec<Group>,
    /// The group that small ones go to.
    shared: Option<usize>,
}

#[derive(Default)]
struct Group {
    parts: Vec<(u64, Bytes)>,
    bytes: u64,
}

impl Group {
    fn key(&self) -> u128 {
        let mut sum = Xxh3Default::new();
        for (at, bytes) in &self.parts {
            sum.update(&at.to_le_bytes());
            sum.update(&(bytes.len() as u64).to_le_bytes());
            sum.update(bytes);
        }
        sum.digest128()
    }
}

impl Constants {
    /// For banks of at most `limit` bytes.
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            groups: Vec::new(),
            shared: None,
        }
    }

    /// Where it will lie; the bank is the number of its group.
    pub(super) fn put(&mut self, bytes: &Bytes) -> Range {
        let len = bytes.len() as u64;
        let start = |group: &Group| group.bytes.next_multiple_of(ALIGN);
        let found = self
            .shared
            .filter(|g| start(&self.groups[*g]) + len <= self.limit);
        let group = found.filter(|_| len < ALONE).unwrap_or_else(|| {
            self.groups.push(Group::default());
            self.groups.len() - 1
        });
        if len < ALONE {
            self.shared = Some(group);
        }
        let at = start(&self.groups[group]);
        self.groups[group].parts.push((at, bytes.clone()));
        self.groups[group].bytes = at + len;
        Range::new(group as u32, at, len)
    }

    /// Brings them to the device; the bank of each group, and how many bytes were not there yet. What was kept and is
    /// not among them is given back before.
    pub(super) fn upload<Q: Queue>(
        &self,
        queue: &mut Q,
        kept: &mut Kept<Q>,
        patience_ns: u64,
    ) -> Result<(Vec<u32>, u64), Q::Fault> {
        let keys: Vec<u128> = self.groups.iter().map(Group::key).collect();
        kept.0.retain(|key, _| keys.contains(key));
        let (mut banks, mut uploaded) = (Vec::new(), 0);
        let (mut parts, mut waiting) = (Vec::new(), Vec::new());
        for (group, &key) in self.groups.iter().zip(&keys) {
            if let Some(bank) = kept.0.get(&key) {
                banks.push(queue.take(Arc::clone(bank)));
                continue;
            }
            let bank = queue.bank(group.bytes, super::Home::Device)?;
            banks.push(bank);
            waiting.push((key, bank));
            for (at, bytes) in group.parts.iter().filter(|(_, bytes)| !bytes.is_empty()) {
                parts.push((Range::new(bank, *at, bytes.len() as u64), &**bytes));
            }
            uploaded += group.bytes;
        }
        let mut rest = &parts[..];
        while !rest.is_empty() {
            let mut sum = 0;
            let next = rest.iter().position(|(to, _)| {
                sum += to.len();
                sum > TOGETHER
            });
            let (now, later) = rest.split_at(next.unwrap_or(rest.len()).max(1));
            queue.upload(now, patience_ns)?;
            rest = later;
        }
        // Whoever finds one later finds it whole.
        kept.0.extend(
            waiting
                .into_iter()
                .map(|(key, bank)| (key, queue.share(bank))),
        );
        Ok((banks, uploaded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_constants_are_alone_and_small_ones_share() {
        let (small, large) = (
            Bytes::from(vec![1; 300]),
            Bytes::from(vec![2; ALONE as usize]),
        );
        let mut constants = Constants::new(ALONE + 1000);
        let put = [&small, &large, &small, &large].map(|bytes| constants.put(bytes));
        let places = put.map(|range| (range.bank, range.start, range.len()));
        assert_eq!(
            places,
            [(0, 0, 300), (1, 0, ALONE), (0, 512, 300), (2, 0, ALONE)]
        );
        // The same bytes are the same; another place is not.
        let keys: Vec<u128> = constants.groups.iter().map(Group::key).collect();
        assert!(keys[1] == keys[2] && keys[0] != keys[1]);
        let mut full = Constants::new(512);
        assert_eq!([&small, &small].map(|bytes| full.put(bytes).bank), [0, 1]);
    }
}
