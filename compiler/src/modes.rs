//! The modes of a model in text: which there are, and the model of each. Knows no plan.

use zbmd_ir::verify::ModesError;
use zbmd_ir::{Mode, ModeDecision, Modes, Program, batch_mode_name, limits};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::model::{ModeFrom, Model};
use crate::options::CompileOptions;
use crate::parse::{Node, NodeKind};
use crate::source::{Span, Spanned};

/// What a text says of its modes. The first is the one that a run begins in.
#[derive(Clone, Debug)]
pub(crate) struct ModeList {
    pub(crate) names: Vec<Spanned<String>>,
    changes: Vec<(u32, u32)>,
    /// What decides, and for each mode as written its place among the names.
    decision: Option<(ModeFrom, Vec<u32>)>,
}

impl ModeList {
    /// The modes of a model; `None` if it has none, or they cannot be, which has been reported.
    pub(crate) fn of(model: &Model, sink: &mut Sink) -> Option<Self> {
        let mut names: Vec<Spanned<String>> = model.modes.iter().map(|m| m.name.clone()).collect();
        if let Some(initial) = &model.initial_mode {
            let found = find(&names, initial, sink)?;
            names[..=found as usize].rotate_right(1);
        }
        if names.is_empty() {
            // Changes between modes that are not there are refused like those that name an unknown one.
            for (from, _) in model.changes.iter().flatten() {
                find(&names, from, sink);
            }
            for (_, mode) in late_modes(model) {
                find(&names, &mode, sink);
            }
            if let Some(ModeFrom { from, .. }) = &model.mode_from {
                let message = format!(
                    "`{}` is to decide about modes, and there are none",
                    from.value
                );
                sink.push(refuse(message, from.span).help("add `modes`, or leave `mode_from` out"));
            }
            return None;
        }

        let mut changes = Vec::new();
        match &model.changes {
            None => {
                changes.extend(all_changes(names.len() as u32));
            }
            Some(pairs) => {
                for (from, to) in pairs {
                    let pair = (find(&names, from, sink)?, find(&names, to, sink)?);
                    if pair.0 == pair.1 || changes.contains(&pair) {
                        let message = format!(
                            "the change from mode `{}` to `{}` changes nothing",
                            from.value, to.value
                        );
                        let refusal = Diagnostic::new(Code::E0219, message)
                            .primary(from.span, "itself, or a change that was listed before")
                            .help("remove it");
                        sink.push(refusal);
                        return None;
                    }
                    changes.push(pair);
                }
            }
        }
        let written = model.modes.iter();
        let places = written.filter_map(|mode| {
            let place = names.iter().position(|name| name.value == mode.name.value);
            place.map(|place| place as u32)
        });
        let places: Vec<u32> = places.collect();
        let decision = model.mode_from.clone().map(|from| (from, places));
        let list = Self {
            names,
            changes,
            decision,
        };
        list.check_late_modes(model, sink)?;
        Some(list)
    }

    /// The modes of an ONNX model, one for each size of its batches; `None` if it has none, or they cannot be, which has been
    /// reported.
    pub(crate) fn of_buckets(sizes: &[u32], sink: &mut Sink) -> Option<Self> {
        let fault = bucket_fault(sizes);
        if let Some(why) = &fault {
            let help = "write each size once, such as `--buckets 1,2,4,8`";
            sink.push(refuse(why.as_str(), Span::NONE).help(help));
        }
        if sizes.is_empty() || fault.is_some() {
            return None;
        }

        let names = sizes.iter().map(|&size| batch_mode_name(size));
        let count = sizes.len() as u32;
        Some(Self {
            names: names.map(|name| Spanned::new(name, Span::NONE)).collect(),
            changes: all_changes(count),
            decision: None,
        })
    }

    /// Refuses sinks whose late blocks ask for a mode that is not there, or that the run may not go to from any other: then a
    /// block that is late there would change nothing.
    fn check_late_modes(&self, model: &Model, sink: &mut Sink) -> Option<()> {
        for (stream, mode) in late_modes(model) {
            let target = find(&self.names, &mode, sink)?;
            let all = (0..).zip(&self.names);
            let mut barred =
                all.filter(|(from, _)| *from != target && !self.changes.contains(&(*from, target)));
            if let Some((_, from)) = barred.next() {
                let message = format!(
                    "late blocks of `{stream}` ask for mode `{}`, to which no change goes from mode `{}`",
                    mode.value, from.value
                );
                let refusal = refuse(message, mode.span).help(format!(
                    "add `(\"{}\", \"{}\")` to `changes`",
                    from.value, mode.value
                ));
                sink.push(refusal);
                return None;
            }
        }
        Some(())
    }

