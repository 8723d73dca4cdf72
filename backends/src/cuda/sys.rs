//! The driver as it is: libcuda's functions, looked up once. Types come from cudarc; the functions are loaded by their
//! names here, so that one that is missing is an error and not a panic, and results are numbers, because newer drivers
//! say what no list of ours has.
#![expect(unsafe_code, reason = "calls the CUDA driver")]

mod programmatic;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys;

use super::driver::{Address, Driver, Event, Exec, Function, Graph, Image, Launch, Node, Signal};
use super::error::{Code, Said, Site, Unavailable};
use super::lt::Lt;
use crate::kernels::library::{Product, Shape};
use programmatic::Programmatic;

mod exchange;

/// Functions with the signatures of driver 12.0; later drivers keep them.
macro_rules! functions {
    ($($field:ident $symbol:literal ($($argument:ty),*);)*) => {
        /// libcuda's functions.
        #[derive(Clone, Copy)]
        pub(super) struct Api {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Api {
            /// Looks them up.
            ///
            /// # Safety
            /// The library is the driver's.
            unsafe fn look_up() -> Result<Api, Unavailable> {
                // SAFETY: callers have made sure that the library is there, without which this panics.
                let library = unsafe { sys::culib() };
                Ok(Api { $($field: {
                    type Wanted = unsafe extern "C" fn($($argument),*) -> c_int;
                    // SAFETY: the driver's function of that name has this signature.
                    match unsafe { library.get::<Wanted>($symbol.as_bytes()) } {
                        Ok(found) => *found,
                        Err(_) => return Err(Unavailable(format!(
                            "the driver has no {}: install a newer one", $symbol
                        ))),
                    }
                }),* })
            }
        }
    };
}
functions! {
    init "cuInit" (c_uint);
    driver_version "cuDriverGetVersion" (*mut c_int);
    device_count "cuDeviceGetCount" (*mut c_int);
    device "cuDeviceGet" (*mut sys::CUdevice, c_int);
    device_name "cuDeviceGetName" (*mut c_char, c_int, sys::CUdevice);
    device_memory "cuDeviceTotalMem_v2" (*mut usize, sys::CUdevice);
    device_attribute "cuDeviceGetAttribute" (*mut c_int, sys::CUdevice_attribute, sys::CUdevice);
    device_uuid "cuDeviceGetUuid_v2" (*mut sys::CUuuid, sys::CUdevice);
    retain "cuDevicePrimaryCtxRetain" (*mut sys::CUcontext, sys::CUdevice);
    release "cuDevicePrimaryCtxRelease_v2" (sys::CUdevice);
    set_current "cuCtxSetCurrent" (sys::CUcontext);
    stream_create "cuStreamCreate" (*mut sys::CUstream, c_uint);
    stream_destroy "cuStreamDestroy_v2" (sys::CUstream);
    alloc "cuMemAlloc_v2" (*mut sys::CUdeviceptr, usize);
    free "cuMemFree_v2" (sys::CUdeviceptr);
    alloc_host "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    free_host "cuMemFreeHost" (*mut c_void);
    register "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister "cuMemHostUnregister" (*mut c_void);
    pointer "cuMemHostGetDevicePointer_v2" (*mut sys::CUdeviceptr, *mut c_void, c_uint);
    signal "cuStreamBatchMemOp_v2" (
        sys::CUstream, c_uint, *mut sys::CUstreamBatchMemOpParams, c_uint
    );
    module_load "cuModuleLoadDataEx" (
        *mut sys::CUmodule, *const c_void, c_uint, *mut sys::CUjit_option, *mut *mut c_void
    );
    module_unload "cuModuleUnload" (sys::CUmodule);
    module_function "cuModuleGetFunction" (*mut sys::CUfunction, sys::CUmodule, *const c_char);
    zero "cuMemsetD8Async" (sys::CUdeviceptr, u8, usize, sys::CUstream);
    copy "cuMemcpyAsync" (sys::CUdeviceptr, sys::CUdeviceptr, usize, sys::CUstream);
    event_create "cuEventCreate" (*mut sys::CUevent, c_uint);
    event_destroy "cuEventDestroy_v2" (sys::CUevent);
    event_record "cuEventRecord" (sys::CUevent, sys::CUstream);
    event_query "cuEventQuery" (sys::CUevent);
    graph_create "cuGraphCreate" (*mut sys::CUgraph, c_uint);
    graph_destroy "cuGraphDestroy" (sys::CUgraph);
    kernel_node "cuGraphAddKernelNode_v2" (
        *mut sys::CUgraphNode, sys::CUgraph, *const sys::CUgraphNode, usize,
        *const sys::CUDA_KERNEL_NODE_PARAMS
    );
    copy_node "cuGraphAddMemcpyNode" (
        *mut sys::CUgraphNode, sys::CUgraph, *const sys::CUgraphNode, usize,
        *const sys::CUDA_MEMCPY3D, sys::CUcontext
    );
    zero_node "cuGraphAddMemsetNode" (
        *mut sys::CUgraphNode, sys::CUgraph, *const sys::CUgraphNode, usize,
        *const sys::CUDA_MEMSET_NODE_PARAMS, sys::CUcontext
    );
    instantiate "cuGraphInstantiateWithFlags" (*mut sys::CUgraphExec, sys::CUgraph, c_ulonglong);
    upload "cuGraphUpload" (sys::CUgraphExec, sys::CUstream);
    exec_destroy "cuGraphExecDestroy" (sys::CUgraphExec);
    launch "cuGraphLaunch" (sys::CUgraphExec, sys::CUstream);
}

/// CUDA 12.0, the first with all of the functions.
const MIN_VERSION: i32 = 12_000;
/// `CUDA_ERROR_NO_DEVICE`, `CUDA_ERROR_STUB_LIBRARY`, `CUDA_ERROR_NOT_READY`.
const NO_DEVICE: i32 = 100;
const STUB: i32 = 34;
const NOT_READY: i32 = 600;

/// `11.4` of 11040.
fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// What a driver's answers to the first calls mean; its version if all is well.
pub(super) fn judge(init: i32, version: Result<i32, i32>) -> Result<i32, Unavailable> {
    let sentence = match (init, version) {
        // Too old a driver often cannot be initialised either, for reasons that help nobody.
        (_, Ok(version)) if version < MIN_VERSION => format!(
            "the driver has CUDA {}, {} is needed: install driver 525 or newer",
            version_text(version),
            version_text(MIN_VERSION)
        ),
        (0, Ok(version)) => return Ok(version),
        (NO_DEVICE, _) => "the driver (libcuda) is installed, but finds no device".to_owned(),
        (STUB, _) => "libcuda is the stub of a toolkit, not a driver".to_owned(),
        (0, Err(code)) => format!("cuDriverGetVersion says {}", Code(code)),
        (code, _) => format!("cuInit says {}", Code(code)),
    };
    Err(Unavailable(sentence))
}

impl Api {
    /// Loads the driver and initialises it; its version.
    pub(super) fn load() -> Result<(Api, i32), Unavailable> {
        // SAFETY: loads and unloads the system's CUDA driver, which is safe to load.
        if !unsafe { sys::is_culib_present() } {
            return Err(Unavailable(
                "the driver (libcuda) is not installed".to_owned(),
            ));
        }
        // SAFETY: the library is there, and the driver's.
        let api = unsafe { Api::look_up() }?;
        let mut version = 0;
        // SAFETY: neither has preconditions; the pointer is to a local.
        let (init, said) = unsafe { ((api.init)(0), (api.driver_version)(&raw mut version)) };
        let version = judge(init, if said == 0 { Ok(version) } else { Err(said) })?;
        Ok((api, version))
    }
}

/// One attribute of a device.
pub(super) fn attribute(
    api: &Api,
    device: sys::CUdevice,
    which: sys::CUdevice_attribute,
) -> Result<i32, i32> {
    let mut value = 0;
    // SAFETY: the device was given by the driver; the pointer is to a local.
    match unsafe { (api.device_attribute)(&raw mut value, which, device) } {
        0 => Ok(value),
        code => Err(code),
    }
}

/// The driver with one device open.
pub(super) struct Cuda {
    api: Api,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    modules: Mutex<Vec<Handle>>,
    /// Loaded when it is asked for.
    library: OnceLock<Result<Lt, String>>,
    programmatic: Option<Programmatic>,
}

/// A module's handle.
struct Handle(sys::CUmodule);

// SAFETY: handles are the driver's, which takes them from any thread whose context is theirs.
unsafe impl Send for Handle {}
// SAFETY: as above; every call binds its thread first, and the driver locks itself.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

fn said(site: Site, code: c_int) -> Result<(), Said> {
    if code == 0 {
        Ok(())
    } else {
        Err(Said {
            site,
            code: Code(code),
        })
    }
}

impl Cuda {
    /// Opens a device.
    pub(super) fn open(api: Api, device: sys::CUdevice) -> Result<Arc<Cuda>, Said> {
        const NON_BLOCKING: c_uint = 1;
        let (mut context, mut stream) = (null_mut(), null_mut());
        // SAFETY: the device was given by the driver; the pointers are to locals.
        said(Site::Context, unsafe {
            (api.retain)(&raw mut context, device)
        })?;
        let opened = || {
            // SAFETY: the context is alive.
            said(Site::Bind, unsafe { (api.set_current)(context) })?;
            // SAFETY: a context is current; the pointer is to a local.
            said(Site::Stream, unsafe {
                (api.stream_create)(&raw mut stream, NON_BLOCKING)
            })
        };
        let mut opened = opened;
        if let Err(error) = opened() {
            // SAFETY: retained above.
            unsafe { (api.release)(device) };
            return Err(error);
        }
        let (modules, library) = (Mutex::new(Vec::new()), OnceLock::new());
        let programmatic = Programmatic::look_up();
        Ok(Arc::new(Cuda {
            api,
            device,
            context,
            stream,
            modules,
            library,
            programmatic,
        }))
    }

    /// The library for products, or why there is none. The context is current.
    fn lt(&self) -> Result<&Lt, &String> {
        self.library.get_or_init(|| Lt::load(self.api)).as_ref()
    }
}

/// Handles as numbers, and back.
fn number<T>(handle: *mut T) -> u64 {
    handle as u64
}

fn handle<T>(number: u64) -> *mut T {
    number as *mut T
}

fn handles(nodes: &[Node]) -> Vec<sys::CUgraphNode> {
    nodes.iter().map(|n| handle(n.0)).collect()
}

/// Attributes of a node, checked by the driver: 1-d copies between addresses that both sides know.
fn flat_copy(from: Address, to: Address, bytes: u64) -> sys::CUDA_MEMCPY3D {
    sys::CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcHost: null(),
        srcDevice: from,
        srcArray: null_mut(),
        reserved0: null_mut(),
        srcPitch: 0,
        srcHeight: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        dstHost: null_mut(),
        dstDevice: to,
        dstArray: null_mut(),
        reserved1: null_mut(),
        dstPitch: 0,
        dstHeight: 0,
        WidthInBytes: bytes as usize,
        Height: 1,
        Depth: 1,
    }
}

