//! Losses: scores at targets, each by itself or taken together.

use super::super::reduce::around;
use super::super::signal::{LossSpec, Reduction};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::KernelPlan;
use zbmd_gpu_ir::lang::{Ty, Val};
use zbmd_gpu_ir::math::{exp, ln};
use zbmd_gpu_ir::tensor::computed;
use zbmd_gpu_ir::tensor::function::greatest;
use zbmd_gpu_ir::tensor::row::{Rows, Soft, Team, softmax};

impl Gpu<'_> {
    /// Negative log-likelihood of logarithms of probabilities, or of scores.
    pub(in super::super) fn loss(&self, spec: &LossSpec) -> Lowered {
        let scores = spec.of_scores;
        let dims = self.dims(0)?;
        let (outer, n, inner) = around(&dims, 1);
        let x = self.slot(0)?;
        if computed(x.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 losses".to_owned());
        }
        let mut plan = KernelPlan::default();
        if let Some(logs) = self.wanted(1) {
            plan = softmax(plan, &Rows::along(&dims, &[1]), (x, logs), Soft::Log)?;
        }
        let Some(y) = self.wanted(0) else {
            return Ok(plan);
        };
        let ignore = spec.ignored_class;
        let bench = Team::bench("loss");
        let k = &bench.k;
        let source = bench.reads(x)?;
        let target = bench.reads_index(self.slot(1)?)?;
        let weight = self.opt_slot(2)?.map(|s| bench.reads(s)).transpose()?;
        let to = bench.writes(y)?;
        let (n, inner) = (bench.size(n)?, bench.size(inner)?);
        let spots = bench.size(outer * (x.elements as usize / (outer * dims[1]).max(1)))?;
        let together = spec.reduction != Reduction::None;
        let team = Team::new(&bench, together, Ty::F32);
        // The loss at a spot, and its weight.
        let at = |firing: Val<'_>, spot: Val<'_>| {
            let first = source.base(firing) + (spot / inner) * n * inner + spot % inner;
            let norm = k.var(k.f32(0.0));
            if scores {
                let top = k.var(k.f32(f32::NEG_INFINITY));
                k.times(n, |c| {
                    top.set(greatest(top.get(), source.load(first + c * inner)))
                });
                let sum = k.var(k.f32(0.0));
                k.times(n, |c| {
                    sum.set(sum.get() + exp(source.load(first + c * inner) - top.get()))
                });
                norm.set(ln(sum.get()) + top.get());
            }
            let class = target.index(firing, spot);
            let valid = k.i32(0).le(class) & class.lt(n.cast(Ty::I32));
            let valid = match ignore.and_then(|i| i32::try_from(i).ok()) {
                Some(i) => valid & class.ne(k.i32(i)),
                None => valid,
            };
            let (loss, by) = (k.var(k.f32(0.0)), k.var(k.f32(0.0)));
            k.if_(valid, || {
                let c = class.cast(Ty::U32);
                let w = match weight {
                    Some(w) => w.get(firing, c),
                    None => k.f32(1.0),
                };
                by.set(w);
                loss.set(-w * (source.load(first + c * inner) - norm.get()));
            });
            [loss.get(), by.get()]
        };
        if !together {
            team.rows(k.firings() * spots, |r| {
                to.store(r, at(r / spots, r % spots)[0]);
            });
        } else {
            team.rows(k.firings(), |firing| {
                let (sum, weights) = (k.var(k.f32(0.0)), k.var(k.f32(0.0)));
                team.each(spots, |spot| {
                    let [loss, by] = at(firing, spot);
                    sum.set(sum.get() + loss);
                    weights.set(weights.get() + by);
                });
                let sum = team.join(sum.get(), |a, b| a + b);
                let weights = team.join(weights.get(), |a, b| a + b);
                let value = if spec.reduction == Reduction::Mean {
                    sum / weights
                } else {
                    sum
                };
                team.lead(|| to.store(firing, value));
            });
        }
        let rows = if together { 1 } else { y.elements as usize };
        let grid = team.grid(rows);
        Ok(bench.finish(plan, grid))
    }
}
