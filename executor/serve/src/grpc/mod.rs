//! gRPC: the same protocol as messages over HTTP/2. Must not know how models are run.

mod body;
mod calls;
mod codec;
mod connection;
mod documents;
mod regions;
mod repository;
mod stream;

pub(crate) use codec::read_whole;
pub(crate) use connection::{Grpc, serve};
