//! Types, rates and ports: every op is resolved with the input types known so far, until nothing new follows.

use std::collections::{BTreeMap, VecDeque};

use zbmd_backends::op::{OpError, Registry, ResolveCx, Signature};
use zbmd_ir::{DType, InPort, OutPort, Role, TokenType, limits};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::live;
use crate::net::{Link, Net, NetActor};
use crate::values::{Files, StatedShape, TypeFact};

/// Signatures of all actors; `None` where an error was reported.
pub(crate) fn infer(
    net: &Net,
    registry: &Registry,
    files: &Files,
    sink: &mut Sink,
) -> Vec<Option<Signature>> {
    let mut inputs_of = vec![Vec::new(); net.actors.len()];
    let mut outputs_of = vec![Vec::new(); net.actors.len()];
    for (id, link) in net.links.iter().enumerate() {
        inputs_of[link.to.actor].push(id);
        outputs_of[link.from.actor].push(id);
    }

    let mut inference = Infer {
        net,
        registry,
        files,
        types: net.links.iter().map(Link::stated).collect(),
        states: net.actors.iter().map(|_| Resolution::New).collect(),
        tries: vec![0; net.actors.len()],
        inputs_of,
        outputs_of,
        queue: (0..net.actors.len()).collect(),
    };

    // Types spread along links; where none is known in a loop, one that is stated is taken for a start.
    inference.run(sink);
    while inference.seed_types() {
        inference.run(sink);
    }
    inference.report_stuck(sink);

    let mut signatures = Vec::new();
    for resolution in inference.states {
        signatures.push(match resolution {
            Resolution::Known(signature) => Some(signature),
            Resolution::New | Resolution::Waits(_) | Resolution::Failed => None,
        });
    }
    for (actor, signature) in net.actors.iter().zip(&signatures) {
        if let Some(signature) = signature {
            check_limits(actor, signature, sink);
            live::check_range(actor, signature, registry, files, sink);
        }
    }

    signatures
}

/// What is known of an actor.
#[derive(Debug)]
enum Resolution {
    /// Its op has not been resolved yet.
    New,
    /// It needs the type of this input first.
    Waits(String),
    Known(Signature),
    /// Reported.
    Failed,
}

struct Infer<'a> {
    net: &'a Net,
    registry: &'a Registry,
    files: &'a Files,
    /// Token type of each link, once known.
    types: Vec<Option<TokenType>>,
    states: Vec<Resolution>,
    /// How often each op was resolved: bounded, should an op answer differently each time.
    tries: Vec<usize>,
    inputs_of: Vec<Vec<usize>>,
    outputs_of: Vec<Vec<usize>>,
    queue: VecDeque<usize>,
}

