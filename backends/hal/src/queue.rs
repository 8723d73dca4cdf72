//! What a calendar asks of a device: memory, and lists of commands that are recorded once and run often. Knows no
//! driver: each backend has its own [`Queue`].
#![expect(
    unsafe_code,
    reason = "copies between slices and memory that the device sees"
)]

use std::sync::Arc;

use zbmd_ir::Program;

use super::HostRegion;
use zbmd_gpu_ir::lang::{Kernel, Mem};
use zbmd_gpu_ir::library::{self, Product, Shape};
use zbmd_gpu_ir::{Caps, Grid, KernelPlan, KernelRun, Operand, Step};

/// Bytes of a bank, by its number in the table at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct BankRange {
    pub bank: u32,
    pub start: u64,
    pub end: u64,
}

#[expect(
    clippy::len_without_is_empty,
    reason = "nobody asks whether a range is empty"
)]
impl BankRange {
    /// `len` bytes from `start` on.
    pub fn new(bank: u32, start: u64, len: u64) -> Self {
        Self {
            bank,
            start,
            end: start + len,
        }
    }

    /// How many bytes they are.
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether the two have bytes in common.
    pub fn overlaps(self, other: BankRange) -> bool {
        self.bank == other.bank && self.start < other.end && other.start < self.end
    }

    /// Whether all of `other` is part of this range.
    pub fn contains(self, other: BankRange) -> bool {
        self.bank == other.bank && self.start <= other.start && other.end <= self.end
    }
}

/// Which memory a bank is allocated in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The device's own memory.
    Device,
    /// Memory that host and device both see at once, without flushing.
    Host,
}

/// The limits of a device that calendars must respect.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Alignment of a kernel's operands.
    pub align_bytes: u64,
    /// Size of a kernel's operand.
    pub range_bytes: u64,
    /// Size of one bank.
    pub bank_bytes: u64,
}

/// One command.
#[derive(Clone, Debug)]
pub enum Command {
    /// Copies between ranges of one length that do not overlap.
    Copy {
        /// What is read.
        from: BankRange,
        /// What is written.
        to: BankRange,
    },
    /// Writes zeros.
    Zero {
        /// What is written.
        to: BankRange,
    },
    /// Runs a kernel.
    Run(BoundRun),
    /// So many products by the vendor's library.
    Product(Product<BankRange>, u64),
}

impl Command {
    /// The run of a kernel, if it is one.
    pub fn kernel_run(&self) -> Option<&BoundRun> {
        match self {
            Command::Run(run) => Some(run),
            Command::Copy { .. } | Command::Zero { .. } | Command::Product(..) => None,
        }
    }
}

/// The memory of one binding of a kernel.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct BoundOperand {
    pub range: BankRange,
    pub mem: Mem,
    pub writes: bool,
}

/// A run of a kernel on given memory.
#[derive(Clone, Debug)]
pub struct BoundRun {
    /// Counts all runs of a calendar.
    pub number: u32,
    /// Number of the kernel among those that were loaded.
    pub kernel: u32,
    /// The memory of each binding.
    pub operands: Box<[BoundOperand]>,
    /// Firings of the call.
    pub firings: u64,
    /// Groups that suffice; kernels distribute the elements over fewer if the device has fewer.
    pub groups: u64,
}

impl BoundRun {
    /// The ranges that the kernel writes, or those that it only reads.
    pub fn ranges(&self, written: bool) -> impl Iterator<Item = BankRange> + Clone {
        self.operands
            .iter()
            .filter(move |operand| operand.writes == written)
            .map(|operand| operand.range)
    }
}

/// A kernel plan cannot run on this memory: an operand has more bytes than a kernel can be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperandTooLong {
    pub(crate) bytes: u64,
    pub(crate) limit: u64,
}

/// The commands of a call.
pub(crate) struct BoundCall {
    pub(crate) commands: Vec<Command>,
    /// Of a gated actor, the indices of those that are run where all firings are closed.
    pub(crate) closed: Vec<usize>,
}

/// Turns the steps of kernel plans into commands, and counts the runs of a calendar.
pub(crate) struct StepBinder {
    limits: QueueLimits,
    run_count: u32,
}

