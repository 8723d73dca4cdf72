//! Ops on elements one by one, with NumPy's broadcasting.

use half::{bf16, f16};
use zbmd_ir::DType;

use super::cx::{
    Body, Cx, FLOATS, Plan, Planned, STRETCH, Tensors, by_element, by_num, copy_bytes, dims, token,
};
use super::index::{Walk, broadcast};
use super::num::{Float, Num};
use zbmd_op::OpError;
use zbmd_op::simd::{self, Isa, Loop};

/// Runs `$f::<T>($args)` for the type that an integer dtype is computed in.
macro_rules! by_integer {
    ($dtype:expr, $f:ident ( $($arg:expr),* $(,)? )) => {
        match $dtype {
            DType::U8 | DType::Bool => $f::<u8>($($arg),*),
            DType::I64 => $f::<i64>($($arg),*),
            _ => $f::<i32>($($arg),*),
        }
    };
}

/// Elementwise of one type into another.
fn map_plan<A: Num, B: bytemuck::Pod>(
    out: zbmd_ir::TokenType,
    f: impl Fn(A) -> B + Send + Sync + Copy + 'static,
) -> Plan {
    Plan::new(vec![out], move |t: &mut Tensors<'_>| {
        t.map(0, |x: &[A], y: &mut [B]| {
            if A::WIDE {
                simd::map(x, y, f);
            } else {
                y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(x));
            }
        });
    })
    .over([0])
}

/// Abs, Neg, Relu, Sign of any numbers.
pub(super) fn arithmetic(cx: &Cx<'_>, name: &str) -> Planned {
    fn make<T: Num>(out: zbmd_ir::TokenType, name: &str) -> Planned {
        Ok(match name {
            "Abs" => map_plan(out, |v: T| {
                if v < T::ZERO {
                    T::ZERO.sub(v)
                } else {
                    T::ZERO.add(v)
                }
            }),
            "Neg" => map_plan(out, |v: T| {
                if T::FLOAT {
                    v.mul(T::of(-1.0))
                } else {
                    T::ZERO.sub(v)
                }
            }),
            "Relu" => map_plan(out, |v: T| v.max(T::ZERO)),
            _ => map_plan(out, |v: T| {
                if v > T::ZERO {
                    T::ONE
                } else if v < T::ZERO {
                    T::ZERO.sub(T::ONE)
                } else {
                    v
                }
            }),
        })
    }
    let out = cx.operand(0)?.ty.clone();
    let name = name.to_owned();
    by_num!(out.dtype, make(out, &name))
}

/// Not, IsNaN, BitwiseNot.
pub(super) fn test(cx: &Cx<'_>, name: &str) -> Planned {
    let ty = &cx.operand(0)?.ty;
    let out = token(DType::Bool, &dims(ty));
    if name == "Not" {
        cx.expect(0, &[DType::Bool])?;
        return Ok(map_plan(out, |v: u8| u8::from(v == 0)));
    }
    if name == "BitwiseNot" {
        fn make<T: Num>(out: zbmd_ir::TokenType) -> Planned {
            Ok(map_plan(out, |v: T| T::of_i64(!v.i64())))
        }
        cx.expect(0, &INTS)?;
        return by_integer!(ty.dtype, make(ty.clone()));
    }
    Ok(match cx.expect(0, &FLOATS)? {
        DType::F64 => map_plan(out, |v: f64| u8::from(v.is_nan())),
        _ => map_plan(out, |v: f32| u8::from(v.is_nan())),
    })
}

/// Which infinities count.
pub(super) struct InfinitySpec {
    pub(super) negative: bool,
    pub(super) positive: bool,
}

impl InfinitySpec {
    pub(super) fn of(cx: &Cx<'_>) -> Result<Self, OpError> {
        Ok(Self {
            negative: cx.flag("detect_negative", true)?,
            positive: cx.flag("detect_positive", true)?,
        })
    }
}

