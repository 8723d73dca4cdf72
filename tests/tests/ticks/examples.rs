//! The examples of aegir, the simulator of applications on bittide that came before, as models of ours: on a simulated
//! 4 x 4 torus they have the interpreter's bits, and do what aegir's say of themselves.
//!
//! Written anew from what they do: counters, a circuit, the game of life, a store of keys and values, a network that
//! switches packets, many applications at once, a stock exchange whose traders trade at random, and a classifier of
//! handwritten digits, with a network of its own and not aegir's weights.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;

use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, graph_of_file, read_npy};
use zbmd_tests::data::file;
use zbmd_tests::run::Streams;
use zbmd_tests::step_actor::{Step, StepPorts, register};
use zbmd_tick_scheduler::schedule;
use zbmd_tick_sim::machine::{RunInput, Stepping, run};
use zbmd_ticks::{TickMachine, Topology, verify};

/// Runs a model tick by tick, beside the interpreter; the output.
fn outputs(model: &str, registry: &Registry, inputs: &Streams, iterations: u64) -> Streams {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.ron");
    std::fs::write(&path, model).expect("a file");
    let options = CompileOptions {
        registry: registry.clone(),
        ..CompileOptions::default()
    };
    let found = graph_of_file(&path, &options);
    let (graph, blobs) = found.unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let machine = TickMachine {
        topology: Topology::Torus {
            rows: 4,
            columns: 4,
        },
        frame_bits: 64,
        latency_ticks: 4,
        memory_bytes: 1 << 20,
        op_ticks: BTreeMap::new(),
        default_ticks: 8,
        clocks: None,
    };
    let scheduled = schedule(&graph, &machine).unwrap_or_else(|e| panic!("{e}"));
    eprintln!(
        "{} actors: period {} ticks, bound {}, latency {}",
        graph.actors.len(),
        scheduled.plan.period,
        scheduled.bound,
        scheduled.latency
    );
    let plan = verify(&graph, &machine, scheduled.plan);
    let plan = plan.unwrap_or_else(|errors| panic!("{errors:#?}"));

    let input = RunInput {
        graph: &graph,
        blobs: &blobs,
        registry,
        machine: &machine,
        plan: &plan,
        contingencies: None,
        inputs,
        iterations: Some(iterations),
        max_ticks: None,
        injections: &[],
        stepping: Stepping::EveryFrame,
    };
    let outcome = run(&input).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outcome.fault, None);
    let mut interpreter =
        Interpreter::new(&graph, &blobs, registry).unwrap_or_else(|e| panic!("{e}"));
    let expected = interpreter.run(inputs, Some(iterations));
    let expected = expected.unwrap_or_else(|e| panic!("{e}"));
    assert!(outcome.outputs == expected.outputs, "other bits");
    outcome.outputs
}

fn integers(bytes: &[u8]) -> Vec<i32> {
    let numbers = bytes.as_chunks::<4>().0.iter();
    numbers.map(|number| i32::from_le_bytes(*number)).collect()
}

fn stream(numbers: &[i32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_le_bytes())
        .collect()
}

/// Two counters that send each other what they got and one more, a small number and a large one. After 255 rounds the
/// last numbers of both are 255.
#[test]
fn two_counters_count() {
    let model = r#"Model(
        actors: {
            "small": Expr("x + 1", inputs: { "x": i32 }),
            "large": Expr("x + 1", inputs: { "x": i32 }),
        },
        channels: [
            (from: "small", to: ["large.x", "small_out"], initial: [0]),
            (from: "large", to: ["small.x", "large_out"], initial: [0]),
        ],
        sinks: { "small_out": Stream(), "large_out": Stream() },
    )"#;
    let registry = zbmd_backends::standard_registry();
    // With the initial token in front, the round after the 255th is the last.
    let outputs = outputs(model, &registry, &Streams::new(), 256);
    for sink in ["small_out", "large_out"] {
        assert_eq!(integers(&outputs[sink]).last(), Some(&255), "{sink}");
    }
}

/// A synchronous circuit: a counter that is set to 5 by a reset, counts to 10, and steps back by 8.
#[test]
fn a_circuit_counts_as_its_waveform_says() {
    let model = r#"Model(
        sources: { "rst": Stream(dtype: i32), "init": Stream(dtype: i32) },
        actors: {
            "register": Expr("rst > 0 ? init : (count >= 10 ? count - 8 : count + 1)",
                inputs: { "count": i32, "init": i32, "rst": i32 }),
            "inverse": Expr("255 - count", inputs: { "count": i32 }),
        },
        channels: [
            (from: "rst", to: ["register.rst"]),
            (from: "init", to: ["register.init", "init_out"]),
            (from: "register", to: ["register.count", "inverse", "count"], initial: [0]),
            (from: "inverse", to: ["count_inv"]),
        ],
        sinks: { "count": Stream(), "count_inv": Stream(), "init_out": Stream() },
    )"#;
    let mut rst = [0; 20];
    let mut init = [0; 20];
    (rst[0], init[0]) = (1, 5);
    let inputs = Streams::from([
        ("rst".to_owned(), stream(&rst)),
        ("init".to_owned(), stream(&init)),
    ]);
    let registry = zbmd_backends::standard_registry();
    let outputs = outputs(model, &registry, &inputs, 20);
    let counts = [0, 5, 6, 7, 8, 9, 10, 2, 3, 4, 5, 6, 7, 8, 9, 10, 2, 3, 4, 5];
    assert_eq!(integers(&outputs["count"]), counts);
    let inverse = counts.map(|count| 255 - count);
    assert_eq!(integers(&outputs["count_inv"]), inverse);
    assert_eq!(integers(&outputs["init_out"]), init);
}

