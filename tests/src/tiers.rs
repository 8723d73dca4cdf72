//! Models whose weights do not fit a device's memory, for tests and benches of tiers.
//!
//! Panics where something fails: callers are tests, and the message is all that is wanted.

use std::path::Path;

use zbmd_backends::devices::uniform;
use zbmd_backends::op::Registry;
use zbmd_compiler::{CompileOptions, Compiled, Diagnostics, Losses, MachineChoice, compile_str};
use zbmd_ir::{Machine, Tier};

/// What the tier of a test sends in a second.
pub const TIER_BYTES_PER_S: u64 = 2_000_000_000;

/// Layers of products with square matrices, one after the other.
#[derive(Clone, Debug)]
pub struct Layers {
    /// Rows of an input.
    pub rows: usize,
    /// Rows and columns of each matrix.
    pub width: usize,
    /// One product each; so many in a row.
    pub count: usize,
    /// Whether layers are products of integers instead, whose kernels add up their weights.
    pub quantised: bool,
}

impl Layers {
    /// Bytes of all matrices.
    pub fn weight_bytes(&self) -> u64 {
        let element_bytes = if self.quantised { 1 } else { 4 };
        (element_bytes * self.width * self.width * self.count) as u64
    }

    /// The model; its matrices are written to the folder.
    ///
    /// # Panics
    /// If the folder cannot be written to.
    pub fn write(&self, folder: &Path) -> String {
        let mut rng = fastrand::Rng::with_seed(self.width as u64);
        let mut actors = String::new();
        let mut channels = String::new();
        let mut from = "in".to_owned();

        for layer in 0..self.count {
            let name = format!("l{layer}");
            let file = format!("w{layer}.npy");
            let elements = self.width * self.width;

            if self.quantised {
                let bytes: Vec<u8> = (0..elements)
                    .map(|_| rng.u8(0..9).wrapping_sub(4))
                    .collect();
                write_npy(&folder.join(&file), "|i1", self.width, &bytes);
                actors += &format!(
                    "\"{name}\": NnQLinearMatMul(a_scale: 0.05, a_zero: 0, b: Npy(\"{file}\"), b_scale: 0.02, b_zero: 0, \
                     y_scale: 0.05, y_zero: 0),\n"
                );
            } else {
                let scale = 2.0 / (self.width as f32).sqrt();
                let bytes: Vec<u8> = (0..elements)
                    .flat_map(|_| ((rng.f32() - 0.5) * scale).to_le_bytes())
                    .collect();
                write_npy(&folder.join(&file), "<f4", self.width, &bytes);
                actors += &format!("\"{name}\": NnMatMul(y: Npy(\"{file}\")),\n");
            }

            channels += &format!("(from: \"{from}\", to: [\"{name}\"]),\n");
            from = name;
        }

        channels += &format!("(from: \"{from}\", to: [\"out\"]),\n");
        let dtype = if self.quantised { "i8" } else { "f32" };
        format!(
            "Model(name: \"layers\", sources: {{ \"in\": Stream(dtype: {dtype}, shape: [{}, {}]) }},\n\
             actors: {{\n{actors}}}, channels: [\n{channels}], sinks: {{ \"out\": Stream() }})\n",
            self.rows, self.width
        )
    }
}

/// Writes a square matrix in NumPy's format.
fn write_npy(path: &Path, dtype: &str, width: usize, bytes: &[u8]) {
    let header =
        format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({width}, {width}), }}");
    // The header ends with a line break, at a multiple of 64.
    let total = (10 + header.len() + 1).next_multiple_of(64);
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend_from_slice(&((total - 10) as u16).to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.resize(total - 1, b' ');
    file.push(b'\n');
    file.extend_from_slice(bytes);
    std::fs::write(path, file).expect("the folder can be written to");
}

/// So many CPU devices with this memory, each with a tier.
pub fn machine(devices: usize, memory_bytes: u64) -> Machine {
    let mut machine = uniform(devices);
    for device in machine.devices.iter_mut() {
        device.memory_bytes = memory_bytes;
    }
    let tier = Tier {
        memory_bytes: 1 << 40,
        bytes_per_s: TIER_BYTES_PER_S,
    };
    machine.tiers = machine.devices.keys().map(|id| (id, tier)).collect();
    machine
}

/// Compiles a model whose files are in the folder.
///
/// # Errors
/// What is wrong with the model or the machine.
pub fn compile(
    model: &str,
    folder: &Path,
    machine: Machine,
    contingencies: Losses,
    registry: &Registry,
) -> Result<Compiled, Diagnostics> {
    let options = CompileOptions {
        registry: registry.clone(),
        machine: MachineChoice::Given(machine),
        contingencies,
        ..CompileOptions::default()
    };
    compile_str("layers.ron", model, folder, &options)
}
