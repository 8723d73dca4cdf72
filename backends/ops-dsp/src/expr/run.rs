//! Runs a [`Program`]: one function for what each instruction means, two ways to apply it.
//!
//! [`Columns`] applies an instruction to a column of elements in scratch memory; [`Single`] to one element, for the
//! single firings of feedback loops. Both inline the same functions of one element, so their bits are equal.
//!
//! Where the output is written over an input, that input's part of a column is copied first: no function sees an
//! element that is written meanwhile, and what is copied stays in the first-level cache.

use num_complex::Complex32;

use super::{Bin, Cmp, Code, ComplexFn, Instr, Lane, Program, Src, Ty, Un, direct};
use zbmd_op::kernel::{Io, Kernel, KernelFault};
use zbmd_op::math;
use zbmd_op::simd::{self, Isa, Loop};

/// Words of scratch memory: half of a first-level cache.
const SCRATCH_WORDS: usize = 2048;
/// Most elements of one call that run one by one.
const FEW: usize = 2;

/// The kernel of an expression.
pub(crate) struct ExprKernel {
    program: Program,
    /// Elements of an output token.
    elements: usize,
    /// Whether some input has one element a token where the output has more.
    broadcast: bool,
    /// Elements in a column.
    chunk: usize,
}

impl ExprKernel {
    pub(crate) fn new(program: Program, elements: usize) -> Self {
        let is_uniform = |i: &Instr| i.args.iter().any(|a| matches!(a, Src::Uniform(_)));
        let broadcast = program.instrs.iter().any(is_uniform);
        // The last instruction writes to the output and needs no column.
        let columns = program.instrs.len().saturating_sub(1).max(1);
        let chunk = (SCRATCH_WORDS / columns).clamp(32, 256) / 8 * 8;
        Self {
            program,
            elements,
            broadcast,
            chunk,
        }
    }
}

impl Kernel for ExprKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        if io.firings() * self.elements > FEW && direct::run(&self.program, io) {
            return Ok(());
        }
        simd::dispatch(Fire { kernel: self, io });
        Ok(())
    }

    fn scratch_bytes(&self) -> usize {
        self.program.instrs.len() * self.chunk * size_of::<u64>()
    }
}

struct Fire<'k, 'i, 'a> {
    kernel: &'k ExprKernel,
    io: &'i mut Io<'a>,
}

impl Loop for Fire<'_, '_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, isa: Isa<FMA>) {
        let Self { kernel, io } = self;
        let total = io.firings() * kernel.elements;
        let scratch: &mut [u64] = io.scratch();
        let over = io.over(0);
        let out = io.output_bytes(0);
        if total <= FEW {
            let program = &kernel.program;
            let mut single = Single {
                io,
                program,
                scratch,
                out,
                over,
                at: 0,
                token: 0,
            };
            for at in 0..total {
                single.at = at;
                single.token = at / kernel.elements;
                run_all::<FMA, _>(&mut single, &kernel.program.instrs);
            }
            return;
        }
        let (runs, len) = match kernel.broadcast {
            true => (io.firings(), kernel.elements),
            false => (1, total),
        };
        let chunk = kernel.chunk;
        // The last instruction writes to the output: its column is free for what lies there.
        let (scratch, copy) = scratch.split_at_mut((kernel.program.instrs.len() - 1) * chunk);
        let mut columns = Columns {
            isa,
            io,
            program: &kernel.program,
            scratch,
            chunk,
            element: out.len() / total,
            copy,
            over,
            out,
            at: 0,
            len: 0,
            token: 0,
        };
        for token in 0..runs {
            columns.token = token;
            let mut done = 0;
            while done < len {
                columns.at = token * len + done;
                columns.len = chunk.min(len - done);
                columns.copy_over();
                run_all::<FMA, _>(&mut columns, &kernel.program.instrs);
                done += columns.len;
            }
        }
    }
}

#[inline(always)]
fn run_all<const FMA: bool, E: Exec>(exec: &mut E, instrs: &[Instr]) {
    for instr in instrs {
        step::<FMA, E>(exec, instr);
    }
}

/// A way to apply functions of elements. The last instruction's results go to the output.
trait Exec {
    fn one<A: Lane, R: Lane>(&mut self, i: &Instr, f: impl Fn(A) -> R);
    fn two<A: Lane, B: Lane, R: Lane>(&mut self, i: &Instr, f: impl Fn(A, B) -> R);
    fn select<T: Lane>(&mut self, i: &Instr);
}

