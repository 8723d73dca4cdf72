//! Entity ids: `u32` newtypes that print as in dumps (`a3`, `ch7`, `dev0`), and the typed vectors they index.

use serde::{Deserialize, Serialize};
pub use typed_index_collections::{TiSlice, TiVec};

macro_rules! entity {
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

entity!(/// An actor of a [`crate::Graph`].
    ActorId, "a");
entity!(/// A channel of a [`crate::Graph`].
    ChannelId, "ch");
entity!(/// A constant byte string of a [`crate::Program`] (weights, tables).
    BlobId, "blob");
entity!(/// A device of a [`crate::Machine`].
    DeviceId, "dev");
entity!(/// A host of a [`crate::Machine`].
    HostId, "host");
entity!(/// Hosts that are alike, in [`crate::Contingencies`].
    HostKindId, "hk");
entity!(/// A link of a [`crate::Machine`].
    LinkId, "link");
entity!(/// The memory of one channel on one device, in a [`crate::Plan`].
    BufferId, "b");
entity!(/// An SPSC hand-over of one channel between two devices, in a [`crate::Plan`].
    RingId, "r");
entity!(/// One plan of a [`crate::Program`].
    PlanId, "plan");
entity!(/// A kind of device: devices that can stand in for one another; see [`crate::Contingencies`].
    KindId, "kind");