/// IsInf.
pub(super) fn is_infinite(cx: &Cx<'_>, spec: &InfinitySpec) -> Planned {
    fn make<T: Num>(out: zbmd_ir::TokenType, negative: bool, positive: bool) -> Planned {
        Ok(map_plan(out, move |v: T| {
            u8::from((v == T::LEAST && negative) || (v == T::GREATEST && positive))
        }))
    }
    let out = token(DType::Bool, &cx.dims(0)?);
    match cx.expect(0, &FLOATS)? {
        DType::F64 => make::<f64>(out, spec.negative, spec.positive),
        _ => make::<f32>(out, spec.negative, spec.positive),
    }
}

const INTS: [DType; 5] = [DType::I8, DType::U8, DType::I16, DType::I32, DType::I64];

/// Two operands into one result, each element by `f`.
struct Binary<A, B, F> {
    walk: Walk<2>,
    f: F,
    types: std::marker::PhantomData<fn(A) -> B>,
}

struct Row<'a, A, B, F> {
    x: &'a [A],
    y: &'a [A],
    z: &'a mut [B],
    step: [isize; 2],
    f: F,
}

impl<A: Copy, B, F: Fn(A, A) -> B> Loop for Row<'_, A, B, F> {
    type Out = ();
    #[inline(always)]
    fn run<const FMA: bool>(self, _: Isa<FMA>) {
        let Self { x, y, z, step, f } = self;
        match step {
            [1, 1] => {
                for ((z, &x), &y) in z.iter_mut().zip(x).zip(y) {
                    *z = f(x, y);
                }
            }
            [1, 0] => {
                let y = y[0];
                for (z, &x) in z.iter_mut().zip(x) {
                    *z = f(x, y);
                }
            }
            [0, 1] => {
                let x = x[0];
                for (z, &y) in z.iter_mut().zip(y) {
                    *z = f(x, y);
                }
            }
            _ => {
                for (i, z) in z.iter_mut().enumerate() {
                    *z = f(x[i * step[0] as usize], y[i * step[1] as usize]);
                }
            }
        }
    }
}

impl<A, B, F> Body for Binary<A, B, F>
where
    A: Num,
    B: bytemuck::Pod,
    F: Fn(A, A) -> B + Copy + Send + Sync,
{
    fn run(&self, t: &mut Tensors<'_>) {
        let inner = self.walk.inner;
        let Some(under) = t.over() else {
            let (x, y, z) = (t.get::<A>(0), t.get::<A>(1), t.out::<B>(0));
            self.walk.each(|to, [a, b]| {
                self.row(&x[a..], &y[b..], &mut z[to..to + inner], self.walk.step);
            });
            return;
        };
        let (other, z) = (t.get::<A>(1 - under), t.out::<B>(0));
        let by = self.walk.step[1 - under];
        let mut copy = [A::zeroed(); STRETCH];
        self.walk.each(|to, at| {
            for (i, z) in z[to..to + inner].chunks_mut(STRETCH).enumerate() {
                copy_bytes(z, &mut copy[..z.len()]);
                let other = &other[at[1 - under] + i * STRETCH * by as usize..];
                match under {
                    0 => self.row(&copy, other, z, [1, by]),
                    _ => self.row(other, &copy, z, [by, 1]),
                }
            }
        });
    }
}

impl<A: Num, B: bytemuck::Pod, F: Fn(A, A) -> B + Copy> Binary<A, B, F> {
    /// One row, its operands advancing by these steps.
    fn row(&self, x: &[A], y: &[A], z: &mut [B], step: [isize; 2]) {
        if A::WIDE {
            simd::dispatch(Row {
                x,
                y,
                z,
                step,
                f: self.f,
            });
        } else {
            for (i, z) in z.iter_mut().enumerate() {
                *z = (self.f)(x[i * step[0] as usize], y[i * step[1] as usize]);
            }
        }
    }
}

