//! Types, constants and instructions: from the tree to a [`Program`].
//!
//! Types widen in the order bool < i32 < i64 < f32 < f64 < c32: an operation on two types is done in the wider one.
//! Numbers in the text and parameters are exact until they meet a typed operand and then take its type, except that
//! a number with a fraction makes integers f32. Functions other than `abs`, `min`, `max`, `clamp` and division make
//! integers f32.

use std::collections::BTreeMap;

use num_complex::Complex32;

use super::parse::{ExprError, ExprKind, ExprNode, Operator};
use super::{Bin, Cmp, Code, ComplexFn, Instr, Lane, Program, Src, Ty, Un};

/// Instructions of one program.
const MAX_INSTRS: usize = 1024;

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meaning {
    Input(u16, Ty, bool),
    Number(f64, bool),
    Bool(bool),
}

/// A part's value: known now, or in a column.
#[derive(Clone, Copy, Debug)]
enum Val {
    Number(f64, bool),
    Bool(bool),
    Column(Src, Ty),
}

/// Operands that a code reads.
pub(crate) fn arity(code: Code) -> usize {
    match code {
        Code::Select(_) => 3,
        Code::Bin(..) | Code::Cmp(..) | Code::And | Code::Or => 2,
        Code::Cx(ComplexFn::Scale | ComplexFn::Shrink) => 2,
        _ => 1,
    }
}

/// Compiles a tree whose names mean `names`; `inputs` are the input types in order.
pub(crate) fn lower(
    node: &ExprNode,
    names: &BTreeMap<String, Meaning>,
    inputs: Vec<Ty>,
) -> Result<Program, ExprError> {
    let mut lower = Lower {
        names,
        instrs: Vec::new(),
        consts: Vec::new(),
    };
    let value = lower.node(node)?;
    let (src, ty) = match value {
        Val::Column(src, ty) => (src, ty),
        constant => {
            let ty = natural(constant);
            (lower.typed(constant, ty), ty)
        }
    };
    let last = lower.instrs.last().map(|i| Src::Slot(i.dst));
    if last != Some(src) {
        lower.emit_new(Code::Copy(ty), [src; 3]);
    }
    if lower.instrs.len() > MAX_INSTRS {
        let message = format!(
            "has {} operations, the limit is {MAX_INSTRS}",
            lower.instrs.len()
        );
        return Err(ExprError::new(
            0,
            message,
            "put parts of it into other actors",
        ));
    }
    Ok(Program {
        instrs: lower.instrs,
        consts: lower.consts,
        inputs,
        output: ty,
    })
}

struct Lower<'a> {
    names: &'a BTreeMap<String, Meaning>,
    instrs: Vec<Instr>,
    consts: Vec<u64>,
}

/// The type that a value has when nothing else decides.
fn natural(value: Val) -> Ty {
    match value {
        Val::Column(_, ty) => ty,
        Val::Bool(_) => Ty::Bool,
        Val::Number(_, true) => Ty::I64,
        Val::Number(_, false) => Ty::F32,
    }
}

/// The type in which two values meet.
fn join(a: Val, b: Val) -> Ty {
    match (a, b) {
        (Val::Number(_, whole), Val::Column(_, ty))
        | (Val::Column(_, ty), Val::Number(_, whole)) => {
            ty.max(if whole { Ty::I32 } else { Ty::F32 })
        }
        _ => natural(a).max(natural(b)),
    }
}

/// The float type in which a function of a value is computed.
fn float(ty: Ty) -> Ty {
    if ty == Ty::F64 { Ty::F64 } else { Ty::F32 }
}

