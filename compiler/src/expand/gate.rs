//! Gates of actors and instances: which output opens them, and what is behind them.

use std::ops::Range;

use super::join::{Edge, Half};
use super::{Env, Expander, Names, Scope};
use crate::gates;
use crate::model::{ActorDecl, ModelDef};
use crate::net::NetGate;
use crate::parse::Node;

/// The argument of an actor or an instance.
const ARGUMENT: &str = "gate";

/// An actor or an instance with a gate.
pub(super) struct GatedDecl<'a> {
    pub(super) decl: &'a ActorDecl,
    /// The gate as it is written.
    pub(super) node: &'a Node,
    /// What it has become in the net.
    pub(super) actors: Range<usize>,
}

/// The declaration as its op or its sub-model sees it.
pub(super) fn without_gate(decl: &ActorDecl) -> ActorDecl {
    let mut without = decl.clone();
    let is_gate = |name: &str| name == ARGUMENT;
    without
        .args
        .retain(|arg| !arg.name.as_ref().is_some_and(|name| is_gate(&name.value)));
    without
}

impl Expander<'_> {
    /// The gate of an actor or an instance, as written. Not an argument that the op or the sub-model declares itself.
    pub(super) fn gate_node<'d>(&self, scope: &Scope<'_>, decl: &'d ActorDecl) -> Option<&'d Node> {
        let is_gate = |name: &str| name == ARGUMENT;
        let mut named = decl.args.iter();
        let argument = named.find(|arg| arg.name.as_ref().is_some_and(|n| is_gate(&n.value)))?;

        let is_own = if self.is_instance(decl) {
            self.declares_gate(scope, decl)
        } else {
            let op = self.registry.op(&decl.op.value);
            op.is_some_and(|op| op.doc().params.iter().any(|(name, _)| is_gate(name)))
        };
        (!is_own).then_some(&argument.value)
    }

    /// Whether the sub-model of an instance has a parameter of that name.
    fn declares_gate(&self, scope: &Scope<'_>, decl: &ActorDecl) -> bool {
        let Some(crate::parse::NodeKind::Str(name)) = decl.args.first().map(|arg| &arg.value.kind)
        else {
            return false;
        };
        let mut next_scope = Some(scope);
        while let Some(scope) = next_scope {
            let mut models = scope.model.models.iter();
            let found = models.find(|(known, _)| known.value == *name);
            if let Some((_, definition)) = found {
                let model = match definition {
                    ModelDef::Inline(model) => &**model,
                    ModelDef::File(model) => &**model,
                    ModelDef::Bad => return false,
                };
                let mut params = model.params.iter();
                return params.any(|(param, _)| param.value == ARGUMENT);
            }
            next_scope = scope.outer;
        }
        false
    }

    /// Enters a gate in the net, once all names around it are known.
    pub(super) fn gate(&mut self, gated: GatedDecl<'_>, prefix: &str, names: &Names, env: &Env) {
        let node = self.substitute(gated.node, env);
        let Some(gate) = gates::read(&node, self.sink) else {
            return;
        };
        let Some(from) = self.half(&gate.from, names, true) else {
            return;
        };
        let number = self.net.gates.len();
        self.net.gates.push(NetGate {
            name: format!("{prefix}{}", gated.decl.name.value),
            span: gate.from.span,
            from: None,
            actors: gated.actors.collect(),
            closed: gate.closed,
            states: gate.states,
            after: gate.after,
        });
        self.edges.push(Edge {
            to: Some(Half::Gate(number)),
            ..Edge::dropped(from)
        });
    }
}
