//! SoapySDR, looked for at run time: its C functions, and a receiver that is opened by them. Must not know tokens.
//!
//! The functions are those of `SoapySDR/Device.h` of version 0.8, whose binary interface the library's name has.
#![expect(
    unsafe_code,
    reason = "loads a library and calls its C functions, for which nobody keeps a binding that loads at run time"
)]

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_long, c_longlong, c_void};
use std::io;
use std::sync::Arc;

use libloading::Library;

const NAMES: [&str; 3] = [
    "libSoapySDR.so.0.8",
    "libSoapySDR.0.8.dylib",
    "SoapySDR.dll",
];
const RECEIVE: c_int = 1;
const HAS_TIME: c_int = 1 << 2;
const TIMEOUT: c_int = -1;
const OVERFLOW: c_int = -4;

type Device = *mut c_void;
type Stream = *mut c_void;
type SetNumber = unsafe extern "C" fn(Device, c_int, usize, c_double) -> c_int;

/// The library's functions.
struct Functions {
    make: unsafe extern "C" fn(*const c_char) -> Device,
    unmake: unsafe extern "C" fn(Device) -> c_int,
    last_error: unsafe extern "C" fn() -> *const c_char,
    set_sample_rate: SetNumber,
    get_sample_rate: unsafe extern "C" fn(Device, c_int, usize) -> c_double,
    set_gain: SetNumber,
    set_gain_mode: unsafe extern "C" fn(Device, c_int, usize, bool) -> c_int,
    set_frequency: unsafe extern "C" fn(Device, c_int, usize, c_double, *const c_void) -> c_int,
    set_antenna: unsafe extern "C" fn(Device, c_int, usize, *const c_char) -> c_int,
    setup_stream: unsafe extern "C" fn(
        Device,
        c_int,
        *const c_char,
        *const usize,
        usize,
        *const c_void,
    ) -> Stream,
    activate_stream: unsafe extern "C" fn(Device, Stream, c_int, c_longlong, usize) -> c_int,
    deactivate_stream: unsafe extern "C" fn(Device, Stream, c_int, c_longlong) -> c_int,
    close_stream: unsafe extern "C" fn(Device, Stream) -> c_int,
    read_stream: unsafe extern "C" fn(
        Device,
        Stream,
        *const *mut c_void,
        usize,
        *mut c_int,
        *mut c_longlong,
        c_long,
    ) -> c_int,
    /// Keeps the functions.
    _library: Library,
}

/// How a receiver is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ReceiverSettings {
    /// Which device: `driver=rtlsdr,serial=1`.
    pub(super) device: String,
    pub(super) channel: usize,
    pub(super) rate: f64,
    pub(super) frequency_hz: Option<f64>,
    /// In dB; `Some(None)` is automatic.
    pub(super) gain_db: Option<Option<f64>>,
    pub(super) antenna: Option<String>,
    /// As the library names it: `CF32`.
    pub(super) format: &'static str,
}

/// What a receiver gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// So many samples, and the time of the first if the device says so.
    Samples {
        /// At least one.
        count: usize,
        time_ns: Option<i64>,
    },
    /// Nothing came in time.
    Nothing,
    /// The device lost samples.
    Overflow,
    /// It gives no more.
    Lost,
}

/// The library.
#[derive(Clone)]
pub(super) struct SoapyLibrary(Arc<Functions>);

fn load() -> Result<Functions, libloading::Error> {
    let mut library = None;
    let mut first_error = None;
    for name in NAMES {
        // SAFETY: what the library and its modules do when they are loaded is theirs; they are the system's, as drivers are.
        match unsafe { Library::new(name) } {
            Ok(found) => {
                library = Some(found);
                break;
            }
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    let library = match (library, first_error) {
        (Some(library), _) => library,
        (None, Some(error)) => return Err(error),
        (None, None) => return Err(libloading::Error::DlOpenUnknown),
    };

    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the type is that of the function of this name in SoapySDR/Device.h of version 0.8.
            *unsafe { library.get(concat!("SoapySDRDevice_", $name, "\0").as_bytes()) }?
        };
    }
    Ok(Functions {
        make: function!("makeStrArgs"),
        unmake: function!("unmake"),
        last_error: function!("lastError"),
        set_sample_rate: function!("setSampleRate"),
        get_sample_rate: function!("getSampleRate"),
        set_gain: function!("setGain"),
        set_gain_mode: function!("setGainMode"),
        set_frequency: function!("setFrequency"),
        set_antenna: function!("setAntenna"),
        setup_stream: function!("setupStream"),
        activate_stream: function!("activateStream"),
        deactivate_stream: function!("deactivateStream"),
        close_stream: function!("closeStream"),
        read_stream: function!("readStream"),
        _library: library,
    })
}

fn c_text(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::other(format!("`{text}` has a zero byte")))
}

impl SoapyLibrary {
    /// Looks for the library.
    pub(super) fn load() -> io::Result<Self> {
        match load() {
            Ok(functions) => Ok(Self(Arc::new(functions))),
            Err(error) => Err(io::Error::other(format!(
                "SoapySDR 0.8 cannot be loaded: {error} (Debian: apt-get install libsoapysdr0.8 and a module of the device)"
            ))),
        }
    }

