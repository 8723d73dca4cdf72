//! The modes of a model in text: which there are, and the model of each. Knows no plan.

use std::fmt;

use zbmd_ir::verify::{ModesError, VerifiedModes};
use zbmd_ir::{Mode, ModeDecision, Modes, Program, text};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::model::{ModeFrom, Model};
use crate::parse::{Node, NodeKind};
use crate::self_timed::LegTimes;
use crate::source::{Span, Spanned};

/// What a text says of its modes. The first is the one that a run begins in.
#[derive(Clone, Debug)]
pub(crate) struct ModeList {
    pub(crate) names: Vec<Spanned<String>>,
    changes: Vec<(u32, u32)>,
    /// What decides, and for each mode as written its place among the names.
    decision: Option<(ModeFrom, Vec<u32>)>,
}

impl ModeList {
    /// The modes of a model; `None` if it has none, or they cannot be, which has been reported.
    pub(crate) fn of(model: &Model, sink: &mut Sink) -> Option<Self> {
        let mut names: Vec<Spanned<String>> = model.modes.iter().map(|m| m.name.clone()).collect();
        if let Some(initial) = &model.initial_mode {
            let found = find(&names, initial, sink)?;
            names[..=found as usize].rotate_right(1);
        }
        if names.is_empty() {
            // Changes between modes that are not there are refused like those that name an unknown one.
            for (from, _) in model.changes.iter().flatten() {
                find(&names, from, sink);
            }
            for (_, mode) in late_modes(model) {
                find(&names, &mode, sink);
            }
            if let Some(ModeFrom { from, .. }) = &model.mode_from {
                let message = format!(
                    "`{}` is to decide about modes, and there are none",
                    from.value
                );
                sink.push(refuse(message, from.span).help("add `modes`, or leave `mode_from` out"));
            }
            return None;
        }

        let mut changes = Vec::new();
        match &model.changes {
            None => {
                let count = names.len() as u32;
                let all = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
                changes.extend(all.filter(|(from, to)| from != to));
            }
            Some(pairs) => {
                for (from, to) in pairs {
                    let pair = (find(&names, from, sink)?, find(&names, to, sink)?);
                    if pair.0 == pair.1 || changes.contains(&pair) {
                        let message = format!(
                            "the change from mode `{}` to `{}` changes nothing",
                            from.value, to.value
                        );
                        let refusal = Diagnostic::new(Code::E0219, message)
                            .primary(from.span, "itself, or a change that was listed before")
                            .help("remove it");
                        sink.push(refusal);
                        return None;
                    }
                    changes.push(pair);
                }
            }
        }
        let written = model.modes.iter();
        let places = written.filter_map(|mode| {
            let place = names.iter().position(|name| name.value == mode.name.value);
            place.map(|place| place as u32)
        });
        let places: Vec<u32> = places.collect();
        let decision = model.mode_from.clone().map(|from| (from, places));
        let list = Self {
            names,
            changes,
            decision,
        };
        list.check_late_modes(model, sink)?;
        Some(list)
    }

    /// Refuses sinks whose late blocks ask for a mode that is not there, or that the run may not go to from any other: then a
    /// block that is late there would change nothing.
    fn check_late_modes(&self, model: &Model, sink: &mut Sink) -> Option<()> {
        for (stream, mode) in late_modes(model) {
            let target = find(&self.names, &mode, sink)?;
            let all = (0..).zip(&self.names);
            let mut barred =
                all.filter(|(from, _)| *from != target && !self.changes.contains(&(*from, target)));
            if let Some((_, from)) = barred.next() {
                let message = format!(
                    "late blocks of `{stream}` ask for mode `{}`, to which no change goes from mode `{}`",
                    mode.value, from.value
                );
                let refusal = refuse(message, mode.span).help(format!(
                    "add `(\"{}\", \"{}\")` to `changes`",
                    from.value, mode.value
                ));
                sink.push(refusal);
                return None;
            }
        }
        Some(())
    }

