//! Programs that are made ready to run: their kernels, and which of their plans runs when. Knows no run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use zbmd_ir::bundle::{self, Image};
use zbmd_ir::numa::MemoryNodes;
use zbmd_ir::verify::graph::repetition;
use zbmd_ir::verify::{Verified, VerifiedModes};
use zbmd_ir::{
    ActorId, DeviceId, Entry, MergedModel, ModeDecision, Plan, PlanId, PortChannels, Program, Role,
    TiVec, merged_models,
};
use zbmd_op::Registry;

use crate::error::EngineError;
use crate::kernels::ProgramKernels;
use crate::live_program::LiveProgram;
use crate::plan_facts::PlanFacts;
use crate::transport::conduit::Conduit;
use crate::transport::model_end::{ModelSource, ModelSources};
use crate::unsupported;

/// A program that can be run any number of times.
#[derive(Clone)]
pub struct Engine {
    /// The program of the first mode, which is the only one where there are no modes.
    pub(crate) loaded: Arc<LoadedProgram>,
    pub(crate) modes: Arc<LoadedModes>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("model", &self.loaded.program.graph.name)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Makes the kernels of a verified program, and checks that this executor can run all of its plans: those for lost
    /// devices, too, for which it would be too late once a device is lost. Whether GPUs are there, and have what plans
    /// ask of them, is found out when they are opened.
    ///
    /// # Errors
    /// An op or a variant of a kernel that the registry does not have, or a plan that this executor cannot run.
    pub fn new(program: Verified<Program>, registry: &Registry) -> Result<Self, EngineError> {
        Self::with_modes(VerifiedModes::from(program), registry)
    }

    /// [`Self::new`] for several programs, of which a run may go over from one to another: [`crate::ModeHandle`].
    ///
    /// # Errors
    /// As [`Self::new`], for the first mode that cannot be run.
    pub fn with_modes(modes: VerifiedModes, registry: &Registry) -> Result<Self, EngineError> {
        let (modes, image) = with_weights_file(modes)?;
        let programs = modes.programs().iter();
        let loaded = programs
            .map(|program| LoadedProgram::new(Arc::clone(program), registry, image.clone()));
        let list: Vec<Arc<LoadedProgram>> = loaded.collect::<Result<_, _>>()?;
        let modes = LoadedModes {
            verified: modes,
            list,
        };
        Ok(Self {
            loaded: Arc::clone(modes.first()),
            modes: Arc::new(modes),
        })
    }

    /// The names of the modes; one without a name where there are none.
    pub fn mode_names(&self) -> &[String] {
        self.modes.names()
    }

    /// The programs of all modes, for whoever takes only what the verifier let pass.
    pub fn verified_modes(&self) -> &VerifiedModes {
        self.modes.verified()
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.loaded.program
    }

    /// Tokens of a source or a sink that one iteration moves.
    pub fn tokens_per_iteration(&self, stream: ActorId) -> u64 {
        self.loaded.tokens_per_iteration(stream)
    }

    /// The program, for whoever takes only what the verifier let pass.
    pub fn verified(&self) -> &Verified<Program> {
        &self.loaded.program
    }
}

/// The programs of all modes, ready to run.
pub(crate) struct LoadedModes {
    verified: VerifiedModes,
    /// In the order of the names; at least one.
    list: Vec<Arc<LoadedProgram>>,
}

impl LoadedModes {
    pub(crate) fn names(&self) -> &[String] {
        self.verified.names()
    }

    /// The program of the mode that a run begins in.
    pub(crate) fn first(&self) -> &Arc<LoadedProgram> {
        &self.list[0]
    }

    pub(crate) fn program(&self, mode: usize) -> &Arc<LoadedProgram> {
        &self.list[mode]
    }

