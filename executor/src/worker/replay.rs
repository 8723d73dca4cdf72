//! The step loop: a flat array of instructions with everything worked out beforehand. Must not know graphs or plans;
//! `prepare` makes instructions out of them.
//!
//! In the steady state (every stage at work, no timing) a period is one pass over the instructions without a map, a
//! name, an allocation, a lock or a check of stages. Addresses depend on the block only modulo the places of a
//! buffer, so they are worked out once for each phase of the least common multiple of all place counts.
#![expect(
    unsafe_code,
    reason = "calls kernels and copies tokens through the addresses of a verified calendar"
)]

use std::sync::Arc;

use zbmd_backends::kernel::{Io, Kernel, KernelFault, RawPort, Scratch, Shape};
use zbmd_ir::{ChannelId, DType};

use crate::observe::measure::Sample;
use crate::observe::trace::Recorder;
use crate::run::watchdog::Winder;
use crate::transport::arena::Arena;
use crate::transport::checksum;
use crate::transport::clock::Clock;
use crate::transport::epoch::{Area, EpochMemory, Post};
use crate::transport::primitive::Ordering;
use crate::transport::ring::{Peer, RingSync, Spin, Stop, Stopped};
use crate::worker::gpu::DeviceFault;
use crate::worker::period_loop::{SinkEnd, SourceEnd};

/// No counter: the slot stands in no loop.
pub(crate) const NO_COUNTER: u32 = u32::MAX;

/// One slot, or the head of a loop over the instructions that follow it.
pub(crate) enum Instr {
    /// One kernel call. Its ports lie in a row from `ports` on.
    Fire {
        kernel: *const dyn Kernel,
        shape: Shape,
        ports: u32,
    },
    /// The same in a loop: ports move on with the firings that `counter` has counted.
    LoopFire {
        kernel: *const dyn Kernel,
        shape: Shape,
        ports: u32,
        counter: u32,
    },
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
    /// Copies port `ports` to the port after it; the two may overlap.
    Carry { ports: u32 },
    /// Keeps what lies at port `ports` for the border after the block, if tokens are saved there.
    Save { ports: u32, channel: ChannelId },
    /// Winds the watchdog up, in calendars whose periods are long.
    GotOn,
    /// Runs the next `len` instructions `count` times. `resets` are the counters to set first, in an outermost loop.
    Loop {
        count: u64,
        len: u32,
        resets: (u32, u32),
    },
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
}

impl PortSpec {
    fn at(&self, period: u64) -> RawPort {
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
    /// Index among the segment's [`RingSync`]s.
    pub sync: u32,
    pub block_tokens: u64,
    pub blocks: u64,
    pub token_bytes: u64,
    /// Its first checksum; and which of `Code::sends` are its own: a checksum for each in each place.
    pub sums: usize,
    pub sends: (usize, usize),
}

/// The constant part of a device's replay.
pub(crate) struct Code {
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
    /// Rows of `Live::table`; 0 if there is one row, worked out anew for each period.
    pub phases: u64,
    pub stages_total: u32,
    /// How often a slot whose kernel reports a fault is done again.
    pub retries: u32,
    pub scratch: Scratch,
    /// What the pointers above point into.
    pub _kernels: Box<[Arc<dyn Kernel>]>,
    pub _arenas: [Arc<Arena>; 2],
}

/// The moving part of a device's replay. Nothing in it grows.
pub(crate) struct Live {
    /// Ports of each phase, phase by phase.
    pub table: Box<[RawPort]>,
    pub counters: Box<[u64]>,
    pub peers: Box<[Peer]>,
    /// The ports of one call in a loop.
    pub staging: Box<[RawPort]>,
    pub samples: Box<[Sample]>,
    /// For each ring, the `Send`s of the block that have been noted or checked.
    pub summed: Box<[usize]>,
}

/// A device's calendar, ready to run.
pub(crate) struct Replay {
    pub code: Code,
    pub live: Live,
}

// SAFETY: the pointers lead to arenas and kernels that the replay keeps alive by `Arc`; kernels are `Send + Sync`, and
// arenas are shared by the order of the calendars alone, whichever thread runs them.
unsafe impl Send for Replay {}

impl Code {
    /// Instructions executed in a period, loops counted out.
    pub(crate) fn executions(&self) -> u64 {
        fn of(instrs: &[Instr]) -> u64 {
            let (mut at, mut sum) = (0, 0u64);
            while let Some(instr) = instrs.get(at) {
                at += 1;
                let Instr::Loop { count, len, .. } = *instr else {
                    sum = sum.saturating_add(1);
                    continue;
                };
                let body = of(&instrs[at..at + len as usize]);
                sum = sum.saturating_add(body.saturating_mul(count));
                at += len as usize;
            }
            sum
        }
        of(&self.instrs)
    }
}

/// What a worker's slots work with, besides the replay.
pub(crate) struct Env<'a> {
    pub epoch: &'a EpochMemory,
    pub rings: &'a [RingSync],
    /// Where the instruction at work is told: for whoever watches, and to name it after a fault or a panic.
    pub post: &'a Post,
    pub sources: &'a mut [SourceEnd],
    pub sinks: &'a mut [SinkEnd],
    pub stop: &'a Stop,
    pub spin: Spin,
    pub clock: &'a Clock,
    /// The watchdog, if somebody watches.
    pub winder: Option<Winder>,
    /// The trace, if there is one.
    pub recorder: Option<Recorder>,
}

