//! Why a program cannot be run, and why a run ended early. Bad input and faults only: our own bugs panic.

use zbmd_ir::{ChannelId, ValueError};
use zbmd_op::OpError;

use crate::transport::arena::OutOfMemory;
use crate::transport::change_queue::CAPACITY;
use crate::unsupported::Unsupported;

/// Why a verified program cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// This executor has no code for a part of it.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A kernel cannot be made.
    #[error("actor `{actor}`: {source}")]
    Kernel {
        /// The actor.
        actor: String,
        /// Why.
        source: OpError,
    },
    /// A kernel of this program needs more scratch memory than the one that the plan was made for.
    #[error(
        "plan `{plan}`: the kernel of `{actor}` needs {needed} bytes of scratch memory, the plan has {planned}: compile again"
    )]
    Scratch {
        /// The plan.
        plan: String,
        /// The actor.
        actor: String,
        /// Bytes that the kernel asks for.
        needed: u64,
        /// Bytes in the calendar.
        planned: u64,
    },
    /// The council does not let the run conduct.
    #[error("the council: {why}")]
    Council {
        /// Why, and what to do about it.
        why: String,
    },
    /// A state does not belong to this graph.
    #[error(
        "the state does not fit the model: channel {channel} has {found} bytes of tokens, the model needs {needed}"
    )]
    State {
        /// The channel.
        channel: ChannelId,
        /// Bytes in the state.
        found: u64,
        /// Bytes in the model.
        needed: u64,
    },
    /// A state has values of live parameters that the ops do not take.
    #[error("the state does not fit the model: {0}")]
    Parameters(SetError),
    /// The bundle has no plan for the devices that are left.
    #[error(
        "the bundle has no plan without {lost}: compile with `--contingencies single`, `hosts` or `pairs`"
    )]
    NoPlan {
        /// The lost devices.
        lost: String,
    },
    /// The machine has too little memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A plan takes more memory in all than the machine can give, which is known before any is taken.
    #[error(
        "plan `{plan}` takes {needed} bytes of memory ({parts}), {available} bytes are available: compile with shorter blocks, or free memory"
    )]
    Demand {
        /// The plan.
        plan: String,
        /// Bytes in all.
        needed: u128,
        /// What they are for.
        parts: String,
        /// What the machine can give.
        available: u64,
    },
    /// A GPU that the plan uses is not there, or cannot do what the plan asks of it.
    #[error("device {device}: {why}")]
    Device {
        /// The device.
        device: String,
        /// What is missing, and what to do about it.
        why: String,
    },
    /// Weights that a device is to fetch while it runs cannot be read.
    #[error("no weights to fetch: {why}")]
    Weights {
        /// Why not.
        why: String,
    },
    /// The file for the trace cannot be made.
    #[error("{}: {source}", path.display())]
    Trace {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The system does not give what a real-time run needs.
    #[cfg(target_os = "linux")]
    #[error("no real-time run: {0}")]
    Realtime(#[from] crate::realtime::RealtimeError),
    /// Changes of mode that were given ahead cannot be made.
    #[error("change of mode {index} of those that are known ahead: {why}")]
    ScheduledMode {
        /// Which one, from 0.
        index: usize,
        /// Why not.
        why: String,
    },
    /// There is no such mode to begin in.
    #[error("the run is to begin in mode {mode}, counted from 0; the model has {count}")]
    NoMode {
        /// Its place.
        mode: u32,
        /// How many there are.
        count: usize,
    },
    /// The program cannot be called.
    #[error("the program cannot be called: {why}")]
    Call {
        /// Why not, and what to do about it.
        why: String,
    },
    /// A host cannot take part in the run.
    #[error("host {host}: {why}")]
    Host {
        /// The host; `here` for the one that the run is started on.
        host: String,
        /// What is wrong, and what to do about it.
        why: String,
    },
    /// The system gives no more threads.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Why a call gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Not one for each source, or sink.
    #[error("the call has {given} {side}, the program has {}: {}", names.len(), names.join(", "))]
    Streams {
        /// `inputs` or `outputs`.
        side: &'static str,
        /// How many were given.
        given: usize,
        /// The sources, or sinks.
        names: Vec<String>,
    },
    /// Not the tokens of one block.
    #[error("stream `{stream}` is given {given} bytes, a call takes {needed}")]
    Bytes {
        /// The source or sink.
        stream: String,
        /// Bytes given.
        given: usize,
        /// Bytes of one block.
        needed: usize,
    },
    /// A kernel failed.
    #[error(transparent)]
    Failed(RunError),
    /// What an earlier call left behind, which failed, is no state of the program.
    #[error("an earlier call failed: make a new caller")]
    Ended,
}

/// Why a run was given up. The process and other runs go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A kernel reported a fault.
    #[error("actor `{actor}` on {device}, block {block}: {fault}")]
    Fault {
        /// The actor.
        actor: String,
        /// The device.
        device: String,
        /// The block it worked on, at most: later periods of other blocks were not begun.
        block: u64,
        /// What it said.
        fault: String,
    },
    /// A GPU or its driver failed.
    #[error("device {device}, block {block}: {fault}")]
    Device {
        /// The device.
        device: String,
        /// The block that was submitted last, at most.
        block: u64,
        /// What the driver said.
        fault: String,
    },
    /// What came over a ring is not what was sent.
    #[error("{device}, block {block}: {message}: memory or a link is faulty")]
    Corrupt {
        /// The device that received it.
        device: String,
        /// The block it worked on.
        block: u64,
        /// Which transfer, and both checksums.
        message: String,
    },
    /// The system took the right to real-time priorities away in the middle of a run.
    #[error("{thread} is refused its real-time priority: {why}")]
    Realtime {
        /// The thread.
        thread: String,
        /// What the system says.
        why: String,
    },
    /// A kernel panicked.
    #[error(
        "actor `{actor}` on {device} panicked in block {block}: {message}; this is a bug in its kernel"
    )]
    Panic {
        /// The actor, or the slot if it was no kernel.
        actor: String,
        /// The device.
        device: String,
        /// The block it worked on.
        block: u64,
        /// The panic's message.
        message: String,
    },
    /// A worker's process is gone, and nobody supervises it.
    #[error("the worker of {device} is gone: {why}; a supervised run would go on")]
    Lost {
        /// The device.
        device: String,
        /// What the system says of its end.
        why: String,
    },
    /// The supervisor gave the run up: in good order, with everything given out that was committed.
    #[error("{verdict}; stopped in good order after {iterations} iterations")]
    GaveUp {
        /// Its last word.
        verdict: String,
        /// Iterations committed since the beginning.
        iterations: u64,
        /// The report and the state up to there, once the run has ended.
        left: Option<Box<crate::observe::report::Outcome>>,
    },
    /// A plan could not be given its memory or threads after the run had begun.
    #[error(transparent)]
    Start(#[from] EngineError),
    /// The supervising thread itself makes no progress.
    #[error(
        "the supervising thread has made no progress for {seconds} s while {activity}: the run is given up; this is a bug, or a system that does not answer"
    )]
    SupervisorStuck {
        /// What it was doing.
        activity: String,
        /// For how long.
        seconds: u64,
    },
    /// The run was given up because its session was dropped.
    #[error("the run was given up: its session was dropped")]
    Abandoned,
}

