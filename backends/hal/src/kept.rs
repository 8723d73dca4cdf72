//! Constants that a device keeps from one calendar to the next: weights are uploaded once in the life of the process. Those
//! that calendars fetch are kept in memory of the host, which the device copies from.
#![expect(
    unsafe_code,
    reason = "copies constants to memory that the device sees"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3Default;

use super::queue::{Backend, BankRange, MemoryKind, Queue};

/// Alignment of constants.
const ALIGN_BYTES: u64 = 256;
/// Constants of this size and more have a bank of their own, so that another calendar finds them whatever else it
/// needs; smaller ones share banks, because drivers have only so many.
const OWN_BANK_BYTES: u64 = 64 << 10;
/// Bytes that are uploaded together, unless a single constant is larger: the upload takes as much memory on the host.
const MAX_UPLOAD_BYTES: u64 = 64 << 20;

/// Constants for a device, by their content; nothing at first.
pub struct Kept<Q: Backend> {
    on_device: KeptBanks<Q>,
    on_host: KeptBanks<Q>,
}

type KeptBanks<Q> = BTreeMap<u128, Arc<<Q as Backend>::Bank>>;

impl<Q: Backend> Default for Kept<Q> {
    fn default() -> Self {
        Self {
            on_device: BTreeMap::new(),
            on_host: BTreeMap::new(),
        }
    }
}

impl<Q: Backend> std::fmt::Debug for Kept<Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let banks = self.on_device.len() + self.on_host.len();
        write!(f, "Kept({banks} banks)")
    }
}

/// The constants of a calendar in memory of one kind: which share a bank, and where.
pub(super) struct ConstantLayout {
    kind: MemoryKind,
    max_bank_bytes: u64,
    groups: Vec<BankGroup>,
    /// The group that small ones go to.
    shared: Option<usize>,
}

/// The constants of one bank.
#[derive(Default)]
struct BankGroup {
    /// Each with its offset.
    parts: Vec<(u64, Bytes)>,
    bytes: u64,
}

impl BankGroup {
    /// Where another constant would begin.
    fn next_offset(&self) -> u64 {
        self.bytes.next_multiple_of(ALIGN_BYTES)
    }

    /// The same for the same constants at the same offsets.
    fn content_key(&self) -> u128 {
        let mut hasher = Xxh3Default::new();
        for (offset, bytes) in &self.parts {
            hasher.update(&offset.to_le_bytes());
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        }
        hasher.digest128()
    }
}

/// What [`ConstantLayout::upload`] has done.
pub(super) struct UploadedConstants {
    /// The bank of each group.
    pub(super) banks: Vec<u32>,
    /// Bytes that the device did not have yet.
    pub(super) bytes: u64,
}

impl ConstantLayout {
    /// For banks of at most `max_bank_bytes` bytes.
    pub(super) fn new(max_bank_bytes: u64, kind: MemoryKind) -> Self {
        Self {
            kind,
            max_bank_bytes,
            groups: Vec::new(),
            shared: None,
        }
    }

    /// Adds a constant; where it will be, the bank being the number of its group.
    pub(super) fn add_constant(&mut self, bytes: &Bytes) -> BankRange {
        let len = bytes.len() as u64;
        let is_small = len < OWN_BANK_BYTES;

        let shared = self.shared.filter(|group| {
            is_small && self.groups[*group].next_offset() + len <= self.max_bank_bytes
        });
        let group_index = shared.unwrap_or_else(|| {
            self.groups.push(BankGroup::default());
            self.groups.len() - 1
        });
        if is_small {
            self.shared = Some(group_index);
        }

        let group = &mut self.groups[group_index];
        let offset = group.next_offset();
        group.parts.push((offset, bytes.clone()));
        group.bytes = offset + len;
        BankRange::new(group_index as u32, offset, len)
    }

