//! What becomes of each message, from its position alone: taken, taken in part, dropped as a repeat, or fetched later because
//! something before it is missing. No clock, no network and no files.

use crate::{Kind, Position, RunName};

/// What is known of the stream, in bytes.
#[derive(Debug)]
pub(super) struct Assembly {
    /// The run that is read, once that is known.
    pub(super) run: Option<RunName>,
    /// What comes next; `None` for whatever comes first.
    pub(super) next: Option<u64>,
    token_bytes: u64,
    /// Whether messages have positions, once one has come.
    has_positions: Option<bool>,
    /// The lowest offset that was seen beyond something that is missing.
    pub(super) ahead: Option<u64>,
    /// The next message is taken wherever it is.
    accepts_gap: bool,
    /// Messages that had nothing new, and bytes that came twice.
    pub(super) repeated_messages: u64,
    pub(super) repeated_bytes: u64,
    /// Bytes that are missing for good.
    pub(super) lost_bytes: u64,
}

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Take the payload without so many bytes at its beginning, which came before.
    Take { skipped_bytes: usize },
    /// Nothing of it is new.
    Repeat,
    /// Something before it is missing.
    Ahead,
    /// The stream has ended, and everything was taken.
    Ended,
}

impl Assembly {
    /// `next` is where to begin, in bytes.
    pub(super) fn new(run: Option<RunName>, next: Option<u64>, token_bytes: u64) -> Self {
        Self {
            // Who names a run or goes on where a file ends takes nothing without a position.
            has_positions: run.is_some().then_some(true),
            run,
            next,
            token_bytes,
            ahead: None,
            accepts_gap: false,
            repeated_messages: 0,
            repeated_bytes: 0,
            lost_bytes: 0,
        }
    }

    /// Only samples without positions are read.
    pub(super) fn expect_plain_samples(&mut self) {
        self.has_positions = Some(false);
    }

    /// Whether samples without positions are read: there is nobody to be asked for more.
    pub(super) fn is_plain(&self) -> bool {
        self.has_positions == Some(false)
    }

    /// A sample without a position.
    ///
    /// # Errors
    /// Positions are expected, or the payload is not whole tokens; both with what to do.
    pub(super) fn plain_sample(&mut self, payload_bytes: usize) -> Result<(), String> {
        if self.has_positions == Some(true) {
            let run = self.run.as_ref().map_or("", RunName::as_str);
            return Err(format!(
                "has no position, and those of run `{run}` have one: read bridges and other publishers on different keys, or leave out --run"
            ));
        }
        self.check_length(payload_bytes)?;
        self.has_positions = Some(false);
        Ok(())
    }

    fn check_length(&self, payload_bytes: usize) -> Result<(), String> {
        let token_bytes = self.token_bytes;
        match (payload_bytes as u64).is_multiple_of(token_bytes) {
            true => Ok(()),
            false => Err(format!(
                "has {payload_bytes} bytes, which is no multiple of the {token_bytes} bytes of a token: \
                 give --token-bytes what the publisher sends, or the model a source with tokens of that size"
            )),
        }
    }

    /// A message or a reply with a position.
    ///
    /// # Errors
    /// One that cannot be of this stream, with both values and what to do.
    pub(super) fn message(
        &mut self,
        position: &Position,
        payload_bytes: usize,
    ) -> Result<Verdict, String> {
        self.check_stream(position)?;
        let offset = position.offset;
        match position.kind {
            Kind::Data => self.data(offset, payload_bytes),
            Kind::End => self.end(offset),
            Kind::First => {
                let is_missing = self.next.is_none_or(|next| next < offset);
                Ok(if is_missing {
                    self.note_ahead(offset)
                } else {
                    Verdict::Repeat
                })
            }
            Kind::Want | Kind::Have => Err(
                "carries a question, which no message does: another program publishes here"
                    .to_owned(),
            ),
        }
    }

    fn check_stream(&mut self, position: &Position) -> Result<(), String> {
        let Some(found) = &position.run else {
            return Err("names no run".to_owned());
        };
        if self.has_positions == Some(false) {
            return Err(format!(
                "is of run `{found}`, and samples without a position are read here: read bridges and other publishers on different keys"
            ));
        }
        match &self.run {
            Some(run) if run != found => Err(format!(
                "is of run `{found}`, and run `{run}` is read here: publish runs on different keys, or start this bridge anew for the other run"
            )),
            _ => {
                self.run = Some(found.clone());
                self.has_positions = Some(true);
                Ok(())
            }
        }
    }

