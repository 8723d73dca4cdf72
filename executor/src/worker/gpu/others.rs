//! The other workers, as a GPU's replay sees them: rings, borders, progress words of the epoch's shared memory.
#![expect(
    unsafe_code,
    reason = "reads exchange regions and writes saved borders"
)]

use std::sync::Arc;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use zbmd_backends::gpu;
use zbmd_backends::replay::{Peers, Stopped};
use zbmd_ir::{ChannelId, Graph, Plan, RingId, State};

use super::{DEPTH, DeviceFault, WAITS, WORKS};
use crate::observe::measure::Sample;
use crate::observe::trace::Recorder;
use crate::transport::checksum;
use crate::transport::clock::Clock;
use crate::transport::epoch::{Area, EpochMemory, Post, sums_of};
use crate::transport::primitive::Ordering;
use crate::transport::ring::{Deadline, Peer, Spin};
use crate::worker::border;
use crate::worker::period_loop::{Gate, commit};
use crate::worker::replay::{Halt, wait_for_area};

/// What is kept of the other workers between two calls.
pub(super) struct Others {
    epoch: Arc<EpochMemory>,
    calendar: usize,
    pub(super) stages: u64,
    spin: Spin,
    /// For each ring of the plan, this worker's end, if it has one.
    ends: Vec<End>,
    /// Channels whose tokens this worker keeps at borders.
    keeps: Vec<ChannelId>,
    /// The last border that this worker has passed.
    passed: u64,
    /// A transfer that arrived wrong.
    corrupt: Option<(RingId, u64, u64)>,
    sample_every: u64,
    /// When the last periods were submitted.
    submitted_ns: [u64; DEPTH as usize + 1],
    sample: Sample,
    recorder: Option<Recorder>,
    /// The same in the trace's ticks.
    submitted_ticks: [u64; DEPTH as usize + 1],
}

/// One end of a ring, with the transfers whose checksums are kept.
#[derive(Default)]
struct End {
    peer: Peer,
    /// Checksums: the first one's place, and the token ranges of a block; none if they are off.
    sums: usize,
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

// SAFETY: it points into the epoch's memory, which `Others` keeps alive, and which the protocol of rings keeps in
// order.
unsafe impl Send for Place {}

impl End {
    /// The next transfer that begins before token `tokens`: where its checksum and its bytes are.
    fn next(&mut self, tokens: u64) -> Option<(usize, *mut u8, usize)> {
        let &(from, end) = self.sends.get(self.at)?;
        // Transfers are published as a whole: whose first token is there is there.
        if self.block * self.block_tokens + from >= tokens {
            return None;
        }
        let place = self.block % self.blocks;
        let sum = self.sums + place as usize * self.sends.len() + self.at;
        let offset = place * self.stride + from * self.token_bytes;
        self.at += 1;
        if self.at == self.sends.len() {
            (self.at, self.block) = (0, self.block + 1);
        }
        let first = self.first.0.wrapping_add(offset as usize);
        Some((sum, first, ((end - from) * self.token_bytes) as usize))
    }
}

impl Others {
    pub(super) fn new(
        graph: &Graph,
        plan: &Plan,
        calendar: usize,
        epoch: &Arc<EpochMemory>,
    ) -> Self {
        let own = plan.calendars[calendar].device;
        let sums = (!epoch.sums.is_empty()).then(|| sums_of(plan));
        let end = |(id, ring): (RingId, &zbmd_ir::Ring)| {
            let buffer = &plan.buffers[ring.buffer];
            let mut end = End::default();
            if let (Some(sums), true) = (&sums, ring.from == own || ring.to == own) {
                let token_bytes = graph.channels[buffer.channel].token.bytes();
                let offset = buffer.offset_bytes + buffer.head_tokens * token_bytes;
                end.sums = sums.firsts[id.0 as usize];
                end.sends = sums.sends[id].clone();
                end.block_tokens = buffer.block_tokens;
                end.blocks = buffer.blocks.into();
                end.token_bytes = token_bytes;
                end.first = Place(epoch.exchange(ring.to).wrapping_add(offset as usize));
                end.stride = buffer.stride_bytes;
            }
            end
        };
        let keepers = border::keepers(graph, plan)
            .into_iter()
            .map(|id| &plan.buffers[id]);
        let keeps = keepers.filter(|b| b.device == own).map(|b| b.channel);
        Self {
            epoch: Arc::clone(epoch),
            calendar,
            stages: plan.stages.into(),
            spin: Spin::SHORT,
            ends: plan.rings.iter_enumerated().map(end).collect(),
            keeps: keeps.collect(),
            passed: 0,
            corrupt: None,
            sample_every: 0,
            submitted_ns: [0; DEPTH as usize + 1],
            sample: Sample::default(),
            recorder: None,
            submitted_ticks: [0; DEPTH as usize + 1],
        }
    }

