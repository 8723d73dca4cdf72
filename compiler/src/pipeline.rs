//! From the graph to the program: analysis, costs, plans and the verifier, with their refusals drawn on the text.

use bytes::Bytes;
use zbmd_backends::gpu::is_gpu;
use zbmd_backends::kernels::Math;
use zbmd_backends::op::Registry;
use zbmd_ir::{
    Actor, ActorCost, ActorId, BlobId, ChannelId, Costs, Device, DeviceId, Graph, Machine, Role,
    TiSlice, TiVec, Value,
};
use zbmd_scheduler::{AnalysisError, ScheduleError};

use crate::build::Origins;
use crate::codes::Code;
use crate::costs::{CostKey, MeasuredCosts};
use crate::diag::{Diagnostic, Sink, suggest};
use crate::source::Span;
use crate::values::Files;
use crate::variants;

/// Rates, deadlocks and sample rates of a graph; false if it was refused.
pub(crate) fn analyse(graph: &mut Graph, origins: &Origins, sink: &mut Sink) -> bool {
    let before = sink.errors();
    match zbmd_scheduler::repetition(graph) {
        Err(error) => sink.push(draw_analysis(&error, graph, origins)),
        Ok(q) => {
            if let Err(error) = zbmd_scheduler::check_deadlock(graph, &q) {
                sink.push(draw_analysis(&error, graph, origins));
            }
            sample_rates(graph, &q, origins, sink);
        }
    }
    sink.errors() == before
}

/// What every actor costs on every device: as measured, or else by the roofline.
pub(crate) fn costs(
    graph: &Graph,
    machine: &Machine,
    measured: &MeasuredCosts,
    registry: &Registry,
    files: &Files,
) -> Costs {
    let blobs = &files.blobs;
    let row = |actor: &Actor| {
        let wanted = !measured.is_empty() && actor.role == Role::Compute;
        let keys = if wanted {
            cost_keys(actor, blobs)
        } else {
            Vec::new()
        };
        let cost = |device: &Device| {
            let modelled = registry.cost(actor, device, blobs)?;
            // Where rounded factors make no difference, or were not measured, exact ones stand for them.
            let last = if device.backend == "cuda" {
                keys.len()
            } else {
                keys.len().min(1)
            };
            let found = keys[..last]
                .iter()
                .rev()
                .find_map(|k| measured.get(&device.name, *k));
            // A variant may need more memory than the default one, which it falls back to.
            let caps = registry.caps(device);
            let of_variant = |key: &CostKey| {
                let name = variants::best(machine, measured, device, *key)?;
                let plan = registry.lower_in(actor, blobs, caps, Some(name)).ok()?;
                Some(plan.scratch_bytes())
            };
            let variants = keys
                .iter()
                .filter(|_| is_gpu(&device.backend))
                .filter_map(of_variant);
            let scratch_bytes = variants.fold(modelled.scratch_bytes, u64::max);
            let modelled = ActorCost {
                scratch_bytes,
                ..modelled
            };
            Some(found.map_or(modelled, |m| ActorCost {
                call_ps: m.call_ps,
                firing_ps: m.firing_ps,
                ..modelled
            }))
        };
        machine.devices.iter().map(cost).collect()
    };
    Costs {
        table: graph.actors.iter().map(row).collect(),
    }
}

/// What the cost of an actor is measured under: with exact factors, then with rounded ones where it may round them.
pub(crate) fn cost_keys(actor: &Actor, blobs: &TiSlice<BlobId, Bytes>) -> Vec<CostKey> {
    let mut plain = actor.clone();
    let rounds = plain.params.remove(Math::PARAM).is_some();
    let exact = CostKey::of(&plain, blobs);
    if rounds {
        vec![exact, CostKey::of(actor, blobs)]
    } else {
        vec![exact]
    }
}

