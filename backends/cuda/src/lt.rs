//! cuBLASLt: the vendor's products of matrices, captured into graphs. The library is loaded at run time by its names, and
//! every function by its own, so that what is missing is a clause for people and not a panic.
//!
//! Its matrices are stored column by column and ours row by row, which is the same as transposed: it computes the
//! transposed product, with left and right exchanged.
#![expect(unsafe_code, reason = "calls cuBLASLt and the CUDA driver")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;
use libloading::Library;

use super::api::{Api, add_node, check_code, function_table};
use super::driver::{Address, Graph, Node};
use super::error::{CallError, Code, Site};
use zbmd_gpu_ir::Math;
use zbmd_gpu_ir::library::{Product, Shape, TITLE, WORKSPACE};

/// Libraries, and the oldest version of the driver that each runs with; the newest first.
const NAMES: [(&str, i32); 2] = [("libcublasLt.so.13", 13_000), ("libcublasLt.so.12", 12_000)];

/// The library's opaque objects.
type Handle = *mut c_void;

function_table! {
    /// What is used of the library: in all versions since 11.
    Functions:
    create "cublasLtCreate" (*mut Handle) -> c_int;
    destroy "cublasLtDestroy" (Handle) -> c_int;
    version "cublasLtGetVersion" () -> usize;
    desc_create "cublasLtMatmulDescCreate" (*mut Handle, c_int, c_int) -> c_int;
    desc_set "cublasLtMatmulDescSetAttribute" (Handle, c_int, *const c_void, usize) -> c_int;
    desc_destroy "cublasLtMatmulDescDestroy" (Handle) -> c_int;
    layout_create "cublasLtMatrixLayoutCreate" (*mut Handle, c_int, u64, u64, i64) -> c_int;
    layout_set "cublasLtMatrixLayoutSetAttribute" (Handle, c_int, *const c_void, usize) -> c_int;
    layout_destroy "cublasLtMatrixLayoutDestroy" (Handle) -> c_int;
    wish_create "cublasLtMatmulPreferenceCreate" (*mut Handle) -> c_int;
    wish_set "cublasLtMatmulPreferenceSetAttribute" (Handle, c_int, *const c_void, usize) -> c_int;
    wish_destroy "cublasLtMatmulPreferenceDestroy" (Handle) -> c_int;
    heuristic "cublasLtMatmulAlgoGetHeuristic" (
        Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut AlgorithmResult, *mut c_int
    ) -> c_int;
    check "cublasLtMatmulAlgoCheck" (
        Handle, Handle, Handle, Handle, Handle, Handle, *const Algorithm, *mut AlgorithmResult
    ) -> c_int;
    matmul "cublasLtMatmul" (
        Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void,
        *const c_void, Handle, *mut c_void, Handle, *const Algorithm, *mut c_void, usize,
        sys::CUstream
    ) -> c_int;
}
function_table! {
    /// What capturing needs of the driver beside [`Api`].
    Captures:
    begin "cuStreamBeginCapture_v2" (sys::CUstream, c_uint) -> c_int;
    end "cuStreamEndCapture" (sys::CUstream, *mut sys::CUgraph) -> c_int;
    child_node "cuGraphAddChildGraphNode" (
        *mut sys::CUgraphNode, sys::CUgraph, *const sys::CUgraphNode, usize, sys::CUgraph
    ) -> c_int;
    wait "cuStreamSynchronize" (sys::CUstream) -> c_int;
}

