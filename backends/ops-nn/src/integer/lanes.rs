//! Sixteen lanes of bytes, of 32-bit integers and of floats, as wide as the processor has them.
//!
//! Sums of products of bytes are exact in every form: `vpdpbusd` and `vpmaddwd` do not saturate, which `vpmaddubsw` would.
//! Floats are converted, multiplied and rounded by one instruction each, in the order in which the code says so, never
//! fused. So all forms write the same bytes.
#![expect(unsafe_code, reason = "vector instructions over checked slices")]

/// Filters or channels of a vector.
pub(super) const LANES: usize = 16;
/// Products of bytes that are summed up in one step.
pub(super) const QUAD: usize = 4;
/// Bytes of weights that one step reads: a quad for each lane.
pub(super) const LINE: usize = LANES * QUAD;

/// Code over sixteen lanes.
pub(super) trait Laned {
    /// # Safety
    /// The processor has the lanes' instructions, and whatever the implementation asks for.
    unsafe fn run<L: Lanes>(self);
}

/// What a quantised number is bounded by before it is rounded, and what is added then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    /// Least and greatest number less the zero point: whole numbers, so that bounding may come before rounding.
    pub(super) low: f32,
    pub(super) high: f32,
    pub(super) zero: i32,
}

impl Bounds {
    /// The byte of a number in units of the scale: bounded, rounded with ties to even, and the zero point added. A NaN
    /// becomes the least byte.
    #[inline(always)]
    pub(super) fn byte(self, number: f32) -> u8 {
        (self.centred(number) + self.zero) as u8
    }

    /// The same before the zero point is added.
    #[inline(always)]
    fn centred(self, number: f32) -> i32 {
        let number = if number > self.low { number } else { self.low };
        let number = if number < self.high {
            number
        } else {
            self.high
        };
        number.round_ties_even() as i32
    }
}

/// Runs the code with the best instructions that this processor has.
///
/// # Safety
/// Whatever the implementation of [`Laned`] asks for beside instructions.
pub(super) unsafe fn run_lanes<C: Laned>(code: C) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::super::vector::widest;
        use std::arch::is_x86_feature_detected as has;

        let has_avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512vl");
        if widest() >= 512 && has_avx512 && has!("avx512vnni") {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::vnni512(code) };
        }
        let has_avx2 = widest() >= 256 && has!("avx2");
        if has_avx2 && widest() > 256 && has!("avxvnni") {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::vnni256(code) };
        }
        if has_avx2 {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { x86::avx2(code) };
        }
    }
    // SAFETY: plain lanes need nothing of the processor; the caller promises the rest.
    unsafe { code.run::<Plain>() }
}

/// Whether tiles may be used, if the processor has them.
pub(super) fn has_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    return super::super::vector::widest() >= 8192;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Sixteen lanes.
///
/// # Safety
/// Of all functions: the processor has the lanes' instructions, and pointers lead to sixteen elements, or to as many as
/// the function says.
pub(super) trait Lanes: Copy {
    /// Whether 24 sums fit into registers.
    const MANY: bool;
    /// Sixteen sums, perhaps each in two parts.
    type Sums: Copy;
    /// A quad of weights for each lane.
    type Weights: Copy;
    /// One quad of elements for all lanes.
    type Quad: Copy;
    /// A quad of elements for each lane.
    type Quads: Copy;
    type Ints: Copy;
    type Floats: Copy;
    /// [`Bounds`] in the form in which they are applied.
    type Limits: Copy;

    unsafe fn zero() -> Self::Sums;
    /// Reads [`LINE`] bytes, the quads of the lanes one after the other.
    unsafe fn weights(from: *const i8) -> Self::Weights;
    /// Reads [`QUAD`] bytes.
    unsafe fn quad(from: *const u8) -> Self::Quad;
    /// Sixteen bytes of each of four taps: a lane's quad has one of each.
    unsafe fn quads(taps: [*const u8; QUAD]) -> Self::Quads;
    unsafe fn add_quad(sums: Self::Sums, quad: Self::Quad, weights: Self::Weights) -> Self::Sums;
    unsafe fn add_quads(sums: Self::Sums, quads: Self::Quads, weights: Self::Weights)
    -> Self::Sums;
    unsafe fn totals(sums: Self::Sums) -> Self::Ints;

