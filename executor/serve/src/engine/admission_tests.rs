//! What is admitted, in which order it is computed, and what becomes of it when a run ends.

use super::*;
use crate::engine::pace::PlannedPace;
use crate::engine::sequences::SequenceLimits;

const SINGLE: PlannedPace = PlannedPace {
    rows: 1,
    block: 1,
    stages: 1,
    period_ns: 1_000_000,
};
const NONE: Option<Duration> = None;

const LIMITS: SequenceLimits = SequenceLimits {
    count: 4,
    idle: Duration::from_secs(60),
};

fn inputs(number: u8) -> Vec<Vec<u8>> {
    vec![vec![number]]
}

/// A queue whose model keeps one byte for each sequence, 0 at first.
fn queue(limit: usize, planned: PlannedPace) -> Admission {
    queue_of(limit, Batches::none(planned))
}

fn queue_of(limit: usize, batches: Batches) -> Admission {
    let sequences = Sequences::new(LIMITS, Arc::new(inputs(0)));
    Admission::new(limit, Arc::new(batches), sequences)
}

fn submission(number: u8, timeout: Option<Duration>) -> Submission {
    Submission {
        rows: vec![inputs(number)],
        timeout,
        step: None,
    }
}

/// A request of a sequence.
fn step(number: u8, sequence: u64, is_start: bool) -> Submission {
    Submission {
        rows: vec![inputs(number)],
        timeout: None,
        step: Some(SequenceStep {
            id: SequenceId::Number(sequence),
            is_start,
            is_end: false,
        }),
    }
}

impl Admission {
    /// Admits a request of one iteration.
    fn submit_one(
        &self,
        submission: Submission,
        is_running: bool,
    ) -> Result<oneshot::Receiver<Computed>, Refusal> {
        let answers = self.submit(submission, is_running);
        answers.map(|mut answers| answers.remove(0))
    }
}

fn request(number: u8) -> Work {
    request_with(number, 0)
}

fn request_with(number: u8, state: u8) -> Work {
    Work::Request(Arc::new(inputs(number)), Arc::new(inputs(state)))
}

#[test]
fn answers_go_to_their_requests_in_order() {
    let admission = queue(4, SINGLE);
    let mut first = admission
        .submit_one(submission(1, NONE), true)
        .expect("room");
    let mut second = admission
        .submit_one(submission(2, NONE), true)
        .expect("room");
    assert_eq!(
        (admission.next_work(), admission.next_work()),
        (request(1), request(2))
    );
    assert_eq!(admission.pending(), 2);
    admission.finish_next(&[vec![10]], &[]);
    admission.finish_next(&[vec![20]], &[]);
    assert_eq!(first.try_recv().expect("answered").tensors, [vec![10]]);
    assert_eq!(second.try_recv().expect("answered").tensors, [vec![20]]);
    assert!(admission.wait_until_idle(Duration::ZERO));
}

#[test]
fn a_batch_is_admitted_whole_or_not_at_all() {
    let admission = queue(4, SINGLE);
    let batch = |first: u8, timeout| Submission {
        rows: (first..first + 3).map(inputs).collect(),
        timeout,
        step: None,
    };
    // The last of three is answered after four periods of a millisecond.
    let short = Some(Duration::from_micros(3900));
    let refused = admission.submit(batch(1, short), true).expect_err("late");
    assert!(matches!(refused, Refusal::TooLate { .. }), "{refused}");
    let enough = Some(Duration::from_millis(4));
    let answers = admission.submit(batch(1, enough), true).expect("room");
    let full = admission.submit(batch(4, NONE), true).expect_err("full");
    assert!(matches!(full, Refusal::Full { limit: 4, .. }), "{full}");
    let mut single = admission
        .submit_one(submission(4, NONE), true)
        .expect("room");

    for number in 1..=4 {
        assert_eq!(admission.next_work(), request(number));
        admission.finish_next(&[vec![number * 10], vec![number]], &[]);
    }
    let rows = answers
        .into_iter()
        .map(|mut row| row.try_recv().expect("answered"));
    let joined = Computed::joined(rows.collect());
    assert_eq!(joined.tensors, [vec![10, 20, 30], vec![1, 2, 3]]);
    assert_eq!(
        single.try_recv().expect("answered").tensors,
        [vec![40], vec![4]]
    );
}

