//! Recordings that are made record by record.

use std::fs;

use zbmd_ir::ChangePosition;

use super::stretch::MAX_REPLAYED_CHANGES;
use super::*;
use crate::flight::folder::segment_name;
use crate::flight::head::{RecordedMode, RecordedSource};
use crate::flight::record::{
    self, Kind, Mark, NumberedChange, NumberedMode, RecordHeader, SegmentStart, StatePlace,
    TokensHead,
};

const RUN_ID: u64 = 7;

/// A recording of one source of bytes, with these records in its segments.
fn recording(segments: &[Vec<Vec<u8>>]) -> Recording {
    let folder = tempfile::tempdir().expect("a folder");
    let head = Head {
        run_id: RUN_ID,
        bundle_hash: 0,
        modes: [("", 10), ("double", 20)]
            .map(|(name, tokens)| RecordedMode {
                name: name.to_owned(),
                graph_fingerprint: 0,
                tokens_per_iteration: vec![tokens],
            })
            .into(),
        sources: vec![RecordedSource {
            name: "in".to_owned(),
            token: "u8".to_owned(),
            token_bytes: 1,
            rate: None,
        }],
    };
    fs::write(folder.path().join(HEAD_FILE), head.encode()).expect("written");
    for (number, records) in segments.iter().enumerate() {
        let path = folder.path().join(segment_name(number as u64));
        fs::write(path, records.concat()).expect("written");
    }
    Recording::open(folder.path()).expect("a recording")
}

fn sealed(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let header = RecordHeader::of(kind, &[payload]).expect("short");
    [&header.encode()[..], payload].concat()
}

fn start(segment: u64, tokens: u64, changes: u64) -> Vec<u8> {
    let start = SegmentStart {
        run_id: RUN_ID,
        segment,
        tokens: vec![tokens],
        changes,
    };
    sealed(Kind::Start, &record::encode(&start))
}

fn state(iterations: u64, changes_made: u64) -> Vec<u8> {
    let place = StatePlace {
        changes_made,
        mode: 0,
        iterations,
        consumed: vec![10 * iterations],
    };
    sealed(Kind::State, &record::encode_part(&place))
}

fn tokens(first: u64, count: usize) -> Vec<u8> {
    let head = TokensHead { source: 0, first };
    sealed(
        Kind::Tokens,
        &[&head.encode()[..], &vec![0; count]].concat(),
    )
}

fn change(number: u64, iteration: u64) -> Vec<u8> {
    let change = NumberedChange {
        number,
        change: ParameterChange {
            position: ChangePosition::Iteration(iteration),
            values: Vec::new(),
        },
    };
    sealed(Kind::Change, &record::encode(&change))
}

fn mode(number: u64, iteration: u64, mode: u32) -> Vec<u8> {
    let change = NumberedMode {
        number,
        iteration,
        mode,
    };
    sealed(Kind::Mode, &record::encode(&change))
}

fn mark(decided_iterations: u64) -> Vec<u8> {
    let mark = Mark {
        decided_iterations,
        unix_ns: 0,
    };
    sealed(Kind::Mark, &record::encode(&mark))
}

#[track_caller]
fn check(recording: &Recording, expect: &[(u64, u64)]) {
    assert_eq!(recording.notes, Vec::<String>::new());
    let stretches = recording.stretches();
    let found: Vec<(u64, u64)> = stretches.iter().map(|s| (s.begin, s.end)).collect();
    assert_eq!(found, expect);
}

#[test]
fn a_stretch_goes_to_where_tokens_or_decisions_end() {
    let all = [start(0, 0, 0), state(0, 0), tokens(0, 100)];
    check(&recording(&[all.to_vec()]), &[(0, 0)]);
    for (decided, end) in [(4, 4), (11, 10)] {
        let with_mark = [&all[..], &[mark(decided)]].concat();
        check(&recording(&[with_mark]), &[(0, end)]);
    }
    let with_hole = [&all[..], &[tokens(105, 100), state(11, 0), mark(30)]].concat();
    check(&recording(&[with_hole]), &[(0, 10), (11, 20)]);
}

