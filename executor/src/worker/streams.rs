//! A worker's ends of the streams: where its source slots take tokens, and its sink slots give them out.

use crate::observe::measure::LatencyPath;
use crate::transport::clock::Clock;
use crate::transport::conduit::{Consumer, Producer};
use crate::transport::epoch_state::WorkerStatus;
use crate::transport::model_end::ModelSources;
use crate::transport::primitive::Ordering;
use crate::transport::ring::{Spin, Stop, Stopped};

/// The worker's end of a source.
pub(crate) struct SourceEnd {
    pub consumer: Consumer,
}

impl SourceEnd {
    pub(crate) fn read(&mut self, to: &mut [u8]) {
        // Admission made sure of the tokens; only padding reads past the end, and gets zeros.
        self.consumer.read(to);
    }
}

/// What a slot at a stream works with.
#[derive(Clone, Copy)]
pub(crate) struct StreamContext<'a> {
    pub spin: Spin,
    pub stop: &'a Stop,
    pub clock: &'a Clock,
    pub status: &'a WorkerStatus,
}

/// The worker's end of a sink.
pub(crate) struct SinkEnd {
    pub index: u32,
    pub producer: Producer,
    pub token_bytes: u64,
    /// Firings of the sink in one block: its last one completes the block.
    pub firings: u64,
    pub paths: Vec<LatencyPath>,
    /// Tokens still to come that were given out in an earlier epoch: the same bits, and not given out again.
    pub given_out: u64,
    /// Where its tokens end, in a merged program.
    pub model: Option<SinkModel>,
}

/// Where the tokens of a sink end, in a program of several models.
pub(crate) struct SinkModel {
    /// Those of its model, counted from the epoch's beginning.
    sources: ModelSources,
    /// Tokens of an iteration of the model.
    iteration_tokens: u64,
    /// Tokens since the epoch's beginning.
    done: u64,
    has_ended: bool,
}

impl SinkModel {
    pub(crate) fn new(sources: ModelSources, iteration_tokens: u64) -> Self {
        Self {
            sources,
            iteration_tokens,
            done: 0,
            has_ended: false,
        }
    }

    /// How many of the next `tokens` tokens come from tokens of the model's own sources; fewer than asked for at its end.
    fn take(&mut self, tokens: u64) -> u64 {
        // The block of these tokens was admitted, so the end within it is known.
        let end = self.sources.end().saturating_mul(self.iteration_tokens);
        let own_tokens = end.saturating_sub(self.done).min(tokens);
        self.done += own_tokens;
        self.has_ended = own_tokens < tokens;
        own_tokens
    }
}

impl SinkEnd {
    /// Gives tokens out; `end` is one past the last firing of the block that they come from.
    pub(crate) fn write(
        &mut self,
        from: &[u8],
        block: u64,
        end: u64,
        context: StreamContext<'_>,
    ) -> Result<(), Stopped> {
        let StreamContext {
            spin,
            stop,
            clock,
            status,
        } = context;
        let mut new_tokens = from;

        // What follows the end of the model is made of zeros.
        if let Some(model) = &mut self.model {
            if model.has_ended {
                return Ok(());
            }
            let tokens = model.take(from.len() as u64 / self.token_bytes);
            new_tokens = &from[..(tokens * self.token_bytes) as usize];
        }
        let has_ended = self.model.as_ref().is_some_and(|model| model.has_ended);

        // After a loss, tokens are computed again that had been given out before: their readers do not get them twice.
        if self.given_out > 0 {
            let repeated_tokens = self
                .given_out
                .min(new_tokens.len() as u64 / self.token_bytes);
            self.given_out -= repeated_tokens;
            new_tokens = &new_tokens[(repeated_tokens * self.token_bytes) as usize..];
        }
        if new_tokens.is_empty() {
            if has_ended {
                self.producer.end();
            }
            return Ok(());
        }

        // A recovery ends with the first new output, so its time is noted.
        if status.first_output_ns.load(Ordering::Relaxed) == 0 {
            status
                .first_output_ns
                .store(clock.now_ns(), Ordering::Relaxed);
        }

        self.producer
            .wait_space(new_tokens.len() as u64 / self.token_bytes, spin, stop)?;
        self.producer.write(new_tokens).map_err(|_| Stopped)?;
        if has_ended {
            self.producer.end();
            return Ok(());
        }

        // A block's latency is measured when the last of its tokens is given out.
        if end == self.firings && !self.paths.is_empty() {
            let now_ns = clock.now_ns();
            for path in &mut self.paths {
                path.record(block, now_ns);
            }
        }
        Ok(())
    }
}
