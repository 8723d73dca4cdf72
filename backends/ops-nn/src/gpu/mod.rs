//! Kernels of the tensor ops for GPUs, from operands that fit: a plan for the CPU exists already.
//!
//! Movement is described by that plan ([`Moves`]); all else is worked out from operands and the op's spec, which was
//! parsed for both kinds of kernels. No parameter of an op can be read here: a [`Gpu`] does not have them. Constants
//! are bound as they lie in the program. A refusal is a clause that says why an actor stays on the CPU.

mod attention;
mod contract;
mod elementwise;
mod fourier;
mod image;
mod indices;
mod libraries;
mod losses;
mod moves;
mod recurrent;
mod rows;
mod sample;
mod windows;

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use zbmd_ir::{DType, TokenType};

use super::cx::Operand;
use zbmd_gpu_ir::lang::Ty;
use zbmd_gpu_ir::library::{self, Product};
use zbmd_gpu_ir::tensor::product::Variant;
use zbmd_gpu_ir::tensor::{Slot, Why};
use zbmd_gpu_ir::{KernelPlan, Math, Operand as Memory};
use zbmd_op::{GpuRequest, OpError};

/// Kernels, or why there are none.
pub(crate) type Lowered = Result<KernelPlan, Why>;

/// How an op moves elements of operand 0.
#[derive(Clone)]
pub(crate) enum Moves {
    /// All bytes as they are.
    All,
    /// `out[i0, i1, …] = in[start + i0·steps[0] + …]`, elements of `size` bytes.
    Strided {
        dims: Vec<usize>,
        steps: Vec<isize>,
        start: usize,
        size: usize,
    },
    /// An element of operand 0 for each element of the result, or `u32::MAX` for the operand `fill`.
    Chosen {
        table: Arc<dyn Fn() -> Vec<u32> + Send + Sync>,
        fill: usize,
    },
}

/// Makes the kernels of an op.
pub(crate) type GpuKernels = Box<dyn Fn(&Gpu<'_>) -> Lowered + Send + Sync>;

/// What kernels are made from, beside the spec of their op.
pub(super) struct Operands {
    pub(super) operator: &'static str,
    /// What factors of products may be rounded to.
    pub(super) math: Math,
    pub(super) ins: Vec<Option<Operand>>,
    /// Indices of the outputs that are wanted.
    pub(super) wanted: Vec<usize>,
    /// Their types.
    pub(super) outs: Vec<TokenType>,
}

/// An op that is lowered.
pub(crate) struct Gpu<'a> {
    operands: &'a Operands,
    op: &'static str,
    outs: &'a [TokenType],
    request: GpuRequest,
    /// The names of the variants.
    names: RefCell<Vec<&'static str>>,
    consts: RefCell<Vec<Bytes>>,
}

/// A way to do a product.
enum Choice {
    Kernel(Variant),
    Library(Product<Memory>),
}

/// Kernels of an op for its operands and outputs.
pub(super) fn lower(operands: &Operands, kernels: &GpuKernels, request: GpuRequest) -> Lowered {
    let gpu = Gpu {
        operands,
        op: operands.operator,
        outs: &operands.outs,
        request,
        names: RefCell::default(),
        consts: RefCell::default(),
    };
    let mut plan = kernels(&gpu)?;
    plan.variants = gpu.names.into_inner();
    plan.consts = gpu.consts.into_inner();
    Ok(plan)
}

