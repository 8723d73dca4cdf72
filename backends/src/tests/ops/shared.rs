//! Ops on large tensors, whose work the cores of a device share: the same bits on one core and on several, also where the
//! result is written over an operand.

use zbmd_ir::{Params, Value};

use super::channels_last::run;
use crate::team::Team;

/// An op on large tensors: its name, parameters, and the dimensions of its inputs by port.
struct Case {
    op: &'static str,
    params: Params,
    inputs: &'static [(&'static str, &'static [u32])],
}

fn case(
    op: &'static str,
    params: &[(&str, Value)],
    inputs: &'static [(&'static str, &'static [u32])],
) -> Case {
    let params = params.iter().cloned();
    Case {
        op,
        params: params
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        inputs,
    }
}

fn list(numbers: &[i64]) -> Value {
    Value::List(numbers.iter().map(|n| Value::Int(*n)).collect())
}

/// At least one for each way in which a tensor is cut: by its slowest dimension, and within its only one.
fn cases() -> Vec<Case> {
    vec![
        // Planes of colours, channels of four groups, and squares of eight; each alone and within outer dimensions.
        case(
            "NnTranspose",
            &[("perm", list(&[1, 0]))],
            &[("x", &[3, 20_011])],
        ),
        case(
            "NnTranspose",
            &[("perm", list(&[1, 0]))],
            &[("x", &[4, 20_011])],
        ),
        case(
            "NnTranspose",
            &[("perm", list(&[1, 0]))],
            &[("x", &[130, 517])],
        ),
        case(
            "NnTranspose",
            &[("perm", list(&[0, 2, 1]))],
            &[("x", &[301, 4, 35])],
        ),
        case(
            "NnTranspose",
            &[("perm", list(&[0, 2, 1]))],
            &[("x", &[37, 45, 63])],
        ),
        case(
            "NnTranspose",
            &[("perm", list(&[2, 1, 0, 3]))],
            &[("x", &[9, 11, 13, 70])],
        ),
        // Runs, one for all or many, and an operand that is repeated along either end.
        case("NnAdd", &[], &[("x", &[70_001]), ("y", &[70_001])]),
        case("NnDiv", &[], &[("x", &[300, 257]), ("y", &[257])]),
        case("NnSub", &[], &[("x", &[300, 257]), ("y", &[300, 1])]),
        case("NnMul", &[], &[("x", &[70_001]), ("y", &[1])]),
        // Rows so short that many are one run.
        case("NnMul", &[], &[("x", &[4_001, 17]), ("y", &[17])]),
        case("NnSub", &[], &[("x", &[3, 1, 24]), ("y", &[3, 997, 24])]),
        case("NnRelu", &[], &[("x", &[70_001])]),
        case("NnGelu", &[], &[("x", &[3, 30_011])]),
        case("NnSoftmax", &[], &[("x", &[333, 129])]),
        case(
            "NnLayerNormalization",
            &[],
            &[("x", &[333, 129]), ("scale", &[129]), ("bias", &[129])],
        ),
        case(
            "NnLayerNormalization",
            &[],
            &[("x", &[333, 129]), ("scale", &[1])],
        ),
    ]
}

#[test]
fn large_tensors_have_the_same_bits_on_any_number_of_cores() {
    for Case { op, params, inputs } in cases() {
        let values: Vec<Vec<f32>> = inputs
            .iter()
            .enumerate()
            .map(|(i, (_, dims))| {
                let length = dims.iter().product::<u32>() as usize;
                // No number twice in a row, none of them 0.
                (0..length)
                    .map(|n| ((n * 37 + i * 11) % 1009) as f32 / 64.0 - 7.9)
                    .collect()
            })
            .collect();
        let given: Vec<(&str, &[u32], &[f32])> = inputs
            .iter()
            .zip(&values)
            .map(|((port, dims), values)| (*port, *dims, values.as_slice()))
            .collect();
        let on = |cores: usize| {
            let _team = Team::lead(cores, |_| ()).expect("threads");
            let (result, dims) = run(op, &params, &[], &given);
            let bits: Vec<u32> = result.iter().map(|v| v.to_bits()).collect();
            (bits, dims)
        };

        let one_core = on(1);
        for cores in [2, 3] {
            assert!(on(cores) == one_core, "{op} of {inputs:?} on {cores} cores");
        }
    }
}

/// Pairs of matrices: the batch dimensions of the left and of the right ones, rows, depth and columns.
type Pairs = (&'static [usize], &'static [usize], usize, usize, usize);

