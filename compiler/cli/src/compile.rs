//! `zbmdc compile`: a model to a bundle, and what there is to say about it.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zbmd_compiler::{
    Code, CompileOptions, Compiled, Cubins, Diagnostics, ImpossibleLoss, Losses, MachineChoice,
    ModeBounds, SearchOptions, check_deadlines, compile_files, compile_str, machine,
};
use zbmd_ir::verify::Verified;
use zbmd_ir::{ActorId, CarriedState, Program, carried_states, merged_models, text};
use zbmd_scheduler::Level;
use zbmd_scheduler::search::Progress;

use crate::args::{Compile, Contingencies, Emit, MessageFormat, Solve};
use crate::inspect::emit_stage;
use crate::model_input::{STDIN_NAME, given_options, is_stdin, read_stdin};
use crate::output::{CHECK_FOLDER, Exit, Voice, columns, print, say, single_error};

pub(crate) fn compile(args: &Compile, voice: Voice) -> Exit {
    let output = output_path(args);
    if output.is_none() && args.emit.is_none() {
        say("zbmdc: a model from stdin needs `-o BUNDLE` or `--emit STAGE`\n");
        return Exit::Usage;
    }
    if args.models.len() == 1 && !args.rates.is_empty() {
        say(
            "zbmdc: --rate is for one of several models: a model alone runs as fast as its sources\n",
        );
        return Exit::Usage;
    }
    if args.models.len() > 1 && args.models.iter().any(|path| is_stdin(path)) {
        say("zbmdc: models that are merged come from files, none from stdin\n");
        return Exit::Usage;
    }

    let compiled = match compile_model(args, voice) {
        Ok(compiled) => compiled,
        Err(diagnostics) => return voice.report(&diagnostics),
    };

    // Warnings are said before anything is written: a file that cannot be written does not hide them.
    voice.report(&compiled.warnings);

    if let Some(path) = output {
        let exit = write_bundle(&compiled, &path, voice);
        if exit != Exit::Ok {
            return exit;
        }
    }

    if voice.format == MessageFormat::Text {
        say_choices(&compiled);
    }

    match args.emit {
        Some(Emit::Passes) => print(&pass_table(&compiled)),
        Some(stage) => {
            let text = emit_stage(&compiled.program, stage, !args.no_times, columns());
            print(&text)
        }
        None => Exit::Ok,
    }
}

/// Where the bundle is written: next to the model, unless stages are printed or the model comes from stdin.
fn output_path(args: &Compile) -> Option<PathBuf> {
    if args.output.is_some() {
        return args.output.clone();
    }
    let has_default = args.emit.is_none() && !args.models.iter().any(|path| is_stdin(path));
    has_default.then(|| default_output(&args.models))?
}

/// The bundle next to the first model, by the names of all.
pub(crate) fn default_output(models: &[PathBuf]) -> Option<PathBuf> {
    let stems = models.iter().filter_map(|path| path.file_stem());
    let stems: Vec<_> = stems.collect();
    let mut name = stems.join(OsStr::new("+"));
    name.push(".zbmd");
    models.first().map(|path| path.with_file_name(name))
}

fn compile_model(args: &Compile, voice: Voice) -> Result<Compiled, Diagnostics> {
    let options = compile_options(args, voice)?;
    match args.models.as_slice() {
        [path] if is_stdin(path) => compile_str(STDIN_NAME, &read_stdin()?, "", &options),
        paths => compile_files(paths, &options),
    }
}

