//! Kernels of samplers: the state before the call is read by every thread, and moved on by a run of one thread after.

use zbmd_ir::DType;

use super::lang::{Builder, Kernel, Mem, Ty, Val};
use super::math;
use super::plan::{Amount, Grid, KernelPlan, Operand};
use super::wide::{Cx, Wide};

/// Adds `step` for each of the `each` steps of every firing to the state, a 64-bit integer.
fn advance_kernel(step: u64, each: u32) -> Kernel {
    let k = Builder::new("advance", 1);
    let state_binding = k.writes(Mem::U32);
    let total_steps = Wide::from_word(k.firings()).times(Wide::constant(&k, each.into()));
    k.each(k.u32(1), |i| {
        let old_state = Wide::load(&k, state_binding, i);
        old_state
            .plus(total_steps.times(Wide::constant(&k, step)))
            .store(state_binding, i);
    });
    k.finish()
}

fn with_advance(plan: KernelPlan, step: u64, each: u32) -> KernelPlan {
    let single_thread = Grid::Threads(Amount::fixed(1));
    plan.then(
        advance_kernel(step, each),
        &[Operand::State(0)],
        single_thread,
    )
}

/// start, start + step, ….
pub fn counter(step: i64, dtype: DType) -> Option<KernelPlan> {
    let mem = match dtype {
        DType::I8 | DType::U8 => Mem::U8,
        DType::I16 => Mem::U16,
        DType::I32 | DType::I64 => Mem::U32,
        DType::F32 => Mem::F32,
        _ => Mem::F64,
    };

    let k = Builder::new("counter", 64);
    let state_binding = k.reads(Mem::U32);
    let output_binding = k.writes(mem);
    // All threads read the state before the call; a separate kernel advances it afterwards.
    let start_value = Wide::load(&k, state_binding, k.u32(0));
    let step_value = Wide::constant(&k, step as u64);

    k.each(k.firings(), |i| {
        let counter_value = start_value.plus(step_value.times(Wide::from_word(i)));
        match dtype {
            DType::I64 => counter_value.store(output_binding, i),
            DType::F32 | DType::F64 => {
                let whole_bits =
                    (counter_value.high.cast(Ty::U64) << 32) | counter_value.low.cast(Ty::U64);
                k.store(
                    output_binding,
                    i,
                    whole_bits.as_bits(Ty::I64).cast(mem.ty()),
                );
            }
            _ => k.store(output_binding, i, counter_value.low),
        }
    });

    let port_operands = [Operand::State(0), Operand::Output(0)];
    let kernel_plan = KernelPlan::one(k.finish(), &port_operands, Grid::Threads(Amount::each(1)));
    Some(with_advance(kernel_plan, step as u64, 1))
}

/// e^{j(start + i·step)}.
fn oscillator_sample<'k>(start: Wide<'k>, step: u64, i: Val<'k>) -> Cx<'k> {
    let k = i.builder();
    let phase_bits = start.plus(Wide::constant(k, step).times(Wide::from_word(i)));
    math::cis_turns(phase_bits.high)
}

/// amplitude · e^{j(start + k·step)}, or its real part.
pub fn tone(step: u64, amplitude: f32, complex: bool) -> KernelPlan {
    let k = Builder::new("tone", 64);
    let state_binding = k.reads(Mem::U32);
    let output_binding = k.writes(if complex { Mem::Pair } else { Mem::F32 });
    // All threads read the phase before the call; a separate kernel advances it afterwards.
    let start_phase = Wide::load(&k, state_binding, k.u32(0));

    k.each(k.firings(), |i| {
        let scaled_sample = oscillator_sample(start_phase, step, i).scale(k.f32(amplitude));
        match complex {
            true => scaled_sample.store(output_binding, i),
            false => k.store(output_binding, i, scaled_sample.re),
        }
    });

    let port_operands = [Operand::State(0), Operand::Output(0)];
    let kernel_plan = KernelPlan::one(k.finish(), &port_operands, Grid::Threads(Amount::each(1)));
    with_advance(kernel_plan, step, 1)
}

/// x · e^{j(start + k·step)} over the elements of all tokens.
pub fn mix(step: u64, complex: bool, elements: u64) -> Option<KernelPlan> {
    let elements_per_firing = u32::try_from(elements).ok()?;
    let k = Builder::new("mix", 64);
    let state_binding = k.reads(Mem::U32);
    let input_binding = k.reads(if complex { Mem::Pair } else { Mem::F32 });
    let output_binding = k.writes(Mem::Pair);
    let start_phase = Wide::load(&k, state_binding, k.u32(0));

    k.each(k.firings() * k.spec(elements_per_firing), |i| {
        let phase_turn = oscillator_sample(start_phase, step, i);
        let mixed_sample = match complex {
            true => Cx::load(&k, input_binding, i).times(phase_turn),
            false => phase_turn.scale(k.load(input_binding, i)),
        };
        mixed_sample.store(output_binding, i);
    });

    let port_operands = [Operand::State(0), Operand::Input(0), Operand::Output(0)];
    let kernel_plan = KernelPlan::one(
        k.finish(),
        &port_operands,
        Grid::Threads(Amount::each(elements)),
    );
    Some(with_advance(kernel_plan, step, elements_per_firing))
}

/// Uniform numbers in [−amplitude, amplitude) by SplitMix64, `each` a firing.
pub fn noise(golden: u64, amplitude: f32, each: u32) -> KernelPlan {
    let k = Builder::new("noise", 64);
    let state_binding = k.reads(Mem::U32);
    let output_binding = k.writes(Mem::F32);
    let start_state = Wide::load(&k, state_binding, k.u32(0));

    k.each(k.firings() * k.spec(each), |i| {
        // SplitMix64: element i is a hash of the state after i + 1 steps.
        let golden_step = Wide::constant(&k, golden).times(Wide::from_word(i + 1));
        let mixed_bits = start_state.plus(golden_step);
        let mixed_bits = mixed_bits
            .xor(mixed_bits.shift_right(30))
            .times(Wide::constant(&k, 0xbf58_476d_1ce4_e5b9));
        let mixed_bits = mixed_bits
            .xor(mixed_bits.shift_right(27))
            .times(Wide::constant(&k, 0x94d0_49bb_1331_11eb));
        let mixed_bits = mixed_bits.xor(mixed_bits.shift_right(31));
        // 24 bits are exact in f32.
        let unit_interval = (mixed_bits.high >> 8).cast(Ty::F32) * k.f32(1.0 / 8_388_608.0);
        k.store(
            output_binding,
            i,
            (unit_interval - k.f32(1.0)) * k.f32(amplitude),
        );
    });

    let port_operands = [Operand::State(0), Operand::Output(0)];
    let kernel_plan = KernelPlan::one(
        k.finish(),
        &port_operands,
        Grid::Threads(Amount::each(each.into())),
    );
    with_advance(kernel_plan, golden, each)
}