    /// The program of a mode, by a number that another process sent.
    pub(crate) fn get(&self, mode: u32) -> Option<&Arc<LoadedProgram>> {
        self.list.get(mode as usize)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<LoadedProgram>> {
        self.list.iter()
    }

    /// Whether a run can change its mode.
    pub(crate) fn are_several(&self) -> bool {
        self.list.len() > 1
    }

    /// Whether the model has a change from one mode to another.
    pub(crate) fn allows(&self, from: usize, to: usize) -> bool {
        let mut changes = self.verified.changes().iter();
        changes
            .any(|&(known_from, known_to)| (known_from as usize, known_to as usize) == (from, to))
    }

    /// How tokens decide about the mode that a run in this one is to be in, if they do.
    pub(crate) fn decision_in(&self, mode: usize) -> Option<&ModeDecision> {
        let decision = self.verified.decision()?;
        let graph = &self.list[mode].program.graph;
        decision.channel_in(graph).map(|_| decision)
    }

    /// All modes, for whoever writes a bundle of them.
    pub(crate) fn verified(&self) -> &VerifiedModes {
        &self.verified
    }
}

impl LoadedProgram {
    fn new(
        program: Arc<Verified<Program>>,
        registry: &Registry,
        image: Option<Image>,
    ) -> Result<Arc<Self>, EngineError> {
        let main = PlanId(0);
        let tail_plan = program.plan("tail").map(|(id, _)| id);
        let tail = tail_plan.filter(|id| *id != main);

        unsupported::check_graph(&program.graph)?;
        for plan in &program.plans {
            unsupported::check_plan(&program, plan)?;
        }
        // GPUs ask again when they are opened and whenever an epoch begins.
        let registry = registry.resolving_once();
        let kernels = ProgramKernels::new(&program, &registry)?;
        for plan in &program.plans {
            check_scratch(&program, plan, &kernels)?;
        }

        let loaded = LoadedProgram {
            live: LiveProgram::of(&program.graph),
            models: merged_models(&program.graph),
            repetition: repetition(&program.graph).expect("a verified graph is consistent"),
            port_channels: program.graph.port_channels(),
            kernels,
            registry,
            image,
            main,
            tail,
            facts: program.plans.iter().map(|_| OnceLock::new()).collect(),
            program,
        };
        Ok(Arc::new(loaded))
    }
}

/// The modes with the file that weights are fetched from, if some device fetches them.
fn with_weights_file(modes: VerifiedModes) -> Result<(VerifiedModes, Option<Image>), EngineError> {
    let programs = modes.programs().iter();
    let mut plans = programs.flat_map(|program| program.plans.iter());
    if !plans.any(Plan::has_fetches) {
        return Ok((modes, None));
    }
    let read = bundle::with_image(modes).map_err(|error| EngineError::Weights {
        why: error.to_string(),
    })?;
    Ok((read.0, Some(read.1)))
}

/// Checks that no kernel of a plan needs more scratch memory than the plan has for it.
fn check_scratch(
    program: &Program,
    plan: &Plan,
    kernels: &ProgramKernels,
) -> Result<(), EngineError> {
    let planned_bytes: BTreeMap<DeviceId, u64> = plan
        .calendars
        .iter()
        .map(|calendar| (calendar.device, calendar.scratch_bytes))
        .collect();

    for actor in program.graph.actors.keys() {
        let Some(kernel) = kernels.of(plan, actor) else {
            continue;
        };
        let device = plan.placement[actor];
        if !program.machine.devices[device].backend.is_cpu() {
            // What its kernels need there is asked when they are made.
            continue;
        }

        let planned = planned_bytes.get(&device).copied().unwrap_or(0);
        let needed = kernel.scratch_bytes() as u64;
        if needed > planned {
            return Err(EngineError::Scratch {
                plan: plan.name.clone(),
                actor: program.graph.actors[actor].name.clone(),
                needed,
                planned,
            });
        }
    }
    Ok(())
}

/// What is being run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Whole blocks.
    Main,
    /// Iterations that make no whole block.
    Tail,
    /// One last iteration, filled up with zeros.
    Pad,
}

/// A verified program with what every run of it needs.
pub(crate) struct LoadedProgram {
    pub program: Arc<Verified<Program>>,
    pub repetition: TiVec<ActorId, u64>,
    pub port_channels: PortChannels,
    pub kernels: ProgramKernels,
    pub live: LiveProgram,
    /// The models of a merged program; empty for one model.
    pub models: Vec<MergedModel>,
    /// What kernels for GPUs are made with.
    pub registry: Registry,
    /// The bundle's file, if devices fetch weights from it.
    pub image: Option<Image>,
    /// The plan that runs whole blocks, and the one for what is left.
    pub main: PlanId,
    pub tail: Option<PlanId>,
    facts: TiVec<PlanId, OnceLock<PlanFacts>>,
}

impl LoadedProgram {
    /// What every worker of a plan wants to know.
    pub(crate) fn facts(&self, plan: PlanId) -> &PlanFacts {
        let make = || PlanFacts::of(&self.program.graph, &self.program.plans[plan]);
        self.facts[plan].get_or_init(make)
    }

