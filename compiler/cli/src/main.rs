//! `zbmdc`: models to bundles, and questions about them.

mod args;
mod calibrate;
mod commands;
mod compare;
mod inspect;
mod man;
mod new;
mod output;
mod watch;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    report_our_bugs();
    let cli = args::Cli::parse();
    commands::run(cli).into()
}

/// A panic is never the user's fault: says so, says where to, and leaves with a code of its own.
fn report_our_bugs() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let what = text
            .or(payload.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        eprintln!("zbmdc: internal error at {place}: {what}");
        eprintln!(
            "This is a bug in zbmdc {}, not in your model. Please report it with the model at {}/issues",
            env!("CARGO_PKG_VERSION"),
            env!("CARGO_PKG_REPOSITORY")
        );
        std::process::exit(output::Exit::OurBug as i32);
    }));
}
