//! Workers in processes: a worker is started as a program without arguments, which a module of Python is not. So a
//! script is written that starts this interpreter again, and has this very module do a worker's work.

use std::io::Write;
use std::path::Path;

use pyo3::intern;
use pyo3::prelude::*;
use tempfile::TempPath;

use crate::errors::FileError;

/// The script; it is gone with this.
pub(crate) struct Launcher {
    script: TempPath,
}

impl Launcher {
    /// Written anew for each run.
    pub(crate) fn new(py: Python<'_>) -> PyResult<Self> {
        let sys = py.import(intern!(py, "sys"))?;
        let interpreter: String = sys.getattr(intern!(py, "executable"))?.extract()?;
        let module_paths = sys.getattr(intern!(py, "path"))?.repr()?.to_string();
        let worker_code = format!(
            "import sys; sys.path[:] = {module_paths}; import zbmd; zbmd._serve_if_worker()"
        );
        let script_text = format!(
            "#!/bin/sh\nexec {} -c {}\n",
            shell_quoted(&interpreter),
            shell_quoted(&worker_code)
        );
        let script = write_script(&script_text).map_err(|error| {
            FileError::new_err(format!(
                "cannot write a script that starts workers: {error}"
            ))
        })?;
        Ok(Self { script })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.script
    }
}

/// One word for the shell.
fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn write_script(text: &str) -> std::io::Result<TempPath> {
    let mut file_builder = tempfile::Builder::new();
    file_builder.prefix("zbmd-worker-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file_builder.permissions(std::fs::Permissions::from_mode(0o700));
    }
    let mut script_file = file_builder.tempfile()?;
    script_file.write_all(text.as_bytes())?;
    // Closed: a file that is open for writing cannot be run.
    Ok(script_file.into_temp_path())
}

/// Does a worker's work, if this process was started as one, and then ends it.
#[pyfunction]
pub(crate) fn _serve_if_worker(py: Python<'_>) {
    py.detach(|| {
        #[cfg(target_os = "linux")]
        zbmd_executor::serve_if_worker(&zbmd_backends::standard_registry());
    });
}
