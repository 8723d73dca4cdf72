//! VOLK, the vector kernels of GNU Radio, loaded at run time.
#![expect(
    unsafe_code,
    reason = "calls functions of a library loaded at run time"
)]

use std::ffi::{CStr, c_char, c_int};
use std::time::Instant;

use libloading::Library;

use crate::{CALL_SAMPLES, Side, timed};

/// The C library's complex numbers.
#[repr(C)]
#[derive(Clone, Copy)]
struct Complex {
    re: f32,
    im: f32,
}

/// `volk_func_desc_t`.
#[repr(C)]
struct FunctionDescription {
    names: *const *const c_char,
    _dependencies: *const c_int,
    _alignments: *const bool,
    count: usize,
}

type Rotator = unsafe extern "C" fn(*mut Complex, *const Complex, Complex, *mut Complex, u32);
type RotatorManual =
    unsafe extern "C" fn(*mut Complex, *const Complex, Complex, *mut Complex, u32, *const c_char);
type Magnitude = unsafe extern "C" fn(*mut f32, *const Complex, u32);
type MagnitudeManual = unsafe extern "C" fn(*mut f32, *const Complex, u32, *const c_char);
type Dot = unsafe extern "C" fn(*mut f32, *const f32, *const f32, u32);
type DotManual = unsafe extern "C" fn(*mut f32, *const f32, *const f32, u32, *const c_char);

const ROTATOR: &str = "volk_32fc_s32fc_x2_rotator_32fc";
const MAGNITUDE: &str = "volk_32fc_magnitude_32f";
const DOT: &str = "volk_32f_x2_dot_prod_32f";

/// Elements of a cache line, to which VOLK's aligned kernels want their buffers aligned at most.
const LINE: usize = 16;

/// Floats that begin on a cache line.
struct Aligned {
    memory: Vec<f32>,
    first: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let memory = vec![0.25; len + LINE];
        let first = memory.as_ptr().align_offset(LINE * size_of::<f32>());
        Self { memory, first }
    }

    fn pointer(&mut self) -> *mut f32 {
        self.memory[self.first..].as_mut_ptr()
    }
}

/// The library, whose dispatchers have been told which implementations are the quickest here.
pub(crate) struct Volk {
    rotator: Rotator,
    magnitude: Magnitude,
    dot: Dot,
}

/// What the kernels are called with while the library is set up.
struct Probe {
    x: Aligned,
    y: Aligned,
    phase: Complex,
}

/// The step of an oscillator.
const TURN: Complex = Complex { re: 0.8, im: 0.6 };
/// Taps of a filter while implementations are timed.
const PROBE_TAPS: usize = 64;

impl Volk {
    /// Loads the library, times all implementations of the kernels, and configures it as `volk_profile` does.
    pub(crate) fn load() -> Result<Self, String> {
        let library = open()?;
        let mut probe = Probe {
            x: Aligned::new(2 * CALL_SAMPLES),
            y: Aligned::new(2 * CALL_SAMPLES),
            phase: Complex { re: 1.0, im: 0.0 },
        };

        // A line for each kernel: its implementation for aligned buffers, and the one for others.
        let kernels = quickest_of_all(library, &mut probe)?;
        let lines = kernels
            .each_ref()
            .map(|(kernel, name)| format!("{kernel} {name} {name}\n"));
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let file = folder.path().join("volk_config");
        std::fs::write(file, lines.concat()).map_err(|error| error.to_string())?;
        for (kernel, name) in &kernels {
            println!("  {kernel}: {name}");
        }

        // SAFETY: no other thread runs yet. The dispatchers read the file in their first calls, which are made below.
        unsafe { std::env::set_var("VOLK_CONFIGPATH", folder.path()) };
        Self::dispatched(library, &mut probe)
    }

    /// What the library's function pointers are after their first calls.
    fn dispatched(library: &'static Library, probe: &mut Probe) -> Result<Self, String> {
        let (x, y) = (probe.x.pointer(), probe.y.pointer());
        let count = CALL_SAMPLES as u32;
        // SAFETY: the symbols are variables of the header's types, and the buffers are as long as the calls say.
        unsafe {
            let rotator = library.get::<*const Rotator>(ROTATOR).map_err(message)?;
            let magnitude = library
                .get::<*const Magnitude>(MAGNITUDE)
                .map_err(message)?;
            let dot = library.get::<*const Dot>(DOT).map_err(message)?;
            (**rotator)(y.cast(), x.cast(), TURN, &raw mut probe.phase, count);
            (**magnitude)(y, x.cast(), count);
            (**dot)(y, x, x, count);
            Ok(Self {
                rotator: **rotator,
                magnitude: **magnitude,
                dot: **dot,
            })
        }
    }
}

/// The library, which stays loaded: its functions are called until the program ends.
fn open() -> Result<&'static Library, String> {
    let names = [
        "libvolk.so.3.2",
        "libvolk.so.3.1",
        "libvolk.so.3.0",
        "libvolk.so.2.5",
        "libvolk.so",
    ];
    let library = names.iter().find_map(|name| {
        // SAFETY: loading VOLK runs no code that depends on this program.
        unsafe { Library::new(*name) }.ok()
    });
    let library = library.ok_or("libvolk is not installed")?;
    Ok(Box::leak(Box::new(library)))
}

fn message(error: libloading::Error) -> String {
    error.to_string()
}

