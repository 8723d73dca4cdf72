//! Three hosts cut two to one, in every direction, with sinks on either side, and a conductor that stands still for longer than its
//! lease: the output of all who conduct is that of a run on one host, and nobody gives out anything after its lease. The long row
//! is `cargo bench --bench council_cuts`.

use std::time::Duration;

use zbmd_tests::cut_runs::{CutRuns, Trouble};
use zbmd_tests::harness::Test;
use zbmd_tests::host_net::Cut;

pub(super) const TESTS: &[Test] = &[
    ("cuts_in_every_direction", cuts_in_every_direction),
    ("a_conductor_that_stood_still", a_conductor_that_stood_still),
];
/// Long enough for a crowded computer.
const LEASE: Duration = Duration::from_millis(160);
/// Six leases were the longest that a conductor was followed after in a long row of cuts; here each must be.
const FOLLOWED_WITHIN: Duration = LEASE.saturating_mul(9);
const LASTING: Duration = Duration::from_secs(60);

fn cuts_in_every_direction() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut runs) = CutRuns::start(folder.path(), LEASE, LASTING) else {
        return;
    };
    let (mut conductors, mut replaced) = (0, 0);
    for cut in Cut::ALL {
        // Whoever conducts, and whoever stands by: the sink is on the side of one, and on that of two.
        for is_conductor in [true, false] {
            let conductor = runs.conductor_host();
            let host = match is_conductor {
                true => conductor,
                false => 1 - conductor,
            };
            let aftermath = runs.suffer(Trouble::CutOff {
                host,
                cut,
                lasting: FOLLOWED_WITHIN,
            });
            conductors += u32::from(aftermath.was_conductor);
            replaced += u32::from(aftermath.is_replaced);
        }
    }
    assert!(conductors >= 3, "{conductors} of 6 have conducted");
    assert!(replaced >= 3, "{replaced} have been followed");
    runs.end();
}

fn a_conductor_that_stood_still() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut runs) = CutRuns::start(folder.path(), LEASE, LASTING) else {
        return;
    };
    let lasting = Duration::from_secs(2);
    let aftermath = runs.suffer(Trouble::Stop { lasting });
    assert!(aftermath.is_replaced);
    runs.end();
}
