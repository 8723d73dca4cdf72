//! Measured costs of kernels: what they are keyed by, and their section of `machine.ron`. Measures nothing.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use bytes::Bytes;
use serde::Serialize;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};
use zbmd_ir::{Actor, BlobId, InPort, Machine, OutPort, TiSlice, Value};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::format::{self, Group};
use crate::parse::{Node, NodeKind};
use crate::read::{self, Fields};
use crate::source::{Span, Spanned};

/// Max picoseconds of a call or a firing: a thousand seconds. More means a damaged file.
pub(crate) const MAX_PS: u64 = 1_000_000_000_000_000;
/// Largest spread, in percent.
pub(crate) const MAX_SPREAD: f64 = 100_000.0;

/// What a cost belongs to: an op with its parameters and ports, whatever the actor is called and wherever it is
/// in its graph. The 128-bit XXH3 hash of a text; see [`key_text`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CostKey(pub u128);

impl CostKey {
    /// The key of an actor whose tensors are in `blobs`. O(parameters and tensors).
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

    /// The key of something else that is measured, by its name.
    pub(crate) fn of_text(text: &str) -> Self {
        Self(xxh3_128(text.as_bytes()))
    }

    /// Reads what [`Display`](fmt::Display) writes: 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(is_digit) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(Self)
    }
}

impl fmt::Display for CostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The text that [`CostKey`] is the hash of: op, parameters, then name, type, rate and window of each port, then the
/// state pairs. Tensors count by their contents. Changing this text invalidates every measured cost.
pub fn key_text(actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_key(&mut out, actor, blobs);
    out
}

fn write_key(out: &mut impl Write, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> fmt::Result {
    // What an open firing takes is what one without a gate takes.
    let actor = &*actor.ungated();

    // Names and strings are quoted, and each fact has a line, so that no two actors have the same text.
    writeln!(out, "op {:?}", actor.op)?;
    for (name, value) in &actor.params {
        write!(out, "param {name:?} ")?;
        write_value(out, value, blobs)?;
        writeln!(out)?;
    }

    for InPort {
        name,
        token,
        rate,
        window,
    } in &actor.inputs
    {
        writeln!(out, "in {name:?} {token} rate {rate} window {window}")?;
    }
    for OutPort { name, token, rate } in &actor.outputs {
        writeln!(out, "out {name:?} {token} rate {rate}")?;
    }
    for pair in &actor.state {
        writeln!(out, "state {} {}", pair.input, pair.output)?;
    }
    Ok(())
}

fn write_value(out: &mut impl Write, value: &Value, blobs: &TiSlice<BlobId, Bytes>) -> fmt::Result {
    match value {
        Value::Bool(flag) => write!(out, "{flag}"),
        Value::Int(integer) => write!(out, "{integer}"),
        // Debug keeps the point of a whole number and every bit of the others.
        Value::Float(float) => write!(out, "{float:?}"),
        Value::Str(text) => write!(out, "{text:?}"),
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
            // Contents, not ids: the same op in another model has the same cost.
            let hash = blobs.get(*id).map_or(0, |bytes| xxh3_128(bytes));
            write!(out, "tensor {token} {hash:032x}")
        }
        // What it takes does not depend on the value.
        Value::Live(parameter) => write_value(out, &parameter.value_of(&parameter.initial), blobs),
        Value::Gate(_) => write!(out, "gate"),
    }
}

