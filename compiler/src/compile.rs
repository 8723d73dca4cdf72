//! The public face of compilations: from a file, a text, a graph or a net to a result.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::bundle::Meta;
use zbmd_ir::verify::{Verified, VerifiedModes, verify_modes};
use zbmd_ir::{BlobId, Costs, Graph, Machine, Program, TiSlice, TiVec};
use zbmd_scheduler::Estimate;

use crate::analysis::Analysis;
use crate::calibrate::{self, CalibrateOptions, Calibration};
use crate::codes::Code;
use crate::collectives;
use crate::compilation::Compilation;
use crate::contingency::ImpossibleLoss;
use crate::cost_table::CostSources;
use crate::costs::MeasuredCosts;
use crate::cpu_only::CpuOnlyActors;
use crate::diag::{Diagnostic, Diagnostics, Sink};
use crate::front::Source;
use crate::modes::{self, ModeList};
use crate::net::Net;
use crate::options::{CompileOptions, MachineChoice, Replicate};
use crate::pass_report::PassReport;
use crate::replicate::Replication;
use crate::reports::Reports;
use crate::rounding::Rounding;
use crate::target::Target;
use crate::tiers::FetchedWeights;
use crate::write::WriteError;

/// A compiled program, with what is worth knowing about the model.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The program, verified.
    pub program: Verified<Program>,
    /// Warnings; no errors among them.
    pub warnings: Diagnostics,
    /// How good the placement of the main plan is, by the cost model; unknown for graphs too large to search.
    pub estimate: Option<Estimate>,
    /// Losses of devices that plans were asked for, where the rest of the machine cannot do the work.
    pub impossible: Vec<ImpossibleLoss>,
    /// Actors that run on several devices at once, or could; the program's graph then is not the model's own.
    pub replication: Option<Replication>,
    /// What became of products that may round their factors, if any may.
    pub rounding: Option<Rounding>,
    /// Actors that no GPU of the machine has a kernel for, if it has GPUs.
    pub cpu_only: Option<CpuOnlyActors>,
    /// Weights that devices fetch from their tiers while the main plan runs.
    pub fetched: Vec<FetchedWeights>,
    /// What the passes over imported ONNX models did, by file.
    pub passes: Vec<(String, Vec<PassReport>)>,
    /// All modes, of a model that has some; what else stands here is of the first.
    pub modes: Option<CompiledModes>,
}

/// The modes of a model.
#[derive(Clone, Debug)]
pub struct CompiledModes {
    /// Their programs; a run begins in the first.
    pub verified: VerifiedModes,
    /// For each mode the losses that its plans cannot survive.
    pub impossible: Vec<Vec<ImpossibleLoss>>,
}

impl Compiled {
    /// All its modes, or the one program, for an engine.
    pub fn into_modes(self) -> VerifiedModes {
        match self.modes {
            Some(modes) => modes.verified,
            None => VerifiedModes::from(self.program),
        }
    }

    /// Writes the bundle; the file appears whole or not at all.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), WriteError> {
        let path = path.as_ref();
        let written = match &self.modes {
            Some(modes) => zbmd_ir::bundle::write_modes(path, &modes.verified, &Meta::new()),
            None => zbmd_ir::bundle::write(path, &self.program),
        };
        written.map_err(|error| WriteError::new(path, error))
    }
}

fn compile(source: Source<'_>, options: &CompileOptions) -> Result<Compiled, Diagnostics> {
    let source_again = again(&source);
    let compilation = Compilation::open(source, options);
    match (several_modes(&compilation, options), source_again) {
        (Some(modes), Some(source)) => {
            drop(compilation);
            compile_modes(&modes, &source, options)
        }
        _ => finish(compilation),
    }
}

