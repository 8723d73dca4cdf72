//! Ops on elements one by one, their operands broadcast to one shape.

use super::space::Space;
use super::{Bench, Slot, Why};
use crate::kernels::lang::Val;
use crate::kernels::plan::{Amount, Grid, KernelPlan};

/// Threads of a group.
const LOCAL: u32 = 64;

/// y = f(x0, x1, …) for every element of `dims`; operands with their own shapes.
pub(crate) fn map(
    plan: KernelPlan,
    inputs: &[(Slot, Vec<usize>)],
    (out, dims): (Slot, &[usize]),
    f: impl for<'k> Fn(&[Val<'k>]) -> Result<Val<'k>, Why>,
) -> Result<KernelPlan, Why> {
    if out.elements == 0 {
        return Ok(plan);
    }
    let bench = Bench::new("elementwise", LOCAL);
    let shapes: Vec<&[usize]> = inputs.iter().map(|i| i.1.as_slice()).collect();
    let space = Space::broadcasting(dims, &shapes);
    let tensors = inputs
        .iter()
        .map(|i| bench.reads(i.0))
        .collect::<Result<Vec<_>, Why>>()?;
    let y = bench.writes(out)?;
    let each = bench.size(out.elements as usize)?;
    // Tokens that lie like the result need no place of their own.
    let along: Vec<bool> = (0..inputs.len())
        .map(|i| space.is_dense(i) && !inputs[i].0.constant)
        .collect();
    let places = if along.iter().all(|a| *a) {
        None
    } else {
        Some(space.on(&bench)?)
    };
    let k = &bench.k;
    let mut wrong = None;
    k.each(k.firings() * each, |i| {
        let (firing, at) = match &places {
            None => (i, Vec::new()),
            Some(places) => (i / each, places.at(i % each)),
        };
        let loaded: Vec<Val<'_>> = tensors
            .iter()
            .enumerate()
            .map(|(n, t)| {
                if along[n] {
                    t.load(i)
                } else {
                    t.get(firing, at[n])
                }
            })
            .collect();
        match f(&loaded) {
            Ok(value) => y.store(i, value),
            Err(why) => wrong = Some(why),
        }
    });
    match wrong {
        Some(why) => Err(why),
        None => Ok(bench.finish(plan, Grid::Threads(Amount::each(out.elements)))),
    }
}