#[test]
fn empty_iterations_follow_the_last_request_only() {
    let pipeline = PlannedPace {
        rows: 1,
        block: 1,
        stages: 3,
        period_ns: 10,
    };
    let admission = queue(4, pipeline);
    let mut first = admission
        .submit_one(submission(1, NONE), true)
        .expect("room");
    assert_eq!(
        (admission.next_work(), admission.next_work()),
        (request(1), Work::Filler)
    );
    let mut second = admission
        .submit_one(submission(2, NONE), true)
        .expect("room");
    let next_three = [(); 3].map(|()| admission.next_work());
    assert_eq!(next_three, [request(2), Work::Filler, Work::Filler]);
    for number in [10, 0, 20, 0, 0] {
        admission.finish_next(&[vec![number]], &[]);
    }
    assert_eq!(first.try_recv().expect("answered").tensors, [vec![10]]);
    assert_eq!(second.try_recv().expect("answered").tensors, [vec![20]]);
}

#[test]
fn what_cannot_be_in_time_is_refused_at_once() {
    let admission = queue(2, SINGLE);
    // A border and its own period.
    let short = Some(Duration::from_micros(1999));
    let refusal = admission
        .submit_one(submission(1, short), true)
        .expect_err("2 ms are needed");
    assert_eq!(
        refusal.to_string(),
        "the answer is expected in 2ms, the request's timeout is 1.999ms"
    );
    let enough = Some(Duration::from_millis(2));
    let _first = admission
        .submit_one(submission(1, enough), true)
        .expect("in time");
    assert!(matches!(
        admission.submit_one(submission(2, enough), true),
        Err(Refusal::TooLate { .. })
    ));
    let no_plan = admission.submit_one(submission(2, Some(Duration::from_secs(9))), false);
    assert_eq!(no_plan.expect_err("no bound"), Refusal::NotRunning);

    let _second = admission
        .submit_one(submission(2, NONE), false)
        .expect("it waits");
    let full = admission
        .submit_one(submission(3, NONE), true)
        .expect_err("two wait");
    assert!(matches!(full, Refusal::Full { limit: 2, .. }), "{full}");
}

#[test]
fn a_request_whose_tensors_are_on_their_way_keeps_its_place_from_others_that_are_announced() {
    let admission = queue(2, SINGLE);
    let _waiting = admission
        .submit_one(submission(1, NONE), true)
        .expect("room");
    // Its tensors come after those of the request before it: two periods and a border.
    let short = Some(Duration::from_millis(2));
    let too_late = admission.announce(short, true).expect_err("3 ms");
    assert!(matches!(too_late, Refusal::TooLate { .. }), "{too_late}");
    let since = admission.announce(NONE, true).expect("room");

    // Whoever comes now would find the queue full.
    let full = admission.announce(NONE, true).expect_err("two wait");
    assert!(matches!(full, Refusal::Full { limit: 2, .. }), "{full}");
    admission.give_back(since);
    let _second = admission
        .submit_one(submission(2, NONE), true)
        .expect("its place");

    // A place that is given back and not taken is another's.
    assert_eq!(admission.next_work(), request(1));
    let gone = admission.announce(NONE, true).expect("room");
    admission.announce(NONE, true).expect_err("full");
    admission.give_back(gone);
    admission.announce(NONE, true).expect("room");
}

