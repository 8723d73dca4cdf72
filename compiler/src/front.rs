//! The front of a compilation: from a source to a graph that remembers where everything was written.
//!
//! A model in text goes parse -> load -> expand -> infer -> build, an ONNX model import -> passes -> infer -> build, a
//! net made in Rust infer -> build. A graph made in Rust is only checked.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::verify::{self, VerifyError};
use zbmd_ir::{BlobId, Graph, TiVec};

use crate::build::{BuiltGraph, Origins, build};
use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::expand::expand;
use crate::gates;
use crate::infer::infer;
use crate::merge;
use crate::model::{Loader, Model};
use crate::modes::{self, ModeList};
use crate::net::Net;
use crate::onnx::{self, ImportOptions, OnnxError};
use crate::options::CompileOptions;
use crate::parse::{Node, parse};
use crate::pass_selection::PassSelection;
use crate::reports::{Reported, Reports};
use crate::source::{Span, Spanned};
use crate::values::Files;

/// What is compiled.
pub(crate) enum Source<'a> {
    /// A model file, in text or ONNX's format.
    File(&'a Path),
    /// Model files that are merged into one program.
    Files(&'a [PathBuf]),
    /// A model in text.
    Text {
        /// Stands for the file in messages.
        name: &'a str,
        text: &'a str,
        /// Paths in the model are relative to it.
        folder: &'a Path,
    },
    /// An ONNX model in memory.
    Onnx {
        /// Stands for the file in messages.
        name: &'a str,
        bytes: &'a [u8],
    },
    /// A net made by [`crate::GraphBuilder`], with what was wrong with its parts.
    Net {
        net: &'a Net,
        blobs: TiVec<BlobId, Bytes>,
        sink: Sink,
    },
    /// A graph made in Rust.
    Graph {
        graph: Graph,
        blobs: TiVec<BlobId, Bytes>,
    },
}

/// A source as far as it can be read without knowing the machine.
pub(crate) enum ParsedSource<'a> {
    Model(Rc<Model>, Vec<Parameter>, Option<ModeList>),
    OnnxFile {
        path: &'a Path,
        modes: Option<ModeList>,
    },
    OnnxBytes {
        name: &'a str,
        bytes: &'a [u8],
        modes: Option<ModeList>,
    },
    Net(&'a Net),
    Graph(Graph),
    Merged(Vec<ParsedModel<'a>>),
}

/// One of several models.
pub(crate) struct ParsedModel<'a> {
    name: String,
    source: ParsedSource<'a>,
    /// The compilation's, as far as they are for this model.
    options: CompileOptions,
}

impl ParsedSource<'_> {
    /// The names of the models that are merged; empty for one model.
    pub(crate) fn merged_names(&self) -> Vec<String> {
        match self {
            ParsedSource::Merged(models) => models.iter().map(|model| model.name.clone()).collect(),
            _ => Vec::new(),
        }
    }
}

/// A parameter of the model and the value given for it from outside.
type Parameter = (Spanned<String>, Node);

/// What a graph is built with and from.
pub(crate) struct FrontEnd<'a> {
    pub(crate) options: &'a CompileOptions,
    pub(crate) registry: &'a Registry,
    pub(crate) passes: &'a PassSelection,
    pub(crate) files: &'a mut Files,
    pub(crate) reports: &'a mut Reports,
}