/// One operand of a column instruction.
#[derive(Clone, Copy)]
enum Arg<'s, T> {
    Column(&'s [T]),
    Splat(T),
}

impl<T: Copy> Arg<'_, T> {
    #[inline(always)]
    fn get(&self, i: usize) -> T {
        match self {
            Arg::Column(column) => column[i],
            Arg::Splat(value) => *value,
        }
    }
}

struct Columns<'e, 'a, const FMA: bool> {
    isa: Isa<FMA>,
    io: &'e Io<'a>,
    program: &'e Program,
    scratch: &'e mut [u64],
    chunk: usize,
    /// Bytes of an element of the output, and of the input that it is written over.
    element: usize,
    /// What lay in the output's part of this chunk, if it is written over an input.
    copy: &'e mut [u64],
    over: Option<usize>,
    out: &'e mut [u8],
    /// First element of the chunk, counted over the call.
    at: usize,
    len: usize,
    token: usize,
}

impl<const FMA: bool> Columns<'_, '_, FMA> {
    /// Takes the input that the output is written over out of its way.
    fn copy_over(&mut self) {
        if self.over.is_some() {
            let (at, bytes) = (self.at * self.element, self.len * self.element);
            bytemuck::cast_slice_mut::<u64, u8>(self.copy)[..bytes]
                .copy_from_slice(&self.out[at..at + bytes]);
        }
    }

    /// Where the instruction's result goes, and the columns that it may read. Once for each type, not for each
    /// instruction: inlined into all of them, this and [`Reader::arg`] are most of the code of this file.
    #[inline(never)]
    fn split<R: Lane>(&mut self, dst: u16) -> (Read<'_>, &mut [R]) {
        let (columns, write) = self.scratch.split_at_mut(usize::from(dst) * self.chunk);
        let read = Read {
            columns,
            copy: self.copy,
        };
        if self.program.is_last(dst) {
            let size = size_of::<R>();
            let bytes = &mut self.out[self.at * size..(self.at + self.len) * size];
            return (read, bytemuck::cast_slice_mut(bytes));
        }
        let column: &mut [R] = bytemuck::cast_slice_mut(&mut write[..self.chunk]);
        (read, &mut column[..self.len])
    }
}

/// Scratch memory that an instruction may read: the columns before its own, and the input under the output.
#[derive(Clone, Copy)]
struct Read<'s> {
    columns: &'s [u64],
    copy: &'s [u64],
}

/// Reads operands while the result's column is borrowed.
struct Reader<'e, 'a> {
    io: &'e Io<'a>,
    consts: &'e [u64],
    over: Option<usize>,
    chunk: usize,
    at: usize,
    len: usize,
    token: usize,
}

impl Reader<'_, '_> {
    #[inline(never)]
    fn arg<'s, T: Lane>(&'s self, read: Read<'s>, src: Src) -> Arg<'s, T> {
        match src {
            Src::Slot(slot) => {
                let words = &read.columns[usize::from(slot) * self.chunk..][..self.chunk];
                Arg::Column(&bytemuck::cast_slice(words)[..self.len])
            }
            Src::Input(i) if self.over == Some(usize::from(i)) => {
                Arg::Column(&bytemuck::cast_slice(read.copy)[..self.len])
            }
            Src::Input(i) => {
                Arg::Column(&self.io.input::<T>(usize::from(i))[self.at..self.at + self.len])
            }
            Src::Uniform(i) => Arg::Splat(self.io.input::<T>(usize::from(i))[self.token]),
            Src::Const(i) => Arg::Splat(T::from_word(self.consts[usize::from(i)])),
        }
    }
}

macro_rules! operands {
    ($self:ident, $instr:ident, $result:ty => $reader:ident, $read:ident, $out:ident) => {
        let $reader = Reader {
            io: $self.io,
            consts: &$self.program.consts,
            over: $self.over,
            chunk: $self.chunk,
            at: $self.at,
            len: $self.len,
            token: $self.token,
        };
        let ($read, $out) = $self.split::<$result>($instr.dst);
    };
}

impl<const FMA: bool> Exec for Columns<'_, '_, FMA> {
    #[inline(always)]
    fn one<A: Lane, R: Lane>(&mut self, i: &Instr, f: impl Fn(A) -> R) {
        let isa = self.isa;
        operands!(self, i, R => reader, read, out);
        isa.apart(One {
            a: reader.arg(read, i.args[0]),
            out,
            f,
        });
    }