impl Lower<'_> {
    fn constant(&mut self, word: u64) -> Src {
        let at = self
            .consts
            .iter()
            .position(|&w| w == word)
            .unwrap_or_else(|| {
                self.consts.push(word);
                self.consts.len() - 1
            });
        Src::Const(at as u16)
    }

    /// The value as an operand of type `ty`, which is not narrower than its own.
    fn typed(&mut self, value: Val, ty: Ty) -> Src {
        let number = match value {
            Val::Column(src, own) if own == ty => return src,
            Val::Column(src, own) => return self.emit(Code::Cast(own, ty), [src; 3]),
            Val::Bool(b) => f64::from(u8::from(b)),
            Val::Number(n, _) => n,
        };
        let word = match ty {
            Ty::Bool => u8::from(number != 0.0).to_word(),
            Ty::I32 => (number as i32).to_word(),
            Ty::I64 => (number as i64).to_word(),
            Ty::F32 => (number as f32).to_word(),
            Ty::F64 => number.to_word(),
            Ty::C32 => Complex32::new(number as f32, 0.0).to_word(),
        };
        self.constant(word)
    }

    /// The slot of an equal instruction, or of a new one.
    fn emit(&mut self, code: Code, args: [Src; 3]) -> Src {
        let used = arity(code);
        let equal = |i: &&Instr| i.code == code && i.args[..used] == args[..used];
        match self.instrs.iter().find(equal) {
            Some(instr) => Src::Slot(instr.dst),
            None => self.emit_new(code, args),
        }
    }

    fn emit_new(&mut self, code: Code, args: [Src; 3]) -> Src {
        // Numbers beyond MAX_INSTRS never run; the text's length keeps them below u16.
        let dst = self.instrs.len() as u16;
        self.instrs.push(Instr { code, dst, args });
        Src::Slot(dst)
    }

    fn node(&mut self, node: &ExprNode) -> Result<Val, ExprError> {
        match &node.kind {
            ExprKind::Number(value, integer) => Ok(Val::Number(*value, *integer)),
            ExprKind::Name(name) => match self.names.get(name) {
                Some(&Meaning::Input(i, ty, false)) => Ok(Val::Column(Src::Input(i), ty)),
                Some(&Meaning::Input(i, ty, true)) => Ok(Val::Column(Src::Uniform(i), ty)),
                Some(&Meaning::Number(value, integer)) => Ok(Val::Number(value, integer)),
                Some(&Meaning::Bool(value)) => Ok(Val::Bool(value)),
                None => {
                    let help = "declare it in `inputs` or `params`";
                    Err(ExprError::new(
                        node.at,
                        format!("`{name}` is not known"),
                        help,
                    ))
                }
            },
            ExprKind::Prefix(sign, operand) => {
                let value = self.node(operand)?;
                self.prefix(node.at, *sign, value)
            }
            ExprKind::Binary(operator, a, b) => {
                let (a, b) = (self.node(a)?, self.node(b)?);
                self.binary(node.at, *operator, a, b)
            }
            ExprKind::Select(parts) => {
                let [c, a, b] = [
                    self.node(&parts[0])?,
                    self.node(&parts[1])?,
                    self.node(&parts[2])?,
                ];
                self.select(node.at, c, a, b)
            }
            ExprKind::Call(name, arguments) => {
                let values = arguments
                    .iter()
                    .map(|a| self.node(a))
                    .collect::<Result<Vec<_>, _>>()?;
                self.call(node.at, name, &values)
            }
        }
    }

    fn prefix(&mut self, at: usize, sign: char, value: Val) -> Result<Val, ExprError> {
        match (sign, value) {
            ('-', Val::Number(n, whole)) => Ok(Val::Number(-n, whole)),
            ('-', value) if natural(value) != Ty::Bool => {
                let ty = natural(value);
                let src = self.typed(value, ty);
                Ok(Val::Column(self.emit(Code::Un(Un::Neg, ty), [src; 3]), ty))
            }
            ('!', Val::Bool(b)) => Ok(Val::Bool(!b)),
            ('!', Val::Column(src, Ty::Bool)) => {
                Ok(Val::Column(self.emit(Code::Not, [src; 3]), Ty::Bool))
            }
            (_, value) => Err(wrong_type(at, &sign.to_string(), natural(value))),
        }
    }

    fn binary(&mut self, at: usize, op: Operator, a: Val, b: Val) -> Result<Val, ExprError> {
        use Operator as O;
        match op {
            O::And | O::Or => self.logic(at, op, a, b),
            O::Add => self.arithmetic(at, Bin::Add, a, b),
            O::Sub => self.arithmetic(at, Bin::Sub, a, b),
            O::Mul => self.arithmetic(at, Bin::Mul, a, b),
            O::Div => self.arithmetic(at, Bin::Div, a, b),
            // x > y is y < x, so that two comparisons suffice.
            O::Less => self.compare(at, Cmp::Less, a, b),
            O::LessEqual => self.compare(at, Cmp::LessEqual, a, b),
            O::Greater => self.compare(at, Cmp::Less, b, a),
            O::GreaterEqual => self.compare(at, Cmp::LessEqual, b, a),
            O::Equal => self.compare(at, Cmp::Equal, a, b),
            O::NotEqual => self.compare(at, Cmp::NotEqual, a, b),
        }
    }

    fn logic(&mut self, at: usize, op: Operator, a: Val, b: Val) -> Result<Val, ExprError> {
        let name = if op == Operator::And { "&&" } else { "||" };
        for value in [a, b] {
            if natural(value) != Ty::Bool {
                return Err(wrong_type(at, name, natural(value)));
            }
        }
        if let (Val::Bool(a), Val::Bool(b)) = (a, b) {
            return Ok(Val::Bool(if op == Operator::And { a && b } else { a || b }));
        }
        let (a, b) = (self.typed(a, Ty::Bool), self.typed(b, Ty::Bool));
        let code = if op == Operator::And {
            Code::And
        } else {
            Code::Or
        };
        Ok(Val::Column(self.emit(code, [a, b, a]), Ty::Bool))
    }

    fn compare(&mut self, at: usize, cmp: Cmp, a: Val, b: Val) -> Result<Val, ExprError> {
        if let (Val::Number(a, _), Val::Number(b, _)) = (a, b) {
            return Ok(Val::Bool(match cmp {
                Cmp::Less => a < b,
                Cmp::LessEqual => a <= b,
                Cmp::Equal => a == b,
                Cmp::NotEqual => a != b,
            }));
        }
        let ty = join(a, b);
        if ty == Ty::C32 && matches!(cmp, Cmp::Less | Cmp::LessEqual) {
            let help = "compare abs(z), re(z) or im(z)";
            return Err(ExprError::new(at, "complex numbers have no order", help));
        }
        let (a, b) = (self.typed(a, ty), self.typed(b, ty));
        Ok(Val::Column(
            self.emit(Code::Cmp(cmp, ty), [a, b, a]),
            Ty::Bool,
        ))
    }

    fn arithmetic(&mut self, at: usize, bin: Bin, a: Val, b: Val) -> Result<Val, ExprError> {
        if let (Val::Number(x, whole_x), Val::Number(y, whole_y)) = (a, b) {
            let value = fold(bin, x, y);
            if !value.is_finite() {
                let help = "constants are computed before the first firing";
                return Err(ExprError::new(at, format!("the constant is {value}"), help));
            }
            let exact = value.fract() == 0.0 && value.abs() < 9e15;
            let whole = whole_x && whole_y && exact && bin != Bin::Div && bin != Bin::Atan2;
            return Ok(Val::Number(value, whole));
        }
        let mut ty = join(a, b).max(Ty::I32);
        if matches!(bin, Bin::Div | Bin::Pow | Bin::Atan2) && ty < Ty::F32 {
            ty = Ty::F32;
        }
        if ty == Ty::C32 {
            return self.complex(at, bin, a, b);
        }
        if let (Bin::Pow, Val::Number(n, _)) = (bin, b)
            && let Some(value) = self.small_power(a, n, ty)
        {
            return Ok(value);
        }
        let (a, b) = (self.typed(a, ty), self.typed(b, ty));
        Ok(Val::Column(self.emit(Code::Bin(bin, ty), [a, b, a]), ty))
    }

    /// Powers that are products: x to the 1, 2, 3 or 4.
    fn small_power(&mut self, x: Val, n: f64, ty: Ty) -> Option<Val> {
        let x = self.typed(x, ty);
        let product =
            |lower: &mut Self, a: Src, b: Src| lower.emit(Code::Bin(Bin::Mul, ty), [a, b, a]);
        let src = match n {
            1.0 => x,
            2.0 => product(self, x, x),
            3.0 | 4.0 => {
                let square = product(self, x, x);
                product(self, square, if n == 3.0 { x } else { square })
            }
            _ => return None,
        };
        Some(Val::Column(src, ty))
    }

    fn complex(&mut self, at: usize, bin: Bin, a: Val, b: Val) -> Result<Val, ExprError> {
        let real = |v: Val| natural(v) != Ty::C32;
        let code = match bin {
            Bin::Add | Bin::Sub => Code::Bin(bin, Ty::C32),
            Bin::Mul if real(a) => return self.complex(at, bin, b, a),
            Bin::Mul if real(b) => Code::Cx(ComplexFn::Scale),
            Bin::Div if real(b) => Code::Cx(ComplexFn::Shrink),
            Bin::Mul | Bin::Div => Code::Bin(bin, Ty::C32),
            _ => return Err(wrong_type(at, "this function", Ty::C32)),
        };
        let by_real = matches!(code, Code::Cx(_));
        let z = self.typed(a, Ty::C32);
        let w = self.typed(b, if by_real { Ty::F32 } else { Ty::C32 });
        Ok(Val::Column(self.emit(code, [z, w, z]), Ty::C32))
    }

    fn select(&mut self, at: usize, c: Val, a: Val, b: Val) -> Result<Val, ExprError> {
        let condition = match c {
            Val::Bool(known) => return Ok(if known { a } else { b }),
            Val::Column(src, Ty::Bool) => src,
            other => {
                let message = format!("the condition is {}", natural(other).dtype());
                return Err(ExprError::new(at, message, "compare it: `x != 0 ? a : b`"));
            }
        };
        let ty = join(a, b);
        let (a, b) = (self.typed(a, ty), self.typed(b, ty));
        Ok(Val::Column(
            self.emit(Code::Select(ty), [condition, a, b]),
            ty,
        ))
    }

    fn call(&mut self, at: usize, name: &str, values: &[Val]) -> Result<Val, ExprError> {
        match (name, values) {
            ("min", &[a, b]) => self.real(at, name, Bin::Min, a, b),
            ("max", &[a, b]) => self.real(at, name, Bin::Max, a, b),
            ("pow", &[a, b]) => self.real(at, name, Bin::Pow, a, b),
            ("atan2", &[a, b]) => self.real(at, name, Bin::Atan2, a, b),
            ("select", &[c, a, b]) => self.select(at, c, a, b),
            ("clamp", &[x, low, high]) => {
                let above = self.real(at, name, Bin::Max, x, low)?;
                self.real(at, name, Bin::Min, above, high)
            }
            (_, &[x]) => match complex_function(name) {
                Some(function) => Ok(self.complex_call(function, x)),
                None => self.real_call(at, name, x),
            },
            _ => Err(unknown_function(at, name, values.len())),
        }
    }

    fn real(&mut self, at: usize, name: &str, bin: Bin, a: Val, b: Val) -> Result<Val, ExprError> {
        if join(a, b) == Ty::C32 {
            return Err(wrong_type(at, name, Ty::C32));
        }
        self.arithmetic(at, bin, a, b)
    }

    fn complex_call(&mut self, function: ComplexFn, x: Val) -> Val {
        match (function, natural(x)) {
            (_, Ty::C32) if function != ComplexFn::Cis => {
                let src = self.typed(x, Ty::C32);
                let ty = if function == ComplexFn::Conj {
                    Ty::C32
                } else {
                    Ty::F32
                };
                Val::Column(self.emit(Code::Cx(function), [src; 3]), ty)
            }
            (ComplexFn::Cis, _) => {
                let src = self.narrow(x);
                Val::Column(self.emit(Code::Cx(ComplexFn::Cis), [src; 3]), Ty::C32)
            }
            // Of real numbers these are trivial, but generic formulas use them.
            (ComplexFn::Re | ComplexFn::Conj, _) => x,
            (ComplexFn::Im, _) => Val::Number(0.0, false),
            (ComplexFn::Norm, ty) => {
                let ty = ty.max(Ty::I32);
                let src = self.typed(x, ty);
                Val::Column(self.emit(Code::Bin(Bin::Mul, ty), [src; 3]), ty)
            }
            (_, ty) => {
                let ty = float(ty);
                let (zero, src) = (self.typed(Val::Number(0.0, false), ty), self.typed(x, ty));
                Val::Column(self.emit(Code::Bin(Bin::Atan2, ty), [zero, src, src]), ty)
            }
        }
    }

    /// The value as f32, from any real type or the real part.
    fn narrow(&mut self, x: Val) -> Src {
        match x {
            Val::Column(src, Ty::C32) => self.emit(Code::Cx(ComplexFn::Re), [src; 3]),
            other => self.typed(other, Ty::F32),
        }
    }

    fn real_call(&mut self, at: usize, name: &str, x: Val) -> Result<Val, ExprError> {
        let un = match name {
            "abs" => Un::Abs,
            "sqrt" => Un::Sqrt,
            "exp" => Un::Exp,
            "log" => Un::Log,
            "log10" => Un::Log10,
            "sin" => Un::Sin,
            "cos" => Un::Cos,
            "tan" => Un::Tan,
            "tanh" => Un::Tanh,
            "floor" => Un::Floor,
            "round" => Un::Round,
            _ => return Err(unknown_function(at, name, 1)),
        };
        if let Val::Number(value, whole) = x {
            let result = super::run::float64(un, value);
            if result.is_finite() {
                let stays = matches!(un, Un::Abs | Un::Floor | Un::Round);
                return Ok(Val::Number(result, whole && stays));
            }
            let message = format!("{name}({value}) is {result}");
            return Err(ExprError::new(at, message, "constants must be finite"));
        }
        match (un, natural(x)) {
            (Un::Abs, Ty::C32) => {
                let src = self.typed(x, Ty::C32);
                Ok(Val::Column(
                    self.emit(Code::Cx(ComplexFn::Abs), [src; 3]),
                    Ty::F32,
                ))
            }
            (Un::Exp, Ty::C32) => {
                let src = self.typed(x, Ty::C32);
                Ok(Val::Column(
                    self.emit(Code::Cx(ComplexFn::Exp), [src; 3]),
                    Ty::C32,
                ))
            }
            (_, Ty::C32) => Err(wrong_type(at, name, Ty::C32)),
            (Un::Floor | Un::Round, Ty::Bool | Ty::I32 | Ty::I64) => Ok(x),
            (un, own) => {
                let ty = if un == Un::Abs {
                    own.max(Ty::I32)
                } else {
                    float(own)
                };
                let src = self.typed(x, ty);
                Ok(Val::Column(self.emit(Code::Un(un, ty), [src; 3]), ty))
            }
        }
    }
}

