//! Plain-loop signal processing in f64 for tests: what kernels are held against. Slow on purpose, and clear.

use std::f64::consts::{PI, TAU};

/// Modified Bessel function of the first kind, order 0, by its power series.
fn bessel_i0(x: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..200 {
        term *= (x / (2.0 * f64::from(k))).powi(2);
        sum += term;
    }
    sum
}

/// Taps of a low pass by the Kaiser window method, scaled to `gain` at 0 Hz.
pub fn kaiser_lowpass(cutoff: f64, rate: f64, taps: usize, beta: f64, gain: f64) -> Vec<f64> {
    let middle = (taps as f64 - 1.0) / 2.0;
    let tap = |i: usize| {
        let t = i as f64 - middle;
        let angle = TAU * cutoff / rate * t;
        let sinc = if t == 0.0 {
            2.0 * cutoff / rate
        } else {
            angle.sin() / (PI * t)
        };
        let x = t / middle;
        sinc * bessel_i0(beta * (1.0 - x * x).max(0.0).sqrt())
    };
    let taps: Vec<f64> = (0..taps).map(tap).collect();
    let sum: f64 = taps.iter().sum();
    taps.iter().map(|t| t * gain / sum).collect()
}

/// `y[m] = Σ h[k] u[m M − k]` for u = x with `up − 1` zeros after each sample; as many outputs as x covers.
pub fn resample(x: &[f64], taps: &[f64], up: usize, down: usize) -> Vec<f64> {
    let output = |m: usize| {
        let at = m * down;
        let first = at % up;
        let products = (first..taps.len()).step_by(up).zip((0..=at / up).rev());
        products
            .map(|(k, n)| taps[k] * x.get(n).copied().unwrap_or(0.0))
            .sum()
    };
    (0..x.len() * up / down).map(output).collect()
}

/// 10 log10 of the power of `reference` over the power of the difference.
///
/// # Panics
/// If the lengths differ.
pub fn snr_db(reference: &[f64], signal: &[f64]) -> f64 {
    assert_eq!(reference.len(), signal.len());
    let power: f64 = reference.iter().map(|r| r * r).sum();
    let error: f64 = reference
        .iter()
        .zip(signal)
        .map(|(r, s)| (r - s) * (r - s))
        .sum();
    10.0 * (power / error).log10()
}

/// Power of a tone in a signal, by least squares, and that of all else.
pub fn tone_and_rest(signal: &[f64], frequency: f64, rate: f64) -> (f64, f64) {
    let waves = |n: usize| (TAU * frequency / rate * n as f64).sin_cos();
    // The normal equations of a sine and a cosine.
    let (mut ss, mut sc, mut cc, mut sy, mut cy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (n, y) in signal.iter().enumerate() {
        let (s, c) = waves(n);
        ss += s * s;
        sc += s * c;
        cc += c * c;
        sy += s * y;
        cy += c * y;
    }
    let determinant = ss * cc - sc * sc;
    let of_sine = (sy * cc - cy * sc) / determinant;
    let of_cosine = (cy * ss - sy * sc) / determinant;

    let rest = signal.iter().enumerate().map(|(n, y)| {
        let (s, c) = waves(n);
        (y - of_sine * s - of_cosine * c).powi(2)
    });
    let tone = (of_sine.powi(2) + of_cosine.powi(2)) / 2.0;
    (tone, rest.sum::<f64>() / signal.len() as f64)
}

/// Sum of equally strong sines with the given frequencies, phases spread by the golden angle; peak at most 1.
pub fn tones(frequencies: &[f64], rate: f64, samples: usize) -> Vec<f64> {
    let amplitude = 1.0 / frequencies.len() as f64;
    let sample = |n: usize| {
        let sine =
            |(i, f): (usize, &f64)| (TAU * (f * n as f64 / rate + 0.381_966 * i as f64)).sin();
        amplitude * frequencies.iter().enumerate().map(sine).sum::<f64>()
    };
    (0..samples).map(sample).collect()
}

/// A linear sweep of amplitude 1.
pub fn sweep(from: f64, to: f64, rate: f64, samples: usize) -> Vec<f64> {
    let seconds = samples as f64 / rate;
    let sample = |n: usize| {
        let t = n as f64 / rate;
        (TAU * (from * t + (to - from) * t * t / (2.0 * seconds))).sin()
    };
    (0..samples).map(sample).collect()
}

/// Samples as f32 bytes, for a source.
pub fn to_f32_bytes(samples: &[f64]) -> Vec<u8> {
    samples
        .iter()
        .flat_map(|&s| (s as f32).to_ne_bytes())
        .collect()
}

/// Samples of a sink of f32 (or c32: pairs).
pub fn from_f32_bytes(bytes: &[u8]) -> Vec<f64> {
    let (chunks, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty(), "{} bytes are no f32 samples", bytes.len());
    chunks
        .iter()
        .map(|c| f64::from(f32::from_ne_bytes(*c)))
        .collect()
}

/// What a recording has where nobody speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// Noise of the level of the recording's own pauses.
    Noise,
    /// Zeros, as from a microphone that is muted.
    Zeros,
}

