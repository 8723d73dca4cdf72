//! Where a device and the others exchange tokens, and the exchange as the device does it itself: see the module above.
#![expect(unsafe_code, reason = "loads and stores counters by their addresses")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use zbmd_ir::DeviceId;

use super::queue::{BankRange, CommandList, Queue, QueueOp};
use super::segment::{Handover, ReadySegment, Receipt, RingInfo};
use super::{DEPTH, Halt, HostRegion, InFlight, Peers, PeriodOfRun, Replay};

/// More tokens or blocks than any run has. Devices compare counters as signed numbers.
const MAX_COUNT: u64 = 1 << 62;

/// Who moves tokens from and to the other devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The host copies them between the shared regions and memory that the device sees, and publishes them.
    #[default]
    Staged,
    /// The device fetches what it receives from the shared region; the host does the rest.
    Fetched,
    /// The device waits, copies and publishes; the host only wakes sleeping threads.
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
    /// The exchange regions of the device itself and of every device that it sends to, where they have one.
    pub fn new(regions: BTreeMap<DeviceId, HostRegion>) -> Self {
        Self {
            regions,
            ..Self::default()
        }
    }

    /// With the whole pages that contain the regions: a driver may register them for as long as the replay exists.
    #[must_use]
    pub fn within(mut self, memory: HostRegion) -> Self {
        self.memory = Some(memory);
        self
    }

    /// With the counters of every ring of the plan, which are in the same pages: tokens published (which the sender
    /// alone stores) and blocks released (the receiver alone), words of 64 bits. The device itself may then wait for
    /// others and publish to them: the host need not read what it sends or receives.
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
pub(super) struct ImportedMemory {
    pub(super) bank: u32,
    pub(super) memory: HostRegion,
}

impl ImportedMemory {
    /// A region of that memory.
    pub(super) fn range_of(&self, region: HostRegion) -> BankRange {
        let start = (region.first as u64).checked_sub(self.memory.first as u64);
        let inside = start.filter(|start| start + region.bytes <= self.memory.bytes);
        let start = inside.expect("regions are parts of the memory given beside them");
        BankRange::new(self.bank, start, region.bytes)
    }
}

/// A counter, as both sides see it.
#[derive(Clone, Copy, Debug)]
struct SharedCounter {
    host: HostRegion,
    word: BankRange,
}

impl SharedCounter {
    fn new(imported: &ImportedMemory, host: HostRegion) -> Self {
        assert!(host.first.cast::<u64>().is_aligned(), "counters are words");
        Self {
            host,
            word: imported.range_of(host),
        }
    }

    fn as_atomic(&self) -> &AtomicU64 {
        // SAFETY: `pointer` checks that there are eight bytes, and `new` that they are aligned; they are valid as long
        // as any replay has them and never accessed but atomically, as the region's maker promised.
        unsafe { AtomicU64::from_ptr(self.host.pointer(0, 8).cast()) }
    }
}

/// What a ring is made of where the device does the exchange.
pub(super) struct RingCounters {
    /// `published` and `released`.
    pub(super) counters: [HostRegion; 2],
    /// The receiver's exchange region, where the device is the sender.
    pub(super) region: Option<HostRegion>,
}

/// A ring of the device.
#[derive(Clone, Copy, Debug)]
struct ExchangeRing {
    published: SharedCounter,
    released: SharedCounter,
    /// The receiver's exchange region, where the device is the sender.
    region: Option<BankRange>,
}

/// The exchange of a device that does it itself.
pub(super) struct DeviceExchange {
    rings: Vec<ExchangeRing>,
    outbox: u32,
    // Both are reused by every submission, so that none allocates.
    before: Vec<QueueOp>,
    after: Vec<QueueOp>,
}

impl DeviceExchange {
    /// For the device's rings, with room for the submissions of these segments.
    pub(super) fn new(
        imported: &ImportedMemory,
        outbox: u32,
        rings: impl Iterator<Item = RingCounters>,
        segments: &[ReadySegment],
    ) -> Self {
        let rings = rings.map(|ring| {
            let [published, released] = ring.counters;
            ExchangeRing {
                published: SharedCounter::new(imported, published),
                released: SharedCounter::new(imported, released),
                region: ring.region.map(|region| imported.range_of(region)),
            }
        });
        let receipt_counts = segments.iter().map(|segment| segment.receipts.len());
        let handover_counts = segments.iter().map(|segment| segment.handovers.len());
        Self {
            rings: rings.collect(),
            outbox,
            before: Vec::with_capacity(receipt_counts.max().unwrap_or(0)),
            // A handover is at most a wait, a copy and a store.
            after: Vec::with_capacity(3 * handover_counts.max().unwrap_or(0)),
        }
    }

    /// Notes the wait for tokens that a submission receives.
    fn push_receipt(&mut self, receipt: &Receipt, ring: &RingInfo, when: PeriodOfRun) {
        let Some(block) = when.block_of_stage(receipt.stage) else {
            return;
        };
        self.before.push(QueueOp::Wait {
            word: self.rings[receipt.ring as usize].published.word,
            min: ring.tokens_until(block, receipt.first + receipt.count),
        });
    }

