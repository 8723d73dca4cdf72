//! What is said of the tokens of a block: extremes, mean and power, and what they oscillate at.

use half::{bf16, f16};
use zbmd_fft::power_spectrum;
use zbmd_ir::{DType, TokenType};

/// The elements of tokens, each with a real and an imaginary part.
pub(crate) fn elements(dtype: DType, bytes: &[u8]) -> Vec<(f64, f64)> {
    fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Vec<(f64, f64)> {
        let (whole, _) = bytes.as_chunks::<N>();
        whole.iter().map(|bytes| (value(*bytes), 0.0)).collect()
    }
    match dtype {
        DType::F32 => each(bytes, |bytes| f32::from_le_bytes(bytes).into()),
        DType::F64 => each(bytes, f64::from_le_bytes),
        DType::F16 => each(bytes, |bytes| f16::from_le_bytes(bytes).into()),
        DType::Bf16 => each(bytes, |bytes| bf16::from_le_bytes(bytes).into()),
        DType::I8 => each(bytes, |bytes| i8::from_le_bytes(bytes).into()),
        DType::U8 | DType::Bool => each(bytes, |bytes| u8::from_le_bytes(bytes).into()),
        DType::I16 => each(bytes, |bytes| i16::from_le_bytes(bytes).into()),
        DType::I32 => each(bytes, |bytes| i32::from_le_bytes(bytes).into()),
        DType::I64 => each(bytes, |bytes| i64::from_le_bytes(bytes) as f64),
        DType::C32 => {
            let numbers = elements(DType::F32, bytes);
            let pairs = numbers.as_chunks::<2>().0.iter();
            pairs.map(|[re, im]| (re.0, im.0)).collect()
        }
    }
}

/// Figures of the elements of a block. Those of complex ones are of their magnitudes, but for the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BlockStats {
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) mean: (f64, f64),
    pub(crate) rms: f64,
    /// Elements that are no finite numbers; the other figures leave them out.
    pub(crate) non_finite: usize,
}

impl BlockStats {
    pub(crate) fn of(dtype: DType, bytes: &[u8]) -> Self {
        let all = elements(dtype, bytes);
        let finite: Vec<(f64, f64)> = all
            .iter()
            .copied()
            .filter(|(re, im)| re.is_finite() && im.is_finite())
            .collect();
        let size = |(re, im): &(f64, f64)| match dtype {
            DType::C32 => re.hypot(*im),
            _ => *re,
        };
        let count = finite.len().max(1) as f64;
        let sum = |part: fn(&(f64, f64)) -> f64| finite.iter().map(part).sum::<f64>();
        let power = sum(|(re, im)| re * re + im * im);
        Self {
            min: finite.iter().map(size).reduce(f64::min).unwrap_or(0.0),
            max: finite.iter().map(size).reduce(f64::max).unwrap_or(0.0),
            mean: (sum(|(re, _)| *re) / count, sum(|(_, im)| *im) / count),
            rms: (power / count).sqrt(),
            non_finite: all.len() - finite.len(),
        }
    }
}

/// Squares of amplitudes by frequency, in parts of the rate of elements.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spectrum {
    /// The frequency of the first; the others follow at equal steps.
    pub(crate) first: f64,
    pub(crate) step: f64,
    pub(crate) powers: Vec<f64>,
}

