//! A queue that hangs.

use super::commands::Timeline;
use super::error::Fault;
use super::testing::{open, turn};

#[test]
fn a_queue_that_does_not_end_is_told_from_a_slow_one() {
    let _turn = turn();
    let Some(device) = open() else { return };
    let timeline = Timeline::new(&device).expect("a semaphore");
    let fault = timeline
        .wait(7, 1_000_000)
        .expect_err("it is never signalled");
    assert_eq!(
        fault,
        Fault::Hung {
            value: 7,
            reached: 0,
            waited_ms: 1
        }
    );
    assert!(!device.is_alive());
    std::mem::forget(device.instance().clone());
}
