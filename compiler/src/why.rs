//! Why an actor runs where it runs, and what would have to change: from the plan, and from plans made again with the
//! actor on another device and all others in their places.
//!
//! A bundle has no costs of devices that were not chosen. They are computed again: by the roofline, or as measured where
//! the machine file with the measurements is given. Pins are not in a bundle either.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::fmt;

use zbmd_backends::op::{GpuCapabilities, Registry};
use zbmd_ir::text::{Table, bytes, count, duration, left, right};
use zbmd_ir::verify::Verified;
use zbmd_ir::{ActorId, ClosedAnswer, Costs, DeviceId, Plan, PlanId, Program};
use zbmd_scheduler::{Block, ScheduleOptions, schedule};

use crate::cost_table::{CostSources, gate_openers};
use crate::costs::MeasuredCosts;
use crate::target::Target;
use crate::view::{Act, ChannelView, FiredView, PlanView, View};

/// Other devices that an actor is tried on at most.
const MAX_TRIED: usize = 16;

/// What the plan would be if the actor ran on another device, all others in their places.
#[derive(Clone, Debug, PartialEq)]
pub enum Elsewhere {
    /// The plan.
    Plan {
        /// Period of the plan made again with the actor there.
        period_ns: u64,
        /// What would limit it.
        bound_by: String,
        /// Bytes between devices in a block.
        moved_bytes: u64,
    },
    /// There is no such plan, and why.
    Impossible(String),
}

/// One device that an actor could run on.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The device.
    pub device: DeviceId,
    /// Its name.
    pub name: String,
    /// Time that the actor's calls would take there in a period; `None` without a kernel.
    pub busy_ns: Option<u64>,
    /// The plan with the actor there.
    pub outcome: Elsewhere,
}

/// Something that an actor waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// What it is: a slot of its lane, or tokens.
    pub what: String,
    /// When it is ready, counted from the start of the actor's period; 0 where it was ready before.
    pub ready_ns: u64,
}

/// Why an actor runs where it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// The actor, its op and its device.
    pub headline: String,
    /// Start of its first slot.
    pub start_ns: u64,
    /// What it waits for, the last first.
    pub waits: Vec<Wait>,
    /// Its device first, then the others.
    pub choices: Vec<Choice>,
    /// Conclusions, a sentence each.
    pub reasons: Vec<String>,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The actor.
    pub actor: ActorId,
    /// The only device to compare with the actor's own; all others if `None`.
    pub not: Option<DeviceId>,
    /// The catalogue that costs come from.
    pub registry: &'a Registry,
    /// What was measured.
    pub measured: &'a MeasuredCosts,
}

impl Why {
    /// Answers for the main plan. As quick as a schedule for each device.
    pub fn of(program: &Verified<Program>, view: &View, question: Question<'_>) -> Why {
        let target = Target {
            machine: program.machine.clone(),
            measured: question.measured.clone(),
            capabilities: GpuCapabilities::default(),
        };
        let cost_sources = CostSources {
            target: &target,
            registry: question.registry,
            blobs: &program.blobs,
        };

        let cost_table = cost_sources.cost_table(&program.graph);
        let inquiry = Inquiry {
            program,
            view,
            costs: cost_table,
            question,
        };

        inquiry.answer()
    }
}

/// A question about a program, with what is needed to answer it.
struct Inquiry<'a> {
    program: &'a Verified<Program>,
    view: &'a View,
    costs: Costs,
    question: Question<'a>,
}

