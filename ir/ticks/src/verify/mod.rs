//! The verifier of plans to the tick: from a [`TickPlan`] that nobody trusts to a [`VerifiedPlan`].
//!
//! Recomputes everything from the graph, the machine and the meaning of a plan; shares no code with the scheduler.
//! Reports the first [`MAX_ERRORS`]. Each part runs only if the parts that it indexes by passed.
//!
//! Checked:
//! - shape (`shape.rs`): period, a node for each actor, a start for each firing, firings of an actor one after another,
//!   also across iterations, and no two firings of a node at once, modulo the period;
//! - borders (`borders.rs`): copies of them for all channels that have one, or for none, not on the writer's node;
//! - messages (`messages.rs`): exactly those needed, each by links that join the writer's node to the reader's, every
//!   frame once on every hop, in order, not before it is there, and no two frames of a link in one tick, modulo the
//!   period;
//! - tokens (`tokens.rs`): every token of a window is on the reader's node before the firing that reads it starts;
//! - losses (`losses.rs`): a plan for a loss puts no actor on the node, and sends no frame over the link, that is lost;
//! - memory (`memory.rs`): exactly the buffers needed, no token written over before it was read and sent for the last
//!   time, and before nobody can go back to a border that it is part of, enough memory for frames that wait to be sent on, and all of it within the node's.
//!
//! Not checked: the graph itself (`zbmd_ir::verify::graph::check_graph` does that), and what kernels need besides.

mod borders;
mod error;
mod losses;
mod memory;
mod messages;
mod shape;
mod tokens;

use std::collections::BTreeMap;

use zbmd_ir::verify::graph::repetition;
use zbmd_ir::{ActorId, ChannelId, Graph, TiVec};

pub(crate) use self::borders::check_kept;
pub use self::error::TickError;
use crate::{Network, NodeId, TickLoss, TickMachine, TickPlan, writes_border};

/// Most errors that are reported.
pub const MAX_ERRORS: usize = 20;
/// Most firings and frames of an iteration.
const MAX_EVENTS: u64 = 1 << 24;
/// Most tokens of an iteration.
const MAX_TOKENS: u64 = 1 << 26;
/// Latest tick of an iteration, and longest period.
const MAX_TICK: u64 = 1 << 48;

/// A plan that passed its verification. Only [`verify`] makes one.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifiedPlan(TickPlan);

impl std::ops::Deref for VerifiedPlan {
    type Target = TickPlan;

    fn deref(&self) -> &TickPlan {
        &self.0
    }
}

impl VerifiedPlan {
    /// The plan, which is no longer known to be verified once it can be changed.
    pub fn into_inner(self) -> TickPlan {
        self.0
    }
}

/// What every part looks at.
struct Facts<'a> {
    graph: &'a Graph,
    machine: &'a TickMachine,
    network: &'a Network,
    plan: &'a TickPlan,
    firings: TiVec<ActorId, u64>,
    durations: TiVec<ActorId, u64>,
    /// The nodes of copies; ids in it are checked by `borders.rs`.
    copies: BTreeMap<ChannelId, NodeId>,
}

