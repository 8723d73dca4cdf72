//! A CUDA device in software: does what [`Driver`] says, on the host's memory, by interpreting the printed PTX. It tests
//! everything except the real driver, and therefore checks as much as it can:
//!
//! - nodes of a graph run in any order that its edges allow, a different one at each launch;
//! - every access is checked; an error of a kernel is reported later, by every call, as by a real device;
//! - memory starts with arbitrary content, and others' memory is accessed only while it is registered;
//! - a kernel that is launched early and accesses memory before it waits, or ends without a wait, fails;
//! - its queue waits for words that others store, and goes on by itself; calls that may wait for the queue do;
//! - the accesses of nodes are compared, pair by pair, with the edges between them: see [`Machine::check_edges`].
#![expect(unsafe_code, reason = "implements the driver's unsafe functions")]

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
use self::memory::{AccessTrace, SoftMemory};
use self::queue::{EventState, PAUSE, QueueEntry, SoftQueue};
use super::driver::{
    Address, Driver, Event, Exec, Function, Graph, Image, Launch, MAX_WORD_OPS, Node, WordOp,
};
use super::error::{CallError, Code, Fault, Site};
use super::listed::{Listed, MAX_BINDINGS};
use zbmd_gpu_ir::Caps;
use zbmd_gpu_ir::library::{Product, Shape};

/// Groups of the largest launch: few, so that threads have several elements each.
const MAX_GROUPS: u32 = 3;

/// Compute capability of the device: the one that its instructions need.
const CAPABILITY: (u32, u32) = (8, 0);

/// The only device.
fn plain_device() -> Listed {
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
        memory_ops: true,
        caps: Caps {
            bindings: MAX_BINDINGS,
            capability: Some(CAPABILITY),
            ..Caps::CUDA
        },
        device: 0,
    }
}

/// An error that a test injects into a call: after so many successful calls of the site.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    /// The call.
    pub site: Site,
    /// Successful calls before it.
    pub after: u32,
    /// What it then reports, every time; `None`: of a query, that the work never ends.
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
    /// It cannot access others' memory.
    Registration,
    /// There is no library for products.
    Library,
}

/// The calls of the driver so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Allocations that were not freed.
    pub allocations: usize,
    /// Others' memory that is still registered.
    pub registered: usize,
    /// Events that were not destroyed.
    pub events: usize,
    /// Graphs that are being built.
    pub graphs: usize,
    /// Executable graphs that were not destroyed.
    pub ready: usize,
    /// Modules loaded.
    pub modules: usize,
    /// Objects loaded instead of texts, or rejected.
    pub cubins: usize,
    /// Launches.
    pub launches: usize,
    /// Kernels that launched graphs have run.
    pub kernels: usize,
    /// Words waited for or stored by the queue.
    pub signals: usize,
    /// Nodes of kernels, copies and zeros, of all graphs ever instantiated.
    pub nodes: [usize; 3],
    /// Edges between them.
    pub edges: usize,
    /// Nodes of products by the vendor's library.
    pub products: usize,
    /// Edges over which kernels are launched early.
    pub dependent_launches: usize,
}

/// The driver's side.
#[derive(Default)]
pub struct Machine(Mutex<MachineState>);

#[derive(Clone, Debug)]
enum NodeWork {
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
struct SoftNode {
    work: NodeWork,
    after: Vec<u64>,
    /// Kernels whose end it waits for itself.
    launched_behind: Vec<u64>,
}

#[derive(Default)]
struct MachineState {
    memory: SoftMemory,
    modules: Vec<Arc<Module>>,
    queue: SoftQueue,
    events: BTreeMap<u64, EventState>,
    graphs: BTreeMap<u64, Vec<SoftNode>>,
    ready: BTreeMap<u64, Arc<[SoftNode]>>,
    last_handle: u64,
    random_state: u64,
    /// What every call reports since a kernel has failed.
    lost: Option<Code>,
    injection: Option<Injection>,
    lacking: Lacking,
    arch: Option<(u32, u32)>,
    checks_edges: bool,
    skips_launches: bool,
    drops_edges: bool,
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

    fn lock(&self) -> MutexGuard<'_, MachineState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the device.
    pub(super) fn open(self: &Arc<Self>) -> SoftDriver {
        SoftDriver {
            machine: Arc::clone(self),
        }
    }

