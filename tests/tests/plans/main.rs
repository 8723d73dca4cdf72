//! What the compiler plans: it is verified, and gives what the interpreter gives.

mod collectives;
mod contingencies;
mod deadlines;
mod hostile_bundles;
mod in_place;
mod many_devices;
mod mode_bounds;
mod mutants;
mod random_graphs;
mod replicate;
mod resolutions;
mod variants;
