//! What a clock does when nobody steers it.

use zbmd_ticks::{NodeId, Oscillators, Ramp};

use crate::sequence::Sequence;

const PPM: f64 = 1e-6;

/// The oscillator of one node.
#[derive(Clone, Debug)]
pub(crate) struct Oscillator {
    /// Offset and wander so far.
    drift_ppm: f64,
    tolerance_ppm: f64,
    wander_ppm: f64,
    ramps: Vec<Ramp>,
    sequence: Sequence,
}

impl Oscillator {
    pub(crate) fn new(oscillators: &Oscillators, node: NodeId) -> Self {
        let mut sequence = Sequence::new(oscillators.seed, node.0.into());
        let drawn = sequence.next_signed() * oscillators.tolerance_ppm;
        let given = oscillators.offsets_ppm.get(node.index()).copied();
        let ramps = oscillators.ramps.iter().filter(|ramp| ramp.node == node);
        Self {
            drift_ppm: given.unwrap_or(drawn),
            tolerance_ppm: oscillators.tolerance_ppm,
            wander_ppm: oscillators.wander_ppm,
            ramps: ramps.copied().collect(),
            sequence,
        }
    }

    /// The frequency at a time, where 1 is nominal.
    pub(crate) fn frequency(&self, time: f64) -> f64 {
        let ramps = self.ramps.iter().map(|ramp| {
            let length = (ramp.until_tick - ramp.from_tick).max(f64::MIN_POSITIVE);
            ramp.ppm * ((time - ramp.from_tick) / length).clamp(0.0, 1.0)
        });
        1.0 + PPM * (self.drift_ppm + ramps.sum::<f64>())
    }

    /// One step of the random walk, which turns around at the tolerance.
    pub(crate) fn wander(&mut self) {
        if self.wander_ppm == 0.0 {
            return;
        }
        self.drift_ppm += self.sequence.next_signed() * self.wander_ppm;
        let beyond = self.drift_ppm.abs() - self.tolerance_ppm;
        if beyond > 0.0 {
            let reflected = (self.tolerance_ppm - beyond).max(-self.tolerance_ppm);
            self.drift_ppm = reflected.copysign(self.drift_ppm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wander_stays_within_the_tolerance_and_reaches_far() {
        let oscillators = Oscillators {
            wander_ppm: 5.0,
            ..Oscillators::default()
        };
        let mut oscillator = Oscillator::new(&oscillators, NodeId(0));
        let mut largest = 0.0_f64;
        for _ in 0..20_000 {
            oscillator.wander();
            largest = largest.max((oscillator.frequency(0.0) - 1.0).abs());
        }
        assert!(largest <= 100.0 * PPM + 1e-15, "{largest}");
        assert!(largest > 95.0 * PPM, "{largest}");
    }

    #[test]
    fn a_ramp_is_nothing_before_and_all_after() {
        let oscillators = Oscillators {
            offsets_ppm: vec![3.0],
            ramps: vec![Ramp {
                node: NodeId(0),
                from_tick: 100.0,
                until_tick: 200.0,
                ppm: 10.0,
            }],
            ..Oscillators::default()
        };
        let oscillator = Oscillator::new(&oscillators, NodeId(0));
        for (time, ppm) in [
            (0.0, 3.0),
            (100.0, 3.0),
            (150.0, 8.0),
            (200.0, 13.0),
            (1e9, 13.0),
        ] {
            let found = (oscillator.frequency(time) - 1.0) / PPM;
            assert!((found - ppm).abs() < 1e-6, "{time}: {found}");
        }
    }
}