    #[inline(always)]
    fn two<A: Lane, B: Lane, R: Lane>(&mut self, i: &Instr, f: impl Fn(A, B) -> R) {
        let isa = self.isa;
        operands!(self, i, R => reader, read, out);
        let (a, b) = (reader.arg(read, i.args[0]), reader.arg(read, i.args[1]));
        isa.apart(Two { a, b, out, f });
    }

    #[inline(always)]
    fn select<T: Lane>(&mut self, i: &Instr) {
        let isa = self.isa;
        operands!(self, i, T => reader, read, out);
        let c = reader.arg(read, i.args[0]);
        let (a, b) = (reader.arg(read, i.args[1]), reader.arg(read, i.args[2]));
        isa.apart(Pick { c, a, b, out });
    }
}

struct One<'s, A, R, F> {
    a: Arg<'s, A>,
    out: &'s mut [R],
    f: F,
}

impl<A: Lane, R: Lane, F: Fn(A) -> R> Loop for One<'_, A, R, F> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self { a, out, f } = self;
        match a {
            Arg::Column(a) => each(a, out, f),
            Arg::Splat(a) => out.fill(f(a)),
        }
    }
}

/// `out[i] = f(a[i])`. As parameters, unlike as fields, slices are known not to overlap.
#[inline(always)]
fn each<A: Copy, R>(a: &[A], out: &mut [R], f: impl Fn(A) -> R) {
    out.iter_mut().zip(a).for_each(|(r, &a)| *r = f(a));
}

/// `out[i] = f(a[i], b[i])`.
#[inline(always)]
fn each_pair<A: Copy, B: Copy, R>(a: &[A], b: &[B], out: &mut [R], f: impl Fn(A, B) -> R) {
    out.iter_mut()
        .zip(a)
        .zip(b)
        .for_each(|((r, &a), &b)| *r = f(a, b));
}

struct Two<'s, A, B, R, F> {
    a: Arg<'s, A>,
    b: Arg<'s, B>,
    out: &'s mut [R],
    f: F,
}

impl<A: Lane, B: Lane, R: Lane, F: Fn(A, B) -> R> Loop for Two<'_, A, B, R, F> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self { a, b, out, f } = self;
        match (a, b) {
            (Arg::Column(a), Arg::Column(b)) => each_pair(a, b, out, f),
            (Arg::Column(a), Arg::Splat(b)) => each(a, out, |a| f(a, b)),
            (Arg::Splat(a), Arg::Column(b)) => each(b, out, |b| f(a, b)),
            (Arg::Splat(a), Arg::Splat(b)) => out.fill(f(a, b)),
        }
    }
}

struct Pick<'s, T> {
    c: Arg<'s, u8>,
    a: Arg<'s, T>,
    b: Arg<'s, T>,
    out: &'s mut [T],
}

impl<T: Lane> Loop for Pick<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self { c, a, b, out } = self;
        match (c, a, b) {
            (Arg::Column(c), Arg::Column(a), Arg::Column(b)) => {
                for (((r, &c), &a), &b) in out.iter_mut().zip(c).zip(a).zip(b) {
                    *r = if c != 0 { a } else { b };
                }
            }
            (Arg::Column(c), Arg::Column(a), Arg::Splat(b)) => {
                for ((r, &c), &a) in out.iter_mut().zip(c).zip(a) {
                    *r = if c != 0 { a } else { b };
                }
            }
            _ => {
                for (k, r) in out.iter_mut().enumerate() {
                    *r = if c.get(k) != 0 { a.get(k) } else { b.get(k) };
                }
            }
        }
    }
}

struct Single<'e, 'a> {
    io: &'e Io<'a>,
    program: &'e Program,
    /// One word a slot.
    scratch: &'e mut [u64],
    out: &'e mut [u8],
    over: Option<usize>,
    at: usize,
    token: usize,
}

impl Single<'_, '_> {
    #[inline(always)]
    fn arg<T: Lane>(&self, src: Src) -> T {
        match src {
            Src::Slot(slot) => T::from_word(self.scratch[usize::from(slot)]),
            // Overwritten by the last instruction, which reads before it writes.
            Src::Input(i) if self.over == Some(usize::from(i)) => {
                bytemuck::cast_slice::<u8, T>(self.out)[self.at]
            }
            Src::Input(i) => self.io.input::<T>(usize::from(i))[self.at],
            Src::Uniform(i) => self.io.input::<T>(usize::from(i))[self.token],
            Src::Const(i) => T::from_word(self.program.consts[usize::from(i)]),
        }
    }

