//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use zbmd_compiler::{Math, Replicate, units};
use zbmd_ir::limits::MAX_STRUCTURE_BYTES;
use zbmd_scheduler::assign::Objective;
use zbmd_scheduler::buffers::Mode;

const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   two bundles differ (diff), or bundles do not fit on a machine together (admit)
  2   wrong usage
  3   the model or the machine is wrong; the errors are on stderr
  4   a file cannot be read or written
  5   a bundle is refused
  70  a bug in zbmdc
  130 interrupted

Data goes to stdout, everything said about it to stderr.";

/// Compiles streaming models to bundles, which zbmd-run replays.
#[derive(Debug, Parser)]
#[command(name = "zbmdc", version, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// When to colour messages; `auto` heeds NO_COLOR and whether stderr is a terminal
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: Colour,
    /// How errors and warnings are written: drawn for people, or one JSON object a line
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub(crate) message_format: MessageFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MessageFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compile a model to a bundle
    #[command(after_help = "\
Examples:
  zbmdc compile agc.ron                                   writes agc.zbmd for this computer
  zbmdc compile agc.ron --devices 2 --max-latency 5ms -o agc2.zbmd
  zbmdc compile agc.ron --cores 2                         two cores work on each op together
  zbmdc compile agc.ron --devices 8 --contingencies pairs   also for the loss of any two devices
  zbmdc compile agc.ron --hosts 4 --devices 2 --contingencies hosts
                                                          for a cluster of 4 hosts, `zbmd-run --virtual-cluster`
  zbmdc compile fm.ron --gpus                             for the GPUs of this computer too
  zbmdc compile detector.onnx --gpus --math tf32          rounds factors of products for tensor cores
  zbmdc compile classes.onnx --buckets 1,2,4              a mode for each size of a batch of samples
  zbmdc compile detect.ron --devices 4 --replicate 4      shares a heavy actor between devices
  zbmdc compile agc.ron fm.ron                            one calendar for both: agc+fm.zbmd
  zbmdc compile agc.ron --emit schedule                   prints the calendars, writes no bundle
  zbmdc compile - -o agc.zbmd < agc.ron                   reads the model from stdin")]
    Compile(Compile),
    /// Bring an ONNX model to a model file, with its weights beside it
    #[command(after_help = "\
Examples:
  zbmdc import detector.onnx -o detector.ron              writes detector.safetensors too
  zbmdc import detector.onnx --without channels-last -o detector.ron
Open dimensions, inputs that are constants, and states are given by
`--dim batch=1`, `--set sr=16000` and `--state state=stateN`.")]
    Import {
        /// The ONNX model
        model: PathBuf,
        /// The model file to write; the weights go beside it, as .safetensors
        #[arg(short, long, value_name = "FILE")]
        output: PathBuf,
        #[command(flatten)]
        given: Given,
    },
    /// Check a model and say everything that is wrong with it
    #[command(after_help = "\
Example:
  zbmdc check agc.ron --message-format json")]
    Check {
        /// The model, or `-` for stdin
        model: PathBuf,
        #[command(flatten)]
        given: Given,
    },
    /// Measure what the kernels of a model cost on this computer, for better schedules
    ///
    /// Kernels that can be run in several ways are measured in all of them, on CPUs and GPUs: plans made with the costs
    /// run the best. On CUDA devices cuBLASLt is one of them, where it is installed.
    #[command(after_help = "\
Examples:
  zbmdc calibrate agc.ron -o machine.ron                  measures on the devices of this computer
  zbmdc compile agc.ron --machine machine.ron             plans with what was measured
  zbmdc calibrate fm.ron --machine machine.ron -o machine.ron
                                                          adds the kernels of another model
  zbmdc calibrate detector.onnx --machine machine.ron --math tf32 -o machine.ron
                                                          what `compile --math tf32` runs on CUDA devices")]
    Calibrate(Calibrate),
    /// Say what bounds a model, however it is scheduled: its throughput, buffers and orders
    #[command(after_help = "\