    pub(super) fn begin(&mut self, spin: Spin, sample_every: u64, recorder: Option<Recorder>) {
        (self.spin, self.sample_every, self.recorder) = (spin, sample_every, recorder);
    }

    fn post(&self) -> &Post {
        &self.epoch.posts[self.calendar]
    }

    /// The worker waits for others from now on.
    pub(super) fn waits(&self) {
        self.post().pc.store(WAITS, Ordering::Relaxed);
    }

    /// A period is about to be submitted.
    pub(super) fn submits(&mut self, period: u64, clock: &Clock) {
        self.post().pc.store(WORKS, Ordering::Relaxed);
        if self.is_sampled(period) {
            self.submitted_ns[(period % (DEPTH + 1)) as usize] = clock.now_ns();
        }
        if let Some(recorder) = &self.recorder {
            self.submitted_ticks[(period % (DEPTH + 1)) as usize] = recorder.now();
        }
    }

    /// The first periods warm everything up; they are not sampled.
    fn is_sampled(&self, period: u64) -> bool {
        self.sample_every > 0 && period > 0 && period.is_multiple_of(self.sample_every)
    }

    pub(super) fn sample(&self) -> Sample {
        self.sample
    }

    /// The rings at which this worker has waited, and how often.
    pub(super) fn waits_of_rings(&self) -> impl Iterator<Item = (RingId, u64)> {
        let waits = self.ends.iter().enumerate();
        waits
            .map(|(i, end)| (RingId(i as u32), end.peer.waits))
            .filter(|(_, waits)| *waits > 0)
    }

    /// With what else it takes to be a replay's peers.
    pub(super) fn with<'a>(&'a mut self, gate: &'a Gate) -> With<'a> {
        With { others: self, gate }
    }

    /// What a call of the replay came to.
    pub(super) fn outcome<T>(
        &mut self,
        name: &str,
        result: Result<T, gpu::Halt>,
    ) -> Result<T, Halt> {
        result.map_err(|halt| match (halt, self.corrupt.take()) {
            (gpu::Halt::Fault(fault), _) => Halt::Device(DeviceFault {
                device: name.to_owned(),
                fault,
            }),
            (_, Some((ring, sent, found))) => Halt::Corrupt {
                ring: ring.0,
                sent,
                found,
            },
            (gpu::Halt::Stopped, None) => Halt::Stopped,
        })
    }

    /// After a stop, waits until the other workers have ended, so that nobody reads tokens which the device, once it is
    /// let go, writes over; those that are dead or hang are not waited for.
    pub(super) fn see_off(&self) {
        const TIME: Duration = Duration::from_millis(10);
        const PAUSE: Duration = Duration::from_micros(50);
        // Its own host does nothing with tokens any more, and others may wait for it in turn.
        self.post().left.store(1, Ordering::Release);
        let deadline = Deadline::after(TIME);
        let has_left = |post: &CachePadded<Post>| post.left.load(Ordering::Acquire) != 0;
        while !self.epoch.posts.iter().all(has_left) && deadline.left_ns() != Some(0) {
            std::thread::sleep(PAUSE);
        }
    }

    /// Puts the last tokens of each channel that this device keeps into the end area.
    pub(super) fn export(&self, state: &State) {
        for &channel in &self.keeps {
            let (to, bytes) = self.epoch.saved(Area::End, channel);
            let tokens = &state.channels[channel];
            assert_eq!(tokens.len(), bytes, "a state of this graph");
            // SAFETY: the area has a place of this size for the channel, whose one keeper's worker alone writes it.
            unsafe { to.copy_from_nonoverlapping(tokens.as_ptr(), bytes) };
        }
    }
}

/// [`Others`] during one call of the replay.
pub(super) struct With<'a> {
    others: &'a mut Others,
    gate: &'a Gate,
}

