//! Runs histories of the simulation and says how many a minute:
//! `cargo run --release -p zbmd-tests --bin simulate -- --histories 100000`.
//! With `--devices N` they are long pipelines of which 20 devices are killed, and with `--hosts N` besides, 20 hosts;
//! `--hosts 0` runs histories of a few hosts, `--council 0` of the council. `ZBMD_SIM_SEED=n` runs one history and prints what
//! happens in it.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use zbmd_tests::council::{CouncilSummary, council_history};
use zbmd_tests::sim::{Summary, history, history_of_hosts, large};

fn main() -> ExitCode {
    if let Some(seed) = std::env::var("ZBMD_SIM_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
    {
        return match history(seed, None, true) {
            Ok(summary) => {
                println!("seed {seed}: {summary:?}");
                ExitCode::SUCCESS
            }
            Err(violation) => {
                println!("seed {seed}: {violation}");
                ExitCode::FAILURE
            }
        };
    }
    let mut args = std::env::args().skip(1);
    let (mut histories, mut first, mut devices) = (10_000u64, 0u64, 0u32);
    let (mut hosts, mut is_council) = (None, false);
    while let Some(arg) = args.next() {
        let number = args.next().and_then(|n| n.parse::<u64>().ok());
        match (arg.as_str(), number) {
            ("--histories", Some(n)) => histories = n,
            ("--first", Some(n)) => first = n,
            ("--devices", Some(n)) => devices = n as u32,
            ("--hosts", Some(n)) => hosts = Some(n as u32),
            ("--council", Some(_)) => is_council = true,
            _ => {
                eprintln!(
                    "usage: simulate [--histories N] [--first SEED] [--devices N] [--hosts N] [--council 0]"
                );
                return ExitCode::FAILURE;
            }
        }
    }
    if is_council {
        return simulate_council(first..first + histories);
    }
    let run = |seed| {
        if devices > 0 {
            large(seed, devices, 20, hosts.unwrap_or(0))
        } else if hosts.is_some() {
            history_of_hosts(seed, None, false)
        } else {
            history(seed, None, false)
        }
    };
    let begun = Instant::now();
    let mut all = Summary::default();
    let mut endings: BTreeMap<String, u64> = BTreeMap::new();
    let mut violations = 0;
    for seed in first..first + histories {
        match run(seed) {
            Ok(summary) => {
                *endings.entry(summary.ending.clone()).or_default() += 1;
                all.add(&summary);
            }
            Err(violation) => {
                violations += 1;
                println!("ZBMD_SIM_SEED={seed}: {violation}");
                if violations == 20 {
                    break;
                }
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{histories} histories in {seconds:.1} s: {:.0} a minute, {:.0} times real time; {violations} violations",
        histories as f64 / seconds * 60.0,
        all.simulated_ns as f64 / 1e9 / seconds,
    );
    println!(
        "{} outputs, {} epochs, {} losses, {} losses of hosts, {} hung, {} supervisor crashes, {} swaps, {} changes of mode, {} sets, {} given to others, {} steps; endings {endings:?}",
        all.outputs,
        all.epochs,
        all.losses,
        all.host_losses,
        all.overdue,
        all.crashes,
        all.swaps,
        all.modes,
        all.sets,
        all.asides,
        all.steps,
    );
    if violations == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn simulate_council(seeds: std::ops::Range<u64>) -> ExitCode {
    let begun = Instant::now();
    let histories = seeds.end - seeds.start;
    let mut all = CouncilSummary::default();
    for seed in seeds {
        match council_history(seed, None, false) {
            Ok(summary) => all.add(&summary),
            Err(violation) => {
                println!("ZBMD_SIM_SEED={seed}: {violation}");
                return ExitCode::FAILURE;
            }
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{histories} histories in {seconds:.1} s, {:.0} times real time; no violation",
        all.simulated_ns as f64 / 1e9 / seconds
    );
    println!("{all:?}");
    ExitCode::SUCCESS
}
