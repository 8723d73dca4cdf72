//! Recursions: one thread for each part of a number runs through all firings, which wait for each other anyway.

use super::lang::{Builder, Mem, Place, Ty, Val};
use super::math;
use super::plan::{Amount, Grid, KernelPlan, Operand};
use super::wide::Cx;

/// Second-order sections b0, b1, b2, a1, a2 in transposed direct form II, on `parts` interleaved real signals.
///
/// The state has, for each section, its two delays, each with all parts: f64, as on the CPU.
pub(crate) fn biquad(sections: &[[f64; 5]], parts: u32) -> KernelPlan {
    let k = Builder::new("biquad", parts);
    let (x, y, state) = (k.reads(Mem::F32), k.writes(Mem::F32), k.writes(Mem::F64));
    let part = k.place(Place::Local);
    let number = |v: f64| k.number(Ty::F64, v);
    let delays: Vec<[_; 2]> = (0..sections.len() as u32)
        .map(|s| [0, 1].map(|d| k.var(k.load(state, part + 2 * parts * s + parts * d))))
        .collect();
    k.times(k.firings(), |i| {
        let at = i * parts + part;
        let mut v: Val<'_> = k.load(x, at).cast(Ty::F64);
        for ([b0, b1, b2, a1, a2], [low, high]) in sections.iter().zip(&delays) {
            let out = number(*b0) * v + low.get();
            low.set(number(*b1) * v - number(*a1) * out + high.get());
            high.set(number(*b2) * v - number(*a2) * out);
            v = out;
        }
        k.store(y, at, v.cast(Ty::F32));
    });
    for (s, section) in delays.iter().enumerate() {
        for (d, delay) in section.iter().enumerate() {
            let at = part + 2 * parts * s as u32 + parts * d as u32;
            k.store(state, at, delay.get());
        }
    }
    let operands = [Operand::Input(0), Operand::Output(0), Operand::State(0)];
    KernelPlan::one(k.finish(), &operands, Grid::Groups(Amount::fixed(1)))
}

/// gain · angle of x[k]·conj(x[k−1]).
pub(crate) fn discriminate(gain: f32) -> KernelPlan {
    let k = Builder::new("discriminate", 64);
    let (x, y) = (k.reads(Mem::Pair), k.writes(Mem::F32));
    k.each(k.firings(), |i| {
        let (old, new) = (Cx::load(&k, x, i), Cx::load(&k, x, i + 1));
        let turn = new.times(old.conj());
        k.store(y, i, math::atan2(turn.im, turn.re) * k.f32(gain));
    });
    let operands = [Operand::Input(0), Operand::Output(0)];
    KernelPlan::one(k.finish(), &operands, Grid::Threads(Amount::each(1)))
}
