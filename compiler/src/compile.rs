//! The driver: reads as the pipeline, and the public face of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use zbmd_backends::kernels::Math;
use zbmd_backends::op::Registry;
use zbmd_ir::verify::{self, Verified, VerifyError, verify};
use zbmd_ir::{BlobId, Costs, Graph, Machine, Program, TiVec, limits};
use zbmd_scheduler::assign::Objective;
use zbmd_scheduler::buffers::{Mode, Unit};
use zbmd_scheduler::search::Progress;
use zbmd_scheduler::{Block, Contingent, Control, Estimate, Inputs, Level, Losses};

use crate::analysis::Analysis;
use crate::assemble::Cubins;
use crate::build::{self, Origins};
use crate::calibrate::{self, CalibrateOptions, Calibration, EarlyLaunch};
use crate::codes::Code;
use crate::contingency::{self, ImpossibleLoss};
use crate::costs::MeasuredCosts;
use crate::diag::{Diagnostic, Diagnostics, Sink};
use crate::expand::expand;
use crate::in_place;
use crate::infer::infer;
use crate::kernels;
use crate::machine;
use crate::model::{Loader, Model, read_text};
use crate::net::Net;
use crate::onnx::{self, ImportOptions, OnnxError, PassReport};
use crate::pack;
use crate::parse::parse;
use crate::pipeline;
use crate::replicate::{self, Replicate, Replication};
use crate::rounding::{self, Rounding};
use crate::source::{SourceMap, Span, Spanned};
use crate::target::names_gpus;
use crate::values::Files;
use crate::variants;

/// What a program is compiled for.
#[derive(Clone, Debug, Default)]
pub enum MachineChoice {
    /// This computer: [`machine::detect`].
    #[default]
    Detect,
    /// So many like CPU devices: [`machine::uniform`].
    Uniform(usize),
    /// A `machine.ron`.
    File(PathBuf),
    /// A machine made in Rust.
    Given(Machine),
    /// A machine made in Rust, and what was measured on it.
    Measured(Machine, MeasuredCosts),
}

impl MachineChoice {
    /// Passes over ONNX models that this machine does not gain from: what GPUs compute has its channels in ONNX's
    /// order.
    fn useless_passes(&self) -> Vec<String> {
        let has_gpu = match self {
            Self::Detect | Self::Uniform(_) => false,
            // What is wrong with a machine file is said where it is read for good.
            Self::File(path) => names_gpus(path),
            Self::Given(machine) | Self::Measured(machine, _) => {
                machine.devices.iter().any(|d| d.backend != "cpu")
            }
        };
        has_gpu
            .then(|| onnx::CHANNELS_LAST.to_owned())
            .into_iter()
            .collect()
    }
}

/// How a plan is looked for.
#[derive(Clone, Debug, Default)]
pub struct SearchOptions {
    /// How hard to look. Each level is a fixed amount of work: the same input gives the same bundle.
    pub level: Level,
    /// What makes a placement good.
    pub objective: Option<Objective>,
    /// Take the best found after so long; the bundle then depends on the computer's speed.
    pub time_limit: Option<Duration>,
    /// Take the best found as soon as this is set, for an interrupt.
    pub stop: Option<Arc<AtomicBool>>,
    /// Told how the search stands.
    pub progress: Option<fn(Progress)>,
}

