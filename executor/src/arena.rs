//! Memory that never moves: one zeroed, aligned allocation for each region of a device, touched and page-locked
//! before the first firing. Must not know what lies in it.
#![expect(
    unsafe_code,
    reason = "allocates, locks and frees raw memory that calendars address by offset"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Memory that was asked for and cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {bytes} bytes: {limit} bytes are the most this machine can give")]
pub struct OutOfMemory {
    /// What was asked for.
    pub bytes: u64,
    /// What there is.
    pub limit: u64,
}

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// One fixed allocation, zeroed at first. Shared by threads that keep apart by the calendar's order.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    layout: Layout,
    locked: bool,
}

// SAFETY: an arena is bare memory; whoever writes through its pointers promises to keep threads apart (see `replay`).
unsafe impl Send for Arena {}
// SAFETY: as above; `&Arena` itself only gives out a pointer.
unsafe impl Sync for Arena {}

impl Arena {
    /// Allocates at least `bytes` zeroed bytes, aligned to a page, or to a huge page where that pays, and makes them
    /// present. With `lock` it also asks the system never to page them out; see [`Self::is_locked`].
    ///
    /// # Errors
    /// [`OutOfMemory`] beyond the machine's memory, instead of being killed while touching it.
    pub fn new(bytes: u64, lock: bool) -> Result<Self, OutOfMemory> {
        let limit = physical_bytes();
        let refused = OutOfMemory { bytes, limit };
        let size = usize::try_from(bytes).map_err(|_| refused)?.max(1);
        if bytes > limit {
            return Err(refused);
        }
        let align = if size >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        let size = size.checked_next_multiple_of(align).ok_or(refused)?;
        let layout = Layout::from_size_align(size, align).map_err(|_| refused)?;
        // SAFETY: the layout's size is at least 1.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(refused)?;
        let mut arena = Self { base, layout, locked: false };
        arena.advise_huge();
        arena.touch();
        arena.locked = lock && arena.lock();
        Ok(arena)
    }

    /// First byte.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes that may be used.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Whether the system promised to keep the pages in memory.
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    /// Writes to each page, so that none is missing when the run has started.
    fn touch(&mut self) {
        for offset in (0..self.layout.size()).step_by(PAGE_BYTES) {
            // SAFETY: the offset lies in the allocation, which nobody else knows yet; volatile, so that the store of
            // a zero over a zero is done.
            unsafe { self.base.as_ptr().add(offset).write_volatile(0) };
        }
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn advise_huge(&mut self) {
        use rustix::mm::{Advice, madvise};
        if self.layout.align() >= HUGE_PAGE_BYTES {
            // SAFETY: the range is this allocation, whole; the advice changes no contents. Refusal costs speed only.
            let _ = unsafe {
                madvise(self.base.as_ptr().cast(), self.layout.size(), Advice::LinuxHugepage)
            };
        }
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn lock(&mut self) -> bool {
        // SAFETY: the range is this allocation; locking changes no contents.
        unsafe { rustix::mm::mlock(self.base.as_ptr().cast(), self.layout.size()) }.is_ok()
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn advise_huge(&mut self) {}

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn lock(&mut self) -> bool {
        false
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn unlock(&mut self) {
        // SAFETY: the range was locked by `lock`. A failure leaves pages locked that are freed next: harmless.
        let _ = unsafe { rustix::mm::munlock(self.base.as_ptr().cast(), self.layout.size()) };
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn unlock(&mut self) {}
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.locked {
            self.unlock();
        }
        // SAFETY: allocated in `new` with this layout; pointers given out are not used any more, because replays hold
        // their arenas in an `Arc`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
fn physical_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn physical_bytes() -> u64 {
    1 << 40
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_aligned() {
        for (bytes, align) in
            [(0, PAGE_BYTES), (1, PAGE_BYTES), (5000, PAGE_BYTES), (3 << 20, HUGE_PAGE_BYTES)]
        {
            let arena = Arena::new(bytes, true).expect("small");
            assert_eq!(arena.base() as usize % align, 0);
            assert!(arena.bytes() as u64 >= bytes);
            for offset in (0..arena.bytes()).step_by(997) {
                // SAFETY: the offset lies in the arena and nobody writes it.
                assert_eq!(unsafe { *arena.base().add(offset) }, 0);
            }
        }
    }

    #[test]
    fn absurd_sizes_are_refused_with_both_numbers() {
        for bytes in [1 << 46, u64::MAX] {
            let error = Arena::new(bytes, true).expect_err("more than any machine");
            assert_eq!(error.bytes, bytes);
            assert!(error.limit < bytes);
        }
    }
}
