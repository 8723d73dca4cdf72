//! What GPUs and their drivers report to those who run calendars: faults that one process can tell another, sorted by
//! what is to be done about them, and why a device could not be opened.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::ReplayError;

/// What is to be done about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// The device does not exist, or cannot do what is asked of it: trying again would end in the same way.
    Unfit,
    /// Its memory is used up.
    Memory,
    /// The driver must not be called any more: the process is to end. A new process can use the device.
    Lost,
    /// As [`Self::Lost`], and the device is not to be used until a person has looked at it: its memory is damaged, or it
    /// has left the bus.
    Broken,
    /// Anything else; another attempt may succeed.
    Failed,
}

impl FaultKind {
    /// Whether the process must end before the driver is called again.
    pub fn is_fatal(self) -> bool {
        matches!(self, Self::Lost | Self::Broken)
    }
}

/// What a GPU or its driver reported: what one process can tell another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// What is to be done about it.
    pub kind: FaultKind,
    /// The sentence for people.
    pub text: String,
}

impl Fault {
    /// A fault with an error's sentence.
    pub fn new(kind: FaultKind, error: &dyn fmt::Display) -> Self {
        Self {
            kind,
            text: error.to_string(),
        }
    }

    /// A fault that no further attempt helps against, with what does.
    pub fn unfit(error: &dyn fmt::Display, fix: &str) -> Self {
        Self {
            kind: FaultKind::Unfit,
            text: format!("{error}; {fix}"),
        }
    }
}

impl<F> From<ReplayError<F>> for Fault
where
    F: Into<Fault> + fmt::Display,
{
    fn from(error: ReplayError<F>) -> Self {
        match error {
            ReplayError::Fault(fault) => fault.into(),
            error => Fault::new(FaultKind::Unfit, &error),
        }
    }
}

/// What to do where a device cannot be opened.
pub const SEE_DEVICES: &str = "`zbmdc devices` lists what this machine has; compile for that";

/// A driver is missing: everything else works without it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {api}: {reason}")]
pub struct Unavailable {
    /// The driver's interface: `CUDA`, `Vulkan`.
    pub api: &'static str,
    /// Why, as a clause.
    pub reason: String,
}

/// A device that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError<F> {
    /// There is no driver, or no device at all.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// There is no such device.
    #[error("there is no {api} device `{wanted}` here: {known}")]
    NoDevice {
        /// The driver's interface.
        api: &'static str,
        /// Name or UUID asked for.
        wanted: String,
        /// Names of the devices that exist.
        known: String,
    },
    /// The device lacks something that all of zbmd's calendars need.
    #[error("device {device} has no {what}")]
    Lacks {
        /// The device.
        device: String,
        /// What is missing.
        what: String,
    },
    /// The driver failed.
    #[error(transparent)]
    Fault(F),
}

/// A driver's faults.
pub trait DriverFault: Into<Fault> + fmt::Display {
    /// How to get the driver where there is none.
    const INSTALL: &'static str;
}

impl<F: DriverFault> From<OpenError<F>> for Fault {
    fn from(error: OpenError<F>) -> Self {
        match error {
            OpenError::Fault(fault) => fault.into(),
            OpenError::Unavailable(_) => Fault::unfit(&error, F::INSTALL),
            OpenError::NoDevice { .. } | OpenError::Lacks { .. } => {
                Fault::unfit(&error, SEE_DEVICES)
            }
        }
    }
}

/// A device that a driver lists.
pub trait ListedDevice {
    /// As machines name it.
    fn device_name(&self) -> &str;

    /// The UUID in hexadecimal.
    fn uuid_text(&self) -> String;
}

/// The listed device of that name or UUID.
///
/// # Errors
/// [`OpenError::NoDevice`] with the names of those that exist.
pub fn find_device<D: ListedDevice, F>(
    api: &'static str,
    listed: Vec<D>,
    wanted: &str,
) -> Result<D, OpenError<F>> {
    let names: Vec<&str> = listed.iter().map(D::device_name).collect();
    let known = match names.len() {
        0 => "there is none".to_owned(),
        _ => names.join(", "),
    };

    let mut candidates = listed.into_iter();
    let found =
        candidates.find(|device| device.device_name() == wanted || device.uuid_text() == wanted);
    found.ok_or_else(|| OpenError::NoDevice {
        api,
        wanted: wanted.to_owned(),
        known,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(&'static str);

    impl ListedDevice for Named {
        fn device_name(&self) -> &str {
            self.0
        }

        fn uuid_text(&self) -> String {
            format!("uuid of {}", self.0)
        }
    }

    fn find(devices: &[&'static str], wanted: &str) -> Result<&'static str, String> {
        let listed = devices.iter().copied().map(Named).collect();
        find_device::<Named, Fault>("GPU", listed, wanted)
            .map(|device| device.0)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn devices_are_found_by_name_and_by_uuid() {
        assert_eq!(find(&["gpu:0", "gpu:1"], "gpu:1"), Ok("gpu:1"));
        assert_eq!(find(&["gpu:0", "gpu:1"], "uuid of gpu:0"), Ok("gpu:0"));
        let known = "there is no GPU device `gpu:2` here: gpu:0, gpu:1";
        assert_eq!(find(&["gpu:0", "gpu:1"], "gpu:2"), Err(known.to_owned()));
        let none = "there is no GPU device `gpu:0` here: there is none";
        assert_eq!(find(&[], "gpu:0"), Err(none.to_owned()));
    }
}
