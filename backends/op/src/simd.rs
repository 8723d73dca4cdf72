//! Loops compiled twice: for AVX2 with fused multiply-add, and for whatever the target guarantees; the few that compute much
//! for each element also for AVX-512, with the same bits.
//!
//! A [`Loop`] is plain code; the compiler vectorises it inside a function that may use the wider instructions. The
//! choice depends on the processor alone, never on sizes, so bits are the same however firings are grouped. They
//! may differ between processors with and without fused multiply-add.
#![expect(
    unsafe_code,
    reason = "calls functions compiled for AVX2 and FMA once the processor is known to have them"
)]

/// Code worth compiling for wide vectors.
pub trait Loop {
    /// What the loop returns.
    type Out;

    /// Runs it. Implementations are `#[inline(always)]`, so that they take on the caller's instruction set;
    /// `FMA` says that it has a fused multiply-add, see [`fma`], and `isa` lets parts of it be compiled apart.
    fn run<const FMA: bool>(self, isa: Isa<FMA>) -> Self::Out;
}

/// Runs the loop with the best instructions that this processor has.
#[inline]
pub fn dispatch<L: Loop>(code: L) -> L::Out {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both features that `wide` is compiled for.
        return unsafe { wide(code) };
    }
    code.run(Isa::<{ cfg!(target_arch = "aarch64") }>(()))
}

/// [`dispatch`] for loops that compute much for each element: vectors of 512 bits do twice as much at a time. Every lane
/// computes what it would in a shorter vector.
#[inline]
pub fn dispatch_widest<L: Loop>(code: L) -> L::Out {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("fma")
    {
        // SAFETY: the processor has all features that `widest` is compiled for; with AVX-512 it has AVX2.
        return unsafe { widest(code) };
    }
    dispatch(code)
}

/// Proof that code for these instructions is running already. On x86-64, `Isa<true>` exists only inside `wide` and
/// `widest`.
#[derive(Clone, Copy)]
pub struct Isa<const FMA: bool>(());

impl<const FMA: bool> Isa<FMA> {
    /// Runs the loop in a function of its own with the same instructions: where inlining many loops into one
    /// function would make it huge.
    #[inline(always)]
    pub fn apart<L: Loop>(self, code: L) -> L::Out {
        #[cfg(target_arch = "x86_64")]
        if FMA {
            // SAFETY: `Isa<true>` is made in `wide` and `widest` only, whose callers checked for these features.
            return unsafe { apart_wide(code) };
        }
        apart(self, code)
    }
}

#[inline(never)]
fn apart<const FMA: bool, L: Loop>(isa: Isa<FMA>, code: L) -> L::Out {
    code.run(isa)
}

