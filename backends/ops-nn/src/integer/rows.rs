//! Rows of bytes times packed weights: the windows of convolutions with their channels last, and products of matrices,
//! whose rows are pixels of one run.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::cx::Cx;
use super::super::fetch_ahead::FetchAhead;
use super::super::gemm::{ProductSize, Tile, is_cut_by_panels};
use super::add::{Addition, LaneAddition};
use super::lanes::{Bounds, LANES, LINE, Laned, Lanes, QUAD, Requantising, has_tiles, run_lanes};
use super::packed::FilterSizes;
use super::tiles::{self, PRODUCT, TILE_PIXELS, TilePair, TilePlan, TileRequest, Tiles};
use zbmd_op::OpError;
use zbmd_op::team::{self, Cut};

/// Bytes of packed weights that stay in the second cache while blocks of pixels go by.
const RESIDENT: usize = 384 << 10;
/// Pixels of such a block.
const PIXELS: usize = 192;

/// Windows of bytes that meet packed weights.
pub(super) struct Rows {
    /// Where each output pixel's window begins.
    pub(super) spots: Vec<u32>,
    /// Where the runs of a window begin.
    pub(super) runs: Vec<u32>,
    pub(super) group_channels: usize,
    pub(super) sizes: FilterSizes,
    /// How often each window is gone through.
    pub(super) passes: usize,
    pub(super) tile: Tile,
    /// The pixels in tiles, where the processor has them.
    pub(super) tiles: Option<TilePlan>,
}

/// Where results go, and what is done to sums before.
pub(super) enum Target<'a> {
    Bytes {
        to: &'a mut [u8],
        /// By panel and lane.
        multipliers: &'a [f32],
        bounds: Bounds,
        sum: Option<Sum<'a>>,
    },
    Ints(&'a mut [i32]),
}

/// What is added to bytes before they are written.
pub(super) struct Sum<'a> {
    pub(super) addition: Addition,
    /// As many bytes as the result has; without them the result itself is added to, and each byte is read before it is
    /// written.
    pub(super) added: Option<&'a [u8]>,
}

/// What a product is made of.
pub(super) struct Multiplication<'a> {
    pub(super) input: &'a [u8],
    /// As [`PackedWeights`] has them.
    pub(super) weights: &'a [i8],
    /// By panel and lane.
    pub(super) biases: &'a [i32],
    /// What is added to all sums of each row.
    pub(super) row_terms: Option<&'a [i32]>,
    pub(super) target: Target<'a>,
}

impl Rows {
    /// The same in tiles, where the processor has them: neighbouring pixels are so many bytes apart, and the image has so
    /// many.
    pub(super) fn in_tiles(mut self, stride: usize, input_bytes: usize) -> Self {
        if self.sizes.has_tiles && tiles::is_usable() {
            self.tiles = TilePlan::new(&TileRequest {
                spots: &self.spots,
                runs: &self.runs,
                stride,
                run_bytes: self.sizes.run_lines() * QUAD,
                input_bytes,
                passes: self.passes,
            });
        }
        self
    }

    /// Elements of the result.
    pub(super) fn result_elements(&self) -> usize {
        self.spots.len() * self.filters()
    }

    fn filters(&self) -> usize {
        self.sizes.groups * self.sizes.group_filters
    }

    /// All pixels times all filters.
    pub(super) fn multiply(&self, mut multiplication: Multiplication<'_>) {
        self.check(&multiplication);
        let (target, multipliers) = match &mut multiplication.target {
            Target::Bytes {
                to,
                multipliers,
                bounds,
                sum,
            } => {
                let to = to.as_mut_ptr();
                let sum = sum.as_ref().map(|sum| RawSum {
                    addition: sum.addition,
                    added: sum.added.map_or(to.cast_const(), <[u8]>::as_ptr),
                });
                let target = RawTarget::Bytes(to, *bounds, sum);
                (target, multipliers.as_ptr())
            }
            Target::Ints(to) => (RawTarget::Ints(to.as_mut_ptr()), std::ptr::null()),
        };
        let mut job = Job {
            rows: self,
            input: multiplication.input,
            weights: multiplication.weights,
            biases: multiplication.biases,
            row_terms: multiplication.row_terms,
            multipliers,
            target,
            pixels: 0..self.spots.len(),
            panels: 0..self.sizes.group_panels(),
            tile_groups: None,
        };

        if let Some(plan) = self.tiles.as_ref().filter(|_| has_tiles()) {
            let mut tiled = job.clone();
            tiled.tile_groups = Some(0..plan.groups.len());
            self.share(&tiled);
            // A tile of the last pixels would reach beyond the image.
            job.pixels.start = plan.covered;
        }
        if !job.pixels.is_empty() {
            self.share(&job);
        }
    }

