//! What to compile for, in the words of a command line: the devices of this computer, like ones, or a machine file.
//! The one part of the library that asks drivers for GPUs.

use std::path::Path;

use zbmd_backends::gpu::BACKENDS;

use crate::codes::Code;
use crate::compile::{CompileOptions, MachineChoice};
use crate::diag::{Diagnostic, Diagnostics};
use crate::files;
use crate::machine;
use crate::source::SourceMap;

impl CompileOptions {
    /// Compiles for a machine and, if asked, the GPUs of this computer besides. What GPUs that are here can do goes
    /// into the registry; a machine file says its GPUs itself.
    ///
    /// # Errors
    /// GPUs that are asked for and not here.
    pub fn set_target(&mut self, machine: MachineChoice, gpus: bool) -> Result<(), Diagnostics> {
        if let MachineChoice::File(path) = &machine {
            // Drivers are asked only where it matters: that takes a while.
            let found = if names_gpus(path) {
                zbmd_backends::devices::gpus()
            } else {
                Ok(Vec::new())
            };
            // A bundle for another computer's GPUs is made for what is common.
            for gpu in found.unwrap_or_default() {
                self.registry.set_caps(&gpu.device.name, gpu.caps);
            }
        }
        let cpus = match machine {
            MachineChoice::Detect if gpus => machine::detect(),
            MachineChoice::Uniform(n) if gpus => machine::uniform(n),
            MachineChoice::Given(machine) if gpus => machine,
            machine => {
                self.machine = machine;
                return Ok(());
            }
        };
        let found = zbmd_backends::devices::gpus().and_then(|gpus| match gpus.is_empty() {
            true => Err("the driver finds none that zbmd can use".to_owned()),
            false => Ok(gpus),
        });
        let gpus = found.map_err(|why| no_gpus(&why))?;
        for gpu in &gpus {
            self.registry.set_caps(&gpu.device.name, gpu.caps);
        }
        self.machine = MachineChoice::Given(zbmd_backends::devices::with_gpus(cpus, &gpus));
        Ok(())
    }
}

/// Whether a machine file speaks of GPUs, before anybody has read it.
pub(crate) fn names_gpus(machine: &Path) -> bool {
    let speaks = |text: String| BACKENDS.iter().any(|backend| text.contains(backend));
    let bytes = files::read(machine, SourceMap::MAX_FILE_BYTES as u64);
    bytes.is_ok_and(|bytes| speaks(String::from_utf8_lossy(&bytes).into_owned()))
}

fn no_gpus(why: &str) -> Diagnostics {
    let diagnostic = Diagnostic::new(Code::E0507, format!("no GPUs: {why}"))
        .help("leave `--gpus` away, or install a driver: `zbmdc devices` says what is here");
    Diagnostics {
        sources: SourceMap::default(),
        list: vec![diagnostic],
        more: false,
    }
}
