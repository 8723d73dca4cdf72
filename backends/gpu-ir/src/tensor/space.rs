//! Index spaces: dimensions with the steps that tensors take along them, as few as possible.

use super::{TensorKernelBuilder, Why};
use crate::lang::Val;

/// Dimensions, outermost first, with the step of each tensor along them; neighbours that all tensors walk through in
/// one go are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    dims: Vec<(usize, Vec<isize>)>,
    tensors: usize,
}

/// Steps of a dense tensor.
pub fn dense(dims: &[usize]) -> Vec<isize> {
    let mut dense_steps = vec![1_isize; dims.len()];
    for i in (1..dims.len()).rev() {
        dense_steps[i - 1] = dense_steps[i].saturating_mul(dims[i] as isize);
    }
    dense_steps
}

/// Steps along `out` of a dense tensor that is broadcast to it.
pub fn spread(out: &[usize], own: &[usize]) -> Vec<isize> {
    let own_steps = dense(own);
    // Shapes are aligned at their last dimensions; dimensions of one element are repeated.
    let leading_dims = out.len().saturating_sub(own.len());
    let step_along = |i: usize| match i.checked_sub(leading_dims) {
        Some(j) if own[j] != 1 => own_steps[j],
        _ => 0,
    };
    (0..out.len()).map(step_along).collect()
}

impl Space {
    /// A space whose tensors have these steps along `dims`.
    pub fn new(dims: &[usize], steps: &[Vec<isize>]) -> Self {
        // Dimensions of one element have no steps.
        let mut merged_dims: Vec<(usize, Vec<isize>)> = Vec::new();
        for (i, &dim) in dims.iter().enumerate().filter(|(_, d)| **d != 1) {
            let tensor_steps: Vec<isize> = steps.iter().map(|s| s[i]).collect();
            let continues_last = |before: &[isize]| {
                before
                    .iter()
                    .zip(&tensor_steps)
                    .all(|(b, s)| *b == s.saturating_mul(dim as isize))
            };

            match merged_dims.last_mut() {
                Some((n, before)) if continues_last(before) => {
                    *n = n.saturating_mul(dim);
                    *before = tensor_steps;
                }
                _ => merged_dims.push((dim, tensor_steps)),
            }
        }

        Self {
            dims: merged_dims,
            tensors: steps.len(),
        }
    }

    /// The space of `out` with dense tensors that are broadcast to it.
    pub fn broadcasting(out: &[usize], shapes: &[&[usize]]) -> Self {
        let spread_steps: Vec<Vec<isize>> = shapes.iter().map(|s| spread(out, s)).collect();
        Self::new(out, &spread_steps)
    }

    /// Whether a tensor is stored in the order of the space, without gaps.
    pub fn is_dense(&self, tensor: usize) -> bool {
        match &self.dims[..] {
            [] => true,
            [(_, steps)] => steps[tensor] == 1,
            _ => {
                let dim_sizes: Vec<usize> = self.dims.iter().map(|d| d.0).collect();
                let own_steps: Vec<isize> = self.dims.iter().map(|d| d.1[tensor]).collect();
                own_steps == dense(&dim_sizes)
            }
        }
    }

    /// Its sizes as constants of a kernel that is being built.
    pub fn on<'k>(&self, bench: &'k TensorKernelBuilder) -> Result<Places<'k>, Why> {
        let mut bound_dims = Vec::new();
        for (size, bound_steps) in &self.dims {
            let bind_step = |s: &isize| match s {
                0 => Ok(Step::Stays),
                1 => Ok(Step::One),
                s => bench.step(*s).map(Step::Far),
            };
            let bound_steps = bound_steps
                .iter()
                .map(bind_step)
                .collect::<Result<Vec<_>, Why>>()?;
            bound_dims.push((bench.size(*size)?, bound_steps));
        }

        Ok(Places {
            dims: bound_dims,
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
pub struct Places<'k> {
    dims: Vec<(Val<'k>, Vec<Step<'k>>)>,
    tensors: usize,
}

impl<'k> Places<'k> {
    /// Where each tensor is at element `index` of the space.
    pub fn at(&self, index: Val<'k>) -> Vec<Val<'k>> {
        let mut tensor_places: Vec<Option<Val<'k>>> = vec![None; self.tensors];
        let mut remaining_index = index;
        for (d, (size, steps)) in self.dims.iter().enumerate().rev() {
            // The outermost dimension needs no remainder: the index is within the space.
            let dim_index = if d == 0 {
                remaining_index
            } else {
                remaining_index % *size
            };
            for (place, step) in tensor_places.iter_mut().zip(steps) {
                let dim_offset = match step {
                    Step::Stays => continue,
                    Step::One => dim_index,
                    Step::Far(step) => dim_index * *step,
                };
                *place = Some(place.map_or(dim_offset, |p| p + dim_offset));
            }

            if d > 0 {
                remaining_index = remaining_index / *size;
            }
        }

        let k = index.builder();
        tensor_places
            .into_iter()
            .map(|p| p.unwrap_or_else(|| k.u32(0)))
            .collect()
    }
}
