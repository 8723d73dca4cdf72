//! From the tree to constants: parameters of ops and tokens that lie on channels, with what they refer to in files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use half::{bf16, f16};
use xxhash_rust::xxh3::xxh3_64;
use zbmd_backends::devices::memory_bytes;
use zbmd_ir::{BlobId, DType, TiVec, TokenType, Value, limits};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};
use crate::files::{self, ReadError};
use crate::format;
use crate::live;
use crate::npy::{self, Npy};
use crate::parse::{Arg, Node, NodeKind};
use crate::pass_report::PassReport;
use crate::read;
use crate::source::{Span, Spanned};

/// Data files of a model, each read once, and the blobs made of them.
pub(crate) struct Files {
    arrays: BTreeMap<PathBuf, Option<Rc<Npy>>>,
    /// Whole .safetensors files: their tensors are slices of them.
    stores: BTreeMap<PathBuf, Bytes>,
    /// What the passes over imported models did, by file.
    pub(crate) passes: Vec<(String, Vec<PassReport>)>,
    /// Passes that the machine does not gain from.
    pub(crate) without: Vec<String>,
    /// Constant tensors, equal ones once.
    pub(crate) blobs: TiVec<BlobId, Bytes>,
    /// Blobs by a hash of their bytes, as many as `indexed`.
    by_hash: BTreeMap<u64, Vec<BlobId>>,
    indexed: usize,
    /// Bytes read so far, and what this computer has.
    loaded_bytes: u64,
    memory_bytes: u64,
}

impl Default for Files {
    fn default() -> Self {
        Self {
            arrays: BTreeMap::new(),
            stores: BTreeMap::new(),
            passes: Vec::new(),
            without: Vec::new(),
            blobs: TiVec::new(),
            by_hash: BTreeMap::new(),
            indexed: 0,
            loaded_bytes: 0,
            memory_bytes: memory_bytes(),
        }
    }
}

impl Files {
    /// No files yet, and these blobs.
    pub(crate) fn with_blobs(blobs: TiVec<BlobId, Bytes>) -> Self {
        Self {
            blobs,
            ..Self::default()
        }
    }

    /// The bytes of a data file, which count towards what all files together may hold.
    fn load_file(&mut self, path: &Path, span: Span, sink: &mut Sink) -> Option<Bytes> {
        let free_bytes = self.memory_bytes.saturating_sub(self.loaded_bytes);
        match files::read(path, free_bytes) {
            Ok(bytes) => {
                self.loaded_bytes += bytes.len() as u64;
                Some(Bytes::from(bytes))
            }
            Err(ReadError::Size { bytes, .. }) => {
                let message = format!(
                    "`{}` has {bytes} bytes, and {} are in memory already: more than the {} of this computer",
                    path.display(),
                    self.loaded_bytes,
                    self.memory_bytes
                );

                sink.push(
                    Diagnostic::new(Code::E0505, message)
                        .primary(span, "named here")
                        .help("make the constants smaller, or compile where there is more memory"),
                );
                None
            }
            Err(error) => {
                let message = format!("cannot read `{}`: {error}", path.display());
                let help = match error {
                    ReadError::Io(_) => "paths are relative to the model file",
                    refused => refused.help(),
                };
                sink.push(
                    Diagnostic::new(Code::E0701, message)
                        .primary(span, "named here")
                        .help(help),
                );
                None
            }
        }
    }

    /// Reads the file of `Npy("path")`. An error is reported at every use, a file is read once.
    fn read_array(
        &mut self,
        args: &[Arg],
        span: Span,
        dir: &Path,
        sink: &mut Sink,
    ) -> Option<Rc<Npy>> {
        let [Arg { name: None, value }] = args else {
            sink.push(
                Diagnostic::new(Code::E0203, "`Npy` takes one path")
                    .primary(span, "should be `Npy(\"file.npy\")`"),
            );
            return None;
        };

        // Sub-models may be in other folders: the full path says which file it is.
        let file_path = read::string(value, "a path in quotes", sink)?;
        let full_path = dir.join(&file_path.value);
        if let Some(known @ Some(_)) = self.arrays.get(&full_path) {
            return known.clone();
        }
        let file_bytes = self.load_file(&full_path, file_path.span, sink)?;
        match npy::read(&file_bytes) {
            Ok(array) => {
                let shared_array = Rc::new(array);
                self.arrays.insert(full_path, Some(shared_array.clone()));
                Some(shared_array)
            }
            Err(error) => {
                sink.push(
                    Diagnostic::new(
                        Code::E0702,
                        format!("cannot use `{}`: {error}", full_path.display()),
                    )
                    .primary(file_path.span, "named here")
                    .help("write it with `numpy.save`, little-endian and in C order"),
                );

                None
            }
        }
    }