Examples:
  zbmdc analyse cd2dat.ron
  zbmdc analyse cd2dat.ron --buffers 64KiB                the quickest within that size")]
    Analyse {
        /// The model, or `-` for stdin
        model: PathBuf,
        /// The devices whose speeds are taken; by default those of this computer
        #[arg(long, value_name = "FILE")]
        machine: Option<PathBuf>,
        /// All buffers together: `min`, `throughput`, a number of tokens, or a size such as 64KiB
        #[arg(long, value_name = "SIZE")]
        buffers: Option<Mode>,
    },
    /// Run a model on a simulated machine whose nodes share a clock (bittide), scheduled to the tick
    ///
    /// Sources without files read zeros. compiler/docs/ticks.md has the machine file.
    #[command(after_help = "\
Examples:
  zbmdc simulate agc.ron --machine torus.ron --ticks 10000 --report
  zbmdc simulate agc.ron --machine torus.ron --input iq=noise.cf32 --output out=out.cf32
  zbmdc simulate agc.ron --machine torus.ron --calendar   what every node does in which tick
  zbmdc simulate agc.ron --machine torus.ron --plots clocks
                                                          frequencies, phases and fills over time
  zbmdc simulate agc.ron --machine torus.ron --contingencies single --lose n3@500
                                                          goes on without node 3")]
    Simulate(Simulate),
    /// List the devices that a model is compiled for when no machine is given
    #[command(after_help = "\
Example:
  zbmdc devices --ron > machine.ron                       a machine file to start from
  zbmdc devices --cores 4 --ron > machine.ron             with devices of four cores each
  zbmdc devices --gpus --ron > machine.ron                the same with the GPUs that are found
  zbmdc devices --own a --cluster b=127.0.0.1:7171 --token-file token
                                                          of this host and an agent's, links as they are now")]
    Devices {
        /// Cores of each CPU device
        #[arg(long, value_name = "N", default_value_t = 1,
              value_parser = clap::value_parser!(u16).range(1..=1024))]
        cores: u16,
        /// As a machine file
        #[arg(long)]
        ron: bool,
        /// With the GPUs, of all hosts of a cluster too: they are used where a machine file names them, or with `compile --gpus`
        #[arg(long)]
        gpus: bool,
        #[cfg(hosts)]
        #[command(flatten)]
        cluster: Box<crate::cluster::ClusterArgs>,
    },
    /// List the ops that models may use, or describe one
    #[command(after_help = "\
Examples:
  zbmdc ops
  zbmdc ops Fir")]
    Ops {
        /// The op to describe
        name: Option<String>,
    },
    /// Explain an error code, with an example
    #[command(after_help = "\
Examples:
  zbmdc explain E0402
  zbmdc explain                                           lists all codes")]
    Explain {
        /// The code, as printed with the error
        code: Option<String>,
    },
    /// Show a bundle: calendars over time, memory, what limits it
    ///
    /// With a machine that keeps time it takes a model, plans it, and shows its calendars to the tick.
    #[command(after_help = "\
Examples:
  zbmdc inspect agc.zbmd                                  lanes over time, actors, memory
  zbmdc inspect agc.zbmd --format html -o agc.html        a page to zoom and search in
  zbmdc inspect agc.zbmd --format svg -o agc.svg
  zbmdc inspect agc.zbmd --format perfetto -o agc.pftrace   for ui.perfetto.dev
  zbmdc inspect agc.zbmd --measured agc.trace             a run beside the plan (zbmd-run --trace)
  zbmdc inspect agc.zbmd --measured agc.trace --format perfetto -o agc.pftrace
  zbmdc inspect agc.zbmd --format json                    for programs
  zbmdc inspect agc.zbmd --format mermaid                 the graph, for Markdown
  zbmdc inspect agc.zbmd --no-times                       stable text, to compare with
  zbmdc inspect agc.ron --machine torus.ron               what nodes and links do in which tick
  zbmdc inspect agc.zbmd --emit layout                    every buffer")]
    Inspect(Inspect),
    /// Say what two bundles have different; exit code 0 if nothing, 1 if something
    #[command(after_help = "\