impl With<'_> {
    /// Checks the transfers that arrived before token `tokens`.
    fn check(&mut self, ring: RingId, tokens: u64) -> Result<(), Stopped> {
        let Others {
            epoch,
            ends,
            corrupt,
            ..
        } = &mut *self.others;
        while let Some((sum, from, bytes)) = ends[ring.0 as usize].next(tokens) {
            // SAFETY: the transfer lies in a place of the ring, and is published: nobody writes it before its release.
            let found = checksum::of(unsafe { std::slice::from_raw_parts(from, bytes) });
            let sent = epoch.sums[sum].load(Ordering::Relaxed);
            if sent != found {
                *corrupt = Some((ring, sent, found));
                return Err(Stopped);
            }
        }
        Ok(())
    }

    /// Notes the checksums of the transfers before token `tokens`, which are not published yet.
    fn note(&mut self, ring: RingId, tokens: u64) {
        let Others { epoch, ends, .. } = &mut *self.others;
        while let Some((sum, at, bytes)) = ends[ring.0 as usize].next(tokens) {
            // SAFETY: the replay has just written the transfer into a place that its receiver has released.
            let sent = checksum::of(unsafe { std::slice::from_raw_parts(at, bytes) });
            epoch.sums[sum].store(sent, Ordering::Relaxed);
            let spoil = &epoch.common.corrupt;
            if spoil.load(Ordering::Relaxed) != 0 && spoil.swap(0, Ordering::Relaxed) != 0 {
                // SAFETY: as above; a transfer has one byte at least. A fault brought about on purpose.
                unsafe { *at ^= 0x10 };
            }
        }
    }

    /// Does something that may wait for other workers.
    fn wait<T>(&mut self, wait: impl FnOnce(&mut Others) -> T) -> T {
        self.others.waits();
        let done = wait(self.others);
        self.others.post().pc.store(WORKS, Ordering::Relaxed);
        done
    }
}

impl Peers for With<'_> {
    fn published(&mut self, ring: RingId, tokens: u64, wait: bool) -> Result<bool, Stopped> {
        let index = ring.0 as usize;
        let there = {
            let Others { epoch, ends, .. } = &mut *self.others;
            epoch.rings[index].has_published(tokens, &mut ends[index].peer)
        };
        if !there && !wait {
            return Ok(false);
        }
        if !there {
            self.wait(|others| {
                let Others {
                    epoch, ends, spin, ..
                } = others;
                let (peer, stop) = (&mut ends[index].peer, &epoch.common.stop);
                epoch.rings[index].wait_published(tokens, peer, *spin, stop)
            })
            .map_err(|_| Stopped)?;
        }
        self.check(ring, tokens)?;
        Ok(true)
    }

    fn wait_released(&mut self, ring: RingId, blocks: u64) -> Result<(), Stopped> {
        let index = ring.0 as usize;
        self.wait(|others| {
            let Others {
                epoch, ends, spin, ..
            } = others;
            let (peer, stop) = (&mut ends[index].peer, &epoch.common.stop);
            epoch.rings[index].wait_released(blocks, peer, *spin, stop)
        })
        .map_err(|_| Stopped)
    }

    fn publish(&mut self, ring: RingId, tokens: u64) {
        self.note(ring, tokens);
        self.others.epoch.rings[ring.0 as usize].publish(tokens);
    }

    fn release(&mut self, ring: RingId, blocks: u64) {
        self.others.epoch.rings[ring.0 as usize].release(blocks);
    }

    fn was_published(&mut self, ring: RingId, tokens: u64) {
        self.others.epoch.rings[ring.0 as usize].tell_published(tokens);
    }

    fn was_released(&mut self, ring: RingId, blocks: u64) {
        self.others.epoch.rings[ring.0 as usize].tell_released(blocks);
    }

    fn save(&mut self, border: u64, channel: ChannelId, tokens: &[u8]) -> Result<(), Stopped> {
        self.wait(|others| {
            let Others { epoch, spin, .. } = others;
            wait_for_area(epoch, border, *spin, &epoch.common.stop)
        })
        .map_err(|_| Stopped)?;
        let (to, bytes) = self.others.epoch.saved(Area::Border(border), channel);
        assert_eq!(tokens.len(), bytes, "a keeper holds the whole history");
        // SAFETY: the area has a place of this size for the channel, whose one keeper's worker alone writes it, and
        // which nobody reads: see `wait_for_area`.
        unsafe { to.copy_from_nonoverlapping(tokens.as_ptr(), bytes) };
        Ok(())
    }

    fn ended(&mut self, periods: u64) {
        let others = &mut *self.others;
        if others.is_sampled(periods - 1) {
            let submitted_ns = others.submitted_ns[((periods - 1) % (DEPTH + 1)) as usize];
            others
                .sample
                .record(0, Clock.now_ns().saturating_sub(submitted_ns));
        }
        if let Some(recorder) = &mut others.recorder {
            let period = periods - 1;
            recorder.overlapping(
                period,
                others.submitted_ticks[(period % (DEPTH + 1)) as usize],
            );
        }
        others.post().periods.store(periods, Ordering::Release);
        let passed = others.epoch.borders().map_or(0, |b| b.passed(periods));
        if passed > others.passed {
            others.passed = passed;
            commit(&others.epoch, self.gate);
        }
    }
}