    /// The tensor of `Safetensors("path", "name")`: a slice of the file, which is read once.
    fn read_stored(
        &mut self,
        args: &[Arg],
        span: Span,
        dir: &Path,
        sink: &mut Sink,
    ) -> Option<(TokenType, Bytes)> {
        let [
            Arg {
                name: None,
                value: file_path,
            },
            Arg {
                name: None,
                value: tensor_name,
            },
        ] = args
        else {
            sink.push(
                Diagnostic::new(
                    Code::E0203,
                    "`Safetensors` takes a path and a tensor's name",
                )
                .primary(
                    span,
                    "should be `Safetensors(\"file.safetensors\", \"name\")`",
                ),
            );

            return None;
        };

        let file_path = read::string(file_path, "a path in quotes", sink)?;
        let tensor_name = read::string(tensor_name, "a tensor's name in quotes", sink)?;
        let full_path = dir.join(&file_path.value);
        let store_bytes = match self.stores.get(&full_path) {
            Some(store_bytes) => store_bytes.clone(),
            None => self.load_file(&full_path, file_path.span, sink)?,
        };

        // Kept even if the tensor is missing: the next name that is looked up need not read the file again.
        self.stores.insert(full_path.clone(), store_bytes.clone());
        match crate::safetensor::find(&store_bytes, &tensor_name.value) {
            Ok(found) => Some(found),
            Err(why) => {
                let message = format!("cannot use `{}`: {why}", full_path.display());
                sink.push(
                    Diagnostic::new(Code::E0702, message)
                        .primary(tensor_name.span, "named here")
                        .help("write it with the package `safetensors`, as `zbmdc import` does"),
                );
                None
            }
        }
    }

    /// The blob with these bytes.
    pub(crate) fn blob(&mut self, data: &Bytes) -> BlobId {
        self.index_blobs();
        // A hash only finds candidates: equal bytes decide.
        let same_hash = self.by_hash.get(&xxh3_64(data));
        let known_id = same_hash.and_then(|ids| ids.iter().find(|&&id| self.blobs[id] == *data));
        match known_id {
            Some(&id) => id,
            None => self.blobs.push_and_get_key(data.clone()),
        }
    }

    /// Takes into the index what was added since the last time, also by others: `blobs` is open to the crate.
    fn index_blobs(&mut self) {
        // Blobs were removed, which gives others new ids.
        if self.blobs.len() < self.indexed {
            self.by_hash.clear();
            self.indexed = 0;
        }
        for (id, blob) in self.blobs.iter_enumerated().skip(self.indexed) {
            self.by_hash.entry(xxh3_64(blob)).or_default().push(id);
        }
        self.indexed = self.blobs.len();
    }

