//! Squares of eight by eight elements of four bytes, transposed in vector registers. The compiler makes single moves of
//! the plain loops, three times as slow.
#![expect(
    unsafe_code,
    reason = "vector instructions over slices of known length"
)]

use zbmd_op::simd::Isa;

/// Elements on each side of a square.
pub(crate) const SIDE: usize = 8;

/// Writes `to[r·to_step + c] = from[r + c·from_step]` for all r and c below [`SIDE`], if the processor has vectors for it;
/// whether it has.
///
/// # Panics
/// If a slice is too short.
#[inline(always)]
pub(crate) fn turn<const FMA: bool>(
    _: Isa<FMA>,
    from: &[f32],
    from_step: usize,
    to: &mut [f32],
    to_step: usize,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if FMA {
        // SAFETY: on x86-64 `Isa<true>` is proof of AVX2.
        unsafe { avx::turn(from, from_step, to, to_step) };
        return true;
    }
    let _ = (from, from_step, to, to_step);
    false
}

#[cfg(target_arch = "x86_64")]
mod avx {
    use std::arch::x86_64::*;

    use super::SIDE;

    /// See [`super::turn`].
    #[inline]
    #[target_feature(enable = "avx")]
    pub(super) fn turn(from: &[f32], from_step: usize, to: &mut [f32], to_step: usize) {
        let line = |c: usize| {
            let line = &from[c * from_step..][..SIDE];
            // SAFETY: the slice has eight floats.
            unsafe { _mm256_loadu_ps(line.as_ptr()) }
        };
        let lines: [__m256; SIDE] = std::array::from_fn(line);

        // Pairs of elements, then fours, of the lower and of the upper half of four lines each; then whole rows.
        let halves = [0, 4].map(|first| {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| lines[first + i]);
            let (low_ab, high_ab) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (low_cd, high_cd) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            [
                _mm256_shuffle_ps::<0x44>(low_ab, low_cd),
                _mm256_shuffle_ps::<0xee>(low_ab, low_cd),
                _mm256_shuffle_ps::<0x44>(high_ab, high_cd),
                _mm256_shuffle_ps::<0xee>(high_ab, high_cd),
            ]
        });
        let [left_halves, right_halves] = halves;
        for (i, (left, right)) in left_halves.into_iter().zip(right_halves).enumerate() {
            let rows = [
                (i, _mm256_permute2f128_ps::<0x20>(left, right)),
                (i + SIDE / 2, _mm256_permute2f128_ps::<0x31>(left, right)),
            ];
            for (r, row) in rows {
                let place = &mut to[r * to_step..][..SIDE];
                // SAFETY: the slice has eight floats.
                unsafe { _mm256_storeu_ps(place.as_mut_ptr(), row) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbmd_op::simd::{Loop, dispatch};

    struct Turn<'a>(&'a [f32], usize, &'a mut [f32], usize);

    impl Loop for Turn<'_> {
        type Out = bool;
        #[inline(always)]
        fn run<const FMA: bool>(self, isa: Isa<FMA>) -> bool {
            turn(isa, self.0, self.1, self.2, self.3)
        }
    }

    #[test]
    fn every_element_goes_to_its_place_and_no_other_is_touched() {
        for (from_step, to_step) in [(8, 8), (11, 8), (8, 13), (64, 65)] {
            let from: Vec<f32> = (0..7 * from_step + 8).map(|i| i as f32).collect();
            let mut to = vec![-1.0; 7 * to_step + 8];
            if !dispatch(Turn(&from, from_step, &mut to, to_step)) {
                assert!(to.iter().all(|&v| v == -1.0));
                continue;
            }
            for (i, &v) in to.iter().enumerate() {
                let (r, c) = (i / to_step, i % to_step);
                let want = if c < 8 { from[r + c * from_step] } else { -1.0 };
                assert_eq!(v, want, "row {r}, column {c}");
            }
        }
    }
}
