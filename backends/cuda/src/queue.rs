//! Calendars' lists of commands as graphs: a node for each command, an edge where data asks for it and nowhere else.
#![expect(
    unsafe_code,
    reason = "puts work over raw addresses into the device's queue"
)]

use std::sync::Arc;

use zbmd_ir::Program;

use super::device::{CudaDevice, LoadedKernel};
use super::driver::{Driver, MAX_WORD_OPS, WordOp};
use super::edges::EdgeBuilder;
use super::error::{CallError, Fault};
use super::fence::Fence;
use super::graph::{GraphDraft, ReadyGraph};
use super::memory::{Bank, BankTable};
use zbmd_gpu_ir::Caps;
use zbmd_gpu_ir::emit::cubins::Cubins;
use zbmd_gpu_ir::lang::Kernel;
use zbmd_gpu_ir::library::Shape;
use zbmd_hal::{
    Backend, BankRange, BoundRun, Command, CommandList, HostRegion, MemoryKind, PATIENCE_NS,
    Queue as _, QueueLimits, QueueOp,
};

/// Fences in use at a time: launches beyond that are waited for by a later one's fence.
const FENCES: u64 = 16;

/// One device's graphs for a calendar, and their memory.
///
/// Everything that work in the queue names is held here, and dropped only after `drop` has waited for the last
/// submission (or after the device is lost, when nothing is given back).
pub struct Queue {
    device: Arc<CudaDevice>,
    submitted: u64,
    // In the order in which they can be given back.
    lists: Vec<ReadyGraph>,
    fences: Vec<Fence>,
    work: QueueWork,
}

/// What commands name by numbers.
pub(super) struct QueueWork {
    device: Arc<CudaDevice>,
    cubins: Cubins,
    kernels: Vec<LoadedKernel>,
    banks: BankTable,
}

/// A node of a graph that later ones may wait for.
#[derive(Clone, Copy)]
struct CommandNode {
    number: u32,
    is_kernel: bool,
}

impl QueueWork {
    pub(super) fn new(device: &Arc<CudaDevice>, cubins: Cubins) -> Self {
        Self {
            device: Arc::clone(device),
            cubins,
            kernels: Vec::new(),
            banks: BankTable::default(),
        }
    }

    /// Makes kernels ready, in order.
    pub(super) fn load_kernels<'k>(
        &mut self,
        kernels: impl IntoIterator<Item = &'k Kernel>,
    ) -> Result<(), Fault> {
        for kernel in kernels {
            let loaded = self.device.load_kernel(kernel, &self.cubins)?;
            self.kernels.push(loaded);
        }
        Ok(())
    }

    /// Puts what a submission does besides its list into the queue: word operations in batches, between copies.
    ///
    /// # Safety
    /// The banks exist until the queue has ended it.
    unsafe fn put_ops(&self, driver: &dyn Driver, queue_ops: &[QueueOp]) -> Result<(), CallError> {
        let mut batch = [WordOp::default(); MAX_WORD_OPS];
        let mut batch_len = 0;
        for queue_op in queue_ops {
            if let QueueOp::Copy { from, to } = *queue_op {
                // SAFETY: `word_op` has checked the words against their banks, which exist as the caller promises.
                unsafe { driver.put_word_ops(&batch[..batch_len]) }?;
                batch_len = 0;

                let source = self.banks.address(from);
                let target = self.banks.address(to);
                // SAFETY: `address` has checked both ranges against their banks, which exist as the caller promises.
                unsafe { driver.put_exchange_copy(source, target, from.len().min(to.len())) }?;
                continue;
            }

            if batch_len == MAX_WORD_OPS {
                // SAFETY: `word_op` has checked the words against their banks, which exist as the caller promises.
                unsafe { driver.put_word_ops(&batch) }?;
                batch_len = 0;
            }
            batch[batch_len] = self.word_op(*queue_op);
            batch_len += 1;
        }
        // SAFETY: `word_op` has checked the words against their banks, which exist as the caller promises.
        unsafe { driver.put_word_ops(&batch[..batch_len]) }
    }

    fn word_op(&self, queue_op: QueueOp) -> WordOp {
        let (word, value, waits) = match queue_op {
            QueueOp::Wait { word, min } => (word, min, true),
            QueueOp::Write { word, value } => (word, value, false),
            QueueOp::Copy { .. } => unreachable!("a copy is not an operation on a word"),
        };
        assert_eq!(word.len(), 8, "bytes of a word");
        WordOp {
            word: self.banks.address(word),
            value,
            waits,
        }
    }

    /// The graph of commands, and the number of its edges.
    pub(super) fn build_graph(&self, commands: &[&Command]) -> Result<(ReadyGraph, usize), Fault> {
        let mut draft = GraphDraft::new(&self.device, &self.banks)?;
        let mut edges = EdgeBuilder::default();
        let mut nodes: Vec<CommandNode> = Vec::with_capacity(commands.len());
        let mut edge_count = 0;
        for command in commands {
            let Some(after) = note_command(&mut edges, command) else {
                continue;
            };
            edge_count += after.len();
            let before: Vec<CommandNode> =
                after.into_iter().map(|node| nodes[node as usize]).collect();
            let number = self.add_command(&mut draft, command, &before)?;
            nodes.push(CommandNode {
                number,
                is_kernel: matches!(command, Command::Run(_)),
            });
        }
        Ok((draft.finish()?, edge_count))
    }

    /// Adds a command's node; its number.
    fn add_command(
        &self,
        draft: &mut GraphDraft,
        command: &Command,
        before: &[CommandNode],
    ) -> Result<u32, Fault> {
        let after: Vec<u32> = before.iter().map(|node| node.number).collect();
        match command {
            Command::Copy { from, to } => draft.add_copy(&after, *from, *to),
            Command::Zero { to } => draft.add_zero(&after, *to),
            Command::Run(run) => {
                let kernel = &self.kernels[run.kernel as usize];
                match before {
                    // Launched early only behind a single kernel: the form that drivers make of streams, and that of
                    // chains.
                    [only] if only.is_kernel && self.device.has_dependent_launch() => {
                        draft.add_dependent_kernel(only.number, kernel, run)
                    }
                    _ => draft.add_kernel(&after, kernel, run),
                }
            }
            Command::Product(product, count) => draft.add_product(&after, product, *count),
        }
    }
}

