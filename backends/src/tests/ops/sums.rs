//! Sums in Einstein's notation on CPUs: those that are products of matrices, in whatever order their dimensions are, and others.

use zbmd_ir::Value;

use super::channels_last::run;
use crate::team::Team;

/// An equation, and the size of each of its labels.
type Sum = (&'static str, &'static [(char, usize)]);

const SUMS: &[Sum] = &[
    // Attention's scores and its values, with heads before or behind places.
    (
        "bqhd,bkhd->bhqk",
        &[('b', 2), ('q', 33), ('h', 3), ('k', 41), ('d', 20)],
    ),
    (
        "bhqk,bkhd->bqhd",
        &[('b', 2), ('q', 33), ('h', 3), ('k', 41), ('d', 24)],
    ),
    // More matrices lie side by side than are packed at a time.
    ("hqk,khd->qhd", &[('q', 5), ('h', 7), ('k', 64), ('d', 700)]),
    // A single query; heads of which some share keys.
    (
        "bqhd,bkhd->bhqk",
        &[('b', 1), ('q', 1), ('h', 3), ('k', 41), ('d', 20)],
    ),
    (
        "bhqk,bkhd->bqhd",
        &[('b', 2), ('q', 1), ('h', 3), ('k', 41), ('d', 24)],
    ),
    (
        "bhgqd,bhkd->bhgqk",
        &[('b', 2), ('h', 2), ('g', 3), ('q', 9), ('k', 17), ('d', 8)],
    ),
    // Plain products, turned ones, and one whose operands change their places.
    ("ij,jk->ik", &[('i', 70), ('j', 130), ('k', 50)]),
    ("ji,kj->ik", &[('i', 70), ('j', 130), ('k', 50)]),
    ("ij,jk->ki", &[('i', 70), ('j', 130), ('k', 50)]),
    // Rows, columns and sums of several dimensions, and rows that are no single one of the left operand.
    (
        "abij,ijcd->abcd",
        &[('a', 3), ('b', 5), ('i', 6), ('j', 7), ('c', 4), ('d', 9)],
    ),
    ("bia,aj->ibj", &[('b', 4), ('i', 6), ('a', 12), ('j', 20)]),
    // Outer products, a row with each matrix, and what is no product of matrices.
    ("i,j->ij", &[('i', 19), ('j', 35)]),
    ("bk,bkc->bc", &[('b', 5), ('k', 30), ('c', 40)]),
    ("bk,bck->bc", &[('b', 5), ('k', 30), ('c', 40)]),
    ("bi,bi->b", &[('b', 5), ('i', 30)]),
    ("iij,jk->ik", &[('i', 6), ('j', 7), ('k', 8)]),
    ("ij,kl->ik", &[('i', 6), ('j', 7), ('k', 8), ('l', 3)]),
    (
        "abij,ijcd->acbd",
        &[('a', 3), ('b', 5), ('i', 6), ('j', 7), ('c', 4), ('d', 9)],
    ),
];

/// The result of a sum by its definition.
fn by_definition(
    terms: &[&str],
    out: &str,
    sizes: &[(char, usize)],
    values: &[Vec<f32>],
) -> Vec<f32> {
    let summed = sizes.iter().filter(|(label, _)| !out.contains(*label));
    let size_of = |label: char| {
        sizes
            .iter()
            .find(|(known, _)| *known == label)
            .expect("a size")
            .1
    };
    let labels: Vec<(char, usize)> = out
        .chars()
        .map(|label| (label, size_of(label)))
        .chain(summed.copied())
        .collect();
    let results: usize = out.chars().map(size_of).product();
    let elements: usize = labels.iter().map(|(_, size)| size).product();
    let per_result = elements / results;

    let mut result = vec![0.0; results];
    for element in 0..elements {
        // The coordinates of an element of the sum; the last label is the fastest.
        let mut rest = element;
        let mut coordinates = vec![0; labels.len()];
        for (at, (_, size)) in labels.iter().enumerate().rev() {
            coordinates[at] = rest % size;
            rest /= size;
        }
        let factors = terms.iter().zip(values).map(|(term, values)| {
            let place = term.chars().fold(0, |place, label| {
                let at = labels.iter().position(|(known, _)| *known == label);
                place * size_of(label) + coordinates[at.expect("a label")]
            });
            values[place]
        });
        result[element / per_result] += factors.product::<f32>();
    }
    result
}

#[test]
fn sums_are_those_of_their_definition_on_any_number_of_cores() {
    for (equation, sizes) in SUMS {
        let (left_side, out) = equation.split_once("->").expect("an arrow");
        let terms: Vec<&str> = left_side.split(',').collect();
        let dims_of = |term: &str| -> Vec<u32> {
            let size = |label| sizes.iter().find(|(known, _)| *known == label);
            term.chars()
                .map(|label| size(label).expect("a size").1 as u32)
                .collect()
        };
        let dims: Vec<Vec<u32>> = terms.iter().map(|term| dims_of(term)).collect();
        // Small integers, of which every sum is exact.
        let numbers = |(operand, dims): (usize, &Vec<u32>)| -> Vec<f32> {
            let factor = [37, 29][operand];
            let elements = dims.iter().product::<u32>() as usize;
            (0..elements)
                .map(|n| (n * factor % 23) as f32 - 11.0)
                .collect()
        };
        let values: Vec<Vec<f32>> = dims.iter().enumerate().map(numbers).collect();
        let expected = by_definition(&terms, out, sizes, &values);

        let params = [("equation".to_owned(), Value::Str((*equation).to_owned()))];
        let params = params.into_iter().collect();
        let given = [
            ("x0", &dims[0][..], &values[0][..]),
            ("x1", &dims[1][..], &values[1][..]),
        ];
        for cores in [1, 2, 3] {
            let _team = Team::lead(cores, |_| ()).expect("threads");
            let (result, result_dims) = run("NnEinsum", &params, &[], &given);
            assert_eq!(result_dims, dims_of(out), "{equation}");
            assert!(
                result == expected,
                "{equation} of {dims:?} on {cores} cores"
            );
        }
    }
}
