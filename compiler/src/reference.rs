//! The reference pages of the book, made from what the program itself reads: the format's table and the op catalogue.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use zbmd_backends::TensorOp;
use zbmd_backends::kernels::Caps;
use zbmd_backends::op::{CLASSES, Op, Registry, ResolveCx, Signature, example_inputs, source};
use zbmd_ir::{
    Actor, DType, InPort, OutPort, Params, Role, StatePort, TiVec, TokenType, Value, limits,
};

use crate::diag::Sink;
use crate::format::{Absent, GROUPS, Group};
use crate::parse::{self, NodeKind};
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
    let mut page_text = format!("{FORMAT}\n");
    page_text += "Tokens (`initial`, `history`) are a list with one value for each token, `Zeros(n)`, `Fill(n, value)` or\n\
            `Npy(\"file.npy\")`, whose first dimension counts tokens. A complex number is `[re, im]`.\n\n";
    let dtype_list = DType::ALL.map(|d| format!("`{}` ({} B)", d.name(), d.size_bytes()));
    let _ = writeln!(page_text, "Dtypes: {}.\n", dtype_list.join(", "));
    let _ = writeln!(
        page_text,
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

    GROUPS
        .iter()
        .for_each(|group| page_text += &group_section(group));
    page_text
}

fn group_section(group: &Group) -> String {
    let mut section_text = format!(
        "## {}\n\n{}\n\n```ron\n{}\n```\n\n",
        group.name, group.doc, group.text
    );
    section_text += "| field | takes | left out | meaning |\n|---|---|---|---|\n";
    for field in group.fields {
        let when_absent = match field.absent {
            Absent::Refused => "an error".to_owned(),
            Absent::Is(value) => format!("`{value}`"),
            Absent::Means(what) => what.to_owned(),
        };

        let _ = writeln!(
            section_text,
            "| `{}` | {} | {when_absent} | {} |",
            field.name, field.takes.shown, field.doc
        );
    }

    section_text + "\n"
}

/// The op catalogue as Markdown: every op of a registry with ports, rates, parameters, dtypes, devices and source.
/// Types and devices are what resolving the op's example with each type gives.
pub fn op_page(registry: &Registry) -> String {
    // Tensor ops are many and alike: they share a table, all others have a section each.
    let (tensor, others): (Vec<&str>, Vec<&str>) = registry.names().partition(|name| {
        name.strip_prefix("Nn")
            .is_some_and(|n| TensorOp::find(n).is_some())
    });
    let mut page_text = format!(
        "{} ops. `zbmdc ops` lists them, `zbmdc ops NAME` prints one. *CPU* and *GPU* are the element types of the\n\
         input (of the output where there is none) that the example takes there; GPU kernels are the same for Vulkan\n\
         and CUDA, and a device may lack a type. Rates and windows stand behind a port's type: `f32 8/71` consumes 8\n\
         tokens a firing and looks at 71.\n\n{}\n",
        tensor.len() + others.len(),
        type_notation()
    );

    for name in others {
        page_text += &format!(
            "## {name}\n\n{}\n",
            plain_text(&op_section(registry, name).unwrap_or_default())
        );
    }

    page_text += "## Tensor ops\n\n\
            One op for each ONNX operator, its name with `Nn` before it. A token is a whole tensor, every rate is 1. Any\n\
            operand without `!` or `~` may be a port or a parameter of its name. f16 and bf16 are storage: computed in\n\
            f32.\n\n\
            | op | operands -> outputs; types | what | CPU | GPU |\n|---|---|---|---|---|\n";
    tensor
        .iter()
        .for_each(|name| page_text += &tensor_row(registry, name));
    page_text
}

/// How the types of ports are written.
fn type_notation() -> String {
    let mut notation = "Types are written like `x:T w:^T b?:^T -> y:T; T: float`. A mark behind a port's name says how it is\n\
                   given: `?` may be missing, `!` must be a constant, `~` both, `*` any number may follow, named by\n\
                   number; `_` is any name. Types are element types and the classes below, alternatives separated by\n\
                   `|`. All ports with the same capital letter have the same type, one of those behind the `;`; `^T`\n\
                   may also be a type that is computed like T (f16 and bf16 like f32, i8 and i16 like i32). `[]`: the\n\
                   tensor may be empty. Whatever does not fit is refused, and written-out numbers take the type that\n\
                   fits.\n\n| class | types |\n|---|---|\n"
        .to_owned();
    for (name, dtypes) in CLASSES {
        let dtype_names: Vec<&str> = dtypes.iter().map(|d| d.name()).collect();
        let _ = writeln!(notation, "| `{name}` | {} |", dtype_names.join(", "));
    }
    notation
}

/// Text that no Markdown reader takes for links or emphasis; code in it stays.
fn plain_text(text: &str) -> String {
    // Between backticks every second part is code.
    let mut plain = String::new();
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 0 {
            let brackets = part.replace('[', "\\[").replace(']', "\\]");
            plain += &brackets.replace('*', "\\*");
        } else {
            plain += &format!("`{part}`");
        }
    }
    plain
}

