//! Frames of consecutive tokens.

use super::lang::{Builder, Mem, Val};
use super::plan::{Amount, Grid, KernelPlan, Operand, table};

/// Every float of a token times its weight; `weights` has one for each.
pub(crate) fn window(weights: &[f32]) -> Option<KernelPlan> {
    let k = Builder::new("window", 64);
    let (x, w, y) = (k.reads(Mem::F32), k.reads(Mem::F32), k.writes(Mem::F32));
    let each = k.spec(u32::try_from(weights.len()).ok()?);
    k.each(k.firings() * each, |i| {
        k.store(y, i, k.load(x, i) * k.load(w, i % each))
    });
    let operands = [Operand::Input(0), Operand::Const(0), Operand::Output(0)];
    let grid = Grid::Threads(Amount::each(weights.len() as u64));
    let consts = vec![table(weights.iter().copied())];
    Some(KernelPlan::one(k.finish(), &operands, grid).constants(consts))
}

/// Adds up frames of `frame` floats that begin `step` floats apart; the tail is a state of `frame − step` floats.
pub(crate) fn overlap_add(frame: u64, step: u64) -> Option<KernelPlan> {
    let overlap = frame - step;
    if overlap == 0 {
        return Some(super::straight(4 * frame, 1));
    }
    // Outputs first; then the new tail, by way of scratch memory, because its parts come from one another's places.
    let outputs = sums(frame, step, false)?;
    let tail = sums(frame, step, true)?;
    let plan = KernelPlan::one(
        outputs,
        &[Operand::Input(0), Operand::State(0), Operand::Output(0)],
        Grid::Threads(Amount::each(step)),
    );
    let operands = [Operand::Input(0), Operand::State(0), Operand::Scratch];
    let plan = plan.then(tail, &operands, Grid::Threads(Amount::fixed(overlap)));
    let bytes = Amount::fixed(4 * overlap);
    Some(
        plan.copy(Operand::Scratch, Operand::State(0), bytes)
            .scratch(4 * overlap),
    )
}

/// Sums of all that overlaps, oldest frame first as the CPU adds: of the outputs, or of the tail that is left behind.
fn sums(frame: u64, step: u64, is_tail: bool) -> Option<super::lang::Kernel> {
    let k = Builder::new(
        if is_tail {
            "overlap tail"
        } else {
            "overlap add"
        },
        64,
    );
    let (x, tail, y) = (k.reads(Mem::F32), k.reads(Mem::F32), k.writes(Mem::F32));
    let (frame32, step32) = (u32::try_from(frame).ok()?, u32::try_from(step).ok()?);
    let (frame, step) = (k.spec(frame32), k.spec(step32));
    let overlap = k.spec(frame32 - step32);
    let all = k.firings() * step;
    let (total, base) = if is_tail {
        (overlap, all)
    } else {
        (all, k.u32(0))
    };
    k.each(total, |i| {
        let at = base + i;
        // Frames that reach this far: from the first that ends behind `at` to the last that begins before it.
        let ended = at + 1;
        let first = k.select(
            frame.lt(ended),
            (ended - frame + step - k.u32(1)) / step,
            k.u32(0),
        );
        let until = (at / step + 1).min(k.firings());
        let old = at.lt(overlap);
        let sum = k.var(k.f32(0.0));
        let some = k.var(k.u32(0));
        k.if_(old, || {
            sum.set(k.load(tail, at));
            some.set(k.u32(1));
        });
        k.range(first, until, k.u32(1), |f| {
            let value: Val<'_> = k.load(x, f * frame + (at - f * step));
            let added = k.select(some.get().ne(k.u32(0)), sum.get() + value, value);
            sum.set(added);
            some.set(k.u32(1));
        });
        k.store(y, i, sum.get());
    });
    Some(k.finish())
}
