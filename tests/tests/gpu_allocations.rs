//! Replaying a GPU's calendar allocates nothing once all stages are at work.
#![expect(unsafe_code, reason = "counts what the global allocator is asked for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use zbmd_backends::op::Registry;
use zbmd_backends::vulkan::{Options, Replay};
use zbmd_ir::{DeviceId, PlanId};
use zbmd_tests::gpu::{Idle, Player, chain, open, tokens};
use zbmd_tests::run::random_inputs;

struct Counting;

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    if COUNTED.get() {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
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

#[test]
fn steady_periods_allocate_nothing() {
    let Some(device) = open(false, &Options::default()) else { return };
    let registry = Registry::standard();
    let program = chain(20, &registry);
    let plan = &program.plans[PlanId(0)];
    let (tokens, _) =
        tokens(&program, &registry, &random_inputs(&program, plan.block, 1), plan.block);
    let mut player = Player::new(&program, plan, DeviceId(1), &tokens, false);
    let calendar = plan.calendars.iter().find(|c| c.device == DeviceId(1)).expect("a calendar");
    let regions = player.host_regions();
    let replay = Replay::new(&device, &registry, &program, plan, calendar, &regions);
    let mut replay = replay.expect("a replay");
    for period in 0..100 {
        COUNTED.set(period >= u64::from(plan.stages));
        replay.step(period, None, &mut Idle).expect("a period");
    }
    replay.drain(&mut Idle).expect("the end");
    COUNTED.set(false);
    assert_eq!(ALLOCATIONS.get(), 0);
}