    #[inline(always)]
    fn put<R: Lane>(&mut self, dst: u16, result: R) {
        if self.program.is_last(dst) {
            let size = size_of::<R>();
            let bytes = &mut self.out[self.at * size..(self.at + 1) * size];
            bytes.copy_from_slice(bytemuck::bytes_of(&result));
        } else {
            self.scratch[usize::from(dst)] = result.to_word();
        }
    }
}

impl Exec for Single<'_, '_> {
    #[inline(always)]
    fn one<A: Lane, R: Lane>(&mut self, i: &Instr, f: impl Fn(A) -> R) {
        let result = f(self.arg(i.args[0]));
        self.put::<R>(i.dst, result);
    }

    #[inline(always)]
    fn two<A: Lane, B: Lane, R: Lane>(&mut self, i: &Instr, f: impl Fn(A, B) -> R) {
        let result = f(self.arg(i.args[0]), self.arg(i.args[1]));
        self.put::<R>(i.dst, result);
    }

    #[inline(always)]
    fn select<T: Lane>(&mut self, i: &Instr) {
        let chosen = if self.arg::<u8>(i.args[0]) != 0 {
            i.args[1]
        } else {
            i.args[2]
        };
        let result: T = self.arg(chosen);
        self.put::<T>(i.dst, result);
    }
}

/// What each instruction means.
#[inline(always)]
fn step<const FMA: bool, E: Exec>(e: &mut E, i: &Instr) {
    match i.code {
        Code::Bin(op, Ty::F32) => bin_f32::<FMA, E>(e, i, op),
        Code::Bin(op, Ty::F64) => bin_f64::<E>(e, i, op),
        Code::Bin(op, Ty::I32) => match op {
            Bin::Add => e.two::<i32, i32, i32>(i, i32::wrapping_add),
            Bin::Sub => e.two::<i32, i32, i32>(i, i32::wrapping_sub),
            Bin::Mul => e.two::<i32, i32, i32>(i, i32::wrapping_mul),
            Bin::Min => e.two::<i32, i32, i32>(i, std::cmp::min),
            _ => e.two::<i32, i32, i32>(i, std::cmp::max),
        },
        Code::Bin(op, Ty::I64 | Ty::Bool) => match op {
            Bin::Add => e.two::<i64, i64, i64>(i, i64::wrapping_add),
            Bin::Sub => e.two::<i64, i64, i64>(i, i64::wrapping_sub),
            Bin::Mul => e.two::<i64, i64, i64>(i, i64::wrapping_mul),
            Bin::Min => e.two::<i64, i64, i64>(i, std::cmp::min),
            _ => e.two::<i64, i64, i64>(i, std::cmp::max),
        },
        Code::Bin(op, Ty::C32) => match op {
            Bin::Add => e.two::<Complex32, Complex32, Complex32>(i, |a, b| a + b),
            Bin::Sub => e.two::<Complex32, Complex32, Complex32>(i, |a, b| a - b),
            Bin::Mul => e.two::<Complex32, Complex32, Complex32>(i, |a, b| a * b),
            _ => e.two::<Complex32, Complex32, Complex32>(i, |a, b| a / b),
        },
        Code::Un(op, Ty::F32) => un_f32::<FMA, E>(e, i, op),
        Code::Un(op, Ty::F64) => un_f64::<E>(e, i, op),
        Code::Un(Un::Neg, Ty::I32) => e.one::<i32, i32>(i, i32::wrapping_neg),
        Code::Un(_, Ty::I32) => e.one::<i32, i32>(i, i32::wrapping_abs),
        Code::Un(_, Ty::C32) => e.one::<Complex32, Complex32>(i, |z| -z),
        Code::Un(Un::Neg, _) => e.one::<i64, i64>(i, i64::wrapping_neg),
        Code::Un(_, _) => e.one::<i64, i64>(i, i64::wrapping_abs),
        Code::Cmp(op, ty) => compare::<E>(e, i, op, ty),
        Code::Cx(op) => complex::<FMA, E>(e, i, op),
        Code::Not => e.one::<u8, u8>(i, |a| u8::from(a == 0)),
        Code::And => e.two::<u8, u8, u8>(i, |a, b| u8::from(a != 0) & u8::from(b != 0)),
        Code::Or => e.two::<u8, u8, u8>(i, |a, b| u8::from(a | b != 0)),
        Code::Select(ty) => match ty {
            Ty::Bool => e.select::<u8>(i),
            Ty::I32 => e.select::<i32>(i),
            Ty::I64 => e.select::<i64>(i),
            Ty::F32 => e.select::<f32>(i),
            Ty::F64 => e.select::<f64>(i),
            Ty::C32 => e.select::<Complex32>(i),
        },
        Code::Copy(ty) => match ty {
            Ty::Bool => e.one::<u8, u8>(i, |a| a),
            Ty::I32 => e.one::<i32, i32>(i, |a| a),
            Ty::I64 => e.one::<i64, i64>(i, |a| a),
            Ty::F32 => e.one::<f32, f32>(i, |a| a),
            Ty::F64 => e.one::<f64, f64>(i, |a| a),
            Ty::C32 => e.one::<Complex32, Complex32>(i, |a| a),
        },
        Code::Cast(from, to) => cast::<E>(e, i, from, to),
    }
}

