//! Activations behind convolutions: on sums in registers, or on a finished image.
#![expect(unsafe_code, reason = "vector instructions over registers")]

use super::super::gemm::{self, Act};
use super::super::vector::Vector;
use zbmd_op::simd::{Isa, Loop};

/// An activation that is applied to sums before they leave the registers.
#[derive(Clone, Copy)]
pub(super) enum SumActivation {
    /// Bounds, both of them inside. A NaN becomes the lower one.
    Clamp {
        low: f32,
        high: f32,
    },
    HardSwish,
}

impl SumActivation {
    /// The others need a pass of their own, [`Finish`].
    pub(super) fn of(act: Act) -> Option<Self> {
        match act {
            Act::Relu => Some(Self::Clamp {
                low: 0.0,
                high: f32::INFINITY,
            }),
            Act::Clip(low, high) => Some(Self::Clamp { low, high }),
            Act::HardSwish => Some(Self::HardSwish),
            _ => None,
        }
    }

    /// Of a single sum, with the bits of a vector's lane.
    #[inline(always)]
    pub(super) fn of_sum(self, sum: f32) -> f32 {
        match self {
            Self::Clamp { low, .. } if sum <= low || sum.is_nan() => low,
            Self::Clamp { high, .. } if sum >= high => high,
            Self::Clamp { .. } => sum,
            Self::HardSwish => gemm::hard_swish(sum),
        }
    }

    /// Of sixteen sums.
    ///
    /// # Safety
    /// The processor has the vector's instructions.
    #[inline(always)]
    pub(super) unsafe fn of_vector<V: Vector>(self, sums: V) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Clamp { low, high } => sums.clamp(low, high),
                Self::HardSwish => sums.hard_swish(),
            }
        }
    }

    /// Of all sums of a tile.
    ///
    /// # Safety
    /// The processor has the vector's instructions.
    #[inline(always)]
    pub(super) unsafe fn of_tile<V: Vector, const R: usize, const P: usize>(
        self,
        sums: &mut [[V; P]; R],
    ) {
        // A loop for each activation: a loop that chose among them would not be unrolled, and keep the sums in memory.
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Clamp { low, high } => {
                    for sum in sums.as_flattened_mut() {
                        *sum = sum.clamp(low, high);
                    }
                }
                Self::HardSwish => {
                    for sum in sums.as_flattened_mut() {
                        *sum = sum.hard_swish();
                    }
                }
            }
        }
    }
}

/// An activation that is not applied to sums in registers, on a finished image.
pub(super) struct Finish<'a>(pub(super) &'a mut [f32], pub(super) Act);

impl Loop for Finish<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        self.1.apply::<FMA>(self.0);
    }
}
