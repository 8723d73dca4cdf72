//! Where a device and the others exchange tokens, and the exchange as the device does it itself: see the module above.
#![expect(unsafe_code, reason = "loads and stores counters by their addresses")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use zbmd_ir::DeviceId;

use super::queue::{Handover, List, Queue, Range};
use super::{DEPTH, Halt, HostRegion, InFlight, Peers, Replay, block_at};

/// More tokens or blocks than any run has. Devices compare counters as numbers with a sign.
const EVERYTHING: u64 = 1 << 62;

/// Who brings tokens from and to the other devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The host copies them between the shared regions and memory that the device sees, and tells of them.
    #[default]
    Staged,
    /// The device fetches what it receives from the shared region; the host does the rest.
    Fetched,
    /// The device waits, copies and tells; the host only wakes sleepers.
    Device,
}

/// What a device shares with the others, on the host.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    pub(super) regions: BTreeMap<DeviceId, HostRegion>,
    pub(super) memory: Option<HostRegion>,
    /// For each ring of the plan, `published` and `released`.
    pub(super) counters: Vec<[HostRegion; 2]>,
}

impl Exchange {
    /// The exchange regions of the device itself and of every device that it sends to, as far as they have any.
    pub fn new(regions: BTreeMap<DeviceId, HostRegion>) -> Self {
        Self {
            regions,
            ..Self::default()
        }
    }

    /// With whole pages in which the regions lie: a driver may be told of them, as long as the replay lives.
    #[must_use]
    pub fn within(mut self, memory: HostRegion) -> Self {
        self.memory = Some(memory);
        self
    }

    /// With the counters of every ring of the plan, which lie in the same pages: tokens published (which the sender
    /// alone stores) and blocks released (the receiver alone), words of 64 bits. The device itself may then wait for
    /// others and tell them: nobody needs to look at what it sends or receives.
    #[must_use]
    pub fn by_device(mut self, counters: Vec<[HostRegion; 2]>) -> Self {
        self.counters = counters;
        self
    }
}

impl From<BTreeMap<DeviceId, HostRegion>> for Exchange {
    fn from(regions: BTreeMap<DeviceId, HostRegion>) -> Self {
        Self::new(regions)
    }
}

/// Memory of others that has become a bank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adopted {
    pub(super) bank: u32,
    pub(super) memory: HostRegion,
}

impl Adopted {
    /// A region of that memory.
    pub(super) fn range(&self, region: HostRegion) -> Range {
        let start = (region.first as u64).checked_sub(self.memory.first as u64);
        let inside = start.filter(|start| start + region.bytes <= self.memory.bytes);
        Range::new(
            self.bank,
            inside.expect("regions lie in the memory of them all"),
            region.bytes,
        )
    }
}

/// A counter, as both sides see it.
#[derive(Clone, Copy, Debug)]
struct Counter {
    host: HostRegion,
    word: Range,
}

impl Counter {
    fn new(adopted: &Adopted, host: HostRegion) -> Self {
        assert!(host.first.cast::<u64>().is_aligned(), "counters are words");
        Self {
            host,
            word: adopted.range(host),
        }
    }

    fn atomic(&self) -> &AtomicU64 {
        // SAFETY: eight bytes, aligned, valid as long as any replay has them, and never accessed but atomically, as
        // their maker promised.
        unsafe { AtomicU64::from_ptr(self.host.at(0, 8).cast()) }
    }
}

/// A ring of the device.
#[derive(Clone, Copy, Debug)]
struct Ring {
    published: Counter,
    released: Counter,
    /// The receiver's exchange region, where the device is the sender.
    region: Option<Range>,
}

/// The exchange of a device that does it itself.
pub(super) struct Direct {
    rings: Vec<Ring>,
    outbox: u32,
    // Used again and again.
    before: Vec<Handover>,
    after: Vec<Handover>,
}

impl Direct {
    /// For the device's rings: counters, and the receiver's region where the device is the sender. Submissions have so
    /// many receipts and gifts at most.
    pub(super) fn new(
        adopted: &Adopted,
        outbox: u32,
        rings: impl Iterator<Item = ([HostRegion; 2], Option<HostRegion>)>,
        (receipts, gifts): (usize, usize),
    ) -> Self {
        let ring = |([published, released], region): ([HostRegion; 2], Option<HostRegion>)| Ring {
            published: Counter::new(adopted, published),
            released: Counter::new(adopted, released),
            region: region.map(|region| adopted.range(region)),
        };
        Self {
            rings: rings.map(ring).collect(),
            outbox,
            before: Vec::with_capacity(receipts),
            after: Vec::with_capacity(3 * gifts),
        }
    }
}

