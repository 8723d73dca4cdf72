//! Histories of the council in seconds; hours of it are the command `simulate -- --council 1`. `ZBMD_SIM_SEED=n` replays one
//! history with everything that happens in it.

use zbmd_tests::council::{CouncilBug, CouncilSummary, council_history};
use zbmd_tests::sample::cases;

#[test]
fn one_conducts_and_nothing_decided_is_lost() {
    if let Some(seed) = std::env::var("ZBMD_SIM_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
    {
        let found = council_history(seed, None, true);
        panic!("replayed seed {seed}: {found:?}");
    }
    let mut all = CouncilSummary::default();
    for seed in 0..cases(200) {
        let found = council_history(seed, None, false);
        let summary = found.unwrap_or_else(|why| panic!("ZBMD_SIM_SEED={seed}: {why}"));
        all.add(&summary);
    }
    println!("{all:?}");
    // Histories in which nothing happens would prove nothing.
    assert!(
        all.kills > 120 && all.stops > 80 && all.cuts > 80,
        "{all:?}"
    );
    assert!(all.borders > 8_000 && all.epochs > 320, "{all:?}");
    assert!(all.lost_runs < cases(60), "{all:?}");
}

#[test]
fn a_seed_is_a_history_of_the_council() {
    for seed in 0..10 {
        let run = || council_history(seed, None, false);
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn every_seeded_bug_of_the_council_is_caught() {
    let mut missed = Vec::new();
    for bug in CouncilBug::ALL {
        let caught = |seed| Some((seed, council_history(seed, Some(bug), false).err()?));
        match (0..4000).find_map(caught) {
            Some((seed, why)) => println!("{bug:?}: caught in history {seed}: {why}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