/// Devices that pins name.
pub(crate) fn pins(
    origins: &Origins,
    machine: &Machine,
    sink: &mut Sink,
) -> std::collections::BTreeMap<ActorId, DeviceId> {
    let mut out = std::collections::BTreeMap::new();
    for (actor, device) in &origins.pins {
        let found = machine
            .devices
            .iter_enumerated()
            .find(|(_, d)| d.name == device.value);
        match found {
            Some((id, _)) => {
                out.insert(*actor, id);
            }
            None => sink.push(
                Diagnostic::new(
                    Code::E0502,
                    format!("there is no device `{}`", device.value),
                )
                .primary(device.span, "pinned to it")
                .help(suggest(
                    &device.value,
                    machine.devices.iter().map(|d| d.name.as_str()),
                )),
            ),
        }
    }
    out
}

/// Sample rates follow the repetition vector from the streams that state one; every sink is told its own.
fn sample_rates(graph: &mut Graph, q: &TiVec<ActorId, u64>, origins: &Origins, sink: &mut Sink) {
    let parts = components(graph);
    // Iterations per second of each connected part, and who says so.
    let mut known: Vec<Option<(ActorId, f64)>> = vec![None; graph.actors.len()];
    let tokens = |graph: &Graph, id: ActorId| {
        let actor = &graph.actors[id];
        let rate = actor
            .outputs
            .first()
            .map(|p| p.rate)
            .or(actor.inputs.first().map(|p| p.rate));
        q[id] as f64 * rate.unwrap_or(1) as f64
    };
    for (&id, &span) in &origins.sample_rates {
        let Some(stated) = graph.actors[id]
            .params
            .get("sample_rate")
            .and_then(Value::as_float)
        else {
            continue;
        };
        let iterations = stated / tokens(graph, id);
        match known[parts[id]] {
            None => known[parts[id]] = Some((id, iterations)),
            Some((first, other)) if (other - iterations).abs() > 1e-9 * other.abs() => {
                let expected = other * tokens(graph, id);
                let name = &graph.actors[id].name;
                sink.push(
                    Diagnostic::new(
                        Code::E0404,
                        format!("`{name}` states a sample rate of {stated}, the rest of the graph gives {expected}"),
                    )
                    .primary(span, format!("should be {expected}"))
                    .context(
                        origins.sample_rates[&first],
                        format!("`{}` states this one", graph.actors[first].name),
                    )
                    .help("change one of them, or put a resampler between the streams"),
                );
            }
            Some(_) => {}
        }
    }
    let sinks: Vec<ActorId> = graph.sinks().map(|(id, _)| id).collect();
    for id in sinks {
        if let Some((_, iterations)) = known[parts[id]] {
            let rate = iterations * tokens(graph, id);
            graph.actors[id]
                .params
                .entry("sample_rate".to_owned())
                .or_insert(Value::Float(rate));
        }
    }
}

/// The connected part that each actor belongs to, as the index of its first actor.
fn components(graph: &Graph) -> TiVec<ActorId, usize> {
    fn root(parent: &mut TiVec<ActorId, usize>, mut at: usize) -> usize {
        while parent[ActorId::from(at)] != at {
            let up = parent[ActorId::from(parent[ActorId::from(at)])];
            parent[ActorId::from(at)] = up;
            at = up;
        }
        at
    }
    let mut parent: TiVec<ActorId, usize> = (0..graph.actors.len()).collect();
    for channel in &graph.channels {
        for reader in &channel.readers {
            let a = root(&mut parent, channel.from.actor.index());
            let b = root(&mut parent, reader.to.actor.index());
            parent[ActorId::from(a.max(b))] = a.min(b);
        }
    }
    (0..graph.actors.len())
        .map(|i| root(&mut parent, i))
        .collect()
}

fn ends(
    graph: &Graph,
    origins: &Origins,
    channel: ChannelId,
    reader: Option<ActorId>,
) -> (Span, Span) {
    let readers = &graph.channels[channel].readers;
    let index = readers
        .iter()
        .position(|r| Some(r.to.actor) == reader)
        .unwrap_or(0);
    origins.channels[channel]
        .get(index)
        .copied()
        .unwrap_or((Span::NONE, Span::NONE))
}

