//! Readers of the published scheduling and placement instances.

use std::path::Path;

use zbmd_scheduler::search::{Dag, Edge};

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A graph of the Standard Task Graph Set on identical processors, without its two dummy tasks.
///
/// # Panics
/// If the text is no such graph.
pub fn stg(path: &Path, processors: usize) -> Dag {
    let text = read(path);
    let mut lines = text
        .lines()
        .take_while(|l| !l.starts_with('#'))
        .map(|l| l.split_whitespace().map(|w| w.parse::<u64>().expect("a number")));
    let tasks = lines.next().and_then(|mut l| l.next()).expect("the number of tasks");
    let (mut times, mut edges) = (Vec::new(), Vec::new());
    for mut line in lines {
        let (Some(id), Some(time)) = (line.next(), line.next()) else { continue };
        if id == 0 || id > tasks {
            continue;
        }
        times.push(vec![Some(time); processors]);
        for before in line.skip(1).filter(|&b| b > 0) {
            edges.push(Edge { from: before as u32 - 1, to: id as u32 - 1, cost: 0 });
        }
    }
    assert_eq!(times.len() as u64, tasks);
    Dag::new(times, edges).expect("a valid graph")
}

/// Optimal makespans of the 180 graphs of 50 tasks, by graph.
///
/// # Panics
/// If the table is malformed.
pub fn stg_optima(path: &Path) -> Vec<u64> {
    let number = |line: &str| line.rsplit(',').next().and_then(|w| w.trim().parse().ok());
    read(path).lines().map(|l| number(l).expect("a makespan")).collect()
}

/// A small graph on unlike processors: a table of times, a matrix of transfers.
///
/// # Panics
/// If a table is malformed.
pub fn small_dag(times: &Path, edges: &Path) -> Dag {
    let table = |path: &Path| -> Vec<Vec<u64>> {
        let text = read(path);
        let numbers = |l: &str| l.split(',').skip(1).map(|w| w.trim().parse().expect("a number")).collect();
        text.lines().skip(1).filter(|l| !l.is_empty()).map(numbers).collect()
    };
    let times = table(times).into_iter().map(|row| row.into_iter().map(Some).collect()).collect();
    let mut list = Vec::new();
    for (from, row) in (0u32..).zip(table(edges)) {
        let costs = (0u32..).zip(row).filter(|(_, cost)| *cost > 0);
        list.extend(costs.map(|(to, cost)| Edge { from, to, cost }));
    }
    Dag::new(times, list).expect("a valid graph")
}