    /// Does a job on all cores of the device: each has pixels of its own, or, where weights are many or pixels few,
    /// weights.
    fn share(&self, job: &Job<'_>) {
        let pixel_count = match (&job.tile_groups, &self.tiles) {
            (Some(groups), Some(plan)) => groups.len() * plan.height,
            _ => job.pixels.len(),
        };
        let window_elements = self.panel_bytes() / LANES;
        let work = pixel_count * window_elements * self.filters() / 4;
        let panels = Cut::new(job.panels.len(), self.tile.panels());
        let pixels = match &job.tile_groups {
            Some(groups) => Cut::new(groups.len(), 2),
            None => Cut::new(job.pixels.len(), self.tile.rows()),
        };
        let by_panels = is_cut_by_panels(pixels, panels, self.is_resident());
        let cut = if by_panels { panels } else { pixels };
        team::share(work, cut, &|part| {
            let mut own_job = job.clone();
            if by_panels {
                own_job.panels = part;
            } else if own_job.tile_groups.is_some() {
                own_job.tile_groups = Some(part);
            } else {
                own_job.pixels = job.pixels.start + part.start..job.pixels.start + part.end;
            }
            // SAFETY: `check` has seen that all places are inside the slices; parts have no place in common.
            unsafe { run_lanes(own_job) }
        });
    }

    /// Bytes of a panel of weights.
    pub(super) fn panel_bytes(&self) -> usize {
        self.sizes.panel_bytes(self.passes)
    }

    /// Weights that stay in the second cache go by once for each block of pixels.
    fn is_resident(&self) -> bool {
        self.sizes.group_panels() * self.panel_bytes() <= RESIDENT
    }

    /// Panics unless every place that a tile reads or writes is inside its slice: this is what makes [`Self::multiply`] a
    /// safe function.
    fn check(&self, multiplication: &Multiplication<'_>) {
        let sizes = &self.sizes;
        let last_spot = self.spots.iter().max().map_or(0, |spot| *spot as usize);
        let last_run = self.runs.iter().max().map_or(0, |run| *run as usize);
        let last_group = sizes.groups.saturating_sub(1) * self.group_channels;
        let run_bytes = sizes.quads() * QUAD;
        assert!(
            last_spot + last_run + last_group + run_bytes <= multiplication.input.len(),
            "a window leaves the image"
        );

        assert!(
            self.tiles
                .as_ref()
                .is_none_or(|plan| plan.reach <= multiplication.input.len()),
            "a tile leaves the image"
        );

        let lanes = sizes.panels() * LANES;
        let result_length = match &multiplication.target {
            Target::Bytes {
                to,
                multipliers,
                sum,
                ..
            } => {
                assert!(multipliers.len() == lanes, "multipliers are missing");
                let added = sum.as_ref().and_then(|sum| sum.added);
                assert!(
                    added.is_none_or(|added| added.len() == to.len()),
                    "what is added has another size"
                );
                to.len()
            }
            Target::Ints(to) => to.len(),
        };
        let terms = multiplication.row_terms;
        assert!(
            result_length == self.result_elements()
                && terms.is_none_or(|terms| terms.len() == self.spots.len()),
            "the result has another size"
        );
        assert!(
            multiplication.weights.len() == sizes.panels() * self.panel_bytes()
                && self.runs.len() == sizes.runs
                && multiplication.biases.len() == lanes,
            "the weights have another size"
        );
    }
}

/// First element of the result.
#[derive(Clone, Copy)]
enum RawTarget {
    Bytes(*mut u8, Bounds, Option<RawSum>),
    Ints(*mut i32),
}

#[derive(Clone, Copy)]
struct RawSum {
    addition: Addition,
    /// First of as many bytes as the result has. It may be the result's own.
    added: *const u8,
}

