//! Why an actor runs where it runs, and what would have to change: told from the plan, and from plans made again with
//! the actor elsewhere and all else in its place.
//!
//! A bundle holds no costs of what was not chosen. They are computed again: by the roofline, or as measured where the
//! machine file with the measurements is given. Pins are not in a bundle either.

use zbmd_backends::op::Registry;
use zbmd_ir::text::{Table, bytes, count, duration, left, right};
use zbmd_ir::verify::Verified;
use zbmd_ir::{ActorCost, ActorId, Costs, DeviceId, Plan, PlanId, Program};
use zbmd_scheduler::{Block, Options, schedule};

use crate::cost_table::CostSources;
use crate::costs::MeasuredCosts;
use crate::target::Target;
use crate::view::{Act, PlanView, View};

/// Devices that an actor is tried on; the first so many.
const TRIED: usize = 16;

/// What would be if the actor ran on another device, all else in place.
#[derive(Clone, Debug, PartialEq)]
pub enum Elsewhere {
    /// It would be so.
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
    /// Time that the actor's calls would take there in a period; none without a kernel.
    pub busy_ns: Option<u64>,
    /// What would be.
    pub outcome: Elsewhere,
}

/// Something that an actor waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// What it is: a slot of its lane, or tokens.
    pub what: String,
    /// When it is there, counted from the start of the actor's period; 0 where it was there before.
    pub ready_ns: u64,
}

/// Why an actor runs where it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// The actor, its op and where it is.
    pub headline: String,
    /// Start of its first slot.
    pub start_ns: u64,
    /// What it waits for, the last first.
    pub waits: Vec<Wait>,
    /// Its device first, then the others.
    pub choices: Vec<Choice>,
    /// What follows, a sentence each.
    pub reasons: Vec<String>,
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The actor.
    pub actor: ActorId,
    /// The only device to tell of beside its own; all if none.
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
        };
        let sources = CostSources {
            target: &target,
            registry: question.registry,
            blobs: &program.blobs,
        };
        let costs = sources.cost_table(&program.graph);
        let asked = Asked {
            program,
            view,
            costs,
            question,
        };
        asked.answer()
    }
}

struct Asked<'a> {
    program: &'a Verified<Program>,
    view: &'a View,
    costs: Costs,
    question: Question<'a>,
}