#[test]
fn what_was_under_way_is_computed_again_in_order() {
    let admission = queue(4, SINGLE);
    let mut answers: Vec<_> = (1..=3)
        .map(|number| {
            admission
                .submit_one(submission(number, NONE), true)
                .expect("room")
        })
        .collect();
    assert_eq!(
        (admission.next_work(), admission.next_work()),
        (request(1), request(2))
    );
    admission.finish_next(&[vec![10]], &[]);

    admission.interrupt();
    assert_eq!(admission.next_work(), Work::End);
    assert_eq!(admission.begin_run(), 1);
    assert_eq!(
        (admission.next_work(), admission.next_work()),
        (request(2), request(3))
    );
    admission.finish_next(&[vec![20]], &[]);
    admission.finish_next(&[vec![30]], &[]);
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
    let admission = queue(4, SINGLE);
    let mut answer = admission
        .submit_one(submission(1, NONE), true)
        .expect("room");
    admission.drain();
    let refusal = admission
        .submit_one(submission(2, NONE), true)
        .expect_err("draining");
    assert_eq!(refusal, Refusal::Draining);
    assert_eq!(admission.next_work(), request(1));
    assert!(!admission.wait_until_idle(Duration::ZERO));
    admission.finish_next(&[vec![10]], &[]);
    assert!(answer.try_recv().is_ok());
    assert_eq!(admission.next_work(), Work::End);
}

#[test]
fn nothing_follows_the_last_answer_of_a_drain() {
    let blocks_of_four = PlannedPace { block: 4, ..SINGLE };
    let admission = queue(4, blocks_of_four);
    let _answer = admission
        .submit_one(submission(1, NONE), true)
        .expect("room");
    assert_eq!(
        (admission.next_work(), admission.next_work()),
        (request(1), Work::Filler)
    );
    admission.drain();
    assert!(!admission.is_drained());
    assert_eq!(admission.next_work(), Work::Filler);
    admission.finish_next(&[vec![10]], &[]);
    assert!(admission.is_drained());
    assert_eq!(admission.next_work(), Work::End);
}

#[test]
fn a_client_that_went_away_costs_nothing() {
    let admission = queue(4, SINGLE);
    drop(
        admission
            .submit_one(submission(1, NONE), true)
            .expect("room"),
    );
    let _kept = admission
        .submit_one(submission(2, NONE), true)
        .expect("room");
    assert_eq!(admission.next_work(), request(2));
}

#[test]
fn a_failure_is_told_to_all() {
    let admission = queue(4, SINGLE);
    let mut waits = admission
        .submit_one(submission(1, NONE), true)
        .expect("room");
    admission.fail("no device".to_owned());
    assert!(waits.try_recv().is_err());
    let refusal = admission
        .submit_one(submission(2, NONE), true)
        .expect_err("failed");
    assert_eq!(refusal.to_string(), "the model failed: no device");
}

#[test]
fn requests_of_a_sequence_wait_for_each_other_and_those_of_others_pass() {
    let admission = queue(8, SINGLE);
    let submit = |submission| admission.submit_one(submission, true).expect("room");
    let answers = [
        submit(step(1, 7, true)),
        submit(step(2, 7, false)),
        submit(step(3, 8, true)),
        submit(step(4, 8, false)),
    ];
    assert_eq!(admission.next_work(), request_with(1, 0));
    assert_eq!(admission.next_work(), request_with(3, 0));
    admission.finish_next(&[vec![10]], &inputs(100));
    assert_eq!(admission.next_work(), request_with(2, 100));

    // What was under way begins with the states that it began with.
    admission.interrupt();
    assert_eq!(admission.begin_run(), 2);
    assert_eq!(admission.next_work(), request_with(3, 0));
    assert_eq!(admission.next_work(), request_with(2, 100));
    for (output, state) in [(30, 103), (20, 102)] {
        admission.finish_next(&[vec![output]], &inputs(state));
    }
    assert_eq!(admission.next_work(), request_with(4, 103));
    admission.finish_next(&[vec![40]], &inputs(104));
    let given = answers.map(|mut answer| answer.try_recv().expect("answered").tensors);
    assert_eq!(given, [[[10]], [[20]], [[30]], [[40]]]);
    assert_eq!(admission.sequences(), 2);
}

