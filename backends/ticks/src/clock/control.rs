//! From measured fills to a correction of the frequency.

use zbmd_ticks::{Control, ControlLaw};

/// The controller of one node.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    control: Control,
    /// Sum of the errors times the period, in frame ticks.
    integral: f64,
    /// Steps that the correction is away from the bias; only with a step.
    steps: i64,
    /// What was corrected when buffers were centred.
    bias: f64,
    correction: f64,
}

impl Controller {
    pub(crate) fn new(control: Control) -> Self {
        Self {
            control,
            integral: 0.0,
            steps: 0,
            bias: 0.0,
            correction: 0.0,
        }
    }

    /// The present correction, as a part of the nominal frequency.
    pub(crate) fn correction(&self) -> f64 {
        self.correction
    }

    /// Takes the sum of the fills above the initial ones, and gives the correction until the next measurement.
    pub(crate) fn measure(&mut self, error_frames: f64) -> f64 {
        let max = self.control.max_ppm * 1e-6;
        let previous_integral = self.integral;
        self.integral += error_frames * self.control.period_ticks as f64;
        let by_law = match self.control.law {
            ControlLaw::Free => 0.0,
            ControlLaw::Proportional { gain } => gain * error_frames,
            ControlLaw::ProportionalIntegral {
                proportional,
                integral,
            } => proportional * error_frames + integral * self.integral,
        };

        let wanted = self.bias + by_law;
        if wanted.abs() > max {
            // A controller that can do no more must not remember that it wanted to.
            self.integral = previous_integral;
        }
        let step = self.control.step_ppm * 1e-6;
        let reached = if step > 0.0 {
            let present = self.bias + step * self.steps as f64;
            self.steps += i64::from(wanted > present) - i64::from(wanted < present);
            self.bias + step * self.steps as f64
        } else {
            wanted
        };
        self.correction = reached.clamp(-max, max);
        self.correction
    }

    /// Goes on from the present correction when the buffers have been centred.
    pub(crate) fn hold(&mut self) {
        self.bias = self.correction;
        self.integral = 0.0;
        self.steps = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corrections(control: Control, errors: &[f64]) -> Vec<f64> {
        let mut controller = Controller::new(control);
        errors.iter().map(|&e| controller.measure(e)).collect()
    }

    fn control(law: ControlLaw) -> Control {
        Control {
            law,
            period_ticks: 10,
            delay_ticks: 0,
            step_ppm: 0.0,
            max_ppm: 500_000.0,
        }
    }

    #[test]
    fn proportional_and_integral_parts_add_up() {
        let law = ControlLaw::ProportionalIntegral {
            proportional: 1.0 / 64.0,
            integral: 1.0 / 1024.0,
        };
        let found = corrections(control(law), &[1.0, 2.0, -4.0]);
        let expected = [
            1.0 / 64.0 + 10.0 / 1024.0,
            2.0 / 64.0 + 30.0 / 1024.0,
            -4.0 / 64.0 - 10.0 / 1024.0,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn steps_follow_the_law_one_at_a_time() {
        let law = ControlLaw::Proportional { gain: 1e-6 };
        let stepped = Control {
            step_ppm: 1.0,
            ..control(law)
        };
        let found = corrections(stepped, &[2.5, 2.5, 2.5, 2.5, 2.5, 0.0]);
        let ppm: Vec<i64> = found.iter().map(|c| (c * 1e6).round() as i64).collect();
        // It swings around what it cannot reach.
        assert_eq!(ppm, [1, 2, 3, 2, 3, 2]);
    }

    #[test]
    fn a_correction_at_its_limit_does_not_wind_up() {
        let law = ControlLaw::ProportionalIntegral {
            proportional: 1e-6,
            integral: 1e-6,
        };
        let limited = Control {
            max_ppm: 5.0,
            ..control(law)
        };
        let mut controller = Controller::new(limited);
        for _ in 0..1_000 {
            assert!((controller.measure(3.0) - 5e-6).abs() < 1e-15);
        }
        let reaction = controller.measure(-0.25);
        assert!(reaction < 4.9e-6, "{reaction}");
    }
}
