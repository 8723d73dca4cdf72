//! The real driver, with one device open. Types come from cudarc; the functions are those of [`Api`].
#![expect(unsafe_code, reason = "calls the CUDA driver")]

mod dependent_launch;
mod exchange;

use std::ffi::{CString, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys;

use super::api::{Api, add_node, check_code, handle_number, raw_handle};
use super::driver::{Address, Driver, Event, Exec, Function, Graph, Image, Launch, Node, WordOp};
use super::error::{CallError, Code, Site};
use super::lt::Lt;
use dependent_launch::DependentLaunch;
use zbmd_gpu_ir::library::{Product, Shape};

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;
/// `CUDA_ERROR_INVALID_PTX`.
const INVALID_PTX: Code = Code(218);
/// `CUDA_ERROR_NOT_SUPPORTED`.
const NOT_SUPPORTED: i32 = 801;

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

        add_node(graph, after, Site::KernelNode, |node, graph, after| {
            // SAFETY: graph, nodes and function exist, and the arguments are as many as the kernel declares, as the caller
            // promises; they have the sizes of pointers and words, and outlive the call.
            unsafe { (self.api.kernel_node)(node, graph, after.as_ptr(), after.len(), &params) }
        })
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
        add_node(graph, after, Site::CopyNode, |node, graph, after| {
            // SAFETY: graph and nodes exist, and the memory outlives what is made of the graph, as the caller promises; the
            // other pointers are to locals.
            unsafe {
                (self.api.copy_node)(
                    node,
                    graph,
                    after.as_ptr(),
                    after.len(),
                    &params,
                    self.context,
                )
            }
        })
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
        add_node(graph, after, Site::ZeroNode, |node, graph, after| {
            // SAFETY: graph and nodes exist, and the memory outlives what is made of the graph, as the caller promises; the
            // other pointers are to locals.
            unsafe {
                (self.api.zero_node)(
                    node,
                    graph,
                    after.as_ptr(),
                    after.len(),
                    &params,
                    self.context,
                )
            }
        })
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
