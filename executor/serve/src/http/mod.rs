//! HTTP/1.1: connections, paths, bodies, answers. Must not know how models are run.

mod body;
mod connection;
mod documents;
mod infer;
pub(crate) mod metrics;
mod reply;
mod routes;

pub(crate) use connection::{Http, serve};