/// `cublasLtMatmulAlgo_t`: a plain value, valid for as long as the library is loaded.
type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Default)]
struct AlgorithmResult {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

impl AlgorithmResult {
    /// Whether the algorithm can be used with the workspace that plans have.
    fn is_usable(&self) -> bool {
        self.state == 0 && self.workspace as u64 <= WORKSPACE
    }
}

/// Constants of the library's headers.
const R_32F: c_int = 0;
const COMPUTE_32F: c_int = 68;
const COMPUTE_32F_FAST_TF32: c_int = 77;
const DESC_TRANS_A: c_int = 3;
const DESC_TRANS_B: c_int = 4;
const DESC_EPILOGUE: c_int = 7;
const DESC_BIAS_POINTER: c_int = 8;
const LAYOUT_BATCH_COUNT: c_int = 5;
const LAYOUT_BATCH_STRIDE: c_int = 6;
const WISH_WORKSPACE: c_int = 1;
/// Of A, B, C and D, in a row.
const WISH_ALIGN: [c_int; 4] = [5, 6, 7, 8];
const EPILOGUE_DEFAULT: c_uint = 1;
const EPILOGUE_RELU: c_uint = 2;
const EPILOGUE_BIAS: c_uint = 4;
const EPILOGUE_RELU_BIAS: c_uint = 6;
/// `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: c_int = 15;

fn check_status(status: c_int) -> Result<(), c_int> {
    if status == 0 { Ok(()) } else { Err(status) }
}

/// A status of the library, as error codes of the driver are reported.
fn library_code(status: c_int) -> Code {
    Code(Code::LIBRARY + status)
}

/// The library with a handle for the context that was current when it was loaded.
pub(super) struct Lt {
    api: Api,
    captures: Captures,
    functions: Functions,
    handle: Handle,
    /// For trials and captures: nothing else is ever put into it.
    stream: sys::CUstream,
    /// The algorithm for products of a shape, or why there is none.
    known: Mutex<Vec<(Shape, Result<Algorithm, String>)>>,
    title: String,
    // Last: functions end with it.
    _library: Library,
}

// SAFETY: handle and stream may be used on any thread whose context is theirs: every call of the driver binds its
// thread first.
unsafe impl Send for Lt {}
// SAFETY: one thread drives a device at a time, the library locks itself, and what is kept here is behind a lock.
unsafe impl Sync for Lt {}

/// The library's description of products, and the layouts of A, B and D; C is D.
struct Described<'l> {
    functions: &'l Functions,
    desc: Handle,
    layouts: [Handle; 3],
}

/// Rows and columns of a matrix as the library has it.
#[derive(Clone, Copy)]
struct MatrixSize {
    rows: u64,
    columns: u64,
}

impl MatrixSize {
    /// A matrix of ours with so many lines of a length, or its transpose.
    fn of_lines(transposed: bool, lines: u64, length: u64) -> Self {
        let (lines, length) = if transposed {
            (length, lines)
        } else {
            (lines, length)
        };
        Self {
            rows: length,
            columns: lines,
        }
    }
}

impl<'l> Described<'l> {
    /// `count` products at once; the bias is at the address `bias`.
    fn new(
        functions: &'l Functions,
        shape: &Shape,
        count: u64,
        bias: Option<Address>,
    ) -> Result<Self, c_int> {
        let mut described = Self {
            functions,
            desc: null_mut(),
            layouts: [null_mut(); 3],
        };
        let compute_type = match shape.math {
            Math::Tf32 => COMPUTE_32F_FAST_TF32,
            _ => COMPUTE_32F,
        };
        // SAFETY: the pointer is to a local.
        check_status(unsafe {
            (functions.desc_create)(&raw mut described.desc, compute_type, R_32F)
        })?;

        // Left and right are exchanged.
        let [left_transposed, right_transposed] = shape.transposed;
        described.set_attribute(DESC_TRANS_A, &c_int::from(right_transposed))?;
        described.set_attribute(DESC_TRANS_B, &c_int::from(left_transposed))?;
        let epilogue = match (shape.bias, shape.relu) {
            (false, false) => EPILOGUE_DEFAULT,
            (false, true) => EPILOGUE_RELU,
            (true, false) => EPILOGUE_BIAS,
            (true, true) => EPILOGUE_RELU_BIAS,
        };
        described.set_attribute(DESC_EPILOGUE, &epilogue)?;
        if let Some(bias) = bias {
            described.set_attribute(DESC_BIAS_POINTER, &bias)?;
        }

        let sizes = [
            MatrixSize::of_lines(right_transposed, shape.depth, shape.columns),
            MatrixSize::of_lines(left_transposed, shape.rows, shape.depth),
            MatrixSize::of_lines(false, shape.rows, shape.columns),
        ];
        let [left_stride, right_stride, out_stride] = shape.strides();
        let strides = [right_stride, left_stride, out_stride];
        for (index, (size, stride)) in sizes.into_iter().zip(strides).enumerate() {
            described.layouts[index] = described.create_layout(size, count, stride)?;
        }
        Ok(described)
    }

