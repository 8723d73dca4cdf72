//! For tests of this and other crates: hand-built valid programs, mutants of any program, and hostile ones.

pub mod hostile;
pub mod mutate;
pub mod parts;
pub mod programs;
mod reseal;
pub mod tree;

pub use reseal::reseal;
