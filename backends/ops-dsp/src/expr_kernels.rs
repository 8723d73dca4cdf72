//! Compiled expressions as GPU kernels: one thread for each element, one register for each slot. Knows no driver.

use crate::expr::{Bin, Cmp, Code, ComplexFn, Instr, Program, Src, Ty as ExprTy, Un};
use zbmd_gpu_ir::lang::{Builder, Mem, Ty, Val};
use zbmd_gpu_ir::wide::Cx;
use zbmd_gpu_ir::{Amount, Grid, KernelPlan, Operand, math};

/// A value of an expression.
#[derive(Clone, Copy)]
enum Value<'k> {
    Real(Val<'k>),
    Complex(Cx<'k>),
}

impl<'k> Value<'k> {
    fn real(self) -> Val<'k> {
        match self {
            Value::Real(v) => v,
            Value::Complex(z) => z.re,
        }
    }

    fn complex(self) -> Cx<'k> {
        match self {
            Value::Complex(z) => z,
            Value::Real(v) => Cx::new(v, v.like(0.0)),
        }
    }
}

fn mem(ty: ExprTy) -> Mem {
    match ty {
        ExprTy::Bool => Mem::U8,
        ExprTy::I32 => Mem::I32,
        ExprTy::I64 => Mem::I64,
        ExprTy::F32 => Mem::F32,
        ExprTy::F64 => Mem::F64,
        ExprTy::C32 => Mem::Pair,
    }
}

/// The type of a real value.
fn register(ty: ExprTy) -> Ty {
    match ty {
        ExprTy::Bool => Ty::Bool,
        ExprTy::I32 => Ty::I32,
        ExprTy::I64 => Ty::I64,
        ExprTy::F64 => Ty::F64,
        ExprTy::F32 | ExprTy::C32 => Ty::F32,
    }
}

/// The kernel of an expression over tokens of `elements` elements; none where it needs a function of `f64` that GPU
/// kernels do not have.
pub(crate) fn expression(program: &Program, elements: usize) -> Option<KernelPlan> {
    let k = Builder::new("expression", 64);
    let input_bindings: Vec<u32> = program.inputs.iter().map(|ty| k.reads(mem(*ty))).collect();
    let output_binding = k.writes(mem(program.output));
    let elements_per_firing = k.spec(u32::try_from(elements).ok()?);
    // The builder's closure cannot return an error.
    let mut is_known = true;

    k.each(k.firings() * elements_per_firing, |i| {
        let mut lowering = Lower {
            k: &k,
            program,
            inputs: &input_bindings,
            i,
            token: i / elements_per_firing,
            slots: vec![],
        };

        for instr in &program.instrs {
            match lowering.step(instr) {
                Some(value) => lowering.slots.push(value),
                None => {
                    is_known = false;
                    return;
                }
            }
        }

        let Some(&value) = lowering.slots.last() else {
            return;
        };
        match program.output {
            ExprTy::C32 => value.complex().store(output_binding, i),
            ExprTy::Bool => k.store(output_binding, i, value.real().cast(Ty::U32)),
            _ => k.store(output_binding, i, value.real()),
        }
    });

    let input_count = input_bindings.len() as u32;
    let port_operands: Vec<Operand> = (0..input_count)
        .map(Operand::Input)
        .chain([Operand::Output(0)])
        .collect();
    let element_grid = Grid::Threads(Amount::each(elements as u64));
    is_known.then(|| KernelPlan::one(k.finish(), &port_operands, element_grid))
}

struct Lower<'k, 'p> {
    k: &'k Builder,
    program: &'p Program,
    inputs: &'p [u32],
    i: Val<'k>,
    token: Val<'k>,
    slots: Vec<Value<'k>>,
}

