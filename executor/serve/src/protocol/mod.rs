//! The Open Inference Protocol, version 2, with the extension for binary tensors: what bodies of requests and answers
//! mean. Must not know how bodies come, nor what computes.

pub(crate) mod answer;
mod elements;
mod json;
pub(crate) mod request;