impl Silence {
    /// So many samples of 16 bits.
    fn samples(self, count: usize, rng: &mut fastrand::Rng) -> Vec<u8> {
        const NOISE_LEVEL: i16 = 60;
        let mut sample = || match self {
            Self::Noise => rng.i16(-NOISE_LEVEL..=NOISE_LEVEL),
            Self::Zeros => 0,
        };
        (0..count).flat_map(|_| sample().to_le_bytes()).collect()
    }
}

/// A recording of speech, 16 kHz, samples of 16 bits, between four times as much silence before it and five times as much
/// after it.
pub fn speech_in_silence(recording: &[u8], silence: Silence) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(5);
    let count = (recording.len() / FRAME_BYTES) * FRAME_SAMPLES;
    let before = silence.samples(4 * count, &mut rng);
    let after = silence.samples(5 * count, &mut rng);
    [&before, &recording[..2 * count], &after].concat()
}

/// A recording of speech, 16 kHz, samples of 16 bits, cut within its longer pauses; each piece is followed by nine times as
/// much silence. Then zeros in which the last segment of speech ends.
pub fn mostly_silent_speech(recording: &[u8], silence: Silence) -> Vec<u8> {
    const END_FRAMES: usize = 40;
    let mut rng = fastrand::Rng::with_seed(5);
    let mut audio = Vec::new();
    let mut first = 0;
    let mut cuts = pauses(recording);
    cuts.push(recording.len());
    for cut in cuts {
        let piece = &recording[first..cut];
        audio.extend_from_slice(piece);
        audio.extend(silence.samples(9 * piece.len() / 2, &mut rng));
        first = cut;
    }
    audio.resize(
        audio.len().next_multiple_of(FRAME_BYTES) + END_FRAMES * FRAME_BYTES,
        0,
    );
    audio
}

/// Bytes of a frame of the voice detector.
const FRAME_BYTES: usize = 1024;

/// The middle of every pause of at least 8 frames: where the mean square is below -50 dB of full scale.
fn pauses(recording: &[u8]) -> Vec<usize> {
    const MIN_FRAMES: usize = 8;
    let mut cuts = Vec::new();
    let mut quiet_frames = 0;
    for (index, frame) in recording.chunks_exact(FRAME_BYTES).enumerate() {
        let squares = frame.chunks_exact(2).map(|sample| {
            let sample = f64::from(i16::from_le_bytes([sample[0], sample[1]])) / 32_768.0;
            sample * sample
        });
        if squares.sum::<f64>() < 1.0e-5 * (FRAME_BYTES / 2) as f64 {
            quiet_frames += 1;
            continue;
        }
        if quiet_frames >= MIN_FRAMES {
            cuts.push((index - quiet_frames / 2) * FRAME_BYTES);
        }
        quiet_frames = 0;
    }
    cuts
}

