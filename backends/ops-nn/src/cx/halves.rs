//! Ops that compute in another type than they store.

use std::sync::Arc;

use bytemuck::Pod;
use half::{bf16, f16};
use zbmd_ir::DType;

use super::{Body, Cx, Inputs, Operand, Plan, Tensors};
use zbmd_op::OpError;
use zbmd_op::kernel::Io;

/// Most inputs of an op that computes in another type than it stores.
const MAX_CONVERTED: usize = 16;

/// Runs a body of f32 or i32 for operands and outputs that are stored in half precision or as narrow integers.
pub(crate) struct Halves {
    body: Arc<dyn Body>,
    /// Type and elements of each operand; elements 0 where it is missing.
    ins: Vec<Option<(DType, usize)>>,
    outs: Vec<(DType, usize)>,
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16 | DType::I8 | DType::I16)
}

/// Elements rounded up so that the next begins aligned to 64 bytes.
fn padded(elements: usize) -> usize {
    elements.next_multiple_of(16)
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
        Err(Cx::other(
            format!(
                "{} operands, some of a narrow type; the limit is {MAX_CONVERTED} then",
                ins.len()
            ),
            "cast them first",
        ))
    }

    /// Wraps the plan's body where an operand or output is in half precision.
    pub(crate) fn wrap(plan: Plan, ins: &[Option<Operand>]) -> Plan {
        if !Self::is_needed(&plan, ins) {
            return plan;
        }
        let ins: Vec<_> = ins
            .iter()
            .map(|o| o.as_ref().map(|o| (o.ty.dtype, o.ty.elements() as usize)))
            .collect();
        let outs: Vec<_> = plan
            .outs
            .iter()
            .map(|t| (t.dtype, t.elements() as usize))
            .collect();
        let make = plan.make;
        let flops = plan.flops;
        let numbered: Vec<_> = plan.variants.iter().copied().zip(0..).collect();
        let wrap = move |variant| {
            Ok(Box::new(Halves {
                body: make.body(variant)?,
                ins,
                outs,
            }) as Box<dyn Body>)
        };
        match numbered.is_empty() {
            true => Plan::lazy(plan.outs, move || wrap(0)).flops(flops),
            false => Plan::in_variants(plan.outs, &numbered, wrap).flops(flops),
        }
    }
}

/// Converts elements of one type into those of another.
fn convert<F: Pod, T: Pod>(from: &[u8], to: &mut [u8], f: impl Fn(F) -> T) {
    let from: &[F] = bytemuck::cast_slice(from);
    let to: &mut [T] = bytemuck::cast_slice_mut(to);
    to.iter_mut().zip(from).for_each(|(t, &v)| *t = f(v));
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
    fn run(&self, t: &mut Tensors<'_>) {
        let mut rest: &mut [f32] = t.scratch::<f32>();
        let mut ins: [Option<&[u8]>; MAX_CONVERTED] = [None; MAX_CONVERTED];
        for (i, operand) in self.ins.iter().enumerate() {
            let Some((dtype, elements)) = *operand else {
                continue;
            };
            ins[i] = Some(t.bytes(i));
            if is_half(dtype) {
                let (wide, later) = std::mem::take(&mut rest).split_at_mut(padded(elements));
                rest = later;
                widen(t.bytes(i), dtype, &mut wide[..elements]);
                ins[i] = Some(bytemuck::cast_slice(&wide[..elements]));
            }
        }
        let mut outs: [&mut [u8]; Io::MAX_MUT_PORTS] = std::array::from_fn(|_| Default::default());
        let mut wide_outs: [(usize, usize); MAX_CONVERTED] = [(0, 0); MAX_CONVERTED];
        let total: usize = self
            .outs
            .iter()
            .filter(|(d, _)| is_half(*d))
            .map(|(_, n)| padded(*n))
            .sum();
        let (mine, scratch) = rest.split_at_mut(total);
        {
            let mut left: &mut [f32] = &mut *mine;
            let mut at = 0;
            for (o, &(dtype, elements)) in self.outs.iter().enumerate() {
                if is_half(dtype) {
                    let (wide, later) = std::mem::take(&mut left).split_at_mut(padded(elements));
                    left = later;
                    wide_outs[o] = (at, elements);
                    at += padded(elements);
                    outs[o] = bytemuck::cast_slice_mut(&mut wide[..elements]);
                } else {
                    outs[o] = t.out_bytes(o);
                }
            }
            let mut inner = Tensors {
                ins: Inputs::Slices(&ins[..self.ins.len()]),
                outs,
                over: None,
                scratch: bytemuck::cast_slice_mut(scratch),
            };
            self.body.run(&mut inner);
        }
        for (o, &(dtype, _)) in self.outs.iter().enumerate() {
            if is_half(dtype) {
                let (at, elements) = wide_outs[o];
                narrow(&mine[at..at + elements], dtype, t.out_bytes(o));
            }
        }
    }

    fn scratch_bytes(&self) -> usize {
        let ins = self
            .ins
            .iter()
            .flatten()
            .filter(|(d, _)| is_half(*d))
            .map(|(_, n)| padded(*n));
        let outs = self
            .outs
            .iter()
            .filter(|(d, _)| is_half(*d))
            .map(|(_, n)| padded(*n));
        4 * (ins.sum::<usize>() + outs.sum::<usize>())
            + self.body.scratch_bytes().next_multiple_of(64)
    }
}