Examples:
  zbmdc diff agc.zbmd agc.zbmd                            says nothing, exit code 0
  zbmdc diff agc.zbmd agc2.zbmd                           a line for each change, exit code 1
  zbmdc diff agc.zbmd agc2.zbmd --format html -o diff.html
  zbmdc diff agc.zbmd agc2.zbmd --format json")]
    Diff {
        /// The bundle before
        before: PathBuf,
        /// The bundle after
        after: PathBuf,
        /// How to say it
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        format: DiffFormat,
        /// Where to write it; by default to stdout
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        reading: Reading,
    },
    /// Say whether bundles fit on one machine together, and what is left of it
    ///
    /// Looked at are the time of devices and links, by the plans and the sample rates, and the memory of devices. Exit code 0 if there is
    /// enough of everything, 1 if not.
    #[command(after_help = "\
Examples:
  zbmdc devices --ron > box.ron
  zbmdc compile agc.ron --machine box.ron -o agc.zbmd
  zbmdc compile fm.ron --machine box.ron -o fm.zbmd
  zbmdc admit agc.zbmd fm.zbmd --machine box.ron")]
    Admit(Admit),
    /// Say why an actor runs where it runs, what it waits for, and what would have to change
    #[command(after_help = "\
Examples:
  zbmdc why level agc2.zbmd
  zbmdc why level agc2.zbmd --not cpu:1                   why it is not on that device
  zbmdc why level agc.zbmd --machine machine.ron          with the costs that were measured")]
    Why {
        /// The actor
        actor: String,
        /// The bundle
        bundle: PathBuf,
        /// The only other device to tell of
        #[arg(long = "not", alias = "why-not", value_name = "DEVICE")]
        not: Option<String>,
        /// A machine file with measured costs; otherwise they are those of the roofline
        #[arg(long, value_name = "FILE")]
        machine: Option<PathBuf>,
        #[command(flatten)]
        reading: Reading,
    },
    /// Compile a model again whenever it is saved, and say what changed
    #[command(after_help = "\
Example:
  zbmdc watch agc.ron --devices 2                         writes agc.zbmd each time, until Ctrl-C")]
    Watch(Compile),
    /// Make a project: a model, a custom actor, a test with a snapshot, a bench
    #[command(after_help = "\
Example:
  zbmdc new meter                                         a folder `meter`; its README says what to run")]
    New {
        /// Name of the project and of its folder: lower-case letters, digits, `-` and `_`
        name: String,
        /// A checkout of zbmd, whose crates are taken by path; by default the one that zbmdc was built from, or git
        /// where that is gone
        #[arg(long, value_name = "DIR")]
        zbmd: Option<PathBuf>,
    },
    /// Write the man pages, or print that of zbmdc
    #[command(after_help = "\
Examples:
  zbmdc man | man -l -
  zbmdc man -o man1                                       zbmdc.1 and one for each subcommand")]
    Man {
        /// Folder to write them to
        #[arg(short, long, value_name = "DIR")]
        output: Option<PathBuf>,
    },
    /// Print a completion script for a shell
    #[command(after_help = "\
