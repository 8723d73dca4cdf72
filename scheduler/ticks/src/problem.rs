//! What a graph asks of a machine, in ticks and frames.

use zbmd_ir::{ActorId, ChannelId, Graph, TiVec};
use zbmd_scheduler::{check_deadlock, repetition};
use zbmd_ticks::{Network, NodeId, TickMachine};

use crate::TickScheduleError;
use crate::copies::CopyRule;

/// Most firings of an iteration.
const MAX_FIRINGS: u64 = 1 << 20;
/// Most frames of an iteration, if every channel had to be sent once.
const MAX_FRAMES: u64 = 1 << 22;

/// Most tokens of an iteration.
const MAX_TOKENS: u64 = 1 << 26;

/// Most ticks of all firings of an iteration.
const MAX_WORK: u64 = 1 << 40;

/// An input port that waits for tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input {
    pub(crate) channel: ChannelId,
    pub(crate) delay: u64,
    pub(crate) rate: u64,
    pub(crate) window: u64,
}

/// A channel, as plans see it.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    pub(crate) writer: ActorId,
    /// Tokens of a firing of the writer.
    pub(crate) rate: u64,
    /// Tokens of an iteration.
    pub(crate) tokens: u64,
    pub(crate) token_bytes: u64,
    /// Frames that the tokens of a firing take.
    pub(crate) frames: u64,
    pub(crate) readers: Vec<ActorId>,
    /// Tokens of earlier iterations that an iteration finds there.
    pub(crate) border: u64,
}

/// A dependency of a firing: it may start when firing `firing` of the channel's writer, `iterations` iterations before,
/// and all before that one have ended and their tokens are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dependency {
    pub(crate) channel: ChannelId,
    pub(crate) firing: u64,
    pub(crate) iterations: u64,
}

pub(crate) struct Problem<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) machine: &'a TickMachine,
    pub(crate) network: &'a Network,
    /// Nodes that may be used, each of which can be reached from each other, ascending.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) copy_rule: CopyRule,
    pub(crate) durations: TiVec<ActorId, u64>,
    pub(crate) firings: TiVec<ActorId, u64>,
    pub(crate) inputs: TiVec<ActorId, Vec<Input>>,
    pub(crate) outputs: TiVec<ActorId, Vec<ChannelId>>,
    pub(crate) streams: TiVec<ChannelId, Stream>,
}

impl<'a> Problem<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        machine: &'a TickMachine,
        network: &'a Network,
        nodes: Vec<NodeId>,
        copy_rule: CopyRule,
    ) -> Result<Self, TickScheduleError> {
        let firings = repetition(graph)?;
        let total_firings = firings.iter().fold(0_u64, |sum, &q| sum.saturating_add(q));
        check_size("firings", total_firings, MAX_FIRINGS)?;
        check_deadlock(graph, &firings)?;

        let durations = machine.durations(graph);
        let works = firings.iter().zip(&durations);
        let works = works.map(|(&firings, &ticks)| firings.saturating_mul(ticks));
        check_size(
            "ticks of work",
            works.fold(0, u64::saturating_add),
            MAX_WORK,
        )?;

        let mut inputs: TiVec<ActorId, Vec<Input>> = vec![Vec::new(); graph.actors.len()].into();
        let mut outputs: TiVec<ActorId, Vec<ChannelId>> =
            vec![Vec::new(); graph.actors.len()].into();
        let mut streams = TiVec::with_capacity(graph.channels.len());
        let mut total_frames = 0_u64;
        let mut total_tokens = 0_u64;
        for (channel, ch) in graph.channels.iter_enumerated() {
            let writer = ch.from.actor;
            let rate = graph.actors[writer].outputs[ch.from.port as usize].rate;
            let token_bytes = ch.token.bytes();
            let frames = machine.frames_of(rate.saturating_mul(token_bytes));
            outputs[writer].push(channel);
            for reader in &ch.readers {
                let port = &graph.actors[reader.to.actor].inputs[reader.to.port as usize];
                inputs[reader.to.actor].push(Input {
                    channel,
                    delay: reader.delay,
                    rate: port.rate,
                    window: port.window,
                });
            }
            total_frames = total_frames.saturating_add(frames.saturating_mul(firings[writer]));
            let tokens = rate.saturating_mul(firings[writer]);
            total_tokens = total_tokens.saturating_add(tokens);
            streams.push(Stream {
                writer,
                rate,
                tokens,
                token_bytes,
                frames,
                readers: ch.readers.iter().map(|r| r.to.actor).collect(),
                border: ch.history(),
            });
        }
        check_size("frames", total_frames, MAX_FRAMES)?;
        check_size("tokens", total_tokens, MAX_TOKENS)?;

        Ok(Self {
            graph,
            machine,
            network,
            nodes,
            copy_rule,
            durations,
            firings,
            inputs,
            outputs,
            streams,
        })
    }

    /// Ticks of all firings of an actor in an iteration.
    pub(crate) fn work(&self, actor: ActorId) -> u64 {
        self.durations[actor].saturating_mul(self.firings[actor])
    }

    /// What a firing waits for on one input: at most two, the last tokens of its window of the same iteration and of the
    /// one before. What is older was there before.
    pub(crate) fn dependencies(
        &self,
        input: &Input,
        firing: u64,
    ) -> impl Iterator<Item = Dependency> + use<> {
        let stream = &self.streams[input.channel];
        let tokens = i128::from(stream.tokens);
        let first = i128::from(firing) * i128::from(input.rate) - i128::from(input.delay);
        let last = first + i128::from(input.window) - 1;
        let latest_iteration = last.div_euclid(tokens);

        let latest = Dependency {
            channel: input.channel,
            firing: (last.rem_euclid(tokens) / i128::from(stream.rate)) as u64,
            iterations: (-latest_iteration) as u64,
        };
        let before = Dependency {
            firing: self.firings[stream.writer] - 1,
            iterations: latest.iterations + 1,
            ..latest
        };
        let reaches_before = first < latest_iteration * tokens;
        std::iter::once(latest).chain(reaches_before.then_some(before))
    }
}

fn check_size(what: &'static str, found: u64, max: u64) -> Result<(), TickScheduleError> {
    if found <= max {
        return Ok(());
    }
    Err(TickScheduleError::TooLarge { what, found, max })
}
