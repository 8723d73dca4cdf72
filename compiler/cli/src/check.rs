//! `zbmdc check`, `analyse` and `import`: commands that read a model and write no bundle.

use std::path::{Path, PathBuf};

use zbmd_compiler::{
    Code, CompileOptions, Diagnostics, MachineChoice, analyse_file, analyse_str, check_file,
    check_str, onnx,
};
use zbmd_scheduler::buffers::Mode;

use crate::args::{Given, MessageFormat};
use crate::model_input::{STDIN_NAME, given_options, is_stdin, read_stdin};
use crate::output::{CHECK_FOLDER, Exit, Voice, print, say, single_error};

pub(crate) fn check(model: &Path, given: &Given, voice: Voice) -> Exit {
    match check_model(model, given) {
        Ok(diagnostics) | Err(diagnostics) => voice.report(&diagnostics),
    }
}

fn check_model(model: &Path, given: &Given) -> Result<Diagnostics, Diagnostics> {
    let options = given_options(given)?;
    if is_stdin(model) {
        check_str(STDIN_NAME, &read_stdin()?, "", &options)
    } else {
        check_file(model, &options)
    }
}

pub(crate) fn analyse(
    model: &Path,
    machine: Option<PathBuf>,
    buffers: Option<Mode>,
    voice: Voice,
) -> Exit {
    let options = CompileOptions {
        machine: machine.map_or(MachineChoice::Detect, MachineChoice::File),
        buffers,
        ..CompileOptions::default()
    };

    let analysis = if is_stdin(model) {
        read_stdin().and_then(|text| analyse_str(STDIN_NAME, &text, "", &options))
    } else {
        analyse_file(model, &options)
    };
    match analysis {
        Ok(analysis) => print(&analysis.to_string()),
        Err(diagnostics) => voice.report(&diagnostics),
    }
}

/// An imported model: its text, and the file of its weights.
struct ImportedModel {
    text: onnx::Text,
    weights: Vec<u8>,
}

pub(crate) fn import_model(model: &Path, output: &Path, given: &Given, voice: Voice) -> Exit {
    let weights_path = output.with_extension("safetensors");
    let imported = match read_onnx(model, &weights_path, given) {
        Ok(imported) => imported,
        Err(diagnostics) => return voice.report(&diagnostics),
    };

    let files = [
        (weights_path.as_path(), imported.weights.as_slice()),
        (output, imported.text.model.as_bytes()),
    ];

    // Weights first: a model file that exists names weights that do.
    for (path, bytes) in files {
        if let Err(error) = std::fs::write(path, bytes) {
            let message = format!("cannot write `{}`: {error}", path.display());
            return voice.report(&single_error(Code::E0704, message, CHECK_FOLDER));
        }
    }

    if voice.format == MessageFormat::Text {
        say(&format!(
            "wrote {} and {}: {} tensors\n",
            output.display(),
            weights_path.display(),
            imported.text.tensors.len()
        ));
    }

    Exit::Ok
}

fn read_onnx(
    model: &Path,
    weights_path: &Path,
    given: &Given,
) -> Result<ImportedModel, Diagnostics> {
    let mut options = given_options(given)?;
    options.onnx.without = options.skipped_passes;

    // The text names its weights by the file's name: the two are kept in one folder.
    let file_name = weights_path.file_name().unwrap_or_default();
    let weights_name = file_name.to_string_lossy();
    let imported =
        onnx::to_text(model, &weights_name, &options.registry, &options.onnx).and_then(|text| {
            let weights = onnx::store(&text)?;
            Ok(ImportedModel { text, weights })
        });
    imported.map_err(|error| single_error(error.code(), error.to_string(), &error.help()))
}
