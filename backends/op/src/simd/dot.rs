//! Dot products of a few taps with many stretches of samples: the inner loop of filters.
//!
//! A sum is kept in sixteen chains, eight for the even and eight for the odd vectors of eight samples. They are two vectors of
//! 256 bits or one of 512: the additions are the same, and so are the bits.

use super::{Isa, fma};

/// Elements of one vector, on every processor.
const LANES: usize = 8;

/// Coefficients of a dot product, laid out for [`dot`].
#[derive(Clone, Debug)]
pub struct Taps {
    all: Vec<f32>,
    /// The last vector: coefficients that no whole vector covers, preceded by zeros for those that one does.
    tail: [f32; LANES],
}

#[expect(
    clippy::len_without_is_empty,
    reason = "nobody asks whether there are any"
)]
impl Taps {
    /// Coefficients in the order of the samples that they meet.
    pub fn new(all: Vec<f32>) -> Self {
        let mut tail = [0.0; LANES];
        let rest = all.len() % LANES;
        if all.len() >= LANES {
            tail[LANES - rest..].copy_from_slice(&all[all.len() - rest..]);
        } else {
            tail[..rest].copy_from_slice(&all);
        }
        Self { all, tail }
    }

    /// Each coefficient twice: for samples that are complex numbers lying as pairs.
    pub fn pairs(taps: &[f32]) -> Self {
        Self::new(taps.iter().flat_map(|&t| [t, t]).collect())
    }

    /// Number of samples of one dot product.
    pub fn len(&self) -> usize {
        self.all.len()
    }
}

/// The sixteen chains of a sum. `rows` are where the samples of some dot products begin, `at` is the sample to go on from, and
/// `h` its tap.
///
/// All functions that are unsafe want that the processor has the type's instructions, and that so many floats can be read at
/// `h` and from `at` on in each row.
trait Sums: Copy {
    fn zero() -> Self;

    /// Adds 16 products: eight to the even chains, eight to the odd ones.
    ///
    /// # Safety
    /// See [`Sums`].
    unsafe fn step<const R: usize>(
        sums: &mut [Self; R],
        rows: &[*const f32; R],
        at: usize,
        h: *const f32,
    );

    /// Adds eight products to the even chains.
    ///
    /// # Safety
    /// See [`Sums`].
    unsafe fn step_even<const R: usize>(
        sums: &mut [Self; R],
        rows: &[*const f32; R],
        at: usize,
        h: *const f32,
    );

    /// Adds eight products to the odd chains.
    ///
    /// # Safety
    /// See [`Sums`].
    unsafe fn step_odd<const R: usize>(
        sums: &mut [Self; R],
        rows: &[*const f32; R],
        at: usize,
        h: *const f32,
    );

    /// `a * b + c` of single floats, rounded as in the chains.
    fn scalar(a: f32, b: f32, c: f32) -> f32;

    /// Sums of the even and of the odd lanes l of e[l] + o[l]: (0 + 4) + (2 + 6), (1 + 5) + (3 + 7).
    fn sum_pairs(self) -> (f32, f32);
}

/// Vectors as the compiler makes them.
#[derive(Clone, Copy)]
struct Plain<const FMA: bool> {
    even: [f32; LANES],
    odd: [f32; LANES],
}

/// Adds the products of the eight samples at `x` with the eight taps at `h`.
///
/// # Safety
/// Eight floats can be read at both.
#[inline(always)]
unsafe fn add_plain<const FMA: bool>(
    sums: [f32; LANES],
    x: *const f32,
    h: *const f32,
) -> [f32; LANES] {
    // SAFETY: the caller promises eight floats.
    let (x, h) = unsafe {
        (
            x.cast::<[f32; LANES]>().read_unaligned(),
            h.cast::<[f32; LANES]>().read_unaligned(),
        )
    };
    std::array::from_fn(|l| fma::<FMA>(x[l], h[l], sums[l]))
}

impl<const FMA: bool> Sums for Plain<FMA> {
    #[inline(always)]
    fn zero() -> Self {
        let zeros = [0.0; LANES];
        Self {
            even: zeros,
            odd: zeros,
        }
    }

