//! Published instances, and what others have published of them.

mod csdf;
mod dag;
mod dsa;
mod placement;
mod sdf;
