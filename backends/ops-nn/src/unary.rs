//! Functions of one float, elementwise.

use zbmd_ir::DType;

use super::attributes;
use super::cx::{Body, Cx, FLOATS, Plan, Planned, Tensors};
use super::num::Float;
use zbmd_op::OpError;
use zbmd_op::simd::{self, Isa, Loop};

/// A function of one f32 or f64 element; `a` and `b` are the op's parameters.
trait Unary: Copy + Default + Send + Sync + 'static {
    fn of<F: Float, const FMA: bool>(self, x: F, a: F, b: F) -> F;
}

/// Declares unary functions of floats.
macro_rules! unary {
    ($($name:ident: |$x:ident, $a:ident, $b:ident| $body:expr;)*) => { $(
        #[derive(Clone, Copy, Default)]
        struct $name;
        impl Unary for $name {
            #[inline(always)]
            #[allow(unused_variables, reason = "few functions have parameters")]
            fn of<F: Float, const FMA: bool>(self, $x: F, $a: F, $b: F) -> F { $body }
        }
    )* };
}

fn one<F: Float>() -> F {
    F::ONE
}

fn num<F: Float>(v: f64) -> F {
    F::of(v)
}

/// Through f64: for functions that are rarely worth vector code.
fn via<F: Float>(x: F, f: impl Fn(f64) -> f64) -> F {
    F::of(f(x.f64()))
}

unary! {
    Acos: |x, a, b| via(x, f64::acos);
    Acosh: |x, a, b| via(x, f64::acosh);
    Asin: |x, a, b| via(x, f64::asin);
    Asinh: |x, a, b| via(x, f64::asinh);
    Atan: |x, a, b| via(x, f64::atan);
    Atanh: |x, a, b| via(x, f64::atanh);
    Celu: |x, a, b| x.max(F::ZERO) + (a * ((x / a).exp_fast::<FMA>() - one())).min(F::ZERO);
    Cos: |x, a, b| via(x, f64::cos);
    Cosh: |x, a, b| via(x, f64::cosh);
    Elu: |x, a, b| if x < F::ZERO { a * (x.exp_fast::<FMA>() - one()) } else { x };
    Erf: |x, a, b| x.erf_fast::<FMA>();
    Exp: |x, a, b| x.exp_fast::<FMA>();
    Gelu: |x, a, b| num::<F>(0.5) * x * (one::<F>() + (x * num(std::f64::consts::FRAC_1_SQRT_2)).erf_fast::<FMA>());
    GeluTanh: |x, a, b| {
        let inner = num::<F>(0.797_884_560_802_865_4) * (x + num::<F>(0.044_715) * x * x * x);
        num::<F>(0.5) * x * (one::<F>() + inner.tanh_fast::<FMA>())
    };
    HardSigmoid: |x, a, b| (a * x + b).min(one()).max(F::ZERO);
    HardSwish: |x, a, b| x * (x * num(1.0 / 6.0) + num(0.5)).min(one()).max(F::ZERO);
    LeakyRelu: |x, a, b| if x < F::ZERO { a * x } else { x };
    Log: |x, a, b| x.ln();
    Mish: |x, a, b| x * softplus(x).tanh();
    Reciprocal: |x, a, b| one::<F>() / x;
    Round: |x, a, b| via(x, f64::round_ties_even);
    Ceil: |x, a, b| via(x, f64::ceil);
    Floor: |x, a, b| x.floor();
    Selu: |x, a, b| if x > F::ZERO { b * x } else { b * (a * x.exp_fast::<FMA>() - a) };
    Shrink: |x, a, b| if x < -a { x + b } else if x > a { x - b } else { F::ZERO };
    Sigmoid: |x, a, b| one::<F>() / (one::<F>() + (-x).exp_fast::<FMA>());
    Sin: |x, a, b| via(x, f64::sin);
    Sinh: |x, a, b| via(x, f64::sinh);
    Softplus: |x, a, b| softplus(x);
    Softsign: |x, a, b| x / (one::<F>() + x.abs());
    Sqrt: |x, a, b| x.sqrt();
    Swish: |x, a, b| x / (one::<F>() + (-(a * x)).exp_fast::<FMA>());
    Tan: |x, a, b| via(x, f64::tan);
    Tanh: |x, a, b| x.tanh_fast::<FMA>();
    ThresholdedRelu: |x, a, b| if x > a { x } else { F::ZERO };
}

fn softplus<F: Float>(x: F) -> F {
    x.max(F::ZERO) + via((-x.abs()).exp(), f64::ln_1p)
}

struct UnaryLoop<'a, U> {
    x: &'a [f32],
    y: &'a mut [f32],
    a: f32,
    b: f32,
    f: U,
}

impl<U: Unary> Loop for UnaryLoop<'_, U> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        for (y, &x) in self.y.iter_mut().zip(self.x) {
            *y = self.f.of::<f32, FMA>(x, self.a, self.b);
        }
    }
}

struct UnaryBody<U> {
    a: f32,
    b: f32,
    f: U,
}

impl<U: Unary> Body for UnaryBody<U> {
    fn run(&self, t: &mut Tensors<'_>) {
        t.map(0, |x, y| {
            simd::dispatch(UnaryLoop {
                x,
                y,
                a: self.a,
                b: self.b,
                f: self.f,
            })
        });
    }