Example:
  zbmdc completions bash > ~/.local/share/bash-completion/completions/zbmdc")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Simulate {
    /// The model; an ONNX model is imported
    pub(crate) model: PathBuf,
    /// The machine that keeps time
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: PathBuf,
    /// Machine file whose first device says what firings take, as measured or by its roofline: so many ticks at the
    /// nominal rate of the clocks, for all actors that the other machine file has no ticks for
    #[arg(long, value_name = "FILE")]
    pub(crate) costs: Option<PathBuf>,
    /// Stop after so many ticks of each node; by default at the end of the inputs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) ticks: Option<u64>,
    /// What a source reads: raw tokens
    #[arg(long = "input", value_name = "NAME=FILE", value_parser = name_and_value)]
    pub(crate) inputs: Vec<(String, String)>,
    /// Where to write what a sink gets: raw tokens
    #[arg(long = "output", value_name = "NAME=FILE", value_parser = name_and_value)]
    pub(crate) outputs: Vec<(String, String)>,
    /// Say more about plan and run
    #[arg(long)]
    pub(crate) report: bool,
    /// Print what every node does in which tick, and run nothing
    #[arg(long)]
    pub(crate) calendar: bool,
    /// Draw what every node and link does in which tick: an .svg, or an .html with the plans for losses too
    #[arg(long, value_name = "FILE")]
    pub(crate) draw: Option<PathBuf>,
    /// Visit only ticks in which a calendar has an entry: the same output without clocks and buffers, much sooner
    #[arg(long)]
    pub(crate) events: bool,
    /// Make plans ahead for when nodes or links are lost, with which the run goes on then
    #[arg(long, value_name = "LOSSES", default_value = "none")]
    pub(crate) contingencies: TickContingencyChoice,
    /// Lose something in a tick of it or its sender: a node, a link, or one frame of a link, such as `n3@500`, `l7@500`
    /// or `frame:l7@500`
    #[arg(long = "lose", value_name = "WHAT@TICK", value_parser = loss_at, conflicts_with = "events")]
    pub(crate) losses: Vec<LossAt>,
    /// Folder for frequencies, phases and fills over time, as SVG and CSV
    #[arg(long, value_name = "DIR")]
    pub(crate) plots: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) given: Given,
}

#[derive(Args, Debug)]
pub(crate) struct Inspect {
    /// The bundle; with `--machine` a model
    pub(crate) bundle: PathBuf,
    /// A machine that keeps time (bittide): plan the model for it, and show its calendars to the tick
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["plan", "mode", "measured", "periods", "no_times", "emit"])]
    pub(crate) machine: Option<PathBuf>,
    /// With `--machine`: give a parameter of the model a value, as its text would write it
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = name_and_value, requires = "machine")]
    pub(crate) params: Vec<(String, String)>,
    /// With `--machine`: plans also for when nodes or links are lost, and what they all keep for that
    #[arg(
        long,
        value_name = "LOSSES",
        default_value = "none",
        requires = "machine"
    )]
    pub(crate) contingencies: TickContingencyChoice,
    /// How to show it
    #[arg(long, value_name = "FORMAT", default_value = "text", conflicts_with_all = ["emit", "no_times"])]
    pub(crate) format: Format,
    /// Where to write it; by default to stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// The plan to show, by name or number; JSON, RON and HTML hold all
    #[arg(long, value_name = "PLAN", default_value = "0")]
    pub(crate) plan: String,
    /// The mode to show, of a bundle with several; by default the one that a run begins in
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
    /// Columns of the text; by default those of the terminal
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..))]
    pub(crate) width: Option<u16>,
    /// Lay a run beside the plan: what `zbmd-run --trace FILE` recorded
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["emit", "no_times"])]
    pub(crate) measured: Option<PathBuf>,
    /// Periods in a Perfetto trace; by default enough to fill the pipeline, or half a million slices of a run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) periods: Option<u64>,
    /// Print the stages without predicted times
    #[arg(long)]
    pub(crate) no_times: bool,
    /// Print one stage in full
    #[arg(long, value_name = "STAGE")]
    pub(crate) emit: Option<Emit>,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

/// What is to run beside what.
#[derive(Debug, Args)]
pub(crate) struct Admit {
    /// The bundles, each compiled for the machine
    #[arg(required = true, value_name = "BUNDLE")]
    pub(crate) bundles: Vec<PathBuf>,
    /// The machine that they share
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: PathBuf,
    /// Iterations a second of a bundle whose streams have no sample rate, by the name of its file without `.zbmd`
    #[arg(long = "rate", value_name = "BUNDLE=HZ", value_parser = iteration_rate)]
    pub(crate) rates: Vec<(String, f64)>,
    #[command(flatten)]
    pub(crate) reading: Reading,
}

