//! Histories of the simulation in seconds; hours of it are the command `simulate`. `ZBMD_SIM_SEED=n` replays one
//! history with everything that happens in it.

use zbmd_tests::sim::{Bug, Summary, history, large};

#[test]
fn no_token_is_lost_whatever_happens() {
    if let Some(seed) = std::env::var("ZBMD_SIM_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
    {
        let found = history(seed, None, true);
        panic!("replayed seed {seed}: {found:?}");
    }
    let mut all = Summary::default();
    let mut finished = 0;
    for seed in 0..4000 {
        let found = history(seed, None, false);
        let summary = found.unwrap_or_else(|why| panic!("ZBMD_SIM_SEED={seed}: {why}"));
        finished += u64::from(summary.ending == "finished");
        all.add(&summary);
    }
    // Histories in which nothing happens would prove nothing.
    assert!(
        finished > 2000 && all.losses > 4000,
        "{finished} finished, {all:?}"
    );
    assert!(
        all.overdue > 200 && all.crashes > 100 && all.swaps > 100,
        "{all:?}"
    );
    assert!(all.modes > 500 && all.sets > 1000, "{all:?}");
    assert!(all.asides > 5, "{all:?}");
}

#[test]
fn a_seed_is_a_history() {
    for seed in 0..20 {
        assert_eq!(
            history(seed, None, false),
            history(seed, None, false),
            "seed {seed}"
        );
    }
}

#[test]
fn every_seeded_bug_is_caught() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let caught = |seed| Some((seed, history(seed, Some(bug), false).err()?));
        match (0..4000).find_map(caught) {
            Some((seed, why)) => println!("{bug:?}: caught in history {seed}: {why}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn a_thousand_devices() {
    let summary = large(1, 1000, 4).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(summary.ending, "finished");
    assert!(summary.losses >= 4, "{summary:?}");
}
