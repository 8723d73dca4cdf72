//! Products of tiles of bytes by AMX, where the processor has it and the kernel lets processes use it.
//!
//! A tile of an image is sixteen pixels at equal distances, 64 bytes of each; one of the weights is sixteen lines of a panel.
//! Their product is the sums of sixteen pixels with sixteen filters, exact like all others. Pixels at equal distances are
//! those of a row of the image, and in an image with a border also those of the next one: places between that are no
//! pixels of the result are computed, and not stored.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use super::lanes::{LANES, LINE};

/// Pixels of a tile.
pub(super) const TILE_PIXELS: usize = 16;
/// Bytes of each pixel of a tile, which are sixteen quads.
pub(super) const TILE_BYTES: usize = 64;
/// Elements of a product of two tiles.
pub(super) const PRODUCT: usize = TILE_PIXELS * LANES;
/// A slot of a tile that is no pixel of the result.
const NO_PIXEL: u32 = u32::MAX;
/// Fewer pixels are not worth configuring tiles for.
const MIN_PIXELS: usize = 8;

/// Pixels at equal distances.
pub(super) struct TileGroup {
    /// First byte of the first one's window.
    pub(super) start: u32,
    /// Their numbers in the result.
    numbers: [u32; TILE_PIXELS],
}

impl TileGroup {
    /// The number of the pixel in a slot, if there is one.
    #[inline(always)]
    pub(super) fn pixel(&self, slot: usize) -> Option<usize> {
        let number = self.numbers[slot];
        (number != NO_PIXEL).then_some(number as usize)
    }
}

/// How the pixels of an image are cut into tiles.
pub(super) struct TilePlan {
    pub(super) groups: Vec<TileGroup>,
    /// Pixels of a tile: fewer than sixteen only where the image has not more.
    pub(super) height: usize,
    /// Bytes from the window of a pixel to that of the next.
    pub(super) stride: usize,
    /// Pixels that are in some tile: all before this one.
    pub(super) covered: usize,
    /// Where the runs of a window begin, for each pass.
    pub(super) runs: Vec<u32>,
    /// Tiles of weights of a run.
    pub(super) run_tiles: usize,
    /// Bytes of the image that are read.
    pub(super) reach: usize,
}

/// What is cut into tiles.
pub(super) struct TileRequest<'a> {
    /// Where the windows of the pixels begin.
    pub(super) spots: &'a [u32],
    /// Where the runs of a window begin.
    pub(super) runs: &'a [u32],
    /// Bytes from a pixel to its neighbour in a row.
    pub(super) stride: usize,
    /// Bytes of a run, in whole tiles.
    pub(super) run_bytes: usize,
    /// Bytes of the image.
    pub(super) input_bytes: usize,
    pub(super) passes: usize,
}

impl TilePlan {
    /// The tiles of an image. None where it has too few pixels, or runs are not whole tiles of weights.
    pub(super) fn new(request: &TileRequest<'_>) -> Option<Self> {
        let TileRequest {
            spots,
            runs,
            stride,
            run_bytes,
            input_bytes,
            passes,
        } = *request;
        let height = spots.len().min(TILE_PIXELS);
        if height < MIN_PIXELS || stride == 0 || !run_bytes.is_multiple_of(TILE_BYTES) {
            return None;
        }

        // What a tile reads from its start on.
        let last_run = runs.iter().max().map_or(0, |run| *run as usize);
        let tile_reach = (height - 1) * stride + last_run + run_bytes;
        let mut groups: Vec<TileGroup> = Vec::new();
        let mut covered = 0;
        let mut reach = 0;
        while covered < spots.len() {
            // The last tile begins so much earlier that it ends with the image; its first pixels were in one before.
            let first = spots[covered] as usize;
            let excess = (first + tile_reach).saturating_sub(input_bytes);
            let Some(start) = first.checked_sub(excess.div_ceil(stride) * stride) else {
                break;
            };
            let mut numbers = [NO_PIXEL; TILE_PIXELS];
            let covered_before = covered;
            while let Some(&spot) = spots.get(covered) {
                let distance = spot as usize - start;
                let slot = distance / stride;
                if !distance.is_multiple_of(stride) || slot >= height {
                    break;
                }
                numbers[slot] = covered as u32;
                covered += 1;
            }
            // Bytes behind a pixel's window that fill the tile may be beyond the image too.
            if covered == covered_before {
                break;
            }
            reach = reach.max(start + tile_reach);
            groups.push(TileGroup {
                start: start as u32,
                numbers,
            });
        }
        if groups.is_empty() {
            return None;
        }
        Some(Self {
            groups,
            height,
            stride,
            covered,
            runs: runs.repeat(passes),
            run_tiles: run_bytes / TILE_BYTES,
            reach,
        })
    }
}

