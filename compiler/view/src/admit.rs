//! Whether several programs fit on one machine together: the time of its lanes and links, and the memory of its devices.
//!
//! A program takes of a lane, or a link, the planned time of a block out of the time from one block to the next, which its sample rates
//! say. More than all of it cannot be had, whoever schedules; less may still be late, as programs wait for each other. What is looked at
//! are the plans without losses, of all modes, of each resource the most that a mode takes.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

use zbmd_ir::response::block_release_ns;
use zbmd_ir::text::{bytes, printable};
use zbmd_ir::verify::{Verified, VerifiedModes};
use zbmd_ir::{
    CpuReservation, Device, DeviceId, LaneKind, Machine, Plan, PlanId, Program, interference_ns,
    planned_calendar_ns, walk,
};

/// Something of which programs take shares. In the order in which it is listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Time of a device's lane.
    Lane {
        /// Name of the device.
        device: String,
        /// What follows the name: nothing for the lane that computes.
        kind: &'static str,
    },
    /// Time of a link.
    Link {
        /// Name of the device that sends.
        from: String,
        /// Name of the one that receives.
        to: String,
    },
    /// Arenas and exchange regions in a device's memory.
    Memory {
        /// Name of the device.
        device: String,
    },
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lane { device, kind } => write!(f, "{}{kind}", printable(device)),
            Self::Link { from, to } => write!(f, "{} -> {}", printable(from), printable(to)),
            Self::Memory { device } => write!(f, "{} memory", printable(device)),
        }
    }
}

/// Why it cannot be said what a program takes of a machine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DemandError {
    /// It runs as fast as it can.
    #[error(
        "no source and no sink of it has a sample rate, so it takes all that it can get; say how many iterations a second it is to run"
    )]
    NoRate,
    /// Its sample rates and the number of iterations that was given for it.
    #[error(
        "its streams have sample rates: leave out the {given} iterations a second that were given for it"
    )]
    TwoRates {
        /// Iterations in a second.
        given: f64,
    },
    /// It would not keep up alone.
    #[error(
        "{mode}a block comes every {release_ns} ns, and its plan needs {period_ns} ns for one: compile it for more or faster devices"
    )]
    TooSlow {
        /// The mode and what stands behind it; empty without modes.
        mode: String,
        /// From one block to the next.
        release_ns: u64,
        /// Period of the plan.
        period_ns: u64,
    },
    /// The machine has no such device.
    #[error(
        "it runs on `{}`, and the machine has no such device: compile it with --machine",
        printable(device)
    )]
    UnknownDevice {
        /// Its name.
        device: String,
    },
    /// The machine's device of that name is another.
    #[error(
        "it was compiled for another `{}` than the machine has ({field}: {planned}, and {found} there): compile it with --machine",
        printable(device)
    )]
    OtherDevice {
        /// Its name.
        device: String,
        /// What is different.
        field: &'static str,
        /// As the program has it.
        planned: String,
        /// As the machine has it.
        found: String,
    },
    /// The machine has no such link.
    #[error(
        "it sends from `{}` to `{}`, and the machine has no such link: compile it with --machine",
        printable(from),
        printable(to)
    )]
    UnknownLink {
        /// Name of the device that sends.
        from: String,
        /// Name of the one that receives.
        to: String,
    },
}

/// What one program takes of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// What it is called.
    pub name: String,
    /// Parts of time, or bytes.
    pub amounts: BTreeMap<Resource, f64>,
    /// What its workers of CPU devices are promised of cores where it is held to its share, of the mode that takes most.
    pub reservations: Vec<CpuReservation>,
}

impl Demand {
    /// What the modes of a program take, with so many iterations a second if no stream of it has a sample rate. O(slots).
    ///
    /// # Errors
    /// See [`DemandError`].
    pub fn of(
        name: &str,
        modes: &VerifiedModes,
        iterations_per_s: Option<f64>,
        machine: &Machine,
    ) -> Result<Self, DemandError> {
        let mut amounts = BTreeMap::new();
        let mut reservations: Vec<CpuReservation> = Vec::new();
        for (mode, program) in modes.names().iter().zip(modes.programs()) {
            let mode = match modes.has_modes() {
                true => format!("in mode {}, ", printable(mode)),
                false => String::new(),
            };
            let of_mode = mode_demand(mode, program, iterations_per_s, machine)?;
            let in_all = |reservations: &[CpuReservation]| -> f64 {
                reservations.iter().map(CpuReservation::share).sum()
            };
            if in_all(&of_mode.reservations) > in_all(&reservations) {
                reservations = of_mode.reservations;
            }
            for (resource, amount) in of_mode.amounts {
                let most = amounts.entry(resource).or_insert(0.0_f64);
                *most = most.max(amount);
            }
        }
        Ok(Self {
            name: name.to_owned(),
            amounts,
            reservations,
        })
    }
}

