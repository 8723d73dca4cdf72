//! The step loop of a CPU device: one pass over its instructions in each period. Must not know graphs or plans; `lower`
//! makes instructions out of them.
//!
//! In the steady state (every stage at work, no timing) a period is one pass over the instructions without a map, a
//! name, an allocation, a lock or a check of stages. Addresses depend on the block only modulo the places of a
//! buffer, so they are worked out once for each phase of the least common multiple of all place counts.
#![expect(
    unsafe_code,
    reason = "calls kernels and copies tokens through the addresses of a verified calendar"
)]

use std::ops::Range;

use zbmd_ir::{ChannelId, DType, RingId};
use zbmd_op::kernel::{CallShape, Io, Kernel, KernelFault, RawPort, Scratch};

use super::border::wait_for_area;
use super::fetch::Fetcher;
use super::instructions::{Instr, NO_COUNTER, ReplayCode, RingSpec, SlotKernels};
use super::probe::{ProbeRecorder, ProbeTap, TappedTokens};
use super::streams::{SinkEnd, SourceEnd, StreamContext};
#[cfg(hosts)]
use super::wired;
use crate::fault::{StepStop, WorkerFault};
use crate::observe::measure::SlotSample;
use crate::transport::checksum;
use crate::transport::clock::Clock;
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::Ordering;
use crate::transport::ring::{Peer, RingSync, Spin, Stop};
use crate::transport::trace_ring::TraceRecorder;
use crate::transport::watchdog::WorkerHeartbeat;

/// The moving part of a device's replay. Nothing in it grows.
pub(super) struct ReplayState {
    /// Ports of each phase, phase by phase.
    table: Box<[RawPort]>,
    counters: Box<[u64]>,
    pub peers: Box<[Peer]>,
    /// The ports of one call in a loop.
    staging: Box<[RawPort]>,
    pub samples: Box<[SlotSample]>,
    /// The slots whose kernel changes within the block of this period.
    pub splits: Vec<SlotKernels>,
    /// What is fetched from the device's tier, if something is.
    pub fetcher: Option<Fetcher>,
    /// For each ring, the `Send`s of the block whose checksums have been noted or checked.
    summed: Box<[usize]>,
}

/// A device's calendar, ready to run.
pub(super) struct CalendarReplay {
    pub code: ReplayCode,
    pub state: ReplayState,
}

// SAFETY: the pointers lead to arenas and kernels that the replay keeps alive by `Arc`; kernels are `Send + Sync`, and
// arenas are shared by the order of the calendars alone, whichever thread runs them.
unsafe impl Send for CalendarReplay {}

/// What a worker's slots work with, besides the replay.
pub(super) struct SlotContext<'a> {
    pub epoch: &'a EpochMemory,
    pub rings: &'a [RingSync],
    /// Where the instruction at work is published: for whoever watches, and to name it after a fault or a panic.
    pub status: &'a WorkerStatus,
    pub sources: &'a mut [SourceEnd],
    pub sinks: &'a mut [SinkEnd],
    pub stop: &'a Stop,
    pub spin: Spin,
    pub clock: &'a Clock,
    /// The watchdog, if somebody watches.
    pub heartbeat: Option<WorkerHeartbeat>,
    /// The trace, if there is one.
    pub recorder: Option<TraceRecorder>,
    /// Copies for whoever looks.
    pub probe: ProbeRecorder,
    /// What is observed of the period at work.
    pub observed: Observed,
}

/// What is observed of a period besides the times of its slots.
#[derive(Clone, Copy, Default)]
pub(super) struct Observed {
    is_traced: bool,
    is_probed: bool,
}

impl SlotContext<'_> {
    /// The worker makes progress.
    #[inline]
    pub(super) fn beat(&mut self) {
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.beat(self.clock.now_ns());
        }
    }
}

/// The period at work, and the number of blocks if it is known.
#[derive(Clone, Copy)]
struct PeriodInfo {
    period: u64,
    blocks: u64,
    started_ns: u64,
}

impl PeriodInfo {
    /// Whether a stage has a block in this period.
    fn has_block(self, stage: u32) -> bool {
        let block = self.period.checked_sub(u64::from(stage));
        block.is_some_and(|block| block < self.blocks)
    }
}

