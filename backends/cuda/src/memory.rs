//! Banks: memory of the device, memory that both sides see, and imported memory of others.
#![expect(unsafe_code, reason = "frees memory by its address")]

use std::sync::Arc;

use super::device::CudaDevice;
use super::driver::Address;
use super::error::Fault;
use super::registered::RegisteredMemory;
use zbmd_hal::{BankRange, MemoryKind};

/// Memory of the device or of the host.
///
/// A bank is dropped only when nothing in the device's queue uses it: queues and graphs hold the banks that their work
/// names, and a queue waits for all of its work before it drops them.
pub struct Bank {
    pub(super) address: Address,
    pub(super) bytes: u64,
    owner: BankOwner,
}

/// Who frees the memory.
enum BankOwner {
    Bank(MemoryKind, Arc<CudaDevice>),
    Registration(
        #[expect(dead_code, reason = "keeps the memory registered")] Arc<RegisteredMemory>,
    ),
}

impl Bank {
    /// A bank of at least `bytes` bytes, of any content.
    pub(super) fn allocate(
        device: &Arc<CudaDevice>,
        bytes: u64,
        kind: MemoryKind,
    ) -> Result<Self, Fault> {
        let bytes = bytes.max(256).next_multiple_of(256);
        let allocated = device.call(|driver| match kind {
            MemoryKind::Device => driver.alloc_device(bytes),
            MemoryKind::Host => driver.alloc_host(bytes),
        });
        Ok(Self {
            address: allocated.map_err(|fault| fault.with_wanted(bytes))?,
            bytes,
            owner: BankOwner::Bank(kind, Arc::clone(device)),
        })
    }

    /// Memory of others.
    pub(super) fn import(registered: Arc<RegisteredMemory>) -> Self {
        Self {
            address: registered.address,
            bytes: registered.bytes(),
            owner: BankOwner::Registration(registered),
        }
    }

    /// Where the host sees a range of the bank.
    pub(super) fn host_pointer(&self, offset: u64, len: usize) -> *mut u8 {
        assert!(
            offset + len as u64 <= self.bytes,
            "{offset} + {len} of a bank of {}",
            self.bytes
        );
        assert!(
            matches!(self.owner, BankOwner::Bank(MemoryKind::Host, _)),
            "a bank that the host sees"
        );
        (self.address + offset) as *mut u8
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        let BankOwner::Bank(kind, device) = &self.owner else {
            return;
        };
        device.give_back(|driver| {
            // SAFETY: allocated by the function that goes with it, and given back here only; nothing in the queue uses
            // a bank that is dropped, as said at the type.
            unsafe {
                match kind {
                    MemoryKind::Device => driver.free_device(self.address),
                    MemoryKind::Host => driver.free_host(self.address),
                }
            }
        });
    }
}

/// Banks by their numbers.
#[derive(Clone, Default)]
pub(super) struct BankTable(Vec<Arc<Bank>>);

impl BankTable {
    /// Adds a bank; its number.
    pub(super) fn push(&mut self, bank: Arc<Bank>) -> u32 {
        self.0.push(bank);
        self.0.len() as u32 - 1
    }

    pub(super) fn pop(&mut self) {
        self.0.pop();
    }

    pub(super) fn bank(&self, number: u32) -> &Arc<Bank> {
        &self.0[number as usize]
    }

    /// Where the device sees a range, all of which is part of its bank.
    pub(super) fn address(&self, range: BankRange) -> Address {
        let bank = self.bank(range.bank);
        assert!(
            range.end <= bank.bytes,
            "{range:?} of a bank of {}",
            bank.bytes
        );
        bank.address + range.start
    }
}
