//! Convolutions with few outputs for each filter: the bits that they have where the weights are no constant, and windows
//! are gathered into columns.

use bytes::Bytes;
use zbmd_ir::{BlobId, DType, Params, TokenType, Value};

use super::channels_last::{bytes, run};

/// Fractions whose sums depend on their order.
fn numbers(n: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 1009.0 - 0.5;
    (0..n).map(number).collect()
}

#[test]
fn packed_weights_give_the_same_bits() {
    // Batch, channels, length, filters, kernel, stride, dilation, padding, activation, added.
    for (batch, c, length, f, k, stride, dilation, pad, act, added) in [
        // Windows in place: one run each, in equal steps.
        (1, 1, 40, 20, 8, 8, 1, 0, "none", false),
        (2, 1, 24, 16, 9, 5, 1, 2, "relu", true),
        // A single window, which is all of the input.
        (1, 12, 3, 33, 3, 1, 1, 0, "sigmoid", false),
        (1, 12, 1, 16, 3, 1, 1, 1, "none", true),
        // Gathered.
        (3, 7, 16, 17, 3, 1, 1, 1, "none", true),
        (1, 130, 4, 64, 3, 2, 1, 1, "relu", false),
        (2, 5, 12, 48, 3, 2, 3, 4, "clip", true),
    ] {
        let input = numbers(batch * c * length, 1);
        let weights = numbers(f * c * k, 2);
        let bias = numbers(f, 3);
        let int = |value: i64| Value::Int(value);
        let weight_dims = [f, c, k].map(|d| d as u32);
        let mut params: Params = [
            ("strides", Value::List(vec![int(stride)])),
            ("dilations", Value::List(vec![int(dilation)])),
            ("pads", Value::List(vec![int(pad); 2])),
            ("act", Value::Str(act.into())),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        if act == "clip" {
            params.insert("act_min".to_owned(), Value::Float(-0.25));
            params.insert("act_max".to_owned(), Value::Float(0.5));
        }

        let input_dims = [batch, c, length].map(|d| d as u32);
        let x = ("x", &input_dims[..], &input[..]);
        let w = ("w", &weight_dims[..], &weights[..]);
        let bias_dims = [f as u32];
        let b = ("b", &bias_dims[..], &bias[..]);
        let (_, output_dims) = run("NnConv", &params, &[], &[x, w, b]);
        let output_elements: u32 = output_dims.iter().product();
        let summand = numbers(output_elements as usize, 4);
        let more = ("added", &output_dims[..], &summand[..]);
        let more = if added { vec![more] } else { vec![] };
        let gathered = run(
            "NnConv",
            &params,
            &[],
            &[vec![x, w, b], more.clone()].concat(),
        );

        let tensor = Value::Tensor(BlobId(0), TokenType::new(DType::F32, weight_dims));
        params.insert("w".to_owned(), tensor);
        let blobs = [Bytes::from(bytes(&weights))];
        let packed = run("NnConv", &params, &blobs, &[vec![x, b], more].concat());
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(packed.1, gathered.1);
        assert_eq!(bits(&packed.0), bits(&gathered.0), "{c} to {f} of {length}");
    }
}
