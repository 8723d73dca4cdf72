//! ONNX operators and models, beside what others give for them.

mod buckets;
mod cases;
mod models;
mod quantised;
