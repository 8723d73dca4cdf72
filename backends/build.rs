//! Gives the crate a checksum over the sources of all kernels: what was measured with other kernels is measured again.

use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

/// The crates whose code is timed, by their folders.
const KERNEL_CRATES: [&str; 8] = [
    "src",
    "op/src",
    "ops-dsp/src",
    "ops-nn/src",
    "fft/src",
    "gpu-ir/src",
    "cuda/src",
    "vulkan/src",
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut files = Vec::new();
    for folder in KERNEL_CRATES {
        println!("cargo::rerun-if-changed={folder}");
        collect(Path::new(folder), &mut files)?;
    }
    files.sort();

    let mut checksum = DefaultHasher::new();
    for path in files {
        checksum.write(path.as_os_str().as_encoded_bytes());
        checksum.write(&fs::read(&path)?);
    }
    println!(
        "cargo::rustc-env=ZBMD_KERNEL_CODE={:016x}",
        checksum.finish()
    );
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => collect(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}
