//! Regions of shared memory: registered, forgotten, listed.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde_json::json;

use super::body::{BodyLimits, read_body};
use super::reply::{Reply, error, json};
use crate::protocol::json::parse;
use crate::protocol::parameters::{string_member, unsigned_member};
use crate::protocol::request_error::RequestError;
use crate::server::Server;
use crate::shared_memory::{RegionError, RegionInfo};

/// The longest body of a request that registers a region, and the most values in it.
const MAX_BODY_BYTES: usize = 16 << 10;
const MAX_VALUES: usize = 64;

pub(super) fn status(server: &Server, name: Option<&str>) -> Reply {
    let regions = match server.regions().status(name) {
        Ok(regions) => regions,
        Err(refusal) => return refused(&refusal),
    };
    let listed = regions.iter().map(|region| {
        let RegionInfo {
            name,
            key,
            offset,
            size,
        } = region;
        json!({"name": name, "key": key, "offset": offset, "byte_size": size})
    });
    json(&listed.collect())
}

pub(super) fn unregister(server: &Server, name: Option<&str>) -> Reply {
    done(server.regions().unregister(name))
}

pub(super) async fn register(
    server: &Arc<Server>,
    name: &str,
    request: Request<Incoming>,
) -> Reply {
    let (parts, body) = request.into_parts();
    let limits = BodyLimits {
        max_bytes: MAX_BODY_BYTES,
        time: server.limits().body_timeout,
    };
    let body = match read_body(&parts.headers, body, limits).await {
        Ok(body) => body,
        Err(reply) => return reply,
    };
    match read_region(name, &body) {
        Ok(info) => done(server.regions().register(info)),
        Err(wrong) => error(StatusCode::BAD_REQUEST, &wrong.to_string()),
    }
}

fn read_region(name: &str, body: &[u8]) -> Result<RegionInfo, RequestError> {
    let json = parse(body, MAX_VALUES)?;
    let size = unsigned_member(&json, "byte_size")?;
    Ok(RegionInfo {
        name: name.to_owned(),
        key: string_member(&json, "key")?,
        offset: unsigned_member(&json, "offset")?.unwrap_or(0),
        size: size.ok_or_else(|| RequestError::Missing {
            place: "`byte_size`".to_owned(),
        })?,
    })
}

fn done(outcome: Result<(), RegionError>) -> Reply {
    match outcome {
        Ok(()) => json(&json!({})),
        Err(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &RegionError) -> Reply {
    let status = match refusal {
        RegionError::Off => StatusCode::FORBIDDEN,
        RegionError::Unknown { .. } => StatusCode::NOT_FOUND,
        RegionError::TooMany => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    };
    error(status, &refusal.to_string())
}
