//! One firing of a kernel, in memory of its own.
#![expect(
    unsafe_code,
    reason = "hands memory to kernels as raw ports, which is what kernels take"
)]

use zbmd_ir::DType;
use zbmd_op::kernel::{CallShape, Io, Kernel, KernelFault, RawPort, Scratch};

/// Bytes that are aligned for every dtype.
#[derive(Clone, Debug)]
pub(crate) struct PortMemory {
    words: Vec<u64>,
    len: usize,
    dtype: DType,
}

impl PortMemory {
    pub(crate) fn new(bytes: usize, dtype: DType) -> Self {
        Self {
            words: vec![0; bytes.div_ceil(8)],
            len: bytes,
            dtype,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }

    fn raw(&mut self) -> RawPort {
        RawPort {
            ptr: self.words.as_mut_ptr().cast(),
            bytes: self.len,
            dtype: self.dtype,
        }
    }
}

/// One cache line: kernels are promised scratch memory aligned to 64 bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// The ports of one firing, without those of state pairs, which are `states`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Call {
    pub(crate) inputs: Vec<PortMemory>,
    pub(crate) outputs: Vec<PortMemory>,
    pub(crate) states: Vec<PortMemory>,
}

impl Call {
    /// Runs one firing: reads inputs and states, writes outputs and states.
    pub(crate) fn fire(&mut self, kernel: &dyn Kernel) -> Result<(), KernelFault> {
        let shape = CallShape {
            firings: 1,
            inputs: self.inputs.len() as u16,
            outputs: self.outputs.len() as u16,
            states: self.states.len() as u16,
            over: false,
        };
        let memories = self.inputs.iter_mut().chain(&mut self.outputs);
        let ports: Vec<RawPort> = memories
            .chain(&mut self.states)
            .map(PortMemory::raw)
            .collect();
        let scratch_bytes = kernel.scratch_bytes();
        let mut lines = vec![Line([0; 64]); scratch_bytes.div_ceil(64)];
        let scratch = Scratch(lines.as_mut_ptr().cast(), scratch_bytes);
        // SAFETY: `ports` holds the counted ports, each in an allocation of its own that is as long as it says,
        // initialised, aligned to 8 bytes and borrowed by nobody else while the call lasts; so is the scratch memory,
        // which `Line` aligns to 64 bytes.
        let mut io = unsafe { Io::new(&shape, ports.as_ptr(), &scratch) };
        kernel.fire(&mut io)
    }
}
