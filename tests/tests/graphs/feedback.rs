//! Loops over several actors: the gain control settles, the phase-locked loop locks, anywhere and across a break.

use std::f64::consts::TAU;

use zbmd_tests::run::{Streams, compile, interpret, replay, run, streams};
use zbmd_tests::signal::{from_f32_bytes, to_f32_bytes};

const RATE: f64 = 48_000.0;

/// A carrier of amplitude `amplitude(n)` with some noise, as a source of c32.
fn carrier(hz: f64, samples: usize, noise: f64, amplitude: impl Fn(usize) -> f64) -> Streams {
    let mut rng = fastrand::Rng::with_seed(17);
    let mut iq = Vec::new();
    for n in 0..samples {
        let angle = TAU * hz * n as f64 / RATE + 1.0;
        let mut part = |value: f64| iq.push(amplitude(n) * value + noise * (2.0 * rng.f64() - 1.0));
        part(angle.cos());
        part(angle.sin());
    }
    streams([("iq", to_f32_bytes(&iq))])
}

#[test]
fn the_gain_settles_at_one_over_the_level() {
    let steps = |n: usize| if n < 8000 { 0.1 } else { 4.0 };
    let out = run(
        "agc/model.ron",
        2,
        &zbmd_backends::standard_registry(),
        &carrier(1000.0, 16_000, 0.0, steps),
        None,
    );
    let gain = from_f32_bytes(&out["gain"]);
    // g[n] - 10 = (1 - 10) (1 - mu 0.1)^n, n samples after the first.
    for n in [100, 1000, 5000] {
        let expect = 10.0 - 9.0 * (1.0f64 - 0.001).powi(n + 1);
        assert!(
            (gain[n as usize] - expect).abs() < 1e-3,
            "gain {} after {n} samples, not {expect}",
            gain[n as usize]
        );
    }
    assert!((gain[15_999] - 0.25).abs() < 1e-5, "{}", gain[15_999]);
    let level = |n: usize| {
        let out = from_f32_bytes(&out["out"][n * 8..n * 8 + 8]);
        out[0].hypot(out[1])
    };
    assert!((level(7999) - 1.0).abs() < 0.005 && (level(15_999) - 1.0).abs() < 1e-5);
    // The step from 0.1 to 4 comes through before the loop can know of it.
    assert!(level(8000) > 30.0);
}

#[test]
fn the_loop_locks_to_a_carrier_that_is_off() {
    for (hz, samples) in [
        (0.0, 4000),
        (1000.0, 6000),
        (-1000.0, 6000),
        (5000.0, 12_000),
    ] {
        let out = run(
            "pll/model.ron",
            2,
            &zbmd_backends::standard_registry(),
            &carrier(hz, samples, 0.05, |_| 1.0),
            None,
        );
        let last = samples - 2000..samples;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let frequency = mean(&from_f32_bytes(&out["carrier"])[last.clone()]) * RATE;
        assert!((frequency - hz).abs() < 0.5, "{frequency} Hz, not {hz}");
        let error = from_f32_bytes(&out["error"]);
        assert!(
            error[last.clone()].iter().all(|e| e.abs() < 0.2),
            "the phase slips at {hz} Hz"
        );
        let real: Vec<f64> = from_f32_bytes(&out["lock"])
            .chunks(2)
            .map(|z| z[0])
            .collect();
        assert!(
            (mean(&real[last]) - 1.0).abs() < 0.01,
            "not in phase at {hz} Hz"
        );
    }
}

#[test]
fn any_machine_gives_the_same_bits_across_a_break() {
    let registry = zbmd_backends::standard_registry();
    let input = carrier(700.0, 3000, 0.05, |_| 0.9);
    for model in ["agc/model.ron", "pll/model.ron"] {
        let oracle = interpret(model, &registry, &input, None);
        for devices in 1..=3 {
            let (first, rest) = input["iq"].split_at(1234 * 8);
            let part = |bytes: &[u8]| streams([("iq", bytes.to_vec())]);
            let (mut joined, outcome) = replay(
                compile(model, devices, &registry),
                &registry,
                &part(first),
                None,
                None,
            );
            let next = 1 + devices % 3;
            let state = Some(outcome.state);
            let (more, outcome) = replay(
                compile(model, next, &registry),
                &registry,
                &part(rest),
                None,
                state,
            );
            assert_eq!(outcome.state.iterations, 3000);
            for (sink, bytes) in &mut joined {
                bytes.extend(&more[sink]);
            }
            assert!(
                joined == oracle,
                "{model}: other bits on {devices}, then {next} devices"
            );
        }
    }
}