impl Infer<'_> {
    fn run(&mut self, sink: &mut Sink) {
        while let Some(actor_id) = self.queue.pop_front() {
            self.tries[actor_id] += 1;

            // An actor is asked again once for each input whose type becomes known, and a few times where types are
            // seeded. An op whose answer never settles would go on in a loop for ever.
            let max_tries = self.inputs_of[actor_id].len() + 4;
            let has_failed = matches!(self.states[actor_id], Resolution::Failed);
            if has_failed || self.tries[actor_id] > max_tries {
                continue;
            }

            match self.resolve(actor_id) {
                Ok(signature) => self.enter_signature(actor_id, signature),
                Err(OpError::NeedInput { port }) => self.states[actor_id] = Resolution::Waits(port),
                Err(error) => {
                    // Others are still resolved: all mistakes of a model are reported in one run.
                    self.states[actor_id] = Resolution::Failed;
                    sink.push(self.refusal(actor_id, error));
                }
            }
        }
    }

    fn resolve(&self, id: usize) -> Result<Signature, OpError> {
        let actor = &self.net.actors[id];
        match actor.role {
            Role::Source => self.source(id, actor),
            Role::Sink => self.sink(id, actor),
            Role::Compute => {
                let mut connected_ports = Vec::new();
                let mut input_types = BTreeMap::new();
                for &link in &self.inputs_of[id] {
                    // A channel to an actor, without a port, leads to its first input: the op knows it as "".
                    let port = self.net.links[link].to.port.clone().unwrap_or_default();
                    if let Some(token) = &self.types[link] {
                        input_types.insert(port.clone(), token.clone());
                    }
                    connected_ports.push(port);
                }

                let blobs = &self.files.blobs;
                let resolve_cx = ResolveCx {
                    params: &actor.params,
                    connected: &connected_ports,
                    types: &input_types,
                    blobs,
                };

                self.registry.resolve(&actor.op.value, &resolve_cx)
            }
        }
    }

    fn source(&self, id: usize, actor: &NetActor) -> Result<Signature, OpError> {
        let stated_token = actor.stream.token().or_else(|| {
            // A dtype without a shape means scalars: streams seldom carry anything else.
            actor
                .stream
                .dtype
                .as_ref()
                .map(|d| TokenType::scalar(d.value))
        });
        // A source that states nothing writes what its readers take.
        let known_token = stated_token.or_else(|| {
            self.outputs_of[id]
                .iter()
                .find_map(|&l| self.types[l].clone())
        });
        let source_token = known_token.ok_or_else(|| OpError::NeedInput {
            port: "y".to_owned(),
        })?;

        let default_rate = actor.rate.as_ref().map_or(1, |r| r.value);
        let channel_rate = self.stated_rate(&self.outputs_of[id], |l| &l.write_rates);
        let outputs = vec![OutPort {
            name: "y".to_owned(),
            token: source_token,
            rate: channel_rate.unwrap_or(default_rate),
        }];
        Ok(Signature {
            outputs,
            ..Signature::default()
        })
    }

    fn sink(&self, id: usize, actor: &NetActor) -> Result<Signature, OpError> {
        // What is written goes before what the sink states: `check_link` compares the two with a better message.
        let known_token = self.inputs_of[id]
            .iter()
            .find_map(|&l| self.types[l].clone());
        let sink_token = known_token
            .or_else(|| actor.stream.token())
            .ok_or_else(|| OpError::NeedInput {
                port: "x".to_owned(),
            })?;

        // Sinks keep no history: the window is the rate.
        let default_rate = actor.rate.as_ref().map_or(1, |r| r.value);
        let channel_rate = self.stated_rate(&self.inputs_of[id], |l| &l.rates);
        let rate = channel_rate.unwrap_or(default_rate);
        let inputs = vec![InPort {
            name: "x".to_owned(),
            token: sink_token,
            rate,
            window: rate,
        }];
        Ok(Signature {
            inputs,
            ..Signature::default()
        })
    }

    /// A stream's rate as a channel states it, where the stream itself states none.
    fn stated_rate(
        &self,
        links: &[usize],
        rates: impl Fn(&Link) -> &Vec<crate::source::Spanned<u64>>,
    ) -> Option<u64> {
        let actor = links.first().map(|&l| {
            let link = &self.net.links[l];
            if self.net.actors[link.to.actor].role == Role::Sink && !rates(link).is_empty() {
                link.to.actor
            } else {
                link.from.actor
            }
        })?;
        if self.net.actors[actor].rate.is_some() {
            return None;
        }
        links
            .iter()
            .find_map(|&l| rates(&self.net.links[l]).first().map(|r| r.value))
    }

    fn enter_signature(&mut self, id: usize, signature: Signature) {
        for index in 0..self.outputs_of[id].len() {
            let link_id = self.outputs_of[id][index];
            let port_index = output_port(&signature, self.net.links[link_id].from.port.as_deref());
            let Some(port_index) = port_index else {
                continue;
            };
            let token = &signature.outputs[port_index].token;
            // A stated type stays: `check_link` reports it at its own place if the op writes another one.
            if self.types[link_id].as_ref() != Some(token)
                && self.net.links[link_id].stated().is_none()
            {
                self.types[link_id] = Some(token.clone());
                self.queue.push_back(self.net.links[link_id].to.actor);
            }
        }
        self.states[id] = Resolution::Known(signature);
    }

    /// When nothing follows any more: takes types from readers whose op fixes them, or else takes channels that
    /// state a dtype alone for scalars. Whether anything new is known.
    fn seed_types(&mut self) -> bool {
        let mut has_seeded = false;
        for id in 0..self.net.links.len() {
            if self.types[id].is_some() {
                continue;
            }
            let link = &self.net.links[id];
            let Resolution::Known(signature) = &self.states[link.to.actor] else {
                continue;
            };
            // Both ends are asked again: the writer may have waited for just this type, in a loop with the reader.
            if let Some(port) = input_port(signature, link.to.port.as_deref()) {
                self.types[id] = Some(signature.inputs[port].token.clone());
                self.queue.push_back(link.from.actor);
                self.queue.push_back(link.to.actor);
                has_seeded = true;
            }
        }

        // A signature is a better start than a stated element type, which leaves the shape open.
        if has_seeded {
            return true;
        }

        for (id, link) in self.net.links.iter().enumerate() {
            let stated_dtype = link.facts.iter().find_map(|f| f.dtype.as_ref());
            if let (None, Some(stated_dtype)) = (&self.types[id], stated_dtype) {
                self.types[id] = Some(TokenType::scalar(stated_dtype.value));
                self.queue.push_back(link.from.actor);
                self.queue.push_back(link.to.actor);
                has_seeded = true;
            }
        }

        has_seeded
    }

    /// What an op refuses, drawn where it was written.
    fn refusal(&self, id: usize, error: OpError) -> Diagnostic {
        let actor = &self.net.actors[id];
        let actor_words = format!("`{}` ({})", actor.name, actor.op.value);
        match error {
            OpError::Param {
                name,
                message,
                help,
            } => Diagnostic::new(
                Code::E0302,
                format!("{actor_words}: parameter `{name}`: {message}"),
            )
            .primary(actor.param_span(&name), "refused by the op")
            .help(help),
            OpError::Input {
                port,
                message,
                help,
            } => {
                // The channel that names the port, or else the one that leads to the first input without naming it.
                let links = self.inputs_of[id].iter().map(|&l| &self.net.links[l]);
                let refused_link = links.clone().find(|l| l.to.port.as_deref() == Some(&port));
                let refused_link =
                    refused_link.or_else(|| links.clone().find(|l| l.to.port.is_none()));
                let diagnostic = Diagnostic::new(
                    Code::E0303,
                    format!("{actor_words}: input `{port}` {message}"),
                );
                let diagnostic = match refused_link {
                    Some(refused_link) => diagnostic
                        .primary(refused_link.to.span, format!("leads to `{port}`"))
                        .context(actor.op.span, "refused by this op"),
                    None => diagnostic.primary(actor.op.span, "refused by this op"),
                };

                diagnostic.help(help)
            }
            OpError::NeedInput { port } => Diagnostic::new(
                Code::E0304,
                format!("{actor_words}: the type of input `{port}` is not known"),
            )
            .primary(actor.op.span, "here"),
            OpError::Other { message, help } => {
                Diagnostic::new(Code::E0309, format!("{actor_words}: {message}"))
                    .primary(actor.op.span, "this op")
                    .help(help)
            }
        }
    }

    /// Reports what waits for a type: an unconnected input, or a loop in which every type hangs on another. What
    /// waits only because something else failed is silent.
    fn report_stuck(&mut self, sink: &mut Sink) {
        // Each actor waits for one input, so the actors that wait form paths that end at an unconnected input or in a
        // loop. An actor that has been seen ends a path too: O(actors), and each cause is reported once.
        let mut seen_actors = vec![false; self.net.actors.len()];
        for start in 0..self.net.actors.len() {
            let mut wait_path = vec![start];
            let mut waiting = start;
            loop {
                if seen_actors[waiting] {
                    // Seen on this path, it is a loop; seen on an earlier one, it has been reported with that.
                    let Some(first) = wait_path[..wait_path.len() - 1]
                        .iter()
                        .position(|&a| a == waiting)
                    else {
                        break;
                    };
                    // A type that could not be read may have been the one that starts this loop.
                    if !self.net.links.iter().any(|l| l.facts.iter().any(|f| f.bad)) {
                        sink.push(self.type_loop(&wait_path[first..wait_path.len() - 1]));
                    }
                    break;
                }

                seen_actors[waiting] = true;
                let Resolution::Waits(port) = &self.states[waiting] else {
                    break;
                };
                match self.find_feeder(waiting, port) {
                    Some(link) => waiting = self.net.links[link].from.actor,
                    None => {
                        let actor = &self.net.actors[waiting];
                        // A channel that could not be read may be the one that is missing.
                        let is_excused = if actor.role == Role::Source {
                            actor.stream.bad
                        } else {
                            self.net.lost
                        };
                        if !is_excused {
                            sink.push(self.unknown_input(waiting, port));
                        }
                        break;
                    }
                }

                wait_path.push(waiting);
            }
        }
    }

    fn find_feeder(&self, id: usize, port: &str) -> Option<usize> {
        let input_links = &self.inputs_of[id];
        let named_link = input_links
            .iter()
            .find(|&&l| self.net.links[l].to.port.as_deref() == Some(port));
        named_link
            .or_else(|| {
                input_links
                    .iter()
                    .find(|&&l| self.net.links[l].to.port.is_none())
            })
            .copied()
    }

    fn unknown_input(&self, id: usize, port: &str) -> Diagnostic {
        let actor = &self.net.actors[id];
        match actor.role {
            Role::Source => Diagnostic::new(
                Code::E0304,
                format!("the token type of source `{}` is not known", actor.name),
            )
            .primary(actor.span, "it states no dtype, and no reader fixes one")
            .help("write `Stream(dtype: f32)`"),
            Role::Sink | Role::Compute => {
                let link_ends = self.inputs_of[id].iter().map(|&l| &self.net.links[l].to);
                let context = |d: Diagnostic, end: &crate::net::End| match &end.port {
                    Some(port) => d.context(end.span, format!("leads to `{port}`")),
                    None => d.context(end.span, "leads to its first input"),
                };
                link_ends.fold(unconnected(actor, port), context)
            }
        }
    }

    fn type_loop(&self, actors: &[usize]) -> Diagnostic {
        // The path went from readers to writers; people read along the channels.
        let actor_names: Vec<&str> = actors
            .iter()
            .rev()
            .map(|&a| self.net.actors[a].name.as_str())
            .collect();
        let first_actor = &self.net.actors[actors[0]];
        let mut diagnostic = Diagnostic::new(
            Code::E0304,
            format!(
                "the token types in the loop {} -> {} hang on each other",
                actor_names.join(" -> "),
                actor_names[0]
            ),
        )
        .primary(first_actor.span, "waits for the type of its input");
        for &id in &actors[1..] {
            diagnostic = diagnostic.context(self.net.actors[id].span, "so does this");
        }
        diagnostic.help("state the type of one channel in the loop: `dtype: f32, shape: []`")
    }
}

