//! `zbmdc simulate`: a model on a simulated machine that keeps time.

mod draw;
mod inspect;
mod losses;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use bytes::Bytes;
use zbmd_backends::standard_registry;
use zbmd_compiler::{Code, Diagnostics, costs_of_machine, graph_of_file};
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{ActorId, BlobId, Graph, TiVec};
use zbmd_tick_scheduler::{TickSchedule, schedule, schedule_with_copies};
use zbmd_tick_sim::clock::{ClockSimulation, Recorder};
use zbmd_tick_sim::machine::{RunInput, RunOutcome, Stepping, run};
use zbmd_ticks::{Network, TickMachine, VerifiedPlan, tick_calendar, verify};

use self::draw::write_drawing;
pub(crate) use self::inspect::inspect_ticks;
use self::losses::{LossPlans, injections, plan_losses, write_plans, write_recoveries};
use crate::args::{Given, Simulate, TickContingencyChoice};
use crate::model_input::given_options;
use crate::output::{CHECK_FOLDER, Exit, Voice, print, say, single_error};

/// Largest machine file.
const MAX_MACHINE_BYTES: u64 = 16 << 20;
/// Iterations of a model whose sources have no files, where no ticks are given.
const DEFAULT_ITERATIONS: u64 = 10;
/// Samples and curves of a plot.
const MAX_SAMPLES: usize = 2_000;
const MAX_CURVES: usize = 64;

pub(crate) fn simulate(args: &Simulate, voice: Voice) -> Exit {
    match simulate_model(args) {
        Ok(exit) => exit,
        Err(diagnostics) => voice.report(&diagnostics),
    }
}

/// A model with its plan on a machine.
struct Simulated {
    graph: Graph,
    blobs: TiVec<BlobId, Bytes>,
    machine: TickMachine,
    network: Network,
    scheduled: TickSchedule,
    plan: VerifiedPlan,
    losses: Option<LossPlans>,
}

fn simulate_model(args: &Simulate) -> Result<Exit, Diagnostics> {
    let simulated = plan_model(&PlanInput {
        model: &args.model,
        machine: &args.machine,
        costs: args.costs.as_deref(),
        contingencies: args.contingencies,
        given: &args.given,
    })?;
    if let Some(path) = &args.draw {
        write_drawing(path, &simulated)?;
    }
    if args.calendar {
        let text = tick_calendar(&simulated.graph, &simulated.machine, &simulated.plan);
        return Ok(print(&text));
    }

    let outcome = run_model(args, &simulated)?;
    write_outputs(args, &outcome)?;
    if let Some(folder) = &args.plots {
        write_plots(folder, &simulated, &outcome)?;
    }
    if let Some(fault) = outcome.fault {
        say(&format!("zbmdc: {fault}\n"));
        return Ok(Exit::Wrong);
    }
    Ok(print(&report(args, &simulated, &outcome)))
}

/// What plans are made from.
struct PlanInput<'a> {
    model: &'a Path,
    machine: &'a Path,
    costs: Option<&'a Path>,
    contingencies: TickContingencyChoice,
    given: &'a Given,
}

/// Reads model and machine, and makes the plans.
fn plan_model(input: &PlanInput<'_>) -> Result<Simulated, Diagnostics> {
    let options = given_options(input.given)?;
    let (graph, blobs) = graph_of_file(input.model, &options)?;
    let mut machine = read_machine(input.machine)?;
    if let Some(path) = input.costs {
        price_firings(&mut machine, &graph, &blobs, path)?;
    }
    let wrong_machine = |message: String| single_error(Code::E0507, message, MACHINE_HELP);
    let network = machine
        .network()
        .map_err(|e| wrong_machine(e.to_string()))?;
    let scheduled = match input.contingencies {
        TickContingencyChoice::None => schedule(&graph, &machine),
        TickContingencyChoice::Single => schedule_with_copies(&graph, &machine),
    };
    let scheduled = scheduled.map_err(|e| {
        single_error(
            Code::E0506,
            e.to_string(),
            "give the machine more of it, or the model less to do",
        )
    })?;
    let plan = verify(&graph, &machine, scheduled.plan.clone());
    // A refused plan of our own scheduler is our bug.
    let plan = plan.unwrap_or_else(|errors| panic!("the plan is refused: {errors:?}"));
    let losses = match input.contingencies {
        TickContingencyChoice::None => None,
        TickContingencyChoice::Single => Some(plan_losses(&graph, &machine, &plan)?),
    };
    Ok(Simulated {
        graph,
        blobs,
        machine,
        network,
        scheduled,
        plan,
        losses,
    })
}

