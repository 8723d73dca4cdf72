//! The part of UCX's C interface (`ucp.h` of version 1.13, which later ones keep) that streams of bytes need. The library is the
//! system's, and is loaded when it is asked for.
#![expect(
    unsafe_code,
    reason = "loads a C library, and calls one function of it that fills in places of ours"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use libloading::Library;

const NAME: &str = "libucp.so.0";
/// The version of the interface that the structures here are of.
const MAJOR: c_uint = 1;
const MINOR: c_uint = 13;
const CPU_WORDS: usize = 16;

pub(super) type Handle = *mut c_void;
/// A status in one byte, as the enumeration is packed.
pub(super) type Status = i8;
/// Nothing, a request that goes on, or a status below zero in the place of a pointer.
pub(super) type StatusOrRequest = *mut c_void;

pub(super) const OK: Status = 0;
pub(super) const IN_PROGRESS: Status = 1;
pub(super) const BUSY: Status = -15;
/// The last status: pointers from here on are statuses.
const LAST_STATUS: isize = -100;

pub(super) const CONTEXT_FIELD_FEATURES: u64 = 1 << 0;
pub(super) const CONTEXT_FIELD_WORKERS_ARE_SHARED: u64 = 1 << 5;
pub(super) const FEATURE_WAKE_UP: u64 = 1 << 4;
pub(super) const FEATURE_STREAM: u64 = 1 << 5;

pub(super) const WORKER_FIELD_THREAD_MODE: u64 = 1 << 0;
/// Any thread may use a worker, one at a time.
pub(super) const THREAD_MODE_SERIALIZED: c_int = 1;

pub(super) const ENDPOINT_FIELD_ADDRESS: u64 = 1 << 0;
pub(super) const ENDPOINT_FIELD_ERROR_MODE: u64 = 1 << 1;
pub(super) const ENDPOINT_FIELD_ERROR_HANDLER: u64 = 1 << 2;
/// Requests end with an error if the peer is gone.
pub(super) const ERROR_MODE_PEER: c_int = 1;

pub(super) const REQUEST_FIELD_FLAGS: u32 = 1 << 4;
/// An endpoint is closed at once, whatever its peer does.
pub(super) const CLOSE_FORCE: u32 = 1 << 0;

#[repr(C)]
pub(super) struct ContextParameters {
    pub(super) field_mask: u64,
    pub(super) features: u64,
    pub(super) request_size: usize,
    pub(super) request_init: Handle,
    pub(super) request_cleanup: Handle,
    pub(super) tag_sender_mask: u64,
    pub(super) workers_are_shared: c_int,
    pub(super) estimated_endpoints: usize,
    pub(super) estimated_processes: usize,
    pub(super) name: *const c_char,
}

#[repr(C)]
pub(super) struct WorkerParameters {
    pub(super) field_mask: u64,
    pub(super) thread_mode: c_int,
    pub(super) cores: [u64; CPU_WORDS],
    pub(super) events: c_uint,
    pub(super) user_data: Handle,
    pub(super) event_descriptor: c_int,
    pub(super) flags: u64,
    pub(super) name: *const c_char,
    pub(super) message_alignment: usize,
    pub(super) client: u64,
}

#[repr(C)]
pub(super) struct SocketAddress {
    pub(super) address: *const c_void,
    pub(super) bytes: u32,
}

/// Called with the argument, the endpoint and what went wrong.
pub(super) type ErrorHandler = extern "C" fn(Handle, Handle, Status);

#[repr(C)]
pub(super) struct EndpointParameters {
    pub(super) field_mask: u64,
    pub(super) address: *const c_void,
    pub(super) error_mode: c_int,
    pub(super) error_handler: Option<ErrorHandler>,
    pub(super) error_argument: Handle,
    pub(super) user_data: Handle,
    pub(super) flags: c_uint,
    pub(super) socket_address: SocketAddress,
    pub(super) connection_request: Handle,
    pub(super) name: *const c_char,
    pub(super) local_address: SocketAddress,
}

#[repr(C)]
pub(super) struct RequestParameters {
    pub(super) field_mask: u32,
    pub(super) flags: u32,
    pub(super) request: Handle,
    pub(super) callback: Handle,
    pub(super) datatype: u64,
    pub(super) user_data: Handle,
    pub(super) reply_buffer: Handle,
    pub(super) memory_type: c_int,
    pub(super) receive_info: Handle,
    pub(super) memory: Handle,
}

impl RequestParameters {
    /// Bytes in host memory, without a callback.
    pub(super) const fn plain(field_mask: u32, flags: u32) -> Self {
        Self {
            field_mask,
            flags,
            request: null_mut(),
            callback: null_mut(),
            datatype: 0,
            user_data: null_mut(),
            reply_buffer: null_mut(),
            memory_type: 0,
            receive_info: null_mut(),
            memory: null_mut(),
        }
    }
}

