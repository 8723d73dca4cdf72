//! Products of f32 matrices: one thread, no allocation, the same bits for any grouping of rows and columns.
//!
//! The right matrix is packed in panels of 16 columns (all of a panel's rows one after the other), the left one is
//! read as it lies. Every element of the result is one chain of fused multiply-adds in the order of k, so that
//! tiles, blocks and batches of firings cannot change it. Blocks follow Goto & van de Geijn 2008, ACM Trans. Math.
//! Softw. 34(3). A library is not used because those at hand start threads or allocate in each call.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use bytes::Bytes;

use super::cx::Cx;
use super::num::Float;
use super::vector::{Vector, Wide, run_wide};
use zbmd_op::OpError;
use zbmd_op::{math, team};

/// Columns of a panel.
pub(crate) const PANEL: usize = 16;
/// Rows of the inner dimension that are multiplied at a time: a panel of them stays in the first cache.
const DEPTH: usize = 256;
/// Panels that are gone through for each block of rows.
const GROUP: usize = 8;
/// Floats between what is multiplied and what is asked for, where one row goes through the right matrix.
const AHEAD: usize = 32 * PANEL;
/// Rows of a block: whole tiles of either kind.
const ROWS: usize = 96;
/// What is done to a result while it is still in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Act {
    #[default]
    None,
    Relu,
    Clip(f32, f32),
    Sigmoid,
    Tanh,
    Silu,
    Gelu,
    HardSwish,
}

impl Act {
    #[inline(always)]
    pub(crate) fn apply<const FMA: bool>(self, y: &mut [f32]) {
        match self {
            Act::None => {}
            Act::Relu => y
                .iter_mut()
                .for_each(|v| *v = if *v > 0.0 { *v } else { 0.0 }),
            Act::Clip(low, high) => y.iter_mut().for_each(|v| {
                let x = if *v < low { low } else { *v };
                *v = if x > high { high } else { x };
            }),
            Act::Sigmoid => y
                .iter_mut()
                .for_each(|v| *v = 1.0 / (1.0 + math::exp::<FMA>(-*v))),
            Act::Tanh => y.iter_mut().for_each(|v| *v = math::tanh::<FMA>(*v)),
            Act::Silu => y.iter_mut().for_each(|v| *v /= 1.0 + math::exp::<FMA>(-*v)),
            Act::Gelu => y.iter_mut().for_each(|v| {
                *v = 0.5 * *v * (1.0 + (*v * std::f32::consts::FRAC_1_SQRT_2).erf_fast::<FMA>());
            }),
            Act::HardSwish => y
                .iter_mut()
                .for_each(|v| *v *= (*v / 6.0 + 0.5).clamp(0.0, 1.0)),
        }
    }
}

/// The left matrix: element (r, k) lies at `r·row + k·column`.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row: usize,
    pub(crate) column: usize,
}

/// How many rows and panels of a result are summed up in registers at a time: the variants of whatever is a product of
/// matrices. Each element is the same chain in both.
///
/// Tall tiles read few weights for each product. Square ones keep to few rows: a first cache has eight places for rows
/// that lie a multiple of 4 KiB apart, as those of 1024 floats do. For single rows they leave it to the processor to
/// ask for weights ahead of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tile {
    #[default]
    Tall,
    Square,
}