impl CalendarReplay {
    pub(super) fn new(code: ReplayCode, counters: usize, staging: usize) -> Self {
        let table_rows = code.phases.max(1);
        // A period at least as late as the last stage, so that every row is the steady state's.
        let first_period = u64::from(code.stages_total).next_multiple_of(table_rows);
        let periods = first_period..first_period + table_rows;
        let table_ports =
            periods.flat_map(|period| code.ports.iter().map(move |port| port.at(period)));

        let unused_port = RawPort {
            ptr: std::ptr::null_mut(),
            bytes: 0,
            dtype: DType::U8,
        };

        let state = ReplayState {
            table: table_ports.collect(),
            counters: vec![0; counters].into(),
            peers: vec![Peer::default(); code.rings.len()].into(),
            staging: vec![unused_port; staging].into(),
            samples: vec![SlotSample::default(); code.instrs.len()].into(),
            splits: Vec::new(),
            fetcher: None,
            summed: vec![0; code.rings.len()].into(),
        };
        Self { code, state }
    }

    /// Runs one period. `blocks` is the number of blocks of the run once it is known; `timed` measures every slot.
    ///
    /// # Errors
    /// A kernel's fault, or a stop while waiting.
    pub(super) fn step(
        &mut self,
        context: &mut SlotContext<'_>,
        period: u64,
        blocks: Option<u64>,
        timed: bool,
    ) -> Result<(), StepStop> {
        let Self { code, state } = self;
        let row_start = if code.phases == 0 {
            for (port, spec) in state.table.iter_mut().zip(&code.ports) {
                *port = spec.at(period);
            }
            0
        } else {
            (period % code.phases) as usize * code.ports.len()
        };

        let is_probed = context.probe.begin(&code.taps, period);
        let info = PeriodInfo {
            period,
            blocks: blocks.unwrap_or(u64::MAX),
            started_ns: if timed || is_probed {
                context.clock.now_ns()
            } else {
                0
            },
        };

        let is_whole = blocks.is_none() && period + 1 >= u64::from(code.stages_total);
        let is_steady = is_whole && state.splits.is_empty();
        let trace_recorder = context.recorder.as_mut();
        let is_recorded = trace_recorder.is_some_and(|recorder| recorder.begin(period));
        let trace_recorder = context.recorder.as_ref();
        let is_traced = is_recorded && trace_recorder.is_some_and(|recorder| recorder.slots);
        context.observed = Observed {
            is_traced,
            is_probed,
        };
        // Each combination is a loop of its own, so that the ordinary period checks, measures and records nothing.
        let run_instrs = match (is_steady, timed, is_traced || is_probed) {
            (true, false, false) => run::<false, false, false>,
            (true, true, false) => run::<false, true, false>,
            (false, false, false) => run::<true, false, false>,
            (false, true, false) => run::<true, true, false>,
            (true, false, true) => run::<false, false, true>,
            (true, true, true) => run::<false, true, true>,
            (false, false, true) => run::<true, false, true>,
            (false, true, true) => run::<true, true, true>,
        };
        run_instrs(code, state, context, row_start, 0..code.instrs.len(), info)?;

        if is_probed {
            context.probe.end();
        }

        if is_recorded
            && !is_traced
            && let Some(recorder) = &mut context.recorder
        {
            recorder.whole();
        }
        Ok(())
    }
}