/// Some pixels, and some panels of each group's filters.
#[derive(Clone)]
struct Job<'a> {
    rows: &'a Rows,
    input: &'a [u8],
    weights: &'a [i8],
    biases: &'a [i32],
    row_terms: Option<&'a [i32]>,
    multipliers: *const f32,
    target: RawTarget,
    pixels: Range<usize>,
    panels: Range<usize>,
    /// Some tiles of pixels, in place of `pixels`.
    tile_groups: Option<Range<usize>>,
}

// SAFETY: all is read only but for the result, of which each core has pixels or panels of its own.
unsafe impl Sync for Job<'_> {}

/// Sums of two tiles of pixels with two panels.
#[repr(align(64))]
struct ProductTiles([[i32; PRODUCT]; 4]);

/// Sums of a tile of pixels with panels, as many as registers hold at most.
#[repr(align(64))]
struct TileSums {
    _by_panel_and_pixel: [[i32; LANES]; MAX_SUMS],
}

const MAX_SUMS: usize = 26;

/// What a tile works on.
struct TileStart {
    /// First byte of the image's group.
    input: *const u8,
    weights: *const i8,
    /// Bytes of a panel of weights.
    panel_bytes: usize,
    /// Number of the first panel's first lane.
    lane: usize,
    /// First column of the result.
    column: usize,
    /// Columns to write of the tile.
    width: usize,
    /// The panels behind those at work.
    ahead: FetchAhead,
}

impl Laned for Job<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        if let (true, Some(groups), Some(plan)) = (L::MANY, &self.tile_groups, &self.rows.tiles) {
            // SAFETY: the caller's promise; a plan is made and used where tiles are usable only.
            unsafe { self.run_tiles::<L>(plan, groups.clone()) };
            return;
        }
        for group in 0..self.rows.sizes.groups {
            // SAFETY: the caller's promise.
            unsafe { self.run_group::<L>(group) };
        }
    }
}

