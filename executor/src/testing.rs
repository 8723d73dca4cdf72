//! Drivers' failures on demand, for tests.

use std::sync::OnceLock;

use zbmd_devices::gpu::Device;

type Hook = Box<dyn Fn(&Device) + Send + Sync>;

static HOOK: OnceLock<Hook> = OnceLock::new();

/// Calls `hook` with every GPU that this process opens from now on. The first hook stays.
pub fn on_open(hook: impl Fn(&Device) + Send + Sync + 'static) {
    let _ = HOOK.set(Box::new(hook));
}

pub(crate) fn opened(device: &Device) {
    if let Some(hook) = HOOK.get() {
        hook(device);
    }
}
