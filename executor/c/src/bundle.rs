//! Bundles: opened, made, saved, and what streams they have.
#![expect(
    unsafe_code,
    reason = "exports functions under their C names, which are given pointers"
)]
#![expect(non_camel_case_types, reason = "names as C programs write them")]

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;

use bytes::Bytes;
use zbmd_executor::Engine;
use zbmd_executor::embed::{self, StreamInfo};
use zbmd_ir::DType;
use zbmd_ir::bundle::{self, Meta, OpenError};
use zbmd_ir::limits::MAX_STRUCTURE_BYTES;
use zbmd_ir::verify::VerifiedModes;

use crate::border::{input, needed, path, put};
use crate::handles;
use crate::options::zbmd_compile_options;
use crate::status::{Failure, c_string, guard, zbmd_status};
use zbmd_status::*;

/// A program that is ready to run, any number of times.
pub struct zbmd_bundle {
    _opaque: [u8; 0],
}

/// A source or a sink of a bundle. Its texts and its shape are valid until the bundle is closed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct zbmd_stream {
    /// Its name.
    pub name: *const c_char,
    /// Whether tokens go in; they come out otherwise.
    pub is_source: bool,
    /// Type of a token's elements: `f32`, `f64`, `f16`, `bf16`, `i8`, `u8`, `i16`, `i32`, `i64`, `bool` (a byte, 0 or
    /// 1), or `c32` (two `f32`, real part first); in the machine's byte order.
    pub dtype: *const c_char,
    /// Dimensions of a token, slowest first, so many as `rank`.
    pub shape: *const u32,
    /// 0 for a scalar.
    pub rank: usize,
    /// Bytes of a token.
    pub token_bytes: usize,
    /// Whether a token is a burst: of `shape[0]` items of the shape `shape[1..]` only some are there. It begins with the
    /// index of the first item's sample (`int64_t`), the number of items (`uint32_t`) and four bytes of zero; the items
    /// follow, then zeros.
    pub is_burst: bool,
    /// Tokens of one iteration of the model, of its first mode if it has several: less than that is not processed.
    pub tokens_per_iteration: u64,
    /// Tokens of one second, or 0 if the model does not say.
    pub sample_rate: f64,
}

struct Stream {
    name: CString,
    info: StreamInfo,
}

/// What a bundle's handle stands for.
pub(crate) struct Bundle {
    pub(crate) engine: Engine,
    streams: Vec<Stream>,
}

impl Bundle {
    fn open(modes: VerifiedModes) -> Result<usize, Failure> {
        let engine = Engine::with_modes(modes, &zbmd_backends::standard_registry())?;
        // Streams are the same in all modes, but for how many tokens an iteration has.
        let stream_infos = embed::streams(&engine.program().graph).into_iter();
        let streams = stream_infos
            .map(|info| Stream {
                name: c_string(&info.name),
                info,
            })
            .collect();
        handles::open(Arc::new(Self { engine, streams }))
    }
}

fn refused(error: OpenError) -> Failure {
    Failure::classed(embed::open_error_class(&error), error)
}

fn dtype_name(dtype: DType) -> *const c_char {
    let c_name = match dtype {
        DType::F32 => c"f32",
        DType::F64 => c"f64",
        DType::F16 => c"f16",
        DType::Bf16 => c"bf16",
        DType::I8 => c"i8",
        DType::U8 => c"u8",
        DType::I16 => c"i16",
        DType::I32 => c"i32",
        DType::I64 => c"i64",
        DType::Bool => c"bool",
        DType::C32 => c"c32",
    };
    c_name.as_ptr()
}

/// Opens a bundle that `zbmdc` or `zbmd_bundle_save` wrote, and checks it. The file is mapped: it may be replaced, but
/// not changed in place, while the bundle is open or a session of it runs.
///
/// # Safety
/// `file` ends with a NUL; a `zbmd_bundle *` can be written to `bundle`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_bundle_open(
    file: *const c_char,
    bundle: *mut *mut zbmd_bundle,
) -> zbmd_status {
    guard(|| {
        let bundle_place = needed(bundle, "bundle")?;
        // SAFETY: the caller's promise.
        let file_path = unsafe { path(file, "file") }?;
        let file_failure = |failure: Failure| {
            Failure::new(
                failure.status,
                format!("{}: {}", file_path.display(), failure.text),
            )
        };
        let modes = bundle::open_modes(&file_path).map_err(|error| file_failure(refused(error)))?;
        let handle = Bundle::open(modes).map_err(file_failure)?;

        // SAFETY: the caller's promise.
        unsafe { put(bundle_place, std::ptr::without_provenance_mut(handle)) };
        Ok(ZBMD_OK)
    })
}

/// Opens a bundle that lies in memory, which may be given back afterwards: it is copied.
///
/// # Safety
/// `bytes` bytes can be read at `data`; a `zbmd_bundle *` can be written to `bundle`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_bundle_from_memory(
    data: *const c_void,
    bytes: usize,
    bundle: *mut *mut zbmd_bundle,
) -> zbmd_status {
    guard(|| {
        let bundle_place = needed(bundle, "bundle")?;
        // SAFETY: the caller's promise.
        let owned_bytes = Bytes::from(unsafe { input(data, bytes) }?.to_vec());
        let modes = bundle::modes_of_bytes(owned_bytes, MAX_STRUCTURE_BYTES).map_err(refused)?;
        let handle = Bundle::open(modes)?;

        // SAFETY: the caller's promise.
        unsafe { put(bundle_place, std::ptr::without_provenance_mut(handle)) };
        Ok(ZBMD_OK)
    })
}

