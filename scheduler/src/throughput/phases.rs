//! Cyclo-static rates: the firings of an actor go through phases by turns, each with its own time and rates.
//!
//! Where the rest of the library speaks of one firing of such an actor it means a whole cycle of them: that is how it is
//! compiled, one call for all phases. What is known of the phases tightens analyses alone.
//!
//! Source: Bilsen, Engels, Lauwereins & Peperstraete 1996, "Cyclo-Static Dataflow", IEEE Trans. Signal Processing 44(2).

use std::collections::BTreeMap;

use zbmd_ir::{ActorId, ChannelId};

use super::{ThroughputError, TimedSdf};

/// What is known of phases in a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PhaseTable {
    /// The time of each phase, of actors that have several.
    times: BTreeMap<ActorId, Vec<u64>>,
    /// Tokens of each phase of a channel's writer.
    written: BTreeMap<ChannelId, Vec<u64>>,
    /// Tokens of each phase of a channel's reader, by its index.
    read: BTreeMap<(ChannelId, usize), Vec<u64>>,
}

/// The tokens of an actor's firings at one end of a channel, summed up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenSums {
    /// Tokens of the first n firings of a cycle, from n = 0 to all of them.
    before: Vec<i64>,
}

impl TokenSums {
    /// The same in every firing.
    pub(super) fn constant(rate: i64) -> Self {
        Self {
            before: vec![0, rate],
        }
    }

    fn of_phases(rates: &[u64]) -> Self {
        let mut sum = 0;
        let sums = rates.iter().map(|&rate| {
            sum += rate as i64;
            sum
        });
        Self {
            before: std::iter::once(0).chain(sums).collect(),
        }
    }

    fn phases(&self) -> i64 {
        self.before.len() as i64 - 1
    }

    /// Tokens of every firing, if they are the same.
    pub(crate) fn every_firing(&self) -> Option<i64> {
        match self.before[..] {
            [_, rate] => Some(rate),
            _ => None,
        }
    }

    /// Tokens of this firing.
    pub(crate) fn of(&self, firing: i64) -> i64 {
        let phase = firing.rem_euclid(self.phases()) as usize;
        self.before[phase + 1] - self.before[phase]
    }

    /// Tokens of the firings from one to another.
    pub(crate) fn between(&self, first: i64, end: i64) -> i64 {
        self.of_first(end) - self.of_first(first)
    }

    /// Most tokens of a firing.
    fn most(&self) -> u64 {
        let rates = (0..self.phases()).map(|phase| self.of(phase));
        rates.max().unwrap_or(0) as u64
    }

    /// Tokens of so many firings from the first phase on.
    pub(crate) fn of_first(&self, firings: i64) -> i64 {
        let cycles = firings.div_euclid(self.phases());
        let cycle_tokens = self.before[self.before.len() - 1];
        let phase = firings.rem_euclid(self.phases()) as usize;
        cycles * cycle_tokens + self.before[phase]
    }
}

impl PhaseTable {
    pub(super) fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    pub(super) fn has_phases(&self, actor: ActorId) -> bool {
        self.times.contains_key(&actor)
    }

    /// The times of an actor's phases.
    pub(super) fn times_of(&self, sdf: &TimedSdf, actor: ActorId) -> Vec<u64> {
        let of_phases = self.times.get(&actor).cloned();
        of_phases.unwrap_or_else(|| vec![sdf.actors[actor].time])
    }

    /// The sums at a channel's writer.
    pub(super) fn written_sums(&self, sdf: &TimedSdf, channel: ChannelId) -> TokenSums {
        let ends = &sdf.channels[channel];
        match (self.written.get(&channel), self.times.get(&ends.from)) {
            (Some(rates), _) => TokenSums::of_phases(rates),
            (None, None) => TokenSums::constant(ends.produce as i64),
            // Not known: as late as can be.
            (None, Some(times)) => {
                let mut rates = vec![0; times.len()];
                rates[times.len() - 1] = ends.produce;
                TokenSums::of_phases(&rates)
            }
        }
    }

    /// The sums at one of a channel's readers.
    pub(super) fn read_sums(&self, sdf: &TimedSdf, channel: ChannelId, index: usize) -> TokenSums {
        let reader = &sdf.channels[channel].readers[index];
        match (self.read.get(&(channel, index)), self.times.get(&reader.to)) {
            (Some(rates), _) => TokenSums::of_phases(rates),
            (None, None) => TokenSums::constant(reader.consume as i64),
            // Not known: as early as can be.
            (None, Some(times)) => {
                let mut rates = vec![0; times.len()];
                rates[0] = reader.consume;
                TokenSums::of_phases(&rates)
            }
        }
    }
}

impl TimedSdf {
    /// Says that each firing of an actor is a cycle of phases that take these times, one after another. Ends of channels
    /// whose rates are not said take all tokens in the first phase, and give all in the last.
    pub fn set_phase_times(&mut self, actor: ActorId, times: Vec<u64>) {
        if times.len() > 1 {
            // Phases that ran side by side could end in another order than they began.
            self.actors[actor].at_once = Some(1);
            self.phases.times.insert(actor, times);
        }
    }

    /// Whether some firing of an actor takes time.
    pub(crate) fn takes_time(&self, actor: ActorId) -> bool {
        let times = self.phases.times_of(self, actor);
        times.iter().any(|time| *time > 0)
    }

    /// Says how many tokens the writer of a channel gives in each of its phases.
    ///
    /// # Errors
    /// [`ThroughputError::Phases`] where they are not as many as the writer has phases, or not as many tokens in all as
    /// it gives in a cycle.
    pub fn set_written_phases(
        &mut self,
        channel: ChannelId,
        rates: Vec<u64>,
    ) -> Result<(), ThroughputError> {
        let ends = &self.channels[channel];
        self.check_phases(channel, ends.from, &rates, ends.produce)?;
        self.phases.written.insert(channel, rates);
        Ok(())
    }

    /// Says how many tokens a reader of a channel takes in each of its phases.
    ///
    /// # Errors
    /// As [`Self::set_written_phases`].
    pub fn set_read_phases(
        &mut self,
        channel: ChannelId,
        reader: usize,
        rates: Vec<u64>,
    ) -> Result<(), ThroughputError> {
        let end = &self.channels[channel].readers[reader];
        self.check_phases(channel, end.to, &rates, end.consume)?;
        self.phases.read.insert((channel, reader), rates);
        Ok(())
    }

    /// Fewer places than this do not let a channel's writer and one of its readers go through their phases.
    pub(super) fn min_room_of_phases(&self, channel: ChannelId, index: usize) -> u64 {
        let reader = &self.channels[channel].readers[index];
        let written = self.phases.written_sums(self, channel).most();
        let read = self.phases.read_sums(self, channel, index).most();
        let live = written.max(read).max(reader.free);
        live.saturating_add(reader.overlap)
    }

    fn check_phases(
        &self,
        channel: ChannelId,
        actor: ActorId,
        rates: &[u64],
        cycle_tokens: u64,
    ) -> Result<(), ThroughputError> {
        let phases = self.phases.times.get(&actor).map_or(1, Vec::len);
        let tokens = rates
            .iter()
            .fold(0u64, |sum, &rate| sum.saturating_add(rate));
        if rates.len() == phases && tokens == cycle_tokens {
            return Ok(());
        }
        Err(ThroughputError::Phases {
            channel,
            found: rates.len(),
            phases,
            tokens,
            cycle_tokens,
        })
    }
}
