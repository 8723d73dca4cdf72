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
        self.mapped(1, |inputs| {
            let x = inputs[0];
            let is_infinity = |is_asked: bool, infinity: f64| match is_asked {
                true => x.eq(x.like(infinity)),
                // Never.
                false => x.ne(x) & x.eq(x),
            };
            let is_negative = is_infinity(spec.negative, f64::NEG_INFINITY);
            Ok(is_negative | is_infinity(spec.positive, f64::INFINITY))
        })
    }

    pub(in super::super) fn arithmetic(&self) -> Lowered {
        let op = self.op;
        self.mapped(1, |inputs| {
            let x = inputs[0];
            let k = x.builder();
            let zero = x.like(0.0);
            Ok(match op {
                "Abs" if x.ty == Ty::U32 => x,
                "Abs" => k.select(x.lt(zero), zero - x, zero + x),
                "Neg" if x.ty.is_float() => x * x.like(-1.0),
                "Neg" => zero - x,
                "Relu" => greatest(x, zero),
                "Not" => x.eq(zero),
                "BitwiseNot" => !x,
                "IsNaN" => x.ne(x),
                // The sign. 0 and what is not a number stay as they are.
                _ => {
                    let minus_one = if x.ty == Ty::U32 { x } else { x.like(-1.0) };
                    let if_not_positive = match x.ty {
                        Ty::U32 => x,
                        _ => k.select(x.lt(zero), minus_one, x),
                    };
                    k.select(zero.lt(x), x.like(1.0), if_not_positive)
                }
            })
        })
    }

    /// Functions of two tensors without parameters.
    pub(in super::super) fn plain_binary(&self) -> Lowered {
        self.binary(&BinarySpec::PLAIN)
    }

    pub(in super::super) fn binary(&self, spec: &BinarySpec) -> Lowered {
        let op = self.op;
        let BinarySpec {
            fmod,
            shifts_right,
            alpha,
        } = *spec;
        let element_bits = 8 * self.dtype(0)?.size_bytes() as u32;
        self.mapped(2, |inputs| {
            let x = inputs[0];
            let y = inputs[1];
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
                "BitShift" => shift(x, y, element_bits, shifts_right),
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
        let constant_exponent = self
            .operand(1)?
            .floats()
            .filter(|exponents| exponents.len() == 1)
            .map(|exponents| exponents[0]);
        match constant_exponent {
            Some(2.0) => return Ok(x * x),
            Some(1.0) => return Ok(x),
            Some(3.0) if !x.ty.is_float() => return Ok(x * x * x),
            Some(0.5) if x.ty.is_float() => return Ok(x.sqrt()),
            _ => {}
        }
        if x.ty.is_float() {
            return function::power(x, y.cast(x.ty));
        }
        if y.ty.is_float() {
            return Err("no GPU kernel for fractional powers of integers".to_owned());
        }
        Ok(integer_power(x, y))
    }

    pub(in super::super) fn variadic(&self) -> Lowered {
        let op = self.op;
        let n = self.operands.ins.len();
        if n > 12 {
            return Err(format!("{n} operands are too many for one kernel"));
        }
        self.mapped(n, |inputs| {
            let rest = inputs[1..].iter();
            let joined = rest.fold(inputs[0], |so_far, &x| match op {
                "Max" => greatest(so_far, x),
                "Min" => least(so_far, x),
                _ => so_far + x,
            });
            match op {
                "Mean" if !joined.ty.is_float() => {
                    Err("no GPU kernel for means of integers".to_owned())
                }
                "Mean" => Ok(joined * joined.like(1.0 / n as f64)),
                _ => Ok(joined),
            }
        })
    }

    pub(in super::super) fn cast(&self) -> Lowered {
        let from = self.dtype(0)?;
        let to = self.outs[0].dtype;
        let rounds_twice = matches!(to, DType::F16 | DType::Bf16)
            && matches!(from, DType::F64 | DType::I32 | DType::I64);
        if rounds_twice {
            return Err(format!("no GPU kernel rounds {from} to {to} once"));
        }
        if (from, to) == (DType::I64, DType::F32) {
            return self.wide_to_float();
        }
        self.mapped(1, |inputs| {
            let x = inputs[0];
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
        let mut inputs = vec![self.shaped(0)?];
        let mut is_bounded = [false; 2];
        for i in 1..self.operands.ins.len().min(3) {
            if let Some(slot) = self.opt_slot(i)? {
                inputs.push((slot, vec![]));
                is_bounded[i - 1] = true;
            }
        }

        let [has_low, has_high] = is_bounded;
        let out_dims = self.out_dims(0);
        let ends = (self.out(0), &out_dims[..]);
        map(KernelPlan::default(), &inputs, ends, |inputs| {
            let x = inputs[0];
            let k = x.builder();
            let raised = match has_low {
                true => k.select(x.lt(inputs[1]), inputs[1], x),
                false => x,
            };
            // The upper bound is the last input.
            let high = inputs.last().filter(|_| has_high);
            Ok(high.map_or(raised, |&high| k.select(high.lt(raised), high, raised)))
        })
    }

    pub(in super::super) fn select(&self) -> Lowered {
        // 64-bit values are chosen as they are where the device has them.
        let inputs = [self.shaped(0)?, self.shaped(1)?, self.shaped(2)?];
        let out_dims = self.out_dims(0);
        let ends = (self.out(0), &out_dims[..]);
        map(KernelPlan::default(), &inputs, ends, |inputs| {
            let k = inputs[0].builder();
            let is_chosen = inputs[0].ne(k.u32(0));
            Ok(k.select(is_chosen, inputs[1], inputs[2]))
        })
    }

    pub(in super::super) fn batch_norm(&self, spec: &BatchNormSpec) -> Lowered {
        if spec.is_training {
            return Err("no GPU kernel for training".to_owned());
        }

        let dims = self.dims(0)?;
        // Scale, bias, mean and variance have a number for each channel, dimension 1.
        let channel_dims: Vec<usize> = (1..dims.len())
            .map(|d| if d == 1 { dims[1] } else { 1 })
            .collect();
        let mut inputs = vec![self.shaped(0)?];
        for i in 1..5 {
            inputs.push((self.slot(i)?, channel_dims.clone()));
        }

        let ends = (self.out(0), &dims[..]);
        map(KernelPlan::default(), &inputs, ends, |inputs| {
            let [x, scale, bias, mean, variance] =
                [0, 1, 2, 3, 4].map(|i| inputs[i].cast(inputs[0].ty));
            let factor = scale / (variance + x.like(spec.epsilon)).sqrt();
            Ok(x * factor + (bias - factor * mean))
        })
    }

    /// QuantizeLinear and DequantizeLinear with scales of one number or of an axis.
    pub(in super::super) fn quantised(&self, spec: &ScaleSpec) -> Lowered {
        let (source, dims) = self.shaped(0)?;
        let scale = self.slot(1)?;
        let target = self.out(0);
        if spec.block > 0 {
            return Err("no GPU kernel for scales of blocks".to_owned());
        }
        let quantises = self.op == "QuantizeLinear";
        let level_dtype = if quantises {
            target.dtype
        } else {
            source.dtype
        };
        let has_levels = matches!(level_dtype, DType::I8 | DType::U8 | DType::I16);
        if !has_levels || computed(scale.dtype)? != Ty::F32 || target.dtype == DType::F64 {
            return Err(format!(
                "no GPU kernel for quantised numbers of {level_dtype}"
            ));
        }

        // A scale of an axis is repeated along the others.
        let scale_dims = match spec.axis {
            None => vec![],
            Some(axis) => {
                let mut scale_dims = vec![1; dims.len() - axis];
                scale_dims[0] = scale.elements as usize;
                scale_dims
            }
        };
        let mut inputs = vec![(source, dims.clone()), (scale, scale_dims.clone())];
        if let Some(zero_point) = self.opt_slot(2)? {
            inputs.push((zero_point, scale_dims));
        }

        let (low, high) = bounds(level_dtype).unwrap_or_default();
        map(KernelPlan::default(), &inputs, (target, &dims), |inputs| {
            let k = inputs[0].builder();
            let zero_point = match inputs.get(2) {
                Some(zero_point) => zero_point.cast(Ty::I32).cast(Ty::F32),
                None => k.f32(0.0),
            };
            let x = inputs[0].cast(Ty::F32);
            if !quantises {
                return Ok((x - zero_point) * inputs[1]);
            }

            let exact_level = (x / inputs[1]).round() + zero_point;
            // What is not a number becomes 0.
            let level = k.select(exact_level.eq(exact_level), exact_level, k.f32(0.0));
            let bounded_level = level.max(k.f32(low as f32)).min(k.f32(high as f32));
            Ok(bounded_level.cast(Ty::I32).cast(computed(level_dtype)?))
        })
    }
}

/// x shifted by y bits; by as many as it has, or more, nothing but the sign is left of it.
fn shift<'k>(x: Val<'k>, y: Val<'k>, element_bits: u32, is_right: bool) -> Val<'k> {
    let k = x.builder();
    let is_within = y.lt(y.like(f64::from(element_bits))) & y.like(0.0).le(y);
    let distance = k.select(is_within, y, y.like(0.0));
    let shifted = match is_right {
        true => x >> distance,
        false => x << distance,
    };

    let minus_one = match x.ty {
        Ty::U32 => x.like(0.0),
        _ => x.like(-1.0),
    };
    let shifted_out = match is_right {
        true => k.select(x.lt(x.like(0.0)), minus_one, x.like(0.0)),
        false => x.like(0.0),
    };
    k.select(is_within, shifted, shifted_out)
}

/// x to the power y of integers, by squaring; what is too large wraps on the CPU too.
fn integer_power<'k>(x: Val<'k>, y: Val<'k>) -> Val<'k> {
    let k = x.builder();
    let power = k.var(x.like(1.0));
    let base = k.var(x);
    let remaining_bits = k.var(y.cast(Ty::U32));
    k.times(k.u32(32), |_| {
        let is_odd = (remaining_bits.get() & 1).ne(k.u32(0));
        power.set(k.select(is_odd, power.get() * base.get(), power.get()));
        base.set(base.get() * base.get());
        remaining_bits.set(remaining_bits.get() >> 1);
    });

    // A negative power leaves 1 of 1, a sign of −1, and 0 of all else.
    let minus_one = x.like(-1.0);
    let is_odd = (y.cast(Ty::U32) & 1).ne(k.u32(0));
    let sign = k.select(is_odd, minus_one, x.like(1.0));
    let of_minus_one = k.select(x.eq(minus_one), sign, x.like(0.0));
    let negative_power = k.select(x.eq(x.like(1.0)), x, of_minus_one);
    let is_negative = match y.ty.is_signed() {
        true => y.lt(y.like(0.0)),
        false => y.ne(y),
    };
    k.select(is_negative, negative_power, power.get())
}

/// The remainder of floats through f64, in which the product of quotient and divisor is exact.
fn float_remainder<'k>(x: Val<'k>, y: Val<'k>, fmod: bool) -> Val<'k> {
    let k = x.builder();
    let dividend = x.cast(Ty::F64);
    let divisor = y.cast(Ty::F64);
    let zero = dividend.like(0.0);
    let quotient = dividend / divisor;
    let is_negative = quotient.lt(zero);
    let truncated = k.select(is_negative, -((-quotient).floor()), quotient.floor());
    let is_endless = divisor.abs().eq(dividend.like(f64::INFINITY));
    let rest = k.select(is_endless, dividend, dividend - truncated * divisor);
    if fmod {
        return rest.cast(x.ty);
    }

    // The remainder of `Mod` has the sign of the divisor.
    let signs_differ = rest.ne(zero) & rest.lt(zero).ne(divisor.lt(zero));
    let moved_rest = k.select(is_endless, divisor, rest + divisor);
    let rest = k.select(signs_differ, moved_rest, rest);
    let signed_zero = k.select(divisor.lt(zero), -zero, zero);
    k.select(rest.eq(zero), signed_zero, rest).cast(x.ty)
}
