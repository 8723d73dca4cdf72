//! What an optional pass did, whether it is one over imported models or over the whole graph.

/// What a pass did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassReport {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub summary: &'static str,
    /// Places that it changed; `None` if it was left out.
    pub changes: Option<usize>,
    /// Actors behind it.
    pub actors: usize,
}
