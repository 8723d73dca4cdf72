//! Fourier transforms: of lines of a tensor, and of overlapping frames.

use std::sync::Arc;

use num_complex::Complex;
use zbmd_fft::{self as transforms, Fft, FftDirection};
use zbmd_ir::DType;

use super::super::cx::{Body, Cx, Plan, Planned, Tensors, token, volume};
use super::super::index::AxisView;
use super::{first_int, point_count};
use zbmd_op::OpError;

/// A transform along an axis.
pub(crate) struct DftSpec {
    pub(crate) axis: usize,
    pub(crate) inverse: bool,
    /// Whether half a spectrum comes out, or, if it is inverse, in.
    pub(crate) onesided: bool,
    /// How many points are asked for.
    pub(crate) points: Option<i64>,
}

impl DftSpec {
    pub(crate) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        let axis = first_int(cx, 2)?.unwrap_or(-2);
        Ok(Self {
            axis: cx.axis(axis, cx.dims(0)?.len())?,
            inverse: cx.flag("inverse", false)?,
            onesided: onesided(cx, false)?,
            points: first_int(cx, 1)?,
        })
    }
}

/// Whether only the first half of a spectrum is stored, of which the other is the mirror.
fn onesided(cx: &Cx<'_>, default: bool) -> Result<bool, OpError> {
    cx.flag("onesided", default)
}

pub(crate) fn dft(cx: &Cx<'_>, spec: &DftSpec) -> Planned {
    let dtype = cx.expect(0, &[DType::F32, DType::F16, DType::Bf16])?;
    let dims = cx.dims(0)?;
    let Some((&input_parts @ 1..=2, line_dims)) = dims.split_last() else {
        return Err(refuse_parts(cx));
    };
    if line_dims.is_empty() {
        return Err(refuse_parts(cx));
    }
    if spec.axis >= line_dims.len() {
        let message = "is the dimension of real and imaginary parts";
        return Err(cx.refuse(2, message, "choose another"));
    }

    let half_comes_in = spec.inverse && spec.onesided;
    let half_comes_out = !spec.inverse && spec.onesided;
    let input_length = dims[spec.axis];
    // n / 2 + 1 elements of half a spectrum stand for n = 2 (length − 1) points.
    let natural_points = match half_comes_in {
        true => 2 * input_length.saturating_sub(1),
        false => input_length,
    };
    let points = point_count(cx, 1, spec.points, natural_points)?;
    let kept = if half_comes_out {
        points / 2 + 1
    } else {
        points
    };
    // What half a spectrum stands for is real.
    let output_parts = if half_comes_in { 1 } else { 2 };

    let mut out_dims = line_dims.to_vec();
    out_dims[spec.axis] = kept;
    out_dims.push(output_parts);
    let view = AxisView::of(line_dims, spec.axis);
    let is_inverse = spec.inverse;
    let flops = transform_flops(volume(&out_dims), points);
    let make = move || {
        let direction = match is_inverse {
            true => FftDirection::Inverse,
            false => FftDirection::Forward,
        };
        Ok(Box::new(Dft {
            fft: transforms::complex_f64(points, direction),
            points,
            view,
            input_parts,
            output_parts,
            kept,
            is_inverse,
            half_comes_in,
        }) as Box<dyn Body>)
    };
    Ok(Plan::lazy(vec![token(dtype, &out_dims)], make).flops(flops))
}

fn refuse_parts(cx: &Cx<'_>) -> OpError {
    cx.refuse_type(0, "a last dimension of 1 or 2: real or complex")
}

/// 5 n log₂ n operations for n complex points, by the elements of the result.
fn transform_flops(out_elements: usize, points: usize) -> f64 {
    10.0 * out_elements as f64 * (points as f64).log2().max(1.0)
}

/// A transform of lines of a tensor, in f64.
struct Dft {
    fft: Arc<dyn Fft<f64>>,
    points: usize,
    /// The lines, elements counted whatever their parts.
    view: AxisView,
    /// Parts of an element: 1 for real, 2 for complex numbers.
    input_parts: usize,
    output_parts: usize,
    /// Elements kept along the axis.
    kept: usize,
    is_inverse: bool,
    half_comes_in: bool,
}

impl Dft {
    /// Element k of a line. A line that is shorter than the transform is followed by zeros.
    fn element(&self, input: &[f32], outer: usize, k: usize, inner: usize) -> Complex<f64> {
        let length = self.view.length;
        if self.half_comes_in && k > self.points / 2 {
            // The other half of a spectrum mirrors the given one.
            let mirrored = self.points - k;
            return match mirrored < length {
                true => self.given_element(input, outer, mirrored, inner).conj(),
                false => Complex::new(0.0, 0.0),
            };
        }
        match k < length {
            true => self.given_element(input, outer, k, inner),
            false => Complex::new(0.0, 0.0),
        }
    }

    fn given_element(&self, input: &[f32], outer: usize, k: usize, inner: usize) -> Complex<f64> {
        let place = self.view.at(outer, k, inner) * self.input_parts;
        let imaginary = match self.input_parts {
            2 => f64::from(input[place + 1]),
            _ => 0.0,
        };
        Complex::new(f64::from(input[place]), imaginary)
    }
}