/// One op as text for people, `None` for an unknown one.
pub fn op_section(registry: &Registry, name: &str) -> Option<String> {
    let op = registry.op(name)?;
    let op_doc = op.doc();
    let mut section_text = format!(
        "{}\n\n- ports: {}\n- example: `{}`\n",
        op_doc.summary, op_doc.ports, op_doc.example
    );
    if let Some(input_types) = op.types() {
        let _ = writeln!(section_text, "- types: `{input_types}`");
    }
    for (param, meaning) in op_doc.params {
        let position = op.positional().iter().position(|p| p == param);
        let position_text = position.map_or(String::new(), |i| format!(" (argument {})", i + 1));
        let _ = writeln!(section_text, "- `{param}`{position_text}: {meaning}");
    }

    let support = OpSupport::of(registry, &**op);
    let _ = writeln!(section_text, "- {support}");

    // Examples are small; ops with a limit on GPUs are asked again with a token beyond it.
    for (_, elements) in LARGE.iter().filter(|(large, _)| *large == name) {
        let dtype = *support.cpu.first()?;
        let example_token = TokenType::new(dtype, [*elements]);
        let input_types = [("x".to_owned(), example_token.clone())].into();
        let example_params = params_of(op_doc.example, op.positional())?;
        let example_actor = resolve(registry, &**op, &example_params, input_types)?;
        if let Some(why) = registry.gpu_reason(&example_actor, &TiVec::new(), &Caps::COMMON) {
            let _ = writeln!(
                section_text,
                "- GPU, where `x:{example_token}`: none, {why}"
            );
        }
    }

    if let Some(source) = source(name) {
        let _ = writeln!(section_text, "- source: {source}");
    }
    Some(section_text)
}

fn tensor_row(registry: &Registry, name: &str) -> String {
    let Some((op, spec)) = registry
        .op(name)
        .zip(TensorOp::find(name.trim_start_matches("Nn")))
    else {
        return String::new();
    };
    let support = OpSupport::of(registry, &**op);

    // Ops that are not ONNX operators have no page there.
    let plain_summary = plain_text(op.doc().summary);
    let is_foreign = ["no ONNX operator", "of the domain com.microsoft"]
        .iter()
        .any(|note| plain_summary.contains(note));
    let shown_name = match is_foreign {
        true => format!("`{name}`"),
        false => format!(
            "[`{name}`](https://onnx.ai/onnx/operators/onnx__{}.html)",
            spec.operator
        ),
    };

    format!(
        "| {shown_name} | `{}` | {plain_summary} | {} | {} |\n",
        spec.types.to_string().replace('|', "\\|"),
        names(&support.cpu),
        support.gpu_text()
    )
}

/// Ops whose kernels on GPUs end at a size, and an input beyond it.
const LARGE: [(&str, u32); 2] = [("Fft", 2048), ("Rfft", 2048)];

/// What an op's example takes.
#[derive(Default)]
struct OpSupport {
    /// Its ports with the first type it takes.
    ports: String,
    cpu: Vec<DType>,
    gpu: Vec<DType>,
    /// Why not on a GPU, by type.
    reasons: Vec<(DType, String)>,
}

impl OpSupport {
    fn of(registry: &Registry, op: &dyn Op) -> Self {
        let mut support = Self::default();
        for dtype in DType::ALL {
            let Some(actor) = probe_dtype(registry, op, dtype) else {
                continue;
            };
            if support.ports.is_empty() {
                support.ports = ports(&actor);
            }

            // Several element types may be one to the op: it is listed once.
            let dtype = shown_dtypes(&actor, dtype);
            if support.cpu.contains(&dtype) {
                continue;
            }

            // `probe_dtype` has made the CPU's kernel. The GPU's is asked for with what all GPUs can do.
            support.cpu.push(dtype);
            match registry.gpu_reason(&actor, &TiVec::new(), &Caps::COMMON) {
                None => support.gpu.push(dtype),
                Some(why) => support.reasons.push((dtype, why)),
            }
        }

        support
    }

    fn gpu_text(&self) -> String {
        if self.reasons.is_empty() {
            return "the same".to_owned();
        }

        // Types with one reason are listed together.
        let mut by_reason: Vec<(Vec<DType>, &str)> = Vec::new();
        for (dtype, reason) in &self.reasons {
            match by_reason.iter_mut().find(|(_, other)| other == reason) {
                Some((dtypes, _)) => dtypes.push(*dtype),
                None => by_reason.push((vec![*dtype], reason)),
            }
        }

        // Where no type works, the types need not be listed with the reasons.
        let reasons = by_reason
            .iter()
            .map(|(dtypes, reason)| match self.gpu.is_empty() {
                true => (*reason).to_owned(),
                false => format!("{}: {reason}", names(dtypes)),
            });
        let reason_list = reasons.collect::<Vec<_>>().join("; ");
        if self.gpu.is_empty() {
            format!("none: {reason_list}")
        } else {
            format!("{} ({reason_list})", names(&self.gpu))
        }
    }
}

