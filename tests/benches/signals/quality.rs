//! How well a converter from 44.1 to 48 kHz keeps tones, and what it adds to them.
//!
//! A tone goes in for a while, alone. From what comes out once the converter has settled, the tone of the same frequency is
//! taken by least squares: its level is the pass band's. What is left, images and noise, is given relative to the tone.

use std::f64::consts::TAU;

use zbmd_tests::signal::tone_and_rest;

const INPUT_RATE: f64 = 44_100.0;
const OUTPUT_RATE: f64 = 48_000.0;
/// Samples of each tone: calls of our converters many times over.
const TONE_SAMPLES: usize = 147 * 32 * 6;
/// Outputs of a tone that are looked at, in its middle.
const LOOKED_AT: std::ops::Range<usize> = 8_000..24_000;
/// Frequencies in the pass band, and between its end and half the sample rate, whose images the converter has to keep away.
const PASS_BAND: [f64; 14] = [
    20.0, 50.0, 107.0, 440.0, 997.0, 2003.0, 3989.0, 7993.0, 11_027.0, 14_009.0, 17_011.0,
    18_503.0, 19_501.0, 19_999.0,
];
const ABOVE: [f64; 5] = [20_411.0, 20_807.0, 21_203.0, 21_613.0, 21_977.0];

/// Something that converts a stream, piece by piece.
pub(crate) trait Converter {
    /// What comes out when these samples go in next; all of them fit calls of every converter.
    fn convert(&mut self, cd: &[f32]) -> Vec<f32>;
}

/// What was measured.
pub(crate) struct Quality {
    /// Largest deviation of a tone's level in the pass band.
    pub(crate) ripple_db: f64,
    /// Most of what comes with a tone of the pass band.
    pub(crate) residue_db: f64,
    /// The same of a tone above it, relative to what went in.
    pub(crate) images_db: f64,
}

pub(crate) fn measure(mut converter: impl Converter) -> Quality {
    let mut tones = |frequencies: &[f64]| -> Vec<(f64, f64)> {
        let measured = frequencies
            .iter()
            .map(|&frequency| tone(&mut converter, frequency));
        measured.collect()
    };
    let decibels = |power: f64| 10.0 * power.log10();
    let pass_band = tones(&PASS_BAND);
    let above = tones(&ABOVE);
    let largest = |values: Vec<f64>| values.into_iter().fold(f64::NEG_INFINITY, f64::max);
    Quality {
        ripple_db: largest(
            pass_band
                .iter()
                .map(|(level, _)| decibels(*level).abs())
                .collect(),
        ),
        residue_db: largest(pass_band.iter().map(|(_, rest)| decibels(*rest)).collect()),
        images_db: largest(above.iter().map(|(_, rest)| decibels(*rest)).collect()),
    }
}

/// Powers of a tone in the output and of the rest, relative to the tone that goes in.
fn tone(converter: &mut impl Converter, frequency: f64) -> (f64, f64) {
    const AMPLITUDE: f64 = 0.5;
    let sample = |n: usize| (AMPLITUDE * (TAU * frequency / INPUT_RATE * n as f64).sin()) as f32;
    let cd: Vec<f32> = (0..TONE_SAMPLES).map(sample).collect();
    let dat = converter.convert(&cd);
    let dat: Vec<f64> = dat[LOOKED_AT]
        .iter()
        .map(|&sample| f64::from(sample))
        .collect();

    let (tone, rest) = tone_and_rest(&dat, frequency, OUTPUT_RATE);
    let power = AMPLITUDE.powi(2) / 2.0;
    (tone / power, rest / power)
}