impl Tile {
    /// Named by rows and columns where vectors are of sixteen floats; tiles of narrower ones have half of each.
    pub(crate) const ALL: [(&'static str, Self); 2] =
        [("12x32", Self::Tall), ("6x64", Self::Square)];

    /// Rows of the largest tile.
    pub(crate) fn rows(self) -> usize {
        match self {
            Self::Tall => 12,
            Self::Square => 6,
        }
    }

    /// Panels of the largest tile.
    pub(crate) fn panels(self) -> usize {
        match self {
            Self::Tall => 2,
            Self::Square => 4,
        }
    }
}

/// What surrounds a product.
#[derive(Clone, Copy, Default)]
pub(crate) struct Extra<'a> {
    /// Adds to what the result holds instead of replacing it.
    pub(crate) accumulate: bool,
    /// Added to each row's elements at the end.
    pub(crate) row_bias: Option<&'a [f32]>,
    /// Added to each column's elements at the end.
    pub(crate) column_bias: Option<&'a [f32]>,
    pub(crate) act: Act,
    pub(crate) tile: Tile,
}

/// Floats of a packed matrix of k rows and n columns.
pub(crate) fn packed_len(k: usize, n: usize) -> usize {
    k * n.next_multiple_of(PANEL)
}

/// Packs the matrix whose element (i, j) lies at `i·row + j·column`.
pub(crate) fn pack(b: &[f32], k: usize, n: usize, row: usize, column: usize, out: &mut [f32]) {
    for (p, panel) in out[..packed_len(k, n)]
        .chunks_exact_mut((k * PANEL).max(1))
        .enumerate()
    {
        let first = p * PANEL;
        let width = (n - first).min(PANEL);
        for (i, to) in panel.chunks_exact_mut(PANEL).enumerate() {
            let from = &b[i * row + first * column..];
            if column == 1 {
                to[..width].copy_from_slice(&from[..width]);
            } else {
                to[..width]
                    .iter_mut()
                    .enumerate()
                    .for_each(|(j, t)| *t = from[j * column]);
            }
            to[width..].fill(0.0);
        }
    }
}

/// Packed weights: made with the kernel, or where a bundle has them ready.
pub(crate) enum Weights {
    Made(Vec<f32>),
    Kept(Bytes),
}

impl Weights {
    /// `len` floats: those that were kept, if they are as many, or what `make` gives.
    pub(crate) fn new(
        kept: Option<Bytes>,
        len: usize,
        make: impl FnOnce() -> Vec<f32>,
    ) -> Result<Self, OpError> {
        let Some(kept) = kept else {
            return Ok(Self::Made(make()));
        };
        if kept.len() != 4 * len {
            let message = format!("packed weights of {} bytes", kept.len());
            return Err(Cx::other(message, format!("there must be {}", 4 * len)));
        }
        Ok(match bytemuck::try_cast_slice::<u8, f32>(&kept) {
            Ok(_) => Self::Kept(kept),
            Err(_) => Self::Made(super::cx::floats_of(&kept)),
        })
    }
}

impl std::ops::Deref for Weights {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Made(floats) => floats,
            // Aligned, as was seen when it was made.
            Self::Kept(bytes) => bytemuck::cast_slice(bytes),
        }
    }
}

/// The product of `m` rows of a with the packed `k` by `n` matrix b, into rows of c that are `stride` apart.
pub(crate) fn gemm(
    (m, k, n): (usize, usize, usize),
    a: Left<'_>,
    b: &[f32],
    c: &mut [f32],
    stride: usize,
    extra: Extra<'_>,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        k == 0 || (m - 1) * a.row + (k - 1) * a.column < a.data.len(),
        "the left matrix is too small"
    );
    assert!(
        b.len() >= packed_len(k, n),
        "the packed matrix is too small"
    );
    assert!(
        stride >= n && (m - 1) * stride + n <= c.len(),
        "the result is too small"
    );
    assert!(
        extra.row_bias.is_none_or(|bias| bias.len() >= m)
            && extra.column_bias.is_none_or(|bias| bias.len() >= n),
        "a bias is too short"
    );
    let c = c.as_mut_ptr();
    let product = Product {
        rows: (0, m),
        k,
        columns: (0, n),
        a,
        b,
        c,
        stride,
        extra,
    };
    let whole = Shared(product);
    // Rows of whole tiles, or panels where there are few rows.
    let by_rows = m >= 12 * team::cores();
    let (all, tile) = if by_rows {
        (m, extra.tile.rows())
    } else {
        (n, PANEL)
    };
    team::share(m.saturating_mul(n).saturating_mul(k), all, tile, &|part| {
        let mut product = whole.get();
        *if by_rows {
            &mut product.rows
        } else {
            &mut product.columns
        } = (part.start, part.end);
        // SAFETY: the sizes fit, as was checked above; parts have no element of the result in common.
        unsafe { run_wide(product) }
    });
}

/// A product of which each core does a part.
struct Shared<'a>(Product<'a>);

// SAFETY: all that a product leads to is read only, but for the result, of which each core has its own part.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    fn get(&self) -> Product<'a> {
        self.0
    }
}