/// Runs the instructions of `range`, with the ports of the table from `row` on.
fn run<const CHECK: bool, const TIMED: bool, const OBSERVED: bool>(
    code: &ReplayCode,
    state: &mut ReplayState,
    context: &mut SlotContext<'_>,
    row: usize,
    range: Range<usize>,
    info: PeriodInfo,
) -> Result<(), StepStop> {
    let mut pc = range.start;
    while pc < range.end {
        if !CHECK && !TIMED && !OBSERVED {
            let table = state.table.as_ptr().wrapping_add(row);
            pc = call_row(code, table, context.status, pc..range.end)?;
            if pc == range.end {
                break;
            }
        }
        let instr = &code.instrs[pc];
        if CHECK && !info.has_block(code.stages[pc]) && !instr.is_in_every_period() {
            skip_slot(instr, state);
            pc += 1;
            continue;
        }

        context.status.pc.store(pc as u32, Ordering::Relaxed);
        let before_ns = if TIMED { context.clock.now_ns() } else { 0 };
        match *instr {
            Instr::Fire {
                kernel,
                ref shape,
                ports,
            } => {
                debug_assert!(row + ports as usize + shape.total() <= state.table.len());
                let first_port = state.table.as_ptr().wrapping_add(row + ports as usize);
                if CHECK && let Some(split) = split_of(state, pc) {
                    call_in_parts(split, split.first, shape, first_port, code)?;
                } else if let Err(fault) = call_kernel(kernel, shape, first_port, &code.scratch) {
                    call_again(kernel, shape, first_port, code, fault)?;
                }
            }
            Instr::Loop { count, len, resets } => {
                for &(counter, value) in &code.resets[resets.0 as usize..resets.1 as usize] {
                    state.counters[counter as usize] = value;
                }
                let body_range = pc + 1..pc + 1 + len as usize;
                for _ in 0..count {
                    run::<CHECK, TIMED, OBSERVED>(
                        code,
                        state,
                        context,
                        row,
                        body_range.clone(),
                        info,
                    )?;
                }
                pc = body_range.end;
                continue;
            }
            _ => {
                let stage_block = info.period.wrapping_sub(u64::from(code.stages[pc]));
                execute(code, state, context, row, instr, stage_block)?;
            }
        }

        if TIMED {
            let start_ns = before_ns - info.started_ns;
            state.samples[pc].record(start_ns, context.clock.now_ns() - before_ns);
        }
        if OBSERVED {
            observe_slot(code, state, context, (row, pc), info);
        }
        pc += 1;
    }
    Ok(())
}

/// The plain calls that stand in a row at the beginning of `range`, and the end of the row: what a steady calendar mostly
/// consists of, in a loop that keeps all it needs in registers: a function of its own, because what surrounds it needs some
/// too. `table` is where the ports of the period begin.
#[inline(never)]
fn call_row(
    code: &ReplayCode,
    table: *const RawPort,
    status: &WorkerStatus,
    range: Range<usize>,
) -> Result<usize, StepStop> {
    let mut pc = range.start;
    for instr in &code.instrs[range] {
        let Instr::Fire {
            kernel,
            ref shape,
            ports,
        } = *instr
        else {
            break;
        };

        status.pc.store(pc as u32, Ordering::Relaxed);
        // A plain offset: checked slicing costs as much as an empty kernel.
        let first_port = table.wrapping_add(ports as usize);
        if let Err(fault) = call_kernel(kernel, shape, first_port, &code.scratch) {
            // What the call was made of is found again here, so that it need not be kept during every call.
            call_row_again(code, table, pc, fault)?;
        }
        pc += 1;
    }
    Ok(pc)
}

/// [`call_again`] for the plain call at `pc`.
#[cold]
fn call_row_again(
    code: &ReplayCode,
    table: *const RawPort,
    pc: usize,
    fault: KernelFault,
) -> Result<(), StepStop> {
    match code.instrs[pc] {
        Instr::Fire {
            kernel,
            ref shape,
            ports,
        } => call_again(
            kernel,
            shape,
            table.wrapping_add(ports as usize),
            code,
            fault,
        ),
        _ => Err(StepStop::from(fault)),
    }
}

/// Records or copies what the instruction at `pc` has just done.
#[inline(never)]
fn observe_slot(
    code: &ReplayCode,
    state: &ReplayState,
    context: &mut SlotContext<'_>,
    (row, pc): (usize, usize),
    info: PeriodInfo,
) {
    let Observed {
        is_traced,
        is_probed,
    } = context.observed;
    if is_traced && let Some(recorder) = &mut context.recorder {
        recorder.slot(code.names[pc]);
    }
    if !is_probed {
        return;
    }

    let since_start_ns = context.clock.now_ns() - info.started_ns;
    context.probe.note_time(code.names[pc], since_start_ns);
    if let Some(tap) = context.probe.tap_behind(&code.taps, pc) {
        let block = info.period.wrapping_sub(u64::from(code.stages[pc]));
        let tokens = tapped_tokens(code, state, row, tap, block);
        // SAFETY: the slot has written these tokens, or has waited for them, at the ports of a verified plan. Nobody
        // writes there before this worker's next slot, or before it releases what it received.
        unsafe { context.probe.copy(tokens) };
    }
}

