//! Static memory allocation instances; the whole family runs under `cargo bench -p zbmd-tests --bench dsa`.

use zbmd_scheduler::offsets::{ItemLayout, LayoutLimits, solve};
use zbmd_tests::dsa::{self, CAPACITY};
use zbmd_tests::dsa_cuts::{CUT_CAPACITY, cut_instance};

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

/// The cuts themselves are a layout of the capacity, and of no more buffers than wanted.
#[test]
fn cut_instances_fit_their_capacity_by_construction() {
    let mut full_count = 0;
    for seed in 0..50 {
        let cut = cut_instance(seed);
        assert!((230..=505).contains(&cut.items.len()), "seed {seed}");
        let layout = ItemLayout {
            offsets: cut.offsets,
            size: CUT_CAPACITY,
            lower_bound: 0,
            nodes: 0,
        };
        dsa::assert_apart(&cut.items, &layout);

        let areas = cut
            .items
            .iter()
            .map(|item| (item.end - item.first) * item.size);
        let all_times = cut.items.iter().map(|item| item.end).max().unwrap_or(0);
        full_count += usize::from(areas.sum::<u64>() == all_times * CUT_CAPACITY);
    }
    assert!(
        (5..=25).contains(&full_count),
        "{full_count} of 50 are full"
    );
}

/// Seeds of instances with and without holes that few of the searches find at once. Ten seconds of searches find no
/// layout of the last two without joins, nor of the two before them without fillers and joins.
const CUT_SEEDS: [u64; 10] = [1, 7, 17, 24, 30, 42, 19, 116, 39, 61];

/// Greedy orders miss all of these.
#[test]
fn cut_instances_are_laid_out_within_their_capacity() {
    for seed in CUT_SEEDS {
        let items = cut_instance(seed).items;
        let limits = LayoutLimits {
            capacity: Some(CUT_CAPACITY),
            steps: 10_000_000,
        };
        let greedy = solve(&items, &LayoutLimits { steps: 0, ..limits }).expect("valid items");
        assert!(greedy.size > CUT_CAPACITY, "seed {seed} needs no search");

        let found = solve(&items, &limits).expect("valid items");
        dsa::assert_apart(&items, &found);
        assert!(
            found.size <= CUT_CAPACITY,
            "seed {seed} needs {}",
            found.size
        );
        assert_eq!(
            solve(&items, &limits).expect("valid items"),
            found,
            "seed {seed}"
        );
    }
}
