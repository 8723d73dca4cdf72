//! The reference pages of the book, made from what the program itself reads: the format's table and the op catalogue.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use zbmd_backends::TensorOp;
use zbmd_backends::kernels::Caps;
use zbmd_backends::op::{Op, OpError, Registry, ResolveCx, Signature, source};
use zbmd_ir::{Actor, DType, InPort, OutPort, Params, Role, StatePort, TiVec, TokenType, limits};

mod probes;

use probes::{LARGE, PROBES};

use crate::diag::Sink;
use crate::format::{Absent, GROUPS, Group};
use crate::parse::{self, Kind};
use crate::source::SourceMap;
use crate::values::Files;

/// Text of the page on the format before its tables.
const FORMAT: &str = "\
A model is a text in [RON](https://github.com/ron-rs/ron): groups `Name(field: value)`, maps `{\"key\": value}`, lists
`[a, b]`, numbers (`1_000`, `0xff`, `2.4e6`), strings (`\"text\"`, `r\"raw\"`), words (`f32`), `true` and `false`.
Comments are `// to the end of the line` and `/* nested */`; a comma may follow the last item. The name of a group may be
left out where only one fits. Errors come all at once, drawn on the text.

Wherever a value stands, these may too:

| value | means |
|---|---|
| `$name` | the parameter `name` of the model |
| `Npy(\"file.npy\")` | an array written by `numpy.save`; paths are relative to the model |
| `Safetensors(\"file\", \"tensor\")` | a tensor of a `.safetensors` file |
";

/// The page on the format of models and machines, as Markdown.
pub fn format_page() -> String {
    let mut out = format!("{FORMAT}\n");
    out += "Tokens (`initial`, `history`) are a list with one value for each token, `Zeros(n)`, `Fill(n, value)` or\n\
            `Npy(\"file.npy\")`, whose first dimension counts tokens. A complex number is `[re, im]`.\n\n";
    let dtypes = DType::ALL.map(|d| format!("`{}` ({} B)", d.name(), d.size_bytes()));
    let _ = writeln!(out, "Dtypes: {}.\n", dtypes.join(", "));
    let _ = writeln!(
        out,
        "Limits: {} actors, {} ports on a side, {} dimensions, {} bytes a token, rates and windows of {},\n\
         {} bytes of initial tokens on all channels together, {} bytes in a name with the instances around it,\n\
         {} devices.\n",
        limits::MAX_ACTORS,
        limits::MAX_PORTS,
        limits::MAX_RANK,
        limits::MAX_TOKEN_BYTES,
        limits::MAX_RATE,
        limits::MAX_INITIAL_BYTES,
        limits::MAX_NAME_BYTES,
        limits::MAX_DEVICES
    );
    GROUPS.iter().for_each(|group| out += &group_section(group));
    out
}

fn group_section(group: &Group) -> String {
    let mut out = format!(
        "## {}\n\n{}\n\n```ron\n{}\n```\n\n",
        group.name, group.doc, group.text
    );
    out += "| field | takes | left out | meaning |\n|---|---|---|---|\n";
    for field in group.fields {
        let absent = match field.absent {
            Absent::Refused => "an error".to_owned(),
            Absent::Is(value) => format!("`{value}`"),
            Absent::Means(what) => what.to_owned(),
        };
        let _ = writeln!(
            out,
            "| `{}` | {} | {absent} | {} |",
            field.name, field.takes.shown, field.doc
        );
    }
    out + "\n"
}

/// The op catalogue as Markdown: every op of a registry with ports, rates, parameters, dtypes, devices and source.
/// Types and devices are what resolving the op's example with each type gives.
pub fn op_page(registry: &Registry) -> String {
    let (tensor, others): (Vec<&str>, Vec<&str>) = registry.names().partition(|name| {
        name.strip_prefix("Nn")
            .is_some_and(|n| TensorOp::find(n).is_some())
    });
    let mut out = format!(
        "{} ops. `zbmdc ops` lists them, `zbmdc ops NAME` prints one. *CPU* and *GPU* are the element types of the\n\
         input (of the output where there is none) that the example takes there; GPU kernels are the same for Vulkan\n\
         and CUDA, and a device may lack a type. Rates and windows stand behind a port's type: `f32 8/71` consumes 8\n\
         tokens a firing and looks at 71.\n\n",
        tensor.len() + others.len()
    );
    for name in others {
        out += &format!(
            "## {name}\n\n{}\n",
            plain(&op_section(registry, name).unwrap_or_default())
        );
    }
    out += "## Tensor ops\n\n\
            One op for each ONNX operator, its name with `Nn` before it. A token is a whole tensor, every rate is 1. `?`\n\
            may be missing, `!` must be a constant, `~` both, `…` any number may follow; any other operand may be a\n\
            parameter of its name too. f16 and bf16 are storage: computed in f32.\n\n\
            | op | operands -> outputs | what | CPU | GPU |\n|---|---|---|---|---|\n";
    tensor
        .iter()
        .for_each(|name| out += &tensor_row(registry, name));
    out
}

