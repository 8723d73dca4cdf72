//! Channels scaled and shifted: what a normalisation by constants is.

use zbmd_ir::DType;

use super::super::aligned::AlignedFloats;
use super::super::attributes;
use super::super::cx::{Body, Cx, Plan, Planned, Tensors, constant_f32, token, volume};
use super::super::gemm::Act;
use super::super::index::COPY_COST;
use super::image_dims;
use zbmd_op::simd::{self, Isa, Loop};
use zbmd_op::team;

/// `act(x · scale + shift)`, with a scale and a shift for each channel.
pub(in super::super) fn affine(cx: &Cx<'_>) -> Planned {
    let dims = image_dims(cx)?;
    let [.., channels] = dims;
    for position in [1, 2] {
        if cx.dims(position)? != [channels] {
            return Err(cx.refuse_type(position, format!("it is [{channels}]")));
        }
    }

    let constant = |position| {
        let elements = constant_f32(cx.operand(position)?).unwrap_or_default();
        Ok(AlignedFloats::from(&elements[..]))
    };
    let body = Affine {
        scale: constant(1)?,
        shift: constant(2)?,
        act: attributes::activation(cx)?,
    };
    let out = token(DType::F32, &dims);
    Ok(Plan::new(vec![out], body).flops(3.0 * volume(&dims) as f64))
}

struct Affine {
    scale: AlignedFloats,
    shift: AlignedFloats,
    act: Act,
}

/// Pixels on their way to results.
struct Pixels<'a> {
    affine: &'a Affine,
    input: &'a [f32],
    output: &'a mut [f32],
}

impl Loop for Pixels<'_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Affine { scale, shift, act } = self.affine;
        let channels = scale.len();
        let results = self.output.chunks_exact_mut(channels);
        for (pixel, result) in self.input.chunks_exact(channels).zip(results) {
            // As many of each as there are channels: without a check for each element.
            let scaled = pixel.iter().zip(&scale[..channels]);
            let shifted = scaled.zip(&shift[..channels]);
            for (y, ((x, scale), shift)) in result.iter_mut().zip(shifted) {
                *y = simd::fma::<FMA>(*x, *scale, *shift);
            }
            act.apply::<FMA>(result);
        }
    }
}

impl Body for Affine {
    fn run(&self, tensors: &mut Tensors<'_>) {
        let input = tensors.get::<f32>(0);
        let output = tensors.out::<f32>(0);
        let channels = self.scale.len();
        let work = COPY_COST * output.len();
        team::share_slice(work, output, channels, &|first, output| {
            let start = first * channels;
            simd::dispatch(Pixels {
                affine: self,
                input: &input[start..start + output.len()],
                output,
            });
        });
    }
}
