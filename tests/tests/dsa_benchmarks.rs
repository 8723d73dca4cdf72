//! Static memory allocation instances; the whole family runs under `cargo bench -p zbmd-tests --bench dsa`.

use zbmd_scheduler::offsets::{LayoutLimits, solve};
use zbmd_tests::dsa::{self, CAPACITY};

/// The quickest of the family; greedy orders miss the capacity by more than a tenth.
#[test]
fn a_challenging_instance_fits_the_published_capacity() {
    let Some(items) = dsa::published("E") else {
        return;
    };
    let limits = LayoutLimits {
        capacity: Some(CAPACITY),
        steps: 100_000_000,
    };
    let greedy = solve(&items, &LayoutLimits { steps: 0, ..limits }).expect("valid items");
    let found = solve(&items, &limits).expect("valid items");
    dsa::assert_apart(&items, &greedy);
    dsa::assert_apart(&items, &found);
    assert!(
        greedy.size > CAPACITY + CAPACITY / 10,
        "greedy needs {} only",
        greedy.size
    );
    assert!(found.size <= CAPACITY, "it needs {}", found.size);
}
