//! Kernels that do wrong, as none of ours must: for tests of what becomes of a worker whose device does.

use std::sync::Arc;

use super::device::{Device, Draft};
use super::driver::{Image, Launch};
use super::error::Fault;

/// What a kernel does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdeed {
    /// It writes where no memory is.
    IllegalAddress,
    /// It traps.
    Trap,
    /// It never ends. Not for a device in software, which would not either.
    Endless,
}

impl Misdeed {
    fn code(self) -> &'static str {
        match self {
            Self::IllegalAddress => {
                "\t.reg .b32 %r<1>;\n\t.reg .b64 %l<1>;\n\tmov.b32 %r0, 1;\n\tmov.b64 %l0, 64;\n\tst.global.b32 [%l0], %r0;\n\tret;"
            }
            Self::Trap => "\ttrap;\n\tret;",
            Self::Endless => "again:\n\tbra again;\n\tret;",
        }
    }
}

impl Device {
    /// Puts a kernel that does wrong into the queue, whoever else drives the device. What it does is said by later
    /// calls.
    ///
    /// # Errors
    /// A driver's fault before that.
    pub fn misbehave(self: &Arc<Self>, misdeed: Misdeed) -> Result<(), Fault> {
        let text = format!(
            ".version 7.0\n.target sm_70\n.address_size 64\n\n.visible .entry misdeed(\n)\n.reqntid 32, 1, 1\n{{\n{}\n}}\n",
            misdeed.code()
        );
        let function = self.call(|driver| driver.function(Image::Ptx(&text), "misdeed"))?;
        let (pointers, words) = (Box::default(), Box::default());
        let draft = Draft::new(self)?;
        draft.kernel(
            &[],
            &Launch {
                function,
                groups: 1,
                local: 32,
                pointers,
                words,
            },
        )?;
        let ready = draft.finish()?;
        self.call(|driver| driver.launch(ready.exec))?;
        // It is in the queue, which may never be empty again.
        std::mem::forget(ready);
        Ok(())
    }
}
