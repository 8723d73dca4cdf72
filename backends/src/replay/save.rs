//! The tokens at borders in the middle of a run: copied by the device, while it goes on, to where the host sees them.
#![expect(unsafe_code, reason = "reads mapped memory")]

use zbmd_ir::{BufferId, ChannelId};

use super::queue::{Command, Home, List, Queue, Range};
use super::state::Head;
use super::{DEPTH, Peers, Replay, Stopped, block_at};

/// What is saved at borders, and how.
///
/// At the end of period p the heads of stage s are those of border p + 1 - s, until the end of the next period at
/// least: only the carry, or the last firing, of the next block writes them. Borders lie as many blocks apart as there
/// are stages, or more; so in each period the heads of one stage are due at most.
pub(super) struct Saves {
    every: u64,
    groups: Vec<Group>,
    bank: u32,
    /// Bytes between the places of periods of different parity.
    stride: u64,
}

/// The heads of one stage.
struct Group {
    stage: u32,
    /// Channel, place in the bank, bytes.
    parts: Vec<(ChannelId, u64, usize)>,
    /// For each phase of the period.
    lists: Vec<List>,
}

/// A save that was submitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    group: usize,
    border: u64,
    /// Where its period's tokens lie in the bank.
    at: u64,
}

impl Saves {
    /// What is to be saved at the end of a period.
    pub(super) fn due(&self, period: u64, blocks: u64) -> Option<(Due, List)> {
        self.groups.iter().enumerate().find_map(|(group, g)| {
            let border = block_at(g.stage, period, blocks)? + 1;
            let phase = (period % g.lists.len() as u64) as usize;
            let due = Due {
                group,
                border,
                at: (period % DEPTH) * self.stride,
            };
            border
                .is_multiple_of(self.every)
                .then_some((due, g.lists[phase]))
        })
    }

    /// Hands over what was copied.
    pub(super) fn give(
        &self,
        due: Due,
        queue: &impl Queue,
        peers: &mut dyn Peers,
    ) -> Result<(), Stopped> {
        for &(channel, at, bytes) in &self.groups[due.group].parts {
            let from = queue.host(self.bank, due.at + at, bytes);
            // SAFETY: the copy has ended, with a barrier towards the host; the next one to this place is submitted
            // only after this period has ended.
            let tokens = unsafe { std::slice::from_raw_parts(from, bytes) };
            peers.save(due.border, channel, tokens)?;
        }
        Ok(())
    }
}

impl<Q: Queue> Replay<Q> {
    /// From now on hands the heads of these buffers to [`Peers::save`] at every border that is a multiple of `every`
    /// blocks (at least as many as there are stages). Buffers of other devices are passed over. Before the first
    /// period.
    ///
    /// # Errors
    /// The driver's faults.
    ///
    /// # Panics
    /// If `every` is smaller than the number of stages, or the run has begun.
    pub fn save_borders(&mut self, every: u64, buffers: &[BufferId]) -> Result<(), Q::Fault> {
        assert!(
            every >= self.stages && self.begun == 0,
            "borders {every} blocks apart"
        );
        let kept = |h: &&Head| buffers.contains(&h.buffer);
        let mut stages: Vec<u32> = self.heads.iter().filter(kept).map(|h| h.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        let (mut groups, mut stride) = (Vec::new(), 0);
        let mut copies = Vec::new();
        for stage in stages {
            let mut parts = Vec::new();
            let mut from: Vec<&[Range]> = Vec::new();
            let mut at = 0;
            for head in self.heads.iter().filter(kept).filter(|h| h.stage == stage) {
                let bytes = head.places.first().map_or(0, |place| place.len());
                parts.push((head.channel, at, bytes as usize));
                from.push(&head.places);
                at = (at + bytes).next_multiple_of(64);
            }
            stride = stride.max(at);
            copies.push(from);
            groups.push(Group {
                stage,
                parts,
                lists: Vec::new(),
            });
        }
        if groups.is_empty() {
            return Ok(());
        }
        let bank = self.queue.bank(DEPTH * stride, Home::Host)?;
        for (group, heads) in groups.iter_mut().zip(copies) {
            for phase in 0..self.phases {
                let copies: Vec<Command> = heads
                    .iter()
                    .zip(&group.parts)
                    .map(|(places, &(_, at, _))| {
                        let border = i128::from(phase + 1) - i128::from(group.stage);
                        let place = border.rem_euclid(places.len() as i128) as usize;
                        let from = places[place];
                        let at = (phase % DEPTH) * stride + at;
                        Command::Copy {
                            from,
                            to: Range::new(bank, at, from.len()),
                        }
                    })
                    .collect();
                group
                    .lists
                    .push(self.queue.record(&copies.iter().collect::<Vec<_>>())?.0);
            }
        }
        self.saves = Some(Saves {
            every,
            groups,
            bank,
            stride,
        });
        Ok(())
    }
}
