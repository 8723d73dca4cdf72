//! Arithmetic against the plain loops of `reference`, with the tolerance that each op keeps.

use crate::tests::reference::{self, C};

use super::conformance::{Random, floats_of, subject};

/// Largest distance, as a share of the largest value.
fn distance(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(1e-30, |m: f64, w| m.max(w.abs()));
    got.iter()
        .zip(want)
        .map(|(&g, w)| (f64::from(g) - w).abs())
        .fold(0.0, f64::max)
        / scale
}

fn complex(x: &[f32]) -> Vec<C> {
    x.chunks_exact(2)
        .map(|z| (z[0].into(), z[1].into()))
        .collect()
}

fn real(x: &[f32]) -> Vec<C> {
    x.iter().map(|&v| (v.into(), 0.0)).collect()
}

fn flat(z: &[C]) -> Vec<f64> {
    z.iter().flat_map(|z| [z.0, z.1]).collect()
}

fn re(z: &[C]) -> Vec<f64> {
    z.iter().map(|z| z.0).collect()
}

#[track_caller]
fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    let distance = distance(got, want);
    assert!(
        distance < tolerance,
        "{what}: {distance:e}, allowed {tolerance:e}"
    );
}

#[test]
fn filters_agree_with_convolution() {
    let mut random = Random(2);
    for (taps, decimate, interpolate) in [
        (1, 1, 1),
        (5, 1, 1),
        (8, 2, 1),
        (9, 1, 4),
        (33, 3, 2),
        (64, 8, 1),
        (40, 7, 10),
        (3, 2, 8),
        (2, 5, 1),
    ] {
        let firings = 23;
        let h = random.floats(2 * taps);
        let x = random.floats(2 * decimate * firings);
        let list = |v: &[f32]| format!("{v:?}");
        let pairs: Vec<String> = h.chunks(2).map(list).collect();
        let rates = format!("decimate: {decimate}, interpolate: {interpolate}");
        for (complex_x, complex_h) in [(false, false), (true, false), (false, true), (true, true)] {
            let (input, samples) = match complex_x {
                true => ("c32", complex(&x)),
                false => ("f32", real(&x[..decimate * firings])),
            };
            let values = if complex_x {
                &x[..]
            } else {
                &x[..decimate * firings]
            };
            let (text, taps) = match complex_h {
                true => (format!("[{}]", pairs.join(",")), complex(&h)),
                false => (list(&h[..taps]), real(&h[..taps])),
            };
            let got = subject("Fir", &format!("taps: {text}, {rates}"), input).floats(&[values]);
            let want = reference::fir(&samples, &taps, decimate, interpolate);
            let want = if complex_x || complex_h {
                flat(&want)
            } else {
                re(&want)
            };
            // Sums of some tens of products in f32.
            close(
                &format!("Fir {} taps, {rates}", taps.len()),
                &got,
                &want,
                1e-6,
            );

            let got = subject("Correlate", &format!("template: {text}"), input).floats(&[values]);
            let want = reference::correlate(&samples, &taps);
            let want = if complex_x || complex_h {
                flat(&want)
            } else {
                re(&want)
            };
            close("Correlate", &got, &want, 1e-6);
        }
    }
}

#[test]
fn recursions_agree_with_direct_form() {
    let mut random = Random(3);
    let x = random.floats(800);
    let sections = [[0.2, 0.4, 0.2, -0.5, 0.3], [1.0, -0.5, 0.25, -1.2, 0.72]];
    let params = format!("sections: {sections:?}");
    let got = subject("Biquad", &params, "f32").floats(&[&x]);
    close(
        "Biquad f32",
        &got,
        &re(&reference::biquad(&real(&x), &sections)),
        2e-7,
    );
    let got = subject("Biquad", &params, "c32").floats(&[&x]);
    close(
        "Biquad c32",
        &got,
        &flat(&reference::biquad(&complex(&x), &sections)),
        2e-7,
    );
    let got = subject("Deemphasis", "tau: 0.001, rate: 1000", "f32").floats(&[&x]);
    let pole = (-1.0_f64).exp();
    let want = reference::biquad(&real(&x), &[[1.0 - pole, 0.0, 0.0, -pole, 0.0]]);
    close("Deemphasis", &got, &re(&want), 2e-7);
    let got = subject("Discriminate", "gain: 2.5", "c32").floats(&[&x]);
    close(
        "Discriminate",
        &got,
        &reference::discriminate(&complex(&x), 2.5),
        1e-6,
    );
}

