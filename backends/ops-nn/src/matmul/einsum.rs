//! Sums of products in Einstein's notation.

use std::collections::BTreeMap;
use std::ops::Range;

use zbmd_ir::TokenType;

use super::super::cx::{Cx, Plan, Planned, Tensors, by_num, token, volume};
use super::super::index::strides;
use super::super::num::Num;
use super::contraction::{Contraction, Label};
use super::is_packed_type;
use zbmd_op::OpError;

/// What stands for any number of dimensions in an equation.
const ELLIPSIS: &str = "...";

/// A sum in Einstein's notation.
pub(in super::super) struct EinsumSpec {
    /// The labels of the dimensions of each operand; those of an ellipsis are digits.
    pub(in super::super) terms: Vec<Vec<char>>,
    /// The labels of the dimensions of the result.
    pub(in super::super) out: Vec<char>,
    pub(in super::super) sizes: BTreeMap<char, usize>,
    /// Whether the labels are as the equation has them, the result's among them.
    pub(in super::super) is_explicit: bool,
}

impl EinsumSpec {
    pub(in super::super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        // Spaces mean nothing in an equation.
        let written = cx.args.word("equation")?.chars();
        let equation: String = written.filter(|c| !c.is_whitespace()).collect();
        let (left_side, result) = match equation.split_once("->") {
            Some((left_side, result)) => (left_side, Some(result)),
            None => (equation.as_str(), None),
        };
        let written_terms: Vec<&str> = left_side.split(',').collect();
        if written_terms.len() != cx.ins.len() {
            let term_count = written_terms.len();
            let message = format!("has {term_count} terms for {} inputs", cx.ins.len());
            return Err(refuse_equation(cx, message));
        }

        let mut terms: Vec<Vec<char>> = Vec::new();
        let mut max_dots = 0_usize;
        for (i, term) in written_terms.iter().enumerate() {
            let rank = cx.dims(i)?.len();
            let dots = ellipsis_rank(term, rank).ok_or_else(|| {
                let message = format!("`{term}` does not name the {rank} dimensions of input {i}");
                refuse_equation(cx, message)
            })?;
            // Ellipses of different ranks broadcast: the longest one says how many dimensions the result gets.
            max_dots = max_dots.max(dots);
            terms.push(
                term.replace(ELLIPSIS, &ellipsis_labels(dots))
                    .chars()
                    .collect(),
            );
        }

        let sizes = label_sizes(cx, &terms)?;
        let ellipsis = ellipsis_labels(max_dots);
        let out: Vec<char> = match result {
            Some(result) => result.replace(ELLIPSIS, &ellipsis).chars().collect(),
            None => implied_result(&terms, &sizes, &ellipsis),
        };
        if let Some(label) = out.iter().find(|label| !sizes.contains_key(label)) {
            return Err(refuse_equation(cx, format!("`{label}` is in no term")));
        }
        Ok(Self {
            terms,
            out,
            sizes,
            is_explicit: equation.contains("->") && !equation.contains('.'),
        })
    }
}

fn refuse_equation(cx: &Cx<'_>, message: String) -> OpError {
    let help = "such as `bij,bjk->bik`";
    cx.args.error("equation", message, help)
}

/// How many dimensions the ellipsis of a term stands for; 0 without one. None where the labels do not fit the rank.
fn ellipsis_rank(term: &str, rank: usize) -> Option<usize> {
    let named = term.replace(ELLIPSIS, "").chars().count();
    match term.contains(ELLIPSIS) {
        true => rank.checked_sub(named),
        false => (rank == named).then_some(0),
    }
}

/// Labels for the dimensions of an ellipsis: digits, counted from the last, so that terms of different ranks broadcast.
fn ellipsis_labels(dots: usize) -> String {
    let from_first = (0..dots).rev();
    from_first
        .filter_map(|place| char::from_digit(place as u32, 10))
        .collect()
}

/// The size of each label: a dimension of 1 is repeated to what others have.
fn label_sizes(cx: &Cx<'_>, terms: &[Vec<char>]) -> Result<BTreeMap<char, usize>, OpError> {
    let mut sizes: BTreeMap<char, usize> = BTreeMap::new();
    for (i, term) in terms.iter().enumerate() {
        for (&label, dim) in term.iter().zip(cx.dims(i)?) {
            let known_size = sizes.entry(label).or_insert(dim);
            if *known_size == 1 {
                *known_size = dim;
            } else if dim != *known_size && dim != 1 {
                let message = format!("`{label}` is {known_size} and {dim} long");
                return Err(refuse_equation(cx, message));
            }
        }
    }
    Ok(sizes)
}

