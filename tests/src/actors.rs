//! The actors of the examples, as their programs register them.

use zbmd_backends::op::Registry;

#[path = "../../graphs/adsb/decode.rs"]
pub mod decode;
#[path = "../../graphs/vad/segments.rs"]
pub mod segments;

/// The standard ops and every actor of the examples.
pub fn registry() -> Registry {
    let mut registry = zbmd_backends::standard_registry();
    decode::register(&mut registry);
    segments::register(&mut registry);
    registry
}