#[test]
fn products_of_pairs_are_those_of_each_pair() {
    // A matrix for each product, for neighbours, for products that are far apart, and for all; more of them than are packed at a
    // time; single rows, single products, and results of odd sizes.
    const CASES: &[Pairs] = &[
        (&[2, 3], &[2, 3], 70, 40, 50),
        (&[2, 3], &[2, 1], 33, 64, 48),
        (&[4, 3], &[3], 33, 40, 50),
        (&[5], &[1], 19, 80, 33),
        (&[7], &[7], 9, 64, 700),
        (&[5, 3], &[5, 1], 3, 64, 700),
        (&[3], &[3], 6, 130, 1030),
        (&[6], &[6], 1, 300, 200),
        (&[], &[], 50, 100, 70),
        (&[2], &[2], 5, 1, 1),
    ];
    for &(left_batch, right_batch, rows, depth, columns) in CASES {
        let rank = left_batch.len().max(right_batch.len());
        let padded = |batch: &[usize]| [vec![1; rank - batch.len()], batch.to_vec()].concat();
        let (left_sizes, right_sizes) = (padded(left_batch), padded(right_batch));
        let counts = left_sizes.iter().zip(&right_sizes).map(|(l, r)| *l.max(r));
        let counts: Vec<usize> = counts.collect();

        let dims = |batch: &[usize], matrix: [usize; 2]| -> Vec<u32> {
            let all = batch.iter().chain(&matrix);
            all.map(|dim| *dim as u32).collect()
        };
        let left_dims = dims(left_batch, [rows, depth]);
        let right_dims = dims(right_batch, [depth, columns]);
        // Small integers, of which every sum is exact.
        let numbers = |dims: &[u32], factor: usize| -> Vec<f32> {
            let length: u32 = dims.iter().product();
            (0..length as usize)
                .map(|n| (n * factor % 23) as f32 - 11.0)
                .collect()
        };
        let (left, right) = (numbers(&left_dims, 37), numbers(&right_dims, 29));

        // Which matrix of an operand belongs to a product.
        let matrix_of = |product: usize, sizes: &[usize]| {
            let mut rest = product;
            let mut place = 0;
            let mut step = 1;
            for (count, size) in counts.iter().zip(sizes).rev() {
                place += rest % count % size * step;
                rest /= count;
                step *= size;
            }
            place
        };
        let mut expected = Vec::new();
        for product in 0..counts.iter().product() {
            let left = &left[matrix_of(product, &left_sizes) * rows * depth..];
            let right = &right[matrix_of(product, &right_sizes) * depth * columns..];
            for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                let terms = (0..depth).map(|k| left[row * depth + k] * right[k * columns + column]);
                expected.push(terms.sum::<f32>());
            }
        }

        let given = [
            ("x", &left_dims[..], &left[..]),
            ("y", &right_dims[..], &right[..]),
        ];
        for cores in [1, 2, 3] {
            let _team = Team::lead(cores, |_| ()).expect("threads");
            let (result, _) = run("NnMatMul", &Params::default(), &[], &given);
            assert!(
                result == expected,
                "{left_dims:?} by {right_dims:?} on {cores} cores"
            );
        }
    }
}

#[test]
fn transposed_elements_lie_where_they_should() {
    for (rows, columns) in [(2, 9_001), (3, 9_001), (4, 9_001), (5, 9_001), (131, 517)] {
        let (n, m) = (rows as usize, columns as usize);
        let values: Vec<f32> = (0..n * m).map(|i| i as f32).collect();
        let params = [("perm".to_owned(), list(&[1, 0]))].into_iter().collect();
        let given = [("x", &[rows, columns][..], &values[..])];
        let _team = Team::lead(2, |_| ()).expect("threads");
        let (result, dims) = run("NnTranspose", &params, &[], &given);
        assert_eq!(dims, [columns, rows]);
        for (i, found) in result.iter().enumerate() {
            let (column, row) = (i / n, i % n);
            assert_eq!(
                *found,
                values[row * m + column],
                "row {row}, column {column}"
            );
        }
    }
}

#[test]
fn short_rows_meet_the_operand_that_is_repeated() {
    // More rows than a stretch holds; the repeated operand is one of several, and on either side.
    for (matrices, rows, columns) in [(1, 1000, 3), (1, 57, 16), (5, 100, 24), (2, 40, 64)] {
        let large: Vec<f32> = (0..matrices * rows * columns).map(|i| i as f32).collect();
        let small: Vec<f32> = (0..matrices * columns).map(|i| 0.5 * i as f32).collect();
        let large_dims = [matrices, rows, columns].map(|d| d as u32);
        let small_dims = [matrices, 1, columns].map(|d| d as u32);

        let x = ("x", &large_dims[..], &large[..]);
        let y = ("y", &small_dims[..], &small[..]);
        let (difference, dims) = run("NnSub", &Params::default(), &[], &[x, y]);
        assert_eq!(dims, large_dims);
        let turned = [("x", y.1, y.2), ("y", x.1, x.2)];
        let (turned_difference, _) = run("NnSub", &Params::default(), &[], &turned);

        for i in 0..large.len() {
            let partner = small[i / (rows * columns) * columns + i % columns];
            assert_eq!(difference[i], large[i] - partner, "element {i}");
            assert_eq!(turned_difference[i], partner - large[i], "element {i}");
        }
    }
}
