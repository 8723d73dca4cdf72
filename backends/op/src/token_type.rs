//! Token types as parameters write them.

use std::collections::BTreeMap;

use zbmd_ir::{DType, TokenType, Value, limits};

use crate::OpError;
use crate::args::Args;

/// A token type written as `f32`, `"f32[2,3]"` or `{"dtype": f32, "shape": [2, 3]}`; bursts as
/// `{"dtype": f32, "shape": {"max": 14}}`, which is what `shape: Burst(max: 14)` comes to, with `"of": [2]` for items of
/// two elements.
pub fn token_type(args: &Args<'_>, path: &str, value: &Value) -> Result<TokenType, OpError> {
    let wrong = |message: &str| {
        let help = "write f32, \"f32[4]\" or {\"dtype\": f32, \"shape\": [4]}";
        args.error(path, message.to_owned(), help)
    };
    let (word, shape) = match value {
        Value::Str(text) => split_text(text),
        Value::Map(map) => {
            check_keys(args, path, map, &["dtype", "shape", "rate", "window"])?;
            let word = map.get("dtype").and_then(Value::as_str);
            let shape = map.get("shape");
            if let Some(Value::Map(shape)) = shape {
                check_keys(args, &format!("{path}.shape"), shape, &["max", "of"])?;
            }
            (
                word.ok_or_else(|| wrong("has no dtype"))?,
                read_shape(shape),
            )
        }
        _ => return Err(wrong("is no token type")),
    };

    let dtype = DType::from_name(word)
        .ok_or_else(|| args.unknown_word(path, word, &DType::ALL.map(DType::name)))?;
    let Shape { dims, burst } =
        shape.ok_or_else(|| wrong("has a dimension that is no positive integer"))?;
    if dims.len() > limits::MAX_RANK {
        let (rank, limit) = (dims.len(), limits::MAX_RANK);
        return Err(wrong(&format!(
            "has {rank} dimensions, the limit is {limit}"
        )));
    }
    Ok(TokenType {
        dtype,
        shape: dims,
        burst,
    })
}

struct Shape {
    dims: Vec<u32>,
    burst: bool,
}

impl Shape {
    fn of_samples(dims: Vec<u32>) -> Self {
        let burst = false;
        Self { dims, burst }
    }
}

fn check_keys(
    args: &Args<'_>,
    path: &str,
    map: &BTreeMap<String, Value>,
    known: &[&str],
) -> Result<(), OpError> {
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(args.unknown_word(path, key, known)),
        None => Ok(()),
    }
}

/// A dimension: a positive number.
fn dim(number: Option<i64>) -> Option<u32> {
    u32::try_from(number?).ok().filter(|&d| d > 0)
}

/// The dtype and the shape of `f32[2,3]`; no shape where a dimension is wrong.
fn split_text(text: &str) -> (&str, Option<Shape>) {
    match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        None => (text, Some(Shape::of_samples(Vec::new()))),
        Some((word, dims)) => {
            let dims = dims.split(',').map(|d| dim(d.trim().parse().ok()));
            (
                word.trim(),
                dims.collect::<Option<_>>().map(Shape::of_samples),
            )
        }
    }
}

/// The shape of `[2, 3]`, or of a burst, `{"max": 14, "of": [2]}`; `None` where a dimension is wrong.
fn read_shape(shape: Option<&Value>) -> Option<Shape> {
    let read_list = |dims: &Value| {
        let dims = dims.as_list()?.iter().map(|d| dim(d.as_int()));
        dims.collect::<Option<Vec<u32>>>()
    };
    match shape {
        None => Some(Shape::of_samples(Vec::new())),
        Some(Value::Map(burst)) => {
            let max = dim(burst.get("max").and_then(Value::as_int))?;
            let item = burst.get("of").map_or(Some(Vec::new()), read_list)?;
            Some(Shape {
                dims: [vec![max], item].concat(),
                burst: true,
            })
        }
        Some(dims) => read_list(dims).map(Shape::of_samples),
    }
}
