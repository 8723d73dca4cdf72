//! Vectors of sixteen floats, as wide as the processor has them.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

use super::gemm::PANEL;

/// Code over vectors of sixteen floats.
pub(super) trait Wide {
    /// # Safety
    /// The processor has the vector's instructions, and whatever the implementation asks for.
    unsafe fn run<V: Vector, const FMA: bool>(self);
}

/// Bits of the widest of all: tiles of sixteen vectors.
#[cfg(all(target_arch = "x86_64", not(any(test, feature = "testing"))))]
const WIDEST: usize = 8192;

/// Bits of the widest vectors that may be used.
#[cfg(all(target_arch = "x86_64", not(any(test, feature = "testing"))))]
pub(super) const fn widest() -> usize {
    WIDEST
}

#[cfg(all(target_arch = "x86_64", any(test, feature = "testing")))]
pub(super) use narrow::widest;

/// Vectors narrower than the processor's, for tests: what one thread's kernels use, without a team.
#[cfg(any(test, feature = "testing"))]
pub mod narrow {
    use std::cell::Cell;

    /// All that the processor has, tiles of sixteen vectors among it.
    const ALL: usize = 8192;

    thread_local! { static WIDEST: Cell<usize> = const { Cell::new(ALL) }; }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn widest() -> usize {
        WIDEST.get()
    }

    /// Calls `f` with vectors of at most so many bits. Products of bytes by VNNI count as wider than 256 bits: at 256 they
    /// are those of AVX2.
    pub fn with<R>(bits: usize, f: impl FnOnce() -> R) -> R {
        WIDEST.set(bits);
        let result = f();
        WIDEST.set(ALL);
        result
    }
}

/// Runs the code with the widest vectors that this processor has.
///
/// # Safety
/// Whatever the implementation of [`Wide`] asks for beside instructions.
pub(super) unsafe fn run_wide<W: Wide>(code: W) {
    #[cfg(target_arch = "x86_64")]
    {
        let fma = std::arch::is_x86_feature_detected!("fma") && widest() >= 256;
        if fma
            && widest() >= 512
            && std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512dq")
        {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::wide512(code) };
        }
        if fma && std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::wide256(code) };
        }
    }
    // SAFETY: plain vectors need nothing of the processor; the caller promises the rest.
    unsafe { code.run::<Plain, { cfg!(target_arch = "aarch64") }>() }
}

/// Sixteen floats.
///
/// # Safety
/// Of all functions: the processor has the vector's instructions, and pointers lead to sixteen floats.
pub(super) trait Vector: Copy {
    /// Whether 24 of them fit into registers.
    const MANY: bool;
    unsafe fn zero() -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// The first `count` floats, at most sixteen, and zeros behind them; nothing else is read.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    /// Stores the first `count` lanes, at most sixteen, and nothing else.
    unsafe fn store_first(self, to: *mut f32, count: usize);
    /// `self + a·b` for one a.
    unsafe fn add_product(self, a: f32, b: Self) -> Self;
    /// `self + a·b`, lane by lane.
    unsafe fn add_products(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, b: Self) -> Self;
    /// The greater one, lane by lane; a NaN wins.
    unsafe fn greater(self, b: Self) -> Self;
    /// Asks for the line of memory at an address, which may be any.
    unsafe fn prefetch(at: *const f32);
    /// Sixteen floats if `is_inside`, zeros otherwise; then nothing is read.
    #[inline(always)]
    unsafe fn load_if(from: *const f32, is_inside: bool) -> Self {
        // SAFETY: the caller promises sixteen readable floats there if they are inside.
        unsafe {
            match is_inside {
                true => Self::load(from),
                false => Self::zero(),
            }
        }
    }
    /// `self · clamp(self / 6 + 1/2, 0, 1)`, with the bits of [`super::gemm::hard_swish`].
    unsafe fn hard_swish(self) -> Self;
    /// `self > low ? self : low`, then `self < high ? self : high`.
    unsafe fn clamp(self, low: f32, high: f32) -> Self;
}

#[derive(Clone, Copy)]
pub(super) struct Plain([f32; PANEL]);

