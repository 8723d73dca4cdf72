//! Reading parameters: one place that says what is wrong with them. Knows no op.

use std::collections::BTreeMap;

use zbmd_ir::{DType, TokenType, Value, limits};

use crate::{OpError, ResolveCx, dtype_param};

/// Elements that a parameter written as a list or tensor may have.
const MAX_NUMBERS: u64 = 1 << 28;

/// A tensor of numbers given as a number, nested lists or a blob. A c32 blob has a last dimension of 2 here.
pub struct Numbers {
    /// The shape, outermost dimension first.
    pub shape: Vec<u32>,
    /// The elements in order.
    pub data: Vec<f64>,
}

/// The parameters of one op (or of one map among them) and the inputs of its actor.
pub struct Args<'a> {
    map: &'a BTreeMap<String, Value>,
    prefix: String,
    /// What is asked.
    pub cx: &'a ResolveCx<'a>,
}

impl<'a> Args<'a> {
    /// The parameters in `cx`; refuses all but `known`.
    pub fn new(cx: &'a ResolveCx<'a>, known: &[&str]) -> Result<Self, OpError> {
        let args = Self {
            map: cx.params,
            prefix: String::new(),
            cx,
        };
        args.refuse_unknown(known)?;
        Ok(args)
    }

    /// All parameters in `cx`, known or not.
    pub fn all(cx: &'a ResolveCx<'a>) -> Self {
        Self {
            map: cx.params,
            prefix: String::new(),
            cx,
        }
    }

