//! `zbmdc inspect`: a bundle in one of many forms.

use std::io::IsTerminal;
use std::path::Path;

use zbmd_backends::devices::memory_bytes;
use zbmd_compiler::files;
use zbmd_compiler::view::{PlanView, View, graph, html, json, perfetto, svg, text as overview};
use zbmd_compiler::{Code, check_deadlines};
use zbmd_ir::bundle::{self, BundleError, Meta, OpenError};
use zbmd_ir::text::{self, TextOptions};
use zbmd_ir::trace::Trace;
use zbmd_ir::verify::{Verified, VerifiedModes};
use zbmd_ir::{Program, verify};

use crate::args::{Emit, Format, Inspect, Reading};
use crate::output::{Exit, Voice, columns, deliver, say, single_error};
use crate::simulate::inspect_ticks;

/// A bundle that was opened, and its view.
pub(crate) struct OpenedBundle {
    pub(crate) program: Verified<Program>,
    pub(crate) view: View,
}

/// Opens a bundle. Where that fails, the reason has been reported.
pub(crate) fn open_bundle(
    path: &Path,
    reading: Reading,
    voice: Voice,
) -> Result<OpenedBundle, Exit> {
    let opened = bundle::open_with_meta(path, reading.max_structure_bytes());
    let (program, meta) = opened.map_err(|error| refuse_bundle(path, error, voice))?;
    let view = View::of(&program, &meta);
    Ok(OpenedBundle { program, view })
}

/// Reports why a bundle cannot be opened.
pub(crate) fn refuse_bundle(path: &Path, error: OpenError, voice: Voice) -> Exit {
    let shown_path = path.display();
    match error {
        OpenError::Io(error) => {
            let message = format!("cannot read `{shown_path}`: {error}");
            voice.report(&single_error(Code::E0701, message, "check the path"))
        }
        error => {
            let message = format!("`{shown_path}` is refused: {error}");
            let help = match &error {
                OpenError::Bundle(BundleError::Modes) => {
                    "compile one of them alone: `zbmdc compile MODEL --mode NAME`"
                }
                _ => "compile the model again",
            };
            voice.report(&single_error(Code::E0601, message, help))
        }
    }
}

/// The modes of a bundle, of which one is shown.
struct OpenedModes {
    modes: VerifiedModes,
    meta: Meta,
    shown: usize,
}

impl OpenedModes {
    /// Views of all modes, of which `view` is that of the one that is shown.
    fn views(&self, view: &View) -> Vec<View> {
        let all = 0..self.modes.programs().len();
        let views = all.map(|index| match index == self.shown {
            true => view.clone(),
            false => View::of_mode(&self.modes, index, &self.meta),
        });
        views.collect()
    }
}

/// Opens a bundle with the mode that is asked for, by default the first. Where that fails, the reason has been reported.
fn open_modes(args: &Inspect, voice: Voice) -> Result<OpenedModes, Exit> {
    let path = &args.bundle;
    let opened_modes = bundle::open_modes_within(path, args.reading.max_structure_bytes());
    let modes = opened_modes.map_err(|error| refuse_bundle(path, error, voice))?;
    let meta = bundle::open_meta(path).map_err(|error| refuse_bundle(path, error, voice))?;
    let names = modes.names();
    let shown = match &args.mode {
        None => 0,
        Some(wanted) => match names.iter().position(|name| name == wanted) {
            Some(index) => index,
            None => {
                let known = match modes.has_modes() {
                    true => format!("it has {}", names.join(", ")),
                    false => "it has none".to_owned(),
                };
                say(&format!("zbmdc: there is no mode `{wanted}`: {known}\n"));
                return Err(Exit::Usage);
            }
        },
    };

    Ok(OpenedModes { modes, meta, shown })
}

/// A run of the program that is inspected.
struct MeasuredTrace {
    trace: Trace,
    /// Epochs of other programs in the same file.
    other_epochs: usize,
}

/// Reads the trace of a run. Where that fails, the reason has been reported.
fn read_trace(path: &Path, program: &Program, voice: Voice) -> Result<MeasuredTrace, Exit> {
    let shown_path = path.display();
    let bytes = files::read(path, memory_bytes()).map_err(|error| {
        let message = format!("cannot read `{shown_path}`: {error}");
        voice.report(&single_error(Code::E0701, message, error.help()))
    })?;
    let parsed = Trace::of_program(&bytes, program).map_err(|error| {
        let message = format!("`{shown_path}` is refused: {error}");
        let help = "record a run of this bundle with `zbmd-run --trace`";
        voice.report(&single_error(Code::E0601, message, help))
    });
    let (trace, other_epochs) = parsed?;
    Ok(MeasuredTrace {
        trace,
        other_epochs,
    })
}

pub(crate) fn inspect(args: &Inspect, voice: Voice) -> Exit {
    if let Some(machine) = &args.machine {
        return inspect_ticks(args, machine, voice);
    }
    match inspect_bundle(args, voice) {
        Ok(exit) | Err(exit) => exit,
    }
}