/// What the command line asks of a compilation.
pub(crate) fn compile_options(args: &Compile, voice: Voice) -> Result<CompileOptions, Diagnostics> {
    let mut given = given_options(&args.given)?;
    let machine = match (&args.machine, args.devices, args.cores) {
        (Some(path), ..) => MachineChoice::File(path.clone()),
        (None, Some(devices), _) => match args.hosts {
            Some(hosts) => MachineChoice::UniformHosts {
                hosts: hosts.into(),
                devices: devices.into(),
            },
            None => MachineChoice::Uniform(devices.into()),
        },
        (None, None, Some(cores)) => MachineChoice::Given(machine::detect_in_teams(cores.into())),
        (None, None, None) => MachineChoice::Detect,
    };

    given.set_target(machine, args.gpus)?;

    Ok(CompileOptions {
        block: args.block,
        max_latency_ns: args.max_latency,
        max_memory_bytes: args.max_memory,
        buffers: args.buffers,
        search: search_options(args, voice),
        contingencies: match args.contingencies {
            Contingencies::None => Losses::None,
            Contingencies::Single => Losses::Single,
            Contingencies::Hosts => Losses::Hosts,
            Contingencies::Pairs => Losses::Pairs,
        },
        replicate: args.replicate,
        math: args.math,
        sequences: args.sequences,
        rates: args.rates.iter().cloned().collect(),
        buckets: args.buckets.clone(),
        cubins: (!args.cubin.is_empty()).then(|| Cubins::new(args.cubin.clone())),
        ..given
    })
}

/// How the plan is searched for. A long search says how far it is on a terminal, and Ctrl-C takes the best so far.
fn search_options(args: &Compile, voice: Voice) -> SearchOptions {
    let level = match args.solve {
        Solve::Fast => Level::Fast,
        Solve::Balanced => Level::Balanced,
        Solve::Exact => Level::Exact,
    };

    let mut options = SearchOptions {
        level,
        objective: Some(args.objective),
        time_limit: args.time_limit.map(Duration::from_nanos),
        ..SearchOptions::default()
    };

    // The fast level is over before anybody could read of it or stop it.
    if level != Level::Fast {
        let shows_progress = voice.format == MessageFormat::Text && std::io::stderr().is_terminal();
        options.progress = shows_progress.then_some(say_progress as fn(Progress));
        options.stop = stop_on_interrupt();
    }

    options
}

/// A flag that Ctrl-C sets. Without a handler, Ctrl-C ends the program as usual.
fn stop_on_interrupt() -> Option<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let handler_flag = Arc::clone(&stop);
    let handler = ctrlc::set_handler(move || {
        // The second Ctrl-C, or one outside of a search, ends the program after all.
        if handler_flag.swap(true, Ordering::Relaxed) {
            std::process::exit(Exit::Interrupted as i32);
        }
    });
    handler.is_ok().then_some(stop)
}

fn say_progress(progress: Progress) {
    let gap_percent = progress.gap() * 100.0;
    say(&format!(
        "{}: best {}, bound {}, gap {gap_percent:.2} %\n",
        progress.stage, progress.best, progress.bound
    ));
}

pub(crate) fn write_bundle(compiled: &Compiled, path: &Path, voice: Voice) -> Exit {
    if let Err(error) = compiled.write(path) {
        let refusal = single_error(Code::E0704, error.to_string(), CHECK_FOLDER);
        return voice.report(&refusal);
    }
    if voice.format == MessageFormat::Text {
        let shown_path = path.display();
        say(&format!("wrote {shown_path}: {}\n", headline(compiled)));
    }
    Exit::Ok
}

/// Says what the compiler chose where a model leaves it a choice.
fn say_choices(compiled: &Compiled) {
    if let Some(modes) = &compiled.modes {
        say(&format!("{}\n", ModeBounds::of(&modes.verified)));
    }
    let carried = carried_states(&compiled.program.graph);
    if !carried.is_empty() {
        say(&carried_line(&compiled.program, &carried));
    }
    say(&merged_lines(&compiled.program));
    if let Some(replication) = &compiled.replication {
        say(&format!("{replication}\n"));
    }
    if let Some(rounding) = &compiled.rounding {
        say(&format!("{rounding}\n"));
    }
    match &compiled.modes {
        None => say_plans("", &compiled.program, &compiled.impossible),
        Some(modes) => {
            let names = modes.verified.names().iter();
            let programs = names.zip(modes.verified.programs());
            for ((name, program), impossible) in programs.zip(&modes.impossible) {
                say_plans(&format!("mode {name}: "), program, impossible);
            }
        }
    }
    for fetched in &compiled.fetched {
        say(&format!("{fetched}\n"));
    }
    if let Some(cpu_only) = &compiled.cpu_only {
        say(&format!("{cpu_only}\n"));
    }
}

