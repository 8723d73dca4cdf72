//! A worker's ends of the streams: where its source slots take tokens, and its sink slots give them out.

use crate::observe::measure::LatencyPath;
use crate::transport::clock::Clock;
use crate::transport::conduit::{Consumer, Producer};
use crate::transport::epoch_state::WorkerStatus;
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

        // After a loss, tokens are computed again that had been given out before: their readers do not get them twice.
        if self.given_out > 0 {
            let repeated_tokens = self.given_out.min(from.len() as u64 / self.token_bytes);
            self.given_out -= repeated_tokens;
            new_tokens = &from[(repeated_tokens * self.token_bytes) as usize..];
            if new_tokens.is_empty() {
                return Ok(());
            }
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
