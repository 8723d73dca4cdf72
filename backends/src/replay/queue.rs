//! What a calendar asks of a device: memory, and lists of commands that are recorded once and run often. Knows no
//! driver: each backend has its own [`Queue`].
#![expect(
    unsafe_code,
    reason = "copies between slices and memory that the device sees"
)]

use std::sync::Arc;

use super::HostRegion;
use crate::kernels::lang::{Kernel, Mem};
use crate::kernels::library::{self, Product, Shape};
use crate::kernels::{Caps, Grid, KernelPlan, Operand, Step};

/// Bytes of a bank, by its number in the table at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range {
    pub(crate) bank: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Range {
    pub(crate) fn new(bank: u32, start: u64, len: u64) -> Self {
        Self {
            bank,
            start,
            end: start + len,
        }
    }

    pub(crate) fn len(self) -> u64 {
        self.end - self.start
    }

    pub(crate) fn overlaps(self, other: Range) -> bool {
        self.bank == other.bank && self.start < other.end && other.start < self.end
    }

    /// Whether all of `other` lies here.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only graphs ask"))]
    pub(crate) fn contains(self, other: Range) -> bool {
        self.bank == other.bank && self.start <= other.start && other.end <= self.end
    }
}

/// Where a bank lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// In the device's own memory.
    Device,
    /// In memory that host and device see at once, without flushing.
    Host,
}

/// What of a device's limits calendars must respect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Alignment of what a kernel is given.
    pub(crate) align_bytes: u64,
    /// Bytes of what a kernel is given.
    pub(crate) range_bytes: u64,
    /// Bytes of one bank.
    pub(crate) bank_bytes: u64,
}

/// One command.
#[derive(Clone, Debug)]
pub(crate) enum Command {
    /// Ranges of one length that do not overlap.
    Copy {
        from: Range,
        to: Range,
    },
    /// Zeros.
    Zero {
        to: Range,
    },
    Run(Run),
    /// So many products by the vendor's library.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "only CUDA has the library")
    )]
    Product(Product<Range>, u64),
}

/// A run of a kernel on given memory.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Counts all runs of a calendar.
    #[cfg_attr(
        not(feature = "vulkan"),
        expect(dead_code, reason = "only Vulkan binds beforehand")
    )]
    pub(crate) number: u32,
    /// Number of the kernel among those that were loaded.
    pub(crate) kernel: u32,
    /// The memory of each binding, and whether it is written.
    pub(crate) operands: Box<[(Range, Mem, bool)]>,
    pub(crate) firings: u64,
    /// Groups that suffice; kernels share the rest out.
    pub(crate) groups: u64,
}

/// A kernel plan cannot run on this memory: more bytes than a kernel can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong {
    pub(crate) bytes: u64,
    pub(crate) limit: u64,
}

/// The commands of one call of `firings` firings; `kernels` are the numbers of the plan's runs, in order, and `runs`
/// counts those of the calendar.
pub(crate) fn bind(
    limits: Limits,
    plan: &KernelPlan,
    kernels: &[u32],
    firings: u64,
    place: &dyn Fn(Operand) -> Range,
    runs: &mut u32,
    out: &mut Vec<Command>,
) -> Result<(), TooLong> {
    let mut kernels = kernels.iter();
    for step in &plan.steps {
        match step {
            Step::Copy { from, to, bytes } => {
                let len = bytes.of(firings);
                let cut = |range: Range| Range::new(range.bank, range.start, len);
                if len > 0 {
                    out.push(Command::Copy {
                        from: cut(place(*from)),
                        to: cut(place(*to)),
                    });
                }
            }
            Step::Run(run) => {
                let bindings = run.kernel.bindings.iter();
                let operands = run.operands.iter().zip(bindings);
                let operands: Box<[_]> = operands
                    .map(|(o, b)| (place(*o), b.mem, b.writes))
                    .collect();
                for (range, ..) in &operands {
                    // What a kernel is given begins at a multiple of the device's own.
                    let bytes = range.len() + range.start % limits.align_bytes;
                    if bytes > limits.range_bytes || firings > u64::from(u32::MAX) {
                        return Err(TooLong {
                            bytes,
                            limit: limits.range_bytes,
                        });
                    }
                }
                let groups = match run.grid {
                    Grid::Groups(rows) => rows.of(firings),
                    Grid::Threads(all) => all.of(firings).div_ceil(run.kernel.local.into()),
                };
                let Some(&kernel) = kernels.next() else { break };
                out.push(Command::Run(Run {
                    number: *runs,
                    kernel,
                    operands,
                    firings,
                    groups,
                }));
                *runs += 1;
            }
            Step::Product(product) => {
                let (count, product) = (product.shape.batches * firings, product.at(place));
                // Products are counted in 31 bits.
                if count > i32::MAX as u64 {
                    let bytes = count.saturating_mul(4 * product.shape.elements()[2]);
                    return Err(TooLong {
                        bytes,
                        limit: limits.range_bytes,
                    });
                }
                let spans = product.shape.spans(count).map(|elements| 4 * elements);
                for (range, span) in [product.left, product.right, product.out].iter().zip(spans) {
                    assert!(span <= range.len(), "{span} bytes of {range:?}");
                }
                out.push(Command::Product(product, count));
            }
        }
    }
    Ok(())
}

/// What a submission does besides running its list, in order: it waits for others and tells them.
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "only CUDA's queues hand over")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handover {
    /// Goes on when a word of 64 bits is at least so large.
    Wait {
        word: Range,
        least: u64,
    },
    Copy {
        from: Range,
        to: Range,
    },
    /// Stores a word; whoever sees it sees all that was done before.
    Write {
        word: Range,
        value: u64,
    },
}

/// Commands, recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct List(pub(crate) u32);

