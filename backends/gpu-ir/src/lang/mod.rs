//! The kernel language: what a GPU kernel computes, independent of the machine code it is printed as.
//!
//! A [`Kernel`] is structured code over typed registers: each register is set once, by one statement; variables may be
//! set again; loops and branches nest. Memory is a row of bindings (see [`Binding`]) and arrays shared by a group of
//! threads. Nothing here knows SPIR-V: a printer walks the statements. [`Builder`] makes kernels and checks types.

mod build;
mod text;

pub use build::{Builder, Shared, Val, Var};

use super::factors::Math;

/// Type of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Ty {
    Bool,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl Ty {
    /// Whether it is `f32` or `f64`.
    pub fn is_float(self) -> bool {
        matches!(self, Ty::F32 | Ty::F64)
    }

    /// Whether it is an integer with a sign.
    pub fn is_signed(self) -> bool {
        matches!(self, Ty::I32 | Ty::I64)
    }

    /// Whether it has 64 bits.
    pub fn is_wide(self) -> bool {
        matches!(self, Ty::I64 | Ty::U64 | Ty::F64)
    }
}

/// Element type of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Mem {
    U8,
    I8,
    U16,
    I16,
    I32,
    U32,
    I64,
    F32,
    F64,
    /// Two `f32`, loaded and stored together: a complex number.
    Pair,
}

impl Mem {
    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Mem::U8 | Mem::I8 => 1,
            Mem::U16 | Mem::I16 => 2,
            Mem::I32 | Mem::U32 | Mem::F32 => 4,
            Mem::I64 | Mem::F64 | Mem::Pair => 8,
        }
    }

    /// Type of a register that holds an element; of a half of a pair.
    pub fn ty(self) -> Ty {
        match self {
            Mem::U8 | Mem::U16 | Mem::U32 => Ty::U32,
            Mem::I8 | Mem::I16 | Mem::I32 => Ty::I32,
            Mem::I64 => Ty::I64,
            Mem::F32 | Mem::Pair => Ty::F32,
            Mem::F64 => Ty::F64,
        }
    }

    /// The unsigned type of elements of that many bytes, for kernels that only move them.
    pub fn word(bytes: u64) -> Mem {
        match bytes {
            1 => Mem::U8,
            2 => Mem::U16,
            _ => Mem::U32,
        }
    }
}

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reg(pub u32);

/// Memory that the caller lends. Element i of a binding is element `offset + i` of what is bound, the offset being word
/// 1 + (number of the binding) of the kernel's arguments; word 0 is the number of firings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Binding {
    pub mem: Mem,
    pub writes: bool,
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Thread of all.
    Thread,
    /// Thread of its group.
    Local,
    /// Group.
    Group,
    /// Number of groups.
    Groups,
}

/// Operations of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Un {
    /// Of any number.
    Neg,
    /// Of truth values and of integers, bitwise.
    Not,
    Abs,
    Sqrt,
    Floor,
    /// To the nearest, ties to even.
    Round,
}

/// Operations of two values of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Bin {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    And,
    Or,
    Xor,
    Shl,
    /// Arithmetic for signed integers.
    Shr,
    /// Upper half of the product of two `u32`.
    MulHigh,
}

/// Comparisons of two values of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Cmp {
    Less,
    LessEqual,
    Equal,
    /// True where an operand is not a number.
    NotEqual,
}

/// What a register is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Code {
    /// The bits of a value, those of narrow types in the low bits.
    Const(u64),
    /// A constant that is given when the kernel is made ready: a shape or a size.
    Spec(u32),
    /// A word of the arguments.
    Arg(u32),
    Place(Place),
    Un(Un, Reg),
    Bin(Bin, Reg, Reg),
    Cmp(Cmp, Reg, Reg),
    Select(Reg, Reg, Reg),
    /// a·b + c, rounded once where the device can.
    Fma(Reg, Reg, Reg),
    /// To another type: integers wrap and extend, floats truncate; truth values give 0 and 1.
    Cast(Reg),
    /// The same bits as another type of the same size.
    Bits(Reg),
    /// An `f32` as a factor of [`Stmt::Multiply`]: rounded, in the place of its bits.
    Factor(Math, Reg),
    /// Two `f32` as factors of 16 bits in one word, the first one in the lower half.
    Pack(Math, Reg, Reg),
    /// What another thread of the warp has in the register: the one whose number differs in the bits `.1`. All 32 have
    /// come here. As [`Stmt::Multiply`], for CUDA alone.
    Swapped(Reg, u32),
    Load(u32, Reg),
    Shared(u32, Reg),
    Var(u32),
}

