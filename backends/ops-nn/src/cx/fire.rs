//! The kernel around a body: walks over the firings of a call.

use std::sync::Arc;

use bytes::Bytes;
use zbmd_ir::DType;

use super::{Body, Inputs, Tensors};
use zbmd_op::kernel::{Io, Kernel, KernelFault};

/// Where an operand's bytes are.
#[derive(Clone)]
pub(super) enum Source {
    Missing,
    Port { port: usize, token_bytes: usize },
    Const(Bytes, DType),
}

/// Bytes aligned for their elements: as they came, or copied once.
pub(super) enum Aligned {
    AsGiven(Bytes),
    Copied {
        words: Arc<[u64]>,
        byte_count: usize,
    },
}

impl Aligned {
    fn new(bytes: Bytes, dtype: DType) -> Self {
        let address = bytes.as_ptr() as usize;
        if address.is_multiple_of(dtype.align_bytes() as usize) {
            return Self::AsGiven(bytes);
        }
        let byte_count = bytes.len();
        // Words of 8 bytes are aligned for elements of any type.
        let mut words = vec![0_u64; byte_count.div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..byte_count].copy_from_slice(&bytes);
        Self::Copied {
            words: words.into(),
            byte_count,
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::AsGiven(bytes) => bytes,
            Self::Copied { words, byte_count } => &bytemuck::cast_slice(words)[..*byte_count],
        }
    }
}

/// Where a body finds an operand.
pub(super) enum Place {
    Missing,
    Port { port: usize, token_bytes: usize },
    Const(Aligned),
}

impl Place {
    fn of(source: Source) -> Self {
        match source {
            Source::Missing => Place::Missing,
            Source::Port { port, token_bytes } => Place::Port { port, token_bytes },
            Source::Const(bytes, dtype) => Place::Const(Aligned::new(bytes, dtype)),
        }
    }
}

/// The kernel around a body.
pub(super) struct Fire {
    body: Arc<dyn Body>,
    places: Vec<Place>,
    /// Bytes of a token of each output.
    token_bytes: Vec<usize>,
    batches: bool,
}

impl Fire {
    pub(super) fn new(body: Arc<dyn Body>, sources: Vec<Source>, token_bytes: Vec<usize>) -> Self {
        // A constant does not grow with the firings, so a body that lives from its first operand cannot batch then.
        let batches = body.batches() && matches!(sources.first(), Some(Source::Port { .. }));
        Self {
            body,
            places: sources.into_iter().map(Place::of).collect(),
            token_bytes,
            batches,
        }
    }

    /// The operand that comes by a port.
    fn operand_of_port(&self, wanted: usize) -> Option<usize> {
        let mut places = self.places.iter();
        places.position(|place| matches!(place, Place::Port { port, .. } if *port == wanted))
    }
}

impl Kernel for Fire {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let firings = io.firings();
        let calls = if self.batches { 1 } else { firings };
        // A body that batches sees the tokens of all firings as one long tensor, and runs once.
        let call_firings = if self.batches { firings } else { 1 };

        let mut later_outputs: [&mut [u8]; Io::MAX_MUT_PORTS] =
            std::array::from_fn(|_| Default::default());
        let used_outputs = later_outputs.iter_mut().take(self.token_bytes.len());
        for (o, output) in used_outputs.enumerate() {
            *output = io.output_bytes(o);
        }
        let over = io.over(0).and_then(|port| self.operand_of_port(port));
        let scratch: &mut [u8] = match self.scratch_bytes() {
            0 => &mut [],
            byte_count => &mut io.scratch::<u8>()[..byte_count],
        };

        for call in 0..calls {
            let mut outs: [&mut [u8]; Io::MAX_MUT_PORTS] =
                std::array::from_fn(|_| Default::default());
            for (o, token_bytes) in self.token_bytes.iter().enumerate() {
                let output = std::mem::take(&mut later_outputs[o]);
                let (own_output, later) = output.split_at_mut(token_bytes * call_firings);
                outs[o] = own_output;
                later_outputs[o] = later;
            }
            let mut tensors = Tensors {
                ins: Inputs::Io {
                    io,
                    places: &self.places,
                    call,
                    call_firings,
                },
                outs,
                over,
                scratch: &mut scratch[..],
            };
            self.body.run(&mut tensors);
        }
        Ok(())
    }

    fn scratch_bytes(&self) -> usize {
        self.body.scratch_bytes()
    }
}