    fn failed(&self, what: &str) -> io::Error {
        // SAFETY: it gives a text that is valid until this thread's next call, or null.
        let text = unsafe {
            let text = (self.0.last_error)();
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        io::Error::other(format!("{what}: {}", text.unwrap_or_default()))
    }

    /// Opens a receiver and starts it.
    pub(super) fn open(&self, settings: &ReceiverSettings) -> io::Result<Receiver> {
        let arguments = c_text(&settings.device)?;
        // SAFETY: a text that ends with zero.
        let device = unsafe { (self.0.make)(arguments.as_ptr()) };
        if device.is_null() {
            let what = format!("there is no device `{}`", settings.device);
            return Err(self.failed(&what));
        }
        // From here on it is closed when it is dropped.
        let mut receiver = Receiver {
            library: self.clone(),
            device,
            stream: std::ptr::null_mut(),
            is_active: false,
        };
        receiver.set(settings)?;
        receiver.start(settings)?;
        Ok(receiver)
    }
}

/// A receiver that is open. One thread at a time uses it.
pub(super) struct Receiver {
    library: SoapyLibrary,
    device: Device,
    /// Null, or a stream of the device.
    stream: Stream,
    is_active: bool,
}

// SAFETY: the library lets any thread use a device, one at a time for a stream; nothing here is shared.
unsafe impl Send for Receiver {}

impl Receiver {
    fn check(&self, what: &str, code: c_int) -> io::Result<()> {
        match code {
            0 => Ok(()),
            _ => Err(self.library.failed(what)),
        }
    }

    fn set(&self, settings: &ReceiverSettings) -> io::Result<()> {
        let functions = &self.library.0;
        let device = self.device;
        let channel = settings.channel;
        // SAFETY: the device is open, here and below; the library checks the channel.
        let code = unsafe { (functions.set_sample_rate)(device, RECEIVE, channel, settings.rate) };
        self.check("the sample rate cannot be set", code)?;
        if let Some(antenna) = &settings.antenna {
            let antenna = c_text(antenna)?;
            // SAFETY: as above, and a text that ends with zero.
            let code =
                unsafe { (functions.set_antenna)(device, RECEIVE, channel, antenna.as_ptr()) };
            self.check("the antenna cannot be set", code)?;
        }
        if let Some(hertz) = settings.frequency_hz {
            // SAFETY: as above; no arguments are given, which null says.
            let code = unsafe {
                (functions.set_frequency)(device, RECEIVE, channel, hertz, std::ptr::null())
            };
            self.check("the frequency cannot be set", code)?;
        }
        if let Some(gain) = settings.gain_db {
            // SAFETY: as above.
            let code =
                unsafe { (functions.set_gain_mode)(device, RECEIVE, channel, gain.is_none()) };
            self.check("the gain's mode cannot be set", code)?;
            if let Some(db) = gain {
                // SAFETY: as above.
                let code = unsafe { (functions.set_gain)(device, RECEIVE, channel, db) };
                self.check("the gain cannot be set", code)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, settings: &ReceiverSettings) -> io::Result<()> {
        let functions = &self.library.0;
        let format = c_text(settings.format)?;
        // SAFETY: the device is open; a text that ends with zero, a list of one channel, and no arguments.
        self.stream = unsafe {
            (functions.setup_stream)(
                self.device,
                RECEIVE,
                format.as_ptr(),
                &settings.channel,
                1,
                std::ptr::null(),
            )
        };
        if self.stream.is_null() {
            let what = format!("the device gives no samples as {}", settings.format);
            return Err(self.library.failed(&what));
        }
        // SAFETY: device and stream are open.
        let code = unsafe { (functions.activate_stream)(self.device, self.stream, 0, 0, 0) };
        self.check("the device does not start", code)?;
        self.is_active = true;
        Ok(())
    }

    /// Samples a second that the device has in fact.
    pub(super) fn rate(&self, channel: usize) -> f64 {
        // SAFETY: the device is open.
        unsafe { (self.library.0.get_sample_rate)(self.device, RECEIVE, channel) }
    }

    /// Waits for samples for so long, and reads as many as there is room for.
    pub(super) fn read(
        &mut self,
        samples: &mut [u8],
        sample_bytes: usize,
        limit_us: u64,
    ) -> Received {
        let mut flags: c_int = 0;
        let mut time_ns: c_longlong = 0;
        let room = samples.len() / sample_bytes;
        let buffers = [samples.as_mut_ptr().cast::<c_void>()];
        // SAFETY: device and stream are open; a stream of one channel has one buffer, with room for so many samples of
        // the format that it was set up with.
        let code = unsafe {
            (self.library.0.read_stream)(
                self.device,
                self.stream,
                buffers.as_ptr(),
                room,
                &mut flags,
                &mut time_ns,
                c_long::try_from(limit_us).unwrap_or(c_long::MAX),
            )
        };
        match code {
            0 | TIMEOUT => Received::Nothing,
            OVERFLOW => Received::Overflow,
            count @ 1.. => Received::Samples {
                // A driver that says more than there is room for is not believed.
                count: (count as usize).min(room),
                time_ns: (flags & HAS_TIME != 0).then_some(time_ns),
            },
            _ => Received::Lost,
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let functions = &self.library.0;
        // SAFETY: device and stream are open, and nobody uses them after this.
        unsafe {
            if self.is_active {
                (functions.deactivate_stream)(self.device, self.stream, 0, 0);
            }
            if !self.stream.is_null() {
                (functions.close_stream)(self.device, self.stream);
            }
            (functions.unmake)(self.device);
        }
    }
}
