//! Queues, graphs and faults on a device in software; what a GPU does of it where there is one.

mod dependent_launch;
mod exchange;
mod faults;

use std::sync::Arc;

use super::graph::ReadyGraph;
use super::testing::{real, soft};
use super::{CudaDevice, Fault};
use zbmd_hal::PATIENCE_NS;

/// Launches a graph, and waits for its end.
#[expect(unsafe_code, reason = "launches a graph of a test's own")]
fn launch_and_wait(device: &Arc<CudaDevice>, graph: &ReadyGraph) -> Result<(), Fault> {
    device.run_and_wait(PATIENCE_NS, |driver| {
        // SAFETY: the graph is borrowed until the wait is over.
        unsafe { graph.launch(driver) }
    })
}