/// Two tiles of pixels and one or two panels of weights.
pub(super) struct TilePair {
    /// First bytes of the windows.
    pub(super) pixels: [*const u8; 2],
    /// First lines of the panels; one twice where there is one.
    pub(super) weights: [*const i8; 2],
    pub(super) has_two_panels: bool,
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod amx {
    use super::{PRODUCT, TilePair, TilePlan};

    pub(in super::super) fn is_usable() -> bool {
        false
    }

    /// Never made: there are no tiles.
    pub(in super::super) struct Tiles(std::convert::Infallible);

    impl Tiles {
        pub(in super::super) unsafe fn new(_: usize) -> Self {
            unreachable!("there are no tiles here")
        }

        pub(in super::super) unsafe fn multiply(
            &self,
            _: &TilePlan,
            _: &TilePair,
            _: &mut [[i32; PRODUCT]; 4],
        ) {
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx {
    use std::arch::asm;
    use std::arch::x86_64::__cpuid_count;
    use std::sync::OnceLock;

    use super::{LINE, PRODUCT, TILE_BYTES, TILE_PIXELS, TilePair, TilePlan};

    /// Whether tiles can be used: the processor has them, and the kernel has been asked to let this process use them.
    pub(in super::super) fn is_usable() -> bool {
        static IS_USABLE: OnceLock<bool> = OnceLock::new();
        *IS_USABLE.get_or_init(|| has_instructions() && is_permitted())
    }

    /// Whether the processor has tiles and their products of bytes.
    fn has_instructions() -> bool {
        const TILES: u32 = 1 << 24;
        const BYTES: u32 = 1 << 25;
        if !std::arch::is_x86_feature_detected!("avx512vnni") {
            return false;
        }
        let features = __cpuid_count(7, 0).edx;
        features & TILES != 0 && features & BYTES != 0
    }

    /// Asks for the state of tiles (`arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`), which Linux gives to those
    /// processes only that ask for it.
    fn is_permitted() -> bool {
        const ARCH_PRCTL: usize = 158;
        const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
        const XTILEDATA: usize = 18;
        let result: isize;
        // SAFETY: the call takes two numbers and touches no memory of ours; a kernel that does not know it refuses.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") ARCH_PRCTL => result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XTILEDATA,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        result == 0
    }

    /// The shapes of the eight tiles, as `ldtilecfg` reads them.
    #[repr(C, align(64))]
    struct TileShapes {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    /// Tiles of this thread, configured until it is dropped: 0 to 3 are products, 4 and 5 pixels, 6 and 7 weights.
    pub(in super::super) struct Tiles(());

    impl Tiles {
        /// Configures tiles of so many pixels.
        ///
        /// # Safety
        /// [`is_usable`], and no others are configured on this thread. At most sixteen pixels.
        pub(in super::super) unsafe fn new(pixels: usize) -> Self {
            let mut shapes = TileShapes {
                palette: 1,
                start_row: 0,
                reserved: [0; 14],
                row_bytes: [0; 16],
                rows: [0; 16],
            };
            shapes.row_bytes[..8].fill(TILE_BYTES as u16);
            shapes.rows[..6].fill(pixels as u8);
            shapes.rows[6..8].fill(TILE_PIXELS as u8);
            // SAFETY: the processor has the instruction, which reads 64 bytes; the shapes are allowed ones.
            unsafe {
                asm!("ldtilecfg [{shapes}]", shapes = in(reg) &raw const shapes, options(nostack, readonly));
            }
            Self(())
        }

        /// The products of two tiles of pixels with one or two panels, over all runs of a window: 0 and 1 of the first tile
        /// with both panels, 2 and 3 of the second.
        ///
        /// # Safety
        /// All pixels and weights that the plan's runs lead to can be read.
        #[inline(always)]
        pub(in super::super) unsafe fn multiply(
            &self,
            plan: &TilePlan,
            pair: &TilePair,
            products: &mut [[i32; PRODUCT]; 4],
        ) {
            let arguments = Arguments {
                runs_end: plan.runs.as_ptr_range().end,
                tiles_of_run: plan.run_tiles,
                products: products.as_mut_ptr().cast(),
            };
            // SAFETY: the caller's promise; products have room for four tiles of sixteen lines.
            unsafe {
                if pair.has_two_panels {
                    two_panels(plan, pair, &arguments);
                } else {
                    one_panel(plan, pair, &arguments);
                }
            }
        }
    }

    impl Drop for Tiles {
        fn drop(&mut self) {
            // SAFETY: the processor has the instruction; nobody reads the tiles any more.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }

    /// What the loops read from memory, because there are too few registers.
    #[repr(C)]
    struct Arguments {
        runs_end: *const u32,
        tiles_of_run: usize,
        products: *mut i32,
    }

    /// # Safety
    /// See [`Tiles::multiply`].
    #[inline(always)]
    unsafe fn two_panels(plan: &TilePlan, pair: &TilePair, arguments: &Arguments) {
        // SAFETY: the caller's promise. Offsets of arguments are those of the structure.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "mov {count:e}, dword ptr [{runs}]",
                "lea {first}, [{pixels0} + {count}]",
                "lea {second}, [{pixels1} + {count}]",
                "mov {count}, qword ptr [{arguments} + 8]",
                "2:",
                "tileloadd tmm4, [{first} + {stride}*1]",
                "tileloadd tmm6, [{weights0} + {line}*1]",
                "tileloadd tmm7, [{weights1} + {line}*1]",
                "tdpbusd tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{second} + {stride}*1]",
                "tdpbusd tmm1, tmm4, tmm7",
                "tdpbusd tmm2, tmm5, tmm6",
                "tdpbusd tmm3, tmm5, tmm7",
                "add {first}, 64",
                "add {second}, 64",
                "add {weights0}, 1024",
                "add {weights1}, 1024",
                "dec {count}",
                "jnz 2b",
                "add {runs}, 4",
                "cmp {runs}, qword ptr [{arguments}]",
                "jne 3b",
                "mov {count}, qword ptr [{arguments} + 16]",
                "tilestored [{count} + {line}*1], tmm0",
                "tilestored [{count} + {line}*1 + 1024], tmm1",
                "tilestored [{count} + {line}*1 + 2048], tmm2",
                "tilestored [{count} + {line}*1 + 3072], tmm3",
                count = out(reg) _,
                first = out(reg) _,
                second = out(reg) _,
                runs = inout(reg) plan.runs.as_ptr() => _,
                pixels0 = in(reg) pair.pixels[0],
                pixels1 = in(reg) pair.pixels[1],
                weights0 = inout(reg) pair.weights[0] => _,
                weights1 = inout(reg) pair.weights[1] => _,
                stride = in(reg) plan.stride,
                line = in(reg) LINE,
                arguments = in(reg) arguments,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                out("tmm3") _,
                out("tmm4") _,
                out("tmm5") _,
                out("tmm6") _,
                out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// # Safety
    /// See [`Tiles::multiply`].
    #[inline(always)]
    unsafe fn one_panel(plan: &TilePlan, pair: &TilePair, arguments: &Arguments) {
        // SAFETY: the caller's promise. Offsets of arguments are those of the structure.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm2",
                "3:",
                "mov {count:e}, dword ptr [{runs}]",
                "lea {first}, [{pixels0} + {count}]",
                "lea {second}, [{pixels1} + {count}]",
                "mov {count}, qword ptr [{arguments} + 8]",
                "2:",
                "tileloadd tmm4, [{first} + {stride}*1]",
                "tileloadd tmm6, [{weights} + {line}*1]",
                "tdpbusd tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{second} + {stride}*1]",
                "tdpbusd tmm2, tmm5, tmm6",
                "add {first}, 64",
                "add {second}, 64",
                "add {weights}, 1024",
                "dec {count}",
                "jnz 2b",
                "add {runs}, 4",
                "cmp {runs}, qword ptr [{arguments}]",
                "jne 3b",
                "mov {count}, qword ptr [{arguments} + 16]",
                "tilestored [{count} + {line}*1], tmm0",
                "tilestored [{count} + {line}*1 + 2048], tmm2",
                count = out(reg) _,
                first = out(reg) _,
                second = out(reg) _,
                runs = inout(reg) plan.runs.as_ptr() => _,
                pixels0 = in(reg) pair.pixels[0],
                pixels1 = in(reg) pair.pixels[1],
                weights = inout(reg) pair.weights[0] => _,
                stride = in(reg) plan.stride,
                line = in(reg) LINE,
                arguments = in(reg) arguments,
                out("tmm0") _,
                out("tmm2") _,
                out("tmm4") _,
                out("tmm5") _,
                out("tmm6") _,
                options(nostack),
            );
        }
    }
}

pub(super) use amx::{Tiles, is_usable};
