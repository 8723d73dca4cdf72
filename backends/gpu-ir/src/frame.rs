//! Frames of consecutive tokens.

use super::lang::{Builder, Mem, Val};
use super::plan::{Amount, Grid, KernelPlan, Operand, table};

/// Every float of a token times its weight; `weights` has one for each.
pub fn window(weights: &[f32]) -> Option<KernelPlan> {
    let k = Builder::new("window", 64);
    let input_binding = k.reads(Mem::F32);
    let weight_binding = k.reads(Mem::F32);
    let output_binding = k.writes(Mem::F32);
    let token_floats = k.spec(u32::try_from(weights.len()).ok()?);
    k.each(k.firings() * token_floats, |i| {
        k.store(
            output_binding,
            i,
            k.load(input_binding, i) * k.load(weight_binding, i % token_floats),
        )
    });
    let port_operands = [Operand::Input(0), Operand::Const(0), Operand::Output(0)];
    let element_grid = Grid::Threads(Amount::each(weights.len() as u64));
    let const_tables = vec![table(weights.iter().copied())];
    Some(KernelPlan::one(k.finish(), &port_operands, element_grid).constants(const_tables))
}

/// Adds up frames of `frame` floats that begin `step` floats apart; the tail is a state of `frame − step` floats.
pub fn overlap_add(frame: u64, step: u64) -> Option<KernelPlan> {
    let overlap = frame - step;
    if overlap == 0 {
        return Some(super::straight(4 * frame, 1));
    }
    // Outputs first; then the new tail, by way of scratch memory, because its parts come from one another's places.
    let output_sums = overlap_sums(frame, step, false)?;
    let tail_sums = overlap_sums(frame, step, true)?;
    let kernel_plan = KernelPlan::one(
        output_sums,
        &[Operand::Input(0), Operand::State(0), Operand::Output(0)],
        Grid::Threads(Amount::each(step)),
    );
    let port_operands = [Operand::Input(0), Operand::State(0), Operand::Scratch];
    let kernel_plan = kernel_plan.then(
        tail_sums,
        &port_operands,
        Grid::Threads(Amount::fixed(overlap)),
    );
    let tail_bytes = Amount::fixed(4 * overlap);
    Some(
        kernel_plan
            .copy(Operand::Scratch, Operand::State(0), tail_bytes)
            .scratch(4 * overlap),
    )
}

/// Sums of all that overlaps, oldest frame first as the CPU adds: of the outputs, or of the tail that is left behind.
fn overlap_sums(frame: u64, step: u64, is_tail: bool) -> Option<super::lang::Kernel> {
    let k = Builder::new(
        if is_tail {
            "overlap tail"
        } else {
            "overlap add"
        },
        64,
    );

    let input_binding = k.reads(Mem::F32);
    let tail = k.reads(Mem::F32);
    let output_binding = k.writes(Mem::F32);
    let frame32 = u32::try_from(frame).ok()?;
    let step32 = u32::try_from(step).ok()?;
    let frame = k.spec(frame32);
    let step = k.spec(step32);
    let overlap_len = k.spec(frame32 - step32);
    let output_total = k.firings() * step;
    let (element_total, base_index) = if is_tail {
        (overlap_len, output_total)
    } else {
        (output_total, k.u32(0))
    };

    k.each(element_total, |i| {
        let frame_position = base_index + i;
        // Frames that reach this far: from the first that ends behind `at` to the last that begins before it.
        let end_position = frame_position + 1;
        let first_frame = k.select(
            frame.lt(end_position),
            (end_position - frame + step - k.u32(1)) / step,
            k.u32(0),
        );
        let frame_end = (frame_position / step + 1).min(k.firings());
        let reaches_tail = frame_position.lt(overlap_len);
        let overlap_sum = k.var(k.f32(0.0));
        // The first term is taken as it is, so that the sign of a zero is the CPU's.
        let has_terms = k.var(k.u32(0));
        k.if_(reaches_tail, || {
            overlap_sum.set(k.load(tail, frame_position));
            has_terms.set(k.u32(1));
        });

        k.range(first_frame, frame_end, k.u32(1), |f| {
            let frame_value: Val<'_> =
                k.load(input_binding, f * frame + (frame_position - f * step));
            let new_sum = k.select(
                has_terms.get().ne(k.u32(0)),
                overlap_sum.get() + frame_value,
                frame_value,
            );
            overlap_sum.set(new_sum);
            has_terms.set(k.u32(1));
        });
        k.store(output_binding, i, overlap_sum.get());
    });
    Some(k.finish())
}
