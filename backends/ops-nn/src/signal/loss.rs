//! Losses.

use zbmd_ir::DType;

use super::super::attributes;
use super::super::cx::{
    Cx, FLOATS, FloatBody, Plan, Planned, Tensors, computed, expect_count, index_at, token, volume,
};
use super::super::index::AxisView;
use super::super::num::Float;
use zbmd_op::OpError;

/// How losses are taken together.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Reduction {
    None,
    Sum,
    Mean,
}

/// The loss of scores, or of logarithms of probabilities.
pub(crate) struct LossSpec {
    pub(crate) of_scores: bool,
    pub(crate) reduction: Reduction,
    /// The class that has no loss.
    pub(crate) ignored_class: Option<i64>,
}

/// The class that has no loss.
const IGNORED_CLASS: &str = "ignore_index";

impl LossSpec {
    pub(crate) fn of(cx: &Cx<'_>, of_scores: bool) -> Result<Self, OpError> {
        let reduction = match attributes::reduction(cx)?.unwrap_or("mean") {
            "none" => Reduction::None,
            "sum" => Reduction::Sum,
            "mean" => Reduction::Mean,
            other => {
                let known_words = ["none", "sum", "mean"];
                return Err(attributes::refuse_reduction(cx, other, &known_words));
            }
        };
        let ignored_class = match cx.args.get(IGNORED_CLASS) {
            Some(_) => Some(cx.args.int_or(IGNORED_CLASS, 0)?),
            None => None,
        };
        Ok(Self {
            of_scores,
            reduction,
            ignored_class,
        })
    }
}

/// Negative log-likelihood of targets, of logarithms of probabilities or of scores. Operands: these, the targets,
/// weights of the classes. Outputs: the loss, the logarithms of the probabilities.
pub(crate) fn loss(cx: &Cx<'_>, spec: &LossSpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let dims = cx.dims(0)?;
    if dims.len() < 2 || cx.dims(1)? != [&dims[..1], &dims[2..]].concat() {
        return Err(cx.refuse_type(1, format!("`x` is {}", cx.operand(0)?.ty)));
    }
    expect_count(cx, 2, &[dims[1]], dtype)?;

    let loss_dims = match spec.reduction {
        Reduction::None => cx.dims(1)?,
        Reduction::Sum | Reduction::Mean => Vec::new(),
    };
    let wanted = cx.wanted.iter();
    let outs = wanted
        .map(|&output| token(dtype, if output == 0 { &loss_dims } else { &dims }))
        .collect();
    let body = Loss {
        view: AxisView::of(&dims, 1),
        target_dtype: computed(cx.dtype(1)?),
        ignored_class: spec.ignored_class,
        reduction: spec.reduction,
        of_scores: spec.of_scores,
        wants: [cx.wants(0), cx.wants(1)],
    };
    Ok(Plan::float(dtype, outs, body).flops(20.0 * volume(&dims) as f64))
}

struct Loss {
    /// Classes are along the axis; each line of them has one target.
    view: AxisView,
    target_dtype: DType,
    ignored_class: Option<i64>,
    reduction: Reduction,
    of_scores: bool,
    wants: [bool; 2],
}

impl Loss {
    /// The logarithm of the sum of exponentials of a line: what turns its scores into logarithms of probabilities.
    fn log_sum<F: Float>(&self, input: &[F], outer: usize, inner: usize) -> f64 {
        let score = |k: usize| input[self.view.at(outer, k, inner)].f64();
        let classes = 0..self.view.length;
        let max = classes.clone().map(score).fold(f64::NEG_INFINITY, f64::max);
        let sum = classes.map(|k| (score(k) - max).exp()).sum::<f64>();
        sum.ln() + max
    }

    /// The class that a line is about; none if it is ignored or does not exist.
    fn class(&self, targets: &[u8], line: usize) -> Option<usize> {
        let class = index_at(targets, self.target_dtype, line);
        let is_ignored = self.ignored_class == Some(class);
        let place = usize::try_from(class).ok();
        place.filter(|k| *k < self.view.length && !is_ignored)
    }
}

impl FloatBody for Loss {
    fn run<F: Float>(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<F>(0);
        let targets = tensors.bytes(1);
        let class_weights = tensors.opt::<F>(2);
        let [losses, log_probabilities] = tensors.outs_if::<F, 2>(self.wants);

        let view = self.view;
        // Both sums are in f64, over as many targets as there are.
        let mut loss_sum = 0.0;
        let mut weight_sum = 0.0;
        for outer in 0..view.outer {
            for inner in 0..view.inner {
                let mut log_sum = 0.0;
                if self.of_scores {
                    log_sum = self.log_sum(input, outer, inner);
                    for k in 0..view.length {
                        let place = view.at(outer, k, inner);
                        if let Some(logarithm) = log_probabilities.get_mut(place) {
                            *logarithm = F::of(input[place].f64() - log_sum);
                        }
                    }
                }

                let line = outer * view.inner + inner;
                let mut weight = 0.0;
                let mut loss = 0.0;
                if let Some(class) = self.class(targets, line) {
                    // ln p = s − ln Σ exp(s) of scores; logarithms stay, as their `log_sum` is 0.
                    let logarithm = input[view.at(outer, class, inner)].f64() - log_sum;
                    weight = class_weights.map_or(1.0, |w| w[class].f64());
                    loss = -weight * logarithm;
                }
                loss_sum += loss;
                weight_sum += weight;
                if self.reduction == Reduction::None
                    && let Some(result) = losses.get_mut(line)
                {
                    *result = F::of(loss);
                }
            }
        }

        match self.reduction {
            Reduction::None => {}
            Reduction::Sum => losses.fill(F::of(loss_sum)),
            // The mean is by the weights of the classes that were met, not by the number of targets.
            Reduction::Mean => losses.fill(F::of(loss_sum / weight_sum)),
        }
    }
}
