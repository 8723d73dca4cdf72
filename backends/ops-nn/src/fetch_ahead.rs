//! Weights that are fetched to the second cache while those before them are at work.
//!
//! A network's weights come from the third cache or from memory, farther away than the processor looks ahead by itself, and faster
//! than they come is what the first tile of rows reads. So each tile that passes over some panels fetches a part of those that
//! follow.
#![expect(unsafe_code, reason = "asks the processor for lines of memory")]

/// Bytes of a line of the cache.
const LINE_BYTES: usize = 64;

/// What tiles of rows fetch while they go over panels of weights, each a part: where what follows is one stretch of memory, which a
/// pointer goes through in less time than [`FetchLater`] finds its lines (convolutions took 1 to 2 % longer with that).
#[derive(Clone, Copy)]
pub(crate) struct FetchAhead {
    /// Where the next line is.
    next: *const u8,
    /// What is 0 of the number of a line at work if another one is fetched then.
    mask: usize,
}

impl FetchAhead {
    /// For tiles of so many panels and rows that go over `rows` while they fetch from `next` on, which may be any address. Lines are
    /// counted for one panel of the tile.
    #[inline(always)]
    pub(crate) fn new<T>(next: *const T, [panels, tile_rows]: [usize; 2], rows: usize) -> Self {
        // Fetching somewhat more than what follows does no harm: it is the beginning of what comes then.
        Self {
            next: next.cast(),
            mask: lines_between(rows / tile_rows / panels) - 1,
        }
    }

    /// To be called for each line that is at work.
    #[inline(always)]
    pub(crate) fn at_line(&mut self, number: usize) {
        if number & self.mask == 0 {
            fetch(self.next);
            self.next = self.next.wrapping_add(LINE_BYTES);
        }
    }
}

/// The same for what follows at a distance from what is at work: each tile of rows fetches some lines of it, and all together all.
#[derive(Clone, Copy)]
pub(crate) struct FetchLater {
    /// Elements from a line at work to the one that is fetched.
    distance: usize,
    /// What is 0 of the sum of the numbers of the tile and of a line if that one is fetched.
    mask: usize,
    tile: usize,
}

impl FetchLater {
    /// For so many tiles of rows.
    #[inline(always)]
    pub(crate) fn new(distance: usize, tiles: usize) -> Self {
        Self {
            distance,
            mask: lines_between(tiles) - 1,
            tile: 0,
        }
    }

    /// Fetches nothing that is not at work already.
    #[inline(always)]
    pub(crate) fn nothing() -> Self {
        Self {
            distance: 0,
            mask: usize::MAX,
            tile: 0,
        }
    }

    /// To be called behind each tile of rows.
    #[inline(always)]
    pub(crate) fn next_tile(&mut self) {
        self.tile += 1;
    }

    /// To be called for each line that is at work.
    #[inline(always)]
    pub(crate) fn at_line<T>(&self, number: usize, line: *const T) {
        if (self.tile + number) & self.mask == 0 {
            fetch(line.wrapping_add(self.distance).cast());
        }
    }
}

/// How many lines are at work for each one that is fetched if tiles of this number share fetching as many as each goes over: a
/// power of two, and not more.
#[inline(always)]
fn lines_between(tiles: usize) -> usize {
    tiles.checked_ilog2().map_or(1, |log| 1 << log)
}

/// Asks for a line of memory at any address to come to the second cache.
#[inline(always)]
fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: all processors of this kind have the instruction, which accesses nothing that a program could see.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
