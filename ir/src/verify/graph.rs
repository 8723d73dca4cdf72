//! The graph: ids, ports, types, rates, delays, roles, states, parameters, consistency, deadlock-freedom.
//! Must not know machines or plans.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::error::{Errors, Port, VerifyError};
pub use super::repetition::repetition;
use super::repetition::{Edge, edges};
use super::{liveness, names};
use crate::carried::{CarriedFault, carried_fault};
use crate::limits::{
    MAX_ACTORS, MAX_CHANNELS, MAX_INITIAL_BYTES, MAX_LIVE_FIRINGS, MAX_NESTING, MAX_PORTS,
    MAX_RANK, MAX_RATE, MAX_TOKEN_BYTES,
};
use crate::merged::{MergedFault, merged_fault};
use crate::{
    Actor, ActorId, BlobId, Channel, ChannelId, Endpoint, Gate, Graph, LiveParameter, Role,
    TiSlice, TiVec, TokenType, Value, visit_live,
};

/// Checks a graph; its repetition vector if every check passed.
pub(super) fn check(
    graph: &Graph,
    blobs: &TiSlice<BlobId, Bytes>,
    errors: &mut Errors,
) -> Option<TiVec<ActorId, u64>> {
    let errors_before = errors.found();
    let actors_fit = errors.limit(
        || "actors".into(),
        graph.actors.len() as u128,
        MAX_ACTORS as u128,
    );
    let channels_fit = errors.limit(
        || "channels".into(),
        graph.channels.len() as u128,
        MAX_CHANNELS as u128,
    );
    if !actors_fit || !channels_fit {
        return None;
    }

    names::check_graph(graph, errors);
    let mut actor_names = BTreeMap::new();
    for (id, actor) in graph.actors.iter_enumerated() {
        if errors.full() {
            return None;
        }
        if let Some(&first) = actor_names.get(actor.name.as_str()) {
            errors.push(VerifyError::DuplicateActor {
                name: actor.name.clone(),
                first,
                second: id,
            });
        }

        actor_names.entry(actor.name.as_str()).or_insert(id);
        check_actor(id, actor, errors);
        check_params(id, actor, blobs, errors);
    }

    check_channels(graph, errors);
    if errors.found() > errors_before {
        return None;
    }

    // From here on every id and every port exists.
    check_states(graph, errors);
    let edges: Vec<Edge> = edges(graph).map_err(|e| errors.push(e)).ok()?;
    let repetitions = repetition(graph).map_err(|e| errors.push(e)).ok()?;
    liveness::check(&edges, &repetitions, errors);
    check_live(graph, &repetitions, errors);
    if let Some(CarriedFault { actor, why }) = carried_fault(graph, &repetitions) {
        errors.push(VerifyError::Carried { actor, why });
    }
    if let Some(MergedFault { actor, why }) = merged_fault(graph, &repetitions) {
        errors.push(VerifyError::Merged { actor, why });
    }
    (errors.found() == errors_before).then_some(repetitions)
}

fn check_actor(id: ActorId, actor: &Actor, errors: &mut Errors) {
    let inputs = actor.inputs.len();
    let outputs = actor.outputs.len();
    let states = actor.state.len();
    let inputs_fit = errors.limit(
        || format!("inputs of {id}"),
        inputs as u128,
        MAX_PORTS as u128,
    );
    let outputs_fit = errors.limit(
        || format!("outputs of {id}"),
        outputs as u128,
        MAX_PORTS as u128,
    );
    if !inputs_fit || !outputs_fit {
        return;
    }

    let fits_role = match actor.role {
        Role::Compute => true,
        Role::Source => (inputs, outputs, states) == (0, 1, 0),
        Role::Sink => (inputs, outputs, states) == (1, 0, 0),
    };

    if !fits_role {
        errors.push(VerifyError::RolePorts {
            actor: id,
            role: actor.role,
            inputs,
            outputs,
            states,
        });
    }

    // Ports are few by now: what follows may look at all of them.
    check_ports(id, actor, errors);
    check_state_ports(id, actor, errors);
    check_in_place(id, actor, errors);
}