/// The ports of an actor for people, without those of states: `f32 1/31 -> f32 1`, rates, and windows where they are
/// larger.
pub fn ports_text(actor: &Actor) -> String {
    let mut input_texts = Vec::new();
    for (index, port) in actor.inputs.iter().enumerate() {
        if actor.state_of_input(index as u32).is_none() {
            let window = match port.window {
                window if window > port.rate => format!("/{window}"),
                _ => String::new(),
            };
            input_texts.push(format!("{} {}{window}", port.token, port.rate));
        }
    }

    let mut output_texts = Vec::new();
    for (index, port) in actor.outputs.iter().enumerate() {
        if actor.state_of_output(index as u32).is_none() {
            output_texts.push(format!("{} {}", port.token, port.rate));
        }
    }

    match (input_texts.is_empty(), output_texts.is_empty()) {
        (true, true) => "->".to_owned(),
        (true, false) => format!("-> {}", output_texts.join(", ")),
        (false, true) => format!("{} ->", input_texts.join(", ")),
        (false, false) => format!("{} -> {}", input_texts.join(", "), output_texts.join(", ")),
    }
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
    /// Whether the numbers are possible, bounded and not all zero, and the variant's name is a valid one.
    pub(crate) fn is_sane(&self) -> bool {
        self.variant.as_deref().is_none_or(is_variant_name)
            && self.call_ps <= MAX_PS
            && self.firing_ps <= MAX_PS
            && (self.call_ps > 0 || self.firing_ps > 0)
            && (0.0..=MAX_SPREAD).contains(&self.spread_percent)
            && self.samples > 0
    }
}

/// Whether a variant of a kernel may have that name: what the verifier allows.
fn is_variant_name(name: &str) -> bool {
    let has_valid_length = (1..=zbmd_ir::limits::MAX_VARIANT_NAME).contains(&name.len());
    let is_valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    has_valid_length && name.bytes().all(is_valid)
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

    /// Whether any measured cost is of a variant other than the default.
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

impl<'a> RonCost<'a> {
    fn new(key: CostKey, cost: &'a MeasuredCost) -> Self {
        Self {
            op: &cost.op,
            ports: &cost.ports,
            key: key.to_string(),
            call_ps: cost.call_ps,
            firing_ps: cost.firing_ps,
            spread: cost.spread_percent,
            samples: cost.samples,
            variant: cost.variant.as_deref().unwrap_or_default(),
        }
    }
}

/// Devices with equal costs.
struct EqualDevices<'a> {
    names: Vec<&'a str>,
    costs: &'a BTreeMap<CostKey, MeasuredCost>,
}

/// The value of the `costs` field, one line for each cost, devices in the machine's order and together where all
/// their costs are equal; `None` without costs. Costs of devices that the machine lacks are left out.
pub(crate) fn to_ron(
    machine: &Machine,
    costs: &MeasuredCosts,
) -> Result<Option<String>, ron::Error> {
    let device_groups = group_devices(machine, costs);
    if device_groups.is_empty() {
        return Ok(None);
    }

    let ron_config = ron::ser::PrettyConfig::new()
        .struct_names(true)
        .depth_limit(0);
    let mut text = "[\n".to_owned();
    for group in device_groups {
        let device_names = ron::ser::to_string_pretty(&group.names, ron_config.clone())?;
        text += &format!("        Costs(devices: {device_names}, entries: [\n");

        // Sorted by op, as people look for them.
        let mut sorted_entries: Vec<_> = group.costs.iter().collect();
        sorted_entries.sort_by_key(|(key, cost)| (&cost.op, &cost.ports, **key));
        for (key, cost) in sorted_entries {
            let entry_text =
                ron::ser::to_string_pretty(&RonCost::new(*key, cost), ron_config.clone())?;
            text += &format!("            {entry_text},\n");
        }

        text += "        ]),\n";
    }

    Ok(Some(text + "    ]"))
}

fn group_devices<'a>(machine: &'a Machine, costs: &'a MeasuredCosts) -> Vec<EqualDevices<'a>> {
    let mut groups: Vec<EqualDevices<'a>> = Vec::new();
    for device in &machine.devices {
        let measured = costs.devices.get(&device.name);
        let Some(device_costs) = measured.filter(|costs| !costs.is_empty()) else {
            continue;
        };
        match groups.iter_mut().find(|group| group.costs == device_costs) {
            // Devices of one kind are measured once, and usually have equal costs.
            Some(group) => group.names.push(&device.name),
            None => groups.push(EqualDevices {
                names: vec![&device.name],
                costs: device_costs,
            }),
        }
    }

    groups
}

