//! The bundle: one file with everything the executor needs.
