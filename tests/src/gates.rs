//! Random gates on graphs, and a model with gated actors on a GPU.

use zbmd_backends::standard_registry;
use zbmd_compiler::{CompileOptions, compile_str};
use zbmd_ir::verify::Verified;
use zbmd_ir::*;
use zbmd_scheduler::{Block, ScheduleOptions, check_deadlock, repetition};

use crate::gpu::{place_on, with};

/// Puts gates on about half of a graph's actors that can have one; how many have. Most decide by what other actors write,
/// so that they open and close at random; their windows look back some tokens, and closed firings hold or clear outputs
/// and states as it falls out.
pub fn add_gates(graph: &mut Graph, seed: u64) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x6a7e);
    let actors: Vec<ActorId> = graph.actors.keys().collect();
    let mut gates = 0;
    for id in actors {
        let is_compute = graph.actors[id].role == Role::Compute;
        if is_compute && rng.bool() && try_gate(graph, id, &mut rng) {
            gates += 1;
        }
    }
    gates
}

/// Gates one actor by an earlier one, if there is one whose tokens fit.
fn try_gate(graph: &mut Graph, id: ActorId, rng: &mut fastrand::Rng) -> bool {
    let q = repetition(graph).expect("random graphs are consistent");
    let mut writers = Vec::new();
    for (channel, data) in graph.channels.iter_enumerated() {
        let writer = data.from.actor;
        let rate = graph.actors[writer].outputs[data.from.port as usize].rate;
        let tokens = q[writer] * rate;
        let is_number = [DType::I64, DType::F32]
            .map(TokenType::scalar)
            .contains(&data.token);
        if writer < id && is_number && tokens.is_multiple_of(q[id]) && !graph.is_state(channel) {
            writers.push((channel, tokens / q[id]));
        }
    }
    if writers.is_empty() {
        return false;
    }
    let (channel, rate) = writers[rng.usize(..writers.len())];

    let before = graph.clone();
    let decides = add_threshold(graph, channel);
    let look_back = if rng.bool() { rng.u64(0..4) } else { 0 };
    gate(graph, id, decides, (rate, look_back), rng);
    let q = repetition(graph).expect("the rates fit");
    if check_deadlock(graph, &q).is_err() {
        *graph = before;
        return false;
    }
    true
}

/// An actor that says whether the tokens of a channel are above 0; its own channel.
fn add_threshold(graph: &mut Graph, channel: ChannelId) -> ChannelId {
    let token = graph.channels[channel].token.clone();
    let decided = TokenType::scalar(DType::Bool);
    let actor = graph.actors.push_and_get_key(Actor {
        name: format!("decide{}", graph.actors.len()),
        role: Role::Compute,
        op: "Threshold".to_owned(),
        params: Params::new(),
        inputs: vec![InPort {
            name: "x".to_owned(),
            token,
            rate: 1,
            window: 1,
        }],
        outputs: vec![OutPort {
            name: "y".to_owned(),
            token: decided.clone(),
            rate: 1,
        }],
        state: Vec::new(),
        in_place: Vec::new(),
    });
    let port = Endpoint { actor, port: 0 };
    graph.channels[channel]
        .readers
        .push(Reader { to: port, delay: 0 });
    graph.channels.push_and_get_key(Channel {
        from: port,
        readers: Vec::new(),
        token: decided,
        initial: Vec::new(),
    })
}

/// Gates an actor by a channel of truth values: `rate` tokens a firing, and so many before them.
fn gate(
    graph: &mut Graph,
    id: ActorId,
    channel: ChannelId,
    (rate, look_back): (u64, u64),
    rng: &mut fastrand::Rng,
) {
    let port = InPort {
        name: "gate".to_owned(),
        token: graph.channels[channel].token.clone(),
        rate,
        window: rate + look_back,
    };
    let mut answer = || match rng.bool() {
        true => ClosedAnswer::Hold,
        false => ClosedAnswer::Zero,
    };
    let states = answer();
    let answers: Vec<ClosedAnswer> = graph.actors[id].outputs.iter().map(|_| answer()).collect();
    let gate_input = graph.actors[id].inputs.len() as u32;
    let gated = graph.actors[id].with_gate(port, states, |index| answers[index as usize]);
    let held = gated.gate().expect("it has one").held();
    graph.actors[id] = gated;

    // Some decisions before the first, and a delay besides.
    let delay = look_back + rng.u64(0..3) * u64::from(rng.bool());
    let decides = &mut graph.channels[channel];
    decides.initial = (0..delay).map(|_| u8::from(rng.bool())).collect();
    decides.readers.push(Reader {
        to: Endpoint {
            actor: id,
            port: gate_input,
        },
        delay,
    });
    let outputs = graph.actors[id].outputs.len();
    for index in 0..held {
        let port = (outputs - held + index) as u32;
        let token = graph.actors[id].outputs[port as usize].token.clone();
        let initial = (0..token.bytes()).map(|_| rng.u8(..)).collect();
        graph.channels.push(Channel {
            from: Endpoint { actor: id, port },
            readers: vec![Reader {
                to: Endpoint {
                    actor: id,
                    port: gate_input + 1 + index as u32,
                },
                delay: 1,
            }],
            token,
            initial,
        });
    }
}

/// Two gated actors in a row, which have the same bits everywhere, between others; the second one takes two tokens a
/// firing. The gate opens above `level`; `gate` is the rest of its declaration.
fn model(level: f32, gate: &str) -> String {
    format!(
        r#"Model(
    name: "gated",
    sources: {{ "x": Stream(dtype: f32), "level": Stream(dtype: f32) }},
    actors: {{
        "open": Threshold({level:?}),
        "scale": Expr("3.0 * x", gate: Gate("open"{gate})),
        "half": Decimate(2, gate: Gate("open"{gate})),
        "late": Expr("x - y", inputs: {{ "x": f32, "y": f32 }}),
        "slow": Expr("0.5 * x"),
        "both": Expr("x + y", inputs: {{ "x": f32, "y": f32 }}),
    }},
    channels: [
        (from: "level", to: ["open", "both.y"]),
        (from: "x", to: ["scale", "both.x"]),
        (from: "both", to: ["both_out"]),
        (from: "scale", to: ["late.x", "half"]),
        (from: "scale", to: ["late.y"], initial: [0.0, 0.0]),
        (from: "half", to: ["slow"]),
        (from: "late", to: ["fast_out"]),
        (from: "slow", to: ["slow_out"]),
    ],
    sinks: {{ "fast_out": Stream(), "slow_out": Stream(), "both_out": Stream() }},
)"#
    )
}

/// `model`, with all that can be on the GPU but what opens the gates.
///
/// # Panics
/// If it does not compile, or has no valid plan.
pub fn placed(level: f32, gate: &str, block: u64, backend: &str) -> Verified<Program> {
    let registry = &standard_registry();
    let text = model(level, gate);
    let options = CompileOptions {
        registry: registry.clone(),
        ..CompileOptions::default()
    };
    let compiled = compile_str("gated.ron", &text, "", &options);
    let compiled = compiled.unwrap_or_else(|diagnostics| panic!("{diagnostics}\n{text}"));
    let Program { graph, blobs, .. } = compiled.program.into_inner();
    let options = ScheduleOptions {
        block: Block::Fixed(block),
        ..ScheduleOptions::default()
    };
    let opener = graph.actors.position(|actor| actor.name == "open");
    let home = |index: usize| DeviceId(u32::from(opener.map(ActorId::index) != Some(index)));
    place_on(with(&[backend]), &graph, &blobs, registry, options, &home)
}