/// The nodes that a command's node must wait for; none for a command that does nothing and has no node.
fn note_command(edges: &mut EdgeBuilder, command: &Command) -> Option<Vec<u32>> {
    let nothing = std::iter::empty::<BankRange>;
    match command {
        Command::Copy { from, .. } if from.len() == 0 => None,
        Command::Zero { to } if to.len() == 0 => None,
        Command::Copy { from, to } => Some(edges.note_node([*from], [*to])),
        Command::Zero { to } => Some(edges.note_node(nothing(), [*to])),
        Command::Run(run) => Some(edges.note_node(run.ranges(false), run.ranges(true))),
        Command::Product(product, _) => Some(edges.note_node(product.reads(), product.writes())),
    }
}

impl Queue {
    pub(super) fn new(device: &Arc<CudaDevice>, cubins: Cubins) -> Result<Self, Fault> {
        let fences: Result<Vec<Fence>, Fault> = (0..FENCES).map(|_| device.new_fence()).collect();
        Ok(Self {
            device: Arc::clone(device),
            submitted: 0,
            lists: Vec::new(),
            fences: fences?,
            work: QueueWork::new(device, cubins),
        })
    }
}

impl Backend for Queue {
    type Fault = Fault;
    type Bank = Bank;
    type Device = CudaDevice;

    fn open_queue(device: &Arc<CudaDevice>, program: Option<&Program>) -> Result<Self, Fault> {
        let arch = device.listed().arch;
        let cubins = program.map(|program| Cubins::of_program(program, arch));
        Self::new(device, cubins.unwrap_or_default())
    }
}

impl zbmd_hal::Queue for Queue {
    fn device_name(&self) -> String {
        self.device.listed().name.clone()
    }

    fn caps(&self) -> &Caps {
        self.device.caps()
    }

    fn limits(&self) -> QueueLimits {
        // Elements are counted in 32 bits.
        QueueLimits {
            align_bytes: 1,
            range_bytes: u32::MAX.into(),
            bank_bytes: self.device.bank_bytes(),
        }
    }

    fn unsupported_reason(&mut self, shape: &Shape) -> Result<Option<String>, Fault> {
        self.device.unsupported_shape(shape)
    }

    fn allocate_bank(&mut self, bytes: u64, kind: MemoryKind) -> Result<u32, Fault> {
        let bank = Bank::allocate(&self.device, bytes, kind)?;
        Ok(self.adopt_bank(Arc::new(bank)))
    }

    fn adopt_bank(&mut self, bank: Arc<Bank>) -> u32 {
        self.work.banks.push(bank)
    }