    /// The map in parameter `name`, if it is given; refuses all keys but `known`.
    pub fn nested(&self, name: &str, known: &[&str]) -> Result<Option<Args<'a>>, OpError> {
        let Some(map) = self.map_opt(name)? else {
            return Ok(None);
        };
        let args = Self {
            map,
            prefix: format!("{}{name}.", self.prefix),
            cx: self.cx,
        };
        args.refuse_unknown(known)?;
        Ok(Some(args))
    }

    fn refuse_unknown(&self, known: &[&str]) -> Result<(), OpError> {
        let Some(name) = self.map.keys().find(|k| !known.contains(&k.as_str())) else {
            return Ok(());
        };
        let help = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => "there are no parameters here".to_owned(),
            None => format!("the parameters are {}", known.join(", ")),
        };
        Err(self.error(name, "no such parameter".to_owned(), help))
    }

    /// An error about a parameter.
    pub fn error(
        &self,
        name: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> OpError {
        let name = format!("{}{name}", self.prefix);
        OpError::Param {
            name,
            message: message.into(),
            help: help.into(),
        }
    }

    fn wrong(&self, name: &str, value: &Value, want: &str) -> OpError {
        self.error(
            name,
            format!("is {}, not {want}", kind(value)),
            format!("write {want}"),
        )
    }

    /// The value of a parameter, if it is given.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name)
    }

    /// The parameter, which must be given.
    pub fn need(&self, name: &str, want: &str) -> Result<&'a Value, OpError> {
        self.get(name)
            .ok_or_else(|| self.error(name, "is missing", format!("write `{name}: …`, {want}")))
    }

    /// A finite number.
    pub fn float(&self, name: &str) -> Result<f64, OpError> {
        let value = self.need(name, "a number")?;
        self.finite(name, value)
    }

    /// A finite number, or the default.
    pub fn float_or(&self, name: &str, default: f64) -> Result<f64, OpError> {
        self.get(name).map_or(Ok(default), |v| self.finite(name, v))
    }

    /// A finite number greater than zero.
    pub fn positive(&self, name: &str) -> Result<f64, OpError> {
        let value = self.float(name)?;
        if value > 0.0 {
            return Ok(value);
        }
        Err(self.error(
            name,
            format!("is {value}, not above 0"),
            "give a positive number",
        ))
    }

    /// A number that is finite.
    pub fn finite(&self, name: &str, value: &Value) -> Result<f64, OpError> {
        match value.as_float() {
            Some(f) if f.is_finite() => Ok(f),
            Some(f) => Err(self.error(name, format!("is {f}"), "give a finite number")),
            None => Err(self.wrong(name, value, "a number")),
        }
    }

    /// An integer in `[low, high]`.
    pub fn uint(&self, name: &str, low: u64, high: u64) -> Result<u64, OpError> {
        let value = self.need(name, "an integer")?;
        let int = value
            .as_int()
            .ok_or_else(|| self.wrong(name, value, "an integer"))?;
        u64::try_from(int)
            .ok()
            .filter(|v| (low..=high).contains(v))
            .ok_or_else(|| {
                self.error(
                    name,
                    format!("is {int}"),
                    format!("it lies between {low} and {high}"),
                )
            })
    }

    /// An integer in `[low, high]`, or the default.
    pub fn uint_or(&self, name: &str, default: u64, low: u64, high: u64) -> Result<u64, OpError> {
        if self.get(name).is_none() {
            Ok(default)
        } else {
            self.uint(name, low, high)
        }
    }

    /// A number of tokens or elements, at least 1.
    pub fn count(&self, name: &str) -> Result<u32, OpError> {
        self.uint(name, 1, u64::from(u32::MAX)).map(|v| v as u32)
    }

    /// Any integer, or the default.
    pub fn int_or(&self, name: &str, default: i64) -> Result<i64, OpError> {
        let Some(value) = self.get(name) else {
            return Ok(default);
        };
        value
            .as_int()
            .ok_or_else(|| self.wrong(name, value, "an integer"))
    }

    /// A truth value, or the default.
    pub fn bool_or(&self, name: &str, default: bool) -> Result<bool, OpError> {
        match self.get(name) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(self.wrong(name, other, "true or false")),
        }
    }

    /// A word or string.
    pub fn word_opt(&self, name: &str) -> Result<Option<&'a str>, OpError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.wrong(name, value, "a word"))
    }

    /// A word or string, which must be given.
    pub fn word(&self, name: &str) -> Result<&'a str, OpError> {
        let value = self.need(name, "a word")?;
        value
            .as_str()
            .ok_or_else(|| self.wrong(name, value, "a word"))
    }

    /// A word among `words`.
    pub fn unknown_word(&self, name: &str, word: &str, words: &[&str]) -> OpError {
        let help = match nearest(word, words.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? Known are {}", words.join(", ")),
            None => format!("one of {}", words.join(", ")),
        };
        self.error(name, format!("`{word}` is not known"), help)
    }

    /// A dtype, or the default.
    pub fn dtype_or(&self, name: &str, default: DType) -> Result<DType, OpError> {
        match self.word_opt(name)? {
            None => Ok(default),
            Some(word) => dtype_param(name, word),
        }
    }

    /// A map.
    pub fn map_opt(&self, name: &str) -> Result<Option<&'a BTreeMap<String, Value>>, OpError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Map(map)) => Ok(Some(map)),
            Some(other) => Err(self.wrong(name, other, "a map")),
        }
    }

    /// A list of dimensions, each at least 1.
    pub fn shape_opt(&self, name: &str) -> Result<Option<Vec<u32>>, OpError> {
        self.get(name).map(|v| self.shape_of(name, v)).transpose()
    }

    fn shape_of(&self, name: &str, value: &Value) -> Result<Vec<u32>, OpError> {
        let dims = value
            .as_list()
            .ok_or_else(|| self.wrong(name, value, "a list of integers"))?;
        if dims.len() > limits::MAX_RANK {
            let message = format!("has {} dimensions", dims.len());
            return Err(self.error(name, message, format!("at most {}", limits::MAX_RANK)));
        }
        let dim = |v: &Value| {
            v.as_int()
                .and_then(|i| u32::try_from(i).ok())
                .filter(|&d| d > 0)
        };
        dims.iter()
            .map(|v| dim(v).ok_or_else(|| self.wrong(name, v, "an integer of at least 1")))
            .collect()
    }

    /// A list of integers, such as axes.
    pub fn ints_opt(&self, name: &str) -> Result<Option<Vec<i64>>, OpError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let list = value
            .as_list()
            .ok_or_else(|| self.wrong(name, value, "a list of integers"))?;
        let ints = list
            .iter()
            .map(|v| v.as_int().ok_or_else(|| self.wrong(name, v, "an integer")))
            .collect::<Result<_, _>>()?;
        Ok(Some(ints))
    }

    /// A number, nested lists of numbers or a tensor.
    pub fn numbers(&self, name: &str) -> Result<Numbers, OpError> {
        let value = self.need(name, "numbers")?;
        if let Value::Tensor(blob, token) = value {
            return self.blob_numbers(name, *blob, token);
        }
        let mut shape = Vec::new();
        let mut probe = value;
        while let Value::List(list) = probe {
            let Some(first) = list.first() else {
                return Err(self.error(name, "holds an empty list", "give at least one number"));
            };
            shape.push(u32::try_from(list.len()).unwrap_or(u32::MAX));
            if shape.len() > limits::MAX_RANK {
                let help = format!("at most {} levels", limits::MAX_RANK);
                return Err(self.error(name, "is nested too deeply", help));
            }
            probe = first;
        }
        let mut data = Vec::new();
        self.flatten(name, value, &shape, &mut data)?;
        Ok(Numbers { shape, data })
    }

    fn flatten(
        &self,
        name: &str,
        value: &Value,
        shape: &[u32],
        out: &mut Vec<f64>,
    ) -> Result<(), OpError> {
        match (value, shape.split_first()) {
            (Value::List(list), Some((&dim, rest))) => {
                if list.len() != dim as usize {
                    let message = format!("has lists of {} and {dim} elements", list.len());
                    return Err(self.error(name, message, "lists side by side are equally long"));
                }
                list.iter()
                    .try_for_each(|v| self.flatten(name, v, rest, out))
            }
            (Value::List(_), None) => {
                Err(self.error(name, "mixes numbers and lists", "give lists of one depth"))
            }
            (Value::Bool(b), None) => {
                out.push(f64::from(u8::from(*b)));
                Ok(())
            }
            (other, None) => {
                out.push(self.finite(name, other)?);
                Ok(())
            }
            (other, Some(_)) => Err(self.wrong(name, other, "a list")),
        }
    }

    fn blob_numbers(
        &self,
        name: &str,
        blob: zbmd_ir::BlobId,
        token: &TokenType,
    ) -> Result<Numbers, OpError> {
        let bytes = self.cx.blobs.get(blob).ok_or_else(|| {
            let message = format!("refers to {blob} of {}", self.cx.blobs.len());
            self.error(name, message, "the program holds no such tensor")
        })?;
        if bytes.len() as u64 != token.bytes() || token.elements() > MAX_NUMBERS {
            let message = format!(
                "{blob} has {} bytes, {token} {}",
                bytes.len(),
                token.bytes()
            );
            return Err(self.error(
                name,
                message,
                "the program's tensor is damaged or too large",
            ));
        }
        let mut shape = token.shape.clone();
        if token.dtype == DType::C32 {
            shape.push(2);
        }
        let data = bytes_to_f64(bytes, token.dtype);
        if let Some(bad) = data.iter().find(|v| !v.is_finite()) {
            return Err(self.error(name, format!("holds {bad}"), "give finite numbers"));
        }
        Ok(Numbers { shape, data })
    }

    /// Input names that channels give.
    pub fn connected(&self) -> impl Iterator<Item = &'a str> {
        self.cx
            .connected
            .iter()
            .map(String::as_str)
            .filter(|c| !c.is_empty())
    }

    /// The type of the first input, `x`.
    pub fn x(&self) -> Result<&'a TokenType, OpError> {
        self.cx.input("x", true)
    }

    /// The type of `x`, whose dtype must be among `dtypes`.
    pub fn x_of(&self, dtypes: &[DType]) -> Result<&'a TokenType, OpError> {
        let token = self.x()?;
        if dtypes.contains(&token.dtype) {
            return Ok(token);
        }
        let names: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
        Err(input_error(
            "x",
            format!("is {token}"),
            format!("it takes {}", names.join(" or ")),
        ))
    }

    /// The type of `x`, which must be a scalar of one of `dtypes`.
    pub fn scalar_x(&self, dtypes: &[DType]) -> Result<DType, OpError> {
        let token = self.x_of(dtypes)?;
        if token.shape.is_empty() {
            return Ok(token.dtype);
        }
        let help = "it takes scalars: put a `Reshape(shape: [])` before it";
        Err(input_error("x", format!("is {token}"), help))
    }

    /// The type of `x`, which must have at least one dimension, and that first dimension.
    pub fn shaped_x(&self, dtypes: &[DType]) -> Result<(&'a TokenType, u32), OpError> {
        let token = self.x_of(dtypes)?;
        match token.shape.first() {
            Some(&n) => Ok((token, n)),
            None => {
                let help = "it takes tokens with a shape: put a `Frame` or `Reshape` before it";
                Err(input_error("x", format!("is {token}"), help))
            }
        }
    }
}

