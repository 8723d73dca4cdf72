//! What each subcommand does.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::CommandFactory;
use zbmd_backends::op::Registry;
use zbmd_compiler::onnx::{self, SetValue};
use zbmd_compiler::{
    Code, CompileOptions, Compiled, Cubins, Diagnostic, Diagnostics, Example, Losses,
    MachineChoice, SearchOptions, SourceMap, analyse_file, analyse_str, check_file, check_str,
    compile_file, compile_str, machine, page, reference,
};
use zbmd_ir::text;
use zbmd_scheduler::Level;
use zbmd_scheduler::buffers::Mode;
use zbmd_scheduler::search::Progress;

use crate::args::{Cli, Command, Compile, Contingencies, Emit, Given, MessageFormat, Solve};
use crate::calibrate::calibrate;
use crate::compare::{diff, why};
use crate::inspect::{emit, inspect};
use crate::man::man;
use crate::new::new;
use crate::output::{Exit, Voice, print, say};
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
        } => import(&model, &output, &given, voice),
        Command::Check { model, given } => check(&model, &given, voice),
        Command::Calibrate(args) => calibrate(&args, voice),
        Command::Analyse {
            model,
            machine,
            buffers,
        } => analyse(&model, machine, buffers, voice),
        Command::Devices { cores, ron, gpus } => devices(cores, ron, gpus),
        Command::Ops { name } => ops(name.as_deref()),
        Command::Explain { code } => explain(code.as_deref()),
        Command::Inspect(args) => inspect(&args, voice),
        Command::Diff {
            before,
            after,
            format,
            output,
            reading,
        } => diff((&before, &after), format, output.as_deref(), reading, voice),
        Command::Why {
            actor,
            bundle,
            not,
            machine,
            reading,
        } => {
            let machine = machine.as_deref();
            why(&actor, &bundle, not.as_deref(), machine, reading, voice)
        }
        Command::Watch(args) => watch(&args, voice),
        Command::New { name, zbmd } => new(&name, zbmd.as_deref(), voice),
        Command::Man { output } => man(output.as_deref(), voice),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "zbmdc", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
    }
}

pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// One error without a place in a text.
pub(crate) fn lone(code: Code, message: String, help: &str) -> Diagnostics {
    let diagnostic = Diagnostic::new(code, message).help(help);
    Diagnostics {
        sources: SourceMap::default(),
        list: vec![diagnostic],
        more: false,
    }
}

pub(crate) fn stdin() -> Result<String, Diagnostics> {
    let mut bytes = Vec::new();
    let limit = SourceMap::MAX_FILE_BYTES as u64 + 1;
    let read = std::io::stdin().lock().take(limit).read_to_end(&mut bytes);
    let refuse = |what: String| {
        lone(
            Code::E0701,
            format!("cannot read stdin: {what}"),
            "pipe a model into it",
        )
    };
    read.map_err(|e| refuse(e.to_string()))?;
    String::from_utf8(bytes).map_err(|e| {
        refuse(format!(
            "it is not UTF-8 from byte {} on",
            e.utf8_error().valid_up_to()
        ))
    })
}

fn compile(args: &Compile, voice: Voice) -> Exit {
    let default = (!is_stdin(&args.model)).then(|| args.model.with_extension("zbmd"));
    let output = args
        .output
        .clone()
        .or(default.filter(|_| args.emit.is_none()));
    if output.is_none() && args.emit.is_none() {
        say("zbmdc: a model from stdin needs `-o BUNDLE` or `--emit STAGE`\n");
        return Exit::Usage;
    }
    let options = match options(args, voice) {
        Ok(options) => options,
        Err(diagnostics) => return voice.report(&diagnostics),
    };
    let compiled = if is_stdin(&args.model) {
        stdin().and_then(|text| compile_str("<stdin>", &text, "", &options))
    } else {
        compile_file(&args.model, &options)
    };
    let compiled = match compiled {
        Ok(compiled) => compiled,
        Err(diagnostics) => return voice.report(&diagnostics),
    };
    voice.report(&compiled.warnings);
    if let Some(path) = output {
        let exit = write(&compiled, &path, voice);
        if exit != Exit::Ok {
            return exit;
        }
    }
    if voice.format == MessageFormat::Text {
        if let Some(replication) = &compiled.replication {
            say(&format!("{replication}\n"));
        }
        if let Some(rounding) = &compiled.rounding {
            say(&format!("{rounding}\n"));
        }
        say(&losses(&compiled));
        if let Some(cpu_only) = &compiled.cpu_only {
            say(&format!("{cpu_only}\n"));
        }
    }
    match args.emit {
        Some(Emit::Passes) => print(&passes(&compiled)),
        Some(stage) => print(&emit(&compiled.program, stage, !args.no_times)),
        None => Exit::Ok,
    }
}

