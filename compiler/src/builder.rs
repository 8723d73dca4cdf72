//! Graphs made in Rust: actors by op, ports by name, the same inference and the same checks as for models.

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_backends::op::Registry;
use zbmd_ir::{BlobId, ClosedAnswer, Graph, Params, Role, TiVec, TokenType, Value};

use crate::codes::Code;
use crate::compile::{Compiled, compile_net, graph_of_net};
use crate::diag::{Diagnostic, Diagnostics, Sink};
use crate::net::{End, Link, Net, NetActor, NetGate, Pin};
use crate::options::CompileOptions;
use crate::source::{Span, Spanned};
use crate::values::{StatedShape, TokenKind, Tokens, TypeFact};

/// An actor of a [`GraphBuilder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActorRef(usize);

impl ActorRef {
    /// One of the actor's ports by name.
    pub fn port(self, name: &str) -> PortRef {
        PortRef {
            actor: self.0,
            port: Some(name.to_owned()),
        }
    }
}

/// A port of an actor; made from an [`ActorRef`], it is the actor's first port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRef {
    actor: usize,
    port: Option<String>,
}

impl From<ActorRef> for PortRef {
    fn from(actor: ActorRef) -> Self {
        PortRef {
            actor: actor.0,
            port: None,
        }
    }
}

impl From<PortRef> for End {
    fn from(port: PortRef) -> Self {
        End {
            actor: port.actor,
            port: port.port,
            span: Span::NONE,
        }
    }
}

/// Builds a graph actor by actor. Mistakes are collected and returned at the end, as for a model.
///
/// ```
/// use zbmd_compiler::GraphBuilder;
/// use zbmd_ir::{DType, TokenType, Value};
///
/// let mut graph = GraphBuilder::new("smooth");
/// let input = graph.source("in", TokenType::scalar(DType::F32));
/// let fir = graph.actor("fir", "Fir", [("taps", Value::List(vec![Value::Float(0.5), Value::Float(0.5)]))]);
/// let output = graph.sink("out");
/// graph.connect(input, fir.port("x")).connect(fir, output);
/// let (graph, _blobs) = graph.finish(&zbmd_backends::standard_registry())?;
/// assert_eq!(graph.channels.len(), 2);
/// # Ok::<(), zbmd_compiler::Diagnostics>(())
/// ```
#[derive(Debug, Default)]
pub struct GraphBuilder {
    net: Net,
    blobs: TiVec<BlobId, Bytes>,
    sink: Sink,
}

