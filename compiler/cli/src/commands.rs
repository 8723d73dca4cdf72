//! Runs the subcommand of an invocation.

use clap::CommandFactory;

use crate::admit::admit;
use crate::args::{Cli, Command};
use crate::calibrate::calibrate;
use crate::check::{analyse, check, import_model};
use crate::compare::{diff, explain_placement};
use crate::compile::compile;
use crate::inspect::inspect;
use crate::lists::{explain_code, list_devices, list_ops};
use crate::man::write_man_pages;
use crate::new_project::new_project;
use crate::output::{Exit, Voice, print};
use crate::simulate::simulate;
use crate::watch::watch;

/// Runs one invocation.
pub(crate) fn run(cli: Cli) -> Exit {
    let voice = Voice {
        colour: cli.color,
        format: cli.message_format,
    };
    match cli.command {
        Command::Compile(args) => compile(&args, voice),
        Command::Import {
            model,
            output,
            given,
        } => import_model(&model, &output, &given, voice),
        Command::Check { model, given } => check(&model, &given, voice),
        Command::Calibrate(args) => calibrate(&args, voice),
        Command::Analyse {
            model,
            machine,
            buffers,
        } => analyse(&model, machine, buffers, voice),
        Command::Simulate(args) => simulate(&args, voice),
        #[cfg(hosts)]
        Command::Devices { cluster, gpus, .. } if cluster.is_asked_for() => {
            crate::cluster::list(&cluster, gpus)
        }
        Command::Devices {
            cores, ron, gpus, ..
        } => list_devices(cores, ron, gpus),
        Command::Ops { name } => list_ops(name.as_deref()),
        Command::Explain { code } => explain_code(code.as_deref()),
        Command::Inspect(args) => inspect(&args, voice),
        Command::Diff {
            before,
            after,
            format,
            output,
            reading,
        } => diff(&before, &after, format, output.as_deref(), reading, voice),
        Command::Admit(args) => admit(&args, voice),
        Command::Why {
            actor,
            bundle,
            not,
            machine,
            reading,
        } => {
            let machine = machine.as_deref();
            explain_placement(&actor, &bundle, not.as_deref(), machine, reading, voice)
        }
        Command::Watch(args) => watch(&args, voice),
        Command::New { name, zbmd } => new_project(&name, zbmd.as_deref(), voice),
        Command::Man { output } => write_man_pages(output.as_deref(), voice),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "zbmdc", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
    }
}