fn check_ports(id: ActorId, actor: &Actor, errors: &mut Errors) {
    let mut input_names = BTreeMap::new();
    for (index, input) in (0..).zip(&actor.inputs) {
        let port = Port::In(index);
        check_port(id, port, &input.token, input.rate, errors);
        if input.window < input.rate {
            errors.push(VerifyError::WindowBelowRate {
                actor: id,
                port,
                window: input.window,
                rate: input.rate,
            });
        }

        errors.limit(
            || format!("window of {port} of {id}"),
            input.window.into(),
            MAX_RATE.into(),
        );
        if let Some(first) = input_names.insert(input.name.as_str(), port) {
            errors.push(VerifyError::DuplicatePort {
                actor: id,
                first,
                second: port,
            });
        }
    }

    // An output may have the name of an input.
    let mut output_names = BTreeMap::new();
    for (index, output) in (0..).zip(&actor.outputs) {
        let port = Port::Out(index);
        check_port(id, port, &output.token, output.rate, errors);
        if let Some(first) = output_names.insert(output.name.as_str(), port) {
            errors.push(VerifyError::DuplicatePort {
                actor: id,
                first,
                second: port,
            });
        }
    }
}

fn check_port(actor: ActorId, port: Port, token: &TokenType, rate: u64, errors: &mut Errors) {
    if rate == 0 {
        errors.push(VerifyError::ZeroRate { actor, port });
    }
    errors.limit(
        || format!("rate of {port} of {actor}"),
        rate.into(),
        MAX_RATE.into(),
    );
    errors.limit(
        || format!("rank of {port} of {actor}"),
        token.shape.len() as u128,
        MAX_RANK as u128,
    );
    errors.limit(
        || format!("token bytes of {port} of {actor}"),
        token.bytes().into(),
        MAX_TOKEN_BYTES.into(),
    );

    if token.burst && token.shape.is_empty() {
        errors.push(VerifyError::BurstWithoutMaximum { actor, port });
    }

    // A long shape has been reported, and is not copied into another error.
    if token.shape.len() <= MAX_RANK && token.shape.contains(&0) {
        errors.push(VerifyError::ZeroDimension {
            actor,
            port,
            token: token.clone(),
        });
    }
}

fn check_state_ports(id: ActorId, actor: &Actor, errors: &mut Errors) {
    let mut taken_ports = BTreeSet::new();
    for state in &actor.state {
        if errors.full() {
            return;
        }

        // A port that serves two states would have two tokens to be read at once.
        let ends = [
            (Port::In(state.input), actor.inputs.len()),
            (Port::Out(state.output), actor.outputs.len()),
        ];
        for (port, ports) in ends {
            let (Port::In(index) | Port::Out(index)) = port;
            if index as usize >= ports {
                errors.push(VerifyError::StatePort {
                    actor: id,
                    port,
                    ports,
                });
            } else if !taken_ports.insert(port) {
                errors.push(VerifyError::StatePortTwice { actor: id, port });
            }
        }
    }
}

/// Outputs that may be written over inputs: of a firing's bytes at both ports, those of one lie within the other's.
fn check_in_place(id: ActorId, actor: &Actor, errors: &mut Errors) {
    let state_inputs: BTreeSet<u32> = actor.state.iter().map(|s| s.input).collect();
    let state_outputs: BTreeSet<u32> = actor.state.iter().map(|s| s.output).collect();
    for pair in &actor.in_place {
        if errors.full() {
            return;
        }
        let input = actor
            .inputs
            .get(pair.input as usize)
            .filter(|_| !state_inputs.contains(&pair.input));
        let output = actor
            .outputs
            .get(pair.output as usize)
            .filter(|_| !state_outputs.contains(&pair.output));
        let (Some(read), Some(written)) = (input, output) else {
            let (port, ports) = match input {
                None => (Port::In(pair.input), actor.inputs.len()),
                Some(_) => (Port::Out(pair.output), actor.outputs.len()),
            };
            errors.push(VerifyError::InPlacePort {
                actor: id,
                port,
                ports,
            });
            continue;
        };

        // A window that looks back reads bytes that an earlier firing has written over.
        let read_bytes = firing_bytes(read.rate, &read.token);
        let written_bytes = firing_bytes(written.rate, &written.token);
        let smaller_end = u128::from(pair.at_bytes) + read_bytes.min(written_bytes);
        let is_within = smaller_end <= read_bytes.max(written_bytes);
        if read.window != read.rate || !is_within {
            errors.push(VerifyError::InPlaceShape {
                actor: id,
                input: pair.input,
                output: pair.output,
                at: pair.at_bytes,
                read: read_bytes,
                written: written_bytes,
                window: read.window,
                rate: read.rate,
            });
        }
    }
}

/// Bytes that a firing reads or writes at a port.
fn firing_bytes(rate: u64, token: &TokenType) -> u128 {
    u128::from(rate) * u128::from(token.bytes())
}

