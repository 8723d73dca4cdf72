//! Devices for tests: one in software, and one of this machine where there is one.

use std::sync::Arc;

use super::{CudaDevice, CudaOptions, Instance, OpenError};

/// A device in software.
/// # Panics
/// Never: nothing is injected.
pub fn soft() -> Arc<CudaDevice> {
    let instance = Instance::software();
    let listed = instance.find("cuda:0").expect("the only one");
    CudaDevice::open(&instance, &listed, &CudaOptions::default()).expect("nothing is injected")
}

/// A device of this machine: the first, or that of `ZBMD_CUDA`. `None`, loudly, without one, unless `ZBMD_REQUIRE`
/// names `cuda`.
///
/// # Panics
/// Without a device, if `ZBMD_REQUIRE` names `cuda`.
pub fn real() -> Option<Arc<CudaDevice>> {
    let required = std::env::var("ZBMD_REQUIRE").is_ok_and(|r| r.split(',').any(|w| w == "cuda"));
    let wanted = std::env::var("ZBMD_CUDA").unwrap_or_else(|_| "cuda:0".to_owned());
    let opened = Instance::load()
        .map_err(OpenError::from)
        .and_then(|instance| {
            let listed = instance.find(&wanted)?;
            CudaDevice::open(&instance, &listed, &CudaOptions::default())
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
