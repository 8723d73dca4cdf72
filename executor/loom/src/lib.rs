//! The executor's hand-over and sleeping protocols, for loom: the very files that ship, by themselves, so that nothing else
//! need be compiled anew for it. Nothing without `cfg(loom)`.
#![cfg(loom)]
#![allow(dead_code, reason = "the executor uses the rest")]

#[path = "../../src/transport/primitive.rs"]
mod primitive;
#[path = "../../src/transport/ring.rs"]
pub mod ring;

/// What the protocols need of the executor's module of that name.
mod clock {
    /// A clock that stands still: loom looks at orders, not at times.
    pub(crate) struct Clock;

    impl Clock {
        pub(crate) fn now_ns(&self) -> u64 {
            0
        }
    }
}