    /// Sets an attribute, whose type in the headers is `T`.
    fn set_attribute<T>(&self, attribute: c_int, value: &T) -> Result<(), c_int> {
        let pointer = from_ref(value).cast();
        // SAFETY: the description was created in `new`, which names each attribute with a value of its type; the value
        // outlives the call.
        check_status(unsafe {
            (self.functions.desc_set)(self.desc, attribute, pointer, size_of::<T>())
        })
    }

    fn create_layout(&self, size: MatrixSize, count: u64, stride: u64) -> Result<Handle, c_int> {
        let functions = self.functions;
        let mut layout = null_mut();
        let line_stride = size.rows as i64;
        // SAFETY: the pointer is to a local.
        check_status(unsafe {
            (functions.layout_create)(&raw mut layout, R_32F, size.rows, size.columns, line_stride)
        })?;

        let batch_count = count as i32;
        let batch_stride = stride as i64;
        // SAFETY: the layout was created above; the values have the attributes' types and outlive the calls.
        let set = unsafe {
            let count_pointer = (&raw const batch_count).cast();
            let set_count = (functions.layout_set)(layout, LAYOUT_BATCH_COUNT, count_pointer, 4);
            let stride_pointer = (&raw const batch_stride).cast();
            let set_stride = (functions.layout_set)(layout, LAYOUT_BATCH_STRIDE, stride_pointer, 8);
            check_status(set_count).and(check_status(set_stride))
        };
        if let Err(status) = set {
            // SAFETY: created above, and not known elsewhere.
            unsafe { (functions.layout_destroy)(layout) };
            return Err(status);
        }
        Ok(layout)
    }
}

impl Drop for Described<'_> {
    fn drop(&mut self) {
        for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
            // SAFETY: created by `create_layout`, and destroyed here only.
            unsafe { (self.functions.layout_destroy)(layout) };
        }
        if !self.desc.is_null() {
            // SAFETY: created by `new`, and destroyed here only.
            unsafe { (self.functions.desc_destroy)(self.desc) };
        }
    }
}

/// What the library is asked to consider when it chooses an algorithm.
struct Preference<'l> {
    functions: &'l Functions,
    handle: Handle,
}

impl<'l> Preference<'l> {
    fn new(functions: &'l Functions, shape: &Shape) -> Result<Self, c_int> {
        let mut handle = null_mut();
        // SAFETY: the pointer is to a local.
        check_status(unsafe { (functions.wish_create)(&raw mut handle) })?;
        let preference = Self { functions, handle };

        preference.set_attribute(WISH_WORKSPACE, &WORKSPACE)?;
        let [left, right, out] = shape.aligns();
        for (attribute, align) in WISH_ALIGN.into_iter().zip([right, left, out, out]) {
            preference.set_attribute(attribute, &align)?;
        }
        Ok(preference)
    }

    /// Sets an attribute, whose type in the headers is `T`.
    fn set_attribute<T>(&self, attribute: c_int, value: &T) -> Result<(), c_int> {
        let pointer = from_ref(value).cast();
        // SAFETY: the preference was created in `new`, which names each attribute with a value of its type; the value
        // outlives the call.
        check_status(unsafe {
            (self.functions.wish_set)(self.handle, attribute, pointer, size_of::<T>())
        })
    }
}

