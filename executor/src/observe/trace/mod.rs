//! What every worker really does, recorded while it does it: `RunOptions::trace` and `RunOptions::profile`.
//!
//! Each worker writes words into a ring of its own in the epoch's memory ([`crate::transport::trace_ring`]), so that
//! it works for threads and processes alike. One thread of the supervising process ([`writer`]) takes them out, into a file and into
//! histograms. A worker never waits for it: where its ring has no room for a period, that period is not recorded, and
//! counted. What words and files mean is in [`zbmd_ir::trace`].

mod profile;
mod writer;

pub(crate) use self::writer::Tracer;
