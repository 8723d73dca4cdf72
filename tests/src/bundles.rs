//! What becomes of a bundle that nobody trusts, from its bytes to a run of it: for tests and fuzzing with bundles that
//! have been changed anywhere. Knows no mutator.

use zbmd_backends::interpret::Interpreter;
use zbmd_backends::op::Registry;
use zbmd_executor::Engine;
use zbmd_ir::verify::{Verified, check_counting, verify};
use zbmd_ir::walk::executions;
use zbmd_ir::{PlanId, Program, Role, bundle};

use crate::run::{Streams, drive};

/// Bytes of memory, or slot executions of a period, beyond which an accepted program is not run: nothing is wrong with
/// it, it only takes long.
const MAX_BYTES: u64 = 8 << 20;
const MAX_EXECUTIONS: u64 = 20_000;

/// How far a bundle came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It is not well formed.
    Malformed,
    /// The verifier refuses it.
    Refused,
    /// The executor has no such ops, or cannot run a plan.
    NotLoaded,
    /// It was loaded, but would take too long to run here.
    Loaded,
    /// It was run, and did what the interpreter does.
    Run,
}

/// Reads, verifies, loads and runs a bundle.
///
/// # Panics
/// If any of that panics, verification takes more work than its budget, or the run does anything else than the
/// interpreter.
pub fn examine(bytes: Vec<u8>, registry: &Registry, seed: u64) -> Verdict {
    let Ok(program) = bundle::decode(bytes.into()) else {
        return Verdict::Malformed;
    };
    let (result, work) = check_counting(&program);
    assert!(work.steps <= work.reserved, "{work:?}");
    assert!(work.reserved <= work.limit, "{work:?}");
    if let Err(errors) = result {
        let texts = errors.iter().map(|error| error.to_string().len());
        assert!(texts.sum::<usize>() < 1 << 20, "errors without end");
        return Verdict::Refused;
    }

    let verified = verify(program).expect("the same program passes again");
    if !has_small_parameters(&verified) {
        return Verdict::Loaded;
    }
    let Ok(engine) = Engine::new(verified.clone(), registry) else {
        return Verdict::NotLoaded;
    };
    match run_inputs(&verified, seed) {
        Some(inputs) => run(&verified, &engine, registry, &inputs),
        None => Verdict::Loaded,
    }
}

/// Tokens and parameters small enough that kernels for them are made at once.
fn has_small_parameters(program: &Program) -> bool {
    let actors = program.graph.actors.iter();
    let mut ports = actors.flat_map(|actor| {
        let inputs = actor.inputs.iter().map(|p| (&p.token, p.window));
        let outputs = actor.outputs.iter().map(|p| (&p.token, p.rate));
        inputs.chain(outputs)
    });
    ports.all(|(token, tokens)| token.bytes().saturating_mul(tokens) <= MAX_BYTES)
}

/// Input for some blocks, and a rest where a plan runs it; `None` for a program that is too large to be run.
fn run_inputs(program: &Program, seed: u64) -> Option<Streams> {
    let mut bytes: u64 = 0;
    for plan in &program.plans {
        for calendar in &plan.calendars {
            bytes = bytes.saturating_add(calendar.arena_bytes);
            bytes = bytes.saturating_add(calendar.exchange_bytes);
            let lanes = calendar.lanes.iter();
            let executions: u64 = lanes.map(|lane| executions(&lane.entries)).sum();
            if executions > MAX_EXECUTIONS {
                return None;
            }
        }
    }

    let main = &program.plans[PlanId(0)];
    // Without a plan `tail`, what does not fill a block is left over, as the report then says.
    let rest = u64::from(main.block == 1 || program.plan("tail").is_some());
    let iterations = main.block.checked_mul(u64::from(main.stages) + 2)? + rest;
    let q = zbmd_scheduler::repetition(&program.graph).ok()?;
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut inputs = Streams::new();
    for (id, actor) in program.graph.actors.iter_enumerated() {
        let (token, rate) = match actor.role {
            Role::Source => (&actor.outputs[0].token, actor.outputs[0].rate),
            Role::Sink => (&actor.inputs[0].token, actor.inputs[0].rate),
            Role::Compute => continue,
        };
        let tokens = q[id].checked_mul(rate)?.checked_mul(iterations)?;
        let length = tokens.checked_mul(token.bytes())?;
        bytes = bytes.saturating_add(length.saturating_mul(8));
        if bytes > MAX_BYTES {
            return None;
        }
        if actor.role == Role::Source {
            let input = (0..length).map(|_| rng.u8(..)).collect();
            inputs.insert(actor.name.clone(), input);
        }
    }
    // Without sources a run has no end.
    (!inputs.is_empty()).then_some(inputs)
}

fn run(
    program: &Verified<Program>,
    engine: &Engine,
    registry: &Registry,
    inputs: &Streams,
) -> Verdict {
    let Ok(mut interpreter) = Interpreter::new(&program.graph, &program.blobs, registry) else {
        return Verdict::Loaded;
    };
    let Ok(expected) = interpreter.run(inputs, None) else {
        // A kernel has a fault on such tokens: then the run has it, too, but says less of what came before.
        return Verdict::Loaded;
    };

    let options = zbmd_executor::RunOptions {
        pin: false,
        lock_memory: false,
        ..zbmd_executor::RunOptions::default()
    };
    let Ok(session) = engine.start(options) else {
        return Verdict::Loaded;
    };
    let sinks = program.graph.sinks().map(|(_, actor)| actor.name.clone());
    let (outputs, outcome) = drive(session, inputs, sinks.collect());
    assert!(
        outputs == expected.outputs,
        "other outputs than the interpreter's"
    );
    assert_eq!(
        outcome.state, expected.state,
        "another state than the interpreter's"
    );
    Verdict::Run
}
