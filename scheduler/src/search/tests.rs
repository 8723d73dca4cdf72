//! Published examples, random graphs against plain enumeration, and the hooks.

use super::rng::Rng;
use super::*;

/// Topcuoglu, Hariri & Wu 2002, figure 2: HEFT 80, CPOP 86; the optimum is 73.
fn topcuoglu() -> Dag {
    let times = [
        [14, 16, 9],
        [13, 19, 18],
        [11, 13, 19],
        [13, 8, 17],
        [12, 13, 10],
        [13, 16, 9],
        [7, 15, 11],
        [5, 11, 14],
        [18, 12, 20],
        [21, 7, 16],
    ];
    let edges = [
        (0, 1, 18),
        (0, 2, 12),
        (0, 3, 9),
        (0, 4, 11),
        (0, 5, 14),
        (1, 7, 19),
        (1, 8, 16),
        (2, 6, 23),
        (3, 7, 27),
        (3, 8, 23),
        (4, 8, 13),
        (5, 7, 15),
        (6, 9, 17),
        (7, 9, 11),
        (8, 9, 13),
    ];
    dag(&times, &edges)
}

/// Arabnejad & Barbosa 2014, figure 1: HEFT 133, PEFT 122; the optimum is 113.
fn arabnejad() -> Dag {
    let times = [
        [22, 21, 36],
        [22, 18, 18],
        [32, 27, 43],
        [7, 10, 4],
        [29, 27, 35],
        [26, 17, 24],
        [14, 25, 30],
        [29, 23, 36],
        [15, 21, 8],
        [13, 16, 33],
    ];
    let edges = [
        (0, 1, 17),
        (0, 2, 31),
        (0, 3, 29),
        (0, 4, 13),
        (0, 5, 7),
        (1, 7, 3),
        (1, 8, 30),
        (2, 6, 16),
        (3, 7, 11),
        (3, 8, 7),
        (4, 8, 57),
        (5, 7, 5),
        (6, 9, 9),
        (7, 9, 42),
        (8, 9, 7),
    ];
    dag(&times, &edges)
}

fn dag<const P: usize>(times: &[[u64; P]], edges: &[(u32, u32, u64)]) -> Dag {
    let times = times
        .iter()
        .map(|row| row.iter().copied().map(Some).collect())
        .collect();
    let edges = edges
        .iter()
        .map(|&(from, to, cost)| TaskEdge { from, to, cost })
        .collect();
    Dag::new(times, edges).expect("a valid graph")
}

#[test]
fn list_schedulers_give_the_published_makespans() {
    let cases: [(&str, Schedule, Dag, u64); 4] = [
        ("HEFT", list::heft(&topcuoglu()), topcuoglu(), 80),
        ("CPOP", list::cpop(&topcuoglu()), topcuoglu(), 86),
        ("HEFT", list::heft(&arabnejad()), arabnejad(), 133),
        ("PEFT", list::peft(&arabnejad()), arabnejad(), 122),
    ];
    for (name, schedule, dag, published) in cases {
        assert_eq!(check(&dag, &schedule), Ok(published), "{name}\n{schedule}");
    }
}

#[test]
fn published_optima_are_reached_and_proved() {
    for (dag, optimum) in [(topcuoglu(), 73), (arabnejad(), 113)] {
        let found = unattended(|control| solve(&dag, Level::Balanced, control));
        assert_eq!((found.makespan, found.bound), (optimum, optimum));
        assert!(unattended(|c| solve(&dag, Level::Fast, c)).makespan <= found.listed);
    }
}

/// Least makespan by trying every order of appending to every processor.
fn enumerate(dag: &Dag) -> u64 {
    fn go(dag: &Dag, placed: u32, at: &mut Vec<(usize, u64)>, free: &mut Vec<u64>) -> u64 {
        if placed.count_ones() as usize == dag.tasks() {
            return at.iter().map(|a| a.1).max().unwrap_or(0);
        }
        let mut best = u64::MAX;
        for task in 0..dag.tasks() {
            let before = || {
                dag.edges()
                    .iter()
                    .enumerate()
                    .filter(|(_, e)| e.to as usize == task)
            };
            if placed >> task & 1 == 1 || !before().all(|(_, e)| placed >> e.from & 1 == 1) {
                continue;
            }
            for p in 0..dag.processors() {
                let Some(time) = dag.time(task, p) else {
                    continue;
                };
                let arrival = |(index, e): (usize, &TaskEdge)| {
                    let (from, end) = at[e.from as usize];
                    end + dag.transfer(index, from, p)
                };
                let ready = before().map(arrival).max().unwrap_or(0);
                let was = (at[task], free[p]);
                let end = ready.max(free[p]) + time;
                (at[task], free[p]) = ((p, end), end);
                best = best.min(go(dag, placed | 1 << task, at, free));
                (at[task], free[p]) = was;
            }
        }
        best
    }
    go(
        dag,
        0,
        &mut vec![(0, 0); dag.tasks()],
        &mut vec![0; dag.processors()],
    )
}