#[inline(always)]
fn bin_f32<const FMA: bool, E: Exec>(e: &mut E, i: &Instr, op: Bin) {
    match op {
        Bin::Add => e.two::<f32, f32, f32>(i, |a, b| a + b),
        Bin::Sub => e.two::<f32, f32, f32>(i, |a, b| a - b),
        Bin::Mul => e.two::<f32, f32, f32>(i, |a, b| a * b),
        Bin::Div => e.two::<f32, f32, f32>(i, |a, b| a / b),
        // Not f32::min: this is one instruction, and a NaN on either side gives the second operand.
        Bin::Min => e.two::<f32, f32, f32>(i, |a, b| if a < b { a } else { b }),
        Bin::Max => e.two::<f32, f32, f32>(i, |a, b| if a > b { a } else { b }),
        Bin::Pow => e.two::<f32, f32, f32>(i, f32::powf),
        Bin::Atan2 => e.two::<f32, f32, f32>(i, math::atan2::<FMA>),
    }
}

#[inline(always)]
fn bin_f64<E: Exec>(e: &mut E, i: &Instr, op: Bin) {
    match op {
        Bin::Add => e.two::<f64, f64, f64>(i, |a, b| a + b),
        Bin::Sub => e.two::<f64, f64, f64>(i, |a, b| a - b),
        Bin::Mul => e.two::<f64, f64, f64>(i, |a, b| a * b),
        Bin::Div => e.two::<f64, f64, f64>(i, |a, b| a / b),
        Bin::Min => e.two::<f64, f64, f64>(i, |a, b| if a < b { a } else { b }),
        Bin::Max => e.two::<f64, f64, f64>(i, |a, b| if a > b { a } else { b }),
        Bin::Pow => e.two::<f64, f64, f64>(i, f64::powf),
        Bin::Atan2 => e.two::<f64, f64, f64>(i, f64::atan2),
    }
}

#[inline(always)]
fn un_f32<const FMA: bool, E: Exec>(e: &mut E, i: &Instr, op: Un) {
    use std::f32::consts::LOG10_E;
    match op {
        Un::Neg => e.one::<f32, f32>(i, |a| -a),
        Un::Abs => e.one::<f32, f32>(i, f32::abs),
        Un::Sqrt => e.one::<f32, f32>(i, f32::sqrt),
        Un::Exp => e.one::<f32, f32>(i, math::exp::<FMA>),
        Un::Log => e.one::<f32, f32>(i, math::ln::<FMA>),
        Un::Log10 => e.one::<f32, f32>(i, |a| math::ln::<FMA>(a) * LOG10_E),
        Un::Sin => e.one::<f32, f32>(i, |a| math::sin_cos::<FMA>(a).0),
        Un::Cos => e.one::<f32, f32>(i, |a| math::sin_cos::<FMA>(a).1),
        Un::Tan => e.one::<f32, f32>(i, |a| {
            let (sin, cos) = math::sin_cos::<FMA>(a);
            sin / cos
        }),
        Un::Tanh => e.one::<f32, f32>(i, math::tanh::<FMA>),
        Un::Floor => e.one::<f32, f32>(i, f32::floor),
        Un::Round => e.one::<f32, f32>(i, f32::round_ties_even),
    }
}

#[inline(always)]
fn un_f64<E: Exec>(e: &mut E, i: &Instr, op: Un) {
    e.one::<f64, f64>(i, |a| float64(op, a));
}

