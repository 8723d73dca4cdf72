//! What a program is compiled for: the machine, what was measured on it, and what its GPUs can do. The only part of the
//! library that asks drivers for GPUs, apart from calibration.

use zbmd_backends::devices::{self, Gpu};
use zbmd_backends::gpu;
use zbmd_backends::op::GpuCapabilities;
use zbmd_ir::{Device, Machine, limits};

use crate::codes::Code;
use crate::costs::MeasuredCosts;
use crate::diag::{Diagnostic, Diagnostics};
use crate::machine;
use crate::model::read_text;
use crate::options::{CompileOptions, MachineChoice};
use crate::reports::{Reported, Reports};
use crate::source::{SourceMap, Span};

/// The machine, what was measured on it, and what its GPUs can do.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) machine: Machine,
    pub(crate) measured: MeasuredCosts,
    pub(crate) capabilities: GpuCapabilities,
}

impl Target {
    /// Reads the machine and checks it. A compilation does this once, before anything depends on the machine.
    ///
    /// # Errors
    /// Everything that is wrong with the machine.
    pub(crate) fn read(choice: &MachineChoice, reports: &mut Reports) -> Result<Self, Reported> {
        let target = Self::read_unchecked(choice, reports)?;

        // Machines made in Rust were not read by anything that refuses what the verifier would.
        if !machine::check(&target.machine, &mut reports.sink) {
            return Err(Reported);
        }

        // Without its feature no op has kernels for a GPU: it would be left idle without a word.
        for device in &target.machine.devices {
            if let Some(reason) = gpu::missing_support(&device.backend) {
                return Err(reports.refuse(unsupported_gpu(device, reason)));
            }
        }
        Ok(target)
    }

    fn read_unchecked(choice: &MachineChoice, reports: &mut Reports) -> Result<Self, Reported> {
        match choice {
            MachineChoice::Detect => Ok(Self::unmeasured(machine::detect())),
            MachineChoice::Uniform(devices) => {
                let uniform = make_uniform(*devices).map_err(|refusal| reports.refuse(refusal))?;
                Ok(Self::unmeasured(uniform))
            }
            MachineChoice::UniformHosts { hosts, devices } => {
                let all_devices = hosts.saturating_mul(*devices);
                if all_devices > limits::MAX_DEVICES {
                    return Err(reports.refuse(machine::too_many_devices(all_devices)));
                }
                Ok(Self::unmeasured(machine::uniform_hosts(*hosts, *devices)))
            }
            MachineChoice::Given(machine) => Ok(Self::unmeasured(machine.clone())),
            MachineChoice::Measured(machine, measured) => Ok(Self {
                measured: measured.clone(),
                ..Self::unmeasured(machine.clone())
            }),
            MachineChoice::File(path) => {
                let machine_text =
                    read_text(path, Span::NONE, &mut reports.sink).ok_or(Reported)?;
                let shown_path = path.display().to_string();
                let file_id = reports.sources.add(shown_path, machine_text.as_str());

                let machine_and_costs = machine::read(file_id, &machine_text, &mut reports.sink);
                let (machine, measured) = machine_and_costs.ok_or(Reported)?;
                Ok(Self {
                    measured,
                    ..Self::unmeasured(machine)
                })
            }
        }
    }

    fn unmeasured(machine: Machine) -> Self {
        Self {
            machine,
            measured: MeasuredCosts::default(),
            capabilities: GpuCapabilities::default(),
        }
    }

    /// Whether any device is a GPU, of whatever kind.
    pub(crate) fn has_gpus(&self) -> bool {
        let mut devices = self.machine.devices.iter();
        devices.any(|device| !device.backend.is_cpu())
    }

    /// Asks the drivers of this computer what its GPUs can do, if the machine has any: opening drivers takes a while.
    /// GPUs that are not here keep what all GPUs of their kind support, as do all where no driver answers.
    pub(crate) fn ask_drivers(&mut self) {
        if self.has_gpus() {
            let found_gpus = devices::gpus().unwrap_or_default();
            set_capabilities(&mut self.capabilities, &found_gpus);
        }
    }
}

impl CompileOptions {
    /// Compiles for a machine and, if asked, for the GPUs of this computer as well. What these GPUs can do is entered in
    /// the options. A machine file names its GPUs itself: their drivers are asked when it is compiled for.
    ///
    /// # Errors
    /// GPUs that are asked for, where this computer has none; and more devices than a machine may have.
    pub fn set_target(&mut self, machine: MachineChoice, gpus: bool) -> Result<(), Diagnostics> {
        self.ask_drivers = matches!(machine, MachineChoice::File(_));
        let cpu_machine = match machine {
            MachineChoice::Detect if gpus => machine::detect(),
            MachineChoice::Uniform(devices) if gpus => make_uniform(devices).map_err(refused)?,
            MachineChoice::Given(machine) if gpus => machine,
            other => {
                self.machine = other;
                return Ok(());
            }
        };

        let found_gpus = devices::gpus().map_err(|reason| no_gpus(&reason))?;

        // Without `--gpus` a computer without GPUs is fine; asked for, they must be there.
        if found_gpus.is_empty() {
            return Err(no_gpus("the driver finds none that zbmd can use"));
        }
        set_capabilities(&mut self.gpu_capabilities, &found_gpus);
        self.machine = MachineChoice::Given(devices::with_gpus(cpu_machine, &found_gpus));
        Ok(())
    }
}

/// A machine of equal devices. Its links grow with the square of their number: too many are refused before they are made.
fn make_uniform(devices: usize) -> Result<Machine, Diagnostic> {
    if devices > limits::MAX_DEVICES {
        return Err(machine::too_many_devices(devices));
    }
    Ok(machine::uniform(devices))
}

fn set_capabilities(capabilities: &mut GpuCapabilities, gpus: &[Gpu]) {
    for gpu in gpus {
        capabilities.set(&gpu.device.name, gpu.caps);
    }
}

fn no_gpus(reason: &str) -> Diagnostics {
    let refusal = Diagnostic::new(Code::E0507, format!("no GPUs: {reason}"))
        .help("leave `--gpus` away, or install a driver: `zbmdc devices` says what is here");
    refused(refusal)
}

fn unsupported_gpu(device: &Device, reason: &str) -> Diagnostic {
    let message = format!(
        "`{}` is a device of the backend `{}`, and {reason}",
        device.name, device.backend
    );
    Diagnostic::new(Code::E0507, message)
        .help("build with the feature, or compile for a machine without such devices")
}

fn refused(refusal: Diagnostic) -> Diagnostics {
    Diagnostics {
        sources: SourceMap::default(),
        list: vec![refusal],
        more: false,
    }
}