impl<'k> Lower<'k, '_> {
    fn input(&self, input: u16, at: Val<'k>) -> Value<'k> {
        let binding = self.inputs[usize::from(input)];
        match self.program.inputs[usize::from(input)] {
            ExprTy::C32 => Value::Complex(Cx::load(self.k, binding, at)),
            ExprTy::Bool => Value::Real(self.k.load(binding, at).cast(Ty::Bool)),
            _ => Value::Real(self.k.load(binding, at)),
        }
    }

    /// Operand `index` of an instruction, which takes it as `ty`.
    fn arg(&self, instr: &Instr, index: usize, ty: ExprTy) -> Value<'k> {
        match instr.args[index] {
            Src::Slot(slot) => self.slots[usize::from(slot)],
            Src::Input(input) => self.input(input, self.i),
            Src::Uniform(input) => self.input(input, self.token),
            Src::Const(at) => {
                let const_word = self.program.consts[usize::from(at)];
                if ty == ExprTy::C32 {
                    let half_const = |bits: u64| self.k.bits(Ty::F32, bits & 0xffff_ffff);
                    return Value::Complex(Cx::new(
                        half_const(const_word),
                        half_const(const_word >> 32),
                    ));
                }

                let const_word = if ty == ExprTy::Bool {
                    u64::from(const_word != 0)
                } else {
                    const_word
                };
                Value::Real(self.k.bits(register(ty), const_word))
            }
        }
    }

    fn step(&self, i: &Instr) -> Option<Value<'k>> {
        let real = |index, ty| self.arg(i, index, ty).real();
        let bool = |index| real(index, ExprTy::Bool);
        Some(match i.code {
            Code::Copy(ty) => self.arg(i, 0, ty),
            Code::Cast(from, to) => {
                let value = self.arg(i, 0, from);
                match to {
                    _ if from == to => value,
                    ExprTy::C32 => {
                        Value::Complex(Value::Real(value.real().cast(Ty::F32)).complex())
                    }
                    _ => Value::Real(value.real().cast(register(to))),
                }
            }
            Code::Un(un, ExprTy::C32) => {
                debug_assert_eq!(un, Un::Neg, "the only one of complex numbers");
                let z = self.arg(i, 0, ExprTy::C32).complex();
                Value::Complex(Cx::new(-z.re, -z.im))
            }
            Code::Un(un, ty) => Value::Real(unary(un, ty, real(0, ty))?),
            Code::Bin(bin, ExprTy::C32) => {
                let z = |index| self.arg(i, index, ExprTy::C32).complex();
                Value::Complex(match bin {
                    Bin::Add => z(0).plus(z(1)),
                    Bin::Sub => z(0).minus(z(1)),
                    Bin::Mul => z(0).times(z(1)),
                    _ => z(0).over(z(1)),
                })
            }
            Code::Bin(bin, ty) => Value::Real(binary(bin, ty, real(0, ty), real(1, ty))?),
            Code::Cmp(cmp, ty) => {
                Value::Real(compare(cmp, ty, self.arg(i, 0, ty), self.arg(i, 1, ty)))
            }
            Code::Cx(function) => self.complex(i, function),
            Code::Not => Value::Real(!bool(0)),
            Code::And => Value::Real(bool(0) & bool(1)),
            Code::Or => Value::Real(bool(0) | bool(1)),
            Code::Select(ty) => {
                let c = bool(0);
                let a = self.arg(i, 1, ty);
                let b = self.arg(i, 2, ty);

                match ty {
                    ExprTy::C32 => {
                        let a = a.complex();
                        let b = b.complex();
                        let re = self.k.select(c, a.re, b.re);
                        Value::Complex(Cx::new(re, self.k.select(c, a.im, b.im)))
                    }
                    _ => Value::Real(self.k.select(c, a.real(), b.real())),
                }
            }
        })
    }

    fn complex(&self, i: &Instr, function: ComplexFn) -> Value<'k> {
        let z = || self.arg(i, 0, ExprTy::C32).complex();
        let g = || self.arg(i, 1, ExprTy::F32).real();
        let unit_complex = |phase| {
            let [sin, cos] = math::sin_cos(phase);
            Cx::new(cos, sin)
        };

        match function {
            ComplexFn::Re => Value::Real(z().re),
            ComplexFn::Im => Value::Real(z().im),
            ComplexFn::Arg => Value::Real(math::atan2(z().im, z().re)),
            ComplexFn::Norm => Value::Real(z().norm()),
            ComplexFn::Abs => Value::Real(z().norm().sqrt()),
            ComplexFn::Conj => Value::Complex(z().conj()),
            ComplexFn::Exp => Value::Complex(unit_complex(z().im).scale(math::exp(z().re))),
            ComplexFn::Cis => Value::Complex(unit_complex(self.arg(i, 0, ExprTy::F32).real())),
            ComplexFn::Scale => Value::Complex(z().scale(g())),
            ComplexFn::Shrink => Value::Complex(Cx::new(z().re / g(), z().im / g())),
        }
    }
}

fn unary<'k>(un: Un, ty: ExprTy, a: Val<'k>) -> Option<Val<'k>> {
    let k = a.builder();
    Some(match un {
        Un::Neg => -a,
        Un::Abs => a.abs(),
        Un::Sqrt => a.sqrt(),
        Un::Floor => a.floor(),
        Un::Round => a.round(),
        // The functions of f64 are the CPU's alone.
        _ if ty != ExprTy::F32 => return None,
        Un::Exp => math::exp(a),
        Un::Log => math::ln(a),
        Un::Log10 => math::ln(a) * k.f32(std::f32::consts::LOG10_E),
        Un::Sin => math::sin_cos(a)[0],
        Un::Cos => math::sin_cos(a)[1],
        Un::Tan => {
            let [sin, cos] = math::sin_cos(a);
            sin / cos
        }
        Un::Tanh => math::tanh(a),
    })
}

fn binary<'k>(bin: Bin, ty: ExprTy, a: Val<'k>, b: Val<'k>) -> Option<Val<'k>> {
    Some(match bin {
        Bin::Add => a + b,
        Bin::Sub => a - b,
        Bin::Mul => a * b,
        Bin::Div => a / b,
        Bin::Min => a.min(b),
        Bin::Max => a.max(b),
        _ if ty != ExprTy::F32 => return None,
        Bin::Pow => math::pow(a, b),
        Bin::Atan2 => math::atan2(a, b),
    })
}

fn compare<'k>(cmp: Cmp, ty: ExprTy, a: Value<'k>, b: Value<'k>) -> Val<'k> {
    if ty == ExprTy::C32 {
        let a = a.complex();
        let b = b.complex();
        return match cmp {
            Cmp::Equal => a.re.eq(b.re) & a.im.eq(b.im),
            _ => a.re.ne(b.re) | a.im.ne(b.im),
        };
    }

    let ordered_value = |v: Value<'k>| match ty {
        ExprTy::Bool => v.real().cast(Ty::U32),
        _ => v.real(),
    };
    let a = ordered_value(a);
    let b = ordered_value(b);

    match cmp {
        Cmp::Less => a.lt(b),
        Cmp::LessEqual => a.le(b),
        Cmp::Equal => a.eq(b),
        Cmp::NotEqual => a.ne(b),
    }
}
