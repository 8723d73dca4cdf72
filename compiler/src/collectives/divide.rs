//! The graph with collectives in parts. All other actors and all channels keep their ids; `a#part0` takes the id of `a`.

use std::collections::BTreeMap;

use bytes::Bytes;
use zbmd_backends::kernel::Io;
use zbmd_backends::op::Registry;
use zbmd_ir::{
    Actor, ActorId, BlobId, Channel, ChannelId, DeviceId, Graph, Params, Reader, Role, TiSlice,
    TokenType, Value, verify,
};

use crate::graph_edit::{GraphEdit, endpoint, repeated_name};

/// A cut token's largest part may be so many percent above the mean: pieces of tokens are dealt out as a whole.
const MAX_UNEVEN_PERCENT: u64 = 3;
/// Collectives that hand over fewer bytes in all are not worth a search: each transfer costs more than its bytes.
const MIN_BYTES: u64 = 8 << 10;

/// The bytes that a collective hands over between its writers and readers in a firing, where dividing it may pay: ops over
/// elements that several actors read.
pub(super) fn collective_bytes(graph: &Graph, id: ActorId) -> Option<u64> {
    let actor = &graph.actors[id];
    if !is_divisible_op(actor) {
        return None;
    }

    let channel = &graph.channels[output_channel(graph, id)?];
    let readers = channel.readers.len();
    let is_shared = readers > 1 && channel.token.elements() > 1;
    let ends = (actor.inputs.len() + readers) as u64;
    let bytes = channel.token.bytes().saturating_mul(ends);
    (is_shared && bytes >= MIN_BYTES).then_some(bytes)
}

/// Whether the actor does the same with every element of its tokens. A gated one holds whole tokens.
fn is_divisible_op(actor: &Actor) -> bool {
    let is_collective = matches!(actor.op.as_str(), "AllReduce" | "Broadcast");
    is_collective && actor.role == Role::Compute && actor.gate().is_none()
}

/// Divides each of these collectives, `AllReduce` and `Broadcast` actors, into at most so many parts: as many as it has
/// inputs or readers, if there are elements for them. Outputs stay the same to the bit. The graph must have passed
/// `zbmd_ir::verify::check_graph`. Readers that are pinned to one device share a copy of the output.
///
/// `None` where an actor is another one, or gated, or has fewer than two parts, where a limit is exceeded, or the registry
/// lacks an op.
pub fn divide(
    graph: &Graph,
    collectives: &[ActorId],
    max_parts: u64,
    pins: &BTreeMap<ActorId, DeviceId>,
    registry: &Registry,
    blobs: &TiSlice<BlobId, Bytes>,
) -> Option<Graph> {
    let mut division = Division {
        pins,
        edit: GraphEdit {
            graph: graph.clone(),
            registry,
            blobs,
        },
    };
    for &id in collectives {
        division.divide_actor(id, max_parts)?;
    }

    let graph = division.edit.graph;
    let is_valid = repeated_name(&graph).is_none() && verify::check_graph(&graph, blobs).is_ok();
    is_valid.then_some(graph)
}

fn output_channel(graph: &Graph, id: ActorId) -> Option<ChannelId> {
    let mut channels = graph.channels.iter_enumerated();
    let found = channels.find(|(_, channel)| channel.from.actor == id);
    found.map(|(channel, _)| channel)
}

struct Division<'a> {
    pins: &'a BTreeMap<ActorId, DeviceId>,
    edit: GraphEdit<'a>,
}

/// How tokens are cut: into pieces of some elements, of which each part gets a run.
struct Cut {
    whole: TokenType,
    piece: TokenType,
    runs: Vec<u64>,
}

impl Cut {
    /// Cuts tokens of this type into about equal parts.
    fn new(whole: &TokenType, parts: u64) -> Self {
        let elements = whole.elements();
        let pieces = piece_count(elements, parts);
        let piece_elements = u32::try_from(elements / pieces).unwrap_or(u32::MAX);

        // The first parts get what is left over, a piece each.
        let runs = (0..parts).map(|part| pieces / parts + u64::from(part < pieces % parts));
        Self {
            whole: whole.clone(),
            piece: TokenType::new(whole.dtype, [piece_elements]),
            runs: runs.collect(),
        }
    }

