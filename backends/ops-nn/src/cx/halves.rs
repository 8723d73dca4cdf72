//! Ops that compute in another type than they store.

use std::sync::Arc;

use bytemuck::Pod;
use half::{bf16, f16};
use zbmd_ir::{DType, TokenType};

use super::{Body, Cx, Inputs, Operand, Plan, Tensors};
use zbmd_op::OpError;
use zbmd_op::kernel::Io;

/// Inputs, at most, of an op that computes in another type than it stores.
const MAX_CONVERTED: usize = 16;

/// Runs a body of f32 or i32 for operands and outputs that are stored in half precision or as narrow integers.
pub(crate) struct Halves {
    body: Arc<dyn Body>,
    /// None where an operand is missing.
    inputs: Vec<Option<Stored>>,
    outputs: Vec<Stored>,
}

/// How a tensor is stored.
#[derive(Clone, Copy)]
struct Stored {
    dtype: DType,
    elements: usize,
}

impl Stored {
    fn of(ty: &TokenType) -> Self {
        Self {
            dtype: ty.dtype,
            elements: ty.elements() as usize,
        }
    }

    /// Elements of scratch memory for it, wide: rounded up so that the next begins aligned to 64 bytes.
    fn wide_len(&self) -> usize {
        match is_half(self.dtype) {
            true => self.elements.next_multiple_of(16),
            false => 0,
        }
    }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16 | DType::I8 | DType::I16)
}

impl Halves {
    /// Whether an operand or output is stored in another type than it is computed in.
    fn is_needed(plan: &Plan, ins: &[Option<Operand>]) -> bool {
        ins.iter().flatten().any(|o| is_half(o.ty.dtype))
            || plan.outs.iter().any(|t| is_half(t.dtype))
    }

    /// Refuses more operands than can be converted in one call.
    pub(crate) fn check(plan: &Plan, ins: &[Option<Operand>]) -> Result<(), OpError> {
        let is_too_much = ins.len() > MAX_CONVERTED || plan.outs.len() > MAX_CONVERTED;
        if !is_too_much || !Self::is_needed(plan, ins) {
            return Ok(());
        }
        let count = ins.len();
        let message =
            format!("{count} operands, some of a narrow type; the limit is {MAX_CONVERTED} then");
        Err(Cx::other(message, "cast them first"))
    }

    /// Wraps the plan's body where an operand or output is in half precision.
    pub(crate) fn wrap(plan: Plan, ins: &[Option<Operand>]) -> Plan {
        if !Self::is_needed(&plan, ins) {
            return plan;
        }
        let inputs: Vec<Option<Stored>> = ins
            .iter()
            .map(|operand| operand.as_ref().map(|operand| Stored::of(&operand.ty)))
            .collect();
        let outputs: Vec<Stored> = plan.outs.iter().map(Stored::of).collect();
        let make = plan.make;
        let flops = plan.flops;
        // Variants keep their names: what is chosen for the wide body is chosen for this one.
        let numbered_variants: Vec<_> = plan.variants.iter().copied().zip(0..).collect();
        let wrap = move |variant| {
            Ok(Box::new(Halves {
                body: make.body(variant)?,
                inputs,
                outputs,
            }) as Box<dyn Body>)
        };
        match numbered_variants.is_empty() {
            true => Plan::lazy(plan.outs, move || wrap(0)).flops(flops),
            false => Plan::in_variants(plan.outs, &numbered_variants, wrap).flops(flops),
        }
    }
}

/// Converts elements of one type into those of another.
fn convert<F: Pod, T: Pod>(from: &[u8], to: &mut [u8], f: impl Fn(F) -> T) {
    let elements: &[F] = bytemuck::cast_slice(from);
    let converted: &mut [T] = bytemuck::cast_slice_mut(to);
    for (target, &element) in converted.iter_mut().zip(elements) {
        *target = f(element);
    }
}

fn widen(from: &[u8], dtype: DType, to: &mut [f32]) {
    let to = bytemuck::cast_slice_mut(to);
    match dtype {
        DType::F16 => convert(from, to, f16::to_f32),
        DType::Bf16 => convert(from, to, bf16::to_f32),
        DType::I16 => convert::<i16, i32>(from, to, i32::from),
        _ => convert::<i8, i32>(from, to, i32::from),
    }
}

fn narrow(from: &[f32], dtype: DType, to: &mut [u8]) {
    let from = bytemuck::cast_slice(from);
    match dtype {
        DType::F16 => convert(from, to, f16::from_f32),
        DType::Bf16 => convert(from, to, bf16::from_f32),
        DType::I16 => convert(from, to, |v: i32| v as i16),
        _ => convert(from, to, |v: i32| v as i8),
    }
}

impl Body for Halves {
    fn run(&self, tensors: &mut Tensors<'_>) {
        // Scratch memory: wide operands, wide outputs, and behind them the body's own.
        let mut rest: &mut [f32] = tensors.scratch::<f32>();
        let mut wide_inputs: [Option<&[u8]>; MAX_CONVERTED] = [None; MAX_CONVERTED];
        for (i, operand) in self.inputs.iter().enumerate() {
            let Some(stored) = operand else {
                continue;
            };
            let bytes = tensors.bytes(i);
            wide_inputs[i] = Some(bytes);
            if is_half(stored.dtype) {
                let (wide, later) = std::mem::take(&mut rest).split_at_mut(stored.wide_len());
                rest = later;
                let elements = &mut wide[..stored.elements];
                widen(bytes, stored.dtype, elements);
                wide_inputs[i] = Some(bytemuck::cast_slice(elements));
            }
        }

        let wide_len: usize = self.outputs.iter().map(Stored::wide_len).sum();
        let (wide_outputs, body_scratch) = rest.split_at_mut(wide_len);
        let mut left: &mut [f32] = &mut *wide_outputs;
        let mut outs: [&mut [u8]; Io::MAX_MUT_PORTS] = std::array::from_fn(|_| Default::default());
        for (o, stored) in self.outputs.iter().enumerate() {
            if is_half(stored.dtype) {
                let (wide, later) = std::mem::take(&mut left).split_at_mut(stored.wide_len());
                left = later;
                outs[o] = bytemuck::cast_slice_mut(&mut wide[..stored.elements]);
            } else {
                outs[o] = tensors.out_bytes(o);
            }
        }
        self.body.run(&mut Tensors {
            ins: Inputs::Slices(&wide_inputs[..self.inputs.len()]),
            outs,
            over: None,
            scratch: bytemuck::cast_slice_mut(body_scratch),
        });

        // Only now are all outputs complete: they are narrowed in the order in which they were laid out.
        let mut wide_start = 0;
        for (o, stored) in self.outputs.iter().enumerate() {
            if is_half(stored.dtype) {
                let wide = &wide_outputs[wide_start..][..stored.elements];
                narrow(wide, stored.dtype, tensors.out_bytes(o));
                wide_start += stored.wide_len();
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        let inputs = self.inputs.iter().flatten().map(Stored::wide_len);
        let outputs = self.outputs.iter().map(Stored::wide_len);
        let wide_len = inputs.sum::<usize>() + outputs.sum::<usize>();
        4 * wide_len + self.body.scratch_bytes().next_multiple_of(64)
    }
}
