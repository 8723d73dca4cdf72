//! Memory that opening a bundle takes beyond the file's own bytes, whatever is in it.
#![expect(unsafe_code, reason = "counts what the global allocator is asked for")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use zbmd_ir::testing::hostile::{self, Hostile};
use zbmd_ir::testing::programs;
use zbmd_ir::verify::check;
use zbmd_ir::{bundle, limits};
use zbmd_tests::random;

/// What may be taken for a bundle, with the verification of it.
const MAX_BYTES: usize = 64 << 20;

/// Counts the bytes that are allocated, and the most there have been.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Whether a bundle is accepted as far as it is looked at here, and the most memory that this takes at a time.
fn open(file: Bytes) -> (Result<(), String>, usize) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = match bundle::decode(file) {
        Ok(program) => check(&program).map_err(|errors| errors[0].to_string()),
        Err(error) => Err(error.to_string()),
    };
    (result, PEAK.load(Ordering::Relaxed) - before)
}

/// One test, as the allocator counts for the whole process.
#[test]
fn opening_a_bundle_takes_bounded_memory() {
    let mut refused_for_memory = 0;
    for size in [500, 50_000, 1_000_000, 8_000_000] {
        for Hostile { name, program } in hostile::all(size) {
            let file = Bytes::from(bundle::encode(&program));
            drop(program);
            let bytes = file.len();
            let (result, peak) = open(file);
            println!("{name}, {bytes} bytes: {peak} bytes, {result:.100?}");
            assert!(
                peak <= MAX_BYTES,
                "{name} of {bytes} bytes takes {peak} bytes"
            );
            let text = result.err().unwrap_or_default();
            refused_for_memory += u32::from(text.contains("--max-structure"));
        }
    }
    // As many slots as are accepted, and what checks of all kinds need for them.
    for firings in [1000, 50_000, 80_000, 120_000, 500_000] {
        let file = Bytes::from(bundle::encode(&programs::long(firings)));
        let bytes = file.len();
        let (result, peak) = open(file);
        println!("{firings} firings, {bytes} bytes: {peak} bytes, {result:.100?}");
        assert!(
            peak <= MAX_BYTES,
            "{firings} firings of {bytes} bytes take {peak} bytes"
        );
        assert!(result.is_ok() || firings > 80_000, "{result:?}");
    }
    // The largest machine that is allowed, with as many links as it may have.
    let mut program = programs::long(1000);
    program.machine = random::machine(limits::MAX_DEVICES);
    let (result, peak) = open(Bytes::from(bundle::encode(&program)));
    assert_eq!(result, Ok(()));
    assert!(peak <= MAX_BYTES, "the largest machine takes {peak} bytes");

    assert!(
        refused_for_memory > 0,
        "no attack is large enough to be one"
    );
}
