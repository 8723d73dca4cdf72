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

mod dot;
mod rows;

pub use dot::{Taps, dot};
pub use rows::{BRANCHES, weighted_rows};

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
    code.run(Isa::<{ cfg!(target_arch = "aarch64") }> { is_widest: false })
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
pub struct Isa<const FMA: bool> {
    /// Whether this is `widest`, so that the processor has AVX-512. Known when the loop is compiled, since it is inlined.
    is_widest: bool,
}

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
    code.run(Isa::<true> { is_widest: false })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx2,fma")]
fn widest<L: Loop>(code: L) -> L::Out {
    code.run(Isa::<true> { is_widest: true })
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