    fn bank(&self, bank: u32) -> Arc<Bank> {
        Arc::clone(self.work.banks.bank(bank))
    }

    fn bank_bytes(&self, bank: u32) -> u64 {
        self.work.banks.bank(bank).bytes
    }

    fn free_last_bank(&mut self) {
        self.work.banks.pop();
    }

    fn host_pointer(&self, bank: u32, offset: u64, len: usize) -> *mut u8 {
        self.work.banks.bank(bank).host_pointer(offset, len)
    }

    fn import_host_memory(&mut self, memory: HostRegion) -> Result<Option<u32>, Fault> {
        let registered = self.device.register_memory(memory)?;
        Ok(registered.map(|registered| self.adopt_bank(Arc::new(Bank::import(registered)))))
    }

    fn supports_memory_ops(&self) -> bool {
        self.device.listed().memory_ops
    }

    fn load_kernels(
        &mut self,
        kernels: &[Arc<Kernel>],
        _runs: &mut dyn Iterator<Item = &BoundRun>,
    ) -> Result<(), Fault> {
        self.work
            .load_kernels(kernels.iter().map(|kernel| &**kernel))
    }

    fn record_list(&mut self, commands: &[&Command]) -> Result<(CommandList, usize), Fault> {
        let (graph, edge_count) = self.work.build_graph(commands)?;
        self.lists.push(graph);
        Ok((CommandList(self.lists.len() as u32 - 1), edge_count))
    }

    fn rerecord_list(&mut self, list: CommandList, commands: &[&Command]) -> Result<(), Fault> {
        let (graph, _) = self.work.build_graph(commands)?;
        self.lists[list.0 as usize] = graph;
        Ok(())
    }

    fn run_once(&mut self, commands: &[Command], patience_ns: u64) -> Result<(), Fault> {
        let banks = &self.work.banks;
        self.device.run_and_wait(patience_ns, |driver| {
            for command in commands {
                match command {
                    Command::Copy { from, to } => {
                        let bytes = from.len().min(to.len());
                        // SAFETY: `address` checks both ranges against their banks, which this queue holds until it
                        // has waited.
                        unsafe {
                            driver.put_copy(banks.address(*from), banks.address(*to), bytes)
                        }?;
                    }
                    Command::Zero { to } => {
                        // SAFETY: as for a copy.
                        unsafe { driver.put_zero(banks.address(*to), to.len()) }?;
                    }
                    Command::Run(_) | Command::Product(..) => {
                        unreachable!("only copies and zeros run once")
                    }
                }
            }
            Ok(())
        })
    }

    fn submit_list(&mut self, list: CommandList) -> Result<(), Fault> {
        self.submit_with_ops(&[], Some(list), &[])
    }

    fn submit_with_ops(
        &mut self,
        before: &[QueueOp],
        list: Option<CommandList>,
        after: &[QueueOp],
    ) -> Result<(), Fault> {
        let graph = list.map(|list| &self.lists[list.0 as usize]);
        let fence = &self.fences[((self.submitted + 1) % FENCES) as usize];
        self.device.call(|driver| {
            // SAFETY: the graph and the banks are this queue's, which drops them only after it has waited for its last
            // submission; a list is recorded anew only once its last submission has been waited for.
            unsafe {
                self.work.put_ops(driver, before)?;
                if let Some(graph) = graph {
                    graph.launch(driver)?;
                }
                self.work.put_ops(driver, after)?;
            }
            fence.record(driver)
        })?;
        self.submitted += 1;
        Ok(())
    }

    fn wait_for(&mut self, submissions: u64, patience_ns: u64) -> Result<(), Fault> {
        self.wait_until(submissions, patience_ns, &mut || false)
    }

    fn wait_until(
        &mut self,
        submissions: u64,
        patience_ns: u64,
        is_done: &mut dyn FnMut() -> bool,
    ) -> Result<(), Fault> {
        // The fence of an older launch was used again: that of a later one implies it.
        let oldest_fence = (self.submitted + 1).saturating_sub(FENCES);
        let fence = &self.fences[(submissions.max(oldest_fence) % FENCES) as usize];
        self.device
            .wait_until(fence, submissions, patience_ns, is_done)
    }

    fn fence_count(&self) -> u64 {
        FENCES
    }

    fn is_alive(&self) -> bool {
        self.device.is_alive()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.device.is_alive() && self.submitted > 0 {
            // What cannot be waited for is not given back either: a hang marks the device as dead.
            let _ = self.wait_for(self.submitted, PATIENCE_NS);
        }
    }
}