    #[inline(always)]
    unsafe fn step<const R: usize>(
        sums: &mut [Self; R],
        rows: &[*const f32; R],
        at: usize,
        h: *const f32,
    ) {
        // SAFETY: the caller promises sixteen floats.
        unsafe {
            Self::step_even(sums, rows, at, h);
            Self::step_odd(sums, rows, at + LANES, h.add(LANES));
        }
    }

    #[inline(always)]
    unsafe fn step_even<const R: usize>(
        sums: &mut [Self; R],
        rows: &[*const f32; R],
        at: usize,
        h: *const f32,
    ) {
        for (sums, row) in sums.iter_mut().zip(rows) {
            // SAFETY: the caller promises eight floats.
            sums.even = unsafe { add_plain::<FMA>(sums.even, row.add(at), h) };
        }
    }

    #[inline(always)]
    unsafe fn step_odd<const R: usize>(
        sums: &mut [Self; R],
        rows: &[*const f32; R],
        at: usize,
        h: *const f32,
    ) {
        for (sums, row) in sums.iter_mut().zip(rows) {
            // SAFETY: the caller promises eight floats.
            sums.odd = unsafe { add_plain::<FMA>(sums.odd, row.add(at), h) };
        }
    }

    #[inline(always)]
    fn scalar(a: f32, b: f32, c: f32) -> f32 {
        fma::<FMA>(a, b, c)
    }

    #[inline(always)]
    fn sum_pairs(self) -> (f32, f32) {
        let l: [f32; LANES] = std::array::from_fn(|l| self.even[l] + self.odd[l]);
        ((l[0] + l[4]) + (l[2] + l[6]), (l[1] + l[5]) + (l[3] + l[7]))
    }
}

