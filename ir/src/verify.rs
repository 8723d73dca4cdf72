//! Verifiers.
/// A program that passed [`verify`](self).
#[derive(Clone, Debug)]
pub struct Verified<T>(T);
