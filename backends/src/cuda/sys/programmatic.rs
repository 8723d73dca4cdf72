//! Edges of graphs over which a kernel may start before the end of the one that it waits for (see
//! [`super::super::ptx`]). Drivers have them since CUDA 12.3, so they are looked up apart from all else, and done
//! without where they are missing.
#![expect(unsafe_code, reason = "calls the CUDA driver")]

use std::ffi::c_int;

use cudarc::driver::sys;

use super::super::error::{Said, Site};
use super::said;

/// `CUgraphEdgeData`, as CUDA 12.3 and later have it.
#[repr(C)]
struct EdgeData {
    from_port: u8,
    to_port: u8,
    kind: u8,
    reserved: [u8; 5],
}

/// `CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC` and `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`: over when all groups of the
/// first kernel have told so or ended.
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
pub(super) struct Programmatic(AddDependencies);

impl Programmatic {
    /// Looks it up in the driver, which has been loaded; `None` where it is too old.
    pub(super) fn look_up() -> Option<Self> {
        // SAFETY: the driver is loaded, without which this panics; its function of that name has this signature.
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
    /// The graph and its nodes are alive.
    pub(super) unsafe fn add(
        self,
        graph: sys::CUgraph,
        before: sys::CUgraphNode,
        after: sys::CUgraphNode,
    ) -> Result<(), Said> {
        // SAFETY: the caller's promise; the pointers are to locals and a constant, one of each.
        let code =
            unsafe { (self.0)(graph, &raw const before, &raw const after, &PROGRAMMATIC, 1) };
        said(Site::KernelNode, code)
    }
}
