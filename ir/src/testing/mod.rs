//! For tests of this and other crates: hand-built valid programs, and mutants of any program.

pub mod mutate;
pub mod programs;
mod reseal;

pub use reseal::reseal;
