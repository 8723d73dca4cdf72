//! Sums in Einstein's notation that are products of matrices, one for each value of the labels that both operands and the result have.

use super::super::cx::{Body, Tensors, volume};
use super::super::gemm::{Extra, ProductSize};
use super::super::index::Walk;
use super::batches::{Batches, MatrixPairs};

/// A label with its size, and how far each operand goes for it: nothing where it does not have the label.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub(super) size: usize,
    pub(super) steps: [usize; 2],
}

/// A sum of products of two operands.
pub(super) struct Contraction {
    pairs: MatrixPairs,
    /// The operands have changed their places.
    is_swapped: bool,
}

impl Contraction {
    /// The labels of the result in their order, and those that are summed over. Nothing where the sum is no product of matrices whose
    /// rows are stretches of the result.
    pub(super) fn of(result: &[Label], summed: &[Label]) -> Option<Self> {
        let swap = |labels: &[Label]| -> Vec<Label> {
            let turned = labels.iter().map(|label| Label {
                steps: [label.steps[1], label.steps[0]],
                ..*label
            });
            turned.collect()
        };
        let as_written = matrix_pairs(result, summed).map(|pairs| Self {
            pairs,
            is_swapped: false,
        });
        as_written.or_else(|| {
            matrix_pairs(&swap(result), &swap(summed)).map(|pairs| Self {
                pairs,
                is_swapped: true,
            })
        })
    }
}

/// The longest end of some labels that both operands step along as along a single dimension, and the labels before it.
fn merged_end(labels: &[Label]) -> (&[Label], Label) {
    let Some((last, mut before)) = labels.split_last() else {
        let nothing = Label {
            size: 1,
            steps: [0; 2],
        };
        return (labels, nothing);
    };
    let mut merged = *last;
    while let Some((next, rest)) = before.split_last()
        && next.steps == merged.steps.map(|step| step * merged.size)
    {
        merged.size *= next.size;
        before = rest;
    }
    (before, merged)
}

/// Labels before the longest end of which all are wanted, and that end.
fn split_end(labels: &[Label], is_wanted: impl Fn(&Label) -> bool) -> (&[Label], &[Label]) {
    let others = labels.iter().rposition(|label| !is_wanted(label));
    labels.split_at(others.map_or(0, |last| last + 1))
}

/// The products of a left operand with a right one, whose columns come last in the result.
fn matrix_pairs(result: &[Label], summed: &[Label]) -> Option<MatrixPairs> {
    let is_left = |label: &Label| label.steps[0] != 0;
    let is_right = |label: &Label| label.steps[1] != 0;
    // What only one operand has is a sum of its own.
    if !summed.iter().all(|label| is_left(label) && is_right(label)) {
        return None;
    }
    // Sums go through the left operand from front to back.
    let mut summed = summed.to_vec();
    summed.sort_by_key(|label| std::cmp::Reverse(label.steps[0]));
    let (not_depth, depth) = merged_end(&summed);

    // From the back of the result: columns, pairs that lie side by side, rows, and the other pairs. Columns that are no single
    // dimension of the right operand are pairs that share their left matrix.
    let (_, column_labels) = split_end(result, |label| is_right(label) && !is_left(label));
    let (not_columns, columns) = merged_end(column_labels);
    if column_labels.is_empty() || !not_depth.is_empty() {
        return None;
    }
    let column_count = column_labels.len() - not_columns.len();
    let before_columns = &result[..result.len() - column_count];
    let (before_inner, inner_labels) = split_end(before_columns, is_right);
    let (_, row_labels) = split_end(before_inner, |label| is_left(label) && !is_right(label));

    // Rows that are no single dimension of the left operand are pairs that share their right matrix.
    let (not_rows, rows) = merged_end(row_labels);
    let row_count = row_labels.len() - not_rows.len();
    let (outer_labels, inner_labels) = match row_count {
        // Products of single rows lie one after the other.
        0 => (before_columns, &[][..]),
        _ => (
            &before_inner[..before_inner.len() - row_count],
            inner_labels,
        ),
    };

    let pair_labels: Vec<Label> = [outer_labels, inner_labels].concat();
    let sizes: Vec<usize> = pair_labels.iter().map(|label| label.size).collect();
    let steps_of = |side: usize| {
        let steps = pair_labels.iter().map(|label| label.steps[side] as isize);
        steps.collect()
    };
    let walk = Walk::new(&sizes, [steps_of(0), steps_of(1)], [0, 0]).ok()?;
    Some(MatrixPairs {
        size: ProductSize {
            rows: rows.size,
            depth: depth.size,
            columns: columns.size,
        },
        walk,
        count: volume(&sizes),
        left_steps: [rows.steps[0], depth.steps[0]],
        right_steps: [depth.steps[1], columns.steps[1]],
        side_by_side: inner_labels.iter().map(|label| label.size).product(),
    })
}

impl Body for Contraction {
    fn run(&self, t: &mut Tensors<'_>) {
        let result = t.out::<f32>(0);
        let packed = t.scratch::<f32>();
        let operands = match self.is_swapped {
            true => [1, 0],
            false => [0, 1],
        };
        Batches::new(&self.pairs, t, operands, Extra::default()).run(packed, result);
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.pairs.packed_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCHES: usize = 2;
    const HEADS: usize = 3;
    const PLACES: usize = 50;
    const WIDTH: usize = 16;

    fn label(size: usize, left: usize, right: usize) -> Label {
        Label {
            size,
            steps: [left, right],
        }
    }

    #[test]
    fn heads_between_places_and_features_are_products_side_by_side() {
        // bhqk,bkhd->bqhd
        let result = [
            label(BATCHES, HEADS * PLACES * PLACES, PLACES * HEADS * WIDTH),
            label(PLACES, PLACES, 0),
            label(HEADS, PLACES * PLACES, WIDTH),
            label(WIDTH, 0, 1),
        ];
        let summed = [label(PLACES, 1, HEADS * WIDTH)];
        let found = Contraction::of(&result, &summed).expect("products");
        let pairs = found.pairs;
        assert!(!found.is_swapped);
        assert_eq!((pairs.count, pairs.side_by_side), (BATCHES * HEADS, HEADS));
        let size = pairs.size;
        assert_eq!(
            (size.rows, size.depth, size.columns),
            (PLACES, PLACES, WIDTH)
        );
        assert_eq!(pairs.left_steps, [PLACES, 1]);
        assert_eq!(pairs.right_steps, [HEADS * WIDTH, 1]);
    }

    #[test]
    fn operands_change_their_places_where_the_left_one_has_the_columns() {
        // ij,jk->ki
        let result = [label(5, 0, 1), label(4, 6, 0)];
        let found = Contraction::of(&result, &[label(6, 1, 5)]).expect("a product");
        assert!(found.is_swapped);
        let size = found.pairs.size;
        assert_eq!((size.rows, size.depth, size.columns), (5, 6, 4));
    }

    #[test]
    fn sums_of_their_own_and_columns_in_parts_are_no_products_of_matrices() {
        // ij,kl->ik
        let result = [label(4, 3, 0), label(5, 0, 2)];
        let own_sums = [label(3, 1, 0), label(2, 0, 1)];
        assert!(Contraction::of(&result, &own_sums).is_none());

        // abj,jcd->acbd
        let parts = [
            label(2, 12, 0),
            label(5, 0, 7),
            label(3, 4, 0),
            label(7, 0, 1),
        ];
        let found = Contraction::of(&parts, &[label(4, 1, 35)]);
        assert!(found.is_some_and(|found| found.pairs.count == 2 * 5));
    }
}