    fn shape_params(shape: &[u32]) -> Params {
        let dimensions = shape.iter().map(|&size| Value::Int(size.into()));
        [("shape".to_owned(), Value::List(dimensions.collect()))].into()
    }

    /// The parameters of `Split` and `Merge`; `count_param` is the one with the number of parts.
    fn run_params(&self, count_param: &str) -> Option<Params> {
        let int = |count: u64| i64::try_from(count).ok().map(Value::Int);
        let runs: Option<Vec<Value>> = self.runs.iter().map(|&run| int(run)).collect();
        Some(
            [
                (count_param.to_owned(), int(self.runs.len() as u64)?),
                ("run".to_owned(), Value::List(runs?)),
            ]
            .into(),
        )
    }
}

/// The fewest pieces of equal size that can be dealt out to so many parts evenly, or nearly so.
fn piece_count(elements: u64, parts: u64) -> u64 {
    let is_even = |&pieces: &u64| {
        let largest = pieces.div_ceil(parts) * parts;
        elements.is_multiple_of(pieces) && largest * 100 <= pieces * (100 + MAX_UNEVEN_PERCENT)
    };

    // Each further round of pieces makes parts more even: where no divisor does within these, single elements do.
    let most = elements.min(parts.saturating_mul(100 / MAX_UNEVEN_PERCENT + 1));
    (parts..=most).find(is_even).unwrap_or(elements)
}

