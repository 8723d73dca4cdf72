//! Lists of commands as graphs: built node by node, made executable, launched again and again.
#![expect(unsafe_code, reason = "builds graphs over raw handles")]

use std::sync::Arc;

use super::device::{CudaDevice, LoadedKernel};
use super::driver::{Driver, Exec, Graph, Launch, Node};
use super::error::{CallError, Fault};
use super::memory::BankTable;
use zbmd_gpu_ir::library::{Product, SCRATCH_BYTES, WORKSPACE_ALIGN};
use zbmd_hal::{BankRange, BoundRun};

/// A graph that is being built over the banks of a queue.
pub(super) struct GraphDraft {
    graph: Graph,
    /// By the numbers that users know them by: a number of another draft cannot lead to a node of another graph.
    nodes: Vec<Node>,
    banks: BankTable,
    device: Arc<CudaDevice>,
}

impl GraphDraft {
    pub(super) fn new(device: &Arc<CudaDevice>, banks: &BankTable) -> Result<Self, Fault> {
        let graph = device.call(|driver| driver.create_graph())?;
        Ok(Self {
            graph,
            nodes: Vec::new(),
            banks: banks.clone(),
            device: Arc::clone(device),
        })
    }

    /// Adds a node that waits for the nodes of these numbers; its own number.
    fn add_node(
        &mut self,
        after: &[u32],
        add: impl FnOnce(&dyn Driver, &[Node]) -> Result<Node, CallError>,
    ) -> Result<u32, Fault> {
        let after: Vec<Node> = after
            .iter()
            .map(|number| self.nodes[*number as usize])
            .collect();
        let node = self.device.call(|driver| add(driver, &after))?;
        self.nodes.push(node);
        Ok(self.nodes.len() as u32 - 1)
    }

    /// A run of a kernel with an operand for each of its bindings.
    pub(super) fn add_kernel(
        &mut self,
        after: &[u32],
        kernel: &LoadedKernel,
        run: &BoundRun,
    ) -> Result<u32, Fault> {
        let launch = self.launch_of(kernel, run);
        let graph = self.graph;
        self.add_node(after, |driver, after| {
            // SAFETY: `launch_of` has checked that the parameters are as many as the kernel declares; the banks that
            // the pointers lead to are held by the draft, and then by the graph made of it. Kernels touch nothing but
            // their operands: that is what the catalogue promises of every plan.
            unsafe { driver.add_kernel_node(graph, after, &launch) }
        })
    }

    /// A kernel that is launched before the end of another one, and waits for that end itself.
    pub(super) fn add_dependent_kernel(
        &mut self,
        before: u32,
        kernel: &LoadedKernel,
        run: &BoundRun,
    ) -> Result<u32, Fault> {
        let number = self.add_kernel(&[], kernel, run)?;
        self.device.call(|driver| {
            let nodes = [before, number].map(|node| self.nodes[node as usize]);
            // SAFETY: both are nodes of this graph.
            unsafe { driver.add_dependent_launch_edge(self.graph, nodes[0], nodes[1]) }
        })?;
        Ok(number)
    }

    fn launch_of(&self, kernel: &LoadedKernel, run: &BoundRun) -> Launch {
        assert_eq!(run.operands.len(), kernel.bindings, "operands of a kernel");
        // Pointers lead straight to the operands, so the offsets are all 0.
        let mut words = vec![0; run.operands.len() + 1];
        words[0] = run.firings as u32;
        let operands = run.operands.iter();
        Launch {
            function: kernel.function,
            groups: run.groups.clamp(1, self.device.listed().groups.into()) as u32,
            local: kernel.local,
            pointers: operands
                .map(|operand| self.banks.address(operand.range))
                .collect(),
            words: words.into(),
        }
    }

    pub(super) fn add_copy(
        &mut self,
        after: &[u32],
        from: BankRange,
        to: BankRange,
    ) -> Result<u32, Fault> {
        assert_eq!(from.len(), to.len(), "bytes of a copy");
        let source = self.banks.address(from);
        let target = self.banks.address(to);
        let graph = self.graph;
        self.add_node(after, |driver, after| {
            // SAFETY: `address` has checked both ranges against their banks, which the draft holds, and then the graph
            // made of it.
            unsafe { driver.add_copy_node(graph, after, source, target, from.len()) }
        })
    }

    pub(super) fn add_zero(&mut self, after: &[u32], to: BankRange) -> Result<u32, Fault> {
        let target = self.banks.address(to);
        let graph = self.graph;
        self.add_node(after, |driver, after| {
            // SAFETY: as for a copy: `address` has checked the range, and the bank is held.
            unsafe { driver.add_zero_node(graph, after, target, to.len()) }
        })
    }

    /// So many products by the vendor's library, which supports their shape.
    pub(super) fn add_product(
        &mut self,
        after: &[u32],
        product: &Product<BankRange>,
        count: u64,
    ) -> Result<u32, Fault> {
        let matrices = [product.left, product.right, product.out];
        for (range, elements) in matrices.iter().zip(product.shape.spans(count)) {
            assert!(
                4 * elements <= range.len(),
                "{elements} floats of {range:?}"
            );
        }
        assert!(
            product.scratch.len() >= SCRATCH_BYTES,
            "scratch of a product"
        );

        let mut placed = product.at(|range| self.banks.address(range));
        placed.scratch = placed.scratch.next_multiple_of(WORKSPACE_ALIGN);
        let graph = self.graph;
        self.add_node(after, |driver, after| {
            // SAFETY: lengths are checked above and by `address`; the banks are held as for a copy.
            unsafe { driver.add_product_node(graph, after, &placed, count) }
        })
    }

    /// The graph, ready to be launched.
    pub(super) fn finish(self) -> Result<ReadyGraph, Fault> {
        let exec = self.device.call(|driver| {
            // SAFETY: the draft's graph, which is given back when the draft is dropped.
            unsafe { driver.instantiate_graph(self.graph) }
        })?;
        let ready = ReadyGraph {
            exec,
            _banks: self.banks.clone(),
            device: Arc::clone(&self.device),
        };
        self.device.call(|driver| {
            // SAFETY: made above, and given back when `ready` is dropped.
            unsafe { driver.upload_graph(ready.exec) }
        })?;
        Ok(ready)
    }
}

impl Drop for GraphDraft {
    fn drop(&mut self) {
        self.device.give_back(|driver| {
            // SAFETY: made by `new`, and given back here only; no draft is in the queue.
            unsafe { driver.destroy_graph(self.graph) }
        });
    }
}

/// A graph that can be launched. It holds all memory that its nodes name; its owner drops it when the queue has ended
/// its last launch.
pub(super) struct ReadyGraph {
    exec: Exec,
    _banks: BankTable,
    device: Arc<CudaDevice>,
}

impl ReadyGraph {
    /// Puts the graph into the queue of its device.
    ///
    /// # Safety
    /// The graph is dropped only after the queue has ended this launch, or after the device is lost.
    pub(super) unsafe fn launch(&self, driver: &dyn Driver) -> Result<(), CallError> {
        // SAFETY: the graph and its banks exist until the launch has ended, as the caller promises.
        unsafe { driver.launch_graph(self.exec) }
    }
}

impl Drop for ReadyGraph {
    fn drop(&mut self) {
        self.device.give_back(|driver| {
            // SAFETY: made by `GraphDraft::finish`, and given back here only; the caller of `launch` has promised that
            // its launches have ended.
            unsafe { driver.destroy_exec(self.exec) }
        });
    }
}
