//! Once its connections are there, a wire allocates nothing, in TLS as without, and over UCX but for the library.
#![expect(unsafe_code, reason = "counts what the global allocator is asked for")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Places, end, ring, socket_pair, tls_pair, ucx_pair};
use zbmd_wire::Deadline;
use zbmd_wire::connection::Connection;
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

const BLOCKS: u64 = 2_000;
/// Those after which everything is there.
const FIRST_BLOCKS: u64 = BLOCKS / 10;

#[test]
fn sending_receiving_and_waiting_allocate_nothing() {
    let (sender_end, receiver_end) = socket_pair();
    assert_eq!(allocations(sender_end.into(), receiver_end.into()), 0);

    let (sender_end, receiver_end) = tls_pair();
    assert_eq!(allocations(sender_end, receiver_end), 0);

    // What the library takes for itself is not seen here.
    if let Some((sender_end, receiver_end)) = ucx_pair() {
        assert_eq!(allocations(sender_end, receiver_end), 0);
    }
}

/// What is allocated and released while blocks are carried.
fn allocations(sender_end: Connection, receiver_end: Connection) -> u64 {
    let rings = [ring(0, 4, 1024, &[1024])];
    ALLOCATIONS.store(0, Ordering::Relaxed);
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut wires = end(sender_end, Side::Sends, &rings, true);
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
        let mut wires = end(receiver_end, Side::Receives, &rings, true);
        let mut places = Places::of(&rings);
        barrier.wait();
        for block in 0..BLOCKS {
            if block == FIRST_BLOCKS {
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
    ALLOCATIONS.load(Ordering::Relaxed)
}
