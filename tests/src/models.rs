//! Seeded random models of ops that every backend has: expressions, filters, changes of rate, and loops.

use std::fmt::Write as _;

use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, compile_str};
use zbmd_ir::verify::Verified;
use zbmd_ir::{ActorId, DeviceId, Graph, Machine, PlanId, Program};
use zbmd_scheduler::assign::Objective;
use zbmd_scheduler::{Block, ScheduleError, ScheduleOptions};

use crate::gates::add_gates;
use crate::gpu::try_place_on;

/// An actor in the making.
struct Node {
    name: String,
    /// Tokens for each of the source's, as a power of two.
    rate: i32,
    is_read: bool,
}

/// A model that is consistent by construction: floats, of which none grows without bound. Every loop has initial tokens,
/// every output a reader.
pub fn random(seed: u64) -> String {
    let mut rng = fastrand::Rng::with_seed(seed);
    let node = |name: String, rate: i32| Node {
        name,
        rate,
        is_read: false,
    };
    let mut nodes = vec![node("in".to_owned(), 0)];
    let (mut actors, mut channels) = (String::new(), String::new());
    let mut join = |from: &mut Node, to: &str, tokens: usize, rng: &mut fastrand::Rng| {
        from.is_read = true;
        let initial: Vec<String> = (0..tokens).map(|_| format!("{:.2}", rng.f32())).collect();
        let initial = initial.join(", ");
        let name = &from.name;
        writeln!(
            channels,
            "(from: \"{name}\", to: [\"{to}\"], initial: [{initial}]),"
        )
        .expect("text");
    };
    // Inputs that read what comes later.
    let mut open: Vec<(String, i32)> = Vec::new();
    for i in 0..rng.usize(3..20) {
        let name = format!("n{i}");
        let from = rng.usize(nodes.len().saturating_sub(6)..nodes.len());
        let rate = nodes[from].rate;
        let (op, rate) = match rng.u8(0..8) {
            0 if rate > -2 => ("Decimate(2)".to_owned(), rate - 1),
            1 if rate < 2 => ("Hold(2)".to_owned(), rate + 1),
            2 => ("Fir([0.4, 0.3, 0.2])".to_owned(), rate),
            _ => {
                let alike: Vec<usize> = (0..nodes.len())
                    .filter(|n| nodes[*n].rate == rate)
                    .collect();
                let mut inputs = vec!["a: f32"];
                if rng.bool() {
                    inputs.push("b: f32");
                    let other = alike[rng.usize(..alike.len())];
                    let tokens = if rng.bool() { rng.usize(1..5) } else { 0 };
                    join(&mut nodes[other], &format!("{name}.b"), tokens, &mut rng);
                }
                if rng.u8(0..3) == 0 {
                    inputs.push("c: f32");
                    open.push((format!("{name}.c"), rate));
                }
                let terms: Vec<String> = inputs
                    .iter()
                    .map(|i| format!("0.3 * {}", &i[..1]))
                    .collect();
                let inputs: Vec<String> = inputs
                    .iter()
                    .map(|i| format!("\"{}\": f32", &i[..1]))
                    .collect();
                (
                    format!(
                        "Expr(\"{}\", inputs: {{ {} }})",
                        terms.join(" + "),
                        inputs.join(", ")
                    ),
                    rate,
                )
            }
        };
        let port = if op.starts_with("Expr") {
            format!("{name}.a")
        } else {
            name.clone()
        };
        let tokens = if rng.u8(0..4) == 0 {
            rng.usize(1..8)
        } else {
            0
        };
        join(&mut nodes[from], &port, tokens, &mut rng);
        writeln!(actors, "\"{name}\": {op},").expect("text");
        nodes.push(node(name, rate));
    }
    for (to, rate) in open {
        // At least the reader itself has that rate.
        let alike: Vec<usize> = (1..nodes.len())
            .filter(|n| nodes[*n].rate == rate)
            .collect();
        let from = alike[rng.usize(..alike.len())];
        let tokens = rng.usize(1..9);
        join(&mut nodes[from], &to, tokens, &mut rng);
    }
    let mut sinks = String::new();
    for (n, node) in nodes.iter_mut().enumerate() {
        if !node.is_read || rng.u8(0..6) == 0 {
            join(node, &format!("out{n}"), 0, &mut rng);
            write!(sinks, "\"out{n}\": Stream(), ").expect("text");
        }
    }
    format!(
        "Model(name: \"random\", sources: {{ \"in\": Stream(dtype: f32) }}, sinks: {{ {sinks} }},\n\
         actors: {{\n{actors}}}, channels: [\n{channels}])\n"
    )
}

