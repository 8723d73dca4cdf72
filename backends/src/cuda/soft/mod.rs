//! A CUDA device in software: does what [`Driver`] says, on the host's memory, by reading the printed PTX. For tests of
//! everything but the real driver, and therefore suspicious:
//!
//! - nodes of a graph run in any order that its edges allow, another one at each launch;
//! - every access is checked; what a kernel does wrong is said later, by every call, as a real device does;
//! - memory starts with rubbish, and others' memory is touched only while it is registered;
//! - a kernel behind a programmatic edge that touches memory before it waits, or ends without, goes wrong;
//! - its queue waits for words that others store, and goes on by itself; calls that may wait for the queue do;
//! - what nodes touched is compared, pair by pair, with the edges between them: see [`Machine::check`].

mod machine;
mod matrix;
mod memory;
mod product;
mod queue;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use self::machine::Module;
use self::memory::{Memory, Trace};
use self::queue::{Entry, Marked, PAUSE, Queue};
use super::driver::{
    Address, Driver, Event, Exec, Function, Graph, Image, Launch, MAX_SIGNALS, Node, Signal,
};
use super::error::{Code, Fault, Said, Site};
use super::instance::{Listed, MAX_BINDINGS};
use crate::kernels::Caps;
use crate::kernels::library::{Product, Shape};

/// Groups of a run at most: few, so that threads have several elements each.
const MAX_GROUPS: u32 = 3;

/// Compute capability of the device: what the instructions that it knows need.
const CAPABILITY: (u32, u32) = (8, 0);

/// The only device.
fn listed() -> Listed {
    Listed {
        name: "cuda:0".to_owned(),
        uuid: *b"zbmd in software",
        title: "software".to_owned(),
        driver: "zbmd".to_owned(),
        driver_version: 12_000,
        arch: CAPABILITY,
        integrated: false,
        processors: 1,
        clock_khz: 1_000,
        memory_clock_khz: 1_000,
        memory_bits: 64,
        memory_bytes: 1 << 30,
        groups: MAX_GROUPS,
        signals: true,
        caps: Caps {
            bindings: MAX_BINDINGS,
            capability: Some(CAPABILITY),
            ..Caps::CUDA
        },
        device: 0,
    }
}

/// An error that a test wants a call to give: after so many calls of the site that go well.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    /// The call.
    pub site: Site,
    /// Calls that go well before.
    pub after: u32,
    /// What it then says, every time; `None`: of a query, that the work has not ended, for ever.
    pub code: Option<Code>,
}

/// What a device in software cannot do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lacking {
    /// It can do everything.
    #[default]
    Nothing,
    /// Its queue neither waits for words nor stores them.
    Signals,
    /// It does not reach others' memory.
    Registration,
    /// There is no library for products.
    Library,
}

/// What was asked of the driver so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocations that were not given back.
    pub allocations: usize,
    /// Others' memory that was not given back.
    pub registered: usize,
    /// Marks that were not given back.
    pub events: usize,
    /// Graphs in the making that were not given back.
    pub graphs: usize,
    /// Graphs ready to run that were not given back.
    pub ready: usize,
    /// Modules loaded.
    pub modules: usize,
    /// Objects offered instead of texts.
    pub cubins: usize,
    /// Launches.
    pub launches: usize,
    /// Words waited for or stored by the queue.
    pub signals: usize,
    /// Nodes of kernels, copies and zeros, of all graphs ever instantiated.
    pub nodes: [usize; 3],
    /// Edges between them.
    pub edges: usize,
    /// Nodes of products by the vendor's library.
    pub products: usize,
    /// Programmatic ones among these.
    pub programmatic: usize,
}

/// The driver's side.
#[derive(Default)]
pub struct Machine(Mutex<Inner>);

#[derive(Clone, Debug)]
enum Work {
    Kernel(Launch),
    Copy {
        from: Address,
        to: Address,
        bytes: u64,
    },
    Zero {
        at: Address,
        bytes: u64,
    },
    Product(Product<Address>, u64),
}

#[derive(Clone, Debug)]
struct Made {
    work: Work,
    after: Vec<u64>,
    /// Kernels whose end it waits for itself.
    behind: Vec<u64>,
}

