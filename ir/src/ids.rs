//! Entity ids: `u32` newtypes that print as in dumps (`a3`, `ch7`, `dev0`), and the typed vectors they index.

use serde::{Deserialize, Serialize};
pub use typed_index_collections::{TiSlice, TiVec};

/// An id of its own for things that are numbered from 0: a `u32` newtype that indexes typed vectors and prints with a prefix.
/// Whoever uses it depends on `serde` with its derives.
#[macro_export]
macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// Position in the typed vector that this id indexes.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<usize> for $name {
            fn from(index: usize) -> Self {
                assert!(index < u32::MAX as usize, "more than u32::MAX entities");
                Self(index as u32)
            }
        }

        impl From<$name> for usize {
            fn from(id: $name) -> usize {
                id.index()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

id_type!(/// An actor of a [`crate::Graph`].
    ActorId, "a");
id_type!(/// A channel of a [`crate::Graph`].
    ChannelId, "ch");
id_type!(/// A constant byte string of a [`crate::Program`] (weights, tables).
    BlobId, "blob");
id_type!(/// A device of a [`crate::Machine`].
    DeviceId, "dev");
id_type!(/// A host of a [`crate::Machine`].
    HostId, "host");
id_type!(/// Hosts that are alike, in [`crate::Contingencies`].
    HostKindId, "hk");
id_type!(/// The memory of one channel on one device, in a [`crate::Plan`].
    BufferId, "b");
id_type!(/// An SPSC hand-over of one channel between two devices, in a [`crate::Plan`].
    RingId, "r");
id_type!(/// One plan of a [`crate::Program`].
    PlanId, "plan");
id_type!(/// A kind of device: devices that can stand in for one another; see [`crate::Contingencies`].
    KindId, "kind");