/// E0208.
pub(crate) fn unconnected(actor: &NetActor, port: &str) -> Diagnostic {
    let port_words = if actor.role == Role::Sink {
        format!("sink `{}` is not connected", actor.name)
    } else {
        format!("input `{port}` of `{}` is not connected", actor.name)
    };

    // Within a sub-model, where the channel is missing, the actor goes by the last part of its name.
    let local_name = actor.name.rsplit('/').next().unwrap_or_default();
    let end_words = if actor.role == Role::Sink {
        local_name.to_owned()
    } else {
        format!("{local_name}.{port}")
    };
    Diagnostic::new(Code::E0208, port_words)
        .primary(actor.span, "no channel leads to it")
        .help(format!("add a channel: `(from: …, to: [\"{end_words}\"])`"))
}

/// Index of an output by name, or of the first one.
pub(crate) fn output_port(signature: &Signature, name: Option<&str>) -> Option<usize> {
    match name {
        None => (!signature.outputs.is_empty()).then_some(0),
        Some(name) => signature.outputs.iter().position(|p| p.name == name),
    }
}

/// Index of an input by name, or of the first one.
pub(crate) fn input_port(signature: &Signature, name: Option<&str>) -> Option<usize> {
    match name {
        None => (!signature.inputs.is_empty()).then_some(0),
        Some(name) => signature.inputs.iter().position(|p| p.name == name),
    }
}

