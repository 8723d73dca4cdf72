//! What a model is read from, and what the command line gives to it.

use std::io::Read;
use std::path::Path;

use zbmd_compiler::onnx::SetValue;
use zbmd_compiler::{Code, CompileOptions, Diagnostics, SourceMap};

use crate::args::Given;
use crate::output::single_error;

/// What a model from stdin is called in messages.
pub(crate) const STDIN_NAME: &str = "<stdin>";

pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The text on stdin, up to just beyond the limit of a file, so that longer ones are refused without being held.
pub(crate) fn read_stdin() -> Result<String, Diagnostics> {
    let mut bytes = Vec::new();
    let limit = SourceMap::MAX_FILE_BYTES as u64 + 1;
    let mut limited_stdin = std::io::stdin().lock().take(limit);
    limited_stdin
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable_stdin(&error.to_string()))?;

    String::from_utf8(bytes).map_err(|error| {
        let valid_bytes = error.utf8_error().valid_up_to();
        unreadable_stdin(&format!("it is not UTF-8 from byte {valid_bytes} on"))
    })
}

fn unreadable_stdin(reason: &str) -> Diagnostics {
    let message = format!("cannot read stdin: {reason}");
    single_error(Code::E0701, message, "pipe a model into it")
}

/// Options with what the command line gives to the model.
pub(crate) fn given_options(given: &Given) -> Result<CompileOptions, Diagnostics> {
    let mut options = CompileOptions {
        params: given.params.iter().cloned().collect(),
        mode: given.mode.clone(),
        ..CompileOptions::default()
    };

    for (name, size) in &given.dims {
        let parsed_size = size
            .parse()
            .map_err(|_| unfit_value(format!("dimension `{name}` is given the size `{size}`")))?;
        options.onnx.dims.insert(name.clone(), parsed_size);
    }

    for (name, value) in &given.sets {
        let numbers = value.split(',').map(|number| number.trim().parse::<f64>());
        let parsed_numbers: Result<Vec<f64>, _> = numbers.collect();
        let numbers = parsed_numbers.map_err(|_| {
            unfit_value(format!(
                "input `{name}` is set to `{value}`, which is not a number"
            ))
        })?;
        let set_value = SetValue::Numbers(numbers);
        options.onnx.set.insert(name.clone(), set_value);
    }

    options.onnx.state = given.states.iter().cloned().collect();
    options.skipped_passes.clone_from(&given.without);
    Ok(options)
}

fn unfit_value(message: String) -> Diagnostics {
    single_error(Code::E0807, message, "write NAME=VALUE")
}