impl Body for Dft {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<f32>(0);
        let output = tensors.out::<f32>(0);
        let scratch = tensors.scratch::<Complex<f64>>();
        let (line, rest) = scratch.split_at_mut(self.points);
        let work = &mut rest[..self.fft.get_inplace_scratch_len()];
        // The inverse transform divides by n, the forward one by nothing.
        let scale = match self.is_inverse {
            true => 1.0 / self.points as f64,
            false => 1.0,
        };
        let output_view = AxisView {
            length: self.kept,
            ..self.view
        };

        for outer in 0..self.view.outer {
            for inner in 0..self.view.inner {
                for (k, element) in line.iter_mut().enumerate() {
                    *element = self.element(input, outer, k, inner);
                }
                self.fft.process_with_scratch(line, work);

                for (k, element) in line[..self.kept].iter().enumerate() {
                    let place = output_view.at(outer, k, inner) * self.output_parts;
                    output[place] = (element.re * scale) as f32;
                    if self.output_parts == 2 {
                        output[place + 1] = (element.im * scale) as f32;
                    }
                }
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        16 * (self.points + self.fft.get_inplace_scratch_len())
    }
}

/// Transforms of overlapping frames under a window.
pub(crate) struct StftSpec {
    /// Elements from a frame to the next, if they are asked for.
    pub(crate) step: Option<i64>,
    /// Points of a frame, if they are asked for.
    pub(crate) points: Option<i64>,
    onesided: bool,
}

impl StftSpec {
    pub(crate) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            step: first_int(cx, 1)?,
            points: first_int(cx, 3)?,
            onesided: onesided(cx, true)?,
        })
    }
}

pub(crate) fn stft(cx: &Cx<'_>, spec: &StftSpec) -> Planned {
    let dtype = cx.expect(0, &[DType::F32, DType::F16, DType::Bf16])?;
    let (batch, length, parts) = match cx.dims(0)?[..] {
        [batch, length] => (batch, length, 1),
        [batch, length, parts @ 1..=2] => (batch, length, parts),
        _ => return Err(cx.refuse_type(0, "[n, length, 1 or 2]")),
    };
    let window_length = cx.opt(2).map(|window| window.ty.elements() as usize);
    let points = point_count(cx, 3, spec.points, window_length.unwrap_or(length))?;
    let step = point_count(cx, 1, spec.step, 1)?;
    if points > length || window_length.is_some_and(|own| own != points) {
        let message =
            format!("has {length} elements, frames {points}, the window {window_length:?}");
        let help = "frames as long as the window, within the signal";
        return Err(cx.refuse(0, message, help));
    }

    // The spectrum of a real signal is its own mirror; that of a complex one is not.
    let keeps_half = spec.onesided && parts == 1;
    // Only whole frames count: nothing is padded at either end.
    let frames = 1 + (length - points) / step;
    let kept = if keeps_half { points / 2 + 1 } else { points };
    let out_dims = [batch, frames, kept, 2];
    let flops = transform_flops(volume(&out_dims), points);
    let make = move || {
        Ok(Box::new(Stft {
            fft: transforms::complex_f32(points, FftDirection::Forward),
            batch,
            length,
            parts,
            step,
            points,
            frames,
            kept,
        }) as Box<dyn Body>)
    };
    Ok(Plan::lazy(vec![token(dtype, &out_dims)], make).flops(flops))
}

struct Stft {
    fft: Arc<dyn Fft<f32>>,
    batch: usize,
    /// Elements of a signal, and the parts of each.
    length: usize,
    parts: usize,
    /// Elements from a frame to the next.
    step: usize,
    points: usize,
    frames: usize,
    /// Elements kept of each spectrum.
    kept: usize,
}

impl Body for Stft {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<f32>(0);
        let window = tensors.opt::<f32>(2);
        let output = tensors.out::<f32>(0);
        let scratch = tensors.scratch::<Complex<f32>>();
        let (line, rest) = scratch.split_at_mut(self.points);
        let work = &mut rest[..self.fft.get_inplace_scratch_len()];

        for batch in 0..self.batch {
            for frame in 0..self.frames {
                let first = batch * self.length + frame * self.step;
                for (k, element) in line.iter_mut().enumerate() {
                    let place = (first + k) * self.parts;
                    // Frames overlap, so that each takes its elements from the signal afresh, under the window.
                    let weight = window.map_or(1.0, |w| w[k]);
                    let imaginary = match self.parts {
                        2 => input[place + 1] * weight,
                        _ => 0.0,
                    };
                    *element = Complex::new(input[place] * weight, imaginary);
                }
                self.fft.process_with_scratch(line, work);

                // The result is [n, frames, kept, 2]: real and imaginary parts side by side.
                let spectrum_start = (batch * self.frames + frame) * self.kept * 2;
                let spectrum = &mut output[spectrum_start..][..self.kept * 2];
                for (pair, element) in spectrum.chunks_exact_mut(2).zip(line.iter()) {
                    pair.copy_from_slice(&[element.re, element.im]);
                }
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        8 * (self.points + self.fft.get_inplace_scratch_len())
    }
}
