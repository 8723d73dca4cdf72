//! Kernels over whole tensors: a token is a tensor, a call has the tokens of all its firings in a row.
//!
//! A [`TensorKernelBuilder`] is a [`Builder`] that knows which tensor each binding is: loads widen what is narrow (half precision to
//! f32, small integers to 32 bits) and stores narrow it again, so that kernels compute in few types. Knows no op.

mod cores;
pub mod function;
pub mod map;
pub mod moves;
pub mod normalise;
pub mod product;
pub mod row;
pub mod space;
mod tiles;

use std::cell::RefCell;

use zbmd_ir::DType;

use super::convert::{from_bfloat, from_half, mem, to_bfloat, to_half};
use super::lang::{Builder, Mem, Ty, Val};
use super::plan::{Grid, KernelPlan, Operand};

/// Why there is no kernel, as a clause.
pub type Why = String;

/// A tensor that kernels work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Slot {
    pub operand: Operand,
    pub dtype: DType,
    /// Elements of one token.
    pub elements: u64,
    /// Whether it is the same in every firing.
    pub constant: bool,
}

/// The type that elements of a dtype are computed in; truth values are 0 and 1.
pub fn computed(dtype: DType) -> Result<Ty, Why> {
    Ok(match dtype {
        DType::F32 | DType::F16 | DType::Bf16 => Ty::F32,
        DType::F64 => Ty::F64,
        DType::I8 | DType::I16 | DType::I32 => Ty::I32,
        DType::U8 | DType::Bool => Ty::U32,
        DType::I64 => Ty::I64,
        DType::C32 => return Err("complex tensors are not taken".to_owned()),
    })
}

/// A size as a word of a kernel.
fn word(v: usize) -> Result<u32, Why> {
    u32::try_from(v).map_err(|_| format!("a size of {v} is beyond 32 bits"))
}

/// Builds a kernel whose bindings are tensors.
pub struct TensorKernelBuilder {
    /// The builder of the kernel.
    pub k: Builder,
    operands: RefCell<Vec<Operand>>,
}

/// A tensor as a binding of a kernel that is being built.
#[derive(Clone, Copy)]
pub struct Tensor<'k> {
    k: &'k Builder,
    binding: u32,
    dtype: DType,
    /// Elements of a token; none for what is the same in every firing.
    each: Option<Val<'k>>,
    /// 64-bit integers as two words, of which only the lower one is used: indices.
    index: bool,
}

impl TensorKernelBuilder {
    /// A kernel whose groups have `local` threads.
    pub fn new(name: &'static str, local: u32) -> Self {
        Self {
            k: Builder::new(name, local),
            operands: RefCell::default(),
        }
    }

    fn tensor(&self, slot: Slot, writes: bool, index: bool) -> Result<Tensor<'_>, Why> {
        let is_wide_index = index && slot.dtype == DType::I64;
        let memory_type = if is_wide_index {
            Mem::U32
        } else {
            mem(slot.dtype)
        };
        let binding = if writes {
            self.k.writes(memory_type)
        } else {
            self.k.reads(memory_type)
        };
        self.operands.borrow_mut().push(slot.operand);
        let elements_per_firing = match slot.constant {
            true => None,
            false => Some(self.size(slot.elements as usize)?),
        };

        Ok(Tensor {
            k: &self.k,
            binding,
            dtype: slot.dtype,
            each: elements_per_firing,
            index: is_wide_index,
        })
    }

    /// The next binding, only read. Tensors are bound before the first statement.
    pub fn reads(&self, slot: Slot) -> Result<Tensor<'_>, Why> {
        self.tensor(slot, false, false)
    }

    /// A tensor of indices: what is loaded is an `i32`, which needs no 64-bit arithmetic.
    pub fn reads_index(&self, slot: Slot) -> Result<Tensor<'_>, Why> {
        match slot.dtype {
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::C32 => {
                Err("indices are floats".to_owned())
            }
            _ => self.tensor(slot, false, true),
        }
    }

    /// The next binding, written and perhaps read.
    pub fn writes(&self, slot: Slot) -> Result<Tensor<'_>, Why> {
        self.tensor(slot, true, false)
    }

    /// The same for what takes an `i32`.
    pub fn writes_index(&self, slot: Slot) -> Result<Tensor<'_>, Why> {
        self.tensor(slot, true, true)
    }

    /// A shape or size, which does not change the kernel's code.
    pub fn size(&self, v: usize) -> Result<Val<'_>, Why> {
        Ok(self.k.spec(word(v)?))
    }

    /// A distance, which may be negative: indices wrap.
    pub fn step(&self, v: isize) -> Result<Val<'_>, Why> {
        let fitting_step =
            i32::try_from(v).map_err(|_| format!("a step of {v} is beyond 32 bits"))?;
        Ok(self.k.spec(fitting_step as u32))
    }

    /// Adds the finished kernel to a plan.
    pub fn finish(self, plan: KernelPlan, grid: Grid) -> KernelPlan {
        let operands = self.operands.into_inner();
        plan.then(self.k.finish(), &operands, grid)
    }
}

impl<'k> Tensor<'k> {
    /// Where the token of a firing begins.
    pub fn base(self, firing: Val<'k>) -> Val<'k> {
        self.each
            .map_or_else(|| self.k.u32(0), |each| firing * each)
    }

    /// Whether it is a constant tensor.
    pub fn is_constant(self) -> bool {
        self.each.is_none()
    }

    /// Element `at` of all tokens.
    pub fn load(self, at: Val<'k>) -> Val<'k> {
        let k = self.k;
        if self.index {
            return k.load(self.binding, at * 2).cast(Ty::I32);
        }
        let raw_value = k.load(self.binding, at);

        match self.dtype {
            DType::F16 => from_half(raw_value),
            DType::Bf16 => from_bfloat(raw_value),
            _ => raw_value,
        }
    }

    /// The bits of element `at` of all tokens, which have no sign of their own.
    pub fn bits(self, at: Val<'k>) -> Val<'k> {
        self.k.load(self.binding, at)
    }

    /// Element `at` of a firing's token.
    pub fn get(self, firing: Val<'k>, at: Val<'k>) -> Val<'k> {
        match self.each {
            Some(each) => self.load(firing * each + at),
            None => self.load(at),
        }
    }

    /// An index: element `at` of a firing's token as `i32`.
    pub fn index(self, firing: Val<'k>, at: Val<'k>) -> Val<'k> {
        self.get(firing, at).cast(Ty::I32)
    }

    /// Stores a value at a place of the memory, as its dtype.
    pub fn store(self, at: Val<'k>, value: Val<'k>) {
        let k = self.k;
        if self.index {
            let index_word = value.cast(Ty::I32);
            k.store(self.binding, at * 2, index_word.cast(Ty::U32));
            return k.store(self.binding, at * 2 + 1, (index_word >> 31).cast(Ty::U32));
        }

        let value = if value.ty == Ty::Bool {
            value.cast(Ty::U32)
        } else {
            value
        };
        let value = match self.dtype {
            DType::F16 => to_half(value),
            DType::Bf16 => to_bfloat(value),
            _ => value,
        };
        k.store(self.binding, at, value);
    }

    /// Stores a value in a firing's tensor.
    pub fn put(self, firing: Val<'k>, at: Val<'k>, value: Val<'k>) {
        self.store(self.base(firing) + at, value);
    }
}