impl std::fmt::Display for OpSupport {
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
fn shown_dtypes(actor: &Actor, tried: DType) -> DType {
    let stream_inputs = &actor.inputs[..actor.inputs.len() - actor.state.len()];
    if stream_inputs.iter().any(|port| port.token.dtype == tried) {
        return tried;
    }
    let first_dtype = stream_inputs.first().map(|port| port.token.dtype);
    first_dtype
        .or(actor.outputs.first().map(|port| port.token.dtype))
        .unwrap_or(tried)
}

fn names(dtypes: &[DType]) -> String {
    // The shorter of the two lists: most ops take nearly all types, or few.
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

/// The actor of an op's example with inputs of one dtype, if it can be.
fn probe_dtype(registry: &Registry, op: &dyn Op, dtype: DType) -> Option<Actor> {
    let example_params = params_of(op.doc().example, op.positional())?;
    let input_types: BTreeMap<String, TokenType> = example_inputs(op, dtype).into_iter().collect();

    // Ops that declare their inputs (`Expr`) are tried with this dtype declared, and else with the example's own.
    let param_variants = [declared_as(&example_params, dtype), example_params];
    let mut resolved_actors = param_variants.iter().filter_map(|params| {
        let actor = resolve(registry, op, params, input_types.clone())?;
        registry
            .kernel(&actor, &TiVec::new())
            .is_ok()
            .then_some(actor)
    });
    resolved_actors.next()
}

/// Parameters that declare inputs, with another dtype for all of them.
fn declared_as(example_params: &Params, dtype: DType) -> Params {
    let mut declared_params = example_params.clone();
    if let Some(Value::Map(inputs)) = declared_params.get_mut("inputs") {
        let dtype_word = Value::Str(dtype.name().to_owned());
        inputs
            .values_mut()
            .for_each(|declared| *declared = dtype_word.clone());
    }
    declared_params
}

/// Parameters of an op as a model writes them.
fn params_of(text: &str, positional: &[&str]) -> Option<Params> {
    let mut sources = SourceMap::default();
    let mut sink = Sink::default();
    let file_id = sources.add("example", text);
    let NodeKind::Call(_, args) = parse::parse(file_id, text, &mut sink)?.kind else {
        return None;
    };

    // Arguments without a name take the positional parameters in their order, as in a model.
    let mut files = Files::default();
    let mut next_positional = positional.iter();
    let mut parsed_params = Params::new();
    for arg in &args {
        let name = arg
            .name
            .as_ref()
            .map(|n| n.value.as_str())
            .or_else(|| next_positional.next().copied())?;
        parsed_params.insert(
            name.to_owned(),
            files.value(&arg.value, "".as_ref(), &mut sink)?,
        );
    }

    (sink.errors() == 0).then_some(parsed_params)
}

/// The actor with these inputs.
fn resolve(
    registry: &Registry,
    op: &dyn Op,
    params: &Params,
    types: BTreeMap<String, TokenType>,
) -> Option<Actor> {
    let no_blobs = TiVec::new();
    let connected_ports: Vec<String> = types.keys().cloned().collect();
    let resolve_cx = ResolveCx {
        params,
        connected: &connected_ports,
        types: &types,
        blobs: &no_blobs,
    };

    let signature = registry.resolve(op.name(), &resolve_cx).ok()?;
    Some(actor(op.name(), params, signature))
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
        inputs.push(InPort {
            name: spec.name.clone(),
            token: spec.token.clone(),
            rate: 1,
            window: 1,
        });
        outputs.push(OutPort {
            name: spec.name,
            token: spec.token,
            rate: 1,
        });
    }

    Actor {
        name: "example".to_owned(),
        role: Role::Compute,
        op: op.to_owned(),
        params: params.clone(),
        inputs,
        outputs,
        state,
        in_place: Vec::new(),
    }
}

/// A port with its rate, and its window where that is larger.
fn input_text(port: &InPort) -> String {
    let InPort {
        name,
        token,
        rate,
        window,
    } = port;
    if rate == window {
        format!("{name}: {token} {rate}")
    } else {
        format!("{name}: {token} {rate}/{window}")
    }
}

fn ports(actor: &Actor) -> String {
    // The ports of states follow the op's own, on both sides.
    let state_count = actor.state.len();
    let own_inputs = &actor.inputs[..actor.inputs.len() - state_count];
    let (own_outputs, state_outputs) = actor.outputs.split_at(actor.outputs.len() - state_count);

    let input_texts: Vec<String> = own_inputs.iter().map(input_text).collect();
    let output_texts: Vec<String> = own_outputs
        .iter()
        .map(|p| format!("{}: {} {}", p.name, p.token, p.rate))
        .collect();
    let state_texts: Vec<String> = state_outputs
        .iter()
        .map(|p| format!("{}: {}", p.name, p.token))
        .collect();
    let state_suffix = if state_texts.is_empty() {
        String::new()
    } else {
        format!("; state {}", state_texts.join(", "))
    };
    format!(
        "{} -> {}{state_suffix}",
        input_texts.join(", "),
        output_texts.join(", ")
    )
    .trim_start()
    .to_owned()
}

#[cfg(test)]
mod tests;