    /// The programs of all modes together, in the order of the names.
    pub(crate) fn join(&self, programs: Vec<Program>) -> Modes {
        let decision = self.decision.as_ref().map(|(decides, places)| {
            let (actor, port) = writer_of(&decides.from.value, &programs);
            ModeDecision {
                actor,
                port,
                modes: places.clone(),
                every: decides.every,
            }
        });
        let names = self.names.iter().map(|name| name.value.clone());
        let list = names.zip(programs);
        Modes {
            list: list.map(|(name, program)| Mode { name, program }).collect(),
            changes: self.changes.clone(),
            decision,
        }
    }

    /// Where the text says what decides, if it does: else where the last mode stands.
    pub(crate) fn span_of(&self, error: &ModesError) -> Span {
        match (&self.decision, error) {
            (Some((decides, _)), ModesError::Decision { .. }) => decides.from.span,
            _ => self.names.last().map_or(Span::NONE, |name| name.span),
        }
    }
}

/// The actor and the output that `actor` or `actor.port` names. An output that is not there has a number that none has.
fn writer_of(name: &str, programs: &[Program]) -> (String, u32) {
    let graphs = || programs.iter().map(|program| &program.graph);
    if graphs().any(|graph| graph.find(name).is_some()) {
        return (name.to_owned(), 0);
    }
    let Some((actor, port)) = name.rsplit_once('.') else {
        return (name.to_owned(), 0);
    };
    let place = graphs().find_map(|graph| {
        let mut outputs = graph.actors[graph.find(actor)?].outputs.iter();
        outputs.position(|output| output.name == port)
    });
    (
        actor.to_owned(),
        place.map_or(u32::MAX, |place| place as u32),
    )
}

/// What modes cost, over all sequences of changes that are allowed, if slots take no longer than planned. What it takes the
/// run to go over comes on top.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeBounds {
    /// For each mode its name, and period and latency of its main plan.
    pub modes: Vec<ModeBound>,
    /// The longest time that a block takes on average, over any sequence of changes that comes back to its first mode: the
    /// longest cycle of modes in relation to its blocks, each of as many blocks as is worst, or the longest period.
    pub mean_ns: u64,
    /// The change after which an output may come latest.
    pub worst: Option<ChangeBound>,
}

/// Planned times of one mode on the whole machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeBound {
    /// Its name.
    pub name: String,
    /// Iterations of a block.
    pub block: u64,
    /// Time from block to block.
    pub period_ns: u64,
    /// Time from a block's input to its output.
    pub latency_ns: u64,
}

/// Planned latency over a change: the block that is first in the new mode waits until the last one of the old mode is out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeBound {
    /// The old mode.
    pub from: String,
    /// The new one.
    pub to: String,
    /// From the input of the last block in the old mode to the output of the first in the new one.
    pub latency_ns: u64,
}

impl ModeBounds {
    /// The bounds of verified modes. A run goes over with an empty pipeline, so what it takes in a mode depends on no other.
    pub fn of(modes: &VerifiedModes) -> Self {
        let programs = modes.names().iter().zip(modes.programs());
        let bounds = programs.map(|(name, program)| {
            let main = program.plans.first();
            ModeBound {
                name: name.clone(),
                block: main.map_or(1, |plan| plan.block),
                period_ns: main.map_or(0, |plan| plan.period_ns),
                latency_ns: main.map_or(0, |plan| plan.latency_ns),
            }
        });
        let bounds: Vec<ModeBound> = bounds.collect();
        let legs = modes.programs().iter().filter_map(|program| {
            let plan = program.plans.first()?;
            Some(LegTimes::of(&program.graph, &program.machine, plan))
        });
        let legs: Vec<LegTimes> = legs.collect();
        let known = legs.len() as u32;
        let changes = modes.changes().iter();
        let changes: Vec<(usize, usize)> = changes
            .filter(|(from, to)| *from < known && *to < known)
            .map(|&(from, to)| (from as usize, to as usize))
            .collect();

        let worst = changes.iter().map(|&(from, to)| ChangeBound {
            from: bounds[from].name.clone(),
            to: bounds[to].name.clone(),
            latency_ns: legs[from].drain_ns.saturating_add(legs[to].first_output_ns),
        });
        Self {
            mean_ns: longest_mean(&legs, &changes, &bounds),
            worst: worst.max_by_key(|change| change.latency_ns),
            modes: bounds,
        }
    }
}