#[derive(Default)]
struct Inner {
    memory: Memory,
    modules: Vec<Arc<Module>>,
    queue: Queue,
    events: BTreeMap<u64, Marked>,
    graphs: BTreeMap<u64, Vec<Made>>,
    ready: BTreeMap<u64, Arc<[Made]>>,
    next: u64,
    random: u64,
    /// What every call says since a kernel went wrong.
    lost: Option<Code>,
    injection: Option<Injection>,
    lacking: Lacking,
    arch: Option<(u32, u32)>,
    checks: bool,
    idle: bool,
    cut: bool,
    conflicts: Vec<String>,
    counts: Counts,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl Machine {
    pub(super) fn new() -> Arc<Machine> {
        Arc::new(Machine::default())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the device.
    pub(super) fn open(self: &Arc<Self>) -> Soft {
        Soft {
            machine: Arc::clone(self),
        }
    }

    /// The device, as it is listed.
    pub(super) fn listed(&self) -> Listed {
        let inner = self.lock();
        let plain = listed();
        let arch = inner.arch.unwrap_or(plain.arch);
        let caps = Caps {
            capability: Some(arch),
            ..plain.caps
        };
        Listed {
            signals: inner.lacking != Lacking::Signals,
            arch,
            caps,
            ..plain
        }
    }

    /// Compute capability of devices that are found from now on.
    pub fn is_of(&self, arch: (u32, u32)) {
        self.lock().arch = Some(arch);
    }

    /// What devices that are found from now on cannot do.
    pub fn lacks(&self, lacking: Lacking) {
        self.lock().lacking = lacking;
    }

    /// Makes a call of that site fail, once so many have gone well.
    pub fn inject(&self, injection: Option<Injection>) {
        self.lock().injection = injection;
    }

    /// What was asked for so far.
    pub fn counts(&self) -> Counts {
        let inner = self.lock();
        Counts {
            allocations: inner.memory.blocks().count(),
            registered: inner.memory.registered.len(),
            events: inner.events.len(),
            graphs: inner.graphs.len(),
            ready: inner.ready.len(),
            modules: inner.modules.len(),
            ..inner.counts
        }
    }

    /// From now on compares what nodes touch with the edges between them, which takes long.
    pub fn check(&self) {
        self.lock().checks = true;
    }

    /// From now on launches do nothing: for what the host does besides.
    pub fn idle(&self) {
        self.lock().idle = true;
    }

    /// From now on graphs lose their edges when they are made ready, which [`Self::conflicts`] must notice.
    pub fn cut(&self) {
        self.lock().cut = true;
    }

    /// Whether something in the queue has not been done yet.
    pub fn is_waiting(&self) -> bool {
        !self.lock().is_settled()
    }

    /// Nodes that touched the same memory, one of them writing, with no way of edges between them, in words.
    pub fn conflicts(&self) -> Vec<String> {
        self.lock().conflicts.clone()
    }
}

/// The device, opened.
pub(super) struct Soft {
    machine: Arc<Machine>,
}

impl Inner {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    /// Does the work; what goes wrong is said later.
    fn work(&mut self, work: &Work, waits: bool) {
        let done = match work {
            Work::Copy { from, to, bytes } => self.memory.copy(*from, *to, *bytes),
            Work::Zero { at, bytes } => self.memory.fill(*at, *bytes, 0),
            Work::Product(product, count) => product::run(product, *count, &mut self.memory),
            Work::Kernel(launch) => {
                let words = launch.words.iter().map(|w| u64::from(*w));
                let parameters: Vec<u64> = launch.pointers.iter().copied().chain(words).collect();
                let module = Arc::clone(&self.modules[launch.function.0 as usize]);
                assert_eq!(module.local, launch.local, "threads of a group");
                module.run(launch.groups, &parameters, waits, &mut self.memory)
            }
        };
        if let Err(code) = done {
            self.lost.get_or_insert(code);
        }
    }

    /// All nodes of a graph, in an order that its edges allow.
    fn nodes(&mut self, nodes: &[Made]) {
        let mut waits: Vec<usize> = nodes.iter().map(|n| n.after.len()).collect();
        let mut ready: Vec<usize> = (0..nodes.len()).filter(|n| waits[*n] == 0).collect();
        let mut followers = vec![Vec::new(); nodes.len()];
        for (n, node) in nodes.iter().enumerate() {
            node.after
                .iter()
                .for_each(|a| followers[*a as usize].push(n));
        }
        let mut traces = vec![Trace::default(); nodes.len()];
        let mut done = 0;
        while !ready.is_empty() {
            let chosen = self.below(ready.len());
            let node = ready.swap_remove(chosen);
            self.memory.trace = Trace::default();
            self.work(&nodes[node].work, !nodes[node].behind.is_empty());
            traces[node] = std::mem::take(&mut self.memory.trace);
            done += 1;
            for follower in &followers[node] {
                waits[*follower] -= 1;
                if waits[*follower] == 0 {
                    ready.push(*follower);
                }
            }
        }
        assert_eq!(done, nodes.len(), "the edges of a graph make a circle");
        if self.checks {
            self.compare(nodes, &traces);
        }
    }

    fn compare(&mut self, nodes: &[Made], traces: &[Trace]) {
        let mut before: Vec<BTreeSet<u64>> = Vec::new();
        for (n, node) in nodes.iter().enumerate() {
            let mut all: BTreeSet<u64> = node.after.iter().copied().collect();
            node.after
                .iter()
                .for_each(|a| all.extend(&before[*a as usize]));
            for other in (0..n).filter(|o| !all.contains(&(*o as u64))) {
                let (a, b) = (&traces[other], &traces[n]);
                let clash = overlap(&a.written, &b.written)
                    || overlap(&a.written, &b.read)
                    || overlap(&a.read, &b.written);
                if clash {
                    let text = format!("{:?} and {:?}", nodes[other].work, node.work);
                    self.conflicts.push(text);
                }
            }
            before.push(all);
        }
    }
}

fn overlap(a: &[(u64, u64)], b: &[(u64, u64)]) -> bool {
    a.iter().any(|x| b.iter().any(|y| x.0 < y.1 && y.0 < x.1))
}

impl Soft {
    /// The machine for a call, unless the call is to fail.
    fn enter(&self, site: Site) -> Result<MutexGuard<'_, Inner>, Said> {
        let mut inner = self.machine.lock();
        let refuse = |code| Err(Said { site, code });
        if let Some(code) = inner.lost.filter(|_| site != Site::Bind) {
            return refuse(code);
        }
        if let Some(injection) = inner.injection.as_mut().filter(|i| i.site == site) {
            match (injection.after, injection.code) {
                (0, Some(code)) => {
                    let said = Said { site, code };
                    inner.queue.is_frozen |= Fault::new(said).is_fatal();
                    return Err(said);
                }
                (0, None) => {}
                _ => injection.after -= 1,
            }
        }
        Ok(inner)
    }

    /// Waits for the queue, as real drivers may before they take or give back memory or make graphs ready.
    fn settle(&self) {
        const LIMIT: Duration = Duration::from_secs(20);
        let begun = Instant::now();
        while self.machine.is_waiting() {
            assert!(
                begun.elapsed() < LIMIT,
                "a call waits for the queue, and the queue for others"
            );
            std::thread::sleep(PAUSE);
        }
    }

    fn add(&self, site: Site, graph: Graph, after: &[Node], work: Work) -> Result<Node, Said> {
        let mut inner = self.enter(site)?;
        let nodes = inner
            .graphs
            .get_mut(&graph.0)
            .expect("a graph in the making");
        let after: Vec<u64> = after.iter().map(|n| n.0).collect();
        assert!(
            after.iter().all(|n| *n < nodes.len() as u64),
            "a node of another graph"
        );
        nodes.push(Made {
            work,
            after,
            behind: Vec::new(),
        });
        Ok(Node(nodes.len() as u64 - 1))
    }
}

impl Driver for Soft {
    fn bind(&self) -> Result<(), Said> {
        self.enter(Site::Bind).map(drop)
    }

