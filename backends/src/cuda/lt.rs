//! cuBLASLt as it is: the vendor's products of matrices, captured into graphs. The library is looked for at run time by
//! its names, every function by its own, so that what is missing is a clause for people and not a panic.
//!
//! Its matrices lie column by column and ours row by row, which is the same as transposed: it is asked for the
//! transposed product, with left and right exchanged.
#![expect(unsafe_code, reason = "calls cuBLASLt and the CUDA driver")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{from_mut, from_ref, null_mut};
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys;
use libloading::Library;

use super::driver::{Address, Graph, Node};
use super::error::{Code, Said, Site};
use super::sys::Api;
use crate::kernels::Math;
use crate::kernels::library::{Product, Shape, TITLE, WORKSPACE};

/// Libraries, and the driver's version from which on each runs; the newest first.
const NAMES: [(&str, i32); 2] = [("libcublasLt.so.13", 13_000), ("libcublasLt.so.12", 12_000)];

/// The library's objects, which nobody looks into.
type Handle = *mut c_void;

/// A table of functions of a library.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident: $($field:ident $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        $(#[$doc])*
        struct $table {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// Looks them up; else the name of one that is missing.
            ///
            /// # Safety
            /// The library is the vendor's.
            unsafe fn look_up(library: &Library) -> Result<Self, &'static str> {
                Ok(Self { $($field: {
                    type Wanted = unsafe extern "C" fn($($argument),*) -> $result;
                    // SAFETY: the vendor's function of that name has this signature.
                    match unsafe { library.get::<Wanted>($symbol.as_bytes()) } {
                        Ok(found) => *found,
                        Err(_) => return Err($symbol),
                    }
                }),* })
            }
        }
    };
}
functions! {
    /// What is asked of the library: since its version 11, and in all since.
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
        Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Found, *mut c_int
    ) -> c_int;
    check "cublasLtMatmulAlgoCheck" (
        Handle, Handle, Handle, Handle, Handle, Handle, *const Algorithm, *mut Found
    ) -> c_int;
    matmul "cublasLtMatmul" (
        Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void,
        *const c_void, Handle, *mut c_void, Handle, *const Algorithm, *mut c_void, usize,
        sys::CUstream
    ) -> c_int;
}
functions! {
    /// What capturing needs of the driver beside [`Api`].
    Captures:
    begin "cuStreamBeginCapture_v2" (sys::CUstream, c_uint) -> c_int;
    end "cuStreamEndCapture" (sys::CUstream, *mut sys::CUgraph) -> c_int;
    child_node "cuGraphAddChildGraphNode" (
        *mut sys::CUgraphNode, sys::CUgraph, *const sys::CUgraphNode, usize, sys::CUgraph
    ) -> c_int;
    wait "cuStreamSynchronize" (sys::CUstream) -> c_int;
}

/// `cublasLtMatmulAlgo_t`: a plain value, good for as long as the library is loaded.
type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Default)]
struct Found {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// Numbers of the library's headers.
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

fn ok(status: c_int) -> Result<(), c_int> {
    if status == 0 { Ok(()) } else { Err(status) }
}

/// A status of the library's, as the driver's numbers are told.
fn code(status: c_int) -> Code {
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
    /// What products of a shape are done by, or why they are not.
    known: Mutex<Vec<(Shape, Result<Algorithm, String>)>>,
    title: String,
    // Last: functions end with it.
    _library: Library,
}

// SAFETY: as for the driver's handles: whoever uses them has bound its thread to the context; the library locks itself.
unsafe impl Send for Lt {}
// SAFETY: as above; one thread drives a device at a time, and what is kept here is behind a lock.
unsafe impl Sync for Lt {}

/// A description of products, and the layouts of A, B and D; C is D.
struct Described<'l> {
    functions: &'l Functions,
    desc: Handle,
    layouts: [Handle; 3],
}

