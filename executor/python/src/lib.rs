//! The Python package `zbmd`: models are compiled, bundles opened and run on NumPy arrays.
//!
//! Arrays come in and go out without copies: a run reads the caller's memory, and writes into arrays that NumPy made.
//! Whatever waits or computes gives up the interpreter's lock, and looks for signals now and then. The module is built
//! for Python's stable ABI, whose oldest version with buffers is that of 3.11; NumPy itself is called as any Python
//! program would, so nothing depends on its ABI. `zbmd.pyi` has the types and the documentation.
//!
//! Must not know how models are scheduled or calendars replayed: it only translates.

mod array;
mod bundle;
mod caller;
mod compile;
mod errors;
mod options;
mod probe;
mod run;
mod session;
mod worker;

/// Statically scheduled dataflow: compiles streaming models into calendars, and runs them.
#[pyo3::pymodule]
#[pyo3(name = "zbmd")]
mod module {
    #[pymodule_export]
    use crate::bundle::{Bundle, Stream, load};
    #[pymodule_export]
    use crate::caller::Caller;
    #[pymodule_export]
    use crate::compile::compile;
    #[pymodule_export]
    use crate::errors::{
        CompileError, Error, FaultError, FileError, GaveUpError, RefusedError, UsageError,
    };
    #[pymodule_export]
    use crate::probe::Probe;
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::worker::_serve_if_worker;
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "its name in Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
