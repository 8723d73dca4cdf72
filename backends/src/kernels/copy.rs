//! Kernels that move elements without looking at them.

use super::lang::{Builder, Kernel, Mem, Ty};
use super::plan::{Amount, Grid, KernelPlan, Operand};

/// One dimension of a strided copy, in bytes: how often, and how far apart in what is read and in what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim {
    pub(crate) size: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The first `bytes` of the input for each firing, to each of `outputs` outputs.
pub(crate) fn straight(bytes: u64, outputs: u32) -> KernelPlan {
    (0..outputs).fold(KernelPlan::default(), |plan, i| {
        plan.copy(Operand::Input(0), Operand::Output(i), Amount::each(bytes))
    })
}

/// One strided copy of pieces of `piece` bytes from the input to the output; see [`strided_parts`].
pub(crate) fn strided(firing: Dim, dims: &[Dim], piece: u64) -> Option<KernelPlan> {
    let part = Part {
        input: 0,
        output: 0,
        from: 0,
        to: 0,
    };
    strided_parts(firing, dims, piece, [part])
}

/// From which input to which output, and where both begin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) input: u32,
    pub(crate) output: u32,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Copies, for each firing (whose `size` is not looked at), pieces of `piece` bytes along `dims`, outermost first: once
/// for each part.
pub(crate) fn strided_parts(
    firing: Dim,
    dims: &[Dim],
    piece: u64,
    parts: impl IntoIterator<Item = Part>,
) -> Option<KernelPlan> {
    let steps = dims.iter().chain([&firing]).flat_map(|d| [d.from, d.to]);
    let parts: Vec<Part> = parts.into_iter().collect();
    let starts = parts.iter().flat_map(|p| [p.from, p.to]);
    let common = steps.chain(starts).chain([piece]).fold(0, gcd);
    let word = [4, 2, 1]
        .into_iter()
        .find(|w| common.is_multiple_of(*w))
        .unwrap_or(1);
    let words = |bytes: u64| u32::try_from(bytes / word).ok();
    let each = dims
        .iter()
        .map(|d| d.size)
        .product::<u64>()
        .checked_mul(piece / word)?;
    let mut plan = KernelPlan::default();
    for part in parts {
        let mut shape = vec![(piece / word, 1, 1)];
        shape.extend(
            dims.iter()
                .rev()
                .map(|d| (d.size, d.from / word, d.to / word)),
        );
        let starts = (words(part.from)?, words(part.to)?);
        let step = (words(firing.from)?, words(firing.to)?);
        let kernel = kernel(Mem::word(word), &shape, step, starts)?;
        let operands = [Operand::Input(part.input), Operand::Output(part.output)];
        plan = plan.then(kernel, &operands, Grid::Threads(Amount::each(each)));
    }
    Some(plan)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `shape` innermost first: size, step read, step written, in words.
fn kernel(
    mem: Mem,
    shape: &[(u64, u64, u64)],
    firing: (u32, u32),
    starts: (u32, u32),
) -> Option<Kernel> {
    let k = Builder::new("strided copy", 64);
    let (x, y) = (k.reads(mem), k.writes(mem));
    let mut each = k.u32(1);
    let mut dims = Vec::new();
    for &(size, from, to) in shape.iter().filter(|d| d.0 != 1) {
        let spec = |v: u64| u32::try_from(v).ok().map(|v| k.spec(v));
        let (size, from, to) = (spec(size)?, spec(from)?, spec(to)?);
        dims.push((size, from, to));
        each = each * size;
    }
    let (firing, starts) = (
        (k.spec(firing.0), k.spec(firing.1)),
        (k.spec(starts.0), k.spec(starts.1)),
    );
    k.each(k.firings() * each, |i| {
        let (mut rest, mut from, mut to) = (i, starts.0, starts.1);
        for &(size, step_from, step_to) in &dims {
            let at = rest % size;
            rest = rest / size;
            from = from + at * step_from;
            to = to + at * step_to;
        }
        k.store(y, to + rest * firing.1, k.load(x, from + rest * firing.0));
    });
    Some(k.finish())
}

/// The constant token in every firing; a pattern shorter than the token is repeated.
pub(crate) fn pattern(pattern: Vec<u8>, token: u64) -> Option<KernelPlan> {
    let len = pattern.len() as u64;
    let word = [4, 2, 1]
        .into_iter()
        .find(|w| len.is_multiple_of(*w))
        .unwrap_or(1);
    let k = Builder::new("pattern", 64);
    let (table, y) = (k.reads(Mem::word(word)), k.writes(Mem::word(word)));
    let len = k.spec(u32::try_from(len / word).ok()?);
    let each = k.spec(u32::try_from(token / word).ok()?);
    k.each(k.firings() * each, |i| {
        let value = k.load(table, i % len);
        k.store(y, i, value.cast(Ty::U32));
    });
    let grid = Grid::Threads(Amount::each(token / word));
    let operands = [Operand::Const(0), Operand::Output(0)];
    Some(KernelPlan::one(k.finish(), &operands, grid).constants(vec![pattern]))
}