/// What is asked of a compilation.
pub(crate) fn options(args: &Compile, voice: Voice) -> Result<CompileOptions, Diagnostics> {
    let mut outside = given(&args.given)?;
    let machine = match (&args.machine, args.devices, args.cores) {
        (Some(path), ..) => MachineChoice::File(path.clone()),
        (None, Some(n), _) => MachineChoice::Uniform(n.into()),
        (None, None, Some(n)) => MachineChoice::Given(machine::detect_in_teams(n.into())),
        (None, None, None) => MachineChoice::Detect,
    };
    outside.set_target(machine, args.gpus)?;
    Ok(CompileOptions {
        block: args.block,
        max_latency_ns: args.max_latency,
        max_memory_bytes: args.max_memory,
        buffers: args.buffers,
        search: search(args, voice),
        contingencies: match args.contingencies {
            Contingencies::None => Losses::None,
            Contingencies::Single => Losses::Single,
            Contingencies::Pairs => Losses::Pairs,
        },
        replicate: args.replicate,
        math: args.math,
        cubins: (!args.cubin.is_empty()).then(|| Cubins::new(args.cubin.clone())),
        ..outside
    })
}

pub(crate) fn write(compiled: &Compiled, path: &Path, voice: Voice) -> Exit {
    if let Err(error) = compiled.write(path) {
        return voice.report(&lone(
            Code::E0704,
            error.to_string(),
            "check the folder and its permissions",
        ));
    }
    if voice.format == MessageFormat::Text {
        say(&format!(
            "wrote {}: {}\n",
            path.display(),
            headline(compiled)
        ));
    }
    Exit::Ok
}

/// How the search goes: told of its progress on a terminal, and stopped by Ctrl-C, which takes the best so far.
fn search(args: &Compile, voice: Voice) -> SearchOptions {
    let level = match args.solve {
        Solve::Fast => Level::Fast,
        Solve::Balanced => Level::Balanced,
        Solve::Exact => Level::Exact,
    };
    let mut search = SearchOptions {
        level,
        objective: Some(args.objective),
        time_limit: args.time_limit.map(Duration::from_nanos),
        ..SearchOptions::default()
    };
    if level != Level::Fast {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        // Without a handler Ctrl-C ends the program, as ever.
        let set = ctrlc::set_handler(move || {
            // The second time, or outside of a search, it does mean the end.
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(Exit::Interrupted as i32);
            }
        });
        search.stop = set.is_ok().then_some(stop);
        let shown = voice.format == MessageFormat::Text
            && std::io::IsTerminal::is_terminal(&std::io::stderr());
        search.progress = shown.then_some(progress as fn(Progress));
    }
    search
}

fn progress(now: Progress) {
    let gap = now.gap() * 100.0;
    say(&format!(
        "{}: best {}, bound {}, gap {gap:.2} %\n",
        now.stage, now.best, now.bound
    ));
}

fn analyse(model: &Path, machine: Option<PathBuf>, buffers: Option<Mode>, voice: Voice) -> Exit {
    let machine = machine.map_or(MachineChoice::Detect, MachineChoice::File);
    let options = CompileOptions {
        machine,
        buffers,
        ..CompileOptions::default()
    };
    let analysis = if is_stdin(model) {
        stdin().and_then(|text| analyse_str("<stdin>", &text, "", &options))
    } else {
        analyse_file(model, &options)
    };
    match analysis {
        Ok(analysis) => print(&analysis.to_string()),
        Err(diagnostics) => voice.report(&diagnostics),
    }
}

/// What may be lost, in a line for each loss that nothing can be done about.
fn losses(compiled: &Compiled) -> String {
    let borne = compiled.program.contingencies.list.len();
    if borne + compiled.impossible.len() == 0 {
        return String::new();
    }
    let mut out = format!(
        "contingencies: {borne} of {} losses\n",
        borne + compiled.impossible.len()
    );
    for loss in &compiled.impossible {
        out += &format!("  not without {}: {}\n", loss.lost, loss.reason);
    }
    out
}

