//! Sums of rows of sixteen taps, each row times a sample: the inner loop of filters with many branches, of which sixteen are
//! computed side by side.
//!
//! Each sum is kept in two chains, one for the even and one for the odd rows, whatever the vectors are: the bits are the same.

use super::{Isa, fma};

/// Taps of a row, one for each branch.
pub const BRANCHES: usize = 16;

/// So many floats as a register holds.
trait Vector: Copy {
    const LANES: usize;

    fn zero() -> Self;

    fn splat(value: f32) -> Self;

    /// # Safety
    /// So many floats can be read at `from`, and the processor has the vector's instructions.
    unsafe fn load(from: *const f32) -> Self;

    /// # Safety
    /// So many floats can be written at `to`, and the processor has the vector's instructions.
    unsafe fn store(self, to: *mut f32);

    /// `a * b + self`, rounded once where the instruction set can.
    fn add_product(self, a: Self, b: Self) -> Self;

    fn add(self, other: Self) -> Self;
}

/// A vector as the compiler makes it.
#[derive(Clone, Copy)]
struct Plain<const FMA: bool>([f32; 8]);

impl<const FMA: bool> Vector for Plain<FMA> {
    const LANES: usize = 8;

    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; 8])
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; 8])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller promises eight readable floats.
        Self(unsafe { from.cast::<[f32; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller promises eight writable floats.
        unsafe { to.cast::<[f32; 8]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|l| {
            fma::<FMA>(a.0[l], b.0[l], self.0[l])
        }))
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|l| self.0[l] + other.0[l]))
    }
}

/// Registers: the compiler scatters several rows of arrays over scalar ones.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    // SAFETY of all blocks below: `weighted_rows` uses these types where `Isa` is proof of their instructions only.
    macro_rules! vector {
        ($name:ident, $register:ty, $lanes:literal, $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident, $add:ident) => {
            #[derive(Clone, Copy)]
            pub(super) struct $name($register);

            impl super::Vector for $name {
                const LANES: usize = $lanes;

                #[inline(always)]
                fn zero() -> Self {
                    // SAFETY: see above.
                    Self(unsafe { $zero() })
                }

                #[inline(always)]
                fn splat(value: f32) -> Self {
                    // SAFETY: see above.
                    Self(unsafe { $splat(value) })
                }

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: see above; the caller promises readable floats.
                    Self(unsafe { $load(from) })
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: see above; the caller promises writable floats.
                    unsafe { $store(to, self.0) };
                }

                #[inline(always)]
                fn add_product(self, a: Self, b: Self) -> Self {
                    // SAFETY: see above.
                    Self(unsafe { $fma(a.0, b.0, self.0) })
                }

                #[inline(always)]
                fn add(self, other: Self) -> Self {
                    // SAFETY: see above.
                    Self(unsafe { $add(self.0, other.0) })
                }
            }
        };
    }

    vector!(
        Avx2,
        __m256,
        8,
        _mm256_setzero_ps,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps
    );
    vector!(
        Avx512,
        __m512,
        16,
        _mm512_setzero_ps,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps
    );
}

/// For R stretches of samples, which begin at `x[0]`, `x[stride]`, …: the sum of all rows, each times the stretch's next sample.
#[inline(always)]
pub fn weighted_rows<const FMA: bool, const R: usize>(
    isa: Isa<FMA>,
    x: &[f32],
    stride: usize,
    rows: &[[f32; BRANCHES]],
) -> [[f32; BRANCHES]; R] {
    #[cfg(target_arch = "x86_64")]
    if isa.is_widest {
        return rows_with::<x86::Avx512, R>(x, stride, rows);
    } else if FMA {
        return rows_with::<x86::Avx2, R>(x, stride, rows);
    }
    rows_with::<Plain<FMA>, R>(x, stride, rows)
}

#[inline(always)]
fn rows_with<V: Vector, const R: usize>(
    x: &[f32],
    stride: usize,
    rows: &[[f32; BRANCHES]],
) -> [[f32; BRANCHES]; R] {
    let mut starts = [std::ptr::null(); R];
    for r in 0..R {
        starts[r] = x[r * stride..][..rows.len()].as_ptr();
    }
    let mut sums = [[0.0; BRANCHES]; R];
    let (pairs, last) = rows.as_chunks::<2>();
    for lane in (0..BRANCHES).step_by(V::LANES) {
        let mut even = [V::zero(); R];
        let mut odd = [V::zero(); R];
        // SAFETY of all blocks: a stretch has as many samples as there are rows, and a row has a vector from `lane` on.
        for (i, pair) in pairs.iter().enumerate() {
            // SAFETY: see above.
            unsafe {
                let taps = pair.each_ref().map(|row| V::load(row.as_ptr().add(lane)));
                for r in 0..R {
                    even[r] = even[r].add_product(V::splat(*starts[r].add(2 * i)), taps[0]);
                    odd[r] = odd[r].add_product(V::splat(*starts[r].add(2 * i + 1)), taps[1]);
                }
            }
        }
        if let [row] = last {
            // SAFETY: see above.
            unsafe {
                let taps = V::load(row.as_ptr().add(lane));
                for r in 0..R {
                    let sample = V::splat(*starts[r].add(rows.len() - 1));
                    even[r] = even[r].add_product(sample, taps);
                }
            }
        }
        for r in 0..R {
            // SAFETY: see above.
            unsafe { even[r].add(odd[r]).store(sums[r].as_mut_ptr().add(lane)) };
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::{Loop, dispatch, dispatch_widest};
    use super::*;

    struct Rows<'a, const R: usize>(&'a [f32], usize, &'a [[f32; BRANCHES]]);
    impl<const R: usize> Loop for Rows<'_, R> {
        type Out = [[f32; BRANCHES]; R];
        #[inline(always)]
        fn run<const FMA: bool>(self, isa: Isa<FMA>) -> Self::Out {
            weighted_rows::<FMA, R>(isa, self.0, self.1, self.2)
        }
    }

    #[test]
    fn every_row_counts_once_and_all_vectors_give_the_same_bits() {
        let mut state = 1u32;
        let mut sample = || {
            // Numerical Recipes' generator.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        for len in 0..20 {
            let rows: Vec<[f32; BRANCHES]> = (0..len)
                .map(|_| std::array::from_fn(|_| sample()))
                .collect();
            let x: Vec<f32> = (0..len + 9).map(|_| sample()).collect();
            let four = dispatch(Rows::<4>(&x, 3, &rows));
            let widest = dispatch_widest(Rows::<4>(&x, 3, &rows));
            let bits = |sums: [[f32; BRANCHES]; 4]| sums.map(|sums| sums.map(f32::to_bits));
            assert_eq!(bits(widest), bits(four), "{len} rows");

            for (r, sums) in four.into_iter().enumerate() {
                let alone = dispatch(Rows::<1>(&x[r * 3..], 0, &rows));
                assert_eq!(alone, [sums], "{len} rows");
                for (branch, sum) in sums.into_iter().enumerate() {
                    let products = rows.iter().zip(&x[r * 3..]);
                    let products = products.map(|(row, x)| f64::from(row[branch]) * f64::from(*x));
                    let exact: f64 = products.sum();
                    assert!((f64::from(sum) - exact).abs() < 1e-6, "{len} rows");
                }
            }
        }
    }
}
