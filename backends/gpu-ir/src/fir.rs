//! Finite impulse responses: one thread an output.

use super::lang::{Builder, Mem, Val, Var};
use super::plan::{Amount, Grid, KernelPlan, Operand, table};
use super::wide::Cx;

/// How one of the outputs of a firing is made.
#[derive(Clone, Debug)]
pub struct FirPhase {
    /// First sample, counted from the window's.
    pub offset: usize,
    /// Taps in the order of the samples: real and, where there are any, imaginary.
    pub re: Vec<f32>,
    /// The imaginary parts, where taps are complex.
    pub im: Option<Vec<f32>>,
}

/// A filter bound to a kernel.
struct FirKernel<'k> {
    k: &'k Builder,
    input: u32,
    /// First sample of each output of a firing.
    starts: u32,
    re_taps: u32,
    im_taps: Option<u32>,
    output: u32,
    complex_input: bool,
}

/// Sums of the products of real and imaginary parts, as far as there are any: those of the samples' with real taps,
/// then with imaginary ones. They are combined at the end, so that each sum is a chain of fused steps.
struct PartSums<'k> {
    re_re: Var<'k>,
    im_re: Var<'k>,
    re_im: Var<'k>,
    im_im: Var<'k>,
}

impl<'k> FirKernel<'k> {
    fn zero_sums(&self) -> PartSums<'k> {
        let zero_sum = || self.k.var(self.k.f32(0.0));
        PartSums {
            re_re: zero_sum(),
            im_re: zero_sum(),
            re_im: zero_sum(),
            im_im: zero_sum(),
        }
    }

    /// sum + part · tap.
    fn add_product(&self, sum: Var<'k>, part: Val<'k>, tap: Val<'k>) {
        sum.set(self.k.fma(part, tap, sum.get()));
    }

    /// Adds the products of sample and tap number `n` of an output.
    fn add_tap(&self, sums: &PartSums<'k>, first_sample: Val<'k>, first_tap: Val<'k>, n: Val<'k>) {
        let k = self.k;
        let sample = match self.complex_input {
            true => Cx::load(k, self.input, first_sample + n),
            false => Cx::new(k.load(self.input, first_sample + n), k.f32(0.0)),
        };
        let re_tap = k.load(self.re_taps, first_tap + n);
        self.add_product(sums.re_re, sample.re, re_tap);
        if self.complex_input {
            self.add_product(sums.im_re, sample.im, re_tap);
        }

        let Some(im_taps) = self.im_taps else { return };
        let im_tap = k.load(im_taps, first_tap + n);
        self.add_product(sums.re_im, sample.re, im_tap);
        if self.complex_input {
            self.add_product(sums.im_im, sample.im, im_tap);
        }
    }

    fn store(&self, i: Val<'k>, sums: &PartSums<'k>) {
        let k = self.k;
        let re_re = sums.re_re.get();
        let im_re = sums.im_re.get();
        let re_im = sums.re_im.get();
        let im_im = sums.im_im.get();
        match (self.complex_input, self.im_taps.is_some()) {
            (false, false) => k.store(self.output, i, re_re),
            (true, false) => k.store_pair(self.output, i, [re_re, im_re]),
            (false, true) => k.store_pair(self.output, i, [re_re, re_im]),
            (true, true) => k.store_pair(self.output, i, [re_re - im_im, im_re + re_im]),
        }
    }
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
    let memory_type = |is_complex: bool| if is_complex { Mem::Pair } else { Mem::F32 };
    let kernel = FirKernel {
        k: &k,
        input: k.reads(memory_type(complex_x)),
        re_taps: k.reads(Mem::F32),
        starts: k.reads(Mem::U32),
        im_taps: complex_taps.then(|| k.reads(Mem::F32)),
        output: k.writes(memory_type(complex_x || complex_taps)),
        complex_input: complex_x,
    };
    // Sizes are specialisation constants: all filters share their code.
    let size_spec = |size: usize| u32::try_from(size).ok().map(|size| k.spec(size));
    let output_count = size_spec(phases.len())?;
    let tap_count = size_spec(tap_count)?;
    let sample_step = size_spec(decimate)?;

    k.each(k.firings() * output_count, |i| {
        let firing_index = i / output_count;
        let phase_index = i % output_count;
        let first_sample = firing_index * sample_step + k.load(kernel.starts, phase_index);
        let first_tap = phase_index * tap_count;
        let sums = kernel.zero_sums();
        k.times(tap_count, |c| {
            kernel.add_tap(&sums, first_sample, first_tap, c)
        });
        kernel.store(i, &sums);
    });

    let mut port_operands = vec![Operand::Input(0), Operand::Const(0), Operand::Const(1)];
    if complex_taps {
        port_operands.push(Operand::Const(2));
    }
    port_operands.push(Operand::Output(0));
    let output_grid = Grid::Threads(Amount::each(phases.len() as u64));
    let plan = KernelPlan::one(k.finish(), &port_operands, output_grid);
    Some(plan.constants(tap_tables(phases, complex_taps)))
}

/// The real taps of all phases, where they start, and the imaginary taps if there are any.
fn tap_tables(phases: &[FirPhase], complex_taps: bool) -> Vec<Vec<u8>> {
    let re_taps = phases.iter().flat_map(|phase| phase.re.iter().copied());
    let starts = phases
        .iter()
        .flat_map(|phase| (phase.offset as u32).to_le_bytes());
    let mut tables = vec![table(re_taps), starts.collect()];

    if complex_taps {
        // Phases without imaginary taps count as having zeros.
        let zero_taps = vec![0.0; phases.first().map_or(0, |phase| phase.re.len())];
        let im_taps = phases
            .iter()
            .flat_map(|phase| phase.im.as_ref().unwrap_or(&zero_taps).iter().copied());
        tables.push(table(im_taps));
    }
    tables
}