/// Every tensor anywhere in the parameters refers to a blob of its size, and is not one of bursts.
fn check_params(id: ActorId, actor: &Actor, blobs: &TiSlice<BlobId, Bytes>, errors: &mut Errors) {
    for (name, value) in &actor.params {
        // A stack instead of recursion: values that are not verified may be nested as deeply as a file is long.
        let mut unvisited = vec![(value, 0)];
        while let Some((value, depth)) = unvisited.pop() {
            if errors.full() {
                return;
            }
            match value {
                Value::List(_) | Value::Map(_) if depth == MAX_NESTING => {
                    let what = || format!("nesting of parameter `{name}` of {id}");
                    errors.limit(what, depth as u128 + 1, MAX_NESTING as u128);
                }
                Value::List(items) => unvisited.extend(items.iter().map(|item| (item, depth + 1))),
                Value::Map(items) => unvisited.extend(items.values().map(|item| (item, depth + 1))),
                Value::Tensor(blob, token) => {
                    let param = name.clone();
                    if token.burst {
                        errors.push(VerifyError::BurstParam { actor: id, param });
                        continue;
                    }
                    let expected = token.bytes();
                    match blobs.get(*blob).map(|bytes| bytes.len() as u64) {
                        None => {
                            errors.push(VerifyError::UnknownBlob {
                                actor: id,
                                param,
                                blob: *blob,
                                blobs: blobs.len(),
                            });
                        }
                        Some(found) if found != expected => {
                            errors.push(VerifyError::BlobLength {
                                actor: id,
                                param,
                                blob: *blob,
                                expected,
                                found,
                            });
                        }
                        Some(_) => {}
                    }
                }
                Value::Live(parameter) => {
                    if let Some(why) = live_fault(parameter) {
                        let param = name.clone();
                        errors.push(VerifyError::LiveParameter {
                            actor: id,
                            param,
                            why,
                        });
                    }
                }
                Value::Gate(gate) => {
                    let is_own = depth == 0 && name == Gate::PARAM;
                    let why = match is_own {
                        true => gate.fault(actor),
                        false => Some(format!("is in parameter `{name}`, where nothing reads it")),
                    };
                    if let Some(why) = why {
                        errors.push(VerifyError::Gate { actor: id, why });
                    }
                }
                Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Str(_) => {}
            }
        }
    }
}

/// What is wrong with a live parameter by itself.
fn live_fault(parameter: &LiveParameter) -> Option<String> {
    let (min, max) = (parameter.min, parameter.max);
    if !min.is_finite() || !max.is_finite() || min > max {
        return Some(format!("has the range {min} to {max}"));
    }
    if parameter.initial.is_empty() || (!parameter.is_list && parameter.initial.len() != 1) {
        return Some(format!("begins with {} numbers", parameter.initial.len()));
    }
    let refusal = parameter.check(&parameter.initial).err();
    refusal.map(|refusal| refusal.to_string())
}

/// A name stands for one live parameter; and an iteration is short enough to work out where changes take effect.
fn check_live(graph: &Graph, repetitions: &TiSlice<ActorId, u64>, errors: &mut Errors) {
    let mut by_name: BTreeMap<&str, (ActorId, &LiveParameter)> = BTreeMap::new();
    for (id, actor) in graph.actors.iter_enumerated() {
        visit_live(&actor.params, &mut |parameter| {
            let name = parameter.name.as_str();
            let (first, known) = *by_name.entry(name).or_insert((id, parameter));
            if known != parameter {
                errors.push(VerifyError::LiveDiffers {
                    name: name.to_owned(),
                    first,
                    second: id,
                });
            }
        });
    }
    if !by_name.is_empty() {
        let firings = repetitions.iter().map(|&count| u128::from(count)).sum();
        let what = || "firings of an iteration with live parameters".to_owned();
        errors.limit(what, firings, MAX_LIVE_FIRINGS.into());
    }
}

/// Which channel joins each port; finds ports joined twice or never.
struct JoinedPorts {
    inputs: TiVec<ActorId, Vec<Option<ChannelId>>>,
    outputs: TiVec<ActorId, Vec<Option<ChannelId>>>,
}

impl JoinedPorts {
    fn join(&mut self, actor: ActorId, port: Port, channel: ChannelId, errors: &mut Errors) {
        let place = match port {
            Port::In(i) => self
                .inputs
                .get_mut(actor)
                .and_then(|p| p.get_mut(i as usize)),
            Port::Out(i) => self
                .outputs
                .get_mut(actor)
                .and_then(|p| p.get_mut(i as usize)),
        };

        match place {
            Some(Some(first)) => {
                errors.push(VerifyError::PortConnectedTwice {
                    actor,
                    port,
                    first: *first,
                    second: channel,
                });
            }
            Some(place) => *place = Some(channel),
            None => {}
        }
    }

