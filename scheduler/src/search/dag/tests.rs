//! Graphs that are refused, and schedules that are not valid.

use super::*;

fn chain() -> Dag {
    let times = vec![vec![Some(3), Some(5)], vec![Some(4), None]];
    Dag::new(
        times,
        vec![TaskEdge {
            from: 0,
            to: 1,
            cost: 2,
        }],
    )
    .expect("valid")
}

#[test]
fn the_checker_names_each_kind_of_flaw() {
    let dag = chain();
    type Case<'a> = (&'a [u32], &'a [u64], Result<u64, CheckError>);
    let cases: [Case<'_>; 6] = [
        (&[0, 0], &[0, 3], Ok(7)),
        (&[1, 0], &[0, 7], Ok(11)),
        (
            &[1, 0],
            &[0, 6],
            Err(CheckError::Early {
                from: 0,
                to: 1,
                ready: 7,
                start: 6,
            }),
        ),
        (
            &[0, 1],
            &[0, 5],
            Err(CheckError::Processor {
                task: 1,
                processor: 1,
            }),
        ),
        (
            &[0, 7],
            &[0, 5],
            Err(CheckError::Processor {
                task: 1,
                processor: 7,
            }),
        ),
        (
            &[0],
            &[0, 5],
            Err(CheckError::Length { found: 1, tasks: 2 }),
        ),
    ];
    for (processor, start, expected) in cases {
        let schedule = Schedule {
            processor: processor.to_vec(),
            start: start.to_vec(),
        };
        assert_eq!(check(&dag, &schedule), expected, "{schedule}");
    }
    let two = Dag::new(vec![vec![Some(3)], vec![Some(3)]], vec![]).expect("valid");
    let both = Schedule {
        processor: vec![0, 0],
        start: vec![2, 0],
    };
    let overlap = CheckError::Overlap {
        first: 1,
        end: 3,
        second: 0,
        start: 2,
        processor: 0,
    };
    assert_eq!(check(&two, &both), Err(overlap));
}

#[test]
fn bad_graphs_are_refused() {
    let edge = |from, to| TaskEdge { from, to, cost: 1 };
    let one = || vec![vec![Some(1)], vec![Some(1)]];
    type Case = (Vec<Vec<Option<u64>>>, Vec<TaskEdge>, DagError);
    let cases: [Case; 6] = [
        (
            one(),
            vec![edge(0, 1), edge(1, 0)],
            DagError::Cycle { task: 0 },
        ),
        (
            one(),
            vec![edge(0, 2)],
            DagError::Edge {
                from: 0,
                to: 2,
                tasks: 2,
            },
        ),
        (
            vec![vec![Some(1)], vec![None]],
            vec![],
            DagError::Nowhere { task: 1 },
        ),
        (
            vec![vec![Some(1)], vec![]],
            vec![],
            DagError::Times {
                task: 1,
                found: 0,
                expected: 1,
            },
        ),
        (vec![vec![]], vec![], DagError::NoProcessor),
        (vec![vec![Some(1 << 62)]], vec![], DagError::Overflow),
    ];
    for (times, edges, expected) in cases {
        assert_eq!(Dag::new(times, edges).err(), Some(expected));
    }
}

#[test]
fn links_scale_costs_by_pair() {
    let times = vec![vec![Some(1), Some(1)]; 2];
    let slow = LinkTime {
        latency: 5,
        numerator: 3,
        denominator: 2,
    };
    let fast = LinkTime {
        latency: 0,
        numerator: 1,
        denominator: 1,
    };
    let dag = Dag::with_links(
        times,
        vec![TaskEdge {
            from: 0,
            to: 1,
            cost: 7,
        }],
        &[slow, slow, fast, slow],
    )
    .expect("valid");
    let found = [(0, 0), (0, 1), (1, 0)].map(|(a, b)| dag.transfer(0, a, b));
    assert_eq!(found, [0, 16, 7]);
}
