//! What calendars ask of a driver, and nothing more: the real one (see [`super::sys`]) and one in software, which tests
//! use, answer alike.
//!
//! Memory is an address, the host's included: both sides use the same one. Work is put into one queue per device, in
//! order. Handles are numbers, and nothing about a number says that what it names still exists: so every function that
//! is given one is unsafe, and [`Driver`] says what its callers promise. Those who own what a number names are
//! [`super::memory::Bank`], [`super::registered::RegisteredMemory`], [`super::fence::Fence`] and [`super::graph`]:
//! each is made by one function, and its `drop` is the one place that gives it back.
#![expect(unsafe_code, reason = "functions over raw addresses and handles")]

use super::error::CallError;
use zbmd_gpu_ir::emit::cubins::WholeCubin;
use zbmd_gpu_ir::library::{Product, Shape};

/// Memory of the device or of the host.
pub(super) type Address = u64;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident),*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) struct $name(pub(super) u64);
    )* };
}
handles!(
    /// A loaded kernel.
    Function,
    /// A point in the queue that can be waited for.
    Event,
    /// A graph that is being built.
    Graph,
    /// A node of it.
    Node,
    /// A graph that can be launched.
    Exec
);

/// Code of kernels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Image<'a> {
    /// A text that the driver compiles.
    Ptx(&'a str),
    /// An object file.
    Cubin(WholeCubin<'a>),
}

/// One run of a kernel. The threads of a group are as many as the kernel declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) function: Function,
    pub(super) groups: u32,
    /// Threads of a group.
    pub(super) local: u32,
    /// The address of each binding.
    pub(super) pointers: Box<[Address]>,
    /// The kernel's arguments.
    pub(super) words: Box<[u32]>,
}

/// One operation on a word of 64 bits, done by the queue itself when it reaches it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WordOp {
    /// In registered memory, a multiple of 8.
    pub(super) word: Address,
    pub(super) value: u64,
    /// Waits until the word is at least the value, as signed numbers; otherwise stores it, after all that came before in
    /// the queue, for the whole system.
    pub(super) waits: bool,
}

/// Operations of one batch.
pub(super) const MAX_WORD_OPS: usize = 32;

/// A driver with one device open. What is not given back is freed with the process.
///
/// # Safety of its functions
/// What callers of an unsafe function promise, as far as its arguments name it:
/// - *Handles* come from this driver, and were not given back. A node is one of the graph named beside it.
/// - *Memory* that is given to the queue, to a graph or to a word operation is at least as long as the call says, and it
///   is freed only after the queue has reached the end of the last work that names it.
/// - *Giving back* happens once, when nothing in the queue uses what is given back, and nothing is done with it later.
pub(super) trait Driver: Send + Sync {
    /// The calling thread is the one that drives the device from now on.
    fn bind_thread(&self) -> Result<(), CallError>;

    /// Memory of the device, of any content, aligned to 256 bytes.
    fn alloc_device(&self, bytes: u64) -> Result<Address, CallError>;

    /// # Safety
    /// See [`Driver`], for memory of [`Self::alloc_device`].
    unsafe fn free_device(&self, address: Address);

    /// Memory of the host that both sides see, of any content, aligned to 256 bytes.
    fn alloc_host(&self, bytes: u64) -> Result<Address, CallError>;

    /// # Safety
    /// See [`Driver`], for memory of [`Self::alloc_host`].
    unsafe fn free_host(&self, address: Address);

    /// Lets the device reach memory on the host that others own, whole pages, until `unregister_host`; where it sees it.
    ///
    /// # Safety
    /// The memory is valid until it is given back.
    unsafe fn register_host(&self, first: *mut u8, bytes: u64) -> Result<Address, CallError>;

    /// # Safety
    /// See [`Driver`], for memory of [`Self::register_host`].
    unsafe fn unregister_host(&self, first: *mut u8);

