//! Kernels of samplers: the state before the call is read by every thread, and moved on by a run of one thread after.

use zbmd_ir::DType;

use super::lang::{Builder, Kernel, Mem, Ty, Val};
use super::math;
use super::plan::{Amount, Grid, KernelPlan, Operand};
use super::wide::{Cx, Wide};

/// Adds `step` for each of the `each` steps of every firing to the state, a 64-bit integer.
fn advance(step: u64, each: u32) -> Kernel {
    let k = Builder::new("advance", 1);
    let state = k.writes(Mem::U32);
    let steps = Wide::from_word(k.firings()).times(Wide::constant(&k, each.into()));
    k.each(k.u32(1), |i| {
        let n = Wide::load(&k, state, i);
        n.plus(steps.times(Wide::constant(&k, step)))
            .store(state, i);
    });
    k.finish()
}

fn advanced(plan: KernelPlan, step: u64, each: u32) -> KernelPlan {
    let once = Grid::Threads(Amount::fixed(1));
    plan.then(advance(step, each), &[Operand::State(0)], once)
}

/// start, start + step, ….
pub(crate) fn counter(step: i64, dtype: DType) -> Option<KernelPlan> {
    let mem = match dtype {
        DType::I8 | DType::U8 => Mem::U8,
        DType::I16 => Mem::U16,
        DType::I32 | DType::I64 => Mem::U32,
        DType::F32 => Mem::F32,
        _ => Mem::F64,
    };
    let k = Builder::new("counter", 64);
    let (state, y) = (k.reads(Mem::U32), k.writes(mem));
    let start = Wide::load(&k, state, k.u32(0));
    let step_value = Wide::constant(&k, step as u64);
    k.each(k.firings(), |i| {
        let n = start.plus(step_value.times(Wide::from_word(i)));
        match dtype {
            DType::I64 => n.store(y, i),
            DType::F32 | DType::F64 => {
                let whole = (n.high.cast(Ty::U64) << 32) | n.low.cast(Ty::U64);
                k.store(y, i, whole.as_bits(Ty::I64).cast(mem.ty()));
            }
            _ => k.store(y, i, n.low),
        }
    });
    let operands = [Operand::State(0), Operand::Output(0)];
    let plan = KernelPlan::one(k.finish(), &operands, Grid::Threads(Amount::each(1)));
    Some(advanced(plan, step as u64, 1))
}

/// e^{j(start + i·step)}.
fn oscillation<'k>(start: Wide<'k>, step: u64, i: Val<'k>) -> Cx<'k> {
    let k = i.builder();
    let phase = start.plus(Wide::constant(k, step).times(Wide::from_word(i)));
    math::cis_turns(phase.high)
}

/// amplitude · e^{j(start + k·step)}, or its real part.
pub(crate) fn tone(step: u64, amplitude: f32, complex: bool) -> KernelPlan {
    let k = Builder::new("tone", 64);
    let (state, y) = (
        k.reads(Mem::U32),
        k.writes(if complex { Mem::Pair } else { Mem::F32 }),
    );
    let start = Wide::load(&k, state, k.u32(0));
    k.each(k.firings(), |i| {
        let z = oscillation(start, step, i).scale(k.f32(amplitude));
        match complex {
            true => z.store(y, i),
            false => k.store(y, i, z.re),
        }
    });
    let operands = [Operand::State(0), Operand::Output(0)];
    let plan = KernelPlan::one(k.finish(), &operands, Grid::Threads(Amount::each(1)));
    advanced(plan, step, 1)
}

/// x · e^{j(start + k·step)} over the elements of all tokens.
pub(crate) fn mix(step: u64, complex: bool, elements: u64) -> Option<KernelPlan> {
    let each = u32::try_from(elements).ok()?;
    let k = Builder::new("mix", 64);
    let (state, x) = (
        k.reads(Mem::U32),
        k.reads(if complex { Mem::Pair } else { Mem::F32 }),
    );
    let y = k.writes(Mem::Pair);
    let start = Wide::load(&k, state, k.u32(0));
    k.each(k.firings() * k.spec(each), |i| {
        let turn = oscillation(start, step, i);
        let z = match complex {
            true => Cx::load(&k, x, i).times(turn),
            false => turn.scale(k.load(x, i)),
        };
        z.store(y, i);
    });
    let operands = [Operand::State(0), Operand::Input(0), Operand::Output(0)];
    let plan = KernelPlan::one(k.finish(), &operands, Grid::Threads(Amount::each(elements)));
    Some(advanced(plan, step, each))
}

/// Uniform numbers in [−amplitude, amplitude) by SplitMix64, `each` a firing.
pub(crate) fn noise(golden: u64, amplitude: f32, each: u32) -> KernelPlan {
    let k = Builder::new("noise", 64);
    let (state, y) = (k.reads(Mem::U32), k.writes(Mem::F32));
    let start = Wide::load(&k, state, k.u32(0));
    k.each(k.firings() * k.spec(each), |i| {
        let step = Wide::constant(&k, golden).times(Wide::from_word(i + 1));
        let z = start.plus(step);
        let z = z
            .xor(z.shift_right(30))
            .times(Wide::constant(&k, 0xbf58_476d_1ce4_e5b9));
        let z = z
            .xor(z.shift_right(27))
            .times(Wide::constant(&k, 0x94d0_49bb_1331_11eb));
        let z = z.xor(z.shift_right(31));
        let unit = (z.high >> 8).cast(Ty::F32) * k.f32(1.0 / 8_388_608.0);
        k.store(y, i, (unit - k.f32(1.0)) * k.f32(amplitude));
    });
    let operands = [Operand::State(0), Operand::Output(0)];
    let plan = KernelPlan::one(
        k.finish(),
        &operands,
        Grid::Threads(Amount::each(each.into())),
    );
    advanced(plan, golden, each)
}
