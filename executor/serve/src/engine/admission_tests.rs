//! What is admitted, in which order it is computed, and what becomes of it when a run ends.

use super::*;

const SINGLE: PlannedPace = PlannedPace {
    block: 1,
    stages: 1,
    period_ns: 1_000_000,
};
const NONE: Option<Duration> = None;

fn inputs(number: u8) -> Vec<Vec<u8>> {
    vec![vec![number]]
}

fn request(number: u8) -> Work {
    Work::Request(Arc::new(inputs(number)))
}

#[test]
fn answers_go_to_their_requests_in_order() {
    let admission = Admission::new(4, SINGLE);
    let mut first = admission.submit(inputs(1), NONE, true).expect("room");
    let mut second = admission.submit(inputs(2), NONE, true).expect("room");
    assert_eq!(
        (admission.next_work(), admission.next_work()),
        (request(1), request(2))
    );
    assert_eq!(admission.pending(), 2);
    admission.finish_next(&[vec![10]]);
    admission.finish_next(&[vec![20]]);
    assert_eq!(first.try_recv().expect("answered").tensors, [vec![10]]);
    assert_eq!(second.try_recv().expect("answered").tensors, [vec![20]]);
    assert!(admission.wait_until_idle(Duration::ZERO));
}

#[test]
fn empty_iterations_follow_the_last_request_only() {
    let pipeline = PlannedPace {
        block: 1,
        stages: 3,
        period_ns: 10,
    };
    let admission = Admission::new(4, pipeline);
    let mut first = admission.submit(inputs(1), NONE, true).expect("room");
    assert_eq!(
        (admission.next_work(), admission.next_work()),
        (request(1), Work::Filler)
    );
    let mut second = admission.submit(inputs(2), NONE, true).expect("room");
    let next_three = [(); 3].map(|()| admission.next_work());
    assert_eq!(next_three, [request(2), Work::Filler, Work::Filler]);
    for number in [10, 0, 20, 0, 0] {
        admission.finish_next(&[vec![number]]);
    }
    assert_eq!(first.try_recv().expect("answered").tensors, [vec![10]]);
    assert_eq!(second.try_recv().expect("answered").tensors, [vec![20]]);
}

#[test]
fn what_cannot_be_in_time_is_refused_at_once() {
    let admission = Admission::new(2, SINGLE);
    // A border and its own period.
    let short = Some(Duration::from_micros(1999));
    let refusal = admission
        .submit(inputs(1), short, true)
        .expect_err("2 ms are needed");
    assert_eq!(
        refusal.to_string(),
        "the answer is expected in 2ms, the request's timeout is 1.999ms"
    );
    let enough = Some(Duration::from_millis(2));
    let _first = admission.submit(inputs(1), enough, true).expect("in time");
    assert!(matches!(
        admission.submit(inputs(2), enough, true),
        Err(Refusal::TooLate { .. })
    ));
    let no_plan = admission.submit(inputs(2), Some(Duration::from_secs(9)), false);
    assert_eq!(no_plan.expect_err("no bound"), Refusal::NotRunning);

    let _second = admission.submit(inputs(2), NONE, false).expect("it waits");
    let full = admission
        .submit(inputs(3), NONE, true)
        .expect_err("two wait");
    assert!(matches!(full, Refusal::Full { limit: 2, .. }), "{full}");
}

#[test]
fn what_was_under_way_is_computed_again_in_order() {
    let admission = Admission::new(4, SINGLE);
    let mut answers: Vec<_> = (1..=3)
        .map(|number| admission.submit(inputs(number), NONE, true).expect("room"))
        .collect();
    assert_eq!(
        (admission.next_work(), admission.next_work()),
        (request(1), request(2))
    );
    admission.finish_next(&[vec![10]]);

    admission.interrupt();
    assert_eq!(admission.next_work(), Work::End);
    assert_eq!(admission.begin_run(), 1);
    assert_eq!(
        (admission.next_work(), admission.next_work()),
        (request(2), request(3))
    );
    admission.finish_next(&[vec![20]]);
    admission.finish_next(&[vec![30]]);
    let given = answers
        .iter_mut()
        .map(|answer| answer.try_recv().expect("answered").tensors);
    assert_eq!(
        given.collect::<Vec<_>>(),
        [[vec![10]], [vec![20]], [vec![30]]]
    );
}

#[test]
fn a_drain_ends_when_all_is_answered() {
    let admission = Admission::new(4, SINGLE);
    let mut answer = admission.submit(inputs(1), NONE, true).expect("room");
    admission.drain();
    let refusal = admission
        .submit(inputs(2), NONE, true)
        .expect_err("draining");
    assert_eq!(refusal, Refusal::Draining);
    assert_eq!(admission.next_work(), request(1));
    assert!(!admission.wait_until_idle(Duration::ZERO));
    admission.finish_next(&[vec![10]]);
    assert!(answer.try_recv().is_ok());
    assert_eq!(admission.next_work(), Work::End);
}

#[test]
fn nothing_follows_the_last_answer_of_a_drain() {
    let blocks_of_four = PlannedPace { block: 4, ..SINGLE };
    let admission = Admission::new(4, blocks_of_four);
    let _answer = admission.submit(inputs(1), NONE, true).expect("room");
    assert_eq!(
        (admission.next_work(), admission.next_work()),
        (request(1), Work::Filler)
    );
    admission.drain();
    assert!(!admission.is_drained());
    assert_eq!(admission.next_work(), Work::Filler);
    admission.finish_next(&[vec![10]]);
    assert!(admission.is_drained());
    assert_eq!(admission.next_work(), Work::End);
}

#[test]
fn a_client_that_went_away_costs_nothing() {
    let admission = Admission::new(4, SINGLE);
    drop(admission.submit(inputs(1), NONE, true).expect("room"));
    let _kept = admission.submit(inputs(2), NONE, true).expect("room");
    assert_eq!(admission.next_work(), request(2));
}

#[test]
fn a_failure_is_told_to_all() {
    let admission = Admission::new(4, SINGLE);
    let mut waits = admission.submit(inputs(1), NONE, true).expect("room");
    admission.fail("no device".to_owned());
    assert!(waits.try_recv().is_err());
    let refusal = admission.submit(inputs(2), NONE, true).expect_err("failed");
    assert_eq!(refusal.to_string(), "the model failed: no device");
}