    /// A parameter's value.
    pub(crate) fn value(&mut self, node: &Node, dir: &Path, sink: &mut Sink) -> Option<Value> {
        Some(match &node.kind {
            NodeKind::Bool(b) => Value::Bool(*b),
            NodeKind::Int(i) => Value::Int(*i),
            NodeKind::Float(f) if f.is_nan() => {
                sink.push(
                    Diagnostic::new(Code::E0305, "a parameter is NaN")
                        .primary(node.span, "not a number")
                        .help("give a number"),
                );
                return None;
            }
            NodeKind::Float(f) => Value::Float(*f),
            NodeKind::Str(s) | NodeKind::Word(s) => Value::Str(s.clone()),
            NodeKind::List(items) => {
                // All items are read before the first failure counts, so that each mistake is reported.
                let item_values: Vec<_> = items.iter().map(|n| self.value(n, dir, sink)).collect();
                Value::List(item_values.into_iter().collect::<Option<_>>()?)
            }
            NodeKind::Map(_) => {
                let pairs = read::map(node, "a map", sink);
                self.read_pairs(
                    pairs.into_iter().map(|(k, v)| (k.value, v)).collect(),
                    dir,
                    sink,
                )?
            }
            NodeKind::Call(Some(name), args) if name.value == "Npy" => {
                let array = self.read_array(args, node.span, dir, sink)?;
                Value::Tensor(self.blob(&array.data), array.token.clone())
            }
            NodeKind::Call(Some(name), args) if name.value == "Safetensors" => {
                let (token, data) = self.read_stored(args, node.span, dir, sink)?;
                Value::Tensor(self.blob(&data), token)
            }
            NodeKind::Call(Some(name), args) if name.value == live::NAME => {
                Value::Live(Box::new(live::read(args, node.span, sink)?))
            }
            // `(dtype: f32, shape: [2])` and `Port(dtype: f32)` are maps, `(1, 2)` is a list.
            NodeKind::Call(name, args) if args.iter().all(|a| a.name.is_some()) => {
                let group_name = name.as_ref().map_or("a group", |n| n.value.as_str());
                let mut group_fields = read::Fields::new(group_name, node.span, args, sink);
                let names = args
                    .iter()
                    .filter_map(|a| a.name.as_ref())
                    .map(|n| n.value.clone());
                let taken_names: Vec<_> = names
                    .filter_map(|n| group_fields.take(&n).map(|v| (n, v)))
                    .collect();
                self.read_pairs(taken_names, dir, sink)?
            }
            NodeKind::Call(None, args) if args.iter().all(|a| a.name.is_none()) => {
                let item_values: Vec<_> = args
                    .iter()
                    .map(|a| self.value(&a.value, dir, sink))
                    .collect();
                Value::List(item_values.into_iter().collect::<Option<_>>()?)
            }
            NodeKind::Call(..) => {
                sink.push(read::wrong_kind(
                    node,
                    "a value: a number, string, word, list, map, Npy(\"file\") or Safetensors(\"file\", \"name\")",
                ));
                return None;
            }
            NodeKind::Param(_) | NodeKind::Bad => return None,
        })
    }

    fn read_pairs(
        &mut self,
        pairs: Vec<(String, &Node)>,
        dir: &Path,
        sink: &mut Sink,
    ) -> Option<Value> {
        let pair_values: Vec<_> = pairs
            .into_iter()
            .map(|(k, v)| self.value(v, dir, sink).map(|v| (k, v)))
            .collect();
        Some(Value::Map(pair_values.into_iter().collect::<Option<_>>()?))
    }

    /// Tokens as a channel states them; their values are read when the type is known.
    pub(crate) fn tokens(&mut self, node: &Node, dir: &Path, sink: &mut Sink) -> Option<Tokens> {
        let kind =
            match &node.kind {
                NodeKind::List(items) => TokenKind::List(items.clone()),
                NodeKind::Call(Some(name), args) if name.value == "Zeros" => {
                    zero_tokens(args, node.span, sink)?
                }
                NodeKind::Call(Some(name), args) if name.value == "Fill" => {
                    filled_tokens(args, node.span, sink)?
                }
                NodeKind::Call(Some(name), args) if name.value == "Npy" => {
                    TokenKind::Array(self.read_array(args, node.span, dir, sink)?)
                }
                NodeKind::Bad | NodeKind::Param(_) => return None,
                _ => {
                    sink.push(read::wrong_kind(node, "a list of tokens").help(
                        "write `[0.0, 0.0]`, `Zeros(2)`, `Fill(2, 1.0)` or `Npy(\"file.npy\")`",
                    ));
                    return None;
                }
            };
        Some(Tokens {
            span: node.span,
            kind,
        })
    }
}

/// `Zeros(count)`.
fn zero_tokens(args: &[Arg], span: Span, sink: &mut Sink) -> Option<TokenKind> {
    let mut fields = read::Fields::of(&format::ZEROS, "the tokens", span, args, sink);
    let Some(count_node) = fields.take_or_positional("count") else {
        fields.missing("count", "1", sink);
        return None;
    };
    fields.done(sink);
    Some(TokenKind::Fill(token_count(count_node, sink)?, None))
}