/// Where the tokens are that the instruction of a tap has just written, or waited for.
fn tapped_tokens(
    code: &ReplayCode,
    state: &ReplayState,
    row: usize,
    tap: &ProbeTap,
    block: u64,
) -> TappedTokens {
    let spec = &code.ports[tap.port as usize];
    let port = state.table[row + tap.port as usize];
    // The counter has moved on behind the instruction already.
    let counted = state.counters.get(tap.counter as usize);
    let first = counted.map_or(tap.first, |counted| counted - tap.count);

    let moved = match counted {
        Some(_) if tap.moves => {
            let marked = state.counters.get(spec.mark as usize).copied();
            first.wrapping_sub(marked.unwrap_or(0)) as usize
        }
        _ => 0,
    };
    let offset_bytes = (first * tap.unit_bytes) as usize;
    let from = port.ptr.wrapping_add(moved.wrapping_mul(spec.step));
    TappedTokens {
        from: match tap.moves {
            true => from,
            false => from.wrapping_add(offset_bytes),
        },
        offset_bytes,
        bytes: (tap.count * tap.unit_bytes) as usize,
        block,
        block_bytes: tap.block_bytes as usize,
    }
}

/// A skipped slot in a loop counts all the same: slots of the same actor share its counter.
fn skip_slot(instr: &Instr, state: &mut ReplayState) {
    let (counter, count) = match *instr {
        Instr::LoopFire { counter, shape, .. } | Instr::ChunkFire { counter, shape, .. } => {
            (counter, shape.firings as u64)
        }
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
        #[cfg(hosts)]
        Instr::WireSend {
            counter, tokens, ..
        }
        | Instr::WireRecv {
            counter, tokens, ..
        } => (counter, tokens),
        _ => (NO_COUNTER, 0),
    };
    if counter != NO_COUNTER {
        state.counters[counter as usize] += count;
    }
}

/// Calls a kernel with the ports from `first` on.
#[inline(always)]
fn call_kernel(
    kernel: *const dyn Kernel,
    shape: &CallShape,
    first: *const RawPort,
    scratch: &Scratch,
) -> Result<(), KernelFault> {
    // SAFETY: `lower` made the counted ports in a row for this instruction, in a table or staging that nobody changes
    // during the call. Ports lie in the device's arenas at the offsets of a verified plan: windows hold tokens written
    // (or carried, or received and published) before this slot, outputs and states are live for this slot alone, but
    // for those that lie over inputs, as `CallShape::over` says, scratch belongs to the device, whose one worker this is.
    // Buffers are aligned to 64 bytes and tokens are whole elements, so every port is aligned for its dtype; arenas are
    // zeroed at first, so all bytes are initialised.
    let mut io = unsafe { Io::new(shape, first, scratch) };
    // SAFETY: `ReplayCode::_kernels` holds the kernel.
    unsafe { &*kernel }.fire(&mut io)
}

/// The kernels of a slot, if they change within its block.
fn split_of(state: &ReplayState, pc: usize) -> Option<&SlotKernels> {
    state.splits.iter().find(|split| split.pc == pc)
}

/// Does a call whose kernel changes on the way in as many calls as there are kernels. `first` is its first firing in the
/// block.
#[cold]
fn call_in_parts(
    split: &SlotKernels,
    first: u64,
    shape: &CallShape,
    first_port: *const RawPort,
    code: &ReplayCode,
) -> Result<(), StepStop> {
    let mut done = 0;
    while done < shape.firings {
        let firing = first + done as u64;
        let held = split.kernels.partition_point(|from| from.firing <= firing) - 1;
        let next_change = split
            .kernels
            .get(held + 1)
            .map_or(u64::MAX, |from| from.firing);
        let count = (next_change - firing).min((shape.firings - done) as u64) as usize;

        let ports = (0..shape.total()).map(|index| {
            // SAFETY: the call has so many ports in a row there.
            let port = unsafe { *first_port.add(index) };
            let step = split.steps[index];
            RawPort {
                ptr: port.ptr.wrapping_add(done * step),
                bytes: port.bytes - (shape.firings - count) * step,
                ..port
            }
        });
        let ports: Vec<RawPort> = ports.collect();
        let part = CallShape {
            firings: count,
            ..*shape
        };
        let kernel = split.kernels[held].kernel;
        call_kernel(kernel, &part, ports.as_ptr(), &code.scratch)
            .or_else(|fault| call_again(kernel, &part, ports.as_ptr(), code, fault))?;
        done += count;
    }
    Ok(())
}

