//! NVIDIA's assembler: kernels as text to objects for given architectures. The only part of the compiler that starts
//! another program.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use zbmd_backends::kernels::emit::cubins;

use crate::codes::Code;
use crate::diag::Diagnostic;

/// The environment variable that names the assembler, where it is not on the path.
const PTXAS_VARIABLE: &str = "ZBMD_PTXAS";

/// For which architectures kernels of CUDA devices are assembled, and by what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubins {
    /// Architectures as the assembler calls them, such as `sm_90`.
    pub archs: Vec<String>,
    /// The assembler.
    pub ptxas: PathBuf,
}

/// A kernel for an architecture.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CubinText {
    pub(crate) arch: String,
    /// The key of the kernel's text.
    pub(crate) key: u128,
}

/// An assembled kernel.
pub(crate) struct Cubin {
    pub(crate) arch: String,
    pub(crate) key: u128,
    pub(crate) object: Vec<u8>,
}

impl Cubins {
    /// With the assembler that `ZBMD_PTXAS` names, or the one on the path.
    pub fn new(archs: Vec<String>) -> Self {
        let named_assembler = std::env::var_os(PTXAS_VARIABLE);
        Self {
            archs,
            ptxas: named_assembler
                .unwrap_or_else(|| OsString::from("ptxas"))
                .into(),
        }
    }

    /// Assembles all texts, several at a time.
    ///
    /// # Errors
    /// An unknown architecture, an assembler that cannot be run, or its message about a text.
    pub(crate) fn assemble(
        &self,
        texts: &BTreeMap<CubinText, String>,
    ) -> Result<Vec<Cubin>, Diagnostic> {
        self.check_archs()?;
        let job_folder = TemporaryFolder::new().map_err(|error| {
            let message = format!("no folder for the assembler's files: {error}");
            Diagnostic::new(Code::E0704, message)
                .help("make room for temporary files, or set TMPDIR")
        })?;

        // The assembler takes one text at a time: several of them run at once.
        let job = AssemblyJob {
            ptxas: &self.ptxas,
            folder: &job_folder.0,
            texts: texts.iter().collect(),
            next_text: AtomicUsize::new(0),
            cubins: Mutex::new(Vec::new()),
        };

        job.run_threads()?;
        Ok(job.cubins.into_inner().expect("no thread panicked"))
    }

    fn check_archs(&self) -> Result<(), Diagnostic> {
        let mut archs = self.archs.iter();
        let Some(unknown) = archs.find(|arch| cubins::capability(arch).is_none()) else {
            return Ok(());
        };
        let message = format!("`{unknown}` is not an architecture of a CUDA device");
        let help = "`sm_90` is that of capability 9.0: `zbmdc devices` says which a device has";
        Err(Diagnostic::new(Code::E0507, message).help(help))
    }
}

/// Texts that threads assemble, each taking the next one.
struct AssemblyJob<'a> {
    ptxas: &'a Path,
    folder: &'a Path,
    texts: Vec<(&'a CubinText, &'a String)>,
    next_text: AtomicUsize,
    cubins: Mutex<Vec<Cubin>>,
}

impl AssemblyJob<'_> {
    fn run_threads(&self) -> Result<(), Diagnostic> {
        // The threads only wait for processes, one for each core. The first refusal in their order is returned.
        let core_count = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..core_count.min(self.texts.len()))
                .map(|_| scope.spawn(|| self.work()))
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("no thread panics"))
        })
    }

    /// Assembles texts until there are no more, or one is refused.
    fn work(&self) -> Result<(), Diagnostic> {
        loop {
            let text_index = self.next_text.fetch_add(1, Ordering::Relaxed);
            let Some(&(kernel, text)) = self.texts.get(text_index) else {
                return Ok(());
            };

            let object = self.assemble_text(kernel, text).inspect_err(|_| {
                // The other threads need not go on.
                self.next_text.store(self.texts.len(), Ordering::Relaxed);
            })?;
            let cubin = Cubin {
                arch: kernel.arch.clone(),
                key: kernel.key,
                object,
            };

            let mut cubins = self.cubins.lock().expect("no thread panicked");
            cubins.push(cubin);
        }
    }

    fn assemble_text(&self, kernel: &CubinText, text: &str) -> Result<Vec<u8>, Diagnostic> {
        let arch = &kernel.arch;
        let assembled = self.run_assembler(kernel, text).map_err(|error| {
            let message = format!(
                "the assembler `{}` cannot be run: {error}",
                self.ptxas.display()
            );
            Diagnostic::new(Code::E0701, message).help(
                "install NVIDIA's `ptxas` (the package nvidia-cuda-nvcc has it) and put it on the path or into ZBMD_PTXAS; \
                 without `--cubin` the driver compiles the kernels when a run starts",
            )
        })?;
        assembled.map_err(|assembler_output| {
            let assembler_output = String::from_utf8_lossy(&assembler_output);
            let message = format!(
                "`ptxas` refuses a kernel for {arch}: {}",
                assembler_output.trim()
            );
            Diagnostic::new(Code::E0507, message)
                .help("take an architecture that this `ptxas` knows, of capability 7.0 or more")
        })
    }

    /// The object of a text, or what the assembler printed where it refused the text.
    fn run_assembler(
        &self,
        kernel: &CubinText,
        text: &str,
    ) -> std::io::Result<Result<Vec<u8>, Vec<u8>>> {
        // The assembler reads and writes files only. Architecture and key name a text, so no two threads share a file.
        let CubinText { arch, key } = kernel;
        let text_path = self.folder.join(format!("{arch}-{key:032x}.ptx"));
        let object_path = text_path.with_extension("cubin");
        std::fs::write(&text_path, text)?;

        let assembler_run = Command::new(self.ptxas)
            .arg("-arch")
            .arg(arch)
            .arg("-o")
            .args([&object_path, &text_path])
            .output()?;
        if assembler_run.status.success() {
            std::fs::read(&object_path).map(Ok)
        } else {
            Ok(Err(assembler_run.stderr))
        }
    }
}

/// A folder of one call's own, removed with it.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> std::io::Result<Self> {
        static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(0);
        let folder_number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder_name = format!("zbmdc-{}-{folder_number}", std::process::id());
        let folder = std::env::temp_dir().join(folder_name);

        // Fails for a folder that exists: somebody else may have put it there.
        std::fs::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // Where that fails, whatever clears temporary folders removes it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