/// What each pass did to each imported model.
fn passes(compiled: &Compiled) -> String {
    let mut out = String::new();
    for (file, reports) in &compiled.passes {
        out += &format!("{file}\n");
        for report in reports {
            let did = report
                .changes
                .map_or("left out".to_owned(), |n| format!("{n} places"));
            out += &format!(
                "  {:<12} {did:>12}  {:>5} actors  {}\n",
                report.name, report.actors, report.summary
            );
        }
    }
    out
}

/// The program in one line.
pub(crate) fn headline(compiled: &Compiled) -> String {
    let program = &compiled.program;
    let quality = match compiled.estimate {
        None => String::new(),
        Some(estimate) if estimate.cost <= estimate.bound => ", no placement is better".to_owned(),
        Some(estimate) => format!(", at most {:.1} % above the best", 100.0 * estimate.gap()),
    };
    let (actors, channels) = (
        program.graph.actors.len() as u64,
        program.graph.channels.len() as u64,
    );
    let (actors, channels) = (
        text::count(actors, "actor"),
        text::count(channels, "channel"),
    );
    let plan = program.plans.first().map(|plan| {
        let period = plan.period_ns as f64 / 1e3;
        let devices = text::count(plan.calendars.len() as u64, "device");
        format!(
            ", blocks of {}, period {period:.1} us on {devices}, bound by {}{quality}",
            plan.block, plan.bound_by
        )
    });
    format!("{actors}, {channels}{}", plan.unwrap_or_default())
}

/// Options for what is given to the model.
fn given(given: &Given) -> Result<CompileOptions, Diagnostics> {
    let wrong = |what: String| lone(Code::E0807, what, "write NAME=VALUE");
    let mut options = CompileOptions {
        params: given.params.iter().cloned().collect(),
        ..CompileOptions::default()
    };
    for (name, size) in &given.dims {
        let size = size
            .parse()
            .map_err(|_| wrong(format!("dimension `{name}` is given the size `{size}`")))?;
        options.onnx.dims.insert(name.clone(), size);
    }
    for (name, value) in &given.sets {
        let numbers: Result<Vec<f64>, _> =
            value.split(',').map(|v| v.trim().parse::<f64>()).collect();
        let numbers = numbers.map_err(|_| {
            wrong(format!(
                "input `{name}` is set to `{value}`, which is no number"
            ))
        })?;
        options
            .onnx
            .set
            .insert(name.clone(), SetValue::Numbers(numbers));
    }
    options.onnx.state = given.states.iter().cloned().collect();
    options.skipped_passes.clone_from(&given.without);
    Ok(options)
}

fn import(model: &Path, output: &Path, outside: &Given, voice: Voice) -> Exit {
    let store = output.with_extension("safetensors");
    let name = store
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let made = given(outside).and_then(|mut options| {
        options.onnx.without = options.skipped_passes;
        let text = onnx::to_text(model, &name, &options.registry, &options.onnx);
        text.and_then(|t| Ok((onnx::store(&t)?, t)))
            .map_err(|error| lone(error.code(), error.to_string(), &error.help()))
    });
    let (weights, text) = match made {
        Ok(made) => made,
        Err(diagnostics) => return voice.report(&diagnostics),
    };
    for (path, bytes) in [
        (store.as_path(), weights.as_slice()),
        (output, text.model.as_bytes()),
    ] {
        if let Err(error) = std::fs::write(path, bytes) {
            let message = format!("cannot write `{}`: {error}", path.display());
            return voice.report(&lone(
                Code::E0704,
                message,
                "check the folder and its permissions",
            ));
        }
    }
    if voice.format == MessageFormat::Text {
        say(&format!(
            "wrote {} and {}: {} tensors\n",
            output.display(),
            store.display(),
            text.tensors.len()
        ));
    }
    Exit::Ok
}

fn check(model: &Path, outside: &Given, voice: Voice) -> Exit {
    let options = match given(outside) {
        Ok(options) => options,
        Err(diagnostics) => return voice.report(&diagnostics),
    };
    let checked = if is_stdin(model) {
        stdin().and_then(|text| check_str("<stdin>", &text, "", &options))
    } else {
        check_file(model, &options)
    };
    match checked {
        Ok(diagnostics) | Err(diagnostics) => voice.report(&diagnostics),
    }
}

