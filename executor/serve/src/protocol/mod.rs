//! The Open Inference Protocol, version 2, with the extension for binary tensors: what bodies of requests and answers
//! mean, as JSON and as gRPC messages. Must not know how bodies come, nor what computes.

pub(crate) mod answer;
mod elements;
pub(crate) mod json;
#[cfg(feature = "grpc")]
pub(crate) mod message_request;
#[cfg(feature = "grpc")]
pub(crate) mod messages;
pub(crate) mod parameters;
pub(crate) mod request;
pub(crate) mod request_error;
