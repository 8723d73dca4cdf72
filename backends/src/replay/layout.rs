//! Where the bytes of a device's regions lie: a region is a row of banks, because single buffers end at a few GiB, and
//! no buffer of the plan lies in two.

use super::queue::Range;

/// A region cut into banks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Number of the first bank in the table.
    first: u32,
    /// Half-open ranges of offsets, in order; what lies between is not used.
    banks: Vec<(u64, u64)>,
}

/// A run of live bytes that no bank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLarge {
    pub(super) bytes: u64,
    pub(super) limit: u64,
}

impl Layout {
    /// Banks of at most `limit` bytes for memory `[offset, end)`, in any order and overlapping; numbered from `first`.
    pub(super) fn new(
        mut memory: Vec<(u64, u64)>,
        limit: u64,
        first: u32,
    ) -> Result<Self, TooLarge> {
        memory.retain(|(offset, end)| offset < end);
        memory.sort_unstable();
        // What overlaps stays together.
        let mut whole: Vec<(u64, u64)> = Vec::new();
        for (offset, end) in memory {
            match whole.last_mut() {
                Some(last) if offset < last.1 => last.1 = last.1.max(end),
                _ => whole.push((offset, end)),
            }
        }
        let mut banks: Vec<(u64, u64)> = Vec::new();
        for (offset, end) in whole {
            if end - offset > limit {
                return Err(TooLarge {
                    bytes: end - offset,
                    limit,
                });
            }
            match banks.last_mut() {
                Some(bank) if end - bank.0 <= limit => bank.1 = end,
                _ => banks.push((offset, end)),
            }
        }
        Ok(Self { first, banks })
    }

    /// Bytes of each bank.
    pub(super) fn sizes(&self) -> impl Iterator<Item = u64> {
        self.banks.iter().map(|(offset, end)| end - offset)
    }

    /// `len` bytes from `offset`, which lie in one of the buffers that the layout was made for.
    pub(super) fn range(&self, offset: u64, len: u64) -> Range {
        let after = self.banks.partition_point(|bank| bank.0 <= offset);
        let index = after.saturating_sub(1);
        let bank = self.banks.get(index).copied().unwrap_or((offset, offset));
        assert!(
            offset + len <= bank.1 || len == 0,
            "{offset} + {len} is in no bank"
        );
        Range::new(self.first + index as u32, offset - bank.0, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banks_hold_whole_buffers() {
        for (memory, limit, banks) in [
            (vec![(0, 64), (64, 128)], 128, Ok(vec![(0, 128)])),
            (vec![(64, 128), (0, 64)], 100, Ok(vec![(0, 64), (64, 128)])),
            (
                vec![(0, 64), (32, 96), (128, 192)],
                128,
                Ok(vec![(0, 96), (128, 192)]),
            ),
            (
                vec![(0, 64), (32, 160)],
                128,
                Err(TooLarge {
                    bytes: 160,
                    limit: 128,
                }),
            ),
            (vec![(64, 64)], 128, Ok(vec![])),
        ] {
            let found = Layout::new(memory, limit, 0).map(|l| l.banks);
            assert_eq!(found, banks);
        }
        let layout = Layout::new(vec![(0, 64), (128, 256), (256, 320)], 192, 5).expect("fits");
        assert_eq!(layout.range(16, 8), Range::new(5, 16, 8));
        assert_eq!(layout.range(256, 64), Range::new(6, 128, 64));
        assert_eq!(layout.sizes().collect::<Vec<_>>(), [64, 192]);
    }
}
