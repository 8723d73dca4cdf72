//! Exit codes: those of `zbmd-run`, as far as they apply here.

/// All went well.
pub const OK: u8 = 0;
/// The command line makes no sense, or a key or configuration in it is none.
pub const USAGE: u8 = 2;
/// A file, a pipe or an endpoint cannot be opened, read or written.
pub const FILE: u8 = 4;
/// What came over Zenoh is wrong, or something is missing that nobody has any more.
pub const FAULT: u8 = 6;
/// Interrupted; what was handed on are whole tokens.
pub const INTERRUPTED: u8 = 130;
