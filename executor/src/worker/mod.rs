//! One worker's part of an epoch, the same in a thread of the embedding program and in a process of its own. Must not
//! know who else is at work.

pub(crate) mod border;
pub(crate) mod gpu;
pub(crate) mod host;
pub(crate) mod lower;
pub(crate) mod period_loop;
pub(crate) mod replay;