    /// The node of this computer's memory that is near a device's cores, if it matters where memory is.
    pub(crate) fn near_node(&self, device: DeviceId) -> Option<u32> {
        let cores = &self.program.machine.devices[device].cores;
        MemoryNodes::of_system().near(cores)
    }

    /// Whether a device is a GPU.
    pub(crate) fn is_gpu(&self, device: DeviceId) -> bool {
        self.program.machine.devices[device].backend.is_gpu()
    }

    /// Tokens that an actor's port 0 moves in one iteration.
    pub(crate) fn tokens_per_iteration(&self, id: ActorId) -> u64 {
        let actor = &self.program.graph.actors[id];
        let rate = match actor.role {
            Role::Sink => actor.inputs[0].rate,
            _ => actor.outputs[0].rate,
        };
        self.repetition[id] * rate
    }

    /// The sources of each model of a merged program in these queues, counted from these bases on.
    pub(crate) fn model_sources(
        &self,
        queues: &[Arc<Conduit>],
        bases: &[u64],
        pads: bool,
    ) -> Vec<ModelSources> {
        let sources: Vec<ActorId> = self.program.graph.sources().map(|(id, _)| id).collect();
        let models = self.models.iter().map(|model| {
            let sources = model.sources.iter().map(|&place| ModelSource {
                conduit: Arc::clone(&queues[place]),
                base: bases[place],
                iteration_tokens: self.tokens_per_iteration(sources[place]) / model.iterations,
            });
            ModelSources {
                sources: sources.collect(),
                pads,
            }
        });
        models.collect()
    }

    /// The plans for whole blocks and for what is left when devices are lost; `None` if the program has no plan for
    /// that. Devices that no plan uses change nothing.
    pub(crate) fn plans_without(&self, lost: &[DeviceId]) -> Option<(PlanId, Option<PlanId>)> {
        if !self.uses_any(lost) {
            return Some((self.main, self.tail));
        }
        let entry = self.program.contingencies.find(lost)?;
        Some((entry.main, entry.tail))
    }

    /// The plan for a phase of the run when devices are lost; `None` if there is none.
    pub(crate) fn plan_of(&self, phase: Phase, lost: &[DeviceId]) -> Option<PlanId> {
        let (main, tail) = self.plans_without(lost)?;
        match phase {
            Phase::Main => Some(main),
            Phase::Tail => tail,
            Phase::Pad => tail.or((self.program.plans[main].block == 1).then_some(main)),
        }
    }

    /// The device that runs each calendar of a plan when devices are lost.
    pub(crate) fn physical_devices(&self, plan: &Plan, lost: &[DeviceId]) -> Vec<DeviceId> {
        let roles = if self.uses_any(lost) {
            self.program.contingencies.roles(lost)
        } else {
            BTreeMap::new()
        };
        let planned_devices = plan.calendars.iter().map(|calendar| calendar.device);
        planned_devices
            .map(|device| roles.get(&device).copied().unwrap_or(device))
            .collect()
    }

    /// All devices that the plans for the whole machine use.
    pub(crate) fn devices(&self) -> BTreeSet<DeviceId> {
        let plans = [Some(self.main), self.tail].into_iter().flatten();
        plans
            .flat_map(|plan| &self.program.plans[plan].calendars)
            .map(|calendar| calendar.device)
            .collect()
    }

    fn uses_any(&self, devices: &[DeviceId]) -> bool {
        let used_devices = self.devices();
        devices.iter().any(|device| used_devices.contains(device))
    }

    /// Names of devices, for people.
    pub(crate) fn device_names(&self, devices: &[DeviceId]) -> String {
        let device_names = devices
            .iter()
            .map(|id| self.program.machine.devices[*id].name.as_str());
        device_names.collect::<Vec<_>>().join(", ")
    }
}

/// How long an entry of a calendar is planned to take.
pub(crate) fn planned_ns(entry: &Entry) -> u64 {
    match entry {
        Entry::Slot(slot) => slot.duration_ns,
        Entry::Loop { count, body } => planned_sum_ns(body).saturating_mul(*count),
    }
}

fn planned_sum_ns(entries: &[Entry]) -> u64 {
    entries.iter().map(planned_ns).fold(0, u64::saturating_add)
}
