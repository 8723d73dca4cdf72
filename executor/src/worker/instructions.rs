//! The instructions that a calendar is lowered to: a flat array with everything worked out beforehand. Must not know
//! graphs or plans.

use std::sync::Arc;

use zbmd_ir::{ChannelId, DType};
use zbmd_op::kernel::{CallShape, Kernel, RawPort, Scratch};

use super::probe::ProbeTaps;
use crate::transport::arena::Arena;

/// No counter: the slot stands in no loop.
pub(crate) const NO_COUNTER: u32 = u32::MAX;

/// One slot, or the head of a loop over the instructions that follow it.
pub(crate) enum Instr {
    /// One kernel call. Its ports lie in a row from `ports` on.
    Fire {
        kernel: *const dyn Kernel,
        shape: CallShape,
        ports: u32,
    },
    /// The same in a loop: ports move on with the firings that `counter` has counted.
    LoopFire {
        kernel: *const dyn Kernel,
        shape: CallShape,
        ports: u32,
        counter: u32,
    },
    /// The same where ports may move on with the firings since a mark: in buffers of chunks.
    ChunkFire {
        kernel: *const dyn Kernel,
        shape: CallShape,
        ports: u32,
        counter: u32,
    },
    /// Notes in counter `to` what counter `from` has counted.
    Mark { from: u32, to: u32 },
    /// Tokens from the embedding program to port `ports`.
    Source {
        source: u32,
        ports: u32,
        firings: u64,
        counter: u32,
    },
    /// Tokens from port `ports` to the embedding program. `end` is one past the slot's last firing of the block.
    Sink {
        sink: u32,
        ports: u32,
        firings: u64,
        counter: u32,
        end: u64,
    },
    /// Copies port `ports` to the port after it, and publishes the tokens of the block up to `end`.
    Send {
        ring: u32,
        ports: u32,
        tokens: u64,
        counter: u32,
        end: u64,
    },
    /// Waits for the tokens of the block up to `end`. Port `ports` is the block's first new token.
    Recv {
        ring: u32,
        ports: u32,
        tokens: u64,
        counter: u32,
        end: u64,
    },
    /// Gives the block's place back.
    Release { ring: u32 },
    /// [`Instr::Send`] to another host: sends port `ports` over wire ring `wired`.
    #[cfg(hosts)]
    WireSend {
        ring: u32,
        wired: u32,
        ports: u32,
        tokens: u64,
        counter: u32,
        end: u64,
    },
    /// [`Instr::Recv`] from another host: what comes is put where it belongs.
    #[cfg(hosts)]
    WireRecv {
        ring: u32,
        wired: u32,
        tokens: u64,
        counter: u32,
        end: u64,
    },
    /// [`Instr::Release`] to another host.
    #[cfg(hosts)]
    WireRelease { wired: u32 },
    /// Copies port `ports` to the port after it; the two may overlap.
    Carry { ports: u32 },
    /// Keeps what lies at port `ports` for the border after the block, if tokens are saved there.
    Save { ports: u32, channel: ChannelId },
    /// Begins a fetch of weights, of the period's numbered from 0.
    Fetch { number: u32 },
    /// Waits for what it brings.
    Await { number: u32 },
    /// The worker's heartbeat, in calendars whose periods are long.
    Beat,
    /// Runs the next `len` instructions `count` times. `resets` are the counters to set first, in an outermost loop.
    Loop {
        count: u64,
        len: u32,
        resets: (u32, u32),
    },
}

impl Instr {
    /// Whether it is executed whether or not its stage has a block in the period.
    #[inline(always)]
    pub(crate) fn is_in_every_period(&self) -> bool {
        matches!(
            self,
            Instr::Loop { .. } | Instr::Fetch { .. } | Instr::Await { .. }
        )
    }
}

/// The kernels of a slot that changes within a block.
pub(crate) struct SlotKernels {
    /// Its instruction.
    pub pc: usize,
    /// Its first firing in a block, if it stands in no loop.
    pub first: u64,
    /// In the order of firings, the first from the block's start on.
    pub kernels: Vec<KernelFrom>,
    /// Bytes by which each of its ports moves on with a firing.
    pub steps: Arc<[usize]>,
}

/// A kernel, and the firing of the block from which on it is called.
pub(crate) struct KernelFrom {
    pub firing: u64,
    pub kernel: *const dyn Kernel,
}

/// Where a port lies in a period: in the place of block `p - stage + shift`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortSpec {
    /// First byte if the block is in place 0 (and, in a loop, the counter is 0).
    pub base: *mut u8,
    pub bytes: usize,
    pub dtype: DType,
    pub stride: usize,
    pub blocks: u64,
    pub stage: u64,
    pub shift: u64,
    /// Bytes by which the port moves on for each counted firing or token, in a loop.
    pub step: usize,
    /// The counter of the firings from which on it does so; [`NO_COUNTER`] if that is from 0.
    pub mark: u32,
}

impl PortSpec {
    /// The port in a period.
    #[inline]
    pub(super) fn at(&self, period: u64) -> RawPort {
        // Before its first period a slot is skipped; then any place will do.
        let block = period.wrapping_sub(self.stage).wrapping_add(self.shift);
        let place = if period < self.stage {
            0
        } else {
            block % self.blocks
        };
        let ptr = self.base.wrapping_add(place as usize * self.stride);
        RawPort {
            ptr,
            bytes: self.bytes,
            dtype: self.dtype,
        }
    }
}

/// What a ring's slots need to know of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingSpec {
    /// Index among the epoch's [`RingSync`](crate::transport::ring::RingSync)s.
    pub sync: u32,
    pub block_tokens: u64,
    pub blocks: u64,
    pub token_bytes: u64,
    /// Its first checksum; and which of `ReplayCode::sends` are its own: a checksum for each in each place.
    pub sums: usize,
    pub sends: (usize, usize),
}

/// The constant part of a device's replay.
pub(crate) struct ReplayCode {
    pub instrs: Box<[Instr]>,
    /// Stage of each instruction; unused for loops.
    pub stages: Box<[u32]>,
    /// What a trace calls each instruction; unused for loops.
    pub names: Box<[u32]>,
    pub ports: Box<[PortSpec]>,
    pub rings: Box<[RingSpec]>,
    pub resets: Box<[(u32, u64)]>,
    /// Token ranges of each `Send` of each ring with checksums.
    pub sends: Box<[(u64, u64)]>,
    /// Where tokens can be copied for whoever looks.
    pub taps: ProbeTaps,
    /// Rows of `ReplayState::table`; 0 if there is one row, worked out anew for each period.
    pub phases: u64,
    pub stages_total: u32,
    /// How often a slot whose kernel reports a fault is done again.
    pub retries: u32,
    pub scratch: Scratch,
    /// What the pointers above point into.
    pub _kernels: Box<[Arc<dyn Kernel>]>,
    pub _arenas: [Arc<Arena>; 2],
}

impl ReplayCode {
    /// Instructions executed in a period, loops counted out.
    pub(crate) fn executions(&self) -> u64 {
        executions(&self.instrs)
    }
}

fn executions(instrs: &[Instr]) -> u64 {
    let mut sum = 0u64;
    let mut next = 0;
    while let Some(instr) = instrs.get(next) {
        next += 1;
        let Instr::Loop { count, len, .. } = *instr else {
            sum = sum.saturating_add(1);
            continue;
        };
        let body = &instrs[next..next + len as usize];
        sum = sum.saturating_add(executions(body).saturating_mul(count));
        next += len as usize;
    }
    sum
}
