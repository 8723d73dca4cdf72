//! Replays verified calendars.
