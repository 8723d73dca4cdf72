//! Runs that never were, beside their plans: what every format makes of them.

use std::collections::BTreeMap;

use zbmd_ir::testing::programs;
use zbmd_ir::trace::{
    Begin, Chunk, Clocks, EpochBegin, EpochEnd, OTHER, PERIOD, Trace, TraceEvent,
};
use zbmd_ir::trace::{fingerprint, head, word};
use zbmd_ir::verify::{Verified, verify};
use zbmd_ir::{DeviceId, PlanId, Program};

use super::expand::Expansion;
use super::tests::{pin, slices};
use super::*;

/// When the run of a test began.
const BEGAN_NS: u64 = 1_000_000;
/// Planned periods from one period of such a run to the next.
const PACE: u64 = 10;

/// A run of plan 0 for so many blocks, on a clock of two ticks to a nanosecond. Everything takes as long as planned but
/// what `takes` says takes longer; all devices begin each period together, long after the one before.
fn ran(program: &Program, blocks: u64, takes: impl Fn(usize, u32) -> u64) -> Vec<u8> {
    let plan = &program.plans[PlanId(0)];
    let begin = Begin {
        model: program.graph.name.clone(),
        devices: program
            .machine
            .devices
            .iter()
            .map(|d| d.name.clone())
            .collect(),
        fingerprint: fingerprint(program),
    };
    let devices: Vec<DeviceId> = plan.calendars.iter().map(|c| c.device).collect();
    let (fingerprint, plan_id) = (begin.fingerprint, PlanId(0));
    let epoch = EpochBegin {
        epoch: 0,
        fingerprint,
        plan: plan_id,
        devices,
        at_ns: BEGAN_NS,
    };
    let mut chunks = vec![
        Chunk::Begin(begin),
        Chunk::Clocks(Clocks { ticks: 0, ns: 0 }),
        Chunk::Epoch(epoch),
    ];
    let mut last = 0;
    for (c, calendar) in plan.calendars.iter().enumerate() {
        let (slots, numbers) = Expansion::all(&calendar.lanes);
        let mut words = Vec::new();
        for period in 0..blocks + u64::from(plan.stages) - 1 {
            let mut now_ns = BEGAN_NS + period * PACE * plan.period_ns;
            words.extend([word(PERIOD, period), 2 * now_ns]);
            for (slot, number) in slots.iter().zip(&numbers) {
                let stage = u64::from(slot.stage);
                if stage > period || period - stage >= blocks {
                    continue;
                }
                let length = slot.duration_ns + takes(c, *number);
                words.push(word(*number, 2 * length));
                now_ns += length;
            }
            words.push(word(OTHER, 2));
            last = last.max(now_ns + 1);
        }
        chunks.push(Chunk::Words {
            epoch: 0,
            calendar: c as u32,
            words,
        });
    }
    let line = "{\"event\":\"opened\"}".to_owned();
    chunks.push(Chunk::Event(TraceEvent {
        at_ns: BEGAN_NS + 5,
        name: "opened".into(),
        line,
    }));
    let dropped = vec![0; plan.calendars.len()];
    chunks.push(Chunk::EpochEnd(EpochEnd {
        epoch: 0,
        at_ns: last,
        dropped,
    }));
    chunks.extend([
        Chunk::Clocks(Clocks {
            ticks: 2 * last,
            ns: last,
        }),
        Chunk::End,
    ]);
    let mut bytes = head().to_vec();
    chunks.iter().for_each(|chunk| bytes.extend(chunk.bytes()));
    bytes
}

fn read(program: &Program, bytes: &[u8]) -> Trace {
    let (trace, others) = Trace::of_program(bytes, program).expect("a trace of this program");
    assert_eq!(others, 0);
    trace
}

fn verified(program: Program) -> Verified<Program> {
    verify(program).expect("hand-built programs are valid")
}

fn measured(program: &Verified<Program>, trace: &Trace) -> View {
    let mut view = View::of(program, &BTreeMap::new());
    view.measure(program, trace, 0);
    view
}

fn samples() -> [Verified<Program>; 4] {
    let all = [
        programs::round_trip(),
        programs::spare(),
        programs::two_devices(),
        programs::long(64),
    ];
    all.map(verified)
}

#[test]
fn what_took_as_long_as_planned_is_drawn_as_planned() {
    for program in samples() {
        let trace = read(&program, &ran(&program, 20, |_, _| 0));
        let view = measured(&program, &trace);
        let plan = &view.plans[0];
        let run = plan.measured.as_ref().expect("it was run");
        assert!(run.periods > 0 && run.period_ns == PACE * plan.period_ns);
        for lane in &run.lanes {
            let slots = &plan.lanes[lane.lane as usize].slots;
            assert_eq!(lane.slots.len(), slots.len());
            let mut now_ns = 0;
            for (m, slot) in lane.slots.iter().zip(slots) {
                assert_eq!(
                    m.duration_ns,
                    slot.duration_ns,
                    "{}",
                    view.label(plan, slot)
                );
                assert_eq!(m.start_ns, now_ns, "slots begin where the ones before end");
                assert!(
                    !m.late && m.late_ns <= 0,
                    "nothing waits here: early at most"
                );
                now_ns += m.duration_ns;
            }
        }
        for actor in &run.actors {
            let planned = &plan.actors[actor.actor as usize];
            assert_eq!(actor.calls, 20 * planned.calls);
            assert_eq!(actor.planned_ns, planned.busy_ns / planned.calls);
        }
    }
}

