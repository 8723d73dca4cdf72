//! The command `zbmd-serve`: serves bundles with the standard ops. See `zbmd_serve`.

use std::process::ExitCode;

fn main() -> ExitCode {
    zbmd_serve::main_with(zbmd_backends::standard_registry())
}