/// Calls a kernel that has reported a fault again, some times: its windows are as they were, and what it wrote counts
/// only when it succeeds. Not if it has states or writes over an input, which are updated in place: then only the last
/// border is sound.
#[cold]
fn call_again(
    kernel: *const dyn Kernel,
    shape: &CallShape,
    first: *const RawPort,
    code: &ReplayCode,
    fault: KernelFault,
) -> Result<(), StepStop> {
    let mut last_result = Err(fault);
    for _ in 0..code.retries {
        if shape.states > 0 || shape.over || last_result.is_ok() {
            break;
        }
        last_result = call_kernel(kernel, shape, first, &code.scratch);
    }
    last_result.map_err(StepStop::from)
}

/// Every instruction but plain calls and loops, on block `block`.
///
/// What it calls is a part of it, so that what a slot works with stays in registers.
#[inline(never)]
fn execute(
    code: &ReplayCode,
    state: &mut ReplayState,
    context: &mut SlotContext<'_>,
    row: usize,
    instr: &Instr,
    block: u64,
) -> Result<(), StepStop> {
    let mut slot = SlotStep {
        code,
        state,
        context,
        row,
        block,
    };
    slot.run(instr)
}

/// One execution of a slot that is not a plain kernel call.
struct SlotStep<'r, 'c> {
    code: &'r ReplayCode,
    state: &'r mut ReplayState,
    context: &'r mut SlotContext<'c>,
    /// Where the period's ports begin in the table.
    row: usize,
    block: u64,
}

impl SlotStep<'_, '_> {
    // A match of opcodes: each arm finds its ports, and leaves the work to a method that is inlined here.
    #[inline(always)]
    fn run(&mut self, instr: &Instr) -> Result<(), StepStop> {
        match *instr {
            Instr::LoopFire {
                kernel,
                ref shape,
                ports,
                counter,
            } => self.fire_in_loop(kernel, shape, ports, counter),
            Instr::ChunkFire {
                kernel,
                ref shape,
                ports,
                counter,
            } => self.fire_in_chunks(kernel, shape, ports, counter),
            Instr::Mark { from, to } => {
                self.state.counters[to as usize] = self.state.counters[from as usize];
                Ok(())
            }
            Instr::Source {
                source,
                ports,
                firings,
                counter,
            } => {
                // A counter says which execution of a loop this is; without one the ports are the same in every period.
                let count_before = self.advance(counter, firings);
                self.read_source(source, self.marked_port(ports, count_before));
                Ok(())
            }
            Instr::Sink {
                sink,
                ports,
                firings,
                counter,
                end,
            } => {
                let count_before = self.advance(counter, firings);
                // Counted within the block: in a loop `end` would be that of its last execution.
                let end_token = count_before.map_or(end, |before| before + firings);
                self.write_sink(sink, self.marked_port(ports, count_before), end_token)
            }
            Instr::Send {
                ring,
                ports,
                tokens,
                counter,
                end,
            } => {
                let count_before = self.advance(counter, tokens);
                let end_token = count_before.map_or(end, |before| before + tokens);
                // What is sent lies in the arena, where it goes in the exchange region: two ports in a row.
                let source_port = self.port(ports, count_before);
                let target_port = self.port(ports + 1, count_before);
                self.send(
                    ring,
                    source_port,
                    target_port,
                    end_token - tokens..end_token,
                )
            }
            Instr::Recv {
                ring,
                ports,
                tokens,
                counter,
                end,
            } => {
                let count_before = self.advance(counter, tokens);
                let end_token = count_before.map_or(end, |before| before + tokens);
                self.receive(ring, ports, end_token - tokens..end_token)
            }
            Instr::Release { ring } => {
                // The block is read to its end: its places are the writer's again.
                let sync = self.code.rings[ring as usize].sync;
                self.context.rings[sync as usize].release(self.block + 1);
                Ok(())
            }
            #[cfg(hosts)]
            Instr::WireSend {
                ring,
                wired,
                ports,
                tokens,
                counter,
                end,
            } => {
                let count_before = self.advance(counter, tokens);
                let end_token = count_before.map_or(end, |before| before + tokens);
                self.send_over_wire(ring, wired, self.port(ports, count_before), end_token)
            }
            #[cfg(hosts)]
            Instr::WireRecv {
                ring,
                wired,
                tokens,
                counter,
                end,
            } => {
                let count_before = self.advance(counter, tokens);
                let end_token = count_before.map_or(end, |before| before + tokens);
                let spec = self.code.rings[ring as usize];
                wired::wait_published(wired, self.block * spec.block_tokens + end_token)
            }
            #[cfg(hosts)]
            Instr::WireRelease { wired } => wired::release(wired, self.block + 1),
            Instr::Carry { ports } => {
                self.carry(ports);
                Ok(())
            }
            Instr::Save { ports, channel } => self.save(ports, channel),
            Instr::Fetch { number } => {
                if let Some(fetcher) = &mut self.state.fetcher {
                    fetcher.begin(number);
                }
                Ok(())
            }
            Instr::Await { number } => {
                let Some(fetcher) = &mut self.state.fetcher else {
                    return Ok(());
                };
                fetcher.wait(number, self.context.spin, self.context.stop)
            }
            Instr::Beat => {
                self.context.beat();
                Ok(())
            }
            // The loop over the instructions runs these itself, without the match.
            Instr::Fire { .. } | Instr::Loop { .. } => Ok(()),
        }
    }

