//! Plain loops in f64 for the ops that do real arithmetic: the oracle that kernels are compared with. Shares no
//! code with them and knows no windows, states or blocks: signals begin at 0 and are zero before.

use std::f64::consts::TAU;

/// A complex number as (re, im).
pub(crate) type C = (f64, f64);

pub(crate) fn mul(a: C, b: C) -> C {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

pub(crate) fn add(a: C, b: C) -> C {
    (a.0 + b.0, a.1 + b.1)
}

pub(crate) fn cis(turns: f64) -> C {
    let turns = turns - turns.floor();
    ((TAU * turns).cos(), (TAU * turns).sin())
}

/// Upsample by zeros, convolve, downsample: literally.
pub(crate) fn fir(x: &[C], taps: &[C], decimate: usize, interpolate: usize) -> Vec<C> {
    let mut up = vec![(0.0, 0.0); x.len() * interpolate];
    for (i, &v) in x.iter().enumerate() {
        up[i * interpolate] = v;
    }
    let at = |n: usize| {
        let past = taps.iter().enumerate().filter(|(k, _)| *k <= n);
        past.fold((0.0, 0.0), |sum, (k, &h)| add(sum, mul(h, up[n - k])))
    };
    (0..up.len() / decimate).map(|m| at(m * decimate)).collect()
}

/// Direct form I, section after section: other states than the kernel's.
pub(crate) fn biquad(x: &[C], sections: &[[f64; 5]]) -> Vec<C> {
    let mut signal = x.to_vec();
    for [b0, b1, b2, a1, a2] in sections {
        let mut out: Vec<C> = Vec::new();
        for n in 0..signal.len() {
            let old = |s: &[C], d: usize| if n >= d { s[n - d] } else { (0.0, 0.0) };
            let part = |p: fn(C) -> f64| {
                b0 * p(signal[n]) + b1 * p(old(&signal, 1)) + b2 * p(old(&signal, 2))
                    - a1 * p(old(&out, 1))
                    - a2 * p(old(&out, 2))
            };
            out.push((part(|z| z.0), part(|z| z.1)));
        }
        signal = out;
    }
    signal
}

/// The sum that defines the transform, sign −1 forwards.
pub(crate) fn dft(x: &[C], sign: f64) -> Vec<C> {
    let n = x.len();
    let bin = |k: usize| {
        let term = |i: usize| mul(x[i], cis(sign * ((i * k) % n) as f64 / n as f64));
        (0..n).fold((0.0, 0.0), |sum, i| add(sum, term(i)))
    };
    (0..n).map(bin).collect()
}

/// y[k] = Σ conj(t[i]) x[k − (len − 1) + i].
pub(crate) fn correlate(x: &[C], template: &[C]) -> Vec<C> {
    let at = |k: usize| {
        template
            .iter()
            .enumerate()
            .fold((0.0, 0.0), |sum, (i, &(re, im))| {
                match (k + i).checked_sub(template.len() - 1) {
                    Some(n) => add(sum, mul((re, -im), x[n])),
                    None => sum,
                }
            })
    };
    (0..x.len()).map(at).collect()
}

pub(crate) fn discriminate(x: &[C], gain: f64) -> Vec<f64> {
    let turn = |n: usize| {
        let (re, im) = if n == 0 { (0.0, 0.0) } else { x[n - 1] };
        mul(x[n], (re, -im))
    };
    (0..x.len())
        .map(|n| turn(n).1.atan2(turn(n).0) * gain)
        .collect()
}

/// Rows times columns.
pub(crate) fn matmul(a: &[C], b: &[C], m: usize, k: usize, n: usize) -> Vec<C> {
    let cell = |i: usize, j: usize| {
        (0..k).fold((0.0, 0.0), |sum, l| {
            add(sum, mul(a[i * k + l], b[l * n + j]))
        })
    };
    (0..m * n).map(|c| cell(c / n, c % n)).collect()
}

/// Frames laid over each other, `hop` apart; as many samples as are complete.
pub(crate) fn overlap_add(frames: &[Vec<f64>], hop: usize) -> Vec<f64> {
    let size = frames[0].len();
    let mut sum = vec![0.0; hop * (frames.len() - 1) + size];
    for (f, frame) in frames.iter().enumerate() {
        for (i, v) in frame.iter().enumerate() {
            sum[f * hop + i] += v;
        }
    }
    sum.truncate(hop * frames.len());
    sum
}