fn random(rng: &mut Rng, tasks: usize, processors: usize, alike: bool) -> Dag {
    let times = (0..tasks).map(|_| {
        let same = 1 + rng.below(9) as u64;
        let mut row: Vec<Option<u64>> = (0..processors)
            .map(|_| {
                if alike {
                    Some(same)
                } else {
                    Some(1 + rng.below(9) as u64)
                }
            })
            .collect();
        if !alike && rng.below(4) == 0 {
            row[rng.below(processors)] = None;
        }
        row
    });
    let times = times.collect();
    let mut edges = Vec::new();
    for to in 1..tasks as u32 {
        for from in 0..to {
            if rng.below(3) == 0 {
                let cost = if alike { 0 } else { rng.below(12) as u64 };
                edges.push(TaskEdge { from, to, cost });
            }
        }
    }
    Dag::new(times, edges).expect("a valid graph")
}

#[test]
fn small_graphs_are_solved_to_the_enumerated_optimum() {
    let mut rng = Rng::new(7);
    for case in 0..60 {
        let alike = case % 2 == 0;
        let dag = random(&mut rng, 6, if alike { 2 + case / 2 % 2 } else { 2 }, alike);
        let optimum = enumerate(&dag);
        let found = unattended(|control| solve(&dag, Level::Balanced, control));
        assert_eq!(
            (found.makespan, found.bound),
            (optimum, optimum),
            "case {case}"
        );
        let fast = unattended(|control| solve(&dag, Level::Fast, control));
        assert!(
            fast.bound <= optimum && optimum <= fast.makespan,
            "case {case}"
        );
    }
}

#[test]
fn the_exact_search_agrees_with_enumeration_on_every_target() {
    // Without local search before it, so that each answer is the branch and bound's own.
    let mut rng = Rng::new(11);
    for case in 0..60 {
        let machines = 2 + case % 2;
        let dag = random(&mut rng, 7, machines, true);
        let optimum = enumerate_identical(&dag);
        let problem = IdenticalProblem::of(&dag);
        let mirror = problem.reversed();
        for side in [&problem, &mirror] {
            let mut exact = ExactSearch::new(side, &|| false).expect("few tasks");
            for end in optimum - 1..=optimum + 2 {
                match exact.ends_by(end, u64::MAX / 2) {
                    EndAnswer::Yes(start) => {
                        assert!(end >= optimum && side.makespan(&start) <= end)
                    }
                    EndAnswer::No => assert!(end < optimum, "case {case}: {end} of {optimum}"),
                    EndAnswer::Unknown => panic!("no limit was set"),
                }
            }
        }
    }
}

/// As `enumerate`, on interchangeable machines: each task goes to the one that is free first or last before it.
fn enumerate_identical(dag: &Dag) -> u64 {
    fn go(dag: &Dag, placed: u32, end: &mut Vec<u64>, free: &[u64]) -> u64 {
        if placed.count_ones() as usize == dag.tasks() {
            return end.iter().copied().max().unwrap_or(0);
        }
        let mut best = u64::MAX;
        for task in 0..dag.tasks() {
            let before = || dag.edges().iter().filter(|e| e.to as usize == task);
            if placed >> task & 1 == 1 || !before().all(|e| placed >> e.from & 1 == 1) {
                continue;
            }
            let ready = before().map(|e| end[e.from as usize]).max().unwrap_or(0);
            for p in 0..free.len() {
                let mut free = free.to_vec();
                end[task] = ready.max(free[p]) + dag.time(task, 0).unwrap_or(0);
                free[p] = end[task];
                best = best.min(go(dag, placed | 1 << task, end, &free));
            }
        }
        best
    }
    go(
        dag,
        0,
        &mut vec![0; dag.tasks()],
        &vec![0; dag.processors()],
    )
}

#[test]
fn same_input_same_result() {
    let mut rng = Rng::new(3);
    for alike in [true, false] {
        let dag = random(&mut rng, 30, 3, alike);
        let run = || unattended(|control| solve(&dag, Level::Fast, control));
        assert_eq!(run(), run());
    }
}

#[test]
fn a_stopped_search_still_returns_a_schedule_and_a_bound() {
    let mut rng = Rng::new(5);
    for alike in [true, false] {
        let dag = random(&mut rng, 40, 3, alike);
        let mut seen = Vec::new();
        let mut control = Control {
            stop: &|| true,
            progress: &mut |p| seen.push(p),
        };
        let found = solve(&dag, Level::Exact, &mut control);
        assert_eq!(check(&dag, &found.schedule), Ok(found.makespan));
        assert!(found.makespan <= found.listed && found.bound <= found.makespan);
        assert_eq!(seen.first().map(|p| p.stage), Some("list scheduling"));
    }
}

#[test]
fn nothing_and_zero_times_are_fine() {
    let cases = [
        (Dag::new(vec![], vec![]).expect("valid"), 0),
        (dag(&[[0, 0], [0, 0]], &[(0, 1, 0)]), 0),
        (
            dag(&[[4, 4], [0, 0], [4, 4], [4, 4]], &[(0, 1, 0), (1, 2, 0)]),
            8,
        ),
        (dag(&[[0, 3], [2, 5], [0, 0]], &[(0, 1, 9), (1, 2, 1)]), 2),
    ];
    for (dag, makespan) in cases {
        let found = unattended(|control| solve(&dag, Level::Exact, control));
        assert_eq!((found.makespan, found.bound), (makespan, makespan));
    }
}

#[test]
fn hundreds_of_tasks_are_scheduled() {
    let mut rng = Rng::new(9);
    for alike in [true, false] {
        let dag = random(&mut rng, 250, 4, alike);
        let found = unattended(|control| solve(&dag, Level::Fast, control));
        assert!(found.makespan <= found.listed);
    }
}