/// A step between that is not inlined: the compiler drops `inline(never)` from functions with target features.
///
/// # Safety
/// The processor has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn apart_wide<L: Loop>(code: L) -> L::Out {
    // SAFETY: the caller promises what `wide` needs.
    unsafe { wide(code) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn wide<L: Loop>(code: L) -> L::Out {
    code.run(Isa::<true>(()))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,fma")]
fn widest<L: Loop>(code: L) -> L::Out {
    code.run(Isa::<true>(()))
}

/// a·b + c, rounded once where the instruction set can.
#[inline(always)]
pub fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Chains of a sum or another fold along a row, one for each lane of the widest vectors: a single one would wait for each
/// result before the next.
pub const CHAINS: usize = 16;

/// What the chains come to together, by halves: one after the other would wait again.
#[inline(always)]
pub fn fold_chains<T: Copy>(mut chains: [T; CHAINS], join: impl Fn(T, T) -> T) -> T {
    let mut half = CHAINS / 2;
    while half > 0 {
        for i in 0..half {
            chains[i] = join(chains[i], chains[i + half]);
        }
        half /= 2;
    }
    chains[0]
}

/// The integer nearest to v, ties to even; bounded to ±2^30, and some number for a NaN.
///
/// A plain cast saturates at the type's bounds, which the compiler does not turn into vector code.
#[inline(always)]
pub fn round_i32(v: f32) -> i32 {
    const BOUND: f32 = 1_073_741_824.0;
    let v = if v > -BOUND { v } else { -BOUND };
    let v = if v < BOUND { v } else { BOUND };
    // SAFETY: v is no NaN and within ±2^30.
    unsafe { v.round_ties_even().to_int_unchecked() }
}

/// Like [`round_i32`].
#[inline(always)]
pub fn round_i32_wide(v: f64) -> i32 {
    const BOUND: f64 = 1_073_741_824.0;
    let v = if v > -BOUND { v } else { -BOUND };
    let v = if v < BOUND { v } else { BOUND };
    // SAFETY: v is no NaN and within ±2^30.
    unsafe { v.round_ties_even().to_int_unchecked() }
}

/// Elements of one vector in dot products, on every processor.
const LANES: usize = 8;

/// Eight floats.
trait Vector: Copy {
    fn zero() -> Self;
    /// # Safety
    /// Eight floats can be read from `x`, and the processor has the vector's instructions.
    unsafe fn load(x: *const f32) -> Self;
    /// `a * b + self`, rounded once where the instruction set can.
    fn add_product(self, a: Self, b: Self) -> Self;
    fn add(self, other: Self) -> Self;
    /// `a * b + c` of single floats, rounded as in [`Self::add_product`].
    fn scalar(a: f32, b: f32, c: f32) -> f32;
    /// Sums of the even and of the odd lanes: (0 + 4) + (2 + 6), (1 + 5) + (3 + 7).
    fn sum_pairs(self) -> (f32, f32);
}

/// A vector as the compiler makes it.
#[derive(Clone, Copy)]
struct Plain<const FMA: bool>([f32; LANES]);

impl<const FMA: bool> Vector for Plain<FMA> {
    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; LANES])
    }

    #[inline(always)]
    unsafe fn load(x: *const f32) -> Self {
        // SAFETY: the caller promises eight readable floats.
        Self(unsafe { x.cast::<[f32; LANES]>().read_unaligned() })
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

    #[inline(always)]
    fn scalar(a: f32, b: f32, c: f32) -> f32 {
        fma::<FMA>(a, b, c)
    }

    #[inline(always)]
    fn sum_pairs(self) -> (f32, f32) {
        let l = self.0;
        ((l[0] + l[4]) + (l[2] + l[6]), (l[1] + l[5]) + (l[3] + l[7]))
    }
}

/// One AVX register: the compiler scatters several rows of arrays over scalar registers.
#[cfg(target_arch = "x86_64")]
mod avx {
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub(super) struct Avx(__m256);

    // SAFETY of all blocks below: `dot` uses this type where FMA is true only, which on x86-64 means inside `wide`,
    // so the processor has AVX2 and FMA.
    impl super::Vector for Avx {
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_setzero_ps() })
        }

        #[inline(always)]
        unsafe fn load(x: *const f32) -> Self {
            // SAFETY: see above; the caller promises eight readable floats.
            Self(unsafe { _mm256_loadu_ps(x) })
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn scalar(a: f32, b: f32, c: f32) -> f32 {
            super::fma::<true>(a, b, c)
        }

        #[inline(always)]
        fn sum_pairs(self) -> (f32, f32) {
            // SAFETY: see above.
            unsafe {
                let four = _mm_add_ps(
                    _mm256_castps256_ps128(self.0),
                    _mm256_extractf128_ps::<1>(self.0),
                );
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                (_mm_cvtss_f32(two), _mm_cvtss_f32(_mm_movehdup_ps(two)))
            }
        }
    }
}

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

/// R dot products of `taps` with the samples that begin at `x[0]`, `x[stride]`, …, each in two sums: over the even
/// and over the odd samples if the number of taps is even, any two otherwise.
///
/// The order of summation depends on the number of taps only.
#[inline(always)]
pub fn dot<const FMA: bool, const R: usize>(
    _: Isa<FMA>,
    x: &[f32],
    stride: usize,
    taps: &Taps,
) -> [(f32, f32); R] {
    #[cfg(target_arch = "x86_64")]
    if FMA {
        return dot_with::<avx::Avx, R>(x, stride, taps);
    }
    dot_with::<Plain<FMA>, R>(x, stride, taps)
}