impl Wide for Product<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector, const FMA: bool>(self) {
        // SAFETY: the caller's promise.
        unsafe { nest::<V, FMA>(self) }
    }
}

/// Some rows and some whole panels of columns of a product.
#[derive(Clone, Copy)]
struct Product<'a> {
    rows: (usize, usize),
    k: usize,
    columns: (usize, usize),
    a: Left<'a>,
    b: &'a [f32],
    /// The whole result's first element.
    c: *mut f32,
    stride: usize,
    extra: Extra<'a>,
}

/// Where a tile begins.
struct At {
    a: *const f32,
    b: *const f32,
    c: *mut f32,
    /// Rows of the inner dimension in this block.
    depth: usize,
    first: bool,
}

/// All tiles of a product.
///
/// # Safety
/// The sizes fit the slices, as `gemm` checks, and the processor has the vector's instructions.
#[inline(always)]
unsafe fn nest<V: Vector, const FMA: bool>(p: Product<'_>) {
    let Product {
        rows,
        k,
        columns: all,
        a,
        b,
        c,
        stride,
        extra,
    } = p;
    let panels = all.1.div_ceil(PANEL);
    if k == 0 {
        for r in (rows.0..rows.1).filter(|_| !extra.accumulate) {
            // SAFETY: the result has these columns in each of its rows.
            unsafe { std::slice::from_raw_parts_mut(c.add(r * stride + all.0), all.1 - all.0) }
                .fill(0.0);
        }
        // SAFETY: likewise.
        return unsafe { finish::<FMA>(rows, all, c, stride, &extra) };
    }
    for r0 in (rows.0..rows.1).step_by(ROWS) {
        let r1 = (r0 + ROWS).min(rows.1);
        for g0 in (all.0 / PANEL..panels).step_by(GROUP) {
            let g1 = (g0 + GROUP).min(panels);
            let columns = (g0 * PANEL, (g1 * PANEL).min(all.1));
            for k0 in (0..k).step_by(DEPTH) {
                let depth = DEPTH.min(k - k0);
                let first = k0 == 0 && !extra.accumulate;
                let mut r = r0;
                while r < r1 {
                    let at = At {
                        a: a.data.as_ptr().wrapping_add(r * a.row + k0 * a.column),
                        b: b.as_ptr().wrapping_add(g0 * k * PANEL + k0 * PANEL),
                        c: c.wrapping_add(r * stride + g0 * PANEL),
                        depth,
                        first,
                    };
                    let steps = (a.row, a.column, k * PANEL, stride);
                    let width = columns.1 - columns.0;
                    // SAFETY: rows r to r + R and the group's columns lie within the matrices.
                    r += unsafe { row_tile::<V>(extra.tile, r1 - r, &at, width, steps) };
                }
            }
            // SAFETY: the result has these rows and columns.
            unsafe { finish::<FMA>((r0, r1), columns, c, stride, &extra) };
        }
    }
}

/// Bias and activation of a block.
///
/// # Safety
/// The block is one of the result's, and nobody else looks at it.
#[inline(always)]
unsafe fn finish<const FMA: bool>(
    rows: (usize, usize),
    columns: (usize, usize),
    c: *mut f32,
    stride: usize,
    extra: &Extra<'_>,
) {
    if extra.row_bias.is_none() && extra.column_bias.is_none() && extra.act == Act::None {
        return;
    }
    for r in rows.0..rows.1 {
        let (first, width) = (r * stride + columns.0, columns.1 - columns.0);
        // SAFETY: the caller's promise.
        let y = unsafe { std::slice::from_raw_parts_mut(c.add(first), width) };
        if let Some(bias) = extra.row_bias {
            let bias = bias[r];
            y.iter_mut().for_each(|y| *y += bias);
        }
        if let Some(bias) = extra.column_bias {
            y.iter_mut()
                .zip(&bias[columns.0..columns.1])
                .for_each(|(y, b)| *y += b);
        }
        extra.act.apply::<FMA>(y);
    }
}

type Steps = (usize, usize, usize, usize);