/// Reads the `costs` of a machine whose devices have these names.
pub(crate) fn read(nodes: &[Node], names: &[Spanned<String>], sink: &mut Sink) -> MeasuredCosts {
    let mut costs = MeasuredCosts::default();
    let mut first_uses: BTreeMap<String, Span> = BTreeMap::new();
    for node in nodes {
        let expected = "costs: `Costs(devices: […], entries: […])`";
        let Some(mut fields) = group(node, "costs", &format::COST_GROUP, expected, sink) else {
            continue;
        };
        let device_list = fields.need("devices", "[\"cpu:0\"]", sink);
        let device_nodes = device_list.and_then(|list| read::list(list, "a list of devices", sink));
        let entry_list = fields.need("entries", "[]", sink);
        let entry_nodes = entry_list.and_then(|list| read::list(list, "a list of costs", sink));
        fields.done(sink);

        let mut entries = EntryTable::default();
        for entry in entry_nodes.unwrap_or_default() {
            entries.read_entry(entry, sink);
        }
        for device in device_nodes.unwrap_or_default() {
            let Some(name) = known_device(device, names, sink) else {
                continue;
            };

            // The first costs of a device hold; a second set would silently replace them.
            if let Some(first) = first_uses.get(&name.value) {
                let kind = "costs of device";
                sink.push(read::twice(kind, &name.value, name.span, *first));
                continue;
            }

            first_uses.insert(name.value.clone(), name.span);
            costs.devices.insert(name.value, entries.costs.clone());
        }
    }

    costs
}

fn group<'a>(
    node: &'a Node,
    what: &str,
    of: &'static Group,
    expected: &str,
    sink: &mut Sink,
) -> Option<Fields<'a>> {
    match &node.kind {
        NodeKind::Call(name, args) if name.as_ref().is_none_or(|name| name.value == of.name) => {
            Some(Fields::of(of, what, node.span, args, sink))
        }
        _ => {
            sink.push(read::wrong_kind(node, expected));
            None
        }
    }
}

fn known_device(
    node: &Node,
    names: &[Spanned<String>],
    sink: &mut Sink,
) -> Option<Spanned<String>> {
    let device_name = read::string(node, "a device in quotes", sink)?;
    if names.iter().any(|known| known.value == device_name.value) {
        return Some(device_name);
    }
    let known_names = names.iter().map(|known| known.value.as_str());
    let message = format!("there is no device `{}`", device_name.value);
    sink.push(
        Diagnostic::new(Code::E0501, message)
            .primary(device_name.span, "costs of it are given")
            .help(suggest(&device_name.value, known_names)),
    );
    None
}

/// The entries of one group, and where their keys were written.
#[derive(Default)]
struct EntryTable {
    costs: BTreeMap<CostKey, MeasuredCost>,
    key_spans: BTreeMap<CostKey, Span>,
}

impl EntryTable {
    /// Reads an entry, unless its key is known already.
    fn read_entry(&mut self, node: &Node, sink: &mut Sink) {
        let Some((key, cost)) = read_cost(node, sink) else {
            return;
        };

        // A kernel that costs nothing would be placed anywhere, and as often as one likes.
        if cost.call_ps == 0 && cost.firing_ps == 0 {
            let message = format!("`{}` cannot cost nothing", cost.op);
            sink.push(
                Diagnostic::new(Code::E0507, message)
                    .primary(node.span, "should be more than zero")
                    .help("measure it with `zbmdc calibrate`, or remove the entry"),
            );
            return;
        }

        if let Some(first) = self.key_spans.get(&key.value) {
            let shown_key = key.value.to_string();
            sink.push(read::twice("key", &shown_key, key.span, *first));
            return;
        }

        self.key_spans.insert(key.value, key.span);
        self.costs.insert(key.value, cost);
    }
}

