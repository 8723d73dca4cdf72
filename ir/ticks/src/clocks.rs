//! The clocks of a tick machine: oscillators, how they are controlled, and the buffers that tell how they differ.
//!
//! Times are in *nominal ticks*: the time that an oscillator of exactly the nominal frequency takes for one tick.
//! Frequencies are ticks per nominal tick, so that 1 is nominal; 1 ppm is a millionth of that.

use serde::{Deserialize, Serialize};

use crate::NodeId;

/// Clocks of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clocks {
    /// Nominal frequency in ticks per second. Only for people: everything else is in ticks.
    pub nominal_hz: f64,
    /// The oscillators.
    pub oscillators: Oscillators,
    /// How a node steers its clock.
    pub control: Control,
    /// The queue at the receiving end of each link.
    pub buffers: ElasticBuffers,
    /// Nominal ticks that a frame takes from one end of a link to the buffer at the other.
    pub propagation_ticks: f64,
}

impl Default for Clocks {
    /// 200 MHz within 100 ppm, with gains, period, delay and propagation of Callisto.jl's defaults (kp 2e-8, ki 1e-15,
    /// 100,000, 1,000 and 5,000 ticks).
    fn default() -> Self {
        Self {
            nominal_hz: 200e6,
            oscillators: Oscillators::default(),
            control: Control::default(),
            buffers: ElasticBuffers::default(),
            propagation_ticks: 5_000.0,
        }
    }
}

/// Oscillators without control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Oscillators {
    /// Largest distance from the nominal frequency, offset and wander together, without temperature.
    pub tolerance_ppm: f64,
    /// Offset of each node from the nominal frequency. Nodes without one draw theirs within the tolerance.
    pub offsets_ppm: Vec<f64>,
    /// Largest step of the random walk in one control period. 0: none.
    pub wander_ppm: f64,
    /// Changes of temperature.
    pub ramps: Vec<Ramp>,
    /// Decides about offsets and wander.
    pub seed: u64,
}

impl Default for Oscillators {
    fn default() -> Self {
        Self {
            tolerance_ppm: 100.0,
            offsets_ppm: Vec::new(),
            wander_ppm: 0.0,
            ramps: Vec::new(),
            seed: 1,
        }
    }
}

/// A node whose oscillator changes with its temperature: by nothing before the start, then evenly up to the end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ramp {
    /// The node.
    pub node: NodeId,
    /// Start in nominal ticks.
    pub from_tick: f64,
    /// End in nominal ticks.
    pub until_tick: f64,
    /// What the frequency has changed by at the end.
    pub ppm: f64,
}

/// From the fill of buffers to a frequency.
///
/// In local tick k * `period_ticks` a node adds up, over its incoming links, how far each buffer's fill is above its
/// initial fill; `delay_ticks` later its frequency is the oscillator's plus what the law says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// The law.
    pub law: ControlLaw,
    /// Local ticks from one measurement to the next.
    pub period_ticks: u64,
    /// Local ticks from a measurement to the frequency that follows from it; less than the period.
    pub delay_ticks: u64,
    /// The correction moves by one step up, one down, or none in each period, as clock multipliers with FINC and FDEC
    /// pins do it, towards what the law says. 0: it is what the law says.
    pub step_ppm: f64,
    /// Largest correction either way.
    pub max_ppm: f64,
}

impl Default for Control {
    fn default() -> Self {
        Self {
            law: ControlLaw::ProportionalIntegral {
                proportional: 2e-8,
                integral: 1e-15,
            },
            period_ticks: 100_000,
            delay_ticks: 1_000,
            step_ppm: 0.0,
            max_ppm: 10_000.0,
        }
    }
}

/// How a correction follows from the sum r of the fills above the initial ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum ControlLaw {
    /// No control: clocks run as they will.
    Free,
    /// gain * r.
    Proportional {
        /// Frequency, where 1 is nominal, for each frame.
        gain: f64,
    },
    /// proportional * r + integral * the sum of r * `period_ticks` over all measurements so far.
    ProportionalIntegral {
        /// Frequency for each frame.
        proportional: f64,
        /// Frequency for each frame and tick.
        integral: f64,
    },
}

/// The queue at the receiving end of a link. One frame goes in for each that the sender sent, one comes out in every
/// tick of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ElasticBuffers {
    /// Frames that it can hold.
    pub frames: u64,
    /// Frames in it when the link comes up, which control aims for.
    pub initial_fill: u64,
}

impl Default for ElasticBuffers {
    fn default() -> Self {
        Self {
            frames: 32_768,
            initial_fill: 16_384,
        }
    }
}

/// Why clocks cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ClocksError {
    /// A number outside the range that makes sense.
    #[error("`{field}` is {found}, but must be between {min} and {max}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Its value.
        found: f64,
        /// The least value that it may have.
        min: f64,
        /// The largest value that it may have.
        max: f64,
    },
    /// A node that does not exist.
    #[error("`{field}` names {node}, but there are only {nodes} nodes")]
    UnknownNode {
        /// The field.
        field: &'static str,
        /// The node.
        node: NodeId,
        /// Nodes of the machine.
        nodes: usize,
    },
}

