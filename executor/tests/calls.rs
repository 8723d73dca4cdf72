//! Programs that the calling thread runs: the same bits as the interpreter's, no allocation, and what is refused.
#![expect(unsafe_code, reason = "counts what the global allocator is asked for")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use common::{TestOp, inputs, interpreter, registry, source_firings, verified};
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_backends::team;
use zbmd_executor::{CallError, Caller, Engine, EngineError, RunError};
use zbmd_ir::testing::programs;
use zbmd_ir::{PlanId, Program};

struct Counting;

thread_local! { static REQUESTS: Cell<u64> = const { Cell::new(0) }; }

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        REQUESTS.set(REQUESTS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        REQUESTS.set(REQUESTS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn engine(program: Program) -> Engine {
    Engine::new(verified(program), &registry()).expect("all ops are known")
}

/// The programs whose main plan is for one device.
fn callable() -> impl Iterator<Item = Program> {
    let programs = programs::all().into_iter();
    programs.filter(|program| {
        let plan = &program.plans[PlanId(0)];
        plan.calendars.len() == 1 && plan.stages == 1
    })
}

/// Calls a program block by block; what its sinks gave, and requests to the allocator after the first call.
fn call_all(
    caller: &mut Caller,
    given: &BTreeMap<String, Vec<u8>>,
    blocks: usize,
) -> (BTreeMap<String, Vec<u8>>, u64) {
    let sources: Vec<(String, usize)> = named(caller.inputs());
    let sinks: Vec<(String, usize)> = named(caller.outputs());
    let mut outputs: Vec<Vec<u8>> = sinks
        .iter()
        .map(|(_, bytes)| vec![0; bytes * blocks])
        .collect();
    let mut requests = 0;
    for block in 0..blocks {
        let inputs = sources.iter();
        let inputs: Vec<&[u8]> = inputs
            .map(|(name, bytes)| &given[name][block * bytes..][..*bytes])
            .collect();
        let mut results: Vec<&mut [u8]> = outputs
            .iter_mut()
            .zip(&sinks)
            .map(|(output, (_, bytes))| &mut output[block * bytes..][..*bytes])
            .collect();
        let before = REQUESTS.get();
        caller.call(&inputs, &mut results).expect("it runs");
        if block > 0 {
            requests += REQUESTS.get() - before;
        }
    }
    let names = sinks.into_iter().map(|(name, _)| name);
    (names.zip(outputs).collect(), requests)
}

fn named<'a>(ports: impl Iterator<Item = (&'a str, usize)>) -> Vec<(String, usize)> {
    ports
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .collect()
}

#[test]
fn calls_give_what_the_interpreter_gives() {
    let mut count = 0;
    for program in callable() {
        let name = program.graph.name.clone();
        let block = program.plans[PlanId(0)].block;
        let engine = engine(program);
        let blocks = if cfg!(miri) { 3 } else { 50 };
        let firings = source_firings(engine.program());
        let given = inputs(engine.program(), blocks * block * firings);
        let mut caller = engine.caller().expect("one CPU device");
        let (outputs, _) = call_all(&mut caller, &given, blocks as usize);
        let mut oracle = interpreter(engine.program());
        let expect = oracle.run(&given, Some(blocks * block)).expect("runs");
        assert_eq!(outputs, expect.outputs, "{name}");
        count += 1;
    }
    assert!(count >= 5, "only {count} programs can be called");
}

/// Halves its input.
struct Halve;

impl Kernel for Halve {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let from = io.input::<f32>(0);
        let halves = io.output::<f32>(0).iter_mut().zip(from);
        halves.for_each(|(y, x)| *y = 0.5 * x);
        Ok(())
    }
}

#[test]
fn calls_allocate_nothing() {
    let mut registry = registry();
    for op in ["Fir", "Gain"] {
        registry.add(TestOp(op, Box::new(|_| Arc::new(Halve))));
    }
    let program = programs::window();
    let block = program.plans[PlanId(0)].block;
    let engine = Engine::new(verified(program), &registry).expect("known");
    let given = inputs(
        engine.program(),
        10 * block * source_firings(engine.program()),
    );
    let mut caller = engine.caller().expect("one CPU device");
    let (_, requests) = call_all(&mut caller, &given, 10);
    assert_eq!(requests, 0);
}

/// Notes on how many cores a kernel may share its work.
struct CountCores(Arc<AtomicUsize>);

impl Kernel for CountCores {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        self.0.store(team::cores(), Ordering::Relaxed);
        io.output::<f32>(0).fill(1.0);
        Ok(())
    }
}