impl Env<'_> {
    /// Winds the watchdog up.
    #[inline]
    pub(crate) fn got_on(&mut self) {
        if let Some(winder) = &mut self.winder {
            winder.got_on(self.clock.now_ns());
        }
    }
}

/// Why a period was not finished.
#[derive(Debug)]
pub(crate) enum Halt {
    Stopped,
    Fault(KernelFault),
    /// A GPU or its driver failed.
    Device(DeviceFault),
    /// The tokens of a transfer are not those that were sent.
    Corrupt {
        ring: u32,
        sent: u64,
        found: u64,
    },
}

impl From<Stopped> for Halt {
    fn from(_: Stopped) -> Self {
        Halt::Stopped
    }
}

/// The period at work, and the number of blocks if it is known.
#[derive(Clone, Copy)]
struct Now {
    period: u64,
    blocks: u64,
    started_ns: u64,
}

impl Replay {
    pub(crate) fn new(code: Code, counters: usize, staging: usize) -> Self {
        let rows = code.phases.max(1);
        // A period at least as late as the last stage, so that every row is the steady state's.
        let first = u64::from(code.stages_total).next_multiple_of(rows);
        let ports = &code.ports;
        let table = (0..rows)
            .flat_map(|r| ports.iter().map(move |s| s.at(first + r)))
            .collect();
        let unused = RawPort {
            ptr: std::ptr::null_mut(),
            bytes: 0,
            dtype: DType::U8,
        };
        let live = Live {
            table,
            counters: vec![0; counters].into(),
            peers: vec![Peer::default(); code.rings.len()].into(),
            staging: vec![unused; staging].into(),
            samples: vec![Sample::default(); code.instrs.len()].into(),
            summed: vec![0; code.rings.len()].into(),
        };
        Self { code, live }
    }

    /// Runs one period. `blocks` is the number of blocks of the run once it is known; `timed` measures every slot.
    ///
    /// # Errors
    /// A kernel's fault, or a stop while waiting.
    pub(crate) fn step(
        &mut self,
        env: &mut Env<'_>,
        period: u64,
        blocks: Option<u64>,
        timed: bool,
    ) -> Result<(), Halt> {
        let Self { code, live } = self;
        let row = if code.phases == 0 {
            for (port, spec) in live.table.iter_mut().zip(&code.ports) {
                *port = spec.at(period);
            }
            0
        } else {
            (period % code.phases) as usize * code.ports.len()
        };
        let now = Now {
            period,
            blocks: blocks.unwrap_or(u64::MAX),
            started_ns: if timed { env.clock.now_ns() } else { 0 },
        };
        let whole = (0, code.instrs.len());
        let steady = blocks.is_none() && period + 1 >= u64::from(code.stages_total);
        let recorded = env.recorder.as_mut().is_some_and(|r| r.begin(period));
        let traced = recorded && env.recorder.as_ref().is_some_and(|r| r.slots);
        let run = match (steady, timed, traced) {
            (true, false, false) => run::<false, false, false>,
            (true, true, false) => run::<false, true, false>,
            (false, false, false) => run::<true, false, false>,
            (false, true, false) => run::<true, true, false>,
            (true, false, true) => run::<false, false, true>,
            (true, true, true) => run::<false, true, true>,
            (false, false, true) => run::<true, false, true>,
            (false, true, true) => run::<true, true, true>,
        };
        run(code, live, env, row, whole, now)?;
        if recorded
            && !traced
            && let Some(recorder) = &mut env.recorder
        {
            recorder.whole();
        }
        Ok(())
    }
}

