//! Deadlines of sinks: which there are, whether the plans keep them, and what stands in the way where they do not.

use std::fmt::{self, Write};

use zbmd_ir::response::{DEADLINE, ResponseBound, SAMPLE_RATE, deadline_ns, response_bound};
use zbmd_ir::text::loss;
use zbmd_ir::{
    Action, ActorId, Contingencies, Graph, Machine, Plan, PlanId, Program, Role, TiSlice, text,
    walk,
};

use crate::build::BuiltGraph;
use crate::codes::Code;
use crate::diag::{Diagnostic, Sink};
use crate::planning::PlannedGraph;

/// A sink with a deadline, in one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadlineCheck {
    /// The sink.
    pub sink: String,
    /// What its response may take.
    pub limit_ns: u64,
    /// What it takes at most, by the planned costs.
    pub bound: ResponseBound,
    /// The devices that are lost when the plan runs, such as `1 like cpu:0`; empty for the plan of the whole machine.
    pub lost: String,
}

impl DeadlineCheck {
    /// Time left; `None` where the deadline does not hold.
    pub fn slack_ns(&self) -> Option<u64> {
        self.limit_ns.checked_sub(self.bound.response_ns?)
    }

    /// By what factor the time allowed is exceeded, for comparing plans that miss.
    fn excess(&self) -> f64 {
        match self.bound.response_ns {
            Some(response_ns) => response_ns as f64 / self.limit_ns.max(1) as f64,
            None => f64::INFINITY,
        }
    }
}

impl fmt::Display for DeadlineCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let duration = text::duration;
        write!(f, "deadline of `{}`", self.sink)?;
        if !self.lost.is_empty() {
            write!(f, " without {}", self.lost)?;
        }
        let release = duration(self.bound.release_ns);
        match (self.bound.response_ns, self.slack_ns()) {
            (Some(response_ns), Some(slack_ns)) => write!(
                f,
                ": at most {} of {} after the last of a block's tokens, which come in {release}; slack {}",
                duration(response_ns),
                duration(self.limit_ns),
                duration(slack_ns)
            ),
            (Some(response_ns), None) => write!(
                f,
                ": up to {} after the last of a block's tokens, {} are allowed",
                duration(response_ns),
                duration(self.limit_ns)
            ),
            (None, _) => write!(
                f,
                ": a block's tokens come in {release}, faster than the plan takes them"
            ),
        }
    }
}

/// Refuses deadlines that have no beginning: of sinks without a sample rate, or that no source leads to.
pub(crate) fn check_releases(model: &BuiltGraph, sink: &mut Sink) {
    let graph = &model.graph;
    for (id, actor) in graph.sinks() {
        if deadline_ns(graph, id).is_none() {
            continue;
        }
        let name = &actor.name;
        let has_source = graph
            .upstream_of(id)
            .iter()
            .any(|&upstream| graph.actors[upstream].role == Role::Source);
        let (problem, help) = match (has_source, actor.params.contains_key(SAMPLE_RATE)) {
            (true, true) => continue,
            (false, _) => (
                format!("sink `{name}` has a deadline, but no source leads to it"),
                "a response begins with the release of a source's tokens: leave the deadline out",
            ),
            (true, false) => (
                format!(
                    "sink `{name}` has a deadline, but no stream it depends on has a sample rate"
                ),
                "state the `sample_rate` of a source: it says when blocks are released",
            ),
        };
        let refusal = Diagnostic::new(Code::E0506, problem).help(help);
        let span = model.origins.deadlines.get(&id);
        sink.push(match span {
            Some(span) => refusal.primary(*span, "from when on?"),
            None => refusal,
        });
    }
}

/// The deadlines of a program, in the plan of the whole machine and in those for losses.
pub fn check_deadlines(program: &Program) -> Vec<DeadlineCheck> {
    let plans = Plans {
        machine: &program.machine,
        graph: &program.graph,
        plans: &program.plans,
        contingencies: &program.contingencies,
    };
    plans.check()
}

/// Plans and what they are for.
struct Plans<'a> {
    machine: &'a Machine,
    graph: &'a Graph,
    plans: &'a TiSlice<PlanId, Plan>,
    contingencies: &'a Contingencies,
}

impl Plans<'_> {
    fn check(&self) -> Vec<DeadlineCheck> {
        let mut checks = Vec::new();
        for (sink, actor) in self.graph.sinks() {
            let Some(limit_ns) = deadline_ns(self.graph, sink) else {
                continue;
            };
            let table = self.contingencies;
            let losses = self.contingencies.list.iter();
            let losses = losses.map(|entry| (entry.main, loss(self.machine, table, &entry.lost)));
            for (plan, lost) in std::iter::once((PlanId(0), String::new())).chain(losses) {
                if let Some(bound) = response_bound(self.graph, &self.plans[plan], sink) {
                    checks.push(DeadlineCheck {
                        sink: actor.name.clone(),
                        limit_ns,
                        bound,
                        lost,
                    });
                }
            }
        }
        checks
    }
}

