//! NVIDIA's assembler: texts of kernels to objects for given architectures. The one part of the compiler that starts
//! another program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use zbmd_backends::cuda;

use crate::codes::Code;
use crate::diag::Diagnostic;

/// Names the assembler, where it is not on the path.
const PTXAS: &str = "ZBMD_PTXAS";

/// For which architectures kernels of CUDA devices are assembled, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubins {
    /// As the assembler calls them, such as `sm_90`.
    pub archs: Vec<String>,
    /// The assembler.
    pub ptxas: PathBuf,
}

impl Cubins {
    /// With the assembler that `ZBMD_PTXAS` names, or the one on the path.
    pub fn new(archs: Vec<String>) -> Self {
        let named = std::env::var_os(PTXAS).unwrap_or_else(|| OsString::from("ptxas"));
        Self {
            archs,
            ptxas: named.into(),
        }
    }
}

/// Objects of texts, which have an architecture and a key each.
///
/// # Errors
/// An architecture that there is not, an assembler that cannot be run, or what it says of a text.
pub(crate) fn all(
    cubins: &Cubins,
    texts: &BTreeMap<(String, u128), String>,
) -> Result<Vec<(String, u128, Vec<u8>)>, Diagnostic> {
    if let Some(arch) = cubins
        .archs
        .iter()
        .find(|arch| cuda::capability(arch).is_none())
    {
        let what = format!("`{arch}` is no architecture of a CUDA device");
        let help = "`sm_90` is that of capability 9.0: `zbmdc devices` says which a device has";
        return Err(Diagnostic::new(Code::E0507, what).help(help));
    }
    let folder = Folder::new().map_err(|error| {
        let what = format!("no folder for the assembler's files: {error}");
        Diagnostic::new(Code::E0704, what).help("make room for temporary files, or set TMPDIR")
    })?;
    let wanted: Vec<(&(String, u128), &String)> = texts.iter().collect();
    let (next, made) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || -> Result<(), Diagnostic> {
        while let Some(((arch, key), text)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let object = one(&cubins.ptxas, &folder.0, arch, *key, text);
            // Others need not go on.
            let object = object.inspect_err(|_| next.store(wanted.len(), Ordering::Relaxed))?;
            let mut made = made.lock().expect("nobody panics with it");
            made.push((arch.clone(), *key, object));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let all: Vec<_> = (0..threads.min(wanted.len()))
            .map(|_| scope.spawn(work))
            .collect();
        all.into_iter()
            .try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    Ok(made.into_inner().expect("nobody panics with it"))
}

fn one(
    ptxas: &Path,
    folder: &Path,
    arch: &str,
    key: u128,
    text: &str,
) -> Result<Vec<u8>, Diagnostic> {
    let from = folder.join(format!("{arch}-{key:032x}.ptx"));
    let to = from.with_extension("cubin");
    let run = || {
        std::fs::write(&from, text)?;
        let run = Command::new(ptxas)
            .arg("-arch")
            .arg(arch)
            .arg("-o")
            .args([&to, &from])
            .output()?;
        let object = if run.status.success() {
            Some(std::fs::read(&to)?)
        } else {
            None
        };
        Ok(object.ok_or(run.stderr))
    };
    let object = run().map_err(|error: std::io::Error| {
        let what = format!("the assembler `{}` cannot be run: {error}", ptxas.display());
        Diagnostic::new(Code::E0701, what).help(
            "install NVIDIA's `ptxas` (the package nvidia-cuda-nvcc has it) and put it on the path or into ZBMD_PTXAS; \
             without `--cubin` the driver compiles the kernels when a run starts",
        )
    })?;
    object.map_err(|said| {
        let said = String::from_utf8_lossy(&said);
        let what = format!("`ptxas` refuses a kernel for {arch}: {}", said.trim());
        Diagnostic::new(Code::E0507, what)
            .help("take an architecture that this `ptxas` knows, of capability 7.0 or more")
    })
}

/// A folder of this call's own.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("zbmdc-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // Not one that somebody else has put there.
        std::fs::create_dir(&folder).map(|()| Self(folder))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is for whoever clears such folders.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
