//! Ops on elements one by one, their operands broadcast to one shape.

use super::space::Space;
use super::{Slot, TensorKernelBuilder, Why};
use crate::lang::Val;
use crate::plan::{Amount, Grid, KernelPlan};

/// Threads of a group.
const LOCAL: u32 = 64;

/// y = f(x0, x1, …) for every element of `dims`; operands with their own shapes.
pub fn map(
    plan: KernelPlan,
    inputs: &[(Slot, Vec<usize>)],
    (out, dims): (Slot, &[usize]),
    f: impl for<'k> Fn(&[Val<'k>]) -> Result<Val<'k>, Why>,
) -> Result<KernelPlan, Why> {
    if out.elements == 0 {
        return Ok(plan);
    }
    let bench = TensorKernelBuilder::new("elementwise", LOCAL);
    let input_shapes: Vec<&[usize]> = inputs.iter().map(|i| i.1.as_slice()).collect();
    let index_space = Space::broadcasting(dims, &input_shapes);
    let input_tensors = inputs
        .iter()
        .map(|i| bench.reads(i.0))
        .collect::<Result<Vec<_>, Why>>()?;
    let y = bench.writes(out)?;
    let elements_per_firing = bench.size(out.elements as usize)?;

    // Tokens that are laid out like the result need no index arithmetic of their own.
    let is_aligned: Vec<bool> = (0..inputs.len())
        .map(|i| index_space.is_dense(i) && !inputs[i].0.constant)
        .collect();
    let tensor_places = if is_aligned.iter().all(|a| *a) {
        None
    } else {
        Some(index_space.on(&bench)?)
    };
    let k = &bench.k;
    let mut first_error = None;

    k.each(k.firings() * elements_per_firing, |i| {
        let (firing_index, input_places) = match &tensor_places {
            None => (i, Vec::new()),
            Some(tensor_places) => (
                i / elements_per_firing,
                tensor_places.at(i % elements_per_firing),
            ),
        };
        let loaded_values: Vec<Val<'_>> = input_tensors
            .iter()
            .enumerate()
            .map(|(n, t)| {
                if is_aligned[n] {
                    t.load(i)
                } else {
                    t.get(firing_index, input_places[n])
                }
            })
            .collect();

        match f(&loaded_values) {
            Ok(value) => y.store(i, value),
            Err(why) => first_error = Some(why),
        }
    });

    match first_error {
        Some(why) => Err(why),
        None => Ok(bench.finish(plan, Grid::Threads(Amount::each(out.elements)))),
    }
}
