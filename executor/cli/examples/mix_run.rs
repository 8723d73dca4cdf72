//! A runner with ops of its own: `zbmd-run` in a few lines. The crate's tests use it with hand-built bundles.

use std::process::ExitCode;
use std::sync::Arc;

use common::TestOp;
use zbmd_backends::kernel::{Io, Kernel, KernelFault};

#[path = "../../tests/common/mod.rs"]
mod common;

struct Faulty;

impl Kernel for Faulty {
    fn fire(&self, _: &mut Io<'_>) -> Result<(), KernelFault> {
        Err(KernelFault("never works"))
    }
}

fn main() -> ExitCode {
    let mut registry = common::registry();
    registry.add(TestOp("Faulty", Box::new(|_| Arc::new(Faulty))));
    zbmd_run::main_with(registry)
}
