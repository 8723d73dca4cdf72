//! Filters that give many outputs a firing, of which each has taps of its own: interpolators and converters of sample rates.
//!
//! Sixteen neighbouring outputs are computed side by side. They begin at samples that are close to each other, so their taps are
//! rows of a table over all samples that any of them reads, with zeros where one does not: a sample times its row is added to
//! all sixteen. Taps are read in the order in which they are stored, and no sum goes across a vector.
//!
//! A sample that is not finite therefore reaches outputs up to fifteen before and behind those whose taps it meets.

use zbmd_op::kernel::{Io, Kernel, KernelFault};
use zbmd_op::simd::{self, BRANCHES, Isa, Loop, weighted_rows};

use super::fir::Group;

/// Sixteen neighbouring outputs, or what is left of them.
struct Strip {
    /// First sample that any of them reads, counted from the window's.
    offset: usize,
    rows: Vec<[f32; BRANCHES]>,
}

/// The kernel, for real samples and taps.
pub(super) struct BranchesKernel {
    strips: Vec<Strip>,
    /// Samples that a firing consumes, and outputs that it produces.
    decimate: usize,
    interpolate: usize,
    group: Group,
}

impl BranchesKernel {
    /// From the first sample of each output, which must not decrease, and its taps in the order of the samples.
    pub(super) fn new(branches: Vec<(usize, Vec<f32>)>, decimate: usize, group: Group) -> Self {
        let strips = branches.chunks(BRANCHES).map(|branches| {
            let offset = branches[0].0;
            let ends = branches.iter().map(|(first, taps)| first + taps.len());
            let len = ends.max().unwrap_or(offset) - offset;
            let mut rows = vec![[0.0; BRANCHES]; len];
            for (branch, (first, taps)) in branches.iter().enumerate() {
                for (row, tap) in rows[first - offset..].iter_mut().zip(taps) {
                    row[branch] = *tap;
                }
            }
            Strip { offset, rows }
        });
        Self {
            strips: strips.collect(),
            decimate,
            interpolate: branches.len(),
            group,
        }
    }
}

impl Kernel for BranchesKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        simd::dispatch_widest(Run {
            kernel: self,
            firings: io.firings(),
            x: io.input(0),
            y: io.output(0),
        });
        Ok(())
    }
}

/// All firings of a call.
struct Run<'a> {
    kernel: &'a BranchesKernel,
    firings: usize,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Loop for Run<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(mut self, isa: Isa<FMA>) {
        let first = match self.kernel.group {
            Group::Four => self.groups::<FMA, 4>(isa, 0),
            Group::Six => self.groups::<FMA, 6>(isa, 0),
        };
        self.groups::<FMA, 1>(isa, first);
    }
}

impl Run<'_> {
    /// Groups of R firings from `first` on, as long as there are so many; returns the firing after them.
    #[inline(always)]
    fn groups<const FMA: bool, const R: usize>(&mut self, isa: Isa<FMA>, first: usize) -> usize {
        let BranchesKernel {
            strips,
            decimate,
            interpolate,
            ..
        } = self.kernel;
        let mut first = first;
        while first + R <= self.firings {
            let x = &self.x[first * decimate..];
            let y = &mut self.y[first * interpolate..][..R * interpolate];
            for (strip, Strip { offset, rows }) in strips.iter().enumerate() {
                let sums = weighted_rows::<FMA, R>(isa, &x[*offset..], *decimate, rows);
                for (y, sums) in y.chunks_exact_mut(*interpolate).zip(&sums) {
                    let outputs = y[strip * BRANCHES..].iter_mut();
                    outputs.zip(sums).for_each(|(y, sum)| *y = *sum);
                }
            }
            first += R;
        }
        first
    }
}