    fn alloc(&self, bytes: u64) -> Result<Address, Said> {
        self.settle();
        let mut inner = self.enter(Site::Alloc)?;
        inner.memory.alloc(bytes).map_err(|code| Said {
            site: Site::Alloc,
            code,
        })
    }

    fn free(&self, at: Address) {
        self.settle();
        self.machine.lock().memory.free(at);
    }

    fn alloc_host(&self, bytes: u64) -> Result<Address, Said> {
        self.settle();
        let mut inner = self.enter(Site::AllocHost)?;
        inner.memory.alloc(bytes).map_err(|code| Said {
            site: Site::AllocHost,
            code,
        })
    }

    fn free_host(&self, at: Address) {
        self.free(at);
    }

    fn register(&self, first: *mut u8, bytes: u64) -> Result<Address, Said> {
        self.settle();
        let mut inner = self.enter(Site::Register)?;
        let registered = match inner.lacking {
            Lacking::Registration => Err(Code(801)),
            _ => inner.memory.register(first as u64, bytes),
        };
        registered.map_err(|code| Said {
            site: Site::Register,
            code,
        })
    }

    fn unregister(&self, first: *mut u8) {
        self.settle();
        let given_back = self
            .machine
            .lock()
            .memory
            .registered
            .remove(&(first as u64));
        assert!(given_back.is_some(), "given back twice");
    }

