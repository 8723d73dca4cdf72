//! What is counted and measured of a whole run, and the report that is made of it.

use std::time::Duration;

use zbmd_ir::{Plan, PlanId, State};

use super::active_epoch::ActiveEpoch;
use crate::observe::report::{PlanReport, Report, SinkReport, SourceReport};
use crate::program::LoadedProgram;
use crate::transport::session_memory::SessionMemory;

/// What one plan's epochs left.
struct PlanSegment {
    mode: usize,
    plan: PlanId,
    busy_ns: u64,
    report: PlanReport,
}

/// Which plan of which mode.
#[derive(Clone, Copy)]
pub(crate) struct PlanName<'a> {
    pub mode: usize,
    /// Empty where there are no modes.
    pub mode_name: &'a str,
    pub plan: PlanId,
}

/// What is counted while a run goes on.
#[derive(Default)]
pub(crate) struct RunTally {
    segments: Vec<PlanSegment>,
    /// When the first epoch began and the last one ended.
    span_ns: Option<(u64, u64)>,
    /// Epochs that began, and those of them that were fenced.
    pub epochs: u64,
    pub fenced: u64,
    /// For each sink, tokens that nobody wanted.
    discarded: Vec<u64>,
    /// Events that the listener did not get.
    pub events_dropped: u64,
    /// The longest time that the supervising thread made no progress, if that was reported.
    pub late: Option<Duration>,
}

/// Where a run began and where it is.
pub(crate) struct RunSpan<'a> {
    pub before: &'a State,
    pub after: &'a State,
    /// Zero tokens that were added to each source.
    pub padded: &'a [u64],
    /// Tokens of each source's queue that may count as taken.
    pub counted: Vec<u64>,
    /// Tokens that each sink has given out since the session began.
    pub emitted: Vec<u64>,
}

impl RunTally {
    pub(crate) fn new(sinks: usize) -> Self {
        Self {
            discarded: vec![0; sinks],
            ..Self::default()
        }
    }

    /// The workers of an epoch begin.
    pub(crate) fn begin_epoch(&mut self, now_ns: u64) {
        self.epochs += 1;
        self.span_ns.get_or_insert((now_ns, now_ns));
    }

    /// Nothing more of an epoch counts.
    pub(crate) fn end_epoch(&mut self, now_ns: u64) {
        if let Some((_, last_ns)) = &mut self.span_ns {
            *last_ns = now_ns;
        }
    }

    fn elapsed_ns(&self) -> u64 {
        self.span_ns
            .map_or(0, |(first_ns, last_ns)| last_ns - first_ns)
    }

    /// Adds a finished epoch to what is reported of its plan.
    pub(crate) fn add_epoch(
        &mut self,
        loaded: &LoadedProgram,
        plan: PlanName<'_>,
        active: &ActiveEpoch,
        blocks: u64,
    ) {
        let ends = || active.ends.iter().flatten();
        for (sink, tokens) in ends().flat_map(|end| &end.discarded) {
            self.discarded[*sink as usize] += tokens;
        }
        if blocks == 0 {
            return;
        }

        let first_ns = ends().map(|end| end.first_ns).min().unwrap_or(0);
        let last_ns = ends().map(|end| end.last_ns).max().unwrap_or(0);
        let shared_arena = active.memory.arena();
        let shared_bytes = shared_arena.bytes() as u64;
        let shared_locked = if shared_arena.is_locked() {
            shared_bytes
        } else {
            0
        };

        let segment = self.segment(loaded, plan);
        segment.busy_ns += last_ns.saturating_sub(first_ns);
        let report = &mut segment.report;
        report.blocks += blocks;
        report.period_measured_ns = segment.busy_ns as f64 / report.blocks as f64;
        report.arena_bytes = shared_bytes + ends().map(|end| end.arena_bytes).sum::<u64>();
        report.locked_bytes = shared_locked + ends().map(|end| end.locked_bytes).sum::<u64>();
        report.workers = ends().map(|end| end.report.clone()).collect();
        report.latencies = ends().flat_map(|end| end.latencies.clone()).collect();
    }

    /// What is reported of a plan; new if it has not run before.
    fn segment(&mut self, loaded: &LoadedProgram, of: PlanName<'_>) -> &mut PlanSegment {
        let known_index = self
            .segments
            .iter()
            .position(|segment| (segment.mode, segment.plan) == (of.mode, of.plan));
        let index = known_index.unwrap_or_else(|| {
            let mut report = plan_report(&loaded.program.plans[of.plan]);
            if !of.mode_name.is_empty() {
                report.name = format!("{}: {}", of.mode_name, report.name);
            }
            self.segments.push(PlanSegment {
                mode: of.mode,
                plan: of.plan,
                busy_ns: 0,
                report,
            });
            self.segments.len() - 1
        });
        &mut self.segments[index]
    }