impl<'l> Described<'l> {
    /// `count` products at once; the bias lies at `bias`.
    fn new(
        functions: &'l Functions,
        shape: &Shape,
        count: u64,
        bias: Option<Address>,
    ) -> Result<Self, c_int> {
        let mut this = Self {
            functions,
            desc: null_mut(),
            layouts: [null_mut(); 3],
        };
        let compute = match shape.math {
            Math::Tf32 => COMPUTE_32F_FAST_TF32,
            _ => COMPUTE_32F,
        };
        // SAFETY: the pointer is to a local.
        ok(unsafe { (functions.desc_create)(&raw mut this.desc, compute, R_32F) })?;
        let [left, right] = shape.transposed;
        this.set(DESC_TRANS_A, &c_int::from(right))?;
        this.set(DESC_TRANS_B, &c_int::from(left))?;
        let epilogue = match (shape.bias, shape.relu) {
            (false, false) => EPILOGUE_DEFAULT,
            (false, true) => EPILOGUE_RELU,
            (true, false) => EPILOGUE_BIAS,
            (true, true) => EPILOGUE_RELU_BIAS,
        };
        this.set(DESC_EPILOGUE, &epilogue)?;
        if let Some(bias) = bias {
            this.set(DESC_BIAS_POINTER, &bias)?;
        }
        let (rows, columns, depth) = (shape.rows, shape.columns, shape.depth);
        // Lines and length of a line of ours: the other way round for the library.
        let lies = |transposed: bool, lines: u64, length: u64| {
            if transposed {
                (length, lines)
            } else {
                (lines, length)
            }
        };
        let matrices = [
            lies(right, depth, columns),
            lies(left, rows, depth),
            (rows, columns),
        ];
        let [left_step, right_step, out_step] = shape.strides();
        let steps = [right_step, left_step, out_step];
        for (at, ((lines, length), step)) in matrices.into_iter().zip(steps).enumerate() {
            this.layouts[at] = this.layout(lines, length, count, step)?;
        }
        Ok(this)
    }

    fn set<T>(&self, attribute: c_int, value: &T) -> Result<(), c_int> {
        let at = from_ref(value).cast();
        // SAFETY: the description is alive; the value outlives the call, and has the size that the attribute has.
        ok(unsafe { (self.functions.desc_set)(self.desc, attribute, at, size_of::<T>()) })
    }

    fn layout(&self, lines: u64, length: u64, count: u64, step: u64) -> Result<Handle, c_int> {
        let (functions, mut layout) = (self.functions, null_mut());
        let create = functions.layout_create;
        // SAFETY: the pointer is to a local.
        ok(unsafe { create(&raw mut layout, R_32F, length, lines, length as i64) })?;
        let (count, step) = (count as i32, step as i64);
        let set = |attribute: c_int, at: *const c_void, bytes: usize| {
            // SAFETY: the layout is alive; the values outlive the calls, and have the attributes' sizes.
            ok(unsafe { (functions.layout_set)(layout, attribute, at, bytes) })
        };
        let done = set(LAYOUT_BATCH_COUNT, (&raw const count).cast(), 4)
            .and_then(|()| set(LAYOUT_BATCH_STRIDE, (&raw const step).cast(), 8));
        if let Err(status) = done {
            // SAFETY: made above, and nobody else has it.
            unsafe { (functions.layout_destroy)(layout) };
            return Err(status);
        }
        Ok(layout)
    }
}

impl Drop for Described<'_> {
    fn drop(&mut self) {
        for layout in self.layouts.into_iter().filter(|l| !l.is_null()) {
            // SAFETY: made by `layout`, given back once.
            unsafe { (self.functions.layout_destroy)(layout) };
        }
        if !self.desc.is_null() {
            // SAFETY: made by `new`, given back once.
            unsafe { (self.functions.desc_destroy)(self.desc) };
        }
    }
}

impl Lt {
    /// Loads the library for the current context; else why there is none, as a clause.
    pub(super) fn load(api: Api) -> Result<Lt, String> {
        let mut version = 0;
        // SAFETY: the pointer is to a local.
        unsafe { (api.driver_version)(&raw mut version) };
        let mut why = format!("{TITLE} is not installed");
        for (name, _) in NAMES.iter().filter(|(_, least)| version >= *least) {
            // SAFETY: the vendor's library, which may be loaded and unloaded at any time.
            let Ok(library) = (unsafe { Library::new(*name) }) else {
                continue;
            };
            match Self::open(api, library) {
                Ok(lt) => return Ok(lt),
                Err(what) => why = format!("{name} {what}"),
            }
        }
        Err(why)
    }

    fn open(api: Api, library: Library) -> Result<Lt, String> {
        const NON_BLOCKING: c_uint = 1;
        let lacks = |symbol| format!("has no {symbol}");
        // SAFETY: it has the vendor's name.
        let functions = unsafe { Functions::look_up(&library) }.map_err(lacks)?;
        // SAFETY: the driver is loaded, or there would be no context.
        let driver = unsafe { sys::culib() };
        // SAFETY: it is the driver.
        let captures = unsafe { Captures::look_up(driver) }
            .map_err(|symbol| format!("needs {symbol} of a newer driver"))?;
        let (mut handle, mut stream) = (null_mut(), null_mut());
        // SAFETY: a context is current; the pointer is to a local.
        ok(unsafe { (functions.create)(&raw mut handle) })
            .map_err(|status| format!("cannot be used: cublasLtCreate says {}", code(status)))?;
        // SAFETY: as above.
        let made = unsafe { (api.stream_create)(&raw mut stream, NON_BLOCKING) };
        if made != 0 {
            // SAFETY: created above.
            unsafe { (functions.destroy)(handle) };
            return Err(format!("has no stream: cuStreamCreate says {}", Code(made)));
        }
        // SAFETY: has no preconditions.
        let version = unsafe { (functions.version)() };
        let title = format!("{TITLE} {version}");
        let known = Mutex::default();
        Ok(Lt {
            api,
            captures,
            functions,
            handle,
            stream,
            known,
            title,
            _library: library,
        })
    }

