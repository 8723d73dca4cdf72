//! What a simulated history costs as the devices grow: seconds and events of pipelines that lose 20 devices, and of one
//! that loses 20 of its 500 hosts. A time that grew with the square of the devices would show as an exponent of 2.
//!
//! `cargo bench -p zbmd-tests --bench simulation`; with a number behind `--`, so many histories of each size.

use std::time::{Duration, Instant};

use zbmd_tests::cpu_time;
use zbmd_tests::figures::load;
use zbmd_tests::sim::{Summary, large};

const LOSSES: u32 = 20;

/// Devices, hosts (0: none), and the seconds that a history may take, where that is stated.
const SIZES: [(u32, u32, Option<u64>); 4] = [
    (1_000, 0, Some(1)),
    (3_000, 0, None),
    (10_000, 0, None),
    (10_000, 500, Some(60)),
];

/// The median history of one size.
struct Measured {
    wall_s: f64,
    cpu_s: f64,
    summary: Summary,
}

fn main() {
    let asked = std::env::args().find_map(|argument| argument.parse().ok());
    let histories: u64 = asked.unwrap_or(3);

    println!("load {}", load());
    println!("medians of {histories} histories, {LOSSES} losses in each");
    println!(
        "devices  hosts   wall s    CPU s     goal     events   events/CPU s   grows with devices^"
    );
    let mut previous: Option<(u32, f64)> = None;
    for (devices, hosts, goal_s) in SIZES {
        let measured = measure(devices, hosts, histories);
        let exponent =
            previous
                .filter(|&(smaller, _)| smaller < devices)
                .map(|(smaller, cpu_s)| {
                    (measured.cpu_s / cpu_s).ln() / (f64::from(devices) / f64::from(smaller)).ln()
                });
        previous = Some((devices, measured.cpu_s));

        let goal = goal_s.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s"));
        let growth = exponent.map_or_else(|| "-".to_owned(), |exponent| format!("{exponent:.2}"));
        let steps = measured.summary.steps;
        let steps_per_s = steps as f64 / measured.cpu_s;
        println!(
            "{devices:>7} {hosts:>6} {:>8.2} {:>8.2} {goal:>8} {steps:>10} {steps_per_s:>14.0}   {growth}",
            measured.wall_s, measured.cpu_s
        );
    }
    println!("load {}", load());
}

fn measure(devices: u32, hosts: u32, histories: u64) -> Measured {
    let mut all: Vec<Measured> = (0..histories.max(1))
        .map(|seed| one_history(seed, devices, hosts))
        .collect();
    all.sort_by(|a, b| a.cpu_s.total_cmp(&b.cpu_s));
    all.swap_remove(all.len() / 2)
}

fn one_history(seed: u64, devices: u32, hosts: u32) -> Measured {
    let started = Instant::now();
    let cpu_before = cpu_time::of_process();
    let summary = large(seed, devices, LOSSES, hosts).unwrap_or_else(|why| panic!("{why}"));
    let cpu: Duration = cpu_time::of_process() - cpu_before;

    // A history that ended early would be no measure of its size.
    assert_eq!(summary.ending, "finished", "seed {seed}: {summary:?}");
    Measured {
        wall_s: started.elapsed().as_secs_f64(),
        cpu_s: cpu.as_secs_f64(),
        summary,
    }
}
