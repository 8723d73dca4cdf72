//! One compilation, and the order of its steps.
//!
//! [`Compilation::open`] reads the source and the machine; [`Compilation::make_program`] reads as the pipeline. The
//! order of the steps behind the analysis is not free:
//!
//! - `in-place` before planning: the scheduler lets outputs overlap inputs only where an actor may write in place;
//! - rounding is requested before planning, which depends on what rounded products cost, and settled after it, because
//!   it depends on the devices that actors were placed on;
//! - variants are chosen after rounding is settled and before weights are packed: measured costs are found by the actor
//!   as the model has it, and by the parameter for rounding only where its devices round;
//! - weights are packed after planning, because only the CPU's kernels read packed ones, and after rounding is settled,
//!   because there are no GPU kernels for packed actors;
//! - weights are fetched from tiers in the order in which they are packed, so after that;
//! - kernels are printed last: they depend on variants and rounding, and packing removes all blobs that no parameter
//!   names, as would be the printed code.
//!
//! Where debug assertions are on, the verifier checks the graph after each step that changed it: what it refuses there
//! is a bug of that step.

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::verify::{Verified, VerifyError, check_graph, verify};
use zbmd_ir::{ActorId, BlobId, Graph, KernelCode, Program, TiVec};
use zbmd_scheduler::buffers::{Mode, Unit};
use zbmd_scheduler::search::unattended;
use zbmd_scheduler::{Estimate, Inputs, plan_front};

use crate::analysis::Analysis;
use crate::build::BuiltGraph;
use crate::calibrate::{self, CalibrateOptions, Calibration, KernelSources};
use crate::codes::Code;
use crate::collectives;
use crate::contingency::ImpossibleLoss;
use crate::cost_table::CostSources;
use crate::cpu_only::CpuOnlyActors;
use crate::deadlines::MissedDeadline;
use crate::diag::{Diagnostic, Diagnostics};
use crate::front::{FrontEnd, ParsedSource, Source, parse_source};
use crate::kernels::KernelRequest;
use crate::merge::MergedModels;
use crate::modes::ModeList;
use crate::options::{CompileOptions, Replicate};
use crate::pack::{self, PackRequest};
use crate::pass_report::PassReport;
use crate::pass_selection::PassSelection;
use crate::planning::{PlanRequest, PlannedGraph};
use crate::replicate::Replication;
use crate::reports::{Reported, Reports};
use crate::rounding::{self, Rounding, RoundingPlans};
use crate::target::Target;
use crate::tiers::{FetchedWeights, WeightSources};
use crate::values::Files;
use crate::variants::VariantRequest;
use crate::{deadlines, in_place, refusals, sample_rates, sequences, tiers};

/// One compilation: what is asked for, and what has been read and reported so far.
pub(crate) struct Compilation<'a> {
    options: &'a CompileOptions,
    /// The options' registry. It resolves each actor once.
    registry: Registry,
    /// None where the machine could not be read.
    target: Option<Target>,
    passes: PassSelection,
    /// None where too little of the source could be read. After errors it has gaps.
    model: Option<BuiltGraph>,
    files: Files,
    reports: Reports,
    modes: Option<ModeList>,
    /// Names of the models that are merged; empty for one model.
    merged: Vec<String>,
}

/// A program, and what is worth knowing about how it came about.
pub(crate) struct MadeProgram {
    pub(crate) program: Verified<Program>,
    pub(crate) estimate: Option<Estimate>,
    pub(crate) impossible_losses: Vec<ImpossibleLoss>,
    pub(crate) replication: Option<Replication>,
    pub(crate) rounding: Option<Rounding>,
    pub(crate) cpu_only: Option<CpuOnlyActors>,
    /// Weights that devices fetch while the main plan runs.
    pub(crate) fetched: Vec<FetchedWeights>,
    /// What the passes did, by file.
    pub(crate) passes: Vec<(String, Vec<PassReport>)>,
}