/// The longest mean time of a block over cycles of changes, in whole nanoseconds, rounded up: the least r such that no cycle
/// of legs takes longer than r times its blocks.
fn longest_mean(legs: &[LegTimes], changes: &[(usize, usize)], bounds: &[ModeBound]) -> u64 {
    let period = bounds.iter().map(|mode| mode.period_ns).max().unwrap_or(0);
    let longest = legs.iter().flat_map(|leg| &leg.durations_ns).max();
    let (mut low, mut high) = (period, period.max(longest.copied().unwrap_or(0)));
    while low < high {
        let middle = low + (high - low) / 2;
        match has_longer_cycle(legs, changes, middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low
}

/// Whether some cycle of legs takes longer than so much a block (Bellman-Ford).
fn has_longer_cycle(legs: &[LegTimes], changes: &[(usize, usize)], mean_ns: u64) -> bool {
    let excess = |leg: &LegTimes| {
        let durations = (1i128..).zip(&leg.durations_ns);
        let excess = durations
            .map(|(blocks, duration_ns)| i128::from(*duration_ns) - blocks * i128::from(mean_ns));
        excess.max().unwrap_or(0)
    };
    let excesses: Vec<i128> = legs.iter().map(excess).collect();
    let mut most = vec![0i128; legs.len()];
    for _ in 0..=legs.len() {
        let mut has_grown = false;
        for &(from, to) in changes {
            let reached = most[from] + excesses[from];
            if reached > most[to] {
                most[to] = reached;
                has_grown = true;
            }
        }
        if !has_grown {
            return false;
        }
    }
    true
}

impl fmt::Display for ModeBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mode in &self.modes {
            let ModeBound {
                name,
                block,
                period_ns,
                latency_ns,
            } = mode;
            writeln!(
                f,
                "mode {name}: {block} iterations a block, period {}, latency {}",
                text::duration(*period_ns),
                text::duration(*latency_ns)
            )?;
        }
        write!(
            f,
            "over all changes: a block takes at most {} on average",
            text::duration(self.mean_ns)
        )?;
        match &self.worst {
            Some(worst) => write!(
                f,
                ", latency at most {} (first block after {} -> {})",
                text::duration(worst.latency_ns),
                worst.from,
                worst.to
            ),
            None => Ok(()),
        }
    }
}

/// What stands in `Mode(…)`, if a node is that.
pub(crate) fn mode_call(node: &Node) -> Option<&Node> {
    match &node.kind {
        NodeKind::Call(Some(name), args) if name.value == "Mode" => match args.as_slice() {
            [arg] if arg.name.is_none() => Some(&arg.value),
            _ => None,
        },
        _ => None,
    }
}

/// The sinks whose late blocks ask for a mode, and which.
fn late_modes(model: &Model) -> Vec<(&str, Spanned<String>)> {
    let sinks = model.sinks.iter();
    let with_modes = sinks.filter_map(|stream| {
        let mode = mode_call(stream.on_miss.as_ref()?)?;
        match &mode.kind {
            NodeKind::Str(name) => {
                let name = Spanned::new(name.clone(), mode.span);
                Some((stream.name.value.as_str(), name))
            }
            // What else stands there is refused where it is read.
            _ => None,
        }
    });
    with_modes.collect()
}

/// E0219, for modes that cannot follow each other.
pub(crate) fn refuse(why: impl Into<String>, span: Span) -> Diagnostic {
    Diagnostic::new(Code::E0219, why).primary(span, if span.is_some() { "here" } else { "" })
}

fn find(names: &[Spanned<String>], wanted: &Spanned<String>, sink: &mut Sink) -> Option<u32> {
    let found = names.iter().position(|name| name.value == wanted.value);
    if found.is_none() {
        let known = names.iter().map(|name| name.value.as_str());
        let message = format!("there is no mode `{}`", wanted.value);
        let refusal = refuse(message, wanted.span).help(suggest(&wanted.value, known));
        sink.push(refusal);
    }
    found.map(|found| found as u32)
}