/// Cells on a side of a block, and blocks on a side of the universe, which is closed to a torus.
const SIDE: usize = 8;
const BLOCKS: usize = 5;
const EDGES: usize = 1 + 4 * SIDE;

fn is_alive(cells: impl Fn(isize, isize) -> u8, row: isize, column: isize) -> u8 {
    let around = (-1..=1).flat_map(|down| (-1..=1).map(move |right| (down, right)));
    let around = around.filter(|&offset| offset != (0, 0));
    let neighbours: u8 = around
        .map(|(down, right)| cells(row + down, column + right))
        .sum();
    u8::from(neighbours == 3 || neighbours == 2 && cells(row, column) == 1)
}

/// What a block shows to its neighbours: that there is something, and its top, bottom, left and right cells.
fn edges_of(cells: &[u8], edges: &mut [u8]) {
    edges[0] = 1;
    for index in 0..SIDE {
        edges[1 + index] = cells[index];
        edges[1 + SIDE + index] = cells[(SIDE - 1) * SIDE + index];
        edges[1 + 2 * SIDE + index] = cells[index * SIDE];
        edges[1 + 3 * SIDE + index] = cells[index * SIDE + SIDE - 1];
    }
}

/// A generation of a block. Inputs are the edges of its eight neighbours, row by row; in the first firing there are none.
fn live(step: Step<'_>) {
    let Step {
        inputs,
        state,
        mut outputs,
    } = step;
    if inputs[0][0] == 1 {
        let before = state.to_vec();
        let last = SIDE as isize - 1;
        let cell = |row: isize, column: isize| -> u8 {
            let side = |position: isize| match position {
                ..0 => 0,
                _ if position > last => 2,
                _ => 1,
            };
            let block = side(row) * 3 + side(column);
            let wrapped = |position: isize| position.rem_euclid(last + 1) as usize;
            let (row, column) = (wrapped(row), wrapped(column));
            match block {
                4 => before[row * SIDE + column],
                // Above, below, and the rows of corners.
                0..=2 => inputs[block][1 + SIDE + column],
                6..=8 => inputs[block - 1][1 + column],
                3 => inputs[3][1 + 3 * SIDE + row],
                _ => inputs[4][1 + 2 * SIDE + row],
            }
        };
        for (index, alive) in state.iter_mut().enumerate() {
            let (row, column) = ((index / SIDE) as isize, (index % SIDE) as isize);
            *alive = is_alive(cell, row, column);
        }
    }
    outputs[0].copy_from_slice(state);
    edges_of(state, outputs[1]);
}