    /// Adds to a loop's counter; the count before. `None` outside of loops.
    #[inline(always)]
    fn advance(&mut self, counter: u32, count: u64) -> Option<u64> {
        let loop_counter = self.state.counters.get_mut(counter as usize)?;
        let count_before = *loop_counter;
        *loop_counter += count;
        Some(count_before)
    }

    /// Port `index`, moved on by what its loop has counted.
    #[inline(always)]
    fn port(&self, index: u32, counted: Option<u64>) -> RawPort {
        let mut moved_port = self.state.table[self.row + index as usize];
        if let Some(counted) = counted {
            let step = self.code.ports[index as usize].step;
            moved_port.ptr = moved_port.ptr.wrapping_add(counted as usize * step);
        }
        moved_port
    }

    /// The same for a port that may have a mark.
    #[inline(always)]
    fn marked_port(&self, index: u32, counted: Option<u64>) -> RawPort {
        let mark = self.code.ports[index as usize].mark;
        if mark == NO_COUNTER {
            return self.port(index, counted);
        }
        let marked = self.state.counters[mark as usize];
        self.port(index, counted.map(|counted| counted.wrapping_sub(marked)))
    }

    #[inline(always)]
    fn fire_in_chunks(
        &mut self,
        kernel: *const dyn Kernel,
        shape: &CallShape,
        ports: u32,
        counter: u32,
    ) -> Result<(), StepStop> {
        let count_before = self.advance(counter, shape.firings as u64);
        for index in 0..shape.total() {
            self.state.staging[index] = self.marked_port(ports + index as u32, count_before);
        }

        self.call_staged(kernel, shape, count_before)
    }

    #[inline(always)]
    fn fire_in_loop(
        &mut self,
        kernel: *const dyn Kernel,
        shape: &CallShape,
        ports: u32,
        counter: u32,
    ) -> Result<(), StepStop> {
        let count_before = self.advance(counter, shape.firings as u64);
        for index in 0..shape.total() {
            self.state.staging[index] = self.port(ports + index as u32, count_before);
        }

        self.call_staged(kernel, shape, count_before)
    }

    /// Calls a kernel of a loop with the ports that were staged for it.
    #[inline(always)]
    fn call_staged(
        &mut self,
        kernel: *const dyn Kernel,
        shape: &CallShape,
        count_before: Option<u64>,
    ) -> Result<(), StepStop> {
        let first_port = self.state.staging.as_ptr();
        if !self.state.splits.is_empty() {
            let pc = self.context.status.pc.load(Ordering::Relaxed) as usize;
            if let Some(split) = split_of(self.state, pc) {
                let first = count_before.unwrap_or(split.first);
                return call_in_parts(split, first, shape, first_port, self.code);
            }
        }
        call_kernel(kernel, shape, first_port, &self.code.scratch)
            .or_else(|fault| call_again(kernel, shape, first_port, self.code, fault))
    }

