//! Replays verified calendars: workers, rings, streams, reports.

pub mod arena;
mod conduit;
mod primitive;
pub mod ring;
