//! What plans may ask for and this executor cannot do.

use std::collections::BTreeMap;

use zbmd_backends::kernel::Io;
use zbmd_ir::{Action, ActorId, Calendar, Entry, Graph, Plan, Program, Role, Slot};

/// A plan that is well-formed but that this executor cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// A device of a backend that this program has no code for.
    #[error(
        "plan `{plan}` uses {device} of backend `{backend}`; this executor runs `cpu`, `cuda` and `vulkan`: compile for a machine of such devices"
    )]
    Backend {
        /// The plan.
        plan: String,
        /// The device's name.
        device: String,
        /// Its backend.
        backend: String,
    },
    /// A device with several queues.
    #[error("plan `{plan}` has {lanes} lanes on {device}; a device runs 1: compile again")]
    Lanes {
        /// The plan.
        plan: String,
        /// The device's name.
        device: String,
        /// Lanes with slots.
        lanes: usize,
    },
    /// A source or a sink on a GPU.
    #[error(
        "plan `{plan}` has `{actor}` on {device}; sources and sinks are the host's: pin it to a CPU device"
    )]
    Stream {
        /// The plan.
        plan: String,
        /// The source or sink.
        actor: String,
        /// The device's name.
        device: String,
    },
    /// An actor with more ports that are written than a kernel call can carry.
    #[error(
        "actor `{actor}` has {ports} outputs or states; a kernel call carries {max}: split the actor"
    )]
    Ports {
        /// The actor.
        actor: String,
        /// Its larger number of outputs or states.
        ports: usize,
        /// What a call carries.
        max: usize,
    },
    /// A stream end whose slots work on different blocks in one period.
    #[error(
        "`{actor}` is in stages {first} and {second}; a source or a sink must be in one: compile again"
    )]
    SplitStream {
        /// The source or sink.
        actor: String,
        /// Stage of a slot.
        first: u32,
        /// Stage of another.
        second: u32,
    },
}

/// Finds what this executor cannot run whatever the plan.
///
/// # Errors
/// The first thing found; see [`Unsupported`].
pub(crate) fn check_graph(graph: &Graph) -> Result<(), Unsupported> {
    for actor in &graph.actors {
        let ports = (actor.outputs.len() - actor.state.len()).max(actor.state.len());
        if ports > Io::MAX_MUT_PORTS {
            let actor = actor.name.clone();
            return Err(Unsupported::Ports {
                actor,
                ports,
                max: Io::MAX_MUT_PORTS,
            });
        }
    }
    Ok(())
}

/// Finds what this executor cannot run of one plan, before any memory is taken.
///
/// Buffers that hold less than a block need no question: only the replay of CPU devices knows them, and the verifier lets
/// them be on no other.
///
/// # Errors
/// The first thing found; see [`Unsupported`].
pub(crate) fn check_plan(program: &Program, plan: &Plan) -> Result<(), Unsupported> {
    for calendar in &plan.calendars {
        check_calendar(program, plan, calendar)?;
    }
    Ok(())
}

fn check_calendar(program: &Program, plan: &Plan, calendar: &Calendar) -> Result<(), Unsupported> {
    let device = &program.machine.devices[calendar.device];
    let is_gpu = device.backend.is_gpu();
    if !device.backend.is_cpu() && !is_gpu {
        return Err(Unsupported::Backend {
            plan: plan.name.clone(),
            device: device.name.clone(),
            backend: device.backend.to_string(),
        });
    }

    let lanes = calendar.lanes.iter();
    let used_lanes = lanes.filter(|lane| !lane.entries.is_empty()).count();
    if used_lanes > 1 {
        return Err(Unsupported::Lanes {
            plan: plan.name.clone(),
            device: device.name.clone(),
            lanes: used_lanes,
        });
    }

    let mut stages = BTreeMap::new();
    for lane in &calendar.lanes {
        stream_stages(&program.graph, &lane.entries, &mut stages)?;
    }
    if let Some(actor) = stages.keys().next()
        && is_gpu
    {
        return Err(Unsupported::Stream {
            plan: plan.name.clone(),
            actor: program.graph.actors[*actor].name.clone(),
            device: device.name.clone(),
        });
    }
    Ok(())
}

/// Finds the stage of each source and sink, which must be one.
fn stream_stages(
    graph: &Graph,
    entries: &[Entry],
    stages: &mut BTreeMap<ActorId, u32>,
) -> Result<(), Unsupported> {
    for entry in entries {
        match entry {
            Entry::Loop { body, .. } => stream_stages(graph, body, stages)?,
            Entry::Slot(Slot {
                stage,
                action: Action::Fire { actor, .. },
                ..
            }) if graph.actors[*actor].role != Role::Compute => {
                let first = *stages.entry(*actor).or_insert(*stage);
                if first != *stage {
                    let actor = graph.actors[*actor].name.clone();
                    return Err(Unsupported::SplitStream {
                        actor,
                        first,
                        second: *stage,
                    });
                }
            }
            Entry::Slot(_) => {}
        }
    }
    Ok(())
}
