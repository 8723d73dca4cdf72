//! Loading and unloading models.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde_json::json;

use super::body::{BodyLimits, read_body};
use super::reply::{Reply, error, json};
use crate::control::{ControlError, LoadParameter};
use crate::protocol::json::parse;
use crate::protocol::parameters::texts_in_member;
use crate::server::Server;

/// The longest body of a request to load or unload, and the most values in it.
const MAX_BODY_BYTES: usize = 64 << 10;
const MAX_VALUES: usize = 1024;

/// Answers a request to load a model.
pub(super) async fn load(server: &Arc<Server>, name: &str, request: Request<Incoming>) -> Reply {
    let parameters = match parameters_of(server, request).await {
        Ok(parameters) => parameters,
        Err(reply) => return reply,
    };
    done(server.load(name, parameters).await)
}

/// Answers a request to unload a model. No model depends on another, so no parameter matters.
pub(super) async fn unload(server: &Arc<Server>, name: &str, request: Request<Incoming>) -> Reply {
    match parameters_of(server, request).await {
        Ok(_) => done(server.unload(name).await),
        Err(reply) => reply,
    }
}

/// The parameters of a request, which may have no body.
async fn parameters_of(
    server: &Server,
    request: Request<Incoming>,
) -> Result<Vec<LoadParameter>, Reply> {
    let (parts, body) = request.into_parts();
    let limits = BodyLimits {
        max_bytes: MAX_BODY_BYTES,
        time: server.limits().body_timeout,
    };
    let body = read_body(&parts.headers, body, limits).await?;
    if body.is_empty() {
        return Ok(Vec::new());
    }
    let json = parse(&body, MAX_VALUES).map_err(|wrong| wrong.to_string());
    let members = json.and_then(|json| {
        let members = texts_in_member(&json, "parameters");
        members.map_err(|wrong| wrong.to_string())
    });
    members.map_err(|wrong| error(StatusCode::BAD_REQUEST, &wrong))
}

fn done(outcome: Result<(), ControlError>) -> Reply {
    let failure = match outcome {
        Ok(()) => return json(&json!({})),
        Err(failure) => failure,
    };
    let status = match &failure {
        ControlError::NotAllowed { .. } => StatusCode::FORBIDDEN,
        ControlError::Unknown { .. } | ControlError::NotLoaded { .. } => StatusCode::NOT_FOUND,
        ControlError::Parameter { .. }
        | ControlError::Config { .. }
        | ControlError::File { .. }
        | ControlError::Repository { .. } => StatusCode::BAD_REQUEST,
        ControlError::NotReady { .. } | ControlError::Thread { .. } => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        ControlError::Bug { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    error(status, &failure.to_string())
}