impl Gpu<'_> {
    /// Operand `i` as a tensor of a kernel; an empty one or a missing one is refused.
    fn slot(&self, i: usize) -> Result<Slot, Why> {
        let operand = self.operand(i)?;
        let (dtype, elements) = (operand.ty.dtype, operand.ty.elements());
        if elements == 0 {
            return Err("an operand is empty".to_owned());
        }
        let operand = match &operand.data {
            Some(data) => self.constant(data.clone()),
            None => Memory::Input(self.port(i)),
        };
        Ok(Slot {
            operand,
            dtype,
            elements,
            constant: matches!(operand, Memory::Const(_)),
        })
    }

    /// What factors of products of a type may be rounded to.
    fn math(&self, ty: Ty) -> Math {
        if ty == Ty::F32 && self.request.may_round {
            self.operands.math
        } else {
            Math::F32
        }
    }

    /// Operand `i`, a factor of products: a constant with all of its elements rounded, where that halves its size.
    fn factor(&self, i: usize, math: Math) -> Result<Slot, Why> {
        let operand = self.operand(i)?;
        let (dtype, elements) = match math {
            Math::F16 => (DType::F16, operand.ty.elements()),
            Math::Bf16 => (DType::Bf16, operand.ty.elements()),
            Math::F32 | Math::Tf32 => return self.slot(i),
        };
        let whole = operand.ty.dtype == DType::F32 && elements > 0;
        let Some(data) = operand.data.as_ref().filter(|_| whole) else {
            return self.slot(i);
        };
        let floats: Vec<f32> = data
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let mut bits = vec![0_u16; floats.len()];
        match math {
            Math::F16 => bits
                .reinterpret_cast_mut::<f16>()
                .convert_from_f32_slice(&floats),
            _ => bits
                .reinterpret_cast_mut::<bf16>()
                .convert_from_f32_slice(&floats),
        }
        let bytes: Vec<u8> = bits.into_iter().flat_map(u16::to_le_bytes).collect();
        let operand = self.constant(Bytes::from(bytes));
        Ok(Slot {
            operand,
            dtype,
            elements,
            constant: true,
        })
    }

    /// What is asked for among these kernels, the default one first, and the library, if it can do the product.
    fn choose(&self, kernels: &[Variant], library: Option<Product<Memory>>) -> Choice {
        let mut names: Vec<_> = kernels.iter().map(|k| k.name()).collect();
        names.extend(library.map(|_| library::NAME));
        if names.len() > 1 {
            self.names.replace(names);
        }
        match (kernels.get(self.request.variant), library) {
            (None, Some(product)) => Choice::Library(product),
            (kernel, _) => Choice::Kernel(kernel.copied().unwrap_or(kernels[0])),
        }
    }

    /// A plan of a product, with what was rounded on the way to it.
    fn rounded(
        &self,
        plan: KernelPlan,
        variant: Variant,
        factors: [Slot; 2],
        math: Math,
    ) -> Lowered {
        let there = |i: usize| self.dtype(i).map(|dtype| dtype != factors[i].dtype);
        let any = matches!(variant, Variant::Cores { .. }) || there(0)? || there(1)?;
        Ok(plan.in_math(if any { math } else { Math::F32 }))
    }

    /// Operand `i`, if it is there.
    fn opt(&self, i: usize) -> Option<&Operand> {
        self.operands
            .ins
            .get(i)
            .and_then(|operand| operand.as_ref())
    }

    /// Operand `i` as a tensor of a kernel, if it is there.
    fn opt_slot(&self, i: usize) -> Result<Option<Slot>, Why> {
        self.opt(i).map(|_| self.slot(i)).transpose()
    }

    fn operand(&self, i: usize) -> Result<&Operand, Why> {
        self.opt(i)
            .ok_or_else(|| "an operand is missing".to_owned())
    }

    /// Number of the input port of operand `i`.
    fn port(&self, i: usize) -> u32 {
        let before = self.operands.ins.iter().take(i).flatten();
        before.filter(|o| o.data.is_none()).count() as u32
    }

    /// A table of the plan.
    fn constant(&self, bytes: Bytes) -> Memory {
        let mut consts = self.consts.borrow_mut();
        let known = consts
            .iter()
            .position(|c| c.as_ptr() == bytes.as_ptr() && c.len() == bytes.len());
        let place = known.unwrap_or_else(|| {
            consts.push(bytes);
            consts.len() - 1
        });
        Memory::Const(place as u32)
    }

    /// A table of words.
    fn words(&self, words: impl IntoIterator<Item = u32>) -> Memory {
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        self.constant(Bytes::from(bytes))
    }

    /// A table of floats.
    fn floats(&self, values: impl IntoIterator<Item = f32>) -> Slot {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        let elements = bytes.len() as u64 / 4;
        let operand = self.constant(Bytes::from(bytes));
        Slot {
            operand,
            dtype: DType::F32,
            elements,
            constant: true,
        }
    }

    /// Output number `o` of those that are wanted.
    fn out(&self, o: usize) -> Slot {
        let ty = &self.outs[o];
        let (operand, dtype) = (Memory::Output(o as u32), ty.dtype);
        Slot {
            operand,
            dtype,
            elements: ty.elements(),
            constant: false,
        }
    }

    /// The output at a position of the operator, if it is wanted.
    fn wanted(&self, position: usize) -> Option<Slot> {
        self.operands
            .wanted
            .iter()
            .position(|&w| w == position)
            .map(|o| self.out(o))
    }

    fn out_dims(&self, o: usize) -> Vec<usize> {
        super::cx::dims(&self.outs[o])
    }

    fn dims(&self, i: usize) -> Result<Vec<usize>, Why> {
        Ok(self.operand(i)?.dims())
    }

    fn dtype(&self, i: usize) -> Result<DType, Why> {
        Ok(self.operand(i)?.ty.dtype)
    }
}

/// Whether elements lie in memory as factors of 16 bits.
fn is_factor(slot: Slot, math: Math) -> bool {
    matches!(
        (slot.dtype, math),
        (DType::F16, Math::F16) | (DType::Bf16, Math::Bf16)
    )
}

/// What an error says: parameters were checked before, so none is seen.
fn said(error: OpError) -> Why {
    error.to_string()
}
