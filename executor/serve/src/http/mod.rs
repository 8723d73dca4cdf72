//! HTTP: connections with limits, paths, bodies, answers. Must not know how models are run.

mod body;
mod documents;
mod infer;
pub(crate) mod metrics;
mod reply;
mod routes;
mod server;
mod write_limit;

pub(crate) use server::{Limits, Server};