fn binary_plan<A: Num, B: bytemuck::Pod>(
    cx: &Cx<'_>,
    dtype: DType,
    f: impl Fn(A, A) -> B + Copy + Send + Sync + 'static,
) -> Planned {
    let (x, y) = (cx.dims(0)?, cx.dims(1)?);
    let out = broadcast(&[&x, &y])?;
    let walk = Walk::broadcasting(&out, [&x, &y])?;
    let body = Binary {
        walk,
        f,
        types: std::marker::PhantomData,
    };
    Ok(Plan::new(vec![token(dtype, &out)], body).over([0, 1]))
}

fn same_dtypes(cx: &Cx<'_>, n: usize) -> Result<DType, OpError> {
    let dtype = cx.dtype(0)?;
    for i in 1..n {
        if let Some(other) = cx.opt(i)
            && other.ty.dtype != dtype
        {
            return Err(cx.refuse(
                i,
                format!("is {}, the first input {dtype}", other.ty),
                "cast one of them",
            ));
        }
    }
    Ok(dtype)
}

/// What some functions of two tensors are told beside them.
#[derive(Clone, Copy)]
pub(super) struct BinarySpec {
    /// Mod: whether the remainder has the sign of the first operand.
    pub(super) fmod: bool,
    /// BitShift: whether bits move to lower places.
    pub(super) shifts_right: bool,
    /// SwiGLU: the factor within the sigmoid.
    pub(super) alpha: f64,
}

impl BinarySpec {
    /// Of functions that are told nothing.
    pub(super) const PLAIN: Self = Self {
        fmod: false,
        shifts_right: false,
        alpha: 1.0,
    };

    pub(super) fn named(cx: &Cx<'_>, operator: &str) -> Result<Self, OpError> {
        let mut spec = Self::PLAIN;
        match operator {
            "Mod" => spec.fmod = cx.flag("fmod", false)?,
            "BitShift" => spec.shifts_right = cx.args.word_opt("direction")? == Some("RIGHT"),
            _ => spec.alpha = cx.args.float_or("alpha", 1.0)?,
        }
        Ok(spec)
    }
}

/// Mod.
pub(super) fn modulo(cx: &Cx<'_>, spec: &BinarySpec) -> Planned {
    binary_with(cx, "Mod", spec.fmod)
}

/// Add, Sub, Mul, Div, and the greatest and least of two.
pub(super) fn binary(cx: &Cx<'_>, name: &str) -> Planned {
    binary_with(cx, name, BinarySpec::PLAIN.fmod)
}

fn binary_with(cx: &Cx<'_>, name: &str, fmod: bool) -> Planned {
    fn make<T: Num>(cx: &Cx<'_>, dtype: DType, name: &str, fmod: bool) -> Planned {
        match name {
            "Add" => binary_plan(cx, dtype, T::add),
            "Sub" => binary_plan(cx, dtype, T::sub),
            "Mul" => binary_plan(cx, dtype, T::mul),
            "Div" => binary_plan(cx, dtype, T::div),
            "Max" => binary_plan(cx, dtype, T::max),
            "Min" => binary_plan(cx, dtype, T::min),
            _ if T::FLOAT => binary_plan(cx, dtype, move |x: T, y: T| {
                T::of(float_mod(x.f64(), y.f64(), fmod))
            }),
            _ => binary_plan(cx, dtype, move |x: T, y: T| {
                T::of_i64(int_mod(x.i64(), y.i64(), fmod))
            }),
        }
    }
    let dtype = same_dtypes(cx, 2)?;
    by_num!(dtype, make(cx, dtype, name, fmod))
}

fn int_mod(x: i64, y: i64, fmod: bool) -> i64 {
    match y {
        0 => 0,
        _ if fmod => x.wrapping_rem(y),
        _ => {
            let rest = x.wrapping_rem(y);
            if rest != 0 && (rest < 0) != (y < 0) {
                rest.wrapping_add(y)
            } else {
                rest
            }
        }
    }
}

