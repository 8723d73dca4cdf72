//! The texts of sources.

use zbmd_op::SOURCES;

#[test]
fn every_source_is_of_an_op() {
    let registry = crate::standard_registry();
    assert!(SOURCES.iter().all(|(name, _)| registry.op(name).is_some()));
    assert!(SOURCES.is_sorted());
}