/// A deadline that no plan found keeps, and what is in its way in the best of them.
pub(crate) struct MissedDeadline {
    check: DeadlineCheck,
    sink: ActorId,
    block: u64,
    busiest: Busiest,
}

/// The device with the most work in a plan, and the actor that is most of it.
struct Busiest {
    device: String,
    busy_ns: u64,
    actor: String,
    actor_ns: u64,
}

impl MissedDeadline {
    /// The deadline that is missed by most; `None` where all hold.
    pub(crate) fn find(planned: &PlannedGraph, machine: &Machine) -> Option<Self> {
        let plans = Plans {
            machine,
            graph: &planned.graph,
            plans: TiSlice::from_ref(&planned.plans),
            contingencies: &planned.contingencies,
        };
        let checks = plans.check().into_iter();
        let missed = checks.filter(|check| check.slack_ns().is_none());
        let check = missed.max_by(|one, other| one.excess().total_cmp(&other.excess()))?;
        let (sink, _) = planned
            .graph
            .sinks()
            .find(|(_, actor)| actor.name == check.sink)?;
        let plan = planned.plans.first()?;
        Some(Self {
            check,
            sink,
            block: plan.block,
            busiest: Busiest::of(plan, &planned.graph, machine),
        })
    }

    /// The one that is missed by less.
    pub(crate) fn closer(self, other: Self) -> Self {
        match other.check.excess() < self.check.excess() {
            true => other,
            false => self,
        }
    }

    pub(crate) fn draw(&self, model: &BuiltGraph) -> Diagnostic {
        let Busiest {
            device,
            busy_ns,
            actor,
            actor_ns,
        } = &self.busiest;
        let mut help = String::new();
        // Writing to a string cannot fail.
        let _ = write!(
            help,
            "blocks of {}, the closest that was found, keep {device} busy for {}, {} of it with `{actor}`: take more or \
             quicker devices, a cheaper `{actor}`, smaller blocks (`--block`), or allow more",
            self.block,
            text::duration(*busy_ns),
            text::duration(*actor_ns),
        );
        let refusal = Diagnostic::new(Code::E0508, self.check.to_string()).help(help);
        match model.origins.deadlines.get(&self.sink) {
            Some(span) => refusal.primary(*span, "allowed here"),
            None => refusal,
        }
    }
}

impl Busiest {
    fn of(plan: &Plan, graph: &Graph, machine: &Machine) -> Self {
        let mut busiest = Busiest {
            device: String::new(),
            busy_ns: 0,
            actor: String::new(),
            actor_ns: 0,
        };
        for calendar in &plan.calendars {
            let mut busy_ns = 0u64;
            let mut actor_ns = vec![0u64; graph.actors.len()];
            for lane in &calendar.lanes {
                walk::visit_slots(&lane.entries, |visit| {
                    let slot_ns = visit.slot.duration_ns.saturating_mul(visit.executions);
                    busy_ns = busy_ns.saturating_add(slot_ns);
                    if let Action::Fire { actor, .. } = visit.slot.action {
                        let total_ns = &mut actor_ns[actor.index()];
                        *total_ns = total_ns.saturating_add(slot_ns);
                    }
                });
            }

            let heaviest = (0..actor_ns.len()).max_by_key(|&index| actor_ns[index]);
            if let Some(heaviest) = heaviest.filter(|_| busy_ns >= busiest.busy_ns) {
                busiest = Busiest {
                    device: machine.devices[calendar.device].name.clone(),
                    busy_ns,
                    actor: graph.actors.raw[heaviest].name.clone(),
                    actor_ns: actor_ns[heaviest],
                };
            }
        }
        busiest
    }
}

/// Warns of sinks without a deadline whose sample rate is more than the plan keeps up with.
pub(crate) fn warn_of_slow_plans(
    model: &BuiltGraph,
    planned: &PlannedGraph,
    machine: &Machine,
    sink: &mut Sink,
) {
    let Some(plan) = planned.plans.first() else {
        return;
    };
    for (id, actor) in planned.graph.sinks() {
        let bound = response_bound(&planned.graph, plan, id);
        let Some(bound) = bound.filter(|bound| bound.response_ns.is_none()) else {
            continue;
        };
        let busiest = Busiest::of(plan, &planned.graph, machine);
        let message = format!(
            "blocks of {} take {}, and by the sample rate of `{}` one comes every {}",
            plan.block,
            text::duration(plan.period_ns),
            actor.name,
            text::duration(bound.release_ns),
        );
        let help = format!(
            "a run from files takes as long as it takes; a live one loses tokens: take more or quicker devices than {}, or a \
             cheaper `{}`",
            busiest.device, busiest.actor
        );
        let warning = Diagnostic::new(Code::W0502, message).help(help);
        let mut spans = model.origins.sample_rates.values();
        sink.push(match spans.next() {
            Some(span) => warning.primary(*span, "stated here"),
            None => warning,
        });
        // Sinks of one part of the graph are late together.
        return;
    }
}

