//! Devices for tests, with the validation layers on where they are installed.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::{Instance, VulkanDevice, VulkanOptions};

/// A device of this machine with the layers on: the first, or that of `ZBMD_VULKAN`. `None`, loudly, without one,
/// unless `ZBMD_REQUIRE` names `vulkan`.
///
/// # Panics
/// Without a device or the layers, if `ZBMD_REQUIRE` names `vulkan`.
pub fn open() -> Option<Arc<VulkanDevice>> {
    let required = std::env::var("ZBMD_REQUIRE").is_ok_and(|r| r.split(',').any(|w| w == "vulkan"));
    let wanted = std::env::var("ZBMD_VULKAN").unwrap_or_else(|_| "vulkan:0".to_owned());
    let opened = Instance::load(true)
        .map_err(super::OpenError::from)
        .and_then(|instance| {
            let listed = instance.find(&wanted)?;
            VulkanDevice::open(&instance, &listed, &VulkanOptions::default())
        });
    match opened {
        Ok(device) => {
            let validates = device.instance().validates();
            assert!(
                validates || !required,
                "the validation layers are not installed"
            );
            Some(device)
        }
        Err(error) if required => panic!("ZBMD_REQUIRE names vulkan, but {error}"),
        Err(error) => {
            eprintln!("SKIPPED, no Vulkan device: {error}");
            None
        }
    }
}

/// One device for all tests that break nothing.
pub fn device() -> Option<Arc<VulkanDevice>> {
    static SHARED: OnceLock<Option<Arc<VulkanDevice>>> = OnceLock::new();
    SHARED.get_or_init(open).clone()
}

/// One test at a time: the validation layers crash now and then where one thread makes a device of an instance of its
/// own while another records commands (layers 1.3.239, in `vkBeginCommandBuffer`).
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails if the validation layers found something.
///
/// # Panics
/// If they did.
#[track_caller]
pub fn assert_valid(device: &VulkanDevice) {
    let messages = device.instance().messages();
    assert!(
        messages.is_empty(),
        "{} messages, the first: {}",
        messages.len(),
        messages[0]
    );
}