impl Drop for Preference<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `new`, and destroyed here only.
        unsafe { (self.functions.wish_destroy)(self.handle) };
    }
}

impl Lt {
    /// Loads the library for the current context; otherwise why there is none, as a clause.
    pub(super) fn load(api: Api) -> Result<Lt, String> {
        let mut driver_version = 0;
        // SAFETY: the pointer is to a local.
        unsafe { (api.driver_version)(&raw mut driver_version) };

        let mut reason = format!("{TITLE} is not installed");
        for (name, min_version) in NAMES {
            if driver_version < min_version {
                continue;
            }
            // SAFETY: the vendor's library, which may be loaded and unloaded at any time.
            let Ok(library) = (unsafe { Library::new(name) }) else {
                continue;
            };
            match Self::open(api, library) {
                Ok(lt) => return Ok(lt),
                Err(clause) => reason = format!("{name} {clause}"),
            }
        }
        Err(reason)
    }

    fn open(api: Api, library: Library) -> Result<Lt, String> {
        const NON_BLOCKING: c_uint = 1;

        // SAFETY: it has the vendor's name.
        let functions =
            unsafe { Functions::look_up(&library) }.map_err(|symbol| format!("has no {symbol}"))?;
        // SAFETY: the driver is loaded, as its functions in `api` prove.
        let driver = unsafe { sys::culib() };
        // SAFETY: it is the driver.
        let captures = unsafe { Captures::look_up(driver) }
            .map_err(|symbol| format!("needs {symbol} of a newer driver"))?;

        let mut handle = null_mut();
        // SAFETY: the pointer is to a local; without a current context the call fails.
        check_status(unsafe { (functions.create)(&raw mut handle) }).map_err(|status| {
            format!(
                "cannot be used: cublasLtCreate reports {}",
                library_code(status)
            )
        })?;
        let mut stream = null_mut();
        // SAFETY: the pointer is to a local; without a current context the call fails.
        let code = unsafe { (api.stream_create)(&raw mut stream, NON_BLOCKING) };
        if code != 0 {
            // SAFETY: created above, and not known elsewhere.
            unsafe { (functions.destroy)(handle) };
            return Err(format!(
                "has no stream: cuStreamCreate reports {}",
                Code(code)
            ));
        }

        // SAFETY: has no preconditions.
        let version = unsafe { (functions.version)() };
        Ok(Lt {
            api,
            captures,
            functions,
            handle,
            stream,
            known: Mutex::default(),
            title: format!("{TITLE} {version}"),
            _library: library,
        })
    }

