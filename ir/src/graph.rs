//! The SDF graph: actors, ports, channels. Placement, schedule and layout are side tables elsewhere.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ActorId, BlobId, ChannelId, DeviceKind, Gate, LiveParameter, TiVec, TokenType};

/// A parameter of an op, already resolved to a constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Value {
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A string or a bare word.
    Str(String),
    /// A list.
    List(#[serde(deserialize_with = "crate::nesting::deserialize")] Vec<Value>),
    /// A map with string keys.
    Map(#[serde(deserialize_with = "crate::nesting::deserialize")] BTreeMap<String, Value>),
    /// A tensor kept in the program's blobs; its dtype and shape.
    Tensor(BlobId, TokenType),
    /// A number, or a list of them, that may change while a run goes on. Ops never see it: they are resolved with
    /// ordinary values in its place, [`crate::plain_params`].
    Live(Box<LiveParameter>),
    /// The gate of an actor, in its parameter [`Gate::PARAM`] only. Ops never see it: [`Actor::ungated`].
    Gate(Box<Gate>),
}

impl Value {
    /// The integer, if it is one (or a float without a fraction).
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(i) => Some(*i),
            Value::Float(f) if f.fract() == 0.0 && f.abs() < 9e15 => Some(*f as i64),
            _ => None,
        }
    }

    /// The number as a float, if it is one.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Value::Int(i) => Some(*i as f64),
            Value::Float(f) => Some(*f),
            _ => None,
        }
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(s) => Some(s),
            _ => None,
        }
    }

    /// The list, if it is one.
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Value::List(v) => Some(v),
            _ => None,
        }
    }
}

/// Parameters of an op by name.
pub type Params = BTreeMap<String, Value>;

/// What an actor is to the outside world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Fires a kernel.
    Compute,
    /// Takes tokens from an input stream of the actor's name: no input ports, one output port.
    Source,
    /// Gives tokens to an output stream of the actor's name: one input port, no output ports.
    Sink,
}

/// An input port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InPort {
    /// Name, unique among the actor's inputs.
    pub name: String,
    /// Type of the tokens.
    pub token: TokenType,
    /// Tokens consumed per firing, at least 1.
    pub rate: u64,
    /// Tokens looked at per firing, at least `rate`.
    pub window: u64,
}

/// An output port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutPort {
    /// Name, unique among the actor's outputs.
    pub name: String,
    /// Type of the tokens.
    pub token: TokenType,
    /// Tokens produced per firing, at least 1.
    pub rate: u64,
}

/// An input and an output of one actor that form a state: a self-loop channel with one reader, rate 1, window 1
/// and delay 1, which the kernel updates in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatePort {
    /// Index into [`Actor::inputs`].
    pub input: u32,
    /// Index into [`Actor::outputs`].
    pub output: u32,
}

/// An output that a kernel may write over an input: firing by firing, the tokens that it writes into the bytes of the
/// tokens that it reads. Either may be a part of the other: of a concatenation the inputs, of a split the outputs. What
/// a plan makes of it is said in the crate's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InPlace {
    /// Index into [`Actor::inputs`]: no state, and its window is its rate.
    pub input: u32,
    /// Index into [`Actor::outputs`]: no state.
    pub output: u32,
    /// Where the smaller of the two lies in the larger: bytes from the start of a firing's tokens. 0 if both are as
    /// large.
    pub at_bytes: u64,
}

impl InPlace {
    /// An output as large as the input.
    pub const fn whole(input: u32, output: u32) -> Self {
        Self {
            input,
            output,
            at_bytes: 0,
        }
    }
}

/// A node of the graph: a pure function of its windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Actor {
    /// Unique name; instances of sub-models are separated by `/`.
    pub name: String,
    /// What the actor is to the outside.
    pub role: Role,
    /// Name of the op in the kernel catalogue (`Fir`, `Expr`, …) or of a custom actor.
    pub op: String,
    /// Resolved parameters of the op.
    pub params: Params,
    /// Input ports, in the op's order.
    pub inputs: Vec<InPort>,
    /// Output ports, in the op's order.
    pub outputs: Vec<OutPort>,
    /// Port pairs that the kernel updates in place.
    pub state: Vec<StatePort>,
    /// Outputs that the kernel may write over inputs, any number of them in one call; a plan makes use of it or not.
    pub in_place: Vec<InPlace>,
}

impl Actor {
    /// The parameter that holds constant operands in the order of the op's CPU kernels: a map from the operand to
    /// `[tensor, shape]`.
    pub const PACKED: &str = "packed";

    /// The weights that a device of a kind may fetch from its [`crate::Tier`], if there are any: on a CPU what is packed for
    /// its kernels, on a GPU the largest tensor among the parameters, which its kernels read in the model's order.
    pub fn fetchable_weights(&self, kind: &DeviceKind) -> Option<(BlobId, &TokenType)> {
        if kind.is_cpu() {
            return self.packed_weights();
        }
        let tensors = self.params.values().filter_map(|value| match value {
            Value::Tensor(blob, token) => Some((*blob, token)),
            _ => None,
        });
        let largest = tensors.max_by_key(|(_, token)| token.bytes());
        largest.filter(|(_, token)| kind.is_gpu() && token.bytes() > 0)
    }