/// 25 blocks of 64 cells, each of which sends its edges to eight neighbours, live like the 1,600 cells of one field.
#[test]
fn life_goes_on_in_blocks_as_in_one_field() {
    const WIDTH: usize = SIDE * BLOCKS;
    const GENERATIONS: usize = 30;
    let mut rng = fastrand::Rng::with_seed(25);
    let mut field: Vec<u8> = (0..WIDTH * WIDTH)
        .map(|_| u8::from(rng.u8(0..5) == 0))
        .collect();

    let mut registry = zbmd_backends::standard_registry();
    let (mut actors, mut channels, mut sinks) = (String::new(), String::new(), String::new());
    for (row, column) in (0..BLOCKS).flat_map(|row| (0..BLOCKS).map(move |column| (row, column))) {
        let name = format!("b{row}{column}");
        let cells = (0..SIDE * SIDE).map(|index| {
            let place = (row * SIDE + index / SIDE) * WIDTH + column * SIDE + index % SIDE;
            field[place]
        });
        let ports = StepPorts {
            inputs: (0..8)
                .map(|index| (format!("n{index}"), EDGES as u32))
                .collect(),
            outputs: vec![
                ("cells".to_owned(), (SIDE * SIDE) as u32),
                ("edges".to_owned(), EDGES as u32),
            ],
            state: cells.collect(),
        };
        register(&mut registry, &name, ports, live);

        // A neighbour sees this block where it is seen from here on the other side.
        let others = (0..9).filter(|&place| place != 4).enumerate();
        let readers = others.map(|(index, place)| {
            let row = (row + BLOCKS + 1 - place / 3) % BLOCKS;
            let column = (column + BLOCKS + 1 - place % 3) % BLOCKS;
            format!("\"b{row}{column}.n{index}\"")
        });
        let readers: Vec<String> = readers.collect();
        let _ = write!(actors, "\"{name}\": Custom(\"{name}\"), ");
        let _ = write!(
            channels,
            "(from: \"{name}.edges\", to: [{}], initial: Zeros(1)),
            (from: \"{name}.cells\", to: [\"{name}_cells\"]), ",
            readers.join(", ")
        );
        let _ = write!(sinks, "\"{name}_cells\": Stream(), ");
    }
    let model =
        format!("Model(actors: {{ {actors} }}, channels: [{channels}], sinks: {{ {sinks} }})");

    let outputs = outputs(&model, &registry, &Streams::new(), GENERATIONS as u64);
    for generation in 0..GENERATIONS {
        for (index, &alive) in field.iter().enumerate() {
            let (row, column) = (index / WIDTH, index % WIDTH);
            let cells = &outputs[&format!("b{}{}_cells", row / SIDE, column / SIDE)];
            let place = generation * SIDE * SIDE + row % SIDE * SIDE + column % SIDE;
            assert_eq!(
                cells[place], alive,
                "generation {generation}, {row}, {column}"
            );
        }
        let before = field.clone();
        let cell = |row: isize, column: isize| {
            let wrapped = |position: isize| position.rem_euclid(WIDTH as isize) as usize;
            before[wrapped(row) * WIDTH + wrapped(column)]
        };
        for (index, alive) in field.iter_mut().enumerate() {
            *alive = is_alive(cell, (index / WIDTH) as isize, (index % WIDTH) as isize);
        }
    }
    assert!(field.contains(&1));
}

const CLIENTS: usize = 10;
const SHARDS: usize = 10;
const KEYS: usize = 100;
const DATA: usize = 10;
/// Of a request and of an answer: whether there is one, what is asked, the key, whether there is data, and the data.
const REQUEST: usize = 4 + DATA;
/// Of the store's place for a key: whether it is taken, and the data.
const PLACE: usize = 1 + DATA;

/// Answers one request: queries (0) give what is there, insertions (1) what was inserted, and modifications (2) what was
/// there before, if they were possible.
fn answer(store: &mut [u8], request: &[u8], answer: &mut [u8]) {
    if request[0] == 0 {
        return;
    }
    let place = &mut store[usize::from(request[2]) * PLACE..][..PLACE];
    let is_taken = place[0] == 1;
    let found: Option<Vec<u8>> = match (request[1], is_taken) {
        (0, true) => Some(place[1..].to_vec()),
        (1, false) => {
            place[0] = 1;
            place[1..].copy_from_slice(&request[4..]);
            Some(request[4..].to_vec())
        }
        (2, true) => {
            let before = place[1..].to_vec();
            place[1..].copy_from_slice(&request[4..]);
            Some(before)
        }
        _ => None,
    };
    answer[..3].copy_from_slice(&request[..3]);
    if let Some(data) = found {
        answer[3] = 1;
        answer[4..].copy_from_slice(&data);
    }
}

/// Serves all clients' requests, in their order.
fn serve(requests: &[&[u8]], store: &mut [u8], answers: &mut [&mut [u8]]) {
    for (request, place) in requests.iter().zip(answers) {
        answer(store, request, place);
    }
}

/// The ports of so many requests or answers, each on a port of its own.
fn request_ports(prefix: &str, count: usize, bytes: usize) -> Vec<(String, u32)> {
    (0..count)
        .map(|index| (format!("{prefix}{index}"), bytes as u32))
        .collect()
}

fn client_streams(rounds: usize) -> Streams {
    let mut rng = fastrand::Rng::with_seed(26);
    let clients = (0..CLIENTS).map(|client| {
        let requests = (0..rounds).flat_map(|_| {
            let mut request = [0; REQUEST];
            request[0] = u8::from(rng.u8(0..8) > 0);
            request[1] = rng.u8(0..3);
            request[2] = rng.u8(0..KEYS as u8);
            request[3] = u8::from(request[1] > 0);
            request[4..].fill_with(|| rng.u8(..));
            request
        });
        (format!("client{client}"), requests.collect())
    });
    clients.collect()
}

/// The model of a server: sources and sinks of clients around its actors and channels.
fn server_model(actors: &str, channels: &str, server: &str, merge: &str) -> String {
    let (mut sources, mut all_channels, mut sinks) =
        (String::new(), channels.to_owned(), String::new());
    for client in 0..CLIENTS {
        let _ = write!(
            sources,
            "\"client{client}\": Stream(dtype: u8, shape: [{REQUEST}]), "
        );
        let _ = write!(
            all_channels,
            "(from: \"client{client}\", to: [\"{server}.r{client}\"]),
            (from: \"{merge}.a{client}\", to: [\"answers{client}\"]), "
        );
        let _ = write!(sinks, "\"answers{client}\": Stream(), ");
    }
    format!(
        "Model(sources: {{ {sources} }}, actors: {{ {actors} }}, channels: [{all_channels}], sinks: {{ {sinks} }})"
    )
}

/// Ten clients of a store of keys and values, on one server and on ten that have a part of the keys each, get the answers
/// that a store in one place gives.
#[test]
fn a_store_answers_alike_on_one_server_and_on_ten() {
    const ROUNDS: usize = 60;
    const SET: usize = CLIENTS * REQUEST;
    let inputs = client_streams(ROUNDS);
    let mut store = vec![0; KEYS * PLACE];
    let mut expected: Vec<Vec<u8>> = vec![Vec::new(); CLIENTS];
    for round in 0..ROUNDS {
        for (client, expected) in expected.iter_mut().enumerate() {
            let request = &inputs[&format!("client{client}")][round * REQUEST..][..REQUEST];
            let mut place = [0; REQUEST];
            answer(&mut store, request, &mut place);
            expected.extend(place);
        }
    }

    let mut registry = zbmd_backends::standard_registry();
    let ports = StepPorts {
        inputs: request_ports("r", CLIENTS, REQUEST),
        outputs: request_ports("a", CLIENTS, REQUEST),
        state: vec![0; KEYS * PLACE],
    };
    register(&mut registry, "server", ports, |step| {
        let Step {
            inputs,
            state,
            mut outputs,
        } = step;
        serve(&inputs, state, &mut outputs);
    });
    let ports = StepPorts {
        inputs: request_ports("r", CLIENTS, REQUEST),
        outputs: request_ports("s", SHARDS, SET),
        state: Vec::new(),
    };
    register(&mut registry, "split", ports, |mut step| {
        for (client, request) in step.inputs.iter().enumerate() {
            let shard = usize::from(request[2]) * SHARDS / KEYS;
            step.outputs[shard][client * REQUEST..][..REQUEST].copy_from_slice(request);
        }
    });
    let ports = StepPorts {
        inputs: vec![("requests".to_owned(), SET as u32)],
        outputs: vec![("answers".to_owned(), SET as u32)],
        state: vec![0; KEYS * PLACE],
    };
    register(&mut registry, "shard", ports, |mut step| {
        let requests: Vec<&[u8]> = step.inputs[0].chunks(REQUEST).collect();
        let mut answers: Vec<&mut [u8]> = step.outputs[0].chunks_mut(REQUEST).collect();
        serve(&requests, step.state, &mut answers);
    });
    let ports = StepPorts {
        inputs: request_ports("s", SHARDS, SET),
        outputs: request_ports("a", CLIENTS, REQUEST),
        state: Vec::new(),
    };
    register(&mut registry, "merge", ports, |mut step| {
        for shard in &step.inputs {
            for (answer, output) in shard.chunks(REQUEST).zip(&mut step.outputs) {
                if answer[0] == 1 {
                    output.copy_from_slice(answer);
                }
            }
        }
    });

    let single = server_model("\"server\": Custom(\"server\")", "", "server", "server");
    let mut actors = "\"split\": Custom(\"split\"), \"merge\": Custom(\"merge\"), ".to_owned();
    let mut channels = String::new();
    for shard in 0..SHARDS {
        let _ = write!(actors, "\"shard{shard}\": Custom(\"shard\"), ");
        let _ = write!(
            channels,
            "(from: \"split.s{shard}\", to: [\"shard{shard}\"]),
            (from: \"shard{shard}\", to: [\"merge.s{shard}\"]), "
        );
    }
    let sharded = server_model(&actors, &channels, "split", "merge");
    for model in [single, sharded] {
        let outputs = outputs(&model, &registry, &inputs, ROUNDS as u64);
        for (client, expected) in expected.iter().enumerate() {
            assert!(
                outputs[&format!("answers{client}")] == *expected,
                "client {client}"
            );
        }
    }
}

/// xorshift32 (Marsaglia, "Xorshift RNGs", Journal of Statistical Software 2003).
fn next_random(random: &mut u32) -> u32 {
    *random ^= *random << 13;
    *random ^= *random >> 17;
    *random ^= *random << 5;
    *random
}

/// Nodes on a side of the network that switches packets.
const GRID: usize = 4;
/// Of a packet: whether there is one, from where and to where, and in which round it was sent.
const PACKET: usize = 4;
const QUEUE: usize = 40;
const ROUNDS: usize = 120;
const LAST_SENDING: u8 = 60;

/// Which of north, east, south and west leads to a node, rows first; `None` if it is this one.
fn direction(from: usize, to: usize) -> Option<usize> {
    let toward = |from: usize, to: usize, ahead: usize, back: usize| {
        let steps = (to + GRID - from) % GRID;
        if 2 * steps <= GRID { ahead } else { back }
    };
    let (row, column) = (from / GRID, from % GRID);
    let (to_row, to_column) = (to / GRID, to % GRID);
    if row != to_row {
        return Some(toward(row, to_row, 2, 0));
    }
    (column != to_column).then(|| toward(column, to_column, 1, 3))
}

fn distance(from: usize, to: usize) -> usize {
    let along = |from: usize, to: usize| {
        let steps = (to + GRID - from) % GRID;
        steps.min(GRID - steps)
    };
    along(from / GRID, to / GRID) + along(from % GRID, to % GRID)
}

/// A round of a node: it takes packets from its neighbours and its queue, keeps those for itself, every third round adds
/// one to a random node, and sends on each link the first that goes there. The state is the round, the random number and
/// the queue.
fn switch(node: usize, step: Step<'_>) {
    let Step {
        inputs,
        state,
        mut outputs,
    } = step;
    let (head, queue) = state.split_at_mut(5);
    let round = head[0];
    head[0] += 1;
    let queued = queue.chunks(PACKET).chain(inputs);
    let mut packets: Vec<Vec<u8>> = queued
        .filter(|packet| packet[0] == 1)
        .map(<[u8]>::to_vec)
        .collect();
    if round.is_multiple_of(3) && round < LAST_SENDING {
        let mut random = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        next_random(&mut random);
        head[1..].copy_from_slice(&random.to_le_bytes());
        let to = random % (GRID * GRID) as u32;
        packets.push(vec![1, node as u8, to as u8, round]);
    }

    queue.fill(0);
    let mut places = queue.chunks_mut(PACKET);
    let mut received = 0;
    for packet in packets {
        let link = direction(node, usize::from(packet[2]));
        let output = match link {
            Some(link) => &mut outputs[link],
            None => {
                received += PACKET;
                &mut outputs[4][received - PACKET..received]
            }
        };
        if output[0] == 0 {
            output.copy_from_slice(&packet);
        } else {
            places
                .next()
                .expect("a short queue")
                .copy_from_slice(&packet);
        }
    }
}

/// Every packet comes once, to where it was sent, and not sooner than by the shortest way.
#[test]
fn packets_are_switched_through_a_network_of_nodes() {
    let mut registry = zbmd_backends::standard_registry();
    let (mut actors, mut channels, mut sinks) = (String::new(), String::new(), String::new());
    for node in 0..GRID * GRID {
        let mut state = vec![0; 5 + QUEUE * PACKET];
        state[1] = node as u8 + 1;
        let mut outputs = request_ports("l", 4, PACKET);
        outputs.push(("received".to_owned(), (6 * PACKET) as u32));
        let ports = StepPorts {
            inputs: request_ports("l", 4, PACKET),
            outputs,
            state,
        };
        let name = format!("node{node}");
        register(&mut registry, &name, ports, move |step| switch(node, step));

        let _ = write!(actors, "\"{name}\": Custom(\"{name}\"), ");
        let (row, column) = (node / GRID, node % GRID);
        for link in 0..4 {
            let other_row = (row + GRID + [GRID - 1, 0, 1, 0][link]) % GRID;
            let other_column = (column + GRID + [0, 1, 0, GRID - 1][link]) % GRID;
            let other = other_row * GRID + other_column;
            let other_link = (link + 2) % 4;
            let _ = write!(
                channels,
                "(from: \"{name}.l{link}\", to: [\"node{other}.l{other_link}\"], initial: Zeros(1)), "
            );
        }
        let _ = write!(
            channels,
            "(from: \"{name}.received\", to: [\"received{node}\"]), "
        );
        let _ = write!(sinks, "\"received{node}\": Stream(), ");
    }
    let model =
        format!("Model(actors: {{ {actors} }}, channels: [{channels}], sinks: {{ {sinks} }})");

    let outputs = outputs(&model, &registry, &Streams::new(), ROUNDS as u64);
    let mut seen = std::collections::BTreeSet::new();
    for node in 0..GRID * GRID {
        let rounds = outputs[&format!("received{node}")].chunks(6 * PACKET);
        for (round, packets) in rounds.enumerate() {
            for packet in packets.chunks(PACKET).filter(|packet| packet[0] == 1) {
                let (from, to) = (usize::from(packet[1]), usize::from(packet[2]));
                assert_eq!(to, node);
                assert!(round >= usize::from(packet[3]) + distance(from, to));
                assert!(seen.insert((from, packet[3])), "{packet:?} came twice");
            }
        }
    }
    let sent = GRID * GRID * usize::from(LAST_SENDING) / 3;
    assert_eq!(seen.len(), sent);
}

/// Twenty applications of three actors that send each other a message in every round and count what they get, up to a
/// threshold below 100: after 52 rounds all have reached it, whichever nodes they share.
#[test]
fn twenty_applications_reach_their_thresholds() {
    let mut rng = fastrand::Rng::with_seed(27);
    let (mut actors, mut channels, mut sinks) = (String::new(), String::new(), String::new());
    let mut thresholds = BTreeMap::new();
    for (application, index) in (0..20).flat_map(|a| (0..3).map(move |index| (a, index))) {
        let name = format!("a{application}_{index}");
        let peers = [(index + 1) % 3, (index + 2) % 3].map(|peer| format!("a{application}_{peer}"));
        let threshold = rng.i32(0..100);
        let _ = write!(
            actors,
            "\"{name}\": Expr(\"c < {threshold} ? c + (x > 0) + (y > 0) : c\",
                inputs: {{ \"c\": i32, \"x\": i32, \"y\": i32 }}),
            \"{name}_out\": Expr(\"c - c + {}\", inputs: {{ \"c\": i32 }}), ",
            index + 1
        );
        let _ = write!(
            channels,
            "(from: \"{name}\", to: [\"{name}.c\", \"{name}_out\", \"{name}_count\"], initial: [0]),
            (from: \"{name}_out\", to: [\"{}.x\", \"{}.y\"], initial: [0]), ",
            peers[0], peers[1]
        );
        let _ = write!(sinks, "\"{name}_count\": Stream(), ");
        thresholds.insert(format!("{name}_count"), threshold);
    }
    let model =
        format!("Model(actors: {{ {actors} }}, channels: [{channels}], sinks: {{ {sinks} }})");
    let registry = zbmd_backends::standard_registry();
    let outputs = outputs(&model, &registry, &Streams::new(), 53);
    for (sink, threshold) in thresholds {
        let last = integers(&outputs[&sink]).last().copied().expect("a count");
        assert!(
            (threshold..threshold + 2).contains(&last),
            "{sink}: {last} for {threshold}"
        );
    }
}

/// Of the stock exchange: traders, kinds of shares, and prices at which a share can be traded.
const TRADERS: usize = 9;
const SHARES: usize = 3;
const PRICES: usize = 8;
/// Numbers of one side of an order book, the bids or the asks: how many, for each kind of share and each price.
const SIDE_OF_BOOK: usize = SHARES * PRICES;
/// An order book is the bids and then the asks.
const BOOK: usize = 2 * SIDE_OF_BOOK;
/// Shares of each kind that a trader has at first.
const FIRST_SHARES: u32 = 100;
const TRADING_ROUNDS: usize = 60;

fn words(bytes: &[u8]) -> Vec<u32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| u32::from_le_bytes(*word)).collect()
}

fn put_words(bytes: &mut [u8], words: &[u32]) {
    for (place, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
}

/// Divides so many among orders, evenly as far as they go; what is left over goes one by one to the first that want more.
fn divide(orders: &[u32], count: u32) -> Vec<u32> {
    let given = |level: u32| orders.iter().map(|&order| order.min(level)).sum::<u32>();
    let level = (0..=count).rev().find(|&level| given(level) <= count);
    let level = level.unwrap_or(0);
    let mut rest = count - given(level);
    let parts = orders.iter().map(|&order| {
        let one_more = u32::from(order > level && rest > 0);
        rest -= one_more;
        order.min(level) + one_more
    });
    parts.collect()
}

/// A round of the exchange: of what is bid and asked for at the same price, as much is traded as there is of both. Outputs
/// are what of each trader's orders was filled, and how many shares were traded.
fn match_orders(mut step: Step<'_>) {
    let books: Vec<Vec<u32>> = step.inputs.iter().map(|bytes| words(bytes)).collect();
    let mut filled = vec![vec![0; BOOK]; TRADERS];
    let mut volume = vec![0; SIDE_OF_BOOK];
    for place in 0..SIDE_OF_BOOK {
        let orders = |side: usize| -> Vec<u32> {
            let orders = books.iter().map(|book| book[side * SIDE_OF_BOOK + place]);
            orders.collect()
        };
        let (bids, asks) = (orders(0), orders(1));
        let traded = bids.iter().sum::<u32>().min(asks.iter().sum());
        volume[place] = traded;
        for (side, orders) in [bids, asks].iter().enumerate() {
            for (trader, part) in divide(orders, traded).into_iter().enumerate() {
                filled[trader][side * SIDE_OF_BOOK + place] = part;
            }
        }
    }
    for (output, words) in step.outputs.iter_mut().zip(&filled) {
        put_words(output, words);
    }
    put_words(step.outputs[TRADERS], &volume);
}

/// A round of a trader: it learns what was traded of the orders of two rounds ago, draws how many shares it wants and at
/// about which price, and bids or asks for the difference. Shares that it offers are put aside. The state is the random
/// number, the shares, and the order books of the last two rounds.
fn trade(mut step: Step<'_>) {
    let filled = words(step.inputs[0]);
    let mut state = words(step.state);
    let (head, books) = state.split_at_mut(1 + SHARES);
    let (random, shares) = head.split_first_mut().expect("a random number");
    let (older, newer) = books.split_at_mut(BOOK);
    let mut orders = vec![0; BOOK];
    for (share, count) in shares.iter_mut().enumerate() {
        let sum = |book: &[u32], side: usize| -> u32 {
            let first = side * SIDE_OF_BOOK + share * PRICES;
            book[first..first + PRICES].iter().sum()
        };
        *count += sum(&filled, 0) + sum(older, 1) - sum(&filled, 1);

        let price = next_random(random) as usize % PRICES;
        let wanted = next_random(random) % (2 * FIRST_SHARES);
        let prices = price.saturating_sub(2)..(price + 3).min(PRICES);
        let each = wanted.abs_diff(*count) / prices.len() as u32;
        let side = usize::from(wanted < *count);
        for price in prices {
            orders[side * SIDE_OF_BOOK + share * PRICES + price] = each;
        }
        *count -= sum(&orders, 1);
    }
    put_words(step.outputs[0], &orders);
    put_words(step.outputs[1], shares);
    older.copy_from_slice(newer);
    newer.copy_from_slice(&orders);
    put_words(step.state, &state);
}

/// What the sinks of the exchange should get.
struct Trading {
    /// Shares of each kind that each trader has, after each round.
    shares: Vec<Vec<u32>>,
    /// How many were traded of each kind and at each price, in each round.
    volume: Vec<u32>,
}

/// An order at a price.
#[derive(Clone, Copy)]
struct Order {
    trader: usize,
    share: usize,
    price: usize,
    count: u32,
    /// How many of them have not been traded.
    left: u32,
}

impl Order {
    fn is_at(&self, place: usize) -> bool {
        self.share * PRICES + self.price == place
    }
}

/// The same trading without books: lists of orders, from which one share after another changes hands.
fn trading(seeds: &[u32]) -> Trading {
    let mut randoms = seeds.to_vec();
    let mut owned = [[FIRST_SHARES; SHARES]; TRADERS];
    // What each trader gets back in the rounds to come: bought shares, and those that nobody wanted.
    let mut returns = VecDeque::from(vec![vec![[0; SHARES]; TRADERS]; 2]);
    let mut found = Trading {
        shares: vec![Vec::new(); TRADERS],
        volume: vec![0; SIDE_OF_BOOK],
    };
    for _ in 0..TRADING_ROUNDS {
        let returned = returns.pop_front().expect("two rounds");
        let (mut bids, mut asks) = (Vec::new(), Vec::new());
        for (trader, shares) in owned.iter_mut().enumerate() {
            for (share, has) in shares.iter_mut().enumerate() {
                *has += returned[trader][share];
                let price = next_random(&mut randoms[trader]) as usize % PRICES;
                let wanted = next_random(&mut randoms[trader]) % (2 * FIRST_SHARES);
                let (first, last) = (price.max(2) - 2, (price + 2).min(PRICES - 1));
                let count = has.abs_diff(wanted) / (last - first + 1) as u32;
                let orders = (first..=last).map(|price| Order {
                    trader,
                    share,
                    price,
                    count,
                    left: count,
                });
                if wanted < *has {
                    asks.extend(orders);
                    *has -= count * (last - first + 1) as u32;
                } else {
                    bids.extend(orders);
                }
            }
            found.shares[trader].extend(shares.iter());
        }
        found.volume.extend(clear(&mut bids, &mut asks));

        let mut back = vec![[0; SHARES]; TRADERS];
        bids.iter()
            .for_each(|bid| back[bid.trader][bid.share] += bid.count - bid.left);
        asks.iter()
            .for_each(|ask| back[ask.trader][ask.share] += ask.left);
        returns.push_back(back);
    }
    found
}

/// Trades at each price as much as is bid and asked for. How much that is.
fn clear(bids: &mut [Order], asks: &mut [Order]) -> Vec<u32> {
    let volume = (0..SIDE_OF_BOOK).map(|place| {
        let sum = |orders: &[Order]| -> u32 {
            let here = orders.iter().filter(|order| order.is_at(place));
            here.map(|order| order.count).sum()
        };
        let traded = sum(bids).min(sum(asks));
        take_in_turn(bids, place, traded);
        take_in_turn(asks, place, traded);
        traded
    });
    volume.collect()
}

/// In turn each order at a price trades one share, until so many are traded.
fn take_in_turn(orders: &mut [Order], place: usize, mut count: u32) {
    while count > 0 {
        let open = orders.iter_mut();
        let open = open.filter(|order| order.is_at(place) && order.left > 0);
        for order in open.take(count as usize) {
            order.left -= 1;
            count -= 1;
        }
    }
}

/// Traders that trade at random own in every round what they would own if one share after another changed hands.
#[test]
fn traders_trade_at_random_on_an_exchange() {
    let mut registry = zbmd_backends::standard_registry();
    let bytes = |words: usize| 4 * words as u32;
    let book_ports = |prefix: &str| request_ports(prefix, TRADERS, 4 * BOOK);
    let mut outputs_of_center = book_ports("filled");
    outputs_of_center.push(("volume".to_owned(), bytes(SIDE_OF_BOOK)));
    let center = StepPorts {
        inputs: book_ports("orders"),
        outputs: outputs_of_center,
        state: Vec::new(),
    };
    register(&mut registry, "center", center, match_orders);

    let seeds: Vec<u32> = (1..=TRADERS as u32).map(|trader| 77 * trader).collect();
    let mut actors = "\"center\": Custom(\"center\"), ".to_owned();
    let mut channels = "(from: \"center.volume\", to: [\"volume\"]), ".to_owned();
    let mut sinks = "\"volume\": Stream(), ".to_owned();
    for (trader, &seed) in seeds.iter().enumerate() {
        let mut state = vec![seed];
        state.extend([FIRST_SHARES; SHARES]);
        state.extend([0; 2 * BOOK]);
        let ports = StepPorts {
            inputs: vec![("filled".to_owned(), bytes(BOOK))],
            outputs: vec![
                ("orders".to_owned(), bytes(BOOK)),
                ("shares".to_owned(), bytes(SHARES)),
            ],
            state: state
                .iter()
                .flat_map(|word: &u32| word.to_le_bytes())
                .collect(),
        };
        let name = format!("trader{trader}");
        register(&mut registry, &name, ports, trade);
        let _ = write!(actors, "\"{name}\": Custom(\"{name}\"), ");
        let _ = write!(
            channels,
            "(from: \"{name}.orders\", to: [\"center.orders{trader}\"], initial: Zeros(1)),
            (from: \"center.filled{trader}\", to: [\"{name}\"], initial: Zeros(1)),
            (from: \"{name}.shares\", to: [\"shares{trader}\"]), "
        );
        let _ = write!(sinks, "\"shares{trader}\": Stream(), ");
    }
    let model =
        format!("Model(actors: {{ {actors} }}, channels: [{channels}], sinks: {{ {sinks} }})");

    let outputs = outputs(&model, &registry, &Streams::new(), TRADING_ROUNDS as u64);
    let expected = trading(&seeds);
    let volume = words(&outputs["volume"]);
    assert_eq!(volume, expected.volume[..volume.len()]);
    for (trader, shares) in expected.shares.iter().enumerate() {
        let found = words(&outputs[&format!("shares{trader}")]);
        assert_eq!(found, *shares, "trader {trader}");
    }
    let traded: u32 = volume.iter().sum();
    eprintln!("{traded} shares were traded in {TRADING_ROUNDS} rounds");
    assert!(traded > 1000, "{traded}");
}

/// An image of a handwritten digit is classified as the network's authors' runtime does it.
#[test]
fn a_handwritten_digit_is_classified() {
    let Some(network) = file("models/mnist.onnx") else {
        return;
    };
    let array = |name: &str| {
        let path = file(name).expect("beside the network");
        let bytes = std::fs::read(path).expect("readable");
        read_npy(&bytes.into()).expect("an array").data
    };
    let (image, expected) = (
        array("models/mnist.in0.npy"),
        array("models/mnist.out0.npy"),
    );
    let network = std::path::absolute(network).expect("a path");
    let model = format!(
        "Model(
        sources: {{ \"image\": Stream(dtype: f32, shape: [1, 1, 28, 28]) }},
        actors: {{ \"net\": Onnx({:?}), \"digit\": NnArgMax(axis: 1, keepdims: 0) }},
        channels: [
            (from: \"image\", to: [\"net.input\"]),
            (from: \"net.logits\", to: [\"logits\", \"digit\"]),
            (from: \"digit\", to: [\"digits\"]),
        ],
        sinks: {{ \"logits\": Stream(), \"digits\": Stream() }},
    )",
        network.display().to_string()
    );
    let inputs = Streams::from([("image".to_owned(), image.to_vec())]);
    let registry = zbmd_backends::standard_registry();
    let outputs = outputs(&model, &registry, &inputs, 1);

    let floats = |bytes: &[u8]| -> Vec<f32> {
        let floats = bytes.as_chunks::<4>().0.iter();
        floats.map(|float| f32::from_le_bytes(*float)).collect()
    };
    let (logits, expected) = (floats(&outputs["logits"]), floats(&expected));
    assert_eq!(logits.len(), 10);
    for (found, expected) in logits.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-3, "{logits:?}, {expected:?}");
    }
    let digits = expected.iter().enumerate();
    let digit = digits.max_by(|a, b| a.1.total_cmp(b.1)).expect("ten").0;
    assert_eq!(outputs["digits"], (digit as i64).to_le_bytes());
}