fn iteration_rate(text: &str) -> Result<(String, f64), String> {
    let parts = text.rsplit_once('=').filter(|(name, _)| !name.is_empty());
    let parsed = parts.and_then(|(name, rate)| Some((name.to_owned(), rate.parse().ok()?)));
    let valid = parsed.filter(|(_, rate): &(String, f64)| rate.is_finite() && *rate > 0.0);
    valid.ok_or_else(|| "write it as NAME=HZ, such as agc=1000".to_owned())
}

/// How a bundle that may be hostile is read
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Memory that the structure of a bundle may take, which is everything but its weights and kernels
    #[arg(long, value_name = "MIB", default_value_t = (MAX_STRUCTURE_BYTES >> 20) as u32,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    max_structure: u32,
}

impl Reading {
    /// The limit in bytes.
    pub(crate) fn max_structure_bytes(self) -> u64 {
        u64::from(self.max_structure) << 20
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lanes over time, actors and memory, as wide as the terminal
    Text,
    /// All of it, for programs: documented in zbmd_compiler::view
    Json,
    /// The same as RON
    Ron,
    /// The graph for Graphviz
    Dot,
    /// The graph for Markdown
    Mermaid,
    /// Lanes over time as a drawing
    Svg,
    /// All of it in a page that needs no network
    Html,
    /// Lanes over time for ui.perfetto.dev
    Perfetto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffFormat {
    /// A line for each change
    Text,
    /// For programs
    Json,
    /// A page that needs no network, with both calendars
    Html,
}

/// What is given to a model from outside.
#[derive(Args, Debug, Default)]
pub(crate) struct Given {
    /// Give a parameter of the model a value, as its text would write it
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub(crate) params: Vec<(String, String)>,
    /// Of a model with modes take this one alone
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
    /// Bind an open dimension of an ONNX model, by its name or as INPUT.INDEX
    #[arg(long = "dim", value_name = "NAME=SIZE", value_parser = name_and_value)]
    pub(crate) dims: Vec<(String, String)>,
    /// Make an input of an ONNX model a constant: a number, or several with commas
    #[arg(long = "set", value_name = "INPUT=VALUE", value_parser = name_and_value)]
    pub(crate) sets: Vec<(String, String)>,
    /// Feed an output of an ONNX model back into an input, zero at first
    #[arg(long = "state", value_name = "INPUT=OUTPUT", value_parser = name_and_value)]
    pub(crate) states: Vec<(String, String)>,
    /// Leave out a pass over an ONNX model; `--emit passes` lists them
    #[arg(long = "without", value_name = "PASS")]
    pub(crate) without: Vec<String>,
}

/// A name and a value, with the first equals sign between them.
fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[derive(Args, Debug)]
pub(crate) struct Compile {
    /// The model, or `-` for stdin; an ONNX model is imported. Several are merged into one program, in which names begin with
    /// that of their model
    #[arg(required = true, value_name = "MODEL")]
    pub(crate) models: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) given: Given,
    /// Compile an ONNX model for several batch sizes, a mode for each; a token is one sample in all of them
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    pub(crate) buckets: Vec<u32>,
    /// Of several models, the iterations a second of one whose streams have no sample rate
    #[arg(long = "rate", value_name = "MODEL=HZ", value_parser = iteration_rate)]
    pub(crate) rates: Vec<(String, f64)>,
    /// Where to write the bundle; by default next to the model, as MODEL.zbmd, of several as A+B.zbmd
    #[arg(short, long, value_name = "BUNDLE")]
    pub(crate) output: Option<PathBuf>,
    /// The devices and links to compile for; by default those of this computer
    #[arg(long, value_name = "FILE", conflicts_with = "devices")]
    pub(crate) machine: Option<PathBuf>,
    /// Compile for N like CPU devices
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) devices: Option<u16>,
    /// Compile for N like hosts with --devices each, all linked: h0 with h0:0, h0:1, … and so on, as `zbmd-run --virtual-cluster` has them
    #[arg(long, value_name = "N", requires = "devices", conflicts_with = "gpus", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) hosts: Option<u16>,
    /// Cores of each CPU device: large ops are split over them, for latency rather than throughput
    #[arg(long, value_name = "N", conflicts_with_all = ["machine", "devices"],
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) cores: Option<u16>,
    /// Use the GPUs of this computer besides
    #[arg(long, conflicts_with = "machine")]
    pub(crate) gpus: bool,
    /// Print a stage to stdout; no bundle is written unless -o asks for it
    #[arg(long, value_name = "STAGE")]
    pub(crate) emit: Option<Emit>,
    /// Graph iterations in a block; by default chosen for throughput
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) block: Option<u64>,
    /// Compile for sequences of requests: what the model keeps between iterations comes from sources and goes to sinks, so that
    /// `zbmd-serve` can keep it for each sequence
    #[arg(long)]
    pub(crate) sequences: bool,
    /// Bound on the predicted latency, such as 5ms
    #[arg(long, value_name = "TIME", value_parser = units::duration_ns)]
    pub(crate) max_latency: Option<u64>,
    /// Bound on the memory of each device, such as 1MiB
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    pub(crate) max_memory: Option<u64>,
    /// All buffers together: `min`, `throughput`, a number of tokens, or a size such as 64KiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) buffers: Option<Mode>,
    /// How hard to look for a placement; the same level gives the same bundle
    #[arg(long, value_name = "LEVEL", default_value = "fast")]
    pub(crate) solve: Solve,
    /// Take the best placement found after so long, such as 30s; Ctrl-C does the same at once
    #[arg(long, value_name = "TIME", value_parser = units::duration_ns)]
    pub(crate) time_limit: Option<u64>,
    /// What makes a placement good: `period`, `latency`, `memory`, or weights such as 3,1,0 for all three
    #[arg(long, value_name = "WHAT", default_value = "period", value_parser = objective_weights)]
    pub(crate) objective: Objective,
    /// Make plans ahead for when devices are lost
    #[arg(long, value_name = "LOSSES", default_value = "none")]
    pub(crate) contingencies: Contingencies,
    /// Run actors without a memory on several devices at once where that is quicker: `auto`, `off`, or N
    /// replicas at most, for which iterations may become longer
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = replicate_choice)]
    pub(crate) replicate: Replicate,
    /// What CUDA devices may round the factors of matrix products and convolutions to, for their tensor cores:
    /// `f32` (nothing), `tf32`, `f16` or `bf16`; sums stay f32, and other devices round nothing
    #[arg(long, value_name = "TYPE", default_value_t)]
    pub(crate) math: Math,
    /// Assemble the kernels of CUDA devices for these architectures, such as `sm_80,sm_90`, with NVIDIA's `ptxas`
    /// (on the path, or named in ZBMD_PTXAS): runs then start without waiting for the driver to compile them
    #[arg(long, value_name = "ARCH", value_delimiter = ',')]
    pub(crate) cubin: Vec<String>,
    /// Leave predicted times out of what is printed
    #[arg(long)]
    pub(crate) no_times: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Calibrate {
    /// The model, or `-` for stdin
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) given: Given,
    /// Where to write the machine with the costs; by default to stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// The devices to measure, all of this computer; by default all it has. Costs in it are kept
    #[arg(long, value_name = "FILE")]
    pub(crate) machine: Option<PathBuf>,
    /// Folder of what was measured earlier; by default `zbmd` in the cache folder of the user
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Measure again what the cache has
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Time for each variant of each kernel on each kind of device, in seconds or such as 50ms
    #[arg(long, value_name = "TIME", value_parser = budget_ns, default_value = "50ms")]
    pub(crate) budget: u64,
    /// Iterations of a block, as for `compile --block`: the best variant is then that of calls of this length, and otherwise
    /// of short and long ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) block: Option<u64>,
    /// Measure what `compile --math TYPE` runs on CUDA devices: products with factors rounded to it
    #[arg(long, value_name = "TYPE", default_value_t)]
    pub(crate) math: Math,
}