    #[inline(always)]
    fn read_source(&mut self, source: u32, to: RawPort) {
        // SAFETY: an output port of a verified plan, as in `call`: valid, and this slot's alone.
        let destination = unsafe { std::slice::from_raw_parts_mut(to.ptr, to.bytes) };
        self.context.sources[source as usize].read(destination);
    }

    #[inline(always)]
    fn write_sink(&mut self, sink: u32, from: RawPort, end: u64) -> Result<(), StepStop> {
        // SAFETY: an input port of a verified plan, as in `call`: valid, and nobody writes it now.
        let tokens = unsafe { std::slice::from_raw_parts(from.ptr, from.bytes) };
        let streams = StreamContext {
            spin: self.context.spin,
            stop: self.context.stop,
            clock: self.context.clock,
            status: self.context.status,
        };
        self.context.sinks[sink as usize].write(tokens, self.block, end, streams)?;
        Ok(())
    }

    /// Copies these tokens of the block into the receiver's buffer, and publishes them.
    #[inline(always)]
    fn send(
        &mut self,
        ring: u32,
        from: RawPort,
        to: RawPort,
        tokens: Range<u64>,
    ) -> Result<(), StepStop> {
        let spec = self.code.rings[ring as usize];
        let sync = &self.context.rings[spec.sync as usize];
        let needed_blocks = (self.block + 1).saturating_sub(spec.blocks);
        let peer = &mut self.state.peers[ring as usize];
        sync.wait_released(needed_blocks, peer, self.context.spin, self.context.stop)?;

        // SAFETY: both lie in arenas at offsets of a verified plan, in buffers of different devices. The tokens are
        // written (an earlier slot of this calendar); the receiver has released the place, and reads these tokens only
        // after they are published below.
        unsafe { to.ptr.copy_from_nonoverlapping(from.ptr, from.bytes) };
        if spec.sends.1 > 0 {
            self.note_checksum(ring, spec, tokens.start, from);
            if self.context.epoch.common.corrupt.load(Ordering::Relaxed) != 0 {
                corrupt_sent(self.context.epoch, to);
            }
        }
        sync.publish(self.block * spec.block_tokens + tokens.end);
        Ok(())
    }

    /// Sends the tokens of the block up to `end_token` to another host.
    #[cfg(hosts)]
    fn send_over_wire(
        &mut self,
        ring: u32,
        wired: u32,
        from: RawPort,
        end_token: u64,
    ) -> Result<(), StepStop> {
        let spec = self.code.rings[ring as usize];
        let needed_blocks = (self.block + 1).saturating_sub(spec.blocks);
        wired::wait_released(wired, needed_blocks)?;
        // SAFETY: the tokens are in the arena at offsets of a verified plan; an earlier slot of this calendar has written
        // them, and none writes them again before this one is over.
        let payload = unsafe { std::slice::from_raw_parts(from.ptr, from.bytes) };
        wired::send(wired, self.block * spec.block_tokens + end_token, payload)
    }

    /// Waits for these tokens of the block. Port `ports` is the block's first new token.
    #[inline(always)]
    fn receive(&mut self, ring: u32, ports: u32, tokens: Range<u64>) -> Result<(), StepStop> {
        let spec = self.code.rings[ring as usize];
        let sync = &self.context.rings[spec.sync as usize];
        let needed_tokens = self.block * spec.block_tokens + tokens.end;
        let peer = &mut self.state.peers[ring as usize];
        sync.wait_published(needed_tokens, peer, self.context.spin, self.context.stop)?;

        if spec.sends.1 > 0 {
            let block_start = self.state.table[self.row + ports as usize];
            return self.check_sums(ring, spec, tokens, block_start);
        }
        Ok(())
    }