impl StepBinder {
    pub(crate) fn new(limits: QueueLimits) -> Self {
        Self {
            limits,
            run_count: 0,
        }
    }

    /// The commands of one call of `firings` firings; `kernels` are the numbers of the plan's runs, in order.
    pub(crate) fn bind_call(
        &mut self,
        plan: &KernelPlan,
        kernels: &[u32],
        firings: u64,
        place: &dyn Fn(Operand) -> BankRange,
    ) -> Result<BoundCall, OperandTooLong> {
        let mut commands = Vec::with_capacity(plan.steps.len());
        let mut closed = Vec::new();
        let mut kernels = kernels.iter();

        for (number, step) in plan.steps.iter().enumerate() {
            let first_command = commands.len();
            match step {
                Step::Copy { from, to, bytes } => {
                    let len = bytes.of(firings);
                    if len > 0 {
                        let source = place(*from);
                        let target = place(*to);
                        commands.push(Command::Copy {
                            from: BankRange::new(source.bank, source.start, len),
                            to: BankRange::new(target.bank, target.start, len),
                        });
                    }
                }
                Step::Run(run) => {
                    let Some(&kernel) = kernels.next() else { break };
                    commands.push(Command::Run(self.bind_run(run, kernel, firings, place)?));
                }
                Step::Product(product) => {
                    commands.push(self.bind_product(&product.at(place), firings)?);
                }
            }

            let closed_steps = plan.closed_steps.as_ref();
            if closed_steps.is_some_and(|steps| steps.contains(&number)) {
                closed.extend(first_command..commands.len());
            }
        }
        Ok(BoundCall { commands, closed })
    }

    fn bind_run(
        &mut self,
        run: &KernelRun,
        kernel: u32,
        firings: u64,
        place: &dyn Fn(Operand) -> BankRange,
    ) -> Result<BoundRun, OperandTooLong> {
        let bindings = run.operands.iter().zip(&run.kernel.bindings);
        let operands: Box<[BoundOperand]> = bindings
            .map(|(operand, binding)| BoundOperand {
                range: place(*operand),
                mem: binding.mem,
                writes: binding.writes,
            })
            .collect();

        for operand in &operands {
            // The driver binds from a multiple of the device's alignment on, and so a little more than the operand.
            let bytes = operand.range.len() + operand.range.start % self.limits.align_bytes;
            self.check_length(bytes, firings <= u64::from(u32::MAX))?;
        }

        let groups = match run.grid {
            Grid::Groups(rows) => rows.of(firings),
            Grid::Threads(all) => all.of(firings).div_ceil(run.kernel.local.into()),
        };
        let number = self.run_count;
        self.run_count += 1;
        Ok(BoundRun {
            number,
            kernel,
            operands,
            firings,
            groups,
        })
    }

    fn bind_product(
        &self,
        product: &Product<BankRange>,
        firings: u64,
    ) -> Result<Command, OperandTooLong> {
        let count = product.shape.batches * firings;
        // The library counts products in 31 bits.
        if count > i32::MAX as u64 {
            let [.., out_elements] = product.shape.elements();
            self.check_length(count.saturating_mul(4 * out_elements), false)?;
        }

        let spans = product.shape.spans(count).map(|elements| 4 * elements);
        for (range, span) in [product.left, product.right, product.out].iter().zip(spans) {
            assert!(span <= range.len(), "{span} bytes of {range:?}");
        }
        Ok(Command::Product(*product, count))
    }

    fn check_length(&self, bytes: u64, is_countable: bool) -> Result<(), OperandTooLong> {
        let limit = self.limits.range_bytes;
        if bytes > limit || !is_countable {
            return Err(OperandTooLong { bytes, limit });
        }
        Ok(())
    }
}

/// What a submission does besides running its list, in order: it waits for other devices and publishes to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOp {
    /// Waits until a word of 64 bits is at least `min`.
    Wait {
        /// The word.
        word: BankRange,
        /// The value that it must reach.
        min: u64,
    },
    /// Copies bytes.
    Copy {
        /// What is read.
        from: BankRange,
        /// What is written.
        to: BankRange,
    },
    /// Stores a word; a reader that sees it sees all that was done before.
    Write {
        /// The word.
        word: BankRange,
        /// The value stored.
        value: u64,
    },
}

