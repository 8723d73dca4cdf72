//! Elementwise expressions: text compiled once to typed instructions over columns of elements.
//!
//! [`parse`] reads the text, [`lower`] gives every part a type, folds constants and emits instructions, [`run`]
//! executes them a column at a time, so that the work per element is a tight loop and the work per instruction is
//! paid once for a few hundred elements.

mod direct;
pub(crate) mod lower;
#[cfg(target_arch = "x86_64")]
mod magnitude;
pub(crate) mod parse;
pub(crate) mod run;
#[cfg(test)]
mod tests;

use num_complex::Complex32;
use zbmd_ir::DType;

use zbmd_op::kernel::Element;

/// A value in a column.
pub(crate) trait Lane: Element + Default {
    /// As one 64-bit word of scratch memory.
    fn to_word(self) -> u64;
    /// Back from a word.
    fn from_word(word: u64) -> Self;
}

macro_rules! lane {
    ($($ty:ty, $to:expr, $from:expr;)*) => { $(impl Lane for $ty {
        #[inline(always)]
        fn to_word(self) -> u64 { $to(self) }
        #[inline(always)]
        fn from_word(word: u64) -> Self { $from(word) }
    })* };
}
lane! {
    u8, u64::from, |w| w as u8;
    i32, |v| v as u32 as u64, |w| w as i32;
    i64, |v| v as u64, |w| w as i64;
    f32, |v: f32| u64::from(v.to_bits()), |w| f32::from_bits(w as u32);
    f64, f64::to_bits, f64::from_bits;
    Complex32,
        |v: Complex32| u64::from(v.re.to_bits()) | u64::from(v.im.to_bits()) << 32,
        |w| Complex32::new(f32::from_bits(w as u32), f32::from_bits((w >> 32) as u32));
}

/// Types of columns, in the order in which mixing widens them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ty {
    Bool,
    I32,
    I64,
    F32,
    F64,
    C32,
}

impl Ty {
    pub(crate) fn of(dtype: DType) -> Option<Ty> {
        Some(match dtype {
            DType::Bool => Ty::Bool,
            DType::I32 => Ty::I32,
            DType::I64 => Ty::I64,
            DType::F32 => Ty::F32,
            DType::F64 => Ty::F64,
            DType::C32 => Ty::C32,
            _ => return None,
        })
    }

    pub(crate) fn dtype(self) -> DType {
        match self {
            Ty::Bool => DType::Bool,
            Ty::I32 => DType::I32,
            Ty::I64 => DType::I64,
            Ty::F32 => DType::F32,
            Ty::F64 => DType::F64,
            Ty::C32 => DType::C32,
        }
    }
}

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Src {
    /// The result of an earlier instruction.
    Slot(u16),
    /// An input with as many elements as the output.
    Input(u16),
    /// An input with one element in each token, where the output has more.
    Uniform(u16),
    /// A constant.
    Const(u16),
}

/// Functions of one operand of floats (all), integers (`Neg`, `Abs`) or complex numbers (`Neg`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Un {
    Neg,
    Abs,
    Sqrt,
    Exp,
    Log,
    Log10,
    Sin,
    Cos,
    Tan,
    Tanh,
    Floor,
    Round,
}

/// Functions of two operands of one type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bin {
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
    Pow,
    Atan2,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cmp {
    Less,
    LessEqual,
    Equal,
    NotEqual,
}

/// Functions to and from complex numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ComplexFn {
    Re,
    Im,
    Arg,
    Norm,
    Abs,
    Conj,
    Exp,
    /// From a real phase.
    Cis,
    /// Complex times real.
    Scale,
    /// Complex by real.
    Shrink,
}

/// What an instruction does; the type is that of its operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Code {
    Copy(Ty),
    Cast(Ty, Ty),
    Un(Un, Ty),
    Bin(Bin, Ty),
    Cmp(Cmp, Ty),
    Cx(ComplexFn),
    Not,
    And,
    Or,
    Select(Ty),
}

/// One instruction: fills slot `dst`, which no other instruction fills and whose number is above all it reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Instr {
    pub(crate) code: Code,
    pub(crate) dst: u16,
    pub(crate) args: [Src; 3],
}

/// A compiled expression; the last instruction's result is the output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Program {
    pub(crate) instrs: Vec<Instr>,
    /// Constants as words, see [`Lane`].
    pub(crate) consts: Vec<u64>,
    /// Types of the inputs.
    pub(crate) inputs: Vec<Ty>,
    pub(crate) output: Ty,
}

impl Program {
    /// Whether the instruction that fills slot `dst` is the last.
    #[inline(always)]
    pub(crate) fn is_last(&self, dst: u16) -> bool {
        usize::from(dst) + 1 == self.instrs.len()
    }

    /// Arithmetic operations for one element, as equivalents of half a fused multiply-add on wide vectors.
    pub(crate) fn flops(&self) -> f64 {
        let width = |ty: Ty| match ty {
            Ty::Bool | Ty::I32 | Ty::F32 => 1.0,
            Ty::I64 | Ty::F64 => 2.0,
            Ty::C32 => 3.0,
        };
        let flops = |instr: &Instr| match instr.code {
            Code::Copy(ty) | Code::Cast(_, ty) | Code::Select(ty) | Code::Cmp(_, ty) => width(ty),
            Code::Not | Code::And | Code::Or => 1.0,
            Code::Bin(Bin::Pow, _) => 300.0,
            Code::Bin(Bin::Atan2, Ty::F32) => 40.0,
            Code::Bin(Bin::Div, ty) => 5.0 * width(ty),
            Code::Bin(Bin::Atan2, _) => 600.0,
            Code::Bin(_, ty) => 1.5 * width(ty),
            Code::Un(Un::Neg | Un::Abs | Un::Floor | Un::Round, ty) => width(ty),
            Code::Un(Un::Sqrt, ty) => 6.0 * width(ty),
            Code::Un(_, Ty::F32) => 40.0,
            Code::Un(..) => 400.0,
            Code::Cx(ComplexFn::Arg | ComplexFn::Cis | ComplexFn::Exp) => 50.0,
            Code::Cx(ComplexFn::Abs) => 10.0,
            Code::Cx(_) => 4.0,
        };
        self.instrs.iter().map(flops).sum()
    }
}

impl std::fmt::Display for Program {
    /// One line an instruction: `s1 = Bin(Mul, F32) s0 in1`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for instr in &self.instrs {
            write!(f, "s{} = {:?}", instr.dst, instr.code)?;
            for arg in &instr.args[..lower::arity(instr.code)] {
                match arg {
                    Src::Slot(i) => write!(f, " s{i}")?,
                    Src::Input(i) => write!(f, " in{i}")?,
                    Src::Uniform(i) => write!(f, " uniform{i}")?,
                    Src::Const(i) => write!(f, " #{:x}", self.consts[usize::from(*i)])?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
