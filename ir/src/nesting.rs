//! A bound on how deep untrusted data may nest: deserializers recurse, and a stack overflow cannot be caught.

use std::cell::Cell;

use serde::de::{Deserialize, Deserializer, Error};

use crate::limits::MAX_NESTING;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Takes one level back when the value is read, or reading it failed.
struct Level;

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// For `#[serde(deserialize_with)]` on every field through which a type holds itself.
pub(crate) fn deserialize<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let depth = DEPTH.get() + 1;
    DEPTH.set(depth);
    let _level = Level;
    if depth > MAX_NESTING {
        return Err(D::Error::custom("nested too deeply"));
    }
    T::deserialize(deserializer)
}
