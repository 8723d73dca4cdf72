//! What the cross-crate tests and benches share: random graphs, an op that hashes its windows, machines, data files.

pub mod actors;
pub mod bundles;
pub mod chain;
pub mod child_run;
pub mod cpu_time;
pub mod data;
pub mod dsa;
pub mod dsa_cuts;
pub mod gates;
pub mod gpu;
pub mod harness;
pub mod losses;
pub mod machines;
pub mod mix;
pub mod models;
pub mod modes;
pub mod onnx;
pub mod operator_graphs;
pub mod random;
pub mod run;
pub mod sdf;
pub mod sets;
pub mod signal;
pub mod sim;
pub mod stepper;
pub mod timed;
