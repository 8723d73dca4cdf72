//! Token types as parameters write them.

use zbmd_ir::{DType, TokenType, Value, limits};

use crate::OpError;
use crate::args::Args;

/// A token type written as `f32`, `"f32[2,3]"` or `{"dtype": f32, "shape": [2, 3]}`; bursts as
/// `{"dtype": f32, "shape": {"max": 14}}`, which is what `shape: Burst(max: 14)` comes to, with `"of": [2]` for items of
/// two elements.
pub fn token_type(args: &Args<'_>, path: &str, value: &Value) -> Result<TokenType, OpError> {
    let wrong = |message: String| {
        let help = "write f32, \"f32[4]\" or {\"dtype\": f32, \"shape\": [4]}";
        args.error(path, message, help)
    };
    let dtype = |word: &str| {
        DType::from_name(word)
            .ok_or_else(|| args.unknown_word(path, word, &DType::ALL.map(DType::name)))
    };
    let dim = |i: Option<i64>| i.and_then(|i| u32::try_from(i).ok()).filter(|&d| d > 0);
    let mut burst = false;
    let (dtype, dims) = match value {
        Value::Str(text) => match text.strip_suffix(']').and_then(|t| t.split_once('[')) {
            None => (dtype(text)?, Some(Vec::new())),
            Some((word, dims)) => {
                let dims = dims
                    .split(',')
                    .map(|d| dim(d.trim().parse().ok()))
                    .collect();
                (dtype(word.trim())?, dims)
            }
        },
        Value::Map(map) => {
            let known = ["dtype", "shape", "rate", "window"];
            if let Some(key) = map.keys().find(|k| !known.contains(&k.as_str())) {
                return Err(args.unknown_word(path, key, &known));
            }
            let word = map.get("dtype").and_then(Value::as_str);
            let word = word.ok_or_else(|| wrong("has no dtype".to_owned()))?;
            let list = |shape: &Value| {
                let dims = shape.as_list()?;
                dims.iter()
                    .map(|v| dim(v.as_int()))
                    .collect::<Option<Vec<u32>>>()
            };
            let dims = match map.get("shape") {
                None => Some(Vec::new()),
                Some(Value::Map(shape)) => {
                    let known = ["max", "of"];
                    if let Some(key) = shape.keys().find(|k| !known.contains(&k.as_str())) {
                        return Err(args.unknown_word(&format!("{path}.shape"), key, &known));
                    }
                    burst = true;
                    let item = shape.get("of").map_or(Some(Vec::new()), list);
                    let max = dim(shape.get("max").and_then(Value::as_int));
                    max.zip(item).map(|(max, item)| [vec![max], item].concat())
                }
                Some(shape) => list(shape),
            };
            (dtype(word)?, dims)
        }
        _ => return Err(wrong("is no token type".to_owned())),
    };
    let dims =
        dims.ok_or_else(|| wrong("has a dimension that is no positive integer".to_owned()))?;
    if dims.len() > limits::MAX_RANK {
        return Err(wrong(format!(
            "has {} dimensions, the limit is {}",
            dims.len(),
            limits::MAX_RANK
        )));
    }
    Ok(TokenType {
        dtype,
        shape: dims,
        burst,
    })
}
