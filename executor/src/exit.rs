//! Exit codes of the command `zbmd-run`, which are also the classes of errors at the interfaces to other languages.

/// All went well; also when the reader of standard output went away.
pub const OK: u8 = 0;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// The model or the machine is wrong, where a command compiles; `zbmdc`'s code too.
pub const MODEL: u8 = 3;
/// A file cannot be read or written, or its content does not fit its stream.
pub const FILE: u8 = 4;
/// The bundle, a state or a folder of checkpoints is refused: it is damaged, of another run, or made for a device that
/// is not here.
pub const REFUSED: u8 = 5;
/// A fault at run time: a kernel's, a device's, too little memory, or no right to a real-time run.
pub const FAULT: u8 = 6;
/// The supervisor gave up, in good order: everything committed was written.
pub const GAVE_UP: u8 = 7;
/// A bug of ours.
pub const BUG: u8 = 70;
/// There is no such run to watch, or it is dead.
pub const NO_RUN: u8 = 8;
/// What else runs leaves too little of the machine for the share that a run is to be held to.
pub const NO_ROOM: u8 = 9;
/// Interrupted; everything up to the last whole block was written.
pub const INTERRUPTED: u8 = 130;
