//! The book: how to write models, run them, look at calendars, and what to count on.
//!
//! Every listing in it runs as a test, and the reference pages are made from what the program itself reads.

#[doc = include_str!("../docs/tutorial.md")]
pub mod tutorial {}

#[doc = include_str!("../docs/actors.md")]
pub mod actors {}

#[doc = include_str!("../docs/embedding.md")]
pub mod embedding {}

#[doc = include_str!("../docs/languages.md")]
pub mod languages {}

#[doc = include_str!("../docs/calendars.md")]
pub mod calendars {}

#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("../docs/comparison.md")]
pub mod comparison {}

#[doc = include_str!("../docs/onnx.md")]
pub mod onnx {}

#[doc = include_str!("../docs/serving.md")]
pub mod serving {}

#[doc = include_str!("../docs/losses.md")]
pub mod losses {}

#[doc = include_str!("../docs/launching.md")]
pub mod launching {}

#[doc = include_str!("../docs/sound.md")]
pub mod sound {}

#[doc = include_str!("../docs/ticks.md")]
pub mod ticks {}

#[doc = include_str!("../docs/live.md")]
pub mod live {}

#[doc = include_str!("../docs/zenoh.md")]
pub mod zenoh {}

#[doc = include_str!("../docs/gpus.md")]
pub mod gpus {}

#[doc = include_str!("../docs/format.md")]
pub mod format {}

#[doc = include_str!("../docs/ops.md")]
pub mod ops {}

/// The README's Rust listings are documentation tests like those of the book.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub mod readme {}