/// Runs the instructions of `range`, with the ports of the table from `row` on.
fn run<const CHECK: bool, const TIMED: bool, const TRACED: bool>(
    code: &Code,
    live: &mut Live,
    env: &mut Env<'_>,
    row: usize,
    range: (usize, usize),
    now: Now,
) -> Result<(), Halt> {
    let mut i = range.0;
    while i < range.1 {
        let instr = &code.instrs[i];
        if CHECK && !is_at_work(code.stages[i], now) && !matches!(instr, Instr::Loop { .. }) {
            skip(instr, live);
            i += 1;
            continue;
        }
        env.post.pc.store(i as u32, Ordering::Relaxed);
        let before = if TIMED { env.clock.now_ns() } else { 0 };
        match *instr {
            Instr::Fire {
                kernel,
                ref shape,
                ports,
            } => {
                // A plain offset: checked slicing costs as much as an empty kernel.
                debug_assert!(row + ports as usize + shape.total() <= live.table.len());
                let first = live.table.as_ptr().wrapping_add(row + ports as usize);
                if let Err(halt) = call(kernel, shape, first, &code.scratch) {
                    call_again(kernel, shape, first, code, halt)?;
                }
            }
            Instr::Loop { count, len, resets } => {
                for &(counter, value) in &code.resets[resets.0 as usize..resets.1 as usize] {
                    live.counters[counter as usize] = value;
                }
                let body = (i + 1, i + 1 + len as usize);
                for _ in 0..count {
                    run::<CHECK, TIMED, TRACED>(code, live, env, row, body, now)?;
                }
                i = body.1;
                continue;
            }
            _ => {
                let block = now.period.wrapping_sub(u64::from(code.stages[i]));
                execute(code, live, env, row, instr, block)?;
            }
        }
        if TIMED {
            live.samples[i].record(before - now.started_ns, env.clock.now_ns() - before);
        }
        if TRACED && let Some(recorder) = &mut env.recorder {
            recorder.slot(code.names[i]);
        }
        i += 1;
    }
    Ok(())
}

fn is_at_work(stage: u32, now: Now) -> bool {
    now.period
        .checked_sub(u64::from(stage))
        .is_some_and(|block| block < now.blocks)
}

/// A skipped slot in a loop counts all the same: slots of the same actor share its counter.
fn skip(instr: &Instr, live: &mut Live) {
    let (counter, by) = match *instr {
        Instr::LoopFire { counter, shape, .. } => (counter, shape.firings as u64),
        Instr::Source {
            counter, firings, ..
        }
        | Instr::Sink {
            counter, firings, ..
        } => (counter, firings),
        Instr::Send {
            counter, tokens, ..
        }
        | Instr::Recv {
            counter, tokens, ..
        } => (counter, tokens),
        _ => (NO_COUNTER, 0),
    };
    if counter != NO_COUNTER {
        live.counters[counter as usize] += by;
    }
}

/// Calls a kernel with the ports from `first` on.
#[inline(always)]
fn call(
    kernel: *const dyn Kernel,
    shape: &Shape,
    first: *const RawPort,
    scratch: &Scratch,
) -> Result<(), Halt> {
    // SAFETY: `prepare` made the counted ports in a row for this instruction, in a table or staging that nobody changes
    // during the call. Ports lie in the device's arenas at the offsets of a verified plan: windows hold tokens written
    // (or carried, or received and published) before this slot, outputs and states are live for this slot alone, but
    // for those that lie over inputs, as `Shape::over` says, scratch belongs to the device, whose one worker this is.
    // Buffers are aligned to 64 bytes and tokens are whole elements, so every port is aligned for its dtype; arenas are
    // zeroed at first, so all bytes are initialised.
    let mut io = unsafe { Io::new(shape, first, scratch) };
    // SAFETY: `Code::_kernels` holds the kernel.
    unsafe { &*kernel }.fire(&mut io).map_err(Halt::Fault)
}

/// Calls a kernel that has reported a fault again, some times: its windows are as they were, and what it wrote counts
/// only when it says so. Not if it has states or writes over an input, which are updated in place: then only the last
/// border is sound.
#[cold]
fn call_again(
    kernel: *const dyn Kernel,
    shape: &Shape,
    first: *const RawPort,
    code: &Code,
    halt: Halt,
) -> Result<(), Halt> {
    let mut last = Err(halt);
    for _ in 0..code.retries {
        if shape.states > 0 || shape.over || last.is_ok() {
            break;
        }
        last = call(kernel, shape, first, &code.scratch);
    }
    last
}