#[test]
fn transforms_agree_with_their_sums() {
    let mut random = Random(4);
    for n in [1_usize, 2, 7, 16, 60, 127, 256] {
        let x = random.floats(4 * n);
        let rows: Vec<Vec<C>> = complex(&x).chunks(n).map(<[C]>::to_vec).collect();
        for (inverse, sign, scale) in [(false, -1.0, 1.0), (true, 1.0, 1.0 / n as f64)] {
            let fft = subject("Fft", &format!("inverse: {inverse}"), &format!("c32[{n}]"));
            let want: Vec<f64> = rows
                .iter()
                .flat_map(|r| flat(&reference::dft(r, sign)))
                .map(|v| v * scale)
                .collect();
            close(&format!("Fft {n}"), &fft.floats(&[&x]), &want, 1e-6);
        }
        let spectra: Vec<Vec<C>> = x
            .chunks(n)
            .map(|r| reference::dft(&real(r), -1.0))
            .collect();
        let half: Vec<f64> = spectra.iter().flat_map(|s| flat(&s[..n / 2 + 1])).collect();
        let got = subject("Rfft", "", &format!("f32[{n}]")).floats(&[&x]);
        close(&format!("Rfft {n}"), &got, &half, 1e-6);
        let bins = format!("c32[{}]", n / 2 + 1);
        let back = subject("Irfft", &format!("size: {n}"), &bins).floats(&[&got]);
        close(
            &format!("Irfft {n}"),
            &back,
            &x.iter().map(|&v| v.into()).collect::<Vec<f64>>(),
            1e-6,
        );
    }
}

#[test]
fn mixing_keeps_its_phase_for_ever() {
    let mix = subject("Mix", "freq: -123456.7, rate: 2000000", "c32");
    let ones: Vec<f32> = [1.0, 0.0].repeat(5000);
    let want: Vec<C> = (0..5000)
        .map(|k| reference::cis(-123_456.7 / 2e6 * f64::from(k)))
        .collect();
    close("Mix", &mix.floats(&[&ones]), &flat(&want), 2e-7);
    // A quarter turn a sample: after any number of samples the phase is exact.
    let mut call = subject("Mix", "freq: 1, rate: 4", "c32").call(3);
    let phase = 0_i64.wrapping_add(i64::MIN / 2).wrapping_mul(1_000_001);
    call.state(0).copy_from_slice(&phase.to_le_bytes());
    let mix = subject("Mix", "freq: 1, rate: 4", "c32");
    call.input(0)
        .copy_from_slice(bytemuck::cast_slice(&[1.0_f32, 0.0].repeat(3)));
    call.run(&*mix.kernel).unwrap();
    let z: Vec<i32> = floats_of(call.output(0))
        .iter()
        .map(|&v| v as i32)
        .collect();
    assert_eq!(z, [0, -1, 1, 0, 0, 1]);
}

#[test]
fn products_agree_with_rows_times_columns() {
    let mut random = Random(5);
    for (m, k, n) in [(1, 1, 1), (2, 3, 4), (5, 7, 35), (9, 64, 17), (1, 31, 130)] {
        let (a, b) = (random.floats(2 * m * k), random.floats(2 * k * n));
        let types = |t: &str| format!("x: {t}[{m},{k}], y: {t}[{k},{n}]");
        let got = subject("MatMul", "", &types("f32")).floats(&[&a[..m * k], &b[..k * n]]);
        let want = reference::matmul(&real(&a[..m * k]), &real(&b[..k * n]), m, k, n);
        close("MatMul f32", &got, &re(&want), 1e-6);
        let got = subject("MatMul", "", &types("c32")).floats(&[&a, &b]);
        let want = reference::matmul(&complex(&a), &complex(&b), m, k, n);
        close("MatMul c32", &got, &flat(&want), 1e-6);
        // A constant matrix meets all firings' rows at once.
        let rows: Vec<String> = b[..k * n].chunks(n).map(|r| format!("{r:?}")).collect();
        let constant = format!("b: [{}]", rows.join(","));
        let got = subject("MatMul", &constant, &format!("f32[{k}]")).floats(&[&a[..m * k]]);
        let want = reference::matmul(&real(&a[..m * k]), &real(&b[..k * n]), m, k, n);
        close("MatMul constant", &got, &re(&want), 1e-6);
    }
}

#[test]
fn overlapped_hann_frames_add_up_to_the_signal() {
    let mut random = Random(6);
    for (size, hop) in [(8, 4), (12, 3), (5, 5), (9, 4), (10, 3)] {
        let x = random.floats(size * 20);
        let frames: Vec<Vec<f64>> = x
            .chunks(size)
            .map(|f| f.iter().map(|&v| v.into()).collect())
            .collect();
        let got = subject(
            "OverlapAdd",
            &format!("hop: {hop}"),
            &format!("f32[{size}]"),
        )
        .floats(&[&x]);
        close(
            "OverlapAdd",
            &got,
            &reference::overlap_add(&frames, hop),
            2e-7,
        );
    }
    // Periodic Hann windows half a frame apart sum to 1: the signal comes back, size − hop tokens late.
    let x = random.floats(64);
    let frames = subject("Frame", "size: 8, hop: 4", "f32").floats(&[&x]);
    let weighted = subject("Window", "kind: hann", "f32[8]").floats(&[&frames]);
    let back = subject("OverlapAdd", "hop: 4", "f32[8]").floats(&[&weighted]);
    close(
        "reconstruction",
        &back[4..],
        &x[..60].iter().map(|&v| v.into()).collect::<Vec<_>>(),
        3e-7,
    );
}