/// Most time for one variant of a kernel: an hour measures nothing that a minute does not.
const MAX_BUDGET_NS: u64 = 3_600_000_000_000;

/// A duration; a bare number is seconds.
fn budget_ns(text: &str) -> Result<u64, String> {
    let is_bare = text.trim().parse::<f64>().is_ok();
    let with_unit = if is_bare {
        format!("{text}s")
    } else {
        text.to_owned()
    };
    let budget_ns = units::duration_ns(&with_unit).map_err(|error| error.to_string())?;
    if budget_ns > MAX_BUDGET_NS {
        return Err("at most 60min".to_owned());
    }
    Ok(budget_ns)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Solve {
    /// Heuristics: milliseconds
    Fast,
    /// Local search and a short exact search: seconds
    Balanced,
    /// Until it is proved best, or a large amount of work is done
    Exact,
}

fn objective_weights(text: &str) -> Result<Objective, String> {
    let weights = match text {
        "period" => return Ok(Objective::PERIOD),
        "latency" => return Ok(Objective::LATENCY),
        "memory" => return Ok(Objective::MEMORY),
        weights => weights
            .split(',')
            .map(|w| w.trim().parse::<u32>())
            .collect::<Vec<_>>(),
    };

    match weights[..] {
        [Ok(p), Ok(l), Ok(m)] if p.max(l).max(m) > 0 => Ok(Objective {
            period: p.into(),
            latency: l.into(),
            memory: m.into(),
        }),
        _ => Err("write `period`, `latency`, `memory`, or three weights such as 3,1,0".to_owned()),
    }
}

fn replicate_choice(text: &str) -> Result<Replicate, String> {
    match (text, text.parse::<u32>()) {
        ("auto", _) => Ok(Replicate::Auto),
        ("off", _) => Ok(Replicate::Off),
        (_, Ok(replicas)) if replicas > 0 => Ok(Replicate::UpTo(replicas)),
        _ => Err("write `auto`, `off`, or a number of replicas such as 4".to_owned()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contingencies {
    /// No plans beside those for the whole machine
    None,
    /// For the loss of any one device
    Single,
    /// For the loss of any one device and of any one host with all its devices
    Hosts,
    /// For the loss of any one device and of any two, and of any one host if there are hosts
    Pairs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TickContingencyChoice {
    /// No plans beside that for the whole machine
    None,
    /// For the loss of any one node and of any one link
    Single,
}

/// What `--lose` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LossAt {
    pub(crate) part: LostPart,
    pub(crate) tick: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LostPart {
    Node(u32),
    Link(u32),
    /// One frame of a link.
    Frame(u32),
}

fn loss_at(text: &str) -> Result<LossAt, String> {
    let parse = || {
        let (part, tick) = text.split_once('@')?;
        let number = |prefix: &str| part.strip_prefix(prefix)?.parse::<u32>().ok();
        let frame = number("frame:l").map(LostPart::Frame);
        let link = number("l").map(LostPart::Link);
        let part = frame.or(link).or(number("n").map(LostPart::Node))?;
        let tick = tick.parse().ok()?;
        Some(LossAt { part, tick })
    };
    parse().ok_or_else(|| "write n3@500, l7@500 or frame:l7@500".to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Emit {
    /// What the passes over ONNX models did
    Passes,
    /// Everything
    All,
    /// Actors, ports and channels
    Graph,
    /// Losses of devices, and the plans that run then
    Contingencies,
    /// Devices of actors, and what each does there
    Schedule,
    /// The calendars
    Calendar,
    /// Buffers and rings in memory
    Layout,
}
