//! Memory of the device in software: the host's, under its own addresses.
#![expect(unsafe_code, reason = "hands out memory by its address, as drivers do")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::error::Code;

/// `CUDA_ERROR_OUT_OF_MEMORY`, `CUDA_ERROR_ILLEGAL_ADDRESS`, `CUDA_ERROR_MISALIGNED_ADDRESS`.
const OUT_OF_MEMORY: Code = Code(2);
const ILLEGAL_ADDRESS: Code = Code(700);
const MISALIGNED: Code = Code(716);
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
const ALREADY_REGISTERED: Code = Code(712);
/// Memory is registered in whole pages.
const PAGE_BYTES: u64 = 4096;

/// What a piece of work has accessed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AccessTrace {
    /// Half-open ranges, overlapping and in no order.
    pub(super) read: Vec<(u64, u64)>,
    pub(super) written: Vec<(u64, u64)>,
}

impl AccessTrace {
    /// Whether one of the two wrote what the other accessed.
    pub(super) fn conflicts_with(&self, other: &AccessTrace) -> bool {
        overlap(&self.written, &other.written)
            || overlap(&self.written, &other.read)
            || overlap(&self.read, &other.written)
    }

    /// Forgets everything, and keeps its own allocation.
    pub(super) fn clear(&mut self) {
        self.read.clear();
        self.written.clear();
    }
}

fn overlap(left: &[(u64, u64)], right: &[(u64, u64)]) -> bool {
    left.iter()
        .any(|one| right.iter().any(|other| one.0 < other.1 && other.0 < one.1))
}

/// All allocations, by their addresses.
#[derive(Default)]
pub(super) struct SoftMemory {
    blocks: BTreeMap<u64, Layout>,
    /// Others' memory: its end by its beginning.
    pub(super) registered: BTreeMap<u64, u64>,
    pub(super) trace: AccessTrace,
}

/// Adds a range; one that continues the last one is joined with it.
fn note_access(ranges: &mut Vec<(u64, u64)>, start: u64, bytes: usize) {
    let end = start + bytes as u64;
    match ranges.last_mut() {
        Some(last) if last.1 == start => last.1 = end,
        Some(last) if last.0 <= start && end <= last.1 => {}
        _ => ranges.push((start, end)),
    }
}

impl SoftMemory {
    pub(super) fn alloc(&mut self, bytes: u64) -> Result<u64, Code> {
        let layout = Layout::from_size_align(bytes as usize, 256).map_err(|_| OUT_OF_MEMORY)?;
        if bytes == 0 {
            return Err(Code(1));
        }
        // SAFETY: the size is not zero.
        let address = unsafe { alloc_zeroed(layout) } as u64;
        if address == 0 {
            return Err(OUT_OF_MEMORY);
        }
        self.blocks.insert(address, layout);

        // As if it had been used before.
        self.fill(address, bytes, 0xa5)?;
        Ok(address)
    }

    pub(super) fn free(&mut self, at: u64) {
        if let Some(layout) = self.blocks.remove(&at) {
            // SAFETY: allocated by `alloc` with this layout, and removed once.
            unsafe { dealloc(at as *mut u8, layout) };
        }
    }

    /// Allocations and their bytes.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        self.blocks
            .iter()
            .map(|(at, layout)| (*at, layout.size() as u64))
    }

    fn check(&self, at: u64, bytes: u64) -> Result<(), Code> {
        let block = self.blocks.range(..=at).next_back();
        let block_end = block.map_or(0, |(first, layout)| first + layout.size() as u64);
        let registered = self.registered.range(..=at).next_back();
        let registered_end = registered.map_or(0, |(_, end)| *end);
        let end = at.checked_add(bytes);

        if end.is_some_and(|end| end <= block_end.max(registered_end)) {
            Ok(())
        } else {
            Err(ILLEGAL_ADDRESS)
        }
    }

    /// Registers others' memory, no page of which is registered already.
    pub(super) fn register(&mut self, at: u64, bytes: u64) -> Result<u64, Code> {
        if bytes == 0 {
            return Err(Code(1));
        }
        let first_page = at / PAGE_BYTES;
        let end_page = (at + bytes).div_ceil(PAGE_BYTES);
        let shares_page = self.registered.iter().any(|(start, end)| {
            start / PAGE_BYTES < end_page && first_page < end.div_ceil(PAGE_BYTES)
        });
        if shares_page {
            return Err(ALREADY_REGISTERED);
        }
        self.registered.insert(at, at + bytes);
        Ok(at)
    }

    fn atomic_word(&self, at: u64) -> Result<&AtomicU64, Code> {
        self.check(at, 8)?;
        if !at.is_multiple_of(8) {
            return Err(MISALIGNED);
        }
        // SAFETY: checked above to be eight aligned bytes of a block or of registered memory, whose other users access
        // them atomically too.
        Ok(unsafe { AtomicU64::from_ptr(at as *mut u64) })
    }

    /// A word that others store.
    pub(super) fn load_word(&self, at: u64) -> Result<u64, Code> {
        Ok(self.atomic_word(at)?.load(Ordering::Acquire))
    }

    /// Stores a word that others load.
    pub(super) fn store_word(&self, at: u64, value: u64) -> Result<(), Code> {
        self.atomic_word(at)?.store(value, Ordering::Release);
        Ok(())
    }

    pub(super) fn fill(&mut self, at: u64, bytes: u64, value: u8) -> Result<(), Code> {
        self.check(at, bytes)?;
        note_access(&mut self.trace.written, at, bytes as usize);
        // SAFETY: checked above to be part of a block or of registered memory, which exists until it is removed here;
        // the calendar orders all other accesses before or after this work, as with a real device.
        unsafe { (at as *mut u8).write_bytes(value, bytes as usize) };
        Ok(())
    }

    pub(super) fn copy(&mut self, from: u64, to: u64, bytes: u64) -> Result<(), Code> {
        self.check(from, bytes)?;
        self.check(to, bytes)?;
        note_access(&mut self.trace.read, from, bytes as usize);
        note_access(&mut self.trace.written, to, bytes as usize);
        // SAFETY: as in `fill`: both ranges are checked above, and the calendar orders all other accesses.
        unsafe { (to as *mut u8).copy_from(from as *const u8, bytes as usize) };
        Ok(())
    }

    /// Loads bytes from an address that is a multiple of their number.
    pub(super) fn load(&mut self, at: u64, bytes: &mut [u8]) -> Result<(), Code> {
        self.check(at, bytes.len() as u64)?;
        if !at.is_multiple_of(bytes.len() as u64) {
            return Err(MISALIGNED);
        }
        note_access(&mut self.trace.read, at, bytes.len());
        // SAFETY: as in `fill`: checked above, and the calendar orders all other accesses; `bytes` is a separate slice.
        unsafe { (at as *const u8).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Stores bytes likewise.
    pub(super) fn store(&mut self, at: u64, bytes: &[u8]) -> Result<(), Code> {
        self.check(at, bytes.len() as u64)?;
        if !at.is_multiple_of(bytes.len() as u64) {
            return Err(MISALIGNED);
        }
        note_access(&mut self.trace.written, at, bytes.len());
        // SAFETY: as in `fill`: checked above, and the calendar orders all other accesses; `bytes` is a separate slice.
        unsafe { (at as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

impl Drop for SoftMemory {
    fn drop(&mut self) {
        for (at, layout) in std::mem::take(&mut self.blocks) {
            // SAFETY: allocated by `alloc` with this layout, and not freed since.
            unsafe { dealloc(at as *mut u8, layout) };
        }
    }
}
