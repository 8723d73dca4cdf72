//! The other workers, as a GPU's replay sees them: rings, borders, progress words of the epoch's shared memory, and wires to those
//! on other hosts.
#![expect(
    unsafe_code,
    reason = "reads exchange regions and writes saved borders"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use zbmd_devices::gpu::Halt;
use zbmd_hal::{Peers, Stopped};
use zbmd_ir::{ChannelId, Graph, Plan, Ring, RingId, State};

use super::{MAX_IN_FLIGHT, WAITS, WORKS};
use crate::fault::{DeviceFault, StepStop, WorkerFault};
use crate::observe::measure::SlotSample;
use crate::transport::admission::AdmissionGate;
use crate::transport::checksum::{self, Sums, sums_of};
use crate::transport::clock::Clock;
use crate::transport::epoch::{Area, EpochMemory};
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::primitive::Ordering;
use crate::transport::ring::{Deadline, Peer, Spin};
use crate::transport::trace_ring::TraceRecorder;
use crate::worker::border::{commit_border, keepers, wait_for_area};
#[cfg(hosts)]
use crate::worker::wired;

/// Submissions that are remembered: those in flight, and the one that is being ended.
const REMEMBERED_SUBMISSIONS: usize = MAX_IN_FLIGHT as usize + 1;

/// What is kept of the other workers between two calls.
pub(super) struct GpuPeers {
    pub(super) epoch: Arc<EpochMemory>,
    calendar: usize,
    pub(super) spin: Spin,
    /// For each ring of the plan, this worker's end, if it has one.
    ends: Vec<RingEnd>,
    /// Channels whose tokens this worker keeps at borders.
    keeps: Vec<ChannelId>,
    /// The last border that this worker has passed.
    passed: u64,
    /// Why this worker can give or take nothing more: a transfer that arrived wrong, or a wire that carries nothing any more.
    failure: Option<StepStop>,
    pub(super) sample_every: u64,
    /// When the last periods were submitted.
    submitted_ns: [u64; REMEMBERED_SUBMISSIONS],
    pub(super) sample: SlotSample,
    pub(super) recorder: Option<TraceRecorder>,
    /// The same in the trace's ticks.
    submitted_ticks: [u64; REMEMBERED_SUBMISSIONS],
}

/// One end of a ring, with the transfers that have checksums, or that are sent to another host.
#[derive(Default)]
struct RingEnd {
    peer: Peer,
    /// Its number among the worker's wired rings, if its other end is on another host.
    #[cfg(hosts)]
    wired: Option<u32>,
    /// The place of the first transfer's checksum.
    sums: usize,
    /// The token ranges of a block's transfers; none if nothing is done with each.
    sends: Vec<(u64, u64)>,
    /// The next transfer.
    block: u64,
    at: usize,
    block_tokens: u64,
    blocks: u64,
    token_bytes: u64,
    /// First new token of place 0, and bytes from place to place.
    first: Place,
    stride: u64,
}

/// An address in the epoch's memory.
struct Place(*mut u8);

impl Default for Place {
    fn default() -> Self {
        Self(std::ptr::null_mut())
    }
}

// SAFETY: it points into the epoch's memory, which `GpuPeers` keeps alive, and which the protocol of rings keeps in
// order.
unsafe impl Send for Place {}

/// What one `Send` of a block carries: where its checksum and its bytes are, and how many tokens of the ring there are with it.
struct Transfer {
    sum_index: usize,
    #[cfg(hosts)]
    tokens: u64,
    first: *mut u8,
    bytes: usize,
}

