//! What only prepares operands for products of matrices: attention turns queries, keys and values so that each head is a matrix, and
//! the result back, and repeats keys and values for the queries that share them. A sum in Einstein's notation names the dimensions in
//! the order in which they are, and nothing is moved or repeated.

use zbmd_backends::TensorOp;
use zbmd_ir::{DType, Params, TokenType, Value};

use super::graph::{Graph, Origin, Uses, ValueId};
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

/// Lets products of two tensors read what is repeated for them alone; returns how many repetitions are gone.
pub(super) fn absorb_repeats(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for product in live_nodes(graph, &["Einsum", "MatMul"]) {
        while absorb_repeat(graph, product).is_some() {
            changes += 1;
        }
    }
    changes
}

/// The dimensions of a tensor, each by its letter.
type Labels = Vec<char>;

/// A product of two tensors.
struct Product {
    operands: [(ValueId, Labels); 2],
    out: Labels,
}

impl Product {
    /// What a node computes, if it is a product of two tensors that are both computed.
    fn of(graph: &Graph, node: usize) -> Option<Self> {
        let operands = [input(graph, node, 0)?, input(graph, node, 1)?];
        // A constant matrix is packed once; one of a sum would be in each firing.
        let has_constant = operands
            .iter()
            .any(|operand| graph.data(*operand).is_some());
        let result_type = &graph.values[output(graph, node)].ty;
        let has_third = graph.nodes[node].inputs.iter().flatten().count() != 2;
        if has_constant || has_third || result_type.dtype != DType::F32 {
            return None;
        }

        let [left, right] = operands;
        let (terms, out) = match graph.nodes[node].op.operator {
            "MatMul" => matrix_labels(graph, node)?,
            _ => equation_labels(graph, node)?,
        };
        let [left_labels, right_labels] = terms;
        Some(Self {
            operands: [(left, left_labels), (right, right_labels)],
            out,
        })
    }

    /// Makes a node the sum in Einstein's notation that computes this.
    fn write(self, graph: &mut Graph, node: usize) -> Option<()> {
        let text = |labels: &Labels| -> String { labels.iter().collect() };
        let [(left, left_labels), (right, right_labels)] = self.operands;
        let equation = format!(
            "{},{}->{}",
            text(&left_labels),
            text(&right_labels),
            text(&self.out)
        );
        let node = &mut graph.nodes[node];
        node.op = TensorOp::find("Einsum")?;
        node.params = Params::from([("equation".to_owned(), Value::Str(equation))]);
        node.inputs = vec![Some(left), Some(right)];
        Some(())
    }
}

/// The dimensions of a plain product of tensors of one rank: pairs of matrices in alphabetical order, then rows, columns, and what is
/// summed over.
fn matrix_labels(graph: &Graph, node: usize) -> Option<([Labels; 2], Labels)> {
    let rank_of = |id: ValueId| graph.values[id].ty.shape.len();
    let rank = rank_of(output(graph, node));
    let has_one_rank = graph.nodes[node]
        .inputs
        .iter()
        .flatten()
        .all(|operand| rank_of(*operand) == rank);
    if !has_one_rank || !graph.nodes[node].params.is_empty() {
        return None;
    }

    let names: Labels = ('a'..='z').take(rank + 1).collect();
    let (pairs, matrix) = names.split_at(rank.checked_sub(2)?);
    let &[row, column, depth] = matrix else {
        return None;
    };
    let of_pairs = |last: [char; 2]| -> Labels { [pairs, &last].concat() };
    let terms = [of_pairs([row, depth]), of_pairs([depth, column])];
    Some((terms, of_pairs([row, column])))
}

/// The dimensions of a sum in Einstein's notation that names all of them.
fn equation_labels(graph: &Graph, node: usize) -> Option<([Labels; 2], Labels)> {
    let Value::Str(equation) = graph.nodes[node].params.get("equation")? else {
        return None;
    };
    let (terms, out) = equation.split_once("->")?;
    let (left, right) = terms.split_once(',')?;
    let labels_of = |term: &str| -> Option<Labels> {
        let labels: Labels = term.chars().filter(|c| !c.is_whitespace()).collect();
        let is_named = |(at, label): (usize, &char)| {
            label.is_ascii_lowercase() && !labels[..at].contains(label)
        };
        labels.iter().enumerate().all(is_named).then_some(labels)
    };
    Some(([labels_of(left)?, labels_of(right)?], labels_of(out)?))
}

