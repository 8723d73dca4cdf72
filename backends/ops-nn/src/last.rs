//! Convolutions and pools of images whose channels come last: `[n, height, width, channels]`.
//!
//! Not ONNX operators: a pass of the compiler puts them in the place of those. Lanes run along channels, so that a
//! window's row is one run of memory: a convolution multiplies rows of pixels, as they lie, with packed weights
//! (Dukhan 2019, The Indirect Convolution Algorithm, arXiv 1907.02129, with offsets in place of pointers), no
//! columns are gathered, and sums leave the registers once, with bias, added tensor and bounds applied.

mod depthwise;
mod pool;
mod rows;

use std::borrow::Cow;
use std::ops::Range;

use zbmd_ir::DType;

use super::conv::check_tables;
use super::cx::{Body, Cx, Plan, Planned, constant_f32, token, volume};
use super::gemm::{Act, Tile, Weights};
use super::matmul::act;
use super::window::Window;
use depthwise::{Depthwise, Reuse};
pub(super) use pool::{global, pool};
use rows::{Rows, packed_filters, packed_filters_len};
use zbmd_op::OpError;
use zbmd_op::simd::{Isa, Loop};

/// A batch of images.
#[derive(Clone)]
struct Image {
    batch: usize,
    channels: usize,
    window: Window,
}

fn image(cx: &Cx<'_>) -> Result<[usize; 4], OpError> {
    cx.expect(0, &[DType::F32])?;
    match cx.dims(0)?[..] {
        [n, h, w, c] if n > 0 && c > 0 => Ok([n, h, w, c]),
        _ => Err(cx.refuse(
            0,
            format!("is {}", cx.operand(0)?.ty),
            "[n, height, width, channels]",
        )),
    }
}

/// Convolution with constant weights as ONNX has them: [filters, channels / groups, height, width].
pub(super) fn conv(cx: &Cx<'_>) -> Planned {
    let [batch, h, w, channels] = image(cx)?;
    let weights = cx.operand(1)?.clone();
    let groups = cx.args.uint_or("group", 1, 1, 1 << 30)? as usize;
    let (filters, per, kernel) = match weights.dims()[..] {
        [f, per, kh, kw]
            if per.checked_mul(groups) == Some(channels) && f > 0 && f.is_multiple_of(groups) =>
        {
            (f, per, [kh, kw])
        }
        _ => {
            let message = format!("is {}, the input {}", weights.ty, cx.operand(0)?.ty);
            return Err(cx.refuse(
                1,
                message,
                format!("[filters, channels / {groups}, kernel…]"),
            ));
        }
    };
    let window = Window::new(cx, &[h, w], &kernel)?;
    check_tables(&window, volume(&kernel), channels)?;
    let out = [batch, window.output[1], window.output[2], filters];
    let bias = cx.opt(2).cloned();
    if let Some(bias) = &bias
        && bias.dims() != [filters]
    {
        return Err(cx.refuse(2, format!("is {}", bias.ty), format!("it is [{filters}]")));
    }
    if let Some(added) = cx.opt(3)
        && added.ty != token(DType::F32, &out)
    {
        return Err(cx.refuse(
            3,
            format!("is {}", added.ty),
            format!("the result is {out:?}"),
        ));
    }
    let act = act(cx)?;
    let image = Image {
        batch,
        channels,
        window,
    };
    let flops = 2.0 * out.iter().product::<usize>() as f64 * (per * kernel[0] * kernel[1]) as f64;
    let (groups_of, own) = ((groups, per, filters / groups), weights.clone());
    let outs = vec![token(DType::F32, &out)];
    if per == 1 && filters == groups {
        let variants = Reuse::of(&image.window);
        let make = move |reuse| {
            let bias = bias.as_ref().and_then(constant_f32).map(Cow::into_owned);
            let data = constant_f32(&weights).unwrap_or_default();
            Ok(Box::new(Depthwise::new(image, &data, bias, (act, reuse))) as Box<dyn Body>)
        };
        let plan = match variants {
            [] => Plan::lazy(outs, move || make(Reuse::Read)),
            _ => Plan::in_variants(outs, variants, make),
        };
        return Ok(plan.flops(3.0 * flops));
    }
    let plan = Plan::in_variants(outs, &Tile::ALL, move |tile| {
        let bias = bias.as_ref().and_then(constant_f32).map(Cow::into_owned);
        let data = constant_f32(&weights).unwrap_or_default();
        let make = || packed_filters(&data, groups_of, kernel);
        let len = packed_filters_len(groups_of, kernel);
        let packed = Weights::new(weights.packed.clone(), len, make)?;
        Ok(Box::new(Rows::new(
            image,
            groups_of,
            packed,
            bias,
            (act, tile),
        )))
    });
    Ok(plan.flops(flops).over([3]).packs(1, move || {
        packed_filters(&constant_f32(&own).unwrap_or_default(), groups_of, kernel)
    }))
}

/// Activations that are bounds are applied in registers.
fn bounds(act: Act) -> Option<(f32, f32)> {
    match act {
        Act::Relu => Some((0.0, f32::INFINITY)),
        Act::Clip(low, high) => Some((low, high)),
        _ => None,
    }
}

struct Finish<'a>(&'a mut [f32], Act);

impl Loop for Finish<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        self.1.apply::<FMA>(self.0);
    }
}

/// Kernel rows and columns that lie within the image, for an output place.
fn within(w: &Window, d: usize, o: usize) -> Range<usize> {
    let first = o * w.stride[d];
    let low = w.before[d].saturating_sub(first).div_ceil(w.dilation[d]);
    let high = (w.input[d] + w.before[d])
        .saturating_sub(first)
        .div_ceil(w.dilation[d]);
    low.min(w.kernel[d])..high.min(w.kernel[d])
}

/// Calls `f` with the number of every output pixel of some lines, and the kernel rows and columns within the image.
#[inline(always)]
fn pixels(
    w: &Window,
    lines: Range<usize>,
    mut f: impl FnMut(usize, [usize; 2], [Range<usize>; 2]),
) {
    let [_, _, ow] = w.output;
    for oy in lines {
        let ys = within(w, 1, oy);
        for ox in 0..ow {
            f(oy * ow + ox, [oy, ox], [ys.clone(), within(w, 2, ox)]);
        }
    }
}

/// The pixel under a kernel element that lies within the image.
#[inline(always)]
fn under(w: &Window, o: [usize; 2], k: [usize; 2]) -> usize {
    let y = o[0] * w.stride[1] + k[0] * w.dilation[1] - w.before[1];
    let x = o[1] * w.stride[2] + k[1] * w.dilation[2] - w.before[2];
    y * w.input[2] + x
}

type Near<'a> = (&'a Range<usize>, &'a Range<usize>);
