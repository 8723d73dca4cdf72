//! The command `zbmd-run`: runs bundles with the standard ops. See `zbmd_run`.

use std::process::ExitCode;

fn main() -> ExitCode {
    zbmd_run::main_with(zbmd_backends::standard_registry())
}