    /// Brings them to their memory. What was kept and is not among them is freed before.
    pub(super) fn upload<Q: Queue>(
        &self,
        queue: &mut Q,
        kept: &mut Kept<Q>,
        patience_ns: u64,
    ) -> Result<UploadedConstants, Q::Fault> {
        let keys: Vec<u128> = self.groups.iter().map(BankGroup::content_key).collect();
        let kept_banks = match self.kind {
            MemoryKind::Device => &mut kept.on_device,
            MemoryKind::Host => &mut kept.on_host,
        };
        kept_banks.retain(|key, _| keys.contains(key));

        let mut banks = Vec::with_capacity(self.groups.len());
        let mut new_banks = Vec::new();
        let mut uploads: Vec<(BankRange, &[u8])> = Vec::new();
        let mut uploaded_bytes = 0;
        for (group, &key) in self.groups.iter().zip(&keys) {
            if let Some(bank) = kept_banks.get(&key) {
                banks.push(queue.adopt_bank(Arc::clone(bank)));
                continue;
            }
            let bank = queue.allocate_bank(group.bytes, self.kind)?;
            banks.push(bank);
            new_banks.push((key, bank));
            for (offset, bytes) in group.parts.iter().filter(|(_, bytes)| !bytes.is_empty()) {
                let target = BankRange::new(bank, *offset, bytes.len() as u64);
                uploads.push((target, &**bytes));
            }
            uploaded_bytes += group.bytes;
        }
        match self.kind {
            MemoryKind::Device => upload_in_batches(queue, &uploads, patience_ns)?,
            MemoryKind::Host => copy_on_host(queue, &uploads),
        }

        // Only now: a bank that is found later has all of its bytes.
        for (key, bank) in new_banks {
            kept_banks.insert(key, queue.bank(bank));
        }
        Ok(UploadedConstants {
            banks,
            bytes: uploaded_bytes,
        })
    }
}

/// Copies parts to banks of the host's.
fn copy_on_host<Q: Queue>(queue: &Q, parts: &[(BankRange, &[u8])]) {
    for (to, bytes) in parts {
        let target = queue.host_pointer(to.bank, to.start, bytes.len());
        // SAFETY: `host_pointer` has checked the range against the bank, which no command uses yet.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

/// Uploads parts in order, as many together as fit into [`MAX_UPLOAD_BYTES`].
fn upload_in_batches<Q: Queue>(
    queue: &mut Q,
    uploads: &[(BankRange, &[u8])],
    patience_ns: u64,
) -> Result<(), Q::Fault> {
    let mut remaining = uploads;
    while !remaining.is_empty() {
        let mut batch_bytes = 0;
        let first_beyond = remaining.iter().position(|(to, _)| {
            batch_bytes += to.len();
            batch_bytes > MAX_UPLOAD_BYTES
        });
        let batch_len = first_beyond.unwrap_or(remaining.len()).max(1);

        let (batch, later) = remaining.split_at(batch_len);
        queue.upload(batch, patience_ns)?;
        remaining = later;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_constants_are_alone_and_small_ones_share() {
        let (small, large) = (
            Bytes::from(vec![1; 300]),
            Bytes::from(vec![2; OWN_BANK_BYTES as usize]),
        );
        let mut constants = ConstantLayout::new(OWN_BANK_BYTES + 1000, MemoryKind::Device);
        let put = [&small, &large, &small, &large].map(|bytes| constants.add_constant(bytes));
        let places = put.map(|range| (range.bank, range.start, range.len()));
        assert_eq!(
            places,
            [
                (0, 0, 300),
                (1, 0, OWN_BANK_BYTES),
                (0, 512, 300),
                (2, 0, OWN_BANK_BYTES)
            ]
        );
        // The same bytes are the same; another place is not.
        let keys: Vec<u128> = constants
            .groups
            .iter()
            .map(BankGroup::content_key)
            .collect();
        assert!(keys[1] == keys[2] && keys[0] != keys[1]);
        let mut full = ConstantLayout::new(512, MemoryKind::Device);
        assert_eq!(
            [&small, &small].map(|bytes| full.add_constant(bytes).bank),
            [0, 1]
        );
    }
}
