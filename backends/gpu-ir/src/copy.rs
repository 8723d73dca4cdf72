//! Kernels that move elements without looking at them.

use super::lang::{Builder, Kernel, Mem, Ty};
use super::plan::{Amount, Grid, KernelPlan, Operand};

/// One dimension of a strided copy, in bytes: how often, and how far apart in what is read and in what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Dim {
    pub size: u64,
    pub from: u64,
    pub to: u64,
}

/// The first `bytes` of the input for each firing, to each of `outputs` outputs.
pub fn straight(bytes: u64, outputs: u32) -> KernelPlan {
    (0..outputs).fold(KernelPlan::default(), |plan, i| {
        plan.copy(Operand::Input(0), Operand::Output(i), Amount::each(bytes))
    })
}

/// One strided copy from the input to the output: for each firing (whose `size` is not looked at), pieces of `piece` bytes
/// along `dims`, outermost first.
pub fn strided(firing: Dim, dims: &[Dim], piece: u64) -> Option<KernelPlan> {
    let whole_part = Part {
        input: 0,
        output: 0,
        firing_steps: (firing.from, firing.to),
        starts: (0, 0),
        piece,
    };
    copy_parts(dims, &[whole_part])
}

/// A piece that each firing copies, in bytes: read first, written second.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Index of the input.
    pub input: u32,
    /// Index of the output.
    pub output: u32,
    /// From one firing to the next.
    pub firing_steps: (u64, u64),
    /// Where the first firing's piece begins.
    pub starts: (u64, u64),
    /// Its length.
    pub piece: u64,
}

/// Copies each of the parts.
pub fn strided_parts(parts: impl IntoIterator<Item = Part>) -> Option<KernelPlan> {
    let parts: Vec<Part> = parts.into_iter().collect();
    copy_parts(&[], &parts)
}

fn copy_parts(dims: &[Dim], parts: &[Part]) -> Option<KernelPlan> {
    let dim_steps = dims.iter().flat_map(|d| [d.from, d.to]);
    let of_parts = parts.iter().flat_map(|part| {
        let (from, to) = part.firing_steps;
        let (read, written) = part.starts;
        [from, to, read, written, part.piece]
    });
    // The largest word that divides every distance moves the most bytes at once.
    let common_divisor = dim_steps.chain(of_parts).fold(0, gcd);
    let word_bytes = [4, 2, 1]
        .into_iter()
        .find(|w| common_divisor.is_multiple_of(*w))
        .unwrap_or(1);
    let to_words = |bytes: u64| u32::try_from(bytes / word_bytes).ok();
    let both_to_words = |(read, written)| Some((to_words(read)?, to_words(written)?));
    let pieces: u64 = dims.iter().map(|d| d.size).product();

    let mut kernel_plan = KernelPlan::default();
    for part in parts {
        // The piece itself is the innermost dimension.
        let mut word_shape = vec![(part.piece / word_bytes, 1, 1)];
        word_shape.extend(
            dims.iter()
                .rev()
                .map(|d| (d.size, d.from / word_bytes, d.to / word_bytes)),
        );
        let firing_steps = both_to_words(part.firing_steps)?;
        let starts = both_to_words(part.starts)?;
        let kernel = strided_kernel(Mem::word(word_bytes), &word_shape, firing_steps, starts)?;
        let part_operands = [Operand::Input(part.input), Operand::Output(part.output)];
        let words_per_firing = pieces.checked_mul(part.piece / word_bytes)?;
        kernel_plan = kernel_plan.then(
            kernel,
            &part_operands,
            Grid::Threads(Amount::each(words_per_firing)),
        );
    }
    Some(kernel_plan)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// `shape` innermost first: size, step read, step written, in words.
fn strided_kernel(
    mem: Mem,
    shape: &[(u64, u64, u64)],
    firing: (u32, u32),
    starts: (u32, u32),
) -> Option<Kernel> {
    let k = Builder::new("strided copy", 64);
    let input_binding = k.reads(mem);
    let output_binding = k.writes(mem);
    // Dimensions of one element need no arithmetic.
    let mut words_per_firing = k.u32(1);
    let mut dims = Vec::new();

    for &(size, from, to) in shape.iter().filter(|d| d.0 != 1) {
        let size_spec = |v: u64| u32::try_from(v).ok().map(|v| k.spec(v));
        let size = size_spec(size)?;
        let from = size_spec(from)?;
        let to = size_spec(to)?;
        dims.push((size, from, to));
        words_per_firing = words_per_firing * size;
    }

    let firing = (k.spec(firing.0), k.spec(firing.1));
    let starts = (k.spec(starts.0), k.spec(starts.1));
    k.each(k.firings() * words_per_firing, |i| {
        let mut remaining_index = i;
        let mut from = starts.0;
        let mut to = starts.1;

        for &(size, step_from, step_to) in &dims {
            let dim_index = remaining_index % size;
            remaining_index = remaining_index / size;
            from = from + dim_index * step_from;
            to = to + dim_index * step_to;
        }
        k.store(
            output_binding,
            to + remaining_index * firing.1,
            k.load(input_binding, from + remaining_index * firing.0),
        );
    });

    Some(k.finish())
}

/// The constant token in every firing; a pattern shorter than the token is repeated.
pub fn pattern(pattern: Vec<u8>, token: u64) -> Option<KernelPlan> {
    let len = pattern.len() as u64;
    let word_bytes = [4, 2, 1]
        .into_iter()
        .find(|w| len.is_multiple_of(*w))
        .unwrap_or(1);
    let k = Builder::new("pattern", 64);
    let table_binding = k.reads(Mem::word(word_bytes));
    let output_binding = k.writes(Mem::word(word_bytes));
    let len = k.spec(u32::try_from(len / word_bytes).ok()?);
    let token_words = k.spec(u32::try_from(token / word_bytes).ok()?);
    k.each(k.firings() * token_words, |i| {
        let pattern_word = k.load(table_binding, i % len);
        k.store(output_binding, i, pattern_word.cast(Ty::U32));
    });
    let word_grid = Grid::Threads(Amount::each(token / word_bytes));
    let port_operands = [Operand::Const(0), Operand::Output(0)];
    Some(KernelPlan::one(k.finish(), &port_operands, word_grid).constants(vec![pattern]))
}