    fn function(&self, image: Image<'_>, entry: &str) -> Result<Function, Said> {
        self.settle();
        let mut inner = self.enter(Site::Load)?;
        let ptx = match image {
            Image::Ptx(text) => text,
            Image::Cubin(object) => {
                inner.counts.cubins += 1;
                let text = std::str::from_utf8(object.get(128..).unwrap_or_default());
                // Only a device in software knows what to do with such an object.
                let text = text.ok().filter(|text| text.starts_with(".version"));
                text.ok_or(Said {
                    site: Site::Load,
                    code: Code(209),
                })?
            }
        };
        drop(inner);
        assert!(
            ptx.contains(&format!(".entry {entry}(")),
            "no entry {entry}"
        );
        let module = Arc::new(Module::read(ptx));
        let mut inner = self.enter(Site::Function)?;
        inner.modules.push(module);
        Ok(Function(inner.modules.len() as u64 - 1))
    }

    fn zero(&self, at: Address, bytes: u64) -> Result<(), Said> {
        self.put(Site::Zero, Entry::Work(Work::Zero { at, bytes }))
    }

    fn copy(&self, from: Address, to: Address, bytes: u64) -> Result<(), Said> {
        self.put(Site::Copy, Entry::Work(Work::Copy { from, to, bytes }))
    }

    fn give(&self, from: Address, to: Address, bytes: u64) -> Result<(), Said> {
        self.put(Site::Give, Entry::Work(Work::Copy { from, to, bytes }))
    }

    fn signal(&self, signals: &[Signal]) -> Result<(), Said> {
        if signals.is_empty() {
            return Ok(());
        }
        assert!(
            signals.len() <= MAX_SIGNALS,
            "{} operations in a batch",
            signals.len()
        );
        let mut inner = self.machine.lock();
        assert!(
            inner.lacking != Lacking::Signals,
            "it has no such operations"
        );
        inner.counts.signals += signals.len();
        drop(inner);
        signals
            .iter()
            .try_for_each(|signal| self.put(Site::Signal, Entry::Signal(*signal)))
    }

    fn event(&self) -> Result<Event, Said> {
        let mut inner = self.enter(Site::Event)?;
        let event = inner.number();
        inner.events.insert(event, Marked::default());
        Ok(Event(event))
    }

    fn free_event(&self, event: Event) {
        assert!(
            self.machine.lock().events.remove(&event.0).is_some(),
            "given back twice"
        );
    }

    fn record(&self, event: Event) -> Result<(), Said> {
        self.put(Site::Record, Entry::Mark(event.0))
    }

    fn query(&self, event: Event) -> Result<bool, Said> {
        let mut inner = self.enter(Site::Query)?;
        let hangs = |i: Injection| i.site == Site::Query && i.after == 0 && i.code.is_none();
        inner.queue.is_frozen |= inner.injection.is_some_and(hangs);
        Ok(inner.has_come_to(event.0) && !inner.queue.is_frozen)
    }

    fn graph(&self) -> Result<Graph, Said> {
        let mut inner = self.enter(Site::Graph)?;
        let graph = inner.number();
        inner.graphs.insert(graph, Vec::new());
        Ok(Graph(graph))
    }

