//! Types, rates and ports: asks every op what it makes of the inputs known so far, until nothing new comes of it.

use std::collections::{BTreeMap, VecDeque};

use zbmd_backends::op::{OpError, Registry, ResolveCx, Signature};
use zbmd_ir::{DType, InPort, OutPort, Role, TokenType, limits};

use crate::codes::Code;
use crate::diag::{Diagnostic, Sink, suggest};
use crate::net::{Link, Net, NetActor};
use crate::values::{Files, TypeFact};

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
    let mut infer = Infer {
        net,
        registry,
        files,
        types: net.links.iter().map(Link::stated).collect(),
        states: net.actors.iter().map(|_| State::New).collect(),
        tries: vec![0; net.actors.len()],
        inputs_of,
        outputs_of,
        queue: (0..net.actors.len()).collect(),
    };
    infer.run(sink);
    while infer.seed() {
        infer.run(sink);
    }
    infer.report_stuck(sink);
    let signatures: Vec<Option<Signature>> = infer
        .states
        .into_iter()
        .map(|s| {
            if let State::Known(sig) = s {
                Some(sig)
            } else {
                None
            }
        })
        .collect();
    for (actor, signature) in net.actors.iter().zip(&signatures) {
        if let Some(signature) = signature {
            check_limits(actor, signature, sink);
        }
    }
    signatures
}

/// What is known of an actor.
#[derive(Debug)]
enum State {
    /// Not asked yet.
    New,
    /// Waits for the type of this input.
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
    states: Vec<State>,
    /// How often each op was asked; a bound, should an op answer differently each time.
    tries: Vec<usize>,
    inputs_of: Vec<Vec<usize>>,
    outputs_of: Vec<Vec<usize>>,
    queue: VecDeque<usize>,
}

