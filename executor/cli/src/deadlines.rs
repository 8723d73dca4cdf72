//! Deadlines: how long after its release the output of a block has to be there, and how often it is not.
//!
//! A block's release is when the last of its tokens was handed over by the clock (`paced:`), never when a thread happened
//! to wake. Its response ends when the last of its tokens has reached the thread that moves the sink's tokens.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use zbmd_executor::Engine;
use zbmd_ir::{ActorId, Graph, PlanId};
use zbmd_live::{ReleaseClock, TimeHistogram, TimeSummary};

use super::CliError;
use super::live::LiveStreams;
use super::supervision::EventLines;
use crate::io::pump::TokenListener;

/// The responses of a run's sinks that have deadlines.
#[derive(Default)]
pub(super) struct Deadlines {
    watched: Vec<Watched>,
}

/// A sink with a deadline.
struct Watched {
    sink: String,
    meter: Arc<Mutex<ResponseMeter>>,
}

/// Something that happened to a deadline.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum DeadlineEvent {
    /// A block is late, and the one before was not.
    DeadlineMissed {
        /// The sink.
        sink: String,
        /// The block, counted from 0.
        block: u64,
        /// From its release to its output.
        response_ns: u64,
        /// What it may take.
        limit_ns: u64,
    },
}

type DeadlineListener = Box<dyn FnMut(DeadlineEvent) + Send>;

/// What came of a deadline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DeadlineReport {
    pub(super) sink: String,
    pub(super) limit_ns: u64,
    /// Blocks whose response was longer, those that never came out included.
    pub(super) missed: u64,
    /// Blocks that were released, whose limit had passed while others still were, and that never came out.
    pub(super) unanswered: u64,
    /// From release to output, a block.
    pub(super) response: TimeSummary,
}

/// A source that is released by the clock, as a sink sees it.
struct Release {
    clock: Arc<ReleaseClock>,
    tokens_per_block: u64,
}

/// Measures the responses of one sink.
struct ResponseMeter {
    sink: String,
    releases: Vec<Release>,
    tokens_per_block: u64,
    limit_ns: u64,
    taken_tokens: u64,
    measured_blocks: u64,
    missed: u64,
    /// The last block was late.
    is_late: bool,
    responses: TimeHistogram,
    events: Option<DeadlineListener>,
}

impl Deadlines {
    /// The deadlines of the command line.
    pub(super) fn of(
        given: &[(String, Duration)],
        engine: &Engine,
        live: &LiveStreams,
    ) -> Result<Self, CliError> {
        let graph = &engine.program().graph;
        let block = engine.program().plans[PlanId(0)].block;
        let mut watched: Vec<Watched> = Vec::with_capacity(given.len());

        for (sink, limit) in given {
            let usage = |text: String| CliError::Usage(format!("--deadline {sink}: {text}"));
            let Some((sink_id, _)) = graph.sinks().find(|(_, actor)| actor.name == *sink) else {
                let known: Vec<&str> = graph
                    .sinks()
                    .map(|(_, actor)| actor.name.as_str())
                    .collect();
                let known = known.join(", ");
                return Err(usage(format!(
                    "there is no sink of that name; there are: {known}"
                )));
            };
            // Two limits of one sink would be two answers to one question.
            if watched.iter().any(|other| other.sink == *sink) {
                return Err(usage("is given twice; give it once".to_owned()));
            }

            let releases = releases_of(sink_id, engine, live);
            // A response has no beginning where nothing says when tokens were due.
            if releases.is_empty() {
                return Err(usage(
                    "no source of it is released by the clock: play one with `--input NAME=paced:FILE?rate=...`"
                        .to_owned(),
                ));
            }

            let meter = ResponseMeter {
                sink: sink.clone(),
                releases,
                tokens_per_block: block * engine.tokens_per_iteration(sink_id),
                limit_ns: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
                taken_tokens: 0,
                measured_blocks: 0,
                missed: 0,
                is_late: false,
                responses: TimeHistogram::new(),
                events: None,
            };
            watched.push(Watched {
                sink: sink.clone(),
                meter: Arc::new(Mutex::new(meter)),
            });
        }
        Ok(Self { watched })
    }

