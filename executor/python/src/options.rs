//! Keyword arguments that say how to run: the same for `Bundle.run` and `Bundle.start`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString};
use zbmd_executor::{Engine, Isolation, RunOptions, Supervised};

use crate::errors::{FileError, usage_error};
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
        let mut run_options = RunOptions::default();
        let mut isolation = "threads".to_owned();
        let mut worker: Option<PathBuf> = None;
        for (key, value) in keywords.into_iter().flatten() {
            let option_name = key.cast_into::<PyString>()?;
            match option_name.to_str()? {
                "iterations" => run_options.iterations = value.extract()?,
                "pad" => run_options.pad = value.extract()?,
                "isolation" => isolation = value.extract()?,
                "worker" => worker = value.extract()?,
                "supervision" => {
                    let text: Option<String> = value.extract()?;
                    let supervised = text.map(|text| Supervised::from_text(&text, engine));
                    run_options.supervised = supervised
                        .transpose()
                        .map_err(|error| FileError::new_err(error.to_string()))?;
                }
                "standby" => run_options.standby = value.extract()?,
                "checksums" => run_options.checksums = value.extract()?,
                "pin" => run_options.pin = value.extract()?,
                "lock_memory" => run_options.lock_memory = value.extract()?,
                "realtime" => run_options.realtime = value.extract()?,
                "queue_bytes" => run_options.queue_bytes = value.extract()?,
                other => return Err(usage_error(format!("there is no option `{other}`"))),
            }
        }

        let launcher = match worker {
            None if isolation != "threads" => Some(Launcher::new(py)?),
            _ => None,
        };

        let worker_program = worker.or_else(|| {
            launcher
                .as_ref()
                .map(|launcher| launcher.program().to_owned())
        });
        run_options.isolation = Isolation::named(&isolation, worker_program).ok_or_else(|| {
            usage_error(format!(
                "isolation is `{isolation}`: threads, processes or gpus"
            ))
        })?;
        Ok(Self {
            run: run_options,
            launcher,
        })
    }
}

/// The entries of a mapping, which need not be a `dict`; none if it was left out.
pub(crate) fn mapping_entries<'py, T>(
    mapping: Option<Bound<'py, PyMapping>>,
) -> PyResult<BTreeMap<String, T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    let mut mapping_entries = BTreeMap::new();
    if let Some(mapping) = mapping {
        for entry in mapping.items()? {
            let (key, value): (String, Bound<'py, PyAny>) = entry.extract()?;
            mapping_entries.insert(key, value.extract().map_err(Into::into)?);
        }
    }
    Ok(mapping_entries)
}