impl<'a> Compilation<'a> {
    /// Reads the machine and the source, the machine once. Errors are kept until a result is asked for, so that those
    /// of both are reported together.
    pub(crate) fn open(source: Source<'_>, options: &'a CompileOptions) -> Self {
        let mut reports = Reports::default();
        let mut files = Files::default();
        let registry = options.registry.resolving_once();

        // Errors are listed in the order in which texts are read: those of the model come first.
        let parsed_source = parse_source(source, options, &mut files, &mut reports);
        let mut target = Target::read(&options.machine, &mut reports).ok();
        let passes = PassSelection::new(options, target.as_ref(), &mut reports);

        if let Some(target) = &mut target {
            target.capabilities = options.gpu_capabilities.clone();

            // Opening drivers takes a while, and a machine without GPUs does not need it.
            if options.ask_drivers {
                target.ask_drivers();
            }
        }

        let mut front_end = FrontEnd {
            options,
            registry: &registry,
            passes: &passes,
            files: &mut files,
            reports: &mut reports,
        };

        let modes = match &parsed_source {
            Some(
                ParsedSource::Model(.., modes)
                | ParsedSource::OnnxFile { modes, .. }
                | ParsedSource::OnnxBytes { modes, .. },
            ) => modes.clone(),
            _ => None,
        };
        let merged = parsed_source.as_ref().map(ParsedSource::merged_names);
        let model = parsed_source.and_then(|source| front_end.build_graph(source));
        Self {
            options,
            registry,
            target,
            passes,
            model,
            files,
            reports,
            modes,
            merged: merged.unwrap_or_default(),
        }
    }

    /// The modes of the model, if it has some.
    pub(crate) fn modes(&self) -> Option<&ModeList> {
        self.modes.as_ref()
    }

    /// Checks the model up to its analysis; its warnings.
    ///
    /// # Errors
    /// Everything that is wrong with the model and a machine file.
    pub(crate) fn check(mut self) -> Result<Diagnostics, Diagnostics> {
        let outcome = self.analyse_model();
        let (_, warnings) = self.reports.finish(outcome)?;
        Ok(warnings)
    }

    /// The analysed graph and the tensors of its parameters.
    ///
    /// # Errors
    /// See [`Self::check`].
    pub(crate) fn into_graph(mut self) -> Result<(Graph, TiVec<BlobId, Bytes>), Diagnostics> {
        let outcome = self.analyse_model();
        let (model, _) = self.reports.finish(outcome)?;
        Ok((model.graph, self.files.blobs))
    }

    /// What bounds the model, however it is scheduled.
    ///
    /// # Errors
    /// See [`Self::check`].
    pub(crate) fn analyse(mut self) -> Result<Analysis, Diagnostics> {
        let outcome = self.find_bounds();
        let (analysis, _) = self.reports.finish(outcome)?;
        Ok(analysis)
    }