/// [`random`], anywhere on a machine, in blocks of some iterations, pipelined or not; and what draws further numbers. `None`
/// where the second device has nothing to do.
///
/// # Panics
/// If it does not compile, or has no valid plan.
pub fn placed(
    seed: u64,
    machine: Machine,
    registry: &Registry,
) -> Option<(Verified<Program>, fastrand::Rng)> {
    placed_graph(seed, machine, registry, |_| {})
}

/// [`placed`] with random gates. What opens gates is on the first device.
///
/// # Panics
/// As [`placed`].
pub fn placed_with_gates(
    seed: u64,
    machine: Machine,
    registry: &Registry,
) -> Option<(Verified<Program>, fastrand::Rng)> {
    placed_graph(seed, machine, registry, |graph| {
        add_gates(graph, seed);
    })
}

fn placed_graph(
    seed: u64,
    machine: Machine,
    registry: &Registry,
    change: impl FnOnce(&mut Graph),
) -> Option<(Verified<Program>, fastrand::Rng)> {
    let text = random(seed);
    let options = CompileOptions {
        registry: registry.clone(),
        ..CompileOptions::default()
    };
    let compiled = compile_str("random.ron", &text, ".", &options);
    let compiled = compiled.unwrap_or_else(|d| panic!("{seed}: {d}\n{text}"));
    let Program {
        mut graph, blobs, ..
    } = compiled.program.into_inner();
    change(&mut graph);
    let mut rng = fastrand::Rng::with_seed(seed);
    let devices = machine.devices.len() as u32;
    let mut homes: Vec<u32> = graph.actors.iter().map(|_| rng.u32(0..devices)).collect();
    let objective = if rng.bool() {
        Objective::LATENCY
    } else {
        Objective::PERIOD
    };
    let block = Block::Fixed(rng.u64(1..7));
    let options = ScheduleOptions {
        block,
        objective,
        ..ScheduleOptions::default()
    };
    for opener in gate_openers(&graph) {
        homes[opener.index()] = 0;
    }
    let has_gates = graph.actors.iter().any(|actor| actor.gate().is_some());
    let program = loop {
        let home = |actor: usize| DeviceId(homes[actor]);
        let (machine, options) = (machine.clone(), options.clone());
        match try_place_on(machine, &graph, &blobs, registry, options, &home) {
            // A loop whose firings alternate lies on one device.
            Err(ScheduleError::PinnedApart { first, second, .. }) if has_gates => {
                // Not where a gate that is in the loop could not be.
                (homes[first.index()], homes[second.index()]) = (0, 0);
            }
            Err(ScheduleError::PinnedApart { first, second, .. }) => {
                homes[second.index()] = homes[first.index()];
            }
            placed => break placed.unwrap_or_else(|e| panic!("{seed}: {e}\n{text}")),
        }
    };
    let works = program.plans[PlanId(0)]
        .calendars
        .iter()
        .any(|c| c.device == DeviceId(1));
    works.then_some((program, rng))
}

/// The actors that open gates.
fn gate_openers(graph: &Graph) -> Vec<ActorId> {
    let ports = graph.port_channels();
    let gates = graph.actors.iter_enumerated();
    let gates = gates.filter_map(|(id, actor)| Some((id, actor.gate()?.input)));
    let channels = gates.filter_map(|(id, input)| ports.inputs[id][input as usize]);
    channels
        .map(|(channel, _)| graph.channels[channel].from.actor)
        .collect()
}