    fn data(&mut self, offset: u64, payload_bytes: usize) -> Result<Verdict, String> {
        self.check_length(payload_bytes)?;
        let token_bytes = self.token_bytes;
        if !offset.is_multiple_of(token_bytes) {
            return Err(format!(
                "begins at byte {offset} of its run, which is no multiple of the {token_bytes} bytes of a token: give both bridges the same --token-bytes"
            ));
        }
        let end = offset.checked_add(payload_bytes as u64).ok_or_else(|| {
            format!("begins at byte {offset} and has {payload_bytes}: no stream is so long")
        })?;

        let next = self.next.unwrap_or(offset);
        if offset > next && !self.accepts_gap {
            return Ok(self.note_ahead(offset));
        }
        if end <= next {
            self.repeated_messages += 1;
            self.repeated_bytes += payload_bytes as u64;
            return Ok(Verdict::Repeat);
        }
        let skipped_bytes = next.saturating_sub(offset);
        self.repeated_bytes += skipped_bytes;
        self.lost_bytes += offset.saturating_sub(next);
        self.take_until(end);
        // Less than the payload has.
        let skipped_bytes = skipped_bytes as usize;
        Ok(Verdict::Take { skipped_bytes })
    }

    fn end(&mut self, offset: u64) -> Result<Verdict, String> {
        let next = self.next.unwrap_or(offset);
        if offset > next && !self.accepts_gap {
            return Ok(self.note_ahead(offset));
        }
        if offset < next {
            return Err(format!(
                "says that the run ends at byte {offset}, and {next} bytes of it were read: its sink has published another stream under the same --run"
            ));
        }
        self.lost_bytes += offset - next;
        self.take_until(offset);
        Ok(Verdict::Ended)
    }

    fn take_until(&mut self, end: u64) {
        self.next = Some(end);
        self.accepts_gap = false;
        self.ahead = self.ahead.filter(|ahead| *ahead > end);
    }

    fn note_ahead(&mut self, offset: u64) -> Verdict {
        self.ahead = Some(self.ahead.map_or(offset, |ahead| ahead.min(offset)));
        Verdict::Ahead
    }