/// What is asked of a compilation.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Ops and custom actors that models may use.
    pub registry: Registry,
    /// What to compile for.
    pub machine: MachineChoice,
    /// Graph iterations in a block; chosen by the scheduler if `None`.
    pub block: Option<u64>,
    /// Bound on the predicted latency of a block.
    pub max_latency_ns: Option<u64>,
    /// Bound on the arena and exchange bytes of each device.
    pub max_memory_bytes: Option<u64>,
    /// How large all buffers together may be; as large as is good for throughput if `None`.
    pub buffers: Option<Mode>,
    /// How a plan is looked for.
    pub search: SearchOptions,
    /// Losses of devices that plans are made for.
    pub contingencies: Losses,
    /// Whether actors may run on several devices at once.
    pub replicate: Replicate,
    /// What CUDA devices may round the factors of products to, where actors do not say so themselves.
    pub math: Math,
    /// Whether kernels of CUDA devices are assembled, and for what; otherwise the driver compiles them.
    pub cubins: Option<Cubins>,
    /// How an ONNX model is imported.
    pub onnx: ImportOptions,
    /// Values for parameters of the model, as its text would write them, by name.
    pub params: BTreeMap<String, String>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            registry: Registry::standard(),
            machine: MachineChoice::Detect,
            block: None,
            max_latency_ns: None,
            max_memory_bytes: None,
            buffers: None,
            search: SearchOptions {
                level: Level::Fast,
                ..SearchOptions::default()
            },
            contingencies: Losses::None,
            replicate: Replicate::Auto,
            math: Math::F32,
            cubins: None,
            onnx: ImportOptions::default(),
            params: BTreeMap::new(),
        }
    }
}

/// A compiled program, with what is worth knowing about the model.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The program, verified.
    pub program: Verified<Program>,
    /// Warnings; no errors among them.
    pub warnings: Diagnostics,
    /// How good the placement of the main plan is, by the cost model; unknown for graphs too large to search.
    pub estimate: Option<Estimate>,
    /// Losses of devices that plans were asked for and that what is left of the machine cannot bear.
    pub impossible: Vec<ImpossibleLoss>,
    /// Actors that run on several devices at once, or could; the program's graph then is not the model's own.
    pub replication: Option<Replication>,
    /// What became of products that may round their factors, if any may.
    pub rounding: Option<Rounding>,
    /// What the passes over imported ONNX models did, by file.
    pub passes: Vec<(String, Vec<PassReport>)>,
}

/// Why a bundle cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write `{}`: {error}", path.display())]
pub struct WriteError {
    /// Where to.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub error: std::io::Error,
}

impl Compiled {
    /// Writes the bundle; the file appears whole or not at all.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), WriteError> {
        let path = path.as_ref();
        zbmd_ir::bundle::write(path, &self.program).map_err(|error| WriteError {
            path: path.to_owned(),
            error,
        })
    }
}

