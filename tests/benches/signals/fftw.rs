//! FFTW in single precision, loaded at run time.
#![expect(
    unsafe_code,
    reason = "calls functions of a library loaded at run time"
)]

use std::ffi::{c_int, c_void};

use libloading::Library;

use crate::{Side, timed};

const FFTW_FORWARD: c_int = -1;
const FFTW_MEASURE: u32 = 0;

type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
type PlanDft1d = unsafe extern "C" fn(c_int, *mut c_void, *mut c_void, c_int, u32) -> *mut c_void;
type Execute = unsafe extern "C" fn(*mut c_void);

/// So many transforms one after the other between two buffers. Each multiplies what it is given, so that a turn begins with the
/// same small numbers.
pub(crate) fn chain(len: usize, transforms: usize) -> Result<Side, String> {
    let missing = |error: libloading::Error| error.to_string();
    // SAFETY: loading FFTW runs no code that depends on this program; symbols have the header's types; the buffers and plans
    // live until the program ends, and so does the library.
    unsafe {
        let library = Library::new("libfftw3f.so.3").map_err(|_| "libfftw3f is not installed")?;
        let library: &'static Library = Box::leak(Box::new(library));
        let malloc = library.get::<Malloc>("fftwf_malloc").map_err(missing)?;
        let plan = library
            .get::<PlanDft1d>("fftwf_plan_dft_1d")
            .map_err(missing)?;
        let execute = *library.get::<Execute>("fftwf_execute").map_err(missing)?;

        let bytes = len * 2 * size_of::<f32>();
        let buffers = [malloc(bytes), malloc(bytes)];
        let plans = [0, 1].map(|from| {
            let (from, to) = (buffers[from], buffers[1 - from]);
            plan(len as c_int, from, to, FFTW_FORWARD, FFTW_MEASURE)
        });
        if buffers.contains(&std::ptr::null_mut()) || plans.contains(&std::ptr::null_mut()) {
            return Err("it has no memory or no plan".to_owned());
        }
        let mut rng = fastrand::Rng::with_seed(1);
        let samples: Vec<f32> = (0..2 * len).map(|_| (rng.f32() - 0.5) * 1e-6).collect();
        Ok(timed(move || {
            buffers[0]
                .cast::<f32>()
                .copy_from_nonoverlapping(samples.as_ptr(), 2 * len);
            for i in 0..transforms {
                execute(plans[i % 2]);
            }
        }))
    }
}
