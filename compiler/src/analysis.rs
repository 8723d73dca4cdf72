//! What bounds a model, however it is scheduled: throughput, buffers, orders on one device.

use std::collections::BTreeMap;
use std::fmt;

use zbmd_backends::op::PortPhases;
use zbmd_ir::text::{count, duration};
use zbmd_ir::{ActorCost, ActorId, Costs, DeviceId, Graph, TiVec};
use zbmd_scheduler::PlanPoint;
use zbmd_scheduler::buffers::{self, BufferError, Mode, ParetoFront, Sizing, SizingLimits, Unit};
use zbmd_scheduler::order::{self, OrderError};
use zbmd_scheduler::replicate::{Obstacle, obstacles};
use zbmd_scheduler::throughput::{self, Throughput, ThroughputError, TimedSdf};

/// Buffers of an order of one iteration on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Most tokens that are on all channels together.
    pub tokens: u64,
    /// Calls in a row; in nested loops, those written down.
    pub calls: u64,
    /// Whether no order of its kind needs less.
    pub exact: bool,
}

/// The exact bounds of a graph, with every actor on the quickest device it has, and that device its own.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// Shortest period, in picoseconds, and the cycle that bounds it.
    pub throughput: Throughput,
    /// The smallest buffers that run at all.
    pub least: Sizing,
    /// The buffers asked for.
    pub buffers: Sizing,
    /// All trade-offs of tokens against the period.
    pub front: ParetoFront,
    /// Fewest tokens in one order of calls.
    pub interleaved: Result<Order, OrderError>,
    /// Every actor once, in nested loops.
    pub looped: Result<Order, OrderError>,
    /// Every actor once, all its firings in one call.
    pub flat: Result<Order, OrderError>,
    /// Plans for the machine between the shortest period and the shortest latency; none where there is no plan.
    pub plans: Vec<PlanPoint>,
    /// What bounds the graph where actors go through the phases of their firings one by one; `None` if none has phases.
    pub phases: Option<PhasedBounds>,
    /// Where one actor alone bounds the throughput: its name, and what prevents replicas of it on several devices.
    pub lone: Option<(String, Option<Obstacle>)>,
}

/// The bounds of a graph with cyclo-static rates, if each phase of a firing were scheduled by itself. A compiled firing is
/// a whole cycle of phases: these bounds say what that costs.
#[derive(Clone, Debug)]
pub struct PhasedBounds {
    /// Actors that have phases.
    pub actors: u64,
    /// Shortest period, in picoseconds.
    pub throughput: Throughput,
    /// The smallest buffers that run at all.
    pub least: Sizing,
    /// The buffers asked for.
    pub buffers: Sizing,
}

