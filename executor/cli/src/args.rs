//! The command line: options, their texts, and what is written in them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

use zbmd_ir::response::LatePolicy;
#[cfg(hosts)]
use zbmd_wire::args::{ProtectionArgs, host};

#[cfg(hosts)]
use super::agent::Agent;
#[cfg(target_os = "linux")]
use super::control::{Mode, ProbeArgs, Set};
#[cfg(hosts)]
use super::council::CouncilArgs;
use super::deadlines::LateAnswer;
#[cfg(hosts)]
use super::gathering::GatherArgs;
use super::replay::Replay;
use super::top::Top;
#[cfg(hosts)]
use super::up::Up;
use crate::flight::{Keep, keep};

/// [`zbmd_ir::limits::MAX_STRUCTURE_BYTES`] in MiB.
const DEFAULT_MAX_STRUCTURE_MIB: u32 = (zbmd_ir::limits::MAX_STRUCTURE_BYTES >> 20) as u32;

/// Runs a bundle: tokens from files through its calendars into files.
#[derive(Debug, Parser)]
#[command(
    name = "zbmd-run",
    version,
    after_help = AFTER_HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Option<Other>,
    /// The bundle, made by `zbmdc compile`.
    #[arg(required = true)]
    pub(super) bundle: Option<PathBuf>,
    /// Read a source from a file, or from a URL below; `-` is standard input. Without it, the source's parameter `file` says, where
    /// --allow-files or --allow-urls does.
    #[arg(short, long = "input", value_name = "NAME=FILE", value_parser = binding)]
    pub(super) inputs: Vec<(String, PathBuf)>,
    /// Write a sink to a file, or to a URL below; `-` is standard output. Without it, the sink's parameter `file` says, where --allow-files
    /// or --allow-urls does.
    #[arg(short, long = "output", value_name = "NAME=FILE", value_parser = binding)]
    pub(super) outputs: Vec<(String, PathBuf)>,
    /// Take the names of files that the bundle has for streams without an option: relative ones, in or below the
    /// working folder.
    #[arg(long)]
    pub(super) allow_files: bool,
    /// Take the URLs that the bundle has for streams without an option: whoever made it decides whom the run talks to. Files
    /// that they name are relative ones, in or below the working folder.
    #[arg(long)]
    pub(super) allow_urls: bool,
    /// Memory that the structure of the bundle may take, which is everything but its weights and kernels.
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_MAX_STRUCTURE_MIB,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(super) max_structure: u32,
    /// Stop after so many iterations of the graph.
    #[arg(short = 'n', long)]
    pub(super) iterations: Option<u64>,
    /// Show the run as it is to Prometheus, over HTTP at this address of this machine: `http://ADDRESS:PORT/metrics`. Port 0 is one
    /// that is free.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(super) metrics: Option<SocketAddr>,
    /// Show the run as it is in a browser, over HTTP at this address of this machine: its calendar, queues, channels, and
    /// what can be set. The address is printed with a key; whoever has that may look and set. Port 0 is one that is free.
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "quiet")]
    pub(super) http: Option<SocketAddr>,
    /// Stop after so long: `500ms`, `5s`, `2m`, `1h`.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) duration: Option<Duration>,
    /// Report what was measured, on standard error.
    #[arg(long, value_name = "FORMAT")]
    pub(super) report: Option<ReportFormat>,
    /// Write the report to a file instead; JSON unless --report says otherwise.
    #[arg(long, value_name = "FILE")]
    pub(super) report_file: Option<PathBuf>,
    /// Go on where a run that saved its state ended.
    #[arg(long, value_name = "FILE")]
    pub(super) load_state: Option<PathBuf>,
    /// Save the state at the end, for a run that goes on.
    #[arg(long, value_name = "FILE")]
    pub(super) save_state: Option<PathBuf>,
    /// Fill up an incomplete last iteration with zero tokens.
    #[arg(long)]
    pub(super) pad: bool,
    /// Record what every worker really does to a file, for `zbmdc inspect BUNDLE --measured FILE`.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Report how long the calls of each actor took, beside what was planned.
    #[arg(long)]
    pub(super) profile: bool,
    /// Where workers run: in threads of this process, or in a process of its own each GPU, or each device; those
    /// of other hosts in their agents, or in processes that these start.
    #[arg(long, value_name = "WHERE", default_value = "gpus")]
    pub(super) isolation: Where,
    /// Count the blocks whose output at this sink is later than so long after the release of their tokens, which a source
    /// that is played by the clock has (`--input NAME=paced:FILE`). May be given for several sinks.
    #[arg(long = "deadline", value_name = "SINK=TIME", value_parser = deadline)]
    pub(super) deadlines: Vec<(String, Duration)>,
    /// What this sink is given in the place of a block that is later than its deadline: `wait` (the block, as late as it
    /// is), `drop` (nothing) or `hold` (the last block that was in time again; zeros before the first). A file's place is
    /// filled when the late block comes, that of a pipe or a URL as soon as the deadline has passed, but for bundles of
    /// several modes. With `mode:NAME` it is given the block, and the run goes over to that mode. Without it, the model
    /// says. May be given for several sinks.
    #[arg(long = "on-miss", value_name = "SINK=POLICY", value_parser = late_answer)]
    pub(super) on_miss: Vec<(String, LateAnswer)>,
    /// Run before all ordinary threads of the system (SCHED_FIFO), with all memory locked. Refused, with what is missing,
    /// where the system does not allow it.
    #[arg(long)]
    pub(super) realtime: bool,
    /// Hold the run to its share of the machine: of each core, what the plan needs of it at the sample rates, and a fiftieth more
    /// (SCHED_DEADLINE), and for all of its threads a limit, in a control group of this name (`cpu.max` of cgroup v2).
    /// Refused, with exit code 9, where other runs of this user with shares leave too little. What the system does not
    /// give is said, and the run goes on without it.
    #[cfg(target_os = "linux")]
    #[arg(long, value_name = "NAME", conflicts_with = "realtime", value_parser = share_name)]
    pub(super) share: Option<String>,
    /// Keep a second process ready to take the place of each worker that is one.
    #[arg(long)]
    pub(super) standby: bool,
    /// Check that what arrives over rings is what was sent.
    #[arg(long)]
    pub(super) checksums: bool,
    /// Go on when workers are lost: restart them, go over to the bundle's calendars for the devices that are left. With
    /// a file, as it declares in RON. Implied by the options that need it.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(super) supervise: Option<Option<PathBuf>>,
    /// Write every decision of the supervisor to a file, one JSON object a line; `-` is standard error.
    #[arg(long, value_name = "FILE")]
    pub(super) events: Option<PathBuf>,
    /// Write checkpoints to this folder, from which a run that was killed can go on. It is this run's alone: a folder
    /// that holds anything is refused without --resume or --checkpoint-replace.
    #[arg(long, value_name = "DIR")]
    pub(super) checkpoint: Option<PathBuf>,
    /// How often: `500ms`, `5s`, `2m`.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s", requires = "checkpoint")]
    pub(super) checkpoint_every: Duration,
    /// How many checkpoints to keep.
    #[arg(long, value_name = "N", default_value_t = 3, requires = "checkpoint")]
    pub(super) checkpoint_keep: usize,
    /// Remove the checkpoints of an earlier run from the folder, and begin anew.
    #[arg(long, requires = "checkpoint", conflicts_with = "resume")]
    pub(super) checkpoint_replace: bool,
    /// Go on at the newest checkpoint, or begin if there is none. Sources are read from where they were, files of sinks
    /// are cut off where they were. Refused with another bundle, input or output.
    #[arg(long, requires = "checkpoint", conflicts_with = "load_state")]
    pub(super) resume: bool,
    /// Resume with another bundle of the same graph: compiled for other devices, or with other parameters.
    #[arg(long, requires = "resume")]
    pub(super) other_bundle: bool,
    /// Record everything that enters the run to this folder, to be done again with `zbmd-run replay`: source tokens with
    /// their gaps, changes of live parameters, and states to begin at. It is this run's alone. Implies --supervise.
    #[arg(long, value_name = "DIR")]
    pub(super) record: Option<PathBuf>,
    /// How much of the run the recording keeps: a time (`30s`, `10m`), what so many bytes hold (`500MiB`, `2GiB`), or at most
    /// both (`10m,2GiB`).
    #[arg(long, value_name = "TIME|SIZE|TIME,SIZE", value_parser = keep, default_value = "10m", requires = "record")]
    pub(super) keep: Keep,
    /// Remove the recording of an earlier run from the folder, and begin anew.
    #[arg(long, requires = "record")]
    pub(super) record_replace: bool,
    /// Bring faults about, to see what becomes of them: a seed (kills a worker every 50 to 500 ms), or a file in RON.
    #[arg(long, value_name = "SEED|FILE")]
    pub(super) inject: Option<String>,
    /// Run the devices of another host of the bundle's machine there, where `zbmd-run agent` listens at this address. Given
    /// for every host but this one. Implies --supervise.
    #[cfg(hosts)]
    #[arg(long = "host", value_name = "NAME=ADDRESS:PORT", value_parser = host, requires = "token_file")]
    pub(super) hosts: Vec<(String, SocketAddr)>,
    /// Run all hosts of the bundle's machine on this computer: the run is the first of them, and for each other one an agent is
    /// started, which is started again when it ends. Implies --supervise.
    #[cfg(hosts)]
    #[arg(
        long,
        group = "several_hosts",
        conflicts_with_all = ["hosts", "gather", "token_file", "council", "take_over_as", "tls_certificate", "plain_wires", "ucx_wires"]
    )]
    pub(super) virtual_cluster: bool,
    /// The secret that all hosts of the run share: a file that only its owner can read.
    #[cfg(hosts)]
    #[arg(long, value_name = "FILE", group = "several_hosts")]
    pub(super) token_file: Option<PathBuf>,
    #[cfg(hosts)]
    #[command(flatten)]
    pub(super) gathering: GatherArgs,
    /// A host that is silent for so long is lost; five heartbeats are sent meanwhile, over UDP. 100ms without this, and 20ms with
    /// --realtime; `1s` over a wide-area network or on crowded computers.
    #[cfg(hosts)]
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "several_hosts")]
    pub(super) host_lease: Option<Duration>,
    #[cfg(hosts)]
    #[command(flatten)]
    pub(super) protection: ProtectionArgs,
    #[cfg(hosts)]
    #[command(flatten)]
    pub(super) council: CouncilArgs,
    /// Stand by as this host of the bundle's machine, for a run that another host has started: hold the state of each border, and
    /// go on with the run when its conductor is lost. Its inputs are read from where the run is, its outputs begin with the token
    /// that is said then; the last of those that the first conductor has given out come again.
    #[cfg(hosts)]
    #[arg(
        long,
        value_name = "HOST",
        requires = "council",
        conflicts_with_all = ["load_state", "checkpoint", "record"]
    )]
    pub(super) take_over_as: Option<String>,
    /// Say nothing but errors.
    #[arg(short, long)]
    pub(super) quiet: bool,
}

