//! Memory of the device in software: the host's, with the addresses that it has there.
#![expect(unsafe_code, reason = "hands out memory by its address, as drivers do")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::error::Code;

/// `CUDA_ERROR_OUT_OF_MEMORY`, `CUDA_ERROR_ILLEGAL_ADDRESS`, `CUDA_ERROR_MISALIGNED_ADDRESS`.
const OUT: Code = Code(2);
const ILLEGAL: Code = Code(700);
const MISALIGNED: Code = Code(716);
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
const TWICE: Code = Code(712);
/// What is registered is whole pages.
const PAGE: u64 = 4096;

/// What a piece of work has touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Trace {
    /// Half-open ranges, overlapping and in no order.
    pub(super) read: Vec<(u64, u64)>,
    pub(super) written: Vec<(u64, u64)>,
}

impl Trace {
    /// Forgets everything, and keeps its own memory.
    pub(super) fn clear(&mut self) {
        self.read.clear();
        self.written.clear();
    }
}

/// All allocations: their bytes by their addresses.
#[derive(Default)]
pub(super) struct Memory {
    blocks: BTreeMap<u64, Layout>,
    /// Others' memory: where it ends, by where it begins.
    pub(super) registered: BTreeMap<u64, u64>,
    pub(super) trace: Trace,
}

/// Adds a range, to the last one if it goes on there.
fn note(ranges: &mut Vec<(u64, u64)>, at: u64, bytes: usize) {
    let end = at + bytes as u64;
    match ranges.last_mut() {
        Some(last) if last.1 == at => last.1 = end,
        Some(last) if last.0 <= at && end <= last.1 => {}
        _ => ranges.push((at, end)),
    }
}

impl Memory {
    pub(super) fn alloc(&mut self, bytes: u64) -> Result<u64, Code> {
        let layout = Layout::from_size_align(bytes as usize, 256).map_err(|_| OUT)?;
        if bytes == 0 {
            return Err(Code(1));
        }
        // SAFETY: the size is not zero.
        let at = unsafe { alloc_zeroed(layout) } as u64;
        if at == 0 {
            return Err(OUT);
        }
        self.blocks.insert(at, layout);
        // As if it had been used before.
        self.fill(at, bytes, 0xa5)?;
        Ok(at)
    }

    pub(super) fn free(&mut self, at: u64) {
        if let Some(layout) = self.blocks.remove(&at) {
            // SAFETY: allocated above with this layout, and removed once.
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
        let end = block.map_or(0, |(first, layout)| first + layout.size() as u64);
        let others = self
            .registered
            .range(..=at)
            .next_back()
            .map_or(0, |(_, end)| *end);
        if at.checked_add(bytes).is_some_and(|e| e <= end.max(others)) {
            Ok(())
        } else {
            Err(ILLEGAL)
        }
    }

    /// Takes others' memory, no page of which is here already.
    pub(super) fn register(&mut self, at: u64, bytes: u64) -> Result<u64, Code> {
        let (first, end) = (at / PAGE, (at + bytes).div_ceil(PAGE));
        if bytes == 0 {
            return Err(Code(1));
        }
        if self
            .registered
            .iter()
            .any(|(a, e)| a / PAGE < end && first < e.div_ceil(PAGE))
        {
            return Err(TWICE);
        }
        self.registered.insert(at, at + bytes);
        Ok(at)
    }

    fn atomic(&self, at: u64) -> Result<&AtomicU64, Code> {
        self.check(at, 8)?;
        if !at.is_multiple_of(8) {
            return Err(MISALIGNED);
        }
        // SAFETY: checked to be eight bytes of a block, or of registered memory, aligned, where others access them
        // atomically too.
        Ok(unsafe { AtomicU64::from_ptr(at as *mut u64) })
    }

    /// A word that others store.
    pub(super) fn word(&self, at: u64) -> Result<u64, Code> {
        Ok(self.atomic(at)?.load(Ordering::Acquire))
    }

    /// Stores a word that others load.
    pub(super) fn set_word(&self, at: u64, value: u64) -> Result<(), Code> {
        self.atomic(at)?.store(value, Ordering::Release);
        Ok(())
    }

    pub(super) fn fill(&mut self, at: u64, bytes: u64, value: u8) -> Result<(), Code> {
        self.check(at, bytes)?;
        note(&mut self.trace.written, at, bytes as usize);
        // SAFETY: checked to lie in a block; nobody else touches it while work is done, as with a real device.
        unsafe { (at as *mut u8).write_bytes(value, bytes as usize) };
        Ok(())
    }

    pub(super) fn copy(&mut self, from: u64, to: u64, bytes: u64) -> Result<(), Code> {
        self.check(from, bytes)?;
        self.check(to, bytes)?;
        note(&mut self.trace.read, from, bytes as usize);
        note(&mut self.trace.written, to, bytes as usize);
        // SAFETY: as in `fill`, for both.
        unsafe { (to as *mut u8).copy_from(from as *const u8, bytes as usize) };
        Ok(())
    }

    /// Loads bytes from an address that is a multiple of their number.
    pub(super) fn load(&mut self, at: u64, bytes: &mut [u8]) -> Result<(), Code> {
        self.check(at, bytes.len() as u64)?;
        if !at.is_multiple_of(bytes.len() as u64) {
            return Err(MISALIGNED);
        }
        note(&mut self.trace.read, at, bytes.len());
        // SAFETY: as in `fill`.
        unsafe { (at as *const u8).copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Stores bytes likewise.
    pub(super) fn store(&mut self, at: u64, bytes: &[u8]) -> Result<(), Code> {
        self.check(at, bytes.len() as u64)?;
        if !at.is_multiple_of(bytes.len() as u64) {
            return Err(MISALIGNED);
        }
        note(&mut self.trace.written, at, bytes.len());
        // SAFETY: as in `fill`.
        unsafe { (at as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (at, layout) in std::mem::take(&mut self.blocks) {
            // SAFETY: allocated with this layout, and not freed since.
            unsafe { dealloc(at as *mut u8, layout) };
        }
    }
}
