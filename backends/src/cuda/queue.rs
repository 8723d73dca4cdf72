//! Calendars' lists of commands as graphs: a node for each command, an edge where data asks for it and nowhere else.

use std::sync::Arc;

use zbmd_ir::{Actor, Calendar, Plan, Program};

use super::cubins::Cubins;
use super::device::{Bank, Device, Draft, Mark, Ready};
use super::driver::{Address, Driver, Function, Launch, MAX_SIGNALS, Node, Signal};
use super::edges::Edges;
use super::error::{Fault, Said};
use super::registered::Registered;
use super::{GpuCall, Kept, Replay, ReplayError};
use crate::kernels::lang::Kernel;
use crate::kernels::library::Shape;
use crate::kernels::{Caps, KernelPlan};
use crate::op::Registry;
use crate::replay::{
    Command, Exchange, Handover, Home, HostRegion, Limits, List, PATIENCE_NS, Queue as _, Range,
    Run,
};

/// Marks in use at a time: launches beyond that are waited for by a later one's mark.
const MARKS: u64 = 16;

/// One device's graphs for a calendar, and their memory.
pub struct Queue {
    device: Arc<Device>,
    submitted: u64,
    // In the order in which they can be given back.
    lists: Vec<Ready>,
    marks: Vec<Mark>,
    work: Work,
}

/// What commands speak of by numbers.
pub(super) struct Work {
    pub(super) device: Arc<Device>,
    cubins: Cubins,
    /// Kernels, with the threads of a group.
    pub(super) functions: Vec<(Function, u32)>,
    pub(super) banks: Vec<Arc<Bank>>,
}

impl Replay {
    /// Makes a device ready for its calendar in a plan of a verified program: allocates, compiles, makes the graphs.
    ///
    /// # Errors
    /// See [`ReplayError`].
    ///
    /// # Panics
    /// If the program was not verified, or the calendar is not one of the plan's.
    pub fn new(
        device: &Arc<Device>,
        registry: &Registry,
        program: &Program,
        plan: &Plan,
        calendar: &Calendar,
        exchange: &Exchange,
    ) -> Result<Replay, ReplayError> {
        Self::keeping(
            device,
            registry,
            program,
            plan,
            calendar,
            exchange,
            &mut Kept::default(),
        )
    }

    /// The same with the constants that the device has, which then are those that it has now.
    ///
    /// # Errors
    /// As [`Self::new`].
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn keeping(
        device: &Arc<Device>,
        registry: &Registry,
        program: &Program,
        plan: &Plan,
        calendar: &Calendar,
        exchange: &Exchange,
        kept: &mut Kept,
    ) -> Result<Replay, ReplayError> {
        let queue = Queue::new(device, Cubins::of(program, device.listed().arch))?;
        Self::prepare(queue, registry, program, plan, calendar, exchange, kept)
    }
}

impl GpuCall {
    /// Memory for calls of `firings` (at least 1) firings, and the commands of `calls` of them in a row, on the same
    /// memory, each time it runs: the difference of two numbers of calls is what one takes apart from its submission.
    ///
    /// # Errors
    /// The driver's faults; [`ReplayError::TooLarge`] for a call that is too long for the device.
    pub fn new(
        device: &Arc<Device>,
        actor: &Actor,
        plan: &KernelPlan,
        firings: usize,
        calls: usize,
    ) -> Result<Self, ReplayError> {
        Self::prepare(
            Queue::new(device, Cubins::default())?,
            actor,
            plan,
            firings,
            calls,
        )
    }
}

impl Work {
    pub(super) fn new(device: &Arc<Device>, cubins: Cubins) -> Self {
        let device = Arc::clone(device);
        Self {
            device,
            cubins,
            functions: Vec::new(),
            banks: Vec::new(),
        }
    }

