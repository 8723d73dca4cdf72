//! Sound cards. Their threads only copy and resample; they wait for a lock that others hold for a copy at most.

mod card;
mod input;
mod output;
mod priority;

pub(crate) use self::input::AudioSource;
pub(crate) use self::output::AudioSink;
