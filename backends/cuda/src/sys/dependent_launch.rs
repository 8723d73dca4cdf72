//! Edges of graphs over which a kernel may start before the end of the one that it waits for (see
//! [`super::super::ptx`]). Drivers have them since CUDA 12.3, so the function is looked up separately, and plain edges
//! are used where it is missing.
#![expect(unsafe_code, reason = "calls the CUDA driver")]

use std::ffi::c_int;

use cudarc::driver::sys;

use super::super::api::{Api, check_code};
use super::super::error::{CallError, Site};

/// `CUgraphEdgeData`, as CUDA 12.3 and later have it.
#[repr(C)]
struct EdgeData {
    from_port: u8,
    to_port: u8,
    kind: u8,
    reserved: [u8; 5],
}

/// `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC` and `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`: satisfied when all groups of the
/// first kernel have allowed dependent launches or ended.
const PROGRAMMATIC: EdgeData = EdgeData {
    from_port: 1,
    to_port: 0,
    kind: 1,
    reserved: [0; 5],
};

type AddDependencies = unsafe extern "C" fn(
    sys::CUgraph,
    *const sys::CUgraphNode,
    *const sys::CUgraphNode,
    *const EdgeData,
    usize,
) -> c_int;

/// The function that adds such edges.
#[derive(Clone, Copy)]
pub(super) struct DependentLaunch(AddDependencies);

impl DependentLaunch {
    /// Looks it up in the driver, which has been loaded; `None` where it is too old.
    pub(super) fn look_up(_loaded: &Api) -> Option<Self> {
        // SAFETY: the driver is loaded, as its functions prove, without which this panics; its function of that name has this
        // signature.
        let found = unsafe {
            sys::culib()
                .get::<AddDependencies>("cuGraphAddDependencies_v2".as_bytes())
                .ok()
                .map(|f| *f)
        };
        found.map(Self)
    }

    /// Adds an edge from one kernel's node to another's.
    ///
    /// # Safety
    /// The graph exists, and the nodes are its own.
    pub(super) unsafe fn add_edge(
        self,
        graph: sys::CUgraph,
        before: sys::CUgraphNode,
        after: sys::CUgraphNode,
    ) -> Result<(), CallError> {
        // SAFETY: the graph exists and the nodes are its own, as the caller promises; the pointers are to locals and a
        // constant, one of each.
        let code =
            unsafe { (self.0)(graph, &raw const before, &raw const after, &PROGRAMMATIC, 1) };
        check_code(Site::KernelNode, code)
    }
}
