//! Reading typed things out of the tree, with the words for what does not fit.

use std::collections::BTreeMap;

use zbmd_ir::text::is_hidden;
use zbmd_ir::{DType, limits};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, did_you_mean, suggest};
use crate::format::{self, Group};
use crate::parse::{Arg, Node, NodeKind};
use crate::source::{Span, Spanned};
use crate::units::UnitError;
use crate::values::StatedShape;

/// The named fields of a group; positional arguments apart.
pub(crate) struct Fields<'a> {
    /// What the group is, for messages: `Model`, `a channel`.
    pub(crate) what: String,
    /// The group.
    pub(crate) span: Span,
    named: BTreeMap<&'a str, (&'a Spanned<String>, &'a Node)>,
    positional: Vec<&'a Node>,
    /// What the group may hold by the table of the format, and what was asked for.
    group: Option<&'static Group>,
    asked: Vec<String>,
}

impl<'a> Fields<'a> {
    /// The arguments of a group; refuses what is given twice.
    pub(crate) fn new(
        what: impl Into<String>,
        span: Span,
        args: &'a [Arg],
        sink: &mut Sink,
    ) -> Self {
        let mut named: BTreeMap<&str, (&Spanned<String>, &Node)> = BTreeMap::new();
        let mut positional = Vec::new();
        for arg in args {
            let Some(name) = &arg.name else {
                positional.push(&arg.value);
                continue;
            };
            if let Some((first, _)) = named.get(name.value.as_str()) {
                sink.push(twice("field", &name.value, name.span, first.span));
                continue;
            }

            named.insert(&name.value, (name, &arg.value));
        }

        Self {
            what: what.into(),
            span,
            named,
            positional,
            group: None,
            asked: Vec::new(),
        }
    }

    /// Like [`Self::new`], for a group of the format; ends with [`Self::done`].
    pub(crate) fn of(
        group: &'static Group,
        what: impl Into<String>,
        span: Span,
        args: &'a [Arg],
        sink: &mut Sink,
    ) -> Self {
        Self {
            group: Some(group),
            ..Self::new(what, span, args, sink)
        }
    }

    /// Takes a field out.
    pub(crate) fn take(&mut self, name: &str) -> Option<&'a Node> {
        // Code and table of the format must agree: the reference page is made from the table.
        debug_assert!(
            self.group.is_none_or(|group| group.has(name)),
            "{name} is in no table"
        );
        if cfg!(debug_assertions) {
            self.asked.push(name.to_owned());
        }
        self.named.remove(name).map(|(_, node)| node)
    }

    /// Takes a field out, or else the next positional argument.
    pub(crate) fn take_or_positional(&mut self, name: &str) -> Option<&'a Node> {
        self.take(name)
            .or_else(|| (!self.positional.is_empty()).then(|| self.positional.remove(0)))
    }

    /// Takes out a field that must be there.
    pub(crate) fn need(&mut self, name: &str, example: &str, sink: &mut Sink) -> Option<&'a Node> {
        let node = self.take(name);
        if node.is_none() {
            self.missing(name, example, sink);
        }
        node
    }

    /// Reports a missing field.
    pub(crate) fn missing(&self, name: &str, example: &str, sink: &mut Sink) {
        // A slip of the pen is reported as the unknown field that it makes.
        if self
            .named
            .keys()
            .any(|written| did_you_mean(written, [name]).is_some())
        {
            return;
        }
        sink.push(
            Diagnostic::new(Code::E0202, format!("{} has no `{name}`", self.what))
                .primary(self.span, format!("`{name}` is missing here"))
                .help(format!("add `{name}: {example}`")),
        );
    }

    /// Refuses everything that the group does not have.
    pub(crate) fn done(self, sink: &mut Sink) {
        let known: Vec<&str> = self.group.into_iter().flat_map(Group::names).collect();
        debug_assert!(
            known
                .iter()
                .all(|name| self.asked.iter().any(|asked| asked == name)),
            "of {known:?} only {:?} are read",
            self.asked
        );
        self.finish(&known, sink);
    }

    /// Refuses everything that was not taken out; `known` is what could have been.
    pub(crate) fn finish(self, known: &[&str], sink: &mut Sink) {
        for (name, _) in self.named.into_values() {
            sink.push(
                Diagnostic::new(
                    Code::E0201,
                    format!("{} has no field `{}`", self.what, name.value),
                )
                .primary(name.span, "unknown field")
                .help(suggest(&name.value, known.iter().copied())),
            );
        }

        // Only what a field took is gone from the list: the rest has no name that it could go by.
        for node in self.positional {
            sink.push(
                Diagnostic::new(
                    Code::E0203,
                    format!("{} in {} has no name", node.describe(), self.what),
                )
                .primary(node.span, "which field is this?")
                .help(format!(
                    "write `name: value`; {}",
                    suggest("", known.iter().copied())
                )),
            );
        }
    }
}

