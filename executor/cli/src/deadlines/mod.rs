//! Deadlines: how long after its release the output of a block has to be there, and how often it is not.
//!
//! A block's release is when the last of its tokens was handed over by the clock (`paced:`), never when a thread happened
//! to wake. Its response ends when the last of its tokens has reached the thread that moves the sink's tokens. Blocks are
//! those of the plan for the whole machine, after losses too; each mode has its own.

mod blocks;
mod meter;

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use zbmd_executor::live::{DeadlineProgress, TimesProgress};
use zbmd_executor::{Engine, ModeHandle, Stopper};
use zbmd_ir::response::{LatePolicy, deadline_ns, late_mode, late_policy};
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{Actor, ActorId, Graph, PlanId, Program, Role};
use zbmd_live::{ReleaseClock, TimeSummary};

use self::blocks::{BlockLegs, ModeTokens};
use self::meter::{ResponseMeter, WantedMode};
use super::CliError;
use super::args::Args;
use super::live::LiveStreams;
use super::supervision::EventLines;
use crate::io::block_gate::{BlockGate, BlockJudge, BlockVerdict};
use crate::io::pump::TokenListener;

/// The responses of a run's sinks that have deadlines.
#[derive(Clone, Default)]
pub(super) struct Deadlines {
    watched: Vec<Watched>,
}

/// A sink with a deadline.
#[derive(Clone)]
struct Watched {
    sink: String,
    policy: LatePolicy,
    token_bytes: u64,
    meter: Arc<Mutex<ResponseMeter>>,
    /// Blocks of the whole run, if that is known.
    block_count: Option<u64>,
    /// Blocks have as many tokens in the whole run: places of late ones can be filled before their tokens come.
    is_regular: bool,
}

/// What becomes of late blocks of a sink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LateAnswer {
    pub(super) policy: LatePolicy,
    /// The mode that is asked for, where the policy asks for one.
    pub(super) mode: Option<String>,
}

/// A sink's limit, and what becomes of its late blocks.
struct Terms {
    limit_ns: u64,
    answer: LateAnswer,
    /// Iterations after which the run ends.
    iterations: Option<u64>,
}

/// A source that is released by the clock, by its place among the sources.
struct ReleasedSource {
    place: usize,
    clock: Arc<ReleaseClock>,
}

impl Watched {
    fn new(engine: &Engine, sink: ActorId, sources: Vec<ReleasedSource>, terms: Terms) -> Self {
        let program = engine.program();
        let actor = &program.graph.actors[sink];
        let modes = engine.verified_modes();
        let mut sinks = program.graph.sinks();
        let place = sinks.position(|(id, _)| id == sink).unwrap_or(0);
        let programs = modes.programs().iter();
        let tokens = programs.map(|program| mode_tokens(program, place, &sources));
        let blocks = BlockLegs::new(tokens.collect(), 0, 0);
        let clocks = sources.into_iter().map(|source| source.clock).collect();

        let mut meter = ResponseMeter::new(actor.name.clone(), clocks, blocks);
        meter.limit_ns = terms.limit_ns;
        meter.policy = terms.answer.policy;
        let wanted_mode = |name| WantedMode { name, handle: None };
        meter.wanted_mode = terms.answer.mode.map(wanted_mode);
        let block = program.plans[PlanId(0)].block;
        Self {
            sink: actor.name.clone(),
            policy: terms.answer.policy,
            token_bytes: actor.inputs[0].token.bytes(),
            meter: Arc::new(Mutex::new(meter)),
            block_count: terms.iterations.map(|iterations| iterations / block),
            is_regular: modes.names().len() < 2,
        }
    }

    fn meter(&self) -> MutexGuard<'_, ResponseMeter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of a deadline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DeadlineReport {
    pub(super) sink: String,
    pub(super) limit_ns: u64,
    /// What the sink is given in the place of a late block.
    pub(super) on_miss: LatePolicy,
    /// Blocks whose response was longer, those that never came out included.
    pub(super) missed: u64,
    /// Blocks that were released, whose limit had passed while others still were, and that never came out.
    pub(super) unanswered: u64,
    /// Late blocks that the sink was not given.
    pub(super) dropped: u64,
    /// Late blocks in whose place the sink was given the last one in time.
    pub(super) held: u64,
    /// From release to output, a block.
    pub(super) response: TimeSummary,
}

