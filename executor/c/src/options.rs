//! How to compile and how to run, as structs that a caller fills. Each begins with its size, so that a program that was
//! built with another version's header is told so.
#![expect(
    unsafe_code,
    reason = "exports functions under their C names, which are given pointers"
)]

use std::ffi::c_char;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, Ordering};

use zbmd_executor::{Engine, Isolation, RunOptions, Supervised};

use crate::border::{optional_path, optional_text, put};
use crate::status::{Failure, guard, zbmd_status};
use zbmd_status::*;

/// How to compile. Initialise it with `zbmd_compile_options_init`, then change what you want.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct zbmd_compile_options {
    /// Set by `zbmd_compile_options_init`.
    pub struct_size: usize,
    /// A machine file; or NULL for this computer.
    pub machine: *const c_char,
    /// Without a machine file: so many like CPU devices; or 0 for those of this computer.
    pub devices: u32,
    /// Without a machine file: also for the GPUs of this computer.
    pub gpus: bool,
    /// Losses of devices to make plans for: `none`, `single`, `hosts` or `pairs`; NULL is `none`.
    pub contingencies: *const c_char,
    /// What the model keeps between iterations comes from sources and goes to sinks, for whoever carries the states of
    /// many sequences.
    pub sequences: bool,
}

/// How to run. Initialise it with `zbmd_run_options_init`, then change what you want.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct zbmd_run_options {
    /// Set by `zbmd_run_options_init`.
    pub struct_size: usize,
    /// Iterations of the model at most; 0 for as many as the sources have tokens for.
    pub iterations: u64,
    /// Bytes that each stream's queue holds at least.
    pub queue_bytes: u64,
    /// Where workers run: `threads` of this process, `processes`, or `gpus`: GPUs in processes and CPU devices in
    /// threads. NULL is `threads`.
    pub isolation: *const c_char,
    /// What a worker's process is: `zbmd-run`, or another program that calls `zbmd_serve_if_worker`, of the very build
    /// that this library is of. NULL is this very program, which then must have called `zbmd_serve_if_worker` itself.
    pub worker: *const c_char,
    /// Go on when workers are lost, as this text in RON declares; an empty text declares nothing, and all is by
    /// default. NULL: any loss ends the run.
    pub supervision: *const c_char,
    /// At the end, fill up what is less than an iteration with zeros and run it too.
    pub pad: bool,
    /// Tie each worker to its device's cores. Set by `zbmd_run_options_init`.
    pub pin: bool,
    /// Ask the system to keep the run's memory from being paged out. Set by `zbmd_run_options_init`.
    pub lock_memory: bool,
    /// Check that what arrives over rings is what was sent.
    pub checksums: bool,
    /// Of each worker that is a process, keep a second one ready to take its place.
    pub standby: bool,
}

/// Sets options to what is right for most. Null is allowed, and does nothing.
///
/// # Safety
/// `options` is null, or a `zbmd_compile_options` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_compile_options_init(options: *mut zbmd_compile_options) {
    let default_options = zbmd_compile_options {
        struct_size: size_of::<zbmd_compile_options>(),
        machine: null(),
        devices: 0,
        gpus: false,
        contingencies: null(),
        sequences: false,
    };
    // SAFETY: the caller's promise.
    unsafe { put(options, default_options) };
}

/// Sets options to what is right for most. Null is allowed, and does nothing.
///
/// # Safety
/// `options` is null, or a `zbmd_run_options` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zbmd_run_options_init(options: *mut zbmd_run_options) {
    let RunOptions {
        queue_bytes,
        pad,
        pin,
        lock_memory,
        checksums,
        standby,
        ..
    } = RunOptions::default();
    let default_options = zbmd_run_options {
        struct_size: size_of::<zbmd_run_options>(),
        iterations: 0,
        queue_bytes,
        isolation: null(),
        worker: null(),
        supervision: null(),
        pad,
        pin,
        lock_memory,
        checksums,
        standby,
    };
    // SAFETY: the caller's promise.
    unsafe { put(options, default_options) };
}

/// The options at a place, if they are of this version.
///
/// # Safety
/// `options` is null, or begins with its size and was initialised in whole.
unsafe fn read<T: Copy>(options: *const T, what: &str) -> Result<Option<T>, Failure> {
    if options.is_null() {
        return Ok(None);
    }

    // SAFETY: not null, and each of these structs begins with its size.
    let found_bytes = unsafe { options.cast::<usize>().read_unaligned() };
    let expected_bytes = size_of::<T>();
    if found_bytes != expected_bytes {
        return Err(Failure::usage(format!(
            "`options` says that it has {found_bytes} bytes, {expected_bytes} are right: call `{what}_init` first, and build with \
             the header of this version"
        )));
    }

    // SAFETY: not null, of the right size, and initialised, as the caller promises.
    Ok(Some(unsafe { options.read_unaligned() }))
}

