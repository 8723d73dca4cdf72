//! The SoX Resampler library, loaded at run time.
#![expect(
    unsafe_code,
    reason = "calls functions of a library loaded at run time"
)]

use std::ffi::{c_char, c_uint, c_void};

use libloading::Library;

use crate::quality::Converter;
use crate::{Side, timed};

type Create = unsafe extern "C" fn(
    f64,
    f64,
    c_uint,
    *mut *const c_char,
    *const c_void,
    *const c_void,
    *const c_void,
) -> *mut c_void;
type Process = unsafe extern "C" fn(
    *mut c_void,
    *const f32,
    usize,
    *mut usize,
    *mut f32,
    usize,
    *mut usize,
) -> *const c_char;

/// A converter of one channel from 44.1 to 48 kHz with the library's defaults: `SOXR_HQ`, floats, one thread.
pub(crate) struct Resampler {
    process: Process,
    handle: *mut c_void,
}

impl Resampler {
    pub(crate) fn new() -> Result<Self, String> {
        let missing = |error: libloading::Error| error.to_string();
        let defaults = std::ptr::null();
        // SAFETY: loading soxr runs no code that depends on this program; symbols have the header's types; null stands for the
        // defaults. Library and converter live until the program ends.
        unsafe {
            let library = Library::new("libsoxr.so.0").map_err(|_| "libsoxr is not installed")?;
            let library: &'static Library = Box::leak(Box::new(library));
            let create = library.get::<Create>("soxr_create").map_err(missing)?;
            let process = *library.get::<Process>("soxr_process").map_err(missing)?;
            let mut error = std::ptr::null();
            let handle = create(
                44_100.0, 48_000.0, 1, &mut error, defaults, defaults, defaults,
            );
            if handle.is_null() {
                return Err("soxr_create fails".to_owned());
            }
            Ok(Self { process, handle })
        }
    }

    /// Converts all samples; how many come out.
    fn process(&mut self, cd: &[f32], dat: &mut [f32]) -> usize {
        let (mut taken, mut given) = (0, 0);
        // SAFETY: the lengths are those of the slices.
        let error = unsafe {
            (self.process)(
                self.handle,
                cd.as_ptr(),
                cd.len(),
                &mut taken,
                dat.as_mut_ptr(),
                dat.len(),
                &mut given,
            )
        };
        assert!(error.is_null() && taken == cd.len(), "soxr takes all");
        given
    }
}

impl Converter for Resampler {
    fn convert(&mut self, cd: &[f32]) -> Vec<f32> {
        let mut dat = vec![0.0; 2 * cd.len()];
        let given = self.process(cd, &mut dat);
        dat.truncate(given);
        dat
    }
}

/// Converts so many samples a call.
pub(crate) fn side(samples: usize) -> Result<Side, String> {
    let mut resampler = Resampler::new()?;
    let mut rng = fastrand::Rng::with_seed(1);
    let cd: Vec<f32> = (0..samples).map(|_| rng.f32() - 0.5).collect();
    let mut dat = vec![0.0; 2 * samples];
    Ok(timed(move || {
        resampler.process(&cd, &mut dat);
    }))
}
