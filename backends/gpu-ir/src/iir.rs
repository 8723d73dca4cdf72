//! Recursions: one thread for each part of a number runs through all firings, which wait for each other anyway.

use super::lang::{Builder, Mem, Place, Ty, Val};
use super::math;
use super::plan::{Amount, Grid, KernelPlan, Operand};
use super::wide::Cx;

/// Second-order sections b0, b1, b2, a1, a2 in transposed direct form II, on `parts` interleaved real signals.
///
/// The state has, for each section, its two delays, each with all parts: f64, as on the CPU.
pub fn biquad(sections: &[[f64; 5]], parts: u32) -> KernelPlan {
    let k = Builder::new("biquad", parts);
    let x = k.reads(Mem::F32);
    let y = k.writes(Mem::F32);
    let state = k.writes(Mem::F64);
    let part_index = k.place(Place::Local);
    let f64_constant = |section_input: f64| k.number(Ty::F64, section_input);
    let section_delays: Vec<[_; 2]> = (0..sections.len() as u32)
        .map(|s| [0, 1].map(|d| k.var(k.load(state, part_index + 2 * parts * s + parts * d))))
        .collect();

    k.times(k.firings(), |i| {
        let sample_index = i * parts + part_index;
        let mut section_input: Val<'_> = k.load(x, sample_index).cast(Ty::F64);
        for ([b0, b1, b2, a1, a2], [low, high]) in sections.iter().zip(&section_delays) {
            let section_output = f64_constant(*b0) * section_input + low.get();
            low.set(
                f64_constant(*b1) * section_input - f64_constant(*a1) * section_output + high.get(),
            );
            high.set(f64_constant(*b2) * section_input - f64_constant(*a2) * section_output);
            section_input = section_output;
        }

        k.store(y, sample_index, section_input.cast(Ty::F32));
    });

    for (s, section) in section_delays.iter().enumerate() {
        for (d, delay) in section.iter().enumerate() {
            let sample_index = part_index + 2 * parts * s as u32 + parts * d as u32;
            k.store(state, sample_index, delay.get());
        }
    }

    let port_operands = [Operand::Input(0), Operand::Output(0), Operand::State(0)];
    KernelPlan::one(k.finish(), &port_operands, Grid::Groups(Amount::fixed(1)))
}

/// `gain · angle of x[k]·conj(x[k−1])`.
pub fn discriminate(gain: f32) -> KernelPlan {
    let k = Builder::new("discriminate", 64);
    let x = k.reads(Mem::Pair);
    let y = k.writes(Mem::F32);

    k.each(k.firings(), |i| {
        let previous_sample = Cx::load(&k, x, i);
        let current_sample = Cx::load(&k, x, i + 1);
        let phase_turn = current_sample.times(previous_sample.conj());
        k.store(
            y,
            i,
            math::atan2(phase_turn.im, phase_turn.re) * k.f32(gain),
        );
    });

    let port_operands = [Operand::Input(0), Operand::Output(0)];
    KernelPlan::one(k.finish(), &port_operands, Grid::Threads(Amount::each(1)))
}