/// # Safety
/// `options` is null, or was initialised; its texts end with NULs.
#[cfg(feature = "compile")]
pub(crate) unsafe fn to_compile(
    options: *const zbmd_compile_options,
) -> Result<zbmd_compiler::CompileOptions, Failure> {
    use zbmd_compiler::{CompileOptions, Losses, MachineChoice};
    let mut compile_options = CompileOptions::default();
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { read(options, "zbmd_compile_options") })? else {
        return Ok(compile_options);
    };
    // SAFETY: the caller's promise.
    let machine_path = unsafe { optional_path(given.machine, "options.machine") }?;
    // SAFETY: as above.
    let losses = unsafe { optional_text(given.contingencies, "options.contingencies") }?;

    compile_options.sequences = given.sequences;
    compile_options.contingencies = match losses {
        None | Some("none") => Losses::None,
        Some("single") => Losses::Single,
        Some("hosts") => Losses::Hosts,
        Some("pairs") => Losses::Pairs,
        Some(other) => {
            return Err(Failure::usage(format!(
                "`options.contingencies` is `{other}`: none, single, hosts or pairs"
            )));
        }
    };

    let machine_choice = match (machine_path, given.devices) {
        (Some(path), _) => MachineChoice::File(path),
        (None, 0) => MachineChoice::Detect,
        (None, count) => MachineChoice::Uniform(count as usize),
    };
    compile_options
        .set_target(machine_choice, given.gpus)
        .map_err(|diagnostics| Failure::new(ZBMD_MODEL, diagnostics.to_string()))?;
    Ok(compile_options)
}

/// # Safety
/// As [`to_compile`].
pub(crate) unsafe fn to_run(
    options: *const zbmd_run_options,
    engine: &Engine,
) -> Result<RunOptions, Failure> {
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { read(options, "zbmd_run_options") })? else {
        return Ok(RunOptions::default());
    };
    // SAFETY: the caller's promise.
    let isolation_text = unsafe { optional_text(given.isolation, "options.isolation") }?;
    // SAFETY: as above.
    let worker = unsafe { optional_path(given.worker, "options.worker") }?;
    // SAFETY: as above.
    let supervision = unsafe { optional_text(given.supervision, "options.supervision") }?;

    let is_own_worker = worker.is_none();
    let isolation_name = isolation_text.unwrap_or("threads");
    let isolation = Isolation::named(isolation_name, worker).ok_or_else(|| {
        Failure::usage(format!(
            "`options.isolation` is `{isolation_name}`: threads, processes or gpus"
        ))
    })?;

    if isolation != Isolation::Threads && is_own_worker && !SERVES.load(Ordering::Relaxed) {
        // Or each worker would be this program from its beginning, and start workers in its turn, without end.
        return Err(Failure::usage(
            "workers in processes are this very program: call `zbmd_serve_if_worker` first of all in `main`, or set \
             `options.worker`",
        ));
    }

    let supervised = supervision
        .map(|text| Supervised::from_text(text, engine))
        .transpose()
        .map_err(|error| Failure::new(ZBMD_FILE, error.to_string()))?;
    Ok(RunOptions {
        iterations: (given.iterations > 0).then_some(given.iterations),
        queue_bytes: given.queue_bytes,
        isolation,
        supervised,
        pad: given.pad,
        pin: given.pin,
        lock_memory: given.lock_memory,
        checksums: given.checksums,
        standby: given.standby,
        ..RunOptions::default()
    })
}

static SERVES: AtomicBool = AtomicBool::new(false);

/// Does a worker's work, and then ends the process, if the process was started as a worker; returns at once if not.
/// A program that runs workers in processes calls it first of all in `main`: its workers are itself, started anew.
#[unsafe(no_mangle)]
pub extern "C" fn zbmd_serve_if_worker() {
    guard(|| {
        SERVES.store(true, Ordering::Relaxed);
        #[cfg(target_os = "linux")]
        zbmd_executor::serve_if_worker(&zbmd_backends::standard_registry());
        Ok(ZBMD_OK)
    });
}
