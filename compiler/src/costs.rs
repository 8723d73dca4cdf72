//! Measured costs of kernels: what they are keyed by, and their section of `machine.ron`. Measures nothing.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use bytes::Bytes;
use serde::Serialize;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};
use zbmd_ir::{Actor, BlobId, Machine, TiSlice, TokenType, Value};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::format::{self, Group};
use crate::parse::{Kind, Node};
use crate::read::{self, Fields};
use crate::source::{Span, Spanned};

/// Most picoseconds of a call or a firing: a thousand seconds. More is a damaged file.
pub(crate) const MAX_PS: u64 = 1_000_000_000_000_000;
/// Largest spread, in percent.
pub(crate) const MAX_SPREAD: f64 = 100_000.0;

/// What a cost belongs to: an op with its parameters and ports, whatever the actor is called and wherever it stands
/// in its graph. The 128-bit XXH3 hash of a text; see [`key_text`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CostKey(pub u128);

impl CostKey {
    /// The key of an actor whose tensors lie in `blobs`. O(parameters and tensors).
    pub fn of(actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Self {
        struct Hasher(Xxh3);
        impl Write for Hasher {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.0.update(text.as_bytes());
                Ok(())
            }
        }
        let mut hasher = Hasher(Xxh3::new());
        // Neither the hasher nor any `Display` below can fail.
        let _ = write_key(&mut hasher, actor, blobs);
        Self(hasher.0.digest128())
    }

    /// Reads what [`Display`](fmt::Display) writes: 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (text.len() == 32 && digits).then(|| u128::from_str_radix(text, 16).ok().map(Self))?
    }
}

impl fmt::Display for CostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The text that [`CostKey`] is the hash of: op, parameters, then name, type, rate and window of each port, then the
/// state pairs. Tensors count by their contents. Changing this text makes every measured cost a stranger.
pub fn key_text(actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_key(&mut out, actor, blobs);
    out
}