impl Args {
    /// Whether a launcher has started the process, among others of the run.
    pub(super) fn is_launched(&self) -> bool {
        #[cfg(hosts)]
        return self.gathering.launcher.is_some();
        #[cfg(not(hosts))]
        false
    }

    /// A host that is silent for so long is lost.
    #[cfg(hosts)]
    pub(super) fn host_lease(&self) -> Duration {
        self.host_lease.unwrap_or(match self.realtime {
            true => Duration::from_millis(20),
            false => Duration::from_millis(100),
        })
    }

    /// Whether the run is over several hosts.
    pub(super) fn has_hosts(&self) -> bool {
        #[cfg(hosts)]
        return !self.hosts.is_empty()
            || self.virtual_cluster
            || self.gathering.gather.is_some()
            || self.take_over_as.is_some();
        #[cfg(not(hosts))]
        false
    }
}

/// What the command does besides running bundles.
#[derive(Debug, Subcommand)]
pub(super) enum Other {
    /// Watch a run that is on: throughput, lateness, how full rings and queues are, what devices do.
    #[command(after_help = TOP_HELP)]
    Top(Top),
    /// Set live parameters of a run that is on, all together or none.
    #[cfg(target_os = "linux")]
    #[command(after_help = SET_HELP)]
    Set(Set),
    /// Change the mode of a run that is on, or show its modes.
    #[cfg(target_os = "linux")]
    #[command(after_help = MODE_HELP)]
    Mode(Mode),
    /// Look at what a channel of a run that is on carries, without disturbing it; or list its channels.
    #[cfg(target_os = "linux")]
    #[command(after_help = PROBE_HELP)]
    Probe(ProbeArgs),
    /// Run the devices of this host for runs that are started on another one with `--host`.
    #[cfg(hosts)]
    #[command(after_help = AGENT_HELP)]
    Agent(Box<Agent>),
    /// Start an agent on each host of a cluster by ssh, run a bundle over them, and stop them.
    #[cfg(hosts)]
    #[command(after_help = UP_HELP)]
    Up(Up),
    /// Run again what `--record` has recorded, bit for bit: on the same bundle or another one of the same graph.
    #[command(after_help = REPLAY_HELP)]
    Replay(Box<Replay>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Where {
    /// GPUs in processes, which a failing driver may take along, and CPU devices in threads.
    Gpus,
    /// In threads.
    Threads,
    /// In processes.
    Processes,
}

const AFTER_HELP: &str = "\
Examples:
  zbmd-run model.zbmd -i in=in.f32 -o out=out.f32 --report text
  zbmd-run model.zbmd -i in=in.f32 -o out=out.npy --iterations 10   stops after ten iterations
  zbmd-run model.zbmd -i in=in.f32 -o out=out.f32 --trace run.trace --profile
  zbmd-run model.zbmd -i in=in.f32 -o out=out.f32 --supervise --events events.jsonl
  zbmd-run model.zbmd -i in=paced:in.f32?rate=48e3 -o out=udp://127.0.0.1:5000?header=seq
  zbmd-run model.zbmd -i in=in.f32 -o out=out.f32 --record black-box --keep 10m,2GiB
  zbmd-run replay black-box -o out=again.f32              does the same again, bit for bit
  zbmd-run top                                            watches a run from another terminal
  zbmd-run set gain=2                                     sets a live parameter of a run
  zbmd-run model.zbmd --virtual-cluster --host-lease 1s -i in=in.f32 -o out=out.f32
                                                          all hosts of a cluster on this computer
  srun zbmd-run model.zbmd --launcher slurm --gather 0.0.0.0:7100 --token-file cluster.token --plain-wires \\
      -i in=in.f32 -o out=out.f32                         over the computers of a job

Live streams instead of files: udp://HOST:PORT, tcp://HOST:PORT, tcp-listen://HOST:PORT, rtl_tcp://HOST:PORT (sources),
rtl_tcp-listen://HOST:PORT (sinks), zmq-sub:// and zmq-pull:// (sources), zmq-pub:// and zmq-push:// (sinks; ZeroMQ, with
-listen where peers connect to us: zmq-pub-listen://HOST:PORT), paced:FILE (a file played at its rate), sigmf:FILE (a recording),
audio:CARD, soapy:DEVICE, bridge:FILE (what a sound card was given). Keys follow after `?`, joined by `&`: rate,
silence=stall|fill, limit, fill=zeros|hold, queue, full=drop-oldest|drop-newest|wait, window, header=none|seq|vita49, packet,
topic.
`flags:NAME` gives another source a u8 for each token of source NAME: 0 if it was received, 1 if it was filled.

Files by extension: npy, wav, sigmf-meta, u8, s8, s16, s32, f32, cu8, cs8, cs16, cf32; bursts, and jsonl to write, for
bursts; bin and no extension are raw tokens.

Exit codes: 0 done, 2 usage, 4 file error, 5 bundle or state refused, 6 fault at run time,
7 gave up after too many losses, 9 no room for its share, 70 our bug, 130 interrupted.";

const TOP_HELP: &str = "\
Examples:
  zbmd-run top                                            the only run that is on
  zbmd-run top 4711                                       the run of that process
  zbmd-run top 4711 --once --format json                  for programs

Exit codes: 0 shown, or the run is over, 2 usage, 4 its page cannot be read, 8 no such run, or a dead one.";

#[cfg(target_os = "linux")]
const SET_HELP: &str = "\
Examples:
  zbmd-run set                                            lists the live parameters of the only run that is on
  zbmd-run set gain=2                                     with its next block
  zbmd-run set 4711 gain=2 offset=-0.5 taps=0.25,0.5,0.25
  zbmd-run set gain=2 --at iq:480000                      exactly at that token of source iq

Exit codes: 0 set, 2 usage, or no such parameter, 4 the run cannot be asked, 5 a value or a token is refused,
8 no such run, or it has ended.";

#[cfg(target_os = "linux")]
const MODE_HELP: &str = "\
Examples:
  zbmd-run mode                                           lists the modes of the only run that is on
  zbmd-run mode track                                     goes over at the next border; waits until it has
  zbmd-run mode 4711 track

Exit codes: 0 the run is in the mode, 2 usage, or no such mode, 4 the run cannot be asked, 5 the change is not allowed,
8 no such run, or it has ended.";

#[cfg(target_os = "linux")]
const PROBE_HELP: &str = "\
Examples:
  zbmd-run probe                                          lists the channels of the only run that is on
  zbmd-run probe scale                                    extremes, mean and power of a block that actor `scale` writes
  zbmd-run probe 4711 scale --count 100                   of a hundred blocks
  zbmd-run probe 4711 split.left --fft --count 16         what it oscillates at, the mean of 16 blocks
  zbmd-run probe 4711 scale --output scale.npy --count 8  its tokens

Exit codes: 0 shown, 2 usage, or no such channel, 4 the run cannot be asked or the file not written, 5 the channel cannot
be looked at, 8 no such run, or it has ended.";

#[cfg(hosts)]
const AGENT_HELP: &str = "\
Examples:
  zbmd-run agent --listen 10.0.0.2:7000 --token-file cluster.token \\
      --tls-certificate right.pem --tls-key right.key --tls-ca ca.pem
  zbmd-run model.zbmd --host right=10.0.0.2:7000 --token-file cluster.token \\
      --tls-certificate left.pem --tls-key left.key --tls-ca ca.pem -i in=in.f32 -o out=out.f32
  zbmd-run agent --listen 10.0.0.2:7000 --token-file cluster.token --plain-wires

An agent may join a run whose address it knows, as the host that it is or as what started it says:
  zbmd-run agent --join 10.0.0.1:7100 --as right --token-file cluster.token --plain-wires
  zbmd-run agent --join zbmd-run:7100 --launcher kubernetes --token-file cluster.token --plain-wires

It serves one run after the other until it is killed. Whoever has the token, and a certificate of the authority, can have it
run any bundle. At addresses of other computers it needs TLS, or --plain-wires on networks that are trusted.

Exit codes: 0 the run of --once is over, 2 usage, 4 the token or a certificate cannot be read, or the address is taken,
5 refused by the run that it joins.";

#[cfg(hosts)]
const UP_HELP: &str = "\
Examples:
  zbmd-run up launch.ron                                  as the file says
  zbmd-run up launch.ron -i in=in.f32 -o out=out.f32      with more options of the run

The file:
  Launch(
      bundle: \"model.zbmd\",
      token_file: \"cluster.token\",
      hosts: {
          \"right\": Host(address: \"10.0.0.2:7000\", user: \"radio\", token_file: \"/etc/zbmd/cluster.token\"),
      },
      options: [\"--plain-wires\"],
      agent_options: [\"--plain-wires\"],
  )

Exit codes: those of the run; 2 usage, 4 the file cannot be read or says what it must not, 5 an agent cannot be started.";

const REPLAY_HELP: &str = "\
Examples:
  zbmd-run replay black-box -o audio=again.wav            from the oldest state that is kept to the end
  zbmd-run replay black-box --from 48000 -o audio=again.wav
  zbmd-run replay black-box --bundle one-device.zbmd -o audio=again.wav
  zbmd-run replay black-box --inject 7 -o audio=again.wav   through losses: the same bits
  zbmd-run replay black-box                               says what the recording holds and runs it

A sink without --output is computed and dropped. A recording that is still being made may be replayed as far as it is.

Exit codes: 0 done, 2 usage, 4 file error, 5 recording or bundle refused, 6 fault at run time, 7 gave up after too many losses,
70 our bug, 130 interrupted.";

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ReportFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

pub(super) fn binding(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => {
            Ok((name.to_owned(), file.into()))
        }
        _ => Err("write it as NAME=FILE, such as iq=capture.cf32".to_owned()),
    }
}

impl Args {
    /// Whether threads that wait for tokens run before ordinary ones: none that takes a lock of theirs may be an ordinary one.
    pub(super) fn has_priorities(&self) -> bool {
        #[cfg(target_os = "linux")]
        let is_held = self.share.is_some();
        #[cfg(not(target_os = "linux"))]
        let is_held = false;
        self.realtime || is_held
    }
}

/// The name becomes that of a folder.
#[cfg(target_os = "linux")]
fn share_name(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    match !text.is_empty() && text.len() <= 64 && text.chars().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("take letters, digits, `-` and `_`, at most 64".to_owned()),
    }
}

fn deadline(text: &str) -> Result<(String, Duration), String> {
    match text.split_once('=') {
        Some((sink, time)) if !sink.is_empty() => Ok((sink.to_owned(), duration(time)?)),
        _ => Err("write it as SINK=TIME, such as audio=20ms".to_owned()),
    }
}

fn late_answer(text: &str) -> Result<(String, LateAnswer), String> {
    let parts = text.split_once('=').filter(|(sink, _)| !sink.is_empty());
    let read = parts.and_then(|(sink, answer)| {
        let mode = answer.strip_prefix("mode:").filter(|mode| !mode.is_empty());
        let policy = match mode {
            Some(_) => LatePolicy::Mode,
            None => LatePolicy::from_name(answer).filter(|found| *found != LatePolicy::Mode)?,
        };
        let mode = mode.map(str::to_owned);
        Some((sink.to_owned(), LateAnswer { policy, mode }))
    });
    read.ok_or_else(|| "write it as SINK=wait, SINK=drop, SINK=hold or SINK=mode:NAME".to_owned())
}

/// More than a century: deadlines are sums of such times, and must not overflow.
const MAX_HOURS: u64 = 1_000_000;

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let found = units
        .iter()
        .find_map(|(unit, s)| Some((text.strip_suffix(unit)?, s)));
    let seconds = found.and_then(|(number, s)| Some(number.trim().parse::<f64>().ok()? * s));
    let longest = Duration::from_secs(MAX_HOURS * 3600);
    if seconds.is_some_and(|s| s > longest.as_secs_f64()) {
        return Err(format!("is longer than {MAX_HOURS}h, the longest time"));
    }
    seconds
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| "write a number and a unit: 500ms, 5s, 2m or 1h".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (text, expect) in [
            ("500ms", Some(500)),
            ("5s", Some(5000)),
            ("0.5s", Some(500)),
            ("2m", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("5", None),
            ("s", None),
            ("-1s", None),
            ("infs", None),
            ("nans", None),
            ("5d", None),
            ("1000000h", Some(3_600_000_000_000)),
            ("1000001h", None),
            ("4e15h", None),
        ] {
            assert_eq!(duration(text).ok().map(|d| d.as_millis()), expect, "{text}");
        }
    }

    #[test]
    fn a_time_that_is_too_long_is_told_the_longest() {
        let error = duration("4e15h").expect_err("too long");
        assert!(error.contains("longer than 1000000h"), "{error}");
    }

    #[test]
    fn policies_have_a_sink_and_a_name() {
        let answer = |policy, mode: Option<&str>| {
            let mode = mode.map(str::to_owned);
            Ok(("a".to_owned(), LateAnswer { policy, mode }))
        };
        assert_eq!(late_answer("a=drop"), answer(LatePolicy::Drop, None));
        let track = answer(LatePolicy::Mode, Some("track"));
        assert_eq!(late_answer("a=mode:track"), track);
        for text in ["drop", "=drop", "a=", "a=skip", "a=mode", "a=mode:"] {
            assert!(late_answer(text).is_err(), "{text}");
        }
    }

    #[cfg(hosts)]
    #[test]
    fn hosts_have_a_name_and_an_address() {
        let address = SocketAddr::from(([10, 0, 0, 2], 7000));
        assert_eq!(
            host("right=10.0.0.2:7000"),
            Ok(("right".to_owned(), address))
        );
        for text in [
            "right",
            "=10.0.0.2:7000",
            "right=10.0.0.2",
            "right=name:7000",
        ] {
            assert!(host(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bindings_have_a_name_and_a_file() {
        assert_eq!(binding("iq=a=b.cf32"), Ok(("iq".into(), "a=b.cf32".into())));
        for text in ["iq", "=x", "iq=", ""] {
            assert!(binding(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