/// E0107.
pub(crate) fn twice(what: &str, name: &str, second: Span, first: Span) -> Diagnostic {
    Diagnostic::new(Code::E0107, format!("{what} `{name}` is given twice"))
        .primary(second, "given again here")
        .context(first, "first given here")
        .help("remove one of them")
}

/// E0203.
pub(crate) fn wrong_kind(node: &Node, want: &str) -> Diagnostic {
    Diagnostic::new(
        Code::E0203,
        format!("expected {want}, found {}", node.describe()),
    )
    .primary(node.span, format!("should be {want}"))
}

fn refuse<T>(node: &Node, want: &str, sink: &mut Sink) -> Option<T> {
    if node.kind != NodeKind::Bad {
        sink.push(wrong_kind(node, want));
    }
    None
}

/// A string.
pub(crate) fn string(node: &Node, want: &str, sink: &mut Sink) -> Option<Spanned<String>> {
    match &node.kind {
        NodeKind::Str(s) => Some(Spanned::new(s.clone(), node.span)),
        _ => refuse(node, want, sink),
    }
}

/// A string or a bare word.
pub(crate) fn word(node: &Node, want: &str, sink: &mut Sink) -> Option<Spanned<String>> {
    match &node.kind {
        NodeKind::Str(s) | NodeKind::Word(s) => Some(Spanned::new(s.clone(), node.span)),
        _ => refuse(node, want, sink),
    }
}

/// `true` or `false`; false where it is neither.
pub(crate) fn flag(node: &Node, sink: &mut Sink) -> bool {
    match node.kind {
        NodeKind::Bool(flag) => flag,
        _ => refuse::<()>(node, "`true` or `false`", sink).is_some(),
    }
}

/// A number.
pub(crate) fn float(node: &Node, want: &str, sink: &mut Sink) -> Option<Spanned<f64>> {
    match node.kind {
        NodeKind::Int(i) => Some(Spanned::new(i as f64, node.span)),
        NodeKind::Float(f) => Some(Spanned::new(f, node.span)),
        _ => refuse(node, want, sink),
    }
}

/// A list.
pub(crate) fn list<'a>(node: &'a Node, want: &str, sink: &mut Sink) -> Option<&'a [Node]> {
    match &node.kind {
        NodeKind::List(items) => Some(items),
        _ => refuse(node, want, sink),
    }
}

/// A map with string keys, in the order written; refuses keys that occur twice.
pub(crate) fn map<'a>(
    node: &'a Node,
    want: &str,
    sink: &mut Sink,
) -> Vec<(Spanned<String>, &'a Node)> {
    let NodeKind::Map(pairs) = &node.kind else {
        refuse::<()>(node, want, sink);
        return Vec::new();
    };

    // A second value for a key would silently hide the first.
    let mut first_spans: BTreeMap<String, Span> = BTreeMap::new();
    let mut entries = Vec::new();
    for (key, value) in pairs {
        let Some(key) = string(key, "a name in quotes", sink) else {
            continue;
        };
        match first_spans.get(&key.value) {
            Some(first) => sink.push(twice("key", &key.value, key.span, *first)),
            None => {
                first_spans.insert(key.value.clone(), key.span);
                entries.push((key, value));
            }
        }
    }
    entries
}

/// A number of base units from 1 on, or a string with a unit, which may be zero of it.
pub(crate) fn quantity(
    node: &Node,
    expected: &str,
    parse: fn(&str) -> Result<u64, UnitError>,
    sink: &mut Sink,
) -> Option<u64> {
    let parsed_value = match &node.kind {
        NodeKind::Str(text) => parse(text),
        NodeKind::Int(_) | NodeKind::Float(_) => {
            let base_units = count(node, expected, 1, i64::MAX as u64, sink)?;
            return Some(base_units.value);
        }
        _ => {
            sink.push(wrong_kind(node, expected));
            return None;
        }
    };

    parsed_value
        .map_err(|error| {
            let refusal = Diagnostic::new(Code::E0203, error.to_string());
            sink.push(refusal.primary(node.span, format!("should be {expected}")));
        })
        .ok()
}

/// A count between `low` and `high`.
pub(crate) fn count(
    node: &Node,
    what: &str,
    low: u64,
    high: u64,
    sink: &mut Sink,
) -> Option<Spanned<u64>> {
    let value = match node.kind {
        NodeKind::Int(i) => i,
        // `1e6` reads better than 1000000 and is as exact: below 2^53 (about 9e15) an f64 holds every integer.
        NodeKind::Float(f) if f.fract() == 0.0 && f.abs() < 9e15 => f as i64,
        _ => return refuse(node, &format!("{what}, an integer"), sink),
    };

    match u64::try_from(value) {
        Ok(v) if v >= low && v <= high => Some(Spanned::new(v, node.span)),
        Ok(v) if v > high => {
            sink.push(
                Diagnostic::new(
                    Code::E0505,
                    format!("{what} is {v}, more than the limit of {high}"),
                )
                .primary(node.span, format!("at most {high}")),
            );

            None
        }
        _ => {
            sink.push(
                Diagnostic::new(Code::E0203, format!("{what} is {value}, less than {low}"))
                    .primary(node.span, format!("at least {low}")),
            );
            None
        }
    }
}

