//! Once its connections are there, a wire allocates nothing.
#![expect(unsafe_code, reason = "counts what the global allocator is asked for")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Places, end, ring, socket_pair};
use zbmd_wire::Deadline;
use zbmd_wire::wires::Side;

struct Counting;

static IS_COUNTED: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn count() {
    if IS_COUNTED.load(Ordering::Relaxed) {
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

#[test]
fn sending_receiving_and_waiting_allocate_nothing() {
    const BLOCKS: u64 = 2_000;
    let rings = [ring(0, 4, 1024, &[1024])];
    let (sender_socket, receiver_socket) = socket_pair();
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut wires = end(sender_socket, Side::Sends, &rings, true);
            let mut places = Places::of(&rings);
            let payload = vec![3; 4096];
            barrier.wait();
            for block in 0..BLOCKS {
                let needed = (block + 1).saturating_sub(2);
                let waited = wires.wait_released(0, needed, Deadline::NEVER, &mut places);
                waited.expect("released");
                let sent = wires.send(0, 1024 * (block + 1), &payload, &mut places);
                sent.expect("sent");
            }
            wires.finish(&mut places).expect("finished");
            barrier.wait();
        });
        let mut wires = end(receiver_socket, Side::Receives, &rings, true);
        let mut places = Places::of(&rings);
        barrier.wait();
        for block in 0..BLOCKS {
            if block == BLOCKS / 10 {
                IS_COUNTED.store(true, Ordering::Relaxed);
            }
            let tokens = 1024 * (block + 1);
            let waited = wires.wait_published(0, tokens, Deadline::NEVER, &mut places);
            waited.expect("they come");
            wires.release(0, block + 1).expect("released");
        }
        IS_COUNTED.store(false, Ordering::Relaxed);
        assert!(wires.sleeps() > 0, "somebody waited");
        wires.finish(&mut places).expect("finished");
        barrier.wait();
    });
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 0);
}
