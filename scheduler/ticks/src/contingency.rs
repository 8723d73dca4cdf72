//! Plans for when nodes or links are lost.

use zbmd_ir::Graph;
use zbmd_ticks::{TickLoss, TickMachine, TickPlan};

use crate::{TickSchedule, TickScheduleError, schedule_on};

/// The plan for one loss, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub struct LossSchedule {
    /// What is lost.
    pub lost: TickLoss,
    /// What runs then.
    pub result: Result<TickSchedule, TickScheduleError>,
}

/// Makes a plan for the loss of each node and of each link that the main plan uses; without any other the main plan goes
/// on. Where a loss divides the network, the largest part is used.
///
/// # Errors
/// Only if the machine makes no sense; losses without a plan say so themselves.
pub fn contingencies(
    graph: &Graph,
    machine: &TickMachine,
    main: &TickPlan,
) -> Result<Vec<LossSchedule>, TickScheduleError> {
    let network = machine.network()?;
    let losses = TickLoss::singles(&network).into_iter();
    let used = losses.filter(|lost| lost.is_used_by(main, &network));
    let schedules = used.map(|lost| LossSchedule {
        lost,
        result: schedule_on(graph, machine, &network.without(&[lost]), Some(lost)),
    });
    Ok(schedules.collect())
}
