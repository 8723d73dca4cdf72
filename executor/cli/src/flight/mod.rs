//! The flight recorder: everything that enters a run, kept on disk in a ring of bounded size, so that what the run did can
//! be done again, bit for bit. Knows runs and files, not command lines.
//!
//! A folder holds the recording of one run:
//!
//! | file | what it holds |
//! |---|---|
//! | `recording.zbfr` | which run, of which graph, with which sources ([`Head`]) |
//! | `model.zbmd` | a copy of its bundle |
//! | `000000000042.zbseg` | a segment: records one after another ([`record`]), the first of which says how far the recording was |
//!
//! Source tokens have their indexes, and changes of live parameters and of modes their numbers: what is missing between two
//! records is seen. A state at a border is written now and then, and says which token and which change is the first that it needs, so
//! that the oldest segment can go. A mark says that all changes up to an iteration are known: changes take effect after
//! they were decided, and a replay goes no further than what had been decided when the recording was cut off.
//!
//! Records are written in order, each in one or a few calls, and never changed: after a SIGKILL the newest segment ends
//! within a record at most. Nothing is forced to the disk, so that a loss of power may cost more; it is seen by the
//! checksums.

mod folder;
mod head;
mod history;
mod intake;
mod keep;
mod reader;
pub mod record;
mod recorder;
mod ring;

pub use self::folder::RecordingError;
pub use self::head::{Head, HeadError, RecordedMode, RecordedSource};
pub use self::history::ModeHistory;
pub use self::reader::{RecordedTokens, Recording, ReplayStart, Stretch, TimedToken, TokenRange};

pub(crate) use self::head::{recorded_modes, sources_of};
pub(crate) use self::keep::{Keep, keep};
pub(crate) use self::recorder::{ReadyRecorder, Recorder, RecorderSettings, bundle_of};