/// A function of an f64, also used to fold constants.
pub(crate) fn float64(op: Un, a: f64) -> f64 {
    match op {
        Un::Neg => -a,
        Un::Abs => a.abs(),
        Un::Sqrt => a.sqrt(),
        Un::Exp => a.exp(),
        Un::Log => a.ln(),
        Un::Log10 => a.log10(),
        Un::Sin => a.sin(),
        Un::Cos => a.cos(),
        Un::Tan => a.tan(),
        Un::Tanh => a.tanh(),
        Un::Floor => a.floor(),
        Un::Round => a.round_ties_even(),
    }
}

#[inline(always)]
fn compare<E: Exec>(e: &mut E, i: &Instr, op: Cmp, ty: Ty) {
    macro_rules! ordered {
        ($ty:ty) => {
            match op {
                Cmp::Less => e.two::<$ty, $ty, u8>(i, |a, b| u8::from(a < b)),
                Cmp::LessEqual => e.two::<$ty, $ty, u8>(i, |a, b| u8::from(a <= b)),
                Cmp::Equal => e.two::<$ty, $ty, u8>(i, |a, b| u8::from(a == b)),
                Cmp::NotEqual => e.two::<$ty, $ty, u8>(i, |a, b| u8::from(a != b)),
            }
        };
    }
    match ty {
        Ty::Bool => ordered!(u8),
        Ty::I32 => ordered!(i32),
        Ty::I64 => ordered!(i64),
        Ty::F32 => ordered!(f32),
        Ty::F64 => ordered!(f64),
        Ty::C32 if op == Cmp::Equal => {
            e.two::<Complex32, Complex32, u8>(i, |a, b| u8::from(a == b));
        }
        Ty::C32 => e.two::<Complex32, Complex32, u8>(i, |a, b| u8::from(a != b)),
    }
}

#[inline(always)]
fn complex<const FMA: bool, E: Exec>(e: &mut E, i: &Instr, op: ComplexFn) {
    let cis = |phase: f32| {
        let (sin, cos) = math::sin_cos::<FMA>(phase);
        Complex32::new(cos, sin)
    };
    match op {
        ComplexFn::Re => e.one::<Complex32, f32>(i, |z| z.re),
        ComplexFn::Im => e.one::<Complex32, f32>(i, |z| z.im),
        ComplexFn::Arg => e.one::<Complex32, f32>(i, |z| math::atan2::<FMA>(z.im, z.re)),
        ComplexFn::Norm => e.one::<Complex32, f32>(i, |z| z.re * z.re + z.im * z.im),
        // Not hypot: its care for magnitudes beyond 10^19 would cost ten times as much.
        ComplexFn::Abs => e.one::<Complex32, f32>(i, |z| (z.re * z.re + z.im * z.im).sqrt()),
        ComplexFn::Conj => e.one::<Complex32, Complex32>(i, |z| z.conj()),
        ComplexFn::Exp => e.one::<Complex32, Complex32>(i, |z| cis(z.im) * math::exp::<FMA>(z.re)),
        ComplexFn::Cis => e.one::<f32, Complex32>(i, cis),
        ComplexFn::Scale => e.two::<Complex32, f32, Complex32>(i, |z, g| z * g),
        ComplexFn::Shrink => e.two::<Complex32, f32, Complex32>(i, |z, g| z / g),
    }
}

/// Casts to wider types; only c32 to real does not occur.
#[inline(always)]
fn cast<E: Exec>(e: &mut E, i: &Instr, from: Ty, to: Ty) {
    macro_rules! from {
        ($from:ty) => {
            match to {
                Ty::Bool => e.one::<$from, u8>(i, |a| u8::from(a != <$from>::default())),
                Ty::I32 => e.one::<$from, i32>(i, |a| a as i32),
                Ty::I64 => e.one::<$from, i64>(i, |a| a as i64),
                Ty::F32 => e.one::<$from, f32>(i, |a| a as f32),
                Ty::F64 => e.one::<$from, f64>(i, |a| a as f64),
                Ty::C32 => e.one::<$from, Complex32>(i, |a| Complex32::new(a as f32, 0.0)),
            }
        };
    }
    match from {
        Ty::Bool => from!(u8),
        Ty::I32 => from!(i32),
        Ty::I64 => from!(i64),
        Ty::F32 => from!(f32),
        Ty::F64 => from!(f64),
        Ty::C32 => e.one::<Complex32, Complex32>(i, |a| a),
    }
}
