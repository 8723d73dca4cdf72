//! The tokens at borders in the middle of a run: copied by the device, while it goes on, to where the host sees them.
#![expect(unsafe_code, reason = "reads mapped memory")]

use zbmd_ir::{BufferId, ChannelId};

use super::queue::{BankRange, Command, CommandList, MemoryKind, Queue};
use super::state::ChannelHead;
use super::{DEPTH, Peers, PeriodOfRun, Replay, Stopped};

/// Alignment of a channel's tokens in the bank.
const ALIGN_BYTES: u64 = 64;

/// What is saved at borders, and how.
///
/// At the end of period p the heads of stage s are those of border p + 1 - s, until the end of the next period at
/// least: only the carry, or the last firing, of the next block writes them. Borders are at least as many blocks apart
/// as there are stages; so in each period the heads of at most one stage are due.
pub(super) struct BorderSaves {
    /// Blocks from one saved border to the next.
    every: u64,
    stages: Vec<StageHeads>,
    bank: u32,
    /// Bytes between the places of periods of different parity.
    stride: u64,
}

/// The heads of one stage.
struct StageHeads {
    stage: u32,
    parts: Vec<SavedChannel>,
    /// For each phase of the period.
    lists: Vec<CommandList>,
}

/// A channel's tokens in the bank.
struct SavedChannel {
    channel: ChannelId,
    offset: u64,
    len: usize,
}

/// A save that was submitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueSave {
    /// Index of the stage's heads.
    group: usize,
    border: u64,
    /// Where its period's tokens begin in the bank.
    offset: u64,
}

impl BorderSaves {
    /// What is to be saved at the end of a period.
    pub(super) fn due_at(&self, when: PeriodOfRun) -> Option<(DueSave, CommandList)> {
        self.stages.iter().enumerate().find_map(|(group, heads)| {
            let border = when.block_of_stage(heads.stage)? + 1;
            let phase = (when.period % heads.lists.len() as u64) as usize;
            let due = DueSave {
                group,
                border,
                offset: (when.period % DEPTH) * self.stride,
            };
            let is_due = border.is_multiple_of(self.every);
            is_due.then_some((due, heads.lists[phase]))
        })
    }

    /// Gives the executor what was copied.
    pub(super) fn hand_over(
        &self,
        due: DueSave,
        queue: &impl Queue,
        peers: &mut dyn Peers,
    ) -> Result<(), Stopped> {
        for part in &self.stages[due.group].parts {
            let first = queue.host_pointer(self.bank, due.offset + part.offset, part.len);
            // SAFETY: the copy has ended, with a barrier towards the host; the next one to this place is submitted
            // only after this period has ended.
            let tokens = unsafe { std::slice::from_raw_parts(first, part.len) };
            peers.save(due.border, part.channel, tokens)?;
        }
        Ok(())
    }
}

impl<Q: Queue> Replay<Q> {
    /// From now on gives the heads of these buffers to [`Peers::save`] at every border that is a multiple of `every`
    /// blocks (at least as many as there are stages). Buffers of other devices are ignored. To be called before the
    /// first period.
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
        let saved: Vec<ChannelHead> = self
            .heads
            .iter()
            .filter(|head| buffers.contains(&head.buffer))
            .cloned()
            .collect();
        let mut stage_numbers: Vec<u32> = saved.iter().map(|head| head.stage).collect();
        stage_numbers.sort_unstable();
        stage_numbers.dedup();
        if stage_numbers.is_empty() {
            return Ok(());
        }

        // The heads of different stages are never saved together, so all stages share one place for each parity.
        let of_stage = |stage: u32| saved.iter().filter(move |head| head.stage == stage);
        let mut stages = Vec::with_capacity(stage_numbers.len());
        let mut stride = 0;
        for stage in stage_numbers {
            let (parts, end) = lay_out(of_stage(stage));
            stride = stride.max(end);
            stages.push(StageHeads {
                stage,
                parts,
                lists: Vec::new(),
            });
        }

        let bank = self.queue.allocate_bank(DEPTH * stride, MemoryKind::Host)?;
        for heads in &mut stages {
            for phase in 0..self.phases {
                let target_offset = (phase % DEPTH) * stride;
                let sources = of_stage(heads.stage).map(|head| {
                    // The history of the border at which a period of this phase ends.
                    let border = i128::from(phase + 1) - i128::from(heads.stage);
                    head.places[border.rem_euclid(head.places.len() as i128) as usize]
                });
                let copies: Vec<Command> = sources
                    .zip(&heads.parts)
                    .map(|(from, part)| Command::Copy {
                        from,
                        to: BankRange::new(bank, target_offset + part.offset, from.len()),
                    })
                    .collect();
                let (list, _) = self.queue.record_list(&copies.iter().collect::<Vec<_>>())?;
                heads.lists.push(list);
            }
        }

        self.saves = Some(BorderSaves {
            every,
            stages,
            bank,
            stride,
        });
        Ok(())
    }
}

/// Where the bank has the tokens of each head, and where they all end.
fn lay_out<'h>(heads: impl Iterator<Item = &'h ChannelHead>) -> (Vec<SavedChannel>, u64) {
    let mut parts = Vec::new();
    let mut offset = 0;
    for head in heads {
        let len = head.places.first().map_or(0, |place| place.len());
        parts.push(SavedChannel {
            channel: head.channel,
            offset,
            len: len as usize,
        });
        offset = (offset + len).next_multiple_of(ALIGN_BYTES);
    }
    (parts, offset)
}