/// As many rows as fit, over all panels of a group; returns their number.
///
/// # Safety
/// See [`nest`].
#[inline(always)]
unsafe fn row_tile<V: Vector>(
    tile: Tile,
    left: usize,
    at: &At,
    width: usize,
    steps: Steps,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        match (V::MANY, tile, left) {
            (true, Tile::Tall, 12..) => panel_tiles::<V, 12, 2, false>(at, width, steps),
            (true, Tile::Tall, 8..) => panel_tiles::<V, 8, 2, false>(at, width, steps),
            (true, Tile::Square, 6..) => panel_tiles::<V, 6, 4, false>(at, width, steps),
            (true, _, 4..) => panel_tiles::<V, 4, 4, false>(at, width, steps),
            (true, _, 2..) => panel_tiles::<V, 2, 4, false>(at, width, steps),
            (true, Tile::Tall, _) => panel_tiles::<V, 1, 8, true>(at, width, steps),
            (true, Tile::Square, _) => panel_tiles::<V, 1, 4, false>(at, width, steps),
            (false, Tile::Tall, 6..) => panel_tiles::<V, 6, 1, false>(at, width, steps),
            (false, Tile::Tall, 4..) => panel_tiles::<V, 4, 1, false>(at, width, steps),
            (false, Tile::Square, 3..) => panel_tiles::<V, 3, 2, false>(at, width, steps),
            (false, _, 2..) => panel_tiles::<V, 2, 2, false>(at, width, steps),
            (false, Tile::Tall, _) => panel_tiles::<V, 1, 4, true>(at, width, steps),
            (false, Tile::Square, _) => panel_tiles::<V, 1, 2, false>(at, width, steps),
        }
    }
}

/// R rows over `width` columns, P panels at a time; asks for weights [`AHEAD`] of time where `EARLY`.
///
/// # Safety
/// See [`nest`].
#[inline(always)]
unsafe fn panel_tiles<V: Vector, const R: usize, const P: usize, const EARLY: bool>(
    at: &At,
    width: usize,
    steps: Steps,
) -> usize {
    let (_, _, panel, stride) = steps;
    let mut column = 0;
    while column < width {
        let b = at.b.wrapping_add(column / PANEL * panel);
        let c = at.c.wrapping_add(column);
        // SAFETY: whole panels are written in place; the last, partial one through memory of its own.
        unsafe {
            if column + P * PANEL <= width {
                tile::<V, R, P, EARLY>(at, b, c, stride, steps);
                column += P * PANEL;
            } else if column + PANEL <= width {
                tile::<V, R, 1, EARLY>(at, b, c, stride, steps);
                column += PANEL;
            } else {
                let mut edge = [[0.0_f32; PANEL]; R];
                let rest = width - column;
                if !at.first {
                    for (r, row) in edge.iter_mut().enumerate() {
                        std::ptr::copy_nonoverlapping(c.add(r * stride), row.as_mut_ptr(), rest);
                    }
                }
                tile::<V, R, 1, EARLY>(at, b, edge.as_mut_ptr().cast(), PANEL, steps);
                for (r, row) in edge.iter().enumerate() {
                    std::ptr::copy_nonoverlapping(row.as_ptr(), c.add(r * stride), rest);
                }
                column = width;
            }
        }
    }
    R
}