#[test]
fn a_state_without_changes_that_it_needs_gets_nowhere() {
    // The segment with changes 0 and 1 is gone: the first state does not have the second of them.
    let rest = vec![
        start(0, 50, 2),
        state(5, 1),
        tokens(50, 100),
        state(6, 2),
        mark(30),
    ];
    check(&recording(&[rest]), &[(5, 5), (6, 15)]);

    // The same in the middle, as where the end of a segment is damaged.
    let before = vec![
        start(0, 0, 0),
        state(0, 0),
        tokens(0, 50),
        change(0, 3),
        mark(4),
    ];
    let after = vec![
        start(1, 50, 3),
        state(5, 2),
        state(6, 3),
        tokens(50, 100),
        mark(30),
    ];
    check(&recording(&[before, after]), &[(0, 4), (5, 5), (6, 15)]);
}

#[test]
fn iterations_take_the_tokens_of_their_mode() {
    let records = vec![
        start(0, 0, 0),
        state(0, 0),
        change(0, 1),
        mode(1, 2, 1),
        change(2, 3),
        mode(3, 4, 0),
        mode(4, 4, 1),
        tokens(0, 99),
        mark(30),
    ];
    // Two of 10, then all of 20: 79 tokens are 3 of them.
    let recording = recording(&[records]);
    check(&recording, &[(0, 5)]);
    assert_eq!(recording.mode_changes().count(), 3);
    assert_eq!(recording.changes().count(), 2);
    let history = recording.mode_history();
    for (number, expect) in [(0, 0), (2, 1), (5, 1)] {
        assert_eq!(history.mode_of_change(number), expect, "change {number}");
    }
    for (iteration, tokens) in [(0, 0), (2, 20), (3, 40), (4, 60), (5, 80)] {
        assert_eq!(history.tokens_before(iteration, 0), tokens);
    }
}

#[test]
fn a_change_of_mode_that_is_missing_ends_a_stretch() {
    let before = vec![start(0, 0, 0), state(0, 0), tokens(0, 50), mark(4)];
    let after = vec![start(1, 50, 1), tokens(50, 100), mode(1, 9, 1), mark(30)];
    check(&recording(&[before, after]), &[(0, 4)]);
    for impossible in [mode(1, 1, 1), mode(1, 5, 2)] {
        let records = vec![start(0, 0, 0), state(0, 0), mode(0, 3, 1), impossible];
        let notes = recording(&[records]).notes;
        assert!(
            notes[0].contains("a change of mode that no run makes"),
            "{notes:?}"
        );
    }
}

#[test]
fn a_stretch_has_no_more_changes_than_a_state_takes() {
    let mut records = vec![start(0, 0, 0), state(0, 0), tokens(0, 1000)];
    let count = 2 * MAX_REPLAYED_CHANGES + 5;
    for number in 0..count {
        if number % 1000 == 0 {
            records.push(mark(number / 1000));
        }
        records.push(change(number, 1 + number / 1000));
        if number == MAX_REPLAYED_CHANGES / 2 {
            records.push(state(number / 1000, number + 1));
        }
    }
    let left_out = |first: u64| (first + MAX_REPLAYED_CHANGES) / 1000;
    let middle = MAX_REPLAYED_CHANGES / 2;
    check(
        &recording(&[records]),
        &[(0, left_out(0)), (middle / 1000, left_out(middle + 1))],
    );
}

#[test]
fn ranges_are_told_up_to_a_number() {
    let mut records = vec![start(0, 0, 0)];
    for place in 0..20 {
        records.push(state(3 * place, 0));
        records.push(tokens(30 * place, 10));
    }
    records.push(mark(1000));
    let recording = recording(&[records]);
    let said = recording.stretch(Some(2)).expect_err("a hole");
    assert!(
        said.contains("iterations 0 to 1, iterations 3 to 4,")
            && said.ends_with("and 12 ranges more"),
        "{said}"
    );
}
