//! Which optional passes a compilation runs: the one place that knows what was asked for and what the machine gains from.

use crate::codes::Code;
use crate::diag::Diagnostic;
use crate::options::CompileOptions;
use crate::reports::Reports;
use crate::target::Target;
use crate::{collectives, in_place, onnx, pack};

/// Passes over the whole graph that can be left out, whatever format the model has.
const WHOLE_GRAPH_PASSES: [&str; 3] = [in_place::NAME, collectives::NAME, pack::NAME];

/// The passes of one compilation.
#[derive(Debug, Default)]
pub(crate) struct PassSelection {
    skipped: Vec<String>,
}

impl PassSelection {
    /// The passes that the options and the machine leave; reports names that no pass has.
    pub(crate) fn new(
        options: &CompileOptions,
        target: Option<&Target>,
        reports: &mut Reports,
    ) -> Self {
        let mut skipped = options.skipped_passes.clone();
        if let Some(unknown) = skipped.iter().find(|name| !is_pass(name)) {
            reports.sink.push(unknown_pass(unknown));
        }

        if target.is_some_and(Target::has_gpus) {
            skipped.extend(onnx::CPU_PASSES.map(str::to_owned));
        }
        Self { skipped }
    }

    /// Whether a pass is to run.
    pub(crate) fn runs(&self, pass: &str) -> bool {
        !self.skipped.iter().any(|skipped| skipped == pass)
    }

    /// The skipped passes over imported models.
    pub(crate) fn skipped_imports(&self) -> Vec<String> {
        let skipped = onnx::passes().filter(|(name, _)| !self.runs(name));
        skipped.map(|(name, _)| name.to_owned()).collect()
    }
}

/// The names of all optional passes, in their order.
fn pass_names() -> impl Iterator<Item = &'static str> {
    onnx::passes()
        .map(|(name, _)| name)
        .chain(WHOLE_GRAPH_PASSES)
}

fn is_pass(name: &str) -> bool {
    pass_names().any(|known| known == name)
}

fn unknown_pass(name: &str) -> Diagnostic {
    let known_names: Vec<&str> = pass_names().collect();
    let message = format!("there is no pass `{name}`, only {}", known_names.join(", "));
    Diagnostic::new(Code::E0807, message).help(
        "correct the name or leave it out; `zbmdc compile --emit passes` says what each pass does",
    )
}