    /// The device, as it is listed.
    pub(super) fn listed(&self) -> Listed {
        let state = self.lock();
        let plain = plain_device();
        let arch = state.arch.unwrap_or(plain.arch);
        let caps = Caps {
            capability: Some(arch),
            ..plain.caps
        };

        Listed {
            memory_ops: state.lacking != Lacking::Signals,
            arch,
            caps,
            ..plain
        }
    }

    /// Sets the compute capability of devices that are listed from now on.
    pub fn set_arch(&self, arch: (u32, u32)) {
        self.lock().arch = Some(arch);
    }

    /// Sets what devices that are listed from now on cannot do.
    pub fn set_lacking(&self, lacking: Lacking) {
        self.lock().lacking = lacking;
    }

    /// Makes calls of a site fail, after so many successful ones.
    pub fn inject(&self, injection: Option<Injection>) {
        self.lock().injection = injection;
    }

    /// The calls so far.
    pub fn counts(&self) -> Counts {
        let state = self.lock();
        Counts {
            allocations: state.memory.blocks().count(),
            registered: state.memory.registered.len(),
            events: state.events.len(),
            graphs: state.graphs.len(),
            ready: state.ready.len(),
            modules: state.modules.len(),
            ..state.counts
        }
    }

    /// From now on compares the accesses of nodes with the edges between them, which is slow.
    pub fn check_edges(&self) {
        self.lock().checks_edges = true;
    }

    /// From now on launches do nothing: to measure what the host does.
    pub fn skip_launches(&self) {
        self.lock().skips_launches = true;
    }

    /// From now on graphs lose their edges when they are instantiated, which [`Self::conflicts`] must show.
    pub fn drop_edges(&self) {
        self.lock().drops_edges = true;
    }

    /// Whether something in the queue has not been done yet.
    pub fn is_waiting(&self) -> bool {
        !self.lock().is_settled()
    }

    /// Nodes that accessed the same memory, one of them writing, with no path of edges between them, in words.
    pub fn conflicts(&self) -> Vec<String> {
        self.lock().conflicts.clone()
    }
}

/// The device, opened.
pub(super) struct SoftDriver {
    machine: Arc<Machine>,
}

impl MachineState {
    fn new_handle(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }

    fn random_below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.random_state = self.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let state = self.random_state;
        let mixed_once = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed_twice = (mixed_once ^ (mixed_once >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed_twice ^ (mixed_twice >> 31)) % limit as u64) as usize
    }