/// What one mode takes.
struct ModeDemand {
    amounts: BTreeMap<Resource, f64>,
    reservations: Vec<CpuReservation>,
}

fn mode_demand(
    mode: String,
    program: &Arc<Verified<Program>>,
    iterations_per_s: Option<f64>,
    machine: &Machine,
) -> Result<ModeDemand, DemandError> {
    let plan = &program.plans[PlanId(0)];
    let release_ns = match (block_release_ns(&program.graph, plan), iterations_per_s) {
        (Some(release_ns), None) => release_ns,
        (None, Some(rate)) => 1e9 * plan.block as f64 / rate,
        (None, None) => return Err(DemandError::NoRate),
        (Some(_), Some(given)) => return Err(DemandError::TwoRates { given }),
    };
    if plan.period_ns as f64 > release_ns {
        return Err(DemandError::TooSlow {
            mode,
            release_ns: release_ns as u64,
            period_ns: plan.period_ns,
        });
    }

    let mut amounts = BTreeMap::new();
    let mut reservations = Vec::new();
    for calendar in &plan.calendars {
        let device = &program.machine.devices[calendar.device];
        check_device(device, machine)?;
        let name = || device.name.clone();
        if device.backend.is_cpu() {
            let planned_ns = planned_calendar_ns(calendar) as f64;
            reservations.push(CpuReservation::for_blocks(planned_ns, release_ns));
        }
        let memory_bytes = calendar.arena_bytes.saturating_add(calendar.exchange_bytes);
        amounts.insert(Resource::Memory { device: name() }, memory_bytes as f64);
        for lane in &calendar.lanes {
            let kind = match lane.kind {
                LaneKind::Compute => "",
                LaneKind::CopyIn => " copy-in",
                LaneKind::CopyOut => " copy-out",
            };
            let device = name();
            let resource = Resource::Lane { device, kind };
            amounts.insert(resource, busy_ns(&lane.entries) as f64 / release_ns);
        }
    }
    add_links(program, plan, release_ns, machine, &mut amounts)?;
    Ok(ModeDemand {
        amounts,
        reservations,
    })
}

fn busy_ns(entries: &[zbmd_ir::Entry]) -> u64 {
    let mut busy_ns: u64 = 0;
    walk::visit_slots(entries, |visit| {
        let slot_ns = visit.slot.duration_ns.saturating_mul(visit.executions);
        busy_ns = busy_ns.saturating_add(slot_ns);
    });
    busy_ns
}

fn add_links(
    program: &Program,
    plan: &Plan,
    release_ns: f64,
    machine: &Machine,
    amounts: &mut BTreeMap<Resource, f64>,
) -> Result<(), DemandError> {
    for ring in &plan.rings {
        let name = |device: DeviceId| program.machine.devices[device].name.clone();
        let (from, to) = (name(ring.from), name(ring.to));
        let found = |name: &str| machine.devices.iter().position(|d| d.name == name);
        let link = match (found(&from), found(&to)) {
            (Some(from), Some(to)) => machine.link(from.into(), to.into()),
            _ => None,
        };
        let Some(link) = link else {
            return Err(DemandError::UnknownLink { from, to });
        };
        let token_bytes = program.graph.channels[ring.channel].token.bytes();
        let block_bytes = token_bytes.saturating_mul(plan.buffers[ring.buffer].block_tokens);
        let busy_ns = Machine::transfer_ps(&link, block_bytes) as f64 / 1000.0;
        *amounts.entry(Resource::Link { from, to }).or_default() += busy_ns / release_ns;
    }
    Ok(())
}