#[inline(always)]
fn dot_with<V: Vector, const R: usize>(x: &[f32], stride: usize, taps: &Taps) -> [(f32, f32); R] {
    let len = taps.len();
    let mut rows: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        rows[r] = &x[r * stride..r * stride + len];
    }
    let tail = taps.tail.as_ptr();
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
                *sum = V::scalar(rows[r][i], h, *sum);
            }
        }
        return sums;
    }
    let mut starts = [std::ptr::null(); R];
    for r in 0..R {
        starts[r] = rows[r].as_ptr();
    }
    let mut even = [V::zero(); R];
    let mut odd = [V::zero(); R];
    let all = taps.all.as_ptr();
    let mut at = 0;
    // SAFETY of all steps: rows and taps have `len` elements and at + 8 <= len; the tail has eight.
    while at + 2 * LANES <= len {
        // SAFETY: see above.
        unsafe {
            step(&mut even, &starts, at, all.add(at));
            step(&mut odd, &starts, at + LANES, all.add(at + LANES));
        }
        at += 2 * LANES;
    }
    if at + LANES <= len {
        // SAFETY: see above.
        unsafe { step(&mut even, &starts, at, all.add(at)) };
        at += LANES;
    }
    if at < len {
        // SAFETY: see above.
        unsafe { step(&mut odd, &starts, len - LANES, tail) };
    }
    let mut sums = [(0.0, 0.0); R];
    for r in 0..R {
        sums[r] = even[r].add(odd[r]).sum_pairs();
    }
    sums
}

/// Adds the products of the eight taps at `h` with the eight samples of each row from `at` on.
///
/// # Safety
/// Eight floats can be read there.
#[inline(always)]
unsafe fn step<V: Vector, const R: usize>(
    sums: &mut [V; R],
    rows: &[*const f32; R],
    at: usize,
    h: *const f32,
) {
    // SAFETY: the caller promises eight floats at `h`.
    let h = unsafe { V::load(h) };
    for r in 0..R {
        // SAFETY: the caller promises eight floats from `at` on in each row.
        sums[r] = sums[r].add_product(unsafe { V::load(rows[r].add(at)) }, h);
    }
}

/// `f` of every element: the loop of most elementwise kernels.
#[inline]
pub fn map<A: Copy, B>(x: &[A], y: &mut [B], f: impl Fn(A) -> B) {
    struct Map<'a, A, B, F>(&'a [A], &'a mut [B], F);
    impl<A: Copy, B, F: Fn(A) -> B> Loop for Map<'_, A, B, F> {
        type Out = ();
        #[inline(always)]
        fn run<const FMA: bool>(self, _: Isa<FMA>) {
            for (y, &x) in self.1.iter_mut().zip(self.0) {
                *y = (self.2)(x);
            }
        }
    }
    dispatch(Map(x, y, f));
}

/// Elements of a type as elements of one that holds them, for all of `to`.
pub type Read<M> = fn(&[u8], &mut [M]);
/// The way back.
pub type Write<M> = fn(&[M], &mut [u8]);

/// A [`Read`] of elements of A.
pub fn read<A: bytemuck::Pod, M>(x: &[u8], to: &mut [M], f: impl Fn(A) -> M) {
    map(bytemuck::cast_slice(x), to, f);
}

/// A [`Write`] of elements of B.
pub fn write<B: bytemuck::Pod, M: Copy>(x: &[M], to: &mut [u8], f: impl Fn(M) -> B) {
    map(x, bytemuck::cast_slice_mut(to), f);
}

/// Converts elements by way of M, block by block: so many loops as there are types, not as there are pairs of them.
/// Elements come with their size in bytes.
pub fn staged<M: bytemuck::Pod>(
    (x, a): (&[u8], usize),
    (y, b): (&mut [u8], usize),
    read: Read<M>,
    write: Write<M>,
) {
    const BLOCK: usize = 256;
    let mut block = [M::zeroed(); BLOCK];
    for (x, y) in x.chunks(a * BLOCK).zip(y.chunks_mut(b * BLOCK)) {
        let block = &mut block[..x.len() / a];
        read(x, block);
        write(block, y);
    }
}

#[cfg(test)]
mod tests {
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
                    Dot::<1>(&x[r * 3..], 0, &laid).run(Isa::<false>(())),
                    [(even, odd)]
                );
                if len % 2 == 0 {
                    assert_eq!(even, products.iter().step_by(2).sum(), "{len} taps, even");
                }
            }
        }
    }
}
