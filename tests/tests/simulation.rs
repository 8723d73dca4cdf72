//! Histories of the simulation in seconds; hours of it are the command `simulate`. `ZBMD_SIM_SEED=n` replays one
//! history with everything that happens in it.

use zbmd_tests::sim::{Bug, Summary, history, history_of_hosts, large};

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
    let summary = large(1, 1000, 4, 0).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(summary.ending, "finished");
    assert!(summary.losses >= 4, "{summary:?}");
}

#[test]
fn no_token_is_lost_with_a_host() {
    let mut all = Summary::default();
    for seed in 0..2000 {
        let found = history_of_hosts(seed, None, false);
        let summary = found.unwrap_or_else(|why| panic!("seed {seed} of hosts: {why}"));
        all.add(&summary);
    }
    assert!(all.host_losses > 1000 && all.losses > 3000, "{all:?}");
}

#[test]
fn every_seeded_bug_of_hosts_is_caught() {
    for bug in Bug::OF_HOSTS {
        let caught = |seed| Some((seed, history_of_hosts(seed, Some(bug), false).err()?));
        let found = (0..4000).find_map(caught);
        let (seed, why) = found.unwrap_or_else(|| panic!("{bug:?} is not caught"));
        println!("{bug:?}: caught in history {seed} of hosts: {why}");
    }
}

#[test]
fn hundreds_of_devices_on_hosts_of_which_some_are_lost() {
    let summary = large(1, 500, 4, 25).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(summary.ending, "finished");
    assert!(
        summary.host_losses >= 3 && summary.losses >= 60,
        "{summary:?}"
    );
}