    fn batches(&self) -> bool {
        true
    }
}

/// f64: no loop of its own for each function.
struct WideUnary {
    a: f64,
    b: f64,
    f: fn(f64, f64, f64) -> f64,
}

impl Body for WideUnary {
    fn run(&self, t: &mut Tensors<'_>) {
        t.map(0, |x, y| {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = (self.f)(x, self.a, self.b);
            }
        });
    }

    fn batches(&self) -> bool {
        true
    }
}

fn in_f64<U: Unary>(x: f64, a: f64, b: f64) -> f64 {
    U::default().of::<f64, false>(x, a, b)
}

fn unary_plan<U: Unary>(cx: &Cx<'_>, f: U, a: f64, b: f64) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    let out = cx.operand(0)?.ty.clone();
    let flops = 8.0 * out.elements() as f64;
    let plan = match dtype {
        DType::F64 => Plan::new(
            vec![out],
            WideUnary {
                a,
                b,
                f: in_f64::<U>,
            },
        ),
        _ => Plan::new(
            vec![out],
            UnaryBody {
                a: a as f32,
                b: b as f32,
                f,
            },
        ),
    };
    Ok(plan.flops(flops).over([0]))
}

/// A unary function and the numbers that it takes.
pub(super) struct UnarySpec {
    /// The operator, or `GeluTanh` for the approximation of Gelu.
    pub(super) function: &'static str,
    pub(super) first: f64,
    pub(super) second: f64,
}

impl UnarySpec {
    pub(super) fn of(cx: &Cx<'_>, operator: &'static str) -> Result<Self, OpError> {
        let mut spec = Self {
            function: operator,
            first: 0.0,
            second: 0.0,
        };
        match operator {
            "Celu" | "Elu" | "Swish" | "ThresholdedRelu" => {
                spec.first = attributes::alpha(cx, 1.0)?;
            }
            "HardSigmoid" => {
                spec.first = attributes::alpha(cx, 0.2)?;
                spec.second = attributes::beta(cx, 0.5)?;
            }
            "LeakyRelu" => spec.first = attributes::alpha(cx, 0.01)?,
            "Selu" => {
                spec.first = attributes::alpha(cx, 1.673_263_192_176_818_8)?;
                spec.second = cx.args.float_or("gamma", 1.050_701_022_148_132_3)?;
            }
            "Shrink" => {
                spec.first = cx.args.float_or("lambd", 0.5)?;
                spec.second = attributes::bias(cx, 0.0)?;
            }
            "Gelu" if cx.args.word_opt("approximate")? == Some("tanh") => {
                spec.function = "GeluTanh";
            }
            _ => {}
        }
        Ok(spec)
    }
}

/// Unary functions of floats. A plain table: each function is a type, so that its loop is compiled with it inlined.
pub(super) fn unary(cx: &Cx<'_>, spec: &UnarySpec) -> Planned {
    let first = spec.first;
    let second = spec.second;
    match spec.function {
        "Acos" => unary_plan(cx, Acos, first, second),
        "Acosh" => unary_plan(cx, Acosh, first, second),
        "Asin" => unary_plan(cx, Asin, first, second),
        "Asinh" => unary_plan(cx, Asinh, first, second),
        "Atan" => unary_plan(cx, Atan, first, second),
        "Atanh" => unary_plan(cx, Atanh, first, second),
        "Ceil" => unary_plan(cx, Ceil, first, second),
        "Celu" => unary_plan(cx, Celu, first, second),
        "Cos" => unary_plan(cx, Cos, first, second),
        "Cosh" => unary_plan(cx, Cosh, first, second),
        "Elu" => unary_plan(cx, Elu, first, second),
        "Erf" => unary_plan(cx, Erf, first, second),
        "Exp" => unary_plan(cx, Exp, first, second),
        "Floor" => unary_plan(cx, Floor, first, second),
        "Gelu" => unary_plan(cx, Gelu, first, second),
        "GeluTanh" => unary_plan(cx, GeluTanh, first, second),
        "HardSigmoid" => unary_plan(cx, HardSigmoid, first, second),
        "HardSwish" => unary_plan(cx, HardSwish, first, second),
        "LeakyRelu" => unary_plan(cx, LeakyRelu, first, second),
        "Log" => unary_plan(cx, Log, first, second),
        "Mish" => unary_plan(cx, Mish, first, second),
        "Reciprocal" => unary_plan(cx, Reciprocal, first, second),
        "Round" => unary_plan(cx, Round, first, second),
        "Selu" => unary_plan(cx, Selu, first, second),
        "Shrink" => unary_plan(cx, Shrink, first, second),
        "Sigmoid" => unary_plan(cx, Sigmoid, first, second),
        "Sin" => unary_plan(cx, Sin, first, second),
        "Sinh" => unary_plan(cx, Sinh, first, second),
        "Softplus" => unary_plan(cx, Softplus, first, second),
        "Softsign" => unary_plan(cx, Softsign, first, second),
        "Sqrt" => unary_plan(cx, Sqrt, first, second),
        "Swish" => unary_plan(cx, Swish, first, second),
        "Tan" => unary_plan(cx, Tan, first, second),
        "Tanh" => unary_plan(cx, Tanh, first, second),
        _ => unary_plan(cx, ThresholdedRelu, first, second),
    }
}
