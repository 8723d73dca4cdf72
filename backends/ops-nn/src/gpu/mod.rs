//! Kernels of the tensor ops for GPUs, from operands that fit: a plan for the CPU exists already.
//!
//! Movement is described by that plan ([`Moves`]); all else is worked out from operands and the op's spec, which was
//! parsed for both kinds of kernels. No parameter of an op can be read here: a [`Gpu`] does not have them. Constants
//! are bound as they are stored in the program. A refusal is a clause that says why an actor stays on the CPU.

mod attention;
mod contract;
mod elementwise;
mod fourier;
mod image;
mod indices;
mod libraries;
mod losses;
mod moves;
mod pools;
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

use super::operands::{Operand, dims};
use zbmd_gpu_ir::lang::Ty;
use zbmd_gpu_ir::library::{self, Product};
use zbmd_gpu_ir::tensor::product::Variant;
use zbmd_gpu_ir::tensor::{Slot, Tensor, TensorKernelBuilder, Why};
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
    /// Positions of the outputs that are wanted.
    pub(super) wanted: Vec<usize>,
    /// The types of those outputs.
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
        let elements = operand.ty.elements();
        if elements == 0 {
            return Err("an operand is empty".to_owned());
        }

        let memory = match &operand.data {
            Some(data) => self.constant(data.clone()),
            None => Memory::Input(self.port(i)),
        };
        Ok(Slot {
            operand: memory,
            dtype: operand.ty.dtype,
            elements,
            constant: matches!(memory, Memory::Const(_)),
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
        let elements = operand.ty.elements();
        let rounded_dtype = match math {
            Math::F16 => DType::F16,
            Math::Bf16 => DType::Bf16,
            Math::F32 | Math::Tf32 => return self.slot(i),
        };
        let is_rounded = operand.ty.dtype == DType::F32 && elements > 0;
        let Some(data) = operand.data.as_ref().filter(|_| is_rounded) else {
            return self.slot(i);
        };

        let floats: Vec<f32> = data
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
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
        Ok(Slot {
            operand: self.constant(Bytes::from(bytes)),
            dtype: rounded_dtype,
            elements,
            constant: true,
        })
    }

    /// What is asked for among these kernels, the default one first, and the library, if it can do the product.
    fn choose(&self, kernels: &[Variant], library: Option<Product<Memory>>) -> Choice {
        let mut names: Vec<_> = kernels.iter().map(|kernel| kernel.name()).collect();
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
        let is_rounded = |i: usize| self.dtype(i).map(|dtype| dtype != factors[i].dtype);
        let on_cores = matches!(variant, Variant::Cores { .. });
        let rounds_any = on_cores || is_rounded(0)? || is_rounded(1)?;
        Ok(plan.in_math(if rounds_any { math } else { Math::F32 }))
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

    /// Operand `i` bound to a kernel, if it is there.
    fn bind_optional<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        i: usize,
    ) -> Result<Option<Tensor<'k>>, Why> {
        self.opt_slot(i)?.map(|slot| bench.reads(slot)).transpose()
    }

    /// The same of an operand of indices.
    fn bind_index<'k>(
        &self,
        bench: &'k TensorKernelBuilder,
        i: usize,
    ) -> Result<Option<Tensor<'k>>, Why> {
        self.opt_slot(i)?
            .map(|slot| bench.reads_index(slot))
            .transpose()
    }

    fn operand(&self, i: usize) -> Result<&Operand, Why> {
        self.opt(i)
            .ok_or_else(|| "an operand is missing".to_owned())
    }

    /// Number of the input port of operand `i`.
    fn port(&self, i: usize) -> u32 {
        let operands_before = self.operands.ins.iter().take(i).flatten();
        // Constants have no port.
        let ports_before = operands_before.filter(|operand| operand.data.is_none());
        ports_before.count() as u32
    }

    /// A table of the plan; the same memory is the same table.
    fn constant(&self, bytes: Bytes) -> Memory {
        let mut consts = self.consts.borrow_mut();
        let known_index = consts
            .iter()
            .position(|known| known.as_ptr() == bytes.as_ptr() && known.len() == bytes.len());
        let index = known_index.unwrap_or_else(|| {
            consts.push(bytes);
            consts.len() - 1
        });
        Memory::Const(index as u32)
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
        let token = &self.outs[o];
        Slot {
            operand: Memory::Output(o as u32),
            dtype: token.dtype,
            elements: token.elements(),
            constant: false,
        }
    }

    /// The output at a position of the operator, if it is wanted.
    fn wanted(&self, position: usize) -> Option<Slot> {
        self.operands
            .wanted
            .iter()
            .position(|&wanted| wanted == position)
            .map(|number| self.out(number))
    }

    fn out_dims(&self, o: usize) -> Vec<usize> {
        dims(&self.outs[o])
    }

    fn dims(&self, i: usize) -> Result<Vec<usize>, Why> {
        Ok(self.operand(i)?.dims())
    }

    fn dtype(&self, i: usize) -> Result<DType, Why> {
        Ok(self.operand(i)?.ty.dtype)
    }
}

/// Whether elements are in memory as factors of 16 bits.
fn is_factor(slot: Slot, math: Math) -> bool {
    matches!(
        (slot.dtype, math),
        (DType::F16, Math::F16) | (DType::Bf16, Math::Bf16)
    )
}

/// An error as a clause: parameters were checked before, so none is expected.
fn refusal(error: OpError) -> Why {
    error.to_string()
}