    /// The tokens that are missing are taken for lost. `first` is where what can be fetched begins, if somebody has said so;
    /// otherwise the stream goes on with whatever comes next.
    pub(super) fn give_up_missing(&mut self, first: Option<u64>) {
        match (first, self.next) {
            (Some(first), Some(next)) => {
                self.lost_bytes += first.saturating_sub(next);
                self.take_until(first.max(next));
            }
            (Some(first), None) => self.take_until(first),
            (None, _) => {
                self.accepts_gap = true;
                self.ahead = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assembly(next: Option<u64>) -> Assembly {
        Assembly::new(None, next, 4)
    }

    fn at(kind: Kind, offset: u64, run: &str) -> Position {
        Position {
            kind,
            offset,
            run: run.parse().ok(),
        }
    }

    /// Gives data of run `a` to an assembly; the verdict.
    fn feed(assembly: &mut Assembly, offset: u64, bytes: usize) -> Result<Verdict, String> {
        assembly.message(&at(Kind::Data, offset, "a"), bytes)
    }

    #[test]
    fn messages_are_taken_once_and_in_order() {
        let mut stream = assembly(Some(0));
        for (offset, bytes, expect) in [
            (0, 8, Verdict::Take { skipped_bytes: 0 }),
            (0, 8, Verdict::Repeat),
            (4, 8, Verdict::Take { skipped_bytes: 4 }),
            (20, 4, Verdict::Ahead),
            (16, 4, Verdict::Ahead),
            (12, 4, Verdict::Take { skipped_bytes: 0 }),
            (0, 40, Verdict::Take { skipped_bytes: 16 }),
            (40, 0, Verdict::Repeat),
        ] {
            assert_eq!(feed(&mut stream, offset, bytes), Ok(expect), "{offset}");
        }
        assert_eq!(stream.next, Some(40));
        assert_eq!(stream.ahead, None);
        assert_eq!(stream.repeated_bytes, 8 + 4 + 16);
        assert_eq!(stream.lost_bytes, 0);
    }

    #[test]
    fn what_is_lost_is_counted_to_the_byte() {
        // Nobody has it: the next message is taken.
        let mut stream = assembly(Some(0));
        assert_eq!(feed(&mut stream, 40, 4), Ok(Verdict::Ahead));
        stream.give_up_missing(None);
        assert_eq!(
            feed(&mut stream, 48, 4),
            Ok(Verdict::Take { skipped_bytes: 0 })
        );
        assert_eq!(stream.lost_bytes, 48);
        assert_eq!(feed(&mut stream, 60, 4), Ok(Verdict::Ahead), "only once");

        // The sink has what follows a place.
        stream.give_up_missing(Some(56));
        assert_eq!(stream.next, Some(56));
        assert_eq!(stream.lost_bytes, 52);

        // Only the end is known.
        stream.give_up_missing(None);
        assert_eq!(
            stream.message(&at(Kind::End, 64, "a"), 0),
            Ok(Verdict::Ended)
        );
        assert_eq!(stream.lost_bytes, 60);
    }

    #[test]
    fn the_end_is_believed_when_everything_is_there() {
        let mut stream = assembly(Some(0));
        assert_eq!(
            stream.message(&at(Kind::End, 8, "a"), 0),
            Ok(Verdict::Ahead)
        );
        assert_eq!(stream.ahead, Some(8));
        assert_eq!(
            feed(&mut stream, 0, 8),
            Ok(Verdict::Take { skipped_bytes: 0 })
        );
        assert_eq!(stream.ahead, None);
        assert_eq!(
            stream.message(&at(Kind::End, 8, "a"), 0),
            Ok(Verdict::Ended)
        );
        let error = stream
            .message(&at(Kind::End, 4, "a"), 0)
            .expect_err("shorter");
        assert!(error.contains("ends at byte 4, and 8 bytes"), "{error}");
    }

    #[test]
    fn messages_that_cannot_be_of_the_stream_are_refused_with_both_values() {
        let mut stream = assembly(Some(0));
        assert_eq!(
            feed(&mut stream, 0, 8),
            Ok(Verdict::Take { skipped_bytes: 0 })
        );
        for (position, bytes, expect) in [
            (at(Kind::Data, 8, "b"), 4, "of run `b`, and run `a`"),
            (
                at(Kind::Data, 8, "a"),
                6,
                "has 6 bytes, which is no multiple of the 4",
            ),
            (
                at(Kind::Data, 10, "a"),
                4,
                "byte 10 of its run, which is no multiple of the 4",
            ),
            (at(Kind::Data, u64::MAX - 3, "a"), 8, "no stream is so long"),
            (at(Kind::Want, 8, "a"), 0, "carries a question"),
            (at(Kind::Want, 8, ""), 0, "names no run"),
        ] {
            let error = stream.message(&position, bytes).expect_err(expect);
            assert!(error.contains(expect), "{error}");
        }
        let error = stream.plain_sample(4).expect_err("mixed");
        assert!(error.contains("has no position"), "{error}");
        assert_eq!(stream.next, Some(8), "nothing of them was taken");
    }

    #[test]
    fn plain_samples_are_whole_tokens_and_stay_alone() {
        let mut stream = assembly(Some(0));
        let error = stream.plain_sample(5).expect_err("5 of 4");
        assert!(error.contains("has 5 bytes"), "{error}");
        assert_eq!(stream.plain_sample(8), Ok(()));
        assert!(stream.is_plain());
        let error = feed(&mut stream, 0, 4).expect_err("mixed");
        assert!(
            error.contains("samples without a position are read here"),
            "{error}"
        );
    }

    #[test]
    fn a_stream_may_begin_with_whatever_comes() {
        let mut stream = assembly(None);
        assert_eq!(
            feed(&mut stream, 400, 4),
            Ok(Verdict::Take { skipped_bytes: 0 })
        );
        assert_eq!(feed(&mut stream, 396, 4), Ok(Verdict::Repeat));
        assert_eq!(stream.next, Some(404));
        assert_eq!(stream.lost_bytes, 0);
    }
}