    /// Makes kernels ready, in order.
    pub(super) fn load<'k>(
        &mut self,
        kernels: impl IntoIterator<Item = &'k Kernel>,
    ) -> Result<(), Fault> {
        for kernel in kernels {
            self.functions
                .push((self.device.function(kernel, &self.cubins)?, kernel.local));
        }
        Ok(())
    }

    pub(super) fn address(&self, range: Range) -> Address {
        let bank = &self.banks[range.bank as usize];
        assert!(
            range.end <= bank.bytes,
            "{range:?} of a bank of {}",
            bank.bytes
        );
        bank.at + range.start
    }

    fn launch(&self, run: &Run) -> Launch {
        let (function, local) = self.functions[run.kernel as usize];
        // Pointers go straight to the operands, so the offsets are all 0.
        let mut words = vec![0; run.operands.len() + 1];
        words[0] = run.firings as u32;
        Launch {
            function,
            groups: run.groups.clamp(1, self.device.listed().groups.into()) as u32,
            local,
            pointers: run
                .operands
                .iter()
                .map(|(range, ..)| self.address(*range))
                .collect(),
            words: words.into(),
        }
    }

    /// Puts what a submission does besides its list into the queue: words in batches, between copies.
    fn hand_over(&self, driver: &dyn Driver, steps: &[Handover]) -> Result<(), Said> {
        let mut batch = [Signal::default(); MAX_SIGNALS];
        let mut count = 0;
        for step in steps {
            let (word, value, waits) = match *step {
                Handover::Wait { word, least } => (word, least, true),
                Handover::Write { word, value } => (word, value, false),
                Handover::Copy { from, to } => {
                    driver.signal(&batch[..std::mem::take(&mut count)])?;
                    driver.give(self.address(from), self.address(to), from.len())?;
                    continue;
                }
            };
            if count == MAX_SIGNALS {
                driver.signal(&batch[..std::mem::take(&mut count)])?;
            }
            batch[count] = Signal {
                at: self.address(word),
                value,
                waits,
            };
            count += 1;
        }
        driver.signal(&batch[..count])
    }

    /// The graph of commands, and the number of its edges.
    pub(super) fn graph(&self, commands: &[&Command]) -> Result<(Ready, usize), Fault> {
        let draft = Draft::new(&self.device)?;
        let (mut edges, mut nodes, mut count) = (Edges::default(), Vec::<(Node, bool)>::new(), 0);
        let programmatic = self.device.is_programmatic();
        for command in commands {
            let after = match command {
                Command::Copy { from, .. } if from.len() == 0 => continue,
                Command::Zero { to } if to.len() == 0 => continue,
                Command::Copy { from, to } => edges.note([*from].into_iter(), [*to].into_iter()),
                Command::Zero { to } => edges.note([].into_iter(), [*to].into_iter()),
                Command::Run(run) => {
                    let of = |writes: bool| {
                        run.operands
                            .iter()
                            .filter(move |o| o.2 == writes)
                            .map(|(range, ..)| *range)
                    };
                    edges.note(of(false), of(true))
                }
                Command::Product(product, _) => edges.note(product.reads(), product.writes()),
            };
            count += after.len();
            let behind: Vec<(Node, bool)> = after.into_iter().map(|n| nodes[n as usize]).collect();
            let after: Vec<Node> = behind.iter().map(|(node, _)| *node).collect();
            let node = match command {
                Command::Copy { from, to } => {
                    draft.copy(&after, self.address(*from), self.address(*to), from.len())?
                }
                Command::Zero { to } => draft.zero(&after, self.address(*to), to.len())?,
                // Of one kernel alone: the form that drivers make of streams, and that of chains.
                Command::Run(run) => match behind[..] {
                    [(before, true)] if programmatic => {
                        draft.kernel_behind(before, &self.launch(run))?
                    }
                    _ => draft.kernel(&after, &self.launch(run))?,
                },
                Command::Product(product, count) => {
                    draft.product(&after, &product.at(|range| self.address(range)), *count)?
                }
            };
            nodes.push((node, matches!(command, Command::Run(_))));
        }
        Ok((draft.finish()?, count))
    }
}

impl Queue {
    pub(super) fn new(device: &Arc<Device>, cubins: Cubins) -> Result<Self, Fault> {
        let marks: Result<Vec<Mark>, Fault> = (0..MARKS).map(|_| Mark::new(device)).collect();
        Ok(Self {
            device: Arc::clone(device),
            submitted: 0,
            lists: Vec::new(),
            marks: marks?,
            work: Work::new(device, cubins),
        })
    }
}

impl crate::replay::Backend for Queue {
    type Fault = Fault;
    type Bank = Bank;
}

impl crate::replay::Queue for Queue {
    fn name(&self) -> String {
        self.device.listed().name.clone()
    }

    fn caps(&self) -> &Caps {
        self.device.caps()
    }

    fn limits(&self) -> Limits {
        // Elements are counted in 32 bits.
        Limits {
            align_bytes: 1,
            range_bytes: u32::MAX.into(),
            bank_bytes: self.device.bank_bytes(),
        }
    }