/// Recorded commands, by their number in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandList(pub u32);

/// How a backend opens its devices' queues, and the types that its users name.
pub trait Backend: Sized {
    /// What can go wrong with the driver.
    type Fault: std::error::Error + 'static;
    /// Memory of the device.
    type Bank;
    /// An open device.
    type Device;

    /// A queue of the device. With a program, the machine code that its bundle holds is used where it fits.
    ///
    /// # Errors
    /// The driver's faults.
    fn open_queue(
        device: &Arc<Self::Device>,
        program: Option<&Program>,
    ) -> Result<Self, Self::Fault>;
}

/// A device, as calendars see it.
///
/// Lists run one after the other, each after the one before has ended. Banks are numbered as they are made, from 0, and
/// so are lists. A queue that is dropped waits for what it was given, so that memory is freed only when nothing uses it.
pub trait Queue: Backend {
    /// The device's name.
    fn device_name(&self) -> String;

    /// What kernels can do there.
    fn caps(&self) -> &Caps;

    /// What operands and banks are limited to.
    fn limits(&self) -> QueueLimits;

    /// Why the vendor's library has no products of a shape here, as a clause; `None` where it has.
    ///
    /// # Errors
    /// The driver's faults.
    fn unsupported_reason(&mut self, _shape: &Shape) -> Result<Option<String>, Self::Fault> {
        Ok(Some(library::needs_cuda()))
    }

    /// Allocates a bank of at least `bytes` bytes, of any content; its number.
    ///
    /// # Errors
    /// The driver's faults.
    fn allocate_bank(&mut self, bytes: u64, kind: MemoryKind) -> Result<u32, Self::Fault>;

    /// Gives a bank of another queue of this device the next number.
    fn adopt_bank(&mut self, bank: Arc<Self::Bank>) -> u32;

    /// A bank of the device's own memory, to be shared with other queues.
    fn bank(&self, bank: u32) -> Arc<Self::Bank>;

    /// Bytes of a bank, rounded up as it was allocated.
    fn bank_bytes(&self, bank: u32) -> u64;

    /// Frees the last bank. No list uses it, and nothing is in the queue.
    fn free_last_bank(&mut self);

    /// Where the host sees a range of one of its banks.
    fn host_pointer(&self, bank: u32, offset: u64, len: usize) -> *mut u8;

    /// Makes memory on the host that others own a bank, as long as this queue exists; `None` where the device cannot
    /// reach it.
    ///
    /// # Errors
    /// The driver's faults.
    fn import_host_memory(&mut self, memory: HostRegion) -> Result<Option<u32>, Self::Fault> {
        let _ = memory;
        Ok(None)
    }

    /// Whether the queue itself waits for words of memory and stores them: only then may [`Self::submit_with_ops`] and
    /// [`Self::wait_until`] be called.
    fn supports_memory_ops(&self) -> bool {
        false
    }

    /// Makes kernels and all runs of them ready. Called once, before anything is recorded.
    ///
    /// # Errors
    /// The driver's faults.
    fn load_kernels(
        &mut self,
        kernels: &[Arc<Kernel>],
        runs: &mut dyn Iterator<Item = &BoundRun>,
    ) -> Result<(), Self::Fault>;

    /// Records commands, which run as if one after the other; the list, and how often one must wait for another.
    ///
    /// # Errors
    /// The driver's faults.
    fn record_list(&mut self, commands: &[&Command]) -> Result<(CommandList, usize), Self::Fault>;

    /// Replaces the commands of a list, whose last submission has been waited for.
    ///
    /// # Errors
    /// The driver's faults.
    fn rerecord_list(
        &mut self,
        list: CommandList,
        commands: &[&Command],
    ) -> Result<(), Self::Fault>;

    /// Runs copies and zeros, and waits for their end.
    ///
    /// # Errors
    /// The driver's faults.
    fn run_once(&mut self, commands: &[Command], patience_ns: u64) -> Result<(), Self::Fault>;

