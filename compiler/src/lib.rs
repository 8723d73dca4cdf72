//! Models to bundles.