fn absorb(graph: &mut Graph, node: usize) -> Option<usize> {
    let Product { operands, mut out } = Product::of(graph, node)?;
    let result = output(graph, node);
    let &[.., row, column] = out.as_slice() else {
        return None;
    };

    let uses = graph.uses();
    let mut absorbed = 0;
    let operands = operands.map(|(operand, labels)| {
        let turned = turned_operand(graph, operand, &labels, &uses);
        absorbed += usize::from(turned.is_some());
        turned.unwrap_or((operand, labels))
    });

    let turned_result = turned_result(graph, result, [row, column], &out, &uses);
    let is_row_of_matrix = graph.values[result].ty.shape.last()? > &1;
    // Kernels write rows of the result: without its transposition these are rows of the product.
    if turned_result.is_none() && (absorbed == 0 || !is_row_of_matrix) {
        return None;
    }

    if let Some((reader, turned)) = turned_result {
        out = turned;
        take_over(graph, node, reader);
        absorbed += 1;
    }
    Product { operands, out }.write(graph, node)?;
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

/// A dimension of an operand that is partly a repetition, in three: what is outside of the repetitions, these, and what is repeated.
struct SplitDimension {
    label: char,
    /// Each part's size and label, where it is longer than one.
    parts: [Option<(u32, char)>; 3],
}

impl SplitDimension {
    /// The parts that are there, without the repetitions where these are in no memory.
    fn parts(&self, with_repeats: bool) -> impl Iterator<Item = (u32, char)> + Clone {
        let places = self.parts.iter().enumerate();
        places.filter_map(move |(place, part)| part.filter(|_| with_repeats || place != 1))
    }

    /// A shape and its labels with the parts in place of the dimension, if they have it.
    fn split(
        &self,
        shape: &[u32],
        labels: &Labels,
        with_repeats: bool,
    ) -> Option<(Vec<u32>, Labels)> {
        let at = labels.iter().position(|label| *label == self.label)?;
        // A dimension of one element would be repeated by the product.
        if shape[at] != self.parts(true).map(|(size, _)| size).product::<u32>() {
            return None;
        }
        let (sizes, names): (Vec<u32>, Labels) = self.parts(with_repeats).unzip();
        let (mut shape, mut labels) = (shape.to_vec(), labels.clone());
        shape.splice(at..=at, sizes);
        labels.splice(at..=at, names);
        Some((shape, labels))
    }
}

/// Lets a product read one of its operands before it is repeated: the repetitions are a dimension of the other operand and of the
/// result alone.
fn absorb_repeat(graph: &mut Graph, node: usize) -> Option<()> {
    let Product { operands, out } = Product::of(graph, node)?;
    let uses = graph.uses();
    let (side, once, split) = [1, 0].into_iter().find_map(|side| {
        let (operand, labels) = &operands[side];
        let names = [labels, &operands[1 - side].1, &out];
        let (once, split) = repeated_operand(graph, *operand, labels, &names, &uses)?;
        Some((side, once, split))
    })?;

    let shape_of = |id: ValueId| graph.values[id].ty.shape.to_vec();
    let result = output(graph, node);
    // Kernels write rows of the result.
    if shape_of(result).last()? == &1 {
        return None;
    }
    // Sums go over what both operands have, so the result has what is repeated.
    let (other, other_labels) = &operands[1 - side];
    let (other_shape, other_labels) = split.split(&shape_of(*other), other_labels, true)?;
    let (out_shape, out) = split.split(&shape_of(result), &out, true)?;
    let (operand, labels) = &operands[side];
    let (once_shape, once_labels) = split.split(&shape_of(*operand), labels, false)?;

    let once = view(graph, once, &once_shape);
    let other = view(graph, *other, &other_shape);
    let mut operands = [(once, once_labels), (other, other_labels)];
    if side == 1 {
        operands.reverse();
    }
    // Whoever reads the result sees it in its old shape.
    let position = graph.nodes[node].outputs[0].0;
    let name = graph.values[result].name.clone();
    let ty = TokenType::new(DType::F32, out_shape);
    let written = graph.value(&name, ty, Origin::Node(node, position));
    graph.values[result].origin = Origin::View(written);
    graph.nodes[node].outputs = vec![(position, written)];
    Product { operands, out }.write(graph, node)
}

/// The same elements in another shape.
fn view(graph: &mut Graph, of: ValueId, shape: &[u32]) -> ValueId {
    let value = &graph.values[of];
    let ty = TokenType::new(value.ty.dtype, shape);
    let name = value.name.clone();
    graph.value(&name, ty, Origin::View(of))
}

/// What an operand is a repetition of, if nobody else reads the operand, and its dimension along which it is repeated. `names` are the
/// labels that are taken.
fn repeated_operand(
    graph: &Graph,
    operand: ValueId,
    labels: &Labels,
    names: &[&Labels],
    uses: &Uses,
) -> Option<(ValueId, SplitDimension)> {
    let shape = &graph.values[operand].ty.shape;
    let root = graph.root(operand);
    let repetition = sole_producer(graph, root, &["Expand", "Tile"], uses)?;
    let once = input(graph, repetition, 0)?;
    let is_computed = graph.data(once).is_none();
    if uses.of(operand) != 1 || !is_computed || graph.values[once].ty.dtype != DType::F32 {
        return None;
    }

    // The one dimension that is repeated, of a single element before.
    let repeated_shape = &graph.values[root].ty.shape;
    let once_shape = &graph.values[once].ty.shape;
    let added_rank = repeated_shape.len().checked_sub(once_shape.len())?;
    let once_size = |at: usize| at.checked_sub(added_rank).map_or(1, |at| once_shape[at]);
    let mut longer = (0..repeated_shape.len()).filter(|&at| once_size(at) != repeated_shape[at]);
    let repeated = longer.next()?;
    if longer.next().is_some() || once_size(repeated) != 1 {
        return None;
    }

    // The dimension of the operand that it is in: as much lies before that as before the repetitions.
    let before = |shape: &[u32], end: usize| shape[..end].iter().product::<u32>();
    let (outer, repeats) = (before(repeated_shape, repeated), repeated_shape[repeated]);
    let at = (0..shape.len()).find(|&at| before(shape, at + 1) >= outer * repeats)?;
    let (outside, inside) = (before(shape, at), before(shape, at + 1));
    if !outer.is_multiple_of(outside) || !inside.is_multiple_of(outer * repeats) {
        return None;
    }

    let is_taken = |letter: &char| names.iter().any(|labels| labels.contains(letter));
    let mut free = ('a'..='z').filter(|letter| !is_taken(letter));
    let sizes = [outer / outside, repeats, inside / (outer * repeats)];
    let parts = sizes.map(|size| {
        free.next()
            .filter(|_| size > 1)
            .map(|letter| (size, letter))
    });
    let split = SplitDimension {
        label: labels[at],
        parts,
    };
    Some((once, split))
}