impl Job<'_> {
    /// # Safety
    /// [`Rows::check`] has found nothing, and the processor has the lanes' instructions.
    #[inline(always)]
    unsafe fn run_group<L: Lanes>(&self, group: usize) {
        let rows = self.rows;
        let sizes = &rows.sizes;
        let panel_bytes = rows.panel_bytes();
        // Weights that do not stay in the cache are gone through once, for all pixels.
        let block_pixels = match rows.is_resident() {
            true => PIXELS,
            false => rows.spots.len(),
        };

        // SAFETY: `check` has seen that pixels, panels and windows are inside the slices.
        unsafe {
            for first in self.pixels.clone().step_by(block_pixels.max(1)) {
                let end = (first + block_pixels).min(self.pixels.end);
                let mut panel = self.panels.start;
                while panel < self.panels.end {
                    let tile_panels = panels_of_tile::<L>(rows.tile, self.panels.end - panel);
                    let panel_number = group * sizes.group_panels() + panel;
                    let weights = self.weights.as_ptr().add(panel_number * panel_bytes);
                    let mut start = TileStart {
                        input: self.input.as_ptr().add(group * rows.group_channels),
                        weights,
                        panel_bytes,
                        lane: panel_number * LANES,
                        column: group * sizes.group_filters + panel * LANES,
                        // Padding of the last panel is computed, and not stored.
                        width: (tile_panels * LANES).min(sizes.group_filters - panel * LANES),
                        ahead: FetchAhead::new(
                            weights.wrapping_add(tile_panels * panel_bytes),
                            [tile_panels, rows.tile.rows()],
                            end - first,
                        ),
                    };

                    let mut pixel = first;
                    while pixel < end {
                        pixel += self.pixel_tile::<L>(tile_panels, &mut start, pixel, end - pixel);
                    }
                    panel += tile_panels;
                }
            }
        }
    }

    /// Some tiles of pixels.
    ///
    /// # Safety
    /// [`Rows::check`] has found nothing, tiles are usable, and the processor has the lanes' instructions.
    #[inline(always)]
    unsafe fn run_tiles<L: Lanes>(&self, plan: &TilePlan, groups: Range<usize>) {
        let rows = self.rows;
        let sizes = &rows.sizes;
        let panel_bytes = rows.panel_bytes();
        let mut products = ProductTiles([[0; PRODUCT]; 4]);
        // Weights that do not stay in the cache are gone through once, for all pixels.
        let block_groups = match rows.is_resident() {
            true => PIXELS / TILE_PIXELS,
            false => plan.groups.len(),
        };

        // SAFETY: the caller's promise; `check` has seen how far tiles of pixels and panels reach.
        unsafe {
            let tiles = Tiles::new(plan.height);
            for first in groups.clone().step_by(block_groups.max(1)) {
                let end = (first + block_groups).min(groups.end);
                for panel in self.panels.clone().step_by(2) {
                    let panels = (self.panels.end - panel).min(2);
                    let weights = self.weights.as_ptr().add(panel * panel_bytes);
                    let start = TileStart {
                        input: self.input.as_ptr(),
                        weights,
                        panel_bytes,
                        lane: panel * LANES,
                        column: panel * LANES,
                        width: (panels * LANES).min(sizes.group_filters - panel * LANES),
                        ahead: FetchAhead::new(weights, [panels, TILE_PIXELS], 0),
                    };
                    for group in (first..end).step_by(2) {
                        let both = &plan.groups[group..(group + 2).min(end)];
                        let second = both.last().map_or(0, |group| group.start as usize);
                        let pair = TilePair {
                            pixels: [
                                start.input.add(both[0].start as usize),
                                start.input.add(second),
                            ],
                            weights: [weights, weights.add((panels - 1) * panel_bytes)],
                            has_two_panels: panels == 2,
                        };
                        tiles.multiply(plan, &pair, &mut products.0);
                        for (g, group) in both.iter().enumerate() {
                            for v in 0..panels {
                                let product = products.0[2 * g + v].as_chunks().0;
                                let pixels = (0..plan.height).map(|slot| group.pixel(slot));
                                store_panel::<L>(self, &start, v, pixels, product);
                            }
                        }
                    }
                }
            }
        }
    }

    /// As many pixels from `first` on as a tile of so many panels takes of those that are left; returns their number.
    ///
    /// # Safety
    /// See [`tile`].
    #[inline(always)]
    unsafe fn pixel_tile<L: Lanes>(
        &self,
        panels: usize,
        start: &mut TileStart,
        first: usize,
        pixels_left: usize,
    ) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            match (L::MANY, panels, pixels_left) {
                (true, 4, 6..) => tile::<L, 6, 4>(self, start, first),
                (true, 4, 2..) => tile::<L, 2, 4>(self, start, first),
                (true, 4, _) => tile::<L, 1, 4>(self, start, first),
                // A pixel that is left over alone takes as long as five of a larger tile: sums wait for each other.
                (true, 2, 13..) if pixels_left % 12 == 1 => tile::<L, 13, 2>(self, start, first),
                (true, 2, 12..) => tile::<L, 12, 2>(self, start, first),
                (true, 2, 4..) => tile::<L, 4, 2>(self, start, first),
                (true, 2, _) => tile::<L, 1, 2>(self, start, first),
                (true, _, 12..) => tile::<L, 12, 1>(self, start, first),
                (_, _, 3..) => tile::<L, 3, 1>(self, start, first),
                _ => tile::<L, 1, 1>(self, start, first),
            }
        }
    }
}

/// How many panels a tile takes of those that are left.
#[inline(always)]
fn panels_of_tile<L: Lanes>(tile: Tile, panels_left: usize) -> usize {
    match (L::MANY, tile, panels_left) {
        (true, Tile::Square, 4..) => 4,
        (true, _, 2..) => 2,
        _ => 1,
    }
}

/// A block for each number below a constant of at most 13. The number is a constant in it, so that what it indexes stays in
/// registers, which it would not in a loop that the compiler finds too long to unroll.
macro_rules! unrolled {
    ($index:ident in $end:ident, $body:block) => {
        unrolled!(@each $index $end $body 0 1 2 3 4 5 6 7 8 9 10 11 12)
    };
    (@each $index:ident $end:ident $body:block $($number:literal)*) => {
        $(if $number < $end {
            #[expect(non_upper_case_globals, reason = "it stands for a variable")]
            const $index: usize = $number;
            $body
        })*
    };
}