/// Compiles a model file; the files it names are relative to it.
///
/// # Errors
/// Everything that is wrong with the model and the machine.
pub fn compile_file(
    path: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<Compiled, Diagnostics> {
    let mut run = Run::new(options);
    let front = run.file(path.as_ref());
    run.compile(front)
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
    let mut run = Run::new(options);
    let front = run.text(name, text, dir.as_ref());
    run.compile(front)
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
    let mut run = Run::new(options);
    let made = onnx::import_bytes(bytes, &options.registry, &options.onnx);
    let front = run.imported(name, made);
    run.graph(front)
}

/// The graph of a model file, and the tensors of its parameters.
///
/// # Errors
/// Everything that is wrong with the model.
pub fn graph_of_file(
    path: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<(Graph, TiVec<BlobId, Bytes>), Diagnostics> {
    let mut run = Run::new(options);
    let front = run.file(path.as_ref());
    run.graph(front)
}

/// Checks a model file up to its analysis, without a machine; gives its warnings.
///
/// # Errors
/// Everything that is wrong with the model.
pub fn check_file(
    path: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<Diagnostics, Diagnostics> {
    let mut run = Run::new(options);
    let front = run.file(path.as_ref());
    run.check(front)
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
    let mut run = Run::new(options);
    let front = run.text(name, text, dir.as_ref());
    run.check(front)
}

/// Measures the kernels of a model file on the devices of `options.machine`, which must be this computer's.
/// `progress` is told of each kernel before it is measured.
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
    let mut run = Run::new(options);
    let front = run.file(path.as_ref());
    run.calibrate(front, how, progress)
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
    let mut run = Run::new(options);
    let front = run.text(name, text, dir.as_ref());
    run.calibrate(front, how, progress)
}

/// Reads a machine file: the devices, and what was measured on them.
///
/// # Errors
/// Everything that is wrong with it.
pub fn read_machine(path: impl AsRef<Path>) -> Result<(Machine, MeasuredCosts), Diagnostics> {
    let machine = MachineChoice::File(path.as_ref().to_owned());
    let options = CompileOptions {
        machine,
        ..CompileOptions::default()
    };
    let mut run = Run::new(&options);
    match run.machine() {
        Some(found) if run.sink.errors() == 0 => Ok(found),
        _ => Err(run.sink.finish(run.sources)),
    }
}

/// What bounds a model file, however it is scheduled. Times are those of the quickest device for each actor.
///
/// # Errors
/// Everything that is wrong with the model and the machine.
pub fn analyse_file(
    path: impl AsRef<Path>,
    options: &CompileOptions,
) -> Result<Analysis, Diagnostics> {
    let mut run = Run::new(options);
    let front = run.file(path.as_ref());
    run.bounds(front)
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
    let mut run = Run::new(options);
    let front = run.text(name, text, dir.as_ref());
    run.bounds(front)
}

/// Compiles a graph made in Rust. `blobs` holds the tensors that its parameters refer to.
///
/// # Errors
/// What is wrong with the graph ([`Code::E0602`] where it is malformed), its rates, or the machine.
pub fn compile_graph(
    graph: Graph,
    blobs: TiVec<BlobId, Bytes>,
    options: &CompileOptions,
) -> Result<Compiled, Diagnostics> {
    let mut run = Run::new(options);
    let front = run.given(graph, blobs);
    run.compile(front)
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
    let mut run = Run::new(options);
    let front = run.given(graph, blobs);
    run.calibrate(front, how, progress)
}

/// Compiles a net made by [`crate::GraphBuilder`].
pub(crate) fn compile_net(
    net: &Net,
    files: Files,
    sink: Sink,
    options: &CompileOptions,
) -> Result<Compiled, Diagnostics> {
    let mut run = Run::new(options);
    (run.files, run.sink) = (files, sink);
    let front = run.resolve(net);
    run.compile(front)
}

/// Resolves a net made by [`crate::GraphBuilder`] to a graph and its blobs.
pub(crate) fn graph_of_net(
    net: &Net,
    files: Files,
    sink: Sink,
    options: &CompileOptions,
) -> Result<(Graph, TiVec<BlobId, Bytes>), Diagnostics> {
    let mut run = Run::new(options);
    (run.files, run.sink) = (files, sink);
    match run.analysed(net) {
        Some((graph, _)) if run.sink.errors() == 0 => Ok((graph, run.files.blobs)),
        _ => Err(run.sink.finish(run.sources)),
    }
}

/// One compilation.
struct Run<'a> {
    options: &'a CompileOptions,
    sources: SourceMap,
    sink: Sink,
    files: Files,
}

type Front = Option<(Graph, Origins)>;

/// A graph with all its plans.
struct Planned {
    graph: Graph,
    made: Contingent,
    estimate: Option<Estimate>,
    replication: Option<Replication>,
}

impl<'a> Run<'a> {
    fn new(options: &'a CompileOptions) -> Self {
        let mut files = Files::default();
        files.without = options.machine.useless_passes();
        Self {
            options,
            sources: SourceMap::default(),
            sink: Sink::default(),
            files,
        }
    }

    fn file(&mut self, path: &Path) -> Front {
        if onnx::is_onnx(path) {
            let mut options = self.options.onnx.clone();
            options.without.extend_from_slice(&self.files.without);
            let made = onnx::import_file(path, &self.options.registry, &options);
            return self.imported(&path.display().to_string(), made);
        }
        let model = Loader::new(&mut self.sources, &mut self.sink).file(path, Span::NONE)?;
        self.model(&model)
    }

    fn imported(&mut self, name: &str, made: Result<onnx::Graph, OnnxError>) -> Front {
        match made {
            Ok(graph) => {
                self.files
                    .passes
                    .push((name.to_owned(), graph.reports.clone()));
                let net = onnx::net_of(&graph, &mut self.files);
                self.resolve(&net)
            }
            Err(error) => {
                self.sink.push(error.diagnostic(name, Span::NONE));
                None
            }
        }
    }

    fn text(&mut self, name: &str, text: &str, dir: &Path) -> Front {
        let model = Loader::new(&mut self.sources, &mut self.sink).text(name, text, dir)?;
        self.model(&model)
    }

    fn model(&mut self, model: &Model) -> Front {
        let mut given = Vec::new();
        for (name, text) in &self.options.params {
            let file = self.sources.add(format!("parameter {name}"), text.as_str());
            let node = parse(file, text, &mut self.sink)?;
            given.push((Spanned::new(name.clone(), node.span), node));
        }
        let net = expand(
            model,
            &given,
            &self.options.registry,
            &mut self.files,
            &mut self.sink,
        );
        self.resolve(&net)
    }

    fn resolve(&mut self, net: &Net) -> Front {
        let signatures = infer(net, &self.options.registry, &self.files, &mut self.sink);
        let registry = &self.options.registry;
        let (graph, origins) =
            build::build(net, &signatures, registry, &self.files, &mut self.sink);
        self.check_names(&graph);
        Some((graph, origins))
    }

    /// Names of ports and parameters are chosen by a model as well, in the parameters of its ops.
    fn check_names(&mut self, graph: &Graph) {
        for error in verify::check_graph_names(graph).err().unwrap_or_default() {
            let code = match error {
                VerifyError::Limit { .. } => Code::E0505,
                _ => Code::E0204,
            };
            self.sink.push(
                Diagnostic::new(code, error.to_string())
                    .help("write a shorter name, without control characters"),
            );
        }
    }

    fn analysed(&mut self, net: &Net) -> Front {
        let (mut graph, origins) = self.resolve(net)?;
        self.analyse(&mut graph, &origins)
            .then_some((graph, origins))
    }

    fn analyse(&mut self, graph: &mut Graph, origins: &Origins) -> bool {
        // Half a graph would be reported to be inconsistent.
        self.sink.errors() == 0 && pipeline::analyse(graph, origins, &mut self.sink)
    }

    fn graph(mut self, front: Front) -> Result<(Graph, TiVec<BlobId, Bytes>), Diagnostics> {
        let analysed = front
            .filter(|_| self.sink.errors() == 0)
            .and_then(|(mut graph, origins)| self.analyse(&mut graph, &origins).then_some(graph));
        match analysed {
            Some(graph) => Ok((graph, self.files.blobs)),
            None => Err(self.sink.finish(self.sources)),
        }
    }

    fn check(mut self, front: Front) -> Result<Diagnostics, Diagnostics> {
        if let Some((mut graph, origins)) = front {
            self.analyse(&mut graph, &origins);
        }
        let errors = self.sink.errors();
        let diagnostics = self.sink.finish(self.sources);
        if errors == 0 {
            Ok(diagnostics)
        } else {
            Err(diagnostics)
        }
    }

    fn bounds(mut self, front: Front) -> Result<Analysis, Diagnostics> {
        let machine = self.machine();
        let found = front
            .zip(machine)
            .and_then(|((mut graph, origins), (machine, measured))| {
                if !self.analyse(&mut graph, &origins) {
                    return None;
                }
                let costs = self.costs(&graph, &machine, &measured);
                let mode = self
                    .options
                    .buffers
                    .unwrap_or(Mode::Throughput(Unit::Tokens));
                match Analysis::of(&graph, &costs, mode) {
                    Ok(analysis) => Some(analysis),
                    Err(error) => {
                        self.sink
                            .push(Diagnostic::new(Code::E0506, error.to_string()).help(
                                "allow more with `--buffers`, or make the iteration shorter",
                            ));
                        None
                    }
                }
            });
        match found {
            Some(analysis) if self.sink.errors() == 0 => Ok(analysis),
            _ => Err(self.sink.finish(self.sources)),
        }
    }

    fn compile(mut self, front: Front) -> Result<Compiled, Diagnostics> {
        // A wrong machine file is reported along with a wrong model.
        let machine = self.machine();
        let planned = front
            .zip(machine)
            .and_then(|((mut graph, origins), (machine, measured))| {
                if !self.analyse(&mut graph, &origins) {
                    return None;
                }
                let without = &self.options.onnx.without;
                if !without.iter().any(|w| w == in_place::NAME) {
                    in_place::allow(&self.options.registry, &mut graph, &self.files.blobs);
                }
                let options = self.options;
                let registry = &options.registry;
                if let Err(refusal) = rounding::ask(registry, &mut graph, &machine, options.math) {
                    self.sink.push(refusal);
                    return None;
                }
                let planned = self.plan(graph, &machine, &measured, &origins)?;
                let Planned {
                    mut graph,
                    made,
                    estimate,
                    replication,
                } = planned;
                let impossible =
                    contingency::impossible(&graph, &machine, &made.kinds, &made.impossible);
                let Contingent {
                    mut plans,
                    contingencies,
                    ..
                } = made;
                let mut blobs = std::mem::take(&mut self.files.blobs);
                let rounding = rounding::settle(registry, &mut graph, &machine, &plans, &blobs);
                // Costs are of actors as the model has them: before their weights are packed, and without what only some
                // devices were asked to round.
                let known = (registry, blobs.as_ref());
                variants::choose(
                    &graph,
                    &machine,
                    &measured,
                    known,
                    &mut plans,
                    &mut self.sink,
                );
                let packed = (!without.iter().any(|w| w == pack::NAME))
                    .then(|| pack::pack(registry, &mut graph, &machine, &plans, &mut blobs));
                if packed != Some(0) {
                    let (name, summary, actors) = (pack::NAME, pack::SUMMARY, graph.actors.len());
                    let report = PassReport {
                        name,
                        summary,
                        changes: packed,
                        actors,
                    };
                    self.files
                        .passes
                        .push(("the whole graph".to_owned(), vec![report]));
                }
                let cubins = options.cubins.as_ref();
                let kernels =
                    kernels::print(registry, &graph, &machine, &plans, cubins, &mut blobs);
                let kernels = kernels.map_err(|refusal| self.sink.push(refusal)).ok()?;
                let plans = plans.into();
                let program = Program {
                    graph,
                    machine,
                    plans,
                    contingencies,
                    blobs,
                    kernels,
                };
                Some((program, estimate, impossible, replication, rounding))
            });
        let planned = planned.filter(|_| self.sink.errors() == 0);
        let Some((program, estimate, impossible, replication, rounding)) = planned else {
            return Err(self.sink.finish(self.sources));
        };
        let program = match verify(program) {
            Ok(program) => program,
            Err(errors) => match beyond_limits(&errors) {
                Some(diagnostic) => {
                    self.sink.push(diagnostic);
                    return Err(self.sink.finish(self.sources));
                }
                // Whatever else the verifier refuses here is the scheduler's mistake, not the model's.
                None => panic!("the verifier refuses the compiler's own program: {errors:?}"),
            },
        };
        let passes = std::mem::take(&mut self.files.passes);
        let warnings = self.sink.finish(self.sources);
        Ok(Compiled {
            program,
            warnings,
            estimate,
            impossible,
            replication,
            rounding,
            passes,
        })
    }

    /// A graph made in Rust.
    fn given(&mut self, graph: Graph, blobs: TiVec<BlobId, Bytes>) -> Front {
        self.files.blobs = blobs;
        let malformed = zbmd_ir::verify::check_graph(&graph, &self.files.blobs)
            .err()
            .unwrap_or_default();
        // Rates and deadlocks have codes of their own: the analysis finds them again and says more.
        for error in malformed
            .iter()
            .filter(|e| !matches!(e.code(), "V0120" | "V0121" | "V0122" | "V0123"))
        {
            let message = format!("the graph is malformed: {error}");
            self.sink.push(Diagnostic::new(Code::E0602, message));
        }
        let origins = Origins {
            actors: graph.actors.iter().map(|_| Span::NONE).collect(),
            ops: graph.actors.iter().map(|_| Span::NONE).collect(),
            channels: graph
                .channels
                .iter()
                .map(|c| vec![(Span::NONE, Span::NONE); c.readers.len()])
                .collect(),
            ..Origins::default()
        };
        Some((graph, origins))
    }

    fn calibrate(
        mut self,
        front: Front,
        how: &CalibrateOptions,
        progress: &mut (dyn FnMut(calibrate::Progress<'_>) + Send),
    ) -> Result<Calibration, Diagnostics> {
        let machine = self.machine();
        let outcome = front
            .zip(machine)
            .and_then(|((mut graph, origins), (machine, costs))| {
                let model = calibrate::Model {
                    registry: &self.options.registry,
                    blobs: &self.files.blobs,
                    machine: &machine,
                };
                // Half a graph has kernels of no use.
                let mut fine = self.sink.errors() == 0
                    && pipeline::analyse(&mut graph, &origins, &mut self.sink);
                let asked = rounding::ask(model.registry, &mut graph, &machine, self.options.math);
                if let Err(refusal) = asked {
                    self.sink.push(refusal);
                    fine = false;
                }
                fine.then(|| calibrate::run(&graph, &model, costs, how, progress, &mut self.sink))
                    .map(|(costs, rows, early)| (machine, costs, rows, early))
            });
        let errors = self.sink.errors();
        let diagnostics = self.sink.finish(self.sources);
        match outcome {
            Some((mut machine, costs, rows, early)) if errors == 0 => {
                for device in &mut machine.devices {
                    let found = early.iter().find(|found| found.device == device.name);
                    device.programmatic = found.map_or(device.programmatic, EarlyLaunch::pays);
                }
                Ok(Calibration {
                    machine,
                    costs,
                    rows,
                    early,
                    warnings: diagnostics,
                })
            }
            _ => Err(diagnostics),
        }
    }

    fn plan(
        &mut self,
        graph: Graph,
        machine: &Machine,
        measured: &MeasuredCosts,
        origins: &Origins,
    ) -> Option<Planned> {
        let pins = pipeline::pins(origins, machine, &mut self.sink);
        if self.sink.errors() > 0 {
            return None;
        }
        let search = &self.options.search;
        let defaults = zbmd_scheduler::Options::default();
        let options = zbmd_scheduler::Options {
            block: self.options.block.map_or(Block::Auto, Block::Fixed),
            buffers: self.options.buffers.unwrap_or(defaults.buffers),
            level: search.level,
            objective: search.objective.unwrap_or(defaults.objective),
            max_latency_ns: self.options.max_latency_ns,
            max_memory_bytes: self.options.max_memory_bytes,
            pins,
            ..defaults
        };
        let deadline = search
            .time_limit
            .and_then(|limit| Instant::now().checked_add(limit));
        let stop = || {
            deadline.is_some_and(|end| Instant::now() >= end)
                || search
                    .stop
                    .as_ref()
                    .is_some_and(|flag| flag.load(Ordering::Relaxed))
        };
        let mut progress = |now: Progress| {
            if let Some(tell) = search.progress {
                tell(now);
            }
        };
        let mut control = Control {
            stop: &stop,
            progress: &mut progress,
        };
        // Errors are drawn on the model, whose graph it is that they are about.
        let model = graph.clone();
        let given = replicate::Given {
            machine,
            options: &options,
            registry: &self.options.registry,
            blobs: &self.files.blobs,
            costs: &|graph| self.costs(graph, machine, measured),
        };
        let planned = replicate::schedule(graph, given, self.options.replicate, &mut control)
            .and_then(|(best, replication)| {
                let replicate::Made {
                    graph,
                    costs,
                    options,
                    scheduled,
                    ..
                } = best;
                let inputs = Inputs {
                    graph: &graph,
                    machine,
                    costs: &costs,
                    options: &options,
                };
                let made = contingency::plan(inputs, scheduled.plans, self.options.contingencies)?;
                Ok(Planned {
                    graph,
                    made,
                    estimate: scheduled.estimate,
                    replication,
                })
            });
        planned
            .map_err(|error| {
                self.sink
                    .push(pipeline::draw_schedule(&error, &model, machine, origins));
            })
            .ok()
    }

    fn costs(&self, graph: &Graph, machine: &Machine, measured: &MeasuredCosts) -> Costs {
        pipeline::costs(
            graph,
            machine,
            measured,
            &self.options.registry,
            &self.files,
        )
    }

    fn machine(&mut self) -> Option<(Machine, MeasuredCosts)> {
        let found = self.chosen_machine()?;
        machine::check(&found.0, &mut self.sink).then_some(found)
    }

    fn chosen_machine(&mut self) -> Option<(Machine, MeasuredCosts)> {
        let unmeasured = |machine| Some((machine, MeasuredCosts::default()));
        match &self.options.machine {
            MachineChoice::Detect => unmeasured(machine::detect()),
            MachineChoice::Uniform(n) if *n > limits::MAX_DEVICES => {
                self.sink.push(machine::too_many_devices(*n));
                None
            }
            MachineChoice::Uniform(n) => unmeasured(machine::uniform(*n)),
            MachineChoice::Given(machine) => unmeasured(machine.clone()),
            MachineChoice::Measured(machine, costs) => Some((machine.clone(), costs.clone())),
            MachineChoice::File(path) => {
                let text = read_text(path, Span::NONE, &mut self.sink)?;
                let file = self.sources.add(path.display().to_string(), text.as_str());
                machine::read(file, &text, &mut self.sink)
            }
        }
    }
}

/// What to say of a program that is right but larger than a bundle may be; `None` if anything else is wrong with it.
fn beyond_limits(errors: &[VerifyError]) -> Option<Diagnostic> {
    let are_limits = errors.iter().all(|e| matches!(e.code(), "V0101" | "V1101"));
    let first = errors.first().filter(|_| are_limits)?;
    let message = format!("the plan is larger than a bundle may be: {first}");
    let help =
        "ask for a smaller `--block`, or for fewer `--contingencies`, or shorten the iteration";
    Some(Diagnostic::new(Code::E0506, message).help(help))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only limits are the model's concern; with anything else among them it is a bug of ours.
    #[test]
    fn plans_beyond_limits_are_diagnosed_and_bugs_are_not() {
        let limit = VerifyError::Limit {
            what: "slot executions on d0 of plan0".to_owned(),
            count: 17 << 20,
            limit: 16 << 20,
        };
        let work = VerifyError::TooMuchWork {
            what: "the slots of plan0".to_owned(),
            steps: 2,
            limit: 1,
        };
        let bug = VerifyError::NoPlan {};

        for errors in [vec![limit.clone()], vec![work.clone(), limit.clone()]] {
            let found = beyond_limits(&errors).expect("a diagnostic");
            assert_eq!(found.code, Code::E0506);
            assert!(
                found.message.contains(&errors[0].to_string()),
                "{}",
                found.message
            );
        }
        for errors in [vec![bug.clone()], vec![limit, bug], vec![]] {
            assert!(beyond_limits(&errors).is_none(), "{errors:?}");
        }
    }
}