/// Reads the texts of a source and puts the tensors that come with it into `files`; `None` if there is nothing to go
/// on with, which has been reported.
pub(crate) fn parse_source<'a>(
    source: Source<'a>,
    options: &CompileOptions,
    files: &mut Files,
    reports: &mut Reports,
) -> Option<ParsedSource<'a>> {
    match source {
        Source::Files(paths) => parse_models(paths, options, files, reports),
        Source::File(path) if onnx::is_onnx(path) => {
            let modes = bucket_modes(options, &mut reports.sink).ok()?;
            Some(ParsedSource::OnnxFile { path, modes })
        }
        Source::Onnx { name, bytes } => {
            let modes = bucket_modes(options, &mut reports.sink).ok()?;
            Some(ParsedSource::OnnxBytes { name, bytes, modes })
        }
        _ if !options.buckets.is_empty() => {
            let message = "buckets are sizes of batches of an ONNX model, and this is none";
            let refusal = modes::refuse(message, Span::NONE);
            reports
                .sink
                .push(refusal.help("in a model file write a mode for each size, `modes: {…}`"));
            None
        }
        Source::File(path) => {
            let mut loader = Loader::new(&mut reports.sources, &mut reports.sink);
            let model = loader.file(path, Span::NONE)?;
            drop(loader);
            model_source(model, options, reports)
        }
        Source::Text { name, text, folder } => {
            let mut loader = Loader::new(&mut reports.sources, &mut reports.sink);
            let model = Rc::new(loader.text(name, text, folder)?);
            drop(loader);
            model_source(model, options, reports)
        }

        // What was built in Rust brings its own tensors, and what was refused while it was built.
        Source::Net { net, blobs, sink } => {
            *files = Files::with_blobs(blobs);
            reports.sink = sink;
            Some(ParsedSource::Net(net))
        }
        Source::Graph { graph, blobs } => {
            *files = Files::with_blobs(blobs);
            Some(ParsedSource::Graph(graph))
        }
    }
}

/// Reads models that are merged into one program.
fn parse_models<'a>(
    paths: &'a [PathBuf],
    options: &CompileOptions,
    files: &mut Files,
    reports: &mut Reports,
) -> Option<ParsedSource<'a>> {
    // A text says what its model is called, and options are for models by their names: so texts are read first.
    let errors_before = reports.sink.errors();
    let mut texts = Vec::new();
    let mut names = Vec::new();
    for path in paths {
        let text = match onnx::is_onnx(path) {
            true => None,
            false => {
                let mut loader = Loader::new(&mut reports.sources, &mut reports.sink);
                Some(loader.file(path, Span::NONE)?)
            }
        };
        let stated = text.as_ref().and_then(|model| model.name.as_ref());
        let stem = || path.file_stem().unwrap_or_default().to_string_lossy();
        names.push(stated.map_or_else(|| stem().into_owned(), |name| name.value.clone()));
        texts.push(text);
    }
    merge::check_names(&names, &mut reports.sink);
    let known = texts.iter().map(parameter_names);
    let known: Vec<Vec<String>> = known.collect();
    merge::check_params(options, &known, &names, &mut reports.sink);

    let mut models = Vec::new();
    for (((path, text), name), known) in paths.iter().zip(texts).zip(&names).zip(&known) {
        let mut own_options = merge::options_for(options, &names, name);
        // What is given to all models is for those that have it.
        own_options.params.retain(|parameter, _| {
            !options.params.contains_key(parameter) || known.contains(parameter)
        });
        let source = match text {
            Some(model) => model_source(model, &own_options, reports)?,
            None => parse_source(Source::File(path), &own_options, files, reports)?,
        };
        check_single_mode(name, &source, &own_options, &mut reports.sink);
        models.push(ParsedModel {
            name: name.clone(),
            source,
            options: own_options,
        });
    }
    (reports.sink.errors() == errors_before).then_some(ParsedSource::Merged(models))
}

/// The parameters of a model in text.
fn parameter_names(text: &Option<Rc<Model>>) -> Vec<String> {
    let params = text.iter().flat_map(|model| &model.params);
    params.map(|(name, _)| name.value.clone()).collect()
}

/// Refuses models that change their mode: the others would have to change with them.
fn check_single_mode(
    name: &str,
    source: &ParsedSource<'_>,
    options: &CompileOptions,
    sink: &mut Sink,
) {
    let modes = match source {
        ParsedSource::Model(.., modes)
        | ParsedSource::OnnxFile { modes, .. }
        | ParsedSource::OnnxBytes { modes, .. } => modes.as_ref(),
        _ => None,
    };
    let Some(modes) = modes.filter(|_| options.mode.is_none()) else {
        return;
    };
    let count = modes.names.len();
    let message =
        format!("model `{name}` has {count} modes, and models in one program have one each");
    let first = modes.names.first().map_or("", |mode| mode.value.as_str());
    let help = format!("choose one, `--mode {name}.{first}`, or compile the model by itself");
    sink.push(merge::refuse(message, help));
}