/// An error about an input.
pub fn input_error(port: &str, message: impl Into<String>, help: impl Into<String>) -> OpError {
    OpError::Input {
        port: port.to_owned(),
        message: message.into(),
        help: help.into(),
    }
}

fn kind(value: &Value) -> String {
    match value {
        Value::Bool(b) => format!("`{b}`"),
        Value::Int(i) => format!("`{i}`"),
        Value::Float(f) => format!("`{f}`"),
        Value::Str(s) => format!("`{s}`"),
        Value::List(list) => format!("a list of {}", list.len()),
        Value::Map(_) => "a map".to_owned(),
        Value::Tensor(_, token) => format!("a tensor {token}"),
        Value::Live(parameter) => format!("the live parameter `{}`", parameter.name),
        Value::Gate(_) => "a gate".to_owned(),
    }
}

/// Little-endian elements as f64; complex numbers as pairs.
pub fn bytes_to_f64(bytes: &[u8], dtype: DType) -> Vec<f64> {
    macro_rules! read {
        ($ty:ty, $f:expr) => {{
            let chunks = bytes.chunks_exact(size_of::<$ty>());
            chunks
                .map(|c| $f(<$ty>::from_le_bytes(c.try_into().unwrap_or_default())))
                .collect()
        }};
    }
    match dtype {
        DType::F32 | DType::C32 => read!(f32, f64::from),
        DType::F64 => read!(f64, |v| v),
        DType::F16 => read!(u16, |v| half::f16::from_bits(v).to_f64()),
        DType::Bf16 => read!(u16, |v| half::bf16::from_bits(v).to_f64()),
        DType::I8 => read!(i8, f64::from),
        DType::U8 | DType::Bool => read!(u8, f64::from),
        DType::I16 => read!(i16, f64::from),
        DType::I32 => read!(i32, f64::from),
        DType::I64 => read!(i64, |v| v as f64),
    }
}