impl Deadlines {
    /// The deadlines of the command line, and the model's own of other sinks whose sources are released by the clock: from
    /// files, responses have no beginning.
    pub(super) fn of(args: &Args, engine: &Engine, live: &LiveStreams) -> Result<Self, CliError> {
        check_names(args, engine)?;
        let graph = &engine.program().graph;
        let mut watched: Vec<Watched> = Vec::new();

        for (sink_id, actor) in graph.sinks() {
            let given_limit = args.deadlines.iter().find(|(sink, _)| *sink == actor.name);
            let given_policy = args.on_miss.iter().find(|(sink, _)| *sink == actor.name);
            let model_answer = model_answer(args, engine, sink_id)?;
            let releases = releases_of(sink_id, engine, live);

            // A response has no beginning where nothing says when tokens were due.
            if let (Some(_), true) = (given_limit, releases.is_empty()) {
                return Err(unreleased("--deadline", actor));
            }
            let limit_ns = match given_limit {
                Some((_, limit)) => Some(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)),
                None => deadline_ns(graph, sink_id),
            };
            let Some(limit_ns) = limit_ns.filter(|_| !releases.is_empty()) else {
                match given_policy {
                    None => continue,
                    Some(_) if limit_ns.is_some() => return Err(unreleased("--on-miss", actor)),
                    Some(_) => return Err(no_deadline(actor)),
                }
            };

            let answer = given_policy.map_or(model_answer, |(_, answer)| answer.clone());
            check_mode(engine, &actor.name, &answer)?;
            let terms = Terms {
                limit_ns,
                answer,
                iterations: args.iterations,
            };
            watched.push(Watched::new(engine, sink_id, releases, terms));
        }
        Ok(Self { watched })
    }

    /// The run has begun: blocks are those of its modes, and late ones may ask for another.
    pub(super) fn follow(&self, modes: &ModeHandle) {
        if modes.names().len() < 2 {
            return;
        }
        for watched in &self.watched {
            let mut meter = watched.meter();
            let starts = modes.follow();
            if let Ok(first) = starts.recv() {
                meter.blocks.begin(first.mode, first.iteration);
            }
            meter.starts = Some(starts);
            if let Some(wanted) = &mut meter.wanted_mode {
                wanted.handle = Some(modes.clone());
            }
        }
    }

    /// Writes events to their file. Whoever writes keeps `running` until all is written.
    pub(super) fn write_events(&self, events: Option<&EventLines>, running: &Sender<()>) {
        let Some(events) = events else { return };
        for watched in &self.watched {
            watched.meter().events = Some(events.stream_listener(running.clone()));
        }
    }

    /// What is to be told how many tokens of a sink were taken, where late blocks are passed on.
    pub(super) fn listener(&self, sink: &str) -> Option<TokenListener> {
        let watched = self.watched(sink)?.clone();
        matches!(watched.policy, LatePolicy::Wait | LatePolicy::Mode).then(|| {
            let listener: TokenListener = Box::new(move |tokens| {
                watched.meter().take(tokens, zbmd_live::now_ns());
            });
            listener
        })
    }

    /// What a sink's blocks pass through, where late ones are not passed on. With `fills_in_time` the place of a late
    /// block is filled as soon as its deadline has passed.
    pub(super) fn gate(
        &self,
        sink: &str,
        fills_in_time: bool,
        stopper: &Stopper,
    ) -> Option<BlockGate> {
        let watched = self.watched(sink)?.clone();
        if matches!(watched.policy, LatePolicy::Wait | LatePolicy::Mode) {
            return None;
        }
        let policy = watched.policy;
        let judge = SinkJudge {
            fills_in_time: fills_in_time && policy == LatePolicy::Hold && watched.is_regular,
            watched,
            stopper: stopper.clone(),
        };
        Some(BlockGate::new(Box::new(judge), policy))
    }

    fn watched(&self, sink: &str) -> Option<&Watched> {
        self.watched.iter().find(|watched| watched.sink == sink)
    }

    /// The sinks that are not given blocks that are late: what they hold is not all that the run made.
    pub(super) fn dropping_sinks(&self) -> Vec<&str> {
        let is_dropping = |watched: &&Watched| watched.policy == LatePolicy::Drop;
        let dropping = self.watched.iter().filter(is_dropping);
        dropping.map(|watched| watched.sink.as_str()).collect()
    }

    /// How they are kept, so far.
    pub(super) fn progress(&self) -> Vec<DeadlineProgress> {
        let progress = self.watched.iter().map(|watched| {
            let meter = watched.meter();
            DeadlineProgress {
                sink: watched.sink.clone(),
                limit_ns: meter.limit_ns,
                on_miss: watched.policy.name().to_owned(),
                missed: meter.missed,
                response: times_progress(&meter.responses.summary()),
            }
        });
        progress.collect()
    }

    /// What came of them; nothing more is written to the file of events.
    pub(super) fn finish(&self) -> Vec<DeadlineReport> {
        let reports = self.watched.iter().map(|watched| {
            let mut meter = watched.meter();
            meter.events = None;
            meter.report()
        });
        reports.collect()
    }
}