/// Compiles a model. `model` is a file, `.ron` or `.onnx`; with a `text` that is not NULL, a model in RON, `model` only
/// stands for it in messages, and files that the text names are looked for beside it. `options` may be NULL.
///
/// A library that was built without the feature `compile` answers `ZBMD_USAGE`.
///
/// # Safety
/// `model` and `text` end with a NUL; `options` was initialised by `zbmd_compile_options_init`; a `zbmd_bundle *` can
/// be written to `bundle`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_bundle_compile(
    model: *const c_char,
    text: *const c_char,
    options: *const zbmd_compile_options,
    bundle: *mut *mut zbmd_bundle,
) -> zbmd_status {
    guard(|| {
        let bundle_place = needed(bundle, "bundle")?;
        // SAFETY: the caller's promise.
        let modes = unsafe { compiled(model, text, options) }?;
        let handle = Bundle::open(modes)?;

        // SAFETY: the caller's promise.
        unsafe { put(bundle_place, std::ptr::without_provenance_mut(handle)) };
        Ok(ZBMD_OK)
    })
}

/// # Safety
/// As [`zbmd_bundle_compile`].
#[cfg(feature = "compile")]
unsafe fn compiled(
    model: *const c_char,
    text: *const c_char,
    options: *const zbmd_compile_options,
) -> Result<VerifiedModes, Failure> {
    use crate::border::optional_text;
    use zbmd_compiler::{compile_file, compile_str};
    // SAFETY: the caller's promise.
    let model_path = unsafe { path(model, "model") }?;
    // SAFETY: as above.
    let model_text = unsafe { optional_text(text, "text") }?;
    // SAFETY: as above.
    let compile_options = unsafe { crate::options::to_compile(options) }?;

    let compile_result = match model_text {
        Some(text) => {
            // Files that the text names are looked for beside the model that it stands for.
            let folder = model_path.parent().unwrap_or(std::path::Path::new(""));
            compile_str(
                &model_path.display().to_string(),
                text,
                folder,
                &compile_options,
            )
        }
        None => compile_file(&model_path, &compile_options),
    };
    Ok(compile_result.map_err(compile_failure)?.into_modes())
}

#[cfg(feature = "compile")]
fn compile_failure(diagnostics: zbmd_compiler::Diagnostics) -> Failure {
    let status = if diagnostics.only_files() {
        ZBMD_FILE
    } else {
        ZBMD_MODEL
    };
    Failure::new(status, diagnostics.to_string())
}

/// # Safety
/// None: it follows no pointer.
#[cfg(not(feature = "compile"))]
unsafe fn compiled(
    _model: *const c_char,
    _text: *const c_char,
    _options: *const zbmd_compile_options,
) -> Result<VerifiedModes, Failure> {
    Err(Failure::usage(
        "this library was built without the feature `compile`: compile with `zbmdc`, and open the bundle",
    ))
}

/// Writes a bundle; the file appears whole or not at all.
///
/// # Safety
/// `file` ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_bundle_save(
    bundle: *const zbmd_bundle,
    file: *const c_char,
) -> zbmd_status {
    guard(|| {
        let open_bundle: Arc<Bundle> = handles::get(bundle.addr())?;
        // SAFETY: the caller's promise.
        let file_path = unsafe { path(file, "file") }?;
        let modes = open_bundle.engine.verified_modes();
        bundle::write_modes(&file_path, modes, &Meta::new()).map_err(|error| {
            Failure::new(ZBMD_FILE, format!("{}: {error}", file_path.display()))
        })?;
        Ok(ZBMD_OK)
    })
}

/// Tells of a source or a sink: first all sources and then all sinks, from 0 on; `ZBMD_ENDED` after the last.
///
/// # Safety
/// A `zbmd_stream` can be written to `stream`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_bundle_stream(
    bundle: *const zbmd_bundle,
    index: usize,
    stream: *mut zbmd_stream,
) -> zbmd_status {
    guard(|| {
        let stream_place = needed(stream, "stream")?;
        let open_bundle: Arc<Bundle> = handles::get(bundle.addr())?;
        let Some(Stream { name, info }) = open_bundle.streams.get(index) else {
            return Ok(ZBMD_ENDED);
        };

        let description = zbmd_stream {
            name: name.as_ptr(),
            is_source: info.is_source,
            dtype: dtype_name(info.token.dtype),
            shape: info.token.shape.as_ptr(),
            rank: info.token.shape.len(),
            token_bytes: info.token.bytes() as usize,
            is_burst: info.token.burst,
            tokens_per_iteration: info.tokens_per_iteration,
            sample_rate: info.sample_rate.unwrap_or(0.0),
        };

        // SAFETY: the caller's promise.
        unsafe { put(stream_place, description) };
        Ok(ZBMD_OK)
    })
}

/// Closes a bundle. Its sessions go on.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_bundle_close(bundle: *mut zbmd_bundle) -> zbmd_status {
    guard(|| handles::close::<Arc<Bundle>>(bundle.addr()).map(|_| ZBMD_OK))
}