/// R pixels from `first` on, P panels of filters; returns R.
///
/// # Safety
/// The pixels and panels exist, and the processor has the lanes' instructions.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn tile<L: Lanes, const R: usize, const P: usize>(
    job: &Job<'_>,
    start: &mut TileStart,
    first: usize,
) -> usize {
    const { assert!(R * P <= MAX_SUMS, "sums are registers") };
    let rows = job.rows;
    let quads = rows.sizes.quads();
    let run_lines = rows.sizes.run_lines();
    // SAFETY: the caller's promise; `Rows::check` holds for all pixels and runs, the last being the farthest.
    unsafe {
        let mut sums = [[L::zero(); P]; R];
        let mut windows = [start.input; R];
        for r in 0..R {
            windows[r] = (start.input).add(*rows.spots.get_unchecked(first + r) as usize);
        }

        let mut ahead = start.ahead;
        let mut line = start.weights;
        for _ in 0..rows.passes {
            for &run in &rows.runs {
                let mut elements = windows;
                for r in 0..R {
                    elements[r] = windows[r].add(run as usize);
                }
                for q in 0..quads {
                    ahead.at_line(q);
                    let mut weights = [L::weights(line); P];
                    for v in 1..P {
                        weights[v] = L::weights(line.add(v * start.panel_bytes));
                    }
                    for r in 0..R {
                        // Four bytes of each pixel meet sixteen filters in each vector.
                        let quad = L::quad(elements[r].add(q * QUAD));
                        for v in 0..P {
                            sums[r][v] = L::add_quad(sums[r][v], quad, weights[v]);
                        }
                    }
                    line = line.wrapping_add(LINE);
                }
                // Lines that fill the run up to whole tiles.
                line = line.wrapping_add((run_lines - quads) * LINE);
            }
        }

        start.ahead = ahead;

        if let (true, None, RawTarget::Bytes(to, bounds, sum)) =
            (L::MANY, job.row_terms, job.target)
        {
            store_bytes::<L, R, P>(job, start, first, sums, (to, bounds, sum));
            return R;
        }

        // Places that are constants: a loop that finished one sum after the other would keep all of them in memory from the
        // first product on.
        let mut totals = MaybeUninit::<TileSums>::uninit();
        let totals = totals.as_mut_ptr().cast::<[i32; LANES]>();
        for v in 0..P {
            for r in 0..R {
                L::store_ints(L::totals(sums[r][v]), totals.add(v * R + r).cast());
            }
        }
        for v in 0..P {
            let pixels = (first..first + R).map(Some);
            let panel_totals = std::slice::from_raw_parts(totals.add(v * R), R);
            store_panel::<L>(job, start, v, pixels, panel_totals);
        }
    }
    R
}

/// Stores the sums of a tile as bytes, without a way through memory.
///
/// # Safety
/// See [`tile`].
#[inline(always)]
unsafe fn store_bytes<L: Lanes, const R: usize, const P: usize>(
    job: &Job<'_>,
    start: &TileStart,
    first: usize,
    sums: [[L::Sums; P]; R],
    (to, bounds, sum): (*mut u8, Bounds, Option<RawSum>),
) {
    let filters = job.rows.filters();
    // SAFETY: the caller's promise; multipliers and biases fill whole panels.
    unsafe {
        unrolled!(v in P, {
            let lane = start.lane + v * LANES;
            let biases = job.biases.as_ptr().add(lane);
            let multipliers = job.multipliers.add(lane);
            let requantising = Requantising::<L>::new(biases, multipliers, bounds);
            let place = first * filters + start.column + v * LANES;
            let to = to.add(place);
            let width = (start.width - v * LANES).min(LANES);
            if let Some(RawSum { addition, added }) = sum {
                let addition = addition.in_lanes::<L>();
                let added = added.add(place);
                unrolled!(r in R, {
                    let left = requantising.centred(L::totals(sums[r][v]));
                    addition.store(left, added.add(r * filters), width, to.add(r * filters));
                });
            } else {
                unrolled!(r in R, {
                    requantising.store(L::totals(sums[r][v]), width, to.add(r * filters));
                });
            }
        });
    }
}

/// What becomes of the sums of a panel, in registers.
#[derive(Clone, Copy)]
enum Finish<L: Lanes> {
    Bytes {
        to: *mut u8,
        requantising: Requantising<L>,
        /// What is added, and where it begins.
        sum: Option<(LaneAddition<L>, *const u8)>,
    },
    Ints {
        to: *mut i32,
        biases: L::Ints,
    },
}

