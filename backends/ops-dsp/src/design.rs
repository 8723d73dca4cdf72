//! Window functions and windowed-sinc filter design, in f64.

use std::f64::consts::{PI, TAU};

use zbmd_ir::Value;

use zbmd_op::OpError;
use zbmd_op::args::Args;

/// Taps of one filter.
pub(crate) const MAX_TAPS: u64 = 1 << 20;

/// A window function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WindowKind {
    Rectangular,
    Hann,
    Hamming,
    Blackman,
    Kaiser(f64),
}

impl WindowKind {
    /// What parameter `name` says: a word or `{"kaiser": beta}`.
    pub(crate) fn read(args: &Args<'_>, name: &str) -> Result<Option<Self>, OpError> {
        if let Some(Value::Map(_)) = args.get(name) {
            let Some(map) = args.nested(name, &["kaiser"])? else {
                return Ok(None);
            };
            let beta = map.float("kaiser")?;
            if !(0.0..=100.0).contains(&beta) {
                return Err(map.error("kaiser", format!("is {beta}"), "it lies between 0 and 100"));
            }
            return Ok(Some(Self::Kaiser(beta)));
        }
        Ok(Some(match args.word_opt(name)? {
            None => return Ok(None),
            Some("rectangular") => Self::Rectangular,
            Some("hann") => Self::Hann,
            Some("hamming") => Self::Hamming,
            Some("blackman") => Self::Blackman,
            Some(word) => {
                let words = [
                    "rectangular",
                    "hann",
                    "hamming",
                    "blackman",
                    "{\"kaiser\": beta}",
                ];
                return Err(args.unknown_word(name, word, &words));
            }
        }))
    }

    /// Value at `t` in [0, 1] of the window's length.
    fn at(self, t: f64) -> f64 {
        match self {
            Self::Rectangular => 1.0,
            Self::Hann => 0.5 - 0.5 * (TAU * t).cos(),
            Self::Hamming => 0.54 - 0.46 * (TAU * t).cos(),
            Self::Blackman => 0.42 - 0.5 * (TAU * t).cos() + 0.08 * (2.0 * TAU * t).cos(),
            Self::Kaiser(beta) => {
                let x = 2.0 * t - 1.0;
                bessel_i0(beta * (1.0 - x * x).max(0.0).sqrt()) / bessel_i0(beta)
            }
        }
    }

    /// n values; `periodic` leaves out the last of n + 1, so that shifted copies add up evenly.
    pub(crate) fn values(self, n: usize, periodic: bool) -> Vec<f64> {
        let length = if periodic { n } else { n.saturating_sub(1) };
        if length == 0 {
            return vec![1.0; n];
        }
        (0..n).map(|i| self.at(i as f64 / length as f64)).collect()
    }
}