/// Numbers as little-endian elements, rounded and saturated; pairs for c32.
pub fn encode(dtype: DType, data: &[f64]) -> Vec<u8> {
    macro_rules! write {
        ($f:expr) => {
            data.iter().flat_map(|&v| $f(v).to_le_bytes()).collect()
        };
    }
    match dtype {
        DType::F32 | DType::C32 => write!(|v| v as f32),
        DType::F64 => write!(|v: f64| v),
        DType::F16 => write!(|v| half::f16::from_f64(v).to_bits()),
        DType::Bf16 => write!(|v| half::bf16::from_f64(v).to_bits()),
        DType::I8 => write!(|v: f64| v.round_ties_even() as i8),
        DType::U8 => write!(|v: f64| v.round_ties_even() as u8),
        DType::Bool => write!(|v: f64| u8::from(v != 0.0)),
        DType::I16 => write!(|v: f64| v.round_ties_even() as i16),
        DType::I32 => write!(|v: f64| v.round_ties_even() as i32),
        DType::I64 => write!(|v: f64| v.round_ties_even() as i64),
    }
}

/// The word closest to `word` by edit distance, if it is close enough to be a slip.
pub fn nearest<'w>(word: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let reach = word.chars().count() / 3 + 1;
    words
        .map(|w| (edit_distance(word, w), w))
        .filter(|&(distance, w)| distance <= reach && distance < w.chars().count())
        .min()
        .map(|(_, w)| w)
}

/// Edit distance, a swap of neighbours counting once and upper and lower case being equal. O(|a| |b|).
///
/// Source: optimal string alignment, a restriction of Damerau 1964.
fn edit_distance(a: &str, b: &str) -> usize {
    let letters = |s: &str| {
        s.chars()
            .take(64)
            .flat_map(char::to_lowercase)
            .collect::<Vec<char>>()
    };
    let (a, b) = (letters(a), letters(b));
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1];
        for j in 0..b.len() {
            let mut cost = (above[j] + usize::from(a[i] != b[j])).min(above[j + 1] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                cost = cost.min(before[j - 1] + 1);
            }
            row.push(cost.min(row[j] + 1));
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_slips_and_nothing_else() {
        let words = ["taps", "decimate", "interpolate"];
        for (word, expect) in [
            ("tap", Some("taps")),
            ("tasp", Some("taps")),
            ("Taps", Some("taps")),
            ("decimation", Some("decimate")),
            ("interp", None),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, words.into_iter()), expect, "{word}");
        }
    }
}
