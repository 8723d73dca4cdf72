//! The CD to DAT converter against a one-step converter, as a graph and as a plain loop in f64.

use std::ops::Range;

use zbmd_compiler::{CompileOptions, MachineChoice, compile_file};
use zbmd_ir::{PlanId, Role};
use zbmd_scheduler::buffers::{Mode, Unit};
use zbmd_tests::run::{Streams, compile, graph_file, interpret, replay_program, run, streams};
use zbmd_tests::signal::*;

const MODEL: &str = "cd2dat/model.ron";
/// Taps of the one-step filter at 7.056 MHz, as onestep.ron has them.
const TAPS: usize = 27_751;
/// Outputs that the filters' start does not touch: they hear at most TAPS / 147 samples back.
const SETTLED: usize = TAPS.div_ceil(147);

fn converted(model: &str, cd: &[f64]) -> Vec<f64> {
    let input = streams([("cd", to_f32_bytes(cd))]);
    from_f32_bytes(&run(model, 2, &zbmd_backends::standard_registry(), &input, None)["dat"])
}

/// What f32 leaves of the signal: the plain loop should convert what the graphs were given.
fn rounded(signal: &[f64]) -> Vec<f64> {
    signal.iter().map(|&s| f64::from(s as f32)).collect()
}

#[test]
fn the_repetition_vector_is_the_classic_one() {
    let compiled = compile(MODEL, 1, &zbmd_backends::standard_registry());
    let graph = &compiled.program.graph;
    let q = zbmd_scheduler::repetition(graph).expect("consistent");
    let by_name = |name: &str| q[graph.find(name).expect("an actor")];
    let names = [
        "cd",
        "convert/a",
        "convert/b",
        "convert/c",
        "convert/d",
        "dat",
    ];
    assert_eq!(names.map(by_name), [147, 147, 98, 28, 32, 160]);
    let rates: Vec<(u64, u64)> = graph
        .channels
        .iter()
        .map(|c| {
            let reader = c.readers[0].to;
            let consumed = graph.actors[reader.actor].inputs[reader.port as usize].rate;
            (
                graph.actors[c.from.actor].outputs[c.from.port as usize].rate,
                consumed,
            )
        })
        .collect();
    assert_eq!(
        graph
            .actors
            .iter()
            .filter(|a| a.role == Role::Compute)
            .count(),
        4
    );
    let mut rates = rates;
    rates.sort_unstable();
    assert_eq!(rates, [(1, 1), (2, 3), (2, 7), (5, 1), (8, 7)]);
}

/// The pass band of four filters in a row is that of the one long filter. Measured: 128.4, 125.3 and 118.8 dB.
#[test]
fn the_pass_band_equals_a_one_step_converter() {
    let spread: Vec<f64> = (0..48)
        .map(|i| 20.0 * 1000f64.powf(f64::from(i) / 47.0))
        .collect();
    let signals = [
        (
            "48 tones from 20 Hz to 20 kHz",
            tones(&spread, 44_100.0, 44_100),
        ),
        (
            "a sweep from 20 Hz to 20 kHz",
            sweep(20.0, 20_000.0, 44_100.0, 44_100),
        ),
        ("one tone at the edge", tones(&[20_000.0], 44_100.0, 14_700)),
    ];
    let taps = kaiser_lowpass(22_050.0, 7_056_000.0, TAPS, 12.8, 160.0);
    for (what, cd) in signals {
        let cascade = converted(MODEL, &cd);
        let onestep = converted("cd2dat/onestep.ron", &cd);
        let plain = resample(&rounded(&cd), &taps, 160, 147);
        assert_eq!(
            (cascade.len(), onestep.len()),
            (plain.len(), plain.len()),
            "{what}"
        );
        // A sweep that stops short leaves the pass band with a click: its last output is not compared.
        let settled: Range<usize> = SETTLED..plain.len() - SETTLED;
        let against = |reference: &[f64], signal: &[f64]| {
            snr_db(&reference[settled.clone()], &signal[settled.clone()])
        };
        let figures = [
            against(&onestep, &cascade),
            against(&plain, &cascade),
            against(&plain, &onestep),
        ];
        println!(
            "{what}: cascade to one step {:.1} dB, to f64 {:.1} dB; one step to f64 {:.1} dB",
            figures[0], figures[1], figures[2]
        );
        assert!(
            figures[0] > 110.0 && figures[1] > 110.0,
            "{what}: {figures:?} dB"
        );
        assert!(figures[2] > 130.0, "{what}: {figures:?} dB");
    }
}