    unsafe fn ints(from: *const i32) -> Self::Ints;
    unsafe fn same_ints(value: i32) -> Self::Ints;
    /// Sixteen bytes, widened.
    unsafe fn bytes<const SIGNED: bool>(from: *const u8) -> Self::Ints;
    /// The first `count` of sixteen bytes, at most all, widened: no more are read.
    #[inline(always)]
    unsafe fn first_bytes<const SIGNED: bool>(from: *const u8, count: usize) -> Self::Ints {
        // SAFETY: the caller's promise.
        unsafe {
            if count == LANES {
                return Self::bytes::<SIGNED>(from);
            }
            let mut all = [0_u8; LANES];
            std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), count);
            Self::bytes::<SIGNED>(all.as_ptr())
        }
    }
    /// Wraps.
    unsafe fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Wraps.
    unsafe fn multiply_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn store_ints(ints: Self::Ints, to: *mut i32);

    /// Rounded to nearest, ties to even.
    unsafe fn floats_of(ints: Self::Ints) -> Self::Floats;
    unsafe fn floats(from: *const f32) -> Self::Floats;
    unsafe fn same_floats(value: f32) -> Self::Floats;
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn divide(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn store_floats(floats: Self::Floats, to: *mut f32);
    unsafe fn limits(bounds: Bounds) -> Self::Limits;
    /// [`Bounds::centred`] of each lane.
    unsafe fn centred(floats: Self::Floats, limits: Self::Limits) -> Self::Ints;
    /// Writes [`Bounds::byte`] of each lane.
    unsafe fn store_bytes(floats: Self::Floats, limits: Self::Limits, to: *mut u8);

    /// The same of the first `count` lanes, at most all: no more bytes are written.
    #[inline(always)]
    unsafe fn store_first_bytes(
        floats: Self::Floats,
        limits: Self::Limits,
        count: usize,
        to: *mut u8,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if count == LANES {
                Self::store_bytes(floats, limits, to);
            } else {
                let mut all = [0_u8; LANES];
                Self::store_bytes(floats, limits, all.as_mut_ptr());
                std::ptr::copy_nonoverlapping(all.as_ptr(), to, count);
            }
        }
    }
}

/// What makes bytes of the sums of sixteen filters, in registers.
#[derive(Clone, Copy)]
pub(super) struct Requantising<L: Lanes> {
    biases: L::Ints,
    multipliers: L::Floats,
    limits: L::Limits,
}

impl<L: Lanes> Requantising<L> {
    /// # Safety
    /// The processor has the lanes' instructions, and sixteen elements can be read at both places.
    #[inline(always)]
    pub(super) unsafe fn new(biases: *const i32, multipliers: *const f32, bounds: Bounds) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                biases: L::ints(biases),
                multipliers: L::floats(multipliers),
                limits: L::limits(bounds),
            }
        }
    }

    /// The numbers that [`Self::store`] writes as bytes, before the zero point is added.
    ///
    /// # Safety
    /// The processor has the lanes' instructions.
    #[inline(always)]
    pub(super) unsafe fn centred(self, totals: L::Ints) -> L::Ints {
        // SAFETY: the caller's promise.
        unsafe { L::centred(self.numbers(totals), self.limits) }
    }

    /// The sums with their biases, in units of the result's scale.
    ///
    /// # Safety
    /// The processor has the lanes' instructions.
    #[inline(always)]
    unsafe fn numbers(self, totals: L::Ints) -> L::Floats {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = L::add_ints(totals, self.biases);
            L::multiply(L::floats_of(sums), self.multipliers)
        }
    }

    /// Writes the bytes of the first `count` sums, at most all.
    ///
    /// # Safety
    /// The processor has the lanes' instructions, and so many bytes can be written.
    #[inline(always)]
    pub(super) unsafe fn store(self, totals: L::Ints, count: usize, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { L::store_first_bytes(self.numbers(totals), self.limits, count, to) }
    }
}

