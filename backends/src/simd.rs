//! Loops compiled twice: for AVX2 with fused multiply-add, and for whatever the target guarantees.
//!
//! A [`Loop`] is plain code; the compiler vectorises it inside a function that may use the wider instructions. The
//! choice depends on the processor alone, never on sizes, so bits are the same however firings are grouped. They
//! may differ between processors with and without fused multiply-add.
#![expect(
    unsafe_code,
    reason = "calls functions compiled for AVX2 and FMA once the processor is known to have them"
)]

/// Code worth compiling for wide vectors.
pub(crate) trait Loop {
    /// What the loop returns.
    type Out;

    /// Runs it. Implementations are `#[inline(always)]`, so that they take on the caller's instruction set;
    /// `FMA` says that it has a fused multiply-add, see [`fma`], and `isa` lets parts of it be compiled apart.
    fn run<const FMA: bool>(self, isa: Isa<FMA>) -> Self::Out;
}

/// Runs the loop with the best instructions that this processor has.
#[inline]
pub(crate) fn dispatch<L: Loop>(code: L) -> L::Out {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both features that `wide` is compiled for.
        return unsafe { wide(code) };
    }
    code.run(Isa::<{ cfg!(target_arch = "aarch64") }>(()))
}

/// Proof that code for these instructions is running already. On x86-64, `Isa<true>` exists only inside [`wide`].
#[derive(Clone, Copy)]
pub(crate) struct Isa<const FMA: bool>(());

impl<const FMA: bool> Isa<FMA> {
    /// Runs the loop in a function of its own with the same instructions: where inlining many loops into one
    /// function would make it huge.
    #[inline(always)]
    pub(crate) fn apart<L: Loop>(self, code: L) -> L::Out {
        #[cfg(target_arch = "x86_64")]
        if FMA {
            // SAFETY: `Isa<true>` is made in `wide` only, whose caller checked for the same features.
            return unsafe { wide(code) };
        }
        apart(self, code)
    }
}

#[inline(never)]
fn apart<const FMA: bool, L: Loop>(isa: Isa<FMA>, code: L) -> L::Out {
    code.run(isa)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn wide<L: Loop>(code: L) -> L::Out {
    code.run(Isa::<true>(()))
}

/// a·b + c, rounded once where the instruction set can.
#[inline(always)]
pub(crate) fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Elements of one vector in dot products, on every processor.
const LANES: usize = 8;
type Lanes = [f32; LANES];

/// Coefficients of a dot product, laid out for [`dot`].
#[derive(Clone, Debug)]
pub(crate) struct Taps {
    all: Vec<f32>,
    /// The last vector: coefficients that no whole vector covers, preceded by zeros for those that one does.
    tail: Lanes,
}

impl Taps {
    /// Coefficients in the order of the samples that they meet.
    pub(crate) fn new(all: Vec<f32>) -> Self {
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
    pub(crate) fn pairs(taps: &[f32]) -> Self {
        Self::new(taps.iter().flat_map(|&t| [t, t]).collect())
    }

    /// Number of samples of one dot product.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

/// R dot products of `taps` with the samples that begin at `x[0]`, `x[stride]`, …; lane l of each result holds the
/// sum over the indices that are l modulo 8 (counted from the end in the last vector, which is why samples that
/// come in pairs keep to even and odd lanes).
///
/// The order of summation depends on the number of taps only.
#[inline(always)]
pub(crate) fn dot<const FMA: bool, const R: usize>(
    x: &[f32],
    stride: usize,
    taps: &Taps,
) -> [Lanes; R] {
    let len = taps.len();
    if len < LANES {
        return std::array::from_fn(|r| {
            let mut short = [0.0; LANES];
            short[..len].copy_from_slice(&x[r * stride..r * stride + len]);
            std::array::from_fn(|l| short[l] * taps.tail[l])
        });
    }
    let rows: [&[f32]; R] = std::array::from_fn(|r| &x[r * stride..r * stride + len]);
    let mut even = [[0.0; LANES]; R];
    let mut odd = [[0.0; LANES]; R];
    let mut at = 0;
    while at + 2 * LANES <= len {
        step::<FMA, R>(&rows, at, &taps.all[at..at + LANES], &mut even);
        step::<FMA, R>(&rows, at + LANES, &taps.all[at + LANES..at + 2 * LANES], &mut odd);
        at += 2 * LANES;
    }
    if at + LANES <= len {
        step::<FMA, R>(&rows, at, &taps.all[at..at + LANES], &mut even);
        at += LANES;
    }
    if at < len {
        step::<FMA, R>(&rows, len - LANES, &taps.tail, &mut odd);
    }
    std::array::from_fn(|r| std::array::from_fn(|l| even[r][l] + odd[r][l]))
}

#[inline(always)]
fn step<const FMA: bool, const R: usize>(
    rows: &[&[f32]; R],
    at: usize,
    taps: &[f32],
    sums: &mut [Lanes; R],
) {
    for r in 0..R {
        let samples = &rows[r][at..at + LANES];
        for l in 0..LANES {
            sums[r][l] = fma::<FMA>(samples[l], taps[l], sums[r][l]);
        }
    }
}

/// Sum of all lanes.
#[inline(always)]
pub(crate) fn sum(lanes: Lanes) -> f32 {
    let (re, im) = sum_pairs(lanes);
    re + im
}

/// Sums of the even and of the odd lanes.
#[inline(always)]
pub(crate) fn sum_pairs(l: Lanes) -> (f32, f32) {
    ((l[0] + l[4]) + (l[2] + l[6]), (l[1] + l[5]) + (l[3] + l[7]))
}

/// `f` of every element: the loop of most elementwise kernels.
#[inline]
pub(crate) fn map<A: Copy, B>(x: &[A], y: &mut [B], f: impl Fn(A) -> B) {
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Dot<'a, const R: usize>(&'a [f32], usize, &'a Taps);
    impl<const R: usize> Loop for Dot<'_, R> {
        type Out = [Lanes; R];
        #[inline(always)]
        fn run<const FMA: bool>(self, _: Isa<FMA>) -> Self::Out {
            dot::<FMA, R>(self.0, self.1, self.2)
        }
    }

    #[test]
    fn dot_counts_every_tap_once_and_keeps_parity() {
        for len in 1..40 {
            let taps: Vec<f32> = (0..len).map(|i| 1.0 + i as f32).collect();
            let x: Vec<f32> = (0..len + 9).map(|i| ((i * 7) % 11) as f32).collect();
            let taps_laid = Taps::new(taps.clone());
            let four = dispatch(Dot::<4>(&x, 3, &taps_laid));
            for (r, lanes) in four.into_iter().enumerate() {
                // Small integers: every order of summation gives the same float.
                let expect: f32 = taps.iter().zip(&x[r * 3..]).map(|(t, x)| t * x).sum();
                assert_eq!(sum(lanes), expect, "{len} taps, row {r}");
                let one = dispatch(Dot::<1>(&x[r * 3..], 0, &taps_laid))[0];
                assert_eq!(lanes.map(f32::to_bits), one.map(f32::to_bits));
                if len % 2 == 0 {
                    let even = |(i, v): (usize, f32)| if i % 2 == 0 { v } else { 0.0 };
                    let products = taps.iter().zip(&x[r * 3..]).map(|(t, x)| t * x);
                    let expect: f32 = products.enumerate().map(even).sum();
                    assert_eq!(sum_pairs(lanes).0, expect, "{len} taps, even lanes");
                }
            }
        }
    }
}
