//! The data of every zbmd stage and what it means. Knows no algorithm and no device.
//!
//! # The graph
//!
//! A [`Graph`] is a synchronous dataflow graph (Lee & Messerschmitt 1987). A firing of an actor looks at one window
//! on each input port, consumes `rate` tokens from it and writes `rate` tokens to each output port. An actor is a
//! pure function of its windows; state is a self-loop [`Channel`] with initial tokens. A channel has one writer and
//! any number of readers, each with its own delay; stream positions are explained at [`Channel`]. q, the
//! *repetition vector*, is the smallest positive firing count that returns every channel to its initial token
//! count; q firings of all actors are one *iteration*. So all state of a run at an iteration border is the last
//! [`Channel::history`] tokens of each channel: [`State`]. A [`Gate`] skips an actor's work in some firings, and
//! changes nothing of this: what stands for the work is zeros, or a state.
//!
//! # The plan
//!
//! A [`Plan`] runs the graph in *blocks* of `J = plan.block` iterations. In period p = 0, 1, 2, … every lane
//! executes its entries in order; a slot of stage s works on block p − s and is skipped when p < s (prologue) or
//! when p − s ≥ N (epilogue), where N is the number of blocks of the run. Periods end when p − (stages − 1) ≥ N.
//! Actors fire `J * q` times per block, firings counted from the start of the block.
//!
//! Each channel has a [`Buffer`] on the device of its writer (unless it is received there, which cannot happen) and
//! on every other device that has a reader of it. A place of a buffer holds `head_tokens` tokens of history, then
//! the `T = J * q[writer] * rate` tokens of the block. With h = `head_tokens` of the buffer on the actor's device:
//!
//! - firings `[f, f+n)` of the writer write positions `[h + f*rate, h + (f+n)*rate)`;
//! - firings `[f, f+n)` of a reader with delay d, rate r, window w read `[h - d + f*r, h - d + (f+n-1)*r + w)`.
//!
//! Both are contiguous: kernels are called once for a range of firings. After the last write of block b and before
//! the first read of block b+1, an [`Action::Carry`] copies the last h of the h + T tokens to the head of the next
//! place; it is present exactly when h > 0 and the buffer is no state.
//!
//! A buffer may hold less than a block: *chunks* of C = `chunk_tokens` tokens, where C divides T. Then writer and readers
//! are on its (CPU) device and in one stage, there is one place, no ring sends from it and nothing lies over it. One chunk
//! k is current, at first chunk 0; positions `[h, h + C)` are its tokens `[k*C, (k+1)*C)`, and the head holds the h tokens
//! before them. h is at least the largest delay d, and of the h tokens before a block's first only the last d mean
//! something. A writer's slot writes tokens of the current chunk. A reader's slot finds all tokens that it reads
//! at positions `[0, h + C)`, each t at h + t - k*C, and has read them for the last time when they are dropped:
//!
//! - with h > 0, [`Action::Carry`] follows the last write of each chunk, T/C times a period. It moves the last h of the
//!   h + C tokens to the head and makes the next chunk current;
//! - with h = 0 (no delays, no windows longer than rates), the first write to a chunk makes it current.
//!
//! A loop that is repeated and has slots of such a buffer either moves on by whole chunks in each execution of its body,
//! its writer and all its readers alike, or does not change the current chunk from its first execution to its last. So
//! the positions of a slot in the first kind of loop are always the same, and in the second kind move on with its firings.
//!
//! A *state* ([`Graph::is_state`]: a self-loop of a [`StatePort`]) has one place of one token (`head_tokens` 1,
//! `block_tokens` 0): each firing reads the token and writes the next in its stead, so that n firings in a row need
//! no memory for n states. It has no carry.
//!
//! A channel with readers on another device has one [`Ring`] for each such device. Its data is the receiver's
//! buffer (region [`Region::Exchange`]); `Send` copies `[h_from + first, …+count)` of the sender's place into
//! `[h_to + first, …+count)` of the receiver's and publishes the tokens; it waits until block b − `blocks` has been
//! released. `Recv` waits for the tokens; `Release` frees the place after the last read and the carry of the block.
//! The sender never writes the head of a receiver's place; the receiver never writes beyond it.
//!
//! Places are disjoint in memory from those of any other buffer that is live at the same time. A buffer with one
//! place, no history and all its slots in one stage is live from its first write to its last read in the period;
//! every other buffer is live always. Offsets count from the start of the device's region.
//!
//! One thing may lie over another: where an actor may write an output over an input ([`Actor::in_place`]), the output's
//! buffer may lie over the input's just as the pair says, on a CPU, if both are live within the period only and no
//! other port, send or actor reads the input after the actor's first firing of the period. A firing then writes the
//! very bytes that it alone reads. Where one is a part of the other ([`InPlace::at_bytes`]), the actor must fire once a
//! block, for the tokens of a second firing would lie elsewhere. An actor may do so with several pairs at once: the
//! inputs in one output (a concatenation that copies nothing) are disjoint, as are the outputs over one input (a
//! split). Bytes in common belong to the input until the actor's first firing, to the larger of the two in its firings
//! and to the output from then on; so what lies over each other may do so again: [`Plan::over`] finds all such pairs.
//!
//! A device with a [`Tier`] may *fetch* the packed weights of some of its actors in every period, instead of holding
//! them all the time. [`Action::Fetch`] begins to read them into the arena, [`Action::Await`] waits until they are
//! there, and the firings of the actor come after that; what is read is read in the order of the fetches, one after
//! the other. A fetch that comes before its wait serves the firings of the same period. One that comes after the
//! actor's last firing serves those of the next period; before period 0 all of these have begun, in their order.
//! Weights are live from their fetch to the actor's last firing, also beyond the end of the period, and no bytes of
//! them belong to anything else meanwhile.
//!
//! At the end of a run, block N's heads hold the last h tokens of every channel: the [`State`]. A run starts at
//! block 0 in place 0 with the heads filled from a state. So any plan can go on where any other stopped.
//!
//! A [`Contingency`] is a plan, and its tail, for the machine without some devices: [`Contingencies`].
//!
//! Invariant: only [`verify`] makes a [`verify::Verified`] program, and it shares no code with the scheduler.

pub mod bundle;
pub mod burst;
mod carried;
mod contingency;
mod dependence;
mod device_kind;
pub mod file_header;
mod gate;
mod gate_scan;
mod graph;
mod ids;
pub mod limits;
mod links;
mod machine;
pub mod math;
pub mod memory;
mod merged;
mod mode_bounds;
mod modes;
mod nesting;
pub mod numa;
mod parameter;
mod plan;
mod program;
mod reservation;
pub mod response;
mod self_timed;
#[cfg(any(test, feature = "snapshot"))]
pub mod snapshot;
pub mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod text;
mod token;
pub mod trace;
pub mod verify;
pub mod walk;

pub use carried::*;
pub use contingency::*;
pub use dependence::*;
pub use device_kind::DeviceKind;
pub use gate::*;
pub use gate_scan::*;
pub use graph::*;
pub use ids::*;
pub use links::*;
pub use machine::*;
pub use merged::*;
pub use mode_bounds::*;
pub use modes::*;
pub use parameter::*;
pub use plan::*;
pub use program::*;
pub use reservation::*;
pub use token::*;