#[test]
fn kernels_share_their_work_on_all_cores_of_the_device() {
    for core_count in [1, 2, 3] {
        let seen = Arc::new(AtomicUsize::new(0));
        let mut registry = registry();
        let counted = Arc::clone(&seen);
        let kernel = move |_: &_| -> Arc<dyn Kernel> { Arc::new(CountCores(Arc::clone(&counted))) };
        registry.add(TestOp("Up", Box::new(kernel)));

        let mut program = programs::chain();
        let device = program.plans[PlanId(0)].calendars[0].device;
        program.machine.devices[device].cores = (0..core_count).collect();
        let engine = Engine::new(verified(program), &registry).expect("known");
        let mut caller = engine.caller().expect("one CPU device");
        let tokens = vec![0; named(caller.inputs())[0].1];
        let mut result = vec![0; named(caller.outputs())[0].1];
        // Also on another thread than the one that made it.
        std::thread::scope(|scope| {
            let call = scope.spawn(|| caller.call(&[&tokens], &mut [&mut result]));
            call.join().expect("no panic").expect("it runs");
        });

        assert_eq!(seen.load(Ordering::Relaxed), core_count as usize);
        assert_eq!(team::cores(), 1, "this thread leads nobody");
    }
}

#[test]
fn programs_that_other_threads_run_are_refused() {
    let refused = engine(programs::two_devices()).caller().err();
    let Some(EngineError::Call { why }) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("`--devices 1`"), "{why}");
}

#[test]
fn calls_with_other_sizes_run_nothing() {
    let engine = engine(programs::chain());
    let mut caller = engine.caller().expect("one CPU device");
    let [(_, source_bytes)] = named(caller.inputs())[..] else {
        panic!("one source");
    };
    let [(_, sink_bytes)] = named(caller.outputs())[..] else {
        panic!("one sink");
    };
    let tokens = vec![0; source_bytes + 4];
    let mut result = vec![0; sink_bytes];

    let mut text = |inputs: &[&[u8]], outputs: &mut [&mut [u8]]| {
        let refusal = caller.call(inputs, outputs).expect_err("refused");
        refusal.to_string()
    };
    let long = text(&[&tokens], &mut [&mut result]);
    let said = format!(
        "given {} bytes, a call takes {source_bytes}",
        source_bytes + 4
    );
    assert!(long.contains(&said), "{long}");
    let none = text(&[], &mut [&mut result]);
    assert!(
        none.contains("has 0 inputs, the program has 1: in"),
        "{none}"
    );
    let more = text(&[&tokens[4..]], &mut [&mut result, &mut []]);
    assert!(more.contains("has 2 outputs, the program has 1"), "{more}");

    // What was refused was not taken.
    let given = inputs(engine.program(), source_bytes as u64 / 4);
    let (outputs, _) = call_all(&mut caller, &given, 1);
    let expect =
        interpreter(engine.program()).run(&given, Some(engine.program().plans[PlanId(0)].block));
    assert_eq!(outputs, expect.expect("runs").outputs);
}

/// Works once, and then reports a fault or panics.
struct Once {
    calls: AtomicU32,
    panics: bool,
}

impl Kernel for Once {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        io.output::<f32>(0).fill(1.0);
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ if self.panics => panic!("out of order"),
            _ => Err(KernelFault("out of order")),
        }
    }
}

#[test]
fn nothing_is_called_after_a_failure() {
    for panics in [false, true] {
        let program = programs::chain();
        let ops = program.graph.actors.iter().map(|actor| actor.op.clone());
        let ops: Vec<String> = ops.filter(|op| op == "Up").collect();
        assert!(!ops.is_empty(), "the kernel that fails is one of it");
        let mut registry = registry();
        let once = move || Once {
            calls: AtomicU32::new(0),
            panics,
        };
        registry.add(TestOp("Up", Box::new(move |_| Arc::new(once()))));
        let engine = Engine::new(verified(program), &registry).expect("known");
        let mut caller = engine.caller().expect("one CPU device");
        let tokens = vec![0; named(caller.inputs())[0].1];
        let mut result = vec![0; named(caller.outputs())[0].1];
        let mut results = Vec::new();
        for _ in 0..4 {
            results.push(caller.call(&[&tokens], &mut [&mut result]));
        }
        let failed = results.iter().find_map(|result| match result {
            Err(CallError::Failed(error)) => Some(error),
            _ => None,
        });
        match failed {
            Some(RunError::Panic { message, .. }) if panics => assert_eq!(message, "out of order"),
            Some(RunError::Fault { fault, .. }) if !panics => assert_eq!(fault, "out of order"),
            other => panic!("{other:?}"),
        }
        let last = results.pop().expect("four calls");
        assert!(matches!(last, Err(CallError::Ended)), "{last:?}");
    }
}

#[test]
fn callers_go_from_thread_to_thread() {
    fn assert_send<T: Send>() {}
    assert_send::<Caller>();
}