fn float_mod(x: f64, y: f64, fmod: bool) -> f64 {
    let rest = x % y;
    if fmod || rest.is_nan() {
        return rest;
    }
    if rest == 0.0 {
        return 0f64.copysign(y);
    }
    if (rest < 0.0) != (y < 0.0) {
        if y.is_infinite() { y } else { rest + y }
    } else {
        rest
    }
}

/// Comparisons into truth values.
pub(super) fn compare(cx: &Cx<'_>, name: &str) -> Planned {
    fn make<T: Num>(cx: &Cx<'_>, name: &str) -> Planned {
        match name {
            "Equal" => binary_plan(cx, DType::Bool, |x: T, y: T| u8::from(x == y)),
            "Greater" => binary_plan(cx, DType::Bool, |x: T, y: T| u8::from(x > y)),
            "GreaterOrEqual" => binary_plan(cx, DType::Bool, |x: T, y: T| u8::from(x >= y)),
            "Less" => binary_plan(cx, DType::Bool, |x: T, y: T| u8::from(x < y)),
            _ => binary_plan(cx, DType::Bool, |x: T, y: T| u8::from(x <= y)),
        }
    }
    let dtype = same_dtypes(cx, 2)?;
    by_num!(dtype, make(cx, name))
}

/// And, Or, Xor; bitwise ones and shifts.
pub(super) fn bits(cx: &Cx<'_>, name: &str) -> Planned {
    bits_with(cx, name, BinarySpec::PLAIN.shifts_right)
}

/// BitShift.
pub(super) fn shift(cx: &Cx<'_>, spec: &BinarySpec) -> Planned {
    bits_with(cx, "BitShift", spec.shifts_right)
}

fn bits_with(cx: &Cx<'_>, name: &str, right: bool) -> Planned {
    fn make<T: Num>(cx: &Cx<'_>, dtype: DType, name: &str, right: bool) -> Planned {
        let bits = 8 * dtype.size_bytes() as i64;
        let shift = move |x: i64, y: i64| match (right, (0..bits).contains(&y)) {
            (true, true) => x >> y,
            (true, false) => {
                if x < 0 {
                    -1
                } else {
                    0
                }
            }
            (false, true) => x << y,
            (false, false) => 0,
        };
        match name {
            "BitwiseAnd" => binary_plan(cx, dtype, |x: T, y: T| T::of_i64(x.i64() & y.i64())),
            "BitwiseOr" => binary_plan(cx, dtype, |x: T, y: T| T::of_i64(x.i64() | y.i64())),
            "BitwiseXor" => binary_plan(cx, dtype, |x: T, y: T| T::of_i64(x.i64() ^ y.i64())),
            _ => binary_plan(cx, dtype, move |x: T, y: T| {
                T::of_i64(shift(x.i64(), y.i64()))
            }),
        }
    }
    let dtype = same_dtypes(cx, 2)?;
    if let "And" | "Or" | "Xor" = name {
        cx.expect(0, &[DType::Bool])?;
        return match name {
            "And" => binary_plan(cx, dtype, |x: u8, y: u8| x & y),
            "Or" => binary_plan(cx, dtype, |x: u8, y: u8| x | y),
            _ => binary_plan(cx, dtype, |x: u8, y: u8| x ^ y),
        };
    }
    cx.expect(0, &INTS)?;
    by_integer!(dtype, make(cx, dtype, name, right))
}