fn check(source: Source<'_>, options: &CompileOptions) -> Result<Diagnostics, Diagnostics> {
    let source_again = again(&source);
    let compilation = Compilation::open(source, options);
    let (Some(modes), Some(source)) = (several_modes(&compilation, options), source_again) else {
        return compilation.check();
    };
    let mut warnings = compilation.check()?;
    let mut of_modes = vec![std::mem::take(&mut warnings.list)];
    for name in modes.names.iter().skip(1) {
        let Some(source) = again(&source) else { break };
        let mode_options = options_of_mode(options, &name.value);
        let of_mode = Compilation::open(source, &mode_options).check()?;
        of_modes.push(of_mode.list);
    }
    warnings.list = joined_warnings(&of_modes);
    Ok(warnings)
}

/// The modes of a model, if all of them are asked for.
fn several_modes(compilation: &Compilation<'_>, options: &CompileOptions) -> Option<ModeList> {
    let modes = compilation.modes().filter(|_| options.mode.is_none());
    modes.cloned()
}

/// A text or a file once more, to read another mode of it. What is made in Rust has none.
fn again<'a>(source: &Source<'a>) -> Option<Source<'a>> {
    match *source {
        Source::File(path) => Some(Source::File(path)),
        Source::Files(paths) => Some(Source::Files(paths)),
        Source::Text { name, text, folder } => Some(Source::Text { name, text, folder }),
        Source::Onnx { name, bytes } => Some(Source::Onnx { name, bytes }),
        Source::Net { .. } | Source::Graph { .. } => None,
    }
}

fn options_of_mode(options: &CompileOptions, mode: &str) -> CompileOptions {
    let mut skipped_passes = options.skipped_passes.clone();
    skipped_passes.push(collectives::NAME.to_owned());
    CompileOptions {
        mode: Some(mode.to_owned()),
        // Replicas or parts of an actor in one mode would not find the tokens that it left in another.
        replicate: Replicate::Off,
        skipped_passes,
        ..options.clone()
    }
}

/// Compiles every mode by itself, for the same machine, and puts them together.
fn compile_modes(
    modes: &ModeList,
    source: &Source<'_>,
    options: &CompileOptions,
) -> Result<Compiled, Diagnostics> {
    let mut first: Option<Compiled> = None;
    let mut programs = Vec::new();
    let mut warnings = Vec::new();
    let mut impossible = Vec::new();
    for name in &modes.names {
        let Some(source) = again(source) else { break };
        let mode_options = options_of_mode(options, &name.value);
        let compiled = finish(Compilation::open(source, &mode_options))?;
        programs.push(Program::clone(&compiled.program));
        warnings.push(compiled.warnings.list.clone());
        impossible.push(compiled.impossible.clone());
        first.get_or_insert(compiled);
    }

    let Some(mut first) = first else {
        unreachable!("a list of modes has at least one");
    };
    first.warnings.list = joined_warnings(&warnings);
    let verified = verify_modes(modes.join(programs)).map_err(|error| Diagnostics {
        list: vec![modes::refuse(error.to_string(), modes.span_of(&error))],
        ..first.warnings.clone()
    })?;
    Ok(Compiled {
        modes: Some(CompiledModes {
            verified,
            impossible,
        }),
        ..first
    })
}

/// The warnings of all modes, each once. That a sub-model is not used is one only where no mode uses it.
fn joined_warnings(of_modes: &[Vec<Diagnostic>]) -> Vec<Diagnostic> {
    let mut joined: Vec<Diagnostic> = Vec::new();
    for warning in of_modes.iter().flatten() {
        let is_everywhere = of_modes.iter().all(|list| list.contains(warning));
        let counts = warning.code != Code::W0202 || is_everywhere;
        if counts && !joined.contains(warning) {
            joined.push(warning.clone());
        }
    }
    joined
}

fn finish(compilation: Compilation<'_>) -> Result<Compiled, Diagnostics> {
    let (made, warnings) = compilation.compile()?;
    Ok(Compiled {
        modes: None,
        program: made.program,
        warnings,
        estimate: made.estimate,
        impossible: made.impossible_losses,
        replication: made.replication,
        rounding: made.rounding,
        cpu_only: made.cpu_only,
        fetched: made.fetched,
        passes: made.passes,
    })
}

