//! Models that are no bundles, compiled when the server starts.

use std::path::Path;
use std::time::Instant;

use zbmd_compiler::{CompileOptions, Diagnostics, compile_file};
use zbmd_ir::verify::VerifiedModes;

use super::{LoadChoices, RepositoryError};
use crate::say;

/// Compiles a model as `zbmdc compile --block 1 --sequences` does: a longer block would have each request followed by empty
/// iterations. An ONNX model is compiled for the batches that were asked for.
///
/// # Errors
/// Everything that is wrong with the model or the machine.
pub(super) fn compile(
    name: &str,
    path: &Path,
    choices: &LoadChoices,
) -> Result<VerifiedModes, RepositoryError> {
    let failed = |diagnostics| RepositoryError::Compile {
        path: path.to_owned(),
        diagnostics: Box::new(diagnostics),
    };
    let begun = Instant::now();
    let mut options = options(choices).map_err(failed)?;
    if path.extension().is_some_and(|ending| ending == "onnx") {
        options.buckets.clone_from(&choices.buckets);
    }
    let compiled = compile_file(path, &options).map_err(failed)?;

    if !choices.is_quiet {
        if compiled.warnings.warnings() > 0 {
            say(format_args!("{}", compiled.warnings.to_string().trim_end()));
        }
        let path = path.display();
        let took = begun.elapsed();
        say(format_args!(
            "zbmd-serve: {name}: compiled from {path} in {took:.1?}"
        ));
    }
    Ok(compiled.into_modes())
}

fn options(choices: &LoadChoices) -> Result<CompileOptions, Diagnostics> {
    let mut options = CompileOptions {
        registry: choices.registry.clone(),
        block: Some(1),
        // Of a model that keeps nothing, it changes nothing.
        sequences: true,
        ..CompileOptions::default()
    };
    options.set_target(choices.machine.clone(), false)?;
    Ok(options)
}