/// `Fill(count, value)`. The value is read when the type is known.
fn filled_tokens(args: &[Arg], span: Span, sink: &mut Sink) -> Option<TokenKind> {
    let mut fields = read::Fields::of(&format::FILL, "the tokens", span, args, sink);
    let count_node = fields.take_or_positional("count");
    let value_node = fields.take_or_positional("value");
    let Some(count_node) = count_node else {
        fields.missing("count", "1", sink);
        return None;
    };
    let Some(value_node) = value_node else {
        fields.missing("value", "1", sink);
        return None;
    };

    fields.done(sink);
    let count = token_count(count_node, sink)?;
    Some(TokenKind::Fill(count, Some(value_node.clone())))
}

/// A token has a byte at least, so no channel can have more tokens than all may have bytes.
fn token_count(node: &Node, sink: &mut Sink) -> Option<u64> {
    let max = limits::MAX_INITIAL_BYTES;
    Some(read::count(node, "a number of tokens", 0, max, sink)?.value)
}

/// Tokens that a channel states.
#[derive(Clone, Debug)]
pub(crate) struct Tokens {
    pub(crate) span: Span,
    pub(crate) kind: TokenKind,
}

/// How tokens are stated.
#[derive(Clone, Debug)]
pub(crate) enum TokenKind {
    /// One value each.
    List(Vec<Node>),
    /// That many of one value; zeros without one.
    Fill(u64, Option<Node>),
    /// From a file: the first dimension counts tokens.
    Array(Rc<Npy>),
    /// Ready-made, from Rust.
    Bytes(Vec<u8>),
}

impl Tokens {
    /// Number of tokens, if they are of that type. Rounded down for ready-made bytes.
    fn count(&self, token: &TokenType) -> u64 {
        match &self.kind {
            TokenKind::List(items) => items.len() as u64,
            TokenKind::Fill(n, _) => *n,
            TokenKind::Array(a) => a.token.elements() / token.elements().max(1),
            TokenKind::Bytes(b) => b.len() as u64 / token.bytes().max(1),
        }
    }

    /// The bytes of all tokens.
    pub(crate) fn bytes(&self, token: &TokenType, sink: &mut Sink) -> Option<Vec<u8>> {
        // Checked before anything is allocated: `Zeros(n)` states a huge number in a few characters.
        let total_bytes = self.count(token).saturating_mul(token.bytes());
        if total_bytes > limits::MAX_INITIAL_BYTES {
            sink.push(initial_limit(self.span, self.count(token), token));
            return None;
        }

        let mut token_data = Vec::new();
        match &self.kind {
            TokenKind::Bytes(bytes) => {
                if !(bytes.len() as u64).is_multiple_of(token.bytes().max(1)) {
                    let message = format!(
                        "{} initial bytes are not a whole number of tokens of {token}",
                        bytes.len()
                    );
                    sink.push(
                        Diagnostic::new(Code::E0307, message).primary(self.span, "stated here"),
                    );
                    return None;
                }

                token_data.extend_from_slice(bytes);
            }
            TokenKind::Array(array) => return self.array_bytes(array, token, sink),
            TokenKind::Fill(n, None) => token_data.resize((n * token.bytes()) as usize, 0),
            TokenKind::Fill(n, Some(value)) => {
                token_bytes(value, token, &mut token_data, sink)?;
                token_data = token_data.repeat(*n as usize);
            }
            TokenKind::List(items) => {
                for item in items {
                    token_bytes(item, token, &mut token_data, sink)?;
                }
            }
        }

        Some(token_data)
    }

    fn array_bytes(&self, array: &Npy, token: &TokenType, sink: &mut Sink) -> Option<Vec<u8>> {
        // The first dimension counts tokens, the others are the token's shape.
        let is_token_list = !token.burst
            && array.token.dtype == token.dtype
            && array.token.shape.get(1..) == Some(&token.shape);
        if is_token_list {
            return Some(array.data.to_vec());
        }

        let mut wanted_dims = vec!["n".to_owned()];
        wanted_dims.extend(token.shape.iter().map(u32::to_string));
        let wanted_shape = wanted_dims.join(",");
        sink.push(
            Diagnostic::new(
                Code::E0703,
                format!(
                    "the file holds {}, the channel carries {token}",
                    array.token
                ),
            )
            .primary(self.span, format!("tokens of {} here", array.token))
            .help(format!(
                "save an array of {} with the shape [{wanted_shape}]: n tokens",
                token.dtype
            )),
        );

        None
    }
}