/// Why there is no analysis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnalysisRefused {
    /// The graph cannot be analysed.
    #[error(transparent)]
    Throughput(#[from] ThroughputError),
    /// No buffers do as asked.
    #[error(transparent)]
    Buffers(#[from] BufferError),
}

impl Analysis {
    /// Analyses a checked graph; `mode` states which buffers are wanted, `phases` the phases of actors that have any.
    ///
    /// # Errors
    /// [`AnalysisRefused`] where counts are too large, or no buffers do as asked.
    pub fn of(
        graph: &Graph,
        costs: &Costs,
        mode: Mode,
        phases: &BTreeMap<ActorId, PortPhases>,
    ) -> Result<Self, AnalysisRefused> {
        // Every actor has the quickest device for itself: no placement can do better.
        let firing_times = costs.table.iter().map(quickest_ps).collect();
        let sdf = TimedSdf::of(graph, &firing_times, Some(1));
        let search_limits = SizingLimits::default();
        let throughput = throughput::analyse(&sdf)?;

        Ok(Self {
            lone: find_lone_bound(graph, &throughput),
            throughput,
            plans: Vec::new(),
            phases: PhasedBounds::of(graph, &sdf, mode, phases)?,
            least: buffers::size(&sdf, Mode::Min(buffer_unit(mode)), search_limits)?,
            buffers: buffers::size(&sdf, mode, search_limits)?,
            front: buffers::front(&sdf, buffer_unit(mode), search_limits)?,
            interleaved: order::least_buffers(&sdf, search_limits).map(|found| Order {
                tokens: found.tokens,
                calls: found.calls.len() as u64,
                exact: found.exact,
            }),
            looped: order::looped(&sdf, usize::MAX).map(Order::of_loops),
            flat: order::flat(&sdf).map(Order::of_loops),
        })
    }
}

impl PhasedBounds {
    fn of(
        graph: &Graph,
        sdf: &TimedSdf,
        mode: Mode,
        phases: &BTreeMap<ActorId, PortPhases>,
    ) -> Result<Option<Self>, AnalysisRefused> {
        if phases.is_empty() {
            return Ok(None);
        }
        let mut phased = sdf.clone();
        for (&actor, port_phases) in phases {
            let time = sdf.actors[actor].time;
            phased.set_phase_times(actor, phase_times(time, port_phases));
        }
        for (id, channel) in graph.channels.iter_enumerated() {
            let written = phases.get(&channel.from.actor);
            let written = written.and_then(|p| p.outputs.get(channel.from.port as usize));
            if let Some(rates) = written {
                phased.set_written_phases(id, rates.clone())?;
            }
            for (index, reader) in channel.readers.iter().enumerate() {
                let read = phases.get(&reader.to.actor);
                let read = read.and_then(|p| p.inputs.get(reader.to.port as usize));
                if let Some(rates) = read {
                    phased.set_read_phases(id, index, rates.clone())?;
                }
            }
        }

        let search_limits = SizingLimits::default();
        Ok(Some(Self {
            actors: phases.len() as u64,
            throughput: throughput::analyse(&phased)?,
            least: buffers::size(&phased, Mode::Min(buffer_unit(mode)), search_limits)?,
            buffers: buffers::size(&phased, mode, search_limits)?,
        }))
    }
}

/// The time of each phase of a firing, which is spent on the tokens that it moves.
fn phase_times(time: u64, phases: &PortPhases) -> Vec<u64> {
    let ports = || phases.inputs.iter().chain(&phases.outputs);
    let count = ports().next().map_or(1, Vec::len);
    let moved_by = |phase: usize| ports().map(|rates| u128::from(rates[phase])).sum::<u128>();
    let all = (0..count).map(moved_by).sum::<u128>().max(1);
    // Rounded so that all phases together take the time of the firing.
    let mut moved = 0;
    let mut before = 0;
    let times = (0..count).map(|phase| {
        moved += moved_by(phase);
        let until = (u128::from(time) * moved / all) as u64;
        let phase_time = until - before;
        before = until;
        phase_time
    });
    times.collect()
}

impl Order {
    fn of_loops(found: order::Loops) -> Self {
        Self {
            tokens: found.tokens,
            calls: count_calls(&found.steps),
            exact: found.exact,
        }
    }
}

/// Picoseconds of one firing on the quickest device that has a kernel.
fn quickest_ps(row: &TiVec<DeviceId, Option<ActorCost>>) -> u64 {
    let costs = row.iter().flatten();
    costs
        .map(|cost| cost.call_ps.saturating_add(cost.firing_ps))
        .min()
        .unwrap_or(0)
}

/// The actor that alone bounds the throughput, if one does, and what keeps it from being replicated.
fn find_lone_bound(graph: &Graph, throughput: &Throughput) -> Option<(String, Option<Obstacle>)> {
    let bound = throughput.bound.as_ref()?;

    // A cycle of several actors is bound by its tokens: replicas do not help it.
    let [actor] = bound.actors()[..] else {
        return None;
    };
    let obstacle = obstacles(graph)[actor].clone();
    Some((graph.actors[actor].name.clone(), obstacle))
}

fn buffer_unit(mode: Mode) -> Unit {
    match mode {
        Mode::Min(unit) | Mode::Throughput(unit) | Mode::Within(_, unit) => unit,
    }
}

/// Calls as they are written: the body of a loop counts once.
fn count_calls(steps: &[order::LoopStep]) -> u64 {
    let mut calls = 0;
    for step in steps {
        calls += match step {
            order::LoopStep::Fire(..) => 1,
            order::LoopStep::Loop(_, body) => count_calls(body),
        };
    }
    calls
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_throughput(f)?;
        self.write_buffers(f)?;
        self.write_phases(f)?;
        self.write_orders(f)?;
        self.write_plans(f)
    }
}

