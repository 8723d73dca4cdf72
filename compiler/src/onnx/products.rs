//! Transpositions around products of matrices: attention turns queries, keys and values so that each head is a matrix, and the result
//! back. A sum in Einstein's notation names the dimensions in the order in which they are, and nothing is moved.

use zbmd_backends::TensorOp;
use zbmd_ir::{DType, Params, Value};

use super::graph::{Graph, Uses, ValueId};
use super::passes::{
    input, live_nodes, only_reader, output, permutation_of, sole_producer, take_over,
};

/// Puts transpositions that only a product of matrices reads, and one of its result, into the product; returns those that are gone.
pub(super) fn absorb_transposes(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for product in live_nodes(graph, &["MatMul"]) {
        changes += absorb(graph, product).unwrap_or(0);
    }
    changes
}

/// The dimensions of a tensor, each by its letter.
type Labels = Vec<char>;

fn absorb(graph: &mut Graph, product: usize) -> Option<usize> {
    let node = &graph.nodes[product];
    let operands = [input(graph, product, 0)?, input(graph, product, 1)?];
    let is_plain = node.params.is_empty() && node.inputs.iter().flatten().count() == 2;
    // A constant matrix is packed once; one of a sum would be in each firing.
    let has_constant = operands
        .iter()
        .any(|operand| graph.data(*operand).is_some());
    let result = output(graph, product);
    let rank = graph.values[result].ty.shape.len();
    let has_one_rank = operands
        .iter()
        .all(|operand| graph.values[*operand].ty.shape.len() == rank);
    if !is_plain || has_constant || !has_one_rank || graph.values[result].ty.dtype != DType::F32 {
        return None;
    }

    // Pairs of matrices in alphabetical order, then rows, columns, and what is summed over.
    let names: Labels = ('a'..='z').take(rank + 1).collect();
    let (pairs, matrix) = names.split_at(rank.checked_sub(2)?);
    let &[row, column, depth] = matrix else {
        return None;
    };
    let of_pairs = |last: [char; 2]| -> Labels { [pairs, &last].concat() };
    let terms = [of_pairs([row, depth]), of_pairs([depth, column])];
    let mut out = of_pairs([row, column]);

    let uses = graph.uses();
    let mut absorbed = 0;
    let mut written = Vec::new();
    for (operand, term) in operands.into_iter().zip(terms) {
        let turned = turned_operand(graph, operand, &term, &uses);
        absorbed += usize::from(turned.is_some());
        written.push(turned.unwrap_or((operand, term)));
    }

    let turned_result = turned_result(graph, result, [row, column], &out, &uses);
    let is_row_of_matrix = graph.values[result].ty.shape.last()? > &1;
    // Kernels write rows of the result: without its transposition these are rows of the product.
    if turned_result.is_none() && (absorbed == 0 || !is_row_of_matrix) {
        return None;
    }

    let op = TensorOp::find("Einsum")?;
    let [(left, left_term), (right, right_term)] = written.try_into().ok()?;
    if let Some((reader, turned)) = turned_result {
        out = turned;
        take_over(graph, product, reader);
        absorbed += 1;
    }
    let text = |labels: &Labels| -> String { labels.iter().collect() };
    let equation = format!("{},{}->{}", text(&left_term), text(&right_term), text(&out));
    let node = &mut graph.nodes[product];
    node.op = op;
    node.params = Params::from([("equation".to_owned(), Value::Str(equation))]);
    node.inputs = vec![Some(left), Some(right)];
    Some(absorbed)
}

/// What an operand is a transposition of, and the dimensions of that, if nobody else reads the operand.
fn turned_operand(
    graph: &Graph,
    operand: ValueId,
    term: &Labels,
    uses: &Uses,
) -> Option<(ValueId, Labels)> {
    let transposition = sole_producer(graph, operand, &["Transpose"], uses)?;
    let permutation = permutation_of(&graph.nodes[transposition], term.len())?;
    let mut turned = term.clone();
    for (at, from) in permutation.into_iter().enumerate() {
        turned[from] = term[at];
    }
    Some((input(graph, transposition, 0)?, turned))
}

/// The node that alone reads a product, where that is a transposition after which rows of the result are rows or columns of the product,
/// and the dimensions of the result.
fn turned_result(
    graph: &Graph,
    result: ValueId,
    matrix: [char; 2],
    labels: &Labels,
    uses: &Uses,
) -> Option<(usize, Labels)> {
    let reader = only_reader(graph, result, "Transpose", uses)?;
    let permutation = permutation_of(&graph.nodes[reader], labels.len())?;
    let turned: Labels = permutation.iter().map(|&at| labels[at]).collect();

    let is_long = graph.values[output(graph, reader)].ty.shape.last()? > &1;
    (is_long && matrix.contains(turned.last()?)).then_some((reader, turned))
}