fn write_key(out: &mut impl Write, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> fmt::Result {
    writeln!(out, "op {:?}", actor.op)?;
    for (name, value) in &actor.params {
        write!(out, "param {name:?} ")?;
        write_value(out, value, blobs)?;
        writeln!(out)?;
    }
    for port in &actor.inputs {
        let (name, token, rate, window) = (&port.name, &port.token, port.rate, port.window);
        writeln!(out, "in {name:?} {token} rate {rate} window {window}")?;
    }
    for port in &actor.outputs {
        writeln!(out, "out {:?} {} rate {}", port.name, port.token, port.rate)?;
    }
    for pair in &actor.state {
        writeln!(out, "state {} {}", pair.input, pair.output)?;
    }
    Ok(())
}

fn write_value(out: &mut impl Write, value: &Value, blobs: &TiSlice<BlobId, Bytes>) -> fmt::Result {
    match value {
        Value::Bool(b) => write!(out, "{b}"),
        Value::Int(i) => write!(out, "{i}"),
        // Debug keeps the point of a whole number and every bit of the others.
        Value::Float(f) => write!(out, "{f:?}"),
        Value::Str(s) => write!(out, "{s:?}"),
        Value::List(items) => {
            write!(out, "[")?;
            for item in items {
                write_value(out, item, blobs)?;
                write!(out, ",")?;
            }
            write!(out, "]")
        }
        Value::Map(items) => {
            write!(out, "{{")?;
            for (name, item) in items {
                write!(out, "{name:?}:")?;
                write_value(out, item, blobs)?;
                write!(out, ",")?;
            }
            write!(out, "}}")
        }
        Value::Tensor(id, token) => {
            let hash = blobs.get(*id).map_or(0, |bytes| xxh3_128(bytes));
            write!(out, "tensor {token} {hash:032x}")
        }
    }
}

/// The ports of an actor for people, without those of states: `f32 1/31 -> f32 1`, rates, and windows where they are
/// larger.
pub fn ports_text(actor: &Actor) -> String {
    let typed = |token: &TokenType, rate: u64, window: u64| {
        if window > rate {
            format!("{token} {rate}/{window}")
        } else {
            format!("{token} {rate}")
        }
    };
    let inputs = actor.inputs.iter().enumerate();
    let inputs = inputs.filter(|(i, _)| actor.state_of_input(*i as u32).is_none());
    let inputs: Vec<String> = inputs
        .map(|(_, p)| typed(&p.token, p.rate, p.window))
        .collect();
    let outputs = actor.outputs.iter().enumerate();
    let outputs = outputs.filter(|(i, _)| actor.state_of_output(*i as u32).is_none());
    let outputs: Vec<String> = outputs
        .map(|(_, p)| typed(&p.token, p.rate, p.rate))
        .collect();
    let sides = [inputs.join(", "), "->".to_owned(), outputs.join(", ")];
    sides
        .into_iter()
        .filter(|s| !s.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// What a kernel was measured to cost: a call of n firings takes `call_ps + n * firing_ps` picoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredCost {
    /// The op, for people; the key knows it too.
    pub op: String,
    /// Its ports, for people; see [`ports_text`].
    pub ports: String,
    /// Cost of a call, whatever its number of firings.
    pub call_ps: u64,
    /// Cost of each firing.
    pub firing_ps: u64,
    /// Median absolute deviation of the samples, in percent of their median.
    pub spread_percent: f64,
    /// Samples taken of each number of firings.
    pub samples: u32,
    /// The variant of the kernel that was measured; `None` for the default one.
    pub variant: Option<String>,
}

impl MeasuredCost {
    /// Whether the numbers can be: bounded, and not nothing; and whether the variant may be one.
    pub(crate) fn is_sane(&self) -> bool {
        self.variant.as_deref().is_none_or(is_variant)
            && self.call_ps <= MAX_PS
            && self.firing_ps <= MAX_PS
            && (self.call_ps > 0 || self.firing_ps > 0)
            && (0.0..=MAX_SPREAD).contains(&self.spread_percent)
            && self.samples > 0
    }
}

/// Whether a variant of a kernel may have that name: what the verifier allows.
fn is_variant(name: &str) -> bool {
    let fits = (1..=zbmd_ir::limits::MAX_VARIANT_NAME).contains(&name.len());
    fits && name
        .bytes()
        .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Measured costs by the names of devices: the `costs` of a `machine.ron`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredCosts {
    devices: BTreeMap<String, BTreeMap<CostKey, MeasuredCost>>,
}

impl MeasuredCosts {
    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.devices.values().all(BTreeMap::is_empty)
    }

    /// Whether any of them is of a variant other than the default.
    pub(crate) fn has_variants(&self) -> bool {
        self.devices
            .values()
            .flat_map(BTreeMap::values)
            .any(|cost| cost.variant.is_some())
    }

    /// What was measured on a device.
    pub fn get(&self, device: &str, key: CostKey) -> Option<&MeasuredCost> {
        self.devices.get(device)?.get(&key)
    }

    /// Adds a cost, or replaces the one of the same device and key.
    pub fn insert(&mut self, device: &str, key: CostKey, cost: MeasuredCost) {
        self.devices
            .entry(device.to_owned())
            .or_default()
            .insert(key, cost);
    }
}

#[derive(Serialize)]
#[serde(rename = "Cost")]
struct RonCost<'a> {
    op: &'a str,
    ports: &'a str,
    key: String,
    call_ps: u64,
    firing_ps: u64,
    spread: f64,
    samples: u32,
    /// Empty for the default one.
    #[serde(skip_serializing_if = "str::is_empty")]
    variant: &'a str,
}

/// The value of the `costs` field, one line for each cost, devices in the machine's order and together where all
/// their costs are equal; `None` without costs. Costs of devices that the machine lacks are left out.
pub(crate) fn to_ron(
    machine: &Machine,
    costs: &MeasuredCosts,
) -> Result<Option<String>, ron::Error> {
    let mut groups: Vec<(Vec<&str>, &BTreeMap<CostKey, MeasuredCost>)> = Vec::new();
    for device in &machine.devices {
        let Some(own) = costs.devices.get(&device.name).filter(|c| !c.is_empty()) else {
            continue;
        };
        match groups.iter_mut().find(|(_, other)| *other == own) {
            Some((names, _)) => names.push(&device.name),
            None => groups.push((vec![&device.name], own)),
        }
    }
    if groups.is_empty() {
        return Ok(None);
    }
    let config = ron::ser::PrettyConfig::new()
        .struct_names(true)
        .depth_limit(0);
    let mut out = "[\n".to_owned();
    for (names, own) in groups {
        let names = ron::ser::to_string_pretty(&names, config.clone())?;
        out += &format!("        Costs(devices: {names}, entries: [\n");
        // Ops together, as people look for them.
        let mut entries: Vec<_> = own.iter().collect();
        entries.sort_by_key(|(key, cost)| (&cost.op, &cost.ports, **key));
        for (key, cost) in entries {
            let line = RonCost {
                op: &cost.op,
                ports: &cost.ports,
                key: key.to_string(),
                call_ps: cost.call_ps,
                firing_ps: cost.firing_ps,
                spread: cost.spread_percent,
                samples: cost.samples,
                variant: cost.variant.as_deref().unwrap_or_default(),
            };
            out += &format!(
                "            {},\n",
                ron::ser::to_string_pretty(&line, config.clone())?
            );
        }
        out += "        ]),\n";
    }
    Ok(Some(out + "    ]"))
}

/// Reads the `costs` of a machine whose devices have these names.
pub(crate) fn read(nodes: &[Node], names: &[Spanned<String>], sink: &mut Sink) -> MeasuredCosts {
    let mut costs = MeasuredCosts::default();
    let mut given: BTreeMap<String, Span> = BTreeMap::new();
    for node in nodes {
        let what = "costs: `Costs(devices: […], entries: […])`";
        let Some(mut fields) = group(node, "costs", &format::COST_GROUP, what, sink) else {
            continue;
        };
        let devices = fields
            .need("devices", "[\"cpu:0\"]", sink)
            .and_then(|n| read::list(n, "a list of devices", sink));
        let entries = fields
            .need("entries", "[]", sink)
            .and_then(|n| read::list(n, "a list of costs", sink));
        fields.done(sink);
        let mut own = BTreeMap::new();
        for entry in entries.unwrap_or_default() {
            read_cost(entry, &mut own, sink);
        }
        let own: BTreeMap<CostKey, MeasuredCost> = own
            .into_iter()
            .map(|(key, (_, cost))| (key, cost))
            .collect();
        for device in devices.unwrap_or_default() {
            let Some(name) = known_device(device, names, sink) else {
                continue;
            };
            if let Some(first) = given.get(&name.value) {
                sink.push(read::twice(
                    "costs of device",
                    &name.value,
                    name.span,
                    *first,
                ));
                continue;
            }
            given.insert(name.value.clone(), name.span);
            costs.devices.insert(name.value, own.clone());
        }
    }
    costs
}

fn group<'a>(
    node: &'a Node,
    what: &str,
    of: &'static Group,
    want: &str,
    sink: &mut Sink,
) -> Option<Fields<'a>> {
    match &node.kind {
        Kind::Call(name, args) if name.as_ref().is_none_or(|n| n.value == of.name) => {
            Some(Fields::of(of, what, node.span, args, sink))
        }
        _ => {
            sink.push(read::wrong_kind(node, want));
            None
        }
    }
}