#[test]
fn a_step_is_computed_even_if_its_client_has_gone() {
    let admission = queue(8, SINGLE);
    let started = admission.submit_one(step(1, 7, true), true).expect("room");
    drop(started);
    drop(
        admission
            .submit_one(submission(2, NONE), true)
            .expect("room"),
    );
    let _next = admission.submit_one(step(3, 7, false), true).expect("room");
    assert_eq!(admission.next_work(), request_with(1, 0));
    admission.finish_next(&[vec![10]], &inputs(100));
    assert_eq!(admission.next_work(), request_with(3, 100));
}

#[test]
fn a_timeout_counts_the_steps_before_it() {
    let admission = queue(8, SINGLE);
    let _started = admission.submit_one(step(1, 7, true), true).expect("room");
    let in_time = |limit_ms| Submission {
        timeout: Some(Duration::from_millis(limit_ms)),
        ..step(2, 7, false)
    };
    // Two responses of 2 ms each; of another sequence, it would be a border and two periods.
    let refusal = admission
        .submit_one(in_time(3), true)
        .expect_err("too late");
    assert!(matches!(refusal, Refusal::TooLate { .. }), "{refusal}");
    let _second = admission.submit_one(in_time(4), true).expect("in time");
}

/// A queue of a model in batches of 1 and 4, of which four rows take as long as two.
fn queue_of_batches() -> Admission {
    let sizes = [(1, 1_000_000), (4, 2_000_000)].map(|(rows, period_ns)| PlannedPace {
        rows,
        period_ns,
        ..SINGLE
    });
    queue_of(16, Batches::of_paces(sizes))
}

fn submit_all(
    admission: &Admission,
    numbers: std::ops::RangeInclusive<u8>,
) -> Vec<oneshot::Receiver<Computed>> {
    let submitted = numbers.map(|number| {
        let submission = submission(number, NONE);
        admission.submit_one(submission, true).expect("room")
    });
    submitted.collect()
}

#[test]
fn requests_that_wait_are_computed_together() {
    let admission = queue_of_batches();
    let mut alone = submit_all(&admission, 1..=1);
    assert_eq!(admission.next_work(), request(1));
    let mut together = submit_all(&admission, 2..=6);

    // Nothing more is begun one by one, and the mode changes once all that was begun is answered.
    std::thread::scope(|scope| {
        let next = scope.spawn(|| admission.next_work());
        admission.finish_next(&[vec![10]], &[]);
        assert_eq!(next.join().expect("no panic"), Work::Mode(1));
    });
    assert_eq!(
        alone.remove(0).try_recv().expect("answered").tensors,
        [[10]]
    );
    admission.mode_changed(1, 1);

    // Five rows in two batches of four, of which the second has three empty ones once the first is computed.
    for number in 2..=6 {
        assert_eq!(admission.next_work(), request(number));
    }
    std::thread::scope(|scope| {
        let next = scope.spawn(|| admission.next_work());
        for number in 2..=5 {
            admission.finish_next(&[vec![number * 10]], &[]);
        }
        assert_eq!(next.join().expect("no panic"), Work::Filler);
    });
    for _ in 0..2 {
        assert_eq!(admission.next_work(), Work::Filler);
    }
    for number in 6..=9 {
        admission.finish_next(&[vec![number * 10]], &[]);
    }
    for (number, answer) in (2..).zip(&mut together) {
        assert_eq!(
            answer.try_recv().expect("answered").tensors,
            [[number * 10]]
        );
    }
    assert_eq!(admission.executions().collect::<Vec<_>>(), [1, 2]);

    let _last = submit_all(&admission, 7..=7);
    assert_eq!(admission.next_work(), Work::Mode(0));
    admission.mode_changed(0, 3);
    assert_eq!(admission.next_work(), request(7));
}