/// Text that no Markdown reader takes for links or emphasis; code in it stays.
fn plain(text: &str) -> String {
    let part = |(i, part): (usize, &str)| match i % 2 {
        0 => part
            .replace('[', "\\[")
            .replace(']', "\\]")
            .replace('*', "\\*"),
        _ => format!("`{part}`"),
    };
    text.split('`').enumerate().map(part).collect()
}

/// One op as text for people, `None` for an unknown one.
pub fn op_section(registry: &Registry, name: &str) -> Option<String> {
    let op = registry.op(name)?;
    let doc = op.doc();
    let mut out = format!(
        "{}\n\n- ports: {}\n- example: `{}`\n",
        doc.summary, doc.ports, doc.example
    );
    for (param, meaning) in doc.params {
        let place = op.positional().iter().position(|p| p == param);
        let place = place.map_or(String::new(), |i| format!(" (argument {})", i + 1));
        let _ = writeln!(out, "- `{param}`{place}: {meaning}");
    }
    let found = Found::of(registry, &**op);
    let _ = writeln!(out, "- {found}");
    for (_, inputs) in LARGE.iter().filter(|(large, _)| *large == name) {
        let types = inputs
            .split_whitespace()
            .filter_map(|text| fixed(text, DType::F32))
            .collect();
        let params = params_of(doc.example, op.positional())?;
        let actor = resolve(
            registry,
            &**op,
            &params,
            types,
            &TokenType::scalar(DType::F32),
        )?;
        if let Some(why) = registry.gpu_reason(&actor, &TiVec::new(), &Caps::COMMON) {
            let _ = writeln!(out, "- GPU, where `{inputs}`: none, {why}");
        }
    }
    if let Some(source) = source(name) {
        let _ = writeln!(out, "- source: {source}");
    }
    Some(out)
}

fn tensor_row(registry: &Registry, name: &str) -> String {
    let Some((op, spec)) = registry
        .op(name)
        .zip(TensorOp::find(name.trim_start_matches("Nn")))
    else {
        return String::new();
    };
    let operands = spec.inputs.iter().map(|i| {
        let mark = match (i.optional, i.constant) {
            (true, true) => "~",
            (true, false) => "?",
            (false, true) => "!",
            (false, false) => "",
        };
        format!("{}{mark}{}", i.name, if i.many { "…" } else { "" })
    });
    let operands = operands.collect::<Vec<_>>().join(" ");
    let outputs = spec.outputs.join(" ") + if spec.many_outputs { "…" } else { "" };
    let found = Found::of(registry, &**op);
    let summary = plain(op.doc().summary);
    let shown = match summary.contains("no ONNX operator") {
        true => format!("`{name}`"),
        false => format!(
            "[`{name}`](https://onnx.ai/onnx/operators/onnx__{}.html)",
            spec.operator
        ),
    };
    format!(
        "| {shown} | `{operands} -> {outputs}` | {summary} | {} | {} |\n",
        names(&found.cpu),
        found.gpu_text()
    )
}

/// What an op's example takes.
#[derive(Default)]
struct Found {
    /// Its ports with the first type it takes.
    ports: String,
    cpu: Vec<DType>,
    gpu: Vec<DType>,
    /// Why not on a GPU, by type.
    reasons: Vec<(DType, String)>,
}

