//! Fourier transforms of powers of two in vectors of 512 bits, for processors with AVX-512: rustfft's go no further than 256.
//!
//! With n = 16 m the samples are a matrix of m rows of 16, and a row is a vector. So there are three steps, of which none but the
//! last moves numbers across a vector:
//!
//! 1. the transforms of length m of all 16 columns side by side, by Stockham's passes of radix 8 and 4, which leave results in order;
//! 2. the twiddles e^{-j2πik/n} of column i and result k;
//! 3. the transforms of length 16 of rows: blocks of 16 rows are transposed, so that a vector has the same column of 16 rows.
//!
//! Between the steps the real and the imaginary parts of a vector lie apart. The inverse is the same transform with both parts
//! exchanged before and after.
//!
//! Sources: Stockham 1966, High-speed convolution and correlation, AFIPS 28; Bailey 1990, FFTs in external or hierarchical memory,
//! J. Supercomputing 4(1), on splitting the length in two.
#![expect(
    unsafe_code,
    reason = "calls functions compiled for AVX-512 once the processor is known to have it, which read and write vectors by pointers"
)]

use std::arch::x86_64::*;
use std::array::from_fn;
use std::f64::consts::TAU;

use rustfft::num_complex::Complex32;

/// Numbers of a vector.
const LANES: usize = 16;
/// Lengths that are transformed: below, there is not enough to do for vectors; above, rustfft is as quick.
const LENGTHS: std::ops::RangeInclusive<usize> = 256..=1 << 17;

/// A vector of complex numbers in memory: real parts and then imaginary ones; or, in what is transformed and in the result, 16
/// pairs.
type Line = [f32; 2 * LANES];

/// A vector of complex numbers in registers.
#[derive(Clone, Copy)]
struct Wide {
    re: __m512,
    im: __m512,
}

/// One of Stockham's passes over lines: transforms of length `radix`, each result times a twiddle.
struct Pass {
    /// 4 or 8.
    radix: usize,
    /// Lines that share their twiddles: the product of the radixes of all passes before.
    stride: usize,
    /// `radix` - 1 factors for each `stride` lines.
    twiddles: Vec<[f32; 2]>,
}

/// The plan of a transform.
pub(crate) struct WideFft {
    passes: Vec<Pass>,
    /// Twiddles before the last step: in each block of 16 lines, a line for each column.
    block_twiddles: Vec<Line>,
    is_inverse: bool,
}

/// e^{-j2π numerator / len}.
fn root(numerator: usize, len: usize) -> [f32; 2] {
    let angle = -TAU * (numerator % len) as f64 / len as f64;
    [angle.cos() as f32, angle.sin() as f32]
}

impl WideFft {
    /// The plan, if this is a length for it and a processor with the instructions.
    pub(crate) fn new(len: usize, is_inverse: bool) -> Option<Self> {
        let has_instructions = std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512dq");
        if !len.is_power_of_two() || !LENGTHS.contains(&len) || !has_instructions {
            return None;
        }

        let lines = len / LANES;
        let mut passes = Vec::new();
        let mut stride = 1;
        while stride < lines {
            let rest = lines / stride;
            // Fours first, until what is left is a power of eight.
            let radix = if rest.ilog2().is_multiple_of(3) { 8 } else { 4 };
            let twiddles = (0..rest / radix)
                .flat_map(|group| (1..radix).map(move |result| root(group * result, rest)));
            passes.push(Pass {
                radix,
                stride,
                twiddles: twiddles.collect(),
            });
            stride *= radix;
        }

        let block_twiddles = (0..lines).map(|line| {
            let (block, column) = (line / LANES, line % LANES);
            let roots: [_; LANES] = from_fn(|lane| root(column * (block * LANES + lane), len));
            from_fn(|i| roots[i % LANES][i / LANES])
        });
        Some(Self {
            passes,
            block_twiddles: block_twiddles.collect(),
            is_inverse,
        })
    }