#[test]
fn a_batch_that_has_begun_takes_what_comes_meanwhile() {
    let admission = queue_of_batches();
    admission.use_only(Some(1));
    let _first = submit_all(&admission, 1..=1);
    assert_eq!(admission.next_work(), Work::Mode(1));
    admission.mode_changed(1, 0);
    assert_eq!(admission.next_work(), request(1));
    assert_eq!(admission.next_work(), Work::Filler);

    let _second = submit_all(&admission, 2..=2);
    assert_eq!(admission.next_work(), request(2));
    assert_eq!(admission.next_work(), Work::Filler);
    assert_eq!(admission.executions().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn what_an_old_mode_has_not_taken_begins_an_iteration_of_the_new_one() {
    let pipeline = |rows| PlannedPace {
        rows,
        stages: 2,
        ..SINGLE
    };
    let admission = queue_of(16, Batches::of_paces([1, 4].map(pipeline)));
    let _first = submit_all(&admission, 1..=1);
    assert_eq!(admission.next_work(), request(1));
    assert_eq!(admission.next_work(), Work::Filler);
    admission.finish_next(&[vec![10]], &[]);

    // The empty request is the first of the four that an iteration takes now.
    admission.use_only(Some(1));
    let _second = submit_all(&admission, 2..=2);
    assert_eq!(admission.next_work(), Work::Mode(1));
    admission.mode_changed(1, 1);
    assert_eq!(admission.next_work(), request(2));
    // Two that complete it, and four that move it on.
    for _ in 0..6 {
        assert_eq!(admission.next_work(), Work::Filler);
    }
    let _third = submit_all(&admission, 3..=3);
    assert_eq!(admission.next_work(), request(3));
}

#[test]
fn no_more_is_begun_than_one_batch_behind_another() {
    let admission = queue_of(16, Batches::of_paces([PlannedPace { rows: 2, ..SINGLE }]));
    let _waiting = submit_all(&admission, 1..=6);
    for number in 1..=4 {
        assert_eq!(admission.next_work(), request(number));
    }
    // What waits still is for the batch that follows, whatever its size.
    std::thread::scope(|scope| {
        let next = scope.spawn(|| admission.next_work());
        (0..2).for_each(|_| admission.finish_next(&[vec![0]], &[]));
        assert_eq!(next.join().expect("no panic"), request(5));
    });
}

#[test]
fn a_mode_stays_until_all_that_waited_for_it_is_computed() {
    let admission = queue_of_batches();
    let _first = submit_all(&admission, 1..=4);
    assert_eq!(admission.next_work(), Work::Mode(1));
    let _second = submit_all(&admission, 5..=5);
    admission.mode_changed(1, 0);
    for number in 1..=4 {
        assert_eq!(admission.next_work(), request(number));
        admission.finish_next(&[vec![0]], &[]);
    }
    // One that waits alone would be better off in the other mode, which the run has only just left.
    assert_eq!(admission.next_work(), request(5));
    (0..3).for_each(|_| assert_eq!(admission.next_work(), Work::Filler));

    (0..4).for_each(|_| admission.finish_next(&[vec![0]], &[]));
    let _third = submit_all(&admission, 6..=6);
    assert_eq!(admission.next_work(), Work::Mode(0));
}

#[test]
fn a_mode_that_cannot_be_had_is_not_asked_for_again_at_once() {
    let admission = queue_of_batches();
    let _waiting = submit_all(&admission, 1..=4);
    assert_eq!(admission.next_work(), Work::Mode(1));
    admission.mode_refused(1);
    for number in 1..=4 {
        assert_eq!(admission.next_work(), request(number));
        admission.finish_next(&[vec![0]], &[]);
    }
}

#[test]
fn a_run_that_is_begun_anew_is_in_the_first_mode() {
    let admission = queue_of_batches();
    let _waiting = submit_all(&admission, 1..=4);
    assert_eq!(admission.next_work(), Work::Mode(1));
    admission.mode_changed(1, 0);
    assert_eq!(admission.next_work(), request(1));

    admission.interrupt();
    assert_eq!(admission.begin_run(), 1);
    assert_eq!(admission.next_work(), Work::Mode(1));
    admission.mode_changed(1, 0);
    assert_eq!(admission.next_work(), request(1));
}