    /// Copies a port to the one after it.
    #[inline(always)]
    fn carry(&mut self, ports: u32) {
        let source_port = self.port(ports, None);
        let target_port = self.port(ports + 1, None);
        // SAFETY: both lie in one buffer of this device; the verified plan carries after the last write of the block and
        // before the first read of the next. The ranges may overlap, which `copy_from` allows.
        unsafe {
            target_port
                .ptr
                .copy_from(source_port.ptr, source_port.bytes)
        };
    }

    /// Keeps the head at a port for the border after the block, if tokens are saved there.
    #[inline(always)]
    fn save(&mut self, ports: u32, channel: ChannelId) -> Result<(), StepStop> {
        let epoch = self.context.epoch;
        let border = self.block + 1;
        if !epoch
            .borders()
            .is_some_and(|borders| borders.is_saved(border))
        {
            return Ok(());
        }
        wait_for_area(epoch, border, self.context.spin, self.context.stop)?;

        let head_port = self.port(ports, None);
        let (to, bytes) = epoch.saved(Area::Border(border), channel);
        // SAFETY: the head lies in a buffer of this device and is not written before the next block's last slots; the
        // area has a place of this size for the channel, which this worker alone writes, and which nobody reads: see
        // `wait_for_area`.
        unsafe { to.copy_from_nonoverlapping(head_port.ptr, bytes) };
        Ok(())
    }

    /// The place of the block's first checksum among those of the epoch.
    #[inline(always)]
    fn first_sum(&self, spec: RingSpec) -> usize {
        spec.sums + (self.block % spec.blocks) as usize * spec.sends.1
    }

    /// Notes the checksum of what a `Send` from token `first` of the block has copied.
    #[inline(always)]
    fn note_checksum(&mut self, ring: u32, spec: RingSpec, first: u64, sent: RawPort) {
        let first_sum = self.first_sum(spec);
        let noted_sums = &mut self.state.summed[ring as usize];
        if first == 0 {
            *noted_sums = 0;
        }
        // SAFETY: as in `send`: the tokens were written, and are not written again before this slot is over.
        let sent_bytes = unsafe { std::slice::from_raw_parts(sent.ptr, sent.bytes) };
        // Published with the tokens.
        let sums = &self.context.epoch.sums;
        sums[first_sum + *noted_sums].store(checksum::of(sent_bytes), Ordering::Relaxed);
        *noted_sums += 1;
    }

    /// Checks all that was sent of a block before the end of `tokens`, from where the last check ended.
    #[inline(always)]
    fn check_sums(
        &mut self,
        ring: u32,
        spec: RingSpec,
        tokens: Range<u64>,
        block_start: RawPort,
    ) -> Result<(), StepStop> {
        let first_sum = self.first_sum(spec);
        let sends = &self.code.sends[spec.sends.0..spec.sends.0 + spec.sends.1];
        let checked_sums = &mut self.state.summed[ring as usize];
        if tokens.start == 0 {
            *checked_sums = 0;
        }

        while let Some(&(from, end)) = sends
            .get(*checked_sums)
            .filter(|(from, _)| *from < tokens.end)
        {
            let offset_bytes = (from * spec.token_bytes) as usize;
            let send_bytes = ((end - from) * spec.token_bytes) as usize;
            let send_start = block_start.ptr.wrapping_add(offset_bytes);
            // SAFETY: the tokens of this `Send` lie in the block's place, and are published: it ends no later than the
            // tokens that were waited for.
            let received = unsafe { std::slice::from_raw_parts(send_start, send_bytes) };
            let sent = self.context.epoch.sums[first_sum + *checked_sums].load(Ordering::Relaxed);
            let found = checksum::of(received);
            if sent != found {
                return Err(StepStop::Fault(WorkerFault::Corrupt {
                    ring: RingId(spec.sync),
                    sent,
                    found,
                }));
            }
            *checked_sums += 1;
        }
        Ok(())
    }
}

/// Changes a bit of what was just sent, once: an injected fault.
#[cold]
fn corrupt_sent(epoch: &EpochMemory, sent: RawPort) {
    if epoch.common.corrupt.swap(0, Ordering::Relaxed) != 0 && sent.bytes > 0 {
        // SAFETY: as for the copy in `send`: the tokens are not published yet.
        unsafe { *sent.ptr ^= 0x10 };
    }
}