impl Infer<'_> {
    fn run(&mut self, sink: &mut Sink) {
        while let Some(id) = self.queue.pop_front() {
            self.tries[id] += 1;
            if matches!(self.states[id], State::Failed)
                || self.tries[id] > self.inputs_of[id].len() + 4
            {
                continue;
            }
            match self.resolve(id) {
                Ok(signature) => self.known(id, signature),
                Err(OpError::NeedInput { port }) => self.states[id] = State::Waits(port),
                Err(error) => {
                    self.states[id] = State::Failed;
                    sink.push(self.refusal(id, error));
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
                let mut connected = Vec::new();
                let mut types = BTreeMap::new();
                for &link in &self.inputs_of[id] {
                    let port = self.net.links[link].to.port.clone().unwrap_or_default();
                    if let Some(token) = &self.types[link] {
                        types.insert(port.clone(), token.clone());
                    }
                    connected.push(port);
                }
                let blobs = &self.files.blobs;
                let cx = ResolveCx {
                    params: &actor.params,
                    connected: &connected,
                    types: &types,
                    blobs,
                };
                self.registry.resolve(&actor.op.value, &cx)
            }
        }
    }

    fn source(&self, id: usize, actor: &NetActor) -> Result<Signature, OpError> {
        let stated = actor.stream.token().or_else(|| {
            // A dtype without a shape means scalars: streams seldom carry anything else.
            actor
                .stream
                .dtype
                .as_ref()
                .map(|d| TokenType::scalar(d.value))
        });
        let known = stated.or_else(|| {
            self.outputs_of[id]
                .iter()
                .find_map(|&l| self.types[l].clone())
        });
        let token = known.ok_or_else(|| OpError::NeedInput {
            port: "y".to_owned(),
        })?;
        let rate = actor.rate.as_ref().map_or(1, |r| r.value);
        let rate = self
            .stated_rate(&self.outputs_of[id], |l| &l.write_rates)
            .unwrap_or(rate);
        let outputs = vec![OutPort {
            name: "y".to_owned(),
            token,
            rate,
        }];
        Ok(Signature {
            outputs,
            ..Signature::default()
        })
    }

    fn sink(&self, id: usize, actor: &NetActor) -> Result<Signature, OpError> {
        let known = self.inputs_of[id]
            .iter()
            .find_map(|&l| self.types[l].clone());
        let token = known
            .or_else(|| actor.stream.token())
            .ok_or_else(|| OpError::NeedInput {
                port: "x".to_owned(),
            })?;
        let rate = actor.rate.as_ref().map_or(1, |r| r.value);
        let rate = self
            .stated_rate(&self.inputs_of[id], |l| &l.rates)
            .unwrap_or(rate);
        let inputs = vec![InPort {
            name: "x".to_owned(),
            token,
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

    fn known(&mut self, id: usize, signature: Signature) {
        for index in 0..self.outputs_of[id].len() {
            let link = self.outputs_of[id][index];
            let port = output_port(&signature, self.net.links[link].from.port.as_deref());
            let Some(port) = port else { continue };
            let token = &signature.outputs[port].token;
            if self.types[link].as_ref() != Some(token) && self.net.links[link].stated().is_none() {
                self.types[link] = Some(token.clone());
                self.queue.push_back(self.net.links[link].to.actor);
            }
        }
        self.states[id] = State::Known(signature);
    }

    /// When nothing follows any more: takes types from readers whose op fixes them, or else takes channels that
    /// state a dtype alone for scalars. Whether anything new is known.
    fn seed(&mut self) -> bool {
        let mut seeded = false;
        for id in 0..self.net.links.len() {
            if self.types[id].is_some() {
                continue;
            }
            let link = &self.net.links[id];
            let State::Known(signature) = &self.states[link.to.actor] else {
                continue;
            };
            if let Some(port) = input_port(signature, link.to.port.as_deref()) {
                self.types[id] = Some(signature.inputs[port].token.clone());
                self.queue.push_back(link.from.actor);
                self.queue.push_back(link.to.actor);
                seeded = true;
            }
        }
        if seeded {
            return true;
        }
        for (id, link) in self.net.links.iter().enumerate() {
            let dtype = link.facts.iter().find_map(|f| f.dtype.as_ref());
            if let (None, Some(dtype)) = (&self.types[id], dtype) {
                self.types[id] = Some(TokenType::scalar(dtype.value));
                self.queue.push_back(link.from.actor);
                self.queue.push_back(link.to.actor);
                seeded = true;
            }
        }
        seeded
    }

    /// What an op refuses, drawn where it was written.
    fn refusal(&self, id: usize, error: OpError) -> Diagnostic {
        let actor = &self.net.actors[id];
        let who = format!("`{}` ({})", actor.name, actor.op.value);
        match error {
            OpError::Param {
                name,
                message,
                help,
            } => Diagnostic::new(Code::E0302, format!("{who}: parameter `{name}`: {message}"))
                .primary(actor.param_span(&name), "refused by the op")
                .help(help),
            OpError::Input {
                port,
                message,
                help,
            } => {
                let links = self.inputs_of[id].iter().map(|&l| &self.net.links[l]);
                let link = links.clone().find(|l| l.to.port.as_deref() == Some(&port));
                let link = link.or_else(|| links.clone().find(|l| l.to.port.is_none()));
                let diagnostic =
                    Diagnostic::new(Code::E0303, format!("{who}: input `{port}` {message}"));
                let diagnostic = match link {
                    Some(link) => diagnostic
                        .primary(link.to.span, format!("leads to `{port}`"))
                        .context(actor.op.span, "refused by this op"),
                    None => diagnostic.primary(actor.op.span, "refused by this op"),
                };
                diagnostic.help(help)
            }
            OpError::NeedInput { port } => Diagnostic::new(
                Code::E0304,
                format!("{who}: the type of input `{port}` is not known"),
            )
            .primary(actor.op.span, "here"),
            OpError::Other { message, help } => {
                Diagnostic::new(Code::E0309, format!("{who}: {message}"))
                    .primary(actor.op.span, "this op")
                    .help(help)
            }
        }
    }

    /// Reports what waits for a type: an unconnected input, or a loop in which every type hangs on another. What
    /// waits only because something else failed is silent.
    fn report_stuck(&mut self, sink: &mut Sink) {
        let mut seen = vec![false; self.net.actors.len()];
        for start in 0..self.net.actors.len() {
            let mut path = vec![start];
            let mut at = start;
            loop {
                if seen[at] {
                    let Some(first) = path[..path.len() - 1].iter().position(|&a| a == at) else {
                        break;
                    };
                    if !self.net.links.iter().any(|l| l.facts.iter().any(|f| f.bad)) {
                        sink.push(self.type_loop(&path[first..path.len() - 1]));
                    }
                    break;
                }
                seen[at] = true;
                let State::Waits(port) = &self.states[at] else {
                    break;
                };
                match self.feeder(at, port) {
                    Some(link) => at = self.net.links[link].from.actor,
                    None => {
                        let actor = &self.net.actors[at];
                        // A channel that could not be read may be the one that is missing.
                        let excused = if actor.role == Role::Source {
                            actor.stream.bad
                        } else {
                            self.net.lost
                        };
                        if !excused {
                            sink.push(self.unknown_input(at, port));
                        }
                        break;
                    }
                }
                path.push(at);
            }
        }
    }

    fn feeder(&self, id: usize, port: &str) -> Option<usize> {
        let links = &self.inputs_of[id];
        let named = links
            .iter()
            .find(|&&l| self.net.links[l].to.port.as_deref() == Some(port));
        named
            .or_else(|| links.iter().find(|&&l| self.net.links[l].to.port.is_none()))
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
                let links = self.inputs_of[id].iter().map(|&l| &self.net.links[l].to);
                let context = |d: Diagnostic, end: &crate::net::End| match &end.port {
                    Some(port) => d.context(end.span, format!("leads to `{port}`")),
                    None => d.context(end.span, "leads to its first input"),
                };
                links.fold(unconnected(actor, port), context)
            }
        }
    }

    fn type_loop(&self, actors: &[usize]) -> Diagnostic {
        let names: Vec<&str> = actors
            .iter()
            .rev()
            .map(|&a| self.net.actors[a].name.as_str())
            .collect();
        let first = &self.net.actors[actors[0]];
        let mut diagnostic = Diagnostic::new(
            Code::E0304,
            format!(
                "the token types in the loop {} -> {} hang on each other",
                names.join(" -> "),
                names[0]
            ),
        )
        .primary(first.span, "waits for the type of its input");
        for &id in &actors[1..] {
            diagnostic = diagnostic.context(self.net.actors[id].span, "so does this");
        }
        diagnostic.help("state the type of one channel in the loop: `dtype: f32, shape: []`")
    }
}

/// E0208.
pub(crate) fn unconnected(actor: &NetActor, port: &str) -> Diagnostic {
    let what = if actor.role == Role::Sink {
        format!("sink `{}` is not connected", actor.name)
    } else {
        format!("input `{port}` of `{}` is not connected", actor.name)
    };
    let local = actor.name.rsplit('/').next().unwrap_or_default();
    let end = if actor.role == Role::Sink {
        local.to_owned()
    } else {
        format!("{local}.{port}")
    };
    Diagnostic::new(Code::E0208, what)
        .primary(actor.span, "no channel leads to it")
        .help(format!("add a channel: `(from: …, to: [\"{end}\"])`"))
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
    let side = if writer { "output" } else { "input" };
    let known: Vec<&str> = if writer {
        signature.outputs.iter().map(|p| p.name.as_str()).collect()
    } else {
        signature.inputs.iter().map(|p| p.name.as_str()).collect()
    };
    let message = match &end.port {
        Some(port) => format!(
            "`{}` ({}) has no {side} `{port}`",
            actor.name, actor.op.value
        ),
        None => format!("`{}` ({}) has no {side}s", actor.name, actor.op.value),
    };
    Diagnostic::new(Code::E0207, message)
        .primary(end.span, "no such port")
        .help(suggest(end.port.as_deref().unwrap_or_default(), known))
}

/// Every stated type, rate and window of a link against what the ops at its ends say.
pub(crate) fn check_link(net: &Net, link: &Link, out: &OutPort, input: &InPort, sink: &mut Sink) {
    let (from, to) = (&net.actors[link.from.actor], &net.actors[link.to.actor]);
    let before = sink.errors();
    for fact in link.facts.iter().chain([&from.stream]) {
        check_fact(fact, &out.token, link, from, sink);
    }
    check_sink(to, link, from, &out.token, sink);
    // A wrong statement is what the reader was inferred from.
    if out.token != input.token && sink.errors() == before {
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
            .help(type_mend(&out.token, &input.token)),
        );
    }
    let stated = [
        (&link.write_rates, out.rate, "writes", "rate", from),
        (&link.rates, input.rate, "reads", "rate", to),
        (&link.windows, input.window, "looks at", "window", to),
    ];
    for (facts, is, does, what, actor) in stated {
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
    let dtype = to.stream.dtype.as_ref().filter(|d| d.value != is.dtype);
    let shape = to.stream.shape.as_ref().filter(|s| s.value != is.shape);
    let stated = dtype.map(|d| (d.span, d.value.to_string()));
    let stated = stated.or(shape.map(|s| (s.span, format!("the shape {:?}", s.value))));
    if let Some((span, takes)) = stated {
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
    if let Some(shape) = fact.shape.as_ref().filter(|s| s.value != is.shape) {
        refuse(shape.span, format!("shape {:?}", shape.value));
    }
}

fn type_mend(out: &TokenType, input: &TokenType) -> String {
    if out.shape == input.shape && out.dtype != DType::C32 && input.dtype != DType::C32 {
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
    let ports = signature.inputs.len().max(signature.outputs.len()) + signature.states.len();
    if ports > limits::MAX_PORTS {
        refuse(
            "the number of ports".into(),
            ports as u64,
            limits::MAX_PORTS as u64,
        );
    }
    let ins = signature
        .inputs
        .iter()
        .map(|p| (&p.name, &p.token, p.rate.max(p.window)));
    let outs = signature
        .outputs
        .iter()
        .map(|p| (&p.name, &p.token, p.rate));
    for (name, token, rate) in ins.chain(outs) {
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