/// E0207.
pub(crate) fn unknown_port(
    actor: &NetActor,
    end: &crate::net::End,
    signature: &Signature,
    writer: bool,
) -> Diagnostic {
    let side_name = if writer { "output" } else { "input" };
    let known_ports: Vec<&str> = if writer {
        signature.outputs.iter().map(|p| p.name.as_str()).collect()
    } else {
        signature.inputs.iter().map(|p| p.name.as_str()).collect()
    };
    let message = match &end.port {
        Some(port) => format!(
            "`{}` ({}) has no {side_name} `{port}`",
            actor.name, actor.op.value
        ),
        None => format!("`{}` ({}) has no {side_name}s", actor.name, actor.op.value),
    };

    Diagnostic::new(Code::E0207, message)
        .primary(end.span, "no such port")
        .help(suggest(
            end.port.as_deref().unwrap_or_default(),
            known_ports,
        ))
}

/// Every stated type, rate and window of a link against what the ops at its ends say.
pub(crate) fn check_link(net: &Net, link: &Link, out: &OutPort, input: &InPort, sink: &mut Sink) {
    let from = &net.actors[link.from.actor];
    let to = &net.actors[link.to.actor];
    let errors_before = sink.errors();
    for fact in link.facts.iter().chain([&from.stream]) {
        check_fact(fact, &out.token, link, from, sink);
    }
    check_sink(to, link, from, &out.token, sink);

    // A wrong statement is what the reader was inferred from: it would be reported a second time as a mismatch.
    if out.token != input.token && sink.errors() == errors_before {
        sink.push(
            Diagnostic::new(
                Code::E0301,
                format!(
                    "`{}` writes {}, `{}` reads {}",
                    from.name, out.token, to.name, input.token
                ),
            )
            .primary(link.to.span, format!("reads {}", input.token))
            .context(link.from.span, format!("writes {}", out.token))
            .help(type_fix(&out.token, &input.token)),
        );
    }

    let stated_facts = [
        (&link.write_rates, out.rate, "writes", "rate", from),
        (&link.rates, input.rate, "reads", "rate", to),
        (&link.windows, input.window, "looks at", "window", to),
    ];

    // A channel joined through ports of sub-models may state a rate several times: each wrong one is shown.
    for (facts, is, does, what, actor) in stated_facts {
        for fact in facts.iter().filter(|f| f.value != is) {
            sink.push(
                Diagnostic::new(
                    Code::E0306,
                    format!(
                        "the channel states a {what} of {}, `{}` {does} {is} a firing",
                        fact.value, actor.name
                    ),
                )
                .primary(fact.span, format!("stated as {}", fact.value))
                .context(actor.op.span, format!("its {what} is {is}"))
                .help(format!(
                    "remove the statement or write {is}: the op fixes its {what}"
                )),
            );
        }
    }
}

