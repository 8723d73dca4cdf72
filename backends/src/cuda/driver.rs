//! What calendars ask of a driver, and nothing more: the real one (see [`super::sys`]) and one in software, which tests
//! use, answer alike.
//!
//! Memory is an address, the host's included: both sides use the same one. Work is put into one queue per device, in
//! order. Handles are numbers, whoever holds one gives it back once, and only while the device is alive.

use super::error::Said;
use crate::kernels::library::{Product, Shape};

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
    /// A kernel, loaded.
    Function,
    /// A mark in the queue.
    Event,
    /// A graph in the making.
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
    /// An object file of which all parts are there.
    Cubin(&'a [u8]),
}

/// One run of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    pub(super) function: Function,
    pub(super) groups: u32,
    /// Threads of a group.
    pub(super) local: u32,
    /// What the bindings point to.
    pub(super) pointers: Box<[Address]>,
    /// The kernel's arguments.
    pub(super) words: Box<[u32]>,
}

/// One operation on a word of 64 bits, done by the queue itself when it comes to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Signal {
    /// In registered memory, a multiple of 8.
    pub(super) at: Address,
    pub(super) value: u64,
    /// Waits until the word is at least the value, as numbers with a sign; else stores it, after all that came before in
    /// the queue, for the whole system.
    pub(super) waits: bool,
}

/// Operations of one batch at most.
pub(super) const MAX_SIGNALS: usize = 32;

/// A driver with one device open. What it makes, it takes back by the function named alike; what is not taken back is
/// gone with the process.
pub(super) trait Driver: Send + Sync {
    /// The calling thread is the one that drives the device from now on.
    fn bind(&self) -> Result<(), Said>;

    /// Memory of the device, of any content, aligned to 256 bytes.
    fn alloc(&self, bytes: u64) -> Result<Address, Said>;
    fn free(&self, at: Address);
    /// Memory of the host that both sides see, of any content, aligned to 256 bytes.
    fn alloc_host(&self, bytes: u64) -> Result<Address, Said>;
    fn free_host(&self, at: Address);

    /// Lets the device reach memory of the host's that is there already, whole pages, until `unregister`; where it sees
    /// it.
    fn register(&self, first: *mut u8, bytes: u64) -> Result<Address, Said>;
    fn unregister(&self, first: *mut u8);

    /// The entry of a module, which stays loaded as long as the device is open.
    fn function(&self, image: Image<'_>, entry: &str) -> Result<Function, Said>;

    /// Puts zeros into the queue.
    fn zero(&self, at: Address, bytes: u64) -> Result<(), Said>;
    /// Puts a copy into the queue.
    fn copy(&self, from: Address, to: Address, bytes: u64) -> Result<(), Said>;

    /// The same, between a wait and a store of [`Self::signal`]'s.
    fn give(&self, from: Address, to: Address, bytes: u64) -> Result<(), Said>;
    /// Puts operations on words into the queue, [`MAX_SIGNALS`] at most; none is nothing.
    fn signal(&self, signals: &[Signal]) -> Result<(), Said>;

    fn event(&self) -> Result<Event, Said>;
    fn free_event(&self, event: Event);
    /// Puts a mark into the queue.
    fn record(&self, event: Event) -> Result<(), Said>;
    /// Whether all that was in the queue before the mark has ended.
    fn query(&self, event: Event) -> Result<bool, Said>;

    fn graph(&self) -> Result<Graph, Said>;
    fn free_graph(&self, graph: Graph);
    fn kernel_node(&self, graph: Graph, after: &[Node], launch: &Launch) -> Result<Node, Said>;
    /// Whether the driver has programmatic edges.
    fn has_programmatic_edges(&self) -> bool;
    /// Adds a programmatic edge between the nodes of two kernels: see [`super::ptx`].
    fn programmatic_edge(&self, graph: Graph, before: Node, after: Node) -> Result<(), Said>;
    fn copy_node(
        &self,
        graph: Graph,
        after: &[Node],
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<Node, Said>;
    fn zero_node(
        &self,
        graph: Graph,
        after: &[Node],
        at: Address,
        bytes: u64,
    ) -> Result<Node, Said>;

    /// The vendor's library for products, with its version; or why there is none, as a clause.
    fn library(&self) -> Result<String, String>;
    /// Why the library cannot do products of a shape, as a clause; `None` where it can. What it then does them by is
    /// settled from now on.
    fn refuses(&self, shape: &Shape) -> Result<Option<String>, Said>;
    /// So many products in a row, of a shape that was not refused.
    fn product_node(
        &self,
        graph: Graph,
        after: &[Node],
        product: &Product<Address>,
        count: u64,
    ) -> Result<Node, Said>;

    fn instantiate(&self, graph: Graph) -> Result<Exec, Said>;
    /// Puts into the queue what the first launch of a graph would do besides.
    fn upload(&self, exec: Exec) -> Result<(), Said>;
    fn free_exec(&self, exec: Exec);
    /// Puts a graph into the queue.
    fn launch(&self, exec: Exec) -> Result<(), Said>;

    /// Ends: nothing is in the queue, everything else was given back.
    fn close(&self);
}
