//! Windows, delays, rates, states and feedback by hand, and what is refused.

use super::*;
use zbmd_ir::{Actor, Endpoint, InPort, OutPort, Params, Reader, StatePort, TokenType};

use crate::op::{Op, OpDoc, ResolveCx, ResolvedOp, Signature};

/// Adds up all windows and the state, firing by firing, and gives each output token the sum.
struct Sum(Actor);

impl Kernel for Sum {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let mut sum: i64 = (0..io.inputs()).flat_map(|i| io.input::<i64>(i)).sum();
        if !self.0.state.is_empty() {
            let state = io.state::<i64>(0);
            sum += state[0];
            state[0] = sum;
        }
        assert_eq!(
            io.scratch::<u8>().len(),
            100,
            "scratch is as large as asked for"
        );
        for o in 0..io.outputs() {
            io.output::<i64>(o).fill(sum);
        }
        Ok(())
    }

    fn scratch_bytes(&self) -> usize {
        100
    }
}

struct SumOp;

impl Op for SumOp {
    fn name(&self) -> &str {
        "Sum"
    }

    fn doc(&self) -> OpDoc {
        OpDoc {
            summary: "sum",
            params: &[],
            ports: "any",
            example: "",
        }
    }

    fn resolve(&self, _: &ResolveCx<'_>) -> Result<ResolvedOp, OpError> {
        Err(OpError::NeedInput {
            port: "p0".to_owned(),
        })
    }

    fn resolve_actor(
        &self,
        actor: &Actor,
        _: &TiSlice<BlobId, Bytes>,
    ) -> Option<Result<ResolvedOp, OpError>> {
        let kernel = Arc::new(Sum(actor.clone()));
        let signature = Signature::default();
        Some(Ok(ResolvedOp::of_shared_kernel(signature, kernel)))
    }
}

/// A port's rate and window (equal for outputs).
type Rates = &'static [(u64, u64)];

fn actor(name: &str, inputs: Rates, outputs: Rates) -> Actor {
    let token = TokenType::scalar(DType::I64);
    let role = match (inputs.is_empty(), outputs.is_empty()) {
        (true, _) => Role::Source,
        (_, true) => Role::Sink,
        _ => Role::Compute,
    };
    let named = |i: usize| format!("p{i}");
    let input = |(i, &(rate, window)): (usize, &(u64, u64))| InPort {
        name: named(i),
        token: token.clone(),
        rate,
        window,
    };
    let output = |(i, &(rate, _)): (usize, &(u64, u64))| OutPort {
        name: named(i),
        token: token.clone(),
        rate,
    };
    Actor {
        name: name.into(),
        role,
        op: "Sum".into(),
        params: Params::new(),
        inputs: inputs.iter().enumerate().map(input).collect(),
        outputs: outputs.iter().enumerate().map(output).collect(),
        state: vec![],
        in_place: vec![],
    }
}

/// From an output to readers `(actor, port, delay)`; initial tokens are 10, 20, ….
fn channel(from: (u32, u32), readers: &[(u32, u32, u64)]) -> Channel {
    let end = |actor, port| Endpoint {
        actor: ActorId(actor),
        port,
    };
    let readers: Vec<Reader> = readers
        .iter()
        .map(|&(a, p, delay)| Reader {
            to: end(a, p),
            delay,
        })
        .collect();
    let history = readers.iter().map(|r| r.delay).max().unwrap_or(0) as i64;
    Channel {
        from: end(from.0, from.1),
        readers,
        token: TokenType::scalar(DType::I64),
        initial: (1..=history).flat_map(|i| (10 * i).to_ne_bytes()).collect(),
    }
}

fn graph(actors: Vec<Actor>, channels: Vec<Channel>) -> Graph {
    Graph {
        name: "test".into(),
        actors: actors.into(),
        channels: channels.into(),
    }
}

fn interpreter(graph: &Graph) -> Interpreter {
    let mut registry = Registry::empty();
    registry.add(SumOp);
    Interpreter::new(graph, TiSlice::from_ref(&[]), &registry).expect("a valid graph")
}

