//! The work that one verification may take: a limit that grows with the program, so that nobody can hide hours of work
//! in a small file.
//!
//! A *step* is one execution of a slot that is looked at, one of its ports, or about as much elsewhere: some ten
//! nanoseconds. Checks that look at each part of a program once are not counted: they are bounded by its size anyway.
//! Whatever multiplies (loops that are counted out, parts of the graph for each plan) reserves its steps first.

use crate::{Entry, Graph, Lane, Machine, Plan, Program};

/// Steps that every program may take, however small it is.
const MIN_STEPS: u64 = 1 << 26;
/// Further steps for each element of the program. An element takes at least one byte of the file or of an unpacked
/// plan, about six on average.
const STEPS_PER_ELEMENT: u64 = 64;

/// Steps that a verification took, and how many it was allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Steps done.
    pub steps: u64,
    /// Steps that were set aside for what was done: at least [`Self::steps`].
    pub reserved: u64,
    /// The limit.
    pub limit: u64,
}

/// Reserved steps of one verification, over all its plans and devices.
#[derive(Debug)]
pub(super) struct Budget {
    work: Work,
}

/// More steps than there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overrun {
    pub(super) steps: u64,
    pub(super) limit: u64,
}

impl Budget {
    /// For a program of so many elements.
    pub(super) fn for_elements(elements: u64) -> Self {
        let limit = MIN_STEPS.saturating_add(elements.saturating_mul(STEPS_PER_ELEMENT));
        let work = Work {
            steps: 0,
            reserved: 0,
            limit,
        };
        Self { work }
    }

    /// Sets steps aside before they are taken.
    pub(super) fn reserve(&mut self, steps: u64) -> Result<(), Overrun> {
        let reserved = self.work.reserved.saturating_add(steps);
        if reserved > self.work.limit {
            return Err(Overrun {
                steps: reserved,
                limit: self.work.limit,
            });
        }
        self.work.reserved = reserved;
        Ok(())
    }

    /// Counts steps as they are taken.
    pub(super) fn take(&mut self, steps: u64) {
        self.work.steps = self.work.steps.saturating_add(steps);
    }

    pub(super) fn work(&self) -> Work {
        self.work
    }
}

/// Elements of a whole program; linear in them.
pub(super) fn program_elements(program: &Program) -> u64 {
    let plan_steps: u64 = program.plans.iter().map(plan_elements).sum();
    let kernel_steps = program.kernels.len() + program.blobs.len();
    graph_elements(&program.graph)
        + machine_elements(&program.machine)
        + plan_steps
        + kernel_steps as u64
}

/// Actors, ports and what else is listed in a graph.
pub(super) fn graph_elements(graph: &Graph) -> u64 {
    let actor_elements = graph.actors.iter().map(|actor| {
        let port_count = actor.inputs.len() + actor.outputs.len();
        1 + port_count + actor.state.len() + actor.in_place.len() + actor.params.len()
    });
    let channel_elements = graph.channels.iter().map(|c| 1 + c.readers.len());

    let element_count: usize = actor_elements.sum::<usize>() + channel_elements.sum::<usize>();
    element_count as u64
}

pub(super) fn machine_elements(machine: &Machine) -> u64 {
    let core_count: usize = machine.devices.iter().map(|d| d.cores.len()).sum();
    // A device is in one host.
    let hosted_count: usize = machine
        .hosts
        .iter()
        .map(|host| 1 + host.devices.len())
        .sum();
    (machine.devices.len() + machine.links.runs().len() + core_count + hosted_count) as u64
}

/// Slots and what else is listed in a plan. Recursion is as deep as the bundle's decoder allows.
pub(super) fn plan_elements(plan: &Plan) -> u64 {
    let lanes = plan.calendars.iter().flat_map(|c| &c.lanes);
    let lane_entries: usize = lanes
        .map(
            |Lane {
                 entries: lane_entries,
                 ..
             }| entry_count(lane_entries),
        )
        .sum();
    let table_rows =
        plan.placement.len() + plan.buffers.len() + plan.rings.len() + plan.variants.len();
    (1 + plan.calendars.len() + lane_entries + table_rows) as u64
}

fn entry_count(entries: &[Entry]) -> usize {
    let entry_counts = entries.iter().map(|entry| match entry {
        Entry::Slot(_) => 1,
        Entry::Loop { body, .. } => 1 + entry_count(body),
    });
    entry_counts.sum()
}
