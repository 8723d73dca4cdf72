//! Tests of declarations.

use super::*;

const NAMES: [&str; 3] = ["cpu:0", "cpu:1", "cuda:0"];

fn read(text: &str) -> Result<Resolved, DeclareError> {
    Supervision::parse(text)?.resolve(NAMES)
}

#[test]
fn nothing_declared_is_the_default() {
    let found = read("Supervision()").expect("empty is fine");
    assert_eq!(found.settings, Settings::default());
    assert_eq!(
        found.tree.intensity,
        Intensity {
            losses: 10,
            period_ns: 10_000_000_000
        }
    );
    assert!(found.tree.groups.is_empty() && found.warnings.is_empty());
    assert!(
        found
            .tree
            .devices
            .iter()
            .all(|d| d.restart == Restart::Permanent)
    );
}

#[test]
fn everything_declared_arrives() {
    let found = read(
        r#"Supervision(
            intensity: 4, period: "1min", strategy: rest_for_one, on_loss: restart,
            groups: {
                "z": (devices: ["cuda:0"], strategy: one_for_all, intensity: 3, period: "5s"),
                "a": (devices: ["cpu:1"], intensity: 1),
            },
            devices: { "cpu:1": (restart: temporary), "cpu:0": (intensity: 2) },
            backoff: (base: "1ms", factor: 3.0, longest: "2s", jitter: 0.0, reset: "9s"),
            breaker: (failures: 2, window: "1s", open: "3s", longest: "4s", probes: 1, probe: "5ms"),
            detect: (look: "2ms", margin: 8, floor: "1ms", confirm: "3ms", slow_times: 2, slow_phi: 4),
            start: "1s", kill: "100ms", join: "50ms", starts: 2, retries: 0, futile: 7,
        )"#,
    )
    .expect("all fields");
    let Resolved { settings, tree, .. } = found;
    assert_eq!(
        (settings.on_loss, settings.retries, settings.futile),
        (OnLoss::Restart, 0, 7)
    );
    assert_eq!(
        (settings.backoff.base_ns, settings.breaker.probe_ns),
        (1_000_000, 5_000_000)
    );
    assert_eq!(
        (settings.detect.margin, settings.detect.gap_ns),
        (8.0, 4_000_000)
    );
    assert_eq!(settings.join_ns, Some(50_000_000));
    let names: Vec<&str> = tree.groups.iter().map(|g| g.name.as_str()).collect();
    assert_eq!(names, ["z", "a"], "in the order of the text");
    let minute = Intensity {
        losses: 1,
        period_ns: 60_000_000_000,
    };
    assert_eq!(
        tree.groups[1].intensity,
        Some(minute),
        "with the run's period"
    );
    assert_eq!(tree.devices[DeviceId(1)].restart, Restart::Temporary);
    assert_eq!(
        tree.devices[DeviceId(0)].intensity.map(|i| i.losses),
        Some(2)
    );
}

#[test]
fn a_refusal_names_place_numbers_and_mend() {
    for (text, expected) in [
        (
            "Supervision(intensty: 3)",
            "line 1, column 13: Unexpected field named `intensty` in `Supervision`",
        ),
        (
            "Supervision(\n  period: \"10\")",
            "line 2, column 12: `10` is not a time",
        ),
        (
            "Supervision(period: \"-1s\")",
            "`-1s` is not from 0 to a year",
        ),
        (
            "Supervision(period: \"0s\")",
            "`period` is 0ns; it must be longer than nothing",
        ),
        (
            "Supervision(devices: {\"gpu\": ()})",
            "`devices` names device `gpu`; the machine has `cpu:0`, `cpu:1`, `cuda:0`",
        ),
        (
            "Supervision(groups: {\"a\": (devices: [\"cpu:0\"]), \"b\": (devices: [\"cpu:0\"])})",
            "device `cpu:0` is in group `a` and in group `b`; leave it in one of them",
        ),
        (
            "Supervision(groups: {\"a\": (), \"a\": ()})",
            "group `a` is declared twice",
        ),
        (
            "Supervision(groups: {\"a\": (period: \"5s\")})",
            "group `a` has a period and no intensity; say how many losses it tolerates in 5s",
        ),
        (
            "Supervision(backoff: (jitter: 1.5))",
            "`backoff.jitter` is 1.5; say a part",
        ),
        (
            "Supervision(detect: (margin: 0.5))",
            "`detect.margin` is 0.5; a slot needs",
        ),
        (
            "Supervision(breaker: (probes: 0))",
            "`breaker.probes` is 0; 1 is the minimum",
        ),
    ] {
        let found = read(text).expect_err(text).to_string();
        assert!(found.contains(expected), "{text}\n  {found}\n  {expected}");
    }
}

#[test]
fn a_storm_that_nobody_would_notice_is_warned_of() {
    let found = read("Supervision(backoff: (longest: \"5s\"))").expect("allowed");
    assert!(found.warnings[0].contains("10 waits of up to 5s do not fit into the period of 10s"));
}

#[test]
fn times_are_read_and_written() {
    for (text, ns, back) in [
        ("10ms", 10_000_000, "10ms"),
        ("1.5s", 1_500_000_000, "1500ms"),
        ("2 min", 120_000_000_000, "2min"),
        ("90s", 90_000_000_000, "90s"),
        ("7us", 7_000, "7us"),
        ("0s", 0, "0ns"),
    ] {
        let time = Time::try_from(text.to_owned()).expect(text);
        assert_eq!((time.0, time.to_string().as_str()), (ns, back));
    }
}