/// The spectrum of a block's elements: of complex ones from minus a half to a half, of others from 0 to a half.
///
/// # Errors
/// Why there is none: one element does not oscillate, and tokens of several rows are no samples one after the other.
pub(crate) fn spectrum_of(token: &TokenType, bytes: &[u8]) -> Result<Spectrum, String> {
    let mut samples = elements(token.dtype, bytes);
    let count = samples.len();
    if token.shape.len() > 1 {
        return Err(format!(
            "a token is {token}, which is no row of samples: look at its figures, or at its tokens with --output"
        ));
    }
    if count < 4 {
        return Err(format!(
            "a block has {count} samples, too few to oscillate: compile with longer blocks (`--block`), or look at its figures"
        ));
    }
    for sample in &mut samples {
        if !(sample.0.is_finite() && sample.1.is_finite()) {
            *sample = (0.0, 0.0);
        }
    }

    let mut powers = power_spectrum(&samples);
    let step = 1.0 / count as f64;
    if token.dtype == DType::C32 {
        let negative = count / 2;
        powers.rotate_left(count - negative);
        return Ok(Spectrum {
            first: -(negative as f64) * step,
            step,
            powers,
        });
    }
    // An oscillation of real numbers is two of half the amplitude.
    powers.truncate(count / 2 + 1);
    let last = powers.len() - 1;
    for (bin, power) in powers.iter_mut().enumerate() {
        let is_single = bin == 0 || (bin == last && count.is_multiple_of(2));
        *power *= if is_single { 1.0 } else { 4.0 };
    }
    Ok(Spectrum {
        first: 0.0,
        step,
        powers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_all_types_are_numbers() {
        for (dtype, bytes, expected) in [
            (DType::F32, 1.5f32.to_le_bytes().to_vec(), (1.5, 0.0)),
            (DType::F64, (-2.5f64).to_le_bytes().to_vec(), (-2.5, 0.0)),
            (
                DType::F16,
                f16::from_f32(0.5).to_le_bytes().to_vec(),
                (0.5, 0.0),
            ),
            (
                DType::Bf16,
                bf16::from_f32(4.0).to_le_bytes().to_vec(),
                (4.0, 0.0),
            ),
            (DType::I8, vec![0xff], (-1.0, 0.0)),
            (DType::U8, vec![0xff], (255.0, 0.0)),
            (DType::Bool, vec![1], (1.0, 0.0)),
            (DType::I16, (-300i16).to_le_bytes().to_vec(), (-300.0, 0.0)),
            (
                DType::I32,
                70_000i32.to_le_bytes().to_vec(),
                (70_000.0, 0.0),
            ),
            (DType::I64, (-9i64).to_le_bytes().to_vec(), (-9.0, 0.0)),
            (
                DType::C32,
                [1.0f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat(),
                (1.0, -2.0),
            ),
        ] {
            assert_eq!(elements(dtype, &bytes), [expected], "{dtype:?}");
        }
    }

    #[test]
    fn figures_leave_out_what_is_no_number() {
        let bytes: Vec<u8> = [3.0f32, -4.0, f32::NAN, 1.0].map(f32::to_le_bytes).concat();
        let stats = BlockStats::of(DType::F32, &bytes);
        let BlockStats { min, max, mean, .. } = stats;
        assert_eq!(
            (min, max, mean, stats.non_finite),
            (-4.0, 3.0, (0.0, 0.0), 1)
        );
        assert!((stats.rms - (26.0f64 / 3.0).sqrt()).abs() < 1e-12);
    }

    /// Full-scale tones have power 1, real and complex ones, above and below zero.
    #[test]
    fn spectra_find_tones() {
        let phase = |index: usize, bin: f64| std::f64::consts::TAU * bin * index as f64 / 64.0;
        let real: Vec<u8> = (0..64)
            .flat_map(|index| (phase(index, 8.0).cos() as f32).to_le_bytes())
            .collect();
        let complex: Vec<u8> = (0..64)
            .flat_map(|index| {
                let angle = phase(index, -8.0);
                [angle.cos(), angle.sin()].map(|part| (part as f32).to_le_bytes())
            })
            .flatten()
            .collect();
        for (dtype, bytes, frequency) in [(DType::F32, real, 0.125), (DType::C32, complex, -0.125)]
        {
            let spectrum = spectrum_of(&TokenType::scalar(dtype), &bytes).expect("samples");
            let powers = spectrum.powers.iter().enumerate();
            let (bin, power) = powers.max_by(|a, b| a.1.total_cmp(b.1)).expect("some");
            assert_eq!(spectrum.first + bin as f64 * spectrum.step, frequency);
            assert!((power - 1.0).abs() < 1e-6, "{power}");
        }
        let one = spectrum_of(&TokenType::scalar(DType::F32), &[0; 4]).expect_err("one sample");
        assert!(one.contains("1 samples, too few"), "{one}");
    }
}