/// A sink takes what it states, if it states something.
fn check_sink(to: &NetActor, link: &Link, from: &NetActor, is: &TokenType, sink: &mut Sink) {
    let other_dtype = to.stream.dtype.as_ref().filter(|d| d.value != is.dtype);
    let other_shape = (to.stream.shape.as_ref()).filter(|s| s.value != StatedShape::of(is));
    let stated_words = other_dtype.map(|d| (d.span, d.value.to_string()));
    let stated_words =
        stated_words.or(other_shape.map(|s| (s.span, format!("the shape {}", s.value))));
    if let Some((span, takes)) = stated_words {
        sink.push(
            Diagnostic::new(
                Code::E0301,
                format!(
                    "`{}` writes {is}, sink `{}` takes {takes}",
                    from.name, to.name
                ),
            )
            .primary(link.to.span, "leads to the sink")
            .context(span, format!("takes {takes}"))
            .context(link.from.span, format!("writes {is}"))
            .help("convert the tokens with an op before, such as `Convert`, or change the sink"),
        );
    }
}

fn check_fact(fact: &TypeFact, is: &TokenType, link: &Link, from: &NetActor, sink: &mut Sink) {
    let mut refuse = |span, stated: String| {
        sink.push(
            Diagnostic::new(
                Code::E0306,
                format!("{stated} is stated, `{}` writes {is}", from.name),
            )
            .primary(span, format!("states {stated}"))
            .context(link.from.span, format!("writes {is}"))
            .help("remove the statement, or convert the tokens with an op before"),
        );
    };

    if let Some(dtype) = fact.dtype.as_ref().filter(|d| d.value != is.dtype) {
        refuse(dtype.span, format!("dtype {}", dtype.value));
    }
    if let Some(shape) = (fact.shape.as_ref()).filter(|s| s.value != StatedShape::of(is)) {
        refuse(shape.span, format!("shape {}", shape.value));
    }
}