const MACHINE_HELP: &str =
    "compiler/docs/ticks.md says what a machine that keeps time is described by";

fn unreadable(path: &Path, reason: &str) -> Diagnostics {
    let message = format!("cannot read `{}`: {reason}", path.display());
    single_error(Code::E0701, message, "check the path and its permissions")
}

fn read_machine(path: &Path) -> Result<TickMachine, Diagnostics> {
    let metadata = std::fs::metadata(path).map_err(|e| unreadable(path, &e.to_string()))?;
    if metadata.len() > MAX_MACHINE_BYTES {
        return Err(unreadable(path, "it is larger than 16 MiB"));
    }
    let text = std::fs::read_to_string(path).map_err(|e| unreadable(path, &e.to_string()))?;
    let extensions = ron::extensions::Extensions::IMPLICIT_SOME;
    let options = ron::Options::default().with_default_extension(extensions);
    options.from_str(&text).map_err(|error| {
        let place = error.span.start;
        let message = format!("{}:{place}: {}", path.display(), error.code);
        single_error(Code::E0507, message, MACHINE_HELP)
    })
}

/// Gives every actor that has no ticks of its own those that a firing takes on the first device of a machine file.
fn price_firings(
    machine: &mut TickMachine,
    graph: &Graph,
    blobs: &TiVec<BlobId, Bytes>,
    path: &Path,
) -> Result<(), Diagnostics> {
    let costs = costs_of_machine(graph, blobs, &standard_registry(), path)?;
    let ticks_of_ps = machine.clocks().nominal_hz / 1e12;
    let given = machine.op_ticks.clone();
    for (actor, row) in graph.actors.iter().zip(&costs.table) {
        let is_named = [&actor.name, &actor.op]
            .into_iter()
            .any(|name| given.contains_key(name));
        let cost = row.first().copied().flatten();
        if let (false, Some(cost)) = (is_named, cost) {
            let ps = cost.call_ps.saturating_add(cost.firing_ps);
            let ticks = (ps as f64 * ticks_of_ps).ceil().max(1.0);
            machine.op_ticks.insert(actor.name.clone(), ticks as u64);
        }
    }
    Ok(())
}

fn run_model(args: &Simulate, simulated: &Simulated) -> Result<RunOutcome, Diagnostics> {
    let plan = &simulated.plan;
    let iterations = match args.ticks {
        Some(ticks) => ticks / plan.period + 1,
        None if args.inputs.is_empty() => DEFAULT_ITERATIONS,
        None => u64::MAX,
    };
    let inputs = read_inputs(args, &simulated.graph, iterations)?;
    let injections = injections(&simulated.network, &args.losses)?;
    let input = RunInput {
        graph: &simulated.graph,
        blobs: &simulated.blobs,
        registry: &standard_registry(),
        machine: &simulated.machine,
        plan,
        contingencies: simulated.losses.as_ref().map(|losses| &losses.table),
        inputs: &inputs,
        iterations: (iterations < u64::MAX).then_some(iterations),
        max_ticks: args.ticks,
        injections: &injections,
        stepping: if args.events {
            Stepping::Events
        } else {
            Stepping::EveryFrame
        },
    };
    run(&input).map_err(|error| {
        let help = "check the model with `zbmdc check`, and the machine's clocks";
        single_error(Code::E0506, error.to_string(), help)
    })
}

