//! From a consistent graph and a machine to calendars: pure functions without I/O, clock or threads.
