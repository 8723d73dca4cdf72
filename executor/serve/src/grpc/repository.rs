//! Loading and unloading models.

use std::sync::Arc;

use tonic::Status;

use crate::control::ControlError;
use crate::protocol::messages::{Empty, ModelControlRequest};
use crate::server::Server;

/// Answers a request to load a model.
pub(super) async fn load(
    server: &Arc<Server>,
    asked: ModelControlRequest,
) -> Result<Empty, Status> {
    let parameters = asked.parameters.into_iter();
    let parameters = parameters.map(|(name, value)| (name, value.text));
    done(server.load(&asked.model_name, parameters.collect()).await)
}

/// Answers a request to unload a model. No model depends on another, so no parameter matters.
pub(super) async fn unload(
    server: &Arc<Server>,
    asked: ModelControlRequest,
) -> Result<Empty, Status> {
    done(server.unload(&asked.model_name).await)
}

fn done(outcome: Result<(), ControlError>) -> Result<Empty, Status> {
    let Err(failure) = outcome else {
        return Ok(Empty {});
    };
    let what = failure.to_string();
    Err(match failure {
        ControlError::NotAllowed { .. } => Status::permission_denied(what),
        ControlError::Unknown { .. } | ControlError::NotLoaded { .. } => Status::not_found(what),
        ControlError::Parameter { .. } | ControlError::Config { .. } => {
            Status::invalid_argument(what)
        }
        // As Triton has it, whose clients look for it.
        ControlError::File { .. } => Status::internal(what),
        ControlError::Repository { .. } => Status::failed_precondition(what),
        ControlError::NotReady { .. } | ControlError::Thread { .. } => Status::unavailable(what),
        ControlError::Bug { .. } => Status::internal(what),
    })
}
