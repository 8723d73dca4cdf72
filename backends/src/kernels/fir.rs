//! Finite impulse responses: one thread an output.

use super::lang::{Builder, Mem, Val};
use super::plan::{Amount, Grid, KernelPlan, Operand, table};
use super::wide::Cx;

/// How one of the outputs of a firing is made.
#[derive(Clone, Debug)]
pub(crate) struct FirPhase {
    /// First sample, counted from the window's.
    pub(crate) offset: usize,
    /// Taps as the samples lie: real and, where there are any, imaginary.
    pub(crate) re: Vec<f32>,
    pub(crate) im: Option<Vec<f32>>,
}

/// `y[f·phases + j] = Σ x[f·decimate + offset(j) + i]·h(j)[i]`, summed in the order of i.
pub(crate) fn fir(
    phases: &[FirPhase],
    decimate: usize,
    complex_x: bool,
    complex_taps: bool,
) -> Option<KernelPlan> {
    let len = phases.first()?.re.len();
    let k = Builder::new("fir", 64);
    let x = k.reads(if complex_x { Mem::Pair } else { Mem::F32 });
    let (re, starts) = (k.reads(Mem::F32), k.reads(Mem::U32));
    let im = complex_taps.then(|| k.reads(Mem::F32));
    let y = k.writes(if complex_x || complex_taps {
        Mem::Pair
    } else {
        Mem::F32
    });
    let spec = |v: usize| u32::try_from(v).ok().map(|v| k.spec(v));
    let (outputs, len, step) = (spec(phases.len())?, spec(len)?, spec(decimate)?);
    k.each(k.firings() * outputs, |i| {
        let (firing, phase) = (i / outputs, i % outputs);
        let first = firing * step + k.load(starts, phase);
        let taps = phase * len;
        let sums: [_; 4] = std::array::from_fn(|_| k.var(k.f32(0.0)));
        let add = |sum: usize, a: Val<'_>, b: Val<'_>| {
            let sum = sums[sum];
            sum.set(k.fma(a, b, sum.get()));
        };
        k.times(len, |c| {
            let z = match complex_x {
                true => Cx::load(&k, x, first + c),
                false => Cx::new(k.load(x, first + c), k.f32(0.0)),
            };
            let h = k.load(re, taps + c);
            add(0, z.re, h);
            if complex_x {
                add(1, z.im, h);
            }
            if let Some(im) = im {
                let h = k.load(im, taps + c);
                add(2, z.re, h);
                if complex_x {
                    add(3, z.im, h);
                }
            }
        });
        let [rr, ir, ri, ii] = sums.map(|s| s.get());
        match (complex_x, complex_taps) {
            (false, false) => k.store(y, i, rr),
            (true, false) => k.store_pair(y, i, [rr, ir]),
            (false, true) => k.store_pair(y, i, [rr, ri]),
            (true, true) => k.store_pair(y, i, [rr - ii, ir + ri]),
        }
    });
    let starts = phases
        .iter()
        .flat_map(|p| (p.offset as u32).to_le_bytes())
        .collect();
    let mut consts = vec![
        table(phases.iter().flat_map(|p| p.re.iter().copied())),
        starts,
    ];
    let mut operands = vec![Operand::Input(0), Operand::Const(0), Operand::Const(1)];
    if complex_taps {
        let zeros = vec![0.0; phases.first()?.re.len()];
        let im = phases
            .iter()
            .flat_map(|p| p.im.as_ref().unwrap_or(&zeros).iter().copied());
        consts.push(table(im));
        operands.push(Operand::Const(2));
    }
    operands.push(Operand::Output(0));
    let grid = Grid::Threads(Amount::each(phases.len() as u64));
    Some(KernelPlan::one(k.finish(), &operands, grid).constants(consts))
}