    /// Notes what a submission does after its list: a release, or tokens sent and published.
    fn push_handover(&mut self, handover: &Handover, ring: &RingInfo, when: PeriodOfRun) {
        let Some(block) = when.block_of_stage(handover.stage) else {
            return;
        };
        let shared = self.rings[handover.ring as usize];
        let (Some(sent), Some(region)) = (handover.sends, shared.region) else {
            self.after.push(QueueOp::Write {
                word: shared.released.word,
                value: block + 1,
            });
            return;
        };

        let min_released = (block + 1).saturating_sub(ring.blocks);
        if min_released > 0 {
            self.after.push(QueueOp::Wait {
                word: shared.released.word,
                min: min_released,
            });
        }
        let place = ring.token_place(block, sent.first, sent.count);
        let outbox_offset = sent.outbox + (when.period % DEPTH) * ring.outbox_stride;
        self.after.push(QueueOp::Copy {
            from: BankRange::new(self.outbox, outbox_offset, place.len),
            to: BankRange::new(region.bank, region.start + place.offset, place.len),
        });
        self.after.push(QueueOp::Write {
            word: shared.published.word,
            value: ring.tokens_until(block, sent.first + sent.count),
        });
    }
}

impl<Q: Queue> Replay<Q> {
    /// Submits a segment's list between the waits for what it receives and the handing over of what it sends.
    pub(super) fn submit_with_exchange(
        &mut self,
        segment: usize,
        when: PeriodOfRun,
        list: Option<CommandList>,
    ) -> Result<(), Halt<Q::Fault>> {
        let Some(exchange) = &mut self.device_exchange else {
            return Ok(());
        };

        exchange.before.clear();
        exchange.after.clear();
        for receipt in &self.segments[segment].receipts {
            exchange.push_receipt(receipt, &self.rings[receipt.ring as usize], when);
        }
        for handover in &self.segments[segment].handovers {
            exchange.push_handover(handover, &self.rings[handover.ring as usize], when);
        }
        if exchange.before.is_empty() && list.is_none() && exchange.after.is_empty() {
            return Ok(());
        }

        self.queue
            .submit_with_ops(&exchange.before, list, &exchange.after)
            .map_err(Halt::Fault)?;
        self.submitted += 1;
        Ok(())
    }

    /// Waits for a segment's submission step by step in the calendar's order: first on the host for what the device
    /// waits for, then for the device, and wakes the threads that wait for that. So a device that hangs is told from one
    /// that waits, and no thread is woken later than if the host had done the exchange.
    pub(super) fn follow_exchange(
        &mut self,
        submission: InFlight,
        segment: usize,
        peers: &mut dyn Peers,
    ) -> Result<(), Halt<Q::Fault>> {
        let Some(exchange) = &self.device_exchange else {
            return Ok(());
        };
        let when = submission.when;

        for receipt in &self.segments[segment].receipts {
            let Some(block) = when.block_of_stage(receipt.stage) else {
                continue;
            };
            let ring = &self.rings[receipt.ring as usize];
            let tokens = ring.tokens_until(block, receipt.first + receipt.count);
            peers.published(ring.id, tokens, true)?;
        }

        for handover in &self.segments[segment].handovers {
            let Some(block) = when.block_of_stage(handover.stage) else {
                continue;
            };
            let ring = &self.rings[handover.ring as usize];
            let shared = &exchange.rings[handover.ring as usize];
            let (counter, count) = match handover.sends {
                None => (shared.released, block + 1),
                Some(sent) => {
                    peers.wait_released(ring.id, (block + 1).saturating_sub(ring.blocks))?;
                    let tokens = ring.tokens_until(block, sent.first + sent.count);
                    (shared.published, tokens)
                }
            };

            // Partner: the device's store, which comes after its copy for the whole system.
            let mut is_stored = || counter.as_atomic().load(Ordering::Acquire) >= count;
            self.queue
                .wait_until(submission.submission, self.patience_ns, &mut is_stored)
                .map_err(Halt::Fault)?;
            match handover.sends {
                None => peers.was_released(ring.id, count),
                Some(_) => peers.was_published(ring.id, count),
            }
        }
        Ok(())
    }

    /// The run is stopped: lets the device go on wherever it waits for others, until nothing is in flight any more. No
    /// period comes after that. Where the host does the exchange, the device never waits, and there is nothing to do.
    ///
    /// Each counter that is stored here is read by this device alone, so no other device is misled. What the device
    /// then computes, writes into regions and publishes is worthless; so before this, the caller has made sure that
    /// nothing that others make of it counts any more, in this run of the calendars.
    ///
    /// # Errors
    /// A driver's fault.
    pub fn release_waits(&mut self) -> Result<(), Q::Fault> {
        let Some(exchange) = &self.device_exchange else {
            return Ok(());
        };
        self.in_flight.clear();
        if self.submitted == 0 || !self.queue.is_alive() {
            return Ok(());
        }

        // Again and again: a peer that has not seen the stop yet may store a count of its own.
        let mut store_max = || {
            for ring in &exchange.rings {
                let waited_for = if ring.region.is_some() {
                    ring.released
                } else {
                    ring.published
                };
                waited_for.as_atomic().store(MAX_COUNT, Ordering::Release);
            }
            false
        };
        self.queue
            .wait_until(self.submitted, self.patience_ns, &mut store_max)
    }
}