impl Driver for Cuda {
    fn bind(&self) -> Result<(), Said> {
        // SAFETY: the context is retained until `close`.
        said(Site::Bind, unsafe { (self.api.set_current)(self.context) })
    }

    fn alloc(&self, bytes: u64) -> Result<Address, Said> {
        let mut at = 0;
        // SAFETY: the pointer is to a local.
        said(Site::Alloc, unsafe {
            (self.api.alloc)(&raw mut at, bytes as usize)
        })?;
        Ok(at)
    }

    fn free(&self, at: Address) {
        // SAFETY: given by `alloc`, given back once, nothing in the queue uses it. What this says was said before.
        unsafe { (self.api.free)(at) };
    }

    fn alloc_host(&self, bytes: u64) -> Result<Address, Said> {
        // Plain: what is write-combined is slow to read.
        const FLAGS: c_uint = 0;
        let mut at = null_mut();
        let code = // SAFETY: the pointer is to a local.
            unsafe { (self.api.alloc_host)(&raw mut at, bytes as usize, FLAGS) };
        said(Site::AllocHost, code)?;
        Ok(number(at))
    }

    fn free_host(&self, at: Address) {
        // SAFETY: as in `free`.
        unsafe { (self.api.free_host)(handle(at)) };
    }

    fn register(&self, first: *mut u8, bytes: u64) -> Result<Address, Said> {
        exchange::register(self, first, bytes)
    }

