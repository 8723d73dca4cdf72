//! What the compiler prints of modes, the longest mean time of a block and the latest output after a change, on a simulated
//! clock: no sequence of changes passes it, and the worst one found comes close.
//!
//! `ZBMD_MODE_SEQUENCES=1000000` asks for so many random sequences.

use std::collections::BTreeMap;

use zbmd_compiler::ModeBounds;
use zbmd_ir::Slot;
use zbmd_ir::verify::VerifiedModes;
use zbmd_tests::modes::random_modes;
use zbmd_tests::timed::{self, TimedLeg};

/// Random models with modes.
const MODELS: u64 = 40;
const SEQUENCES: u64 = 4_000;
/// Changes of a sequence.
const MAX_CHANGES: usize = 8;
/// Blocks of a leg, in random sequences and in the search.
const MAX_BLOCKS: u64 = 12;
const MAX_SEARCHED_BLOCKS: u64 = 40;
/// What is printed is reached up to this share at least.
const REACHED: f64 = 0.95;

/// A model's modes on the clock.
struct Clocked {
    modes: VerifiedModes,
    /// Legs as planned, by mode and blocks.
    planned: BTreeMap<(usize, u64), TimedLeg>,
}

/// A part of a sequence: so many blocks in a mode, and what they took.
#[derive(Clone, Copy, Debug)]
struct ClockedLeg {
    mode: usize,
    blocks: u64,
    times: TimedLeg,
}

/// The worst of a sequence, or of several.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    /// From the last block's input before a change to the first output after it.
    latency_ns: u64,
    /// Mean time of a block between two entries of one mode.
    mean_ns: f64,
}

impl Worst {
    fn or(self, other: Self) -> Self {
        Self {
            latency_ns: self.latency_ns.max(other.latency_ns),
            mean_ns: self.mean_ns.max(other.mean_ns),
        }
    }
}

impl Clocked {
    fn period_ns(&self, mode: usize) -> u64 {
        self.modes.programs()[mode].plans.raw[0].period_ns
    }

    fn leg(&self, mode: usize, blocks: u64, durations: timed::Durations<'_>) -> TimedLeg {
        let program = &self.modes.programs()[mode];
        let plan = &program.plans.raw[0];
        let release_ns = plan.period_ns as f64;
        timed::leg(
            &program.graph,
            &program.machine,
            plan,
            blocks,
            release_ns,
            durations,
        )
    }

    fn planned_leg(&mut self, mode: usize, blocks: u64) -> ClockedLeg {
        let known = self.planned.get(&(mode, blocks)).copied();
        let times = known.unwrap_or_else(|| {
            let times = self.leg(mode, blocks, &mut |slot: &Slot| slot.duration_ns);
            self.planned.insert((mode, blocks), times);
            times
        });
        ClockedLeg {
            mode,
            blocks,
            times,
        }
    }

    fn random_leg(&self, mode: usize, blocks: u64, rng: &mut fastrand::Rng) -> ClockedLeg {
        let mut at_random = |slot: &Slot| rng.u64(0..=slot.duration_ns);
        let times = self.leg(mode, blocks, &mut at_random);
        ClockedLeg {
            mode,
            blocks,
            times,
        }
    }

    /// The worst of legs that follow each other.
    fn worst_of(&self, legs: &[ClockedLeg]) -> Worst {
        let mut worst = Worst::default();
        for pair in legs.windows(2) {
            let last_input_ns = (pair[0].blocks - 1) * self.period_ns(pair[0].mode);
            let latency_ns = pair[0].times.end_ns - last_input_ns.min(pair[0].times.end_ns)
                + pair[1].times.first_output_ns;
            worst.latency_ns = worst.latency_ns.max(latency_ns);
        }
        for (begin, first) in legs.iter().enumerate() {
            let (mut time_ns, mut blocks) = (first.times.end_ns, first.blocks);
            for leg in &legs[begin + 1..] {
                if leg.mode == first.mode {
                    worst.mean_ns = worst.mean_ns.max(time_ns as f64 / blocks as f64);
                }
                time_ns += leg.times.end_ns;
                blocks += leg.blocks;
            }
        }
        worst
    }

    /// Modes that a mode may be followed by.
    fn next(&self, mode: usize) -> Vec<usize> {
        let changes = self.modes.changes().iter();
        let allowed = changes.filter(|(from, _)| *from as usize == mode);
        allowed.map(|(_, to)| *to as usize).collect()
    }