/// Lanes as the compiler makes them.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Lanes for Plain {
    const MANY: bool = false;
    type Sums = [i32; LANES];
    type Weights = [i8; LINE];
    type Quad = [u8; QUAD];
    type Quads = [[u8; QUAD]; LANES];
    type Ints = [i32; LANES];
    type Floats = [f32; LANES];
    type Limits = Bounds;

    #[inline(always)]
    unsafe fn zero() -> Self::Sums {
        [0; LANES]
    }
    #[inline(always)]
    unsafe fn weights(from: *const i8) -> Self::Weights {
        // SAFETY: the caller promises a line of weights.
        unsafe { from.cast::<[i8; LINE]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn quad(from: *const u8) -> Self::Quad {
        // SAFETY: the caller promises four bytes.
        unsafe { from.cast::<[u8; QUAD]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn quads(taps: [*const u8; QUAD]) -> Self::Quads {
        std::array::from_fn(|lane| {
            // SAFETY: the caller promises sixteen bytes of each tap.
            taps.map(|tap| unsafe { *tap.add(lane) })
        })
    }
    #[inline(always)]
    unsafe fn add_quad(
        mut sums: Self::Sums,
        quad: Self::Quad,
        weights: Self::Weights,
    ) -> Self::Sums {
        for (lane, sum) in sums.iter_mut().enumerate() {
            for (i, &element) in quad.iter().enumerate() {
                let product = i32::from(element) * i32::from(weights[QUAD * lane + i]);
                *sum = sum.wrapping_add(product);
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn add_quads(
        mut sums: Self::Sums,
        quads: Self::Quads,
        weights: Self::Weights,
    ) -> Self::Sums {
        for (lane, sum) in sums.iter_mut().enumerate() {
            for (i, &element) in quads[lane].iter().enumerate() {
                let product = i32::from(element) * i32::from(weights[QUAD * lane + i]);
                *sum = sum.wrapping_add(product);
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn totals(sums: Self::Sums) -> Self::Ints {
        sums
    }
    #[inline(always)]
    unsafe fn ints(from: *const i32) -> Self::Ints {
        // SAFETY: the caller promises sixteen integers.
        unsafe { from.cast::<[i32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn same_ints(value: i32) -> Self::Ints {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn bytes<const SIGNED: bool>(from: *const u8) -> Self::Ints {
        // SAFETY: the caller promises sixteen bytes.
        let bytes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        bytes.map(|byte| match SIGNED {
            true => i32::from(byte as i8),
            false => i32::from(byte),
        })
    }
    #[inline(always)]
    unsafe fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|l| a[l].wrapping_add(b[l]))
    }
    #[inline(always)]
    unsafe fn multiply_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        std::array::from_fn(|l| a[l].wrapping_mul(b[l]))
    }
    #[inline(always)]
    unsafe fn store_ints(ints: Self::Ints, to: *mut i32) {
        // SAFETY: the caller promises sixteen integers.
        unsafe { to.cast::<[i32; LANES]>().write_unaligned(ints) }
    }
    #[inline(always)]
    unsafe fn floats_of(ints: Self::Ints) -> Self::Floats {
        ints.map(|int| int as f32)
    }
    #[inline(always)]
    unsafe fn floats(from: *const f32) -> Self::Floats {
        // SAFETY: the caller promises sixteen floats.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn same_floats(value: f32) -> Self::Floats {
        [value; LANES]
    }
    #[inline(always)]
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|l| a[l] + b[l])
    }
    #[inline(always)]
    unsafe fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|l| a[l] * b[l])
    }
    #[inline(always)]
    unsafe fn divide(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        std::array::from_fn(|l| a[l] / b[l])
    }
    #[inline(always)]
    unsafe fn store_floats(floats: Self::Floats, to: *mut f32) {
        // SAFETY: the caller promises sixteen floats.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(floats) }
    }
    #[inline(always)]
    unsafe fn limits(bounds: Bounds) -> Bounds {
        bounds
    }
    #[inline(always)]
    unsafe fn centred(floats: Self::Floats, limits: Bounds) -> Self::Ints {
        floats.map(|number| limits.centred(number))
    }
    #[inline(always)]
    unsafe fn store_bytes(floats: Self::Floats, limits: Bounds, to: *mut u8) {
        let bytes = floats.map(|number| limits.byte(number));
        // SAFETY: the caller promises sixteen bytes.
        unsafe { to.cast::<[u8; LANES]>().write_unaligned(bytes) }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Bounds, LANES, LINE, Laned, Lanes, QUAD};

    /// AVX-512 with VNNI.
    #[derive(Clone, Copy)]
    struct Vnni512;
    /// AVX2 with VNNI: two registers for sixteen lanes.
    #[derive(Clone, Copy)]
    struct Vnni256;
    /// AVX2: bytes are widened to 16 bits, and each sum is two until the end.
    #[derive(Clone, Copy)]
    struct Avx2;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
    pub(super) fn vnni512<C: Laned>(code: C) {
        // SAFETY: this function has the instructions; the caller promises the rest.
        unsafe { code.run::<Vnni512>() }
    }

    #[target_feature(enable = "avxvnni,avx2")]
    pub(super) fn vnni256<C: Laned>(code: C) {
        // SAFETY: this function has the instructions; the caller promises the rest.
        unsafe { code.run::<Vnni256>() }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn avx2<C: Laned>(code: C) {
        // SAFETY: this function has the instructions; the caller promises the rest.
        unsafe { code.run::<Avx2>() }
    }

    /// Where the dwords of four taps of sixteen channels go, so that those of the same four channels are one lane of 128
    /// bits.
    const DWORDS: [i32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
    /// Where the bytes of such a lane go, so that those of a channel are one dword.
    const BYTES: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

    /// Bounds in all lanes.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Limits512 {
        low: __m512,
        high: __m512,
        zero: __m512i,
    }

    impl Limits512 {
        /// [`Bounds::centred`] of each lane.
        ///
        /// # Safety
        /// The processor has AVX-512.
        #[inline(always)]
        unsafe fn centred(self, floats: __m512) -> __m512i {
            // SAFETY: the caller's promise. A bound is the second operand: the instructions give it where the first is a NaN.
            unsafe {
                let bounded = _mm512_min_ps(_mm512_max_ps(floats, self.low), self.high);
                _mm512_cvt_roundps_epi32::<NEAREST>(bounded)
            }
        }

        /// [`Bounds::byte`] of each lane.
        ///
        /// # Safety
        /// The processor has AVX-512.
        #[inline(always)]
        unsafe fn bytes(self, floats: __m512) -> __m128i {
            // SAFETY: the caller's promise.
            unsafe { _mm512_cvtepi32_epi8(_mm512_add_epi32(self.centred(floats), self.zero)) }
        }
    }

    /// The mask of the first `count` of sixteen lanes.
    #[inline(always)]
    fn first_lanes(count: usize) -> __mmask16 {
        (u32::from(u16::MAX) >> (LANES - count)) as __mmask16
    }

    /// Rounds to nearest, ties to even, whatever the control register says.
    const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

    // SAFETY of all blocks below: these types are used inside `vnni512`, `vnni256` and `avx2` only, whose callers have
    // checked for the instructions; pointers are the caller's promise.
    impl Lanes for Vnni512 {
        const MANY: bool = true;
        type Sums = __m512i;
        type Weights = __m512i;
        type Quad = __m512i;
        type Quads = __m512i;
        type Ints = __m512i;
        type Floats = __m512;
        type Limits = Limits512;

        #[inline(always)]
        unsafe fn zero() -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_setzero_si512() }
        }
        #[inline(always)]
        unsafe fn weights(from: *const i8) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }
        #[inline(always)]
        unsafe fn quad(from: *const u8) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
        }
        #[inline(always)]
        unsafe fn quads(taps: [*const u8; QUAD]) -> __m512i {
            // SAFETY: see above.
            unsafe {
                let one = |tap: *const u8| _mm_loadu_si128(tap.cast());
                let joined = _mm512_castsi128_si512(one(taps[0]));
                let joined = _mm512_inserti32x4::<1>(joined, one(taps[1]));
                let joined = _mm512_inserti32x4::<2>(joined, one(taps[2]));
                let joined = _mm512_inserti32x4::<3>(joined, one(taps[3]));
                let dwords = _mm512_loadu_si512(DWORDS.as_ptr().cast());
                let bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(BYTES.as_ptr().cast()));
                _mm512_shuffle_epi8(_mm512_permutexvar_epi32(dwords, joined), bytes)
            }
        }
        #[inline(always)]
        unsafe fn add_quad(sums: __m512i, quad: __m512i, weights: __m512i) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_dpbusd_epi32(sums, quad, weights) }
        }
        #[inline(always)]
        unsafe fn add_quads(sums: __m512i, quads: __m512i, weights: __m512i) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_dpbusd_epi32(sums, quads, weights) }
        }
        #[inline(always)]
        unsafe fn totals(sums: __m512i) -> __m512i {
            sums
        }
        #[inline(always)]
        unsafe fn ints(from: *const i32) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_loadu_si512(from.cast()) }
        }
        #[inline(always)]
        unsafe fn same_ints(value: i32) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_set1_epi32(value) }
        }
        #[inline(always)]
        unsafe fn bytes<const SIGNED: bool>(from: *const u8) -> __m512i {
            // SAFETY: see above.
            unsafe {
                let bytes = _mm_loadu_si128(from.cast());
                match SIGNED {
                    true => _mm512_cvtepi8_epi32(bytes),
                    false => _mm512_cvtepu8_epi32(bytes),
                }
            }
        }
        #[inline(always)]
        unsafe fn first_bytes<const SIGNED: bool>(from: *const u8, count: usize) -> __m512i {
            // SAFETY: see above; bytes that are masked are not read.
            unsafe {
                let bytes = match count {
                    LANES => _mm_loadu_si128(from.cast()),
                    _ => _mm_maskz_loadu_epi8(first_lanes(count), from.cast()),
                };
                match SIGNED {
                    true => _mm512_cvtepi8_epi32(bytes),
                    false => _mm512_cvtepu8_epi32(bytes),
                }
            }
        }
        #[inline(always)]
        unsafe fn add_ints(a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_add_epi32(a, b) }
        }
        #[inline(always)]
        unsafe fn multiply_ints(a: __m512i, b: __m512i) -> __m512i {
            // SAFETY: see above.
            unsafe { _mm512_mullo_epi32(a, b) }
        }
        #[inline(always)]
        unsafe fn store_ints(ints: __m512i, to: *mut i32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_si512(to.cast(), ints) }
        }
        #[inline(always)]
        unsafe fn floats_of(ints: __m512i) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_cvtepi32_ps(ints) }
        }
        #[inline(always)]
        unsafe fn floats(from: *const f32) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn same_floats(value: f32) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_set1_ps(value) }
        }
        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn multiply(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn divide(a: __m512, b: __m512) -> __m512 {
            // SAFETY: see above.
            unsafe { _mm512_div_ps(a, b) }
        }
        #[inline(always)]
        unsafe fn store_floats(floats: __m512, to: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(to, floats) }
        }
        #[inline(always)]
        unsafe fn limits(bounds: Bounds) -> Limits512 {
            // SAFETY: see above.
            unsafe {
                Limits512 {
                    low: _mm512_set1_ps(bounds.low),
                    high: _mm512_set1_ps(bounds.high),
                    zero: _mm512_set1_epi32(bounds.zero),
                }
            }
        }
        #[inline(always)]
        unsafe fn centred(floats: __m512, limits: Limits512) -> __m512i {
            // SAFETY: see above.
            unsafe { limits.centred(floats) }
        }
        #[inline(always)]
        unsafe fn store_bytes(floats: __m512, limits: Limits512, to: *mut u8) {
            // SAFETY: see above.
            unsafe { _mm_storeu_si128(to.cast(), limits.bytes(floats)) }
        }
        #[inline(always)]
        unsafe fn store_first_bytes(floats: __m512, limits: Limits512, count: usize, to: *mut u8) {
            // SAFETY: see above; bytes that are masked are not written.
            unsafe {
                let bytes = limits.bytes(floats);
                match count {
                    LANES => _mm_storeu_si128(to.cast(), bytes),
                    _ => _mm_mask_storeu_epi8(to.cast(), first_lanes(count), bytes),
                }
            }
        }
    }

    /// What two registers of eight lanes have in common, whichever instructions sum up their products.
    macro_rules! eight_lanes {
        () => {
            type Ints = [__m256i; 2];
            type Floats = [__m256; 2];
            type Limits = Bounds;

            #[inline(always)]
            unsafe fn ints(from: *const i32) -> Self::Ints {
                // SAFETY: see above.
                unsafe {
                    [
                        _mm256_loadu_si256(from.cast()),
                        _mm256_loadu_si256(from.add(8).cast()),
                    ]
                }
            }
            #[inline(always)]
            unsafe fn same_ints(value: i32) -> Self::Ints {
                // SAFETY: see above.
                unsafe { [_mm256_set1_epi32(value); 2] }
            }
            #[inline(always)]
            unsafe fn bytes<const SIGNED: bool>(from: *const u8) -> Self::Ints {
                // SAFETY: see above.
                unsafe {
                    let low = _mm_loadl_epi64(from.cast());
                    let high = _mm_loadl_epi64(from.add(8).cast());
                    match SIGNED {
                        true => [_mm256_cvtepi8_epi32(low), _mm256_cvtepi8_epi32(high)],
                        false => [_mm256_cvtepu8_epi32(low), _mm256_cvtepu8_epi32(high)],
                    }
                }
            }
            #[inline(always)]
            unsafe fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints {
                // SAFETY: see above.
                unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
            }
            #[inline(always)]
            unsafe fn multiply_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints {
                // SAFETY: see above.
                unsafe {
                    [
                        _mm256_mullo_epi32(a[0], b[0]),
                        _mm256_mullo_epi32(a[1], b[1]),
                    ]
                }
            }
            #[inline(always)]
            unsafe fn store_ints(ints: Self::Ints, to: *mut i32) {
                // SAFETY: see above.
                unsafe {
                    _mm256_storeu_si256(to.cast(), ints[0]);
                    _mm256_storeu_si256(to.add(8).cast(), ints[1]);
                }
            }
            #[inline(always)]
            unsafe fn floats_of(ints: Self::Ints) -> Self::Floats {
                // SAFETY: see above.
                unsafe { [_mm256_cvtepi32_ps(ints[0]), _mm256_cvtepi32_ps(ints[1])] }
            }
            #[inline(always)]
            unsafe fn floats(from: *const f32) -> Self::Floats {
                // SAFETY: see above.
                unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
            }
            #[inline(always)]
            unsafe fn same_floats(value: f32) -> Self::Floats {
                // SAFETY: see above.
                unsafe { [_mm256_set1_ps(value); 2] }
            }
            #[inline(always)]
            unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
                // SAFETY: see above.
                unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
            }
            #[inline(always)]
            unsafe fn multiply(a: Self::Floats, b: Self::Floats) -> Self::Floats {
                // SAFETY: see above.
                unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
            }
            #[inline(always)]
            unsafe fn divide(a: Self::Floats, b: Self::Floats) -> Self::Floats {
                // SAFETY: see above.
                unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
            }
            #[inline(always)]
            unsafe fn store_floats(floats: Self::Floats, to: *mut f32) {
                // SAFETY: see above.
                unsafe {
                    _mm256_storeu_ps(to, floats[0]);
                    _mm256_storeu_ps(to.add(8), floats[1]);
                }
            }
            #[inline(always)]
            unsafe fn limits(bounds: Bounds) -> Bounds {
                bounds
            }
            #[inline(always)]
            unsafe fn centred(floats: Self::Floats, limits: Bounds) -> Self::Ints {
                // SAFETY: see above.
                unsafe {
                    [
                        centred_eight(floats[0], limits),
                        centred_eight(floats[1], limits),
                    ]
                }
            }
            #[inline(always)]
            unsafe fn store_bytes(floats: Self::Floats, limits: Bounds, to: *mut u8) {
                // SAFETY: see above.
                unsafe { store_eights(floats, limits, to) }
            }
        };
    }

    /// [`Bounds::centred`] of eight numbers.
    ///
    /// # Safety
    /// The processor has AVX2.
    #[inline(always)]
    unsafe fn centred_eight(floats: __m256, bounds: Bounds) -> __m256i {
        // SAFETY: the caller's promise. A bound is the second operand: the instructions give it where the first is a NaN.
        unsafe {
            let bounded = _mm256_max_ps(floats, _mm256_set1_ps(bounds.low));
            let bounded = _mm256_min_ps(bounded, _mm256_set1_ps(bounds.high));
            _mm256_cvtps_epi32(_mm256_round_ps::<NEAREST>(bounded))
        }
    }

    /// Writes sixteen bounded and rounded bytes.
    ///
    /// # Safety
    /// The processor has AVX2, and sixteen bytes can be written.
    #[inline(always)]
    unsafe fn store_eights(floats: [__m256; 2], bounds: Bounds, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            // The low byte is what is stored, also of a negative number.
            let low_byte = _mm256_set1_epi32(0xff);
            let zero = _mm256_set1_epi32(bounds.zero);
            let mut shifted = [low_byte; 2];
            for half in 0..2 {
                let whole = _mm256_add_epi32(centred_eight(floats[half], bounds), zero);
                shifted[half] = _mm256_and_si256(whole, low_byte);
            }
            // Packing works within lanes of 128 bits: the middle quarters change places afterwards.
            let words = _mm256_packus_epi32(shifted[0], shifted[1]);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let low = _mm256_castsi256_si128(words);
            let high = _mm256_extracti128_si256::<1>(words);
            _mm_storeu_si128(to.cast(), _mm_packus_epi16(low, high));
        }
    }

    /// Four taps of sixteen channels, as the quads of four channels each.
    ///
    /// # Safety
    /// The processor has AVX2, and sixteen bytes can be read of each tap.
    #[inline(always)]
    unsafe fn interleaved(taps: [*const u8; QUAD]) -> [__m128i; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let one = |tap: *const u8| _mm_loadu_si128(tap.cast());
            let [a, b, c, d] = [one(taps[0]), one(taps[1]), one(taps[2]), one(taps[3])];
            let pairs_low = [_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d)];
            let pairs_high = [_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d)];
            [
                _mm_unpacklo_epi16(pairs_low[0], pairs_low[1]),
                _mm_unpackhi_epi16(pairs_low[0], pairs_low[1]),
                _mm_unpacklo_epi16(pairs_high[0], pairs_high[1]),
                _mm_unpackhi_epi16(pairs_high[0], pairs_high[1]),
            ]
        }
    }

    impl Lanes for Vnni256 {
        const MANY: bool = false;
        type Sums = [__m256i; 2];
        type Weights = [__m256i; 2];
        type Quad = __m256i;
        type Quads = [__m256i; 2];
        eight_lanes!();

        #[inline(always)]
        unsafe fn zero() -> Self::Sums {
            // SAFETY: see above.
            unsafe { [_mm256_setzero_si256(); 2] }
        }
        #[inline(always)]
        unsafe fn weights(from: *const i8) -> Self::Weights {
            // SAFETY: see above.
            unsafe {
                [
                    _mm256_loadu_si256(from.cast()),
                    _mm256_loadu_si256(from.add(LINE / 2).cast()),
                ]
            }
        }
        #[inline(always)]
        unsafe fn quad(from: *const u8) -> __m256i {
            // SAFETY: see above.
            unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
        }
        #[inline(always)]
        unsafe fn quads(taps: [*const u8; QUAD]) -> Self::Quads {
            // SAFETY: see above.
            unsafe {
                let fours = interleaved(taps);
                [
                    _mm256_set_m128i(fours[1], fours[0]),
                    _mm256_set_m128i(fours[3], fours[2]),
                ]
            }
        }
        #[inline(always)]
        unsafe fn add_quad(sums: Self::Sums, quad: __m256i, weights: Self::Weights) -> Self::Sums {
            // SAFETY: see above.
            unsafe {
                [
                    _mm256_dpbusd_avx_epi32(sums[0], quad, weights[0]),
                    _mm256_dpbusd_avx_epi32(sums[1], quad, weights[1]),
                ]
            }
        }
        #[inline(always)]
        unsafe fn add_quads(
            sums: Self::Sums,
            quads: Self::Quads,
            weights: Self::Weights,
        ) -> Self::Sums {
            // SAFETY: see above.
            unsafe {
                [
                    _mm256_dpbusd_avx_epi32(sums[0], quads[0], weights[0]),
                    _mm256_dpbusd_avx_epi32(sums[1], quads[1], weights[1]),
                ]
            }
        }
        #[inline(always)]
        unsafe fn totals(sums: Self::Sums) -> Self::Ints {
            sums
        }
    }

    impl Lanes for Avx2 {
        const MANY: bool = false;
        /// Four lanes each, every one as the sums of its first and of its last two products.
        type Sums = [__m256i; 4];
        type Weights = [__m256i; 4];
        type Quad = __m256i;
        type Quads = [__m256i; 4];
        eight_lanes!();

        #[inline(always)]
        unsafe fn zero() -> Self::Sums {
            // SAFETY: see above.
            unsafe { [_mm256_setzero_si256(); 4] }
        }
        #[inline(always)]
        unsafe fn weights(from: *const i8) -> Self::Weights {
            // SAFETY: see above.
            unsafe {
                let mut wide = [_mm256_setzero_si256(); 4];
                for (i, four) in wide.iter_mut().enumerate() {
                    let bytes = _mm_loadu_si128(from.add(LANES * i).cast());
                    *four = _mm256_cvtepi8_epi16(bytes);
                }
                wide
            }
        }
        #[inline(always)]
        unsafe fn quad(from: *const u8) -> __m256i {
            // SAFETY: see above.
            unsafe {
                let bytes = _mm_set1_epi32(from.cast::<i32>().read_unaligned());
                _mm256_cvtepu8_epi16(bytes)
            }
        }
        #[inline(always)]
        unsafe fn quads(taps: [*const u8; QUAD]) -> Self::Quads {
            // SAFETY: see above.
            unsafe {
                let fours = interleaved(taps);
                let mut wide = [_mm256_setzero_si256(); 4];
                for i in 0..4 {
                    wide[i] = _mm256_cvtepu8_epi16(fours[i]);
                }
                wide
            }
        }
        #[inline(always)]
        unsafe fn add_quad(
            mut sums: Self::Sums,
            quad: __m256i,
            weights: Self::Weights,
        ) -> Self::Sums {
            // SAFETY: see above. Two products of 255 · 128 are far below 2^31.
            unsafe {
                for i in 0..4 {
                    sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(quad, weights[i]));
                }
            }
            sums
        }
        #[inline(always)]
        unsafe fn add_quads(
            mut sums: Self::Sums,
            quads: Self::Quads,
            weights: Self::Weights,
        ) -> Self::Sums {
            // SAFETY: see above.
            unsafe {
                for i in 0..4 {
                    sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(quads[i], weights[i]));
                }
            }
            sums
        }
        #[inline(always)]
        unsafe fn totals(sums: Self::Sums) -> Self::Ints {
            // SAFETY: see above. Adding works within lanes of 128 bits: the middle quarters change places afterwards.
            unsafe {
                let low = _mm256_hadd_epi32(sums[0], sums[1]);
                let high = _mm256_hadd_epi32(sums[2], sums[3]);
                [
                    _mm256_permute4x64_epi64::<0b11_01_10_00>(low),
                    _mm256_permute4x64_epi64::<0b11_01_10_00>(high),
                ]
            }
        }
    }
}
