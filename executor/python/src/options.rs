//! Keyword arguments that say how to run: the same for `Bundle.run` and `Bundle.start`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString};
use zbmd_executor::{Engine, Isolation, RunOptions, Supervised};

use crate::errors::{FileError, usage};
use crate::worker::Launcher;

/// How to run, and what must live as long as the run.
pub(crate) struct Options {
    pub(crate) run: RunOptions,
    pub(crate) launcher: Option<Launcher>,
}

impl Options {
    /// What the keywords say, and for the rest the defaults.
    pub(crate) fn of(
        py: Python<'_>,
        engine: &Engine,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut run = RunOptions::default();
        let mut isolation = "threads".to_owned();
        let mut worker: Option<PathBuf> = None;
        for (key, value) in keywords.into_iter().flatten() {
            let key = key.cast_into::<PyString>()?;
            match key.to_str()? {
                "iterations" => run.iterations = value.extract()?,
                "pad" => run.pad = value.extract()?,
                "isolation" => isolation = value.extract()?,
                "worker" => worker = value.extract()?,
                "supervision" => {
                    let text: Option<String> = value.extract()?;
                    let declared = text.map(|text| Supervised::from_text(&text, engine));
                    run.supervised = declared
                        .transpose()
                        .map_err(|e| FileError::new_err(e.to_string()))?;
                }
                "standby" => run.standby = value.extract()?,
                "checksums" => run.checksums = value.extract()?,
                "pin" => run.pin = value.extract()?,
                "lock_memory" => run.lock_memory = value.extract()?,
                "queue_bytes" => run.queue_bytes = value.extract()?,
                other => return Err(usage(format!("there is no option `{other}`"))),
            }
        }
        let launcher = match worker {
            None if isolation != "threads" => Some(Launcher::new(py)?),
            _ => None,
        };
        let program = worker.or_else(|| launcher.as_ref().map(|l| l.program().to_owned()));
        run.isolation = Isolation::named(&isolation, program).ok_or_else(|| {
            usage(format!(
                "isolation is `{isolation}`: threads, processes or gpus"
            ))
        })?;
        Ok(Self { run, launcher })
    }
}

/// The entries of a mapping, which need not be a `dict`; none if it was left out.
pub(crate) fn entries<'py, T>(
    mapping: Option<Bound<'py, PyMapping>>,
) -> PyResult<BTreeMap<String, T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    let mut entries = BTreeMap::new();
    if let Some(mapping) = mapping {
        for entry in mapping.items()? {
            let (key, value): (String, Bound<'py, PyAny>) = entry.extract()?;
            entries.insert(key, value.extract().map_err(Into::into)?);
        }
    }
    Ok(entries)
}
