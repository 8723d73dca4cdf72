//! Losses: scores at targets, each by itself or taken together.

use super::super::reduce::around;
use super::super::signal::{LossSpec, Reduction};
use super::{Gpu, Lowered};
use zbmd_gpu_ir::KernelPlan;
use zbmd_gpu_ir::lang::{Builder, Ty, Val};
use zbmd_gpu_ir::math::{exp, ln};
use zbmd_gpu_ir::tensor::function::greatest;
use zbmd_gpu_ir::tensor::row::{Rows, Soft, Team, softmax};
use zbmd_gpu_ir::tensor::{Tensor, computed};

/// Scores and targets bound to a kernel.
struct LossKernel<'k> {
    k: &'k Builder,
    scores: Tensor<'k>,
    targets: Tensor<'k>,
    /// Of each class.
    weights: Option<Tensor<'k>>,
    classes: Val<'k>,
    /// Scores from class to class.
    inner: Val<'k>,
    ignored_class: Option<i32>,
    /// Whether logarithms of probabilities are still to be made of the scores.
    is_of_scores: bool,
}

/// The loss of one target.
struct TargetLoss<'k> {
    /// Times its weight.
    loss: Val<'k>,
    weight: Val<'k>,
}

impl<'k> LossKernel<'k> {
    /// −weight · (score − logarithm of the sum of exponentials); 0, and of weight 0, where the target is no class that
    /// counts.
    fn at_target(&self, firing: Val<'k>, target: Val<'k>) -> TargetLoss<'k> {
        let k = self.k;
        let first_score = self.scores.base(firing)
            + (target / self.inner) * self.classes * self.inner
            + target % self.inner;
        let log_sum = k.var(k.f32(0.0));
        if self.is_of_scores {
            log_sum.set(self.log_of_exponentials(first_score));
        }

        let class = self.targets.index(firing, target);
        let is_class = k.i32(0).le(class) & class.lt(self.classes.cast(Ty::I32));
        let counts = match self.ignored_class {
            Some(ignored) => is_class & class.ne(k.i32(ignored)),
            None => is_class,
        };
        let loss = k.var(k.f32(0.0));
        let weight = k.var(k.f32(0.0));
        k.if_(counts, || {
            let class = class.cast(Ty::U32);
            let class_weight = match self.weights {
                Some(weights) => weights.get(firing, class),
                None => k.f32(1.0),
            };
            weight.set(class_weight);
            let negative_weight = -class_weight;
            let score = self.scores.load(first_score + class * self.inner);
            loss.set(negative_weight * (score - log_sum.get()));
        });
        TargetLoss {
            loss: loss.get(),
            weight: weight.get(),
        }
    }

    /// The logarithm of the sum of the exponentials of all scores of a target.
    fn log_of_exponentials(&self, first_score: Val<'k>) -> Val<'k> {
        let k = self.k;
        // Without the largest score, the exponentials would overflow.
        let largest = k.var(k.f32(f32::NEG_INFINITY));
        k.times(self.classes, |class| {
            let so_far = largest.get();
            largest.set(greatest(
                so_far,
                self.scores.load(first_score + class * self.inner),
            ));
        });

        let sum = k.var(k.f32(0.0));
        k.times(self.classes, |class| {
            let so_far = sum.get();
            let score = self.scores.load(first_score + class * self.inner);
            sum.set(so_far + exp(score - largest.get()));
        });
        ln(sum.get()) + largest.get()
    }
}

impl Gpu<'_> {
    /// Negative log-likelihood of logarithms of probabilities, or of scores.
    pub(in super::super) fn loss(&self, spec: &LossSpec) -> Lowered {
        let dims = self.dims(0)?;
        let (outer, classes, inner) = around(&dims, 1);
        let score_slot = self.slot(0)?;
        if computed(score_slot.dtype)? != Ty::F32 {
            return Err("no GPU kernel for f64 losses".to_owned());
        }

        let mut plan = KernelPlan::default();
        if let Some(logarithms) = self.wanted(1) {
            let rows = Rows::along(&dims, &[1]);
            plan = softmax(plan, &rows, (score_slot, logarithms), Soft::Log)?;
        }
        let Some(result_slot) = self.wanted(0) else {
            return Ok(plan);
        };

        let bench = Team::bench("loss");
        let k = &bench.k;
        let scores = bench.reads(score_slot)?;
        let targets = bench.reads_index(self.slot(1)?)?;
        let weights = self.bind_optional(&bench, 2)?;
        let result = bench.writes(result_slot)?;
        let ignored_class = spec.ignored_class;
        let kernel = LossKernel {
            k,
            scores,
            targets,
            weights,
            classes: bench.size(classes)?,
            inner: bench.size(inner)?,
            ignored_class: ignored_class.and_then(|class| i32::try_from(class).ok()),
            is_of_scores: spec.of_scores,
        };
        let scores_per_outer = score_slot.elements as usize / (outer * dims[1]).max(1);
        let targets_per_firing = bench.size(outer * scores_per_outer)?;
        let is_reduced = spec.reduction != Reduction::None;
        let team = Team::new(&bench, is_reduced, Ty::F32);

        // A thread for each target, or a group that adds up all of a firing.
        if !is_reduced {
            team.rows(k.firings() * targets_per_firing, |row| {
                let firing = row / targets_per_firing;
                let loss = kernel.at_target(firing, row % targets_per_firing).loss;
                result.store(row, loss);
            });
            let grid = team.grid(result_slot.elements as usize);
            return Ok(bench.finish(plan, grid));
        }

        team.rows(k.firings(), |firing| {
            let loss_sum = k.var(k.f32(0.0));
            let weight_sum = k.var(k.f32(0.0));
            team.each(targets_per_firing, |target| {
                let TargetLoss { loss, weight } = kernel.at_target(firing, target);
                loss_sum.set(loss_sum.get() + loss);
                weight_sum.set(weight_sum.get() + weight);
            });
            let loss = team.join(loss_sum.get(), |a, b| a + b);
            let weight = team.join(weight_sum.get(), |a, b| a + b);
            let reduced = match spec.reduction {
                Reduction::Mean => loss / weight,
                _ => loss,
            };
            team.lead(|| result.store(firing, reduced));
        });
        let grid = team.grid(1);
        Ok(bench.finish(plan, grid))
    }
}