impl Facts<'_> {
    fn node_of(&self, actor: ActorId) -> NodeId {
        self.plan.placement[actor]
    }

    /// Start of a firing that is counted over all iterations, 0 being the first of iteration 0; it may be negative.
    fn start(&self, actor: ActorId, firing: i128) -> i128 {
        let firings = i128::from(self.firings[actor]);
        let start = self.plan.starts[actor][firing.rem_euclid(firings) as usize];
        i128::from(start) + firing.div_euclid(firings) * i128::from(self.plan.period)
    }

    fn end(&self, actor: ActorId, firing: i128) -> i128 {
        self.start(actor, firing) + i128::from(self.durations[actor])
    }

    /// Tokens that one firing of a channel's writer writes.
    fn rate(&self, channel: ChannelId) -> u64 {
        let from = self.graph.channels[channel].from;
        self.graph.actors[from.actor].outputs[from.port as usize].rate
    }

    /// The nodes, besides the writer's, that have readers of a channel; ascending, each once.
    fn remote_nodes(&self, channel: ChannelId) -> Vec<NodeId> {
        let ch = &self.graph.channels[channel];
        let home = self.node_of(ch.from.actor);
        let nodes = ch
            .readers
            .iter()
            .map(|reader| self.node_of(reader.to.actor));
        let mut nodes: Vec<NodeId> = nodes.filter(|&node| node != home).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The nodes that need firings of a channel's writer, besides its own: those of readers, and that of the copy.
    fn receivers(&self, channel: ChannelId) -> Vec<Receiver> {
        let readers = self.remote_nodes(channel).into_iter();
        let mut receivers: Vec<Receiver> = readers
            .map(|node| Receiver {
                node,
                has_readers: true,
            })
            .collect();
        if let Some(&node) = self.copies.get(&channel)
            && receivers.iter().all(|receiver| receiver.node != node)
        {
            receivers.push(Receiver {
                node,
                has_readers: false,
            });
        }
        receivers
    }

    /// Whether a node that has no readers of a channel, but a copy of its border, needs a firing of its writer.
    fn is_in_border(&self, channel: ChannelId, firing: u64) -> bool {
        let ch = &self.graph.channels[channel];
        let rate = self.rate(channel);
        let tokens = rate * self.firings[ch.from.actor];
        writes_border(ch.history(), firing, rate, tokens)
    }
}

/// A node that needs what is written on another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Receiver {
    node: NodeId,
    /// Whether it needs all firings, or only those that write tokens of a border.
    has_readers: bool,
}

/// Errors found so far, of which only so many are kept.
#[derive(Default)]
struct Errors(Vec<TickError>);

impl Errors {
    fn add(&mut self, error: TickError) {
        if self.0.len() < MAX_ERRORS {
            self.0.push(error);
        }
    }

    fn result(self) -> Result<(), Vec<TickError>> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(self.0)
        }
    }
}

/// Verifies a plan of a graph that has passed `zbmd_ir::verify::graph::check_graph`, for a machine. O(n log n) in firings,
/// frames and tokens of an iteration.
///
/// # Errors
/// What is wrong, at most [`MAX_ERRORS`].
pub fn verify(
    graph: &Graph,
    machine: &TickMachine,
    plan: TickPlan,
) -> Result<VerifiedPlan, Vec<TickError>> {
    verify_for(graph, machine, None, plan)
}

/// Like [`verify`], for what is left of the machine after a loss: all that the whole machine asks, and nothing lost is
/// used. What is left keeps its links and their latencies, so that is all there is to check.
///
/// # Errors
/// What is wrong, at most [`MAX_ERRORS`].
pub fn verify_without(
    graph: &Graph,
    machine: &TickMachine,
    lost: TickLoss,
    plan: TickPlan,
) -> Result<VerifiedPlan, Vec<TickError>> {
    verify_for(graph, machine, Some(lost), plan)
}

fn verify_for(
    graph: &Graph,
    machine: &TickMachine,
    lost: Option<TickLoss>,
    plan: TickPlan,
) -> Result<VerifiedPlan, Vec<TickError>> {
    let one = |error: TickError| vec![error];
    let network = machine.network().map_err(|e| one(e.into()))?;
    let firings = repetition(graph).map_err(|e| one(TickError::Graph(Box::new(e))))?;
    let facts = Facts {
        graph,
        machine,
        network: &network,
        plan: &plan,
        firings,
        durations: machine.durations(graph),
        copies: plan.copies.iter().map(|c| (c.channel, c.node)).collect(),
    };
    shape::check(&facts)?;
    borders::check(&facts)?;
    let arrivals = messages::check(&facts)?;
    tokens::check(&facts, &arrivals)?;
    memory::check(&facts, &arrivals)?;
    if let Some(lost) = lost {
        losses::check(&facts, lost)?;
    }
    Ok(VerifiedPlan(plan))
}