/// Why parameters were not set; then none of them was.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum SetError {
    /// No such parameter.
    #[error("the model has no live parameter `{name}`: {}", known_words(known))]
    Unknown { name: String, known: Vec<String> },
    /// One parameter, two values.
    #[error("`{name}` is set twice in one change")]
    Twice { name: String },
    /// Its length or range.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// An op does not take the value.
    #[error("actor `{actor}` refuses the values: {why}")]
    Op { actor: String, why: OpError },
    /// The kernel with the new value would need more memory than the plans have for it.
    #[error(
        "actor `{actor}` would need {needed} bytes of scratch memory with these values, the plans have {planned}"
    )]
    Scratch {
        actor: String,
        needed: u64,
        planned: u64,
    },
    /// No such source.
    #[error("there is no source `{name}`: the model has {}", known.join(", "))]
    Source { name: String, known: Vec<String> },
    /// The token was given to the workers before.
    #[error(
        "token {index} of `{source_name}` is at work already: the first that can be named is {next}"
    )]
    TooLate {
        source_name: String,
        index: u64,
        next: u64,
    },
    /// Changes come faster than blocks.
    #[error("{CAPACITY} changes wait for the workers: try again when a block has passed")]
    Full,
    /// Changes come faster than borders.
    #[error(
        "the council keeps {limit} bytes of changes, and has that many of outputs that nobody has taken: try again when more of them are taken"
    )]
    Council { limit: usize },
    /// Too many changes at tokens to come.
    #[error("{limit} changes have not taken effect yet: set those of later tokens later")]
    Pending { limit: usize },
    /// Nothing comes any more.
    #[error("the run has ended")]
    Ended,
}

/// Why a run does not go over to a mode; then it stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum ModeError {
    /// No such mode.
    #[error("there is no mode `{name}`: {}", known_words(known))]
    Unknown { name: String, known: Vec<String> },
    /// The model does not allow it.
    #[error("the model allows no change from mode `{from}` to `{to}`")]
    NotAllowed { from: String, to: String },
    /// One change at a time.
    #[error("a change to mode `{to}` is not done yet: try again when it is")]
    Busy { to: String },
    /// The mode needs devices that are lost.
    #[error("mode `{mode}` has no plan without {lost}")]
    NoPlan { mode: String, lost: String },
    /// Nothing comes any more.
    #[error("the run has ended")]
    Ended,
}

/// Why there is nothing to be seen of a run. It goes on as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant's message names its fields")]
pub enum ProbeError {
    /// No such channel, or one of a state, which has no tokens between firings.
    #[error("the model has no channel `{name}` to look at: {}", known_words(known))]
    Unknown { name: String, known: Vec<String> },
    /// No such device.
    #[error(
        "no calendar of the run is for device `{name}`: {}",
        known_words(known)
    )]
    Device { name: String, known: Vec<String> },
    /// A GPU's memory cannot be read meanwhile.
    #[error(
        "`{name}` is written and read on {device} only: look at a channel that a CPU device writes or receives, such as {}", known.join(", ")
    )]
    OnGpu {
        name: String,
        device: String,
        known: Vec<String>,
    },
    /// Longer than what is copied.
    #[error(
        "a block of `{name}` has {bytes} bytes, at most {limit} are copied: compile with shorter blocks"
    )]
    TooLong {
        name: String,
        bytes: u64,
        limit: u64,
    },
    /// One at a time.
    #[error("somebody looks at `{other}` of this run: try again when that is over")]
    Busy { other: String },
    /// The memory of other hosts cannot be read.
    #[error("the run is over several hosts, into which nobody can look yet")]
    Hosts,
    /// Nothing comes any more.
    #[error("the run has ended")]
    Ended,
}

fn known_words(known: &[String]) -> String {
    match known {
        [] => "it has none".to_owned(),
        known => format!("it has {}", known.join(", ")),
    }
}
