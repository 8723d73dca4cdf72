//! From a prepared graph to plans: placements asked for, the search and its limits, replicas, and contingencies.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::response::deadline_ns;
use zbmd_ir::{ActorId, BlobId, Contingencies, Costs, DeviceId, Graph, Machine, Plan, TiSlice};
use zbmd_scheduler::assign::Objective;
use zbmd_scheduler::search::Progress;
use zbmd_scheduler::{
    Block, Contingent, Control, Estimate, Inputs, ScheduleError, ScheduleOptions,
};

use crate::build::{BuiltGraph, Origins};
use crate::codes::Code;
use crate::collectives;
use crate::contingency::{self, ImpossibleLoss};
use crate::cost_table::CostSources;
use crate::deadlines::{self, MissedDeadline};
use crate::diag::{Diagnostic, suggest};
use crate::in_place;
use crate::options::{CompileOptions, SearchOptions};
use crate::pass_selection::PassSelection;
use crate::refusals::ScheduleRefusal;
use crate::replicate::{self, Replication, ScheduleRequest, ScheduledGraph};
use crate::reports::{Reported, Reports};
use crate::target::Target;
use crate::tiers;

/// What plans are made for.
#[derive(Clone, Copy)]
pub(crate) struct PlanRequest<'a> {
    pub(crate) options: &'a CompileOptions,
    pub(crate) target: &'a Target,
    pub(crate) registry: &'a Registry,
    /// The tensors of the graph's parameters.
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
    pub(crate) passes: &'a PassSelection,
}

/// A graph with all its plans.
pub(crate) struct PlannedGraph {
    /// The model's graph, or one with collectives in parts or with replicas.
    pub(crate) graph: Graph,
    /// What its actors cost.
    pub(crate) costs: Costs,
    pub(crate) plans: Vec<Plan>,
    pub(crate) contingencies: Contingencies,
    pub(crate) impossible_losses: Vec<ImpossibleLoss>,
    pub(crate) estimate: Option<Estimate>,
    pub(crate) replication: Option<Replication>,
    /// Collectives that are in parts.
    pub(crate) divided_collectives: usize,
}