/// AVX registers: the compiler scatters several rows of arrays over scalar registers.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Sums};

    /// Two of 256 bits.
    #[derive(Clone, Copy)]
    pub(super) struct Avx2 {
        even: __m256,
        odd: __m256,
    }

    /// One of 512 bits: the even chains below, the odd ones above.
    #[derive(Clone, Copy)]
    pub(super) struct Avx512(__m512);

    /// The lanes of the chains.
    const EVEN: __mmask16 = 0x00ff;
    const ODD: __mmask16 = 0xff00;

    // SAFETY of all blocks below: `dot` uses these types where `Isa` is proof of their instructions only.

    /// See [`Sums::sum_pairs`].
    #[inline(always)]
    fn sum_pairs(even: __m256, odd: __m256) -> (f32, f32) {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_add_ps(even, odd);
            let four = _mm_add_ps(
                _mm256_castps256_ps128(eight),
                _mm256_extractf128_ps::<1>(eight),
            );
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            (_mm_cvtss_f32(two), _mm_cvtss_f32(_mm_movehdup_ps(two)))
        }
    }

    impl Sums for Avx2 {
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: see above.
            let zero = unsafe { _mm256_setzero_ps() };
            Self {
                even: zero,
                odd: zero,
            }
        }

        #[inline(always)]
        unsafe fn step<const R: usize>(
            sums: &mut [Self; R],
            rows: &[*const f32; R],
            at: usize,
            h: *const f32,
        ) {
            // SAFETY: see above; the caller promises sixteen floats.
            unsafe {
                Self::step_even(sums, rows, at, h);
                Self::step_odd(sums, rows, at + LANES, h.add(LANES));
            }
        }

        #[inline(always)]
        unsafe fn step_even<const R: usize>(
            sums: &mut [Self; R],
            rows: &[*const f32; R],
            at: usize,
            h: *const f32,
        ) {
            // SAFETY: see above; the caller promises eight floats.
            unsafe {
                let h = _mm256_loadu_ps(h);
                for r in 0..R {
                    let x = _mm256_loadu_ps(rows[r].add(at));
                    sums[r].even = _mm256_fmadd_ps(x, h, sums[r].even);
                }
            }
        }

        #[inline(always)]
        unsafe fn step_odd<const R: usize>(
            sums: &mut [Self; R],
            rows: &[*const f32; R],
            at: usize,
            h: *const f32,
        ) {
            // SAFETY: see above; the caller promises eight floats.
            unsafe {
                let h = _mm256_loadu_ps(h);
                for r in 0..R {
                    let x = _mm256_loadu_ps(rows[r].add(at));
                    sums[r].odd = _mm256_fmadd_ps(x, h, sums[r].odd);
                }
            }
        }

        #[inline(always)]
        fn scalar(a: f32, b: f32, c: f32) -> f32 {
            super::fma::<true>(a, b, c)
        }

        #[inline(always)]
        fn sum_pairs(self) -> (f32, f32) {
            sum_pairs(self.even, self.odd)
        }
    }

    impl Sums for Avx512 {
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_setzero_ps() })
        }

        #[inline(always)]
        unsafe fn step<const R: usize>(
            sums: &mut [Self; R],
            rows: &[*const f32; R],
            at: usize,
            h: *const f32,
        ) {
            // SAFETY: see above; the caller promises sixteen floats.
            unsafe {
                let h = _mm512_loadu_ps(h);
                for r in 0..R {
                    let x = _mm512_loadu_ps(rows[r].add(at));
                    sums[r].0 = _mm512_fmadd_ps(x, h, sums[r].0);
                }
            }
        }

        #[inline(always)]
        unsafe fn step_even<const R: usize>(
            sums: &mut [Self; R],
            rows: &[*const f32; R],
            at: usize,
            h: *const f32,
        ) {
            // SAFETY: see above; the caller promises eight floats, and lanes that are masked are not read.
            unsafe {
                let h = _mm512_maskz_loadu_ps(EVEN, h);
                for r in 0..R {
                    let x = _mm512_maskz_loadu_ps(EVEN, rows[r].add(at));
                    sums[r].0 = _mm512_mask3_fmadd_ps(x, h, sums[r].0, EVEN);
                }
            }
        }

        #[inline(always)]
        unsafe fn step_odd<const R: usize>(
            sums: &mut [Self; R],
            rows: &[*const f32; R],
            at: usize,
            h: *const f32,
        ) {
            // SAFETY: see above; the caller promises eight floats. The lanes below are masked, and what they would read
            // may lie before the allocation, so the pointer wraps.
            unsafe {
                let h = _mm512_maskz_loadu_ps(ODD, h.wrapping_sub(LANES));
                for r in 0..R {
                    let x = _mm512_maskz_loadu_ps(ODD, rows[r].add(at).wrapping_sub(LANES));
                    sums[r].0 = _mm512_mask3_fmadd_ps(x, h, sums[r].0, ODD);
                }
            }
        }

        #[inline(always)]
        fn scalar(a: f32, b: f32, c: f32) -> f32 {
            super::fma::<true>(a, b, c)
        }

        #[inline(always)]
        fn sum_pairs(self) -> (f32, f32) {
            // SAFETY: see above.
            let (even, odd) = unsafe {
                (
                    _mm512_castps512_ps256(self.0),
                    _mm512_extractf32x8_ps::<1>(self.0),
                )
            };
            sum_pairs(even, odd)
        }
    }
}

/// R dot products of `taps` with the samples that begin at `x[0]`, `x[stride]`, …, each in two sums: over the even
/// and over the odd samples if the number of taps is even, any two otherwise.
///
/// The order of summation depends on the number of taps only.
#[inline(always)]
pub fn dot<const FMA: bool, const R: usize>(
    isa: Isa<FMA>,
    x: &[f32],
    stride: usize,
    taps: &Taps,
) -> [(f32, f32); R] {
    #[cfg(target_arch = "x86_64")]
    if isa.is_widest {
        return dot_with::<x86::Avx512, R>(x, stride, taps);
    } else if FMA {
        return dot_with::<x86::Avx2, R>(x, stride, taps);
    }
    dot_with::<Plain<FMA>, R>(x, stride, taps)
}