    /// The library and its version.
    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// What products of a shape are done by, or why they are not, as a clause. The library is asked once.
    pub(super) fn algorithm(&self, shape: &Shape) -> Result<Result<Algorithm, String>, Said> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = known.iter().find(|(s, _)| s == shape) {
            return Ok(found.clone());
        }
        let refuse = |status| format!("{} cannot do it: {}", self.title, code(status));
        let found = match self.ask(shape) {
            Ok(algorithm) => self
                .try_out(shape, &algorithm)?
                .map(|()| algorithm)
                .map_err(refuse),
            Err(status) => Err(refuse(status)),
        };
        known.push((*shape, found.clone()));
        Ok(found)
    }

    /// The library's own choice for the products of one firing.
    fn ask(&self, shape: &Shape) -> Result<Algorithm, c_int> {
        const NOT_SUPPORTED: c_int = 15;
        let functions = &self.functions;
        // It looks at whether there is an address, and at how it is aligned.
        let bias = shape.bias.then_some(256);
        let described = Described::new(functions, shape, shape.batches, bias)?;
        let mut wish = null_mut();
        // SAFETY: the pointer is to a local.
        ok(unsafe { (functions.wish_create)(&raw mut wish) })?;
        let set = |attribute: c_int, at: *const c_void, bytes: usize| {
            // SAFETY: the wish is alive; the values outlive the calls, and have the attributes' sizes.
            ok(unsafe { (functions.wish_set)(wish, attribute, at, bytes) })
        };
        let [left, right, out] = shape.aligns();
        let workspace = WORKSPACE;
        let mut done = set(WISH_WORKSPACE, (&raw const workspace).cast(), 8);
        for (attribute, align) in WISH_ALIGN.iter().zip([right, left, out, out]) {
            done = done.and_then(|()| set(*attribute, (&raw const align).cast(), 4));
        }
        let (mut found, mut count) = (Found::default(), 0);
        let [a, b, d] = described.layouts;
        let result = done.and_then(|()| {
            let to = from_mut(&mut found);
            // SAFETY: everything is alive; one result is asked for, and there is room for one.
            ok(unsafe {
                (functions.heuristic)(
                    self.handle,
                    described.desc,
                    a,
                    b,
                    d,
                    d,
                    wish,
                    1,
                    to,
                    &raw mut count,
                )
            })
        });
        // SAFETY: created above, given back once.
        unsafe { (functions.wish_destroy)(wish) };
        result?;
        ok(found.state)?;
        if count == 0 || found.workspace as u64 > WORKSPACE {
            return Err(NOT_SUPPORTED);
        }
        Ok(found.algorithm)
    }

    /// Does products of one firing once, on memory of any content: kernels are loaded then, which captures do not like,
    /// and what cannot be done is known before a graph is made of it.
    fn try_out(&self, shape: &Shape, algorithm: &Algorithm) -> Result<Result<(), c_int>, Said> {
        let longest = shape.spans(shape.batches).into_iter().max().unwrap_or(0);
        let room = (4 * longest.max(shape.columns)).next_multiple_of(256);
        let mut at = 0;
        // SAFETY: the pointer is to a local.
        let code = unsafe { (self.api.alloc)(&raw mut at, (room + WORKSPACE) as usize) };
        if code != 0 {
            return Err(Said {
                site: Site::Alloc,
                code: Code(code),
            });
        }
        let product = Product {
            shape: *shape,
            left: at,
            right: at,
            bias: shape.bias.then_some(at),
            out: at,
            scratch: at + room,
        };
        let done = self.multiply(&product, shape.batches, 0, algorithm);
        // SAFETY: the stream is alive.
        let ended = unsafe { (self.captures.wait)(self.stream) };
        if ended != 0 {
            // What was given may still be in use.
            return Err(Said {
                site: Site::Product,
                code: Code(ended),
            });
        }
        // SAFETY: given above, and nothing uses it any more.
        unsafe { (self.api.free)(at) };
        Ok(done)
    }

    /// Puts `count` products into the stream, from number `first` on.
    fn multiply(
        &self,
        product: &Product<Address>,
        count: u64,
        first: u64,
        algorithm: &Algorithm,
    ) -> Result<(), c_int> {
        let (shape, functions) = (&product.shape, &self.functions);
        let described = Described::new(functions, shape, count, product.bias)?;
        let [a, b, d] = described.layouts;
        let [left_step, right_step, out_step] = shape.strides();
        let place = |at: Address, step: u64| (at + 4 * first * step) as *mut c_void;
        let (left, right) = (
            place(product.left, left_step),
            place(product.right, right_step),
        );
        let out = place(product.out, out_step);
        let (alpha, beta) = (shape.alpha, 0.0_f32);
        let (alpha, beta) = ((&raw const alpha).cast(), (&raw const beta).cast());
        let scratch = product.scratch as *mut c_void;
        // SAFETY: everything is alive; the memory is as long as the layouts say, which callers have seen to, and they
        // hold it until the stream, or the graph that it is captured into, is done with it.
        ok(unsafe {
            (functions.matmul)(
                self.handle,
                described.desc,
                alpha,
                right,
                a,
                left,
                b,
                beta,
                out,
                d,
                out,
                d,
                algorithm,
                scratch,
                WORKSPACE as usize,
                self.stream,
            )
        })
    }

    /// Whether an algorithm does `count` products at once.
    fn does(&self, product: &Product<Address>, count: u64, algorithm: &Algorithm) -> bool {
        let described = Described::new(&self.functions, &product.shape, count, product.bias);
        let Ok(described) = described else {
            return false;
        };
        let ([a, b, d], mut found) = (described.layouts, Found::default());
        let (check, to) = (self.functions.check, from_mut(&mut found));
        // SAFETY: everything is alive; there is room for the result.
        let status = unsafe { check(self.handle, described.desc, a, b, d, d, algorithm, to) };
        status == 0 && found.state == 0 && found.workspace as u64 <= WORKSPACE
    }

    /// A node of so many products in a row.
    pub(super) fn node(
        &self,
        graph: Graph,
        after: &[Node],
        product: &Product<Address>,
        count: u64,
    ) -> Result<Node, Said> {
        // Whatever the library loads or asks on its way is no matter of this graph.
        const RELAXED: c_uint = 2;
        let said = |site, code| Said { site, code };
        let algorithm = self.algorithm(&product.shape)?;
        let algorithm = algorithm.map_err(|_| said(Site::Library, code(15)))?;
        // The algorithm was chosen for one firing: what it cannot do for all at once it does one by one.
        let most = if self.does(product, count, &algorithm) {
            count
        } else {
            product.shape.batches
        };
        let driver = |status: c_int| match status {
            0 => Ok(()),
            _ => Err(said(Site::Product, Code(status))),
        };
        // SAFETY: the stream is alive, and nothing is in it.
        driver(unsafe { (self.captures.begin)(self.stream, RELAXED) })?;
        let done = (0..count).step_by(most as usize).try_for_each(|first| {
            self.multiply(product, most.min(count - first), first, &algorithm)
        });
        let mut captured = null_mut();
        // SAFETY: the capture has begun; the pointer is to a local.
        let ended = driver(unsafe { (self.captures.end)(self.stream, &raw mut captured) });
        let after: Vec<sys::CUgraphNode> = after.iter().map(|n| n.0 as sys::CUgraphNode).collect();
        let (mut node, count) = (null_mut(), after.len());
        let added = done
            .map_err(|status| said(Site::Product, code(status)))
            .and(ended)
            .and_then(|()| {
                let parent = graph.0 as sys::CUgraph;
                // SAFETY: both graphs and the nodes are alive; the driver copies the captured one.
                driver(unsafe {
                    (self.captures.child_node)(
                        &raw mut node,
                        parent,
                        after.as_ptr(),
                        count,
                        captured,
                    )
                })
            });
        if !captured.is_null() {
            // SAFETY: captured above, given back once.
            unsafe { (self.api.graph_destroy)(captured) };
        }
        added.map(|()| Node(node as u64))
    }

    /// Gives everything back; the context is current, and nothing is in use.
    pub(super) fn close(&self) {
        // SAFETY: the caller's promise; nobody asks anything after this.
        unsafe {
            (self.functions.destroy)(self.handle);
            (self.api.stream_destroy)(self.stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The headers' sizes, which the library reads and writes by.
    #[test]
    fn results_have_the_size_of_the_headers() {
        assert_eq!(size_of::<Algorithm>(), 64);
        assert_eq!(size_of::<Found>(), 96);
        assert_eq!(std::mem::offset_of!(Found, workspace), 64);
        assert_eq!(std::mem::offset_of!(Found, state), 72);
    }
}
