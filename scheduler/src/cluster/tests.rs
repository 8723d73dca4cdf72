//! Orders inside clusters.

use super::*;

fn fire(actor: u32, count: u64) -> ClusterCall {
    ClusterCall::Fire {
        actor: ActorId(actor),
        count,
    }
}

#[test]
fn runs_become_repetitions() {
    let check = |calls: &[(u32, u64)], expect: Vec<ClusterCall>| {
        let calls: Vec<FiringRun> = calls
            .iter()
            .map(|&(actor, count)| FiringRun {
                actor: ActorId(actor),
                count,
            })
            .collect();
        assert_eq!(compress_calls(&calls), expect, "{calls:?}");
    };
    check(&[], vec![]);
    check(&[(0, 2), (1, 1)], vec![fire(0, 2), fire(1, 1)]);
    check(
        &[(0, 1), (1, 1), (0, 1), (1, 1), (0, 1), (1, 1), (2, 5)],
        vec![
            ClusterCall::Repeat {
                count: 3,
                body: vec![fire(0, 1), fire(1, 1)],
            },
            fire(2, 5),
        ],
    );
    // The prologue of a loop stays in front of it.
    check(
        &[(2, 1), (0, 1), (1, 2), (0, 1), (1, 2)],
        vec![
            fire(2, 1),
            ClusterCall::Repeat {
                count: 2,
                body: vec![fire(0, 1), fire(1, 2)],
            },
        ],
    );
}
