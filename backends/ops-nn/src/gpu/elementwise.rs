//! Elements one by one.

use zbmd_ir::DType;

use super::super::elementwise::{BinarySpec, InfinitySpec};
use super::super::norm::BatchNormSpec;
use super::super::quant::ScaleSpec;
use super::super::unary::UnarySpec;
use super::{Gpu, Lowered};
use zbmd_gpu_ir::KernelPlan;
use zbmd_gpu_ir::lang::{Ty, Val};
use zbmd_gpu_ir::tensor::function::{self, greatest, least, quotient, remainder};
use zbmd_gpu_ir::tensor::map::map;
use zbmd_gpu_ir::tensor::{Slot, Why, computed};

/// Both as one type: f64 if one of them is, f32 beside integers.
fn alike<'k>(x: Val<'k>, y: Val<'k>) -> Val<'k> {
    y.cast(x.ty)
}

/// Least and greatest value of an integer type; the greatest is the first that is too large for its registers.
fn bounds(dtype: DType) -> Option<(f64, f64)> {
    Some(match dtype {
        DType::I8 => (-128.0, 127.0),
        DType::U8 => (0.0, 255.0),
        DType::I16 => (-32_768.0, 32_767.0),
        DType::I32 => (-2_147_483_648.0, 2_147_483_647.0),
        DType::I64 => (-9_223_372_036_854_775_808.0, 9_223_372_036_854_775_807.0),
        _ => return None,
    })
}