/// A dtype.
pub(crate) fn dtype(node: &Node, sink: &mut Sink) -> Option<Spanned<DType>> {
    let name = word(node, "a dtype such as `f32`", sink)?;
    let dtype = DType::from_name(&name.value);
    if dtype.is_none() {
        sink.push(
            Diagnostic::new(Code::E0310, format!("`{}` is no dtype", name.value))
                .primary(name.span, "unknown dtype")
                .help(format!("one of {}", DType::ALL.map(DType::name).join(", "))),
        );
    }
    dtype.map(|dtype| Spanned::new(dtype, name.span))
}

/// A shape: a list of dimensions.
pub(crate) fn shape(node: &Node, sink: &mut Sink) -> Option<Spanned<StatedShape>> {
    if let NodeKind::Call(Some(head), args) = &node.kind
        && head.value == "Burst"
    {
        return burst_shape(node, args, sink);
    }
    let dims = dimensions(node, "a shape: a list of dimensions", sink)?;
    let shape = StatedShape { dims, burst: false };
    Some(Spanned::new(shape, node.span))
}

/// `Burst(max: 14, of: [2])`.
fn burst_shape(node: &Node, args: &[Arg], sink: &mut Sink) -> Option<Spanned<StatedShape>> {
    let mut burst_fields = Fields::of(&format::BURST, "the burst", node.span, args, sink);
    let max_node = burst_fields.need("max", "14", sink);
    let item_node = burst_fields.take("of");
    burst_fields.done(sink);

    let max = count(max_node?, "a number of items", 1, u64::from(u32::MAX), sink)?;
    let mut dims = vec![max.value as u32];
    if let Some(item_node) = item_node {
        dims.extend(dimensions(
            item_node,
            "an item's shape: a list of dimensions",
            sink,
        )?);
    }
    let shape = StatedShape { dims, burst: true };
    Some(Spanned::new(shape, node.span))
}

fn dimensions(node: &Node, what: &str, sink: &mut Sink) -> Option<Vec<u32>> {
    let dims = list(node, what, sink)?;
    if dims.len() > limits::MAX_RANK {
        sink.push(
            Diagnostic::new(
                Code::E0505,
                format!(
                    "a shape has {} dimensions, more than the limit of {}",
                    dims.len(),
                    limits::MAX_RANK
                ),
            )
            .primary(
                node.span,
                format!("at most {} dimensions", limits::MAX_RANK),
            ),
        );

        return None;
    }

    let mut shape = Vec::with_capacity(dims.len());
    for dim in dims {
        shape.push(count(dim, "a dimension", 1, u64::from(u32::MAX), sink)?.value as u32);
    }
    Some(shape)
}

/// Refuses names of models and devices that are too long, or that have characters which cannot be seen.
pub(crate) fn check_text(name: &Spanned<String>, what: &str, sink: &mut Sink) -> bool {
    let why = match name.value.chars().find(|&c| is_hidden(c)) {
        Some(character) => format!(
            "has the character U+{:04X}, which cannot be seen",
            u32::from(character)
        ),
        None if name.value.len() > MAX_WRITTEN_NAME_BYTES => format!(
            "has {} bytes, more than the limit of {MAX_WRITTEN_NAME_BYTES}",
            name.value.len()
        ),
        None => return true,
    };

    // The message shows the beginning: a name may be megabytes long.
    let shown: String = name.value.chars().take(MAX_WRITTEN_NAME_BYTES).collect();
    sink.push(
        Diagnostic::new(
            Code::E0204,
            format!("`{shown}` cannot be the name of {what}: it {why}"),
        )
        .primary(name.span, "not a name")
        .help("write a shorter name, without control characters"),
    );

    false
}

/// Bytes of a name as a model or a machine file writes it.
const MAX_WRITTEN_NAME_BYTES: usize = 200;

/// Refuses names that dumps, endpoints and pins could not write down.
pub(crate) fn check_name(name: &Spanned<String>, what: &str, sink: &mut Sink) -> bool {
    // A dot separates an actor from its port, and a slash an instance from what is in it: no name has one.
    let is_name_char = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let fits_limit = name.value.len() <= MAX_WRITTEN_NAME_BYTES;
    let is_valid = !name.value.is_empty() && fits_limit && name.value.chars().all(is_name_char);
    if !is_valid {
        let shown: String = name.value.chars().take(MAX_WRITTEN_NAME_BYTES).collect();
        let limit = if fits_limit {
            String::new()
        } else {
            format!(
                ": it has {} bytes, more than the limit of {MAX_WRITTEN_NAME_BYTES}",
                name.value.len()
            )
        };

        sink.push(
            Diagnostic::new(Code::E0204, format!("`{shown}` cannot be the name of {what}{limit}"))
                .primary(name.span, "not a name")
                .help("names are made of letters, digits, `_` and `-`; `.` stands before a port, `/` between a sub-model and its actor"),
        );
    }

    is_valid
}
