//! HTTP/1.1: connections, paths, bodies, answers. Must not know how models are run.

mod body;
mod connection;
mod documents;
mod infer;
pub(crate) mod metrics;
mod regions;
mod reply;
mod repository;
mod routes;

pub(crate) use connection::{Http, serve};