impl Gpu<'_> {
    /// Operand `i` with its shape.
    fn shaped(&self, i: usize) -> Result<(Slot, Vec<usize>), Why> {
        Ok((self.slot(i)?, self.dims(i)?))
    }

    /// Output 0 from the first `n` operands.
    fn mapped(&self, n: usize, f: impl for<'k> Fn(&[Val<'k>]) -> Result<Val<'k>, Why>) -> Lowered {
        let inputs = (0..n)
            .map(|i| self.shaped(i))
            .collect::<Result<Vec<_>, Why>>()?;
        computed(self.outs[0].dtype)?;
        map(
            KernelPlan::default(),
            &inputs,
            (self.out(0), &self.out_dims(0)),
            f,
        )
    }

    pub(in super::super) fn unary(&self, spec: &UnarySpec) -> Lowered {
        self.mapped(1, |x| {
            function::unary(spec.function, x[0], spec.first, spec.second)
        })
    }

    pub(in super::super) fn is_infinite(&self, spec: &InfinitySpec) -> Lowered {
        self.mapped(1, |x| {
            let x = x[0];
            let is = |on: bool, v: f64| {
                if on {
                    x.eq(x.like(v))
                } else {
                    x.ne(x) & x.eq(x)
                }
            };
            Ok(is(spec.negative, f64::NEG_INFINITY) | is(spec.positive, f64::INFINITY))
        })
    }

    pub(in super::super) fn arithmetic(&self) -> Lowered {
        let op = self.op;
        self.mapped(1, |x| {
            let x = x[0];
            let (k, zero) = (x.builder(), x.like(0.0));
            Ok(match op {
                "Abs" if x.ty == Ty::U32 => x,
                "Abs" => k.select(x.lt(zero), zero - x, zero + x),
                "Neg" if x.ty.is_float() => x * x.like(-1.0),
                "Neg" => zero - x,
                "Relu" => greatest(x, zero),
                "Not" => x.eq(zero),
                "BitwiseNot" => !x,
                "IsNaN" => x.ne(x),
                _ => {
                    let minus = if x.ty == Ty::U32 { x } else { x.like(-1.0) };
                    let below = if x.ty == Ty::U32 {
                        x
                    } else {
                        k.select(x.lt(zero), minus, x)
                    };
                    k.select(zero.lt(x), x.like(1.0), below)
                }
            })
        })
    }

    /// Functions of two tensors that are told nothing beside them.
    pub(in super::super) fn plain_binary(&self) -> Lowered {
        self.binary(&BinarySpec::PLAIN)
    }

    pub(in super::super) fn binary(&self, spec: &BinarySpec) -> Lowered {
        let op = self.op;
        let BinarySpec {
            fmod,
            shifts_right: right,
            alpha,
        } = *spec;
        let dtype = self.dtype(0)?;
        let bits = 8 * dtype.size_bytes() as u32;
        self.mapped(2, |v| {
            let (x, y) = (v[0], v[1]);
            let k = x.builder();
            Ok(match op {
                "Add" => x + y,
                "Sub" => x - y,
                "Mul" => x * y,
                "Div" => quotient(x, y),
                "Mod" if x.ty.is_float() => float_remainder(x, y, fmod),
                "Mod" => remainder(x, y, fmod),
                "And" | "BitwiseAnd" => x & y,
                "Or" | "BitwiseOr" => x | y,
                "Xor" | "BitwiseXor" => x ^ y,
                "BitShift" => {
                    let inside = y.lt(y.like(f64::from(bits))) & y.like(0.0).le(y);
                    let by = k.select(inside, y, y.like(0.0));
                    let moved = if right { x >> by } else { x << by };
                    let minus = if x.ty == Ty::U32 {
                        x.like(0.0)
                    } else {
                        x.like(-1.0)
                    };
                    let gone = match right {
                        true => k.select(x.lt(x.like(0.0)), minus, x.like(0.0)),
                        false => x.like(0.0),
                    };
                    k.select(inside, moved, gone)
                }
                "Equal" => x.eq(y),
                "Greater" => y.lt(x),
                "GreaterOrEqual" => y.le(x),
                "Less" => x.lt(y),
                "LessOrEqual" => x.le(y),
                "PRelu" => k.select(x.lt(x.like(0.0)), x * y, x),
                "SwiGLU" if x.ty == Ty::F32 => x * function::sigmoid(k.f32(alpha as f32) * x) * y,
                "SwiGLU" => return Err("no GPU kernel for f64 functions".into()),
                _ => return self.power(x, y),
            })
        })
    }

    fn power<'k>(&self, x: Val<'k>, y: Val<'k>) -> Result<Val<'k>, Why> {
        if x.ty == Ty::F32 && y.ty == Ty::F64 {
            return Err("no GPU kernel for f64 exponents".to_owned());
        }
        let exponent = self
            .operand(1)?
            .floats()
            .filter(|e| e.len() == 1)
            .map(|e| e[0]);
        match exponent {
            Some(2.0) => return Ok(x * x),
            Some(1.0) => return Ok(x),
            Some(3.0) if !x.ty.is_float() => return Ok(x * x * x),
            Some(0.5) if x.ty.is_float() => return Ok(x.sqrt()),
            _ => {}
        }
        if x.ty.is_float() {
            return function::power(x, alike(x, y));
        }
        // By squaring; what is too large wraps on the CPU too.
        if y.ty.is_float() {
            return Err("no GPU kernel for fractional powers of integers".to_owned());
        }
        let k = x.builder();
        let (out, base, left) = (k.var(x.like(1.0)), k.var(x), k.var(y.cast(Ty::U32)));
        k.times(k.u32(32), |_| {
            let odd = (left.get() & 1).ne(k.u32(0));
            out.set(k.select(odd, out.get() * base.get(), out.get()));
            base.set(base.get() * base.get());
            left.set(left.get() >> 1);
        });
        // What a negative power leaves of an integer.
        let minus = x.like(-1.0);
        let odd = (y.cast(Ty::U32) & 1).ne(k.u32(0));
        let sign = k.select(odd, minus, x.like(1.0));
        let below = k.select(x.eq(minus), sign, x.like(0.0));
        let below = k.select(x.eq(x.like(1.0)), x, below);
        let negative = if y.ty.is_signed() {
            y.lt(y.like(0.0))
        } else {
            y.ne(y)
        };
        Ok(k.select(negative, below, out.get()))
    }

    pub(in super::super) fn variadic(&self) -> Lowered {
        let op = self.op;
        let n = self.operands.ins.len();
        if n > 12 {
            return Err(format!("{n} operands are too many for one kernel"));
        }
        self.mapped(n, |v| {
            let all = v[1..].iter().fold(v[0], |s, &x| match op {
                "Max" => greatest(s, x),
                "Min" => least(s, x),
                _ => s + x,
            });
            match op {
                "Mean" if all.ty == Ty::F32 => Ok(all * all.like(1.0 / n as f64)),
                "Mean" if all.ty != Ty::F64 => Err("no GPU kernel for means of integers".into()),
                "Mean" => Ok(all * all.like(1.0 / n as f64)),
                _ => Ok(all),
            }
        })
    }

    pub(in super::super) fn cast(&self) -> Lowered {
        let (from, to) = (self.dtype(0)?, self.outs[0].dtype);
        if matches!(to, DType::F16 | DType::Bf16)
            && matches!(from, DType::F64 | DType::I32 | DType::I64)
        {
            return Err(format!("no GPU kernel rounds {from} to {to} once"));
        }
        if (from, to) == (DType::I64, DType::F32) {
            return self.wide_to_float();
        }
        self.mapped(1, |x| {
            let x = x[0];
            if to == DType::Bool {
                return Ok(x.ne(x.like(0.0)));
            }
            Ok(function::cast(x, computed(to)?, bounds(to)))
        })
    }

    /// Conversions of i64 may round twice on the CPU, through f64: only small ones are exact either way.
    fn wide_to_float(&self) -> Lowered {
        self.mapped(1, |x| Ok(x[0].cast(Ty::F64).cast(Ty::F32)))
    }

    pub(in super::super) fn clip(&self) -> Lowered {
        let n = self.operands.ins.len();
        let mut inputs = vec![self.shaped(0)?];
        let mut has = [false; 2];
        for i in 1..n.min(3) {
            if let Some(slot) = self.opt_slot(i)? {
                inputs.push((slot, vec![]));
                has[i - 1] = true;
            }
        }
        map(
            KernelPlan::default(),
            &inputs,
            (self.out(0), &self.out_dims(0)),
            |v| {
                let (x, k) = (v[0], v[0].builder());
                let low = if has[0] {
                    k.select(x.lt(v[1]), v[1], x)
                } else {
                    x
                };
                let high = v.get(1 + usize::from(has[0])).filter(|_| has[1]);
                Ok(high.map_or(low, |&h| k.select(h.lt(low), h, low)))
            },
        )
    }

    pub(in super::super) fn select(&self) -> Lowered {
        let c = self.shaped(0)?;
        // 64-bit values are chosen as they are where the device has them.
        let inputs = [c, self.shaped(1)?, self.shaped(2)?];
        map(
            KernelPlan::default(),
            &inputs,
            (self.out(0), &self.out_dims(0)),
            |v| {
                let k = v[0].builder();
                Ok(k.select(v[0].ne(k.u32(0)), v[1], v[2]))
            },
        )
    }

    pub(in super::super) fn batch_norm(&self, spec: &BatchNormSpec) -> Lowered {
        if spec.is_training {
            return Err("no GPU kernel for training".to_owned());
        }
        let dims = self.dims(0)?;
        let epsilon = spec.epsilon;
        let mut inputs = vec![self.shaped(0)?];
        let channel: Vec<usize> = (1..dims.len())
            .map(|d| if d == 1 { dims[1] } else { 1 })
            .collect();
        for i in 1..5 {
            inputs.push((self.slot(i)?, channel.clone()));
        }
        map(KernelPlan::default(), &inputs, (self.out(0), &dims), |v| {
            let [x, scale, bias, mean, var] = [0, 1, 2, 3, 4].map(|i| v[i].cast(v[0].ty));
            let a = scale / (var + x.like(epsilon)).sqrt();
            Ok(x * a + (bias - a * mean))
        })
    }

    /// QuantizeLinear and DequantizeLinear with scales of one number or of an axis.
    pub(in super::super) fn quantised(&self, spec: &ScaleSpec) -> Lowered {
        let (x, dims) = self.shaped(0)?;
        let (scale, y) = (self.slot(1)?, self.out(0));
        if spec.block > 0 {
            return Err("no GPU kernel for scales of blocks".to_owned());
        }
        let narrow = |d: DType| matches!(d, DType::I8 | DType::U8 | DType::I16);
        let quantises = self.op == "QuantizeLinear";
        let whole = if quantises { y.dtype } else { x.dtype };
        if !narrow(whole) || computed(scale.dtype)? != Ty::F32 || y.dtype == DType::F64 {
            return Err(format!("no GPU kernel for quantised numbers of {whole}"));
        }
        let own = match spec.axis {
            None => vec![],
            Some(axis) => {
                let mut own = vec![1; dims.len() - axis];
                own[0] = scale.elements as usize;
                own
            }
        };
        let mut inputs = vec![(x, dims.clone()), (scale, own.clone())];
        if let Some(zero) = self.opt_slot(2)? {
            inputs.push((zero, own));
        }
        let (low, high) = bounds(whole).unwrap_or_default();
        map(KernelPlan::default(), &inputs, (y, &dims), |v| {
            let k = v[0].builder();
            let zero = v
                .get(2)
                .map_or_else(|| k.f32(0.0), |z| z.cast(Ty::I32).cast(Ty::F32));
            let x = v[0].cast(Ty::F32);
            if !quantises {
                return Ok((x - zero) * v[1]);
            }
            let level = (x / v[1]).round() + zero;
            let level = k.select(level.eq(level), level, k.f32(0.0));
            let bounded = level.max(k.f32(low as f32)).min(k.f32(high as f32));
            Ok(bounded.cast(Ty::I32).cast(computed(whole)?))
        })
    }
}

/// The remainder of floats through f64, in which the product of quotient and divisor is exact.
fn float_remainder<'k>(x: Val<'k>, y: Val<'k>, fmod: bool) -> Val<'k> {
    let k = x.builder();
    let (a, b) = (x.cast(Ty::F64), y.cast(Ty::F64));
    let (zero, q) = (a.like(0.0), a / b);
    let whole = k.select(q.lt(zero), -((-q).floor()), q.floor());
    let endless = b.abs().eq(a.like(f64::INFINITY));
    let rest = k.select(endless, a, a - whole * b);
    if fmod {
        return rest.cast(x.ty);
    }
    let apart = rest.ne(zero) & rest.lt(zero).ne(b.lt(zero));
    let rest = k.select(apart, k.select(endless, b, rest + b), rest);
    // A remainder of 0 has the sign of the divisor.
    let none = k.select(b.lt(zero), -zero, zero);
    k.select(rest.eq(zero), none, rest).cast(x.ty)
}