impl RingEnd {
    /// The next transfer that begins before token `tokens`.
    fn next_transfer(&mut self, tokens: u64) -> Option<Transfer> {
        let &(from, end) = self.sends.get(self.at)?;
        // Transfers are published as a whole: whose first token is there is there.
        let block_start = self.block * self.block_tokens;
        if block_start + from >= tokens {
            return None;
        }

        let place_index = self.block % self.blocks;
        let sum_index = self.sums + place_index as usize * self.sends.len() + self.at;
        let offset_bytes = place_index * self.stride + from * self.token_bytes;
        self.at += 1;
        if self.at == self.sends.len() {
            self.at = 0;
            self.block += 1;
        }

        Some(Transfer {
            sum_index,
            #[cfg(hosts)]
            tokens: block_start + end,
            first: self.first.0.wrapping_add(offset_bytes as usize),
            bytes: ((end - from) * self.token_bytes) as usize,
        })
    }
}

impl RingEnd {
    /// The end of a ring whose other end is on another host. What comes there has been checked by the wire.
    #[cfg(hosts)]
    fn to_other_host(
        graph: &Graph,
        plan: &Plan,
        ring_id: RingId,
        epoch: &EpochMemory,
        wired: u32,
        is_sender: bool,
        sums: &Sums,
    ) -> Self {
        let end = match is_sender {
            true => Self::with_transfers(graph, plan, ring_id, epoch, sums),
            false => Self::default(),
        };
        Self {
            wired: Some(wired),
            ..end
        }
    }

    /// The end of a ring between the device and another, with its transfers.
    fn with_transfers(
        graph: &Graph,
        plan: &Plan,
        ring_id: RingId,
        epoch: &EpochMemory,
        sums: &Sums,
    ) -> Self {
        let ring = &plan.rings[ring_id];
        let buffer = &plan.buffers[ring.buffer];
        let token_bytes = graph.channels[buffer.channel].token.bytes();
        let first_offset = buffer.offset_bytes + buffer.head_tokens * token_bytes;
        Self {
            sums: sums.firsts[ring_id.0 as usize],
            sends: sums.sends[ring_id].clone(),
            block_tokens: buffer.block_tokens,
            blocks: buffer.blocks.into(),
            token_bytes,
            first: Place(epoch.exchange(ring.to).wrapping_add(first_offset as usize)),
            stride: buffer.stride_bytes,
            ..Self::default()
        }
    }
}

impl GpuPeers {
    pub(super) fn new(
        graph: &Graph,
        plan: &Plan,
        calendar: usize,
        epoch: &Arc<EpochMemory>,
        wired_rings: &BTreeMap<RingId, u32>,
    ) -> Self {
        let own_device = plan.calendars[calendar].device;
        let has_checksums = !epoch.sums.is_empty();
        let sums = (has_checksums || !wired_rings.is_empty()).then(|| sums_of(plan));
        let ring_end = |(id, ring): (RingId, &Ring)| {
            let is_own = ring.from == own_device || ring.to == own_device;
            match (&sums, wired_rings.get(&id)) {
                #[cfg(hosts)]
                (Some(sums), Some(&wired)) => {
                    let is_sender = ring.from == own_device;
                    RingEnd::to_other_host(graph, plan, id, epoch, wired, is_sender, sums)
                }
                (Some(sums), None) if is_own && has_checksums => {
                    RingEnd::with_transfers(graph, plan, id, epoch, sums)
                }
                _ => RingEnd::default(),
            }
        };
        let ring_ends = plan.rings.iter_enumerated().map(ring_end);
        let keeper_ids = keepers(graph, plan).into_iter();
        let keeper_buffers = keeper_ids.map(|id| &plan.buffers[id]);
        let kept_buffers = keeper_buffers.filter(|buffer| buffer.device == own_device);

        Self {
            epoch: Arc::clone(epoch),
            calendar,
            spin: Spin::SHORT,
            ends: ring_ends.collect(),
            keeps: kept_buffers.map(|buffer| buffer.channel).collect(),
            passed: 0,
            failure: None,
            sample_every: 0,
            submitted_ns: [0; REMEMBERED_SUBMISSIONS],
            sample: SlotSample::default(),
            recorder: None,
            submitted_ticks: [0; REMEMBERED_SUBMISSIONS],
        }
    }

    fn status(&self) -> &WorkerStatus {
        &self.epoch.statuses[self.calendar]
    }

