//! Fourier transforms of powers of two in vectors of 512 bits, for processors with AVX-512: rustfft's go no further than 256.
//!
//! With n = 16 m the samples are a matrix of m rows of 16, and a row is a vector. So there are three steps, of which none but the
//! last moves numbers across a vector:
//!
//! 1. the transforms of length m of all 16 columns side by side: a pass of radix 16 from the samples to scratch memory, and as few
//!    passes as can be in place there, depth first, because what waits is the first cache;
//! 2. the twiddles e^{-j2πik/n} of column i and result k;
//! 3. the transforms of length 16 of rows: blocks of 16 rows are transposed, so that a vector has the same column of 16 rows.
//!
//! Passes in place leave results in the order of their digits reversed. But for the lowest digit, which is the result's number in
//! the first pass: those sixteen results are neighbours, a block for the last step, and blocks are read in the order of results.
//!
//! Between the steps the real and the imaginary parts of a vector lie apart. The inverse is the same transform with both parts
//! exchanged before and after.
//!
//! Sources: Gentleman and Sande 1966, Fast Fourier transforms for fun and profit, AFIPS 29, on passes in place; Bailey 1990, FFTs in
//! external or hierarchical memory, J. Supercomputing 4(1), on splitting the length in two.
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

/// The sixteen results of a transform of the first pass; after the others, sixteen neighbouring results of the columns.
type Block = [Line; LANES];

/// A vector of complex numbers in registers.
#[derive(Clone, Copy)]
struct Wide {
    re: __m512,
    im: __m512,
}

/// A pass: transforms of length `radix`, each result times a twiddle.
struct Pass {
    /// 2, 4, 8 or 16, and 16 in the first pass.
    radix: usize,
    /// What is transformed has `radix` parts of so many blocks, or lines in the first pass. A transform takes one of each part.
    part: usize,
    /// `radix` - 1 factors for each transform.
    twiddles: Vec<[f32; 2]>,
}

/// The plan of a transform.
pub(crate) struct WideFft {
    passes: Vec<Pass>,
    /// Where the passes leave each block.
    places: Vec<usize>,
    /// Twiddles before the last step: in each block of 16 lines, a line for each column.
    block_twiddles: Vec<Line>,
    is_inverse: bool,
}

/// e^{-j2π numerator / len}.
fn root(numerator: usize, len: usize) -> [f32; 2] {
    let angle = -TAU * (numerator % len) as f64 / len as f64;
    [angle.cos() as f32, angle.sin() as f32]
}

/// As few radixes as have this product, a power of two that is at least 16.
fn radixes(product: usize) -> Vec<usize> {
    let mut radixes = vec![16];
    let mut bits = product.ilog2() - 4;
    while bits > 0 {
        // Sixteens, unless two more passes will do that are more alike.
        let radix_bits = match bits {
            5 | 6 => 3,
            _ => bits.min(4),
        };
        radixes.push(1 << radix_bits);
        bits -= radix_bits;
    }
    radixes
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
        let mut passes: Vec<Pass> = Vec::new();
        let mut places = vec![0];
        let mut rest = lines;
        for radix in radixes(lines) {
            let part = rest / radix;
            if !passes.is_empty() {
                // A higher digit of a result's number, but a lower one of its place.
                let of_digit = |digit| places.iter().map(move |place| digit * part + place);
                places = (0..radix).flat_map(of_digit).collect();
            }
            let twiddles =
                (0..part).flat_map(|i| (1..radix).map(move |result| root(i * result, rest)));
            passes.push(Pass {
                radix,
                part,
                twiddles: twiddles.collect(),
            });
            rest = part;
        }

        let block_twiddles = (0..lines).map(|line| {
            let (block, column) = (line / LANES, line % LANES);
            let roots: [_; LANES] = from_fn(|lane| root(column * (block * LANES + lane), len));
            from_fn(|i| roots[i % LANES][i / LANES])
        });
        Some(Self {
            passes,
            places,
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
        let blocks = scratch.as_chunks_mut::<LANES>().0;
        let (first, others) = self.passes.split_first().expect("a pass of radix 16");
        first.run_first::<INVERSE>(x, blocks);
        transform_blocks(others, blocks);
        self.transform_rows::<INVERSE>(blocks, y);
    }

    /// The last two steps.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn transform_rows<const INVERSE: bool>(&self, blocks: &[Block], to: &mut [Line]) {
        let part = to.len() / LANES;
        let all_twiddles = self.block_twiddles.as_chunks::<LANES>().0;
        for (i, (&place, twiddles)) in self.places.iter().zip(all_twiddles).enumerate() {
            let rows = &blocks[place];
            let fours = [
                four_columns(rows, twiddles, 0),
                four_columns(rows, twiddles, 1),
                four_columns(rows, twiddles, 2),
                four_columns(rows, twiddles, 3),
            ];
            let halves = first_half(|column| fours[column / 4][column % 4]);
            second_half(&halves, |k, result| {
                store_pairs::<INVERSE>(result, &mut to[k * part + i]);
            });
        }
    }
}

/// The passes after the first one, in place: those over a part while the caches have it.
#[target_feature(enable = "avx512f,avx512dq")]
fn transform_blocks(passes: &[Pass], blocks: &mut [Block]) {
    let Some((pass, others)) = passes.split_first() else {
        return;
    };
    match pass.radix {
        16 => pass.run16(blocks),
        8 => pass.run::<8, 7>(blocks),
        4 => pass.run::<4, 3>(blocks),
        _ => pass.run::<2, 1>(blocks),
    }
    if !others.is_empty() {
        for part in blocks.chunks_exact_mut(pass.part) {
            transform_blocks(others, part);
        }
    }
}