    /// The entry of a module, which stays loaded as long as the device is open.
    fn load_function(&self, image: Image<'_>, entry: &str) -> Result<Function, CallError>;

    /// Puts zeros into the queue.
    ///
    /// # Safety
    /// See [`Driver`].
    unsafe fn put_zero(&self, address: Address, bytes: u64) -> Result<(), CallError>;

    /// Puts a copy into the queue.
    ///
    /// # Safety
    /// See [`Driver`].
    unsafe fn put_copy(&self, from: Address, to: Address, bytes: u64) -> Result<(), CallError>;

    /// The same, between operations of [`Self::put_word_ops`].
    ///
    /// # Safety
    /// See [`Driver`].
    unsafe fn put_exchange_copy(
        &self,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), CallError>;

    /// Puts operations on words into the queue, at most [`MAX_WORD_OPS`]; none is nothing.
    ///
    /// # Safety
    /// See [`Driver`]; words are parts of registered memory, and others access them atomically.
    unsafe fn put_word_ops(&self, word_ops: &[WordOp]) -> Result<(), CallError>;

    fn create_event(&self) -> Result<Event, CallError>;

    /// # Safety
    /// See [`Driver`].
    unsafe fn destroy_event(&self, event: Event);

    /// Puts an event into the queue.
    ///
    /// # Safety
    /// See [`Driver`].
    unsafe fn record_event(&self, event: Event) -> Result<(), CallError>;

    /// Whether everything has ended that was in the queue before the event.
    ///
    /// # Safety
    /// See [`Driver`].
    unsafe fn query_event(&self, event: Event) -> Result<bool, CallError>;

    fn create_graph(&self) -> Result<Graph, CallError>;

    /// # Safety
    /// See [`Driver`]. Executable graphs made of it are not concerned.
    unsafe fn destroy_graph(&self, graph: Graph);

    /// # Safety
    /// See [`Driver`]. The kernel declares as many parameters as the launch has pointers and words, and it touches
    /// nothing outside of the memory that the pointers lead to.
    unsafe fn add_kernel_node(
        &self,
        graph: Graph,
        after: &[Node],
        launch: &Launch,
    ) -> Result<Node, CallError>;

    /// Whether the driver has edges over which kernels are launched early.
    fn supports_dependent_launch(&self) -> bool;

    /// Adds an edge between the nodes of two kernels over which the second one is launched early: see [`zbmd_gpu_ir::emit::ptx`].
    ///
    /// # Safety
    /// See [`Driver`].
    unsafe fn add_dependent_launch_edge(
        &self,
        graph: Graph,
        before: Node,
        after: Node,
    ) -> Result<(), CallError>;

    /// # Safety
    /// See [`Driver`].
    unsafe fn add_copy_node(
        &self,
        graph: Graph,
        after: &[Node],
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<Node, CallError>;

    /// # Safety
    /// See [`Driver`].
    unsafe fn add_zero_node(
        &self,
        graph: Graph,
        after: &[Node],
        address: Address,
        bytes: u64,
    ) -> Result<Node, CallError>;

    /// The vendor's library for products, with its version; or why there is none, as a clause.
    fn product_library(&self) -> Result<String, String>;

    /// Why the library cannot do products of a shape, as a clause; `None` where it can. The algorithm that it will use
    /// is chosen now.
    fn unsupported_reason(&self, shape: &Shape) -> Result<Option<String>, CallError>;

    /// So many products in a row, of a supported shape.
    ///
    /// # Safety
    /// See [`Driver`]: matrices are as long as [`Shape::spans`] says for so many products, and scratch memory as
    /// [`zbmd_gpu_ir::library::WORKSPACE`].
    unsafe fn add_product_node(
        &self,
        graph: Graph,
        after: &[Node],
        product: &Product<Address>,
        count: u64,
    ) -> Result<Node, CallError>;

    /// # Safety
    /// See [`Driver`].
    unsafe fn instantiate_graph(&self, graph: Graph) -> Result<Exec, CallError>;

    /// Puts into the queue what the first launch of a graph would do besides.
    ///
    /// # Safety
    /// See [`Driver`].
    unsafe fn upload_graph(&self, exec: Exec) -> Result<(), CallError>;

    /// # Safety
    /// See [`Driver`].
    unsafe fn destroy_exec(&self, exec: Exec);

    /// Puts a graph into the queue.
    ///
    /// # Safety
    /// See [`Driver`], for the graph and all memory that its nodes name.
    unsafe fn launch_graph(&self, exec: Exec) -> Result<(), CallError>;

    /// Closes the device.
    ///
    /// # Safety
    /// Nothing is in the queue, everything else was given back, and no other function is called later.
    unsafe fn close_device(&self);
}