impl Inquiry<'_> {
    fn answer(&self) -> Why {
        let actor_id = self.question.actor;
        // The actor's own device is tried as well: only plans made in the same way compare.
        let main_plan = &self.program.plans[PlanId(0)];
        let own_device = main_plan.placement[actor_id];

        let mut device_choices = vec![self.try_device(main_plan, own_device)];
        let devices = self.program.machine.devices.keys();
        let other_devices = devices.filter(|&device| device != own_device && self.is_asked(device));
        device_choices.extend(
            other_devices
                .take(MAX_TRIED)
                .map(|device| self.try_device(main_plan, device)),
        );

        let mut actor_waits = self.find_waits();

        // The last one is the reason for the start, so it comes first.
        actor_waits.sort_by_key(|wait| Reverse(wait.ready_ns));
        Why {
            headline: self.headline(main_plan),
            start_ns: self.run().start_ns,
            waits: actor_waits,
            reasons: self.explain(&device_choices),
            choices: device_choices,
        }
    }

    fn plan_view(&self) -> &PlanView {
        &self.view.plans[0]
    }

    /// The actor's part of the main plan.
    fn run(&self) -> &FiredView {
        &self.plan_view().actors[self.question.actor.index()]
    }

    /// Whether a device is to be compared with the actor's own.
    fn is_asked(&self, device: DeviceId) -> bool {
        self.question.not.is_none_or(|only| only == device)
    }

    fn headline(&self, plan: &Plan) -> String {
        let actor_id = self.question.actor;
        let actor = &self.view.actors[actor_id.index()];
        let device = &self.view.devices[plan.placement[actor_id].index()];
        let run = self.run();
        let share_percent = 100.0 * run.busy_ns as f64 / plan.period_ns.max(1) as f64;
        format!(
            "{}   {}   on {}   stage {}   {} in {}   {} of a period, {share_percent:.1} %",
            actor.name,
            actor.op,
            device.name_with_host(),
            run.stage,
            count(run.firings, "firing"),
            count(run.calls, "call"),
            duration(run.busy_ns)
        )
    }

    /// The plan with the actor on that device and all others in their places.
    fn try_device(&self, plan: &Plan, device: DeviceId) -> Choice {
        let actor_id = self.question.actor;
        let name = self.view.devices[device.index()].name_with_host();
        let run = self.run();
        let busy_ns = self.costs.table[actor_id][device].map(|cost| {
            // As many calls as in the plan: the block is kept.
            let calls_ps = cost.call_ps.saturating_mul(run.calls);
            let firings_ps = cost.firing_ps.saturating_mul(run.firings);
            calls_ps.saturating_add(firings_ps).div_ceil(1000)
        });

        let outcome = if busy_ns.is_some() {
            self.plan_again(plan, device)
        } else {
            Elsewhere::Impossible(self.missing_kernel(device, &name))
        };
        Choice {
            device,
            name,
            busy_ns,
            outcome,
        }
    }

    /// Why a device cannot have the actor at all.
    fn missing_kernel(&self, device: DeviceId, name: &str) -> String {
        let program = self.program;
        let actor = &program.graph.actors[self.question.actor];
        let op = &actor.op;
        let capabilities = GpuCapabilities::default();
        let capabilities = capabilities.of(&program.machine.devices[device]);
        let registry = self.question.registry;
        let reason = registry.gpu_reason(actor, &program.blobs, capabilities);
        match (reason, actor.gate()) {
            (Some(reason), Some(_)) => format!("{name} has no kernel for {op} behind a gate: {reason}"),
            (None, _) if self.opens_gates() => {
                "it opens a gate, and tokens that decide what a GPU launches are read on a CPU first".to_owned()
            }
            _ => format!("{name} has no kernel for {op}"),
        }
    }

    /// Whether the actor opens gates.
    fn opens_gates(&self) -> bool {
        gate_openers(&self.program.graph, |_| true).contains(&self.question.actor)
    }

    fn plan_again(&self, plan: &Plan, device: DeviceId) -> Elsewhere {
        let placement = plan.placement.iter_enumerated();
        let mut pins: BTreeMap<ActorId, DeviceId> =
            placement.map(|(actor, &device)| (actor, device)).collect();

        // Pinning all actors leaves nothing to search: the scheduler only plans again.
        pins.insert(self.question.actor, device);

        let plan_options = ScheduleOptions {
            block: Block::Fixed(plan.block),
            pins,
            ..ScheduleOptions::default()
        };

        let program = self.program;
        match schedule(&program.graph, &program.machine, &self.costs, &plan_options) {
            Ok(plans) => Elsewhere::Plan {
                period_ns: plans[0].period_ns,
                bound_by: plans[0].bound_by.clone(),
                moved_bytes: moved_bytes(program, &plans[0]),
            },
            Err(error) => Elsewhere::Impossible(error.to_string()),
        }
    }

    /// What the first slot of the actor waits for.
    fn find_waits(&self) -> Vec<Wait> {
        let plan = self.plan_view();
        let run = self.run();
        let Some(lane) = plan.lanes.get(run.lane as usize) else {
            return Vec::new();
        };

        let mut waits = Vec::new();

        // Lanes run slots in order: the one before must have ended.
        let slots_before = lane
            .slots
            .partition_point(|slot| slot.start_ns < run.start_ns);
        if let Some(previous) = lane.slots[..slots_before].last() {
            let label = self.view.label(plan, previous);
            waits.push(Wait {
                what: format!("its lane, where {label} is before it"),
                ready_ns: previous.end_ns(),
            });
        }

        let actor = &self.view.actors[self.question.actor.index()];
        for port in &actor.inputs {
            if let Some(channel) = self.view.channels.get(port.channel as usize) {
                waits.push(self.channel_wait(port.channel, channel));
            }
        }

        waits
    }

    /// When the tokens of a channel that the actor reads are there.
    fn channel_wait(&self, id: u32, channel: &ChannelView) -> Wait {
        let plan = self.plan_view();
        let run = self.run();
        let writer = &plan.actors[channel.from as usize];
        let name = &channel.name;
        if let Some(ready_ns) = self.received_ns(id) {
            let device = &self.view.devices[writer.device as usize].name;
            return Wait {
                what: format!("tokens of {name} from {device}, received"),
                ready_ns,
            };
        }

        // Software pipelining: a reader in a later stage reads tokens of an earlier period.
        let periods_before = run.stage.saturating_sub(writer.stage);
        let (what, ready_ns) = if channel.from == self.question.actor.0 {
            (format!("its own {name}"), 0)
        } else if periods_before > 0 {
            let period_count = describe_periods(periods_before);
            (format!("tokens of {name}, made {period_count} before"), 0)
        } else if writer.start_ns >= run.start_ns {
            // A reader with enough initial tokens need not wait for the writer.
            (format!("tokens of {name}, there from the start"), 0)
        } else {
            (format!("tokens of {name}"), writer.end_ns.min(run.start_ns))
        };
        Wait { what, ready_ns }
    }

    /// When the actor's device has received a channel's tokens, if they come from another one.
    fn received_ns(&self, channel: u32) -> Option<u64> {
        let plan = self.plan_view();
        let device = self.run().device;
        let ring_index = plan
            .rings
            .iter()
            .position(|ring| ring.channel == channel && ring.to == device)?;

        let device_lanes = plan.lanes.iter().filter(|lane| lane.device == device);
        let mut slots = device_lanes.flat_map(|lane| &lane.slots);
        let receipt = slots.find(|slot| slot.act == Act::Recv && slot.id as usize == ring_index)?;
        Some(receipt.end_ns())
    }

    /// Who opens the actor's gate, and what it gives while that is closed.
    fn describe_gate(&self) -> Option<String> {
        let actor = &self.program.graph.actors[self.question.actor];
        let gate = actor.gate()?;
        let port = &actor.inputs[gate.input as usize];
        let view = &self.view.actors[self.question.actor.index()];
        let read = view.inputs.get(gate.input as usize);
        let channel = read.and_then(|read| self.view.channels.get(read.channel as usize));
        let from = channel.map_or("its gate", |channel| channel.name.as_str());

        let tokens = match port.window {
            1 => "its token".to_owned(),
            window => format!("one of {window} tokens"),
        };
        let answers: Vec<&str> = gate.outputs.iter().map(|answer| answer.name()).collect();
        let answers = match answers.is_empty() {
            true => "nothing".to_owned(),
            false => answers.join(", "),
        };
        let states = match gate.states {
            ClosedAnswer::Hold => "kept",
            ClosedAnswer::Zero => "zeros",
        };
        let device = self.program.plans[PlanId(0)].placement[self.question.actor];
        let rest = match self.program.machine.devices[device].backend.is_gpu() {
            true => "a call whose firings are all closed is not launched",
            false => "closed, it takes no time of that which is reserved",
        };
        Some(format!(
            "open while {tokens} of {from} is not zero; {rest}, gives {answers} and its states are {states}"
        ))
    }

    /// What speaks for the actor's own device, which is the first choice, and against the others.
    fn explain(&self, choices: &[Choice]) -> Vec<String> {
        let own = &choices[0];
        let others = &choices[1..];
        let planned_ns = self.run().busy_ns;
        let mut reasons = Vec::new();
        reasons.extend(self.describe_gate());

        // More than five percent off is more than rounding.
        if let Some(busy_ns) = own.busy_ns
            && busy_ns.abs_diff(planned_ns) * 20 > planned_ns
        {
            reasons.push(format!(
                "the bundle was planned with other costs ({} here, now {}): give the same with --machine",
                duration(planned_ns),
                duration(busy_ns)
            ));
        }

        let Elsewhere::Plan {
            period_ns,
            moved_bytes,
            ..
        } = own.outcome
        else {
            let reason = describe_outcome(&own.outcome);
            reasons.push(format!("the plan cannot be made again: {reason}"));
            return reasons;
        };

        let current = CurrentPlan {
            device: &own.name,
            period_ns,
            moved_bytes,
        };

        reasons.extend(others.iter().map(|other| current.compare(other)));
        if others.is_empty() {
            reasons.push("there is no other device".to_owned());
        }
        reasons
    }
}