#[inline(always)]
fn dot_with<S: Sums, const R: usize>(x: &[f32], stride: usize, taps: &Taps) -> [(f32, f32); R] {
    let len = taps.len();
    let mut rows: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = &x[r * stride..r * stride + len];
    }
    if len < LANES {
        // Too few for a vector: one chain for the even and one for the odd.
        let mut sums = [(0.0, 0.0); R];
        for (i, &h) in taps.all.iter().enumerate() {
            for r in 0..R {
                let sum = if i % 2 == 0 {
                    &mut sums[r].0
                } else {
                    &mut sums[r].1
                };
                *sum = S::scalar(rows[r][i], h, *sum);
            }
        }
        return sums;
    }
    let mut starts = [std::ptr::null(); R];
    for r in 0..R {
        starts[r] = rows[r].as_ptr();
    }
    let mut chains = [S::zero(); R];
    let all = taps.all.as_ptr();
    let mut at = 0;
    // SAFETY of all steps: rows and taps have `len` elements, of which a step has 16 or 8; the tail has eight.
    while at + 2 * LANES <= len {
        // SAFETY: see above.
        unsafe { S::step(&mut chains, &starts, at, all.add(at)) };
        at += 2 * LANES;
    }
    if at + LANES <= len {
        // SAFETY: see above.
        unsafe { S::step_even(&mut chains, &starts, at, all.add(at)) };
        at += LANES;
    }
    if at < len {
        // SAFETY: see above.
        unsafe { S::step_odd(&mut chains, &starts, len - LANES, taps.tail.as_ptr()) };
    }
    let mut sums = [(0.0, 0.0); R];
    for r in 0..R {
        sums[r] = chains[r].sum_pairs();
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::{Loop, dispatch, dispatch_widest};
    use super::*;

    struct Dot<'a, const R: usize>(&'a [f32], usize, &'a Taps);
    impl<const R: usize> Loop for Dot<'_, R> {
        type Out = [(f32, f32); R];
        #[inline(always)]
        fn run<const FMA: bool>(self, isa: Isa<FMA>) -> Self::Out {
            dot::<FMA, R>(isa, self.0, self.1, self.2)
        }
    }

    #[test]
    fn dot_counts_every_tap_once_and_keeps_parity() {
        for len in 1..40 {
            let taps: Vec<f32> = (0..len).map(|i| 1.0 + i as f32).collect();
            let x: Vec<f32> = (0..len + 9).map(|i| ((i * 7) % 11) as f32).collect();
            let laid = Taps::new(taps.clone());
            let four = dispatch(Dot::<4>(&x, 3, &laid));
            for (r, (even, odd)) in four.into_iter().enumerate() {
                // Small integers: every order of summation gives the same float.
                let products: Vec<f32> = taps.iter().zip(&x[r * 3..]).map(|(t, x)| t * x).collect();
                assert_eq!(even + odd, products.iter().sum(), "{len} taps, row {r}");
                assert_eq!(dispatch(Dot::<1>(&x[r * 3..], 0, &laid)), [(even, odd)]);
                assert_eq!(
                    Dot::<1>(&x[r * 3..], 0, &laid).run(Isa::<false> { is_widest: false }),
                    [(even, odd)]
                );
                if len % 2 == 0 {
                    assert_eq!(even, products.iter().step_by(2).sum(), "{len} taps, even");
                }
            }
        }
    }

    /// Where there is no AVX-512, both are the same code.
    #[test]
    fn vectors_of_512_bits_give_the_same_bits() {
        let mut state = 1u32;
        let mut sample = || {
            // Numerical Recipes' generator.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        for len in 1..70 {
            let taps = Taps::new((0..len).map(|_| sample()).collect());
            let x: Vec<f32> = (0..len + 15).map(|_| sample()).collect();
            let narrow = dispatch(Dot::<6>(&x, 3, &taps));
            let wide = dispatch_widest(Dot::<6>(&x, 3, &taps));
            let bits = |sums: [(f32, f32); 6]| sums.map(|(a, b)| (a.to_bits(), b.to_bits()));
            assert_eq!(bits(wide), bits(narrow), "{len} taps");
        }
    }
}