/// x to the power y; y may have a type of its own.
pub(super) fn pow(cx: &Cx<'_>) -> Planned {
    let (dtype, other) = (cx.dtype(0)?, super::cx::computed(cx.dtype(1)?));
    // Squares are what normalisations ask for: exact, and in vector code.
    if let Some(exponent) = cx.operand(1)?.floats().filter(|e| e.len() == 1)
        && dtype == DType::F32
        && [2.0, 0.5, 1.0].contains(&exponent[0])
        && cx.operand(1)?.ty.shape.len() <= cx.operand(0)?.ty.shape.len()
    {
        let out = cx.operand(0)?.ty.clone();
        return Ok(match exponent[0] {
            2.0 => map_plan(out, |x: f32| x * x),
            0.5 => map_plan(out, f32::sqrt),
            _ => map_plan(out, |x: f32| x),
        });
    }
    let (x, y) = (cx.dims(0)?, cx.dims(1)?);
    let out = broadcast(&[&x, &y])?;
    let walk = Walk::broadcasting(&out, [&x, &y])?;
    fn make<T: Num>(walk: Walk<2>, out: zbmd_ir::TokenType, other: DType) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            let (x, y, z) = (t.get::<T>(0), t.bytes(1), t.out::<T>(0));
            walk.each(|to, [a, b]| {
                for (i, z) in z[to..to + walk.inner].iter_mut().enumerate() {
                    let x = x[a + i * walk.step[0] as usize];
                    *z = power(x, number_at(y, other, b + i * walk.step[1] as usize));
                }
            });
        }))
    }
    by_num!(dtype, make(walk, token(dtype, &out), other))
}

fn power<T: Num>(x: T, y: f64) -> T {
    if !T::FLOAT && y >= 0.0 && y.fract() == 0.0 {
        let (mut base, mut left, mut out) = (x, y as u64, T::ONE);
        while left > 0 {
            if left & 1 == 1 {
                out = out.mul(base);
            }
            base = base.mul(base);
            left >>= 1;
        }
        return out;
    }
    T::of(x.f64().powf(y))
}

/// Element i of a tensor of any type.
pub(super) fn number_at(bytes: &[u8], dtype: DType, i: usize) -> f64 {
    match dtype {
        DType::F32 => f64::from(bytemuck::cast_slice::<u8, f32>(bytes)[i]),
        DType::F64 => bytemuck::cast_slice::<u8, f64>(bytes)[i],
        DType::F16 => bytemuck::cast_slice::<u8, f16>(bytes)[i].to_f64(),
        DType::Bf16 => bytemuck::cast_slice::<u8, bf16>(bytes)[i].to_f64(),
        other => super::cx::index_at(bytes, other, i) as f64,
    }
}

/// Sum, Mean, Max, Min of any number of operands.
pub(super) fn variadic(cx: &Cx<'_>, name: &str) -> Planned {
    let n = cx.ins.len();
    let dtype = same_dtypes(cx, n)?;
    let shapes: Vec<Vec<usize>> = (0..n).map(|i| cx.dims(i)).collect::<Result<_, _>>()?;
    let views: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
    let out = broadcast(&views)?;
    let walks: Vec<Walk<1>> = views
        .iter()
        .map(|s| Walk::broadcasting(&out, [s]))
        .collect::<Result<_, _>>()?;
    fn make<T: Num>(out: zbmd_ir::TokenType, walks: Vec<Walk<1>>, name: &str) -> Planned {
        let join: fn(T, T) -> T = match name {
            "Max" => T::max,
            "Min" => T::min,
            _ => T::add,
        };
        let scale = (name == "Mean").then_some(1.0 / walks.len() as f64);
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            let y = t.out::<T>(0);
            for (i, walk) in walks.iter().enumerate() {
                let x = t.get::<T>(i);
                let dense = walk.step[0] == 1;
                walk.each(|to, [from]| {
                    let y = &mut y[to..to + walk.inner];
                    match (i, dense) {
                        (0, true) => y.copy_from_slice(&x[from..from + y.len()]),
                        (0, false) => y.fill(x[from]),
                        (_, true) => y
                            .iter_mut()
                            .zip(&x[from..])
                            .for_each(|(y, &x)| *y = join(*y, x)),
                        _ => y.iter_mut().for_each(|y| *y = join(*y, x[from])),
                    }
                });
            }
            if let Some(scale) = scale {
                y.iter_mut().for_each(|y| *y = T::of(y.f64() * scale));
            }
        }))
    }
    let out = token(dtype, &out);
    if n == 2 && matches!(name, "Sum") {
        return binary(cx, "Add");
    }
    by_num!(dtype, make(out, walks, name))
}