/// The plan with the actor on its own device.
struct CurrentPlan<'a> {
    device: &'a str,
    period_ns: u64,
    moved_bytes: u64,
}

impl CurrentPlan<'_> {
    /// What speaks against another device, or for it.
    fn compare(&self, other: &Choice) -> String {
        let name = &other.name;
        let (period_ns, bound_by, other_bytes) = match &other.outcome {
            Elsewhere::Impossible(reason) => return format!("not on {name}: {reason}"),
            Elsewhere::Plan {
                period_ns,
                bound_by,
                moved_bytes,
            } => (*period_ns, bound_by, *moved_bytes),
        };

        // Equal periods are common: the device is not what bounds it.
        if period_ns == self.period_ns {
            let device = self.device;
            let new_period = duration(period_ns);
            return format!(
                "{name} would do as well as {device}: the period would stay {new_period}"
            );
        }

        let change_percent = 100.0 * (period_ns as f64 / self.period_ns.max(1) as f64 - 1.0);
        let new_period = duration(period_ns);
        let own_period = duration(self.period_ns);
        let traffic_change = match other_bytes.cmp(&self.moved_bytes) {
            Ordering::Greater => {
                let more = bytes(other_bytes - self.moved_bytes);
                format!(", with {more} more between devices")
            }
            Ordering::Less => {
                let less = bytes(self.moved_bytes - other_bytes);
                format!(", with {less} less between devices")
            }
            Ordering::Equal => String::new(),
        };

        if period_ns < self.period_ns {
            return format!(
                "{name} would be better: {new_period} instead of {own_period} ({change_percent:+.1} %){traffic_change}; the model pins the actor, or the search did not look far enough: try --solve balanced"
            );
        }

        let mut text = format!(
            "not on {name}: the period would be {new_period} instead of {own_period} ({change_percent:+.1} %){traffic_change}, bound by {bound_by}"
        );

        // Only a device that bounds the period itself can be relieved by a quicker kernel.
        if let Some(busy_ns) = other.busy_ns.filter(|_| bound_by == name) {
            text += &describe_limit(name, busy_ns, period_ns - self.period_ns);
        }
        text
    }
}