impl Pass {
    /// The first pass, of radix 16, from lines of pairs to blocks.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn run_first<const INVERSE: bool>(&self, x: &[Line], blocks: &mut [Block]) {
        let twiddles = self.twiddles.as_chunks().0;
        for (i, (block, twiddles)) in blocks.iter_mut().zip(twiddles).enumerate() {
            let halves = first_half(|k| load_pairs::<INVERSE>(&x[k * self.part + i]));
            second_half(&halves, |k, result| {
                store(self.twiddled::<15>(result, k, twiddles), &mut block[k]);
            });
        }
    }

    /// A later pass of radix 16, in place.
    #[target_feature(enable = "avx512f,avx512dq")]
    #[expect(
        clippy::needless_range_loop,
        reason = "a line of each of several blocks"
    )]
    fn run16(&self, blocks: &mut [Block]) {
        let part = self.part;
        for (i, twiddles) in self.twiddles.as_chunks().0.iter().enumerate() {
            for line in 0..LANES {
                let halves = first_half(|k| load(&blocks[k * part + i][line]));
                second_half(&halves, |k, result| {
                    let result = self.twiddled::<15>(result, k, twiddles);
                    store(result, &mut blocks[k * part + i][line]);
                });
            }
        }
    }

    /// A later pass of a smaller radix, in place. All of its results but one have twiddles.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    #[expect(
        clippy::needless_range_loop,
        reason = "a line of each of several blocks"
    )]
    fn run<const RADIX: usize, const TWIDDLES: usize>(&self, blocks: &mut [Block]) {
        let part = self.part;
        for (i, twiddles) in self.twiddles.as_chunks().0.iter().enumerate() {
            for line in 0..LANES {
                let mut values = [load(&blocks[i][line]); RADIX];
                for k in 1..RADIX {
                    values[k] = load(&blocks[k * part + i][line]);
                }
                let results = butterfly(values);
                for k in 0..RADIX {
                    let result = self.twiddled::<TWIDDLES>(results[k], k, twiddles);
                    store(result, &mut blocks[k * part + i][line]);
                }
            }
        }
    }

    /// A transform's result of this number, times its twiddle.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn twiddled<const TWIDDLES: usize>(
        &self,
        result: Wide,
        number: usize,
        twiddles: &[[f32; 2]; TWIDDLES],
    ) -> Wide {
        // In the last pass all of them are 1.
        if number == 0 || self.part == 1 {
            result
        } else {
            turned(result, &twiddles[number - 1])
        }
    }
}

/// Columns 4c to 4c + 3 of a block of rows, each a vector now, times their twiddles.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn four_columns(rows: &Block, twiddles: &[Line; LANES], c: usize) -> [Wide; 4] {
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

/// Four neighbouring numbers of each of 16 rows, from `first` on, as four vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn transposed(rows: &Block, first: usize) -> [__m512; 4] {
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

/// The transform of 2, 4 or 8 vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn butterfly<const RADIX: usize>(x: [Wide; RADIX]) -> [Wide; RADIX] {
    let mut results = x;
    match RADIX {
        2 => results.copy_from_slice(&[sum(x[0], x[1]), difference(x[0], x[1])]),
        4 => results.copy_from_slice(&butterfly4([x[0], x[1], x[2], x[3]])),
        _ => results.copy_from_slice(&butterfly8([
            x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7],
        ])),
    }
    results
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

/// The first half of the transform of sixteen vectors, which is four by four: those of vectors i, 4 + i, 8 + i and 12 + i.
///
/// Vectors come from a function, and results of [`second_half`] go to one: loads and stores are then where they are needed, because
/// sixteen complex vectors fill all registers that there are, and each use is compiled by itself, without a call.
#[inline]
#[target_feature(enable = "avx512f")]
fn first_half(vector: impl Fn(usize) -> Wide) -> [[Wide; 4]; 4] {
    let fourth = |i: usize| [vector(i), vector(4 + i), vector(8 + i), vector(12 + i)];
    [
        butterfly4(fourth(0)),
        turned_fourth(butterfly4(fourth(1)), 1),
        turned_fourth(butterfly4(fourth(2)), 2),
        turned_fourth(butterfly4(fourth(3)), 3),
    ]
}

/// The second half of the transform of sixteen vectors: gives each result with its number.
#[inline]
#[target_feature(enable = "avx512f")]
#[expect(
    clippy::needless_range_loop,
    reason = "the indices name registers, and are unrolled"
)]
fn second_half(halves: &[[Wide; 4]; 4], mut give: impl FnMut(usize, Wide)) {
    for k in 0..4 {
        let results = butterfly4([halves[0][k], halves[1][k], halves[2][k], halves[3][k]]);
        for l in 0..4 {
            give(k + 4 * l, results[l]);
        }
    }
}

/// Results of a fourth of the first half, times the twiddles between the halves.
#[inline]
#[target_feature(enable = "avx512f")]
fn turned_fourth(results: [Wide; 4], i: usize) -> [Wide; 4] {
    // cos(π/8), sin(π/8) and cos(π/4).
    const C: f32 = 0.923_879_5;
    const S: f32 = 0.382_683_43;
    const H: f32 = std::f32::consts::FRAC_1_SQRT_2;
    const ROOTS: [[[f32; 2]; 3]; 3] = [
        [[C, -S], [H, -H], [S, -C]],
        [[H, -H], [0.0, -1.0], [-H, -H]],
        [[S, -C], [-H, -H], [-C, S]],
    ];
    let roots = &ROOTS[i - 1];
    [
        results[0],
        turned(results[1], &roots[0]),
        turned(results[2], &roots[1]),
        turned(results[3], &roots[2]),
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