/// The functions that are called.
pub(super) struct Functions {
    pub(super) init: unsafe extern "C" fn(
        c_uint,
        c_uint,
        *const ContextParameters,
        *const c_void,
        *mut Handle,
    ) -> Status,
    pub(super) worker_create:
        unsafe extern "C" fn(Handle, *const WorkerParameters, *mut Handle) -> Status,
    pub(super) worker_destroy: unsafe extern "C" fn(Handle),
    pub(super) worker_address: unsafe extern "C" fn(Handle, *mut *mut c_void, *mut usize) -> Status,
    pub(super) release_address: unsafe extern "C" fn(Handle, *mut c_void),
    pub(super) worker_descriptor: unsafe extern "C" fn(Handle, *mut c_int) -> Status,
    pub(super) worker_arm: unsafe extern "C" fn(Handle) -> Status,
    pub(super) worker_progress: unsafe extern "C" fn(Handle) -> c_uint,
    pub(super) endpoint_create:
        unsafe extern "C" fn(Handle, *const EndpointParameters, *mut Handle) -> Status,
    pub(super) endpoint_close:
        unsafe extern "C" fn(Handle, *const RequestParameters) -> StatusOrRequest,
    pub(super) send: unsafe extern "C" fn(
        Handle,
        *const c_void,
        usize,
        *const RequestParameters,
    ) -> StatusOrRequest,
    pub(super) receive: unsafe extern "C" fn(Handle, *mut usize) -> StatusOrRequest,
    pub(super) release: unsafe extern "C" fn(Handle, *mut c_void),
    pub(super) request_status: unsafe extern "C" fn(Handle) -> Status,
    pub(super) request_free: unsafe extern "C" fn(Handle),
    /// The functions are of it.
    _library: Library,
}

fn load() -> Result<Functions, libloading::Error> {
    // SAFETY: what the library does when it is loaded is its own; it is the system's.
    let library = unsafe { Library::new(NAME) }?;

    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the type is that of the function of this name in ucp.h of version 1.13.
            *unsafe { library.get(concat!("ucp_", $name, "\0").as_bytes()) }?
        };
    }
    Ok(Functions {
        init: function!("init_version"),
        worker_create: function!("worker_create"),
        worker_destroy: function!("worker_destroy"),
        worker_address: function!("worker_get_address"),
        release_address: function!("worker_release_address"),
        worker_descriptor: function!("worker_get_efd"),
        worker_arm: function!("worker_arm"),
        worker_progress: function!("worker_progress"),
        endpoint_create: function!("ep_create"),
        endpoint_close: function!("ep_close_nbx"),
        send: function!("stream_send_nbx"),
        receive: function!("stream_recv_data_nb"),
        release: function!("stream_data_release"),
        request_status: function!("request_check_status"),
        request_free: function!("request_free"),
        _library: library,
    })
}

/// The library, and this process's one context of it.
pub(super) struct Ucx {
    pub(super) functions: Functions,
    pub(super) context: Handle,
}

// SAFETY: functions of a library are the same on all threads, and UCX lets any of them create workers of a context.
unsafe impl Send for Ucx {}
// SAFETY: as above; workers are created under UCX's own lock of the context.
unsafe impl Sync for Ucx {}

impl Ucx {
    /// That of this process, which stays to its end.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn get() -> Result<&'static Self, String> {
        static UCX: OnceLock<Result<Ucx, String>> = OnceLock::new();
        let ucx = UCX.get_or_init(|| {
            let functions = load().map_err(|error| {
                format!("UCX is not installed (Debian's package is libucx0): {error}")
            })?;
            Self::start(functions)
        });
        ucx.as_ref().map_err(String::clone)
    }

    fn start(functions: Functions) -> Result<Self, String> {
        let parameters = ContextParameters {
            field_mask: CONTEXT_FIELD_FEATURES | CONTEXT_FIELD_WORKERS_ARE_SHARED,
            features: FEATURE_STREAM | FEATURE_WAKE_UP,
            request_size: 0,
            request_init: null_mut(),
            request_cleanup: null_mut(),
            tag_sender_mask: 0,
            workers_are_shared: 1,
            estimated_endpoints: 0,
            estimated_processes: 0,
            name: std::ptr::null(),
        };
        let mut context = null_mut();
        // SAFETY: the parameters are those of this version of the interface, and the context has a place; without a configuration
        // UCX reads that of the environment.
        let status =
            unsafe { (functions.init)(MAJOR, MINOR, &parameters, std::ptr::null(), &mut context) };
        match status {
            OK => Ok(Self { functions, context }),
            status => Err(format!("UCX does not start: status {status}")),
        }
    }
}

/// What a pointer stands for that may be a status: a request, if it goes on.
pub(super) fn request_of(result: StatusOrRequest) -> Result<Option<Handle>, Status> {
    let number = result as isize;
    match number {
        0 => Ok(None),
        LAST_STATUS..0 => Err(number as Status),
        _ => Ok(Some(result)),
    }
}