/// E0505 for initial tokens.
pub(crate) fn initial_limit(span: Span, count: u64, token: &TokenType) -> Diagnostic {
    let max_bytes = limits::MAX_INITIAL_BYTES;
    Diagnostic::new(
        Code::E0505,
        format!("{count} initial tokens of {token} are more than the limit of {max_bytes} bytes"),
    )
    .primary(span, "stated here")
    .help(format!(
        "at most {} of them",
        max_bytes / token.bytes().max(1)
    ))
}

/// One token's elements: a value, or nested lists that together hold as many values as the type has elements.
fn token_bytes(node: &Node, token: &TokenType, out: &mut Vec<u8>, sink: &mut Sink) -> Option<()> {
    if token.burst {
        sink.push(
            Diagnostic::new(
                Code::E0307,
                format!("the channel carries {token}, whose initial tokens are empty bursts"),
            )
            .primary(node.span, "values are given")
            .help("write `Zeros(n)`: n empty bursts"),
        );
        return None;
    }
    let start_length = out.len();
    element_bytes(node, token, out, sink)?;

    // Lists may be nested as the shape is or not at all: only the number of elements is checked.
    let found_elements = (out.len() - start_length) as u64 / token.dtype.size_bytes();
    if found_elements == token.elements() {
        return Some(());
    }
    sink.push(
        Diagnostic::new(
            Code::E0307,
            format!(
                "a token of {token} has {} elements, {found_elements} are given",
                token.elements()
            ),
        )
        .primary(node.span, format!("{found_elements} elements"))
        .help(if token.shape.is_empty() {
            "give one value a token: `initial: [0.0, 0.0]` are two tokens".to_owned()
        } else {
            format!(
                "give a list of {} values for each token, or `Zeros(n)`",
                token.elements()
            )
        }),
    );

    None
}

fn element_bytes(node: &Node, token: &TokenType, out: &mut Vec<u8>, sink: &mut Sink) -> Option<()> {
    let is_complex = token.dtype == DType::C32;
    match &node.kind {
        NodeKind::List(items) => items
            .iter()
            .try_for_each(|n| element_bytes(n, token, out, sink)),
        NodeKind::Call(None, args)
            if is_complex && args.len() == 2 && args.iter().all(|a| a.name.is_none()) =>
        {
            args.iter().try_for_each(|a| {
                let part_value = read::float(&a.value, "a real or imaginary part", sink)?;
                out.extend((part_value.value as f32).to_le_bytes());
                Some(())
            })
        }
        NodeKind::Bad | NodeKind::Param(_) => None,
        kind => {
            let scalar_bytes = scalar(kind, token.dtype);
            if scalar_bytes.is_none() {
                sink.push(
                    Diagnostic::new(
                        Code::E0307,
                        format!("{} is no {}", node.describe(), token.dtype),
                    )
                    .primary(node.span, format!("does not fit {token}"))
                    .help(scalar_help(token.dtype)),
                );
            }

            out.extend(scalar_bytes?);
            Some(())
        }
    }
}

fn scalar_help(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "write true or false",
        DType::C32 => "write a number or `(re, im)`",
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => {
            "write a number in the range of the dtype"
        }
        _ => "write an integer in the range of the dtype",
    }
}