fn type_fix(out: &TokenType, input: &TokenType) -> String {
    if out.burst || input.burst {
        "change one of the two actors: bursts are read by `Custom` actors, `BurstIndex` and sinks"
            .to_owned()
    } else if out.shape == input.shape && out.dtype != DType::C32 && input.dtype != DType::C32 {
        format!("put a `Convert({})` between them", input.dtype)
    } else if out.shape == input.shape {
        "convert between complex and real with an op between them".to_owned()
    } else if out.elements() == input.elements() {
        format!("put a `Reshape(shape: {:?})` between them", input.shape)
    } else {
        "change one of the two actors, or put an op between them".to_owned()
    }
}

fn check_limits(actor: &NetActor, signature: &Signature, sink: &mut Sink) {
    let mut refuse = |what: String, is: u64, max: u64| {
        sink.push(
            Diagnostic::new(
                Code::E0505,
                format!(
                    "`{}`: {what} is {is}, more than the limit of {max}",
                    actor.name
                ),
            )
            .primary(actor.op.span, "this op"),
        );
    };

    // Each state will be an input and an output of its own.
    let port_count = signature.inputs.len().max(signature.outputs.len()) + signature.states.len();
    if port_count > limits::MAX_PORTS {
        refuse(
            "the number of ports".into(),
            port_count as u64,
            limits::MAX_PORTS as u64,
        );
    }

    let input_facts = signature
        .inputs
        .iter()
        .map(|p| (&p.name, &p.token, p.rate.max(p.window)));
    let output_facts = signature
        .outputs
        .iter()
        .map(|p| (&p.name, &p.token, p.rate));
    for (name, token, rate) in input_facts.chain(output_facts) {
        if rate > limits::MAX_RATE {
            refuse(
                format!("the rate or window of `{name}`"),
                rate,
                limits::MAX_RATE,
            );
        }

        if token.bytes() > limits::MAX_TOKEN_BYTES {
            refuse(
                format!("a token of `{name}` in bytes"),
                token.bytes(),
                limits::MAX_TOKEN_BYTES,
            );
        }

        if token.shape.len() > limits::MAX_RANK {
            refuse(
                format!("the rank of `{name}`"),
                token.shape.len() as u64,
                limits::MAX_RANK as u64,
            );
        }
    }
}
