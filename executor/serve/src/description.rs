//! What the server says about itself and its models, whatever the protocol: names, bounds, states.

use crate::engine::RunningModel;
use crate::engine::readiness::Phase;
use crate::server::Server;

/// The server's name unless it is given another, and that of the platform of all its models.
pub(crate) const NAME: &str = "zbmd";

/// Extensions of the protocol that are spoken here.
pub(crate) fn extensions(server: &Server) -> Vec<&'static str> {
    let mut extensions = vec![
        "binary_tensor_data",
        "model_configuration",
        "model_repository",
        "sequence",
        "statistics",
    ];
    if server.regions().is_allowed() {
        extensions.push("system_shared_memory");
    }
    extensions
}

/// What a model's calendars promise, by the names that its configuration has for it.
pub(crate) fn plan_parameters(running: &RunningModel) -> [(&'static str, u64); 6] {
    let planned = running.model.planned;
    [
        ("block_iterations", planned.block),
        ("stages", planned.stages),
        ("period_ns", planned.period_ns),
        ("queue_requests", running.admission().limit() as u64),
        ("response_bound_ns", planned.response_ns(0)),
        ("response_bound_full_queue_ns", running.full_queue_ns()),
    ]
}

/// A model's state in the words of the repository's index, and the reason for it.
pub(crate) fn repository_state(running: &RunningModel) -> (&'static str, String) {
    match running.readiness().phase() {
        Phase::Running => ("READY", String::new()),
        Phase::Starting => ("LOADING", String::new()),
        Phase::Waiting => (
            "UNAVAILABLE",
            "no plan runs without the lost workers".to_owned(),
        ),
        Phase::Restarting => ("UNAVAILABLE", "its run is begun anew".to_owned()),
        Phase::Failed { why } => ("UNAVAILABLE", why),
    }
}