impl Found {
    fn of(registry: &Registry, op: &dyn Op) -> Self {
        let mut found = Self::default();
        for dtype in DType::ALL {
            let Some(actor) = probe(registry, op, dtype) else {
                continue;
            };
            if found.ports.is_empty() {
                found.ports = ports(&actor);
            }
            let dtype = shown(&actor, dtype);
            if found.cpu.contains(&dtype) {
                continue;
            }
            found.cpu.push(dtype);
            match registry.gpu_reason(&actor, &TiVec::new(), &Caps::COMMON) {
                None => found.gpu.push(dtype),
                Some(why) => found.reasons.push((dtype, why)),
            }
        }
        found
    }

    fn gpu_text(&self) -> String {
        if self.reasons.is_empty() {
            return "the same".to_owned();
        }
        let mut by_reason: Vec<(Vec<DType>, &str)> = Vec::new();
        for (dtype, why) in &self.reasons {
            match by_reason.iter_mut().find(|(_, other)| other == why) {
                Some((dtypes, _)) => dtypes.push(*dtype),
                None => by_reason.push((vec![*dtype], why)),
            }
        }
        let why = by_reason
            .iter()
            .map(|(dtypes, why)| match self.gpu.is_empty() {
                true => (*why).to_owned(),
                false => format!("{}: {why}", names(dtypes)),
            });
        let why = why.collect::<Vec<_>>().join("; ");
        if self.gpu.is_empty() {
            format!("none: {why}")
        } else {
            format!("{} ({why})", names(&self.gpu))
        }
    }
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.cpu.is_empty() {
            return write!(f, "CPU only: its code is the embedding program's");
        }
        write!(
            f,
            "its ports: `{}`\n- CPU: {}\n- GPU: {}",
            self.ports,
            names(&self.cpu),
            self.gpu_text()
        )
    }
}

/// The type that an actor stands for: the one that was tried, if an input has it. Where the parameters say what goes
/// in, or nothing does, it is that of the first input or output.
fn shown(actor: &Actor, tried: DType) -> DType {
    let inputs = &actor.inputs[..actor.inputs.len() - actor.state.len()];
    if inputs.iter().any(|port| port.token.dtype == tried) {
        return tried;
    }
    let first = inputs.first().map(|port| port.token.dtype);
    first
        .or(actor.outputs.first().map(|port| port.token.dtype))
        .unwrap_or(tried)
}