/// A number and the range that it must be in.
struct NumberRange {
    field: &'static str,
    found: f64,
    min: f64,
    max: f64,
}

impl NumberRange {
    const fn new(field: &'static str, found: f64, min: f64, max: f64) -> Self {
        Self {
            field,
            found,
            min,
            max,
        }
    }
}

impl Clocks {
    /// Whether all numbers make sense for a machine of so many nodes.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self, nodes: usize) -> Result<(), ClocksError> {
        let offsets = self.oscillators.offsets_ppm.iter();
        let offsets =
            offsets.map(|&ppm| NumberRange::new("oscillators.offsets_ppm", ppm, -1e5, 1e5));
        let ramps = self.oscillators.ramps.iter();
        let ramps = ramps.flat_map(|ramp| {
            let until = NumberRange::new(
                "oscillators.ramps: until_tick",
                ramp.until_tick,
                ramp.from_tick,
                1e15,
            );
            [
                NumberRange::new("oscillators.ramps: ppm", ramp.ppm, -1e5, 1e5),
                NumberRange::new("oscillators.ramps: from_tick", ramp.from_tick, 0.0, 1e15),
                until,
            ]
        });
        let ranges = self.ranges().into_iter().chain(offsets).chain(ramps);
        for range in ranges {
            let NumberRange {
                field,
                found,
                min,
                max,
            } = range;
            if !(min..=max).contains(&found) {
                return Err(ClocksError::OutOfRange {
                    field,
                    found,
                    min,
                    max,
                });
            }
        }

        let mut ramps = self.oscillators.ramps.iter();
        let unknown = ramps.find(|ramp| ramp.node.index() >= nodes);
        unknown.map_or(Ok(()), |ramp| {
            let (field, node) = ("oscillators.ramps", ramp.node);
            Err(ClocksError::UnknownNode { field, node, nodes })
        })
    }

    /// Every number with its name, the least value and the largest. What is beyond is a slip: nothing about clocks of
    /// computers is as large.
    fn ranges(&self) -> [NumberRange; 12] {
        let Control {
            law,
            period_ticks,
            delay_ticks,
            step_ppm,
            max_ppm,
        } = self.control;
        let (proportional, integral) = match law {
            ControlLaw::Free => (0.0, 0.0),
            ControlLaw::Proportional { gain } => (gain, 0.0),
            ControlLaw::ProportionalIntegral {
                proportional,
                integral,
            } => (proportional, integral),
        };
        let period = period_ticks as f64;
        let frames = self.buffers.frames as f64;
        let initial_fill = self.buffers.initial_fill as f64;
        let Oscillators {
            tolerance_ppm,
            wander_ppm,
            ..
        } = self.oscillators;
        [
            NumberRange::new("nominal_hz", self.nominal_hz, 1e-3, 1e15),
            NumberRange::new("propagation_ticks", self.propagation_ticks, 0.0, 1e12),
            NumberRange::new("oscillators.tolerance_ppm", tolerance_ppm, 0.0, 1e5),
            NumberRange::new("oscillators.wander_ppm", wander_ppm, 0.0, 1e5),
            NumberRange::new("control.law: proportional gain", proportional, 0.0, 1.0),
            NumberRange::new("control.law: integral gain", integral, 0.0, 1.0),
            NumberRange::new("control.period_ticks", period, 1.0, 1e12),
            NumberRange::new("control.delay_ticks", delay_ticks as f64, 0.0, period - 1.0),
            NumberRange::new("control.step_ppm", step_ppm, 0.0, 1e5),
            NumberRange::new("control.max_ppm", max_ppm, 0.0, 5e5),
            NumberRange::new("buffers.frames", frames, 1.0, 1e12),
            NumberRange::new("buffers.initial_fill", initial_fill, 0.0, frames),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let check = |change: fn(&mut Clocks)| {
            let mut clocks = Clocks::default();
            change(&mut clocks);
            clocks.check(3).map_err(|e| e.to_string())
        };
        assert_eq!(check(|_| ()), Ok(()));
        type Case = (fn(&mut Clocks), &'static str);
        let cases: [Case; 4] = [
            (
                |clocks| clocks.control.delay_ticks = 100_000,
                "`control.delay_ticks` is 100000, but must be between 0 and 99999",
            ),
            (
                |clocks| clocks.buffers.initial_fill = 40_000,
                "`buffers.initial_fill` is 40000, but must be between 0 and 32768",
            ),
            (
                |clocks| clocks.propagation_ticks = f64::NAN,
                "`propagation_ticks` is NaN, but must be between 0 and 1000000000000",
            ),
            (
                |clocks| {
                    clocks.oscillators.ramps.push(Ramp {
                        node: NodeId(3),
                        from_tick: 0.0,
                        until_tick: 1.0,
                        ppm: 1.0,
                    });
                },
                "`oscillators.ramps` names n3, but there are only 3 nodes",
            ),
        ];
        for (change, message) in cases {
            assert_eq!(check(change), Err(message.to_owned()));
        }
    }
}