    /// Writes the first of several late blocks to the file of events. Whoever writes keeps `running` until all is written.
    pub(super) fn tell(&self, events: Option<&EventLines>, running: &Sender<()>) {
        let Some(events) = events else { return };
        for watched in &self.watched {
            let mut meter = watched.meter.lock().unwrap_or_else(PoisonError::into_inner);
            meter.events = Some(events.stream_listener(running.clone()));
        }
    }

    /// What is to be told how many tokens of a sink were taken.
    pub(super) fn listener(&self, sink: &str) -> Option<TokenListener> {
        let watched = self.watched.iter().find(|watched| watched.sink == sink)?;
        let meter = Arc::clone(&watched.meter);
        Some(Box::new(move |tokens| {
            let mut meter = meter.lock().unwrap_or_else(PoisonError::into_inner);
            meter.take(tokens, zbmd_live::now_ns());
        }))
    }

    /// What came of them; nothing more is written to the file of events.
    pub(super) fn finish(&self) -> Vec<DeadlineReport> {
        let reports = self.watched.iter().map(|watched| {
            let mut meter = watched.meter.lock().unwrap_or_else(PoisonError::into_inner);
            meter.events = None;
            let unanswered = meter.unanswered_blocks();
            DeadlineReport {
                sink: watched.sink.clone(),
                limit_ns: meter.limit_ns,
                missed: meter.missed + unanswered,
                unanswered,
                response: meter.responses.summary(),
            }
        });
        reports.collect()
    }
}

/// The sources of a sink that are released by the clock.
fn releases_of(sink: ActorId, engine: &Engine, live: &LiveStreams) -> Vec<Release> {
    let graph = &engine.program().graph;
    let block = engine.program().plans[PlanId(0)].block;
    let upstream = upstream_of(graph, sink);
    let mut releases = Vec::new();

    for (id, actor) in graph.sources() {
        if let Some(clock) = live.release_clock(&actor.name)
            && upstream.contains(&id)
        {
            releases.push(Release {
                clock,
                tokens_per_block: block * engine.tokens_per_iteration(id),
            });
        }
    }
    releases
}

impl ResponseMeter {
    /// More tokens of the sink were there at `now_ns`.
    fn take(&mut self, tokens: u64, now_ns: u64) {
        self.taken_tokens += tokens;
        while (self.measured_blocks + 1) * self.tokens_per_block <= self.taken_tokens {
            self.measured_blocks += 1;
            let Some(release_ns) = self.release_ns(self.measured_blocks) else {
                continue;
            };
            let response_ns = now_ns.saturating_sub(release_ns);
            self.responses.record(response_ns);
            self.judge(response_ns);
        }
    }
}

impl ResponseMeter {
    /// When the first `blocks` blocks had been released: each is with the last of its sources.
    fn release_ns(&self, blocks: u64) -> Option<u64> {
        let releases = self.releases.iter().filter_map(|release| {
            let tokens = blocks * release.tokens_per_block;
            release.clock.release_ns(tokens)
        });
        releases.max()
    }

    /// Blocks that are missing though their limit had passed when the last tokens were released: from then on the run
    /// was ending.
    fn unanswered_blocks(&self) -> u64 {
        let clocks = || self.releases.iter().map(|release| &release.clock);
        let last_releases = clocks().filter_map(|clock| clock.release_ns(clock.played()));
        let Some(horizon_ns) = last_releases.min() else {
            return 0;
        };
        let is_overdue = |blocks: &u64| {
            let release_ns = self.release_ns(*blocks);
            release_ns.is_some_and(|release_ns| release_ns + self.limit_ns < horizon_ns)
        };
        let outstanding = self.measured_blocks + 1..;
        outstanding.take_while(is_overdue).count() as u64
    }