fn fold(bin: Bin, a: f64, b: f64) -> f64 {
    match bin {
        Bin::Add => a + b,
        Bin::Sub => a - b,
        Bin::Mul => a * b,
        Bin::Div => a / b,
        Bin::Min => a.min(b),
        Bin::Max => a.max(b),
        Bin::Pow => a.powf(b),
        Bin::Atan2 => a.atan2(b),
    }
}

fn complex_function(name: &str) -> Option<ComplexFn> {
    Some(match name {
        "re" => ComplexFn::Re,
        "im" => ComplexFn::Im,
        "conj" => ComplexFn::Conj,
        "arg" => ComplexFn::Arg,
        "norm" => ComplexFn::Norm,
        "cis" => ComplexFn::Cis,
        _ => return None,
    })
}

fn wrong_type(at: usize, what: &str, ty: Ty) -> ExprError {
    let help = match ty {
        Ty::C32 => "take re(z), im(z) or abs(z) first",
        Ty::Bool => "make a number of it: `c ? 1.0 : 0.0`",
        _ => "make a truth value of it: `x != 0`",
    };
    ExprError::new(at, format!("`{what}` does not take {}", ty.dtype()), help)
}

const FUNCTIONS: [(&str, usize); 23] = [
    ("abs", 1),
    ("arg", 1),
    ("atan2", 2),
    ("cis", 1),
    ("clamp", 3),
    ("conj", 1),
    ("cos", 1),
    ("exp", 1),
    ("floor", 1),
    ("im", 1),
    ("log", 1),
    ("log10", 1),
    ("max", 2),
    ("min", 2),
    ("norm", 1),
    ("pow", 2),
    ("re", 1),
    ("round", 1),
    ("select", 3),
    ("sin", 1),
    ("sqrt", 1),
    ("tan", 1),
    ("tanh", 1),
];

fn unknown_function(at: usize, name: &str, given: usize) -> ExprError {
    if let Some((_, wants)) = FUNCTIONS.iter().find(|(n, _)| *n == name) {
        let message = format!("`{name}` has {given} arguments");
        return ExprError::new(at, message, format!("it takes {wants}"));
    }
    let names = FUNCTIONS.map(|(n, _)| n);
    let help = match zbmd_op::args::nearest(name, names.into_iter()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}", names.join(", ")),
    };
    ExprError::new(at, format!("`{name}` is no function"), help)
}
