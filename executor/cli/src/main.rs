//! The command `zbmd-run`: runs bundles with the standard ops. See `zbmd_run`.

use std::process::ExitCode;

use zbmd_backends::op::Registry;

fn main() -> ExitCode {
    zbmd_run::main_with(Registry::standard())
}