    /// The worker waits for others from now on.
    pub(super) fn note_wait(&self) {
        self.status().pc.store(WAITS, Ordering::Relaxed);
    }

    /// A period is about to be submitted.
    pub(super) fn note_submission(&mut self, period: u64) {
        self.status().pc.store(WORKS, Ordering::Relaxed);
        let index = submission_index(period);
        if self.is_sampled(period) {
            self.submitted_ns[index] = Clock.now_ns();
        }
        if let Some(recorder) = &self.recorder {
            self.submitted_ticks[index] = recorder.now();
        }
    }

    /// The first periods warm everything up; they are not sampled.
    fn is_sampled(&self, period: u64) -> bool {
        self.sample_every > 0 && period > 0 && period.is_multiple_of(self.sample_every)
    }

    /// The rings at which this worker has waited, and how often.
    pub(super) fn waits_of_rings(&self) -> impl Iterator<Item = (RingId, u64)> {
        let ring_ends = self.ends.iter().enumerate();
        ring_ends
            .map(|(index, end)| (RingId(index as u32), end.peer.waits))
            .filter(|(_, waits)| *waits > 0)
    }

    /// What a replay asks of the other workers, during one call.
    pub(super) fn during_call<'a>(&'a mut self, gate: &'a AdmissionGate) -> PeersDuringCall<'a> {
        PeersDuringCall { peers: self, gate }
    }

    /// The result of a call of the replay.
    ///
    /// # Errors
    /// What stopped the call, or what it could not give to other workers.
    pub(super) fn step_result<T>(
        &mut self,
        device_name: &str,
        result: Result<T, Halt>,
    ) -> Result<T, StepStop> {
        match (result, self.failure.take()) {
            (Err(Halt::Fault(fault)), _) => Err(StepStop::from(DeviceFault {
                device: device_name.to_owned(),
                fault,
            })),
            (_, Some(failure)) => Err(failure),
            (Err(Halt::Stopped), None) => Err(StepStop::Stopped),
            (Ok(done), None) => Ok(done),
        }
    }

    /// What was done over a wire; a failure is remembered.
    #[cfg(hosts)]
    fn over_wire<T>(&mut self, result: Result<T, StepStop>) -> Result<T, Stopped> {
        result.map_err(|stop| {
            self.failure.get_or_insert(stop);
            Stopped
        })
    }

    /// After a stop, waits until the other workers have ended, so that nobody reads tokens which the device, once it is
    /// released, writes over; those that are dead or hang are not waited for.
    pub(super) fn wait_for_others_to_end(&self) {
        const TIME: Duration = Duration::from_millis(10);
        const PAUSE: Duration = Duration::from_micros(50);
        // Its own host does nothing with tokens any more, and others may wait for it in turn.
        self.status().has_left.store(1, Ordering::Release);

        let deadline = Deadline::after(TIME);
        let statuses = &self.epoch.statuses;
        let has_left = |status: &WorkerStatus| status.has_left.load(Ordering::Acquire) != 0;
        while !statuses.iter().all(|status| has_left(status)) && deadline.left_ns() != Some(0) {
            std::thread::sleep(PAUSE);
        }
    }

    /// Puts the last tokens of each channel that this device keeps into the end area.
    pub(super) fn export(&self, state: &State) {
        for &channel in &self.keeps {
            let (to, bytes) = self.epoch.saved(Area::End, channel);
            let channel_tokens = &state.channels[channel];
            assert_eq!(channel_tokens.len(), bytes, "a state of this graph");
            // SAFETY: the area has a place of this size for the channel, whose one keeper's worker alone writes it.
            unsafe { to.copy_from_nonoverlapping(channel_tokens.as_ptr(), bytes) };
        }
    }
}

/// [`GpuPeers`] during one call of the replay.
pub(super) struct PeersDuringCall<'a> {
    peers: &'a mut GpuPeers,
    gate: &'a AdmissionGate,
}