/// c ? x : y.
pub(super) fn select(cx: &Cx<'_>) -> Planned {
    cx.expect(0, &[DType::Bool])?;
    if cx.dtype(1)? != cx.dtype(2)? {
        return Err(cx.refuse(
            2,
            format!("is {}", cx.operand(2)?.ty),
            format!("`{}` is {}", cx.operand(1)?.name, cx.operand(1)?.ty),
        ));
    }
    let dtype = cx.dtype(1)?;
    let shapes = [cx.dims(0)?, cx.dims(1)?, cx.dims(2)?];
    let views: [&[usize]; 3] = std::array::from_fn(|i| shapes[i].as_slice());
    let out = broadcast(&views)?;
    let walk = Walk::broadcasting(&out, views)?;
    fn make<T: bytemuck::Pod>(out: zbmd_ir::TokenType, walk: Walk<3>) -> Planned {
        Ok(Plan::new(vec![out], move |t: &mut Tensors<'_>| {
            let (c, x, y, z) = (t.get::<u8>(0), t.get::<T>(1), t.get::<T>(2), t.out::<T>(0));
            let s = walk.step.map(|s| s as usize);
            walk.each(|to, [a, b, d]| {
                for (i, z) in z[to..to + walk.inner].iter_mut().enumerate() {
                    *z = if c[a + i * s[0]] != 0 {
                        x[b + i * s[1]]
                    } else {
                        y[d + i * s[2]]
                    };
                }
            });
        }))
    }
    let out = token(dtype, &out);
    match dtype {
        DType::C32 => Err(cx.refuse(1, "is complex", "split it into real and imaginary parts")),
        _ => match dtype.size_bytes() {
            1 => make::<u8>(out, walk),
            2 => make::<u16>(out, walk),
            4 => make::<u32>(out, walk),
            _ => make::<u64>(out, walk),
        },
    }
}

/// Elements bounded by scalars, either of which may be missing.
pub(super) fn clip(cx: &Cx<'_>) -> Planned {
    fn make<T: Num>(out: zbmd_ir::TokenType) -> Planned {
        Ok(Plan::new(vec![out], |t: &mut Tensors<'_>| {
            let bound = |i: usize, none: T| {
                t.opt::<T>(i)
                    .and_then(|s| s.first().copied())
                    .unwrap_or(none)
            };
            let (low, high) = (bound(1, T::LEAST), bound(2, T::GREATEST));
            t.map(0, |x, y| {
                simd::map(x, y, |v: T| {
                    let v = if v < low { low } else { v };
                    if v > high { high } else { v }
                });
            });
        })
        .over([0]))
    }
    let dtype = same_dtypes(cx, 3)?;
    by_num!(dtype, make(cx.operand(0)?.ty.clone()))
}