    /// Does the work; errors are reported later.
    fn do_work(&mut self, work: &NodeWork, waits: bool) {
        let done = match work {
            NodeWork::Copy { from, to, bytes } => self.memory.copy(*from, *to, *bytes),
            NodeWork::Zero { at, bytes } => self.memory.fill(*at, *bytes, 0),
            NodeWork::Product(product, count) => {
                product::run_products(product, *count, &mut self.memory)
            }
            NodeWork::Kernel(launch) => {
                self.counts.kernels += 1;
                let words = launch.words.iter().map(|word| u64::from(*word));
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

    /// Runs all nodes of a graph, in an order that its edges allow.
    fn run_nodes(&mut self, nodes: &[SoftNode]) {
        let mut waits_for: Vec<usize> = nodes.iter().map(|node| node.after.len()).collect();
        let mut followers = vec![Vec::new(); nodes.len()];
        for (number, node) in nodes.iter().enumerate() {
            for before in &node.after {
                followers[*before as usize].push(number);
            }
        }

        let mut ready: Vec<usize> = (0..nodes.len())
            .filter(|number| waits_for[*number] == 0)
            .collect();
        let mut traces = vec![AccessTrace::default(); nodes.len()];
        let mut done_count = 0;

        while !ready.is_empty() {
            let chosen = self.random_below(ready.len());
            let number = ready.swap_remove(chosen);
            let node = &nodes[number];
            self.memory.trace = AccessTrace::default();
            self.do_work(&node.work, !node.launched_behind.is_empty());
            traces[number] = std::mem::take(&mut self.memory.trace);
            done_count += 1;

            for follower in &followers[number] {
                waits_for[*follower] -= 1;
                if waits_for[*follower] == 0 {
                    ready.push(*follower);
                }
            }
        }

        assert_eq!(done_count, nodes.len(), "the edges of a graph make a cycle");

        if self.checks_edges {
            self.note_conflicts(nodes, &traces);
        }
    }

    /// Notes the nodes that conflict and that no path of edges connects.
    fn note_conflicts(&mut self, nodes: &[SoftNode], traces: &[AccessTrace]) {
        let mut ended_before: Vec<BTreeSet<u64>> = Vec::new();
        for (number, node) in nodes.iter().enumerate() {
            let mut ended: BTreeSet<u64> = node.after.iter().copied().collect();
            for before in &node.after {
                ended.extend(&ended_before[*before as usize]);
            }
            for other in (0..number).filter(|other| !ended.contains(&(*other as u64))) {
                if traces[other].conflicts_with(&traces[number]) {
                    let conflict = format!("{:?} and {:?}", nodes[other].work, node.work);
                    self.conflicts.push(conflict);
                }
            }

            ended_before.push(ended);
        }
    }
}

impl SoftDriver {
    /// The machine for a call, unless the call is to fail.
    fn enter_call(&self, site: Site) -> Result<MutexGuard<'_, MachineState>, CallError> {
        let mut state = self.machine.lock();
        if let Some(code) = state.lost.filter(|_| site != Site::Bind) {
            return Err(CallError { site, code });
        }

        let injection = state.injection.as_mut();
        if let Some(injection) = injection.filter(|injection| injection.site == site) {
            match (injection.after, injection.code) {
                (0, Some(code)) => {
                    let error = CallError { site, code };
                    state.queue.is_frozen |= Fault::new(error).is_fatal();
                    return Err(error);
                }
                (0, None) => {}
                _ => injection.after -= 1,
            }
        }

        Ok(state)
    }

    /// Waits for the queue, as real drivers may before they allocate or free memory or instantiate graphs.
    fn wait_for_queue(&self) {
        const LIMIT: Duration = Duration::from_secs(20);
        let start = Instant::now();
        while self.machine.is_waiting() {
            assert!(
                start.elapsed() < LIMIT,
                "a call waits for the queue, and the queue for others"
            );
            std::thread::sleep(PAUSE);
        }
    }

    fn add_node(
        &self,
        site: Site,
        graph: Graph,
        after: &[Node],
        work: NodeWork,
    ) -> Result<Node, CallError> {
        let mut state = self.enter_call(site)?;
        let nodes = state
            .graphs
            .get_mut(&graph.0)
            .expect("a graph that is being built");
        let after: Vec<u64> = after.iter().map(|node| node.0).collect();
        assert!(
            after.iter().all(|number| *number < nodes.len() as u64),
            "a node of another graph"
        );
        nodes.push(SoftNode {
            work,
            after,
            launched_behind: Vec::new(),
        });
        Ok(Node(nodes.len() as u64 - 1))
    }
}

impl Driver for SoftDriver {
    fn bind_thread(&self) -> Result<(), CallError> {
        self.enter_call(Site::Bind).map(drop)
    }

    fn alloc_device(&self, bytes: u64) -> Result<Address, CallError> {
        self.wait_for_queue();
        let mut state = self.enter_call(Site::Alloc)?;
        state.memory.alloc(bytes).map_err(|code| CallError {
            site: Site::Alloc,
            code,
        })
    }

    unsafe fn free_device(&self, at: Address) {
        self.wait_for_queue();
        self.machine.lock().memory.free(at);
    }

    fn alloc_host(&self, bytes: u64) -> Result<Address, CallError> {
        self.wait_for_queue();
        let mut state = self.enter_call(Site::AllocHost)?;
        state.memory.alloc(bytes).map_err(|code| CallError {
            site: Site::AllocHost,
            code,
        })
    }

    unsafe fn free_host(&self, at: Address) {
        // SAFETY: both kinds of memory are the same here; the rest is as the caller promises.
        unsafe { self.free_device(at) };
    }

    unsafe fn register_host(&self, first: *mut u8, bytes: u64) -> Result<Address, CallError> {
        self.wait_for_queue();
        let mut state = self.enter_call(Site::Register)?;
        let registered = match state.lacking {
            Lacking::Registration => Err(Code(801)),
            _ => state.memory.register(first as u64, bytes),
        };
        registered.map_err(|code| CallError {
            site: Site::Register,
            code,
        })
    }

    unsafe fn unregister_host(&self, first: *mut u8) {
        self.wait_for_queue();
        let was_registered = self
            .machine
            .lock()
            .memory
            .registered
            .remove(&(first as u64));
        assert!(was_registered.is_some(), "given back twice");
    }

    fn load_function(&self, image: Image<'_>, entry: &str) -> Result<Function, CallError> {
        self.wait_for_queue();
        let mut state = self.enter_call(Site::Load)?;
        let ptx = match image {
            Image::Ptx(text) => text,
            Image::Cubin(object) => {
                state.counts.cubins += 1;
                let text = std::str::from_utf8(object.bytes().get(128..).unwrap_or_default());
                // Only a device in software knows what to do with such an object.
                let text = text.ok().filter(|text| text.starts_with(".version"));
                text.ok_or(CallError {
                    site: Site::Load,
                    code: Code(209),
                })?
            }
        };

        drop(state);
        assert!(
            ptx.contains(&format!(".entry {entry}(")),
            "no entry {entry}"
        );
        let module = Arc::new(Module::read(ptx));
        let mut state = self.enter_call(Site::Function)?;
        state.modules.push(module);
        Ok(Function(state.modules.len() as u64 - 1))
    }

    unsafe fn put_zero(&self, at: Address, bytes: u64) -> Result<(), CallError> {
        self.put(Site::Zero, QueueEntry::Work(NodeWork::Zero { at, bytes }))
    }

    unsafe fn put_copy(&self, from: Address, to: Address, bytes: u64) -> Result<(), CallError> {
        self.put(
            Site::Copy,
            QueueEntry::Work(NodeWork::Copy { from, to, bytes }),
        )
    }

    unsafe fn put_exchange_copy(
        &self,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), CallError> {
        self.put(
            Site::Give,
            QueueEntry::Work(NodeWork::Copy { from, to, bytes }),
        )
    }

    unsafe fn put_word_ops(&self, word_ops: &[WordOp]) -> Result<(), CallError> {
        if word_ops.is_empty() {
            return Ok(());
        }
        assert!(
            word_ops.len() <= MAX_WORD_OPS,
            "{} operations in a batch",
            word_ops.len()
        );
        let mut state = self.machine.lock();
        assert!(
            state.lacking != Lacking::Signals,
            "it has no such operations"
        );
        state.counts.signals += word_ops.len();
        drop(state);
        word_ops
            .iter()
            .try_for_each(|word_op| self.put(Site::Signal, QueueEntry::WordOp(*word_op)))
    }

    fn create_event(&self) -> Result<Event, CallError> {
        let mut state = self.enter_call(Site::Event)?;
        let event = state.new_handle();
        state.events.insert(event, EventState::default());
        Ok(Event(event))
    }

    unsafe fn destroy_event(&self, event: Event) {
        assert!(
            self.machine.lock().events.remove(&event.0).is_some(),
            "given back twice"
        );
    }

    unsafe fn record_event(&self, event: Event) -> Result<(), CallError> {
        self.put(Site::Record, QueueEntry::Event(event.0))
    }

    unsafe fn query_event(&self, event: Event) -> Result<bool, CallError> {
        let mut state = self.enter_call(Site::Query)?;
        let hangs = state.injection.is_some_and(|injection| {
            injection.site == Site::Query && injection.after == 0 && injection.code.is_none()
        });
        state.queue.is_frozen |= hangs;
        Ok(state.has_reached(event.0) && !state.queue.is_frozen)
    }

    fn create_graph(&self) -> Result<Graph, CallError> {
        let mut state = self.enter_call(Site::Graph)?;
        let graph = state.new_handle();
        state.graphs.insert(graph, Vec::new());
        Ok(Graph(graph))
    }

    unsafe fn destroy_graph(&self, graph: Graph) {
        assert!(
            self.machine.lock().graphs.remove(&graph.0).is_some(),
            "given back twice"
        );
    }

    unsafe fn add_kernel_node(
        &self,
        graph: Graph,
        after: &[Node],
        launch: &Launch,
    ) -> Result<Node, CallError> {
        self.add_node(
            Site::KernelNode,
            graph,
            after,
            NodeWork::Kernel(launch.clone()),
        )
    }

    fn supports_dependent_launch(&self) -> bool {
        true
    }

    unsafe fn add_dependent_launch_edge(
        &self,
        graph: Graph,
        before: Node,
        after: Node,
    ) -> Result<(), CallError> {
        let mut state = self.enter_call(Site::KernelNode)?;
        let nodes = state
            .graphs
            .get_mut(&graph.0)
            .expect("a graph that is being built");
        let are_kernels = [before, after]
            .iter()
            .all(|node| matches!(nodes[node.0 as usize].work, NodeWork::Kernel(_)));
        assert!(are_kernels, "an edge of what is not a kernel");
        assert!(before < after, "an edge to an earlier node");
        nodes[after.0 as usize].launched_behind.push(before.0);
        Ok(())
    }

    unsafe fn add_copy_node(
        &self,
        graph: Graph,
        after: &[Node],
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<Node, CallError> {
        self.add_node(
            Site::CopyNode,
            graph,
            after,
            NodeWork::Copy { from, to, bytes },
        )
    }

    unsafe fn add_zero_node(
        &self,
        graph: Graph,
        after: &[Node],
        at: Address,
        bytes: u64,
    ) -> Result<Node, CallError> {
        self.add_node(Site::ZeroNode, graph, after, NodeWork::Zero { at, bytes })
    }

    fn product_library(&self) -> Result<String, String> {
        match self.machine.lock().lacking == Lacking::Library {
            true => Err("cuBLASLt is not installed".to_owned()),
            false => Ok("cuBLASLt in software".to_owned()),
        }
    }

    fn unsupported_reason(&self, _shape: &Shape) -> Result<Option<String>, CallError> {
        drop(self.enter_call(Site::Library)?);
        Ok(self.product_library().err())
    }

    unsafe fn add_product_node(
        &self,
        graph: Graph,
        after: &[Node],
        product: &Product<Address>,
        count: u64,
    ) -> Result<Node, CallError> {
        assert!(
            self.product_library().is_ok(),
            "a library that is not there is asked for a product"
        );
        self.add_node(
            Site::Product,
            graph,
            after,
            NodeWork::Product(*product, count),
        )
    }

    unsafe fn instantiate_graph(&self, graph: Graph) -> Result<Exec, CallError> {
        self.wait_for_queue();
        let mut state = self.enter_call(Site::Instantiate)?;
        let mut nodes = state.graphs[&graph.0].clone();

        if state.drops_edges {
            for node in &mut nodes {
                node.after.clear();
                node.launched_behind.clear();
            }
        }

        for node in &mut nodes {
            state.counts.edges += node.after.len() + node.launched_behind.len();
            state.counts.dependent_launches += node.launched_behind.len();
            match node.work {
                NodeWork::Kernel(_) => state.counts.nodes[0] += 1,
                NodeWork::Copy { .. } => state.counts.nodes[1] += 1,
                NodeWork::Zero { .. } => state.counts.nodes[2] += 1,
                NodeWork::Product(..) => state.counts.products += 1,
            }

            // A kernel that is launched early runs after the others here, and fails if it accesses memory before its
            // wait.
            let launched_behind = std::mem::take(&mut node.launched_behind);
            node.after.extend(&launched_behind);
            node.launched_behind = launched_behind;
        }

        let exec = state.new_handle();
        state.ready.insert(exec, nodes.into());
        Ok(Exec(exec))
    }

    unsafe fn upload_graph(&self, exec: Exec) -> Result<(), CallError> {
        self.wait_for_queue();
        let state = self.enter_call(Site::Upload)?;
        assert!(state.ready.contains_key(&exec.0), "a graph that is ready");
        Ok(())
    }

    unsafe fn destroy_exec(&self, exec: Exec) {
        self.wait_for_queue();
        assert!(
            self.machine.lock().ready.remove(&exec.0).is_some(),
            "given back twice"
        );
    }

    unsafe fn launch_graph(&self, exec: Exec) -> Result<(), CallError> {
        let mut state = self.enter_call(Site::Launch)?;
        state.counts.launches += 1;
        let nodes = Arc::clone(&state.ready[&exec.0]);
        if !state.skips_launches {
            self.push_entry(state, QueueEntry::Graph(nodes));
        }
        Ok(())
    }

    unsafe fn close_device(&self) {
        assert!(
            self.machine.lock().is_settled(),
            "closed with work in the queue"
        );
    }
}
