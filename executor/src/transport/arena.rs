//! Memory that never moves: zeroed, aligned allocations, private or shared with other processes, touched and
//! page-locked before the first firing. Must not know what lies in it.
#![expect(
    unsafe_code,
    reason = "allocates, maps, locks and frees raw memory that calendars address by offset"
)]

use std::alloc::{Layout, alloc, dealloc};
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Memory that was asked for and cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("cannot allocate {bytes} bytes: {}", self.reason())]
pub struct OutOfMemory {
    /// What was asked for.
    pub bytes: u64,
    /// What there is.
    pub limit: u64,
    /// What there is too little of.
    pub scarce: Scarce,
}

/// What memory that processes share takes, besides the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scarce {
    /// The bytes themselves.
    #[default]
    Memory,
    /// A descriptor.
    Descriptors,
    /// A length that files of this process may have: shared memory is a file without a name.
    FileSize,
}

impl OutOfMemory {
    /// Memory that the machine does not have.
    pub(crate) fn of_machine(bytes: u64, limit: u64) -> Self {
        Self {
            bytes,
            limit,
            scarce: Scarce::Memory,
        }
    }

    fn reason(&self) -> String {
        match self.scarce {
            Scarce::Memory => {
                format!("{} bytes are the maximum of this machine", self.limit)
            }
            Scarce::Descriptors => {
                "too many open files: raise the limit (`ulimit -n`)".to_owned()
            }
            Scarce::FileSize => {
                "shared memory is a file, and files of this process may not be as long: raise the limit (`ulimit -f`)"
                    .to_owned()
            }
        }
    }
}

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Bytes from which on an arena is compared with what is free just now, instead of with all memory.
const LARGE_BYTES: u64 = 16 << 20;

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// One fixed allocation, zeroed at first. Shared by threads, and where asked for by processes, that keep apart by the
/// calendar's order.
#[derive(Debug)]
pub(crate) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    locked: AtomicBool,
    number: u64,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    /// The allocator's, with this alignment.
    Heap(usize),
    /// A mapped file without a name, which lives as long as somebody maps it or holds it open.
    #[cfg_attr(miri, expect(dead_code, reason = "Miri maps no files"))]
    Mapped(OwnedFd),
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
    /// [`OutOfMemory`] beyond what the machine can give, instead of being killed while touching it.
    pub(crate) fn new(bytes: u64, lock: bool) -> Result<Self, OutOfMemory> {
        Self::near(bytes, lock, None)
    }

    /// The same on a node of the computer's memory, by its number ([`zbmd_ir::numa`]), if there is a better one than any other.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn near(bytes: u64, lock: bool, node: Option<u32>) -> Result<Self, OutOfMemory> {
        let ArenaSize {
            bytes: arena_bytes,
            alignment,
            refusal,
        } = ArenaSize::of(bytes)?;
        let heap_layout = Layout::from_size_align(arena_bytes, alignment).map_err(|_| refusal)?;
        // SAFETY: the layout's size is at least 1.
        let base = NonNull::new(unsafe { alloc(heap_layout) }).ok_or(refusal)?;

        let mut arena = Self {
            base,
            bytes: arena_bytes,
            locked: AtomicBool::new(false),
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            backing: Backing::Heap(alignment),
        };

        // Advice comes first: pages that are present already stay small, and where they are. Zeros make all present before the
        // run starts.
        arena.advise_huge();
        if let Some(node) = node {
            arena.prefer_node(0..arena_bytes as u64, node);
        }
        arena.clear(0..arena_bytes as u64);
        if lock {
            arena.lock(0..arena_bytes);
        }
        Ok(arena)
    }

    /// Like [`Self::new`], in memory that another process can map too: [`Self::fd`], [`Self::map`]. Nothing of it has a
    /// name, so nothing is left behind when all who use it are gone, however they went. Its pages are not present before
    /// they are touched, or [`Self::make_present`].
    ///
    /// # Errors
    /// As [`Self::new`].
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(crate) fn shared(bytes: u64) -> Result<Self, OutOfMemory> {
        let ArenaSize {
            bytes: arena_bytes,
            refusal,
            ..
        } = ArenaSize::of(bytes)?;
        let fd = sealed_file(arena_bytes).map_err(|error| OutOfMemory {
            scarce: scarce(error),
            ..refusal
        })?;
        Self::mapped(fd, arena_bytes).map_err(|_| refusal)
    }

    /// Without shared mappings (other systems, Miri) an ordinary arena: threads share it all the same.
    ///
    /// # Errors
    /// As [`Self::new`].
    #[cfg(not(all(target_os = "linux", not(miri))))]
    pub(crate) fn shared(bytes: u64) -> Result<Self, OutOfMemory> {
        Self::new(bytes, false)
    }

    /// Makes the pages of some of its bytes present, which takes the system a third of a millisecond for each MiB, while
    /// others use them. With `lock` it also asks the system never to page them out; see [`Self::is_locked`].
    ///
    /// # Panics
    /// If they do not lie in it.
    pub(crate) fn make_present(&self, bytes: Range<u64>, lock: bool) {
        self.check_range(&bytes);
        let first_page = bytes.start as usize / PAGE_BYTES * PAGE_BYTES;
        let pages = first_page..bytes.end as usize;
        if lock {
            self.lock(pages.clone());
        }
        if !(lock && self.is_locked()) {
            self.populate(pages);
        }
    }

    fn check_range(&self, bytes: &Range<u64>) {
        let fits = bytes.start <= bytes.end && bytes.end <= self.bytes as u64;
        assert!(fits, "{bytes:?} in an arena of {} bytes", self.bytes);
    }

    /// Maps the arena that another process made with [`Self::shared`]. Its pages are not present here before they are
    /// touched, or [`Self::make_present`].
    ///
    /// # Errors
    /// What the system says; a file that could still be made shorter is refused.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(crate) fn map(fd: OwnedFd) -> io::Result<Self> {
        use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
        let seals = fcntl_get_seals(&fd)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other(
                "the shared memory is not sealed against shrinking",
            ));
        }
        let mapped_bytes = usize::try_from(fstat(&fd)?.st_size).map_err(io::Error::other)?;
        Self::mapped(fd, mapped_bytes)
    }

    /// There are no shared mappings here.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(all(target_os = "linux", not(miri))))]
    pub(crate) fn map(_fd: OwnedFd) -> io::Result<Self> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn mapped(fd: OwnedFd, bytes: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the system's choice; the file is as long as that, and sealed.
        let mapping = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }?;
        let base = NonNull::new(mapping.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            bytes,
            locked: AtomicBool::new(false),
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            backing: Backing::Mapped(fd),
        })
    }

    /// The file behind a [`Self::shared`] arena.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        match &self.backing {
            Backing::Heap(_) => None,
            Backing::Mapped(fd) => Some(fd.as_fd()),
        }
    }

    /// First byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes that may be used.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the system promised to keep the pages in memory.
    pub(crate) fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed)
    }

    /// Tells it from all other arenas of this process, of any time.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Zeroes some of its bytes, as those of a fresh one are.
    ///
    /// # Panics
    /// If they do not lie in it.
    pub(crate) fn clear(&mut self, bytes: Range<u64>) {
        self.check_range(&bytes);
        let count = (bytes.end - bytes.start) as usize;
        // SAFETY: just checked to lie in the allocation, which nobody else of this process knows any more.
        unsafe {
            let first = self.base.as_ptr().add(bytes.start as usize);
            first.write_bytes(0, count);
        }
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn advise_huge(&mut self) {
        use rustix::mm::{Advice, madvise};
        if matches!(self.backing, Backing::Heap(HUGE_PAGE_BYTES)) {
            // SAFETY: the range is this allocation, whole; the advice changes no contents. Refusal costs speed only.
            let _ =
                unsafe { madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxHugepage) };
        }
    }

    /// Has the pages that lie in some of its bytes, and are not present yet, come from a node of the computer's memory; from another one
    /// if that has none left. Where the system refuses, they come from wherever they are touched first: that costs speed only.
    ///
    /// # Panics
    /// If the bytes do not lie in it.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(crate) fn prefer_node(&self, bytes: Range<u64>, node: u32) {
        const MASK_WORDS: usize = 16;
        const WORD_BITS: u32 = usize::BITS;

        self.check_range(&bytes);
        // Pages that others share are theirs as much.
        let first_page = (bytes.start as usize).next_multiple_of(PAGE_BYTES);
        let end_page = bytes.end as usize / PAGE_BYTES * PAGE_BYTES;
        let mut mask = [0_usize; MASK_WORDS];
        let Some(word) = mask.get_mut((node / WORD_BITS) as usize) else {
            return;
        };
        *word = 1 << (node % WORD_BITS);
        if first_page < end_page {
            let first = self.base.as_ptr().wrapping_add(first_page);
            // SAFETY: the range lies in this allocation, whose contents do not change; the mask has as many bits as is said.
            unsafe {
                libc::syscall(
                    libc::SYS_mbind,
                    first,
                    end_page - first_page,
                    libc::MPOL_PREFERRED,
                    mask.as_ptr(),
                    MASK_WORDS * WORD_BITS as usize,
                    0,
                );
            }
        }
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    pub(crate) fn prefer_node(&self, _bytes: Range<u64>, _node: u32) {}

    #[cfg(all(target_os = "linux", not(miri)))]
    fn lock(&self, pages: Range<usize>) {
        let first = self.base.as_ptr().wrapping_add(pages.start).cast();
        // SAFETY: the range lies in this allocation; locking changes no contents.
        let lock_result = unsafe { rustix::mm::mlock(first, pages.len()) };
        self.locked.store(lock_result.is_ok(), Ordering::Relaxed);
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    fn populate(&self, pages: Range<usize>) {
        use rustix::mm::{Advice, madvise};
        let first = self.base.as_ptr().wrapping_add(pages.start).cast();
        // SAFETY: the range lies in this allocation; the advice changes no contents. Systems before Linux 5.14 refuse it:
        // then pages come as they are touched.
        let _ = unsafe { madvise(first, pages.len(), Advice::LinuxPopulateWrite) };
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn advise_huge(&mut self) {}

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn lock(&self, _pages: Range<usize>) {}

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn populate(&self, _pages: Range<usize>) {}

    #[cfg(all(target_os = "linux", not(miri)))]
    fn unlock(&mut self) {
        // SAFETY: the range was locked by `lock`. A failure leaves pages locked that are freed next: harmless.
        let _ = unsafe { rustix::mm::munlock(self.base.as_ptr().cast(), self.bytes) };
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn unlock(&mut self) {}
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.is_locked() {
            self.unlock();
        }
        match self.backing {
            Backing::Heap(align) => {
                // SAFETY: allocated in `new` with this layout; pointers given out are not used any more, because all
                // who use them hold their arenas in an `Arc`.
                unsafe {
                    let layout = Layout::from_size_align_unchecked(self.bytes, align);
                    dealloc(self.base.as_ptr(), layout);
                }
            }
            #[cfg(all(target_os = "linux", not(miri)))]
            Backing::Mapped(_) => {
                // SAFETY: the whole mapping made in `mapped`, which nobody uses any more, as above. It cannot fail for
                // such a range.
                let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
            }
            #[cfg(not(all(target_os = "linux", not(miri))))]
            Backing::Mapped(_) => {}
        }
    }
}

/// A file in memory, without a name, of so many bytes for good.
#[cfg(all(target_os = "linux", not(miri)))]
fn sealed_file(bytes: usize) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let create_flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("zbmd", create_flags)?;
    ftruncate(&fd, bytes as u64)?;
    // Nobody who has the file can make it shorter while it is mapped here.
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// What an error of making shared memory says that there is too little of.
#[cfg(all(target_os = "linux", not(miri)))]
fn scarce(error: rustix::io::Errno) -> Scarce {
    use rustix::io::Errno;
    match error {
        Errno::MFILE | Errno::NFILE => Scarce::Descriptors,
        Errno::FBIG => Scarce::FileSize,
        _ => Scarce::Memory,
    }
}

/// How large an arena of so many bytes is made.
struct ArenaSize {
    /// A multiple of the alignment.
    bytes: usize,
    alignment: usize,
    /// How to refuse it, if the system does not give it.
    refusal: OutOfMemory,
}

impl ArenaSize {
    fn of(bytes: u64) -> Result<Self, OutOfMemory> {
        // Small ones are not worth asking the system about: that reads a dozen of its files, while a run waits for an epoch.
        let available_bytes = match bytes {
            LARGE_BYTES.. => zbmd_ir::memory::available_bytes(),
            _ => None,
        };
        let limit =
            available_bytes.map_or_else(physical_bytes, |bytes| bytes.min(physical_bytes()));
        let refusal = OutOfMemory::of_machine(bytes, limit);
        let needed_bytes = usize::try_from(bytes).map_err(|_| refusal)?.max(1);
        if bytes > limit {
            return Err(refusal);
        }

        let alignment = if needed_bytes >= HUGE_PAGE_BYTES {
            HUGE_PAGE_BYTES
        } else {
            PAGE_BYTES
        };
        let arena_bytes = needed_bytes
            .checked_next_multiple_of(alignment)
            .ok_or(refusal)?;
        Ok(Self {
            bytes: arena_bytes,
            alignment,
            refusal,
        })
    }
}

/// A value, or a row of values, in an arena that it keeps alive. What is in an arena is shared: `T` has interior
/// mutability or does not change.
pub(crate) struct In<T: ?Sized> {
    at: NonNull<T>,
    arena: Arc<Arena>,
    shared: PhantomData<T>,
}

// SAFETY: it gives out `&T` only, and keeps the memory alive like an `Arc<T>`.
unsafe impl<T: ?Sized + Sync + Send> Send for In<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync + Send> Sync for In<T> {}

impl<T> In<[T]> {
    /// Writes `count` fresh values at `offset` bytes into memory that nobody else uses yet.
    ///
    /// # Panics
    /// If they do not fit, or lie askew.
    pub(crate) fn create(arena: &Arc<Arena>, offset: u64, count: usize, fresh: fn() -> T) -> Self {
        let row = Self::row(arena, offset, count);
        for i in 0..count {
            // SAFETY: `row` checked that the values lie in the arena, aligned; nobody else uses them yet.
            unsafe { row.cast::<T>().add(i).write(fresh()) };
        }
        Self {
            at: row,
            arena: Arc::clone(arena),
            shared: PhantomData,
        }
    }

    /// The `count` values that somebody else has created at `offset`.
    ///
    /// # Safety
    /// They were created there, by a program with the same layout of `T`, before.
    ///
    /// # Panics
    /// If they would not fit, or lie askew.
    pub(crate) unsafe fn find(arena: &Arc<Arena>, offset: u64, count: usize) -> Self {
        let at = Self::row(arena, offset, count);
        Self {
            at,
            arena: Arc::clone(arena),
            shared: PhantomData,
        }
    }

    fn row(arena: &Arc<Arena>, offset: u64, count: usize) -> NonNull<[T]> {
        let end = (offset as usize).checked_add(count * size_of::<T>());
        assert!(
            end.is_some_and(|end| end <= arena.bytes()),
            "{offset} + {count} values too many"
        );
        // SAFETY: just checked to lie in the arena.
        let first = unsafe { arena.base.add(offset as usize) };
        assert!(
            first.as_ptr().addr().is_multiple_of(align_of::<T>()),
            "values at {offset} askew"
        );
        NonNull::slice_from_raw_parts(first.cast(), count)
    }

    /// One of the row.
    pub(crate) fn one(&self, index: usize) -> In<T> {
        let at = NonNull::from(&self[index]);
        In {
            at,
            arena: Arc::clone(&self.arena),
            shared: PhantomData,
        }
    }
}

impl<T: ?Sized> Clone for In<T> {
    fn clone(&self) -> Self {
        Self {
            at: self.at,
            arena: Arc::clone(&self.arena),
            shared: PhantomData,
        }
    }
}

impl<T: ?Sized> Deref for In<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `create` wrote it, or `find`'s caller promises that somebody did; the arena is alive, and nothing in
        // it is handed out as `&mut`.
        unsafe { self.at.as_ref() }
    }
}

