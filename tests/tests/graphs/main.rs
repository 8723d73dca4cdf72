//! The models of `graphs/`, beside what they are meant to compute.

mod adsb;
mod cd2dat;
mod feedback;
mod fm;
mod models;
mod onnx;
