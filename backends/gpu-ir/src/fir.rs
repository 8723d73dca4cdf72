//! Finite impulse responses: one thread an output.

use super::lang::{Builder, Mem, Val};
use super::plan::{Amount, Grid, KernelPlan, Operand, table};
use super::wide::Cx;

/// How one of the outputs of a firing is made.
#[derive(Clone, Debug)]
pub struct FirPhase {
    /// First sample, counted from the window's.
    pub offset: usize,
    /// Taps as the samples lie: real and, where there are any, imaginary.
    pub re: Vec<f32>,
    /// The imaginary parts, where taps are complex.
    pub im: Option<Vec<f32>>,
}

/// `y[f·phases + j] = Σ x[f·decimate + offset(j) + i]·h(j)[i]`, summed in the order of i.
pub fn fir(
    phases: &[FirPhase],
    decimate: usize,
    complex_x: bool,
    complex_taps: bool,
) -> Option<KernelPlan> {
    let tap_count = phases.first()?.re.len();
    let k = Builder::new("fir", 64);
    let input_binding = k.reads(if complex_x { Mem::Pair } else { Mem::F32 });
    let re = k.reads(Mem::F32);
    let start_binding = k.reads(Mem::U32);
    let im = complex_taps.then(|| k.reads(Mem::F32));
    let output_binding = k.writes(if complex_x || complex_taps {
        Mem::Pair
    } else {
        Mem::F32
    });
    // Sizes are specialisation constants: all filters share their code.
    let size_spec = |v: usize| u32::try_from(v).ok().map(|v| k.spec(v));
    let output_count = size_spec(phases.len())?;
    let tap_count = size_spec(tap_count)?;
    let sample_step = size_spec(decimate)?;

    k.each(k.firings() * output_count, |i| {
        let firing_index = i / output_count;
        let phase_index = i % output_count;
        let first_sample = firing_index * sample_step + k.load(start_binding, phase_index);
        let first_tap = phase_index * tap_count;
        // Sums of the four products of real and imaginary parts, as far as there are any.
        let part_sums: [_; 4] = std::array::from_fn(|_| k.var(k.f32(0.0)));
        let add_product = |sum: usize, a: Val<'_>, b: Val<'_>| {
            let sum = part_sums[sum];
            sum.set(k.fma(a, b, sum.get()));
        };

        k.times(tap_count, |c| {
            let sample_value = match complex_x {
                true => Cx::load(&k, input_binding, first_sample + c),
                false => Cx::new(k.load(input_binding, first_sample + c), k.f32(0.0)),
            };
            let tap_value = k.load(re, first_tap + c);
            add_product(0, sample_value.re, tap_value);
            if complex_x {
                add_product(1, sample_value.im, tap_value);
            }

            if let Some(im) = im {
                let tap_value = k.load(im, first_tap + c);
                add_product(2, sample_value.re, tap_value);
                if complex_x {
                    add_product(3, sample_value.im, tap_value);
                }
            }
        });

        // Products are combined at the end, so that each sum is a chain of fused steps.
        let [rr, ir, ri, ii] = part_sums.map(|s| s.get());
        match (complex_x, complex_taps) {
            (false, false) => k.store(output_binding, i, rr),
            (true, false) => k.store_pair(output_binding, i, [rr, ir]),
            (false, true) => k.store_pair(output_binding, i, [rr, ri]),
            (true, true) => k.store_pair(output_binding, i, [rr - ii, ir + ri]),
        }
    });

    let start_binding = phases
        .iter()
        .flat_map(|p| (p.offset as u32).to_le_bytes())
        .collect();
    let mut const_tables = vec![
        table(phases.iter().flat_map(|p| p.re.iter().copied())),
        start_binding,
    ];
    let mut port_operands = vec![Operand::Input(0), Operand::Const(0), Operand::Const(1)];

    // Phases without imaginary taps count as having zeros.
    if complex_taps {
        let zero_taps = vec![0.0; phases.first()?.re.len()];
        let im = phases
            .iter()
            .flat_map(|p| p.im.as_ref().unwrap_or(&zero_taps).iter().copied());
        const_tables.push(table(im));
        port_operands.push(Operand::Const(2));
    }

    port_operands.push(Operand::Output(0));
    let output_grid = Grid::Threads(Amount::each(phases.len() as u64));
    Some(KernelPlan::one(k.finish(), &port_operands, output_grid).constants(const_tables))
}