    /// Puts a list into the queue, whose last submission has been waited for. Allocates nothing.
    ///
    /// # Errors
    /// The driver's faults.
    fn submit_list(&mut self, list: CommandList) -> Result<(), Self::Fault>;

    /// Puts a list, if there is one, into the queue, and what is done before and after it; counts as one list.
    /// Allocates nothing.
    ///
    /// # Errors
    /// The driver's faults.
    fn submit_with_ops(
        &mut self,
        before: &[QueueOp],
        list: Option<CommandList>,
        after: &[QueueOp],
    ) -> Result<(), Self::Fault> {
        let _ = (before, list, after);
        unreachable!("this queue has no memory operations")
    }

    /// Waits until so many lists have ended, or until `is_done`, which is asked again and again, returns true.
    ///
    /// # Errors
    /// The driver's faults.
    fn wait_until(
        &mut self,
        submissions: u64,
        patience_ns: u64,
        is_done: &mut dyn FnMut() -> bool,
    ) -> Result<(), Self::Fault> {
        let _ = (submissions, patience_ns, is_done);
        unreachable!("this queue has no memory operations")
    }

    /// Lists in flight whose ends can each be waited for separately; an older one's end is then waited for by a newer
    /// one's.
    fn fence_count(&self) -> u64 {
        u64::MAX
    }

    /// Whether no fault was seen after which the device must be left alone.
    fn is_alive(&self) -> bool {
        true
    }

    /// Waits until so many lists have ended. Allocates nothing.
    ///
    /// # Errors
    /// The driver's faults.
    fn wait_for(&mut self, submissions: u64, patience_ns: u64) -> Result<(), Self::Fault>;

    /// Copies bytes of the host's to the device, and waits for their end. Nothing is in the queue.
    ///
    /// # Errors
    /// The driver's faults.
    fn upload(
        &mut self,
        parts: &[(BankRange, &[u8])],
        patience_ns: u64,
    ) -> Result<(), Self::Fault> {
        let total_bytes = parts.iter().map(|(to, _)| to.len()).sum();
        if total_bytes == 0 {
            return Ok(());
        }

        let staging_bank = self.allocate_bank(total_bytes, MemoryKind::Host)?;
        let mut staging_offset = 0;
        let mut copies = Vec::with_capacity(parts.len());
        for (to, bytes) in parts {
            assert_eq!(bytes.len() as u64, to.len(), "bytes of {to:?}");
            let staging = self.host_pointer(staging_bank, staging_offset, bytes.len());
            // SAFETY: `host_pointer` has checked the range against the bank, which no command uses yet.
            unsafe { staging.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            copies.push(Command::Copy {
                from: BankRange::new(staging_bank, staging_offset, to.len()),
                to: *to,
            });
            staging_offset += to.len();
        }

        self.run_once(&copies, patience_ns)?;
        self.free_last_bank();
        Ok(())
    }

    /// Copies bytes of the device's to the host, likewise.
    ///
    /// # Errors
    /// The driver's faults.
    fn download(
        &mut self,
        parts: &mut [(BankRange, &mut [u8])],
        patience_ns: u64,
    ) -> Result<(), Self::Fault> {
        let total_bytes = parts.iter().map(|(from, _)| from.len()).sum();
        if total_bytes == 0 {
            return Ok(());
        }

        let staging_bank = self.allocate_bank(total_bytes, MemoryKind::Host)?;
        let mut staging_offset = 0;
        let mut copies = Vec::with_capacity(parts.len());
        for (from, bytes) in parts.iter() {
            assert_eq!(bytes.len() as u64, from.len(), "bytes of {from:?}");
            copies.push(Command::Copy {
                from: *from,
                to: BankRange::new(staging_bank, staging_offset, from.len()),
            });
            staging_offset += from.len();
        }
        self.run_once(&copies, patience_ns)?;

        staging_offset = 0;
        for (from, bytes) in parts {
            let staging = self.host_pointer(staging_bank, staging_offset, bytes.len());
            // SAFETY: `host_pointer` has checked the range against the bank; `run_once` has waited for the copies that
            // wrote it, and the host sees them.
            unsafe { staging.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            staging_offset += from.len();
        }
        self.free_last_bank();
        Ok(())
    }
}
