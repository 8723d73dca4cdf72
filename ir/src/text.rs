//! The text form of every stage.
