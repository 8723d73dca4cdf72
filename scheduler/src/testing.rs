//! Small graphs and machines for unit tests.

use zbmd_ir::*;

/// `(writer, produced, reader, consumed, initial tokens)` by actor index.
pub(crate) type Link5 = (u32, u64, u32, u64, u64);

/// A graph of i64 tokens over actors `0..actors`, one channel for each tuple.
pub(crate) fn graph(actors: usize, channels: &[Link5]) -> Graph {
    let token = TokenType::scalar(DType::I64);
    let mut g = Graph {
        name: "test".into(),
        ..Graph::default()
    };
    for i in 0..actors {
        g.actors.push(Actor {
            name: format!("n{i}"),
            role: Role::Compute,
            op: "Test".into(),
            params: Params::new(),
            inputs: vec![],
            outputs: vec![],
            state: vec![],
            in_place: vec![],
        });
    }
    for &(from, produced, to, consumed, delay) in channels {
        let out = &mut g.actors[ActorId(from)].outputs;
        out.push(OutPort {
            name: format!("y{}", out.len()),
            token: token.clone(),
            rate: produced,
        });
        let from = Endpoint {
            actor: ActorId(from),
            port: out.len() as u32 - 1,
        };
        let inp = &mut g.actors[ActorId(to)].inputs;
        inp.push(InPort {
            name: format!("x{}", inp.len()),
            token: token.clone(),
            rate: consumed,
            window: consumed,
        });
        let to = Endpoint {
            actor: ActorId(to),
            port: inp.len() as u32 - 1,
        };
        g.channels.push(Channel {
            from,
            readers: vec![Reader { to, delay }],
            token: token.clone(),
            initial: vec![0; 8 * delay as usize],
        });
    }
    g
}

/// Alike CPU devices, all linked.
pub(crate) fn machine(devices: usize) -> Machine {
    let mut machine = Machine::default();
    for i in 0..devices {
        machine.devices.push(Device {
            name: format!("cpu:{i}"),
            backend: "cpu".into(),
            cores: vec![i as u32],
            memory_bytes: 1 << 30,
            flops_per_s: 10_000_000_000,
            bytes_per_s: 10_000_000_000,
            programmatic: false,
        });
    }
    machine.links = Links::between_all(devices, |_, _| (10_000_000_000, 200));
    machine
}

/// The same cost for every actor on every device.
pub(crate) fn costs(graph: &Graph, machine: &Machine, firing_ps: u64) -> Costs {
    let cost = ActorCost {
        call_ps: 10_000,
        firing_ps,
        scratch_bytes: 0,
    };
    Costs {
        table: graph
            .actors
            .iter()
            .map(|_| machine.devices.iter().map(|_| Some(cost)).collect())
            .collect(),
    }
}