#[test]
fn who_waits_for_another_device_first_is_not_late() {
    let program = verified(programs::two_devices());
    let period_ns = program.plans[PlanId(0)].period_ns;
    // What the second device receives comes late, and what it does with it takes as long as planned.
    let trace = read(
        &program,
        &ran(
            &program,
            20,
            |c, n| if (c, n) == (1, 0) { period_ns } else { 0 },
        ),
    );
    let view = measured(&program, &trace);
    let plan = &view.plans[0];
    let lanes = &plan.measured.as_ref().expect("it was run").lanes;
    assert_eq!(plan.lanes[lanes[1].lane as usize].slots[0].act, Act::Recv);
    assert!(
        lanes[1].slots[0].duration_ns >= period_ns,
        "{:?}",
        lanes[1].slots
    );
    assert!(
        lanes[1].slots.iter().all(|s| !s.late && s.late_ns <= 0),
        "{:?}",
        lanes[1].slots
    );
}

#[test]
fn what_takes_longer_is_late_and_so_is_what_follows() {
    let program = verified(programs::two_devices());
    let period_ns = program.plans[PlanId(0)].period_ns;
    // The second slot of the first device.
    let trace = read(
        &program,
        &ran(
            &program,
            20,
            |c, n| if (c, n) == (0, 1) { period_ns } else { 0 },
        ),
    );
    let view = measured(&program, &trace);
    let lanes = &view.plans[0].measured.as_ref().expect("it was run").lanes;
    let late: Vec<bool> = lanes[0].slots.iter().map(|s| s.late).collect();
    assert_eq!(late[..2], [false, true]);
    assert!(lanes[0].slots[1].late_ns >= (period_ns / 20) as i64);
    assert!(
        lanes[1].slots.iter().all(|s| !s.late),
        "the other device has its own periods"
    );
    let drawn = svg::plan(&view, &view.plans[0]);
    assert!(
        drawn.contains("#e03131") && drawn.contains(" late</title>"),
        "{drawn}"
    );
    let page = html::page(&view);
    assert!(page.contains("\"late\":true"));
}

#[test]
fn every_format_has_the_run() {
    let program = verified(programs::round_trip());
    let trace = read(&program, &ran(&program, 20, |_, n| u64::from(n) * 3));
    let view = measured(&program, &trace);
    let text = text::plan(&view, &view.plans[0], 80);
    assert_eq!(text.lines().find(|l| l.chars().count() > 80), None);
    pin("measured_text", &text);
    let json: serde_json::Value = serde_json::from_str(&json::write(&view)).expect("JSON");
    pin(
        "measured_json",
        &format!("{:#}\n{:#}", json["measured"], json["plans"][0]["measured"]),
    );
}

#[test]
fn perfetto_has_every_record_and_every_slot_that_was_planned() {
    for program in samples() {
        let trace = read(
            &program,
            &ran(&program, 5, |c, n| (c as u64 + 1) * u64::from(n % 3)),
        );
        let view = measured(&program, &trace);
        let file = perfetto::run(&view, &program, &trace, None);
        let found = slices(&file);
        let of = |kind: u64| found.iter().filter(move |s| s.0 >> 32 == kind);
        let mut expected = Vec::new();
        for (c, lane) in trace.epochs[0].lanes.iter().enumerate() {
            let track = 4 << 32 | u64::from(trace.epochs[0].begin.devices[c].0);
            let records = lane.periods.iter().flat_map(|p| &p.records);
            expected.extend(records.map(|r| (track, r.start_ns, r.end_ns)));
        }
        expected.sort_unstable();
        let mut measured: Vec<_> = of(4).map(|s| (s.0, s.1, s.2)).collect();
        measured.sort_unstable();
        assert_eq!(measured, expected, "{}", view.model);
        // As many of each name were planned, and each is as long as planned.
        let count = |kind: u64| {
            let mut names: BTreeMap<&str, u64> = BTreeMap::new();
            of(kind).for_each(|s| *names.entry(&s.3).or_default() += 1);
            names.remove("bookkeeping");
            names
        };
        assert_eq!(count(3), count(4));
        let spans = perfetto::spans(&view, &program, &trace, None);
        for span in spans.iter().filter(|s| s.planned) {
            let [_, block, ..] = span.slot.expect("a slot");
            assert!(block < 5, "blocks of the run only");
        }
    }
}

#[test]
fn traces_that_do_not_fit_are_refused() {
    let program = verified(programs::two_devices());
    let good = ran(&program, 5, |_, _| 0);
    let refused = |bytes: &[u8]| {
        Trace::of_program(bytes, &program)
            .expect_err("refused")
            .to_string()
    };
    let change = |find: u64, by: u64| {
        let at = good
            .windows(8)
            .position(|w| w == find.to_le_bytes())
            .expect("the word");
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&by.to_le_bytes());
        bytes
    };
    let first = Expansion::all(&program.plans[PlanId(0)].calendars[0].lanes).0[0].duration_ns;
    let other = refused(&change(word(0, 2 * first), word(77, 2 * first)));
    assert!(
        other.contains("record 0 is of slot 77, must be 0"),
        "{other}"
    );
    assert!(refused(b"ZBMD").contains("a trace with"));
    assert!(refused(b"ZBTR\x09\0\0\0").contains("format version 9, this program reads 1"));
    assert!(refused(b"ZBTR\x01\0\0\0").contains("ends before it says what was run"));
}