/// A kind of device, to those who drive one.
pub trait Backend {
    /// What can go wrong with the driver.
    type Fault: std::error::Error + 'static;
    /// Memory of the device.
    type Bank;
}

/// A device, as calendars see it. Lists are run one after the other, each after the one before has ended. Banks are
/// numbered as they are made, from 0; lists too.
pub(crate) trait Queue: Backend {
    /// The device's name.
    fn name(&self) -> String;

    fn caps(&self) -> &Caps;

    fn limits(&self) -> Limits;

    /// Why products of a shape cannot be had of the vendor's library here, as a clause; `None` where they can.
    fn refuses(&mut self, _shape: &Shape) -> Result<Option<String>, Self::Fault> {
        Ok(Some(library::elsewhere()))
    }

    /// Makes a bank of at least `bytes` bytes, of any content; its number.
    fn bank(&mut self, bytes: u64, home: Home) -> Result<u32, Self::Fault>;

    /// Gives a bank of another list of this device the next number.
    fn take(&mut self, bank: Arc<Self::Bank>) -> u32;

    /// A bank of the device's own memory, for other lists as well.
    fn share(&self, bank: u32) -> Arc<Self::Bank>;

    /// Bytes of a bank, rounded up as they are.
    fn bank_bytes(&self, bank: u32) -> u64;

    /// Gives back the last bank. No list has it.
    fn pop_bank(&mut self);

    /// Where the host sees a range of one of its banks.
    fn host(&self, bank: u32, at: u64, len: usize) -> *mut u8;

    /// Makes memory of others on the host a bank, as long as this queue lives; `None` where the device cannot reach it.
    fn adopt(&mut self, memory: HostRegion) -> Result<Option<u32>, Self::Fault> {
        let _ = memory;
        Ok(None)
    }

    /// Whether [`Self::submit_between`] and [`Self::wait_until`] may be asked for.
    fn hands_over(&self) -> bool {
        false
    }

    /// Makes kernels and all runs of them ready. Once, before anything is recorded.
    fn load(
        &mut self,
        kernels: &[Arc<Kernel>],
        runs: &mut dyn Iterator<Item = &Run>,
    ) -> Result<(), Self::Fault>;

    /// Records commands, which run as if one after the other; the list, and how often one must wait for another.
    fn record(&mut self, commands: &[&Command]) -> Result<(List, usize), Self::Fault>;

    /// Records a list anew, which is not at work.
    fn record_again(&mut self, list: List, commands: &[&Command]) -> Result<(), Self::Fault>;

    /// Runs copies and zeros, and waits for their end.
    fn run_once(&mut self, commands: &[Command], patience_ns: u64) -> Result<(), Self::Fault>;

    /// Puts a list into the queue. Allocates nothing.
    fn submit(&mut self, list: List) -> Result<(), Self::Fault>;

    /// Puts a list, if there is one, into the queue, and what is done before and after it; counts as one list.
    /// Allocates nothing.
    fn submit_between(
        &mut self,
        before: &[Handover],
        list: Option<List>,
        after: &[Handover],
    ) -> Result<(), Self::Fault> {
        let _ = (before, list, after);
        unreachable!("this queue does not hand over")
    }

    /// Waits until so many lists have ended, or `done`, which is asked again and again, says true.
    fn wait_until(
        &mut self,
        submissions: u64,
        patience_ns: u64,
        done: &mut dyn FnMut() -> bool,
    ) -> Result<(), Self::Fault> {
        let _ = (submissions, patience_ns, done);
        unreachable!("this queue does not hand over")
    }

    /// Lists in flight of which each end can be waited for by itself; for an older one's, a later one's may be waited for.
    fn marks(&self) -> u64 {
        u64::MAX
    }

    /// Whether no fault was seen after which the device must be left alone.
    fn is_alive(&self) -> bool {
        true
    }

    /// Waits until so many lists have ended. Allocates nothing.
    fn wait(&mut self, submissions: u64, patience_ns: u64) -> Result<(), Self::Fault>;

    /// Copies bytes of the host's to the device, and waits for their end. Nothing is in the queue.
    fn upload(&mut self, parts: &[(Range, &[u8])], patience_ns: u64) -> Result<(), Self::Fault> {
        let total = parts.iter().map(|(to, _)| to.len()).sum();
        if total == 0 {
            return Ok(());
        }
        let bank = self.bank(total, Home::Host)?;
        let (mut at, mut copies) = (0, Vec::new());
        for (to, bytes) in parts {
            let place = self.host(bank, at, bytes.len());
            // SAFETY: the place was checked against the bank, which the device does not know yet.
            unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            copies.push(Command::Copy {
                from: Range::new(bank, at, to.len()),
                to: *to,
            });
            at += to.len();
        }
        self.run_once(&copies, patience_ns)?;
        self.pop_bank();
        Ok(())
    }

    /// Copies bytes of the device's to the host, likewise.
    fn download(
        &mut self,
        parts: &mut [(Range, &mut [u8])],
        patience_ns: u64,
    ) -> Result<(), Self::Fault> {
        let total = parts.iter().map(|(from, _)| from.len()).sum();
        if total == 0 {
            return Ok(());
        }
        let bank = self.bank(total, Home::Host)?;
        let (mut at, mut copies) = (0, Vec::new());
        for (from, _) in parts.iter() {
            copies.push(Command::Copy {
                from: *from,
                to: Range::new(bank, at, from.len()),
            });
            at += from.len();
        }
        self.run_once(&copies, patience_ns)?;
        at = 0;
        for (from, bytes) in parts {
            let place = self.host(bank, at, bytes.len());
            // SAFETY: the place was checked against the bank; the copies have ended, and the host sees them.
            unsafe { place.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            at += from.len();
        }
        self.pop_bank();
        Ok(())
    }
}