/// Counts `by` more of a loop's counter; the count before.
#[inline]
fn advance(live: &mut Live, counter: u32, by: u64) -> Option<u64> {
    let count = live.counters.get_mut(counter as usize)?;
    let before = *count;
    *count += by;
    Some(before)
}

/// Port `index`, moved on by what its loop has counted.
#[inline]
fn port(code: &Code, live: &Live, row: usize, index: u32, counted: Option<u64>) -> RawPort {
    let mut port = live.table[row + index as usize];
    if let Some(counted) = counted {
        port.ptr = port
            .ptr
            .wrapping_add(counted as usize * code.ports[index as usize].step);
    }
    port
}

/// Every instruction but plain calls and loops, on block `block`.
#[inline(never)]
fn execute(
    code: &Code,
    live: &mut Live,
    env: &mut Env<'_>,
    row: usize,
    instr: &Instr,
    block: u64,
) -> Result<(), Halt> {
    match *instr {
        Instr::LoopFire {
            kernel,
            ref shape,
            ports,
            counter,
        } => {
            let counted = advance(live, counter, shape.firings as u64);
            for k in 0..shape.total() {
                live.staging[k] = port(code, live, row, ports + k as u32, counted);
            }
            let first = live.staging.as_ptr();
            call(kernel, shape, first, &code.scratch)
                .or_else(|halt| call_again(kernel, shape, first, code, halt))
        }
        Instr::Source {
            source,
            ports,
            firings,
            counter,
        } => {
            let counted = advance(live, counter, firings);
            let to = port(code, live, row, ports, counted);
            // SAFETY: an output port of a verified plan, as in `call`: valid, and this slot's alone.
            let to = unsafe { std::slice::from_raw_parts_mut(to.ptr, to.bytes) };
            env.sources[source as usize].read(to);
            Ok(())
        }
        Instr::Sink {
            sink,
            ports,
            firings,
            counter,
            end,
        } => {
            let counted = advance(live, counter, firings);
            let from = port(code, live, row, ports, counted);
            // SAFETY: an input port of a verified plan, as in `call`: valid, and nobody writes it now.
            let from = unsafe { std::slice::from_raw_parts(from.ptr, from.bytes) };
            let end = counted.map_or(end, |c| c + firings);
            let how = (env.spin, env.stop, env.clock, env.post);
            env.sinks[sink as usize].write(from, block, end, how)?;
            Ok(())
        }
        Instr::Send {
            ring,
            ports,
            tokens,
            counter,
            end,
        } => {
            let counted = advance(live, counter, tokens);
            let spec = code.rings[ring as usize];
            let sync = &env.rings[spec.sync as usize];
            let free = (block + 1).saturating_sub(spec.blocks);
            sync.wait_released(free, &mut live.peers[ring as usize], env.spin, env.stop)?;
            let from = port(code, live, row, ports, counted);
            let to = port(code, live, row, ports + 1, counted);
            // SAFETY: both lie in arenas at offsets of a verified plan, in buffers of different devices. The tokens
            // are written (an earlier slot of this calendar); the receiver has released the place, and reads these
            // tokens only after they are published below.
            unsafe { to.ptr.copy_from_nonoverlapping(from.ptr, from.bytes) };
            let end = counted.map_or(end, |c| c + tokens);
            if spec.sends.1 > 0 {
                note(env, live, (ring, spec), block, end - tokens, from);
                if env.epoch.common.corrupt.load(Ordering::Relaxed) != 0 {
                    spoil(env, to);
                }
            }
            sync.publish(block * spec.block_tokens + end);
            Ok(())
        }
        Instr::Recv {
            ring,
            ports,
            tokens,
            counter,
            end,
        } => {
            let counted = advance(live, counter, tokens);
            let spec = code.rings[ring as usize];
            let end = counted.map_or(end, |c| c + tokens);
            let needed = block * spec.block_tokens + end;
            let peer = &mut live.peers[ring as usize];
            env.rings[spec.sync as usize].wait_published(needed, peer, env.spin, env.stop)?;
            if spec.sends.1 > 0 {
                let first = live.table[row + ports as usize];
                return check(
                    code,
                    env,
                    live,
                    (ring, spec),
                    block,
                    (end - tokens, end),
                    first,
                );
            }
            Ok(())
        }
        Instr::Release { ring } => {
            env.rings[code.rings[ring as usize].sync as usize].release(block + 1);
            Ok(())
        }
        Instr::Carry { ports } => {
            let from = port(code, live, row, ports, None);
            let to = port(code, live, row, ports + 1, None);
            // SAFETY: both lie in one buffer of this device; the verified plan carries after the last write of the
            // block and before the first read of the next. The ranges may overlap, which `copy_from` allows.
            unsafe { to.ptr.copy_from(from.ptr, from.bytes) };
            Ok(())
        }
        Instr::Save { ports, channel } => {
            let border = block + 1;
            if !env.epoch.borders().is_some_and(|b| b.is_saved(border)) {
                return Ok(());
            }
            wait_for_area(env.epoch, border, env.spin, env.stop)?;
            let from = port(code, live, row, ports, None);
            let (to, bytes) = env.epoch.saved(Area::Border(border), channel);
            // SAFETY: the head lies in a buffer of this device and is not written before the next block's last slots;
            // the area has a place of this size for the channel, which this worker alone writes, and which nobody
            // reads: see `wait_for_area`.
            unsafe { to.copy_from_nonoverlapping(from.ptr, bytes) };
            Ok(())
        }
        Instr::GotOn => {
            env.got_on();
            Ok(())
        }
        Instr::Fire { .. } | Instr::Loop { .. } => Ok(()),
    }
}

