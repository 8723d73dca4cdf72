//! Measures the responses of one sink, and says which of its blocks are late.
//!
//! Each block is decided about once: when the last of its tokens has left the session, or before, when its deadline
//! passes and its place is filled. Tokens leave a session once, whatever is replayed after a loss.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use serde::Serialize;
use zbmd_executor::{ModeHandle, ModeStart};
use zbmd_ir::response::LatePolicy;
use zbmd_live::{ReleaseClock, TimeHistogram};

use super::DeadlineReport;
use super::blocks::BlockLegs;
use crate::io::block_gate::BlockVerdict;

/// Something that happened to a deadline.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum DeadlineEvent {
    /// A block is late, and the one before was not.
    DeadlineMissed {
        /// The sink.
        sink: String,
        /// The block, counted from 0.
        block: u64,
        /// From its release to its output, or until its place was filled.
        response_ns: u64,
        /// What it may take.
        limit_ns: u64,
        /// What the sink is given in its place.
        on_miss: LatePolicy,
    },
    /// A block is in time, and the one before was not.
    DeadlineKept {
        /// The sink.
        sink: String,
        /// The block, counted from 0.
        block: u64,
        /// Blocks in a row before it that were late.
        missed: u64,
    },
}

pub(super) type DeadlineListener = Box<dyn FnMut(DeadlineEvent) + Send>;

/// The mode that a late block asks for.
pub(super) struct WantedMode {
    pub(super) name: String,
    /// Whom it is asked of, once the run has begun.
    pub(super) handle: Option<ModeHandle>,
}

/// Measures the responses of one sink.
pub(super) struct ResponseMeter {
    pub(super) sink: String,
    /// Of the sources that are released by the clock.
    pub(super) releases: Vec<Arc<ReleaseClock>>,
    /// The tokens of each block, of the sink and of these sources.
    pub(super) blocks: BlockLegs,
    /// Tells of each mode that the run goes over to.
    pub(super) starts: Option<Receiver<ModeStart>>,
    pub(super) limit_ns: u64,
    pub(super) policy: LatePolicy,
    /// Where `policy` asks for a mode.
    pub(super) wanted_mode: Option<WantedMode>,
    pub(super) taken_tokens: u64,
    /// When the last of them came.
    pub(super) taken_ns: u64,
    /// Blocks whose tokens have all come.
    pub(super) measured_blocks: u64,
    /// Blocks that are known to be late or not: those measured, and those whose places were filled.
    pub(super) decided_blocks: u64,
    /// Of the blocks decided about, those that are late.
    pub(super) missed: u64,
    /// Of them, the last ones in a row.
    pub(super) missed_in_row: u64,
    pub(super) responses: TimeHistogram,
    pub(super) events: Option<DeadlineListener>,
}

impl ResponseMeter {
    pub(super) fn new(sink: String, releases: Vec<Arc<ReleaseClock>>, blocks: BlockLegs) -> Self {
        Self {
            sink,
            releases,
            blocks,
            starts: None,
            limit_ns: 0,
            policy: LatePolicy::default(),
            wanted_mode: None,
            taken_tokens: 0,
            taken_ns: 0,
            measured_blocks: 0,
            decided_blocks: 0,
            missed: 0,
            missed_in_row: 0,
            responses: TimeHistogram::new(),
            events: None,
        }
    }

    /// More tokens of the sink were there at `now_ns`.
    pub(super) fn take(&mut self, tokens: u64, now_ns: u64) {
        // That a mode has ended, and its last block with it, may be known only when the next one's tokens come.
        self.learn_modes();
        self.complete_taken(self.taken_ns);
        self.taken_tokens += tokens;
        self.complete_taken(now_ns);
        self.taken_ns = now_ns;
    }

    /// Completes the blocks whose tokens have all come.
    fn complete_taken(&mut self, now_ns: u64) {
        while self.blocks.sink_tokens(self.measured_blocks + 1) <= self.taken_tokens {
            self.complete_block(now_ns);
        }
    }

    /// Takes in the changes of mode that were made.
    fn learn_modes(&mut self) {
        let starts = self.starts.iter().flat_map(Receiver::try_iter);
        for start in starts {
            self.blocks.enter(start.mode, start.iteration);
        }
    }

    /// Tokens of the next block that comes. Asked before its last one comes, they may turn out to be fewer.
    pub(super) fn next_block_tokens(&mut self) -> u64 {
        self.learn_modes();
        let blocks = self.measured_blocks;
        self.blocks.sink_tokens(blocks + 1) - self.blocks.sink_tokens(blocks)
    }

