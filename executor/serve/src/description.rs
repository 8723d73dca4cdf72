//! What the server says about itself and its models, whatever the protocol: names, bounds, states.

use crate::engine::readiness::Phase;
use crate::engine::{LoadedModel, RunningModel};
use crate::server::Server;
use crate::tensor::TensorSpec;

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

/// The shape of a tensor of requests and answers; -1 stands for the rows of a batch.
pub(crate) fn open_shape(model: &LoadedModel, spec: &TensorSpec) -> Vec<i64> {
    // Sizes that fit memory fit here.
    let mut shape: Vec<i64> = spec.shape.iter().map(|size| *size as i64).collect();
    if model.max_batch > 0 {
        shape[0] = -1;
    }
    shape
}

/// The shape of what one iteration takes or gives. Where a model takes batches, that is a row: without the first dimension.
pub(crate) fn row_shape(model: &LoadedModel, spec: &TensorSpec) -> Vec<i64> {
    let shape = open_shape(model, spec);
    shape
        .into_iter()
        .skip(usize::from(model.max_batch > 0))
        .collect()
}

/// What a model's calendars promise, by the names that its configuration has for it.
pub(crate) fn plan_parameters(running: &RunningModel) -> [(&'static str, u64); 6] {
    let batches = &running.model.batches;
    let planned = batches.smallest();
    [
        ("block_iterations", planned.block),
        ("stages", planned.stages),
        ("period_ns", planned.period_ns),
        ("queue_requests", running.admission().limit() as u64),
        ("response_bound_ns", batches.response_ns(0)),
        ("response_bound_full_queue_ns", running.full_queue_ns()),
    ]
}

/// How many requests a model computes together, if it does.
pub(crate) fn preferred_batches(running: &RunningModel) -> Option<Vec<i32>> {
    let batches = &running.model.batches;
    let sizes = batches
        .rows()
        .map(|rows| i32::try_from(rows).unwrap_or(i32::MAX));
    (batches.count() > 1).then(|| sizes.collect())
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
