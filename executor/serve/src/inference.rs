//! A request to infer on its way through a model, whatever protocol it came by: read, admitted, computed, written, counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::engine::admission::{Computed, Refusal, Submission};
use crate::engine::{KeptPlace, RunningModel};
use crate::otlp::{ComputedTimes, RequestRecord, TraceParent};
use crate::protocol::request::{InferRequest, Tensors};
use crate::sequence::SequenceStep;
use crate::shared_memory::Regions;
use crate::stats::{AnsweredTimes, RefusedFor};

/// Why a request is not answered.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The client's mistake.
    Request(String),
    /// It is not admitted.
    Refused(Refusal),
}

/// When a request was there, and what it is a part of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    /// The client's span.
    pub(crate) parent: Option<TraceParent>,
}

/// A request that was admitted.
pub(crate) struct Admitted {
    running: Arc<RunningModel>,
    request: InferRequest,
    /// Of each iteration, in their order.
    computed: Vec<oneshot::Receiver<Computed>>,
    arrival: Arrival,
    /// Until it was read.
    input_time: Duration,
}

/// Admits a request whose bytes have arrived. `read` says what it asks for, or what is wrong with it. Requests are computed in the
/// order in which they are admitted.
///
/// # Errors
/// Why it is not admitted, which is counted.
pub(crate) fn admit(
    running: &Arc<RunningModel>,
    regions: &Regions,
    arrival: Arrival,
    read: impl FnOnce(Tensors<'_>) -> Result<InferRequest, String>,
) -> Result<Admitted, Rejection> {
    let model = &running.model;
    let tensors = Tensors {
        inputs: &model.inputs,
        outputs: &model.outputs,
        regions,
        max_rows: model.max_rows(),
    };
    let admitted = read(tensors).map_err(Rejection::Request);
    let admitted = admitted.and_then(|request| submit(running, arrival, request));
    admitted.inspect_err(|rejection| count(running, arrival, rejection))
}

/// Keeps a place for a request with such a timeout whose tensors are on their way, whatever they are: those of one that is refused need
/// not come.
///
/// # Errors
/// Why it is not admitted, which is counted.
pub(crate) fn announce(
    running: &Arc<RunningModel>,
    arrival: Arrival,
    timeout: Option<Duration>,
) -> Result<KeptPlace, Rejection> {
    let announced = running.announce(timeout).map_err(Rejection::Refused);
    announced.inspect_err(|rejection| count(running, arrival, rejection))
}

fn submit(
    running: &Arc<RunningModel>,
    arrival: Arrival,
    mut request: InferRequest,
) -> Result<Admitted, Rejection> {
    check_sequence(running, request.step.as_ref())?;
    let input_time = arrival.at.elapsed();
    let inputs = std::mem::take(&mut request.inputs);
    let submission = Submission {
        rows: split_rows(inputs, request.rows),
        timeout: request.timeout,
        step: request.step.clone(),
    };
    let computed = running.submit(submission).map_err(Rejection::Refused)?;
    Ok(Admitted {
        running: Arc::clone(running),
        request,
        computed,
        arrival,
        input_time,
    })
}

/// The inputs of each row of a batch.
fn split_rows(inputs: Vec<Vec<u8>>, rows: usize) -> Vec<Vec<Vec<u8>>> {
    if rows == 1 {
        return vec![inputs];
    }
    let row = |row: usize| {
        let parts = inputs.iter().map(|bytes| {
            let row_bytes = bytes.len() / rows;
            bytes[row * row_bytes..][..row_bytes].to_vec()
        });
        parts.collect()
    };
    (0..rows).map(row).collect()
}

/// A state belongs to a sequence, and a sequence to a model that keeps a state.
fn check_sequence(running: &RunningModel, step: Option<&SequenceStep>) -> Result<(), Rejection> {
    let name = &running.model.name;
    match (running.keeps_state(), step) {
        (true, None) => Err(Rejection::Request(format!(
            "inference request to model `{name}` must specify a non-zero or non-empty correlation ID, as the parameter `sequence_id`: \
             the model keeps a state for each sequence"
        ))),
        (false, Some(_)) => Err(Rejection::Request(format!(
            "`sequence_id` is not supported by the model `{name}`, which keeps no state: leave it out"
        ))),
        (true, Some(_)) | (false, None) => Ok(()),
    }
}

impl Admitted {
    /// Waits for what is computed. `write` makes the answer of it, or says why it cannot.
    ///
    /// # Errors
    /// Why there is no answer, which is counted.
    pub(crate) async fn answer<Answer>(
        self,
        write: impl FnOnce(&RunningModel, &InferRequest, Computed) -> Result<Answer, String>,
    ) -> Result<Answer, Rejection> {
        let (running, arrival) = (Arc::clone(&self.running), self.arrival);
        let answer = self.compute(write).await;
        answer.inspect_err(|rejection| count(&running, arrival, rejection))
    }

    async fn compute<Answer>(
        self,
        write: impl FnOnce(&RunningModel, &InferRequest, Computed) -> Result<Answer, String>,
    ) -> Result<Answer, Rejection> {
        // Without an answer the model has failed, and says why to whoever comes next.
        let mut rows = Vec::with_capacity(self.computed.len());
        for computed in self.computed {
            rows.push(computed.await.map_err(|_| {
                let why = "its run ended and is not begun anew".to_owned();
                Rejection::Refused(Refusal::Failed { why })
            })?);
        }
        let computed = Computed::joined(rows);

        let begun = Instant::now();
        let (queued, computing) = (computed.queued, computed.computed);
        let usual = computed.usual;
        let answer = write(&self.running, &self.request, computed).map_err(Rejection::Request)?;
        let end = Instant::now();
        let response = end - self.arrival.at;
        self.running
            .admission()
            .measured()
            .responded(response, usual);
        self.running.stats.answered(AnsweredTimes {
            input: self.input_time,
            queued,
            computed: computing,
            output: end - begun,
            response,
            timeout: self.request.timeout,
            rows: self.request.rows,
        });
        if let Some(tracer) = self.running.tracer() {
            tracer.request(RequestRecord {
                parent: self.arrival.parent,
                begin: self.arrival.at,
                end,
                id: self.request.id,
                outcome: Ok(ComputedTimes {
                    input: self.input_time,
                    queued,
                    computed: computing,
                }),
            });
        }
        Ok(answer)
    }
}

fn count(running: &RunningModel, arrival: Arrival, rejection: &Rejection) {
    let end = Instant::now();
    let stats = &running.stats;
    stats.refused(RefusedFor::of(rejection), end - arrival.at);
    if let Some(tracer) = running.tracer() {
        let why = match rejection {
            Rejection::Request(what) => what.clone(),
            Rejection::Refused(refusal) => refusal.to_string(),
        };
        tracer.request(RequestRecord {
            parent: arrival.parent,
            begin: arrival.at,
            end,
            id: None,
            outcome: Err(why),
        });
    }
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
                Refusal::NotStarted { .. } => Self::Request,
                Refusal::TooManySequences { .. } => Self::Sequences,
            },
        }
    }
}