/// The kernels, each with its quickest implementation.
fn quickest_of_all(
    library: &Library,
    probe: &mut Probe,
) -> Result<[(&'static str, String); 3], String> {
    let (x, y) = (probe.x.pointer(), probe.y.pointer());
    let phase = &raw mut probe.phase;
    let count = CALL_SAMPLES as u32;
    // SAFETY: the symbols are functions of the header's types, and the buffers are aligned and as long as the calls say.
    unsafe {
        let rotator = library
            .get::<RotatorManual>(format!("{ROTATOR}_manual"))
            .map_err(message)?;
        let rotator = quickest(library, ROTATOR, |name| {
            rotator(y.cast(), x.cast(), TURN, phase, count, name);
        })?;

        let magnitude = library
            .get::<MagnitudeManual>(format!("{MAGNITUDE}_manual"))
            .map_err(message)?;
        let magnitude = quickest(library, MAGNITUDE, |name| {
            magnitude(y, x.cast(), count, name);
        })?;

        let dot = library
            .get::<DotManual>(format!("{DOT}_manual"))
            .map_err(message)?;
        let dot = quickest(library, DOT, |name| {
            for _ in 0..CALL_SAMPLES / 16 {
                dot(y, x, x.add(LINE), PROBE_TAPS as u32, name);
            }
        })?;
        Ok([(ROTATOR, rotator), (MAGNITUDE, magnitude), (DOT, dot)])
    }
}

/// Name of the implementation that takes the least time.
///
/// # Safety
/// The kernel has the library's `{kernel}_get_func_desc`.
unsafe fn quickest(
    library: &Library,
    kernel: &str,
    mut call: impl FnMut(*const c_char),
) -> Result<String, String> {
    let symbol = format!("{kernel}_get_func_desc");
    // SAFETY: the function takes nothing and gives pointers to static data.
    let description = unsafe {
        let describe = library.get::<unsafe extern "C" fn() -> FunctionDescription>(symbol);
        describe.map_err(|error| error.to_string())?()
    };
    let mut best = (f64::INFINITY, String::new());
    for i in 0..description.count {
        // SAFETY: there are so many names, which are static.
        let name = unsafe { CStr::from_ptr(*description.names.add(i)) };
        for _ in 0..20 {
            let start = Instant::now();
            call(name.as_ptr());
            let seconds = start.elapsed().as_secs_f64();
            if seconds < best.0 {
                best = (seconds, name.to_string_lossy().into_owned());
            }
        }
    }
    Ok(best.1)
}

/// A chain of rotators over two buffers.
pub(crate) fn mix(volk: &Result<Volk, String>, chain: usize) -> Result<Side, String> {
    let rotator = volk.as_ref().map_err(Clone::clone)?.rotator;
    let mut buffers = [
        Aligned::new(2 * CALL_SAMPLES),
        Aligned::new(2 * CALL_SAMPLES),
    ];
    let mut phases = vec![Complex { re: 1.0, im: 0.0 }; chain];
    Ok(timed(move || {
        let [first, second] = &mut buffers;
        let pointers = [first.pointer(), second.pointer()];
        for (i, phase) in phases.iter_mut().enumerate() {
            let (from, to) = (pointers[i % 2], pointers[(i + 1) % 2]);
            // SAFETY: both buffers have so many complex numbers.
            unsafe { rotator(to.cast(), from.cast(), TURN, phase, CALL_SAMPLES as u32) };
        }
    }))
}

/// Magnitudes of one buffer again and again.
pub(crate) fn magnitude(volk: &Result<Volk, String>, copies: usize) -> Result<Side, String> {
    let magnitude = volk.as_ref().map_err(Clone::clone)?.magnitude;
    let mut x = Aligned::new(2 * CALL_SAMPLES);
    let mut y = Aligned::new(CALL_SAMPLES);
    Ok(timed(move || {
        for _ in 0..copies {
            // SAFETY: so many complex numbers are read, and real ones written.
            unsafe { magnitude(y.pointer(), x.pointer().cast(), CALL_SAMPLES as u32) };
        }
    }))
}

/// A chain of filters as GNU Radio's `fir_filter` makes them: a dot product for each sample, begun at a cache line, with taps
/// that are shifted by as much.
pub(crate) fn fir(volk: &Result<Volk, String>, chain: usize, taps: usize) -> Result<Side, String> {
    let dot = volk.as_ref().map_err(Clone::clone)?.dot;
    let history = taps - 1;
    let mut buffers = [0, 1].map(|_| Aligned::new(history + CALL_SAMPLES + LINE));
    let shifted = |shift: usize| {
        let mut shifted_taps = Aligned::new(taps + LINE);
        let first = shifted_taps.first;
        for (i, tap) in shifted_taps.memory[first..].iter_mut().enumerate() {
            *tap = if (shift..shift + taps).contains(&i) {
                1.0 / taps as f32
            } else {
                0.0
            };
        }
        shifted_taps
    };
    let mut shifted_taps: Vec<Aligned> = (0..LINE).map(shifted).collect();
    Ok(timed(move || {
        let [first, second] = &mut buffers;
        let pointers = [first.pointer(), second.pointer()];
        for i in 0..chain {
            let (from, to) = (pointers[i % 2], pointers[(i + 1) % 2]);
            for sample in 0..CALL_SAMPLES {
                let shift = sample % LINE;
                let taps_pointer = shifted_taps[shift].pointer();
                let count = (taps + shift) as u32;
                // SAFETY: the buffers hold the history, the samples and a line more.
                unsafe {
                    dot(
                        to.add(history + sample),
                        from.add(sample - shift),
                        taps_pointer,
                        count,
                    );
                }
            }
        }
    }))
}