/// The result of an equation without an arrow: the ellipsis, then what occurs once, in alphabetical order.
fn implied_result(terms: &[Vec<char>], sizes: &BTreeMap<char, usize>, ellipsis: &str) -> Vec<char> {
    let all_labels: String = terms.iter().flatten().collect();
    let once = sizes
        .keys()
        .copied()
        .filter(|c| c.is_alphabetic() && all_labels.matches(*c).count() == 1);
    ellipsis.chars().chain(once).collect()
}

/// Einstein's sum of one or more operands: as products of matrices where it is some, else by its definition.
pub(in super::super) fn einsum(cx: &Cx<'_>, spec: &EinsumSpec) -> Planned {
    let dtype = cx.dtype(0)?;
    let sizes = &spec.sizes;
    let summed_labels = sizes.keys().copied().filter(|c| !spec.out.contains(c));
    // Labels of the result come first, so that the elements of each sum are consecutive numbers.
    let labels: Vec<char> = spec.out.iter().copied().chain(summed_labels).collect();
    let out_dims: Vec<usize> = spec.out.iter().map(|c| sizes[c]).collect();
    let all_dims: Vec<usize> = labels.iter().map(|c| sizes[c]).collect();

    let mut operand_steps = Vec::new();
    for (i, term) in spec.terms.iter().enumerate() {
        operand_steps.push(label_steps(&labels, term, &cx.dims(i)?));
    }
    let outs = vec![token(dtype, &out_dims)];
    let products = volume(&all_dims) as f64;
    let is_of_floats =
        is_packed_type(dtype) && (0..spec.terms.len()).all(|i| cx.dtype(i) == Ok(dtype));
    if is_of_floats && let Some(contraction) = contraction(spec, &all_dims, &operand_steps) {
        return Ok(Plan::new(outs, contraction).products(2.0 * products));
    }

    let out_elements = volume(&out_dims);
    let plan = by_num!(
        dtype,
        einsum_plan(outs, out_elements, all_dims, operand_steps)
    )?;
    Ok(plan.flops(20.0 * products))
}

/// The sum as products of matrices, if it is some. `dims` are the sizes of all labels, those of the result first.
fn contraction(
    spec: &EinsumSpec,
    dims: &[usize],
    operand_steps: &[Vec<usize>],
) -> Option<Contraction> {
    let [left_steps, right_steps] = operand_steps else {
        return None;
    };
    let is_diagonal = |term: &Vec<char>| (1..term.len()).any(|at| term[..at].contains(&term[at]));
    if dims.contains(&0) || spec.terms.iter().any(is_diagonal) {
        return None;
    }

    // Along a dimension of one element nobody goes anywhere.
    let labels_of = |places: Range<usize>| -> Vec<Label> {
        let long = places.filter(|&at| dims[at] > 1);
        long.map(|at| Label {
            size: dims[at],
            steps: [left_steps[at], right_steps[at]],
        })
        .collect()
    };
    let result_rank = spec.out.len();
    Contraction::of(
        &labels_of(0..result_rank),
        &labels_of(result_rank..dims.len()),
    )
}

/// How far an operand goes for each label. A label that it names twice is its diagonal: the strides add up.
fn label_steps(labels: &[char], term: &[char], dims: &[usize]) -> Vec<usize> {
    let own_strides = strides(dims);
    let step = |label: &char| {
        let own_dims = (0..term.len()).filter(|&d| term[d] == *label);
        own_dims
            .map(|d| if dims[d] == 1 { 0 } else { own_strides[d] })
            .sum()
    };
    labels.iter().map(step).collect()
}

fn einsum_plan<T: Num>(
    outs: Vec<TokenType>,
    out_elements: usize,
    dims: Vec<usize>,
    operand_steps: Vec<Vec<usize>>,
) -> Planned {
    let summed_elements = volume(&dims) / out_elements.max(1);
    let dim_strides = strides(&dims);
    Ok(Plan::new(outs, move |t: &mut Tensors<'_>| {
        for (o, result) in t.out::<T>(0).iter_mut().enumerate() {
            *result = T::ZERO;
            for summed in 0..summed_elements {
                let mut product = T::ONE;
                for (i, steps) in operand_steps.iter().enumerate() {
                    // The element's coordinates over all labels, one after the other, times the operand's steps.
                    let mut rest = o * summed_elements + summed;
                    let mut place = 0;
                    for (stride, step) in dim_strides.iter().zip(steps) {
                        place += rest / stride * step;
                        rest %= stride;
                    }
                    product = product.mul(t.get::<T>(i)[place]);
                }
                *result = result.add(product);
            }
        }
    }))
}