fn names(dtypes: &[DType]) -> String {
    let missing: Vec<&str> = DType::ALL
        .iter()
        .filter(|d| !dtypes.contains(d))
        .map(|d| d.name())
        .collect();
    match missing[..] {
        [] => return "any".to_owned(),
        [one] => return format!("any but {one}"),
        _ => {}
    }
    dtypes
        .iter()
        .map(|d| d.name())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Shapes that are tried, in order.
const SHAPES: [&[u32]; 8] = [
    &[],
    &[8],
    &[4, 4],
    &[2, 2],
    &[1, 2, 4, 4],
    &[2],
    &[512],
    &[257],
];

/// The actor of an op's example with inputs of one dtype, if it can be.
fn probe(registry: &Registry, op: &dyn Op, dtype: DType) -> Option<Actor> {
    let probes = PROBES.iter().filter(|(name, ..)| *name == op.name());
    let mut probes: Vec<(&str, &str)> = probes
        .map(|(_, inputs, params)| (*inputs, *params))
        .collect();
    if probes.is_empty() {
        probes.push(("", ""));
    }
    for (inputs, more) in probes {
        let example = op.doc().example;
        let text = match more {
            "" => example.to_owned(),
            more => format!("{}({more})", op.name()),
        };
        let params = params_of(&text, op.positional())?;
        let fixed: BTreeMap<String, TokenType> = inputs
            .split_whitespace()
            .filter_map(|text| fixed(text, dtype))
            .collect();
        let shapes = if inputs.is_empty() {
            &SHAPES[..]
        } else {
            &SHAPES[..1]
        };
        for shape in shapes {
            let token = TokenType::new(dtype, shape.to_vec());
            let actor = resolve(registry, op, &params, fixed.clone(), &token);
            let actor = actor.filter(|a| registry.kernel(a, &TiVec::new()).is_ok());
            if actor.is_some() {
                return actor;
            }
        }
    }
    None
}

/// `x:T[4,4]` or `i:i64[2]`.
fn fixed(text: &str, dtype: DType) -> Option<(String, TokenType)> {
    let (name, token) = text.split_once(':')?;
    let (word, dims) = token.split_once('[').unwrap_or((token, ""));
    let dims = dims
        .trim_end_matches(']')
        .split(',')
        .filter(|d| !d.is_empty());
    let shape = dims.map(|d| d.parse().ok()).collect::<Option<Vec<u32>>>()?;
    let dtype = if word == "T" {
        dtype
    } else {
        DType::from_name(word)?
    };
    Some((name.to_owned(), TokenType::new(dtype, shape)))
}

/// Parameters of an op as a model writes them.
fn params_of(text: &str, positional: &[&str]) -> Option<Params> {
    let (mut sources, mut sink) = (SourceMap::default(), Sink::default());
    let file = sources.add("example", text);
    let Kind::Call(_, args) = parse::parse(file, text, &mut sink)?.kind else {
        return None;
    };
    let (mut files, mut next) = (Files::default(), positional.iter());
    let mut params = Params::new();
    for arg in &args {
        let name = arg
            .name
            .as_ref()
            .map(|n| n.value.as_str())
            .or_else(|| next.next().copied())?;
        params.insert(
            name.to_owned(),
            files.value(&arg.value, "".as_ref(), &mut sink)?,
        );
    }
    (sink.errors() == 0).then_some(params)
}

/// The actor with `token` on every input that the op asks for.
fn resolve(
    registry: &Registry,
    op: &dyn Op,
    params: &Params,
    mut types: BTreeMap<String, TokenType>,
    token: &TokenType,
) -> Option<Actor> {
    let spec = op.name().strip_prefix("Nn").and_then(TensorOp::find);
    if types.is_empty() {
        for (i, input) in spec.map_or(&[][..], |s| &s.inputs).iter().enumerate() {
            if !input.optional && !input.constant && !params.contains_key(input.name) {
                types.insert(spec?.input(i)?.1, token.clone());
            }
        }
    }
    let blobs = TiVec::new();
    for _ in 0..limits::MAX_PORTS {
        let connected: Vec<String> = types.keys().cloned().collect();
        let cx = ResolveCx {
            params,
            connected: &connected,
            types: &types,
            blobs: &blobs,
        };
        match registry.resolve(op.name(), &cx) {
            Ok(signature) => return Some(actor(op.name(), params, signature)),
            Err(OpError::NeedInput { port }) if !types.contains_key(&port) => {
                types.insert(port, token.clone());
            }
            Err(_) => return None,
        }
    }
    None
}

fn actor(op: &str, params: &Params, signature: Signature) -> Actor {
    let Signature {
        mut inputs,
        mut outputs,
        states,
    } = signature;
    let mut state = Vec::new();
    for spec in states {
        state.push(StatePort {
            input: inputs.len() as u32,
            output: outputs.len() as u32,
        });
        let (name, token) = (spec.name, spec.token);
        inputs.push(InPort {
            name: name.clone(),
            token: token.clone(),
            rate: 1,
            window: 1,
        });
        outputs.push(OutPort {
            name,
            token,
            rate: 1,
        });
    }
    let (name, op) = ("example".to_owned(), op.to_owned());
    Actor {
        name,
        role: Role::Compute,
        op,
        params: params.clone(),
        inputs,
        outputs,
        state,
        in_place: Vec::new(),
    }
}

fn ports(actor: &Actor) -> String {
    let input = |p: &InPort| match p.rate == p.window {
        true => format!("{}: {} {}", p.name, p.token, p.rate),
        false => format!("{}: {} {}/{}", p.name, p.token, p.rate, p.window),
    };
    let states = actor.state.len();
    let inputs: Vec<String> = actor.inputs[..actor.inputs.len() - states]
        .iter()
        .map(input)
        .collect();
    let outputs = actor.outputs[..actor.outputs.len() - states].iter();
    let outputs: Vec<String> = outputs
        .map(|p| format!("{}: {} {}", p.name, p.token, p.rate))
        .collect();
    let states: Vec<String> = actor.outputs[actor.outputs.len() - states..]
        .iter()
        .map(|p| format!("{}: {}", p.name, p.token))
        .collect();
    let states = if states.is_empty() {
        String::new()
    } else {
        format!("; state {}", states.join(", "))
    };
    format!("{} -> {}{states}", inputs.join(", "), outputs.join(", "))
        .trim_start()
        .to_owned()
}

#[cfg(test)]
mod tests;