    /// The report of the run up to now.
    pub(crate) fn report(
        &mut self,
        loaded: &LoadedProgram,
        session_memory: &SessionMemory,
        span: &RunSpan<'_>,
    ) -> Report {
        let elapsed_ns = self.elapsed_ns();
        let mut report = Report {
            model: loaded.program.graph.name.clone(),
            iterations: span.after.iterations - span.before.iterations,
            iterations_total: span.after.iterations,
            elapsed_ns,
            epochs: self.epochs,
            recoveries: self.fenced,
            events_dropped: self.events_dropped,
            sources: source_reports(loaded, session_memory, span, elapsed_ns),
            sinks: self.sink_reports(loaded, span),
            plans: Vec::new(),
            profile: Vec::new(),
            trace: None,
            notes: Vec::new(),
        };
        report.notes = self.notes(loaded, &report);
        let plan_segments = std::mem::take(&mut self.segments);
        report.plans = plan_segments
            .into_iter()
            .map(|segment| segment.report)
            .collect();
        report
    }

    fn sink_reports(&self, loaded: &LoadedProgram, span: &RunSpan<'_>) -> Vec<SinkReport> {
        let elapsed_ns = self.elapsed_ns();
        let graph_sinks = loaded.program.graph.sinks();
        let token_counts = span.emitted.iter().zip(&self.discarded);
        graph_sinks
            .zip(token_counts)
            .map(|((_, actor), (&tokens, &discarded))| {
                let mut report = SinkReport {
                    name: actor.name.clone(),
                    tokens: 0,
                    discarded,
                    delivered: None,
                    tokens_per_s: 0.0,
                };
                report.set_tokens(tokens, elapsed_ns);
                report
            })
            .collect()
    }

    fn notes(&self, loaded: &LoadedProgram, report: &Report) -> Vec<String> {
        let mut notes = Vec::new();
        for segment in &self.segments {
            let plan = &segment.report;
            if plan.locked_bytes < plan.arena_bytes {
                notes.push(format!(
                    "{} of {} bytes of plan `{}` are locked in memory; raise `ulimit -l` to lock all",
                    plan.locked_bytes, plan.arena_bytes, plan.name
                ));
            }
            for note in plan.workers.iter().flat_map(|worker| &worker.notes) {
                if !notes.contains(note) {
                    notes.push(note.clone());
                }
            }
        }
        notes.extend(leftover_note(loaded, report));
        if let Some(late) = self.late {
            notes.push(format!(
                "the supervising thread made no progress for {} s or more",
                late.as_secs()
            ));
        }
        if self.events_dropped > 0 {
            notes.push(format!(
                "{} events were not delivered: whoever reads them was too slow",
                self.events_dropped
            ));
        }
        notes
    }
}

/// What is left of the input because no plan runs single iterations.
fn leftover_note(loaded: &LoadedProgram, report: &Report) -> Option<String> {
    if loaded.tail.is_some() {
        return None;
    }
    let source_reports = report.sources.iter();
    let whole_iterations =
        source_reports.map(|source| source.leftover / source.tokens_per_iteration.max(1));
    let whole = whole_iterations.min().filter(|whole| *whole > 0)?;

    let block = loaded.program.plans[loaded.main].block;
    Some(format!(
        "{whole} whole iterations of input were not run: a block takes {block} and the bundle has no plan `tail`"
    ))
}

fn plan_report(plan: &Plan) -> PlanReport {
    PlanReport {
        name: plan.name.clone(),
        block: plan.block,
        stages: plan.stages,
        period_planned_ns: plan.period_ns,
        latency_planned_ns: plan.latency_ns,
        bound_by: plan.bound_by.clone(),
        ..PlanReport::default()
    }
}

fn source_reports(
    loaded: &LoadedProgram,
    session_memory: &SessionMemory,
    span: &RunSpan<'_>,
    elapsed_ns: u64,
) -> Vec<SourceReport> {
    let graph_sources = loaded.program.graph.sources();
    let session_queues = session_memory.sources.iter();
    let token_counts = span.padded.iter().zip(&span.counted);
    graph_sources
        .zip(session_queues.zip(token_counts))
        .map(|((id, actor), (queue, (&padded, &counted)))| {
            let (written, _) = queue.written();
            let taken_tokens = queue.taken().min(written).min(counted);
            // Of a model of several that ended with an incomplete iteration.
            let added = match counted {
                u64::MAX => 0,
                _ => counted.saturating_sub(written),
            };
            let tokens_per_s = if elapsed_ns > 0 {
                taken_tokens as f64 * 1e9 / elapsed_ns as f64
            } else {
                0.0
            };
            SourceReport {
                name: actor.name.clone(),
                tokens: taken_tokens,
                leftover: written - taken_tokens,
                padded: padded + added,
                tokens_per_iteration: loaded.tokens_per_iteration(id),
                tokens_per_s,
            }
        })
        .collect()
}