/// The parameter under which a deadline is kept.
pub(crate) const PARAM: &str = DEADLINE;

#[cfg(test)]
mod tests {
    use zbmd_ir::response::{LatePolicy, ON_MISS, late_policy};

    use crate::{
        CompileOptions, Compiled, Diagnostics, MachineChoice, check_deadlines, compile_str,
    };

    /// A gain at that sample rate, whose sink has that deadline.
    fn compile(source: &str, sink: &str) -> Result<Compiled, Diagnostics> {
        let text = format!(
            r#"Model(
    sources: {{ "in": Stream(dtype: f32{source}) }},
    actors: {{ "half": Gain(0.5) }},
    channels: [(from: "in", to: ["half"]), (from: "half", to: ["out"])],
    sinks: {{ "out": Stream({sink}) }},
)"#
        );
        let options = CompileOptions {
            machine: MachineChoice::Uniform(1),
            ..CompileOptions::default()
        };
        compile_str("model.ron", &text, "", &options)
    }

    #[test]
    fn deadlines_that_make_no_sense_are_refused() {
        for (source, sink, code, message) in [
            (
                "",
                r#"deadline: "1ms""#,
                "E0506",
                "no stream it depends on has a sample rate",
            ),
            (
                r#", deadline: "1ms""#,
                "",
                "E0201",
                "a source has no deadline",
            ),
            (
                ", sample_rate: 1000",
                r#"deadline: "0s""#,
                "E0305",
                "a deadline is 0",
            ),
            (
                ", sample_rate: 1000",
                "deadline: soon",
                "E0203",
                "found the word `soon`",
            ),
            (", on_miss: drop", "", "E0201", "a source has no `on_miss`"),
            (
                ", sample_rate: 1000",
                r#"deadline: "1s", on_miss: skip"#,
                "E0203",
                "should be `wait`, `drop`, `hold` or `Mode(",
            ),
            (
                ", sample_rate: 1000",
                r#"deadline: "1 parsec""#,
                "E0203",
                "parsec",
            ),
            (
                ", sample_rate: 1000",
                r#"deadline: "1ns""#,
                "E0508",
                "1 ns are allowed",
            ),
            (
                ", sample_rate: 1e12",
                r#"deadline: "1s""#,
                "E0508",
                "faster than the plan takes them",
            ),
        ] {
            let refusal = compile(source, sink).expect_err(message);
            let codes: Vec<String> = refusal.list.iter().map(|d| d.code.to_string()).collect();
            assert_eq!(codes, [code], "{refusal:?}");
            let found = &refusal.list[0];
            let texts = format!("{} {:?}", found.message, found.labels);
            assert!(texts.contains(message), "{found:?}");
        }
    }

    #[test]
    fn what_becomes_of_late_blocks_is_in_the_bundle_if_the_model_says_it() {
        for (stated, expected) in [
            ("", None),
            (", on_miss: wait", None),
            (", on_miss: drop", Some(LatePolicy::Drop)),
            (r#", on_miss: "hold""#, Some(LatePolicy::Hold)),
        ] {
            let sink = format!(r#"deadline: "1s"{stated}"#);
            let compiled = compile(", sample_rate: 1000", &sink).expect("there is time");
            let graph = &compiled.program.graph;
            let (id, actor) = graph.sinks().next().expect("a sink");
            assert_eq!(actor.params.contains_key(ON_MISS), expected.is_some());
            assert_eq!(late_policy(graph, id), Ok(expected.unwrap_or_default()));
        }
    }

    #[test]
    fn shorter_deadlines_make_smaller_blocks() {
        let block = |deadline: &str| {
            let sink = format!(r#"deadline: "{deadline}""#);
            let compiled = compile(", sample_rate: 1000000", &sink).expect("there is time");
            let [check] = &check_deadlines(&compiled.program)[..] else {
                panic!("one sink, one plan")
            };
            assert!(check.slack_ns().is_some(), "{check}");
            compiled.program.plans[zbmd_ir::PlanId(0)].block
        };
        let long = block("1s");
        let short = block("500ns");
        assert!(short < long, "{short} of {long}");
    }

    #[test]
    fn streams_that_a_plan_cannot_follow_are_warned_of() {
        let compiled = compile(", sample_rate: 1e12", "").expect("no deadline");
        let codes: Vec<String> = compiled
            .warnings
            .list
            .iter()
            .map(|d| d.code.to_string())
            .collect();
        assert_eq!(codes, ["W0502"]);
        assert!(
            compile(", sample_rate: 1e6", "")
                .expect("slow")
                .warnings
                .list
                .is_empty()
        );
    }
}