impl Division<'_> {
    fn divide_actor(&mut self, id: ActorId, max_parts: u64) -> Option<()> {
        let output = output_channel(&self.edit.graph, id)?;
        let actor = self.edit.graph.actors[id].clone();
        let channel = self.edit.graph.channels[output].clone();
        if !is_divisible_op(&actor) {
            return None;
        }

        let ends = actor.inputs.len().max(channel.readers.len()) as u64;
        let parts = ends
            .min(max_parts)
            .min(channel.token.elements())
            .min(Io::MAX_MUT_PORTS as u64);
        if parts < 2 {
            return None;
        }

        let cut = Cut::new(&channel.token, parts);
        let part_ids = self.add_parts(id, &actor, &cut)?;
        self.cut_inputs(id, &actor, &part_ids, &cut)?;
        self.join_outputs(&actor, output, &channel, &part_ids, &cut)
    }

    /// Puts the first part in the place of the actor, and adds the others.
    fn add_parts(&mut self, id: ActorId, actor: &Actor, cut: &Cut) -> Option<Vec<ActorId>> {
        let inputs: Vec<(String, &TokenType)> = actor
            .inputs
            .iter()
            .map(|port| (port.name.clone(), &cut.piece))
            .collect();
        let mut part_ids = Vec::new();
        for part in 0..cut.runs.len() {
            let name = format!("{}#part{part}", actor.name);
            let params = actor.params.clone();
            let part_actor = self.edit.make_actor(name, &actor.op, params, &inputs)?;
            if part == 0 {
                self.edit.graph.actors[id] = part_actor;
                part_ids.push(id);
            } else {
                part_ids.push(self.edit.graph.actors.push_and_get_key(part_actor));
            }
        }
        Some(part_ids)
    }

    /// Cuts the tokens of each input up, and sends a part to each of the actors.
    fn cut_inputs(
        &mut self,
        id: ActorId,
        actor: &Actor,
        part_ids: &[ActorId],
        cut: &Cut,
    ) -> Option<()> {
        let input_channels = self.edit.graph.port_channels().inputs[id].clone();
        for (port, input) in actor.inputs.iter().enumerate() {
            let x = "x".to_owned();
            let reshape_name = format!("{}#pieces:{}", actor.name, input.name);
            let reshape_params = Cut::shape_params(&cut.piece.shape);
            let inputs = [(x.clone(), &cut.whole)];
            let reshape = self.add_actor(reshape_name, "Reshape", reshape_params, &inputs)?;

            let split_name = format!("{}#split:{}", actor.name, input.name);
            let split_params = cut.run_params("outputs")?;
            let split = self.add_actor(split_name, "Split", split_params, &[(x, &cut.piece)])?;

            let (channel, reader) = input_channels[port]?;
            self.edit.graph.channels[channel].readers[reader as usize].to = endpoint(reshape, 0);
            let to_split = [endpoint(split, 0)];
            self.edit
                .connect(endpoint(reshape, 0), to_split, &cut.piece);
            for (part, &part_id) in part_ids.iter().enumerate() {
                let to_part = [endpoint(part_id, port)];
                self.edit
                    .connect(endpoint(split, part), to_part, &cut.piece);
            }
        }
        Some(())
    }

    /// Puts the parts of the output together for each reader, or for those on one device. Each keeps its delay and the
    /// initial tokens it saw.
    fn join_outputs(
        &mut self,
        actor: &Actor,
        output: ChannelId,
        channel: &Channel,
        part_ids: &[ActorId],
        cut: &Cut,
    ) -> Option<()> {
        let mut merges = Vec::new();
        for (index, readers) in self.readers_by_device(channel).into_iter().enumerate() {
            let merge_name = format!("{}#merge{index}", actor.name);
            let merge_params = cut.run_params("inputs")?;
            let parts = 0..part_ids.len();
            let inputs: Vec<(String, &TokenType)> =
                parts.map(|part| (format!("x{part}"), &cut.piece)).collect();
            let merge = self.add_actor(merge_name, "Merge", merge_params, &inputs)?;

            let reshape_name = format!("{}#whole{index}", actor.name);
            let reshape_params = Cut::shape_params(&cut.whole.shape);
            let inputs = [("x".to_owned(), &cut.piece)];
            let reshape = self.add_actor(reshape_name, "Reshape", reshape_params, &inputs)?;

            let to_reshape = [endpoint(reshape, 0)];
            self.edit
                .connect(endpoint(merge, 0), to_reshape, &cut.piece);
            merges.push(merge);

            let reader_channel = Channel {
                from: endpoint(reshape, 0),
                ..channel_of_readers(channel, readers)
            };
            if index == 0 {
                self.edit.graph.channels[output] = reader_channel;
            } else {
                self.edit.graph.channels.push(reader_channel);
            }
        }

        for (part, &part_id) in part_ids.iter().enumerate() {
            let to_merges = merges.iter().map(|&merge| endpoint(merge, part));
            self.edit
                .connect(endpoint(part_id, 0), to_merges, &cut.piece);
        }
        Some(())
    }

    /// The readers that are pinned to one device together, each other one by itself.
    fn readers_by_device(&self, channel: &Channel) -> Vec<Vec<Reader>> {
        let mut groups: Vec<(Option<DeviceId>, Vec<Reader>)> = Vec::new();
        for &reader in &channel.readers {
            let pin = self.pins.get(&reader.to.actor).copied();
            let mut pinned_groups = groups.iter_mut();
            let same_device = pinned_groups.find(|(device, _)| pin.is_some() && *device == pin);
            match same_device {
                Some((_, readers)) => readers.push(reader),
                None => groups.push((pin, vec![reader])),
            }
        }
        groups.into_iter().map(|(_, readers)| readers).collect()
    }

    fn add_actor(
        &mut self,
        name: String,
        op: &str,
        params: Params,
        inputs: &[(String, &TokenType)],
    ) -> Option<ActorId> {
        let actor = self.edit.make_actor(name, op, params, inputs)?;
        Some(self.edit.graph.actors.push_and_get_key(actor))
    }
}

/// The channel as some of its readers see it: with the last initial tokens, as many as their longest delay.
fn channel_of_readers(channel: &Channel, readers: Vec<Reader>) -> Channel {
    let longest_delay = readers.iter().map(|reader| reader.delay).max().unwrap_or(0);
    let seen_bytes = longest_delay.saturating_mul(channel.token.bytes()) as usize;
    let first_seen = channel.initial.len().saturating_sub(seen_bytes);
    Channel {
        readers,
        initial: channel.initial[first_seen..].to_vec(),
        ..channel.clone()
    }
}