fn inspect_bundle(args: &Inspect, voice: Voice) -> Result<Exit, Exit> {
    let opened = open_modes(args, voice)?;
    let program = Verified::clone(&opened.modes.programs()[opened.shown]);
    let mut view = View::of_mode(&opened.modes, opened.shown, &opened.meta);
    let trace_path = args.measured.as_deref();
    let measured = trace_path
        .map(|path| read_trace(path, &program, voice))
        .transpose()?;
    if let Some(MeasuredTrace {
        trace,
        other_epochs,
    }) = &measured
    {
        view.measure(&program, trace, *other_epochs);
    }
    if measured.is_some() && matches!(args.format, Format::Dot | Format::Mermaid) {
        say("zbmdc: a graph has no times to measure; `--measured` goes with the other formats\n");
        return Err(Exit::Usage);
    }

    let output = args.output.as_deref();
    let width = args.width.map_or_else(columns, usize::from);
    if args.emit.is_some() || args.no_times {
        let stage = args.emit.unwrap_or(Emit::All);
        let text = emit_stage(&program, stage, !args.no_times, width);
        return Ok(deliver(text.as_bytes(), output, voice));
    }

    // Stages show all plans; every other form shows one.
    let plan = find_plan(&view, &args.plan)?;
    if args.format == Format::Perfetto && output.is_none() && std::io::stdout().is_terminal() {
        say("zbmdc: a trace is not text; give `-o FILE`\n");
        return Err(Exit::Usage);
    }

    let bytes = match args.format {
        Format::Text => {
            let deadlines = check_deadlines(&program);
            let lines = deadlines.iter().map(|check| format!("{check}\n"));
            let overview = overview::plan(&view, plan, width);
            (overview + &lines.collect::<String>()).into_bytes()
        }
        Format::Json => json::write(&view).into_bytes(),
        Format::Ron => json::ron(&view).into_bytes(),
        Format::Dot => graph::dot(&view, plan).into_bytes(),
        Format::Mermaid => graph::mermaid(&view, plan).into_bytes(),
        Format::Svg => svg::plan(&view, plan).into_bytes(),
        Format::Html => {
            let shown = opened.shown;
            html::page_of_modes(&opened.views(&view), shown).into_bytes()
        }
        Format::Perfetto => match &measured {
            Some(measured) => perfetto::run(&view, &program, &measured.trace, args.periods),
            None => perfetto::plan(&view, plan, args.periods),
        },
    };

    Ok(deliver(&bytes, output, voice))
}

/// The plan of that name or number. Where there is none, that has been reported.
fn find_plan<'a>(view: &'a View, wanted: &str) -> Result<&'a PlanView, Exit> {
    let position = view.plan(wanted);
    position
        .and_then(|index| view.plans.get(index))
        .ok_or_else(|| {
            let plans = view.plans.iter().enumerate();
            let known_plans: Vec<String> = plans
                .map(|(index, plan)| format!("{index}: {}", plan.name))
                .collect();
            let known_plans = known_plans.join(", ");
            say(&format!(
                "zbmdc: there is no plan `{wanted}`, only {known_plans}\n"
            ));
            Exit::Usage
        })
}

/// One stage of a program as text. The graph is wrapped to a width; the other stages are as wide as they are.
pub(crate) fn emit_stage(program: &Program, stage: Emit, times: bool, width: usize) -> String {
    let options = TextOptions { times };
    match stage {
        Emit::All => {
            let stages = [
                Emit::Graph,
                Emit::Contingencies,
                Emit::Schedule,
                Emit::Layout,
                Emit::Calendar,
            ];
            let mut parts = stages
                .map(|stage| emit_stage(program, stage, times, width))
                .to_vec();

            // A program without contingencies has nothing to say about them.
            parts.retain(|part| !part.is_empty());
            parts.join("\n")
        }
        // A bundle does not hold how it was made.
        Emit::Passes => String::new(),
        Emit::Graph => {
            // A verified program has a repetition vector; its absence would only cost a column.
            let repetitions = verify::check_graph(&program.graph, &program.blobs).ok();
            text::graph_in_columns(&program.graph, repetitions.as_deref(), width)
        }
        Emit::Contingencies => text::contingencies(program, options),
        Emit::Schedule => join_plans(program, |plan| {
            text::placement(program, plan) + &text::schedule(program, plan)
        }),
        Emit::Calendar => join_plans(program, |plan| text::calendar(program, plan, options)),
        Emit::Layout => join_plans(program, |plan| text::layout(program, plan)),
    }
}

/// A text of each plan, with an empty line between two.
fn join_plans(program: &Program, plan_text: impl Fn(&zbmd_ir::Plan) -> String) -> String {
    let texts: Vec<String> = program.plans.iter().map(plan_text).collect();
    texts.join("\n")
}