/// Times as those who watch a run see them.
pub(super) fn times_progress(times: &TimeSummary) -> TimesProgress {
    TimesProgress {
        count: times.count,
        p50_ns: times.p50_ns,
        p99_ns: times.p99_ns,
        max_ns: times.max_ns,
    }
}

/// Decides about the blocks of one sink.
struct SinkJudge {
    watched: Watched,
    fills_in_time: bool,
    stopper: Stopper,
}

impl SinkJudge {
    /// Whether the place of the next block may be filled before its tokens come: no more come from a run that ends.
    fn may_fill(&self, decided_blocks: u64) -> bool {
        let is_last = self.watched.block_count == Some(decided_blocks);
        self.fills_in_time && !is_last && !self.stopper.is_stopping()
    }
}

impl BlockJudge for SinkJudge {
    fn block_bytes(&mut self) -> usize {
        let tokens = self.watched.meter().next_block_tokens();
        (tokens * self.watched.token_bytes) as usize
    }

    fn complete_block(&mut self, now_ns: u64) -> BlockVerdict {
        self.watched.meter().complete_block(now_ns)
    }

    fn fill_place(&mut self, now_ns: u64) -> bool {
        let mut meter = self.watched.meter();
        self.may_fill(meter.decided_blocks) && meter.fill_place(now_ns)
    }

    fn wait_ns(&self, now_ns: u64) -> Option<u64> {
        /// How often a block that is due and was not released yet is looked for.
        const LOOK_NS: u64 = 2_000_000;
        let meter = self.watched.meter();
        if !self.may_fill(meter.decided_blocks) {
            return None;
        }
        // A response as long as the limit is in time.
        let wait_ns = meter
            .next_due_ns()
            .map(|due_ns| (due_ns + 1).saturating_sub(now_ns));
        Some(wait_ns.filter(|wait_ns| *wait_ns > 0).unwrap_or(LOOK_NS))
    }
}

/// Refuses sinks that do not exist, and two answers to one question.
fn check_names(args: &Args, engine: &Engine) -> Result<(), CliError> {
    let limits = args.deadlines.iter().map(|(sink, _)| ("--deadline", sink));
    let policies = args.on_miss.iter().map(|(sink, _)| ("--on-miss", sink));
    let given: Vec<(&str, &String)> = limits.chain(policies).collect();
    let graph = &engine.program().graph;

    for (index, (option, sink)) in given.iter().enumerate() {
        if !graph.sinks().any(|(_, actor)| actor.name == **sink) {
            let known = graph.sinks().map(|(_, actor)| actor.name.as_str());
            let known: Vec<&str> = known.collect();
            let known = known.join(", ");
            return Err(CliError::Usage(format!(
                "{option} {sink}: there is no sink of that name; there are: {known}"
            )));
        }
        if given[..index].contains(&(*option, *sink)) {
            return Err(CliError::Usage(format!(
                "{option} {sink}: is given twice; give it once"
            )));
        }
    }
    Ok(())
}