/// Statements.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "variants say what their names say")]
pub enum Stmt {
    Let(Reg, Code),
    LoadPair([Reg; 2], u32, Reg),
    /// Binding, index, value.
    Store(u32, Reg, Reg),
    StorePair(u32, Reg, [Reg; 2]),
    SetShared(u32, Reg, Reg),
    SetVar(u32, Reg),
    /// All threads of the group have come here, and see what the others wrote to shared memory.
    Barrier,
    /// A warp, 32 threads that have all come here, multiplies matrices whose elements its threads hold: 16 rows of 8
    /// words by 8 columns of 8 words, the sums added to four variables of each thread. A word is a factor of 32 bits or
    /// two of 16, neighbours along the inner dimension. The thread with the number 4 i + j has, of the left matrix,
    /// word j of row i, of row i + 8, word j + 4 of row i, of row i + 8; of the right one, words j and j + 4 of column
    /// i; of the sums, those of row i in columns 2 j and 2 j + 1, then those of row i + 8.
    Multiply(Math, [u32; 4], [Reg; 4], [Reg; 2]),
    If(Reg, Vec<Stmt>, Vec<Stmt>),
    /// While variable `.0` is below register `.1`: the body, then the variable grows by register `.2`. All `u32`.
    Loop(u32, Reg, Reg, Vec<Stmt>),
}

/// A kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Its name, for people.
    pub name: &'static str,
    /// Threads of a group.
    pub local: u32,
    /// The memory that it is given.
    pub bindings: Vec<Binding>,
    /// Values of [`Code::Spec`]. Kernels that differ in them only share their code.
    pub specs: Vec<u32>,
    /// Types of the registers.
    pub regs: Vec<Ty>,
    /// The types of its variables.
    pub vars: Vec<Ty>,
    /// Element type and length of arrays shared by a group.
    pub shared: Vec<(Ty, u32)>,
    /// Whether it has a [`Stmt::Multiply`] or a [`Code::Swapped`], which CUDA's warps run and nothing else.
    pub multiplies: bool,
    /// Whether printers that can are to guard the instructions of short branches with loads instead of jumping over them:
    /// see [`build::Builder::guard_loads`].
    pub guards_loads: bool,
    /// What each thread does.
    pub body: Vec<Stmt>,
}

/// What a device can do beyond what every device can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Arithmetic on 64-bit floats.
    pub f64: bool,
    /// Arithmetic on 64-bit integers.
    pub i64: bool,
    /// Memory of 8-bit elements.
    pub bytes: bool,
    /// Memory of 16-bit elements.
    pub halves: bool,
}

impl Needs {
    /// What of this a device that can do `caps` cannot do, in words.
    pub fn beyond(self, caps: Needs) -> Vec<&'static str> {
        let all_needs = [
            (self.f64 && !caps.f64, "64-bit floats"),
            (self.i64 && !caps.i64, "64-bit integers"),
            (self.bytes && !caps.bytes, "memory of bytes"),
            (self.halves && !caps.halves, "memory of 16-bit elements"),
        ];
        all_needs
            .into_iter()
            .filter(|(lacks, _)| *lacks)
            .map(|(_, what)| what)
            .collect()
    }

    /// Whether a device that can do `caps` can do all of this.
    pub fn within(self, caps: Needs) -> bool {
        self.beyond(caps).is_empty()
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Needs) -> Needs {
        Needs {
            f64: self.f64 || other.f64,
            i64: self.i64 || other.i64,
            bytes: self.bytes || other.bytes,
            halves: self.halves || other.halves,
        }
    }
}

impl Kernel {
    /// What a device must be able to do.
    pub fn needs(&self) -> Needs {
        let has = |test: fn(Mem) -> bool| self.bindings.iter().any(|b| test(b.mem));
        let types = || self.regs.iter().chain(&self.vars);
        Needs {
            f64: types().any(|t| *t == Ty::F64),
            i64: types().any(|t| matches!(t, Ty::I64 | Ty::U64)),
            bytes: has(|m| m.bytes() == 1),
            halves: has(|m| m.bytes() == 2),
        }
    }

    /// Bytes of shared memory.
    pub fn shared_bytes(&self) -> u64 {
        let size = |ty: Ty| if ty.is_wide() { 8 } else { 4 };
        self.shared
            .iter()
            .map(|(ty, len)| size(*ty) * u64::from(*len))
            .sum()
    }
}
