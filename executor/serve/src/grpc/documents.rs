//! What the server says about itself and its models, as messages.

use tonic::Status;

use super::calls::find;
use crate::description::{
    NAME, extensions, open_shape, plan_parameters, preferred_batches, repository_state, row_shape,
};
use crate::engine::{LoadedModel, RunningModel};
use crate::protocol::answer::VERSION;
use crate::protocol::messages::{
    DynamicBatching, InferOutputTensor, InferParameter, InferStatistics, ModelConfig,
    ModelConfigResponse, ModelIndex, ModelInput, ModelMetadataResponse, ModelOutput,
    ModelParameter, ModelRequest, ModelStatistics, ModelStatisticsResponse, ParameterChoice,
    Parameters, RepositoryIndexResponse, SequenceBatching, ServerMetadataResponse,
    StatisticDuration, TensorMetadata,
};
use crate::server::Server;
use crate::stats::TimedCount;
use crate::tensor::{Datatype, TensorSpec};

/// Server metadata.
pub(super) fn server(server: &Server) -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: server.name().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        extensions: extensions(server).into_iter().map(str::to_owned).collect(),
    }
}

impl TensorMetadata {
    fn of(model: &LoadedModel, spec: &TensorSpec) -> Self {
        Self {
            name: spec.name.clone(),
            datatype: spec.datatype.name().to_owned(),
            shape: open_shape(model, spec),
        }
    }
}

impl InferOutputTensor {
    pub(super) fn of(spec: &TensorSpec) -> Self {
        Self {
            name: spec.name.clone(),
            datatype: spec.datatype.name().to_owned(),
            shape: spec.shape.iter().map(|size| *size as i64).collect(),
            parameters: Parameters::new(),
        }
    }

    /// Its bytes are in shared memory.
    pub(super) fn set_region(&mut self, region: &str, bytes: u64) {
        let parameter = |name: &str, choice| {
            let choice = Some(choice);
            (name.to_owned(), InferParameter { choice })
        };
        let region = ParameterChoice::String(region.to_owned());
        self.parameters.extend([
            parameter("shared_memory_region", region),
            parameter(
                "shared_memory_byte_size",
                ParameterChoice::Int64(bytes as i64),
            ),
        ]);
    }
}

/// Model metadata.
pub(super) fn model(running: &RunningModel) -> ModelMetadataResponse {
    let model = &running.model;
    let tensor = |spec: &TensorSpec| TensorMetadata::of(model, spec);
    ModelMetadataResponse {
        name: model.name.clone(),
        versions: vec![VERSION.to_owned()],
        platform: NAME.to_owned(),
        inputs: model.inputs.iter().map(tensor).collect(),
        outputs: model.outputs.iter().map(tensor).collect(),
    }
}

/// A model's configuration, with the bounds among its parameters.
pub(super) fn config(running: &RunningModel) -> ModelConfigResponse {
    let model = &running.model;
    let input = |spec: &TensorSpec| ModelInput {
        name: spec.name.clone(),
        data_type: config_type(spec.datatype),
        dims: row_shape(model, spec),
    };
    let output = |spec: &TensorSpec| ModelOutput {
        name: spec.name.clone(),
        data_type: config_type(spec.datatype),
        dims: row_shape(model, spec),
    };
    let parameter = |(name, value): (&str, u64)| {
        let string_value = value.to_string();
        (name.to_owned(), ModelParameter { string_value })
    };
    let config = ModelConfig {
        name: model.name.clone(),
        platform: NAME.to_owned(),
        backend: NAME.to_owned(),
        max_batch_size: i32::try_from(model.max_batch).unwrap_or(i32::MAX),
        input: model.inputs.iter().map(input).collect(),
        output: model.outputs.iter().map(output).collect(),
        parameters: plan_parameters(running).map(parameter).into(),
        dynamic_batching: preferred_batches(running).map(|preferred_batch_size| DynamicBatching {
            preferred_batch_size,
        }),
        sequence_batching: running.keeps_state().then(|| SequenceBatching {
            max_sequence_idle_microseconds: running.sequence_limits().idle.as_micros() as u64,
        }),
    };
    ModelConfigResponse {
        config: Some(config),
    }
}

/// The number that `model_config.proto` has for a type.
const fn config_type(datatype: Datatype) -> i32 {
    match datatype {
        Datatype::Bool => 1,
        Datatype::Uint8 => 2,
        Datatype::Int8 => 6,
        Datatype::Int16 => 7,
        Datatype::Int32 => 8,
        Datatype::Int64 => 9,
        Datatype::Fp16 => 10,
        Datatype::Fp32 => 11,
        Datatype::Fp64 => 12,
        Datatype::Bf16 => 14,
    }
}

/// Statistics of one model, or of all if none is named.
pub(super) fn statistics(
    server: &Server,
    asked: &ModelRequest,
) -> Result<ModelStatisticsResponse, Status> {
    let model_stats = match asked.name.as_str() {
        "" => {
            let models = server.models();
            models.iter().map(|m| model_statistics(m)).collect()
        }
        _ => {
            let running = find(server, asked)?;
            vec![model_statistics(&running)]
        }
    };
    Ok(ModelStatisticsResponse { model_stats })
}

fn model_statistics(running: &RunningModel) -> ModelStatistics {
    let timed = |count: &TimedCount| {
        Some(StatisticDuration {
            count: count.count(),
            ns: count.total_ns(),
        })
    };
    let stats = &running.stats;
    ModelStatistics {
        name: running.model.name.clone(),
        version: VERSION.to_owned(),
        last_inference: stats.last_ms(),
        inference_count: stats.rows(),
        execution_count: running.admission().executions().sum(),
        inference_stats: Some(InferStatistics {
            success: timed(&stats.success),
            fail: timed(&stats.fail),
            queue: timed(&stats.queue),
            compute_input: timed(&stats.input),
            compute_infer: timed(&stats.infer),
            compute_output: timed(&stats.output),
        }),
    }
}

/// All models, or those that are ready, with how ready they are.
pub(super) fn index(server: &Server, is_only_ready: bool) -> RepositoryIndexResponse {
    let models = server.models();
    let listed = models
        .iter()
        .filter(|running| !is_only_ready || running.is_ready());
    let models = listed.map(|running| {
        let (state, reason) = repository_state(running);
        ModelIndex {
            name: running.model.name.clone(),
            version: VERSION.to_owned(),
            state: state.to_owned(),
            reason,
        }
    });
    let unloaded = server.unloaded().into_iter().filter(|_| !is_only_ready);
    let unloaded = unloaded.map(|name| ModelIndex {
        name,
        version: VERSION.to_owned(),
        state: "UNAVAILABLE".to_owned(),
        reason: "unloaded".to_owned(),
    });
    RepositoryIndexResponse {
        models: models.chain(unloaded).collect(),
    }
}