impl<T: ?Sized> std::fmt::Debug for In<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "In({:p})", self.at)
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
        for (bytes, align) in [
            (0, PAGE_BYTES),
            (1, PAGE_BYTES),
            (5000, PAGE_BYTES),
            (3 << 20, HUGE_PAGE_BYTES),
        ] {
            let arena = Arena::new(bytes, true).expect("small");
            assert_eq!(arena.base() as usize % align, 0);
            assert!(arena.bytes() as u64 >= bytes);
            for offset in (0..arena.bytes()).step_by(997) {
                // SAFETY: the offset lies in the arena and nobody writes it.
                assert_eq!(unsafe { *arena.base().add(offset) }, 0);
            }
        }
    }

    /// Where pages of an address come from: how that is chosen, and the first node of those that are preferred.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn policy_of(address: *mut u8) -> Option<(libc::c_int, u32)> {
        const MPOL_F_ADDR: usize = 2;
        let mut mode = -1;
        let mut mask = [0_usize; 16];
        // SAFETY: both are written at most as long as they are, and the address is only looked up.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut mode,
                mask.as_mut_ptr(),
                mask.len() * usize::BITS as usize,
                address,
                MPOL_F_ADDR,
            )
        };
        (result == 0).then(|| (mode, mask[0].trailing_zeros()))
    }

    /// Node 0 is everywhere, so it can be preferred also where there is no choice.
    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn whole_pages_prefer_the_node_that_they_are_told() {
        let page = PAGE_BYTES as u64;
        let shared = Arena::shared(8 * page).expect("small");
        let Some((before, _)) = policy_of(shared.base()) else {
            eprintln!("SKIPPED: this system does not say where memory comes from");
            return;
        };
        assert_ne!(before, libc::MPOL_PREFERRED);

        shared.prefer_node(page + 1..4 * page - 1, 0);
        shared.prefer_node(5 * page + 1..6 * page, 0);
        shared.make_present(0..8 * page, false);
        let policies =
            (0..8).map(|number| policy_of(shared.base().wrapping_add(number * PAGE_BYTES)));
        let policies: Vec<_> = policies.map(|policy| policy.expect("as before")).collect();
        for (number, (mode, node)) in policies.iter().enumerate() {
            match number {
                2 => assert_eq!((*mode, *node), (libc::MPOL_PREFERRED, 0)),
                _ => assert_ne!(*mode, libc::MPOL_PREFERRED, "page {number} of {policies:?}"),
            }
        }

        let own = Arena::near(3 << 20, false, Some(0)).expect("small");
        let policy = policy_of(own.base());
        assert_eq!(policy, Some((libc::MPOL_PREFERRED, 0)));
        // A node that no system has is no reason to fail.
        let _ = Arena::near(5000, false, Some(1 << 20)).expect("small");
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