/// What polyphase.ron says of itself, with what f32 adds. Measured: 0.0003 dB; -136 dB for all tones.
#[test]
fn the_polyphase_converter_keeps_tones_and_no_images_of_them() {
    const MODEL: &str = "cd2dat/polyphase.ron";
    for frequency in [997.0, 11_027.0, 19_999.0, 20_807.0, 21_977.0] {
        let cd = tones(&[frequency], 44_100.0, 147 * 100);
        let dat = converted(MODEL, &cd);
        let (tone, rest) = tone_and_rest(&dat[1_000..], frequency, 48_000.0);
        let [level, rest] = [tone, rest].map(|power| 10.0 * (power / 0.5).log10());
        println!("{frequency} Hz: level {level:.4} dB, rest {rest:.1} dB");
        assert!(
            level.abs() < 0.0005 || frequency > 20_000.0,
            "{frequency} Hz: {level} dB"
        );
        assert!(rest < -133.0, "{frequency} Hz: {rest} dB");
    }
}

#[test]
fn a_converter_with_many_branches_gives_the_same_bits_in_every_block() {
    let registry = zbmd_backends::standard_registry();
    let cd = sweep(20.0, 20_000.0, 44_100.0, 147 * 40);
    let input = streams([("cd", to_f32_bytes(&cd))]);
    let oracle = interpret("cd2dat/polyphase.ron", &registry, &input, None);
    for block in [1, 3, 4, 7, 16] {
        let options = CompileOptions {
            machine: MachineChoice::Uniform(2),
            block: Some(block),
            ..CompileOptions::default()
        };
        let compiled = compile_file(graph_file("cd2dat/polyphase.ron"), &options);
        let program = compiled.expect("it compiles").program;
        let (outputs, _) = replay_program(program, &registry, &input, None, None);
        assert!(outputs == oracle, "blocks of {block}");
    }
}

#[test]
fn the_tones_come_out_at_the_new_rate() {
    let registry = zbmd_backends::standard_registry();
    let cd = run(
        "cd2dat/tones.ron",
        2,
        &registry,
        &Streams::new(),
        Some(14_700),
    );
    let cd = from_f32_bytes(&cd["tones"]);
    assert_eq!(cd.len(), 14_700);
    let dat = converted(MODEL, &cd);
    // Tones begin as cosines; the delay is 13875 samples of 7.056 MHz.
    let expect = |n: usize| {
        let t = (n as f64 * 147.0 - 13_875.0) / 7_056_000.0;
        let tone = |f: &f64| 0.125 * (std::f64::consts::TAU * f * t).cos();
        [60.0, 440.0, 997.0, 5003.0, 11_027.0, 17_989.0, 19_997.0]
            .iter()
            .map(tone)
            .sum::<f64>()
    };
    let settled = SETTLED..dat.len();
    let expect: Vec<f64> = settled.clone().map(expect).collect();
    let snr = snr_db(&expect, &dat[settled]);
    assert!(snr > 105.0, "{snr} dB");
}

#[test]
fn any_machine_gives_the_same_bits() {
    let registry = zbmd_backends::standard_registry();
    let cd = sweep(20.0, 20_000.0, 44_100.0, 147 * 40);
    let input = streams([("cd", to_f32_bytes(&cd))]);
    let oracle = interpret(MODEL, &registry, &input, None);
    for devices in 1..=3 {
        assert!(
            run(MODEL, devices, &registry, &input, None) == oracle,
            "other bits on {devices} devices"
        );
    }
}

/// The buffers of the three orders that `zbmdc analyse` names, histories included: 256 tokens interleaved, 488 in nested
/// loops, 1245 with one call for each actor.
#[test]
fn smaller_buffers_give_the_same_bits() {
    let model = graph_file(MODEL);
    let signal = sweep(20.0, 20_000.0, 44_100.0, 4_410);
    let input = streams([("cd", to_f32_bytes(&signal))]);
    let mut outputs = Vec::new();
    for tokens in [256, 488, 1245] {
        let options = CompileOptions {
            machine: MachineChoice::Uniform(1),
            buffers: Some(Mode::Within(tokens, Unit::Tokens)),
            ..CompileOptions::default()
        };
        let program = compile_file(&model, &options).expect("a program").program;
        let buffers = program.plans[PlanId(0)].buffers.iter();
        let held: u64 = buffers.map(|b| b.head_tokens + b.chunk_tokens).sum();
        assert_eq!(held, tokens);
        let (output, _) = replay_program(
            program,
            &zbmd_backends::standard_registry(),
            &input,
            None,
            None,
        );
        outputs.push(output);
    }
    assert!(outputs[0] == outputs[1] && outputs[1] == outputs[2]);
    assert_eq!(
        outputs[0],
        run(MODEL, 1, &zbmd_backends::standard_registry(), &input, None)
    );
}
