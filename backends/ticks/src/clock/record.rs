//! Frequencies and fills over time, and their files.

use std::fmt::Write as _;

use zbmd_ticks::{LinkId, NodeId};

use super::fault::ClockError;
use super::plot::{Curve, Plot};
use super::simulation::ClockSimulation;

/// What clocks and buffers were at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// In nominal ticks.
    pub time: f64,
    /// Frequency of each recorded node, where 1 is nominal; `None` where it did not run.
    pub frequencies: Vec<Option<f64>>,
    /// Phase of each recorded node less the time, in ticks.
    pub phases: Vec<Option<f64>>,
    /// Frames in each recorded link's buffer; `None` where it was down.
    pub fills: Vec<Option<i64>>,
}

/// Samples of a run at regular times. Of a run that is longer than expected every other sample is dropped, as often as
/// needed, so that memory is bounded.
#[derive(Clone, Debug)]
pub struct Recorder {
    nodes: Vec<NodeId>,
    links: Vec<LinkId>,
    interval_ticks: f64,
    max_samples: usize,
    samples: Vec<Sample>,
}

impl Recorder {
    /// Records the first `max_curves` nodes and links every so many nominal ticks, at most `max_samples` times (at least
    /// 2).
    pub fn new(
        simulation: &ClockSimulation<'_>,
        interval_ticks: f64,
        max_samples: usize,
        max_curves: usize,
    ) -> Self {
        let network = simulation.network();
        let links = network.links().keys();
        Self {
            nodes: network.nodes().take(max_curves).collect(),
            links: links.take(max_curves).collect(),
            interval_ticks: interval_ticks.max(1.0),
            max_samples: max_samples.max(2),
            samples: Vec::new(),
        }
    }

    /// Runs up to a time and records on the way.
    ///
    /// # Errors
    /// As [`ClockSimulation::run_until`].
    pub fn run_until(
        &mut self,
        simulation: &mut ClockSimulation<'_>,
        time: f64,
    ) -> Result<(), ClockError> {
        loop {
            let last = self.samples.last();
            let next = last.map_or(simulation.now(), |s| s.time + self.interval_ticks);
            if next > time {
                return simulation.run_until(time);
            }
            simulation.run_until(next)?;
            self.samples.push(self.sample(simulation, next));
            if self.samples.len() > self.max_samples {
                let mut index = 0;
                self.samples.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.interval_ticks *= 2.0;
            }
        }
    }

    fn sample(&self, simulation: &ClockSimulation<'_>, time: f64) -> Sample {
        let nodes = self.nodes.iter();
        let phases = nodes
            .clone()
            .map(|&n| simulation.phase(n).map(|p| p - time));
        Sample {
            time,
            frequencies: nodes.map(|&n| simulation.frequency(n)).collect(),
            phases: phases.collect(),
            fills: self.links.iter().map(|&l| simulation.fill(l)).collect(),
        }
    }

    /// The samples, in order of time.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// One line a sample: the time, frequencies in ppm of the nominal one, phases less the time, fills. What was not
    /// there is empty.
    pub fn csv(&self) -> String {
        let mut text = String::from("tick");
        let nodes = || self.nodes.iter();
        let names = nodes().map(|node| format!("ppm_{node}"));
        let names = names.chain(nodes().map(|node| format!("phase_{node}")));
        let names = names.chain(self.links.iter().map(|link| format!("fill_{link}")));
        for name in names {
            let _ = write!(text, ",{name}");
        }
        text.push('\n');

        for sample in &self.samples {
            let _ = write!(text, "{}", sample.time);
            for frequency in &sample.frequencies {
                write_field(
                    &mut text,
                    frequency.map(|f| format!("{:.6}", (f - 1.0) * 1e6)),
                );
            }
            for phase in &sample.phases {
                write_field(&mut text, phase.map(|p| format!("{p:.3}")));
            }
            for fill in &sample.fills {
                write_field(&mut text, fill.map(|f| f.to_string()));
            }
            text.push('\n');
        }
        text
    }

    /// Frequencies over time.
    pub fn frequency_plot(&self) -> Plot {
        let curves = self.nodes.iter().enumerate().map(|(index, node)| Curve {
            name: node.to_string(),
            points: self.points(|s| s.frequencies[index].map(|f| (f - 1.0) * 1e6)),
        });
        Plot {
            title: "frequency, ppm from nominal".to_owned(),
            curves: curves.collect(),
        }
    }

    /// Fills over time.
    pub fn fill_plot(&self) -> Plot {
        let curves = self.links.iter().enumerate().map(|(index, link)| Curve {
            name: link.to_string(),
            points: self.points(|s| s.fills[index].map(|f| f as f64)),
        });
        Plot {
            title: "frames in elastic buffers".to_owned(),
            curves: curves.collect(),
        }
    }

    /// Phases over time, as the distance from an ideal clock that ran since time 0.
    pub fn phase_plot(&self) -> Plot {
        let curves = self.nodes.iter().enumerate().map(|(index, node)| Curve {
            name: node.to_string(),
            points: self.points(|s| s.phases[index]),
        });
        Plot {
            title: "phase, ticks from an ideal clock".to_owned(),
            curves: curves.collect(),
        }
    }

    fn points(&self, value: impl Fn(&Sample) -> Option<f64>) -> Vec<(f64, Option<f64>)> {
        self.samples.iter().map(|s| (s.time, value(s))).collect()
    }
}

fn write_field(text: &mut String, value: Option<String>) {
    text.push(',');
    text.push_str(value.as_deref().unwrap_or_default());
}
