//! The flat net: actors and links between their ports, before types and port numbers are known. Both the model
//! format and [`crate::GraphBuilder`] lead here.

use std::collections::BTreeMap;

use zbmd_ir::{ClosedAnswer, Params, Role, TokenType};

use crate::source::{Span, Spanned};
use crate::values::{Tokens, TypeFact};

/// A model without sub-models.
#[derive(Debug, Default)]
pub(crate) struct Net {
    pub(crate) name: String,
    pub(crate) actors: Vec<NetActor>,
    pub(crate) links: Vec<Link>,
    /// Outputs that the model states to be read by nobody, by actor and port.
    pub(crate) dropped: Vec<End>,
    pub(crate) pins: Vec<Pin>,
    pub(crate) gates: Vec<NetGate>,
    /// Whether channels could not be read, so that what seems unconnected may not be.
    pub(crate) lost: bool,
}

/// An actor.
#[derive(Debug)]
pub(crate) struct NetActor {
    pub(crate) name: String,
    pub(crate) span: Span,
    pub(crate) role: Role,
    pub(crate) op: Spanned<String>,
    pub(crate) params: Params,
    /// Where each parameter was written; `a.b` for key b of the map in parameter a.
    pub(crate) param_spans: BTreeMap<String, Span>,
    /// What a source or sink declares.
    pub(crate) stream: TypeFact,
    pub(crate) rate: Option<Spanned<u64>>,
}

impl NetActor {
    /// Where a parameter was written, or else its op.
    pub(crate) fn param_span(&self, name: &str) -> Span {
        let mut name = name;
        loop {
            if let Some(span) = self.param_spans.get(name) {
                return *span;
            }
            match name.rfind('.') {
                Some(dot) => name = &name[..dot],
                None => return self.op.span,
            }
        }
    }
}

/// One end of a link.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) actor: usize,
    /// The port, or else the op's first one.
    pub(crate) port: Option<String>,
    /// Where the end was written.
    pub(crate) span: Span,
}

/// One reader of one writer.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) from: End,
    pub(crate) to: End,
    /// Types stated on the way.
    pub(crate) facts: Vec<TypeFact>,
    /// Rates stated of the writer.
    pub(crate) write_rates: Vec<Spanned<u64>>,
    /// Rates stated of the reader.
    pub(crate) rates: Vec<Spanned<u64>>,
    /// Windows stated of the reader.
    pub(crate) windows: Vec<Spanned<u64>>,
    pub(crate) history: Option<Tokens>,
    /// Initial tokens, those read first in front.
    pub(crate) initial: Vec<Tokens>,
}

impl Link {
    /// The whole type, where one fact on the way states it.
    pub(crate) fn stated(&self) -> Option<TokenType> {
        self.facts.iter().find_map(TypeFact::token)
    }
}

/// Actors that are gated together.
#[derive(Clone, Debug)]
pub(crate) struct NetGate {
    /// Name of the actor or the instance.
    pub(crate) name: String,
    /// Where the gate was written.
    pub(crate) span: Span,
    /// The output that opens it; `None` if it cannot be found, which has been reported.
    pub(crate) from: Option<End>,
    pub(crate) actors: Vec<usize>,
    /// What outputs give while it is closed; `None`: they are held, but bursts are empty.
    pub(crate) closed: Option<ClosedAnswer>,
    /// What states become.
    pub(crate) states: ClosedAnswer,
    /// Firings that it stays open after the last token that opens it.
    pub(crate) after: u64,
}

/// A wish for a device.
#[derive(Clone, Debug)]
pub(crate) struct Pin {
    pub(crate) actor: usize,
    pub(crate) device: Spanned<String>,
}