/// The models of a merged program, and how often an iteration of it runs each.
fn merged_lines(program: &Program) -> String {
    let models = merged_models(&program.graph);
    let lines = models.iter().map(|model| {
        let iterations = text::count(model.iterations, "iteration");
        format!(
            "model {}: {iterations} in each of the program\n",
            model.name
        )
    });
    lines.collect()
}

/// The states that whoever runs the program carries from iteration to iteration.
fn carried_line(program: &Program, states: &[CarriedState]) -> String {
    let name = |id: ActorId| &program.graph.actors[id].name;
    let pairs = states.iter().map(|state| {
        let (source, sink) = (name(state.source), name(state.sink));
        format!("`{source}` takes what `{sink}` gives")
    });
    let pairs: Vec<String> = pairs.collect();
    let states = text::count(states.len() as u64, "state");
    format!(
        "sequences: {states} to be carried from iteration to iteration: {}\n",
        pairs.join(", ")
    )
}

/// What its plans cannot do: losses without one, deadlines that are missed.
fn say_plans(prefix: &str, program: &Verified<Program>, impossible: &[ImpossibleLoss]) {
    let losses = loss_lines(program, impossible);
    let deadlines = check_deadlines(program);
    let deadlines = deadlines.iter().map(|check| format!("{check}\n"));
    for lines in std::iter::once(losses).chain(deadlines) {
        if !lines.is_empty() {
            say(&format!("{prefix}{lines}"));
        }
    }
}

/// How many losses of devices have a plan, and a line for each that cannot have one.
fn loss_lines(program: &Program, impossible: &[ImpossibleLoss]) -> String {
    let covered_losses = program.contingencies.list.len();
    let all_losses = covered_losses + impossible.len();
    if all_losses == 0 {
        return String::new();
    }

    let mut lines = format!("contingencies: {covered_losses} of {all_losses} losses\n");
    for loss in impossible {
        lines += &format!("  not without {}: {}\n", loss.lost, loss.reason);
    }
    lines
}

/// What each pass did to each imported model.
fn pass_table(compiled: &Compiled) -> String {
    let mut table = String::new();
    for (file, reports) in &compiled.passes {
        table += &format!("{file}\n");
        for report in reports {
            let changes = match report.changes {
                Some(places) => format!("{places} places"),
                None => "left out".to_owned(),
            };
            table += &format!(
                "  {:<12} {changes:>12}  {:>5} actors  {}\n",
                report.name, report.actors, report.summary
            );
        }
    }

    table
}

/// The program in one line.
pub(crate) fn headline(compiled: &Compiled) -> String {
    let program = &compiled.program;
    let actors = text::count(program.graph.actors.len() as u64, "actor");
    let channels = text::count(program.graph.channels.len() as u64, "channel");

    let quality = match compiled.estimate {
        None => String::new(),
        Some(estimate) if estimate.cost <= estimate.bound => ", no placement is better".to_owned(),
        Some(estimate) => format!(", at most {:.1} % above the best", 100.0 * estimate.gap()),
    };

    let main_plan = program.plans.first().map(|plan| {
        let period_us = plan.period_ns as f64 / 1e3;
        let devices = text::count(plan.calendars.len() as u64, "device");
        format!(
            ", blocks of {}, period {period_us:.1} us on {devices}, bound by {}{quality}",
            plan.block, plan.bound_by
        )
    });
    format!("{actors}, {channels}{}", main_plan.unwrap_or_default())
}
