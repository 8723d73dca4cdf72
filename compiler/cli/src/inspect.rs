//! `zbmdc inspect`: a bundle in one of many forms.

use std::io::IsTerminal;
use std::path::Path;

use zbmd_backends::devices::memory_bytes;
use zbmd_compiler::Code;
use zbmd_compiler::files;
use zbmd_compiler::view::{View, graph, html, json, perfetto, svg, text as overview};
use zbmd_ir::bundle::{self, OpenError};
use zbmd_ir::text::{self, TextOptions};
use zbmd_ir::trace::Trace;
use zbmd_ir::verify::Verified;
use zbmd_ir::{Program, verify};

use crate::args::{Emit, Format, Inspect, Reading};
use crate::commands::lone;
use crate::output::{Exit, Voice, columns, deliver, say};

/// A bundle's program and its view; what is wrong has been said otherwise.
pub(crate) fn open(
    path: &Path,
    reading: Reading,
    voice: Voice,
) -> Result<(Verified<Program>, View), Exit> {
    let (program, meta) = bundle::open_with_meta(path, reading.max_structure_bytes()).map_err(
        |error| match error {
            OpenError::Io(error) => {
                let message = format!("cannot read `{}`: {error}", path.display());
                voice.report(&lone(Code::E0701, message, "check the path"))
            }
            error => {
                let message = format!("`{}` is refused: {error}", path.display());
                voice.report(&lone(Code::E0601, message, "compile the model again"))
            }
        },
    )?;
    let view = View::of(&program, &meta);
    Ok((program, view))
}

/// The trace of a run of a program, and how many epochs are of others; what is wrong has been said otherwise.
fn read_trace(path: &Path, program: &Program, voice: Voice) -> Result<(Trace, usize), Exit> {
    let bytes = files::read(path, memory_bytes()).map_err(|error| {
        let message = format!("cannot read `{}`: {error}", path.display());
        voice.report(&lone(Code::E0701, message, error.help()))
    })?;
    Trace::of_program(&bytes, program).map_err(|error| {
        let message = format!("`{}` is refused: {error}", path.display());
        let help = "record a run of this bundle with `zbmd-run --trace`";
        voice.report(&lone(Code::E0601, message, help))
    })
}

pub(crate) fn inspect(args: &Inspect, voice: Voice) -> Exit {
    let (program, mut view) = match open(&args.bundle, args.reading, voice) {
        Ok(opened) => opened,
        Err(exit) => return exit,
    };
    let trace = args
        .measured
        .as_deref()
        .map(|path| read_trace(path, &program, voice));
    let trace = match trace.transpose() {
        Ok(trace) => trace,
        Err(exit) => return exit,
    };
    if let Some((trace, others)) = &trace {
        view.measure(&program, trace, *others);
    }
    let output = args.output.as_deref();
    if trace.is_some() && matches!(args.format, Format::Dot | Format::Mermaid) {
        say("zbmdc: a graph has no times to measure; `--measured` goes with the other formats\n");
        return Exit::Usage;
    }
    if args.emit.is_some() || args.no_times {
        let stage = args.emit.unwrap_or(Emit::All);
        return deliver(
            emit(&program, stage, !args.no_times).as_bytes(),
            output,
            voice,
        );
    }
    let Some(plan) = view.plan(&args.plan).and_then(|i| view.plans.get(i)) else {
        let names: Vec<String> = view
            .plans
            .iter()
            .enumerate()
            .map(|(i, p)| format!("{i}: {}", p.name))
            .collect();
        say(&format!(
            "zbmdc: there is no plan `{}`, only {}\n",
            args.plan,
            names.join(", ")
        ));
        return Exit::Usage;
    };
    if args.format == Format::Perfetto && output.is_none() && std::io::stdout().is_terminal() {
        say("zbmdc: a trace is no text; give `-o FILE`\n");
        return Exit::Usage;
    }
    let width = args.width.map_or_else(columns, usize::from);
    let bytes = match args.format {
        Format::Text => overview::plan(&view, plan, width).into_bytes(),
        Format::Json => json::write(&view).into_bytes(),
        Format::Ron => json::ron(&view).into_bytes(),
        Format::Dot => graph::dot(&view, plan).into_bytes(),
        Format::Mermaid => graph::mermaid(&view, plan).into_bytes(),
        Format::Svg => svg::plan(&view, plan).into_bytes(),
        Format::Html => html::page(&view).into_bytes(),
        Format::Perfetto => match &trace {
            Some((trace, _)) => perfetto::run(&view, &program, trace, args.periods),
            None => perfetto::plan(&view, plan, args.periods),
        },
    };
    deliver(&bytes, output, voice)
}

/// One stage of a program as text.
pub(crate) fn emit(program: &Program, stage: Emit, times: bool) -> String {
    let plans = program.plans.iter();
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
            let parts = stages.into_iter().map(|stage| emit(program, stage, times));
            // A program without contingencies has nothing to say about them.
            parts
                .filter(|part| !part.is_empty())
                .collect::<Vec<_>>()
                .join("\n")
        }
        // A bundle does not hold how it was made.
        Emit::Passes => String::new(),
        Emit::Graph => {
            // A verified program has a repetition vector; its absence would only cost a column.
            let q = verify::check_graph(&program.graph, &program.blobs).ok();
            text::graph(&program.graph, q.as_deref())
        }
        Emit::Contingencies => text::contingencies(program, options),
        Emit::Schedule => {
            let part = |plan| text::placement(program, plan) + &text::schedule(program, plan);
            plans.map(part).collect::<Vec<_>>().join("\n")
        }
        Emit::Calendar => plans
            .map(|p| text::calendar(program, p, options))
            .collect::<Vec<_>>()
            .join("\n"),
        Emit::Layout => plans
            .map(|p| text::layout(program, p))
            .collect::<Vec<_>>()
            .join("\n"),
    }
}
