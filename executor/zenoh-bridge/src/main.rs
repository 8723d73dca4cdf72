//! The command `zbmd-zenoh`.

use std::process::ExitCode;

use clap::Parser;
use zbmd_zenoh::args::{Command, Direction};
use zbmd_zenoh::{exit, interrupt, read_from_zenoh, write_to_zenoh};

fn main() -> ExitCode {
    let command = Command::parse();
    if let Err(error) = interrupt::watch_signals() {
        eprintln!("zbmd-zenoh: signals cannot be watched: {error}");
        return ExitCode::from(exit::FAULT);
    }
    let result = match &command.direction {
        Direction::Sink(args) => write_to_zenoh(args),
        Direction::Source(args) => read_from_zenoh(args),
    };
    match result {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            eprintln!("zbmd-zenoh: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