fn read_cost(node: &Node, sink: &mut Sink) -> Option<(Spanned<CostKey>, MeasuredCost)> {
    let expected = "a cost: `Cost(op: …, key: …, call_ps: …, firing_ps: …)`";
    let mut fields = group(node, "a cost", &format::COST, expected, sink)?;
    let op_node = fields.need("op", "\"Fir\"", sink);
    let op = op_node.and_then(|node| read::string(node, "an op", sink));
    let ports_node = fields.take("ports");
    let ports = ports_node.and_then(|node| read::string(node, "ports in quotes", sink));
    let key_node = fields.need("key", "\"…\"", sink);
    let cost_key = key_node.and_then(|node| read_key(node, sink));
    let call_meaning = "the cost of a call in picoseconds";
    let call_ps = read_ps("call_ps", call_meaning, &mut fields, sink);
    let firing_meaning = "the cost of a firing in picoseconds";
    let firing_ps = read_ps("firing_ps", firing_meaning, &mut fields, sink);

    // What is left out has a default; what is there and wrong has been reported. The inner option of the variant is
    // that of the default variant.
    let spread_percent = match fields.take("spread") {
        None => Some(0.0),
        Some(node) => read_spread(node, sink),
    };
    let samples = match fields.take("samples") {
        None => Some(1),
        Some(node) => read_samples(node, sink),
    };
    let variant = match fields.take("variant") {
        None => Some(None),
        Some(node) => read_variant(node, sink).map(Some),
    };
    fields.done(sink);

    // Only here does the first missing part count: all mistakes of the entry have been reported by now.
    let cost = MeasuredCost {
        op: op?.value,
        ports: ports.map_or(String::new(), |ports| ports.value),
        call_ps: call_ps?,
        firing_ps: firing_ps?,
        spread_percent: spread_percent?,
        samples: samples?,
        variant: variant?,
    };

    Some((cost_key?, cost))
}

fn read_ps(field: &str, meaning: &str, fields: &mut Fields<'_>, sink: &mut Sink) -> Option<u64> {
    let node = fields.need(field, "1000", sink)?;
    let picoseconds = read::count(node, meaning, 0, MAX_PS, sink)?;
    Some(picoseconds.value)
}

fn read_samples(node: &Node, sink: &mut Sink) -> Option<u32> {
    let max = u64::from(u32::MAX);
    let samples = read::count(node, "the number of samples", 1, max, sink)?;
    Some(samples.value as u32)
}

fn read_key(node: &Node, sink: &mut Sink) -> Option<Spanned<CostKey>> {
    let written_key = read::string(node, "a key in quotes", sink)?;
    let Some(key) = CostKey::parse(&written_key.value) else {
        let message = format!("`{}` is not a key of a cost", written_key.value);
        sink.push(
            Diagnostic::new(Code::E0203, message)
                .primary(written_key.span, "should be 32 digits of 0-9 and a-f")
                .help("keys are written by `zbmdc calibrate`"),
        );
        return None;
    };
    Some(Spanned::new(key, written_key.span))
}

fn read_variant(node: &Node, sink: &mut Sink) -> Option<String> {
    let variant_name = read::string(node, "a variant in quotes", sink)?;
    if is_variant_name(&variant_name.value) {
        return Some(variant_name.value);
    }
    let message = format!("`{}` is not a variant of a kernel", variant_name.value);
    sink.push(
        Diagnostic::new(Code::E0203, message)
            .primary(variant_name.span, "should be of a-z, 0-9 and -")
            .help("they are written by `zbmdc calibrate`; leave it out for the default one"),
    );
    None
}

fn read_spread(node: &Node, sink: &mut Sink) -> Option<f64> {
    let spread = read::float(node, "a spread in percent", sink)?;
    if (0.0..=MAX_SPREAD).contains(&spread.value) {
        return Some(spread.value);
    }
    let message = format!("a spread of {} percent is not possible", spread.value);
    let range = format!("should be between 0 and {MAX_SPREAD}");
    sink.push(Diagnostic::new(Code::E0203, message).primary(spread.span, range));
    None
}

#[cfg(test)]
mod tests;