/// Samples of a frame of the voice detector, at 16 kHz.
const FRAME_SAMPLES: usize = FRAME_BYTES / 2;

/// Spans of speech in samples at 16 kHz, from the detector's probability for each frame, as those who made the detector find
/// them (`get_speech_timestamps` of silero-vad with its defaults): speech begins with a frame of 0.5 or more, and ends with the
/// first of the frames below 0.35 that go on for 100 ms; what is no longer than 250 ms is none; each span gets 30 ms more on
/// either side, or half of the silence between two.
pub fn speech_timestamps(probabilities: &[f64]) -> Vec<(usize, usize)> {
    const BEGIN: f64 = 0.5;
    const END: f64 = 0.35;
    const MIN_SPEECH: usize = 4000;
    const MIN_SILENCE: usize = 1600;
    const PAD: usize = 480;
    let length = probabilities.len() * FRAME_SAMPLES;

    let mut spans: Vec<(usize, usize)> = Vec::new();
    let mut begin = None;
    let mut quiet_from = None;
    for (frame, &probability) in probabilities.iter().enumerate() {
        let place = frame * FRAME_SAMPLES;
        if probability >= BEGIN {
            quiet_from = None;
            begin.get_or_insert(place);
        }
        let Some(first) = begin else { continue };
        if probability >= END {
            continue;
        }
        let end = *quiet_from.get_or_insert(place);
        if place - end >= MIN_SILENCE {
            spans.push((first, end));
            (begin, quiet_from) = (None, None);
        }
    }
    spans.extend(begin.map(|first| (first, length)));
    spans.retain(|(first, end)| end - first > MIN_SPEECH);

    for index in 0..spans.len() {
        if index == 0 {
            spans[0].0 = spans[0].0.saturating_sub(PAD);
        }
        let end = spans[index].1;
        let Some(next) = spans.get_mut(index + 1) else {
            spans[index].1 = (end + PAD).min(length);
            break;
        };
        let silence = next.0 - end;
        let pad = if silence < 2 * PAD { silence / 2 } else { PAD };
        next.0 -= pad;
        spans[index].1 = end + pad;
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_speech_are_those_of_the_definition() {
        let frames = |runs: &[(usize, f64)]| -> Vec<f64> {
            let runs = runs.iter();
            runs.flat_map(|&(count, p)| std::iter::repeat_n(p, count))
                .collect()
        };
        // From the first to the fourth frame below 0.35 are 1,536 samples: the fifth ends it.
        let speech = frames(&[(10, 0.1), (20, 0.9), (5, 0.2), (10, 0.1)]);
        assert_eq!(speech_timestamps(&speech), [(5120 - 480, 30 * 512 + 480)]);
        let breath = frames(&[(10, 0.1), (20, 0.9), (3, 0.2), (7, 0.6), (10, 0.1)]);
        assert_eq!(speech_timestamps(&breath), [(5120 - 480, 40 * 512 + 480)]);
        // Between the two thresholds nothing begins and nothing ends.
        let between = frames(&[(10, 0.4), (20, 0.9), (9, 0.4)]);
        assert_eq!(speech_timestamps(&between), [(5120 - 480, 39 * 512)]);
        let click = frames(&[(10, 0.1), (7, 0.9), (20, 0.1)]);
        assert_eq!(speech_timestamps(&click), []);
    }

    #[test]
    fn a_resampled_tone_is_the_tone_at_the_new_rate() {
        let taps = kaiser_lowpass(0.25, 3.0, 121, 12.0, 3.0);
        let x = tones(&[0.1], 1.0, 400);
        let y = resample(&x, &taps, 3, 2);
        assert_eq!(y.len(), 600);
        // 60 samples of delay at 3 per unit of time are 30 output samples.
        let expect = tones(&[0.1], 1.5, 570);
        assert!(snr_db(&expect[100..400], &y[130..430]) > 80.0);
    }
}