impl Analysis {
    fn write_throughput(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let min_period = format_period(self.throughput.period);
        write!(f, "throughput   an iteration takes at least {min_period}")?;
        match &self.throughput.bound {
            Some(bound) => writeln!(f, ", bound by: {bound}")?,
            None => writeln!(f, ": nothing bounds it")?,
        }

        match &self.lone {
            None => Ok(()),
            Some((name, None)) => writeln!(
                f,
                "replicas     of `{name}` on several devices would shorten it"
            ),
            Some((name, Some(obstacle))) => {
                writeln!(f, "replicas     of `{name}` are not possible: {obstacle}")
            }
        }
    }

    fn write_buffers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, sizing) in [("least", &self.least), ("wanted", &self.buffers)] {
            writeln!(
                f,
                "buffers      {name}: {} tokens, {} bytes, an iteration in {}{}",
                sizing.tokens,
                sizing.bytes,
                format_period(sizing.period),
                proof_note(sizing.exact)
            )?;
        }

        for point in &self.front.points {
            let point_period = format_period(point.period);
            writeln!(f, "trade-off    {:>12} at {point_period}", point.total)?;
        }

        if !self.front.complete {
            writeln!(f, "trade-off    larger ones were not looked for")?;
        }
        Ok(())
    }

    fn write_phases(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(phased) = &self.phases else {
            return Ok(());
        };
        let actors = count(phased.actors, "actor");
        let min_period = format_period(phased.throughput.period);
        writeln!(
            f,
            "phases       {actors} phase by phase: an iteration takes at least {min_period}"
        )?;
        for (name, sizing) in [("least", &phased.least), ("wanted", &phased.buffers)] {
            writeln!(
                f,
                "phases       {name}: {} tokens, {} bytes, an iteration in {}{}",
                sizing.tokens,
                sizing.bytes,
                format_period(sizing.period),
                proof_note(sizing.exact)
            )?;
        }
        Ok(())
    }

    fn write_orders(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let orders = [
            ("interleaved", &self.interleaved),
            ("in nested loops", &self.looped),
            ("one call for each actor", &self.flat),
        ];
        for (name, found) in orders {
            match found {
                Ok(order) => writeln!(
                    f,
                    "one device   {name}: {}, {}{}",
                    count(order.tokens, "token"),
                    count(order.calls, "call"),
                    proof_note(order.exact)
                )?,
                Err(reason) => writeln!(f, "one device   {name}: none, {reason}")?,
            }
        }
        Ok(())
    }
}

impl Analysis {
    fn write_plans(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for plan in &self.plans {
            writeln!(
                f,
                "plan         {} on {}: {} in {}, latency {}, {} bytes",
                count(plan.stages, "stage"),
                count(plan.devices as u64, "device"),
                count(plan.block, "iteration"),
                duration(plan.period_ns),
                duration(plan.latency_ns),
                plan.bytes
            )?;
        }
        Ok(())
    }
}

fn proof_note(exact: bool) -> &'static str {
    if exact { "" } else { " (not proved least)" }
}

/// A period in picoseconds as people read it.
fn format_period(period: throughput::Period) -> String {
    zbmd_ir::text::duration((period.as_f64() / 1e3).ceil() as u64)
}