impl Asked<'_> {
    fn answer(&self) -> Why {
        let (plan, shown) = (&self.program.plans[PlanId(0)], &self.view.plans[0]);
        let id = self.question.actor;
        let (actor, fired) = (&self.view.actors[id.index()], &shown.actors[id.index()]);
        let here = plan.placement[id];
        let share = 100.0 * fired.busy_ns as f64 / plan.period_ns.max(1) as f64;
        let headline = format!(
            "{}   {}   on {}   stage {}   {} in {}   {} of a period, {share:.1} %",
            actor.name,
            actor.op,
            self.view.devices[here.index()].name,
            fired.stage,
            count(fired.firings, "firing"),
            count(fired.calls, "call"),
            duration(fired.busy_ns)
        );
        let mut choices = vec![self.choice(plan, here)];
        let others = self.program.machine.devices.keys().filter(|&d| d != here);
        let wanted = others.filter(|d| self.question.not.is_none_or(|not| not == *d));
        choices.extend(wanted.take(TRIED).map(|d| self.choice(plan, d)));
        let reasons = self.reasons(shown, &choices);
        let mut waits = self.waits(shown);
        waits.sort_by_key(|w| std::cmp::Reverse(w.ready_ns));
        Why {
            headline,
            start_ns: fired.start_ns,
            waits,
            choices,
            reasons,
        }
    }

    /// What a period would be with the actor on that device and all else in its place.
    fn choice(&self, plan: &Plan, device: DeviceId) -> Choice {
        let id = self.question.actor;
        let name = self.program.machine.devices[device].name.clone();
        let fired = &self.view.plans[0].actors[id.index()];
        let cost: Option<ActorCost> = self.costs.table[id][device];
        let busy_ns = cost.map(|c| {
            let calls = c.call_ps.saturating_mul(fired.calls);
            calls
                .saturating_add(c.firing_ps.saturating_mul(fired.firings))
                .div_ceil(1000)
        });
        let outcome = if busy_ns.is_none() {
            let op = &self.program.graph.actors[id].op;
            Elsewhere::Impossible(format!("{name} has no kernel for {op}"))
        } else {
            self.again(plan, device)
        };
        Choice {
            device,
            name,
            busy_ns,
            outcome,
        }
    }

    fn again(&self, plan: &Plan, device: DeviceId) -> Elsewhere {
        let mut pins: std::collections::BTreeMap<_, _> = plan
            .placement
            .iter_enumerated()
            .map(|(a, &d)| (a, d))
            .collect();
        pins.insert(self.question.actor, device);
        let options = Options {
            block: Block::Fixed(plan.block),
            pins,
            ..Options::default()
        };
        let (graph, machine) = (&self.program.graph, &self.program.machine);
        match schedule(graph, machine, &self.costs, &options) {
            Ok(plans) => Elsewhere::Plan {
                period_ns: plans[0].period_ns,
                bound_by: plans[0].bound_by.clone(),
                moved_bytes: moved(self.program, &plans[0]),
            },
            Err(error) => Elsewhere::Impossible(error.to_string()),
        }
    }

    /// What the first slot of the actor waits for.
    fn waits(&self, shown: &PlanView) -> Vec<Wait> {
        let id = self.question.actor.0;
        let fired = &shown.actors[id as usize];
        let mut out = Vec::new();
        let Some(lane) = shown.lanes.get(fired.lane as usize) else {
            return out;
        };
        let at = lane.slots.partition_point(|s| s.start_ns < fired.start_ns);
        if let Some(before) = at.checked_sub(1).and_then(|i| lane.slots.get(i)) {
            let what = format!(
                "its lane, where {} is before it",
                self.view.label(shown, before)
            );
            out.push(Wait {
                what,
                ready_ns: before.end_ns(),
            });
        }
        for port in &self.view.actors[id as usize].inputs {
            let Some(channel) = self.view.channels.get(port.channel as usize) else {
                continue;
            };
            let writer = &shown.actors[channel.from as usize];
            let (from, name) = (
                &self.view.devices[writer.device as usize].name,
                &channel.name,
            );
            let earlier = fired.stage.saturating_sub(writer.stage);
            let there = shown
                .rings
                .iter()
                .position(|r| (r.channel, r.to) == (port.channel, fired.device));
            let received = there.and_then(|ring| {
                let recv = |s: &&crate::view::SlotView| s.act == Act::Recv && s.id as usize == ring;
                let slots = shown.lanes.iter().filter(|l| l.device == fired.device);
                slots
                    .flat_map(|l| &l.slots)
                    .find(recv)
                    .map(super::view::SlotView::end_ns)
            });
            out.push(match received {
                Some(ready_ns) => Wait {
                    what: format!("tokens of {name} from {from}, received"),
                    ready_ns,
                },
                None if channel.from == id => Wait {
                    what: format!("its own {name}"),
                    ready_ns: 0,
                },
                None if earlier > 0 => {
                    let what = format!("tokens of {name}, made {} before", periods(earlier));
                    Wait { what, ready_ns: 0 }
                }
                // A reader with enough initial tokens need not wait for the writer.
                None if writer.start_ns >= fired.start_ns => Wait {
                    what: format!("tokens of {name}, there from the start"),
                    ready_ns: 0,
                },
                None => Wait {
                    what: format!("tokens of {name}"),
                    ready_ns: writer.end_ns.min(fired.start_ns),
                },
            });
        }
        out
    }

    fn reasons(&self, shown: &PlanView, choices: &[Choice]) -> Vec<String> {
        let (here, others) = (&choices[0], &choices[1..]);
        let mut out = Vec::new();
        let mut say = |text: String| out.push(text);
        let fired = &shown.actors[self.question.actor.index()];
        if let Some(busy) = here.busy_ns
            && busy.abs_diff(fired.busy_ns) * 20 > fired.busy_ns
        {
            say(format!(
                "the bundle was planned with other costs ({} here, now {}): give the same with --machine",
                duration(fired.busy_ns),
                duration(busy)
            ));
        }
        let Elsewhere::Plan {
            period_ns: now,
            moved_bytes: moves,
            ..
        } = &here.outcome
        else {
            say(format!(
                "the plan cannot be made again: {}",
                words(&here.outcome)
            ));
            return out;
        };
        for other in others {
            say(reason(&here.name, (*now, *moves), other));
        }
        if others.is_empty() {
            say("there is no other device".to_owned());
        }
        out
    }
}