/// Times of a plan are those of the devices that it was made for.
fn check_device(planned: &Device, machine: &Machine) -> Result<(), DemandError> {
    let device = planned.name.clone();
    let found = machine.devices.iter().find(|d| d.name == device);
    let Some(found) = found else {
        return Err(DemandError::UnknownDevice { device });
    };
    let fields = [
        (
            "cores",
            planned.cores.len() as u64,
            found.cores.len() as u64,
        ),
        ("flops_per_s", planned.flops_per_s, found.flops_per_s),
        ("bytes_per_s", planned.bytes_per_s, found.bytes_per_s),
    ];
    let kinds = [&planned.backend, &found.backend].map(|kind| kind.to_string());
    let [planned_kind, found_kind] = kinds;
    let other = |field, planned, found| DemandError::OtherDevice {
        device: device.clone(),
        field,
        planned,
        found,
    };
    if planned_kind != found_kind {
        return Err(other("backend", planned_kind, found_kind));
    }
    match fields.iter().find(|(_, planned, found)| planned != found) {
        Some((field, planned, found)) => Err(other(field, planned.to_string(), found.to_string())),
        None => Ok(()),
    }
}

/// What is taken of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// The resource.
    pub resource: Resource,
    /// What each program takes, in the order of the demands.
    pub amounts: Vec<f64>,
    /// What there is: 1 for time, and bytes.
    pub capacity: f64,
}

impl Share {
    /// What all take together.
    pub fn total(&self) -> f64 {
        self.amounts.iter().sum()
    }

    /// Whether there is enough for all.
    pub fn fits(&self) -> bool {
        self.total() <= self.capacity
    }

    fn text(&self, amount: f64) -> String {
        match self.resource {
            Resource::Memory { .. } => bytes(amount as u64),
            Resource::Lane { .. } | Resource::Link { .. } => format!("{:.1} %", 100.0 * amount),
        }
    }
}

/// Whether programs fit on a machine together.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// Names of the programs.
    pub names: Vec<String>,
    /// What they take of each resource that one of them takes anything of.
    pub shares: Vec<Share>,
    /// How much later than alone blocks of each program may come where all are held to their shares, in nanoseconds; `None`
    /// where cores are too few to promise all of them.
    pub interference_ns: Option<Vec<u64>>,
}

impl Admission {
    /// Adds up what programs take of a machine. O(demands · resources · log resources).
    pub fn of(demands: &[Demand], machine: &Machine) -> Self {
        let mut resources: BTreeMap<&Resource, Vec<f64>> = BTreeMap::new();
        for (index, demand) in demands.iter().enumerate() {
            for (resource, amount) in &demand.amounts {
                let amounts = resources.entry(resource);
                amounts.or_insert_with(|| vec![0.0; demands.len()])[index] = *amount;
            }
        }
        let memory_bytes = |name: &str| {
            let device = machine.devices.iter().find(|device| device.name == name);
            device.map_or(0, |device| device.memory_bytes)
        };
        let shares = resources.into_iter().map(|(resource, amounts)| Share {
            capacity: match resource {
                Resource::Lane { .. } | Resource::Link { .. } => 1.0,
                Resource::Memory { device } => memory_bytes(device) as f64,
            },
            resource: resource.clone(),
            amounts,
        });
        let reservations = demands.iter().map(|demand| demand.reservations.clone());
        let reservations: Vec<Vec<CpuReservation>> = reservations.collect();
        let cpus = machine
            .devices
            .iter()
            .filter(|device| device.backend.is_cpu());
        let cores: usize = cpus.map(|device| device.cores.len().max(1)).sum();
        Self {
            shares: shares.collect(),
            interference_ns: interference_ns(&reservations, cores),
            names: demands.iter().map(|demand| demand.name.clone()).collect(),
        }
    }

    /// What there is too little of.
    pub fn failures(&self) -> impl Iterator<Item = &Share> {
        self.shares.iter().filter(|share| !share.fits())
    }