    /// The last token of the next block was there at `now_ns`.
    pub(super) fn complete_block(&mut self, now_ns: u64) -> BlockVerdict {
        self.measured_blocks += 1;
        let release_ns = self.release_ns(self.measured_blocks);
        let response_ns = release_ns.map(|release_ns| now_ns.saturating_sub(release_ns));
        if let Some(response_ns) = response_ns {
            self.responses.record(response_ns);
        }
        self.blocks
            .forget_before(self.measured_blocks.min(self.decided_blocks));

        if self.measured_blocks <= self.decided_blocks {
            return BlockVerdict::PlaceFilled;
        }
        // Without a release there is no response, and nothing to be late for.
        match self.decide(response_ns.unwrap_or(0)) {
            true => BlockVerdict::Late,
            false => BlockVerdict::InTime,
        }
    }

    /// When the place of the next block has to be filled; `None` if nothing has been released yet.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let release_ns = self.release_ns(self.decided_blocks + 1)?;
        Some(release_ns.saturating_add(self.limit_ns))
    }

    /// Decides that the next block is late, if it was released and its deadline has passed; whether it is so.
    pub(super) fn fill_place(&mut self, now_ns: u64) -> bool {
        let next_block = self.decided_blocks + 1;
        let Some(release_ns) = self.release_ns(next_block) else {
            return false;
        };
        let response_ns = now_ns.saturating_sub(release_ns);
        // By the clock alone, a block would be due after the last one of a file too.
        if response_ns <= self.limit_ns || !self.is_released(next_block) {
            return false;
        }
        self.decide(response_ns)
    }

    /// When the first `blocks` blocks had been released: each is with the last of its sources.
    fn release_ns(&self, blocks: u64) -> Option<u64> {
        let releases = self.releases.iter().enumerate();
        let releases = releases.filter_map(|(source, clock)| {
            clock.release_ns(self.blocks.source_tokens(blocks, source))
        });
        releases.max()
    }

    /// Whether all sources have handed over the tokens of the first `blocks` blocks.
    fn is_released(&self, blocks: u64) -> bool {
        let mut releases = self.releases.iter().enumerate();
        releases.all(|(source, clock)| clock.played() >= self.blocks.source_tokens(blocks, source))
    }

    /// Blocks beyond the first `blocks` that are missing though their limit had passed when the last tokens were
    /// released: from then on the run was ending.
    fn overdue_blocks(&self, blocks: u64) -> u64 {
        let clocks = self.releases.iter();
        let last_releases = clocks.filter_map(|clock| clock.release_ns(clock.played()));
        let Some(horizon_ns) = last_releases.min() else {
            return 0;
        };
        let is_overdue = |blocks: &u64| {
            let release_ns = self.release_ns(*blocks);
            release_ns.is_some_and(|release_ns| release_ns + self.limit_ns < horizon_ns)
        };
        let outstanding = blocks + 1..;
        outstanding.take_while(is_overdue).count() as u64
    }

    /// Decides about the next block; whether it is late.
    fn decide(&mut self, response_ns: u64) -> bool {
        let block = self.decided_blocks;
        self.decided_blocks += 1;
        let is_late = response_ns > self.limit_ns;
        let missed_before = self.missed_in_row;
        if is_late {
            self.missed += 1;
            self.missed_in_row += 1;
            self.ask_for_mode();
        } else {
            self.missed_in_row = 0;
        }

        // Two events for a row of late blocks: a log of each would itself make them late.
        let Some(events) = &mut self.events else {
            return is_late;
        };
        if is_late && missed_before == 0 {
            events(DeadlineEvent::DeadlineMissed {
                sink: self.sink.clone(),
                block,
                response_ns,
                limit_ns: self.limit_ns,
                on_miss: self.policy,
            });
        } else if !is_late && missed_before > 0 {
            events(DeadlineEvent::DeadlineKept {
                sink: self.sink.clone(),
                block,
                missed: missed_before,
            });
        }
        is_late
    }

    /// Asks for the mode that late blocks ask for. One that is asked for already, or that the lost devices leave without a
    /// plan, is asked for again by the next late block.
    fn ask_for_mode(&self) {
        if let Some(WantedMode {
            name,
            handle: Some(handle),
        }) = &self.wanted_mode
        {
            let _ = handle.change(name);
        }
    }

    /// Late blocks that were dropped, and that were replaced by the last one in time.
    pub(super) fn blocks_by(&self, policy: LatePolicy) -> u64 {
        match self.policy == policy {
            true => self.missed,
            false => 0,
        }
    }

    /// What came of it, when no more tokens come.
    pub(super) fn report(&self) -> DeadlineReport {
        DeadlineReport {
            sink: self.sink.clone(),
            limit_ns: self.limit_ns,
            on_miss: self.policy,
            missed: self.missed + self.overdue_blocks(self.decided_blocks),
            unanswered: self.overdue_blocks(self.measured_blocks),
            dropped: self.blocks_by(LatePolicy::Drop),
            held: self.blocks_by(LatePolicy::Hold),
            response: self.responses.summary(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::blocks::ModeTokens;
    use super::*;

    const MS: u64 = 1_000_000;

    /// Four tokens in and two out a block, every 4 ms; 2 ms are allowed.
    fn meter(clock: &Arc<ReleaseClock>) -> ResponseMeter {
        // Of the second mode twice as many.
        let modes = [1, 2].map(|times| ModeTokens {
            block: times,
            sink: 2,
            sources: vec![4],
        });
        let blocks = BlockLegs::new(modes.to_vec(), 0, 0);
        let mut meter = ResponseMeter::new("out".to_owned(), vec![Arc::clone(clock)], blocks);
        meter.limit_ns = 2 * MS;
        meter
    }

    #[test]
    fn blocks_over_a_change_of_mode_have_the_tokens_of_their_mode() {
        let clock = Arc::new(ReleaseClock::new(1000.0, 4));
        clock.start(1000 * MS);
        let mut meter = meter(&clock);
        let (entered, starts) = std::sync::mpsc::channel();
        meter.starts = Some(starts);
        assert_eq!(meter.next_block_tokens(), 2);
        meter.take(2, 1005 * MS);
        let start = ModeStart {
            mode: 1,
            iteration: 1,
        };
        entered.send(start).expect("followed");
        assert_eq!(meter.next_block_tokens(), 4);
        // Released at 1012 ms as a whole: the first half of it is none.
        meter.take(2, 1010 * MS);
        assert_eq!((meter.measured_blocks, meter.missed), (1, 0));
        meter.take(2, 1013 * MS);
        assert_eq!((meter.measured_blocks, meter.missed), (2, 0));
        meter.take(4, 1023 * MS);
        assert_eq!((meter.measured_blocks, meter.missed), (3, 1));

        // The mode ends within a block: what has come of it is complete, since when it came.
        meter.take(2, 1025 * MS);
        let start = ModeStart {
            mode: 0,
            iteration: 6,
        };
        entered.send(start).expect("followed");
        meter.take(2, 1029 * MS);
        assert_eq!((meter.measured_blocks, meter.missed), (5, 1));
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
        assert_eq!(meter.report().unanswered, 0);

        // Five blocks were released, the last at 1020 ms: at that time those of 1008, 1012 and 1016 ms were overdue.
        clock.play(20);
        assert_eq!(meter.report().unanswered, 3);
    }

    #[test]
    fn a_row_of_late_blocks_is_two_events() {
        let clock = Arc::new(ReleaseClock::new(1000.0, 4));
        clock.start(1000 * MS);
        let mut meter = meter(&clock);
        let written = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&written);
        meter.events = Some(Box::new(move |event| {
            let line = serde_json::to_string(&event).expect("plain data");
            listener.lock().expect("one thread").push(line);
        }));

        // Blocks 0 and 1 late, 2 in time, 3 late.
        for now_ms in [1010, 1011, 1013, 1019] {
            meter.take(2, now_ms * MS);
        }
        assert_eq!(meter.missed, 3);
        let missed = |block: u64, response_ms: u64| {
            format!(
                r#"{{"event":"deadline_missed","sink":"out","block":{block},"response_ns":{},"limit_ns":2000000,"on_miss":"wait"}}"#,
                response_ms * MS
            )
        };
        let kept = r#"{"event":"deadline_kept","sink":"out","block":2,"missed":2}"#;
        let expected = [missed(0, 6), kept.to_owned(), missed(3, 3)];
        assert_eq!(*written.lock().expect("one thread"), expected);
    }

    #[test]
    fn a_place_that_was_filled_is_decided_once() {
        let clock = Arc::new(ReleaseClock::new(1000.0, 4));
        clock.start(1000 * MS);
        let mut meter = meter(&clock);
        meter.policy = LatePolicy::Hold;

        // Block 0 is due at 1006 ms; nothing is filled before that, nor before its tokens were handed over.
        assert_eq!(meter.next_due_ns(), Some(1006 * MS));
        assert!(!meter.fill_place(1007 * MS));
        clock.play(8);
        assert!(!meter.fill_place(1006 * MS));
        assert!(meter.fill_place(1007 * MS));
        // Block 1 is due at 1010 ms; block 2 has not been handed over.
        assert!(!meter.fill_place(1010 * MS));
        assert!(meter.fill_place(1011 * MS));
        assert!(!meter.fill_place(1100 * MS));
        assert_eq!(meter.report().missed, 2);

        // Their tokens come after all: the response is measured, and nothing is decided again.
        assert_eq!(meter.complete_block(1012 * MS), BlockVerdict::PlaceFilled);
        assert_eq!(meter.complete_block(1012 * MS), BlockVerdict::PlaceFilled);
        clock.play(4);
        assert_eq!(meter.complete_block(1013 * MS), BlockVerdict::InTime);
        let report = meter.report();
        assert_eq!((report.missed, report.held, report.dropped), (2, 2, 0));
        assert_eq!(report.response.count, 3);
    }
}
