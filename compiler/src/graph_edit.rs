//! Adding actors and channels to a graph that is rewritten. Ids that were there stay valid.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use zbmd_backends::op::{Registry, ResolveCx};
use zbmd_ir::{
    Actor, ActorId, BlobId, Channel, Endpoint, Graph, Params, Reader, Role, TiSlice, TokenType,
};

/// A graph that is being rewritten.
pub(crate) struct GraphEdit<'a> {
    pub(crate) graph: Graph,
    pub(crate) registry: &'a Registry,
    /// The tensors of the graph's parameters.
    pub(crate) blobs: &'a TiSlice<BlobId, Bytes>,
}

impl GraphEdit<'_> {
    /// An actor of an op for these inputs; `None` where the registry lacks the op, or the op refuses them.
    pub(crate) fn make_actor(
        &self,
        name: String,
        op: &str,
        params: Params,
        inputs: &[(String, &TokenType)],
    ) -> Option<Actor> {
        let input_names: Vec<String> = inputs.iter().map(|(port, _)| port.clone()).collect();
        let input_types: BTreeMap<String, TokenType> = inputs
            .iter()
            .map(|(port, token)| (port.clone(), (*token).clone()))
            .collect();
        let cx = ResolveCx {
            params: &params,
            connected: &input_names,
            types: &input_types,
            blobs: self.blobs,
        };

        let signature = self.registry.resolve(op, &cx).ok()?;
        Some(Actor {
            name,
            role: Role::Compute,
            op: op.to_owned(),
            params,
            inputs: signature.inputs,
            outputs: signature.outputs,
            state: Vec::new(),
            in_place: Vec::new(),
        })
    }

    /// A channel without initial tokens, to any number of readers.
    pub(crate) fn connect(
        &mut self,
        from: Endpoint,
        to: impl IntoIterator<Item = Endpoint>,
        token: &TokenType,
    ) {
        let readers = to.into_iter().map(|to| Reader { to, delay: 0 });
        self.graph.channels.push(Channel {
            from,
            readers: readers.collect(),
            token: token.clone(),
            initial: Vec::new(),
        });
    }
}

pub(crate) fn endpoint(actor: ActorId, port: usize) -> Endpoint {
    Endpoint {
        actor,
        port: port as u32,
    }
}

/// A name that two actors have, if there is one.
pub(crate) fn repeated_name(graph: &Graph) -> Option<&str> {
    let mut known_names = BTreeSet::new();
    let mut names = graph.actors.iter().map(|actor| actor.name.as_str());
    names.find(|name| !known_names.insert(*name))
}