    /// The library and its version.
    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// The algorithm for products of a shape, or why there is none, as a clause. The library is asked once.
    pub(super) fn choose_algorithm(
        &self,
        shape: &Shape,
    ) -> Result<Result<Algorithm, String>, CallError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, chosen)) = known.iter().find(|(other, _)| other == shape) {
            return Ok(chosen.clone());
        }

        let tried = match self.ask_heuristic(shape) {
            Ok(algorithm) => self.try_out(shape, &algorithm)?.map(|()| algorithm),
            Err(status) => Err(status),
        };
        let chosen = tried
            .map_err(|status| format!("{} cannot do it: {}", self.title, library_code(status)));
        known.push((*shape, chosen.clone()));
        Ok(chosen)
    }

    /// The library's own choice for the products of one firing.
    fn ask_heuristic(&self, shape: &Shape) -> Result<Algorithm, c_int> {
        // The library looks at whether there is an address, and at its alignment.
        let bias = shape.bias.then_some(256);
        let described = Described::new(&self.functions, shape, shape.batches, bias)?;
        let preference = Preference::new(&self.functions, shape)?;

        let mut found = AlgorithmResult::default();
        let mut found_count = 0;
        let [a, b, d] = described.layouts;
        // SAFETY: description, layouts and preference exist until the end of this function; one result is requested,
        // and there is room for one.
        check_status(unsafe {
            (self.functions.heuristic)(
                self.handle,
                described.desc,
                a,
                b,
                d,
                d,
                preference.handle,
                1,
                from_mut(&mut found),
                &raw mut found_count,
            )
        })?;
        check_status(found.state)?;
        if found_count == 0 || !found.is_usable() {
            return Err(NOT_SUPPORTED);
        }
        Ok(found.algorithm)
    }

    /// Does the products of one firing once, on memory of any content: this loads kernels, which must not happen during
    /// a capture, and shows what does not work before it is part of a graph.
    fn try_out(
        &self,
        shape: &Shape,
        algorithm: &Algorithm,
    ) -> Result<Result<(), c_int>, CallError> {
        let failed = |site, code| CallError {
            site,
            code: Code(code),
        };
        let spans = shape.spans(shape.batches).into_iter();
        let longest = spans.max().unwrap_or(0).max(shape.columns);
        let operand_bytes = (4 * longest).next_multiple_of(256);
        let mut memory = 0;
        // SAFETY: the pointer is to a local.
        let code =
            unsafe { (self.api.alloc)(&raw mut memory, (operand_bytes + WORKSPACE) as usize) };
        if code != 0 {
            return Err(failed(Site::Alloc, code));
        }

        // All operands share their memory: what the products are does not matter.
        let product = Product {
            shape: *shape,
            left: memory,
            right: memory,
            bias: shape.bias.then_some(memory),
            out: memory,
            scratch: memory + operand_bytes,
        };
        // SAFETY: the memory is as long as the longest operand, with the workspace behind it, and freed below, after
        // the wait.
        let done = unsafe { self.put_products(&product, shape.batches, 0, algorithm) };
        // SAFETY: the stream is this library's, and closed with it.
        let code = unsafe { (self.captures.wait)(self.stream) };
        if code != 0 {
            // The memory may still be in use.
            return Err(failed(Site::Product, code));
        }
        // SAFETY: allocated above, and nothing uses it after the wait.
        unsafe { (self.api.free)(memory) };
        Ok(done)
    }

    /// Puts `count` products into the stream, from number `first` on.
    ///
    /// # Safety
    /// Operands are as long as the shape says for all of these products, and they exist until the stream, or the graph
    /// that the products are captured into, no longer uses them.
    unsafe fn put_products(
        &self,
        product: &Product<Address>,
        count: u64,
        first: u64,
        algorithm: &Algorithm,
    ) -> Result<(), c_int> {
        let shape = &product.shape;
        let described = Described::new(&self.functions, shape, count, product.bias)?;
        let [a, b, d] = described.layouts;
        let [left_stride, right_stride, out_stride] = shape.strides();
        let matrix = |address: Address, stride: u64| (address + 4 * first * stride) as *mut c_void;
        let left = matrix(product.left, left_stride);
        let right = matrix(product.right, right_stride);
        let out = matrix(product.out, out_stride);
        let alpha = &raw const shape.alpha;
        let beta = &raw const ZERO;
        // SAFETY: handle, stream, description and layouts exist during the call; operands are as long as the layouts
        // say and exist long enough, as the caller promises.
        check_status(unsafe {
            (self.functions.matmul)(
                self.handle,
                described.desc,
                alpha.cast(),
                right,
                a,
                left,
                b,
                beta.cast(),
                out,
                d,
                out,
                d,
                algorithm,
                product.scratch as *mut c_void,
                WORKSPACE as usize,
                self.stream,
            )
        })
    }

    /// Whether an algorithm does `count` products at once.
    fn supports_count(
        &self,
        product: &Product<Address>,
        count: u64,
        algorithm: &Algorithm,
    ) -> bool {
        let described = Described::new(&self.functions, &product.shape, count, product.bias);
        let Ok(described) = described else {
            return false;
        };
        let [a, b, d] = described.layouts;
        let mut found = AlgorithmResult::default();
        // SAFETY: handle, description and layouts exist during the call; there is room for the result.
        let status = unsafe {
            (self.functions.check)(
                self.handle,
                described.desc,
                a,
                b,
                d,
                d,
                algorithm,
                from_mut(&mut found),
            )
        };
        status == 0 && found.is_usable()
    }

    /// A node of so many products in a row.
    ///
    /// # Safety
    /// The graph exists and the nodes are its own; operands are as for [`super::driver::Driver::add_product_node`].
    pub(super) unsafe fn add_node(
        &self,
        graph: Graph,
        after: &[Node],
        product: &Product<Address>,
        count: u64,
    ) -> Result<Node, CallError> {
        let algorithm = self.choose_algorithm(&product.shape)?;
        let algorithm = algorithm.map_err(|_| CallError {
            site: Site::Library,
            code: library_code(NOT_SUPPORTED),
        })?;

        // SAFETY: operands are long enough and exist as long as the graph, as the caller promises.
        let captured = unsafe { self.capture_products(product, count, &algorithm) }?;
        let added = add_node(graph, after, Site::Product, |node, graph, after| {
            // SAFETY: the parent graph exists and the nodes are its own, as the caller promises; the driver copies the
            // captured graph, which exists.
            unsafe {
                (self.captures.child_node)(node, graph, after.as_ptr(), after.len(), captured)
            }
        });
        // SAFETY: captured above, and destroyed here only.
        unsafe { (self.api.graph_destroy)(captured) };
        added
    }

    /// A graph of so many products in a row, which the caller destroys.
    ///
    /// # Safety
    /// As for [`Self::put_products`], for all products.
    unsafe fn capture_products(
        &self,
        product: &Product<Address>,
        count: u64,
        algorithm: &Algorithm,
    ) -> Result<sys::CUgraph, CallError> {
        // What the library loads or asks meanwhile does not concern the capture.
        const RELAXED: c_uint = 2;
        // The algorithm was chosen for one firing: what it cannot do for all at once, it does one by one.
        let batch = if self.supports_count(product, count, algorithm) {
            count
        } else {
            product.shape.batches
        };

        // SAFETY: the stream is this library's, and nothing is in it: `try_out` has waited.
        check_code(Site::Product, unsafe {
            (self.captures.begin)(self.stream, RELAXED)
        })?;
        let captured_all = (0..count).step_by(batch as usize).try_for_each(|first| {
            let batch_len = batch.min(count - first);
            // SAFETY: as the caller promises, for these products among all.
            unsafe { self.put_products(product, batch_len, first, algorithm) }
        });
        let mut captured = null_mut();
        // SAFETY: the capture has begun; the pointer is to a local.
        let ended = unsafe { (self.captures.end)(self.stream, &raw mut captured) };

        let result = captured_all
            .map_err(|status| CallError {
                site: Site::Product,
                code: library_code(status),
            })
            .and(check_code(Site::Product, ended));
        if result.is_err() && !captured.is_null() {
            // SAFETY: captured above, and not known elsewhere.
            unsafe { (self.api.graph_destroy)(captured) };
        }
        result.map(|()| captured)
    }

    /// Destroys handle and stream.
    ///
    /// # Safety
    /// The context is current, nothing is in use, and nothing is called later.
    pub(super) unsafe fn close(&self) {
        // SAFETY: both are this library's, and unused from now on, as the caller promises.
        unsafe {
            (self.functions.destroy)(self.handle);
            (self.api.stream_destroy)(self.stream);
        }
    }
}

/// The factor of what is in the result already.
static ZERO: f32 = 0.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers' sizes, which the library reads and writes by.
    #[test]
    fn results_have_the_size_of_the_headers() {
        assert_eq!(size_of::<Algorithm>(), 64);
        assert_eq!(size_of::<AlgorithmResult>(), 96);
        assert_eq!(std::mem::offset_of!(AlgorithmResult, workspace), 64);
        assert_eq!(std::mem::offset_of!(AlgorithmResult, state), 72);
    }
}