fn draw_analysis(error: &AnalysisError, graph: &Graph, origins: &Origins) -> Diagnostic {
    let name = |id: ActorId| graph.actors[id].name.as_str();
    match error {
        AnalysisError::Inconsistent {
            channel,
            writer,
            reader,
            produced,
            consumed,
            writer_firings,
            reader_firings,
        } => {
            let (from, to) = ends(graph, origins, *channel, Some(*reader));
            let (w, r) = (name(*writer), name(*reader));
            let (made, taken) = (
                u128::from(*produced) * u128::from(*writer_firings),
                u128::from(*consumed) * u128::from(*reader_firings),
            );
            Diagnostic::new(
                Code::E0401,
                format!(
                    "rates are inconsistent: for {writer_firings} firings of `{w}` the rest of the graph asks for \
                     {reader_firings} of `{r}`, but this channel would gain {made} tokens and lose {taken}"
                ),
            )
            .primary(to, format!("`{r}` reads {consumed} a firing, {taken} in all"))
            .context(from, format!("`{w}` writes {produced} a firing, {made} in all"))
            .help("bring both paths between the two actors to one rate: up- or downsample on one of them")
        }
        AnalysisError::Deadlock {
            actors,
            channels,
            on,
            missing,
        } => {
            let path: Vec<&str> = actors.iter().map(|&a| name(a)).collect();
            let position = channels.iter().position(|c| c == on).unwrap_or(0);
            let reader = actors.get((position + 1) % actors.len().max(1)).copied();
            let (from, to) = ends(graph, origins, *on, reader);
            let first = path.first().copied().unwrap_or_default();
            let message = match path.as_slice() {
                [one] => format!("deadlock: {one} waits for itself"),
                _ => format!(
                    "deadlock: {} -> {first} wait for each other",
                    path.join(" -> ")
                ),
            };
            let more = if *missing == 1 { "token" } else { "tokens" };
            let mut diagnostic = Diagnostic::new(Code::E0402, message)
                .primary(to, format!("{missing} more initial {more} here would do"))
                .context(from, "the channel from here");
            for &actor in actors {
                diagnostic = diagnostic.context(origins.actors[actor], "waits");
            }
            diagnostic.help(format!(
                "add `initial: Zeros({missing})` to this channel, or its start values as a list"
            ))
        }
        AnalysisError::Overflow { actor, limit } => Diagnostic::new(
            Code::E0403,
            format!(
                "`{}` would fire more than {limit} times in one iteration",
                name(*actor)
            ),
        )
        .primary(origins.actors[*actor], "this actor")
        .help("rates with large common multiples make long iterations: round them"),
        other => Diagnostic::new(Code::E0403, other.to_string())
            .help("rates with large common multiples make long iterations: round them"),
    }
}

/// Channels of a conflict that are pointed at.
const MAX_SHOWN: usize = 6;

/// Points at the channels whose buffers cannot lie together.
fn point_at_conflict(
    mut diagnostic: Diagnostic,
    conflict: &[ChannelId],
    graph: &Graph,
    origins: &Origins,
) -> Diagnostic {
    let all = conflict.len();
    for (at, &channel) in conflict.iter().take(MAX_SHOWN).enumerate() {
        let (writer, _) = ends(graph, origins, channel, None);
        diagnostic = match at + 1 {
            1 if all == 1 => {
                diagnostic.primary(writer, "the tokens of this channel alone are too many")
            }
            1 => diagnostic.primary(writer, "the tokens of this channel cannot lie there"),
            MAX_SHOWN if all > MAX_SHOWN => {
                let more = all - MAX_SHOWN;
                diagnostic.context(writer, format!("together with these and {more} more"))
            }
            _ => diagnostic.context(writer, "together with these"),
        };
    }
    diagnostic
}