/// The little-endian bytes of one element; `None` where the value has no equal in the dtype.
fn scalar(kind: &NodeKind, dtype: DType) -> Option<Vec<u8>> {
    let float = match kind {
        NodeKind::Int(i) => *i as f64,
        NodeKind::Float(f) => *f,
        NodeKind::Bool(b) if dtype == DType::Bool => return Some(vec![u8::from(*b)]),
        _ => return None,
    };

    // `2.0` may stand for an integer below 2^53 (about 9e15), where every integer is exact in an f64.
    let int = match kind {
        NodeKind::Int(i) => Some(*i),
        NodeKind::Float(f) if f.fract() == 0.0 && f.abs() < 9e15 => Some(*f as i64),
        _ => None,
    };
    // Rounding is fine, turning a finite number into an infinite one is not.
    let fits_range = |rounded: f64| float.is_infinite() || float.is_nan() || rounded.is_finite();
    match dtype {
        DType::F32 => Some((float as f32).to_le_bytes().to_vec())
            .filter(|_| fits_range(f64::from(float as f32))),
        DType::F64 => Some(float.to_le_bytes().to_vec()),
        DType::F16 => {
            let half_float = f16::from_f64(float);
            Some(half_float.to_le_bytes().to_vec()).filter(|_| fits_range(half_float.to_f64()))
        }
        DType::Bf16 => {
            let half_float = bf16::from_f64(float);
            Some(half_float.to_le_bytes().to_vec()).filter(|_| fits_range(half_float.to_f64()))
        }
        DType::C32 => {
            let re = float as f32;
            let complex_bytes = [re.to_le_bytes(), 0f32.to_le_bytes()].concat();
            Some(complex_bytes).filter(|_| fits_range(f64::from(re)))
        }
        DType::I8 => i8::try_from(int?).ok().map(|v| v.to_le_bytes().to_vec()),
        DType::U8 => u8::try_from(int?).ok().map(|v| v.to_le_bytes().to_vec()),
        DType::I16 => i16::try_from(int?).ok().map(|v| v.to_le_bytes().to_vec()),
        DType::I32 => i32::try_from(int?).ok().map(|v| v.to_le_bytes().to_vec()),
        DType::I64 => int.map(|v| v.to_le_bytes().to_vec()),
        DType::Bool => None,
    }
}

/// A dtype and a shape that a channel or port states, each if it does.
#[derive(Clone, Debug, Default)]
pub(crate) struct TypeFact {
    pub(crate) dtype: Option<Spanned<DType>>,
    pub(crate) shape: Option<Spanned<StatedShape>>,
    /// Whether one of them was stated and could not be read.
    pub(crate) bad: bool,
}

impl TypeFact {
    /// A type that is stated in full.
    pub(crate) fn of(token: &TokenType, span: Span) -> Self {
        let shape = Some(Spanned::new(StatedShape::of(token), span));
        Self {
            dtype: Some(Spanned::new(token.dtype, span)),
            shape,
            bad: false,
        }
    }

    /// The whole type, if it is stated.
    pub(crate) fn token(&self) -> Option<TokenType> {
        let dtype = self.dtype.as_ref()?.value;
        let shape = self.shape.as_ref()?.value.clone();
        Some(TokenType {
            dtype,
            shape: shape.dims,
            burst: shape.burst,
        })
    }
}

/// A shape as models state it: `[2]`, or `Burst(max: 14)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StatedShape {
    pub(crate) dims: Vec<u32>,
    pub(crate) burst: bool,
}

impl StatedShape {
    /// The shape of a type's tokens.
    pub(crate) fn of(token: &TokenType) -> Self {
        Self {
            dims: token.shape.clone(),
            burst: token.burst,
        }
    }
}

impl fmt::Display for StatedShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dims.split_first() {
            Some((max, item)) if self.burst && item.is_empty() => write!(f, "Burst(max: {max})"),
            Some((max, item)) if self.burst => write!(f, "Burst(max: {max}, of: {item:?})"),
            _ => write!(f, "{:?}", self.dims),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars() {
        let cases: &[(NodeKind, DType, Option<&[u8]>)] = &[
            (NodeKind::Int(1), DType::F32, Some(&[0, 0, 128, 63])),
            (NodeKind::Float(1e39), DType::F32, None),
            (
                NodeKind::Float(f64::INFINITY),
                DType::F32,
                Some(&[0, 0, 128, 127]),
            ),
            (NodeKind::Float(7e4), DType::F16, None),
            (NodeKind::Int(255), DType::U8, Some(&[255])),
            (NodeKind::Int(256), DType::U8, None),
            (NodeKind::Int(-1), DType::U8, None),
            (NodeKind::Float(1.5), DType::I32, None),
            (NodeKind::Float(2.0), DType::I16, Some(&[2, 0])),
            (NodeKind::Bool(true), DType::Bool, Some(&[1])),
            (NodeKind::Int(1), DType::Bool, None),
            (NodeKind::Str("1".into()), DType::F32, None),
            (
                NodeKind::Int(1),
                DType::C32,
                Some(&[0, 0, 128, 63, 0, 0, 0, 0]),
            ),
        ];
        for (kind, dtype, expect) in cases {
            assert_eq!(
                scalar(kind, *dtype).as_deref(),
                *expect,
                "{kind:?} as {dtype}"
            );
        }
    }
}