/// Modified Bessel function of the first kind, order 0, by its power series; all terms are positive.
fn bessel_i0(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    // The k-th term is (x²/4)^k / (k!)².
    let mut term = 1.0;
    let mut sum = 1.0;
    let mut k = 1.0;

    while term > sum * 1e-17 {
        term *= quarter / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

/// A filter to be designed by the window method (Oppenheim & Schafer, Discrete-Time Signal Processing, 7.5).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Design {
    /// Pass band in cycles per sample: [low, high], 0 and 0.5 being open ends.
    band: [f64; 2],
    pub(crate) taps: usize,
    window: WindowKind,
    gain: f64,
}

impl Design {
    /// What the map in parameter `design` says.
    pub(crate) fn read(args: &Args<'_>) -> Result<Option<Self>, OpError> {
        let known = ["kind", "cutoff", "rate", "taps", "window", "gain"];
        let Some(args) = args.nested("design", &known)? else {
            return Ok(None);
        };
        let kind = args.word("kind")?;
        let kinds = ["lowpass", "highpass", "bandpass"];
        if !kinds.contains(&kind) {
            return Err(args.unknown_word("kind", kind, &kinds));
        }
        let rate = args.positive("rate")?;
        let edges = args.numbers("cutoff")?.data;
        let expected = if kind == "bandpass" { 2 } else { 1 };
        if edges.len() != expected {
            let message = format!("has {} edges", edges.len());
            return Err(args.error("cutoff", message, format!("a {kind} filter has {expected}")));
        }
        let increasing = edges.windows(2).all(|e| e[0] < e[1]);
        if !increasing || edges.iter().any(|&e| e <= 0.0 || e >= rate / 2.0) {
            let help = format!("edges rise and lie between 0 and rate/2 = {}", rate / 2.0);
            return Err(args.error("cutoff", format!("is {edges:?}"), help));
        }
        let band = match kind {
            "lowpass" => [0.0, edges[0] / rate],
            "highpass" => [edges[0] / rate, 0.5],
            _ => [edges[0] / rate, edges[1] / rate],
        };
        let taps = args.uint("taps", 1, MAX_TAPS)? as usize;
        if kind == "highpass" && taps.is_multiple_of(2) {
            let help = "an even symmetric filter blocks rate/2: take an odd number";
            return Err(args.error("taps", format!("is {taps}"), help));
        }
        let window = WindowKind::read(&args, "window")?.unwrap_or(WindowKind::Hamming);
        let gain = args.float_or("gain", 1.0)?;
        Ok(Some(Self {
            band,
            taps,
            window,
            gain,
        }))
    }

    /// The taps, scaled to `gain` at the middle of the pass band (at 0 or rate/2 where it reaches there).
    pub(crate) fn run(&self) -> Vec<f64> {
        let [low, high] = self.band;
        let middle = (self.taps as f64 - 1.0) / 2.0;
        let ideal = |t: f64| {
            if t == 0.0 {
                return 2.0 * (high - low);
            }
            ((TAU * high * t).sin() - (TAU * low * t).sin()) / (PI * t)
        };
        let window = self.window.values(self.taps, false);
        let mut taps: Vec<f64> = window
            .iter()
            .enumerate()
            .map(|(i, w)| w * ideal(i as f64 - middle))
            .collect();
        let probe = match (low, high) {
            (0.0, _) => 0.0,
            (_, 0.5) => 0.5,
            _ => (low + high) / 2.0,
        };
        let at = |(i, t): (usize, &f64)| t * (TAU * probe * (i as f64 - middle)).cos();
        let response: f64 = taps.iter().enumerate().map(at).sum();
        if response.abs() > 1e-12 {
            taps.iter_mut().for_each(|t| *t *= self.gain / response);
        }
        taps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_their_known_values() {
        let cases: [(WindowKind, usize, bool, &[f64]); 5] = [
            (WindowKind::Hann, 5, false, &[0.0, 0.5, 1.0, 0.5, 0.0]),
            (WindowKind::Hann, 4, true, &[0.0, 0.5, 1.0, 0.5]),
            (WindowKind::Hamming, 3, false, &[0.08, 1.0, 0.08]),
            (WindowKind::Blackman, 3, false, &[0.0, 1.0, 0.0]),
            // I0(5) = 27.239871823604442.
            (
                WindowKind::Kaiser(5.0),
                3,
                false,
                &[1.0 / 27.239_871_823_604_442, 1.0, 0.036_710_893],
            ),
        ];
        for (kind, n, periodic, expect) in cases {
            let got = kind.values(n, periodic);
            assert_eq!(got.len(), n);
            for (g, e) in got.iter().zip(expect) {
                assert!((g - e).abs() < 1e-8, "{kind:?}: {got:?}");
            }
        }
        assert_eq!(WindowKind::Hann.values(1, false), [1.0]);
    }

    #[test]
    fn designs_pass_and_stop_what_they_should() {
        let response = |taps: &[f64], f: f64| {
            let (mut re, mut im) = (0.0, 0.0);
            for (k, t) in taps.iter().enumerate() {
                re += t * (TAU * f * k as f64).cos();
                im += t * (TAU * f * k as f64).sin();
            }
            f64::hypot(re, im)
        };
        let kaiser = WindowKind::Kaiser(8.0);
        for (band, pass, stop) in [
            ([0.0, 0.1], [0.0, 0.07], [0.14, 0.5]),
            ([0.3, 0.5], [0.34, 0.5], [0.0, 0.26]),
            ([0.1, 0.2], [0.14, 0.16], [0.05, 0.25]),
        ] {
            let taps = Design {
                band,
                taps: 101,
                window: kaiser,
                gain: 2.0,
            }
            .run();
            for f in pass {
                assert!((response(&taps, f) - 2.0).abs() < 2e-3, "{band:?} at {f}");
            }
            for f in stop {
                assert!(
                    response(&taps, f) < 2e-3,
                    "{band:?} at {f}: {}",
                    response(&taps, f)
                );
            }
        }
    }
}
