//! Numbers by a formula: windows, mel weights, ranges.

use std::f64::consts::{LN_10, TAU};

use zbmd_ir::{DType, TokenType};

use super::super::attributes;
use super::super::cx::{Cx, Plan, Planned, Tensors, by_element, expect_count, token};
use super::super::num::Num;
use super::{first_float, first_int, point_count};

/// Mel weights of a table, at most.
const MAX_WEIGHTS: usize = 1 << 24;

/// Hann, Hamming and Blackman windows of a constant length.
pub(crate) fn window(cx: &Cx<'_>, name: &str) -> Planned {
    let points = point_count(cx, 0, first_int(cx, 0)?, 1)?;
    let terms: [f64; 3] = match name {
        "HannWindow" => [0.5, 0.5, 0.0],
        "HammingWindow" => [25.0 / 46.0, 21.0 / 46.0, 0.0],
        _ => [0.42, 0.5, 0.08],
    };
    // A periodic window goes on with its first point, a symmetric one ends with it.
    let is_periodic = cx.flag("periodic", true)?;
    let period = match is_periodic {
        true => points,
        false => points.saturating_sub(1).max(1),
    };
    let dtype = attributes::result_dtype(cx, DType::F32)?;
    by_element!(
        dtype,
        window_plan(token(dtype, &[points]), terms, period as f64)
    )
}

/// `a₀ − a₁ cos φ + a₂ cos 2φ`.
fn window_plan<T: Num>(out: TokenType, terms: [f64; 3], period: f64) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        for (i, weight) in tensors.out::<T>(0).iter_mut().enumerate() {
            let angle = TAU * i as f64 / period;
            let value = terms[0] - terms[1] * angle.cos() + terms[2] * (2.0 * angle).cos();
            *weight = T::of(value);
        }
    }))
}

/// Pitch on the mel scale, of hertz.
fn mel_of(hertz: f64) -> f64 {
    2595.0 * (hertz / 700.0).ln_1p() / LN_10
}

/// Hertz of a pitch on the mel scale.
fn hertz_of(mel: f64) -> f64 {
    700.0 * (mel / 2595.0 * LN_10).exp_m1()
}

/// Triangles on the mel scale. Operands: bands, points of the transform, sample rate, lower and upper edge in hertz.
pub(crate) fn mel(cx: &Cx<'_>) -> Planned {
    let bands = point_count(cx, 0, first_int(cx, 0)?, 1)?;
    let points = point_count(cx, 1, first_int(cx, 1)?, 1)?;
    // At least 1, so that the division by it has a result.
    let sample_rate = Ord::max(first_int(cx, 2)?.unwrap_or(1), 1) as f64;
    let low = mel_of(first_float(cx, 3)?);
    let high = mel_of(first_float(cx, 4)?);

    // Edges of bands are equally far apart in mel; each is moved down to a bin of the transform.
    let edge_bin = |i: usize| {
        let edge = low + i as f64 * (high - low) / (bands + 2) as f64;
        let bin = (points + 1) as f64 * hertz_of(edge) / sample_rate;
        bin.floor().max(0.0) as usize
    };
    let bins = points / 2 + 1;
    if bins.saturating_mul(bands) > MAX_WEIGHTS {
        let message = format!("makes {bins} by {bands} weights");
        return Err(cx.refuse(0, message, "fewer bands or points"));
    }
    if edge_bin(bands + 1) > bins {
        let message = "is beyond half the sample rate";
        return Err(cx.refuse(4, message, "lower the upper edge"));
    }

    let mut weights = vec![0.0; bins * bands];
    for band in 0..bands {
        let triangle = Triangle {
            first: edge_bin(band),
            top: edge_bin(band + 1),
            end: edge_bin(band + 2),
        };
        // A band narrower than a bin still has its top.
        for bin in triangle.first..triangle.end.max(triangle.top + 1) {
            if let Some(weight) = weights.get_mut(bin * bands + band) {
                *weight = triangle.weight(bin);
            }
        }
    }
    let dtype = attributes::result_dtype(cx, DType::F32)?;
    by_element!(dtype, table_plan(token(dtype, &[bins, bands]), weights))
}

/// A band: from the bin where it begins by its top to the one before which it ends.
struct Triangle {
    first: usize,
    top: usize,
    end: usize,
}

impl Triangle {
    /// Rises to 1 at the top and falls from there. The falling side has the last word at the top.
    fn weight(&self, bin: usize) -> f64 {
        if bin >= self.top && bin < self.end {
            return (self.end - bin) as f64 / (self.end - self.top) as f64;
        }
        match self.top - self.first {
            0 => 1.0,
            rise => (bin - self.first) as f64 / rise as f64,
        }
    }
}

fn table_plan<T: Num>(out: TokenType, table: Vec<f64>) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        for (element, &value) in tensors.out::<T>(0).iter_mut().zip(&table) {
            *element = T::of(value);
        }
    }))
}

/// Numbers from a start to a limit, all constants. Operands: start, limit, step.
pub(crate) fn range(cx: &Cx<'_>) -> Planned {
    let dtype = cx.dtype(0)?;
    for i in 0..3 {
        expect_count(cx, i, &[1], dtype)?;
    }
    let start = first_float(cx, 0)?;
    let limit = first_float(cx, 1)?;
    let step = first_float(cx, 2)?;
    // ⌈(limit − start) / step⌉ numbers, none where the step leads away from the limit.
    let count = ((limit - start) / step).ceil().max(0.0);
    if !count.is_finite() || count > f64::from(u32::MAX) {
        let message = format!("is {step}: the range never ends");
        return Err(cx.refuse(2, message, "a step towards the limit"));
    }
    by_element!(
        dtype,
        range_plan(token(dtype, &[count as usize]), start, step)
    )
}

fn range_plan<T: Num>(out: TokenType, start: f64, step: f64) -> Planned {
    Ok(Plan::new(vec![out], move |tensors: &mut Tensors<'_>| {
        for (i, element) in tensors.out::<T>(0).iter_mut().enumerate() {
            *element = T::of(start + step * i as f64);
        }
    }))
}