/// What an actor would have to take on a device that it makes the bottleneck.
fn describe_limit(device: &str, busy_ns: u64, excess_ns: u64) -> String {
    match busy_ns.checked_sub(excess_ns).filter(|&limit| limit > 0) {
        Some(limit_ns) => {
            let limit = duration(limit_ns);
            let busy = duration(busy_ns);
            format!("; it would have to take at most {limit} there instead of {busy}")
        }
        None => format!("; {device} would be too busy with what else is there"),
    }
}

fn describe_outcome(outcome: &Elsewhere) -> String {
    match outcome {
        Elsewhere::Impossible(reason) => reason.clone(),
        Elsewhere::Plan {
            period_ns,
            bound_by,
            ..
        } => {
            let period = duration(*period_ns);
            format!("period {period}, bound by {bound_by}")
        }
    }
}

fn describe_periods(periods: u32) -> String {
    if periods == 1 {
        "a period".to_owned()
    } else {
        format!("{periods} periods")
    }
}

/// Bytes that go between devices in a block.
fn moved_bytes(program: &Program, plan: &Plan) -> u64 {
    let mut total_bytes: u64 = 0;
    for ring in &plan.rings {
        let tokens = plan.buffers[ring.buffer].block_tokens;
        let token_bytes = program.graph.channels[ring.channel].token.bytes();
        total_bytes = total_bytes.saturating_add(tokens.saturating_mul(token_bytes));
    }
    total_bytes
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.headline)?;
        writeln!(f, "starts at {}, after", duration(self.start_ns))?;
        f.write_str(&self.wait_table())?;

        f.write_str("\nby the cost model, all else in its place\n")?;
        f.write_str(&self.choice_table())?;

        writeln!(f)?;
        for reason in &self.reasons {
            writeln!(f, "{reason}")?;
        }
        Ok(())
    }
}

impl Why {
    fn wait_table(&self) -> String {
        let mut table = Table::default();
        for wait in &self.waits {
            let ready_time = duration(wait.ready_ns);
            let ready_text = match wait.ready_ns {
                0 => "there before".to_owned(),
                ns if ns == self.start_ns => format!("ready at {ready_time}: it waits for this"),
                _ => format!("ready at {ready_time}"),
            };

            table.row(1, vec![left(wait.what.clone()), left(ready_text)]);
        }

        if self.waits.is_empty() {
            table.text(1, "nothing");
        }

        let mut table_text = String::new();
        table.write(&mut table_text);
        table_text
    }

    fn choice_table(&self) -> String {
        let mut table = Table::default();
        for choice in &self.choices {
            let busy_text = match choice.busy_ns {
                Some(busy_ns) => format!("{} of a period", duration(busy_ns)),
                None => "no kernel".to_owned(),
            };
            let name_cell = left(choice.name.clone());
            let outcome_cell = left(describe_outcome(&choice.outcome));
            table.row(1, vec![name_cell, right(busy_text), outcome_cell]);
        }

        let mut table_text = String::new();
        table.write(&mut table_text);
        table_text
    }
}
