//! libcuda's functions, looked up once by their names, so that one that is missing is an error and not a panic. Results
//! are numbers, because newer drivers report codes that are not listed here.
#![expect(unsafe_code, reason = "calls the CUDA driver")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys;

use super::driver::{Graph, Node};
use super::error::{CallError, Code, Site, unavailable};
use zbmd_hal::Unavailable;

/// A table of functions of a library.
macro_rules! function_table {
    ($(#[$attribute:meta])* $visibility:vis $table:ident: $($field:ident $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        $(#[$attribute])*
        $visibility struct $table {
            $($visibility $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// Looks them up; the name of the first that is missing.
            ///
            /// # Safety
            /// The library is the one that the table is for.
            unsafe fn look_up(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self { $($field: {
                    type Wanted = unsafe extern "C" fn($($argument),*) -> $result;
                    // SAFETY: the library's function of that name has this signature.
                    match unsafe { library.get::<Wanted>($symbol.as_bytes()) } {
                        Ok(found) => *found,
                        Err(_) => return Err($symbol),
                    }
                }),* })
            }
        }
    };
}
pub(super) use function_table;

function_table! {
    /// libcuda's functions, with the signatures of driver 12.0; later drivers keep them.
    #[derive(Clone, Copy)]
    pub(super) Api:
    init "cuInit" (c_uint) -> c_int;
    driver_version "cuDriverGetVersion" (*mut c_int) -> c_int;
    device_count "cuDeviceGetCount" (*mut c_int) -> c_int;
    device "cuDeviceGet" (*mut sys::CUdevice, c_int) -> c_int;
    device_name "cuDeviceGetName" (*mut c_char, c_int, sys::CUdevice) -> c_int;
    device_memory "cuDeviceTotalMem_v2" (*mut usize, sys::CUdevice) -> c_int;
    device_attribute "cuDeviceGetAttribute" (*mut c_int, sys::CUdevice_attribute, sys::CUdevice) -> c_int;
    device_uuid "cuDeviceGetUuid_v2" (*mut sys::CUuuid, sys::CUdevice) -> c_int;
    retain "cuDevicePrimaryCtxRetain" (*mut sys::CUcontext, sys::CUdevice) -> c_int;
    release "cuDevicePrimaryCtxRelease_v2" (sys::CUdevice) -> c_int;
    set_current "cuCtxSetCurrent" (sys::CUcontext) -> c_int;
    stream_create "cuStreamCreate" (*mut sys::CUstream, c_uint) -> c_int;
    stream_destroy "cuStreamDestroy_v2" (sys::CUstream) -> c_int;
    alloc "cuMemAlloc_v2" (*mut sys::CUdeviceptr, usize) -> c_int;
    free "cuMemFree_v2" (sys::CUdeviceptr) -> c_int;
    alloc_host "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint) -> c_int;
    free_host "cuMemFreeHost" (*mut c_void) -> c_int;
    register "cuMemHostRegister_v2" (*mut c_void, usize, c_uint) -> c_int;
    unregister "cuMemHostUnregister" (*mut c_void) -> c_int;
    pointer "cuMemHostGetDevicePointer_v2" (*mut sys::CUdeviceptr, *mut c_void, c_uint) -> c_int;
    signal "cuStreamBatchMemOp_v2" (
        sys::CUstream, c_uint, *mut sys::CUstreamBatchMemOpParams, c_uint
    ) -> c_int;
    module_load "cuModuleLoadDataEx" (
        *mut sys::CUmodule, *const c_void, c_uint, *mut sys::CUjit_option, *mut *mut c_void
    ) -> c_int;
    module_unload "cuModuleUnload" (sys::CUmodule) -> c_int;
    module_function "cuModuleGetFunction" (*mut sys::CUfunction, sys::CUmodule, *const c_char) -> c_int;
    zero "cuMemsetD8Async" (sys::CUdeviceptr, u8, usize, sys::CUstream) -> c_int;
    copy "cuMemcpyAsync" (sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream) -> c_int;
    event_create "cuEventCreate" (*mut sys::CUevent, c_uint) -> c_int;
    event_destroy "cuEventDestroy_v2" (sys::CUevent) -> c_int;
    event_record "cuEventRecord" (sys::CUevent, sys::CUstream) -> c_int;
    event_query "cuEventQuery" (sys::CUevent) -> c_int;
    graph_create "cuGraphCreate" (*mut sys::CUgraph, c_uint) -> c_int;
    graph_destroy "cuGraphDestroy" (sys::CUgraph) -> c_int;
    kernel_node "cuGraphAddKernelNode_v2" (
        *mut sys::CUgraphNode, sys::CUgraph, *const sys::CUgraphNode, usize,
        *const sys::CUDA_KERNEL_NODE_PARAMS
    ) -> c_int;
    copy_node "cuGraphAddMemcpyNode" (
        *mut sys::CUgraphNode, sys::CUgraph, *const sys::CUgraphNode, usize,
        *const sys::CUDA_MEMCPY3D, sys::CUcontext
    ) -> c_int;
    zero_node "cuGraphAddMemsetNode" (
        *mut sys::CUgraphNode, sys::CUgraph, *const sys::CUgraphNode, usize,
        *const sys::CUDA_MEMSET_NODE_PARAMS, sys::CUcontext
    ) -> c_int;
    instantiate "cuGraphInstantiateWithFlags" (*mut sys::CUgraphExec, sys::CUgraph, c_ulonglong) -> c_int;
    upload "cuGraphUpload" (sys::CUgraphExec, sys::CUstream) -> c_int;
    exec_destroy "cuGraphExecDestroy" (sys::CUgraphExec) -> c_int;
    launch "cuGraphLaunch" (sys::CUgraphExec, sys::CUstream) -> c_int;
}

/// CUDA 12.0, the first with all of the functions.
const MIN_VERSION: i32 = 12_000;
/// `CUDA_ERROR_NO_DEVICE`, `CUDA_ERROR_STUB_LIBRARY`.
const NO_DEVICE: i32 = 100;
const STUB_LIBRARY: i32 = 34;

/// `11.4` of 11040.
fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// What a driver's answers to the first calls mean; its version if all is well.
pub(super) fn check_version(init: i32, version: Result<i32, i32>) -> Result<i32, Unavailable> {
    let reason = match (init, version) {
        // A driver that is too old often cannot be initialised either, for reasons that do not help.
        (_, Ok(version)) if version < MIN_VERSION => format!(
            "the driver has CUDA {}, {} is needed: install driver 525 or newer",
            version_text(version),
            version_text(MIN_VERSION)
        ),
        (0, Ok(version)) => return Ok(version),
        (NO_DEVICE, _) => "the driver (libcuda) is installed, but finds no device".to_owned(),
        (STUB_LIBRARY, _) => "libcuda is the stub of a toolkit, not a driver".to_owned(),
        (0, Err(code)) => format!("cuDriverGetVersion reports {}", Code(code)),
        (code, _) => format!("cuInit reports {}", Code(code)),
    };
    Err(unavailable(reason))
}

impl Api {
    /// Loads the driver and initialises it; its version.
    pub(super) fn load() -> Result<(Api, i32), Unavailable> {
        // SAFETY: loads and unloads the system's CUDA driver, which is safe to load.
        if !unsafe { sys::is_culib_present() } {
            return Err(unavailable(
                "the driver (libcuda) is not installed".to_owned(),
            ));
        }
        // SAFETY: the library is present, without which this panics.
        let library = unsafe { sys::culib() };
        // SAFETY: it is the driver.
        let api = unsafe { Api::look_up(library) }.map_err(|symbol| {
            unavailable(format!("the driver has no {symbol}: install a newer one"))
        })?;

        // SAFETY: `cuInit` has no preconditions.
        let init_code = unsafe { (api.init)(0) };
        let mut version = 0;
        // SAFETY: the pointer is to a local; the function needs no initialisation.
        let version_code = unsafe { (api.driver_version)(&raw mut version) };
        let version = match version_code {
            0 => Ok(version),
            code => Err(code),
        };
        Ok((api, check_version(init_code, version)?))
    }
}

/// One attribute of a device.
pub(super) fn device_attribute(
    api: &Api,
    device: sys::CUdevice,
    attribute: sys::CUdevice_attribute,
) -> Result<i32, i32> {
    let mut value = 0;
    // SAFETY: the pointer is to a local; the driver checks the device's number.
    match unsafe { (api.device_attribute)(&raw mut value, attribute, device) } {
        0 => Ok(value),
        code => Err(code),
    }
}

/// What a call has reported.
pub(super) fn check_code(site: Site, code: c_int) -> Result<(), CallError> {
    if code == 0 {
        return Ok(());
    }
    Err(CallError {
        site,
        code: Code(code),
    })
}

/// A handle as a number.
pub(super) fn handle_number<T>(handle: *mut T) -> u64 {
    handle as u64
}

/// The handle that a number was made of.
pub(super) fn raw_handle<T>(number: u64) -> *mut T {
    number as *mut T
}

/// Adds a node to a graph, behind others of its nodes. `add` calls the driver's function for the kind of node, with where
/// the node's handle goes, the graph, and those other nodes.
pub(super) fn add_node(
    graph: Graph,
    after: &[Node],
    site: Site,
    add: impl FnOnce(*mut sys::CUgraphNode, sys::CUgraph, &[sys::CUgraphNode]) -> c_int,
) -> Result<Node, CallError> {
    let raw_nodes: Vec<sys::CUgraphNode> = after.iter().map(|node| raw_handle(node.0)).collect();
    let mut new_node = null_mut();
    let code = add(&raw mut new_node, raw_handle(graph.0), &raw_nodes);
    check_code(site, code)?;
    Ok(Node(handle_number(new_node)))
}

/// A text that the driver writes into a buffer of the given length.
pub(super) fn read_text(fill: impl FnOnce(*mut c_char, c_int) -> c_int) -> Result<String, i32> {
    let mut text_buffer = [0 as c_char; 256];
    match fill(text_buffer.as_mut_ptr(), text_buffer.len() as c_int - 1) {
        // SAFETY: the last byte is zero, because the driver was given one byte less; the buffer is a local.
        0 => Ok(unsafe { CStr::from_ptr(text_buffer.as_ptr()) }
            .to_string_lossy()
            .into_owned()),
        code => Err(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_in_a_sentence() {
        for (init, version, said) in [
            (0, Ok(12_020), Ok(12_020)),
            (
                0,
                Ok(11_040),
                Err(
                    "no CUDA: the driver has CUDA 11.4, 12.0 is needed: install driver 525 or newer",
                ),
            ),
            (
                100,
                Ok(12_040),
                Err("no CUDA: the driver (libcuda) is installed, but finds no device"),
            ),
            (
                100,
                Ok(11_000),
                Err(
                    "no CUDA: the driver has CUDA 11.0, 12.0 is needed: install driver 525 or newer",
                ),
            ),
            (
                34,
                Err(34),
                Err("no CUDA: libcuda is the stub of a toolkit, not a driver"),
            ),
            (
                999,
                Ok(12_040),
                Err("no CUDA: cuInit reports CUDA_ERROR_UNKNOWN (999)"),
            ),
            (
                803,
                Ok(12_040),
                Err("no CUDA: cuInit reports CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"),
            ),
        ] {
            let found = check_version(init, version).map_err(|e| e.to_string());
            assert_eq!(found, said.map_err(str::to_owned));
        }
    }

    /// Where there is no driver, or one without a device, this is the sentence that people see.
    #[test]
    fn loading_never_panics() {
        match Api::load() {
            Ok((_, version)) => assert!(version >= MIN_VERSION),
            Err(error) => {
                println!("{error}");
                assert!(error.to_string().starts_with("no CUDA: "), "{error}");
            }
        }
    }
}
