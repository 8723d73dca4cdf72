//! Attention divides its scores by the root of the size of a head, often a power of two: queries that were scaled before give
//! the same scores.

use super::graph::{Graph, Origin, Uses, ValueId};
use super::passes::{
    PRODUCT_BIAS, f32_constant, f32_elements, f32_scalar, input, live_nodes, output, set_input,
    sole_producer, take_over,
};

/// Position of the constant weights of a product.
const WEIGHTS: usize = 1;

/// Puts factors of products of two tensors, if they are powers of two, into the constant weights that one of the tensors comes
/// from; returns the nodes that are gone. Every number is scaled exactly, so results stay the same bits unless one of them
/// leaves the normal numbers.
pub(super) fn merge_factors(graph: &mut Graph) -> usize {
    let mut changes = 0;
    for node in live_nodes(graph, &["Mul", "Div"]) {
        let uses = graph.uses();
        changes += usize::from(merge(graph, node, &uses).is_some());
    }
    changes
}

fn merge(graph: &mut Graph, node: usize, uses: &Uses) -> Option<()> {
    let (scaled, factor) = scaled_value(graph, node)?;
    let product = sole_producer(graph, scaled, &["MatMul"], uses)?;
    let is_same_type = graph.values[output(graph, node)].ty == graph.values[scaled].ty;
    if !is_same_type || input(graph, product, PRODUCT_BIAS).is_some() {
        return None;
    }

    let sides = [0, 1].into_iter();
    let source = sides.filter_map(|side| weighted_source(graph, product, side, uses));
    let (source, constants) = source
        .filter_map(|source| Some((source, scaled_constants(graph, source, factor)?)))
        .next()?;
    // The old constants stay for other nodes that may share them.
    for (position, elements) in constants {
        let old = &graph.values[input(graph, source, position)?];
        let (name, shape) = (old.name.clone(), old.ty.shape.to_vec());
        let constant = f32_constant(graph, &name, &shape, &elements);
        set_input(&mut graph.nodes[source], position, constant);
    }
    take_over(graph, product, node);
    Some(())
}

/// What a node multiplies or divides by a power of two, and the factor.
fn scaled_value(graph: &Graph, node: usize) -> Option<(ValueId, f32)> {
    let [left, right] = [0, 1].map(|position| input(graph, node, position));
    let (left, right) = (left?, right?);
    let (value, factor) = if graph.nodes[node].op.operator == "Div" {
        (left, 1.0 / f32_scalar(graph, right)?)
    } else {
        match f32_scalar(graph, right) {
            Some(factor) => (left, factor),
            None => (right, f32_scalar(graph, left)?),
        }
    };
    let has_only_an_exponent = factor.is_normal() && factor.to_bits() << 9 == 0;
    has_only_an_exponent.then_some((value, factor))
}

/// The product with constant weights from which alone an operand of another product comes, in whatever order of elements.
fn weighted_source(graph: &Graph, product: usize, side: usize, uses: &Uses) -> Option<usize> {
    let mut value = input(graph, product, side)?;
    loop {
        if let Origin::View(shown) = graph.values[value].origin {
            // One reader of the view, which may itself be one of several.
            if uses.of(value) != 1 {
                return None;
            }
            value = shown;
            continue;
        }
        let source = sole_producer(graph, value, &["Transpose", "MatMul"], uses)?;
        if graph.nodes[source].op.operator == "MatMul" {
            return Some(source);
        }
        value = input(graph, source, 0)?;
    }
}

/// The weights and the bias of a product times a factor, with their positions, if they are constants and all of them are
/// scaled exactly.
fn scaled_constants(graph: &Graph, source: usize, factor: f32) -> Option<Vec<(usize, Vec<f32>)>> {
    let mut positions = vec![WEIGHTS];
    positions.extend(input(graph, source, PRODUCT_BIAS).map(|_| PRODUCT_BIAS));
    let scaled = positions.into_iter().map(|position| {
        let mut elements = f32_elements(graph, input(graph, source, position)?)?;
        for element in &mut elements {
            let scaled = *element * factor;
            if scaled / factor != *element {
                return None;
            }
            *element = scaled;
        }
        Some((position, elements))
    });
    scaled.collect()
}
