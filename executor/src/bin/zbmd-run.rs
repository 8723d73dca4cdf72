//! The command `zbmd-run`: runs bundles with the standard ops. See `zbmd_executor::cli`.

use std::process::ExitCode;

use zbmd_backends::op::Registry;

fn main() -> ExitCode {
    zbmd_executor::cli::main_with(Registry::standard())
}
