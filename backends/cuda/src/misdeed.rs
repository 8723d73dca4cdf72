//! Kernels with errors that the catalogue's do not have: for tests of what happens to a worker whose device fails.
#![expect(unsafe_code, reason = "launches kernels that are wrong on purpose")]

use std::sync::Arc;

use super::device::CudaDevice;
use super::driver::{Image, Launch};
use super::error::Fault;

/// What a kernel does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdeed {
    /// It writes to an address without memory.
    IllegalAddress,
    /// It traps.
    Trap,
    /// It never ends. Not for the device in software, where the test would not end either.
    Endless,
}

impl Misdeed {
    fn body(self) -> &'static str {
        match self {
            Self::IllegalAddress => {
                "\t.reg .b32 %r<1>;\n\t.reg .b64 %l<1>;\n\tmov.b32 %r0, 1;\n\tmov.b64 %l0, 64;\n\tst.global.b32 [%l0], %r0;\n\tret;"
            }
            Self::Trap => "\ttrap;\n\tret;",
            Self::Endless => "again:\n\tbra again;\n\tret;",
        }
    }
}

impl CudaDevice {
    /// Puts a kernel with an error into the queue, whoever else drives the device. Later calls report what it did.
    ///
    /// # Errors
    /// A driver's fault before that.
    pub fn misbehave(self: &Arc<Self>, misdeed: Misdeed) -> Result<(), Fault> {
        let text = format!(
            ".version 7.0\n.target sm_70\n.address_size 64\n\n.visible .entry misdeed(\n)\n.reqntid 32, 1, 1\n{{\n{}\n}}\n",
            misdeed.body()
        );
        let function = self.call(|driver| driver.load_function(Image::Ptx(&text), "misdeed"))?;
        let launch = Launch {
            function,
            groups: 1,
            local: 32,
            pointers: Box::default(),
            words: Box::default(),
        };

        self.call(|driver| {
            let graph = driver.create_graph()?;
            // SAFETY: the graph is new, and what is made of it is never given back: the kernel is in the queue, which may
            // never be empty again. The kernel has no parameters. What it does wrong, the device's memory
            // protection ends, and the host has no memory there.
            unsafe {
                driver.add_kernel_node(graph, &[], &launch)?;
                let exec = driver.instantiate_graph(graph)?;
                driver.upload_graph(exec)?;
                let launched = driver.launch_graph(exec);
                driver.destroy_graph(graph);
                launched
            }
        })
    }
}