/// Waits until the area of `border` may be written: the border that it held is not needed any more.
pub(crate) fn wait_for_area(
    epoch: &EpochMemory,
    border: u64,
    spin: Spin,
    stop: &Stop,
) -> Result<(), Stopped> {
    let common = &epoch.common;
    let Some(borders) = epoch.borders() else {
        return Ok(());
    };
    let is_free = || {
        if common.committed.border() < borders.needs(border) {
            return false;
        }
        // Partner: the fence in `EpochMemory::hold`: either this sees what is held, or that sees that a later border is
        // committed.
        crate::transport::primitive::fence(Ordering::SeqCst);
        !borders.collides(border, common.held.load(Ordering::Relaxed))
    };
    if is_free() {
        return Ok(());
    }
    common
        .commits
        .wait_until(spin, || is_free() || stop.is_set());
    if is_free() { Ok(()) } else { Err(Stopped) }
}

/// Notes the checksum of what a `Send` from token `first` of the block has copied.
fn note(
    env: &Env<'_>,
    live: &mut Live,
    (ring, spec): (u32, RingSpec),
    block: u64,
    first: u64,
    sent: RawPort,
) {
    let at = &mut live.summed[ring as usize];
    *at = if first == 0 { 0 } else { *at };
    let row = spec.sums + (block % spec.blocks) as usize * spec.sends.1;
    // SAFETY: as in `execute`: the tokens were written, and are not written again before this slot is over.
    let bytes = unsafe { std::slice::from_raw_parts(sent.ptr, sent.bytes) };
    // Published with the tokens.
    env.epoch.sums[row + *at].store(checksum::of(bytes), Ordering::Relaxed);
    *at += 1;
}

/// Turns a bit of what was just sent, once: a fault brought about on purpose.
#[cold]
fn spoil(env: &Env<'_>, sent: RawPort) {
    if env.epoch.common.corrupt.swap(0, Ordering::Relaxed) != 0 && sent.bytes > 0 {
        // SAFETY: as for the copy in `execute`: the tokens are not published yet.
        unsafe { *sent.ptr ^= 0x10 };
    }
}

/// Checks all that was sent of a block before token `range.1`, from where the last check ended.
fn check(
    code: &Code,
    env: &Env<'_>,
    live: &mut Live,
    (ring, spec): (u32, RingSpec),
    block: u64,
    range: (u64, u64),
    first: RawPort,
) -> Result<(), Halt> {
    let at = &mut live.summed[ring as usize];
    *at = if range.0 == 0 { 0 } else { *at };
    let sends = &code.sends[spec.sends.0..spec.sends.0 + spec.sends.1];
    let row = spec.sums + (block % spec.blocks) as usize * spec.sends.1;
    while let Some(&(from, end)) = sends.get(*at).filter(|(from, _)| *from < range.1) {
        let offset = (from * spec.token_bytes) as usize;
        let bytes = ((end - from) * spec.token_bytes) as usize;
        // SAFETY: the tokens of this `Send` lie in the block's place, and are published: it ends no later than the
        // tokens that were waited for.
        let tokens = unsafe { std::slice::from_raw_parts(first.ptr.wrapping_add(offset), bytes) };
        let (sent, found) = (
            env.epoch.sums[row + *at].load(Ordering::Relaxed),
            checksum::of(tokens),
        );
        if sent != found {
            return Err(Halt::Corrupt { ring, sent, found });
        }
        *at += 1;
    }
    Ok(())
}