/// Conversion: floats are truncated towards 0 and wrap nowhere; anything but 0 is true.
pub(super) fn cast(cx: &Cx<'_>) -> Planned {
    fn floats<T: Num>() -> (simd::Read<f64>, simd::Write<f64>) {
        (
            |x, to| simd::read::<T, _>(x, to, T::f64),
            |x, to| simd::write::<T, _>(x, to, T::of),
        )
    }
    fn wholes<T: Num>() -> (simd::Read<i64>, simd::Write<i64>) {
        (
            |x, to| simd::read::<T, _>(x, to, T::i64),
            |x, to| simd::write::<T, _>(x, to, T::of_i64),
        )
    }
    let by_float = |dtype: DType| -> Result<_, OpError> { Ok(by_element!(dtype, floats())) };
    let by_whole = |dtype: DType| match dtype {
        DType::I8 => wholes::<i8>(),
        DType::U8 | DType::Bool => wholes::<u8>(),
        DType::I16 => wholes::<i16>(),
        DType::I32 => wholes::<i32>(),
        _ => wholes::<i64>(),
    };
    let to = cx.args.dtype_or("to", DType::F32)?;
    let from = cx.dtype(0)?;
    if to == DType::C32 {
        return Err(Cx::other("nothing is cast to c32", "use `Convert`"));
    }
    let whole = |d: DType| d == DType::Bool || INTS.contains(&d);
    let out = token(to, &cx.dims(0)?);
    let (a, b) = (from.size_bytes() as usize, to.size_bytes() as usize);
    let read = by_float(from)?.0;
    Ok(match (to, whole(from) && whole(to)) {
        (DType::Bool, _) => {
            let truth: simd::Write<f64> =
                |x, to| simd::write::<u8, _>(x, to, |v| (v != 0.0).into());
            staged_plan(out, (a, b), read, truth)
        }
        (_, true) => staged_plan(out, (a, b), by_whole(from).0, by_whole(to).1),
        _ => staged_plan(out, (a, b), read, by_float(to)?.1),
    })
}

/// A conversion by way of a type that holds the elements of both; sizes in bytes.
fn staged_plan<M: bytemuck::Pod + Send + Sync>(
    out: zbmd_ir::TokenType,
    (a, b): (usize, usize),
    read: simd::Read<M>,
    write: simd::Write<M>,
) -> Plan {
    Plan::new(vec![out], move |t: &mut Tensors<'_>| {
        let x = t.bytes(0);
        simd::staged((x, a), (t.out_bytes(0), b), read, write);
    })
}

/// The same bits as another type of the same size.
pub(super) fn bitcast(cx: &Cx<'_>) -> Planned {
    let to = cx.args.dtype_or("to", DType::F32)?;
    let ty = &cx.operand(0)?.ty;
    if to.size_bytes() != ty.dtype.size_bytes() {
        return Err(cx.refuse(0, format!("is {ty}, `{to}` has another size"), "use NnCast"));
    }
    Ok(
        Plan::new(vec![token(to, &dims(ty))], |t: &mut Tensors<'_>| {
            if t.over().is_none() {
                let x = t.bytes(0);
                t.out_bytes(0).copy_from_slice(x);
            }
        })
        .over([0]),
    )
}

/// x where it is positive, slope · x elsewhere.
pub(super) fn prelu(cx: &Cx<'_>) -> Planned {
    fn make<T: Num>(cx: &Cx<'_>, dtype: DType) -> Planned {
        binary_plan(
            cx,
            dtype,
            |x: T, y: T| if x < T::ZERO { x.mul(y) } else { x },
        )
    }
    let dtype = same_dtypes(cx, 2)?;
    if broadcast(&[&cx.dims(0)?, &cx.dims(1)?])? != cx.dims(0)? {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            "its shape must fit that of `x`",
        ));
    }
    by_num!(dtype, make(cx, dtype))
}

/// a · sigmoid(alpha · a) · b.
pub(super) fn swiglu(cx: &Cx<'_>, spec: &BinarySpec) -> Planned {
    let dtype = cx.expect(0, &FLOATS)?;
    if cx.operand(0)?.ty != cx.operand(1)?.ty {
        return Err(cx.refuse(
            1,
            format!("is {}", cx.operand(1)?.ty),
            format!("the first input is {}", cx.operand(0)?.ty),
        ));
    }
    let alpha = spec.alpha;
    let out = cx.operand(0)?.ty.clone();
    struct Body(f64);
    impl super::cx::FloatBody for Body {
        fn run<F: Float>(&self, t: &mut Tensors<'_>) {
            let (a, b, y) = (t.get::<F>(0), t.get::<F>(1), t.out::<F>(0));
            for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                *y = a * (F::of(self.0) * a).sigmoid() * b;
            }
        }
    }
    Ok(Plan::float(dtype, vec![out], Body(alpha)))
}