    /// Measures the kernels of the model on the machine, which must be this computer.
    ///
    /// # Errors
    /// See [`Self::check`].
    pub(crate) fn calibrate(
        mut self,
        how: &CalibrateOptions,
        progress: &mut (dyn FnMut(calibrate::Progress<'_>) + Send),
    ) -> Result<Calibration, Diagnostics> {
        let outcome = self.measure_kernels(how, progress);
        let (calibration, warnings) = self.reports.finish(outcome)?;
        Ok(Calibration {
            warnings,
            ..calibration
        })
    }

    /// Compiles the model; the program and the warnings.
    ///
    /// # Errors
    /// See [`Self::check`], and why there is no program.
    pub(crate) fn compile(mut self) -> Result<(MadeProgram, Diagnostics), Diagnostics> {
        let outcome = self.make_program();
        self.reports.finish(outcome)
    }

    /// The pipeline; see the head of this file for why its order is this one.
    fn make_program(&mut self) -> Result<MadeProgram, Reported> {
        let mut model = self.analyse_model()?;
        let target = self.take_target()?;

        self.mark_in_place_pairs(&mut model);
        self.check_rounding_devices(&target)?;
        self.request_rounding(&mut model);
        let mut planned = self.make_plans(&model, &target)?;
        let rounding = self.settle_rounding(&mut planned, &target);
        self.choose_variants(&mut planned, &target);
        self.pack_weights(&mut planned, &target);
        let fetched = self.fetch_weights(&model, &mut planned, &target)?;
        let kernels = self.print_kernels(&planned, &target)?;
        self.reports.stop_on_errors()?;

        let made = self.finish_program(planned, target, kernels, rounding)?;
        Ok(MadeProgram { fetched, ..made })
    }

    /// Rates, deadlocks and sample rates of the model's graph.
    fn analyse_model(&mut self) -> Result<BuiltGraph, Reported> {
        // Half a graph would be reported to be inconsistent.
        self.reports.stop_on_errors()?;
        let mut model = self.model.take().ok_or(Reported)?;

        let repetitions = zbmd_scheduler::repetition(&model.graph)
            .map_err(|error| self.reports.refuse(refusals::draw_analysis(&error, &model)))?;

        // Deadlocks and sample rates are reported together: neither depends on the other.
        if let Err(error) = zbmd_scheduler::check_deadlock(&model.graph, &repetitions) {
            let refusal = refusals::draw_analysis(&error, &model);
            self.reports.sink.push(refusal);
        }

        sample_rates::infer_sample_rates(&mut model, &repetitions, &mut self.reports.sink);
        deadlines::check_releases(&model, &mut self.reports.sink);
        self.reports.stop_on_errors()?;

        check_level(&model.graph, &self.files.blobs, "the analysis");
        if self.options.sequences {
            self.carry_states(&mut model, &repetitions)?;
        }
        if !self.merged.is_empty() {
            self.join_models(&mut model)?;
        }
        Ok(model)
    }

    /// Makes one iteration of those of all models.
    fn join_models(&mut self, model: &mut BuiltGraph) -> Result<(), Reported> {
        let repetitions = zbmd_scheduler::repetition(&model.graph)
            .map_err(|error| self.reports.refuse(refusals::draw_analysis(&error, model)))?;
        let models = MergedModels {
            names: &self.merged,
            rates: &self.options.rates,
            carries_states: self.options.sequences,
        };
        let joined = models.join(model, &repetitions, &mut self.reports.sink);
        joined.ok_or(Reported)?;

        check_level(&model.graph, &self.files.blobs, "merging models");
        Ok(())
    }

    /// Makes streams of what the model keeps between iterations.
    fn carry_states(
        &mut self,
        model: &mut BuiltGraph,
        repetitions: &TiVec<ActorId, u64>,
    ) -> Result<(), Reported> {
        // A state goes from one iteration of the model to the next.
        if let Replicate::UpTo(_) = self.options.replicate {
            let message = "an iteration of a sequence is one of the model, and with a number of replicas it may be several";
            let help = "compile with `--replicate auto` or `off`";
            self.reports
                .sink
                .push(Diagnostic::new(Code::E0405, message).help(help));
        }
        let blobs = &mut self.files.blobs;
        sequences::carry_states(model, repetitions, blobs, &mut self.reports.sink);
        self.reports.stop_on_errors()?;

        check_level(&model.graph, &self.files.blobs, "carrying states");
        Ok(())
    }

    fn take_target(&mut self) -> Result<Target, Reported> {
        self.target.take().ok_or(Reported)
    }

    fn mark_in_place_pairs(&self, model: &mut BuiltGraph) {
        if self.passes.runs(in_place::NAME) {
            let blobs = &self.files.blobs;
            in_place::mark_in_place_pairs(&mut model.graph, &self.registry, blobs);
            check_level(&model.graph, blobs, "marking what may be written in place");
        }
    }

    fn check_rounding_devices(&mut self, target: &Target) -> Result<(), Reported> {
        let math = self.options.math;
        let device_check = rounding::check_devices(target, math);
        device_check.map_err(|refusal| self.reports.refuse(refusal))
    }

    fn request_rounding(&self, model: &mut BuiltGraph) {
        rounding::request_rounding(&mut model.graph, &self.registry, self.options.math);
        check_level(
            &model.graph,
            &self.files.blobs,
            "requesting rounded factors",
        );
    }

    fn make_plans(
        &mut self,
        model: &BuiltGraph,
        target: &Target,
    ) -> Result<PlannedGraph, Reported> {
        let request = PlanRequest {
            options: self.options,
            target,
            registry: &self.registry,
            blobs: &self.files.blobs,
            passes: &self.passes,
        };

        let planned = request.make_plans(model, &mut self.reports)?;

        check_level(
            &planned.graph,
            &self.files.blobs,
            "dividing collectives and replication",
        );
        if planned.divided_collectives > 0 {
            let changes = Some(planned.divided_collectives);
            let actors = planned.graph.actors.len();
            self.report_pass(collectives::NAME, collectives::SUMMARY, changes, actors);
        }
        Ok(planned)
    }

    fn settle_rounding(&self, planned: &mut PlannedGraph, target: &Target) -> Option<Rounding> {
        let rounding_plans = RoundingPlans {
            registry: &self.registry,
            target,
            plans: &planned.plans,
            blobs: &self.files.blobs,
        };
        rounding_plans.settle_rounding(&mut planned.graph)
    }

    fn choose_variants(&mut self, planned: &mut PlannedGraph, target: &Target) {
        let request = VariantRequest {
            graph: &planned.graph,
            target,
            registry: &self.registry,
            blobs: &self.files.blobs,
        };
        request.choose_variants(&mut planned.plans, &mut self.reports.sink);
    }

    /// Packs weights and reports how many actors that changed, or that the pass was left out.
    fn pack_weights(&mut self, planned: &mut PlannedGraph, target: &Target) {
        let mut packed_actors = None;
        if self.passes.runs(pack::NAME) {
            let request = PackRequest {
                registry: &self.registry,
                machine: &target.machine,
                plans: &planned.plans,
            };

            let blobs = &mut self.files.blobs;
            packed_actors = Some(request.pack_weights(&mut planned.graph, blobs));
            check_level(&planned.graph, blobs, "packing weights");
        }

        // A pass that found nothing to do is not worth a line in the report.
        if packed_actors != Some(0) {
            let actors = planned.graph.actors.len();
            self.report_pass(pack::NAME, pack::SUMMARY, packed_actors, actors);
        }
    }

    /// Lets devices with tiers fetch the weights that do not fit their memory.
    fn fetch_weights(
        &mut self,
        model: &BuiltGraph,
        planned: &mut PlannedGraph,
        target: &Target,
    ) -> Result<Vec<FetchedWeights>, Reported> {
        let sources = WeightSources {
            registry: &self.registry,
            graph: &planned.graph,
            blobs: &self.files.blobs,
            machine: &target.machine,
            capabilities: &target.capabilities,
        };
        let fetched = tiers::fetch_weights(&sources, &mut planned.plans);
        let fetched = fetched.map_err(|refusal| self.reports.refuse(refusal))?;

        // Deadlines were kept by plans without fetches.
        if !fetched.is_empty()
            && let Some(missed) = MissedDeadline::find(planned, &target.machine)
        {
            return Err(self.reports.refuse(missed.draw(model)));
        }
        Ok(fetched)
    }

    /// Reports a pass over the whole graph.
    fn report_pass(
        &mut self,
        name: &'static str,
        summary: &'static str,
        changes: Option<usize>,
        actors: usize,
    ) {
        let report = PassReport {
            name,
            summary,
            changes,
            actors,
        };
        let reports = &mut self.files.passes;
        reports.push(("the whole graph".to_owned(), vec![report]));
    }

    fn print_kernels(
        &mut self,
        planned: &PlannedGraph,
        target: &Target,
    ) -> Result<Vec<KernelCode>, Reported> {
        let request = KernelRequest {
            registry: &self.registry,
            graph: &planned.graph,
            target,
            plans: &planned.plans,
            cubins: self.options.cubins.as_ref(),
        };

        let printed_kernels = request.print_kernels(&mut self.files.blobs);
        printed_kernels.map_err(|refusal| self.reports.refuse(refusal))
    }

    /// Puts the program together and has it verified.
    ///
    /// # Errors
    /// A program that is larger than a bundle may be.
    fn finish_program(
        &mut self,
        planned: PlannedGraph,
        target: Target,
        kernels: Vec<KernelCode>,
        rounding: Option<Rounding>,
    ) -> Result<MadeProgram, Reported> {
        // By the costs that plans were made with: packed actors have no kernels for GPUs any more.
        let cpu_only = CpuOnlyActors::find(&planned.graph, &target.machine, &planned.costs);
        let program = Program {
            graph: planned.graph,
            machine: target.machine,
            plans: planned.plans.into(),
            contingencies: planned.contingencies,
            blobs: std::mem::take(&mut self.files.blobs),
            kernels,
        };

        let program = verify(program).map_err(|errors| self.refuse_program(&errors))?;

        Ok(MadeProgram {
            program,
            estimate: planned.estimate,
            impossible_losses: planned.impossible_losses,
            replication: planned.replication,
            rounding,
            cpu_only,
            fetched: Vec::new(),
            passes: std::mem::take(&mut self.files.passes),
        })
    }

    /// Reports a program that is larger than a bundle may be.
    ///
    /// # Panics
    /// Where anything else is wrong with it: that is a mistake of the compiler or the scheduler, not of the model.
    fn refuse_program(&mut self, errors: &[VerifyError]) -> Reported {
        match refusals::draw_beyond_limits(errors) {
            Some(refusal) => self.reports.refuse(refusal),
            None => panic!("the verifier refuses the compiler's own program: {errors:?}"),
        }
    }

    fn find_bounds(&mut self) -> Result<Analysis, Reported> {
        let model = self.analyse_model()?;
        let target = self.take_target()?;
        let cost_sources = CostSources {
            target: &target,
            registry: &self.registry,
            blobs: &self.files.blobs,
        };

        let actor_costs = cost_sources.cost_table(&model.graph);
        let default_buffers = Mode::Throughput(Unit::Tokens);
        let buffers = self.options.buffers.unwrap_or(default_buffers);

        let actors = model.graph.actors.iter_enumerated();
        let phases = actors.filter_map(|(id, actor)| {
            let phases = self.registry.phases(actor, &self.files.blobs)?;
            Some((id, phases))
        });
        let phases = phases.collect();
        let analysis = Analysis::of(&model.graph, &actor_costs, buffers, &phases);
        let analysis = analysis.map_err(|error| {
            let help = "allow more with `--buffers`, or make the iteration shorter";
            let refusal = Diagnostic::new(Code::E0506, error.to_string()).help(help);
            self.reports.refuse(refusal)
        })?;

        let inputs = Inputs {
            graph: &model.graph,
            machine: &target.machine,
            costs: &actor_costs,
            options: &zbmd_scheduler::ScheduleOptions::default(),
        };
        // A graph that has bounds may still have no plan for this machine: `compile` says why.
        let plans = unattended(|control| plan_front(inputs, control));
        Ok(Analysis {
            plans: plans.unwrap_or_default(),
            ..analysis
        })
    }

    fn measure_kernels(
        &mut self,
        how: &CalibrateOptions,
        progress: &mut (dyn FnMut(calibrate::Progress<'_>) + Send),
    ) -> Result<Calibration, Reported> {
        // What is wrong with the model and what the machine cannot do are reported together.
        let analysed_model = self.analyse_model();
        let target = self.take_target()?;
        let rounding_devices = self.check_rounding_devices(&target);
        let mut model = analysed_model?;
        rounding_devices?;
        self.request_rounding(&mut model);

        let capabilities = target.capabilities.clone();
        let kernel_sources = KernelSources {
            registry: &self.registry,
            capabilities: &capabilities,
            blobs: &self.files.blobs,
        };
        let sink = &mut self.reports.sink;
        calibrate::check_inputs(&model.graph, &how.inputs, sink)?;
        Ok(calibrate::run(
            &model.graph,
            &kernel_sources,
            target,
            how,
            progress,
            sink,
        ))
    }
}

/// Checks the graph after a step that changed it, where debug assertions are on. Limits are left to the check of the
/// whole program, which reports them.
///
/// # Panics
/// Where the verifier refuses it: that is a bug of the step.
fn check_level(graph: &Graph, blobs: &TiVec<BlobId, Bytes>, step: &str) {
    if cfg!(debug_assertions)
        && let Err(errors) = check_graph(graph, blobs)
        && !errors.iter().all(refusals::is_limit)
    {
        panic!("the verifier refuses the graph after {step}: {errors:?}");
    }
}

#[cfg(test)]
mod tests;
