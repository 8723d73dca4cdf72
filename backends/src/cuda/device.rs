//! One open device, and what is made on it: memory, kernels, graphs. Everything is given back when it is dropped,
//! unless the device is lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use zbmd_ir::Program;

use super::cubins::Cubins;
use super::driver::{Address, Driver, Event, Exec, Function, Graph, Image, Launch, Node};
use super::error::{Fault, OpenError, Said};
use super::instance::{Instance, Listed};
use super::ptx;
use super::registered::Registered;
use crate::kernels::Caps;
use crate::kernels::lang::Kernel;
use crate::kernels::library::{Product, Shape};
use crate::replay::Home;

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Bytes of one allocation at most: arenas are cut into several then. By default they are one each.
    pub bank_bytes: Option<u64>,
    /// Lets kernels of a calendar start before the end of the one that they wait for, and wait for that end themselves
    /// (programmatic dependent launch), where device and driver can: compute capability 9.0, CUDA 12.3.
    pub programmatic: bool,
}

/// The oldest compute capability whose kernels can wait for others themselves.
pub(super) const PROGRAMMATIC: (u32, u32) = (9, 0);

/// An open device. One thread drives it at a time.
///
/// After [`Fault::Lost`], [`Fault::Hung`] or a wait that failed the driver may still write to what it was given, or
/// never answer again: nothing is freed then, and nothing is waited for. The process is expected to end.
pub struct Device {
    driver: Arc<dyn Driver>,
    listed: Listed,
    options: Options,
    programmatic: bool,
    /// Kernels by what their code is printed from.
    functions: Mutex<BTreeMap<(u128, Vec<u32>), Function>>,
    /// A fatal fault was seen.
    dead: AtomicBool,
    // Last: the driver outlives its devices.
    instance: Arc<Instance>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.listed.name)
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Opens a device of the instance.
    ///
    /// # Errors
    /// [`OpenError::Lacks`] for a device that is too old; a [`Fault`] of the driver.
    pub fn open(
        instance: &Arc<Instance>,
        listed: &Listed,
        options: &Options,
    ) -> Result<Arc<Device>, OpenError> {
        let driver = instance.open(listed)?;
        let can = listed.arch >= PROGRAMMATIC && driver.has_programmatic_edges();
        Ok(Arc::new(Device {
            driver,
            programmatic: options.programmatic && can,
            listed: listed.clone(),
            options: options.clone(),
            functions: Mutex::default(),
            dead: AtomicBool::new(false),
            instance: Arc::clone(instance),
        }))
    }

    /// What it is.
    pub fn listed(&self) -> &Listed {
        &self.listed
    }

    /// Its driver.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// What kernels can do there.
    pub fn caps(&self) -> &Caps {
        &self.listed.caps
    }

    /// Whether kernels wait for others themselves: [`Options::programmatic`], and the device and its driver can.
    pub fn is_programmatic(&self) -> bool {
        self.programmatic
    }

    pub(super) fn bank_bytes(&self) -> u64 {
        // No allocation is as large as a card; sums of offsets stay far from the end of numbers.
        self.options.bank_bytes.unwrap_or(1 << 48)
    }

    /// Whether no fault was seen after which the driver must be left alone. If one was, the device is of no use, and
    /// the process must end before it is asked for it again.
    pub fn is_alive(&self) -> bool {
        !self.dead.load(Ordering::Relaxed)
    }

    /// Makes calls that can fail, on the calling thread, and sorts what they say.
    pub(super) fn call<T>(
        &self,
        call: impl FnOnce(&dyn Driver) -> Result<T, Said>,
    ) -> Result<T, Fault> {
        let driver = &*self.driver;
        driver
            .bind()
            .and_then(|()| call(driver))
            .map_err(|said| self.note(Fault::new(said)))
    }

    /// Gives something back, unless the device is lost.
    pub(super) fn give_back(&self, call: impl FnOnce(&dyn Driver)) {
        if self.is_alive() && self.driver.bind().is_ok() {
            call(&*self.driver);
        }
    }

    /// Remembers a fault after which the driver is left alone.
    fn note(&self, fault: Fault) -> Fault {
        if fault.is_fatal() {
            self.dead.store(true, Ordering::Relaxed);
        }
        fault
    }

    /// Makes kernels ready, for later.
    pub(crate) fn warm<'k>(
        &self,
        mut kernels: impl Iterator<Item = &'k Kernel>,
        program: &Program,
    ) -> Result<(), Fault> {
        let cubins = Cubins::of(program, self.listed.arch);
        kernels.try_for_each(|kernel| self.function(kernel, &cubins).map(drop))
    }

    /// A kernel made ready, from the bundle if that has it; each is loaded once.
    pub(super) fn function(&self, kernel: &Kernel, cubins: &Cubins) -> Result<Function, Fault> {
        // Sizes are in the code as numbers.
        let key = (kernel.digest("ptx"), kernel.specs.clone());
        let mut functions = self
            .functions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(&key) {
            return Ok(*function);
        }
        let (text, entry) = ptx::print(kernel, self.programmatic);
        let load = |image| self.call(|driver| driver.function(image, &entry));
        let function = match cubins.find(&text).map(|cubin| load(Image::Cubin(cubin))) {
            Some(Ok(function)) => function,
            Some(Err(fault)) if fault.is_fatal() => return Err(fault),
            // None, or one that this driver does not take.
            _ => load(Image::Ptx(&text))?,
        };
        functions.insert(key, function);
        Ok(function)
    }

    /// The vendor's library for products, with its version; or why there is none, as a clause.
    ///
    /// # Errors
    /// That clause.
    pub fn library(&self) -> Result<String, String> {
        self.driver
            .bind()
            .map_err(|said| Fault::new(said).to_string())?;
        self.driver.library()
    }

    /// Why the library cannot do products of a shape, as a clause; `None` where it can.
    pub(crate) fn refuses(&self, shape: &Shape) -> Result<Option<String>, Fault> {
        self.call(|driver| driver.refuses(shape))
    }

    /// Waits for the mark that follows launch `value`.
    ///
    /// The driver's own waits have no end; this one asks again and again, at first without a pause, because most of
    /// what is waited for is nearly there.
    ///
    /// # Errors
    /// [`Fault::Hung`] after `timeout_ns`.
    pub(super) fn wait(&self, event: Event, value: u64, timeout_ns: u64) -> Result<(), Fault> {
        self.wait_until(event, value, timeout_ns, &mut || false)
    }

    /// The same, or until `done` says true, which is asked before each look.
    pub(super) fn wait_until(
        &self,
        event: Event,
        value: u64,
        timeout_ns: u64,
        done: &mut dyn FnMut() -> bool,
    ) -> Result<(), Fault> {
        const BUSY: Duration = Duration::from_micros(200);
        const PAUSE: Duration = Duration::from_micros(20);
        let start = Instant::now();
        while !done() && !self.call(|driver| driver.query(event))? {
            let waited = start.elapsed();
            if waited.as_nanos() > timeout_ns.into() {
                let waited_ms = timeout_ns / 1_000_000;
                return Err(self.note(Fault::Hung { value, waited_ms }));
            }
            if waited < BUSY {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Runs what `put` puts into the queue, and waits for its end.
    pub(super) fn once(
        self: &Arc<Self>,
        timeout_ns: u64,
        put: impl FnOnce(&dyn Driver) -> Result<(), Said>,
    ) -> Result<(), Fault> {
        let mark = Mark::new(self)?;
        self.call(put)?;
        self.call(|driver| driver.record(mark.event))?;
        self.wait(mark.event, 0, timeout_ns)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Everything made on the device holds it, so nothing else is left.
        self.give_back(|driver| driver.close());
    }
}

/// Memory of the device or of the host.
pub struct Bank {
    pub(super) at: Address,
    pub(super) bytes: u64,
    owner: Owner,
}

/// Who takes the memory back.
enum Owner {
    Driver(Home, Arc<Device>),
    /// It is lent: others' on the host.
    Others(#[expect(dead_code, reason = "keeps the memory registered")] Arc<Registered>),
}

impl Bank {
    /// A bank of at least `bytes` bytes, of any content.
    pub(super) fn new(device: &Arc<Device>, bytes: u64, home: Home) -> Result<Self, Fault> {
        let bytes = bytes.max(256).next_multiple_of(256);
        let at = device.call(|driver| match home {
            Home::Device => driver.alloc(bytes),
            Home::Host => driver.alloc_host(bytes),
        });
        let at = at.map_err(|fault| fault.wanting(bytes))?;
        Ok(Self {
            at,
            bytes,
            owner: Owner::Driver(home, Arc::clone(device)),
        })
    }

    /// Memory of others.
    pub(super) fn adopt(registered: Arc<Registered>) -> Self {
        Self {
            at: registered.at,
            bytes: registered.bytes,
            owner: Owner::Others(registered),
        }
    }

    /// Where the host sees a range of the bank.
    pub(super) fn host(&self, at: u64, len: usize) -> *mut u8 {
        assert!(
            at + len as u64 <= self.bytes,
            "{at} + {len} of a bank of {}",
            self.bytes
        );
        assert!(
            matches!(self.owner, Owner::Driver(Home::Host, _)),
            "a bank that the host sees"
        );
        (self.at + at) as *mut u8
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        // Owners drop banks only when nothing in the queue uses them.
        let Owner::Driver(home, device) = &self.owner else {
            return;
        };
        device.give_back(|driver| match home {
            Home::Device => driver.free(self.at),
            Home::Host => driver.free_host(self.at),
        });
    }
}

/// A mark in the queue.
pub(super) struct Mark {
    pub(super) event: Event,
    device: Arc<Device>,
}

impl Mark {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        let event = device.call(|driver| driver.event())?;
        Ok(Self {
            event,
            device: Arc::clone(device),
        })
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.device
            .give_back(|driver| driver.free_event(self.event));
    }
}

/// A graph in the making.
pub(super) struct Draft {
    graph: Graph,
    device: Arc<Device>,
}

impl Draft {
    pub(super) fn new(device: &Arc<Device>) -> Result<Self, Fault> {
        let graph = device.call(|driver| driver.graph())?;
        Ok(Self {
            graph,
            device: Arc::clone(device),
        })
    }

    pub(super) fn kernel(&self, after: &[Node], launch: &Launch) -> Result<Node, Fault> {
        self.device
            .call(|driver| driver.kernel_node(self.graph, after, launch))
    }

    /// A kernel that waits for the end of another one itself.
    pub(super) fn kernel_behind(&self, before: Node, launch: &Launch) -> Result<Node, Fault> {
        let node = self.kernel(&[], launch)?;
        self.device
            .call(|driver| driver.programmatic_edge(self.graph, before, node))?;
        Ok(node)
    }

    pub(super) fn copy(
        &self,
        after: &[Node],
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<Node, Fault> {
        self.device
            .call(|driver| driver.copy_node(self.graph, after, from, to, bytes))
    }

    pub(super) fn zero(&self, after: &[Node], at: Address, bytes: u64) -> Result<Node, Fault> {
        self.device
            .call(|driver| driver.zero_node(self.graph, after, at, bytes))
    }

    pub(super) fn product(
        &self,
        after: &[Node],
        product: &Product<Address>,
        count: u64,
    ) -> Result<Node, Fault> {
        self.device
            .call(|driver| driver.product_node(self.graph, after, product, count))
    }

    /// The graph, ready to be launched.
    pub(super) fn finish(self) -> Result<Ready, Fault> {
        let exec = self.device.call(|driver| driver.instantiate(self.graph))?;
        let ready = Ready {
            exec,
            device: Arc::clone(&self.device),
        };
        self.device.call(|driver| driver.upload(ready.exec))?;
        Ok(ready)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.device
            .give_back(|driver| driver.free_graph(self.graph));
    }
}

/// A graph that can be launched.
pub(super) struct Ready {
    pub(super) exec: Exec,
    device: Arc<Device>,
}

impl Drop for Ready {
    fn drop(&mut self) {
        // Owners drop graphs only when they are not in the queue.
        self.device.give_back(|driver| driver.free_exec(self.exec));
    }
}