fn known_device(
    node: &Node,
    names: &[Spanned<String>],
    sink: &mut Sink,
) -> Option<Spanned<String>> {
    let name = read::string(node, "a device in quotes", sink)?;
    if names.iter().any(|n| n.value == name.value) {
        return Some(name);
    }
    sink.push(
        Diagnostic::new(Code::E0501, format!("there is no device `{}`", name.value))
            .primary(name.span, "costs of it are given")
            .help(suggest(&name.value, names.iter().map(|n| n.value.as_str()))),
    );
    None
}

fn read_cost(node: &Node, own: &mut BTreeMap<CostKey, (Span, MeasuredCost)>, sink: &mut Sink) {
    let want = "a cost: `Cost(op: …, key: …, call_ps: …, firing_ps: …)`";
    let Some(mut fields) = group(node, "a cost", &format::COST, want, sink) else {
        return;
    };
    let op = fields
        .need("op", "\"Fir\"", sink)
        .and_then(|n| read::string(n, "an op", sink));
    let ports = fields
        .take("ports")
        .and_then(|n| read::string(n, "ports in quotes", sink));
    let key = fields
        .need("key", "\"…\"", sink)
        .and_then(|n| read_key(n, sink));
    let mut ps = |field: &str, what: &str| {
        let node = fields.need(field, "1000", sink)?;
        read::count(node, what, 0, MAX_PS, sink).map(|c| c.value)
    };
    let call_ps = ps("call_ps", "the cost of a call in picoseconds");
    let firing_ps = ps("firing_ps", "the cost of a firing in picoseconds");
    let spread = fields
        .take("spread")
        .map_or(Some(0.0), |n| read_spread(n, sink));
    let samples = fields.take("samples").map_or(Some(1), |n| {
        read::count(n, "the number of samples", 1, u64::from(u32::MAX), sink)
            .map(|c| c.value as u32)
    });
    let variant = fields
        .take("variant")
        .map_or(Some(None), |n| read_variant(n, sink).map(Some));
    fields.done(sink);
    let (Some(op), Some(key), Some(call_ps), Some(firing_ps)) = (op, key, call_ps, firing_ps)
    else {
        return;
    };
    let (Some(spread_percent), Some(samples), Some(variant)) = (spread, samples, variant) else {
        return;
    };
    if call_ps == 0 && firing_ps == 0 {
        sink.push(
            Diagnostic::new(Code::E0507, format!("`{}` cannot cost nothing", op.value))
                .primary(node.span, "should be more than zero")
                .help("measure it with `zbmdc calibrate`, or remove the entry"),
        );
        return;
    }
    if let Some((first, _)) = own.get(&key.value) {
        sink.push(read::twice("key", &key.value.to_string(), key.span, *first));
        return;
    }
    let ports = ports.map_or(String::new(), |p| p.value);
    let op = op.value;
    let cost = MeasuredCost {
        op,
        ports,
        call_ps,
        firing_ps,
        spread_percent,
        samples,
        variant,
    };
    own.insert(key.value, (key.span, cost));
}

