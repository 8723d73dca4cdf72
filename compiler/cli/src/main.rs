//! `zbmdc`: models to bundles, and questions about them.

mod admit;
mod args;
mod calibrate;
mod check;
#[cfg(hosts)]
mod cluster;
mod commands;
mod compare;
mod compile;
mod inspect;
mod lists;
mod man;
mod model_input;
mod new_project;
mod output;
mod simulate;
mod watch;

use std::process::ExitCode;

use clap::Parser;
use zbmd_ir::text::{is_hidden, printable_lines};

fn main() -> ExitCode {
    report_panics_as_bugs();
    match args::Cli::try_parse() {
        Ok(cli) => commands::run(cli).into(),
        Err(error) => refuse_usage(&error),
    }
}

/// Prints help or what is wrong with the command line. An argument with control characters is shown escaped, which
/// costs the colours of the message.
fn refuse_usage(error: &clap::Error) -> ExitCode {
    let has_hidden = std::env::args_os().any(|argument| {
        let shown = argument.to_string_lossy();
        shown.contains(is_hidden)
    });
    if !has_hidden {
        error.exit();
    }
    output::say(&error.render().to_string());
    ExitCode::from(error.exit_code() as u8)
}

/// A panic is never the user's fault: says so, says where to, and leaves with a code of its own.
fn report_panics_as_bugs() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let payload = info.payload();
        let formatted = payload.downcast_ref::<String>().map(String::as_str);
        let literal = payload.downcast_ref::<&str>().copied();
        let message = formatted.or(literal).unwrap_or("no message");

        eprintln!(
            "zbmdc: internal error at {place}: {}",
            printable_lines(message)
        );
        eprintln!(
            "This is a bug in zbmdc {}, not in your model. Please report it with the model at {}/issues",
            env!("CARGO_PKG_VERSION"),
            env!("CARGO_PKG_REPOSITORY")
        );
        std::process::exit(output::Exit::OurBug as i32);
    }));
}