    /// Transforms `x` to `y`. All three have the plan's length; what was in the scratch memory does not matter.
    ///
    /// # Panics
    /// If one has another length.
    pub(crate) fn run(&self, x: &[Complex32], y: &mut [Complex32], scratch: &mut [Complex32]) {
        let len = LANES * self.block_twiddles.len();
        assert!(
            x.len() == len && y.len() == len && scratch.len() == len,
            "a transform of {len} numbers is given {}, {} and {}",
            x.len(),
            y.len(),
            scratch.len()
        );
        let (x, y, scratch) = (lines(x), lines_mut(y), lines_mut(scratch));
        // SAFETY: there is no plan where the processor lacks these instructions.
        unsafe {
            if self.is_inverse {
                self.run_lines::<true>(x, y, scratch);
            } else {
                self.run_lines::<false>(x, y, scratch);
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    fn run_lines<const INVERSE: bool>(&self, x: &[Line], y: &mut [Line], scratch: &mut [Line]) {
        let last = self.passes.len() - 1;
        for (i, pass) in self.passes.iter().enumerate() {
            // The last pass writes to the scratch memory, from which the last step reads.
            let is_to_scratch = (last - i).is_multiple_of(2);
            match (i, is_to_scratch) {
                (0, true) => pass.run::<true, INVERSE>(x, scratch),
                (0, false) => pass.run::<true, INVERSE>(x, y),
                (_, true) => pass.run::<false, INVERSE>(y, scratch),
                (_, false) => pass.run::<false, INVERSE>(scratch, y),
            }
        }
        self.transform_rows::<INVERSE>(scratch, y);
    }

    /// The last two steps.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn transform_rows<const INVERSE: bool>(&self, from: &[Line], to: &mut [Line]) {
        let part = from.len() / LANES;
        let blocks = from.as_chunks::<LANES>().0.iter();
        let blocks = blocks.zip(self.block_twiddles.as_chunks::<LANES>().0);
        for (block, (rows, twiddles)) in blocks.enumerate() {
            // Sixteen is four by four: columns i, 4 + i, 8 + i and 12 + i first, and then their results.
            let fours = [
                four_columns(rows, twiddles, 0),
                four_columns(rows, twiddles, 1),
                four_columns(rows, twiddles, 2),
                four_columns(rows, twiddles, 3),
            ];
            let halves = [
                every_fourth(&fours, 0),
                every_fourth(&fours, 1),
                every_fourth(&fours, 2),
                every_fourth(&fours, 3),
            ];
            for k in 0..4 {
                let results = butterfly4([halves[0][k], halves[1][k], halves[2][k], halves[3][k]]);
                for l in 0..4 {
                    store_pairs::<INVERSE>(results[l], &mut to[(k + 4 * l) * part + block]);
                }
            }
        }
    }
}

impl Pass {
    /// Transforms lines at equal distances: of pairs, if these are the transform's first ones.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn run<const PAIRS: bool, const INVERSE: bool>(&self, from: &[Line], to: &mut [Line]) {
        if self.radix == 8 {
            self.run8::<PAIRS, INVERSE>(from, to);
        } else {
            self.run4::<PAIRS, INVERSE>(from, to);
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn run8<const PAIRS: bool, const INVERSE: bool>(&self, from: &[Line], to: &mut [Line]) {
        let part = from.len() / 8;
        let groups = to.chunks_exact_mut(8 * self.stride);
        let groups = groups.zip(self.twiddles.as_chunks::<7>().0);
        for (group, (to, twiddles)) in groups.enumerate() {
            for i in 0..self.stride {
                let line = group * self.stride + i;
                let results = butterfly8([
                    read::<PAIRS, INVERSE>(&from[line]),
                    read::<PAIRS, INVERSE>(&from[part + line]),
                    read::<PAIRS, INVERSE>(&from[2 * part + line]),
                    read::<PAIRS, INVERSE>(&from[3 * part + line]),
                    read::<PAIRS, INVERSE>(&from[4 * part + line]),
                    read::<PAIRS, INVERSE>(&from[5 * part + line]),
                    read::<PAIRS, INVERSE>(&from[6 * part + line]),
                    read::<PAIRS, INVERSE>(&from[7 * part + line]),
                ]);
                store(results[0], &mut to[i]);
                for k in 1..8 {
                    store(
                        turned(results[k], &twiddles[k - 1]),
                        &mut to[k * self.stride + i],
                    );
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn run4<const PAIRS: bool, const INVERSE: bool>(&self, from: &[Line], to: &mut [Line]) {
        let part = from.len() / 4;
        let groups = to.chunks_exact_mut(4 * self.stride);
        let groups = groups.zip(self.twiddles.as_chunks::<3>().0);
        for (group, (to, twiddles)) in groups.enumerate() {
            for i in 0..self.stride {
                let line = group * self.stride + i;
                let results = butterfly4([
                    read::<PAIRS, INVERSE>(&from[line]),
                    read::<PAIRS, INVERSE>(&from[part + line]),
                    read::<PAIRS, INVERSE>(&from[2 * part + line]),
                    read::<PAIRS, INVERSE>(&from[3 * part + line]),
                ]);
                store(results[0], &mut to[i]);
                for k in 1..4 {
                    store(
                        turned(results[k], &twiddles[k - 1]),
                        &mut to[k * self.stride + i],
                    );
                }
            }
        }
    }
}

/// Columns 4c to 4c + 3 of a block of rows, each a vector now, times their twiddles.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn four_columns(rows: &[Line; LANES], twiddles: &[Line; LANES], c: usize) -> [Wide; 4] {
    let re = transposed(rows, 4 * c);
    let im = transposed(rows, LANES + 4 * c);
    let column = |i: usize| Wide {
        re: re[i],
        im: im[i],
    };
    [
        product(column(0), load(&twiddles[4 * c])),
        product(column(1), load(&twiddles[4 * c + 1])),
        product(column(2), load(&twiddles[4 * c + 2])),
        product(column(3), load(&twiddles[4 * c + 3])),
    ]
}

/// The first half of a transform of 16: columns i, 4 + i, 8 + i and 12 + i, times the twiddles between the halves.
#[inline]
#[target_feature(enable = "avx512f")]
fn every_fourth(fours: &[[Wide; 4]; 4], i: usize) -> [Wide; 4] {
    // cos(π/8), sin(π/8) and cos(π/4).
    const C: f32 = 0.923_879_5;
    const S: f32 = 0.382_683_43;
    const H: f32 = std::f32::consts::FRAC_1_SQRT_2;
    const ROOTS: [[[f32; 2]; 3]; 3] = [
        [[C, -S], [H, -H], [S, -C]],
        [[H, -H], [0.0, -1.0], [-H, -H]],
        [[S, -C], [-H, -H], [-C, S]],
    ];
    let results = butterfly4([fours[0][i], fours[1][i], fours[2][i], fours[3][i]]);
    if i == 0 {
        return results;
    }
    let roots = &ROOTS[i - 1];
    [
        results[0],
        turned(results[1], &roots[0]),
        turned(results[2], &roots[1]),
        turned(results[3], &roots[2]),
    ]
}

/// Four neighbouring numbers of each of 16 rows, from `first` on, as four vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn transposed(rows: &[Line; LANES], first: usize) -> [__m512; 4] {
    let four_rows = |i: usize| {
        let low = _mm512_castps128_ps512(quarter(&rows[i], first));
        let low = _mm512_insertf32x4::<1>(low, quarter(&rows[4 + i], first));
        let low = _mm512_insertf32x4::<2>(low, quarter(&rows[8 + i], first));
        _mm512_insertf32x4::<3>(low, quarter(&rows[12 + i], first))
    };
    let (a, b, c, d) = (four_rows(0), four_rows(1), four_rows(2), four_rows(3));
    let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    [
        _mm512_shuffle_ps::<0x44>(ab_low, cd_low),
        _mm512_shuffle_ps::<0xee>(ab_low, cd_low),
        _mm512_shuffle_ps::<0x44>(ab_high, cd_high),
        _mm512_shuffle_ps::<0xee>(ab_high, cd_high),
    ]
}

/// The transform of four vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn butterfly4(x: [Wide; 4]) -> [Wide; 4] {
    let (even_sum, even_difference) = (sum(x[0], x[2]), difference(x[0], x[2]));
    let (odd_sum, odd_difference) = (sum(x[1], x[3]), difference(x[1], x[3]));
    [
        sum(even_sum, odd_sum),
        minus_j(even_difference, odd_difference),
        difference(even_sum, odd_sum),
        plus_j(even_difference, odd_difference),
    ]
}

/// The transform of eight vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn butterfly8(x: [Wide; 8]) -> [Wide; 8] {
    let even = butterfly4([x[0], x[2], x[4], x[6]]);
    let odd = butterfly4([x[1], x[3], x[5], x[7]]);

    // Results 1 and 3 of the odd ones are turned by -π/4 and -3π/4: sums and differences, times the root of 1/2, which a fused
    // multiply-add does with the sum that follows.
    let half = _mm512_set1_ps(std::f32::consts::FRAC_1_SQRT_2);
    let first = Wide {
        re: _mm512_add_ps(odd[1].re, odd[1].im),
        im: _mm512_sub_ps(odd[1].im, odd[1].re),
    };
    let third = Wide {
        re: _mm512_sub_ps(odd[3].im, odd[3].re),
        im: _mm512_add_ps(odd[3].re, odd[3].im),
    };
    let result1 = Wide {
        re: _mm512_fmadd_ps(first.re, half, even[1].re),
        im: _mm512_fmadd_ps(first.im, half, even[1].im),
    };
    let result5 = Wide {
        re: _mm512_fnmadd_ps(first.re, half, even[1].re),
        im: _mm512_fnmadd_ps(first.im, half, even[1].im),
    };
    let result3 = Wide {
        re: _mm512_fmadd_ps(third.re, half, even[3].re),
        im: _mm512_fnmadd_ps(third.im, half, even[3].im),
    };
    let result7 = Wide {
        re: _mm512_fnmadd_ps(third.re, half, even[3].re),
        im: _mm512_fmadd_ps(third.im, half, even[3].im),
    };
    [
        sum(even[0], odd[0]),
        result1,
        minus_j(even[2], odd[2]),
        result3,
        difference(even[0], odd[0]),
        result5,
        plus_j(even[2], odd[2]),
        result7,
    ]
}

#[inline]
#[target_feature(enable = "avx512f")]
fn sum(a: Wide, b: Wide) -> Wide {
    Wide {
        re: _mm512_add_ps(a.re, b.re),
        im: _mm512_add_ps(a.im, b.im),
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn difference(a: Wide, b: Wide) -> Wide {
    Wide {
        re: _mm512_sub_ps(a.re, b.re),
        im: _mm512_sub_ps(a.im, b.im),
    }
}

/// a - j b.
#[inline]
#[target_feature(enable = "avx512f")]
fn minus_j(a: Wide, b: Wide) -> Wide {
    Wide {
        re: _mm512_add_ps(a.re, b.im),
        im: _mm512_sub_ps(a.im, b.re),
    }
}

/// a + j b.
#[inline]
#[target_feature(enable = "avx512f")]
fn plus_j(a: Wide, b: Wide) -> Wide {
    Wide {
        re: _mm512_sub_ps(a.re, b.im),
        im: _mm512_add_ps(a.im, b.re),
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn product(a: Wide, b: Wide) -> Wide {
    Wide {
        re: _mm512_fmsub_ps(a.re, b.re, _mm512_mul_ps(a.im, b.im)),
        im: _mm512_fmadd_ps(a.re, b.im, _mm512_mul_ps(a.im, b.re)),
    }
}

/// All numbers times the same factor.
#[inline]
#[target_feature(enable = "avx512f")]
fn turned(a: Wide, factor: &[f32; 2]) -> Wide {
    let re = _mm512_set1_ps(factor[0]);
    let im = _mm512_set1_ps(factor[1]);
    product(a, Wide { re, im })
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(from: &Line) -> Wide {
    let (re, im) = from.split_at(LANES);
    // SAFETY: both halves have 16 floats.
    unsafe {
        Wide {
            re: _mm512_loadu_ps(re.as_ptr()),
            im: _mm512_loadu_ps(im.as_ptr()),
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(value: Wide, to: &mut Line) {
    let (re, im) = to.split_at_mut(LANES);
    // SAFETY: both halves have 16 floats.
    unsafe {
        _mm512_storeu_ps(re.as_mut_ptr(), value.re);
        _mm512_storeu_ps(im.as_mut_ptr(), value.im);
    }
}

/// Four neighbouring floats.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarter(from: &Line, first: usize) -> __m128 {
    let four = &from[first..first + 4];
    // SAFETY: there are four floats.
    unsafe { _mm_loadu_ps(four.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn read<const PAIRS: bool, const INVERSE: bool>(from: &Line) -> Wide {
    if PAIRS {
        load_pairs::<INVERSE>(from)
    } else {
        load(from)
    }
}

/// Loads pairs; for the inverse, imaginary parts stand for real ones.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_pairs<const INVERSE: bool>(from: &Line) -> Wide {
    let Wide { re: low, im: high } = load(from);
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    let first = _mm512_permutex2var_ps(low, even, high);
    let second = _mm512_permutex2var_ps(low, odd, high);
    if INVERSE {
        Wide {
            re: second,
            im: first,
        }
    } else {
        Wide {
            re: first,
            im: second,
        }
    }
}

/// Stores pairs, the other way round for the inverse.
#[inline]
#[target_feature(enable = "avx512f")]
fn store_pairs<const INVERSE: bool>(value: Wide, to: &mut Line) {
    let (first, second) = if INVERSE {
        (value.im, value.re)
    } else {
        (value.re, value.im)
    };
    let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    let pairs = Wide {
        re: _mm512_permutex2var_ps(first, low, second),
        im: _mm512_permutex2var_ps(first, high, second),
    };
    store(pairs, to);
}

/// Complex numbers as lines; what fills none is left out.
fn lines(numbers: &[Complex32]) -> &[Line] {
    let lines = numbers.as_chunks::<LANES>().0;
    // SAFETY: a complex number is a pair of floats, so 16 of them are a line.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len()) }
}

/// Complex numbers as lines; what fills none is left out.
fn lines_mut(numbers: &mut [Complex32]) -> &mut [Line] {
    let lines = numbers.as_chunks_mut::<LANES>().0;
    // SAFETY: as in `lines`.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len()) }
}