impl Vector for Plain {
    const MANY: bool = false;
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; PANEL])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller promises sixteen readable floats.
        Self(unsafe { from.cast::<[f32; PANEL]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller promises sixteen writable floats.
        unsafe { to.cast::<[f32; PANEL]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        let mut lanes = [0.0; PANEL];
        // SAFETY: the caller promises so many readable floats.
        unsafe { std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count.min(PANEL)) };
        Self(lanes)
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        // SAFETY: the caller promises so many writable floats.
        unsafe { std::ptr::copy_nonoverlapping(self.0.as_ptr(), to, count.min(PANEL)) };
    }
    #[inline(always)]
    unsafe fn add_product(self, a: f32, b: Self) -> Self {
        Self(std::array::from_fn(|l| {
            zbmd_op::simd::fma::<{ cfg!(target_arch = "aarch64") }>(a, b.0[l], self.0[l])
        }))
    }
    #[inline(always)]
    unsafe fn add_products(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|l| {
            zbmd_op::simd::fma::<{ cfg!(target_arch = "aarch64") }>(a.0[l], b.0[l], self.0[l])
        }))
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        Self(std::array::from_fn(|l| self.0[l] + b.0[l]))
    }
    #[inline(always)]
    unsafe fn greater(self, b: Self) -> Self {
        Self(std::array::from_fn(|l| {
            super::num::Num::max(self.0[l], b.0[l])
        }))
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {}
    #[inline(always)]
    unsafe fn hard_swish(self) -> Self {
        Self(self.0.map(super::gemm::hard_swish))
    }
    #[inline(always)]
    unsafe fn clamp(self, low: f32, high: f32) -> Self {
        Self(self.0.map(|v| {
            let v = if v > low { v } else { low };
            if v < high { v } else { high }
        }))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Vector, Wide};
    use crate::gemm::SIXTH;

    #[derive(Clone, Copy)]
    pub(super) struct V512(__m512);
    #[derive(Clone, Copy)]
    pub(super) struct V256(__m256, __m256);

    /// The mask of the first `count` of sixteen lanes.
    #[inline(always)]
    fn first_lanes(count: usize) -> __mmask16 {
        u16::MAX
            .checked_shr(16_u32.saturating_sub(count as u32))
            .unwrap_or(0)
    }

    /// The masks of the first `count` of sixteen lanes in two halves.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn first_half_lanes(count: usize) -> (__m256i, __m256i) {
        // SAFETY: the caller's promise.
        unsafe {
            let count = _mm256_set1_epi32(count as i32);
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
            (
                _mm256_cmpgt_epi32(count, low),
                _mm256_cmpgt_epi32(count, high),
            )
        }
    }

    // SAFETY of all blocks below: these types are used inside `wide512` and `wide256` only, whose callers have
    // checked for the instructions; pointers are the caller's promise.
    impl Vector for V512 {
        const MANY: bool = true;
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_setzero_ps() })
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_loadu_ps(from) })
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }
        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> Self {
            // SAFETY: see above. Lanes outside the mask are not read.
            Self(unsafe { _mm512_maskz_loadu_ps(first_lanes(count), from) })
        }
        #[inline(always)]
        unsafe fn store_first(self, to: *mut f32, count: usize) {
            // SAFETY: see above. Lanes outside the mask are not written.
            unsafe { _mm512_mask_storeu_ps(to, first_lanes(count), self.0) }
        }
        #[inline(always)]
        unsafe fn add_product(self, a: f32, b: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_fmadd_ps(_mm512_set1_ps(a), b.0, self.0) })
        }
        #[inline(always)]
        unsafe fn add_products(self, a: Self, b: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_add_ps(self.0, b.0) })
        }
        #[inline(always)]
        unsafe fn greater(self, b: Self) -> Self {
            // SAFETY: see above. The maximum is its second operand where either is a NaN.
            unsafe {
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
                Self(_mm512_mask_mov_ps(_mm512_max_ps(self.0, b.0), nan, self.0))
            }
        }
        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: see above; any address may be asked for.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        #[inline(always)]
        unsafe fn load_if(from: *const f32, is_inside: bool) -> Self {
            let lanes = 0_u16.wrapping_sub(u16::from(is_inside));
            // SAFETY: see above. Lanes outside the mask are not read.
            Self(unsafe { _mm512_maskz_loadu_ps(lanes, from) })
        }
        #[inline(always)]
        unsafe fn hard_swish(self) -> Self {
            // SAFETY: see above.
            unsafe {
                let scaled = _mm512_mul_ps(self.0, _mm512_set1_ps(SIXTH));
                let raised = Self(_mm512_add_ps(scaled, _mm512_set1_ps(0.5)));
                Self(_mm512_mul_ps(self.0, raised.clamp(0.0, 1.0).0))
            }
        }
        #[inline(always)]
        unsafe fn clamp(self, low: f32, high: f32) -> Self {
            // SAFETY: see above.
            unsafe {
                let v = _mm512_max_ps(self.0, _mm512_set1_ps(low));
                Self(_mm512_min_ps(v, _mm512_set1_ps(high)))
            }
        }
    }

    impl Vector for V256 {
        const MANY: bool = false;
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: see above.
            unsafe {
                _mm256_storeu_ps(to, self.0);
                _mm256_storeu_ps(to.add(8), self.1);
            }
        }
        #[inline(always)]
        unsafe fn load_first(from: *const f32, count: usize) -> Self {
            // SAFETY: see above. Lanes outside the masks are not read.
            unsafe {
                let (low, high) = first_half_lanes(count);
                Self(
                    _mm256_maskload_ps(from, low),
                    _mm256_maskload_ps(from.wrapping_add(8), high),
                )
            }
        }
        #[inline(always)]
        unsafe fn store_first(self, to: *mut f32, count: usize) {
            // SAFETY: see above. Lanes outside the masks are not written.
            unsafe {
                let (low, high) = first_half_lanes(count);
                _mm256_maskstore_ps(to, low, self.0);
                _mm256_maskstore_ps(to.wrapping_add(8), high, self.1);
            }
        }
        #[inline(always)]
        unsafe fn add_product(self, a: f32, b: Self) -> Self {
            // SAFETY: see above.
            unsafe {
                let a = _mm256_set1_ps(a);
                Self(
                    _mm256_fmadd_ps(a, b.0, self.0),
                    _mm256_fmadd_ps(a, b.1, self.1),
                )
            }
        }
        #[inline(always)]
        unsafe fn add_products(self, a: Self, b: Self) -> Self {
            // SAFETY: see above.
            unsafe {
                Self(
                    _mm256_fmadd_ps(a.0, b.0, self.0),
                    _mm256_fmadd_ps(a.1, b.1, self.1),
                )
            }
        }
        #[inline(always)]
        unsafe fn add(self, b: Self) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
        }
        #[inline(always)]
        unsafe fn greater(self, b: Self) -> Self {
            // SAFETY: see above. The maximum is its second operand where either is a NaN.
            unsafe {
                let one = |a, b| {
                    let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a);
                    _mm256_blendv_ps(_mm256_max_ps(a, b), a, nan)
                };
                Self(one(self.0, b.0), one(self.1, b.1))
            }
        }
        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: see above; any address may be asked for.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        #[inline(always)]
        unsafe fn hard_swish(self) -> Self {
            // SAFETY: see above.
            unsafe {
                let raised = |v| {
                    let scaled = _mm256_mul_ps(v, _mm256_set1_ps(SIXTH));
                    _mm256_add_ps(scaled, _mm256_set1_ps(0.5))
                };
                let gates = Self(raised(self.0), raised(self.1)).clamp(0.0, 1.0);
                Self(
                    _mm256_mul_ps(self.0, gates.0),
                    _mm256_mul_ps(self.1, gates.1),
                )
            }
        }
        #[inline(always)]
        unsafe fn clamp(self, low: f32, high: f32) -> Self {
            // SAFETY: see above.
            unsafe {
                let low_bound = _mm256_set1_ps(low);
                let high_bound = _mm256_set1_ps(high);
                let bound = |v| _mm256_min_ps(_mm256_max_ps(v, low_bound), high_bound);
                Self(bound(self.0), bound(self.1))
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
    pub(super) fn wide512<W: Wide>(code: W) {
        // SAFETY: this function has the instructions; the caller promises the rest.
        unsafe { code.run::<V512, true>() }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn wide256<W: Wide>(code: W) {
        // SAFETY: this function has the instructions; the caller promises the rest.
        unsafe { code.run::<V256, true>() }
    }
}
