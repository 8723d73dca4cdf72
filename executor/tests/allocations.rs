//! After the first periods nothing allocates: not in workers, not in the streams' handles.
#![expect(unsafe_code, reason = "counts what the global allocator is asked for")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use common::{TestOp, inputs, registry, verified};
use zbmd_backends::kernel::{Io, Kernel, KernelFault};
use zbmd_executor::{Engine, RunOptions};
use zbmd_ir::testing::programs;

struct Counting;

static AT_WORK: AtomicU32 = AtomicU32::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Set by threads that must not allocate; the test's own thread may.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if COUNTED.get() && AT_WORK.load(Ordering::Relaxed) == 1 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Halves its input, and counts allocations between two of its calls.
#[derive(Default)]
struct Halve {
    calls: AtomicU32,
}

/// Calls between which allocations count, as every kernel here is called once or more in a period.
const FROM: u32 = 200;
const UNTIL: u32 = 5000;

impl Kernel for Halve {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        COUNTED.set(true);
        match self.calls.fetch_add(1, Ordering::Relaxed) {
            FROM => AT_WORK.store(1, Ordering::Relaxed),
            UNTIL => AT_WORK.store(2, Ordering::Relaxed),
            _ => {}
        }
        let from = io.input::<f32>(0);
        for (y, x) in io.output::<f32>(0).iter_mut().zip(from) {
            *y = 0.5 * x;
        }
        Ok(())
    }
}

#[test]
fn the_steady_state_allocates_nothing() {
    let plans = [
        programs::window(),
        programs::pipeline(),
        programs::two_devices(),
        programs::round_trip(),
    ];
    for program in plans {
        let name = program.graph.name.clone();
        let mut registry = registry();
        for op in ["Fir", "Gain"] {
            registry.add(TestOp(op, Box::new(|_| Arc::new(Halve::default()))));
        }
        if name == "round_trip" {
            registry.add(TestOp("Add", Box::new(|_| Arc::new(Quiet))));
        }
        let engine = Engine::new(verified(program), &registry).expect("known");
        let given = inputs(engine.program(), 4 * 6000);
        let options = RunOptions {
            sample_every: 16,
            ..RunOptions::default()
        };
        AT_WORK.store(0, Ordering::Relaxed);
        ALLOCATIONS.store(0, Ordering::Relaxed);
        let mut session = engine.start(options).expect("starts");
        let mut source = session.source("in").expect("a source");
        let mut sink = session.sink("out").expect("a sink");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                COUNTED.set(true);
                source.push_bytes(&given["in"]).expect("open");
                COUNTED.set(false);
            });
            scope.spawn(move || {
                COUNTED.set(true);
                let mut piece = [0.0f32; 100];
                while let Ok(1..) = sink.pull(&mut piece) {}
                COUNTED.set(false);
            });
            session.join().expect("runs");
        });
        assert_eq!(
            AT_WORK.load(Ordering::Relaxed),
            2,
            "{name}: the counted stretch was run"
        );
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 0, "{name}");
    }
}

/// Adds its inputs.
struct Quiet;

impl Kernel for Quiet {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let (a, b) = (io.input::<f32>(0), io.input::<f32>(1));
        for ((y, a), b) in io.output::<f32>(0).iter_mut().zip(a).zip(b) {
            *y = a + b;
        }
        Ok(())
    }
}
