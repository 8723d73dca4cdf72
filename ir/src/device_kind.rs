//! What kind of device a device is, and what follows from that.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The backend that drives a device. Machine files and bundles hold its name ([`DeviceKind::as_str`]); code asks what
/// the kind may do instead of comparing names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum DeviceKind {
    /// Cores of a CPU: `cpu`.
    Cpu,
    /// A GPU by way of Vulkan: `vulkan`.
    Vulkan,
    /// An NVIDIA GPU by way of CUDA: `cuda`.
    Cuda,
    /// A backend that this version does not know; made by [`From`], so never under one of the names above. Bundles of
    /// other versions may name one: it is kept, so that a refusal can name it.
    Other(String),
}

impl DeviceKind {
    /// The kinds that this version knows.
    pub const KNOWN: [DeviceKind; 3] = [Self::Cpu, Self::Vulkan, Self::Cuda];

    /// The name in machine files, bundles and messages.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Cpu => "cpu",
            Self::Vulkan => "vulkan",
            Self::Cuda => "cuda",
            Self::Other(name) => name,
        }
    }

    /// Whether devices of the kind are CPU cores: their kernels run in threads of ours, and read parameters in place.
    pub fn is_cpu(&self) -> bool {
        *self == Self::Cpu
    }

    /// Whether devices of the kind are GPUs, whether or not this build can drive them.
    pub fn is_gpu(&self) -> bool {
        matches!(self, Self::Vulkan | Self::Cuda)
    }

    /// Whether kernels may write an output over an input: only those of CPUs follow
    /// [`Actor::in_place`](crate::Actor::in_place).
    pub fn may_write_in_place(&self) -> bool {
        self.is_cpu()
    }

    /// Whether kernels may be launched before those that they wait for have ended ([`crate::Device::programmatic`]).
    pub fn has_dependent_launch(&self) -> bool {
        *self == Self::Cuda
    }

    /// Whether kernels may round the factors of products, for tensor cores.
    pub fn may_round_factors(&self) -> bool {
        *self == Self::Cuda
    }
}

impl From<&str> for DeviceKind {
    fn from(name: &str) -> Self {
        Self::from(name.to_owned())
    }
}

impl From<String> for DeviceKind {
    fn from(name: String) -> Self {
        let known_kind = Self::KNOWN.into_iter().find(|kind| kind.as_str() == name);
        known_kind.unwrap_or(Self::Other(name))
    }
}

impl From<DeviceKind> for String {
    fn from(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Other(name) => name,
            known => known.as_str().to_owned(),
        }
    }
}

/// For names that come from a driver; code that knows the kind asks the questions above.
impl PartialEq<&str> for DeviceKind {
    fn eq(&self, name: &&str) -> bool {
        self.as_str() == *name
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_stored_as_their_names() {
        let unknown_kind = DeviceKind::from("abacus");
        assert_eq!(unknown_kind, DeviceKind::Other("abacus".to_owned()));

        for kind in DeviceKind::KNOWN.into_iter().chain([unknown_kind]) {
            let name = kind.as_str().to_owned();
            let stored_kind = postcard::to_allocvec(&kind).expect("kinds can be stored");
            let stored_name = postcard::to_allocvec(&name).expect("names can be stored");
            assert_eq!(stored_kind, stored_name, "{kind}");

            let read_kind: DeviceKind = postcard::from_bytes(&stored_kind).expect("just stored");
            assert_eq!(read_kind, kind);
            assert_eq!(DeviceKind::from(String::from(kind.clone())), kind);
            assert_eq!(format!("{kind:<8}"), format!("{name:<8}"));
        }
    }

    #[test]
    fn what_kinds_may_do() {
        let mut table = String::new();
        for kind in DeviceKind::KNOWN.into_iter().chain(["abacus".into()]) {
            let answers = [
                kind.is_cpu(),
                kind.is_gpu(),
                kind.may_write_in_place(),
                kind.has_dependent_launch(),
                kind.may_round_factors(),
            ];
            table += &format!(
                "{kind} {}\n",
                answers.map(|yes| u8::from(yes).to_string()).concat()
            );
        }
        assert_eq!(table, "cpu 10100\nvulkan 01000\ncuda 01011\nabacus 00000\n");
    }
}