    fn report_unconnected(&self, errors: &mut Errors) {
        for (actor, ports) in self.inputs.iter_enumerated() {
            for (i, _) in (0..).zip(ports).filter(|(_, p)| p.is_none()) {
                errors.push(VerifyError::PortUnconnected {
                    actor,
                    port: Port::In(i),
                });
            }
        }

        for (actor, ports) in self.outputs.iter_enumerated() {
            for (i, _) in (0..).zip(ports).filter(|(_, p)| p.is_none()) {
                errors.push(VerifyError::PortUnconnected {
                    actor,
                    port: Port::Out(i),
                });
            }
        }
    }
}

fn check_channels(graph: &Graph, errors: &mut Errors) {
    let mut joined = JoinedPorts {
        inputs: graph
            .actors
            .iter()
            .map(|a| vec![None; a.inputs.len()])
            .collect(),
        outputs: graph
            .actors
            .iter()
            .map(|a| vec![None; a.outputs.len()])
            .collect(),
    };

    for (id, channel) in graph.channels.iter_enumerated() {
        if errors.full() {
            return;
        }
        let from = channel.from;
        check_end(graph, id, from.actor, Port::Out(from.port), errors);
        joined.join(from.actor, Port::Out(from.port), id, errors);
        for reader in &channel.readers {
            if errors.full() {
                return;
            }
            let to = reader.to;
            let port = Port::In(to.port);
            check_end(graph, id, to.actor, port, errors);
            joined.join(to.actor, port, id, errors);

            // The first firing looks back at tokens that nobody has written yet.
            let actor = graph.actors.get(to.actor);
            let Some(input) = actor.and_then(|actor| actor.inputs.get(to.port as usize)) else {
                continue;
            };
            let min_delay = input.window.saturating_sub(input.rate);
            if reader.delay < min_delay {
                errors.push(VerifyError::DelayTooShort {
                    channel: id,
                    actor: to.actor,
                    port,
                    delay: reader.delay,
                    least: min_delay,
                });
            }
        }

        check_initial(id, channel, errors);
    }

    let initial_bytes: u128 = graph.channels.iter().map(|c| c.initial.len() as u128).sum();
    errors.limit(
        || "initial bytes of all channels".to_owned(),
        initial_bytes,
        MAX_INITIAL_BYTES.into(),
    );
    joined.report_unconnected(errors);
}

fn check_end(graph: &Graph, channel: ChannelId, actor: ActorId, port: Port, errors: &mut Errors) {
    // Only what exists can have a type to compare.
    let Some(data) = graph.actors.get(actor) else {
        errors.push(VerifyError::UnknownActor {
            channel,
            actor,
            actors: graph.actors.len(),
        });
        return;
    };

    let (token, ports) = match port {
        Port::In(i) => (
            data.inputs.get(i as usize).map(|p| &p.token),
            data.inputs.len(),
        ),
        Port::Out(i) => (
            data.outputs.get(i as usize).map(|p| &p.token),
            data.outputs.len(),
        ),
    };

    let expected = &graph.channels[channel].token;
    match token {
        None => errors.push(VerifyError::UnknownPort {
            channel,
            actor,
            port,
            ports,
        }),
        Some(found) if found != expected => {
            errors.push(VerifyError::PortType {
                channel,
                actor,
                port,
                found: found.clone(),
                expected: expected.clone(),
            });
        }
        Some(_) => {}
    }
}

fn check_initial(channel: ChannelId, data: &Channel, errors: &mut Errors) {
    let expected = u128::from(data.history()) * u128::from(data.token.bytes());
    let found = data.initial.len() as u64;
    if expected != u128::from(found) {
        errors.push(VerifyError::InitialLength {
            channel,
            expected,
            found,
        });
    }

    errors.limit(
        || format!("initial bytes of {channel}"),
        found.into(),
        MAX_INITIAL_BYTES.into(),
    );
}

/// State pairs are self-loops with one reader, rate 1, window 1 and delay 1. Ports exist and are joined by now.
fn check_states(graph: &Graph, errors: &mut Errors) {
    let joins = graph.port_channels();
    for (id, actor) in graph.actors.iter_enumerated() {
        for state in &actor.state {
            let Some(channel) = joins.outputs[id][state.output as usize] else {
                continue;
            };
            let input = &actor.inputs[state.input as usize];
            let output = &actor.outputs[state.output as usize];

            // A state is a token that the actor hands to its own next firing.
            let own_input = Endpoint {
                actor: id,
                port: state.input,
            };
            let readers = graph.channels[channel].readers.as_slice();
            let is_own_loop =
                matches!(readers, [reader] if reader.to == own_input && reader.delay == 1);
            if !is_own_loop || (input.rate, input.window, output.rate) != (1, 1, 1) {
                errors.push(VerifyError::StateShape {
                    actor: id,
                    port: Port::In(state.input),
                    channel,
                });
            }
        }
    }
}