    /// A line for each resource: what each program takes of it, all together, and what is left.
    pub fn table(&self) -> String {
        let names = self.names.iter().map(|name| printable(name).into_owned());
        let first = std::iter::once("resource".to_owned());
        let last = ["all", "left"].map(str::to_owned);
        let mut rows = vec![first.chain(names).chain(last).collect::<Vec<_>>()];
        for share in &self.shares {
            let total = share.total();
            let left = match share.fits() {
                true => share.text(share.capacity - total),
                false => "none".to_owned(),
            };
            let mut row = vec![share.resource.to_string()];
            row.extend(share.amounts.iter().map(|amount| share.text(*amount)));
            row.extend([share.text(total), left]);
            rows.push(row);
        }

        let columns = self.names.len() + 3;
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &rows {
            let first = &row[0];
            let _ = write!(text, "{first:<width$}", width = widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                let _ = write!(text, "  {cell:>width$}");
            }
            text.push('\n');
        }
        text
    }

    /// A line on how long blocks of each program wait for others, at most, where all are held to their shares.
    pub fn interference_line(&self) -> String {
        let Some(waits_ns) = &self.interference_ns else {
            return "held to their shares (`zbmd-run --share`) they need more than all cores\n"
                .to_owned();
        };
        let waits = self.names.iter().zip(waits_ns);
        let waits = waits
            .map(|(name, wait_ns)| format!("{} {:.3} ms", printable(name), *wait_ns as f64 / 1e6));
        let waits: Vec<String> = waits.collect();
        format!(
            "held to their shares (`zbmd-run --share`), blocks come later than alone by at most: {}\n",
            waits.join(", ")
        )
    }

    /// A line for each resource of which there is too little: by how much, and who takes how much of it.
    pub fn failure_lines(&self) -> Vec<String> {
        let lines = self.failures().map(|share| {
            let takers = self.names.iter().zip(&share.amounts);
            let takers = takers.filter(|(_, amount)| **amount > 0.0);
            let takers =
                takers.map(|(name, amount)| format!("{} {}", printable(name), share.text(*amount)));
            format!(
                "{}: {} are asked for, {} more than the {} that there are: {}",
                share.resource,
                share.text(share.total()),
                share.text(share.total() - share.capacity),
                share.text(share.capacity),
                takers.collect::<Vec<_>>().join(", "),
            )
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> Resource {
        Resource::Lane {
            device: "cpu:0".to_owned(),
            kind: "",
        }
    }

    fn memory() -> Resource {
        Resource::Memory {
            device: "cpu:0".to_owned(),
        }
    }

    fn admission(loads: &[(f64, f64)]) -> Admission {
        let demands = loads.iter().zip(["a", "b", "c"]);
        let demands = demands.map(|(&(time, memory_bytes), name)| Demand {
            name: name.to_owned(),
            amounts: [(lane(), time), (memory(), memory_bytes)].into(),
            reservations: vec![CpuReservation::for_blocks(time * 1e7, 1e7)],
        });
        let machine = Machine {
            devices: vec![Device {
                name: "cpu:0".to_owned(),
                memory_bytes: 4096,
                ..zbmd_ir::testing::programs::pipeline().machine.devices[zbmd_ir::DeviceId(0)]
                    .clone()
            }]
            .into(),
            ..Machine::default()
        };
        Admission::of(&demands.collect::<Vec<_>>(), &machine)
    }

    #[test]
    fn what_is_left_is_said() {
        let admitted = admission(&[(0.25, 1024.0), (0.5, 1024.0)]);
        assert_eq!(admitted.failures().count(), 0);
        assert_eq!(
            admitted.table(),
            "resource           a       b     all    left\n\
             cpu:0         25.0 %  50.0 %  75.0 %  25.0 %\n\
             cpu:0 memory   1 KiB   1 KiB   2 KiB   2 KiB\n"
        );
        // All of it may be taken.
        assert_eq!(
            admission(&[(0.5, 2048.0), (0.5, 2048.0)])
                .failures()
                .count(),
            0
        );
    }

    #[test]
    fn what_fails_is_named_with_who_takes_it() {
        let refused = admission(&[(0.5, 0.0), (0.75, 3072.0), (0.25, 2048.0)]);
        assert_eq!(
            refused.failure_lines(),
            [
                "cpu:0: 150.0 % are asked for, 50.0 % more than the 100.0 % that there are: a 50.0 %, b 75.0 %, c 25.0 %",
                "cpu:0 memory: 5 KiB are asked for, 1 KiB more than the 4 KiB that there are: b 3 KiB, c 2 KiB",
            ]
        );
        assert!(refused.table().contains("none"));
    }
}
