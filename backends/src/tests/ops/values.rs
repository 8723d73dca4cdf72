//! Ops whose results are known exactly: conversion, routing, reductions, generators.

use super::conformance::{floats_of, subject};

#[test]
fn conversions_round_and_saturate() {
    let run = |parameters: &str, input: &str, bytes: &[u8]| {
        let subject = subject("Convert", parameters, input);
        let mut call = subject.call(1);
        call.input(0).copy_from_slice(bytes);
        call.run(&*subject.kernel).unwrap();
        call.output(0).to_vec()
    };
    let floats = |v: &[f32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let odd = [0.5, 1.5, -2.5, 300.0, -300.0, f32::NAN, f32::INFINITY, -0.4];
    let got = run("to: i8", "f32[8]", &floats(&odd));
    assert_eq!(
        got.iter().map(|&b| b as i8).collect::<Vec<_>>(),
        [0, 2, -2, 127, -128, 0, 127, 0]
    );
    assert_eq!(
        run("to: u8", "f32[8]", &floats(&odd)),
        [0, 2, 0, 255, 0, 0, 255, 0]
    );
    assert_eq!(
        run("to: bool", "f32[8]", &floats(&odd)),
        [1, 1, 1, 1, 1, 1, 1, 1]
    );
    assert_eq!(run("from: cu8", "u8[2]", &[0, 255]), floats(&[-1.0, 1.0]));
    assert_eq!(
        run("to: cu8", "c32[2]", &floats(&[-1.0, 1.0, 7.0, -7.0])),
        [0, 255, 255, 0]
    );
    let full = [i16::MIN, i16::MAX]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect::<Vec<u8>>();
    assert_eq!(
        run("from: s16", "i16[2]", &full),
        floats(&[-1.0, 32_767.0 / 32_768.0])
    );
    assert_eq!(run("to: s16", "f32[2]", &floats(&[-1.0, 1.0])), full);
    let big = i64::MAX.to_le_bytes();
    assert_eq!(run("to: i16", "i64", &big), i16::MAX.to_le_bytes());
    // Every sample value survives the way there and back.
    let all: Vec<u8> = (0..=255).collect();
    let there = run("from: cu8", "u8[128,2]", &all);
    assert_eq!(run("to: cu8", "c32[128]", &there), all);
}

#[test]
fn routing_moves_the_right_tokens() {
    let run = |op: &str, parameters: &str, inputs: &str, data: &[&[u8]], firings: usize| {
        let subject = subject(op, parameters, inputs);
        let data: Vec<Vec<u8>> = data.iter().map(|d| d.to_vec()).collect();
        subject.run(&data, firings, firings).0
    };
    let x: Vec<u8> = (0..24).collect();
    assert_eq!(
        run("Delay", "tokens: 2", "u8", &[&x[..6]], 4),
        [[0, 1, 2, 3]]
    );
    assert_eq!(run("Fork", "", "u8", &[&x[..3]], 3), [[0, 1, 2], [0, 1, 2]]);
    assert_eq!(
        run("Split", "outputs: 3", "u8", &[&x[..6]], 2),
        [[0, 3], [1, 4], [2, 5]]
    );
    assert_eq!(
        run("Merge", "", "x0: u8, x1: u8", &[&[1, 2], &[3, 4]], 2),
        [[1, 3, 2, 4]]
    );
    let split = run("Split", "outputs: 2, run: 3", "u8", &[&x[..12]], 2);
    assert_eq!(split, [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]);
    let uneven = run("Split", "outputs: 2, run: [1, 3]", "u8", &[&x[..8]], 2);
    assert_eq!(uneven, [vec![0, 4], vec![1, 2, 3, 5, 6, 7]]);
    let merged = run(
        "Merge",
        "run: [2, 1]",
        "x0: u8, x1: u8",
        &[&[1, 2, 3, 4], &[7, 8]],
        2,
    );
    assert_eq!(merged, [[1, 2, 7, 3, 4, 8]]);
    let merged = run(
        "Merge",
        "run: 3",
        "x0: u8, x1: u8",
        &[&split[0], &split[1]],
        2,
    );
    assert_eq!(merged, [&x[..12]]);
    assert_eq!(
        run("Decimate", "factor: 3", "u8[2]", &[&x[..12]], 2),
        [[0, 1, 6, 7]]
    );
    assert_eq!(
        run("Hold", "factor: 2", "u8[2]", &[&x[..4]], 2),
        [[0, 1, 0, 1, 2, 3, 2, 3]]
    );
    assert_eq!(
        run("Frame", "size: 3, hop: 2", "u8", &[&x[..5]], 2),
        [[0, 1, 2, 2, 3, 4]]
    );
    assert_eq!(
        run("Transpose", "", "u8[2,3]", &[&x[..6]], 1),
        [[0, 3, 1, 4, 2, 5]]
    );
    let mut want = Vec::new();
    for (j, k, i) in (0..3).flat_map(|j| (0..4).flat_map(move |k| (0..2).map(move |i| (j, k, i)))) {
        want.push(i * 12 + j * 4 + k);
    }
    assert_eq!(
        run("Transpose", "axes: [1, 2, 0]", "u8[2,3,4]", &[&x], 1),
        [want]
    );
    let reshape = subject("Reshape", "shape: [4]", "f32[6]").actor;
    assert_eq!((reshape.inputs[0].rate, reshape.outputs[0].rate), (2, 3));
}

#[test]
fn reductions_add_along_their_axis() {
    let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
    for (op, axis, expect) in [
        (
            "Sum",
            "axis: 0",
            vec![
                12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 26.0, 28.0, 30.0, 32.0, 34.0,
            ],
        ),
        ("Sum", "axis: -1", vec![6.0, 22.0, 38.0, 54.0, 70.0, 86.0]),
        (
            "Mean",
            "axis: 1",
            vec![4.0, 5.0, 6.0, 7.0, 16.0, 17.0, 18.0, 19.0],
        ),
        ("Mean", "", vec![11.5]),
    ] {
        assert_eq!(
            subject(op, axis, "f32[2,3,4]").floats(&[&x]),
            expect,
            "{op} {axis}"
        );
    }
}

#[test]
fn generators_begin_as_documented() {
    let run = |op: &str, parameters: &str| {
        let subject = subject(op, parameters, "");
        subject.run(&[], 4, 4).0.remove(0)
    };
    assert_eq!(
        run("Counter", "start: 254, step: 1, dtype: u8"),
        [254, 255, 0, 1]
    );
    let quarter = floats_of(&run("Tone", "freq: 1, rate: 4, amplitude: 2"));
    assert_eq!(quarter, [2.0, 0.0, 0.0, 2.0, -2.0, 0.0, 0.0, -2.0]);
    let draws = |n: usize| floats_of(&subject("Noise", "amplitude: 0.5", "").run(&[], n, n).0[0]);
    let noise = draws(20_000);
    let mean = noise.iter().map(|&v| f64::from(v)).sum::<f64>() / 20_000.0;
    let power = noise.iter().map(|&v| f64::from(v * v)).sum::<f64>() / 20_000.0;
    assert!(noise.iter().all(|v| (-0.5..0.5).contains(v)));
    assert!(
        mean.abs() < 0.01 && (power - 1.0 / 12.0).abs() < 0.002,
        "{mean}, {power}"
    );
}

#[test]
fn not_a_number_is_the_largest_of_a_line() {
    let is_nan = |place: &i64| place % 3 == 1;
    let line = (0..64_i64).map(|i| match is_nan(&i) {
        true => f32::NAN,
        false => (i * 37 % 64) as f32,
    });
    let bytes: Vec<u8> = line.clone().flat_map(f32::to_le_bytes).collect();
    let sorted_places = |parameters: &str| -> Vec<i64> {
        let subject = subject("NnTopK", parameters, "x: f32[64]");
        let outputs = subject.run(std::slice::from_ref(&bytes), 1, 1).0;
        let (places, _) = outputs[1].as_chunks::<8>();
        places
            .iter()
            .map(|place| i64::from_le_bytes(*place))
            .collect()
    };

    let nan_places: Vec<i64> = (0..64).filter(is_nan).collect();
    let mut numbers: Vec<i64> = (0..64).filter(|place| !is_nan(place)).collect();
    numbers.sort_by_key(|place| place * 37 % 64);
    let smallest_first = [&numbers[..], &nan_places].concat();
    assert_eq!(
        sorted_places("k: [64], largest: 0, outputs: [0, 1]"),
        smallest_first
    );

    numbers.reverse();
    let largest_first = [&nan_places[..], &numbers].concat();
    assert_eq!(sorted_places("k: [64], outputs: [0, 1]"), largest_first);
}
