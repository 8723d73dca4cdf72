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
