//! The real driver: libcuda's functions, looked up once. Types come from cudarc; the functions are loaded by their names
//! here, so that one that is missing is an error and not a panic, and results are numbers, because newer drivers report
//! codes that are not listed here.
#![expect(unsafe_code, reason = "calls the CUDA driver")]

mod dependent_launch;
mod exchange;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys;

use super::driver::{Address, Driver, Event, Exec, Function, Graph, Image, Launch, Node, WordOp};
use super::error::{CallError, Code, Site, unavailable};
use super::lt::Lt;
use dependent_launch::DependentLaunch;
use zbmd_gpu_ir::library::{Product, Shape};
use zbmd_hal::Unavailable;

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
            /// The library is installed, and the driver's.
            unsafe fn look_up() -> Result<Api, Unavailable> {
                // SAFETY: the library is installed, as the caller promises; without it this panics.
                let library = unsafe { sys::culib() };
                Ok(Api { $($field: {
                    type Wanted = unsafe extern "C" fn($($argument),*) -> c_int;
                    // SAFETY: the driver's function of that name has this signature.
                    match unsafe { library.get::<Wanted>($symbol.as_bytes()) } {
                        Ok(found) => *found,
                        Err(_) => return Err(unavailable(format!(
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
const STUB_LIBRARY: i32 = 34;
const NOT_READY: i32 = 600;
/// `CUDA_ERROR_INVALID_PTX`, `CUDA_ERROR_NOT_SUPPORTED`.
const INVALID_PTX: Code = Code(218);
const NOT_SUPPORTED: i32 = 801;

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
        // SAFETY: the library is present, and the driver's.
        let api = unsafe { Api::look_up() }?;

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

/// The driver with one device open.
pub(super) struct Cuda {
    api: Api,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    modules: Mutex<Vec<ModuleHandle>>,
    /// Loaded when it is first needed.
    library: OnceLock<Result<Lt, String>>,
    dependent_launch: Option<DependentLaunch>,
}

/// A module's handle.
struct ModuleHandle(sys::CUmodule);

// SAFETY: handles are the driver's, which accepts them from any thread whose context is theirs.
unsafe impl Send for ModuleHandle {}
// SAFETY: the handles may be used on any thread whose context is theirs: every call binds its thread first.
unsafe impl Send for Cuda {}
// SAFETY: the driver locks itself, and what is not the driver's is behind locks.
unsafe impl Sync for Cuda {}

/// What a call has reported.
fn check_code(site: Site, code: c_int) -> Result<(), CallError> {
    if code == 0 {
        return Ok(());
    }
    Err(CallError {
        site,
        code: Code(code),
    })
}

impl Cuda {
    /// Opens a device.
    pub(super) fn open(api: Api, device: sys::CUdevice) -> Result<Arc<Cuda>, CallError> {
        let mut context = null_mut();
        // SAFETY: the pointer is to a local; the driver checks the device's number.
        let retained = unsafe { (api.retain)(&raw mut context, device) };
        check_code(Site::Context, retained)?;

        // SAFETY: the context was retained above.
        let stream = unsafe { Self::create_stream(&api, context) }.inspect_err(|_| {
            // SAFETY: retained above, and nothing uses the context.
            unsafe { (api.release)(device) };
        })?;
        Ok(Arc::new(Cuda {
            api,
            device,
            context,
            stream,
            modules: Mutex::default(),
            library: OnceLock::new(),
            dependent_launch: DependentLaunch::look_up(&api),
        }))
    }

    /// # Safety
    /// The context is retained.
    unsafe fn create_stream(
        api: &Api,
        context: sys::CUcontext,
    ) -> Result<sys::CUstream, CallError> {
        const NON_BLOCKING: c_uint = 1;
        // SAFETY: the context is retained, as the caller promises.
        let bound = unsafe { (api.set_current)(context) };
        check_code(Site::Bind, bound)?;

        let mut stream = null_mut();
        // SAFETY: a context is current; the pointer is to a local.
        let created = unsafe { (api.stream_create)(&raw mut stream, NON_BLOCKING) };
        check_code(Site::Stream, created)?;
        Ok(stream)
    }

    /// The library for products, or why there is none. The context is current.
    fn products(&self) -> Result<&Lt, &String> {
        self.library.get_or_init(|| Lt::load(self.api)).as_ref()
    }

    fn lock_modules(&self) -> std::sync::MutexGuard<'_, Vec<ModuleHandle>> {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle as a number.
fn handle_number<T>(handle: *mut T) -> u64 {
    handle as u64
}

/// The handle that a number was made of.
fn raw_handle<T>(number: u64) -> *mut T {
    number as *mut T
}

fn raw_nodes(nodes: &[Node]) -> Vec<sys::CUgraphNode> {
    nodes.iter().map(|node| raw_handle(node.0)).collect()
}

/// A copy of bytes in a row between addresses that both sides know.
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

/// The bytes with at least one zero behind them, from a multiple of eight on: images of both kinds begin there.
fn aligned_image(bytes: &[u8]) -> Vec<u64> {
    let mut words = vec![0_u64; bytes.len() / 8 + 1];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut word_bytes = [0; 8];
        word_bytes[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_ne_bytes(word_bytes);
    }
    words
}

impl Driver for Cuda {
    fn bind_thread(&self) -> Result<(), CallError> {
        // SAFETY: the context is retained until `close_device`.
        let code = unsafe { (self.api.set_current)(self.context) };
        check_code(Site::Bind, code)
    }

    fn alloc_device(&self, bytes: u64) -> Result<Address, CallError> {
        let mut address = 0;
        // SAFETY: the pointer is to a local.
        let code = unsafe { (self.api.alloc)(&raw mut address, bytes as usize) };
        check_code(Site::Alloc, code)?;
        Ok(address)
    }

    unsafe fn free_device(&self, address: Address) {
        // SAFETY: of `alloc_device`, unused and given back once, as the caller promises. An error here was reported by
        // an earlier call too.
        unsafe { (self.api.free)(address) };
    }

    fn alloc_host(&self, bytes: u64) -> Result<Address, CallError> {
        // Plain: write-combined memory is slow to read.
        const FLAGS: c_uint = 0;
        let mut first = null_mut();
        // SAFETY: the pointer is to a local.
        let code = unsafe { (self.api.alloc_host)(&raw mut first, bytes as usize, FLAGS) };
        check_code(Site::AllocHost, code)?;
        Ok(handle_number(first))
    }

    unsafe fn free_host(&self, address: Address) {
        // SAFETY: of `alloc_host`, unused and given back once, as the caller promises.
        unsafe { (self.api.free_host)(raw_handle(address)) };
    }

    unsafe fn register_host(&self, first: *mut u8, bytes: u64) -> Result<Address, CallError> {
        // SAFETY: valid until it is given back, as the caller promises.
        unsafe { exchange::register_host(self, first, bytes) }
    }

    unsafe fn unregister_host(&self, first: *mut u8) {
        // SAFETY: of `register_host`, unused and given back once, as the caller promises.
        unsafe { (self.api.unregister)(first.cast()) };
    }

    fn load_function(&self, image: Image<'_>, entry: &str) -> Result<Function, CallError> {
        let invalid = |site| CallError {
            site,
            code: INVALID_PTX,
        };
        let bytes = match image {
            Image::Ptx(text) if text.contains('\0') => return Err(invalid(Site::Load)),
            Image::Ptx(text) => text.as_bytes(),
            Image::Cubin(cubin) => cubin.bytes(),
        };
        let words = aligned_image(bytes);
        let entry_name = CString::new(entry).map_err(|_| invalid(Site::Function))?;

        let mut module = null_mut();
        let image = words.as_ptr().cast();
        // SAFETY: a text ends with a zero, and an object has all parts that its headers name (`WholeCubin`); the image
        // outlives the call; there are no options.
        let code =
            unsafe { (self.api.module_load)(&raw mut module, image, 0, null_mut(), null_mut()) };
        check_code(Site::Load, code)?;
        self.lock_modules().push(ModuleHandle(module));

        let mut function = null_mut();
        // SAFETY: the module is loaded; the name ends with a zero and outlives the call.
        let code =
            unsafe { (self.api.module_function)(&raw mut function, module, entry_name.as_ptr()) };
        check_code(Site::Function, code)?;
        Ok(Function(handle_number(function)))
    }

    unsafe fn put_zero(&self, address: Address, bytes: u64) -> Result<(), CallError> {
        // SAFETY: memory of that length that outlives the work, as the caller promises.
        let code = unsafe { (self.api.zero)(address, 0, bytes as usize, self.stream) };
        check_code(Site::Zero, code)
    }

    unsafe fn put_copy(&self, from: Address, to: Address, bytes: u64) -> Result<(), CallError> {
        // SAFETY: both have that length and outlive the work, as the caller promises.
        let code = unsafe { (self.api.copy)(to, from, bytes as usize, self.stream) };
        check_code(Site::Copy, code)
    }

    unsafe fn put_exchange_copy(
        &self,
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<(), CallError> {
        // SAFETY: both have that length and outlive the work, as the caller promises.
        let code = unsafe { (self.api.copy)(to, from, bytes as usize, self.stream) };
        check_code(Site::Give, code)
    }

    unsafe fn put_word_ops(&self, word_ops: &[WordOp]) -> Result<(), CallError> {
        // SAFETY: words of registered memory that outlives the work, as the caller promises.
        unsafe { exchange::put_word_ops(self, word_ops) }
    }

    fn create_event(&self) -> Result<Event, CallError> {
        const DISABLE_TIMING: c_uint = 2;
        let mut event = null_mut();
        // SAFETY: the pointer is to a local.
        let code = unsafe { (self.api.event_create)(&raw mut event, DISABLE_TIMING) };
        check_code(Site::Event, code)?;
        Ok(Event(handle_number(event)))
    }

    unsafe fn destroy_event(&self, event: Event) {
        // SAFETY: of `create_event`, given back once, as the caller promises.
        unsafe { (self.api.event_destroy)(raw_handle(event.0)) };
    }

    unsafe fn record_event(&self, event: Event) -> Result<(), CallError> {
        // SAFETY: of `create_event` and not given back, as the caller promises.
        let code = unsafe { (self.api.event_record)(raw_handle(event.0), self.stream) };
        check_code(Site::Record, code)
    }

    unsafe fn query_event(&self, event: Event) -> Result<bool, CallError> {
        // SAFETY: of `create_event` and not given back, as the caller promises.
        match unsafe { (self.api.event_query)(raw_handle(event.0)) } {
            NOT_READY => Ok(false),
            code => check_code(Site::Query, code).map(|()| true),
        }
    }

    fn create_graph(&self) -> Result<Graph, CallError> {
        let mut graph = null_mut();
        // SAFETY: the pointer is to a local.
        let code = unsafe { (self.api.graph_create)(&raw mut graph, 0) };
        check_code(Site::Graph, code)?;
        Ok(Graph(handle_number(graph)))
    }

    unsafe fn destroy_graph(&self, graph: Graph) {
        // SAFETY: of `create_graph`, given back once, as the caller promises.
        unsafe { (self.api.graph_destroy)(raw_handle(graph.0)) };
    }

    unsafe fn add_kernel_node(
        &self,
        graph: Graph,
        after: &[Node],
        launch: &Launch,
    ) -> Result<Node, CallError> {
        // The driver copies the arguments now, by the sizes that the kernel declares: pointers, then words.
        let mut arguments: Vec<*mut c_void> = Vec::new();
        for pointer in &launch.pointers {
            arguments.push(std::ptr::from_ref(pointer).cast_mut().cast());
        }
        for word in &launch.words {
            arguments.push(std::ptr::from_ref(word).cast_mut().cast());
        }
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: raw_handle(launch.function.0),
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

        let after = raw_nodes(after);
        let mut node = null_mut();
        // SAFETY: graph, nodes and function exist, and the arguments are as many as the kernel declares, as the caller
        // promises; they have the sizes of pointers and words, and outlive the call.
        let code = unsafe {
            (self.api.kernel_node)(
                &raw mut node,
                raw_handle(graph.0),
                after.as_ptr(),
                after.len(),
                &params,
            )
        };
        check_code(Site::KernelNode, code)?;
        Ok(Node(handle_number(node)))
    }

    fn supports_dependent_launch(&self) -> bool {
        self.dependent_launch.is_some()
    }

    unsafe fn add_dependent_launch_edge(
        &self,
        graph: Graph,
        before: Node,
        after: Node,
    ) -> Result<(), CallError> {
        let Some(edges) = self.dependent_launch else {
            return check_code(Site::KernelNode, NOT_SUPPORTED);
        };
        // SAFETY: the graph exists and the nodes are its own, as the caller promises.
        unsafe {
            edges.add_edge(
                raw_handle(graph.0),
                raw_handle(before.0),
                raw_handle(after.0),
            )
        }
    }

    unsafe fn add_copy_node(
        &self,
        graph: Graph,
        after: &[Node],
        from: Address,
        to: Address,
        bytes: u64,
    ) -> Result<Node, CallError> {
        let params = flat_copy(from, to, bytes);
        let after = raw_nodes(after);
        let mut node = null_mut();
        // SAFETY: graph and nodes exist, and the memory outlives what is made of the graph, as the caller promises; the
        // other pointers are to locals.
        let code = unsafe {
            (self.api.copy_node)(
                &raw mut node,
                raw_handle(graph.0),
                after.as_ptr(),
                after.len(),
                &params,
                self.context,
            )
        };
        check_code(Site::CopyNode, code)?;
        Ok(Node(handle_number(node)))
    }

    unsafe fn add_zero_node(
        &self,
        graph: Graph,
        after: &[Node],
        address: Address,
        bytes: u64,
    ) -> Result<Node, CallError> {
        let params = sys::CUDA_MEMSET_NODE_PARAMS {
            dst: address,
            pitch: 0,
            value: 0,
            elementSize: 1,
            width: bytes as usize,
            height: 1,
        };
        let after = raw_nodes(after);
        let mut node = null_mut();
        // SAFETY: graph and nodes exist, and the memory outlives what is made of the graph, as the caller promises; the
        // other pointers are to locals.
        let code = unsafe {
            (self.api.zero_node)(
                &raw mut node,
                raw_handle(graph.0),
                after.as_ptr(),
                after.len(),
                &params,
                self.context,
            )
        };
        check_code(Site::ZeroNode, code)?;
        Ok(Node(handle_number(node)))
    }

    fn product_library(&self) -> Result<String, String> {
        let products = self.products().map_err(String::clone)?;
        Ok(products.title().to_owned())
    }

    fn unsupported_reason(&self, shape: &Shape) -> Result<Option<String>, CallError> {
        match self.products() {
            Ok(products) => Ok(products.choose_algorithm(shape)?.err()),
            Err(why) => Ok(Some(why.clone())),
        }
    }

    unsafe fn add_product_node(
        &self,
        graph: Graph,
        after: &[Node],
        product: &Product<Address>,
        count: u64,
    ) -> Result<Node, CallError> {
        // Status 1: not initialised.
        const NOT_INITIALISED: CallError = CallError {
            site: Site::Library,
            code: Code(Code::LIBRARY + 1),
        };
        let products = self.products().map_err(|_| NOT_INITIALISED)?;
        // SAFETY: graph, nodes and memory are as `Lt` needs them, as the caller promises.
        unsafe { products.add_node(graph, after, product, count) }
    }

    unsafe fn instantiate_graph(&self, graph: Graph) -> Result<Exec, CallError> {
        let mut exec = null_mut();
        // SAFETY: the graph exists, as the caller promises; the pointer is to a local.
        let code = unsafe { (self.api.instantiate)(&raw mut exec, raw_handle(graph.0), 0) };
        check_code(Site::Instantiate, code)?;
        Ok(Exec(handle_number(exec)))
    }

    unsafe fn upload_graph(&self, exec: Exec) -> Result<(), CallError> {
        // SAFETY: the graph exists, as the caller promises.
        let code = unsafe { (self.api.upload)(raw_handle(exec.0), self.stream) };
        check_code(Site::Upload, code)
    }

    unsafe fn destroy_exec(&self, exec: Exec) {
        // SAFETY: of `instantiate_graph`, unused and given back once, as the caller promises.
        unsafe { (self.api.exec_destroy)(raw_handle(exec.0)) };
    }

    unsafe fn launch_graph(&self, exec: Exec) -> Result<(), CallError> {
        // SAFETY: the graph and all memory that it names exist until it has ended, as the caller promises.
        let code = unsafe { (self.api.launch)(raw_handle(exec.0), self.stream) };
        check_code(Site::Launch, code)
    }

    unsafe fn close_device(&self) {
        let modules = std::mem::take(&mut *self.lock_modules());
        // SAFETY: nothing is in the queue, everything else was given back and nothing is called later, as the caller
        // promises; modules, stream and context are this device's, and each is given back here only.
        unsafe {
            (self.api.set_current)(self.context);
            if let Some(Ok(products)) = self.library.get() {
                products.close();
            }
            for module in modules {
                (self.api.module_unload)(module.0);
            }
            (self.api.stream_destroy)(self.stream);
            (self.api.release)(self.device);
        }
    }
}

/// A text that the driver writes into a buffer of the given length.
pub(super) fn read_text(fill: impl FnOnce(*mut c_char, c_int) -> c_int) -> Result<String, i32> {
    let mut buffer = [0 as c_char; 256];
    match fill(buffer.as_mut_ptr(), buffer.len() as c_int - 1) {
        // SAFETY: the last byte is zero, because the driver was given one byte less; the buffer is a local.
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