    /// The programs of all modes together, in the order of the names.
    pub(crate) fn join(&self, programs: Vec<Program>) -> Modes {
        let decision = self.decision.as_ref().map(|(decides, places)| {
            let (actor, port) = writer_of(&decides.from.value, &programs);
            ModeDecision {
                actor,
                port,
                modes: places.clone(),
                every: decides.every,
            }
        });
        let names = self.names.iter().map(|name| name.value.clone());
        let list = names.zip(programs);
        Modes {
            list: list.map(|(name, program)| Mode { name, program }).collect(),
            changes: self.changes.clone(),
            decision,
        }
    }

    /// Where the text says what decides, if it does: else where the last mode stands.
    pub(crate) fn span_of(&self, error: &ModesError) -> Span {
        match (&self.decision, error) {
            (Some((decides, _)), ModesError::Decision { .. }) => decides.from.span,
            _ => self.names.last().map_or(Span::NONE, |name| name.span),
        }
    }
}

/// The actor and the output that `actor` or `actor.port` names. An output that is not there has a number that none has.
fn writer_of(name: &str, programs: &[Program]) -> (String, u32) {
    let graphs = || programs.iter().map(|program| &program.graph);
    if graphs().any(|graph| graph.find(name).is_some()) {
        return (name.to_owned(), 0);
    }
    let Some((actor, port)) = name.rsplit_once('.') else {
        return (name.to_owned(), 0);
    };
    let place = graphs().find_map(|graph| {
        let mut outputs = graph.actors[graph.find(actor)?].outputs.iter();
        outputs.position(|output| output.name == port)
    });
    (
        actor.to_owned(),
        place.map_or(u32::MAX, |place| place as u32),
    )
}

/// From every mode to every other.
fn all_changes(count: u32) -> Vec<(u32, u32)> {
    let all = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to).collect()
}

/// The size of batches of the mode that is compiled, of an ONNX model that has several.
pub(crate) fn chosen_bucket(options: &CompileOptions) -> Option<u32> {
    let mut sizes = options.buckets.iter().copied();
    match &options.mode {
        None => sizes.next(),
        Some(mode) => sizes.find(|&size| batch_mode_name(size) == *mode),
    }
}

/// Why there cannot be a mode for each of these sizes.
fn bucket_fault(sizes: &[u32]) -> Option<String> {
    if sizes.len() > limits::MAX_MODES {
        return Some(format!(
            "there are {} sizes of batches, at most {} can be modes",
            sizes.len(),
            limits::MAX_MODES
        ));
    }
    for (index, size) in sizes.iter().enumerate() {
        if *size == 0 {
            return Some("a batch has 0 samples".to_owned());
        }
        if sizes[..index].contains(size) {
            return Some(format!("batches of {size} are asked for twice"));
        }
    }
    None
}

/// What stands in `Mode(…)`, if a node is that.
pub(crate) fn mode_call(node: &Node) -> Option<&Node> {
    match &node.kind {
        NodeKind::Call(Some(name), args) if name.value == "Mode" => match args.as_slice() {
            [arg] if arg.name.is_none() => Some(&arg.value),
            _ => None,
        },
        _ => None,
    }
}

/// The sinks whose late blocks ask for a mode, and which.
fn late_modes(model: &Model) -> Vec<(&str, Spanned<String>)> {
    let sinks = model.sinks.iter();
    let with_modes = sinks.filter_map(|stream| {
        let mode = mode_call(stream.on_miss.as_ref()?)?;
        match &mode.kind {
            NodeKind::Str(name) => {
                let name = Spanned::new(name.clone(), mode.span);
                Some((stream.name.value.as_str(), name))
            }
            // What else stands there is refused where it is read.
            _ => None,
        }
    });
    with_modes.collect()
}

/// E0219, for modes that cannot follow each other.
pub(crate) fn refuse(why: impl Into<String>, span: Span) -> Diagnostic {
    Diagnostic::new(Code::E0219, why).primary(span, if span.is_some() { "here" } else { "" })
}

fn find(names: &[Spanned<String>], wanted: &Spanned<String>, sink: &mut Sink) -> Option<u32> {
    let found = names.iter().position(|name| name.value == wanted.value);
    if found.is_none() {
        let known = names.iter().map(|name| name.value.as_str());
        let message = format!("there is no mode `{}`", wanted.value);
        let refusal = refuse(message, wanted.span).help(suggest(&wanted.value, known));
        sink.push(refusal);
    }
    found.map(|found| found as u32)
}
