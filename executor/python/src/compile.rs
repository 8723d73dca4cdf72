//! `compile`: from a model file or its text to a bundle.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyString};
use zbmd_compiler::onnx::SetValue;
use zbmd_compiler::{
    CompileOptions, Compiled, Diagnostics, Losses, MachineChoice, compile_file, compile_str,
};
use zbmd_scheduler::Level;

use crate::bundle::Bundle;
use crate::errors::{CompileError, FileError, usage_error};
use crate::options::mapping_entries;

/// A number or several, for an input of an ONNX model that becomes a constant.
#[derive(FromPyObject)]
pub(crate) enum Constant {
    One(f64),
    Many(Vec<f64>),
}

impl Constant {
    fn into_numbers(self) -> Vec<f64> {
        match self {
            Self::One(number) => vec![number],
            Self::Many(numbers) => numbers,
        }
    }
}

/// Compiles a model: a path to `.ron` or `.onnx`, or the text of one in RON.
#[pyfunction]
#[pyo3(signature = (model, *, folder = None, machine = None, devices = None, gpus = false, block = None,
    solve = "fast", contingencies = "none", params = None, dims = None, set = None, state = None, buckets = None, sequences = false))]
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
pub(crate) fn compile(
    py: Python<'_>,
    model: &Bound<'_, PyAny>,
    folder: Option<PathBuf>,
    machine: Option<PathBuf>,
    devices: Option<usize>,
    gpus: bool,
    block: Option<u64>,
    solve: &str,
    contingencies: &str,
    params: Option<Bound<'_, PyMapping>>,
    dims: Option<Bound<'_, PyMapping>>,
    set: Option<Bound<'_, PyMapping>>,
    state: Option<Bound<'_, PyMapping>>,
    buckets: Option<Vec<u32>>,
    sequences: bool,
) -> PyResult<Bundle> {
    let names = OptionNames {
        solve,
        contingencies,
    };
    let mut options = names.options(block)?;
    options.params = mapping_entries(params)?;
    options.onnx.dims = mapping_entries(dims)?;
    options.onnx.state = mapping_entries(state)?;
    options.onnx.set = onnx_constants(set)?;
    options.buckets = buckets.unwrap_or_default();
    options.sequences = sequences;

    let model = Model::of(model, folder)?;
    let target = match (machine, devices) {
        (Some(path), _) => MachineChoice::File(path),
        (None, Some(count)) => MachineChoice::Uniform(count),
        (None, None) => MachineChoice::Detect,
    };
    let compile_result = py.detach(|| {
        options.set_target(target, gpus)?;
        model.compile(&options)
    });
    let compiled = compile_result.map_err(compile_error)?;
    let warnings = compiled.warnings.to_string();
    Bundle::new(compiled.into_modes(), warnings)
}

/// Options that are one of a few words.
struct OptionNames<'a> {
    solve: &'a str,
    contingencies: &'a str,
}

impl OptionNames<'_> {
    fn options(&self, block: Option<u64>) -> PyResult<CompileOptions> {
        let mut options = CompileOptions {
            block,
            ..CompileOptions::default()
        };
        options.search.level = match self.solve {
            "fast" => Level::Fast,
            "balanced" => Level::Balanced,
            "exact" => Level::Exact,
            other => {
                return Err(usage_error(format!(
                    "solve is `{other}`: fast, balanced or exact"
                )));
            }
        };
        options.contingencies = match self.contingencies {
            "none" => Losses::None,
            "single" => Losses::Single,
            "hosts" => Losses::Hosts,
            "pairs" => Losses::Pairs,
            other => {
                return Err(usage_error(format!(
                    "contingencies is `{other}`: none, single, hosts or pairs"
                )));
            }
        };
        Ok(options)
    }
}

/// The inputs of an ONNX model that become constants.
fn onnx_constants(set: Option<Bound<'_, PyMapping>>) -> PyResult<BTreeMap<String, SetValue>> {
    let numbers: BTreeMap<String, Constant> = mapping_entries(set)?;
    let values = numbers
        .into_iter()
        .map(|(name, value)| (name, SetValue::Numbers(value.into_numbers())));
    Ok(values.collect())
}

/// What is compiled.
enum Model {
    /// RON, and the folder of the files that it names.
    Text {
        text: String,
        folder: PathBuf,
    },
    File(PathBuf),
}

impl Model {
    fn of(model: &Bound<'_, PyAny>, folder: Option<PathBuf>) -> PyResult<Self> {
        if let Some(text) = model_text(model)? {
            return Ok(Self::Text {
                text,
                folder: folder.unwrap_or_default(),
            });
        }

        let path: PathBuf = model.extract()?;
        if folder.is_some() {
            return Err(usage_error(
                "a model file has its folder: `folder` is for a text",
            ));
        }
        Ok(Self::File(path))
    }

    fn compile(&self, options: &CompileOptions) -> Result<Compiled, Diagnostics> {
        match self {
            Self::Text { text, folder } => compile_str("<text>", text, folder, options),
            Self::File(path) => compile_file(path, options),
        }
    }
}

/// The text, if the model is one: a path has neither a line break nor `Model(` at its beginning.
fn model_text(model: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let Ok(python_text) = model.cast::<PyString>() else {
        return Ok(None);
    };
    let text = python_text.to_str()?;
    let is_text = text.contains('\n') || text.trim_start().starts_with("Model(");
    Ok(is_text.then(|| text.to_owned()))
}

fn compile_error(diagnostics: Diagnostics) -> PyErr {
    let diagnostics_text = diagnostics.to_string();
    if diagnostics.only_files() {
        FileError::new_err(diagnostics_text)
    } else {
        CompileError::new_err(diagnostics_text)
    }
}