/// Compiles a model file; the files it names are relative to it.
///
/// # Errors
/// Everything that is wrong with the model and the machine.
pub fn compile_file(
    path: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<Compiled, Diagnostics> {
    compile(Source::File(path.as_ref()), options)
}

/// Compiles several model files into one program: one calendar that runs them side by side. Names of actors, streams and
/// live parameters begin with that of their model, `agc/scale`: that in its text, or that of its file. An iteration of the
/// program is so many iterations of each model that all keep to their sample rates, and each model ends with its own
/// sources. Options are for all models, and for one where they begin with its name, `agc.mu`. Of one file the program is
/// that of [`compile_file`].
///
/// # Errors
/// Everything that is wrong with the models and the machine, and what keeps models from being one program.
pub fn compile_files(paths: &[PathBuf], options: &CompileOptions) -> Result<Compiled, Diagnostics> {
    match paths {
        [path] => compile_file(path, options),
        _ => compile(Source::Files(paths), options),
    }
}

/// Compiles a model given as text. `name` stands in messages for the file; paths in the model are relative to `dir`.
///
/// # Errors
/// See [`compile_file`].
pub fn compile_str(
    name: &str,
    text: &str,
    dir: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<Compiled, Diagnostics> {
    compile(text_source(name, text, dir.as_ref()), options)
}

/// Compiles an ONNX model given as bytes. `name` stands in messages for the file; external data has no folder then.
///
/// # Errors
/// See [`compile_file`].
pub fn compile_onnx(
    name: &str,
    bytes: &[u8],
    options: &CompileOptions,
) -> Result<Compiled, Diagnostics> {
    compile(Source::Onnx { name, bytes }, options)
}

/// Compiles a graph made in Rust. `blobs` holds the tensors that its parameters refer to.
///
/// # Errors
/// What is wrong with the graph ([`crate::Code::E0602`] where it is malformed), its rates, or the machine.
pub fn compile_graph(
    graph: Graph,
    blobs: TiVec<BlobId, Bytes>,
    options: &CompileOptions,
) -> Result<Compiled, Diagnostics> {
    compile(Source::Graph { graph, blobs }, options)
}

/// Compiles a net made by [`crate::GraphBuilder`], with what was wrong with its parts.
pub(crate) fn compile_net(
    net: &Net,
    blobs: TiVec<BlobId, Bytes>,
    sink: Sink,
    options: &CompileOptions,
) -> Result<Compiled, Diagnostics> {
    compile(Source::Net { net, blobs, sink }, options)
}

/// The graph of an ONNX model given as bytes, and the tensors of its parameters. `name` stands in messages.
///
/// # Errors
/// Everything that is wrong with the model.
pub fn graph_of_onnx(
    name: &str,
    bytes: &[u8],
    options: &CompileOptions,
) -> Result<(Graph, TiVec<BlobId, Bytes>), Diagnostics> {
    Compilation::open(Source::Onnx { name, bytes }, options).into_graph()
}

/// The graph of a model file, and the tensors of its parameters.
///
/// # Errors
/// Everything that is wrong with the model.
pub fn graph_of_file(
    path: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<(Graph, TiVec<BlobId, Bytes>), Diagnostics> {
    Compilation::open(Source::File(path.as_ref()), options).into_graph()
}

/// Resolves a net made by [`crate::GraphBuilder`] to a graph and its blobs.
pub(crate) fn graph_of_net(
    net: &Net,
    blobs: TiVec<BlobId, Bytes>,
    sink: Sink,
    options: &CompileOptions,
) -> Result<(Graph, TiVec<BlobId, Bytes>), Diagnostics> {
    Compilation::open(Source::Net { net, blobs, sink }, options).into_graph()
}

/// Checks a model file up to its analysis, all its modes if it has some; gives its warnings. Of the machine only a machine file is checked.
///
/// # Errors
/// Everything that is wrong with the model.
pub fn check_file(
    path: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<Diagnostics, Diagnostics> {
    check(Source::File(path.as_ref()), options)
}

/// Checks a model given as text; see [`check_file`] and [`compile_str`].
///
/// # Errors
/// Everything that is wrong with the model.
pub fn check_str(
    name: &str,
    text: &str,
    dir: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<Diagnostics, Diagnostics> {
    check(text_source(name, text, dir.as_ref()), options)
}

/// Measures the kernels of a model file on the devices of `options.machine`, which must be this computer's.
/// `progress` is called before each kernel is measured.
///
/// # Errors
/// Everything that is wrong with the model and the machine.
///
/// # Panics
/// Where a custom actor does.
pub fn calibrate_file(
    path: impl AsRef<Path>,
    options: &CompileOptions,
    how: &CalibrateOptions,
    progress: &mut (dyn FnMut(calibrate::Progress<'_>) + Send),
) -> Result<Calibration, Diagnostics> {
    Compilation::open(Source::File(path.as_ref()), options).calibrate(how, progress)
}

/// Measures the kernels of a model given as text; see [`calibrate_file`] and [`compile_str`].
///
/// # Errors
/// Everything that is wrong with the model and the machine.
pub fn calibrate_str(
    name: &str,
    text: &str,
    dir: impl AsRef<Path>,
    options: &CompileOptions,
    how: &CalibrateOptions,
    progress: &mut (dyn FnMut(calibrate::Progress<'_>) + Send),
) -> Result<Calibration, Diagnostics> {
    Compilation::open(text_source(name, text, dir.as_ref()), options).calibrate(how, progress)
}

/// Measures the kernels of a graph made in Rust; see [`calibrate_file`] and [`compile_graph`].
///
/// # Errors
/// What is wrong with the graph, its rates, or the machine.
pub fn calibrate_graph(
    graph: Graph,
    blobs: TiVec<BlobId, Bytes>,
    options: &CompileOptions,
    how: &CalibrateOptions,
    progress: &mut (dyn FnMut(calibrate::Progress<'_>) + Send),
) -> Result<Calibration, Diagnostics> {
    Compilation::open(Source::Graph { graph, blobs }, options).calibrate(how, progress)
}

/// What bounds a model file, however it is scheduled. Times are those of the quickest device for each actor.
///
/// # Errors
/// Everything that is wrong with the model and the machine.
pub fn analyse_file(
    path: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<Analysis, Diagnostics> {
    Compilation::open(Source::File(path.as_ref()), options).analyse()
}

/// Like [`analyse_file`], for a model given as text; see [`compile_str`].
///
/// # Errors
/// Everything that is wrong with the model and the machine.
pub fn analyse_str(
    name: &str,
    text: &str,
    dir: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<Analysis, Diagnostics> {
    Compilation::open(text_source(name, text, dir.as_ref()), options).analyse()
}

/// Reads a machine file: the devices, and what was measured on them.
///
/// # Errors
/// Everything that is wrong with it.
pub fn read_machine(path: impl AsRef<Path>) -> Result<(Machine, MeasuredCosts), Diagnostics> {
    let mut reports = Reports::default();
    let file = MachineChoice::File(path.as_ref().to_owned());
    let outcome = Target::read(&file, &mut reports);
    let (target, _) = reports.finish(outcome)?;
    Ok((target.machine, target.measured))
}

/// What each actor of a graph costs on each device of a machine file: as measured where it was, otherwise by the roofline.
///
/// # Errors
/// Everything that is wrong with the file.
pub fn costs_of_machine(
    graph: &Graph,
    blobs: &TiSlice<BlobId, Bytes>,
    registry: &Registry,
    path: impl AsRef<Path>,
) -> Result<Costs, Diagnostics> {
    let mut reports = Reports::default();
    let file = MachineChoice::File(path.as_ref().to_owned());
    let outcome = Target::read(&file, &mut reports);
    let (target, _) = reports.finish(outcome)?;
    let sources = CostSources {
        target: &target,
        registry,
        blobs,
    };
    Ok(sources.cost_table(graph))
}

fn text_source<'a>(name: &'a str, text: &'a str, folder: &'a Path) -> Source<'a> {
    Source::Text { name, text, folder }
}