    fn refuses(&mut self, shape: &Shape) -> Result<Option<String>, Fault> {
        self.device.refuses(shape)
    }

    fn bank(&mut self, bytes: u64, home: Home) -> Result<u32, Fault> {
        let bank = Bank::new(&self.device, bytes, home)?;
        Ok(self.take(Arc::new(bank)))
    }

    fn take(&mut self, bank: Arc<Bank>) -> u32 {
        self.work.banks.push(bank);
        self.work.banks.len() as u32 - 1
    }

    fn share(&self, bank: u32) -> Arc<Bank> {
        Arc::clone(&self.work.banks[bank as usize])
    }

    fn bank_bytes(&self, bank: u32) -> u64 {
        self.work.banks[bank as usize].bytes
    }

    fn pop_bank(&mut self) {
        self.work.banks.pop();
    }

    fn host(&self, bank: u32, at: u64, len: usize) -> *mut u8 {
        self.work.banks[bank as usize].host(at, len)
    }

    fn adopt(&mut self, memory: HostRegion) -> Result<Option<u32>, Fault> {
        let Some(registered) = Registered::of(&self.device, memory)? else {
            return Ok(None);
        };
        Ok(Some(self.take(Arc::new(Bank::adopt(registered)))))
    }

    fn hands_over(&self) -> bool {
        self.device.listed().signals
    }

    fn load(
        &mut self,
        kernels: &[Arc<Kernel>],
        _runs: &mut dyn Iterator<Item = &Run>,
    ) -> Result<(), Fault> {
        self.work.load(kernels.iter().map(|k| &**k))
    }

    fn record(&mut self, commands: &[&Command]) -> Result<(List, usize), Fault> {
        let (ready, edges) = self.work.graph(commands)?;
        self.lists.push(ready);
        Ok((List(self.lists.len() as u32 - 1), edges))
    }

    fn record_again(&mut self, list: List, commands: &[&Command]) -> Result<(), Fault> {
        self.lists[list.0 as usize] = self.work.graph(commands)?.0;
        Ok(())
    }

    fn run_once(&mut self, commands: &[Command], patience_ns: u64) -> Result<(), Fault> {
        self.device.once(patience_ns, |driver| {
            for command in commands {
                match command {
                    Command::Copy { from, to } => {
                        let (at, to) = (self.work.address(*from), self.work.address(*to));
                        driver.copy(at, to, from.len())?;
                    }
                    Command::Zero { to } => driver.zero(self.work.address(*to), to.len())?,
                    Command::Run(_) | Command::Product(..) => {
                        unreachable!("only copies and zeros run once")
                    }
                }
            }
            Ok(())
        })
    }

    fn submit(&mut self, list: List) -> Result<(), Fault> {
        self.submit_between(&[], Some(list), &[])
    }

    fn submit_between(
        &mut self,
        before: &[Handover],
        list: Option<List>,
        after: &[Handover],
    ) -> Result<(), Fault> {
        let exec = list.map(|list| self.lists[list.0 as usize].exec);
        let mark = self.marks[((self.submitted + 1) % MARKS) as usize].event;
        self.device.call(|driver| {
            self.work.hand_over(driver, before)?;
            exec.map_or(Ok(()), |exec| driver.launch(exec))?;
            self.work.hand_over(driver, after)?;
            driver.record(mark)
        })?;
        self.submitted += 1;
        Ok(())
    }

    fn wait(&mut self, submissions: u64, patience_ns: u64) -> Result<(), Fault> {
        self.wait_until(submissions, patience_ns, &mut || false)
    }

    fn wait_until(
        &mut self,
        submissions: u64,
        patience_ns: u64,
        done: &mut dyn FnMut() -> bool,
    ) -> Result<(), Fault> {
        // The mark of a launch long ago was used again: that of a later one says as much.
        let marked = submissions.max((self.submitted + 1).saturating_sub(MARKS));
        let mark = self.marks[(marked % MARKS) as usize].event;
        self.device.wait_until(mark, submissions, patience_ns, done)
    }

    fn marks(&self) -> u64 {
        MARKS
    }

    fn is_alive(&self) -> bool {
        self.device.is_alive()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.device.is_alive() && self.submitted > 0 {
            // What cannot be waited for is not given back either: a hang marks the device.
            let _ = self.wait(self.submitted, PATIENCE_NS);
        }
    }
}