/// The modes of an ONNX model that is compiled for several sizes of batches, if it is.
///
/// # Errors
/// Where they cannot be, or the one that is asked for is not among them.
fn bucket_modes(options: &CompileOptions, sink: &mut Sink) -> Result<Option<ModeList>, Reported> {
    let errors_before = sink.errors();
    let modes = ModeList::of_buckets(&options.buckets, sink);
    if sink.errors() > errors_before {
        return Err(Reported);
    }
    if let (Some(modes), Some(wanted), None) =
        (&modes, &options.mode, modes::chosen_bucket(options))
    {
        let known = modes.names.iter().map(|name| name.value.as_str());
        let refusal = modes::refuse(format!("there is no mode `{wanted}`"), Span::NONE);
        sink.push(refusal.help(suggest(wanted, known)));
        return Err(Reported);
    }
    Ok(modes)
}

/// A model in the mode that the options name, or else in its first one.
fn model_source<'a>(
    model: Rc<Model>,
    options: &CompileOptions,
    reports: &mut Reports,
) -> Option<ParsedSource<'a>> {
    let errors_before = reports.sink.errors();
    let modes = ModeList::of(&model, &mut reports.sink);
    // Without its modes the model would be reported to lack what they have.
    if reports.sink.errors() > errors_before {
        return None;
    }
    let wanted = match (&modes, &options.mode) {
        (Some(modes), None) => modes.names.first().map(|name| name.value.clone()),
        (_, wanted) => wanted.clone(),
    };
    let mut model = model;
    if let Some(wanted) = wanted {
        let has_mode = model.modes.iter().any(|mode| mode.name.value == wanted);
        if !has_mode {
            let message = format!("there is no mode `{wanted}`");
            reports.sink.push(modes::refuse(message, model.span));
            return None;
        }
        // Whoever loaded it is gone: nobody else holds the outermost model.
        let own_model = Rc::get_mut(&mut model)?;
        own_model.enter_mode(&wanted);
    }
    let parameters = parse_parameters(options, reports)?;
    Some(ParsedSource::Model(model, parameters, modes))
}

/// Parses the values that are given for parameters of the model.
fn parse_parameters(options: &CompileOptions, reports: &mut Reports) -> Option<Vec<Parameter>> {
    let mut parameters = Vec::new();
    for (name, text) in &options.params {
        let shown_name = format!("parameter {name}");
        let file_id = reports.sources.add(shown_name, text.as_str());
        let parsed_value = parse(file_id, text, &mut reports.sink)?;
        parameters.push((Spanned::new(name.clone(), parsed_value.span), parsed_value));
    }
    Some(parameters)
}