    /// The operand that is packed for CPU kernels, if there is one.
    pub fn packed_weights(&self) -> Option<(BlobId, &TokenType)> {
        let Some(Value::Map(operands)) = self.params.get(Self::PACKED) else {
            return None;
        };
        let [Value::Tensor(blob, token), _] = operands.values().next()?.as_list()? else {
            return None;
        };
        (operands.len() == 1).then_some((*blob, token))
    }

    /// Tokens a second of a source or a sink, if its parameters say so.
    pub fn sample_rate(&self) -> Option<f64> {
        let rate = self.params.get(crate::response::SAMPLE_RATE)?.as_float()?;
        (rate > 0.0).then_some(rate)
    }

    /// The state pair that input port `input` belongs to.
    pub fn state_of_input(&self, input: u32) -> Option<StatePort> {
        self.state.iter().copied().find(|s| s.input == input)
    }

    /// The state pair that output port `output` belongs to.
    pub fn state_of_output(&self, output: u32) -> Option<StatePort> {
        self.state.iter().copied().find(|s| s.output == output)
    }
}

/// One port of one actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Endpoint {
    /// The actor.
    pub actor: ActorId,
    /// Index of the port among the actor's inputs or outputs.
    pub port: u32,
}

/// A reader of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reader {
    /// The input port.
    pub to: Endpoint,
    /// How many of the channel's last initial tokens this reader sees first. At least window − rate of the port.
    pub delay: u64,
}

/// A stream of tokens from one output port to any number of input ports.
///
/// The tokens that the writer produces have stream positions 0, 1, 2, …; the `initial` tokens lie before them, at
/// positions −H … −1 where H is [`Channel::history`]. Firing k of a reader with delay d, rate r and window w looks
/// at positions [k·r − d, k·r − d + w).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// The writer.
    pub from: Endpoint,
    /// The readers, each with its own delay. May be empty: then the tokens are dropped.
    pub readers: Vec<Reader>,
    /// Type of the tokens; equal to the type of every port it joins.
    pub token: TokenType,
    /// Values of the initial tokens, oldest first: exactly `history() * token.bytes()` bytes.
    pub initial: Vec<u8>,
}

impl Channel {
    /// Tokens that lie on the channel at every iteration border: the largest delay of its readers.
    pub fn history(&self) -> u64 {
        self.readers.iter().map(|r| r.delay).max().unwrap_or(0)
    }
}

/// A synchronous dataflow graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// Name of the model.
    pub name: String,
    /// Actors.
    pub actors: TiVec<ActorId, Actor>,
    /// Channels. Each output port is the writer of exactly one, each input port a reader of exactly one.
    pub channels: TiVec<ChannelId, Channel>,
}

impl Graph {
    /// The channel read by each input and written by each output: `(inputs, outputs)` indexed by actor, then port.
    /// Ports without a channel map to `None`. O(actors + channels).
    pub fn port_channels(&self) -> PortChannels {
        let mut inputs: TiVec<ActorId, Vec<Option<(ChannelId, u32)>>> = self
            .actors
            .iter()
            .map(|a| vec![None; a.inputs.len()])
            .collect();
        let mut outputs: TiVec<ActorId, Vec<Option<ChannelId>>> = self
            .actors
            .iter()
            .map(|a| vec![None; a.outputs.len()])
            .collect();

        // Ids that do not exist are passed over: graphs that are not verified are printed too.
        for (id, channel) in self.channels.iter_enumerated() {
            if let Some(slot) = outputs
                .get_mut(channel.from.actor)
                .and_then(|p| p.get_mut(channel.from.port as usize))
            {
                *slot = Some(id);
            }
            for (i, reader) in channel.readers.iter().enumerate() {
                if let Some(slot) = inputs
                    .get_mut(reader.to.actor)
                    .and_then(|p| p.get_mut(reader.to.port as usize))
                {
                    *slot = Some((id, i as u32));
                }
            }
        }

        PortChannels { inputs, outputs }
    }

    /// Whether the channel is a state: the self-loop of a [`StatePort`]. False where ids do not exist.
    pub fn is_state(&self, channel: ChannelId) -> bool {
        let Some(ch) = self.channels.get(channel) else {
            return false;
        };
        let (Some(writer), [reader]) = (self.actors.get(ch.from.actor), ch.readers.as_slice())
        else {
            return false;
        };
        reader.to.actor == ch.from.actor
            && writer
                .state
                .iter()
                .any(|s| s.output == ch.from.port && s.input == reader.to.port)
    }

    /// The actor of that name. O(actors).
    pub fn find(&self, name: &str) -> Option<ActorId> {
        self.actors
            .iter_enumerated()
            .find(|(_, a)| a.name == name)
            .map(|(id, _)| id)
    }

    /// Sources, in id order.
    pub fn sources(&self) -> impl Iterator<Item = (ActorId, &Actor)> {
        self.actors
            .iter_enumerated()
            .filter(|(_, a)| a.role == Role::Source)
    }

    /// Sinks, in id order.
    pub fn sinks(&self) -> impl Iterator<Item = (ActorId, &Actor)> {
        self.actors
            .iter_enumerated()
            .filter(|(_, a)| a.role == Role::Sink)
    }
}

/// See [`Graph::port_channels`].
#[derive(Clone, Debug)]
pub struct PortChannels {
    /// Channel and reader index of each input port.
    pub inputs: TiVec<ActorId, Vec<Option<(ChannelId, u32)>>>,
    /// Channel of each output port.
    pub outputs: TiVec<ActorId, Vec<Option<ChannelId>>>,
}
