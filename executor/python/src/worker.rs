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
        let python: String = sys.getattr(intern!(py, "executable"))?.extract()?;
        let path = sys.getattr(intern!(py, "path"))?.repr()?.to_string();
        let code =
            format!("import sys; sys.path[:] = {path}; import zbmd; zbmd._serve_if_worker()");
        let text = format!("#!/bin/sh\nexec {} -c {}\n", quoted(&python), quoted(&code));
        let failed = |error: std::io::Error| {
            FileError::new_err(format!(
                "cannot write a script that starts workers: {error}"
            ))
        };
        let script = write(&text).map_err(failed)?;
        Ok(Self { script })
    }

    pub(crate) fn program(&self) -> &Path {
        &self.script
    }
}

/// One word for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn write(text: &str) -> std::io::Result<TempPath> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("zbmd-worker-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o700));
    }
    let mut file = builder.tempfile()?;
    file.write_all(text.as_bytes())?;
    // Closed: a file that is open for writing cannot be run.
    Ok(file.into_temp_path())
}

/// Does a worker's work, if this process was started as one, and then ends it.
#[pyfunction]
pub(crate) fn _serve_if_worker(py: Python<'_>) {
    py.detach(|| {
        #[cfg(target_os = "linux")]
        zbmd_executor::serve_if_worker(&zbmd_backends::op::Registry::standard());
    });
}
