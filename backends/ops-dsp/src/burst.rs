//! Ops on bursts.

use zbmd_ir::burst::{BurstHeader, BurstLayout, HEADER_BYTES};
use zbmd_ir::{DType, InPlace, TokenType, limits};
use zbmd_op::args::Args;
use zbmd_op::entry::{Entry, in_port, out_port};
use zbmd_op::kernel::{Io, Kernel, KernelFault};
use zbmd_op::{OpDoc, OpError, ResolvedOp};

pub(super) const OPS: [Entry; 1] = [Entry {
    name: "BurstIndex",
    types: "x:any{} -> y:any{}",
    positional: &["hop"],
    doc: OpDoc {
        summary: "adds where in the stream each firing's bursts begin: an actor knows it within its firing only",
        params: &[
            ("hop", "samples of the stream that one firing stands for"),
            ("bursts", "bursts of one firing (default 1)"),
            (
                "offset",
                "index of the sample at which the first firing's window begins (default 0); negative where windows begin \
                 with history",
            ),
        ],
        ports: "`x`: bursts of any items -> `y`: the same with other indexes, `bursts` a firing; state `start`: i64",
        example: "BurstIndex(hop: 2048, bursts: 16, offset: -256)",
    },
    make: burst_index,
}];

fn burst_index(args: &Args<'_>) -> Result<ResolvedOp, OpError> {
    let hop = args.uint("hop", 1, limits::MAX_RATE)?;
    let bursts = args.uint_or("bursts", 1, 1, limits::MAX_RATE)?;
    let offset = args.int_or("offset", 0)?;
    let token = args.x()?;
    let layout = BurstLayout::of(token).ok_or_else(|| {
        let help = "it takes bursts: `shape: Burst(max: n)`";
        zbmd_op::args::input_error("x", format!("is {token}"), help)
    })?;

    let kernel = BurstIndexKernel {
        hop: hop as i64,
        bursts: bursts as usize,
        token_bytes: layout.token_bytes,
    };
    let input = in_port("x", token.clone(), bursts, bursts);
    let output = out_port("y", token.clone(), bursts);
    let start = TokenType::scalar(DType::I64);
    Ok(
        ResolvedOp::new(vec![input], vec![output], move || Ok(kernel))
            .with_in_place_pairs([InPlace::whole(0, 0)])
            .state("start", start, offset.to_ne_bytes().to_vec()),
    )
}

#[derive(Clone, Copy)]
struct BurstIndexKernel {
    hop: i64,
    /// Of one firing.
    bursts: usize,
    token_bytes: usize,
}

impl Kernel for BurstIndexKernel {
    fn fire(&self, io: &mut Io<'_>) -> Result<(), KernelFault> {
        let start = &mut io.state::<i64>(0)[0];
        let input = match io.over(0) {
            Some(_) => None,
            None => Some(io.input_bytes(0)),
        };
        let output = io.output_bytes(0);
        if let Some(input) = input {
            output.copy_from_slice(input);
        }

        for firing in output.chunks_exact_mut(self.bursts * self.token_bytes) {
            for token in firing.chunks_exact_mut(self.token_bytes) {
                let header = BurstHeader::read(token);
                // An empty burst stays as it is: it belongs to no sample.
                if header.length > 0 {
                    let moved = BurstHeader {
                        first: header.first.wrapping_add(*start),
                        ..header
                    };
                    token[..HEADER_BYTES].copy_from_slice(&moved.to_bytes());
                }
            }
            *start = start.wrapping_add(self.hop);
        }
        Ok(())
    }
}
