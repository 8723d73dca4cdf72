//! The table of the interpolation filter: a sinc in a Kaiser window, at many positions between two input frames. All of
//! it is computed from additions, multiplications, divisions and square roots, which IEEE 754 defines to the bit: the
//! system's `sin` differs between machines.

use std::f64::consts::PI;

/// Positions between two input frames; between these the coefficients are interpolated linearly, which is wrong by the
/// square of (frequency / (rate x positions)): -123 dB for 20 kHz at 48 kHz.
pub(super) const PHASE_BITS: u32 = 9;
const PHASES: usize = 1 << PHASE_BITS;
/// Input frames on either side of an output frame, where the output's rate is not below the input's.
const HALF_TAPS: f64 = 32.0;
/// Sums are made in so many lanes.
pub(super) const LANES: usize = 8;
/// For a stop band of -120 dB, by Kaiser's formula 0.1102 (A - 8.7). With 64 taps the transition is an eighth of the
/// rate wide: 21 to 27 kHz at 48 kHz.
const KAISER_BETA: f64 = 12.27;
/// A ratio of rates beyond this makes the filter too long.
pub(super) const MAX_RATE_RATIO: f64 = 64.0;

/// Coefficients for each position, a row each.
pub(super) struct FilterTable {
    rows: Vec<f32>,
    taps: usize,
}

impl FilterTable {
    /// A table for a low-pass below both Nyquist frequencies.
    pub(super) fn new(source_rate: f64, sink_rate: f64) -> Self {
        let cutoff = (sink_rate / source_rate).clamp(1.0 / MAX_RATE_RATIO, 1.0);
        // Two halves of a multiple of four fill whole groups of lanes.
        let half_taps = (HALF_TAPS / cutoff / 4.0).ceil() as usize * 4;
        let taps = 2 * half_taps;

        let mut rows = Vec::with_capacity((PHASES + 1) * taps);
        let mut row = vec![0.0; taps];
        for phase in 0..=PHASES {
            let position = phase as f64 / PHASES as f64;
            for (tap, coefficient) in row.iter_mut().enumerate() {
                let distance = position + (half_taps as f64 - 1.0 - tap as f64);
                *coefficient = sinc(cutoff * distance) * kaiser_window(distance / half_taps as f64);
            }

            // A constant goes through unchanged at each position.
            let sum: f64 = row.iter().sum();
            rows.extend(row.iter().map(|coefficient| (coefficient / sum) as f32));
        }
        Self { rows, taps }
    }

    /// Input frames that an output frame is made of.
    pub(super) fn taps(&self) -> usize {
        self.taps
    }

    /// Coefficients for a position between two input frames, in 32 binary places.
    pub(super) fn interpolate(&self, position: u32, coefficients: &mut [f32]) {
        const BELOW_BITS: u32 = 32 - PHASE_BITS;
        let phase = (position >> BELOW_BITS) as usize;
        let below = position & ((1 << BELOW_BITS) - 1);
        // Both conversions are exact: there are 23 bits.
        let weight = below as f32 / (1u32 << BELOW_BITS) as f32;

        let (row, rest) = self.rows[phase * self.taps..].split_at(self.taps);
        let next_row = &rest[..self.taps];
        for ((coefficient, low), high) in coefficients.iter_mut().zip(row).zip(next_row) {
            *coefficient = low + weight * (high - low);
        }
    }
}

/// The sum of products, in a fixed order that fits vector units.
pub(super) fn dot_product(coefficients: &[f32], samples: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let coefficient_groups = coefficients.as_chunks::<LANES>().0;
    let sample_groups = samples.as_chunks::<LANES>().0;
    for (coefficients, samples) in coefficient_groups.iter().zip(sample_groups) {
        for lane in 0..LANES {
            sums[lane] += coefficients[lane] * samples[lane];
        }
    }
    let quarters = [
        sums[0] + sums[4],
        sums[1] + sums[5],
        sums[2] + sums[6],
        sums[3] + sums[7],
    ];
    (quarters[0] + quarters[2]) + (quarters[1] + quarters[3])
}

/// sin(pi x) / (pi x).
fn sinc(x: f64) -> f64 {
    match x == 0.0 {
        true => 1.0,
        false => sine_of_pi(x) / (PI * x),
    }
}

/// sin(pi x), by its Taylor series within half a turn.
fn sine_of_pi(x: f64) -> f64 {
    let nearest = x.round();
    let angle = PI * (x - nearest);
    let square = angle * angle;

    let mut term = angle;
    let mut sum = angle;
    for n in 1..=12 {
        let factor = f64::from(2 * n) * f64::from(2 * n + 1);
        term = -term * square / factor;
        sum += term;
    }
    let is_odd = (nearest as i64) & 1 == 1;
    if is_odd { -sum } else { sum }
}

/// Kaiser's window at -1 to 1.
fn kaiser_window(x: f64) -> f64 {
    let inside = 1.0 - x * x;
    match inside > 0.0 {
        true => bessel_i0(KAISER_BETA * inside.sqrt()) / bessel_i0(KAISER_BETA),
        false => 0.0,
    }
}

/// The modified Bessel function of the first kind and order 0, by its power series.
fn bessel_i0(x: f64) -> f64 {
    let half = x / 2.0;
    let mut term = 1.0;
    let mut sum = 1.0;
    for n in 1..=60 {
        let factor = half / f64::from(n);
        term *= factor * factor;
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_functions_are_the_mathematical_ones() {
        for step in -2000..2000 {
            let x = f64::from(step) / 61.0;
            assert!((sine_of_pi(x) - (PI * x).sin()).abs() < 1e-13, "{x}");
        }
        // Abramowitz and Stegun, table 9.8 and its continuation.
        assert!((bessel_i0(1.0) - 1.266_065_877_752_008_4).abs() < 1e-14);
        assert!((bessel_i0(10.0) / 2_815.716_628_466_254 - 1.0).abs() < 1e-13);
    }

    #[test]
    fn tables_are_the_same_on_every_machine() {
        let table = FilterTable::new(48e3, 44.1e3);
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for coefficient in &table.rows {
            for byte in coefficient.to_bits().to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
        assert_eq!(
            (table.taps, format!("{hash:016x}")),
            (72, "a0f59dda2ed247e9".to_owned())
        );
    }

    #[test]
    fn nothing_passes_above_the_stop_band() {
        // The response of the continuous filter, from all rows together.
        let table = FilterTable::new(48e3, 48e3);
        let response = |cycles_per_frame: f64| {
            let mut real = 0.0;
            let mut imaginary = 0.0;
            for phase in 0..PHASES {
                for tap in 0..table.taps {
                    let distance = phase as f64 / PHASES as f64 - tap as f64;
                    let angle = 2.0 * PI * cycles_per_frame * distance;
                    let coefficient = f64::from(table.rows[phase * table.taps + tap]);
                    real += coefficient * angle.cos();
                    imaginary += coefficient * angle.sin();
                }
            }
            20.0 * (real.hypot(imaginary) / PHASES as f64).log10()
        };
        for cycles in [0.01, 0.1, 0.25, 0.4, 0.43] {
            assert!(
                response(cycles).abs() < 0.01,
                "{cycles}: {}",
                response(cycles)
            );
        }
        for cycles in [0.57, 0.6, 0.75, 1.01, 1.5, 2.2] {
            assert!(response(cycles) < -115.0, "{cycles}: {}", response(cycles));
        }
    }
}