/// Tokens of each source: from its file, or zeros where no source has one.
fn read_inputs(
    args: &Simulate,
    graph: &Graph,
    iterations: u64,
) -> Result<BTreeMap<String, Vec<u8>>, Diagnostics> {
    let usage = |message: String| single_error(Code::E0701, message, "write --input NAME=FILE");
    let given: BTreeMap<&str, &str> = args
        .inputs
        .iter()
        .map(|(name, file)| (name.as_str(), file.as_str()))
        .collect();
    let unknown = given
        .keys()
        .find(|name| !graph.sources().any(|(_, a)| a.name == **name));
    if let Some(name) = unknown {
        return Err(usage(format!("the model has no source `{name}`")));
    }

    let mut inputs = BTreeMap::new();
    for (actor, source) in graph.sources() {
        let bytes = match given.get(source.name.as_str()) {
            Some(file) => {
                std::fs::read(file).map_err(|e| unreadable(Path::new(file), &e.to_string()))?
            }
            None if given.is_empty() => zeros(graph, actor, iterations)?,
            None => return Err(usage(format!("source `{}` has no file", source.name))),
        };
        inputs.insert(source.name.clone(), bytes);
    }
    Ok(inputs)
}

/// Zeros for so many iterations of a source.
fn zeros(graph: &Graph, source: ActorId, iterations: u64) -> Result<Vec<u8>, Diagnostics> {
    const MAX_ZEROS: u64 = 1 << 30;
    let firings = repetition(graph).map_or(1, |firings| firings[source]);
    let bytes: u64 = graph.actors[source]
        .outputs
        .iter()
        .map(|port| port.rate.saturating_mul(port.token.bytes()))
        .sum();
    let bytes = bytes.saturating_mul(firings).saturating_mul(iterations);
    if bytes > MAX_ZEROS {
        let message = format!("{bytes} bytes of zeros for a source are too many");
        return Err(single_error(
            Code::E0505,
            message,
            "give --input, or fewer --ticks",
        ));
    }
    Ok(vec![0; bytes as usize])
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Diagnostics> {
    std::fs::write(path, bytes).map_err(|error| {
        let message = format!("cannot write `{}`: {error}", path.display());
        single_error(Code::E0704, message, CHECK_FOLDER)
    })
}

fn write_outputs(args: &Simulate, outcome: &RunOutcome) -> Result<(), Diagnostics> {
    for (name, file) in &args.outputs {
        let bytes = outcome.outputs.get(name).ok_or_else(|| {
            let message = format!("the model has no sink `{name}`");
            single_error(Code::E0704, message, "write --output NAME=FILE")
        })?;
        write_file(Path::new(file), bytes)?;
    }
    Ok(())
}

/// Frequencies, phases and fills of the run's clocks, as drawings and numbers: the same clocks once more, of which the same
/// stop at the same times.
fn write_plots(
    folder: &Path,
    simulated: &Simulated,
    outcome: &RunOutcome,
) -> Result<(), Diagnostics> {
    let clock_error = |e: zbmd_tick_sim::clock::ClockError| {
        single_error(Code::E0507, e.to_string(), MACHINE_HELP)
    };
    let clocks = simulated.machine.clocks();
    let latency = simulated.machine.latency_ticks;
    let clock = ClockSimulation::with_latency(&simulated.network, &clocks, latency);
    let mut clock = clock.map_err(clock_error)?;
    let end = outcome.ticks as f64;
    let mut recorder = Recorder::new(&clock, end / MAX_SAMPLES as f64, MAX_SAMPLES, MAX_CURVES);
    for &stop in &outcome.stops {
        recorder
            .run_until(&mut clock, stop.time)
            .map_err(clock_error)?;
        clock.apply(stop).map_err(clock_error)?;
    }
    recorder.run_until(&mut clock, end).map_err(clock_error)?;

    std::fs::create_dir_all(folder).map_err(|error| {
        let message = format!("cannot make the folder `{}`: {error}", folder.display());
        single_error(Code::E0704, message, CHECK_FOLDER)
    })?;
    let files = [
        ("frequencies.svg", recorder.frequency_plot().svg()),
        ("phases.svg", recorder.phase_plot().svg()),
        ("fills.svg", recorder.fill_plot().svg()),
        ("clocks.csv", recorder.csv()),
    ];
    for (name, text) in files {
        write_file(&folder.join(name), text.as_bytes())?;
    }
    Ok(())
}

/// What was planned and what was run, for people.
fn report(args: &Simulate, simulated: &Simulated, outcome: &RunOutcome) -> String {
    let Simulated {
        machine, scheduled, ..
    } = simulated;
    let mut text = format!(
        "period {} ticks (bound {}, gap {:.1} %)   latency {} ticks   {} iterations in {} ticks\n",
        scheduled.plan.period,
        scheduled.bound,
        100.0 * scheduled.gap(),
        scheduled.latency,
        outcome.iterations,
        outcome.ticks
    );
    write_recoveries(&mut text, &simulated.network, &outcome.recoveries);
    if !args.report {
        return text;
    }

    let hz = machine.clocks().nominal_hz;
    let micros = |ticks: u64| ticks as f64 / hz * 1e6;
    let _ = writeln!(
        text,
        "at {:.1} MHz  period {:.3} us   latency {:.3} us",
        hz / 1e6,
        micros(scheduled.plan.period),
        micros(scheduled.latency)
    );
    let _ = writeln!(
        text,
        "machine      {} of {} nodes   {} one-way links of {} ticks   frames of {} bits",
        machine.topology.name(),
        simulated.network.node_count(),
        simulated.network.links().len(),
        machine.latency_ticks,
        machine.frame_bits
    );
    write_loads(&mut text, simulated);
    let _ = writeln!(
        text,
        "frames       {} with tokens were sent",
        outcome.frames
    );
    if let Some(fills) = outcome.fills {
        let frames = machine.clocks().buffers.frames;
        let _ = writeln!(
            text,
            "buffers      held {} to {} of {frames} frames, none over- or underflowed",
            fills.min, fills.max
        );
    }
    if let Some(losses) = &simulated.losses {
        write_plans(&mut text, &simulated.network, losses);
    }
    for (sink, bytes) in &outcome.outputs {
        let _ = writeln!(text, "sink         {sink}: {} bytes", bytes.len());
    }
    text
}

/// The busiest node and link.
fn write_loads(text: &mut String, simulated: &Simulated) {
    let plan = &simulated.plan;
    let durations = simulated.machine.durations(&simulated.graph);
    let mut work = vec![0_u64; simulated.network.node_count()];
    for (actor, starts) in plan.starts.iter_enumerated() {
        work[plan.placement[actor].index()] += durations[actor] * starts.len() as u64;
    }
    let mut frames = vec![0_u64; simulated.network.links().len()];
    for hop in plan.messages.iter().flat_map(|message| &message.hops) {
        frames[hop.link.index()] += hop.frames();
    }

    for (what, prefix, loads) in [("nodes", "n", work), ("links", "l", frames)] {
        let used = loads.iter().filter(|&&load| load > 0).count();
        let busiest = loads
            .iter()
            .enumerate()
            .max_by_key(|&(index, &load)| (load, usize::MAX - index));
        if let Some((index, &load)) = busiest {
            let share = 100.0 * load as f64 / plan.period as f64;
            let _ = writeln!(
                text,
                "{what}        {used} of {} used   busiest {prefix}{index}, {share:.0} % of ticks",
                loads.len()
            );
        }
    }
}