fn read_key(node: &Node, sink: &mut Sink) -> Option<Spanned<CostKey>> {
    let text = read::string(node, "a key in quotes", sink)?;
    let key = CostKey::parse(&text.value);
    if key.is_none() {
        sink.push(
            Diagnostic::new(Code::E0203, format!("`{}` is no key of a cost", text.value))
                .primary(text.span, "should be 32 digits of 0-9 and a-f")
                .help("keys are written by `zbmdc calibrate`"),
        );
    }
    key.map(|k| Spanned::new(k, text.span))
}

fn read_variant(node: &Node, sink: &mut Sink) -> Option<String> {
    let name = read::string(node, "a variant in quotes", sink)?;
    if is_variant(&name.value) {
        return Some(name.value);
    }
    sink.push(
        Diagnostic::new(
            Code::E0203,
            format!("`{}` is no variant of a kernel", name.value),
        )
        .primary(name.span, "should be of a-z, 0-9 and -")
        .help("they are written by `zbmdc calibrate`; leave it out for the default one"),
    );
    None
}

fn read_spread(node: &Node, sink: &mut Sink) -> Option<f64> {
    let spread = read::float(node, "a spread in percent", sink)?;
    if (0.0..=MAX_SPREAD).contains(&spread.value) {
        return Some(spread.value);
    }
    sink.push(
        Diagnostic::new(
            Code::E0203,
            format!("a spread of {} percent cannot be", spread.value),
        )
        .primary(spread.span, format!("should be between 0 and {MAX_SPREAD}")),
    );
    None
}

#[cfg(test)]
mod tests;