impl GraphBuilder {
    /// A graph without actors.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            net: Net {
                name: name.into(),
                ..Net::default()
            },
            ..Self::default()
        }
    }

    /// Adds an actor; its parameters are those of the op, by name.
    pub fn actor<K: Into<String>>(
        &mut self,
        name: &str,
        op: &str,
        params: impl IntoIterator<Item = (K, Value)>,
    ) -> ActorRef {
        let named = params.into_iter();
        let params = named.map(|(name, value)| (name.into(), value)).collect();
        self.add(name, op, Role::Compute, params, TypeFact::default())
    }

    /// Adds a source of one token a firing.
    pub fn source(&mut self, name: &str, token: TokenType) -> ActorRef {
        let stream_type = TypeFact {
            dtype: Some(Spanned::new(token.dtype, Span::NONE)),
            shape: Some(Spanned::new(StatedShape::of(&token), Span::NONE)),
            bad: false,
        };
        self.add(name, "Source", Role::Source, Params::new(), stream_type)
    }

    /// Adds a sink of one token a firing.
    pub fn sink(&mut self, name: &str) -> ActorRef {
        self.add(name, "Sink", Role::Sink, Params::new(), TypeFact::default())
    }

    /// Sets a parameter, such as `sample_rate` of a source, or of any actor added before.
    pub fn param(&mut self, actor: ActorRef, name: &str, value: Value) -> &mut Self {
        self.net.actors[actor.0]
            .params
            .insert(name.to_owned(), value);
        self
    }

    /// Sets the tokens per firing of a source or sink.
    pub fn rate(&mut self, actor: ActorRef, rate: u64) -> &mut Self {
        self.net.actors[actor.0].rate = Some(Spanned::new(rate.max(1), Span::NONE));
        self
    }

    /// Joins an output to an input.
    pub fn connect(&mut self, from: impl Into<PortRef>, to: impl Into<PortRef>) -> &mut Self {
        self.link(from.into(), to.into(), Vec::new())
    }

    /// Joins an output to an input that first sees `initial`: the bytes of whole tokens, the first one in front.
    pub fn delayed(
        &mut self,
        from: impl Into<PortRef>,
        to: impl Into<PortRef>,
        initial: impl Into<Vec<u8>>,
    ) -> &mut Self {
        let tokens = Tokens {
            span: Span::NONE,
            kind: TokenKind::Bytes(initial.into()),
        };
        self.link(from.into(), to.into(), vec![tokens])
    }

    /// Requests that an actor runs on a device.
    pub fn pin(&mut self, actor: ActorRef, device: &str) -> &mut Self {
        let device = Spanned::new(device.to_owned(), Span::NONE);
        self.net.pins.push(Pin {
            actor: actor.0,
            device,
        });
        self
    }

    /// Skips the work of an actor while tokens of an output are zero: see [`zbmd_ir::Gate`]. Its outputs and its states are
    /// `closed` then.
    pub fn gate(
        &mut self,
        actor: ActorRef,
        from: impl Into<PortRef>,
        closed: ClosedAnswer,
    ) -> &mut Self {
        let from = End::from(from.into());
        self.net.dropped.push(from.clone());
        self.net.gates.push(NetGate {
            name: self.net.actors[actor.0].name.clone(),
            span: Span::NONE,
            from: Some(from),
            actors: vec![actor.0],
            closed: Some(closed),
            states: closed,
            after: 0,
        });
        self
    }

    /// Keeps a constant tensor: the value for a parameter.
    ///
    /// `data` holds the elements, little-endian, last dimension fastest. Its length is checked when the op reads it.
    pub fn tensor(&mut self, token: TokenType, data: impl Into<Bytes>) -> Value {
        let data = data.into();
        if data.len() as u64 != token.bytes() {
            let message = format!(
                "a tensor of {token} has {} bytes, {} are given",
                token.bytes(),
                data.len()
            );
            self.sink.push(Diagnostic::new(Code::E0703, message));
        }
        Value::Tensor(self.blobs.push_and_get_key(data), token)
    }

    /// The resolved and analysed graph, with the tensors of its parameters.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn finish(self, registry: &Registry) -> Result<(Graph, TiVec<BlobId, Bytes>), Diagnostics> {
        let options = CompileOptions {
            registry: registry.clone(),
            ..CompileOptions::default()
        };
        graph_of_net(&self.net, self.blobs, self.sink, &options)
    }

    /// Compiles the graph.
    ///
    /// # Errors
    /// Everything that is wrong with the graph and the machine.
    pub fn compile(self, options: &CompileOptions) -> Result<Compiled, Diagnostics> {
        compile_net(&self.net, self.blobs, self.sink, options)
    }

    fn add(
        &mut self,
        name: &str,
        op: &str,
        role: Role,
        params: Params,
        stream: TypeFact,
    ) -> ActorRef {
        // Kept even so: the mistake is reported with all others at the end.
        if self.net.actors.iter().any(|other| other.name == name) {
            let message = format!("the name `{name}` is used twice");
            self.sink.push(Diagnostic::new(Code::E0205, message));
        }

        self.net.actors.push(NetActor {
            name: name.to_owned(),
            span: Span::NONE,
            role,
            op: Spanned::new(op.to_owned(), Span::NONE),
            params,
            param_spans: BTreeMap::new(),
            stream,
            rate: None,
        });
        ActorRef(self.net.actors.len() - 1)
    }

    fn link(&mut self, from: PortRef, to: PortRef, initial: Vec<Tokens>) -> &mut Self {
        self.net.links.push(Link {
            from: from.into(),
            to: to.into(),
            facts: Vec::new(),
            write_rates: Vec::new(),
            rates: Vec::new(),
            windows: Vec::new(),
            history: None,
            initial,
        });
        self
    }
}
