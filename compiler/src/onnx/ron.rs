//! An imported model as the text of a model file, its weights apart.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use zbmd_ir::{BlobId, Role, TiVec, TokenType, Value};

use crate::net::{End, Net, NetActor};

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
    let names = file_names(net);
    let mut writer = Writer {
        store,
        blobs,
        tensors: Vec::new(),
        names_of_tensors: BTreeMap::new(),
    };

    let mut model = format!("Model(\n    name: {:?},\n", net.name);
    let groups = [
        (Role::Source, "sources"),
        (Role::Compute, "actors"),
        (Role::Sink, "sinks"),
    ];
    for (role, field) in groups {
        model += &format!("    {field}: {{\n");
        for (actor, name) in net.actors.iter().zip(&names) {
            if actor.role == role {
                model += &format!("        {name:?}: {},\n", writer.actor(actor, name));
            }
        }
        model += "    },\n";
    }

    model += "    channels: [\n";
    for (from, readers) in readers_by_writer(net, &names) {
        model += &channel(&from, &readers.direct, "");
        let initial = format!("{}, initial: Zeros(1)", readers.delayed_type);
        model += &channel(&from, &readers.delayed, &initial);
    }

    // A channel without readers says that the output is left unread on purpose.
    for end in &net.dropped {
        let from = end_text(end, &names);
        model += &format!("        (from: {from:?}, to: []),\n");
    }
    model += "    ],\n)\n";
    Text {
        model,
        tensors: writer.tensors,
    }
}

/// One channel with what is stated about it; no text where it has no readers.
fn channel(from: &str, readers: &[String], stated: &str) -> String {
    if readers.is_empty() {
        return String::new();
    }
    let quoted: Vec<String> = readers.iter().map(|reader| format!("{reader:?}")).collect();
    format!(
        "        (from: {from:?}, to: [{}]{stated}),\n",
        quoted.join(", ")
    )
}

/// Readers of one output. Those behind an initial token need a channel of their own.
#[derive(Default)]
struct Readers {
    direct: Vec<String>,
    delayed: Vec<String>,
    /// The type of the delayed channel as text: in a loop of state, nothing else fixes it.
    delayed_type: String,
}

/// Readers of every output, by the output's text.
fn readers_by_writer(net: &Net, names: &[String]) -> BTreeMap<String, Readers> {
    let mut readers_by_writer: BTreeMap<String, Readers> = BTreeMap::new();
    for link in &net.links {
        let from = end_text(&link.from, names);
        let readers = readers_by_writer.entry(from).or_default();
        if link.initial.is_empty() {
            readers.direct.push(end_text(&link.to, names));
            continue;
        }

        readers.delayed.push(end_text(&link.to, names));
        if let Some(token) = link.stated() {
            readers.delayed_type = format!(", dtype: {}, shape: {}", token.dtype, dims(&token));
        }
    }
    readers_by_writer
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

/// Characters of a name that are kept; a number may follow where two names begin alike.
const MAX_NAME_CHARS: usize = 180;

/// Names that a model file may use: letters, digits, `_` and `-`, each once.
fn file_names(net: &Net) -> Vec<String> {
    let mut taken_names = BTreeSet::new();
    let mut file_names = Vec::new();
    for actor in &net.actors {
        let kept_chars = actor.name.trim_matches('/').chars().take(MAX_NAME_CHARS);
        let mut base_name: String = kept_chars.map(name_char).collect();
        if base_name.is_empty() {
            base_name = "actor".to_owned();
        }

        let mut name = base_name.clone();
        let mut count = 1;
        while !taken_names.insert(name.clone()) {
            count += 1;
            name = format!("{base_name}-{count}");
        }

        file_names.push(name);
    }
    file_names
}

/// `/` and `.` of ONNX names would be read as an instance and a port.
fn name_char(written: char) -> char {
    if written.is_alphanumeric() || written == '-' {
        written
    } else {
        '_'
    }
}

struct Writer<'a> {
    store: &'a str,
    blobs: &'a TiVec<BlobId, Bytes>,
    tensors: Vec<(String, TokenType, Bytes)>,
    /// Tensors that are stored already, by blob and type: actors that share a blob share the tensor.
    names_of_tensors: BTreeMap<(BlobId, String), String>,
}

impl Writer<'_> {
    /// An actor's declaration behind its name.
    fn actor(&mut self, actor: &NetActor, name: &str) -> String {
        if actor.role == Role::Compute {
            let mut params = Vec::new();
            for (key, value) in &actor.params {
                let value = self.value(value, &format!("{name}.{key}"));
                params.push(format!("{key}: {value}"));
            }
            return format!("{}({})", actor.op.value, params.join(", "));
        }

        match actor.stream.token() {
            Some(token) => format!("Stream(dtype: {}, shape: {})", token.dtype, dims(&token)),
            None => "Stream()".to_owned(),
        }
    }

    /// A value as text; a tensor in it is stored under the name `place`, unless it has been stored already.
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
                let name = match self.names_of_tensors.get(&key) {
                    Some(name) => name.clone(),
                    None => {
                        let data = self.blobs.get(*blob).cloned().unwrap_or_default();
                        self.tensors.push((place.to_owned(), token.clone(), data));
                        self.names_of_tensors.insert(key, place.to_owned());
                        place.to_owned()
                    }
                };

                format!("Safetensors({:?}, {name:?})", self.store)
            }
            Value::Live(parameter) => self.value(&parameter.value_of(&parameter.initial), place),
            // Imported models have none.
            Value::Gate(_) => "()".to_owned(),
        }
    }
}
