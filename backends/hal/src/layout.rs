//! Where the bytes of a device's regions are: a region is a row of banks, because single buffers end at a few GiB, and
//! no buffer of the plan is divided between two.

use super::queue::BankRange;

/// Half-open range of offsets.
pub(super) type OffsetRange = (u64, u64);

/// A region divided into banks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RegionLayout {
    /// Number of the first bank in the table.
    first: u32,
    /// In order; what is between them is not used.
    banks: Vec<OffsetRange>,
}

/// A run of live bytes that no bank can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferTooLarge {
    pub(super) bytes: u64,
    pub(super) limit: u64,
}

impl RegionLayout {
    /// Banks of at most `limit` bytes for memory `[offset, end)`, in any order and overlapping; numbered from `first`.
    pub(super) fn new(
        memory: Vec<OffsetRange>,
        limit: u64,
        first: u32,
    ) -> Result<Self, BufferTooLarge> {
        let mut banks: Vec<OffsetRange> = Vec::new();
        for (offset, end) in merge_overlapping(memory) {
            if end - offset > limit {
                return Err(BufferTooLarge {
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
    pub(super) fn bank_sizes(&self) -> impl Iterator<Item = u64> {
        self.banks.iter().map(|(offset, end)| end - offset)
    }

    /// `len` bytes from `offset`, which are part of one of the buffers that the layout was made for.
    pub(super) fn range(&self, offset: u64, len: u64) -> BankRange {
        let banks_before = self.banks.partition_point(|bank| bank.0 <= offset);
        let index = banks_before.saturating_sub(1);
        let (bank_start, bank_end) = self.banks.get(index).copied().unwrap_or((offset, offset));
        assert!(
            offset + len <= bank_end || len == 0,
            "{offset} + {len} is in no bank"
        );
        BankRange::new(self.first + index as u32, offset - bank_start, len)
    }
}

/// The same memory in order; what overlaps becomes one range.
fn merge_overlapping(mut memory: Vec<OffsetRange>) -> Vec<OffsetRange> {
    memory.retain(|(offset, end)| offset < end);
    memory.sort_unstable();

    let mut merged: Vec<OffsetRange> = Vec::new();
    for (offset, end) in memory {
        match merged.last_mut() {
            Some(last) if offset < last.1 => last.1 = last.1.max(end),
            _ => merged.push((offset, end)),
        }
    }
    merged
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
                Err(BufferTooLarge {
                    bytes: 160,
                    limit: 128,
                }),
            ),
            (vec![(64, 64)], 128, Ok(vec![])),
        ] {
            let found = RegionLayout::new(memory, limit, 0).map(|l| l.banks);
            assert_eq!(found, banks);
        }
        let layout =
            RegionLayout::new(vec![(0, 64), (128, 256), (256, 320)], 192, 5).expect("fits");
        assert_eq!(layout.range(16, 8), BankRange::new(5, 16, 8));
        assert_eq!(layout.range(256, 64), BankRange::new(6, 128, 64));
        assert_eq!(layout.bank_sizes().collect::<Vec<_>>(), [64, 192]);
    }
}