/// Where the submission of a period is remembered.
fn submission_index(period: u64) -> usize {
    period as usize % REMEMBERED_SUBMISSIONS
}

impl PeersDuringCall<'_> {
    /// Checks the transfers that arrived before token `tokens`.
    fn check_transfers(&mut self, ring: RingId, tokens: u64) -> Result<(), Stopped> {
        let GpuPeers {
            epoch,
            ends,
            failure,
            ..
        } = &mut *self.peers;
        while let Some(transfer) = ends[ring.0 as usize].next_transfer(tokens) {
            // SAFETY: the transfer lies in a place of the ring, and is published: nobody writes it before its release.
            let received = unsafe { std::slice::from_raw_parts(transfer.first, transfer.bytes) };
            let found = checksum::of(received);
            let sent = epoch.sums[transfer.sum_index].load(Ordering::Relaxed);
            if sent != found {
                let fault = WorkerFault::Corrupt { ring, sent, found };
                *failure = Some(StepStop::Fault(fault));
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// Notes the checksums of the transfers before token `tokens`, which are not published yet.
    fn note_checksums(&mut self, ring: RingId, tokens: u64) {
        let GpuPeers { epoch, ends, .. } = &mut *self.peers;

        while let Some(transfer) = ends[ring.0 as usize].next_transfer(tokens) {
            // SAFETY: the replay has just written the transfer into a place that its receiver has released.
            let written = unsafe { std::slice::from_raw_parts(transfer.first, transfer.bytes) };
            let sent = checksum::of(written);
            epoch.sums[transfer.sum_index].store(sent, Ordering::Relaxed);
            let corrupt_request = &epoch.common.corrupt;
            if corrupt_request.load(Ordering::Relaxed) != 0
                && corrupt_request.swap(0, Ordering::Relaxed) != 0
            {
                // SAFETY: as above; a transfer has one byte at least. An injected fault.
                unsafe { *transfer.first ^= 0x10 };
            }
        }
    }

    /// Sends the transfers before token `tokens`, which the replay has put where the receiver's places are on this host.
    #[cfg(hosts)]
    fn send_transfers(&mut self, ring: RingId, wired: u32, tokens: u64) {
        while self.peers.failure.is_none()
            && let Some(transfer) = self.peers.ends[ring.0 as usize].next_transfer(tokens)
        {
            // SAFETY: the replay has just written the transfer into a place whose tokens the receiver has released, and writes
            // nothing there before it has waited for that again.
            let written = unsafe { std::slice::from_raw_parts(transfer.first, transfer.bytes) };
            let send = |_: &mut GpuPeers| wired::send(wired, transfer.tokens, written);
            let sent = self.while_waiting(send);
            // What follows finds the failure.
            let _ = self.peers.over_wire(sent);
        }
    }

    /// Does something that may wait for other workers.
    fn while_waiting<T>(&mut self, wait: impl FnOnce(&mut GpuPeers) -> T) -> T {
        self.peers.note_wait();
        let wait_result = wait(self.peers);
        self.peers.status().pc.store(WORKS, Ordering::Relaxed);
        wait_result
    }
}

impl Peers for PeersDuringCall<'_> {
    fn published(&mut self, ring: RingId, tokens: u64, wait: bool) -> Result<bool, Stopped> {
        let ring_index = ring.0 as usize;
        #[cfg(hosts)]
        if let Some(wired) = self.peers.ends[ring_index].wired {
            let mut published = wired::has_published(wired, tokens);
            if wait && matches!(published, Ok(false)) {
                let wait_for_tokens = |_: &mut GpuPeers| wired::wait_published(wired, tokens);
                published = self.while_waiting(wait_for_tokens).map(|()| true);
            }
            return self.peers.over_wire(published);
        }

        let is_published = {
            let GpuPeers { epoch, ends, .. } = &mut *self.peers;
            epoch.rings[ring_index].has_published(tokens, &mut ends[ring_index].peer)
        };
        if !is_published && !wait {
            return Ok(false);
        }
        if !is_published {
            self.while_waiting(|peers| {
                let GpuPeers {
                    epoch, ends, spin, ..
                } = peers;
                let ring_peer = &mut ends[ring_index].peer;
                let stop = &epoch.common.stop;
                epoch.rings[ring_index].wait_published(tokens, ring_peer, *spin, stop)
            })
            .map_err(|_| Stopped)?;
        }
        self.check_transfers(ring, tokens)?;
        Ok(true)
    }

    fn wait_released(&mut self, ring: RingId, blocks: u64) -> Result<(), Stopped> {
        let ring_index = ring.0 as usize;
        #[cfg(hosts)]
        if let Some(wired) = self.peers.ends[ring_index].wired {
            let waited = self.while_waiting(|_| wired::wait_released(wired, blocks));
            return self.peers.over_wire(waited);
        }

        self.while_waiting(|peers| {
            let GpuPeers {
                epoch, ends, spin, ..
            } = peers;
            let ring_peer = &mut ends[ring_index].peer;
            let stop = &epoch.common.stop;
            epoch.rings[ring_index].wait_released(blocks, ring_peer, *spin, stop)
        })
        .map_err(|_| Stopped)
    }

    fn publish(&mut self, ring: RingId, tokens: u64) {
        #[cfg(hosts)]
        if let Some(wired) = self.peers.ends[ring.0 as usize].wired {
            self.send_transfers(ring, wired, tokens);
            return;
        }
        self.note_checksums(ring, tokens);
        self.peers.epoch.rings[ring.0 as usize].publish(tokens);
    }

    fn release(&mut self, ring: RingId, blocks: u64) {
        #[cfg(hosts)]
        if let Some(wired) = self.peers.ends[ring.0 as usize].wired {
            // What follows finds the failure.
            let _ = self.peers.over_wire(wired::release(wired, blocks));
            return;
        }
        self.peers.epoch.rings[ring.0 as usize].release(blocks);
    }

    fn was_published(&mut self, ring: RingId, tokens: u64) {
        self.peers.epoch.rings[ring.0 as usize].announce_published(tokens);
    }

    fn was_released(&mut self, ring: RingId, blocks: u64) {
        self.peers.epoch.rings[ring.0 as usize].announce_released(blocks);
    }

    fn save(&mut self, border: u64, channel: ChannelId, tokens: &[u8]) -> Result<(), Stopped> {
        self.while_waiting(|peers| {
            let GpuPeers { epoch, spin, .. } = peers;
            wait_for_area(epoch, border, *spin, &epoch.common.stop)
        })
        .map_err(|_| Stopped)?;

        let (to, bytes) = self.peers.epoch.saved(Area::Border(border), channel);
        assert_eq!(tokens.len(), bytes, "a keeper holds the whole history");
        // SAFETY: the area has a place of this size for the channel, whose one keeper's worker alone writes it, and
        // which nobody reads: see `wait_for_area`.
        unsafe { to.copy_from_nonoverlapping(tokens.as_ptr(), bytes) };
        Ok(())
    }

    fn ended(&mut self, periods: u64) {
        let peers = &mut *self.peers;
        if peers.failure.is_some() {
            // Not all that they send was handed over.
            return;
        }
        if peers.is_sampled(periods - 1) {
            let submitted_ns = peers.submitted_ns[submission_index(periods - 1)];
            peers
                .sample
                .record(0, Clock.now_ns().saturating_sub(submitted_ns));
        }
        if let Some(recorder) = &mut peers.recorder {
            let period = periods - 1;
            recorder.overlapping(period, peers.submitted_ticks[submission_index(period)]);
        }
        peers.status().periods.store(periods, Ordering::Release);

        let passed_border = peers
            .epoch
            .borders()
            .map_or(0, |borders| borders.passed(periods));
        if passed_border > peers.passed {
            peers.passed = passed_border;
            commit_border(&peers.epoch, self.gate);
        }
    }
}
