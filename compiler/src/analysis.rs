//! What bounds a model, however it is scheduled: throughput, buffers, orders on one device.

use std::fmt;

use zbmd_ir::text::count;
use zbmd_ir::{Costs, Graph, TiVec};
use zbmd_scheduler::buffers::{self, BufferError, Mode, ParetoFront, Sizing, SizingLimits, Unit};
use zbmd_scheduler::order::{self, OrderError};
use zbmd_scheduler::replicate::{Obstacle, obstacles};
use zbmd_scheduler::throughput::{self, Throughput, ThroughputError, TimedSdf};

/// Buffers of an order of one iteration on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Tokens that lie on all channels together, at most.
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
    /// Every actor once, all its firings in one go.
    pub flat: Result<Order, OrderError>,
    /// Where one actor alone bounds the throughput: its name, and what keeps it from being replicated over devices.
    pub lone: Option<(String, Option<Obstacle>)>,
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
    /// Analyses a checked graph; `mode` says which buffers are wanted.
    ///
    /// # Errors
    /// [`AnalysisRefused`] where counts are too large, or no buffers do as asked.
    pub fn of(graph: &Graph, costs: &Costs, mode: Mode) -> Result<Self, AnalysisRefused> {
        let quickest = |row: &TiVec<_, Option<zbmd_ir::ActorCost>>| {
            row.iter()
                .flatten()
                .map(|c| c.call_ps.saturating_add(c.firing_ps))
                .min()
                .unwrap_or(0)
        };
        let times = costs.table.iter().map(quickest).collect();
        let sdf = TimedSdf::of(graph, &times, Some(1));
        let limits = SizingLimits::default();
        let loops = |found: order::Loops| Order {
            tokens: found.tokens,
            calls: written(&found.steps),
            exact: found.exact,
        };
        let throughput = throughput::analyse(&sdf)?;
        let lone = throughput
            .bound
            .as_ref()
            .and_then(|bound| match bound.actors()[..] {
                [actor] => Some((
                    graph.actors[actor].name.clone(),
                    obstacles(graph)[actor].clone(),
                )),
                _ => None,
            });
        Ok(Self {
            throughput,
            lone,
            least: buffers::size(&sdf, Mode::Min(unit(mode)), limits)?,
            buffers: buffers::size(&sdf, mode, limits)?,
            front: buffers::front(&sdf, unit(mode), limits)?,
            interleaved: order::least_buffers(&sdf, limits).map(|found| Order {
                tokens: found.tokens,
                calls: found.calls.len() as u64,
                exact: found.exact,
            }),
            looped: order::looped(&sdf, usize::MAX).map(loops),
            flat: order::flat(&sdf).map(loops),
        })
    }
}

fn unit(mode: Mode) -> Unit {
    match mode {
        Mode::Min(unit) | Mode::Throughput(unit) | Mode::Within(_, unit) => unit,
    }
}

/// Calls as they are written, loops not counted out.
fn written(steps: &[order::LoopStep]) -> u64 {
    let of = |step: &order::LoopStep| match step {
        order::LoopStep::Fire(..) => 1,
        order::LoopStep::Loop(_, body) => written(body),
    };
    steps.iter().map(of).sum()
}

impl fmt::Display for Analysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "throughput   an iteration takes at least {}",
            time(self.throughput.period)
        )?;
        match &self.throughput.bound {
            Some(bound) => writeln!(f, ", bound by: {bound}")?,
            None => writeln!(f, ": nothing bounds it")?,
        }
        match &self.lone {
            None => {}
            Some((name, None)) => {
                writeln!(
                    f,
                    "replicas     of `{name}` on several devices would shorten it"
                )?;
            }
            Some((name, Some(obstacle))) => {
                writeln!(f, "replicas     of `{name}` are not possible: {obstacle}")?;
            }
        }
        for (name, sizing) in [("least", &self.least), ("wanted", &self.buffers)] {
            write!(
                f,
                "buffers      {name}: {} tokens, {} bytes, an iteration in {}",
                sizing.tokens,
                sizing.bytes,
                time(sizing.period)
            )?;
            writeln!(
                f,
                "{}",
                if sizing.exact {
                    ""
                } else {
                    " (not proved least)"
                }
            )?;
        }
        for point in &self.front.points {
            writeln!(
                f,
                "trade-off    {:>12} at {}",
                point.total,
                time(point.period)
            )?;
        }
        if !self.front.complete {
            writeln!(f, "trade-off    larger ones were not looked for")?;
        }
        let orders = [
            ("interleaved", &self.interleaved),
            ("in nested loops", &self.looped),
            ("one call for each actor", &self.flat),
        ];
        for (name, found) in orders {
            match found {
                Ok(order) => {
                    let proved = if order.exact {
                        ""
                    } else {
                        " (not proved least)"
                    };
                    writeln!(
                        f,
                        "one device   {name}: {}, {}{proved}",
                        count(order.tokens, "token"),
                        count(order.calls, "call")
                    )?;
                }
                Err(why) => writeln!(f, "one device   {name}: none, {why}")?,
            }
        }
        Ok(())
    }
}

/// A period in picoseconds as people read it.
fn time(period: throughput::Period) -> String {
    zbmd_ir::text::duration((period.as_f64() / 1e3).ceil() as u64)
}
