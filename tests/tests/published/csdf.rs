//! Published figures of cyclo-static graphs; `cargo bench -p zbmd-tests --bench csdf` prints all that there are.

use zbmd_scheduler::throughput::Period;
use zbmd_tests::csdf;

#[test]
fn published_periods_of_cyclo_static_graphs() {
    let Some(folder) = csdf::folder() else {
        return;
    };
    for (name, published) in csdf::PUBLISHED {
        let instance = csdf::read(&folder, name).unwrap_or_else(|why| panic!("{why}"));
        let found = csdf::period(&instance);
        assert_eq!(found, Period::from(published), "{name}");
    }
}

/// What Kiter's own tests say of `sample`: a period of 25 with these buffers, and none with others.
#[test]
fn published_periods_with_bounded_buffers() {
    let Some(folder) = csdf::folder() else {
        return;
    };
    let sample = csdf::read(&folder, "sample").unwrap_or_else(|why| panic!("{why}"));
    let sizes = |sizes: [u64; 3]| {
        let names = ["channel_1", "channel_2", "channel_3"];
        let named: Vec<(&str, u64)> = names.into_iter().zip(sizes).collect();
        csdf::bounded_period(&sample, &named)
    };
    assert_eq!(sizes([8, 9, 5]), Some(Period::from(25u64)));
    assert_eq!(sizes([3, 7, 5]), None);
    assert_eq!(sizes([1000, 1000, 1000]), Some(Period::from(23u64)));
}