    fn free_graph(&self, graph: Graph) {
        assert!(
            self.machine.lock().graphs.remove(&graph.0).is_some(),
            "given back twice"
        );
    }

    fn kernel_node(&self, graph: Graph, after: &[Node], launch: &Launch) -> Result<Node, Said> {
        self.add(Site::KernelNode, graph, after, Work::Kernel(launch.clone()))
    }

    fn has_programmatic_edges(&self) -> bool {
        true
    }

    fn programmatic_edge(&self, graph: Graph, before: Node, after: Node) -> Result<(), Said> {
        let mut inner = self.enter(Site::KernelNode)?;
        let nodes = inner
            .graphs
            .get_mut(&graph.0)
            .expect("a graph in the making");
        let both = [before, after].map(|n| &nodes[n.0 as usize].work);
        assert!(
            both.iter().all(|w| matches!(w, Work::Kernel(_))),
            "an edge of what is no kernel"
        );
        assert!(before < after, "an edge to what came before");
        nodes[after.0 as usize].behind.push(before.0);
        Ok(())
    }

    fn copy_node(
        &self,
        graph: Graph,
        after: &[Node],
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<Node, Said> {
        self.add(Site::CopyNode, graph, after, Work::Copy { from, to, bytes })
    }

    fn zero_node(
        &self,
        graph: Graph,
        after: &[Node],
        at: Address,
        bytes: u64,
    ) -> Result<Node, Said> {
        self.add(Site::ZeroNode, graph, after, Work::Zero { at, bytes })
    }

    fn library(&self) -> Result<String, String> {
        match self.machine.lock().lacking == Lacking::Library {
            true => Err("cuBLASLt is not installed".to_owned()),
            false => Ok("cuBLASLt in software".to_owned()),
        }
    }

    fn refuses(&self, _shape: &Shape) -> Result<Option<String>, Said> {
        drop(self.enter(Site::Library)?);
        Ok(self.library().err())
    }

    fn product_node(
        &self,
        graph: Graph,
        after: &[Node],
        product: &Product<Address>,
        count: u64,
    ) -> Result<Node, Said> {
        assert!(
            self.library().is_ok(),
            "a library that is not there is asked for a product"
        );
        self.add(Site::Product, graph, after, Work::Product(*product, count))
    }

    fn instantiate(&self, graph: Graph) -> Result<Exec, Said> {
        self.settle();
        let mut inner = self.enter(Site::Instantiate)?;
        let mut nodes = inner.graphs[&graph.0].clone();
        if inner.cut {
            nodes.iter_mut().for_each(|node| {
                node.after.clear();
                node.behind.clear();
            });
        }
        for node in &mut nodes {
            inner.counts.edges += node.after.len() + node.behind.len();
            inner.counts.programmatic += node.behind.len();
            let kind = match node.work {
                Work::Kernel(_) => 0,
                Work::Copy { .. } => 1,
                Work::Zero { .. } => 2,
                Work::Product(..) => {
                    inner.counts.products += 1;
                    continue;
                }
            };
            inner.counts.nodes[kind] += 1;
            // All that a kernel does comes behind its wait, or else is wrong.
            node.after.extend(&node.behind);
        }
        let exec = inner.number();
        inner.ready.insert(exec, nodes.into());
        Ok(Exec(exec))
    }

    fn upload(&self, exec: Exec) -> Result<(), Said> {
        self.settle();
        let inner = self.enter(Site::Upload)?;
        assert!(inner.ready.contains_key(&exec.0), "a graph that is ready");
        Ok(())
    }

    fn free_exec(&self, exec: Exec) {
        self.settle();
        assert!(
            self.machine.lock().ready.remove(&exec.0).is_some(),
            "given back twice"
        );
    }

    fn launch(&self, exec: Exec) -> Result<(), Said> {
        let mut inner = self.enter(Site::Launch)?;
        inner.counts.launches += 1;
        let nodes = Arc::clone(&inner.ready[&exec.0]);
        if !inner.idle {
            self.push(inner, Entry::Graph(nodes));
        }
        Ok(())
    }

    fn close(&self) {
        assert!(
            self.machine.lock().is_settled(),
            "closed with work in the queue"
        );
    }
}
