//! How long one period's work takes alone.

use super::problem::{AssignError, PlacementChannel, PlacementProblem};

/// What the makespan of every placement of a problem follows from. A search asks for many.
pub(crate) struct MakespanGraph<'a> {
    problem: &'a PlacementProblem,
    /// The nodes, longest remaining path first.
    order: Vec<usize>,
    /// Channels within the period, by writer.
    written_by: Vec<Vec<&'a PlacementChannel>>,
}

impl<'a> MakespanGraph<'a> {
    /// # Errors
    /// [`AssignError::Cycle`].
    pub(crate) fn new(problem: &'a PlacementProblem) -> Result<Self, AssignError> {
        let mut written_by: Vec<Vec<&PlacementChannel>> = vec![Vec::new(); problem.nodes.len()];
        for channel in problem.channels_within_period() {
            written_by[channel.from as usize].push(channel);
        }
        Ok(MakespanGraph {
            problem,
            order: problem.order()?,
            written_by,
        })
    }

    /// Ticks of one period's work alone: see [`super::Evaluation::latency`]. The placement must name devices that exist;
    /// O(V + E).
    pub(crate) fn makespan(&self, placement: &[u32]) -> u64 {
        let problem = self.problem;
        let mut ready_at = vec![0u64; problem.nodes.len()];
        let mut free_at = vec![0u64; problem.devices.len()];

        for &node in &self.order {
            let device = placement[node] as usize;
            let ticks = problem.nodes[node].ticks[device].unwrap_or(0);
            let node_end = ready_at[node].max(free_at[device]) + ticks;
            free_at[device] = node_end;

            for channel in &self.written_by[node] {
                for &reader in &channel.to {
                    let reader_device = placement[reader as usize] as usize;
                    let transfer_link = problem.link(device, reader_device);
                    let transfer_ticks = match transfer_link.filter(|_| reader_device != device) {
                        Some(transfer_link) => {
                            transfer_link.send.ticks(channel.amount)
                                + transfer_link.receive.ticks(channel.amount)
                        }
                        None => 0,
                    };
                    let reader_ready = &mut ready_at[reader as usize];
                    *reader_ready = (*reader_ready).max(node_end + transfer_ticks);
                }
            }
        }
        free_at.into_iter().max().unwrap_or(0)
    }
}