    fn judge(&mut self, response_ns: u64) {
        // One event for a run of late blocks: a log of each would itself make them late.
        let was_late = std::mem::replace(&mut self.is_late, response_ns > self.limit_ns);
        self.missed += u64::from(self.is_late);
        if let (true, false, Some(events)) = (self.is_late, was_late, &mut self.events) {
            events(DeadlineEvent::DeadlineMissed {
                sink: self.sink.clone(),
                block: self.measured_blocks - 1,
                response_ns,
                limit_ns: self.limit_ns,
            });
        }
    }
}

/// The actors that an actor's tokens come from, over any number of channels.
fn upstream_of(graph: &Graph, actor: ActorId) -> BTreeSet<ActorId> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![actor];
    while let Some(actor) = waiting.pop() {
        for channel in &graph.channels {
            let reads = channel
                .readers
                .iter()
                .any(|reader| reader.to.actor == actor);
            if reads && found.insert(channel.from.actor) {
                waiting.push(channel.from.actor);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Four tokens in and two out a block, every 4 ms; 2 ms are allowed.
    fn meter(clock: &Arc<ReleaseClock>) -> ResponseMeter {
        ResponseMeter {
            sink: "out".to_owned(),
            releases: vec![Release {
                clock: Arc::clone(clock),
                tokens_per_block: 4,
            }],
            tokens_per_block: 2,
            limit_ns: 2 * MS,
            taken_tokens: 0,
            measured_blocks: 0,
            missed: 0,
            is_late: false,
            responses: TimeHistogram::new(),
            events: None,
        }
    }

    #[test]
    fn a_response_is_counted_from_the_release_whenever_anybody_wakes() {
        let clock = Arc::new(ReleaseClock::new(1000.0, 4));
        clock.start(1000 * MS);
        let mut meter = meter(&clock);

        // Released at 1004 ms, 3 ms before: 1 ms more than allowed. Half a block is none.
        meter.take(1, 1005 * MS);
        assert_eq!((meter.measured_blocks, meter.missed), (0, 0));
        meter.take(1, 1007 * MS);
        assert_eq!((meter.measured_blocks, meter.missed), (1, 1));
        let longest_ns = meter.responses.summary().max_ns;
        assert!(
            (3 * MS..3 * MS + MS / 100).contains(&longest_ns),
            "{longest_ns}"
        );

        // Two blocks at once, released at 1008 and 1012 ms: the first is late, the second is not.
        meter.take(4, 1013 * MS);
        assert_eq!((meter.measured_blocks, meter.missed), (3, 2));
        assert_eq!(meter.responses.summary().count, 3);
    }

    #[test]
    fn blocks_that_never_come_out_are_missed_if_the_run_went_on_without_them() {
        let clock = Arc::new(ReleaseClock::new(1000.0, 4));
        clock.start(1000 * MS);
        let mut meter = meter(&clock);
        meter.take(2, 1005 * MS);
        assert_eq!(meter.unanswered_blocks(), 0);

        // Five blocks were released, the last at 1020 ms: at that time those of 1008, 1012 and 1016 ms were overdue.
        clock.play(20);
        assert_eq!(meter.unanswered_blocks(), 3);
    }

    #[test]
    fn events_tell_the_first_of_several_late_blocks() {
        let clock = Arc::new(ReleaseClock::new(1000.0, 4));
        clock.start(1000 * MS);
        let mut meter = meter(&clock);
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&told);
        meter.events = Some(Box::new(move |event| {
            let DeadlineEvent::DeadlineMissed { block, .. } = event;
            listener.lock().expect("one thread").push(block);
        }));

        // Blocks 0 and 1 late, 2 in time, 3 late.
        for now_ms in [1010, 1011, 1013, 1019] {
            meter.take(2, now_ms * MS);
        }
        assert_eq!(meter.missed, 3);
        assert_eq!(*told.lock().expect("one thread"), [0, 3]);
    }
}
