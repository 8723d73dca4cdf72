//! Devices that cost the same, which are measured once.

use zbmd_backends::gpu::{Device as Gpu, Drivers, GpuOptions};
use zbmd_ir::{Device, DeviceId, Machine};

use super::kind::Computer;

/// Devices that cost the same, by their processor.
pub(super) struct DeviceGroup {
    pub(super) kind: String,
    /// At least one.
    pub(super) devices: Vec<DeviceId>,
    /// The GPU, if they are one, or why it cannot be measured.
    pub(super) gpu: Option<Result<Gpu, String>>,
    /// The same GPU with kernels that are launched early, where it can do so.
    pub(super) early_gpu: Option<Gpu>,
}

impl DeviceGroup {
    pub(super) fn device_names(&self, machine: &Machine) -> Vec<String> {
        let devices = self.devices.iter();
        devices
            .map(|&id| machine.devices[id].name.clone())
            .collect()
    }
}

/// The groups of a machine: CPU devices by their kind, then the GPUs, each for itself.
pub(super) fn find_groups(machine: &Machine) -> Vec<DeviceGroup> {
    let mut device_groups = cpu_groups(machine, &Computer::read());
    let mut drivers = Drivers::default();
    for (id, device) in machine.devices.iter_enumerated() {
        if device.backend.is_gpu() {
            device_groups.push(open_gpu(id, device, &mut drivers));
        }
    }
    device_groups
}

fn cpu_groups(machine: &Machine, computer: &Computer) -> Vec<DeviceGroup> {
    let mut device_groups: Vec<DeviceGroup> = Vec::new();
    for (id, device) in machine.devices.iter_enumerated() {
        if !device.backend.is_cpu() {
            continue;
        }
        let kind = computer.kind(&device.cores);
        match device_groups.iter_mut().find(|group| group.kind == kind) {
            Some(group) => group.devices.push(id),
            None => device_groups.push(DeviceGroup {
                kind,
                devices: vec![id],
                gpu: None,
                early_gpu: None,
            }),
        }
    }

    device_groups
}

fn open_gpu(id: DeviceId, device: &Device, drivers: &mut Drivers) -> DeviceGroup {
    let opened_gpu = drivers.open(
        &device.backend,
        device.driver_name(),
        &GpuOptions::default(),
    );
    let gpu = opened_gpu.map_err(|fault| fault.to_string());
    let kind = match &gpu {
        Ok(gpu) => gpu.kind(),
        Err(_) => format!("{}: none", device.backend),
    };

    // The same GPU is opened again: the way of launching is a property of the opened device.
    let mut early_gpu = None;
    if gpu.is_ok() && device.backend.has_dependent_launch() {
        let early_options = GpuOptions {
            dependent_launch: true,
            ..GpuOptions::default()
        };
        let opened_gpu = drivers.open(&device.backend, device.driver_name(), &early_options);
        early_gpu = opened_gpu.ok().filter(Gpu::has_dependent_launch);
    }

    DeviceGroup {
        kind,
        devices: vec![id],
        gpu: Some(gpu),
        early_gpu,
    }
}
