//! Readers of the published scheduling and placement instances.

use std::path::Path;

use serde::Deserialize;
use zbmd_scheduler::assign::{
    Fanout, Objective, PlacementChannel, PlacementDevice, PlacementLink, PlacementNode,
    PlacementProblem,
};
use zbmd_scheduler::search::{Dag, LinkTime, TaskEdge};

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A graph of the Standard Task Graph Set on identical processors, without its two dummy tasks.
///
/// # Panics
/// If the text is no such graph.
pub fn stg(path: &Path, processors: usize) -> Dag {
    let text = read(path);
    let mut lines = text.lines().take_while(|l| !l.starts_with('#')).map(|l| {
        l.split_whitespace()
            .map(|w| w.parse::<u64>().expect("a number"))
    });
    let tasks = lines
        .next()
        .and_then(|mut l| l.next())
        .expect("the number of tasks");
    let (mut times, mut edges) = (Vec::new(), Vec::new());
    for mut line in lines {
        let (Some(id), Some(time)) = (line.next(), line.next()) else {
            continue;
        };
        if id == 0 || id > tasks {
            continue;
        }
        times.push(vec![Some(time); processors]);
        for before in line.skip(1).filter(|&b| b > 0) {
            edges.push(TaskEdge {
                from: before as u32 - 1,
                to: id as u32 - 1,
                cost: 0,
            });
        }
    }
    assert_eq!(times.len() as u64, tasks);
    Dag::new(times, edges).expect("a valid graph")
}

/// What is published of one graph on one number of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Makespan below which there is none.
    pub bound: u64,
    /// Makespan of a known schedule; optimal where it equals the bound.
    pub makespan: u64,
}

/// Optimal makespans of the 180 graphs of 50 tasks, by graph; an open case is a bound and a makespan.
///
/// # Panics
/// If the table is malformed.
pub fn stg_optima(path: &Path) -> Vec<Published> {
    let row = |line: &str| {
        let mut numbers = line
            .split(',')
            .skip(2)
            .map(|w| w.trim().parse().expect("a makespan"));
        let bound = numbers.next().expect("a makespan or a bound");
        Published {
            bound,
            makespan: numbers.next().unwrap_or(bound),
        }
    };
    read(path).lines().map(row).collect()
}

/// A small graph on unlike processors: a table of times, a matrix of transfers.
///
/// # Panics
/// If a table is malformed.
pub fn small_dag(times: &Path, edges: &Path) -> Dag {
    let table = |path: &Path| -> Vec<Vec<u64>> {
        let text = read(path);
        let numbers = |l: &str| {
            l.split(',')
                .skip(1)
                .map(|w| w.trim().parse().expect("a number"))
                .collect()
        };
        text.lines()
            .skip(1)
            .filter(|l| !l.is_empty())
            .map(numbers)
            .collect()
    };
    let times = table(times)
        .into_iter()
        .map(|row| row.into_iter().map(Some).collect())
        .collect();
    let mut list = Vec::new();
    for (from, row) in (0u32..).zip(table(edges)) {
        let costs = (0u32..).zip(row).filter(|(_, cost)| *cost > 0);
        list.extend(costs.map(|(to, cost)| TaskEdge { from, to, cost }));
    }
    Dag::new(times, list).expect("a valid graph")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Workload {
    #[serde(rename = "maxSizePerFPGA")]
    max_size: f64,
    #[serde(rename = "maxFPGAs")]
    accelerators: usize,
    #[serde(rename = "maxCPUs")]
    cpus: usize,
    nodes: Vec<WorkloadNode>,
    edges: Vec<WorkloadEdge>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadNode {
    id: u64,
    supported_on_fpga: u8,
    cpu_latency: f64,
    fpga_latency: f64,
    color_class: u32,
    size: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadEdge {
    source_id: u64,
    dest_id: u64,
    cost: f64,
}

/// Picoseconds in a millisecond, the unit of the published costs.
pub const PS_PER_MS: f64 = 1e9;

/// A placement workload: accelerators first, then CPUs. An accelerator pays for each node whose output it needs from
/// elsewhere, and once for each of its own nodes whose output is needed elsewhere; a CPU pays nothing.
///
/// # Panics
/// If the text is no such workload.
pub fn workload(path: &Path) -> PlacementProblem {
    let w: Workload = serde_json::from_str(&read(path)).expect("a workload");
    let devices = w.accelerators + w.cpus;
    let ps = |ms: f64| (ms * PS_PER_MS).round() as u64;
    let index = |id: u64| w.nodes.iter().position(|n| n.id == id).expect("a node") as u32;
    let nodes = w
        .nodes
        .iter()
        .map(|n| {
            let fast = (n.supported_on_fpga == 1).then(|| ps(n.fpga_latency));
            let mut ticks = vec![fast; w.accelerators];
            ticks.resize(devices, Some(ps(n.cpu_latency)));
            PlacementNode {
                ticks,
                bytes: n.size as u64,
                group: Some(n.color_class),
            }
        })
        .collect();
    let mut channels: Vec<PlacementChannel> = Vec::new();
    for edge in &w.edges {
        let (from, to, amount) = (index(edge.source_id), index(edge.dest_id), ps(edge.cost));
        match channels
            .iter_mut()
            .find(|c| c.from == from && c.amount == amount)
        {
            Some(channel) => channel.to.push(to),
            None => {
                channels.push(PlacementChannel {
                    from,
                    to: vec![to],
                    amount,
                    bytes: 0,
                    delayed: false,
                });
            }
        }
    }
    let each = LinkTime {
        latency: 0,
        numerator: 1,
        denominator: 1,
    };
    let time = |d: usize| {
        if d < w.accelerators {
            each
        } else {
            LinkTime::FREE
        }
    };
    let links = (0..devices * devices)
        .map(|pair| {
            Some(PlacementLink {
                send: time(pair / devices),
                receive: time(pair % devices),
            })
        })
        .collect();
    let bytes = |d: usize| {
        if d < w.accelerators {
            w.max_size as u64
        } else {
            1 << 60
        }
    };
    PlacementProblem {
        nodes,
        channels,
        devices: (0..devices)
            .map(|d| PlacementDevice { bytes: bytes(d) })
            .collect(),
        links,
        fanout: Fanout::Once,
        pipelined: false,
        max_latency: None,
        max_stages: None,
        objective: Objective::PERIOD,
    }
}