impl<Q: Queue> Replay<Q> {
    /// Submits a segment's list between the waits for what it receives and the handing over of what it gives.
    pub(super) fn submit_segment(
        &mut self,
        segment: usize,
        (period, blocks): (u64, u64),
        list: Option<List>,
    ) -> Result<(), Halt<Q::Fault>> {
        let Some(direct) = &mut self.direct else {
            return Ok(());
        };
        let Direct {
            rings,
            outbox,
            before,
            after,
        } = direct;
        before.clear();
        after.clear();
        for receipt in &self.segments[segment].receipts {
            let Some(block) = block_at(receipt.stage, period, blocks) else {
                continue;
            };
            let least =
                self.rings[receipt.ring as usize].tokens(block, receipt.first + receipt.count);
            let word = rings[receipt.ring as usize].published.word;
            before.push(Handover::Wait { word, least });
        }
        for gift in &self.segments[segment].gifts {
            let Some(block) = block_at(gift.stage, period, blocks) else {
                continue;
            };
            let (ring, its) = (&self.rings[gift.ring as usize], &rings[gift.ring as usize]);
            let (Some(tokens), Some(region)) = (gift.sends, its.region) else {
                after.push(Handover::Write {
                    word: its.released.word,
                    value: block + 1,
                });
                continue;
            };
            let least = (block + 1).saturating_sub(ring.blocks);
            if least > 0 {
                after.push(Handover::Wait {
                    word: its.released.word,
                    least,
                });
            }
            let (at, len) = ring.place(block, tokens.first, tokens.count);
            let from = tokens.outbox + (period % DEPTH) * ring.outbox_stride;
            let from = Range::new(*outbox, from, len);
            after.push(Handover::Copy {
                from,
                to: Range::new(region.bank, region.start + at, len),
            });
            let value = ring.tokens(block, tokens.first + tokens.count);
            after.push(Handover::Write {
                word: its.published.word,
                value,
            });
        }
        if before.is_empty() && list.is_none() && after.is_empty() {
            return Ok(());
        }
        self.queue
            .submit_between(before, list, after)
            .map_err(Halt::Fault)?;
        self.submitted += 1;
        Ok(())
    }

    /// Waits for a segment's submission: step by step in the calendar's order, first on the host for what the device
    /// waits for, then for the device, and wakes whoever sleeps until then. So a device that hangs is told from one that
    /// waits, and nobody is woken later than if the host had handed over.
    pub(super) fn follow(
        &mut self,
        of: InFlight,
        segment: usize,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Q::Fault>> {
        let Some(direct) = &self.direct else {
            return Ok(());
        };
        for receipt in &self.segments[segment].receipts {
            let Some(block) = block_at(receipt.stage, of.period, of.blocks) else {
                continue;
            };
            let ring = &self.rings[receipt.ring as usize];
            peers.published(
                ring.id,
                ring.tokens(block, receipt.first + receipt.count),
                true,
            )?;
        }
        for gift in &self.segments[segment].gifts {
            let Some(block) = block_at(gift.stage, of.period, of.blocks) else {
                continue;
            };
            let (ring, its) = (
                &self.rings[gift.ring as usize],
                &direct.rings[gift.ring as usize],
            );
            let (counter, count) = match gift.sends {
                None => (its.released, block + 1),
                Some(tokens) => {
                    peers.wait_released(ring.id, (block + 1).saturating_sub(ring.blocks))?;
                    (
                        its.published,
                        ring.tokens(block, tokens.first + tokens.count),
                    )
                }
            };
            // Partner: the device's store, which comes after its copy for the whole system.
            let mut told = || counter.atomic().load(Ordering::Acquire) >= count;
            self.queue
                .wait_until(of.value, self.patience_ns, &mut told)
                .map_err(Halt::Fault)?;
            match gift.sends {
                None => peers.was_released(ring.id, count),
                Some(_) => peers.was_published(ring.id, count),
            }
        }
        Ok(())
    }

    /// The run is given up: lets the device go on wherever it waits for others, until nothing is in flight any more. No
    /// period comes after that. Where the host hands over, the device never waits, and there is nothing to do.
    ///
    /// Each counter that is stored here is read by this device alone, so nobody else takes it for true. What the device
    /// then computes, writes into regions and tells is worthless; so before this, the caller has seen to it that nothing
    /// counts any more that anybody makes of it, in this run of the calendars.
    ///
    /// # Errors
    /// A driver's fault.
    pub fn let_go(&mut self) -> Result<(), Q::Fault> {
        let Some(direct) = &self.direct else {
            return Ok(());
        };
        self.in_flight.clear();
        if self.submitted == 0 || !self.queue.is_alive() {
            return Ok(());
        }
        // Again and again: somebody who does not know yet may store a count of his own.
        let mut store = || {
            for ring in &direct.rings {
                let waits_at = if ring.region.is_some() {
                    ring.released
                } else {
                    ring.published
                };
                waits_at.atomic().store(EVERYTHING, Ordering::Release);
            }
            false
        };
        self.queue
            .wait_until(self.submitted, self.patience_ns, &mut store)
    }
}
