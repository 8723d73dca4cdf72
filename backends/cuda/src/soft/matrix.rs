//! Products of matrices as the PTX manual has them: which thread of a warp holds which element (sections "Matrix
//! fragments for mma.m16n8k8" and "… mma.m16n8k16"), and how factors are rounded to what they are.

use half::{bf16, f16};

/// Threads of a warp.
pub(super) const WARP: usize = 32;

/// What factors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Factor {
    Tf32,
    F16,
    Bf16,
}

/// The instruction of that name.
pub(super) fn product(name: &str) -> Option<Factor> {
    Some(match name {
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" => Factor::Tf32,
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" => Factor::F16,
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" => Factor::Bf16,
        _ => return None,
    })
}

/// To the nearest number with 10 bits behind the point, ties away from zero; NaNs stay NaNs.
pub(super) fn to_tf32(bits: u32) -> u32 {
    let is_finite = bits & 0x7f80_0000 != 0x7f80_0000;
    let rounded_bits = if is_finite { bits + 0x1000 } else { bits };
    let quiet_bit = if bits & 0x7fff_ffff > 0x7f80_0000 {
        0x40_0000
    } else {
        0
    };
    (rounded_bits | quiet_bit) & !0x1fff
}

/// Two numbers in one word.
pub(super) fn pack(factor: Factor, high: u32, low: u32) -> u32 {
    let half_bits = |bits: u32| match factor {
        Factor::F16 => f16::from_f32(f32::from_bits(bits)).to_bits(),
        _ => bf16::from_f32(f32::from_bits(bits)).to_bits(),
    };
    u32::from(half_bits(high)) << 16 | u32::from(half_bits(low))
}

impl Factor {
    /// Factors along the inner dimension.
    fn depth(self) -> usize {
        if self == Factor::Tf32 { 8 } else { 16 }
    }

    /// Factor number `i` of a thread's registers.
    fn of(self, registers: &[u32], i: usize) -> f64 {
        if self == Factor::Tf32 {
            assert_eq!(registers[i] & 0x1fff, 0, "a factor is no tf32");
            return f32::from_bits(registers[i]).into();
        }

        let bits = (registers[i / 2] >> (16 * (i % 2))) as u16;
        match self {
            Factor::F16 => f16::from_bits(bits).to_f64(),
            _ => bf16::from_bits(bits).to_f64(),
        }
    }

    /// Row and column of factor `i` of the left matrix in a thread.
    fn left(self, thread: usize, i: usize) -> (usize, usize) {
        let group = thread / 4;
        let member = thread % 4;
        match self {
            Factor::Tf32 => (group + 8 * (i % 2), member + 4 * (i / 2)),
            _ => (group + 8 * (i / 2 % 2), member * 2 + i % 2 + 8 * (i / 4)),
        }
    }

    /// Row and column of factor `i` of the right matrix.
    fn right(self, thread: usize, i: usize) -> (usize, usize) {
        let group = thread / 4;
        let member = thread % 4;
        match self {
            Factor::Tf32 => (member + 4 * i, group),
            _ => (member * 2 + i % 2 + 8 * (i / 2), group),
        }
    }
}

/// Registers of the left and the right matrix and of the sums, in a thread.
pub(super) type Fragments = ([u32; 4], [u32; 2], [u32; 4]);

/// The sums of all threads of a warp. They are added as exactly as can be, which hardware need not do.
pub(super) fn multiply(factor: Factor, warp: &[Fragments]) -> Vec<[u32; 4]> {
    assert_eq!(warp.len(), WARP, "threads of a warp");
    let mut left_matrix = [[0.0; 16]; 16];
    let mut right_matrix = [[0.0; 8]; 16];

    for (thread, (a, b, _)) in warp.iter().enumerate() {
        for i in 0..factor.depth() / 2 {
            let (row, column) = factor.left(thread, i);
            left_matrix[row][column] = factor.of(a, i);
        }
        for i in 0..factor.depth() / 4 {
            let (row, column) = factor.right(thread, i);
            right_matrix[row][column] = factor.of(b, i);
        }
    }

    // A thread holds two columns of two rows of the result.
    let thread_sums = |thread: usize, before: &[u32; 4]| -> [u32; 4] {
        std::array::from_fn(|i| {
            let row = thread / 4 + 8 * (i / 2);
            let column = thread % 4 * 2 + i % 2;
            let row_products =
                (0..factor.depth()).map(|k| left_matrix[row][k] * right_matrix[k][column]);
            let product_sum: f64 = row_products.sum();
            ((f64::from(f32::from_bits(before[i])) + product_sum) as f32).to_bits()
        })
    };

    warp.iter()
        .enumerate()
        .map(|(thread, (.., before))| thread_sums(thread, before))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_tf32_is_to_the_nearest_and_ties_go_away_from_zero() {
        for (value, expect) in [
            (1.0, 1.0),
            (1.0 + 1.0 / 2048.0, 1.0 + 1.0 / 1024.0),
            (-1.0 - 1.0 / 2048.0, -1.0 - 1.0 / 1024.0),
            (1.0 + 1.0 / 2048.0 - f32::EPSILON, 1.0),
            (1.0 + 3.0 / 2048.0, 1.0 + 2.0 / 1024.0),
            (0.0, 0.0),
            (f32::INFINITY, f32::INFINITY),
            (f32::MAX, f32::INFINITY),
        ] {
            assert_eq!(
                f32::from_bits(to_tf32(value.to_bits())),
                expect,
                "{value:?}"
            );
        }
        assert!(f32::from_bits(to_tf32(0x7f80_0001)).is_nan());
        assert_eq!(
            pack(Factor::F16, 2f32.to_bits(), 1f32.to_bits()),
            0x4000_3c00
        );
        assert_eq!(
            pack(Factor::Bf16, 2f32.to_bits(), 1f32.to_bits()),
            0x4000_3f80
        );
        // Ties to even.
        let tie = |v: f32| pack(Factor::F16, 0, v.to_bits());
        assert_eq!(
            [tie(1.0 + 1.0 / 2048.0), tie(1.0 + 3.0 / 2048.0)],
            [0x3c00, 0x3c02]
        );
        assert_eq!(tie(65_520.0), 0x7c00, "beyond the largest");
    }

    #[test]
    fn every_element_has_one_place() {
        for factor in [Factor::Tf32, Factor::F16, Factor::Bf16] {
            let all = |count: usize, of: fn(Factor, usize, usize) -> (usize, usize)| {
                let places = (0..WARP).flat_map(|t| (0..count).map(move |i| of(factor, t, i)));
                places.collect::<std::collections::BTreeSet<_>>().len()
            };
            let depth = factor.depth();
            assert_eq!(all(depth / 2, Factor::left), 16 * depth);
            assert_eq!(all(depth / 4, Factor::right), depth * 8);
        }
    }
}