/// What the model says of late blocks of a sink.
fn model_answer(args: &Args, engine: &Engine, sink: ActorId) -> Result<LateAnswer, CliError> {
    let graph = &engine.program().graph;
    let policy = late_policy(graph, sink).map_err(|found| CliError::Refused {
        path: args.bundle.clone().unwrap_or_default(),
        text: format!(
            "sink `{}` has `on_miss: {found}`; allowed: wait, drop, hold, mode: compile it with a zbmdc of this version",
            graph.actors[sink].name
        ),
    })?;
    let mode = late_mode(graph, sink).filter(|_| policy == LatePolicy::Mode);
    Ok(LateAnswer {
        policy,
        mode: mode.map(str::to_owned),
    })
}

/// Refuses an answer with a mode that the run does not have, or may not go to from each other one.
fn check_mode(engine: &Engine, sink: &str, answer: &LateAnswer) -> Result<(), CliError> {
    let Some(wanted) = &answer.mode else {
        return Ok(());
    };
    let modes = engine.verified_modes();
    let names = modes.names();
    let Some(target) = names.iter().position(|name| name == wanted) else {
        let known = names.join(", ");
        return Err(CliError::Usage(format!(
            "late blocks of `{sink}` ask for mode `{wanted}`; the bundle has {known}: say `--on-miss {sink}=wait`, or a mode that is there"
        )));
    };
    let is_allowed = |from: usize| modes.changes().contains(&(from as u32, target as u32));
    let barred = (0..names.len()).find(|from| *from != target && !is_allowed(*from));
    match barred {
        None => Ok(()),
        Some(from) => Err(CliError::Usage(format!(
            "late blocks of `{sink}` ask for mode `{wanted}`, to which no change goes from mode `{}`: say `--on-miss {sink}=wait`, or add the change to the model",
            names[from]
        ))),
    }
}

fn unreleased(option: &str, actor: &Actor) -> CliError {
    CliError::Usage(format!(
        "{option} {}: no source of it is released by the clock: play one with `--input NAME=paced:FILE?rate=...`",
        actor.name
    ))
}

fn no_deadline(actor: &Actor) -> CliError {
    CliError::Usage(format!(
        "--on-miss {name}: the sink has no deadline, so that no block is late: add `--deadline {name}=10ms`",
        name = actor.name
    ))
}

/// The sources that are released by the clock and lead to a sink, in some mode at least.
fn releases_of(sink: ActorId, engine: &Engine, live: &LiveStreams) -> Vec<ReleasedSource> {
    let graph = &engine.program().graph;
    let name = &graph.actors[sink].name;
    let mut releases = Vec::new();
    for (place, (_, actor)) in graph.sources().enumerate() {
        let mut graphs = engine.verified_modes().graphs();
        if let Some(clock) = live.release_clock(&actor.name)
            && graphs.any(|graph| leads_to(graph, &actor.name, name))
        {
            releases.push(ReleasedSource { place, clock });
        }
    }
    releases
}

/// Whether a sink depends on a source.
fn leads_to(graph: &Graph, source: &str, sink: &str) -> bool {
    match (graph.find(source), graph.find(sink)) {
        (Some(source), Some(sink)) => graph.upstream_of(sink).contains(&source),
        _ => false,
    }
}

/// The tokens of a mode, for the sink at this place among the sinks.
fn mode_tokens(program: &Program, sink: usize, sources: &[ReleasedSource]) -> ModeTokens {
    let graph = &program.graph;
    let repetition = repetition(graph).expect("a verified graph is consistent");
    let per_iteration = |id: ActorId| {
        let actor = &graph.actors[id];
        let rate = match actor.role {
            Role::Sink => actor.inputs[0].rate,
            _ => actor.outputs[0].rate,
        };
        repetition[id] * rate
    };
    let mut sinks = graph.sinks().map(|(id, _)| per_iteration(id));
    let all_sources: Vec<u64> = graph.sources().map(|(id, _)| per_iteration(id)).collect();
    ModeTokens {
        block: program.plans[PlanId(0)].block,
        sink: sinks.nth(sink).unwrap_or(1),
        sources: sources
            .iter()
            .map(|source| all_sources[source.place])
            .collect(),
    }
}
