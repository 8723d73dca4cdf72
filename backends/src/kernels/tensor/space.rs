//! Index spaces: dimensions with the steps that tensors take along them, as few as possible.

use super::{Bench, Why};
use crate::kernels::lang::Val;

/// Dimensions, outermost first, with the step of each tensor along them; neighbours that all tensors walk through in
/// one go are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    dims: Vec<(usize, Vec<isize>)>,
    tensors: usize,
}

/// Steps of a dense tensor.
pub(crate) fn dense(dims: &[usize]) -> Vec<isize> {
    let mut out = vec![1_isize; dims.len()];
    for i in (1..dims.len()).rev() {
        out[i - 1] = out[i].saturating_mul(dims[i] as isize);
    }
    out
}

/// Steps along `out` of a dense tensor that is broadcast to it.
pub(crate) fn spread(out: &[usize], own: &[usize]) -> Vec<isize> {
    let steps = dense(own);
    let lead = out.len().saturating_sub(own.len());
    let step = |i: usize| match i.checked_sub(lead) {
        Some(j) if own[j] != 1 => steps[j],
        _ => 0,
    };
    (0..out.len()).map(step).collect()
}

impl Space {
    /// A space whose tensors have these steps along `dims`.
    pub(crate) fn new(dims: &[usize], steps: &[Vec<isize>]) -> Self {
        let mut merged: Vec<(usize, Vec<isize>)> = Vec::new();
        for (i, &dim) in dims.iter().enumerate().filter(|(_, d)| **d != 1) {
            let step: Vec<isize> = steps.iter().map(|s| s[i]).collect();
            let joins = |before: &[isize]| {
                before
                    .iter()
                    .zip(&step)
                    .all(|(b, s)| *b == s.saturating_mul(dim as isize))
            };
            match merged.last_mut() {
                Some((n, before)) if joins(before) => {
                    *n = n.saturating_mul(dim);
                    *before = step;
                }
                _ => merged.push((dim, step)),
            }
        }
        Self {
            dims: merged,
            tensors: steps.len(),
        }
    }

    /// The space of `out` with dense tensors that are broadcast to it.
    pub(crate) fn broadcasting(out: &[usize], shapes: &[&[usize]]) -> Self {
        let steps: Vec<Vec<isize>> = shapes.iter().map(|s| spread(out, s)).collect();
        Self::new(out, &steps)
    }

    /// Whether a tensor lies in the order of the space, without gaps.
    pub(crate) fn is_dense(&self, tensor: usize) -> bool {
        match &self.dims[..] {
            [] => true,
            [(_, steps)] => steps[tensor] == 1,
            _ => {
                let dims: Vec<usize> = self.dims.iter().map(|d| d.0).collect();
                let own: Vec<isize> = self.dims.iter().map(|d| d.1[tensor]).collect();
                own == dense(&dims)
            }
        }
    }

    /// Its sizes as constants of a kernel in the making.
    pub(crate) fn on<'k>(&self, bench: &'k Bench) -> Result<Places<'k>, Why> {
        let mut dims = Vec::new();
        for (size, steps) in &self.dims {
            let step = |s: &isize| match s {
                0 => Ok(Step::Stays),
                1 => Ok(Step::One),
                s => bench.step(*s).map(Step::Far),
            };
            let steps = steps.iter().map(step).collect::<Result<Vec<_>, Why>>()?;
            dims.push((bench.size(*size)?, steps));
        }
        Ok(Places {
            dims,
            tensors: self.tensors,
        })
    }
}

#[derive(Clone, Copy)]
enum Step<'k> {
    Stays,
    One,
    Far(Val<'k>),
}

/// A space in a kernel.
#[derive(Clone)]
pub(crate) struct Places<'k> {
    dims: Vec<(Val<'k>, Vec<Step<'k>>)>,
    tensors: usize,
}

impl<'k> Places<'k> {
    /// Where each tensor is at element `index` of the space.
    pub(crate) fn at(&self, index: Val<'k>) -> Vec<Val<'k>> {
        let mut places: Vec<Option<Val<'k>>> = vec![None; self.tensors];
        let mut rest = index;
        for (d, (size, steps)) in self.dims.iter().enumerate().rev() {
            let here = if d == 0 { rest } else { rest % *size };
            for (place, step) in places.iter_mut().zip(steps) {
                let more = match step {
                    Step::Stays => continue,
                    Step::One => here,
                    Step::Far(step) => here * *step,
                };
                *place = Some(place.map_or(more, |p| p + more));
            }
            if d > 0 {
                rest = rest / *size;
            }
        }
        let k = index.builder();
        places
            .into_iter()
            .map(|p| p.unwrap_or_else(|| k.u32(0)))
            .collect()
    }
}