fn devices(cores: u16, ron: bool, with_gpus: bool) -> Exit {
    let found = zbmd_backends::devices::gpus();
    let gpus = found.as_deref().unwrap_or_default();
    let mut machine = machine::detect_in_teams(cores.into());
    if with_gpus {
        machine = zbmd_backends::devices::with_gpus(machine, gpus);
    }
    if ron {
        if let (true, Err(why)) = (with_gpus, &found) {
            say(&format!("zbmdc: no GPUs: {why}\n"));
        }
        return match machine::to_ron(&machine) {
            Ok(text) => print(&text),
            Err(error) => panic!("a detected machine cannot be written: {error}"),
        };
    }
    let mut out = format!(
        "{:<10} {:<8} {:<12} {:>12}\n",
        "name", "backend", "cores", "memory"
    );
    for device in &machine.devices {
        let cores: Vec<String> = device.cores.iter().map(u32::to_string).collect();
        let memory = format!("{} MiB", device.memory_bytes >> 20);
        out += &format!(
            "{:<10} {:<8} {:<12} {memory:>12}\n",
            device.name,
            device.backend,
            cores.join(",")
        );
    }
    out += &match &found {
        Ok(gpus) if gpus.is_empty() => "\nno GPUs: the driver finds none\n".to_owned(),
        Ok(gpus) => gpu_table(gpus),
        Err(why) => format!("\nno GPUs: {why}\n"),
    };
    print(&out)
}

/// GPUs and their drivers, for people.
fn gpu_table(gpus: &[zbmd_backends::devices::Gpu]) -> String {
    let mut out =
        "\nGPUs, used with `zbmdc compile --gpus` or a machine file (`zbmdc devices --gpus --ron`):\n"
            .to_owned();
    for gpu in gpus {
        let memory = format!("{} MiB", gpu.device.memory_bytes >> 20);
        out += &format!("{:<10} {:<44} {memory:>12}\n", gpu.device.name, gpu.title);
        out += &format!("{:<10} {}, {}, {}\n", "", gpu.api, gpu.driver, gpu.uuid);
    }
    out
}

fn ops(name: Option<&str>) -> Exit {
    let registry: Registry = CompileOptions::default().registry;
    let Some(name) = name else {
        let width = registry.names().map(str::len).max().unwrap_or(0);
        let lines = registry.names().filter_map(|n| registry.op(n));
        return print(
            &lines
                .map(|op| format!("{:<width$}  {}\n", op.name(), op.doc().summary))
                .collect::<String>(),
        );
    };
    let found = registry
        .names()
        .find(|n| n.eq_ignore_ascii_case(name))
        .and_then(|n| registry.op(n));
    let Some(op) = found else {
        say(&format!(
            "zbmdc: there is no op `{name}`; `zbmdc ops` lists them\n"
        ));
        return Exit::Usage;
    };
    let section = reference::op_section(&registry, op.name()).unwrap_or_default();
    print(&format!("{}: {section}", op.name()))
}

fn explain(code: Option<&str>) -> Exit {
    let Some(name) = code else {
        return print(
            &Code::ALL
                .iter()
                .map(|c| format!("{c}  {}\n", c.title()))
                .collect::<String>(),
        );
    };
    let Some(code) = Code::from_name(name) else {
        say(&format!(
            "zbmdc: there is no code `{name}`; `zbmdc explain` lists them\n"
        ));
        return Exit::Usage;
    };
    let page = page(code);
    let example = match page.example {
        Example::Command { files, command } => {
            let texts = files
                .iter()
                .filter_map(|(name, bytes)| Some((name, std::str::from_utf8(bytes).ok()?)));
            let shown = texts
                .map(|(name, text)| format!("{name}\n\n{}\n", indent(text)))
                .collect::<String>();
            format!("{shown}$ zbmdc {command}\n")
        }
        Example::Rust(text) => indent(text),
    };
    print(&format!(
        "{code}: {}\n\n{}\n\nWrong:\n\n{example}\nThe mend: {}\n",
        code.title(),
        page.text,
        page.mend
    ))
}

fn indent(text: &str) -> String {
    text.trim_end()
        .lines()
        .map(|l| {
            if l.is_empty() {
                "\n".to_owned()
            } else {
                format!("    {l}\n")
            }
        })
        .collect()
}
