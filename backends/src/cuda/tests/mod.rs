//! What needs no GPU: every op on a device in software beside its CPU kernel, the printed code in NVIDIA's assembler,
//! faults at every call. Where there is a GPU, the ops run on it too.

mod attention;
mod dependent_launch;
mod exchange;
mod faults;
mod math;
mod products;
mod ptx;
mod suite;

use std::sync::Arc;

use super::graph::ReadyGraph;
use super::{Device, Fault, Instance, OpenError, Options};
use crate::replay::PATIENCE_NS;

/// A device in software.
fn soft() -> Arc<Device> {
    let instance = Instance::software();
    let listed = instance.find("cuda:0").expect("the only one");
    Device::open(&instance, &listed, &Options::default()).expect("nothing is injected")
}

/// A device of this machine: the first, or that of `ZBMD_CUDA`. `None`, loudly, without one, unless `ZBMD_REQUIRE`
/// names `cuda`.
fn real() -> Option<Arc<Device>> {
    let required = std::env::var("ZBMD_REQUIRE").is_ok_and(|r| r.split(',').any(|w| w == "cuda"));
    let wanted = std::env::var("ZBMD_CUDA").unwrap_or_else(|_| "cuda:0".to_owned());
    let opened = Instance::load()
        .map_err(OpenError::from)
        .and_then(|instance| {
            let listed = instance.find(&wanted)?;
            Device::open(&instance, &listed, &Options::default())
        });
    match opened {
        Ok(device) => Some(device),
        Err(error) if required => panic!("ZBMD_REQUIRE names cuda, but {error}"),
        Err(error) => {
            eprintln!("SKIPPED, not run on a GPU: {error}");
            None
        }
    }
}

/// Launches a graph, and waits for its end.
#[expect(unsafe_code, reason = "launches a graph of a test's own")]
fn launch_and_wait(device: &Arc<Device>, graph: &ReadyGraph) -> Result<(), Fault> {
    device.run_and_wait(PATIENCE_NS, |driver| {
        // SAFETY: the graph is borrowed until the wait is over.
        unsafe { graph.launch(driver) }
    })
}
