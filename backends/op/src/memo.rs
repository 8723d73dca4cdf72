//! The resolved ops of one compilation or one worker, so that each actor's parameters are parsed once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use zbmd_ir::{TokenType, Value};

use crate::{Op, OpError, ResolveCx, ResolvedOp};

/// Ops by all that they were resolved from: name, parameters, inputs and constants. Actors that agree in these share
/// one, and an actor that a pass has changed gets another. Safe to share between threads.
#[derive(Default)]
pub(super) struct ResolvedOps {
    by_key: Mutex<BTreeMap<Vec<u8>, Remembered>>,
}

struct Remembered {
    resolved: Arc<ResolvedOp>,
    /// The constants that the key names by address: while they are held, no other one can be at that address.
    _constants: Vec<Bytes>,
}

impl fmt::Debug for ResolvedOps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_key = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("ResolvedOps")
            .field("count", &by_key.len())
            .finish()
    }
}

impl ResolvedOps {
    /// The op for these parameters and inputs, resolved now unless it has been before.
    ///
    /// # Errors
    /// See [`Op::resolve`]. Errors are not remembered: an input's type may be known next time.
    pub(super) fn get_or_resolve(
        &self,
        op: &dyn Op,
        cx: &ResolveCx<'_>,
    ) -> Result<Arc<ResolvedOp>, OpError> {
        let key = Key::of(op, cx);
        let by_key = || self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(remembered) = by_key().get(&key.bytes) {
            return Ok(Arc::clone(&remembered.resolved));
        }

        // Not under the lock: resolving takes a while, and may panic. Of two threads that meet here one's is kept.
        let resolved = Arc::new(op.resolve(cx)?);
        let remembered = Remembered {
            resolved,
            _constants: key.constants,
        };
        let mut by_key = by_key();
        let entry = by_key.entry(key.bytes).or_insert(remembered);
        Ok(Arc::clone(&entry.resolved))
    }
}

/// What an op is resolved from, as bytes: lengths go before contents, so that no two keys run into each other.
struct Key<'a> {
    cx: &'a ResolveCx<'a>,
    bytes: Vec<u8>,
    constants: Vec<Bytes>,
}

impl<'a> Key<'a> {
    fn of(op: &dyn Op, cx: &'a ResolveCx<'a>) -> Self {
        let mut key = Self {
            cx,
            bytes: Vec::new(),
            constants: Vec::new(),
        };
        key.add_text(op.name());
        key.add_params(cx.params);

        // The first input may be given without its name, and the order of channels means nothing.
        let first_name = first_input_name(op);
        let full_name = |name: &'a str| if name.is_empty() { &first_name } else { name };
        let mut connected: Vec<&str> = cx.connected.iter().map(|name| full_name(name)).collect();
        connected.sort_unstable();
        key.add_length(connected.len());
        for name in connected {
            key.add_text(name);
        }

        let types = cx.types.iter();
        let mut types: Vec<_> = types.map(|(name, ty)| (full_name(name), ty)).collect();
        types.sort_unstable_by_key(|(name, _)| *name);
        key.add_length(types.len());
        for (name, token) in types {
            key.add_text(name);
            key.add_type(token);
        }
        key
    }

    fn add_length(&mut self, length: usize) {
        self.bytes.extend((length as u64).to_le_bytes());
    }

    fn add_text(&mut self, text: &str) {
        self.add_length(text.len());
        self.bytes.extend(text.as_bytes());
    }

    fn add_type(&mut self, token: &TokenType) {
        self.add_text(token.dtype.name());
        self.add_length(token.shape.len());
        for dimension in &token.shape {
            self.bytes.extend(dimension.to_le_bytes());
        }
    }

    fn add_params(&mut self, params: &BTreeMap<String, Value>) {
        self.add_length(params.len());
        for (name, value) in params {
            self.add_text(name);
            self.add_value(value);
        }
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::Bool(truth) => self.bytes.extend([0, u8::from(*truth)]),
            Value::Int(number) => {
                self.bytes.push(1);
                self.bytes.extend(number.to_le_bytes());
            }
            Value::Float(number) => {
                self.bytes.push(2);
                self.bytes.extend(number.to_bits().to_le_bytes());
            }
            Value::Str(text) => {
                self.bytes.push(3);
                self.add_text(text);
            }
            Value::List(values) => {
                self.bytes.push(4);
                self.add_length(values.len());
                values.iter().for_each(|value| self.add_value(value));
            }
            Value::Map(values) => {
                self.bytes.push(5);
                self.add_params(values);
            }
            Value::Tensor(blob, token) => {
                self.bytes.push(6);
                self.add_type(token);
                match self.cx.blobs.get(*blob) {
                    Some(data) => self.add_constant(data.clone()),
                    None => self.bytes.push(0),
                }
            }
            // Ops are resolved with ordinary values in place of live ones.
            Value::Live(parameter) => {
                self.bytes.push(7);
                self.add_value(&parameter.value_of(&parameter.initial));
            }
            // Nor with gates, but who asks may give anything.
            Value::Gate(_) => self.bytes.push(8),
        }
    }

    /// By address: constants are large, and a compilation hands them on without copies, though under new numbers.
    fn add_constant(&mut self, data: Bytes) {
        self.bytes.push(1);
        self.add_length(data.as_ptr() as usize);
        self.add_length(data.len());
        self.constants.push(data);
    }
}

/// The name of an op's first input; empty where the op has inputs of any name.
fn first_input_name(op: &dyn Op) -> String {
    let first_port = op.types().and_then(|types| types.inputs.first());
    match first_port {
        Some(port) if port.name == "_" => String::new(),
        Some(port) if port.many => format!("{}0", port.name),
        Some(port) => port.name.to_owned(),
        None => String::new(),
    }
}
