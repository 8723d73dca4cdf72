//! What the server says about itself and its models, as JSON.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::description::{
    NAME, extensions, open_shape, plan_parameters, preferred_batches, repository_state, row_shape,
};
use crate::engine::RunningModel;
use crate::protocol::answer::VERSION;
use crate::server::Server;
use crate::stats::TimedCount;
use crate::tensor::{Datatype, TensorSpec};

/// Server metadata.
pub(super) fn server(server: &Server) -> Value {
    json!({
        "name": server.name(),
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": extensions(server),
    })
}

/// Model metadata.
pub(super) fn model(running: &RunningModel) -> Value {
    let model = &running.model;
    let tensor = |spec: &TensorSpec| json!({"name": spec.name, "datatype": spec.datatype.name(), "shape": open_shape(model, spec)});
    json!({
        "name": model.name,
        "versions": [VERSION],
        "platform": NAME,
        "inputs": model.inputs.iter().map(tensor).collect::<Vec<_>>(),
        "outputs": model.outputs.iter().map(tensor).collect::<Vec<_>>(),
    })
}

/// A model's configuration, in the words of Triton's `ModelConfig`. The bounds are among its parameters.
pub(super) fn config(running: &RunningModel) -> Value {
    let model = &running.model;
    let tensor = |spec: &TensorSpec| json!({"name": spec.name, "data_type": config_type(spec.datatype), "dims": row_shape(model, spec)});
    let parameter = |(name, value): (&str, u64)| {
        let string_value = value.to_string();
        (name.to_owned(), json!({"string_value": string_value}))
    };
    let parameters: Map<String, Value> = plan_parameters(running)
        .map(parameter)
        .into_iter()
        .collect();
    let mut config = json!({
        "name": model.name,
        "platform": NAME,
        "backend": NAME,
        "max_batch_size": model.max_batch,
        "input": model.inputs.iter().map(tensor).collect::<Vec<_>>(),
        "output": model.outputs.iter().map(tensor).collect::<Vec<_>>(),
        "parameters": parameters,
    });
    if let Some(sizes) = preferred_batches(running) {
        config["dynamic_batching"] = json!({"preferred_batch_size": sizes});
    }
    if running.keeps_state() {
        let idle = running.sequence_limits().idle.as_micros() as u64;
        config["sequence_batching"] = json!({"max_sequence_idle_microseconds": idle});
    }
    config
}

fn config_type(datatype: Datatype) -> String {
    format!("TYPE_{}", datatype.name())
}

/// Statistics of one or all models, as Triton has them.
pub(super) fn stats<'a>(models: impl IntoIterator<Item = &'a Arc<RunningModel>>) -> Value {
    let all_stats = models.into_iter().map(|running| model_stats(running));
    json!({"model_stats": all_stats.collect::<Vec<_>>()})
}

fn model_stats(running: &RunningModel) -> Value {
    let timed = |count: &TimedCount| json!({"count": count.count(), "ns": count.total_ns()});
    let stats = &running.stats;
    json!({
        "name": running.model.name,
        "version": VERSION,
        "last_inference": stats.last_ms(),
        "inference_count": stats.rows(),
        "execution_count": running.admission().executions().sum::<u64>(),
        "inference_stats": {
            "success": timed(&stats.success),
            "fail": timed(&stats.fail),
            "queue": timed(&stats.queue),
            "compute_input": timed(&stats.input),
            "compute_infer": timed(&stats.infer),
            "compute_output": timed(&stats.output),
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "batch_stats": [],
        "memory_usage": [],
    })
}

/// All models, with how ready they are.
pub(super) fn repository_index(server: &Server) -> Value {
    let models = server.models();
    let entries = models.iter().map(|running| {
        let (state, reason) = repository_state(running);
        json!({"name": running.model.name, "version": VERSION, "state": state, "reason": reason})
    });
    let unloaded = server.unloaded().into_iter();
    let unloaded = unloaded.map(|name| json!({"name": name, "version": VERSION, "state": "UNAVAILABLE", "reason": "unloaded"}));
    Value::Array(entries.chain(unloaded).collect())
}