impl PlanRequest<'_> {
    /// Makes the plans for the whole machine and for the losses asked for.
    ///
    /// # Errors
    /// Pins to devices that the machine lacks, or why there is no plan.
    pub(crate) fn make_plans(
        &self,
        model: &BuiltGraph,
        reports: &mut Reports,
    ) -> Result<PlannedGraph, Reported> {
        let pins = resolve_pins(&model.origins, &self.target.machine, reports)?;
        let options = self.scheduler_options(pins);
        let machine = &self.target.machine;
        let planned = self
            .schedule(&model.graph, options.clone())
            .map_err(|error| {
                // Errors are about the model's graph, never about one with replicas.
                let refusal = ScheduleRefusal { model, machine };
                reports.refuse(refusal.draw(&error))
            })?;

        let planned = self.leave_room_for_weights(model, &options, planned);

        let mut sinks = model.graph.sinks();
        if sinks.all(|(id, _)| deadline_ns(&model.graph, id).is_none()) {
            deadlines::warn_of_slow_plans(model, &planned, machine, &mut reports.sink);
            return Ok(planned);
        }
        self.keep_deadlines(model, options, planned)
            .map_err(|missed| reports.refuse(missed.draw(model)))
    }

    /// The plans, or the first with smaller blocks whose buffers leave room on devices with tiers to fetch weights in turn.
    fn leave_room_for_weights(
        &self,
        model: &BuiltGraph,
        options: &ScheduleOptions,
        planned: PlannedGraph,
    ) -> PlannedGraph {
        let machine = &self.target.machine;
        let has_room = |planned: &PlannedGraph| {
            let plans = planned.plans.iter();
            let mut all = plans.map(|plan| tiers::has_room(&planned.graph, machine, plan));
            all.all(|has_room| has_room)
        };
        let first_block = planned.plans.first().map_or(1, |plan| plan.block);
        let is_fixed = matches!(options.block, Block::Fixed(_));
        if has_room(&planned) || is_fixed {
            return planned;
        }

        let halves = |block: &u64| (*block > 1).then_some(block / 2);
        for block in std::iter::successors(Some(first_block), halves).skip(1) {
            let attempt = ScheduleOptions {
                block: Block::Fixed(block),
                ..options.clone()
            };
            match self.schedule(&model.graph, attempt) {
                Ok(smaller) if has_room(&smaller) => return smaller,
                _ => {}
            }
        }
        // Once weights are packed, it is known how much is missing.
        planned
    }

    /// The plans, or the first with smaller blocks or a shorter latency that keep the model's deadlines.
    ///
    /// # Errors
    /// The deadline that is missed by most, in the plans that come closest.
    fn keep_deadlines(
        &self,
        model: &BuiltGraph,
        options: ScheduleOptions,
        planned: PlannedGraph,
    ) -> Result<PlannedGraph, Box<MissedDeadline>> {
        let machine = &self.target.machine;
        let Some(mut closest) = MissedDeadline::find(&planned, machine) else {
            return Ok(planned);
        };

        // Blocks that are released one after the other need no pipeline, if a block takes no longer than that.
        let objectives = [options.objective, Objective::LATENCY];
        let first_block = planned.plans.first().map_or(1, |plan| plan.block);
        let halves = |block: &u64| (*block > 1).then_some(block / 2);
        let mut blocks: Vec<u64> = std::iter::successors(Some(first_block), halves).collect();
        if let Block::Fixed(_) = options.block {
            blocks.truncate(1);
        }
        for block in blocks {
            for objective in objectives {
                let attempt = ScheduleOptions {
                    block: Block::Fixed(block),
                    objective,
                    ..options.clone()
                };
                // What the whole search could not do in a block of its choice, it may not be able to do in another.
                let Ok(planned) = self.schedule(&model.graph, attempt) else {
                    continue;
                };
                match MissedDeadline::find(&planned, machine) {
                    None => return Ok(planned),
                    Some(missed) => closest = closest.closer(missed),
                }
            }
        }
        Err(Box::new(closest))
    }

    fn schedule(
        &self,
        graph: &Graph,
        options: ScheduleOptions,
    ) -> Result<PlannedGraph, ScheduleError> {
        let machine = &self.target.machine;
        // Only the search looks at the clock and the interrupt: without them the result depends on the input alone. A
        // limit beyond the clock's range is none.
        let search = &self.options.search;
        let deadline = search
            .time_limit
            .and_then(|limit| Instant::now().checked_add(limit));
        let stop = || is_stopped(search, deadline);
        let mut progress = |state: Progress| report_progress(search, state);
        let mut control = Control {
            stop: &stop,
            progress: &mut progress,
        };

        let costs = CostSources {
            target: self.target,
            registry: self.registry,
            blobs: self.blobs,
        };

        // Graphs with replicas are costed as the model is: the costs are asked for again for each attempt.
        let request = ScheduleRequest {
            machine,
            options: &options,
            costs: &costs,
        };

        let divided = self.divide_collectives(graph, request, &mut control);
        let divided_collectives = divided.as_ref().map_or(0, |(_, count)| *count);
        let graph = divided.as_ref().map_or(graph, |(divided, _)| divided);

        let replicated = replicate::schedule(graph, request, self.options.replicate, &mut control)?;

        // The block and the costs of the chosen graph hold for the losses too: it may have replicas.
        let ScheduledGraph {
            graph,
            costs,
            options,
            scheduled,
            ..
        } = replicated.best;
        let inputs = Inputs {
            graph: &graph,
            machine,
            costs: &costs,
            options: &options,
        };

        let asked_losses = self.options.contingencies;
        let contingent = contingency::plan_losses(inputs, scheduled.plans, asked_losses)?;

        let Contingent {
            plans,
            contingencies,
            likeness,
            impossible,
        } = contingent;
        let impossible_losses =
            contingency::describe_losses(&graph, machine, &likeness, &impossible);
        Ok(PlannedGraph {
            graph,
            costs,
            plans,
            contingencies,
            impossible_losses,
            estimate: scheduled.estimate,
            replication: replicated.replication,
            divided_collectives,
        })
    }

    /// The graph with collectives in parts where that pays, and how many.
    fn divide_collectives(
        &self,
        graph: &Graph,
        request: ScheduleRequest<'_>,
        control: &mut Control<'_>,
    ) -> Option<(Graph, usize)> {
        if !self.passes.runs(collectives::NAME) {
            return None;
        }
        let marks_in_place = self.passes.runs(in_place::NAME);
        collectives::divide_collectives(graph, request, marks_in_place, control)
    }

    fn scheduler_options(&self, pins: BTreeMap<ActorId, DeviceId>) -> ScheduleOptions {
        let asked = self.options;
        let defaults = ScheduleOptions::default();
        ScheduleOptions {
            block: asked.block.map_or(Block::Auto, Block::Fixed),
            buffers: asked.buffers.unwrap_or(defaults.buffers),
            level: asked.search.level,
            objective: asked.search.objective.unwrap_or(defaults.objective),
            max_latency_ns: asked.max_latency_ns,
            max_memory_bytes: asked.max_memory_bytes,
            pins,
            ..defaults
        }
    }
}

/// Whether the search is to take the best plan found so far.
fn is_stopped(search: &SearchOptions, deadline: Option<Instant>) -> bool {
    let is_late = deadline.is_some_and(|end| Instant::now() >= end);
    let is_interrupted = search
        .stop
        .as_ref()
        .is_some_and(|flag| flag.load(Ordering::Relaxed));
    is_late || is_interrupted
}

fn report_progress(search: &SearchOptions, state: Progress) {
    if let Some(report) = search.progress {
        report(state);
    }
}

/// The devices that pins name.
fn resolve_pins(
    origins: &Origins,
    machine: &Machine,
    reports: &mut Reports,
) -> Result<BTreeMap<ActorId, DeviceId>, Reported> {
    // All pins are looked up before the first error ends it.
    let mut pins = BTreeMap::new();
    for (actor, pinned) in &origins.pins {
        let devices = machine.devices.iter_enumerated();
        let mut matching_devices = devices.filter(|(_, device)| device.name == pinned.value);

        if let Some((device, _)) = matching_devices.next() {
            pins.insert(*actor, device);
        } else {
            let known_names = machine.devices.iter().map(|device| device.name.as_str());
            let message = format!("there is no device `{}`", pinned.value);
            let refusal = Diagnostic::new(Code::E0502, message)
                .primary(pinned.span, "pinned to it")
                .help(suggest(&pinned.value, known_names));
            reports.sink.push(refusal);
        }
    }

    reports.stop_on_errors()?;
    Ok(pins)
}
