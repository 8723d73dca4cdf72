//! Ops for signals: sources, filters, transforms, expressions. Each file holds some ops with their kernels.
//!
//! Every kernel gives the same bits for n firings in one call as for n calls; the tests of the whole catalogue hold all
//! of them to it.

mod branches;
mod burst;
mod collective;
mod convert;
mod design;
mod elementwise;
mod expr;
mod expr_kernels;
mod fft;
mod fir;
mod frame;
mod generate;
mod iir;
mod matrix;
mod route;

use zbmd_op::entry::Entry;

/// All of them.
pub fn entries() -> impl Iterator<Item = Entry> {
    burst::OPS
        .into_iter()
        .chain(collective::OPS)
        .chain(convert::OPS)
        .chain(elementwise::OPS)
        .chain(fft::OPS)
        .chain(fir::OPS)
        .chain(frame::OPS)
        .chain(generate::OPS)
        .chain(iir::OPS)
        .chain(matrix::OPS)
        .chain(route::OPS)
}