fn tokens(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn input(values: &[i64]) -> BTreeMap<String, Vec<u8>> {
    [("in".to_owned(), tokens(values))].into()
}

/// `in` -> `sum` with that port -> `out`, with that delay.
fn line(port: Rates, delay: u64, output: Rates) -> Graph {
    let actors = vec![
        actor("in", &[], &[(1, 1)]),
        actor("sum", port, output),
        actor("out", &[(1, 1)], &[]),
    ];
    graph(
        actors,
        vec![
            channel((0, 0), &[(1, 0, delay)]),
            channel((1, 0), &[(2, 0, 0)]),
        ],
    )
}

#[test]
fn windows_delays_and_rates() {
    type Case = (
        Rates,
        u64,
        Rates,
        &'static [i64],
        &'static [i64],
        u64,
        &'static str,
    );
    let cases: &[Case] = &[
        (
            &[(1, 1)],
            0,
            &[(1, 1)],
            &[1, 2, 3],
            &[1, 2, 3],
            0,
            "one for one",
        ),
        (
            &[(2, 2)],
            0,
            &[(1, 1)],
            &[1, 2, 3, 4, 5],
            &[3, 7],
            1,
            "one for two, one left over",
        ),
        (
            &[(1, 1)],
            0,
            &[(2, 2)],
            &[1, 2],
            &[1, 1, 2, 2],
            0,
            "two for one",
        ),
        (
            &[(1, 1)],
            1,
            &[(1, 1)],
            &[1, 2, 3],
            &[10, 1, 2],
            0,
            "the initial token comes first",
        ),
        (
            &[(1, 3)],
            2,
            &[(1, 1)],
            &[1, 2, 3],
            &[31, 23, 6],
            0,
            "a window over 10 20 1 2 3",
        ),
        (
            &[(2, 3)],
            1,
            &[(1, 1)],
            &[1, 2, 3, 4],
            &[13, 9],
            0,
            "a window over 10 1 2 3 4",
        ),
    ];
    for &(port, delay, output, given, expect, leftover, why) in cases {
        let outcome = interpreter(&line(port, delay, output)).run(&input(given), None);
        let outcome = outcome.expect(why);
        assert_eq!(outcome.outputs["out"], tokens(expect), "{why}");
        assert_eq!(outcome.leftover["in"], leftover, "{why}");
    }
}

#[test]
fn a_state_is_carried_from_firing_to_firing_and_run_to_run() {
    let mut acc = actor("acc", &[(1, 1), (1, 1)], &[(1, 1), (1, 1)]);
    acc.state.push(StatePort {
        input: 1,
        output: 1,
    });
    let actors = vec![
        actor("in", &[], &[(1, 1)]),
        acc,
        actor("out", &[(1, 1)], &[]),
    ];
    let channels = vec![
        channel((0, 0), &[(1, 0, 0)]),
        channel((1, 0), &[(2, 0, 0)]),
        channel((1, 1), &[(1, 1, 1)]),
    ];
    let graph = graph(actors, channels);
    let mut one = interpreter(&graph);
    let first = one.run(&input(&[1, 2]), None).expect("runs");
    assert_eq!(first.outputs["out"], tokens(&[11, 13]));
    let mut other = interpreter(&graph);
    other.restore(&first.state).expect("of the same graph");
    for interpreter in [&mut one, &mut other] {
        let second = interpreter.run(&input(&[4]), None).expect("runs");
        assert_eq!(second.outputs["out"], tokens(&[17]));
        assert_eq!(
            (second.state.iterations, second.state.consumed[0].1),
            (3, 3)
        );
    }
}

#[test]
fn a_feedback_loop_needs_its_initial_token() {
    let actors = vec![
        actor("in", &[], &[(1, 1)]),
        actor("sum", &[(1, 1), (1, 1)], &[(1, 1)]),
        actor("out", &[(1, 1)], &[]),
    ];
    let fed_back = |delay| {
        let channels = vec![
            channel((0, 0), &[(1, 0, 0)]),
            channel((1, 0), &[(2, 0, 0), (1, 1, delay)]),
        ];
        graph(actors.clone(), channels)
    };
    let outcome = interpreter(&fed_back(1))
        .run(&input(&[1, 2, 3]), None)
        .expect("runs");
    assert_eq!(outcome.outputs["out"], tokens(&[11, 13, 16]));
    let stuck = interpreter(&fed_back(0))
        .run(&input(&[1]), None)
        .expect_err("no token");
    let expect = "deadlock in iteration 0: 2 of the actors wait for tokens, `sum` first";
    assert_eq!(stuck.to_string(), expect);
}

#[test]
fn ends_that_cannot_be_known_are_refused() {
    let graph = line(&[(1, 1)], 0, &[(1, 1)]);
    let error = interpreter(&graph)
        .run(&BTreeMap::new(), None)
        .expect_err("no input");
    assert!(matches!(error, InterpretError::NoInput { .. }));
    let outcome = interpreter(&graph)
        .run(&input(&[1, 2, 3]), Some(2))
        .expect("runs");
    assert_eq!((outcome.iterations, outcome.leftover["in"]), (2, 1));
}