/// What speaks against a device, or for it.
fn reason(here: &str, (now, moves): (u64, u64), other: &Choice) -> String {
    let name = &other.name;
    let (period, bound_by, moved) = match &other.outcome {
        Elsewhere::Impossible(why) => return format!("not on {name}: {why}"),
        Elsewhere::Plan {
            period_ns,
            bound_by,
            moved_bytes,
        } => (*period_ns, bound_by, *moved_bytes),
    };
    if period == now {
        return format!(
            "{name} would do as well as {here}: the period would stay {}",
            duration(now)
        );
    }
    let percent = 100.0 * (period as f64 / now.max(1) as f64 - 1.0);
    let (was, is) = (duration(now), duration(period));
    let traffic = match moved.cmp(&moves) {
        std::cmp::Ordering::Greater => {
            format!(", with {} more between devices", bytes(moved - moves))
        }
        std::cmp::Ordering::Less => format!(", with {} less between devices", bytes(moves - moved)),
        std::cmp::Ordering::Equal => String::new(),
    };
    if period < now {
        return format!(
            "{name} would be better: {is} instead of {was} ({percent:+.1} %){traffic}; the model pins the actor, or the search did not look far enough: try --solve balanced"
        );
    }
    let mut text = format!(
        "not on {name}: the period would be {is} instead of {was} ({percent:+.1} %){traffic}, bound by {bound_by}"
    );
    let longer = period - now;
    if let Some(busy) = other.busy_ns.filter(|_| bound_by == name) {
        text += &match busy.checked_sub(longer).filter(|&b| b > 0) {
            Some(most) => format!(
                "; it would have to take at most {} there instead of {}",
                duration(most),
                duration(busy)
            ),
            None => format!("; {name} would be too busy with what else is there"),
        };
    }
    text
}

fn words(outcome: &Elsewhere) -> String {
    match outcome {
        Elsewhere::Impossible(why) => why.clone(),
        Elsewhere::Plan {
            period_ns,
            bound_by,
            ..
        } => {
            format!("period {}, bound by {bound_by}", duration(*period_ns))
        }
    }
}

fn periods(n: u32) -> String {
    if n == 1 {
        "a period".to_owned()
    } else {
        format!("{n} periods")
    }
}

/// Bytes that go between devices in a block.
fn moved(program: &Program, plan: &Plan) -> u64 {
    let size = |ring: &zbmd_ir::Ring| {
        let tokens = plan.buffers[ring.buffer].block_tokens;
        tokens.saturating_mul(program.graph.channels[ring.channel].token.bytes())
    };
    plan.rings.iter().map(size).fold(0, u64::saturating_add)
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}\n", self.headline)?;
        writeln!(f, "starts at {}, after", duration(self.start_ns))?;
        let mut table = Table::default();
        for wait in &self.waits {
            let when = match wait.ready_ns {
                0 => "there before".to_owned(),
                ns if ns == self.start_ns => {
                    format!("ready at {}: it waits for this", duration(ns))
                }
                ns => format!("ready at {}", duration(ns)),
            };
            table.row(1, vec![left(wait.what.clone()), left(when)]);
        }
        if self.waits.is_empty() {
            table.text(1, "nothing");
        }
        let mut out = String::new();
        table.write(&mut out);
        let mut table = Table::default();
        for choice in &self.choices {
            let busy = choice.busy_ns.map_or("no kernel".to_owned(), |ns| {
                format!("{} of a period", duration(ns))
            });
            table.row(
                1,
                vec![
                    left(choice.name.clone()),
                    right(busy),
                    left(words(&choice.outcome)),
                ],
            );
        }
        out += "\nby the cost model, all else in its place\n";
        table.write(&mut out);
        out.push('\n');
        for reason in &self.reasons {
            out += &format!("{reason}\n");
        }
        f.write_str(&out)
    }
}
