//! A request to infer on its way through a model, whatever protocol it came by: read, admitted, computed, written, counted.

use std::time::Instant;

use crate::engine::RunningModel;
use crate::engine::admission::{Computed, Refusal};
use crate::protocol::request::{InferRequest, Tensors};
use crate::stats::{AnsweredTimes, RefusedFor};

/// Why a request is not answered.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The client's mistake.
    Request(String),
    /// It is not admitted.
    Refused(Refusal),
}

/// Answers a request whose bytes have arrived. `read` says what it asks for and `write` makes the answer of what was computed; both
/// say what is wrong with it.
pub(crate) async fn infer<Answer>(
    running: &RunningModel,
    arrived: Instant,
    read: impl FnOnce(Tensors<'_>) -> Result<InferRequest, String>,
    write: impl FnOnce(&InferRequest, Computed) -> Result<Answer, String>,
) -> Result<Answer, Rejection> {
    let model = &running.model;
    let tensors = Tensors {
        inputs: &model.inputs,
        outputs: &model.outputs,
    };
    let read = read(tensors).map_err(Rejection::Request);
    let answer = match read {
        Ok(request) => compute(running, arrived, request, write).await,
        Err(rejection) => Err(rejection),
    };
    answer.inspect_err(|rejection| {
        let stats = &running.stats;
        stats.refused(RefusedFor::of(rejection), arrived.elapsed());
    })
}

async fn compute<Answer>(
    running: &RunningModel,
    arrived: Instant,
    mut request: InferRequest,
    write: impl FnOnce(&InferRequest, Computed) -> Result<Answer, String>,
) -> Result<Answer, Rejection> {
    let input_time = arrived.elapsed();
    let inputs = std::mem::take(&mut request.inputs);
    let submitted = running.submit(inputs, request.timeout);
    let computed = submitted.map_err(Rejection::Refused)?.await;
    // Without an answer the model has failed, and says why to whoever comes next.
    let computed = computed.map_err(|_| {
        let why = "its run ended and is not begun anew".to_owned();
        Rejection::Refused(Refusal::Failed { why })
    })?;

    let begun = Instant::now();
    let (queued, computing) = (computed.queued, computed.computed);
    let answer = write(&request, computed).map_err(Rejection::Request)?;
    running.stats.answered(AnsweredTimes {
        input: input_time,
        queued,
        computed: computing,
        output: begun.elapsed(),
        response: arrived.elapsed(),
        timeout: request.timeout,
    });
    Ok(answer)
}

impl RefusedFor {
    const fn of(rejection: &Rejection) -> Self {
        match rejection {
            Rejection::Request(_) => Self::Request,
            Rejection::Refused(refusal) => match refusal {
                Refusal::Full { .. } => Self::Full,
                Refusal::TooLate { .. } | Refusal::NotRunning => Self::Timeout,
                Refusal::Draining => Self::Draining,
                Refusal::Failed { .. } => Self::Failed,
            },
        }
    }
}