/// R rows of P whole panels.
///
/// # Safety
/// See [`nest`]; R rows of P · 16 floats, `stride` apart, can be read and written at `c`.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
unsafe fn tile<V: Vector, const R: usize, const P: usize, const EARLY: bool>(
    at: &At,
    b: *const f32,
    c: *mut f32,
    stride: usize,
    (row, column, panel, _): Steps,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[V::zero(); P]; R];
        if !at.first {
            for r in 0..R {
                for v in 0..P {
                    sums[r][v] = V::load(c.add(r * stride + v * PANEL));
                }
            }
        }
        let mut a = at.a;
        let mut b = b;
        for _ in 0..at.depth {
            let mut right = [V::zero(); P];
            for v in 0..P {
                right[v] = V::load(b.add(v * panel));
                if EARLY {
                    // One row meets each weight once: all is waiting for memory, over many pages at a time.
                    V::prefetch(b.wrapping_add(v * panel + AHEAD));
                }
            }
            for r in 0..R {
                let left = *a.add(r * row);
                for v in 0..P {
                    sums[r][v] = sums[r][v].add_product(left, right[v]);
                }
            }
            a = a.wrapping_add(column);
            b = b.wrapping_add(PANEL);
        }
        for r in 0..R {
            for v in 0..P {
                sums[r][v].store(c.add(r * stride + v * PANEL));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, columns: usize, seed: usize) -> Vec<f32> {
        (0..rows * columns)
            .map(|i| ((i * 37 + seed * 11) % 23) as f32 - 11.0)
            .collect()
    }

    #[test]
    fn products_of_small_integers_are_exact_for_any_size() {
        for (m, k, n) in [
            (1, 1, 1),
            (1, 300, 130),
            (2, 7, 17),
            (5, 3, 16),
            (13, 20, 33),
            (25, 513, 48),
            (100, 9, 5),
            (3, 0, 4),
        ] {
            let (a, b) = (matrix(m, k, 1), matrix(k, n, 2));
            let mut packed = vec![f32::NAN; packed_len(k, n)];
            pack(&b, k, n, n, 1, &mut packed);
            let bias: Vec<f32> = (0..m).map(|r| r as f32).collect();
            let mut c = vec![f32::NAN; m * (n + 3)];
            let extra = Extra {
                row_bias: Some(&bias),
                act: Act::Relu,
                ..Extra::default()
            };
            gemm(
                (m, k, n),
                Left {
                    data: &a,
                    row: k,
                    column: 1,
                },
                &packed,
                &mut c,
                n + 3,
                extra,
            );
            for (r, j) in (0..m).flat_map(|r| (0..n).map(move |j| (r, j))) {
                let want: f32 = (0..k).map(|i| a[r * k + i] * b[i * n + j]).sum::<f32>() + bias[r];
                assert_eq!(c[r * (n + 3) + j], want.max(0.0), "{m}x{k}x{n} at {r}, {j}");
            }
            assert!(m == 1 || c[n].is_nan(), "nothing is written between rows");
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_cores() {
        for (m, k, n) in [(1, 700, 500), (3, 900, 301), (77, 130, 77), (500, 40, 20)] {
            let a: Vec<f32> = matrix(m, k, 3).iter().map(|v| v * 0.1).collect();
            let b: Vec<f32> = matrix(k, n, 4).iter().map(|v| v * 0.1).collect();
            let mut packed = vec![0.0; packed_len(k, n)];
            pack(&b, k, n, n, 1, &mut packed);
            let (rows, columns) = (matrix(1, m, 5), matrix(1, n, 6));
            let extra = Extra {
                row_bias: Some(&rows),
                column_bias: Some(&columns),
                act: Act::Silu,
                ..Extra::default()
            };
            let run = |cores: usize| {
                let _team = team::Team::lead(cores, |_| ()).expect("threads");
                let mut c = vec![f32::NAN; m * n];
                let left = Left {
                    data: &a,
                    row: k,
                    column: 1,
                };
                gemm((m, k, n), left, &packed, &mut c, n, extra);
                c
            };
            let want = run(1);
            assert!(want.iter().all(|v| v.is_finite()));
            for cores in [2, 3] {
                assert_eq!(run(cores), want, "{m} x {k} x {n} on {cores} cores");
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_how_rows_and_columns_are_grouped() {
        let (m, k, n) = (29, 700, 77);
        let a: Vec<f32> = matrix(m, k, 3).iter().map(|v| v * 0.1).collect();
        let b: Vec<f32> = matrix(k, n, 4).iter().map(|v| v * 0.1).collect();
        let run = |rows: std::ops::Range<usize>, columns: std::ops::Range<usize>| {
            let width = columns.len();
            let mut packed = vec![0.0; packed_len(k, width)];
            pack(&b[columns.start..], k, width, n, 1, &mut packed);
            let mut c = vec![0.0; rows.len() * width];
            let left = Left {
                data: &a[rows.start * k..],
                row: k,
                column: 1,
            };
            gemm(
                (rows.len(), k, width),
                left,
                &packed,
                &mut c,
                width,
                Extra::default(),
            );
            c
        };
        let whole = run(0..m, 0..n);
        for r in 0..m {
            for columns in [0..1, 3..40, 60..77] {
                let part = run(r..r + 1, columns.clone());
                assert_eq!(
                    part,
                    whole[r * n..][columns.clone()],
                    "row {r}, {columns:?}"
                );
            }
        }
    }
}
