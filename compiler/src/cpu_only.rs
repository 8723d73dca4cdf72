//! Which actors run on CPU devices because no GPU of the machine has a kernel for them.

use std::fmt;

use zbmd_ir::{Costs, DeviceId, Graph, Machine, Role};

use crate::cost_table::gate_openers;

/// Actors named at most in a report.
const MAX_NAMED: usize = 12;

/// Actors that no GPU of the machine has a kernel for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuOnlyActors {
    /// Names of the machine's GPUs.
    pub gpus: Vec<String>,
    /// The actors.
    pub actors: Vec<CpuOnlyActor>,
}

/// An actor that no GPU of the machine has a kernel for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuOnlyActor {
    /// Its name.
    pub name: String,
    /// Its op, and whether it is gated or opens a gate, of which GPUs cannot have everything.
    pub op: String,
}

impl CpuOnlyActors {
    /// Finds the actors without a cost on any GPU; `None` if there are none, or no GPUs.
    pub(crate) fn find(graph: &Graph, machine: &Machine, costs: &Costs) -> Option<Self> {
        let gpus: Vec<DeviceId> = machine
            .devices
            .iter_enumerated()
            .filter(|(_, device)| !device.backend.is_cpu())
            .map(|(id, _)| id)
            .collect();

        let openers = gate_openers(graph, |_| true);
        // A device without a kernel for an actor has no cost in its row.
        let mut actors = Vec::new();
        for (id, actor) in graph.actors.iter_enumerated() {
            let has_gpu_kernel = gpus.iter().any(|&gpu| costs.table[id][gpu].is_some());
            if actor.role == Role::Compute && !has_gpu_kernel {
                let op = match actor.gate() {
                    Some(_) => format!("{}, gated", actor.op),
                    None if openers.contains(&id) => format!("{}, opens a gate", actor.op),
                    None => actor.op.clone(),
                };
                actors.push(CpuOnlyActor {
                    name: actor.name.clone(),
                    op,
                });
            }
        }

        // Without GPUs all actors would be listed.
        if gpus.is_empty() || actors.is_empty() {
            return None;
        }

        let gpu_names = gpus.iter().map(|&gpu| machine.devices[gpu].name.clone());
        Some(Self {
            gpus: gpu_names.collect(),
            actors,
        })
    }
}

impl fmt::Display for CpuOnlyActors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no kernel on {}: ", self.gpus.join(", "))?;
        for (index, CpuOnlyActor { name, op }) in self.actors.iter().take(MAX_NAMED).enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{name} ({op})")?;
        }
        match self.actors.len().saturating_sub(MAX_NAMED) {
            0 => write!(f, " stay on CPU devices"),
            unnamed => write!(f, " and {unnamed} more stay on CPU devices"),
        }
    }
}
