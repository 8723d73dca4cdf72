//! What is measured and recorded of a run, and how it is reported. Must not know workers or supervision.

pub mod exposition;
pub mod live;
pub(crate) mod measure;
pub mod report;
pub(crate) mod trace;