/// Finishes and stores the sums of some pixels with the filters of panel `v` of the tile; those of no pixel are left out.
///
/// # Safety
/// The pixels and the panel exist, and the processor has the lanes' instructions.
#[inline(always)]
unsafe fn store_panel<L: Lanes>(
    job: &Job<'_>,
    start: &TileStart,
    v: usize,
    pixels: impl Iterator<Item = Option<usize>>,
    sums: &[[i32; LANES]],
) {
    let filters = job.rows.filters();
    let first_lane = start.lane + v * LANES;
    let first_column = start.column + v * LANES;
    // Fewer filters may be left than lanes: whole stores would run into the next group or pixel.
    let width = (start.width - v * LANES).min(LANES);

    // SAFETY: the caller's promise; `width` results are left, and multipliers and biases fill whole panels. Loops, as the
    // methods of iterators would be functions without the instructions.
    unsafe {
        let biases = job.biases.as_ptr().add(first_lane);
        let finish = match job.target {
            RawTarget::Bytes(to, bounds, sum) => {
                #[expect(
                    clippy::manual_map,
                    reason = "a closure would be a function without the instructions"
                )]
                let sum = match sum {
                    Some(RawSum { addition, added }) => Some((addition.in_lanes(), added)),
                    None => None,
                };
                let multipliers = job.multipliers.add(first_lane);
                Finish::<L>::Bytes {
                    to,
                    sum,
                    requantising: Requantising::new(biases, multipliers, bounds),
                }
            }
            RawTarget::Ints(to) => Finish::Ints {
                to,
                biases: L::ints(biases),
            },
        };
        for (pixel, sums) in pixels.zip(sums) {
            let Some(pixel) = pixel else { continue };
            let place = pixel * filters + first_column;
            let mut totals = L::ints(sums.as_ptr());
            if let Some(terms) = job.row_terms {
                totals = L::add_ints(totals, L::same_ints(*terms.get_unchecked(pixel)));
            }
            match finish {
                Finish::Bytes {
                    to,
                    requantising,
                    sum: None,
                } => requantising.store(totals, width, to.add(place)),
                Finish::Bytes {
                    to,
                    requantising,
                    sum: Some((addition, added)),
                } => {
                    let left = requantising.centred(totals);
                    addition.store(left, added.add(place), width, to.add(place));
                }
                Finish::Ints { to, biases } => {
                    store_first_ints::<L>(L::add_ints(totals, biases), width, to.add(place));
                }
            }
        }
    }
}

/// Writes so many of sixteen integers.
///
/// # Safety
/// The processor has the lanes' instructions, and so many integers can be written.
#[inline(always)]
unsafe fn store_first_ints<L: Lanes>(ints: L::Ints, count: usize, to: *mut i32) {
    // SAFETY: the caller's promise.
    unsafe {
        if count == LANES {
            L::store_ints(ints, to);
        } else {
            let mut all = [0_i32; LANES];
            L::store_ints(ints, all.as_mut_ptr());
            std::ptr::copy_nonoverlapping(all.as_ptr(), to, count);
        }
    }
}

/// Rows of a left matrix, which is read as so many bytes, that meet the columns of a right one: pixels of one run each.
pub(super) fn matrix_rows(
    size: ProductSize,
    passes: usize,
    tile: Tile,
    input_bytes: usize,
) -> Result<Rows, OpError> {
    let elements = size.rows.saturating_mul(size.depth);
    if elements > u32::MAX as usize {
        return Err(Cx::other(
            format!("the left matrix has {elements} elements"),
            format!("the limit is {}: split it", u32::MAX),
        ));
    }
    let rows = Rows {
        spots: (0..size.rows)
            .map(|row| (row * size.depth) as u32)
            .collect(),
        runs: vec![0],
        group_channels: 0,
        sizes: matrix_sizes(size),
        passes,
        tile,
        tiles: None,
    };
    Ok(rows.in_tiles(size.depth, input_bytes))
}

/// A right matrix as filters, one for each column.
pub(super) fn matrix_sizes(size: ProductSize) -> FilterSizes {
    FilterSizes {
        groups: 1,
        group_filters: size.columns,
        runs: 1,
        run_length: size.depth,
        has_tiles: true,
    }
}
