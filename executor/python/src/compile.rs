//! `compile`: from a model file or its text to a bundle.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyString};
use zbmd_compiler::onnx::SetValue;
use zbmd_compiler::{
    CompileOptions, Diagnostics, Losses, MachineChoice, compile_file, compile_str,
};
use zbmd_scheduler::Level;

use crate::bundle::Bundle;
use crate::errors::{CompileError, FileError, usage};
use crate::options::entries;

/// A number or several, for an input of an ONNX model that becomes a constant.
#[derive(FromPyObject)]
pub(crate) enum Constant {
    One(f64),
    Many(Vec<f64>),
}

impl Constant {
    fn numbers(self) -> Vec<f64> {
        match self {
            Self::One(number) => vec![number],
            Self::Many(numbers) => numbers,
        }
    }
}

/// Compiles a model: a path to `.ron` or `.onnx`, or the text of one in RON.
#[pyfunction]
#[pyo3(signature = (model, *, folder = None, machine = None, devices = None, gpus = false, block = None,
    solve = "fast", contingencies = "none", params = None, dims = None, set = None, state = None))]
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
) -> PyResult<Bundle> {
    let mut options = CompileOptions {
        block,
        ..CompileOptions::default()
    };
    options.search.level = match solve {
        "fast" => Level::Fast,
        "balanced" => Level::Balanced,
        "exact" => Level::Exact,
        other => {
            return Err(usage(format!(
                "solve is `{other}`: fast, balanced or exact"
            )));
        }
    };
    options.contingencies = match contingencies {
        "none" => Losses::None,
        "single" => Losses::Single,
        "pairs" => Losses::Pairs,
        other => {
            return Err(usage(format!(
                "contingencies is `{other}`: none, single or pairs"
            )));
        }
    };
    options.params = entries(params)?;
    options.onnx.dims = entries(dims)?;
    let constants: BTreeMap<String, Constant> = entries(set)?;
    options.onnx.set = constants
        .into_iter()
        .map(|(name, value)| (name, SetValue::Numbers(value.numbers())))
        .collect();
    options.onnx.state = entries(state)?;

    let text = text(model)?;
    let path = text
        .is_none()
        .then(|| model.extract::<PathBuf>())
        .transpose()?;
    if path.is_some() && folder.is_some() {
        return Err(usage("a model file has its folder: `folder` is for a text"));
    }
    let made = py.detach(|| {
        let target = match (machine, devices) {
            (Some(path), _) => MachineChoice::File(path),
            (None, Some(n)) => MachineChoice::Uniform(n),
            (None, None) => MachineChoice::Detect,
        };
        options.set_target(target, gpus)?;
        match (&text, &path) {
            (Some(text), _) => {
                let folder = folder.as_deref().unwrap_or(Path::new(""));
                compile_str("<text>", text, folder, &options)
            }
            (None, path) => compile_file(path.as_deref().unwrap_or(Path::new("")), &options),
        }
    });
    let compiled = made.map_err(wrong)?;
    Bundle::new(compiled.program, compiled.warnings.to_string())
}

/// The text, if the model is one: a path has neither a line break nor `Model(` at its beginning.
fn text(model: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let Ok(text) = model.cast::<PyString>() else {
        return Ok(None);
    };
    let text = text.to_str()?;
    let is_text = text.contains('\n') || text.trim_start().starts_with("Model(");
    Ok(is_text.then(|| text.to_owned()))
}

fn wrong(diagnostics: Diagnostics) -> PyErr {
    let text = diagnostics.to_string();
    if diagnostics.only_files() {
        FileError::new_err(text)
    } else {
        CompileError::new_err(text)
    }
}
