//! An imported model as the text of a model file, its weights apart.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use zbmd_ir::{BlobId, Role, TiVec, TokenType, Value};

use crate::net::{End, Net};

/// A model in text, with the tensors it names.
#[derive(Clone, Debug)]
pub struct Text {
    /// The model file.
    pub model: String,
    /// Names, types and elements of the weights, for the file beside it.
    pub tensors: Vec<(String, TokenType, Bytes)>,
}

/// Writes a net made of an imported model; `store` is the file of its weights as the model names it.
pub(super) fn text(net: &Net, blobs: &TiVec<BlobId, Bytes>, store: &str) -> Text {
    let names = names(net);
    let mut writer = Writer {
        store,
        blobs,
        tensors: Vec::new(),
        known: BTreeMap::new(),
    };

    let mut out = format!("Model(\n    name: {:?},\n", net.name);
    for (role, field) in [
        (Role::Source, "sources"),
        (Role::Compute, "actors"),
        (Role::Sink, "sinks"),
    ] {
        let mut block = String::new();
        for (actor, name) in net
            .actors
            .iter()
            .zip(&names)
            .filter(|(a, _)| a.role == role)
        {
            let value = if role == Role::Compute {
                let params: Vec<String> = actor
                    .params
                    .iter()
                    .map(|(k, v)| format!("{k}: {}", writer.value(v, &format!("{name}.{k}"))))
                    .collect();
                format!("{}({})", actor.op.value, params.join(", "))
            } else {
                match actor.stream.token() {
                    Some(token) => {
                        format!("Stream(dtype: {}, shape: {})", token.dtype, dims(&token))
                    }
                    None => "Stream()".to_owned(),
                }
            };

            block += &format!("        {name:?}: {value},\n");
        }

        out += &format!("    {field}: {{\n{block}    }},\n");
    }

    out += "    channels: [\n";
    for (from, (readers, delayed)) in channels(net, &names) {
        let (delayed, types) = delayed;
        let initial = format!("{types}, initial: Zeros(1)");
        for (readers, initial) in [(readers, ""), (delayed, initial.as_str())] {
            if !readers.is_empty() {
                let to: Vec<String> = readers.iter().map(|r| format!("{r:?}")).collect();
                out += &format!(
                    "        (from: {from:?}, to: [{}]{initial}),\n",
                    to.join(", ")
                );
            }
        }
    }

    for end in &net.dropped {
        out += &format!("        (from: {:?}, to: []),\n", end_text(end, &names));
    }
    out += "    ],\n)\n";
    Text {
        model: out,
        tensors: writer.tensors,
    }
}

type Readers = (Vec<String>, (Vec<String>, String));

/// Readers of every output, without and with an initial token.
fn channels(net: &Net, names: &[String]) -> BTreeMap<String, Readers> {
    let mut out: BTreeMap<String, Readers> = BTreeMap::new();
    for link in &net.links {
        let readers = out.entry(end_text(&link.from, names)).or_default();
        if link.initial.is_empty() {
            readers.0.push(end_text(&link.to, names));
        } else {
            readers.1.0.push(end_text(&link.to, names));
            if let Some(token) = link.stated() {
                readers.1.1 = format!(", dtype: {}, shape: {}", token.dtype, dims(&token));
            }
        }
    }
    out
}

fn end_text(end: &End, names: &[String]) -> String {
    match &end.port {
        Some(port) => format!("{}.{port}", names[end.actor]),
        None => names[end.actor].clone(),
    }
}

fn dims(token: &TokenType) -> String {
    let dims: Vec<String> = token.shape.iter().map(u32::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// Names that a model file may use: letters, digits, `_` and `-`, each once.
fn names(net: &Net) -> Vec<String> {
    let mut taken = BTreeSet::new();
    let mut out = Vec::new();
    for actor in &net.actors {
        let plain = |c: char| {
            if c.is_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        };

        let wish: String = actor
            .name
            .trim_matches('/')
            .chars()
            .take(180)
            .map(plain)
            .collect();
        let wish = if wish.is_empty() {
            "actor".to_owned()
        } else {
            wish
        };
        let mut name = wish.clone();
        let mut count = 1;
        while !taken.insert(name.clone()) {
            count += 1;
            name = format!("{wish}-{count}");
        }

        out.push(name);
    }
    out
}

struct Writer<'a> {
    store: &'a str,
    blobs: &'a TiVec<BlobId, Bytes>,
    tensors: Vec<(String, TokenType, Bytes)>,
    known: BTreeMap<(BlobId, String), String>,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, place: &str) -> String {
        match value {
            Value::Bool(b) => b.to_string(),
            Value::Int(i) => i.to_string(),
            Value::Float(f) => format!("{f:?}"),
            Value::Str(s) => format!("{s:?}"),
            Value::List(list) => {
                let items: Vec<String> = list.iter().map(|v| self.value(v, place)).collect();
                format!("[{}]", items.join(", "))
            }
            Value::Map(map) => {
                let items: Vec<String> = map
                    .iter()
                    .map(|(k, v)| format!("{k:?}: {}", self.value(v, place)))
                    .collect();
                format!("{{{}}}", items.join(", "))
            }
            Value::Tensor(blob, token) => {
                let key = (*blob, token.to_string());
                let name = match self.known.get(&key) {
                    Some(name) => name.clone(),
                    None => {
                        let data = self.blobs.get(*blob).cloned().unwrap_or_default();
                        self.tensors.push((place.to_owned(), token.clone(), data));
                        self.known.insert(key, place.to_owned());
                        place.to_owned()
                    }
                };

                format!("Safetensors({:?}, {name:?})", self.store)
            }
        }
    }
}