    fn unregister(&self, first: *mut u8) {
        // SAFETY: as in `free`, for `register`.
        unsafe { (self.api.unregister)(first.cast()) };
    }

    fn function(&self, image: Image<'_>, entry: &str) -> Result<Function, Said> {
        let unfit = |site| Said {
            site,
            code: Code(218),
        };
        // Words, for both begin at a multiple of eight bytes then; a text ends with a zero.
        let bytes = match image {
            Image::Ptx(text) if text.contains('\0') => return Err(unfit(Site::Load)),
            Image::Ptx(text) => text.as_bytes(),
            Image::Cubin(bytes) => bytes,
        };
        let mut words = vec![0_u64; bytes.len() / 8 + 1];
        for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut all = [0; 8];
            all[..part.len()].copy_from_slice(part);
            *word = u64::from_ne_bytes(all);
        }
        let entry = CString::new(entry).map_err(|_| unfit(Site::Function))?;
        let mut module = null_mut();
        let (image, options) = (words.as_ptr().cast(), 0);
        // SAFETY: the text ends with a zero, all parts of an object lie in it, and it outlives the call; there are no
        // options.
        let code = unsafe {
            (self.api.module_load)(&raw mut module, image, options, null_mut(), null_mut())
        };
        said(Site::Load, code)?;
        self.modules
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Handle(module));
        let mut function = null_mut();
        // SAFETY: the module is loaded; the name ends with a zero and outlives the call.
        let code = unsafe { (self.api.module_function)(&raw mut function, module, entry.as_ptr()) };
        said(Site::Function, code)?;
        Ok(Function(number(function)))
    }

    fn zero(&self, at: Address, bytes: u64) -> Result<(), Said> {
        // SAFETY: callers hold the memory, of at least that many bytes, until the queue is empty.
        said(Site::Zero, unsafe {
            (self.api.zero)(at, 0, bytes as usize, self.stream)
        })
    }

    fn copy(&self, from: Address, to: Address, bytes: u64) -> Result<(), Said> {
        // SAFETY: as in `zero`, for both.
        said(Site::Copy, unsafe {
            (self.api.copy)(to, from, bytes as usize, self.stream)
        })
    }

    fn give(&self, from: Address, to: Address, bytes: u64) -> Result<(), Said> {
        // SAFETY: as in `copy`.
        said(Site::Give, unsafe {
            (self.api.copy)(to, from, bytes as usize, self.stream)
        })
    }

    fn signal(&self, signals: &[Signal]) -> Result<(), Said> {
        exchange::signal(self, signals)
    }

    fn event(&self) -> Result<Event, Said> {
        const WITHOUT_TIME: c_uint = 2;
        let mut event = null_mut();
        // SAFETY: the pointer is to a local.
        let code = unsafe { (self.api.event_create)(&raw mut event, WITHOUT_TIME) };
        said(Site::Event, code)?;
        Ok(Event(number(event)))
    }

    fn free_event(&self, event: Event) {
        // SAFETY: as in `free`.
        unsafe { (self.api.event_destroy)(handle(event.0)) };
    }

    fn record(&self, event: Event) -> Result<(), Said> {
        // SAFETY: the event is alive.
        said(Site::Record, unsafe {
            (self.api.event_record)(handle(event.0), self.stream)
        })
    }

    fn query(&self, event: Event) -> Result<bool, Said> {
        // SAFETY: the event is alive.
        match unsafe { (self.api.event_query)(handle(event.0)) } {
            NOT_READY => Ok(false),
            code => said(Site::Query, code).map(|()| true),
        }
    }

    fn graph(&self) -> Result<Graph, Said> {
        let mut graph = null_mut();
        // SAFETY: the pointer is to a local.
        said(Site::Graph, unsafe {
            (self.api.graph_create)(&raw mut graph, 0)
        })?;
        Ok(Graph(number(graph)))
    }

    fn free_graph(&self, graph: Graph) {
        // SAFETY: as in `free`.
        unsafe { (self.api.graph_destroy)(handle(graph.0)) };
    }

    fn kernel_node(&self, graph: Graph, after: &[Node], launch: &Launch) -> Result<Node, Said> {
        let after = handles(after);
        // The driver copies the arguments now, by the sizes that the kernel declares: pointers, then words.
        let pointers = launch
            .pointers
            .iter()
            .map(|p| std::ptr::from_ref(p).cast_mut().cast());
        let words = launch
            .words
            .iter()
            .map(|w| std::ptr::from_ref(w).cast_mut().cast());
        let mut arguments: Vec<*mut c_void> = pointers.chain(words).collect();
        let node = sys::CUDA_KERNEL_NODE_PARAMS {
            func: handle(launch.function.0),
            gridDimX: launch.groups,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: launch.local,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: arguments.as_mut_ptr(),
            extra: null_mut(),
            kern: null_mut(),
            ctx: null_mut(),
        };
        let (mut made, count) = (null_mut(), after.len());
        // SAFETY: graph, nodes and function are alive; the arguments are as many and as large as the printer declared,
        // and outlive the call.
        let code = unsafe {
            (self.api.kernel_node)(&raw mut made, handle(graph.0), after.as_ptr(), count, &node)
        };
        said(Site::KernelNode, code)?;
        Ok(Node(number(made)))
    }

    fn has_programmatic_edges(&self) -> bool {
        self.programmatic.is_some()
    }

    fn programmatic_edge(&self, graph: Graph, before: Node, after: Node) -> Result<(), Said> {
        // `CUDA_ERROR_NOT_SUPPORTED`.
        let Some(edges) = self.programmatic else {
            return said(Site::KernelNode, 801);
        };
        // SAFETY: graph and nodes are alive.
        unsafe { edges.add(handle(graph.0), handle(before.0), handle(after.0)) }
    }

    fn copy_node(
        &self,
        graph: Graph,
        after: &[Node],
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<Node, Said> {
        let (after, copy) = (handles(after), flat_copy(from, to, bytes));
        let (mut made, count) = (null_mut(), after.len());
        // SAFETY: graph and nodes are alive; callers hold the memory as long as the graph.
        let code = unsafe {
            let graph = handle(graph.0);
            (self.api.copy_node)(
                &raw mut made,
                graph,
                after.as_ptr(),
                count,
                &copy,
                self.context,
            )
        };
        said(Site::CopyNode, code)?;
        Ok(Node(number(made)))
    }

    fn zero_node(
        &self,
        graph: Graph,
        after: &[Node],
        at: Address,
        bytes: u64,
    ) -> Result<Node, Said> {
        let after = handles(after);
        let zero = sys::CUDA_MEMSET_NODE_PARAMS {
            dst: at,
            pitch: 0,
            value: 0,
            elementSize: 1,
            width: bytes as usize,
            height: 1,
        };
        let (mut made, count) = (null_mut(), after.len());
        // SAFETY: as in `copy_node`.
        let code = unsafe {
            let graph = handle(graph.0);
            (self.api.zero_node)(
                &raw mut made,
                graph,
                after.as_ptr(),
                count,
                &zero,
                self.context,
            )
        };
        said(Site::ZeroNode, code)?;
        Ok(Node(number(made)))
    }

    fn library(&self) -> Result<String, String> {
        self.lt()
            .map(|lt| lt.title().to_owned())
            .map_err(String::clone)
    }

    fn refuses(&self, shape: &Shape) -> Result<Option<String>, Said> {
        match self.lt() {
            Ok(lt) => Ok(lt.algorithm(shape)?.err()),
            Err(why) => Ok(Some(why.clone())),
        }
    }

    fn product_node(
        &self,
        graph: Graph,
        after: &[Node],
        product: &Product<Address>,
        count: u64,
    ) -> Result<Node, Said> {
        // Status 1: not initialised.
        let none = Said {
            site: Site::Library,
            code: Code(Code::LIBRARY + 1),
        };
        self.lt()
            .map_err(|_| none)?
            .node(graph, after, product, count)
    }

    fn instantiate(&self, graph: Graph) -> Result<Exec, Said> {
        let mut exec = null_mut();
        // SAFETY: the graph is alive.
        let code = unsafe { (self.api.instantiate)(&raw mut exec, handle(graph.0), 0) };
        said(Site::Instantiate, code)?;
        Ok(Exec(number(exec)))
    }

    fn upload(&self, exec: Exec) -> Result<(), Said> {
        // SAFETY: the graph is alive.
        said(Site::Upload, unsafe {
            (self.api.upload)(handle(exec.0), self.stream)
        })
    }

    fn free_exec(&self, exec: Exec) {
        // SAFETY: as in `free`.
        unsafe { (self.api.exec_destroy)(handle(exec.0)) };
    }

    fn launch(&self, exec: Exec) -> Result<(), Said> {
        // SAFETY: the graph is alive, and so is all memory that it names.
        said(Site::Launch, unsafe {
            (self.api.launch)(handle(exec.0), self.stream)
        })
    }

    fn close(&self) {
        let modules =
            std::mem::take(&mut *self.modules.lock().unwrap_or_else(PoisonError::into_inner));
        // SAFETY: the caller's promise: nothing is in the queue, and everything else was given back.
        unsafe {
            (self.api.set_current)(self.context);
            if let Some(Ok(lt)) = self.library.get() {
                lt.close();
            }
            for module in modules {
                (self.api.module_unload)(module.0);
            }
            (self.api.stream_destroy)(self.stream);
            (self.api.release)(self.device);
        }
    }
}

/// A text that the driver writes into a buffer of its size.
pub(super) fn text(fill: impl FnOnce(*mut c_char, c_int) -> c_int) -> Result<String, i32> {
    let mut buffer = [0 as c_char; 256];
    match fill(buffer.as_mut_ptr(), buffer.len() as c_int - 1) {
        // SAFETY: the last byte is zero, and no one else has the buffer.
        0 => Ok(unsafe { CStr::from_ptr(buffer.as_ptr()) }
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
                Err("no CUDA: cuInit says CUDA_ERROR_UNKNOWN (999)"),
            ),
            (
                803,
                Ok(12_040),
                Err("no CUDA: cuInit says CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"),
            ),
        ] {
            let found = judge(init, version).map_err(|e| e.to_string());
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