    /// Looks for the worst: every change with every number of blocks, and cycles of up to four modes, made worse leg by leg.
    fn search(&mut self) -> Worst {
        let count = self.modes.names().len();
        let mut worst = Worst::default();
        for from in 0..count {
            // A run that stays takes a period a block.
            worst.mean_ns = worst.mean_ns.max(self.period_ns(from) as f64);
            for to in self.next(from) {
                for blocks in 1..=MAX_SEARCHED_BLOCKS {
                    let legs = [self.planned_leg(from, blocks), self.planned_leg(to, blocks)];
                    worst = worst.or(self.worst_of(&legs));
                }
            }
        }
        let mut walks: Vec<Vec<usize>> = (0..count).map(|mode| vec![mode]).collect();
        for _ in 0..count {
            let grown = walks.iter().flat_map(|walk| {
                let last = walk[walk.len() - 1];
                let next = self.next(last).into_iter();
                next.map(|mode| [&walk[..], &[mode]].concat())
            });
            walks = grown.collect();
            let (closed, open): (Vec<_>, Vec<_>) = walks
                .into_iter()
                .partition(|walk| walk[0] == walk[walk.len() - 1]);
            for walk in closed {
                worst = worst.or(self.worst_of_cycle(&walk));
            }
            walks = open;
        }
        worst
    }

    /// A cycle whose legs have as many blocks as makes it worst: one after the other, until none makes it worse.
    fn worst_of_cycle(&mut self, walk: &[usize]) -> Worst {
        let mut legs: Vec<ClockedLeg> =
            walk.iter().map(|mode| self.planned_leg(*mode, 1)).collect();
        let mut worst = self.worst_of(&legs);
        loop {
            let before = worst.mean_ns;
            for index in 0..legs.len() - 1 {
                for blocks in 1..=MAX_BLOCKS {
                    let mut changed = legs.clone();
                    changed[index] = self.planned_leg(walk[index], blocks);
                    let found = self.worst_of(&changed);
                    if found.mean_ns > worst.mean_ns {
                        legs = changed;
                    }
                    worst = worst.or(found);
                }
            }
            if worst.mean_ns <= before {
                return worst;
            }
        }
    }
}

#[test]
fn no_sequence_of_changes_passes_what_is_printed_and_the_worst_comes_close() {
    let sequences = std::env::var("ZBMD_MODE_SEQUENCES").ok();
    let sequences = sequences.map_or(SEQUENCES, |text| text.parse().expect("a number"));
    let (mut least_latency, mut least_mean) = (f64::MAX, f64::MAX);
    let (mut most_latency, mut most_mean) = (0.0f64, 0.0f64);
    let mut changes = 0;
    for seed in 0..MODELS {
        let modes = random_modes(seed);
        let bounds = ModeBounds::of(&modes);
        let bound_latency = bounds.worst.as_ref().map_or(0, |worst| worst.latency_ns);
        let mut clocked = Clocked {
            modes,
            planned: BTreeMap::new(),
        };
        let found = clocked.search();
        assert!(
            found.latency_ns <= bound_latency,
            "seed {seed}: {found:?}, {bounds}"
        );
        assert!(
            found.mean_ns <= bounds.mean_ns as f64,
            "seed {seed}: {found:?}, {bounds}"
        );
        let latency = found.latency_ns as f64 / bound_latency as f64;
        let mean = found.mean_ns / bounds.mean_ns as f64;
        assert!(
            latency >= REACHED,
            "seed {seed}: {latency} of the latency is reached: {bounds}"
        );
        assert!(
            mean >= REACHED,
            "seed {seed}: {mean} of the mean is reached: {bounds}"
        );
        least_latency = least_latency.min(latency);
        least_mean = least_mean.min(mean);

        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..sequences.div_ceil(MODELS) {
            let mut mode = 0;
            let mut legs = Vec::new();
            let is_as_planned = rng.bool();
            for _ in 0..=rng.usize(1..=MAX_CHANGES) {
                let blocks = rng.u64(1..=MAX_BLOCKS);
                let blocks = if rng.bool() { 1 } else { blocks };
                legs.push(match is_as_planned {
                    true => clocked.planned_leg(mode, blocks),
                    false => clocked.random_leg(mode, blocks, &mut rng),
                });
                let Some(next) = rng.choice(clocked.next(mode)) else {
                    break;
                };
                mode = next;
            }
            changes += legs.len() - 1;
            let worst = clocked.worst_of(&legs);
            assert!(
                worst.latency_ns <= bound_latency,
                "seed {seed}: {legs:?}, {bounds}"
            );
            assert!(
                worst.mean_ns <= bounds.mean_ns as f64,
                "seed {seed}: {legs:?}, {bounds}"
            );
            most_latency = most_latency.max(worst.latency_ns as f64 / bound_latency as f64);
            most_mean = most_mean.max(worst.mean_ns / bounds.mean_ns as f64);
        }
    }
    println!(
        "{MODELS} models: the worst sequences found reach {least_latency:.4} of the latency and {least_mean:.4} of the mean at \
         least; {sequences} random ones with {changes} changes reach {most_latency:.4} and {most_mean:.4} at most"
    );
}