/// A refusal of the scheduler on the text.
pub(crate) fn draw_schedule(
    error: &ScheduleError,
    graph: &Graph,
    machine: &Machine,
    origins: &Origins,
) -> Diagnostic {
    let name = |id: ActorId| graph.actors[id].name.as_str();
    let device = |id: DeviceId| machine.devices[id].name.as_str();
    let pin = |id: ActorId| origins.pins.get(&id).map_or(origins.actors[id], |p| p.span);
    match error {
        ScheduleError::Analysis(error) => draw_analysis(error, graph, origins),
        ScheduleError::NoDevices => Diagnostic::new(Code::E0503, error.to_string())
            .help("give a machine with devices, or allow more of them"),
        ScheduleError::NoDevice { actor } => Diagnostic::new(
            Code::E0503,
            format!("no device has a kernel for `{}` ({})", name(*actor), graph.actors[*actor].op),
        )
        .primary(origins.ops[*actor], "this op")
        .help("add a CPU device to the machine"),
        ScheduleError::PinImpossible { actor, device: d } => Diagnostic::new(
            Code::E0503,
            format!("`{}` is pinned to `{}`, which has no kernel for it", name(*actor), device(*d)),
        )
        .primary(pin(*actor), "pinned here")
        .context(origins.ops[*actor], "this op")
        .help("pin it to a CPU device, or remove the pin"),
        ScheduleError::PinnedApart { first, first_device, second, second_device } => Diagnostic::new(
            Code::E0502,
            format!(
                "`{}` is pinned to `{}` and `{}` to `{}`, but their firings interleave on one cycle",
                name(*first),
                device(*first_device),
                name(*second),
                device(*second_device)
            ),
        )
        .primary(pin(*second), "pinned here")
        .context(pin(*first), "pinned elsewhere")
        .help("pin the actors of a feedback loop to one device, or add initial tokens for a whole block"),
        ScheduleError::NoLink { channel, from, to } => {
            let (writer, reader) = ends(graph, origins, *channel, None);
            Diagnostic::new(
                Code::E0503,
                format!("this channel needs a link from `{}` to `{}`", device(*from), device(*to)),
            )
            .primary(reader, format!("read on `{}`", device(*to)))
            .context(writer, format!("written on `{}`", device(*from)))
            .help("add the link to the machine, or pin both actors to one device")
        }
        ScheduleError::TooBig { channel, .. } => {
            let (writer, reader) = ends(graph, origins, *channel, None);
            Diagnostic::new(Code::E0504, error.to_string())
                .primary(reader, "this channel")
                .context(writer, "written here")
                .help("lower the rates, or the block with `--block`")
        }
        ScheduleError::Memory { device: d, needed_bytes, limit_bytes, block, conflict } => {
            let message = format!(
                "`{}` needs {needed_bytes} bytes in blocks of {block}, {limit_bytes} are allowed",
                device(*d)
            );
            point_at_conflict(Diagnostic::new(Code::E0504, message), conflict, graph, origins).help(
                "allow more with `--max-memory` or in the machine, or ask for a smaller `--block`",
            )
        }
        ScheduleError::Buffers { .. } => Diagnostic::new(Code::E0504, error.to_string())
            .help("allow more with `--buffers`, or leave it out"),
        ScheduleError::Latency { best_ns, limit_ns } => Diagnostic::new(
            Code::E0506,
            format!("the quickest plan has a latency of {best_ns} ns, {limit_ns} ns are allowed"),
        )
        .help("allow more with `--max-latency`, or make the iteration shorter"),
        ScheduleError::BlockRange { block, limit } => Diagnostic::new(
            Code::E0506,
            format!("a block of {block} iterations is asked for, 1 to {limit} are possible"),
        )
        .help("ask for another `--block`, or leave it out"),
        ScheduleError::TooManyContingencies { .. } => Diagnostic::new(Code::E0506, error.to_string())
            .help("ask for `--contingencies single` or `none`"),
        ScheduleError::TooManySlots { .. } => Diagnostic::new(Code::E0403, error.to_string())
            .help("shorten the iteration, or ask for a smaller `--block`"),
    }
}