impl FrontEnd<'_> {
    /// The graph of a source. After errors it has gaps, and only serves to find more of them.
    pub(crate) fn build_graph(&mut self, source: ParsedSource<'_>) -> Option<BuiltGraph> {
        match source {
            ParsedSource::Net(net) => Some(self.build_net(net)),
            ParsedSource::Graph(graph) => Some(self.check_given_graph(graph)),
            source => {
                let net = self.net_of(source)?;
                Some(self.build_net(&net))
            }
        }
    }

    /// The net of a source that is a text or ONNX's, or several such.
    fn net_of(&mut self, source: ParsedSource<'_>) -> Option<Net> {
        match source {
            ParsedSource::Model(model, parameters, _) => {
                Some(self.expand_model(&model, &parameters))
            }
            ParsedSource::OnnxFile { path, .. } => {
                let imported = onnx::import_file(path, self.registry, &self.import_options());
                self.net_of_import(&path.display().to_string(), imported)
            }
            ParsedSource::OnnxBytes { name, bytes, .. } => {
                let imported = onnx::import_bytes(bytes, self.registry, &self.import_options());
                self.net_of_import(name, imported)
            }
            ParsedSource::Merged(models) => {
                let nets = models.into_iter().map(|model| {
                    let mut front_end = FrontEnd {
                        options: &model.options,
                        registry: self.registry,
                        passes: self.passes,
                        files: self.files,
                        reports: self.reports,
                    };
                    let net = front_end.net_of(model.source);
                    net.map(|net| (model.name, net))
                });
                // All of them are built, so that the errors of each are reported.
                let nets: Vec<Option<(String, Net)>> = nets.collect();
                let nets: Option<Vec<(String, Net)>> = nets.into_iter().collect();
                nets.map(merge::merge_nets)
            }
            ParsedSource::Net(_) | ParsedSource::Graph(_) => None,
        }
    }

    /// The options of an import, without the passes that this compilation leaves out.
    fn import_options(&self) -> ImportOptions {
        // The machine may not gain from a pass that the options leave in.
        let mut import = self.options.onnx.clone();
        import.without.extend(self.passes.skipped_imports());
        import.batch = modes::chosen_bucket(self.options).or(import.batch);
        import
    }

    fn net_of_import(
        &mut self,
        name: &str,
        imported: Result<onnx::Graph, OnnxError>,
    ) -> Option<Net> {
        match imported {
            Ok(graph) => {
                let pass_report = (name.to_owned(), graph.reports.clone());
                self.files.passes.push(pass_report);

                Some(onnx::net_of(&graph, self.files))
            }
            Err(error) => {
                let refusal = error.diagnostic(name, Span::NONE);
                self.reports.sink.push(refusal);
                None
            }
        }
    }

    fn expand_model(&mut self, model: &Model, parameters: &[Parameter]) -> Net {
        // Models contained in this one are imported while it is expanded.
        self.files.without = self.passes.skipped_imports();
        expand(
            model,
            parameters,
            self.registry,
            self.files,
            &mut self.reports.sink,
        )
    }

    fn build_net(&mut self, net: &Net) -> BuiltGraph {
        let sink = &mut self.reports.sink;
        let signatures = infer(net, self.registry, self.files, sink);
        let mut built_graph = build(net, &signatures, self.registry, self.files, sink);
        gates::connect(
            net,
            &mut built_graph,
            self.registry,
            &self.files.blobs,
            sink,
        );

        check_names(&built_graph.graph, sink);
        built_graph
    }

    /// Reports what is malformed about a graph made in Rust.
    fn check_given_graph(&mut self, graph: Graph) -> BuiltGraph {
        // The analysis and the scheduler rely on ids within range and ports connected once.
        let malformed = verify::check_graph(&graph, &self.files.blobs)
            .err()
            .unwrap_or_default();
        for error in malformed {
            // Rates and deadlocks have codes of their own: the analysis finds them again and explains them better.
            let is_analysed = matches!(error.code(), "V0120" | "V0121" | "V0122" | "V0123");
            if !is_analysed {
                let message = format!("the graph is malformed: {error}");
                let refusal = Diagnostic::new(Code::E0602, message);
                self.reports.sink.push(refusal);
            }
        }

        let origins = Origins::nowhere(&graph);
        BuiltGraph { graph, origins }
    }
}

/// Refuses names that a bundle cannot hold. Those of ports and parameters are chosen by a model as well, in the
/// parameters of its ops.
fn check_names(graph: &Graph, sink: &mut Sink) {
    let refused_names = verify::check_graph_names(graph).err();
    for error in refused_names.unwrap_or_default() {
        let code = match error {
            VerifyError::Limit { .. } => Code::E0505,
            _ => Code::E0204,
        };
        let help = "write a shorter name, without control characters";
        sink.push(Diagnostic::new(code, error.to_string()).help(help));
    }
}
